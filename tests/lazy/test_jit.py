"""`ow.jit`: functions of arrays as graphs."""

from __future__ import annotations

import gc
import math
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from numpy.testing import assert_allclose

import opweave as ow
from opweave import array_api as xp, memory
from opweave.compile import driver
from opweave.lazy import jit

X = np.array([[1, -2], [3, 4]], "float32")


class Pair(NamedTuple):
    first: Any
    second: Any


def counted(function: Callable[..., Any], **options: Any) -> tuple[Any, list[int]]:
    """The function, and a list that grows with each time it is traced."""
    times: list[int] = []

    def body(*args: Any, **kwargs: Any) -> Any:
        times.append(1)
        return function(*args, **kwargs)

    return ow.jit(body, **options), times


def test_jit_traces_once_for_each_shape_and_type() -> None:
    double, times = counted(lambda x: x + x)
    for _ in range(3):
        assert double(X).tolist() == [[2, -4], [6, 8]]
    assert len(times) == 1
    assert double(X[0]).tolist() == [2, -4]
    assert double(X.astype("int32")).tolist() == [[2, -4], [6, 8]]
    assert len(times) == 3
    assert double.cache_info() == (2, 3, jit.GRAPHS, 3)
    double.clear_cache()
    assert double.cache_info() == (0, 0, jit.GRAPHS, 0)


@pytest.mark.parametrize(
    "kind", ["numpy", "array", "pending", "tensor", "scalar of numpy", "not contiguous", "read-only"]
)
def test_jit_traces_once_for_arguments_of_all_kinds(kind: str) -> None:
    double, times = counted(lambda x: x * 2 + 1)
    context = ow.ml.create_context(accelerated=False)
    double(ow.array(X)) if kind != "scalar of numpy" else double(ow.array(1.0))
    value: Any = X
    want: Any = X * 2 + 1
    if kind == "array":
        value = ow.array(X)
    elif kind == "pending":
        value, want = ow.array(X) + 1, (X + 1) * 2 + 1
    elif kind == "tensor":
        value = context.tensor_from(X)
    elif kind == "scalar of numpy":
        value, want = np.float32(3), np.float32(7)
    elif kind == "not contiguous":
        value, want = X.T, (X * 2 + 1).T
    elif kind == "read-only":
        value = X.copy()
        value.flags.writeable = False
    result = double(value)
    assert isinstance(result, ow.Array)
    assert not result.pending
    np.testing.assert_array_equal(result.numpy(), want)
    assert len(times) == (2 if kind == "tensor" else 1)  # a context of its own


def test_jit_ignores_unused_pending_argument() -> None:
    first = ow.jit(lambda x, y: x + 1)
    unused = ow.array(X) + 1
    first(X, unused)
    assert unused.pending


def test_nested_arguments_and_results_keep_their_structure() -> None:
    @ow.jit
    def swap(pair: Pair, more: dict[str, Any], *, rest: list[Any]) -> Any:
        (a, b), c = pair, more["c"]
        return {"sum": a + b, "pair": Pair(c, a * 2), "rest": [*rest, ("text", None, 3)], "same": (a + b, c)}

    result = swap(Pair(X, X + 1), OrderedDict(c=ow.array(X), name="n"), rest=[1.5, X])
    again = swap(Pair(X + 1, X), OrderedDict(c=ow.array(X), name="n"), rest=[1.5, X])
    assert swap.cache_info().currsize == 1
    for got in (result, again):
        assert list(got) == ["sum", "pair", "rest", "same"]
        assert type(got["pair"]) is Pair
        np.testing.assert_array_equal(got["sum"].numpy(), 2 * X + 1)
        assert got["rest"][0] == 1.5
        assert got["rest"][2] == ("text", None, 3)
    np.testing.assert_array_equal(result["pair"].second.numpy(), X * 2)
    np.testing.assert_array_equal(again["pair"].second.numpy(), X * 2 + 2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ((1,), (True,)),
        ((1,), [1]),
        ({"a": 1}, {"b": 1}),
        (("a", "b"), (("a", "b"),)),
        (None, "None"),
        (np.float64(1), 1.0),
    ],
)
def test_jit_distinguishes_similar_static_arguments(one: Any, other: Any) -> None:
    for options in ({}, {"static": ("value",)}):

        def identity(x: Any, value: Any) -> Any:
            return x + 1, (type(value).__name__, repr(value))

        named = ow.jit(identity, **options) if options else ow.jit(identity)
        for value in (one, other, one):
            assert named(X, value)[1] == (type(value).__name__, repr(value))
        assert named.cache_info()[:2] == (1, 2)


