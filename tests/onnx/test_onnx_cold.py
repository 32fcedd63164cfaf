"""A session's first run in a fresh process: which modules it imports, and that it lists no devices."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.parser import parse_model
from onnxruntime.capi import _pybind_state, onnxruntime_pybind11_state as engine
from support.processes import run_python

import opweave as ow
from opweave.backends import BUILT_IN, COMPETING, Backend, find
from opweave.backends.cuda import devices as cuda_devices
from opweave.backends.onnxruntime import in_place, plugins
from opweave.backends.onnxruntime.model import UPDATING
from opweave.backends.onnxruntime.options import is_quantised
from opweave.backends.openvino import devices as openvino_devices
from opweave.backends.webgpu import adapters
from opweave.onnx.convert import operators
from opweave.onnx.model import checks, operator_rules, protobuf, utf8
from opweave.onnx.ort_api import options

X = np.float32([-1, 2])

ENGINES = {"cuda", "halide", "llvmlite", "numba", "openvino", "torch", "triton", "wasmtime", "wgpu"}
TOOLS = {
    *("asyncio", "concurrent.futures", "email", "hashlib", "importlib.metadata", "jinja2", "multiprocessing", "onnx"),
    *("google.protobuf.text_format", "google.protobuf.internal.python_message", "rich", "socket", "ssl", "typer"),
}
OTHER_BACK_ENDS = {f"opweave.backends.{name}" for name in ("cuda", "gpu", "reference", "webgpu")}
COMPILER = {
    *("opweave.context.builder", "opweave.compile.driver", "opweave.expr", "opweave.kernels", "opweave.lazy.array"),
    *(
        "opweave.onnx.session.compiled",
        "opweave.onnx.convert.inference",
        "opweave.onnx.convert.operators",
        "opweave.onnx.convert.trace",
        "opweave.ops",
    ),
    *("opweave.lazy", "opweave.onnx.convert.control", "opweave.onnx.model.functions", "opweave.onnx.session.tuning"),
    *("opweave.backends.onnxruntime.emit", "opweave.backends.onnxruntime.rules", "opweave.backends.openvino.rules"),
}
"""What traces, compiles and tunes a model, which an uncompiled model does without."""

NOT_COMPILING = {
    *("opweave.lazy", "opweave.lazy.array", "opweave.backends.openvino.rules"),
    *("opweave.onnx.model.functions", "opweave.onnx.session.tuning"),
}
"""Those that a model of one node does not need to be compiled."""

NOT_NEEDED = {
    *("opweave.run", "opweave.compile", "opweave.composites", "opweave.onnx.convert", "opweave.backends.openvino"),
    *(f"opweave.core.{name}" for name in ("casts", "conversion", "graph", "operators", "questions", "shapes", "sizes")),
    *("opweave.memory.intermediates", "opweave.memory.mapped", "opweave.memory.planner"),
    *("opweave.backends.updates", "opweave.support.disk_cache"),
    *(f"opweave.onnx.model.{name}" for name in ("engine_rules", "operator_rules", "registry", "wire")),
    *("opweave.onnx.session.io_binding", "opweave.support.hints"),
    *(
        f"opweave.backends.onnxruntime.{name}"
        for name in (
            "bound_model",
            "in_place",
            "kernels",
            "provider_faults",
            "quotients",
            "records",
            "rewrites",
            "scatters",
        )
    ),
}
"""What runs, rewrites and checks other models, which a model of one node does without, and so do most models."""

MAX_MODULES = 75
"""Modules of Opweave for the first run of an uncompiled model, at most, if every engine is installed."""

CPU_PROVIDERS: list[Any] = [None, ["CPUExecutionProvider"], [("CPUExecutionProvider", {})]]

MODELS = {"static": "float[2]", "dynamic": "float[n]"}

PLAIN = 'ow.InferenceSession(MODEL, providers=["CPUExecutionProvider"]{more})'
NEVER = PLAIN.format(more=', specialise="never"')
REPLACED = """
import onnxruntime
with ow.onnx.replacing_onnxruntime():
    session = onnxruntime.InferenceSession(MODEL, providers=PROVIDERS)
    assert isinstance(session, ow.InferenceSession)
