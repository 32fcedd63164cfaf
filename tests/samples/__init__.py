"""Hypothesis-made calls of every operation: shapes, options, values. One file a family, one function an op:

    @sample(ops.softmax, rtol=1e-5)
    def _(make: Make) -> Call:
        x = make.array("input", make.shape(1, 5))
        return Call(x, axis=make.integer(0, x.ndim - 1))

`make.types` holds the data type of each operand, chosen by the test (which goes through all that the limits allow). Importing
this package registers the samples of all families in `SAMPLES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from opweave.core.operation import Limits, Op

T = TypeVar("T")


class Call:
    """Arguments of an operation; arrays (and lists of arrays) stand for operands."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs

    def __repr__(self) -> str:
        def show(value: Any) -> str:
            return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)

        return ", ".join([*map(show, self.args), *(f"{k}={show(v)}" for k, v in self.kwargs.items())])


class Make:
    """Draws the parts of a call."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], types: dict[str, Any]) -> None:
        self.draw, self.types = draw, types
        self.random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def integer(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        return int(self.draw(st.integers(low, high)))

    def number(self, low: float, high: float) -> float:
        """A float in [low, high], exactly representable in float16."""
        return float(np.float16(self.draw(st.floats(low, high, width=16))))

    def boolean(self) -> bool:
        """True or False."""
        return bool(self.draw(st.booleans()))

    def choice(self, options: Sequence[T]) -> T:
        """One of the options."""
        chosen: T = self.draw(st.sampled_from(options))
        return chosen

    def tokens(self) -> int:
        """The length of a sequence: a few tokens."""
        return self.integer(1, 3)

    def shape(self, low: int = 0, high: int = 5, largest: int = 5) -> tuple[int, ...]:
        """A shape with low to high dimensions, each in [1, largest]."""
        return tuple(self.draw(st.lists(st.integers(1, largest), min_size=low, max_size=high)))

    def subset(self, items: Sequence[T]) -> list[T]:
        """Some of the items, in any order."""
        return list(self.draw(st.lists(st.sampled_from(items), unique=True))) if items else []

    def broadcastable(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts to `shape`: leading dimensions dropped, others set to 1."""
        kept = shape[self.integer(0, len(shape)) :]
        return tuple(1 if self.boolean() else size for size in kept)

    def array(
        self, operand: str, shape: Sequence[int], low: float = -4, high: float = 4, special: bool = False
    ) -> np.ndarray:
        """An array for `operand`, in its data type, with values in [low, high] (clipped to the type's range).

        Floats lie on a grid of 1/8, so that ties and equal values occur; `special` mixes in NaN, infinities and zeros of
        both signs, or the extreme values of an integer type.
        """
        data_type = np.dtype(self.types[operand])
        if data_type.kind == "f":
            values = self.random.integers(int(low * 8), int(high * 8), shape, endpoint=True) / 8
            specials: list[float] = [np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(data_type).max, 1e-7, -1e-7]
        else:
            info = np.iinfo(data_type)
            bounds = max(int(low), info.min), min(int(high), info.max)
            values = self.random.integers(*bounds, shape, dtype=data_type, endpoint=True)
            specials = [info.min, info.max, 0, 1]
        array = np.asarray(values).astype(data_type)
        if special and array.size:
            where = self.random.random(shape) < 0.3
            picked = np.array(specials, data_type)[self.random.integers(0, len(specials), shape)]
            array = np.asarray(np.where(where, picked, array))
        return array

    def indices(self, operand: str, shape: Sequence[int], size: int, beyond: int = 0) -> np.ndarray:
        """Indices in [-size, size) (non-negative for unsigned types), up to `beyond` outside of that."""
        data_type = np.dtype(self.types[operand])
        low = 0 if data_type.kind == "u" else -size - beyond
        return np.asarray(self.random.integers(low, size + beyond, shape)).astype(data_type)

    def permutation(self, count: int) -> list[int]:
        """The numbers 0 to count - 1 in any order."""
        return list(self.draw(st.permutations(range(count))))


@dataclass(frozen=True)
class Sample:
    """How to call an op, and how closely results must agree.

    Attributes:
        make: draws a call.
        rtol, atol: for float32 results, where |a - b| <= atol + rtol |b|; float16 gets `half` times as much.
        half: how much wider float16's tolerance is (its epsilon is 8192 times that of float32).
    """

    op: Op[..., Any]
    make: Callable[[Make], Call]
    rtol: float
    atol: float
    half: float


SAMPLES: dict[Op[..., Any], Sample] = {}


def sample(
    *ops: Op[..., Any], rtol: float = 1e-6, atol: float = 1e-6, half: float = 2000
) -> Callable[[Callable[[Make], Call]], Callable[[Make], Call]]:
    """Register the decorated function as the maker of calls of `ops`."""

    def register(make: Callable[[Make], Call]) -> Callable[[Make], Call]:
        for op in ops:
            SAMPLES[op] = Sample(op, make, rtol, atol, half)
        return make

    return register


def type_choices(op: Op[..., Any], limits: Any) -> list[dict[str, str]]:
    """All combinations of data types that the operands of `op` may have, `same as` resolved."""
    combinations: list[dict[str, str]] = [{}]
    for operand in op.operands:
        limit: Limits = limits.get(operand, Limits())
        if isinstance(limit.data_types, str):
            combinations = [{**c, operand: c[limit.data_types]} for c in combinations]
        else:
            combinations = [{**c, operand: t} for c in combinations for t in limit.data_types]
    return combinations


for file in sorted(Path(__file__).parent.glob("[a-z]*.py")):
    import_module(f"{__name__}.{file.stem}")