def test_static_names_parameters() -> None:
    summed, times = counted(lambda x, axes: x.reduce_sum(axes=axes))
    assert summed(X, [0]).tolist() == [4, 2]
    assert summed(X, [1]).tolist() == [-1, 7]
    assert len(times) == 2

    @ow.jit(static=("table",))
    def pick(x: Any, table: Any) -> Any:
        return x * float(table[0])  # a number here, since it is not an operand

    assert pick(X, (np.float32(2),)).tolist() == (X * 2).tolist()
    table = np.float32([3, 0])
    for table[0] in (3, 5):
        assert pick(X, table).tolist() == (X * float(table[0])).tolist()
    with pytest.raises(ow.ValidationError, match="argument 'table': an object of type set is neither an array, nor"):
        pick(X, {2.0})
    with pytest.raises(
        ow.ValidationError, match=r"jit '<lambda>': static names parameters of the function, got \['y'\]"
    ):
        ow.jit(lambda x: x, static=("y",))
    with pytest.raises(ow.ValidationError, match=r"jit '<lambda>': static must be a list of names, got 0"):
        ow.jit(lambda x: x, static=0)  # type: ignore[call-overload]


def test_methods_and_their_objects() -> None:
    class Layer:
        def __init__(self, weight: Any) -> None:
            self.weight = weight

        @ow.jit
        def __call__(self, x: Any) -> Any:
            """Multiply."""
            return x @ self.weight

    one, two = Layer(np.eye(2, dtype="float32")), Layer(ow.array(2 * np.eye(2, dtype="float32")))
    assert one(X).tolist() == X.tolist()
    assert two(X).tolist() == (2 * X).tolist()
    assert Layer.__call__.__doc__ == "Multiply."
    assert Layer.__call__.cache_info().currsize == 2
    gone = weakref.ref(two)
    del two
    gc.collect()
    assert gone() is None  # the cache does not keep it
    Layer.__call__(one, X[:1])
    assert Layer.__call__.cache_info().currsize == 2  # and has forgotten its graph


def test_jit_closure_values() -> None:
    context = ow.ml.create_context(accelerated=False)
    weight, bias = np.full((2, 2), 2, "float32"), ow.array([1.0, 2.0])
    state = context.create_tensor("float32", [2], readable=True, writable=True)
    scaled = ow.jit(lambda x: x * weight + state)
    with context:
        np.testing.assert_array_equal(scaled(X).numpy(), X * 2)
        context.write_tensor(state, np.float32([5, 6]))  # tensors are read at each call
        np.testing.assert_array_equal(scaled(X).numpy(), X * 2 + np.array([5, 6], "float32"))
    with pytest.raises(ValueError, match="read-only"):  # constants must not change unnoticed
        weight[:] = 3
    scaled.clear_cache()
    gc.collect()
    weight[:] = 3
    with context:
        np.testing.assert_array_equal(scaled(X).numpy(), X * 3 + np.array([5, 6], "float32"))
    with pytest.raises(
        ow.ValidationError, match=r"jit '<lambda>': .*an array of <MLContext on cpu.*in a function that runs"
    ):
        ow.jit(lambda x: x + bias)(context.tensor_from(X))


def mapped_array(mode: Any) -> tuple[Any, Any]:
    with tempfile.TemporaryFile() as file:
        file.write(np.ones(6, "float32").tobytes())
        file.flush()
        base = np.memmap(file, "float32", mode, shape=(6,))
    return base[1:5].view(np.ndarray), base


def of_base(view: Callable[[np.ndarray], np.ndarray]) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    def make() -> tuple[np.ndarray, np.ndarray]:
        base = np.ones(6, "float32")
        return view(base), base

    return make


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


