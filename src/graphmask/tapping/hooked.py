"""Hooks on the layers of a model, set once and used by one `Tap` after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch_geometric.backend
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import MessagePassing, RGCNConv

from graphmask.tapping import behind, edge_softmax
from graphmask.tapping.layers import TappedLayer
from graphmask.tapping.pooling import POOLS, follow
from graphmask.tapping.restore import named_modules_of
from graphmask.tapping.tapped import Tap
from graphmask.tapping.taps import AdjacencyTap, MessageTap
from graphmask.tapping.unseen import ALONG_EDGES

#: What was changed while a model is tapped: the owner, the attribute (or key), and what it was.
Switched = tuple[Any, str, Any]
_ABSENT = object()


class Hooks:
    """The hooks that taps have set. Inside `kept` they stay for the next tap; otherwise each removes its own."""

    def __init__(self) -> None:
        self.keeping = False
        self.known: Hooked | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Inside, the first tap sets the hooks that all use; afterwards none of these is left."""
        keeping, known = self.keeping, self.known
        self.keeping = True
        try:
            yield
        finally:
            self.keeping = keeping
            if self.known is not known and self.known is not None:
                self.known.remove()
            self.known = known

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[Hooked]:
        """A model with hooks that no other tap is using now."""
        if self.known is not None and self.known.model is model and self.known.tap is None:
            yield self.known
            return
        hooked = Hooked(model)
        if self.keeping and self.known is None:
            self.known = hooked
        try:
            hooked.set()
            yield hooked
        finally:
            if hooked is not self.known:
                hooked.remove()


class Hooked:
    """A model and the hooks on its layers, which do nothing while no `Tap` is connected."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.tap: Tap | None = None
        self.layers: list[TappedLayer] = []
        self.pools: list[tuple[str, nn.Module]] = []
        self.taps: list[tuple[str, MessageTap | AdjacencyTap]] = []
        self.along_edges = False
        self.handles: list[Any] = []
        self.borrowed: list[Any] = []  # handles of the tap that is connected
        self.switched: list[Switched] = []  # what that tap has changed

    def set(self) -> None:
        self.handles.append(self.model.register_forward_pre_hook(self._restart))
        for name, module in named_modules_of(self.model):
            kind: Any = type(module)
            if not _is_of_interest(kind):
                continue
            name = name or "model"
            self.along_edges |= isinstance(module, ALONG_EDGES)
            if isinstance(module, MessagePassing):
                layer = TappedLayer(name, module)
                self.layers.append(layer)
                self.handles += _hook(layer)
            elif isinstance(module, POOLS):
                self.pools.append((name, module))
            elif isinstance(module, (MessageTap, AdjacencyTap)):
                self.taps.append((name, module))

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def _restart(self, *_: Any) -> None:
        if self.tap is not None:
            self.tap.restart()

    def connect(self, tap: Tap, *, recompute: bool = False) -> None:
        """From now on hooks tell this tap what the model does, and do what it says, until `disconnect`."""
        self.tap = tap
        for layer in self.layers:
            layer.connect(tap)
            self.switched += _unfuse(tap, layer.layer)
            if tap.mask is not None and tap.mask.exchange is not None and not edge_softmax.bindings(layer.layer):
                self.borrowed += _hook_content(layer)
            if recompute:
                self.switched.append(switch(layer.layer, "forward", _recomputed(layer, tap)))
        for name, module in self.pools:
            self.borrowed.append(follow(tap.match, name, module))
        for name, module in self.taps:
            self.switched.append(switch(module, "handler", _handler(tap, name, module)))

    def disconnect(self) -> None:
        assert self.tap is not None
        self.tap.live, self.tap = False, None
        for layer in self.layers:
            if layer.connected:
                layer.disconnect()
        for handle in self.borrowed:
            handle.remove()
        self.borrowed.clear()
        switch_back(self.switched)
        self.switched.clear()


@lru_cache(maxsize=256)
def _is_of_interest(kind: Any) -> bool:
    return issubclass(kind, (*ALONG_EDGES, *POOLS))


@contextmanager
def switched(*changes: Switched) -> Iterator[None]:
    """Inside, attributes of these owners have these values."""
    before = [switch(*change) for change in changes]
    try:
        yield
    finally:
        switch_back(before)


def switch(owner: Any, attribute: str, value: Any) -> Switched:
    """Set an attribute; returns what to switch back."""
    before = owner, attribute, vars(owner).get(attribute, _ABSENT)
    setattr(owner, attribute, value)
    return before


def switch_back(switched: list[Switched]) -> None:
    for owner, attribute, value in reversed(switched):
        if isinstance(owner, dict):
            owner[attribute] = value
        elif value is _ABSENT:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, value)


def _unfuse(tap: Tap, layer: MessagePassing) -> list[Switched]:
    """Make the layer build its messages one by one, and let ``tap`` see softmaxes; returns what to switch back."""
    before: list[Switched] = []
    for attribute, value in (("fuse", False), ("_decomposed_layers", 1)):
        if getattr(layer, attribute) != value:
            before.append(switch(layer, attribute, value))
    if isinstance(layer, RGCNConv) and behind.averages(layer) is False:
        # With pyg-lib all relations are multiplied at once, and messages would be other ones. (A layer that averages
        # computes another function then, in PyTorch Geometric itself: it stays as it is.)
        before.append(switch(torch_geometric.backend, "use_segment_matmul", False))
    for binding in edge_softmax.bindings(layer):
        function = edge_softmax.watch(binding, tap.compare)
        if function is not None:
            before.append((*binding, function))
    return before


def _recomputed(tapped: TappedLayer, tap: Tap) -> Callable[..., Any]:
    """The layer's forward, which keeps its inputs alone: the backward pass runs it again, tapped as it was."""
    forward, layer = tapped.layer.forward, tapped.layer

    def run(*args: Any, **kwargs: Any) -> Any:
        call, first = tap.where.calls.get(tapped.name, 0), True

        def once(*args: Any, **kwargs: Any) -> Any:
            nonlocal first
            if first:
                first = False
                return forward(*args, **kwargs)
            handles, before = [] if tap.live else _hook(tapped), _unfuse(tap, layer)
            tap.where.calls[tapped.name] = call
            tapped.connect(tap)
            args, kwargs = tapped.enter(args, kwargs) or (args, kwargs)
            try:
                return forward(*args, **kwargs)
            finally:
                for handle in handles:
                    handle.remove()
                switch_back(before)

        return checkpoint(once, *args, use_reentrant=False, **kwargs)

    return run


