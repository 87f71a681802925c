"""Divergences of two rows of numbers, from their definitions."""

import math
from collections.abc import Sequence

from reference.hard_concrete import sigmoid

Row = Sequence[float]


def softmax(row: Row) -> list[float]:
    top = max(row)
    weights = [math.exp(v - top) for v in row]
    return [w / sum(weights) for w in weights]


def kl_of(p: Row, q: Row) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def kl(original: Row, masked: Row) -> float:
    return kl_of(softmax(original), softmax(masked))


def js(original: Row, masked: Row) -> float:
    p, q = softmax(original), softmax(masked)
    m = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return kl_of(p, m) / 2 + kl_of(q, m) / 2


def cross_entropy(original: Row, masked: Row) -> float:
    p, q = softmax(original), softmax(masked)
    choice = p.index(max(p))
    return max(math.log(p[choice]) - math.log(q[choice]), 0.0)


def bernoulli(original: Row, masked: Row) -> float:
    pairs = [(sigmoid(a), sigmoid(b)) for a, b in zip(original, masked, strict=True)]
    return sum(kl_of([p, 1 - p], [q, 1 - q]) for p, q in pairs)


def mse(original: Row, masked: Row) -> float:
    return sum((a - b) ** 2 for a, b in zip(original, masked, strict=True)) / len(original)
