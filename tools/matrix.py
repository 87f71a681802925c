"""`make matrix`: the quick tests on other versions of Python and torch, each in a folder that is thrown away.

PyPI's wheels of torch for Linux bring gigabytes of CUDA, but for the one that constraints.txt names where its CPU build
is at hand. Debian builds torch for processors: of two of its releases a root folder is made (mmdebstrap, as root), with
their Python and torch; everything else comes from PyPI and must not replace that torch. In each the wheel is installed,
the demo runs, and the quick tests (`-m "not slow"`) run against it; the slow ones, and those that need a browser, RDKit
or corpora, run on the versions of constraints.txt only (`make test`).

    python tools/matrix.py                  # every row
    python tools/matrix.py trixie -- -k gates   # one row; the rest goes to pytest
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
#: Everything that the quick tests import, beside torch. Lint, types, docs and the browser are not asked here.
WANTED = [
    "torch_geometric",
    "safetensors",
    "networkx",
    "jinja2",
    "typer",
    "rich",
    "captum",
    "matplotlib",
    "pyarrow",
    "polars",
    "spacy",
    "accelerate",
    "transformers",
    "pytest",
    "pytest-xdist",
    "hypothesis",
    "statsmodels",
    "torchmetrics",
    "pandas",
    "build",
    "twine",
]
PACKAGES = "python3-torch,python3-venv,python3-dev,gcc,libc6-dev,ca-certificates,git"
VERSIONS = (
    "import sys, torch, torch_geometric; from graphmask.ops import _fused; "
    "print('Python', sys.version.split()[0], 'torch', torch.__version__, 'PyG', torch_geometric.__version__, 'with C')"
)
Run = Callable[[Sequence[str]], None]


#: The root folder has its own /proc and this machine's devices, which are gone when the command ends.
MOUNTED = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"'


def inside(root: Path) -> Run:
    """Runs commands in a root folder, with the registry's settings and certificates of this machine."""

    def run(command: Sequence[str]) -> None:
        settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        settings |= {
            "PATH": "/venv/bin:/usr/sbin:/usr/bin:/bin",
            "HOME": "/root",
            "OMP_NUM_THREADS": "1",
            "LC_ALL": "C.UTF-8",
        }
        settings.pop("PIP_FIND_LINKS", None)  # of torch's wheels, this machine's Python only
        subprocess.run(["unshare", "--mount", "sh", "-c", MOUNTED, str(root), *command], check=True, env=settings)

    return run


def debian(suite: str, folder: Path, pytest: Sequence[str], oldest: Sequence[str] = ()) -> None:
    root = folder / suite
    if not root.exists():
        subprocess.run(
            [
                *("mmdebstrap", "--variant=apt", f"--include={PACKAGES}", '--aptopt=APT::Install-Recommends "false"'),
                # A mirror may be some days old; signatures are checked all the same.
                *('--aptopt=Acquire::Check-Valid-Until "false"', suite, str(root)),
            ],
            check=True,
        )
    for name in ("resolv.conf", "hosts"):
        shutil.copy(f"/etc/{name}", root / "etc" / name)
    shutil.copy(os.environ.get("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt"), root / "etc/ssl/certs")
    run = inside(root)
    run(["python3", "-m", "venv", "--system-site-packages", "/venv"])
    held = "import importlib.metadata as m; print('torch==' + m.version('torch'))"
    run(["sh", "-c", f'/venv/bin/python -c "{held}" > /constraints.txt'])
    run(["sh", "-c", "printf '%s\\n' \"$@\" >> /constraints.txt && cat /constraints.txt", "sh", *oldest])
    run(["/venv/bin/pip", "install", "--quiet", "--only-binary", ":all:", "-c", "/constraints.txt", *WANTED])
    check(run, root, "/venv/bin/python", pytest)


