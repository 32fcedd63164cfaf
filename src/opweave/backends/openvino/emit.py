"""Make OpenVINO's graphs in memory: what rules use.

Data types that the engine's plug-in for CPUs does not have are carried by others, bit for bit: uint32 as int32, and 64-bit
integers as pairs of int32 along a last axis, which a `Value` does not count among its own. The plug-in itself would make
int32 of all integers of 64 bits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dtypes import name_of
from ...memory.host import address_range, unowned

if TYPE_CHECKING:
    from ...graph import Desc, Node, Operand
    from ...operation import Op
    from .. import Precision

WIDE = ("int64", "uint64")
"""The data types that are carried as pairs of int32, the lower half first."""

_CARRIED = {"uint32": "int32", "int64": "int32", "uint64": "int32", "bool": "boolean"}
_TYPES = {"float32": "f32", "float16": "f16", "int32": "i32", "int8": "i8", "uint8": "u8", "boolean": "boolean"}


_EXACT_QUOTIENT = "nonconvertable_divide_0"
"""The engine's mark for divisions that its passes must not replace."""


@cache
def opset() -> Any:
    """The operators that rules emit."""
    import openvino.opset15

    return openvino.opset15


def engine_type(data_type: str) -> str:
    """The engine's name for the data type that carries one of WebNN's."""
    return _TYPES[_CARRIED.get(data_type, data_type)]


@cache
def _element_type(data_type: str) -> Any:
    """The engine's object for `engine_type`."""
    from openvino import Type

    return getattr(Type, engine_type(data_type))


@cache
def _classes() -> Any:
    """The module of the engine's own classes: to import a name from it takes longer than to look for it there."""
    import openvino

    return openvino


def lanes(data_type: str) -> list[int]:
    """The sizes of the axes that values of a data type have in the engine after their own."""
    return [2] if data_type in WIDE else []


def tensor(array: np.ndarray, data_type: str) -> Any:
    """The engine's tensor for the memory of a contiguous array, which it does not keep alive.

    (The engine's own conversion keeps the array, in requests beyond their runs, and takes no read-only ones.)
    """
    memory = unowned(address_range(array)[0], array.nbytes)
    return _classes().Tensor(memory, [*array.shape, *lanes(data_type)], _element_type(data_type))


