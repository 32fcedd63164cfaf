"""Kernels of Triton, CuPy and Numba, launched with tensors and numbers.

Opweave does not import these libraries before the caller does: it recognises objects by the modules of their classes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.dtypes import DataType
from ...core.graph import Desc
from ...expr.gpu import CompiledText, Features, GpuKernel
from ...support.errors import NotSupportedError, OperationError, ValidationError, cause_text, require
from ..base import parameters_of
from ..excerpts import explain_numba, explain_triton
from ..wgsl.shader import Buffer, check_scratch, sizes
from .source import CudaScope, check_sizes

POINTERS: Mapping[DataType, str] = {
    "float32": "fp32",
    "float16": "fp16",
    "int32": "i32",
    "uint32": "u32",
    "int8": "i8",
    "uint8": "u8",
    "int64": "i64",
    "uint64": "u64",
}
"""Triton's names of data types."""

_NO_DEVICE = ("CUDADriverError", "CUDARuntimeError", "CudaSupportError", "NvvmSupportError")
"""Errors of CuPy and Numba without a GPU, its driver or its toolkit."""


DEFAULT_BLOCK = 256


@dataclass(frozen=True)
class Launch:
    """A kernel of another library, with its launch options.

    Args:
        function: a function with `@triton.jit`, a `cupy.RawKernel`, or a function with `@numba.cuda.jit`.
        grid: number of blocks, in up to three dimensions; default: one for each `block` elements of the (first) result.
        block: threads of a block, in up to three dimensions; default: 256. Triton chooses them itself (`num_warps`): there,
            `block` is the number of elements of a program, for the default of `grid`, and one of the two must be given.
        arguments: tensors (the `Buffer`s that a function is given, or their names), numbers, and names of numbers (attributes,
            `x_size`); default: the tensors and numbers named as the function's parameters. CuPy's numbers are of NumPy's
            types.
        constants: Triton's parameters that are `tl.constexpr`.
        shared: bytes of dynamic shared memory of a `cupy.RawKernel`.
        scratch: buffers shared by the passes of a node: data type and shape (`opweave.Desc`) by name.
        num_warps: of Triton.
        num_stages: of Triton.

    Raises:
        ValidationError: a value has the wrong type.

    >>> Launch(print)
    Traceback (most recent call last):
    opweave.support.errors.ValidationError: ...
    """

    function: Any
    grid: int | Sequence[int] | None = None
    block: int | Sequence[int] | None = None
    arguments: Sequence[Any] | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)
    shared: int = 0
    scratch: Mapping[str, Desc] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 3

    fault = None  # as `Source` has it
    source = ""

    def __post_init__(self) -> None:
        require(
            is_launched(self.function),
            f"a Launch takes a kernel of Triton, CuPy or Numba, got {type(self.function).__name__}",
        )
        check_sizes(grid=self.grid, block=self.block)
        require(
            self.grid is not None or self.block is not None or _library(self.function)[0] != "triton",
            f"{self.title} takes grid=, the number of programs, or block=, how many elements of the result each computes",
        )
        self._resolve_arguments()
        check_scratch(self.scratch)

    @property
    def title(self) -> str:
        library, name = _LIBRARIES[_library(self.function)], _name(self.function)
        return f"{library.title} kernel {name}"

    @property
    def threads(self) -> int | Sequence[int]:
        """The threads of a block; the elements that a program of Triton computes, for the default of `grid`."""
        return DEFAULT_BLOCK if self.block is None else self.block

    @property
    def words(self) -> frozenset[str]:
        """The names of tensors that the kernel uses."""
        return frozenset(
            a.name if isinstance(a, Buffer) else a for a in self._resolve_arguments() if isinstance(a, (Buffer, str))
        )

    def _resolve_arguments(self) -> list[Any]:
        """Return the arguments; by default, the names of the function's parameters."""
        if self.arguments is not None:
            return list(self.arguments)
        names = _LIBRARIES[_library(self.function)].names
        require(names is not None, "a cupy.RawKernel takes arguments=(…): tensors, numbers, or their names")
        assert names is not None
        return [name for name in names(self.function) if name not in self.constants]

    def kernel(self, title: str, scope: CudaScope, out: Buffer, features: Features) -> GpuKernel:
        """The kernel for a node, whose first result is `out`; `OperationError` if the library cannot compile it."""
        by_name = {item.buffer.name: item for item in scope.bound}
        values: list[Any] = []
        for argument in self._resolve_arguments():
            name = argument.name if isinstance(argument, Buffer) else argument
            if isinstance(name, str):
                operand = by_name[name] if name in by_name else scope.value(name)
                require(operand is not None, f"the argument {name} is no tensor and no number; {scope.hint(name)}")
                values.append(operand)
            else:
                require(
                    isinstance(argument, (bool, int, float, np.generic)),
                    f"an argument must be a number, got {argument!r}",
                )
                values.append(argument)
        try:
            compiled, arguments = _LIBRARIES[_library(self.function)].compile(self, values, features)
        except (ValidationError, OperationError):
            raise
        except Exception as error:  # libraries raise errors of many types
            if type(error).__name__ in _NO_DEVICE:
                raise NotSupportedError(
                    f"{title}: {self.title} needs a GPU to be compiled: {cause_text(error)}"
                ) from error
            explained = _LIBRARIES[_library(self.function)].explain(self.function, error)
            raise OperationError(f"{title}: {self.title}{explained}") from error
        tensors = [value for value in values if hasattr(value, "memory")]
        size = int(np.prod(sizes(self.threads)))
        grid = sizes(self.grid) if self.grid is not None else (-(-out.size // size),)
        check_launch(grid, compiled.invocations, features)
        x, y, z = (*map(int, grid), 1, 1)[:3]
        return GpuKernel(
            title,
            f"// {self.title}",
            tuple(value.memory for value in tensors),
            tuple(value.writes for value in tensors),
            (x, y, z),
            compiled.entry_point,
            invocations=compiled.invocations,
            compiled=compiled,
            arguments=arguments,
        )


# ---------------------------------------------------------------------------------------------------------------------
# Libraries


def _pack(values: Sequence[Any], number: Callable[[Any], np.generic | np.ndarray]) -> tuple[int | bytes, ...]:
    """Convert values to arguments: positions among the tensors, and the bytes of numbers."""
    arguments: list[int | bytes] = []
    for value in values:
        is_tensor = hasattr(value, "memory")
        arguments.append(sum(isinstance(item, int) for item in arguments) if is_tensor else number(value).tobytes())
    return tuple(arguments)


def _of_triton(
    launch: Launch, values: Sequence[Any], features: Features
) -> tuple[CompiledText, tuple[int | bytes, ...]]:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    names = list(launch.function.arg_names)
    unknown = [name for name in launch.constants if name not in names]
    require(not unknown, f"{launch.title} has no parameters {unknown} for constants=; it takes {names}")
    free = [name for name in names if name not in launch.constants]
    require(len(free) == len(values), f"{launch.title} takes {free} besides constants, got {len(values)} arguments")
    numbers = {
        name: _triton_number(value) for name, value in zip(free, values, strict=True) if not hasattr(value, "memory")
    }
    signature = dict.fromkeys(names, "constexpr")
    for name, value in zip(free, values, strict=True):
        signature[name] = numbers[name][0] if name in numbers else f"*{POINTERS[value.buffer.data_type]}"
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in free if name not in numbers}
    target = GPUTarget("cuda", int(features.architecture.removeprefix("sm_")), 32)
    constants = {(names.index(name),): value for name, value in launch.constants.items()}
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    binary = compile(ASTSource(launch.function, signature, constants, aligned), target=target, options=options)
    data = binary.metadata
    if data.global_scratch_size or getattr(data, "profile_scratch_size", 0) or getattr(data, "num_ctas", 1) != 1:
        raise OperationError(f"{launch.title}: kernels with scratch memory, or clusters, are not supported")
    parameters = re.search(r"\.entry [^(]*\((.*?)\)", binary.asm["ptx"], re.DOTALL)
    assert parameters is not None
    trailing = parameters[1].count(".param") - len(free)
    if trailing < 0:
        raise OperationError(f"{launch.title}: this version of Triton passes arguments in a way that is not known here")
    block = (32 * data.num_warps, 1, 1)
    compiled = CompiledText(binary.asm["cubin"], data.name, block, shared=data.shared, trailing=trailing)
    return compiled, _pack(values, lambda value: _triton_number(value)[1])


def _triton_number(value: Any) -> tuple[str, np.generic]:
    if isinstance(value, (bool, np.bool_)):
        return "i1", np.uint8(value)
    if isinstance(value, (float, np.floating)):
        return "fp32", np.float32(value)
    return ("i32", np.int32(value)) if -(2**31) <= value < 2**31 else ("i64", np.int64(value))


def _of_cupy(launch: Launch, values: Sequence[Any], features: Features) -> tuple[CompiledText, tuple[int | bytes, ...]]:
    # CuPy passes Python's numbers as int64, float64 and bool.
    x, y, z = (*map(int, sizes(launch.threads)), 1, 1)[:3]
    function = launch.function.kernel  # compiles it for the current device
    compiled = CompiledText(
        b"", launch.function.name, (x, y, z), launch.shared, handle=int(function.ptr), owner=function
    )
    return compiled, _pack(values, np.asarray)


def _of_numba(
    launch: Launch, values: Sequence[Any], features: Features
) -> tuple[CompiledText, tuple[int | bytes, ...]]:
    import numba
    from numba import cuda

    x, y, z = (*map(int, sizes(launch.threads)), 1, 1)[:3]
    signature: list[Any] = []
    arguments: list[int | bytes] = []
    for value in values:
        if hasattr(value, "memory"):
            # An array is a structure whose fields are parameters: owners, sizes, the address, shape and strides in bytes.
            desc: Desc = value.buffer.desc
            dtype = np.dtype(desc.data_type)
            signature.append(numba.types.Array(numba.from_dtype(dtype), desc.rank, "C", readonly=not value.writes))
            strides = [dtype.itemsize * int(np.prod(desc.shape[k + 1 :])) for k in range(desc.rank)]
            fields = [0, 0, desc.element_count, dtype.itemsize, None, *desc.shape, *strides]
            number = sum(isinstance(item, int) for item in arguments)
            arguments += [number if item is None else np.int64(item).tobytes() for item in fields]
        else:
            scalar = np.asarray(value)
            signature.append(numba.from_dtype(scalar.dtype))
            arguments.append(scalar.tobytes())
    version = int(features.architecture.removeprefix("sm_"))
    ptx, _ = cuda.compile_ptx(  # type: ignore[attr-defined, no-untyped-call]
        launch.function.py_func, tuple(signature), cc=divmod(version, 10)
    )
    entry = re.search(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)", ptx)
    if entry is None or entry[2].count(".param") != len(arguments):
        raise OperationError(f"{launch.title}: this version of Numba passes arguments in a way that is not known here")
    return CompiledText(f"{ptx}\0".encode(), entry[1], (x, y, z)), tuple(arguments)


@dataclass(frozen=True, slots=True)
class _Library:
    """A library whose kernels can be launched.

    `compile` returns the binary and the arguments; `names` returns the parameters, or None if the library does not list them;
    `explain` returns an error of the compiler, as the end of a message.
    """

    title: str
    compile: Callable[[Launch, Sequence[Any], Features], tuple[CompiledText, tuple[int | bytes, ...]]]
    names: Callable[[Any], Sequence[str]] | None
    explain: Callable[[Any, Exception], str]


def _plain(function: Any, error: Exception) -> str:
    return f": {type(error).__name__}: {error}"


_LIBRARIES = {
    ("triton", "JITFunction"): _Library("Triton", _of_triton, lambda f: f.arg_names, explain_triton),
    ("cupy", "RawKernel"): _Library("CuPy", _of_cupy, None, _plain),
    ("numba", "CUDADispatcher"): _Library(
        "Numba",
        _of_numba,
        lambda f: parameters_of(f.py_func),
        lambda f, error: explain_numba(f.py_func, error) or _plain(f, error),
    ),
}
"""Libraries by package and class name of their kernels."""


def _library(function: Any) -> tuple[str, str]:
    kind = type(function)
    return kind.__module__.partition(".")[0], kind.__name__


def _name(function: Any) -> str:
    inner = getattr(function, "py_func", function)
    return str(getattr(inner, "__name__", None) or getattr(inner, "name", "?"))


def is_launched(value: Any) -> bool:
    """Whether an object is a kernel of a library that can be launched."""
    return _library(value) in _LIBRARIES


def check_launch(grid: Sequence[int], block: Sequence[int], features: Features) -> None:
    """Require a grid and a block that the device can launch."""
    threads = math.prod(block)
    require(
        threads <= features.max_invocations,
        f"a block has at most {features.max_invocations} threads on this device, got {threads}",
    )
    limits = (2**31 - 1, 65535, 65535)
    fits = all(size <= limit for size, limit in zip(grid, limits, strict=False))
    require(fits, f"a grid has at most {list(limits)} blocks, got {list(grid)}")
