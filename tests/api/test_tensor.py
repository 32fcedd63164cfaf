"""Tensors share memory with NumPy, ONNX Runtime and all that speaks DLPack, by address_of."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.arrays import address_of
from support.foreign import Foreign

import opweave as ow

context = ow.ml.create_context()


def test_numpy_shares_memory_both_ways() -> None:
    source = np.arange(6, dtype="float32").reshape(2, 3)
    tensor = context.tensor_from(source)
    assert (
        address_of(tensor.numpy())
        == address_of(source)
        == address_of(np.from_dlpack(tensor))
        == address_of(np.asarray(tensor))
    )
    tensor.numpy()[0, 0] = 42
    assert source[0, 0] == 42


def test_dlpack_shares_memory_both_ways() -> None:
    source = np.arange(6, dtype="float32")
    tensor = context.tensor_from(Foreign(source))
    assert address_of(tensor.numpy()) == address_of(source)
    own = context.create_tensor("float16", [4], readable=True, writable=True)
    assert address_of(np.from_dlpack(own)) == address_of(own.numpy())


def test_onnx_runtime_shares_memory_both_ways() -> None:
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.arange(6, dtype="float32"))
    tensor = context.tensor_from(value)
    assert address_of(tensor.numpy()) == value.data_ptr()
    back = onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())
    assert back.data_ptr() == value.data_ptr()


def test_dispatch_writes_into_foreign_memory() -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [3])
    graph = builder.build({"y": builder.add(x, x)})
    source, target = np.float32([1, 2, 3]), np.zeros(3, "float32")
    a, b = context.tensor_from(Foreign(source)), context.tensor_from(Foreign(target))
    ow.memory.copies.reset()
    context.dispatch(graph, {"x": a}, {"y": b})
    assert target.tolist() == [2, 4, 6]
    source += 1
    context.dispatch(graph, {"x": a}, {"y": b})
    assert target.tolist() == [4, 6, 8]
    assert ow.memory.copies.count == 0


def test_tensor_view_is_read_only_unless_writable() -> None:
    tensor = context.create_tensor("float32", [2], readable=True)
    with pytest.raises(ValueError, match="read-only"):
        tensor.numpy()[0] = 1
    frozen = np.zeros(2, "float32")
    frozen.flags.writeable = False
    adopted = context.tensor_from(frozen)
    assert adopted.writable is False
    with pytest.raises(ow.ValidationError, match="cannot make a read-only array writable"):
        context.tensor_from(frozen, writable=True)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((2, 3), "float32").T, r"needs a C-contiguous array, got shape \[3, 2\] with strides"),
        (np.zeros(4, "float32")[::-1], "needs a C-contiguous array"),
        (np.zeros(4, "float64"), "float64 is not a data type of WebNN"),
        (np.zeros(4, bool), "bool is not a data type of WebNN"),
        (np.zeros(4, ">i4"), "int32 must be in native byte order, got '>i4'"),
        (np.zeros(4, object), "object is not a data type of WebNN"),
        (np.zeros(0, "float32"), "shape must have dimensions in"),
        ([1, 2], "tensor_from takes an array, got list"),
        (None, "tensor_from takes an array, got NoneType"),
    ],
)
def test_tensor_from_rejects_value(value: Any, message: str) -> None:
    with pytest.raises(ow.ValidationError, match=message):
        context.tensor_from(value)


def test_buffers_are_for_contexts_on_webgpu_devices() -> None:
    with pytest.raises(
        ow.ValidationError, match=r"data_type and shape for a GPUBuffer, and this context is on cpu, not on"
    ):
        context.tensor_from(np.zeros(4, "float32"), "float32", [4])


def test_unaligned_memory_is_not_adopted() -> None:
    raw = np.zeros(17, np.uint8)[1:].view("float32")
    with pytest.raises(ow.ValidationError, match="aligned to its float32 elements"):
        context.tensor_from(raw)


def test_attributes() -> None:
    tensor = context.create_tensor("uint8", [2, 3], readable=True)
    assert (tensor.data_type, tensor.shape, tensor.readable, tensor.writable, tensor.constant) == (
        "uint8",
        (2, 3),
        True,
        False,
        False,
    )
    assert repr(tensor) == "<MLTensor uint8[2, 3], readable>"
    constant = context.create_constant_tensor("float32", [], np.float32(2))
    assert constant.constant
    assert constant.shape == ()


def test_scalars_and_buffers_of_every_kind() -> None:
    scalar = context.create_tensor("float32", [], readable=True, writable=True)
    context.write_tensor(scalar, np.float32(2.5))
    assert float(scalar.numpy()) == 2.5
    row = context.create_tensor("float32", [2], readable=True, writable=True)
    for data in (array.array("f", [1, 2]), memoryview(np.float32([1, 2])), Foreign(np.float32([1, 2]))):
        context.write_tensor(row, data)
        assert row.numpy().tolist() == [1, 2]


def test_tensor_from_keeps_memory_alive() -> None:
    tensor = context.tensor_from(np.full(1000, 7, "float32"))
    np.zeros(1000, "float32")
    assert (tensor.numpy() == 7).all()
