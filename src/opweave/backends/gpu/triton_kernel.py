"""Assemble Triton kernels for tensor cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...expr.gpu import Buffer, GpuKernel, TensorCores
from ...expr.gpu.triton import source_of, type_of


def mask_argument(conditions: Iterable[str]) -> str:
    """The mask argument of a load or store; empty if no condition limits the elements."""
    texts = [f"({condition})" for condition in conditions if condition]
    return f", mask={' & '.join(texts)}" if texts else ""


def triton_kernel(
    title: str,
    comment: str,
    arguments: Mapping[str, Buffer],
    library: Iterable[str],
    lines: Iterable[str],
    *,
    programs: int,
    warps: int,
    stages: int,
    cores: TensorCores,
    written: int = 1,
    starts_early: bool = False,
) -> GpuKernel:
    """A kernel of `programs` programs, which writes the last `written` arguments and reads the others."""
    types = {name: type_of(buffer.desc) for name, buffer in arguments.items()}
    return GpuKernel(
        title,
        source_of(comment, types, library, lines),
        tuple(arguments.values()),
        (False,) * (len(arguments) - written) + (True,) * written,
        (programs, 1, 1),
        "opweave_kernel",
        invocations=(32 * warps,),
        compiler="triton",
        options=(("max_shared", cores.max_shared), ("num_stages", stages), ("num_warps", warps)),
        starts_early=starts_early,
    )
