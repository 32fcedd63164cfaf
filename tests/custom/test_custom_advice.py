"""Messages for the slips of a first custom operation: each says what to write instead."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model
from support.onnx import keep_registry

import opweave as ow

X = np.ones((2, 3), "float32")
CONTEXT = ow.ml.create_context(device="cpu")


@ow.expression
def hardish(x, *, alpha: float = 0.2, beta: float = 0.5):  # type: ignore[no-untyped-def]
    return ow.expr.clamp(alpha * x + beta, 0, 1)


def traced(function: Callable[..., Any], *arrays: np.ndarray) -> None:
    """Call an expression, whose messages are those of a named function `f`."""
    function.__name__ = "f"
    ow.expression(function)(*(arrays or (X,)))


def forgotten(x: Any) -> None:
    x * 2


NO_VALUE = "f: np.{} takes arrays of NumPy, got an expression, which has no values yet; "

EXPRESSIONS = [
    (lambda x: np.where(x > 0, x, 0), NO_VALUE.format("where") + "ow.expr.where does ("),
    (lambda x: np.mean(x), NO_VALUE.format("mean") + "ow.expr.reduce_mean does ("),
    (lambda x: np.linalg.norm(x), "f: NumPy's functions do not take expressions"),
    (lambda x: max(x, 0), "and ow.expr.max(a, b) and min(a, b) instead of max and min ("),
    (lambda x: ow.expr.maximum(x, 0), "f: opweave.expr has no function 'maximum'; ow.expr.max does that ("),
    (lambda x: ow.expr.nothing_like_it(x), "f: opweave.expr has no function 'nothing_like_it' ("),
    (lambda x: x.mean(), "f: an expression has no attribute 'mean'; ow.expr.reduce_mean(x) does that ("),
    (lambda x: x.exp(), "f: an expression has no attribute 'exp'; ow.expr.exp(x) does that ("),
    (lambda x: x.astype("int32"), "f: an expression has no attribute 'astype'; ow.expr.cast(x, data_type) does that ("),
    (lambda x: x.ndim, "f: an expression has no attribute 'ndim'; did you mean 'rank'? ("),
    (lambda x: x.T, "f: an expression has no attribute 'T'; compute(shape, function) exchanges axes: "),
    (lambda x: round(x), "f: an expression has no value while it is traced; ow.expr.round_even(x) rounds ("),
    (lambda x: f"{x:.2f}", "f: an expression has no value while it is traced; it cannot be formatted as '.2f' ("),
    (lambda x: x.__setitem__(0, 1), "f: the elements of an expression cannot be assigned; compute(shape, function)"),
    (lambda x: x @ x, "f: @ is not defined for expressions; compute(shape, function) and sum_over make a product: "),
    (lambda x: np.ones((3, 3)) @ x, "f: np.matmul takes arrays of NumPy, got an expression"),
]


@pytest.mark.parametrize(("function", "message"), EXPRESSIONS)
def test_habits_in_expressions(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(ow.ValidationError, match=re.escape(message)):
        traced(function)


def test_missing_return_is_named() -> None:
    with pytest.raises(
        ow.ValidationError,
        match=r"^forgotten: the function returned None; is a return missing\? \(test_custom_advice\.py, line \d+: def forg",
    ):
        ow.expression(forgotten)(X)


def test_missing_names_are_attribute_errors_too() -> None:
    def asks(x: Any) -> Any:
        return x * (2 if hasattr(x, "astype") or hasattr(ow.expr, "maximum") or hasattr(x, "__dlpack__") else 3)

    assert ow.expression(asks)(X).tolist() == (X * 3).tolist()


def test_matmul_advice_works() -> None:
    @ow.expression
    def product(a, b):  # type: ignore[no-untyped-def]
        (m, size), n = a.shape, b.shape[1]
        return ow.expr.compute((m, n), lambda i, j: ow.expr.sum_over(size, lambda k: a[i, k] * b[k, j]))

    a, b = np.arange(6, dtype="float32").reshape(2, 3), np.arange(12, dtype="float32").reshape(3, 4)
    np.testing.assert_allclose(product(a, b), a @ b)


def test_float_constant_with_integers_names_operand() -> None:
    message = "hardish 'h': 0.2 is not a value of int32; x is int32: ow.expr.cast(x, 'float32') (test_custom_advice.py"
    with pytest.raises(ow.ValidationError, match=re.escape(message)):
        hardish(np.int32([1]), label="h")

    @ow.expression
    def cast(x, *, alpha: float = 0.25):  # type: ignore[no-untyped-def]
        return alpha * ow.expr.cast(x, "float32")

    assert cast(np.int32([4])).tolist() == [1]
    assert ow.expression(lambda x: x * 2.0)(np.int32([4])).tolist() == [8]  # a whole number


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: hardish(X, 0.1),
            "hardish: takes 1 positional argument, got 2; attributes are keywords: alpha=0.1",
        ),
        (
            lambda: ow.composite(lambda x: x + 1)(X),
            "<lambda>: takes 0 positional arguments, got 1; the first parameter of the function, x, is the builder",
        ),
        (
            lambda: ow.expression(),  # type: ignore[call-arg]
            "@ow.expression() has no function; write @ow.expression above the function, without ",
        ),
        (
            lambda: ow.expression(x=ow.Limits(("float32",))),  # type: ignore[call-arg]
            "@ow.expression takes no arguments, got x; formulas have no limits: ",
        ),
        (lambda: ow.composite(), "@ow.composite() has no function; write @ow.composite above the function"),  # type: ignore[call-arg]
    ],
)
def test_calls_that_are_wrong(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ow.ValidationError) as raised:
        call()
    assert str(raised.value).startswith(message)


def test_attribute_named_label_is_rejected() -> None:
    message = "f: every operation has an argument 'label', which names it in messages; rename the attribute"
    with pytest.raises(ow.ValidationError, match=message):

        @ow.expression
        def f(x, *, label: float = 1.0):  # type: ignore[no-untyped-def]
            return x * label


def test_operand_meant_as_attribute_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_registry(monkeypatch)

    @ow.expression
    def limited(x, limit: float = 1.0):  # type: ignore[no-untyped-def]
        return ow.expr.clamp(x * limit, -1, 1)

    assert limited(np.float32([0.5]), limit=0.5).tolist() == [0.25]  # an operand may be a number
    ow.register_onnx("test.advice", "Limited", limited)
    model = parse_model("""<ir_version: 8, opset_import: ["": 17, "test.advice": 1]>
        g (float[n] x) => (float[n] y) { y = test.advice.Limited<limit = 0.5>(x) }""")
    message = "Limited: 'limit' stands before *, so it is an operand; write def limited(x, *, limit: float = 1.0)"
    with pytest.raises(ow.NotSupportedError, match=re.escape(message) + "$"):
        ow.InferenceSession(model, CONTEXT)


def test_float64_in_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_registry(monkeypatch)
    ow.register_onnx("test.advice", "Hardish", hardish)
    model = parse_model("""<ir_version: 8, opset_import: ["": 17, "test.advice": 1]>
        g (double[2] x) => (double[2] y) { a = Abs(x)  y = test.advice.Hardish(a) }""")
    message = "Hardish: its input 'a' is double; WebNN has no float64; put a Cast to float before it"
    with pytest.raises(ow.NotSupportedError, match=message):
        ow.InferenceSession(model, CONTEXT)


def test_feeds_that_do_not_fit_say_how_to_convert_them() -> None:
    builder = ow.MLGraphBuilder(CONTEXT)
    graph = builder.build({"y": hardish(builder.input("x", "float32", [2]))})
    refused = [
        (np.ones(2), "got <f8 (float64); array.astype('float32') converts it"),
        ([1.0, 2.0], "must be an array or a buffer, got list; np.asarray(value, 'float32') makes an array"),
    ]
    for value, message in refused:
        with pytest.raises(ow.ValidationError, match=re.escape(message)):
            CONTEXT.compute(graph, {"x": value})
    model = parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Abs(x) }""")
    with pytest.raises(
        ow.ValidationError, match=re.escape("must be tensor(float), got an array of float64; array.astype('float32')")
    ):
        ow.InferenceSession(model, CONTEXT).run(None, {"x": np.ones(2)})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (np.float32, "float32"), (np.dtype("int64"), "int64"), ("float", "float32"), (float, "float32"),
        ("float64", "float32"), (np.bool_, "uint8"), ("half", "float16"), ("Float32", "float32"), ("text", None), (7, None),
    ],
)  # fmt: skip
def test_data_types_of_other_libraries(given: Any, meant: str | None) -> None:
    with pytest.raises(ow.ValidationError) as raised:
        ow.MLGraphBuilder(CONTEXT).input("x", given, [1])
    assert str(raised.value).partition("; ")[2] == (f"did you mean {meant!r}?" if meant else "")


