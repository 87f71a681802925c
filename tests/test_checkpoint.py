"""A fit that is killed and resumed is the fit that was never killed, bit for bit."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphmask import GraphMask, GraphMaskError, explainer, files, load
from graphmask.fitting import checkpoint, training
from graphmask.fitting.calibration import Candidate, Verdict
from graphmask.fitting.step import take_step
from graphmask.fitting.training import Epoch, History
from reference import fresh, toy

EPOCHS = 4
#: A fit as a program of its own: it says when each epoch's file is there, and then takes its time.
SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from test_checkpoint import explainer_of, shuffled
from graphmask import checkpoint, training as loop
loop.STEPS_PER_VERDICT = 10

write = checkpoint.save
def announced(training, *rest):
    write(training, *rest)
    print(training.epoch, flush=True)
    if training.epoch == {stop}:
        time.sleep(60)
checkpoint.save = announced
explainer_of({recipe!r}).fit(shuffled(), epochs={epochs}, checkpoint={path!r}, progress=False)
"""


@pytest.fixture(scope="module", autouse=True)
def _a_verdict_per_epoch() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "STEPS_PER_VERDICT", 10)
        yield


def explainer_of(recipe: str, **changes: Any) -> GraphMask:
    model = changes.pop("model", None) or toy.Toy()
    return GraphMask(model, **{"divergence": "kl", "seed": 3, "tolerance": 0.05, "recipe": recipe} | changes)


class _Shuffled:
    """A loader with an order of its own every epoch, from the global random state as a DataLoader's."""

    def __init__(self) -> None:
        self.batches = toy.loader(10, 8)

    def __iter__(self) -> Any:
        return iter([self.batches[i] for i in torch.randperm(len(self.batches)).tolist()])


def shuffled() -> _Shuffled:
    return _Shuffled()


def state(fitted: GraphMask) -> dict[str, torch.Tensor]:
    assert fitted.probe is not None
    return fitted.probe.state_dict()


def assert_identical(resumed: GraphMask, whole: GraphMask) -> None:
    """Gates, baselines and kept edges to the last bit, and the same story of the epochs."""
    a, b = state(resumed), state(whole)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name
    for seed in range(5):
        x, y = (e.explain(toy.graph(seed), allow_infeasible=True) for e in (resumed, whole))
        assert torch.equal(x.kept, y.kept)
        assert torch.equal(x.scores, y.scores)
        assert x.divergence == y.divergence
    assert resumed.history is not None
    assert whole.history is not None
    assert resumed.history.epochs == whole.history.epochs
    assert resumed.history.verdict == whole.history.verdict
    assert resumed.history.steps == whole.history.steps >= EPOCHS * 10  # more if drawn out


@pytest.fixture(scope="module")
def whole() -> dict[str, GraphMask]:
    fits = {recipe: explainer_of(recipe) for recipe in ("concave", "paper")}
    for fit in fits.values():
        fit.fit(shuffled(), epochs=EPOCHS, progress=False)
    return fits


def stopped_after(epoch: int, path: Path, recipe: str = "concave") -> None:
    """A fit that ends in an exception right after the file of an epoch was written."""

    class Stop(Exception):
        pass

    write = checkpoint.save

    def stopping(current: Any, *rest: Any) -> None:
        write(current, *rest)
        if current.epoch == epoch:
            raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", stopping)
        with pytest.raises(Stop):
            explainer_of(recipe).fit(shuffled(), epochs=EPOCHS, checkpoint=path, progress=False)