VIEWS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "itself": of_base(lambda base: base),
    "view": of_base(lambda base: base[1:5]),
    "view of a view": of_base(lambda base: base[1:][:4][::-1][1:]),
    "reshaped": of_base(lambda base: base.reshape(2, 3)),
    "transposed": of_base(lambda base: base.reshape(2, 3).T),
    "strided": of_base(lambda base: base[::2]),
    "other type": of_base(lambda base: base.view("int32").view("float32")),
    "field": of_base(lambda base: base.view([("a", "float32"), ("b", "float32")])["b"]),
    "broadcast": of_base(lambda base: np.broadcast_to(base, (2, 6))),
    "strides of its own": of_base(lambda base: as_strided(base, (2, 3), (4, 8), writeable=False)),
    "writable strides of its own": of_base(lambda base: as_strided(base, (6,), (4,))),
    "windows": of_base(lambda base: sliding_window_view(base, 2)),
    "read-only view": of_base(lambda base: read_only(base[1:5])),
    "buffer": of_base(lambda base: np.frombuffer(memoryview(base), "float32")),
    "asarray of a buffer": of_base(lambda base: np.asarray(memoryview(base))[1:]),
    "mapped file": lambda: mapped_array("r+"),
    "mapped file, copied on write": lambda: mapped_array("c"),
    "opweave.array": of_base(lambda base: cast("np.ndarray", ow.array(base[:4], copy=False))),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_jit_protects_bases_of_captured_array(kind: str) -> None:
    captured, base = VIEWS[kind]()
    plus = ow.jit(lambda x: (x + captured).reduce_sum())
    expected = np.asarray(captured).sum()
    for _ in range(2):
        assert plus(np.float32(0)).item() == expected
        with pytest.raises(ValueError, match="read-only"):
            base[:] = 5
    plus.clear_cache()
    gc.collect()
    if kind != "opweave.array":
        base[:] = 5
        assert plus(np.float32(0)).item() == np.asarray(captured).sum() == 5 * expected


def bytearray_array() -> tuple[Any, Any]:
    memory = bytearray(np.ones(6, "float32").tobytes())
    return np.frombuffer(memory, "float32"), np.frombuffer(memory, "float32")


def exported(value: np.ndarray) -> Any:
    class Exporter:
        def __dlpack__(self, **options: Any) -> Any:
            return value.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return value.__dlpack_device__()

        def __array__(self, *_: Any, **__: Any) -> np.ndarray:
            return value

    return Exporter()


def foreign(value: np.ndarray) -> Any:
    class Foreign:
        __array_interface__ = value.__array_interface__
        keep = value

    return np.asarray(Foreign())


