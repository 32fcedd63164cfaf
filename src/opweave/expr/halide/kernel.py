"""Compile programs, or load them from the cache on disk, and call their code.

Cached programs run without importing Halide and llvmlite.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ...core.dtypes import INFO, DataType
from ...core.graph import Desc
from ...core.shapes import MAX_DIMENSION
from ...core.size_evaluation import function_of
from ...core.size_values import values_at
from ...support import disk_cache
from ...support.errors import OperationError
from ...support.records import record
from ..evaluate import Interface, check_arrays, evaluate, interface_of, overlap, through_copies
from ..fingerprint import identify
from ..ir import Formula
from ..kernels import ExpressionKernel, SymbolicKernel, compile as compile_static
from ..specialise import formula_at
from . import runtime
from .image import load, with_header, without_header
from .stages import checks_of


def compile(program: Formula) -> HalideKernel | SymbolicHalideKernel:
    """Compile a program, or load it from the cache."""
    checks = checks_of(program)
    parts = Part(program), Part(checks) if checks else None
    return SymbolicHalideKernel(program, *parts) if program.has_sizes else HalideKernel(program, *parts)


class SymbolicHalideKernel(SymbolicKernel):
    """A program compiled once for all sizes, which are parameters of its code."""

    def __init__(self, program: Formula, part: Part, checks: Part | None) -> None:
        super().__init__(program)
        self._part, self._checks = part, checks
        self.detail = f"{part.detail}, any sizes"

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        return _keys_of(self._part, self._checks)

    def at(self, sizes: Mapping[str, int]) -> ExpressionKernel:
        values = self._part.values_at(sizes)
        if max(values, default=0) > MAX_DIMENSION or min(values, default=0) < -MAX_DIMENSION:  # beyond int32
            return compile_static(formula_at(self.program, sizes))
        return HalideKernel(self.program, self._part, self._checks, sizes, values)


class HalideKernel:
    """A compiled program; `detail` describes it in tables: "Halide, vectorised by 16, 2 threads" say.

    Args:
        program: the expressions.
        part: the code.
        checks: the code that computes whether each check holds.
        sizes: by name, if the program has sizes that are known only at a run.
        values: the sizes that `part` takes.
    """

    def __init__(
        self,
        program: Formula,
        part: Part,
        checks: Part | None,
        sizes: Mapping[str, int] | None = None,
        values: tuple[int, ...] = (),
    ) -> None:
        self.program, self.sizes = program, sizes or {}
        self._part, self._checks, self._values = part, checks, values
        self._idle: list[tuple[KernelCalls, Callable[[], None]]] = []

    @property
    def detail(self) -> str:
        return self._part.detail

    @property
    def _interface(self) -> Interface:
        inputs, outputs = interface_of(self.program)
        return [self._static(desc) for desc in inputs], [self._static(desc) for desc in outputs]

    def _static(self, desc: Desc) -> Desc:
        return Desc(desc.data_type, values_at(desc.shape, self.sizes)) if self.sizes else desc

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        return _keys_of(self._part, self._checks)

    def at(self, sizes: Mapping[str, int]) -> HalideKernel:
        return self

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        """Return a function that computes `outputs` from `inputs`, C-contiguous arrays of the program's descriptors.

        If a check of the program fails, outputs are not modified.
        """
        check_arrays(self.program.name, self._interface, inputs, outputs)
        if overlap(self.program, inputs, outputs):
            results = [np.empty_like(output) for output in outputs]
            return through_copies(self.bind(inputs, results), results, outputs)
        run = self._part.make_runner(self._values, inputs, outputs)
        if self._checks is None:
            return run
        holds = [np.zeros((), "uint8") for _ in self.program.checks]
        check = self._checks.make_runner(self._checks.values_at(self.sizes), inputs, holds)

        def check_and_run() -> None:
            check()
            for number, held in enumerate(holds):
                if not held:
                    # Raises an error that shows the value.
                    program = formula_at(self.program, self.sizes)
                    evaluate(program, inputs, [np.empty_like(output) for output in outputs])
                    raise OperationError(f"{program.name}: {program.checks[number].message}")
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
            calls = KernelCalls(self._part, self._values)
            run = calls.make_runner()
        calls.fill(inputs, outputs)
        run()
        self._idle.append((calls, run))


def _keys_of(*parts: Part | None) -> list[tuple[str, str]]:
    return [(runtime.runtime_key(), KIND), *((part.key, KIND) for part in parts if part is not None)]


KIND = "o"
"""Kind of the files of compiled expressions in the cache on disk."""

_Entry = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)  # releases the GIL


CallArrays: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""The number and the shape of each array of a call."""

