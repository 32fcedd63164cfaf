"""Memory of tensors on GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.graph import Desc


@dataclass(eq=False, slots=True)
class DeviceArray:
    """Memory of a tensor on a device. If it is `lent`, the user owns the buffer, and may destroy it at any time."""

    desc: Desc
    buffer: Any
    lent: bool = False
    read_only: bool = False

    @property
    def nbytes(self) -> int:
        return self.desc.byte_length

    @property
    def shape(self) -> tuple[int, ...]:
        return self.desc.shape
