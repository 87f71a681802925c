"""Reactions with known sources of atoms, a tiny ALBERT in a hand-made wheel, and the measurement that joins them."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from graphmask import GraphMaskError
from graphmask.experiments.bench import reactions as bench
from graphmask.experiments.packaged import Packaged
from graphmask.experiments.reactions.model import Question, ask, load
from graphmask.experiments.reactions.scoring import arriving, auc, by_way, hit, into, kept_into, name_of
from graphmask.experiments.reactions.smiles import HALVES, parse, read, tokens_of
from graphmask.methods import get
from graphmask.methods.attention_rollout import AttentionRollout

pytest.importorskip("rdkit")
transformers = pytest.importorskip("transformers")

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "C",
    "N",
    "O",
    "c",
    "n",
    "Cl",
    "Br",
    "(",
    ")",
    "=",
    "#",
    "1",
    ".",
    ">>",
]
#: Two heads, three layers that share their weights, as all layers of an ALBERT do.
HEADS, LAYERS = 2, 3
ESTER = "[CH3:1][C:2](=[O:3])[OH:4].[CH3:5][OH:6]>>[CH3:1][C:2](=[O:3])[O:6][CH3:5]"


def lines() -> list[str]:
    """Acids and alcohols of many lengths."""
    found = []
    for acid in range(1, 7):
        for alcohol in range(1, 7):
            chain = "".join(f"[CH2:{20 + k}]" for k in range(acid))
            other = "".join(f"[CH2:{40 + k}]" for k in range(alcohol))
            rest = f"[CH3:1]{chain}[C:2](=[O:3])"
            found.append(f"{rest}[OH:4].[CH3:5]{other}[OH:6]>>{rest}[O:6]{other}[CH3:5]")
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel as RXNMapper's is laid out, and a table of reactions."""
    folder = tmp_path_factory.mktemp("reactions")
    settings = {
        "vocab_size": len(WORDS),
        "embedding_size": 8,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "initializer_range": 0.6,
        "max_position_embeddings": 64,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AlbertForMaskedLM(transformers.AlbertConfig(**settings))
    weights = model.state_dict()
    weights |= {"albert.pooler.weight": torch.zeros(16, 16), "albert.pooler.bias": torch.zeros(16)}
    del weights["predictions.decoder.bias"]
    content = io.BytesIO()
    torch.save(weights, content)
    wheel = folder / "rxnmapper.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        inside = "rxnmapper/models/some"
        file.writestr(f"{inside}/config.json", json.dumps(settings | {"model_type": "albert"}))
        file.writestr(f"{inside}/vocab.txt", "\n".join(WORDS) + "\n")
        file.writestr(f"{inside}/pytorch_model.bin", content.getvalue())
        file.writestr("rxnmapper/__init__.py", "raise RuntimeError('the code of the package was run')")
    table = folder / "mapped.csv"
    table.write_text("reaction,mapped\n" + "".join(f",{line}\n" for line in lines()))
    return wheel, table


def test_sources_are_those_of_the_numbers() -> None:
    reaction = parse(ESTER)
    assert "".join(reaction.tokens) == "[CLS]CC(=O)O.CO>>COC(C)=O[SEP]"
    tokens = reaction.tokens
    assert [tokens[at] for at in reaction.reactant_atoms] == ["C", "C", "O", "O", "C", "O"]
    # [CLS] C1 C2 ( = O5 ) O7 . C9 O10 >> C12 O13 C14 ( C16 ) = O19 [SEP]
    assert reaction.sources == {12: {9}, 13: {10}, 14: {2}, 16: {1}, 19: {5}}


def test_atoms_that_a_symmetry_exchanges_are_all_right() -> None:
    # Of benzene any carbon, of acetone either methyl group, and any of two equal molecules.
    benzene = parse("[cH:1]1[cH:2][cH:3][cH:4][cH:5][cH:6]1.[Br:7][Br:8]>>[Br:7][c:1]1[cH:2][cH:3][cH:4][cH:5][cH:6]1")
    sizes = {benzene.tokens[at]: len(right) for at, right in benzene.sources.items()}
    assert sizes == {"Br": 2, "c": 6}
    twice = parse("[CH3:1][OH:2].[CH3:3][OH:4]>>[CH3:1][O:2][CH3:3]")
    assert {len(right) for right in twice.sources.values()} == {2}
    ketone = parse("[CH3:1][C:2]([CH3:3])=[O:4]>>[CH3:1][CH:2]([CH3:3])[OH:4]")
    assert sorted(len(right) for right in ketone.sources.values()) == [1, 1, 2, 2]


def test_what_cannot_be_read_is_counted_or_refused(tmp_path: Path) -> None:
    assert tokens_of("CC(=O)Cl.[NH4+]>>Br%12") == ["C", "C", "(", "=", "O", ")", "Cl", ".", "[NH4+]", ">>", "Br", "%12"]
    with pytest.raises(ValueError, match="tokens"):
        tokens_of("C{C")
    path = tmp_path / "mapped.csv"
    path.write_text(f"reaction,mapped\n,{ESTER}\n,no reaction\n,[CH4:1]~[CH4:2]>>[CH3:1][CH3:2]\n,CC>>CO\n")
    found = read(path)
    assert len(found.reactions) == 1
    assert found.lost == {"not readable": 2, "no atom of the product has a source": 1}
    assert read(path, longest=10).lost["too long"] == 1
    path.write_text("reaction\nCC>>CC\n")
    with pytest.raises(GraphMaskError, match="columns reaction and mapped"):
        read(path)
    with pytest.raises(GraphMaskError, match="Expected a CSV file"):
        read(tmp_path / "none.csv")


def test_weights_are_read_from_a_wheel_and_from_its_folder_and_no_code_is_run(files: Any, tmp_path: Path) -> None:
    wheel, table = files
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path)
    questions = [Question(one, min(one.sources)) for one in read(table).reactions[:3]]
    outputs = []
    for where in (wheel, tmp_path):
        model, words = load(where)
        with torch.no_grad():
            outputs.append(ask(model, words.batch(questions)))
    assert torch.equal(*outputs)
    batch = words.batch(questions)
    with torch.no_grad():
        whole = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    for row, (_, position) in enumerate(questions):
        assert torch.equal(outputs[0][row], whole[row, position])
        assert int(batch["input_ids"][row, position]) == WORDS.index("[MASK]")


