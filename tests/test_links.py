"""Links of README and docs lead somewhere, and every page is in one of the four parts of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graphmask import analysis

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README, INDEX, ARCHITECTURE = ROOT / "README.md", DOCS / "index.md", DOCS / "architecture.md"
PAGES = sorted([README, ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
PARTS = ["Tutorials", "How to", "Explanation", "Reference"]


def prose(page: Path) -> str:
    """A page without its blocks of code and directives."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)


def links(page: Path) -> list[tuple[Path, str]]:
    """Files that a page links to, each with the heading that is meant, if any."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    divided = [link.partition("#") for link in found if not re.match(r"[a-z]+:", link)]
    return [((page.parent / path).resolve() if path else page, anchor) for path, _, anchor in divided]


def anchors(page: Path) -> set[str]:
    """Of the headings of a page, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def clicks(start: Path) -> dict[Path, int]:
    """How many links each file is away."""
    distance, queue = {start: 0}, [start]
    for page in queue:
        for to, _ in links(page):
            if to not in distance:
                distance[to] = distance[page] + 1
                if to.suffix == ".md":
                    queue.append(to)
    return distance


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for to, anchor in links(page):
        assert to.exists(), to
        if anchor and to != DOCS / "contributing.md":  # which is CONTRIBUTING.md, included
            assert anchor in anchors(to), (to, anchor)
    for anchor in (anchor for to, anchor in links(page) if to == DOCS / "contributing.md" and anchor):
        assert anchor in anchors(ROOT / "CONTRIBUTING.md")


def test_every_page_is_in_one_of_four_parts_and_linked_there() -> None:
    text = INDEX.read_text()
    parts = re.findall(r"^```\{toctree\}\n:caption: (.+)\n(?::.+\n)+\n((?:[\w/]+\n)+)```", text, re.M)
    assert [caption for caption, _ in parts] == PARTS
    shown = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", prose(INDEX), re.S | re.M))
    assert list(shown) == PARTS
    for caption, pages in parts:
        named = [f"{page}.md" for page in pages.split()]
        assert sorted(re.findall(r"\]\(([^)]+)\)", shown[caption])) == sorted(named)
    listed = [page for _, pages in parts for page in pages.split()]
    assert len(listed) == len(set(listed))
    every = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    assert set(listed) == every - {"index"}


def test_every_page_is_two_clicks_from_the_readme() -> None:
    distance = clicks(README)
    assert all(distance[page] <= 2 for page in DOCS.rglob("*.md"))


#: What the paper has, as the file says it that the architecture page leads to.
SAID = {
    "gate network": r"W_2\, \mathrm{ReLU}(\mathrm{LN}(W_1 [h_u, h_v, m_{u,v}]))",
    "masking": r":math:`z m + (1 - z) b`",
    "constraint": r":math:`(L_0 + \lambda D') / (1 + \lambda)`",
    "final state": "The state that a fit ends with",
}


def test_four_paths_from_the_readme() -> None:
    assert ARCHITECTURE in [to for to, _ in links(README)]
    table = ARCHITECTURE.read_text().partition("## Four things")[2]
    rows = re.findall(r"^\| (.+) \| \[(.+)\]\((.+)\) \| (.+) \|$", table, re.M)
    assert len(rows) == len(SAID)
    distance = clicks(README)
    for (thing, said), (what, name, link, look_for) in zip(SAID.items(), rows, strict=True):
        assert thing in what
        path = (DOCS / link).resolve()
        assert path.is_relative_to(ROOT / "src/graphmask")
        assert path.as_posix().endswith(name)
        assert distance[path] <= 4
        source = path.read_text()
        assert said in source
        marked = re.findall(r"`((?:class|def) \w+)`", look_for)
        assert marked
        for start in marked:
            assert re.search(rf"^{start}\b", source, re.M), start


def test_analyses_that_pages_name_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"\banalysis\.(\w+)\b(?!\.py)", page.read_text())}
    assert len(named) > 10
    modules = {path.stem for path in (ROOT / "src/graphmask/analysis").glob("*.py")}
    assert named <= {*analysis.__all__, *modules}


def test_files_that_the_architecture_names_exist() -> None:
    drawn = re.findall(r'<text class="file"[^>]*>([^<]+)</text>', (DOCS / "img/architecture.svg").read_text())
    named = [name for text in drawn for name in re.findall(r"[\w/]+(?:\.py|/)", text)]
    named += re.findall(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`", ARCHITECTURE.read_text())
    assert len(named) > 20
    for name in named:
        assert any((root / name).exists() for root in (ROOT, ROOT / "src/graphmask")), name
