"""`matmul_n_bits` on WebGPU devices: few rows read packed weights, more rows unpack them first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.webgpu_device import gpu_context
from support.webgpu_kernels import kernel_count

import opweave as ow
from opweave import composites

pytest.importorskip("wgpu", reason="wgpu is not installed")

Shape = tuple[int, ...]


def check_packed_product(
    shape: Shape, columns: int, given: str = "", *, kernels: int = 1, data_type: Any = "float32", **options: Any
) -> None:
    """Compare a product with the reference's; `given` names its optional operands."""
    generator, bits, block_size = np.random.default_rng(0), options.get("bits", 4), options.get("block_size", 32)
    blocks = -(-shape[-1] // block_size)
    arrays: dict[str, np.ndarray] = {
        "weight": generator.integers(0, 256, (columns, blocks, block_size * bits // 8)).astype("uint8"),
        "scale": generator.random((columns, blocks)).astype(data_type) / 8,
        "zero_point": generator.integers(0, 256, (columns, -(-blocks * bits // 8))).astype("uint8"),
        "minimum": generator.standard_normal((columns, blocks)).astype(data_type),
        "bias": generator.standard_normal(columns).astype(data_type),
    }
    arrays = {name: arrays[name] for name in ["weight", "scale", *given.split()]}
    x = generator.standard_normal(shape).astype(data_type)
    for constant in (True, False):
        results = []
        for context in (gpu_context(), ow.ml.create_context(device="reference")):
            builder = ow.MLGraphBuilder(context)
            operands = {
                name: builder.constant(a) if constant else builder.input(name, a.dtype.name, a.shape)  # type: ignore[arg-type]
                for name, a in arrays.items()
            }
            y = composites.matmul_n_bits(builder.input("x", data_type, x.shape), **operands, **options)
            graph = builder.build({"y": y})
            results.append(context.compute(graph, {"x": x} if constant else {"x": x, **arrays})["y"])
            if len(results) == 1:
                assert kernel_count(graph) == kernels, graph.explain()
        found, expected = (result.astype("float64") for result in results)
        tolerance = 1e-2 if data_type == "float16" else 2e-5
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("given", ["", "zero_point", "minimum bias"])
@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights_are_read_for_one_row(bits: int, given: str) -> None:
    check_packed_product((1, 256), 40, given, bits=bits)
    check_packed_product((1, 200), 37, given, bits=bits, block_size=16)


def test_rows_of_stacks() -> None:
    check_packed_product((2, 1, 3, 96), 9, "bias zero_point", data_type="float16")
    check_packed_product((8, 33), 3, "bias", block_size=64)


def test_packed_weights_are_unpacked_for_more_rows() -> None:
    check_packed_product((9, 100), 20, "bias", kernels=2)
    check_packed_product((2, 7, 64), 20, "zero_point", kernels=2, bits=8, data_type="float16")
