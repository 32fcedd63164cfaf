"""ONNX nodes that ONNX Runtime runs as they are, because WebNN cannot express them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from ... import memory
from ...graph import Node
from ...memory.spaces import Cell, Memory
from .. import How, PowerPreference, Precision, Runner, Update
from .model import ModelSession


class FallbackSession(Runner):
    """A part of an ONNX model as a session of its own; it reads and writes arrays, and cells.

    Tensors of bool are given as uint8.

    Args:
        proto: the part, without the constants it uses.
        constants: these, by name.
        power_preference: that of the context.
        threads: how many threads an operation may use; None for as many as there are processors.
        precision: that of the context.

    Attributes:
        types: the type of each output, by name.

    Raises:
        OperationError: the engine refuses the nodes.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        constants: Mapping[str, np.ndarray],
        power_preference: PowerPreference,
        threads: int | None = None,
        precision: Precision = "float32",
    ) -> None:
        self.title = ", ".join(dict.fromkeys(node.op_type for node in proto.graph.node))
        self._session = ModelSession(
            proto, constants, power_preference, threads, alone=False, title=self.title, precision=precision
        )
        types = self._session.types
        self._inputs = [(name, types[name] == "tensor(bool)") for name in self._session.inputs]
        self._outputs = [(name, types[name] == "tensor(bool)") for name in self._session.outputs]
        takes, gives = self._session.inputs, self._session.outputs
        self.updates = [  # the session itself counts what it copies
            Update(tuple((takes.index(i), gives.index(o)) for i, o in pairs), ()) for pairs, _ in self._session.updates
        ]
        self.types: dict[str, onnx.TypeProto] = {name: type_of(types[name]) for name in self._session.outputs}

    def bind(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> Callable[[], None]:
        """Tie it to arrays and cells."""
        return lambda: self.run(inputs, outputs)

    def run(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        """Run it once: arrays are written in place, cells get what the engine makes.

        Raises:
            OtherShapes: arrays have not the shapes that came.
            OperationError: the engine failed.
        """
        feed = {
            name: given.value if isinstance(given, Cell) else _declared(given, is_bool)
            for (name, is_bool), given in zip(self._inputs, inputs, strict=True)
        }
        targets, cells = {}, {}
        for (name, is_bool), target in zip(self._outputs, outputs, strict=True):
            if isinstance(target, Cell):
                cells[name] = target
            else:
                targets[name] = _declared(target, is_bool)
        pairs = (pair for update in self._session.updates for pair in update.pairs)
        shared = [o for i, o in pairs if o in targets and memory.is_same(feed[i], targets[o])]
        for cell, value in zip(cells.values(), self._session.run(feed, list(cells), targets, shared), strict=True):
            cell.value = value

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        """It computes nodes of an ONNX model, none of a graph."""
        return "native", self.title


def _declared(array: np.ndarray, is_bool: bool) -> np.ndarray:
    """An array in the type that the engine has for it."""
    return array.view(bool) if is_bool and array.dtype == np.uint8 else array


def type_of(name: str) -> onnx.TypeProto:
    """The type that the engine writes as `name`, without a shape.

    >>> type_of("seq(tensor(int64))").sequence_type.elem_type.tensor_type.elem_type == TensorProto.INT64
    True
    """
    outer, _, rest = name.partition("(")
    inner = rest[:-1]
    match outer:
        case "seq":
            return helper.make_sequence_type_proto(type_of(inner))
        case "optional":
            return helper.make_optional_type_proto(type_of(inner))
        case "tensor":
            if inner.upper() in dict(TensorProto.DataType.items()):  # else it is one that only the engine has
                return helper.make_tensor_type_proto(TensorProto.DataType.Value(inner.upper()), None)
    return onnx.TypeProto()
