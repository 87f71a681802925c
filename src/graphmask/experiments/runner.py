"""The study of tasks with a known answer: graphs are drawn, and what is kept is compared with the gold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn
from torch_geometric.data import Batch

from graphmask import experiments, files, team
from graphmask.analysis import everything, stability
from graphmask.analysis.everything import Named, Planned
from graphmask.analysis.tally import Tally
from graphmask.experiments import gold, stages, task_page
from graphmask.experiments.common import singles
from graphmask.experiments.settings import KNOWN, KnownAnswer
from graphmask.experiments.stages import one_thread
from graphmask.experiments.study import Context, Explanations, Shown, Study
from graphmask.experiments.study import Run as StudyRun
from graphmask.explainer import GraphMask
from graphmask.fitting.recipe import RECIPES, Recipe

__all__ = ["Graphs", "KnownAnswerStudy", "Run", "draw", "one_thread", "run", "train_model"]

#: Graphs to fit on, to calibrate on, and to be judged by. 500 batches of 64: a recipe's 1,000 steps are whole epochs.
FIT, VALIDATION, TEST = 32_000, 2_000, 2_000
#: Which of the three a draw is.
FIT_PART, VALIDATION_PART, TEST_PART = range(3)
#: A model that is trained while its gates are not fitted yet; a run that was stopped goes on with it.
TRAINED = "unfinished-model.safetensors"
TOLERANCE = 0.03

#: A model, and figures of its training.
Trained = tuple[nn.Module, dict[str, float]]


def draw(name: str, seed: int, part: int) -> list[Batch]:
    """Graphs of a run: to fit on (0), to calibrate on (1), to be judged by (2)."""
    # Seeds of the data are far apart, so that no graph is seen twice.
    return experiments.get(name).generate((FIT, VALIDATION, TEST)[part], seed=(seed + 1) * 10_000 + part)


def train_model(name: str, seed: int, progress: bool = False) -> Trained:
    started = time.process_time()
    model, accuracy = experiments.get(name).train(seed=seed, progress=progress)
    return model, {"accuracy": accuracy, "train_cpu_seconds": time.process_time() - started}


class Graphs:
    """The graphs of a run, drawn when they are asked for."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.seed = name, seed

    def part(self, part: int) -> list[Batch]:
        return draw(self.name, self.seed, part)

    @cached_property
    def test(self) -> list[Batch]:
        return self.part(TEST_PART)


Run = StudyRun[Graphs, nn.Module]


