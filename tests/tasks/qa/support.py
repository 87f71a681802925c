"""Documents in DocRED's format, written by hand and drawn at random."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

NAMES = {"P36": "capital", "P17": "country", "P26": "spouse"}


def mention(name: str, sentence: int, start: int, kind: str) -> dict[str, Any]:
    return {"name": name, "sent_id": sentence, "pos": [start, start + len(name.split())], "type": kind}


#: Oslo and Bergen are the candidates of the one question that has an answer and a choice.
NORWAY: dict[str, Any] = {
    "title": "Norway",
    "sents": [
        ["Norway", "lies", "north", "of", "Denmark", "."],
        ["Its", "capital", "is", "Oslo", ",", "and", "Bergen", "is", "large", "."],
        ["Oslo", "is", "older", "than", "Tom", "Hansen", "."],
    ],
    "vertexSet": [
        [mention("Norway", 0, 0, "LOC")],
        [mention("Denmark", 0, 4, "LOC")],
        [mention("Oslo", 1, 3, "LOC"), mention("Oslo", 2, 0, "LOC")],
        [mention("Bergen", 1, 6, "LOC")],
        [mention("Tom Hansen", 2, 4, "PER")],
    ],
    "labels": [
        {"h": 0, "r": "P36", "t": 2, "evidence": [0, 1]},
        {"h": 0, "r": "P26", "t": 4, "evidence": []},
        {"h": 4, "r": "P17", "t": 0, "evidence": [2]},
        {"h": 4, "r": "P17", "t": 1, "evidence": [2]},
    ],
}
WORDS = [f"w{number}" for number in range(24)]


def drawn(number: int, rng: random.Random) -> dict[str, Any]:
    """The answer stands in the sentence of the subject, but candidates of the next sentence are nearer."""
    subject, answer, *others = rng.sample(WORDS, 5)
    sentences = [
        [answer, *["and"] * 6, subject],
        [others[0], "and", others[1], "."],
        [others[2], "and", others[0], "."],
    ]
    places = {
        subject: [(0, 7)],
        answer: [(0, 0)],
        others[0]: [(1, 0), (2, 2)],
        others[1]: [(1, 2)],
        others[2]: [(2, 0)],
    }
    names = list(places)
    rng.shuffle(names)
    return {
        "title": f"document {number}",
        "sents": sentences,
        "vertexSet": [[mention(name, *place, "LOC") for place in places[name]] for name in names],
        "labels": [{"h": names.index(subject), "r": "P36", "t": names.index(answer), "evidence": [0]}],
    }


def write(folder: Path, documents: list[dict[str, Any]], names: dict[str, str] | None = None) -> Path:
    """As Re-DocRED's files."""
    half = len(documents) // 2
    (folder / "dev_revised.json").write_text(json.dumps(documents[:half]))
    (folder / "test_revised.json").write_text(json.dumps(documents[half:]))
    (folder / "rel_info.json").write_text(json.dumps(NAMES if names is None else names))
    return folder


def vectors(path: Path, size: int = 12) -> Path:
    """Random vectors for the words above."""
    words = [*WORDS, "norway", "denmark", "oslo", "bergen", "tom", "hansen", "capital", "country", "spouse"]
    rows = np.random.default_rng(0).normal(size=(len(words), size)).astype(np.float16)
    np.savez(path, words=np.array(words), vectors=rows)
    return path
