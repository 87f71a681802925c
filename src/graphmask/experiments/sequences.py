"""Questions over token sequences whose needed attention is known, and small transformers that learn to answer them.

* ``recall``: every token but the first has a key and a value, the first a key alone. What is its value? The first token
  must hear the one with that key.
* ``star``: every token but the first has a colour, the first names two. Are there more of the one than of the other?
  The first token must hear all tokens of these two colours.
* ``relay``: the task of `graphmask.experiments.relay`, where every node is a token that may attend to its children and
  to itself. One layer brings the leaves that count to their mids, the next brings mids to the root.

Every layer has one head, so which head it is leaves no choice. There are many values in ``recall`` for another reason:
a message may be dropped where its baseline says the same, which can be so for one value, or for a few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.utils import to_dense_batch

from graphmask.bars import through
from graphmask.experiments import relay
from graphmask.experiments.common import build, coloured, distinct_pair, mlp
from graphmask.explanation import Explanation

KEYS, VALUES, PAIRS = 12, 64, 9
COLOURS, LEAVES = 6, 8
#: Averages of many numbers, which is what attention gives, are hard to count by.
SMALL_TREES = relay.RelayConfig(max_mids=4, max_leaves=3)
#: Fewest pairs, and fewest coloured tokens, of a sequence; shorter ones are padded.
FEWEST = 4
BATCH = 64


@dataclass
class Questions:
    """Sequences of ``N`` tokens with ``F`` features, their answers, and the messages needed at ``L`` layers."""

    x: Tensor  #: [B, N, F]
    allowed: Tensor  #: bool [B, N, N] may the token of the row attend to the one of the column?
    answers: Tensor  #: [B]
    needed: Tensor  #: bool [B, L, N, N] receivers in rows

    def batches(self, size: int = BATCH) -> list[dict[str, Tensor]]:
        """As `Reader` takes them."""
        parts = zip(self.x.split(size), self.allowed.split(size), strict=True)
        return [{"x": x, "allowed": allowed} for x, allowed in parts]

    def first(self, count: int) -> Questions:
        return Questions(self.x[:count], self.allowed[:count], self.answers[:count], self.needed[:count])

    def gold(self, number: int, explanation: Explanation) -> Tensor:
        """bool [L, E] the needed messages of one sequence, by the edges of its explanation."""
        source, target = explanation.edge_index
        return self.needed[number][:, target, source]


@dataclass(frozen=True)
class Task:
    """How questions are drawn, and the size of the model that learns to answer them."""

    draw: Callable[[int, int], Questions]  #: so many, from a seed
    inputs: int
    outputs: int
    layers: int
    steps: int  #: of training


def _among(real: Tensor) -> Tensor:
    """[B, N, N] all tokens of a sequence may attend to each other; padding sees itself, for it must see something."""
    return (real[:, None, :] & real[:, :, None]) | torch.eye(real.shape[1], dtype=torch.bool)


def recall(count: int, seed: int) -> Questions:
    rng = torch.Generator().manual_seed(seed)
    pairs = torch.randint(FEWEST, PAIRS + 1, (count,), generator=rng)
    keys = torch.rand(count, KEYS, generator=rng).argsort(1)[:, :PAIRS]  # no two alike
    values = torch.randint(VALUES, (count, PAIRS), generator=rng)
    asked = (torch.rand(count, generator=rng) * pairs).long()
    row = torch.arange(count)
    x = torch.zeros(count, 1 + PAIRS, 2 * KEYS + VALUES)
    x[:, 1:] = torch.cat([F.one_hot(keys, KEYS), torch.zeros(count, PAIRS, KEYS), F.one_hot(values, VALUES)], 2)
    x[row, 0, KEYS + keys[row, asked]] = 1
    real = torch.arange(1 + PAIRS) <= pairs[:, None]
    needed = torch.zeros(count, 1, 1 + PAIRS, 1 + PAIRS, dtype=torch.bool)
    needed[row, 0, 0, 1 + asked] = True
    return Questions(x * real[..., None], _among(real), values[row, asked], needed)


def star(count: int, seed: int) -> Questions:
    rng = torch.Generator().manual_seed(seed)
    leaves = torch.randint(FEWEST, LEAVES + 1, (count,), generator=rng)
    more, less = (colour[:, None] for colour in distinct_pair(count, COLOURS, rng))
    colour = coloured(more.expand(-1, LEAVES), less.expand(-1, LEAVES), COLOURS, 0.5, rng)
    x = torch.zeros(count, 1 + LEAVES, 3 * COLOURS)
    x[:, 1:, :COLOURS] = F.one_hot(colour, COLOURS)
    x[:, 0, COLOURS:] = torch.cat([F.one_hot(part[:, 0], COLOURS) for part in (more, less)], 1)
    real = torch.arange(1 + LEAVES) <= leaves[:, None]
    is_more, is_less = real[:, 1:] & (colour == more), real[:, 1:] & (colour == less)
    needed = torch.zeros(count, 1, 1 + LEAVES, 1 + LEAVES, dtype=torch.bool)
    needed[:, 0, 0, 1:] = is_more | is_less
    return Questions(x * real[..., None], _among(real), (is_more.sum(1) > is_less.sum(1)).long(), needed)


def tree(count: int, seed: int) -> Questions:
    graphs = relay.generate(count, seed=seed, batch_size=count, config=SMALL_TREES)[0]
    x, real = to_dense_batch(graphs.x, graphs.batch)
    size = real.shape[1]
    source, target = graphs.edge_index
    graph = graphs.batch[source]
    first = graphs.ptr[graph]
    allowed = torch.eye(size, dtype=torch.bool).repeat(count, 1, 1)
    allowed[graph, target - first, source - first] = True
    needed = torch.zeros(count, 2, size, size, dtype=torch.bool)
    needed[graph, :, target - first, source - first] = graphs.gold
    return Questions(x, allowed, graphs.y, needed)


TASKS = {
    "recall": Task(recall, 2 * KEYS + VALUES, VALUES, layers=1, steps=6000),
    "star": Task(star, 3 * COLOURS, 2, layers=1, steps=16_000),
    "relay": Task(tree, SMALL_TREES.inputs, 2, layers=2, steps=16_000),
}


class Block(nn.Module):
    """Attention with one head, and a hidden layer, each behind a normalisation and beside a residual connection."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 1, batch_first=True)
        self.mlp = mlp(width, hidden, width)

    def forward(self, states: Tensor, forbidden: Tensor) -> Tensor:
        normal = self.first(states)
        states = states + self.attention(normal, normal, normal, attn_mask=forbidden, need_weights=False)[0]
        return states + self.mlp(self.second(states))