@dataclass(eq=False, slots=True)
class Value:
    """A value of the engine's graph.

    Attributes:
        output: the engine's object.
        data_type: one of WebNN's, or "bool".
        array: the elements of a constant; None for what is computed.
    """

    output: Any
    data_type: str
    array: np.ndarray | None = None
    _shape: tuple[int, ...] | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its dimensions."""
        if self._shape is None:
            found = self.output.get_shape()
            sizes = tuple([found[axis] for axis in range(len(found))])  # its iterator takes ten times as long
            self._shape = sizes[:-1] if self.data_type in WIDE else sizes
        return self._shape

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


class Emitter:
    """Collects the nodes that the rules emit.

    A rule gets the emitter, and the op's operands as `Value`s. While it runs, `node` is the node being lowered.
    """

    node: Node
    readers: Mapping[Operand, Sequence[Node]]
    """The nodes that read each operand which is not an output of the graph."""
    misread: Collection[Node]
    """The nodes whose results are to be constants of floats (`dequantised.misread_constants`)."""

    def __init__(self, precision: Precision = "float32") -> None:
        self.precision = precision
        self.parameters: list[Any] = []
        self.arrays: list[np.ndarray] = []
        """The constants, which must live as long as the graph."""
        self.count = 0
        """How many nodes were emitted, constants not among them."""
        self._constants: dict[Any, Value] = {}
        self._bools: dict[int, tuple[Value, Value]] = {}

    # What rules use --------------------------------------------------------------------------------------------------

    @property
    def output(self) -> Desc:
        """Descriptor of the (first) result of the node being lowered."""
        return self.node.outputs[0].desc

    def is_read_by(self, op: Op[..., Any]) -> bool:
        """Whether only nodes of this op read the (first) result of the node being lowered."""
        return all(node.op is op for node in self.readers.get(self.node.outputs[0], (self.node,)))

    def emit(self, name: str, *arguments: Any, data_type: str | None = None, **attributes: Any) -> Value:
        """Add a node and return its (first) output.

        Args:
            name: the function of the engine's operator set.
            arguments: its arguments; a `Value`, or a list of them, stands for the engine's objects.
            data_type: of the output; default: that of the first argument.
            attributes: other arguments, by name.
        """
        return self.emit_all(name, *arguments, data_type=data_type, **attributes)[0]

    def emit_all(self, name: str, *arguments: Any, data_type: str | None = None, **attributes: Any) -> list[Value]:
        """Add a node and return all of its outputs; see `emit`."""
        if data_type is None:
            first = arguments[0]
            data_type = (first[0] if isinstance(first, (list, tuple)) else first).data_type
        made = getattr(opset(), name)(*map(_engine, arguments), **{key: _engine(v) for key, v in attributes.items()})
        made.set_friendly_name(f"{self.node.label or self.node.op.name}#{self.count}")
        self.count += 1
        return [Value(output, data_type) for output in made.outputs()]

    def constant(self, value: Any, data_type: str = "int32") -> Value:
        """A constant made by a rule; equal ones are stored once."""
        array = np.array(value, data_type, order="C")
        key = (data_type, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.add_constant(array)
        return self._constants[key]

    def scalar(self, value: float, like: Value) -> Value:
        """A constant of rank 0 in the data type of `like`."""
        return self.constant(value, like.data_type)

    def cast(self, value: Value, data_type: str) -> Value:
        """`value` in another data type, as WebNN casts; unchanged if it has that already.

        Integers keep their lowest bits. Not for uint32 and 64-bit integers to or from floats. A number made from a bool gives
        that bool.
        """
        source = value.data_type
        if source == data_type:
            return value
        if data_type == "bool":
            if id(value) in self._bools:
                return self._bools[id(value)][1]
            return self.emit("convert", value, "boolean", data_type="bool")
        if source in WIDE:
            low = self.lane(value, 0)
            return Value(value.output, data_type) if data_type in WIDE else self.cast(low, data_type)
        if data_type in WIDE:
            low = self.cast(value, "int32")
            shift = self.emit("bitwise_right_shift", low, self.constant(31))
            return self._joined(low, self.constant(np.zeros(low.shape)) if source == "uint32" else shift, data_type)
        if source in ("int32", "uint32") and data_type in ("int8", "uint8"):
            # In range before the conversion, which saturates where the engine fuses it with what comes before.
            low = self.emit("bitwise_and", value, self.constant(255), data_type="int32")
            if data_type == "int8":
                low = self.emit("subtract", self.emit("bitwise_xor", low, self.constant(128)), self.constant(128))
            return self.emit("convert", low, engine_type(data_type), data_type=data_type)
        if engine_type(source) == engine_type(data_type):
            return Value(value.output, data_type)
        made = self.emit("convert", value, engine_type(data_type), data_type=data_type)
        if source == "bool":
            self._bools[id(made)] = made, value  # with the number, so that no other object gets its id
        return made

    def quotient(self, a: Value, b: Value) -> Value:
        """`a / b`, which the engine would replace by `a * (1 / b)`: 6 / 3 must be 2, and its floor, too."""
        made = self.emit("divide", a, b)
        made.output.get_node().get_rt_info()[_EXACT_QUOTIENT] = True
        return made

    def lane(self, value: Value, number: int) -> Value:
        """The lower (0) or upper (1) half of 64-bit integers, as int32."""
        axis = self.constant(value.rank)
        return self.emit("gather", value, self.constant(number), axis, data_type="int32")

    def _joined(self, low: Value, high: Value, data_type: str) -> Value:
        halves = [self.reshape(half, [*half.shape, 1]) for half in (low, high)]
        return self.emit("concat", halves, low.rank, data_type=data_type)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """`value` with other dimensions; itself where it has those already."""
        if value.shape == tuple(shape):
            return value
        if value.array is not None:
            return self.add_constant(value.array.reshape(shape))
        if not shape:  # the engine ends the process where a reshape to no dimensions follows a product
            return self.emit("squeeze", value, self.constant(list(range(value.rank))))
        return self.emit("reshape", value, self.constant([*shape, *lanes(value.data_type)]), False)

    def transpose(self, value: Value, permutation: Sequence[int]) -> Value:
        """`value` with its axes permuted; itself where nothing moves, reshaped where only axes of size 1 do."""
        if list(permutation) == sorted(permutation):
            return value
        shape = value.shape
        longer = [axis for axis in permutation if shape[axis] > 1]
        if longer == sorted(longer):
            return self.reshape(value, [shape[axis] for axis in permutation])
        last = [len(permutation)] if lanes(value.data_type) else []
        return self.emit("transpose", value, self.constant([*permutation, *last]))

    def relayout(self, value: Value, layout: str, wanted: str) -> Value:
        """`value` with its axes, named by the letters of `layout`, in the order of `wanted`."""
        return value if layout == wanted else self.transpose(value, [layout.index(letter) for letter in wanted])

    # What the back end uses ------------------------------------------------------------------------------------------

    def add_input(self, desc: Desc) -> Value:
        """Declare an input of the graph."""
        shape = [*desc.shape, *lanes(desc.data_type)]
        made = opset().parameter(shape, _element_type(desc.data_type))
        self.parameters.append(made)
        return Value(made.output(0), desc.data_type, None, desc.shape)

    def computed(self, value: Value) -> Value:
        """`value`, by a node of its own if it is an input: the engine writes no output that is just that."""
        if value.output.get_node().get_type_name() != "Parameter":
            return value
        return self.emit("convert", value, engine_type(value.data_type))

    def add_constant(self, array: np.ndarray) -> Value:
        """Declare a constant, which the engine reads where it lies."""
        contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        self.arrays.append(contiguous)
        data_type = name_of(array.dtype)
        made = _classes().op.Constant(tensor(contiguous, data_type), shared_memory=True)
        return Value(made.output(0), data_type, array, array.shape)


def _engine(argument: Any) -> Any:
    if isinstance(argument, Value):
        return argument.output
    if isinstance(argument, (list, tuple)) and argument and isinstance(argument[0], Value):
        return [value.output for value in argument]
    return argument
