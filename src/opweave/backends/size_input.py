"""Arrays that depend on the sizes of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..core.dtypes import numpy_type
from ..core.size_values import values_at
from ..support.records import record


@record(eq=True, slots=False)
class SizeInput:
    """An input of a program whose values depend on the sizes of a run.

    Attributes:
        data_type: the data type of the values.
        shape: may have sizes, too.
        function: computes the values from `arguments`, with numbers in place of sizes; None if `arguments` are the values.
        arguments: numbers, texts, sizes, and nested tuples of them.
    """

    data_type: str
    shape: tuple[Any, ...]
    function: Callable[..., Any] | None
    arguments: Any

    def at(self, sizes: Mapping[str, int]) -> np.ndarray:
        """The values for sizes by name."""
        arguments = values_at(self.arguments, sizes)
        values = np.asarray(arguments if self.function is None else self.function(*arguments))
        # `ascontiguousarray` would give a scalar an axis.
        return np.asarray(values.reshape(values_at(self.shape, sizes)), numpy_type(self.data_type), order="C")
