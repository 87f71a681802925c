"""Two processes are one: the same gates, the same explanations, the same error when one of them dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, RGCNConv, global_add_pool

import distributed_worker as worker
from graphmask import GraphMask, GraphMaskError, files, load, masked, team
from graphmask.explanation import Explanation
from graphmask.fitting import training
from graphmask.fitting.recipe import PAPER, Recipe
from graphmask.fitting.step import take_step
from graphmask.gates import hard_concrete
from graphmask.ops.moments import Moments
from graphmask.tapping.restore import freeze
from graphmask.team import ALONE, Team, groups, shares
from reference import toy

WORKER = Path(worker.__file__)


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        found = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def launched(folder: Path) -> list[tuple[int, str, str]]:
    """Two processes as a launcher would start them: return code, output and errors of each."""
    port, other = free_ports(2)
    processes = []
    for rank in range(2):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "ACCELERATE_USE_CPU": "true"}
        environment |= {name: str(value) for name, value in place.items()} | {"PORT_OF_THE_KILLED": str(other)}
        processes.append(
            subprocess.Popen(
                [sys.executable, str(WORKER), str(folder)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        told = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *both) for process, both in zip(processes, told, strict=True)]


@pytest.fixture(scope="module")
def killed(launched: Any, folder: Path) -> tuple[list[tuple[int, str]], dict[str, Any]]:
    """A run whose second worker is killed in the third epoch, and what its checkpoint says then.

    Return code and errors of each; the workers are children of the two processes, and end before all else is done.
    """
    found = [(int((folder / f"killed{n}.code").read_text()), (folder / f"killed{n}.err").read_text()) for n in range(2)]
    return found, files.read(folder / "as it was left", "checkpoint")[1]


@pytest.fixture(scope="module")
def two(launched: Any, folder: Path) -> list[tuple[dict[str, Tensor], dict[str, Any], str]]:
    """Of each process: tensors, figures, and what it printed."""
    assert [code for code, _, _ in launched] == [0, 0], launched
    return [(*files.read(folder / f"rank{rank}", "explanation"), launched[rank][1]) for rank in range(2)]


@pytest.fixture(autouse=True)
def _short_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "STEPS_PER_VERDICT", 12)


@cache
def whole(name: str) -> dict[str, Any]:
    """In one process, on batches of twice the size."""
    return worker.fitted("concave", worker.loader()[:1] if name == "one each" else worker.loader(2 * worker.SIZE))


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


# Two processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["concave", "one each"])
def test_two_processes_with_the_same_global_batch_are_one(name: str, two: Any) -> None:
    """In double precision, to show that nothing but rounding differs; the last step is one process's alone."""
    one = whole(name)
    for tensors, figures, _ in two:
        state = part(tensors, f"{name}/state/")
        assert state.keys() == one["state"].keys()
        for key, value in one["state"].items():
            torch.testing.assert_close(state[key], value, rtol=0, atol=1e-9)
        assert figures[name]["feasible"] == one["feasible"]
        assert figures[name]["multipliers"] == pytest.approx(one["multipliers"], abs=1e-9)
        for mine, theirs in zip(figures[name]["verdicts"], one["verdicts"], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-9)
    # The same explanations, of which each process has its share.
    order = [number for batch in range(5) for number in range(4 * batch, 4 * batch + 4)]
    share = [[number for number in order if number // 4 % 2 == rank] for rank in range(2)]
    assert [len(numbers) for numbers in share] == [12, 8]
    for (tensors, figures, _), numbers in zip(two, share, strict=True):
        assert len(figures[name]["divergence"]) == len(numbers)
        for at, number in enumerate(numbers):
            assert torch.equal(tensors[f"{name}/kept/{at}"], one["kept"][number])
            torch.testing.assert_close(tensors[f"{name}/scores/{at}"], one["scores"][number], rtol=0, atol=1e-6)
            assert figures[name]["divergence"][at] == pytest.approx(one["divergence"][number], abs=1e-9)


def test_processes_end_with_the_same_bits(two: Any) -> None:
    (first, figures, _), (second, others, _) = two
    for prefix in ("concave/state/", "one each/state/", "resumed/"):
        a, b = part(first, prefix), part(second, prefix)
        assert all(torch.equal(a[key], b[key]) for key in a)
    for key in ("multipliers", "verdicts", "feasible"):
        assert figures["concave"][key] == others["concave"][key]


def test_a_killed_worker_ends_the_run_and_the_checkpoint_resumes(killed: Any, two: Any, folder: Path) -> None:
    ((survivor, told), (dead, _)), checkpoint = killed
    assert dead == -signal.SIGKILL
    assert survivor == 1
    last = told.strip().splitlines()[-1]
    assert "WorkerLost: A worker process ended or did not answer in time: process 0 of 2 waited" in last
    assert last.endswith(f"Start the same run again: the checkpoint at {folder / 'killed'} resumes.")
    assert (checkpoint["epoch"], checkpoint["step"]) == (2, 12)
    for tensors, _, _ in two:  # shuffled, with dropout and Hard Concrete samples, and yet
        resumed, whole = part(tensors, "resumed/"), part(tensors, "whole/")
        assert whole
        assert all(torch.equal(resumed[key], value) for key, value in whole.items())


def test_what_processes_do_not_agree_on_is_said_by_all(two: Any) -> None:
    expected = [
        "the same seed in all 2 processes, got 0, 1. Give every process the same model and the whole loader",
        "the same model in all 2 processes",
        "the same number of batches in all 2 processes, got 4, 5.",
        "the same batches, in the same order, in all 2 processes",
        "the same checkpoint in all 2 processes",
        "finite model outputs, got NaN or infinity",
    ]
    for _, figures, _ in two:
        for text, told in zip(expected, figures["complaints"], strict=True):
            assert told.startswith(f"GraphMaskError: Expected {text}")


def test_an_accelerator_of_the_users_own_sets_the_precision(two: Any) -> None:
    for _, figures, _ in two:
        assert figures["precision"] == ["bf16", "bf16"]


def test_every_process_explains_its_share_and_the_store_has_all(two: Any) -> None:
    (_, first, _), (_, second, _) = two
    assert (first["explained"], second["explained"]) == (12, 8)
    assert first["in order"] == second["in order"]
    for figures in (first, second):
        count, divergences, complete = figures["store"]
        assert (count, complete) == (20, True)
        assert divergences == pytest.approx(figures["in order"], abs=1e-9)


def test_the_command_line_is_that_of_one_process(two: Any, tmp_path: Path, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        from graphmask.experiments import runner

        for name in ("FIT", "VALIDATION", "TEST", "train_model"):
            patch.setattr(runner, name, getattr(runner, name))
        patch.setitem(training.RECIPES, "noisy", training.RECIPES["noisy"])
        patch.setattr(sys, "argv", [])
        worker.command(tmp_path)
    one, both = json.loads((tmp_path / "run1.json").read_text()), json.loads((folder / "run2.json").read_text())
    assert (one["processes"], both["processes"]) == (1, 2)
    assert one["batches_per_step"] == both["batches_per_step"] == 2
    for key in ("gold", "fit_steps", "retained", "flips", "faithful", "feasible"):
        assert both[key] == one[key], key
    assert both["divergence"] == pytest.approx(one["divergence"], abs=1e-5)
    assert {path.name for path in (folder / "run2").iterdir()} == {path.name for path in (tmp_path / "run1").iterdir()}
    (_, _, first), (_, _, second) = two
    assert first.count("kept edges against gold") == 1
    assert second == ""


# One process --------------------------------------------------------------------------------------------------


class Layers(nn.Module):
    """Self-loops of the layer's own in the first, one call per relation in the second."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = GCNConv(4, 5), RGCNConv(5, 2, num_relations=2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.second(self.first(x, edge_index).relu(), edge_index, (edge_index[0] + edge_index[1]) % 2)
        return global_add_pool(h, batch)


def trainer(model: nn.Module, batches: list[Any], recipe: Recipe, accumulate: int = 1) -> training.Training:
    explainer = GraphMask(model, forward=worker.in_double, divergence="kl", tolerance=0.05, seed=3, recipe=recipe)
    freeze(model, training=False)
    return explainer.begin(batches, 10, len(batches), ALONE, accumulate)


def cases() -> list[tuple[str, list[list[Data]]]]:
    lonely = Data(x=toy.graph(1).x, edge_index=torch.empty(2, 0, dtype=torch.long))
    some = worker.graphs()
    return [
        ("even", [some[:4], some[4:8]]),
        ("uneven", [some[:1], some[1:9], some[9:11]]),
        ("without edges", [[lonely, lonely], some[:3]]),
    ]


@pytest.mark.parametrize("recipe", [Recipe(), PAPER])
@pytest.mark.parametrize("parts", [pytest.param(parts, id=name) for name, parts in cases()])
@pytest.mark.parametrize("model", [toy.Toy, Layers])
def test_a_joint_step_is_the_step_on_the_union(
    model: type[nn.Module], parts: list[list[Data]], recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_default_dtype(torch.double)
    try:
        union, several = [Batch.from_data_list([*chain(*parts)])], [Batch.from_data_list(one) for one in parts]
        a = trainer(model(), union, recipe)
        b = trainer(model(), several, recipe, accumulate=len(parts))
        for key, value in a.probe.state_dict().items():
            torch.testing.assert_close(b.probe.state_dict()[key], value, rtol=0, atol=1e-12)
        half = PAPER.opened * a.steps / 2  # when the authors' recipe opens the second site
        for turn, step in enumerate((0, 1, half, half + 1, a.steps - 1, a.steps - 1)):
            a.step = b.step = int(step)
            assert a.settling == (turn > 3 and recipe.settle > 0)
            with worker.noiseless():
                monkeypatch.setattr(hard_concrete, "sample", lambda location, _: torch.sigmoid(location))
                divergence, gates = take_step(a, [union[0]])
                same, also = take_step(b, several)
            assert same == pytest.approx(divergence, abs=1e-12)
            assert also == pytest.approx(gates, abs=1e-12)
            assert b.constraint.state() == pytest.approx(a.constraint.state(), abs=1e-12)
            for p, q in zip(a.probe.parameters(), b.probe.parameters(), strict=True):
                assert (p.grad is None) == (q.grad is None)
                torch.testing.assert_close(q, p, rtol=0, atol=1e-11)
    finally:
        torch.set_default_dtype(torch.float)


def test_accumulated_batches_are_one_batch() -> None:
    """From beginning to end: gates and baselines learn, settle, and thresholds are chosen."""
    one, several = whole("concave"), worker.fitted("concave", worker.loader(), accumulate=2)
    for key, value in one["state"].items():
        torch.testing.assert_close(several["state"][key], value, rtol=0, atol=1e-9)
    assert all(torch.equal(a, b) for a, b in zip(one["kept"], several["kept"], strict=True))
    assert several["divergence"] == pytest.approx(one["divergence"], abs=1e-9)


def test_in_single_precision_too() -> None:
    def fit(batches: list[Batch], accumulate: int) -> GraphMask:
        explainer = GraphMask(toy.Toy(), divergence="kl", tolerance=0.05, seed=3)
        with worker.noiseless():
            explainer.fit(batches, epochs=2, progress=False, accumulate=accumulate)
        return explainer

    one, several = fit(worker.loader(2 * worker.SIZE)[:3], 1), fit(worker.loader()[:6], 2)
    for batch in worker.TEST:
        for a, b in zip(*(e.explain_all([batch], allow_infeasible=True) for e in (one, several)), strict=True):
            assert torch.equal(a.kept, b.kept)
            torch.testing.assert_close(b.scores, a.scores, rtol=0, atol=1e-5)


def test_moments_of_parts_are_those_of_the_whole() -> None:
    rows = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double) * 3 + 5
    whole, union = Moments.of(rows), Moments.union([Moments.of(part) for part in rows.split([1, 20, 29])])
    assert union.count == 50
    for name in ("mean", "variance", "deviation"):
        torch.testing.assert_close(getattr(union, name), getattr(whole, name), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("count", "size", "accumulate"), [(7, 2, 1), (7, 2, 2), (3, 4, 1), (8, 2, 4), (5, 1, 1)])
def test_every_batch_is_somebodys_and_steps_are_as_many(count: int, size: int, accumulate: int) -> None:
    found = [list(shares(range(count), Team(rank, size), accumulate)) for rank in range(size)]
    steps = -(-count // (size * accumulate))
    assert [len(theirs) for theirs in found] == [steps] * size
    for number, group in enumerate(groups(range(count), size * accumulate)):
        assert sorted(batch for theirs in found for batch in theirs[number]) == group
        assert [theirs[number] for theirs in found] == [group[rank::size] for rank in range(size)]


def test_loaders_draw_alike_and_models_do_not() -> None:
    drawn = []
    for rank in range(2):
        torch.manual_seed(5)
        mine = [(batch, float(torch.rand(()))) for batch in shares(worker.Shuffled(list(range(6))), Team(rank, 2))]
        drawn.append(mine)
    given = [batch for step in zip(*drawn, strict=True) for batches, _ in step for batch in batches]
    assert sorted(given) == list(range(6))
    torch.manual_seed(5)
    assert given == list(worker.Shuffled(list(range(6))))
    assert not {value for _, value in drawn[0]} & {value for _, value in drawn[1]}


# Precision ----------------------------------------------------------------------------------------------------


def test_bf16_is_used_for_both_runs_and_stated(tmp_path: Path) -> None:
    seen: list[torch.dtype] = []

    def forward(model: toy.Toy, batch: Any) -> Tensor:
        index = batch.batch if batch.batch is not None else torch.zeros(len(batch.x), dtype=torch.long)
        output = model(batch.x, batch.edge_index, index)
        seen.append(output.dtype)
        return output

    model = toy.Toy()
    with torch.no_grad():
        model.first.weight += 0.123
    explainer = GraphMask(model, forward=forward, divergence="kl", tolerance=0.05, seed=3, precision="bf16")
    explainer.fit(worker.loader()[:4], epochs=2, progress=False)
    assert set(seen) == {torch.bfloat16}
    assert explainer.probe is not None
    assert {p.dtype for p in explainer.probe.parameters()} == {torch.float}
    data = toy.graph(3)
    explanation = explainer.explain(data, allow_infeasible=True)
    assert explanation.precision == "bf16"
    assert explanation.masked.dtype == torch.float
    with masked(model, explanation), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(forward(model, data).float(), explanation.masked)
    with torch.autocast("cpu", torch.bfloat16):
        original = forward(model, data).float()
    assert torch.equal(original, explanation.original)
    assert not torch.equal(original, model(data.x, data.edge_index, torch.zeros(len(data.x), dtype=torch.long)))
    # It is part of what is saved.
    explanation.save(tmp_path / "e")
    assert Explanation.load(tmp_path / "e").precision == "bf16"
    explainer.save(tmp_path / "x")
    again = load(tmp_path / "x", model, forward=forward)
    assert torch.equal(again.explain(data, allow_infeasible=True).scores, explanation.scores)
    plain = GraphMask(model, forward=forward, divergence="kl", tolerance=0.05, seed=3)
    explainer.fit(worker.loader()[:2], epochs=1, progress=False, checkpoint=tmp_path / "c")
    with pytest.raises(GraphMaskError, match="found one with another precision"):
        plain.fit(worker.loader()[:2], epochs=1, progress=False, checkpoint=tmp_path / "c")


def test_gates_are_computed_in_full_precision() -> None:
    """Also if the caller is under autocast."""
    explainer = GraphMask(toy.Toy(), divergence="kl", seed=3, recipe=Recipe(steps=2))
    explainer.fit(worker.loader()[:2], epochs=1, progress=False)
    data = toy.graph(3)  # whose messages are small whole numbers: the same in bf16
    with torch.autocast("cpu", torch.bfloat16):
        under = explainer.explain(data, allow_infeasible=True)
    torch.testing.assert_close(under.scores, explainer.explain(data, allow_infeasible=True).scores, rtol=0, atol=1e-6)


# Said in time -------------------------------------------------------------------------------------------------


def test_bad_arguments() -> None:
    with pytest.raises(GraphMaskError, match="Expected at least one batch per step, got accumulate=0"):
        GraphMask(toy.Toy()).fit(worker.loader(), accumulate=0)
    with pytest.raises(GraphMaskError, match="Expected precision 'bf16', or none, got 'fp16'"):
        GraphMask(toy.Toy(), precision="fp16")


def test_without_accelerate_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(GraphMaskError, match=r"Expected accelerate to run in 2 processes, .* graphmask\[distributed\]"):
        GraphMask(toy.Toy()).fit(worker.loader())
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert team.team() is ALONE


def test_accelerate_must_know_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    class One:
        num_processes, process_index, device, mixed_precision = 1, 0, torch.device("cpu"), "no"

    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        GraphMaskError, match=r"the 2 processes that were launched, it knows of 1.*Accelerator\(cpu=True\)"
    ):
        team.team(One())
    monkeypatch.delenv("WORLD_SIZE")
    assert team.team(One()) is ALONE


def test_other_commands_are_refused_in_several_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from graphmask import cli

    monkeypatch.setenv("WORLD_SIZE", "2")
    for command in (["demo"], ["run", "qa"]):
        monkeypatch.setattr(sys, "argv", ["graphmask", *command])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 2
        assert "in several processes" in capsys.readouterr().err


def test_one_process_where_several_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    assert team.team() is ALONE
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.warns(UserWarning, match="started one process"):
        assert team.team() is ALONE


def test_what_accelerate_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert team.precision() is None
    for told, expected in (("no", None), ("", None), ("bf16", "bf16")):
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", told)
        assert team.precision() == expected
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    with pytest.raises(GraphMaskError, match="got 'fp16'"):
        GraphMask(toy.Toy()).fit(worker.loader())
