"""Builders: inputs, constants, build; how operations convert and check their arguments."""

from __future__ import annotations

import inspect
import pydoc
from typing import Any

import numpy as np
import pytest
from support.foreign import Foreign

import opweave as ow
from opweave.ops import Operations


@pytest.fixture
def context() -> ow.MLContext:
    return ow.ml.create_context()


@pytest.fixture
def builder(context: ow.MLContext) -> ow.MLGraphBuilder:
    return ow.MLGraphBuilder(context)


@pytest.mark.parametrize("size", [3, 3.0, np.float32(3), np.int8(3), np.array(3)], ids=repr)
def test_input_converts_sizes_like_operations(builder: ow.MLGraphBuilder, size: Any) -> None:
    x = builder.input("x", "float32", [size])
    made: list[Any] = [
        builder.constant("float32", [size], np.zeros(3, np.float32)),
        builder.context.create_tensor("float32", [size]),
        builder.reshape(x, [size]),
    ]
    assert [each.shape for each in (x, *made)] == [(3,)] * 4


def test_input_rejects_mapping_as_shape(builder: ow.MLGraphBuilder) -> None:
    with pytest.raises(ow.ValidationError, match=r"^input 'x': shape must be a sequence of integers, got \{\}$"):
        builder.input("x", "float32", {})


def value_of(builder: ow.MLGraphBuilder, constant: ow.MLOperand) -> np.ndarray:
    graph = builder.build({"y": builder.identity(constant)})
    return builder.context.compute(graph, {})["y"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("float32", [2], np.float32([1, 2])), np.float32([1, 2])),
        (("float32", [1, 2], np.float32([1, 2])), np.float32([[1, 2]])),
        (("int32", (2,), b"\1\0\0\0\2\0\0\0"), np.int32([1, 2])),
        (("float32", [], np.float32(5)), np.float32(5)),
        (("float32", 0.1), np.float32(0.1)),
        (("float16", 1e9), np.float16(np.inf)),
        (("uint8", 300), np.uint8(255)),
        (("int8", -1e9), np.int8(-128)),
        (("int32", 2.5), np.int32(2)),
        (("int32", float("nan")), np.int32(0)),
        (("uint64", 2**64 - 1), np.uint64(2**64 - 1)),
        (("int64", float("-inf")), np.int64(-(2**63))),
        ((np.arange(6, dtype="int8").reshape(2, 3),), np.arange(6, dtype="int8").reshape(2, 3)),
        ((np.arange(6, dtype="int8").reshape(2, 3).T,), np.arange(6, dtype="int8").reshape(2, 3).T),
        ((Foreign(np.float32([[1], [2]])),), np.float32([[1], [2]])),
        ((np.float32(3),), np.float32(3)),
    ],
)
def test_constants(builder: ow.MLGraphBuilder, args: Any, expected: np.ndarray) -> None:
    got = value_of(builder, builder.constant(*args))
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert (got == expected).all()


def test_large_constants_are_used_in_place(builder: ow.MLGraphBuilder) -> None:
    """What is in memory when the graph runs counts: the weights were never copied."""
    weights = np.ones(4096, "float32")
    graph = builder.build({"y": builder.gather(builder.constant(weights), builder.input("x", "int32", [3]))})
    inputs = {"x": np.int32([0, 7, 4095])}
    assert builder.context.compute(graph, inputs)["y"][0] == 1
    weights[:] = 5
    assert builder.context.compute(graph, inputs)["y"][0] == 5


