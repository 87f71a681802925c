"""Fidelity that does not take the model far from the graphs it knows: R-Fidelity, and F-Fidelity after fine-tuning.

Plain fidelity removes a whole explanation, or all but it, and so asks the model about graphs unlike any it was trained
on: it may answer otherwise for that reason alone. Both measures here remove a few random edges at a time instead.

The unit of both is an *edge*, as published: it belongs to the explanation if any layer keeps it, and a removed edge has
its messages replaced by zero at every layer. Degrees remain as they are. Everything is said about the model's own
prediction; the publications take the label, which is the same wherever the model is right.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphmask.analysis.scoring import run_each, studied
from graphmask.analysis.tables import table
from graphmask.devices import back, double, forked
from graphmask.divergence import Divergence
from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from graphmask.explanation import Explanation
from graphmask.graphs import batches
from graphmask.tapping.restore import freeze

if TYPE_CHECKING:
    import polars

#: Of the publications: R-Fidelity's shares of edges, F-Fidelity's, and how often either draws.
ALPHA_PLUS, ALPHA_MINUS, ALPHA, BETA, SAMPLES = 0.1, 0.9, 0.5, 0.1, 50
ACCURACY, PROBABILITY, DIVERGENCE = "accuracy", "probability", "divergence"


def robust_fidelity(
    method: Method,
    loader: Iterable[Any],
    explanations: Iterable[Explanation] | None = None,
    *,
    alpha_plus: float = ALPHA_PLUS,
    alpha_minus: float = ALPHA_MINUS,
    samples: int = SAMPLES,
    sizes: Sequence[float] | None = None,
    seed: int = 0,
    allow_infeasible: bool = False,
) -> polars.DataFrame:
    r"""R-Fidelity (Zheng et al., ICLR 2024, arXiv 2310.01820).

    .. math::
        \mathrm{Fid}_{\alpha_1,+} = \mathbb E[s(G) - s(G - E_{\alpha_1}(S))], \qquad
        \mathrm{Fid}_{\alpha_2,-} = \mathbb E[s(G) - s(S + E_{\alpha_2}(G - S))], \qquad
        \mathrm{Fid}_\Delta = \mathrm{Fid}_+ - \mathrm{Fid}_-

    with the explanation :math:`S`, a random subset :math:`E_\alpha` that has each edge with probability :math:`\alpha`,
    and the model's support :math:`s` for its own prediction. With shares 1 and 0 these are the plain fidelities.

    It can show whether a few edges of the explanation matter more than a few others, on graphs the model may know. It
    cannot show whether the explanation is complete: with 10 % of it missing, a model that needs one edge of many seldom
    misses it. A larger explanation has a smaller share of its edges that matter, and loses by that alone.

    Args:
        method, loader, explanations, allow_infeasible: as in `sufficiency`.
        alpha_plus: share of the explanation that is removed.
        alpha_minus: share of the other edges that is left.
        samples: draws per graph.
        sizes: fractions of each graph's edges, highest scores first, that are taken as its explanation, one after the
            other; the mean over them is told. By default what the method keeps.
        seed: of the draws, which are the same for every method and however graphs are batched.

    Columns:
        measure: "accuracy", :math:`s` is 1 if the prediction is the same; "probability" of it (neither of a
            regression); "divergence", how far the output moves from that of the whole graph.
        plus: high is good. minus: low is good. delta: their difference.
    """
    for name, value in (("alpha_plus", alpha_plus), ("alpha_minus", alpha_minus)):
        _check_share(name, value)
    sums = _Sums()
    with studied(method, loader, allow_infeasible, explanations) as cases:
        for case, choice in cases:
            for explained in _explained(case, choice, sizes):
                plus = torch.where(explained, alpha_plus, 0.0)
                minus = torch.where(explained, 0.0, 1 - alpha_minus)
                sums.add(case, case.trace.output, plus, minus, samples, seed)
    return sums.table()


def finetuned_fidelity(
    method: Method,
    loader: Iterable[Any],
    explanations: Iterable[Explanation] | None = None,
    *,
    tuned: nn.Module,
    alpha: float = ALPHA,
    beta: float = BETA,
    samples: int = SAMPLES,
    sizes: Sequence[float] | None = None,
    seed: int = 0,
    allow_infeasible: bool = False,
) -> polars.DataFrame:
    r"""F-Fidelity (Zheng et al., ICLR 2025, arXiv 2410.02970): fine-tune on random masks first, then measure.

    .. math::
        \mathrm{FFid}_\pm = \mathbb E[s_r(G) - s_r(G - E_{\rho_\pm}(S_\pm))], \qquad
        \rho_\pm = \min(\alpha, \beta |G| / |S_\pm|)

    with :math:`S_+` the explanation, :math:`S_-` all other edges, and the support :math:`s_r` of a model that was
    fine-tuned (`fine_tuned`) on graphs without a random share :math:`\beta` of their edges. No more than that share of
    a graph is ever removed, so the fine-tuned model knows such graphs.

    It can rank explanations of equal size by which edges matter, without blaming them for graphs the model never saw.
    It speaks of another model than the explained one, although a close one. It cannot show sufficiency, for most of the
    graph is always there; where the model can spare any tenth of its edges, all explanations score alike.

    Args:
        method, loader, explanations, allow_infeasible, samples, sizes, seed: as in `robust_fidelity`. The authors
            take the mean over sizes from 5 to 95 %.
        tuned: of `fine_tuned`, with the same ``beta``.
        alpha: share of the explanation, or of the rest, that is removed, where that is little of the graph.
        beta: share of a graph that is removed at most.

    Columns:
        as in `robust_fidelity`.
    """
    for name, value in (("alpha", alpha), ("beta", beta)):
        _check_share(name, value)
    sums = _Sums()
    with studied(method, loader, allow_infeasible, explanations) as cases:
        for case, choice in cases:
            subject = replace(case.subject, model=tuned)
            with torch.no_grad():
                known = subject(case.batch)
            other = replace(case, subject=subject, trace=replace(case.trace, output=known))
            for explained in _explained(case, choice, sizes):
                plus = torch.where(explained, _ratio(case, explained, alpha, beta), 0.0)
                minus = torch.where(explained, 0.0, _ratio(case, _sent(case) & ~explained, alpha, beta))
                sums.add(other, case.trace.output, plus, minus, samples, seed)
    return sums.table()


def fine_tuned(
    method: Method,
    loader: Iterable[Any],
    *,
    beta: float = BETA,
    steps: int = 1000,
    learning_rate: float = 1e-4,
    weight_decay: float = 1e-4,
    labels: bool | None = None,
    seed: int = 0,
) -> nn.Module:
    """A copy of the method's model, trained further on graphs each of which lacks a random share of its edges.

    Which edges are missing depends on no explanation, so one copy judges all methods. The user's model is not changed.

    Args:
        method: provides the model, how to run it and its divergence.
        loader: batches of the data the model was trained on.
        beta: share of each graph's edges that is left out, rounded down, drawn anew at every step.
        steps: of Adam. The authors take 100 epochs of an image set; this is a bound on work.
        learning_rate, weight_decay: as published.
        labels: learn the labels ``batch.y``, as published; False learns the model's own predictions. By default labels
            where there is one per output row.
        seed: of the draws, and of the model's own dropout.
    """
    _check_share("beta", beta)
    batches.check_loader(loader, "the loader")
    tuned = copy.deepcopy(method.model)
    generator = torch.Generator().manual_seed(seed)
    with method.subject.frozen(), forked(method.subject.device):
        torch.manual_seed(seed)
        tuned.train()
        for parameter in tuned.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        optimiser = torch.optim.Adam(tuned.parameters(), lr=learning_rate, weight_decay=weight_decay)
        for number, batch in zip(range(steps), _again(loader), strict=False):
            case = method.case(batch, f"batch {number}")
            gates = case.trace.carried & ~_left_out(case, beta, generator)
            with torch.enable_grad():
                tuned_case = replace(case, subject=replace(case.subject, model=tuned))
                output = tuned_case.run(gates.to(case.trace.output.dtype), case.zeros())
                loss = _loss(case, output, labels)
                optimiser.zero_grad()
                if loss.requires_grad:
                    loss.backward()
                    optimiser.step()
    freeze(tuned, training=False)
    return tuned


def confidence(divergence: Divergence, original: Tensor, output: Tensor) -> Tensor | None:
    """[rows] probability that ``output`` gives to what ``original`` predicts; None where outputs are no classes.

    Of several labels the probability of all of them together; of a sequence the geometric mean over positions.
    """
    if not divergence.has_classes or divergence.name == "custom":
        return None
    return (-divergence.own_loss(original, output)).exp()


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise GraphMaskError(f"Expected {name} to be a share from 0 to 1, got {value!r}.")


def _sent(case: Case) -> Tensor:
    """bool [E] edges along which any site sends"""
    return case.trace.carried.any(0)


def _explained(case: Case, choice: Choice, sizes: Sequence[float] | None) -> Iterator[Tensor]:
    """bool [E] the explanation; with ``sizes``, one after the other, so many of each graph's edges."""
    if sizes is None:
        yield choice.kept.any(0)
        return
    sent, owner = _sent(case), case.split.edge_graph
    scores = choice.scores.where(case.trace.carried, -torch.inf).amax(0)
    rank = case.gate_order(-scores[None], sent[None])[0]
    total = double(case.gates_per_graph(sent[None]))
    for size in sizes:
        _check_share("each of sizes", size)
        yield sent & (rank < back((size * total - 1e-9).ceil().long(), rank.device)[owner])


