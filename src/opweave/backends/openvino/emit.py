"""Make OpenVINO's graphs in memory: what rules use.

Data types that the engine's plug-in for CPUs does not have are carried by others, bit for bit: uint32 as int32, and 64-bit
integers as pairs of int32 along a last axis, which a `Value` does not count among its own. The plug-in itself would make
int32 of all integers of 64 bits. float16 is carried as float32: the plug-in would drop all conversions to float16, so
`Emitter.rounded` computes what they do. Only inputs and outputs of the graph are float16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.dtypes import FLOATS, name_of
from ...memory.host import address_range, unowned
from ...ops.activation import linear, relu
from ...ops.convolution import conv2d, conv_transpose2d
from ...ops.elementwise import add, clamp, div, mul, sub
from ...ops.matrix import gemm, matmul
from ...ops.normalization import batch_normalization
from .dequantised import Dequantised
from .devices import engine, operators

if TYPE_CHECKING:
    from ...core.graph import Desc, Node, Operand
    from .. import Precision

WIDE = ("int64", "uint64")
"""The data types that are carried as pairs of int32, the lower half first."""

_CARRIED = {"uint32": "int32", "int64": "int32", "uint64": "int32", "bool": "boolean", "float16": "float32"}
_TYPES = {"float32": "f32", "float16": "f16", "int32": "i32", "int8": "i8", "uint8": "u8", "boolean": "boolean"}


_EXACT_QUOTIENT = "nonconvertable_divide_0"
"""The engine's mark for divisions that its passes must not replace."""

_NOT_FOLDED = "DisableConstantFolding_0"
"""The engine's mark for nodes that are computed when the graph is loaded, not replaced by constants before."""

_BESIDE = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "prelu")
"""Operations with a constant that kernels of products take over."""

_CONVOLUTIONS, _PRODUCTS = (conv2d, conv_transpose2d), (matmul, gemm)
_TAKEN = (add, sub, mul, div, linear, batch_normalization, relu, clamp)

_SMALL = ("int8", "uint8", "bool")
"""Data types whose values float16 holds exactly."""


def engine_type(data_type: str) -> str:
    """The engine's name for the data type that carries one of WebNN's."""
    return _TYPES[_CARRIED.get(data_type, data_type)]


@cache
def _element_type(data_type: str) -> Any:
    """The engine's object for the data type of memory: as `engine_type`, but float16 is itself."""
    return getattr(engine().Type, _TYPES.get(data_type) or engine_type(data_type))


def lanes(data_type: str) -> list[int]:
    """The sizes of the axes that values of a data type have in the engine after their own."""
    return [2] if data_type in WIDE else []


def tensor(array: np.ndarray, data_type: str) -> Any:
    """The engine's tensor for the memory of a contiguous array, which it does not keep alive.

    (The engine's own conversion keeps the array, in requests beyond their runs, and takes no read-only ones.)
    """
    memory = unowned(address_range(array)[0], array.nbytes)
    return engine().Tensor(memory, [*array.shape, *lanes(data_type)], _element_type(data_type))