def test_constant_tensors_may_be_destroyed_after_build(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    tensor = context.create_constant_tensor("float32", [1000], np.full(1000, 3, "float32"))
    graph = builder.build({"y": builder.identity(builder.constant(tensor))})
    tensor.destroy()
    assert (context.compute(graph, {})["y"] == 3).all()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), r"constant: takes \(data_type, shape, buffer\).* got \(\)"),
        (("float32",), r"got \(str\)"),
        (("float32", "x"), r"got \(str, str\)"),
        (("float32", True), r"got \(str, bool\)"),
        ((1.5,), r"got \(float\)"),
        (("float64", 1.0), "constant: data type must be one of float32"),
        (("float32", [2], np.zeros(3, "float32")), r"constant: buffer must have shape \[2\] \(or be flat\), got \[3\]"),
        (("float32", [2], np.zeros(2)), "constant: buffer must hold float32 in native byte order, got <f8"),
        (("float32", [2], np.zeros(2, ">f4")), "constant: buffer must hold float32 in native byte order, got >f4"),
        (("float32", [2, 0], b""), "constant: shape must have dimensions in"),
        ((np.zeros(2),), "constant: array: float64 is not a data type of WebNN"),
        ((np.zeros(2, ">i4"),), "constant: array: int32 must be in native byte order"),
        ((np.zeros((0, 2), "float32"),), "constant: shape must have dimensions in"),
        ((object(),), "constant: array must be an array or a buffer, got object"),
        (([1, 2],), "constant: array must be an array or a buffer, got list"),
    ],
)
def test_bad_constants(builder: ow.MLGraphBuilder, args: Any, message: str) -> None:
    with pytest.raises(ow.ValidationError, match=message):
        builder.constant(*args)


def test_bad_constant_tensors(context: ow.MLContext, builder: ow.MLGraphBuilder) -> None:
    with pytest.raises(ow.ValidationError, match="was not made by create_constant_tensor"):
        builder.constant(context.create_tensor("float32", [1]))
    other = ow.ml.create_context().create_constant_tensor("float32", [1], bytes(4))
    with pytest.raises(ow.ValidationError, match="tensor is a tensor of another context"):
        builder.constant(other)
    gone = context.create_constant_tensor("float32", [1], bytes(4))
    gone.destroy()
    with pytest.raises(ow.ValidationError, match=r"constant: tensor: the tensor float32\[1\] is destroyed"):
        builder.constant(gone)


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "name must not be empty"), (3, "name must be a string, got 3")],
)
def test_bad_input_names(builder: ow.MLGraphBuilder, name: Any, message: str) -> None:
    with pytest.raises(ow.ValidationError, match=message):
        builder.input(name, "float32", [1])


def test_bad_outputs(context: ow.MLContext, builder: ow.MLGraphBuilder) -> None:
    x = builder.input("x", "float32", [1])
    y = builder.add(x, x)
    foreign = ow.MLGraphBuilder(context)
    z = foreign.input("z", "float32", [1])
    for outputs, message in [
        ({}, "outputs must not be empty"),
        ([y], "outputs must map names to operands"),
        ({"": y}, "output names must not be empty"),
        ({3: y}, "output names must be strings, got 3"),
        ({"y": None}, "output 'y' must be an operand, got None"),
        ({"y": foreign.add(z, z)}, "output 'y' is an operand of another builder"),
        ({"y": x}, "output 'y' is not the result of an operation: <MLOperand float32.1., input 'x'>"),
        (
            {"y": builder.constant("float32", 1)},
            "output 'y' is not the result of an operation: <MLOperand float32.., constant>",
        ),
    ]:
        with pytest.raises(ow.ValidationError, match=message):
            builder.build(outputs)
    builder.build({"y": y})


def test_build_only_once(builder: ow.MLGraphBuilder) -> None:
    x = builder.input("x", "float32", [1])
    y = builder.add(x, x)
    builder.build({"y": y})
    for use in (
        lambda: builder.build({"y": y}),
        lambda: builder.add(x, x),
        lambda: builder.constant("float32", 1),
        lambda: builder.input("z", "float32", [1]),
    ):
        with pytest.raises(ow.InvalidStateError, match="the builder has built its graph"):
            use()


