"""`graphmask compare FILE.py:function`, run as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from graphmask import GraphMaskError, cli
from graphmask.comparing.from_file import arguments

invoke = CliRunner().invoke

FILE = """
from dataclasses import dataclass

import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GraphConv, global_add_pool

from neighbour import CLASSES


@dataclass
class Sizes:
    nodes: int = 5


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GraphConv(2, CLASSES)

    def forward(self, x, edge_index, batch):
        return global_add_pool(self.conv(x, edge_index), batch)


def pair():
    torch.manual_seed(0)
    draw = lambda: Data(x=torch.randn(Sizes.nodes, 2), edge_index=torch.randint(Sizes.nodes, (2, 8)))
    return Net().eval(), [Batch.from_data_list([draw() for _ in range(4)])]


def everything():
    model, loader = pair()
    gold = lambda batch: batch.edge_index[0] < batch.edge_index[1]
    return {"model": model, "loader": loader, "gold": gold, "seeds": 2, "methods": ["random", "occlusion"]}


def three():
    return 1, 2, 3


def typo():
    return dict(zip(("model", "loader"), pair()), golden=3)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("CLASSES = 3\n")
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_a_function_of_ones_own(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    chosen = ["--metrics", "gold,sparsity,sufficiency,stability,time", "--out", str(out), "--json", str(tmp_path / "f")]
    result = invoke(cli.app, ["compare", f"{file}:everything", *chosen])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "f").read_text())
    assert found == json.loads((out / "comparison.json").read_text())
    assert found["about"]["seeds"] == [0, 1]
    assert list(found["methods"]) == ["random", "occlusion"]
    assert found["methods"]["occlusion"]["kappa"] == 1
    assert 0 < found["methods"]["random"]["f1"] < 1
    assert "Against the known answer, all graphs together" in result.output
    assert "No validation data were given" in " ".join(result.output.split())
    assert "<svg" in (out / "comparison.html").read_text()
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_options_outweigh_the_file(file: Path, tmp_path: Path) -> None:
    options = ["--methods", "random", "--seeds", "1", "--seed", "7", "--metrics", "sparsity", "--out", str(tmp_path)]
    result = invoke(cli.app, ["compare", f"{file}:pair", *options])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "comparison.json").read_text())
    assert (found["about"]["seeds"], list(found["methods"])) == ([7], ["random"])
    assert list(found["columns"]) == ["retained"]


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("{}:nobody", "Expected a function 'nobody'"),
        ("{}:three", r"Expected another result of three, got tuple. It should return \(model, loader\)"),
        ("{}:typo", "got 'golden' from typo"),
        ("{}x:pair", "FILE.py:function, got"),
        ("elsewhere.py:pair", "a file at elsewhere.py, found none"),
    ],
)
def test_what_is_wrong_is_told(file: Path, where: str, words: str) -> None:
    with pytest.raises(GraphMaskError, match=words):
        arguments(where.format(file))


def test_a_file_without_a_function(file: Path) -> None:
    result = invoke(cli.app, ["compare", str(file)])
    assert isinstance(result.exception, GraphMaskError)
    assert "FILE.py:function" in str(result.exception)
