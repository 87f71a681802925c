"""Numbers and shares, formatted for readers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

MINUS = "\N{MINUS SIGN}"  # as wide as a digit, unlike the hyphen


def number(value: str | float) -> str:
    """A number as a person would write it; text stays as it is."""
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "∞" if value > 0 else MINUS + "∞"
    if value == int(value) and abs(value) < 1e9 and (isinstance(value, int) or abs(value) >= 1000):
        text = f"{int(value):,}"
    else:
        text = f"{value + 0.0:.3g}"  # turns -0.0 into 0
    return text.replace("-", MINUS) if re.fullmatch(r"[-\d.,]+", text) else text


def in_line(values: Sequence[str | float]) -> list[str]:
    """Numbers as text with the same decimals, so that they are easy to compare."""
    texts = [f"{v:.4g}" for v in values if not isinstance(v, str) and math.isfinite(v)]
    if not any("." in text for text in texts) or any("e" in text for text in texts):
        return [number(v) for v in values]
    decimals = max(len(text.partition(".")[2]) for text in texts)
    return [
        number(v) if isinstance(v, str) or not math.isfinite(v) else f"{v:,.{decimals}f}".replace("-", MINUS)
        for v in values
    ]


def percent(value: float) -> str:
    if not math.isfinite(value):
        return number(value)
    if 0 < value < 0.0005 or 0.9995 <= value < 1:  # rounding must not claim all or nothing
        return "< 0.1%" if value < 0.5 else "> 99.9%"
    return f"{value:.{0 if value in (0, 1) else 1}%}"
