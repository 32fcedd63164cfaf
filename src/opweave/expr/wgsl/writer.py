"""Writing WGSL: modules, and the statements that compute expressions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...dtypes import FLOATS, INFO
from ..ir import Call, Cast, Const, Expr, Index, Input, Load, Reduce, Stored, Type, bounds, storage, walk
from . import elements, mathematics
from .elements import called, operand
from .types import Layout, bits, computed, is_plain, layout, literal

if TYPE_CHECKING:
    from . import Buffer, Features

_AXES = "ijklmnop"
LONGEST = 100
"""Expressions of more characters are divided into several statements."""
BRANCHES = 24
"""So many choices between values that are loaded are made by branches; the values of others are all computed."""
PART = 64
"""Sums of floats are made of sums of so many elements, which keeps more of their digits."""


class Module:
    """One WGSL module in the making.

    Attributes:
        bindings: the buffers it declares, in order.
        writes: whether it writes each of them.
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self.bindings: list[Buffer] = []
        self.writes: list[bool] = []
        self.names: dict[Buffer, str] = {}
        self.atomic: set[Buffer] = set()
        self.shared: list[str] = []
        self._constants: dict[tuple[str, str], str] = {}

    def read(self, source: Input | Stored) -> None:
        """Declare a buffer that is read."""
        self._declare(source, "x" if isinstance(source, Input) else "s", False)

    def write(self, target: Buffer) -> None:
        """Declare a buffer that is written."""
        self._declare(target, "s" if isinstance(target, Stored) else "y", True)

    def _declare(self, buffer: Buffer, letter: str, writes: bool) -> None:
        if buffer in self.names:
            number = self.bindings.index(buffer)
            self.writes[number] = self.writes[number] or writes
            return
        # By their order, so that kernels which differ in nothing else have the same text, and are compiled once.
        number = sum(name[0] == letter for name in self.names.values())
        name = f"{letter}{number}"  # the operands of two programs may have the same numbers
        self.names[buffer] = name if name not in self.names.values() else f"{name}_{len(self.bindings)}"
        self.bindings.append(buffer)
        self.writes.append(writes)

    def layout(self, buffer: Buffer) -> Layout:
        """How the elements of a buffer lie in it."""
        return layout(buffer.desc.data_type, self.features)

    def load(self, source: Input | Stored, flat: str) -> str:
        """Text of an element in the type that it is computed in.

        Args:
            source: where it lies; it is declared, if it is not yet.
            flat: the number of the element, an i32 or a u32.
        """
        if source not in self.names:
            self.read(source)
        name, data_type = self.names[source], source.desc.data_type
        lay = self.layout(source)
        if lay.lanes == 1:
            return f"f32({name}[{flat}])" if lay.element == "f16" else f"{name}[{flat}]"
        if flat.isdigit():
            word, lane = str(int(flat) // lay.lanes), f"{int(flat) % lay.lanes * (32 // lay.lanes)}u"
        else:
            number = flat if flat == "flat" else f"u32({flat})"
            shift, mask = (2, 3) if lay.lanes == 4 else (1, 1)
            word = f"{operand(number)} >> {shift}u"
            lane = f"({operand(number)} & {mask}u) * {32 // lay.lanes}u"
        if data_type == "float16":
            return called("half_value", (f"({name}[{word}] >> {operand(lane)}) & 0xffffu",))
        element = f"bitcast<i32>({name}[{word}])" if data_type == "int8" else f"{name}[{word}]"
        return f"extractBits({element}, {lane}, 8u)"

    def store(self, target: Buffer, flat: str, value: str) -> str:
        """A statement that writes an element of a type of which one fills a word, or float16 where there is `f16`.

        Args:
            target: where it is written; it is declared, if it is not yet.
            flat: the number of the element, an i32 or a u32.
            value: of the type that it is computed in.
        """
        self.write(target)
        lay = self.layout(target)
        assert lay.lanes == 1, f"{target.desc} has {lay.lanes} elements in a word"
        if lay.element == "f16":
            value = f"f16({value})"
        return f"{self.names[target]}[{flat}] = {value};"

    def constant(self, value: int | float | bool, type: Type, *, opaque: bool = False) -> str:
        """A number as text; where it is not a plain literal, or on demand, a variable that compilers do not look into."""
        plain = is_plain(value, type)
        if plain and not opaque:
            return literal(value, type)
        pattern = "u64" if type == "int64" else "u32"
        wgsl, text = (computed(type), literal(value, type)) if plain else (pattern, bits(value, type))
        name = self._constants.setdefault((wgsl, text), f"c{len(self._constants)}")
        return name if plain else f"bitcast<{computed(type)}>({name})"

    def text(self, body: str, workgroup_size: tuple[int, int, int]) -> str:
        """The module: bindings, the functions and variables that it needs, and `main`.

        Args:
            body: the statements of `main`; they may use `global`, `group`, `local` (`vec3<u32>`) and `lane` (u32), the
                built-in values of the invocation.
            workgroup_size: invocations of a workgroup in each dimension.
        """
        parts = []
        if any(self.layout(buffer).element == "f16" for buffer in self.bindings):
            parts.append("enable f16;\n")
        parts.append("\n".join(self._binding(k) for k in range(len(self.bindings))) + "\n")
        private = [f"var<private> {name}: {type} = {value};" for (type, value), name in self._constants.items()]
        if private or self.shared:
            parts.append("\n".join((*private, *self.shared)) + "\n")
        parts += (f"{declaration}\n" for declaration in mathematics.used((body,)))
        builtins = {
            "global": "@builtin(global_invocation_id) global: vec3<u32>",
            "group": "@builtin(workgroup_id) group: vec3<u32>",
            "local": "@builtin(local_invocation_id) local: vec3<u32>",
            "lane": "@builtin(local_invocation_index) lane: u32",
        }
        used = mathematics.words(body)
        parameters = ", ".join(text for name, text in builtins.items() if name in used)
        size = ", ".join(map(str, workgroup_size)).removesuffix(", 1").removesuffix(", 1")
        lines = "\n".join(f"    {line}" if line else "" for line in body.rstrip("\n").split("\n"))
        parts.append(f"@compute @workgroup_size({size})\nfn main({parameters}) {{\n{lines}\n}}\n")
        return "\n".join(parts)

    def _binding(self, number: int) -> str:
        buffer = self.bindings[number]
        mode = "read_write" if self.writes[number] else "read"
        element = self.layout(buffer).element
        element = f"atomic<{element}>" if buffer in self.atomic else element
        return f"@group(0) @binding({number}) var<storage, {mode}> {self.names[buffer]}: array<{element}>;"


@dataclass(frozen=True, eq=False)
class Grid:
    """Positions that go with a number which counts the elements of their domain.

    Attributes:
        axes: the last one changes fastest.
        flat: the number of an element, text of type u32.
        letter: the number of the letter that the first axis is called.
        prefix: what stands before letters.
    """

    axes: tuple[Index, ...]
    flat: str = "flat"
    letter: int = 0
    prefix: str = ""

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(axis.extent for axis in self.axes)


@dataclass
class _Scope:
    """Statements in which some variables have values.

    Attributes:
        variables: what is bound here, besides what is bound outside of it.
        grids: the numbers that variables follow from.
        known: expressions whose values have names here.
        own: expressions that are needed in this branch only.
    """

    variables: set[Index]
    grids: tuple[Grid, ...] = ()
    known: dict[Expr, str] = field(default_factory=dict)
    runs: dict[tuple[Grid, int, int], str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    own: frozenset[Expr] = frozenset()


Linear = tuple[int, dict[Expr, int]]
"""A constant, and a factor for each expression that is no sum."""


class Block:
    """Statements of a function, in which what is common is computed once, and outside of loops where that is possible.

    Args:
        module: where buffers and constants are declared.
        positions: the names of variables that have values.
        known: the names of other expressions that have values.
        grid: positions that follow from the number of an element.
        team: how many invocations reduce together what depends on none of the positions that differ among them; it takes
            a variable `lane`, their number. 0 if each works alone.
        team_depth: how many loops they all go through in the same way.
    """

    def __init__(
        self,
        module: Module,
        positions: Mapping[Index, str],
        known: Mapping[Expr, str] | None = None,
        *,
        grid: Grid | None = None,
        team: int = 0,
        team_depth: int = 0,
    ) -> None:
        self.module, self.team, self.team_depth = module, team, team_depth
        variables = {*positions, *(grid.axes if grid else ())}
        named: dict[Expr, str] = dict(positions.items())
        first = _Scope(variables, (grid,) if grid else (), {**named, **(known or {})})
        self._scopes = [first]
        self._branches: dict[Expr, tuple[frozenset[Expr], ...]] = {}
        self._count = self._loops = self._letters = self._counters = 0

    @property
    def lines(self) -> list[str]:
        """The statements so far."""
        return self._scopes[0].lines

    def value(self, expr: Expr) -> str:
        """Text of an expression, once the statements are done; its type is the one that it is computed in."""
        uses: dict[Expr, int] = {}
        nodes = walk(expr, enter=self._needs)
        for node in nodes:
            for part in self._needs(node):
                uses[part] = uses.get(part, 0) + 1
        choices = [node for node in nodes if isinstance(node, Call) and node.name == "where"]
        for node in choices[-BRANCHES:]:
            own = tuple(self._exclusive(part, uses) for part in node.parts[1:])
            if all(any(isinstance(inner, Load) for inner in nodes) for nodes in own):
                self._branches[node] = own
        return self._value(expr, uses)

    def _exclusive(self, root: Expr, uses: Mapping[Expr, int]) -> frozenset[Expr]:
        """What a part is made of that nothing else needs; nothing if that includes reductions, which all take part in."""
        within: dict[Expr, int] = {root: 1}
        own = set()
        for node in reversed(walk(root, enter=self._needs)):
            if within.get(node) == uses.get(node):
                own.add(node)
                for part in self._needs(node):
                    within[part] = within.get(part, 0) + 1
        return frozenset() if any(isinstance(node, Reduce) for node in own) else frozenset(own)

    def named(self, expr: Expr) -> str:
        """The value as a name or a literal, which can be used several times."""
        text = self.value(expr)
        return text if _is_simple(text) else self.let(text)

    def let(self, text: str) -> str:
        """A name for a text, in the innermost loop."""
        return self._let(text, len(self._scopes) - 1)

    # Scopes ----------------------------------------------------------------------------------------------------------

    def enter(self, variables: Mapping[Index, str] | None = None, grid: Grid | None = None) -> None:
        """Begin the statements of a loop, in which variables have values."""
        bound = {*(variables or {}), *(grid.axes if grid else ())}
        self._scopes.append(_Scope(bound, (grid,) if grid else (), dict((variables or {}).items())))

    def leave(self, head: str) -> None:
        """End the statements of a loop, whose first line is `head`."""
        inner = self._scopes.pop()
        self._scopes[-1].lines += [head, *(f"    {line}" for line in inner.lines), "}"]

    def add(self, *statements: str) -> None:
        """Add statements to the innermost loop."""
        self._scopes[-1].lines += statements

    def _depth(self, node: Expr) -> int:
        """The outermost scope in which a node has a value."""
        for depth in range(len(self._scopes) - 1, 0, -1):
            scope = self._scopes[depth]
            if node in scope.own or not node.free.isdisjoint(scope.variables):
                return depth
        return 0

    def _known(self, node: Expr) -> str | None:
        for scope in reversed(self._scopes):
            if node in scope.known:
                return scope.known[node]
        return None

    def _let(self, text: str, depth: int) -> str:
        name = f"t{self._count}"
        self._count += 1
        self._scopes[depth].lines.append(f"let {name} = {_bare(text)};")
        return name

    # Nodes -----------------------------------------------------------------------------------------------------------

    def _needs(self, node: Expr) -> tuple[Expr, ...]:
        """The nodes whose values a node is computed from, positions only where they are not sums."""
        if self._known(node) is not None:
            return ()
        if isinstance(node, Load):
            return tuple(atom for atom in self._place(node)[1] if not isinstance(atom, Index))
        if _is_sum(node):
            return tuple(atom for atom in _linear(node)[1] if not isinstance(atom, Index))
        return node.parts

    def _value(self, root: Expr, uses: Mapping[Expr, int]) -> str:
        made: dict[Expr, str] = {}
        for node in walk(root, enter=self._before):
            known = self._known(node)
            if known is not None:
                made[node] = known
                continue
            text = self._one(node, made, uses)
            depth = self._depth(node)
            whole = isinstance(node, Reduce) or node in self._branches
            if whole and _is_simple(text):
                self._scopes[depth].known[node] = text
            shared = whole or uses.get(node, 0) > 1 or len(text) > LONGEST or depth < len(self._scopes) - 1
            if shared and not _is_simple(text):
                text = self._scopes[depth].known[node] = self._let(text, depth)
            made[node] = text
        return made[root]

    def _before(self, node: Expr) -> tuple[Expr, ...]:
        """The nodes whose values must be there before the statements of a node begin."""
        if isinstance(node, Reduce):
            return ()
        return node.parts[:1] if node in self._branches and self._known(node) is None else self._needs(node)

    def _one(self, node: Expr, made: Mapping[Expr, str], uses: Mapping[Expr, int]) -> str:
        if isinstance(node, Const):
            return self.module.constant(node.value, node.type)
        if isinstance(node, Index):
            return self._sum((0, {node: 1}), made)
        if isinstance(node, Load):
            flat = self._sum(self._place(node), made, unsigned=True)
            if self.module.layout(node.source).lanes > 1 and not _is_simple(flat):
                flat = self._let(flat, self._depth(node))  # it is needed twice
            return self.module.load(node.source, flat)
        if isinstance(node, Reduce):
            return self._reduced(node, uses)
        if node in self._branches:
            return self._chosen(node, made[node.parts[0]], uses)
        if _is_sum(node):
            return self._sum(_linear(node), made)
        parts = [made[part] for part in node.parts]
        if all(isinstance(part, Const) for part in node.parts):
            # Compilers refuse constant expressions that overflow.
            parts = [self.module.constant(part.value, part.type, opaque=True) for part in _constants(node.parts)]
        if isinstance(node, Cast):
            return elements.cast(parts[0], node.parts[0].type, node.type)
        assert isinstance(node, Call)
        return _function(node, parts)

    @staticmethod
    def _place(load: Load) -> Linear:
        """The number of the element that is loaded."""
        total: Linear = (0, {})
        stride = 1
        for index, size in zip(reversed(load.parts), reversed(load.source.desc.shape), strict=True):
            total = _plus(total, _linear(index), stride)
            stride *= size
        return total

    def _sum(self, linear: Linear, made: Mapping[Expr, str], unsigned: bool = False) -> str:
        """A sum as text of type i32; it may be a u32 if `unsigned`."""
        constant, factors = linear
        rest = {atom: factor for atom, factor in factors.items() if factor}
        terms: list[tuple[str, int]] = []
        for depth, scope in enumerate(self._scopes):
            for grid in scope.grids:
                runs = self._runs(grid, depth, rest)
                if unsigned and not constant and not rest and not terms and runs == [(grid.flat, 1)]:
                    return grid.flat
                terms += ((f"i32({text})" if text == grid.flat else text, factor) for text, factor in runs)
        for atom, factor in rest.items():
            text = made.get(atom) or self._known(atom)
            assert text is not None, atom
            terms.append((operand(text), factor))
        result = ""
        for text, factor in sorted(terms, key=lambda term: term[1] < 0):
            if abs(factor) != 1:
                text = f"{text} * {abs(factor)}"
            sign = "-" if factor < 0 else "+"
            result = f"{result} {sign} {text}" if result else text if factor > 0 else f"-({text})"
        if constant and result:
            return f"{result} {'+' if constant > 0 else '-'} {abs(constant)}"
        return result or str(constant)

    def _runs(self, grid: Grid, depth: int, factors: dict[Expr, int]) -> list[tuple[str, int]]:
        """Neighbouring axes that move together, as one number each; they are taken out of `factors`."""
        axes = [axis for axis in grid.axes if axis.extent > 1]
        for axis in grid.axes:
            if axis.extent == 1:
                factors.pop(axis, None)
        terms = []
        last = len(axes) - 1
        while last >= 0:
            first, factor = last, factors.get(axes[last], 0)
            last -= 1
            if not factor:
                continue
            inner, size = first, axes[first].extent
            while inner > 0 and factors.get(axes[inner - 1], 0) == factor * size:
                inner -= 1
                size *= axes[inner].extent
            for axis in axes[inner : first + 1]:
                del factors[axis]
            terms.append((self._run(grid, depth, axes, inner, first), factor))
            last = inner - 1
        return terms[::-1]

    def _run(self, grid: Grid, depth: int, axes: Sequence[Index], first: int, last: int) -> str:
        """The number of axes from `first` to `last`."""
        if first == 0 and last == len(axes) - 1:
            return grid.flat
        scope = self._scopes[depth]
        key = (grid, first, last)
        if key not in scope.runs:
            text = grid.flat
            within = math.prod(axis.extent for axis in axes[last + 1 :])
            size = math.prod(axis.extent for axis in axes[first : last + 1])
            text = text if within == 1 else f"{text} / {within}u"
            text = text if first == 0 else f"{text} % {size}u" if within == 1 else f"({text}) % {size}u"
            start, end = grid.letter + first, grid.letter + last
            letters = _AXES[start : end + 1] if end < len(_AXES) else f"i{start}_{end}"
            name = self._unique(grid.prefix + letters)
            scope.lines.append(f"let {name} = i32({text});")
            scope.runs[key] = name
        return scope.runs[key]

    def _unique(self, name: str) -> str:
        taken = {known for scope in self._scopes for known in (*scope.known.values(), *scope.runs.values())}
        if name not in taken:
            return name
        self._letters += 1
        return f"{name}_{self._letters}"

    # Branches --------------------------------------------------------------------------------------------------------

    def _chosen(self, node: Expr, condition: str, uses: Mapping[Expr, int]) -> str:
        """A name for one of two values, of which only that one is computed: both are loaded from memory."""
        depth = self._depth(node)
        scopes, self._scopes = self._scopes, self._scopes[: depth + 1]
        name = f"t{self._count}"
        self._count += 1
        lines = [f"var {name}: {computed(node.type)};", f"if ({_bare(condition)}) {{"]
        for number, (part, own) in enumerate(zip(node.parts[1:], self._branches[node], strict=True)):
            self._scopes.append(_Scope(set(), own=own))
            value = self._value(part, uses)
            self.add(f"{name} = {_bare(value)};")
            inner = self._scopes.pop()
            lines += [*(f"    {line}" for line in inner.lines), "}" if number else "} else {"]
        self.add(*lines)
        self._scopes = scopes
        return name

    # Reductions ------------------------------------------------------------------------------------------------------

    def _reduced(self, node: Reduce, uses: Mapping[Expr, int]) -> str:
        """A name for the value of a reduction, once its loops are written where they need no repetition."""
        depth = self._depth(node)
        scopes, self._scopes = self._scopes, self._scopes[: depth + 1]
        number = self._loops
        self._loops += 1
        size = math.prod(variable.extent for variable in node.variables)
        together = self.team > 1 and depth <= self.team_depth and size > 4
        state = _State(self.module, node, f"{node.reduction.replace('arg_', 'at_')}{number}")
        self.add(*state.declarations())
        if together:
            self._strided(node, state, size, uses)
            self._gathered(state)
        else:
            self._nested(node, state, uses)
        self._scopes = scopes
        return elements.wrapped(state.result, node.type)

    def _element(self, node: Reduce, state: _State, uses: Mapping[Expr, int]) -> None:
        """One step of a reduction."""
        text = self._value(node.body, uses)
        if not state.positions or _is_simple(text):
            value = text
        else:
            value = self.let(text)
        position = self._sum((0, {node.variables[0]: 1}), {}) if state.positions else ""
        self.add(*state.step(_bare(value), position))

    def _strided(self, node: Reduce, state: _State, size: int, uses: Mapping[Expr, int]) -> None:
        """The part of a reduction that falls to one invocation of a team: elements next to those of its neighbours."""
        name = f"r{self._next()}"
        if state.is_long(-(-size // self.team)):
            start = f"{name}_from"
            self.enter()
            self.add(*state.begin_part())
            self.enter(grid=Grid(node.variables, name, prefix=name))
            self._element(node, state.part(), uses)
            step = PART * self.team
            self.leave(
                f"for (var {name} = {start}; {name} < min({start} + {step}u, {size}u); {name} += {self.team}u) {{"
            )
            self.add(*state.end_part())
            self.leave(f"for (var {start} = lane; {start} < {size}u; {start} += {step}u) {{")
            return
        self.enter(grid=Grid(node.variables, name, prefix=name))
        self._element(node, state, uses)
        self.leave(f"for (var {name} = lane; {name} < {size}u; {name} += {self.team}u) {{")

    def _nested(self, node: Reduce, state: _State, uses: Mapping[Expr, int]) -> None:
        """A reduction by one invocation: a loop for each variable."""
        *outer, last = node.variables
        names = {variable: f"r{self._next()}" for variable in node.variables}
        for variable in outer:
            self.enter({variable: names[variable]})
        long = state.is_long(math.prod(variable.extent for variable in node.variables))
        parted = long and last.extent > 2 * PART
        name, start = names[last], f"{names[last]}_from"
        if parted:
            self.enter()
        if long:
            self.add(*state.begin_part())
        self.enter({last: name})
        self._element(node, state.part() if long else state, uses)
        first, end = (start, f"min({start} + {PART}, {last.extent})") if parted else ("0", str(last.extent))
        self.leave(f"for (var {name} = {first}; {name} < {end}; {name}++) {{")
        if long:
            self.add(*state.end_part())
        if parted:
            self.leave(f"for (var {start} = 0; {start} < {last.extent}; {start} += {PART}) {{")
        for variable in reversed(outer):
            self.leave(
                f"for (var {names[variable]} = 0; {names[variable]} < {variable.extent}; {names[variable]}++) {{"
            )

    def _next(self) -> int:
        self._counters += 1
        return self._counters - 1

    def _gathered(self, state: _State) -> None:
        """Reduce what the invocations of a team have found, in shared memory; all of them know the result."""
        memory = [self._memory(f"shared_{'at' if k else type}", type) for k, type in enumerate(state.types)]
        self.add(*(f"{m}[lane] = {name};" for m, name in zip(memory, state.names, strict=True)))
        self.add("workgroupBarrier();")
        other = [f"{m}[lane + stride]" for m in memory]
        body = [*state.combine(other), *(f"{m}[lane] = {n};" for m, n in zip(memory, state.names, strict=True))]
        self.add(
            f"for (var stride = {self.team // 2}u; stride > 0u; stride = stride >> 1u) {{",
            "    if (lane < stride) {",
            *(f"        {line}" for line in body),
            "    }",
            "    workgroupBarrier();",
            "}",
            *(f"{name} = {m}[0];" for m, name in zip(memory, state.names, strict=True)),
            "workgroupBarrier();",
        )

    def _memory(self, name: str, type: str) -> str:
        """Memory of the team for a value of each invocation."""
        declaration = f"var<workgroup> {name}: array<{type}, {self.team}>;"
        if declaration not in self.module.shared:
            self.module.shared.append(declaration)
        return name


class _State:
    """What a reduction has found so far: a value, and its position for `arg_max` and `arg_min`."""

    def __init__(self, module: Module, node: Reduce, name: str, value_name: str = "") -> None:
        self.module, self.node, self.name = module, node, name
        self.type = node.body.type
        self.positions = node.reduction.startswith("arg_")
        self.value = value_name or (f"{name}_value" if self.positions else name)

    @property
    def result(self) -> str:
        return self.name

    @property
    def names(self) -> list[str]:
        return [self.value, self.name] if self.positions else [self.value]

    @property
    def types(self) -> list[str]:
        return [computed(self.type), "i32"] if self.positions else [computed(self.type)]

    def declarations(self) -> list[str]:
        """The variables, as they are before the first element."""
        lines = [f"var {self.value} = {self.neutral};"]
        return [*lines, f"var {self.name} = 2147483647;"] if self.positions else lines

    @property
    def neutral(self) -> str:
        kind, type = self.node.reduction, self.type
        if kind in ("sum", "product"):
            return self.module.constant(int(kind == "product"), type)
        least = kind.endswith("max")
        if type in FLOATS:
            return "-infinity()" if least else "infinity()"
        info = INFO[storage(type)]
        return self.module.constant(info.lowest if least else info.highest, type)

    def step(self, value: str, position: str) -> list[str]:
        """Statements that take in an element."""
        if self.positions:
            return self._choice(value, position)
        kind = self.node.reduction
        if kind in ("sum", "product"):
            return [f"{self.value} {'+' if kind == 'sum' else '*'}= {value};"]
        name = {"max": "maximum", "min": "minimum"}[kind] if self.type in FLOATS else kind
        return [f"{self.value} = {called(name, (self.value, value))};"]

    def combine(self, other: Sequence[str]) -> list[str]:
        """Statements that take in what others have found."""
        if not self.positions:
            return self.step(other[0], "")
        lines = [f"let other_value = {other[0]};", f"let other = {other[1]};"]
        return [*lines, *self._choice("other_value", "other")]

    def _choice(self, value: str, position: str) -> list[str]:
        """The first position of the best element; NaN is the best."""
        sign = ">" if self.node.reduction == "arg_max" else "<"
        better, same = f"{value} {sign} {self.value}", f"{value} == {self.value}"
        if self.type in FLOATS:
            better = f"!is_nan({self.value}) && ({better} || is_nan({value}))"
            same = f"{same} || (is_nan({self.value}) && is_nan({value}))"
        return [
            f"if (({better}) || (({same}) && {position} < {self.name})) {{",
            f"    {self.value} = {value};",
            f"    {self.name} = {position};",
            "}",
        ]

    # Parts of sums

    def is_long(self, count: int) -> bool:
        """Whether the sum of so many elements is made in parts."""
        return self.node.reduction == "sum" and self.type in FLOATS and count > 2 * PART

    def part(self) -> _State:
        return _State(self.module, self.node, f"{self.name}_part")

    def begin_part(self) -> list[str]:
        return self.part().declarations()

    def end_part(self) -> list[str]:
        return [f"{self.value} += {self.part().value};"]


# ---------------------------------------------------------------------------------------------------------------------
# Positions


def _is_sum(node: Expr) -> bool:
    """Whether an index is made of others by additions and constant factors."""
    if not isinstance(node, Call) or node.type != "index":
        return False
    if node.name == "mul":
        return any(isinstance(part, Const) for part in node.parts)
    return node.name in ("add", "sub", "neg")


def _linear(root: Expr) -> Linear:
    """An index as a sum of others with factors."""
    found: dict[Expr, Linear] = {}
    for node in walk(root, enter=lambda n: n.parts if _is_sum(n) else ()):
        if isinstance(node, Const):
            found[node] = int(node.value), {}
            continue
        if not _is_sum(node):
            found[node] = 0, {node: 1}
            continue
        assert isinstance(node, Call)
        first, *others = (found[part] for part in node.parts)
        if node.name == "neg":
            found[node] = _plus((0, {}), first, -1)
        elif node.name == "mul":
            constant, scaled = (first, others[0]) if not first[1] else (others[0], first)
            found[node] = _plus((0, {}), scaled, constant[0])
        else:
            found[node] = _plus(first, others[0], 1 if node.name == "add" else -1)
    return found[root]


def _plus(a: Linear, b: Linear, factor: int) -> Linear:
    factors = dict(a[1])
    for atom, own in b[1].items():
        factors[atom] = factors.get(atom, 0) + own * factor
    return a[0] + b[0] * factor, factors


# ---------------------------------------------------------------------------------------------------------------------
# Texts


def _constants(parts: Sequence[Expr]) -> list[Const]:
    return [part for part in parts if isinstance(part, Const)]


def _is_zero(node: Expr) -> bool:
    return isinstance(node, Const) and node.value == 0


def _is_negative(node: Expr) -> bool:
    return isinstance(node, Const) and math.copysign(1, node.value) < 0


def _function(node: Call, parts: Sequence[str]) -> str:
    """A function of the vocabulary, in a simpler form where an argument is a constant."""
    divisor = node.parts[-1]
    if node.name in ("div", "reciprocal") and node.type in FLOATS and _is_zero(divisor):
        # Said in words: llvmpipe makes any number of a division by a constant 0.
        dividend = parts[0] if node.name == "div" else "1.0f"
        return called("over_zero", (f"-{operand(dividend)}" if _is_negative(divisor) else dividend,))
    if node.name in ("max", "min"):
        for part, other in ((0, 1), (1, 0)):
            constant = node.parts[part]
            if isinstance(constant, Const) and constant.value == constant.value:
                text = elements.with_constant(node.name, node.type, parts[other], parts[part])
                if text:
                    return text
    if node.type == "index" and node.name in ("floor_div", "mod"):
        known = bounds(node.parts[0])
        if isinstance(divisor, Const) and divisor.value > 0 and known and known[0] >= 0:
            return elements.index_division(node.name, parts[0], int(divisor.value))
    return elements.call(node.name, node.parts[-1].type, parts)


def _is_simple(text: str) -> bool:
    """Whether a text is a name or a literal."""
    return all(character.isalnum() or character in "_.-" for character in text)


def _bare(text: str) -> str:
    """A text without brackets around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for k, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[1:-1] if k == len(text) - 1 else text
    return text


__all__ = ["Block", "Grid", "Module"]
