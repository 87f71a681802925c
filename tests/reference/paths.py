"""Retained paths, by trying every combination of kept messages."""

import itertools
from collections.abc import Sequence

Hop = tuple[int, int, int, int]  # site, edge, source, target


def paths(hops: Sequence[Hop], sites: int, target: int, persist: bool) -> set[tuple[Hop, ...]]:
    """All chains at rising sites that end in ``target`` and to which no hop can be prepended."""

    def follows(first: Hop, second: Hop) -> bool:
        step = second[0] - first[0]
        return first[3] == second[2] and (step >= 1 if persist else step == 1)

    def is_path(chain: Sequence[Hop]) -> bool:
        return (
            chain[-1][3] == target
            and (persist or chain[-1][0] == sites - 1)
            and all(follows(a, b) for a, b in itertools.pairwise(chain))
        )

    chains = {
        chain
        for length in range(1, sites + 1)
        for chosen in itertools.combinations(range(sites), length)
        for chain in itertools.product(*([hop for hop in hops if hop[0] == site] for site in chosen))
        if is_path(chain)
    }
    return {chain for chain in chains if not any(follows(hop, chain[0]) for hop in hops)}