def pinned(folder: Path, pytest: Sequence[str]) -> None:
    """The versions of constraints.txt, with the Python that runs this."""
    root = folder / "pinned"
    subprocess.run([sys.executable, "-m", "venv", str(root)], check=True)
    constraints = str(HERE / "constraints.txt")

    def run(command: Sequence[str]) -> None:
        subprocess.run(command, check=True, cwd=root, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""})

    run([str(root / "bin/pip"), "install", "--quiet", "-c", constraints, "torch", *WANTED])
    check(run, root, str(root / "bin/python"), pytest)


def wheel(folder: Path) -> Path:
    """The one wheel that all rows install, built by the Python that runs this for that version and later ones."""
    made = sorted((folder / "dist").glob("*.whl"))
    if not made:
        tools = folder / "tools"
        subprocess.run([sys.executable, "-m", "venv", str(tools)], check=True)
        pip = [str(tools / "bin/pip"), "install", "--quiet", "-c", str(HERE / "constraints.txt")]
        subprocess.run([*pip, "build"], check=True)
        subprocess.run(
            [str(tools / "bin/python"), "-m", "build", "--outdir", str(folder / "dist"), str(checkout(folder))],
            check=True,
        )
        made = sorted((folder / "dist").glob("*.whl"))
    (found,) = made
    if "-cp311-abi3-" not in found.name:
        raise SystemExit(f"Expected a wheel for Python 3.11 and later, made {found.name}. Run this by Python 3.11.")
    return found


@cache
def commit() -> str:
    """The commit of which all rows are, whatever is committed while they run."""
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=HERE, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def checkout(folder: Path) -> Path:
    """What git has, without what was built beside it."""
    copy = folder / "checkout"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    tree = subprocess.run(["git", "archive", commit()], cwd=HERE, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", str(copy)], input=tree, check=True)
    return copy


def check(run: Run, root: Path, python: str, pytest: Sequence[str]) -> None:
    """Install the wheel, run the demo, and run the quick tests against it."""
    made = wheel(root.parent)
    copy = checkout(root)
    shutil.copy(made, copy)
    place = "/checkout" if python.startswith("/venv") else str(copy)
    run(["sh", "-c", f"{python} -m pip install --quiet --no-deps --force-reinstall {place}/{made.name}"])
    run(["sh", "-c", f'cd / && {python} -c "{VERSIONS}" && {python} -m graphmask --version'])
    run(["sh", "-c", f"cd {place} && {python} -m graphmask demo --out demo"])
    asked = " ".join(pytest) or '-m "not slow"'
    run(["sh", "-c", f"cd {place} && {python} -m pytest -p no:cacheprovider {asked}"])


#: Of these, the oldest that pyproject.toml allows are installed beside the oldest torch.
OLDEST = ["torch_geometric==2.7.0", "transformers==5.0.*"]
ROWS: dict[str, Callable[[Path, Sequence[str]], None]] = {
    "pinned": pinned,
    "trixie": lambda folder, pytest: debian("trixie", folder, pytest, OLDEST),
    "forky": lambda folder, pytest: debian("forky", folder, pytest),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; all by default")
    parser.add_argument("--keep", type=Path, help="make the folders here, and leave them")
    mine, pytest = sys.argv[1:], []
    if "--" in mine:
        at = mine.index("--")
        mine, pytest = mine[:at], mine[at + 1 :]
    told = parser.parse_args(mine)
    print(f"== commit {commit()}", flush=True)
    failed = []
    with tempfile.TemporaryDirectory(prefix="graphmask-matrix-") as made:
        folder = (told.keep or Path(made)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # apt fetches as a user without rights
        shutil.rmtree(folder / "dist", ignore_errors=True)  # the wheel of another run
        for name in told.rows or ROWS:
            print(f"== {name}", flush=True)
            try:
                ROWS[name](folder, pytest)
            except subprocess.CalledProcessError as error:
                print(f"== {name} FAILED: {error}", flush=True)
                failed.append(name)
    print(f"== {len(told.rows or ROWS) - len(failed)} passed, {len(failed)} failed: {', '.join(failed) or 'none'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
