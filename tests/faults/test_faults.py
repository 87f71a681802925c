"""What a machine does to a program: kills, a full disk, a folder that cannot be written to."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphmask import Explanation, GraphMask, files, locks, methods, store
from graphmask.errors import CannotWrite, GraphMaskError
from graphmask.experiments import stages
from graphmask.experiments.study import Context
from graphmask.fitting.recipe import Recipe
from laws.cases import BY_NAME
from reference import fresh

CASE = BY_NAME["GCN"]

TESTS = Path(__file__).parents[1]


def in_a_process_of_its_own(module: str, *arguments: str) -> str:
    code = f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    done = fresh.run(code, *arguments, folder=TESTS)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


def test_a_few_kills() -> None:
    """`make kills` does 200."""
    assert "nothing lost, nothing twice, no half-written file" in in_a_process_of_its_own("faults.kills", "5")


def test_some_seconds_of_fuzz() -> None:
    """The same inputs on every machine, however fast it is; `make fuzz` does more."""
    assert " 0 failures" in in_a_process_of_its_own("faults.fuzz", "120", "0", "20")


#: Root may write anywhere, so the system's answers are made up: what fails, with what, and what the error says.
FAULTS: dict[str, tuple[Any, str, int, str]] = {
    "full disk": (os, "fsync", errno.ENOSPC, "no room left on the disk. Make room, then start the same run again"),
    "read-only folder": (tempfile, "mkstemp", errno.EROFS, "it can only be read. Choose another folder"),
    "no permission": (tempfile, "mkstemp", errno.EACCES, "you may not write there"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_written_is_said(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, function, number, told = FAULTS[fault]

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module, function, fails)
    with pytest.raises(CannotWrite, match=f"Expected to write .*{told}"):
        files.write(tmp_path / "x", "thing", {"a": torch.zeros(3)}, {})
    assert not list(tmp_path.iterdir())


def test_errors_of_writing_are_ours_and_the_system_s(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(GraphMaskError) as found:
        files.write(tmp_path / "file" / "x", "thing", {"a": torch.zeros(1)}, {})
    assert isinstance(found.value, OSError)


def explainer(steps: int = 6) -> GraphMask:
    return GraphMask(CASE.model(), recipe=Recipe(steps=steps))


def fit(known: GraphMask, path: Path | None = None, batches: Any = None) -> GraphMask:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        known.fit(CASE.loader(3, 2) if batches is None else batches, checkpoint=path, progress=False)
    return known


def fits(path: Path) -> None:
    fit(explainer(), path / "checkpoint")


def explains(path: Path) -> None:
    methods.get("random")(CASE.model()).explain_all(
        CASE.loader(3, 4), out=path / "store", shard_rows=1, progress=False, repair=False
    )


def shows(path: Path) -> None:
    found = methods.get("random")(CASE.model()).explain(CASE.graphs(1)[0], repair=False)
    found.to_html(path / "page.html")
    found.save(path / "explanation")


#: What is done in a folder, and that which must be as it would be without the fault, when the fault is over.
WORK: dict[str, Callable[[Path], None]] = {"a fit with a checkpoint": fits, "a store": explains, "a page": shows}


class Disk:
    """It has room for so many more files, and then for none; with ``half`` of the last one."""

    def __init__(self, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room, self.fdopen = room, os.fdopen
        monkeypatch.setattr(os, "fdopen", self.open)

    def open(self, handle: int, *args: Any, **kwargs: Any) -> Any:
        self.room -= 1
        file = self.fdopen(handle, *args, **kwargs)
        if self.room < 0:
            return Half(file)
        return file


class Half:
    """A file of which a half is written before the disk is full."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __enter__(self) -> Half:
        return self

    def __exit__(self, *_: Any) -> None:
        self.file.close()

    def write(self, content: Any) -> None:
        self.file.write(bytes(content)[: len(bytes(content)) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", WORK)
def test_a_disk_that_fills_up_in_the_middle(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is there is whole; started again when there is room, the work ends as if there had always been."""
    expected = tmp_path / "expected"
    expected.mkdir()
    with monkeypatch.context() as patch:
        plenty = Disk(1000, patch)
        WORK[name](expected)
    for room in range(1000 - plenty.room):
        folder = tmp_path / f"room for {room}"
        folder.mkdir()
        with monkeypatch.context() as patch:
            Disk(room, patch)
            with pytest.raises(CannotWrite, match=r"no room left on the disk\. Make room, then start the same"):
                WORK[name](folder)
        assert set(contents(folder)) <= set(contents(expected))
        WORK[name](folder)
        assert contents(folder).keys() == contents(expected).keys()
        if name == "a store":
            found, whole = (list(store.open(each / "store")) for each in (folder, expected))
            for one, other in zip(found, whole, strict=True):
                assert torch.equal(one.kept, other.kept)
        if name == "a page":
            assert (folder / "page.html").read_bytes() == (expected / "page.html").read_bytes()
            Explanation.load(folder / "explanation")
        if name == "a fit with a checkpoint":
            states, others = (files.read(each / "checkpoint", "checkpoint")[0] for each in (folder, expected))
            assert states.keys() == others.keys()
            assert all(torch.equal(states[key], others[key]) for key in others)


def as_somebody_else(work: Callable[[], None]) -> str:
    """In a child without the rights of root: what it raised."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            work()
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        said = told.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.parametrize("name", WORK)
def test_a_folder_that_can_only_be_read(name: str) -> None:
    """Not made up: its rights are taken away, and it is written to by another user where this is root."""
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top) / "closed"
        folder.mkdir()
        for path in (folder, Path(top)):
            path.chmod(0o555)
        said = as_somebody_else(lambda: WORK[name](folder))
        assert said.startswith(f"CannotWrite: Expected to write {folder}")
        assert "you may not write there. Choose another folder" in said
        assert contents(folder) == {}
        Path(top).chmod(0o755)


# Clocks ------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock_that_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now, dice = time.time(), random.Random(0)

    def told() -> float:
        nonlocal now
        now -= dice.uniform(0, 86_400)
        return now

    monkeypatch.setattr(time, "time", told)
    monkeypatch.setattr(time, "time_ns", lambda: int(told() * 1e9))


@pytest.mark.parametrize("name", WORK)
def test_a_clock_that_goes_back(name: str, tmp_path: Path, clock_that_goes_back: None) -> None:
    """Also while files that are there seem to be from the future, and from before the epoch."""
    done, stopped = tmp_path / "done", tmp_path / "stopped"
    for folder in (done, stopped):
        folder.mkdir()
    WORK[name](done)
    with pytest.MonkeyPatch.context() as patch:
        Disk(1, patch)
        with pytest.raises(CannotWrite):
            WORK[name](stopped)
    for number, path in enumerate(sorted(stopped.rglob("*"))):
        os.utime(path, (4e9, 4e9) if number % 2 else (-1e9, -1e9))
    WORK[name](stopped)
    assert contents(stopped).keys() == contents(done).keys()
    known = fit(explainer())
    assert known.history is not None
    assert 0 < known.history.seconds < 3600


def test_no_clock_that_can_go_back_is_read() -> None:
    clocks = ("time.time(", "time_ns(", "datetime.now()", "st_mtime", "getmtime")
    modules = sorted((TESTS.parent / "src").rglob("*.py"))
    assert [path.name for path in modules if any(word in path.read_text() for word in clocks)] == []


# Two at the same place ---------------------------------------------------------------------------------------

REFUSED = "Expected to write to .*alone, found another process at it. Wait for it, or write elsewhere"


def test_two_fits_with_one_checkpoint(tmp_path: Path) -> None:
    """The second is refused while the first is at it; when it is done, or killed, the next one goes on."""

    class Asks(list[Any]):
        asked = 0

        def __iter__(self) -> Iterator[Any]:
            self.asked += 1
            if self.asked == 3:
                with pytest.raises(GraphMaskError, match=REFUSED):
                    fit(explainer(), tmp_path / "checkpoint")
                fit(explainer(), tmp_path / "another")
            return super().__iter__()

    asks = Asks(CASE.loader(3, 2))
    fit(explainer(), tmp_path / "checkpoint", asks)
    assert asks.asked > 3
    (tmp_path / ".checkpoint.lock").touch()  # of a kill
    fit(explainer(), tmp_path / "checkpoint")
    assert {path.name for path in tmp_path.iterdir()} == {"another", "checkpoint"}


def test_two_runs_into_one_folder(tmp_path: Path) -> None:
    class Never:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} although another run is at it")

    with locks.alone_at(tmp_path / "run"), pytest.raises(GraphMaskError, match=REFUSED):
        stages.run(Never(), Context(tmp_path / "run"))  # type: ignore[type-var]
    with pytest.raises(AssertionError):
        stages.run(Never(), Context(tmp_path / "run"))  # type: ignore[type-var]
    assert list(tmp_path.iterdir()) == []


def test_two_processes_at_one_place(tmp_path: Path) -> None:
    """A lock is known to other processes, and ends with the process that has it."""
    held = (
        "import sys, time; from pathlib import Path; from graphmask import locks\n"
        "with locks.alone_at(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", held, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(GraphMaskError, match=REFUSED), locks.alone_at(tmp_path / "run"):
            pass
        process.kill()
        process.wait()
    with locks.alone_at(tmp_path / "run"):
        pass
