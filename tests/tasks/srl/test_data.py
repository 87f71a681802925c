"""Where data is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphmask.errors import GraphMaskError
from graphmask.experiments import data


def test_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("GRAPHMASK_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert data.folder() == tmp_path / "home" / ".cache" / "graphmask"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data.folder() == tmp_path / "cache" / "graphmask"
    (tmp_path / "shared" / "data").mkdir(parents=True)  # beside the folder one is in: not looked at
    assert data.folder() == tmp_path / "cache" / "graphmask"
    monkeypatch.setenv("GRAPHMASK_DATA", str(tmp_path / "named"))
    assert data.folder() == tmp_path / "named"


def test_found_or_said_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHMASK_DATA", str(tmp_path))
    (tmp_path / "there").write_text("")
    assert data.find("there") == tmp_path / "there"
    with pytest.raises(GraphMaskError, match=r"Set the environment variable GRAPHMASK_DATA .* srl-ewt/absent"):
        data.find("srl-ewt/absent")
    for name, page in (("srl-ewt", "docs/studies/srl.md"), ("qa-absent", "docs/studies/qa.md"), ("x", "docs/data.md")):
        with pytest.raises(GraphMaskError, match=page):
            data.find(name)
