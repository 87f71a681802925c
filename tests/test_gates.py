"""Gate networks against the equations of appendix A, one edge at a time in float64."""

import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from graphmask import GraphMask, GraphMaskError
from graphmask.fitting.training import Recipe
from graphmask.gates import BilinearGate, EdgeGate, SiteSpec, build
from graphmask.gates import networks as gates
from graphmask.ops import kernels
from graphmask.ops.kernels import clamp
from graphmask.tapping.messages import Messages
from graphmask.tapping.taps import MatrixCall
from reference import gates as literal
from reference import toy

HIDDEN = 6


def rand(generator: torch.Generator, *size: int) -> Tensor:
    return torch.randn(size, generator=generator, dtype=torch.double)


def edge_messages(seed: int = 0, edges: int = 11, nodes: int = 5, shape: str = "EC", piece: int = 0) -> Messages:
    """Random messages with an attribute and a relation; ``shape`` says where heads or stacks are."""
    g = torch.Generator().manual_seed(seed)
    size = {"EC": (edges, 3), "EHC": (edges, 2, 3), "SEC": (2, edges, 3), "E": (edges,)}[shape]
    states = 2 + 3 * rand(g, nodes, 4)
    return Messages(
        site=0,
        piece=piece,
        value=5 * rand(g, *size) - 1,
        edge_dim=1 if shape == "SEC" else 0,
        source=torch.randint(nodes, (edges,), generator=g),
        target=torch.randint(nodes, (edges,), generator=g),
        edges=None,
        source_states=states,
        target_states=states,
        features={"edge_attr": rand(g, edges, 2)},
        categories={"edge_type": torch.randint(5, (edges,), generator=g)},
    )


def scrambled(gate: Any, seed: int = 1) -> Any:
    """Every parameter random, so that none can be left out unnoticed."""
    g = torch.Generator().manual_seed(seed)
    gate.double()
    with torch.no_grad():
        for parameter in gate.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g, dtype=torch.double) * 0.7)
    return gate


def fitted(pieces: list[Messages]) -> EdgeGate:
    gate = scrambled(build(SiteSpec.of(pieces), HIDDEN, torch.Generator().manual_seed(0)))
    gate.standardise(pieces)
    return gate


def literal_message(messages: Messages, edge: int) -> list[float]:
    """What is sent along one edge, as one list: heads and stacks one after the other."""
    return messages.value.select(messages.edge_dim, edge).flatten().tolist()


def literal_locations(gate: EdgeGate, pieces: list[Messages], messages: Messages) -> list[float]:
    """W1 as one concatenated matrix over [h_u, h_v, m, features], standardised on ``pieces``."""
    keys = list(gate.weights)
    w1 = torch.cat([gate.weights[key] for key in keys], 1).tolist()

    def sees(m: Messages, edge: int) -> dict[str, list[float]]:
        seen = {"message": literal_message(m, edge)}
        if m.source_states is not None:
            seen["source"] = m.source_states[m.source[edge]].tolist()
        if m.target_states is not None:
            seen["target"] = m.target_states[m.target[edge]].tolist()
        return seen | {f"feature:{key}": value[edge].tolist() for key, value in m.features.items()}

    moments = {}
    for key in keys:
        if key in ("source", "target"):  # once per node, not once per edge
            states = pieces[0].source_states if key == "source" else pieces[0].target_states
            assert states is not None
            rows = states.tolist()
        else:
            rows = [sees(m, edge)[key] for m in pieces for edge in range(m.source.numel())]
        moments[key] = literal.standardiser(rows)
    result = []
    for edge in range(messages.source.numel()):
        seen = sees(messages, edge)
        q = [number for key in keys for number in literal.standardise(seen[key], moments[key])]
        extra = torch.zeros(HIDDEN, dtype=torch.double)
        for key, values in messages.categories.items():
            table = gate.tables[f"category:{key}"]
            extra = extra + table[int(values[edge]) % table.shape[0]]
        if "piece" in gate.tables:
            extra = extra + gate.tables["piece"][messages.piece]
        norm = gate.norm.weight.tolist(), gate.norm.bias.tolist()
        result.append(
            literal.edge_location(
                q, w1, gate.bias.tolist(), extra.tolist(), norm, gate.out.tolist(), float(gate.out_bias.detach())
            )
        )
    return result


