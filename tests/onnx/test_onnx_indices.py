"""Indices that a call passes for the rows of a weight: out of range, they are errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from session_models import CONTEXT, FLOAT, model, node

import opweave as ow
from opweave.lazy.background import background
from opweave.onnx.index_ranges import index_ranges
from opweave.onnx.model import Model

INT64, INT32 = TensorProto.INT64, TensorProto.INT32
TABLE = np.arange(10, dtype="float32").reshape(5, 2)


def embedding(*nodes: onnx.NodeProto, shape: Any = ("n",), **more: Any) -> onnx.ModelProto:
    """Rows of a table: `ids`, perhaps through `nodes`, which give `rows`."""
    gather = node("Gather", "table rows" if nodes else "table ids", "y", name="embed", **more)
    return model([*nodes, gather], [("ids", INT64, shape)], [("y", FLOAT, None)], table=TABLE)


@pytest.mark.parametrize("specialise", ["recurring", "always", "never"])
@pytest.mark.parametrize("wrong", [5, -6, 2**40])
def test_tokens_out_of_range_are_errors(specialise: Any, wrong: int) -> None:
    session = ow.InferenceSession(embedding(), CONTEXT, specialise=specialise)
    for _ in range(4):  # each way that a call can take: the model's own session, compiled, repeated
        (y,) = session.run(None, {"ids": np.int64([4, -5])})
        assert y.tolist() == [[8, 9], [0, 1]]
        with pytest.raises(ow.ValidationError) as raised:
            session.run(None, {"ids": np.int64([0, wrong])})
        assert str(raised.value) == (
            f"Gather 'embed': indices must be in [-5, 4], the rows of 'table', got {wrong} in the input 'ids'"
        )
        background.wait()


def test_one_token_and_none() -> None:
    session = ow.InferenceSession(embedding(), CONTEXT)
    assert session.run(None, {"ids": np.int64([3])})[0].tolist() == [[6, 7]]
    assert session.run(None, {"ids": np.int64([])})[0].shape == (0, 2)
    with pytest.raises(ow.ValidationError, match="got 7 in the input 'ids'"):
        session.run(None, {"ids": np.int64([7])})


def ranges(proto: onnx.ModelProto) -> list[tuple[Any, int, int]]:
    return [(each.key, each.values.low, each.values.high) for each in index_ranges(Model.load(proto).proto.graph)]


def test_which_inputs_have_ranges() -> None:
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


def test_what_is_computed_is_clamped() -> None:
    session = ow.InferenceSession(embedding(node("Add", "ids ids", "rows"), shape=[1]), CONTEXT)
    assert session.run(None, {"ids": np.int64([9])})[0].tolist() == [[8, 9]]
