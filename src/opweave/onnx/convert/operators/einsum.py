"""ONNX's Einsum."""

from __future__ import annotations

from ....composites.contraction import contract
from ....context.builder import MLGraphBuilder
from ....support.errors import ValidationError
from ...model.registry import Tensor, Unsupported, converts, operand


@converts("Einsum")
def _(b: MLGraphBuilder, *Inputs: Tensor, equation: str) -> Tensor:
    operands = [operand(b, value) for value in Inputs]
    try:
        result: Tensor = contract(b, equation, operands)
    except ValidationError as error:
        raise Unsupported(str(error)) from error
    return result
