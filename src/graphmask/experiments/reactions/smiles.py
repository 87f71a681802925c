"""Reactions as tokens, and for every atom of the product the tokens of the reactant atoms that it can come from."""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from graphmask.errors import GraphMaskError

#: The published tokens of RXNMapper.
TOKEN = re.compile(
    r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
)
CLASSIFY, SEPARATE, MASK, PADDING, UNKNOWN = "[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]"
COLUMNS = ("reaction", "mapped")
#: What is chosen is chosen on the first; figures are of the second.
HALVES = ("choose", "report")


@dataclass(frozen=True)
class Reaction:
    """Tokens from [CLS] to [SEP]; atoms are named by the positions of their tokens."""

    tokens: tuple[str, ...]
    reactant_atoms: tuple[int, ...]  #: of everything left of the arrow, reagents included
    sources: dict[int, frozenset[int]]  #: by atom of the product, the reactant atoms that are right
    half: str


@dataclass
class Read:
    """What was read, and why what was left out could not be used."""

    reactions: list[Reaction]
    lost: Counter[str]


class _Molecule(NamedTuple):
    """A compound as canonical SMILES, and of its atoms, as they stand there, the number and the symmetry class."""

    smiles: str
    numbers: list[int]
    classes: list[int]


def tokens_of(smiles: str) -> list[str]:
    tokens: list[str] = TOKEN.findall(smiles)
    if "".join(tokens) != smiles:
        raise ValueError(f"{smiles!r} is not made of tokens")
    return tokens


def is_atom(token: str) -> bool:
    return token[0] == "[" or token[0].isalpha()


def read(path: Path, *, longest: int | None = None) -> Read:
    """The reactions of a file with a column ``mapped``: SMILES in which an atom has the same number on both sides.

    Args:
        path: CSV.
        longest: longer reactions, in tokens with [CLS] and [SEP], are left out.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise GraphMaskError(f"Expected a CSV file of reactions at {path}, found none to read ({error}).") from error
    if not rows or any(rows[0].get(column) is None for column in COLUMNS):
        raise GraphMaskError(f"Expected rows with the columns {' and '.join(COLUMNS)} in {path}, found otherwise.")
    result = Read([], Counter())
    for row in rows:
        try:
            reaction = parse(row["mapped"] or "")
        except ValueError:
            result.lost["not readable"] += 1
            continue
        if not reaction.sources:
            result.lost["no atom of the product has a source"] += 1
        elif longest is not None and len(reaction.tokens) > longest:
            result.lost["too long"] += 1
        else:
            result.reactions.append(reaction)
    return result


def parse(mapped: str) -> Reaction:
    """Canonical compounds, reactants sorted, as RXNMapper was trained on; ValueError if that cannot be had.

    Atoms that no chemist could tell apart, those that a symmetry of their molecule exchanges and those of two equal
    molecules, are all right where one of them is.
    """
    parts = mapped.split(">")
    if len(parts) != 3 or "~" in mapped:
        raise ValueError(f"{mapped!r} is not a reaction of plain compounds")
    left = sorted(molecule(one) for part in parts[:2] if part for one in part.split("."))
    right = sorted(molecule(one) for one in parts[2].split("."))
    of_left, of_right = (".".join(one.smiles for one in side) for side in (left, right))
    tokens = [CLASSIFY, *tokens_of(f"{of_left}>>{of_right}"), SEPARATE]
    arrow = tokens.index(">>")
    atoms = [at for at, token in enumerate(tokens) if at not in (0, len(tokens) - 1) and is_atom(token)]
    reactant_atoms, product_atoms = [at for at in atoms if at < arrow], [at for at in atoms if at > arrow]
    numbers = [number for one in right for number in one.numbers]
    if sum(len(one.numbers) for one in left) != len(reactant_atoms) or len(numbers) != len(product_atoms):
        raise ValueError(f"{mapped!r} has other atoms than tokens")
    places: dict[tuple[str, int], set[int]] = {}
    kinds: dict[int, tuple[str, int]] = {}
    atoms_in_turn = iter(reactant_atoms)
    for one in left:
        for number, symmetry in zip(one.numbers, one.classes, strict=True):
            places.setdefault((one.smiles, symmetry), set()).add(next(atoms_in_turn))
            if number:
                kinds[number] = one.smiles, symmetry
    pairs = zip(product_atoms, numbers, strict=True)
    sources = {at: frozenset(places[kinds[number]]) for at, number in pairs if number in kinds}
    half = HALVES[sha256(f"{of_left}>>{of_right}".encode()).digest()[0] % 2]
    return Reaction(tuple(tokens), tuple(reactant_atoms), sources, half)


def molecule(mapped: str) -> _Molecule:
    """One compound with atom numbers (0 where an atom has none)."""
    try:
        from rdkit import Chem, rdBase
    except ImportError:
        raise GraphMaskError("Expected rdkit to be installed. Try: pip install graphmask[chem]") from None
    with rdBase.BlockLogs():
        compound = Chem.MolFromSmiles(mapped)
    if compound is None:
        raise ValueError(f"{mapped!r} is not a molecule")
    numbers = [atom.GetAtomMapNum() for atom in compound.GetAtoms()]
    for atom in compound.GetAtoms():
        atom.SetAtomMapNum(0)
    smiles = Chem.MolToSmiles(compound)
    order = [int(at) for at in re.findall(r"\d+", compound.GetProp("_smilesAtomOutputOrder"))]
    classes = list(Chem.CanonicalRankAtoms(compound, breakTies=False))
    return _Molecule(smiles, [numbers[at] for at in order], [classes[at] for at in order])
