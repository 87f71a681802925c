"""A hand-written file for every test."""

from __future__ import annotations

from pathlib import Path

import pytest

from .support import TWO


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.conll09"
    path.write_bytes(TWO.encode())
    return path
