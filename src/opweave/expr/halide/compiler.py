"""Compile programs with Halide, and call the compiled code."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ... import disk_cache
from ...dtypes import INFO, DataType
from ...errors import OperationError
from ..evaluate import check_arrays, overlap, through_copies
from ..fingerprint import fingerprint
from ..ir import Load, Output, Program, Source, walk
from . import objects
from .fusion import edited
from .mathematics import hl
from .nest import Nest, buffer_type
from .stages import Loops, Stage, checking, divided

_lock = threading.Lock()  # Halide's compiler is not thread-safe


def compile(program: Program) -> HalideKernel:
    """Compile a program, or load it from the cache.

    Args:
        program: what to compile; shapes are fixed.

    Returns:
        The kernel, to be bound to arrays.

    Raises:
        MissingExtraError: halide or llvmlite is not installed.
        OperationError: Halide cannot compile it.
    """
    return HalideKernel(program)


class HalideKernel:
    """A compiled program.

    Attributes:
        program: what it computes.
        detail: a description for tables, such as "Halide, vectorised by 16, 2 threads".
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        checks = checking(program)
        self._checks = _Part(checks) if checks else None
        self._part = _Part(program)
        self._idle: list[tuple[_Calls, Callable[[], None]]] = []
        self._messages = [check.message for check in program.checks]
        lanes = objects.target().natural_vector_size(hl.Float(32))
        count = objects.threads()
        self.detail = f"Halide, vectorised by {lanes}, {count} thread{'s' if count != 1 else ''}"

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        """A function that computes `outputs` from `inputs`, C-contiguous arrays of the program's descriptors.

        Raises:
            ValidationError: an array has another data type or shape.

        Raises (the function):
            OperationError: a check of the program fails (outputs are not modified), or out of memory.
        """
        check_arrays(self.program, inputs, outputs)
        if overlap(self.program, inputs, outputs):
            results = [np.empty_like(output) for output in outputs]
            return through_copies(self.bind(inputs, results), results, outputs)
        run = self._part.bound(inputs, outputs)
        if self._checks is None:
            return run
        holds = [np.zeros((), "uint8") for _ in self._messages]
        check, messages = self._checks.bound(inputs, holds), self._messages

        def checked() -> None:
            check()
            for held, message in zip(holds, messages, strict=True):
                if not held:
                    raise OperationError(f"{self.program.name}: {message}")
            run()

        return checked

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Run once on arrays that are known to fit; outputs must not overlap inputs.

        Raises:
            OperationError: as for `bind`.
        """
        if self._checks is not None:
            self.bind(inputs, outputs)()
            return
        try:
            calls, run = self._idle.pop()  # threads must not share one
        except IndexError:
            calls = _Calls(self._part)
            run = calls.bound()
        calls.fill(inputs, outputs)
        run()
        self._idle.append((calls, run))


def _object_of(module: Any) -> bytes:
    """Compile a Halide module to an object file."""
    code = objects.temporary_bytes(partial(_write, module, hl.OutputFileType.llvm_assembly)).decode()
    try:
        return objects.assembled(edited(code))
    except RuntimeError:  # llvmlite's LLVM cannot parse the output of Halide's LLVM
        return objects.temporary_bytes(partial(_write, module, hl.OutputFileType.object))


def _write(module: Any, kind: Any, path: str) -> None:
    module.compile({kind: path})


_Entry = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)  # releases the GIL


class _Part:
    """The compiled stages of a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.stages = divided(program)
        self.shapes = [Loops(stage).shape for stage in self.stages]
        name = f"opweave_{fingerprint(program)[:32]}"
        objects.runtime()
        key = hashlib.sha256(f"{fingerprint(program)} {objects.target()} {objects.version()}".encode()).hexdigest()
        # An object for each stage: linking Halide's modules would lose strict float semantics.
        made = [
            disk_cache.kept(f"{key}-{k}", partial(self._compiled, s, f"{name}_{k}")) for k, s in enumerate(self.stages)
        ]
        self.library = objects.Library(made)
        self.entries = [_Entry(self.library.address(f"{name}_{k}_argv")) for k in range(len(self.stages))]

    def _compiled(self, stage: Stage, name: str) -> bytes:
        target = objects.target().with_feature(hl.TargetFeature.NoRuntime)
        parameters = {}
        with _lock:
            try:
                for k, source in enumerate(sources_of(stage)):
                    parameter = hl.ImageParam(buffer_type(source.desc.data_type), 1, f"x{k}")
                    parameter.dim(0).set_bounds(0, source.desc.element_count).set_stride(1)
                    parameters[source] = parameter
                nest = Nest(stage, name, parameters, objects.target())
                return _object_of(nest.function.compile_to_module(list(parameters.values()), name, target))
            except hl.HalideError as error:
                raise OperationError(f"{self.program.name}: Halide cannot compile this expression: {error}") from None

    def bound(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        """A function that runs the stages on these arrays."""
        calls = _Calls(self)
        calls.fill(inputs, outputs)
        return calls.bound((*inputs, *outputs))


class _Calls:
    """Calls of a program's stages, in order; only the addresses of inputs and outputs are missing."""

    def __init__(self, part: _Part) -> None:
        program = part.program
        self._part = part
        self._calls: list[tuple[Any, int]] = []
        self._pointers: list[Any] = []
        self._stored: list[np.ndarray] = []
        headers: dict[Source | Output, list[_Header]] = {}
        for stage, entry, shape in zip(part.stages, part.entries, part.shapes, strict=True):
            made: list[tuple[Source | Output, _Header]] = [
                (source, _header(source.desc.data_type, (source.desc.element_count,))) for source in sources_of(stage)
            ]
            made += [(target.source, _header(target.source.desc.data_type, shape)) for target in stage.targets]
            for array, header in made:
                headers.setdefault(array, []).append(header)
            pointers = (ctypes.POINTER(_Header) * len(made))(*(ctypes.pointer(header) for _, header in made))
            self._pointers.append(pointers)
            self._calls.append((entry, ctypes.addressof(pointers)))
        for target in (target for stage in part.stages for target in stage.targets):
            if target.source not in program.outputs:
                self._stored.append(np.empty(target.source.desc.shape, target.source.desc.data_type))
                for header in headers[target.source]:
                    header.host = _address(self._stored[-1])
        both: list[Source | Output] = [*program.inputs, *program.outputs]
        self._headers = [headers.get(array, []) for array in both]

    def fill(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Set the addresses of inputs and outputs."""
        for headers, array in zip(self._headers, (*inputs, *outputs), strict=True):
            address = _address(array)
            for header in headers:
                header.host = address

    def bound(self, arrays: object = None) -> Callable[[], None]:
        """A function that makes the calls, and keeps the arrays alive."""
        name, kept = self._part.program.name, (self, arrays)

        def calling(entry: Any, address: int) -> Callable[[], None]:
            def run(_: object = kept) -> None:
                if entry(address):
                    raise OperationError(f"{name}: {objects.last_error()}")

            return run

        runs = [calling(*call) for call in self._calls]
        if len(runs) == 1:
            return runs[0]

        def run_all() -> None:
            for run in runs:
                run()

        return run_all


def sources_of(stage: Stage) -> list[Source]:
    """The arrays that a stage reads, each once."""
    loads = (node.source for node in walk(*stage.roots) if isinstance(node, Load))
    return [source for source in dict.fromkeys(loads) if source not in stage.rows]


# ---------------------------------------------------------------------------------------------------------------------
# halide_buffer_t


class _Dimension(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("min", "extent", "stride", "flags")]


class _Header(ctypes.Structure):
    """`halide_buffer_t` of HalideRuntime.h."""

    _fields_ = (
        ("device", ctypes.c_uint64),
        ("device_interface", ctypes.c_void_p),
        ("host", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("dimensions", ctypes.c_int32),
        ("dim", ctypes.POINTER(_Dimension)),
        ("padding", ctypes.c_void_p),
    )


_CODES = {"i": 0, "u": 1, "f": 2}


def _header(data_type: DataType, shape: tuple[int, ...]) -> _Header:
    """The description of a contiguous array; `host`, the address of its elements, is not set."""
    dimensions = (_Dimension * len(shape))()
    stride = 1
    for k, extent in enumerate(reversed(shape)):
        dimensions[k] = _Dimension(0, extent, stride)
        stride *= extent
    info = INFO[data_type]
    code = _CODES["u" if data_type == "float16" else info.kind]
    return _Header(code=code, bits=info.bits, lanes=1, dimensions=len(shape), dim=dimensions)


def _address(array: np.ndarray) -> int:
    """The address of the elements of a contiguous array, which is not empty."""
    if array.flags.writeable:  # takes an eighth of the time
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    address: int = array.__array_interface__["data"][0]
    return address