def test_builder_takes_a_context() -> None:
    with pytest.raises(ow.ValidationError, match="MLGraphBuilder takes an MLContext, got str"):
        ow.MLGraphBuilder("context")


def test_unused_inputs_are_left_out(builder: ow.MLGraphBuilder) -> None:
    x = builder.input("x", "float32", [1])
    builder.input("unused", "float32", [1])
    graph = builder.build({"y": builder.add(x, x)})
    assert list(graph.inputs) == ["x"]


def test_build_one_operand_under_two_names(builder: ow.MLGraphBuilder) -> None:
    x = builder.input("x", "float32", [2])
    y = builder.add(x, x)
    graph = builder.build({"a": y, "b": y, "c": builder.identity(y)})
    result = builder.context.compute(graph, {"x": np.float32([1, 2])})
    assert all(result[name].tolist() == [2, 4] for name in "abc")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b, x: b.softmax(x), "softmax: the argument 'axis' is missing"),
        (lambda b, x: b.softmax(x, 1, 2), "softmax: takes 2 positional arguments, got 3"),
        (lambda b, x: b.softmax(x, 1, input=x), "softmax: input is given twice"),
        (lambda b, x: b.softmax(x, 1, axes=1), "softmax: has no argument 'axes'; it takes input, axis, label"),
        (lambda b, x: b.softmax(x, -1), r"softmax: axis must be in \[0, 4294967295\], got -1"),
        (lambda b, x: b.softmax(x, 2**32), r"softmax: axis must be in \[0, 4294967295\], got 4294967296"),
        (lambda b, x: b.softmax(x, 0.5), "softmax: axis must be an integer, got 0.5"),
        (lambda b, x: b.softmax(x, float("nan")), "softmax: axis must be an integer, got nan"),
        (lambda b, x: b.softmax(x, True), "softmax: axis must be an integer, got True"),
        (lambda b, x: b.softmax(x, "1"), "softmax: axis must be an integer, got '1'"),
        (lambda b, x: b.softmax(x, None), "softmax: axis must be an integer, got None"),
        (lambda b, x: b.softmax(3, 1), "softmax: input must be an operand, got 3"),
        (lambda b, x: b.softmax(None, 1), "softmax: input must be an operand, got None"),
        (lambda b, x: b.softmax(x, 1, label=3), "softmax: label must be a string, got 3"),
        (lambda b, x: b.softmax(x, 7, label="head"), "softmax 'head': "),
        (lambda b, x: b.relu(x, label="a\u202eb"), "relu"),
        (lambda b, x: b.add(x, True), "add: b must be an operand, got True"),
        (lambda b, x: b.add(x, "1"), "add: b must be an operand, got '1'"),
        (lambda b, x: b.add(x, np.zeros((2, 2))), "add: constant: array: float64 is not a data type of WebNN"),
        (lambda b, x: b.add(x, b.constant("int32", 1)), r"add: b must have the data type of a, float32, got int32\[\]"),
        (lambda b, x: b.exp(b.constant("int32", 1)), r"exp: input must be float32 or float16, got int32\[\]"),
        (lambda b, x: b.conv2d(x, x), r"conv2d: input must have rank 4, got float32\[2, 2\]"),
        (
            lambda b, x: b.softmax(b.constant("float32", 1), 0),
            r"softmax: input must have a rank in \[1, 8\], got float32\[\]",
        ),
        (lambda b, x: b.concat(x, 0), "concat: inputs must be a sequence of operands, got <MLOperand"),
        (lambda b, x: b.concat([x, 3.5j], 0), r"concat: inputs\[1\] must be an operand, got 3.5j"),
        (lambda b, x: b.elu(x, alpha=float("inf")), "elu: alpha must be a finite number, got inf"),
        (lambda b, x: b.elu(x, alpha="1"), "elu: alpha must be a finite number, got '1'"),
        (
            lambda b, x: b.pad(x, [1, 1], [1, 1], mode="wrap"),
            "mode must be 'constant', 'edge' or 'reflection', got 'wrap'",
        ),
        (lambda b, x: b.pad(x, 1, [1, 1]), "pad: beginning_padding must be a sequence, got 1"),
        (lambda b, x: b.pad(x, [1, -1], [1, 1]), r"pad: beginning_padding\[1\] must be in \[0, 4294967295\], got -1"),
        (lambda b, x: b.pad(x, [1, 1], [1, 1], value="0"), "pad: value must be a number, got '0'"),
        (lambda b, x: b.reduce_sum(x, keep_dimensions=1), "keep_dimensions must be True or False, got 1"),
        (lambda b, x: b.cast(x, "float64"), "cast: data_type must be float32, .* or uint8, got 'float64'"),
        (lambda b, x: b.expand(b.constant("float32", 1), [2**16, 2**16]), "expand: the result must have at most"),
        (lambda b, x: b.triangular(x, diagonal=2**31), "triangular: diagonal must be in"),
    ],
)
def test_arguments_are_converted_and_checked(builder: ow.MLGraphBuilder, call: Any, message: str) -> None:
    x = builder.input("x", "float32", [2, 2])
    if message == "relu":  # control and direction characters in labels are escaped
        assert "\\u202e" in repr(call(builder, x))
        return
    with pytest.raises(ow.ValidationError, match=message):
        call(builder, x)


