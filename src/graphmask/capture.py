"""The user's model + a batch -> the messages that flow, site by site.

`tap(model, visit)` calls `visit(messages)` for every group of messages the model sends and lets it replace
them. It works through PyTorch Geometric's public hooks and through this library's taps (`taps.py`), so that
everything else in the library (gates, masking, other methods) is a `visit` function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import is_sparse

from graphmask.edges import EdgeMap, EdgeType, effective_edges
from graphmask.errors import GraphMaskError
from graphmask.kernels import ALL, blend
from graphmask.taps import AdjacencyTap, MatrixCall, MessageTap


@dataclass(frozen=True)
class Site:
    """One place where messages flow: the ``calls`` of a module that together carry each edge once.

    Usually one call. A layer that propagates relation by relation (RGCNConv) makes one call per relation.
    """

    name: str
    module: str
    calls: tuple[int, ...]
    reverse: bool = False  #: messages travel from the second row of edge_index to the first
    types: tuple[tuple[EdgeType, ...], ...] = ()  #: of a heterogeneous graph: the edge types that each call carries
    layer: str = ""  #: the same for sites next to each other that send at the same time, along other edge types each

    def to_json(self) -> dict[str, Any]:
        """Types and layer only where there are several types: files say no more than they did before."""
        return {key: value for key, value in asdict(self).items() if key not in ("types", "layer") or value}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Site:
        types = tuple(tuple((a, r, b) for a, r, b in kinds) for kinds in value.get("types", ()))
        return cls(
            value["name"], value["module"], tuple(value["calls"]), value["reverse"], types, value.get("layer", "")
        )

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """All that it carries; nothing where the graph has one type of nodes."""
        return tuple(dict.fromkeys(kind for kinds in self.types for kind in kinds))


def layers_of(sites: Sequence[Site]) -> list[int]:
    """[L] the layer of every site: sites that send at the same time, each along other edge types, are one layer."""
    found: list[int] = []
    for number, site in enumerate(sites):
        last = sites[number - 1]
        same = number > 0 and site.layer != "" and (site.layer, site.reverse) == (last.layer, last.reverse)
        found.append(found[-1] + (not same) if found else 0)
    return found


@dataclass
class Messages:
    """Messages of one call. ``E'`` counts the edges the layer sees, which may differ from the user's ``E``."""

    site: int
    piece: int  #: position of the call within its site, for instance the relation
    value: Tensor  #: as the layer made it; the edges lie along ``edge_dim``
    edge_dim: int
    source: Tensor  #: [E'] node that sends
    target: Tensor  #: [E'] node that receives
    edges: Tensor | None  #: [E'] position in the user's edges, -1 for the layer's own self-loops; None: the same
    source_states: Tensor | None = None  #: [N, d] what the layer knows of its nodes
    target_states: Tensor | None = None
    features: dict[str, Tensor] = field(default_factory=dict)  #: float [E', k]: edge attribute, weight, attention
    categories: dict[str, Tensor] = field(default_factory=dict)  #: long [E']: relation
    num_relations: int = 0  #: what the layer says of itself
    lifted: tuple[Tensor, Tensor | None] | None = None  #: (x [N, D], weight [E']) if the message may be weight * x_j
    matrix: MatrixCall | None = None  #: the adjacency-matrix form of the same
    attention: Tensor | None = None  #: [E', ...] what the layer itself weighs messages by: attention or a gate
    fresh: bool = False  #: made for this call alone and nobody else's: may be overwritten
    picked: tuple[Tensor, Tensor] | None = None  #: (x [N, D], source) if the message is x[source], and nothing else

    def is_lifted(self) -> bool:
        """Is the message really ``weight * x_j``? True of most layers that transform nodes before sending."""
        if self.lifted is None:
            return False
        x, weight = self.lifted
        rows = x.index_select(0, self.source)
        return torch.allclose(self.flat(), rows if weight is None else rows * weight[:, None], rtol=1e-4, atol=1e-6)

    def flat(self) -> Tensor:
        """[E', D]: one row per edge, heads and stacks side by side."""
        if self.value.dim() == 2 and self.edge_dim == 0:
            return self.value
        return self.value.movedim(self.edge_dim, 0).flatten(1) if self.value.dim() > 1 else self.value[:, None]

    def rows(self) -> Tensor:
        """[E', D] as `flat`, and also of the adjacency-matrix form."""
        return self.flat() if self.matrix is None else self.matrix.rows()

    def spread(self, per_edge: Tensor) -> Tensor:
        """[E'] -> a shape that broadcasts against ``value``."""
        shape = [1] * self.value.dim()
        shape[self.edge_dim] = -1
        return per_edge.view(shape)

    def baseline(self, flat: Tensor) -> Tensor:
        """[D] or [E', D] -> a shape that broadcasts against ``value``; the inverse of `flat`."""
        rest = [size for dim, size in enumerate(self.value.shape) if dim != self.edge_dim]
        return flat.reshape(-1, *rest).movedim(0, self.edge_dim)


#: Returns None to let the messages pass, or what to put in their place: (gate [E'], baseline [D] or [E', D]), and
#: perhaps the only rows whose gates need a gradient.
Visit = Callable[[Messages], tuple[Tensor, Tensor] | tuple[Tensor, Tensor, slice] | None]


def replace(messages: Messages, gate: Tensor, baseline: Tensor, rows: slice = ALL) -> Tensor:
    r"""Equation 3 of the paper, :math:`z m + (1 - z) b`; exactly ``m`` where z = 1 and exactly ``b`` where z = 0."""
    gate, baseline = gate.to(messages.value.dtype), baseline.to(messages.value.dtype)
    if messages.fresh and not torch.is_grad_enabled():
        # Without another copy of the messages; weight 0 leaves m, weight 1 gives b, exactly.
        return messages.value.lerp_(messages.baseline(baseline), messages.spread(1 - gate))
    if messages.edge_dim == 0 and baseline.dim() == 1:
        flat = messages.flat()  # writing to a view would make autograd copy all of it
        in_place = messages.fresh and flat is messages.value and rows != ALL
        out = blend(flat, gate, baseline, rows, in_place=in_place, picked=messages.picked if in_place else None)
        return out if flat is messages.value else out.view_as(messages.value)
    return torch.lerp(messages.baseline(baseline), messages.value, messages.spread(gate))


class Tap:
    """State of one tapping: which call comes next, which site it belongs to, which edges are whose."""

    def __init__(self, visit: Visit, edge_map: EdgeMap, sites: tuple[Site, ...] | None) -> None:
        self.visit = visit
        self.live = True
        self.edge_map = edge_map
        self.discovering = sites is None
        self.sites: list[Site] = list(sites or ())
        self.place = {
            (site.module, call): (number, piece)
            for number, site in enumerate(self.sites)
            for piece, call in enumerate(site.calls)
        }
        self.period = {site.module: 0 for site in self.sites}
        for site in self.sites:
            self.period[site.module] += len(site.calls)
        self.calls: dict[str, int] = {}  # in this run of the model
        self.ordinal: dict[str, int] = {}  # in this forward of the layer
        self.inputs: dict[str, tuple[Any, ...]] = {}
        self.pending: dict[str, tuple[Tensor, dict[str, Any]]] = {}
        self.covered: dict[str, Tensor] = {}
        #: Of calls that are told by their edge types, what each carries, and which were made in this run.
        self.carries = {
            (site.module, call): frozenset(kinds)
            for site in self.sites
            for call, kinds in zip(site.calls, site.types, strict=False)
        }
        self.made: set[tuple[str, int]] = set()
        edge_map.restart()

    def restart(self) -> None:
        """A new run of the model begins: count calls from zero."""
        self.calls.clear()
        self.covered.clear()
        self.made.clear()
        self.edge_map.restart()

    def check_complete(self) -> None:
        """Raise unless every site was visited exactly as when the sites were found."""
        for (module, call), kinds in self.carries.items():
            # A layer is not called for an edge type that a batch does not have.
            if (module, call) not in self.made and self.edge_map.has_edges(tuple(kinds)):
                raise GraphMaskError(
                    f"Expected module {module!r} to send along {_names(kinds)}, as when the sites were found, but it "
                    "was not called. The model's message passing must not depend on its input."
                )
        typed = {module for module, _ in self.carries}
        for module, period in self.period.items():
            if module not in typed and self.calls.get(module, 0) != period:
                raise GraphMaskError(
                    f"Expected {period} message passing call(s) of module {module!r}, as when the sites were found, "
                    f"got {self.calls.get(module, 0)}. The model's message passing must not depend on its input."
                )

    def enter(self, module: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.inputs[module] = (*args, *kwargs.values())
        self.ordinal[module] = 0
        self.covered.pop(module, None)  # a new forward of a layer never continues an earlier site

    def locate(self, module: str, edges: Tensor | None, reverse: bool = False) -> tuple[int, int]:
        """The site and piece of this module's next call."""
        call = self.calls.get(module, 0)
        self.calls[module] = call + 1
        if not self.discovering:
            if module not in self.period:
                raise GraphMaskError(
                    f"Module {module!r} sends messages, but sent none when the sites were found. "
                    "The model's message passing must not depend on its input."
                )
            if self.edge_map.types is not None and (module, 0) in self.carries:
                return self.place[module, self._call_of_types(module, frozenset(self.edge_map.types))]
            return self.place[module, call % self.period[module]]
        return self._discover(module, call, edges, reverse != self.edge_map.flipped)

    def _call_of_types(self, module: str, kinds: frozenset[EdgeType]) -> int:
        """Not by counting: calls of edge types that a batch does not have are left out."""
        fitting = [call for (name, call), known in self.carries.items() if name == module and kinds <= known]
        if not fitting:
            raise GraphMaskError(
                f"Module {module!r} sends along {_names(kinds)}, but did not when the sites were found. "
                "The model's message passing must not depend on its input."
            )
        left = [call for call in fitting if (module, call) not in self.made]
        if not left:  # a further run of the model
            self.made -= {(module, call) for call in fitting}
            left = fitting
        self.made.add((module, left[0]))
        return left[0]

    def _discover(self, module: str, call: int, edges: Tensor | None, reverse: bool) -> tuple[int, int]:
        # One place more for the layer's own self-loops (-1): hops that carry only those are hops, not relations.
        carried = torch.zeros(self.edge_map.count + 1, dtype=torch.bool)
        carried[slice(self.edge_map.count) if edges is None else edges.cpu()] = True
        before = self.covered.get(module)
        number = max((n for n, site in enumerate(self.sites) if site.module == module), default=-1)
        if before is not None and not bool((before & carried).any()):
            self.covered[module] = before | carried
            site = self.sites[number]
            reverse = site.reverse if bool(before.any()) else reverse  # an empty relation has no direction
            types = (*site.types, self.edge_map.types) if self.edge_map.types is not None else site.types
            self.sites[number] = Site(site.name, module, (*site.calls, call), reverse, types, site.layer)
            return number, len(site.calls)
        self.covered[module] = carried
        repeat = sum(site.module == module for site in self.sites)
        name, kinds = f"{module}#{repeat}" if repeat else module, self.edge_map.types
        types = () if kinds is None else (kinds,)
        self.sites.append(Site(name, module, (call,), reverse, types, self._layer(kinds or ())))
        return len(self.sites) - 1, 0

    def _layer(self, kinds: tuple[EdgeType, ...]) -> str:
        """A layer that comes again with an edge type it had is another one."""
        base = self.edge_map.layer
        name, repeat = base, 0
        while base and any(site.layer == name and {*site.edge_types} & {*kinds} for site in self.sites):
            repeat += 1
            name = f"{base}#{repeat}"
        return name

    # PyTorch Geometric layers ------------------------------------------------------------------------------

    def on_propagate(self, name: str, edge_index: Any, kwargs: dict[str, Any]) -> None:
        self.pending[name] = (effective_edges(edge_index), kwargs)

    def on_message(self, name: str, layer: MessagePassing, kwargs: dict[str, Any], value: Any) -> Tensor | None:
        edge_index, propagated = self.pending[name]
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise GraphMaskError(
                f"Expected module {name!r} ({type(layer).__name__}) to send floating point messages, "
                f"got {getattr(value, 'dtype', type(value).__name__)}."
            )
        count = edge_index.shape[1]
        ordinal = self.ordinal.get(name, 0)
        self.ordinal[name] = ordinal + 1
        edges = self.edge_map(edge_index, self.inputs.get(name, ()), ordinal, name)
        site, piece = self.locate(name, edges, layer.flow == "target_to_source")
        source, target = edge_index if layer.flow == "source_to_target" else edge_index.flip(0)
        source_states, target_states = _states(layer, self.inputs.get(name, ()), propagated, kwargs)
        messages = Messages(
            site=site,
            piece=piece,
            value=value,
            edge_dim=layer.node_dim if layer.node_dim >= 0 else value.dim() + layer.node_dim,
            source=source,
            target=target,
            edges=edges,
            source_states=source_states,
            target_states=target_states,
            num_relations=int(getattr(layer, "num_relations", 0) or 0),
        )
        if value.dim() == 1:
            messages.edge_dim = 0
        if value.shape[messages.edge_dim] != count:
            raise GraphMaskError(
                f"Expected module {name!r} to send one message per edge ({count}), "
                f"got {value.shape[messages.edge_dim]}."
            )
        for key, extra in kwargs.items():
            if key.endswith(("_i", "_j")) or key in MessagePassing.special_args or not isinstance(extra, Tensor):
                continue
            if not isinstance(extra, nn.Parameter):  # the layer's, though it may happen to have E' rows
                _add_extra(messages, key, extra)
        self._add_types(messages)
        attention = kwargs.get("alpha", getattr(layer, "_alpha", None))
        if isinstance(attention, Tensor) and attention.dim() and attention.shape[0] == count:
            messages.attention = attention.detach()
        messages.lifted = _lifted(messages, layer, kwargs, propagated)
        messages.fresh = _fresh(value, layer, kwargs)
        gathered = value.grad_fn is not None and value.grad_fn.name() == "IndexSelectBackward0"
        if gathered and messages.lifted is not None and value is kwargs["x_j"]:
            messages.picked = messages.lifted[0], source
        answer = self.visit(messages)
        return None if answer is None else replace(messages, *answer)

    def _add_types(self, messages: Messages) -> None:
        """Where one call carries several edge types (HGTConv), gates must know which."""
        known, kinds = self.sites[messages.site].types, self.edge_map.edge_type
        if not known or len(known[messages.piece]) < 2 or kinds is None or messages.edges is None:
            return
        place = {kind: number for number, kind in enumerate(known[messages.piece])}
        numbers = torch.tensor([place.get(kind, 0) for kind in self.edge_map.all_types], device=kinds.device)
        messages.categories["edge_type"] = numbers[kinds[messages.edges]]

    # Taps --------------------------------------------------------------------------------------------------

    def on_tap(
        self,
        name: str,
        value: Tensor,
        edge_index: Tensor,
        nodes: Tensor | tuple[Tensor, Tensor] | None,
        extras: dict[str, Tensor | None],
    ) -> Tensor:
        self.covered.pop(name, None)
        edges = self.edge_map(edge_index, (), 0, name)
        site, piece = self.locate(name, edges)
        sender, receiver = nodes if isinstance(nodes, tuple) else (nodes, nodes)
        messages = Messages(
            site, piece, value, 0, edge_index[0], edge_index[1], edges, _rows(sender, 0), _rows(receiver, 0)
        )
        for key, extra in extras.items():
            if extra is not None:
                _add_extra(messages, key, extra)
        gate = extras.get("gate")
        messages.attention = None if gate is None else gate.detach()
        answer = self.visit(messages)
        return value if answer is None else replace(messages, *answer)

    def on_matrix(self, name: str, call: MatrixCall) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, slice] | None:
        self.covered.pop(name, None)
        edges = self.edge_map(call.edge_index(), (), 0, name)
        site, piece = self.locate(name, edges)
        sender, receiver = call.edge_index()
        messages = Messages(site, piece, call.messages, 0, sender, receiver, edges, matrix=call)
        return self.visit(messages)


def _names(kinds: frozenset[EdgeType]) -> str:
    return "edge type " + ", ".join(str(kind) for kind in sorted(kinds))


def _add_extra(messages: Messages, key: str, extra: Tensor) -> None:
    """Keep what is known per edge beside the message: two equal messages of different relations differ in it."""
    if extra.dim() == 0 or extra.shape[0] != messages.source.shape[0] or extra is messages.value:
        return
    columns = extra[:, None] if extra.dim() == 1 else extra.flatten(1)
    if extra.is_floating_point():
        messages.features[key] = columns.detach()
    elif extra.dim() == 1 and extra.dtype != torch.bool:
        messages.categories[key] = extra
    else:
        messages.features[key] = columns.to(messages.value.dtype)


def _fresh(value: Tensor, layer: MessagePassing, kwargs: dict[str, Any]) -> bool:
    """Only of PyG's own layers is it known that they keep no message; lifted rows (x_j) are copies made by PyG."""
    if not type(layer).__module__.startswith("torch_geometric."):
        return False
    if value.grad_fn is not None and value.grad_fn.name() not in _NEED_NO_RESULT:
        return False
    if value.is_leaf and value.requires_grad:
        return False
    given = [v for key, v in kwargs.items() if isinstance(v, Tensor) and not key.endswith(("_i", "_j"))]
    return all(v.untyped_storage().data_ptr() != value.untyped_storage().data_ptr() for v in given if not is_sparse(v))


#: Operations whose gradient does not need what they returned: it may be overwritten.
_NEED_NO_RESULT = ("IndexSelectBackward0", "MulBackward0")


def _lifted(
    messages: Messages, layer: MessagePassing, kwargs: dict[str, Any], propagated: dict[str, Any]
) -> tuple[Tensor, Tensor | None] | None:
    """The node rows, and the weight per edge, of which the messages may be the product."""
    x, weight = propagated.get("x"), kwargs.get("edge_weight", kwargs.get("alpha"))
    if isinstance(x, (tuple, list)):
        x = x[0 if layer.flow == "source_to_target" else 1]
    if "x_j" not in kwargs or not isinstance(x, Tensor) or x.dim() < 2 or messages.edge_dim != 0:
        return None
    if messages.value.shape[1:] != x.shape[1:]:
        return None
    if weight is not None and (not isinstance(weight, Tensor) or weight.numel() != messages.source.numel()):
        return None
    return x.flatten(1), None if weight is None else weight.reshape(-1)


def _rows(states: Tensor | None, node_dim: int) -> Tensor | None:
    """[N, d]: one row per node."""
    if states is None or not states.is_floating_point():
        return None
    if states.dim() == 1:
        return states[:, None].detach()
    return states.movedim(node_dim, 0).flatten(1).detach()


def _states(
    layer: MessagePassing, inputs: tuple[Any, ...], propagated: dict[str, Any], collected: dict[str, Any]
) -> tuple[Tensor | None, Tensor | None]:
    """Node states (sender's, receiver's): the first tensor, or pair, of the layer's inputs with a row per node.

    What the layer ``collected`` for its messages under a name with _i or _j is per node, so it tells how many
    there are: attributes of edges are inputs too, and may come first.
    """
    per_node = [propagated.get(key[:-2]) for key in collected if key.endswith(("_i", "_j"))]
    counts = {_count(part, layer.node_dim) for value in per_node for part in _pair(value) if isinstance(part, Tensor)}
    for key, candidate in [*(("", value) for value in inputs), *propagated.items()]:
        pair = _pair(candidate)
        if f"{key}_j" in collected and f"{key}_i" not in collected and isinstance(candidate, Tensor):
            # Receivers are told by a tensor of their own (HGTConv: keys and queries), in numbers of their own.
            mine = (propagated.get(name[:-2]) for name in collected if name.endswith("_i"))
            pair = (pair[0], next((value for value in mine if isinstance(value, Tensor)), pair[1]))
        if not isinstance(pair[0], Tensor) or not pair[0].is_floating_point() or is_sparse(pair[0]):
            continue
        if counts and _count(pair[0], layer.node_dim) not in counts:
            continue
        if pair[0] is pair[1]:
            both = _rows(pair[0], layer.node_dim)
            states = (both, both)
        else:
            second = pair[1] if isinstance(pair[1], Tensor) else None
            states = (_rows(pair[0], layer.node_dim), _rows(second, layer.node_dim))
        return states  # PyG takes x_j from the first of a pair whichever way messages flow
    return None, None


def _pair(value: Any) -> tuple[Any, Any]:
    return (value[0], value[1]) if isinstance(value, (tuple, list)) and len(value) == 2 else (value, value)


def _count(states: Tensor, node_dim: int) -> int:
    return states.shape[node_dim if states.dim() > 1 else 0]


def check_model(model: nn.Module) -> None:
    """Raise for what hooks cannot see into."""
    for name, module in model.named_modules():
        compiled = type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
        if compiled or isinstance(module, torch.jit.ScriptModule):
            how = "torch.compile" if compiled else "torch.jit"
            raise GraphMaskError(
                f"Expected a plain PyTorch model, got one compiled with {how} (module {name or 'model'!r}): its "
                "messages cannot be intercepted. Pass the model as it was before compilation; the weights are shared."
            )
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise GraphMaskError(f"Expected a trained model, got one without a value for {name!r}. Run it once.")
    if not any(isinstance(m, (MessagePassing, MessageTap, AdjacencyTap)) for m in model.modules()):
        raise GraphMaskError(
            "Expected a model with message passing: torch_geometric.nn.MessagePassing layers, or a MessageTap or "
            f"AdjacencyTap where messages are, found none in {type(model).__name__}. "
            "Place `self.tap = MessageTap()` in each layer and pass its messages through it."
        )


@contextmanager
def tap(
    model: nn.Module,
    visit: Visit,
    edge_index: Tensor | EdgeMap | None = None,
    sites: tuple[Site, ...] | None = None,
    *,
    recompute: bool = False,
) -> Iterator[Tap]:
    """Inside, every message of ``model`` goes through ``visit``; afterwards no hook is left.

    ``sites=None`` discovers the sites (in ``Tap.sites``). ``edge_index`` is the graph as the user passed it;
    without it the edges of the first site stand for it. Several runs over one graph may share an `EdgeMap`.
    With ``recompute`` PyG layers keep nothing for the backward pass, and run again in it.
    """
    state = Tap(visit, edge_index if isinstance(edge_index, EdgeMap) else EdgeMap(edge_index), sites)
    handles: list[Any] = [model.register_forward_pre_hook(lambda *_: state.restart())]
    switched: list[tuple[nn.Module, str, Any]] = []
    try:
        for name, module in model.named_modules():
            name = name or "model"
            if isinstance(module, MessagePassing):
                switched += _unfuse(module)
                handles += _hook(state, name, module)
                if recompute:
                    switched.append((module, "forward", vars(module).get("forward", _ABSENT)))
                    module.forward = _recomputed(state, name, module)
            elif isinstance(module, (MessageTap, AdjacencyTap)):
                switched.append((module, "handler", module.handler))
                module.handler = _handler(state, name, module)
        yield state
    finally:
        state.live = False
        for handle in handles:
            handle.remove()
        _switch_back(switched)


_ABSENT = object()


def _unfuse(layer: MessagePassing) -> list[tuple[nn.Module, str, Any]]:
    """Make the layer build its messages one by one; returns what to switch back."""
    before: list[tuple[nn.Module, str, Any]] = []
    for attribute, value in (("fuse", False), ("_decomposed_layers", 1)):
        before.append((layer, attribute, getattr(layer, attribute)))
        setattr(layer, attribute, value)
    return before


def _switch_back(switched: list[tuple[nn.Module, str, Any]]) -> None:
    for module, attribute, value in switched:
        if value is _ABSENT:
            delattr(module, attribute)
        else:
            setattr(module, attribute, value)


def _recomputed(state: Tap, name: str, layer: MessagePassing) -> Callable[..., Any]:
    """The layer's forward, which keeps its inputs alone: the backward pass runs it again, tapped as it was."""
    forward = layer.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        call, first = state.calls.get(name, 0), True

        def once(*args: Any, **kwargs: Any) -> Any:
            nonlocal first
            if first:
                first = False
                return forward(*args, **kwargs)
            handles, switched = [] if state.live else _hook(state, name, layer), _unfuse(layer)
            state.calls[name] = call
            state.enter(name, args, kwargs)
            try:
                return forward(*args, **kwargs)
            finally:
                for handle in handles:
                    handle.remove()
                _switch_back(switched)

        return checkpoint(once, *args, use_reentrant=False, **kwargs)

    return run


def _hook(state: Tap, name: str, layer: MessagePassing) -> list[Any]:
    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        state.enter(name, args, kwargs)

    def leave(*_: Any) -> None:
        state.inputs.pop(name, None)

    def propagate(_: nn.Module, inputs: tuple[Any, Any, dict[str, Any]]) -> None:
        state.on_propagate(name, inputs[0], inputs[2])

    def message(module: MessagePassing, inputs: tuple[dict[str, Any]], output: Any) -> Tensor | None:
        return state.on_message(name, module, inputs[0], output)

    return [
        layer.register_forward_pre_hook(enter, with_kwargs=True),
        layer.register_forward_hook(leave),
        layer.register_propagate_forward_pre_hook(propagate),
        layer.register_message_forward_hook(message),
    ]


def _handler(state: Tap, name: str, module: nn.Module) -> Callable[..., Any]:
    on = state.on_tap if isinstance(module, MessageTap) else state.on_matrix
    return lambda *args: on(name, *args)
