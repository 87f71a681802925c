"""Thresholds by exhaustive search."""

import itertools
from collections.abc import Callable, Sequence


def between_groups(locations: Sequence[float], threshold: float) -> float:
    """Otsu's criterion: the variance between the two groups, w_0 w_1 (mean_0 - mean_1)^2."""
    low = [x for x in locations if x <= threshold]
    high = [x for x in locations if x > threshold]
    if not low or not high:
        return 0.0
    w0, w1 = len(low) / len(locations), len(high) / len(locations)
    return w0 * w1 * (sum(low) / len(low) - sum(high) / len(high)) ** 2


def sparsest(grids: Sequence[Sequence[float]], judge: Callable[[Sequence[float]], tuple[bool, float]]) -> float:
    """The least share kept of all feasible combinations of thresholds; judge -> (feasible, share)."""
    answers = [judge(thresholds) for thresholds in itertools.product(*grids)]
    return min(share for feasible, share in answers if feasible)
