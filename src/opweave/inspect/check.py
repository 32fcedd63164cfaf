"""Check custom operations without their devices: `op.check` and `opweave ops --check`.

The compiler of each kind of kernel compiles the kernels of small calls. Nothing runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import numpy as np

from ..compile.legalise import legalise
from ..core.graph import Graph, Node, map_operands
from ..custom import CustomOp
from ..custom.operation import DeviceName
from ..custom.report import CheckReport, KernelCheck
from ..expr import gpu
from ..expr.gpu import Features, GpuKernel
from ..expr.ir import Formula, Input
from ..expr.kernels import compile as compile_expression
from ..expr.recurrence import compile_recurrence
from ..kernels import KernelCall
from ..kernels.cuda.messages import ExplainedCuda
from ..kernels.excerpts import undefined_names
from ..kernels.expression import descs_of, program_of
from ..kernels.host import HostKernel
from ..kernels.recurrence import recurrence_of
from ..support import lazy_imports, packages
from ..support.errors import (
    MissingExtraError,
    MLError,
    NotSupportedError,
    OperationError,
    declaration_line,
    need_text,
    require,
    user_code,
    user_line,
)
from ..support.names import count_of, short_repr
from .sample_calls import operands_text, sample_calls

if TYPE_CHECKING:
    from ..backends.webgpu.engine import WebGpuDevice
    from ..kernels.wasm import WasmKernel

ARCHITECTURES = ("sm_80", "sm_90")
"""Architectures that CUDA kernels are compiled for by default: NVIDIA's A100 and H100."""

UNITS = 108
"""Multiprocessors of an A100, on which no kernel of a user depends."""

