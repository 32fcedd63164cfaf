"""Rewrite scatters with a reduction in ONNX models, so that no update is lost.

The threads of ONNX Runtime's ScatterND race for elements with several updates, and lose some of these. ScatterElements runs
in one thread. Sessions with one thread keep ScatterND.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LARGEST = 2**63 - 1

_INT, _INTS = 2, 7


def write_scatters_in_order(constants: Mapping[str, np.ndarray], graphs: Sequence[Any]) -> None:
    """Replace each ScatterND with a reduction by ScatterElements of rows, unless the indices are distinct constants."""
    for graph in reversed(graphs):  # inner graphs first: the outer graph's nodes are replaced by copies
        if not any(_may_repeat(node, constants) for node in graph.node):
            continue
        nodes = list(graph.node)
        del graph.node[:]
        for node in nodes:
            if _may_repeat(node, constants):
                _Rows(graph, node).add()
            else:
                graph.node.append(node)


def _may_repeat(node: Any, constants: Mapping[str, np.ndarray]) -> bool:
    """Whether a node is a ScatterND with a reduction whose indices may repeat."""
    if node.op_type != "ScatterND" or node.domain not in ("", "ai.onnx") or len(node.input) != 3:
        return False
    if not any(a.name == "reduction" and a.s in (b"add", b"mul", b"min", b"max") for a in node.attribute):
        return False
    indices = constants.get(node.input[1])
    if indices is None or indices.ndim == 0 or (indices < 0).any():
        return True
    rows = indices.reshape(-1, indices.shape[-1])
    return len(np.unique(rows, axis=0)) < len(rows)


class _Rows:
    """The nodes that replace a ScatterND.

    They reshape the data to a matrix with one row per slice that an index tuple addresses. Shapes are computed at run time.
    """

    def __init__(self, graph: Any, node: Any) -> None:
        self._graph, self._node = graph, node

    def add(self) -> None:
        data, indices, updates = self._node.input
        whole = self._op("Shape", data)
        coordinates = self._op("Slice", self._op("Shape", indices), self._integers(-1), self._integers(LARGEST))
        sizes = self._op("Slice", whole, self._integers(0), coordinates)
        inner = self._op("Slice", whole, coordinates, self._integers(LARGEST))
        one = self._integers(1)
        width = self._op("ReduceProd", self._op("Concat", inner, one, axis=0), keepdims=1)
        count = self._op("ReduceProd", sizes, keepdims=0)
        # Number all rows; the indices, perhaps negative, select from these numbers.
        line = self._op("Range", self._integer(0), count, self._integer(1))
        rows = self._op("GatherND", self._reshape(line, sizes), indices)
        chosen = self._reshape(self._op("Size", rows), one)
        shape = self._op("Concat", chosen, width, axis=0)
        places = self._op("Expand", self._reshape(rows, self._op("Concat", chosen, one, axis=0)), shape)
        matrix = self._reshape(data, self._op("Concat", self._reshape(count, one), width, axis=0))
        result = self._op("ScatterElements", matrix, places, self._reshape(updates, shape), axis=0)
        self._graph.node[-1].attribute.extend(a for a in self._node.attribute if a.name == "reduction")
        self._reshape(result, whole)
        self._graph.node[-1].name = self._node.name
        self._graph.node[-1].output[0] = self._node.output[0]

    def _op(self, op_type: str, *inputs: str, **integers: int) -> str:
        output = f"{self._node.output[0]}/opweave/{len(self._graph.node)}"
        added = self._graph.node.add(op_type=op_type, input=inputs, output=[output])
        for name, value in integers.items():
            added.attribute.add(name=name, type=_INT, i=value)
        return output

    def _reshape(self, value: str, shape: str) -> str:
        return self._op("Reshape", value, shape, allowzero=1)

    def _integer(self, value: int) -> str:
        output = self._op("Constant")
        self._graph.node[-1].attribute.add(name="value_int", type=_INT, i=value)
        return output

    def _integers(self, *values: int) -> str:
        output = self._op("Constant")
        self._graph.node[-1].attribute.add(name="value_ints", type=_INTS, ints=values)
        return output


__all__ = ["write_scatters_in_order"]
