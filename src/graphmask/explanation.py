"""The result: which edges were kept at which site, and what the model predicts without the others."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from graphmask import files, hooks
from graphmask.errors import GraphMaskError
from graphmask.explained_features import Features
from graphmask.explanation_contents import UNREPAIRED, UNSEEN, check_ends, check_tensors, check_values
from graphmask.graphs import retained_paths
from graphmask.graphs.edges import EdgeMap
from graphmask.graphs.retained_paths import Hop
from graphmask.graphs.sites import Site, titles
from graphmask.words import first_of

if TYPE_CHECKING:
    import networkx
    import pandas
    import polars
    import torch_geometric.explain
    from matplotlib.axes import Axes


#: networkx makes an object of every node.
NETWORKX_NODES_AT_MOST = 10_000_000


def certificate(
    divergence: float,
    tolerance: float,
    same_prediction: bool | None,
    unrepaired: str | None,
    unseen: Sequence[str] = (),
) -> str:
    """The result of a masked run as text; log, repr, picture and page all use it.

    It states two facts: whether the divergence is within tolerance, and whether the prediction is the same. Where
    modules mix nodes in other ways than by messages, both facts are about the messages alone.
    """
    within = "within" if divergence <= tolerance else "NOT within"
    of = " for the messages that are seen" if unseen else ""
    facts = [f"{within} tolerance{of}: divergence {divergence:.3g} of {tolerance:.3g}"]
    if same_prediction is not None:
        facts.append("same prediction" if same_prediction else "CHANGED prediction")
    if unrepaired:
        facts.append(f"could not be repaired: {unrepaired}")
    if unseen:
        facts.append(f"not seen: {first_of(unseen)}")
    return ", ".join(facts)


def rows_in_words(index: Sequence[int]) -> str:
    """The output rows that were asked about."""
    first = ", ".join(map(str, index[:5]))
    more = f" and {len(index) - 5} more" if len(index) > 5 else ""
    return f"row {first}" if len(index) == 1 else f"rows {first}{more}"


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
        counts = zip(self.kept.sum(1).tolist(), self.carried.sum(1).tolist(), strict=True)
        return tuple(kept / max(carried, 1) for kept, carried in counts)


@dataclass(eq=False)
class Explanation(Retained):
    """Which edges of one graph a model used, site by site. ``L`` sites, ``E`` edges.

    Every explanation carries its certificate: the model was run again with every dropped message replaced by its
    site's baseline, and ``divergence`` is how far that output is from the original. Unless it was made with
    ``repair=False``, it holds (`faithful` and `same_prediction`), or `unrepaired` says why it could not be made to.
    """

    edge_index: Tensor  #: [2, E], the graph as the user passed it
    kept: Tensor  #: bool [L, E]
    #: float [L, E]; GraphMask's is the probability that the gate is non-zero, above 1/2 means kept; with `index`, that
    #: all gates on the best way to what was asked about are
    scores: Tensor
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
    features: Features | None = None  #: which input features were kept, where these have gates

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the places where messages flow, input side first."""
        return tuple(site.name for site in self.structure)

    @property
    def site_titles(self) -> tuple[str, ...]:
        """The sites by readable names, such as ``conv1 (GCNConv)``: see `graphmask.graphs.sites.titles`."""
        return titles(self.structure)

    @property
    def faithful(self) -> bool:
        """The divergence of the masked output from the original one is at most the tolerance.

        This is about messages. Modules in `unseen` ran as they are: what they carry is in both outputs.
        """
        return self.divergence <= self.tolerance

    @property
    def same_prediction(self) -> bool:
        """Whether the prediction is the same in every row of the output."""
        return self.flips == 0

    @property
    def unrepaired(self) -> str | None:
        """The reason why repair failed; None if it did not fail or was not tried."""
        return self.info.get(UNREPAIRED)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Modules that can mix nodes without messages, each with its class: ``conv1.attn (MultiheadAttention)``.

        What was dropped along edges may still reach the output through them. They are recognised by their class; dense
        products that are written out in a model's forward cannot be recognised, and are not listed.
        """
        return tuple(self.info.get(UNSEEN, ()))

    @property
    def certificate(self) -> str:
        """What was measured, in words that log, page and picture share."""
        return certificate(self.divergence, self.tolerance, self.same_prediction, self.unrepaired, self.unseen)

    def __repr__(self) -> str:
        shares = ", ".join(
            f"{name} {int(k)}/{int(c)}"
            for name, k, c in zip(self.site_titles, self.kept.sum(1), self.carried.sum(1), strict=True)
        )
        shares = shares if self.features is None else f"{self.features}, {shares}"
        asked = "" if self.index is None else f"{rows_in_words(self.index)}: "
        return f"Explanation({asked}{self.certificate}; kept {shares})"

    def _repr_html_(self) -> str:
        """A card, for notebooks."""
        return str(hooks.report("notebook.card")(self))

    def paths(self, target: int, *, limit: int = 1000, persist: bool = True) -> list[tuple[Hop, ...]]:
        """Retained paths that end in node ``target``, each as long as it can be, longest first.

        A path is a chain of kept messages at rising layers, which are sites; of a heterogeneous model, where sites of
        several edge types send at the same time, those together. With ``persist`` a node may hold its state over a site
        (most layers connect a node with itself); without, consecutive hops are at consecutive layers and the last
        hop at the last layer. At most ``limit`` paths are listed.
        """
        if not 0 <= target < max(self.num_nodes, 1):
            raise GraphMaskError(f"Expected a node from 0 to {self.num_nodes - 1}, got {target}.")
        index = retained_paths.incoming(self.edge_index, self.kept, self.structure, [target])
        return retained_paths.ending_in(target, index, self.structure, limit=limit, persist=persist)

    def _ends(self, site: int, edge: int) -> tuple[int, int]:
        source, target = self.edge_index[:, edge].tolist()
        return (target, source) if self.structure[site].reverse else (source, target)

    def edge_map(self) -> EdgeMap:
        """An object that matches the edges of a layer's call to the user's edges."""
        return EdgeMap(self.edge_index)

    def info_on_file(self) -> dict[str, Any]:
        """``info`` as files and stores keep it."""
        return self.info

    # Elsewhere ---------------------------------------------------------------------------------------------

    def to_pyg(self) -> torch_geometric.explain.Explanation:
        """PyG's own object: ``edge_mask`` [E] is the highest score over sites, ``site_mask`` [E, L] has them all.

        Of input features with gates, ``node_mask`` [N, 1] or [N, F].
        """
        from torch_geometric.explain import Explanation as PygExplanation

        converted = PygExplanation(
            edge_index=self.edge_index,
            edge_mask=self.scores.max(0).values if self.scores.shape[0] else self.scores.sum(0),
            site_mask=self.scores.t(),
            site_kept=self.kept.t(),
            num_nodes=self.num_nodes,
            prediction=self.original,
        )
        if self.features is not None and self.features.attribute == "x":
            converted.node_mask = self.features.scores.view(self.num_nodes, -1)
        return converted

    def to_networkx(self) -> networkx.MultiDiGraph:
        """One edge per input edge, keyed by its position, with ``kept`` and ``scores`` by site name."""
        import networkx

        if self.num_nodes > NETWORKX_NODES_AT_MOST:
            raise GraphMaskError(
                f"Expected at most {NETWORKX_NODES_AT_MOST:,} nodes for networkx, which makes an object of each, got "
                f"{self.num_nodes:,}. Leave out those that have no edge."
            )
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

    def to_pandas(self, node_labels: Sequence[str] | None = None) -> pandas.DataFrame:
        """One row per edge and layer: ``layer``, ``site`` and its readable name, ``edge``, its ends by number and
        name as the message runs, ``type`` where edges have any, ``carried``, ``kept`` and ``score``."""
        return hooks.report("frames.to_pandas")(self, node_labels)

    def to_polars(self, node_labels: Sequence[str] | None = None) -> polars.DataFrame:
        """As `to_pandas`, in polars."""
        return hooks.report("frames.to_polars")(self, node_labels)

    def plot(
        self,
        ax: Axes | None = None,
        layer: int | str | None = None,
        node_labels: Sequence[str] | None = None,
        molecule: Any = None,
    ) -> Axes:
        """Draw the graph with matplotlib and return the axes: kept edges whole, dropped ones dotted.

        Args:
            ax: where to draw; a new figure by default.
            layer: number or name of one layer, whose edges are coloured by type. By default all layers are drawn
                together, and colours tell which of them keep an edge.
            node_labels: one text per node; by default as in ``info``, else numbers.
            molecule: a SMILES or an RDKit ``Mol`` whose atoms are the nodes, in their order: the graph is drawn as the
                molecule, with its bonds behind the edges. By default the SMILES in ``info["smiles"]``, where RDKit
                (``pip install graphmask[chem]``) is installed.

        Of a graph with more than 200 edges only kept ones are drawn, 300 at most: those on paths to the nodes that
        `index` asked about first, then by score. The title says so.
        """
        return hooks.report("plot.plot")(self, ax, layer, node_labels, molecule)

    def to_html(
        self,
        path: str | Path,
        *,
        title: str | None = None,
        node_labels: Sequence[str] | None = None,
        edge_labels: Sequence[str] | None = None,
        class_names: Sequence[str] | None = None,
        gold: Tensor | None = None,
        notes: Sequence[str] = (),
    ) -> Path:
        """Write one self-contained page about this explanation; ``gold`` bool [L, E] if the answer is known.

        Of a graph with more than 400 edges, kept ones are drawn, at most 1,500: those on paths to the rows that were
        asked about first, then by score. The page says what it leaves out.
        Pages are drawn by `graphmask.report`, which knows explanations and so stands in a layer above: it is called
        through `graphmask.hooks`, and is loaded when the first page is written.
        """
        if title is None:
            title = "What the model used" + ("" if self.index is None else f" for {rows_in_words(self.index)}")
        if class_names is not None:
            self = replace(self, info={**self.info, "classes": list(map(str, class_names))})
        return hooks.report("build.write_page")(
            path, [self], title=title, node_labels=[node_labels], edge_labels=[edge_labels], gold=[gold], notes=[notes]
        )

    def save(self, path: str | Path) -> None:
        tensors = {name: getattr(self, name) for name in _TENSORS if getattr(self, name) is not None}
        tensors |= {f"baseline.{site}": baseline for site, baseline in enumerate(self.baselines)}
        description = {name: getattr(self, name) for name in _VALUES}
        description["info"] = self.info_on_file()
        if self.features is not None:
            tensors |= self.features.to_tensors()
            description["features"] = self.features.kind
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
            values["features"] = Features.from_tensors(values.get("features"), tensors)
            check_tensors(tensors, len(structure))
            values["num_nodes"], values["reopened"] = (operator.index(values[key]) for key in ("num_nodes", "reopened"))
            if not 0 <= values["num_nodes"] < 1 << 53:
                raise ValueError(f"{values['num_nodes']:.3g} nodes")
            check_ends(tensors["edge_index"], values["num_nodes"])
            for key in ("divergence", "flips", "tolerance"):  # anything but a number is refused here
                values[key] = 1.0 * values[key]
            return build(**{**values, **tensors}, structure=structure, baselines=baselines)


_TENSORS = ("edge_index", "kept", "scores", "carried", "original", "masked", "edge_type", "counterfactual")
_VALUES = ("divergence", "flips", "tolerance", "num_nodes", "reopened", "method", "precision", "info", "index")


def build(**values: Any) -> Explanation:
    """An explanation from what a file or a store holds of it: see `Explanation.info_on_file`."""
    check_values(values)
    for key, kind in hooks.kinds.items():
        if key in values["info"]:
            return kind()(**values)
    return Explanation(**values)


def build_all(kind: type[Explanation], columns: dict[str, Iterable[Any]]) -> list[Explanation]:
    """One of every row. By position: a batch may hold hundreds of small graphs."""
    return list(map(kind, *(columns[field.name] for field in fields(kind))))
