"""Indices that a call passes for the rows of a weight, and lengths of sequences: out of range, they are errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from session_models import CONTEXT
from support.onnx import FLOAT, model, node
from support.webgpu_device import gpu_context
from test_onnx_in_place import PAST, ROOM, caches, chunk, model as attention

import opweave as ow
from opweave.core.value_ranges import InputRange, ValueRange
from opweave.onnx.model.model import Model
from opweave.onnx.session.index_ranges import LengthRange, find_ranges
from opweave.support.background import background

INT64, INT32 = TensorProto.INT64, TensorProto.INT32
TABLE = np.arange(10, dtype="float32").reshape(5, 2)


def embedding(*nodes: onnx.NodeProto, shape: Any = ("n",), **more: Any) -> onnx.ModelProto:
    """Rows of a table: `ids`, perhaps through `nodes`, which give `rows`."""
    gather = node("Gather", "table rows" if nodes else "table ids", "y", name="embed", **more)
    return model([*nodes, gather], [("ids", INT64, shape)], [("y", FLOAT, None)], {"table": TABLE})


@pytest.mark.parametrize("specialise", ["recurring", "always", "never"])
@pytest.mark.parametrize("wrong", [5, -6, 2**40])
def test_tokens_out_of_range_are_errors(specialise: Any, wrong: int) -> None:
    session = ow.InferenceSession(embedding(), CONTEXT, specialise=specialise)
    for _ in range(4):  # each way that a call can take: ONNX Runtime, uncompiled, compiled, repeated
        (y,) = session.run(None, {"ids": np.int64([4, -5])})
        assert y.tolist() == [[8, 9], [0, 1]]
        with pytest.raises(ow.ValidationError) as raised:
            session.run(None, {"ids": np.int64([0, wrong])})
        assert str(raised.value) == (
            f"Gather 'embed': indices must be in [-5, 4], the rows of 'table', got {wrong} in the input 'ids'"
        )
        background.wait()


def test_indices_of_one_token_and_none() -> None:
    session = ow.InferenceSession(embedding(), CONTEXT)
    assert session.run(None, {"ids": np.int64([3])})[0].tolist() == [[6, 7]]
    assert session.run(None, {"ids": np.int64([])})[0].shape == (0, 2)
    with pytest.raises(ow.ValidationError, match="got 7 in the input 'ids'"):
        session.run(None, {"ids": np.int64([7])})


def ranges(proto: onnx.ModelProto) -> list[tuple[Any, int, int]]:
    found = find_ranges(Model.load(proto))
    return [(each.key, each.values.low, each.values.high) for each in found if isinstance(each, InputRange)]


def test_index_ranges_of_inputs() -> None:
    assert ranges(embedding()) == [("ids", -5, 4)]
    assert ranges(embedding(axis=-1)) == [("ids", -2, 1)]
    through = node("Cast", "ids", "a", to=INT32), node("Unsqueeze", "a axes", "rows")
    proto = embedding(*through)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.int64([0]), "axes"))
    assert ranges(proto) == [("ids", -5, 4)]
    assert ranges(embedding(node("Abs", "ids", "rows"))) == []  # other values than those of the input
    overridable = embedding()
    overridable.graph.input.append(onnx.helper.make_tensor_value_info("table", FLOAT, [5, 2]))
    assert ranges(overridable) == []
    twice = embedding()
    twice.graph.node.append(node("Gather", "table ids", "z"))
    assert ranges(twice) == [("ids", -5, 4)]


def test_computed_indices_are_clamped() -> None:
    session = ow.InferenceSession(embedding(node("Add", "ids ids", "rows"), shape=[1]), CONTEXT)
    assert session.run(None, {"ids": np.int64([9])})[0].tolist() == [[8, 9]]


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint32", "int64", "uint64"])
def test_value_range_finds_value_outside(dtype: str) -> None:
    least = np.iinfo(dtype).min
    for low, high in ((-3, 4), (0, 5), (2, 6)):
        values = ValueRange(low, high, "")
        for one in range(max(-5, least), 9):
            for others in ([], [3], [3, 4, 2]):
                found = values.outside(np.array([*others, one], dtype))
                assert found == (None if low <= one <= high else one), (low, high, one, others)
        assert values.outside(np.array([3, np.iinfo(dtype).max], dtype)) == np.iinfo(dtype).max
        assert values.outside(np.array([], dtype)) is None


# Lengths --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "reference", "webgpu"])
@pytest.mark.parametrize(("wrong", "new"), [(-1, 1), (ROOM, 1), (ROOM, 3), (2**31 - 1, 1), (-(2**31), 3)])
def test_lengths_out_of_range_are_errors(device: str, wrong: int, new: int) -> None:
    context = gpu_context() if device == "webgpu" else ow.ml.create_context(device=device)
    proto = attention()
    proto.graph.node[0].name = "attend"
    for specialise in ("recurring", "always", "never") if device == "cpu" else ("recurring",):
        session, right = ow.InferenceSession(proto, context, specialise=specialise), chunk(1, 3, new) | caches()
        for _ in range(3):
            expected = session.run(["y"], right)[0]
            with pytest.raises(ow.ValidationError) as raised:
                session.run(["y"], right | {"lengths": np.int32([wrong])})
            assert str(raised.value) == (
                "GroupQueryAttention 'attend': seqlens_k must be in [0, 11], as there is room for 12 keys, "
                f"got {wrong} in the input 'lengths'"
            )
            np.testing.assert_allclose(session.run(["y"], right)[0], expected, rtol=1e-5)
            background.wait()


def test_io_binding_checks_lengths_at_each_run() -> None:
    session = ow.InferenceSession(attention(), CONTEXT, specialise="never")
    binding, given = session.io_binding(), chunk(1, 3, 1) | caches()
    for name, array in given.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("y")
    for _ in range(2):
        session.run_with_iobinding(binding)
    given["lengths"][...] = ROOM
    with pytest.raises(ow.ValidationError, match="seqlens_k must be in"):
        session.run_with_iobinding(binding)


def test_growing_cache_checks_lengths() -> None:
    session = ow.InferenceSession(attention(room="past"), CONTEXT, specialise="never")
    past = {name: np.ones((1, 2, 3, 16), np.float32) for name in PAST.values()}
    assert session.run(None, chunk(1, 3, 1) | past)[1].shape[2] == 4
    with pytest.raises(ow.ValidationError, match=r"seqlens_k must be in \[0, 3\], as there is room for 4 keys, got 4"):
        session.run(None, chunk(1, 3, 1) | past | {"lengths": np.int32([4])})


def test_computed_lengths_are_left_to_engine() -> None:
    proto = attention()
    proto.graph.node[0].input[5] = "doubled"
    proto.graph.node.insert(0, node("Add", "lengths lengths", "doubled"))
    session = ow.InferenceSession(proto, CONTEXT, specialise="never")
    given = chunk(1, 3, 1) | caches()
    for _ in range(2):
        session.run(None, given)
        with pytest.raises(ow.OperationError, match=r"GroupQueryAttention node.*seqlens_k.* = 12 is out of range"):
            session.run(None, given | {"lengths": np.int32([6])})
    assert list(session.shapes().values()) == ["ONNX Runtime, uncompiled"]  # compiled, it would fail as well


def test_lengths_of_equal_layers_are_checked_once() -> None:
    proto = attention()
    first = proto.graph.node[0]
    for layer, room in enumerate((ROOM, ROOM, 20)):
        pasts = [f"{name}{layer}" for name in PAST.values()]
        made = type(first).FromString(first.SerializeToString())
        made.input[3:5], made.output[:] = pasts, [f"{name}{layer}" for name in first.output]
        proto.graph.node.append(made)
        for name in pasts:
            proto.graph.input.append(onnx.helper.make_tensor_value_info(name, FLOAT, [1, 2, room, 16]))
    found = [each for each in find_ranges(Model.load(proto)) if isinstance(each, LengthRange)]
    assert [each.past for each in found] == ["past_key", "past_key2"]
