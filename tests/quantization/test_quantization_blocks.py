"""Rounding of weights to 8 and 4 bits, against plain loops and ONNX's evaluator."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from opweave.composites.packing import pack_codes
from opweave.quantization.blocks import (
    NarrowWeights,
    block_size_for,
    narrow_blocks,
    narrow_channels,
)

GENERATOR = np.random.default_rng(2)


def evaluate(narrow: NarrowWeights, dtype: int) -> np.ndarray:
    """The widened weights by ONNX's evaluator."""
    kind = TensorProto.INT8 if narrow.zero_point is None else TensorProto.UINT4
    tensors = [helper.make_tensor("q", kind, narrow.values.shape, narrow.values.ravel().tolist())]
    tensors.append(helper.make_tensor("s", dtype, narrow.scale.shape, narrow.scale.ravel().tolist()))
    if narrow.zero_point is not None:
        tensors.append(helper.make_tensor("z", kind, narrow.zero_point.shape, narrow.zero_point.ravel().tolist()))
    attributes = {"axis": narrow.axis} | ({"block_size": narrow.block_size} if narrow.block_size else {})
    node = helper.make_node("DequantizeLinear", [tensor.name for tensor in tensors], ["y"], **attributes)
    graph = helper.make_graph([node], "widen", [], [helper.make_empty_tensor_value_info("y")], tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (result,) = ReferenceEvaluator(proto).run(None, {})
    return np.asarray(result)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("shape", "axis"), [((5, 7), 0), ((5, 7), 1), ((4, 3, 2, 2), 0), ((3, 4, 5), 1)])
def test_channels_are_rounded_to_the_nearest_step(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    weights = (GENERATOR.standard_normal(shape) * 3).astype(dtype)
    narrow = narrow_channels(weights, axis)
    assert narrow.values.dtype == np.int8
    assert narrow.scale.shape == (shape[axis],)
    for index in range(shape[axis]):
        part, values = np.take(weights, index, axis).astype(np.float64), np.take(narrow.values, index, axis)
        step = float(narrow.scale[index])
        assert abs(values).max() == 127
        np.testing.assert_array_less(
            np.abs(values * step - part), step * 0.5001 + 1e-3 * step * (dtype == "float16") * 127
        )
    kind = TensorProto.FLOAT if dtype == "float32" else TensorProto.FLOAT16
    np.testing.assert_allclose(narrow.widen(), evaluate(narrow, kind), rtol=1e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("shape", "axis", "block"), [((64, 6), 0, 16), ((6, 64), 1, 32), ((3, 48, 2), 1, 24), ((2, 32, 3, 3), 1, 32)]
)
def test_blocks_lose_no_more_than_the_plain_rule(shape: tuple[int, ...], axis: int, block: int, bits: int) -> None:
    weights = GENERATOR.standard_normal(shape).astype(np.float32)
    weights[tuple(0 for _ in shape)] = 9  # an outlier
    narrow = narrow_blocks(weights, axis, block, bits)
    widened = narrow.widen()
    np.testing.assert_allclose(widened, evaluate(narrow, TensorProto.FLOAT), rtol=1e-6)
    assert narrow.scale.shape == tuple(n // block if k == axis else n for k, n in enumerate(shape))
    rows, wide = (np.moveaxis(array, axis, -1).reshape(-1, block).astype(np.float64) for array in (weights, widened))
    for row, new in zip(rows, wide, strict=True):
        if bits == 8:
            step = abs(row).max() / 127
            plain = np.rint(row / step) * step
        else:
            low, high = min(row.min(), 0), max(row.max(), 0)
            step = (high - low) / 15
            zero = np.rint(-low / step)
            plain = (np.clip(np.rint(row / step) + zero, 0, 15) - zero) * step
        assert np.square(new - row).sum() <= np.square(plain - row).sum() * 1.0001


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("value", [0.0, 1e-45, -1e-42, 1e-30, 3.0, -3.0, 3e38])
def test_blocks_of_one_value(value: float, bits: int) -> None:
    weights = np.full((32, 2), value, np.float32)
    narrow = narrow_blocks(weights, 0, 16, bits)
    assert np.isfinite(narrow.scale).all()
    assert (narrow.scale > 0).all()
    np.testing.assert_allclose(narrow.widen(), weights, rtol=0.04, atol=1e-38)


def test_pieces_of_large_weights_are_rounded_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = GENERATOR.standard_normal((5, 64, 7)).astype(np.float32)
    whole = narrow_blocks(weights, 1, 16, 4)
    monkeypatch.setattr("opweave.quantization.blocks.PIECE_ELEMENTS", 40)
    pieces = narrow_blocks(weights, 1, 16, 4)
    np.testing.assert_array_equal(whole.values, pieces.values)
    np.testing.assert_array_equal(whole.scale, pieces.scale)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8])
def test_pack_is_that_of_onnx(count: int) -> None:
    values = GENERATOR.integers(0, 16, count).astype(np.uint8)
    tensor = helper.make_tensor("q", TensorProto.UINT4, [count], values.tolist())
    raw = bytes(byte & 0xFF for byte in tensor.int32_data) if not tensor.raw_data else tensor.raw_data
    assert pack_codes(values, 4).tobytes() == raw


@pytest.mark.parametrize("requested", [16, 32, 64, 100, 128])
def test_block_sizes_divide_the_axis(requested: int) -> None:
    for size in range(1, 700):
        block = block_size_for(size, requested)
        assert block == 0 or (size % block == 0 and 12 <= block <= 2 * requested)
        if size % requested == 0 and requested & (requested - 1) == 0:
            assert block == requested
