"""Expressions as WGSL: the compute shaders of a program, for devices of WebGPU (https://www.w3.org/TR/WGSL/).

Nothing here needs a device: text comes out, with what is to be bound where, and how many workgroups it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ..ir import Input, Output, Stored

Buffer: TypeAlias = Input | Stored | Output
"""What a kernel reads or writes: operands, arrays stored on the way, results."""


@dataclass(frozen=True, slots=True)
class Features:
    """What a device can do, as far as kernels depend on it.

    Attributes:
        float16: whether shaders have `f16` (the feature shader-f16); else pairs are packed into words.
        int64: whether shaders have `i64` and `u64`.
        subgroups: whether the invocations of a workgroup can exchange values without memory.
        max_buffers: storage buffers a kernel may use.
        max_invocations: invocations in a workgroup.
        max_workgroups: workgroups in one dimension of a dispatch.
        max_shared: bytes of memory that a workgroup shares.
        is_software: whether the device is a processor that pretends.
        units: about how many workgroups it computes at once. WebGPU does not tell; too many cost less than too few.
    """

    float16: bool = False
    int64: bool = False
    subgroups: bool = False
    max_buffers: int = 8
    max_invocations: int = 256
    max_workgroups: int = 65535
    max_shared: int = 16384
    is_software: bool = False
    units: int = 132


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compute shader and how to run it.

    Attributes:
        title: what it computes, for tables.
        source: the WGSL module.
        bindings: what stands at `@group(0) @binding(k)`, in order.
        writes: whether it writes each of them; those it only reads are declared `read`.
        workgroups: how many to dispatch in each dimension.
        entry_point: the function that is called.
        explain: what makes a message for users of what the device's compiler says; None where they wrote none of the WGSL.
    """

    title: str
    source: str
    bindings: tuple[Buffer, ...]
    writes: tuple[bool, ...]
    workgroups: tuple[int, int, int]
    entry_point: str = "main"
    explain: Callable[[str], str] | None = None


from .block import Block  # noqa: E402 — they need the classes above
from .module import Module  # noqa: E402
from .plan import kernels, unsupported  # noqa: E402
from .scattered import scatter  # noqa: E402

__all__ = ["Block", "Buffer", "Features", "Kernel", "Module", "kernels", "scatter", "unsupported"]
