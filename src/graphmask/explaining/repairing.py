"""Repair of single explanations after the choice: reopen messages until one holds. Also the counterfactual search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Batch

from graphmask.devices import back, double
from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.rows import nodes_read, receptive_field
from graphmask.graphs.groups import rank_within
from graphmask.tapping.trace import nothing, record

#: What is raised by batches that cannot be taken apart, and by a forward that misses something in the parts.
_CANNOT = (AttributeError, GraphMaskError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
#: Scores this close say the same: among these, gates go in the order of what they would do to the output.
BAND = 0.05
#: What two gates would do to the output is the same where it differs by less than this part of the most that a gate of
#: their graph would do: by so much the same graph may differ in another batch.
PART = 1e-4
#: Times that the gates to reopen are chosen, each time among those chosen before.
ROUNDS = 4
#: Times that gates are opened for wrong rows at most; so many times, one for each.
STEPS, PATIENCE = 32, 8
#: Gates, or groups of gates, of a graph that are then tried one by one, at most, and how often.
ONE_BY_ONE, PASSES = 32, 2


def holds(case: Case, output: Tensor) -> Tensor:
    """bool [G]: within tolerance, and the same prediction in every row; as `Explanation` will say."""
    distance, flips = case.distance_and_flips(output)
    return back(double(distance) <= case.tolerance, distance.device) & (flips == 0)


class Repaired(NamedTuple):
    kept: Tensor  #: bool [L, E]
    masked: Tensor  #: the output with these gates
    reopened: Tensor  #: [G] how many gates
    why: list[str | None]  #: [G] why an explanation does not hold though nothing of its graph is dropped any more


def repair(case: Case, choice: Choice, masked: Tensor) -> Repaired:
    """Per graph, by bisection, reopen the fewest dropped gates, best first, until its explanation holds.

    Best are the highest scores; among equal scores, the gates whose opening brings the output nearest to the original,
    to first order. For a graph with many output rows, see `_for_its_rows`. Then as many as possible of the reopened
    gates are shut again, those with the least effect first, at last one by one. Only graphs whose explanation does not
    hold are run again.
    """
    broken = ~holds(case, masked)
    if not bool(broken.any()):
        return as_is(case, choice, masked)
    kept, masked = _repair(case, choice, broken, masked)
    reopened = case.gates_per_graph(kept & ~choice.kept).cpu()
    with torch.no_grad():
        return Repaired(kept, masked, reopened, _why(case, choice, masked))


def as_is(case: Case, choice: Choice, masked: Tensor) -> Repaired:
    """The choice unchanged."""
    count = case.split.count
    return Repaired(choice.kept, masked, torch.zeros(count, dtype=torch.long), [None] * count)


def _repair(case: Case, choice: Choice, broken: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
    part = _part(case, choice, broken)
    if part is not None:
        some, chosen, edges, rows = part
        reopened, output = _reopen(some, chosen, torch.ones_like(broken[broken]))
        kept, masked = choice.kept.clone(), masked.clone()
        kept[:, edges], masked[rows] = reopened, output
        if bool(holds(case, masked).all()):
            return kept, masked
    return _reopen(case, choice, broken)


def counterfactual(case: Case, choice: Choice) -> tuple[Tensor, Tensor]:
    """The fewest kept gates, highest scores first, that change the prediction when they are shut as well.

    Returns bool [L, E], and bool [G] that is False where even shutting all of them does not change the prediction; no
    gates are marked there.
    """
    kept = choice.kept & case.trace.carried
    rank, count = _ranks(case, kept, -choice.scores)

    def shut(number: Tensor) -> Tensor:
        return kept & ~(rank < number[case.split.edge_graph])

    def changes(number: Tensor) -> Tensor:
        return case.flips(case.run(shut(number), choice.baselines)) > 0

    with torch.no_grad():
        there = changes(count)
        fewest = _fewest(changes, torch.where(there, 1, 0), torch.where(there, count, 0))
    return kept & ~shut(fewest), there


def _reopen(case: Case, choice: Choice, broken: Tensor) -> tuple[Tensor, Tensor]:
    kept, going = choice.kept, broken  # [G] each graph goes its own way, whatever others are in the batch
    candidates, chosen = _for_its_rows(case, choice, broken)
    opened = kept | (candidates & chosen[case.split.edge_graph])
    first = torch.where(chosen[case.split.edge_graph], 0, _bands(choice))
    for _ in range(ROUNDS):
        pull = _pull(case, opened, choice.baselines, case.distance)
        opened = _fewest_first(case, choice, candidates, first, pull, going, lambda output: holds(case, output))
        going = going & (case.gates_per_graph(candidates & ~opened) > 0)
        candidates, first = opened & ~kept, torch.zeros_like(first)  # from now on by what each does where it is open
        if not bool(going.any()):
            break
    return _verified(case, choice, _one_alone(case, choice, _without_each(case, choice, opened)))


def _bands(choice: Choice) -> Tensor:
    """[L, E] lower for higher scores, the same for scores that count as equal."""
    return -(choice.scores / BAND).round()


def _for_its_rows(case: Case, choice: Choice, broken: Tensor) -> tuple[Tensor, Tensor]:
    """bool [L, E]: dropped gates that together are enough; bool [G]: False where these are simply all of them.

    Of many output rows a few may be wrong, each because a few messages are missing; in the order of scores alone nearly
    all gates of the graph would come before the last of these. So only gates count from which a wrong row can be
    reached, as gradients tell; best scores first, and few at a time, because rows that are right again need no more.
    """
    split, carried = case.split, case.trace.carried
    owner, dropped = split.edge_graph, carried & ~choice.kept & broken[split.edge_graph]
    several = broken & (torch.bincount(split.row_graph, minlength=split.count) > 1)
    if not bool(several.any()):
        return dropped, several

    def near(output: Tensor) -> Tensor:
        return back(double(case.distance(output)) <= case.tolerance, output.device)

    opened, bands = choice.kept, _bands(choice)
    with torch.no_grad():
        far = several & ~near(case.run(opened, choice.baselines))
    if bool(far.any()):
        pull = _pull(case, opened, choice.baselines, case.distance)
        opened = _fewest_first(case, choice, dropped & far[owner], bands, pull, far, near)
    for step in range(STEPS):
        with torch.no_grad():
            output = case.run(opened, choice.baselines)
        failing = several & ~holds(case, output)
        left = carried & ~opened & failing[owner]
        if not bool(left.any()):
            break
        wrong, far = case.divergence.flips(case.trace.output, output), ~near(output)
        if step < PATIENCE:
            pull = _pull(case, opened, choice.baselines, partial(_loss, case, wrong, far))
            useful = left & (pull > 0)
        else:  # first order has not told enough: then all from which they can be reached, after which they are right
            away = far[split.row_graph] & (case.divergence(case.trace.output, output) > case.tolerance)
            useful = left & _field(case, wrong | away)
        useful = useful | (left & (case.gates_per_graph(useful) == 0)[owner])
        if step < PATIENCE:
            rank, _ = _ranks(case, useful, bands, -pull, -choice.scores)
            useful = useful & (rank < torch.bincount(split.row_graph[wrong], minlength=split.count).clamp_min(1)[owner])
        opened = opened | useful
    solved = several & ~failing
    return torch.where(solved[owner], opened & ~choice.kept, dropped), solved


def _loss(case: Case, wrong: Tensor, far: Tensor, output: Tensor) -> Tensor:
    """The loss over ``wrong`` rows (bool) plus the divergence of the graphs ``far`` (bool) beyond the tolerance."""
    loss = (case.distance(output) * far).sum()
    if bool(wrong.any()):
        loss = loss + case.divergence.own_loss(case.trace.output[wrong], output[wrong]).sum()
    return loss


def _field(case: Case, rows: Tensor) -> Tensor:
    """bool [L, E]: messages from which these rows (bool) of the output can be reached; all where that is not known."""
    at, count = rows.nonzero().view(-1), len(rows)
    asked = case.subject.rows
    if asked is not None:
        at, count = torch.tensor(asked.rows, device=at.device)[at], asked.count
    return receptive_field(case.trace, nodes_read(case.batch, case.trace, tuple(at.tolist()), count))


def _fewest_first(
    case: Case,
    choice: Choice,
    candidates: Tensor,
    first: Tensor,
    pull: Tensor,
    going: Tensor,
    enough: Callable[[Tensor], Tensor],
) -> Tensor:
    """[L, E] the kept gates and, by bisection, as few candidates as are enough; all of them where not ``going``."""
    rank, count = _ranks(case, candidates, first, -pull, -choice.scores)

    def best(number: Tensor) -> Tensor:
        return choice.kept | (candidates & (rank < number[case.split.edge_graph]))

    with torch.no_grad():
        low = torch.where(going, 0, count)
        return best(_fewest(lambda number: enough(case.run(best(number), choice.baselines)), low, count))


def _verified(case: Case, choice: Choice, opened: Tensor) -> tuple[Tensor, Tensor]:
    """What is open in the end, with its output; where that does not hold, all of the graph is opened, if this helps.

    It holds unless everything of the graph is open, or the model mixes the graphs of a batch: then the gates that were
    enough for one graph may not be enough once others have changed.
    """
    carried, owner = case.trace.carried, case.split.edge_graph

    def run(gates: Tensor) -> tuple[Tensor, Tensor]:
        output = case.run(gates, choice.baselines)
        return output, holds(case, output)

    with torch.no_grad():
        masked, fine = run(opened)
        for _ in range(2):  # of these graphs all, and of those that this upsets
            wider = opened | (carried & ~fine[owner])
            if torch.equal(wider, opened):
                break
            opened = wider
            masked, fine = run(opened)
        if not bool(fine.all()) and not torch.equal(opened, carried):
            output, better = run(carried)
            if bool((better & ~fine).any()):
                opened, masked = carried.clone(), output
    return opened, masked


def _why(case: Case, choice: Choice, masked: Tensor) -> list[str | None]:
    """For each graph whose explanation still does not hold, the reason."""
    fine = holds(case, masked).tolist()
    if all(fine):
        return [None] * len(fine)
    original, again = case.trace.output, case.subject(case.batch)
    steady = again.shape == original.shape and torch.allclose(again, original, rtol=1e-4, atol=1e-5)
    opened = case.run(case.trace.carried, choice.baselines) if steady else again
    whole, itself = case.distance(opened).tolist(), case.distance(original).tolist()
    cause = "with every message open" if steady else "not deterministic: run again on the same data, unmasked,"

    def tell(graph: int) -> str:
        if not itself[graph] <= case.tolerance:
            reason = f"the divergence takes the model's output to be {itself[graph]:.3g} away from itself"
        else:
            reason = f"{cause} the model's output is {whole[graph]:.3g} away from the original"
        return f"{reason} (tolerance {case.tolerance:.3g})"

    return [None if held else tell(graph) for graph, held in enumerate(fine)]


def _without_each(case: Case, choice: Choice, opened: Tensor) -> Tensor:
    """Shut reopened gates again, one after the other, where the explanation holds without them; the least useful first.

    Where there are too many, they are tried in groups; then the groups that are left are divided and tried again.
    """
    owner, more = case.split.edge_graph, torch.ones(case.split.count, dtype=torch.bool, device=opened.device)
    for _ in range(PASSES):
        pull = _pull(case, opened, choice.baselines, case.distance)
        reopened = opened & ~choice.kept & more[owner]
        rank, count = _ranks(case, reopened, pull, choice.scores)
        size = (count + ONE_BY_ONE - 1) // ONE_BY_ONE
        group = torch.where(reopened, rank // size.clamp_min(1)[owner], -1)
        with torch.no_grad():
            for turn in range(min(int(count.max()), ONE_BY_ONE)):
                tried = opened & (group != turn)
                fine = holds(case, case.run(tried, choice.baselines))
                opened = torch.where(fine[owner], tried, opened)
        more = size > 1
        if not bool(more.any()):
            break
    return opened


def _one_alone(case: Case, choice: Choice, opened: Tensor) -> Tensor:
    """Where one of several reopened gates is enough by itself, keep only that one: the others may merely compensate."""
    reopened = opened & ~choice.kept
    rank, count = _ranks(case, reopened, -choice.scores)
    done, owner = (count < 2) | (count > ONE_BY_ONE), case.split.edge_graph
    with torch.no_grad():
        for turn in range(ONE_BY_ONE):
            done = done | (count <= turn)
            if bool(done.all()):
                break
            tried = torch.where(done[owner], opened, choice.kept | (reopened & (rank == turn)))
            enough = holds(case, case.run(tried, choice.baselines)) & ~done
            opened = torch.where(enough[owner], tried, opened)
            done = done | enough
    return opened


def _fewest(enough: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """[G] by bisection, the smallest number that is enough; ``high`` is assumed to be enough."""
    while bool((low < high).any()):
        middle = (low + high) // 2
        suffices = enough(middle)
        low, high = torch.where(suffices, low, middle + 1), torch.where(suffices, middle, high)
        low = torch.minimum(low, high)
    return high


def _ranks(case: Case, gates: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
    """[L, E] the position of each of ``gates`` in its graph, lowest values first, and [G] how many there are.

    Ties are broken by the next of ``values``, and at last by the order in the graph.
    """
    at = gates.nonzero(as_tuple=True)
    graph = case.split.edge_graph[at[1]]
    order = torch.arange(len(graph), device=graph.device)
    for value in reversed(values):
        level = _levels(value[at], graph) if len(values) > 1 else value[at]
        order = order[level[order].argsort(stable=True)]
    position = torch.empty_like(graph)
    position[order] = rank_within(graph[order], case.split.count)
    rank = torch.full(gates.shape, gates.numel(), device=gates.device)
    rank[at] = position
    return rank, torch.bincount(graph, minlength=case.split.count)


def _levels(values: Tensor, graph: Tensor) -> Tensor:
    """Whole numbers in the order of each graph's values; values that differ only by rounding get the same number."""
    device, values = graph.device, double(values)
    graph = graph.to(values.device)
    order = values.argsort(stable=True)
    order = order[graph[order].argsort(stable=True)]
    value, level = values[order], torch.zeros_like(graph)
    new = (value.diff() > PART) | (graph[order].diff() > 0)
    # Of many gates, each may be close to the next: not so far that the first and the last are the same.
    start = torch.where(new, torch.arange(1, len(value), device=new.device), 0).cummax(0).values
    far = ((value[1:] - value[start]) / (10 * PART)).floor()
    level[order[1:]] = (new | (far.diff(prepend=far[:1]) > 0)).cumsum(0)
    return back(level, device)


