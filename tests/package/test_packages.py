"""Optional packages that are missing, too old or broken: what users are told, and what works all the same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import planted
import pytest
from typer.testing import CliRunner

import opweave as ow
from opweave import backends
from opweave.backends.cuda import servers
from opweave.backends.openvino import devices as openvino
from opweave.cli import system
from opweave.cli.common import app
from opweave.support import packages
from opweave.support.errors import import_extra

# Triton -----------------------------------------------------------------------------------------------------------------

TRITON = """
import json, warnings
from support.cuda_driver import CpuDriver
from opweave.backends.cuda import devices, nvidia
from opweave.backends.cuda.devices import CudaInfo
from opweave import backends
import opweave as ow

SHOWN = True
ARCHITECTURE = "sm_90"
for other in ("webgpu", "openvino"):  # which take long to load
    del backends.BUILT_IN[other]
info = CudaInfo("a processor", ARCHITECTURE, units=132, max_shared=49152, max_dynamic_shared=232448, memory=2**30)
devices.trouble = lambda: ""
devices.infos = lambda: (info,)
nvidia.NvidiaDriver = lambda *_: CpuDriver(info=info)

def create(**options):
    try:
        return str(ow.ml.create_context(device="cuda", **options))
    except ow.NotSupportedError as error:
        return str(error)

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    contexts = [create(), create(), create(precision="ieee")]
if SHOWN:
    from typer.testing import CliRunner
    from opweave.cli.common import app
    import opweave.cli
