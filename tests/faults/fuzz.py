"""`make fuzz`: mutated graphs and mutated files of every kind that this library reads.

    python -m faults.fuzz 3600        # in the folder tests: so many seconds

Every input must be taken, or refused with a `GraphMaskError`, in time and without much memory. Files with a hash are
mutated both as bytes and in what they say, under a hash that is right again: the hash is no proof of good intent.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch_geometric.data import Data

import graphmask
from graphmask import Explanation, GraphMask, GraphMaskError, files, store
from graphmask.experiments.bench import kills as stores
from graphmask.experiments.qa import redocred, wikihop
from graphmask.experiments.srl import conll09
from graphmask.fitting.recipe import Recipe
from graphmask.graphs import batches
from laws.cases import BY_NAME

CASE = BY_NAME["GCN"]
#: An input that takes longer hangs; more memory than this beside what is used at the start is a blow-up.
SECONDS, BYTES = 30, 6 << 30
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
    return dice.choice(ODD)


class Fuzz:
    """Inputs that are taken, and what reads them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, dict.fromkeys(self.targets(), 0)
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
        stores.write(folder / "store", 40, 0, 0, 1)
        (folder / "re").mkdir()
        (folder / "re" / "rel_info.json").write_text(json.dumps({"P17": "country", "P30": "continent"}))

    @staticmethod
    def targets() -> dict[str, Callable[[Fuzz, random.Random], None]]:
        return {
            "graph": Fuzz.graph,
            "explainer": lambda fuzz, dice: fuzz.ours(dice, "explainer"),
            "explanation": lambda fuzz, dice: fuzz.ours(dice, "explanation"),
            "checkpoint": lambda fuzz, dice: fuzz.ours(dice, "checkpoint"),
            "store": Fuzz.store,
            "conll": Fuzz.conll,
            "wikihop": Fuzz.wikihop,
            "redocred": Fuzz.redocred,
            "json": Fuzz.json,
        }

    def ours(self, dice: random.Random, kind: str) -> None:
        source, path = self.folder / kind, self.folder / f"mutated-{kind}"
        if dice.random() < 0.5:
            path.write_bytes(mutated_bytes(dice, source.read_bytes()))
        else:
            with safe_open(source, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
                description = json.loads(file.metadata()["description"])
            if dice.random() < 0.6:
                description = mutated_tree(dice, description)
            else:
                name = dice.choice(sorted(tensors))
                tensors[name] = mutated_tensor(dice, tensors[name])
            files.write(path, kind, tensors, description)
        if kind == "explainer":
            graphmask.load(path, self.model).explain(CASE.graphs(1)[0], allow_infeasible=True)
        elif kind == "explanation":
            read = Explanation.load(path)
            read.to_html(self.folder / "x.html")
            read._repr_html_()
        else:
            GraphMask(self.model, recipe=Recipe(steps=4)).fit(CASE.loader(2, 2), progress=False, checkpoint=path)

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
        path = self.folder / "mutated-store"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.folder / "store", path)
        chosen = dice.choice(sorted(one for one in path.iterdir() if one.is_file()))
        if chosen.suffix == ".json" and dice.random() < 0.6:
            chosen.write_text(json.dumps(mutated_tree(dice, json.loads(chosen.read_text()))))
        else:
            chosen.write_bytes(mutated_bytes(dice, chosen.read_bytes()))
        opened = store.open(path)
        opened.verify()
        for explanation in opened:
            explanation.certificate  # noqa: B018 - read

    def conll(self, dice: random.Random) -> None:
        path = self.folder / "mutated.conll"
        path.write_bytes(mutated_bytes(dice, CONLL.encode() + b"\n" + CONLL.encode()))
        conll09.read(path)

    def wikihop(self, dice: random.Random) -> None:
        path = self.folder / "mutated.json"
        self._json(dice, path, WIKIHOP)
        wikihop.read(path)

    def redocred(self, dice: random.Random) -> None:
        for name in redocred.FILES:
            self._json(dice, self.folder / "re" / name, REDOCRED)
        redocred.read(self.folder / "re", None)

    def json(self, dice: random.Random) -> None:
        path = self.folder / "mutated.json"
        self._json(dice, path, {"edge_types": {"rows": [{"type": 1, "layer": 0, "share": 0.5}], "title": "t"}})
        files.read_json(path)

    def _json(self, dice: random.Random, path: Path, value: Any) -> None:
        if dice.random() < 0.7:
            path.write_text(json.dumps(mutated_tree(dice, value)))
        else:
            path.write_bytes(mutated_bytes(dice, json.dumps(value).encode()))

    def one(self, name: str, seed: int) -> None:
        signal.alarm(SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.targets()[name](self, random.Random(f"{name} {seed}"))
        except GraphMaskError:
            self.refused += 1
        except Exception:
            self.failures += 1
            print(f"FAILED {name} {seed}\n{traceback.format_exc(limit=-6)}", flush=True)
        finally:
            signal.alarm(0)
        self.count[name] += 1

    def run(self, seconds: float, seed: int = 0, rounds: int | None = None) -> None:
        end, names, done = time.monotonic() + seconds, sorted(self.count), 0
        while time.monotonic() < end and done != rounds:
            done += 1
            for name in names:
                # Files of text are read in no time: of these there are more.
                for _ in range(20 if name in ("conll", "wikihop", "redocred", "json") else 1):
                    self.one(name, seed)
                    seed += 1


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
        flat.view(-1)[at] = dice.choice(odd)
    return flat


def limited() -> None:
    """From here on, an input that hangs or takes much memory is an exception."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {SECONDS} seconds")

    signal.signal(signal.SIGALRM, late)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, now + BYTES))


def main(seconds: float, seed: int = 0, rounds: int | None = None) -> Fuzz:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="graphmask-fuzz-") as folder:
        fuzz = Fuzz(Path(folder))
        limited()
        fuzz.run(seconds, seed, rounds)
    return fuzz


if __name__ == "__main__":
    given = [float(value) for value in sys.argv[1:]]
    told = main(given[0] if given else 60, *map(int, given[1:]))
    print(f"{sum(told.count.values()):,} inputs, {told.refused:,} refused, {told.failures} failures: {told.count}")
    sys.exit(bool(told.failures))