def _hook(tapped: TappedLayer) -> list[Any]:
    layer = tapped.layer

    def enter(
        _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        return tapped.enter(args, kwargs) if tapped.connected else None

    def leave(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        return tapped.leave(args, kwargs, output) if tapped.connected else None

    def propagate(_: nn.Module, inputs: tuple[Any, Any, dict[str, Any]]) -> None:
        if tapped.awake:
            tapped.on_propagate(inputs[0], inputs[2])

    def message(_: nn.Module, inputs: tuple[dict[str, Any]], output: Any) -> Tensor | None:
        return tapped.on_message(inputs[0], output) if tapped.awake else None

    handles = [
        layer.register_forward_pre_hook(enter, with_kwargs=True),
        layer.register_forward_hook(leave, with_kwargs=True),
        layer.register_propagate_forward_pre_hook(propagate),
        layer.register_message_forward_hook(message),
    ]
    if edge_softmax.bindings(layer):
        handles += _hook_content(tapped)
    return handles


def _hook_content(tapped: TappedLayer) -> list[Any]:
    """Of layers that compare edges: hooks before messages, and what edges are compared by, are computed."""
    layer = tapped.layer

    def before_update(_: nn.Module, inputs: tuple[Any, Any, dict[str, Any]]) -> tuple[Any, Any, dict[str, Any]] | None:
        if not tapped.awake:
            return None
        edge_index, size, kwargs = inputs
        tapped.on_propagate(edge_index, kwargs)
        return edge_index, size, tapped.on_content(edge_index, kwargs)

    def after_update(*_: Any) -> None:
        if tapped.connected:
            tapped.tap.underway = None

    def before_message(_: nn.Module, inputs: tuple[dict[str, Any]]) -> tuple[dict[str, Any]] | None:
        return (tapped.on_content(tapped.propagated[0], inputs[0]),) if tapped.awake else None

    return [
        layer.register_edge_update_forward_pre_hook(before_update),
        layer.register_edge_update_forward_hook(after_update),
        layer.register_message_forward_pre_hook(before_message),
    ]


def _handler(tap: Tap, name: str, module: nn.Module) -> Callable[..., Any]:
    on = tap.on_tap if isinstance(module, MessageTap) else tap.on_matrix
    return lambda *args: on(name, *args)
