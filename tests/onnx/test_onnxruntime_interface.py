"""What programs written for ONNX Runtime do with a session: each snippet runs on its class, and on Opweave's in two ways."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from packaging.version import Version
from support.onnx import model, node
from support.processes import run_python

import opweave as ow
from opweave import memory
from opweave.onnx.ort_api import compatibility
from opweave.onnx.ort_api.options import UNREADABLE
from opweave.support.background import background

X = np.arange(-6, 6, dtype=np.float32).reshape(2, 6)
KINDS = ("onnxruntime", "opweave", "replaced")


def a_model() -> onnx.ModelProto:
    """A model that computes relu(x + w); a bool is negated, and a text goes through."""
    tensor = helper.make_tensor_value_info
    inputs = [
        tensor("x", TensorProto.FLOAT, ["batch", 6]),
        tensor("flag", TensorProto.BOOL, [None]),
        tensor("text", TensorProto.STRING, ["words"]),
    ]
    outputs = [
        tensor("y", TensorProto.FLOAT, ["batch", 6]),
        tensor("not", TensorProto.BOOL, [None]),
        tensor("same", TensorProto.STRING, ["words"]),
    ]
    nodes = [
        helper.make_node("Add", ["x", "w"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
        helper.make_node("Not", ["flag"], ["not"]),
        helper.make_node("Identity", ["text"], ["same"]),
    ]
    graph = helper.make_graph(nodes, "a graph", inputs, outputs, doc_string="of three")
    graph.initializer.append(numpy_helper.from_array(np.float32([1, 2, 3, 4, 5, 6]), "w"))
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    proto.producer_name, proto.domain, proto.doc_string = "a test", "com.example", "a model"
    helper.set_model_props(proto, {"character": "abc", "empty": ""})
    return proto


def plain_model(dims: Any = ("batch", 6)) -> onnx.ModelProto:
    """A model that computes relu(x)."""
    return model([node("Relu", "x", "y")], [("x", TensorProto.FLOAT, dims)], [("y", TensorProto.FLOAT, dims)], opset=17)


BYTES, PLAIN = a_model().SerializeToString(), plain_model().SerializeToString()
FEED = {"x": X, "flag": np.array([True, False]), "text": np.array(["a", "bc"], dtype=object)}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(kind: str) -> Iterator[Callable[..., Any]]:
    """The class to make sessions of."""
    if kind == "replaced":
        with ow.onnx.replacing_onnxruntime():
            yield onnxruntime.InferenceSession
    else:
        yield ow.InferenceSession if kind == "opweave" else onnxruntime.InferenceSession


def listed(arguments: Any) -> list[Any]:
    return [(a.name, a.type, a.shape) for a in arguments]


# The same code, the same values --------------------------------------------------------------------------------------

SNIPPETS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "inputs": (lambda s: listed(s.get_inputs()), None),
    "outputs": (lambda s: listed(s.get_outputs()), None),
    "overridable": (lambda s: listed(s.get_overridable_initializers()), []),
    "all outputs": (lambda s: [r.tolist() for r in s.run(None, FEED)], None),
    "no outputs": (lambda s: [r.tolist() for r in s.run([], FEED)], None),
    "two outputs": (lambda s: [r.tolist() for r in s.run(["not", "y"], FEED)], None),
    "positional": (lambda s: s.run(["y"], FEED, None)[0].tolist(), None),
    "by name": (lambda s: s.run(output_names=["y"], input_feed=FEED, run_options=ort.RunOptions())[0].tolist(), None),
    "types": (lambda s: [r.dtype.kind for r in s.run(["y", "not"], FEED)], ["f", "b"]),
    "values as feeds": (
        lambda s: (
            s.run(["y"], {**FEED, "x": ort.OrtValue.ortvalue_from_numpy(X)})[0].tolist(),
            s.run(["not"], {**FEED, "flag": ort.OrtValue.ortvalue_from_numpy(FEED["flag"])})[0].tolist(),
        ),
        None,
    ),
    "metadata": (
        lambda s: [
            getattr(s.get_modelmeta(), name)
            for name in ("producer_name", "graph_name", "domain", "description", "graph_description", "version")
        ],
        ["a test", "a graph", "com.example", "a model", "of three", 2**63 - 1],
    ),
    "own entries": (lambda s: s.get_modelmeta().custom_metadata_map, {"character": "abc", "empty": ""}),
    "providers": (lambda s: s.get_providers(), ["CPUExecutionProvider"]),
    "provider options": (lambda s: s.get_provider_options(), {"CPUExecutionProvider": {}}),
    "other providers": (
        lambda s: (s.set_providers(["CPUExecutionProvider"]), s.get_providers(), s.run(["y"], FEED)[0].sum()),
        None,
    ),
    "session options": (lambda s: type(s.get_session_options()), ort.SessionOptions),
    "fallback": (lambda s: (s.disable_fallback(), s.enable_fallback()), (None, None)),
    "memory": (lambda s: [i.name for i in [*s.get_input_memory_infos(), *s.get_output_memory_infos()]], None),
    "tuning": (lambda s: s.get_tuning_results(), []),
    "no profile": (lambda s: s.end_profiling(), ""),
    "nothing captured": (lambda s: s.release_captured_graph(), None),
    "new value": (lambda s: s.create_ortvalue_from_shape_and_type([2, 3], np.float32, "cpu").shape(), [2, 3]),
}


@pytest.mark.parametrize("name", SNIPPETS)
def test_snippets_equal_onnxruntime(make: Callable[..., Any], name: str) -> None:
    code, wanted = SNIPPETS[name]
    got = code(make(BYTES, providers=["CPUExecutionProvider"]))
    assert got == (code(NATIVE(BYTES)) if wanted is None else wanted)


class NATIVE(onnxruntime.InferenceSession):  # type: ignore[misc]
    """ONNX Runtime's class, also where it is replaced."""

    __init__ = onnxruntime.InferenceSession.__init__


