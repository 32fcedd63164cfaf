"""ONNX operators on the shape and the order of elements, against ONNX Runtime; all of them must run on WebNN."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from support.onnx_nodes import CONTEXT, check_agreement, compiled_models, ints, model_of, node_model, reasons

from opweave.onnx.session.session import InferenceSession
from opweave.support.errors import NotSupportedError

RNG = np.random.default_rng(7)
FIRST, LAST = -(2**63), 2**63 - 1


def data(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Different numbers."""
    return np.asarray(RNG.permutation(np.arange(1, np.prod(shape, dtype=int) + 1)).reshape(shape)).astype(dtype)


def scalar(value: Any, dtype: str = "int64") -> np.ndarray:
    return np.array(value, dtype)


Row = tuple[str, list[Any], dict[str, Any], int]

ROWS: list[Row] = [
    ("Reshape", [data(2, 3, 4), ints(4, -1)], {}, 21),
    ("Reshape", [data(2, 3, 4), ints(0, 0, -1)], {}, 13),
    ("Reshape", [data(2, 3, 4), ints(0, 4, 3)], {}, 7),
    ("Reshape", [data(2, 3), ints(3, 2)], {"allowzero": 1}, 14),
    ("Reshape", [data(1, 1), np.zeros(0, np.int64)], {}, 21),
    ("Flatten", [data(2, 3, 4)], {"axis": 0}, 21),
    ("Flatten", [data(2, 3, 4)], {"axis": -1}, 11),
    ("Flatten", [data(2, 3, 4)], {}, 9),
    ("Flatten", [data(2, 3, 4)], {"axis": 3}, 21),
    ("Squeeze", [data(1, 3, 1)], {}, 21),
    ("Squeeze", [data(1, 3, 1), ints(-1)], {}, 13),
    ("Squeeze", [data(1, 3, 1)], {"axes": [0]}, 11),
    ("Unsqueeze", [data(3, 4), ints(0, -1)], {}, 13),
    ("Unsqueeze", [data(3, 4)], {"axes": [2, 0]}, 11),
    ("Identity", [data(2, 2)], {}, 21),
    ("Dropout", [data(2, 3)], {"ratio": 0.4}, 10),
    ("Dropout", [data(2, 3), scalar(0.4, "float32"), scalar(False, "bool")], {}, 13),
    ("Expand", [data(3, 1), ints(2, 1, 4)], {}, 13),
    ("Expand", [data(2, 3), ints(1, 1)], {}, 8),
    ("EyeLike", [data(3, 5)], {"k": 1}, 9),
    ("EyeLike", [data(3, 2)], {"k": -1, "dtype": TensorProto.INT32}, 21),
    ("DepthToSpace", [data(2, 8, 2, 3)], {"blocksize": 2}, 13),
    ("DepthToSpace", [data(2, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}, 11),
    ("SpaceToDepth", [data(2, 3, 4, 6)], {"blocksize": 2}, 13),
    ("Transpose", [data(2, 3, 4)], {}, 21),
    ("Transpose", [data(2, 3, 4)], {"perm": [0, 2, 1]}, 13),
    ("Transpose", [data(2, 3)], {"perm": [0, 1]}, 13),
    ("Concat", [data(2, 3), data(2, 1), data(2, 2)], {"axis": -1}, 13),
    ("Concat", [data(2, 3), np.zeros((0, 3), np.float32)], {"axis": 0}, 13),
    ("Slice", [data(5, 6)], {"starts": [1, -4], "ends": [4, 1000]}, 9),
    ("Slice", [data(5, 6)], {"starts": [-3], "ends": [-1], "axes": [1]}, 7),
    ("Slice", [data(5, 6), ints(1), ints(LAST), ints(-1)], {}, 13),
    ("Slice", [data(5, 6), ints(4, 5), ints(0, FIRST), ints(0, 1), ints(-2, -1)], {}, 13),
    ("Slice", [data(5, 6), ints(100, 1), ints(-100, 6), ints(0, 1), ints(-1, 4)], {}, 11),
    ("Slice", [data(5, 6), ints(3), ints(2), ints(0), ints(-1)], {}, 10),
    ("Slice", [data(4), ints(3), ints(1), ints(0)], {}, 13),
    ("Slice", [data(4) > 2, ints(3), ints(1), ints(0)], {}, 13),
    ("Slice", [data(4), ints(-9), ints(FIRST), ints(0), ints(-1)], {}, 13),
    ("Slice", [data(4, 5), ints(9, 2), ints(1, -9), ints(0, 1), ints(-1, 2)], {}, 13),
    ("Gather", [data(4, 3), ints(3, -1, 0)], {}, 13),
    ("Gather", [data(4, 3), scalar(1)], {"axis": 1}, 11),
    ("Gather", [data(4, 3), np.array([[0, 2]], np.int32)], {"axis": -1}, 7),
    ("GatherElements", [data(4, 3), np.array([[0, -1, 2], [1, 1, 1]])], {}, 13),
    ("GatherElements", [data(4, 3), np.array([[0, -1], [2, 0]])], {"axis": 1}, 11),
    ("GatherND", [data(2, 3, 4), np.array([[0, 1], [1, -1]])], {}, 12),
    ("GatherND", [data(2, 3, 4), np.array([[1], [2]])], {"batch_dims": 1}, 13),
    ("GatherND", [data(2, 3, 4), np.array([[[1]] * 3, [[0]] * 3])], {"batch_dims": 2}, 12),
    ("ScatterElements", [data(3, 3), np.array([[1, 0, 2]]), data(1, 3)], {}, 13),
    ("ScatterElements", [data(3, 4), np.array([[1, -1], [0, 2]]), data(2, 2)], {"axis": 1}, 11),
    ("Scatter", [data(3, 3), np.array([[1, 0, 2]]), data(1, 3)], {}, 9),
    ("ScatterElements", [data(3, 3), np.array([[1, 0, -1]]), data(1, 3)], {"reduction": "mul"}, 18),
    ("ScatterND", [data(4, 3), np.array([[2], [0]]), data(2, 3)], {}, 13),
    ("ScatterND", [data(4, 3), np.array([[2, 1], [0, -1]]), data(2)], {"reduction": "add"}, 16),
    ("ScatterND", [data(4, 3), np.array([[2], [-4]]), data(2, 3)], {"reduction": "max"}, 18),
    ("ScatterND", [data(4, 3, dtype="int32"), np.array([[3]]), data(1, 3, dtype="int32")], {"reduction": "min"}, 18),
    ("Pad", [data(3, 4)], {"pads": [1, 0, 0, 2], "value": 1.5}, 10),
    ("Pad", [data(3, 4), ints(1, 0, 0, 2), scalar(-np.inf, "float32")], {}, 13),
    ("Pad", [data(3, 4), ints(-1, 2, 1, -3), scalar(7, "float32")], {}, 13),
    ("Pad", [data(3, 4), ints(2, 1), None, ints(-1)], {"mode": "reflect"}, 18),
    ("Pad", [data(3, 4), ints(1, 0, 2, 5)], {"mode": "edge"}, 13),
    ("Pad", [data(3, 4), ints(1, 3, 2, 1)], {"mode": "wrap"}, 19),
    ("Pad", [data(3, 4), ints(-1, -1, 2, 2)], {"mode": "edge"}, 18),
    ("Pad", [data(3, 6), ints(0, -2, 0, 3)], {"mode": "reflect"}, 18),
    ("Pad", [data(3, 4), ints(0, -1, 0, -2)], {"mode": "constant"}, 18),
    ("Tile", [data(2, 3), ints(2, 1)], {}, 13),
    ("Tile", [data(2, 3), ints(1, 1)], {}, 7),
    ("Trilu", [data(3, 4)], {}, 14),
    ("Trilu", [data(2, 3, 4), scalar(-1)], {"upper": 0}, 14),
    ("Trilu", [data(3, 4), scalar(2**40)], {}, 14),
    ("ReverseSequence", [data(4, 3, 2), ints(1, 4, 3)], {}, 10),
    ("ReverseSequence", [data(3, 4), ints(2, 1, 4)], {"batch_axis": 0, "time_axis": 1}, 10),
    ("CenterCropPad", [data(5, 4), ints(2, 7)], {}, 18),
    ("CenterCropPad", [data(5, 4, 3), ints(8)], {"axes": [-2]}, 18),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[3]}")
def test_operator_agrees_with_engine(row: Row) -> None:
    op_type, inputs, attributes, opset = row
    check_agreement(*node_model(op_type, inputs, attributes, opset=opset))


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "dynamic"),
    [
        ("Gather", [data(4, 3), ints(3, -1, 0)], {}, (1,)),
        ("GatherElements", [data(4, 3), np.array([[0, -1], [2, 0]])], {"axis": 1}, (0, 1)),
        ("GatherND", [data(2, 3, 4), np.array([[1], [2]])], {"batch_dims": 1}, (0, 1)),
        ("ScatterElements", [data(3, 4), np.array([[1, -1], [0, 2]]), data(2, 2)], {"axis": 1}, (1, 2)),
        ("ScatterElements", [data(3, 4), np.array([[1, 0, 2, 1]]), data(1, 4)], {}, (0, 1, 2)),
        ("ScatterND", [data(4, 3), np.array([[2], [0]]), data(2, 3)], {}, (1,)),
        ("ReverseSequence", [data(4, 3, 2), ints(1, 4, 3)], {}, (0, 1)),
        ("ReverseSequence", [data(3, 4), ints(2, 1, 4)], {"batch_axis": 0, "time_axis": 1}, (1,)),
        ("Concat", [data(2, 3), data(2, 1)], {"axis": 1}, (1,)),
        ("Where", [data(2, 3) > 3, data(2, 3), data(1, 3)], {}, (0,)),
        ("Where", [data(2, 3) > 3, data(2, 3), data(1, 3)], {}, (1,)),
        ("Where", [data(2, 3) > 3, data(2, 3, dtype="uint8"), scalar(1, "uint8")], {}, (0, 1, 2)),
        ("Where", [data(2, 1) > 1, data(2, 3, dtype="int64"), scalar(7)], {}, (0, 2)),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_operators_take_constant_and_computed_inputs(
    op_type: str, inputs: list[Any], attributes: dict[str, Any], dynamic: tuple[int, ...]
) -> None:
    check_agreement(*node_model(op_type, inputs, attributes, dynamic=dynamic, opset=18))


@pytest.mark.parametrize("dtype", ["float16", "int32", "int64", "uint8", "int8", "bool", "uint64"])
def test_movement_keeps_all_bits(dtype: str) -> None:
    x = RNG.integers(0, 255, [3, 4]).astype(dtype)
    nodes = [
        helper.make_node("Transpose", ["x"], ["a"]),
        helper.make_node("Slice", ["a", "start", "end", "axis", "step"], ["b"]),
        helper.make_node("Concat", ["b", "a"], ["c"], axis=0),
        helper.make_node("Gather", ["c", "picked"], ["d"], axis=1),
        helper.make_node("Reshape", ["d", "shape"], ["y"]),
    ]
    constants = {
        "start": ints(-1),
        "end": ints(FIRST),
        "axis": ints(1),
        "step": ints(-1),
        "picked": ints(2, 0, 0),
        "shape": ints(2, -1),
    }
    check_agreement(model_of(nodes, {"x": x}, constants, ["y"]), {"x": x})


@pytest.mark.parametrize(
    ("inputs", "attributes", "opset", "outputs"),
    [
        ([data(6, 2)], {}, 11, 3),
        ([data(6, 2)], {"split": [1, 5]}, 7, 2),
        ([data(2, 7)], {"axis": -1, "num_outputs": 4}, 18, 4),
        ([data(2, 7), ints(3, 4)], {"axis": 1}, 13, 2),
        ([data(2, 7), ints(7)], {"axis": 1}, 18, 1),
    ],
)
def test_split(inputs: list[Any], attributes: dict[str, Any], opset: int, outputs: int) -> None:
    check_agreement(*node_model("Split", inputs, attributes, opset=opset, outputs=outputs))


def test_dropout_yields_a_mask() -> None:
    model, feed = node_model("Dropout", [data(2, 3)], {}, opset=12, outputs=2)
    check_agreement(model, feed)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("dtype", ["int64", "int32", "float32"])
def test_one_hot(axis: int, dtype: str) -> None:
    indices = np.array([[0, -1, 4], [5, -5, -6]]).astype(dtype)
    values = np.array([2, 5], np.float32)
    for dynamic in ((0,), (0, 2), (2,)):
        check_agreement(*node_model("OneHot", [indices, scalar(5, dtype), values], {"axis": axis}, dynamic=dynamic))


MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "asymmetric",
    "align_corners",
    "tf_half_pixel_for_nn",
)
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@pytest.mark.parametrize(("coordinates", "rounding"), list(product(MODES, ROUNDINGS)))
def test_nearest_resize(coordinates: str, rounding: str) -> None:
    attributes = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    last_bits = coordinates == "half_pixel_symmetric"  # in which the engine's may differ from ours; then it falls back
    opset = 19 if last_bits else 11
    nothing = np.zeros(0, np.float32)
    for sizes in ((5, 8), (4, 6), (2, 12), (1, 1), (7, 3)):
        inputs = [data(1, 2, 4, 6), nothing, nothing, ints(1, 2, *sizes)]
        check_agreement(*node_model("Resize", inputs, attributes, opset=opset), fallback=last_bits)
    for scales in ((1.3, 2.0), (0.6, 0.5), (0.8, 3.0), (1.0, 2.5)):
        inputs = [data(1, 2, 4, 6), nothing, np.array([1, 1, *scales], np.float32)]
        model, feed = node_model("Resize", inputs, attributes, opset=opset)
        if (
            coordinates == "align_corners"
        ):  # of the size before rounding, as in ONNX's evaluator; the engine takes the rounded one
            session = InferenceSession(model, CONTEXT, fallback="error", specialise="always")
            np.testing.assert_array_equal(session.run(None, feed)[0], ReferenceEvaluator(model).run(None, feed)[0])
        else:
            check_agreement(model, feed, fallback=last_bits)


