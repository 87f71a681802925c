"""Labels, tokens and names that try to be more than text, in everything that is written for people."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars
import pytest
import torch

from graphmask import Explanation
from graphmask.analysis.everything import Named
from graphmask.cli import common
from graphmask.cli.tables import write_tables
from graphmask.graphs.sites import Site
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
    "template": "{{ 7 * 7 }}{% include 'x' %}",
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
    assert "49" not in html or "49" in usual


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


def test_tables_for_spreadsheets_and_terminals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [text for kind, text in HOSTILE.items() if kind not in ("half", "long")] + [
        "+1",
        "-x",
        "@SUM(A1)",
        "\t=1",
        "plain",
    ]
    frame = polars.DataFrame({"type": texts, "list": [[text] for text in texts], "edges": range(len(texts))})
    write_tables(tmp_path, [Named("types", HOSTILE["style"], frame, HOSTILE["nul"])], rows=100)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "analysis" / "types.csv").read_bytes().decode(), newline="")))
    assert len(rows) == len(texts)
    for row, text in zip(rows, texts, strict=True):
        assert row["type"] in (text, "'" + text)
        assert row["list"] in (text, "'" + text)
        assert not row["type"].startswith(("=", "-", "@", "\t"))
    assert [row["type"] for row in rows][-5:] == ["+1", "'-x", "'@SUM(A1)", "'\t=1", "plain"]
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
    assert [cell(text) for text in ("=1+1", "-5", "-x", "+3e4", "a=b", "@a")] == [
        "'=1+1",
        "-5",
        "'-x",
        "+3e4",
        "a=b",
        "'@a",
    ]
