"""Random programs of operations on arrays give what NumPy gives, whenever they are read and however they are compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import opweave as ow
from opweave.context.tensor import memory_of
from opweave.lazy import weights
from opweave.memory import pool

CONTEXT = ow.ml.create_context(device="cpu")
REFERENCE = ow.ml.create_context(device="reference")


@ow.expression
def mixed(x: Any, y: Any, *, scale: float = 0.5) -> Any:
    return (x - y) * scale


@ow.composite
def gated(b: Any, x: Any, y: Any) -> Any:
    return b.where(b.is_nan(x), y, b.neg(x)), b.min(x, y)


@ow.op
def running_sum(self: Any, x: ow.MLOperand, axis: int = 0) -> ow.Desc:
    return x.desc


@running_sum.kernel("cpu")
def _(x: np.ndarray, axis: int, out: np.ndarray) -> None:
    np.cumsum(x, axis, out=out)


# Conditions are of NaN only: what is rounded otherwise must not choose otherwise.


def clipped(values: np.ndarray) -> np.ndarray:
    return np.clip(values, np.float32(-8), np.float32(8))


UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], Any]]] = {
    "neg": (lambda x: -x, lambda x: -x),
    "abs": (abs, np.abs),
    "relu": (lambda x: x.relu(), lambda x: np.maximum(x, 0)),
    "tanh": (lambda x: ow.ops.tanh(x), np.tanh),
    "half": (lambda x: 0.5 * x, lambda x: np.float32(0.5) * x),
    "signed zero": (lambda x: x * -0.0, lambda x: x * np.float32(-0.0)),
    "transpose": (lambda x: ow.ops.transpose(x), lambda x: x.T),
    "flat": (lambda x: x.reshape([1, x.size]), lambda x: x.reshape(1, -1)),
    "row": (lambda x: x[:1], lambda x: x[:1]),
    "back": (lambda x: x[:, ::-1], lambda x: x[:, ::-1]),
    "softmax": (lambda x: ow.ops.softmax(x, 1), lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
    "sum": (lambda x: clipping(x.reduce_sum(axes=[0], keep_dimensions=True)), lambda x: clipped(x.sum(0, keepdims=True))),
    "mean": (lambda x: ow.ops.reduce_mean(x, axes=(1,), keep_dimensions=True), lambda x: x.mean(1, keepdims=True)),
    "cast": (lambda x: ow.ops.cast(x.is_nan(), "float32"), lambda x: np.isnan(x).astype("float32")),
    "gram": (lambda x: clipping(x @ x.transpose()), lambda x: clipped(x @ x.T)),
    "kernel": (lambda x: clipping(running_sum(x, axis=1)), lambda x: clipped(x.cumsum(1))),
}  # fmt: skip
BINARY: dict[str, tuple[Callable[[Any, Any], Any], Callable[[np.ndarray, np.ndarray], Any]]] = {
    "add": (lambda x, y: clipping(ow.ops.add(x, y)), lambda x, y: clipped(x + y)),
    "mul": (lambda x, y: clipping(ow.ops.mul(x, b=y)), lambda x, y: clipped(x * y)),
    "max": (lambda x, y: ow.ops.max(x, y), np.maximum),
    "where": (
        lambda x, y: ow.ops.where(ow.ops.is_nan(y), x, 1.0),
        lambda x, y: np.where(np.isnan(y), x, np.float32(1)),
    ),
    "mixed": (lambda x, y: mixed(ow.array(x), y, scale=0.25), lambda x, y: (x - y) * np.float32(0.25)),
    "concat": (lambda x, y: ow.ops.concat([x, y], 1)[:, :6], lambda x, y: np.concatenate([x, y], 1)[:, :6]),
}
SEVERAL: dict[str, tuple[Callable[[Any, Any], Any], Callable[[np.ndarray, np.ndarray], Any]]] = {
    "split": (
        lambda x, y: ow.ops.split(ow.ops.concat((x, y), axis=0), 2),
        lambda x, y: (x, y),
    ),
    "gated": (
        lambda x, y: gated(ow.array(x), y),
        lambda x, y: (np.where(np.isnan(x), y, -x), np.minimum(x, y)),
    ),
}


def clipping(x: Any) -> Any:
    return ow.ops.clamp(x, min_value=-8, max_value=8)


class Program:
    """What was made so far: pairs of ours and NumPy's; memory of others that ours may read."""

    def __init__(self, draw: Callable[[Any], Any], context: ow.MLContext) -> None:
        self.draw, self.context = draw, context
        self.values: list[tuple[Any, np.ndarray]] = []
        self.arrays: list[np.ndarray] = []
        self.tensors: list[ow.MLTensor] = []
        builder = ow.MLGraphBuilder(context)
        self.double = builder.build({"y": builder.input("x", "float32", [2, 3]) * 2.0})
        self.fresh()
        self.borrow()

    def numbers(self, shape: tuple[int, ...] = (2, 3)) -> np.ndarray:
        some = st.sampled_from([0.0, -0.0, 1.0, -1.5, 2.25, -3.0, 0.125, float("nan"), 7.0])
        count = int(np.prod(shape))
        return np.array(self.draw(st.lists(some, min_size=count, max_size=count)), "float32").reshape(shape)

    def pick(self) -> tuple[Any, np.ndarray]:
        return self.one_of(self.values)

    def one_of(self, items: list[Any]) -> Any:
        """One of them; drawn by its number, since Hypothesis keeps what it draws."""
        return items[self.draw(st.integers(0, len(items) - 1))]

    def unary(self) -> None:
        x, expected = self.pick()
        ours, theirs = UNARY[self.draw(st.sampled_from(list(UNARY)))]
        self.values.append((ours(ow.array(x, copy=False)), theirs(expected)))

    def binary(self) -> None:
        x, a = self.pick()
        y, b = self.one_of([pair for pair in self.values if pair[1].shape == a.shape])
        ours, theirs = BINARY[self.draw(st.sampled_from(list(BINARY)))]
        self.values.append((ours(x, y), theirs(a, b)))

    def several(self) -> None:
        x, a = self.pick()
        y, b = self.one_of([pair for pair in self.values if pair[1].shape == a.shape])
        ours, theirs = SEVERAL[self.draw(st.sampled_from(list(SEVERAL)))]
        results = list(zip(ours(x, y), theirs(a, b), strict=True))
        self.values += self.one_of([results, results[:1], results[1:]])

    def fresh(self) -> None:
        array = self.numbers()
        self.arrays.append(array)
        self.values.append((ow.ops.identity(array), array.copy()))

    def borrow(self) -> None:
        tensor = self.context.create_tensor("float32", (2, 3), readable=True, writable=True)
        array = self.numbers()
        self.context.write_tensor(tensor, array)
        self.tensors.append(tensor)
        self.values.append((ow.ops.abs(tensor), np.abs(array)))

    def read(self) -> None:
        x, expected = self.pick()
        same(x.numpy(), expected)

    def read_several(self) -> None:
        pairs = [self.pick() for _ in range(self.draw(st.integers(1, 4)))]
        for values, (_, expected) in zip(ow.read(*(x for x, _ in pairs)), pairs, strict=True):
            same(values, expected)

    def delete(self) -> None:
        if len(self.values) > 1:
            del self.values[self.draw(st.integers(0, len(self.values) - 1))]

    def write_array(self) -> None:
        """What is pending and reads an array keeps it from being written."""
        array = self.one_of(self.arrays)
        if array.flags.writeable:
            array[...] = 5
        else:
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 5

    def write_tensor(self) -> None:
        tensor = self.one_of(self.tensors)
        array = self.numbers()
        self.context.write_tensor(tensor, array)
        self.values.append((ow.ops.relu(tensor), np.maximum(array, 0)))

    def dispatch(self) -> None:
        source, target = (self.one_of(self.tensors) for _ in range(2))
        if source is not target:
            self.context.dispatch(self.double, {"x": source}, {"y": target})
            same(target.numpy(), source.numpy() * 2)
            self.values.append((ow.ops.neg(target), -target.numpy()))

    def step(self) -> None:
        often = [self.unary, self.binary] * 3 + [self.several, self.read] * 2
        rare = [
            self.fresh,
            self.borrow,
            self.read_several,
            self.delete,
            self.write_array,
            self.write_tensor,
            self.dispatch,
        ]
        self.draw(st.sampled_from([*often, *rare]))()


