#: Addresses of a table, of indices and of weights (0: none), stride, place, and what an index is below.
Part = tuple[int, int, int, int, int, int]

def gates(
    edges: int,
    width: int,
    parts: tuple[Part, ...],
    dense: int,
    gamma: int,
    beta: int,
    out: int,
    location: int,
    normal: int,
    inverse: int,
    /,
) -> None: ...
def overwrite(edges: int, bytes: int, messages: int, open: int, baseline: int, /) -> None: ...
def gates_backward(
    edges: int,
    width: int,
    parts: int,
    index: int,
    scale: int,
    normal: int,
    inverse: int,
    grad: int,
    gamma: int,
    beta: int,
    out: int,
    table: int,
    d_gamma: int,
    d_beta: int,
    d_out: int,
    dense: int,
    /,
) -> None: ...
def blend_backward(
    edges: int,
    width: int,
    rows: int,
    grad: int,
    gate: int,
    source: int,
    baseline: int,
    messages: int,
    nodes: int,
    /,
) -> None: ...
