"""Composites and recurrent networks with CUDA against the reference, on a GPU (`make test-gpu`) or the processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.cuda_driver import HARDWARE, CpuDriver
from support.graphs import outputs_of
from triton_cases import array

import opweave as ow
from opweave import composites
from opweave.context.builder import NamedBuilder
from opweave.context.graph import program_of

REFERENCE = ow.ml.create_context(device="reference")


@pytest.fixture
def context(device_context: ow.MLContext) -> ow.MLContext:
    return device_context


def compare(context: ow.MLContext, build: Callable[..., Any], arrays: dict[str, np.ndarray]) -> None:
    ours, theirs = (outputs_of(each, build, arrays) for each in (context, REFERENCE))
    for name, expected in theirs.items():
        np.testing.assert_allclose(ours[name], expected, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights(context: ow.MLContext, bits: int, rows: int) -> None:
    weight = np.random.default_rng(0).integers(0, 256, (40, 8, 4 * bits)).astype(np.uint8)
    arrays = {"input": array(rows, 256), "weight": weight, "scale": np.abs(array(40, 8)) / 8}
    compare(context, lambda b, **operands: composites.matmul_n_bits(b, **operands, bits=bits, block_size=32), arrays)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("rows", [1, 9, 64])
@pytest.mark.parametrize("data_type", ["float16", "bfloat16"])
def test_products_read_constants_of_16_bits(context: ow.MLContext, data_type: str, rows: int) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    matrix = array(45, 96).astype(getattr(ml_dtypes, data_type, data_type))

    builder, x = NamedBuilder(context), array(rows, 96)
    b = builder.constant(matrix).cast("float32")
    graph = builder.build({"y": builder.gemm(builder.input("x", "float32", x.shape), b, b_transpose=True)})
    expected = x @ matrix.astype("float32").T
    result = context.compute(graph, {"x": x})["y"]
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5 * float(np.abs(expected).max()))
    runners: list[Any] = [step.part.runner for step in program_of(graph).steps if step.part]
    constants = [p for r in runners for step in r.steps for p in step.places if p.kind == "constant"]
    assert {place.desc.data_type for place in constants} == {data_type}


def cache(new: int, room: int) -> dict[str, np.ndarray]:
    arrays = {"query": array(2, new, 64), "key": array(2, new, 32), "value": array(2, new, 32)}
    arrays |= {"past_key": array(2, 2, room, 16), "past_value": array(2, 2, room, 16)}
    return {**arrays, "lengths": np.int32([room - new, 5])}


def attend(b: Any, **operands: Any) -> Any:
    return composites.group_query_attention(b, **operands, heads=4, groups=2)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("new", [1, 20])
def test_attention(context: ow.MLContext, new: int) -> None:
    compare(context, attend, cache(new, 300))


@pytest.mark.parametrize("bits", [8, 32])
def test_attention_with_a_constant_cache(context: ow.MLContext, bits: int) -> None:
    arrays = cache(2, 12)
    past = {name: arrays.pop(name) for name in ("past_key", "past_value")}
    if bits == 8:
        past = {name: (40 * values).astype(np.int8) for name, values in past.items()}
        past |= {f"{name}_scale": np.abs(array(2, 2, 12)) for name in tuple(past)}

    def build(b: Any, **operands: Any) -> Any:
        return attend(b, **operands, **{name: b.constant(values) for name, values in past.items()})[0]

    compare(context, build, arrays)


def test_attention_cache_is_updated_in_place(driver: CpuDriver, context: ow.MLContext) -> None:
    """Without the kernels that would copy it: a CUDA graph of its own."""
    arrays = cache(1, 40)
    builder = ow.MLGraphBuilder(context)
    operands = {name: builder.input(name, a.dtype.name, a.shape) for name, a in arrays.items()}  # type: ignore[arg-type]
    results = dict(zip(("y", "present_key", "present_value"), attend(builder, **operands), strict=True))
    graph = builder.build(results)
    wanted = context.compute(graph, arrays)
    tensors = {n: context.create_tensor(a.dtype.name, a.shape, readable=True, writable=True) for n, a in arrays.items()}  # type: ignore[arg-type]
    for name, values in arrays.items():
        context.write_tensor(tensors[name], values)
    outputs = {"y": context.create_tensor("float32", [2, 1, 64], readable=True)}
    outputs |= {"present_key": tensors["past_key"], "present_value": tensors["past_value"]}
    driver.calls.clear()
    context.dispatch(graph, tensors, outputs)
    assert HARDWARE or (driver.calls["graph"], driver.calls["launch"]) == (1, 1)
    for name, expected in wanted.items():
        np.testing.assert_allclose(context.read_tensor(outputs[name]), expected, rtol=1e-6, err_msg=name)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("hidden", [6, 267], ids=["in one kernel", "in a kernel a step"])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_recurrent_networks(context: ow.MLContext, name: str, hidden: int) -> None:
    gates = {"lstm": 4, "gru": 3}[name]
    arrays = {"input": array(7, 2, 5), "weight": array(2, gates * hidden, 5)}
    arrays |= {"recurrent_weight": array(2, gates * hidden, hidden) / hidden, "bias": array(2, gates * hidden)}

    def build(b: Any, input: Any, weight: Any, recurrent_weight: Any, bias: Any) -> Any:
        options = {"bias": bias, "direction": "both", "return_sequence": True}
        return tuple(getattr(b, name)(input, weight, recurrent_weight, 7, hidden, **options))

    compare(context, build, arrays)


def test_reshaped_constants(context: ow.MLContext) -> None:
    """Kernels of several stages compute those that depend on constants alone when the graph is built."""
    matrix = array(8, 2)

    def build(b: Any, input: Any, weight: Any) -> Any:
        return b.lstm(input, weight, b.reshape(b.constant(matrix), [1, 8, 2]), 3, 2)[0]

    compare(context, build, {"input": array(3, 2, 5), "weight": array(1, 8, 5)})