(device,) = (device for device in ow.devices() if device.backend == "cuda")
print(json.dumps({
    "contexts": contexts,
    "warnings": [(w.category.__name__, str(w.message), w.filename) for w in caught],
    "precisions": device.precisions,
    "fault": device.fault,
    "tf32": create(precision="tf32"),
    "devices": CliRunner().invoke(app, ["devices"]).output if SHOWN else "",
    "doctor": CliRunner().invoke(app, ["doctor"]).output if SHOWN else "",
}))
"""
"""Contexts on a CUDA device of the tests, and what is said of it."""

HIDDEN = TRITON.replace("SHOWN = True", "SHOWN = False")
"""The same without the command line."""

PURPOSE = "computing on the tensor cores of NVIDIA's GPUs needs"
LOSS = "without it, products are slower, and there are no precisions 'tf32', 'bfloat16' and 'float16'"


def working_triton(folder: Path) -> None:
    """The modules that Opweave imports of Triton before it compiles."""
    planted.plant(folder, "triton", version="3.9.1")
    planted.plant(folder, "triton.compiler")
    planted.plant(folder, "triton.compiler.compiler")
    planted.plant(folder, "triton.compiler.code_generator")
    planted.plant(folder, "triton.knobs", "import types\nnvidia = types.SimpleNamespace(ptxas=1, ptxas_blackwell=1)")


def triton(text: str = "", version: str = "") -> Callable[[Path], None]:
    return lambda folder: planted.plant(folder, "triton", text, version)


PROBLEMS = {
    "missing": (None, "Triton: pip install 'opweave[cuda]'"),
    "raises": (
        triton("raise RuntimeError('no [LLVM] here')", "3.9.0"),
        "Triton, which cannot be imported (RuntimeError: no [LLVM] here): pip install --force-reinstall 'triton>=3.9'",
    ),
    "has parts missing": (
        triton("", "3.10.0"),
        "Triton, which cannot be imported (ModuleNotFoundError: No module named 'triton.compiler'): "
        "pip install --force-reinstall 'triton>=3.9'",
    ),
    "crashes": (
        triton("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "3.9.0"),
        "Triton, which cannot be imported (its process ended): pip install --force-reinstall 'triton>=3.9'",
    ),
    "old": (
        triton("", "3.6.0"),
        "Triton 3.9 or newer, and 3.6.0 is installed: pip install --upgrade 'triton>=3.9'",
    ),
    "without metadata": (
        triton(),
        "Triton 3.9 or newer, and a version that is not stated is installed: pip install --upgrade 'triton>=3.9'",
    ),
}
"""What is wrong with Triton: what makes it so, and what is said."""

is_there = find_spec("triton") is not None


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_create_context_warns_once_of_unusable_triton(problem: str, tmp_path: Path) -> None:
    make, said = PROBLEMS[problem]
    if is_there and problem in ("missing", "without metadata"):
        pytest.skip("Triton is installed here")
    if make is not None:
        make(tmp_path)
    is_shown = problem == "raises"  # the command line takes a second, and shows the same text for all
    found = _run(tmp_path, TRITON if is_shown else HIDDEN)
    fault = f"{PURPOSE} {said}; {LOSS}"
    assert found["warnings"] == [["RuntimeWarning", fault, "<string>"]]
    assert found["contexts"] == ["<MLContext on cuda>"] * 3
    assert (found["fault"], found["precisions"]) == (fault, ["float32", "ieee"])
    message = found["tf32"]
    assert message.startswith(
        "precision 'tf32': device 'cuda' cannot compute so, only as 'float32' or 'ieee'; no device"
    )
    assert "all together only as 'float32'" in message
    assert message.endswith(f"; {fault}")
    if is_shown:
        assert f"limited here\n  cuda (cuda):\n    {fault}\n" in found["devices"]
        assert f"limited: {fault}" in re.sub(r"\s+", " ", found["doctor"])


@pytest.mark.long
def test_create_context_is_silent_with_usable_triton(tmp_path: Path) -> None:
    working_triton(tmp_path)
    found = _run(tmp_path, HIDDEN)
    assert (found["warnings"], found["fault"]) == ([], "")
    assert found["precisions"] == ["float32", "ieee", "tf32", "bfloat16", "float16"]
    assert found["tf32"] == "<MLContext on cuda>"


@pytest.mark.long
def test_triton_is_found_in_folders_that_the_program_adds(tmp_path: Path) -> None:
    working_triton(tmp_path / "vendored")
    found = _run(tmp_path, f"import sys; sys.path.insert(0, {str(tmp_path / 'vendored')!r})\n{HIDDEN}")
    assert (found["warnings"], found["fault"]) == ([], "")


@pytest.mark.long
def test_devices_without_tensor_cores_do_without_triton(tmp_path: Path) -> None:
    triton("", "3.6.0")(tmp_path)
    found = _run(tmp_path, HIDDEN.replace("sm_90", "sm_75"))
    assert (found["warnings"], found["fault"], found["precisions"]) == ([], "", ["float32", "ieee"])


def _run(folder: Path, code: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(planted.run(folder, code).splitlines()[-1])
    return found


# Other packages ---------------------------------------------------------------------------------------------------------

DRIVER = """
class CUdevice_attribute: pass
def cuInit(_): return (0,)
def cuDeviceGetCount(): return (0, 1)
"""

CUDA = """
import opweave as ow
from opweave import backends
for other in ("webgpu", "openvino"):  # which take long to load
    del backends.BUILT_IN[other]
(device,) = backends.find("cuda").devices()
assert device.hint == device.fault
print(device.hint)
for options in {"device": "cuda"}, {"precision": "tf32"}:
    try:
        ow.ml.create_context(**options)
    except ow.NotSupportedError as error:
        assert device.hint in str(error), error
