"""Contractions as products of matrices: which element of an operand stands at line x, term k.

A result [stacks, rows, columns] is the sum over terms of an element of the left matrix, at (row, term), times one of the
right matrix, at (column, term). Terms are counted tap by tap: term = tap * channels + channel, where a matrix product has
one tap. Where columns (of the last axis) are contiguous in the result, tiles are written in whole vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from ....expr.ir import Input
from ....graph import Desc


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand whose element at (line, tap, channel) of a stack is a sum of strides.

    Attributes:
        source: the operand.
        lines: rows of the left, columns of the right matrix.
        stride: from one line to the next.
        step: from one channel to the next.
        tap: from one tap to the next.
        stack: for each axis of the stacks, fastest last: (how many, stride); a stride of 0 broadcasts.
    """

    source: Input
    lines: int
    stride: int
    step: int
    tap: int = 0
    stack: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Window:
    """An image seen through the windows of a convolution: its lines are the positions (batch, y, x) of the result.

    Attributes:
        source: the operand.
        size: height and width of the image.
        output: height and width of the result.
        batches: number of images.
        batch: stride from one image to the next.
        pixel: stride from one pixel to the next.
        step: stride from one channel to the next.
        kernel: height and width of the window.
        strides: of the window, or of the spreading where it is transposed.
        dilations: of the window.
        before: padding at the top and at the left.
        transposed: whether elements are spread instead of gathered (conv_transpose2d).
        inside: whether no window reaches beyond the image.
        stack: as of a `Matrix`.
    """

    source: Input
    size: tuple[int, int]
    output: tuple[int, int]
    batches: int
    batch: int
    pixel: int
    step: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    before: tuple[int, int]
    transposed: bool
    inside: bool
    stack: tuple[tuple[int, int], ...] = ()

    @property
    def lines(self) -> int:
        """Positions of the result, over all images."""
        return self.batches * prod(self.output)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a result of a contraction lies.

    Attributes:
        kind: "matrix" [..., rows, columns]; "nchw" (rows are channels, columns are positions); "nhwc" (the other way round).
        shape: of the result.
    """

    kind: str
    shape: tuple[int, ...]

    @property
    def pixels(self) -> int:
        """Positions of one image."""
        height, width = self.shape[2:] if self.kind == "nchw" else self.shape[1:3]
        return height * width


@dataclass(frozen=True, slots=True)
class Problem:
    """A contraction: result[stack, row, column] = sum over taps and channels of left * right."""

    left: Matrix | Window
    right: Matrix | Window
    stacks: int
    rows: int
    columns: int
    taps: int
    channels: int
    layout: Layout

    @property
    def terms(self) -> int:
        """How many products are summed up for an element."""
        return self.taps * self.channels

    @property
    def contiguous(self) -> bool:
        """Whether four neighbouring columns, from a multiple of 4 on, are neighbours in the result, aligned."""
        if self.layout.kind == "nchw":
            return self.layout.pixels % 4 == 0
        width = self.columns * self.stacks if self.layout.kind == "nhwc" else self.columns
        return self.columns % 4 == 0 and width % 4 == 0

    def flat(self, stack: str, row: str, column: str) -> str:
        """The position in the result, as text."""
        layout = self.layout
        if layout.kind == "matrix":
            at = f"{row} * {self.columns}u + {column}"
            return f"{stack} * {self.rows * self.columns}u + {at}" if self.stacks > 1 else at
        channels = self.stacks * (self.rows if layout.kind == "nchw" else self.columns)
        if layout.kind == "nhwc":
            channel = f"{stack} * {self.columns}u + {column}" if self.stacks > 1 else column
            return f"{row} * {channels}u + {channel}"
        channel = f"{stack} * {self.rows}u + {row}" if self.stacks > 1 else row
        if layout.shape[0] == 1:
            return f"({channel}) * {layout.pixels}u + {column}"
        batch, pixel = f"{column} / {layout.pixels}u", f"{column} % {layout.pixels}u"
        return f"({batch} * {channels}u + {channel}) * {layout.pixels}u + {pixel}"

    def axes(self, stack: str, row: str, column: str) -> list[str]:
        """The position along each axis of the result, as text."""
        layout = self.layout
        if layout.kind == "matrix":
            if len(layout.shape) == 2:
                return [row, column]
            line = f"({stack} * {self.rows}u + {row})" if self.stacks > 1 else row
            below = strides_of(layout.shape[:-1])
            sizes = zip(below, layout.shape[:-1], strict=True)
            return [*("0u" if n == 1 else f"{line} / {s}u % {n}u" for s, n in sizes), column]
        position, channel = (column, row) if layout.kind == "nchw" else (row, column)
        per_stack = self.rows if layout.kind == "nchw" else self.columns
        height, width = layout.shape[2:] if layout.kind == "nchw" else layout.shape[1:3]
        channel = f"{stack} * {per_stack}u + {channel}" if self.stacks > 1 else channel
        batch = f"{position} / {height * width}u" if layout.shape[0] > 1 else "0u"
        y = f"({position} / {width}u) % {height}u" if layout.shape[0] > 1 else f"{position} / {width}u"
        x = f"{position} % {width}u"
        return [batch, channel, y, x] if layout.kind == "nchw" else [batch, y, x, channel]


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The C-contiguous strides of a shape, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def product(a: Input, b: Input, shape: tuple[int, ...], a_transpose: bool, b_transpose: bool) -> Problem:
    """`matmul` and `gemm`: matrices, or stacks of them that broadcast."""
    m, k = a.desc.shape[-2:][:: -1 if a_transpose else 1]
    n = b.desc.shape[-2:][0 if b_transpose else 1]
    stack = shape[:-2]
    left = Matrix(a, m, *((1, m) if a_transpose else (k, 1)), stack=_stack(a.desc, stack))
    right = Matrix(b, n, *((k, 1) if b_transpose else (1, n)), stack=_stack(b.desc, stack))
    if stack and all(stride == 0 for _, stride in right.stack) and left.stack == _whole(a.desc, stack):
        rows = m * prod(stack)  # the same right matrix for all: one product of a taller matrix
        tall = Matrix(a, rows, k, 1)
        flat = Matrix(b, n, right.stride, right.step)
        return Problem(tall, flat, 1, rows, n, 1, k, Layout("matrix", shape))
    return Problem(left, right, prod(stack), m, n, 1, k, Layout("matrix", shape))


def _stack(desc: Desc, stack: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    own = desc.shape[:-2]
    strides = strides_of(desc.shape)[:-2]
    padded = (0,) * (len(stack) - len(own)) + tuple(0 if n == 1 else s for n, s in zip(own, strides, strict=True))
    return tuple(zip(stack, padded, strict=True))


def _whole(desc: Desc, stack: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The stack of an operand that has a matrix for each."""
    matrix = prod(desc.shape[-2:])
    return tuple((n, 0 if n == 1 else s * matrix) for n, s in zip(stack, strides_of(stack), strict=True))