CompiledCall: TypeAlias = tuple[str, CallArrays, tuple[int, ...], CallArrays]


def size_name(number: int) -> str:
    """The name of the size that is the `number`-th in a program (`identify`)."""
    return f"n{number}"


@record(eq=True, slots=False)
class CompiledProgram:
    """A compiled program: one function for each loop nest, called in order.

    A negative dimension `~k` stands for the k-th of `sizes`.

    Attributes:
        calls: the name of each function, and its arguments: the arrays that it reads, sizes, and the arrays that it writes.
            Arrays are numbered: inputs, outputs, `stored`.
        stored: data type and shape of each intermediate array.
        sizes: written by `source_of`, with names by `size_name`.
        lanes: elements of a float32 vector.
    """

    calls: tuple[CompiledCall, ...]
    stored: tuple[tuple[DataType, tuple[int, ...]], ...]
    sizes: tuple[str, ...]
    lanes: int
    code: bytes

    def to_bytes(self) -> bytes:
        return with_header([self.calls, self.stored, self.sizes, self.lanes], self.code)

    @classmethod
    def from_bytes(cls, data: bytes) -> CompiledProgram:
        (calls, stored, sizes, lanes), code = without_header(data)
        return cls(calls, stored, sizes, lanes, code)


class Part:
    """A loaded program, without its checks."""

    def __init__(self, program: Formula) -> None:
        self.program = program
        digest, names = identify(program)
        self.key = runtime.key(digest)
        self.compiled = CompiledProgram.from_bytes(disk_cache.load_or_make(self.key, self._compile))
        self.code = load(self.compiled.code, runtime.address)
        self.entries = [_Entry(self.code.address(name)) for name, *_ in self.compiled.calls]
        self._names = {size_name(k): name for k, name in enumerate(names)}
        self._values = function_of(self.compiled.sizes)
        count = runtime.threads()
        self.detail = f"Halide, vectorised by {self.compiled.lanes}, {count} thread{'s' if count != 1 else ''}"

    def _compile(self) -> bytes:
        from .compiler import compile_program

        return compile_program(self.program).to_bytes()

    def values_at(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The values of the sizes that the functions take."""
        return self._values({name: sizes[own] for name, own in self._names.items()})

    def make_runner(
        self, values: tuple[int, ...], inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> Callable[[], None]:
        calls = KernelCalls(self, values)
        calls.fill(inputs, outputs)
        return calls.make_runner((*inputs, *outputs))


class KernelCalls:
    """Calls of a program's functions for the values of sizes, complete but for the addresses of inputs and outputs."""

    def __init__(self, part: Part, values: tuple[int, ...]) -> None:
        program, compiled = part.program, part.compiled
        self._part = part
        self._calls: list[tuple[Any, int]] = []
        self._pointers: list[Any] = []
        inputs, outputs = ([array.desc.data_type for array in arrays] for arrays in (program.inputs, program.outputs))
        outer = len(inputs) + len(outputs)
        types = [*inputs, *outputs, *(data_type for data_type, _ in compiled.stored)]
        headers: list[list[_Header]] = [[] for _ in types]

        def numbers_of(dimensions: Sequence[int]) -> tuple[int, ...]:
            return tuple([size if size >= 0 else values[~size] for size in dimensions])

        def header_of(position: int, shape: tuple[int, ...]) -> _Header:
            header = _header(types[position], numbers_of(shape))
            headers[position].append(header)
            return header

        for entry, (_, reads, numbers, writes) in zip(part.entries, compiled.calls, strict=True):
            arguments = [
                *(header_of(*array) for array in reads),
                *map(ctypes.c_int32, numbers_of(numbers)),
                *(header_of(*array) for array in writes),
            ]
            pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
            self._pointers.append((pointers, arguments))
            self._calls.append((entry, ctypes.addressof(pointers)))
        self._stored = [np.empty(numbers_of(shape), data_type) for data_type, shape in compiled.stored]
        for array, described in zip(self._stored, headers[outer:], strict=True):
            for header in described:
                header.host = _address(array)
        self._headers = headers[:outer]

    @property
    def addresses(self) -> list[tuple[int, int]]:
        """The address of each function, and that of its arguments."""
        names = (name for name, *_ in self._part.compiled.calls)
        return [(self._part.code.address(name), at) for name, (_, at) in zip(names, self._calls, strict=True)]

    def fields_of(self, number: int) -> list[int]:
        """The places where calls find the address of an array: the inputs are numbered, then the outputs."""
        return [ctypes.addressof(header) + _Header.host.offset for header in self._headers[number]]

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
