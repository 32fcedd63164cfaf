"""Write the signatures of operations for type checkers and editors: src/opweave/ops/signatures.pyi.

python tools/write_signatures.py [FILE]
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from opweave.core.operation import Op
from opweave.core.operators import INFIX
from opweave.ops import Operations

FILE = Path(__file__).parent.parent / "src" / "opweave" / "ops" / "signatures.pyi"

HEAD = '''"""Calls of operations, for type checkers and editors. Made by tools/write_signatures.py; do not edit."""

# mypy: disable-error-code="overload-overlap"
# (Of arrays alone the result is an array; with an operand among them, which is the last form, it is an operand.)

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload

import numpy as np

from ..core.dtypes import DataType as DataType
from ..core.graph import Builder, MLOperand
from ..core.operation import Op
from ..lazy.array import Array

Same = TypeVar("Same")  # Self, in a form that Jedi follows into derived classes

class SupportsDlpack(Protocol):
    """An array of NumPy, PyTorch, JAX, CuPy, ONNX Runtime, …, or a tensor of Opweave."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...

ArrayLike: TypeAlias = SupportsDlpack | np.number[Any] | float
"""What operations compute with: arrays, tensors and numbers."""

OperandLike: TypeAlias = MLOperand | ArrayLike
"""What operations of a graph take: operands; arrays and numbers become constants."""
'''

PLAIN = {"Long": "int", "Number": "float", "Number | None": "float | None"}


def main(path: Path = FILE) -> None:
    """Write the file."""
    path.write_text(text(), encoding="utf-8")


def text() -> str:
    """The whole file."""
    ops = Operations.listing().values()
    lines = [HEAD, "class BuilderMethods:", '    """The operations as methods of builders."""', ""]
    of_builders = [*ops, *Operations.drafts().values()]
    lines += [method(op, ["self", *parameters(op, "OperandLike")], result(op, "MLOperand")) for op in of_builders]
    lines += [
        "",
        "class ArrayMethods:",
        '    """The operations as methods of operands and arrays, their first argument."""',
        "",
    ]
    lines += [
        method(op, ["self: Same", *parameters(op, "OperandLike")[1:]], result(op, "Same"))
        for op in ops
        if op.positional[0] not in op.sequences
    ]
    lines += [f"    def __{way}{name}__(self: Same, other: Any) -> Same: ..." for name in INFIX for way in ("", "r")]
    # Operations with the same parameters share a class, which is named after the first of them.
    classes: dict[tuple[str, ...], str] = {}
    for op in ops:
        signature = (*parameters(op, "OperandLike"), result(op, "MLOperand"))
        if signature not in classes:
            classes[signature] = "_Like" + "".join(map(str.capitalize, op.name.split("_")))
            lines += ["", *calls(op, classes[signature])]
        lines += [f"{op.name}: {classes[signature]}", summary(op)]
    names = ", ".join(f'"{op.name}"' for op in ops)
    return "\n".join([*lines, "", f"__all__ = [{names}]", ""])


def method(op: Op[..., Any], takes: Sequence[str], gives: str) -> str:
    """A method with its docstring, on one line."""
    return f"    def {op.name}({', '.join(takes)}) -> {gives}: {summary(op)}"


def summary(op: Op[..., Any]) -> str:
    """The first line of the docstring, and the address of the definition."""
    first, *others = (op.__doc__ or "").splitlines()
    addresses = [line.strip() for line in others if line.strip().startswith("https://")]
    return f'"""{" ".join([first, *addresses[:1]])}"""'


def calls(op: Op[..., Any], name: str) -> Iterator[str]:
    """The class of operations that are called like `op`: with a builder, with arrays, or with operands."""
    yield f"class {name}(Op[..., {result(op, 'MLOperand')}]):"
    operands, arrays = (parameters(op, kind) for kind in ("OperandLike", "ArrayLike"))
    first = op.positional[0]
    graph = [f"{first}: {'Sequence[MLOperand]' if first in op.sequences else 'MLOperand'}", *operands[1:]]
    # With several operands, the first one may be an array although another is an operand.
    several = sum(name in op.operands for name in op.positional) > 1 or bool(op.sequences)
    forms = [(["builder: Builder", "/", *operands], "MLOperand"), (arrays, "Array")]
    for takes, kind in [*forms, (operands if several else graph, "MLOperand")]:
        yield "    @overload"
        yield f"    def __call__(self, {', '.join(takes)}) -> {result(op, kind)}: ..."
    yield ""


def result(op: Op[..., Any], kind: str) -> str:
    """The type of a call: `kind` for each result."""
    return f"tuple[{kind}, ...]" if "tuple" in str(inspect.signature(op).return_annotation) else kind


def parameters(op: Op[..., Any], operand: str) -> list[str]:
    """The parameters as they are declared, operands as `operand`, choices spelled out."""
    declared = list(inspect.signature(op).parameters.values())[1:]
    made = []
    for parameter in declared:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in made:
            made.append("*")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        made.append(f"{parameter.name}: {annotation(op, parameter.annotation, operand)}{default}")
    return made


def annotation(op: Op[..., Any], declared: str, operand: str) -> str:
    """An annotation in terms of what the file imports."""
    if "Operand" in declared.replace("OperandLayout", ""):
        return declared.replace("Operand", operand)
    name = declared.removesuffix(" | None").removeprefix("Sequence[").removesuffix("]")
    found = op.function.__globals__.get(name)
    if name != "DataType" and found is not None and get_args(found) and "Literal" in str(found):
        choices = ", ".join(f'"{choice}"' for choice in get_args(found))
        return declared.replace(name, f"Literal[{choices}]")
    return PLAIN.get(declared, declared)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
