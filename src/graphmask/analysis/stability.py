"""Would another seed have given the same explanation? (sections 5 and 6)"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, zip_longest
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphmask.analysis.side_by_side import check_same_sites, side_by_side
from graphmask.analysis.tables import share, table
from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation

if TYPE_CHECKING:
    import polars


def fleiss_kappa(counts: Tensor, weights: Tensor | None = None) -> float:
    r"""Agreement of n raters beyond chance, :math:`\kappa = (\bar P - P_e) / (1 - P_e)` (Fleiss 1971).

    .. math::
        \bar P = \operatorname{mean}_i \frac{\sum_j n_{ij}^2 - n}{n (n - 1)}, \qquad
        P_e = \sum_j \big( \operatorname{mean}_i n_{ij} / n \big)^2

    If all raters put every subject into one and the same category, chance alone explains their agreement and the
    formula is 0 / 0. They agree fully: kappa is 1 by definition here.

    Args:
        counts: ``[subjects, categories]``, how many raters chose the category; rows sum to n >= 2.
        weights: ``[subjects]`` how many subjects a row stands for.
    """
    counts = counts.double()
    raters = counts.sum(1)
    if not len(counts) or float(raters[0]) < 2 or bool((raters != raters[0]).any()):
        raise GraphMaskError("Expected at least one subject, each rated by the same two raters or more.")
    weights = torch.ones(len(counts), dtype=torch.double) if weights is None else weights.double()
    if int((counts[weights > 0] > 0).any(0).sum()) == 1:  # asked of the counts: a sum of shares may miss 1 by rounding
        return 1.0
    weights, n = weights / weights.sum(), raters[0]
    observed = float(weights @ ((counts.square().sum(1) - n) / (n * (n - 1))))
    chance = float((weights @ counts / n).square().sum())
    return (observed - chance) / (1 - chance)


def stability(fits: Sequence[Iterable[Explanation]]) -> polars.DataFrame:
    """Agreement between explanations of the same graphs, in the same order, by fits with different seeds.

    Ask each fit for its bare gates, ``explain_all(loader, repair=False)``: what repair adds is not the fit's choice.

    Columns:
        layer: null for all layers together.
        kappa: Fleiss' kappa; every fit rates every gate as open or shut. 1 if all open, or all shut, all gates.
        agreement: share of pairs of fits that agree on a gate, mean over gates.
        jaccard: edges kept by both over edges kept by either, mean over pairs of fits; 1 where neither keeps any.
        retained: share of gates that are open, mean over fits.
        gates: how many gates were rated. Where there are none, the figures are null.
    """
    fits = _checked(fits)
    histogram: Tensor | None = None  # [L, n + 1] gates by the number of fits that opened them
    common: Tensor | None = None  # [L, n, n] edges that two fits both keep
    for blocks in zip_longest(*(side_by_side(fit) for fit in fits)):
        if any(block is None for block in blocks):
            raise _different()
        first = blocks[0]
        for block in blocks[1:]:
            check_same_sites(first, block)
            if not torch.equal(first.source, block.source) or not torch.equal(first.carried, block.carried):
                raise _different()
            if not torch.equal(first.target, block.target) or first.graphs != block.graphs:
                raise _different()
        kept = torch.stack([block.kept for block in blocks])  # [n, L, E]
        votes = kept.sum(0)
        block_histogram = torch.stack(
            [torch.bincount(v[c], minlength=len(fits) + 1) for v, c in zip(votes, first.carried, strict=True)]
        )
        both = kept.double().transpose(0, 1) @ kept.double().permute(1, 2, 0)
        histogram = block_histogram if histogram is None else histogram + block_histogram
        common = both if common is None else common + both
    assert histogram is not None
    assert common is not None
    layers = [*zip(histogram, common, strict=True), (histogram.sum(0), common.sum(0))]
    rows = [(layer if layer < len(histogram) else None, *_figures(h, c)) for layer, (h, c) in enumerate(layers)]
    figures = {"kappa": float, "agreement": float, "jaccard": float, "retained": float, "gates": int}
    return table({"layer": int} | figures, rows)


def _figures(histogram: Tensor, common: Tensor) -> tuple[float | None, float | None, float | None, float | None, int]:
    fits = len(common)
    gates = int(histogram.sum())
    if not gates:
        return None, None, None, None, 0
    open_ = torch.arange(fits + 1, dtype=torch.double)
    pairs = fits * (fits - 1)
    agreeing = (open_ * (open_ - 1) + (fits - open_) * (fits - open_ - 1)) / pairs
    sizes = common.diagonal()
    jaccard = [
        float(share(float(common[a, b]), float(sizes[a] + sizes[b] - common[a, b])) or 0.0)
        if float(sizes[a] + sizes[b])
        else 1.0
        for a, b in combinations(range(fits), 2)
    ]
    return (
        fleiss_kappa(torch.stack([open_, fits - open_], 1), histogram),
        float(agreeing @ histogram.double()) / gates,
        sum(jaccard) / len(jaccard),
        float(open_ @ histogram.double()) / (fits * gates),
        gates,
    )


def consensus(fits: Sequence[Iterable[Explanation]]) -> Iterator[Explanation]:
    """For every graph what more than half of the fits keep; ``scores`` is the share of the fits that keep an edge.

    The model has not been run with this mask: the certificate (``masked``, ``divergence``, ``flips``) is NaN, so that
    the explanation does not count as faithful. Baselines are those of the first fit.
    """
    fits = _checked(fits)

    def merge() -> Iterator[Explanation]:
        for together in zip_longest(*fits):
            if any(explanation is None for explanation in together):
                raise _different()
            first = together[0]
            for other in together[1:]:
                check_same_sites(first, other)
                if not torch.equal(first.edge_index, other.edge_index):
                    raise _different()
            votes = torch.stack([explanation.kept for explanation in together]).sum(0)
            nan = float("nan")
            yield replace(
                first,
                kept=votes * 2 > len(fits),
                scores=votes / len(fits),
                masked=torch.full_like(first.masked, nan),
                divergence=nan,
                flips=nan,
                reopened=0,
                method="consensus",
            )

    return merge()


def _checked(fits: Sequence[Iterable[Explanation]]) -> list[Iterable[Explanation]]:
    fits = list(fits)
    if len(fits) < 2 or any(isinstance(fit, Explanation) for fit in fits):
        raise GraphMaskError(
            f"Expected the explanations of at least two fits, one iterable each, got {len(fits)}. "
            "Fit again with another seed."
        )
    return fits


def _different() -> GraphMaskError:
    return GraphMaskError("Expected every fit to explain the same graphs in the same order, got different ones.")
