"""`make fuzz`: mutated graphs and mutated files of every kind that this library reads.

    python -m faults.fuzz 3600              # in the folder tests: so many seconds, shared equally by all kinds
    python -m faults.fuzz inputs=1000000    # until there were so many inputs

Every input must be taken, or refused with a `GraphMaskError`, in time and without much memory. Files with a hash are
mutated both as bytes and in what they say, under a hash that is right again: the hash is no proof of good intent.
`Fuzz.one(kind, seed)` makes an input that failed once more.
"""

from __future__ import annotations

import json
import math
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch_geometric.data import Data

import graphmask
from graphmask import Explanation, GraphMask, GraphMaskError, files, masked, store
from graphmask.experiments import folder as folders
from graphmask.experiments.bench import kills as stores
from graphmask.experiments.qa import redocred, wikihop
from graphmask.experiments.srl import conll09
from graphmask.fitting.recipe import Recipe
from graphmask.graphs import batches
from graphmask.report import analysed, overview
from graphmask.report.gallery import Totals
from laws.cases import BY_NAME

CASE = BY_NAME["GCN"]
#: An input that computes for longer, or waits ten times as long, hangs; more memory than this beside what is used at
#: the start is a blow-up.
SECONDS, BYTES = 30, 6 << 30
#: Seconds of computing for one kind of input before it is another kind's turn.
SLICE = 0.2
#: How many inputs pass between two lines about how far it is.
TOLD = 50_000
#: Read in no time.
TEXTS = ("conll", "wikihop", "redocred", "json")
RELATIONS = {"P17": "country", "P30": "continent"}
ODD: list[Any] = [None, True, -1, 0, 1, 2**31, 2**63, 10**30, 0.5, float("nan"), float("inf")]
ODD += ["", "x", "\x00", [], {}, [[]]]
CONLL = "".join(
    "\t".join(columns) + "\n"
    for columns in (
        ["1", "Cats", "cat", "cat", "NN", "NN", "_", "_", "2", "2", "SBJ", "SBJ", "_", "_", "A0"],
        ["2", "sleep", "sleep", "sleep", "VB", "VB", "_", "_", "0", "0", "ROOT", "ROOT", "Y", "sleep.01", "_"],
    )
)
WIKIHOP = [
    {
        "id": "WH_dev_0",
        "query": "country_of_origin cat",
        "answer": "france",
        "candidates": ["france", "spain"],
        "supports": ["The cat is from France .", "Spain is near France ."],
    }
]
REDOCRED = [
    {
        "title": "Cat",
        "sents": [["Cat", "is", "from", "France", "."], ["France", "is", "in", "Europe", "."]],
        "vertexSet": [
            [{"name": "Cat", "pos": [0, 1], "sent_id": 0, "type": "MISC"}],
            [
                {"name": "France", "pos": [3, 4], "sent_id": 0, "type": "LOC"},
                {"name": "France", "pos": [0, 1], "sent_id": 1, "type": "LOC"},
            ],
            [{"name": "Europe", "pos": [3, 4], "sent_id": 1, "type": "LOC"}],
        ],
        "labels": [{"h": 0, "t": 1, "r": "P17", "evidence": [0]}, {"h": 1, "t": 2, "r": "P30", "evidence": [1]}],
    }
]


CLUSTERS = {"WH_dev_0": [[[0, 1, 2], [1, 0, 1]]]}
TABLES: dict[str, Any] = {
    "edge_types": {
        "title": "Kept by type",
        "columns": ["type", "layer", "share", "base_rate"],
        "rows": [[0, 0, 0.5, 0.25], [1, 1, 0.5, 0.75]],
    },
    "frontier": {
        "title": "Thresholds",
        "columns": ["level", "retained", "divergence", "flips"],
        "rows": [[0.5, 0.25, 0.1, 0.0], [0.9, 0.125, 0.5, 0.5]],
    },
    "erosion": {
        "title": "Dropped at random",
        "columns": ["measure", "dropped", "fraction", "mean", "low", "high"],
        "rows": [["agreement", "kept", 0.0, 1.0, 1.0, 1.0], ["agreement", "kept", 1.0, 0.5, None, None]],
    },
    "stability": {"title": "Five fits", "columns": ["layer", "kappa"], "rows": [[0, 0.5], [1, None]]},
    "labels": {"title": "Labels", "columns": ["label", "group", "probability"], "rows": [["SBJ", "verbs", 0.5]]},
    "distances": {"title": "Far", "columns": ["group", "distance", "share"], "rows": [["a", 1, 0.5], ["b", 2, 0.5]]},
    "levels": {
        "title": "Levels",
        "columns": ["method", "layer", "level", "mean_share"],
        "rows": [["graphmask", 0, 0.5, 0.5], ["graphmask", 0, 0.9, 0.25]],
    },
    "patterns": {"title": "Paths", "columns": ["pattern", "share"], "rows": [[["a", "b"], 0.5]], "note": "n"},
}
#: Rarely put into bytes: brackets in brackets, and a number that Python does not convert.
LONG = [b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5_000]
#: Instead of a column of CoNLL.
CELLS = ["", "_", "Y", "-1", "0", "1", "2", "3", "99", "9" * 5_000, "1.5", "\u0661", "\x00", "\r", "x y", "\u2028"]


