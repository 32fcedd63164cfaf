"""Arrays of other libraries, which share their memory through DLPack alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from opweave.core.graph import Desc
from opweave.memory import dlpack


class Foreign:
    """An array that has no other interface than DLPack's."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self.array.__dlpack_device__()
        return int(kind), number


class OnHost:
    """Memory of the host as a producer of DLPack, made by Opweave."""

    def __init__(self, array: np.ndarray, *, read_only: bool = False) -> None:
        self.array, self.read_only = array, read_only

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU, 0

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        desc = Desc(self.array.dtype.name, self.array.shape)  # type: ignore[arg-type]
        address, device = self.array.ctypes.data, self.__dlpack_device__()
        return dlpack.capsule(address, desc, device, self.array, read_only=self.read_only, max_version=max_version)