def test_files_that_are_no_such_package_are_refused(files: Any, tmp_path: Path) -> None:
    with pytest.raises(GraphMaskError, match="Expected the package no-such-package to be installed"):
        Packaged("no-such-package")
    with pytest.raises(GraphMaskError, match="Expected a wheel"):
        Packaged("rxnmapper", tmp_path / "none.whl")
    with pytest.raises(GraphMaskError, match=r"one file .none\.txt."):
        Packaged("rxnmapper", files[0]).read("none.txt")

    class Code:
        def __reduce__(self) -> tuple[Any, ...]:
            return print, ("the file was run",)

    torch.save({"weight": Code()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(GraphMaskError, match="cannot be read"):
        Packaged("rxnmapper", tmp_path).weights("pytorch_model.bin")
    torch.save([1, 2], tmp_path / "pytorch_model.bin")
    with pytest.raises(GraphMaskError, match="tensors by name"):
        Packaged("rxnmapper", tmp_path).weights("pytorch_model.bin")


def test_ways_against_loops_and_against_rollout(files: Any) -> None:
    wheel, table = files
    model, words = load(wheel)
    questions = [Question(one, max(one.sources)) for one in read(table).reactions[:2]]
    batch = words.batch(questions)
    rollout = AttentionRollout(model, ask)
    with rollout.subject.frozen():
        _, arrives = rollout.flows(rollout.case(batch))
    start = 0
    for (reaction, position), found in zip(
        questions, get("attention_weights")(model, ask).explain_all([batch]), strict=True
    ):
        size = len(reaction.tokens)
        dense = torch.zeros(LAYERS, HEADS, size, size, dtype=torch.float64)  # receivers in rows
        for edge, (sender, receiver) in enumerate(found.edge_index.t().tolist()):
            dense[:, int(found.edge_type[edge]), receiver, sender] = found.scores[:, edge].double()
        torch.testing.assert_close(into(found, found.scores, position).double(), dense[:, :, position])
        share = torch.zeros(size, dtype=torch.float64)
        share[position] = 1
        for layer in reversed(range(LAYERS)):
            share = share + share @ dense[layer].mean(0)
        torch.testing.assert_close(arriving(found, found.scores, position), share)
        torch.testing.assert_close(share / 2**LAYERS, arrives[start : start + size].double(), rtol=1e-5, atol=1e-7)
        ways = by_way(found, found.scores, position)
        torch.testing.assert_close(ways["direct"].double(), dense[:, :, position].sum((0, 1)))
        torch.testing.assert_close(ways[name_of(2, 1)].double(), dense[2, 1, position])
        assert len(ways) == 2 + LAYERS * HEADS
        atoms = list(reaction.reactant_atoms)
        right = torch.tensor([at in reaction.sources[position] for at in atoms])
        kept = kept_into(found, position, atoms, right)
        ends = found.edge_index.t().tolist()
        mine = [
            (layer, sender)
            for layer, edge in found.kept.nonzero().tolist()
            for sender, to in [ends[edge]]
            if to == position
        ]
        assert kept["messages"] == sum(sender in atoms for _, sender in mine)
        assert kept["right"] == sum(sender in reaction.sources[position] for _, sender in mine)
        start += size


def test_hits_and_areas() -> None:
    right = torch.tensor([True, False, False, True])
    assert hit(torch.tensor([3.0, 1, 2, 0]), right) == 1
    assert hit(torch.tensor([0.0, 1, 2, 0]), right) == 0
    assert hit(torch.tensor([2.0, 2, 2, 0]), right) == pytest.approx(1 / 3)
    assert hit(torch.zeros(4), right) == 0.5
    assert auc(torch.tensor([3.0, 1, 2, 0]), right) == 0.5
    assert auc(torch.tensor([3.0, 1, 2, 2]), right) == pytest.approx(3.5 / 4)
    assert auc(torch.zeros(4), torch.ones(4, dtype=torch.bool)) is None


def test_it_is_chosen_on_one_half_and_reported_on_the_other(files: Any, tmp_path: Path) -> None:
    wheel, table = files
    size = bench.Size(longest=60, fit=24, questions=6, epochs=2, ig_steps=2)

    def run(half: str) -> dict[str, Any]:
        return bench.measure(half, tmp_path / "out", size, wheel, table, say=lambda _: None)

    with pytest.raises(GraphMaskError, match="Run --part choose first"):
        run(HALVES[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # gates of a fit of few steps find nothing
        first, second = run(HALVES[0]), run(HALVES[1])
    assert first["chosen"] == second["chosen"]
    for name, found in first["methods"].items():
        way = first["chosen"][name]
        assert found["hit"][way] == max(found["hit"].values())
        assert second["methods"][name]["chance"] == pytest.approx(1 / 8, abs=0.1)
    setting = bench.prepare(size, wheel, table)
    choose, report = ({question.reaction.tokens for question in setting.asked[half]} for half in HALVES)
    assert choose.isdisjoint(report)
    assert {question.reaction.tokens for question in setting.fit}.isdisjoint(choose | report)
    assert len(choose) == 6
    assert len(report) == sum(one.half == HALVES[1] for one in read(table).reactions)
    written = (tmp_path / "out" / "explainer.graphmask").stat().st_mtime_ns
    assert run(HALVES[1]) == second
    assert (tmp_path / "out" / "explainer.graphmask").stat().st_mtime_ns == written
    header, table_rows = bench.rows(second)
    assert all(len(row) == len(header) for row in table_rows)
    with pytest.raises(GraphMaskError, match="another in "):
        bench.measure(HALVES[0], tmp_path / "out", bench.Size(longest=60, fit=23), wheel, table)
