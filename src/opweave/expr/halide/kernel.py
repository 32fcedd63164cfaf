"""Compile programs, or load them from the cache on disk, and call their code.

Cached programs run without importing Halide and llvmlite.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.dtypes import INFO, DataType
from ...support import disk_cache
from ...support.errors import OperationError
from ..evaluate import check_arrays, evaluate, overlap, through_copies
from ..fingerprint import fingerprint
from ..ir import Formula
from . import runtime
from .image import load, with_header, without_header
from .stages import checks_of


def compile(program: Formula) -> HalideKernel:
    """Compile a program, or load it from the cache."""
    return HalideKernel(program)


class HalideKernel:
    """A compiled program; `detail` describes it in tables: "Halide, vectorised by 16, 2 threads" say."""

    def __init__(self, program: Formula) -> None:
        self.program = program
        checks = checks_of(program)
        self._checks = _Part(checks) if checks else None
        self._part = _Part(program)
        self._idle: list[tuple[_KernelCalls, Callable[[], None]]] = []
        self._messages = [check.message for check in program.checks]
        count = runtime.threads()
        self.detail = f"Halide, vectorised by {self._part.compiled.lanes}, {count} thread{'s' if count != 1 else ''}"

    def at(self, sizes: Mapping[str, int]) -> HalideKernel:
        return self

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        """Return a function that computes `outputs` from `inputs`, C-contiguous arrays of the program's descriptors.

        If a check of the program fails, outputs are not modified.
        """
        check_arrays(self.program, inputs, outputs)
        if overlap(self.program, inputs, outputs):
            results = [np.empty_like(output) for output in outputs]
            return through_copies(self.bind(inputs, results), results, outputs)
        run = self._part.make_runner(inputs, outputs)
        if self._checks is None:
            return run
        holds = [np.zeros((), "uint8") for _ in self._messages]
        check, messages = self._checks.make_runner(inputs, holds), self._messages

        def check_and_run() -> None:
            check()
            for held, message in zip(holds, messages, strict=True):
                if not held:
                    # Raises an error that shows the value.
                    evaluate(self.program, inputs, [np.empty_like(output) for output in outputs])
                    raise OperationError(f"{self.program.name}: {message}")
            run()

        return check_and_run

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Run once on arrays that are known to fit; outputs must not overlap inputs."""
        if self._checks is not None:
            self.bind(inputs, outputs)()
            return
        try:
            calls, run = self._idle.pop()  # threads must not share one
        except IndexError:
            calls = _KernelCalls(self._part)
            run = calls.make_runner()
        calls.fill(inputs, outputs)
        run()
        self._idle.append((calls, run))


_Entry = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)  # releases the GIL


@dataclass(frozen=True)
class CompiledProgram:
    """A compiled program: one function for each loop nest, called in order.

    Attributes:
        calls: the name of each function, with the number and shape of each array that it takes. Arrays are numbered:
            inputs, outputs, `stored`.
        stored: data type and shape of each intermediate array.
        lanes: elements of a float32 vector.
    """

    calls: tuple[tuple[str, tuple[tuple[int, tuple[int, ...]], ...]], ...]
    stored: tuple[tuple[DataType, tuple[int, ...]], ...]
    lanes: int
    code: bytes

    def to_bytes(self) -> bytes:
        return with_header([self.calls, self.stored, self.lanes], self.code)

    @classmethod
    def from_bytes(cls, data: bytes) -> CompiledProgram:
        (calls, stored, lanes), code = without_header(data)
        return cls(calls, stored, lanes, code)


class _Part:
    """A loaded program, without its checks."""

    def __init__(self, program: Formula) -> None:
        self.program = program
        host = runtime.runtime()
        key = runtime.key(fingerprint(program))
        self.compiled = CompiledProgram.from_bytes(disk_cache.load_or_make(key, self._compile))
        self.code = load(self.compiled.code, host.address)
        self.entries = [_Entry(self.code.address(name)) for name, _ in self.compiled.calls]

    def _compile(self) -> bytes:
        from .compiler import compile_program

        return compile_program(self.program).to_bytes()

    def make_runner(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        calls = _KernelCalls(self)
        calls.fill(inputs, outputs)
        return calls.make_runner((*inputs, *outputs))


class _KernelCalls:
    """Calls of a program's functions, complete but for the addresses of inputs and outputs."""

    def __init__(self, part: _Part) -> None:
        program, compiled = part.program, part.compiled
        self._part = part
        self._calls: list[tuple[Any, int]] = []
        self._pointers: list[Any] = []
        inputs, outputs = ([array.desc.data_type for array in arrays] for arrays in (program.inputs, program.outputs))
        outer = len(inputs) + len(outputs)
        types = [*inputs, *outputs, *(data_type for data_type, _ in compiled.stored)]
        headers: list[list[_Header]] = [[] for _ in types]
        for entry, (_, arguments) in zip(part.entries, compiled.calls, strict=True):
            call_headers = [_header(types[position], shape) for position, shape in arguments]
            for (position, _), header in zip(arguments, call_headers, strict=True):
                headers[position].append(header)
            pointers = (ctypes.POINTER(_Header) * len(call_headers))(*map(ctypes.pointer, call_headers))
            self._pointers.append(pointers)
            self._calls.append((entry, ctypes.addressof(pointers)))
        self._stored = [np.empty(shape, data_type) for data_type, shape in compiled.stored]
        for array, described in zip(self._stored, headers[outer:], strict=True):
            for header in described:
                header.host = _address(array)
        self._headers = headers[:outer]

    def fill(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        for headers, array in zip(self._headers, (*inputs, *outputs), strict=True):
            address = _address(array)
            for header in headers:
                header.host = address

    def make_runner(self, arrays: object = None) -> Callable[[], None]:
        """Return a function that makes the calls; it keeps `arrays` alive."""
        name, kept = self._part.program.name, (self, arrays)

        def call_of(entry: Any, address: int) -> Callable[[], None]:
            def run(_: object = kept) -> None:
                if entry(address):
                    raise OperationError(f"{name}: {runtime.last_error()}")

            return run

        runs = [call_of(*call) for call in self._calls]
        if len(runs) == 1:
            return runs[0]

        def run_all() -> None:
            for run in runs:
                run()

        return run_all


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
    """The header of a contiguous array, without `host`, the address of the elements."""
    dimensions = (_Dimension * len(shape))()
    stride = 1
    for k, extent in enumerate(reversed(shape)):
        dimensions[k] = _Dimension(0, extent, stride)
        stride *= extent
    info = INFO[data_type]
    code = _CODES["u" if data_type == "float16" else info.kind]
    return _Header(code=code, bits=info.bits, lanes=1, dimensions=len(shape), dim=dimensions)


def _address(array: np.ndarray) -> int:
    """The address of the elements of a contiguous, non-empty array."""
    if array.flags.writeable:  # takes an eighth of the time
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    address: int = array.__array_interface__["data"][0]
    return address
