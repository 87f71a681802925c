"""Peak memory of a call, counted by the tensors it makes; and a way to keep the allocator out of measured times."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class _Count(TorchDispatchMode):
    """Every storage that an operation returns is counted until it dies."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {
            value.untyped_storage()._cdata
            for value in tree_iter((args, kwargs))
            if isinstance(value, torch.Tensor) and value.layout == torch.strided
        }
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor) and value.layout == torch.strided:
                storage = value.untyped_storage()
                key = storage._cdata
                if key not in known and key not in self.alive:
                    self.alive[key] = storage.nbytes()
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._gone, key)
        return result

    def _gone(self, key: int) -> None:
        self.now -= self.alive.pop(key, 0)


def peak_bytes(call: Callable[[], Any]) -> int:
    """The most bytes of new tensors that were alive at once."""
    with _Count() as count:
        call()
    return count.peak


#: Parameters of glibc mallopt: what goes back to the system, how much more is asked of it, and mappings.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, so that times are of computing; False if there is no glibc to tell.

    By default the C library hands large tensors back to the system and fetches them anew. Whether that hits the job
    or the unit it is compared with differs from process to process: a training step of one model took 102 ms in one
    and 142 ms in the next. PyTorch's allocator for GPUs keeps memory as well.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 2**26))
    return mallopt is not None and all(mallopt(which, value) == 1 for which, value in settings)
