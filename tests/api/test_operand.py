"""Operands in Python's words: operators, `x[...]`, methods; compared with what NumPy does."""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import opweave as ow
from opweave.core.graph import Graph, MLOperand

CONTEXT = ow.ml.create_context(device="reference")
CPU = ow.ml.create_context(device="cpu")

some = settings(max_examples=300)

A = np.array([[1.5, -2, 3], [0.5, 4, -1]], "float32")
B = np.array([[2, 2, 3], [1, -2, 3]], "float32")


def given_x(array: np.ndarray = A, context: ow.MLContext = CONTEXT) -> MLOperand:
    """An operand of a new graph."""
    return ow.MLGraphBuilder(context).input("x", array.dtype.name, array.shape)


def value_of(operand: MLOperand, array: np.ndarray = A) -> np.ndarray:
    """What an operand yields where the input x is `array`."""
    builder = operand.builder
    assert isinstance(builder, ow.MLGraphBuilder)
    graph = builder.build({"y": builder.identity(operand)})
    return builder.context.compute(graph, dict.fromkeys(graph.inputs, array))["y"]


def ops_of(operand: MLOperand) -> list[str]:
    """The names of the operations that make an operand."""
    return [node.op.name for node in Graph.reaching({"y": operand}).nodes]


# Operators -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [2, 0.5, B, B[:1], np.float32(3)], ids=["int", "float", "array", "row", "scalar"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv"])
def test_arithmetic(name: str, other: Any) -> None:
    apply: Callable[[Any, Any], Any] = getattr(operator, name)
    np.testing.assert_allclose(value_of(apply(given_x(), other)), apply(A, np.float32(other)), rtol=1e-6)
    np.testing.assert_allclose(value_of(apply(other, given_x())), apply(np.float32(other), A), rtol=1e-6)


def test_operators_of_two_operands() -> None:
    x = given_x()
    y = x - x * x
    assert ops_of(y) == ["mul", "sub"]
    np.testing.assert_allclose(value_of(y), A - A * A, rtol=1e-6)


def test_powers() -> None:
    np.testing.assert_allclose(value_of(given_x() ** 2), A**2, rtol=1e-6)
    np.testing.assert_allclose(value_of(2 ** given_x()), 2**A, rtol=1e-6)


def test_unary_operators() -> None:
    np.testing.assert_array_equal(value_of(-given_x()), -A)
    np.testing.assert_array_equal(value_of(abs(given_x())), abs(A))


def test_matrix_products() -> None:
    np.testing.assert_allclose(value_of(given_x() @ B.T), A @ B.T, rtol=1e-6)
    np.testing.assert_allclose(value_of(operator.matmul(B.T, given_x())), B.T @ A, rtol=1e-6)


def test_array_plus_operand_is_one_operand() -> None:
    y = A + given_x()
    assert isinstance(y, MLOperand)
    assert y.shape == A.shape
    assert ops_of(y) == ["add"]


def test_numbers_take_the_data_type_of_the_operand() -> None:
    x = given_x(np.array([100], "uint8"))
    assert value_of(x + 5, np.array([100], "uint8")).tolist() == [105]


@pytest.mark.parametrize(("data_type", "number"), [("uint8", 300), ("uint8", -1), ("int32", 1.5), ("int64", math.inf)])
def test_operators_reject_number_beyond_data_type(data_type: str, number: float) -> None:
    with pytest.raises(ow.ValidationError, match=f"{number!r} is not a value of {data_type}"):
        given_x(np.array([1], data_type)) + number


@pytest.mark.parametrize("other", ["text", None, [1, 2, 3], object()], ids=["str", "None", "list", "object"])
def test_operators_reject_other_objects(other: Any) -> None:
    with pytest.raises(TypeError, match="unsupported operand type"):
        given_x() + other
    with pytest.raises(TypeError, match="unsupported operand type"):
        other - given_x()


