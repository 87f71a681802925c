"""Labels, tokens and names that try to be more than text, in everything that is written for people."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import unicodedata
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

import graphmask.cli
from graphmask import Explanation, GraphMask, GraphMaskError
from graphmask.analysis.everything import Named
from graphmask.cli import common
from graphmask.cli.tables import write_tables
from graphmask.comparing import page as compared
from graphmask.comparing.measured import Measured
from graphmask.comparing.plot import plot
from graphmask.experiments.bench.markdown import table as markdown
from graphmask.fitting import training
from graphmask.fitting.recipe import Recipe
from graphmask.graphs.sites import Site
from graphmask.hetero_explanation import HeteroExplanation
from graphmask.report import analysed
from graphmask.report.build import write_report
from graphmask.report.page import Table
from graphmask.texts import MOST, cell, cleaned, visible

HOSTILE = {
    "markup": "<img src=x onerror=alert(1)>",
    "script": "</script><script>alert(2)</script>",
    "quotes": "\"'><b onmouseover='x'>&amp;&lt;",
    "comment": "<!-- ]]> --> <![CDATA[",
    "bidi": "user\u202e\u2066txt.exe\u2069",
    "nul": "a\x00b\x07\x1b[31mred\x9b2J",
    "lines": "one\r\ntwo\u2028three",
    "half": "lone \ud800 half",
    "long": "x" * 1_000_000,
    "formula": '=HYPERLINK("http://example.org","x")',
    "style": "[/red][bold]x[link=file:///etc/passwd]",
    "template": "{{ 7777 * 7777 }}{% include 'x' %}",
    "math": "$\\frac{x",
}
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def explanation(text: str) -> Explanation:
    """Three nodes, two layers; every name there can be is this text."""
    kept = torch.tensor([[True, False], [False, True]])
    info = {
        "title": text,
        "notes": [text],
        "node_labels": [text] * 3,
        "edge_labels": [text] * 2,
        "classes": [text] * 2,
        "label": text,
        text[:50]: text,
    }
    return Explanation(
        edge_index=torch.tensor([[0, 1], [1, 2]]),
        kept=kept,
        scores=kept.float(),
        carried=torch.ones_like(kept),
        edge_type=None,
        original=torch.tensor([[0.7, 0.3]]),
        masked=torch.tensor([[0.6, 0.4]]),
        divergence=0.01,
        flips=0.0,
        reopened=0,
        baselines=(torch.zeros(2), torch.zeros(2)),
        num_nodes=3,
        tolerance=0.03,
        structure=(Site(text[:100], text[:100], (0,)), Site("second", "second", (0,))),
        method=text[:100],
        info=info,
    )


class Elements(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


def check_page(html: str, usual: str) -> None:
    found, clean = Elements(html), Elements(usual)
    assert set(found.tags) == set(clean.tags)
    assert found.tags.count("script") == clean.tags.count("script")
    assert not [name for name in found.attributes if name.startswith("on")]
    assert found.attributes <= clean.attributes
    assert not ACTING.search(html)
    assert len(html) < len(usual) + 100 * MOST
    assert "60481729" not in html


@pytest.mark.parametrize("kind", HOSTILE)
def test_page(kind: str, tmp_path: Path) -> None:
    made = [explanation(text).to_html(tmp_path / "x.html").read_text() for text in (HOSTILE[kind], "plain")]
    check_page(*made)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', made[0])
    assert data is not None
    assert not ACTING.search(json.dumps(json.loads(data[1]), ensure_ascii=False))
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-"
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}' in made[0]


@pytest.mark.parametrize("kind", HOSTILE)
def test_notebook_card(kind: str) -> None:
    check_page(explanation(HOSTILE[kind])._repr_html_(), explanation("plain")._repr_html_())


@pytest.mark.parametrize("kind", HOSTILE)
def test_picture(kind: str, tmp_path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    axes = explanation(HOSTILE[kind]).plot()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        axes.figure.savefig(tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    names = {element.tag.rpartition("}")[2] for element in ET.fromstring(text).iter()}
    assert names.isdisjoint({"script", "image", "img", "a", "foreignObject"})
    assert not ACTING.search(text)
    assert max(map(len, text.split("\n"))) < 20_000
    matplotlib.pyplot.close(axes.figure)


def hetero(text: str) -> HeteroExplanation:
    """A user and two items; every name of a type is this text."""
    name = text[:100]
    there = (name, name, "item")
    kept = torch.tensor([[True, False]])
    return HeteroExplanation(
        edge_index=torch.tensor([[0, 0], [1, 2]]),
        kept=kept,
        scores=kept.float(),
        carried=torch.ones_like(kept),
        original=torch.zeros(1, 2),
        masked=torch.zeros(1, 2),
        divergence=0.0,
        flips=0.0,
        tolerance=0.1,
        structure=(Site(name, name, (0,), False, ((there,),), name),),
        baselines=(torch.zeros(2),),
        num_nodes=3,
        edge_type=torch.tensor([0, 0]),
        num_nodes_dict={name: 1, "item": 2},
        edge_types=(there,),
        info={"title": text, "notes": [text]},
    )


@pytest.mark.parametrize("kind", HOSTILE)
def test_heterogeneous_page_and_card(kind: str, tmp_path: Path) -> None:
    made, usual = hetero(HOSTILE[kind]), hetero("plain")
    check_page(*(one.to_html(tmp_path / "x.html").read_text() for one in (made, usual)))
    check_page(made._repr_html_(), usual._repr_html_())


def tables(text: str) -> dict[str, Any]:
    """What `graphmask analyse` writes: every title, column's note and name is this text."""
    other = text[::-1]
    return {
        "edge_types": {
            "title": text,
            "note": text,
            "columns": ["type", "layer", "share", "base_rate"],
            "rows": [[text, 0, 0.5, 0.25], [other, 1, 0.5, 0.75]],
        },
        "labels": {"title": text, "columns": ["label", "group", "probability"], "rows": [[text, other, 0.5]]},
        "distances": {
            "title": text,
            "columns": ["group", "distance", "share"],
            "rows": [[text, 1, 0.5], [text, 2, 0.5]],
        },
        "levels": {
            "title": text,
            "columns": ["method", "layer", "level", "mean_share"],
            "rows": [[text, 0, 0.5, 0.5], [text, 0, 0.9, 0.25]],
        },
        "patterns": {"title": text, "columns": ["pattern", "share"], "rows": [[[text, text], 0.5]], "note": text},
    }


