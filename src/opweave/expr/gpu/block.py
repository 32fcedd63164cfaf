"""Generate the statements that compute expressions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...core.size_bounds import is_always_less
from ...core.sizes import Dimension, Size, is_same_size, may_exceed
from ..ir import Bitcast, Call, Cast, Const, Expr, Index, Load, Reduce, Source, size_of, walk
from ..linear import Linear, is_sum, magnitude_of
from ..printing import letter
from . import elements
from .elements import call_of, function, is_simple, operand
from .mathematics import words
from .module import GpuModule
from .reductions import PART, State, combine_states
from .types import computed_type

MAX_LINE_CHARACTERS = 100
"""Longer expressions are split into several statements."""
MAX_BRANCHES = 24
"""Maximum number of `where` compiled to branches, so that only one of two loads is executed; the others use `select`.
Branches may be nested: WGSL allows 127 levels of braces (https://www.w3.org/TR/WGSL/#limits), including those of loops."""
MAX_WRITTEN_OUT_NODES = 600
"""Maximum size of unrolled code, in nodes: shader compilers take time for each expression."""


@dataclass(frozen=True, eq=False)
class Grid:
    """A domain whose positions follow from one flat index; `flat` is the text of that index, a u32.

    The last one of `axes` changes fastest; `letter` is the index of the letter that names the first axis.
    """

    axes: tuple[Index, ...]
    flat: str = "flat"
    letter: int = 0
    prefix: str = ""


@dataclass
class _Scope:
    """A block of statements, such as the body of a loop, with the variables and names bound there.

    Attributes:
        grid: a domain whose flat number is bound here.
        runs: names of the flat numbers of adjacent axes.
        own: expressions that only this branch needs.
        together: whether control flow is uniform across the workgroup.
        keeps: whether loads are kept in registers, because another grid loads the same elements at the same flat number.
    """

    variables: set[Index]
    grid: Grid | None = None
    names: dict[Expr, str] = field(default_factory=dict)
    runs: dict[tuple[Grid, int, int], str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    own: frozenset[Expr] = frozenset()
    together: bool = False
    keeps: bool = False


@dataclass(frozen=True)
class _Loop:
    """A loop over the numbers `first`, `first + step`, … below `size`.

    `end` is the code of the size, `unit` the suffix of literals.
    """

    name: str
    first: str
    size: Dimension
    end: str
    step: int = 1
    unit: str = ""

    def head(self, within: _Loop | None = None) -> str:
        """The first line. `within` is an outer loop over parts; this loop runs over one part."""
        name, first, end = self.name, self.first, self.end
        if within:
            first, end = within.name, f"min({within.name} + {within.step}{self.unit}, {end})"
        return f"for (var {name} = {first}; {name} < {end}; {name} += {self.step}{self.unit}) {{"


class Block:
    """Statements of a function. Common subexpressions are computed once, and hoisted out of loops where possible.

    Args:
        module: declares buffers and constants.
        positions: names of variables that are already bound.
        names: names of expressions that are already computed.
        grid: a domain whose flat number is bound.
        team: number of invocations that share reductions which are uniform across the workgroup, numbered by the
            variable `lane`; 0 if each works alone.
        fixed: arrays that no kernel writes. The statements `early` precede all others, and read nothing else.
    """

    def __init__(
        self,
        module: GpuModule,
        positions: Mapping[Index, str],
        names: Mapping[Expr, str] | None = None,
        *,
        grid: Grid | None = None,
        team: int = 0,
        fixed: Collection[Source] = (),
    ) -> None:
        self.module, self.team, self.fixed = module, team, fixed
        self.early: list[str] = []
        self._kept: dict[str, str] = {}
        self._scopes: list[_Scope] = []
        self.enter(positions, grid, together=True)
        self._scopes[0].names.update(names or {})
        self._branches: dict[Expr, tuple[frozenset[Expr], ...]] = {}
        self._temporaries, self._loops, self._letters, self._counters = (itertools.count() for _ in range(4))

    @property
    def lines(self) -> list[str]:
        return self._scopes[0].lines

    def value(self, expr: Expr) -> str:
        """Generate an expression in the type in which it is computed; it may use the statements added so far."""
        uses: dict[Expr, int] = {}
        nodes = walk(expr, enter=self._needs)
        for node in nodes:
            for part in self._needs(node):
                uses[part] = uses.get(part, 0) + 1
        choices = [node for node in nodes if isinstance(node, Call) and node.name == "where"]
        for node in choices[-MAX_BRANCHES:]:
            own = tuple(self._exclusive(part, uses) for part in node.parts[1:])
            if all(any(self._is_read(inner) for inner in nodes) for nodes in own):
                self._branches[node] = own
        return self._value(expr, uses)

    def _exclusive(self, root: Expr, uses: Mapping[Expr, int]) -> frozenset[Expr]:
        """The nodes that only this branch uses; none if one of them is a reduction, whose barriers must be uniform."""
        within: dict[Expr, int] = {root: 1}
        own = set()
        for node in reversed(walk(root, enter=self._needs)):
            if within.get(node) == uses.get(node):
                own.add(node)
                for part in self._needs(node):
                    within[part] = within.get(part, 0) + 1
        return frozenset() if any(isinstance(node, Reduce) for node in own) else frozenset(own)

    def _is_read(self, node: Expr) -> bool:
        """Whether a node loads an element that is not in a variable yet."""
        return isinstance(node, Load) and self.name_of(node) is None

    def let_value(self, expr: Expr) -> str:
        text = self.value(expr)
        return text if is_simple(text) else self.let(text)

    def let(self, text: str) -> str:
        """Bind a text to a name, in the innermost scope."""
        return self._let(text, len(self._scopes) - 1)

    def variable(self, text: str) -> str:
        """Declare a variable in the innermost scope; return its name."""
        name = f"t{next(self._temporaries)}"
        self.add(f"var {name} = {text};")
        return name

    def name(self, expr: Expr, text: str) -> None:
        """Use a name or a literal for an expression, in the innermost scope."""
        self._scopes[-1].names[expr] = text

    def keep(self, expr: Expr) -> None:
        """Compute an expression now, for all statements that follow."""
        if self.name_of(expr) is None:
            self.name(expr, self.let_value(expr))

    # Scopes ----------------------------------------------------------------------------------------------------------

    def enter(
        self,
        variables: Mapping[Index, str] | None = None,
        grid: Grid | None = None,
        *,
        together: bool = False,
        keeps: bool = False,
    ) -> None:
        """Start a loop in which variables are bound; `together` if its control flow is uniform."""
        bound = {*(variables or {}), *(grid.axes if grid else ())}
        named: dict[Expr, str] = dict((variables or {}).items())
        self._scopes.append(_Scope(bound, grid, named, together=together, keeps=keeps))

    def leave(self, head: str) -> None:
        inner = self._scopes.pop()
        self._scopes[-1].lines += self.module.features.dialect.loop(head, inner.lines)

    def add(self, *statements: str) -> None:
        self._scopes[-1].lines += statements

    def divide(
        self, axes: tuple[Index, ...], bodies: Sequence[Expr], add: Callable[[str], None], letter: int = 0
    ) -> None:
        """Add the statements for all elements of a domain, divided between the invocations of a team.

        `add` adds the statements for one element, and takes the text of its flat number; `letter` is as in `Grid`.
        """
        size = size_of(axes)
        if not self._is_written_out(size, bodies):
            self.enter(grid=Grid(axes, "column", letter))
            add("column")
            self.leave(f"for (var column = lane; column < {self.module.unsigned(size)}; column += {self.team}u) {{")
            return
        self._write_out(size, lambda flat: Grid(axes, flat, letter), add)

    def _is_written_out(self, size: Dimension, bodies: Sequence[Expr]) -> bool:
        """Whether each invocation has few elements, so that its loop is unrolled, and its loads are kept in registers."""
        if isinstance(size, Size):
            return False
        count = -(-size // self.team)
        return count <= self.module.dialect.kept and count * len(walk(*bodies)) <= MAX_WRITTEN_OUT_NODES

    def _write_out(self, size: int, grid: Callable[[str], Grid], add: Callable[[str], None]) -> None:
        """Add the statements for each element of an invocation. The flat numbers have the same names in all domains.

        Kept elements are loaded before the first element is computed and stored, because devices do not load past a store.
        """
        blocks = list[str]()
        for k in range(-(-size // self.team)):
            flat = f"lane_{k}" if k else "lane"
            declared = f"let {flat} = lane + {k * self.team}u;"
            if k and declared not in self.early:
                self.early.append(declared)
            is_whole = (k + 1) * self.team <= size
            self.enter(grid=grid(flat), keeps=is_whole)
            add(flat)
            lines = self._scopes.pop().lines
            blocks += self.module.dialect.loop("{" if is_whole else f"if ({flat} < {size}u) {{", lines)
        self.add(*blocks)

    def _depth(self, node: Expr) -> int:
        """The outermost scope in which a node can be computed."""
        for depth in range(len(self._scopes) - 1, 0, -1):
            scope = self._scopes[depth]
            if node in scope.own or not node.free.isdisjoint(scope.variables):
                return depth
        return 0

    def name_of(self, node: Expr) -> str | None:
        """The name or literal that stands for a node here; None if the node is not computed yet."""
        for scope in reversed(self._scopes):
            if node in scope.names:
                return scope.names[node]
        return None

    def _let(self, text: str, depth: int) -> str:
        name = f"t{next(self._temporaries)}"
        self._scopes[depth].lines.append(f"let {name} = {text};")
        return name

    # Nodes -----------------------------------------------------------------------------------------------------------

    def _needs(self, node: Expr) -> tuple[Expr, ...]:
        """The nodes that a node is computed from; sums of positions are expanded."""
        if self.name_of(node) is not None:
            return ()
        return self.module.positions.operands_of(node)

    def _value(self, root: Expr, uses: Mapping[Expr, int]) -> str:
        texts: dict[Expr, str] = {}
        for node in walk(root, enter=self._before):
            name = self.name_of(node)
            if name is not None:
                texts[node] = name
                continue
            text = self._one(node, texts, uses)
            depth = self._depth(node)
            whole = isinstance(node, Reduce) or node in self._branches
            if whole and is_simple(text):
                self._scopes[depth].names[node] = text
            long = len(text) > MAX_LINE_CHARACTERS and node is not root
            early = (
                self.module.features.dialect.is_lazy and isinstance(node, Load) and self.module.positions.exists(node)
            )
            shared = whole or long or early or uses.get(node, 0) > 1 or depth < len(self._scopes) - 1
            if shared and not is_simple(text):
                text = self._scopes[depth].names[node] = self._let(text, depth)
            texts[node] = text
        return texts[root]

    def _before(self, node: Expr) -> tuple[Expr, ...]:
        """The nodes that must be computed before the statements of a node."""
        if isinstance(node, Reduce):
            return ()
        return node.parts[:1] if node in self._branches and self.name_of(node) is None else self._needs(node)

    def _one(self, node: Expr, texts: Mapping[Expr, str], uses: Mapping[Expr, int]) -> str:
        if isinstance(node, Const):
            return self.module.constant(node.value, node.type)
        if isinstance(node, Index):
            return self._sum(Linear(0, {node: 1}), texts)
        if isinstance(node, Load):
            flat = self._sum(self.module.positions.sum_of(node), texts, unsigned=True)
            if self.module.layout(node.source).lanes > 1 and not is_simple(flat):
                flat = self._let(flat, self._depth(node))  # used twice
            return self._load(node, self.module.load(node.source, flat))
        if isinstance(node, Reduce):
            return self._compile_reduction(node, uses)
        if node in self._branches:
            return self._compile_branch(node, texts[node.parts[0]], uses)
        if is_sum(node):
            return self._sum(self.module.positions.sum_of(node), texts)
        parts = [texts[part] for part in node.parts]
        constants = [part for part in node.parts if isinstance(part, Const)]
        if len(constants) == len(node.parts):
            # WGSL rejects constant expressions that overflow.
            parts = [self.module.constant(part.value, part.type, opaque=True) for part in constants]
        if isinstance(node, Cast):
            return elements.cast(parts[0], node.parts[0].type, node.type, self.module.dialect)
        if isinstance(node, Bitcast):
            return call_of(f"bitcast<{computed_type(node.type)}>", parts)
        assert isinstance(node, Call)
        return function(node, parts, self.module.dialect)

    def _load(self, node: Load, text: str) -> str:
        """Return the code of a load: the name of a variable if the element is kept, else `text`."""
        depth = self._depth(node)
        scope = self._scopes[depth]
        if (
            depth != 1
            or not scope.keeps
            or not self.module.positions.exists(node)
            or self.module.layout(node.source).lanes > 1
        ):
            return text
        if not words(text).isdisjoint({*scope.names.values(), *scope.runs.values()} - {"lane"}):
            return text  # the position depends on more than the flat number
        if text not in self._kept:
            is_early = node.source in self.fixed and scope.variables.issuperset(
                self.module.positions.sum_of(node).terms
            )
            name = self._kept[text] = f"t{next(self._temporaries)}"
            (self.early if is_early else self.lines).append(f"let {name} = {text};")
        return self._kept[text]

    def _sum(self, linear: Linear, texts: Mapping[Expr, str], unsigned: bool = False) -> str:
        """A linear sum as i32 text; it may be u32 if `unsigned`."""
        constant, rest = linear.constant, dict(linear.terms)
        terms: list[tuple[str, int]] = []
        for depth, scope in enumerate(self._scopes):
            grid = scope.grid
            if grid is None:
                continue
            runs = self._runs(grid, depth, rest)
            if unsigned and is_same_size(constant, 0) and not rest and not terms and len(runs) == 1:
                run, stride = runs[0]
                if run == grid.flat and is_same_size(stride, 1):
                    return run
            terms += ((f"i32({text})" if text == grid.flat else text, factor) for text, factor in runs)
        for atom, factor in rest.items():
            text = texts.get(atom) or self.name_of(atom)
            assert text is not None, atom
            terms.append((operand(text), factor))
        result = ""
        for text, factor in sorted(terms, key=lambda term: is_always_less(term[1], 0)):
            magnitude, is_negative = magnitude_of(factor)
            if not is_same_size(magnitude, 1):
                text = f"{text} * {self.module.number(magnitude)}"
            sign = "-" if is_negative else "+"
            result = f"{result} {sign} {text}" if result else f"-({text})" if is_negative else text
        if is_same_size(constant, 0) or not result:
            return result or self.module.number(constant)
        magnitude, is_negative = magnitude_of(constant)
        return f"{result} {'-' if is_negative else '+'} {self.module.number(magnitude)}"

    def _runs(self, grid: Grid, depth: int, factors: dict[Expr, int]) -> list[tuple[str, int]]:
        """Merge adjacent axes with matching strides into one term each, and remove them from `factors`."""
        axes = [axis for axis in grid.axes if not is_same_size(axis.extent, 1)]
        for axis in grid.axes:
            if is_same_size(axis.extent, 1):
                factors.pop(axis, None)
        terms = []
        last = len(axes) - 1
        while last >= 0:
            first, factor = last, factors.get(axes[last], 0)
            last -= 1
            if is_same_size(factor, 0):
                continue
            inner, size = first, axes[first].extent
            while inner > 0 and is_same_size(factors.get(axes[inner - 1], 0), factor * size):
                inner -= 1
                size *= axes[inner].extent
            for axis in axes[inner : first + 1]:
                del factors[axis]
            terms.append((self._run(grid, depth, axes, inner, first), factor))
            last = inner - 1
        return terms[::-1]

    def _run(self, grid: Grid, depth: int, axes: Sequence[Index], first: int, last: int) -> str:
        """The flat number of the axes from `first` to `last`."""
        if first == 0 and last == len(axes) - 1:
            return grid.flat
        scope = self._scopes[depth]
        key = (grid, first, last)
        if key not in scope.runs:
            text = grid.flat
            within = size_of(axes[last + 1 :])
            size = size_of(axes[first : last + 1])
            is_last = is_same_size(within, 1)
            text = text if is_last else f"{text} / {self.module.divisor(within)}"
            if first > 0:
                text = f"{text if is_last else f'({text})'} % {self.module.divisor(size)}"
            numbers = [grid.letter + grid.axes.index(axis) for axis in axes[first : last + 1]]
            name = self._unique(grid.prefix + "".join(map(letter, numbers)))
            scope.lines.append(f"let {name} = i32({text});")
            scope.runs[key] = name
        return scope.runs[key]

    def _unique(self, name: str) -> str:
        taken = {other for scope in self._scopes for other in (*scope.names.values(), *scope.runs.values())}
        if name not in taken:
            return name
        return f"{name}_{next(self._letters) + 1}"

    # Branches --------------------------------------------------------------------------------------------------------

    def _compile_branch(self, node: Expr, condition: str, uses: Mapping[Expr, int]) -> str:
        """Compile a `where` to a branch; return the name of the result."""
        depth = self._depth(node)
        scopes, self._scopes = self._scopes, self._scopes[: depth + 1]
        name = f"t{next(self._temporaries)}"
        lines = [f"var {name} = {computed_type(node.type)}();", f"if ({condition}) {{"]
        for number, (part, own) in enumerate(zip(node.parts[1:], self._branches[node], strict=True)):
            self._scopes.append(_Scope(set(), own=own))
            value = self._value(part, uses)
            self.add(f"{name} = {value};")
            inner = self._scopes.pop()
            lines += [*(f"    {line}" for line in inner.lines), "}" if number else "} else {"]
        self.add(*lines)
        self._scopes = scopes
        return name

    # Reductions ------------------------------------------------------------------------------------------------------

    def _compile_reduction(self, node: Reduce, uses: Mapping[Expr, int]) -> str:
        """Compile a reduction in the outermost possible scope; return the name of the result."""
        depth = self._depth(node)
        scopes, self._scopes = self._scopes, self._scopes[: depth + 1]
        number = next(self._loops)
        size = size_of(node.variables)
        together = self.team > 1 and may_exceed(size, 4) and all(scope.together for scope in self._scopes)
        state = State(self.module, node, f"{node.reduction.replace('arg_', 'at_')}{number}")
        self.add(*state.declarations())
        if together:  # adjacent invocations read adjacent elements
            name = f"r{next(self._counters)}"
            if self._is_written_out(size, [node.body]):
                grid = lambda flat: Grid(node.variables, flat, prefix=name)  # noqa: E731
                self._write_out(size, grid, lambda _: self._step(node, state, uses))
            else:
                loop = _Loop(name, "lane", size, self.module.unsigned(size), self.team, "u")
                self._steps(node, state, uses, loop, Grid(node.variables, name, prefix=name))
            # Loops reuse workgroup memory.
            self.add(*combine_states(state, self.team, is_last=len(self._scopes) == 1))
        else:
            extents = [variable.extent for variable in node.variables]
            *outer, last = (_Loop(f"r{next(self._counters)}", "0", size, self.module.number(size)) for size in extents)
            for variable, loop in zip(node.variables, outer, strict=False):
                self.enter({variable: loop.name})
            self._steps(node, state, uses, last)
            for loop in reversed(outer):
                self.leave(loop.head())
        self._scopes = scopes
        return elements.wrap(state.name, node.type)

    def _steps(
        self, node: Reduce, state: State, uses: Mapping[Expr, int], loop: _Loop, grid: Grid | None = None
    ) -> None:
        """A loop over all elements, or over the last variable; long sums are divided into partial sums."""
        long = state.is_long(-(-size_of(node.variables) // loop.step))
        divided = long and may_exceed(loop.size, 2 * PART * loop.step)
        parts = replace(loop, name=f"{loop.name}_from", step=PART * loop.step)
        part = state.part() if long else state
        if divided:
            self.enter()
        if long:
            self.add(*part.declarations())
        self.enter(None if grid else {node.variables[-1]: loop.name}, grid)
        self._step(node, part, uses)
        self.leave(loop.head(parts) if divided else loop.head())
        if long:
            self.add(f"{state.value} += {part.value};")
        if divided:
            self.leave(parts.head())

    def _step(self, node: Reduce, state: State, uses: Mapping[Expr, int]) -> None:
        value = self._value(node.body, uses)
        if state.positions and not is_simple(value):
            value = self.let(value)
        position = self._sum(Linear(0, {node.variables[0]: 1}), {}) if state.positions else ""
        self.add(*state.step(value, position))