@pytest.mark.parametrize(
    ("shape", "factors", "attributes", "opset"),
    [
        ((1, 2, 4, 6), (1, 1, 2, 3), {}, 13),
        ((1, 2, 4, 6), (1, 1, 0.5, 0.5), {}, 13),
        ((1, 2, 4, 6), (1, 1, 2, 1), {"coordinate_transformation_mode": "pytorch_half_pixel"}, 19),
        ((2, 4, 6), (1, 2, 2), {"coordinate_transformation_mode": "half_pixel_symmetric"}, 19),
        ((4, 6), (1.5, 2), {}, 19),
        ((6, 2), (2, 1), {"antialias": 1}, 18),
    ],
)
def test_linear_resize(
    shape: tuple[int, ...], factors: tuple[float, ...], attributes: dict[str, Any], opset: int
) -> None:
    inputs = [data(*shape), None, np.array(factors, np.float32)]
    model, feed = node_model("Resize", inputs, {"mode": "linear", **attributes}, opset=opset)
    check_agreement(model, feed, rtol=1e-5)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_resize_of_some_axes(policy: str) -> None:
    attributes = {"axes": [3, 2], "keep_aspect_ratio_policy": policy}
    check_agreement(*node_model("Resize", [data(1, 2, 4, 6), None, None, ints(9, 7)], attributes, opset=18))


