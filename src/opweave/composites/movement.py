"""Rearrange channels into pixels and back; crop and pad around the centre."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..core.dtypes import ANY
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N
from ..core.sizes import Size
from ..support.errors import require
from .declare import check_axes, declare

if TYPE_CHECKING:
    from ..ops import Operations


@declare(input=Limits(ANY, ranks=(4, 4)))
def depth_to_space(
    self: Builder, input: Operand, block_size: int, *, mode: Literal["dcr", "crd"] = "dcr", label: str = ""
) -> Desc:
    """Rearrange channels into blocks of pixels; with `mode="crd"`, this is PyTorch's pixel shuffle.

    Args:
        input: any data type [batches, channels * block_size ** 2, height, width].
        block_size: the height and width of a block.
        mode: how channels are counted: "dcr" by place in the block and then by channel, "crd" by channel and then by place.

    Returns: An operand of the data type of `input` [batches, channels, height * block_size, width * block_size].
    Raises: the channels do not divide into blocks.

    ONNX's DepthToSpace; Shi et al., Real-Time Single Image and Video Super-Resolution (2016), arXiv:1609.05158.

    >>> depth_to_space(np.float32([1, 2, 3, 4]).reshape(1, 4, 1, 1), 2).tolist()
    [[[[1.0, 2.0], [3.0, 4.0]]]]
    """
    require(block_size > 0, f"block_size must be greater than 0, got {block_size}")
    batches, channels, height, width = input.shape
    depth, remainder = divmod(channels, block_size**2)
    require(not remainder, f"channels must be a multiple of {block_size**2}, block_size squared, got {input.desc}")
    return Desc(input.data_type, (batches, depth, height * block_size, width * block_size))


@depth_to_space.decompose
def _(b: Operations, input: Operand, block_size: int, mode: str) -> Operand:
    batches, channels, height, width = input.shape
    depth = channels // block_size**2
    letters = {"n": batches, "d": block_size, "e": block_size, "c": depth, "h": height, "w": width}
    layout = "ndechw" if mode == "dcr" else "ncdehw"
    x = b.reshape(input, [letters[letter] for letter in layout])
    x = b.transpose(x, permutation=[layout.index(letter) for letter in "nchdwe"])
    return b.reshape(x, [batches, depth, height * block_size, width * block_size])


@declare(input=Limits(ANY, ranks=(4, 4)))
def space_to_depth(self: Builder, input: Operand, block_size: int, *, label: str = "") -> Desc:
    """Rearrange blocks of pixels into channels: the inverse of `depth_to_space`.

    Args:
        input: any data type [batches, channels, height * block_size, width * block_size].
        block_size: the height and width of a block.

    Returns: An operand of the data type of `input` [batches, channels * block_size ** 2, height, width]; channels count
        by place in the block and then by channel.
    Raises: height or width do not divide into blocks.

    ONNX's SpaceToDepth.

    >>> space_to_depth(np.float32([[[[1, 2], [3, 4]]]]), 2).ravel().tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    require(block_size > 0, f"block_size must be greater than 0, got {block_size}")
    batches, channels, height, width = input.shape
    fits = height % block_size == 0 and width % block_size == 0
    require(fits, f"height and width must be multiples of {block_size}, the block_size, got {input.desc}")
    return Desc(input.data_type, (batches, channels * block_size**2, height // block_size, width // block_size))


@space_to_depth.decompose
def _(b: Operations, input: Operand, block_size: int) -> Operand:
    batches, channels, height, width = input.shape
    rows, columns = height // block_size, width // block_size
    x = b.reshape(input, [batches, channels, rows, block_size, columns, block_size])
    x = b.transpose(x, permutation=[0, 3, 5, 1, 2, 4])
    return b.reshape(x, [batches, channels * block_size**2, rows, columns])


@declare(input=Limits(ANY, ranks=(1, N)))
def center_crop_pad(
    self: Builder, input: Operand, sizes: Sequence[int], *, axes: Sequence[int] | None = None, label: str = ""
) -> Desc:
    """Keep the centre of larger axes, and add zeros around smaller ones.

    Where the difference is odd, one more element is cut off or added at the end.

    Args:
        sizes: the new size of each of `axes`.
        axes: different integers in [0, rank). Default: all.

    Returns: An operand of the data type and rank of `input`.
    Raises: `axes` out of range, or a size that is not in [1, 2**31).

    ONNX's CenterCropPad.

    >>> center_crop_pad(np.float32([[1, 2, 3, 4], [5, 6, 7, 8]]), [3, 2]).tolist()
    [[2.0, 3.0], [6.0, 7.0], [0.0, 0.0]]
    """
    along = check_axes(input.rank, axes)
    is_list = isinstance(sizes, tuple) and all(isinstance(size, (int, np.integer, Size)) for size in sizes)
    fits = is_list and len(sizes) == len(along) and all(size >= 1 for size in sizes)
    require(fits, f"sizes must be {len(along)} positive integers, one for each axis, got {sizes}")
    shape: list[Any] = list(input.shape)
    for axis, size in zip(along, sizes, strict=True):
        require(isinstance(size, Size) or size < 2**31, f"sizes must be less than 2**31, got {size} for axis {axis}")
        shape[axis] = size
    return Desc(input.data_type, tuple(shape))


@center_crop_pad.decompose
def _(b: Operations, input: Operand, sizes: Sequence[int], axes: Sequence[int] | None) -> Operand:
    starts, kept = [0] * input.rank, list(input.shape)
    before, after = [0] * input.rank, [0] * input.rank
    for axis, size in zip(check_axes(input.rank, axes), sizes, strict=True):
        old = input.shape[axis]
        if size <= old:
            starts[axis], kept[axis] = (old - size) // 2, size
        else:
            before[axis] = (size - old) // 2
            after[axis] = size - old - before[axis]
    x = b.slice(input, starts, kept)
    if all(isinstance(size, int) and not size for size in (*before, *after)):
        return x
    return b.pad(x, before, after)
