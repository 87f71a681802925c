"""The documentation is built without a warning, and every Python block in it runs as it stands."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from graphmask import methods
from reference import fresh

DOCS = Path(__file__).parents[1] / "docs"
ELSEWHERE = {"store.md", "hetero.md"}  # run by tests/store, on a store made for it, and by tests/hetero


def code(page: str) -> list[str]:
    """The blocks of a page, each after as many empty lines as stand before it: a failure is found at its line."""
    text = (DOCS / page).read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M)
    return ["\n" * text[: block.start(1)].count("\n") + block[1] for block in found]


ALL = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", [page for page in ALL if page not in ELSEWHERE and code(page)])
def test_code(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, page, ModuleType(page))  # PyG looks there for the module of a layer
    names: dict[str, object] = {"__name__": page}
    known = dict(methods.METHODS)  # a page may register a method, which is not there for the tests that follow
    try:
        for block in code(page):
            exec(compile(block, page, "exec"), names)
    finally:
        methods.METHODS.clear()
        methods.METHODS.update(known)


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    code = "import sys; from sphinx.cmd.build import main; sys.exit(main(sys.argv[1:]))"
    built = fresh.run(code, "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path))
    assert built.returncode == 0, built.stderr
    missing = [page for page in ALL if not (tmp_path / page).with_suffix(".html").exists()]
    assert not missing
    _check_formulas(tmp_path)


def _check_formulas(site: Path) -> None:
    """Formulas are MathML, every one of them, and no page loads anything from elsewhere."""
    pages = {page.relative_to(site).as_posix(): page.read_text() for page in site.rglob("*.html")}
    for name, text in pages.items():
        elsewhere = re.findall(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//[^"]*"', text)
        elsewhere += re.findall(r'<link[^>]+rel="stylesheet"[^>]+href="(?:https?:)?//[^"]*"', text)
        assert not elsewhere, name
        assert "MathJax" not in text, name
    gate = pages["architecture.html"]
    assert gate.count("<math ") == 3
    assert "&#x003B3;" in gate or "\N{GREEK SMALL LETTER GAMMA}" in gate
    assert pages["api.html"].count("<math ") >= 20
    for name, text in pages.items():  # no LaTeX is left over inside a formula
        for formula in re.findall(r"<math .*?</math>", text, re.S):
            assert "\\" not in formula, (name, formula[:200])
