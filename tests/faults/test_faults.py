"""What a machine does to a program: kills, a full disk, a folder that cannot be written to."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from graphmask import files
from graphmask.errors import CannotWrite, GraphMaskError

TESTS = Path(__file__).parents[1]


def in_a_process_of_its_own(module: str, *arguments: str) -> str:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


def test_a_few_kills() -> None:
    """`make kills` does 200."""
    assert "nothing lost, nothing twice, no half-written file" in in_a_process_of_its_own("faults.kills", "5")


def test_some_seconds_of_fuzz() -> None:
    """The same inputs on every machine, however fast it is; `make fuzz` does more."""
    assert " 0 failures" in in_a_process_of_its_own("faults.fuzz", "120", "0", "20")


#: Root may write anywhere, so the system's answers are made up: what fails, with what, and what the error says.
FAULTS: dict[str, tuple[Any, str, int, str]] = {
    "full disk": (os, "fsync", errno.ENOSPC, "no room left on the disk. Make room, then start the same run again"),
    "read-only folder": (tempfile, "mkstemp", errno.EROFS, "it can only be read. Choose another folder"),
    "no permission": (tempfile, "mkstemp", errno.EACCES, "you may not write there"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_written_is_said(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, function, number, told = FAULTS[fault]

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module, function, fails)
    with pytest.raises(CannotWrite, match=f"Expected to write .*{told}"):
        files.write(tmp_path / "x", "thing", {"a": torch.zeros(3)}, {})
    assert not list(tmp_path.iterdir())


def test_errors_of_writing_are_ours_and_the_system_s(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(GraphMaskError) as found:
        files.write(tmp_path / "file" / "x", "thing", {"a": torch.zeros(1)}, {})
    assert isinstance(found.value, OSError)
