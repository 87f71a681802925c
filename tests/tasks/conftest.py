"""Real data where it is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from graphmask.errors import GraphMaskError
from graphmask.experiments import data


@pytest.fixture
def real() -> Callable[[str], Path]:
    """The path of real data, or a skipped test."""

    def found(name: str) -> Path:
        try:
            return data.find(name)
        except GraphMaskError as error:
            pytest.skip(f"needs real data: {error}")

    return found
