"""Reads, or replaces, the messages that flow when the user's model runs on a batch, site by site.

`tap(model, visit)` calls `visit(messages)` for every group of messages the model sends; `tap(model, mask)` replaces
them as a `Mask` says. It uses PyTorch Geometric's public hooks and this library's taps (`taps.py`), so that everything
else in the library (gates, masking, other methods) is a visit or a mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from torch import Tensor, nn

from graphmask.errors import GraphMaskError
from graphmask.graphs.edges import EdgeMap
from graphmask.graphs.sites import Site
from graphmask.tapping import attention_interface, attention_taps, compiled
from graphmask.tapping.attention_taps import AttentionTap
from graphmask.tapping.features import FeatureTap
from graphmask.tapping.hooked import Hooks, Switched, switch, switch_back, switched
from graphmask.tapping.messages import Mask, Visit
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
    hooks: Hooks | None = None,
) -> Iterator[Tap]:
    """Inside, every message of ``model`` is shown to ``visit``, or replaced as a mask says; afterwards no hook is left.

    ``sites=None`` discovers the sites (in ``Tap.sites``). ``edge_index`` is the graph as the user passed it;
    without it the edges of the first site stand for it. Several runs over one graph may share an `EdgeMap`.
    With ``recompute`` PyG layers keep nothing for the backward pass, and run again in it. ``heads`` says how attention
    is gated where sites are discovered, ``leaky_keys`` that logits of dropped pairs stay as they are. With
    ``features``, what goes into the model is seen or replaced too. ``hooks`` keeps those that are set for the next tap.
    """
    edges = edge_index if isinstance(edge_index, EdgeMap) else EdgeMap(edge_index)
    state = Tap(visit, edges, sites, heads, leaky_keys, _kinds(model) if sites is None else None)
    hooks = Hooks() if recompute or hooks is None else hooks  # a layer that runs again is hooked once more then
    with hooks.on(model) as hooked, ExitStack() as stack:
        stack.callback(hooked.disconnect)
        hooked.connect(state, recompute=recompute)
        if features is not None:
            stack.enter_context(switched((features, "handler", partial(state.on_features, features))))
        if not hooked.along_edges:  # where there are layers whose edges are the user's, attention is left alone
            stack.enter_context(attending(model, state.on_attention, verify=state.where.discovering))
        yield state


def _kinds(model: nn.Module) -> dict[str, str]:
    """The class of every module by its name; of a tap, the class of the module that it lies in."""
    modules = dict(model.named_modules())
    kinds = {}
    for name, module in modules.items():
        tap = isinstance(module, (MessageTap, AdjacencyTap, AttentionTap))
        kinds[name or "model"] = type(modules[name.rpartition(".")[0]] if tap else module).__name__
    return kinds


@contextmanager
def attending(model: nn.Module, attend: attention_interface.AttendAt, *, verify: bool) -> Iterator[None]:
    """Inside, all attention of ``model`` is computed by ``attend(name, given)``.

    With ``verify``, Hugging Face's attention is compared with the model's own implementation, call by call.
    """
    changed: list[Switched] = []
    with ExitStack() as stack:
        stack.callback(switch_back, changed)
        for name, module in named_modules_of(model):
            here = partial(attend, name or "model")
            if isinstance(module, AttentionTap):
                changed.append(switch(module, "handler", here))
            elif isinstance(module, nn.MultiheadAttention):
                if not changed:
                    stack.enter_context(attention_taps.slow_path())
                changed.append(switch(module, "forward", attention_taps.multihead(name, module, here)))
        stack.enter_context(attention_interface.answered(model, attend, verify))
        yield
