"""One table of models and graphs. Every law is tested on every row."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data
from torch_geometric.utils import coalesce

from graphmask import AdjacencyTap, MessageTap

WIDTH, EDGE_WIDTH, RELATIONS, CLASSES = 8, 4, 3, 3


# Graphs ----------------------------------------------------------------------------------------------------


def random_graph(seed: int) -> Data:
    """A self-loop, an edge twice with two relations, an edge twice with one relation, and an isolated last node."""
    generator = torch.Generator().manual_seed(seed)
    nodes = 6 + seed % 4
    edges = torch.randint(nodes - 1, (2, 2 * nodes), generator=generator)
    edges = edges[:, edges[0] != edges[1]]
    loop = torch.full((2, 1), seed % (nodes - 1))
    edges = torch.cat([edges[:, :3], loop, edges[:, 3:], edges[:, :2]], 1)
    types = torch.randint(RELATIONS, (edges.shape[1],), generator=generator)
    types[-2], types[-1] = (types[0] + 1) % RELATIONS, types[1]
    return Data(
        x=torch.randn(nodes, WIDTH, generator=generator),
        edge_index=edges,
        edge_type=types,
        edge_attr=torch.randn(edges.shape[1], EDGE_WIDTH, generator=generator),
        edge_weight=torch.rand(edges.shape[1], generator=generator) + 0.5,
    )


def simple_graph(seed: int) -> Data:
    """The same without duplicates: adjacency matrices have one entry per pair of nodes and relation."""
    graph = random_graph(seed)
    edges = coalesce(graph.edge_index)
    types = torch.arange(edges.shape[1]) % RELATIONS
    return Data(x=graph.x, edge_index=edges, edge_type=types)


def permuted(graph: Data, nodes: Tensor, edges: Tensor) -> Data:
    """Node ``nodes[i]`` becomes node i, edge ``edges[i]`` becomes edge i."""
    renamed = nodes.argsort()
    changed = {key: graph[key][edges] for key in ("edge_type", "edge_attr", "edge_weight") if key in graph}
    return Data(x=graph.x[nodes], edge_index=renamed[graph.edge_index[:, edges]], **changed)


# Batches that are not PyTorch Geometric's -------------------------------------------------------------------


def _with_adj_t(graph: Data, layout: torch.layout) -> Data:
    nodes = graph.num_nodes
    adjacency = torch.sparse_coo_tensor(
        graph.edge_index.flip(0), torch.ones(graph.num_edges), (nodes, nodes), check_invariants=True
    ).coalesce()
    if layout == torch.sparse_csr:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "Sparse CSR tensor support is in beta state"
            adjacency = adjacency.to_sparse_csr()
    return Data(x=graph.x, adj_t=adjacency)


def _sparse(layout: torch.layout) -> Callable[[Sequence[Data]], Any]:
    def batch(graphs: Sequence[Data]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Batch.from_data_list([_with_adj_t(graph, layout) for graph in graphs])

    return batch


def _sorted_edge_index(graphs: Sequence[Data]) -> Any:
    together = Batch.from_data_list(list(graphs))
    nodes = together.num_nodes
    edges = EdgeIndex(together.edge_index, sparse_size=(nodes, nodes)).sort_by("col").values
    return {"x": together.x, "edge_index": edges, "batch": together.batch}


def _pair(graphs: Sequence[Data]) -> Any:
    (graph,) = graphs
    return {"x_src": graph.x, "x_dst": graph.x[:, :5], "edge_index": graph.edge_index}


def _adjacency(sparse: bool) -> Callable[[Sequence[Data]], Any]:
    def batch(graphs: Sequence[Data]) -> Any:
        nodes = max(graph.num_nodes for graph in graphs)
        adjacency = torch.zeros(len(graphs), RELATIONS, nodes, nodes)
        x = torch.zeros(len(graphs), nodes, WIDTH)
        for number, graph in enumerate(graphs):
            x[number, : graph.num_nodes] = graph.x
            source, target = graph.edge_index
            adjacency[number, graph.edge_type, target, source] = 0.25 + 0.1 * graph.edge_type
        return {"x": x, "adjacency": adjacency.to_sparse() if sparse else adjacency}

    return batch


# Models ----------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Layers, tanh between them, and a linear readout of nodes or graphs."""

    def __init__(self, convs: Sequence[nn.Module], uses: Sequence[str] = (), *, pooled: bool = True) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.uses = tuple(uses)
        self.pooled = pooled
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_type: Tensor | None = None,
        edge_attr: Tensor | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        known = {"edge_type": edge_type, "edge_attr": edge_attr, "edge_weight": edge_weight, "batch": batch, "x_0": x}
        given = {name: known[name] for name in self.uses}
        for conv in self.convs:
            x = torch.tanh(conv(x=x, edge_index=edge_index, **given))
        return self.head(pyg.global_mean_pool(x, batch) if self.pooled else x)


