"""`FILE.py:function`: a comparison described by a function of the user's own."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

from graphmask.comparing.all_methods import compare
from graphmask.errors import GraphMaskError

HINT = "It should return (model, loader), or a dictionary of arguments of graphmask.compare with both."


def arguments(where: str) -> dict[str, Any]:
    """What the function returns, as keywords of `compare`, checked before any work starts.

    The file is run as a module, with its folder first on the path, so that it can import its neighbours.
    """
    file, _, name = where.rpartition(":")
    path = Path(file)
    if not name or path.suffix != ".py":
        raise GraphMaskError(f"Expected FILE.py:function, got {where!r}.")
    if not path.is_file():
        raise GraphMaskError(f"Expected a file at {path}, found none.")
    function = getattr(_module(path), name, None)
    if not callable(function):
        raise GraphMaskError(f"Expected a function {name!r} in {path}, found none. {HINT}")
    returned = function()
    if isinstance(returned, tuple) and len(returned) == 2:
        returned = {"model": returned[0], "loader": returned[1]}
    if not isinstance(returned, dict) or not {"model", "loader"} <= returned.keys():
        raise GraphMaskError(f"Expected another result of {name}, got {type(returned).__name__}. {HINT}")
    known = inspect.signature(compare).parameters
    wrong = [key for key in returned if key not in known]
    if wrong:
        raise GraphMaskError(f"Expected arguments among {', '.join(known)}, got {wrong[0]!r} from {name}.")
    return dict(returned)


def _module(path: Path) -> Any:
    folder = str(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, folder)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module  # dataclasses and pickles of the file look there
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
        if before is not None:
            sys.modules[path.stem] = before
    return module