@dataclass(eq=False, slots=True)
class Value:
    """A value of the engine's graph.

    Attributes:
        output: the engine's object.
        data_type: one of WebNN's, or "bool".
        array: the elements of a constant; None for what is computed.
        varies: whether it depends on an input of the graph; others become constants of the engine.
    """

    output: Any
    data_type: str
    array: np.ndarray | None = None
    _shape: tuple[int, ...] | None = field(default=None, repr=False)
    varies: bool = True

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
    dequantised: Dequantised
    """The nodes whose constants stay integers of 8 bits in the engine's graph."""

    def __init__(self, precision: Precision = "float32") -> None:
        self.precision = precision
        self.parameters: list[Any] = []
        self.arrays: list[np.ndarray] = []
        """The constants, which must live as long as the graph."""
        self.count = 0
        """How many nodes were emitted, constants not among them."""
        self._constants: dict[Any, Value] = {}
        self._bools: dict[int, tuple[Value, Value]] = {}
        self._factors: dict[float, Value] = {}
        self.factors: dict[Operand, Value] = {}
        """What products of 8 bits read instead of the value of an operand."""
        self.tables: dict[Node, list[Value]] = {}
        """Integers, scale and zero point of the dequantisations that come after a lookup."""

    # What rules use --------------------------------------------------------------------------------------------------

    @property
    def output(self) -> Desc:
        """Descriptor of the (first) result of the node being lowered."""
        return self.node.outputs[0].desc

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
        varies = any(map(_varies, (*arguments, *attributes.values())))
        if (
            varies
            and name in ("add", "subtract")
            and any(map(_is_matrix, arguments))
            and self._follows_shifted_product()
        ):
            if name == "subtract" and _is_matrix(arguments[1]):
                name, arguments = "add", (arguments[0], self.add_constant(-arguments[1].array))
            arguments = tuple([self.kept(each) if _is_matrix(each) else each for each in arguments])
        elif varies and name in _BESIDE and any(map(_is_outer, arguments)) and not self._follows_convolution():
            if (
                name == "subtract" and _is_outer(arguments[1]) and data_type in FLOATS
            ):  # differences take it over all the same
                name, arguments = "add", (arguments[0], self.add_constant(-arguments[1].array))
            arguments = tuple([self.kept(each) if _is_outer(each) else each for each in arguments])
        if name == "multiply" and _is_kept(arguments[1]):
            # A convolution of 8 bits takes a right operand for scales of its results, and then refuses one that is computed.
            arguments = arguments[::-1]
        made = getattr(operators(), name)(
            *map(_engine, arguments), **{key: _engine(v) for key, v in attributes.items()}
        )
        made.set_friendly_name(f"{self.node.label or self.node.op.name}#{self.count}")
        self.count += 1
        return [Value(output, data_type, varies=varies) for output in made.outputs()]

    def _follows_shifted_product(self) -> bool:
        """Whether the node is, or follows, a product of integers with a zero point.

        The engine multiplies zero points with the matrix, and adds up this and a constant matrix after it, in float32: what
        is left of the constant is its difference from a large number.
        """
        shifted = self.dequantised.shifted
        return bool(shifted) and _follows(self.node, lambda node: node in shifted, lambda node: True)

    def _follows_convolution(self) -> bool:
        """Whether the node is, or follows, a convolution, whose kernel takes constants for those of its channels."""
        node = self.node
        convolves = _follows(node, lambda each: each.op in _CONVOLUTIONS, _is_taken)
        return convolves and not _follows(node, lambda each: each.op in _PRODUCTS, _is_taken)

    def constant(self, value: Any, data_type: str = "int32") -> Value:
        """A constant made by a rule; equal ones are stored once."""
        array = np.array(value, data_type, order="C")
        key = (data_type, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.add_constant(array)
        return self._constants[key]

    def scalar(self, value: float, like: Value) -> Value:
        """A constant of rank 0, rounded to the data type of `like`."""
        return self.constant(value, like.data_type)

    def number(self, value: Any, like: Value) -> Value:
        """A constant for an attribute such as `alpha`: float32 inside the engine, also for operands of float16."""
        wide = self.constant(value, "float32")
        return Value(wide.output, like.data_type, wide.array, wide.shape, varies=False)

    def cast(self, value: Value, data_type: str) -> Value:
        """`value` in another data type, as WebNN casts; unchanged if it has that already.

        Integers keep their lowest bits, and numbers become the nearest float16. Not for uint32 and 64-bit integers to or from
        floats. A number made from a bool gives that bool.
        """
        source = value.data_type
        if source == data_type:
            return value
        if data_type == "bool":
            if id(value) in self._bools:
                return self._bools[id(value)][1]
            if value.output.get_node().get_output_size() > 1:
                # The engine refuses to convert a result of a node that has several, such as a part of a split.
                value = self.emit("maximum", value, value)
            return self.emit("convert", value, "boolean", data_type="bool")
        if data_type == "float16":
            if value.array is not None:
                with np.errstate(over="ignore"):
                    return self.add_constant(value.array.astype(np.float16))
            if source == "float32":
                return self.rounded(_as_type(value, "float16"))
            wide = _as_type(self.cast(value, "float32"), "float16")
            return wide if source in _SMALL else self.rounded(wide)
        if source in WIDE:
            low = self.lane(value, 0)
            return _as_type(value, data_type) if data_type in WIDE else self.cast(low, data_type)
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
            return _as_type(value, data_type)
        if source in ("int8", "uint8") and data_type in FLOATS and not value.varies:
            # The engine takes converted constants of 8 bits for compressed tables and weights.
            if value.array is not None:
                return self.add_constant(value.array.astype(data_type))
            value = self.kept(value)
        if source == "bool" and data_type == "uint8":
            # Not a conversion: its passes take that for none, since bool is uint8 to its kernels, and then miss a bool.
            made = self.emit("select", value, *(self.constant(bit, data_type) for bit in (1, 0)), data_type=data_type)
        else:
            made = self.emit("convert", value, engine_type(data_type), data_type=data_type)
        if source == "bool":
            self._bools[id(made)] = made, value  # with the number, so that no other object gets its id
        return made

    def quotient(self, a: Value, b: Value) -> Value:
        """`a / b`, which the engine would replace by `a * (1 / b)`: 6 / 3 must be 2, and its floor, too."""
        # A product of more than 4 dimensions would take the quotient over, and then refuse it. A reduction to [n, 1, 1] would,
        # and divide the first element only.
        if b.array is not None and ((a.rank > 4 and b.array.size > 1) or source_type(a).startswith("Reduce")):
            b = self.kept(b)
        made = self.emit("divide", self.left(a), b)
        made.output.get_node().get_rt_info()[_EXACT_QUOTIENT] = True
        return made

    def choice(self, condition: Value, a: Value, b: Value) -> Value:
        """`a` where `condition`, a bool, is true, and `b` elsewhere.

        A comparison computes with float32, and so does the kernel that it becomes with a choice: integers come after a
        conversion, which is no part of such kernels.
        """
        if engine_type(a.data_type) == "i32" and a.data_type not in WIDE:
            number = self.emit("convert", condition, "i32", data_type="int32")
            condition = self.emit("convert", number, "boolean", data_type="bool")
        return self.emit("select", condition, a, b, data_type=a.data_type)

    def kept(self, value: Value) -> Value:
        """A constant that the engine computes when it loads the graph, so that none of its passes knows that it is one."""
        name = "logical_and" if value.data_type == "bool" else "maximum"  # of it and itself, which is all its bits
        itself = _as_type(value, value.data_type)
        made = self.emit(name, itself, itself)
        made.output.get_node().get_rt_info()[_NOT_FOLDED] = True
        return made

    def left(self, value: Value) -> Value:
        """The left operand of an operation that is not commutative: kernels that take the operation over take a constant for
        the right one, so `c - f(x)` becomes `f(x) - c`.
        """
        return value if value.varies else self.kept(value)

    def rounded(self, value: Value) -> Value:
        """The nearest float16 of each element, or the even one of two: infinite from 65520 on, and -0 stays.

        Let m be 2^13 |x|, or 3/4 where that is more: a float32 whose last digit is worth that of a float16 next to x. Then
        (|x| - m) + m is |x| in this precision. What is beyond float16 overflows, and the sign returns by a product.
        """
        sign = self.emit("clamp", self.emit("multiply", value, self.factor(2.0**30)), -1.0, 1.0)
        # Smaller than |x| below 2^-30 only, where the result is 0. (The engine writes |x| over an x that is a concatenation.)
        magnitude = self.emit("multiply", value, sign)
        wide = self.emit("clamp", self.emit("multiply", magnitude, self.factor(2.0**13)), 0.75, 2.0**30)
        number = self.emit("add", self.emit("subtract", magnitude, wide), wide)
        for factor in (2.0**112, 2.0**-112):
            number = self.emit("multiply", number, self.factor(factor))
        return self.emit("multiply", number, sign)

    def factor(self, value: float) -> Value:
        """A factor that the engine neither merges with others nor replaces by a multiply-add, which makes 0 of -0."""
        if value not in self._factors:
            self._factors[value] = self.kept(self.constant(value, "float32"))
        return self._factors[value]

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
        made = operators().parameter(shape, _element_type(desc.data_type))
        self.parameters.append(made)
        if desc.data_type == "float16":
            made = operators().convert(made, engine_type(desc.data_type))
        return Value(made.output(0), desc.data_type, None, desc.shape)

    def computed(self, value: Value) -> Value:
        """`value` in the data type of its memory.

        By a node of its own if it is an input: the engine writes no output that is just that.
        """
        if value.data_type == "float16":
            return self.emit("convert", value, "f16")
        if value.data_type == "float32" and value.array is not None and _is_subnormal(value.array).any():
            # The engine makes 0 of all subnormal numbers of a constant, and then of -0: they are computed here.
            small = _is_subnormal(value.array)
            others = self.add_constant(np.where(small, np.float32(0), value.array))
            scaled = self.add_constant(np.where(small, value.array, np.float32(0)) * np.float32(2.0**64))
            scaled = self.emit("multiply", scaled, self.factor(2.0**-64))
            return self.emit("select", self.constant(small, "bool"), scaled, others, data_type="float32")
        if value.output.get_node().get_type_name() != "Parameter":
            return value
        return self.emit("convert", value, engine_type(value.data_type))

    def add_constant(self, array: np.ndarray) -> Value:
        """Declare a constant, which the engine reads where it lies."""
        data_type = name_of(array.dtype)
        carried = array.astype(np.float32) if data_type == "float16" else array
        contiguous = carried if carried.flags.c_contiguous else np.ascontiguousarray(carried)
        self.arrays.append(contiguous)
        made = engine().op.Constant(tensor(contiguous, name_of(contiguous.dtype)), shared_memory=True)
        return Value(made.output(0), data_type, array, array.shape, varies=False)


def _is_subnormal(array: np.ndarray) -> np.ndarray:
    """Whether each float32 is a number other than 0 that is smaller than the normal ones."""
    mask: np.ndarray = (array != 0) & (np.abs(array) < np.finfo(np.float32).tiny)
    return mask


def _is_outer(argument: Any) -> bool:
    """Whether an argument is a constant for rows, or for other axes but the last.

    A product of matrices takes over the element-wise operations that follow, and such constants for those of its columns.
    """
    is_constant = isinstance(argument, Value) and argument.array is not None
    return is_constant and argument.array.size > 1 and argument.shape[-1] == 1


def _is_matrix(argument: Any) -> bool:
    """Whether an argument is a constant that differs along other axes than the last."""
    is_constant = isinstance(argument, Value) and argument.array is not None
    return is_constant and any(size > 1 for size in argument.shape[:-1])


def _is_kept(argument: Any) -> bool:
    """Whether an argument is a constant that the engine computes when it loads the graph."""
    return isinstance(argument, Value) and argument.array is None and not argument.varies


def _follows(node: Node, matches: Callable[[Node], bool], passes: Callable[[Node], bool], most: int = 4) -> bool:
    """Whether a node matches, or follows one that does, with few operations between.

    Args:
        node: the node.
        matches: whether a node is what is looked for.
        passes: whether a node may stand between.
        most: how many nodes before this one are looked at.
    """
    if matches(node):
        return True
    before = [operand.node for operand in node.operands if operand.node is not None and passes(operand.node)]
    return most > 0 and any(_follows(each, matches, passes, most - 1) for each in before)


def _is_taken(node: Node) -> bool:
    return node.op in (*_CONVOLUTIONS, *_PRODUCTS, *_TAKEN)


def _as_type(value: Value, data_type: str) -> Value:
    """The same elements of the engine for another data type of WebNN."""
    return Value(value.output, data_type, varies=value.varies)


def _varies(argument: Any) -> bool:
    """Whether an argument, or one of a list, depends on an input of the graph."""
    if isinstance(argument, Value):
        return argument.varies
    return isinstance(argument, (list, tuple)) and any(map(_varies, argument))


def source_type(value: Value) -> str:
    """The engine's name for the type of the node that computes a value, perhaps in another shape."""
    node = value.output.get_node()
    while node.get_type_name() in ("Reshape", "Squeeze", "Unsqueeze"):
        node = node.input_value(0).get_node()
    return str(node.get_type_name())


def _engine(argument: Any) -> Any:
    if isinstance(argument, Value):
        return argument.output
    if isinstance(argument, (list, tuple)) and argument and isinstance(argument[0], Value):
        return [value.output for value in argument]
    return argument