def test_resize_and_upsample_of_old_operator_sets() -> None:
    for scales in ((1, 1, 2, 3), (1, 1, 1.5, 2.5)):
        factors = np.array(scales, np.float32)
        check_agreement(*node_model("Resize", [data(1, 2, 4, 6), factors], opset=10))
        check_agreement(*node_model("Upsample", [data(1, 2, 4, 6), factors], opset=9))
        check_agreement(*node_model("Upsample", [data(1, 2, 4, 6)], {"scales": list(map(float, scales))}, opset=7))


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "reason"),
    [
        ("Slice", [data(4), ints(-1), ints(LAST), ints(0), ints(-1)], {}, "it goes backward from -1 to"),
    ],
)
def test_tensor_operators_fall_back(op_type: str, inputs: list[Any], attributes: dict[str, Any], reason: str) -> None:
    model, feed = node_model(op_type, inputs, attributes, opset=18)
    session = check_agreement(model, feed, fallback=True, rtol=1e-6)
    assert [reason in line for line in reasons(session)] == [True]
    with pytest.raises(NotSupportedError, match=op_type):
        InferenceSession(model, CONTEXT, fallback="error")


def test_reshape_by_computed_shape_falls_back() -> None:
    x = np.array([[3, 2, 1]], np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node("Squeeze", ["i", "axes"], ["shape"]),
        helper.make_node("Reshape", ["z", "shape"], ["y"]),
    ]
    feed = {"x": x, "z": data(2, 3)}
    session = check_agreement(model_of(nodes, feed, {"axes": ints(0)}, ["y"]), feed, fallback=True)
    assert reasons(session) == ["Reshape: the shape is not constant"]


