"""Files: whole or not at all, and never anything else than what was asked for."""

import copy
import json
import math
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from graphmask import Explanation, GraphMask, GraphMaskError, files, load, masked
from graphmask.graphs.batches import default_forward
from graphmask.graphs.sites import Site
from reference import toy
from reference.trap import Trap

TENSORS = {"a": torch.arange(12.0).view(3, 4), "flags": torch.tensor([True, False]), "empty": torch.zeros(2, 0)}
DESCRIPTION = {"name": "ünïcode", "numbers": [1, 2.5, None], "nested": {"yes": True}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file.graphmask"
    files.write(path, "thing", TENSORS, DESCRIPTION)
    return path


def test_what_is_written_is_read(path: Path) -> None:
    tensors, description = files.read(path, "thing")
    assert description == DESCRIPTION
    assert tensors.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert tensors[name].dtype == value.dtype
        assert torch.equal(tensors[name], value)


def test_views_transposes_and_gradients_are_written_by_value(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(3, 4)
    parameter = nn.Parameter(torch.ones(3))
    together = {"whole": whole, "same": whole, "row": whole[1], "turned": whole.t(), "parameter": parameter}
    files.write(tmp_path / "x", "thing", together, {})
    tensors, _ = files.read(tmp_path / "x", "thing")
    for name, value in together.items():
        assert torch.equal(tensors[name], value.detach()), name


def test_directories_are_made_and_nothing_is_left_beside(tmp_path: Path) -> None:
    files.write(tmp_path / "deep" / "er" / "x", "thing", TENSORS, {})
    assert [p.name for p in (tmp_path / "deep" / "er").iterdir()] == ["x"]


def test_permissions_are_the_users_own(path: Path) -> None:
    mask = os.umask(0o027)
    try:
        files.write(path, "thing", TENSORS, {})
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o640


# Never half a file -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["replace", "fsync", "chmod", "fdopen"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_crash_leaves_the_old_file_and_no_other(
    path: Path, function: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def crash(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(files.os, function, crash)
    with pytest.raises(type(error)):
        files.write(path, "thing", {"a": torch.zeros(100)}, {})
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_description_that_cannot_be_written_touches_nothing(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(TypeError):
        files.write(path, "thing", TENSORS, {"function": print})
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


# Bad files ---------------------------------------------------------------------------------------------------


def test_truncated_anywhere(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    places = {*range(0, len(content), max(len(content) // 60, 1)), 1, 7, 8, 9, len(content) - 1}
    for place in sorted(places):
        cut = tmp_path / "cut"
        cut.write_bytes(content[:place])
        with pytest.raises(GraphMaskError, match=r"Expected a GraphMask thing at .*cut, found a truncated or foreign"):
            files.read(cut, "thing")


def test_longer_than_written(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(GraphMaskError, match="truncated or foreign"):
        files.read(path, "thing")


def _torch_file(path: Path) -> None:
    torch.save({"a": torch.zeros(3), "trap": Trap()}, path)


def _header(content: bytes) -> dict[str, Any]:
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length])


FOREIGN: dict[str, Callable[[Path], object]] = {
    "empty": lambda p: p.write_bytes(b""),
    "zeros": lambda p: p.write_bytes(bytes(5000)),
    "noise": lambda p: p.write_bytes(bytes(i * 7919 % 251 for i in range(5000))),
    "text": lambda p: p.write_text("hello " * 100),
    "json": lambda p: p.write_text('{"graphmask": "explainer"}'),
    "huge header": lambda p: p.write_bytes(struct.pack("<Q", 1 << 62) + b"{}"),
    "pickle": lambda p: p.write_bytes(pickle.dumps(Trap())),
    "torch.save": _torch_file,
    "safetensors without metadata": lambda p: safetensors.torch.save_file({"a": torch.zeros(3)}, p),
    "safetensors of others": lambda p: safetensors.torch.save_file({"a": torch.zeros(3)}, p, metadata={"format": "pt"}),
}


@pytest.mark.parametrize("kind", ["explainer", "explanation"])
@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    FOREIGN[name](path)
    reading = (lambda: load(path, toy.Toy())) if kind == "explainer" else (lambda: Explanation.load(path))
    with pytest.raises(GraphMaskError, match=rf"Expected a GraphMask {kind} at .*foreign, found"):
        reading()
    assert not Trap.sprung


def test_no_such_file_and_directories(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(GraphMaskError, match="found no such file"):
            files.read(path, "thing")


def test_nothing_is_ever_unpickled(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("unpickled")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, refuse)
    files.read(path, "thing")


def _rewritten(path: Path, **metadata: str) -> None:
    header = {"graphmask": "thing", "version": str(files.VERSION), "description": "{}"} | metadata
    header["hash"] = files._hash(TENSORS, header["description"].removeprefix("absent"))
    safetensors.torch.save_file(TENSORS, path, metadata={k: v for k, v in header.items() if v != "absent"})


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a": ', "}"), ('["[[", ', "]")])
def test_lists_in_lists(opening: str, closing: str, tmp_path: Path) -> None:
    """Without an end to it, what goes through them would come to the end of Python's calls, or of the stack."""
    most = files.JSON_DEPTH_AT_MOST
    for depth in (1, most):
        (tmp_path / "x").write_text(opening * depth + "1" + closing * depth)
        files.read_json(tmp_path / "x")
    for depth in (most + 1, 600, 100_000):
        (tmp_path / "x").write_text(opening * depth + "1" + closing * depth)
        with pytest.raises(GraphMaskError, match=r"Expected (at most 100 lists in lists in the )?JSON at"):
            files.read_json(tmp_path / "x")
    (tmp_path / "x").write_text(json.dumps(["[" * 1000] * 1000))  # brackets in texts are none
    assert len(files.read_json(tmp_path / "x")) == 1000


@pytest.mark.parametrize("version", ["0", "2", "absent", "1.0"])
def test_other_versions(path: Path, version: str) -> None:
    _rewritten(path, version=version)
    with pytest.raises(GraphMaskError, match=r"Expected version 1 of the file format.*Install the version"):
        files.read(path, "thing")


@pytest.mark.parametrize("description", ["absent", "", "{", "[1"])
def test_descriptions_that_cannot_be_read(path: Path, description: str) -> None:
    _rewritten(path, description=description)
    with pytest.raises(GraphMaskError, match=r"Expected a description in the header"):
        files.read(path, "thing")


@pytest.mark.parametrize("description", ["{}", "[]", "3", '{"structure": []}', '{"structure": [1], "x": 2}'])
@pytest.mark.parametrize(
    "kind",
    ["explanation", "explainer"],
)
def test_contents_of_something_else(path: Path, description: str, kind: str) -> None:
    """Right kind, right version, wrong contents: still our error, not a KeyError."""
    _rewritten(path, graphmask=kind, description=description)
    reading = (lambda: load(path, toy.Toy())) if kind == "explainer" else (lambda: Explanation.load(path))
    with pytest.raises(GraphMaskError, match=r"Expected"):
        reading()


def test_a_kind_is_not_another(path: Path) -> None:
    with pytest.raises(GraphMaskError, match=r"Expected a GraphMask explainer at .*, found a GraphMask thing"):
        files.read(path, "explainer")


# Explainers and explanations ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted() -> GraphMask:
    explainer = GraphMask(toy.Toy(), divergence="kl")
    explainer.fit(toy.loader(2, 8), epochs=2, progress=False)
    return explainer


def test_explainer_and_explanation_are_not_confused(fitted: GraphMask, tmp_path: Path) -> None:
    fitted.save(tmp_path / "explainer")
    fitted.explain(toy.graph(1), allow_infeasible=True).save(tmp_path / "explanation")
    with pytest.raises(GraphMaskError, match=r"Expected a GraphMask explanation at .*, found a GraphMask explainer"):
        Explanation.load(tmp_path / "explainer")
    with pytest.raises(GraphMaskError, match=r"Expected a GraphMask explainer at .*, found a GraphMask explanation"):
        load(tmp_path / "explanation", fitted.model)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("calls", [[0]]),
        ("calls", [1000]),
        ("calls", ["0"]),
        ("name", 3),
        ("types", [[["a", 1, "b"]]]),
        ("stand_in", {"message": "4"}),
    ],
)
def test_sites_of_other_types(fitted: GraphMask, tmp_path: Path, key: str, value: object) -> None:
    """They would be noticed while a graph is explained, where no file is named."""
    fitted.save(tmp_path / "x")
    tensors, description = files.read(tmp_path / "x", "explainer")
    description["sites"][0][key] = value
    files.write(tmp_path / "x", "explainer", tensors, description)
    with pytest.raises(GraphMaskError, match=r"Expected a GraphMask explainer at .*x, found contents that do not fit"):
        load(tmp_path / "x", fitted.model)


@pytest.mark.parametrize("hidden", [0, -1, 10**30, 0.5, None])
def test_gates_of_a_width_that_none_has(fitted: GraphMask, tmp_path: Path, hidden: object) -> None:
    fitted.save(tmp_path / "x")
    tensors, description = files.read(tmp_path / "x", "explainer")
    files.write(tmp_path / "x", "explainer", tensors, {**description, "hidden": hidden})
    with pytest.raises(GraphMaskError, match=r"Expected a GraphMask explainer at .*x, found contents that do not fit"):
        load(tmp_path / "x", fitted.model)


@pytest.mark.parametrize("count", [-1, 2**63, 10**30, 0.5, "5", None])
def test_numbers_of_nodes_that_no_graph_has(fitted: GraphMask, tmp_path: Path, count: object) -> None:
    fitted.explain(toy.graph(1), allow_infeasible=True).save(tmp_path / "x")
    tensors, description = files.read(tmp_path / "x", "explanation")
    files.write(tmp_path / "x", "explanation", tensors, {**description, "num_nodes": count})
    with pytest.raises(
        GraphMaskError, match=r"Expected a GraphMask explanation at .*x, found contents that do not fit"
    ):
        Explanation.load(tmp_path / "x")


SITE = {"name": "a", "module": "rgcn", "calls": [0], "reverse": False}
#: What is said or held instead, under a hash that is right again.
OTHERWISE: dict[str, tuple[dict[str, object], dict[str, torch.Tensor]]] = {
    "an edge to a node that is not there": ({}, {"edge_index": torch.tensor([[0, 1], [1, 2**31]])}),
    "an edge from a node below 0": ({}, {"edge_index": torch.tensor([[0, -1], [1, 1]])}),
    "ends that are no integers": ({}, {"edge_index": torch.tensor([[0.0, 1.0], [1.0, 0.0]])}),
    "flags that are numbers": ({}, {"kept": torch.ones(1, 2)}),
    "scores that are flags": ({}, {"scores": torch.ones(1, 2, dtype=torch.bool)}),
    "outputs that are flags": ({}, {"original": torch.ones(1, 2, dtype=torch.bool)}),
    "outputs of two shapes": ({}, {"masked": torch.ones(2, 2)}),
    "a tensor that none has": ({}, {"another": torch.ones(1)}),
    "notes in a list": ({"info": []}, {}),
    "a reason that is no text": ({"info": {"graphmask.unrepaired": ["x"]}}, {}),
    "modules that are no texts": ({"info": {"graphmask.unseen": [1]}}, {}),
    "nodes asked about that are not there": ({"info": {"graphmask.asked": [3]}}, {}),
    "rows asked about that are not there": ({"index": [-1]}, {}),
    "a method that is no text": ({"method": 5}, {}),
    "a direction that is none": ({"structure": [{**SITE, "reverse": {}}]}, {}),
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_explanations_that_say_what_cannot_be(what: str, tmp_path: Path) -> None:
    """Refused where they are read, and not by whoever looks at one of their edges later."""
    flags = torch.ones(1, 2, dtype=torch.bool)
    Explanation(
        edge_index=torch.tensor([[0, 1], [1, 2]]),
        kept=flags,
        scores=flags.float(),
        carried=flags,
        original=torch.zeros(1, 2),
        masked=torch.zeros(1, 2),
        divergence=0.0,
        flips=0.0,
        tolerance=0.1,
        structure=(Site("a", "rgcn", (0,)),),
        baselines=(torch.zeros(2),),
        num_nodes=3,
    ).save(tmp_path / "x")
    assert Explanation.load(tmp_path / "x").num_nodes == 3
    tensors, description = files.read(tmp_path / "x", "explanation")
    said, held = OTHERWISE[what]
    files.write(tmp_path / "x", "explanation", tensors | held, description | said)
    with pytest.raises(GraphMaskError, match=r"GraphMask explanation at .*x, found contents that do not fit"):
        Explanation.load(tmp_path / "x")


def test_many_nodes_without_an_edge_are_not_drawn(fitted: GraphMask, tmp_path: Path) -> None:
    fitted.explain(toy.graph(1), allow_infeasible=True).save(tmp_path / "x")
    tensors, description = files.read(tmp_path / "x", "explanation")
    files.write(tmp_path / "x", "explanation", tensors, {**description, "num_nodes": 10**12})
    read = Explanation.load(tmp_path / "x")
    for draw in (lambda: read.to_html(tmp_path / "page.html"), read._repr_html_):
        with pytest.raises(GraphMaskError, match="Expected at most 100,000 nodes to draw beside"):
            draw()
    with pytest.raises(GraphMaskError, match="Expected at most 10,000,000 nodes for networkx"):
        read.to_networkx()
    assert read.paths(10**11) == []
    first = replace(read, num_nodes=int(read.edge_index.max()) + 1)
    assert all(read.paths(node) == first.paths(node) for node in range(first.num_nodes))


def test_an_explanation_of_another_model_masks_none(fitted: GraphMask) -> None:
    graph = toy.graph(1)
    made = fitted.explain(graph, allow_infeasible=True, repair=False)
    site = made.structure[0]
    others = {
        "a baseline of": replace(made, baselines=tuple(b.new_zeros(b.numel() + 1) for b in made.baselines)),
        "a site for call": replace(made, structure=(replace(site, calls=(7,)), *made.structure[1:])),
    }
    for told, other in others.items():
        with pytest.raises(GraphMaskError, match=f"Expected {told}"), masked(fitted.model, other):
            default_forward(fitted.model, graph)


def test_truncated_explainer(fitted: GraphMask, tmp_path: Path) -> None:
    fitted.save(tmp_path / "x")
    content = (tmp_path / "x").read_bytes()
    for place in range(0, len(content), len(content) // 25):
        (tmp_path / "x").write_bytes(content[:place])
        with pytest.raises(GraphMaskError, match="truncated or foreign"):
            load(tmp_path / "x", fitted.model)


def test_saved_then_loaded_explains_the_same(fitted: GraphMask, tmp_path: Path) -> None:
    fitted.save(tmp_path / "x")
    again = load(tmp_path / "x", fitted.model)
    assert again.history == fitted.history
    for seed in range(3):
        a, b = (e.explain(toy.graph(seed), allow_infeasible=True) for e in (fitted, again))
        assert torch.equal(a.kept, b.kept)
        assert torch.equal(a.scores, b.scores)
        assert torch.equal(a.masked, b.masked)
        assert a.divergence == b.divergence


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["baselines.0", "gates.0.out_bias", "gates.1.shift", "gates.1.weights.message"])
def test_gates_and_baselines_that_are_not_finite(fitted: GraphMask, tmp_path: Path, name: str, value: float) -> None:
    spoilt = copy.deepcopy(fitted)
    assert spoilt.probe is not None
    spoilt.probe.state_dict()[name].view(-1)[0] = value
    spoilt.save(tmp_path / "x")
    with pytest.raises(GraphMaskError, match=rf"explainer at .*x, found .*NaN or infinity in {name}"):
        load(tmp_path / "x", fitted.model)
    if name.endswith("message") or (math.isnan(value) and not name.startswith("baselines")):
        with pytest.raises(GraphMaskError, match="finite numbers from the gates, got NaN or infinity"):
            spoilt.explain(toy.graph(1), allow_infeasible=True)


def test_no_weights_of_the_model_are_in_the_file(fitted: GraphMask, tmp_path: Path) -> None:
    fitted.save(tmp_path / "x")
    names = _header((tmp_path / "x").read_bytes()).keys()
    assert not any("first" in name or "second" in name for name in names)


def test_another_model_is_refused(fitted: GraphMask, tmp_path: Path) -> None:
    fitted.save(tmp_path / "x")
    other = copy.deepcopy(fitted.model)
    with torch.no_grad():
        other.get_parameter("second.weight")[2, 2] += 1e-6
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(GraphMaskError, match=r"Expected the model that .* was made for, got one with other parameters"):
        load(tmp_path / "x", other)
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())


# Fingerprints ------------------------------------------------------------------------------------------------


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("scalar", torch.tensor(3))
        self.small = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))


def test_fingerprint_depends_on_every_number() -> None:
    torch.manual_seed(0)
    model = Everything()
    first = files.fingerprint(model)
    assert files.fingerprint(copy.deepcopy(model)) == first
    assert len(first) == 64
    seen = {first}
    for name, value in model.state_dict().items():
        for position in range(value.numel()):
            changed = copy.deepcopy(model)
            entry = changed.state_dict()[name].view(-1)
            with torch.no_grad():
                entry[position] = not entry[position] if value.dtype == torch.bool else entry[position] + 1
            seen.add(files.fingerprint(changed))
    assert len(seen) == 1 + sum(value.numel() for value in model.state_dict().values())


def test_fingerprint_depends_on_names_shapes_and_types() -> None:
    def model(name: str, value: torch.Tensor) -> nn.Module:
        module = nn.Module()
        module.register_buffer(name, value)
        return module

    variants = [
        model("a", torch.zeros(4)),
        model("b", torch.zeros(4)),
        model("a", torch.zeros(2, 2)),
        model("a", torch.zeros(4, dtype=torch.int32)),
        model("a", torch.zeros(2, dtype=torch.double)),
    ]
    assert len({files.fingerprint(variant) for variant in variants}) == len(variants)


def test_fingerprint_does_not_depend_on_mode_or_gradients() -> None:
    model = Everything()
    before = files.fingerprint(model)
    model.eval().requires_grad_(False)
    assert files.fingerprint(model) == before
