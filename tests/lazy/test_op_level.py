"""Operations called on arrays: what arrays do, what is recorded, what is written, and when it is compiled."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

import numpy as np
import pytest
from op_level_fixtures import from_zero  # noqa: F401  (by pytestmark)
from support.foreign import Foreign

import opweave as ow
from opweave import memory
from opweave.lazy import background, graphs

STATISTICS = ow.lazy.statistics

pytestmark = pytest.mark.usefixtures("from_zero")


@pytest.fixture
def x() -> ow.Array:
    return ow.array([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]])


def counts() -> tuple[int, int]:
    """Results that were written, and those that were not."""
    return STATISTICS.values, STATISTICS.dropped


# ---------------------------------------------------------------------------------------------------------------------
# Arrays


@pytest.mark.parametrize(
    ("values", "data_type", "expected"),
    [
        ([1.5, 2], None, "float32[2]"),
        ([1, 2], None, "int32[2]"),
        ([True, False], None, "uint8[2]"),
        (3, None, "int32[]"),
        (2.5, "float16", "float16[]"),
        (np.float64(1), "float32", "float32[]"),
        (np.ones((2, 1), "int8"), None, "int8[2, 1]"),
        (np.ones(2), "float32", "float32[2]"),
        ([2**40], "int64", "int64[1]"),
        (np.ones((4, 4), "float32")[::2, 1:3], None, "float32[2, 2]"),
    ],
)
def test_array_accepts_anything_with_numbers(values: Any, data_type: Any, expected: str) -> None:
    made = ow.array(values, data_type)
    assert str(made.desc) == expected
    np.testing.assert_array_equal(made.numpy(), np.asarray(values))


@pytest.mark.parametrize(
    ("values", "data_type", "message"),
    [
        ([2**40], None, r"values in \[1099511627776, 1099511627776\] are not all values of int32; data_type= takes a wider"),
        ([-1], "uint8", r"values in \[-1, -1\] are not all values of uint8"),
        ([[1], [1, 2]], None, "values must be numbers in lists of the same lengths"),
        (["a"], None, r"values must be numbers that a data type of WebNN can hold, got \['a'\]"),
        ([object()], None, "values must be numbers that a data type of WebNN can hold, got .<object object at"),
        ([1j], None, "values must be numbers .*, got complex128"),
        ([2**70], None, r"values must be numbers .*, got \[1180591620717411303424\]"),
        (np.ones(2), None, "values: float64 is not a data type of WebNN"),
        (np.ones((1,) * 9, "int8"), None, "values must have at most 8 dimensions, got 9"),
        ([1.0], "float64", "data type must be one of .*, got 'float64'"),
    ],
)  # fmt: skip
def test_array_rejects_invalid_values(values: Any, data_type: Any, message: str) -> None:
    with pytest.raises(ow.ValidationError, match=message):
        ow.array(values, data_type)


def test_array_attributes_and_protocols(x: ow.Array) -> None:
    y = x * 2
    assert (y.shape, y.ndim, y.rank, y.size, y.dtype, y.data_type) == ((2, 3), 2, 2, 6, np.float32, "float32")
    assert len(y) == 2
    assert [row.tolist() for row in y] == [[2, -4, 6], [-8, 10, -12]]
    assert y[1, -1].item() == -12.0
    assert float(y[0, 0]) == 2.0
    assert int(y[0, 0]) == 2
    assert f"{y[0, 0]:.2f}" == "2.00"
    assert bool(y[0, 0])
    assert 10 in y
    assert 11 not in y
    assert np.asarray(y).dtype == np.float32
    assert np.asarray(y, "float64").dtype == np.float64
    assert list(range(ow.array(3))) == [0, 1, 2]
    assert copy.copy(y).tolist() == y.tolist()
    assert copy.deepcopy([y])[0].tolist() == y.tolist()
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(y)
    with pytest.raises(ow.ValidationError, match=r"item\(\) takes an array of one element, got float32\[2, 3\]"):
        y.item()
    with pytest.raises(TypeError, match=r"an index must be an integer, got an array float32\[\]"):
        range(y[0, 0])
    with pytest.raises(AttributeError, match="an array has no attribute or operation 'rely'"):
        y.rely()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="read-only"):
        y.numpy()[0] = 1


def test_operators(x: ow.Array) -> None:
    a, b = x.numpy(), np.float32([[2, 4, 8], [1, 2, 4]])
    pairs = [
        (x + b, a + b), (b + x, b + a), (x - b, a - b), (b - x, b - a), (x * b, a * b), (b * x, b * a),
        (x / b, a / b), (b / x, b / a), (1 - x, 1 - a), (1.0 / x, 1 / a), (x**2, a**2), (2**x, 2**a),
        (-x, -a), (abs(x), abs(a)), (x @ b.T, a @ b.T), (b @ ow.array(a.T), b @ a.T), (np.float32(2) * x, 2 * a),
        (x.greater(0.0), (a > 0).astype("uint8")), (x.equal(b), (a == b).astype("uint8")), (x[:, ::-2], a[:, ::-2]),
        (x[None, 1], a[None, 1]), (x[..., 1:], a[..., 1:]),
    ]  # fmt: skip
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5)


def test_nan_and_negative_zero_are_distinct_attributes() -> None:
    x = ow.array([1.0, -1.0])
    for zero in (0.0, -0.0, 0.0):
        np.testing.assert_array_equal(np.signbit((x * zero).numpy()), [zero.hex()[0] == "-", zero.hex()[0] != "-"])
        padded = ow.ops.pad(x, [0], [1], value=zero)
        assert bool(np.signbit(padded.numpy()[-1])) == (zero.hex()[0] == "-")
    assert np.isnan((x + float("nan")).numpy()).all()
    assert (x + float("inf")).tolist() == [float("inf")] * 2
    assert (x * 10**400).tolist() == [float("inf"), -float("inf")]


def test_repr_computes_nothing(x: ow.Array) -> None:
    y = ow.ops.relu(x, label="first")
    assert repr(y) == "<Array float32[2, 3], pending: relu 'first'>"
    assert y.pending
    y.numpy()
    assert repr(y) == "<Array [[1., 0., 3.],\n        [0., 5., 0.]], float32[2, 3]>"


def test_dlpack_both_ways(x: ow.Array) -> None:
    there = np.from_dlpack(x + 1)
    assert there.tolist() == (x.numpy() + 1).tolist()
    back = ow.ops.relu(Foreign(np.float32([-1, 2])))
    assert back.tolist() == [0, 2]
    kept = np.ones(3, "float32")
    adopted = ow.array(kept, copy=False)
    assert np.from_dlpack(adopted).ctypes.data == kept.ctypes.data
    assert not np.from_dlpack(adopted).flags.writeable


def test_operand_plus_array_is_an_operand(x: ow.Array) -> None:
    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    operand = builder.input("a", "float32", [2, 3])
    graph = builder.build({"y": x + operand * x})
    assert context.compute(graph, {"a": np.ones((2, 3), "float32")})["y"].tolist() == (2 * x.numpy()).tolist()


# ---------------------------------------------------------------------------------------------------------------------
# What calls have in common


def test_different_calls_do_not_share_records() -> None:
    seen = []

    @ow.op
    def noted(self: Any, x: ow.MLOperand, first: Any = None, second: Any = None) -> ow.Desc:
        seen.append((first, second))
        return x.desc

    @noted.kernel("cpu")
    def _(x: np.ndarray, first: Any, second: Any, out: np.ndarray) -> None:
        out[...] = 0

    x = ow.array([1.0])
    values = [1, True, 1.0, np.int32(1), np.float32(1), "1", (1,), (True,), (1.0,), ("first",), "first", 0.0, -0.0, None,
              (1, (2,)), ((1, 2),), [1, [2]], np.array([1, 2]), np.array([1, 3]), np.array([1, 2], "int8")]  # fmt: skip
    for value in values:
        for call in (lambda v: noted(x, v), lambda v: noted(x, None, v), lambda v: noted(x, second=v)):
            before = len(seen)
            call(value)
            if value is not None:
                known = len(seen) == before
                assert not known or call.__code__.co_consts[-1] == ("second",), (value, "is taken for another")
            call(value)
            assert len(seen) <= before + 1, (value, "is validated again")
    before = len(seen)
    noted(x, second=2, first=3)
    noted(x, first=3, second=2)
    assert seen[before:] == [(3, 2), (3, 2)]
    noted(x, first=2, second=3)
    assert seen[-1] == (2, 3)


def test_incomparable_attributes_are_validated_in_each_call() -> None:
    @ow.op
    def shifted(self: Any, x: ow.MLOperand, by: Any) -> ow.Desc:
        return x.desc

    @shifted.kernel("cpu")
    def _(x: np.ndarray, by: dict[str, float], out: np.ndarray) -> None:
        out[...] = x + by["value"]

    x, by = ow.array([1.0]), {"value": 1.0}
    first = shifted(x, by)
    assert first.tolist() == [2.0]
    by["value"] = 5.0
    assert shifted(x, by).tolist() == [6.0]
    assert shifted.templates.statistics.entries == 0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: ow.ops.relu([1.0]), "^relu: an operand must be an array or a buffer, got list"),
        (lambda x: ow.ops.relu(np.ones(2), label="a"), "^relu 'a': input: float64 is not a data type of WebNN"),
        (lambda x: ow.ops.arg_max(np.ones((0, 2), "float32"), 0), r"^arg_max: axis must have elements, got axis 0 of"),
        (lambda x: ow.ops.relu(np.array([object()])), "^relu: input: object is not a data type of WebNN"),
        (lambda x: ow.ops.add(x, True), "^add: an operand must be an array or a buffer, got bool"),
        (lambda x: ow.ops.add(2.0, 3.0), "^add: a must be an operand, got 2.0"),
        (lambda x: ow.ops.concat([x, 1.0], 0), "^concat: an operand must be an array or a buffer, got float"),
        (lambda x: ow.ops.concat(x, 0), "^concat: takes a sequence of arrays, got <Array"),
        (lambda x: ow.ops.reduce_sum(x, axes=0), "^reduce_sum: axes must be a sequence, got 0"),
        (lambda x: ow.ops.reduce_sum(x, axes=[2]), r"^reduce_sum: .*\[2\]"),
        (lambda x: ow.ops.reduce_sum(x, keep_dimensions=1), "^reduce_sum: keep_dimensions must be True or False, got 1"),
        (lambda x: ow.ops.softmax(x), "^softmax: the argument 'axis' is missing"),
        (lambda x: ow.ops.softmax(x, 0, 1), "^softmax: takes 2 positional arguments, got 3"),
        (lambda x: ow.ops.softmax(x, 0, axis=0), "^softmax: axis is given twice"),
        (lambda x: ow.ops.relu(x, lable="a"), "^relu: has no argument 'lable'; it takes input"),
        (lambda x: ow.ops.relu(x, label=3), "^relu: label must be a string, got 3"),
        (lambda x: ow.ops.matmul(x, x, label="w"), "^matmul 'w': "),
        (lambda x: ow.array([1, 2]) + 1.5, r"^add: 1.5 is not a value of int32; x.cast\('float32'\) converts the array$"),
        (lambda x: ow.array([1, 2]) + 2**40, "^add: 1099511627776 is not a value of int32$"),
        (lambda x: x.reshape(3, 2), r"^reshape: takes 2 positional arguments, got 3; new_shape is one list: \[3, 2\]$"),
        (lambda x: x.softmax(0, 1), r"^softmax: takes 2 positional arguments, got 3; write softmax\(input, axis\)$"),
        (lambda x: x[5], "^index 5 is out of range for axis 0 with 2 elements"),
        (lambda x: ow.read(np.ones(2)), "^read takes arrays of opweave, got ndarray"),
    ],
)  # fmt: skip
def test_operation_raises_at_wrong_call(x: ow.Array, function: Callable[[ow.Array], Any], message: str) -> None:
    ow.ops.reduce_sum(x, keep_dimensions=True)
    ow.array([1, 2]) + 1.0  # 1.5 would be the same call, except for the value
    for _ in range(2):
        with pytest.raises(ow.ValidationError, match=message):
            function(x)


# ---------------------------------------------------------------------------------------------------------------------
# What is written


def test_intermediates_without_holders_are_not_written(x: ow.Array) -> None:
    ((x + 1).relu() * 2).numpy()
    assert counts() == (1, 2)


@pytest.mark.parametrize("held", ["variable", "list", "closure", "attribute", "bound method", "consumer", "generator"])
def test_held_results_are_written(x: ow.Array, held: str) -> None:
    def middle() -> ow.Array:
        made: ow.Array = x + 1
        return made

    def closing(array: ow.Array) -> Callable[[], ow.Array]:
        return lambda: array

    def waiting(array: ow.Array) -> Iterator[ow.Array]:
        yield array
        yield array

    holders: dict[str, Callable[[ow.Array], Any]] = {
        "variable": lambda a: a,
        "list": lambda a: [a],
        "closure": closing,
        "attribute": lambda a: type("Holder", (), {"array": a}),
        "bound method": lambda a: a.relu,
        "consumer": lambda a: a * 3,
        "generator": waiting,
    }
    array = middle()
    holder = holders[held](array)
    if held == "generator":
        next(holder)
    result = array.tanh()
    watched = ref(array)
    del array
    result.numpy()
    assert counts() == (2, 0)
    found = watched()
    assert found is not None
    assert not found.pending
    assert not hasattr(holder, "pending") or held in ("variable", "consumer")


def test_weak_reference_is_no_holder(x: ow.Array) -> None:
    array = x + 1
    watched = ref(array)
    result = array.tanh()
    del array
    result.numpy()
    assert counts() == (1, 1)
    assert watched() is None


def test_split_writes_only_held_parts(x: ow.Array) -> None:
    left, right = ow.ops.split(x * 2, [1, 2], axis=1)
    del left
    assert right.tolist() == [[-4.0, 6.0], [10.0, -12.0]]
    assert counts() == (1, 2)


def test_split_returns_tuple_for_one_part(x: ow.Array) -> None:
    for parts in (1, [2]):
        split = ow.ops.split(x, parts)
        assert isinstance(split, tuple)
        assert [part.tolist() for part in split] == [x.tolist()]


def test_operand_used_twice_holder_count(x: ow.Array) -> None:
    y = x + 1
    z = y * y
    del y
    z.numpy()
    assert counts() == (1, 1)


def test_profile_records_written_arrays(x: ow.Array) -> None:
    ow.lazy.compile_now()
    with ow.lazy.profile() as records:
        y = ow.ops.add(x, 1.0, label="held")
        z = y.relu() * 2
        z.numpy()
        (z + 1).numpy()
    first, second = records
    assert first.calls == ("add 'held'", "relu", "mul")
    assert first.how == "one graph"
    assert first.written == (("add 'held'", "float32[2, 3]", "held elsewhere"), ("mul", "float32[2, 3]", "asked for"))
    assert (first.dropped, first.copies) == (1, 0)
    assert first.places[0].startswith("test_op_level.py, line ")
    assert str(first).splitlines()[1:] == [
        "  add 'held' -> float32[2, 3]: held elsewhere",
        "  mul -> float32[2, 3]: asked for",
    ]
    assert (second.calls, second.how) == (("add",), "one by one")
    (x + 1).numpy()
    assert len(records) == 2


def test_several_reads_are_one_graph(x: ow.Array) -> None:
    ow.lazy.compile_now()
    y = x + 1
    a, b = ow.read(y.relu(), y * 2)
    assert STATISTICS.graphs == 1
    np.testing.assert_array_equal(a, np.maximum(x.numpy() + 1, 0))
    np.testing.assert_array_equal(b, (x.numpy() + 1) * 2)


def test_intermediates_are_not_copied() -> None:
    x = np.ones((3, 5), "float32")
    before = memory.copies.count
    (ow.ops.relu(x) @ x.T.copy() + 1).numpy()
    assert memory.copies.count == before
    ow.ops.relu(x.T).numpy()
    assert memory.copies.count == before + 1


# ---------------------------------------------------------------------------------------------------------------------
# When it is compiled


def test_recurring_graph_compiles_in_background(x: ow.Array) -> None:
    def once() -> np.ndarray:
        values: np.ndarray = ((x * 2 + 1).tanh() - 0.625).numpy()
        return values

    first = once()
    assert (STATISTICS.operations, STATISTICS.compiled) == (4, 0)
    once()
    ow.lazy.wait()
    assert (STATISTICS.compiled, STATISTICS.graphs) == (1, 0)
    np.testing.assert_allclose(once(), first, rtol=1e-6)
    assert (STATISTICS.compiled, STATISTICS.graphs) == (1, 1)


def test_refused_graph_runs_operation_by_operation(x: ow.Array, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(plan: Any, constants: Any = None) -> Any:
        if len(plan.templates) > 1:
            raise ow.OperationError("too large for me")
        return compiled(plan, constants)

    compiled = graphs.CallGraph.compile
    monkeypatch.setattr(graphs.CallGraph, "compile", refuse)
    ow.lazy.compile_now()
    expected = np.arctan(1) * 0 + (x.numpy() * 3 + 0.5) * 7
    for _ in range(3):
        np.testing.assert_allclose(((x * 3 + 0.5) * 7).numpy(), expected, rtol=1e-6)
    assert (STATISTICS.refused, STATISTICS.operations) == (1, 9)


def test_background_error_is_shown_and_compilation_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    thing, other = background.Recurring(), background.Recurring()

    def break_down() -> Any:
        raise KeyError("a bug")

    seen = []
    monkeypatch.setattr("threading.excepthook", lambda args: seen.append(args.exc_type))
    for _ in range(2):
        thing.count_use(break_down)
    ow.lazy.wait()
    for _ in range(2):
        other.count_use(lambda: "made")  # type: ignore[arg-type,return-value]
    ow.lazy.wait()
    assert seen == [KeyError]
    assert thing.program is None
    assert other.program == "made"


def run_silently(code: str, **environment: str) -> str:
    import os

    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, env={**os.environ, **environment}
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.long
def test_opweave_compile_variable() -> None:
    code = """
