"""Thresholds: Otsu's gap and the levels against brute force; calibration against every combination."""

import itertools
import math
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.nn.models import GCN

from graphmask import calibration, hard_concrete
from graphmask.batches import default_forward
from graphmask.calibration import KEEP_ALL, SLACK, Validation, Verdict, calibrate
from graphmask.divergence import Divergence
from graphmask.probe import Probe
from reference import calibration as literal
from reference import toy


def bimodal(count: int, low: float, high: float, share: float, seed: int, spread: float = 0.3) -> Tensor:
    """Locations in two groups; ``share`` of them in the upper."""
    g = torch.Generator().manual_seed(seed)
    upper = torch.rand(count, generator=g) < share
    noise = spread * torch.randn(count, generator=g)
    return (torch.where(upper, high, low) + noise).clamp(-3, 3)


class Imagined(Validation):
    """A validation whose verdict is a formula: each dropped edge costs what it is worth."""

    def __init__(self, locations: Tensor, worth: Tensor, carried: Tensor | None = None) -> None:
        carried = torch.ones_like(locations, dtype=torch.bool) if carried is None else carried
        locations = locations.masked_fill(~carried, -math.inf)
        self.batches = [(None, SimpleNamespace(values=locations, carried=carried))]  # type: ignore[list-item]
        self.worth, self.tried = worth, 0
        self._known = {}

    def _measure(self, thresholds: Tensor) -> Verdict:
        self.tried += 1
        original = self.batches[0][1]
        kept = original.values > thresholds
        divergence = float((self.worth * ~kept).sum())
        retained = kept.sum(1) / original.carried.sum(1).clamp_min(1)
        return Verdict(divergence, 0.0, tuple(retained.tolist()))


def literal_share(locations: Sequence[float], threshold: float) -> float:
    return sum(x > threshold for x in locations) / len(locations)


@pytest.mark.parametrize("seed", range(4))
def test_shares_are_counts(seed: int) -> None:
    locations = bimodal(200, -2, 1.5, 0.4, seed)[None]
    validation = Imagined(locations, torch.zeros_like(locations))
    grid, kept, dropped = validation.shares(0)
    numbers = locations[0].double().tolist()
    for threshold, share, total in zip(grid.tolist(), kept.tolist(), dropped.tolist(), strict=True):
        assert share == pytest.approx(literal_share(numbers, threshold), abs=1e-6)
        assert total == pytest.approx(sum(x for x in numbers if x <= threshold) / len(numbers), abs=1e-9)
        assert validation.share(0, threshold) == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_gap_is_the_best_division_by_brute_force(seed: int) -> None:
    locations = bimodal(150, -2.2, [2.0, 0.5][seed % 2], [0.5, 0.1, 0.9][seed % 3], seed)[None]
    validation = Imagined(locations, torch.zeros_like(locations))
    numbers, grid = locations[0].double().tolist(), validation.shares(0)[0].tolist()
    criterion = {threshold: literal.between_groups(numbers, threshold) for threshold in grid}
    plateau = [t for t in grid if criterion[t] >= max(criterion.values()) * (1 - 1e-6)]
    gap = validation.gap(0)
    assert gap == pytest.approx(sum(plateau) / len(plateau))
    assert literal.between_groups(numbers, gap) == pytest.approx(max(criterion.values()), rel=1e-6)


def test_edges_that_a_site_does_not_carry_do_not_count() -> None:
    locations = bimodal(100, -2, 2, 0.5, 0)[None]
    carried = torch.arange(100)[None] % 3 != 0
    partly = Imagined(locations, torch.zeros_like(locations), carried)
    alone = Imagined(locations[carried][None], torch.zeros(1, int(carried.sum())))
    assert partly.gap(0) == alone.gap(0)
    assert partly.levels(0) == alone.levels(0)
    assert partly.share(0, 0.1) == alone.share(0, 0.1)


@pytest.mark.parametrize("seed", range(3))
def test_levels_keep_different_edges_and_miss_none(seed: int) -> None:
    locations = bimodal(120, -1.5, 1.8, 0.3, seed, spread=0.5)[None]
    validation = Imagined(locations, torch.zeros_like(locations))
    levels, grid = validation.levels(0), validation.shares(0)[0].tolist()
    numbers = locations[0].double().tolist()
    assert levels[0] == KEEP_ALL
    assert levels == sorted(levels)
    shares = [literal_share(numbers, level) for level in levels]
    assert shares[0] == 1
    assert all(a - b > 5e-4 for a, b in itertools.pairwise(shares))
    assert {literal_share(numbers, t) for t in grid} - set(shares) == set()