class AdjNet(Net):
    def forward(self, x: Tensor, adj_t: Tensor, batch: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(x, adj_t, batch=batch)


class PairNet(nn.Module):
    """Two kinds of nodes; the receivers are classified."""

    def __init__(self, conv: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.convs = nn.ModuleList([conv, second])
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x_src: Tensor, x_dst: Tensor, edge_index: Tensor) -> Tensor:
        hidden = torch.tanh(self.convs[0]((x_src, x_dst), edge_index))
        return self.head(torch.tanh(self.convs[1]((x_src, hidden), edge_index)))


class SharedNet(nn.Module):
    """One layer, three times."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GraphConv(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.conv(x, edge_index))
        return self.head(pyg.global_add_pool(x, batch))


class Courier(pyg.MessagePassing):
    """A layer with names of its own, and a table that its messages do not show."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.pack = nn.Linear(WIDTH, WIDTH)
        self.stamps = nn.Embedding(RELATIONS, WIDTH)

    def forward(self, nodes: Tensor, links: Tensor, kind: Tensor) -> Tensor:
        return self.propagate(links, parcel=self.pack(nodes), stamp=self.stamps(kind), address=nodes)

    def message(self, parcel_j: Tensor, address_i: Tensor, stamp: Tensor) -> Tensor:
        return parcel_j * torch.sigmoid(address_i) + stamp


class CourierNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.morning, self.evening = Courier(), Courier()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor, batch: Tensor) -> Tensor:
        x = torch.tanh(self.morning(x, edge_index, edge_type))
        x = torch.tanh(self.evening(nodes=x, links=edge_index, kind=edge_type))
        return self.head(pyg.global_mean_pool(x, batch))


class NormNet(nn.Module):
    """Running statistics, dropout inside and outside the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = pyg.GATConv(WIDTH, WIDTH, dropout=0.3)
        self.norm = pyg.BatchNorm(WIDTH)
        self.dropout = nn.Dropout(0.5)
        self.second = pyg.GCNConv(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.dropout(torch.relu(self.norm(self.first(x, edge_index))))
        return self.head(torch.tanh(self.second(x, edge_index)))


class SumLayer(pyg.MessagePassing):
    """h_v = sum over senders of W_r h_u: the same function as `TapLayer`, the PyTorch Geometric way."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.weight = nn.Parameter(torch.randn(RELATIONS, WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, edge_type=edge_type)

    def message(self, x_j: Tensor, edge_type: Tensor) -> Tensor:
        return torch.einsum("ed,edk->ek", x_j, self.weight[edge_type])


class TapLayer(nn.Module):
    """... and in plain PyTorch with one line for GraphMask."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(RELATIONS, WIDTH, WIDTH) / WIDTH**0.5)
        self.tap = MessageTap()

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        source, target = edge_index
        messages = torch.einsum("ed,edk->ek", x[source], self.weight[edge_type])
        messages = self.tap(messages, edge_index, x, edge_type=edge_type)
        return torch.zeros_like(x).index_add(0, target, messages)


class MatrixNet(nn.Module):
    """Without biases below the readout, so that padding stays zero."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH * RELATIONS, bias=False) for _ in range(2))
        self.taps = nn.ModuleList(AdjacencyTap() for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        for linear, tap in zip(self.linears, self.taps, strict=True):
            messages = linear(x).unflatten(-1, (RELATIONS, WIDTH)).transpose(1, 2)  # [B, R, N, D]
            x = torch.tanh(tap(adjacency, messages, x).sum(1))
        return self.head(x.sum(1))


def mlp(inputs: int = WIDTH, outputs: int = WIDTH) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs))


