"""Assemble Triton kernels for tensor cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from ...core.sizes import Dimension, Size, is_multiple
from ...expr.gpu import Buffer, GpuKernel, TensorCores
from ...expr.gpu.triton import SIZE, SIZE_MULTIPLES, source_of, type_of


class TritonNumbers:
    """Texts of numbers in a kernel: literals, or the names of parameters for sizes, in order of use.

    Attributes:
        sizes: the sizes that the kernel needs, with the names of their parameters.
    """

    def __init__(self) -> None:
        self.sizes: dict[Size, str] = {}

    def number(self, value: Dimension) -> str:
        return self.sizes.setdefault(value, f"n{len(self.sizes)}") if isinstance(value, Size) else str(value)

    def unsigned(self, value: Dimension) -> str:
        """The text in WGSL, which `python` translates."""
        return self.number(value) if isinstance(value, Size) else f"{value}u"

    divisor = unsigned


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
    sizes: Mapping[Size, str] = MappingProxyType({}),
    is_multiple: Callable[[Dimension, int], bool] = is_multiple,
) -> GpuKernel:
    """A kernel of `programs` programs, which writes the last `written` arguments and reads the others.

    `sizes` have the names of their parameters, which follow the arguments. `is_multiple` tells whether a size is a multiple.
    """
    types = {name: type_of(buffer.desc) for name, buffer in arguments.items()}
    for size, name in sizes.items():
        multiple = next((number for number in SIZE_MULTIPLES if is_multiple(size, number)), None)
        types[name] = SIZE if multiple is None else f"{SIZE}:{multiple}"
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
        sizes=tuple(sizes),
    )
