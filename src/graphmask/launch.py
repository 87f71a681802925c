"""Which of several processes this is, from the environment alone."""

from __future__ import annotations

import os

SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")


def launched() -> int:
    """How many processes the launcher started."""
    return max([1, *(int(os.environ[name]) for name in SIZES if os.environ.get(name, "").isdigit())])


def first() -> bool:
    """True of rank 0, which prints and writes."""
    return launched() == 1 or int(os.environ.get("RANK", os.environ.get("PMI_RANK", "0"))) == 0
