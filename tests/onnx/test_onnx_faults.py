"""Faults of converters are seen: they raise under the tests, and are told where they cannot."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from support.onnx_nodes import CONTEXT, node_model, reasons

import opweave as ow
from opweave.onnx.convert import operators
from opweave.onnx.model.registry import CONVERTERS, Converter
from opweave.support.errors import NotSupportedError, OperationError
from opweave.support.settings import STRICT

X = np.float32([[-1, 2]])


def broken_converter(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let the converter of Relu fail."""

    def fail(b: object, x: object) -> None:
        raise error

    monkeypatch.setitem(CONVERTERS, ("", "Relu"), Converter.of(fail))


def test_converter_fault_is_raised_if_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    broken_converter(monkeypatch, IndexError("list index out of range"))
    model, _ = node_model("Relu", [X])
    with pytest.raises(IndexError, match="list index out of range"):
        ow.InferenceSession(model, CONTEXT)


def test_converter_fault_falls_back_if_not_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STRICT)
    broken_converter(monkeypatch, IndexError("list index out of range"))
    model, feed = node_model("Relu", [X], opset=13)
    session = ow.InferenceSession(model, CONTEXT)
    assert session.run(None, feed)[0].tolist() == [[0, 2]]
    why = "its converter fails, though ONNX finds nothing wrong with the node (IndexError: list index out of range)"
    assert reasons(session) == [f"Relu: {why}"]


def test_converter_not_supported_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model, feed = node_model("Relu", [X], opset=13)
    broken_converter(monkeypatch, NotSupportedError("no such thing here"))
    session = ow.InferenceSession(model, CONTEXT)
    assert session.run(None, feed)[0].tolist() == [[0, 2]]
    assert reasons(session) == ["Relu: the builder refuses it: no such thing here"]
    broken_converter(monkeypatch, OperationError("no memory"))
    with pytest.raises(OperationError, match="no memory"):
        ow.InferenceSession(model, CONTEXT)


@pytest.mark.parametrize(
    ("op_type", "constants", "reason"),
    [
        ("CumSum", [np.int64([0, 1])], "the axis has 2 values"),
        ("OneHot", [np.int64(2**25), np.float32([0, 1])], f"{2**25} elements are too many to make"),
    ],
)
def test_converter_rejection_of_constants_is_no_fault(op_type: str, constants: list[object], reason: str) -> None:
    inputs = [X.astype(np.int64) if op_type == "OneHot" else X, *constants]
    model, _ = node_model(op_type, inputs)
    with pytest.raises(ow.NotSupportedError, match=reason):
        ow.InferenceSession(model, CONTEXT, fallback="error")


def test_converter_files_do_not_shadow_standard_library() -> None:
    """A script that runs inside of the folder would import it instead."""
    files = {path.stem for path in Path(str(operators.__file__)).parent.glob("*.py")} - {"__init__"}
    assert files
    assert not files & sys.stdlib_module_names


def test_bool_has_one_home() -> None:
    """How bool becomes uint8, and uint8 bool, stands in `booleans` alone."""
    folder = Path(str(operators.__file__)).parent.parent.parent
    homes = [path.name for path in folder.rglob("*.py") if ".view(bool)" in path.read_text()]
    assert homes == ["booleans.py"]
