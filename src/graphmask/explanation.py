"""The result: which edges were kept at which site, and the certificate that the rest was not needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from graphmask import files, hooks
from graphmask.errors import GraphMaskError
from graphmask.graphs.edges import EdgeMap
from graphmask.graphs.sites import Site, layers_of

if TYPE_CHECKING:
    import networkx
    import torch_geometric.explain


#: The key of ``info`` under which an explanation says why it could not be repaired, so that files and stores keep it.
UNREPAIRED = "graphmask.unrepaired"


class Hop(NamedTuple):
    """One kept message: edge ``source -> target`` (position ``edge``) at site number ``site``."""

    site: int
    edge: int
    source: int
    target: int


class Retained:
    """What follows from open gates, of all edges or of some."""

    kept: Tensor  #: bool [L, E]
    carried: Tensor  #: bool [L, E]

    @property
    def retained(self) -> float:
        """Share of gates that are open."""
        return float(self.kept.sum()) / max(int(self.carried.sum()), 1)

    @property
    def retained_per_site(self) -> tuple[float, ...]:
        return tuple((self.kept.sum(1) / self.carried.sum(1).clamp_min(1)).tolist())


@dataclass(eq=False)
class Explanation(Retained):
    """Which edges of one graph a model used, site by site. ``L`` sites, ``E`` edges.

    Every explanation carries its certificate: the model was run again with every dropped message replaced by its
    site's baseline, and ``divergence`` is how far that output is from the original. Unless it was made with
    ``repair=False``, it holds (`faithful` and `same_prediction`), or `unrepaired` says why it could not be made to.
    """

    edge_index: Tensor  #: [2, E], the graph as the user passed it
    kept: Tensor  #: bool [L, E]
    scores: Tensor  #: float [L, E]; GraphMask's is the probability that the gate is non-zero, above 1/2 means kept
    carried: Tensor  #: bool [L, E], False where the site sends nothing along that edge, or nothing that `index` can see
    original: Tensor  #: the model's output
    masked: Tensor  #: its output with hard gates
    divergence: float  #: between the two, mean over output rows
    flips: float  #: share of output rows whose prediction changed
    tolerance: float
    structure: tuple[Site, ...]
    baselines: tuple[Tensor, ...]  #: per site, what replaces a dropped message (heads and stacks flattened)
    num_nodes: int
    edge_type: Tensor | None = None  #: [E]
    reopened: int = 0  #: gates that `repair` opened again
    method: str = "graphmask"  #: who chose
    precision: str | None = None  #: "bf16" where both runs were under autocast
    info: dict[str, Any] = field(default_factory=dict)  #: the user's own notes, and some of ours; JSON values
    index: tuple[int, ...] | None = None  #: the output rows that were asked about; None for all
    #: bool [L, E], where asked for: the fewest kept messages, highest scores first, whose replacement too changes the
    #: prediction; None where even that of all of them does not
    counterfactual: Tensor | None = None

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the places where messages flow, input side first."""
        return tuple(site.name for site in self.structure)

    @property
    def faithful(self) -> bool:
        """The masked model answers as the original does, within the tolerance."""
        return self.divergence <= self.tolerance

    @property
    def same_prediction(self) -> bool:
        """In every row of the output."""
        return self.flips == 0

    @property
    def unrepaired(self) -> str | None:
        """Why this explanation does not hold although its messages were reopened; None if it does, or none were."""
        return self.info.get(UNREPAIRED)

    def __repr__(self) -> str:
        kept = ", ".join(
            f"{name} {int(k)}/{int(c)}"
            for name, k, c in zip(self.sites, self.kept.sum(1), self.carried.sum(1), strict=True)
        )
        verdict = "faithful" if self.faithful else "NOT faithful"
        why = f"; NOT repaired: {self.unrepaired}" if self.unrepaired else ""
        return (
            f"Explanation({verdict}: divergence {self.divergence:.3g}, tolerance {self.tolerance:.3g}, "
            f"{'same' if self.same_prediction else 'CHANGED'} prediction; kept {kept}{why})"
        )

    def paths(self, target: int, *, limit: int = 1000, persist: bool = True) -> list[tuple[Hop, ...]]:
        """Retained paths that end in node ``target``, each as long as it can be, longest first.

        A path is a chain of kept messages at rising layers, which are sites; of a heterogeneous model, where sites of
        several edge types send at the same time, those together. With ``persist`` a node may hold its state over a site
        (most layers connect a node with itself); without, consecutive hops are at consecutive layers and the last
        hop at the last layer. At most ``limit`` paths are listed.
        """
        if not 0 <= target < max(self.num_nodes, 1):
            raise GraphMaskError(f"Expected a node from 0 to {self.num_nodes - 1}, got {target}.")
        incoming: dict[tuple[int, int], list[Hop]] = {}  # by layer and node
        layers = layers_of(self.structure)
        for site, edge in self.kept.nonzero().tolist():
            source, receiver = self._ends(site, edge)
            incoming.setdefault((layers[site], receiver), []).append(Hop(site, edge, source, receiver))
        found: list[tuple[Hop, ...]] = []
        last = layers[-1] + 1 if layers else 0
        stack: list[tuple[int, int, tuple[Hop, ...]]] = [(last, target, ())]
        while stack and len(found) < limit:
            layer, node, tail = stack.pop()
            below = range(layer) if persist else range(max(layer - 1, 0), layer)
            hops = [hop for k in below for hop in incoming.get((k, node), ())]
            # With persistence a hop two layers down is reached directly; that is one path, not several.
            stack += [(layers[hop.site], hop.source, (hop, *tail)) for hop in reversed(hops)]
            if not hops and tail:
                found.append(tail)
        return sorted(found, key=len, reverse=True)

    def _ends(self, site: int, edge: int) -> tuple[int, int]:
        source, target = self.edge_index[:, edge].tolist()
        return (target, source) if self.structure[site].reverse else (source, target)

    def edge_map(self) -> EdgeMap:
        """What tells whose edges a layer sends along."""
        return EdgeMap(self.edge_index)

    # Elsewhere ---------------------------------------------------------------------------------------------

    def to_pyg(self) -> torch_geometric.explain.Explanation:
        """PyG's own object: ``edge_mask`` [E] is the highest score over sites, ``site_mask`` [E, L] has them all."""
        from torch_geometric.explain import Explanation as PygExplanation

        return PygExplanation(
            edge_index=self.edge_index,
            edge_mask=self.scores.max(0).values if self.scores.shape[0] else self.scores.sum(0),
            site_mask=self.scores.t(),
            site_kept=self.kept.t(),
            num_nodes=self.num_nodes,
            prediction=self.original,
        )

    def to_networkx(self) -> networkx.MultiDiGraph:
        """One edge per input edge, keyed by its position, with ``kept`` and ``scores`` by site name."""
        import networkx

        graph = networkx.MultiDiGraph()
        graph.add_nodes_from(range(self.num_nodes))
        for edge, (source, target) in enumerate(self.edge_index.t().tolist()):
            attributes: dict[str, Any] = {
                "kept": {name: bool(self.kept[site, edge]) for site, name in enumerate(self.sites)},
                "scores": {name: float(self.scores[site, edge]) for site, name in enumerate(self.sites)},
            }
            if self.edge_type is not None:
                attributes["edge_type"] = int(self.edge_type[edge])
            graph.add_edge(source, target, key=edge, **attributes)
        return graph

    def to_html(
        self,
        path: str | Path,
        *,
        title: str = "What the model used",
        node_labels: Sequence[str] | None = None,
        edge_labels: Sequence[str] | None = None,
        gold: Tensor | None = None,
        notes: Sequence[str] = (),
    ) -> Path:
        """Write one self-contained page about this explanation; ``gold`` bool [L, E] if the answer is known.

        Pages are drawn by `graphmask.report`, which knows explanations and so stands in a layer above: it is called
        through `graphmask.hooks`, and is loaded when the first page is written.
        """
        return hooks.write_page(
            path, [self], title=title, node_labels=[node_labels], edge_labels=[edge_labels], gold=[gold], notes=[notes]
        )

    def save(self, path: str | Path) -> None:
        tensors = {name: getattr(self, name) for name in _TENSORS if getattr(self, name) is not None}
        tensors |= {f"baseline.{site}": baseline for site, baseline in enumerate(self.baselines)}
        description = {name: getattr(self, name) for name in _VALUES}
        description["structure"] = [site.to_json() for site in self.structure]
        files.write(path, "explanation", tensors, description)

    @classmethod
    def load(cls, path: str | Path) -> Explanation:
        values: dict[str, Any]
        tensors, values = files.read(path, "explanation")
        with files.understood(path, "explanation"):
            structure = tuple(Site.from_json(site) for site in values.pop("structure"))
            baselines = tuple(tensors.pop(f"baseline.{site}") for site in range(len(structure)))
            values["index"] = None if values.get("index") is None else tuple(values["index"])
            _check_shapes(tensors, len(structure))
            return build(**{**values, **tensors}, structure=structure, baselines=baselines)


