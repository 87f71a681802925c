"""Everything on an accelerator that refuses to be mixed with the CPU; see `standin.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference import fresh

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
    arguments = ["-q", "-x", "-p", "no:cacheprovider", str(HERE / name)]
    code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    done = fresh.run(
        code,
        *arguments,
        folder=HERE.parents[1],
        environment={"PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
