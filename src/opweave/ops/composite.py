"""Operations beyond the specification: named compositions that an engine with a kernel for them takes whole.

All have decompositions into the specification's operations, for every other engine. They are no methods of a builder, but
called with one: `rms_normalization(builder, x, scale, 1)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..dtypes import FLOATS, DataType
from ..errors import require
from ..graph import Builder, Desc, Operand
from ..operation import Limits, N, op
from ..shapes import broadcast, broadcasts_to
from .reduction import narrowed, widened

if TYPE_CHECKING:
    from . import Operations

BYTES: tuple[DataType, ...] = ("int8", "uint8")


@op(input=Limits(FLOATS, ranks=(4, 4)))
def local_response_normalization(
    self: Builder,
    input: Operand,
    size: int,
    *,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
    label: str = "",
) -> Desc:
    """Divide each element by a power of the sum of squares of its neighbours in nearby channels.

    Args:
        input: float32 or float16 [batches, channels, height, width].
        size: how many neighbours count, the element itself included; of an even number one more after than before it.
        alpha: what the mean of the squares is multiplied with; channels that do not exist count as zeros.
        beta: the power.
        bias: added to the mean before the power is taken.
        label: a name for messages and tables.

    Returns:
        `input / (bias + alpha * mean of squares) ** beta`, in the data type and shape of `input`.

    Raises:
        ValidationError: `size` is 0.
    """
    require(size > 0, f"size must be greater than 0, got {size}")
    return input.desc


@local_response_normalization.decompose
def _(b: Operations, input: Operand, size: int, alpha: float, beta: float, bias: float) -> Operand:
    x = widened(b, input)
    batches, channels, height, width = x.shape
    before, after = (size - 1) // 2, size // 2
    squares = b.reshape(x * x, [batches, 1, channels, height * width])
    # The mean counts zeros around the channels, as poolings do not with padding of their own.
    padded = b.pad(squares, [0, 0, before, 0], [0, 0, after, 0])
    mean = b.reshape(b.average_pool2d(padded, window_dimensions=[size, 1]), x.shape)
    return narrowed(b, x / b.pow(mean * alpha + bias, b.as_operand(beta, "float32")), input)


@op(input=Limits(FLOATS, ranks=(1, N)), scale=Limits("input", ranks=(1, N)))
def rms_normalization(
    self: Builder, input: Operand, scale: Operand, axis: int, *, epsilon: float = 1e-5, label: str = ""
) -> Desc:
    """Divide `input` by its root mean square along the axes from `axis` on.

    Args:
        input: float32 or float16, rank 1 or more.
        scale: what the result is multiplied with, of the sizes of these axes.
        axis: the first of the axes to average over, in [0, rank).
        epsilon: added to the mean square, so that nothing is divided by zero.
        label: a name for messages and tables.

    Returns:
        `scale * input / sqrt(mean of input ** 2 + epsilon)`, in the data type and shape of `input`.

    Raises:
        ValidationError: there is no such axis, or `scale` does not have the sizes of the axes.
    """
    require(axis < input.rank, f"axis must be in [0, {input.rank}), got {axis}")
    wanted = input.shape[axis:]
    require(scale.shape == wanted, f"scale must have shape {list(wanted)}, the sizes of the axes, got {scale.desc}")
    return input.desc


@rms_normalization.decompose
def _(b: Operations, input: Operand, scale: Operand, axis: int, epsilon: float) -> Operand:
    x = widened(b, input)
    mean = b.reduce_mean(x * x, axes=list(range(axis, x.rank)), keep_dimensions=True)
    return narrowed(b, x / b.sqrt(mean + epsilon) * widened(b, scale), input)


@op(input=Limits(FLOATS, ranks=(1, N)))
def log_softmax(self: Builder, input: Operand, axis: int, *, label: str = "") -> Desc:
    """Compute the logarithm of the softmax along `axis`, exact also where the softmax itself is too small for its type.

    Args:
        input: float32 or float16, rank 1 or more.
        axis: the axis that the exponentials are summed along, in [0, rank).
        label: a name for messages and tables.

    Returns:
        `x - log(sum of exp(x))`, where x is `input` minus its maximum, in the data type and shape of `input`.

    Raises:
        ValidationError: there is no such axis.
    """
    require(axis < input.rank, f"axis must be in [0, {input.rank}), got {axis}")
    return input.desc


@log_softmax.decompose
def _(b: Operations, input: Operand, axis: int) -> Operand:
    # Without the maximum, the logarithm would eat up the digits of large numbers.
    centred = widened(b, input - b.reduce_max(input, axes=[axis], keep_dimensions=True))
    # In three steps: engines have slow kernels for the logarithm of a sum of exponentials, which look for a maximum again.
    total = b.reduce_sum(b.exp(centred), axes=[axis], keep_dimensions=True)
    return narrowed(b, centred - b.log(total), input)


@op(input=Limits(FLOATS, ranks=(0, N)))
def thresholded_relu(self: Builder, input: Operand, *, alpha: float = 1.0, label: str = "") -> Desc:
    """Replace by 0 what is not greater than `alpha`.

    Args:
        input: float32 or float16.
        alpha: the threshold.
        label: a name for messages and tables.

    Returns:
        `input` where it is greater than `alpha`, else 0 (also for NaN), in the data type and shape of `input`.
    """
    return input.desc


@thresholded_relu.decompose
def _(b: Operations, input: Operand, alpha: float) -> Operand:
    threshold, zero = (b.as_operand(number, input.data_type) for number in (alpha, 0))
    return b.where(b.greater(input, threshold), input, zero)


@op(
    a=Limits(BYTES, ranks=(2, N)),
    b=Limits(BYTES, ranks=(2, N)),
    a_zero_point=Limits("a"),
    b_zero_point=Limits("b"),
    output=Limits(("int32",), ranks=(2, N)),
)
def integer_matmul(
    self: Builder, a: Operand, b: Operand, a_zero_point: Operand, b_zero_point: Operand, *, label: str = ""
) -> Desc:
    """Multiply matrices of 8-bit integers, or stacks of them, exactly.

    Args:
        a: int8 or uint8 [..., rows, inner].
        b: int8 or uint8 [..., inner, columns]; the leading dimensions of both broadcast to each other.
        a_zero_point: subtracted from `a` before, in a shape that broadcasts to it.
        b_zero_point: subtracted from `b` before, in a shape that broadcasts to it.
        label: a name for messages and tables.

    Returns:
        An int32 operand [..., rows, columns].

    Raises:
        ValidationError: shapes that do not fit.
    """
    fits = a.shape[-1] == b.shape[-2]
    require(fits, f"the last dimension of a must be the last but one of b, got {a.desc} and {b.desc}")
    for name, zero_point, operand in (("a", a_zero_point, a), ("b", b_zero_point, b)):
        stretched = broadcasts_to(zero_point.shape, operand.shape)
        require(stretched, f"{name}_zero_point must broadcast to {operand.desc}, got {zero_point.desc}")
    batches = broadcast(a.shape[:-2], b.shape[:-2], names="the stacks a and b")
    return Desc("int32", (*batches, a.shape[-2], b.shape[-1]))


EXACT_TERMS = 2**24 // 255**2
"""So many products of differences of bytes have a sum that float32 holds, and all sums on the way to it."""


@integer_matmul.decompose
def _(builder: Operations, a: Operand, b: Operand, a_zero_point: Operand, b_zero_point: Operand) -> Operand:
    """Sums of as many products as are exact in float32, added up as integers."""
    x, y = (
        builder.cast(operand, "float32") - builder.cast(zero_point, "float32")
        for operand, zero_point in ((a, a_zero_point), (b, b_zero_point))
    )
    total = None
    for start in range(0, x.shape[-1], EXACT_TERMS):
        count = min(EXACT_TERMS, x.shape[-1] - start)
        columns = builder.slice(x, [*[0] * (x.rank - 1), start], [*x.shape[:-1], count])
        rows = builder.slice(y, [*[0] * (y.rank - 2), start, 0], [*y.shape[:-2], count, y.shape[-1]])
        part = builder.cast(builder.matmul(columns, rows), "int32")
        total = part if total is None else total + part
    assert total is not None  # no dimension is 0
    return total
