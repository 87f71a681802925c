"""Two networks that compute the same function should get the same explanation (the paper's appendix H).

A node sums what its neighbours send, and an MLP reads two channels of that sum, (t1, t2). The MLP comes in two
implementations (Sundararajan et al. 2017, figure 7),

    f(t1, t2) = ReLU(ReLU(t1) - 1 - ReLU(t2))   and   g(t1, t2) = ReLU(ReLU(t1 - 1) - ReLU(t2)),

equal for every input. Layer-wise relevance propagation follows the wiring: it gives the same message another relevance
in f than in g. GraphMask sees only what the model answers, and keeps the same edges.

    python examples/implementation_invariance.py        # needs captum, takes some ten seconds
"""

from __future__ import annotations

import copy
from typing import TypedDict

import torch
from captum.attr import LRP
from captum.attr._utils.lrp_rules import EpsilonRule, GammaRule, PropagationRule
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import MessagePassing

from graphmask import Explanation, GraphMask
from graphmask.fitting.recipe import Recipe

T1, T2, IGNORED, CENTRE = range(4)  # the channels of a node; CENTRE marks the node whose sum is read
CHANNELS = 4


class Result(TypedDict):
    """What `main` found; the names f and g are the keys of every pair."""

    difference: float  #: largest |f - g|
    lrp: dict[str, tuple[float, float]]  #: relevance of (t1, t2) = (3, 1)
    lrp_with_bias: dict[str, tuple[float, float]]  #: the same when biases take their share
    edge_relevance: dict[str, list[float]]  #: of the edges of `figure_graph`, by `lrp`
    figure_kept: dict[str, list[bool]]  #: the same edges, by GraphMask
    divergence: dict[str, float]  #: largest over the test graphs
    feasible: dict[str, bool]
    edges: int  #: in all test graphs
    identical: float  #: share of test graphs on which GraphMask keeps the same edges for f and for g
    correct: dict[str, float]  #: share of test graphs on which these are just the relevant ones


# The model -------------------------------------------------------------------------------------------------


class SumOfNeighbours(MessagePassing):
    """Plain aggregation: no weights, no activation."""

    def __init__(self) -> None:
        super().__init__(aggr="add")

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)


class Network(nn.Module):
    """One number per graph: the MLP of the centre's (t1, t2)."""

    def __init__(self, mlp: nn.Sequential) -> None:
        super().__init__()
        self.layer, self.mlp = SumOfNeighbours(), mlp

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.mlp(self.layer(x, edge_index)[x[:, CENTRE] == 1][:, [T1, T2]])


def mlp(bias_below: float, bias_above: float) -> nn.Sequential:
    """ReLU(ReLU(t1 + bias_below) - ReLU(t2) + bias_above): whose bias subtracts the 1 is all that differs."""
    below, above = nn.Linear(2, 2), nn.Linear(2, 1)
    with torch.no_grad():
        below.weight.copy_(torch.eye(2))
        below.bias.copy_(torch.tensor([bias_below, 0.0]))
        above.weight.copy_(torch.tensor([[1.0, -1.0]]))
        above.bias.fill_(bias_above)
    return nn.Sequential(below, nn.ReLU(), above, nn.ReLU())


def networks() -> dict[str, Network]:
    return {"f": Network(mlp(0.0, -1.0)).eval(), "g": Network(mlp(-1.0, 0.0)).eval()}


# The graphs ------------------------------------------------------------------------------------------------


def graph(t1: Tensor, t2: Tensor, ignored: Tensor, links: Tensor) -> Data:
    """Node 0 hears from one neighbour per value, each in its own channel; ``links`` run between the neighbours."""
    values = torch.cat([t1, t2, ignored])
    channel = torch.tensor([T1] * len(t1) + [T2] * len(t2) + [IGNORED] * len(ignored))
    x = torch.zeros(1 + len(values), CHANNELS)
    x[0, CENTRE] = 1
    neighbours = torch.arange(1, len(x))
    x[neighbours, channel] = values
    edge_index = torch.cat([torch.stack([neighbours, torch.zeros_like(neighbours)]), links], 1)
    relevant = (edge_index[1] == 0) & (x[edge_index[0], IGNORED] == 0)
    return Data(x=x, edge_index=edge_index, relevant=relevant)


def figure_graph() -> Data:
    """(t1, t2) = (3, 1), as in the figure; two more neighbours that the MLP ignores, two edges that lead elsewhere."""
    high, low = torch.tensor([1.5, 1.5]), torch.tensor([0.5, 0.5])
    return graph(high, low, high, torch.tensor([[1, 3], [2, 5]]))


def random_graph(generator: torch.Generator) -> Data:
    """t1 > 1 + t2, where f and g are not flat: every message into t1 or t2 is needed, and none of them is small."""

    def uniform(low: float, high: float, fewest: int) -> Tensor:
        count = fewest + int(torch.randint(2, (), generator=generator))
        return low + (high - low) * torch.rand(count, generator=generator)

    t1, t2, ignored = uniform(1.5, 2.5, 2), uniform(0.4, 0.8, 1), uniform(0.4, 2.5, 2)
    links = 1 + torch.randint(len(t1) + len(t2) + len(ignored), (2, 4), generator=generator)
    return graph(t1, t2, ignored, links[:, links[0] != links[1]])


# The explanations ------------------------------------------------------------------------------------------


