"""Equation 3 of the paper and its matrix form in appendix A."""

from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def replaced(message: float, gate: float, baseline: float) -> float:
    return gate * message + (1 - gate) * baseline


def product(a: Matrix, b: Matrix) -> list[list[float]]:
    return [[sum(a[i][k] * b[k][j] for k in range(len(b))) for j in range(len(b[0]))] for i in range(len(a))]


def masked_aggregation(
    z: Matrix, a: Matrix, m: Matrix, baseline: Sequence[float], entries: Sequence[int]
) -> list[list[float]]:
    """(Z o A) M + ((J - Z) o S) B, every row of B the baseline; entrywise products, as the gates are.

    S weighs all non-zero entries of a row alike, by one over how many the row has in all relations.
    """
    n = len(a)
    kept = [[z[i][j] * a[i][j] for j in range(n)] for i in range(n)]
    dropped = [[(1 - z[i][j]) / entries[i] if a[i][j] else 0.0 for j in range(n)] for i in range(n)]
    left, right = product(kept, m), product(dropped, [baseline] * n)
    return [[x + y for x, y in zip(p, q, strict=True)] for p, q in zip(left, right, strict=True)]
