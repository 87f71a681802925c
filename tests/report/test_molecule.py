"""Molecules: drawn as chemists draw them where RDKit is there, and as any graph where it is not."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GraphConv, global_add_pool

from graphmask import GraphMask, GraphMaskError
from graphmask.explanation import Explanation
from graphmask.report import molecule as molecules
from graphmask.report.layout import bends
from reference.hasty import HASTY
from report.conftest import explain

NITROBENZENE = "c1ccccc1[N+](=O)[O-]"
#: Its bonds, both ways: the ring, the nitrogen, its two oxygens.
BONDS = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (5, 6), (6, 7), (6, 8)]
EDGES = [edge for u, v in BONDS for edge in ((u, v), (v, u))]


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    plt.close("all")


@pytest.fixture
def rdkit() -> None:
    pytest.importorskip("rdkit.Chem")


@pytest.fixture
def without_rdkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdkit", None)
    monkeypatch.setitem(sys.modules, "rdkit.Chem", None)


def nitrobenzene(**changes: Any) -> Explanation:
    """The first layer keeps both ways of the bond to the nitrogen, the second what the oxygens send."""
    return explain(EDGES, [[12, 13], [15, 17]], **{"info": {"smiles": NITROBENZENE}, **changes})


def bonds_drawn(ax: Any) -> list[Any]:
    return [line for line in ax.get_lines() if str(line.get_gid()).startswith("bond-")]


@pytest.mark.usefixtures("rdkit")
class TestWithRDKit:
    def test_atoms_and_bonds_are_those_of_the_molecule(self) -> None:
        found = molecules.read(NITROBENZENE, 9)
        assert found.symbols == ("C",) * 6 + ("N+", "O", "O\N{MINUS SIGN}")
        assert {frozenset(bond[:2]) for bond in found.bonds} == {frozenset(bond) for bond in BONDS}
        orders = {frozenset(bond[:2]): bond[2] for bond in found.bonds}
        assert orders[frozenset((0, 1))] == 1.5
        assert orders[frozenset((6, 7))] == 2
        assert orders[frozenset((6, 8))] == 1
        lengths = [
            torch.dist(*(torch.tensor(found.positions[a], dtype=torch.double) for a in bond)).item() for bond in BONDS
        ]
        assert lengths == pytest.approx([molecules.BOND] * 9, abs=0.2)  # RDKit's bonds are all alike

    def test_lines_of_bonds_by_their_order(self) -> None:
        lines = list(molecules.read("CC#N", 3).lines())
        assert len(lines) == 1 + 3
        assert not any(dashed for *_, dashed in lines)
        aromatic = list(molecules.read("c1ccccc1", 6).lines())
        assert (len(aromatic), sum(dashed for *_, dashed in aromatic)) == (12, 6)
        x0, y0, x1, y1, _ = lines[1]
        x2, y2, *_ = lines[2]
        assert ((x2 - x0) ** 2 + (y2 - y0) ** 2) ** 0.5 == pytest.approx(molecules.APART, abs=0.2)
        assert (x1 - x0) * (x2 - x0) + (y1 - y0) * (y2 - y0) == pytest.approx(0, abs=10)  # side by side

    def test_hydrogens_are_added_where_they_are_nodes(self) -> None:
        assert molecules.read("CO", 6).symbols == ("C", "O", "H", "H", "H", "H")
        with pytest.raises(GraphMaskError, match="one atom per node, 3, got one with 6 atoms"):
            molecules.read("CO", 3)
        with pytest.raises(GraphMaskError, match="which RDKit cannot read"):
            molecules.read("C1CC", 3)
        with pytest.raises(GraphMaskError, match="a SMILES or an RDKit Mol as molecule, got int"):
            molecules.read(7, 3)

    def test_a_mol_of_the_user_is_not_changed(self) -> None:
        from rdkit import Chem

        mol = Chem.MolFromSmiles("CCO")
        found = molecules.read(mol, 3)
        assert mol.GetNumConformers() == 0
        assert found == molecules.read("CCO", 3)

    def test_plot_draws_bonds_by_layer(self) -> None:
        found = nitrobenzene()
        ax = found.plot()
        assert len(bonds_drawn(ax)) == 6 * 2 + 1 + 2 + 1
        kept = {str(patch.get_gid()) for patch in ax.patches if str(patch.get_gid()).startswith("kept")}
        assert kept == {f"kept-plot-{edge}" for edge in (12, 13, 15, 17)}
        assert [text.get_text() for text in ax.texts] == list(molecules.read(NITROBENZENE, 9).symbols)
        legend = [text.get_text() for text in ax.get_legend().get_texts()]
        assert legend == ["kept, conv1", "kept, conv2", "dropped"]
        first = found.plot(layer=0)
        assert {p.get_gid() for p in first.patches if p.get_gid().startswith("kept")} == {
            "kept-plot-12", "kept-plot-13",
        }  # fmt: skip

    def test_plot_of_a_molecule_that_is_given(self) -> None:
        bare = nitrobenzene(info={})
        assert not bonds_drawn(bare.plot())
        ax = bare.plot(molecule=NITROBENZENE, node_labels=[f"a{i}" for i in range(9)])
        assert len(bonds_drawn(ax)) == 16
        assert [text.get_text() for text in ax.texts] == [f"a{i}" for i in range(9)]
        with pytest.raises(GraphMaskError, match="one atom per node, 9, got one with 3"):
            bare.plot(molecule="O")

    def test_the_card_shows_the_molecule(self) -> None:
        html = nitrobenzene()._repr_html_()
        lines = list(molecules.read(NITROBENZENE, 9).lines())
        assert all(f'd="M{x0} {y0}L{x1} {y1}"' in html for x0, y0, x1, y1, _ in lines)
        assert html.count('stroke-dasharray="4 4"') == 6
        assert ">N+</text>" in html

    def test_the_page_shows_the_molecule(self, visit: Any, tmp_path: Path) -> None:
        path = nitrobenzene().to_html(tmp_path / "page.html")
        data = json.loads(re.findall(r'id="data">(.*?)</script>', path.read_text())[0])[0]
        found = molecules.read(NITROBENZENE, 9)
        assert [tuple(row[1:3]) for row in data["nodes"]] == list(found.positions)
        assert [row[3] for row in data["nodes"]] == list(found.symbols)
        page = visit(path)
        assert page.locator("svg.graph .bonds path").count() == 16
        assert page.locator("svg.graph .bonds .dashed").count() == 6
        page.get_by_role("button", name="conv2").click()
        kept = page.locator("svg.graph .edge.kept").evaluate_all("all => all.map(e => +e.dataset.edge)")
        assert set(kept) == {15, 17}

    def test_one_that_does_not_fit_is_left_out_and_said(self, tmp_path: Path) -> None:
        wrong = nitrobenzene(info={"smiles": "CCC"})
        text = wrong.to_html(tmp_path / "page.html").read_text()
        assert "Left out: &#34;smiles&#34;. Expected a molecule with one atom per node, 9" in text
        assert not bonds_drawn(wrong.plot())
        assert wrong._repr_html_()

    def test_a_part_of_a_large_graph_is_no_molecule(self, tmp_path: Path) -> None:
        chain = [(i, i + 1) for i in range(450)]
        text = explain(chain, [[3, 4]], info={"smiles": "C" * 451}).to_html(tmp_path / "page.html").read_text()
        assert "Left out" not in text
        assert '"bonds":' not in text


def test_self_loops_leave_where_there_is_room() -> None:
    found = molecules.Molecule(("A", "B"), ((0, 1, 1.0),), ((0.0, 0.0), (10.0, 0.0)))
    place = found.layout([(0, 1), (0, 0)])
    assert place.loop_angles == {0: pytest.approx(torch.pi, abs=1e-3)}  # away from B
    assert place.bends == bends([(0, 1), (0, 0)])


def test_without_rdkit_everything_is_as_before(without_rdkit: None, tmp_path: Path) -> None:
    found, bare = nitrobenzene(), nitrobenzene(info={})
    assert found._repr_html_() == bare._repr_html_()
    assert found.to_html(tmp_path / "a.html").read_text() == bare.to_html(tmp_path / "b.html").read_text()
    assert not bonds_drawn(found.plot())
    with pytest.raises(GraphMaskError, match=r"pip install graphmask\[chem\]"):
        bare.plot(molecule=NITROBENZENE)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.out = GraphConv(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.out(global_add_pool(self.conv(x, edge_index).relu(), batch))


def test_the_smiles_of_data_goes_with_its_explanation(tmp_path: Path) -> None:
    ends = {"CCO": 3, "CC#N": 3, "CCCC": 4}
    graphs = [
        Data(x=torch.rand(n, 3), edge_index=torch.tensor([range(n - 1), range(1, n)]), smiles=smiles)
        for smiles, n in ends.items()
    ]
    explainer = GraphMask(Sum().eval(), recipe=HASTY)
    explainer.fit([Batch.from_data_list(graphs)], progress=False)
    many = list(explainer.explain_all([Batch.from_data_list(graphs)], allow_infeasible=True))
    assert [found.info["smiles"] for found in many] == list(ends)
    assert explainer.explain(graphs[1], allow_infeasible=True).info["smiles"] == "CC#N"
    with pytest.raises(GraphMaskError, match=r"'smiles' of .* to be a text, got int"):
        list(explainer.explain_all([graphs[0]], metadata=lambda _: [{"smiles": 7}], out=tmp_path))
