"""What it would cost on `cpu` to give NaN wherever an extreme is taken of values with a NaN among them.

`python -m benchmarks nan` compares ONNX Runtime's ReduceMax, ArgMax and MaxPool with two graphs that are right for NaN:

- *mask*: the same operation runs on a mask of NaN as well, and its result decides between that of the operation and NaN.
- *sum*: the sum of the input is computed too; if it is NaN, the mask is made, else not. It is NaN for infinities of both
  signs, too, and then costs time only.

The second is quicker; docs/deviations.md has its ratios.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from .measure import Way, alternate
from .page import Table
from .rows import HEADER, Row, onnxruntime_session

SHAPES = ((1, 64, 112, 112), (1, 256, 28, 28), (8, 4, 16, 16))


@dataclass(frozen=True)
class Operation:
    """An operation of ONNX, and what its result is where a mask says that there is a NaN.

    Attributes:
        type: its name in ONNX.
        attributes: its attributes.
        axes: the second input, if it takes axes there.
        positions: whether it gives positions: that of the NaN is that of the largest value of the mask.
    """

    type: str
    attributes: dict[str, Any]
    axes: tuple[int, ...] = ()
    positions: bool = False

    def node(self, input: str, output: str) -> onnx.NodeProto:
        return helper.make_node(self.type, [input, "axes"] if self.axes else [input], [output], **self.attributes)

    def masking_nodes(self, output: str) -> list[onnx.NodeProto]:
        """The operation on `x`, and on the mask of NaN in it."""
        nodes = [
            self.node("x", "plain"),
            helper.make_node("IsNaN", ["x"], ["is_nan"]),
            helper.make_node("Cast", ["is_nan"], ["mask"], to=TensorProto.FLOAT),
            self.node("mask", "found"),
        ]
        if not self.positions:
            nodes += [
                helper.make_node("Cast", ["found"], ["any"], to=TensorProto.BOOL),
                helper.make_node("Where", ["any", "nan", "plain"], [output]),
            ]
        else:
            nodes += [
                helper.make_node("ReduceMax", ["mask", "axis"], ["largest"], keepdims=self.attributes["keepdims"]),
                helper.make_node("Cast", ["largest"], ["any"], to=TensorProto.BOOL),
                helper.make_node("Where", ["any", "found", "plain"], [output]),
            ]
        return nodes

    def summing_nodes(self, output: str) -> list[onnx.NodeProto]:
        """The operation on `x`, unless the sum of `x` is NaN."""
        kind = TensorProto.INT64 if self.positions else TensorProto.FLOAT

        def branch(name: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
            return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, kind, None)])

        then, otherwise = branch("right", self.masking_nodes("right")), branch("quick", [self.node("x", "quick")])
        return [
            helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
            helper.make_node("IsNaN", ["sum"], ["has_nan"]),
            helper.make_node("If", ["has_nan"], [output], then_branch=then, else_branch=otherwise),
        ]

    def session(self, nodes: list[onnx.NodeProto]) -> onnxruntime.InferenceSession:
        """A session that computes `y` from `x` with these nodes."""
        kind = TensorProto.INT64 if self.positions else TensorProto.FLOAT
        constants = {
            "nan": np.array(np.nan, "float32"),
            "axes": np.array(self.axes),
            "axis": np.array([self.attributes.get("axis", 0)]),
        }
        graph = helper.make_graph(
            nodes,
            "nan",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, list("nchw"))],
            [helper.make_tensor_value_info("y", kind, None)],
            [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        # On one thread, ratios depend less on what else the machine does.
        return onnxruntime_session(model.SerializeToString(), threads=1)


OPERATIONS = {
    "reduce_max, last axis": Operation("ReduceMax", {"keepdims": 0}, (3,)),
    "reduce_max, all axes": Operation("ReduceMax", {"keepdims": 0}, (0, 1, 2, 3)),
    "arg_max, last axis": Operation("ArgMax", {"axis": 3, "keepdims": 0}, positions=True),
    "arg_max, axis 1": Operation("ArgMax", {"axis": 1, "keepdims": 0}, positions=True),
    "max_pool2d, 3x3, stride 2": Operation("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2]}),
}


def main() -> None:
    """Print the time of each operation with either pass against that of the operation alone."""
    rows = []
    for what, operation in OPERATIONS.items():
        sessions = {
            "alone": operation.session([operation.node("x", "y")]),
            "mask": operation.session(operation.masking_nodes("y")),
            "sum": operation.session(operation.summing_nodes("y")),
        }
        check(operation, sessions)
        for shape in SHAPES:
            x = np.random.default_rng(0).standard_normal(shape).astype("float32")
            times = alternate({name: call(session, x) for name, session in sessions.items()}, seconds=0.05, pause=0)
            for name in ("mask", "sum"):
                title = f"{what}, {prod(shape)} elements, {name}"
                rows.append(Row.of(title, "us", times[name], times["alone"], "without"))
    print(Table(HEADER, [row.cells() for row in rows]))


def call(session: onnxruntime.InferenceSession, x: np.ndarray) -> Way:
    return lambda: session.run(None, {"x": x})


def check(operation: Operation, sessions: dict[str, onnxruntime.InferenceSession]) -> None:
    """Both passes give NaN, or its position, and the operation alone where there is none."""
    x = np.random.default_rng(0).standard_normal((1, 8, 9, 9)).astype("float32")
    damaged = x.copy()
    damaged[0, 5, 4, 3] = np.nan
    (plain,) = sessions["alone"].run(None, {"x": x})
    for name in ("mask", "sum"):
        np.testing.assert_array_equal(sessions[name].run(None, {"x": x})[0], plain)
        (found,) = sessions[name].run(None, {"x": damaged})
        if operation.positions:
            np.testing.assert_array_equal(found, np.argmax(damaged, operation.attributes["axis"]))
        else:
            assert np.isnan(found).any()
