"""Digests that identify programs."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.graph import Desc
from ..support.digests import digest
from .ir import Expr, Formula, Index, Source, payload, walk


def fingerprint(program: Formula) -> str:
    """A digest of what a program computes, independent of names and messages."""
    hasher = digest()
    numbers: dict[Expr, int] = {}
    variables: dict[Index, int] = {}
    arrays: dict[Source, str] = {source: f"x{source.number}" for source in program.inputs}

    def add(*words: object) -> None:
        hasher.update((" ".join(map(str, words)) + "\n").encode())

    def number(variable: Index) -> int:
        return variables.setdefault(variable, len(variables))

    def describe(item: object) -> object:
        """Replace variables and arrays of a `payload` by their numbers."""
        if isinstance(item, Index):
            return f"{number(item)}<{item.extent}"
        return arrays[item] if isinstance(item, Source) else item

    def nodes(root: Expr) -> int:
        for node in walk(root, enter=lambda n: () if n in numbers else n.parts):
            if node not in numbers:
                parts = (numbers[part] for part in node.parts)
                add(type(node).__name__, *map(describe, payload(node)), node.type, *parts)
                numbers[node] = len(numbers)
        return numbers[root]

    def array(name: str, axes: Sequence[Index], body: Expr, desc: Desc) -> None:
        root = nodes(body)
        add(name, desc, root, *map(describe, axes))

    for source in program.inputs:
        add(arrays[source], source.desc)
    for k, stored in enumerate(program.stored):
        array(f"s{k}", stored.axes, stored.body, stored.desc)
        arrays[stored] = f"s{k}"
    for k, output in enumerate(program.outputs):
        array(f"y{k}", output.axes, output.body, output.desc)
    for check in program.checks:
        add("check", nodes(check.condition))
    return hasher.hexdigest()
