"""The README is short, its example is reproducible, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
MAP = (ROOT / "docs" / "files.md").read_text()


def test_at_most_700_words() -> None:
    assert len(README.split()) <= 700


def test_the_example_prints_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trained model, a fit and an explanation from fixed seeds; all figures that are printed are in the README."""
    monkeypatch.chdir(tmp_path)
    ((code, shown),) = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.S)
    lines = [line for line in code.splitlines() if line.strip() and "import" not in line]
    assert len(lines) <= 12
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert capsys.readouterr().out == shown
    explanation = names["explanation"]
    assert 0 < int(explanation.kept.sum()) < explanation.kept.numel()  # type: ignore[attr-defined]
    assert names["accuracy"] >= 0.99  # type: ignore[operator]
    assert (tmp_path / "explanation.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "explanation.html").stat().st_size > 1000
    plt.close("all")


def test_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("http")]
    assert len(links) > 15
    for link in links:
        assert (ROOT / link).exists(), link


def test_the_map_names_files_that_exist() -> None:
    found = re.findall(r"`([a-z_/]+(?:\.py|/))`", MAP)
    assert len(found) > 30
    for name in found:
        at = ROOT / name if name.startswith("src/") else ROOT / "src/graphmask" / name
        assert at.exists(), name
