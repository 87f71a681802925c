"""The page of a comparison in a real browser: names whole, tables within the paper, nothing wider than a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GraphConv, global_add_pool

import graphmask
from report.test_accessible import PAIRS

#: Two thirds of A4's 210 mm at 96 dots per inch are left between wide margins.
PAPER = 640


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GraphConv(4, 2)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return global_add_pool(self.conv(x, edge_index), batch)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    graphs = [Data(x=torch.randn(6, 4), edge_index=torch.randint(6, (2, 12))) for _ in range(8)]
    for data in graphs:
        data.gold = data.edge_index[0] < data.edge_index[1]
    loader = [Batch.from_data_list(graphs)]
    found = graphmask.compare(
        Net().eval(),
        loader,
        validation=loader,
        test=loader,
        gold="gold",
        methods=["information_bottleneck", "integrated_gradients", "random"],
        metrics=["gold", "sparsity", "sufficiency", "flips", "complement", "r_fidelity", "stability", "time"],
        seeds=2,
    )
    return found.to_html(tmp_path_factory.mktemp("comparison") / "comparison.html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_on_a_phone_in_light_and_dark(visit: Any, comparison: Path, scheme: str) -> None:
    page = visit(comparison, viewport={"width": 400, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.evaluate(PAIRS)["words"] >= 4.5
    names = page.locator("svg.chart").first.locator("text").all_text_contents()
    assert {"information bottleneck", "integrated gradients", "random"} <= set(names)
    clipped = """svg => { const box = svg.getBoundingClientRect();
      return [...svg.querySelectorAll('text')].filter(t => { const b = t.getBoundingClientRect();
        return b.left < box.left - 1 || b.right > box.right + 1; }).map(t => t.textContent); }"""
    assert page.locator("svg.chart").count() > 4
    for chart in page.locator("svg.chart").all():
        assert chart.evaluate(clipped) == []
    captions = page.locator("caption").evaluate_all("all => all.map(c => c.getBoundingClientRect().right)")
    assert max(captions) <= 400


def test_on_paper_no_table_is_cut(visit: Any, comparison: Path) -> None:
    page = visit(comparison, viewport={"width": PAPER, "height": 900}, color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER
    widths = page.locator("table").evaluate_all("all => all.map(t => t.getBoundingClientRect().right)")
    assert len(widths) > 4
    assert max(widths) <= PAPER
    assert page.locator(".tile").first.evaluate("t => getComputedStyle(t).backgroundColor") == "rgb(255, 255, 255)"
