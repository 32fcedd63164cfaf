"""The representation of expressions: what one element of an array is, as a function of its position.

An expression is a directed acyclic graph of a few kinds of nodes; nodes are immutable and compared by identity, so a part
that is used twice is computed once:

- `Const`: a number;
- `Index`: a position along an axis of the result, or the variable of a reduction;
- `Load`: an element of an input, or of an array that is stored on the way;
- `Call`: a function of `FUNCTIONS`, the element-wise vocabulary of WebNN and a few integer functions;
- `Cast`: another data type;
- `Reduce`: a sum, product, maximum, minimum, or the position of one, over the positions of its variables.

Every node has a type: a data type, "bool", or "index", an integer of the program rather than of the data, whose range is
known. Nothing is promoted, except that indices and Python's numbers take the type of what they meet.

float16 is a type of storage: arithmetic on it, and its constants, are float32, and results are rounded once: when they are
stored, or cast to float16 (a cast from float16 takes what was computed as it is). Integers wrap around; a shift by as many
bits as there are or more (or by less than 0) gives 0, or -1 for negative numbers to the right. `max` and `min` are NaN
where an operand is. Comparisons yield "bool", which is stored as uint8.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from ..dtypes import ANY, FLOATS, INFO, SIGNED, DataType
from ..errors import ValidationError, require
from ..graph import Desc

Type: TypeAlias = DataType | Literal["bool", "index"]
"""The type of a node."""

INTEGERS: tuple[Type, ...] = tuple(t for t in ANY if t not in FLOATS)


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the vocabulary.

    Attributes:
        arity: how many arguments it takes.
        types: what types the arguments may have; all of them have the same one (but for the condition of `where`).
        result: the type of the result, None for that of the arguments.
        symbol: how it is printed between its arguments; empty for `name(arguments)`.
    """

    arity: int
    types: tuple[Type, ...]
    result: Type | None = None
    symbol: str = ""


_NUMBERS: tuple[Type, ...] = (*ANY, "index")
_WHOLE: tuple[Type, ...] = (*INTEGERS, "index")

FUNCTIONS: dict[str, Function] = {
    **{name: Function(2, _NUMBERS, symbol=s) for name, s in {"add": "+", "sub": "-", "mul": "*"}.items()},
    "div": Function(2, ANY, symbol="/"),
    "pow": Function(2, ANY),
    "max": Function(2, _NUMBERS),
    "min": Function(2, _NUMBERS),
    # Rounded down, with the remainder that belongs to it (Python's // and %); x // 0 and x % 0 are 0.
    "floor_div": Function(2, _WHOLE, symbol="//"),
    "mod": Function(2, _WHOLE, symbol="%"),
    **{
        name: Function(2, INTEGERS, symbol=s)
        for name, s in {"bit_and": "&", "bit_or": "|", "bit_xor": "^", "shift_left": "<<", "shift_right": ">>"}.items()
    },
    **{
        name: Function(2, (*_NUMBERS, "bool"), "bool", s)
        for name, s in {
            "equal": "==",
            "not_equal": "!=",
            "greater": ">",
            "greater_or_equal": ">=",
            "lesser": "<",
            "lesser_or_equal": "<=",
        }.items()
    },
    "logical_and": Function(2, ("bool",), "bool", "and"),
    "logical_or": Function(2, ("bool",), "bool", "or"),
    "logical_xor": Function(2, ("bool",), "bool", "xor"),
    "logical_not": Function(1, ("bool",), "bool"),
    "is_nan": Function(1, FLOATS, "bool"),
    "is_infinite": Function(1, FLOATS, "bool"),
    **{name: Function(1, (*SIGNED, "index")) for name in ("abs", "neg")},
    "sign": Function(1, SIGNED),
    **{
        name: Function(1, FLOATS)
        for name in (
            *("ceil", "floor", "round_even", "sqrt", "reciprocal"),
            *("exp", "log", "sin", "cos", "tan", "erf", "sigmoid", "tanh"),
        )
    },
    "where": Function(3, (*_NUMBERS, "bool")),  # the condition, "bool", comes first
}
"""All functions by name. Those with WebNN's names mean what the operations of WebNN mean."""

