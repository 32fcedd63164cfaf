"""Contractions of integers in CUDA C++, run on the processor as C++, against NumPy's integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import cuda_on_cpu
from triton_cases import run_steps, steps_of

import opweave as ow
from opweave import composites
from opweave.composites.quantized import requantize

F = cuda_on_cpu.FEATURES


def bytes_of(data_type: str, *shape: int) -> np.ndarray:
    info = np.iinfo(data_type)
    random = np.random.default_rng([*shape, *data_type.encode()])
    return random.integers(info.min, info.max, shape, endpoint=True).astype(data_type)


def check(build: Any, arrays: list[np.ndarray], wanted: np.ndarray, constants: tuple[int, ...]) -> None:
    steps = steps_of(build, arrays, constants, F)
    assert any("products_of_bytes" in step.kernel.source for step in steps)
    inputs = [array for number, array in enumerate(arrays) if number not in constants]
    np.testing.assert_array_equal(run_steps(steps, inputs).reshape(wanted.shape), wanted)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("constants", [(), (1,)])
@pytest.mark.parametrize("inner", [64, 301])
@pytest.mark.parametrize("types", [("uint8", "int8"), ("int8", "uint8"), ("int8", "int8")], ids="-".join)
def test_products(types: tuple[str, str], inner: int, constants: tuple[int, ...]) -> None:
    a, b = bytes_of(types[0], 2, 9, inner), bytes_of(types[1], inner, 37)
    zeros = bytes_of(types[0], 1), bytes_of(types[1], 37)
    wanted = (a.astype(int) - zeros[0]) @ (b.astype(int) - zeros[1])
    check(composites.integer_matmul, [a, b, *zeros], wanted, constants)
    check(composites.integer_matmul, [a, b], a.astype(int) @ b.astype(int), constants)


@pytest.mark.long
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("channels", [4, 7])
def test_convolutions(channels: int, groups: int) -> None:
    x, w = bytes_of("uint8", 2, groups * channels, 7, 6), bytes_of("int8", groups * 3, channels, 3, 2)
    zeros = bytes_of("uint8", 1), bytes_of("int8", groups * 3)
    image = np.pad(x.astype(int) - zeros[0], [(0, 0), (0, 0), (1, 2), (0, 1)])
    filter = w.astype(int) - zeros[1].reshape(-1, 1, 1, 1)
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 2), (2, 3))[:, :, ::2]
    parts = [
        np.einsum("nchwij,ocij->nohw", windows[:, g * channels : (g + 1) * channels], filter[g * 3 : (g + 1) * 3])
        for g in range(groups)
    ]

    def build(b: ow.MLGraphBuilder, *operands: Any) -> Any:
        return composites.integer_conv2d(b, *operands, padding=[1, 2, 0, 1], strides=[2, 1], groups=groups)

    check(build, [x, w, *zeros], np.concatenate(parts, 1), (1,))


@pytest.mark.long
def test_epilogues_read_sums_of_integers() -> None:
    """Operations after a product become part of its kernel; results of bytes take a kernel of their own."""
    a, b = bytes_of("int8", 6, 40), bytes_of("int8", 40, 8)

    def scaled(b: ow.MLGraphBuilder, x: Any, y: Any) -> Any:
        return b.mul(b.cast(composites.integer_matmul(b, x, y), "float32"), b.constant(np.float32(0.5)))

    steps = steps_of(scaled, [a, b], (1,), F)
    wanted = (a.astype(int) @ b.astype(int)) * 0.5
    np.testing.assert_array_equal(run_steps(steps, [a]).reshape(wanted.shape), wanted)
    half, zero = np.float32(0.5), np.int8(3)

    def quantised(b: ow.MLGraphBuilder, x: Any, y: Any) -> Any:
        scale, point = b.constant(half), b.constant(np.array(0, "int8"))
        last = b.constant(np.float32(64)), b.constant(np.asarray(zero))
        return requantize(b, composites.integer_matmul(b, x, y, point, point), scale, last[1])

    steps = steps_of(quantised, [a, b], (1,), F)
    wanted = np.clip(np.rint((a.astype(int) @ b.astype(int)) * 0.5) + 3, -128, 127).astype(np.int8)
    np.testing.assert_array_equal(run_steps(steps, [a]).view(np.int8).reshape(wanted.shape), wanted)
