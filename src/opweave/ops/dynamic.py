"""Operations of a draft for sizes that are known only when a graph runs.

They follow the explainer of September 2026 (https://github.com/webmachinelearning/webnn/issues/883). Operands that give sizes
are computed on the host by a shape chain (see `chains`). Each operation is decomposed into a static one with the numbers of a
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.conversion import Number
from ..core.dtypes import ANY, FLOATS, INTEGERS
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N, Op, op
from ..core.shapes import check_axes
from ..core.size_functions import larger
from ..core.sizes import Size
from ..support.errors import require
from .constants import constant
from .convolution import InterpolationMode, resample2d
from .movement import MAX_TENSORS, PaddingMode, expand, pad, reshape, slice, split, tile

if TYPE_CHECKING:
    from .operations import Operations

VECTOR = Limits(INTEGERS, ranks=(1, 1))
"""The limits of operands that give sizes."""

MAX_UNSIGNED = 2**32 - 1
"""The largest number of an attribute, which is an `unsigned long` of Web IDL."""


def _values(name: str, operand: Operand) -> list[Any]:
    """The values of an operand that gives sizes: integers, or formulas while the graph is built."""
    from .chains import values_of  # imported late, because few graphs need it

    return values_of(name, operand)


def _sizes(name: str, operand: Operand) -> tuple[Any, ...]:
    """The values of an operand, which must not be negative, and at most those that static operations take."""
    values = _values(name, operand)
    require(all(value >= 0 for value in values), f"{name} must not be negative, got {values}")
    # A run has numbers: formulas need no decision.
    fits = all(isinstance(value, Size) or value <= MAX_UNSIGNED for value in values)
    require(fits, f"{name} must be at most {MAX_UNSIGNED}, got {values}")
    return tuple(values)


def _mirror(operation: Op[..., Any], builder: Builder, *arguments: Any, **options: Any) -> Desc:
    """The result of the static operation with these sizes."""
    desc: Desc = operation.function(builder, *arguments, **options)
    return desc


@op(input=Limits(ANY, ranks=(1, N)), output=Limits(("uint32",), ranks=(1, 1)))
def shape(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Return the shape of `input` as a vector.

    Args:
        input: any data type, rank 1 or more.

    Returns: An operand of uint32, [rank of `input`].
    Raises: `input` is a scalar.

    https://github.com/webmachinelearning/webnn/issues/883

    >>> import numpy as np, opweave as ow
    >>> context = ow.ml.create_context(device="reference", drafts=True)
    >>> builder = ow.MLGraphBuilder(context)
    >>> x = builder.input("x", "float32", ["n", 3])
    >>> graph = builder.build({"y": builder.shape(x)})
    >>> context.compute(graph, {"x": np.ones((5, 3), "float32")})["y"].tolist()
    [5, 3]
    """
    return Desc("uint32", (input.rank,))


@shape.decompose
def _(b: Operations, input: Operand) -> Operand:
    return constant(b, input.shape, "uint32")


_SCALAR = Limits("start", ranks=(0, 0))


@op(start=Limits(INTEGERS, ranks=(0, 0)), limit=_SCALAR, delta=_SCALAR, output=Limits("start", ranks=(1, 1)))
def range(self: Builder, start: Operand, limit: Operand, delta: Operand, *, label: str = "") -> Desc:
    """Count from `start` in steps of `delta`, before `limit`.

    Args:
        start: the first value: a scalar of int32, uint32, int64, uint64, int8 or uint8, which is computed from shapes
            and constants.
        limit: the end, which is excluded: a scalar of the data type of `start`, computed in the same way.
        delta: the step, positive or negative: a scalar of the data type of `start`, computed in the same way.

    Returns: An operand of the data type of `start`, [ceil((limit - start) / delta)].
    Raises: `delta` is 0, or an operand is computed from data.

    https://github.com/webmachinelearning/webnn/issues/883

    >>> import numpy as np, opweave as ow
    >>> context = ow.ml.create_context(device="reference", drafts=True)
    >>> builder = ow.MLGraphBuilder(context)
    >>> x = builder.input("x", "float32", ["n"])
    >>> positions = builder.range(0, builder.squeeze(builder.shape(x)), 2)
    >>> graph = builder.build({"y": positions})
    >>> positions.shape, context.compute(graph, {"x": np.ones(5, "float32")})["y"].tolist()
    ((-((-n) // 2),), [0, 2, 4])
    """
    *_, step = _bounds(start, limit, delta)
    require(step != 0, "delta must not be 0")
    return Desc(start.data_type, (length_of_range(start, limit, delta),))


