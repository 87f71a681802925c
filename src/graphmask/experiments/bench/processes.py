"""Strong scaling on one machine: the same steps and the same graphs, in one process and in two of one thread each."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, global_mean_pool

from graphmask import team as distributed
from graphmask.errors import GraphMaskError
from graphmask.explainer import GraphMask
from graphmask.fitting.recipe import Recipe
from graphmask.fitting.step import take_step
from graphmask.team import Team

CHANNELS, CLASSES = 64, 4


class Network(nn.Module):
    """Two layers of graph convolution, untrained: what is measured does not depend on what it has learned."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(CHANNELS, CHANNELS), GCNConv(CHANNELS, CHANNELS)
        self.out = nn.Linear(CHANNELS, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.second(self.first(x, edge_index).relu(), edge_index).relu()
        return self.out(global_mean_pool(h, batch))


def graphs(count: int, nodes: int, edges: int, seed: int = 0) -> list[Data]:
    generator = torch.Generator().manual_seed(seed)
    return [
        Data(
            x=torch.randn(nodes, CHANNELS, generator=generator),
            edge_index=torch.randint(nodes, (2, edges), generator=generator),
        )
        for _ in range(count)
    ]


def process_figures(
    *, batch: int = 32, nodes: int = 50, edges: int = 250, steps: int = 40, processes: Sequence[int] = (1, 2)
) -> dict[str, Any]:
    """Seconds per step of a fit and per explained graph, by number of processes; ``batch`` graphs make a step.

    Every process has one thread and an even share of every step's graphs; the time is the slowest one's. CPU seconds,
    of the process that used most, say how work was divided where others use the machine too.
    """
    if any(batch % count for count in processes):
        raise GraphMaskError(f"Expected a batch that {list(processes)} processes can share evenly, got {batch} graphs.")
    settings = {"batch": batch, "nodes": nodes, "edges": edges, "steps": steps}
    runs = [{"processes": count, **_launch(count, settings)} for count in processes]
    for run in runs:
        run["fit_speedup"] = runs[0]["fit_step_seconds"] / run["fit_step_seconds"]
        run["explain_speedup"] = runs[0]["explain_graph_seconds"] / run["explain_graph_seconds"]
    return {"settings": settings, "cores": os.cpu_count(), "runs": runs}


def _launch(count: int, settings: dict[str, int]) -> dict[str, float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "ACCELERATE_USE_CPU": "true"}
    command = [sys.executable, "-m", "graphmask.experiments.bench.processes", json.dumps(settings)]
    workers = [
        subprocess.Popen(
            command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(count)
    ]
    try:
        told = [worker.communicate()[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    if any(worker.returncode for worker in workers):
        raise GraphMaskError(f"Expected {count} processes to measure, one of them failed; its error is above.")
    return json.loads(told[0].splitlines()[-1])


def _measure(batch: int, nodes: int, edges: int, steps: int) -> dict[str, float]:
    """In each process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, team = Network().eval(), distributed.team()
    share = batch // team.size
    data = graphs(batch * steps, nodes, edges)
    loader = [Batch.from_data_list(data[at : at + share]) for at in range(0, len(data), share)]
    explainer = GraphMask(model, divergence="kl", recipe=Recipe(steps=1))
    explainer.fit(loader[: team.size], epochs=1, progress=False)
    with explainer.subject.frozen():
        training = explainer.begin(loader, 10**6, len(loader), team)
        explainer.subject.freeze(training=True)

        def epoch() -> None:
            for mine in distributed.shares(loader, team):
                take_step(training, mine)

        epoch()  # to warm up
        fit = _seconds(epoch, team)

    def explain() -> None:
        # These gates have learnt nothing: nearly every explanation would need repair.
        list(explainer.explain_all(loader, repair=False, allow_infeasible=True))

    explain()
    explained = _seconds(explain, team)
    return {
        "fit_step_seconds": fit[0] / steps,
        "fit_step_cpu_seconds": fit[1] / steps,
        "explain_graph_seconds": explained[0] / len(data),
        "explain_graph_cpu_seconds": explained[1] / len(data),
    }


def _seconds(work: Callable[[], Any], team: Team) -> tuple[float, float]:
    """Until the last process is done; of CPU, the most that one used."""
    team.wait()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    cpu = time.process_time() - cpu
    team.wait()
    return time.perf_counter() - wall, max(team.gather(cpu))


if __name__ == "__main__":
    print(json.dumps(_measure(**json.loads(sys.argv[1]))))
