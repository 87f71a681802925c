"""What a study is: a task from its data to tables and pages, in steps that the commands carry out without knowing it.

`stages.run` goes through `prepare`, `train`, `fit`, `explain` and `measure`; `graphmask analyse` through `tables`, and
`graphmask run` ends with `pages`. To add a study, write a class with these methods and enter its settings in
`settings.STUDIES`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from torch import Tensor, nn

from graphmask import store
from graphmask.analysis.everything import Named, Planned
from graphmask.experiments.settings import Settings
from graphmask.explainer import GraphMask
from graphmask.explanation import Explanation

CorpusT = TypeVar("CorpusT")
ModelT = TypeVar("ModelT", bound=nn.Module)

Explanations: TypeAlias = list[Explanation] | store.Store

#: What the folder of a finished run holds; the figures are written last, so that a folder with figures is complete.
FIGURES, MODEL, EXPLAINER, EXPLANATIONS = "run.json", "model.safetensors", "explainer.graphmask", "explanations"


class Shown(NamedTuple):
    """A small table for the terminal."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Context:
    """Where a run writes, and what it says on the way. Without a folder nothing is kept and nothing gone on with."""

    folder: Path | None = None
    progress: bool = True
    say: Callable[[str], None] = lambda _: None

    def at(self, name: str) -> Path | None:
        """The path of a file in the folder."""
        return None if self.folder is None else self.folder / name


@dataclass
class Run(Generic[CorpusT, ModelT]):
    """A finished run, in memory or read back from its folder."""

    study: Study[CorpusT, ModelT]
    path: Path | None
    figures: dict[str, Any]
    corpus: CorpusT
    model: ModelT
    explainer: GraphMask
    explanations: Explanations  #: of the test part, as the gates are, without repair

    @property
    def folder(self) -> Path:
        assert self.path is not None, "the run was made in memory"
        return self.path

    @property
    def store(self) -> store.Store:
        """The explanations on disk."""
        explanations = self.explanations
        return explanations if isinstance(explanations, store.Store) else store.open(self.folder / EXPLANATIONS)

    @property
    def test(self) -> list[Any]:
        """The batches that were explained."""
        return self.study.test(self.corpus)


class Study(ABC, Generic[CorpusT, ModelT]):
    """A task with its settings."""

    #: Small tasks: a second thread costs more than it gives, and blurs CPU seconds.
    one_thread: ClassVar[bool] = False
    #: The checkpoint of a fit, and what else a finished run needs no more.
    checkpoint: ClassVar[str] = "fit.safetensors"
    temporary: ClassVar[tuple[str, ...]] = ()
    #: Does the JSON file of `graphmask analyse` hold several runs side by side? Then those of others stay in it.
    side_by_side: ClassVar[bool] = False
    #: Options of `graphmask analyse` that are worth their time.
    analyse_with: ClassVar[str] = ""

    @property
    @abstractmethod
    def settings(self) -> Settings: ...

    @property
    def forward(self) -> Callable[[nn.Module, Any], Tensor] | None:
        """How to call the model on a batch; None matches the model's own signature."""
        return None

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """The settings as ``run.json`` has them, with which `Settings.of_run` makes the study again."""

    @abstractmethod
    def prepare(self, context: Context, finished: Path | None = None) -> CorpusT:
        """The data. ``finished`` is the folder of a run that is read back: its own encoding of the data is used."""

    @abstractmethod
    def make(self, corpus: CorpusT) -> ModelT:
        """An untrained model."""

    @abstractmethod
    def train(self, corpus: CorpusT, context: Context) -> tuple[ModelT, dict[str, Any]]:
        """A trained model, and figures of its training; goes on from what a stopped run left in the folder."""

    @abstractmethod
    def fit(
        self, corpus: CorpusT, model: ModelT, *, seed: int, checkpoint: Path | None = None, progress: bool = True
    ) -> GraphMask:
        """Gates for the model; goes on from the checkpoint if it exists."""

    @abstractmethod
    def test(self, corpus: CorpusT) -> list[Any]:
        """The batches that are explained."""

    @abstractmethod
    def describe(self, corpus: CorpusT, model: ModelT) -> Callable[[Any], list[dict[str, Any]]]:
        """A function of a batch: for each of its graphs what a reader, and the tables, want to know beside it."""

    def explain(
        self, corpus: CorpusT, model: ModelT, explainer: GraphMask, context: Context
    ) -> tuple[Explanations, dict[str, Any]]:
        """Explanations of the test part, as the gates are, without repair; and figures of what that took."""
        if context.folder is None:
            return list(explainer.explain_all(self.test(corpus), repair=False, allow_infeasible=True)), {}
        return self.write(corpus, model, explainer, context.folder, progress=context.progress), {}

    def write(
        self, corpus: CorpusT, model: ModelT, explainer: GraphMask, folder: Path, *, progress: bool = True
    ) -> store.Store:
        """The same as a store in the folder; what a stopped run has written is gone on with."""
        return explainer.explain_all(
            self.test(corpus),
            out=folder / EXPLANATIONS,
            metadata=self.describe(corpus, model),
            repair=False,
            allow_infeasible=True,
            progress=progress,
        )

    @abstractmethod
    def measure(
        self, corpus: CorpusT, model: ModelT, explainer: GraphMask, explanations: Explanations
    ) -> dict[str, Any]:
        """The figures of explanations of the test part."""

    @abstractmethod
    def shown(self, figures: Mapping[str, Any]) -> list[Shown]:
        """What the terminal shows of the figures of a run."""

    @abstractmethod
    def tables(self, run: Run[CorpusT, ModelT], fits: int) -> list[Planned]:
        """The tables of `graphmask analyse`, to be worked out; with ``fits`` above 1 also how far fits agree."""

    @abstractmethod
    def summary(self, run: Run[CorpusT, ModelT], tables: Sequence[Named]) -> dict[str, Any]:
        """What `graphmask analyse` writes as JSON."""

    def pages(self, run: Run[CorpusT, ModelT]) -> list[Path]:
        """Pages that a run writes itself, besides the one of `graphmask report`."""
        return []


def of(settings: Settings) -> Study[Any, Any]:
    """The study that these settings are for."""
    module, name = settings.implementation.split(":")
    return getattr(import_module(module), name)(settings)
