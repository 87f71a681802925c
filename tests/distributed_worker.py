"""What the two processes of `test_distributed` do, one job after the other, their results to a folder of the test's."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

sys.path.insert(0, str(Path(__file__).parent))
from graphmask import GraphMask, GraphMaskError, files
from graphmask import team as distributed
from graphmask.fitting import training
from graphmask.gates import hard_concrete
from reference import toy

EPOCHS, BATCHES, SIZE = 4, 11, 6
TEST = toy.loader(5, 4, seed=9)


def graphs() -> list[Any]:
    return [toy.graph(number, nodes=5 + number % 4, edges=8 + number % 5) for number in range(BATCHES * SIZE)]


def loader(size: int = SIZE) -> list[Batch]:
    """The last one of twice the size is half as large as the others."""
    found = graphs()
    return [Batch.from_data_list(found[at : at + size]) for at in range(0, len(found), size)]


class Shuffled:
    """Another order every epoch, drawn batch by batch from the global random state."""

    def __init__(self, batches: list[Batch], die_at: int | None = None) -> None:
        self.batches, self.die_at, self.given = batches, die_at, 0

    def __iter__(self) -> Iterator[Batch]:
        left = list(self.batches)
        while left:
            self.given += 1
            if self.given == self.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield left.pop(int(torch.randint(len(left), ())))


def in_double(model: torch.nn.Module, batch: Batch) -> Tensor:
    return model(batch.x.double(), batch.edge_index, batch.batch)


def exact(recipe: str = "concave") -> GraphMask:
    """All in double precision: nothing but the order of sums can differ. Call it with that as the default."""
    return GraphMask(toy.Toy(), forward=in_double, divergence="kl", tolerance=0.05, seed=3, recipe=recipe)


@contextlib.contextmanager
def noiseless() -> Iterator[None]:
    """Gates without their noise, which is drawn batch by batch: no two divisions of the data draw alike."""
    noisy = hard_concrete.noisy
    hard_concrete.noisy = lambda location, scale=1.0, generator=None: torch.sigmoid(location / hard_concrete.WIDTH)
    try:
        yield
    finally:
        hard_concrete.noisy = noisy


def fitted(recipe: str, batches: Any, accumulate: int = 1) -> dict[str, Any]:
    """A fit in double precision, and what it says of the test graphs (this process's share of them)."""
    torch.set_default_dtype(torch.double)
    try:
        explainer = exact(recipe)
        with noiseless():
            history = explainer.fit(batches, TEST, epochs=EPOCHS, progress=False, accumulate=accumulate)
        found = list(explainer.explain_all(TEST, allow_infeasible=True))
    finally:
        torch.set_default_dtype(torch.float)
    assert explainer.probe is not None
    return {
        "state": dict(explainer.probe.state_dict()),
        "kept": [e.kept for e in found],
        "scores": [e.scores for e in found],
        "divergence": [e.divergence for e in found],
        "multipliers": [epoch.multiplier for epoch in history.epochs],
        "verdicts": [(e.verdict.divergence, *e.verdict.retained) for e in history.epochs],
        "feasible": history.feasible,
    }


def checkpointed(path: Path, die_at: int | None = None) -> dict[str, Tensor]:
    """Plain float, dropout, shuffled, the paper's samples: everything random that there is."""
    explainer = GraphMask(toy.Toy(), divergence="kl", tolerance=0.05, seed=3, recipe="paper")
    explainer.fit(Shuffled(loader(), die_at), loader()[:3], epochs=EPOCHS, checkpoint=path, progress=False)
    assert explainer.probe is not None
    return dict(explainer.probe.state_dict())


def complaint(call: Any) -> str:
    try:
        call()
    except GraphMaskError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def everything(folder: Path, team: distributed.Team) -> None:
    result: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    result["concave"] = fitted("concave", loader())
    result["one each"] = fitted("concave", loader()[:1])  # a process without any batch
    for name in ("concave", "one each"):
        for key in ("state", "kept", "scores"):
            value = result[name].pop(key)
            named = value.items() if isinstance(value, dict) else enumerate(value)
            tensors |= {f"{name}/{key}/{at}": tensor.contiguous() for at, tensor in named}

    # Resumed from what the killed run left, and never killed.
    for name, path in (("resumed", folder / "killed"), ("whole", folder / "whole")):
        tensors |= {f"{name}/{key}": value for key, value in checkpointed(path).items()}

    # bf16, by an Accelerator of the user's own.
    from accelerate import Accelerator

    explainer = GraphMask(toy.Toy(), divergence="kl", tolerance=0.05, seed=3)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    explainer.fit(loader(), epochs=1, progress=False, accelerator=accelerator)
    found = list(explainer.explain_all(TEST, allow_infeasible=True))
    result["precision"] = [explainer.precision, *{e.precision for e in found}]
    result["explained"] = len(found)
    result["in order"] = [e.divergence for e in distributed.in_order(team, found, [4] * 5)]
    store = explainer.explain_all(TEST, out=folder / "store", allow_infeasible=True, progress=False)
    result["store"] = [len(store), [e.divergence for e in store], store.complete]

    # What processes do not agree on.
    other = toy.Toy()
    with torch.no_grad():
        other.first.weight[0, 0] = 1.0 + team.rank
    result["complaints"] = [
        complaint(lambda: GraphMask(toy.Toy(), seed=team.rank).fit(loader(), progress=False)),
        complaint(lambda: GraphMask(other).fit(loader(), progress=False)),
        complaint(lambda: GraphMask(toy.Toy()).fit(loader()[: 4 + team.rank], progress=False)),
        complaint(lambda: GraphMask(toy.Toy()).fit(loader()[team.rank :: 2][:5], epochs=1, progress=False)),
        complaint(lambda: checkpointed(folder / f"whole{team.rank or ''}")),
    ]
    # One process meets NaN: all hear of it.
    bad = loader()[:4]
    forward = lambda model, batch: model(batch.x, batch.edge_index, batch.batch) / (batch.num_graphs != 3)  # noqa: E731
    nan = GraphMask(toy.Toy(), forward=forward, divergence="kl")
    result["complaints"].append(
        complaint(lambda: nan.fit([*bad[:3], Batch.from_data_list(graphs()[:3])], bad, epochs=1, progress=False))
    )
    files.write(folder / f"rank{team.rank}", "explanation", tensors, result)


def command(folder: Path) -> None:
    """`graphmask run star`, with an untrained model and few graphs."""
    from graphmask import cli
    from graphmask.experiments import runner, star_graphs

    runner.FIT, runner.VALIDATION, runner.TEST = 640, 100, 130
    training.RECIPES["noisy"] = training.Recipe(steps=10)
    runner.train_model = lambda name, seed, progress: (star_graphs.make(seed=seed).eval(), {"accuracy": 0.5})  # type: ignore[assignment]
    name = f"run{distributed.launched()}"
    sys.argv = ["graphmask", "run", "star", "--out", str(folder / name), "--json", str(folder / f"{name}.json")]
    if distributed.launched() == 1:
        sys.argv += ["--accumulate", "2"]
    with contextlib.suppress(SystemExit):
        cli.main()


def killed(folder: Path) -> None:
    """A fit whose second process is killed in the third epoch, which ends the first with an error."""
    os.environ["MASTER_PORT"] = os.environ["PORT_OF_THE_KILLED"]
    with (folder / f"killed{os.environ['RANK']}.err").open("w") as errors:
        os.dup2(errors.fileno(), 2)
    # Counted by batches: one pass to check them, the first steps, two epochs, and into the third.
    die = distributed.team().rank == 1
    checkpointed(folder / "killed", die_at=BATCHES + 8 + 2 * BATCHES + 4 if die else None)


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    training.STEPS_PER_VERDICT = 12
    rank = os.environ["RANK"]
    child = os.fork()  # the imports take longer than either job
    if child == 0:
        return killed(folder)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    (folder / f"killed{rank}.code").write_text(str(code))
    if rank == "0":
        shutil.copy(folder / "killed", folder / "as it was left")
    everything(folder, distributed.team())
    command(folder)


if __name__ == "__main__":
    main()
