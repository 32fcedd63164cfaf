"""Table of the ways in which back ends run operations: with one kernel, several, the decomposition, or not at all.

Each back end is asked about a small call of each operation, for each data type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..backends import Backend, How
from ..core.dtypes import DataType
from ..core.graph import Desc, Operand
from ..core.operation import Limits, Op
from ..ops import Operations
from ..support.errors import NotSupportedError

# Operand shapes of a small valid call, unless [2, 2] (or [2, ...] of another rank) is valid; and required attributes.
_SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "gru": {"weight": (1, 6, 2), "recurrent_weight": (1, 6, 2)},
    "gru_cell": {"weight": (6, 2), "recurrent_weight": (6, 2)},
    "lstm": {"weight": (1, 8, 2), "recurrent_weight": (1, 8, 2)},
    "lstm_cell": {"weight": (8, 2), "recurrent_weight": (8, 2)},
    "scatter_nd": {"updates": (2,)},
}
_ATTRIBUTES: dict[str, Any] = {
    "axis": 0,
    "beginning_padding": (1, 1),
    "ending_padding": (1, 1),
    "data_type": "float32",
    "hidden_size": 2,
    "new_shape": (2, 2),
    "repetitions": (2, 1),
    "sizes": (1, 1),
    "splits": 2,
    "starts": (0, 0),
    "steps": 2,
}


def main_operand(op: Op[..., Any]) -> str:
    """The operand that determines the data type of the operation: the one with the most allowed types."""

    def choice(operand: str) -> int:
        data_types = op.limits[operand].data_types
        return 0 if isinstance(data_types, str) else len(data_types)

    return max((name for name in op.operands if name in op.limits), key=choice)


def smallest_call(op: Op[..., Any], data_type: DataType) -> Operand:
    """The (first) result of `op` on small inputs, with its main operand of `data_type`."""
    builder = Operations()
    main = main_operand(op)
    types: dict[str, DataType] = {main: data_type}
    arguments: dict[str, Any] = {}
    for name in sorted(op.positional, key=lambda name: name != main):  # others may have its data type
        if name not in op.operands:
            arguments[name] = _ATTRIBUTES[name]
            continue
        limit = op.limits.get(name, Limits())
        if name != main:
            types[name] = types[limit.data_types] if isinstance(limit.data_types, str) else limit.data_types[0]
        least, most = (2, 2) if isinstance(limit.ranks, str) else limit.ranks
        shape = _SHAPES.get(op.name, {}).get(name, (2,) * min(max(2, least), most))
        builder.inputs[name] = operand = Operand(builder, Desc(types[name], shape), name=name)
        arguments[name] = [operand, operand] if name in op.sequences else operand
    result = op(builder, **arguments)
    return result if isinstance(result, Operand) else result[0]


def support(op: Op[..., Any], backends: Mapping[str, Backend]) -> dict[str, dict[DataType, How | None]]:
    """Tell how each of `backends` runs `op`, for each data type that the specification allows for its main operand.

    The value is None if a back end does not support the operation for that data type.
    """
    main = main_operand(op)
    data_types = op.limits[main].data_types
    assert not isinstance(data_types, str), op
    return {
        name: {
            data_type: _how(backend, op, data_type) if data_type in backend.limits(op)[main].data_types else None
            for data_type in data_types
        }
        for name, backend in backends.items()
    }


def _how(backend: Backend, op: Op[..., Any], data_type: DataType) -> How | None:
    node = smallest_call(op, data_type).node
    assert node is not None
    try:
        return backend.how(node)
    except NotSupportedError:
        return None
