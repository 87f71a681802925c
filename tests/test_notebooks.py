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


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The cells of each notebook after a run.

    One kernel runs all of them, because to start one and to import PyTorch takes longer than most cells: each begins in
    a folder of its own, without the names of those before it. An error names the cell.
    """
    top = tmp_path_factory.mktemp("notebooks")
    whole, places = nbformat.v4.new_notebook(), {}
    for path in NOTEBOOKS:
        if path.stem in NEEDS and importlib.util.find_spec(NEEDS[path.stem]) is None:
            continue
        (top / path.stem).mkdir()
        whole.cells.append(nbformat.v4.new_code_cell(f"%reset -f\n%cd -q {top / path.stem}"))
        cells = [*read(path).cells, nbformat.v4.new_code_cell(HOLDS[path.stem])]
        places[path.stem] = slice(len(whole.cells), len(whole.cells) + len(cells))
        whole.cells += cells
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(top))
        patch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        nbclient.NotebookClient(
            whole, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(top)}}
        ).execute()
    return {name: whole.cells[place] for name, place in places.items()}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, executed: dict[str, list[Any]]) -> None:
    if path.stem not in executed:
        pytest.skip(f"no {NEEDS[path.stem]}")
    cells = executed[path.stem]
    assert all(cell.execution_count is not None for cell in cells if cell.cell_type == "code")
    kinds = [kind for cell in cells for output in cell.get("outputs", ()) for kind in output.get("data", ())]
    assert "image/png" in kinds
    cards = [
        output["data"]["text/html"]
        for cell in cells
        for output in cell.get("outputs", ())
        if "text/html" in output.get("data", ())
    ]
    assert any("within tolerance: divergence" in card and "<svg" in card for card in cards)
    if path.stem == "molecules":
        assert any(">N+</text>" in card for card in cards)