FORMS: dict[str, Callable[[Any, str], Any]] = {
    "path": lambda make, path: make(path),
    "positional": lambda make, path: make(path, ort.SessionOptions(), ["CPUExecutionProvider"], [{}]),
    "keywords": lambda make, path: make(path, sess_options=ort.SessionOptions(), providers=["CPUExecutionProvider"]),
    "no options": lambda make, path: make(path, None, None, None),
    "with options": lambda make, path: make(path, providers=[("CPUExecutionProvider", {"arena": 1})]),
    "no provider": lambda make, path: make(path, providers=[]),
    "pathlib": lambda make, path: make(Path(path)),
    "bytes": lambda make, path: make(Path(path).read_bytes()),
}


@pytest.mark.parametrize("form", FORMS)
def test_sessions_are_made_in_the_same_forms(make: Callable[..., Any], form: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(PLAIN)
    s = FORMS[form](make, str(path))
    assert s.get_providers() == ["CPUExecutionProvider"]
    assert s.run(None, {"x": X})[0].tolist() == np.maximum(X, 0).tolist()


def test_session_accepts_path_or_bytes_when_replacing() -> None:
    with ow.onnx.replacing_onnxruntime():
        s = onnxruntime.InferenceSession(
            path_or_bytes=PLAIN, enable_fallback=0, disabled_optimizers={"ConstantFolding"}
        )
    assert isinstance(s, ow.InferenceSession)


# Bindings ------------------------------------------------------------------------------------------------------------


def bound(s: Any, bind: Callable[[Any], Any]) -> Any:
    binding = s.io_binding()
    bind(binding)
    s.run_with_iobinding(binding)
    return binding


def test_io_binding_with_arrays(make: Callable[..., Any]) -> None:
    s, x, out = make(PLAIN), X.copy(), np.full_like(X, 9)
    binding = s.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data)
    binding.synchronize_inputs()
    s.run_with_iobinding(binding, ort.RunOptions())
    binding.synchronize_outputs()
    assert out.tolist() == np.maximum(X, 0).tolist()
    x[:] = 3  # what is bound is read when the session runs
    s.run_with_iobinding(binding)
    assert set(out.flat) == {3}
    (copy,) = binding.copy_outputs_to_cpu()
    out[:] = 4
    assert set(copy.flat) == {3}


