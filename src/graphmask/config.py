"""What is installed and in use, for bug reports: versions, whether the compiled kernels run, threads."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

#: Distributions whose versions are shown.
SHOWN = ("graphmask", "torch", "torch_geometric", "numpy")


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _kernels() -> str:
    try:
        from graphmask.ops import _fused  # noqa: F401
    except ImportError as error:
        return f"PyTorch, C is not active ({error})"
    return "C"


def installed() -> dict[str, str]:
    """Versions, and whether messages are gated in C; does not load torch, so that `graphmask --version` is quick."""
    versions = {name: _version(name) for name in SHOWN}
    return {**versions, "python": platform.python_version(), "kernels": _kernels()}


def show_config() -> None:
    """Print versions, whether messages are gated in C or by PyTorch alone, and the threads that PyTorch uses.

    C is active where a compiler was there at installation and, on x86-64, the processor has AVX2 and FMA. It computes
    in single precision on the processor; other devices and precisions take the PyTorch path in any case.
    """
    import torch

    for name, value in {**installed(), "threads": str(torch.get_num_threads())}.items():
        print(name, value)
