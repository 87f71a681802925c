"""Colour and dash of edge types."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Okabe and Ito's palette, in the order page.css declares it (.c0 ... .c7).
COLOURS = ("blue", "vermillion", "green", "orange", "sky", "purple", "yellow", "ink")
# A type that is called after a colour is drawn in that colour: a "red" edge in blue would be a Stroop test.
COLOUR_WORDS = {
    "blue": 0, "red": 1, "vermillion": 1, "green": 2, "orange": 3, "sky": 4, "cyan": 4, "purple": 5, "pink": 5,
    "magenta": 5, "violet": 5, "yellow": 6, "black": 7, "grey": 7, "gray": 7, "white": 7,
}  # fmt: skip
DASHES = 3  # after eight types colours come back with another dash


def type_slots(labels: Iterable[str]) -> dict[str, int]:
    """Colour and dash of every edge type, the same on all cards: slot % 8 is the colour, slot // 8 the dash."""
    ordered = sorted(set(labels), key=natural)
    taken: dict[str, int] = {}
    for label in ordered:
        words = re.findall(r"[a-z]+", label.lower())
        wanted = next((COLOUR_WORDS[word] for word in words if word in COLOUR_WORDS), None)
        if wanted is not None and wanted not in taken.values():
            taken[label] = wanted
    free = (slot for slot in range(len(ordered) + len(COLOURS)) if slot not in set(taken.values()))
    return {label: taken[label] if label in taken else next(free) for label in ordered}


def natural(label: str) -> tuple[list[tuple[int, str]], str]:
    """Sorts "type 2" before "type 10"."""
    return [(int(n) if n else -1, t) for n, t in re.findall(r"(\d{1,18})|(\D+)", label)], label


def style_of(slot: int) -> str:
    return f"c{slot % len(COLOURS)} d{slot // len(COLOURS) % DASHES}"
