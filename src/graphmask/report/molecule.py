"""Molecules as chemists draw them: where atoms lie and how they are bonded, by RDKit, if it is installed.

A graph is drawn as a molecule where its explanation knows one: a SMILES in ``info["smiles"]``, which `explain` takes
from ``data.smiles`` (PyG's `from_smiles` and MoleculeNet write it there), or what is passed to `Explanation.plot`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation
from graphmask.report.layout import Layout, Points, bends, loop_angles

#: Pixels between bonded atoms, the radius of an atom, and the distance between the lines of a double bond.
BOND, RADIUS, APART = 62.0, 13.0, 5.0
MARGIN = 2.2 * RADIUS


@dataclass(frozen=True)
class Molecule:
    """Atoms and bonds in the plane; atom ``i`` is node ``i`` of the graph."""

    symbols: tuple[str, ...]
    bonds: tuple[tuple[int, int, float], ...]  #: two atoms and the order; 1.5 is aromatic
    positions: tuple[tuple[float, float], ...]  #: in pixels, y downwards

    def layout(self, edges: Sequence[tuple[int, int]]) -> Layout:
        """For drawings of the graph with these edges, which need not be bonds."""
        at: Points = dict(enumerate(self.positions))
        width, height = (max((p[axis] for p in self.positions), default=0.0) + MARGIN for axis in (0, 1))
        return Layout(at, loop_angles(at, edges), bends(edges), round(width, 1), round(height, 1), RADIUS, False)

    def lines(self) -> Iterator[tuple[float, float, float, float, bool]]:
        """The strokes of bonds as x0, y0, x1, y1, dashed: up to three side by side, an aromatic second one dashed."""
        for one, other, order in self.bonds:
            (x0, y0), (x1, y1) = self.positions[one], self.positions[other]
            length = max(((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5, 1e-9)
            across = (-(y1 - y0) / length, (x1 - x0) / length)
            strokes = 1 if order < 1.25 else 3 if order >= 2.75 else 2
            for stroke in range(strokes):
                off = (stroke - (strokes - 1) / 2) * APART
                dx, dy = across[0] * off, across[1] * off
                dashed = 1.25 <= order < 1.75 and stroke == 1
                x, y, to_x, to_y = (round(value, 1) for value in (x0 + dx, y0 + dy, x1 + dx, y1 + dy))
                yield x, y, to_x, to_y, dashed


def of(explanation: Explanation, molecule: Any = None, *, notes: list[str] | None = None) -> Molecule | None:
    """The molecule that is given, as a SMILES or an RDKit ``Mol``, or that ``info`` names; None where there is none.

    One that is given has to fit. One that ``info`` names is left out if there is no RDKit, or if it does not fit,
    which is said in ``notes``.
    """
    if molecule is not None:
        return read(molecule, explanation.num_nodes)
    smiles = explanation.info.get("smiles")
    if not isinstance(smiles, str) or not installed():
        return None
    try:
        return read(smiles, explanation.num_nodes)
    except GraphMaskError as error:
        if notes is not None:
            notes.append(f'Left out: "smiles". {error}')
        return None


def names(labels: list[str] | None, molecule: Molecule | None) -> list[str] | None:
    """Names of the nodes: those that are known, else the symbols of the atoms."""
    return labels if labels is not None or molecule is None else list(molecule.symbols)


def installed() -> bool:
    """Is RDKit there?"""
    try:
        import rdkit.Chem  # noqa: F401
    except ImportError:
        return False
    return True


def read(molecule: Any, nodes: int) -> Molecule:
    """Atoms in their order; a SMILES whose hydrogens are nodes gets them. Raises where that does not give the nodes."""
    if not installed():
        raise GraphMaskError("Expected RDKit for drawings of molecules, found none. Try: pip install graphmask[chem]")
    from rdkit import Chem, rdBase
    from rdkit.Chem import rdDepictor

    if isinstance(molecule, str):
        text = molecule
        with rdBase.BlockLogs():  # what it would print, the error says
            molecule = Chem.MolFromSmiles(text)
        if molecule is None:
            raise GraphMaskError(f"Expected a SMILES, got {text!r}, which RDKit cannot read.")
    elif not isinstance(molecule, Chem.Mol):
        raise GraphMaskError(f"Expected a SMILES or an RDKit Mol as molecule, got {type(molecule).__name__}.")
    if molecule.GetNumAtoms() < nodes:
        molecule.UpdatePropertyCache(strict=False)
        molecule = Chem.AddHs(molecule)
    if molecule.GetNumAtoms() != nodes:
        raise GraphMaskError(
            f"Expected a molecule with one atom per node, {nodes}, got one with {molecule.GetNumAtoms()} atoms "
            "(hydrogens counted where the graph has more nodes than heavy atoms)."
        )
    molecule = Chem.Mol(molecule)  # a copy: coordinates are written into it
    rdDepictor.Compute2DCoords(molecule, canonOrient=True)
    return _molecule(molecule)


def _molecule(molecule: Any) -> Molecule:
    symbols = tuple(atom.GetSymbol() + _charge(atom.GetFormalCharge()) for atom in molecule.GetAtoms())
    bonds = tuple(
        (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), float(bond.GetBondTypeAsDouble()))
        for bond in molecule.GetBonds()
    )
    points = [(float(x), -float(y)) for x, y, _ in molecule.GetConformer().GetPositions()]
    lengths = sorted(
        ((points[a][0] - points[b][0]) ** 2 + (points[a][1] - points[b][1]) ** 2) ** 0.5 for a, b, _ in bonds
    )
    scale = BOND / (lengths[len(lengths) // 2] if lengths else 1.5)
    left, top = (min((point[axis] for point in points), default=0.0) for axis in (0, 1))
    placed = tuple((round((x - left) * scale + MARGIN, 1), round((y - top) * scale + MARGIN, 1)) for x, y in points)
    return Molecule(symbols, bonds, placed)


def _charge(value: int) -> str:
    if not value:
        return ""
    sign = "+" if value > 0 else "\N{MINUS SIGN}"
    return sign if abs(value) == 1 else f"{abs(value)}{sign}"
