"""Reads, or replaces, the messages that flow when the user's model runs on a batch, site by site.

`tap(model, visit)` calls `visit(messages)` for every group of messages the model sends; `tap(model, mask)` replaces
them as a `Mask` says. It uses PyTorch Geometric's public hooks and this library's taps (`taps.py`), so that everything
else in the library (gates, masking, other methods) is a visit or a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch_geometric.backend
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import MessagePassing, RGCNConv

from graphmask.errors import GraphMaskError
from graphmask.graphs.edges import EdgeMap
from graphmask.graphs.sites import Site
from graphmask.tapping import attention_interface, attention_taps, behind, compiled, edge_softmax
from graphmask.tapping.attention_taps import AttentionTap
from graphmask.tapping.features import FeatureTap
from graphmask.tapping.layers import TappedLayer
from graphmask.tapping.messages import Mask, Visit
from graphmask.tapping.pooling import POOLS, follow
from graphmask.tapping.restore import named_modules_of
from graphmask.tapping.tapped import Tap
from graphmask.tapping.taps import AdjacencyTap, MessageTap
from graphmask.tapping.unseen import ALONG_EDGES


def check_model(model: nn.Module) -> None:
    """Raise for models that hooks cannot see into."""
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise GraphMaskError(
            f"Expected the model itself, got it wrapped in {type(model).__name__}, which runs copies that hooks do not "
            "see. Pass model.module; several processes are for `fit` to use (docs/distributed.md)."
        )
    for name, module in model.named_modules():
        compiled.check(name or "model", module)
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise GraphMaskError(f"Expected a trained model, got one without a value for {name!r}. Run it once.")
    along_edges = any(isinstance(m, ALONG_EDGES) for m in model.modules())
    is_gated = attention_interface.asks(model) or any(isinstance(m, AttentionTap) for m in model.modules())
    if along_edges and is_gated:
        raise GraphMaskError(
            f"Expected messages along the edges of a graph, or attention between tokens, got both in "
            f"{type(model).__name__}. Run one part beforehand and explain the other: for instance, compute the token "
            "states once and pass them to the graph layers as x."
        )
    if along_edges:
        return  # a MultiheadAttention beside it stays as it is: GPSConv's, for instance
    attention_interface.check(model)
    if attends(model):
        return
    if attention_interface.pretrained(model):
        raise GraphMaskError(
            f"Expected attention that is looked up in transformers' AttentionInterface, found none in "
            f"{type(model).__name__}: it computes attention in a way of its own. Write that with a "
            "graphmask.AttentionTap: `out = self.tap(query, key, value, mask)`."
        )
    raise GraphMaskError(
        "Expected a model with message passing: torch_geometric.nn.MessagePassing layers, attention (Hugging Face's, "
        "torch.nn.MultiheadAttention), or a MessageTap, AdjacencyTap or AttentionTap where messages are, found none "
        f"in {type(model).__name__}. Place `self.tap = MessageTap()` in each layer and pass its messages through it."
    )


def attends(model: nn.Module) -> bool:
    """Whether the model contains attention that can be tapped."""
    taps = (AttentionTap, nn.MultiheadAttention)
    return attention_interface.asks(model) or any(isinstance(module, taps) for module in model.modules())


@contextmanager
def tap(
    model: nn.Module,
    visit: Visit | Mask,
    edge_index: Tensor | EdgeMap | None = None,
    sites: tuple[Site, ...] | None = None,
    *,
    recompute: bool = False,
    heads: str = "each",
    features: FeatureTap | None = None,
    leaky_keys: bool = False,
) -> Iterator[Tap]:
    """Inside, every message of ``model`` is shown to ``visit``, or replaced as a mask says; afterwards no hook is left.

    ``sites=None`` discovers the sites (in ``Tap.sites``). ``edge_index`` is the graph as the user passed it;
    without it the edges of the first site stand for it. Several runs over one graph may share an `EdgeMap`.
    With ``recompute`` PyG layers keep nothing for the backward pass, and run again in it. ``heads`` says how attention
    is gated where sites are discovered, ``leaky_keys`` that logits of dropped pairs stay as they are. With
    ``features``, what goes into the model is seen or replaced too.
    """
    edges = edge_index if isinstance(edge_index, EdgeMap) else EdgeMap(edge_index)
    state = Tap(visit, edges, sites, heads, leaky_keys, _kinds(model) if sites is None else None)
    handles: list[Any] = [model.register_forward_pre_hook(lambda *_: state.restart())]
    switched: list[tuple[Any, str, Any]] = []
    others = ExitStack()
    along_edges = False  # where there are layers whose edges are the user's, attention is left alone
    try:
        for name, module in named_modules_of(model):
            name = name or "model"
            along_edges |= isinstance(module, ALONG_EDGES)
            if isinstance(module, MessagePassing):
                tapped = TappedLayer(state, name, module)
                switched += _unfuse(state, module)
                handles += _hook(tapped)
                if recompute:
                    switched.append((module, "forward", vars(module).get("forward", _ABSENT)))
                    module.forward = _recomputed(tapped)
            elif isinstance(module, POOLS):
                handles.append(follow(state.match, name, module))
            elif isinstance(module, (MessageTap, AdjacencyTap)):
                switched.append((module, "handler", module.handler))
                module.handler = _handler(state, name, module)
        if features is not None:
            switched.append((features, "handler", features.handler))
            features.handler = partial(state.on_features, features)
        if not along_edges:
            verify = state.where.discovering
            others.enter_context(attending(model, state.on_attention, verify=verify))
        yield state
    finally:
        state.live = False
        others.close()
        for handle in handles:
            handle.remove()
        _switch_back(switched)


def _kinds(model: nn.Module) -> dict[str, str]:
    """The class of every module by its name; of a tap, the class of the module that it lies in."""
    modules = dict(model.named_modules())
    kinds = {}
    for name, module in modules.items():
        tap = isinstance(module, (MessageTap, AdjacencyTap, AttentionTap))
        kinds[name or "model"] = type(modules[name.rpartition(".")[0]] if tap else module).__name__
    return kinds


_ABSENT = object()


def _unfuse(state: Tap, layer: MessagePassing) -> list[tuple[Any, str, Any]]:
    """Make the layer build its messages one by one, and let ``state`` see softmaxes; returns what to switch back."""
    before: list[tuple[Any, str, Any]] = []
    for attribute, value in (("fuse", False), ("_decomposed_layers", 1)):
        current = getattr(layer, attribute)
        if current != value:
            before.append((layer, attribute, current))
            setattr(layer, attribute, value)
    if isinstance(layer, RGCNConv) and behind.averages(layer) is False:
        # With pyg-lib all relations are multiplied at once, and messages would be other ones. (A layer that averages
        # computes another function then, in PyTorch Geometric itself: it stays as it is.)
        before.append((torch_geometric.backend, "use_segment_matmul", torch_geometric.backend.use_segment_matmul))
        torch_geometric.backend.use_segment_matmul = False
    for binding in edge_softmax.bindings(layer):
        function = edge_softmax.watch(binding, state.compare)
        if function is not None:
            before.append((*binding, function))
    return before


def _switch_back(switched: list[tuple[Any, str, Any]]) -> None:
    for owner, attribute, value in reversed(switched):
        if isinstance(owner, dict):
            owner[attribute] = value
        elif value is _ABSENT:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, value)


def _recomputed(tapped: TappedLayer) -> Callable[..., Any]:
    """The layer's forward, which keeps its inputs alone: the backward pass runs it again, tapped as it was."""
    forward, state = tapped.layer.forward, tapped.tap

    def run(*args: Any, **kwargs: Any) -> Any:
        call, first = state.where.calls.get(tapped.name, 0), True

        def once(*args: Any, **kwargs: Any) -> Any:
            nonlocal first
            if first:
                first = False
                return forward(*args, **kwargs)
            handles, switched = [] if state.live else _hook(tapped), _unfuse(state, tapped.layer)
            state.where.calls[tapped.name] = call
            args, kwargs = tapped.enter(args, kwargs)
            try:
                return forward(*args, **kwargs)
            finally:
                for handle in handles:
                    handle.remove()
                _switch_back(switched)

        return checkpoint(once, *args, use_reentrant=False, **kwargs)

    return run


