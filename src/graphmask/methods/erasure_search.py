"""Erasure search (Li, Monroe and Jurafsky 2016): erase as many messages as possible without changing the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphmask import bars
from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method

if TYPE_CHECKING:
    from rich.progress import Progress


class ErasureSearch(Method):
    """Search, for every graph anew, the smallest set of messages with which the model answers as before.

    With few messages all subsets are tried, the smallest first, so the answer is exact. Otherwise messages are
    erased greedily, at each turn the one whose loss moves the output least. It knows the answer while it searches
    (hindsight), so that one message that happens to give the same answer may be enough.

    Args:
        budget: masked runs of each graph. All subsets are tried where they are no more than that; a greedy search
            that would need more erases several messages at a turn, half as many where the answer would change, and
            begins no turn once they are spent.
        progress: show a progress bar.
    """

    name = "erasure_search"

    def __init__(self, model: nn.Module, *args: Any, budget: int = 5000, progress: bool = False, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        if budget < 1:
            raise GraphMaskError(f"Expected a budget of at least one run, got {budget}.")
        self.budget, self.progress = budget, progress

    @torch.no_grad()
    def choose(self, case: Case) -> Choice:
        carried = case.trace.carried
        count = case.gates_per_graph(carried)
        small = count <= self.budget.bit_length() - 1
        with bars.bar(enabled=self.progress) as bar:
            kept = self._exact(case, count, small, bar)
            kept = self._greedy(case, kept, ~small, bar)
        return Choice(kept.to(case.trace.output.dtype), kept, case.zeros())

    def accepts(self, case: Case, output: Tensor) -> Tensor:
        """[G] is the answer the same? Where there is no class to change: is it within tolerance?"""
        if self.divergence.has_classes:
            return case.flips(output) == 0
        return case.distance(output) <= self.tolerance

    def _exact(self, case: Case, count: Tensor, small: Tensor, bar: Progress) -> Tensor:
        """All subsets of each small graph, by size; the first that is accepted stays."""
        carried, owner = case.trace.carried, case.split.edge_graph
        rank = case.gate_rank(carried)
        largest = int(count[small].max()) if bool(small.any()) else 0
        codes = _subsets_by_size(largest).to(count.device)  # [n, 2^n]: the t-th subset of n messages, as bits
        answer = torch.zeros_like(count)
        open_ = small.clone()
        task = bar.add_task("subsets", total=codes.shape[1])
        for turns in case.in_turns(codes.shape[1]):
            tried = codes[count.clamp_max(largest)][:, turns].t()  # [K, G]
            gates = ((tried[:, None, owner] >> rank.clamp(0, 62)) & 1).bool() & carried
            for output, code in zip(case.run_many(gates, case.zeros()), tried, strict=True):
                accepted = open_ & (code >= 0) & self.accepts(case, output)
                answer = torch.where(accepted, code, answer)
                open_ &= ~accepted
            bar.update(task, advance=len(turns))
            if not bool(open_.any()):
                break
        # Everything kept is the last subset, and always accepted.
        kept = ((answer[owner] >> rank.clamp(0, 62)) & 1).bool() & carried
        return torch.where(small[owner], kept, carried)

    def _greedy(self, case: Case, kept: Tensor, large: Tensor, bar: Progress) -> Tensor:
        """Erase the message that matters least, again and again, while the answer stays."""
        owner = case.split.edge_graph
        active = large.clone()
        count = case.gates_per_graph(kept) * large
        at_once = -(-count * (count + 1) // (2 * self.budget))  # by the graph's own size, whatever batch it is in
        spent = torch.zeros_like(count)
        task = bar.add_task("greedy", total=int(count.max()))
        while bool(active.any()):
            spent += case.gates_per_graph(kept) * active
            candidates = kept & active[owner]
            rank = case.gate_rank(candidates)
            cost = torch.full_like(case.trace.values, torch.inf)
            for turns in case.in_turns(int(rank.max()) + 1 if bool(candidates.any()) else 0):
                hit = candidates & (rank == turns[:, None, None])
                for output, dropped in zip(case.run_many(kept & ~hit, case.zeros()), hit, strict=True):
                    moved = torch.where(self.accepts(case, output), case.distance(output), torch.inf)
                    cost = torch.where(dropped, moved[owner], cost)
            order = case.gate_order(cost, candidates)
            free = candidates & (cost < torch.inf)
            size = torch.minimum(at_once, case.gates_per_graph(free))
            unsure = size > 1
            while bool(unsure.any()):  # together they may matter though none does alone
                spent += unsure
                together = kept & ~(free & (order < size[owner]))
                unsure &= ~self.accepts(case, case.run(together, case.zeros()))
                size = torch.where(unsure, size // 2, size)
                unsure &= size > 1
            active &= (case.gates_per_graph(free) > 0) & (spent < self.budget)
            kept = kept & ~(free & (order < size[owner]))
            bar.update(task, advance=int(at_once.max()))
        return kept


def _subsets_by_size(largest: int) -> Tensor:
    """[largest + 1, 2^largest]: row n has all subsets of n things as bits, the smallest first, then -1."""
    codes = torch.arange(1 << largest)
    size = sum((codes >> bit) & 1 for bit in range(largest)) if largest else torch.zeros_like(codes)
    order = torch.as_tensor(size).argsort(stable=True)
    rows = torch.full((largest + 1, len(codes)), -1)
    for n in range(largest + 1):
        mine = order[order < (1 << n)]
        rows[n, : len(mine)] = mine
    return rows
