r"""The role labellers of Marcheggiani and Titov (2017): syntactic GCNs, with or without a BiLSTM below."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import to_dense_batch

from graphmask.experiments.common import build
from graphmask.experiments.vectors import Found


@dataclass(frozen=True)
class Sizes:
    """Of a labeller. ``lstm`` and ``layers`` count layers; no LSTM is the GNN-only model."""

    lstm: int
    layers: int
    tag: int = 16
    lemma: int = 50
    flag: int = 16
    frame: int = 64
    role: int = 64
    hidden: int = 128  #: of the LSTM, per direction
    width: int = 256  #: of the GCN
    dropout: float = 0.3
    edge_dropout: float = 0.3


class SyntacticConv(MessagePassing):
    r"""One layer of a syntactic GCN.

    .. math:: h'_v = \mathrm{ReLU}\big(s_v (V_0 h_v + b_0) + \sum_{u \to v} g_{u,v} (V_d h_u + b_l)\big)

    with weights V by direction d (along the dependency, against it, to itself), biases by label and direction l, and a
    scalar gate g, the sigmoid of the same with vectors in place of matrices. While training, whole edges drop out.
    """

    def __init__(self, inputs: int, width: int, edge_types: int, edge_dropout: float = 0.0) -> None:
        super().__init__(aggr="sum")
        self.width, self.edge_dropout = width, edge_dropout
        self.own = nn.Linear(inputs, width + 1)
        # Both directions at once, each with one column more for its gate.
        self.directions = nn.Linear(inputs, 2 * (width + 1), bias=False)
        self.labels = nn.Embedding(edge_types, width + 1)
        nn.init.zeros_(self.labels.weight)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        own = self.own(x)
        sent = self.directions(x).view(2 * len(x), self.width + 1)
        label = self.labels.weight
        alpha = torch.sigmoid(sent[2 * edge_index[0] + edge_type % 2, -1] + label[edge_type, -1])
        alpha = F.dropout(alpha, self.edge_dropout, self.training)
        received = self.propagate(edge_index, x=x, sent=sent, edge_type=edge_type, alpha=alpha)
        return (own[:, :-1] * torch.sigmoid(own[:, -1:]) + received).relu()

    def message(self, edge_index_j: Tensor, sent: Tensor, edge_type: Tensor, alpha: Tensor) -> Tensor:
        row = sent[2 * edge_index_j + edge_type % 2, :-1]
        return alpha[:, None] * (row + self.labels.weight[edge_type, :-1])


class Labeller(nn.Module):
    """Role of every token towards the predicate: logits ``[N, R]``, class 0 is no role."""

    def __init__(self, sizes: Sizes, words: Found, counts: dict[str, int], seed: int = 0) -> None:
        super().__init__()
        self.sizes = sizes
        self.known = nn.Embedding.from_pretrained(words.table)
        self.absent = nn.Embedding.from_pretrained(words.initial(seed), freeze=False, padding_idx=0)
        self.register_buffer("slots", words.slots)
        self.learned = nn.Embedding(len(words.table), words.table.shape[1])
        nn.init.normal_(self.learned.weight, std=0.01)
        self.lemma = nn.Embedding(counts["lemmas"], sizes.lemma)
        self.tag = nn.Embedding(counts["tags"], sizes.tag)
        self.flag = nn.Embedding(2, sizes.flag)
        self.frame_here = nn.Embedding(counts["frames"], sizes.lemma)
        width = words.table.shape[1] + 2 * sizes.lemma + sizes.tag + sizes.flag
        self.dropout = nn.Dropout(sizes.dropout)
        self.lstm: nn.LSTM | None = None
        if sizes.lstm:
            between = sizes.dropout if sizes.lstm > 1 else 0.0
            self.lstm = nn.LSTM(width, sizes.hidden, sizes.lstm, bidirectional=True, batch_first=True, dropout=between)
            width = 2 * sizes.hidden
        self.convs = nn.ModuleList()
        for _ in range(sizes.layers):
            self.convs.append(SyntacticConv(width, sizes.width, counts["edge_types"], sizes.edge_dropout))
            width = sizes.width
        # W_{l,r} = ReLU(U [q_l, q_r]): a classifier for every predicate lemma l and role r.
        self.frame = nn.Embedding(counts["frames"], sizes.frame)
        self.role = nn.Embedding(counts["roles"], sizes.role)
        self.by_frame = nn.Linear(sizes.frame, 2 * width)
        self.by_role = nn.Linear(sizes.role, 2 * width, bias=False)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_type: Tensor,
        batch: Tensor,
        predicate: Tensor,
        frame: Tensor,
    ) -> Tensor:
        word, lemma, tag, flag = x.unbind(1)
        vectors = self.known(word) + self.absent(self.slots[word]) + self.learned(word)  # type: ignore[index]
        # The predicate's lemma is told to the predicate's token alone.
        here = self.frame_here(frame)[batch] * flag[:, None]
        state = torch.cat([vectors, self.lemma(lemma), self.tag(tag), self.flag(flag), here], 1)
        state = self.dropout(state)
        if self.lstm is not None:
            state = self.dropout(_over_sentences(self.lstm, state, batch))
        for conv in self.convs:
            state = self.dropout(conv(state, edge_index, edge_type))
        weights = (self.by_frame(self.frame(frame))[:, None] + self.by_role(self.role.weight)).relu()
        token, head = weights.chunk(2, 2)  # [B, R, D] each
        dense, present = to_dense_batch(state, batch, batch_size=len(frame))
        scores = dense @ token.transpose(1, 2) + (head @ state[predicate][:, :, None]).transpose(1, 2)
        return scores[present]


def _over_sentences(lstm: nn.LSTM, state: Tensor, batch: Tensor) -> Tensor:
    """Run an LSTM over each sentence of a batch; padding is never seen."""
    dense, present = to_dense_batch(state, batch)
    lengths = present.sum(1).cpu()
    packed = pack_padded_sequence(dense, lengths, batch_first=True, enforce_sorted=False)
    padded, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=dense.shape[1])
    return padded[present]


def make(sizes: Sizes, words: Found, counts: dict[str, int], *, seed: int) -> Labeller:
    """An untrained labeller."""
    return build(lambda: Labeller(sizes, words, counts, seed), seed)
