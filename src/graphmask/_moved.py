"""Import paths of former releases: `graphmask.training` is `graphmask.fitting.training`, the very same module.

Up to 0.1 all modules lay side by side. `_Finder` answers an import under a former name with the module of today, so
that programs written then still run. New code imports from the new paths; CONTRIBUTING.md says how long the former ones
stay.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

#: Former name -> present name, below ``graphmask``. Modules inside a package that moved follow it.
MOVED = {
    "storage": "files",
    "distributed": "team",
    "hetero": "hetero_explanation",
    "tasks": "experiments",
    "bench": "experiments.bench",
    **{
        name: f"{package}.{name}"
        for package, names in {
            "graphs": ("batches", "edges", "hetero_edges", "layout", "loaders", "sites"),
            "ops": ("fused", "kernels", "moments"),
            "tapping": (
                "behind",
                "capture",
                "edge_arguments",
                "edge_softmax",
                "gradients",
                "locating",
                "masking",
                "messages",
                "stand_ins",
                "tapped",
                "taps",
                "trace",
            ),
            "gates": ("hard_concrete", "probe"),
            "fitting": (
                "calibration",
                "checkpoint",
                "constraint",
                "history",
                "progress",
                "recipe",
                "training",
            ),
            "explaining": ("case", "method", "repairing", "rows"),
        }.items()
        for name in names
    },
    "guest": "tapping.restore",
    "joint": "fitting.step",
}


class _Loader(importlib.abc.Loader):
    def __init__(self, present: str) -> None:
        self.present = present

    def exec_module(self, module: ModuleType) -> None:
        # The import system takes what stands in sys.modules afterwards, and leaves its __name__ and __spec__ alone.
        sys.modules[module.__name__] = importlib.import_module(self.present)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        top, _, rest = fullname.partition(".")
        first, _, inner = rest.partition(".")
        if top != "graphmask" or first not in MOVED:
            return None
        present = ".".join(filter(None, ("graphmask", MOVED[first], inner)))
        return importlib.machinery.ModuleSpec(fullname, _Loader(present))


def install() -> None:
    """Answer imports under former names from now on; before other finders, which would load a file a second time."""
    if not any(type(finder).__name__ == "_Finder" and type(finder).__module__ == __name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
