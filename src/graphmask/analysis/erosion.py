"""Is what was kept really needed? The model's score as retained, or superfluous, messages are dropped (appendix J)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from graphmask.analysis.scoring import Score, Tally, run_each, studied
from graphmask.analysis.tables import mean_interval, table
from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method

if TYPE_CHECKING:
    import polars

FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
SUPERFLUOUS, RETAINED = "superfluous", "retained"
#: Far from the seeds of methods that draw numbers too: what they kept by chance must not be what is dropped here.
FIRST_SEED = 1 << 40


def erosion(
    method: Method,
    loader: Iterable[Any],
    score: Score | None = None,
    *,
    fractions: Sequence[float] = FRACTIONS,
    draws: int = 10,
    seed: int = 0,
    allow_infeasible: bool = False,
) -> polars.DataFrame:
    """Score of the model when random messages are replaced by their baseline.

    First a fraction of the superfluous ones: 0 is the original model, 1 is the explanation. Then, with all of these
    gone, a fraction of the retained: 0 is the explanation, 1 leaves nothing. A faithful explanation is flat in the
    first half and falls in the second.

    A message is dropped where its random number is below the fraction. The numbers belong to draw, graph and edge:
    they do not depend on batching, and what is dropped at one fraction stays dropped at a higher one.

    Args:
        method: fitted.
        loader: batches of graphs.
        score: ``score(output, batch)``, one value per output row or one per batch. By default agreement with the
            original's prediction, accuracy against ``batch.y`` if there is one label per row, and divergence.
        fractions: of messages to drop.
        draws: how often to draw them.
        seed: of the draws.
        allow_infeasible: explain although `fit` found no state within tolerance.

    Columns:
        dropped: "superfluous" or "retained".
        fraction: of those.
        open: share of all gates still open, mean over draws.
        measure: "score", or "agreement", "accuracy", "divergence".
        mean, low, high: over draws, of the mean over output rows; with its 95 % interval (Student's t; of no width
            where nothing is random, null from a single draw).
        draws: different ones.
    """
    fractions = list(dict.fromkeys(float(fraction) for fraction in fractions))
    if not fractions or any(not 0 <= fraction <= 1 for fraction in fractions):
        raise GraphMaskError(f"Expected fractions from 0 to 1, got {fractions}.")
    if draws < 1:
        raise GraphMaskError(f"Expected at least one draw, got {draws}.")
    plan = [
        (part, fraction, draw)
        for part in (SUPERFLUOUS, RETAINED)
        for fraction in fractions
        for draw in range(draws if 0 < fraction < 1 else 1)
    ]
    tallies = [Tally() for _ in plan]
    opened, gates = [0] * len(plan), 0
    with studied(method, loader, allow_infeasible) as cases:
        for case, choice in cases:
            gates += int(case.trace.carried.sum())
            outputs = run_each(case, _gates(case, choice, plan, seed, opened), choice.baselines)
            for tally, output in zip(tallies, outputs, strict=True):
                tally.add(case, output, score)
    return _summary(plan, tallies, [count / max(gates, 1) for count in opened])


def _summary(
    plan: Sequence[tuple[str, float, int]], tallies: Sequence[Tally], opened: Sequence[float]
) -> polars.DataFrame:
    """One row per part, fraction and measure, over draws."""
    values: dict[tuple[str, float, str], list[float]] = {}
    shares: dict[tuple[str, float], list[float]] = {}
    for (part, fraction, _), tally, share in zip(plan, tallies, opened, strict=True):
        shares.setdefault((part, fraction), []).append(share)
        for measure, value in tally.means().items():
            values.setdefault((part, fraction, measure), []).append(value)
    rows = []
    for (part, fraction, measure), draws in values.items():
        mean, low, high = mean_interval(draws)
        if fraction in (0, 1):
            low = high = mean
        some = shares[part, fraction]
        rows.append((part, fraction, sum(some) / len(some), measure, mean, low, high, len(draws)))
    columns = {"dropped": str, "fraction": float, "open": float, "measure": str}
    return table(columns | {"mean": float, "low": float, "high": float, "draws": int}, rows)


def _gates(
    case: Case, choice: Choice, plan: Sequence[tuple[str, float, int]], seed: int, opened: list[int]
) -> Iterator[Tensor]:
    """The gates [L, E] of every item of the plan; counts in ``opened`` how many are open."""
    everything, kept = case.trace.carried, choice.kept
    for item, (part, fraction, draw) in enumerate(plan):
        drop = case.uniform(FIRST_SEED + 1_000_003 * seed + draw) < fraction if fraction < 1 else everything
        gates = everything & ~(drop & ~kept) if part == SUPERFLUOUS else kept & ~drop
        opened[item] += int(gates.sum())
        yield gates
