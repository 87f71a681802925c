"""How far two outputs of the model are apart, one value per row (a row is an example).

Rows may be sequences, ``[rows, positions, ..., classes or labels]``: classes belong together, labels are summed,
positions are averaged, so that a long sequence is held to the same tolerance as a short one. (Of an output
``[rows, n]`` the ``n`` are classes or labels.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from graphmask.devices import double
from graphmask.errors import GraphMaskError, warn

Function = Callable[[Tensor, Tensor], Tensor]


def _at_least_float32(output: Tensor) -> Tensor:
    """Outputs in half or bfloat16 have too few digits for a difference of two logarithms, or for a sum of many."""
    return output.float() if output.dtype in (torch.half, torch.bfloat16) else output


def _per_row(value: Tensor) -> Tensor:
    """Mean over everything but the rows: a sequence of outputs counts as one example, however long it is."""
    return value.flatten(1).mean(1) if value.dim() > 1 else value


def _over_labels(value: Tensor) -> Tensor:
    """Sum over the last dimension, independent yes/no answers; mean over the positions of a sequence, if any."""
    return _per_row(value.sum(-1)) if value.dim() > 1 else value


#: Rows of fewer numbers do not fill a register of the processor; with so many numbers in all it is worth turning them.
SHORT, MANY = 16, 1000


def log_softmax(logits: Tensor) -> Tensor:
    """Over the last dimension; many short rows are worked on side by side, which takes PyTorch a fifth of the time."""
    if logits.dim() < 2 or logits.shape[-1] >= SHORT or logits.numel() < MANY:
        return F.log_softmax(logits, -1)
    return F.log_softmax(logits.movedim(-1, 0), 0).movedim(0, -1)


def kl(original: Tensor, masked: Tensor) -> Tensor:
    r"""Categorical :math:`\mathrm{KL}[p \| q]` over the last dimension of two outputs of logits."""
    p, q = log_softmax(original), log_softmax(masked)
    return _per_row((p.exp() * (p - q)).sum(-1))


def jensen_shannon(original: Tensor, masked: Tensor) -> Tensor:
    r""":math:`\tfrac12 \mathrm{KL}[p \| m] + \tfrac12 \mathrm{KL}[q \| m]` with :math:`m = (p + q) / 2`."""
    p, q = log_softmax(original), log_softmax(masked)
    m = torch.logaddexp(p, q) - torch.log(torch.tensor(2.0, dtype=p.dtype))
    return _per_row(0.5 * (p.exp() * (p - m)).sum(-1) + 0.5 * (q.exp() * (q - m)).sum(-1))


def cross_entropy(original: Tensor, masked: Tensor) -> Tensor:
    """How much less likely the model's prediction became: the cross-entropy minus that of the original output."""
    p, q = log_softmax(original), log_softmax(masked)
    choice = p.argmax(-1, keepdim=True)
    return _per_row((p.gather(-1, choice) - q.gather(-1, choice)).squeeze(-1).clamp_min(0))


def bernoulli(original: Tensor, masked: Tensor) -> Tensor:
    r"""Sum over labels of :math:`\mathrm{KL}[\mathrm{Bernoulli}(\sigma(a)) \| \mathrm{Bernoulli}(\sigma(b))]`."""
    p = torch.sigmoid(original)
    on = F.logsigmoid(original) - F.logsigmoid(masked)
    off = F.logsigmoid(-original) - F.logsigmoid(-masked)
    return _over_labels(p * on + (1 - p) * off)


def mse(original: Tensor, masked: Tensor) -> Tensor:
    """Squared difference, in the output's own units: choose the tolerance accordingly."""
    return _per_row((original - masked) ** 2)


def gaussian(original: Tensor, masked: Tensor, variance: float = 1.0) -> Tensor:
    r""":math:`(a - b)^2 / (2 \sigma^2)`: KL of two Gaussians of equal variance."""
    return mse(original, masked) / (2 * variance)


NAMED: dict[str, Function] = {
    "kl": kl,
    "js": jensen_shannon,
    "cross_entropy": cross_entropy,
    "bernoulli": bernoulli,
    "mse": mse,
    "gaussian": gaussian,
}
_CATEGORICAL = {"kl", "js", "cross_entropy"}