def same(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.fixture(params=[True, False], ids=["compiled immediately", "compiled when it recurs"])
def compile_now(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = ow.lazy.compile_now(request.param)
    monkeypatch.setattr(weights, "RECURRENCES", 1)
    monkeypatch.setattr(weights, "PATIENCE", 1)
    monkeypatch.setattr(pool, "LARGE", 1)  # memory of small results is used again, too
    yield
    ow.lazy.compile_now(before)


@pytest.mark.long
@pytest.mark.parametrize("context", [CONTEXT, REFERENCE], ids=["cpu", "reference"])
@pytest.mark.usefixtures("compile_now")
@settings(max_examples=60)
@given(data=st.data())
def test_random_program_equals_numpy(context: ow.MLContext, data: st.DataObject) -> None:
    with context:
        program = Program(data.draw, context)
        for _ in range(data.draw(st.integers(1, 25))):
            program.step()
        for x, expected in program.values:
            same(x.numpy(), expected)
        program.values.clear()
        assert all(array.flags.writeable for array in program.arrays)


# ---------------------------------------------------------------------------------------------------------------------
# The same program again and again, while others write to what it reads


class Recurring:
    """A program of a few calls on memory of every kind; memory that may be written changes between its runs."""

    kinds = ("ours", "a result", "NumPy's", "NumPy's, kept", "a tensor", "a constant tensor")

    def __init__(self, draw: Callable[[Any], Any], context: ow.MLContext) -> None:
        self.draw, self.context = draw, context
        self.leaves: list[Any] = []
        self.values: list[np.ndarray] = []
        self.sources: list[Any] = []
        self.others: list[tuple[int, Any, np.ndarray, Any]] = []  # that were there before, and may come again
        self.held = [draw(st.sampled_from(self.kinds)) for _ in range(draw(st.integers(1, 4)))]
        for k in range(len(self.held)):
            self.leaves.append(None)
            self.values.append(np.empty(0))
            self.sources.append(None)
            self.replace(k)
        self.others.clear()
        # A call works on what came before, and with one of the arrays, to which something may be done first.
        self.steps: list[tuple[str, str, int]] = []
        for _ in range(draw(st.integers(1, 4))):
            name, before = draw(st.sampled_from([*TOGETHER, *ALIKE])), draw(st.sampled_from(["", "", *ALIKE]))
            self.steps.append((name, before, draw(st.integers(0, len(self.held) - 1))))

    def numbers(self) -> np.ndarray:
        some = st.sampled_from([0.0, -0.0, 1.0, -1.5, 2.25, -3.0, 0.125, 7.0])
        return np.array(self.draw(st.lists(some, min_size=9, max_size=9)), "float32").reshape(3, 3)

    def replace(self, k: int) -> None:
        """Another array in place of one."""
        if "NumPy" not in self.held[k]:
            self.others.append((k, self.leaves[k], self.values[k], self.sources[k]))
        self.leaves[k] = None
        kind, values = self.held[k], self.numbers()
        self.values[k] = values
        if kind == "ours":
            self.leaves[k] = ow.array(values)
        elif kind == "a result":
            self.leaves[k] = ow.ops.abs(ow.array(values))
            self.values[k] = np.abs(values)
        elif kind.startswith("NumPy's"):
            self.sources[k] = values.copy()
            self.leaves[k] = ow.array(self.sources[k], copy=False) if "kept" in kind else self.sources[k]
        elif kind == "a tensor":
            self.sources[k] = self.context.create_tensor("float32", (3, 3), readable=True, writable=True)
            self.context.write_tensor(self.sources[k], values)
            self.leaves[k] = ow.array(self.sources[k], copy=False)
        else:
            self.leaves[k] = self.context.create_constant_tensor("float32", (3, 3), values)

    def restore(self, _: int) -> None:
        """An array that was there before."""
        if self.others:
            k, *before = self.others.pop(self.draw(st.integers(0, len(self.others) - 1)))
            self.others.append((k, self.leaves[k], self.values[k], self.sources[k]))
            self.leaves[k], self.values[k], self.sources[k] = before

    def write(self, k: int) -> None:
        """Write other values into the same memory, if it may be written."""
        if self.held[k] == "NumPy's":
            values = self.numbers()
            self.leaves[k][...] = values
        elif self.held[k] == "NumPy's, kept":
            values = self.numbers()
            assert not self.sources[k].flags.writeable
            self.leaves[k] = None
            self.sources[k][...] = values
            self.leaves[k] = ow.array(self.sources[k], copy=False)
        elif self.held[k] == "a tensor":
            values = self.numbers()
            self.context.write_tensor(self.sources[k], values)
        else:
            return
        self.values[k] = values

    def run(self) -> None:
        expected = self.numbers() if self.draw(st.booleans()) else self.values[0]
        result = ow.ops.identity(expected)
        for name, before, k in self.steps:
            if name in ALIKE:
                result, expected = ALIKE[name][0](result), ALIKE[name][1](expected)
                continue
            leaf, value = self.leaves[k], self.values[k]
            if before:
                leaf, value = ALIKE[before][0](ow.array(leaf, copy=False)), ALIKE[before][1](value)
            result, expected = TOGETHER[name][0](result, leaf), TOGETHER[name][1](expected, value)
        leaf = None
        same(result.numpy(), expected)
        fixed = [value for _, variant in weights.specialised.items() for value in variant.values]
        for source in self.sources:  # what can be written is never a constant
            array = source if source is None or isinstance(source, np.ndarray) else memory_of(source)
            assert array is None or not any(np.shares_memory(array, value) for value in fixed)


ALIKE = {name: UNARY[name] for name in ("neg", "relu", "tanh", "half", "transpose", "back", "softmax", "gram")}
TOGETHER: dict[str, tuple[Callable[[Any, Any], Any], Callable[[np.ndarray, np.ndarray], Any]]] = {
    **{name: BINARY[name] for name in ("add", "mul", "max")},
    "matmul": (lambda x, y: clipping(x @ y), lambda x, y: clipped(x @ y)),
}


@pytest.mark.long
@pytest.mark.parametrize("context", [CONTEXT, REFERENCE], ids=["cpu", "reference"])
@settings(max_examples=80)
@given(data=st.data())
def test_recurring_program_sees_writes_between_runs(context: ow.MLContext, data: st.DataObject) -> None:
    recurrences, weights.RECURRENCES = weights.RECURRENCES, 2
    large, pool.LARGE = pool.LARGE, 1
    before = ow.lazy.compile_now()
    weights.specialised.clear()
    try:
        with context:
            program = Recurring(data.draw, context)
            for _ in range(data.draw(st.integers(3, 6))):
                for _ in range(data.draw(st.integers(1, 4))):
                    program.run()
                what = data.draw(st.sampled_from(["nothing", "write", "replace", "restore"]))
                k = data.draw(st.integers(0, len(program.held) - 1))
                if what != "nothing":
                    getattr(program, what)(k)
    finally:
        ow.lazy.compile_now(before)
        weights.RECURRENCES = recurrences
        pool.LARGE = large