def _hook(tapped: TappedLayer) -> list[Any]:
    state, layer = tapped.tap, tapped.layer

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tapped.enter(args, kwargs)

    def leave(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        return tapped.leave(args, kwargs, output)

    def propagate(_: nn.Module, inputs: tuple[Any, Any, dict[str, Any]]) -> None:
        if not state.asleep:
            tapped.on_propagate(inputs[0], inputs[2])

    def message(_: nn.Module, inputs: tuple[dict[str, Any]], output: Any) -> Tensor | None:
        return None if state.asleep else tapped.on_message(inputs[0], output)

    handles = [
        layer.register_forward_pre_hook(enter, with_kwargs=True),
        layer.register_forward_hook(leave, with_kwargs=True),
        layer.register_propagate_forward_pre_hook(propagate),
        layer.register_message_forward_hook(message),
    ]
    if edge_softmax.bindings(layer) or (state.mask is not None and state.mask.exchange is not None):
        handles += _hook_content(tapped)
    return handles


def _hook_content(tapped: TappedLayer) -> list[Any]:
    """Of layers that compare edges: hooks before messages, and what edges are compared by, are computed."""
    state, layer = tapped.tap, tapped.layer

    def before_update(_: nn.Module, inputs: tuple[Any, Any, dict[str, Any]]) -> tuple[Any, Any, dict[str, Any]] | None:
        if state.asleep:
            return None
        edge_index, size, kwargs = inputs
        tapped.on_propagate(edge_index, kwargs)
        return edge_index, size, tapped.on_content(edge_index, kwargs)

    def after_update(*_: Any) -> None:
        state.underway = None

    def before_message(_: nn.Module, inputs: tuple[dict[str, Any]]) -> tuple[dict[str, Any]] | None:
        if state.asleep:
            return None
        return (tapped.on_content(tapped.propagated[0], inputs[0]),)

    return [
        layer.register_edge_update_forward_pre_hook(before_update),
        layer.register_edge_update_forward_hook(after_update),
        layer.register_message_forward_pre_hook(before_message),
    ]


@contextmanager
def attending(model: nn.Module, attend: attention_interface.AttendAt, *, verify: bool) -> Iterator[None]:
    """Inside, all attention of ``model`` is computed by ``attend(name, given)``.

    With ``verify``, Hugging Face's attention is compared with the model's own implementation, call by call.
    """
    switched: list[tuple[Any, str, Any]] = []
    with ExitStack() as stack:
        stack.callback(_switch_back, switched)
        for name, module in model.named_modules():
            here = partial(attend, name or "model")
            if isinstance(module, AttentionTap):
                switched.append((module, "handler", module.handler))
                module.handler = here
            elif isinstance(module, nn.MultiheadAttention):
                if not switched:
                    stack.enter_context(attention_taps.slow_path())
                switched.append((module, "forward", vars(module).get("forward", _ABSENT)))
                module.forward = attention_taps.multihead(name, module, here)  # type: ignore[method-assign]
        stack.enter_context(attention_interface.answered(model, attend, verify))
        yield


def _handler(state: Tap, name: str, module: nn.Module) -> Callable[..., Any]:
    on = state.on_tap if isinstance(module, MessageTap) else state.on_matrix
    return lambda *args: on(name, *args)