def test_a_site_without_edges_has_one_level() -> None:
    nothing = Imagined(torch.zeros(1, 0), torch.zeros(1, 0))
    verdict = nothing.verdict(calibrate(nothing, 1, 0.1))
    assert verdict.retained == (0.0,)


def feasible_shares(validation: Imagined, tolerance: float, sites: int) -> float:
    def judge(thresholds: Sequence[float]) -> tuple[bool, float]:
        verdict = validation.verdict(thresholds)
        return verdict.within(tolerance), verdict.sparsity

    return literal.sparsest([validation.levels(site) for site in range(sites)], judge)


@pytest.mark.parametrize("sites", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_calibrate_is_feasible_and_as_sparse_as_brute_force(sites: int, seed: int) -> None:
    """Additive damage that grows with the location: what coordinate descent must solve exactly."""
    locations = torch.stack([bimodal(80, -2, 1.5, 0.4, 10 * seed + s, 0.4) for s in range(sites)])
    g = torch.Generator().manual_seed(seed)
    worth = (locations > 0) * torch.rand(locations.shape, generator=g) * (0.5 if seed % 2 else 1e-4)
    validation = Imagined(locations, worth.float())
    tolerance = 0.02
    chosen = calibrate(validation, sites, tolerance)
    verdict = validation.verdict(chosen)
    assert verdict.within(tolerance)
    best = feasible_shares(validation, tolerance, sites)
    assert verdict.sparsity <= best * (1 + 2 * SLACK)


def test_calibrate_keeps_everything_when_everything_matters() -> None:
    locations = bimodal(60, -2, 2, 0.5, 1)[None].expand(2, -1)
    validation = Imagined(locations, torch.ones(2, 60))
    assert validation.verdict(calibrate(validation, 2, 0.5)).retained == (1.0, 1.0)


def test_calibrate_drops_everything_when_nothing_matters() -> None:
    locations = bimodal(60, -2, 2, 0.5, 1).clamp(-2.8, 2.8)[None].expand(2, -1)
    validation = Imagined(locations, torch.zeros(2, 60))
    assert validation.verdict(calibrate(validation, 2, 0.5)).retained == (0.0, 0.0)


def test_sites_that_only_together_can_be_sparse() -> None:
    """Dropping at one site alone is infeasible, at both is not: the joint start must find it."""

    class Coupled(Imagined):
        def _measure(self, thresholds: Tensor) -> Verdict:
            verdict = super()._measure(thresholds)
            a, b = verdict.retained
            return Verdict(abs(a - b) + verdict.divergence, 0.0, verdict.retained)

    locations = torch.cat([torch.full((30,), -2.0), torch.full((20,), 2.0)])[None].expand(2, -1)
    worth = (locations > 0).float()
    validation = Coupled(locations, worth)
    chosen = calibrate(validation, 2, 0.05)
    assert validation.verdict(chosen).retained == pytest.approx((0.4, 0.4))
    assert all(-1.5 < threshold < 1.5 for threshold in chosen)  # away from both groups


def test_changed_predictions_are_infeasible_too() -> None:
    assert Verdict(0.01, 0.02, (0.5,)).within(0.02)
    assert not Verdict(0.01, 0.03, (0.5,)).within(0.02)
    assert not Verdict(0.03, 0.0, (0.5,)).within(0.02)
    assert Verdict(0.01, 0.03, (0.5,)).within(0.02, flips=1.5)
    assert not Verdict(0.03, 0.03, (0.5,)).within(0.02, flips=1.5)
    assert Verdict(0.0, 0.0, (0.5, 0.1)).sparsity == pytest.approx(0.3)


# On a model --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Validation:
    """The toy, with gates whose locations are set by hand: high where a message of the toy is not zero."""
    torch.manual_seed(0)
    model, batches, divergence = toy.Toy().eval(), toy.loader(2, 12), Divergence("kl")
    probe, output = Probe.discover(model, default_forward, batches[0], 8, 0)
    divergence.resolve(output)
    validation = Validation(probe, model, default_forward, divergence, batches)
    for batch, original in validation.batches:
        first = batch.x[:, :2].sum(1)[batch.edge_index[0]]
        reached = torch.zeros(batch.num_nodes).index_add(0, batch.edge_index[1], first)
        useful = torch.stack([first, reached[batch.edge_index[0]]]) > 0
        noise = torch.rand(useful.shape, generator=torch.Generator().manual_seed(1))
        original.values = torch.where(useful, 1.0 + noise, -2.0 + noise)
    return validation


def test_verdict_is_the_mean_over_masked_runs(real: Validation) -> None:
    thresholds = (1.4, -1.3)
    rows, divergence, flips, kept, carried = 0, 0.0, 0, [0, 0], 0
    for batch, original in real.batches:
        gates = torch.stack([original.values[site] > thresholds[site] for site in range(2)])
        h = batch.x
        for layer, gate in zip((real.model.first, real.model.second), gates, strict=True):
            out = torch.zeros(batch.num_nodes, 3)
            for edge, (u, v) in enumerate(batch.edge_index.t().tolist()):
                if gate[edge]:  # the baselines are zero
                    out[v] += layer.weight.detach() @ h[u]
            h = out
        masked = torch.zeros(12, 3).index_add(0, batch.batch, h)[:, :2]
        divergence += float(real.divergence(original.output, masked).sum())
        flips += int((original.output.argmax(1) != masked.argmax(1)).sum())
        rows, carried = rows + 12, carried + batch.num_edges
        kept = [k + int(gate.sum()) for k, gate in zip(kept, gates, strict=True)]
    verdict = real.verdict(thresholds)
    assert verdict.divergence == pytest.approx(divergence / rows, rel=1e-5)
    assert verdict.flips == pytest.approx(flips / rows)
    assert verdict.retained == pytest.approx([k / carried for k in kept])
    assert verdict.divergence > 0.01


def test_calibrate_on_a_model_is_as_sparse_as_brute_force(real: Validation) -> None:
    tolerance = 0.01
    verdict = real.verdict(calibrate(real, 2, tolerance))
    assert verdict.within(tolerance)

    def judge(thresholds: Sequence[float]) -> tuple[bool, float]:
        verdict = real.verdict(thresholds)
        return verdict.within(tolerance), verdict.sparsity

    best = literal.sparsest([real.levels(site) for site in range(2)], judge)
    assert best - 1e-9 <= verdict.sparsity <= best * (1 + 2 * SLACK)


def test_thresholds_become_shifts_that_hard_gates_agree_with() -> None:
    location = torch.linspace(-3, 3, 101)
    for threshold in (-2.0, 0.1, 2.9, float(KEEP_ALL)):
        shifted = location - (threshold - hard_concrete.EVEN)
        assert torch.equal(hard_concrete.hard(shifted), location > threshold)


def test_validation_looks_at_enough_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "EXAMPLES", 20)
    model, batches = toy.Toy().eval(), toy.loader(4, 12)
    probe, output = Probe.discover(model, default_forward, batches[0], 8, 0)
    divergence = Divergence("kl")
    divergence.resolve(output)
    assert len(Validation(probe, model, default_forward, divergence, batches).batches) == 2


