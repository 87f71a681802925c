"""Pages of large graphs: small, and honest about what they leave out."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from graphmask import GraphMask
from graphmask.experiments.bench.pages import measure, random_explanation
from graphmask.explanation import Explanation
from graphmask.explanation_contents import ASKED
from graphmask.report.build import PATHS_IN_ALL, example
from reference.hasty import HASTY


def random_graph(edges: int, nodes: int | None = None, *, asked: int | None = None, **changes: Any) -> Explanation:
    """Two layers, three of ten messages kept; kept ones score above one half."""
    made = random_explanation(edges, nodes=nodes)
    if asked is not None:
        changes |= {"index": (asked,), "info": {ASKED: [asked]}}
    return replace(made, **changes)


def data_of(page: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    assert found is not None
    return json.loads(found.group(1))[0]


def test_ten_thousand_edges_in_three_megabytes(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for nodes in (2500, 450):  # the second is drawn as one component, which costs most
        random_graph(10_000, nodes).to_html(page)
        assert page.stat().st_size < 3_000_000
    text = page.read_text()
    assert "This graph has 10,000 edges and 450 nodes: the drawings show only kept edges and their nodes." in text
    kept = int(random_graph(10_000, 450).kept.any(0).sum())
    assert f"Of {kept:,} kept edges the 1,500 with the highest score are drawn." in text
    assert "The 200 highest scoring of 10,000 edges." in text


def test_the_page_does_not_grow_with_the_graph() -> None:
    """What `graphmask bench pages` measures; its seconds are in docs/report.md."""
    found = measure(1_000_000, rounds=1, progress=False)
    assert [row["edges"] for row in found["sizes"]] == [1000, 10_000, 100_000, 1_000_000]
    assert all(row[name]["bytes"] < 3_000_000 for row in found["sizes"] for name in ("graph", "node"))


def test_counts_are_of_the_whole_graph(tmp_path: Path) -> None:
    found = random_graph(5000)
    text = found.to_html(tmp_path / "page.html").read_text()
    assert f"{int(found.kept.sum()):,} of 10,000 messages" in text
    made = example(found)
    assert made.retained == found.retained
    assert made.whole is not None
    assert made.whole.edges == 5000
    assert len(made.edges) < 1701


def test_edges_and_nodes_keep_their_numbers(tmp_path: Path) -> None:
    found = random_graph(3000)
    data = data_of(found.to_html(tmp_path / "page.html"))
    names = {row[0]: row[3] for row in data["nodes"]} | {int(v): name for v, name in data["names"].items()}
    best = found.scores.amax(0).argsort(descending=True, stable=True)[:200].tolist()
    assert sorted(data["numbers"].values()) == sorted(best)
    for edge, source, target, *_ in data["edges"]:
        if str(edge) in data["numbers"]:
            number = data["numbers"][str(edge)]
            assert found.edge_index[:, number].tolist() == [int(names[source]), int(names[target])]


def test_the_known_answer_is_compared_as_a_whole(tmp_path: Path) -> None:
    found = random_graph(3000)
    gold = found.kept.clone()
    gold[0, :10] = ~gold[0, :10]
    right, kept = int(gold.sum()), int((gold & found.kept).sum())
    words = f"{kept} of {right} right messages kept, and {int((found.kept & ~gold).sum())} others"
    assert words in found.to_html(tmp_path / "page.html", gold=gold).read_text()


def test_what_was_asked_about_and_its_paths_come_first(tmp_path: Path) -> None:
    found = random_graph(20_000, 4000, asked=17)
    data = data_of(found.to_html(tmp_path / "page.html"))
    (node,) = data["asked"]
    labels = {row[0]: row[3] for row in data["nodes"]}
    assert labels[node] == "17"
    wanted = {tuple((hop.source, hop.target) for hop in path) for path in found.paths(17)}
    ends = {edge[0]: (int(labels[edge[1]]), int(labels[edge[2]])) for edge in data["edges"] if edge[4] is not None}
    shown = {tuple(ends[edge] for _, edge in path) for path in data["paths"][str(node)]}
    assert shown == wanted
    assert wanted


def test_there_are_only_so_many_paths() -> None:
    made = example(random_graph(1500, 20))
    assert made.paths is not None
    assert sum(map(len, made.paths.values())) <= PATHS_IN_ALL
    assert max(map(len, made.paths.values())) == 50


# explain(index=17) ---------------------------------------------------------------------------------------------


class NodeModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.conv2 = GCNConv(4, 8), GCNConv(8, 3)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


@pytest.fixture(scope="module")
def node_17() -> Explanation:
    generator = torch.Generator().manual_seed(1)
    data = Data(
        x=torch.randn(200, 4, generator=generator), edge_index=torch.randint(200, (2, 900), generator=generator)
    )
    explainer = GraphMask(NodeModel().eval(), recipe=HASTY)
    explainer.fit([data], progress=False)
    return explainer.explain(data, index=17, allow_infeasible=True)


def test_an_explanation_knows_which_node_it_is_about(node_17: Explanation) -> None:
    assert node_17.info[ASKED] == [17]
    assert repr(node_17).startswith("Explanation(row 17: ")


def test_the_title_names_the_row(node_17: Explanation, tmp_path: Path) -> None:
    text = node_17.to_html(tmp_path / "page.html").read_text()
    assert "<title>What the model used for row 17</title>" in text
    assert '<h2 id="title-0">Row 17</h2>' in text
    named = node_17.to_html(tmp_path / "page.html", node_labels=[f"paper {n}" for n in range(200)], title="Cora")
    assert "<title>Cora</title>" in named.read_text()
    assert "paper 17" in [row[3] for row in data_of(named)["nodes"]]


def test_the_node_is_drawn_and_marked_though_nothing_is_kept(visit: Any, tmp_path: Path) -> None:
    found = random_graph(1000, asked=17, kept=torch.zeros(2, 1000, dtype=torch.bool))
    page = visit(found.to_html(tmp_path / "page.html"))
    for view in ("graph", "unrolled"):
        assert page.locator(f"svg.{view} .node.asked .ring").count() == 1
    assert (
        page.locator("svg.graph .node.asked").get_attribute("aria-label") == "node 17 (asked about), 0 retained paths"
    )
    assert page.locator(".legend").inner_text().count("asked about") == 1
    assert page.locator(".remark", has_text="No edge is kept").count() == 1


def test_a_large_page_opens_and_answers(visit: Any, tmp_path: Path) -> None:
    page = visit(random_graph(10_000, asked=17).to_html(tmp_path / "page.html"))
    node = page.locator("svg.graph .node.asked")
    node.focus()
    page.keyboard.press("Enter")
    assert re.search(r"retained paths? ends? in 17|No retained path ends in 17", page.locator(".status").inner_text())
    page.get_by_text("Edges and scores").click()
    assert page.locator(".edge-table tbody tr").count() == 200