@pytest.mark.parametrize("kind", HOSTILE)
def test_report_with_analyses(kind: str, tmp_path: Path) -> None:
    pages = []
    for text in (HOSTILE[kind], "plain"):
        gold = Table(text, ["", "precision", "recall", text], [[text, "50", "60", text]], note=text)
        all_of_them = [explanation(text), explanation(text)]
        path = write_report(tmp_path / "x.html", all_of_them, analysed=tables(text), gold=gold, title=text)
        pages.append(path.read_text())
    check_page(*pages)
    for drawing in re.findall(r"<svg.*?</svg>", pages[0], re.DOTALL):
        ET.fromstring(drawing)


def check_svg(path: Path) -> None:
    text = path.read_text()
    root = ET.fromstring(text)
    assert {element.tag.rpartition("}")[2] for element in root.iter()}.isdisjoint(
        {"script", "image", "a", "foreignObject"}
    )
    assert not ACTING.search(text)
    assert float(root.attrib["width"].removesuffix("pt")) < 5_000


@pytest.mark.parametrize("kind", HOSTILE)
def test_figures_of_analyses(kind: str, tmp_path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        found = analysed.draw(tmp_path / "figures", tables(HOSTILE[kind]))
    assert sorted(path.name for path in found) == ["distances.svg", "edge_types.svg", "labels.svg", "levels_0.svg"]
    for path in found:
        check_svg(path)


def test_no_text_becomes_part_of_the_name_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "figures" / "levels_x").mkdir(parents=True)
    found = tables("plain")
    for row in found["levels"]["rows"]:
        row[1] = "x/../../evil"
    with pytest.raises(GraphMaskError, match="contents that do not fit"):
        analysed.draw(tmp_path / "figures", {"levels": found["levels"]})
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def measured(text: str) -> Measured:
    rows = [{"method": name, "seed": 0, "f1": 0.5, "divergence": 0.1} for name in (text, text[::-1])]
    about = {"model": text, "divergence": "kl", "tolerance": 0.1, "seeds": [0], "metrics": {}, "explanations": 2}
    curves = {text: [[{"level": 0.5, "divergence": 0.1}, {"level": 1.0, "divergence": 0.0}]]}
    return Measured(about, ("f1", "divergence"), [text], {text: text}, rows, {}, curves)


@pytest.mark.parametrize("kind", HOSTILE)
def test_comparison(kind: str, tmp_path: Path) -> None:
    import matplotlib

    found, usual = measured(HOSTILE[kind]), measured("plain")
    check_page(*(compared.write(one, tmp_path / "x.html").read_text() for one in (found, usual)))
    check_page(compared.card(found), compared.card(usual))
    matplotlib.use("Agg")
    for column in ("f1", "curves"):
        axes = plot(found, column, None)
        with matplotlib.rc_context({"svg.fonttype": "none"}):
            axes.figure.savefig(tmp_path / "x.svg")
        matplotlib.pyplot.close(axes.figure)
        check_svg(tmp_path / "x.svg")


@pytest.mark.parametrize("kind", HOSTILE)
def test_markdown(kind: str) -> None:
    text = HOSTILE[kind]
    lines = markdown(["name", text], [[text, "1"], ["a|b", "![x](https://example.org)"]]).splitlines()
    assert len(lines) == 4
    for line in lines:
        assert len(re.findall(r"(?<!\\)\|", line)) == 3
        assert not re.search(r"<[a-zA-Z/!?]|!\[", line)
        assert not ACTING.search(line)
        assert len(line) < 3 * MOST