Reduction = Literal["sum", "product", "max", "min", "arg_max", "arg_min"]
"""Positions (`arg_max`, `arg_min`) are int32, and the first one where several elements are the greatest or the least. NaN is
greater than everything for `max` and `arg_max`, less than everything for `min` and `arg_min`."""

_serials = itertools.count()


class Expr:
    """Base of all nodes.

    Attributes:
        type: its type.
        parts: the nodes that it is made of.
        free: the variables that its value depends on; those of reductions inside of it are bound there.
    """

    __slots__ = ("__weakref__", "free", "parts", "type")
    type: Type
    parts: tuple[Expr, ...]
    free: frozenset[Index]

    def _set(self, type: Type, parts: tuple[Expr, ...]) -> None:
        self.type, self.parts = type, parts
        free: frozenset[Index] = frozenset()
        for part in parts:
            if not part.free <= free:
                free |= part.free
        self.free = free

    def rebuilt(self, parts: tuple[Expr, ...]) -> Expr:
        """The same node, made of other parts."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.type}: {text(self)}>"


class Const(Expr):
    """A number of a data type, a truth value, or an index."""

    __slots__ = ("value",)

    def __init__(self, value: int | float | bool, type: Type) -> None:
        self.value = value
        self._set(type, ())


class Index(Expr):
    """A position in [0, extent) along an axis.

    Attributes:
        extent: the number of positions.
        axis: counted from the last axis of the result, -1 for that itself; 0 for the variables of reductions and those
            that are not bound to an axis yet.
    """

    __slots__ = ("axis", "extent", "serial")

    def __init__(self, extent: int, axis: int = 0) -> None:
        self.extent, self.axis, self.serial = extent, axis, next(_serials)
        self._set("index", ())
        self.free = frozenset({self})


@dataclass(frozen=True, eq=False)
class Input:
    """An array that a program reads; `number` counts the operands."""

    number: int
    desc: Desc


class Stored:
    """An array that is computed completely, and kept, before others read it.

    Attributes:
        axes: a variable for each axis.
        body: one element, as a function of them.
    """

    __slots__ = ("axes", "body", "desc")

    def __init__(self, axes: tuple[Index, ...], body: Expr) -> None:
        self.axes, self.body = axes, body
        self.desc = Desc(storage(body.type), tuple(axis.extent for axis in axes))


Source: TypeAlias = Input | Stored


class Load(Expr):
    """The element of `source` at a position, which is known to lie inside of it: an index for each axis."""

    __slots__ = ("source",)

    def __init__(self, source: Source, indices: tuple[Expr, ...]) -> None:
        assert [index.type for index in indices] == ["index"] * source.desc.rank, indices
        self.source = source
        self._set(source.desc.data_type, indices)

    def rebuilt(self, parts: tuple[Expr, ...]) -> Expr:  # noqa: D102
        return Load(self.source, parts)


class Call(Expr):
    """A function of `FUNCTIONS` applied to nodes. Use `call`, which checks them."""

    __slots__ = ("name",)

    def __init__(self, name: str, arguments: tuple[Expr, ...]) -> None:
        self.name = name
        self._set(FUNCTIONS[name].result or arguments[-1].type, arguments)

    def rebuilt(self, parts: tuple[Expr, ...]) -> Expr:  # noqa: D102
        return Call(self.name, parts)


class Cast(Expr):
    """A node converted to another type, as `cast` of WebNN does it.

    Floats that an integer type cannot hold are clamped to its range, and NaN is 0 (WebNN leaves both open). "bool" is 1
    or 0; a number is true where it is not 0. An index is cast from an integer by taking its value, which must fit.
    """

    __slots__ = ()

    def __init__(self, value: Expr, type: Type) -> None:
        self._set(type, (value,))

    def rebuilt(self, parts: tuple[Expr, ...]) -> Expr:  # noqa: D102
        return Cast(parts[0], self.type)


class Reduce(Expr):
    """A reduction of `parts[0]` over all positions of `variables`, the first of which changes slowest.

    Sums and products of float16 are accumulated in float32; those of integers wrap around. `arg_max` and `arg_min` have
    one variable.
    """

    __slots__ = ("reduction", "variables")

    def __init__(self, reduction: Reduction, variables: tuple[Index, ...], body: Expr) -> None:
        self.reduction, self.variables = reduction, variables
        self._set("int32" if reduction.startswith("arg_") else body.type, (body,))
        self.free -= frozenset(variables)

    @property
    def body(self) -> Expr:
        """What is reduced."""
        return self.parts[0]

    def rebuilt(self, parts: tuple[Expr, ...]) -> Expr:  # noqa: D102
        return Reduce(self.reduction, self.variables, parts[0])


# ---------------------------------------------------------------------------------------------------------------------
# Making nodes


def storage(type: Type) -> DataType:
    """The data type that a value is stored in."""
    return "uint8" if type == "bool" else "int32" if type == "index" else type


def call(name: str, *arguments: Expr) -> Expr:
    """`Call`, checked.

    Raises:
        ValidationError: the types differ, or the function does not take them.
    """
    function = FUNCTIONS[name]
    count = len(arguments)
    require(count == function.arity, f"{name} takes {function.arity} operands, got {count}")
    values = arguments[1:] if name == "where" else arguments
    if name == "where":
        require(arguments[0].type == "bool", f"where: the condition must be bool, got {arguments[0].type}")
    kinds = list(dict.fromkeys(value.type for value in values))
    require(len(kinds) == 1, f"{name}: the operands must have one data type, got {' and '.join(kinds)}; cast one")
    allowed = function.types
    require(kinds[0] in allowed, f"{name}: the operands must be {' or '.join(allowed)}, got {kinds[0]}")
    if kinds[0] == "index":
        return _folded(name, arguments) or Call(name, arguments)
    return Call(name, arguments)


def _folded(name: str, arguments: tuple[Expr, ...]) -> Expr | None:
    """What arithmetic of indices with constants comes to, where that is simpler: `i + 0`, `2 * 3`."""
    first, *others = arguments
    other = others[0] if others else None
    if name not in _FOLDS or not isinstance(other, Const):
        return None
    function, neutral = _FOLDS[name]
    if isinstance(first, Const) and (other.value != 0 or name not in ("floor_div", "mod")):
        return Const(function(first.value, other.value), "index")
    return first if neutral is not None and other.value == neutral else None


_FOLDS: dict[str, tuple[Callable[[int | float, int | float], int | float], int | None]] = {
    "add": (operator.add, 0),
    "sub": (operator.sub, 0),
    "mul": (operator.mul, 1),
    "floor_div": (operator.floordiv, 1),
    "mod": (operator.mod, None),
}


def number(value: int | float | bool, type: Type) -> Const:
    """A constant of a type, which must be able to hold it.

    Raises:
        ValidationError: 2.5 as an integer, or 300 as a uint8.
    """
    if type == "bool":
        require(isinstance(value, bool), f"expected True or False, got {value!r}")
        return Const(value, type)
    if type in FLOATS:
        require(abs(value) <= sys.float_info.max or not isinstance(value, int), f"{value!r} is not a value of {type}")
        return Const(float(value), type)
    if isinstance(value, float):
        require(value.is_integer(), f"{value!r} is not a value of {type}")
    whole = int(value)
    info = INFO["int32" if type == "index" else type]
    require(info.lowest <= whole <= info.highest, f"{value!r} is not a value of {type}")
    return Const(whole, type)


# ---------------------------------------------------------------------------------------------------------------------
# Walking


def walk(*roots: Expr, enter: Callable[[Expr], Iterable[Expr]] | None = None) -> list[Expr]:
    """All nodes that `roots` are made of, each once, parts first.

    Args:
        roots: where to begin.
        enter: the nodes to visit before a node; default: its parts. Stored arrays are not entered by default.
    """
    done: dict[Expr, None] = {}
    for root in roots:
        stack: list[tuple[Expr, Iterator[Expr]]] = [(root, iter(enter(root) if enter else root.parts))]
        entered = {root}
        while stack:
            node, rest = stack[-1]
            part = next(rest, None)
            if part is None:
                stack.pop()
                done[node] = None
            elif part not in done and part not in entered:
                entered.add(part)
                stack.append((part, iter(enter(part) if enter else part.parts)))
    return list(done)


def substitute(root: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """`root` with nodes (variables, mostly) replaced; parts that stay the same stay the same nodes."""
    done: dict[Expr, Expr] = dict(values)
    wanted = frozenset(key for key in values if isinstance(key, Index))
    only_variables = len(wanted) == len(values)
    for node in walk(root, enter=lambda n: n.parts if not only_variables or n.free & wanted else ()):
        if node not in done:
            if only_variables and not node.free & wanted:
                done[node] = node
                continue
            parts = tuple(done[part] for part in node.parts)
            same = all(a is b for a, b in zip(parts, node.parts, strict=True))
            done[node] = node if same else node.rebuilt(parts)
    return done[root]


def unified(*roots: Expr) -> tuple[Expr, ...]:
    """The same expressions, in which parts that are built alike are one node (variables only if they are the same)."""
    made: dict[Expr, Expr] = {}
    known: dict[tuple[object, ...], Expr] = {}
    for node in walk(*roots):
        parts = tuple(made[part] for part in node.parts)
        same = all(a is b for a, b in zip(parts, node.parts, strict=True))
        candidate = node if same else node.rebuilt(parts)
        made[node] = known.setdefault((type(node), node.type, *_payload(node), *map(id, parts)), candidate)
    return tuple(made[root] for root in roots)


def _payload(node: Expr) -> tuple[object, ...]:
    """What tells nodes of one kind, type and parts apart."""
    match node:
        case Const():
            return repr(node.value), type(node.value)  # not 0.0 for -0.0
        case Load():
            return (node.source,)
        case Call():
            return (node.name,)
        case Reduce():
            return node.reduction, node.variables
        case Cast():
            return ()
        case _:
            return (node,)


def sources(*roots: Expr) -> list[Source]:
    """The arrays that `roots` load from, stored ones and what those load from included, each once, needed ones first."""

    def enter(node: Expr) -> Iterable[Expr]:
        stored = isinstance(node, Load) and isinstance(node.source, Stored)
        return (*node.parts, node.source.body) if stored else node.parts  # type: ignore[attr-defined]

    found = dict.fromkeys(node.source for node in walk(*roots, enter=enter) if isinstance(node, Load))
    return list(found)


# ---------------------------------------------------------------------------------------------------------------------
# Ranges of indices

Range: TypeAlias = tuple[int, int]
"""The least and the greatest value."""


def bounds(root: Expr) -> Range | None:
    """The range that an index certainly lies in; None if nothing is known about it."""
    found: dict[Expr, Range | None] = {}
    for node in walk(root, enter=lambda n: n.parts if n.type in _WHOLE else ()):
        found[node] = _bounds(node, found)
    return found[root]


def check_positions(*roots: Expr) -> None:
    """Require that positions, which are computed as int32, stay in its range; what is not known is taken to."""
    limits = INFO["int32"]
    found: dict[Expr, Range | None] = {}
    for node in walk(*roots):
        known = found[node] = _bounds(node, found) if node.type in _WHOLE else None
        if node.type == "index" and known and (known[0] < limits.lowest or known[1] > limits.highest):
            raise ValidationError(f"the position {text(node)} goes from {known[0]} to {known[1]}, beyond int32")


def _bounds(node: Expr, found: Mapping[Expr, Range | None]) -> Range | None:
    if isinstance(node, Const):
        return int(node.value), int(node.value)
    if isinstance(node, Index):
        return 0, node.extent - 1
    if isinstance(node, Cast) and node.type == "index":
        return found.get(node.parts[0])
    if not isinstance(node, Call):
        return None
    ranges = [found.get(part) for part in node.parts]
    if node.name == "where":
        (_, a, b) = ranges
        return (min(a[0], b[0]), max(a[1], b[1])) if a and b else None
    if node.name in ("max", "min"):
        return _bounds_of_choice(node, ranges[0], ranges[1])
    if None in ranges or node.type != "index":  # integers of data wrap around
        return None
    (low, high), *others = [r for r in ranges if r is not None]
    if node.name == "neg":
        return -high, -low
    if node.name == "abs":
        return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
    other = others[0]
    if node.name == "add":
        return low + other[0], high + other[1]
    if node.name == "sub":
        return low - other[1], high - other[0]
    if node.name == "mul":
        corners = [a * b for a in (low, high) for b in other]
        return min(corners), max(corners)
    if other[0] <= 0:
        return None  # dividing by something that may be 0 or negative
    if node.name == "mod":
        return (low, high) if low >= 0 and high < other[0] else (0, other[1] - 1)
    corners = [a // b for a in (low, high) for b in other]
    return min(corners), max(corners)


def _bounds_of_choice(node: Expr, a: Range | None, b: Range | None) -> Range | None:
    """The range of the greater or lesser of two, where that of one may be unknown: of a clamp, that is."""
    assert isinstance(node, Call)
    pick = max if node.name == "max" else min
    if a and b:
        return pick(a[0], b[0]), pick(a[1], b[1])
    known = a or b
    if known is None:
        return None
    info = INFO[storage(node.type)]
    return (known[0], info.highest) if node.name == "max" else (info.lowest, known[1])


# ---------------------------------------------------------------------------------------------------------------------
# Programs


@dataclass(frozen=True, eq=False)
class Check:
    """What must hold everywhere, or the program fails: the check of an index that depends on data.

    Attributes:
        condition: true where all is well; its free variables go over all their positions.
        message: what to say, for example "gather: indices must be in [0, 8)".
    """

    condition: Expr
    message: str


@dataclass(frozen=True, eq=False)
class Output:
    """An array that a program writes: `body` is one element, as a function of `axes`."""

    axes: tuple[Index, ...]
    body: Expr

    @property
    def desc(self) -> Desc:
        """Data type and shape."""
        return Desc(storage(self.body.type), tuple(axis.extent for axis in self.axes))


@dataclass(frozen=True, eq=False)
class Program:
    """Expressions that read some arrays and write others.

    Attributes:
        name: for messages and tables.
        inputs: what is read, in the order of the operands.
        outputs: what is written.
        checks: what must hold for all of it.
    """

    name: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    checks: tuple[Check, ...] = ()

    @property
    def roots(self) -> tuple[Expr, ...]:
        """The bodies of outputs and the conditions of checks."""
        return (*(output.body for output in self.outputs), *(check.condition for check in self.checks))

    @cached_property
    def stored(self) -> tuple[Stored, ...]:
        """The arrays stored on the way, in the order in which they must be computed."""
        return tuple(source for source in sources(*self.roots) if isinstance(source, Stored))

    @cached_property
    def is_pointwise(self) -> bool:
        """Whether each element of an output depends on the elements of the inputs at its own position only (broadcast)."""
        nodes = walk(*self.roots)
        loads = (node for node in nodes if isinstance(node, Load))
        reduces = any(isinstance(node, Reduce) for node in nodes)
        return not (reduces or self.stored or self.checks) and all(_aligned(load) for load in loads)

    @cached_property
    def operations(self) -> int:
        """Calls and casts an element of the outputs, those inside of reductions once."""
        return sum(isinstance(node, (Call, Cast)) and node.type != "index" for node in walk(*self.roots))

    def __str__(self) -> str:
        from .printing import show

        return show(self)


def _aligned(load: Load) -> bool:
    """Whether it reads at the position that is written, but for dimensions of size 1."""
    rank = load.source.desc.rank
    return all(
        (isinstance(index, Index) and index.axis == k - rank) or (isinstance(index, Const) and size == 1)
        for k, (index, size) in enumerate(zip(load.parts, load.source.desc.shape, strict=True))
    )


def text(root: Expr) -> str:
    """A node as text, for messages; long ones are cut."""
    from .printing import inline

    return inline(root)


def check_extents(extents: Sequence[int]) -> tuple[int, ...]:
    """Positive integers, or `ValidationError`."""
    for extent in extents:
        require(
            isinstance(extent, int) and not isinstance(extent, bool) and extent > 0,
            f"sizes must be positive integers, got {list(extents)}",
        )
    return tuple(extents)


__all__ = [
    "FUNCTIONS",
    "INTEGERS",
    "Call",
    "Cast",
    "Check",
    "Const",
    "Expr",
    "Function",
    "Index",
    "Input",
    "Load",
    "Output",
    "Program",
    "Range",
    "Reduce",
    "Reduction",
    "Source",
    "Stored",
    "Type",
    "ValidationError",
    "bounds",
    "call",
    "check_positions",
    "number",
    "sources",
    "storage",
    "substitute",
    "text",
    "unified",
    "walk",
]
