"""Tables of the documentation are what the file of figures says, and every section of it says where it is from."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from graphmask.cli import app
from graphmask.errors import GraphMaskError
from graphmask.experiments.bench.figures import documentation, origin, pages, record, results, sections, studies, tables
from graphmask.experiments.bench.gold import agreement

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures.json"
#: The commit that changed the default recipe to the present one, `noisy`.
NOISY = "89048cf"
#: Sections whose figures depend on how gates are fitted.
OF_FITS = {"gold", "core", "scale", "compare_star", "compare_relay", "battery", "leaderboard", "srl", "qa"}

whole_history = pytest.mark.skipif(not origin.whole_history(ROOT), reason="a checkout without its history")


# The documentation as it is ------------------------------------------------------------------------------------


def test_every_marked_table_is_as_the_command_would_write_it() -> None:
    changed = documentation.write(ROOT, FIGURES, check=True)
    assert not changed, "run `graphmask bench tables`"


@whole_history
def test_every_section_says_where_it_is_from() -> None:
    assert record.complaints(FIGURES, ROOT) == []


@whole_history
def test_figures_of_a_former_recipe_say_so() -> None:
    for name, section in record.read(FIGURES).items():
        if name in OF_FITS:
            present = origin.git(ROOT, "merge-base", "--is-ancestor", NOISY, section["commit"]) is not None
            assert present == ("recipe" not in section), name
            assert present or "former default recipe" in tables.origin_line(section)


def test_sections_are_those_that_commands_measure() -> None:
    found = record.read(FIGURES)
    assert found.keys() <= sections.SECTIONS.keys() | sections.STUDIES.keys()
    for name, (needed, _) in tables.TABLES.items():
        assert found.keys() >= set(needed), name
    assert found.keys() >= {section for section, _ in studies.TABLES.values()}
    text = FIGURES.read_text()
    assert not re.search(r"/(home|tmp|work|root)/", text)


def test_every_table_is_on_a_page() -> None:
    marked = [name for page in pages.all_pages(ROOT) for name in pages.marked(page.read_text())]
    assert sorted(marked) == sorted({*tables.TABLES, *studies.TABLES, "results"})


#: Tables that people write: what things are, and not what was measured. By the page, and the first line of the table.
WRITTEN = {
    "docs/leaderboard.md": {"| set | data | model | what should be found |"},
    "docs/reliability.md": {"| environment | Python | torch | PyG | transformers |"},  # versions
}
#: A record of what was tried while the recipe was chosen, with versions that are no more.
TRIED = "docs/recipe.md"


def unmarked(text: str) -> list[str]:
    """First lines of tables that no marker encloses, if a cell of theirs is a figure."""
    for content in pages.marked(text).values():
        text = text.replace(content, "")
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        header, _, *rows = block.splitlines()
        cells = [cell.strip(" *") for row in rows for cell in row.strip("|").split("|")[1:]]
        if any(re.match(r"[-+]?\d", cell) for cell in cells):
            found.append(header)
    return found


@pytest.mark.parametrize("page", pages.all_pages(ROOT), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_has_a_table_of_figures_that_is_not_in_the_file(page: Path) -> None:
    name = page.relative_to(ROOT).as_posix()
    assert name == TRIED or set(unmarked(page.read_text())) <= WRITTEN.get(name, set())


def test_a_table_of_figures_that_somebody_writes_is_found() -> None:
    assert unmarked("| model | F1 |\n|---|---|\n| star | 99.1 |\n") == ["| model | F1 |"]
    assert unmarked("| model | F1 |\n|---|---|\n| star | **99.1** |\n") == ["| model | F1 |"]
    assert unmarked("| name | meaning |\n|---|---|\n| star | more than 3 |\n") == []
    assert unmarked("<!--figures:gold-->\n| a | b |\n|---|---|\n| c | 1 |\n<!--end-->\n") == []


# Pages and markers ---------------------------------------------------------------------------------------------


def test_a_page_is_filled_between_its_markers() -> None:
    def page(one: str, two: str) -> str:
        return f"Before.\n\n<!--figures:one-->\n{one}<!--end-->\n\nBetween.\n\n<!--figures:two.b-->\n{two}<!--end-->\n"

    text, wanted = page("old\n", ""), page("\n| 1 |\n\n", "\n| 2 |\n\n")
    made = {"one": lambda: "| 1 |\n", "two.b": lambda: "| 2 |\n", "three": lambda: pytest.fail("not on this page")}
    assert pages.filled(text, made) == wanted
    assert pages.filled(wanted, made) == wanted
    assert pages.marked(wanted) == {"one": "\n| 1 |\n\n", "two.b": "\n| 2 |\n\n"}
    with pytest.raises(GraphMaskError, match=r"found 'two\.b'"):
        pages.filled(text, {"one": lambda: ""})
    for broken in ("<!--figures:one-->\n", "text\n<!--end-->\n", wanted + wanted):
        with pytest.raises(GraphMaskError, match="found a marker without"):
            pages.filled(broken, made)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a README, code, and one commit."""
    for name, text in (("src/code.py", "1\n"), ("README.md", "<!--figures:store_kills-->\n<!--end-->\n")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    run_git(tmp_path, "init", "-q")
    commit(tmp_path)
    monkeypatch.setattr(origin, "ROOT", tmp_path)
    return tmp_path


def run_git(root: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *who, *arguments], check=True, capture_output=True)