def check_literal(gate: EdgeGate, pieces: list[Messages], messages: Messages) -> Tensor:
    """Both paths of the gate, with gradient and in blocks without, are the literal equation."""
    expected = literal_locations(gate, pieces, messages)
    location = gate.raw(messages)
    with torch.no_grad():
        blocked = gate.raw(messages)
    assert location.requires_grad
    assert not blocked.requires_grad
    assert location.tolist() == pytest.approx(expected, abs=1e-9)
    assert blocked.tolist() == pytest.approx(expected, abs=1e-9)
    return location.detach()


@pytest.mark.parametrize("shape", ["EC", "EHC", "SEC", "E"])
def test_edge_gate_is_the_papers_equation(shape: str) -> None:
    pieces = [edge_messages(shape=shape)]
    location = check_literal(fitted(pieces), pieces, edge_messages(seed=3, edges=17, shape=shape))
    assert float(location.std()) > 0.1  # it does tell edges apart


def test_senders_and_receivers_of_different_kinds() -> None:
    g = torch.Generator().manual_seed(9)
    bipartite = replace(edge_messages(), target_states=rand(g, 5, 2))
    check_literal(fitted([bipartite]), [bipartite], bipartite)


@pytest.mark.parametrize("missing", [("source_states",), ("target_states",), ("source_states", "target_states")])
def test_layers_that_do_not_know_their_nodes(missing: tuple[str, ...]) -> None:
    messages = replace(edge_messages(), **dict.fromkeys(missing))
    gate = fitted([messages])
    assert not {name.removesuffix("_states") for name in missing} & set(gate.weights)
    check_literal(gate, [messages], messages)


def test_nothing_but_messages() -> None:
    messages = replace(edge_messages(), source_states=None, target_states=None, features={}, categories={})
    check_literal(fitted([messages]), [messages], messages)


def test_pieces_have_their_own_embedding_and_share_the_standardisation() -> None:
    pieces = [edge_messages(seed=1, edges=7), edge_messages(seed=2, edges=9, piece=1)]
    pieces[1].source_states = pieces[1].target_states = pieces[0].source_states  # one layer, one set of nodes
    gate = fitted(pieces)
    first = check_literal(gate, pieces, pieces[0])
    as_second = gate.raw(replace(pieces[0], piece=1)).detach()
    check_literal(gate, pieces, pieces[1])
    assert float((first - as_second).abs().max()) > 0.1


def test_blocks_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = edge_messages(edges=23)
    gate = fitted([messages])
    whole = gate.raw(messages).detach()
    monkeypatch.setattr(kernels, "BLOCK", 5)
    with torch.no_grad():
        assert torch.allclose(gate.raw(messages), whole, atol=1e-12)
        assert gate.raw(edge_messages(edges=0)).shape == (0,)
    assert gate.raw(edge_messages(edges=0)).shape == (0,)


def plain(gate: EdgeGate, messages: Messages) -> Tensor:
    """The same in plain PyTorch, with one concatenated matrix, for its gradients."""
    assert messages.source_states is not None
    assert messages.target_states is not None
    seen = {
        "source": messages.source_states[messages.source],
        "target": messages.target_states[messages.target],
        "message": messages.flat(),
        "feature:edge_attr": messages.features["edge_attr"],
    }
    q = torch.cat([(seen[k] - gate.get_buffer(f"mean:{k}")) * gate.get_buffer(f"scale:{k}") for k in gate.weights], 1)
    hidden = q @ torch.cat([gate.weights[key] for key in gate.weights], 1).t() + gate.bias
    hidden = hidden + gate.tables["category:edge_type"][messages.categories["edge_type"]]
    if "piece" in gate.tables:
        hidden = hidden + gate.tables["piece"][messages.piece]
    return clamp(gate.norm(hidden).relu() @ gate.out + gate.out_bias)


@pytest.mark.parametrize("shape", ["EC", "EHC", "SEC"])
@pytest.mark.parametrize("block", [5, 4096])
def test_gradients_are_those_of_the_equation(shape: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "BLOCK", block)
    pieces = [edge_messages(edges=23, shape=shape), edge_messages(seed=2, edges=9, shape=shape, piece=1)]
    gate = fitted(pieces)
    upstream = rand(torch.Generator().manual_seed(8), 23)
    names, parameters = zip(*gate.named_parameters(), strict=True)
    found = torch.autograd.grad(gate.raw(pieces[0]), parameters, upstream)
    expected = torch.autograd.grad(plain(gate, pieces[0]), parameters, upstream)
    for name, a, b in zip(names, found, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-10), name
        assert float(b.abs().max()) > 1e-3, name