MAX_SHARED = 48 << 10
"""Bytes of shared memory that a block may declare on every NVIDIA GPU (CUDA programming guide, "Shared Memory")."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """A check that succeeded, with the fields of `KernelCheck`."""

    done: str
    checker: str = ""
    warnings: tuple[str, ...] = ()


_Lower: TypeAlias = "Callable[[Node, Features], list[GpuKernel]]"
_Check: TypeAlias = "Callable[[Node], _Pass]"


@lazy_imports.check.provide
def _check(op: CustomOp[Any], kinds: Sequence[str], arch: Any, arguments: Mapping[str, Any]) -> CheckReport:
    for kind in kinds:
        require(kind in get_args(DeviceName), f"{op.name}: check takes {_devices()}, got {short_repr(kind)}")
    checks = check_operation(op, kinds, architectures_of(f"{op.name}: check: arch", arch), arguments)
    faults = [check.fault for check in checks if check.fault is not None]
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise OperationError("\n".join(map(str, faults))) from faults[0]
    for check in checks:
        # A device that the caller names must not be left out in silence.
        if kinds and check.obstacle is not None:
            raise check.obstacle
    return CheckReport(tuple(checks))


def _devices() -> str:
    return ", ".join(map(repr, get_args(DeviceName)))


def architectures_of(title: str, arch: Any) -> tuple[str, ...]:
    """Return the names of architectures, from numbers or names; by default, `ARCHITECTURES`. `title` begins messages."""
    if arch is None:
        return ARCHITECTURES
    names = [re.sub(r"(?i)^sm_", "", str(item)) for item in (arch if isinstance(arch, (list, tuple)) else (arch,))]
    fits = bool(names) and all(re.fullmatch(r"[0-9]{2,3}", name) for name in names)
    require(fits, f"{title} must be compute capabilities such as 90 or 'sm_90', got {short_repr(arch)}")
    return tuple(dict.fromkeys(f"sm_{name}" for name in names))


def check_operation(
    op: CustomOp[Any], devices: Sequence[str], architectures: Sequence[str], arguments: Mapping[str, Any]
) -> list[KernelCheck]:
    """Check what computes an operation on `devices`; by default, all its kernels, its expression and its decomposition.

    Raises:
        ValidationError: an argument is wrong, nothing computes the operation on a device, or no call can be made up.
    """
    calls = sample_calls(op, arguments)
    forms = [_form_on(op, device) for device in devices] if devices else _forms_of(op)
    require(bool(forms), f"{op.name}: has nothing that computes it, so nothing to check")
    are_made_up = not (arguments or op.examples)
    return [_check_form(op, form, device, calls, architectures, are_made_up=are_made_up) for form, device in forms]


def _forms_of(op: CustomOp[Any]) -> list[tuple[str, str]]:
    """Return the kernels and other forms of an operation, each with its device."""
    # Triton's LLVM must be loaded before that of Mesa's drivers.
    order = {device: k for k, device in enumerate(("cpu", "wasm", "cuda", "webgpu"))}
    forms = [(device, device) for device in sorted(op.kernels, key=lambda device: order.get(device, 0))]
    if op.recurrence is not None:
        forms = [("recurrence", "cpu")]
    forms += [("expression", "cpu")] if op.formula is not None else []
    return forms + ([("decomposition", "cpu")] if op.decomposition is not None and not op.is_derived else [])


def _form_on(op: CustomOp[Any], device: str) -> tuple[str, str]:
    """Return the form that computes an operation on a device."""
    if device == "cpu" and op.recurrence is not None:
        return "recurrence", device
    if device in op.kernels:
        return device, device
    # WebAssembly is no device: other forms run on the CPU.
    forms = {"expression": op.formula, "decomposition": op.decomposition} if device != "wasm" else {}
    form = next((form for form, function in forms.items() if function is not None), "")
    listed = ", ".join(map(repr, op.kernels)) or "no device"
    rest = ", no expression and no decomposition" if forms else ""
    require(bool(form), f"{op.name}: has no kernel for {device!r}{rest}; its kernels are for {listed}")
    return form, device


def _check_form(
    op: CustomOp[Any],
    form: str,
    device: str,
    samples: Sequence[Sequence[Node]],
    architectures: Sequence[str],
    *,
    are_made_up: bool,
) -> KernelCheck:
    """Check a form on a call of each sample."""
    kind = f"{form} on {device}" if form == "expression" and device != "cpu" else form
    passes: dict[str, _Pass] = {}
    faults: dict[str, MLError] = {}
    obstacle: MLError | None = None
    with ExitStack() as stack:
        for nodes in samples:
            try:
                check = _check_of(form, device, architectures, stack)
                node, result = _check_first(op, check, nodes)
                passes[operands_text(node)] = result
            except (MissingExtraError, NotSupportedError) as error:
                obstacle = error
            except MLError as error:
                advice = f"checked with {operands_text(nodes[0])}; {op.name}.example(…) declares other operands"
                fault = type(error)(f"{error}\n({advice})") if are_made_up else error
                faults[str(fault)] = fault
    if faults:
        fault = OperationError("\n".join(faults)) if len(faults) > 1 else next(iter(faults.values()))
        return KernelCheck(kind, fault=fault, obstacle=obstacle)
    results = list(dict.fromkeys(passes.values()))
    return KernelCheck(
        kind,
        done=results[0].done if results else "",
        checker=results[0].checker if results else "",
        operands=tuple(passes),
        warnings=tuple(dict.fromkeys(warning for result in results for warning in result.warnings)),
        obstacle=obstacle,
    )


def _check_first(op: CustomOp[Any], check: _Check, nodes: Sequence[Node]) -> tuple[Node, _Pass]:
    """Check the first node that passes; raises the error of the first one if none does."""
    fault: MLError | None = None
    for node in nodes:
        try:
            return node, check(node)
        except (MissingExtraError, NotSupportedError):
            raise
        except MLError as error:
            fault = fault or error
    assert fault is not None, op
    raise fault


def _check_of(form: str, device: str, architectures: Sequence[str], stack: ExitStack) -> _Check:
    if form == "decomposition":
        return _check_decomposition
    if device == "cuda":
        return partial(_check_cuda, _lower_expression if form == "expression" else _lower_kernel, architectures)
    if device == "webgpu":
        engine = stack.enter_context(_webgpu_device())
        return partial(_check_webgpu, _lower_expression if form == "expression" else _lower_kernel, engine)
    return {"expression": _check_expression, "recurrence": _check_recurrence, "cpu": _check_host, "wasm": _check_wasm}[
        form
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Forms


def _call_of(node: Node) -> KernelCall:
    outputs = tuple(output.desc for output in node.outputs)
    return KernelCall(node.title, node.op, descs_of(node.inputs), node.attributes, outputs)


def _version(name: str) -> str:
    return f"{name} {metadata.version(name.lower())}"


def _check_host(node: Node) -> _Pass:
    kernel: HostKernel = node.op.kernels["cpu"]
    call = _call_of(node)
    kernel.prepare(call)
    if not kernel.is_compiled:
        undefined = [f"{node.title}: the kernel{text}" for text in undefined_names(kernel.python)]
        if undefined:
            raise OperationError("\n".join(undefined))
        return _Pass("parameters and names exist; Python is not compiled")
    from numba import typeof

    arrays = map_operands(call.inputs, lambda desc: np.zeros(desc.shape, desc.data_type))
    results = [np.zeros(desc.shape, desc.data_type) for desc in call.outputs]
    arguments = kernel.arguments_of(call, arrays, results)
    try:
        types = tuple(
            typeof(value)  # type: ignore[no-untyped-call]
            for value in arguments.values()
        )
        try:
            kernel.function.compile(types)  # type: ignore[attr-defined]
        except RuntimeError:  # the signatures are given, and were compiled when the function was declared
            _require_signature(kernel, types)
    except Exception as error:
        raise kernel.error_of(call, error) from error
    return _Pass("compiled", _version("Numba"))


def _require_signature(kernel: HostKernel, types: Sequence[Any]) -> None:
    from numba.core.registry import cpu_target

    can_convert = cpu_target.typing_context.can_convert
    signatures: list[Any] = kernel.function.signatures  # type: ignore[attr-defined]
    fits = any(
        len(signature) == len(types)
        and all(can_convert(*pair) is not None for pair in zip(types, signature, strict=True))
        for signature in signatures
    )
    wanted, declared = (f"({', '.join(map(str, items))})" for items in (types, signatures[0]))
    require(fits, f"its signatures, such as {declared}, do not take {wanted}")


def _check_wasm(node: Node) -> _Pass:
    kernel: WasmKernel = node.op.kernels["wasm"]
    kernel.prepare(_call_of(node))
    return _Pass(f"{kernel.function} of {kernel.module.name} validated", _version("wasmtime"))


def _check_expression(node: Node) -> _Pass:
    kernel = compile_expression(_program_of(node))
    is_compiled = kernel.detail.startswith("Halide")
    return _Pass("compiled", _version("Halide")) if is_compiled else _Pass(f"traced; runs on {kernel.detail}")


def _check_recurrence(node: Node) -> _Pass:
    loop = compile_recurrence(recurrence_of(node))
    is_compiled = loop.detail.startswith("Halide")
    return _Pass("compiled", _version("Halide")) if is_compiled else _Pass(f"traced; runs on {loop.detail}")


def _program_of(node: Node) -> Formula:
    """Trace the expression of a node; its results must have the shapes that the shape rule returns."""
    formula = node.op.formula
    assert formula is not None, node
    with _errors_of(node, formula):
        program = program_of(node.op, descs_of(node.inputs), node.attributes)
    shapes, declared = ([list(item.desc.shape) for item in items] for items in (program.outputs, node.outputs))
    if shapes != declared:
        raise OperationError(
            f"{node.title}: its expression yields the shapes {shapes}, it must yield {declared}{declaration_line(formula)}"
        )
    return program


def _check_decomposition(node: Node) -> _Pass:
    decomposition = node.op.decomposition
    assert decomposition is not None, node
    inputs = {operand.name: operand for operand in node.operands}
    outputs = {f"y{number}": operand for number, operand in enumerate(node.outputs)}
    graph = Graph(inputs, outputs, (node,))
    with _errors_of(node, decomposition):
        nodes = legalise(graph, lambda other: other.op is not node.op)[0].nodes
    return _Pass(f"built of {count_of(len(nodes), 'operation')}")


@contextmanager
def _errors_of(node: Node, function: Callable[..., Any]) -> Iterator[None]:
    """Convert errors of a user's function to Opweave's, with the line in the user's file."""
    try:
        with user_code(function, ""):
            yield
    except MLError as error:
        if str(error).startswith(f"{node.title}: "):
            raise
        raise OperationError(f"{node.title}: {error}") from error
    except Exception as error:
        text = f"the function raised {type(error).__name__}: {error}{user_line(error, function)}"
        raise OperationError(f"{node.title}: {text}") from error