"""


@pytest.mark.long(rows=1)
@pytest.mark.parametrize(
    ("bindings", "nvrtc", "said"),
    [
        (
            "raise OSError('x')",
            "",
            "cuda-bindings, which cannot be imported (OSError: x): pip install --force-reinstall ",
        ),
        ("import nothing_such", "", "cuda-bindings, which cannot be imported (ModuleNotFoundError: No module named "),
        (
            "",
            "raise ImportError('y')",
            "NVRTC, which cannot be loaded (ImportError: y): pip install --force-reinstall ",
        ),
        (
            "",
            "def nvrtcVersion(): raise RuntimeError('no libnvrtc.so.13\\nlooked in /usr')",
            "NVRTC, which cannot be loaded (RuntimeError: no libnvrtc.so.13): pip install --force-reinstall nvidia-cuda-nvrtc",
        ),
    ],
    ids=["bindings", "a need of the bindings", "nvrtc", "its library"],
)
def test_cuda_device_names_what_does_not_load(bindings: str, nvrtc: str, said: str, tmp_path: Path) -> None:
    planted.plant(tmp_path, "cuda.bindings", bindings)
    planted.plant(tmp_path, "cuda.bindings.driver", DRIVER)
    planted.plant(tmp_path, "cuda.bindings.nvrtc", nvrtc)
    assert planted.run(tmp_path, CUDA).startswith(f"running on NVIDIA's GPUs needs {said}")


ENGINES = """
import warnings
import opweave as ow
from opweave.backends import hardware
from opweave.backends.openvino import devices as openvino
from opweave.backends.webgpu import adapters
hardware.may_have_gpu = adapters.may_have_hardware = openvino.may_have_accelerators = lambda: True
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        print(ow.ml.create_context().device.backend)
print(*(w.message for w in caught), sep="\\n")
print(*(f"{d.backend} {d.hint}" for d in ow.devices() if not d.available and d.backend != "cuda"), sep="\\n")
from typer.testing import CliRunner
from opweave.cli.common import app
import opweave.cli
print(CliRunner().invoke(app, ["doctor"]).output)
"""


@pytest.mark.long
@pytest.mark.parametrize("error", ["RuntimeError('no')", "ImportError('no')"])
def test_devices_work_without_unimportable_packages(error: str, tmp_path: Path) -> None:
    texts = []
    for name, purpose in {"wgpu": "running on WebGPU devices", "openvino": "running on OpenVINO"}.items():
        planted.plant(tmp_path, name, f"raise {error}")
        cause = f"{error.partition('(')[0]}: no"
        texts.append(
            f"{purpose} needs {name}, which cannot be imported ({cause}): pip install --force-reinstall {name}"
        )
    lines = planted.run(tmp_path, ENGINES).splitlines()
    assert lines[:4] == ["onnxruntime", "onnxruntime", *texts]
    assert f"webgpu {texts[0]}" in lines
    assert f"openvino {texts[1]}" in lines
    assert any("not here" in line and texts[1] in line for line in lines)


TUNE = """
import opweave as ow
context = ow.ml.create_context(device="cpu")
builder = ow.MLGraphBuilder(context)
x = builder.input("x", "float32", [300, 300])
graph = builder.build({"y": builder.matmul(x, builder.exp(x))})
print(graph.tune(seconds=0))
print(graph.explain())
"""


@pytest.mark.long
@pytest.mark.parametrize("version", ["", "2026.4.1"])
def test_tune_says_that_openvino_cannot_be_imported(version: str, tmp_path: Path) -> None:
    planted.plant(tmp_path, "openvino", "raise RuntimeError('no')", version)
    table, explained = planted.run(tmp_path, TUNE).split("graph(", 1)
    reason = "openvino refused: MissingExtraError: running on OpenVINO needs openvino, which cannot be imported"
    assert reason in table
    assert reason in explained


EXPRESSIONS = """
import warnings
import numpy as np
import opweave as ow
from opweave.expr import kernels
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    context = ow.ml.create_context(device="cpu", backend="onnxruntime")
    for _ in range(2):
        builder = ow.MLGraphBuilder(context)
        y = x = builder.input("x", "float32", [100000])
        for _ in range(6):
            y = builder.mul(builder.add(y, x), builder.sub(y, x))
        graph = builder.build({"y": y})
        assert "expression" not in graph.explain(), graph.explain()
    program = ow.expr.trace(lambda x: x * 2, "double", [ow.Desc("float32", (4,))])
    print(kernels.compile(program).detail)
    out = np.empty(4, np.float32)
    kernels.compile(program).run([np.ones(4, np.float32)], [out])
    assert out.tolist() == [2] * 4
print(*(f"{w.category.__name__} {w.message}" for w in caught), sep="\\n")
try:
    kernels.compile(program, "halide")
except ow.MissingExtraError as error:
    print(error)
