"""What is split off the loader to judge on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCN

from graphmask import GraphMask
from graphmask.fitting import held_out
from graphmask.fitting.recipe import Recipe


def graphs(count: int, first: int = 0) -> list[Data]:
    edge_index = torch.tensor([[0, 1], [1, 0]])
    return [Data(x=torch.full((2, 1), float(first + n)), edge_index=edge_index) for n in range(count)]


def numbers(batches: Any) -> list[int]:
    """Which graphs these batches hold."""
    return [int(value) for batch in batches for value in batch.x[:, 0][::2].tolist()]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_is_divided_by_examples(shuffle: bool) -> None:
    loader = DataLoader(graphs(100), batch_size=8, shuffle=shuffle, drop_last=True)
    fitted, judged = held_out.divided(loader, None)
    assert judged is not None
    assert sorted(numbers(judged)) == numbers(judged)
    assert len(numbers(judged)) == 15
    left = numbers(fitted)
    assert not set(left) & set(numbers(judged))
    assert len(left) == 80  # of 85, in whole batches
    assert (left == sorted(left)) is not shuffle
    if shuffle:
        assert numbers(fitted) != left  # drawn anew
    assert numbers(judged) == numbers(held_out.divided(loader, None)[1])


def test_a_list_is_divided_by_batches() -> None:
    batches = [Batch.from_data_list(graphs(10, 10 * n)) for n in range(40)]
    fitted, judged = held_out.divided(batches, None)
    assert judged is not None
    assert len(numbers(judged)) == 60  # 15 % of 40 batches
    assert sorted(numbers(fitted) + numbers(judged)) == list(range(400))
    assert numbers(fitted) == sorted(numbers(fitted))


def test_batches_of_one_step_stay_together() -> None:
    batches = [Batch.from_data_list(graphs(10, 10 * n)) for n in range(40)]
    fitted, judged = held_out.divided(batches, None, together=2)
    assert judged is not None
    assert len(numbers(judged)) == 60  # 15 % of 20 pairs
    assert all(number % 20 == place % 20 for place, number in enumerate(numbers(judged)))
    assert sorted(numbers(fitted) + numbers(judged)) == list(range(400))
    assert held_out.divided(batches, None, together=3) == (batches, None)


def test_no_more_is_held_out_than_is_missing() -> None:
    batches = [Batch.from_data_list(graphs(10, 10 * n)) for n in range(40)]
    given = [Batch.from_data_list(graphs(85, 1000)), Batch.from_data_list(graphs(85, 2000))]
    fitted, judged = held_out.divided(batches, given)
    assert judged is not None
    assert len(numbers(judged)) == 30
    assert set(numbers(judged)) <= set(range(400))
    assert len(numbers(fitted)) == 370


def test_sentences_of_a_tokenizer_are_examples() -> None:
    """A batch of them once counted as one, and a loader lost examples beside hundreds of validation sentences."""
    batches = [Batch.from_data_list(graphs(10, 10 * n)) for n in range(40)]
    sentences = {"input_ids": torch.zeros(100, 7, dtype=torch.long), "attention_mask": torch.ones(100, 7)}
    assert held_out.examples(sentences) == 100
    assert held_out.divided(batches, [sentences, sentences]) == (batches, None)
    assert held_out.divided(batches, [sentences])[1] is not None


def test_what_is_enough_or_cannot_be_divided_stays_whole() -> None:
    batches = [Batch.from_data_list(graphs(10, 10 * n)) for n in range(40)]
    enough = [Batch.from_data_list(graphs(200))]
    of_nodes = [Data(x=torch.ones(300, 1), y=torch.zeros(300), edge_index=torch.zeros(2, 0, dtype=torch.long))]
    for given in (enough, of_nodes):
        assert held_out.divided(batches, given) == (batches, None)
    few = batches[:19]
    assert held_out.divided(few, None) == (few, None)
    small = DataLoader(graphs(19), batch_size=2)
    assert held_out.divided(small, None) == (small, None)

    class Stream:
        def __iter__(self) -> Any:
            return iter(batches)

    stream = Stream()
    assert held_out.divided(stream, None) == (stream, None)
    sampler = BatchSampler(RandomSampler(range(100), num_samples=7), 3, False)
    special = DataLoader(graphs(100), batch_sampler=sampler)
    assert held_out.divided(special, None) == (special, None)
    plain = DataLoader(graphs(100), sampler=SequentialSampler(range(100)), batch_size=4)
    assert held_out.divided(plain, None)[1] is not None


def test_a_fit_with_the_default_forward_holds_examples_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders are wrapped for it, and wrapped ones once stayed whole: gates were judged on what they had learnt."""
    seen: list[tuple[int, int | None]] = []

    def begin(self: GraphMask, loader: Any, epochs: int | None, count: int, *args: Any) -> Any:
        seen.append((sum(1 for _ in loader), count))
        return original(self, loader, epochs, count, *args)

    original = GraphMask.begin
    monkeypatch.setattr(GraphMask, "begin", begin)
    torch.manual_seed(0)
    model = GCN(4, 4, num_layers=2, out_channels=2).eval()
    some = [Data(x=torch.randn(6, 4), edge_index=torch.randint(6, (2, 12))) for _ in range(40)]
    pairs = [(graph, 0) for graph in some]
    for loader in (some, DataLoader(some, batch_size=1), pairs):
        GraphMask(model, recipe=Recipe(steps=1)).fit(loader, epochs=1, progress=False)
    assert seen == [(34, 34)] * 3  # 15 % are held out
