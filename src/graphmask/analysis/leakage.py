"""Can the prediction be predicted from the mask itself?

A gate network that knows the answer could write it into the pattern of open gates: the masked model would then agree
with the original for the wrong reason. So a probe (logistic regression) tries to tell the model's prediction from
what should not suffice for it, and is compared with a probe on masks shuffled within each graph and layer, which keep
how many gates are open but not which. Much better than shuffled is a warning, not a proof: an honest explanation of a
count also shows in the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from graphmask.analysis.scoring import studied
from graphmask.analysis.side_by_side import Block, side_by_side
from graphmask.analysis.tables import share_interval, table
from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from graphmask.explanation import Explanation
from graphmask.tapping.messages import Answer, Mask

if TYPE_CHECKING:
    import polars

FOLDS = 5
#: Examples to fit and judge a probe.
FEWEST = 2 * FOLDS


def mask_leakage(
    explanations: Iterable[Explanation],
    *,
    label: Callable[[Explanation], int] | None = None,
    shuffles: int = 5,
    seed: int = 0,
    most: int = 10_000,
) -> polars.DataFrame:
    """Can the prediction be predicted from the mask pattern alone?

    The probe sees, per layer and edge type, how many edges are kept, their share of the edges of this type, and their
    share of the kept. It is judged on graphs it was not fitted on (five-fold cross-validation).

    Args:
        label: the class to tell of an explanation; by default what the model predicts: the highest of several outputs,
            the sign of a single one. Needed where a graph has several output rows.
        shuffles: how many times masks are shuffled; accuracy is the mean.
        seed: of shuffles and folds.
        most: explanations to use, from the first on.

    Columns:
        features: "mask", "shuffled mask", or "none": the most frequent class.
        accuracy: on held-out graphs.
        low, high: its 95 % interval over graphs (Wilson's).
        examples: graphs.
    """
    generator = torch.Generator().manual_seed(seed)
    labels: list[int] = []
    masks, shuffled = _Features(), [_Features() for _ in range(shuffles)]
    for block in side_by_side(islice(explanations, most)):
        labels += [_label(explanation, label) for explanation in block.explanations]
        masks.add(block, block.kept)
        for features in shuffled:
            features.add(block, shuffle(block.kept, block.carried, block.graph, generator))
    return _compare(masks.matrix(), [features.matrix() for features in shuffled], torch.tensor(labels), seed)


def baseline_leakage(
    method: Method,
    loader: Iterable[Any],
    *,
    shuffles: int = 5,
    seed: int = 0,
    most: int = 10_000,
    allow_infeasible: bool = False,
) -> polars.DataFrame:
    """Can the prediction be predicted from the positions of the baselines, without any message?

    The model runs with every dropped message replaced by its baseline and every *kept* message by zero: nothing that
    was sent is left but which edges carry the baseline. The probe sees the model's output. The model still sees its
    nodes, with shuffled masks as well: compare the two.

    Args, columns: as in `mask_leakage`; examples are output rows.
    """
    generator = torch.Generator().manual_seed(seed)
    outputs: list[Tensor] = []
    shuffled: list[list[Tensor]] = [[] for _ in range(shuffles)]
    labels: list[Tensor] = []
    with studied(method, loader, allow_infeasible) as cases:
        for case, choice in cases:
            if case.trace.graphs is not None:
                raise GraphMaskError("Expected messages along lists of edges, got the adjacency-matrix form.")
            labels.append(_classes(case))
            carried, owner = case.trace.carried, case.split.edge_graph
            outputs.append(_only_baselines(case, choice, choice.kept))
            for parts in shuffled:
                parts.append(_only_baselines(case, choice, shuffle(choice.kept, carried, owner, generator)))
            if sum(map(len, labels)) >= most:
                break
    matrices = [torch.cat(parts)[:most].cpu().double() for parts in (outputs, *shuffled)]
    return _compare(matrices[0], matrices[1:], torch.cat(labels)[:most].cpu(), seed)


@torch.no_grad()
def _only_baselines(case: Case, choice: Choice, kept: Tensor) -> Tensor:
    """[rows, ...] the output with baselines where ``kept`` is False and zeros where it is True."""
    left_out = case.zeros()

    def answer(site: int, edges: Tensor) -> Answer:
        own = edges < 0  # the layer's own self-loops are never gated
        baseline = choice.baselines[site]
        baseline = baseline[case.split.edge_graph[edges]] if baseline.dim() > 1 else baseline.expand(len(edges), -1)
        return own, torch.where((kept[site, edges] & ~own)[:, None], left_out[site], baseline)

    every = torch.arange(kept.shape[1], device=kept.device)
    mask = Mask(
        lambda call: answer(call.site, every if call.edges is None else call.edges), lambda site: answer(site, every)
    )
    with case.subject.tap(mask, case.trace.edge_map):
        return case.subject(case.batch).flatten(1)


def _classes(case: Case) -> Tensor:
    """[rows] what the model predicts."""
    if not case.divergence.has_classes:
        raise GraphMaskError("Expected a model that predicts classes, got a regression: there is no class to leak.")
    output = case.trace.output
    if output.dim() == 2 and output.shape[1] > 1 and case.divergence.name != "bernoulli":
        return output.argmax(1)
    if output.numel() != len(output):
        raise GraphMaskError(f"Expected one prediction per output row, got outputs of shape {tuple(output.shape)}.")
    return (case.divergence.logits(output).view(-1) > 0).long()


def _label(explanation: Explanation, label: Callable[[Explanation], int] | None) -> int:
    if label is not None:
        return int(label(explanation))
    output = explanation.original
    if output.shape[0] != 1 or output.dim() > 2:
        raise GraphMaskError(
            f"Expected one output row per graph, got outputs of shape {tuple(output.shape)}. Pass label=..."
        )
    row = output.view(-1)
    return int(row.argmax()) if len(row) > 1 else int(row[0] > 0)


def shuffle(kept: Tensor, carried: Tensor, graph: Tensor, generator: torch.Generator) -> Tensor:
    """The mask with each layer's gates in random order within each graph; nothing is kept where nothing is sent."""
    mixed = torch.zeros_like(kept)
    for row, sent, mixed_row in zip(kept, carried, mixed, strict=True):
        edges = sent.nonzero().view(-1)
        edges = edges[graph[edges].argsort(stable=True)]
        random = torch.rand(len(edges), generator=generator, dtype=torch.double)
        order = random.argsort().to(kept.device)
        order = order[graph[edges][order].argsort(stable=True)]
        mixed_row[edges[order]] = row[edges]
    return mixed


class _Features:
    """Features of masks, [G, ...], gathered block by block; the set of edge types is known after the last block."""

    def __init__(self) -> None:
        self.graphs = 0
        self.layers = 0
        self.parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []  # graph, layer, type, kept; one row per message

    def add(self, block: Block, kept: Tensor) -> None:
        layer, edge = block.carried.nonzero().t()
        graph, kind, open_ = block.graph[edge] + self.graphs, block.edge_type[edge], kept[layer, edge]
        cells, cell = torch.stack([graph, layer, kind]).unique(dim=1, return_inverse=True)
        counts = torch.zeros(2, cells.shape[1], dtype=torch.double)
        counts = counts.index_add(1, cell, torch.stack([torch.ones_like(open_), open_]).double())
        self.parts.append((cells[0], cells[1], cells[2], counts))
        self.graphs += block.graphs
        self.layers = block.sites

    def matrix(self) -> Tensor:
        graph, layer, kind = (torch.cat([part[number] for part in self.parts]) for number in range(3))
        counts = torch.cat([part[3] for part in self.parts], 1)
        types, kind = kind.unique(return_inverse=True)
        sent, opened = torch.zeros(2, self.graphs, self.layers, max(len(types), 1), dtype=torch.double)
        sent[graph, layer, kind], opened[graph, layer, kind] = counts
        # All types together are one more.
        sent, opened = (torch.cat([part, part.sum(2, keepdim=True)], 2) for part in (sent, opened))
        return torch.stack([opened, opened / sent.clamp_min(1), opened / opened[:, :, -1:].clamp_min(1)], 3).flatten(1)


# The probe -------------------------------------------------------------------------------------------------------


def _compare(features: Tensor, shuffled: Sequence[Tensor], labels: Tensor, seed: int) -> polars.DataFrame:
    if len(labels) < FEWEST:
        raise GraphMaskError(f"Expected at least {FEWEST} examples to fit and judge a probe, got {len(labels)}.")
    classes, labels = labels.unique(return_inverse=True)
    folds = list(_folds(len(labels), seed))
    rows = [("mask", _accuracy(features, labels, len(classes), folds))]
    if shuffled:
        accuracies = [_accuracy(matrix, labels, len(classes), folds) for matrix in shuffled]
        rows.append(("shuffled mask", sum(accuracies) / len(accuracies)))
    rows.append(("none", _accuracy(features[:, :0], labels, len(classes), folds)))
    columns = {"features": str, "accuracy": float, "low": float, "high": float, "examples": int}
    return table(columns, [(name, value, *share_interval(value, len(labels)), len(labels)) for name, value in rows])


def _folds(count: int, seed: int) -> Iterator[Tensor]:
    """bool [count] per fold: which examples are held out."""
    fold_of = torch.randperm(count, generator=torch.Generator().manual_seed(seed)) % FOLDS
    return (fold_of == fold for fold in range(FOLDS))


def _accuracy(features: Tensor, labels: Tensor, classes: int, folds: Sequence[Tensor]) -> float:
    right = sum(int((_predict(features, labels, classes, out) == labels[out]).sum()) for out in folds)
    return right / len(labels)


@torch.enable_grad()
def _predict(features: Tensor, labels: Tensor, classes: int, out: Tensor) -> Tensor:
    """Classes of the held-out rows; by logistic regression, or without features the most frequent class."""
    if features.shape[1] == 0:
        most = torch.bincount(labels[~out], minlength=classes).argmax()
        return most.expand(int(out.sum()))
    mean, deviation = features[~out].mean(0), features[~out].std(0)
    scaled = (features - mean) / torch.where(deviation > 1e-9, deviation, 1)
    scaled = scaled * (deviation > 1e-9)  # a column that never varied in fitting tells nothing
    weight = torch.zeros(features.shape[1], classes, dtype=torch.double, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.double, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")
    inputs, wanted = scaled[~out].detach(), labels[~out]

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(inputs @ weight + bias, wanted) + 0.5 / len(wanted) * weight.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    return (scaled[out] @ weight + bias).detach().argmax(1)
