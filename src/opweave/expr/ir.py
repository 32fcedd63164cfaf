"""The expression IR: one array element as a function of its position.

An expression is a directed acyclic graph. Nodes are immutable and compared by identity, so a shared node is computed
once:

- `Const`: a number;
- `Index`: a position along an axis of the result, or a reduction variable;
- `Load`: an element of an input or of a stored intermediate;
- `Call`: a function of `FUNCTIONS`, WebNN's element-wise operations and some integer functions;
- `Cast`: a conversion to another data type;
- `Bitcast`: the bits of a number as another data type of the same width;
- `Reduce`: a sum, product, maximum, minimum, or the position of an extreme value, over its variables.

Every node has a type: a data type, "bool", or "index", a position whose range is known. There is no type promotion,
except that indices and Python numbers take the type of the other operand.

float16 is a storage type: arithmetic and constants are float32, rounded once, when the result is stored or cast to
float16. A cast from float16 is not rounded again. Integers wrap around. A shift by a negative amount, or by the bit
width or more, gives 0 (-1 for negative numbers shifted right). `max` and `min` return NaN if an operand is NaN.
Comparisons yield "bool", stored as uint8.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from ..core.dtypes import FLOATS, INFO, DataType
from ..core.graph import Desc
from ..core.size_bounds import lower_bound
from ..core.sizes import Size, is_same_size, is_symbolic
from ..support.cache import exact
from ..support.errors import require
from ..support.names import short_repr
from ..support.records import record
from .vocabulary import FUNCTIONS as FUNCTIONS, INTEGERS as INTEGERS, Reduction as Reduction, Type as Type

_serials = itertools.count()


class Expr:
    """Base class of all nodes.

    `parts` are the operands, and `free` the variables that the value depends on, without those that inner reductions bind.
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

    def rebuild(self, parts: tuple[Expr, ...]) -> Expr:
        """Return this node with other operands; the node itself if `parts` are its operands."""
        return self if parts == self.parts else self._copy(parts)  # nodes are compared by identity

    def _copy(self, parts: tuple[Expr, ...]) -> Expr:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.type}: {text(self)}>"


class Const(Expr):
    """A number of a data type, a truth value, or an index. The value may be a size that is known only at a run."""

    __slots__ = ("value",)

    def __init__(self, value: Any, type: Type) -> None:
        self.value = value
        self._set(type, ())


class Index(Expr):
    """A position in [0, extent) along an axis. The extent, a positive number, may be a `Size`.

    `axis` is counted from the end of the result's shape (-1 is the last one); 0 for reduction variables and unbound variables.
    """

    __slots__ = ("axis", "extent", "serial")

    def __init__(self, extent: int, axis: int = 0) -> None:
        self.extent, self.axis, self.serial = extent, axis, next(_serials)
        self._set("index", ())
        self.free = frozenset({self})


@dataclass(frozen=True, eq=False)
class Input:
    """An input array of a program, the operand of this `number`; the `name` in messages is empty for "x0", "x1", …"""

    number: int
    desc: Desc
    name: str = ""


class Stored:
    """An intermediate array that is computed completely before it is read; `body` is the element at `axes`."""

    __slots__ = ("axes", "body", "desc")

    def __init__(self, axes: tuple[Index, ...], body: Expr) -> None:
        self.axes, self.body = axes, body
        self.desc = Desc(storage(body.type), tuple(axis.extent for axis in axes))


Source: TypeAlias = Input | Stored


class Load(Expr):
    """The element of `source` at `indices`, one for each axis. Indices must be known to be in bounds."""

    __slots__ = ("source",)

    def __init__(self, source: Source, indices: tuple[Expr, ...]) -> None:
        assert [index.type for index in indices] == ["index"] * source.desc.rank, indices
        self.source = source
        self._set(source.desc.data_type, indices)

    def _copy(self, parts: tuple[Expr, ...]) -> Expr:
        return Load(self.source, parts)


