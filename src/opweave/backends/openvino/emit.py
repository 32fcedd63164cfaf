"""Build OpenVINO's graphs in memory, for rules.

Other types carry the bits of data types that the engine's CPU plug-in lacks: uint32 as int32, and 64-bit integers as pairs of
int32 along an additional last axis, which `Value.shape` omits. The plug-in itself would narrow 64-bit integers to int32.
float16 is carried as float32: the plug-in would drop all conversions to float16, so `Emitter.round_to_float16` emulates them.
Only inputs and outputs of the graph are float16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ...composites import is_composite
from ...core.dtypes import FLOATS, name_of
from ...memory.host import address_range, array_at
from ...ops.activation import linear, relu
from ...ops.convolution import conv2d, conv_transpose2d
from ...ops.elementwise import add, clamp, div, mul, sub
from ...ops.matrix import gemm, matmul
from ...ops.normalization import batch_normalization
from ...support.records import field, record
from .dequantised import Dequantised
from .devices import engine, operators

if TYPE_CHECKING:
    from ...core.graph import Desc, Node, Operand
    from .. import Precision

WIDE = ("int64", "uint64")
"""Data types that are carried as pairs of int32, lower half first."""

_CARRIED = {"uint32": "int32", "int64": "int32", "uint64": "int32", "bool": "boolean", "float16": "float32"}
_TYPES = {"float32": "f32", "float16": "f16", "int32": "i32", "int8": "i8", "uint8": "u8", "boolean": "boolean"}

_SPLITS = frozenset({"Slice", "Split", "StridedSlice", "VariadicSplit"})
"""Operators of the engine that are splits, or become splits where slices cover an axis."""

_VIEWS = frozenset({"Convert", "Multiply", "Reshape", "Squeeze", "Subtract", "Unsqueeze"})
"""Operators of reshaped and dequantised weights; kernels read the memory of their constant."""

_EXACT_QUOTIENT = "nonconvertable_divide_0"
"""The engine's runtime info for divisions that passes must not replace."""

_NOT_FOLDED = "DisableConstantFolding_0"
"""The engine's runtime info for nodes that passes must not fold; they are computed when the graph is loaded."""

_BESIDE = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "prelu")
"""Operations with a constant that kernels of products fuse as an epilogue."""

_NOT_IN_PLACE = ("matmul", "gather")
"""Operations that are not computed in place of their first operand, and know narrow constants by the nodes that widen them."""

_CONVOLUTIONS, _PRODUCTS = (conv2d, conv_transpose2d), (matmul, gemm)
_TAKEN = (add, sub, mul, div, linear, batch_normalization, relu, clamp)

_SMALL = ("int8", "uint8", "bool")
"""Data types whose values are exact in float16."""


def engine_type(data_type: str) -> str:
    return _TYPES[_CARRIED.get(data_type, data_type)]


@cache
def _element_type(data_type: str) -> Any:
    """Return the engine's type object for arrays: as `engine_type`, but float16 is f16."""
    return getattr(engine().Type, _TYPES.get(data_type) or engine_type(data_type))


def lanes(data_type: str) -> list[int]:
    """Return the sizes of the additional last axes of a data type in the engine."""
    return [2] if data_type in WIDE else []


def tensor(array: np.ndarray, data_type: str) -> Any:
    """Return the engine's tensor for the memory of a contiguous array, without a reference to the array.

    The engine's own conversion would keep the array, and refuse read-only ones.
    """
    memory = array_at(address_range(array)[0], array.nbytes)
    return engine().Tensor(memory, [*array.shape, *lanes(data_type)], _element_type(data_type))


@record(frozen=False)
class Value:
    """A value of the engine's graph. `array` is None for a computed value.

    `varies` is true if the value depends on an input of the graph; the engine folds other values.
    """

    output: Any
    data_type: str
    array: np.ndarray | None = None
    _shape: tuple[int, ...] | None = field(default=None, repr=False)
    varies: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        if self._shape is None:
            dims = self.output.get_shape()
            sizes = tuple([dims[axis] for axis in range(len(dims))])  # the shape's iterator takes ten times as long
            self._shape = sizes[:-1] if self.data_type in WIDE else sizes
        return self._shape

    @property
    def rank(self) -> int:
        return len(self.shape)


