"""docs/errors.md: each message that it shows is raised by the code that its heading names."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

import opweave as ow

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
CASES: dict[str, Callable[[], object]] = {}
"""Heading of a section -> what raises its error."""


def case(heading: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def add(function: Callable[[], object]) -> Callable[[], object]:
        CASES[heading] = function
        return function

    return add


def model(text: str = "Y = Relu(image)", dimensions: str = "1, 3, 4, 4", domains: str = "") -> onnx.ModelProto:
    type = f"float[{dimensions}]"
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17{domains}]> g ({type} image) => ({type} Y) {{ {text} }}'
    )


def session(*arguments: object, **options: object) -> ow.InferenceSession:
    return ow.InferenceSession(model(), *arguments, context=context(), **options)  # type: ignore[arg-type]


def context() -> ow.MLContext:
    return ow.ml.create_context(device="cpu")


IMAGE = np.zeros((1, 3, 4, 4), "float32")


@case("The file is not there")
def _() -> object:
    return ow.InferenceSession("model.onnx")


@case("The file is no model")
def _() -> object:
    Path("model.onnx").write_text("<html>404: Not Found</html>")
    return ow.InferenceSession("model.onnx")


@case("The weights are not there")
def _() -> object:
    whole = model("Y = Add(image, w)")
    whole.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 3, 4, 4), "float32"), "w"))
    onnx.save(whole, "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    Path("model.onnx.data").unlink()
    return ow.InferenceSession("model.onnx")


@case("An operator is unknown")
def _() -> object:
    return ow.InferenceSession(model("Y = com.example.Swish(image)", domains=', "com.example": 1'))


@case("A node falls back")
def _() -> object:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (int64[1, n] y) { y = NonZero(x) }'
    return ow.InferenceSession(onnx.parser.parse_model(text), fallback="error")


@case("A dimension is dynamic")
def _() -> object:
    return ow.onnx.load(model(dimensions="batch, 3, 4, 4"), context())


@case("An input has another name")
def _() -> object:
    return session().run(None, {"images": IMAGE})


@case("An input has another shape")
def _() -> object:
    return session().run(None, {"image": IMAGE[0]})


@case("An input has another data type")
def _() -> object:
    return session().run(None, {"image": IMAGE.astype("float64")})


@case("An output has another name")
def _() -> object:
    return session().run(["y"], {"image": IMAGE})


@case("The device is not here")
def _() -> object:
    return ow.ml.create_context(device="tpu")


@case("The device lacks the precision")
def _() -> object:
    return ow.ml.create_context(device="reference", precision="float16")


@case("A package is missing")
def _() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "wgpu", None)
        return ow.ml.create_context(object())


@case("An argument does not fit")
def _() -> object:
    builder = ow.MLGraphBuilder(context())
    image = builder.input("image", "float32", [1, 3, 4, 4])
    return builder.conv2d(image, np.ones((8, 4, 3, 3), "float32"), label="stem")


@case("A name is JavaScript's")
def _() -> object:
    builder = ow.MLGraphBuilder(context())
    image = builder.input("image", "float32", [1, 3, 4, 4])
    return builder.conv2d(image, np.ones((8, 3, 3, 3), "float32"), inputLayout="nchw")  # type: ignore[call-arg]


@case("Shapes do not broadcast")
def _() -> object:
    builder = ow.MLGraphBuilder(context())
    return builder.input("a", "float32", [2, 3]) + builder.input("b", "float32", [2, 4])


@case("Data types differ")
def _() -> object:
    builder = ow.MLGraphBuilder(context())
    return builder.input("a", "float32", [2]) + builder.input("b", "int32", [2])


@case("The builder has built")
def _() -> object:
    builder = ow.MLGraphBuilder(context())
    x = builder.input("x", "float32", [2])
    builder.build({"y": x.relu()})
    return builder.build({"y": x.relu()})


@case("An operand has no value")
def _() -> object:
    builder = ow.MLGraphBuilder(context())
    return np.asarray(builder.input("x", "float32", [2]))


@case("A formula branches")
def _() -> object:
    @ow.expression
    def positive(x):  # type: ignore[no-untyped-def]
        return x if x > 0 else 0

    return positive(np.float32([1, -1]))


@case("A formula calls NumPy")
def _() -> object:
    @ow.expression
    def gaussian(x):  # type: ignore[no-untyped-def]
        return np.exp(-x * x)

    return gaussian(np.float32([1, -1]))


@case("A kernel fails")
def _() -> object:
    @ow.op
    def checked(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
        return x.desc

    @checked.kernel("cpu")
    def _(x, out):  # type: ignore[no-untyped-def]
        raise ValueError("a negative number")

    here = context()
    builder = ow.MLGraphBuilder(here)
    graph = builder.build({"y": checked(builder.input("x", "float32", [2]), label="input")})
    return here.compute(graph, {"x": np.zeros(2, "float32")})


@case("A tensor is not readable")
def _() -> object:
    here = context()
    return here.read_tensor(here.create_tensor("float32", [2]))


@case("The array is read-only")
def _() -> object:
    mine = np.float32([1, 2])
    y = ow.ops.neg(mine)
    mine[0] = 5
    return y


@case("The context is lost")
def _() -> object:
    here = context()
    here.destroy()
    return here.create_tensor("float32", [2])


def sections() -> dict[str, str]:
    """Heading -> the text block below it, for each section of the page."""
    parts = re.findall(r"^### ([^\n]+)\n\n```text\n(.*?)\n```\n", PAGE, re.MULTILINE | re.DOTALL)
    assert len(parts) == PAGE.count("\n### ")
    return dict(parts)


def test_errors_page_has_all_cases() -> None:
    assert list(sections()) == list(CASES)


@pytest.mark.parametrize("heading", CASES)
def test_errors_page_shows_the_message(heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Word by word; an ellipsis in the page stands for what depends on the machine or the file."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception) as raised:  # noqa: PT011  (the page names the class)
        CASES[heading]()
    shown = " ".join(sections()[heading].split())
    message = f"{type(raised.value).__name__}: {' '.join(str(raised.value).split())}"
    assert re.fullmatch(".*".join(map(re.escape, shown.split("…"))), message), message
