"""After gates have chosen, for every single explanation: reopening until it holds, and what would overturn it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch_geometric.data import Batch

from graphmask.case import Case, Choice, rank_within
from graphmask.errors import GraphMaskError
from graphmask.messages import Messages
from graphmask.trace import record

#: Scores this close say the same: among these, gates go in the order of what they would do to the output.
BAND = 0.05
#: Times that the gates to reopen are chosen, each time among those chosen before.
ROUNDS = 4
#: Gates of a graph that are then tried one by one, at most.
ONE_BY_ONE = 32


def holds(case: Case, output: Tensor) -> Tensor:
    """bool [G]: within tolerance, and the same prediction in every row."""
    return (case.distance(output) <= case.tolerance) & (case.flips(output) == 0)


def repair(case: Case, choice: Choice, masked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per graph, by bisection, the fewest dropped gates to reopen, best first, until its explanation holds.

    Best are the highest scores; among scores that say the same, the gates whose opening brings the output nearest to
    the original, to first order. What was reopened is then gone through again in the order of what each gate does
    there, and as much of it shut as can be, at last one by one. Only graphs whose explanation does not hold are run
    again.

    Returns the gates, the output with them, and how many were reopened [G].
    """
    reopened = torch.zeros(case.split.count, dtype=torch.long)
    broken = ~holds(case, masked)
    if not bool(broken.any()):
        return choice.kept, masked, reopened
    part = _part(case, choice, broken)
    if part is None:
        return _reopen(case, choice, broken, masked)
    some, chosen, edges, rows = part
    found, output, count = _reopen(some, chosen, torch.ones(some.split.count, dtype=torch.bool), masked[rows])
    kept, masked = choice.kept.clone(), masked.clone()
    kept[:, edges], masked[rows] = found, output
    reopened[broken.cpu()] = count
    return kept, masked, reopened


def counterfactual(case: Case, choice: Choice) -> tuple[Tensor, Tensor]:
    """The fewest kept gates, highest scores first, that change the prediction when they are shut as well.

    Returns bool [L, E], and bool [G] where there are such gates: where shutting all of them does not change the
    prediction, none are marked.
    """
    kept = choice.kept & case.trace.carried
    rank, count = _ranks(case, kept, -choice.scores, None)

    def shut(number: Tensor) -> Tensor:
        return kept & ~(rank < number[case.split.edge_graph])

    def changes(number: Tensor) -> Tensor:
        return case.flips(case.run(shut(number), choice.baselines)) > 0

    with torch.no_grad():
        there = changes(count)
        fewest = _fewest(changes, torch.where(there, 1, 0), torch.where(there, count, 0))
    return kept & ~shut(fewest), there


