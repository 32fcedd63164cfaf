"""Evaluate formulas with symbolic sizes by NumPy. The functions to call are chosen once, for all sizes.

For arrays of a few thousand elements, `formula_at` and the preparation of an `Evaluator`, which each combination of sizes
would need, take ten times as long as computing the elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from ..core.dtypes import FLOATS, numpy_type
from ..core.size_values import at
from ..core.sizes import Size, is_same_size
from . import elements, ir
from .elements import Array
from .ir import Bitcast, Call, Cast, Const, Expr, Formula, Index, Load, unify, walk

Read: TypeAlias = Callable[..., Array]
"""The rule of a node that reads sizes or inputs: a size, a variable or a load. It takes sizes by name, inputs and operands."""


class TableEvaluator:
    """A formula with sizes, prepared for evaluation with NumPy. Threads may share it.

    It has one output, and neither reductions nor stored arrays. Temporaries have as many elements as the output.

    >>> from opweave.core.graph import Desc
    >>> from opweave.expr import trace
    >>> n = Size("n")
    >>> evaluator = TableEvaluator(trace(lambda x: x / x.shape[0], "mean", [Desc("float32", (n,))]))
    >>> evaluator({"n": 2}, [np.float32([1, 4])])
    array([0.5, 2. ], dtype=float32)
    """

    def __init__(self, program: Formula) -> None:
        (output,) = program.outputs
        assert not program.stored, program
        assert not program.checks, program
        self._axes, self._numbers = output.axes, {source: k for k, source in enumerate(program.inputs)}
        self._type = numpy_type(output.desc.data_type)
        self._slots = {axis: k for k, axis in enumerate(output.axes)}
        (body,) = unify(output.body)
        self._is_bool = body.type == "bool"

        def operands_of(node: Expr) -> tuple[Expr, ...]:
            return () if isinstance(node, Load) and self._is_view(node) else node.parts

        number = {node: k for k, node in enumerate(walk(body, enter=operands_of))}
        self._steps = [(*self._rule(node), tuple(number[operand] for operand in operands_of(node))) for node in number]

    def __call__(self, sizes: Mapping[str, int], inputs: Sequence[Array]) -> Array:
        """Compute the output for sizes by name."""
        values: list[Array] = []
        with np.errstate(all="ignore"):
            for rule, reads, operands in self._steps:
                arguments = [values[k] for k in operands]
                values.append(rule(sizes, inputs, *arguments) if reads else rule(*arguments))
            result = np.empty([at(axis.extent, sizes) for axis in self._axes], self._type)
            np.copyto(result.view(np.bool_) if self._is_bool else result, values[-1], casting="unsafe")
        return result

    def _rule(self, node: Expr) -> tuple[elements.Rule, bool]:
        """The rule of a node, and whether it is a `Read`."""
        match node:
            case Const(value=Size() as size):
                return lambda sizes, _: _scalar(ir.number(at(size, sizes), node.type)), True
            case Const():
                value = _scalar(node)
                return lambda: value, False
            case Index():
                return self._positions_of(node), True
            case Load():
                read, wide = self._view_of(node) if self._is_view(node) else self._gather(node), _type_of(node)
                if wide == node.type:
                    return read, True
                return lambda *arguments: read(*arguments).astype(wide), True
            case Call():
                return elements.function(node.name, node.parts[-1].type), False
            case Cast():
                return elements.conversion(node.parts[0].type, node.type, "float32"), False
            case Bitcast():
                return elements.bit_conversion(node.parts[0].type, node.type, "float32"), False
        raise AssertionError(node)

    def _positions_of(self, variable: Index) -> Read:
        shape = [-1 if k == self._slots[variable] else 1 for k in range(len(self._axes))]
        return lambda sizes, _: np.arange(at(variable.extent, sizes), dtype=np.int64).reshape(shape)

    def _is_view(self, load: Load) -> bool:
        """Whether a load reads all of its array, with axes in any order, and axes of size 1."""
        variables = [index for index in load.parts if isinstance(index, Index)]
        return len(variables) == len(set(variables)) and all(
            is_same_size(size, index.extent if isinstance(index, Index) else 1)
            for index, size in zip(load.parts, load.source.desc.shape, strict=True)
        )

    def _view_of(self, load: Load) -> Read:
        number, rank = self._numbers[load.source], len(self._axes)  # type: ignore[index]
        # An axis of size 1 has a constant as its index.
        slots = {self._slots[index]: k for k, index in enumerate(load.parts) if isinstance(index, Index)}
        order = [slots[slot] for slot in sorted(slots)]
        order += [k for k in range(len(load.parts)) if k not in order]
        new = tuple(slot for slot in range(rank) if slot not in slots)

        def rule(_: Mapping[str, int], inputs: Sequence[Array]) -> Array:
            array = inputs[number].transpose(order)
            return np.expand_dims(array.reshape(array.shape[: len(slots)]), new)

        return rule

    def _gather(self, load: Load) -> Read:
        number = self._numbers[load.source]  # type: ignore[index]

        def rule(_: Mapping[str, int], inputs: Sequence[Array], *indices: Array) -> Array:
            array, position = inputs[number], indices[0]
            for index, size in zip(indices[1:], array.shape[1:], strict=True):
                position = position * size + index
            return np.take(array.reshape(-1), position)

        return rule


def _type_of(node: Expr) -> np.dtype:
    return elements.dtype_of(node.type, "float32")


def _scalar(node: Const) -> Array:
    return np.array(elements.to_float32(node.value) if node.type in FLOATS else node.value, _type_of(node))
