"""Everything is said in pyproject.toml but this: the gates' inner loop in C, left out where there is no compiler.

It keeps to the stable interface of Python 3.11, so one wheel (cp311-abi3) serves that version and all later ones.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "graphmask.ops._fused",
            ["src/graphmask/ops/_fused.c"],
            extra_compile_args=["-O3", "-Wno-psabi"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
