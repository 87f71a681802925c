"""How many processes a launcher started, and whether this is the first; read from the environment, without torch."""

from __future__ import annotations

import os

_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")


def launched() -> int:
    """How many processes the launcher started."""
    return max([1, *(int(os.environ[name]) for name in _SIZES if os.environ.get(name, "").isdigit())])


def first() -> bool:
    """True in the process that prints and writes: rank 0, or the only one."""
    return launched() == 1 or int(os.environ.get("RANK", os.environ.get("PMI_RANK", "0"))) == 0
