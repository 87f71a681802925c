"""The user's model + a batch -> the messages that flow, site by site.

`tap(model, visit)` calls `visit(messages)` for every group of messages the model sends and lets it replace
them. It works through PyTorch Geometric's public hooks and through this library's taps (`taps.py`), so that
everything else in the library (gates, masking, other methods) is a `visit` function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import MessagePassing

from graphmask.edges import EdgeMap, EdgeType, effective_edges
from graphmask.errors import GraphMaskError
from graphmask.messages import Messages, Visit, add_extra, is_fresh, lifted, replace, rows_of_nodes, states
from graphmask.sites import Site
from graphmask.taps import AdjacencyTap, MatrixCall, MessageTap


class Tap:
    """State of one tapping: which call comes next, which site it belongs to, which edges are whose."""

    def __init__(self, visit: Visit, edge_map: EdgeMap, sites: tuple[Site, ...] | None, *, bare: bool) -> None:
        self.visit = visit
        self.bare = bare
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
        source, target = edge_index if layer.flow == "source_to_target" else (edge_index[1], edge_index[0])
        messages = Messages(
            site=site,
            piece=piece,
            value=value,
            edge_dim=layer.node_dim if layer.node_dim >= 0 else value.dim() + layer.node_dim,
            source=source,
            target=target,
            edges=edges,
        )
        if value.dim() == 1:
            messages.edge_dim = 0
        if value.shape[messages.edge_dim] != count:
            raise GraphMaskError(
                f"Expected module {name!r} to send one message per edge ({count}), "
                f"got {value.shape[messages.edge_dim]}."
            )
        if not self.bare:
            self._describe(messages, name, layer, kwargs)
        messages.fresh = is_fresh(value, layer, kwargs)
        if value.grad_fn is not None and value.grad_fn.name() == "IndexSelectBackward0" and value is kwargs.get("x_j"):
            rows = lifted(messages, layer, kwargs, propagated)
            messages.picked = None if rows is None else (rows[0], source)
        answer = self.visit(messages)
        return None if answer is None else replace(messages, *answer)

    def _describe(self, messages: Messages, name: str, layer: MessagePassing, kwargs: dict[str, Any]) -> None:
        """Add what the layer knows of its messages."""
        propagated, count = self.pending[name][1], messages.source.shape[0]
        known = states(layer, self.inputs.get(name, ()), propagated, kwargs)
        messages.source_states, messages.target_states = known
        messages.num_relations = int(getattr(layer, "num_relations", 0) or 0)
        for key, extra in kwargs.items():
            if key.endswith(("_i", "_j")) or key in MessagePassing.special_args or not isinstance(extra, Tensor):
                continue
            if not isinstance(extra, nn.Parameter):  # the layer's, though it may happen to have E' rows
                add_extra(messages, key, extra)
        self._add_types(messages)
        attention = kwargs.get("alpha", getattr(layer, "_alpha", None))
        if isinstance(attention, Tensor) and attention.dim() and attention.shape[0] == count:
            messages.attention = attention.detach()
        messages.lifted = lifted(messages, layer, kwargs, propagated)

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
            site=site,
            piece=piece,
            value=value,
            edge_dim=0,
            source=edge_index[0],
            target=edge_index[1],
            edges=edges,
            source_states=rows_of_nodes(sender, 0),
            target_states=rows_of_nodes(receiver, 0),
        )
        for key, extra in extras.items():
            if extra is not None:
                add_extra(messages, key, extra)
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
    bare: bool = False,
) -> Iterator[Tap]:
    """Inside, every message of ``model`` goes through ``visit``; afterwards no hook is left.

    ``sites=None`` discovers the sites (in ``Tap.sites``). ``edge_index`` is the graph as the user passed it;
    without it the edges of the first site stand for it. Several runs over one graph may share an `EdgeMap`.
    With ``recompute`` PyG layers keep nothing for the backward pass, and run again in it. With ``bare`` messages come
    without what their layer knows of them (states, features): enough to mask them.
    """
    state = Tap(visit, edge_index if isinstance(edge_index, EdgeMap) else EdgeMap(edge_index), sites, bare=bare)
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
        found = getattr(layer, attribute)
        if found != value:
            before.append((layer, attribute, found))
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
