"""Every method on the user's own model and data, by every metric: `graphmask.compare`."""

from __future__ import annotations

from graphmask.comparing.all_methods import compare
from graphmask.comparing.result import Comparison

__all__ = ["Comparison", "compare"]
