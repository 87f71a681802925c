"""The code of docs/hetero.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs" / "hetero.md"


@pytest.mark.filterwarnings("ignore:There exist node types")
def test_every_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    assert len(blocks) == 4
    for code in blocks:
        exec(compile(code, "docs/hetero.md", "exec"), names)
    assert torch.equal(names["output"], names["explanation"].masked)  # type: ignore[attr-defined]
    assert names["explanation"].faithful  # type: ignore[attr-defined]
    assert (tmp_path / "hetero.html").stat().st_size > 1000
    assert names["plain"].info["edge_type_names"][2] == "paper cites paper"  # type: ignore[attr-defined]
