"""Everything on an accelerator that refuses to be mixed with the CPU; see `standin.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .standin import installs

HERE = Path(__file__).parent
TESTS = sorted(path.name for path in HERE.glob("on_*.py"))


@pytest.mark.parametrize("name", TESTS)
def test_in_a_process_of_its_own(name: str) -> None:
    if not installs():
        pytest.fail(
            "This PyTorch cannot host a backend written in Python (backend_registration._setup_privateuseone_for_"
            "python_backend): NOTHING was tested on a device."
        )
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(HERE / name)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=HERE.parents[1], env={**os.environ, "PYTEST_ADDOPTS": ""}
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