def test_clamp_has_other_names_than_numpy() -> None:
    builder = ow.MLGraphBuilder(CONTEXT)
    x = builder.input("x", "float32", [1])
    with pytest.raises(ow.ValidationError, match=r"has no argument 'min'; it takes .*; did you mean 'min_value'"):
        builder.clamp(x, min=0)  # type: ignore[call-arg]


@pytest.mark.parametrize("extra", [True, False], ids=["halide", "numpy"])
def test_index_out_of_range_names_parameter_and_value(extra: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if extra:
        pytest.importorskip("halide")
    else:
        monkeypatch.setenv("OPWEAVE_EXPRESSIONS", "numpy")

    @ow.expression
    def lookup(table, indices):  # type: ignore[no-untyped-def]
        return ow.expr.compute(indices.shape, lambda i: table.checked[indices[i]])

    for kind in ("int64", "int32", "uint8"):
        with pytest.raises(ow.OperationError) as raised:
            np.asarray(lookup(np.float32([1, 2, 3]), np.array([0, 2, 7, 9], kind), label="words"))
        assert str(raised.value) == "lookup 'words': the index indices[i] of axis 0 must be in [0, 3), got 7"


def test_operands_in_lists_are_named_by_their_place() -> None:
    @ow.op
    def first(self: Any, xs: list[ow.MLOperand], at: ow.MLOperand) -> ow.Desc:
        return at.desc if at.data_type == "float32" else ow.Desc("float32", at.shape)

    first.expression(lambda xs, at: ow.expr.compute(at.shape, lambda i: xs[0].checked[at[i]]))
    with pytest.raises(ow.OperationError, match=r"the index at\[.\] of axis 0 must be in \[0, 1\), got -1"):
        np.asarray(first([np.float32([math.pi])], np.int32([-1])))