"""


def a_model(kind: str = "dynamic", node: str = "Relu(x)") -> bytes:
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({MODELS[kind]} x) => ({MODELS[kind]} y) {{ y = {node} }}'
    serialised: bytes = parse_model(text).SerializeToString()
    return serialised


python = partial(run_python, OPWEAVE_DEVICE="cpu")
"""Only the CPU is a default device there."""


def loaded(make: str, model: bytes, tmp_path: Path) -> set[str]:
    """The modules that a process has loaded, besides those of a test environment, after the first run of a session."""
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    begin = f"import sys\nbefore = set(sys.modules)\nimport numpy as np, opweave as ow\nMODEL = {str(path)!r}\n"
    end = "\nassert session.run(None, {'x': np.float32([-1, 2])})[0].tolist() == [0, 2]\nprint(*set(sys.modules) - before)"
    return set(python(f"{begin}{make}{end}", OPWEAVE_CACHE=str(tmp_path / "cache")).split())  # nothing is tuned


# What is imported ----------------------------------------------------------------------------------------------------


@pytest.mark.long(rows=1)
@pytest.mark.parametrize(
    ("kind", "providers"),
    [
        ("static", "None"),
        ("dynamic", "None"),
        ("static", '["CPUExecutionProvider"]'),
        ("dynamic", '[("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})]'),
        ("dynamic", '["DmlExecutionProvider", "TensorrtExecutionProvider", "CPUExecutionProvider"]'),
    ],
)
def test_first_run_inside_replacing_onnxruntime_imports_no_engine(kind: str, providers: str, tmp_path: Path) -> None:
    make = REPLACED.replace("PROVIDERS", providers)
    assert not loaded(make, a_model(kind), tmp_path) & (ENGINES | TOOLS | OTHER_BACK_ENDS)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize(
    ("provider", "engines"),
    [
        ("WebGpuExecutionProvider", {"wgpu"}),
        ("CUDAExecutionProvider", {"cuda"}),
        ("OpenVINOExecutionProvider", {"openvino"}),
    ],
)
def test_providers_import_only_their_engine(provider: str, engines: set[str], tmp_path: Path) -> None:
    make = REPLACED.replace("PROVIDERS", f"[{provider!r}, 'CPUExecutionProvider']")
    assert loaded(make, a_model(), tmp_path) & ENGINES <= engines


@pytest.mark.long(rows=1)
@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("static", "session = " + PLAIN.format(more="")),
        ("dynamic", "session = " + PLAIN.format(more="")),
        ("dynamic", "session = ow.InferenceSession(MODEL)"),
        ("dynamic", "session = ow.InferenceSession(open(MODEL, 'rb').read())"),
        ("dynamic", "session = ow.InferenceSession(MODEL, ow.ml.create_context(device='cpu'))"),
    ],
)
def test_first_run_imports_no_engine(kind: str, make: str, tmp_path: Path) -> None:
    names = loaded(make, a_model(kind), tmp_path)
    assert "onnxruntime" in names
    assert not names & (ENGINES | TOOLS | OTHER_BACK_ENDS)


def test_first_run_of_a_small_model_imports_little_of_the_standard_library(tmp_path: Path) -> None:
    """Modules that take longer to import than a small model takes to read."""
    names = loaded(f"session = {NEVER}", a_model(), tmp_path)
    assert not names & {"dataclasses", "graphlib", "heapq", "json", "logging", "pathlib", "traceback", "urllib.parse"}


@pytest.mark.long(rows=1)
@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("static", f"session = {NEVER}"),
        ("dynamic", f"session = {NEVER}"),
        ("dynamic", "session = " + PLAIN.format(more="")),
        ("dynamic", REPLACED.replace("PROVIDERS", "None")),
    ],
)
def test_own_session_imports_no_compiler(kind: str, make: str, tmp_path: Path) -> None:
    names = loaded(make, a_model(kind), tmp_path)
    assert sorted(names & (COMPILER | NOT_NEEDED)) == []
    if "opweave.onnx.session.replacement" not in names:
        assert sum(name.startswith("opweave") for name in names) <= MAX_MODULES


@pytest.mark.long
def test_specialise_always_imports_compiler(tmp_path: Path) -> None:
    """The names above are those of modules."""
    make = "session = " + PLAIN.format(more=', specialise="always"')
    assert loaded(make, a_model(), tmp_path) >= COMPILER - NOT_COMPILING


def test_onnx_package_imports_names_by_need() -> None:
    assert python("import sys, opweave.onnx; print('opweave.onnx.session.session' in sys.modules)") == "False\n"
    assert sorted(ow.onnx.__all__) == sorted(name for name in dir(ow.onnx) if not name.startswith("_"))
    for name in ow.onnx.__all__:
        assert getattr(ow.onnx, name).__name__ == name
    with pytest.raises(AttributeError, match=r"module 'opweave\.onnx' has no attribute 'loads'"):
        _ = ow.onnx.loads  # type: ignore[attr-defined]


def test_rules_are_imported_by_need() -> None:
    code = """
