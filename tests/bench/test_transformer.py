"""The bench of transformers measures what it says, on a model small enough for a test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from graphmask import cli
from graphmask.experiments.bench import transformer


def test_ratios_are_of_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SENTENCES": 3, "TOKENS": 8, "LAYERS": 2, "WIDTH": 16, "HEADS": 2, "WORDS": 30}.items():
        monkeypatch.setattr(transformer, name, value)
    figures = tmp_path / "figures.json"
    result = CliRunner().invoke(
        cli.app, ["bench", "transformer", "--rounds", "2", "--steps", "2", "--json", str(figures)]
    )
    assert result.exit_code == 0, result.output
    found = json.loads(figures.read_text())
    assert found["explain_ratio"] == pytest.approx(found["explain"] / found["forward"])
    assert found["memory"] == pytest.approx(found["explain_bytes"] / found["forward_bytes"])
    assert found["explain_bytes"] > 2 * 2 * 3 * 2 * 8 * 8 * 4  # scores and locations of all gates
    assert found["memory_with_parameters"] < found["memory"]
    assert found["step"] > 0