@pytest.mark.parametrize("recipe", ["concave", "paper"])
def test_killed_and_resumed_is_never_killed(recipe: str, whole: dict[str, GraphMask], tmp_path: Path) -> None:
    path = tmp_path / "fit.checkpoint"
    script = SCRIPT.format(tests=str(Path(__file__).parent), recipe=recipe, epochs=EPOCHS, path=str(path), stop=1)
    with fresh.running(script) as process:
        assert process.stdout.readline() == "1\n"
        process.kill(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert {p.name for p in tmp_path.iterdir()} == {path.name, f".{path.name}.lock"}  # which nobody holds any more
    _, description = files.read(path, "checkpoint")
    assert (description["epoch"], description["step"]) == (1, 10)

    resumed, begun = explainer_of(recipe), []
    run = explainer.run

    def watched(current: Any, *args: Any, **kwargs: Any) -> Any:
        begun.append((current.epoch, current.step))
        return run(current, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explainer, "run", watched)
        resumed.fit(shuffled(), epochs=EPOCHS, checkpoint=path, progress=False)
    assert begun == [(1, 10)]  # nothing but the epoch that was running is done again
    assert_identical(resumed, whole[recipe])
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("recipe", ["concave", "paper"])
@pytest.mark.parametrize("epoch", [2, 3, EPOCHS])
def test_resumed_after_any_epoch(recipe: str, epoch: int, whole: dict[str, GraphMask], tmp_path: Path) -> None:
    """Among them the last: only calibration was left to do. In between, baselines thaw and gates settle."""
    path = tmp_path / "x"
    stopped_after(epoch, path, recipe)
    resumed = explainer_of(recipe)
    resumed.fit(shuffled(), epochs=EPOCHS, checkpoint=path, progress=False)
    assert_identical(resumed, whole[recipe])


def test_stopped_in_the_middle_of_an_epoch(whole: dict[str, GraphMask], tmp_path: Path) -> None:
    class Unplugged(_Shuffled):
        left = 25

        def __iter__(self) -> Any:
            for batch in super().__iter__():
                Unplugged.left -= 1
                if Unplugged.left < 0:
                    raise ConnectionError
                yield batch

    path = tmp_path / "x"
    loader = Unplugged()
    Unplugged.left = 10**6
    fit, write = explainer_of("concave"), checkpoint.save

    def unplug(current: Any, *rest: Any) -> None:
        write(current, *rest)
        Unplugged.left = 7  # batches into the next epoch, validation aside

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", unplug)
        with pytest.raises(ConnectionError):
            fit.fit(loader, epochs=EPOCHS, checkpoint=path, progress=False)
    assert fit.probe is None  # not a half-fitted one
    resumed = explainer_of("concave")
    resumed.fit(shuffled(), epochs=EPOCHS, checkpoint=path, progress=False)
    assert_identical(resumed, whole["concave"])


def test_top_down_opening_survives_a_stop_before_the_lower_site(tmp_path: Path) -> None:
    """One epoch of the paper's recipe opens the upper of two sites only: the lower stays open after a resume."""
    path = tmp_path / "x"
    straight, resumed = explainer_of("paper"), explainer_of("paper")
    straight.fit(shuffled(), epochs=1, checkpoint=path, progress=False)
    resumed.fit(shuffled(), epochs=1, checkpoint=path, progress=False)
    for name, value in state(straight).items():
        assert torch.equal(state(resumed)[name], value), name
    kept = resumed.explain(toy.graph(0), allow_infeasible=True).kept
    assert bool(kept[0].all())


def test_resumed_between_two_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of the history may span epochs; half of it lies before the stop."""
    monkeypatch.setattr(training, "STEPS_PER_VERDICT", 20)
    straight, resumed = explainer_of("concave"), explainer_of("concave")
    straight.fit(shuffled(), epochs=EPOCHS, progress=False)
    stopped_after(1, tmp_path / "x")
    resumed.fit(shuffled(), epochs=EPOCHS, checkpoint=tmp_path / "x", progress=False)
    assert_identical(resumed, straight)


def test_without_a_file_a_checkpointed_fit_is_a_plain_fit(whole: dict[str, GraphMask], tmp_path: Path) -> None:
    fit = explainer_of("concave")
    fit.fit(shuffled(), epochs=EPOCHS, checkpoint=tmp_path / "new" / "x", progress=False)
    assert_identical(fit, whole["concave"])
    # ... and the result saved and loaded is that fit as well
    fit.save(tmp_path / "fitted")
    assert_identical(load(tmp_path / "fitted", fit.model), whole["concave"])


def fresh_training() -> training.Training:
    explainer = explainer_of("paper")
    return explainer.begin(toy.loader(2, 4), 1, 40)


def test_everything_that_changes_is_in_the_file(tmp_path: Path) -> None:
    """A new attribute of `Training` must be saved too, or be listed here as one that never changes."""
    constant = {"probe", "subject", "passes", "tolerance", "recipe", "seed", "steps", "team", "accumulate"}
    constant |= {"first_noise"}  # measured anew, on the same batches
    constant |= {"hard"}  # changes after the last file is written
    before, after = fresh_training(), fresh_training()
    for batch in toy.loader(3, 4):
        take_step(before, [batch])
    verdict = Verdict(0.125, 0.25, (0.5, 0.75))
    before.history = History([Epoch(0, 0.5, 2.0, [0.5, 0.5], verdict, True)], steps=3, seconds=1.5)
    before.rungs = [{name: value + 1 for name, value in before.probe.state_dict().items()}]
    before.sums += 3
    for number, name in enumerate(("epoch", "drawn_out", "judged", "caution", "step"), start=5):
        setattr(before, name, number)
    checkpoint.save(before, tmp_path / "x")
    checkpoint.load(after, tmp_path / "x")
    assert vars(after).keys() == vars(before).keys()
    state_a, state_b = before.probe.state_dict(), after.probe.state_dict()
    assert all(torch.equal(state_a[name], state_b[name]) for name in state_a)
    for name in vars(before).keys() - constant:
        a, b = getattr(before, name), getattr(after, name)
        if name == "constraint":
            assert a.state() == b.state()
        elif name == "sums":
            assert torch.equal(a, b)
            assert float(a[0]) == 3
        elif name == "generator":
            assert torch.equal(a.get_state(), b.get_state())
        elif name == "optimiser":
            torch.testing.assert_close(a.state_dict(), b.state_dict(), rtol=0, atol=0)
        elif name == "rungs":
            torch.testing.assert_close(a, b, rtol=0, atol=0)
            assert len(a) == 1
        else:
            assert a == b, name
            assert a != getattr(fresh_training(), name), f"{name} was not changed: the test shows nothing"


# Of another fit ----------------------------------------------------------------------------------------------


def _other_model() -> nn.Module:
    model = toy.Toy()
    with torch.no_grad():
        model.first.weight[0, 0] = 1.5
    return model


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stopped") / "x"
    stopped_after(1, path)
    return path


@pytest.mark.parametrize(
    ("what", "changes", "epochs"),
    [
        ("seed", {"seed": 4}, EPOCHS),
        ("tolerance", {"tolerance": 0.06}, EPOCHS),
        ("model", {"model": _other_model()}, EPOCHS),
        ("hidden", {"hidden": 16}, EPOCHS),
        ("recipe", {"recipe": "paper"}, EPOCHS),
        ("divergence", {"divergence": "js"}, EPOCHS),
        ("steps", {}, EPOCHS + 1),
        ("custom_forward", {"forward": lambda m, b: m(b.x, b.edge_index, b.batch)}, EPOCHS),
    ],
)
def test_a_checkpoint_of_another_fit_is_refused(what: str, changes: dict[str, Any], epochs: int, stopped: Path) -> None:
    before = stopped.read_bytes()
    fit = explainer_of(**{"recipe": "concave"} | changes)
    parameters = {name: value.clone() for name, value in fit.model.state_dict().items()}
    message = rf"Expected a checkpoint of this fit at .*, found one with another {what}\. Delete it"
    with pytest.raises(GraphMaskError, match=message):
        fit.fit(shuffled(), epochs=epochs, checkpoint=stopped, progress=False)
    assert stopped.read_bytes() == before
    assert all(torch.equal(parameters[name], value) for name, value in fit.model.state_dict().items())
    assert fit.probe is None


def test_foreign_and_truncated_checkpoints_are_refused(stopped: Path, tmp_path: Path) -> None:
    content = stopped.read_bytes()
    path = tmp_path / "x"
    for damaged in (b"", b"something else", content[: len(content) // 2], content[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(GraphMaskError, match="truncated or foreign"):
            explainer_of("concave").fit(shuffled(), epochs=EPOCHS, checkpoint=path, progress=False)
        assert path.read_bytes() == damaged
    files.write(path, "checkpoint", {}, {"settings": {}})
    with pytest.raises(GraphMaskError, match="Expected a checkpoint"):
        explainer_of("concave").fit(shuffled(), epochs=EPOCHS, checkpoint=path, progress=False)


@pytest.mark.parametrize("recipe", ["concave", "paper"])
@pytest.mark.parametrize("value", [1e30, -1e30, 1000, -1000, float("nan"), "1", None])
def test_a_constraint_that_no_fit_comes_to(value: Any, recipe: str, tmp_path: Path) -> None:
    """It would overflow some steps later, where no file is named."""
    stopped_after(1, tmp_path / "x", recipe)
    tensors, description = files.read(tmp_path / "x", "checkpoint")
    description["constraint"][next(iter(description["constraint"]))] = value
    files.write(tmp_path / "x", "checkpoint", tensors, description)
    with pytest.raises(GraphMaskError, match=r"Expected a GraphMask checkpoint at .*x, found contents that do not fit"):
        explainer_of(recipe).fit(shuffled(), epochs=EPOCHS, checkpoint=tmp_path / "x", progress=False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", -996),
        ("step", 2**40),
        ("epoch", 10**30),
        ("drawn_out", 1000),
        ("judged", -1),
        ("caution", 0),
        ("caution", "1"),
    ],
)
def test_progress_that_no_fit_makes(key: str, value: Any, stopped: Path, tmp_path: Path) -> None:
    tensors, description = files.read(stopped, "checkpoint")
    files.write(tmp_path / "x", "checkpoint", tensors, {**description, key: value})
    with pytest.raises(GraphMaskError, match=r"Expected a GraphMask checkpoint at .*x, found contents that do not fit"):
        explainer_of("concave").fit(shuffled(), epochs=EPOCHS, checkpoint=tmp_path / "x", progress=False)


def test_histories_come_back_from_json() -> None:
    epoch = Epoch(0, 0.25, 1.5, [0.5, 1.0], Verdict(0.125, 0.0, (0.5, 0.25)), True)
    verdict = Verdict(0.1, 0.2, (0.3,), 0.01, 0.9)
    rows = [Candidate((0.5,), verdict, 1), Candidate((-4.0,), verdict)]
    for history in (History(), History([epoch, epoch], True, verdict, 20, 1.5, 0.03, ("conv",), rows)):
        written = json.loads(json.dumps(checkpoint.history_to_json(history)))
        assert checkpoint.history_from_json(written) == history


@pytest.mark.parametrize("value", ["0.03", None, True, [0.03]])
@pytest.mark.parametrize(
    "place", ["tolerance", "seconds", "verdict divergence", "frontier 0 thresholds 0", "epochs 0 gates 1"]
)
def test_histories_with_something_else_than_numbers(place: str, value: object) -> None:
    verdict = Verdict(0.1, 0.2, (0.3, 0.4))
    epoch = Epoch(0, 0.25, 1.5, [0.5, 1.0], verdict, True)
    history = History([epoch], True, verdict, 20, 1.5, 0.03, ("a", "b"), [Candidate((0.5, 0.1), verdict)])
    written = json.loads(json.dumps(checkpoint.history_to_json(history)))
    inner: Any = written
    *path, last = [int(key) if key.isdigit() else key for key in place.split()]
    for key in path:
        inner = inner[key]
    inner[last] = value
    with pytest.raises(TypeError, match="expected a number, found"):
        checkpoint.history_from_json(written)
