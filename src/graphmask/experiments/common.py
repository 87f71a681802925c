"""What the synthetic tasks share: drawing colours, cutting batches, finding root nodes, training."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch

from graphmask.bars import through

Model = TypeVar("Model", bound=nn.Module)


def distinct_pair(count: int, colours: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """`count` queries (x, y), uniform over the ordered pairs of `colours` with x != y; two `[count]`."""
    x = torch.randint(colours, (count,), generator=rng)
    shift = torch.randint(1, colours, (count,), generator=rng)
    return x, (x + shift) % colours


def coloured(x: Tensor, y: Tensor, colours: int, queried: float, rng: torch.Generator) -> Tensor:
    """One colour per row: x or y with probability `queried / 2` each, else uniform over the other colours."""
    size = x.shape
    asked = torch.where(torch.rand(size, generator=rng) < 0.5, x, y)
    # Uniform over colours - 2 values, then step over the two that are taken, the lower one first.
    other = torch.randint(colours - 2, size, generator=rng)
    other = other + (other >= torch.minimum(x, y)).long()
    other = other + (other >= torch.maximum(x, y)).long()
    return torch.where(torch.rand(size, generator=rng) < queried, asked, other)


def starts(sizes: Tensor) -> Tensor:
    """Offsets of consecutive groups: `[G]` sizes -> `[G + 1]`, first 0, last the total."""
    return F.pad(sizes.cumsum(0), (1, 0))


def batches(
    batch_size: int,
    *,
    nodes: Tensor,
    edges: Tensor,
    x: Tensor,
    edge_index: Tensor,
    edge_type: Tensor,
    y: Tensor,
    gold: Tensor,
) -> list[Batch]:
    """Cut one big disjoint union into batches of `batch_size` graphs.

    `nodes` and `edges` `[G]` are the sizes of the graphs; nodes and edges are sorted by graph and `edge_index`
    numbers the nodes of the whole union.
    """
    graphs = len(nodes)
    node_ptr, edge_ptr = starts(nodes), starts(edges)
    owner = torch.arange(graphs).repeat_interleave(nodes)
    result = []
    for low in range(0, graphs, batch_size):
        high = min(low + batch_size, graphs)
        (n0, n1), (e0, e1) = node_ptr[[low, high]].tolist(), edge_ptr[[low, high]].tolist()
        result.append(
            Batch(
                x=x[n0:n1],
                edge_index=edge_index[:, e0:e1] - n0,
                edge_type=edge_type[e0:e1],
                batch=owner[n0:n1] - low,
                ptr=node_ptr[low : high + 1] - n0,
                y=y[low:high],
                gold=gold[e0:e1],
            )
        )
    return result


def singles(batch: Batch) -> Iterator[Batch]:
    """Every graph of a batch as a batch of one."""
    edges = torch.bincount(batch.batch[batch.edge_index[0]], minlength=batch.num_graphs)
    edge_ptr = starts(edges).tolist()
    for graph, (n0, n1) in enumerate(pairwise(batch.ptr.tolist())):
        e0, e1 = edge_ptr[graph : graph + 2]
        yield Batch(
            x=batch.x[n0:n1],
            edge_index=batch.edge_index[:, e0:e1] - n0,
            edge_type=batch.edge_type[e0:e1],
            batch=torch.zeros(n1 - n0, dtype=torch.long),
            ptr=torch.tensor([0, n1 - n0]),
            y=batch.y[graph : graph + 1],
            gold=batch.gold[e0:e1],
        )


def first_nodes(batch: Tensor) -> Tensor:
    """Index of the first node of every graph: `[N]` graph numbers -> `[B]`."""
    index = torch.arange(len(batch), device=batch.device)
    first = index.new_full((int(batch.max()) + 1,), len(batch))
    return first.scatter_reduce(0, batch, index, "amin")


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """One hidden layer with ReLU."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


@torch.no_grad()
def margins(model: nn.Module, data: Sequence[Batch]) -> Tensor:
    """Logit of the right class minus logit of the wrong one, per graph; negative where the model errs."""
    result = []
    for batch in data:
        logits = model(batch.x, batch.edge_index, batch.edge_type, batch.batch)
        result.append((logits[:, 1] - logits[:, 0]) * (2 * batch.y - 1))
    return torch.cat(result)


def accuracy(model: nn.Module, data: Sequence[Batch]) -> float:
    """Share of graphs the model classifies rightly."""
    return (margins(model, data) > 0).double().mean().item()


def build(make: Callable[[], Model], seed: int) -> Model:
    """`make()` with parameters drawn from `seed`; torch's global random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def trained(
    model: Model,
    sample: Callable[..., list[Batch]],
    *,
    seed: int,
    graphs: int,
    lr: float,
    target: float,
    weight_decay: float = 0.0,
    chunk: int = 10_000,
    margin: float = 3.0,
    held_out: int = 5_000,
    progress: bool = False,
) -> tuple[Model, float]:
    """The model, trained on up to `graphs` fresh graphs, `chunk` at a time; and its accuracy on `held_out` new ones.

    `sample(count, seed=seed)` draws batches. The learning rate falls linearly with every chunk. Training ends early
    once a share `target` of the validation graphs is right by at least `margin`: being right by a hair on the
    validation set would not yet promise to be right on every other graph.
    """
    rng = torch.Generator().manual_seed(seed)

    def fresh(count: int) -> list[Batch]:
        return sample(count, seed=int(torch.randint(2**62, (), generator=rng)))

    validation, test = fresh(held_out), fresh(held_out)
    chunks = -(-graphs // chunk)
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, total_iters=chunks)
    model.train()
    for _ in through(range(chunks), f"training, {chunk:,} graphs at a time", enabled=progress):
        for batch in fresh(chunk):
            optimiser.zero_grad()
            logits = model(batch.x, batch.edge_index, batch.edge_type, batch.batch)
            F.cross_entropy(logits, batch.y).backward()
            optimiser.step()
        schedule.step()
        if (margins(model, validation) >= margin).double().mean().item() >= target:
            break
    model.eval()
    return model, accuracy(model, test)