class Call(Expr):
    """A function of `FUNCTIONS` applied to nodes. Use `call`, which checks the arguments."""

    __slots__ = ("name",)

    def __init__(self, name: str, arguments: tuple[Expr, ...]) -> None:
        self.name = name
        self._set(FUNCTIONS[name].result or arguments[-1].type, arguments)

    def _copy(self, parts: tuple[Expr, ...]) -> Expr:
        return Call(self.name, parts)


class Cast(Expr):
    """A node converted to a different type, as by WebNN's `cast`.

    Floats beyond the range of an integer type are clamped to it, and NaN becomes 0 (WebNN leaves both open). "bool"
    converts to 1 or 0, and a number `x` to `x != 0`. An integer cast to "index" must fit.
    """

    __slots__ = ()

    def __init__(self, value: Expr, type: Type) -> None:
        self._set(type, (value,))

    def _copy(self, parts: tuple[Expr, ...]) -> Expr:
        return Cast(parts[0], self.type)


class Bitcast(Expr):
    """The bits of a float32 as a 32-bit integer, or the reverse. Between integers of one width, a `Cast` keeps the bits."""

    __slots__ = ()

    def __init__(self, value: Expr, type: Type) -> None:
        self._set(type, (value,))

    def _copy(self, parts: tuple[Expr, ...]) -> Expr:
        return Bitcast(parts[0], self.type)


class Reduce(Expr):
    """A reduction of `parts[0]` over all positions of `variables`, the last of which changes fastest.

    Float16 sums and products accumulate in float32; integer ones wrap around. `arg_max` and `arg_min` have
    exactly one variable.
    """

    __slots__ = ("reduction", "variables")

    def __init__(self, reduction: Reduction, variables: tuple[Index, ...], body: Expr) -> None:
        self.reduction, self.variables = reduction, variables
        self._set("int32" if reduction.startswith("arg_") else body.type, (body,))
        self.free -= frozenset(variables)

    @property
    def body(self) -> Expr:
        return self.parts[0]

    def _copy(self, parts: tuple[Expr, ...]) -> Expr:
        return Reduce(self.reduction, self.variables, parts[0])


# ---------------------------------------------------------------------------------------------------------------------
# Constructors


def storage(type: Type) -> DataType:
    """The data type in which values of `type` are stored."""
    return "uint8" if type == "bool" else "int32" if type == "index" else type


def call(name: str, *arguments: Expr) -> Expr:
    """A checked `Call`; arithmetic of constant indices is folded."""
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
        return _fold(name, arguments) or Call(name, arguments)
    return Call(name, arguments)


def _fold(name: str, arguments: tuple[Expr, ...]) -> Expr | None:
    """Simplify index arithmetic with a constant, such as `i + 0` or `2 * 3`; None if it does not simplify."""
    first, other, function = arguments[0], arguments[-1], FUNCTIONS[name].operator
    if name not in (*_NEUTRAL, "mod") or function is None or not isinstance(other, Const):
        return None
    is_divided = name in ("floor_div", "mod")
    if isinstance(first, Const) and not (is_divided and _may_be_zero(other.value)):
        return Const(function(first.value, other.value), "index")
    return first if name in _NEUTRAL and is_same_size(other.value, _NEUTRAL[name]) else None


def _may_be_zero(value: Any) -> bool:
    return lower_bound(value) < 1 if isinstance(value, Size) else value == 0


_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "floor_div": 1}
"""Neutral second operands of index arithmetic."""


