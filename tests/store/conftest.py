"""A store that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from .support import (
    explain,
    gcn,
    some_batches,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Never interrupted."""
    path = tmp_path_factory.mktemp("whole")
    assert len(explain(gcn(), some_batches(), path).shards) == 2
    return path
