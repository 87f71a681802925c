"""The result for a heterogeneous graph: an `Explanation` that can be indexed by edge type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation, Hop, Retained
from graphmask.graphs import batches
from graphmask.graphs.batches import Split
from graphmask.graphs.edges import EdgeType
from graphmask.graphs.hetero_edges import HeteroEdgeMap
from graphmask.graphs.layout import Types
from graphmask.graphs.sites import Site, layers_of

if TYPE_CHECKING:
    import networkx
    import torch_geometric.explain

#: The key under which files and stores keep the types of an explanation, beside what is in ``info``.
NOTES = "graphmask.hetero"
#: And where edges have types with names though their graph is homogeneous.
TYPE_NAMES = "edge_type_names"


def notes(batch: Any, count: int) -> list[dict[str, Any]]:
    """Notes on the graphs of a batch, one dictionary per graph: names of edge types, SMILES."""
    names = getattr(batch, "_edge_type_names", None)  # of HeteroData.to_homogeneous()
    per_graph: list[dict[str, Any]] = [
        {} if not names else {TYPE_NAMES: [" ".join(kind) for kind in names]} for _ in range(count)
    ]
    smiles = getattr(batch, "smiles", None)  # of torch_geometric.utils.from_smiles()
    texts = [smiles] if isinstance(smiles, str) else smiles
    if isinstance(texts, list) and len(texts) == count and all(isinstance(text, str) for text in texts):
        for own, text in zip(per_graph, texts, strict=True):
            own["smiles"] = text
    return per_graph


def nodes_by_type(batch: Any, split: Split) -> list[dict[str, int]]:
    """How many nodes of each type every graph of a batch has."""
    types = batches.types_of(batch)
    assert types is not None
    assert split.sizes is not None
    return [dict(zip(types.node_types, sizes, strict=True)) for sizes in split.sizes.tolist()]


@dataclass(frozen=True)
class EdgesOfType(Retained):
    """One edge type of a `HeteroExplanation`: ``E_t`` edges, and the ``L_t`` sites that carry them."""

    edge_type: EdgeType
    sites: tuple[str, ...]
    site_numbers: tuple[int, ...]  #: rows of the whole explanation
    edges: Tensor  #: [E_t] columns of the whole explanation
    edge_index: Tensor  #: [2, E_t], nodes numbered within their types
    kept: Tensor  #: bool [L_t, E_t]
    scores: Tensor  #: float [L_t, E_t]
    carried: Tensor  #: bool [L_t, E_t]


@dataclass(eq=False)
class HeteroExplanation(Explanation):
    """Which edges of one heterogeneous graph a model used, site by site, edge type by edge type.

    The graph is held as one: nodes are numbered consecutively across types, in the order of ``node_types``, and so are
    edges; ``edge_type`` [E] says which of ``edge_types`` each is of.
    ``explanation["author", "writes", "paper"]`` tells of one type in its own numbers.
    """

    num_nodes_dict: dict[str, int] = field(default_factory=dict)  #: by node type
    #: Those of the data that was fitted on, or of the batch; some may have no edges here.
    edge_types: tuple[EdgeType, ...] = ()

    @property
    def node_types(self) -> tuple[str, ...]:
        return tuple(self.num_nodes_dict)

    def info_on_file(self) -> dict[str, Any]:
        kinds = [list(kind) for kind in self.edge_types]
        return {**self.info, NOTES: {"num_nodes": self.num_nodes_dict, "edge_types": kinds}}

    @cached_property
    def _first(self) -> dict[str, int]:
        starts, total = {}, 0
        for name, count in self.num_nodes_dict.items():
            starts[name], total = total, total + count
        # Edge types that are not here may name node types that are not.
        return {name: 0 for source, _, target in self.edge_types for name in (source, target)} | starts

    def __getitem__(self, edge_type: EdgeType) -> EdgesOfType:
        kind = tuple(edge_type)
        if kind not in self.edge_types:
            known = ", ".join(map(str, self.edge_types))
            raise GraphMaskError(f"Expected an edge type among {known}, got {edge_type!r}.")
        assert self.edge_type is not None
        source, _, target = kind
        edges = (self.edge_type == self.edge_types.index(kind)).nonzero().view(-1)
        start = torch.tensor([[self._first[source]], [self._first[target]]], device=edges.device)
        rows = [n for n, site in enumerate(self.structure) if kind in site.edge_types or not site.types]
        part = [value[rows][:, edges] for value in (self.kept, self.scores, self.carried)]
        names = tuple(self.sites[row] for row in rows)
        local = self.edge_index[:, edges] - start
        return EdgesOfType((source, kind[1], target), names, tuple(rows), edges, local, *part)

    @property
    def edge_index_dict(self) -> dict[EdgeType, Tensor]:
        return {kind: self[kind].edge_index for kind in self.edge_types}

    @property
    def kept_dict(self) -> dict[EdgeType, Tensor]:
        """bool [L_t, E_t] by edge type, of the sites that carry it"""
        return {kind: self[kind].kept for kind in self.edge_types}

    @property
    def scores_dict(self) -> dict[EdgeType, Tensor]:
        """float [L_t, E_t] by edge type, of the sites that carry it"""
        return {kind: self[kind].scores for kind in self.edge_types}

    @property
    def retained_by_type(self) -> dict[EdgeType, float]:
        """Share of gates that are open; of types that have any."""
        by_type = {kind: self[kind] for kind in self.edge_types}
        return {kind: edges.retained for kind, edges in by_type.items() if bool(edges.carried.any())}

    def __repr__(self) -> str:
        shares = ", ".join(f"{' '.join(kind)} {share:.0%}" for kind, share in self.retained_by_type.items())
        return f"Hetero{super().__repr__()[:-1]}; by type {shares})"

    # Nodes -------------------------------------------------------------------------------------------------

    def number(self, node: tuple[str, int]) -> int:
        """The node's number in the graph of all types."""
        name, within = node
        if name not in self.num_nodes_dict:
            raise GraphMaskError(f"Expected a node type among {', '.join(self.node_types)}, got {name!r}.")
        if not 0 <= within < self.num_nodes_dict[name]:
            raise GraphMaskError(
                f"Expected a node from 0 to {self.num_nodes_dict[name] - 1} of type {name!r}, got {within}."
            )
        return self._first[name] + within

    def node(self, number: int) -> tuple[str, int]:
        """The type of a node of the graph of all types, and its number within that type."""
        for name, count in self.num_nodes_dict.items():
            if self._first[name] <= number < self._first[name] + count:
                return name, number - self._first[name]
        raise GraphMaskError(f"Expected a node from 0 to {self.num_nodes - 1}, got {number}.")

    def paths(self, target: int | tuple[str, int], *, limit: int = 1000, persist: bool = True) -> list[tuple[Hop, ...]]:
        """As `Explanation.paths`; ``target`` is ``("paper", 3)`` or a number. `node` names the nodes of hops."""
        at = self.number(target) if isinstance(target, tuple) else target
        return super().paths(at, limit=limit, persist=persist)

    @property
    def node_labels(self) -> list[str]:
        """For people, one per node of the graph of all types."""
        return [f"{name} {number}" for name, count in self.num_nodes_dict.items() for number in range(count)]

    @property
    def edge_labels(self) -> list[str]:
        """For people, one per edge: the relation, with its ends where several types have a relation of that name."""
        relations = [kind[1] for kind in self.edge_types]
        names = [r if relations.count(r) == 1 else f"{a} {r} {b}" for a, r, b in self.edge_types]
        return [] if self.edge_type is None else [names[number] for number in self.edge_type.tolist()]

    def edge_map(self) -> HeteroEdgeMap:
        assert self.edge_type is not None
        return HeteroEdgeMap.numbered(self.edge_index, self.edge_type, self.edge_types, self._first)

    def by_layer(self) -> HeteroExplanation:
        """The same explanation with one site per layer: sites of one layer, each for its own edge types, are merged.

        It is meant for display: a merged site has no single baseline, so this explanation cannot be used with `masked`.
        """
        layers = layers_of(self.structure)
        numbers = torch.tensor(layers, dtype=torch.long, device=self.kept.device)
        groups = [(numbers == layer).nonzero().view(-1) for layer in range(layers[-1] + 1 if layers else 0)]
        members = [[self.structure[row] for row in rows.tolist()] for rows in groups]
        structure = tuple(
            sites[0]
            if len(sites) == 1
            else Site(sites[0].layer, sites[0].layer, (0,), sites[0].reverse, (_joined(sites),), kind=_kinds(sites))
            for sites in members
        )

        def together(value: Tensor) -> Tensor:
            return torch.stack([value[rows].amax(0) for rows in groups]) if groups else value

        return replace(
            self,
            structure=structure,
            kept=together(self.kept),
            carried=together(self.carried),
            scores=together(self.scores),
            baselines=tuple(self.scores.new_zeros(0) for _ in structure),
        )

    # Elsewhere ---------------------------------------------------------------------------------------------

    def to_pyg(self) -> torch_geometric.explain.HeteroExplanation:
        """PyG's own object: per edge type ``edge_mask`` [E_t] and ``site_mask`` [E_t, L_t]."""
        from torch_geometric.explain import HeteroExplanation as PygExplanation

        converted = PygExplanation(prediction=self.original)
        for name, count in self.num_nodes_dict.items():
            converted[name].num_nodes = count
        for kind in self.edge_types:
            part = self[kind]
            converted[kind].edge_index = part.edge_index
            converted[kind].edge_mask = part.scores.amax(0) if len(part.scores) else part.scores.sum(0)
            converted[kind].site_mask = part.scores.t()
            converted[kind].site_kept = part.kept.t()
        return converted

    def to_networkx(self) -> networkx.MultiDiGraph:
        """As of an `Explanation`; nodes are ``("paper", 3)``, edges have their type's three names as ``edge_type``."""
        import networkx

        graph = networkx.relabel_nodes(super().to_networkx(), dict(enumerate(map(self.node, range(self.num_nodes)))))
        for *_, attributes in graph.edges(data=True):
            attributes["edge_type"] = self.edge_types[attributes["edge_type"]]
        return graph