def _reopen(case: Case, choice: Choice, broken: Tensor, masked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    owner, kept = case.split.edge_graph, choice.kept
    candidates = case.trace.carried & ~kept & broken.to(owner.device)[owner]
    opened, first = kept, -choice.scores
    for _ in range(ROUNDS):
        rank, count = _ranks(case, candidates, first, -_pull(case, opened, choice.baselines))

        def best(number: Tensor, rank: Tensor = rank, candidates: Tensor = candidates) -> Tensor:
            return kept | (candidates & (rank < number[owner]))

        def enough(number: Tensor, best: Callable[[Tensor], Tensor] = best) -> Tensor:
            return holds(case, case.run(best(number), choice.baselines))

        with torch.no_grad():
            fewest = _fewest(enough, torch.zeros_like(count), count)
        opened = best(fewest)
        candidates, first = opened & ~kept, torch.zeros_like(first)  # from now on by what each does where it is open
        if torch.equal(fewest, count):
            break
    opened = _without_each(case, choice, opened)
    with torch.no_grad():
        masked = case.run(opened, choice.baselines)
    return opened, masked, case.gates_per_graph(opened & ~kept).cpu()


def _without_each(case: Case, choice: Choice, opened: Tensor) -> Tensor:
    """Shut again, one after the other, what was reopened and can be done without; the least useful first."""
    reopened = opened & ~choice.kept
    rank, count = _ranks(case, reopened, _pull(case, opened, choice.baselines), None)
    with torch.no_grad():
        for turn in range(min(int(count.max()), ONE_BY_ONE)):
            tried = opened & (rank != turn)
            fine = holds(case, case.run(tried, choice.baselines))
            opened = torch.where(fine[case.split.edge_graph], tried, opened)
    return opened


def _fewest(enough: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """[G] by bisection: a number that is enough while one less is not; ``high`` is taken to be."""
    while bool((low < high).any()):
        middle = (low + high) // 2
        found = enough(middle)
        low, high = torch.where(found, low, middle + 1), torch.where(found, middle, high)
        low = torch.minimum(low, high)
    return high


def _ranks(case: Case, gates: Tensor, first: Tensor, second: Tensor | None) -> tuple[Tensor, Tensor]:
    """[L, E] the place of each of ``gates`` among those of its graph, lowest ``first`` first, and [G] how many.

    With ``second``, values of ``first`` that are close to each other count as equal.
    """
    at = gates.nonzero(as_tuple=True)
    graph, values = case.split.edge_graph[at[1]], first[at]
    order = torch.arange(len(graph), device=graph.device)
    if second is not None:
        order = second[at].argsort(stable=True)
        values = (values / BAND).round()
    order = order[values[order].argsort(stable=True)]
    place = torch.empty_like(graph)
    place[order] = rank_within(graph[order], case.split.count)
    rank = torch.full(gates.shape, gates.numel(), device=gates.device)
    rank[at] = place
    return rank, torch.bincount(graph, minlength=case.split.count)


def _pull(case: Case, kept: Tensor, baselines: Sequence[Tensor]) -> Tensor:
    """[L, E] by how much an open gate lowers the divergence, to first order; zero where no gradient passes."""
    gates = kept.to(case.trace.output.dtype)
    try:
        with torch.enable_grad():
            gates.requires_grad_()
            total = case.distance(case.run(gates, baselines)).sum()
            if not total.requires_grad:
                return torch.zeros_like(gates)
            (slope,) = torch.autograd.grad(total, gates)
    except (GraphMaskError, RuntimeError):  # a model that gradients cannot pass is repaired by its scores alone
        return torch.zeros_like(kept, dtype=torch.float)
    return -slope.nan_to_num()


def _part(case: Case, choice: Choice, wanted: Tensor) -> tuple[Case, Choice, Tensor, Tensor] | None:
    """The case of these graphs alone, what was chosen for them, and their edges and rows; None for all."""
    batch, split = case.batch, case.split
    if not isinstance(batch, Batch) or case.whole or int(wanted.sum()) == split.count:
        return None
    some = Batch.from_data_list(batch.index_select(wanted.cpu()))
    edges = wanted[split.edge_graph].nonzero().view(-1)
    rows = wanted[split.row_graph].nonzero().view(-1)
    with torch.no_grad():
        trace = record(case.model, case.forward, some, case.trace.sites, _nothing)
    fits = trace.edge_index.shape[1] == len(edges) and trace.output.shape == case.trace.output[rows].shape
    if not fits or not torch.allclose(trace.output, case.trace.output[rows], rtol=1e-4, atol=1e-5):
        return None  # the model mixes the graphs of a batch
    trace.carried, trace.output = case.trace.carried[:, edges], case.trace.output[rows]
    found = Case(case.model, case.forward, case.divergence, case.tolerance, some, trace)
    if not torch.equal(found.split.within(trace.edge_index), split.within(case.trace.edge_index)[:, edges]):
        return None
    baselines: Sequence[Tensor] = [b[wanted] if b.dim() > 1 else b for b in choice.baselines]
    return found, Choice(choice.scores[:, edges], choice.kept[:, edges], baselines), edges, rows


def _nothing(messages: Messages) -> Tensor:
    return messages.source.new_zeros(messages.source.shape, dtype=torch.float)