def relevance(mlp: nn.Sequential, inputs: Tensor, rule: PropagationRule) -> Tensor:
    """Layer-wise relevance propagation from the MLP's output to its inputs, by captum."""
    mlp = copy.deepcopy(mlp)  # captum leaves attributes behind
    for layer in mlp:
        if isinstance(layer, nn.Linear):
            layer.rule = copy.deepcopy(rule)
    return LRP(mlp).attribute(inputs.clone().requires_grad_()).detach()


def edge_relevance(network: Network, data: Data, rule: PropagationRule) -> Tensor:
    """[E]: a message takes the share of its receiver's relevance that it has of the sum, channel by channel."""
    total = network.layer(data.x, data.edge_index)
    received = torch.zeros_like(total)
    centre = data.x[:, CENTRE] == 1
    received[centre, : T2 + 1] = relevance(network.mlp, total[centre, : T2 + 1], rule)
    source, target = data.edge_index
    share = data.x[source] / torch.where(total == 0, torch.ones_like(total), total)[target]
    return (share * received[target]).sum(1)


def explain(network: Network, train: list[Batch], test: list[Batch], seed: int) -> tuple[list[Explanation], bool]:
    # In squared units of the output: dropping the weakest of the messages that matter costs 0.16.
    # The recipe is a hurried one, for an example; repair mends the graphs that need it.
    recipe = Recipe(steps=600, learning_rate=1e-2)
    explainer = GraphMask(network, divergence="mse", tolerance=0.01, recipe=recipe, seed=seed)
    feasible = explainer.fit(train, progress=False).feasible
    return list(explainer.explain_all(test, allow_infeasible=True)), feasible


def main(seed: int = 0) -> Result:
    pair = networks()
    generator = torch.Generator().manual_seed(seed)

    inputs = 8 * torch.rand(10_000, 2, generator=generator, dtype=torch.double) - 4
    answers = {name: copy.deepcopy(network.mlp).double()(inputs).detach() for name, network in pair.items()}
    difference = float((answers["f"] - answers["g"]).abs().max())
    print(f"f and g on {len(inputs):,} random inputs: largest difference {difference:.1g}\n")

    # The counterexample is about relevance shared among inputs alone; to captum that is the gamma rule with gamma 0
    # and no bias. Its default, the epsilon rule, lets biases absorb relevance: for ReLUs that is gradient times
    # input, which no implementation of the same function can change, but which sums to 2 where the output is 1.
    inputs_alone, with_bias = GammaRule(gamma=0.0, set_bias_to_zero=True), EpsilonRule()
    lrp, lrp_with_bias = (
        {name: _pair(relevance(network.mlp, torch.tensor([[3.0, 1.0]]), rule)) for name, network in pair.items()}
        for rule in (inputs_alone, with_bias)
    )

    train = [Batch.from_data_list([random_graph(generator) for _ in range(16)]) for _ in range(16)]
    graphs = [figure_graph(), *(random_graph(generator) for _ in range(63))]
    # Two seeds for the gates: agreement must not come from drawing the same random numbers.
    found = {
        name: explain(network, train, [Batch.from_data_list(graphs)], 2 * seed + number)
        for number, (name, network) in enumerate(pair.items())
    }
    kept = {name: [explanation.kept[0] for explanation in explanations] for name, (explanations, _) in found.items()}

    relevant = [data.relevant for data in graphs]
    result = Result(
        difference=difference,
        lrp=lrp,
        lrp_with_bias=lrp_with_bias,
        edge_relevance={n: edge_relevance(network, graphs[0], inputs_alone).tolist() for n, network in pair.items()},
        figure_kept={name: masks[0].tolist() for name, masks in kept.items()},
        divergence={name: max(e.divergence for e in explanations) for name, (explanations, _) in found.items()},
        feasible={name: feasible for name, (_, feasible) in found.items()},
        edges=sum(map(len, relevant)),
        identical=_same(kept["f"], kept["g"]),
        correct={name: _same(masks, relevant) for name, masks in kept.items()},
    )
    _show(result, graphs[0])
    return result


def _pair(values: Tensor) -> tuple[float, float]:
    first, second = values.flatten().tolist()
    return first, second


def _same(some: list[Tensor], others: list[Tensor]) -> float:
    """Share of graphs on which two sets of edges are the same."""
    return sum(torch.equal(a, b) for a, b in zip(some, others, strict=True)) / len(some)


def _show(result: Result, data: Data) -> None:
    def row(label: str, values: list[str]) -> None:
        print(f"{label:<28}" + "".join(f"{value:>10}" for value in values))

    row("at t1 = 3, t2 = 1", ["f: t1", "t2", "g: t1", "t2"])
    for label, of in (("LRP", result["lrp"]), ("LRP, biases take a share", result["lrp_with_bias"])):
        row(label, [f"{value:.2f}" for name in "fg" for value in of[name]])
    print()
    row("edge", ["LRP f", "LRP g", "mask f", "mask g"])
    for edge, (source, target) in enumerate(data.edge_index.t().tolist()):
        channel = ("t1", "t2", "ignored")[int(data.x[source].argmax())]
        relevances = [f"{result['edge_relevance'][name][edge]:.2f}" for name in "fg"]
        masks = ["kept" if result["figure_kept"][name][edge] else "dropped" for name in "fg"]
        row(f"{source} -> {target}  {channel if target == 0 else 'not read'}", relevances + masks)
    print(
        f"\nGraphMask on all test graphs: same edges for f and g on {result['identical']:.1%}; just the relevant "
        f"edges on {result['correct']['f']:.1%} (f) and {result['correct']['g']:.1%} (g)."
    )


if __name__ == "__main__":
    torch.set_num_threads(1)  # for tensors this small, threads mostly wait for each other
    main()
