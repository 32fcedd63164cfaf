"""Memory of tensors on GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.graph import Desc


@dataclass(eq=False, slots=True)
class DeviceArray:
    """Memory of a tensor on a device.

    Attributes:
        desc: data type and shape.
        buffer: the engine's buffer; the array starts at offset 0.
        lent: whether the user owns the buffer, and may destroy it at any time.
        read_only: whether writes to the array are forbidden.
    """

    desc: Desc
    buffer: Any
    lent: bool = False
    read_only: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return self.desc.byte_length

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.desc.shape