def _check_shapes(tensors: dict[str, Tensor], sites: int) -> None:
    edges = tensors["edge_index"].shape[1]
    expected = {"edge_index": (2, edges), "edge_type": (edges,)}
    expected |= dict.fromkeys(("kept", "scores", "carried", "counterfactual"), (sites, edges))
    wrong = [name for name, shape in expected.items() if name in tensors and tensors[name].shape != shape]
    if wrong:
        raise TypeError(f"{wrong[0]} of shape {tuple(tensors[wrong[0]].shape)}, not {expected[wrong[0]]}")


_TENSORS = ("edge_index", "kept", "scores", "carried", "original", "masked", "edge_type", "counterfactual")
_VALUES = ("divergence", "flips", "tolerance", "num_nodes", "reopened", "method", "precision", "info", "index")


def build(**values: Any) -> Explanation:
    """An `Explanation`; a `HeteroExplanation` where that is what the notes say."""
    return _kind(values.get("info", {}))(**values)


def build_all(columns: dict[str, Iterable[Any]], info: Sequence[dict[str, Any]]) -> list[Explanation]:
    """One of every row. By position: a batch may hold hundreds of small graphs."""
    kind = _kind(info[0])
    return list(map(kind, *(info if name == "info" else columns[name] for name in _FIELDS)))


_FIELDS = tuple(field.name for field in fields(Explanation))


def _kind(info: dict[str, Any]) -> type[Explanation]:
    return next((kind() for key, kind in hooks.kinds.items() if key in info), Explanation)
