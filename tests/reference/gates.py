"""Appendix A of the paper: gate locations, one edge at a time."""

import math
from collections.abc import Sequence

Vector = Sequence[float]
Matrix = Sequence[Sequence[float]]
LIMIT = 3.0


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def multiply(matrix: Matrix, vector: Vector) -> list[float]:
    return [dot(row, vector) for row in matrix]


def layer_norm(x: Vector, weight: Vector, bias: Vector, eps: float = 1e-5) -> list[float]:
    mean = sum(x) / len(x)
    variance = sum((v - mean) ** 2 for v in x) / len(x)
    return [(v - mean) / math.sqrt(variance + eps) * w + b for v, w, b in zip(x, weight, bias, strict=True)]


def relu(x: Vector) -> list[float]:
    return [max(v, 0.0) for v in x]


def standardiser(rows: Sequence[Vector]) -> list[tuple[float, float]]:
    """Per feature (mean, sqrt(2 / (its variance + the mean variance of all))); a constant one is multiplied by 0."""
    columns = list(zip(*rows, strict=True))
    means = [sum(column) / len(column) for column in columns]
    variances = [sum((v - m) ** 2 for v in c) / len(c) for c, m in zip(columns, means, strict=True)]
    common = sum(variances) / max(len(variances), 1)
    scales = [math.sqrt(2 / (variance + common)) if variance > 1e-10 else 0.0 for variance in variances]
    return list(zip(means, scales, strict=True))


def standardise(x: Vector, moments: Sequence[tuple[float, float]]) -> list[float]:
    return [(v - mean) * scale for v, (mean, scale) in zip(x, moments, strict=True)]


def clamp(location: float) -> float:
    return min(max(location, -LIMIT), LIMIT)


def edge_location(
    q: Vector, w1: Matrix, b1: Vector, extra: Vector, norm: tuple[Vector, Vector], w2: Vector, c: float
) -> float:
    """gamma = W2 ReLU(LN(W1 q + relation)) + c with q = [h_u, h_v, m_uv, features], concatenated."""
    hidden = [h + b + e for h, b, e in zip(multiply(w1, q), b1, extra, strict=True)]
    return clamp(dot(w2, relu(layer_norm(hidden, *norm))) + c)


def bilinear_location(
    h_u: Vector, h_v: Vector, w1: Matrix, b1: Vector, norm: tuple[Vector, Vector], w_r: Matrix, c: float
) -> float:
    """Entry (u, v) of W_r ReLU(LN(W1 H)) H^T, u the sender and v the receiver."""
    hidden = [h + b for h, b in zip(multiply(w1, h_u), b1, strict=True)]
    return clamp(dot(multiply(w_r, relu(layer_norm(hidden, *norm))), h_v) + c)
