"""Whether two runs are the same: settings of an explainer and hashes of batches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex

from graphmask import files
from graphmask.errors import GraphMaskError
from graphmask.graphs import batches
from graphmask.graphs.layout import Types
from graphmask.graphs.sites import Site
from graphmask.tapping.subject import Subject

#: Attributes of a method that do not change its explanations, or are compared in a way of their own.
_ELSEWHERE = {"subject", "history", "progress", "asked"}


class Explainer(Protocol):
    """What the store needs of the method that fills it; `Method`, in a layer above, satisfies this protocol."""

    subject: Subject

    @property
    def name(self) -> str: ...
    @property
    def threshold(self) -> float: ...


def settings_of(method: Explainer) -> dict[str, Any]:
    """What must agree for two explainers to give the same explanations."""
    own = {name: _plain(value) for name, value in vars(method).items() if name not in _ELSEWHERE}
    return files.as_json(
        own
        | {
            "method": method.name,
            "model": files.fingerprint(method.subject.model),
            "custom_forward": method.subject.forward is not batches.default_forward,
            "threshold": method.threshold,
            "precision": method.subject.precision,
            "heads": method.subject.heads,
            "leaky_keys": method.subject.leaky_keys,
        }
    )


def divergence_of(method: Explainer) -> dict[str, Any]:
    divergence = method.subject.divergence
    choice = divergence.choice
    return {**divergence.state(), "choice": choice if isinstance(choice, str) else "custom"}


def adopt(method: Explainer, settings: dict[str, Any], description: dict[str, Any], folder: Path) -> None:
    """Raise unless the store was made by this method; set what the method learns from the first batch."""
    earlier, state, subject = description["settings"], dict(description["divergence"]), method.subject
    mine, sites = divergence_of(method), tuple(Site.from_json(site) for site in description["sites"])
    types = Types.from_json(description.get("types"))
    other = [key for key in settings if key in earlier and earlier[key] != settings[key]]
    # Once resolved, "auto" has become a name: a saved and loaded explainer knows only that.
    compared = ("name", "probabilities", "variance") if subject.divergence.resolved else ("choice",)
    if any(mine[key] != state[key] for key in compared):
        other.append("divergence")
    if subject.sites not in (None, sites):
        other.append("sites")
    if subject.sites is not None and subject.types != types:
        other.append("types")
    if other:
        raise GraphMaskError(
            f"Expected a store of this explainer at {folder}, found one with another {', '.join(other)}. "
            "Write to another folder, or delete this one to start anew."
        )
    # Both are decided on the first batch, which is not run again.
    subject.divergence.load_state(state)
    method.subject = replace(subject, sites=sites, types=types)


def content_of(batch: Any) -> str:
    """A hash that is the same for two batches if their tensors are."""
    return hash_of([batches.edge_index_of(batch), *sorted(batches.items(batch), key=lambda item: item[0])])


def _plain(value: Any) -> Any:
    """JSON that differs where the values do; values that cannot be compared are represented by their type."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, nn.Module):
        return files.fingerprint(value)
    if isinstance(value, Tensor):
        return hash_of(value)
    if isinstance(value, Site):
        return _plain(value.to_json())
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return type(value).__name__


def hash_of(value: Any) -> str:
    """A hash of all tensors and names inside a value."""
    digest = hashlib.blake2b(digest_size=16)
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, EdgeIndex):
            value = value.as_tensor()
        if isinstance(value, Tensor) and value.layout == torch.sparse_coo:
            whole = value.coalesce()
            stack += [whole.indices(), whole.values()]
        elif isinstance(value, Tensor) and value.layout == torch.sparse_csr:
            stack += [value.crow_indices(), value.col_indices(), value.values()]
        elif isinstance(value, Tensor) and value.layout == torch.strided:
            digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, Mapping):
            stack += value.items()
        elif isinstance(value, (list, tuple)):
            stack += value
        elif isinstance(value, str):
            digest.update(value.encode(errors="surrogatepass"))
    return digest.hexdigest()
