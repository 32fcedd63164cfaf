"""Write what type checkers and editors are to know about calls of operations: src/opweave/ops/signatures.pyi.

python tools/write_signatures.py [FILE]
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import indent
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
    ops = Operations.listing()
    lines = [HEAD, "class BuilderMethods:", '    """The operations as methods of builders."""', ""]
    for op in ops.values():
        lines += method(op, ["self", *parameters(op, "OperandLike")], result(op, "MLOperand"), with_link(op))
    lines += [
        "class ArrayMethods:",
        '    """The operations as methods of operands and arrays, their first argument."""',
        "",
    ]
    for op in ops.values():
        if op.positional[0] not in op.sequences:
            lines += method(op, ["self: Same", *parameters(op, "OperandLike")[1:]], result(op, "Same"), summary(op))
    lines += [f"    def __{way}{name}__(self: Same, other: Any) -> Same: ..." for name in INFIX for way in ("", "r")]
    for op in ops.values():
        lines += function(op)
    names = ", ".join(f'"{name}"' for name in ops)
    return "\n".join([*lines, f"__all__ = [{names}]", ""])


def method(op: Op[..., Any], takes: Sequence[str], gives: str, text: str) -> Iterator[str]:
    """A method, with a docstring."""
    yield f"    def {op.name}({', '.join(takes)}) -> {gives}:"
    yield indent(f'"""{text}"""', "        ")
    yield ""


def summary(op: Op[..., Any]) -> str:
    """The first line of the docstring."""
    return (op.__doc__ or "").splitlines()[0]


def with_link(op: Op[..., Any]) -> str:
    """The first line of the docstring, and the address of the definition."""
    address = next((line for line in (op.__doc__ or "").splitlines() if line.strip().startswith("https://")), "")
    return f"{summary(op)}\n\n{address.strip()}\n" if address else summary(op)


def function(op: Op[..., Any]) -> Iterator[str]:
    """An operation itself, which is called with a builder, with operands, or with arrays."""
    yield f"class _{op.name}(Op[..., {result(op, 'MLOperand')}]):"
    operands, arrays = (parameters(op, kind) for kind in ("OperandLike", "ArrayLike"))
    first = op.positional[0]
    kind = "Sequence[MLOperand]" if first in op.sequences else "MLOperand"
    graph = [f"{first}: {kind}", *operands[1:]]
    forms = [(["builder: Builder", "/", *operands], "MLOperand"), (graph, "MLOperand"), (arrays, "Array")]
    several = sum(name in op.operands for name in op.positional) > 1 or bool(op.sequences)
    if several:  # an operand may come after arrays
        forms.append((operands, "MLOperand"))
    for takes, kind in forms:
        yield "    @overload"
        yield f"    def __call__(self, {', '.join(takes)}) -> {result(op, kind)}: ..."
    yield ""
    yield f"{op.name}: _{op.name}"
    yield f'"""{summary(op)}"""'
    yield ""


def result(op: Op[..., Any], kind: str) -> str:
    """What a call gives, `kind` for each result."""
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