def test_io_binding_allocates_outputs(make: Callable[..., Any]) -> None:
    s = make(PLAIN)
    binding = s.io_binding()
    for rows in (2, 1):
        binding.bind_output("y")
        binding.bind_cpu_input("x", X[:rows])
        s.run_with_iobinding(binding)
        (value,) = binding.get_outputs()
        assert (value.shape(), value.data_type(), value.device_name()) == ([rows, 6], "tensor(float)", "cpu")
        assert value.numpy().tolist() == np.maximum(X[:rows], 0).tolist()
        assert len(binding.get_outputs_as_ortvaluevector()) == 1


def test_io_binding_with_ort_values(make: Callable[..., Any]) -> None:
    s = make(PLAIN)
    x, y = ort.OrtValue.ortvalue_from_numpy(X.copy()), ort.OrtValue.ortvalue_from_shape_and_type([2, 6], np.float32)
    binding = bound(s, lambda b: (b.bind_ortvalue_input("x", x), b.bind_ortvalue_output("y", y)))
    assert y.numpy().tolist() == np.maximum(X, 0).tolist()
    x.update_inplace(-X)
    s.run_with_iobinding(binding)
    assert y.numpy().tolist() == np.maximum(-X, 0).tolist()
    assert binding.get_outputs()[0].data_ptr() == y.data_ptr()


def test_io_binding_with_addresses_and_onnx_types(make: Callable[..., Any]) -> None:
    x, out = X.copy(), np.zeros_like(X)
    bound(
        make(PLAIN),
        lambda b: (
            b.bind_input("x", "cpu", 0, TensorProto.FLOAT, [2, 6], x.ctypes.data),
            b.bind_output("y", "cpu", 0, TensorProto.FLOAT, [2, 6], out.ctypes.data),
        ),
    )
    assert out.tolist() == np.maximum(X, 0).tolist()


def test_io_binding_output_in_input_memory(make: Callable[..., Any]) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X.copy())
    bound(make(PLAIN), lambda b: (b.bind_ortvalue_input("x", value), b.bind_ortvalue_output("y", value)))
    assert value.numpy().tolist() == np.maximum(X, 0).tolist()


def test_io_binding_clear(make: Callable[..., Any]) -> None:
    s = make(PLAIN)
    binding = bound(s, lambda b: (b.bind_cpu_input("x", X), b.bind_output("y")))
    binding.clear_binding_inputs()
    with pytest.raises(Exception, match="x"):
        s.run_with_iobinding(binding)
    binding.bind_cpu_input("x", X[:1])
    binding.clear_binding_outputs()
    binding.bind_output("y")
    s.run_with_iobinding(binding)
    assert binding.get_outputs()[0].shape() == [1, 6]


def test_bindings_read_and_write_in_place() -> None:
    s = ow.InferenceSession(PLAIN, context=ow.ml.create_context(device="cpu"))
    out = np.zeros_like(X)
    before = memory.copies.count
    bound(s, lambda b: (b.bind_cpu_input("x", X), b.bind_output("y", "cpu", 0, np.float32, X.shape, out.ctypes.data)))
    assert memory.copies.count == before
    assert out.sum() == np.maximum(X, 0).sum()