def test_operators_name_the_operation_in_errors() -> None:
    x = given_x()
    with pytest.raises(ow.ValidationError, match=r"^add: the shapes of a and b do not broadcast: \[2, 3\] and \[2\]$"):
        x + np.ones(2, "float32")
    with pytest.raises(ow.ValidationError, match=r"^mul: b must have the data type of a, float32, got int64"):
        x * np.ones(3, "int64")
    with pytest.raises(
        ow.ValidationError, match=r"^add: b must be an operand, got True; comparisons are called by name, "
    ):
        x + True
    with pytest.raises(ow.ValidationError, match=r"^sub: b is an operand of another builder"):
        x - given_x()


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "'>' builder.greater(x, y)": lambda x: x > 0,
    "'>' builder.greater(x, y) ": lambda x: x.relu() > x,
    "'>' builder.greater(x, y)  ": lambda x: max(x, x),
    "'>=' builder.greater_or_equal(x, y)": lambda x: x >= np.float32(1),
    "'<' builder.lesser(x, y)": lambda x: x < x.relu(),
    "'<=' builder.lesser_or_equal(x, y)": lambda x: x <= A,
    "'==' builder.equal(x, y)": lambda x: x == 0,
    "'!=' builder.not_equal(x, y)": lambda x: x != A,
    "bool() builder.where(condition, a, b)": lambda x: 1 if x else 2,
    "bool() builder.where(condition, a, b) ": lambda x: x and 1,
    "'in' builder.equal(x, y)": lambda x: 0 in x,
    "float() context.compute": lambda x: math.exp(x),
    "int() context.compute": lambda x: [1, 2][x],
    "complex() context.compute": lambda x: complex(x),
    "round() builder.round_even(x)": lambda x: round(x, 2),
    "floor() builder.floor(x)": lambda x: math.floor(x),
    "format() context.compute": lambda x: f"{x:.2f}",
    "NumPy context.compute": lambda x: np.asarray(x),
    "NumPy context.compute ": lambda x: np.array([x, 1]),
    "len() context.compute": lambda x: len(x[0, 0]),
    "np.exp builder.exp(x)": lambda x: np.exp(x),
    "np.maximum builder.max(x, y)": lambda x: np.maximum(x, 0),
    "np.equal builder.equal(x, y)": lambda x: np.equal(A, x),
    "np.square x * x": lambda x: np.square(x),
    "np.concatenate builder.concat(…)": lambda x: np.concatenate([x, x]),
    "np.max builder.reduce_max(…)": lambda x: np.max(x),
    "np.where builder.where(…)": lambda x: np.where(A, x, 0),
    "np.sort there is no such operation": lambda x: np.sort(x),
}
"""The question, a part of the advice, and what asks it."""


def is_at_its_line(message: str, function: Callable[[Any], Any]) -> bool:
    return f" (test_operand.py, line {function.__code__.co_firstlineno}: " in message


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_that_need_values(question: str) -> None:
    x, (asks, advice) = given_x(), question.rstrip().split(" ", 1)
    with pytest.raises(ow.ValidationError) as raised:
        QUESTIONS[question](x)
    message = str(raised.value)
    assert message.startswith(asks)
    assert re.search(r"ha(s|ve) no value while its graph is built.*; " + re.escape(advice), message)
    assert is_at_its_line(message, QUESTIONS[question])
    assert "<MLOperand float32" in message


@pytest.mark.parametrize("sign", ["//", "%", "&", "|", "^", "<<", ">>"])
def test_operators_that_operands_lack(sign: str) -> None:
    for apply in (eval(f"lambda x: x {sign} 2"), eval(f"lambda x: 2 {sign} x")):
        with pytest.raises(ow.ValidationError) as raised:
            apply(given_x())
        assert re.match(
            rf"'{re.escape(sign)}': operands have no such operator, got <MLOperand float32\[2, 3\], input 'x'> "
            r"\(<string>, line 1\); .*builder\.\w+\(",
            str(raised.value),
        )
    with pytest.raises(TypeError, match="unsupported operand type"):
        operator.and_(given_x(), "text")


def test_shape_questions_have_answers() -> None:
    x = given_x()
    assert (len(x), np.shape(x), np.ndim(x), np.size(x)) == (2, (2, 3), 2, 6)
    assert +x is x
    assert [part.shape for part in reversed(x)] == [(3,), (3,)]


def test_operands_are_keys() -> None:
    x = given_x()
    y = x.relu()
    assert x == x
    assert {x: 1, y: 2}[y] == 2
    assert len({x, y, x}) == 2
    assert x != "text"
    assert x not in ("text", None)
    assert x != y
    assert y in [x, y]


# Methods -------------------------------------------------------------------------------------------------------------


def test_operations_are_methods() -> None:
    y = given_x().relu().reshape([3, 2]).transpose(label="turned")
    assert ops_of(y) == ["relu", "reshape", "transpose"]
    np.testing.assert_array_equal(value_of(y), np.maximum(A, 0).reshape(3, 2).T)


def test_methods_show_their_help() -> None:
    method = given_x().softmax
    assert list(inspect.signature(method).parameters) == ["axis", "label"]
    assert (inspect.getdoc(method) or "").startswith("Normalise")


def test_dir_lists_attributes_and_operations_that_work() -> None:
    x = given_x()
    listed = dir(x)
    assert listed == sorted(set(listed))
    assert {"shape", "data_type", "relu", "conv2d", "l2_pool2d", "is_nan"} <= set(listed)
    assert not {"build", "constant", "concat", "context"} & set(listed)
    for name in listed:
        getattr(x, name)


@pytest.mark.parametrize("name", ["no_such_thing", "_hidden", "__dlpack__"])
def test_unknown_attributes(name: str) -> None:
    with pytest.raises(AttributeError, match=f"^an operand has no attribute or operation '{name}'$") as raised:
        getattr(given_x(), name)
    assert raised.value.name == name
    assert not hasattr(given_x(), name)


def test_attributes_are_read_only() -> None:
    with pytest.raises(AttributeError):
        given_x().shape = (1,)  # type: ignore[misc]
    with pytest.raises(AttributeError):
        given_x().note = "mine"  # type: ignore[attr-defined]


