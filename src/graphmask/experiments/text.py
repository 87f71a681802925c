"""What the studies on text share: word vectors, presets, a training that can be gone on with."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, Unpack

from graphmask.errors import GraphMaskError
from graphmask.experiments import data
from graphmask.experiments.buckets import in_order
from graphmask.experiments.folder import figures_of
from graphmask.experiments.learning import Kept, Trained
from graphmask.experiments.settings import Text
from graphmask.experiments.study import Context, ModelT, Study

SPLITS = ("train", "dev", "test")
TRAINING = "training.safetensors"

T = TypeVar("T")


class Parted(Protocol):
    """A corpus in three parts."""

    @property
    def parts(self) -> Mapping[str, Any]: ...


def preset(name: str, known: Mapping[str, T]) -> T:
    """The preset of that name."""
    if name not in known:
        raise GraphMaskError(f"Expected a preset among {', '.join(known)}, got {name!r}.")
    return known[name]


PartedT = TypeVar("PartedT", bound=Parted)


class TextStudy(Study[PartedT, ModelT]):
    """A study whose corpus is read from files, below ``corpus_name`` in the folder of data unless it is given."""

    analyse_with = "--fits 5"
    corpus_name: ClassVar[str]
    #: ``predict(model, examples)``: what the model says of each.
    predict: Callable[[ModelT, Any], Any]
    #: ``notes(examples, batch, predicted)``: what a reader, and the tables, want to know of each graph of the batch.
    notes: Callable[[Any, Any, Any], list[dict[str, Any]]]

    @property
    @abstractmethod
    def settings(self) -> Text: ...

    @abstractmethod
    def load(self, folder: Path, vectors: Path | None, finished: Path | None) -> PartedT:
        """Read and encode the corpus; as a ``finished`` run did it, where there is one."""

    @abstractmethod
    def learn(self, model: ModelT, corpus: PartedT, **kept: Unpack[Kept]) -> Trained:
        """Train the model in place, or go on with that."""

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The model in words."""

    def record(self) -> dict[str, Any]:
        asked, vectors = self.settings, data.glove()
        return {
            "word_vectors": vectors.name if vectors else None,
            "preset": asked.preset,
            "seed": asked.seed,
            "limit": asked.limit,
            "data": None if asked.data is None else str(asked.data.absolute()),
        }

    def prepare(self, context: Context, finished: Path | None = None) -> PartedT:
        vectors = data.glove()
        if finished is not None:
            _check_vectors(finished, vectors)
        elif vectors is None:
            # It scores lower, and nobody should find that out later.
            context.say(f"no word vectors at {data.folder() / data.GLOVE}: this run learns its own, and scores lower")
        return self.load(self.settings.data or data.find(self.corpus_name), vectors, finished)

    def train(self, corpus: PartedT, context: Context) -> tuple[ModelT, dict[str, Any]]:
        where = f": {context.folder}" if context.folder else ""
        context.say(f"training and explaining {self.model_name}; an interrupted run goes on{where}")
        model = self.make(corpus)
        history, seconds = self.learn(model, corpus, path=context.at(TRAINING), progress=context.progress)
        examples = {split: len(part) for split, part in corpus.parts.items()}
        return model, {"examples": examples, "history": history, "train_cpu_seconds": seconds}

    def test(self, corpus: PartedT) -> list[Any]:
        return in_order(corpus.parts["test"])

    def describe(self, corpus: PartedT, model: ModelT) -> Callable[[Any], list[dict[str, Any]]]:
        test = corpus.parts["test"]
        predicted = self.predict(model, test)
        return lambda batch: self.notes(test, batch, predicted)


def _check_vectors(finished: Path, vectors: Path | None) -> None:
    """A model that was trained with word vectors is another without them, and the other way round."""
    figures = figures_of(finished)
    now = vectors.name if vectors else None
    if figures.get("word_vectors", now) != now:  # runs of 0.1 do not say
        raise GraphMaskError(
            f"Expected the word vectors of the run in {finished}, {figures['word_vectors'] or 'none'}; found "
            f"{now or 'none'} at {data.folder() / data.GLOVE}. Set {data.VARIABLE} as it was then, or run anew."
        )