FOREIGN: dict[str, Callable[[], tuple[Any, Any]]] = {
    "bytearray": bytearray_array,
    "view of a bytearray": lambda: (lambda pair: (pair[0][1:5], pair[1]))(bytearray_array()),
    "array interface": of_base(foreign),
    "view by the array interface": of_base(lambda base: cast("np.ndarray", foreign(base)[1:5])),
    "DLPack": of_base(np.from_dlpack),
    "object with DLPack": of_base(exported),
    "second view": lambda: (lambda base: (base[1:5], base[:]))(np.ones(6, "float32")),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_jit_copies_captured_array_of_shared_memory(kind: str) -> None:
    """The values stay those that the function was traced with, in all operations."""
    captured, other = FOREIGN[kind]()
    plus = ow.jit(lambda x: (x + captured, x.reduce_sum() + ow.ops.exp(captured)))
    zero = np.zeros(np.asarray(captured).shape, "float32")
    before = [y.numpy().copy() for y in plus(zero)]
    other[:] = 5
    after = [y.numpy() for y in plus(zero)]
    np.testing.assert_array_equal(after, before)
    np.testing.assert_array_equal(after[0], 1)


def test_jit_releases_captured_arrays() -> None:
    base = np.ones((2, 6), "float32")
    view, foreign_array = base[:, 1:].T[1:], foreign(np.ones(3, "float32"))
    strided, of_bytes = as_strided(base, (2,), (4,)), np.frombuffer(bytearray(8), "float32")
    constant = read_only(np.ones(2, "float32"))
    captured = [view, foreign_array, strided, of_bytes, constant]
    total = ow.jit(lambda x: [x + each for each in captured])
    total(np.float32(1))
    assert not any(array.flags.writeable for array in (base, view, of_bytes))
    with pytest.raises(ValueError, match="read-only"):
        base[:] = 2
    total.clear_cache()
    gc.collect()
    for array in (base, view, foreign_array, strided, of_bytes):
        array[:] = 2
    assert not constant.flags.writeable


def test_jit_copies_no_captured_array_that_is_protected() -> None:
    weight, fixed = np.ones((64, 64), "float32"), np.frombuffer(bytes(64 * 256), "float32").reshape(64, 64)
    multiplied = ow.jit(lambda x: x @ weight + fixed)
    before = memory.copies.count
    multiplied(np.ones((1, 64), "float32"))
    assert memory.copies.count == before


def test_jit_returns_arguments_and_constants() -> None:
    constant = np.float32([7])
    every: Any = ow.jit(lambda x, t: (x, t, constant, x.builder.constant(constant), ow.array([1.0]) + 1, x))
    tensor = ow.ml.create_context(accelerated=False).tensor_from(X.copy())
    given = X.copy()
    results = every(given, tensor)
    given[:] = 0
    assert [r.tolist() for r in results] == [X.tolist(), X.tolist(), [7], [7], [2], X.tolist()]
    assert not any(r.pending for r in results)
    assert ow.jit(lambda: 5)() == 5


def test_jit_copies_nothing_between_calls() -> None:
    layer = ow.jit(lambda x, w: (x @ w).relu())
    a, b = ow.array(X), ow.array(X)
    layer(a, b)
    before = memory.copies.count
    layer(layer(a, b), b)
    layer(X, X)
    assert memory.copies.count == before


def test_jit_call_inside_trace_is_inlined() -> None:
    inner, inner_times = counted(lambda x: x * 2)
    outer = ow.jit(lambda x: inner(inner(x) + 1))
    np.testing.assert_array_equal(outer(X).numpy(), (X * 2 + 1) * 2)
    assert len(inner_times) == 2
    assert inner.cache_info().currsize == 0
    builder = ow.MLGraphBuilder(ow.ml.create_context(accelerated=False))
    graph = builder.build({"y": outer(builder.input("x", "float32", [2]))})
    assert [placement.node for placement in graph.placements()] == ["mul", "add", "mul"]


def test_jit_traces_custom_operations_loops_and_branches() -> None:
    @ow.expression
    def gated(x: Any, y: Any) -> Any:
        return x * ow.expr.sigmoid(y)

    @ow.jit
    def network(x: Any, layers: list[Any]) -> Any:
        for weight in layers:
            x = gated(x @ weight, x)
            if x.shape[0] > 1:
                x = x - ow.ops.reduce_mean(x, axes=[0], keep_dimensions=True)
        return ow.ops.concat([x, x[:1]], 0) if len(x) > 1 else x

    def plain(x: Any, layers: Any) -> Any:
        for weight in layers:
            x = (x @ weight) / (1 + np.exp(-x))
            x = x - x.mean(0, keepdims=True) if len(x) > 1 else x
        return np.concatenate([x, x[:1]]) if len(x) > 1 else x

    layers = [X, X + 1, X - 1]
    for x in (X, X[:1]):
        np.testing.assert_allclose(network(x, layers).numpy(), plain(x, layers), rtol=2e-5, atol=1e-5)


def test_array_of_traced_operand_is_the_operand() -> None:
    double = ow.jit(lambda x: ow.array(x) + ow.array(x, "float32") + ow.array(x, "int32").cast("float32"))
    assert double(np.float32([1.5, 2])).tolist() == [4, 6]


def test_contexts() -> None:
    where: list[str] = []

    @ow.jit
    def double(x: Any) -> Any:
        where.append(x.context.device.name)
        return x + x

    with ow.ml.create_context(device="reference"):
        assert double(X).context.device.name == "reference"
    assert double(X).context.device.name != "reference"
    assert where == ["reference", double(X).context.device.name]
    one, other = (ow.ml.create_context(accelerated=False) for _ in range(2))
    with pytest.raises(ow.ValidationError, match=r"jit .*: the arguments belong to several contexts"):
        ow.jit(lambda x, y: x + y)(one.tensor_from(X), other.tensor_from(X))
    tensor = one.tensor_from(X)
    add = ow.jit(lambda x: x + 1)
    add(tensor)
    one.destroy()
    with pytest.raises(ow.InvalidStateError, match="the context is lost"), one:
        pass
    with pytest.raises(ow.InvalidStateError, match="the context is lost"):
        add(tensor)


def test_threads_trace_once_and_agree() -> None:
    function, times = counted(lambda x, n: x * n)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda k: function(X + k, 3).numpy(), range(64)))
    assert len(times) == 1
    for k, result in enumerate(results):
        np.testing.assert_array_equal(result, (X + k) * 3)


