"""`make extras`: the package alone, without a compiler, and with each of its extras alone.

torch and everything that graphmask needs by itself is installed once; each row is an environment that sees these
packages and holds graphmask, built from its sdist, and one extra. All versions are those of constraints.txt. In each
the part of the tests runs that asks for no other package.

    python tools/extras.py                  # every row
    python tools/extras.py store chem
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
CONSTRAINTS = str(HERE / "constraints.txt")
ALONE = [
    "test_bad_input.py",
    "test_capture.py",
    "test_divergence.py",
    "test_edges.py",
    "test_extras.py",
    "test_gates.py",
    "test_masking.py",
    "test_rows.py",
    "test_storage.py",
    "test_taps.py",
    "laws/test_open_gates.py",
]
#: What runs with which extra; by "" is meant none.
PARTS: dict[str, list[str]] = {
    "": ALONE,
    "no compiler": ["test_masking.py", "test_gates.py", "laws/test_open_gates.py"],
    "methods": ["methods/test_integrated_gradients.py", "methods/test_occlusion.py", "methods/test_gradients.py"],
    "plot": ["report/test_figures.py", "report/test_notebook.py"],
    "store": ["store/test_files.py", "store/test_refusals.py", "store/test_round_trip.py", "analysis/test_paths.py"],
    "qa": ["tasks/qa/test_mentions.py", "tasks/qa/test_wikihop.py", "tasks/qa/test_redocred.py"],
    "distributed": ["test_distributed.py"],
    "transformers": ["attention/test_laws.py", "attention/test_tapped.py"],
    "chem": ["report/test_molecule.py"],
    "studies": ["tasks/relations/test_relations.py"],
}
#: The names that everybody imports, a fit, and whether C is active; exits with 1 where it is not as told.
TRIED = """
import sys
from graphmask import *
from graphmask import config
kernels = config.installed()["kernels"]
print("kernels:", kernels)
sys.exit((kernels == "C") is not (sys.argv[1] == "C"))
"""


def run(*command: str, cwd: Path = HERE, **settings: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1", **settings}
    subprocess.run(command, check=True, cwd=cwd, env=environment)


def made(folder: Path) -> tuple[Path, Path]:
    """An environment with what graphmask needs, beside pytest and hypothesis; and the sdist."""
    base = folder / "base"
    run(sys.executable, "-m", "venv", str(base))
    pip = [str(base / "bin/python"), "-m", "pip", "install", "--quiet", "-c", CONSTRAINTS]
    run(*pip, "build", "pytest", "hypothesis")
    copy = folder / "checkout"
    copy.mkdir()
    tree = subprocess.run(["git", "archive", "HEAD"], cwd=HERE, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", str(copy)], input=tree, check=True)
    run(str(base / "bin/python"), "-m", "build", "--outdir", str(folder / "dist"), cwd=copy)
    (wheel,) = (folder / "dist").glob("*.whl")
    run(*pip, str(wheel))
    run(str(base / "bin/python"), "-m", "pip", "uninstall", "--quiet", "--yes", "graphmask")
    return base, copy


def row(folder: Path, base: Path, copy: Path, name: str) -> None:
    here = folder / (name.replace(" ", "-") or "none")
    run(sys.executable, "-m", "venv", str(here))
    python = str(here / "bin/python")
    (packages,) = here.glob("lib/python*/site-packages")
    (shared,) = base.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text(f"{shared}\n")
    pip = [python, "-m", "pip", "install", "--quiet", "-c", CONSTRAINTS]
    if name == "no compiler":
        (sdist,) = (folder / "dist").glob("*.tar.gz")
        run(*pip, "--no-deps", "--no-cache-dir", str(sdist), CC="false", CXX="false")
    else:
        (wheel,) = (folder / "dist").glob("*.whl")
        run(*pip, f"{wheel}[{name}]" if name else str(wheel))
    run(python, "-c", TRIED, "no C" if name == "no compiler" else "C", cwd=folder)
    run(str(here / "bin/graphmask"), "--version", cwd=folder)
    if not name:
        run(str(here / "bin/graphmask"), "demo", cwd=here)
    tests = [f"tests/{test}" for test in PARTS[name]]
    run(python, "-m", "pytest", "-p", "no:cacheprovider", *tests, cwd=copy)


def main(names: Sequence[str]) -> int:
    unknown = sorted(set(names) - set(PARTS))
    if unknown:
        print(f"Expected rows of {', '.join(filter(None, PARTS))}, got {', '.join(unknown)}.")
        return 2
    failed = []
    with tempfile.TemporaryDirectory(prefix="graphmask-extras-") as top:
        base, copy = made(Path(top))
        for name in names or PARTS:
            print(f"== {name or 'none'}", flush=True)
            try:
                row(Path(top), base, copy, name)
            except subprocess.CalledProcessError as error:
                print(f"== {name or 'none'} FAILED: {error}", flush=True)
                failed.append(name or "none")
    print(f"== {len(names or PARTS) - len(failed)} passed, {len(failed)} failed: {', '.join(failed) or 'none'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
