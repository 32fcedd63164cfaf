"""Spaces of the memory of tensors: the host, a WebAssembly module, or a GPU device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..core.desc import Desc, OtherShapes
from ..support.errors import require
from .copying import copied, copy
from .host import allocate, check_overlap

Memory = Any
"""Memory of a tensor in some space: a NumPy array on the host and in WebAssembly, a `DeviceArray` on a GPU; or a `Cell`."""


class Cell:
    """Host memory of an array, a list of arrays, or None, whose descriptors are unknown until the value is computed."""

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = value


class Space(Protocol):
    """A place of memory: allocates it there, and copies it."""

    is_host: bool
    """Whether the memory of the space is accessible as NumPy arrays."""

    def owns(self, given: Memory, /) -> bool:
        """Whether memory is in this space."""

    def allocate(self, desc: Desc) -> Memory:
        """New memory of zeros for a tensor."""

    def wait(self) -> None:
        """Wait until all work on this space is done."""


class TensorSpace(Space, Protocol):
    """The space of a context's tensors: the host, or a device, which executes calls in order."""

    device: Any
    """The `wgpu.GPUDevice` whose memory it is; None for others."""

    def attach(self, context: Any) -> None:
        """Register a context of this space; call `context.lose(message)` if the device is lost."""

    def detach(self, context: Any) -> None:
        """Remove a context that ends. When no context is left, free the memory kept for reuse."""

    def adopt(self, given: Any, desc: Desc | None) -> Memory:
        """Use an array or a buffer of the device, or raise `ValidationError`; `desc` is None if the object has one."""

    def check_overlap(
        self, inputs: Mapping[str, Memory], outputs: Mapping[str, Memory], constants: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Raise `ValidationError` if an output shares memory with another tensor, or the host's addresses `constants`."""

    def write(self, target: Memory, source: np.ndarray, reason: str) -> None:
        """Copy an array into memory of this space, and count the copy."""

    def read(self, sources: Sequence[Memory], targets: Sequence[np.ndarray], reason: str) -> None:
        """Copy memory of this space into arrays, and count the copies; all start before the first wait."""

    def copy(self, target: Memory, source: Memory, reason: str) -> None:
        """Copy within this space, and count the copy."""


class DeviceSpace(TensorSpace, Protocol):
    """Memory of a device that the host cannot access."""

    def carve(self, sizes: Sequence[int], homes: Sequence[int], descs: Sequence[Desc]) -> list[Memory]:
        """Allocate buffers of `sizes` bytes; tensor `k` is at the start of buffer `homes[k]`."""

    def arenas(self) -> Any:
        """Arenas in which versions of a program share buffers; None if a buffer cannot have tensors of several shapes."""


class _Host:
    """All memory of the process."""

    is_host = True
    device = None
    allocate = staticmethod(allocate)
    check_overlap = staticmethod(check_overlap)
    copy = write = staticmethod(copy)

    def attach(self, context: Any) -> None:
        """The host is never lost."""

    detach = attach

    def adopt(self, given: np.ndarray, desc: Desc | None) -> np.ndarray:
        require(
            bool(given.flags.c_contiguous),
            f"tensor_from needs a C-contiguous array, got shape {list(given.shape)} with strides "
            f"{list(given.strides)}; np.ascontiguousarray(array) makes one",
        )
        require(bool(given.flags.aligned), f"tensor_from needs an array aligned to its {given.dtype} elements")
        return given

    def read(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], reason: str) -> None:
        for source, target in zip(sources, targets, strict=True):
            copy(target, source, reason)

    def owns(self, given: Memory, /) -> bool:
        return isinstance(given, (np.ndarray, Cell))

    def wait(self) -> None:
        """Nothing runs in the background."""


HOST: TensorSpace = _Host()


class _Absent:
    """The memory of a device that is not in this machine: nothing is there."""

    is_host = False

    def attach(self, context: Any) -> None:
        """There is nothing to lose."""

    detach = attach

    def owns(self, given: Memory, /) -> bool:
        return False


ABSENT: Any = _Absent()


def reaches(space: Space, other: Space) -> bool:
    """Whether code in `space` can use memory of `other`: the host can also use memory of WebAssembly modules."""
    return space is other or (space is HOST and other.is_host)


def _copy_on_host(target: Memory, source: Memory, reason: str) -> None:
    if isinstance(target, Cell):
        target.value = copied(source, reason)
    else:
        copy(target, source, reason)


def copier(
    source: Space, target: Space, reason: str, names: Sequence[str] = ()
) -> Callable[[Sequence[Memory], Sequence[Memory]], Callable[[], None]]:
    """A function that binds copies between two spaces to memory; its result makes the copies.

    The value of a cell must have the shape of its target; otherwise `OtherShapes` is raised, with the name from `names`.
    """

    def bind(reads: Sequence[Memory], writes: Sequence[Memory]) -> Callable[[], None]:
        if target.is_host and not source.is_host:
            return lambda: source.read(reads, writes, reason)  # type: ignore[attr-defined]
        move: Any = _copy_on_host
        if not target.is_host:
            move = target.write if source.is_host else source.copy  # type: ignore[attr-defined]
        pairs = list(zip(writes, reads, strict=True))

        def run() -> None:
            for k, (into, value) in enumerate(pairs):
                if isinstance(value, Cell):
                    value = value.value
                    if not isinstance(into, Cell) and into.shape != value.shape:
                        raise OtherShapes({names[k]: value.shape})
                move(into, value, reason)

        return run

    return bind