@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_a_step_learns_from_the_edges_it_trains_alone(dtype: torch.dtype) -> None:
    """Every parameter, the constant too: else the price of all edges would weigh against what some of them do."""
    messages = edge_messages(edges=23)
    gate = scrambled(build(SiteSpec.of([messages]), 32, torch.Generator().manual_seed(0)))
    with torch.no_grad():
        gate.out.mul_(0.2)  # within the limits, most of them
    gate.standardise([messages])
    upstream = rand(torch.Generator().manual_seed(8), 23)
    some = torch.zeros_like(upstream)
    some[1::4] = upstream[1::4]
    names, parameters = zip(*gate.named_parameters(), strict=True)
    expected = torch.autograd.grad(plain(gate, messages), parameters, some)
    gate.to(dtype)
    found = torch.autograd.grad(gate.raw(messages, slice(1, None, 4)), list(gate.parameters()), upstream.to(dtype))
    for name, a, b in zip(names, found, expected, strict=True):
        assert torch.allclose(a.double(), b, rtol=1e-3, atol=1e-10 if dtype == torch.double else 1e-4), name
        assert float(b.abs().max()) > 1e-3, name


def test_messages_are_let_go_before_the_backward_pass() -> None:
    """Of a large graph only what is trained is kept: messages of all edges may not fit into memory twice."""
    memory = edge_messages(edges=23).value.numpy().copy()
    messages = replace(edge_messages(edges=23), value=torch.from_numpy(memory))
    gate = fitted([messages])
    remembered = weakref.ref(memory)
    location = gate.raw(messages, slice(1, None, 4))
    del messages, memory
    assert remembered() is None
    location.sum().backward()
    assert float(gate.weights["message"].grad.abs().max()) > 1e-3


def test_inputs_are_standardised() -> None:
    """Scaling and moving an input before the fit changes nothing after it."""
    messages = edge_messages()
    assert messages.source_states is not None
    moved_states = messages.source_states * 100 - 7
    moved = replace(
        messages,
        value=messages.value * 1000 + 50,
        source_states=moved_states,
        target_states=moved_states,
        features={"edge_attr": messages.features["edge_attr"] / 30 + 2},
    )
    assert torch.allclose(fitted([messages]).raw(messages), fitted([moved]).raw(moved), atol=1e-9)


def test_a_feature_that_never_varies_is_left_out() -> None:
    messages = edge_messages()
    messages.features["edge_attr"][:, 1] = 4.0
    gate = fitted([messages])
    location = check_literal(gate, [messages], messages)
    later = replace(messages, features={"edge_attr": messages.features["edge_attr"].clone()})
    later.features["edge_attr"][:, 1] = 1e6
    assert torch.allclose(gate.raw(later).detach(), location, atol=1e-9)


def test_relations_beyond_the_table_share_its_rows() -> None:
    messages = edge_messages()
    gate = fitted([messages])
    rows = gate.tables["category:edge_type"].shape[0]
    assert rows == 64
    wrapped = replace(messages, categories={"edge_type": messages.categories["edge_type"] + 3 * rows})
    assert torch.equal(gate.raw(wrapped), gate.raw(messages))
    many = replace(messages, num_relations=200)
    assert SiteSpec.of([many]).categories == {"edge_type": 200}


def test_shift_is_subtracted_after_the_clamp() -> None:
    messages = edge_messages()
    gate = fitted([messages])
    gate.shift.fill_(1.25)
    assert torch.allclose(gate(messages), gate.raw(messages) - 1.25, atol=1e-12)


def test_gates_start_open() -> None:
    for seed in range(5):
        messages = replace(edge_messages(seed=seed, edges=50), value=torch.randn(50, 3))
        gate = build(SiteSpec.of([messages]), 32, torch.Generator().manual_seed(seed))
        gate.standardise([messages])
        location = gate(messages)
        assert bool((location > 0).all())
        assert float(location.detach().mean()) == pytest.approx(gates.INITIAL_LOCATION, abs=0.7)


