"""Rules for the sizes of arguments that `torch.export` has recorded: answers of branches on shapes, and ranges."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree

from ..core.graph import Operand
from ..core.size_rules import NamedSizeRule, SizeRule, parse_rule
from ..core.sizes import Dimension, Size

Source = tuple[int, int | None]
"""A size: the position of a flattened argument, and an axis; or the argument itself, if it is an integer, and None."""


@dataclass(frozen=True)
class ArgumentRule:
    """A rule that sizes of arguments must keep.

    Attributes:
        rule: the rule.
        sources: text of a size in the rule -> the size.
    """

    rule: SizeRule
    sources: Mapping[str, Source]

    def on(self, operands: Mapping[int, Operand]) -> NamedSizeRule | None:
        """The rule for operands by the position of their argument; None if it reads another argument."""
        dimensions: dict[str, str | int] = {}
        for text, (position, axis) in self.sources.items():
            if axis is None or position not in operands:
                return None
            size: Dimension = operands[position].shape[axis]
            dimensions[text] = size.name if isinstance(size, Size) else size
        return NamedSizeRule(self.rule, dimensions)


class SizeRules:
    """The rules of an exported program, whose flattened arguments have the names `arguments`."""

    def __init__(self, program: Any, arguments: Sequence[str]) -> None:
        self._rules = list(_rules(program, arguments))
        self._sources = sorted({source for rule in self._rules for source in rule.sources.values()}, key=str)
        self._last: tuple[int, ...] = ()
        """The sizes of the last call that kept the rules."""

    def on(self, operands: Mapping[int, Operand]) -> list[NamedSizeRule]:
        """The rules for operands by the position of their argument, without those that read other arguments."""
        return [named for rule in self._rules if (named := rule.on(operands)) is not None]

    def check(self, subject: str, leaves: Sequence[Any]) -> None:
        """Require sizes of flattened arguments that keep the rules."""
        sizes = tuple(leaves[i] if axis is None else leaves[i].shape[axis] for i, axis in self._sources)
        if sizes == self._last:
            return
        values = dict(zip(self._sources, sizes, strict=True))
        for item in self._rules:
            item.rule.check(subject, {text: values[source] for text, source in item.sources.items()})
        self._last = sizes


def _rules(program: Any, arguments: Sequence[str]) -> Iterator[ArgumentRule]:
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
        if rule is not None and rule.rule.text not in seen:
            seen.add(rule.rule.text)
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


def _parse(text: str, names: Mapping[str, tuple[str, Source]]) -> ArgumentRule | None:
    """A rule of sizes; None if it reads something else, or only keeps PyTorch from broadcasting."""
    try:
        tree = parse_rule(text)
        shown = ast.unparse(_Shown(names).visit(tree))
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        return None
    sources = dict(names.values())
    rule = None if _keeps_from_broadcasting(tree) else SizeRule.parse(shown, sources)
    return None if rule is None else ArgumentRule(rule, {size: sources[size] for size in rule.sizes})


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
