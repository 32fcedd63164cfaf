"""Decompose whole-array expressions into WebNN operations, for engines that have kernels for them.

The dimensions of each operand are the axes of the result followed by the reduction variables, as in `evaluate`: loads
are sliced, transposed and reshaped into that form, functions broadcast, and reductions keep their dimensions. Values
that depend on no input, such as a triangular mask, are computed here and become constants.

A load at computed positions is a `gather`. The axes with such a position become one, whose index is computed as any other
value; the other axes stay slices, so that a gather moves whole rows where it can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.dtypes import FLOATS, INFO, WIDE, DataType
from ..core.graph import MAX_RANK, Operand
from ..core.guards import estimate
from ..core.sizes import Size, is_symbolic
from ..support.errors import NotSupportedError
from . import integers
from .elements import to_float32
from .evaluate import evaluate, slots_of
from .integers import constant
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
    Stored,
    Type,
    call,
    size_of,
    unify,
    walk,
)
from .linear import linear
from .reductions import unroll_short
from .simplify import simplify_elements

if TYPE_CHECKING:
    from ..ops import Operations

MAX_GROWTH = 8
"""Maximum size of a value, relative to the largest input or output. Matrix products written as products and
sums of elements exceed it; they would be slower than any other implementation.
"""

_MIN_LIMIT = 2**16
"""Elements up to which values may grow, whatever `MAX_GROWTH` is. An estimate."""

MAX_NODES = 2**14
"""Maximum number of operations of a decomposition, and of a reduction that is written out because the array of its terms would
exceed `MAX_GROWTH`. An estimate: they take a second to build."""

_MISSING = {"fmod"}
_BITS = {"bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"}


@dataclass(frozen=True)
class _LoadForm:
    """The form of a load.

    Attributes:
        slices: (start, variable or None, stride) of each axis; None for an axis with a computed position.
        position: the flat position in the axes with computed positions; None if there are none.
    """

    slices: tuple[tuple[int, Index | None, int] | None, ...]
    position: Expr | None


class _Definition:
    """An array of a program: its axes, its body in the form that is decomposed, and the nodes that become operands."""

    def __init__(self, array: Stored | Output, limit: int) -> None:
        self.axes, self.desc = array.axes, array.desc
        self.is_written_out = False

        def exceeds(node: Reduce) -> bool:
            is_too_large = _exceeds(node, limit)
            self.is_written_out |= is_too_large
            return is_too_large

        (body,) = unify(with_sigmoids(*unroll_short([array.body], exceeds)))
        reads = _reads_of(body)
        if any(read.position is not None for read in reads.values()):
            (body,) = simplify_elements(body)
            reads = _reads_of(body)
        self.body, self.reads = body, reads
        self.nodes = walk(body, enter=self.parts_of)
        self.slots = slots_of(self.axes, (body,))
        self.rank = max(self.slots.values(), default=-1) + 1
        self.dependent: set[Expr] = set()
        for node in self.nodes:
            if isinstance(node, Load) or not self.dependent.isdisjoint(node.parts):
                self.dependent.add(node)

    def parts_of(self, node: Expr) -> tuple[Expr, ...]:
        """The values that a node is computed from; for a load, its computed position."""
        if not isinstance(node, Load):
            return node.parts
        position = self.reads[node].position
        return () if position is None else (position,)

    def is_slow(self) -> bool:
        if self.is_written_out or any(read.position is not None for read in self.reads.values()):
            return True
        return any(isinstance(node, Call) and node.name in _BITS for node in self.nodes)


def _exceeds(node: Reduce, limit: int) -> bool:
    """Whether the terms of a reduction together are too many elements, but few enough to be written out."""
    variables = {*node.body.free, *node.variables}
    if any(is_symbolic(variable.extent) for variable in variables) or size_of(variables) <= limit:
        return False
    return size_of(node.variables) * len(walk(node.body)) <= MAX_NODES


def _reads_of(body: Expr) -> dict[Load, _LoadForm]:
    """The form of each load, in which equal positions are one node."""
    slices: dict[Load, tuple[tuple[int, Index | None, int] | None, ...]] = {}
    for node in walk(body):
        if isinstance(node, Load):
            slices[node] = tuple(_slice_of(node, axis) for axis in range(len(node.parts)))
    computed = {load: _flat_position(load, own) for load, own in slices.items() if None in own}
    # The nodes of the body come first, so that they stay what they are.
    _, *merged = unify(body, *computed.values())
    positions = dict(zip(computed, merged, strict=True))
    return {load: _LoadForm(own, positions.get(load)) for load, own in slices.items()}


def _slice_of(load: Load, axis: int) -> tuple[int, Index | None, int] | None:
    """Return (start, variable or None, stride) of an axis; None if its position is not a slice by itself."""
    index = load.parts[axis]
    position = linear(index)
    variable, stride = next(iter(position.terms.items()), (None, 1))
    if len(position.terms) > 1 or not isinstance(variable, Index | None) or stride < 1:
        return None
    if index.free != ({variable} if variable else set()):
        return None
    others = (other for k, other in enumerate(load.parts) if k != axis)
    is_shared = any(variable in other.free for other in others)
    return None if is_shared else (position.constant, variable, stride)


def _flat_position(load: Load, slices: Sequence[object]) -> Expr:
    """The position in the array whose axes are those of a load with computed positions."""
    flat: Expr | None = None
    for part, size, own in zip(load.parts, load.source.desc.shape, slices, strict=True):
        if own is None:
            flat = part if flat is None else call("add", call("mul", flat, Const(size, "index")), part)
    assert flat is not None
    return flat


class _ArrayProgram:
    """The form in which a program is decomposed.

    Attributes:
        definitions: its arrays, in the order in which they are computed.
        refusal: the reason why it cannot be decomposed; None if it can.
    """

    def __init__(self, program: Formula) -> None:
        self.program = program
        descs = [array.desc for arrays in (program.inputs, program.stored, program.outputs) for array in arrays]
        self.limit = max(_MIN_LIMIT, MAX_GROWTH * max(estimate(desc.element_count) for desc in descs))
        arrays: list[Stored | Output] = [*program.stored, *program.outputs]
        self.definitions = [_Definition(array, self.limit) for array in arrays]
        self.refusal = self._find_refusal()

    def _find_refusal(self) -> str | None:
        if self.program.checks:
            return "checks of indices have no operation"
        for definition in self.definitions:
            if definition.rank > MAX_RANK:
                return f"it needs arrays of more than {MAX_RANK} dimensions"
            for node in definition.nodes:
                reason = _refusal_of(node)
                count = estimate(size_of(node.free))
                if reason is None and count > self.limit:
                    reason = f"it needs arrays of {count} elements"
                if reason is not None:
                    return reason
        count = sum(len(definition.nodes) for definition in self.definitions)
        return f"it needs {count} operations" if count > MAX_NODES else None


def refusal(program: Formula) -> str | None:
    """Return the reason why a program cannot be decomposed; None if it can."""
    return _ArrayProgram(program).refusal


def is_slow(program: Formula) -> bool:
    """Whether a loop is much faster than the decomposition.

    Such a decomposition gathers whole arrays, looks up bits in tables, or adds up terms one by one.

    >>> from opweave import expr
    >>> from opweave.core.graph import Desc
    >>> x = Desc("float32", (4,))
    >>> is_slow(expr.trace(lambda x: x * 2, "twice", [x]))
    False
    >>> is_slow(expr.trace(lambda x: expr.compute((4,), lambda i: x[3 - i]), "reverse", [x]))
    True
    """
    return any(definition.is_slow() for definition in _ArrayProgram(program).definitions)


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
    for definition in _ArrayProgram(program).definitions:
        for node in definition.nodes:
            variables = [*node.free, *(node.variables if isinstance(node, Reduce) else ())]
            if isinstance(node, Const):
                numbers: list[Any] = [node.value]
            elif isinstance(node, Load):
                slices = definition.reads[node].slices
                numbers = [number for own in slices if own is not None for number in (own[0], own[2])]
            else:
                numbers = [] if node in definition.dependent else [variable.extent for variable in variables]
            if any(map(is_symbolic, numbers)):
                return True
    return False


def decompose(program: Formula, builder: Operations, operands: Sequence[Operand]) -> tuple[Operand, ...]:
    """Build the outputs of a program from WebNN operations; `NotSupportedError` if whole arrays cannot express it."""
    plan = _ArrayProgram(program)
    if plan.refusal is not None:
        raise NotSupportedError(f"{program.name}: cannot be decomposed, {plan.refusal}")
    arrays: dict[Source, Operand] = dict(zip(program.inputs, operands, strict=True))
    values = []
    for array, definition in zip((*program.stored, *program.outputs), plan.definitions, strict=True):
        values.append(_array(builder, arrays, definition))
        if isinstance(array, Stored):
            arrays[array] = values[-1]
    return tuple(values[len(program.stored) :])


def _refusal_of(node: Expr) -> str | None:
    if isinstance(node, Call) and node.name in _MISSING:
        return f"WebNN has no {node.name}"
    if isinstance(node, Bitcast):
        return "WebNN has no bitcast"
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Arrays


def _array(builder: Operations, arrays: Mapping[Source, Operand], definition: _Definition) -> Operand:
    value = _Writer(builder, arrays, definition).value()
    desc = definition.desc
    b = builder
    if value.shape != desc.shape and math.prod(value.shape) == desc.element_count:
        value = b.reshape(value, desc.shape)
    elif value.shape != desc.shape:
        value = b.expand(b.reshape(value, value.shape[: desc.rank]) if value.rank > desc.rank else value, desc.shape)
    if value.data_type != desc.data_type:
        value = b.cast(value, desc.data_type)
    return b.identity(value) if value.node is None else value


class _Writer:
    def __init__(self, builder: Operations, arrays: Mapping[Source, Operand], definition: _Definition) -> None:
        self.b, self.arrays, self.definition = builder, arrays, definition
        self.slots, self.rank = definition.slots, definition.rank
        self.operands: dict[Expr, Operand] = {}
        self._rows: dict[object, Operand] = {}

    def value(self) -> Operand:
        """Build the body. Axes that the body does not depend on have size 1."""
        body, dependent = self.definition.body, self.definition.dependent
        constant_nodes = {part for node in dependent for part in self.definition.parts_of(node)} | {body}
        for node in self.definition.nodes:
            if node in dependent:
                self.operands[node] = self._operand(node)
            elif node in constant_nodes:
                self.operands[node] = self._constant(node)
        return self.operands[body]

    def _operand(self, node: Expr) -> Operand:
        if isinstance(node, Load):
            return self._load(node)
        parts = [self.operands[part] for part in node.parts]
        if isinstance(node, Cast):
            return _cast(self.b, parts[0], node.parts[0].type, node.type)
        if isinstance(node, Reduce):
            return self._reduction(node, parts[0])
        assert isinstance(node, Call)
        rule = integers.FUNCTIONS.get(node.name)
        result: Operand = rule(self.b, *parts) if rule else getattr(self.b, node.name)(*parts)
        return result

    def _constant(self, node: Expr) -> Operand:
        data_type = _computed_type(node.type)
        if isinstance(node, Const):
            number = float(to_float32(node.value)) if data_type == "float32" else int(node.value)
            return constant(self.b, number, data_type)
        axes = tuple(sorted(node.free, key=lambda variable: self.slots[variable]))
        body = Cast(node, data_type) if node.type in ("float16", "index") else node
        program = Formula("constant", (), (Output(axes, body),))
        array = np.empty(program.outputs[0].desc.shape, data_type)
        evaluate(program, [], [array])
        return constant(self.b, array.reshape(self._shape(node)), data_type)

    def _shape(self, node: Expr) -> tuple[int, ...]:
        sizes = {self.slots[variable]: variable.extent for variable in node.free}
        return tuple(sizes.get(slot, 1) for slot in range(self.rank))

    def _load(self, node: Load) -> Operand:
        """Slice and gather an array, and transpose and reshape the result to one dimension for each slot."""
        b, read = self.b, self.definition.reads[node]
        array, variables = self._slice(node, read)
        if read.position is not None:
            array, variables = self._gather(node, read, array, variables)
        order = sorted(range(len(variables)), key=lambda axis: self._slot(variables[axis]))
        if order != list(range(len(order))):
            array = b.transpose(array, permutation=order)
        if array.shape != self._shape(node):
            array = b.reshape(array, self._shape(node))
        return _cast(b, array, node.type, "float32") if node.type == "float16" else array

    def _slice(self, node: Load, read: _LoadForm) -> tuple[Operand, list[Index | None]]:
        """Return the part of an array that the slices of a load reach, and the variable of each axis."""
        array = self.arrays[node.source]
        slices = [own or (0, None, 1) for own in read.slices]
        counts = [
            size if own is None else own[1].extent if own[1] else 1
            for own, size in zip(read.slices, array.shape, strict=True)
        ]
        if tuple(counts) != array.shape:
            starts, strides = [start for start, _, _ in slices], [stride for _, _, stride in slices]
            sizes = [(count - 1) * stride + 1 for count, stride in zip(counts, strides, strict=True)]
            array = self._once((node.source, read.slices), lambda: self.b.slice(array, starts, sizes, strides=strides))
        return array, [variable for _, variable, _ in slices]

    def _gather(
        self, node: Load, read: _LoadForm, array: Operand, variables: Sequence[Index | None]
    ) -> tuple[Operand, list[Index | None]]:
        """Gather at the computed position of a load, and return the variable of each axis of the result."""
        b, position = self.b, read.position
        assert position is not None
        computed = [axis for axis, own in enumerate(read.slices) if own is None]
        kept = [axis for axis, own in enumerate(read.slices) if own is not None and own[1] is not None]
        is_together = computed == list(range(computed[0], computed[-1] + 1))
        before = [axis for axis in kept if is_together and axis < computed[0]]
        after = [axis for axis in kept if axis not in before]

        def as_rows() -> Operand:
            """The axes with computed positions as one, behind those before it."""
            order = [*before, *computed, *after]
            rest = [axis for axis in range(array.rank) if axis not in order]  # of size 1
            arranged = array
            if sorted(order) != order:
                arranged = b.transpose(array, permutation=[*order, *rest])
            sizes = [array.shape[axis] for axis in computed]
            shape = [*(array.shape[k] for k in before), math.prod(sizes), *(array.shape[k] for k in after)]
            return arranged if arranged.shape == tuple(shape) else b.reshape(arranged, shape)

        rows = self._once((node.source, read.slices, "rows"), as_rows)
        index = self.operands[position]
        free = sorted(position.free, key=self._slot)
        if index.shape != tuple(variable.extent for variable in free):
            index = b.reshape(index, [variable.extent for variable in free])
        result = b.gather(rows, index, axis=len(before))
        return result, [*(variables[k] for k in before), *free, *(variables[k] for k in after)]

    def _once(self, key: object, function: Callable[[], Operand]) -> Operand:
        """Make an operand once for several loads of the same part of an array."""
        if key not in self._rows:
            self._rows[key] = function()
        return self._rows[key]

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


def _computed_type(type: Type) -> DataType:
    """The data type in which values of `type` are computed: float16 is computed in float32; positions fit into int32."""
    if type in ("float16", "float32"):
        return "float32"
    return "uint8" if type == "bool" else "int32" if type == "index" else type


def _cast(b: Operations, x: Operand, source: Type, target: Type) -> Operand:
    data_type = _computed_type(target)
    if target == "bool":
        return b.not_equal(x, constant(b, 0, x.data_type))
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
    number = b.where(b.is_nan(x), constant(b, 0.0, "float32"), x)
    whole = b.cast(b.clamp(number, min_value=float(info.lowest), max_value=last), data_type)
    above = b.greater_or_equal(number, constant(b, limit, "float32"))
    return b.where(above, constant(b, info.highest, data_type), whole)


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
    return b.where(has_nan, constant(b, math.nan, x.data_type), result)
