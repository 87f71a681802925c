"""SubgraphX (Yuan et al., ICML 2021): tree search for the connected subgraph with the best Shapley value."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method

Nodes = frozenset[int]
#: Asks for the worth of coalitions of nodes, and is sent the numbers.
Search = Generator[list[Nodes], list[float], list["State"]]
#: Larger graphs are refused: from thousands of nodes, one after the other would be pruned.
MOST_NODES = 300


@dataclass
class State:
    """A node of the search tree: a connected set of the graph's nodes."""

    nodes: Nodes
    reward: float = 0.0  #: its Shapley value
    visits: int = 0
    total: float = 0.0  #: of the rewards of leaves below
    children: list[State] = field(default_factory=list)


class SubgraphX(Method):
    r"""Prune nodes one by one; which next is decided by a tree search, and how good a subgraph is by its Shapley value.

    .. math:: a^* = \mathrm{arg}\max_a \frac{W(a)}{C(a)} + \lambda R(a) \frac{\sqrt{\sum_b C(b)}}{1 + C(a)}

    with visits :math:`C`, rewards of leaves :math:`W`, and the Shapley value :math:`R` of a child among the nodes
    within as many hops as the model has layers. A coalition of nodes is worth the probability of the predicted class
    when only messages between its nodes are sent, at all layers alike (of a regression, what falls with the divergence
    stands for it). Where its neighbours are few the Shapley value is exact, otherwise estimated from ``samples`` draws.
    What is kept are the messages within the best subgraph found; the score of a message is the value of the best leaf
    that has it, over the largest.

    It takes thousands of runs per graph. `graphmask.compare` leaves it out unless it is named.

    Args:
        rollouts, children, exploration, samples: 20, 12, 10 and 100, as published: passes down the tree, children of a
            state (nodes of high degree are pruned first), :math:`\lambda`, and draws of a Shapley value.
        least: a subgraph with so many nodes is a leaf; 5 as in the authors' package.
    """

    name = "subgraphx"
    seeded = True
    costly = True

    def __init__(
        self,
        model: nn.Module,
        *args: Any,
        rollouts: int = 20,
        children: int = 12,
        exploration: float = 10.0,
        samples: int = 100,
        least: int = 5,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, *args, **kwargs)
        if min(rollouts, children, samples, least) < 1:
            raise GraphMaskError("Expected rollouts, children, samples and least of at least 1.")
        self.rollouts, self.children, self.samples, self.least = rollouts, children, samples, least
        self.exploration = exploration

    @torch.no_grad()
    def choose(self, case: Case) -> Choice:
        graphs = self._graphs(case)
        leaves = self._search_all(case, graphs)
        scores = case.trace.output.new_zeros(len(case.split.edge_graph))
        kept = torch.zeros_like(scores, dtype=torch.bool)
        for graph in graphs:
            ranked = sorted(leaves[graph.number], key=lambda leaf: leaf.reward)  # the best is written last
            for leaf in ranked:
                inside = graph.within(leaf.nodes)
                scores[inside] = max(leaf.reward, 0.0)
                kept = kept.index_fill(0, graph.edges, False).index_fill(0, inside, True)
        carried = case.trace.carried
        return Choice(case.normalised(scores * carried), kept & carried, case.zeros())

    def _graphs(self, case: Case) -> list[Graph]:
        ends, owner, sent = case.split.within(case.trace.edge_index), case.split.edge_graph, case.trace.carried.any(0)
        draws = case.uniform(self.seed)
        graphs = []
        for number in range(case.split.count):
            edges = (sent & (owner == number)).nonzero().view(-1)
            if len(edges):
                seed = int(float(draws[0, edges[0]]) * 2**52)
                graphs.append(Graph(number, edges, ends[:, edges].t().tolist(), Random(seed)))
        return graphs

    def _search_all(self, case: Case, graphs: Sequence[Graph]) -> dict[int, list[State]]:
        """All searches side by side: what they ask for at a time goes through the model together."""
        searches: dict[int, Search] = {graph.number: self._search(graph, len(case.trace.sites)) for graph in graphs}
        by_number = {graph.number: graph for graph in graphs}
        asked = {number: next(search) for number, search in searches.items()}
        leaves: dict[int, list[State]] = {}
        while asked:
            told = self._worth(case, [(by_number[number], wanted) for number, wanted in asked.items()])
            for number, values in zip(list(asked), told, strict=True):
                try:
                    asked[number] = searches[number].send(values)
                except StopIteration as done:
                    leaves[number] = done.value
                    del asked[number]
        return leaves

    def _worth(self, case: Case, asked: Sequence[tuple[Graph, list[Nodes]]]) -> list[list[float]]:
        """The probability of the predicted class for every coalition of every graph."""
        carried = case.trace.carried
        values: list[list[float]] = [[] for _ in asked]
        for turns in case.in_turns(max(len(wanted) for _, wanted in asked)):
            first, last = int(turns[0]), int(turns[-1]) + 1
            gates = carried.expand(len(turns), *carried.shape).clone()
            for graph, wanted in asked:
                for turn, nodes in enumerate(wanted[first:last]):
                    gates[turn, :, graph.edges] = False
                    inside = graph.within(nodes)
                    gates[turn, :, inside] = carried[:, inside]
            for turn, output in enumerate(case.run_many(gates, case.zeros())):
                worth = (-case.per_graph(self.divergence.own_loss(case.trace.output, output))).exp().tolist()
                for number, (graph, wanted) in enumerate(asked):
                    if first + turn < len(wanted):
                        values[number].append(worth[graph.number])
        return values

    # One graph's search ------------------------------------------------------------------------------------

    def _search(self, graph: Graph, hops: int) -> Search:
        """The leaves that were found, with their rewards."""
        states: dict[Nodes, State] = {graph.nodes: State(graph.nodes)}
        if len(graph.nodes) <= self.least:
            yield []
            return list(states.values())
        leaves: dict[Nodes, State] = {}
        for _ in range(self.rollouts):
            state, path = states[graph.nodes], []
            while len(state.nodes) > self.least:
                path.append(state)
                if not state.children:
                    fresh = [nodes for nodes in graph.pruned(state.nodes, self.children) if nodes not in states]
                    rewards = yield from self._rewards(graph, fresh, hops)
                    states |= {nodes: State(nodes, reward) for nodes, reward in zip(fresh, rewards, strict=True)}
                    state.children = [states[nodes] for nodes in graph.pruned(state.nodes, self.children)]
                state = self._next(state)
            leaves[state.nodes] = state
            for passed in [*path, state]:
                passed.visits += 1
                passed.total += state.reward
        return list(leaves.values())

    def _next(self, state: State) -> State:
        visits = math.sqrt(sum(child.visits for child in state.children))

        def promise(child: State) -> float:
            mean = child.total / child.visits if child.visits else 0.0
            return mean + self.exploration * child.reward * visits / (1 + child.visits)

        return max(state.children, key=promise)

    def _rewards(
        self, graph: Graph, subgraphs: Sequence[Nodes], hops: int
    ) -> Generator[list[Nodes], list[float], list[float]]:
        """Shapley values of subgraphs; each coalition is asked for once."""
        plans = [self.coalitions(graph, nodes, hops) for nodes in subgraphs]
        wanted = {some for plan in plans for _, with_it, without in plan for some in (with_it, without)}
        unknown = sorted(wanted - graph.known.keys(), key=sorted)
        if unknown:
            values = yield unknown
            graph.known.update(zip(unknown, values, strict=True))
        return [sum(w * (graph.known[a] - graph.known[b]) for w, a, b in plan) for plan in plans]

    def coalitions(self, graph: Graph, nodes: Nodes, hops: int) -> list[tuple[float, Nodes, Nodes]]:
        """Weight, coalition with the subgraph, and without it: their weighted differences are its Shapley value."""
        others = sorted(graph.around(nodes, hops) - nodes)
        count = len(others)
        if 1 << count <= self.samples:
            plans = []
            for code in range(1 << count):
                part = frozenset(node for bit, node in enumerate(others) if code >> bit & 1)
                weight = 1 / ((count + 1) * math.comb(count, len(part)))
                plans.append((weight, part | nodes, part))
            return plans
        drawn = []
        for _ in range(self.samples):
            size = graph.random.randint(0, count)  # the subgraph's place in a random order of the players
            part = frozenset(graph.random.sample(others, size))
            drawn.append((1 / self.samples, part | nodes, part))
        return drawn