def mutated_bytes(dice: random.Random, content: bytes) -> bytes:
    found = bytearray(content)
    for _ in range(dice.choice([1, 1, 2, 8])):
        at = dice.randrange(len(found) + 1) if found else 0
        what = dice.randrange(6)
        if what == 0 and at < len(found):
            found[at] ^= 1 << dice.randrange(8)
        elif what == 1:
            del found[at:]
        elif what == 2:
            found[at:at] = dice.randbytes(dice.choice([1, 4, 100]))
        elif what == 3:
            del found[at : at + dice.choice([1, 8, 50])]
        elif what == 4:
            end = at + dice.randrange(60)
            found[at:at] = found[at:end] * dice.choice([1, 3])
        elif dice.random() < 0.01:
            found[at:at] = dice.choice(LONG)
        else:
            found[at : at + 4] = dice.choice([b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"9999", b"-1\t\n", b'"]}{'])
    return bytes(found)


def mutated_tree(dice: random.Random, value: Any) -> Any:
    """JSON with something in it exchanged, left out or doubled."""
    if isinstance(value, dict | list) and value and dice.random() < 0.85:
        found = dict(value) if isinstance(value, dict) else list(value)
        key = dice.choice(list(found)) if isinstance(found, dict) else dice.randrange(len(found))
        what = dice.random()
        if what < 0.12:
            del found[key]  # type: ignore[arg-type]
        elif what < 0.2 and isinstance(found, list):
            found.insert(key, found[key])
        else:
            found[key] = mutated_tree(dice, found[key])  # type: ignore[index]
        return found
    if isinstance(value, int) and not isinstance(value, bool) and dice.random() < 0.5:
        return value + dice.choice([-1, 1, 1000, -1000])
    if dice.random() < 0.03:
        return nested(dice.choice([50, 90, 300, 600]), dice.random() < 0.5)
    return dice.choice(ODD)


def nested(depth: int, in_lists: bool) -> Any:
    """Lists in lists, or objects in objects."""
    found: Any = 0
    for _ in range(depth):
        found = [found] if in_lists else {"a": found}
    return found


