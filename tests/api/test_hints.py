"""Habits from JavaScript, NumPy and PyTorch meet an error that says what is written here."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave.ops import Operations
from opweave.support import foreign_names, hints

CPU: Any = ow.ml.create_context(device="reference")  # calls are wrong on purpose
X = np.ones((2, 3), "float32")


@ow.expression
def sine(x):  # type: ignore[no-untyped-def]
    return np.sin(x)


@ow.expression
def doubled(x):  # type: ignore[no-untyped-def]
    return np.float32(2) * x + np.float64(0.5)


@ow.expression
def method(x):  # type: ignore[no-untyped-def]
    return x.sigmoid()


@ow.expression
def of_math(x):  # type: ignore[no-untyped-def]
    return math.exp(x)


def graph() -> ow.MLGraph:
    builder = ow.MLGraphBuilder(CPU)
    return builder.build({"y": builder.input("x", "float32", [2, 3]).relu()})


HABITS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "options of an operation": (
        lambda b, x: b.conv2d(x, x, {"padding": [1, 1, 1, 1], "inputLayout": "nhwc"}),
        "takes 2 positional arguments, got 3; options are keyword arguments: padding=.1, 1, 1, 1., input_layout='nhwc'",
    ),
    "options in place of an argument": (lambda b, x: b.clamp({"minValue": 0}), "keyword arguments: min_value=0"),
    "options of a call on arrays": (lambda b, x: ow.ops.softmax(X, 1, {"label": "a"}), "keyword arguments: label='a'"),
    "a descriptor of an input": (
        lambda b, x: b.input("z", {"dataType": "float32", "shape": [2]}),
        "input: options are keyword arguments: data_type='float32', shape=.2.",
    ),
    "a descriptor of a constant": (
        lambda b, x: b.constant({"dataType": "float32", "shape": [2]}, X),
        "constant: options are keyword arguments: data_type='float32', shape=.2.",
    ),
    "a descriptor of a tensor": (
        lambda b, x: CPU.create_tensor({"dataType": "float32", "shape": [2], "readable": True}),
        "create_tensor: options are keyword arguments: data_type='float32', shape=.2., readable=True",
    ),
    "options of a context": (
        lambda b, x: ow.ml.create_context({"powerPreference": "low-power"}),
        "create_context: options are keyword arguments: power_preference='low-power'",
    ),
    "camelCase of an option": (
        lambda b, x: ow.ml.create_context(powerPreference="low-power"),  # type: ignore[call-arg]
        "create_context: has no argument 'powerPreference'; it takes .*; did you mean 'power_preference'?",
    ),
    "camelCase of a keyword": (
        lambda b, x: b.conv2d(x, x, inputLayout="nhwc"),
        "has no argument 'inputLayout'; it takes .*; did you mean 'input_layout'?",
    ),
    "camelCase of a keyword on arrays": (
        lambda b, x: ow.ops.clamp(X, minValue=0),
        "has no argument 'minValue'; it takes .*; did you mean 'min_value'?",
    ),
    "NumPy's keyword": (
        lambda b, x: b.reduce_sum(x, keepdims=True),
        "has no argument 'keepdims'; it takes .*; did you mean 'keep_dimensions'?",
    ),
    "camelCase of a method": (lambda b, x: b.averagePool2d(x), "did you mean 'average_pool2d'?"),
    "camelCase of an operation": (lambda b, x: ow.ops.averagePool2d, "did you mean 'average_pool2d'?"),
    "camelCase of an operand's method": (lambda b, x: x.hardSwish(), "did you mean 'hard_swish'?"),
    "camelCase of an attribute": (lambda b, x: x.dataType, "did you mean 'data_type'?"),
    "camelCase of a context": (lambda b, x: CPU.createTensor, "did you mean 'create_tensor'?"),
    "camelCase of a tensor": (lambda b, x: CPU.create_tensor("int8", []).dataType, "did you mean 'data_type'?"),
    "NumPy's name of an attribute": (lambda b, x: CPU.create_tensor("int8", []).dtype, "did you mean 'data_type'?"),
    "NumPy's method": (lambda b, x: x.sum(), "did you mean 'reduce_sum'?"),
    "PyTorch's function": (lambda b, x: ow.ops.permute, "did you mean 'transpose'?"),
    "camelCase of the entry point": (
        lambda b, x: ow.ml.createContext(),  # type: ignore[attr-defined]
        "did you mean 'create_context'?",
    ),
    "an option of an earlier draft": (
        lambda b, x: ow.ml.create_context(device_type="gpu"),  # type: ignore[call-arg]
        "create_context: has no argument 'device_type'; it takes .*; did you mean 'device'?",
    ),
    "the same in a dictionary": (
        lambda b, x: ow.ml.create_context({"deviceType": "gpu"}),
        "create_context: options are keyword arguments: device='gpu'",
    ),
    "an argument that there is not": (
        lambda b, x: ow.ml.create_context(engine="openvino"),  # type: ignore[call-arg]
        "create_context: has no argument 'engine'; it takes gpu_device, .*, device, backend, ",
    ),
    "an option of a context, for a session": (
        lambda b, x: ow.InferenceSession(b"", device="gpu"),  # type: ignore[call-arg]
        "InferenceSession: has no argument 'device'; it takes .*; write context=ow.ml.create_context.device='gpu'.",
    ),
    "another spelling": (
        lambda b, x: ow.InferenceSession(b"", specialize="never"),  # type: ignore[call-arg]
        "InferenceSession: has no argument 'specialize'; it takes .*; did you mean 'specialise'?",
    ),
    "PyTorch's name of an operation": (lambda b, x: b.batch_norm(x), "did you mean 'batch_normalization'?"),
    "the end of a context": (lambda b, x: CPU.close(), "did you mean 'destroy'?"),
    "camelCase of a class": (lambda b, x: ow.mlGraphBuilder, "did you mean 'MLGraphBuilder'?"),
    "a dynamic dimension": (
        lambda b, x: b.input("z", "float32", [None, 3]),
        r"shape must be a sequence of integers, got \[None, 3\]; only inputs have sizes with names",
    ),
    "operands that are not a list": (
        lambda b, x: b.concat(x, x, axis=0),
        r"axis is given twice; inputs is one list, as in concat\(\[a, b\], …\)",
    ),
    "a method in an expression": (
        lambda b, x: method(X),
        r"has no attribute .sigmoid.; ow\.expr\.sigmoid\(x\) does that",
    ),
    "a function of math in an expression": (lambda b, x: of_math(X), r"opweave\.expr has functions for it"),
    "an array in place of a dictionary": (
        lambda b, x: CPU.compute(graph(), np.zeros((3, 2), "float32")),
        r"inputs must map names to arrays, got an array of float32\[3, 2\]$",
    ),
    "a name of nothing": (
        lambda b, x: CPU.compute(graph(), {"image": X}),
        r"inputs must hold \['x'\]; missing: \['x'\], unknown: \['image'\]$",
    ),
    "an axis from the end": (
        lambda b, x: b.softmax(x, -1),
        r"axis must be in \[0, 4294967295\], got -1; axes are counted from the first: axis=1",
    ),
    "an axis from the end of an array": (lambda b, x: ow.ops.softmax(X, -2), "counted from the first: axis=0"),
    "axes from the end": (
        lambda b, x: x.reduce_mean(axes=[0, -1]),
        r"axes\[1\] must be .*; axes are counted from the first: axes=\[0, 1\]",
    ),
    "a size to infer": (lambda b, x: x.reshape([1, -1]), r"sizes are given, not inferred: \[1, 6\]"),
    "a name of another case": (
        lambda b, x: CPU.compute(graph(), {"X": X}),
        r"inputs must hold \['x'\]; missing: \['x'\], unknown: \['X'\]; did you mean 'x' for 'X'?",
    ),
    "NumPy in an expression": (
        lambda b, x: sine(X),
        r"np.sin takes arrays of NumPy, got an expression, .*; ow.expr.sin does",
    ),
    "NumPy's function of an operand": (
        lambda b, x: np.sin(x),
        r"np.sin takes .*, got <MLOperand .*; builder.sin\(x\) does",
    ),
    "NumPy's name of an operand's operation": (
        lambda b, x: np.negative(x),
        r"np.negative takes .*; builder.neg\(x\) does",
    ),
    "NumPy's function that WebNN lacks": (lambda b, x: np.sinh(x), "np.sinh .*; there is no such operation"),
    "NumPy's function of an array": (
        lambda b, x: np.sin(ow.array(X)),
        r"np.sin takes arrays of NumPy, got an opweave.Array float32\[2, 3\]; x.sin\(\) is in WebNN; x.numpy\(\) is an array",
    ),
    "NumPy's function of two arrays": (
        lambda b, x: np.maximum(X, ow.array(X)),
        r"np.maximum takes .*; x.max\(y\) is in",
    ),
    "NumPy's sum of an array": (
        lambda b, x: np.sum(ow.array(X)),
        r"np.add.reduce takes .*; x.reduce_sum\(\) is in WebNN",
    ),
    "NumPy's sum of an operand": (lambda b, x: np.sum(x), r"np.sum takes .*; builder.reduce_sum\(…\) does"),
    "NumPy's maximum of arrays": (
        lambda b, x: np.maximum(ow.array(X), X),
        r"np.maximum takes .*; x.max\(y\) is in WebNN",
    ),
    "NumPy's function of an array that WebNN lacks": (
        lambda b, x: np.sinh(ow.array(X)),
        "np.sinh .*; there is no such operation; x.numpy",
    ),
    "an array in place of one of NumPy": (
        lambda b, x: np.add(X, ow.array(X), out=X),
        r"np.add takes .*; x.add\(y\) is in",
    ),
}


@pytest.mark.parametrize("habit", HABITS)
def test_habits_meet_a_hint(habit: str) -> None:
    function, text = HABITS[habit]
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [2, 3])
    with pytest.raises((ow.ValidationError, AttributeError), match=text):
        function(builder, x)


ELSEWHERE = """
top_k swiglu TopK LogSoftmax RMSNormalization topk: opweave.composites.
MatMul Relu Gemm ReduceMean ReduceProd IsNaN IsInf Where CumSum Pad Slice Reshape Erf GRU ScatterND: did you mean
Conv ConvTranspose Clip Not And Less LessOrEqual Trilu Resize GlobalAveragePool AveragePool Greater ReduceL2: did you mean
InstanceNormalization DequantizeLinear LpPool Round Neg ArgMax QuantizeLinear GatherND: did you mean
concatenate permute maximum negative astype clip argmax isnan mean sum prod cat mm bmm take: did you mean
less_equal true_divide tril eq gt not_ view layer_norm batch_norm interpolate masked_fill movedim sqr: did you mean
expand_dims: x[None]
square: x * x
silu: x.sigmoid()
zeros ones_like arange: builder.constant(numpy.
flatten: x.reshape(
stack: builder.concat([
rsqrt: x.sqrt().reciprocal()
"""
"""Names of composites, and names of operations in ONNX, NumPy and PyTorch: a part of the hint that each gets."""

ALL_ELSEWHERE = [
    (name, hint.strip())
    for names, hint in (line.rsplit(": ", 1) for line in ELSEWHERE.strip().splitlines())
    for name in names.split()
]


@pytest.mark.parametrize(("name", "hint"), ALL_ELSEWHERE, ids=[name for name, _ in ALL_ELSEWHERE])
def test_names_of_elsewhere_meet_a_hint(name: str, hint: str) -> None:
    @ow.composite
    def mine(b, x):  # type: ignore[no-untyped-def]
        return getattr(b, name)(x)

    line = mine.source.__code__.co_firstlineno + 2
    with pytest.raises(ow.ValidationError) as raised:
        mine(X)
    message = str(raised.value)
    assert message.startswith(f"mine: the builder of a composite has no attribute or operation {name!r}; ")
    assert hint in message
    assert message.endswith(f" (test_hints.py, line {line}: return getattr(b, name)(x))")
    for instance in (ow.MLGraphBuilder(CPU), ow.ops, ow.composites, ow):
        with pytest.raises(AttributeError) as missing:
            getattr(instance, name if name not in dir(instance) else "TopK")
        assert "; " in str(missing.value)


def test_words_of_elsewhere_lead_to_names_that_exist() -> None:
    operations, attributes = (
        Operations.listing(),
        {name for op in Operations.listing().values() for name in op.parameters},
    )
    others = {"data_type", "rank", "device", "build", "destroy"}
    assert set(hints.WEBNN_NAMES.values()) <= {*operations, *attributes, *others}
    assert {name for names in foreign_names.ARGUMENTS.values() for name in names} <= {*attributes, "inputs", "label"}
    assert [name for name in foreign_names.ARGUMENTS if name != hints.plain(name)] == []
    assert [name for name in foreign_names.INSTEAD if name != hints.plain(name)] == []


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "did you mean 'axis'?": lambda b, x: b.softmax(x, dim=1),
    "did you mean 'axis'? ": lambda b, x: b.softmax(x, axes=1),
    "did you mean axes=[1]?": lambda b, x: b.reduce_sum(x, axis=1),
    "did you mean 'axes'?": lambda b, x: b.reduce_sum(x, axis=[1]),
    "did you mean 'keep_dimensions'?": lambda b, x: b.reduce_sum(x, keepdim=True),
    "did you mean 'new_shape'?": lambda b, x: b.reshape(x, shape=[6]),
    "did you mean 'permutation'?": lambda b, x: b.transpose(x, perm=[1, 0]),
    "did you mean 'padding'?": lambda b, x: b.conv2d(x, x, pads=[0, 0, 0, 0]),
    "did you mean strides=[2]?": lambda b, x: b.conv2d(x, x, stride=2),
    "did you mean 'epsilon'?": lambda b, x: b.layer_normalization(x, eps=1e-5),
    "did you mean 'input'?": lambda b, x: b.relu(x=x),
    "did you mean 'k'?": lambda b, x: ow.composites.top_k(x, K=1),
    "did you mean 'float16'?": lambda b, x: b.cast(x, np.float16),
    "did you mean 'uint8'?": lambda b, x: b.cast(x, bool),
    "write softmax(input, axis)": lambda b, x: b.softmax(x),
    "write top_k(input, k)": lambda b, x: ow.composites.top_k(x),
    "write add(a, b)": lambda b, x: b.add(x),
    "write relu(input)": lambda b, x: b.relu(x, x),
    "operands are separate arguments: add(a, b)": lambda b, x: b.add([x, x]),
    "max takes two operands, reduce_max one": lambda b, x: x.max(),
    "max takes two operands, reduce_max has axes": lambda b, x: x.max(axis=1),
    "attributes are keywords: axes=[1]": lambda b, x: b.reduce_sum(x, 1),
    "attributes are keywords: permutation=[1, 0]": lambda b, x: x.transpose(1, 0),
    "attributes are keywords: min_value=0, max_value=1": lambda b, x: b.clamp(x, 0, 1),
    "new_shape is one list: [3, 2]": lambda b, x: x.reshape(3, 2),
    "write new_shape=[6]": lambda b, x: x.reshape(6),
    "write padding=[1, 1, 1, 1]": lambda b, x: b.conv2d(b.input("i", "float32", [1, 1, 3, 3]), x, padding=1),
    "write axis=1": lambda b, x: b.softmax(x, [1]),
    "the shape of an operand is a sequence: new_shape=x.shape": lambda b, x: x.reshape(x),
    "builder.constant(numpy.array([0, 1], 'int32')) declares": lambda b, x: b.gather(x, [0, 1]),
    "builder.constant('int32', 0) declares": lambda b, x: b.gather(x, 0),
    "builder.constant('float32', 0.5) declares": lambda b, x: b.constant(0.5),
    "comparisons are called by name, as builder.greater(x, y)": lambda b, x: b.where(x is x, x, x),
    "it is one operand, not a list": lambda b, x: b.add(x, [x]),
    "relu is not called: write relu(…)": lambda b, x: b.add(x, x.relu),
    "gather(x, indices, axis=…) and where": lambda b, x: x[[0, 1]],
}
"""The end of the message, and a call with a wrong argument."""


@pytest.mark.parametrize("hint", CALLS)
def test_wrong_arguments_meet_a_hint(hint: str) -> None:
    builder = ow.MLGraphBuilder(CPU)
    with pytest.raises(ow.ValidationError) as raised:
        CALLS[hint](builder, builder.input("x", "float32", [2, 3]))
    assert f"; {hint.strip()}" in str(raised.value)


def test_composite_has_no_inputs_and_outputs() -> None:
    for name, hint in {"input": "operands are parameters of the function", "build": "the function returns"}.items():

        @ow.composite
        def mine(b, x):  # type: ignore[no-untyped-def]
            return getattr(b, name)(x)  # noqa: B023

        with pytest.raises(ow.ValidationError, match=f"has no attribute or operation '{name}'; {hint}"):
            mine(X)


@pytest.mark.parametrize(
    "function",
    [
        lambda b, x: b.softmax(x, 7),
        lambda b, x: b.reshape(x, [-1, -1]),
        lambda b, x: b.reshape(x, [4, -1]),
        lambda b, x: b.relu(x, foo=1),
        lambda b, x: b.foo(x),
        lambda b, x: b._foo,
        lambda b, x: CPU.compute(graph(), {}),
    ],
)
def test_unrelated_errors_get_no_hint(function: Any) -> None:
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [2, 3])
    with pytest.raises((ow.ValidationError, AttributeError)) as raised:
        function(builder, x)
    assert not any(word in str(raised.value) for word in ("did you mean", "counted", "inferred", "keyword arguments"))


def test_attribute_error_names_module_to_import() -> None:
    source = "import opweave as ow\nassert not hasattr(ow, 'foo')\now.chat"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=600)
    assert "module 'opweave' has no attribute 'chat'; it is a module: import opweave.chat" in done.stderr


def test_operators_of_arrays_and_operands_stay_operations() -> None:
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [2, 3])
    built = builder.build({"y": (X * 2 - x) / np.float32(2) ** x})
    np.testing.assert_allclose(CPU.compute(built, {"x": X})["y"], np.full((2, 3), 0.5, "float32"))
    np.testing.assert_array_equal(doubled(X), np.full((2, 3), 2.5, "float32"))


def test_operators_of_numpys_arrays_and_arrays_stay_operations() -> None:
    with CPU:
        x = ow.array(X)
        for found, wanted in {
            X * 2 + x: 3,
            np.float32(2) - x: 1,
            X[0] / np.float32(4) ** x: 0.25,
            np.full((2, 2), 2, "float32") @ x: 4,
        }.items():
            assert isinstance(found, ow.Array)
            np.testing.assert_array_equal(found, np.full((2, 3), wanted, "float32"))
