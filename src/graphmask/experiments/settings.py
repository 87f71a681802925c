"""What a run of each study can be asked for.

The command line makes its options from these classes, so nothing here may load torch: `graphmask run srl --help` is
quick. A study is found by the name of its task in `STUDIES`; nothing else lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from graphmask.errors import GraphMaskError, check_known, check_least

PRECISIONS = ("bf16",)
#: LSTM+GNN has one layer of GNN over a BiLSTM, GNN-only has two layers and no LSTM.
LABELLERS = ("lstm", "gnn")


def option(help: str) -> dict[str, str]:
    """The metadata of a field that the command line offers as an option. Fields without are for programs only."""
    return {"help": help}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every study can be asked for."""

    task: ClassVar[str]
    about: ClassVar[str]  #: the help of `graphmask run TASK`
    kind: ClassVar[str]  #: by which the help of `graphmask run` groups its tasks
    implementation: ClassVar[str]  #: module and class of the study, with a colon between
    #: May it run in several processes that work as one?
    several_processes: ClassVar[bool] = False
    #: Figures in which a finished run in the folder must agree with what is asked for. Such a run is not repeated
    #: unless ``--again`` is given. Without any, all steps are gone through again, from their checkpoints.
    identity: ClassVar[tuple[str, ...]] = ()
    #: Figures of a finished run that `of_run` reads.
    recorded: ClassVar[tuple[str, ...]] = ("seed",)

    seed: int = field(default=0, metadata=option("Seed of data, model and gates."))
    tolerance: float | None = field(default=None, metadata=option("Divergence that is still the same prediction."))

    @classmethod
    def of_run(cls, figures: Mapping[str, Any]) -> Self:
        """The settings that led to these figures, as far as reading the run back needs them."""
        return cls(seed=figures["seed"], tolerance=figures.get("tolerance"))

    def check(self) -> None:
        """Raise before any work if there can be no such run."""
        check_least("--seed", self.seed, 0)
        if self.tolerance is not None and not 0 < self.tolerance < float("inf"):
            raise GraphMaskError(f"Expected --tolerance to be above 0, got {self.tolerance:g}.")

    @property
    def folder(self) -> str:
        """The name of a folder for the run, where none is given."""
        return self.task

    @property
    def command(self) -> str:
        """The command that asks for this run: the seed, and all options that are not as they are by default."""
        parts = [f"graphmask run {self.task} --seed {self.seed}"]
        for each in fields(self):
            value = getattr(self, each.name)
            if each.metadata and each.name != "seed" and value != each.default:
                name = f"--{each.name.replace('_', '-')}"
                parts.append(name if value is True else f"{name} {value}")
        return " ".join(parts)


@dataclass(frozen=True, kw_only=True)
class KnownAnswer(Settings):
    """A task whose answer is known; ``module`` has its graphs and its model."""

    kind = "Tasks with a known answer"
    implementation = "graphmask.experiments.runner:KnownAnswerStudy"
    several_processes = True
    identity = ("task", "seed", "recipe", "tolerance", "precision")
    module: ClassVar[str]
    story: ClassVar[str] = ""  #: the task in a few words, for `graphmask demo`

    recipe: str = field(default="noisy", metadata=option("How gates are trained: noisy or paper."))
    accumulate: int = field(default=1, metadata=option("Batches per step, in each process."))
    precision: str | None = field(default=None, metadata=option("bf16 runs the model under autocast."))

    def check(self) -> None:
        from graphmask.fitting.recipe import RECIPES

        check_known("a recipe", self.recipe, RECIPES)
        check_least("--accumulate", self.accumulate, 1)
        if self.precision is not None:
            check_known("a precision", self.precision, PRECISIONS)
        super().check()

    @property
    def folder(self) -> str:
        return f"{self.task}-{self.seed}" if self.seed else self.task


_COMPARED = "The answer is known; the table says how much of it was found."


@dataclass(frozen=True, kw_only=True)
class Star(KnownAnswer):
    task = "star"
    about = f"Are there more edges of one colour than of another? {_COMPARED}"
    module = "graphmask.experiments.star_graphs"
    story = (
        "A model is shown a star of coloured edges and asked: are there more of one colour than of another?\n"
        "It must count the edges of those two colours, and no others. Does GraphMask find that out?\n"
    )


@dataclass(frozen=True, kw_only=True)
class Relay(KnownAnswer):
    task = "relay"
    about = f"The same over two layers: leaves report to mids, mids to the root. {_COMPARED}"
    module = "graphmask.experiments.relay"


_FOUND = "found through GRAPHMASK_DATA."


@dataclass(frozen=True, kw_only=True)
class Text(Settings):
    """A study on text: a corpus from files, and sizes of models by the name of a preset."""

    kind = "Studies on text"
    recorded: ClassVar[tuple[str, ...]] = ("seed", "preset", "data", "limit")

    preset: str = field(default="small", metadata=option("Sizes: small (two cores) or paper."))
    data: Path | None = field(default=None, metadata=option(f"Folder of the corpus; {_FOUND}"))
    limit: int | None = None  #: the first so many sentences, documents or questions of every file
    epochs: int | None = None  #: of the model, in place of the preset's

    @classmethod
    def of_run(cls, figures: Mapping[str, Any], **more: Any) -> Self:
        return cls(
            seed=figures["seed"],
            tolerance=figures.get("tolerance"),
            preset=figures["preset"],
            data=Path(figures["data"]) if figures["data"] else None,
            limit=figures["limit"],
            **more,
        )

    def check(self) -> None:
        super().check()
        if self.data is not None and not self.data.is_dir():
            raise GraphMaskError(f"Expected --data to be a folder, found none at {self.data}.")


@dataclass(frozen=True, kw_only=True)
class Srl(Text):
    task = "srl"
    about = "Semantic role labelling, the paper's section 6. An interrupted run goes on."
    implementation = "graphmask.experiments.srl.experiment:Labelling"
    recorded = (*Text.recorded, "model", "predicted")

    data: Path | None = field(
        default=None, metadata=option("Folder of CoNLL-2009 files; found through GRAPHMASK_DATA.")
    )
    model: str = field(default="lstm", metadata=option("lstm (BiLSTM and one GNN layer) or gnn (two GNN layers)."))
    gold_trees: bool = field(default=False, metadata=option("Trees, lemmas and tags from the gold columns."))

    @classmethod
    def of_run(cls, figures: Mapping[str, Any], **more: Any) -> Self:
        return super().of_run(figures, model=figures["model"], gold_trees=not figures["predicted"], **more)

    def check(self) -> None:
        check_known("a model", self.model, LABELLERS)
        super().check()

    @property
    def folder(self) -> str:
        return f"{self.task}-{self.model}"


@dataclass(frozen=True, kw_only=True)
class Qa(Text):
    task = "qa"
    about = "Multi-hop questions, the paper's section 5. An interrupted run goes on."
    implementation = "graphmask.experiments.qa.experiment:Answering"

    data: Path | None = field(
        default=None, metadata=option("Folder of Re-DocRED or WikiHop files; found through GRAPHMASK_DATA.")
    )


STUDIES: dict[str, type[Settings]] = {each.task: each for each in (Star, Relay, Srl, Qa)}
KNOWN: dict[str, type[KnownAnswer]] = {name: each for name, each in STUDIES.items() if issubclass(each, KnownAnswer)}
#: The one that `graphmask demo` tells: the first with a story.
DEMO = next(each for each in KNOWN.values() if each.story)