class Emitter:
    """Collect the nodes that the rules emit. While a rule runs, `node` is the node being lowered."""

    node: Node
    readers: Mapping[Operand, Sequence[Node]]
    """Readers of each operand that is not an output of the graph."""
    dequantised: Dequantised

    def __init__(self, precision: Precision = "float32") -> None:
        self.precision = precision
        self.parameters: list[Any] = []
        self.arrays: list[np.ndarray] = []
        self.count = 0
        """Number of emitted nodes, without constants."""
        self._constants: dict[Any, Value] = {}
        self._bools: dict[int, tuple[Value, Value]] = {}
        self._factors: dict[float, Value] = {}
        self.factors: dict[Operand, Value] = {}
        """Values that products of 8 bits read in place of an operand's own value."""
        self.tables: dict[Node, list[Value]] = {}
        """Integers, scale and zero point of dequantisations that are moved behind a lookup."""
        self._uses: dict[int, str] = {}
        self._copies: dict[tuple[int, str], tuple[Value, Value]] = {}

    # For rules -------------------------------------------------------------------------------------------------------

    @property
    def output(self) -> Desc:
        return self.node.outputs[0].desc

    def emit(self, name: str, *arguments: Any, data_type: str | None = None, **attributes: Any) -> Value:
        """Add a node of the engine's operator set and return its (first) output.

        Values among the arguments, or in lists there, stand for the engine's objects. The output has `data_type`,
        by default the data type of the first argument.
        """
        return self.emit_all(name, *arguments, data_type=data_type, **attributes)[0]

    def emit_all(self, name: str, *arguments: Any, data_type: str | None = None, **attributes: Any) -> list[Value]:
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
            arguments = tuple([self.hide(argument) if _is_matrix(argument) else argument for argument in arguments])
        elif varies and name in _BESIDE and any(map(_is_outer, arguments)) and not self._follows_convolution():
            # A kernel would fuse the difference in spite of `hide`.
            if name == "subtract" and _is_outer(arguments[1]) and data_type in FLOATS:
                name, arguments = "add", (arguments[0], self.add_constant(-arguments[1].array))
            arguments = tuple([self.hide(argument) if _is_outer(argument) else argument for argument in arguments])
        if name == "multiply" and _is_hidden(arguments[1]) and arguments[0].rank > 1:
            # A convolution of 8 bits takes the right operand as scales of its results, and refuses it if it is no constant.
            # A hidden number must not be the first operand of a result of one element; see `hide`.
            arguments = arguments[::-1]
        if varies and name not in _NOT_IN_PLACE and _is_computed(arguments[0]):
            arguments = (self.hide(arguments[0]), *arguments[1:])
        node = getattr(operators(), name)(
            *map(_engine, arguments), **{key: _engine(v) for key, v in attributes.items()}
        )
        node.set_friendly_name(f"{self.node.label or self.node.op.name}#{self.count}")
        self.count += 1
        return [Value(output, data_type, varies=varies) for output in node.outputs()]

    def _follows_shifted_product(self) -> bool:
        """Whether the node is, or follows, a product of integers with a zero point.

        The engine computes (zero point * matrix) + constant in float32, where the constant loses low bits.
        """
        shifted = self.dequantised.shifted
        return bool(shifted) and _follows(self.node, lambda node: node in shifted, lambda node: True)

    def _follows_convolution(self) -> bool:
        node = self.node
        convolves = _follows(node, _convolves, _is_taken)
        return convolves and not _follows(node, lambda other: other.op in _PRODUCTS, _is_taken)

    def constant(self, value: Any, data_type: str = "int32") -> Value:
        """Add a constant of a rule; equal constants are stored once."""
        array = np.array(value, data_type, order="C")
        key = (data_type, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.add_constant(array)
        return self._constants[key]

    def scalar(self, value: float, like: Value) -> Value:
        """Add a constant of rank 0, rounded to the data type of `like`."""
        return self.constant(value, like.data_type)

    def number(self, value: Any, like: Value) -> Value:
        """Add a constant for an attribute such as `alpha`: float32 in the engine, also for float16 operands."""
        wide = self.constant(value, "float32")
        return Value(wide.output, like.data_type, wide.array, wide.shape, varies=False)

    def cast(self, value: Value, data_type: str) -> Value:
        """Cast `value` as WebNN does; integers keep their lowest bits, and numbers round to the nearest float16.

        There are no casts between floats and uint32 or 64-bit integers. A number that was cast from a bool returns that bool.
        """
        source = value.data_type
        if source == data_type:
            return value
        if data_type == "bool":
            if id(value) in self._bools:
                return self._bools[id(value)][1]
            if value.output.get_node().get_output_size() > 1 or source_type(value) in _SPLITS:
                # The engine refuses to convert an output of a node with several outputs, such as a split. It replaces slices
                # by a split, and drops reshapes that change nothing.
                value = self.emit("maximum", value, value)
            return self.emit("convert", value, "boolean", data_type="bool")
        if data_type == "float16":
            if value.array is not None:
                with np.errstate(over="ignore"):
                    return self.add_constant(value.array.astype(np.float16))
            if source == "float32":
                return self.round_to_float16(_as_type(value, "float16"))
            wide = _as_type(self.cast(value, "float32"), "float16")
            return wide if source in _SMALL else self.round_to_float16(wide)
        if source in WIDE:
            low = self.lane(value, 0)
            return _as_type(value, data_type) if data_type in WIDE else self.cast(low, data_type)
        if data_type in WIDE:
            low = self.cast(value, "int32")
            shift = self.emit("bitwise_right_shift", low, self.constant(31))
            return self._join_halves(
                low, self.constant(np.zeros(low.shape)) if source == "uint32" else shift, data_type
            )
        if source in ("int32", "uint32") and data_type in ("int8", "uint8"):
            # Wrap around before the conversion, which saturates if the engine fuses it with the preceding node.
            low = self.emit("bitwise_and", value, self.constant(255), data_type="int32")
            if data_type == "int8":
                low = self.emit("subtract", self.emit("bitwise_xor", low, self.constant(128)), self.constant(128))
            return self.emit("convert", low, engine_type(data_type), data_type=data_type)
        if engine_type(source) == engine_type(data_type):
            return _as_type(value, data_type)
        if source in ("int8", "uint8") and data_type in FLOATS and not value.varies:
            # The engine treats converted 8-bit constants as compressed tables and weights.
            if value.array is not None:
                return self.add_constant(value.array.astype(data_type))
            value = self.hide(value)
        if source == "bool" and data_type == "uint8":
            # Not `convert`: to the kernels bool is uint8, so passes drop the conversion, and later nodes lack a bool.
            result = self.emit("select", value, *(self.constant(bit, data_type) for bit in (1, 0)), data_type=data_type)
        else:
            result = self.emit("convert", value, engine_type(data_type), data_type=data_type)
        if source == "bool":
            self._bools[id(result)] = result, value  # keeps the key's object alive, so that its id is not reused
        return result

    def quotient(self, a: Value, b: Value) -> Value:
        """Emit an exact `a / b`, so that floor(6 / 3) is 2; the engine would replace it by `a * (1 / b)`."""
        # Kernels would fuse the quotient as an epilogue: a product of more than 4 dimensions then fails, and a reduction to
        # [n, 1, 1] divides the first element only.
        if b.array is not None and ((a.rank > 4 and b.array.size > 1) or source_type(a).startswith("Reduce")):
            b = self.hide(b)
        return self.beside_constant("divide", a, b, _EXACT_QUOTIENT)

    def choice(self, condition: Value, a: Value, b: Value) -> Value:
        """Return `a` where the bool `condition` is true, and `b` elsewhere.

        The engine fuses a comparison and a select into a kernel that computes in float32. For integers, a conversion prevents
        the fusion.
        """
        if engine_type(a.data_type) == "i32" and a.data_type not in WIDE:
            number = self.emit("convert", condition, "i32", data_type="int32")
            condition = self.emit("convert", number, "boolean", data_type="bool")
        return self.emit("select", condition, a, b, data_type=a.data_type)

    def hide(self, value: Value) -> Value:
        """Hide a constant from the engine's passes: the engine computes it when it loads the graph.

        The engine computes an element-wise operation in place of its first operand, if this has the shape of the result and
        nothing else reads the operand; also in place of what was computed when the graph was loaded, and then all later runs
        are wrong. So a constant with axes is one of the two outputs of a node, which the engine takes for two readers. One
        of rank 0 must not be the first operand where the result has the shape [] or [1], which are the same to the engine.
        """
        itself = _as_type(value, value.data_type)
        if value.rank:
            (result, _) = self.emit_all("split", self.emit("concat", [itself, itself], 0), self.constant(0), 2)
        else:
            name = "logical_and" if value.data_type == "bool" else "maximum"  # f(x, x) = x, bit for bit
            result = self.emit(name, itself, itself)
        result.output.get_node().get_rt_info()[_NOT_FOLDED] = True
        return result

    def weights(self, value: Value, use: str) -> Value:
        """Return weights for a use; constant ones that have another use, too, are copied.

        The engine reorders weights once for each address and shape: a convolution would get those that were reordered for a
        transposed convolution, and a product by a matrix those of its transpose.
        """
        if value.varies or (address := _address(value)) is None or self._uses.setdefault(address, use) == use:
            return value
        key = id(value), use
        if key not in self._copies:
            copy = self.hide(value) if value.array is None else self.add_constant(value.array.copy())
            self._copies[key] = value, copy  # keeps the key's object alive, so that its id is not reused
        return self._copies[key][1]

    def beside_constant(self, name: str, a: Value, b: Value, info: str = "") -> Value:
        """Emit a non-commutative operation whose left operand may be a constant, which is hidden; `info` marks its node.

        A kernel that fuses the operation as an epilogue computes `f(x) - c` for `c - f(x)`.
        """
        shape = b.shape
        is_number = not (a.varies or a.rank) and tuple(shape) in ((), (1,))
        if is_number:
            a, b = self.reshape(a, [1]), self.reshape(b, [1])
        result = self.emit(name, a if a.varies else self.hide(a), b)
        if info:
            result.output.get_node().get_rt_info()[info] = True
        return self.reshape(result, shape) if is_number else result

    def round_to_float16(self, value: Value) -> Value:
        """Round each element to the nearest float16, ties to even; values from 65520 on become infinite, and -0 stays.

        With m = max(2^13 |x|, 3/4), a unit in the last place of m as float32 is one of |x| as float16, so (|x| - m) + m rounds
        |x|. Two products overflow values beyond float16, and a product with the sign restores it.
        """
        sign = self.emit("clamp", self.emit("multiply", value, self.factor(2.0**30)), -1.0, 1.0)
        # |x| as x * sign, since the kernel of abs overwrites an x that is a concatenation. The product is too small only for
        # |x| < 2^-30, which rounds to 0 anyway.
        magnitude = self.emit("multiply", value, sign)
        wide = self.emit("clamp", self.emit("multiply", magnitude, self.factor(2.0**13)), 0.75, 2.0**30)
        number = self.emit("add", self.emit("subtract", magnitude, wide), wide)
        for factor in (2.0**112, 2.0**-112):
            number = self.emit("multiply", number, self.factor(factor))
        return self.emit("multiply", number, sign)

    def factor(self, value: float) -> Value:
        """Add a factor that the engine neither merges with others nor turns into a multiply-add, which turns -0 into 0."""
        if value not in self._factors:
            self._factors[value] = self.hide(self.constant(value, "float32"))
        return self._factors[value]

    def lane(self, value: Value, number: int) -> Value:
        """Return the lower (0) or upper (1) half of 64-bit integers as int32."""
        axis = self.constant(value.rank)
        return self.emit("gather", value, self.constant(number), axis, data_type="int32")

    def _join_halves(self, low: Value, high: Value, data_type: str) -> Value:
        halves = [self.reshape(half, [*half.shape, 1]) for half in (low, high)]
        return self.emit("concat", halves, low.rank, data_type=data_type)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        if value.shape == tuple(shape):
            return value
        if value.array is not None:
            return self.add_constant(value.array.reshape(shape))
        if not shape:  # a reshape to rank 0 after a product makes the engine end the process
            return self.emit("squeeze", value, self.constant(list(range(value.rank))))
        return self.emit("reshape", value, self.constant([*shape, *lanes(value.data_type)]), False)

    def transpose(self, value: Value, permutation: Sequence[int]) -> Value:
        """Permute the axes of `value` by a reshape if only axes of size 1 move."""
        if list(permutation) == sorted(permutation):
            return value
        shape = value.shape
        longer = [axis for axis in permutation if shape[axis] > 1]
        if longer == sorted(longer):
            return self.reshape(value, [shape[axis] for axis in permutation])
        last = [len(permutation)] if lanes(value.data_type) else []
        return self.emit("transpose", value, self.constant([*permutation, *last]))

    def relayout(self, value: Value, layout: str, target: str) -> Value:
        return value if layout == target else self.transpose(value, [layout.index(letter) for letter in target])

    # For the back end ------------------------------------------------------------------------------------------------

    def add_input(self, desc: Desc) -> Value:
        shape = [*desc.shape, *lanes(desc.data_type)]
        node = operators().parameter(shape, _element_type(desc.data_type))
        self.parameters.append(node)
        if desc.data_type == "float16":
            node = operators().convert(node, engine_type(desc.data_type))
        return Value(node.output(0), desc.data_type, None, desc.shape)

    def convert_output(self, value: Value) -> Value:
        """Convert an output to the data type of its array.

        The engine does not write an input to an output, so an input gets an additional node.
        """
        if value.data_type == "float16":
            return self.emit("convert", value, "f16")
        if value.data_type == "float32" and value.array is not None and _is_subnormal(value.array).any():
            # The engine flushes subnormal constants to 0, and -0 to 0: emit nodes that compute them.
            small = _is_subnormal(value.array)
            others = self.add_constant(np.where(small, np.float32(0), value.array))
            scaled = self.add_constant(np.where(small, value.array, np.float32(0)) * np.float32(2.0**64))
            scaled = self.emit("multiply", scaled, self.factor(2.0**-64))
            return self.emit("select", self.constant(small, "bool"), scaled, others, data_type="float32")
        if value.output.get_node().get_type_name() != "Parameter":
            return value
        return self.emit("convert", value, engine_type(value.data_type))

    def add_constant(self, array: np.ndarray) -> Value:
        data_type = name_of(array.dtype)
        carried = array.astype(np.float32) if data_type == "float16" else array
        contiguous = carried if carried.flags.c_contiguous else np.ascontiguousarray(carried)
        self.arrays.append(contiguous)
        node = engine().op.Constant(tensor(contiguous, name_of(contiguous.dtype)), shared_memory=True)
        return Value(node.output(0), data_type, array, array.shape, varies=False)


def _address(value: Value) -> int | None:
    """The address of the constant whose elements, reshaped or dequantised, are the value."""
    node = value.output.get_node()
    while node.get_type_name() in _VIEWS:
        node = node.input_value(0).get_node()
    return int(node.data.ctypes.data) if node.get_type_name() == "Constant" else None


def _is_subnormal(array: np.ndarray) -> np.ndarray:
    mask: np.ndarray = (array != 0) & (np.abs(array) < np.finfo(np.float32).tiny)
    return mask


def _is_outer(argument: Any) -> bool:
    """Whether an argument is a constant that varies along rows or other axes, but not along the last axis.

    A matrix product that fuses an element-wise operation takes such a constant for one per column.
    """
    is_constant = isinstance(argument, Value) and argument.array is not None
    return is_constant and argument.array.size > 1 and argument.shape[-1] == 1


def _is_matrix(argument: Any) -> bool:
    is_constant = isinstance(argument, Value) and argument.array is not None
    return is_constant and any(size > 1 for size in argument.shape[:-1])


def _is_hidden(argument: Any) -> bool:
    return isinstance(argument, Value) and argument.array is None and not argument.varies


def _is_computed(argument: Any) -> bool:
    """Whether an argument may be computed when the graph is loaded, so that a result must not be computed in its place.

    The outputs of a split are safe, see `hide`; numbers are handled there, too.
    """
    if not (_is_hidden(argument) and argument.rank):
        return False
    node = argument.output.get_node()
    return node.get_type_name() != "Constant" and node.get_output_size() == 1


def _follows(node: Node, matches: Callable[[Node], bool], passes: Callable[[Node], bool], most: int = 4) -> bool:
    """Whether a node matches, or follows a matching node within `most` operations for which `passes` holds."""
    if matches(node):
        return True
    before = [operand.node for operand in node.operands if operand.node is not None and passes(operand.node)]
    return most > 0 and any(_follows(other, matches, passes, most - 1) for other in before)


def _convolves(node: Node) -> bool:
    return node.op in _CONVOLUTIONS or is_composite(node.op, "convolution", "conv_transpose")


def _is_taken(node: Node) -> bool:
    return _convolves(node) or node.op in (*_PRODUCTS, *_TAKEN)


def _as_type(value: Value, data_type: str) -> Value:
    return Value(value.output, data_type, varies=value.varies)


def _varies(argument: Any) -> bool:
    if isinstance(argument, Value):
        return argument.varies
    return isinstance(argument, (list, tuple)) and any(map(_varies, argument))


def source_type(value: Value) -> str:
    """Return the engine's type name of the node that computes a value; reshapes are skipped."""
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
