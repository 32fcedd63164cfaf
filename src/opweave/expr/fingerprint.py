"""Digests that identify programs."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Desc
from .ir import Call, Const, Expr, Index, Load, Program, Reduce, Source, walk


def fingerprint(program: Program) -> str:
    """A digest of what a program computes, independent of names and messages."""
    import hashlib  # loads OpenSSL, 3.5 MiB, which a model without expressions does not need

    digest = hashlib.sha256()
    numbers: dict[Expr, int] = {}
    variables: dict[Index, int] = {}
    arrays: dict[Source, str] = {source: f"x{source.number}" for source in program.inputs}

    def add(*words: object) -> None:
        digest.update((" ".join(map(str, words)) + "\n").encode())

    def number(variable: Index) -> int:
        return variables.setdefault(variable, len(variables))

    def describe(node: Expr) -> tuple[object, ...]:
        match node:
            case Const():
                return ("const", repr(node.value))
            case Index():
                return ("index", number(node), node.extent)
            case Load():
                return ("load", arrays[node.source])
            case Call():
                return ("call", node.name)
            case Reduce():
                return ("reduce", node.reduction, *(f"{number(v)}<{v.extent}" for v in node.variables))
            case _:
                return (type(node).__name__,)

    def nodes(root: Expr) -> int:
        for node in walk(root, enter=lambda n: () if n in numbers else n.parts):
            if node not in numbers:
                add(*describe(node), node.type, *(numbers[part] for part in node.parts))
                numbers[node] = len(numbers)
        return numbers[root]

    def array(name: str, axes: Sequence[Index], body: Expr, desc: Desc) -> None:
        root = nodes(body)
        add(name, desc, root, *(f"{number(axis)}<{axis.extent}" for axis in axes))

    for source in program.inputs:
        add(arrays[source], source.desc)
    for k, stored in enumerate(program.stored):
        array(f"s{k}", stored.axes, stored.body, stored.desc)
        arrays[stored] = f"s{k}"
    for k, output in enumerate(program.outputs):
        array(f"y{k}", output.axes, output.body, output.desc)
    for check in program.checks:
        add("check", nodes(check.condition))
    return digest.hexdigest()