def test_shape_of_weight_is_computed_at_build_time() -> None:
    x = data(2, 3)
    nodes = [
        helper.make_node("Shape", ["weights"], ["shape"], start=1),
        helper.make_node("Size", ["weights"], ["size"]),
        helper.make_node("Expand", ["x", "shape"], ["y"]),
    ]
    model = model_of(nodes, {"x": x[:1]}, {"weights": np.zeros((30000, 4, 3), np.float32)}, ["y", "size"])
    session = check_agreement(model, {"x": x[:1]})
    assert "2 nodes computed when the model was compiled" in session.explain()


def test_converters_write_one_operation() -> None:
    """Converters write no more operations than are needed."""
    x = data(2, 3, 4, 4)
    rows: list[tuple[str, list[Any], dict[str, Any], list[str]]] = [
        ("Squeeze", [x[:1]], {}, ["reshape"]),
        ("Slice", [x, ints(1), ints(3), ints(1)], {}, ["slice"]),
        ("Slice", [x, ints(0), ints(LAST), ints(1)], {}, []),
        ("Pad", [x, ints(0, 0, 1, 1, 0, 0, 1, 1)], {"mode": "reflect"}, ["pad"]),
        ("Resize", [x, None, np.array([1, 1, 2, 2], np.float32)], {}, ["resample2d"]),
        ("Gather", [x, scalar(1)], {"axis": 1}, ["gather"]),
        ("Concat", [x, np.zeros((0, 3, 4, 4), np.float32)], {"axis": 0}, []),
    ]
    for op_type, inputs, attributes, wanted in rows:
        session = InferenceSession(node_model(op_type, inputs, attributes, opset=18)[0], CONTEXT)
        (compiled,) = compiled_models(session)
        operand = compiled.trace.values["y0"].operand  # type: ignore[union-attr]
        found, pending = [], [operand]
        while pending:
            node = pending.pop().node
            if node is not None:
                found.append(node.op.name)
                pending.extend(node.operands)
        assert found == wanted, op_type