def window(
    image: Input, filter: Input, shape: tuple[int, ...], arguments: Mapping[str, Any], *, transposed: bool
) -> Problem:
    """`conv2d` and `conv_transpose2d`: positions times channels, in the order of the layout."""
    layout, filter_layout, groups = arguments["input_layout"], arguments["filter_layout"], arguments["groups"]
    sizes = dict(zip(layout, image.desc.shape, strict=True))
    strides = dict(zip(layout, strides_of(image.desc.shape), strict=True))
    result = dict(zip(layout, shape, strict=True))
    taps = dict(zip(filter_layout, filter.desc.shape, strict=True))
    inner = dict(zip(filter_layout, strides_of(filter.desc.shape), strict=True))
    channels, outputs = sizes["c"] // groups, result["c"] // groups
    top, bottom, left, right = arguments["padding"]
    kernel, steps, spaces = (taps["h"], taps["w"]), tuple(arguments["strides"]), tuple(arguments["dilations"])
    # Transposed filters are divided into groups by their input channels, others by their output channels.
    group = channels * inner["i"] if transposed else outputs * inner["o"]
    weights = Matrix(filter, outputs, inner["o"], inner["i"], inner["w"], ((groups, group),))
    plain = kernel == (1, 1) and steps == (1, 1) and not any((top, bottom, left, right)) and sizes["n"] == result["n"]
    pixels: Matrix | Window
    if plain and (sizes["n"] == 1 or layout == "nhwc") and (sizes["h"], sizes["w"]) == (result["h"], result["w"]):
        pixels = Matrix(
            image,
            sizes["n"] * sizes["h"] * sizes["w"],
            strides["w"],
            strides["c"],
            stack=((groups, channels * strides["c"]),),
        )
    else:
        pixels = Window(
            image,
            (sizes["h"], sizes["w"]),
            (result["h"], result["w"]),
            sizes["n"],
            strides["n"],
            strides["w"],
            strides["c"],
            kernel,
            steps,
            spaces,
            (top, left),
            transposed,
            not transposed and not any((top, bottom, left, right)),
            ((groups, channels * strides["c"]),),
        )
    a, b = (weights, pixels) if layout == "nchw" else (pixels, weights)
    return Problem(a, b, groups, a.lines, b.lines, prod(kernel), channels, Layout(layout, shape))