@pytest.mark.parametrize(
    ("bind", "text"),
    [
        (lambda b: b.bind_cpu_input("q", X), "the model has the inputs ['x']; unknown: 'q'"),
        (lambda b: b.bind_output("q"), "the model has the outputs ['y']; unknown: 'q'"),
        (lambda b: b.bind_output("y", "cuda"), "output 'y': memory must be on the CPU, got device_type='cuda'"),
        (lambda b: b.bind_output("y", buffer_ptr=8), "output 'y': memory at an address needs element_type and shape"),
        (lambda b: b.bind_input("x", "cpu", 0, np.float32, [2], 0), "input 'x': buffer_ptr must be an address, got 0"),
        (
            lambda b: b.bind_input("x", "cpu", 0, 8, [2], 64),
            "input 'x': element_type must be a TensorProto.DataType with",
        ),
        (lambda b: b.bind_input("x", "cpu", 0, "zz", [2], 64), "input 'x': element_type must be a data type, got 'zz'"),
        (lambda b: b.bind_input("x", "cpu", 0, "f4", [-2], 64), "input 'x': shape must have sizes from 0, got [-2]"),
        (lambda b: b.bind_ortvalue_input("x", X), "input 'x' must be an OrtValue, got ndarray"),
        (lambda b: b.bind_cpu_input("x", X), "at least one output must be bound; see bind_output"),
    ],
)
def test_wrong_bindings_are_named(bind: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(ow.MLError) as caught:
        bound(ow.InferenceSession(PLAIN), bind)
    assert str(caught.value).startswith(text)


def test_io_binding_rejects_other_session(make: Callable[..., Any]) -> None:
    binding = make(PLAIN).io_binding()
    with pytest.raises((ValueError, TypeError), match=r"session"):
        make(PLAIN).run_with_iobinding(binding)


# Other ways to run ---------------------------------------------------------------------------------------------------


def test_run_with_ort_values(make: Callable[..., Any]) -> None:
    s, x = make(PLAIN), ort.OrtValue.ortvalue_from_numpy(X)
    for names in (["y"], None):
        (y,) = s.run_with_ort_values(names, {"x": x})
        assert isinstance(y, ort.OrtValue)
        assert y.numpy().tolist() == np.maximum(X, 0).tolist()


def test_run_with_vectors_of_values(make: Callable[..., Any]) -> None:
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtDevice, OrtValueVector

    s, feeds, fetches = make(PLAIN), OrtValueVector(), OrtValueVector()
    feeds.push_back(ort.OrtValue.ortvalue_from_numpy(X)._get_c_value())
    cpu = OrtDevice(OrtDevice.cpu(), OrtDevice.default_memory(), 0)
    s.run_with_ortvaluevector(ort.RunOptions(), ["x"], feeds, ["y"], fetches, [cpu])
    assert ort.OrtValue(fetches[0]).numpy().tolist() == np.maximum(X, 0).tolist()


def test_run_async_with_a_callback(make: Callable[..., Any]) -> None:
    s = make(PLAIN)
    for x, fails in ((X, False), (X[0], True)):
        called: list[Any] = []
        done = Event()

        def callback(results: Any, user_data: Any, error: str, called: Any = called, done: Event = done) -> None:
            called.extend([results, user_data, error])
            done.set()

        assert s.run_async(["y"], {"x": x}, callback, "mine") is None
        assert done.wait(300)
        results, user_data, error = called
        assert (user_data, bool(error)) == ("mine", fails)
        assert fails or results[0].tolist() == np.maximum(X, 0).tolist()


def test_run_async_logs_failing_callback(caplog: pytest.LogCaptureFixture) -> None:
    done = Event()

    def callback(*_: Any) -> None:
        done.set()
        raise KeyError("mine")

    s = ow.InferenceSession(PLAIN)
    s.run_async(None, {"x": X}, callback, None)
    assert done.wait(300)
    deadline = time.monotonic() + 60
    while not caplog.records and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [record.getMessage() for record in caplog.records] == ["the callback of run_async failed"]


# Options -------------------------------------------------------------------------------------------------------------


def test_free_dimensions_are_overridden(make: Callable[..., Any]) -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    options.add_free_dimension_override_by_name("unknown", 7)
    s = make(PLAIN, options)
    assert (s.get_inputs()[0].shape, s.get_outputs()[0].shape) == ([2, 6], [2, 6])
    with pytest.raises(Exception, match="x"):
        s.run(None, {"x": X[:1]})


def test_free_dimensions_are_overridden_by_denotation(make: Callable[..., Any]) -> None:
    proto = plain_model([None, 6])
    proto.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 2)
    assert make(proto.SerializeToString(), options).get_inputs()[0].shape == [2, 6]