"""


@pytest.mark.long(rows=1)
@pytest.mark.skipif(find_spec("halide") is None, reason="the extra halide is not installed")
@pytest.mark.parametrize(
    ("package", "text"), [("halide", "raise RuntimeError('no')"), ("llvmlite", "import no_such_package")]
)
def test_expressions_run_without_importable_compiler(package: str, text: str, tmp_path: Path) -> None:
    planted.plant(tmp_path, package, text)
    detail, warning, error = planted.run(tmp_path, EXPRESSIONS).splitlines()
    cause = "RuntimeError: no" if "raise" in text else "ModuleNotFoundError: No module named 'no_such_package'"
    fault = f"{package}, which cannot be imported ({cause}): pip install --force-reinstall {package}"
    assert error == f"compiling expressions needs {fault}"
    assert detail == f"NumPy; {error}"
    assert warning == f"RuntimeWarning {error}; without it, NumPy or engines run expressions, which takes longer"


@pytest.mark.long
@pytest.mark.skipif(find_spec("halide") is None, reason="the extra halide is not installed")
def test_expressions_without_llvmlite_warn_of_the_half_of_the_extra(tmp_path: Path) -> None:
    code = f"import sys; sys.modules['llvmlite'] = None\n{EXPRESSIONS}"
    detail, warning, *_ = planted.run(tmp_path, code).splitlines()
    assert detail == "NumPy; compiling expressions needs llvmlite: pip install 'opweave[halide]'"
    assert warning.startswith(
        "RuntimeWarning compiling expressions needs llvmlite: pip install 'opweave[halide]'; without"
    )


@pytest.mark.parametrize("chosen", ["numpy", "halide"])
@pytest.mark.skipif(find_spec("halide") is None, reason="the extra halide is not installed")
def test_chosen_expression_engine_is_not_replaced(chosen: str, tmp_path: Path) -> None:
    planted.plant(tmp_path, "halide", "raise RuntimeError('no')")
    code = f"""
import os, warnings
os.environ["OPWEAVE_EXPRESSIONS"] = {chosen!r}
warnings.simplefilter("error")
import opweave as ow
from opweave.expr import kernels
program = ow.expr.trace(lambda x: x * 2, "double", [ow.Desc("float32", (4,))])
try:
    print(kernels.compile(program).detail)
except ow.MissingExtraError as error:
    print(error)
"""
    said = planted.run(tmp_path, code)
    assert said.startswith(
        "NumPy\n" if chosen == "numpy" else "compiling expressions needs halide, which cannot be imported"
    )


def test_webassembly_names_an_engine_that_cannot_be_imported(tmp_path: Path) -> None:
    planted.plant(tmp_path, "wasmtime", "raise OSError('libwasmtime.so: no such file')")
    code = (
        "import opweave as ow\nfrom opweave.kernels.wasm import library\n"
        "try: library.load()\nexcept ow.MissingExtraError as error: print(error)"
    )
    assert planted.run(tmp_path, code) == (
        "a WebAssembly module needs wasmtime, which cannot be imported (OSError: libwasmtime.so: no such file): "
        "pip install --force-reinstall wasmtime\n"
    )


def test_doctor_lists_broken_extras(tmp_path: Path) -> None:
    modules = {"halide": "halide", "numba": "numba", "openvino": "openvino", "wasm": "wasmtime", "webgpu": "wgpu"}
    for module in modules.values():
        planted.plant(tmp_path, module, "raise OSError('no [lib]')")
    code = f"""
from opweave.cli import extras, system
system.missing = lambda extra: []
for extra in {list(modules)}:
    print(system._state(extra, extras.PURPOSES[extra]))