def _bounds(start: Operand, limit: Operand, delta: Operand) -> tuple[Any, ...]:
    operands = {"start": start, "limit": limit, "delta": delta}
    return tuple(_values(name, operand)[0] for name, operand in operands.items())


def length_of_range(start: Operand, limit: Operand, delta: Operand) -> Any:
    """The number of values of `range`, which may depend on sizes."""
    first, end, step = _bounds(start, limit, delta)
    return larger(-((first - end) // step), 0)


@range.decompose
def _(b: Operations, start: Operand, limit: Operand, delta: Operand) -> Operand:
    first, _, step = _bounds(start, limit, delta)
    numbers = np.arange(length_of_range(start, limit, delta)).astype(start.data_type)
    return constant(b, numbers * np.array(step, start.data_type) + np.array(first, start.data_type), start.data_type)


@op(input=Limits(ANY), output=Limits("input", ranks=(0, N)))
def squeeze(self: Builder, input: Operand, *, axes: Sequence[int] | None = None, label: str = "") -> Desc:
    """Remove dimensions of size 1.

    Args:
        axes: different axes in [0, rank), of size 1; default: all of size 1. Dimensions that are known only when the graph
            runs stay by default, and must not be 1 then.

    Returns: An operand of the data type of `input`, without these dimensions.
    Raises: an axis out of range or named twice, or a size that is not 1.

    https://github.com/webmachinelearning/webnn/issues/883

    >>> import opweave as ow
    >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
    >>> x = builder.input("x", "float32", [1, "n", 1, 3])
    >>> builder.squeeze(x).shape, builder.squeeze(x, axes=[2]).shape
    ((n, 3), (1, n, 3))
    """
    return Desc(input.data_type, _squeezed_shape(input, axes))


def _squeezed_shape(input: Operand, axes: Sequence[int] | None) -> tuple[int, ...]:
    if axes is None:
        return tuple(size for size in input.shape if isinstance(size, Size) or size != 1)
    check_axes(axes, input.rank)
    require(all(input.shape[axis] == 1 for axis in axes), f"axes must have size 1, got {list(axes)} of {input.desc}")
    return tuple(size for axis, size in enumerate(input.shape) if axis not in axes)


@squeeze.decompose
def _(b: Operations, input: Operand, axes: Sequence[int] | None) -> Operand:
    return b.reshape(input, _squeezed_shape(input, axes))


@op(input=Limits(ANY), output=Limits("input", ranks=(0, N)))
def unsqueeze(self: Builder, input: Operand, axes: Sequence[int], *, label: str = "") -> Desc:
    """Insert dimensions of size 1.

    Args:
        axes: the places of the new dimensions in the result, different and in [0, rank of the result).

    Returns: An operand of the data type of `input`, with more dimensions.
    Raises: an axis out of range or named twice, or a rank above 8.

    https://github.com/webmachinelearning/webnn/issues/883

    >>> import opweave as ow
    >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
    >>> builder.unsqueeze(builder.input("x", "float32", ["n", 3]), [0, 3]).shape
    (1, n, 3, 1)
    """
    return Desc(input.data_type, _unsqueezed_shape(input, axes))


def _unsqueezed_shape(input: Operand, axes: Sequence[int]) -> tuple[int, ...]:
    check_axes(axes, input.rank + len(axes))
    result = list(input.shape)
    for axis in sorted(axes):
        result.insert(axis, 1)
    return tuple(result)


@unsqueeze.decompose
def _(b: Operations, input: Operand, axes: Sequence[int]) -> Operand:
    return b.reshape(input, _unsqueezed_shape(input, axes))


@op(input=Limits(ANY), output=Limits("input", ranks=(2, 2)))
def reshape_to_2d(self: Builder, input: Operand, *, axis: int = 1, label: str = "") -> Desc:
    """Flatten `input` into a matrix.

    Args:
        axis: in [0, rank]: the dimensions before it become the rows, the others the columns.

    Returns: An operand of the data type of `input` and rank 2; a side without dimensions has size 1.
    Raises: an axis out of range.

    https://github.com/webmachinelearning/webnn/issues/883

    >>> import opweave as ow
    >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
    >>> builder.reshape_to_2d(builder.input("x", "float32", ["n", 3, 4])).shape
    (n, 12)
    """
    require(axis <= input.rank, f"axis must be in [0, {input.rank}], got {axis}")
    return Desc(input.data_type, (prod(input.shape[:axis]), prod(input.shape[axis:])))


@reshape_to_2d.decompose
def _(b: Operations, input: Operand, axis: int) -> Operand:
    return b.reshape(input, [prod(input.shape[:axis]), prod(input.shape[axis:])])


@op(input=Limits(ANY), new_shape=VECTOR, output=Limits("input", ranks=(0, N)))
def reshape_dynamic(self: Builder, input: Operand, new_shape: Operand, *, label: str = "") -> Desc:
    """Change the shape of `input` as `reshape` does, to a shape that the graph computes.

    Args:
        new_shape: int32, uint32, int64, uint64, int8 or uint8 [rank], with the same number of elements, which is
            computed from shapes and constants.

    Returns: An operand of the data type of `input` and the shape `new_shape`.
    Raises: `new_shape` has a different number of elements, or is computed from data.

    https://github.com/webmachinelearning/webnn/issues/883

    >>> import numpy as np, opweave as ow
    >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
    >>> x = builder.input("x", "float32", ["n", 2, 3])
    >>> rows = builder.slice(builder.shape(x), [0], [1])
    >>> builder.reshape_dynamic(x, builder.concat([rows, np.uint32([6])], 0)).shape
    (n, 6)
    """
    return _mirror(reshape, self, input, _sizes("new_shape", new_shape))


@reshape_dynamic.decompose
def _(b: Operations, input: Operand, new_shape: Operand) -> Operand:
    return b.reshape(input, _sizes("new_shape", new_shape))


@op(input=Limits(ANY), new_shape=VECTOR, output=Limits("input", ranks=(0, N)))
def expand_dynamic(self: Builder, input: Operand, new_shape: Operand, *, label: str = "") -> Desc:
    """Broadcast `input` as `expand` does, to a shape that the graph computes.

    Args:
        new_shape: int32, uint32, int64, uint64, int8 or uint8 [rank], which is computed from shapes and constants.

    Returns: An operand of the data type of `input` and the shape `new_shape`.
    Raises: `input` cannot be broadcast to `new_shape`, or `new_shape` is computed from data.

    https://github.com/webmachinelearning/webnn/issues/883

    >>> import numpy as np, opweave as ow
    >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
    >>> x = builder.input("x", "float32", ["n", 3])
    >>> builder.expand_dynamic(np.float32([[1]]), builder.shape(x)).shape
    (n, 3)
    """
    return _mirror(expand, self, input, _sizes("new_shape", new_shape))


@expand_dynamic.decompose
def _(b: Operations, input: Operand, new_shape: Operand) -> Operand:
    return b.expand(input, _sizes("new_shape", new_shape))


@op(input=Limits(ANY), starts=VECTOR, sizes=VECTOR)
def slice_dynamic(
    self: Builder,
    input: Operand,
    starts: Operand,
    sizes: Operand,
    *,
    strides: Sequence[int] | None = None,
    label: str = "",
) -> Desc:
    """Extract a window of `input` as `slice` does, at a place that the graph computes.

    Args:
        starts: int32, uint32, int64, uint64, int8 or uint8 [rank]: the first element of the window in each
            dimension, which is computed from shapes and constants.
        sizes: int32, uint32, int64, uint64, int8 or uint8 [rank]: the size of the window in each dimension, before
            the stride is applied, computed in the same way.
        strides: the step through the window in each dimension, from 1; default: all 1.

    Returns: An operand of the data type of `input`, of ceil(size / stride) elements in each dimension.
    Raises: not one value for each dimension, strides of 0, a window that ends outside of `input`, or operands
        that are computed from data.

    https://github.com/webmachinelearning/webnn/issues/883

    >>> import numpy as np, opweave as ow
    >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
    >>> x = builder.input("x", "float32", ["n"])
    >>> builder.slice_dynamic(x, np.uint32([0]), builder.shape(x) / np.uint32([2])).shape
    (n // 2,)
    """
    places = _sizes("starts", starts), _sizes("sizes", sizes)
    return _mirror(slice, self, input, *places, strides=strides)


@slice_dynamic.default("strides")
def _(input: Operand) -> tuple[int, ...]:
    return (1,) * input.rank


@slice_dynamic.decompose
def _(b: Operations, input: Operand, starts: Operand, sizes: Operand, strides: Sequence[int]) -> Operand:
    return b.slice(input, _sizes("starts", starts), _sizes("sizes", sizes), strides=strides)


@op(input=Limits(ANY), beginning_padding=VECTOR, ending_padding=VECTOR)
def pad_dynamic(
    self: Builder,
    input: Operand,
    beginning_padding: Operand,
    ending_padding: Operand,
    *,
    mode: PaddingMode = "constant",
    value: Number = 0,
    label: str = "",
) -> Desc:
    """Add elements around `input` as `pad` does, as many as the graph computes.

    Args:
        beginning_padding: int32, uint32, int64, uint64, int8 or uint8 [rank]: number of elements to add at the
            beginning of each dimension, which is computed from shapes and constants.
        ending_padding: int32, uint32, int64, uint64, int8 or uint8 [rank]: number of elements to add at the end of
            each dimension, computed in the same way.
        mode: what to add: "constant" adds `value`, "edge" repeats the first and last element of the dimension,
            "reflection" mirrors the elements next to the first and last.
        value: the added elements in mode "constant", rounded and clamped to the data type of `input`.

    Returns: An operand of the data type of `input`, of size beginning padding + size + ending padding in each dimension.
    Raises: not one padding for each dimension, a reflection of more elements than there are, or operands that are computed
        from data.

    https://github.com/webmachinelearning/webnn/issues/883

    >>> import numpy as np, opweave as ow
    >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
    >>> x = builder.input("x", "float32", ["n"])
    >>> rest = builder.modulus_floor(builder.neg(builder.cast(builder.shape(x), "int32")), np.int32([4]))
    >>> builder.pad_dynamic(x, np.int32([0]), rest).shape  # the next multiple of 4
    (-4*((-n) // 4),)
    """
    paddings = _sizes("beginning_padding", beginning_padding), _sizes("ending_padding", ending_padding)
    return _mirror(pad, self, input, *paddings, mode=mode, value=value)


pad_dynamic.cast("value", like="input")


@pad_dynamic.decompose
def _(
    b: Operations, input: Operand, beginning_padding: Operand, ending_padding: Operand, mode: PaddingMode, value: Number
) -> Operand:
    paddings = _sizes("beginning_padding", beginning_padding), _sizes("ending_padding", ending_padding)
    return b.pad(input, *paddings, mode=mode, value=value)


@op(input=Limits(ANY, ranks=(1, N)), splits=VECTOR, outputs=Limits("input", ranks="input"))
def split_dynamic(
    self: Builder, input: Operand, splits: Operand, *, axis: int = 0, label: str = ""
) -> tuple[Desc, ...]:
    """Split `input` along `axis` as `split` does, into parts of sizes that the graph computes.

    Args:
        splits: int32, uint32, int64, uint64, int8 or uint8 [parts]: the size of each of at most 8192 parts, which is
            computed from shapes and constants.

    Returns: The parts in order, in the data type and rank of `input`.
    Raises: an axis out of range, too many parts, parts that do not make up `input`, or splits that are computed from data.

    https://github.com/webmachinelearning/webnn/issues/883

    >>> import numpy as np, opweave as ow
    >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
    >>> x = builder.input("x", "float32", ["n"])
    >>> rest = builder.shape(x) - np.uint32([2])
    >>> [part.shape for part in builder.split_dynamic(x, builder.concat([np.uint32([2]), rest], 0))]
    [(2,), (n - 2,)]
    """
    count = splits.shape[0]
    require(isinstance(count, Size) or count <= MAX_TENSORS, f"splits must make 1 to {MAX_TENSORS} parts, got {count}")
    parts: tuple[Desc, ...] = split.function(self, input, _sizes("splits", splits), axis=axis)
    return parts


@split_dynamic.decompose
def _(b: Operations, input: Operand, splits: Operand, axis: int) -> tuple[Operand, ...]:
    return b.split(input, _sizes("splits", splits), axis=axis)


@op(input=Limits((*FLOATS, "uint8", "int8"), ranks=(4, 4)), sizes=VECTOR)
def resample2d_dynamic(
    self: Builder,
    input: Operand,
    sizes: Operand,
    *,
    mode: InterpolationMode = "nearest-neighbor",
    axes: Sequence[int] = (2, 3),
    label: str = "",
) -> Desc:
    """Resize two axes by interpolation as `resample2d` does, to sizes that the graph computes.

    Args:
        input: float32, float16, uint8 or int8 of rank 4.
        sizes: int32, uint32, int64, uint64, int8 or uint8 [axes]: the new size of each of `axes`, which is computed
            from shapes and constants.
        mode: "nearest-neighbor" (the lower element at a tie), or "linear" between four neighbours; integers are rounded
            to nearest, ties to even.
        axes: the two axes, in the order of `sizes`.

    Returns: An operand of the data type and shape of `input`, except along `axes`.
    Raises: not two sizes greater than 0, an axis out of range or named twice, or sizes that are computed from data.

    https://github.com/webmachinelearning/webnn/issues/883

    >>> import numpy as np, opweave as ow
    >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
    >>> x = builder.input("x", "float32", [1, 3, "h", "w"])
    >>> double = builder.slice(builder.shape(x), [2], [2]) * np.uint32([2])
    >>> builder.resample2d_dynamic(x, double).shape
    (1, 3, 2*h, 2*w)
    """
    return _mirror(resample2d, self, input, mode=mode, sizes=_sizes("sizes", sizes), axes=axes)


@resample2d_dynamic.decompose
def _(b: Operations, input: Operand, sizes: Operand, mode: InterpolationMode, axes: Sequence[int]) -> Operand:
    return b.resample2d(input, mode=mode, sizes=_sizes("sizes", sizes), axes=axes)


@op(input=Limits(ANY), repetitions=VECTOR)
def tile_dynamic(self: Builder, input: Operand, repetitions: Operand, *, label: str = "") -> Desc:
    """Repeat `input` along each dimension as `tile` does, as often as the graph computes.

    Args:
        repetitions: int32, uint32, int64, uint64, int8 or uint8 [rank]: number of repetitions of each dimension,
            which is computed from shapes and constants.

    Returns: An operand of the data type of `input`, of size * repetitions elements in each dimension.
    Raises: not one repetition for each dimension, or repetitions that are computed from data.

    https://github.com/webmachinelearning/webnn/issues/883

    >>> import numpy as np, opweave as ow
    >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
    >>> x = builder.input("x", "float32", ["n"])
    >>> builder.tile_dynamic(np.float32([[1, 2]]), builder.concat([builder.shape(x), np.uint32([1])], 0)).shape
    (n, 2)
    """
    return _mirror(tile, self, input, _sizes("repetitions", repetitions))


@tile_dynamic.decompose
def _(b: Operations, input: Operand, repetitions: Operand) -> Operand:
    return b.tile(input, _sizes("repetitions", repetitions))


shape.size_operands = frozenset({"input"})
range.size_operands = frozenset(range.operands)
for _op in (
    reshape_dynamic,
    expand_dynamic,
    slice_dynamic,
    pad_dynamic,
    split_dynamic,
    resample2d_dynamic,
    tile_dynamic,
):
    _op.size_operands = frozenset(_op.operands) - {"input"}
