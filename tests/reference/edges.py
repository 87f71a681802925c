"""Which edge is which, by looking at every pair."""

from collections.abc import Sequence

Edge = tuple[int, int]


def match(mine: Sequence[Edge], theirs: Sequence[Edge]) -> list[int]:
    """The n-th occurrence of an edge among theirs is the n-th among mine; -1 if there is none."""
    result = []
    for position, edge in enumerate(theirs):
        earlier = sum(other == edge for other in theirs[:position])
        places = [i for i, other in enumerate(mine) if other == edge]
        result.append(places[earlier] if earlier < len(places) else -1)
    return result
