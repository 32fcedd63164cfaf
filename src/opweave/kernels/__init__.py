"""Kernels: user functions that compute a custom operation.

A kernel is prepared once for each node, bound to the memory that the node reads and writes, and then called with views
of the tensors, never copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    from ..graph import Desc
    from ..memory.spaces import Space
    from ..operation import Op

Descs: TypeAlias = "Desc | tuple[Desc, ...] | None"
Arrays: TypeAlias = "np.ndarray | tuple[np.ndarray, ...] | None"


@dataclass(frozen=True, slots=True)
class KernelCall:
    """The node that a kernel is prepared for.

    Attributes:
        title: name and label of the operation, which start every message.
        op: the operation.
        inputs: data type and shape of each operand, by parameter name.
        attributes: the values of all other parameters.
        outputs: data type and shape of each result.
    """

    title: str
    op: Op[..., Any]
    inputs: Mapping[str, Descs]
    attributes: Mapping[str, Any]
    outputs: tuple[Desc, ...]


class Prepared(Protocol):
    """A kernel prepared for one node."""

    @property
    def space(self) -> Space:
        """Where operands and results must lie."""

    @property
    def detail(self) -> str:
        """A description for `explain()`."""

    def bind(self, inputs: Mapping[str, Arrays], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        """A function that runs the kernel once, synchronously, on arrays of the declared data types and shapes."""


class Kernel(Protocol):
    """An implementation of an operation for a device."""

    def prepare(self, call: KernelCall) -> Prepared:
        """Prepare the kernel for a node; error messages start with `call.title`."""