def test_tokens_of_a_sentence_are_no_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with an output per node: what counts is graphs, and nodes only where there is a single graph."""
    monkeypatch.setattr(calibration, "EXAMPLES", 20)
    torch.manual_seed(0)
    model = GCN(3, 4, 1, out_channels=2).eval()
    graphs = [Data(x=torch.randn(6, 3), edge_index=torch.randint(6, (2, 9))) for _ in range(48)]
    several = [Batch.from_data_list(graphs[low : low + 8]) for low in range(0, 48, 8)]
    for loader, looked_at in ((several, 3), (graphs, 4)):
        probe, output = Probe.discover(model, default_forward, loader[0], 8, 0)
        divergence = Divergence("kl")
        divergence.resolve(output)
        assert len(Validation(probe, model, default_forward, divergence, loader).batches) == looked_at


@pytest.mark.parametrize("seed", range(6))
def test_calibrate_shares_a_small_tolerance_between_sites(seed: int) -> None:
    """Locations without a gap, and every edge worth something: retreating from gaps alone ends far from the best."""
    g = torch.Generator().manual_seed(seed)
    drawn = torch.rand(2, 300, generator=g)
    locations = torch.stack([drawn[0], drawn[1] ** 2]) * 5.8 - 2.9
    validation = Imagined(locations, torch.sigmoid(2 * locations) * torch.tensor([[1.0], [0.6]]))
    verdict = validation.verdict(calibrate(validation, 2, 0.2))
    assert verdict.within(0.2)
    assert verdict.sparsity <= feasible_shares(validation, 0.2, 2) * (1 + SLACK)