@pytest.mark.parametrize("change", ["message", "source", "edge_attr", "no attribute"])
def test_other_sizes_than_fitted_are_refused(change: str) -> None:
    messages = edge_messages()
    gate = fitted([messages])
    changed = {
        "message": replace(messages, value=messages.value[:, :2]),
        "source": replace(messages, source_states=None),
        "edge_attr": replace(messages, features={"edge_attr": messages.features["edge_attr"][:, :1]}),
        "no attribute": replace(messages, features={}),
    }[change]
    with pytest.raises(GraphMaskError, match=r"Expected \d feature|Expected \d .* feature"):
        gate.raw(changed)


def test_a_missing_relation_is_refused() -> None:
    messages = edge_messages()
    gate = fitted([messages])
    with pytest.raises(GraphMaskError, match="edge_type"):
        gate.raw(replace(messages, categories={}))


@pytest.mark.parametrize(
    ("location", "gradient", "expected"),
    [
        (4.0, -1.0, 0.0),  # descent would raise it further: blocked
        (4.0, 1.0, 1.0),
        (-4.0, 1.0, 0.0),
        (-4.0, -1.0, -1.0),
        (3.0, -1.0, -1.0),
        (-3.0, 1.0, 1.0),
        (0.5, -2.0, -2.0),
        (0.5, 2.0, 2.0),
    ],
)
def test_clamp_blocks_only_gradients_that_point_outward(location: float, gradient: float, expected: float) -> None:
    leaf = torch.tensor([location], requires_grad=True)
    value = clamp(leaf)
    assert value.tolist() == [literal.clamp(location)]
    value.backward(torch.tensor([gradient]))
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [expected]


def test_clamped_locations_come_back() -> None:
    """A saturated gate can be moved again, unlike with torch.clamp."""
    leaf = nn.Parameter(torch.tensor([10.0]))
    optimiser = torch.optim.SGD([leaf], lr=1.0)
    for _ in range(20):
        optimiser.zero_grad()
        clamp(leaf).sum().backward()
        optimiser.step()
    # Down one by one, until at the other bound the gradient points outward and stops.
    assert leaf.tolist() == [-4.0]


# Matrix form ---------------------------------------------------------------------------------------------------


def matrix_messages(
    seed: int = 0, batch: int = 2, relations: int = 3, count: int = 5, *, sparse: bool = False, shared: bool = False
) -> Messages:
    g = torch.Generator().manual_seed(seed)
    adjacency = rand(g, batch, relations, count, count) * (
        torch.rand(batch, relations, count, count, generator=g) < 0.4
    )
    messages = rand(g, batch, 1 if shared else relations, count, 3)
    nodes = 3 * rand(g, batch, count, 4) + 1
    if sparse:
        adjacency = adjacency.to_sparse().coalesce()
        entries, weights = adjacency.indices(), adjacency.values()
    else:
        entries = adjacency.nonzero().t()
        weights = adjacency[tuple(entries)]
    call = MatrixCall(adjacency, messages, nodes, entries, weights)
    sender, receiver = call.edge_index()
    return Messages(0, 0, sender, receiver, None, messages, 0, matrix=call)


def fitted_matrix(messages: Messages) -> BilinearGate:
    gate = scrambled(build(SiteSpec.of([messages]), HIDDEN, torch.Generator().manual_seed(0)), 4)
    with torch.no_grad():
        gate.relation.mul_(0.3)
    gate.standardise([messages])
    return gate


@pytest.mark.parametrize("sparse", [False, True])
def test_bilinear_gate_is_the_papers_equation(sparse: bool) -> None:
    messages = matrix_messages(sparse=sparse)
    gate = fitted_matrix(messages)
    call = messages.matrix
    assert call is not None
    edges = call.entries.t().tolist()
    present = sorted({(b, v) for b, _, v, _ in edges} | {(b, u) for b, _, _, u in edges})
    moments = literal.standardiser([call.nodes[b, v].tolist() for b, v in present])
    expected = [
        literal.bilinear_location(
            literal.standardise(call.nodes[b, u].tolist(), moments),
            literal.standardise(call.nodes[b, v].tolist(), moments),
            gate.first.tolist(),
            gate.bias.tolist(),
            (gate.norm.weight.tolist(), gate.norm.bias.tolist()),
            gate.relation[r].tolist(),
            float(gate.out_bias[r].detach()),
        )
        for b, r, v, u in edges
    ]
    location = gate.raw(messages).detach()
    assert location.tolist() == pytest.approx(expected, abs=1e-9)
    assert float(location.std()) > 0.1
    assert int((location.abs() < literal.LIMIT).sum()) > len(edges) // 2


