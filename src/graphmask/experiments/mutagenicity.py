"""Mutagenicity: molecules, and the bonds of NO2 and NH2 groups that make mutagens (TU collection, text files)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from graphmask.errors import GraphMaskError
from graphmask.experiments import data as corpora

ATOMS = ("C", "O", "Cl", "H", "N", "F", "Br", "S", "P", "I", "Na", "K", "Li", "Ca")
MUTAGEN = 0


def _column(folder: Path, name: str, rows: int | None = None) -> torch.Tensor:
    path = folder / f"Mutagenicity_{name}.txt"
    if not path.exists():
        raise GraphMaskError(f"Expected the file {path.name} in {folder}, found none.")
    try:
        numbers = torch.from_numpy(np.loadtxt(path, dtype=np.int64, delimiter=",", ndmin=1))
    except ValueError as error:
        raise GraphMaskError(f"Expected whole numbers in {path}, got: {error}.") from None
    if rows is not None and len(numbers) != rows:
        raise GraphMaskError(f"Expected {rows} lines in {path}, found {len(numbers)}.")
    return numbers


def read(folder: Path | None = None) -> list[Data]:
    """All molecules: `x` [N, 14] atoms as one-hots, `y` [1] (0 is a mutagen), `gold` bool [E]: in NO2 or NH2."""
    folder = folder or corpora.find("mutagenicity")
    edges = _column(folder, "A") - 1
    graph = _column(folder, "graph_indicator") - 1
    atoms, labels = _column(folder, "node_labels", len(graph)), _column(folder, "graph_labels")
    gold = _column(folder, "edge_gt", len(edges)).bool()
    if edges.dim() != 2 or edges.shape[1] != 2 or not 0 <= int(edges.min()) <= int(edges.max()) < len(graph):
        raise GraphMaskError(f"Expected pairs of atoms from 1 to {len(graph)} in Mutagenicity_A.txt of {folder}.")
    if bool((graph.diff() < 0).any()) or int(graph.max()) >= len(labels):
        raise GraphMaskError(f"Expected atoms in the order of their {len(labels)} molecules in {folder}.")
    x = torch.nn.functional.one_hot(atoms, len(ATOMS)).float()
    order = graph[edges[:, 0]].argsort(stable=True)
    edges, gold = edges[order], gold[order]
    nodes = torch.bincount(graph, minlength=len(labels))
    bonds = torch.bincount(graph[edges[:, 0]], minlength=len(labels))
    first = nodes.cumsum(0) - nodes
    return [
        Data(x=part, edge_index=(pairs - start).t().contiguous(), y=label, gold=marks)
        for part, pairs, start, label, marks in zip(
            x.split(nodes.tolist()),
            edges.split(bonds.tolist()),
            first,
            labels.split(1),
            gold.split(bonds.tolist()),
            strict=True,
        )
    ]
