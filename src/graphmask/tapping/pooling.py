"""Modules that pool while a model is tapped: the graphs they produce are reported to the code that matches edges."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn.pool import ASAPooling, ClusterPooling, EdgePooling, SAGPooling, TopKPooling

from graphmask.graphs.pooled import PooledGraphs
from graphmask.tapping.restore import modules_of

#: They return (x, edge_index, edge_attr, batch, perm, score), and keep the edges between the nodes ``perm`` in order.
SELECT = (TopKPooling, SAGPooling)
#: Nodes are merged, or edges made: no edge above is one of the user's.
MERGE = (ASAPooling, EdgePooling, ClusterPooling)
POOLS = (*SELECT, *MERGE)


def pools(model: nn.Module) -> bool:
    """Whether the edges that layers of this model send along may differ from run to run."""
    return any(isinstance(module, SELECT) for module in modules_of(model))


def follow(graphs: PooledGraphs, name: str, module: nn.Module) -> Any:
    """Tell ``graphs`` of everything that the module pools; returns the handle of the hook."""

    def pooled(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
        x, edge_index = given["x"], given["edge_index"]
        perm = output[4] if isinstance(module, SELECT) and len(output) == 6 else None
        perm = perm if isinstance(perm, Tensor) and perm.dim() == 1 else None
        graphs.follow(name, len(x), edge_index, output[1], perm, len(output[0]))

    return module.register_forward_hook(pooled, with_kwargs=True)