import opweave as ow
(ow.array([1.0]) + 1 + 2).numpy()
print(ow.lazy.statistics.compiled, ow.lazy.compile_now(False))
"""
    assert run_silently(code, OPWEAVE_COMPILE="now") == "1 True\n"
    assert run_silently(code, OPWEAVE_COMPILE="background") == "0 False\n"
    code = "import opweave as ow\ntry: ow.lazy.compile_now()\nexcept ow.ValidationError as error: print(error)"
    assert run_silently(code, OPWEAVE_COMPILE="later").endswith(
        "OPWEAVE_COMPILE must be one of now, background, got 'later'\n"
    )


@pytest.mark.long
def test_exit_during_background_compilation() -> None:
    code = """
import numpy as np, opweave as ow
for size in range(1, 30):
    x = ow.array(np.ones((size, size), "float32"))
    for _ in range(2):
        y = x
        for _ in range(20):
            y = (y @ x).tanh()
        y.numpy()
print("end")
"""
    assert run_silently(code) == "end\n"


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="there is no fork here")
def test_compute_after_fork() -> None:
    code = """
import os, sys, warnings
warnings.simplefilter("ignore")
import numpy as np, opweave as ow
x = ow.array(np.ones((300, 300), "float32"))
def work():
    return float((x @ x).relu()[0, 0] + 1)
