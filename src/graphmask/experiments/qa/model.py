r"""Entity-GCN (De Cao, Aziz and Titov, 2019), the GloVe variant, in two forms that compute the same function.

Mentions of the candidates and of the query's subject are nodes; three R-GCN layers share their weights:

.. math::
    u_i = W_0 h_i + \sum_r \frac{1}{|N_i^r|} \sum_{j \in N_i^r} W_r h_j, \qquad
    h_i' = a_i \tanh(u_i) + (1 - a_i) h_i, \qquad a_i = \sigma(W_a [u_i, h_i])

A candidate scores as the best of its mentions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import MessagePassing

from graphmask.errors import GraphMaskError
from graphmask.experiments.qa.mentions import RELATIONS
from graphmask.tapping.taps import AdjacencyTap

#: What a candidate scores that is nowhere mentioned, and a place of the output without a candidate: as good as
#: minus infinity in a softmax, but a number.
NEVER = -1e4
FORMS = ("matrix", "edges")
EDGES = ("edge_index", "edge_type", "edge_weight", "entity", "batch")


@dataclass(frozen=True)
class Sizes:
    """Widths of the model."""

    query: int = 64  #: of the BiLSTM, per direction
    hidden: int = 128  #: of a mention's state
    first: int = 256  #: of the hidden layer that joins mention and query
    scorer: tuple[int, int] = (64, 32)
    layers: int = 3
    dropout: float = 0.3


class EntityGCN(nn.Module):
    """Scores ``[B, candidates]``; use one of the two forms below. Both have the same parameters by the same names."""

    def __init__(self, vectors: Tensor, sizes: Sizes, candidates: int) -> None:
        super().__init__()
        self.sizes, self.candidates = sizes, candidates
        self.words = nn.Embedding.from_pretrained(vectors)  # never trained: few questions, many names
        width, both = vectors.shape[1], 2 * sizes.query
        self.reader = nn.LSTM(width, sizes.query, num_layers=2, bidirectional=True, batch_first=True)
        self.join = nn.Sequential(
            nn.Linear(both + width, sizes.first), nn.Tanh(), nn.Linear(sizes.first, sizes.hidden), nn.Tanh()
        )
        self.own = nn.Linear(sizes.hidden, sizes.hidden)
        self.relations = nn.Linear(sizes.hidden, len(RELATIONS) * sizes.hidden, bias=False)
        self.update = nn.Linear(2 * sizes.hidden, sizes.hidden)
        self.score = nn.Sequential(
            nn.Linear(both + sizes.hidden, sizes.scorer[0]),
            nn.Tanh(),
            nn.Linear(*sizes.scorer),
            nn.Tanh(),
            nn.Linear(sizes.scorer[1], 1),
        )
        self.dropout = nn.Dropout(sizes.dropout)
        self.message_dropout = 0.0  # of whole messages at the top layer, while the model itself learns

    def read(self, query: Tensor, lengths: Tensor) -> Tensor:
        """[B, Q] words -> [B, d]: the last states of both directions of the upper layer."""
        packed = nn.utils.rnn.pack_padded_sequence(
            self.dropout(self.words(query)), lengths, batch_first=True, enforce_sorted=False
        )
        _, (last, _) = self.reader(packed)
        return torch.cat([last[-2], last[-1]], 1)

    def states(self, x: Tensor, query: Tensor) -> Tensor:
        """[..., d] what a mention is before any message: its words and the query."""
        return self.join(torch.cat([self.dropout(query), self.dropout(x)], -1))

    def layer(self, h: Tensor, received: Tensor) -> Tensor:
        """The gated update."""
        u = self.own(h) + received
        gate = torch.sigmoid(self.update(torch.cat([u, h], -1)))
        return gate * torch.tanh(u) + (1 - gate) * h

    def messages(self, h: Tensor, layer: int) -> Tensor:
        """[..., R, d]: what a mention sends along each relation.

        Whole messages may be dropped, the more the higher the layer, as layers are in networks of stochastic depth
        (Huang et al. 2016): such a model learns to do first what matters most.
        """
        sent = self.relations(self.dropout(h)).unflatten(-1, (len(RELATIONS), -1))
        if not self.message_dropout:
            return sent
        rate = self.message_dropout * (layer + 1) / self.sizes.layers
        return sent * F.dropout(torch.ones_like(sent[..., :1]), rate, self.training)

    def best(self, h: Tensor, query: Tensor, owner: Tensor, entity: Tensor, graphs: int) -> Tensor:
        """[B, candidates] from [N] mentions of the candidates ``entity`` (negative: of none) of graphs ``owner``."""
        scores = self.score(torch.cat([query, self.dropout(h)], -1)).squeeze(-1)
        named = entity >= 0
        cell = owner[named] * self.candidates + entity[named]
        empty = scores.new_full((graphs * self.candidates,), NEVER)
        return empty.scatter_reduce(0, cell, scores[named], "amax").view(graphs, self.candidates)


class MatrixForm(EntityGCN):
    """Over normalised adjacency matrices ``[B, R, N, N]``; graphs of a batch are padded to the largest."""

    def __init__(self, vectors: Tensor, sizes: Sizes, candidates: int) -> None:
        super().__init__(vectors, sizes, candidates)
        self.tap = AdjacencyTap()

    def forward(self, query: Tensor, lengths: Tensor, x: Tensor, adjacency: Tensor, entity: Tensor) -> Tensor:
        graphs, nodes = entity.shape
        read = self.read(query, lengths)[:, None].expand(-1, nodes, -1)
        h = self.states(x, read)
        for layer in range(self.sizes.layers):
            h = self.layer(h, self.tap(adjacency, self.messages(h, layer).transpose(1, 2), h).sum(1))
        owner = torch.arange(graphs, device=x.device).repeat_interleave(nodes)
        return self.best(h.flatten(0, 1), read.flatten(0, 1), owner, entity.flatten(), graphs)


class Propagation(MessagePassing):
    """Messages along edges, weighed by one over the number of neighbours in the relation."""

    def __init__(self) -> None:
        super().__init__(aggr="add")

    def forward(self, x: Tensor, table: Tensor, edge_index: Tensor, edge_type: Tensor, edge_weight: Tensor) -> Tensor:
        """``table`` ``[N, R, d]`` holds what a node sends along each relation; ``x`` is for the eyes of a gate."""
        rows, cell = table.flatten(0, 1), edge_index[0] * table.shape[1] + edge_type
        return self.propagate(edge_index, x=x, rows=rows, cell=cell, edge_type=edge_type, edge_weight=edge_weight)

    def message(self, rows: Tensor, cell: Tensor, edge_weight: Tensor) -> Tensor:
        return edge_weight[:, None] * rows[cell]


class EdgeForm(EntityGCN):
    """Over lists of edges, as PyTorch Geometric batches graphs: the same parameters, the same function."""

    def __init__(self, vectors: Tensor, sizes: Sizes, candidates: int) -> None:
        super().__init__(vectors, sizes, candidates)
        self.propagation = Propagation()

    def forward(
        self,
        query: Tensor,
        lengths: Tensor,
        x: Tensor,
        edge_index: Tensor,
        edge_type: Tensor,
        edge_weight: Tensor,
        entity: Tensor,
        batch: Tensor,
    ) -> Tensor:
        read = self.read(query, lengths)[batch]
        h = self.states(x, read)
        for layer in range(self.sizes.layers):
            h = self.layer(h, self.propagation(h, self.messages(h, layer), edge_index, edge_type, edge_weight))
        return self.best(h, read, batch, entity, len(lengths))


def make(form: str, vectors: Tensor, sizes: Sizes, candidates: int, *, seed: int) -> EntityGCN:
    """A model with fresh weights."""
    if form not in FORMS:
        raise GraphMaskError(f"Expected a form among {', '.join(FORMS)}, got {form!r}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return (MatrixForm if form == "matrix" else EdgeForm)(vectors, sizes, candidates)


def forward(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Either form on its batch (`examples.Examples`)."""
    graph = ("adjacency", "entity") if isinstance(model, MatrixForm) else EDGES
    return model(*(batch[key] for key in ("query", "lengths", "x", *graph)))
