"""The four tests of interop (conv2d, add, relu) between arrays of another library on the device, without copies.

The arrays are PyTorch's on an NVIDIA GPU (`make test-gpu`), and those of a stand-in on the driver that runs on the processor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.cuda_driver import HARDWARE, CpuDriver, OnDevice, cuda_context

import opweave as ow
from opweave.memory import copies

SHAPE = (1, 100, 100, 100) if HARDWARE else (1, 3, 6, 5)
CHANNELS = SHAPE[1]
PADDING = (1, 1, 1, 1)


@dataclass(frozen=True)
class Library:
    """Another library with arrays on the device.

    Attributes:
        context: on its stream, if it has one.
        array: makes an array of it.
        address: of an array.
        read: an array as one of NumPy.
        add_relu: its own operations on an array, in place.
    """

    context: ow.MLContext
    array: Callable[[np.ndarray], Any]
    address: Callable[[Any], int]
    read: Callable[[Any], np.ndarray]
    add_relu: Callable[[Any, np.ndarray], None]


@cache
def library() -> Library:
    """PyTorch on a GPU; without one, arrays of the processor's memory behind DLPack."""
    if HARDWARE:
        import torch_on_cuda as on_cuda

        stream = on_cuda.torch_on_cuda().cuda.current_stream()
        return Library(
            ow.ml.create_context(cuda_stream=stream),
            on_cuda.to_device,
            lambda tensor: int(tensor.data_ptr()),
            lambda tensor: np.asarray(tensor.cpu().numpy()),
            on_cuda.add_relu,
        )
    context = cuda_context()
    driver: CpuDriver = context._space.driver  # type: ignore[attr-defined]

    def view(given: OnDevice) -> np.ndarray:
        found: np.ndarray = driver.bytes(given.address, given.desc.byte_length).view(given.desc.data_type)
        return found.reshape(given.desc.shape)

    def add_relu(given: OnDevice, bias: np.ndarray) -> None:
        view(given)[...] = np.maximum(view(given) + bias, 0)

    return Library(context, lambda array: OnDevice(driver, array), lambda a: a.address, view, add_relu)


@cache
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The image, the weights and the bias."""
    random = np.random.default_rng(0)
    weights = random.standard_normal((CHANNELS, CHANNELS, 3, 3), np.float32) / np.float32(3 * CHANNELS**0.5)
    return random.standard_normal(SHAPE, np.float32), weights, random.standard_normal((CHANNELS, 1, 1), np.float32)


@cache
def expected() -> np.ndarray:
    """The result in float64."""
    image, weights, bias = (array.astype(np.float64) for array in data())
    padded = np.pad(image[0], ((0, 0), (1, 1), (1, 1)))
    total = sum(
        np.einsum("oc,chw->ohw", weights[:, :, i, j], padded[:, i : i + SHAPE[2], j : j + SHAPE[3]])
        for i in range(3)
        for j in range(3)
    )
    return np.maximum(total + bias, 0)[None]  # type: ignore[no-any-return]


@ow.op
def plain_conv2d(self: Any, x: ow.MLOperand, weights: ow.MLOperand) -> Any:
    return x.desc


plain_conv2d.kernel(
    "cuda",
    """
    void main(int n, int o, int row, int column) {
        float sum = 0;
        for (int c = 0; c < x_shape[1]; c++)
            for (int i = 0; i < 3; i++)
                for (int j = 0; j < 3; j++) {
                    int r = row + i - 1, k = column + j - 1;
                    if (r < 0 || r >= x_shape[2] || k < 0 || k >= x_shape[3]) continue;
                    sum += x[n * x_strides[0] + c * x_strides[1] + r * x_strides[2] + k]
                        * weights[((o * x_shape[1] + c) * 3 + i) * 3 + j];
                }
        out[n * out_strides[0] + o * out_strides[1] + row * out_strides[2] + column] = sum;
    }
    """,
)


@ow.op
def biased(self: Any, x: ow.MLOperand, bias: ow.MLOperand) -> Any:
    return x.desc


biased.kernel("cuda", "void main(unsigned i) { out[i] = x[i] + bias[i / x_strides[1] % x_shape[1]]; }")


@ow.op
def clamped(self: Any, x: ow.MLOperand) -> Any:
    return x.desc


clamped.kernel("cuda", "void main(unsigned i) { out[i] = fmaxf(x[i], 0.0f); }")


@ow.expression
def biased_and_clamped(x: Any, bias: Any) -> Any:
    return ow.expr.relu(x + bias)


def built(make: Callable[[ow.MLGraphBuilder, Any, Any, Any], Any]) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(library().context)
    _, weights, bias = data()
    x = builder.input("x", "float32", SHAPE)
    return builder.build({"y": make(builder, x, builder.constant(weights), builder.constant(bias))}, fallback="error")


def check_convolved(found: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected(), rtol=1e-4, atol=1e-4)


def convolved(builder: ow.MLGraphBuilder, x: Any, weights: Any, bias: Any) -> Any:
    return builder.conv2d(x, weights, padding=PADDING)


WAYS: dict[str, Callable[[ow.MLGraphBuilder, Any, Any, Any], Any]] = {
    "1 all custom": lambda b, x, w, bias: clamped(biased(plain_conv2d(x, w), bias)),
    "3 kernels behind conv2d": lambda b, x, w, bias: clamped(biased(convolved(b, x, w, bias), bias)),
    "3 an expression behind conv2d": lambda b, x, w, bias: biased_and_clamped(convolved(b, x, w, bias), bias),
    "4 built in": lambda b, x, w, bias: b.relu(b.add(convolved(b, x, w, bias), bias)),
}


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("way", WAYS)
def test_interop_1_between_arrays_of_the_library(way: str) -> None:
    own, graph = library(), built(WAYS[way])
    source, target = own.array(data()[0]), own.array(np.full(SHAPE, np.nan, np.float32))
    x, y = own.context.tensor_from(source), own.context.tensor_from(target)
    addresses = [tensor.__cuda_array_interface__["data"][0] for tensor in (x, y)]  # type: ignore[attr-defined]
    assert addresses == [own.address(source), own.address(target)]
    before = copies.count
    for _ in range(2):
        own.context.dispatch(graph, {"x": x}, {"y": y})
    assert copies.count == before
    check_convolved(own.read(target))
    kinds = {place.how for place in graph.placements()}
    assert (kinds == {"kernel"}) == (way == "1 all custom")


def test_interop_2_through_the_host() -> None:
    own, graph = library(), built(convolved)
    x = own.context.tensor_from(own.array(data()[0]))
    between = own.context.create_tensor("float32", SHAPE, readable=True)
    target = own.array(np.zeros(SHAPE, np.float32))
    y = own.context.tensor_from(target, writable=True)
    before = copies.count
    own.context.dispatch(graph, {"x": x}, {"y": between})
    array = own.context.read_tensor(between)
    own.context.write_tensor(y, np.maximum(array + data()[2], 0))
    assert copies.count == before + 2
    check_convolved(own.read(target))


def test_interop_3_operations_of_the_library() -> None:
    own, graph = library(), built(convolved)
    target = own.array(np.zeros(SHAPE, np.float32))
    x, y = own.context.tensor_from(own.array(data()[0])), own.context.tensor_from(target)
    before = copies.count
    own.context.dispatch(graph, {"x": x}, {"y": y})
    own.add_relu(target, data()[2])
    assert copies.count == before
    check_convolved(own.read(target))
