"""The same gates fitted with several seeds: is what they say the model's doing, or the seed's?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from graphmask.explainer import GraphMask


def several(
    folder: Path,
    first: GraphMask,
    fits: int,
    fit: Callable[[int, Path], GraphMask],
    load: Callable[[Path], GraphMask],
) -> Iterator[GraphMask]:
    """``first``, then fits with the seeds that follow its own: ``fit(seed, checkpoint)``.

    Each is kept in the folder, so that an analysis that is repeated or was killed does not fit again.
    """
    yield first
    for seed in range(first.seed + 1, first.seed + fits):
        path = folder / f"{seed}.graphmask"
        if not path.exists():
            unfinished = path.with_suffix(".safetensors")
            fit(seed, unfinished).save(path)
            unfinished.unlink(missing_ok=True)
        yield load(path)
