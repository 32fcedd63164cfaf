"""The static formula of a formula with sizes, for the sizes of one run."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.graph import Desc
from ..core.size_values import at, values_at
from ..core.sizes import Size
from . import ir
from .array import axis_variable
from .ir import Check, Const, Expr, Formula, Index, Input, Load, Output, Reduce, Source, Stored, unify, walk
from .ranges import check_positions


def formula_at(program: Formula, sizes: Mapping[str, int]) -> Formula:
    """The formula with numbers in place of sizes.

    Raises:
        ValidationError: positions do not fit into int32 for these sizes.

    >>> from opweave.core.graph import Desc
    >>> from opweave.expr import compute, trace
    >>> n = Size("n")
    >>> def reverse(x):
    ...     return compute(x.shape, lambda i: x[x.shape[0] - 1 - i])
    >>> print(formula_at(trace(reverse, "reverse", [Desc("int8", (n,))]), {"n": 5}))
    reverse(x0: int8[5]) -> (y0: int8[5]):
      y0[i] =
        x0[4 - i]
    """
    if not program.has_sizes:
        return program
    copies = _StaticNodes(sizes)
    inputs = tuple(map(copies.input, program.inputs))
    for stored in program.stored:
        copies.arrays[stored] = Stored(tuple(map(copies.variable, stored.axes)), *unify(copies.copy(stored.body)))
    bodies = unify(*(copies.copy(output.body) for output in program.outputs))
    outputs = tuple(
        Output(tuple(map(copies.variable, output.axes)), body)
        for output, body in zip(program.outputs, bodies, strict=True)
    )
    checks = tuple(
        Check(copies.copy(c.condition), c.subject, at(c.extent, sizes), c.value and copies.copy(c.value))
        for c in program.checks
    )
    check_positions(*(stored.body for stored in copies.arrays.values() if isinstance(stored, Stored)), *bodies)
    return Formula(program.name, inputs, outputs, checks)


class _StaticNodes:
    """Nodes with numbers in place of sizes."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.arrays: dict[Source, Source] = {}
        self._variables: dict[Index, Index] = {}
        self._nodes: dict[Expr, Expr] = {}

    def input(self, source: Input) -> Input:
        desc = Desc(source.desc.data_type, values_at(source.desc.shape, self.sizes))
        copy = self.arrays[source] = Input(source.number, desc, source.name)
        return copy

    def variable(self, variable: Index) -> Index:
        if variable not in self._variables:
            extent = at(variable.extent, self.sizes)
            self._variables[variable] = axis_variable(variable.axis, extent) if variable.axis else Index(extent)
        return self._variables[variable]

    def copy(self, root: Expr) -> Expr:
        for node in walk(root, enter=lambda n: () if n in self._nodes else n.parts):
            if node not in self._nodes:
                self._nodes[node] = self._copy(node, tuple(self._nodes[part] for part in node.parts))
        return self._nodes[root]

    def _copy(self, node: Expr, parts: tuple[Expr, ...]) -> Expr:
        match node:
            case Const(value=Size() as size):
                return ir.number(size.at(self.sizes), node.type)
            case Index():
                variable = self.variable(node)
                return Const(0, "index") if variable.axis and variable.extent == 1 else variable  # as tracing does
            case Load():
                return Load(self.arrays[node.source], parts)
            case Reduce():
                return Reduce(node.reduction, tuple(map(self.variable, node.variables)), parts[0])
            case ir.Call() if node.type == "index":
                return ir.call(node.name, *parts)
        return node.rebuild(parts)