def test_jit_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    add, times = counted(lambda x, n: x + n)
    monkeypatch.setattr(add.graphs, "max_entries", 3)
    for n in (1, 2, 3, 1, 4, 1, 2):
        add(X, n)
    assert add.cache_info().currsize == 3
    assert len(times) == 5  # 2 was the one that had not been used for longest


# ---------------------------------------------------------------------------------------------------------------------
# Errors

QUESTIONS: dict[str, Callable[[Any], Any]] = {
    r"bool\(\)": lambda x: x if x.reduce_sum() else -x,
    r"'>' .*ow\.ops\.greater\(x, y\)": lambda x: x if x.reduce_sum() > 0 else -x,
    r"'=='": lambda x: x == 0,
    r"'!='": lambda x: x != 0,
    r"'<'": lambda x: min(x[0], x[1]),
    r"'<=' ": lambda x: np.float32(1) <= x,
    r"float\(\)": lambda x: float(x[0, 0]),
    r"int\(\)": lambda x: int(x[0, 0]),
    r"int\(\) ": lambda x: [1, 2][x[0, 0]],
    r"complex\(\)": lambda x: complex(x[0, 0]),
    r"round\(\)": lambda x: round(x),
    r"format\(\)": lambda x: f"{x:.2f}",
    r"'in'": lambda x: 1.0 in x,
    r"item\(\)": lambda x: x.item(),
    r"tolist\(\)": lambda x: x.tolist(),
    r"numpy\(\)": lambda x: x.numpy(),
    r"NumPy": lambda x: np.asarray(x),
    r"NumPy ": lambda x: np.array([x[0, 0], 1.0]),
    r"np\.sin .*ow\.ops": lambda x: np.sin(x),
    r"np\.mean": lambda x: np.mean(x),
    r"np\.concatenate": lambda x: np.concatenate([x, x]),
    r"np\.norm": lambda x: np.linalg.norm(x),
    r"DLPack": lambda x: np.from_dlpack(x),
    r"iteration": lambda x: list(x.reduce_sum()),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_jit_reading_values_is_an_error(question: str) -> None:
    body = QUESTIONS[question]
    line = body.__code__.co_firstlineno
    match = rf"^jit '<lambda>': {question.strip()}.*which are not known while .*\(test_jit\.py, line {line}: .*\); \w+"
    if " ." in question:
        asks, advice = question.split(" .*")
        match = rf"^jit '<lambda>': {asks} asks for .*\(test_jit\.py, line {line}: .*{advice}"
    with pytest.raises(ow.ValidationError, match=match):
        ow.jit(body)(X)


def test_jit_call_after_failed_trace() -> None:
    fails = [True]

    @ow.jit
    def sometimes(x: Any) -> Any:
        return x + (1 if not fails.pop() else np.zeros(3, "float32"))

    with pytest.raises(
        ow.ValidationError, match=r"jit 'sometimes': add: the shapes .* \(test_jit\.py, line \d+: return x \+ \(1 if"
    ):
        sometimes(X)
    assert sometimes.cache_info() == (0, 1, jit.GRAPHS, 0)
    fails.append(False)
    assert sometimes(X).tolist() == (X + 1).tolist()


def test_jit_errors_keep_their_type() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        ow.jit(lambda x: x + 1 / 0)(X)
    assert "while tracing jit '<lambda>' (test_jit.py, line" in caught.value.__notes__[0]


def test_jit_rejects_invalid_arguments_and_results() -> None:
    @dataclass
    class Unhashable:
        a: int = 0

    same = ow.jit(lambda x, *rest: x)
    for value, message in [
        (np.zeros(2), r"jit '<lambda>': argument 'x': float64 is not a data type of WebNN"),
        (xp.asarray([1j]), "argument 'x': complex64 is not .*; array.real and array.imag are its parts"),
        ([np.zeros(2, ">f4")], "argument 'x': .*native byte order"),
        (Unhashable(), "argument 'x': an object of type Unhashable is neither an array, nor a tuple, .* nor hashable"),
        ({1}, "an object of type set"),
        (np.ma.masked_array(X), "masked"),
    ]:
        with pytest.raises(ow.ValidationError, match=message):
            same(value)
    with pytest.raises(ow.ValidationError, match="argument number 2: "):
        same(X, {1})
    with pytest.raises(ow.ValidationError, match=r"results are arrays, tuples, lists .* got a set"):
        ow.jit(lambda x: {1, 2})(X)
    with pytest.raises(ow.ValidationError, match="jit takes a function, got 3"):
        ow.jit(3)  # type: ignore[call-overload]

    def lazily(x: Any) -> Iterator[Any]:
        yield x

    with pytest.raises(ow.ValidationError, match="jit 'lazily': a generator or coroutine cannot be traced"):
        ow.jit(lazily)

    leaked: list[Any] = []

    def leak(x: Any, build: bool) -> Any:
        leaked.append(x)
        return x + 1 if build else 5

    ow.jit(leak)(X, True)
    with pytest.raises(ow.InvalidStateError, match="the builder has built its graph"):
        leaked[0] + 1
    ow.jit(leak)(X, False)
    with pytest.raises(ow.InvalidStateError, match="the builder has built its graph"):
        leaked[1] + 1
    with pytest.raises(ow.ValidationError, match="operand of another"):
        ow.jit(lambda x: leaked[0])(X)


# Sizes that change ---------------------------------------------------------------------------------------------------


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are compiled."""
    graphs: list[Any] = []
    compile = driver.compile

    def note(graph: Any, *args: Any, **kwargs: Any) -> Any:
        graphs.append(graph)
        return compile(graph, *args, **kwargs)

    monkeypatch.setattr(driver, "compile", note)
    return graphs


def test_jit_compiles_nothing_after_the_second_recompilation(compiled: list[Any]) -> None:
    weight = np.random.rand(4, 3).astype("float32")
    traced = []

    @ow.jit
    def dense(x: Any, bias: Any, mask: Any, scale: float = 1.0) -> Any:
        traced.append(x.shape)
        rows = x.reshape([x.shape[0] * x.shape[1], 4]) @ weight + bias
        return {"y": (rows * scale).relu(), "x": x}, ow.ops.concat([mask, mask], 0)

    for call, (n, m) in enumerate([(2, 3), (4, 1), (3, 5), (1, 7), (9, 2), (2, 3), (6, 6)]):
        x, bias, mask = (
            np.random.rand(n, m, 4).astype("float32"),
            np.random.rand(3).astype("float32"),
            np.ones(n, "int32"),
        )
        result, both = dense(x, ow.array(bias), mask, scale=2.0)
        assert_allclose(result["y"].numpy(), np.maximum(x.reshape(-1, 4) @ weight + bias, 0) * 2, rtol=1e-5)
        assert both.tolist() == [1] * 2 * n
        assert result["x"].tolist() == x.tolist()
        assert len(compiled) == len(traced) == min(call + 1, 3)


def test_jit_traces_anew_where_a_function_decides_by_a_size(compiled: list[Any]) -> None:
    @ow.jit
    def doubled(x: Any) -> Any:
        return x * 2 if x.shape[0] > 4 else x + 1

    for n in (1, 2, 3, 4, 5, 6, 7, 2):
        x = np.arange(n, dtype="float32")
        assert doubled(x).tolist() == (x * 2 if n > 4 else x + 1).tolist()
    assert len(compiled) == 4  # 1, 2, names up to 4, names from 5


def test_jit_compiles_nothing_where_sizes_are_data(compiled: list[Any]) -> None:
    factors = ow.array([1.0, 2.0])

    @ow.jit
    def spread(x: Any) -> Any:
        n, m = x.shape
        return x / n, m - x, ow.ops.mul(x, n * m - 1), (x * factors + n) ** 2

    for call, (n, m) in enumerate([(2, 2), (4, 2), (3, 2), (7, 2), (5, 2)]):
        x = np.random.default_rng(call).random((n, m), "float32")
        expected = [x / np.float32(n), np.float32(m) - x, x * np.float32(n * m - 1), (x * [1, 2] + n) ** 2]
        for result, witness in zip(spread(x), expected, strict=True):
            assert_allclose(result.numpy(), witness, rtol=1e-6)
        assert len(compiled) == min(call + 1, 3)
    assert "sizes with names: [size0, 2], first for size0 = 3" in spread.explain()


def test_jit_says_why_shapes_are_compiled_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    @ow.jit
    def total(x: Any) -> Any:
        if isinstance(x.shape[0], ow.Size):
            raise RuntimeError("no names here")
        return x + 1

    with caplog.at_level("INFO", "opweave"):
        for n in range(1, 6):
            total(np.ones(n, "float32"))
    reason = (
        "shapes are compiled one by one: RuntimeError: no names here "
        f'(test_jit.py, line {total.__wrapped__.__code__.co_firstlineno + 3}: raise RuntimeError("no names here"))'
    )
    assert [record.getMessage() for record in caplog.records if "one by one" in record.getMessage()] == [
        f"jit {total._name!r}: {reason}"
    ]
    assert f"  {reason}" in total.explain().splitlines()
    assert "  traced for: [1], [2], [3], [4], [5]" in total.explain().splitlines()


def test_jit_takes_numbers_of_sizes() -> None:
    @ow.jit
    def mean(x: Any) -> Any:
        return ow.ops.reduce_sum(x) / float(x.shape[0]) + np.ones(x.shape[0], "float32")

    for n in (1, 2, 3, 4, 5, 6, 7, 8):
        x = np.arange(n, dtype="float32")
        assert_allclose(mean(x).numpy(), x.mean() + np.ones(n))


def test_jit_compiles_nothing_where_real_numbers_of_sizes_are_data(compiled: list[Any]) -> None:
    @ow.jit
    def scaled(x: Any) -> Any:
        n, m = x.shape
        return x * (1 / n), (x @ x.transpose()) / m**0.5, x - np.sqrt(n) if m / 2 > 1 else x

    for call, (n, m) in enumerate([(2, 3), (4, 5), (3, 6), (7, 4), (5, 8)]):
        x = np.random.default_rng(call).random((n, m), "float32")
        expected = [x / n, x @ x.T / np.sqrt(m), x - np.float32(np.sqrt(n))]
        for result, witness in zip(scaled(x), expected, strict=True):
            assert_allclose(result.numpy(), witness, rtol=1e-5)
        assert len(compiled) == min(call + 1, 3)


def test_jit_says_which_line_asks_for_a_number(caplog: pytest.LogCaptureFixture) -> None:
    @ow.jit
    def scaled(x: Any) -> Any:
        return x / math.sqrt(x.shape[0])

    with caplog.at_level("INFO", "opweave"):
        for n in range(1, 9):
            assert_allclose(scaled(np.ones(n, "float32")).numpy(), np.ones(n) / np.sqrt(n), rtol=1e-6)
    asks, limit = (record.getMessage() for record in caplog.records if "jit" in record.getMessage())
    line = f"(test_jit.py, line {scaled.__wrapped__.__code__.co_firstlineno + 2}: return x / math.sqrt(x.shape[0]))"
    assert asks == f"jit {scaled._name!r}: a program for each number of a size: size0 = 3 {line}"
    reason = (
        f"shapes are compiled one by one: the function asks for size0 = 6 {line}; 4 traces with names are the limit"
    )
    assert limit == f"jit {scaled._name!r}: {reason}"
    assert f"    for size0 = 6 {line} alone" in scaled.explain().splitlines()
    assert f"  {reason}" in scaled.explain().splitlines()


def test_jit_raises_errors_of_the_function() -> None:
    @ow.jit
    def picky(x: Any) -> Any:
        if x.shape[0] == 7:
            raise RuntimeError("seven")
        return x + 1

    for n in range(1, 7):
        picky(np.ones(n, "float32"))
    with pytest.raises(RuntimeError, match="seven"):
        picky(np.ones(7, "float32"))


def test_jit_names_raise_the_errors_of_numbers() -> None:
    @ow.jit
    def add(x: Any, y: Any) -> Any:
        return x + y

    for n in (2, 3, 4, 5):
        add(np.ones(n, "float32"), np.ones(n, "float32"))
    with pytest.raises(ow.ValidationError, match=r"add: the shapes of a and b do not broadcast: \[3\] and \[4\]"):
        add(np.ones(3, "float32"), np.ones(4, "float32"))
    assert add(np.ones(3, "float32"), np.ones(1, "float32")).tolist() == [2, 2, 2]
