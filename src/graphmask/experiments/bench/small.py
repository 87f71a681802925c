"""What one small graph costs, as ratios in one process on one thread: here fixed costs count, not arithmetic.

And what one waits for: the first explanation, fit included, and each one after, beside other libraries' (`first`).
"""

from __future__ import annotations

from typing import Any

from graphmask.experiments import runner
from graphmask.experiments.bench import first
from graphmask.experiments.bench.core import Subject, medians, step_means

NODES, EDGES, LAYERS = 20, 60, 3
MODELS = ("GCN", "GIN")


def cost(name: str, seed: int, repeats: int) -> dict[str, float]:
    """Medians of explaining and of a plain forward, in turns; means of a step of fitting and of training."""
    subject = Subject(name, EDGES, seed, degree=EDGES // NODES, layers=LAYERS)
    explain, forward = medians(subject.explain, subject.forward, repeats)
    with subject.steps() as (fit, train):
        step, training = step_means(fit, train, repeats)
    return {
        "explain_ratio": explain / forward,
        "fit_step_ratio": step / training,
        "explain_ms": 1000 * explain,
        "forward_ms": 1000 * forward,
    }


def measure(seed: int = 0, repeats: int = 100) -> dict[str, Any]:
    with runner.one_thread():
        models = {name: cost(name, seed, repeats) for name in MODELS}
        waiting = first.measure(MODELS[-1], NODES, EDGES, LAYERS, seed)
    return {"nodes": NODES, "edges": EDGES, "layers": LAYERS, "models": models, "first": waiting}