def _ratio(case: Case, part: Tensor, alpha: float, beta: float) -> Tensor:
    """[E] the probability with which an edge of the ``part`` is removed, by its graph"""
    edges, size = (double(case.gates_per_graph(some[None])) for some in (_sent(case), part))
    return back((beta * edges / size.clamp_min(1)).clamp_max(alpha), part.device)[case.split.edge_graph]


def _left_out(case: Case, beta: float, generator: torch.Generator) -> Tensor:
    """bool [E] of each graph so many edges, rounded down, at random"""
    sent, owner = _sent(case), case.split.edge_graph
    draws = torch.rand(len(owner), generator=generator).to(owner.device)
    wanted = back((beta * double(case.gates_per_graph(sent[None])) + 1e-9).floor().long(), owner.device)
    return sent & (case.gate_order(draws[None], sent[None])[0] < wanted[owner])


def _again(loader: Iterable[Any]) -> Iterator[Any]:
    """The batches of a loader, pass after pass; ends with a loader that has none."""
    while True:
        any_batch = False
        for batch in loader:
            any_batch = True
            yield batch
        if not any_batch:
            return


def _loss(case: Case, output: Tensor, labels: bool | None) -> Tensor:
    known, original, divergence = None, case.trace.output, case.divergence
    if labels is not False:
        known = batches.labels_of(case.batch, output.shape[0])[0]
        fits = known is not None and known.numel() == output.shape[0]
        if labels and not fits:
            raise GraphMaskError("Expected labels batch.y, one per output row, found none. Pass labels=False.")
        known = known.view(-1) if known is not None and fits else None
    if known is not None and divergence.name in {"kl", "js", "cross_entropy"} and output.dim() == 2:
        return F.cross_entropy(divergence.logits(output), known.long())
    if known is not None and divergence.name == "bernoulli" and output.numel() == len(known):
        return F.binary_cross_entropy_with_logits(divergence.logits(output).view(-1), known.to(output.dtype))
    if known is not None and not divergence.has_classes and output.numel() == len(known):
        return F.mse_loss(output.view(-1), known.to(output.dtype))
    return divergence.own_loss(original, output).mean()