def test_bilinear_dense_and_sparse_agree() -> None:
    dense, sparse = matrix_messages(), matrix_messages(sparse=True)
    gate = fitted_matrix(dense)
    assert torch.allclose(gate.raw(dense), gate.raw(sparse), atol=1e-12)
    again = fitted_matrix(sparse)
    assert torch.equal(gate.mean, again.mean)
    assert torch.equal(gate.scale, again.scale)


def test_bilinear_gates_start_open() -> None:
    messages = matrix_messages()
    gate = build(SiteSpec.of([messages]), 32, torch.Generator().manual_seed(0))
    gate.standardise([messages])
    assert torch.allclose(gate(messages), torch.tensor(gates.INITIAL_LOCATION), atol=0.5)


def test_bilinear_gate_refuses_other_sizes() -> None:
    gate = fitted_matrix(matrix_messages())
    with pytest.raises(GraphMaskError, match="same state size and relations"):
        gate.raw(matrix_messages(relations=2))
    with pytest.raises(GraphMaskError, match="same state size and relations"):
        gate.raw(edge_messages())


class Largest(TorchDispatchMode):
    """Remembers the largest tensor made."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            # An expanded view takes no memory: what it looks at does.
            if isinstance(value, Tensor) and value.layout == torch.strided and value.numel():
                self.numel = max(self.numel, value.untyped_storage().nbytes() // value.element_size())
        return result


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_bilinear_memory_law(sparse: bool, train: bool) -> None:
    """Appendix A: no message, nor a state, per pair of nodes. B R N N D would be 64 times what is allowed here."""
    batch, relations, count, size = 2, 3, 40, 4
    messages = matrix_messages(batch=batch, relations=relations, count=count, sparse=sparse)
    gate = fitted_matrix(messages)
    call = messages.matrix
    assert call is not None
    entries = call.entries.shape[1]
    with Largest() as largest, torch.set_grad_enabled(train):
        location = gate.raw(messages)
        if train:
            location.sum().backward()
    nodes = batch * count * relations * max(size, HIDDEN)
    per_entry = entries * size if sparse else batch * relations * count * count
    assert largest.numel <= 2 * (per_entry + nodes)
    assert largest.numel < batch * relations * count * count * size


def test_gates_that_are_trained_see_every_step_and_fixed_ones_fold_once() -> None:
    """Fused optimisers change parameters without a trace in their versions."""
    explainer = GraphMask(toy.Toy(), seed=0, recipe=Recipe(steps=1))
    explainer.fit(toy.loader(1, 4), progress=False)
    probe, batch = explainer.probe, toy.loader(1, 4)[0]
    assert probe is not None
    scores = [e.scores for e in explainer.explain_all([batch], allow_infeasible=True)]
    gate = probe.gate(0)
    folded = gate._folded
    list(explainer.explain_all([batch], allow_infeasible=True))
    assert gate._folded is folded is not None
    with torch.no_grad():
        gate.bias[0] += 1  # whoever changes a fixed gate in the open is noticed
    changed = [e.scores for e in explainer.explain_all([batch], allow_infeasible=True)]
    assert not any(torch.allclose(a, b) for a, b in zip(scores, changed, strict=True))
    probe.train()
    optimiser = torch.optim.Adam([gate.bias], lr=0.5, fused=True)
    gate.bias.grad = torch.eye(len(gate.bias))[0]
    optimiser.step()
    stepped = [e.scores for e in explainer.explain_all([batch], allow_infeasible=True)]
    assert not any(torch.allclose(a, b) for a, b in zip(changed, stepped, strict=True))


def test_negative_and_vanishing_weights_of_the_norm() -> None:
    """Without gradients they are taken into what comes before and after: nobody may notice."""
    messages = edge_messages(edges=23)
    gate = fitted([messages])
    with torch.no_grad():
        gate.norm.weight.copy_(torch.linspace(-1, 1, len(gate.norm.weight)))
        gate.norm.weight[:3] = torch.tensor([0.0, 1e-30, -1e-9])
        gate.norm.bias.copy_(torch.linspace(0.5, -0.5, len(gate.norm.bias)))
    expected = plain(gate, messages).detach()
    with torch.no_grad():
        assert torch.allclose(gate.raw(messages), expected, atol=1e-10)
    assert torch.allclose(gate.raw(messages).detach(), expected, atol=1e-10)
    assert float(expected.std()) > 1e-3
