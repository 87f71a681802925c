"""The notebooks run, show what they say they show, and are stored without outputs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
#: What must hold at the end of each, in its own names; and packages that it needs.
HOLDS = {
    "molecules": (
        "assert shares['N-O bonds used'] > 0.4 > 3 * shares['other bonds used'], shares\n"
        "assert shares['within tolerance'] == 1, shares\n"
        "assert explanation.info['smiles'] and explanation.faithful"
    ),
    "node_classification": (
        "assert shares['person'] > 0.5 and shares['bot'] < 0.2, shares\n"
        "assert explanation.faithful and explanation.index == (0,)"
    ),
    "transformer": (
        "assert right > 0.97 and explanation.faithful and explanation.same_prediction\n"
        "assert explanation.retained < 0.2 and len(needed) > 0"
    ),
}
NEEDS = {"molecules": "rdkit", "transformer": "transformers"}


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(HOLDS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path: Path) -> None:
    found = read(path)
    nbformat.validate(found)
    for cell in found.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert set(found.metadata) == {"kernelspec", "language_info"}
    assert found.metadata.language_info == {"name": "python"}  # no version of whoever ran it last


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.stem in NEEDS and importlib.util.find_spec(NEEDS[path.stem]) is None:
        pytest.skip(f"no {NEEDS[path.stem]}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    found = read(path)
    found.cells.append(nbformat.v4.new_code_cell(HOLDS[path.stem]))
    client = nbclient.NotebookClient(
        found, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    kinds = [kind for cell in found.cells for output in cell.get("outputs", ()) for kind in output.get("data", ())]
    assert "image/png" in kinds
    cards = [
        output["data"]["text/html"]
        for cell in found.cells
        for output in cell.get("outputs", ())
        if "text/html" in output.get("data", ())
    ]
    assert any("within tolerance: divergence" in card and "<svg" in card for card in cards)
    if path.stem == "molecules":
        assert any(">N+</text>" in card for card in cards)
