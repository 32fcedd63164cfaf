"""Values of operands that give sizes, computed on the host: shape chains.

A chain begins at `shape` and at integer constants, and consists of the operations in `_RULES`. It never reads data of inputs.
Its values are arrays of Python's integers and of sizes: formulas while a graph with names is built, numbers when it runs.

Integers wrap around as their data type says. Formulas do so in 8 bits, and where they wrap around equally often for all sizes,
as n - 2**64 does. In more bits, other sums and products are those of unlimited integers, since sizes have 31 bits; functions
that do not commute with wrapping around read negative numbers of unsigned types as what they wrap around to.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from ..core.dtypes import INFO, DataType, is_float
from ..core.graph import Graph, Node, Operand, map_operands
from ..core.guards import without_deciding
from ..core.operation import Op, call_with
from ..core.shapes import Shape
from ..core.size_calls import divide_bound
from ..core.size_functions import (
    choose,
    floored_remainder,
    is_equal,
    is_less,
    larger,
    remainder,
    smaller,
    truncated_quotient,
    truncated_remainder,
    truth_of,
)
from ..core.size_terms import interval, linear_interval
from ..core.sizes import Dimension, Size, is_static
from ..support.errors import ValidationError
from . import constants, dynamic, elementwise, indexing, logical, movement, reduction

MAX_ELEMENTS = 2**16
"""Maximum number of elements of a value on the host, an estimate: a shape has 8, the parts of a split are 8192."""

MAX_FORMULA = 500
"""Maximum number of characters of a formula, an estimate: formulas of repeated choices grow exponentially."""

MAX_TERMS = 64
"""Maximum number of terms of a product, an estimate."""

Values = np.ndarray
"""An array of objects: integers and sizes."""

_cached: WeakKeyDictionary[Operand, Values] = WeakKeyDictionary()


def values_of(name: str, operand: Operand) -> list[Any]:
    """The integers and sizes of a 1-D or scalar operand, the end of a chain.

    Args:
        name: the name of the parameter, for messages.
        operand: the end of the chain.

    Raises:
        ValidationError: the chain reads data, has an operation that the host does not compute, or values whose shape is known
            only when the graph runs.
    """
    end = _resolve(operand)
    pending: list[tuple[Operand, Node | None]] = [(end, None)]
    while pending:
        last, reader = pending[-1]
        if last not in _cached:
            _require_host(name, last, reader)
            missing = [source for source in _sources(last) if source not in _cached]
            if missing:
                pending += [(source, last.node) for source in missing]
                continue
            _evaluate(last)
            _require_short(name, last)
        pending.pop()
    return [_wrap_below_0(value, end.data_type) for value in _cached[end].reshape(-1)]


def values_in(graph: Graph) -> tuple[Any, ...]:
    """The integers and sizes of all operands of a graph that give sizes, in the order of its nodes."""
    return tuple(
        value
        for node in graph.nodes
        if node.op is not dynamic.shape
        for name in node.op.operands
        if name in node.op.size_operands
        for value in values_of(name, cast(Operand, node.inputs[name]))
    )


def _resolve(operand: Operand) -> Operand:
    """The operand before its node was decomposed, and before its graph was divided into parts."""
    original, latest = operand.builder.original_of(operand), operand
    while original is not latest:
        original, latest = original.builder.original_of(original), original
    return original if original.node is not None and original.node.op in _RULES else operand


def _sources(operand: Operand) -> list[Operand]:
    """The operands whose values the node of an operand reads."""
    node = operand.node
    return [] if node is None or node.op is dynamic.shape else [_resolve(source) for source in node.operands]


def _require_host(name: str, operand: Operand, reader: Node | None) -> None:
    """Require an operand that the host can compute; `reader` is the node of the chain that reads it."""
    node, desc = operand.node, operand.desc
    rule = "must be computed from shapes and integer constants"
    if operand.is_input:
        origin = f"input {operand.name!r}"
    elif node is not None and (node.op not in _RULES or is_float(desc.data_type)):
        origin = f"the result of {node.title}, {desc}"
    elif is_float(desc.data_type):
        origin = f"a constant {desc}"
    elif node is None and not isinstance(operand.value, np.ndarray):
        origin = f"a constant {desc} in the memory of a device"
    elif not is_static(desc.shape):
        rule, origin = "must be computed from values of known shape", "" if node is None else f"{desc} of {node.title}"
    elif desc.element_count > MAX_ELEMENTS:
        rule, origin = f"must be computed from values of at most {MAX_ELEMENTS} elements", str(desc)
    else:
        return
    raise ValidationError(f"{name} {rule}, but {'got' if reader is None else f'{reader.title} reads'} {origin}")


def _require_short(name: str, operand: Operand) -> None:
    if any(isinstance(value, Size) and len(str(value)) > MAX_FORMULA for value in _cached[operand].flat):
        origin = "" if operand.node is None else f", but that of {operand.node.title} is longer"
        del _cached[operand]
        raise ValidationError(f"{name} must be computed by formulas of at most {MAX_FORMULA} characters{origin}")


def _evaluate(operand: Operand) -> None:
    """Compute the values of all results of the node of an operand."""
    node = operand.node
    if node is None:
        _cached[operand] = operand.value.astype(object)
        return
    arguments: dict[str, Any] = {**node.inputs, **node.attributes, "output_shape": node.outputs[0].shape}
    arguments["output_type"] = node.outputs[0].data_type
    if node.op is not dynamic.shape:
        read = _read_exactly if _is_nonlinear(node) else _read
        arguments |= map_operands(node.inputs, read)
    with without_deciding():
        result = call_with(_RULES[node.op], arguments)
        for output, values in zip(node.outputs, result if isinstance(result, tuple) else (result,), strict=True):
            _cached[output] = _wrap(np.asarray(values, object).reshape(output.shape), output.data_type)


def _is_nonlinear(node: Node) -> bool:
    """Whether an operation does not commute with wrapping around. A cast to no more bits keeps the lowest ones."""
    if node.op is elementwise.cast:
        (source,), (result,) = node.operands, node.outputs
        return INFO[result.data_type].bits > INFO[source.data_type].bits
    return node.op in _NONLINEAR


def _read(operand: Operand) -> Values:
    return _cached[_resolve(operand)]


def _read_exactly(operand: Operand) -> Values:
    """The values of an operand, where no formula of an unsigned type is negative. Formulas of 8 bits never are."""
    info = INFO[operand.data_type]

    def settle(value: Dimension) -> Dimension:
        if info.kind == "i" or info.bits <= 8 or interval(value)[0] >= 0:
            return value
        return remainder("%", value, 1 << info.bits)

    return np.asarray(np.frompyfunc(settle, 1, 1)(_read(operand)), object)


def _wrap_below_0(value: Dimension, data_type: DataType) -> Dimension:
    """Wrap a formula of an unsigned type around that is negative for all sizes, though not equally often for all of them."""
    info = INFO[data_type]
    if info.kind == "i" or not isinstance(value, Size) or interval(value)[1] >= 0:
        return value
    return remainder("%", value, 1 << info.bits)


def _wrap(values: Values, data_type: DataType) -> Values:
    """Keep the lowest bits of integers."""
    info = INFO[data_type]

    def wrap(value: Dimension) -> Dimension:
        low, high = linear_interval(value) if isinstance(value, Size) else (value, value)
        turns = divide_bound(low - info.lowest, 1 << info.bits)
        if not isinstance(turns, float) and turns == divide_bound(high - info.lowest, 1 << info.bits):
            return value - turns * (1 << info.bits)
        return value if info.bits > 8 else (value - info.lowest) % (1 << info.bits) + info.lowest

    return np.asarray(np.frompyfunc(wrap, 1, 1)(values), object)


# ---------------------------------------------------------------------------------------------------------------------
# Rules, of arrays of integers and sizes


def _by_element(function: Callable[..., Dimension], count: int) -> Callable[..., Any]:
    """The rule of an operation that has operands only."""
    ufunc = np.frompyfunc(function, count, 1)

    def rule(output_shape: Shape, output_type: DataType, **operands: Values) -> Any:
        return ufunc(*operands.values())

    return rule


def _multiply(a: Dimension, b: Dimension) -> Dimension:
    if isinstance(a, Size) and isinstance(b, Size) and len(a.terms) * len(b.terms) > MAX_TERMS:
        raise ValidationError(
            f"sizes must be products of at most {MAX_TERMS} terms, got {len(a.terms)} times {len(b.terms)}"
        )
    return a * b


def _reduction(
    function: Callable[[Dimension, Dimension], Dimension], neutral: Callable[[Any], int]
) -> Callable[..., Values]:
    """The rule of a reduction; `neutral` takes the facts of the data type, and returns the result without elements."""
    ufunc = np.frompyfunc(function, 2, 1)

    def rule(input: Values, axes: Sequence[int], output_shape: Shape, output_type: DataType) -> Values:
        if not input.size:
            return np.full(output_shape, neutral(INFO[output_type]), object)
        for axis in axes:
            input = ufunc.reduce(input, axis=axis, keepdims=True)
        return input.reshape(output_shape)

    return rule


def _reshape(input: Values, output_shape: Shape) -> Values:
    return input.reshape(output_shape)


def _expand(input: Values, output_shape: Shape) -> Values:
    return np.broadcast_to(input, output_shape)


def _slice(input: Values, starts: Sequence[Any], strides: Sequence[int], output_shape: Shape) -> Values:
    for axis, (start, stride, size) in enumerate(zip(starts, strides, output_shape, strict=True)):
        positions = [start + stride * number for number in range(size)]
        input = _gather(input, np.array(positions, object), axis)
    return input


def _split(input: Values, splits: Any, axis: int) -> tuple[Values, ...]:
    sizes = splits if isinstance(splits, int) else [int(size) for size in splits]
    borders = np.cumsum(movement.part_sizes(input.shape[axis], sizes))[:-1]
    return tuple(np.split(input, borders, axis))


def _tile(input: Values, repetitions: Sequence[Any]) -> Values:
    return np.tile(input, [int(times) for times in repetitions])


def _range(start: Values, delta: Values, output_shape: Shape) -> list[Dimension]:
    return [start.item() + delta.item() * number for number in range(output_shape[0])]


def _pick(values: Values, index: Dimension) -> Dimension:
    """The element of a vector at an index; negative ones count from the end, others out of range are clamped."""
    position = choose(is_less(index, 0), index + len(values), index)
    if isinstance(position, int):
        return values[min(max(position, 0), len(values) - 1)]  # type: ignore[no-any-return]
    *others, element = values
    for number, other in reversed(list(enumerate(others))):
        element = choose(is_less(position, number + 1), other, element)
    return element  # type: ignore[no-any-return]


def _gather(input: Values, indices: Values, axis: int) -> Values:
    lines = np.moveaxis(input, axis, -1)
    picked = [[_pick(line, index) for index in indices.flat] for line in lines.reshape(-1, input.shape[axis])]
    result = np.array(picked, object).reshape(*lines.shape[:-1], *indices.shape)
    last, rank = lines.ndim - 1, indices.ndim
    return np.moveaxis(result, range(last, last + rank), range(axis, axis + rank))


def _gather_elements(input: Values, indices: Values, axis: int) -> Values:
    lines, places = (np.moveaxis(array, axis, -1) for array in (input, indices))
    rows = zip(lines.reshape(-1, lines.shape[-1]), places.reshape(-1, places.shape[-1]), strict=True)
    picked = [[_pick(line, index) for index in row] for line, row in rows]
    return np.moveaxis(np.array(picked, object).reshape(places.shape), -1, axis)


def _cumulative_sum(input: Values, axis: int, exclusive: bool, reversed: bool) -> Values:
    terms = np.flip(input, axis) if reversed else input
    sums = np.cumsum(terms, axis) - (terms if exclusive else 0)
    return np.flip(sums, axis) if reversed else sums


def _triangular(input: Values, upper: bool, diagonal: int) -> Values:
    row, column = np.ogrid[: input.shape[-2], : input.shape[-1]]
    return np.where(column >= row + diagonal if upper else column <= row + diagonal, input, 0)


def _clamp(input: Values, min_value: int | None, max_value: int | None) -> Values:
    for function, bound in ((larger, min_value), (smaller, max_value)):
        input = input if bound is None else np.asarray(np.frompyfunc(function, 2, 1)(input, bound), object)
    return input


_RULES: Mapping[Op[..., Any], Callable[..., Any]] = {
    dynamic.shape: lambda input: np.array(input.shape, object),
    constants.sizes: lambda values, output_shape: np.array(values, object).reshape(output_shape),
    dynamic.range: _range,
    **dict.fromkeys((movement.reshape, dynamic.squeeze, dynamic.unsqueeze), _reshape),
    **dict.fromkeys((dynamic.reshape_to_2d, dynamic.reshape_dynamic, elementwise.identity, elementwise.cast), _reshape),
    **dict.fromkeys((movement.expand, dynamic.expand_dynamic), _expand),
    **dict.fromkeys((movement.slice, dynamic.slice_dynamic), _slice),
    **dict.fromkeys((movement.split, dynamic.split_dynamic), _split),
    **dict.fromkeys((movement.tile, dynamic.tile_dynamic), _tile),
    movement.concat: lambda inputs, axis: np.concatenate(inputs, axis),
    movement.reverse: lambda input, axes: np.flip(input, tuple(axes)),
    movement.transpose: lambda input, permutation: input.transpose(permutation),
    movement.triangular: _triangular,
    indexing.gather: _gather,
    indexing.gather_elements: _gather_elements,
    reduction.cumulative_sum: _cumulative_sum,
    reduction.reduce_sum: _reduction(operator.add, lambda info: 0),
    reduction.reduce_product: _reduction(_multiply, lambda info: 1),
    reduction.reduce_max: _reduction(larger, lambda info: int(info.lowest)),
    reduction.reduce_min: _reduction(smaller, lambda info: int(info.highest)),
    elementwise.add: _by_element(operator.add, 2),
    elementwise.sub: _by_element(operator.sub, 2),
    elementwise.mul: _by_element(_multiply, 2),
    elementwise.div: _by_element(truncated_quotient, 2),
    elementwise.max: _by_element(larger, 2),
    elementwise.min: _by_element(smaller, 2),
    elementwise.modulus_floor: _by_element(floored_remainder, 2),
    elementwise.modulus_truncate: _by_element(truncated_remainder, 2),
    elementwise.abs: _by_element(lambda x: choose(is_less(x, 0), -x, x), 1),
    elementwise.neg: _by_element(operator.neg, 1),
    elementwise.sign: _by_element(lambda x: is_less(0, x) - is_less(x, 0), 1),
    elementwise.where: _by_element(choose, 3),
    elementwise.clamp: _clamp,
    logical.equal: _by_element(is_equal, 2),
    logical.not_equal: _by_element(lambda a, b: 1 - is_equal(a, b), 2),
    logical.greater: _by_element(lambda a, b: is_less(b, a), 2),
    logical.greater_or_equal: _by_element(lambda a, b: 1 - is_less(a, b), 2),
    logical.lesser: _by_element(is_less, 2),
    logical.lesser_or_equal: _by_element(lambda a, b: 1 - is_less(b, a), 2),
    logical.logical_not: _by_element(lambda a: 1 - truth_of(a), 1),
    logical.logical_and: _by_element(lambda a, b: truth_of(a) * truth_of(b), 2),
    logical.logical_or: _by_element(lambda a, b: 1 - (1 - truth_of(a)) * (1 - truth_of(b)), 2),
    logical.logical_xor: _by_element(lambda a, b: 1 - is_equal(truth_of(a), truth_of(b)), 2),
}
"""Rules take the values of operands, and attributes, by the names of parameters; `output_shape` and `output_type` are
of the first result."""

_NONLINEAR = {
    *(elementwise.div, elementwise.max, elementwise.min, elementwise.clamp, elementwise.where),
    *(elementwise.modulus_floor, elementwise.modulus_truncate, indexing.gather, indexing.gather_elements),
    *(reduction.reduce_max, reduction.reduce_min, logical.equal, logical.not_equal, logical.greater),
    *(logical.greater_or_equal, logical.lesser, logical.lesser_or_equal),
    *(logical.logical_not, logical.logical_and, logical.logical_or, logical.logical_xor),
}
"""Operations that do not commute with wrapping around; casts to more bits do not, either."""
