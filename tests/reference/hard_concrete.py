"""Appendix B of the paper; distribution functions from appendix B of Louizos et al. (2018)."""

import math
from collections.abc import Callable

TAU, L, R = 1 / 3, -0.2, 1.2


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def sample(u: float, location: float) -> float:
    """s = sigmoid((log u - log(1 - u) + gamma) / tau), stretched to (l, r) and rectified to [0, 1]."""
    s = sigmoid((math.log(u) - math.log(1 - u) + location) / TAU)
    return min(1.0, max(0.0, s * (R - L) + L))


def binary_concrete_density(s: float, rest: float, location: float) -> float:
    """q(s) = beta alpha s^(-beta-1) (1-s)^(-beta-1) / (alpha s^(-beta) + (1-s)^(-beta))^2, ``rest`` = 1 - s."""
    alpha, beta = math.exp(location), TAU
    top = beta * alpha * s ** (-beta - 1) * rest ** (-beta - 1)
    return top / (alpha * s**-beta + rest**-beta) ** 2


def binary_concrete_cdf(s: float, location: float) -> float:
    """Q(s) = sigmoid((log s - log(1 - s)) beta - log alpha)."""
    return sigmoid((math.log(s) - math.log(1 - s)) * TAU - location)


def probability_zero(location: float) -> float:
    return binary_concrete_cdf(-L / (R - L), location)


def probability_one(location: float) -> float:
    return 1 - binary_concrete_cdf((1 - L) / (R - L), location)


def integrate(f: Callable[[float, float], float], low: float, high: float, pieces: int = 4000) -> float:
    """Midpoint rule for f(s, 1 - s) after s = sigmoid(t), which tames the poles of the density at 0 and 1."""
    a = -90.0 if low == 0 else math.log(low / (1 - low))
    b = 90.0 if high == 1 else math.log(high / (1 - high))
    width = (b - a) / pieces
    total = 0.0
    for piece in range(pieces):
        t = a + (piece + 0.5) * width
        s, rest = sigmoid(t), sigmoid(-t)
        total += f(s, rest) * s * rest * width
    return total