class Reader(nn.Module):
    """A small transformer without positions, read at the first token."""

    def __init__(self, task: Task, width: int = 32, hidden: int = 64) -> None:
        super().__init__()
        self.embed = nn.Linear(task.inputs, width)
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(task.layers))
        self.out = nn.Sequential(nn.LayerNorm(width), mlp(width, hidden, task.outputs))

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        """Logits ``[B, outputs]``."""
        states = self.embed(x)
        for block in self.blocks:
            states = block(states, ~allowed)
        return self.out(states[:, 0])


#: Fresh questions are drawn so many batches at a time, each of twice the size of those that gates are fitted on.
AT_ONCE = 100


def train(task: Task, seed: int, *, steps: int | None = None, progress: bool = False) -> tuple[Reader, float]:
    """A trained model in eval mode, and its accuracy on 5,000 fresh questions."""
    steps = task.steps if steps is None else steps
    model = build(lambda: Reader(task), seed)
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, steps)
    for turn in through(range(-(-steps // AT_ONCE)), "training, 100 steps at a time", enabled=progress):
        drawn = task.draw(2 * BATCH * min(AT_ONCE, steps - turn * AT_ONCE), (seed + 1) * 1_000_000 + turn)
        for batch, answers in zip(drawn.batches(2 * BATCH), drawn.answers.split(2 * BATCH), strict=True):
            optimiser.zero_grad()
            F.cross_entropy(model(**batch), answers).backward()
            optimiser.step()
            schedule.step()
    model.eval()
    return model, accuracy(model, task.draw(5000, (seed + 1) * 1_000_000 - 1))


@torch.no_grad()
def accuracy(model: nn.Module, questions: Questions) -> float:
    output = model(x=questions.x, allowed=questions.allowed)
    return (output.argmax(1) == questions.answers).double().mean().item()
