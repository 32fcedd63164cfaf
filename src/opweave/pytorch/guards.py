"""Rules for the sizes of arguments that `torch.export` has recorded: answers of branches on shapes, and ranges.

A program has one side of each branch on a shape, so its results are wrong for sizes that take the other one. The rules are
expressions of Python, which may come from the file of a stranger: `ast` reads them, and nothing runs them as code.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree

from ..support.errors import ValidationError

Source = tuple[int, int | None]
"""A size: the position of a flattened argument, and an axis; or the argument itself, if it is an integer, and None."""

Formula = Callable[[Mapping[Source, int]], Any]

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "float": float,
    "int": int,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.sqrt": math.sqrt,
    "math.trunc": math.trunc,
    "max": max,
    "min": min,
    "round": round,
}

MAX_EXPONENT = 8
"""The largest exponent in rules: powers of sizes in files of strangers could have any number of digits."""


@dataclass(frozen=True)
class SizeRule:
    """A rule that sizes must keep.

    Attributes:
        text: the rule, as in "x.shape[0] <= 5".
        sources: text of a size -> the size, for all that the rule reads.
        formula: whether sizes keep the rule.
    """

    text: str
    sources: Mapping[str, Source]
    formula: Formula

    def holds(self, sizes: Mapping[Source, int]) -> bool:
        """Whether sizes keep the rule; one that divides by a size of 0 says nothing."""
        try:
            return bool(self.formula(sizes))
        except ZeroDivisionError:
            return True


class SizeRules:
    """The rules of an exported program."""

    def __init__(self, program: Any, arguments: Sequence[str]) -> None:
        self._rules = list(_rules(program, arguments))
        self._sources = sorted({source for rule in self._rules for source in rule.sources.values()}, key=str)
        self._last: tuple[int, ...] = ()
        """The sizes of the last call that kept the rules."""

    def check(self, subject: str, leaves: Sequence[Any]) -> None:
        """Require sizes of flattened arguments that keep the rules."""
        sizes = tuple(leaves[i] if axis is None else leaves[i].shape[axis] for i, axis in self._sources)
        if sizes == self._last:
            return
        values = dict(zip(self._sources, sizes, strict=True))
        for rule in self._rules:
            if not rule.holds(values):
                got = ", ".join(f"{text} = {values[source]}" for text, source in rule.sources.items())
                raise ValidationError(
                    f"{subject}: the module was exported for sizes with {rule.text}, and may compute something else for "
                    f"others, got {got}; pass example arguments of such sizes to from_torch for another graph"
                )
        self._last = sizes


def _rules(program: Any, arguments: Sequence[str]) -> Iterator[SizeRule]:
    """The rules of a program whose flattened arguments have these names.

    Rules about strides and offsets are left out: these do not change the elements of an argument. So are rules that something
    is not 0 or 1, which PyTorch adds where it would broadcast or call memory contiguous for such sizes: graphs take these.
    """
    metas = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    paths = _paths_of(program)
    names: dict[str, tuple[str, Source]] = {}
    texts: list[str] = []
    for position, (argument, path) in enumerate(zip(arguments, paths, strict=False)):
        meta = metas[argument]
        ends: list[tuple[str, str, Source, Any]] = [
            (f".size()[{axis}]", f".shape[{axis}]", (position, axis), size)
            for axis, size in enumerate(getattr(meta, "shape", ()))
        ] or [("", "", (position, None), meta)]
        for end, shown, source, size in ends:
            for prefix in (*path, f"L['flat_args'][{position}]"):
                names[prefix + end] = argument + shown, source
            if hasattr(size, "node"):
                texts += _range_of(program, size, f"L['flat_args'][{position}]{end}")
    seen = set[str]()
    for text in (*texts, *getattr(program, "_guards_code", ())):
        rule = _parse(text, names)
        if rule is not None and rule.text not in seen:
            seen.add(rule.text)
            yield rule


def _range_of(program: Any, size: Any, path: str) -> Iterator[str]:
    """The range of a size, as PyTorch checks it: 0 and 1 are in each range that begins at 2."""
    bounds = getattr(program, "range_constraints", {}).get(size.node.expr)
    if bounds is None:
        return
    if bounds.lower.is_Integer and bounds.lower > 2:
        yield f"{path} >= {bounds.lower}"
    if bounds.upper.is_Integer:
        yield f"{path} <= {bounds.upper}"


def _paths_of(program: Any) -> list[list[str]]:
    """The texts by which rules name each flattened argument."""
    spec = getattr(program, "call_spec", None)
    if spec is None:
        return []
    leaves = range(spec.in_spec.num_leaves)
    names = program.module_call_graph[0].signature.forward_arg_names or ()
    paths = []
    for (kind, key, *rest), _ in _pytree.tree_leaves_with_path(_pytree.tree_unflatten(leaves, spec.in_spec)):
        # The first key chooses between positional and keyword arguments.
        is_positional = kind.idx == 0
        name = names[key.idx] if is_positional and key.idx < len(names) else getattr(key, "key", "")
        texts = [f"L[{name!r}]"]
        stem, _, number = name.rpartition("_")
        if is_positional and number.isdecimal():  # one of `*args` has the name args_0
            texts.append(f"L[{stem!r}][{number}]")
        paths.append([text + _pytree.keystr(tuple(rest)) for text in texts])
    return paths


def _parse(text: str, names: Mapping[str, tuple[str, Source]]) -> SizeRule | None:
    """A rule of sizes; None if it reads something else, or only keeps PyTorch from broadcasting."""
    sources: dict[str, Source] = {}
    try:
        tree = ast.parse(text, mode="eval").body
        formula = _formula(tree, names, sources)
        shown = ast.unparse(_Shown(names).visit(tree))
    except (_OtherRuleError, SyntaxError, RecursionError):
        return None
    return None if not sources or _keeps_from_broadcasting(tree) else SizeRule(shown, sources, formula)


class _OtherRuleError(Exception):
    """A rule reads something else than sizes."""


class _Shown(ast.NodeTransformer):
    """Replaces the sizes in a rule by the texts that users see."""

    def __init__(self, names: Mapping[str, tuple[str, Source]]) -> None:
        self._names = names

    def visit(self, node: ast.AST) -> Any:
        """A node with such texts."""
        shown = self._names.get(ast.unparse(node))
        return self.generic_visit(node) if shown is None else ast.Name(shown[0])


def _keeps_from_broadcasting(tree: ast.expr) -> bool:
    match tree:
        case ast.Compare(ops=[ast.NotEq()], left=left, comparators=[right]):
            return any(isinstance(side, ast.Constant) and side.value in (0, 1) for side in (left, right))
    return False


def _formula(node: ast.expr, names: Mapping[str, tuple[str, Source]], sources: dict[str, Source]) -> Formula:
    """A function of sizes for an expression; adds the sizes that it reads to `sources`."""

    def parts(nodes: Sequence[ast.expr]) -> list[Formula]:
        return [_formula(item, names, sources) for item in nodes]

    match = names.get(ast.unparse(node))
    if match is not None:
        shown, source = match
        sources[shown] = source
        return lambda sizes: sizes[source]
    match node:
        case ast.Constant(value=bool() | int() | float() as number):
            return lambda _: number
        case ast.UnaryOp(op=kind, operand=operand) if type(kind) in _OPERATORS:
            return _call(_OPERATORS[type(kind)], parts([operand]))
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as exponent)) if (
            0 <= exponent <= MAX_EXPONENT
        ):
            return _call(lambda base: base**exponent, parts([left]))
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _OPERATORS:
            return _call(_OPERATORS[type(kind)], parts([left, right]))
        case ast.Compare(left=left, ops=[kind], comparators=[right]) if type(kind) in _OPERATORS:
            return _call(_OPERATORS[type(kind)], parts([left, right]))
        case ast.BoolOp(op=kind, values=values):
            join = all if isinstance(kind, ast.And) else any
            terms = parts(values)
            return lambda sizes: join(term(sizes) for term in terms)
        case ast.Call(func=function, args=arguments, keywords=[]) if ast.unparse(function) in _FUNCTIONS:
            return _call(_FUNCTIONS[ast.unparse(function)], parts(arguments))
    raise _OtherRuleError


def _call(function: Callable[..., Any], parts: Sequence[Formula]) -> Formula:
    return lambda sizes: function(*[part(sizes) for part in parts])
