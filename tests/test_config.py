"""What `show_config` and `graphmask --version` say of the installation."""

from __future__ import annotations

import sys
from importlib import metadata

import pytest
import torch

import graphmask
from graphmask import config
from graphmask.ops import fused


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    graphmask.show_config()
    return dict(line.split(" ", 1) for line in capsys.readouterr().out.splitlines())


def test_versions_kernels_and_threads(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys)
    assert found["graphmask"] == graphmask.__version__
    assert found["torch"] == metadata.version("torch")
    assert found["torch_geometric"] == metadata.version("torch_geometric")
    assert found["threads"] == str(torch.get_num_threads())
    assert (found["kernels"] == "C") == (fused._fused is not None)


def test_without_the_compiled_part_it_says_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "graphmask.ops._fused", None)
    monkeypatch.delattr("graphmask.ops._fused", raising=False)
    assert shown(capsys)["kernels"].startswith("PyTorch, C is not active (")


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "SHOWN", ("graphmask", "no_such_distribution"))
    assert config.installed()["no_such_distribution"] == "not installed"