"""
    lines = planted.run(tmp_path, code).splitlines()
    for module, line in zip(modules.values(), lines, strict=True):
        said = f"needs {module}, which cannot be imported (OSError: no [lib]): pip install --force-reinstall {module}"
        assert line.startswith("broken: ")
        assert said in line


# OpenVINO's devices -----------------------------------------------------------------------------------------------------


class Engine:
    """An engine of which some calls fail."""

    available_devices = ("CPU", "GPU.1")

    def __init__(self, failing: str) -> None:
        self.failing = failing

    def get_property(self, device: str, name: str) -> str:
        if self.failing in (device, name):
            raise RuntimeError(f"{device} has no {name}\nat plugin.cpp:123")
        return {"FULL_DEVICE_NAME": "a device", "OPTIMIZATION_CAPABILITIES": "FP32"}.get(name, "")


@pytest.mark.long(rows=2)
@pytest.mark.parametrize("failing", ["CPU", "FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES", "list", "start"])
def test_openvino_device_failure_names_reason(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def core() -> Engine:
        if failing == "start":
            raise RuntimeError("no plugins.xml")
        return Engine(failing)

    def no_list(self: Engine) -> tuple[str, ...]:
        raise RuntimeError("no plugins.xml")

    if failing == "list":
        monkeypatch.setattr(Engine, "available_devices", property(no_list))
        monkeypatch.setattr(Engine, "get_property", no_list)
    monkeypatch.setattr(openvino, "is_installed", lambda: True)
    monkeypatch.setattr(openvino, "version", lambda: "1.0")
    monkeypatch.setattr(openvino, "core", core)
    why = {"list": "no plugins.xml", "start": "no plugins.xml", "CPU": "CPU has no FULL_DEVICE_NAME"}.get(
        failing, f"CPU has no {failing}"
    )
    fault = f"OpenVINO fails: RuntimeError: {why}"
    backend = backends.find("openvino")
    assert backend.device_named("cpu") is None
    (cpu,) = (device for device in backend.devices() if device.name == "cpu")
    assert (cpu.available, cpu.hint, cpu.fault) == (False, fault, fault)
    gpus = [device.available for device in backend.devices() if device.name == "gpu:intel:1"]
    assert gpus == ([] if failing in ("list", "start") else [failing == "CPU"])
    assert any(device.backend == "onnxruntime" and device.available for device in ow.devices())
    with pytest.raises(ow.NotSupportedError, match=re.escape(f"'openvino' is not available here: {fault}; 'cpu' has:")):
        ow.ml.create_context(device="cpu", backend="openvino")
    with pytest.raises(ow.NotSupportedError, match=re.escape(f"; {fault}")):
        ow.ml.create_context(precision="bfloat16")
    monkeypatch.setattr(system, "faults_of", lambda extra: [])  # which would import packages
    text = re.sub(r"\s+", " ", CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "400"}).output)
    assert f"device cpu not here: {fault}" in text


def test_openvino_device_failure_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backends.find("openvino")
    monkeypatch.setattr(type(backend), "device_named", lambda self, name: None)
    listed = backends.Device("cpu", "cpu", "openvino", "an engine")
    monkeypatch.setattr(type(backend), "devices", lambda self: [listed])
    with pytest.raises(ow.NotSupportedError, match="not available here: its engine failed when it was asked for"):
        ow.ml.create_context(device="cpu", backend="openvino")


# Modules of users that have the name of a package ------------------------------------------------------------------------

EXTRAS = {
    "openvino": "openvino",
    "wgpu": "webgpu",
    "cuda.bindings.driver": "cuda",
    "tokenizers": "chat",
    "wasmtime": "wasm",
}
EXTRAS |= {
    "halide": "halide",
    "llvmlite.binding": "halide",
    "jinja2.sandbox": "chat",
    "llguidance": "chat",
    "PIL.Image": "demo",
    "prometheus_client": "server",
    "ray": "scale",
    "uvicorn": "server",
}

IMPORT = """
import sys
import opweave as ow
from opweave.support import packages
from opweave.support.errors import import_extra
try:
    import_extra({module!r}, {extra!r}, "a test")
except ow.MissingExtraError as error:
    print(error)
