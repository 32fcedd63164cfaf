"""Decompose whole-array expressions into WebNN operations, for engines that have kernels for them.

The dimensions of each operand are the axes of the result followed by the reduction variables, as in `evaluate`: loads
are sliced, transposed and reshaped into that form, functions broadcast, and reductions keep their dimensions. Values
that depend on no input, such as a triangular mask, are computed here and become constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.dtypes import FLOATS, INFO, WIDE, DataType
from ..core.graph import MAX_RANK, Desc, Operand
from ..core.guards import estimate
from ..core.sizes import Size, is_symbolic
from ..support.errors import NotSupportedError
from .evaluate import evaluate, slots_of
from .ir import (
    INTEGERS,
    Bitcast,
    Call,
    Cast,
    Const,
    Expr,
    Formula,
    Index,
    Load,
    Output,
    Reduce,
    Source,
    Type,
    call,
    walk,
)
from .linear import linear

if TYPE_CHECKING:
    from ..ops import Operations

MAX_GROWTH = 8
"""Maximum size of a value, relative to the largest input or output. Matrix products written as products and
sums of elements exceed it; they would be slower than any other implementation.
"""

_MIN_LIMIT = 2**16  # elements; small values may grow further

_MISSING = {"bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"}


def refusal(program: Formula) -> str | None:
    """Return the reason why a program cannot be decomposed; None if it can."""
    if program.checks:
        return "checks of indices have no operation"
    descs = [array.desc for arrays in (program.inputs, program.stored, program.outputs) for array in arrays]
    limit = max(_MIN_LIMIT, MAX_GROWTH * max(estimate(desc.element_count) for desc in descs))
    for axes, body in _definitions(program):
        if 1 + max(slots_of(axes, (body,)).values(), default=-1) > MAX_RANK:
            return f"it needs arrays of more than {MAX_RANK} dimensions"
        for node in _nodes(body):
            reason = _refusal_of(node)
            count = estimate(math.prod(variable.extent for variable in node.free))
            if reason is None and count > limit:
                reason = f"it needs arrays of {count} elements"
            if reason is not None:
                return reason
    return None


def has_constants_with_sizes(program: Formula) -> bool:
    """Whether a decomposition has constants that depend on sizes which are known only at a run.

    >>> from opweave import expr
    >>> from opweave.core.graph import Desc
    >>> from opweave.core.sizes import Size
    >>> from opweave.expr.tracing import trace
    >>> x = Desc("float32", (Size("n"), 3))
    >>> has_constants_with_sizes(trace(lambda x: x * 2, "twice", [x]))
    False
    >>> has_constants_with_sizes(trace(lambda x: expr.compute(x.shape, lambda i, j: x[i, j] + i), "ramp", [x]))
    True
    """
    for _, body in _definitions(program):
        nodes = _nodes(body)
        dependent = _dependent(nodes)
        for node in nodes:
            variables = [*node.free, *(node.variables if isinstance(node, Reduce) else ())]
            if isinstance(node, Const):
                numbers: list[Any] = [node.value]
            elif isinstance(node, Load):
                numbers = [number for start, _, stride in _slices(node) or () for number in (start, stride)]
            else:
                numbers = [] if node in dependent else [variable.extent for variable in variables]
            if any(map(is_symbolic, numbers)):
                return True
    return False


def decompose(program: Formula, builder: Operations, operands: Sequence[Operand]) -> tuple[Operand, ...]:
    """Build the outputs of a program from WebNN operations; `NotSupportedError` if whole arrays cannot express it."""
    reason = refusal(program)
    if reason is not None:
        raise NotSupportedError(f"{program.name}: cannot be decomposed, {reason}")
    arrays: dict[Source, Operand] = dict(zip(program.inputs, operands, strict=True))
    for stored in program.stored:
        arrays[stored] = _array(builder, arrays, Output(stored.axes, stored.body))
    return tuple(_array(builder, arrays, output) for output in program.outputs)


def _definitions(program: Formula) -> list[tuple[tuple[Index, ...], Expr]]:
    return [*((s.axes, s.body) for s in program.stored), *((output.axes, output.body) for output in program.outputs)]


def _nodes(body: Expr) -> list[Expr]:
    """The nodes that become operands; the indices of loads do not."""
    return walk(body, enter=lambda node: () if isinstance(node, Load) else node.parts)


def _dependent(nodes: Sequence[Expr]) -> set[Expr]:
    """The nodes that depend on an input."""
    dependent: set[Expr] = set()
    for node in nodes:
        if isinstance(node, Load) or not dependent.isdisjoint(node.parts):
            dependent.add(node)
    return dependent


def _slices(load: Load) -> list[tuple[int, Index | None, int]] | None:
    """Return (start, variable or None, stride) for each index of a load; None if the load is not a slice."""
    slices: list[tuple[int, Index | None, int]] = []
    for index in load.parts:
        position = linear(index)
        variable, stride = next(iter(position.terms.items()), (None, 1))
        if len(position.terms) > 1 or not isinstance(variable, Index | None) or stride < 1:
            return None
        slices.append((position.constant, variable, stride))
    variables = [variable for _, variable, _ in slices if variable]
    return slices if len(set(variables)) == len(variables) and set(variables) == load.free else None


def _refusal_of(node: Expr) -> str | None:
    if isinstance(node, Load) and _slices(node) is None:
        return "it reads elements at computed positions"
    if isinstance(node, Call) and node.name in _MISSING:
        return f"WebNN has no {node.name}"
    if isinstance(node, Bitcast):
        return "WebNN has no bitcast"
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Arrays


def _array(builder: Operations, arrays: Mapping[Source, Operand], output: Output) -> Operand:
    value = _Writer(builder, arrays, output).value()
    desc = output.desc
    b = builder
    if value.shape != desc.shape and math.prod(value.shape) == desc.element_count:
        value = b.reshape(value, desc.shape)
    elif value.shape != desc.shape:
        value = b.expand(b.reshape(value, value.shape[: desc.rank]) if value.rank > desc.rank else value, desc.shape)
    if value.data_type != desc.data_type:
        value = b.cast(value, desc.data_type)
    return b.identity(value) if value.node is None else value


class _Writer:
    def __init__(self, builder: Operations, arrays: Mapping[Source, Operand], output: Output) -> None:
        self.b, self.arrays, self.body = builder, arrays, with_sigmoids(output.body)
        self.slots = slots_of(output.axes, (self.body,))
        self.rank = max(self.slots.values(), default=-1) + 1
        self.operands: dict[Expr, Operand] = {}

    def value(self) -> Operand:
        """Build the body. Axes that the body does not depend on have size 1."""
        nodes = _nodes(self.body)
        dependent = _dependent(nodes)
        constant_nodes = {part for node in dependent if not isinstance(node, Load) for part in node.parts} | {self.body}
        for node in nodes:
            if node in dependent:
                self.operands[node] = self._operand(node)
            elif node in constant_nodes:
                self.operands[node] = self._constant(node)
        return self.operands[self.body]

    def _operand(self, node: Expr) -> Operand:
        if isinstance(node, Load):
            return self._load(node)
        parts = [self.operands[part] for part in node.parts]
        if isinstance(node, Cast):
            return _cast(self.b, parts[0], node.parts[0].type, node.type)
        if isinstance(node, Reduce):
            return self._reduction(node, parts[0])
        assert isinstance(node, Call)
        rule = _RULES.get(node.name)
        result: Operand = rule(self.b, *parts) if rule else getattr(self.b, node.name)(*parts)
        return result

    def _constant(self, node: Expr) -> Operand:
        data_type = _computed_type(node.type)
        if isinstance(node, Const):
            number = float(np.float32(node.value)) if data_type == "float32" else int(node.value)
            return _constant(self.b, number, data_type)
        axes = tuple(sorted(node.free, key=lambda variable: self.slots[variable]))
        body = Cast(node, data_type) if node.type in ("float16", "index") else node
        program = Formula("constant", (), (Output(axes, body),))
        array = np.empty(program.outputs[0].desc.shape, data_type)
        evaluate(program, [], [array])
        return _constant(self.b, array.reshape(self._shape(node)), data_type)

    def _shape(self, node: Expr) -> tuple[int, ...]:
        sizes = {self.slots[variable]: variable.extent for variable in node.free}
        return tuple(sizes.get(slot, 1) for slot in range(self.rank))

    def _load(self, node: Load) -> Operand:
        """Slice, transpose and reshape an array to one dimension for each slot."""
        b, array = self.b, self.arrays[node.source]
        slices = _slices(node) or []
        starts, strides = [start for start, _, _ in slices], [stride for _, _, stride in slices]
        counts = [variable.extent if variable else 1 for _, variable, _ in slices]
        sizes = [(count - 1) * stride + 1 for count, stride in zip(counts, strides, strict=True)]
        if tuple(counts) != array.shape:
            array = b.slice(array, starts, sizes, strides=strides)
        order = sorted(range(len(slices)), key=lambda axis: self._slot(slices[axis][1]))
        if order != list(range(len(order))):
            array = b.transpose(array, permutation=order)
        if array.shape != self._shape(node):
            array = b.reshape(array, self._shape(node))
        return _cast(b, array, node.type, "float32") if node.type == "float16" else array

    def _slot(self, variable: Index | None) -> int:
        return -1 if variable is None else self.slots[variable]

    def _reduction(self, node: Reduce, body: Operand) -> Operand:
        b, axes = self.b, [self.slots[variable] for variable in node.variables]
        shape = list(body.shape or (1,) * self.rank)
        for axis, variable in zip(axes, node.variables, strict=True):
            shape[axis] = variable.extent
        if tuple(shape) != body.shape:
            body = b.expand(body, shape)
        if node.reduction not in ("sum", "product"):
            return _extreme(b, node.reduction, body, axes)
        reduce = getattr(b, f"reduce_{node.reduction}")
        if body.data_type in WIDE:
            result: Operand = reduce(body, axes=axes, keep_dimensions=True)
            return result
        wide = reduce(b.cast(body, "int32"), axes=axes, keep_dimensions=True)
        return b.cast(wide, body.data_type)  # wraps around, as sums in the narrow type would


# ---------------------------------------------------------------------------------------------------------------------
# Functions


def with_sigmoids(body: Expr) -> Expr:
    """Replace x / (1 + exp(-y)) by x * sigmoid(y), and 1 / (1 + exp(-y)) by sigmoid(y).

    Engines have a kernel for it, and fuse it with the product.

    >>> from opweave import expr
    >>> from opweave.core.graph import Desc
    >>> program = expr.trace(lambda x: x / (1 + expr.exp(-x)), "swish", [Desc("float32", (4,))])
    >>> with_sigmoids(program.outputs[0].body)
    <Call float32: x0[i] * sigmoid(x0[i])>
    """
    done: dict[Expr, Expr] = {}
    for node in walk(body):
        parts = tuple(done[part] for part in node.parts)
        exponent = _exponent_of_sigmoid(node)
        if exponent is None:
            done[node] = node.rebuild(parts)
            continue
        is_negated = isinstance(exponent, Call) and exponent.name == "neg"
        sigmoid = call("sigmoid", done[exponent.parts[0]] if is_negated else call("neg", done[exponent]))
        done[node] = sigmoid if _is_number(node.parts[0], 1) else call("mul", parts[0], sigmoid)
    return done[body]


def _exponent_of_sigmoid(node: Expr) -> Expr | None:
    """The z of x / (1 + exp(z)); None for all other nodes."""
    if not (isinstance(node, Call) and node.name == "div" and node.type in FLOATS):
        return None
    divisor = node.parts[1]
    if not (isinstance(divisor, Call) and divisor.name == "add"):
        return None
    for one, power in (divisor.parts, divisor.parts[::-1]):
        if _is_number(one, 1) and isinstance(power, Call) and power.name == "exp":
            return power.parts[0]
    return None


def _is_number(node: Expr, value: float) -> bool:
    return isinstance(node, Const) and not isinstance(node.value, Size) and node.value == value


def _constant(b: Operations, value: object, data_type: DataType) -> Operand:
    array: np.ndarray = np.asarray(value, data_type)
    return Operand(b, Desc(data_type, array.shape), value=array)


def _computed_type(type: Type) -> DataType:
    """The data type in which values of `type` are computed: float16 is computed in float32."""
    if type in ("float16", "float32"):
        return "float32"
    return "uint8" if type == "bool" else "int64" if type == "index" else type


def _cast(b: Operations, x: Operand, source: Type, target: Type) -> Operand:
    data_type = _computed_type(target)
    if target == "bool":
        return b.not_equal(x, _constant(b, 0, x.data_type))
    if target == "float16" and source != "float16":
        return b.cast(b.cast(x, "float16"), "float32")
    if source in FLOATS and target in INTEGERS:
        return _saturate(b, x, data_type)
    return x if x.data_type == data_type else b.cast(x, data_type)


def _saturate(b: Operations, x: Operand, data_type: DataType) -> Operand:
    """Truncate floats to integers, clamped to the range of `data_type`; NaN becomes 0."""
    info = INFO[data_type]
    limit = 2.0 ** (info.bits - (info.kind == "i"))
    last = float(np.nextafter(np.float32(limit), np.float32(0)))  # limit - 1 may not be a float
    number = b.where(b.is_nan(x), _constant(b, 0.0, "float32"), x)
    whole = b.cast(b.clamp(number, min_value=float(info.lowest), max_value=last), data_type)
    above = b.greater_or_equal(number, _constant(b, limit, "float32"))
    return b.where(above, _constant(b, info.highest, data_type), whole)


def _floor_div(b: Operations, x: Operand, y: Operand) -> Operand:
    quotient = b.div(x, y)  # truncated toward zero; x / 0 is 0
    if INFO[x.data_type].kind == "u":
        return quotient
    zero = _constant(b, 0, x.data_type)
    rest = b.sub(x, b.mul(quotient, y))
    opposite = b.not_equal(b.lesser(rest, zero), b.lesser(y, zero))
    inexact = b.logical_and(b.not_equal(rest, zero), b.not_equal(y, zero))
    return b.sub(quotient, b.cast(b.logical_and(inexact, opposite), x.data_type))


def _mod(b: Operations, x: Operand, y: Operand) -> Operand:
    zero = _constant(b, 0, x.data_type)
    return b.where(b.equal(y, zero), zero, b.sub(x, b.mul(_floor_div(b, x, y), y)))


_RULES: dict[str, Callable[..., Operand]] = {"floor_div": _floor_div, "mod": _mod}
"""Functions without a WebNN operation; all others are named like one."""


def _extreme(b: Operations, name: str, x: Operand, axes: Sequence[int]) -> Operand:
    """Compute an extreme value or its position. NaN must win, and engines may ignore NaN, so handle it apart."""
    if name.startswith("arg_"):
        result: Operand = getattr(b, name)(x, axes[0], keep_dimensions=True)
    else:
        result = getattr(b, f"reduce_{name}")(x, axes=axes, keep_dimensions=True)
    if x.data_type not in FLOATS:
        return result
    is_nan = b.is_nan(x)
    has_nan = b.reduce_max(is_nan, axes=axes, keep_dimensions=True)
    if name.startswith("arg_"):
        return b.where(has_nan, b.arg_max(is_nan, axes[0], keep_dimensions=True), result)
    return b.where(has_nan, _constant(b, math.nan, x.data_type), result)