class Graph:
    """One graph in the form that the search uses."""

    def __init__(self, number: int, edges: Tensor, ends: Sequence[Sequence[int]], random: Random) -> None:
        self.number, self.edges, self.random = number, edges, random
        self.ends = torch.tensor(ends)
        self.near: dict[int, set[int]] = {}
        for u, v in ends:
            self.near.setdefault(u, set()).add(v)
            self.near.setdefault(v, set()).add(u)
        self.nodes: Nodes = frozenset(self.near)
        self.known: dict[Nodes, float] = {}  #: the worth of coalitions
        if len(self.nodes) > MOST_NODES:
            raise GraphMaskError(
                f"Expected graphs of at most {MOST_NODES} nodes for subgraphx, got one of {len(self.nodes)}. "
                "Ask about single rows (index), or use another method."
            )

    def within(self, nodes: Nodes) -> Tensor:
        """Edges of the batch with both ends in the set of nodes."""
        mark = torch.zeros(int(self.ends.max()) + 1, dtype=torch.bool)
        mark[list(nodes)] = True
        return self.edges[mark[self.ends].all(1).to(self.edges.device)]

    def around(self, nodes: Nodes, hops: int) -> Nodes:
        reached = set(nodes)
        for _ in range(hops):
            reached |= {other for node in reached for other in self.near[node]}
        return frozenset(reached)

    def pruned(self, nodes: Nodes, most: int) -> list[Nodes]:
        """What is left without one node: the largest connected part; nodes of high degree are tried first."""
        degree = {node: len(self.near[node] & nodes - {node}) for node in nodes}
        tried = sorted(nodes, key=lambda node: (-degree[node], node))[:most]
        return list(dict.fromkeys(self._largest(nodes - {node}) for node in tried))

    def _largest(self, nodes: Nodes) -> Nodes:
        left, best = set(nodes), frozenset[int]()
        while left:
            part, waiting = set(), [min(left)]
            while waiting:
                node = waiting.pop()
                if node not in part:
                    part.add(node)
                    waiting += list(self.near[node] & left)
            left -= part
            best = frozenset(part) if len(part) > len(best) else best
        return best