def number(value: Any, type: Type) -> Const:
    """A constant of the given type; `ValidationError` for 2.5 as an integer, or 300 as a uint8."""
    if isinstance(value, Size):
        require(type != "bool", f"expected True or False, got {value}")
        if type in INTEGERS and INFO[type].bits < 32:
            require(value <= INFO[type].highest, f"{value} is not a value of {type}")
        return Const(value, type)
    if type == "bool":
        require(isinstance(value, bool), f"expected True or False, got {short_repr(value)}")
        return Const(value, type)
    if type in FLOATS:
        require(
            abs(value) <= sys.float_info.max or not isinstance(value, int),
            f"{short_repr(value)} is not a value of {type}",
        )
        return Const(float(value), type)
    if isinstance(value, float):
        require(value.is_integer(), f"{short_repr(value)} is not a value of {type}")
    whole = int(value)
    info = INFO["int32" if type == "index" else type]
    require(info.lowest <= whole <= info.highest, f"{short_repr(value)} is not a value of {type}")
    return Const(whole, type)


# ---------------------------------------------------------------------------------------------------------------------
# Traversal


def walk(*roots: Expr, enter: Callable[[Expr], Iterable[Expr]] | None = None) -> list[Expr]:
    """All nodes reachable from `roots`, each once, operands before their users.

    `enter` returns the nodes to visit before a node; default: its operands, without the bodies of stored arrays.
    """
    done: dict[Expr, None] = {}
    for root in roots:
        if root in done:
            continue
        stack: list[tuple[Expr, Iterator[Expr]]] = []
        node, rest = root, iter(enter(root) if enter else root.parts)
        while True:
            for part in rest:
                if part in done:
                    continue
                if parts := enter(part) if enter else part.parts:
                    stack.append((node, rest))
                    node, rest = part, iter(parts)
                    break
                done[part] = None
            else:
                done[node] = None
                if not stack:
                    break
                node, rest = stack.pop()
    return list(done)


