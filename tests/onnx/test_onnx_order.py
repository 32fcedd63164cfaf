"""Models whose nodes are out of order, which ONNX Runtime sorts."""

from __future__ import annotations

import random

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from session_models import CONTEXT, sum_model
from support.onnx import BOOL, FLOAT, model, node

import opweave as ow
from opweave.onnx.model.order import with_sorted_nodes


def check_model(proto: onnx.ModelProto, **feed: np.ndarray) -> None:
    """Compare with ONNX Runtime."""
    content = proto.SerializeToString()
    wanted = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feed)
    for source in (proto, content):
        for specialise in ("always", "never"):
            session = ow.InferenceSession(source, CONTEXT, specialise=specialise)
            for result, expected in zip(session.run(None, feed), wanted, strict=True):
                np.testing.assert_array_max_ulp(result, expected, maxulp=4)
    assert proto.SerializeToString() == content, "the model is the caller's"


def test_nodes_in_reverse_order() -> None:
    proto = sum_model()
    proto.graph.node.reverse()
    check_model(proto, x=np.float32([[1, -2, 3]]), y=np.float32([[0.5, 1, -4]]))


def test_shuffled_nodes() -> None:
    draw = random.Random(5)
    nodes = [node("Abs", "x", "v0")]
    for number in range(1, 60):
        one, other = (f"v{draw.randrange(number)}" for _ in range(2))
        nodes.append(node(draw.choice(["Min", "Max", "Sub"]), f"{one} {other}", f"v{number}"))
    draw.shuffle(nodes)
    check_model(model(nodes, [("x", FLOAT, [4])], [("v59", FLOAT, [4])]), x=np.float32([-1, 0, 2, 5]))


def branch(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info(nodes[0].output[0], FLOAT, [2])])


def choice(*nodes: onnx.NodeProto) -> list[onnx.NodeProto]:
    return [node("If", "c", "z", then_branch=branch(*nodes), else_branch=branch(node("Neg", "x", "q")))]


@pytest.mark.parametrize("choose", [True, False])
def test_branch_reads_value_of_later_node(choose: bool) -> None:
    nodes = [*choice(node("Neg", "s", "p")), node("Exp", "x", "s")]
    proto = model(nodes, [("x", FLOAT, [2]), ("c", BOOL, [])], [("z", FLOAT, [2])])
    check_model(proto, x=np.float32([1, 2]), c=np.array(choose))


def test_branch_nodes_must_be_in_order() -> None:
    nodes = choice(node("Neg", "s", "p"), node("Exp", "x", "s"))
    content = model(nodes, [("x", FLOAT, [2]), ("c", BOOL, [])], [("z", FLOAT, [2])]).SerializeToString()
    with pytest.raises(Exception, match="must be topologically sorted"):
        onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    with pytest.raises(ow.DataError, match=r"^Neg inside of If uses 's', which is made only after it$"):
        ow.InferenceSession(content, CONTEXT)


def test_sorted_nodes_keep_order() -> None:
    nodes = [node("Neg", "x", name) for name in "dbca"] + [node("Sum", "a b c d", "z")]
    kept = model(nodes, [("x", FLOAT, [2])], [("z", FLOAT, [2])])
    assert with_sorted_nodes(kept) == kept
    kept.graph.node.insert(0, node("Exp", "z", "y"))
    found = [each.output[0] for each in with_sorted_nodes(kept).graph.node]
    assert found == ["d", "b", "c", "a", "z", "y"]
