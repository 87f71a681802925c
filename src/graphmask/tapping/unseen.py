"""Which modules of a model can mix nodes, or tokens, in other ways than by the gated messages?

Gates are on messages. A module that lets one node's state act on another's by itself (attention over all nodes, a
recurrent network along them, a normalisation by the mean of the graph) carries information that no gate stops: what is
dropped along edges may still arrive that way. Such modules are recognised by their class. Sums over nodes that are
written out in a model's forward (``x.mean(0)``, a product with a dense matrix) cannot be recognised, and are not
listed.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch_geometric.nn import (
    DenseGATConv,
    DenseGCNConv,
    DenseGINConv,
    DenseGraphConv,
    DenseSAGEConv,
    GraphNorm,
    JumpingKnowledge,
    LayerNorm,
    MeanSubtractionNorm,
    MessagePassing,
    PairNorm,
)
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.nn.attention import PerformerAttention, PolynormerAttention, QFormer, SGFormerAttention

from graphmask.tapping.taps import AdjacencyTap, MessageTap

#: What sends along edges: beside it, attention is left as it is.
ALONG_EDGES = (MessagePassing, MessageTap, AdjacencyTap)
#: Attention over all nodes of a graph, recurrence along them, normalisation by the mean of a graph, and layers over
#: dense adjacency matrices, which need an `AdjacencyTap`.
_MIXES = (
    DenseGATConv,
    DenseGCNConv,
    DenseGINConv,
    DenseGraphConv,
    DenseSAGEConv,
    nn.RNNBase,
    PerformerAttention,
    PolynormerAttention,
    QFormer,
    SGFormerAttention,
    GraphNorm,
    MeanSubtractionNorm,
    PairNorm,
)
#: What is inside of these combines the layers of one node, the messages at one, or the nodes of a graph: a readout.
_COMBINES = (Aggregation, JumpingKnowledge)


def unseen(model: nn.Module) -> tuple[str, ...]:
    """Names of the modules, each with its class: ``conv1.attn (MultiheadAttention)``."""
    along_edges = any(isinstance(module, ALONG_EDGES) for module in model.modules())
    return tuple(_found(model, "", along_edges))


def _found(module: nn.Module, name: str, along_edges: bool) -> Iterator[str]:
    if isinstance(module, _COMBINES):
        return
    if _mixes(module, along_edges):
        yield f"{name or 'model'} ({type(module).__name__})"
        return
    for key, inner in module.named_children():
        yield from _found(inner, f"{name}.{key}" if name else key, along_edges)


def _mixes(module: nn.Module, along_edges: bool) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return along_edges  # otherwise it is what is gated
    if isinstance(module, LayerNorm):
        return module.mode == "graph"
    if isinstance(module, _NormBase):  # of a batch or an instance
        return module.running_mean is None  # with statistics of the training data, each row is normalised by itself
    return isinstance(module, _MIXES)
