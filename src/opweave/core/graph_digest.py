"""Digests of graphs, by which programs, measurements and compiled models are cached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..support import digests
from .graph import Graph, Operand, map_operands


def digest_graph(graph: Graph, contents_of: Callable[[Operand], bytes]) -> str:
    """A digest of a graph's operations, attributes, shapes and data types, and of what `contents_of` returns for constants.

    >>> from .graph import Builder, Desc, Operand
    >>> x = Operand(Builder(), Desc("float32", (2,)), name="x")
    >>> digest_graph(Graph({"x": x}, {"y": x}, ()), lambda constant: b"")[:8]
    '9577ab30'
    """
    # Inputs are numbered as they are declared: x - y and y - x differ.
    numbers = {operand: number for number, operand in enumerate(dict.fromkeys(graph.inputs.values()))}
    described = digests.digest()

    def number(operand: Operand) -> str:
        if operand.is_constant and operand not in numbers:
            described.update(contents_of(operand))
        place = numbers.setdefault(operand, len(numbers))
        return f"{place} {operand.desc} {operand.is_constant}"

    def text_of(value: Any) -> str:
        if isinstance(value, (tuple, list)):
            return f"{type(value).__name__} {[*map(text_of, value)]}"
        if isinstance(value, np.ndarray):  # its text leaves out elements
            return f"{value.dtype}{list(value.shape)} {digests.digest(value.tobytes()).hexdigest()}"
        return repr(value)

    for node in graph.nodes:
        attributes = sorted(
            (name, digest_graph(value.graph, contents_of) if name in node.op.bodies else text_of(value))
            for name, value in node.attributes.items()
        )
        operands = list(map_operands(node.inputs, number).items())
        kind = type(node.op).__name__  # an operation of the user may have the name of a built-in one
        described.update(f"{kind} {node.op.name} {attributes} {operands} {[*map(number, node.outputs)]}\n".encode())
    described.update(f"{[*map(number, graph.outputs.values())]}".encode())
    return described.hexdigest()
