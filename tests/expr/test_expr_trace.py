"""Tracing: what users may write, what they are told otherwise, and how programs read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import sleep
from typing import Any

import numpy as np
import pytest
from expr_programs import Case, programs
from hypothesis import given, settings
from row_sample import examples

import opweave.expr as ex
from opweave.core.graph import Desc
from opweave.expr import ir, trace
from opweave.expr.evaluate import evaluate
from opweave.support.errors import ValidationError

X, ROW, I32, U8 = Desc("float32", (4, 5)), Desc("float32", (3,)), Desc("int32", (4,)), Desc("uint8", (4,))
OUTSIDE = "x.clamped[...] or x.padded(value)[...] say what happens outside of the array"
NO_VALUE = "an expression has no value while it is traced"
DATA_TYPES = "float32, float16, int32, uint32, int64, uint64, int8, uint8"


def traced(function: Callable[..., Any], *descs: Desc) -> ir.Formula:
    return trace(function, "f", descs or (X,))


def leaked(x: ex.Traced) -> Any:
    kept: list[Any] = []
    rows = ex.compute((4,), lambda i: kept.append(i) or x[i, 0])  # type: ignore[func-returns-value]
    return rows, kept[0] + 1


ERRORS: list[tuple[str, Callable[..., Any], tuple[Desc, ...], str]] = [
    (
        "if",
        lambda x: x if x > 0 else -x,
        (X,),
        f"{NO_VALUE}: use where(condition, a, b) instead of if, & | ~ instead of and, or, not, and ow.expr.max(a, b) and "
        "min(a, b) instead of max and min",
    ),
    (
        "iter",
        lambda x: list(iter(x)),
        (X,),
        "an expression cannot be gone through; compute(shape, function) and sum_over do that",
    ),
    ("len", lambda x: len(x), (X,), "an expression has no len(); its shape is [4, 5]"),
    (
        "float",
        lambda x: float(x),
        (X,),
        f"{NO_VALUE}; it cannot become a number of Python's; opweave.expr has functions for it, as exp for math.exp",
    ),
    ("array", lambda x: np.asarray(x), (X,), "NumPy's functions do not take expressions; use those of opweave.expr"),
    (
        "ndarray",
        lambda x: np.ones((4, 5)) + x,
        (X,),
        "expected an expression or a number, got ndarray; pass it as an operand",
    ),
    ("str", lambda x: x + "a", (X,), "expected an expression or a number, got str"),
    ("complex", lambda x: ex.add(x, 1j), (X,), "expected an expression or a number, got complex"),
    ("huge", lambda x: x + 10**309, (X,), "an integer of 1,027 bits is not a value of float32"),
    ("fraction", lambda x: x + 1.5, (I32,), "1.5 is not a value of int32; x0 is int32: ow.expr.cast(x0, 'float32')"),
    ("large", lambda x: x + 300, (U8,), "300 is not a value of uint8"),
    ("negative", lambda x: x + -1, (U8,), "-1 is not a value of uint8"),
    ("condition", lambda x: ex.logical_and(x > 0, 1), (X,), "expected True or False, got 1"),
    (
        "types",
        lambda x: x + ex.cast(x, "int32"),
        (X,),
        "add: the operands must have one data type, got float32 and int32; cast one",
    ),
    (
        "where",
        lambda x: ex.where(x > 0, x, ex.cast(x, "int32")),
        (X,),
        "where: the operands must have one data type, got float32 and int32; cast one",
    ),
    (
        "bits",
        lambda x: x & 1,
        (X,),
        "bit_and: the operands must be int32 or uint32 or int64 or uint64 or int8 or uint8, got float32",
    ),
    ("invert", lambda x: ~x, (X,), "~ takes integers and conditions, got float32"),
    ("exp", lambda x: ex.exp(ex.cast(x, "int32")), (X,), "exp: the operands must be float32 or float16, got int32"),
    (
        "cast",
        lambda x: ex.cast(x, "float64"),
        (X,),
        f"data type must be one of {DATA_TYPES}, got 'float64'; did you mean 'float32'?",
    ),
    ("broadcast", lambda x, y: x + y, (X, ROW), "the shapes of the operands do not broadcast: [4, 5] and [3]"),
    ("few indices", lambda x: x[0], (X,), "an array of shape [4, 5] takes 2 indices, got 1: 0"),
    ("many indices", lambda x: x[0, 0, 0], (X,), "an array of shape [4, 5] takes 2 indices, got 3: (0, 0, 0)"),
    ("outside", lambda x: x[4, 0], (X,), f"the index 4 of axis 0 goes from 4 to 4, it must be in [0, 4); {OUTSIDE}"),
    ("before", lambda x: x[-5, 0], (X,), f"the index -5 of axis 0 goes from -5 to -5, it must be in [0, 4); {OUTSIDE}"),
    (
        "shifted",
        lambda x: ex.compute((4, 5), lambda i, j: x[i, j + 1]),
        (X,),
        f"the index i + 1 of axis 1 goes from 1 to 5, it must be in [0, 5); {OUTSIDE}",
    ),
    (
        "data",
        lambda x, k: ex.compute((4,), lambda i: x[k[i], 0]),
        (X, I32),
        f"the index x1[i] of axis 0 depends on data; x.clamped[...], x.checked[...] or {OUTSIDE[18:]}",
    ),
    (
        "slice",
        lambda x: x[0:2, 0],
        (X,),
        "an index must be an integer, got slice(0, 2, None); compute(shape, function) takes parts of arrays",
    ),
    (
        "float index",
        lambda x: x[x[0, 0], 0],
        (X,),
        "an index must be an integer of shape (), got <Array float32[]: x0[0, 0]>",
    ),
    ("padded", lambda x: x.padded("a")[0, 0], (X,), "padded takes a number, got 'a'"),
    ("padding", lambda x: x.padded(1.5)[0], (I32,), "1.5 is not a value of int32"),
    (
        "sizes",
        lambda x: ex.compute((4, 0), lambda i, j: x[i, j]),
        (X,),
        "compute: sizes must be positive integers, got [4, 0]",
    ),
    (
        "float sizes",
        lambda x: ex.compute((2.0,), lambda i: x[i, i]),
        (X,),
        "compute: sizes must be positive integers, got [2.0]",
    ),
    (
        "no element",
        lambda x: ex.compute((4,), lambda i: x),
        (X,),
        "compute: the function must return one element, got an array [4, 5]",
    ),
    ("nothing", lambda x: ex.compute((4,), lambda i: None), (X,), "expected an expression or a number, got NoneType"),
    (
        "sum of arrays",
        lambda x: ex.sum_over(4, lambda i: x),
        (X,),
        "sum_over: the function must return one element, got [4, 5]",
    ),
    (
        "sum of nothing",
        lambda x: ex.sum_over(0, lambda i: x[i, i]),
        (X,),
        "sum_over: sizes must be positive integers, got [0]",
    ),
    ("sum of truths", lambda x: ex.reduce_sum(x > 0), (X,), "sum: bool cannot be reduced; cast it to a data type"),
    (
        "positions",
        lambda x: ex.arg_max_over((2, 2), lambda i, j: x[i, j]),  # type: ignore[misc]
        (X,),
        "arg_max_over takes one size, got [2, 2]",
    ),
    ("axis", lambda x: ex.reduce_sum(x, [2]), (X,), "sum: axes must be in [-2, 2), got [2]"),
    ("axis before", lambda x: ex.reduce_sum(x, [-3]), (X,), "sum: axes must be in [-2, 2), got [-3]"),
    ("axes twice", lambda x: ex.reduce_sum(x, [-1, 1]), (X,), "axes must differ, got [1, 1]"),
    ("one axis", lambda x: ex.reduce_max(x, 0), (X,), "max: axes must be a sequence of integers, got 0"),
    ("real axis", lambda x: ex.reduce_max(x, [0.0]), (X,), "max: axes must be a sequence of integers, got [0.0]"),
    ("None", lambda x: None, (X,), "expected an expression or a number, got NoneType"),
    ("no results", lambda x: (), (X,), "an expression must return an array, or a tuple of them"),
    ("leak", leaked, (X,), "the result depends on a position outside of its axes: <Array index[]: i + 1>"),
    (
        "store",
        lambda x: ex.compute((4,), lambda i: ex.store(ex.compute((2,), lambda j: x[i, j]))[0]),
        (X,),
        "store: the array must not depend on a position of an enclosing compute or reduction",
    ),
]


@pytest.mark.parametrize(("function", "descs", "message"), [e[1:] for e in ERRORS], ids=[e[0] for e in ERRORS])
def test_trace_errors(function: Callable[..., Any], descs: tuple[Desc, ...], message: str) -> None:
    with pytest.raises(ValidationError) as error:
        traced(function, *descs)
    assert str(error.value) == message


def test_nodes_check_their_operands() -> None:
    one = ir.number(1, "float32")
    with pytest.raises(ValidationError, match=r"^exp takes 1 operands, got 2$"):
        ir.call("exp", one, one)
    with pytest.raises(ValidationError, match=r"^where: the condition must be bool, got float32$"):
        ir.call("where", one, one, one)
    with pytest.raises(TypeError, match=r"^exp\(\) takes 1 positional argument but 2 were given$"):
        ex.exp(one, one)  # type: ignore[call-arg]


def test_checked_works_in_expressions_only() -> None:
    inputs, (table, at) = ex.tracing.inputs_of([Desc("float32", (4,)), Desc("int32", ())])
    with pytest.raises(ValidationError, match=r"^x.checked works in expressions only$"):
        _ = table.checked[at[()]]
    assert len(inputs) == 2


# ---------------------------------------------------------------------------------------------------------------------
# What numbers, indices and operators become


def evaluate_function(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    program = trace(function, "f", [Desc(a.dtype.name, a.shape) for a in arrays])
    outputs = [np.empty(o.desc.shape, o.desc.data_type) for o in program.outputs]
    evaluate(program, arrays, outputs)
    return outputs[0]


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "a * b": lambda a, b: a * b,
    "a // b": lambda a, b: a // b,
    "a % b": lambda a, b: a % b,
    "a & b": lambda a, b: a & b,
    "a | b": lambda a, b: a | b,
    "a ^ b": lambda a, b: a ^ b,
    "a << b": lambda a, b: a << b,
    "a >> b": lambda a, b: a >> b,
    "a ** b": lambda a, b: a**b,
    "a == b": lambda a, b: a == b,
    "a != b": lambda a, b: a != b,
    "a < b": lambda a, b: a < b,
    "a <= b": lambda a, b: a <= b,
    "a > b": lambda a, b: a > b,
    "a >= b": lambda a, b: a >= b,
    "-a": lambda a, b: -a,
    "+a": lambda a, b: +a,
    "~a": lambda a, b: ~a,
    "abs(a)": lambda a, b: abs(a),
    "(a > 2) & (b > 2)": lambda a, b: (a > 2) & (b > 2),
    "(a > 2) | (b > 2)": lambda a, b: (a > 2) | (b > 2),
    "(a > 2) ^ (b > 2)": lambda a, b: (a > 2) ^ (b > 2),
    "~(a > 2)": lambda a, b: ~(a > 2),
}


@pytest.mark.parametrize("text", OPERATORS)
def test_operators_equal_numpy(text: str) -> None:
    operator = OPERATORS[text]
    a, b = np.arange(1, 7, dtype=np.int32).reshape(2, 3), np.int32([3, 1, 2])
    np.testing.assert_array_equal(evaluate_function(operator, a, b), operator(a, b))
    number = "b" not in text or operator(a, 3)
    if "b" in text:
        np.testing.assert_array_equal(evaluate_function(lambda a: operator(a, 3), a), number)
        np.testing.assert_array_equal(evaluate_function(lambda a: operator(3, a), b), operator(np.int32(3), b))


def test_numbers_of_numpy_are_numbers() -> None:
    x = np.float32([1, 2])
    np.testing.assert_array_equal(
        evaluate_function(lambda x: np.float32(2) * x + np.int64(1) + np.array(0.5), x), x * 2 + 1.5
    )
    np.testing.assert_array_equal(
        evaluate_function(lambda x: ex.compute((2,), lambda i: x.padded(np.float32(7))[i + np.int32(1)]), x), [2, 7]
    )


def test_index_takes_type_of_other_operand() -> None:
    program = traced(lambda x: ex.compute((4,), lambda i: x[i, 0] * i + 0.5 * i))
    assert program.outputs[0].desc == Desc("float32", (4,))
    assert [o.desc.data_type for o in traced(lambda x: ex.compute((4,), lambda i: i)).outputs] == ["int32"]
    assert [o.desc.data_type for o in traced(lambda x: x > 0).outputs] == ["uint8"]


def test_pointwise_or_not() -> None:
    assert traced(lambda x, y: x * ex.exp(y), X, Desc("float32", (1, 5))).is_pointwise
    assert not traced(lambda x: ex.compute((5, 4), lambda i, j: x[j, i])).is_pointwise
    assert not traced(lambda x: ex.reduce_sum(x)).is_pointwise
    assert not traced(lambda x: ex.store(x)).is_pointwise


# ---------------------------------------------------------------------------------------------------------------------
# How programs read


def test_formula_text() -> None:
    def function(x: Any, k: Any) -> Any:
        s = ex.store(ex.exp(x))
        return ex.compute((4,), lambda i: ex.sum_over(5, lambda r: s[i, r]) + s.checked[k[i], 0]), ex.arg_max(x, 1)

    assert str(traced(function, X, I32)).splitlines() == [
        "f(x0: float32[4, 5], x1: int32[4]) -> (y0: float32[4], y1: int32[4]):",
        "  s0[i, j] =",
        "    exp(x0[i, j])",
        "  check i < 4  # the index x1[i] of axis 0 must be in [0, 4)",
        "    t0 = x1[i]",
        "    (t0 >= 0) and (t0 < 4)",
        "  y0[i] =",
        "    sum(r0 < 5: s0[i, r0]) + s0[index(min(max(x1[i], 0), 3)), 0]",
        "  y1[i] =",
        "    arg_max(r0 < 5: x0[i, r0])",
    ]


@settings(max_examples=examples(60, in_sample=20))
@given(programs())
def test_formula_text_is_deterministic(case: Case) -> None:
    assert str(case.program()) == str(case.program())


def test_messages_are_short() -> None:
    def long(x: Any) -> Any:
        for k in range(100):
            x = x * k + 1
        return x

    (result,) = (o.body for o in traced(long).outputs)
    assert repr(result).endswith("…>")
    assert len(repr(result)) < 160


# ---------------------------------------------------------------------------------------------------------------------
# Large ones


@pytest.mark.long
def test_long_chains_need_no_recursion() -> None:
    def chain(x: Any) -> Any:
        for k in range(5000):
            x = x + (k % 3)
        return x

    assert sys.getrecursionlimit() <= 5000
    program = traced(chain)
    assert program.operations == 5000
    assert len(str(program)) > 5000
    x = np.ones((4, 5), np.float32)
    np.testing.assert_array_equal(evaluate_function(chain, x), x + 4999)
    long = evaluate_function(lambda x: ex.compute((20,), lambda i: chain(x)[i // 5, i % 5]), x)
    np.testing.assert_array_equal(long, np.full(20, 5000))


def test_trace_shares_reused_node() -> None:
    def squares(x: Any) -> Any:
        for _ in range(60):
            x = x * x
        return x

    program = traced(squares)
    assert len(repr(program.outputs[0].body)) < 160
    assert len(ir.walk(*program.roots)) == 63  # two positions, what is loaded, and 60 products
    assert len(str(program).splitlines()) == 2 + 1 + 60
    np.testing.assert_array_equal(evaluate_function(squares, np.float32([[1, 0.5]])), [[1, 0]])


def test_formula_text_writes_reused_index_once() -> None:
    def position(i: Any) -> Any:
        for _ in range(60):
            i = (i + i) % 3
        return i

    program = traced(lambda x: ex.compute((4,), lambda i: x[position(i), 0]))
    assert len(str(program)) < 2000
    got = evaluate_function(
        lambda x: ex.compute((4,), lambda i: x[position(i), 0]), np.arange(20, dtype=np.float32).reshape(4, 5)
    )
    assert got.tolist() == [5 * (2**60 * i % 3) for i in range(4)]


def test_trace_shares_equal_nodes() -> None:
    program = traced(lambda x: ex.exp(x + 1) * ex.exp(x + 1) + ex.where(x > 0, 0.0, -0.0))
    calls = [node.name for node in ir.walk(*program.roots) if isinstance(node, ir.Call)]
    assert sorted(calls) == ["add", "add", "exp", "greater", "mul", "where"]
    constants = [node.value for node in ir.walk(*program.roots) if isinstance(node, ir.Const)]
    assert sorted(map(repr, constants)) == ["-0.0", "0.0", "1.0"]


def test_threads_trace_at_the_same_time() -> None:
    barrier = Barrier(8)

    def work(number: int) -> list[str]:
        barrier.wait()
        texts = []
        for k in range(20, 60):  # sizes that only these threads use
            desc = Desc("float32", (k, k + 1))
            program = trace(lambda x, y: x + ex.reduce_sum(y, [1], keep_dimensions=True), "f", [desc, desc])
            texts.append(str(program))
        return texts

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(work, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert all(texts == results[0] for texts in results)


def test_threads_never_make_two_variables_of_an_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(ir.Index):
        def __init__(self, extent: int, axis: int = 0) -> None:
            sleep(0.05)  # all others come here meanwhile, if they can
            super().__init__(extent, axis)

    monkeypatch.setattr(ex.array, "Index", Slow)
    with ThreadPoolExecutor(4) as pool:
        variables = list(pool.map(lambda _: ex.array.axis_variable(-1, 987_654), range(4)))
    assert all(variable is variables[0] for variable in variables)


def test_trace_checks_belong_to_their_thread() -> None:
    def work(number: int) -> int:
        program = traced(lambda x, k: sum(x.checked[k[j] + number, 0] for j in range(number % 4 + 1)), X, I32)
        return len(program.checks)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(32))) == [number % 4 + 1 for number in range(32)]