# ---------------------------------------------------------------------------------------------------------------------
# GPUs


def _lower_kernel(node: Node, features: Features) -> list[GpuKernel]:
    numbers = count()
    inputs = map_operands(descs_of(node.inputs), lambda desc: Input(next(numbers), desc))
    targets = [Input(next(numbers), output.desc) for output in node.outputs]
    device = "cuda" if features.architecture else "webgpu"
    kernels: list[GpuKernel] = node.op.kernels[device].kernels(_call_of(node), inputs, targets, features)
    return kernels


def _lower_expression(node: Node, features: Features) -> list[GpuKernel]:
    program = _program_of(node)
    refusal = gpu.refusal_of(program, features)
    if refusal:
        raise NotSupportedError(refusal)
    return gpu.kernels(program, features)


def _check_cuda(lower: _Lower, architectures: Sequence[str], node: Node) -> _Pass:
    from ..backends.cuda import compiler, devices
    from ..backends.cuda.devices import CudaInfo
    from ..backends.cuda.engine import features_of

    faults: dict[str, list[str]] = {}
    warnings: dict[str, None] = {}
    lowered = {}
    for architecture in architectures:
        info = CudaInfo(architecture, architecture, UNITS, MAX_SHARED, MAX_SHARED, 0)
        lowered[architecture] = lower(node, features_of(info, "ieee"))
    has_sources = any(kernel.compiled is None for kernels in lowered.values() for kernel in kernels)
    if has_sources:
        _require_nvrtc(devices.is_installed(), devices.trouble_of_nvrtc, node.title, architectures)
    begun = [compiler.begin(kernels, architecture) for architecture, kernels in lowered.items() if has_sources]
    for architecture, kernels in lowered.items():
        for kernel in kernels:
            try:
                (compiled,) = compiler.binaries([kernel], architecture)
            except OperationError as error:
                faults.setdefault(str(error), []).append(architecture)
                continue
            if isinstance(kernel.explain, ExplainedCuda):
                warnings.update(
                    dict.fromkeys(f"{kernel.title}: {text}" for text in kernel.explain.warnings(compiled.log))
                )
    del begun
    if faults:
        texts = [
            text if len(where) == len(architectures) else f"{text}\n(for {', '.join(where)} alone)"
            for text, where in faults.items()
        ]
        raise OperationError("\n".join(texts))
    checkers = [compiler.version()] if has_sources else []
    checkers += sorted({_library_of(kernel) for kernels in lowered.values() for kernel in kernels if kernel.compiled})
    return _Pass(f"compiled for {', '.join(architectures)}", " and ".join(checkers), tuple(warnings))