print(packages.is_installed({module!r}), "ran" if hasattr(sys, "ran") else "")
"""


def run_beside(folder: Path, code: str, script: str = "main.py") -> str:
    """What a program prints that is a script in a folder, and in which another module may have a package's name."""
    (folder / script).write_text(code)
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(ow.__file__).parents[1]),
        "OPWEAVE_CACHE": str(folder / "cache"),
    }
    environment.pop("OPWEAVE_DEVICE", None)
    command = [sys.executable, str(folder / script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, cwd="/", check=False)
    return done.stdout + (done.stderr.splitlines() or [""])[-1]


@pytest.mark.parametrize("module", EXTRAS)
def test_module_of_the_program_that_shadows_a_package_is_named(module: str, tmp_path: Path) -> None:
    name = module.partition(".")[0]
    file = tmp_path / f"{name}.py"
    file.write_text("import sys\nsys.ran = True\n")
    said = run_beside(tmp_path, IMPORT.format(module=module, extra=EXTRAS[module]))
    package = {"PIL": "pillow", "cuda": "cuda-bindings"}.get(name, name)
    assert said == f"a test needs {package}, but {file} shadows the package {name}: rename it\nTrue ran\n"


@pytest.mark.parametrize("package", ["numpy", "onnx", "onnxruntime"])
def test_module_that_shadows_a_requirement_is_named(package: str, tmp_path: Path) -> None:
    (tmp_path / f"{package}.py").write_text("")
    code = "import opweave as ow\now.ml.create_context(device='cpu')\now.InferenceSession('model.onnx')"
    said = run_beside(tmp_path, code)
    assert said.endswith(f"needs {package}, but {tmp_path / package}.py shadows the package {package}: rename it")


@pytest.mark.skipif(not packages.is_installed("cuda.bindings"), reason="pip install 'opweave[cuda]'")
def test_check_names_the_module_that_shadows_the_bindings_of_cuda(tmp_path: Path) -> None:
    (tmp_path / "cuda.py").write_text("")
    code = "from opweave.backends.cuda.devices import trouble_of_nvrtc\nprint(trouble_of_nvrtc())"
    assert f"but {tmp_path / 'cuda.py'} shadows the package cuda: rename it" in run_beside(tmp_path, code)


def test_script_that_shadows_a_package_is_named(tmp_path: Path) -> None:
    code = "import opweave as ow\now.ml.create_context(device='cpu', backend='openvino')"
    said = run_beside(tmp_path, code, "openvino.py")  # which imports itself, and is not initialised then
    assert f"needs openvino, but {tmp_path / 'openvino.py'} shadows the package openvino: rename it" in said


def test_is_installed_does_not_run_a_module_to_find_its_parts(tmp_path: Path) -> None:
    (tmp_path / "cuda.py").write_text("raise SystemExit('ran')")
    code = "from opweave.support import packages\nprint(packages.is_installed('cuda.bindings'))"
    assert run_beside(tmp_path, code) == "True\n"


def test_folder_without_modules_is_no_package(tmp_path: Path) -> None:
    (tmp_path / "no_such_package").mkdir()
    (tmp_path / "no_such_package" / "model.onnx").write_text("")
    said = run_beside(tmp_path, "from opweave.support import packages\nprint(packages.is_installed('no_such_package'))")
    assert said == "False\n"


def test_package_without_the_attribute_that_is_needed(tmp_path: Path) -> None:
    planted.plant(tmp_path, "wasmtime", "")
    assert planted.run(tmp_path, IMPORT.format(module="wasmtime", extra="wasm")).startswith(
        "a test needs wasmtime, which cannot be imported (AttributeError: module 'wasmtime' has no attribute 'Engine'): "
        "pip install --force-reinstall wasmtime\n"
    )


@pytest.mark.parametrize("package", packages.NEEDED)
def test_packages_have_the_attributes_that_are_needed(package: str) -> None:
    module = pytest.importorskip(package)
    assert hasattr(module, packages.NEEDED[package])
    assert packages.shadow(package) == ""


def test_requirements_are_those_of_the_project() -> None:
    project = tomllib.loads((Path(ow.__file__).parents[2] / "pyproject.toml").read_text())["project"]
    names = sorted(re.match(r"\w+", text)[0] for text in project["dependencies"])  # type: ignore[index]
    assert list(packages.REQUIRED) == names


# The parts --------------------------------------------------------------------------------------------------------------


def test_import_extra_keeps_the_error_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.plant(tmp_path, "broken_package", "raise ValueError('first line\\nsecond line')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ow.MissingExtraError) as caught:
        import_extra("broken_package", "demo", "a test")
    assert isinstance(caught.value.__cause__, ValueError)
    assert str(caught.value) == (
        "a test needs broken_package, which cannot be imported (ValueError: first line): "
        "pip install --force-reinstall broken_package"
    )


def test_warn_once_points_at_the_caller() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for text in ("", "a test needs nothing", "a test needs nothing"):
            packages.warn_once(text)
    assert [(str(w.message), w.filename) for w in caught] == [("a test needs nothing", __file__)]


def test_oldest_triton_is_that_of_the_extra() -> None:
    text = (Path(ow.__file__).parents[2] / "pyproject.toml").read_text()
    assert f'"{servers.REQUIREMENT[1:-1]};' in text
