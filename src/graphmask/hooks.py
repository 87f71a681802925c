"""Functions that a lower layer calls and a higher layer defines; `graphmask/__init__.py` sets them.

An explanation can draw itself, and a saved one may come back as another class. Drawing and that class import
`explanation.py`, so `explanation.py` must not import them. Each function loads what it needs when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Gives a function of `graphmask.report` by the name of its module and its own: ``report("build.write_page")``.
report: Callable[[str], Callable[..., Any]]
#: A key in what files hold of an explanation -> a function that gives the one that reads explanations with that key.
kinds: dict[str, Callable[[], Any]] = {}
