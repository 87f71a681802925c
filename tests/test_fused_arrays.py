"""The C functions called with arrays that do not fit: each is refused by name, and nothing outside them is touched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmask.ops import fused

pytestmark = pytest.mark.skipif(fused._fused is None, reason="installed without a compiler: PyTorch does it all")

GUARD = 64  #: numbers on each side of an array that nobody may write to
MARK = 77


@dataclass
class Array:
    """An array of a call; ``write`` if C writes to it."""

    value: np.ndarray
    write: bool = False

    def guarded(self) -> tuple[np.ndarray, np.ndarray]:
        """A copy amid marked memory, and all of that."""
        whole = np.full(self.value.size + 2 * GUARD, MARK, self.value.dtype)
        inside = whole[GUARD : GUARD + self.value.size].reshape(self.value.shape)
        inside[...] = self.value
        return inside, whole


@dataclass
class Call:
    """Arguments by name, in order. Indices are below the number given for them."""

    function: str
    arguments: dict[str, Any]
    below: dict[str, int]

    def arrays(self) -> list[str]:
        return [name for name, value in self.arguments.items() if isinstance(value, Array)]

    def run(self, values: dict[str, Any]) -> None:
        """Parts of gates are given as table, index, weight, stride and offset beside the other arguments."""
        values = dict(values)
        if "table" in values:
            part = tuple(values.pop(name) for name in ("table", "index", "weight", "stride", "offset"))
            values = {"width": values.pop("width"), "parts": (part, part), **values}
        getattr(fused._fused, self.function)(*values.values())


def calls(edges: int, width: int, nodes: int, first: int, step: int) -> list[Call]:
    """One valid call of each function."""
    g = np.random.default_rng(edges * 1000 + width)
    kept = len(range(first, edges, step))

    def floats(*size: int, write: bool = False) -> Array:
        return Array(g.standard_normal(size).astype(np.float32), write)

    def indices(below: int) -> Array:
        return Array(g.integers(below, size=edges))

    def part(write: bool) -> dict[str, Any]:
        return {
            "width": 8 * width,
            "table": floats(2 * nodes, 8 * width, write=write),
            "index": indices(nodes),
            "weight": floats(edges),
            "stride": 2,
            "offset": 1,
        }

    rows = {"first": first, "step": step}
    return [
        Call(
            "gates",
            {
                **part(write=False),
                "dense": floats(edges, 8 * width),
                "top": floats(24 * width + 1),
                "limit": 3.0,
                "location": floats(edges, write=True),
                "kept": floats(kept * (8 * width + 2), write=True),
                **rows,
                "start": 0,
                "stop": edges,
            },
            {"index": nodes},
        ),
        Call(
            "gates_backward",
            {
                **part(write=True),
                "grad": floats(edges),
                "kept": floats(kept * (8 * width + 2)),
                "top": floats(24 * width + 1),
                "limit": 3.0,
                "d_top": floats(24 * width + 1, write=True),
                "dense": floats(kept, 8 * width, write=True),
                **rows,
            },
            {"index": nodes},
        ),
        Call(
            "blend",
            {
                "messages": floats(edges, width),
                "gate": floats(edges),
                "baseline": floats(width),
                "to": floats(edges, width, write=True),
                "kept": floats(kept, width, write=True),
                **rows,
            },
            {},
        ),
        Call(
            "blend_backward",
            {
                "grad": floats(edges, width),
                "gate": floats(edges),
                "baseline": floats(width),
                "kept": floats(kept, width),
                "source": indices(nodes),
                "d_gate": floats(edges, write=True),
                "d_baseline": floats(width, write=True),
                "d_messages": floats(edges, width, write=True),
                "d_nodes": floats(nodes, width, write=True),
                **rows,
            },
            {"source": nodes},
        ),
        Call(
            "overwrite",
            {
                "messages": floats(edges, width, write=True),
                "is_open": Array(g.random(edges) < 0.5),
                "baseline": floats(width),
            },
            {},
        ),
    ]


valid_calls = st.builds(
    calls, st.integers(1, 40), st.integers(1, 5), st.integers(1, 9), st.integers(0, 3), st.integers(1, 7)
)


def prepared(call: Call, guard: bool) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The arguments, and the marked memory around each array. Without guards a sanitizer sees a step outside."""
    values, around = {}, []
    for name, value in call.arguments.items():
        if isinstance(value, Array) and guard:
            values[name], whole = value.guarded()
            around.append(whole)
        else:
            values[name] = value.value.copy() if isinstance(value, Array) else value
    return values, around


def untouched(around: list[np.ndarray]) -> bool:
    guards = ((whole[:GUARD], whole[-GUARD:], whole.dtype.type(MARK)) for whole in around)
    return all((before == mark).all() and (after == mark).all() for before, after, mark in guards)


