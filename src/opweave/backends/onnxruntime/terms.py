"""Keep the scales of dequantised terms of products in whole ONNX models; `products` does so in graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .constants import DEQUANTISES
from .products import MOVED_OR_REMOVED, is_scaled_as_product

ONNX = ("", "ai.onnx")
_NEUTRAL = frozenset({"Add", "Cast", "Div", "Dropout", "Flatten", "Identity", "Mul", "Sub"})
"""Operators that the engine removes if they change nothing."""


def keep_scales_of_terms(graphs: Sequence[Any], constants: Mapping[str, np.ndarray]) -> list[str]:
    """Insert an Identity where the engine would take the scale of a dequantised term for that of a product.

    The term is the third operand of a Gemm, or is added to a MatMul: the engine fuses both forms. Return the passes of the
    optimiser to disable.
    """
    is_changed = False
    for graph in graphs:
        terms = _Terms(graphs[0], graph, constants)
        for k, node in reversed(list(enumerate(graph.node))):
            position = terms.position_of_barrier(node)
            if position is None:
                continue
            name = f"{node.output[0]}/apart"
            barrier = type(node)(op_type="Identity", name=name, input=[node.input[position]], output=[name])
            node.input[position] = name
            graph.node.insert(k, barrier)
            is_changed = True
    return ["EliminateIdentity"] if is_changed else []


class _Terms:
    """The values of a graph, and the constants around it."""

    def __init__(self, main: Any, graph: Any, constants: Mapping[str, np.ndarray]) -> None:
        self._constants = constants
        self._producers = {name: node for node in graph.node for name in node.output}
        self._tensors = {tensor.name: tensor for part in (main, graph) for tensor in part.initializer}

    def position_of_barrier(self, node: Any) -> int | None:
        """The position of the input that needs a barrier; None if none does."""
        if node.domain not in ONNX:
            return None
        if node.op_type == "Gemm" and len(node.input) == 3:
            alpha = next((attribute.f for attribute in node.attribute if attribute.name == "alpha"), 1.0)
            return 2 if self._has_other_scale(node.input, alpha) else None
        if node.op_type == "Add":
            for position in (0, 1):
                product, term = self._source(node.input[position]), node.input[1 - position]
                if product is None or product.op_type != "MatMul":
                    continue
                if self._has_other_scale([*product.input, term], 1.0):
                    return position
        return None

    def _has_other_scale(self, names: Sequence[str], alpha: float) -> bool:
        sources = [self._source(name) for name in names]
        dequantisers = [node.input for node in sources if node is not None and node.op_type == DEQUANTISES]
        return len(dequantisers) == 3 and not is_scaled_as_product(dequantisers, self._array, alpha)

    def _source(self, name: str) -> Any | None:
        """The node that computes a value, before operators that the engine may move or remove; None for other values."""
        seen = set[str]()
        while (node := self._producers.get(name)) is not None and name not in seen:
            seen.add(name)
            operands = node.input[:1]
            if node.op_type in _NEUTRAL:
                operands = [operand for operand in node.input if not self._is_constant(operand)]
            elif node.op_type not in MOVED_OR_REMOVED:
                return node
            if len(operands) != 1:
                return node
            (name,) = operands
        return None

    def _is_constant(self, name: str) -> bool:
        node = self._producers.get(name)
        return name in self._constants or name in self._tensors or (node is not None and node.op_type == "Constant")

    def _array(self, name: str) -> np.ndarray | None:
        """The elements of a constant; None for other values."""
        if name in self._constants:
            return self._constants[name]
        tensor, node = self._tensors.get(name), self._producers.get(name)
        if node is not None and node.op_type == "Constant" and node.domain in ONNX:
            tensor = next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
        if tensor is None:
            return None
        from onnx import numpy_helper

        return numpy_helper.to_array(tensor)
