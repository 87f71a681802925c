"""The lines of a drawn question: each as an SVG path, its arrow heads, and points along it for placing labels."""

from __future__ import annotations

import numpy as np

from graphmask.report.question import Message

HEAD = 8.0  #: length of an arrow head


def _head(x: float, y: float, way: int) -> str:
    """An arrow head with its tip at x, to the right (1) or to the left (-1)."""
    return f"M{x:.1f} {y:.1f}l{-HEAD * way:g} -3.6l{1.8 * way:g} 3.6l{-1.8 * way:g} 3.6z"


def bracket(m: Message, edge: float, out: int, begin: float, end: float, depth: float) -> tuple[str, str, np.ndarray]:
    """Out of a pill, along the margin, back into a pill."""
    far, r = edge + out * depth, min(9.0, abs(end - begin) / 2)
    down = 1 if end >= begin else -1
    start, stop = edge + out * (HEAD - 2) * m.both, edge + out * (HEAD - 2)
    path = (
        f"M{start:.1f} {begin:.1f}H{far - out * r:.1f}Q{far:.1f} {begin:.1f} {far:.1f} {begin + down * r:.1f}"
        f"V{end - down * r:.1f}Q{far:.1f} {end:.1f} {far - out * r:.1f} {end:.1f}H{stop:.1f}"
    )
    heads = _head(edge, end, -out) + (_head(edge, begin, -out) if m.both else "")
    along = np.linspace(0, 1, 25)
    legs = np.linspace(edge, far, 5)
    points = np.concatenate(
        [
            np.stack([legs, np.full(5, begin)], 1),
            np.stack([np.full(25, far), begin + (end - begin) * along], 1),
            np.stack([legs[::-1], np.full(5, end)], 1),
        ]
    )
    return path, heads, points


def crossing(
    m: Message, inner: tuple[float, float], column: int, begin: float, end: float
) -> tuple[str, str, np.ndarray]:
    """From one column to the other."""
    x0, x1 = inner[column], inner[1 - column]
    way = 1 if x1 > x0 else -1
    start, stop = x0 + way * (HEAD - 2) * m.both, x1 - way * (HEAD - 2)
    pull = abs(x1 - x0) * 0.42 * way
    path = f"M{start:.1f} {begin:.1f}C{start + pull:.1f} {begin:.1f} {stop - pull:.1f} {end:.1f} {stop:.1f} {end:.1f}"
    heads = _head(x1, end, way) + (_head(x0, begin, -way) if m.both else "")
    t = np.linspace(0, 1, 41)[:, None]
    a, b, c, d = np.array([[start, begin], [start + pull, begin], [stop - pull, end], [stop, end]])
    points = (1 - t) ** 3 * a + 3 * t * (1 - t) ** 2 * b + 3 * t**2 * (1 - t) * c + t**3 * d
    return path, heads, points
