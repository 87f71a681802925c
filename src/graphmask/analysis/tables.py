"""Small tables (polars, an optional extra), shares and intervals: what all analyses end in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from graphmask.errors import GraphMaskError

if TYPE_CHECKING:
    import polars


def load_polars() -> ModuleType:
    """polars, or an error that says how to get it."""
    try:
        import polars
    except ImportError as error:
        raise GraphMaskError(
            "Expected polars for tables of analyses, found it not installed. Try: pip install graphmask[store]"
        ) from error
    return polars


def table(columns: dict[str, Any], rows: Iterable[Sequence[Any]]) -> polars.DataFrame:
    """A frame of these columns (name -> int, float, str or a polars type), also where there are no rows."""
    frame: polars.DataFrame = load_polars().DataFrame([tuple(row) for row in rows], schema=columns, orient="row")
    return frame


def share(part: float, whole: float) -> float | None:
    """The quotient, or None if the total is zero."""
    return part / whole if whole else None


#: Two-sided 95 %.
NORMAL_QUANTILE = 1.959963984540054


def student_quantile(freedom: int) -> float:
    r"""The 97.5 % quantile of Student's t.

    With :math:`t = \sqrt{\nu} \tan \theta` the density is :math:`\propto \cos^{\nu - 1} \theta`: a sum over a grid.
    """
    angle = torch.linspace(0, math.pi / 2, 20_001, dtype=torch.double)
    mass = torch.cumulative_trapezoid(angle.cos() ** (freedom - 1), angle)
    wanted = 0.95 * mass[-1]
    at = int((mass < wanted).sum())  # between angle[at] and angle[at + 1]
    below = float(mass[at - 1]) if at else 0.0
    within = (float(wanted) - below) / (float(mass[at]) - below)
    return math.sqrt(freedom) * math.tan(float(angle[at]) + within * float(angle[1]))


def mean_interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean and its 95 % interval (Student's t) over independent draws; no interval from one draw."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return mean, None, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = student_quantile(count - 1) * math.sqrt(variance / count) if variance > 0 else 0.0
    return mean, mean - half, mean + half


def share_interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share among ``count`` independent cases."""
    z = NORMAL_QUANTILE**2 / count
    centre = (share + z / 2) / (1 + z)
    half = math.sqrt(z * share * (1 - share) + z * z / 4) / (1 + z)
    return max(centre - half, 0.0), min(centre + half, 1.0)
