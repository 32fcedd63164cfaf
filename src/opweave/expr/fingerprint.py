"""Digests that identify programs."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.graph import Desc
from ..core.size_terms import variables_of
from ..core.size_values import rename
from ..core.sizes import Size
from ..support.digests import digest
from .ir import Expr, Formula, Index, Source, payload, walk


def fingerprint(program: Formula) -> str:
    """A digest of what a program computes, independent of names and messages."""
    return identify(program)[0]


def identify(program: Formula, *, by_position: bool = False) -> tuple[str, tuple[str, ...]]:
    """The digest of a program, and the names of its sizes in the order of their first use. Names are not in the digest.

    Inputs are identified by their numbers, or with `by_position` by their positions among the inputs of the program.
    """
    hasher = digest()
    names: dict[str, str] = {}
    numbers: dict[Expr, int] = {}
    variables: dict[Index, int] = {}
    arrays: dict[Source, str] = {
        source: f"x{position if by_position else source.number}" for position, source in enumerate(program.inputs)
    }

    def add(*words: object) -> None:
        hasher.update((" ".join(map(str, map(canonical, words))) + "\n").encode())

    def canonical(item: object) -> object:
        """Number the names of sizes."""
        if isinstance(item, tuple):
            return tuple(map(canonical, item))
        if not isinstance(item, Size):
            return item
        for name in variables_of(item):
            names.setdefault(name, str(len(names)))
        return f"<{rename(item, names)}>"

    def number(variable: Index) -> int:
        return variables.setdefault(variable, len(variables))

    def describe(item: object) -> object:
        """Replace variables and arrays of a `payload` by their numbers."""
        if isinstance(item, Index):
            return f"{number(item)}<{canonical(item.extent)}"
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
        add(name, desc.data_type, desc.shape, root, *map(describe, axes))

    for source in program.inputs:
        add(arrays[source], source.desc.data_type, source.desc.shape)
    for k, stored in enumerate(program.stored):
        array(f"s{k}", stored.axes, stored.body, stored.desc)
        arrays[stored] = f"s{k}"
    for k, output in enumerate(program.outputs):
        array(f"y{k}", output.axes, output.body, output.desc)
    for check in program.checks:
        add("check", nodes(check.condition))
    return hasher.hexdigest(), tuple(names)
