"""Everything is said in pyproject.toml but this: the gates' inner loop in C, left out where there is no compiler."""

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
    ]
)