def _pna(**options: Any) -> dict[str, Any]:
    degrees = torch.tensor([1, 3, 4, 3, 1])
    return {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"], "deg": degrees} | options


# The table -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    sites: tuple[str, ...]
    graph: Callable[[int], Data] = random_graph
    batch: Callable[[Sequence[Data]], Any] = Batch.from_data_list
    pieces: int = 1  #: calls per site
    reverse: tuple[str, ...] = ()  #: sites whose messages travel against the edges
    exact: bool = True  #: open gates give the same bits, not only the same numbers
    ordered: bool = True  #: the explanation's columns are in the order of the graph's edges
    batchable: bool = True
    added_loops: bool = False  #: the layer adds self-loops of its own

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return self.build().eval()

    def one(self, graph: Data) -> Any:
        """A single graph as a user would pass it."""
        return graph if self.batch == Batch.from_data_list else self.batch([graph])

    def loader(self, batches: int = 3, size: int = 3, start: int = 0) -> list[Any]:
        size = size if self.batchable else 1
        return [self.batch([self.graph(start + b * size + i) for i in range(size)]) for b in range(batches)]

    def graphs(self, count: int = 3) -> list[Data]:
        """Graphs that `loader` does not show."""
        return [self.graph(1000 + i) for i in range(count)]


def _layers(
    name: str,
    conv: Callable[[], nn.Module],
    *uses: str,
    hops: int = 1,
    layers: int = 2,
    pooled: bool = True,
    inner: Sequence[str] = ("",),
    **facts: Any,
) -> Case:
    """`layers` layers of a kind; ``hops`` sites each, in the modules ``inner`` of the layer."""
    sites = tuple(
        f"convs.{layer}{module}{f'#{hop}' if hop else ''}"
        for layer in range(layers)
        for module in inner
        for hop in range(hops)
    )
    if facts.get("reverse") is True:
        facts["reverse"] = sites
    return Case(name, lambda: Net([conv() for _ in range(layers)], uses, pooled=pooled), sites, **facts)


W, K, R = WIDTH, EDGE_WIDTH, RELATIONS
_BACK = "target_to_source"
CASES: tuple[Case, ...] = (
    # One call, one message per edge.
    _layers("SAGE", lambda: pyg.SAGEConv(W, W)),
    _layers("SAGE max", lambda: pyg.SAGEConv(W, W, aggr="max"), pooled=False),
    _layers("SAGE several aggregations", lambda: pyg.SAGEConv(W, W, aggr=["mean", "max", "std"])),
    _layers("GIN", lambda: pyg.GINConv(mlp(), train_eps=True)),
    _layers("GINE", lambda: pyg.GINEConv(mlp(), edge_dim=K), "edge_attr"),
    _layers("GraphConv", lambda: pyg.GraphConv(W, W), "edge_weight", pooled=False),
    _layers("GCN in two halves", lambda: pyg.GCNConv(W, W, decomposed_layers=2), exact=False, added_loops=True),
    _layers("NNConv", lambda: pyg.NNConv(W, W, nn.Linear(K, W * W)), "edge_attr"),
    _layers("EdgeConv", lambda: pyg.EdgeConv(mlp(2 * W))),
    _layers("ResGatedGraph", lambda: pyg.ResGatedGraphConv(W, W, edge_dim=K), "edge_attr", pooled=False),
    _layers("GEN", lambda: pyg.GENConv(W, W, edge_dim=K, learn_t=True), "edge_attr"),
    _layers("FiLM", lambda: pyg.FiLMConv(W, W)),
    _layers("LE", lambda: pyg.LEConv(W, W), "edge_weight"),
    _layers("MF", lambda: pyg.MFConv(W, W)),
    _layers("CG", lambda: pyg.CGConv(W, dim=K), "edge_attr"),
    _layers("General", lambda: pyg.GeneralConv(W, W, in_edge_channels=K, attention=True, heads=2), "edge_attr"),
    _layers("GMM", lambda: pyg.GMMConv(W, W, dim=K, kernel_size=2), "edge_attr"),
    _layers("LG", lambda: pyg.LGConv(), "edge_weight"),
    _layers("Simple", lambda: pyg.SimpleConv(combine_root="sum")),
    # Self-loops dropped and appended.
    _layers("GCN", lambda: pyg.GCNConv(W, W), "edge_weight", added_loops=True),
    _layers("GCN without loops", lambda: pyg.GCNConv(W, W, add_self_loops=False), pooled=False),
    _layers("GCN2", lambda: pyg.GCN2Conv(W, alpha=0.2), "x_0", "edge_weight", added_loops=True),
    _layers("FA", lambda: pyg.FAConv(W), "x_0", added_loops=True),
    _layers("AGNN", lambda: pyg.AGNNConv(), added_loops=True),
    _layers("ClusterGCN", lambda: pyg.ClusterGCNConv(W, W, diag_lambda=0.1), added_loops=True),
    _layers("EG", lambda: pyg.EGConv(W, W, num_heads=2, num_bases=2), added_loops=True),
    _layers("FeaSt", lambda: pyg.FeaStConv(W, W, heads=2), added_loops=True),
    _layers("PDN", lambda: pyg.PDNConv(W, W, edge_dim=K, hidden_channels=W), "edge_attr", added_loops=True),
    _layers(
        "AntiSymmetric",
        lambda: pyg.AntiSymmetricConv(W, num_iters=2),
        layers=1,
        hops=2,
        inner=(".phi",),
        added_loops=True,
    ),
    # Heads and towers.
    _layers("GAT", lambda: pyg.GATConv(W, W // 2, heads=2), added_loops=True),
    _layers(
        "GAT mean of heads",
        lambda: pyg.GATConv(W, W, heads=3, concat=False, edge_dim=K),
        "edge_attr",
        added_loops=True,
        pooled=False,
    ),
    _layers("GATv2", lambda: pyg.GATv2Conv(W, W // 2, heads=2, edge_dim=K), "edge_attr", added_loops=True),
    _layers("SuperGAT", lambda: pyg.SuperGATConv(W, W // 2, heads=2), added_loops=True),
    _layers("Transformer", lambda: pyg.TransformerConv(W, W // 2, heads=2, edge_dim=K, beta=True), "edge_attr"),
    _layers("PNA", lambda: pyg.PNAConv(W, W, **_pna(edge_dim=K, towers=2)), "edge_attr"),
    _layers("RGAT", lambda: pyg.RGATConv(W, W // 2, num_relations=R, heads=2), "edge_type"),
    _layers(
        "RGAT within relations",
        lambda: pyg.RGATConv(W, W // 2, num_relations=R, heads=2, attention_mechanism="within-relation"),
        "edge_type",
    ),
    # Several hops per layer.
    _layers("GatedGraph", lambda: pyg.GatedGraphConv(W, num_layers=2), "edge_weight", layers=1, hops=2),
    _layers("SG", lambda: pyg.SGConv(W, W, K=2), layers=1, hops=2, added_loops=True),
    _layers("SSG", lambda: pyg.SSGConv(W, W, alpha=0.1, K=2), layers=1, hops=2, added_loops=True),
    _layers("APPNP", lambda: pyg.APPNP(K=3, alpha=0.1), layers=1, hops=3, added_loops=True),
    _layers("Cheb", lambda: pyg.ChebConv(W, W, K=3), layers=2, hops=2, added_loops=True),
    _layers("TAG", lambda: pyg.TAGConv(W, W, K=2), "edge_weight", layers=1, hops=2),
    _layers("MixHop", lambda: pyg.MixHopConv(W, W // 2, powers=[1, 2]), layers=1, hops=2, added_loops=True),
    _layers("ARMA", lambda: pyg.ARMAConv(W, W, num_stacks=2, num_layers=2), layers=1, hops=2),
    # Relations.
    _layers("RGCN", lambda: pyg.RGCNConv(W, W, R), "edge_type", pieces=R),
    _layers("RGCN bases", lambda: pyg.RGCNConv(W, W, R, num_bases=2, aggr="add"), "edge_type", pieces=R),
    _layers("RGCN blocks", lambda: pyg.RGCNConv(W, W, R, num_blocks=2), "edge_type", pieces=R, pooled=False),
    _layers("FastRGCN", lambda: pyg.FastRGCNConv(W, W, R), "edge_type"),
    _layers("FiLM relations", lambda: pyg.FiLMConv(W, W, num_relations=R), "edge_type", pieces=R),
    # Directions.
    _layers("SAGE backwards", lambda: pyg.SAGEConv(W, W, flow=_BACK), reverse=True),
    _layers("GCN backwards", lambda: pyg.GCNConv(W, W, flow=_BACK), reverse=True, added_loops=True),
    _layers("GAT backwards", lambda: pyg.GATConv(W, W, flow=_BACK), reverse=True, added_loops=True),
    _layers(
        "DirGNN",
        lambda: pyg.DirGNNConv(pyg.SAGEConv(W, W)),
        inner=(".conv_in", ".conv_out"),
        reverse=("convs.0.conv_out", "convs.1.conv_out"),
    ),
    # Whole models, and layers inside layers.
    _layers("GPS", lambda: pyg.GPSConv(W, pyg.GINConv(mlp()), heads=2), "batch", inner=(".conv",)),
    *(
        _layers(
            f"models.{type_.__name__}",
            lambda type_=type_, extra=extra: type_(W, W, 2, W, **extra),
            *uses,
            layers=1,
            inner=(".convs.0", ".convs.1"),
            **facts,
        )
        for type_, uses, extra, facts in (
            (pyg.models.GCN, ("edge_weight",), {"norm": "batch_norm"}, {"added_loops": True}),
            (pyg.models.GAT, (), {"heads": 2, "dropout": 0.2}, {"added_loops": True}),
            (pyg.models.GIN, (), {"jk": "cat"}, {}),
            (pyg.models.GraphSAGE, (), {"project": True}, {}),
            (pyg.models.PNA, (), _pna(), {}),
            (pyg.models.EdgeCNN, (), {}, {}),
        )
    ),
    Case("one layer three times", SharedNet, ("conv", "conv#1", "conv#2")),
    Case("own names", CourierNet, ("morning", "evening")),
    Case("norm and dropout", NormNet, ("first", "second"), added_loops=True),
    # Two kinds of nodes.
    Case(
        "pair SAGE",
        lambda: PairNet(pyg.SAGEConv((W, 5), W), pyg.SAGEConv((W, W), W)),
        ("convs.0", "convs.1"),
        batch=_pair,
        batchable=False,
    ),
    Case(
        "pair GAT",
        lambda: PairNet(
            pyg.GATConv((W, 5), W // 2, heads=2, add_self_loops=False),
            pyg.GATv2Conv((W, W), W, add_self_loops=False),
        ),
        ("convs.0", "convs.1"),
        batch=_pair,
        batchable=False,
    ),
    # Graphs that layers would run through fused kernels.
    *(
        Case(
            f"adj_t {name} {str(layout).split('_')[-1]}",
            lambda conv=conv: AdjNet([conv(), conv()]),
            ("convs.0", "convs.1"),
            graph=simple_graph,
            batch=_sparse(layout),
            exact=False,
            ordered=False,
            added_loops=loops,
        )
        for name, conv, layout, loops in (
            ("SAGE", lambda: pyg.SAGEConv(W, W), torch.sparse_csr, False),
            ("GIN", lambda: pyg.GINConv(mlp()), torch.sparse_csr, False),
            ("GCN", lambda: pyg.GCNConv(W, W), torch.sparse_csr, True),
            ("GATv2", lambda: pyg.GATv2Conv(W, W, add_self_loops=False), torch.sparse_coo, False),
            ("Transformer", lambda: pyg.TransformerConv(W, W), torch.sparse_coo, False),
        )
    ),
    Case(
        "sorted EdgeIndex",
        lambda: Net([pyg.SAGEConv(W, W), pyg.GraphConv(W, W)]),
        ("convs.0", "convs.1"),
        graph=simple_graph,
        batch=_sorted_edge_index,
        exact=False,
        ordered=False,
    ),
    # Not PyTorch Geometric.
    _layers("MessageTap", TapLayer, "edge_type", inner=(".tap",)),
    *(
        Case(
            f"AdjacencyTap {'sparse' if sparse else 'dense'}",
            MatrixNet,
            ("taps.0", "taps.1"),
            graph=simple_graph,
            batch=_adjacency(sparse),
            ordered=False,
        )
        for sparse in (False, True)
    ),
)
BY_NAME = {case.name: case for case in CASES}
