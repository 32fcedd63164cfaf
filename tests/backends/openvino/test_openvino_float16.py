"""float16 on OpenVINO, whose plug-in for CPUs drops conversions to float16: `Emitter.round_to_float16` computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.graphs import run
from support.openvino_device import openvino_context

import opweave as ow

Build = Callable[[Any, Any], Any]

HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)


def near_halves() -> np.ndarray:
    """All float16, and float32 next to them and to the middle between two of them."""
    offsets = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 2**32 - 1], np.uint32)
    ends = np.array([65519.996, 65520, -65520, 1e9, 3e38, -3e38, 2**-25, -(2**-25), 1e-30, -1e-45], np.float32)
    return np.concatenate([(HALVES.view(np.uint32)[:, None] + offsets).ravel().view(np.float32), ends])


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    """Assert equal numbers, zeros with the same sign, and NaN in the same places."""
    np.testing.assert_array_equal(found, wanted)
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(wanted[numbers]))


@pytest.fixture(params=["float32", "ieee"])
def context(request: pytest.FixtureRequest) -> ow.MLContext:
    openvino_context()  # skips the test where openvino is not installed
    return ow.ml.create_context(backend="openvino", device="cpu", precision=request.param)


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("neighbour", ["alone", "after a product", "before a product", "twice"])
def test_cast_to_float16_rounds_every_number(context: ow.MLContext, neighbour: str, fuse: bool) -> None:
    """Normal and subnormal numbers, -0, what becomes infinite, and NaN."""

    def build(b: Any, x: Any) -> Any:
        if neighbour == "after a product":
            x = b.mul(b.mul(x, x), 1.0)
        y = b.cast(b.cast(x, "float16"), "float32")
        if neighbour == "twice":
            y = b.cast(b.cast(y, "float16"), "float32")
        return b.mul(y, b.tanh(y)) if neighbour == "before a product" else y

    x = near_halves()
    with np.errstate(all="ignore"):
        wanted = (x * x if neighbour == "after a product" else x).astype(np.float16).astype(np.float32)
    found = run(context, build, x, fuse=fuse)
    if neighbour == "before a product":
        with np.errstate(invalid="ignore"):  # signalling NaN
            np.testing.assert_allclose(found, wanted * np.tanh(wanted), rtol=1e-5, atol=1e-12)
    else:
        same(found, wanted)


@pytest.mark.parametrize("data_type", ["int32", "int64", "uint8", "int8"])
def test_cast_of_integers_to_float16_rounds(context: ow.MLContext, data_type: str) -> None:
    info = np.iinfo(data_type)  # type: ignore[type-var]
    x = np.concatenate([np.arange(max(info.min, -70_000), min(info.max, 70_000)), [info.min, info.max]]).astype(
        data_type
    )
    with np.errstate(over="ignore"):
        wanted = x.astype(np.float16).astype(np.float32)
    same(run(context, lambda b, x: b.cast(b.cast(x, "float16"), "float32"), x), wanted)


ONES = np.ones((2, 1), np.float16)

READERS: dict[str, Build] = {
    "matmul": lambda b, h: b.matmul(h, b.constant(ONES)),
    "gemm": lambda b, h: b.gemm(h, b.constant(ONES)),
    "conv2d": lambda b, h: b.conv2d(b.reshape(h, [1, 2, 1, 1]), b.constant(ONES.reshape(1, 2, 1, 1))),
    "reduce_sum": lambda b, h: b.reduce_sum(h),
    "softmax": lambda b, h: b.softmax(b.clamp(h, min_value=-60000, max_value=60000), 1),
    "mul": lambda b, h: b.add(b.mul(h, 0.5), 1024.0),
    "sub": lambda b, h: b.sub(b.slice(h, [0, 0], [1, 1]), b.slice(h, [0, 1], [1, 1])),
    "gather": lambda b, h: b.gather(h, b.constant(np.int32([1, 0])), axis=1),
    "where": lambda b, h: b.where(b.greater(h, 0.0), h, b.neg(h)),
    "integers": lambda b, h: b.cast(b.clamp(h, min_value=-60000, max_value=60000), "int32"),
    "comparison": lambda b, h: b.equal(h, 2048.0),
}


@pytest.mark.parametrize("numbers", [(2049, -2048), (70000, -70000), (4099, 2049)])
@pytest.mark.parametrize("data_type", ["float32", "int32", "int64"])
@pytest.mark.parametrize("reader", READERS)
def test_operations_read_rounded_float16(
    context: ow.MLContext, reader: str, data_type: str, numbers: tuple[int, int]
) -> None:
    x = np.array([numbers], data_type)
    reference = ow.ml.create_context(device="reference")
    found, wanted = (run(c, lambda b, x: READERS[reader](b, b.cast(x, "float16")), x) for c in (context, reference))
    np.testing.assert_array_equal(found, wanted)


def test_constants_and_casts_of_them_keep_subnormals_and_signs_of_zeros(context: ow.MLContext) -> None:
    chosen = np.ones(HALVES.shape, np.uint8)
    zeros = np.zeros(HALVES.shape, np.float16)
    for data_type in ("float16", "float32"):

        def build(b: Any, x: Any, data_type: str = data_type) -> Any:
            constant = b.constant(HALVES.astype(data_type))
            known = constant if data_type == "float16" else b.cast(constant, "float16")
            return b.where(x, known, b.constant(zeros))

        same(run(context, build, chosen), HALVES.astype(np.float16))


def test_neg_keeps_the_sign_of_zero(context: ow.MLContext) -> None:
    same(run(context, lambda b, x: b.neg(x), HALVES), -HALVES)


OPERATIONS: dict[str, Build] = {
    "mul": lambda b, x: b.mul(x, x),
    "several": lambda b, x: b.sub(b.mul(x, x), b.add(x, 0.1)),
    "div": lambda b, x: b.div(x, 3.0),
    "moved": lambda b, x: b.transpose(b.concat([b.add(x, 0.3), x], 0)),
    "sqrt": lambda b, x: b.sqrt(b.abs(x)),
}


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("name", OPERATIONS)
def test_float16_operations_round_in_ieee(name: str, fuse: bool) -> None:
    openvino_context()
    x = np.random.default_rng(0).uniform(-3, 3, (64, 8)).astype(np.float16)
    contexts = (
        ow.ml.create_context(backend="openvino", device="cpu", precision="ieee"),
        ow.ml.create_context(device="reference"),
    )
    found, wanted = (run(c, lambda b, x: b.cast(OPERATIONS[name](b, x), "float32"), x, fuse=fuse) for c in contexts)
    np.testing.assert_array_equal(found, wanted)


def normalised(b: Any, x: Any, bias: float) -> Any:
    images = b.reshape(x, [1, 8, 8, 8])
    return ow.composites.local_response_normalization(b, images, 3, alpha=0.5, beta=0.3, bias=bias)


NUMBERS: dict[str, Build] = {
    "linear": lambda b, x: b.linear(x, alpha=0.1, beta=3.3),
    "gemm": lambda b, x: b.gemm(x, b.constant(np.eye(8, dtype=np.float16)), alpha=0.1),
    "gemm of c": lambda b, x: b.gemm(b.mul(x, 0.0), b.constant(np.eye(8, dtype=np.float16)), c=x, beta=0.3),
    "leaky_relu": lambda b, x: b.leaky_relu(x, alpha=0.1),
    "hard_sigmoid": lambda b, x: b.hard_sigmoid(x, alpha=0.1, beta=0.3),
    "average_pool2d": lambda b, x: b.average_pool2d(
        b.reshape(x, [1, 8, 8, 8]), window_dimensions=[3, 3], padding=[3, 0, 0, 2], strides=[2, 1]
    ),
    "local_response_normalization": lambda b, x: normalised(b, x, 1.0),
    "local_response_normalization with a bias of 2": lambda b, x: normalised(b, x, 2.0),
    "local_response_normalization with a bias of 0.7": lambda b, x: normalised(b, x, 0.7),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_float16_operation_attributes_are_float32(context: ow.MLContext, name: str) -> None:
    """They were rounded to float16, so results were up to two units off."""
    x = np.random.default_rng(0).uniform(-3, 3, (64, 8)).astype(np.float16)
    found, wanted = (run(c, NUMBERS[name], x) for c in (context, ow.ml.create_context(device="reference")))
    with np.errstate(invalid="ignore"):
        steps = np.abs(found.view(np.int16).astype(int) - wanted.view(np.int16))
    # Numbers next to the middle between two float16 may be rounded to either.
    assert np.nanmean(steps[np.isfinite(wanted)] > 0) <= 0.005, steps.max()
    assert steps[np.isfinite(wanted)].max() <= 1


def test_explain_states_float32_intermediates_of_float16() -> None:
    openvino_context()
    texts = []
    for precision in ("float32", "ieee"):
        c = ow.ml.create_context(backend="openvino", device="cpu", precision=precision)  # type: ignore[arg-type]
        b = ow.MLGraphBuilder(c)
        y = b.matmul(b.input("x", "float16", [4, 4]), b.constant(np.eye(4, dtype=np.float16)))
        texts.append(str(b.build({"y": y}, fuse=False).explain()))
    assert ["float32 until stored" in text for text in texts] == [True, False], texts
