"""Kernels: functions that compute a custom operation on the host, given by users.

A kernel is prepared once for each node of a graph, bound to the memory that the node reads and writes, and then called: it
gets views of the tensors themselves, never copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    from ..graph import Desc
    from ..operation import Op

Descs: TypeAlias = "Desc | tuple[Desc, ...] | None"
Arrays: TypeAlias = "np.ndarray | tuple[np.ndarray, ...] | None"


@dataclass(frozen=True, slots=True)
class KernelCall:
    """The node that a kernel is prepared for.

    Attributes:
        title: name and label, which lead every message.
        op: the operation.
        inputs: data type and shape of each operand, by parameter.
        attributes: the values of all other parameters.
        outputs: data type and shape of each result.
    """

    title: str
    op: Op[..., Any]
    inputs: Mapping[str, Descs]
    attributes: Mapping[str, Any]
    outputs: tuple[Desc, ...]


class Arena(Protocol):
    """Memory that a kernel can reach, where it cannot reach all of the host's."""

    def allocate(self, desc: Desc) -> np.ndarray:
        """A new array of zeros in this memory, C-contiguous and aligned to 64 bytes."""

    def owns(self, array: np.ndarray) -> bool:
        """Whether an array lies in this memory."""


class Prepared(Protocol):
    """A kernel for one node."""

    @property
    def arena(self) -> Arena | None:
        """Where operands and results must lie; None: anywhere on the host."""

    @property
    def detail(self) -> str:
        """What it is, for `explain()`."""

    def bind(self, inputs: Mapping[str, Arrays], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        """Tie the kernel to arrays of the declared data types and shapes; what is returned runs it once, synchronously."""


class Kernel(Protocol):
    """What an operation has for a device."""

    def prepare(self, call: KernelCall) -> Prepared:
        """The kernel for a node; errors name `call.title`."""
