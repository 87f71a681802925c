"""What an import loads: nobody waits for what they do not use. Modules are counted, not seconds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import graphmask
from graphmask import experiments, methods
from graphmask.cli import names
from reference import fresh

#: Packages that `from graphmask import GraphMask` may load, together with what these load by themselves.
BASE = {"torch", "torch_geometric"}


def loaded(code: str) -> set[str]:
    """Names of all modules that a fresh Python has after running the code."""
    command = f"import contextlib, io, json, sys\nwith contextlib.redirect_stdout(io.StringIO()):\n{code}\n"
    command += "print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def loaded_after_torch(code: str) -> set[str]:
    """The same of a Python that has torch and torch_geometric already, which take seconds."""
    done = fresh.run(f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))")
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def packages(modules: set[str]) -> set[str]:
    return {name.split(".")[0] for name in modules}


def test_import_graphmask_loads_next_to_nothing() -> None:
    modules = loaded("    import graphmask")
    ours = {name for name in modules if name.split(".")[0] == "graphmask"}
    assert ours == {"graphmask", "graphmask._moved", "graphmask.hooks"}
    assert not packages(modules) & (BASE | {"numpy", "rich", "typer", "safetensors", "pyarrow", "polars"})


def test_the_explainer_loads_nothing_beyond_torch_and_pyg() -> None:
    base = loaded_after_torch("import torch_geometric.nn, torch_geometric.explain")
    found = loaded_after_torch(
        "from graphmask import *\nimport torch_geometric.nn, torch_geometric.explain\nassert GraphMask"
    )
    assert not any(name.split(".")[0] == "graphmask" for name in base)
    other = packages(found) - packages(base) - {"graphmask"} - set(sys.stdlib_module_names)
    assert other == set()


def test_help_does_not_wait_for_torch() -> None:
    code = "    import sys\n    sys.argv = ['graphmask', '--help']\n    from graphmask import cli\n"
    code += "    with contextlib.suppress(SystemExit):\n        cli.main()"
    modules = loaded(code)
    assert not packages(modules) & (BASE | {"numpy", "safetensors", "pyarrow", "polars", "matplotlib", "jinja2"})
    assert len(modules) < 700


def test_help_names_what_there_is() -> None:
    assert tuple(experiments.TASKS) == names.TASKS
    assert tuple(methods.METHODS) == names.METHODS


def test_names_are_found_when_asked_for() -> None:
    names = [*graphmask.__all__, "__version__", "store", "training", "experiments"]
    code = "import graphmask\n" + "\n".join(f"assert graphmask.{name}" for name in names)
    done = fresh.run(code)
    assert done.returncode == 0, done.stderr


def test_what_is_not_there_is_said_plainly() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        graphmask.nothing  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute '_private'"):
        graphmask._private  # noqa: B018
    with pytest.raises(ImportError):
        from graphmask import nothing  # noqa: F401
    assert set(graphmask.__all__) <= set(dir(graphmask))
