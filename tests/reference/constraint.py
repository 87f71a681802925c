"""The default multiplier, written out as a sequence of numbers."""

import math
from collections.abc import Iterable, Iterator


def multiplicative(divergences: Iterable[float], tolerance: float) -> Iterator[float]:
    """e = clip((D - beta) / beta, -1, 3); log lambda += .02 e + .3 (change of the .9-moving average of e)."""
    log_multiplier = average = 0.0
    for divergence in divergences:
        e = (divergence - tolerance) / tolerance
        e = -1.0 if e < -1 else 3.0 if e > 3 else e
        before, average = average, 0.9 * average + 0.1 * e
        log_multiplier += 0.02 * e + 0.3 * (average - before)
        log_multiplier = min(max(log_multiplier, math.log(0.01)), math.log(100))
        yield math.exp(log_multiplier)