def commit(root: Path) -> None:
    run_git(root, "add", "-A")
    run_git(root, "commit", "-q", "-m", "a state", "--allow-empty")


def kills(path: Path, writers: int, graphs: int = 4000) -> Path:
    found = {"kills": 5, "writers": writers, "stores": 1, "graphs": graphs, "shards": 50, "unfinished": 2}
    path.write_text(json.dumps(found))
    return path


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), catch_exceptions=True)


def test_record_then_tables_then_check(checkout: Path) -> None:
    figures = checkout / "docs" / "figures.json"
    for name, writers in (("store_kills", 1), ("store_kills_two", 2)):
        measured = kills(checkout.parent / f"{name}.json", writers)
        assert invoke("bench", "record", name, str(measured), "--figures", str(figures)).exit_code == 0
    about = json.loads(figures.read_text())["sections"]["store_kills"]
    assert about["commit"] == origin.git(checkout, "rev-parse", "HEAD")
    assert about["command"] == "graphmask bench store --kills 50"
    assert about["versions"].keys() == {"python", "torch", "torch_geometric", "graphmask"}
    assert about["machine"]["cores"] >= 1
    assert record.complaints(figures, checkout) == []
    options = ["--figures", str(figures), "--root", str(checkout)]
    refused = invoke("bench", "tables", "--check", *options)
    assert isinstance(refused.exception, GraphMaskError) or refused.exit_code != 0
    assert "| 2 | 5" not in (checkout / "README.md").read_text()
    assert invoke("bench", "tables", *options).exit_code == 0
    assert "| 2 | 5 | 2 | 1 | 4,000 | 50 |" in (checkout / "README.md").read_text()
    assert invoke("bench", "tables", "--check", *options).exit_code == 0
    # A figure that somebody changes on the page, or in the file, is noticed.
    page = (checkout / "README.md").read_text()
    (checkout / "README.md").write_text(page.replace("4,000", "5,000"))
    assert documentation.write(checkout, figures, check=True) == [Path("README.md")]
    (checkout / "README.md").write_text(page)
    figures.write_text(figures.read_text().replace('"graphs": 4000', '"graphs": 6000'))
    assert documentation.write(checkout, figures, check=True) == [Path("README.md")]


def test_a_section_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    first, second = tmp_path / "one.json", tmp_path / "two.json"
    first.write_text('{"a": 1, "b": 2}')
    second.write_text('{"a": 3}')
    record.replace(path, "x", {"command": "c", "by_hand": "yes"}, first)
    record.replace(path, "y", {"command": "c"}, first)
    record.replace(path, "x", {"command": "d"}, second)
    assert record.read(path) == {
        "x": {"command": "d", "figures": {"a": 3}},
        "y": {"command": "c", "figures": {"a": 1, "b": 2}},
    }


def test_a_file_beside_the_figures_is_known_by_its_hash(checkout: Path) -> None:
    path, source = checkout / "docs" / "figures.json", checkout.parent / "battery.json"
    source.write_text('{"models": {}}')
    record.replace(path, "battery", origin.origin("graphmask bench battery"), source)
    assert (checkout / "docs" / "battery.json").read_bytes() == source.read_bytes()
    assert "figures" not in json.loads(path.read_text())["sections"]["battery"]
    assert record.read(path)["battery"]["figures"] == {"models": {}}
    assert record.complaints(path, checkout) == []
    (checkout / "docs" / "battery.json").write_text('{"models": {"another": 1}}')
    (said,) = record.complaints(path, checkout)
    assert "battery.json is not the file that was recorded" in said


@pytest.mark.parametrize("unknown", [None, "", "HEAD", "0" * 40, "1234567"])
def test_a_commit_that_nobody_knows_is_a_complaint(checkout: Path, unknown: str | None) -> None:
    path = checkout / "figures.json"
    record.replace(path, "x", {"command": "c", "date": "2026-01-01", "commit": unknown}, kills(checkout / "k.json", 1))
    assert record.complaints(path, checkout) == [f"x: the commit {unknown!r} is unknown"]


def test_what_is_not_committed_is_not_recorded(checkout: Path) -> None:
    before = origin.commit()
    (checkout / "README.md").write_text("Pages are not measured.\n")
    commit(checkout)
    assert origin.commit() == before != origin.git(checkout, "rev-parse", "HEAD")
    (checkout / "src" / "code.py").write_text("2\n")
    with pytest.raises(GraphMaskError, match=r"found changes in src/code\.py"):
        origin.commit()
    with pytest.raises(GraphMaskError, match="found changes in"):
        sections.run(["store_kills"], checkout / "out", checkout / "figures.json", pytest.fail)
    commit(checkout)
    assert origin.commit() == origin.git(checkout, "rev-parse", "HEAD") != before
    with pytest.raises(GraphMaskError, match="Expected a git checkout"):
        origin.commit(checkout.parent)


