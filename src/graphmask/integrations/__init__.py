"""GraphMask inside other libraries."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphmask.integrations import pyg, transformers

__all__ = ["pyg", "transformers"]


def __getattr__(name: str) -> Any:
    """Its modules, when they are first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
