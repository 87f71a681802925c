"""An accelerator for tests: a device whose tensors hold CPU data and refuse what CUDA refuses.

PyTorch can host a backend that is written in Python. Tensors on it are a subclass that reports the device
``standin:0``; every operation is carried out on the CPU data. Refused are operands on different devices (but for CPU
numbers without dimensions, which CUDA takes too), a generator of another device, and `numpy()`, as CUDA refuses them;
and float64, which Apple's GPUs (mps) refuse. Without a generator, random numbers come from a state of the device's own.

Registering it changes PyTorch for the whole process, so `test_devices.py` runs the tests that need it in another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch

NAME = "standin"
#: Operations that take operands of two devices.
ACROSS = {"aten::copy_", "aten::_to_copy", "aten::_foreach_copy_"}
#: Operations whose indices may lie on the CPU.
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
#: Operations that take a number from the CPU although they are not tagged as pointwise.
TAKES_NUMBERS = ("aten::fill_", "aten::masked_fill", "aten::where", "aten::_foreach", "aten::_fused_adam")
#: Set in the seed that a generator of this device reports; its numbers are those of the seed without it.
MARK = 1 << 62


class OnDevice(torch.Tensor):
    """A tensor of the stand-in device."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> OnDevice:
        if raw.dtype == torch.double:
            raise TypeError(f"Cannot convert a {NAME} Tensor to float64 dtype: the {NAME} framework has no float64.")
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
            requires_grad=False,
        )
        made.raw = raw
        return made

    def __repr__(self) -> str:
        return f"OnDevice({self.raw!r})"

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.raw.numpy()
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            made = OnDevice(self.raw.clone())
            if getattr(self, "_is_param", False):
                made = torch.nn.Parameter(made, self.requires_grad)
            memo[id(self)] = made.requires_grad_(self.requires_grad)
        return memo[id(self)]

    # CUDA's tensors have these; a subclass written in Python must be told.
    def tolist(self) -> Any:
        return self.raw.tolist()

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def untyped_storage(self) -> Any:
        return self.raw.untyped_storage()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


class _Operation(NamedTuple):
    """What the rules below ask of an operation; each is asked for many thousand times."""

    name: str
    across: bool
    indexing: bool
    takes_numbers: bool
    draws: bool

    @classmethod
    def of(cls, func: Any) -> _Operation:
        name = func.name().split(".")[0]
        takes_numbers = torch.Tag.pointwise in func.tags or name.startswith(TAKES_NUMBERS)
        draws = torch.Tag.nondeterministic_seeded in func.tags
        return cls(name, name in ACROSS, name in INDEXING, takes_numbers, draws)


_operation = cache(_Operation.of)


class _Operands:
    """The arguments of one call. `raw` gives them as the CPU takes them, and notes what was among them."""

    def __init__(self) -> None:
        self.owners: dict[int, OnDevice] = {}  #: by id of their CPU data
        self.foreign: list[torch.Tensor] = []
        self.generators: list[torch.Generator] = []

    def raw(self, given: Any) -> Any:
        """Arguments of operations are single things and lists of them: that is all that has to be walked through."""
        kind = type(given)
        if kind is OnDevice:
            self.owners[id(given.raw)] = given
            return given.raw
        if kind is list or kind is tuple:
            return kind([self.raw(one) for one in given])
        if isinstance(given, torch.Tensor):
            self.foreign.append(given)
        elif isinstance(given, _Generator):
            self.generators.append(given)
        return given