def substitute(root: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """Replace nodes (mostly variables) in `root`; subtrees that do not change are shared."""
    done: dict[Expr, Expr] = dict(values)
    variables = frozenset(key for key in values if isinstance(key, Index))
    only_variables = len(variables) == len(values)
    for node in walk(root, enter=lambda n: n.parts if not only_variables or n.free & variables else ()):
        if node not in done:
            if only_variables and not node.free & variables:
                done[node] = node
                continue
            done[node] = node.rebuild(tuple(done[part] for part in node.parts))
    return done[root]


def with_sources(root: Expr, sources: Mapping[Any, Any]) -> Expr:
    """Let loads read other arrays of the same shapes and data types; arrays that `sources` lacks are kept."""
    done: dict[Expr, Expr] = {}
    for node in walk(root):
        parts = tuple(done[part] for part in node.parts)
        is_changed = isinstance(node, Load) and node.source in sources
        done[node] = Load(sources[node.source], parts) if is_changed else node.rebuild(parts)  # type: ignore[attr-defined]
    return done[root]


def unify(*roots: Expr) -> tuple[Expr, ...]:
    """Merge structurally equal subexpressions into one node; variables are equal only if identical."""
    merged: dict[Expr, Expr] = {}
    unique: dict[tuple[object, ...], Expr] = {}
    for node in walk(*roots):
        rebuilt = node.rebuild(tuple(merged[part] for part in node.parts))
        key = (type(node), node.type, *payload(node), *map(id, rebuilt.parts))
        merged[node] = unique.setdefault(key, rebuilt)
    return tuple(merged[root] for root in roots)


def payload(node: Expr) -> tuple[object, ...]:
    """The fields of a node besides its type and operands."""
    match node:
        case Const():
            return (node.value if isinstance(node.value, Size) else exact(node.value),)
        case Load():
            return (node.source,)
        case Call():
            return (node.name,)
        case Reduce():
            return node.reduction, *node.variables
        case Cast() | Bitcast():
            return ()
        case _:
            return (node,)


def sources(*roots: Expr) -> list[Source]:
    """The arrays that `roots` and stored arrays read, each once, dependencies first."""

    def enter(node: Expr) -> Iterable[Expr]:
        stored = isinstance(node, Load) and isinstance(node.source, Stored)
        return (*node.parts, node.source.body) if stored else node.parts  # type: ignore[attr-defined]

    arrays = dict.fromkeys(node.source for node in walk(*roots, enter=enter) if isinstance(node, Load))
    return list(arrays)


def size_of(variables: Iterable[Index]) -> int:
    """The number of positions of variables."""
    return math.prod(variable.extent for variable in variables)


def variables_of(nodes: Iterable[Expr]) -> Iterator[Index]:
    """The variables among nodes, and those of reductions."""
    for node in nodes:
        if isinstance(node, Index):
            yield node
        elif isinstance(node, Reduce):
            yield from node.variables


# ---------------------------------------------------------------------------------------------------------------------
# Programs


@record(slots=False)
class Check:
    """The bounds check of an index that depends on data.

    The condition must be true at all positions of its free variables. Else, the error says that the `subject` must be in
    [0, extent), and shows the integer `value`, if there is one.
    """

    condition: Expr
    subject: str
    extent: int
    value: Expr | None = None

    @property
    def message(self) -> str:
        return f"{self.subject} must be in [0, {self.extent})"


@record(slots=False)
class Output:
    """An array that a program writes: `body` is the element at `axes`."""

    axes: tuple[Index, ...]
    body: Expr

    @property
    def desc(self) -> Desc:
        return Desc(storage(self.body.type), tuple(axis.extent for axis in self.axes))


@record(slots=False)
class Formula:
    """Expressions that compute output arrays from input arrays; running them fails if a check does not hold."""

    name: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    checks: tuple[Check, ...] = ()

    @property
    def roots(self) -> tuple[Expr, ...]:
        """The bodies of the outputs and the conditions of the checks."""
        return (*(output.body for output in self.outputs), *(check.condition for check in self.checks))

    @cached_property
    def stored(self) -> tuple[Stored, ...]:
        """The stored intermediates, in the order in which they must be computed."""
        return tuple(source for source in sources(*self.roots) if isinstance(source, Stored))

    @cached_property
    def has_sizes(self) -> bool:
        """Whether sizes are known only when the program runs."""
        descs = [*(source.desc for source in self.inputs), *(output.desc for output in self.outputs)]
        if any(is_symbolic(desc.shape) for desc in descs):
            return True
        return has_sizes(*(stored.body for stored in self.stored), *self.roots)

    @cached_property
    def is_pointwise(self) -> bool:
        """Whether each output element depends only on input elements at its own position (with broadcasting)."""
        nodes = walk(*self.roots)
        loads = (node for node in nodes if isinstance(node, Load))
        reduces = any(isinstance(node, Reduce) for node in nodes)
        return not (reduces or self.stored or self.checks) and all(is_aligned(load) for load in loads)

    @cached_property
    def operations(self) -> int:
        """Number of calls and casts per output element; the body of a reduction counts once."""
        return sum(isinstance(node, (Call, Cast, Bitcast)) and node.type != "index" for node in walk(*self.roots))

    def __str__(self) -> str:
        from .printing import show

        return show(self)


def has_sizes(*roots: Expr) -> bool:
    """Whether expressions depend on sizes that are known only when a program runs."""
    nodes = walk(*roots)
    numbers: list[Any] = [node.value for node in nodes if isinstance(node, Const)]
    numbers += (variable.extent for variable in variables_of(nodes))
    numbers += (size for node in nodes if isinstance(node, Load) for size in node.source.desc.shape)
    return any(map(is_symbolic, numbers))


def is_aligned(load: Load) -> bool:
    """Whether a load reads at the position that is written, ignoring dimensions of size 1."""
    rank = load.source.desc.rank
    return all(
        (isinstance(index, Index) and index.axis == k - rank) or (isinstance(index, Const) and is_same_size(size, 1))
        for k, (index, size) in enumerate(zip(load.parts, load.source.desc.shape, strict=True))
    )


def text(root: Expr) -> str:
    """A node as text, truncated, for messages."""
    from .printing import inline

    return inline(root)
