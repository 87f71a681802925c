"""The whole battery: every fit is one file, written as it comes, so that a run that was killed goes on where it was."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from graphmask.bars import steps
from graphmask.errors import GraphMaskError
from graphmask.experiments import runner
from graphmask.experiments.bench.battery.measure import measure
from graphmask.experiments.bench.battery.models import ENTRIES
from graphmask.files import read_json, write_bytes
from graphmask.fitting.recipe import Recipe

#: Of the files that results are kept in; another one is measured again.
FORMAT = 1
#: All models and their data come from this seed; the seeds of the battery are those of the fits.
MODEL_SEED = 0

Task = dict[str, Any]


def choose(models: Sequence[str] | None = None, half: str | None = None) -> list[str]:
    """The names of a run, checked."""
    for name in models or ():
        if name not in ENTRIES:
            raise GraphMaskError(f"Expected models among {', '.join(ENTRIES)}, got {name!r}.")
    if half not in (None, "design", "check"):
        raise GraphMaskError(f"Expected the half design or check, got {half!r}.")
    return [name for name in models or ENTRIES if half is None or ENTRIES[name].half == half]


def result_path(out: Path, name: str, seed: int, fits: str = "fits") -> Path:
    return out / fits / f"{name}-{seed}.json"


def model_path(out: Path, name: str) -> Path:
    return out / "models" / f"{name}.safetensors"


def known(task: Task) -> dict[str, Any] | None:
    """A result that was measured before with the same settings; None if there is none that can be read."""
    try:
        result = read_json(_path(task))
    except GraphMaskError:
        return None
    wanted = {"format": FORMAT, **_settings(task)}
    same = isinstance(result, dict) and all(result.get(key) == value for key, value in wanted.items())
    return result if same and "error" not in result and "masks" in result else None


def _path(task: Task) -> Path:
    return result_path(Path(task["out"]), task["name"], task["seed"], task["fits"])


def _settings(task: Task) -> dict[str, Any]:
    return {key: task[key] for key in ("name", "seed", "epochs", "recipe")}


def measure_all(
    names: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    *,
    jobs: int = 1,
    epochs: int | None = None,
    recipe: Recipe | None = None,
    fits: str = "fits",
    progress: bool = True,
) -> dict[str, list[dict[str, Any]]]:
    """Results per model, seed by seed; what is in ``out`` already is not measured again.

    ``recipe`` is the default if left out; results of another one lie in a folder ``fits`` of their own, beside the
    trained models. With ``jobs`` above one, so many processes of one thread each share the work. Models are trained
    before anything is measured, each once. A fit that fails is a result with an ``error``; a later run tries it again.
    """
    if not seeds:
        raise GraphMaskError("Expected at least one seed, got none.")
    if jobs < 1:
        raise GraphMaskError(f"Expected at least one job, got {jobs}.")
    same: Task = {"out": str(out), "fits": fits, "epochs": epochs, "recipe": None if recipe is None else asdict(recipe)}
    tasks: list[Task] = [{"name": name, "seed": seed, **same} for seed in seeds for name in names]
    second = [task for task in tasks if known(task) is None]
    wanted = {task["name"] for task in second}
    untrained = [name for name in names if name in wanted and not model_path(out, name).exists()]
    first: list[Task] = [{"name": name, "seed": None, **same} for name in untrained]
    with steps(len(first) + len(second), enabled=progress) as step:
        for part in (first, second):
            _work_off(part, jobs, step)
    return {name: [_result(task) for task in tasks if task["name"] == name] for name in names}


def _result(task: Task) -> dict[str, Any]:
    result = known(task)
    if result is not None:
        return result
    try:
        return read_json(_path(task))
    except GraphMaskError as error:
        return {"name": task["name"], "seed": task["seed"], "error": str(error)}


def perform(task: Task) -> None:
    """Train a model (no seed) or measure a fit, and write the file; whatever goes wrong is written too."""
    name, seed, out = task["name"], task["seed"], Path(task["out"])
    with runner.one_thread():
        try:
            prepared = ENTRIES[name].prepare(MODEL_SEED, model_path(out, name))
            if seed is None:
                return
            recipe = None if task["recipe"] is None else Recipe(**task["recipe"])
            result = measure(prepared, seed, epochs=task["epochs"], recipe=recipe)
        except Exception as error:  # one model that fails must not end the run
            result = {"error": f"{type(error).__name__}: {error}"}
    if seed is not None:
        _write(task, result)


def _write(task: Task, found: dict[str, Any]) -> None:
    write_bytes(_path(task), (json.dumps({"format": FORMAT, **_settings(task), **found}, indent=1) + "\n").encode())


# Processes ----------------------------------------------------------------------------------------------------


def _work_off(tasks: Sequence[Task], jobs: int, step: Callable[[str], None]) -> None:
    """All tasks, in this process or by workers that each take the next one."""
    if jobs == 1 or len(tasks) < 2:
        for task in tasks:
            step(_title(task))
            perform(task)
        return
    queue: SimpleQueue[Task] = SimpleQueue()
    for task in tasks:
        queue.put(task)
    lock = threading.Lock()

    def keep_busy() -> None:
        worker = Worker()
        try:
            while True:
                try:
                    task = queue.get_nowait()
                except Empty:
                    return
                with lock:
                    step(_title(task))
                if not worker.perform(task):
                    worker.stop()
                    worker = Worker()
                    if task["seed"] is not None:
                        _write(task, {"error": "The process that measured this ended before it was done."})
        finally:
            worker.stop()

    threads = [threading.Thread(target=keep_busy, daemon=True) for _ in range(min(jobs, len(tasks)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _title(task: Task) -> str:
    return f"{task['name']}: training" if task["seed"] is None else f"{task['name']}: seed {task['seed']}"


class Worker:
    """A process that performs one task after another: a line of JSON in, a line out when it is done."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "graphmask.experiments.bench.battery.run"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def perform(self, task: Task) -> bool:
        """False where the process ended before it had done the task."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(task) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        return any(line.strip() == DONE for line in iter(self.process.stdout.readline, ""))

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


DONE = "done"


@contextmanager
def _quiet() -> Iterator[Callable[[], None]]:
    """Nothing but the sign that a task is done goes to the parent, whatever a library prints."""
    channel, sys.stdout = sys.stdout, sys.stderr
    try:
        yield lambda: print(DONE, file=channel, flush=True)
    finally:
        sys.stdout = channel


if __name__ == "__main__":
    with _quiet() as done:
        for line in sys.stdin:
            perform(json.loads(line))
            done()