def test_fix_shapes_precedes_overrides() -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 3)
    s = ow.InferenceSession(PLAIN, options, fix_shapes={"batch": 2})
    assert s.get_inputs()[0].shape == [2, 6]


def test_external_weights_of_bytes_model_in_given_folder(make: Callable[..., Any], tmp_path: Path) -> None:
    proto = a_model()
    onnx.save_model(proto, str(tmp_path / "m.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
    s = make((tmp_path / "m.onnx").read_bytes(), options)
    assert s.run(["y"], FEED)[0].tolist() == np.maximum(X + np.arange(1, 7), 0).tolist()


def test_optimized_model_filepath(make: Callable[..., Any], tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    make(PLAIN, options)
    assert onnx.load(tmp_path / "optimised.onnx").graph.output[0].name == "y"


def test_end_profiling_writes_file(make: Callable[..., Any], tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "times")
    s = make(PLAIN, options)
    for _ in range(3):
        s.run(None, {"x": X})
    name = s.end_profiling()
    assert name.startswith(str(tmp_path / "times"))
    events = json.loads(Path(name).read_text())
    runs = [event for event in events if event["name"] == "model_run"]
    assert len(runs) == 3
    assert all(event["ph"] == "X" and event["dur"] >= 0 for event in runs)


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Levels and messages, without those of compiling that takes more than a second, as it may on a busy machine."""
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.module != "progress"]


GROWTH = """
import sys
import numpy as np, onnxruntime, opweave as ow

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

options = onnxruntime.SessionOptions()
options.enable_cpu_mem_arena = sys.argv[2] == "arena"
session = ow.InferenceSession(sys.argv[1], options)
session.run(None, {"x": np.ones(1, "float32")})
x = np.ones(2**24, "float32")
before = resident()
session.run(None, {"x": x})
print(resident() - before)
"""
"""The bytes that a process keeps after a run with intermediates of 64 MiB."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_session_without_arena_frees_memory_of_runs(tmp_path: Path) -> None:
    nodes = [node("Sin", "x", "a"), node("Cos", "a", "b"), node("ReduceSum", "b", "y", keepdims=0)]
    path = tmp_path / "model.onnx"
    path.write_bytes(model(nodes, {"x": "float32[n]"}, {"y": "float32[]"}).SerializeToString())
    kept = {arena: int(run_python(GROWTH, str(path), arena)) for arena in ("arena", "none")}
    assert kept["none"] < 2**24 < 2**26 <= kept["arena"] + 2**22


def test_ignored_options_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "opweave")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    s = ow.InferenceSession(PLAIN, options, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    run = ort.RunOptions()
    run.only_execute_path_to_fetches = True
    s.run(None, {"x": X}, run)
    assert logged(caplog) == [
        (
            "INFO",
            "SessionOptions: graph_optimization_level is ignored: a graph is always compiled with all optimisations",
        ),
        ("WARNING", "SessionOptions: session.set_denormal_as_zero is ignored: the engine keeps denormal numbers"),
        ("WARNING", "provider CUDAExecutionProvider is ignored: Opweave has no such device here"),
        ("INFO", "RunOptions: only_execute_path_to_fetches is ignored: a compiled model computes all outputs"),
    ]


def test_log_severity_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "opweave")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    ow.InferenceSession(PLAIN, options, providers=["CUDAExecutionProvider"])
    assert logged(caplog) == []


def test_default_options_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "opweave")
    s = ow.InferenceSession(PLAIN, ort.SessionOptions(), ["CPUExecutionProvider"])
    s.run(None, {"x": X}, ort.RunOptions())
    assert logged(caplog) == []


def test_runs_do_not_start_once_terminate_is_set(make: Callable[..., Any]) -> None:
    run = ort.RunOptions()
    run.terminate = True
    with pytest.raises((Fail, ow.OperationError), match="terminate"):
        make(PLAIN).run(None, {"x": X}, run)


@pytest.mark.long(rows=1)
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize("dims", [[64, 4096], ["rows", 4096]], ids=["compiled", "ONNX Runtime, uncompiled"])
@pytest.mark.parametrize("count", [1, 3])
def test_threads_are_as_many_as_asked_for(make: Callable[..., Any], count: int, dims: Any) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = count
    x = np.ones((64, 4096), np.float32)
    make(PLAIN).run(None, {"x": X})  # what is made once in a process
    background.wait()  # what tests before this one have left to be compiled
    before = set(Path("/proc/self/task").iterdir())
    s = make(plain_model(dims).SerializeToString(), options)
    s.run(None, {"x": x})
    while any(
        t.name == "opweave.support.progress" for t in threading.enumerate()
    ):  # it ends a second after a compilation
        time.sleep(0.1)
    deadline = time.monotonic() + 60
    while len(new := set(Path("/proc/self/task").iterdir()) - before) >= count and time.monotonic() < deadline:
        time.sleep(0.01)  # threads that were joined may still be listed
    assert len(new) == count - 1


def test_threads_that_must_not_spin() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert ow.InferenceSession(PLAIN, options).context.power_preference == "low-power"


@pytest.mark.parametrize("providers", [None, ["CPUExecutionProvider"]], ids=str)
def test_accuracy_level_of_narrow_weights_is_a_precision(providers: Any) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    assert ow.InferenceSession(PLAIN, options, providers).context.precision == "ieee"
    assert ow.InferenceSession(PLAIN, options, providers, precision="float32").context.precision == "float32"
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4")
    assert ow.InferenceSession(PLAIN, options, providers).context.precision == "float32"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"providers": 3}, "providers must be a list of names, got int"),
        ({"providers": [3]}, "providers must hold names, or pairs of a name and a dict, got 3"),
        ({"providers": ["CPUExecutionProvider"], "provider_options": []}, "provider_options must be a list as long as"),
        (
            {"providers": [("CPUExecutionProvider", {})], "provider_options": [{}]},
            "providers must be names where provider_o",
        ),
        ({"provider_options": [{}]}, "provider_options must come with providers"),
        ({"sess_options": 3}, "sess_options must be onnxruntime.SessionOptions, or an MLContext for context, got int"),
    ],
)
def test_wrong_arguments_are_named(arguments: Any, text: str) -> None:
    with pytest.raises(ow.ValidationError) as caught:
        ow.InferenceSession(PLAIN, **arguments)
    assert str(caught.value).startswith(text)