class KnownAnswerStudy(Study[Graphs, nn.Module]):
    """Star or relay. ``recipe`` may be one without a name, ``trained`` what `train_model` made before."""

    one_thread = True
    checkpoint = "unfinished.safetensors"
    temporary = (checkpoint, TRAINED)

    def __init__(
        self, settings: KnownAnswer, *, recipe: str | Recipe | None = None, trained: Trained | None = None
    ) -> None:
        self._settings, self.name, self.seed = settings, settings.task, settings.seed
        self.tolerance = TOLERANCE if settings.tolerance is None else settings.tolerance
        self.recipe = settings.recipe if recipe is None else recipe
        self.trained = trained

    @property
    def settings(self) -> KnownAnswer:
        return self._settings

    def record(self) -> dict[str, Any]:
        size = team.team().size
        return {
            "seed": self.seed,
            "recipe": self.recipe.name if isinstance(self.recipe, Recipe) else RECIPES[self.recipe].name,
            "tolerance": self.tolerance,
            "processes": size,
            "batches_per_step": size * self.settings.accumulate,
            "precision": self.settings.precision,
        }

    def prepare(self, context: Context, finished: Path | None = None) -> Graphs:
        return Graphs(self.name, self.seed)

    def make(self, corpus: Graphs) -> nn.Module:
        return experiments.get(self.name).make(seed=self.seed)

    def train(self, corpus: Graphs, context: Context) -> tuple[nn.Module, dict[str, Any]]:
        """As a run that was stopped left the model, or trained now and kept for one that will be."""
        model_file = context.at(TRAINED)
        model, about = self.trained or self._left(corpus, model_file, context) or self._anew(model_file, context)
        context.say(f"its accuracy is {about['accuracy']:.2%}")
        team.team().align(model)  # each process trained it
        return model, {"model": about}

    def _left(self, corpus: Graphs, model_file: Path | None, context: Context) -> Trained | None:
        if model_file is None or not model_file.exists():
            return None
        tensors, about = files.read(model_file, "model")
        if (about.pop("task", None), about.pop("seed", None)) != (self.name, self.seed):
            return None
        context.say(f"the {self.name} model was trained before: {model_file}")
        model = self.make(corpus)
        with files.understood(model_file, "model"):
            model.load_state_dict(tensors)
        return model.eval(), about

    def _anew(self, model_file: Path | None, context: Context) -> Trained:
        context.say(f"training the {self.name} model ...")
        model, about = train_model(self.name, self.seed, context.progress and team.first())
        if model_file is not None and team.launched() == 1:  # of several processes each trains its own
            files.write(model_file, "model", model.state_dict(), {"task": self.name, "seed": self.seed, **about})
        return model, about

    def fit(
        self, corpus: Graphs, model: nn.Module, *, seed: int, checkpoint: Path | None = None, progress: bool = True
    ) -> GraphMask:
        asked = self.settings
        explainer = GraphMask(model, tolerance=self.tolerance, seed=seed, recipe=self.recipe, precision=asked.precision)
        parts = (corpus.part(part) for part in (FIT_PART, VALIDATION_PART))
        explainer.fit(*parts, checkpoint=checkpoint, progress=progress, accumulate=asked.accumulate)
        return explainer

    def test(self, corpus: Graphs) -> list[Batch]:
        return corpus.test

    def describe(self, corpus: Graphs, model: nn.Module) -> Callable[[Batch], list[dict[str, Any]]]:
        describe = experiments.get(self.name).describe

        def notes(batch: Batch) -> list[dict[str, Any]]:
            keys = ("node_labels", "edge_labels", "notes")
            return [
                {
                    **dict(zip(keys, describe(graph), strict=True)),
                    "gold": graph.gold.t().tolist(),
                    "classes": list(task_page.ANSWERS),
                }
                for graph in singles(batch)
            ]

        return notes

    def explain(
        self, corpus: Graphs, model: nn.Module, explainer: GraphMask, context: Context
    ) -> tuple[Explanations, dict[str, Any]]:
        """In memory, for the time that it takes; and in the folder. In several processes each has those of all."""
        started = time.perf_counter()
        mine = list(explainer.explain_all(corpus.test, repair=False, allow_infeasible=True))
        explanations = team.in_order(team.team(), mine, [batch.num_graphs for batch in corpus.test])
        spent = time.perf_counter() - started
        if context.folder is not None:
            self.write(corpus, model, explainer, context.folder, progress=context.progress and team.first())
        return explanations, {"explain_ms": 1000 * spent / len(explanations)}

    def measure(
        self, corpus: Graphs, model: nn.Module, explainer: GraphMask, explanations: Explanations
    ) -> dict[str, Any]:
        assert explainer.probe is not None
        return {
            "precision": explainer.precision,  # by default as the processes were launched
            "gold": gold.compare(explanations, corpus.test),
            "gold_check": gold.check(model, explainer.probe, corpus.test[:8]),
            **Tally.of(explanations).means,
        }

    def shown(self, figures: Mapping[str, Any]) -> list[Shown]:
        keys = ["retained", "divergence", "flips", "faithful", "fit_seconds", "fit_cpu_seconds", "explain_ms"]
        title = f"{self.name}, seed {self.seed}: kept edges against gold, per cent"
        return [
            Shown(title, gold.HEADER, gold.rows(figures)),
            Shown("the rest", ["figure", "value"], [[key, figures[key]] for key in keys]),
        ]

    def tables(self, run: Run, fits: int) -> list[Planned]:
        plan = [*everything.of_store(run.store), *everything.of_model(run.explainer, run.test)]
        if fits > 1:
            some, note = everything.sample(run.test)
            title = f"Agreement of {fits} fits"
            plan.append(Planned("stability", title, lambda: stability(several(run, fits, some)), note))
        return plan

    def summary(self, run: Run, tables: Sequence[Named]) -> dict[str, Any]:
        return {table.name: table.for_json() for table in tables}

    def pages(self, run: Run) -> list[Path]:
        return [task_page.write_task_page(run.folder / f"{self.name}.html", run, self.name)]


def several(run: Run, fits: int, batches: Sequence[Batch]) -> list[Any]:
    """Explanations by the run's gates, and by those of fits with the seeds that follow its own."""
    explanations = [run.explainer.explain_all(batches, repair=False, allow_infeasible=True)]
    for seed in range(run.corpus.seed + 1, run.corpus.seed + fits):
        first = run.explainer
        again = type(first)(run.model, tolerance=first.tolerance, seed=seed, recipe=first.recipe)
        again.fit(*(run.corpus.part(part) for part in (FIT_PART, VALIDATION_PART)), progress=False)
        explanations.append(again.explain_all(batches, repair=False, allow_infeasible=True))
    return explanations


def run(
    name: str,
    seed: int = 0,
    *,
    recipe: str | Recipe = "noisy",
    tolerance: float = TOLERANCE,
    trained: Trained | None = None,
    progress: bool = True,
    accumulate: int = 1,
    precision: str | None = None,
) -> Run:
    """A run in memory. ``trained`` takes a model that `train_model` made before."""
    settings = KNOWN[name](seed=seed, tolerance=tolerance, accumulate=accumulate, precision=precision)
    return stages.run(KnownAnswerStudy(settings, recipe=recipe, trained=trained), Context(progress=progress))
