"""What somebody new to the library writes first: a model of PyG's tutorials, a dozen lines, a picture at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

SCRIPT = """
import torch
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import GCN

from graphmask import GraphMask

data = KarateClub()[0]
model = GCN(data.num_features, hidden_channels=16, num_layers=2, out_channels=4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(100):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(data.x, data.edge_index), data.y).backward()
    optimizer.step()
explainer = GraphMask(model.eval())
explainer.fit([data], epochs=150, progress=False)
explanation = explainer.explain(data, index=0, allow_infeasible=True)
explanation.plot().figure.savefig("karate.png")
"""


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_twelve_lines_end_in_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    lines = [line for line in SCRIPT.splitlines() if line.strip() and "import" not in line]
    assert len(lines) <= 12
    names: dict[str, Any] = {}
    exec(compile(SCRIPT, "stranger.py", "exec"), names)
    assert (tmp_path / "karate.png").read_bytes().startswith(b"\x89PNG")
    explanation = names["explanation"]
    assert explanation.site_titles == ("convs.0 (GCNConv)", "convs.1 (GCNConv)")
    title = plt.gcf().axes[0].get_title()
    assert title.startswith("Row 0\n")
    assert explanation.certificate in title
    plt.close("all")