class Fuzz:
    """Inputs that are taken, and what reads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.targets: dict[str, Callable[[random.Random], None]] = {
            "graph": self.graph,
            **{
                f"{kind}, bytes": partial(self.bytes_of, kind=kind)
                for kind in ("explainer", "explanation", "checkpoint")
            },
            **{kind: partial(self.ours, kind=kind) for kind in ("explainer", "explanation", "checkpoint")},
            "store": self.store,
            "conll": self.conll,
            "wikihop": self.wikihop,
            "redocred": self.redocred,
            "json": self.json,
            "analyses": self.analyses,
        }
        self.count = dict.fromkeys(self.targets, 0)
        self.slowest = dict.fromkeys(self.targets, 0.0)
        self.refused, self.failures = 0, 0
        self.model = CASE.model()
        self.explainer = GraphMask(self.model, recipe=Recipe(steps=4))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.explainer.fit(CASE.loader(2, 2), progress=False, checkpoint=folder / "checkpoint")
            self.explainer.save(folder / "explainer")
            made = self.explainer.explain(CASE.graphs(1)[0], allow_infeasible=True)
            made.info |= {"title": "a", "node_labels": [str(n) for n in range(made.num_nodes)], "classes": ["a"] * 9}
            made.save(folder / "explanation")
        self.totals = Totals()
        for _ in range(2):  # of one alone there are no charts
            self.totals.add(made)
        kinds = ("explainer", "explanation", "checkpoint")
        self.bytes = {kind: (folder / kind).read_bytes() for kind in kinds}
        self.said = {kind: files.read(folder / kind, kind) for kind in kinds}
        stores.write(folder / "store", 12, 0, 0, 1)
        self.stored = {path: path.read_bytes() for path in sorted((folder / "store").iterdir()) if path.is_file()}
        # What these import and compile is not to be counted as time of an input.
        made.to_html(folder / "x.html")
        analysed.draw(folder / "figures", TABLES)
        (folder / "whole.json").write_text(json.dumps(WIKIHOP))
        assert wikihop.read(folder / "whole.json").questions
        (folder / "re").mkdir()
        self.whole = {name: json.dumps(REDOCRED).encode() for name in redocred.FILES}
        self.whole[redocred.RELATIONS] = json.dumps(RELATIONS).encode()
        for name, content in self.whole.items():
            (folder / "re" / name).write_bytes(content)

    def read(self, path: Path, kind: str) -> None:
        if kind == "explainer":
            graphmask.load(path, self.model).explain(CASE.graphs(1)[0], allow_infeasible=True)
        elif kind == "explanation":
            self.use(Explanation.load(path))
        else:
            GraphMask(self.model, recipe=Recipe(steps=4)).fit(CASE.loader(2, 2), progress=False, checkpoint=path)

    def use(self, read: Explanation) -> None:
        """All that people do with an explanation which they were given."""
        read.to_html(self.folder / "x.html")
        for use in (Explanation.to_pyg, Explanation.to_networkx, Explanation.to_polars, Explanation._repr_html_, repr):
            use(read)
        if read.num_nodes:
            read.paths(0)
        with masked(self.model, read), torch.no_grad():
            batches.default_forward(self.model, CASE.graphs(1)[0])

    def bytes_of(self, dice: random.Random, kind: str) -> None:
        path = self.folder / f"mutated-{kind}"
        path.write_bytes(mutated_bytes(dice, self.bytes[kind]))
        files.read(path, kind)
        self.read(path, kind)

    def ours(self, dice: random.Random, kind: str) -> None:
        """What the file says is mutated, and its hash is right."""
        path = self.folder / f"mutated-{kind}"
        tensors, description = self.said[kind]
        if dice.random() < 0.6:
            description = mutated_tree(dice, description)
        else:
            name = dice.choice(sorted(tensors))
            tensors = {**tensors, name: mutated_tensor(dice, tensors[name])}
        files.write(path, kind, tensors, description)
        self.read(path, kind)

    def graph(self, dice: random.Random) -> None:
        graph = CASE.graphs(1)[0].clone()
        for key in dice.sample(list(graph.keys()), dice.choice([1, 2])):
            value = graph[key]
            graph[key] = mutated_tensor(dice, value) if isinstance(value, torch.Tensor) else dice.choice(ODD)
        if dice.random() < 0.1:
            graph = Data(**{key: graph[key] for key in list(graph.keys())[1:]})
        batches.check(graph)
        try:
            with torch.no_grad():
                batches.default_forward(self.model, graph)
        except GraphMaskError:
            raise
        except Exception:  # the model's own answer to such a graph, which is told as it is
            self.refused += 1
            return
        self.explainer.explain(graph, allow_infeasible=True)

    def store(self, dice: random.Random) -> None:
        chosen = dice.choice(list(self.stored))
        content = self.stored[chosen]
        if chosen.suffix == ".json" and dice.random() < 0.6:
            chosen.write_text(json.dumps(mutated_tree(dice, json.loads(content))))
        else:
            chosen.write_bytes(mutated_bytes(dice, content))
        try:
            opened = store.open(self.folder / "store")
            opened.verify()
            for explanation in opened:
                explanation.certificate  # noqa: B018 - read
        finally:
            chosen.write_bytes(content)

    def conll(self, dice: random.Random) -> None:
        path = self.folder / "mutated.conll"
        if dice.random() < 0.5:
            path.write_bytes(mutated_bytes(dice, CONLL.encode() + b"\n" + CONLL.encode()))
        else:
            rows = [line.split("\t") for line in CONLL.splitlines()]
            for _ in range(dice.choice([1, 2])):
                row = dice.choice(rows)
                row[dice.randrange(len(row))] = dice.choice(CELLS)
            path.write_bytes("".join("\t".join(row) + "\n" for row in rows).encode())
        conll09.read(path, blind=dice.random() < 0.5)

    def wikihop(self, dice: random.Random) -> None:
        path, clusters = self.folder / "mutated.json", self.folder / "clusters.json"
        if dice.random() < 0.3:
            path.write_text(json.dumps(WIKIHOP))
            clusters.write_bytes(mutated_json(dice, CLUSTERS))
            wikihop.read(path, clusters=clusters)
        else:
            path.write_bytes(mutated_json(dice, WIKIHOP))
            wikihop.read(path)

    def redocred(self, dice: random.Random) -> None:
        name = dice.choice(list(self.whole))
        path = self.folder / "re" / name
        path.write_bytes(mutated_json(dice, RELATIONS if name == redocred.RELATIONS else REDOCRED))
        try:
            redocred.read(self.folder / "re", None)
        finally:
            path.write_bytes(self.whole[name])

    def json(self, dice: random.Random) -> None:
        (self.folder / folders.FIGURES).write_bytes(mutated_json(dice, {"task": "star", "seed": 0, "rows": [[1, 0.5]]}))
        folders.figures_of(self.folder, "seed")

    def analyses(self, dice: random.Random) -> None:
        path = self.folder / "tables.json"
        path.write_bytes(mutated_json(dice, TABLES))
        tables = files.read_json(path)
        overview.of(self.totals, tables, None)
        analysed.draw(self.folder / "figures", tables)

    def one(self, name: str, seed: int) -> None:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(10 * SECONDS)
        began = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.targets[name](random.Random(f"{name} {seed}"))
        except GraphMaskError:
            self.refused += 1
        except Exception:
            self.failures += 1
            print(f"FAILED {name} {seed}\n{traceback.format_exc(limit=-6)}", flush=True)
        finally:
            signal.alarm(0)
            signal.setitimer(signal.ITIMER_PROF, 0)
        self.slowest[name] = max(self.slowest[name], time.process_time() - began)
        self.count[name] += 1

    def run(self, seconds: float, seed: int = 0, rounds: int | None = None, inputs: float = math.inf) -> None:
        """The same time for every kind, in turn; or so many inputs of each, and 20 times as many of texts."""
        if rounds is not None:
            for name in self.targets:
                for number in range(rounds * (20 if name in TEXTS else 1)):
                    self.one(name, seed + number)
            return
        end, told = time.monotonic() + seconds, 0
        while time.monotonic() < end and sum(self.count.values()) < inputs:
            for name in self.targets:
                stop = time.process_time() + SLICE
                while time.process_time() < stop:
                    self.one(name, seed + self.count[name])
            if sum(self.count.values()) >= told + TOLD:
                told = sum(self.count.values())
                print(f"{told:,} inputs so far: {self.count}, {self.failures} failures", flush=True)


def mutated_json(dice: random.Random, value: Any) -> bytes:
    if dice.random() < 0.7:
        return json.dumps(mutated_tree(dice, value)).encode()
    return mutated_bytes(dice, json.dumps(value).encode())


def mutated_tensor(dice: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    what, flat = dice.randrange(6), tensor.clone()
    if what == 0:
        return flat[..., : flat.shape[-1] // 2] if flat.dim() else flat.expand(3).clone()
    if what == 1:
        return flat.to(dice.choice([torch.half, torch.int32, torch.bool, torch.double, torch.uint8]))
    if what == 2:
        return flat.reshape(-1)
    if flat.numel():
        at = dice.randrange(flat.numel())
        odd = [float("nan"), float("inf"), 1e38, -1e-40] if flat.is_floating_point() else [-1, 0, 10**6, 2**31 - 1]
        if flat.dtype in (torch.uint8, torch.bool):
            odd = [0, 1]
        flat.view(-1)[at] = dice.choice(odd)
    return flat


def limited() -> None:
    """From here on, an input that hangs or takes much memory is an exception."""

    def late(number: int, _: Any) -> None:
        waited = number == signal.SIGALRM
        raise TimeoutError(f"more than {10 * SECONDS} seconds" if waited else f"more than {SECONDS} CPU seconds")

    signal.signal(signal.SIGALRM, late)
    signal.signal(signal.SIGPROF, late)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, now + BYTES))


def main(seconds: float, seed: int = 0, rounds: int | None = None, inputs: float = math.inf) -> Fuzz:
    torch.set_num_threads(1)
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    # Nothing here has to outlive a power cut: without fsync an input does not wait for the disk.
    with tempfile.TemporaryDirectory(prefix="graphmask-fuzz-", dir=place) as folder, mock.patch.object(os, "fsync"):
        fuzz = Fuzz(Path(folder))
        limited()
        fuzz.run(seconds, seed, rounds, inputs)
    return fuzz


if __name__ == "__main__":
    numbers = [value for value in sys.argv[1:] if "=" not in value]
    wanted = [float(value.removeprefix("inputs=")) for value in sys.argv[1:] if "=" in value]
    before = time.process_time()
    if wanted:
        told = main(math.inf, inputs=wanted[0])
    else:
        told = main(float(numbers[0]) if numbers else 60, *map(int, numbers[1:]))
    for kind, number in told.count.items():
        print(f"{kind}: {number:,}, at most {told.slowest[kind]:.2f} CPU seconds")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{time.process_time() - before:.0f} CPU seconds, {most} MB at most")
    print(f"{sum(told.count.values()):,} inputs, {told.refused:,} refused, {told.failures} failures")
    sys.exit(bool(told.failures))