import sys
from opweave.backends import find
for name in ("onnxruntime", "openvino", "reference"):
    backend = find(name)
    print(name, any(module.endswith(".matrix") and name in module for module in sys.modules), end=" ")
    print(len(backend.rules) > 50, backend.with_threads(1).rules is backend.rules)
"""
    lines = [f"{name} False True True" for name in ("onnxruntime", "openvino", "reference")]
    assert python(code).splitlines() == lines


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "reference"])
def test_rules_of_an_operation_are_complete_before_those_of_others(name: str) -> None:
    code = f"""
from importlib import import_module
from opweave import composites, ops
from opweave.composites import control
from opweave.core.operation import Op
from opweave.backends import find
backend, names = find({name!r}), [*ops.Operations.listing().values(), *ops.Operations.drafts().values()]
everything = [*names, *(getattr(composites, name) for name in composites.__all__), control.branch, control.loop]
early = {{op: [*backend.rules_of(op)] for op in everything if isinstance(op, Op)}}
package, families = f"{{type(backend).__module__.rpartition('.')[0]}}.rules", import_module(backend.families).FAMILIES
for op, rules in backend.rules.items():
    homes = {{rule.function.__module__ for rule in rules}} - {{type(backend).__module__}}
    assert early.get(op, rules) == rules and homes <= {{f"{{package}}.{{families[op.__module__]}}"}}, (op, homes)
"""
    assert python(code) == ""


# Devices -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def unlisted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing the devices of an engine is an error."""

    def devices(self: Any) -> Any:
        raise AssertionError(f"the devices of {self.name} are listed")

    for name in ("webgpu", "cuda", "openvino"):
        monkeypatch.setattr(type(find(name)), "devices", devices)


@pytest.mark.usefixtures("unlisted")
@pytest.mark.parametrize("kind", MODELS)
def test_replacing_onnxruntime_lists_no_devices(kind: str) -> None:
    with ow.onnx.replacing_onnxruntime():
        for providers in CPU_PROVIDERS:
            session = onnxruntime.InferenceSession(a_model(kind), providers=providers)
            assert session.run(None, {"x": X})[0].tolist() == [0, 2]


def test_session_does_not_call_available_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> list[str]:
        raise AssertionError("a session asks for the providers")

    monkeypatch.setattr(options, "available_providers", asked)
    with ow.onnx.replacing_onnxruntime():
        for specialise in ("always", "never"):
            session = ow.InferenceSession(a_model(), specialise=specialise)  # type: ignore[arg-type]
            assert session.run(None, {"x": X})[0].tolist() == [0, 2]
        with pytest.raises(AssertionError, match="asks for the providers"):
            onnxruntime.get_available_providers()
    assert onnxruntime.get_available_providers() == engine.get_available_providers()


ACCELERATORS: dict[str, tuple[Any, str]] = {
    "WebGpuExecutionProvider": (adapters, "may_have_hardware"),
    "CUDAExecutionProvider": (cuda_devices, "may_be_there"),
    "OpenVINOExecutionProvider": (openvino_devices, "may_have_accelerators"),
}


