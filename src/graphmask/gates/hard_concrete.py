r"""The Hard Concrete distribution (Louizos et al. 2018; appendix B of the paper).

.. math::
    s = \sigma((\log u - \log(1 - u) + \gamma) / \tau), \qquad
    z = \min(1, \max(0, s (r - l) + l))

with location :math:`\gamma`, temperature :math:`\tau = 1/3` and stretch :math:`(l, r) = (-0.2, 1.2)`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

TEMPERATURE = 1 / 3
LOW, HIGH = -0.2, 1.2
#: The location at which a gate is as likely to be open as shut.
EVEN = TEMPERATURE * math.log(-LOW / HIGH)


#: Width of a gate in units of locations, which lie within -3 and 3: ten times that either way.
WIDTH = 0.3


def noisy(location: Tensor, scale: float = 1.0, generator: torch.Generator | None = None) -> Tensor:
    r"""The binary Concrete distribution: :math:`z = \sigma(\gamma / w + s (\log u - \log(1 - u)))`, w = 0.3.

    A gate with a location near zero is open or shut by chance, so that being half open does not pay.
    """
    return soft(location, logistic(location, generator), scale)


def logistic(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    r""":math:`\log u - \log(1 - u)` of uniform numbers, one for each of ``like``."""
    u = torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype)
    return u.logit_(1e-6)


def soft(location: Tensor, noise: Tensor, scale: float) -> Tensor:
    """Gates with so much noise."""
    return torch.sigmoid(location / WIDTH + noise * scale)


def sample(location: Tensor, generator: torch.Generator | None = None, *, rounded: bool = True) -> Tensor:
    """One reparameterised sample per location; ``rounded`` gives {0, 1} forward, the soft gradient backward."""
    u = torch.rand(location.shape, generator=generator, device=location.device, dtype=location.dtype)
    u = u.clamp(1e-6, 1 - 1e-6)
    s = torch.sigmoid((u.log() - (-u).log1p() + location) / TEMPERATURE)
    z = (s * (HIGH - LOW) + LOW).clamp(0, 1)
    return z + (z.round() - z).detach() if rounded else z


def probability_open(location: Tensor) -> Tensor:
    r""":math:`P(z \neq 0) = \sigma(\gamma - \tau \log(-l / r))`: the attribution score of an edge."""
    moved = location - EVEN
    return moved.sigmoid() if moved.requires_grad else moved.sigmoid_()  # there may be millions: one copy, not two


def hard(location: Tensor) -> Tensor:
    """The gate at explanation time: open when it is more likely open than shut."""
    return location > EVEN
