"""The documentation is built without a warning, and every Python block in it runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)


ELSEWHERE = {"store.md"}  # run by tests/store, on a store made for it
PAGES = sorted({page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if blocks(page)} - ELSEWHERE)


@pytest.mark.parametrize("page", PAGES)
def test_code(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a page run one after the other; a page may begin where another ends."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text()
    before = re.findall(r"<!-- goes on from (\S+\.md) -->", text)
    names: dict[str, object] = {"__name__": "__main__"}
    for number, code in enumerate(block for name in [*before, page] for block in blocks(DOCS / name)):
        exec(compile(code, f"{page}, block {number}", "exec"), names)


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "class" in (tmp_path / "api.html").read_text()
    pages = [page.relative_to(DOCS) for page in DOCS.rglob("*.md")]
    missing = [page for page in pages if not (tmp_path / page).with_suffix(".html").exists()]
    assert not missing