def _library_of(kernel: GpuKernel) -> str:
    """Return the library that has compiled a kernel, with its version."""
    return _version(kernel.source.removeprefix("// ").partition(" ")[0])


def _require_nvrtc(is_installed: bool, trouble: Callable[[], str], title: str, architectures: Sequence[str]) -> None:
    if not is_installed:
        raise MissingExtraError(need_text("checking CUDA C++", "NVRTC", "pip install 'opweave[cuda]'"))
    if text := trouble():
        raise MissingExtraError(text)
    from ..backends.cuda import compiler, nvrtc

    available = nvrtc.architectures()
    unknown = [architecture for architecture in architectures if architecture not in available]
    require(
        not unknown,
        f"{title}: check: {compiler.version()} compiles for {', '.join(available)}, not for {', '.join(unknown)}",
    )


@contextmanager
def _webgpu_device() -> Iterator[WebGpuDevice]:
    """Open the first WebGPU device of this machine, which validates and compiles WGSL."""
    from ..backends.webgpu.backend import webgpu

    listed = webgpu.devices()
    device = next((device for device in listed if device.available), None)
    if device is None:
        if not packages.is_installed("wgpu"):
            raise MissingExtraError(need_text("checking WGSL", "wgpu", listed[-1].hint))
        raise NotSupportedError(need_text("checking WGSL", "an adapter of WebGPU", listed[-1].hint))
    engine: WebGpuDevice = webgpu.open(device, "default").engine  # type: ignore[attr-defined]
    try:
        yield engine
    finally:
        engine.free_caches()


def _check_webgpu(lower: _Lower, engine: WebGpuDevice, node: Node) -> _Pass:
    faults: dict[str, None] = {}
    for kernel in lower(node, engine.features):
        try:
            engine.pipelines([kernel])
        except OperationError as error:
            faults[str(error)] = None
    if faults:
        raise OperationError("\n".join(faults))
    return _Pass("compiled", f"{_version('wgpu')} on {engine.description.rpartition(', ')[0]}")
