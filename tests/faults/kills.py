"""`make kills`: work that is killed (SIGKILL) at random moments and begun again must end as if nothing had happened.

    python -m faults.kills 200        # in the folder tests; prints a table of JSON

Killed are fits that write checkpoints, explanations into a store by one process and by two at once, compaction of a
store, and the writing of a page. After every kill each file that is there is whole; at the end each result is that of
work that was never killed: no graph lost, none twice.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from graphmask import Explanation, GraphMask, files, load
from graphmask.errors import GraphMaskError
from graphmask.experiments.bench import kills as stores
from graphmask.fitting.recipe import Recipe
from graphmask.store import compacting
from laws.cases import BY_NAME

CASE = BY_NAME["GCN"]
RECIPE = Recipe(steps=40)
Work = Callable[[Path], None]
Check = Callable[[Path, Path, bool], None]  #: of the folder, against another where nothing was killed; is it done?


def run_and_kill(work: Work, folder: Path, after: float) -> bool:
    """In a child; True if it was killed before it was done."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work(folder)
            code = 0
        finally:
            os._exit(code)
    end = time.monotonic() + after
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        time.sleep(0.001)
    else:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    if os.WEXITSTATUS(status):
        raise GraphMaskError(f"Expected the work in {folder} to go on after a kill, found that it failed; see above.")
    return False


def fit(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explainer = GraphMask(CASE.model(), recipe=RECIPE)
        explainer.fit(CASE.loader(4, 2), checkpoint=folder / "checkpoint", progress=False)
        explainer.save(folder / "x.graphmask")


def check_fit(folder: Path, reference: Path, done: bool) -> None:
    if (folder / "checkpoint").exists():
        files.read(folder / "checkpoint", "checkpoint")
    if not done:
        return
    mine, whole = (load(each / "x.graphmask", CASE.model()) for each in (folder, reference))
    assert mine.probe is not None
    assert whole.probe is not None
    states = mine.probe.state_dict(), whole.probe.state_dict()
    if states[0].keys() != states[1].keys() or not all(
        torch.equal(states[0][key], states[1][key]) for key in states[0]
    ):
        raise GraphMaskError(f"Expected in {folder} the gates of a fit that was never killed, found others.")


def compact(folder: Path) -> None:
    compacting.compact(folder / "store")


def check_compact(folder: Path, reference: Path, done: bool) -> None:
    stores.check(folder / "store", reference / "store")


def page(folder: Path) -> None:
    for number in range(20):
        Explanation.load(folder / "one.explanation").to_html(folder / f"page-{number}.html")


def check_page(folder: Path, reference: Path, done: bool) -> None:
    whole = (reference / "page-0.html").read_bytes()
    there = sorted(folder.glob("page-*.html"))
    if any(path.read_bytes() != whole for path in there) or (done and len(there) != 20):
        raise GraphMaskError(f"Expected whole pages in {folder}, found another.")


def measure(
    work: Work, check: Callable[[Path, Path, bool], None], start: Path, kills: int, seed: int
) -> dict[str, Any]:
    """Work begins in a copy of ``start``, again and again, until there were enough kills."""
    dice, found = random.Random(seed), {"work": work.__name__, "kills": 0, "ended": 0}
    with tempfile.TemporaryDirectory(prefix="graphmask-kills-") as top:
        reference = Path(top) / "reference"
        shutil.copytree(start, reference)
        began = time.monotonic()
        run_and_kill(work, reference, 3600)
        patience = time.monotonic() - began
        while found["kills"] < kills:
            folder = Path(top) / "work"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(start, folder)
            while run_and_kill(work, folder, dice.uniform(0, patience) if found["kills"] < kills else 3600):
                found["kills"] += 1
                check(folder, reference, False)
            check(folder, reference, True)
            found["ended"] += 1
    return found


def everything(kills: int, seed: int = 0) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    each = max(kills // 5, 1)
    with tempfile.TemporaryDirectory(prefix="graphmask-kills-") as top:
        empty, stored, one = (Path(top) / name for name in ("empty", "stored", "one"))
        empty.mkdir()
        one.mkdir()
        stores.write(stored / "store", 600, 0, 0, 1)
        explainer = GraphMask(CASE.model(), recipe=RECIPE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            explainer.fit(CASE.loader(2, 2), progress=False)
            explainer.explain(CASE.graphs(1)[0], allow_infeasible=True).save(one / "one.explanation")
        found = []
        for work, check, start in ((fit, check_fit, empty), (compact, check_compact, stored), (page, check_page, one)):
            found.append(measure(work, check, start, each, seed))
            print(json.dumps(found[-1]), flush=True)
    for writers, number in ((1, each), (2, max(kills - 4 * each, 1))):
        told = stores.measure(number, writers, seed, graphs=1000, progress=False)
        found.append(
            {"work": f"explain to a store, {writers} process(es)", "kills": told["kills"], "ended": told["stores"]}
        )
        print(json.dumps(found[-1]), flush=True)
    return found


if __name__ == "__main__":
    began = time.monotonic()
    total = sum(row["kills"] for row in everything(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
    print(f"{total} kills in {time.monotonic() - began:.0f} s: nothing lost, nothing twice, no half-written file")