def _pull(case: Case, kept: Tensor, baselines: Sequence[Tensor], loss: Callable[[Tensor], Tensor]) -> Tensor:
    """[L, E] how much an open gate lowers the loss of the output, to first order; zero where no gradient passes.

    Divided by the largest of its graph. Zero also where the output equals the original up to rounding: gradients vanish
    there, and what is left of them is rounding.
    """
    gates, original = kept.to(case.trace.output.dtype), case.trace.output
    try:
        with torch.enable_grad():
            gates.requires_grad_()
            output = case.run(gates, baselines)
            total = loss(output).sum()
            if not total.requires_grad:
                return torch.zeros_like(gates)
            (slope,) = torch.autograd.grad(total, gates)
    except (GraphMaskError, RuntimeError):  # a model that gradients cannot pass is repaired by its scores alone
        return torch.zeros_like(kept, dtype=torch.float)
    pull, split = -slope.nan_to_num(), case.split

    def largest(values: Tensor, owner: Tensor) -> Tensor:
        flat = double(values.detach()).abs().reshape(len(values), -1).amax(1)
        return flat.new_zeros(split.count).scatter_reduce(0, owner.to(flat.device), flat.nan_to_num(), "amax")

    if not pull.numel():
        return pull
    rounding = 10 * torch.finfo(original.dtype).eps * largest(original, split.row_graph)
    moved, most = largest(output - original, split.row_graph), largest(pull.t(), split.edge_graph)
    scale = torch.where((most > 0) & (rounding < PART * moved), 1 / most, 0)
    return back(scale, pull.device)[split.edge_graph] * pull


