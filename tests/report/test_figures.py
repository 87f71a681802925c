"""Figures for papers: what is in them, and the same bytes every time."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
from matplotlib import image

from graphmask.errors import GraphMaskError
from graphmask.report.figures import bars, comparison, curve, side_by_side

from .conftest import explain, make_sentence

GROUPS = {"SBJ": {"base rate": 0.2, "layer 1": 0.5, "layer 2": 0.1}, "OBJ": {"base rate": 0.3, "layer 2": 0.4}}
INTERVALS = {"SBJ": {"layer 1": (0.4, 0.6)}}
ERODED = {"retained dropped": [0.9, 0.7, 0.5], "superfluous dropped": [0.9, 0.9, 0.88]}
BAND = {"retained dropped": [(0.85, 0.95), (0.6, 0.8), (0.45, 0.55)]}
METHODS: dict[str, Any] = {
    "task": "star",
    "methods": {
        "graphmask": {
            "precision": 99.0, "recall": 98.0, "f1": 98.5, "precision_std": 1.0, "recall_std": 1.0, "f1_std": 1.0,
            "paper": {"f1": 99.4},
        },
        "random": {
            "precision": 30.0, "recall": 50.0, "f1": 37.5, "precision_std": 2.0, "recall_std": 1.0, "f1_std": 1.0,
        },
        "gate_scores": {"not_applicable": "no gates"},
    },
}  # fmt: skip


def named(path: Path, start: str) -> list[str]:
    ids = [element.get("id", "") for element in ElementTree.parse(path).iter()]
    return [name for name in ids if name.startswith(start)]


def share_of_ink(path: Path) -> float:
    pixels = image.imread(path)[..., :3]
    return float((pixels.min(-1) < 0.9).mean())


def test_one_arrow_for_every_kept_edge_of_every_method(tmp_path: Path) -> None:
    found = {"erasure_search": make_sentence(), "graphmask": make_sentence(reverse=[False, True])}
    colours = found["graphmask"].info["edge_labels"]
    path = side_by_side(tmp_path / "one.svg", found, colours=colours, question="Costs $5 or $6?")
    for column, name in enumerate(found):
        kept = {f"kept-{column}-{site}-{edge}" for site, edge in found[name].kept.nonzero().tolist()}
        assert set(named(path, f"kept-{column}-")) == kept
        assert len(named(path, f"dropped-{column}-")) == found[name].kept.numel() - len(kept)


def test_what_carries_nothing_is_not_drawn(tmp_path: Path) -> None:
    one = explain([(0, 1), (1, 2)], [[0]])
    one.carried[0, 1] = False
    path = side_by_side(tmp_path / "one.svg", {"mine": one}, colours=["b", "red"], question="")
    assert named(path, "kept-") == ["kept-0-0-0"]
    assert named(path, "dropped-") == []
    assert "#0072b2" in path.read_text()  # "b" is a name of an edge type, not matplotlib's blue
    assert "#0000ff" not in path.read_text()


def test_arrows_point_the_way_the_messages_went(tmp_path: Path) -> None:
    """The head is the second path of an arrow, and lies nearer to the receiving node."""
    heads = {}
    for reverse in (False, True):
        one = explain([(0, 1)], [[0]], reverse=[reverse])
        path = side_by_side(tmp_path / f"{reverse}.svg", {"m": one}, colours=["x"], question="")
        text = path.read_text()
        group = text[text.index('id="kept-0-0-0"') :].split("</g>")[0]
        line, head = re.findall(r' d="(.*?)"', group, re.DOTALL)
        middle = [
            sum(map(float, re.findall(r"[ML] (-?[\d.]+)", part))) / len(re.findall(r"[ML]", part))
            for part in (line, head)
        ]
        heads[reverse] = middle[1] - middle[0]
    assert heads[False] * heads[True] < 0


def test_comparison_draws_the_methods_that_apply(tmp_path: Path) -> None:
    path = comparison(tmp_path / "methods.png", METHODS)
    assert 0.05 < share_of_ink(path) < 0.9
    vector = comparison(tmp_path / "methods.svg", METHODS)
    assert len(named(vector, "patch_")) >= 6  # two methods, three bars each


def test_a_bar_for_every_number(tmp_path: Path) -> None:
    path = bars(tmp_path / "bars.svg", "Share of $kept$ edges", GROUPS, intervals=INTERVALS)
    assert sorted(named(path, "bar-")) == ["bar-0-0", "bar-0-1", "bar-0-2", "bar-1-0", "bar-1-2"]
    heights = {}
    for name in named(path, "bar-"):
        text = path.read_text()
        d = re.search(r' d="(.*?)"', text[text.index(f'id="{name}"') :], re.DOTALL)
        assert d is not None
        ys = [float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", d.group(1))]
        heights[name] = max(ys) - min(ys)
    assert heights["bar-0-1"] / heights["bar-0-0"] == pytest.approx(2.5, rel=1e-3)
    assert heights["bar-1-2"] / heights["bar-0-2"] == pytest.approx(4, rel=1e-3)
    many = bars(tmp_path / "many.png", "", {f"a long name {i}": {"kept": i / 30} for i in range(30)})
    assert share_of_ink(many) > 0.1


def test_a_line_for_every_series_and_a_band_where_given(tmp_path: Path) -> None:
    path = curve(tmp_path / "curve.svg", "Erosion", [0, 0.5, 1], ERODED, BAND, per_cent=True)
    assert named(path, "curve-") == ["curve-0", "curve-1"]
    assert named(path, "band-") == ["band-0"]
    frontier = curve(tmp_path / "frontier.png", "Frontier", [0.01, 0.1, 1], ERODED, x_label="tolerance", log_x=True)
    assert share_of_ink(frontier) > 0.005


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_same_input_same_bytes(tmp_path: Path, kind: str) -> None:
    one = make_sentence()
    for name in ("a", "b"):
        side_by_side(tmp_path / f"{name}1.{kind}", {"m": one}, colours=one.info["edge_labels"], question="?")
        comparison(tmp_path / f"{name}2.{kind}", METHODS)
        bars(tmp_path / f"{name}3.{kind}", "bars", GROUPS, intervals=INTERVALS)
        assert curve(str(tmp_path / f"{name}4.{kind}"), "curve", [0, 0.5, 1], ERODED, BAND).is_file()
    for number in range(1, 5):
        assert (tmp_path / f"a{number}.{kind}").read_bytes() == (tmp_path / f"b{number}.{kind}").read_bytes()


def test_wrong_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphMaskError, match="3 values of 'x'"):
        curve(tmp_path / "c.svg", "", [1, 2, 3], {"x": [1]})
    with pytest.raises(GraphMaskError, match="one point"):
        curve(tmp_path / "c.svg", "", [], {})
    with pytest.raises(GraphMaskError, match="one bar"):
        bars(tmp_path / "b.svg", "", {})
    assert list(tmp_path.iterdir()) == []