class NamedLayer(nn.Module):
    """Its layer has a name that tries to style the terminal."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({name: GCNConv(2, 2)})

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return next(iter(self.layers.values()))(x, edge_index)


@pytest.mark.filterwarnings("ignore:GraphMask")
@pytest.mark.parametrize("kind", sorted(set(HOSTILE) - {"half", "long", "formula"}))
def test_what_a_fit_tells(kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "STEPS_PER_VERDICT", 5)
    name = HOSTILE[kind].replace(".", "")
    data = Data(x=torch.eye(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]))
    GraphMask(NamedLayer(name), recipe=Recipe(steps=20)).fit([data], progress=True)
    shown = capsys.readouterr().err
    assert "hard gates keep" in shown
    for line in shown.splitlines():
        if "hard gates keep" in line:
            assert not ACTING.search(line)


@pytest.mark.parametrize("name", ["[/red][bold]x", "a\x1b]0;title\x07b", "user\u202etxt"])
def test_names_of_folders_on_terminals(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["graphmask", "report", str(tmp_path / name)])
    with pytest.raises(SystemExit):
        graphmask.cli.main()
    common.write_json(tmp_path / f"{name}.json", {})
    said = capsys.readouterr()
    assert "no such folder" in said.err
    assert not ACTING.search(said.out + said.err)
    assert visible(name) in said.out.replace("\n", "")
    assert visible(name) in said.err.replace("\n", "")


def test_tables_for_spreadsheets_and_terminals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [text for kind, text in HOSTILE.items() if kind not in ("half", "long")] + [
        "+1",
        "-x",
        "@SUM(A1)",
        "\t=1",
        "plain",
    ]
    texts += ["\n=1", "\uff0d1", "\uff20x", "a;=1+1", 'a";=1+1']
    frame = polars.DataFrame({"type": texts, "list": [[text] for text in texts], "edges": range(len(texts))})
    write_tables(tmp_path, [Named("types", HOSTILE["style"], frame, HOSTILE["nul"])], rows=100)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "analysis" / "types.csv").read_bytes().decode(), newline="")))
    assert len(rows) == len(texts)
    for row, text in zip(rows, texts, strict=True):
        assert text in (row["type"].replace("'", ""), row["type"], row["type"][1:])
        assert row["list"] == row["type"]
        assert not row["type"].startswith(("=", "-", "@", "\t", "\n", "\uff0d", "\uff20"))
    assert [row["type"] for row in rows][-10:-5] == ["+1", "'-x", "'@SUM(A1)", "'\t=1", "plain"]
    # There are countries where spreadsheets take semicolons for ends of cells.
    written = (tmp_path / "analysis" / "types.csv").read_text()
    elsewhere = list(csv.reader(io.StringIO(written, newline=""), delimiter=";"))
    assert not [text for line in elsewhere for text in line if text.startswith("=")]
    shown = capsys.readouterr().out
    assert not ACTING.search(shown)
    assert "[/red]" in shown


def test_terminal_takes_no_styles_from_texts(capsys: pytest.CaptureFixture[str]) -> None:
    common.show("[blink]title", ["[red]a"], [["[/nothing]"], ["\x1b]0;title\x07"]])
    shown = capsys.readouterr().out
    for text in ("[blink]title", "[red]a", "[/nothing]", r"\u001b"):
        assert text in shown


@pytest.mark.parametrize("kind", HOSTILE)
def test_saved_and_read_again(kind: str, tmp_path: Path) -> None:
    """Files keep texts as they are: only what shows them changes them."""
    made = explanation(HOSTILE[kind])
    made.save(tmp_path / "x")
    again = Explanation.load(tmp_path / "x")
    assert again.info == made.info
    assert again.sites == made.sites


def test_what_is_spelled_out_and_what_is_not() -> None:
    assert visible("a\u202eb\x00") == "a\\u202eb\\u0000"
    for kept in ("naïve façade 漢字 👩‍👩‍👧", "שלום", "tab\tand\nline", "e\N{COMBINING ACUTE ACCENT}"):
        assert visible(kept) == kept
        assert unicodedata.normalize("NFC", kept)
    long = visible("y" * 10**6)
    assert long == "y" * MOST + "… (1,000,000 characters)"
    value: Any = {"a\x00": ["b\x00", ("c\x00", 1)], "n": [1.0, 2.0]}
    assert cleaned(value) == {"a\\u0000": ["b\\u0000", ("c\\u0000", 1)], "n": [1.0, 2.0]}
    assert [cell(text) for text in ("x;=1", "x\n-y", "a;b", "x;-1", "one\r\ntwo")] == [
        "x;'=1",
        "x\n'-y",
        "a;b",
        "x;'-1",
        "one\r\ntwo",
    ]
    assert [cell(text) for text in ("=1+1", "-5", "-x", "+3e4", "a=b", "@a")] == [
        "'=1+1",
        "-5",
        "'-x",
        "+3e4",
        "a=b",
        "'@a",
    ]
