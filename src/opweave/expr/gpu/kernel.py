"""Kernels, and the features of devices that they depend on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ...core.sizes import Size
from ..ir import Input, Output, Stored
from .dialect import Dialect
from .wgsl import WGSL

Buffer: TypeAlias = Input | Stored | Output
"""An array that a kernel reads or writes: an operand, a stored intermediate, or a result."""


@dataclass(frozen=True, slots=True)
class TensorCores:
    """Tensor cores of a GPU, and the compiler of kernels for them; `max_shared` is in bytes.

    Operands of float32 are multiplied in the type `float32`: "tf32x3" adds three products of TF32 (19 bits), which
    together are as accurate as float32; other types round the operands. Sums are float32.
    """

    float32: Literal["tf32x3", "tf32", "bfloat16", "float16"]
    max_shared: int


@dataclass(frozen=True, slots=True)
class Features:
    """Features and limits of a device that kernels depend on.

    Attributes:
        float16: whether shaders support `f16` (shader-f16); otherwise two values are packed into a word.
        int64: whether shaders support `i64` and `u64`.
        subgroups: whether shaders support subgroup operations.
        max_buffers: storage buffers per kernel.
        max_invocations: invocations per workgroup.
        max_workgroups: workgroups in one dimension of a dispatch.
        max_shared: bytes of workgroup memory.
        units: approximate number of workgroups that run at the same time, which WebGPU does not report; a value that is
            too large costs less than one that is too small.
        tensor_cores: tensor cores for contractions; None to use none.
        architecture: of an NVIDIA GPU, as its compilers name it: "sm_90" say; empty for others.
    """

    dialect: Dialect = WGSL
    float16: bool = False
    int64: bool = False
    subgroups: bool = False
    max_buffers: int = 8
    max_invocations: int = 256
    max_workgroups: int = 65535
    max_shared: int = 16384
    is_software: bool = False
    units: int = 132
    tensor_cores: TensorCores | None = None
    architecture: str = ""

    @property
    def max_iterations(self) -> int:
        """Maximum number of loop iterations of an invocation, summed over all loops.

        Mesa's software adapter leaves all loops after 65,535 iterations (LP_MAX_TGSI_LOOP_ITERATIONS), without an error.
        """
        return 60_000 if self.is_software else 2**31 - 1


@dataclass(frozen=True, slots=True)
class CompiledText:
    """A kernel as a binary for CUDA, as `cuModuleLoadData` takes it.

    Attributes:
        invocations: threads of a block in each dimension.
        shared: bytes of dynamic shared memory, in addition to the memory that the kernel declares.
        trailing: number of pointers that the compiler adds to the arguments, for memory that is not needed here: null.
        handle: the driver's handle of a kernel that another library has loaded; 0 to load the image.
        owner: the object that keeps that kernel loaded.
        log: warnings of the compiler.
    """

    image: bytes
    entry_point: str
    invocations: tuple[int, int, int]
    shared: int = 0
    trailing: int = 0
    handle: int = 0
    owner: Any = field(default=None, compare=False)
    log: str = ""


@dataclass(frozen=True, slots=True)
class GpuKernel:
    """A kernel and how to dispatch it.

    Attributes:
        title: describes the result, for tables.
        bindings: its buffers, in order: in WGSL the one at each `@group(0) @binding(k)`, in CUDA its parameters.
        writes: for each binding, whether it is written; others are declared `read`.
        workgroups: number of workgroups in each dimension.
        explain: turns a compiler message into one for the author of the code; None for generated code.
        invocations: number of invocations in each dimension of a workgroup; empty if only the source says it.
        compiler: name of the compiler; empty for the compiler of the device's language.
        compiled: a binary from another compiler; `source` then only describes it.
        arguments: one for each parameter of the kernel: a number is the address of the binding with that number, bytes are a
            value as in memory. Empty for the addresses of all bindings.
        starts_early: whether it may start before the previous kernel ends, for which it waits by `Dialect.await_previous`.
        sizes: its parameters: sizes that are known only when the graph runs. It takes their numbers as i32 behind the
            bindings: in WGSL as a uniform buffer, in CUDA as a struct. `workgroups` may have sizes, too.
        divisors: indices of the sizes by which the kernel divides with multipliers, whose `divisor_values` follow the numbers.
    """

    title: str
    source: str
    bindings: tuple[Buffer, ...]
    writes: tuple[bool, ...]
    workgroups: tuple[int, int, int]
    entry_point: str = "main"
    explain: Callable[[str], str] | None = None
    invocations: tuple[int, ...] = ()
    compiler: str = ""
    options: tuple[tuple[str, int], ...] = ()
    compiled: CompiledText | None = None
    arguments: tuple[int | bytes, ...] = ()
    starts_early: bool = False
    sizes: tuple[Size, ...] = ()
    divisors: tuple[int, ...] = ()

    @property
    def key(self) -> Hashable:
        # The texts of users say neither their entry point nor the threads of a block.
        text = self.source, self.entry_point, self.invocations
        return *text, self.compiler, self.options, self.compiled, self.starts_early

    @property
    def block(self) -> tuple[int, int, int]:
        x, y, z = (*self.invocations, 1, 1)[:3]
        return x, y, z


def divisor_values(divisor: int) -> tuple[int, int, int]:
    """A positive number, a multiplier and a shift: n // divisor == n * multiplier >> shift for each n below 2**31.

    T. Granlund, P. L. Montgomery: Division by invariant integers using multiplication (1994),
    https://doi.org/10.1145/178243.178249

    >>> divisor, multiplier, shift = divisor_values(7)
    >>> [n * multiplier >> shift for n in (0, 6, 7, 2**31 - 1)] == [0, 0, 1, (2**31 - 1) // 7]
    True
    """
    shift = 31 + (divisor - 1).bit_length()
    return divisor, (1 << shift) // divisor + 1, shift


class KernelProgram(ABC):
    """A program that becomes one kernel, which may write several arrays."""

    @property
    @abstractmethod
    def targets(self) -> list[Input]:
        """The arrays in memory that are written."""

    @abstractmethod
    def kernel(self, title: str, features: Features, is_fixed: Callable[[Input], bool] = lambda _: False) -> GpuKernel:
        """The kernel.

        If an array `is_fixed`, because no kernel writes it, it may be read before waiting for the previous kernel.
        """