# Running -------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_and_a_folder_belongs_to_one_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is run in its process, with the section's folder for what it keeps; here it is played."""
    started: list[list[str]] = []
    fails = [True]

    def play(command: list[str], check: bool) -> Any:
        started.append(command)
        if not fails[0]:
            kills(Path(command[command.index("--json") + 1]), len(started))
        return subprocess.CompletedProcess(command, int(fails[0]))

    whole = subprocess.Popen

    def run(command: list[str], **options: Any) -> Any:
        if "graphmask" in command:
            return play(command, options["check"])
        with whole(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            out, err = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    monkeypatch.setattr(sections.subprocess, "run", run)
    out, path = checkout.parent / "out", checkout / "docs" / "figures.json"
    names = sections.choose("battery,store_kills")
    with pytest.raises(GraphMaskError, match=r"`graphmask bench battery` to end well, but it ended with 1"):
        sections.run(names, out, path, lambda _: None)
    assert not path.exists()
    fails[0] = False
    sections.run(names, out, path, lambda _: None)
    assert started[-2][1:-1] == [
        "-m",
        "graphmask",
        "bench",
        "battery",
        "--out",
        str(out / "battery" / "work"),
        "--json",
    ]
    assert len(started) == 3
    found = record.read(path)
    assert found["store_kills"]["figures"]["writers"] == 3
    assert found["battery"]["command"] == "graphmask bench battery"
    sections.run(names, out, path, lambda _: None)  # all is there
    assert len(started) == 3
    (checkout / "src" / "code.py").write_text("3\n")
    commit(checkout)
    with pytest.raises(GraphMaskError, match="Give another --out"):
        sections.run(names, out, path, lambda _: None)
    with pytest.raises(GraphMaskError, match="Expected sections among small, matrix"):
        sections.choose("battery,nothing")


def test_figures_from_an_earlier_commit_are_filed_under_it(checkout: Path) -> None:
    earlier = origin.git(checkout, "rev-parse", "HEAD")
    (checkout / "src" / "code.py").write_text("4\n")
    commit(checkout)
    path, measured = checkout / "figures.json", kills(checkout.parent / "k.json", 1)
    assert earlier is not None
    sections.file("store_kills", measured, path, "graphmask bench store --kills 5", earlier[:9])
    about = record.read(path)["store_kills"]
    assert (about["commit"], about["command"]) == (earlier, "graphmask bench store --kills 5")
    with pytest.raises(GraphMaskError, match="Expected a commit that the present state was made from"):
        sections.file("store_kills", measured, path, "", "f" * 40)
    with pytest.raises(GraphMaskError, match="Expected a section among small"):
        sections.file("nothing", measured, path, "", "")


# Tables --------------------------------------------------------------------------------------------------------


def test_agreement_over_seeds_by_hand() -> None:
    def run(*sites: tuple[float, float, float]) -> dict[str, Any]:
        lines = [dict(zip(("precision", "recall", "f1"), site, strict=True)) for site in sites]
        return {"gold": {"per_site": lines}, "fit_cpu_seconds": 2.0 + len(sites)}

    found = agreement([run((100, 100, 100), (90, 100, 94.7)), run((50, 100, 66.7), (100, 98, 99.0))])
    assert found["per_site"] == [
        {"precision": 75, "recall": 100, "f1_lowest": 66.7, "good": 1},
        {"precision": 95, "recall": 99, "f1_lowest": 94.7, "good": 1},
    ]
    assert (found["seeds"], found["good_at_every_site"], found["fit_cpu_seconds"]) == (2, 0, 4.0)
    text = tables.gold({"summary": {"relay": found}})
    assert "| relay, layer 1 | 75.0 | 100.0 | 66.7 | 1 of 2 |" in text
    assert results._gold("relay")({"summary": {"relay": found}}) == (
        "F1 >= 99.0 on 1 / 1 of 2 seeds; lowest F1 66.7 / 94.7"
    )


def test_a_weaker_origin_is_told() -> None:
    about = {"command": "graphmask bench core", "date": "2026-11-16", "commit": "a" * 40}
    assert tables.origin_line(about) == "By `graphmask bench core`, 2026-11-16 (`aaaaaaa`)."
    assert "written down by hand on 2026-11-16" in tables.origin_line({**about, "by_hand": "why"})
    assert "put here on 2026-11-16" in tables.origin_line({**about, "filed": "why"})


def test_a_claim_without_its_section_is_an_error() -> None:
    found = record.read(FIGURES)
    text = results.markdown(found)
    assert text.count("\n") == len(results.CLAIMS) + 2
    for claim in results.CLAIMS:
        assert (ROOT / "docs" / claim.page).exists()
    del found["qa"]
    with pytest.raises(GraphMaskError, match="Expected a section 'qa'"):
        results.markdown(found)
