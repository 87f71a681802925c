"""A transformer whose needed attention is known by construction: a colour travels along two pointers.

Every token has a name, the name of another token (its pointer) and a colour. The first token asks for the colour two
pointers away; the token in between, at which the first one's pointer points, is marked, so that a gate of layer 0 can
know which it is. Weights are set by hand, not trained:

* layer 0, head 0: every token attends to the one that its pointer names, and copies its colour;
* layer 1, head 0: every token attends to the one that its pointer names, and copies what that one has copied;
* the last head of either layer attends to all tokens alike and writes where nobody reads.

The output is what the first token has in the end. So one message per layer is needed, from the last token to the one in
between and from there to the first, both at head 0; and which tokens these are follows from the input alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

TOKENS, COLOURS, HEADS = 10, 4, 2
#: A logit so much higher than the others leaves them e^-12 of the attention each.
SHARP = 12.0
#: Of the output: probabilities of 0.999.
SURE = 8.0

#: The parts of a token's state, one after the other.
_PARTS = {
    "name": TOKENS,
    "pointer": TOKENS,
    "colour": COLOURS,
    "copied": COLOURS,
    "answer": COLOURS,
    "marks": 2,
    "waste": 1,
}


def _part(name: str) -> slice:
    start = sum(size for key, size in _PARTS.items() if list(_PARTS).index(key) < list(_PARTS).index(name))
    return slice(start, start + _PARTS[name])


WIDTH = 2 * TOKENS  # of a head
STATE = HEADS * WIDTH
assert sum(_PARTS.values()) <= STATE


class TwoHops(nn.Module):
    """Two layers of `torch.nn.MultiheadAttention` and residual connections, nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.MultiheadAttention(STATE, HEADS, batch_first=True) for _ in range(2))
        for layer, gives, takes in zip(self.layers, ("colour", "copied"), ("copied", "answer"), strict=True):
            _set(layer, gives, takes)
        self.requires_grad_(False)

    def forward(self, states: Tensor) -> Tensor:
        for layer in self.layers:
            states = states + layer(states, states, states, need_weights=False)[0]
        return SURE * states[:, 0, _part("answer")]


def _set(layer: nn.Module, gives: str, takes: str) -> None:
    """Attend where a pointer matches a name; what the other token ``gives`` is written to what this one ``takes``."""
    assert isinstance(layer, nn.MultiheadAttention)
    assert layer.in_proj_weight is not None
    query, key, value = torch.zeros(3, STATE, STATE)
    one = torch.eye(STATE)
    out = torch.zeros(STATE, STATE)
    query[:TOKENS] = SHARP * WIDTH**0.5 * one[_part("pointer")]
    key[:TOKENS] = one[_part("name")]
    value[: _PARTS[gives]] = one[_part(gives)]
    out[_part(takes), : _PARTS[takes]] = torch.eye(_PARTS[takes])
    value[WIDTH] = one[_part("colour")].sum(0)  # the last head, in numbers that nobody reads
    out[_part("waste"), WIDTH] = 1
    layer.in_proj_weight.data.copy_(torch.cat([query, key, value]))
    layer.in_proj_bias.data.zero_()
    layer.out_proj.weight.data.copy_(out)
    layer.out_proj.bias.data.zero_()


@dataclass
class Questions:
    """Some token sequences, the answers, and where the needed messages come from."""

    states: Tensor  #: [B, N, STATE]
    answers: Tensor  #: [B]
    needed: Tensor  #: [2, 2, B] per layer the token that must receive and the one that must send, at head 0

    def batches(self, size: int = 32) -> list[dict[str, Tensor]]:
        return [{"states": part} for part in self.states.split(size)]

    def gold(self, number: int) -> Tensor:
        """bool [2, H N N], as explanations hold their edges: head, receiver, sender."""
        mask = torch.zeros(2, HEADS, TOKENS, TOKENS, dtype=torch.bool)
        for layer in range(2):
            receiver, sender = self.needed[layer, :, number]
            mask[layer, 0, receiver, sender] = True
        return mask.flatten(1)


def draw(count: int, seed: int) -> Questions:
    """Names and pointers are drawn anew for each; nobody points to itself."""
    generator = torch.Generator().manual_seed(seed)
    names = torch.rand(count, TOKENS, generator=generator).argsort(1)
    order = torch.rand(count, TOKENS, generator=generator).argsort(1)  # a cycle through all tokens
    target = torch.empty_like(order).scatter_(1, order, order.roll(-1, 1))
    colours = torch.randint(COLOURS, (count, TOKENS), generator=generator)
    states = torch.zeros(count, TOKENS, STATE)
    states[..., _part("name")] = torch.eye(TOKENS)[names]
    states[..., _part("pointer")] = torch.eye(TOKENS)[names.gather(1, target)]
    states[..., _part("colour")] = torch.eye(COLOURS)[colours]
    once = target[:, 0]
    states[:, 0, _part("marks").start] = 1
    states[torch.arange(count), once, _part("marks").stop - 1] = 1
    twice = target.gather(1, once[:, None])[:, 0]
    needed = torch.stack([torch.stack([once, twice]), torch.stack([torch.zeros_like(once), once])])
    return Questions(states, colours.gather(1, twice[:, None])[:, 0], needed)
