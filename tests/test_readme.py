"""The README's code runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_first_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    explanation = names["explanation"]
    assert explanation.masked.flatten().tolist() == pytest.approx(names["output"].flatten().tolist(), abs=1e-5)  # type: ignore[attr-defined]
    assert (tmp_path / "explanation.html").stat().st_size > 1000


def test_the_map_names_files_that_exist() -> None:
    table = README.read_text().split("## Where is what?")[1]
    for name in re.findall(r"`([a-z_/]+(?:\.py|/))`", table):
        at = README.parent / name if name.startswith("src/") else README.parent / "src/graphmask" / name
        assert at.exists(), name