@dataclass
class _Sums:
    """Over output rows and draws, by measure."""

    plus: dict[str, float] = field(default_factory=dict)
    minus: dict[str, float] = field(default_factory=dict)
    rows: int = 0

    def add(self, case: Case, target: Tensor, plus: Tensor, minus: Tensor, samples: int, seed: int) -> None:
        """Draw with these probabilities [E] of removal; ``target`` is the output whose prediction counts."""
        if samples < 1:
            raise GraphMaskError(f"Expected at least one sample, got {samples}.")
        self.rows += samples * case.trace.output.shape[0]
        for sums, removal in ((self.plus, plus), (self.minus, minus)):
            outputs = run_each(case, _draws(case, removal, samples, seed), case.zeros())
            for output in outputs:
                for measure, value in _changes(case, target, output).items():
                    sums[measure] = sums.get(measure, 0.0) + float(double(value).sum())

    def table(self) -> polars.DataFrame:
        rows = []
        for measure, total in self.plus.items():
            plus, minus = total / max(self.rows, 1), self.minus[measure] / max(self.rows, 1)
            rows.append((measure, plus, minus, plus - minus))
        return table({"measure": str, "plus": float, "minus": float, "delta": float}, rows)


def _draws(case: Case, removal: Tensor, samples: int, seed: int) -> Iterator[Tensor]:
    """[L, E] gates, all layers alike; the same for a graph whatever batch it is in."""
    for sample in range(samples):
        uniform = case.uniform(seed * 1_000_003 + 7919 * sample)[0]
        yield case.trace.carried & (uniform.to(removal.dtype) >= removal)


def _changes(case: Case, target: Tensor, output: Tensor) -> dict[str, Tensor]:
    """[rows] how much less the output supports the target's prediction than that of the whole graph, by measure."""
    divergence, whole = case.divergence, case.trace.output
    changes: dict[str, Tensor] = {}
    if divergence.has_classes:
        changes[ACCURACY] = double(divergence.flips(target, output)) - double(divergence.flips(target, whole))
    before = confidence(divergence, target, whole)
    if before is not None:
        after = confidence(divergence, target, output)
        assert after is not None
        changes[PROBABILITY] = double(before) - double(after)
    changes[DIVERGENCE] = divergence(whole, output).clamp_min(0)
    return changes