@pytest.mark.usefixtures("unlisted")
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there are no files of devices")
@pytest.mark.parametrize("here", [(), *[(name,) for name in ACCELERATORS], tuple(ACCELERATORS)])
def test_get_available_providers_tells_by_packages_and_files(
    here: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, (module, function) in ACCELERATORS.items():
        monkeypatch.setattr(module, function, lambda name=name: name in here)
    monkeypatch.setattr(cuda_devices, "has_files", lambda: True)
    monkeypatch.setattr(plugins, "plugins", list)
    with ow.onnx.replacing_onnxruntime():
        for place in (onnxruntime, _pybind_state):
            assert place.get_available_providers() == [*here, "CPUExecutionProvider"]
            assert place.get_device() == ("GPU" if here else "CPU")


def test_get_available_providers_lists_plugins_first(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["QNNExecutionProvider", "WebGpuExecutionProvider"]
    listed = [plugins.Plugin("npu", "qualcomm", name, None) for name in names]
    monkeypatch.setattr(plugins, "plugins", lambda: listed)
    monkeypatch.setattr(adapters, "may_have_hardware", lambda: True)
    found = options.available_providers()
    assert found[:2] == names
    assert found.count("WebGpuExecutionProvider") == 1
    assert found[-1] == "CPUExecutionProvider"


def test_get_available_providers_imports_no_engine() -> None:
    if adapters.may_have_hardware() and sys.platform != "linux":
        pytest.skip("elsewhere there are no files of devices")
    code = """
import sys, onnxruntime, opweave as ow
with ow.onnx.replacing_onnxruntime():
    onnxruntime.get_available_providers(), onnxruntime.get_device()
print(*sys.modules)
"""
    assert not set(python(code).split()) & ENGINES


@pytest.mark.parametrize(("has_files", "asks"), [(True, False), (False, True)])
def test_cuda_detection_asks_driver_without_files(has_files: bool, asks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, listed = find("cuda"), [ow.Device("cuda", "gpu", "cuda", "a GPU")]
    monkeypatch.setattr(cuda_devices, "may_be_there", lambda: False)
    monkeypatch.setattr(cuda_devices, "has_files", lambda: has_files)
    monkeypatch.setattr(type(cuda), "devices", lambda self: listed)
    assert cuda.may_accelerate() == asks


@pytest.mark.parametrize(
    ("devices", "may"),
    [
        ([], False),
        ([ow.Device("cpu", "cpu", "x", "")], False),
        ([ow.Device("npu", "npu", "x", "", available=False)], False),
        ([ow.Device("cpu", "cpu", "x", ""), ow.Device("npu", "npu", "x", "")], True),
    ],
)
def test_back_ends_without_signs_list_their_devices(
    devices: list[ow.Device], may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = find("reference")
    monkeypatch.setattr(type(reference), "devices", lambda self: devices)
    assert reference.may_accelerate() == may


def test_competing_lists_back_ends_that_compete() -> None:
    for name in BUILT_IN:
        assert (type(find(name)).competes is not Backend.competes) == (name in COMPETING), name


# What is read without the converters, and of protobuf ----------------------------------------------------------------


def test_converters_that_update_are_of_com_microsoft() -> None:
    """So the converters are not imported to find those that do."""
    updating = {key for key, converter in operators.CONVERTERS.items() if converter.updates}
    assert ("com.microsoft", "GroupQueryAttention") in updating
    assert {domain for domain, _ in updating} == {"com.microsoft"}


PRODUCTS = re.compile("MatMul|Conv|Gemm|LSTM|GRU|RNN|Attention|MoE")
WEIGHTS_OF_OTHER_FORMS = {"GroupQueryAttention", "MatMulBnb4", "MatMulFpQ4", "MatMulNBits"}
"""Products of floats: their integers are blocks of weights, or a cache of keys and values."""


def test_integer_products_match_pattern() -> None:
    kernels = engine.get_all_opkernel_def()
    taking = {k.op_name for k in kernels for types in k.type_constraints.values() if "tensor(int8)" in types}
    products = {name for name in taking if PRODUCTS.search(name)}
    assert {"MatMulInteger", "ConvInteger", "QLinearConv", "QLinearMatMul"} <= products
    assert {name for name in products if not is_quantised(name)} <= WEIGHTS_OF_OTHER_FORMS


def test_operators_of_modules_that_other_models_do_without() -> None:
    assert {UPDATING} == in_place.IN_PLACE.keys()
    assert operator_rules.RULES.keys() == checks.RULED


@pytest.mark.long(rows=1)
@pytest.mark.parametrize(
    ("type", "body", "measured"),
    [
        ("float", "y = Relu(x)", 0),
        ("float", "y = MatMul(x, x)", 0),
        ("uint8", "z = MatMulInteger(x, x) y = Cast<to: int = 2>(z)", 1),
        ("float", "s = Constant<value: tensor = float {0.5}>() z = QuantizeLinear(x, s) y = DequantizeLinear(z, s)", 1),
    ],
)
def test_saturation_is_measured_for_integer_products_only(type: str, body: str, measured: int, tmp_path: Path) -> None:
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({type}[n, n] x) => ({type}[n, n] y) {{ {body} }}'
    path = tmp_path / "model.onnx"
    path.write_bytes(parse_model(text).SerializeToString())
    dtype = {"float": "float32"}.get(type, type)
    code = f"""
import numpy as np, opweave as ow
ow.InferenceSession({str(path)!r}, specialise="never").run(None, {{"x": np.ones((2, 2), {dtype!r})}})
from opweave.backends.onnxruntime import kernels
print(kernels.saturates.cache_info().misses)
"""
    assert int(python(code)) == measured


def spoiled() -> bytes:
    """A model whose operator is not UTF-8."""
    return a_model().replace(b"Relu", b"R\xfflu")


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize(
    ("make", "is_utf8"), [(a_model, True), (lambda: a_model(node="Neg(x)"), True), (spoiled, False)]
)
def test_is_text_rejects_invalid_utf8(make: Callable[[], bytes], is_utf8: bool, is_large: bool) -> None:
    doc_string = b"\x32\x88\x27" + b"x" * 5000 if is_large else b""
    model = make() + doc_string
    assert (len(model) > utf8.FEW_BYTES) == is_large
    assert utf8.is_text(onnx.ModelProto.FromString(model), model) is is_utf8


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("implementation", ["upb", "python"])
@pytest.mark.parametrize("first", ["opweave.onnx.model.protobuf", "onnx"])
def test_messages_are_those_of_the_package_onnx(implementation: str, first: str) -> None:
    code = f"""
import {first}
import copy, pickle, onnx, opweave.onnx.model.protobuf as protobuf, opweave.onnx.model.utf8 as utf8
for name in ("AttributeProto", "FunctionProto", "GraphProto", "ModelProto", "NodeProto", "TensorProto", "TypeProto"):
    assert getattr(protobuf, name) is getattr(onnx, name), name
assert protobuf.TypeProto.Tensor is onnx.TypeProto.Tensor
assert protobuf.TensorProto.DataType.Name(1) == "FLOAT"
model = onnx.helper.make_model(onnx.helper.make_graph([protobuf.NodeProto(op_type="Relu")], "g", [], []))
assert pickle.loads(pickle.dumps(model)) == copy.deepcopy(model) == model
assert utf8.is_text(model, model.SerializeToString())
utf8.FEW_BYTES = 0
assert utf8.is_text(model, model.SerializeToString())
print(type(model.graph.node[0]).__module__, type(model.graph.node[0]).__qualname__)
"""
    assert python(code, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=implementation) == "onnx.onnx_ml_pb2 NodeProto\n"


def test_message_class_has_members(monkeypatch: pytest.MonkeyPatch) -> None:
    for proto in (onnx.TypeProto, onnx.TensorProto, onnx.ModelProto):
        made = protobuf.message_class(proto.DESCRIPTOR, "onnx.onnx_ml_pb2")
        assert made is proto
        assert made.FromString(proto().SerializeToString()) == proto()
