"""What a notebook shows: tables, pictures, cards; and what a log prints."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

from graphmask import GraphMaskError
from graphmask.explanation import Explanation
from graphmask.explanation_contents import ASKED
from graphmask.fitting.calibration import Verdict
from graphmask.fitting.history import Epoch, History
from graphmask.fitting.progress import epochs_of, standing
from report.conftest import explain, make_sentence

EVIL = "<img src=x onerror=alert(1)>"
EDGES = [(0, 1), (1, 2), (3, 2), (2, 2)]


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    plt.close("all")


def small(**changes: Any) -> Explanation:
    return explain(EDGES, [[0, 2], [1]], types=[0, 0, 1, 1], **changes)


# Tables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["to_pandas", "to_polars"])
def test_one_row_per_edge_and_layer(kind: str) -> None:
    found = small(
        info={"node_labels": ["a", "b", "c", "d"], "edge_type_names": ["bond", "loop"]}, reverse=(False, True)
    )
    frame = getattr(found, kind)()
    rows = frame.to_dict("records") if kind == "to_pandas" else frame.to_dicts()
    assert len(rows) == 2 * 4
    assert list(rows[0]) == [
        "layer", "site", "site_name", "edge", "source", "target", "source_name", "target_name", "type", "carried",
        "kept", "score",
    ]  # fmt: skip
    first = {key: rows[0][key] for key in ("layer", "site", "edge", "source_name", "target_name", "type", "kept")}
    assert first == {
        "layer": 0, "site": "conv1", "edge": 0, "source_name": "a", "target_name": "b", "type": "bond", "kept": True,
    }  # fmt: skip
    assert rows[0]["score"] == pytest.approx(0.9)
    # The second layer sends from the target to the source.
    assert (rows[5]["site"], rows[5]["edge"], rows[5]["source"], rows[5]["target"]) == ("conv2", 1, 2, 1)
    assert [row["kept"] for row in rows] == found.kept.flatten().tolist()


def test_names_given_by_hand_and_checked() -> None:
    assert small().to_pandas(node_labels=list("wxyz"))["target_name"].tolist()[:2] == ["x", "y"]
    with pytest.raises(GraphMaskError, match="Expected 4 node_labels, one per node, got 1"):
        small().to_polars(node_labels=["a"])
    assert "source_name" not in small().to_polars().columns


def test_a_table_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, words in (("pandas", "pip install pandas"), ("polars", r"pip install graphmask\[store\]")):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(GraphMaskError, match=words):
            getattr(small(), f"to_{name}")()


def test_a_graph_without_edges_is_an_empty_table() -> None:
    empty = explain([], [[], []], nodes=3)
    assert empty.to_pandas().shape == (0, 9)
    assert empty.to_polars().height == 0


# Pictures ----------------------------------------------------------------------------------------------------


def arrows(ax: Any, fate: str) -> set[int]:
    ids = [str(patch.get_gid()) for patch in ax.patches]
    return {int(name.rsplit("-", 1)[1]) for name in ids if name.startswith(fate)}


def texts(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_plot_draws_what_is_kept() -> None:
    ax = small().plot(node_labels=["root", "b", "c", "d"])
    assert arrows(ax, "kept") == {0, 1, 2}
    assert arrows(ax, "dropped") == {3}
    assert texts(ax) == ["root", "b", "c", "d"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["kept, conv1", "kept, conv2", "dropped"]
    assert ax.get_title() == "3 of 8 messages kept\nwithin tolerance: divergence 0.01 of 0.03, same prediction"


@pytest.mark.parametrize("edges", [[(1, 0), (2, 0)], [(0, 1)], []])
def test_nodes_in_one_line_are_seen(edges: list[tuple[int, int]]) -> None:
    """Axes that end at the nodes would have no width, or no height, and hide them."""
    ax = explain(edges, [list(range(len(edges)))], nodes=3 if len(edges) == 2 else 2).plot()
    ax.figure.draw_without_rendering()
    shown = ax.get_window_extent()
    (circles,) = [one for one in ax.collections if len(one.get_offsets())]
    radius = (circles.get_sizes()[0] ** 0.5 / 2) * ax.figure.dpi / 72
    for x, y in ax.transData.transform(circles.get_offsets()):
        assert shown.x0 + radius <= x <= shown.x1 - radius
        assert shown.y0 + radius <= y <= shown.y1 - radius
    plt.close("all")


def test_plot_of_one_layer_by_number_and_by_name() -> None:
    for layer in (0, -2, "conv1"):
        ax = small(info={"edge_type_names": ["bond", "$x$"]}).plot(layer=layer)
        assert arrows(ax, "kept") == {0, 2}
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["kept, $x$", "kept, bond", "dropped"]
        assert ax.get_title().startswith("2 of 4 messages kept at conv1\n")
        ax.figure.canvas.draw()  # a dollar sign in a name is not mathematics
    for wrong in (2, -3, "conv3"):
        with pytest.raises(GraphMaskError, match="Expected a layer among conv1, conv2, or 0 to 1"):
            small().plot(layer=wrong)


def test_plot_on_given_axes_in_the_backend_of_the_user() -> None:
    before = matplotlib.get_backend()
    _, (one, other) = plt.subplots(1, 2)
    assert small().plot(ax=other) is other
    assert not one.patches
    assert matplotlib.get_backend() == before


def large(**changes: Any) -> Explanation:
    """A ring of 900 nodes with a chord each; of two layers, every third edge is kept."""
    edges = [(i, (i + 1) % 900) for i in range(900)] + [(i, (i + 7) % 900) for i in range(900)]
    return explain(edges, [range(0, 1800, 3), range(1, 1800, 3)], **changes)


def test_of_a_large_graph_what_was_asked_about_comes_first() -> None:
    asked = large(index=(17,), info={ASKED: [17]})
    ax = asked.plot()
    drawn = arrows(ax, "kept")
    assert len(drawn) == 300
    assert "300 of 1,200 kept edges are drawn; the graph has 1,800 edges and 900 nodes" in ax.get_title()
    assert ax.get_title().startswith("Row 17")
    ids = [c.get_gid() for c in ax.collections]
    assert sum(str(name).startswith("asked-") for name in ids) == 1
    names = ax.texts[0].get_text()
    assert names == "17"
    # Everything that reaches node 17 is there: sources of its paths are among the nodes that are drawn.
    html = asked._repr_html_()
    assert "Drawn: 120 of 1,200 kept edges; the graph has 1,800 edges and 900 nodes." in html
    assert ">17</text>" in html


def test_a_node_that_was_asked_about_is_drawn_though_nothing_is_kept() -> None:
    edges = [(i, i + 1) for i in range(400)]
    ax = explain(edges, [[]], index=(17,), info={ASKED: [17]}).plot()
    assert texts(ax) == ["17"]
    assert ax.get_title().startswith("Row 17\n0 of 400 messages kept")


def test_matplotlib_is_not_needed_to_explain() -> None:
    code = "import graphmask, sys; print([m for m in ('matplotlib', 'pandas', 'polars') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.strip()
    assert "matplotlib" not in loaded


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(GraphMaskError, match=r"pip install graphmask\[plot\]"):
        small().plot()


# Cards -------------------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_card_is_small_and_stands_by_itself() -> None:
    html = small()._repr_html_()
    found = Tags(html)
    assert len(html) < 8000
    assert {tag for tag, _ in found.seen} <= {
        "div", "table", "tbody", "tr", "td", "svg", "path", "circle", "text", "polygon",
    }  # fmt: skip
    words = " ".join(found.words)
    assert "3 of 8 messages kept." in words
    assert "within tolerance: divergence 0.01 of 0.03, same prediction" in words
    assert "conv1 2 of 4" in words
    assert sum(tag == "polygon" for tag, _ in found.seen) == 3  # one head per kept edge


def test_what_the_user_wrote_stays_text() -> None:
    found = small(info={"title": EVIL, "node_labels": [EVIL] * 4})
    html = found._repr_html_()
    assert "<img" not in html
    assert EVIL in "".join(Tags(html).words)
    assert not [name for _, attributes in Tags(html).seen for name in attributes if name.startswith("on")]


def test_a_card_of_a_sentence_and_one_of_nothing() -> None:
    assert "rebound" in make_sentence()._repr_html_()
    assert "0 of 0 messages kept." in explain([], [[]], nodes=0)._repr_html_()


def test_lines_of_a_card_end_at_the_rims_of_their_nodes() -> None:
    html = small()._repr_html_()
    circles = [tuple(map(float, found)) for found in re.findall(r'<circle cx="(.+?)" cy="(.+?)" r="(.+?)"', html)]
    lines = [tuple(map(float, found)) for found in re.findall(r'<path d="M(\S+) (\S+)Q\S+ \S+ (\S+) (\S+)"', html)]
    assert len(circles) == small().num_nodes
    assert lines
    for x0, y0, x1, y1 in lines:
        begin = min(abs(math.hypot(x0 - x, y0 - y) - r) for x, y, r in circles)
        end = min(abs(math.hypot(x1 - x, y1 - y) - r - 2) for x, y, r in circles)
        assert begin < 0.3
        assert end < 0.3


def test_a_card_takes_its_colour_from_the_notebook() -> None:
    html = small()._repr_html_()
    assert all("color:inherit" in style for style in re.findall(r'<table style="(.*?)"', html))
    assert "<table" in html


def test_a_card_says_what_failed() -> None:
    bad = replace(small(), divergence=0.5, flips=1.0)
    assert "NOT within tolerance: divergence 0.5 of 0.03, CHANGED prediction" in bad._repr_html_()
    assert repr(replace(small(), index=(3, 5))).startswith("Explanation(rows 3, 5: within tolerance")


# Logs --------------------------------------------------------------------------------------------------------


def history() -> History:
    epochs = [
        Epoch(number, 0.02, 1.0, [0.5, 0.5], Verdict(0.01 * (number + 1), 0.0, (0.5 - 0.1 * number, 0.25)), True)
        for number in range(3)
    ]
    verdict = Verdict(0.02, 0.0, (0.25, 0.5))
    return History(epochs, True, verdict, 60, 3.2, 0.03, ("conv1", "conv2"))


def test_history_prints_short_and_draws() -> None:
    assert repr(history()) == (
        "History(37.5% of the messages kept, within tolerance: divergence 0.02 of 0.03; 60 steps, 3 s)"
    )
    assert str(history()).startswith("GraphMask: 60 steps in 3 s.\nKept: 37.5%")
    ax = history().plot()
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert lines["kept, conv1"].get_ydata().tolist() == pytest.approx([0.5, 0.4, 0.3])
    (right,) = [other for other in ax.figure.axes if other is not ax]
    labels = [line.get_label() for line in right.get_lines()]
    assert labels == ["divergence", "tolerance 0.03"]
    with pytest.raises(GraphMaskError, match="found none"):
        History().plot()


def test_epochs_are_counted_from_one_to_how_many_there_will_be() -> None:
    training: Any = SimpleNamespace(steps=100, drawn_out=0, step=15, epoch=3)
    assert epochs_of(training) == 20
    assert epochs_of(SimpleNamespace(steps=100, drawn_out=0, step=0, epoch=0)) == 1  # type: ignore[arg-type]
    # Two epochs were meant; 150 steps by which the noisy phase was drawn out make them four.
    assert epochs_of(SimpleNamespace(steps=200, drawn_out=150, step=300, epoch=3)) == 4  # type: ignore[arg-type]


def test_one_vocabulary_for_where_a_state_stands() -> None:
    assert standing(0.04, 0.03, False) == "NOT within tolerance: divergence 0.0400 of 0.03"
    assert standing(0.0258, 0.03, True) == "within tolerance: divergence 0.0258 of 0.03"
    assert standing(0.0258, 0.03, False) == (
        "within tolerance: divergence 0.0258 of 0.03, but without the margin for other data"
    )


def test_scores_on_other_devices_and_dtypes() -> None:
    assert small(scores=torch.full((2, 4), 0.5, dtype=torch.float16)).to_pandas()["score"].tolist() == [0.5] * 8
