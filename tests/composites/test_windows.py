"""Composites with windows over one, two and three axes, on all devices, against ONNX Runtime or ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from samples import Call
from support.agreement import REFERENCE, outputs_of, record, run_decomposed
from support.every_device import DEVICES, context_on
from support.onnx_nodes import CONTEXT, node_model, randn, run_engine
from support.window_cases import COUNT, MAKERS, WindowCase, case_of

import opweave as ow
from opweave import composites
from opweave.composites.convolve import deform_columns
from opweave.lazy.custom_call import CustomOp

BLOCK = 20
"""Attribute sets of a row."""
FIRST = 5
"""Those of the first row, which samples have: most devices compile each. The second row has the others."""
SOFTWARE_BLOCK = 4
"""Those of a row on a GPU in software, where each set takes its own shader."""


def rows() -> list[Any]:
    """Samples have each composite on each device."""
    return [
        pytest.param(
            op,
            device,
            block,
            id=f"{op.name}-{device}-{block}",
            marks=pytest.mark.covers(*[f"{op.name} on {device}"] * (block == 0)),
        )
        for op in MAKERS
        for device in [*DEVICES, "decomposed"]
        for block in range(0, COUNT if "webgpu" not in device else 5 * SOFTWARE_BLOCK, size_of(device))
    ]


def size_of(device: str) -> int:
    return SOFTWARE_BLOCK if "webgpu" in device else BLOCK


def numbers_of(device: str, block: int) -> range:
    if "webgpu" in device:
        return range(block, block + SOFTWARE_BLOCK)
    return {0: range(FIRST), BLOCK: range(FIRST, 2 * BLOCK)}.get(block, range(block, block + BLOCK))


def run(op: CustomOp[Any], call: Call, device: str) -> Sequence[np.ndarray]:
    if device == "decomposed":
        return list(run_decomposed(op, call).values())
    context = context_on(device)
    builder, result, arrays = record(context, op, call)
    return list(context.compute(builder.build(outputs_of(result)), arrays).values())


def check(case: WindowCase, results: Sequence[np.ndarray]) -> None:
    for ours, theirs in zip(results, case.results(), strict=True):
        assert ours.shape == theirs.shape, case.call
        assert ours.dtype == theirs.dtype, case.call
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5, err_msg=repr(case.call))


@pytest.mark.parametrize(("op", "device", "block"), rows())
def test_composite_equals_engine(op: CustomOp[Any], device: str, block: int) -> None:
    for number in numbers_of(device, block):
        case = case_of(op, number)
        check(case, run(op, case.call, device))


@pytest.mark.parametrize("block", range(0, COUNT, BLOCK))
@pytest.mark.parametrize("op", [op for op in MAKERS if op is not deform_columns], ids=lambda op: op.name)
def test_converted_node_equals_engine(op: CustomOp[Any], block: int) -> None:
    for number in range(block, block + BLOCK):
        case = case_of(op, number)
        model, feed = case.model()
        check(case, ow.InferenceSession(model, CONTEXT, fallback="error").run(None, feed))


# ---------------------------------------------------------------------------------------------------------------------
# What random calls do not have


@pytest.mark.parametrize("auto_pad", ["VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("Conv", {}),
        ("ConvTranspose", {}),
        ("MaxPool", {"kernel_shape": [3, 2, 3]}),
        ("AveragePool", {"kernel_shape": [3, 2, 3], "count_include_pad": 1}),
        ("AveragePool", {"kernel_shape": [3, 2, 3]}),
        ("LpPool", {"kernel_shape": [3, 2, 3]}),
    ],
)
def test_automatic_padding_of_three_axes(operator: str, attributes: dict[str, Any], auto_pad: str) -> None:
    filter = [randn(4, 2, 3, 2, 3)] if "Conv" in operator else []
    inputs = [randn(2, 2 if operator == "Conv" else 4, 7, 6, 5), *filter]
    model, feed = node_model(operator, inputs, {**attributes, "auto_pad": auto_pad, "strides": [2, 1, 2]})
    (ours,) = ow.InferenceSession(model, CONTEXT, fallback="error").run(None, feed)
    (theirs,) = run_engine(model, feed)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5, strict=True)


@pytest.mark.parametrize(
    "attributes",
    [
        {"output_shape": [9, 7, 8], "strides": [2, 2, 2]},
        {"output_shape": [9, 7, 8], "strides": [2, 2, 2], "auto_pad": "SAME_UPPER"},
        {"output_shape": [9, 7, 8], "strides": [2, 2, 2], "auto_pad": "SAME_LOWER"},
        {"output_padding": [1, 0, 1], "strides": [2, 2, 2], "group": 2},
    ],
)
def test_output_shapes_of_three_axes(attributes: dict[str, Any]) -> None:
    model, feed = node_model("ConvTranspose", [randn(1, 4, 4, 3, 4), randn(4, 2, 3, 3, 2)], attributes)
    (ours,) = ow.InferenceSession(model, CONTEXT, fallback="error").run(None, feed)
    np.testing.assert_allclose(ours, run_engine(model, feed)[0], rtol=1e-5, atol=1e-5, strict=True)


NAMES = ["batches", 2, "depth", "height", "width"]
NAMED: list[tuple[CustomOp[Any], dict[str, Any], list[str | int]]] = [
    (composites.convolution, {"filter": (3, 2, 3, 2, 3), "padding": [1, 1, 0, 0, 1, 1], "strides": [2, 1, 2]}, NAMES),
    (composites.conv_transpose, {"filter": (2, 3, 2, 2, 2), "strides": [2, 1, 2]}, NAMES),
    (composites.average_pool, {}, NAMES),
    (composites.average_pool, {"window_dimensions": [3, 2, 2], "padding": [1] * 6, "include_padding": True}, NAMES),
    (composites.max_pool, {"window_dimensions": [2, 2, 2], "strides": [2, 1, 2], "padding": [1, 0, 0, 0, 0, 1]}, NAMES),
    (composites.max_pool_with_indices, {"window_dimensions": [2, 2, 2], "output_shape_rounding": "ceil"}, NAMES),
    (composites.lp_pool, {"p": 3, "window_dimensions": [2, 2, 2]}, NAMES),
    (composites.col2im, {"image_sizes": [5, 4], "window_dimensions": [2, 2]}, ["batches", 8, 12]),
]


@pytest.mark.parametrize("device", [device for device in DEVICES if "webgpu" not in device])
@pytest.mark.parametrize(("op", "options", "names"), NAMED, ids=lambda value: getattr(value, "name", ""))
def test_sizes_may_have_names(op: CustomOp[Any], options: dict[str, Any], names: list[str | int], device: str) -> None:
    name, _, backend = device.rstrip(")").partition(" (")
    dynamic = ow.ml.create_context(device=name, backend=backend, drafts=True)
    filter = randn(*options["filter"]) if "filter" in options else None

    def build(context: ow.MLContext, shape: Sequence[str | int]) -> ow.MLGraph:
        builder = ow.MLGraphBuilder(context)
        more = {name: value for name, value in options.items() if name != "filter"}
        operands = [builder.input("x", "float32", shape), *([] if filter is None else [builder.constant(filter)])]
        return builder.build(outputs_of(op(*operands, **more)))

    graph = build(dynamic, names)
    for sizes in ((1, 5, 6, 7), (3, 8, 4, 3)):
        number = iter(sizes)
        x = randn(*(next(number) if isinstance(size, str) else size for size in names))
        wanted = REFERENCE.compute(build(REFERENCE, x.shape), {"x": x})
        for key, result in dynamic.compute(graph, {"x": x}).items():
            np.testing.assert_allclose(result, wanted[key], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_fused_epilogue_of_three_axes(device: str) -> None:
    """Bias, normalisation, residual and activation behind a convolution."""
    x, w, bias, rest = randn(1, 6, 5, 6, 7), randn(6, 6, 3, 3, 3), randn(6), randn(1, 6, 5, 6, 7)
    mean, variance = randn(6), abs(randn(6)) + 1

    def network(context: ow.MLContext) -> np.ndarray:
        b = ow.MLGraphBuilder(context)
        image, residual = b.input("x", "float32", x.shape), b.input("rest", "float32", x.shape)
        y = composites.convolution(image, b.constant(w), b.constant(bias), padding=[1] * 6)
        y = b.batch_normalization(y, b.constant(mean), b.constant(variance))
        graph = b.build({"y": b.relu(b.add(y, residual))})
        return context.compute(graph, {"x": x, "rest": rest})["y"]

    np.testing.assert_allclose(network(context_on(device)), network(context_on("reference (reference)")), atol=2e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_offsets_that_are_no_numbers_leave_the_image(device: str) -> None:
    x, w = np.ones((1, 1, 2, 2), "float32"), np.ones((1, 1, 1, 1), "float32")
    offset = np.zeros((1, 2, 2, 2), "float32")
    offset[0, 0] = [[np.inf, -np.inf], [3e38, 0]]
    case = Call(x, w, offset)
    (y,) = run(composites.deform_conv, case, device)
    np.testing.assert_array_equal(y, [[[[0, 0], [0, 1]]]])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("order", ["row-major", "column-major"])
def test_windows_without_elements_have_no_position(device: str, order: str) -> None:
    x = np.float32([[[1, 2]]])
    values, positions = run(
        composites.max_pool_with_indices,
        Call(x, window_dimensions=[1], padding=[1, 1], order=order, index_type="int32"),
        device,
    )
    assert values.tolist() == [[[-np.inf, 1, 2, -np.inf]]]
    assert positions.tolist() == [[[-1, 0, 1, -1]]]


def test_positions_out_of_range_are_errors() -> None:
    for positions in ([[[4]]], [[[-1]]], [[[2**31]]]):
        context = context_on("cpu (onnxruntime)")
        builder = ow.MLGraphBuilder(context)
        x, indices = builder.input("x", "float32", [1, 1, 1]), builder.input("i", "int64", [1, 1, 1])
        graph = builder.build({"y": composites.max_unpool(x, indices, [4])})
        with pytest.raises(ow.MLError, match=r"indices must be in \[0, 3\]"):
            context.compute(graph, {"x": np.ones((1, 1, 1), "float32"), "i": np.int64(positions)})


X, W = np.ones((1, 2, 4, 4, 4), "float32"), np.ones((2, 2, 3, 3, 3), "float32")


@pytest.mark.parametrize(
    ("op", "call", "message"),
    [
        (composites.convolution, Call(X, W, padding=[1, 1]), "padding must have 6 values, got [1, 1]"),
        (composites.convolution, Call(X, W, strides=[1, 0, 1]), "strides must be 3 positive integers, got [1, 0, 1]"),
        (composites.convolution, Call(X, W, strides=[1, 1]), "strides must be 3 positive integers, got [1, 1]"),
        (
            composites.convolution,
            Call(X, W, groups=2),
            "the filter has 2 input channels for each of 2 groups, 4 in all",
        ),
        (composites.convolution, Call(X, W, dilations=[2, 1, 1]), "the filter must fit into the padded input"),
        (
            composites.convolution,
            Call(X, W, padding=[2**31, 0, 0, 0, 0, 0]),
            "padded dimensions must be at most 2147483647",
        ),
        (composites.convolution, Call(X, W[..., 0]), "filter must have the rank of input, 5, got float32[2, 2, 3, 3]"),
        (composites.conv_transpose, Call(X, W, output_padding=[1, 0, 0]), "output_padding must be less than strides"),
        (
            composites.conv_transpose,
            Call(X, W, output_sizes=[6, 6, 9]),
            "output_sizes must be in [6, 7) along spatial axis 2",
        ),
        (composites.conv_transpose, Call(X, W, groups=3), "groups must divide the 2 input channels, got 3"),
        (composites.average_pool, Call(X, window_dimensions=[5, 1, 1]), "a window of [5, 1, 1] must fit"),
        (
            composites.max_pool,
            Call(X, window_dimensions=[2, 2]),
            "window_dimensions must be 3 positive integers, got [2, 2]",
        ),
        (composites.max_pool, Call(X, output_sizes=[2, 1, 1]), "output_sizes must be [1, 1, 1] along each axis"),
        (composites.lp_pool, Call(X, 0), "p must be at least 1, got 0"),
        (
            composites.max_unpool,
            Call(X, np.zeros((1, 1, 4, 4, 4), "int64"), [4, 4, 4]),
            "indices must have shape [1, 2, 4, 4, 4]",
        ),
        (
            composites.max_unpool,
            Call(X, X.astype("int64"), [4, 4]),
            "output_sizes must be 3 positive integers, got [4, 4]",
        ),
        (
            composites.col2im,
            Call(X[:, :, 0, 0], [6], [2]),
            "the last axis of the input must be 5, the number of blocks",
        ),
        (composites.col2im, Call(X[0, :, :, :, 0], [5], [3]), "axis 1 of the input must be a multiple of the 3 taps"),
        (
            composites.deform_conv,
            Call(X[0], np.ones((1, 4, 1, 1), "float32"), X[0]),
            "offset must have shape [2, 2, 4, 4]",
        ),
        (
            composites.deform_conv,
            Call(X[0], np.ones((1, 4, 1, 1), "float32"), X[0], offset_groups=3),
            "offset_groups must divide the 4 input channels, got 3",
        ),
    ],
)
def test_errors_name_the_rule(op: CustomOp[Any], call: Call, message: str) -> None:
    builder = ow.MLGraphBuilder(CONTEXT)
    operands = [builder.constant(arg) if isinstance(arg, np.ndarray) else arg for arg in call.args]
    with pytest.raises(ow.ValidationError) as error:
        op(*operands, label="stem", **call.kwargs)
    assert str(error.value).startswith(f"{op.name} 'stem': {message}"), error.value
