"""Token sequences with known answers: each against a literal reading of its sequence, and a model that learns one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from graphmask.experiments import relay
from graphmask.experiments.bench import gold, sequences
from graphmask.experiments.bench.sequences import check, sufficient
from graphmask.experiments.sequences import COLOURS, KEYS, TASKS, Reader, train
from graphmask.explainer import GraphMask
from graphmask.fitting.recipe import Recipe
from graphmask.methods.random_choice import RandomChoice


def ones(row: Tensor) -> list[int]:
    return row.nonzero().view(-1).tolist()


def read_recall(x: Tensor) -> tuple[int, list[set[tuple[int, int]]]]:
    (asked,) = ones(x[0, KEYS : 2 * KEYS])
    (found,) = (at for at in range(1, len(x)) if ones(x[at, :KEYS]) == [asked])
    (value,) = ones(x[found, 2 * KEYS :])
    return value, [{(0, found)}]


def read_star(x: Tensor) -> tuple[int, list[set[tuple[int, int]]]]:
    more, less = ones(x[0, COLOURS:])
    colours = {at: ones(x[at, :COLOURS]) for at in range(1, len(x))}
    found = {which: {(0, at) for at in colours if colours[at] == [which]} for which in (more, less - COLOURS)}
    return int(len(found[more]) > len(found[less - COLOURS])), [found[more] | found[less - COLOURS]]


@pytest.mark.parametrize(("name", "read"), [("recall", read_recall), ("star", read_star)])
def test_answers_and_gold_are_what_the_sequence_says(name: str, read) -> None:  # type: ignore[no-untyped-def]
    drawn = TASKS[name].draw(50, 3)
    assert drawn.x.shape[2] == TASKS[name].inputs
    for x, allowed, answer, needed in zip(drawn.x, drawn.allowed, drawn.answers, drawn.needed, strict=True):
        expected, gold = read(x)
        assert int(answer) == expected
        assert [set(map(tuple, layer.nonzero().tolist())) for layer in needed] == gold
        real = x.any(1)
        tokens = range(len(x))
        assert allowed.tolist() == [[a == b or bool(real[a] and real[b]) for b in tokens] for a in tokens]


def test_relay_is_the_task_on_graphs() -> None:
    task = TASKS["relay"]
    drawn = task.draw(40, 5)
    graphs = relay.generate(40, seed=5, batch_size=1, config=relay.RelayConfig(max_mids=4, max_leaves=3))
    for number, graph in enumerate(graphs):
        nodes = graph.num_nodes
        assert torch.equal(drawn.x[number, :nodes], graph.x)
        assert not drawn.x[number, nodes:].any()
        assert int(drawn.answers[number]) == int(graph.y)
        edges = graph.edge_index.flip(0).t().tolist()
        may = drawn.allowed[number].nonzero().tolist()
        assert sorted(pair for pair in may if pair[0] != pair[1]) == sorted(edges)
        for layer in range(2):
            gold = [edge for edge, needed in zip(edges, graph.gold[:, layer].tolist(), strict=True) if needed]
            assert sorted(drawn.needed[number, layer].nonzero().tolist()) == sorted(gold)


def test_draws_follow_from_the_seed_and_differ() -> None:
    for task in TASKS.values():
        one, same, other = (task.draw(20, seed) for seed in (1, 1, 2))
        assert torch.equal(one.x, same.x)
        assert one.x.shape != other.x.shape or not torch.equal(one.x, other.x)


def test_a_transformer_learns_to_recall_and_default_settings_find_what_it_attends_to() -> None:
    task = TASKS["recall"]
    model, accuracy = train(task, 0, steps=2000)
    assert accuracy > 0.99
    test = task.draw(200, 8)
    explainer = GraphMask(model)
    explainer.fit(task.draw(4000, 7).batches(), progress=False)
    found = list(explainer.explain_all(test.batches(), repair=False))
    kept = torch.stack([explanation.kept.sum() for explanation in found])
    both = torch.stack([(explanation.kept & test.gold(n, explanation)).sum() for n, explanation in enumerate(found)])
    assert both.sum() / kept.sum() > 0.9
    assert both.sum() / 200 > 0.99
    shown = check(model, found[:50], test)
    assert shown["sufficient"]["flips"] <= 0.04
    assert shown["necessary"]["median_margin_change"][0] > 1
    alone = sufficient(explainer, task.draw(1024, 9), test)
    assert alone["flips"] <= 0.02
    assert alone["divergence"] < 0.03
    # What a fit learned to stand in for little is no measure of the model: here it must be learned first.
    assert explainer.probe is not None
    with torch.no_grad():
        for baseline in explainer.probe.baselines:
            baseline.add_(5.0)
    assert check(model, found[:50], test) == shown  # which goes by the explanations' own baselines
    assert sufficient(explainer, task.draw(1024, 9), test)["divergence"] < 0.05


def test_gold_of_a_batch_is_that_of_its_explanations() -> None:
    task = TASKS["relay"]
    drawn = task.draw(6, 2)
    method = RandomChoice(Reader(task).eval())
    (batch,) = drawn.batches()
    with method.subject.frozen():
        found = sequences._gold_of(method.case(batch), drawn.needed)
    one_by_one = [drawn.gold(number, each) for number, each in enumerate(method.explain_all([batch], repair=False))]
    assert torch.equal(found, torch.cat(one_by_one, 1))
    assert int(found.sum()) == int(drawn.needed.sum())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_run_has_the_figures_of_every_site(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in {"FIT": 128, "VALIDATION": 64, "TEST": 32, "TRIED": 3, "STEPS": 4}.items():
        monkeypatch.setattr(sequences, name, count)
    monkeypatch.setitem(TASKS, "relay", replace(TASKS["relay"], steps=20))
    short = Recipe(steps=4)
    monkeypatch.setattr(sequences, "GraphMask", lambda model, seed: GraphMask(model, seed=seed, recipe=short))
    found = sequences.measure(["relay"], [3])
    (run,) = found["tasks"]["relay"]
    assert run["seed"] == 3
    assert [line["site"] for line in run["gold"]["per_site"]] == ["blocks.0.attention", "blocks.1.attention"]
    needed = TASKS["relay"].draw(32, -1 - (4 * 3 + 2)).needed.sum((0, 2, 3)).tolist()
    for line, count, share in zip(run["gold"]["per_site"], needed, run["retained_per_site"], strict=True):
        # Recall is the share of the needed messages that are kept: all of them, where everything is kept.
        assert abs(line["recall"] / 100 * count - round(line["recall"] / 100 * count)) < 1e-6
        assert share < 1 or line["recall"] == 100
    assert found["summary"]["relay"]["seeds"] == 1
    header, table = gold.rows([run])
    assert [len(row) for row in table] == [len(header)]
    assert len(run["gold_check"]["necessary"]["smallest_margin_change"]) == 2