def strided(value: np.ndarray) -> np.ndarray:
    """The same shape and numbers, with gaps between them."""
    apart = np.zeros((*value.shape, 2), value.dtype)
    apart[..., 0] = value
    return apart[..., 0]


def misaligned(value: np.ndarray) -> np.ndarray:
    return np.frombuffer(bytearray(value.nbytes + 1), value.dtype, value.size, 1).reshape(value.shape)


def read_only(value: np.ndarray) -> np.ndarray:
    value = value.copy()
    value.setflags(write=False)
    return value


#: What may be wrong with an array; `fits_anyway` knows where it is not.
WRONG: dict[str, Callable[[np.ndarray], Any]] = {
    "one row more": lambda value: np.concatenate([value, value[:1]]),
    "one row less": lambda value: value[1:].copy(),
    "no rows": lambda value: value[:0].copy(),
    "another dimension": lambda value: value[None],
    "no dimension": lambda value: np.zeros((), value.dtype),
    "transposed": lambda value: value[:, None].repeat(2, 1) if value.ndim == 1 else value.repeat(2, 1),
    "gaps": strided,
    "backwards": lambda value: np.concatenate([value, value])[::-2],
    "misaligned": misaligned,
    "float64": lambda value: value.astype(np.float64),
    "float16": lambda value: value.astype(np.float16),
    "int32": lambda value: value.astype(np.int32),
    "other byte order": lambda value: (
        value.astype(value.dtype.newbyteorder()) if value.itemsize > 1 else value.view("i1")
    ),
    "objects": lambda value: value.astype(object),
    "read only": read_only,
    "bytes": lambda value: value.tobytes(),
    "a list": lambda value: value.tolist(),
    "a number": lambda value: 5,
    "a string": lambda value: "abc",
}


def fits_anyway(call: Call, name: str, kind: str) -> bool:
    """Such an array may be as good: it is not written to, or may have any number of rows, or numbers of any type."""
    array = call.arguments[name]
    if kind == "read only":
        return not array.write
    if kind == "misaligned" and array.value.itemsize == 1:
        return True
    if (kind == "gaps" and array.value.size <= 1) or (kind == "backwards" and len(array.value) <= 1):
        return True  # one number has no gaps, one row has no order
    if name in ("table", "d_nodes"):
        return kind in ("one row more", "one row less", "no rows")  # the indices are what does not fit then, if any
    if array.value.size == 0 and kind in ("one row more", "one row less", "no rows"):
        return True  # none of none
    if call.function == "overwrite" and name != "is_open":  # any numbers of the same size
        return kind in ("misaligned", "other byte order", "int32", "another dimension")
    return False


#: What may be None, by function.
OPTIONAL: dict[str, set[str]] = {
    "gates": {"weight", "dense", "kept"},
    "gates_backward": {"weight", "dense"},
    "blend": {"kept"},
    "blend_backward": {"d_baseline", "d_messages"},
    "overwrite": set(),
}
REFUSED = (TypeError, ValueError, IndexError)


def check_refused(call: Call, name: str, kind: str, guard: bool) -> None:
    values, around = prepared(call, guard)
    values[name] = WRONG[kind](values[name])
    if fits_anyway(call, name, kind):
        with contextlib.suppress(REFUSED):
            call.run(values)
    else:
        with pytest.raises(REFUSED):
            call.run(values)
    assert untouched(around), (call.function, name, kind)


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("number", range(5))
def test_any_array_that_does_not_fit_is_refused(number: int, guard: bool) -> None:
    """Everything that may be wrong with an array, with each array of each function."""
    for sizes in ((17, 3, 5, 1, 4), (1, 1, 1, 0, 1), (40, 4, 9, 3, 7)):
        call = calls(*sizes)[number]
        for name in call.arrays():
            for kind in WRONG:
                check_refused(call, name, kind, guard)


@settings(max_examples=300, deadline=None)
@given(valid_calls, st.booleans(), st.data())
def test_an_array_that_does_not_fit_is_refused_at_any_size(made: list[Call], guard: bool, data: st.DataObject) -> None:
    call = data.draw(st.sampled_from(made))
    check_refused(call, data.draw(st.sampled_from(call.arrays())), data.draw(st.sampled_from(sorted(WRONG))), guard)


