"""Operations on the bits of integers, and the bits of numbers as another data type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.dtypes import ANY, INFO, DataType
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits
from ..core.shapes import broadcast
from ..expr import bitcast
from ..expr.array import Traced
from ..expr.integers import divide_by_power, multiply_by_power
from ..expr.vocabulary import INTEGERS
from ..ops.constants import constant
from ..support.errors import require
from .declare import declare

if TYPE_CHECKING:
    from ..ops import Operations

_PAIR = {"a": Limits(INTEGERS), "b": Limits("a")}


@declare(**_PAIR)
def bitwise_and(self: Builder, a: Operand, b: Operand, *, label: str = "") -> Desc:
    """Combine the bits of two integers: 1 where both bits are 1.

    Args:
        b: the data type of `a`; `a` and `b` broadcast to each other.

    Returns: An operand of the data type of `a` and the broadcast shape.
    Raises: the data types differ, or the shapes do not broadcast.

    ONNX's BitwiseAnd.

    >>> bitwise_and(np.int32([5, 6]), np.int32([3, 3])).tolist()
    [1, 2]
    """
    return Desc(a.data_type, broadcast(a.shape, b.shape))


@bitwise_and.expression
def _(a: Traced, b: Traced) -> Traced:
    return a & b


@declare(**_PAIR)
def bitwise_or(self: Builder, a: Operand, b: Operand, *, label: str = "") -> Desc:
    """Combine the bits of two integers: 1 where one of the bits is 1.

    Args:
        b: the data type of `a`; `a` and `b` broadcast to each other.

    Returns: An operand of the data type of `a` and the broadcast shape.
    Raises: the data types differ, or the shapes do not broadcast.

    ONNX's BitwiseOr.

    >>> bitwise_or(np.int32([5, 6]), np.int32([3, 3])).tolist()
    [7, 7]
    """
    return Desc(a.data_type, broadcast(a.shape, b.shape))


@bitwise_or.expression
def _(a: Traced, b: Traced) -> Traced:
    return a | b


@declare(**_PAIR)
def bitwise_xor(self: Builder, a: Operand, b: Operand, *, label: str = "") -> Desc:
    """Combine the bits of two integers: 1 where exactly one of the bits is 1.

    Args:
        b: the data type of `a`; `a` and `b` broadcast to each other.

    Returns: An operand of the data type of `a` and the broadcast shape.
    Raises: the data types differ, or the shapes do not broadcast.

    ONNX's BitwiseXor.

    >>> bitwise_xor(np.int32([5, 6]), np.int32([3, 3])).tolist()
    [6, 5]
    """
    return Desc(a.data_type, broadcast(a.shape, b.shape))


@bitwise_xor.expression
def _(a: Traced, b: Traced) -> Traced:
    return a ^ b


@declare(input=Limits(INTEGERS))
def bitwise_not(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Invert all bits of each integer.

    Returns: An operand of the data type and shape of `input`: `-1 - input` for signed integers.

    ONNX's BitwiseNot.

    >>> bitwise_not(np.int32([0, 5])).tolist()
    [-1, -6]
    """
    return input.desc


@bitwise_not.expression
def _(input: Traced) -> Traced:
    return ~input


@bitwise_not.decompose
def _(b: Operations, input: Operand) -> Operand:
    info = INFO[input.data_type]
    return constant(b, info.highest if info.kind == "u" else -1, input.data_type) - input


@declare(**_PAIR)
def shift_left(self: Builder, a: Operand, b: Operand, *, label: str = "") -> Desc:
    """Shift the bits of `a` to the left by `b`: `a * 2**b`, without the bits beyond the data type.

    Args:
        b: the number of bits, of the data type of `a`; `a` and `b` broadcast to each other.

    Returns: An operand of the data type of `a` and the broadcast shape. Shifts by the width of the data type or more, and by
        negative numbers, give 0.
    Raises: the data types differ, or the shapes do not broadcast.

    ONNX's BitShift with direction="LEFT".

    >>> shift_left(np.uint8([1, 3, 255]), np.uint8([2, 2, 8])).tolist()
    [4, 12, 0]
    """
    return Desc(a.data_type, broadcast(a.shape, b.shape))


@shift_left.expression
def _(a: Traced, b: Traced) -> Traced:
    return a << b


@shift_left.decompose
def _(builder: Operations, a: Operand, b: Operand) -> Operand:
    return multiply_by_power(builder, a, b)


@declare(**_PAIR)
def shift_right(self: Builder, a: Operand, b: Operand, *, label: str = "") -> Desc:
    """Shift the bits of `a` to the right by `b`: `a / 2**b`, rounded down. The sign is kept.

    Args:
        b: the number of bits, of the data type of `a`; `a` and `b` broadcast to each other.

    Returns: An operand of the data type of `a` and the broadcast shape. Shifts by the width of the data type or more, and by
        negative numbers, give 0, or -1 for negative `a`.
    Raises: the data types differ, or the shapes do not broadcast.

    ONNX's BitShift with direction="RIGHT".

    >>> shift_right(np.int32([8, -8, -8]), np.int32([2, 2, 32])).tolist()
    [2, -2, -1]
    """
    return Desc(a.data_type, broadcast(a.shape, b.shape))


@shift_right.expression
def _(a: Traced, b: Traced) -> Traced:
    return a >> b


@shift_right.decompose
def _(builder: Operations, a: Operand, b: Operand) -> Operand:
    return divide_by_power(builder, a, b)


@declare(input=Limits(ANY), output=Limits(ANY, ranks="input"))
def bit_cast(self: Builder, input: Operand, data_type: DataType, *, label: str = "") -> Desc:
    """Reinterpret the bits of each element as another data type of the same width.

    Args:
        data_type: a data type with as many bits as that of `input`.

    Returns: An operand of this data type and of the shape of `input`. Devices may change the bits of a NaN that the graph
        computes, and may flush computed denormal numbers to 0.
    Raises: the widths differ.

    ONNX's BitCast.

    >>> bit_cast(np.float32([1, -0.0]), "uint32").tolist()
    [1065353216, 2147483648]
    """
    bits, target = INFO[input.data_type].bits, INFO[data_type].bits
    require(bits == target, f"the data types must have the same width, got {input.desc} and {data_type}")
    return Desc(data_type, input.shape)


@bit_cast.expression
def _(input: Traced, *, data_type: Any) -> Traced:
    return input if input.data_type == data_type else bitcast(input, data_type)