for _ in range(3):
    work()
    ow.lazy.wait()
pending = x @ x + 2
child = os.fork()
if child == 0:
    results = [work() for _ in range(4)]
    ow.lazy.wait()
    print(results[-1], work(), pending.numpy()[0, 0], flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(work())
"""
    assert run_silently(code) == "301.0 301.0 302.0\n301.0\n"


@pytest.mark.parametrize(
    "key",
    [
        1,
        -1,
        (0, 2),
        (..., slice(1, None)),
        slice(None, None, -1),
        (None, 1),
        (slice(0, 2), slice(2, 0, -2)),
        (),
        ...,
        np.int64(1),
    ],
    ids=repr,
)
def test_index_equals_numpy(x: ow.Array, key: Any) -> None:
    expected = x.numpy()[key]
    for array in (x, x, x + 0.0, ow.array(x.numpy() * 2) * 0.5):
        np.testing.assert_array_equal(array[key].numpy(), expected)
    with ow.ml.create_context(device="reference"):
        np.testing.assert_array_equal(ow.array(x.numpy())[key].numpy(), expected)
    other = ow.array(np.arange(12, dtype="int32").reshape(3, 4))
    np.testing.assert_array_equal(other[key].numpy(), other.numpy()[key])


def test_index_rejects_bools_and_floats_equal_to_integers(x: ow.Array) -> None:
    assert x[1].tolist() == [-4, 5, -6]
    for wrong in (True, 1.0, (True, 0), slice(1.0, None), slice(True, 2.0)):
        with pytest.raises(ow.ValidationError):
            x[wrong]
    with pytest.raises(ow.ValidationError, match="out of range"):
        x[2]


def test_pending_slice_reads_tensor_before_write() -> None:
    context = ow.ml.create_context(device="cpu")
    tensor = context.create_tensor("float32", [3], readable=True, writable=True)
    for first in (1.0, 2.0):
        context.write_tensor(tensor, np.float32([first, 0, 0]))
        part = ow.array(tensor, copy=False)[:2]
        context.write_tensor(tensor, np.zeros(3, "float32"))
        assert part.tolist() == [first, 0]
