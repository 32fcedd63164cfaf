"""Operators that sample images: random attributes and odd sizes, on all devices, against ONNX Runtime or ONNX's evaluator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from samples import Call
from support.agreement import run_without_composites
from support.cases import CPU, REFERENCE
from support.composite_cases import run
from support.every_device import DEVICES, context_on
from support.onnx_nodes import node_model
from support.sampling_cases import COUNT, MAKERS, case

import opweave as ow
from opweave import composites
from opweave.lazy.custom_call import CustomOp
from opweave.onnx.session.session import InferenceSession

ROWS = [
    pytest.param(
        op_type, seed, id=f"{op_type}-{seed}", marks=pytest.mark.covers(*([op_type] if seed % 50 == 0 else []))
    )
    for op_type in MAKERS
    for seed in range(COUNT)
]


@pytest.mark.parametrize(("op_type", "seed"), ROWS)
def test_random_node_equals_witness(op_type: str, seed: int) -> None:
    node = case(op_type, seed)
    model, feed = node.model()
    expected = node.expected()
    for device in DEVICES:
        (result,) = InferenceSession(model, context_on(device), fallback="error").run(None, feed)
        close: dict[str, Any] = {"rtol": node.tolerance, "atol": node.tolerance}
        np.testing.assert_allclose(result, expected, **close, err_msg=f"{device}: {node.attributes}")


@pytest.mark.parametrize(("op_type", "seed"), ROWS)
def test_decomposed_node_equals_witness(op_type: str, seed: int) -> None:
    """As operations of the specification, on the reference and on ONNX Runtime."""
    node = case(op_type, seed)
    model, feed = node.model()
    expected = node.expected()
    close: dict[str, Any] = {"rtol": node.tolerance, "atol": node.tolerance}
    for context in (REFERENCE, CPU):
        graph = ow.onnx.load(model, context, fix_shapes={name: array.shape for name, array in feed.items()})
        (result,) = run_without_composites(graph, feed, context).values()
        np.testing.assert_allclose(result, expected, **close, err_msg=f"{context}: {node.attributes}")


def test_witness_is_listed() -> None:
    """Each reason why ONNX Runtime is not the witness occurs, and most nodes have it as witness."""
    for op_type in MAKERS:
        reasons = [case(op_type, seed).differs for seed in range(COUNT)]
        assert sum(not reason for reason in reasons) >= COUNT // 4, op_type


# Positions and regions that are not numbers ---------------------------------------------------------------------------

IMAGE = np.float32(np.arange(12)).reshape(1, 1, 3, 4) + 1
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_that_is_not_finite_is_first_edge(mode: str, padding_mode: str, align_corners: bool, device: str) -> None:
    wild = [NAN, INF, -INF, 1e30, -3e38]
    grid = np.float32([[[[x, 0] for x in [*wild, -1]], [[0, y] for y in [*wild, -1]]]])
    call = Call(IMAGE, grid, mode=mode, padding_mode=padding_mode, align_corners=align_corners)
    (y,) = run(context_on(device), composites.grid_sample, call)
    np.testing.assert_allclose(y, np.repeat(y[..., -1:], 6, axis=3), rtol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_that_are_not_finite_are_zero(mode: str, ratio: int, device: str) -> None:
    good = [0, 0, 2, 2]
    rois = np.float32([good, [NAN, 0, 1, 1], [0, INF, 1, 1], [-INF, -INF, INF, INF], good, good, [50, 50, 60, 60]])
    images = np.int64([0, 0, 0, 0, 7, -(2**40), 0])
    call = Call(IMAGE, rois, images, mode=mode, sampling_ratio=ratio)
    (y,) = run(context_on(device), composites.roi_align, call)
    assert y[0, 0, 0, 0] > 0
    np.testing.assert_array_equal(y.ravel() == 0, [False, True, True, True, False, False, True])
    pooled = Call(IMAGE, np.concatenate([np.float32([[0]] * 7), rois], axis=1), pooled_shape=[1, 1])
    (y,) = run(context_on(device), composites.max_roi_pool, pooled)
    np.testing.assert_array_equal(y.ravel() == 0, [False, True, True, True, False, False, True])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("size", [(1, 1), (3, 2)])
def test_boxes_that_are_not_finite_are_the_extrapolation_value(size: tuple[int, int], mode: str, device: str) -> None:
    good, flat = [0, 0, 1, 1], IMAGE[:, :, :1, :1]
    boxes = np.float32([good, [NAN, 0, 1, 1], [0, INF, 1, 1], [-INF, -INF, INF, INF], [0, 0, 2.0**60, 1], good, good])
    images = np.int64([0, 0, 0, 0, 0, 7, -(2**40)])
    for image in (IMAGE, flat):
        for value in (0.0, -2.5, INF, NAN):
            call = Call(image, boxes, images, list(size), mode=mode, extrapolation_value=value)
            (y,) = run(context_on(device), composites.crop_and_resize, call)
            np.testing.assert_array_equal(y[1:5], np.full_like(y[1:5], value))
            assert (y[[0, 5, 6]] > 0).all()


def test_large_regions_end() -> None:
    """Samples far outside the image take no iterations."""
    rois = np.float32([[-1e6, -1e6, 1e7, 1e7], [-1e12, 0, 1e12, 1]])
    with ow.ml.create_context(device="reference"):
        y = np.asarray(composites.roi_align(IMAGE, rois, np.int64([0, 0])))
    assert np.isfinite(y).all()


# Data types, and how nodes run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("data_type", ["float32", "float16", "int32", "uint32", "int64", "uint64", "int8", "uint8"])
def test_resize_takes_all_data_types(data_type: str, device: str) -> None:
    x = np.arange(1, 13).astype(data_type).reshape(3, 4)
    context = context_on(device)
    (y,) = run(context, composites.resize, Call(x, sizes=[2, 7], coordinate_transformation_mode="asymmetric"))
    np.testing.assert_array_equal(y, x[[0, 1]][:, [0, 1, 1, 2, 2, 3, 3]])
    (y,) = run(
        context, composites.resize, Call(x, sizes=[3, 7], mode="linear", coordinate_transformation_mode="align_corners")
    )
    wide = np.stack([np.interp(np.arange(7) / 2, np.arange(4), row) for row in x.astype(float)])
    np.testing.assert_allclose(y, wide if data_type.startswith("float") else np.trunc(wide), rtol=1e-3)


@pytest.mark.parametrize(
    ("mode", "shape", "sizes"),
    [
        ("linear", (2, 3, 4, 5), (2, 3, 12, 15)),
        ("linear", (2, 3, 4, 5, 6), (2, 3, 12, 15, 18)),
        ("nearest", (2, 3, 4, 5), (2, 3, 12, 25)),
        ("nearest", (3, 4, 5), (3, 4, 11)),
    ],
)
def test_resize_of_batches_is_one_kernel(mode: str, shape: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil"}
    model, _ = node_model("Resize", [np.zeros(shape, "float32"), None, None, np.int64(sizes)], attributes)
    placements = ow.onnx.load(model, context_on(DEVICES[0])).placements()
    assert [placement.how for placement in placements] == ["native"]


def test_cubic_integers_saturate() -> None:
    x = np.uint8([[0, 0, 255, 255, 0, 0]])
    for device in DEVICES:
        (y,) = run(context_on(device), composites.resize, Call(x, sizes=[1, 24], mode="cubic"))
        assert (y.min(), y.max()) == (0, 255), device


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_float16_is_interpolated_in_float32(mode: str, device: str) -> None:
    random = np.random.default_rng(0)
    x, grid = random.standard_normal((2, 3, 5, 6)), random.uniform(-1.2, 1.2, (2, 4, 3, 2))
    halves = [x.astype("float16"), grid.astype("float16")]
    (y,) = run(context_on(device), composites.grid_sample, Call(*halves, mode=mode))
    (wide,) = run(context_on(device), composites.grid_sample, Call(*(a.astype("float32") for a in halves), mode=mode))
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, wide, rtol=1e-3, atol=1e-3)


def test_infinite_element_counts_where_it_has_weight() -> None:
    x = np.float32([[1, 2, INF, 4]])
    (y,) = run(context_on(DEVICES[0]), composites.resize, Call(x, sizes=[1, 8], mode="linear"))
    assert np.isfinite(y[0, :3]).all()
    assert not np.isfinite(y[0, 3:7]).any()


@pytest.mark.parametrize(
    ("op", "call", "message"),
    [
        (composites.resize, Call(IMAGE), "one of scales and sizes must be given"),
        (composites.resize, Call(IMAGE, sizes=[1], axes=[4]), "axes must be different integers in [0, 4), got (4,)"),
        (composites.resize, Call(IMAGE, sizes=[1, 1], axes=[1, 1]), "axes must be different integers in [0, 4)"),
        (composites.resize, Call(IMAGE, sizes=[0], axes=[1]), "sizes must be 1 positive integers"),
        (composites.resize, Call(IMAGE, sizes=[2**31], axes=[1]), "sizes must be in [1, 2**31), got 2147483648"),
        (composites.resize, Call(IMAGE, scales=[NAN], axes=[1]), "scales must be 1 positive finite numbers"),
        (composites.resize, Call(IMAGE, scales=[INF], axes=[1]), "scales must be 1 positive finite numbers"),
        (composites.resize, Call(IMAGE, scales=[-1.0], axes=[1]), "scales must be 1 positive finite numbers"),
        (composites.resize, Call(IMAGE, scales=[3e38], axes=[2]), "sizes must be in [1, 2**31)"),
        (composites.resize, Call(IMAGE, scales=[1e-9], axes=[2]), "sizes must be in [1, 2**31), got 0 for axis 2"),
        (composites.resize, Call(IMAGE, sizes=[2], axes=[1], cubic_coeff_a=NAN), "cubic_coeff_a must be finite"),
        (
            composites.resize,
            Call(IMAGE, sizes=[2], axes=[1], coordinate_transformation_mode="tf_crop_and_resize", roi=[0, NAN]),
            "roi must have a start and an end for each of 1 axes",
        ),
        (
            composites.resize,
            Call(IMAGE, scales=[2], axes=[1], keep_aspect_ratio_policy="not_larger"),
            "keep_aspect_ratio_policy 'not_larger' needs sizes",
        ),
        (
            composites.grid_sample,
            Call(IMAGE, np.zeros((1, 2, 2, 3), "float32")),
            "grid must have shape [1, new height, new width, 2], got float32[1, 2, 2, 3]",
        ),
        (composites.affine_grid, Call(np.zeros((1, 2, 3), "float32"), [2]), "sizes must be 2 or 3 positive integers"),
        (
            composites.affine_grid,
            Call(np.zeros((1, 2, 3), "float32"), [2, 2, 2]),
            "theta must have shape [batches, 3, 4]",
        ),
        (
            composites.roi_align,
            Call(IMAGE, np.zeros((1, 4), "float32"), np.int64([0]), sampling_ratio=2**16),
            "sampling_ratio must be in [0, 32768]",
        ),
        (
            composites.roi_align,
            Call(IMAGE, np.zeros((1, 4), "float32"), np.int64([0]), spatial_scale=NAN),
            "spatial_scale must be finite, got nan",
        ),
        (
            composites.crop_and_resize,
            Call(IMAGE, np.zeros((1, 5), "float32"), np.int64([0]), [1, 1]),
            "boxes must have shape [boxes, 4], got float32[1, 5]",
        ),
        (
            composites.crop_and_resize,
            Call(IMAGE, np.zeros((1, 4), "float32"), np.int64([0, 0]), [1, 1]),
            "batch_indices must have shape [1], one for each of boxes",
        ),
        (
            composites.crop_and_resize,
            Call(IMAGE, np.zeros((1, 4), "float32"), np.int64([0]), [1, 2**31]),
            "the width of the output must be in [1, 2**31), got 2147483648",
        ),
        (
            composites.crop_and_resize,
            Call(IMAGE, np.zeros((1, 4), "float32"), np.int64([0]), [None, 1]),
            "the height of the output must be an integer, got None",
        ),
        (
            composites.max_roi_pool,
            Call(IMAGE, np.zeros((1, 5), "float32"), pooled_shape=[1.5, 1]),
            "the height of the output must be an integer, got 1.5",
        ),
        (composites.max_roi_pool, Call(IMAGE, np.zeros((1, 4), "float32"), pooled_shape=[1, 1]), "[regions, 5]"),
        (
            composites.max_roi_pool,
            Call(IMAGE, np.zeros((1, 5), "float32"), pooled_shape=[0, 1]),
            "the height of the output must be in [1, 2**31), got 0",
        ),
        (composites.center_crop_pad, Call(IMAGE, [1, 2]), "sizes must be 4 positive integers, one for each axis"),
        (composites.center_crop_pad, Call(IMAGE, [2**31], axes=[1]), "sizes must be less than 2**31"),
    ],
)
def test_messages(op: CustomOp[Any], call: Call, message: str) -> None:
    with pytest.raises(ow.ValidationError) as raised:
        op(*call.args, **call.kwargs)
    assert str(raised.value).startswith(f"{op.name}: ")
    assert message in str(raised.value)


# Sizes that change ---------------------------------------------------------------------------------------------------

X, GRID = (1, 2, "height", "width"), (1, "rows", "columns", 2)
CHANGING: dict[str, Callable[[Any, Any, Any], Any]] = {
    "grid_sample": lambda b, x, grid: composites.grid_sample(b, x, grid, padding_mode="reflection"),
    "grid_sample of corners": lambda b, x, grid: composites.grid_sample(
        b, x, grid, padding_mode="reflection", align_corners=True
    ),
    "resize to sizes": lambda b, x, grid: composites.resize(b, x, sizes=[7, 9], axes=[2, 3], mode="cubic"),
    "resize by scales": lambda b, x, grid: composites.resize(b, x, scales=[2.5, 0.5], axes=[2, 3], mode="linear"),
    "resize to the size of another": lambda b, x, grid: composites.resize(
        b, x, sizes=list(grid.shape[1:3]), axes=[2, 3], mode="linear", coordinate_transformation_mode="align_corners"
    ),
    "affine_grid": lambda b, x, grid: composites.affine_grid(
        b, np.float32([[[1, 0.5, 0], [0, 2, 1]]]), list(grid.shape[1:3])
    ),
    "crop_and_resize": lambda b, x, grid: composites.crop_and_resize(
        b, x, np.float32([[0, 0.1, 0.9, 1]]), np.int64([0]), [4, 3]
    ),
    "center_crop_pad": lambda b, x, grid: composites.center_crop_pad(b, x, [4, 6], axes=[2, 3]),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CHANGING)
def test_sizes_with_names(name: str, device: str) -> None:
    random = np.random.default_rng(0)
    name_of_device, _, backend = device.rstrip(")").partition(" (")
    context = ow.ml.create_context(device=name_of_device, backend=backend, drafts=True)
    builder = ow.MLGraphBuilder(context)
    x, grid = builder.input("x", "float32", X), builder.input("grid", "float32", GRID)
    graph = builder.build({"y": CHANGING[name](builder, x, grid), "other": builder.abs(x), "names": builder.abs(grid)})
    for height, width, rows, columns in ((3, 4, 5, 2), (6, 5, 1, 7), (1, 2, 4, 4)):
        feed = {
            "x": random.standard_normal((1, 2, height, width)).astype("float32"),
            "grid": random.uniform(-2, 2, (1, rows, columns, 2)).astype("float32"),
        }
        y = context.compute(graph, feed)["y"]
        static = ow.MLGraphBuilder(context_on(device))
        operands = [static.input(key, "float32", array.shape) for key, array in feed.items()]
        same = static.build({"y": CHANGING[name](static, *operands)})
        expected = context_on(device).compute(same, {key: feed[key] for key in same.inputs})["y"]
        assert y.shape == expected.shape
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_old_modes_of_grid_sample() -> None:
    """Operator set 16 has other names."""
    grid = np.float32([[[[0.1, -0.3], [0.9, 1.4]]]])
    for old, new in (("bilinear", "linear"), ("bicubic", "cubic"), ("nearest", "nearest")):
        results = []
        for mode, opset in ((old, 16), (new, 20)):
            model, feed = node_model("GridSample", [IMAGE, grid], {"mode": mode}, opset=opset)
            session = InferenceSession(model, context_on(DEVICES[0]), fallback="error")
            results.append(session.run(None, feed)[0])
        np.testing.assert_array_equal(*results)
