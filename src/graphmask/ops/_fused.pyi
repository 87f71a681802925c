import numpy as np

#: Table [rows, h], index [E], weight [E], stride, place.
Part = tuple[np.ndarray, np.ndarray, np.ndarray | None, int, int]

# All arrays are contiguous, of float32 or, for indices, int64. Anything else is a ValueError or TypeError that names
# the array; an index that is out of range is an IndexError that names the edge.
# ``top``: gamma [h] (perhaps left out), beta [h], out [h] and bias [1] laid end to end; ``kept``: normal [k, h],
# inverse [k] and raw [k] laid end to end.
def gates(
    width: int,
    parts: tuple[Part, ...],
    dense: np.ndarray | None,
    top: np.ndarray,
    limit: float,
    location: np.ndarray,
    kept: np.ndarray | None,
    first: int,
    step: int,
    start: int,
    stop: int,
    /,
) -> None: ...
def gates_backward(
    width: int,
    parts: tuple[Part, ...],
    grad: np.ndarray,
    kept: np.ndarray,
    top: np.ndarray,
    limit: float,
    d_top: np.ndarray,
    dense: np.ndarray | None,
    first: int,
    step: int,
    /,
) -> None: ...
def blend(
    messages: np.ndarray,
    gate: np.ndarray,
    baseline: np.ndarray,
    to: np.ndarray,
    kept: np.ndarray | None,
    first: int,
    step: int,
    /,
) -> None: ...
def blend_backward(
    grad: np.ndarray,
    gate: np.ndarray,
    baseline: np.ndarray,
    kept: np.ndarray | None,
    source: np.ndarray | None,
    d_gate: np.ndarray | None,
    d_baseline: np.ndarray | None,
    d_messages: np.ndarray | None,
    d_nodes: np.ndarray | None,
    first: int,
    step: int,
    /,
) -> None: ...
def overwrite(messages: np.ndarray, is_open: np.ndarray, baseline: np.ndarray, /) -> None: ...
