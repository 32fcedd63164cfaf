"""Models of newer operator sets than the engine has kernels for are lowered, where every node means the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, defs, helper
from support.onnx import model

import opweave as ow
from opweave.backends.onnxruntime import opsets
from opweave.backends.onnxruntime.native import NativeSession
from opweave.backends.onnxruntime.sessions import ENGINE_ERRORS, session_options

NEWEST = defs.onnx_opset_version()

BOXES = np.array([[0, 0, 4, 4], [1, 1, 3, 5]], dtype=np.float32)
BATCHES = np.zeros(2, dtype=np.int64)
IMAGE = np.random.default_rng(0).standard_normal((1, 2, 6, 6)).astype(np.float32)

ROI_ALIGN = helper.make_node("RoiAlign", ["x", "boxes", "batches"], ["y"], output_height=2, output_width=2)
"""An operator whose kernels stop at operator set 21."""


def model_of(*nodes: onnx.NodeProto, opset: int, output: str = "y") -> onnx.ModelProto:
    """A model of nodes that take the image `x`, the boxes, and the numbers of their images."""
    inputs = {"x": "float32[n, 2, 6, 6]", "boxes": "float32[boxes, 4]", "batches": "int64[boxes]"}
    return model(nodes, inputs, {output: ""}, opset=opset)


def opset_of(proto: onnx.ModelProto) -> int:
    """The operator set that a model is lowered to."""
    opsets.lower(proto)
    return int(proto.opset_import[0].version)


@pytest.mark.parametrize("specialise", ["always", "never"])
@pytest.mark.parametrize("opset", [22, NEWEST])
def test_operators_with_older_kernels_run(opset: int, specialise: Any) -> None:
    """As a part that falls back, and as ONNX Runtime, uncompiled."""
    feed = {"x": IMAGE, "boxes": BOXES, "batches": BATCHES}
    (wanted,) = ow.InferenceSession(model_of(ROI_ALIGN, opset=21)).run(None, feed)
    (got,) = ow.InferenceSession(model_of(ROI_ALIGN, opset=opset), specialise=specialise).run(None, feed)
    np.testing.assert_array_equal(got, wanted)
    assert np.abs(got).max() > 0


@pytest.mark.parametrize("specialise", ["always", "never"])
def test_floats_of_eight_bits_are_quantized_in_the_newest_set(specialise: Any) -> None:
    """The engine may take an operator set without having the kernels of all its operators."""
    scale = helper.make_node("Constant", [], ["scale"], value_float=0.5)
    nothing = helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [0.0])
    zero = helper.make_node("Constant", [], ["zero"], value=nothing)
    quantize = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"])
    restore = helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"])
    proto = model_of(scale, zero, quantize, restore, opset=NEWEST)
    x = np.array([0, 0.5, -1, 2, 448, 1000], dtype=np.float32).reshape(1, 1, 1, 6).repeat(2, axis=1).repeat(6, axis=2)
    (got,) = ow.InferenceSession(proto, specialise=specialise).run(None, {"x": x, "boxes": BOXES, "batches": BATCHES})
    np.testing.assert_array_equal(got[0, 0, 0], [0, 0.5, -1, 2, 224, 224])


def test_opset_is_lowered_only_as_needed() -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    assert opset_of(model_of(relu, opset=18)) == 18
    assert opset_of(model_of(relu, opset=22)) == 22
    assert opset_of(model_of(relu, opset=NEWEST)) == opsets.newest_opset()
    assert opset_of(model_of(ROI_ALIGN, opset=NEWEST)) == 21


def test_nodes_of_branches_are_lowered() -> None:
    branch = helper.make_graph([ROI_ALIGN], "branch", [], [helper.make_empty_tensor_value_info("y")])
    cond = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.BOOL, [], [True]))
    choice = helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
    assert opset_of(model_of(cond, choice, opset=24, output="z")) == 21


def test_attributes_with_their_defaults_are_left_out() -> None:
    moved = helper.make_node("SpaceToDepth", ["x"], ["z"], blocksize=2, mode="DCR")
    proto = model_of(ROI_ALIGN, moved, opset=28)
    assert opset_of(proto) == 21
    assert [attribute.name for attribute in proto.graph.node[1].attribute] == ["blocksize"]


SHIFT = helper.make_node("BitShift", ["batches", "batches"], ["z"], direction="LEFT")
MOVED = helper.make_node("SpaceToDepth", ["x"], ["z"], blocksize=2, mode="CRD")


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (SHIFT, "BitShift of 28 means something else"),
        (MOVED, "SpaceToDepth of 28 has mode, which it did not have before"),
        (helper.make_node("SwiGLU", ["x"], ["z"]), "SwiGLU of 28 is not in it"),
    ],
    ids=["meaning", "attribute", "operator"],
)
@pytest.mark.parametrize("others", [[], [ROI_ALIGN]], ids=["alone", "beside others"])
def test_lower_keeps_nodes_beyond_older_set(node: onnx.NodeProto, text: str, others: Any) -> None:
    """Where the engine takes the set, creating a session tells which kernel is missing."""
    proto = model_of(*others, node, opset=28, output="z")
    before = proto.SerializeToString()
    if opsets.newest_opset() >= 28:
        assert opset_of(proto) == 28
    else:
        with pytest.raises(ow.MLError, match=f"operator sets up to {opsets.newest_opset()}, and {text}"):
            opsets.lower(proto)
    assert proto.SerializeToString() == before


def test_operators_mean_the_same_from_the_oldest_target_on() -> None:
    """What ONNX declares of them: names of inputs, outputs and attributes stay, and so do the defaults."""
    for name in sorted({schema.name for schema in defs.get_all_schemas() if not schema.domain}):
        new = defs.get_schema(name, NEWEST)
        try:
            old = defs.get_schema(name, opsets.OLDEST_TARGET)
        except defs.SchemaError:
            continue
        assert [i.name for i in old.inputs] == [i.name for i in new.inputs][: len(old.inputs)], name
        assert [o.name for o in old.outputs] == [o.name for o in new.outputs][: len(old.outputs)], name
        assert set(old.attributes) <= set(new.attributes), name
        for key, attribute in old.attributes.items():
            assert attribute.default_value == new.attributes[key].default_value, (name, key)
            assert attribute.required == new.attributes[key].required, (name, key)


@pytest.mark.parametrize("opset", range(opsets.OLDEST_TARGET, opsets.newest_opset() + 1))
@pytest.mark.parametrize("operator", ["RoiAlign", "Multinomial", "Optional", "QuantizeLinear", "Relu", "ReduceLogSum"])
def test_engine_has_assumed_kernels(operator: str, opset: int) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2, 6, 6] if operator == "RoiAlign" else [2, 6])
    inputs = {"RoiAlign": ["x", "boxes", "batches"], "QuantizeLinear": ["x", "scale"]}.get(operator, ["x"])
    others = {
        "boxes": helper.make_tensor("boxes", TensorProto.FLOAT, [2, 4], BOXES.ravel()),
        "batches": helper.make_tensor("batches", TensorProto.INT64, [2], BATCHES),
        "scale": helper.make_tensor("scale", TensorProto.FLOAT, [], [0.5]),
    }
    node = helper.make_node(operator, inputs, ["y"])
    graph = helper.make_graph([node], "one", [x], [helper.make_empty_tensor_value_info("y")])
    graph.initializer.extend(others[name] for name in inputs[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    schema: Any = defs.get_schema(operator, opset)
    message = ""
    try:
        NativeSession(proto.SerializeToString(), session_options("default"), providers=["CPUExecutionProvider"])
    except ENGINE_ERRORS as error:
        message = str(error)
    if opsets.has_kernel(operator, opset) or schema.has_function:
        assert not message
    else:
        assert f"Could not find an implementation for {operator}({schema.since_version})" in message
