"""Print expressions. Equal programs print equally."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ..core.sizes import Size
from .ir import FUNCTIONS, Bitcast, Call, Cast, Const, Expr, Formula, Index, Input, Load, Reduce, Source, walk

_AXES = "ijklmnop"
MAX_CHARACTERS = 120
"""Maximum length of a node in messages, in characters."""
MAX_LINE_PARTS = 1_000
"""Maximum number of names and numbers on a line; longer parts are named on a separate line."""
MAX_REPEATED_PARTS = 9
"""Shared positions of up to this many nodes are repeated rather than named."""


def show(program: Formula) -> str:
    """Print a program as text. Shared parts are named in the scope of the array or reduction that they depend on.

    >>> from opweave.expr import trace, sigmoid
    >>> from opweave.core.graph import Desc
    >>> print(trace(lambda x, gate: x * gate * sigmoid(gate), "swiglu", [Desc("float32", (4, 8))] * 2))
    swiglu(x0: float32[4, 8], x1: float32[4, 8]) -> (y0: float32[4, 8]):
      y0[i, j] =
        t0 = x1[i, j]
        (x0[i, j] * t0) * sigmoid(t0)
    """
    names: dict[Source, str] = {source: f"x{source.number}" for source in program.inputs}
    inputs = ", ".join(f"{names[source]}: {source.desc}" for source in program.inputs)
    outputs = ", ".join(f"y{k}: {output.desc}" for k, output in enumerate(program.outputs))
    lines = [f"{program.name}({inputs}) -> ({outputs}):"]
    for number, stored in enumerate(program.stored):
        names[stored] = f"s{number}"
        lines += _definition(names[stored], stored.axes, stored.body, names)
    for check in program.checks:
        variables = sorted(check.condition.free, key=lambda v: v.serial)
        lines += _definition("check", tuple(variables), check.condition, names, note=f"  # {check.message}")
    for number, output in enumerate(program.outputs):
        lines += _definition(f"y{number}", output.axes, output.body, names)
    return "\n".join(lines)


def inline(
    root: Expr,
    names: Mapping[Source, str] | None = None,
    axes: Sequence[Index] | None = None,
    size_text: Callable[[Size], str] = str,
) -> str:
    """A node on one line, truncated to `MAX_CHARACTERS`; `axes` are the free variables, in order.

    With `names` of the arrays, reduction variables are numbered, so that equal expressions print equally. `size_text` returns
    the text of a size that is known only in a run.
    """
    free = sorted(root.free, key=lambda v: (v.axis == 0, v.axis, v.serial)) if axes is None else axes
    variables: dict[Expr, str] = {v: letter(k) for k, v in enumerate(free)}
    if names is not None:
        variables.update(_names_of_reduced(root))
    line = _PrintedScope(names or {}, variables, 12, size_text).value(root)
    return line if len(line) <= MAX_CHARACTERS else line[: MAX_CHARACTERS - 1] + "…"


def _definition(
    name: str, axes: tuple[Index, ...], body: Expr, names: Mapping[Source, str], note: str = ""
) -> Iterator[str]:
    letters = [letter(k) for k in range(len(axes))]
    scope = _PrintedScope(names, dict(zip(axes, letters, strict=True)))
    extents = [f"{letter} < {axis.extent}" for letter, axis in zip(letters, axes, strict=True)]
    if name == "check":
        yield f"  check {', '.join(extents)}".rstrip() + note
    else:
        yield f"  {name}[{', '.join(letters)}] =".replace("[]", "")
    yield from ("    " + line for line in scope.block(body))


def letter(axis: int) -> str:
    return _AXES[axis] if axis < len(_AXES) else f"i{axis}"


def _names_of_reduced(root: Expr) -> dict[Expr, str]:
    """Names of the variables of reductions."""
    variables = (variable for node in walk(root) if isinstance(node, Reduce) for variable in node.variables)
    return {variable: f"r{k}" for k, variable in enumerate(dict.fromkeys(variables))}


class _PrintedScope:
    """Names of the nodes within one array definition."""

    def __init__(
        self,
        names: Mapping[Source, str],
        variables: dict[Expr, str],
        limit: int = 0,
        size_text: Callable[[Size], str] = str,
    ) -> None:
        self.names, self.limit, self._size_text = names, limit, size_text
        self.node_names: dict[Expr, str] = dict(variables)

    def block(self, body: Expr) -> list[str]:
        """Definitions of the shared parts, followed by the value."""
        uses: dict[Expr, int] = {}
        nodes = walk(body)
        for node in nodes:
            for part in node.parts:
                uses[part] = uses.get(part, 0) + 1
        lines: list[str] = []
        self.node_names.update(_names_of_reduced(body))
        length: dict[Expr, int] = {}  # in names and numbers
        for node in nodes:
            length[node] = 1 + sum(length[part] for part in node.parts)
            simple = node.type == "index" and not isinstance(node, Cast) and length[node] <= MAX_REPEATED_PARTS
            shared = uses.get(node, 0) > 1 and not (simple or isinstance(node, (Const, Index)))
            if shared or (length[node] > MAX_LINE_PARTS and node is not body):
                name = f"t{len(lines)}"
                lines.append(f"{name} = {self.value(node)}")
                self.node_names[node], length[node] = name, 1
        return [*lines, self.value(body)]

    def value(self, root: Expr) -> str:
        """A node as text, with parentheses around nested operators."""
        texts: dict[Expr, str] = {}
        order = walk(root, enter=lambda node: () if node in self.node_names else node.parts)
        if self.limit and len(order) > 40 * self.limit:
            return f"an expression of {len(order)} nodes"
        for node in order:
            text = self.node_names.get(node) or self._one(node, texts)
            # The text of shared nodes doubles at each level; nothing beyond the limit is shown.
            texts[node] = text[: MAX_CHARACTERS + 1] if self.limit else text
        return texts[root]

    def _one(self, node: Expr, texts: Mapping[Expr, str]) -> str:
        parts = [texts[part] for part in node.parts]
        if isinstance(node, Const):
            return self._size_text(node.value) if isinstance(node.value, Size) else repr(node.value)
        if isinstance(node, Index):
            return f"r{node.serial}"
        if isinstance(node, Load):
            default = (node.source.name or f"x{node.source.number}") if isinstance(node.source, Input) else "stored"
            name = self.names.get(node.source, default)
            return f"{name}[{', '.join(parts)}]" if parts else name
        if isinstance(node, Cast):
            return f"{node.type}({parts[0]})"
        if isinstance(node, Bitcast):
            return f"bitcast({parts[0]}, {node.type})"
        if isinstance(node, Reduce):
            over = ", ".join(f"{self.node_names.get(v, 'r')} < {self._extent(v)}" for v in node.variables)
            return f"{node.reduction}({over}: {parts[0]})"
        assert isinstance(node, Call)
        symbol = FUNCTIONS[node.name].symbol
        if not symbol:
            return f"{node.name}({', '.join(parts)})"
        operands = (
            f"({text})"
            if isinstance(part, Call) and FUNCTIONS[part.name].symbol and part not in self.node_names
            else text
            for part, text in zip(node.parts, parts, strict=True)
        )
        return f" {symbol} ".join(operands)

    def _extent(self, variable: Index) -> str:
        extent: object = variable.extent
        return self._size_text(extent) if isinstance(extent, Size) else str(extent)
