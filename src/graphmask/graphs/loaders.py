"""Parts of one large graph as batches: some nodes, and all nodes that their predictions can depend on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphmask.errors import GraphMaskError
from graphmask.graphs.groups import rank_within


class KHopLoader:
    """Batches of ``seeds`` with the nodes that lie up to ``hops`` edges before them, in pure PyTorch.

    Every batch is a :class:`torch_geometric.data.Data` in the form of PyG's ``NeighborLoader``: seeds come first,
    ``batch_size`` says how many they are, ``n_id`` and ``e_id`` which nodes and edges of the graph the batch has, and
    ``input_id`` which of the seeds. By default only the rows of the seeds are explained.

    A model of k layers gives seeds the same output on a batch of k hops as on the whole graph, except where layers
    look at degrees (GCN): those of the outermost nodes need one hop more, the ``margin``.

    Args:
        data: one graph; attributes of its nodes and edges are cut to the batch, others go along as they are.
        hops: as many as the model has layers.
        seeds: nodes to ask about, as numbers or as a mask; all if left out.
        batch_size: seeds per batch.
        fanout: of every node's incoming edges keep this many, drawn anew in every batch; all if left out.
        margin: hops beyond ``hops``; 1, or 0 with ``fanout``, which leaves no degree as it was anyway.
        shuffle: put the seeds in another order at every pass.
        seed: of all draws, the same at every pass; if left out, each pass is drawn from torch's random state.
    """

    def __init__(
        self,
        data: Data,
        hops: int,
        seeds: Tensor | None = None,
        batch_size: int = 64,
        fanout: int | None = None,
        *,
        margin: int | None = None,
        shuffle: bool = False,
        seed: int | None = None,
    ) -> None:
        if not isinstance(data, Data) or not isinstance(data.edge_index, Tensor):
            raise GraphMaskError(f"Expected one graph (Data) with an edge_index, got {type(data).__name__}.")
        for name, value, least in (("hops", hops, 0), ("batch_size", batch_size, 1), ("fanout", fanout, 1)):
            if value is not None and (not isinstance(value, int) or value < least):
                raise GraphMaskError(f"Expected {name} to be at least {least}, got {value!r}.")
        self.data, self.batch_size, self.fanout = data, batch_size, fanout
        self.hops = hops + ((fanout is None) if margin is None else margin)
        self.shuffle, self.seed = shuffle, seed
        nodes = int(data.num_nodes or 0)
        self.seeds = _numbers(seeds, nodes, data.edge_index.device)
        # In-edges of a node lie side by side: those of many nodes are found without looking at all edges.
        self._order = data.edge_index[1].argsort(stable=True)
        counts = torch.bincount(data.edge_index[1], minlength=nodes)
        self._degree, self._first = counts, counts.cumsum(0) - counts
        self._place = torch.full((nodes,), -1, device=data.edge_index.device)

    def __len__(self) -> int:
        return -(-len(self.seeds) // self.batch_size)

    def __iter__(self) -> Iterator[Data]:
        seed = int(torch.randint(1 << 62, ())) if self.seed is None and (self.shuffle or self.fanout) else self.seed
        generator = torch.Generator().manual_seed(seed or 0)
        count = len(self.seeds)
        order = torch.randperm(count, generator=generator) if self.shuffle else torch.arange(count)
        for some in order.to(self.seeds.device).split(self.batch_size):
            yield self._batch(some, generator)

    def _batch(self, some: Tensor, generator: torch.Generator) -> Data:
        seeds = self.seeds[some]
        nodes, edges = self._gather(seeds, generator)
        data: Any = self.data
        batch = Data()
        for key, value in data.to_dict().items():
            if key == "edge_index":
                batch.edge_index = self._relabelled(nodes, edges)
            elif isinstance(value, Tensor) and data.is_node_attr(key):
                batch[key] = value[nodes]
            elif isinstance(value, Tensor) and data.is_edge_attr(key):
                batch[key] = value[edges]
            elif key != "num_nodes":
                batch[key] = value
        batch.num_nodes = len(nodes)
        batch.n_id, batch.e_id, batch.input_id, batch.batch_size = nodes, edges, some, len(seeds)
        return batch

    def _gather(self, seeds: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """no"""
        nodes, edges, frontier = [seeds], [seeds.new_empty(0)], seeds
        seen = torch.zeros_like(self._place, dtype=torch.bool)
        seen[seeds] = True
        for _ in range(self.hops):
            edges.append(self._incoming(frontier, generator))
            senders = self.data.edge_index[0, edges[-1]]
            frontier = senders[~seen[senders]].unique()
            seen[frontier] = True
            nodes.append(frontier)
        return torch.cat(nodes), torch.cat(edges).sort().values

    def _incoming(self, nodes: Tensor, generator: torch.Generator) -> Tensor:
        degree = self._degree[nodes]
        owner = torch.arange(len(nodes), device=nodes.device).repeat_interleave(degree)
        rank = torch.arange(len(owner), device=nodes.device) - (degree.cumsum(0) - degree)[owner]
        edges = self._order[self._first[nodes][owner] + rank]
        if self.fanout is None:
            return edges
        shuffled = torch.randperm(len(edges), generator=generator).to(edges.device)
        return edges[shuffled[rank_within(owner[shuffled], len(nodes)) < self.fanout]]

    def _relabelled(self, nodes: Tensor, edges: Tensor) -> Tensor:
        self._place[nodes] = torch.arange(len(nodes), device=nodes.device)
        return self._place[self.data.edge_index[:, edges]]


def _numbers(seeds: Tensor | None, nodes: int, device: torch.device) -> Tensor:
    if seeds is None:
        return torch.arange(nodes, device=device)
    seeds = torch.as_tensor(seeds, device=device)
    if seeds.dtype == torch.bool:
        if seeds.shape != (nodes,):
            raise GraphMaskError(f"Expected a mask over {nodes} nodes as seeds, got shape {tuple(seeds.shape)}.")
        seeds = seeds.nonzero()
    seeds = seeds.reshape(-1)
    if seeds.is_floating_point() or not len(seeds) or int(seeds.min()) < 0 or int(seeds.max()) >= nodes:
        raise GraphMaskError(f"Expected seeds to name nodes 0 to {nodes - 1}, got {seeds[:5].tolist()} ...")
    if len(seeds.unique()) != len(seeds):
        raise GraphMaskError("Expected every seed once, found some node twice.")
    return seeds.long()
