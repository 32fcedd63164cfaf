"""Memory shared with other libraries by DLPack, on a driver of the processor's memory (`cuda_driver`).

Producers and consumers are made of the structures themselves; NumPy is the witness of how those are laid out, and PyTorch in
tests/pytorch.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from typing import Any

import numpy as np
import pytest
from support.cuda_driver import CpuDriver, OnDevice, context_on
from support.foreign import OnHost

import opweave as ow
from opweave.backends.cuda import sharing
from opweave.core.dtypes import ANY, DataType
from opweave.core.graph import Desc
from opweave.memory import copies, dlpack

CUDA = (dlpack.CUDA, 0)


def negated(context: ow.MLContext, shape: tuple[int, ...] = (2, 3)) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    return builder.build({"y": builder.neg(builder.input("x", "float32", shape))})


@pytest.mark.parametrize("shape", [(2, 3, 4), (5,), ()])
@pytest.mark.parametrize("data_type", ANY)
def test_numpy_and_opweave_read_each_others_capsules(data_type: DataType, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(data_type)
    references = sys.getrefcount(array)
    found = np.from_dlpack(OnHost(array))
    np.testing.assert_array_equal(found, array)
    assert found.ctypes.data == array.ctypes.data
    for producer in (array, OnHost(array), OnHost(array, read_only=True)):
        taken = dlpack.take(producer, None)
        assert (taken.address, taken.data_type, taken.shape) == (array.ctypes.data, data_type, shape)
        assert taken.strides in (None, tuple(step // array.itemsize for step in array.strides))
        assert (taken.device, taken.read_only) == ((dlpack.CPU, 0), getattr(producer, "read_only", False))
    del found, taken, producer
    assert sys.getrefcount(array) == references


def test_memory_lives_until_the_consumer_is_done() -> None:
    array = np.zeros(3, np.float32)
    references = sys.getrefcount(array)
    for version in (None, (1, 0)):
        capsule = OnHost(array).__dlpack__(max_version=version)
        assert sys.getrefcount(array) > references
        del capsule  # which no consumer has looked into
        assert sys.getrefcount(array) == references
    taken = dlpack.take(OnHost(array), None)
    thread = threading.Thread(target=lambda held: held.clear(), args=([taken],))  # the last reference ends elsewhere
    del taken
    thread.start()
    thread.join()
    del thread
    assert sys.getrefcount(array) == references


def test_dlpack_rejects_invalid_capsule() -> None:
    with pytest.raises(ow.ValidationError, match="__dlpack__ must return a capsule with a tensor, got 3"):
        dlpack.ImportedTensor(3)
    capsule = OnHost(np.zeros(3, np.float32)).__dlpack__()
    dlpack.ImportedTensor(capsule)
    with pytest.raises(
        ow.ValidationError, match='must return a capsule with a tensor, got <capsule object "used_dltensor"'
    ):
        dlpack.ImportedTensor(capsule)
    with pytest.raises(BufferError, match="is not writable, which DLPack before version 1 cannot say"):
        OnHost(np.zeros(3, np.float32), read_only=True).__dlpack__()


def test_dlpack_rejects_newer_version() -> None:
    array = np.zeros(3, np.float32)
    references = sys.getrefcount(array)
    capsule = OnHost(array).__dlpack__(max_version=(1, 0))
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    ctypes.c_uint32.from_address(pointer(capsule, b"dltensor_versioned")).value = 2
    with pytest.raises(ow.ValidationError, match="__dlpack__ returned version 2, known is 1"):
        dlpack.ImportedTensor(capsule)
    del capsule
    gc.collect()
    assert sys.getrefcount(array) == references


# ---------------------------------------------------------------------------------------------------------------------
# On the device


@pytest.mark.parametrize("old", [False, True])
def test_arrays_are_used_without_a_copy(driver: CpuDriver, context: ow.MLContext, old: bool) -> None:
    graph, array = negated(context), np.float32([[1, -2, 3], [-4, 5, -6]])
    x, y = OnDevice(driver, array, old=old), OnDevice(driver, np.zeros_like(array), old=old)
    before = copies.count
    given, target = context.tensor_from(x), context.tensor_from(y)
    context.dispatch(graph, {"x": given}, {"y": target})
    assert copies.count == before
    np.testing.assert_array_equal(driver.memory[y.address].array.view(np.float32).reshape(2, 3), -array)
    assert (x.streams, y.streams) == ([driver.stream], [driver.stream])  # the producer lets that one wait, once
    assert (given.data_type, given.shape, given.writable) == ("float32", (2, 3), True)


def test_dlpack_default_stream_is_1() -> None:
    driver = CpuDriver(stream=0)
    x = OnDevice(driver, np.zeros((2, 3), np.float32))
    tensor = context_on(driver).tensor_from(x)
    assert x.streams == [1]
    tensor.__dlpack__()
    tensor.__dlpack__(stream=7)
    assert driver.waits == ["0x1 for 0x0", "0x7 for 0x0"]


def test_tensor_from_keeps_array_until_work_is_done(driver: CpuDriver, context: ow.MLContext) -> None:
    x = OnDevice(driver, np.zeros((2, 3), np.float32))
    references = sys.getrefcount(x)
    tensor = context.tensor_from(x)
    assert sys.getrefcount(x) > references
    del tensor
    gc.collect()
    (retired,) = driver.retired
    assert isinstance(retired, dlpack.ImportedTensor)  # by the driver, for as long as the stream needs it
    driver.retired.clear()
    del retired
    assert sys.getrefcount(x) == references


def test_read_only_arrays_are_inputs(driver: CpuDriver, context: ow.MLContext) -> None:
    x = OnDevice(driver, np.ones((2, 3), np.float32))
    x.read_only = True
    tensor, graph = context.tensor_from(x), negated(context)
    assert (tensor.readable, tensor.writable) == (True, False)
    assert (context.compute(graph, {"x": tensor})["y"] == -1).all()
    with pytest.raises(ow.ValidationError, match="tensor_from cannot make a read-only array writable"):
        context.tensor_from(x, writable=True)
    with pytest.raises(ow.ValidationError, match="dispatch: output 'y' is read-only memory"):
        context.dispatch(graph, {"x": context.create_tensor("float32", [2, 3])}, {"y": tensor})


def on(kind: int, number: int) -> dict[str, Any]:
    return {"device": (kind, number)}


@pytest.mark.parametrize(
    ("array", "options", "text"),
    [
        (np.zeros(3, np.float32), on(1, 0), "create_tensor and write_tensor take OnDevice of the CPU"),
        (np.zeros(3, np.float32), on(10, 0), "an array in the memory of an NVIDIA GPU, got one on DLPack's device 10"),
        (np.zeros(3, np.float32), on(2, 1), "the array is on device 1, the context on 0"),
        (np.zeros(3, np.float32), {"offset": 8}, "must be aligned to 16 bytes, its address is 0x"),
    ],
)
def test_tensor_from_rejects_invalid_device_array(
    driver: CpuDriver, context: ow.MLContext, array: np.ndarray, options: Any, text: str
) -> None:
    with pytest.raises(ow.ValidationError) as caught:
        context.tensor_from(OnDevice(driver, array, **options))
    assert text in str(caught.value)


def test_tensor_from_rejects_other_descriptor(driver: CpuDriver, context: ow.MLContext) -> None:
    x = OnDevice(driver, np.zeros((2, 3), np.float32))
    assert context.tensor_from(x, "float32", [2, 3]).shape == (2, 3)
    with pytest.raises(ow.ValidationError, match=r"tensor_from: the array is float32\[2, 3\], not float32\[3, 2\]"):
        context.tensor_from(x, "float32", [3, 2])
    with pytest.raises(ow.ValidationError, match="takes data_type and shape, or neither, got 'float32' and None"):
        context.tensor_from(x, "float32")
    with pytest.raises(
        ow.ValidationError, match=r"takes an array with __dlpack__ or __cuda_array_interface__ on CUDA .* int"
    ):
        context.tensor_from(3)


@pytest.mark.long
def test_tensors_are_lent(driver: CpuDriver, context: ow.MLContext) -> None:
    tensor = context.create_tensor("float32", [2, 3], readable=True, writable=True)
    context.write_tensor(tensor, np.arange(6, dtype=np.float32))
    assert tensor.__dlpack_device__() == CUDA
    taken = dlpack.take(tensor, 0xCAFE)
    assert driver.waits == ["0xcafe for 0x5eed"]
    assert (taken.device, taken.data_type, taken.shape, taken.read_only) == (CUDA, "float32", (2, 3), False)
    lent = driver.bytes(taken.address, 24).view(np.float32)
    lent[0] = 17
    assert context.read_tensor(tensor)[0, 0] == 17  # the same memory
    freed = driver.calls["free_shared"]
    tensor.destroy()
    del tensor
    gc.collect()
    assert (driver.calls["free_shared"], lent[1]) == (freed, 1)  # the consumer has it still
    del taken, lent
    gc.collect()
    assert driver.calls["free_shared"] == freed + 1  # which waits for the streams of others
    other = context_on(driver)
    held = context.create_tensor("float32", [2, 3], readable=True, writable=True)
    assert other.tensor_from(held).shape == (2, 3)  # tensors of other contexts are arrays like others


def test_streams_of_the_consumer(driver: CpuDriver, context: ow.MLContext) -> None:
    tensor = context.create_tensor("float32", [2], readable=True, writable=True)
    tensor.__dlpack__(stream=-1)
    assert driver.waits == []
    tensor.__dlpack__(stream=None)
    assert driver.waits == ["0x1 for 0x5eed"]
    with pytest.raises(ow.ValidationError, match="the stream 0 is ambiguous; 1 is the default stream"):
        tensor.__dlpack__(stream=0)
    for options in ({"copy": True}, {"dl_device": (1, 0)}):
        with pytest.raises(BufferError, match="is lent where it is"):
            tensor.__dlpack__(**options)
    tensor.__dlpack__(dl_device=CUDA, copy=False)


@pytest.mark.parametrize("data_type", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "int4"])
def test_interface_refuses_types_without_a_code(data_type: Any, context: ow.MLContext) -> None:
    with pytest.raises(AttributeError, match=f"has no code for {data_type}"):
        sharing.interface(0, Desc(data_type, (2,)), context.backend.space.driver, read_only=True)  # type: ignore[attr-defined]


def test_flags_of_tensors_count(context: ow.MLContext) -> None:
    hidden = context.create_tensor("float32", [2])
    with pytest.raises(ow.ValidationError, match="was not created with readable=True"):
        hidden.__dlpack__()
    constant_like = context.create_tensor("float32", [2], readable=True)
    assert dlpack.take(constant_like, 1).read_only
    assert constant_like.__cuda_array_interface__["data"][1]  # type: ignore[attr-defined]
    with pytest.raises(BufferError, match="create it with writable=True"):
        constant_like.__dlpack__()
