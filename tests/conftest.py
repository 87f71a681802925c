"""One thread and a quiet, repeatable hypothesis: the same numbers on every machine, and no fight over its cores."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile(
    "graphmask", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("graphmask")