def test_representations() -> None:
    x = given_x()
    assert repr(x) == "<MLOperand float32[2, 3], input 'x'>"
    assert repr(x.relu(label="act")) == "<MLOperand float32[2, 3], relu 'act'>"
    assert repr((x + 1).node.inputs["b"]) == "<MLOperand float32[], constant>"  # type: ignore[union-attr]


def test_attributes_reject_operand() -> None:
    x = given_x()
    with pytest.raises(ow.ValidationError, match="new_shape must be a sequence, got <MLOperand"):
        x.reshape(x)
    with pytest.raises(ow.ValidationError, match="splits must be an integer, got <MLOperand"):
        x.split(x)
    assert ops_of(x.relu()) == ["relu"]


# Indexing ------------------------------------------------------------------------------------------------------------


@st.composite
def shapes_and_keys(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    """A shape, and an index that leaves something of it: integers, slices, `...` and None."""
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=4)))

    def item(size: int) -> Any:
        if draw(st.booleans()):
            position = draw(st.integers(-size, size - 1))
            return draw(st.sampled_from([position, np.int64(position)]))
        bound = st.none() | st.integers(-size - 2, size + 2)
        step = st.none() | st.integers(-4, 4).filter(bool) | st.sampled_from([2**40, -(2**40)])
        return draw(st.builds(slice, bound, bound, step).filter(lambda key: [*range(size)][key]))

    items = [item(size) for size in shape]
    if draw(st.booleans()):  # leave out some in the middle, with dots, or at the end, without
        start = draw(st.integers(0, len(items)))
        items[start : draw(st.integers(start, len(items)))] = [...]
    else:
        items = items[: draw(st.integers(0, len(items)))]
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        items.insert(draw(st.integers(0, len(items))), None)
    return shape, items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)


@pytest.mark.long
@some
@given(shapes_and_keys())
def test_indexing_does_as_numpy(drawn: tuple[tuple[int, ...], Any]) -> None:
    shape, key = drawn
    array = np.arange(np.prod(shape), dtype="int32").reshape(shape)
    for context in (CONTEXT, CPU):
        y = given_x(array, context)[key]
        wanted = array[key]
        assert y.shape == wanted.shape
        np.testing.assert_array_equal(value_of(y, array), wanted)


@pytest.mark.parametrize(
    ("key", "ops"),
    [
        ((), []),
        (..., []),
        ((slice(None), slice(0, 3)), []),
        ((slice(None), slice(None, None, 7)), ["slice"]),
        ((slice(None), slice(1, None)), ["slice"]),
        ((..., slice(None, None, -1)), ["reverse"]),
        ((..., slice(None, None, -2)), ["slice", "reverse"]),
        ((..., slice(None, 1, -1)), ["slice"]),
        (0, ["slice", "reshape"]),
        (None, ["reshape"]),
    ],
    ids=str,
)
def test_indexing_adds_no_more_operations_than_needed(key: Any, ops: list[str]) -> None:
    assert ops_of(given_x()[key]) == ops


def test_index_on_axis_of_one_element() -> None:
    x = given_x(np.ones((1, 4), "float32"))
    assert x[::-1] is x
    assert ops_of(x[0]) == ["reshape"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (2, "index 2 is out of range for axis 0 with 2 elements"),
        (-3, "index -3 is out of range for axis 0 with 2 elements"),
        ((0, 0, 0), r"an operand of shape \[2, 3\] takes 2 indices, got 3"),
        ((..., ...), r"an index can hold one '\.\.\.', got 2"),
        (slice(1, 1), r"index slice\(1, 1, None\) leaves nothing of axis 0 with 2 elements"),
        ((0, slice(5, None)), r"index slice\(5, None, None\) leaves nothing of axis 1 with 3 elements"),
        (slice(None, None, 0), r"index slice\(None, None, 0\) of axis 0: slice step cannot be zero"),
        (slice(0.5, None), "of axis 0: slice indices must be integers"),
        (1.0, r"an operand is indexed with integers, slices, None and '\.\.\.', got 1\.0"),
        (True, "got True"),
        (np.True_, r"got np\.True_"),
        ([0, 1], r"got \[0, 1\]"),
        ("a", "got 'a'"),
        (np.array([0, 1]), r"got array\(\[0, 1\]\)"),
    ],
    ids=str,
)
def test_index_rejects_invalid_key(key: Any, message: str) -> None:
    with pytest.raises(ow.ValidationError, match=message):
        given_x()[key]


def test_index_rejects_operand() -> None:
    x = given_x()
    with pytest.raises(ow.ValidationError, match="got <MLOperand"):
        x[x]


def test_operand_is_iterable_along_first_axis() -> None:
    first, second = given_x()
    assert first.shape == second.shape == (3,)
    np.testing.assert_array_equal(value_of(second), A[1])
    with pytest.raises(ow.ValidationError, match="a scalar operand has no parts"):
        list(given_x(np.array(1, "float32")))


def test_operands_cannot_be_changed() -> None:
    with pytest.raises(TypeError, match=r"^'x\[i\] = y': operands have no such operator.*operands never change"):
        given_x()[0] = 1