def _part(case: Case, choice: Choice, wanted: Tensor) -> tuple[Case, Choice, Tensor, Tensor] | None:
    """The case restricted to these graphs, with its choice, edges and rows; None if it cannot be restricted."""
    batch, split = case.batch, case.split
    if not isinstance(batch, Batch) or case.whole or int(wanted.sum()) == split.count:
        return None
    edges = wanted[split.edge_graph].nonzero().view(-1)
    rows = wanted[split.row_graph].nonzero().view(-1)
    try:
        some = case.subject.take(Batch.from_data_list(batch.index_select(wanted.cpu())))
        with torch.no_grad():
            trace = record(case.subject, some, nothing)
    except _CANNOT:
        return None
    fits = trace.edge_index.shape[1] == len(edges) and trace.output.shape == case.trace.output[rows].shape
    if not fits or not torch.allclose(trace.output, case.trace.output[rows], rtol=1e-4, atol=1e-5):
        return None  # the model mixes the graphs of a batch
    trace.carried, trace.output = case.trace.carried[:, edges], case.trace.output[rows]
    part = Case(case.subject, case.tolerance, some, trace)
    if not torch.equal(part.split.within(trace.edge_index), split.within(case.trace.edge_index)[:, edges]):
        return None
    baselines: Sequence[Tensor] = [b[wanted] if b.dim() > 1 else b for b in choice.baselines]
    return part, Choice(choice.scores[:, edges], choice.kept[:, edges], baselines), edges, rows