def test_session_rejects_two_contexts() -> None:
    context = ow.ml.create_context(device="cpu")
    assert ow.InferenceSession(PLAIN, context).context is context
    with pytest.raises(ow.ValidationError, match="context is given twice"):
        ow.InferenceSession(PLAIN, context, context=context)


def test_session_rejects_ort_format() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.load_model_format", "ORT")
    with pytest.raises(ow.NotSupportedError, match="'ORT' cannot be read"):
        ow.InferenceSession(PLAIN, options)


def test_providers_choose_devices() -> None:
    s = ow.InferenceSession(PLAIN, providers=["CPUExecutionProvider"])
    assert s.context.device.name == "cpu"
    s = ow.InferenceSession(PLAIN, context=ow.ml.create_context(device="reference"), providers=["CPUExecutionProvider"])
    assert s.context.device.name == "reference"
    s.set_providers(["CPUExecutionProvider"])
    assert s.context.device.name == "cpu"
    assert s.run(None, {"x": X})[0].sum() == np.maximum(X, 0).sum()


def test_copies_of_bound_outputs_are_counted() -> None:
    binding = ow.InferenceSession(PLAIN).io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    binding.run()
    before = memory.copies.count
    (first,), (second,) = binding.copy_outputs_to_cpu(), binding.copy_outputs_to_cpu()
    assert memory.copies.count == before + 2
    assert not np.shares_memory(first, second)


