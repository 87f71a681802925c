"""A small corpus, with vectors of its own."""

from __future__ import annotations

import random

import pytest

from graphmask.experiments.qa import redocred
from graphmask.experiments.qa.examples import Examples, Words
from graphmask.experiments.vectors import Vectors

from .support import NORWAY, drawn, vectors, write


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory):
    rng = random.Random(0)
    documents = [NORWAY, *(drawn(number, rng) for number in range(300))]
    return write(tmp_path_factory.mktemp("qa"), documents)


@pytest.fixture(scope="session")
def glove(tmp_path_factory):
    return vectors(tmp_path_factory.mktemp("vectors") / "vectors.npz")


@pytest.fixture(scope="session")
def examples(corpus_folder, glove):
    questions = redocred.read(corpus_folder, limit=40).questions
    return Examples(questions, Words(questions, Vectors.open(glove)), candidates=6)