def _dispatch(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    operation, operands = _operation(func), _Operands()
    raw_args = [operands.raw(given) for given in args]
    raw_kwargs = {key: operands.raw(given) for key, given in kwargs.items()}
    _check_devices(operation, operands)
    for generator in operands.generators:
        if not generator.initial_seed() & MARK:
            raise RuntimeError(
                f"Expected a '{NAME}' device type for generator but found '{generator.device}' ({operation.name})"
            )
    target = kwargs.get("device")
    if target is not None:
        raw_kwargs["device"] = torch.device("cpu")
    if operation.draws and not operands.generators:
        with MODULE.drawing():
            found = func(*raw_args, **raw_kwargs)
    else:
        found = func(*raw_args, **raw_kwargs)
    if target is not None and torch.device(target).type != NAME:
        return found
    others = {id(tensor) for tensor in operands.foreign}

    def wrap(made: Any) -> Any:
        if isinstance(made, torch.Tensor):
            if id(made) in others:  # written to a CPU tensor
                return made
            owner = operands.owners.get(id(made))
            return OnDevice(made) if owner is None else owner
        return type(made)(map(wrap, made)) if isinstance(made, (list, tuple)) else made

    return wrap(found)


def _raw(leaf: Any) -> Any:
    return leaf.raw if isinstance(leaf, OnDevice) else leaf


def _check_devices(operation: _Operation, operands: _Operands) -> None:
    foreign = operands.foreign
    if not foreign or operation.across or not operands.owners:
        return
    if operation.indexing:
        foreign = [tensor for tensor in foreign if tensor.dtype not in (torch.long, torch.bool, torch.uint8)]
    if any(tensor.dim() or not operation.takes_numbers for tensor in foreign):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found {NAME}:0 and cpu ({operation.name})"
        )


_Generator = torch.Generator


class GeneratorOnDevice(_Generator):
    """A generator of the stand-in device. PyTorch makes none for it: this is a CPU generator with a marked seed."""

    def __init__(self, *_: Any) -> None:
        self.manual_seed(0)

    @property
    def device(self) -> torch.device:
        return torch.device(NAME, 0)

    def manual_seed(self, seed: int) -> GeneratorOnDevice:
        super().manual_seed(seed)
        state = self.get_state()
        state[:8] = torch.tensor([self.initial_seed() | MARK]).view(torch.uint8)  # a state begins with its seed
        self.set_state(state)
        return self


class _AnyGenerator(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Generator)


class Generators(metaclass=_AnyGenerator):
    """In place of `torch.Generator`: it makes those of the stand-in device too."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return GeneratorOnDevice() if torch.device(device).type == NAME else _Generator(device)


class _Module:
    """``torch.standin``, as ``torch.cuda`` is there for CUDA. Its random state is its own, seeded as the CPU's is."""

    state = torch.Generator().manual_seed(0).get_state()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Inside, what is drawn on the CPU is drawn from the state of this device."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.state)
            yield
            self.state = torch.get_rng_state()

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        self.state = _Generator().manual_seed(seed).get_state()

    def device_count(self) -> int:
        return 1

    def get_rng_state(self, device: Any = 0) -> torch.Tensor:
        return self.state.clone()

    def set_rng_state(self, state: torch.Tensor, device: Any = 0) -> None:
        self.state = state.clone()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


MODULE = _Module()


def _empty(
    size: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> torch.Tensor:
    return OnDevice(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


def _empty_strided(
    size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    return OnDevice(torch.empty_strided(size, stride, dtype=dtype))


def _made_by(function: Any) -> Any:
    """A factory whose size is only known when its CPU tensor is there."""

    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        generator = kwargs.get("generator")
        if generator is not None and not generator.initial_seed() & MARK:
            raise RuntimeError(f"Expected a '{NAME}' device type for generator but found '{generator.device}'")
        return OnDevice(function(*args, **{**kwargs, "device": torch.device("cpu")}))

    return make


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _raw(target).copy_(_raw(source))
    return target


def installs() -> bool:
    """Has this PyTorch the experimental call?"""
    from torch.utils import backend_registration

    return hasattr(backend_registration, "_setup_privateuseone_for_python_backend")


def install() -> torch.device:
    """Make the device known to this process, once and for all."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as set_up

    set_up(NAME, backend_module=MODULE)
    torch.Generator = Generators  # type: ignore[assignment, misc]
    for name, function in (
        ("empty.memory_format", _empty),
        ("empty_strided", _empty_strided),
        ("_copy_from", _copy_from),
        *((name, _made_by(getattr(torch, name.split(".")[0]))) for name in SIZED),
    ):
        LIBRARY.impl(name, function, "PrivateUse1")
    return torch.device(NAME, 0)


SIZED = ("eye", "eye.m", "arange", "arange.start", "arange.start_step", "randperm", "randperm.generator", "linspace")
LIBRARY = torch.library.Library("aten", "IMPL")
