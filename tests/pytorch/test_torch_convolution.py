"""Convolution, pooling and resampling against PyTorch's: a witness that shares nothing with this project."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opweave as ow

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test-torch` installs it")
functional = torch.nn.functional

CONTEXTS = {device: ow.ml.create_context(device=device) for device in ("cpu", "reference")}
random = np.random.default_rng(0)


def compute_constants(device: str, name: str, *arrays: np.ndarray, **options: Any) -> np.ndarray:
    context = CONTEXTS[device]
    builder = ow.MLGraphBuilder(context)
    operands = [builder.constant(array) for array in arrays]
    options = {k: builder.constant(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    result = getattr(builder, name)(*operands, **options)
    return context.compute(builder.build({"y": result}), {})["y"]


def normal(*shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype("float32")


def tensors(x: np.ndarray, w: np.ndarray, bias: np.ndarray) -> tuple[Any, Any, Any]:
    return torch.tensor(x), torch.tensor(w), torch.tensor(bias)


def both(pair: tuple[int, int]) -> list[int]:
    """PyTorch's padding, the same on either side, as ours."""
    return [pair[0], pair[0], pair[1], pair[1]]


@pytest.mark.parametrize("device", CONTEXTS)
@pytest.mark.parametrize("padding", [(0, 0), (2, 1)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1)])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_conv2d(
    device: str, padding: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], groups: int
) -> None:
    x, w, bias = normal(2, 4, 9, 8), normal(8, 4 // groups, 3, 2), normal(8)
    wanted = functional.conv2d(*tensors(x, w, bias), stride, padding, dilation, groups)
    options = {"padding": both(padding), "strides": stride, "dilations": dilation, "groups": groups, "bias": bias}
    np.testing.assert_allclose(compute_constants(device, "conv2d", x, w, **options), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", CONTEXTS)
@pytest.mark.parametrize("padding", [(0, 0), (2, 1)])
@pytest.mark.parametrize(("stride", "more"), [((1, 1), (0, 0)), ((2, 3), (1, 0)), ((2, 3), (0, 2))])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 3)])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_conv_transpose2d(
    device: str,
    padding: tuple[int, int],
    stride: tuple[int, int],
    more: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> None:
    x, w, bias = normal(2, 4, 5, 4), normal(4, 3, 3, 2), normal(3 * groups)
    wanted = functional.conv_transpose2d(*tensors(x, w, bias), stride, padding, more, groups, dilation)
    options = {"padding": both(padding), "strides": stride, "dilations": dilation, "groups": groups, "bias": bias}
    for sizes in ({"output_padding": more}, {"output_sizes": wanted.shape[2:]}):
        got = compute_constants(device, "conv_transpose2d", x, w, **options, **sizes)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", CONTEXTS)
@pytest.mark.parametrize("padding", [(0, 0), (1, 1)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("ceil", [False, True])
def test_pooling(device: str, padding: tuple[int, int], stride: tuple[int, int], ceil: bool) -> None:
    x, window = normal(2, 3, 8, 9), (3, 2)
    t, place = torch.tensor(x), (window, stride, padding)
    options = {"window_dimensions": window, "strides": stride, "padding": both(padding)}
    rounding = "ceil" if ceil else "floor"
    largest = functional.max_pool2d(t, *place, ceil_mode=ceil)
    average = functional.avg_pool2d(t, *place, ceil_mode=ceil, count_include_pad=False)
    # PyTorch leaves out windows that would begin in the padding at the end, or beyond the input.
    for name, wanted in {"max_pool2d": largest, "average_pool2d": average}.items():
        got = compute_constants(device, name, x, **options, output_shape_rounding=rounding)
        got = got[:, :, : wanted.shape[2], : wanted.shape[3]]
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("device", CONTEXTS)
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
def test_l2_pool2d(device: str, stride: tuple[int, int]) -> None:
    x = normal(2, 3, 8, 9)
    wanted = functional.lp_pool2d(torch.tensor(x), 2.0, (3, 2), stride)
    got = compute_constants(device, "l2_pool2d", x, window_dimensions=(3, 2), strides=stride)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("device", CONTEXTS)
@pytest.mark.parametrize("sizes", [(12, 14), (3, 4), (5, 20), (6, 7), (1, 1)])
def test_linear_resampling(device: str, sizes: tuple[int, int]) -> None:
    x = normal(2, 3, 6, 7)
    wanted = functional.interpolate(torch.tensor(x), sizes, mode="bilinear", align_corners=False)
    got = compute_constants(device, "resample2d", x, mode="linear", sizes=sizes)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", CONTEXTS)
@pytest.mark.parametrize("sizes", [(10, 14), (4, 3), (3, 20), (5, 7), (9, 10)])
def test_nearest_resampling(device: str, sizes: tuple[int, int]) -> None:
    """Of odd sizes, where no position lies half-way between two elements: there PyTorch takes the upper one."""
    x = normal(2, 3, 5, 7)
    wanted = functional.interpolate(torch.tensor(x), sizes, mode="nearest-exact")
    np.testing.assert_array_equal(compute_constants(device, "resample2d", x, sizes=sizes), wanted)