class Divergence:
    """A divergence, by name or as a function, with its checks and with what counts as the same prediction.

    What kind of numbers the model returns is decided once, on a first batch of outputs (:meth:`resolve`), so
    that no later batch is read differently: ``probabilities`` are turned into logits, ``"gaussian"`` takes its
    variance from them, and ``"auto"`` becomes a name.
    """

    def __init__(self, choice: str | Function = "auto") -> None:
        if not callable(choice) and choice not in {"auto", *NAMED}:
            raise GraphMaskError(
                f"Expected a divergence among {', '.join(['auto', *NAMED])} or a callable, got {choice!r}."
            )
        self.choice = choice
        self.name = "custom" if callable(choice) else choice
        self.probabilities = False
        self.variance = 1.0
        self.resolved = False

    def resolve(self, output: Tensor) -> None:
        if self.resolved:
            return
        if self.name == "auto":
            self.name = "kl" if output.dim() > 1 and output.shape[-1] > 1 else "bernoulli"
            if self.name == "bernoulli":
                warn(
                    'The model returns one value per row, taken as a yes/no answer (divergence="bernoulli"). '
                    'For a regression pass divergence="mse" and a tolerance in squared output units, or "gaussian".'
                )
        if self.name in _CATEGORICAL:
            if output.dim() < 2 or output.shape[-1] < 2:
                raise GraphMaskError(
                    f"Expected at least two columns (classes) for divergence={self.name!r}, got an output of shape "
                    f'{tuple(output.shape)}. Use "bernoulli" for a yes/no logit, "mse" for a regression.'
                )
            sums = output.sum(-1)
            self.probabilities = bool((output >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-4)
        elif self.name == "bernoulli":
            self.probabilities = bool(((output >= 0) & (output <= 1)).all())
        elif self.name == "gaussian":
            self.variance = max(float(double(output).var()) if output.numel() > 1 else 0.0, 1e-12)
        self.resolved = True

    def logits(self, output: Tensor) -> Tensor:
        if not self.probabilities:
            return output
        tiny = torch.finfo(output.dtype).tiny
        if self.name == "bernoulli":
            return output.clamp_min(tiny).log() - (1 - output).clamp_min(tiny).log()
        return output.clamp_min(tiny).log()

    def __call__(self, original: Tensor, masked: Tensor) -> Tensor:
        if original.shape != masked.shape:
            raise GraphMaskError(
                f"Expected the masked model to return the original's shape {tuple(original.shape)}, "
                f"got {tuple(masked.shape)}. The shape of the output must not depend on the messages."
            )
        original, masked = _at_least_float32(original), _at_least_float32(masked)
        if callable(self.choice):
            value = self.choice(original, masked)
        elif self.name == "gaussian":
            value = gaussian(original, masked, self.variance)
        else:
            value = NAMED[self.name](self.logits(original), self.logits(masked))
        if not isinstance(value, Tensor) or value.shape != original.shape[:1]:
            returned = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise GraphMaskError(
                f"Expected the divergence to return one value per output row, shape {tuple(original.shape[:1])}, "
                f"got {returned}."
            )
        return value

    @property
    def has_classes(self) -> bool:
        """Whether rows have a predicted class that could change; False for regressions."""
        return self.name not in {"mse", "gaussian"}

    def support(self, original: Tensor, output: Tensor) -> Tensor:
        """[rows] how strongly ``output`` supports the prediction of the original; for a regression, its value."""
        if self.name == "bernoulli" or (self.has_classes and (original.dim() < 2 or original.shape[-1] < 2)):
            value = torch.where(self.logits(original) > 0, output, -output)
        elif self.has_classes:
            value = output.gather(-1, original.argmax(-1, keepdim=True))
        else:
            value = output
        return value.flatten(1).sum(1) if value.dim() > 1 else value

    def own_loss(self, original: Tensor, masked: Tensor) -> Tensor:
        """[rows] loss against the original's own hard prediction; where there is none, the divergence."""
        if self.name in _CATEGORICAL:
            choice = original.argmax(-1, keepdim=True)
            return _per_row(-log_softmax(self.logits(masked)).gather(-1, choice).squeeze(-1))
        if self.name == "bernoulli":
            return _over_labels(F.softplus(torch.where(self.logits(original) > 0, -1.0, 1.0) * self.logits(masked)))
        return self(original, masked)

    def flips(self, original: Tensor, masked: Tensor) -> Tensor:
        """Per row: did the prediction change, at any label or position? Regressions have no prediction to change."""
        if self.name in {"mse", "gaussian"}:
            return torch.zeros(original.shape[0], dtype=torch.bool, device=original.device)
        if self.name == "bernoulli" or original.dim() < 2 or original.shape[-1] < 2:
            changed = (self.logits(original) > 0) != (self.logits(masked) > 0)
        else:
            changed = original.argmax(-1) != masked.argmax(-1)
        return changed.flatten(1).any(1) if changed.dim() > 1 else changed

    def state(self) -> dict[str, object]:
        return {"name": self.name, "probabilities": self.probabilities, "variance": self.variance}

    def load_state(self, state: dict[str, object]) -> None:
        self.name = str(state["name"])
        self.probabilities = bool(state["probabilities"])
        self.variance = float(state["variance"])  # type: ignore[arg-type]
        self.resolved = True
