"""Operations as JavaScript needs them: names, order, kinds of arguments, options and enumerations.

All is derived from the declarations of the operations, so a new operation or option needs no line here.

>>> OPERATIONS["softmax"].arguments
{'input': 'o', 'axis': 'u'}
>>> OPERATIONS["triangular"].options
{'diagonal': 'i', 'upper': 'b'}
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, get_args

from ..backends import PowerPreference
from ..core.dtypes import DataType
from ..core.operation import Op
from ..ops import Operations
from ..support.names import camel_case

CODES = {
    "Operand": "o",
    "int": "u",
    "Long": "i",
    "float": "d",
    "bool": "b",
    "Number": "n",
    "Sequence[Operand]": "o[]",
    "Sequence[int]": "u[]",
    "Sequence[float]": "f[]",  # the specification has sequences of `float`, and single values of `double`
    "int | Sequence[int]": "u|u[]",
}
"""Kinds of arguments by annotation: operand, unsigned long, long, double, boolean, MLNumber, float. Enumerations have their
names from the specification, without the prefix `ML`."""


@dataclass(frozen=True)
class Operation:
    """An operation with its names in camelCase, and kinds of arguments (see `CODES`).

    `options` has no `label`, and the order in which Web IDL reads a dictionary; `several` is true for sequences of results.
    """

    name: str
    arguments: Mapping[str, str]
    options: Mapping[str, str]
    several: bool


def _kind(op: Op[..., Any], annotation: str) -> str:
    """The kind of a parameter by its annotation; adds enumerations to `ENUMS`."""
    annotation = annotation.removesuffix(" | None")
    if annotation in CODES:
        return CODES[annotation]
    name = annotation.removeprefix("Sequence[").removesuffix("]")
    public = "OperandDataType" if name == "DataType" else name
    ENUMS[public] = get_args(op.function.__globals__[name])
    return public + ("[]" if annotation != name else "")


def _operation(op: Op[..., Any]) -> Operation:
    kinds = {name: _kind(op, str(parameter.annotation)) for name, parameter in op.parameters.items() if name != "label"}
    named = {camel_case(name): kind for name, kind in kinds.items() if name not in op.positional}
    return Operation(
        camel_case(op.name),
        {camel_case(name): kinds[name] for name in op.positional},
        dict(sorted(named.items())),  # Web IDL reads the members of a dictionary in this order
        "tuple" in str(inspect.signature(op).return_annotation),
    )


ENUMS: dict[str, tuple[str, ...]] = {
    "PowerPreference": get_args(PowerPreference),
    "OperandDataType": get_args(DataType),
}
"""The values of enumerations, by their name in the specification without the prefix `ML`."""

OPERATIONS: dict[str, Operation] = {op.name: _operation(op) for op in Operations.listing().values()}
"""The operations by their name in Python, in the specification's order."""

DRAFTS: dict[str, Operation] = {op.name: _operation(op) for op in Operations.drafts().values()}
"""The operations of drafts by their name in Python."""


def table() -> str:
    """The tables for the JavaScript file: `ENUMS`, and one line for adjacent operations with the same signature.

    A line is `names;arguments;options`, or `names;arguments;options;[]` for operations that return several operands.
    """
    enums = (f"{name}:{json.dumps(values, separators=(',', ':'))}," for name, values in ENUMS.items())
    return "\n".join(
        [
            "const ENUMS={",
            *enums,
            "};",
            "const OPERATIONS=`",
            *_lines(OPERATIONS),
            "`;",
            "const DRAFTS=`",
            *_lines(DRAFTS),
            "`;",
        ]
    )


TYPES = {"o": "MLOperand", "u": "number", "i": "number", "d": "number", "f": "number", "b": "boolean", "n": "MLNumber"}


def type_of(kind: str) -> str:
    """The type in TypeScript of a kind of arguments.

    >>> type_of("u|u[]"), type_of("PaddingMode")
    ('number | readonly number[]', 'MLPaddingMode')
    """
    if "|" in kind:
        return " | ".join(map(type_of, kind.split("|")))
    if kind.endswith("[]"):
        return f"readonly {type_of(kind[:-2])}[]"
    return TYPES.get(kind, f"ML{kind}")


def types() -> str:
    """Declarations in TypeScript: the enumerations that operations use, and the methods of `MLGraphBuilder`."""
    enums = {name: values for name, values in ENUMS.items() if name != "PowerPreference"}
    lines = [f"type ML{name} = {' | '.join(map(json.dumps, values))};" for name, values in enums.items()]
    lines += ["", "interface MLGraphBuilder {"]
    for op in (*OPERATIONS.values(), *DRAFTS.values()):
        arguments = [f"{name}: {type_of(kind)}" for name, kind in op.arguments.items()]
        members = "; ".join(["label?: string", *(f"{name}?: {type_of(kind)}" for name, kind in op.options.items())])
        result = "MLOperand[]" if op.several else "MLOperand"
        optional = "?" if op in DRAFTS.values() else ""  # only on `opweave serve --drafts`
        lines.append(f"  {op.name}{optional}({', '.join([*arguments, f'options?: {{ {members} }}'])}): {result};")
    return "\n".join([*lines, "}", ""])


def _lines(operations: Mapping[str, Operation]) -> Iterator[str]:
    def rest(op: Operation) -> str:
        parts = (" ".join(f"{name}:{kind}" for name, kind in part.items()) for part in (op.arguments, op.options))
        return ";".join([*parts, "[]"] if op.several else parts)

    for signature, ops in groupby(operations.values(), rest):
        yield f"{' '.join(op.name for op in ops)};{signature}"
