"""Seconds and peak resident memory of a job in a process of its own: what others left behind is not counted."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Cost(NamedTuple):
    seconds: float
    extra: int  #: bytes beyond what was resident when the job began, at most
    result: Any
    peak: int  #: bytes resident at most, with all that was there before
    cpu: float  #: seconds that it was at work, on all threads: what others do on the machine does not count


def cost(job: Callable[..., Any], *arguments: Any) -> Cost:
    """``job`` is a function of a module, and what it takes and gives can be pickled."""
    # A fork would share the parent's pages, and its peak with them.
    with multiprocessing.get_context("spawn").Pool(1) as alone:
        return alone.apply(_run, (job, *arguments))


def _run(job: Callable[..., Any], *arguments: Any) -> Cost:
    before, started, working = _begin(), time.perf_counter(), time.process_time()
    result = job(*arguments)
    seconds, cpu, peak = time.perf_counter() - started, time.process_time() - working, _peak()
    return Cost(seconds, max(peak - before, 0), result, peak, cpu)


def _begin() -> int:
    """Bytes resident now; where the system lets us, the peak is from here on."""
    if not _STATUS.exists():
        return _peak()
    try:
        _RESET.write_text("5")
    except OSError:  # not ours to write: then imports count as far as they were more than this
        return _peak()
    return _field("VmRSS")


def now() -> int:
    """Bytes resident, where the system tells; else the peak."""
    return _field("VmRSS") if _STATUS.exists() else _peak()


def _peak() -> int:
    if _STATUS.exists():
        return _field("VmHWM")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def _field(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name + ":"))
    return 1024 * int(line.split()[1])
