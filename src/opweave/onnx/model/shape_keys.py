"""Keys of compiled shapes: the shapes of inputs, and the values of inputs that determine shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...support.errors import OperationError

if TYPE_CHECKING:
    from .arguments import Argument

DECIDING_ELEMENTS = 16
"""The largest number of elements of an input whose values may determine shapes. Longer inputs, and those of rank 2 or more,
are data."""

Shapes = Mapping[str, tuple[int, ...] | None]
"""The shape of each input by name; None for inputs that are not tensors."""

Key = tuple[Any, ...]
"""Pairs (input, shape), then pairs (input, bytes of its value) for inputs whose values determine shapes."""


def text_of(key: Key, inputs: Iterable[Argument] = ()) -> str:
    """Shapes and deciding values as text; the declared inputs have the data types of the values.

    Values are written in full, so that different keys have different texts; a value has at most `DECIDING_ELEMENTS` elements.

    >>> from opweave.onnx.model.arguments import Argument
    >>> inputs = [Argument("x", "tensor(float)", 1, None), Argument("n", "tensor(int64)", 7, None)]
    >>> text_of((("x", (1, 3)), ("n", ()), ("n", np.int64(2).tobytes())), inputs)
    'x [1, 3], n [], n = 2'
    """
    declared = {argument.name: argument for argument in inputs}
    shapes: dict[str, tuple[int, ...]] = {}
    parts = []
    for name, content in key:
        if isinstance(content, bytes):
            parts.append(f"{name} = {_value_text(np.frombuffer(content, declared[name].dtype).reshape(shapes[name]))}")
        else:
            shapes[name] = content
            parts.append(f"{name} {list(content)}" if content is not None else name)
    return ", ".join(parts)


def _value_text(array: np.ndarray) -> str:
    """Format a scalar or a list, with the fewest digits that distinguish numbers of the data type.

    >>> _value_text(np.float32([0.1])), _value_text(np.array(True)), _value_text(np.zeros(0, int))
    ('[0.1]', 'True', '[]')
    """
    texts = list(map(str, array.ravel()))
    return f"[{', '.join(texts)}]" if array.ndim else texts[0]


def may_decide(value: Any) -> bool:
    """Whether the value of an input may determine shapes; see `trace.Tracer`."""
    return isinstance(value, np.ndarray) and value.ndim <= 1 and value.size <= DECIDING_ELEMENTS


class ValuesNeeded(OperationError):  # noqa: N818  (not an error: tracing starts again, with these values)
    """Tracing stopped because values of the inputs `names` determine shapes, and are available."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(f"the values of {sorted(names)} determine shapes")
        self.names = names