def test_operands_of_other_builders_are_refused(context: ow.MLContext, builder: ow.MLGraphBuilder) -> None:
    x, foreign = builder.input("x", "float32", [1]), ow.MLGraphBuilder(context).input("f", "float32", [1])
    with pytest.raises(ow.ValidationError, match="add 'sum': b is an operand of another builder: <MLOperand float32"):
        builder.add(x, foreign, label="sum")
    with pytest.raises(ow.ValidationError, match=r"concat: inputs\[1\] is an operand of another builder"):
        builder.concat([x, foreign], 0)


def test_numbers_and_arrays_become_constants(builder: ow.MLGraphBuilder) -> None:
    x = builder.input("x", "float16", [2])
    graph = builder.build({"y": builder.add(builder.mul(x, 2), np.float16([1, 10]))})
    assert builder.context.compute(graph, {"x": np.float16([1, 2])})["y"].tolist() == [3, 14]


def test_builder_accepts_whole_floats_as_integers(builder: ow.MLGraphBuilder) -> None:
    x = builder.input("x", "float32", [2, 2])
    assert builder.reshape(x, [4.0]).shape == (4,)  # type: ignore[list-item]
    assert builder.reshape(x, np.array([4])).shape == (4,)


def test_signatures_are_exact_for_people_and_tools(builder: ow.MLGraphBuilder) -> None:
    signature = str(inspect.signature(builder.softmax))
    assert signature == "(input: 'Operand', axis: 'int', *, label: 'str' = '') -> 'MLOperand'"
    assert "Normalise" in pydoc.render_doc(builder.softmax)
    for name, op in Operations.listing().items():
        assert op.name == name
        assert "https://www.w3.org/TR/webnn/#api-mlgraphbuilder-" in (op.__doc__ or ""), name
        assert list(inspect.signature(op).parameters)[-1] == "label"


def test_graphs_explain_themselves(builder: ow.MLGraphBuilder) -> None:
    x = builder.input("x", "float32", [1, 4])
    y = builder.softmax(builder.relu(x), 1, label="head")
    graph = builder.build({"y": y})
    text = graph.explain()
    assert "%1 = softmax(%0, 1)  # 'head'" in text
    assert "softmax 'head'  cpu  native" in text
    assert graph.devices == ("cpu",)
    assert repr(graph) == "<MLGraph (x: float32[1, 4]) -> (y: float32[1, 4]), 2 operations on cpu>"
    assert repr(y) == "<MLOperand float32[1, 4], softmax 'head'>"