@settings(max_examples=200, deadline=None)
@given(valid_calls, st.booleans(), st.data())
def test_an_index_out_of_range_is_refused_where_it_is_read_and_where_it_is_added_to(
    made: list[Call], guard: bool, data: st.DataObject
) -> None:
    call = data.draw(st.sampled_from([call for call in made if call.below]))
    ((name, below),) = call.below.items()
    values, around = prepared(call, guard)
    edges = len(values[name])
    taken = range(edges)  # gradients are taken from these edges alone, and only their indices are read
    if call.function == "gates_backward":
        taken = taken[values["first"] :: values["step"]]
    edge = data.draw(st.integers(0, edges - 1))
    wrong = data.draw(st.sampled_from([below, below + 1, -1, 1 << 40, -(1 << 62), (1 << 63) - 1, -(1 << 63)]))
    values[name][edge] = wrong
    if edge in taken:
        with pytest.raises(IndexError, match=f"^index {wrong} at edge {edge}, where there are {below} rows$"):
            call.run(values)
    else:
        call.run(values)
    assert untouched(around)


@pytest.mark.parametrize("number", range(4))
def test_a_number_that_does_not_fit_is_refused(number: int) -> None:
    """Also where no array that is left out would show it."""
    call = calls(17, 3, 5, 1, 4)[number]
    wrong = {
        "width": (-8, 0, 7, 12, 16, 1032, 1 << 62),
        "stride": (-1, 0, -(1 << 63)),
        "offset": (-1, -(1 << 63)),
        "first": (-1, 1 << 31, (1 << 63) - 1),
        "step": (-1, 0, 1 << 31, (1 << 63) - 1),
        "start": (-1, 18, (1 << 63) - 1),
        "stop": (-1, 18, (1 << 63) - 1),
    }
    for name in wrong.keys() & call.arguments.keys():
        for value in wrong[name]:
            values, around = prepared(call, guard=True)
            values |= {name: value} | dict.fromkeys(OPTIONAL[call.function])
            with pytest.raises(ValueError, match="expected"):
                call.run(values)
            assert untouched(around)


@settings(max_examples=200, deadline=None)
@given(valid_calls, st.booleans(), st.data())
def test_any_numbers_give_a_result_or_an_error(made: list[Call], guard: bool, data: st.DataObject) -> None:
    """And never a step outside."""
    call = data.draw(st.sampled_from(made))
    names = [name for name, value in call.arguments.items() if isinstance(value, int)]
    values, around = prepared(call, guard)
    for name in names:
        odd = st.sampled_from([-1, 0, 1, 2, 8, 1024, 1032, 1 << 31, 1 << 62, -(1 << 62), (1 << 63) - 1])
        values[name] = data.draw(odd | st.just(values[name]))
    for name in sorted(OPTIONAL[call.function]):
        if data.draw(st.booleans()):
            values[name] = None
    with contextlib.suppress(REFUSED):
        call.run(values)
    assert untouched(around)


@pytest.mark.parametrize("number", range(5))
def test_what_may_be_left_out_may_be_left_out(number: int) -> None:
    call = calls(17, 3, 5, 1, 4)[number]
    for name in call.arrays():
        values, around = prepared(call, guard=True)
        values[name] = None
        if name in OPTIONAL[call.function]:
            call.run(values)
        else:
            with pytest.raises(REFUSED):
                call.run(values)
        assert untouched(around), name


@pytest.mark.parametrize("number", range(5))
def test_valid_calls_write_what_they_should_and_nothing_else(number: int) -> None:
    call = calls(17, 3, 5, 1, 4)[number]
    values, around = prepared(call, guard=True)
    call.run(values)
    assert untouched(around)
    for name, array in call.arguments.items():
        if isinstance(array, Array):
            changed = not np.array_equal(values[name], array.value)
            assert changed == array.write, name


def test_errors_name_the_array_and_what_was_expected() -> None:
    gates, _, blend, _, overwrite = calls(17, 3, 5, 1, 4)
    for call, name, wrong, error, words in [
        (gates, "dense", np.zeros((17, 16), np.float32), ValueError, r"dense: expected 24 column\(s\), got 16"),
        (gates, "index", np.zeros(16, np.int64), ValueError, r"index: expected 17 row\(s\), got 16"),
        (gates, "index", np.zeros(17, np.int32), TypeError, r"index: expected int64, got format i of 4 byte\(s\)"),
        (gates, "width", 12, ValueError, "expected a width that is a multiple of 8 and at most 1024"),
        (
            blend,
            "to",
            read_only(np.zeros((17, 3), np.float32)),
            ValueError,
            "to: expected a contiguous, writable array",
        ),
        (blend, "gate", np.zeros((17, 1), np.float32), ValueError, r"gate: expected 1 dimension\(s\), got 2"),
        (overwrite, "baseline", np.zeros(4, np.float32), ValueError, "the baseline to be as large as one message"),
    ]:
        values, _ = prepared(call, guard=False)
        values[name] = wrong
        with pytest.raises(error, match=words):
            call.run(values)
