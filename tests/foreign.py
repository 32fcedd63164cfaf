"""Arrays of other libraries, which share their memory through DLPack alone."""

from __future__ import annotations

from typing import Any

import numpy as np


class Foreign:
    """An array that has no other interface than DLPack's."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self.array.__dlpack_device__()
        return int(kind), number
