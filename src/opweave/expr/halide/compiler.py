"""Compile programs with Halide, and call the compiled code."""

from __future__ import annotations

import ctypes
import hashlib
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import INFO, DataType
from ...errors import OperationError
from ..evaluate import check_arrays, overlap, through_copies
from ..fingerprint import fingerprint
from ..ir import Load, Output, Program, Source, walk
from . import cache, objects
from .fusion import fused
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
        self._idle: list[_Calls] = []
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
        name = self.program.name
        run = self._part.bound(inputs, outputs, name)
        if self._checks is None:
            return run
        holds = [np.zeros((), "uint8") for _ in self._messages]
        check, messages = self._checks.bound(inputs, holds, name), self._messages

        def checked() -> None:
            check()
            for held, message in zip(holds, messages, strict=True):
                if not held:
                    raise OperationError(f"{name}: {message}")
            run()

        return checked

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Run once on arrays that are known to fit; outputs must not overlap inputs.

        Raises:
            OperationError: as for `bind`.
        """
        if self._checks is not None:
            return self.bind(inputs, outputs)()
        try:
            calls = self._idle.pop()  # threads must not share one
        except IndexError:
            calls = _Calls(self._part, self.program.name)
        calls.fill(inputs, outputs)
        calls()
        self._idle.append(calls)
        return None


def _object_of(module: Any) -> bytes:
    """Compile a Halide module to an object file."""
    code = objects.temporary_bytes(partial(_write, module, hl.OutputFileType.llvm_assembly)).decode()
    try:
        return objects.assembled(fused(code))
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
        data = cache.kept(key, lambda: self._compiled(name))
        self.library = objects.Library(objects.separated(data))
        self.entries = [_Entry(self.library.address(f"{name}_{k}_argv")) for k in range(len(self.stages))]

    def _compiled(self, name: str) -> bytes:
        with _lock:
            try:
                return self._object(name)
            except hl.HalideError as error:
                raise OperationError(f"{self.program.name}: Halide cannot compile this expression: {error}") from None

    def _object(self, name: str) -> bytes:
        target = objects.target().with_feature(hl.TargetFeature.NoRuntime)
        objects_made = []  # one per stage: linking modules would lose strict float semantics
        for number, stage in enumerate(self.stages):
            sources = sources_of(stage)
            parameters = {}
            for k, source in enumerate(sources):
                parameter = hl.ImageParam(buffer_type(source.desc.data_type), 1, f"x{k}")
                parameter.dim(0).set_bounds(0, math.prod(source.desc.shape)).set_stride(1)
                parameters[source] = parameter
            nest = Nest(stage, f"{name}_{number}", parameters, objects.target())
            module = nest.function.compile_to_module(list(parameters.values()), f"{name}_{number}", target)
            objects_made.append(_object_of(module))
        return objects.joined(objects_made)

    def bound(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], name: str) -> Callable[[], None]:
        """A function that runs the stages in order."""
        calls = _Calls(self, name)
        calls.fill(inputs, outputs)
        return calls.bound((*inputs, *outputs))


class _Calls:
    """Prepared calls of a program's stages; only the addresses of inputs and outputs are missing."""

    def __init__(self, part: _Part, name: str) -> None:
        self.library, self.name = part.library, name
        program = part.program
        headers: dict[Source | Output, list[_Header]] = {}
        self._calls: list[tuple[Any, int]] = []
        self._parts: list[Any] = []

        def buffer(source: Source | Output, data_type: DataType, shape: tuple[int, ...]) -> _Buffer:
            made = _Buffer(data_type, shape)
            headers.setdefault(source, []).append(made.header)
            return made

        temporaries: dict[Source | Output, np.ndarray] = {}
        for stage, entry, shape in zip(part.stages, part.entries, part.shapes, strict=True):
            sources = sources_of(stage)
            buffers = [buffer(s, s.desc.data_type, (s.desc.element_count,)) for s in sources]
            buffers += [buffer(t.source, t.data_type, shape) for t in stage.targets]
            pointers = (ctypes.c_void_p * len(buffers))(*(b.address for b in buffers))
            self._parts += [buffers, pointers]
            self._calls.append((entry, ctypes.addressof(pointers)))
            for target in stage.targets:
                if target.source not in program.outputs:
                    temporaries[target.source] = np.empty(target.source.desc.shape, target.data_type)
        for source, array in temporaries.items():
            for header in headers[source]:
                header.host = array.ctypes.data
        self._parts.append(temporaries)
        self._inputs = [headers.get(source, []) for source in program.inputs]
        self._outputs = [headers.get(output, []) for output in program.outputs]

    def fill(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Set the addresses of inputs and outputs."""
        for headers, array in zip(self._inputs, inputs, strict=True):
            address = array.__array_interface__["data"][0]
            for header in headers:
                header.host = address
        for headers, array in zip(self._outputs, outputs, strict=True):
            address = array.__array_interface__["data"][0]
            for header in headers:
                header.host = address

    def __call__(self) -> None:
        for entry, address in self._calls:
            if entry(address):
                raise OperationError(f"{self.name}: {objects.last_error()}")

    def bound(self, arrays: tuple[np.ndarray, ...]) -> Callable[[], None]:
        """A function that makes the calls and keeps the arrays alive."""
        if len(self._calls) > 1:

            def run_all(_: object = arrays) -> None:
                self()

            return run_all
        (entry, address), name = self._calls[0], self.name

        def run(_: object = (self, arrays)) -> None:
            if entry(address):
                raise OperationError(f"{name}: {objects.last_error()}")

        return run


def sources_of(stage: Stage) -> list[Source]:
    """The arrays that a stage reads, each once."""
    loads = (node.source for node in walk(*stage.roots) if isinstance(node, Load))
    return [source for source in dict.fromkeys(loads) if source not in stage.rows]


# ---------------------------------------------------------------------------------------------------------------------
# halide_buffer_t


class _Dimension(ctypes.Structure):
    _fields_ = (
        ("min", ctypes.c_int32),
        ("extent", ctypes.c_int32),
        ("stride", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
    )


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


class _Buffer:
    """A `halide_buffer_t` of a given type and shape; set `header.host` to the address of the data."""

    def __init__(self, data_type: DataType, shape: tuple[int, ...]) -> None:
        self._dimensions = (_Dimension * max(len(shape), 1))()
        stride = 1
        for k, extent in enumerate(reversed(shape)):
            self._dimensions[k] = _Dimension(0, extent, stride, 0)
            stride *= extent
        info = INFO[data_type]
        code = _CODES["u" if data_type == "float16" else info.kind]
        self.header = _Header(code=code, bits=info.bits, lanes=1, dimensions=len(shape), dim=self._dimensions)
        self.address = ctypes.addressof(self.header)
