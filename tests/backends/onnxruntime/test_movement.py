"""How ONNX Runtime is told to move and pick elements: no more than needed, and not what its optimiser makes of it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import opweave as ow
from opweave.backends.onnxruntime import ort
from opweave.core.dtypes import ANY, DataType
from opweave.core.graph import Graph

ORT = ow.ml.create_context(device="cpu")
REFERENCE = ow.ml.create_context(device="reference")

X = np.arange(-12, 12, dtype="float32").reshape(4, 6)

Build = Callable[[ow.MLGraphBuilder, ow.MLOperand], ow.MLOperand]


def compute_movement(context: ow.MLContext, build: Build, array: np.ndarray) -> np.ndarray:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", array.dtype.name, array.shape)
    return context.compute(builder.build({"y": builder.identity(build(builder, x))}), {"x": array})["y"]


def emitted(build: Build, array: np.ndarray) -> list[str]:
    """The ONNX operators that a graph of one input becomes."""
    builder = ow.MLGraphBuilder(ORT)
    x = builder.input("x", array.dtype.name, array.shape)
    ctx, _, _ = ort.emit_graph(Graph.reaching({"y": build(builder, x)}))
    return [node.op_type for node in ctx.nodes]


@pytest.mark.parametrize(
    "build",
    [
        lambda b, x: b.concat([x], 1),
        lambda b, x: b.expand(x, [4, 6]),
        lambda b, x: b.pad(x, [0, 0], [0, 0]),
        lambda b, x: b.reshape(x, [4, 6]),
        lambda b, x: b.reverse(x, axes=[]),
        lambda b, x: b.slice(x, [0, 0], [4, 6]),
        lambda b, x: b.split(x, 1)[0],
        lambda b, x: b.tile(x, [1, 1]),
        lambda b, x: b.transpose(x, permutation=[0, 1]),
    ],
)
def test_movement_without_effect_is_not_emitted(build: Build) -> None:
    assert emitted(build, X) == []
    np.testing.assert_array_equal(compute_movement(ORT, build, X), X)


@pytest.mark.parametrize(
    ("build", "operators"),
    [
        (lambda b, x: b.reverse(x), ["Slice"]),
        (lambda b, x: b.pad(x, [1, 1], [0, 0], mode="edge"), ["Pad"]),
        (lambda b, x: b.tile(x, [1, 2]), ["Tile"]),
        (lambda b, x: b.triangular(x), ["Trilu"]),
        (lambda b, x: b.gather(x, b.constant(np.array([5, -1], "int32")), axis=1), ["Gather"]),
        (lambda b, x: b.gather(x, b.constant(np.array([6, -9], "int32")), axis=1), ["Gather"]),
        (lambda b, x: b.gather(x, b.constant(np.array([2**32 - 1], "uint32")), axis=1), ["Gather"]),
        (lambda b, x: b.gather_nd(x, b.constant(np.array([[3, 9]], "int32"))), ["GatherND"]),
        (lambda b, x: b.gather_elements(x, b.constant(np.full((1, 6), -7))), ["GatherElements"]),
        (lambda b, x: b.scatter_elements(x, b.constant(np.full((1, 6), 9)), x[:1]), ["Slice", "ScatterElements"]),
        (
            lambda b, x: b.scatter_nd(x, b.constant(np.array([[2**40, -(2**40)]])), x[0, :1]),
            ["Slice", "Reshape", "ScatterND"],
        ),
    ],
)
def test_constant_indices_are_clamped_at_build_time(build: Build, operators: list[str]) -> None:
    assert emitted(build, X) == operators
    np.testing.assert_array_equal(compute_movement(ORT, build, X), compute_movement(REFERENCE, build, X))


def test_constant_indices_in_range_are_not_copied() -> None:
    indices = np.arange(6)

    def build(b: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
        return b.gather(x, b.constant(indices), axis=1)

    builder = ow.MLGraphBuilder(ORT)
    graph = Graph.reaching({"y": build(builder, builder.input("x", "float32", X.shape))})
    ctx, _, _ = ort.emit_graph(graph)
    assert [np.shares_memory(value, indices) for value in ctx.constants.values()] == [True]


@pytest.mark.parametrize("mode", ["constant", "edge"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_pad_before_max_pool2d_keeps_zeros(mode: Any, layout: Any) -> None:
    """The engine's optimiser takes them for padding of the maximum, which is -inf."""

    def build(b: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
        rim = [0, 1, 1, 0] if layout == "nhwc" else [0, 0, 1, 1]
        padded = b.pad(x, rim, rim, mode=mode)
        return b.max_pool2d(padded, window_dimensions=[2, 2], padding=[0, 1, 0, 1], layout=layout)

    negative = -1 - np.arange(16, dtype="float32").reshape((1, 4, 4, 1) if layout == "nhwc" else (1, 1, 4, 4))
    wanted = compute_movement(REFERENCE, build, negative)
    assert (wanted.max() == 0) == (mode == "constant")
    np.testing.assert_array_equal(compute_movement(ORT, build, negative), wanted)


@pytest.mark.parametrize("context", [ORT, REFERENCE], ids=["onnxruntime", "reference"])
def test_split_and_concat_of_8192_tensors(context: ow.MLContext) -> None:
    x = np.arange(8192 + 100, dtype="int32")

    def build(b: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
        parts = b.split(x, [101, *[1] * 8191])
        assert [part.shape for part in parts[:3]] == [(101,), (1,), (1,)]
        return b.concat(parts[::-1], 0)

    got = compute_movement(context, build, x)
    np.testing.assert_array_equal(got[:8191], x[:100:-1])
    np.testing.assert_array_equal(got[8191:], x[:101])


@pytest.mark.parametrize("data_type", ANY)
def test_movement_keeps_all_bits(data_type: Any) -> None:
    """All bits of the widest values, and of negative zero, arrive."""
    kind = np.dtype(data_type)
    low, high = (
        (np.finfo(kind).min, np.finfo(kind).max) if kind.kind == "f" else (np.iinfo(kind).min, np.iinfo(kind).max)
    )
    x = np.array([low, high, 0, 1, 3, high, low, high], kind).reshape(2, 4)
    x[1, 1:3] = -x[0, 2] if kind.kind == "f" else high // 2 + 1, high - 1  # -0.0, and the highest bit alone

    def build(b: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
        y = b.tile(b.triangular(b.pad(x, [1, 0], [0, 1], mode="edge"), diagonal=-1), [2, 1])
        z = b.transpose(b.concat([y, b.reverse(y)], 1))
        return b.expand(b.reshape(z, [1, *z.shape]), [2, *z.shape])

    got, wanted = compute_movement(ORT, build, x), compute_movement(REFERENCE, build, x)
    assert got.tobytes() == wanted.tobytes()


def a_step(b: ow.MLGraphBuilder, x: ow.MLOperand, draw: Callable[[st.SearchStrategy[Any]], Any]) -> ow.MLOperand:
    """One more operation on `x`, which has at least one dimension."""
    axis = draw(st.integers(0, x.rank - 1))
    size = x.shape[axis]
    some = draw(st.integers(1, size))
    match draw(st.sampled_from(["turn", "flip", "cut", "rim", "copy", "join", "part", "pick", "flat", "half", "add"])):
        case "turn":
            return b.transpose(x, permutation=draw(st.permutations(range(x.rank))))
        case "flip":
            return b.reverse(x, axes=[axis])
        case "cut":
            return x[(slice(None),) * axis + (slice(size - some, None, draw(st.integers(1, 2))),)]
        case "rim":
            rim = [int(d == axis and size > 1) for d in range(x.rank)]
            return b.pad(x, rim, rim, mode=draw(st.sampled_from(["constant", "edge", "reflection"])))
        case "copy":
            return b.tile(x, [1 + (d == axis and size < 20) for d in range(x.rank)])
        case "join":
            return b.concat([x, b.reverse(x)], axis) if size < 20 else x
        case "part":
            return b.split(x, [some, size - some], axis=axis)[draw(st.integers(0, 1))] if some < size else x
        case "pick":
            indices = np.array(draw(st.lists(st.integers(-size - 2, size + 2), min_size=1, max_size=4)))
            return b.gather(x, b.constant(indices), axis=axis)
        case "flat":
            return b.reshape(x, [prod(x.shape[: axis + 1]), prod(x.shape[axis + 1 :])])
        case "half":
            return b.triangular(x, upper=draw(st.booleans())) if x.rank > 1 else x
    return x + 1


@pytest.mark.long
@settings(max_examples=150)
@given(st.data())
def test_chains_agree_with_reference(data: st.DataObject) -> None:
    """The engine's optimiser merges and moves such operations."""
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    data_type: DataType = data.draw(st.sampled_from(ANY))
    seed = data.draw(st.integers(0, 2**32 - 1))
    chain = {context: ow.MLGraphBuilder(context) for context in (ORT, REFERENCE)}
    ends = {context: b.input("x", data_type, shape) for context, b in chain.items()}
    for _ in range(data.draw(st.integers(1, 8))):
        drawn: list[Any] = []

        def again(_: Any, drawn: list[Any] = drawn) -> Any:
            return drawn.pop(0)

        def first(strategy: st.SearchStrategy[Any], drawn: list[Any] = drawn) -> Any:
            drawn.append(data.draw(strategy))
            return drawn[-1]

        ends[ORT] = a_step(chain[ORT], ends[ORT], first)
        ends[REFERENCE] = a_step(chain[REFERENCE], ends[REFERENCE], again)
    x = np.random.default_rng(seed).integers(0, 100, shape).astype(data_type)
    got, wanted = (c.compute(chain[c].build({"y": chain[c].identity(ends[c])}), {"x": x})["y"] for c in chain)
    np.testing.assert_array_equal(got, wanted)


INDICES = [0, 2, -3, 3, -4, 2**24 + 1, -(2**24) - 1, 2**31, -(2**31) - 1, 2**32 + 1, 2**53 + 1, 2**63 - 1, -(2**63)]


@pytest.mark.parametrize("size", [3, 2**24, 2**24 + 1])
def test_indices_of_64_bits_are_clamped_exactly(size: int) -> None:
    """float32, in which indices of small axes are clamped, does not hold all of them."""
    near = [size - 2, size - 1, size, size + 1, 1 - size, -size, -size - 1]
    indices = np.int64(INDICES + near)
    positions = np.where(indices < 0, np.maximum(indices, -size) + size, np.minimum(indices, size - 1))
    array = (np.arange(size) % 251).astype("uint8")
    builder = ow.MLGraphBuilder(ORT)
    x, i = builder.input("x", "uint8", [size]), builder.input("i", "int64", [indices.size])
    results = {"gather": builder.gather(x, i), "elements": builder.gather_elements(x, i)}
    results["nd"] = builder.gather_nd(x, builder.reshape(i, [indices.size, 1]))
    results["scattered"] = builder.scatter_elements(x, i, builder.constant(np.zeros(indices.size, "uint8")))
    got = ORT.compute(builder.build(results), {"x": array, "i": indices})
    for name in ("gather", "elements", "nd"):
        np.testing.assert_array_equal(got[name], array[positions], err_msg=name)
    array[positions] = 0
    np.testing.assert_array_equal(got["scattered"], array)