def test_set_providers_keeps_other_arguments(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    s = ow.InferenceSession(PLAIN, options, providers=["CPUExecutionProvider"], fix_shapes={"batch": 2})
    s.set_providers(["CPUExecutionProvider"])
    assert s.get_session_options() is options
    assert s.get_inputs()[0].shape == [2, 6]


def test_set_providers_then_pickle() -> None:
    s = ow.InferenceSession(PLAIN, ow.ml.create_context(device="reference"), fix_shapes={"batch": 2})
    s.set_providers(["CPUExecutionProvider"])
    made = pickle.loads(pickle.dumps(s))
    assert (made.context.device.name, made.get_inputs()[0].shape) == ("cpu", [2, 6])


def test_wrong_run_options_are_named() -> None:
    with pytest.raises(ow.ValidationError, match=r"run_options must be onnxruntime\.RunOptions, got dict"):
        ow.InferenceSession(PLAIN).run(None, {"x": X}, {})


def test_unsupported_methods_refer_to_explain() -> None:
    s = ow.InferenceSession(PLAIN)
    for method in (s.get_input_epdevices, s.get_provider_graph_assignment_info):
        with pytest.raises(ow.NotSupportedError, match=r"session\.explain\(\)"):
            method()


# The tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "owner"),
    [
        (compatibility.tables()["onnxruntime"], onnxruntime),
        (compatibility.tables()["InferenceSession"], onnxruntime.InferenceSession),
        (compatibility.tables()["IOBinding"], onnxruntime.IOBinding),
        (compatibility.tables()["SessionOptions"], onnxruntime.SessionOptions),
        (compatibility.tables()["RunOptions"], onnxruntime.RunOptions),
    ],
    ids=["module", "session", "binding", "session options", "run options"],
)
def test_compatibility_tables_have_all_public_names(rows: Any, owner: Any) -> None:
    engine = Version(onnxruntime.__version__)
    listed = compatibility.names(row for row in rows if not row.since or engine >= Version(row.since))
    assert len(listed) == len(set(listed))
    submodules = {name for name in dir(owner) if f"{onnxruntime.__name__}.{name}" in sys.modules and name != "capi"}
    assert set(listed) == {name for name in dir(owner) if not name.startswith("_")} - submodules  # of other imports


def test_session_and_binding_have_listed_names() -> None:
    for rows, cls in (
        (compatibility.tables()["InferenceSession"], ow.InferenceSession),
        (compatibility.tables()["IOBinding"], IO_BINDING),
    ):
        for name in compatibility.names(rows):
            method = getattr(cls, name)
            assert callable(method)
            assert method.__doc__


def test_unreadable_options_are_those_of_the_tables() -> None:
    for name, methods in UNREADABLE.items():
        rows = compatibility.tables()[name]
        assert compatibility.names(r for r in rows if r.state == "unread" and r.warn) == list(methods)


def test_compatibility_page_is_current(tmp_path: Path) -> None:
    root, copy = Path(__file__).parents[2], tmp_path / "page.md"
    page = (root / "docs" / "onnxruntime.md").read_text(encoding="utf-8")
    copy.write_text(page, encoding="utf-8")
    subprocess.run([sys.executable, root / "tools" / "onnxruntime_tables.py", copy], check=True)
    assert page == copy.read_text(encoding="utf-8"), "run `make docs`"


IO_BINDING = type(ow.InferenceSession(PLAIN).io_binding())
