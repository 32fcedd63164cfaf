"""What prompts and notebooks show of objects."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import opweave as ow


def session(name: str = "x", count: int = 1) -> ow.InferenceSession:
    """The sum of inputs and a weight."""
    names = [name, *(f"x{k}" for k in range(1, count))]
    graph = helper.make_graph(
        [helper.make_node("Sum", [*names, "w"], ["<y>"])],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 3]) for n in names],
        [helper.make_tensor_value_info("<y>", TensorProto.FLOAT, [None, 3])],
        [numpy_helper.from_array(np.ones(3, "float32"), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return ow.InferenceSession(proto, ow.ml.create_context(device="cpu"))


class Cells(HTMLParser):
    """The texts of table cells and paragraphs; every tag is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts[-1] += data


def test_session_repr() -> None:
    assert repr(session()) == (
        "<InferenceSession (x: tensor(float)[batch, 3]) -> ('<y>': tensor(float)[?, 3]), 1 node on cpu>"
    )


def test_session_repr_of_many_inputs_is_short() -> None:
    text = repr(session("\x1b[31m", 40))
    assert "\x1b" not in text
    assert "34 more" in text
    assert len(text) < 400


def test_notebooks_show_a_session_as_a_table() -> None:
    texts = Cells(session("<script>")._repr_html_()).texts
    assert [text for text in texts if text in ("input", "<script>", "tensor(float)", "[batch, 3]", "<y>")] == [
        *("input", "<script>", "tensor(float)", "[batch, 3]"),
        *("<y>", "tensor(float)"),
    ]
    assert texts[-1] == "1 node on cpu: Sum 1"


@pytest.mark.parametrize(
    "ask", [np.asarray, np.array, lambda x: np.add.reduce([x, x])], ids=["asarray", "array", "list"]
)
def test_operands_are_no_arrays_of_objects(ask: Any) -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    x = builder.input("x", "float32", [2])
    with pytest.raises(TypeError, match=r"an operand has no value.*context\.compute"):
        ask(x.relu())