def types_of(explanation: Explanation) -> Types | None:
    """The node and edge types of the data that was explained."""
    if not isinstance(explanation, HeteroExplanation):
        return None
    return Types(explanation.node_types, explanation.edge_types)


def read(*, info: dict[str, Any], **values: Any) -> HeteroExplanation:
    """From what a file or a store holds of it."""
    types = info[NOTES]
    kinds = tuple((a, r, b) for a, r, b in types["edge_types"])
    counts, numbers = types["num_nodes"], values["edge_type"]
    if not all(isinstance(name, str) for name in (*chain.from_iterable(kinds), *counts)):
        raise TypeError("names of types that are no texts")
    if not all(type(count) is int and count >= 0 for count in counts.values()):
        raise TypeError("numbers of nodes of other types")
    if sum(counts.values()) != values["num_nodes"] or bool(((numbers < 0) | (numbers >= len(kinds))).any()):
        raise ValueError("nodes or edges of types that are not there")
    own = {key: value for key, value in info.items() if key != NOTES}
    return HeteroExplanation(**values, info=own, num_nodes_dict=counts, edge_types=kinds)


def _kinds(sites: Sequence[Site]) -> str:
    """The class of their modules; several where they differ."""
    return ", ".join(dict.fromkeys(site.kind for site in sites if site.kind))


def _joined(sites: Sequence[Site]) -> tuple[EdgeType, ...]:
    return tuple(kind for site in sites for kind in site.edge_types)
