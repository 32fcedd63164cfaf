"""`opweave.onnxruntime`: the names and submodules of ONNX Runtime, with Opweave's sessions."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import onnxruntime
import onnxruntime.quantization
import onnxruntime.quantization.quant_utils
import pytest
from support.onnx import model, node

import opweave as ow
import opweave.onnxruntime as ort
from opweave.onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidProtobuf,
    NoSuchFile,
    NotImplemented,
)

X = np.float32([[1, -2, 3]])
MODEL = model([node("Relu", "x", "y")], {"x": "float32[n, 3]"}, {"y": "float32[n, 3]"}, opset=17).SerializeToString()

OWN = {
    *("IOBinding", "InferenceSession", "LoraAdapter", "RunOptions", "SessionOptions"),
    *("get_available_providers", "get_device"),
}
OF_MODULES = {"__cached__", "__doc__", "__file__", "__loader__", "__name__", "__package__", "__path__", "__spec__"}


def test_module_has_names_of_onnxruntime() -> None:
    assert dir(ort) == dir(onnxruntime)
    different = {name for name in dir(onnxruntime) if getattr(ort, name) is not getattr(onnxruntime, name)}
    assert different - OF_MODULES == OWN
    with pytest.raises(AttributeError, match="'onnxruntime' has no attribute 'InferenceSesion'"):
        _ = ort.InferenceSesion


def test_star_import_gives_public_names() -> None:
    code = """
import sys
ours, theirs = {}, {}
exec("from opweave.onnxruntime import *", ours)
exec("from onnxruntime import *", theirs)
assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["capi", "capi._pybind_state", "quantization", "quantization.quant_utils"])
def test_submodules_are_those_of_onnxruntime(name: str) -> None:
    ours, theirs = (importlib.import_module(f"{package}.{name}") for package in ("opweave.onnxruntime", "onnxruntime"))
    assert ours is theirs
    assert ours.__spec__ is not None
    assert ours.__name__ == ours.__spec__.name == f"onnxruntime.{name}"


def test_missing_submodule() -> None:
    assert importlib.util.find_spec("opweave.onnxruntime.abacus") is None
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'opweave\.onnxruntime\.abacus'"):
        importlib.import_module("opweave.onnxruntime.abacus")


def test_module_session_runs_on_opweave_alone() -> None:
    session = ort.InferenceSession(MODEL, sess_options=ort.SessionOptions())
    assert session.run(None, {"x": X}, ort.RunOptions())[0].tolist() == np.maximum(X, 0).tolist()
    assert isinstance(session, ow.InferenceSession)
    assert isinstance(session, onnxruntime.InferenceSession)
    assert session.context.device.name == "cpu"
    assert not isinstance(onnxruntime.InferenceSession(MODEL, ort.SessionOptions()), ow.InferenceSession)
    assert ort.get_available_providers() == ow.onnx.ort_api.options.available_providers()
    assert "AzureExecutionProvider" in onnxruntime.get_available_providers()


class Scaled(ort.InferenceSession):  # type: ignore[misc]
    """A class of a program."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return [2 * result for result in super().run(*args, **kwargs)]


@pytest.mark.parametrize(("cls", "factor"), [(ort.InferenceSession, 1), (Scaled, 2)])
def test_module_sessions_are_pickled(cls: Any, factor: int) -> None:
    session = pickle.loads(pickle.dumps(cls(MODEL, providers=["CPUExecutionProvider"])))
    assert type(session) is cls
    assert session.run(None, {"x": X})[0].tolist() == (factor * np.maximum(X, 0)).tolist()


def test_module_binding() -> None:
    session = ort.InferenceSession(MODEL)
    binding = ort.IOBinding(session)
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert binding.copy_outputs_to_cpu()[0].tolist() == np.maximum(X, 0).tolist()
    with pytest.raises(ow.ValidationError, match=r"must be an opweave\.InferenceSession, got onnxruntime\.capi"):
        ort.IOBinding(onnxruntime.InferenceSession(MODEL))


def test_module_errors_are_those_of_onnxruntime() -> None:
    for error, fail in {
        NoSuchFile: lambda: ort.InferenceSession("no.onnx"),
        InvalidProtobuf: lambda: ort.InferenceSession(b"abc"),
        InvalidArgument: lambda: ort.InferenceSession(MODEL).run(None, {"x": X.astype("f8")}),
        TypeError: lambda: ort.InferenceSession(3),
    }.items():
        with pytest.raises(error) as caught:
            fail()
        assert isinstance(caught.value, ow.MLError)


def test_module_options_that_cannot_be_read_are_refused() -> None:
    options = ort.SessionOptions()
    options.add_initializer("w", ort.OrtValue.ortvalue_from_numpy(X))
    assert isinstance(options, onnxruntime.SessionOptions)
    with pytest.raises(NotImplemented, match=r"SessionOptions\.add_initializer cannot be read by Opweave"):
        ort.InferenceSession(MODEL, options)
    with pytest.raises(Fail):
        ort.SessionOptions().register_custom_ops_library("no_such_library.so")
