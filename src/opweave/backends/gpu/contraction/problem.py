"""Contractions as matrix products.

result[stack, row, column] = sum over term of left[stack, row, term] * right[stack, column, term], with
term = tap * channels + channel. A term of integers is a word of four int8, and its product the sum of four products. A matrix
product has one tap. If columns are contiguous in the result, tiles are stored as vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import numpy as np

from ....core.graph import Desc
from ....core.guards import is_multiple_here
from ....core.shapes import broadcast, conv_size
from ....core.sizes import Dimension, Size, is_multiple, is_same_shape, is_same_size, may_exceed
from ....expr.ir import Input
from ..constants import GpuConstant
from .parameters import LITERALS, KernelNumbers
from .quantized import Quantized


@dataclass(frozen=True, slots=True)
class View:
    """A strided view of an array in memory, with permuted axes, for example; a stride of 0 repeats elements."""

    source: Input
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, source: Input) -> View:
        return cls(source, source.desc.shape, strides_of(source.desc.shape))

    @property
    def is_plain(self) -> bool:
        pairs = zip(self.strides, strides_of(self.shape), self.shape, strict=True)
        return all(is_same_size(stride, plain) for stride, plain, size in pairs if may_exceed(size, 1))


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand with a linear address for each (stack, line, tap, channel).

    Lines are rows of the left matrix, or columns of the right matrix; the stride of channels is `step`.

    Attributes:
        stack: (size, stride) of each axis of the stacks, fastest last; a stride of 0 broadcasts.
        rest: remainders of the elements for TF32x3, if `source` holds the TF32 parts.
        quantized: the meaning of the numbers in `source`, if elements have few bits. Strides count numbers.
        is_widened: whether `source` has floats of 16 bits whose elements count as float32: kernels convert them in registers.
    """

    source: Input
    lines: int
    stride: int
    step: int
    tap: int = 0
    stack: tuple[tuple[int, int], ...] = ()
    rest: Input | None = None
    quantized: Quantized | None = None
    is_widened: bool = False

    @property
    def buffers(self) -> tuple[Input, ...]:
        """All arrays that the elements are computed from."""
        rest = () if self.rest is None else (self.rest,)
        return (self.source, *rest, *(() if self.quantized is None else self.quantized.buffers))

    def with_inputs(self, inputs: Mapping[Any, Any]) -> Matrix:
        """The same matrix in other arrays; arrays that `inputs` lacks are kept."""
        quantized = self.quantized
        if quantized is not None:
            arrays: dict[str, Any] = {name: inputs.get(array, array) for name, array in quantized.arrays.items()}
            quantized = replace(quantized, **arrays)
        rest = self.rest and inputs.get(self.rest, self.rest)
        return replace(self, source=inputs.get(self.source, self.source), rest=rest, quantized=quantized)

    @property
    def own_axes(self) -> list[tuple[int, int]]:
        """(size, stride) of the stack axes that do not broadcast."""
        return [(size, stride) for size, stride in self.stack if _is_own(size, stride)]

    def stack_in(self, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """The stack in a new contiguous array, whose shape begins with the sizes of `own_axes`."""
        strides = iter(strides_of(shape))
        return tuple((size, next(strides) if _is_own(size, stride) else 0) for size, stride in self.stack)


@dataclass(frozen=True, slots=True)
class ProblemWindow:
    """An image read through the windows of a convolution. Its lines are the positions (batch, *axes) of the result.

    The tuples have a number for each spatial axis: [width], [height, width] or [depth, height, width].

    Attributes:
        size: sizes of the image.
        output: sizes of the result.
        batch: stride of the images.
        pixel: stride of the pixels.
        step: stride of the channels.
        kernel: sizes of the window.
        before: padding before the first pixel.
        transposed: whether the convolution is transposed.
        inside: whether all windows are inside the image.
        stack: as in `Matrix`.
    """

    source: Input
    size: tuple[int, ...]
    output: tuple[int, ...]
    batches: int
    batch: int
    pixel: int
    step: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    transposed: bool
    inside: bool
    stack: tuple[tuple[int, int], ...] = ()

    @property
    def lines(self) -> int:
        return self.batches * prod(self.output)

    @property
    def buffers(self) -> tuple[Input, ...]:
        return (self.source,)


def _is_own(size: int, stride: int) -> bool:
    """Whether an axis of a stack does not broadcast."""
    return not is_same_size(stride, 0) and may_exceed(size, 1)


def data_type_of(side: Matrix | ProblemWindow) -> str:
    """The data type of the elements of an operand."""
    if isinstance(side, Matrix) and side.quantized is not None:
        return side.quantized.data_type
    if isinstance(side, Matrix) and side.is_widened:
        return "float32"
    return side.source.desc.data_type


def is_float32(side: Matrix | ProblemWindow) -> bool:
    """Whether an operand is float32. An operand that was rounded to a smaller type before the product is not."""
    return data_type_of(side) == "float32"


@dataclass(frozen=True, slots=True)
class OperandLayout:
    """The memory layout of the result of a contraction.

    Attributes:
        kind: "matrix" [..., rows, columns]; a layout like "nchw" or "ncdhw" (rows are channels, columns are positions), or
            like "nhwc" (the reverse).
        spread: distance between positions of one phase along each spatial axis. Each phase is a separate stack.
        shift: offset of the first position of the result.
        grid: positions of a phase along each spatial axis; some may be outside the result.
        inner: for kind "matrix", the number of stacks between rows and columns, as in [..., rows, inner, columns], such as the
            heads of a token; 0 for none. `shape` may split the axes of stacks and rows.
    """

    kind: str
    shape: tuple[int, ...]
    spread: tuple[int, ...] = ()
    shift: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    inner: int = 0

    @property
    def size(self) -> tuple[int, ...]:
        """The size of each spatial axis."""
        return self.shape[2:] if has_channels_first(self.kind) else self.shape[1:-1]

    @property
    def pixels(self) -> int:
        return prod(self.size)

    @property
    def phases(self) -> int:
        return prod(self.spread)


@dataclass(frozen=True, slots=True)
class Problem:
    """A contraction: result[stack, row, column] = sum over taps and channels of left * right."""

    left: Matrix | ProblemWindow
    right: Matrix | ProblemWindow
    stacks: int
    rows: int
    columns: int
    taps: int
    channels: int
    layout: OperandLayout

    @property
    def terms(self) -> int:
        return self.taps * self.channels

    @property
    def is_integer(self) -> bool:
        """Whether the operands are words of four int8, and the sums int32."""
        return self.left.source.desc.data_type == "uint32"

    @property
    def sums(self) -> Literal["float32", "int32"]:
        """The data type of the sums."""
        return "int32" if self.is_integer else "float32"

    @property
    def sum_type(self) -> str:
        """The type of a sum as text."""
        return "i32" if self.is_integer else "f32"

    def is_multiple(self, size: Dimension, divisor: int) -> bool:
        """Whether kernels may count on a multiple: of pixels also if names are aligned in this run, as images often are."""
        return is_multiple(size, divisor) if self.layout.kind == "matrix" else is_multiple_here(size, divisor)

    @property
    def rows_are_channels(self) -> bool:
        """Whether rows are output channels and columns are positions; else the reverse."""
        return has_channels_first(self.layout.kind)

    @property
    def filter(self) -> Matrix:
        side = self.left if self.rows_are_channels else self.right
        assert isinstance(side, Matrix)
        return side

    @property
    def image(self) -> Matrix | ProblemWindow:
        return self.right if self.rows_are_channels else self.left

    @property
    def outputs(self) -> int:
        return self.rows if self.rows_are_channels else self.columns

    def with_inputs(self, inputs: Mapping[Any, Any]) -> Problem:
        """The same problem with other arrays; arrays that `inputs` lacks are kept."""
        left, right = (
            side.with_inputs(inputs)
            if isinstance(side, Matrix)
            else replace(side, source=inputs.get(side.source, side.source))
            for side in (self.left, self.right)
        )
        return replace(self, left=left, right=right)

    def with_sides(self, filter: Matrix, image: Matrix | ProblemWindow) -> Problem:
        left, right = (filter, image) if self.rows_are_channels else (image, filter)
        return replace(self, left=left, right=right)

    def with_rows_before(self, inner: int, shape: Sequence[int]) -> Problem:
        """The same products with `inner` stacks behind each row, [..., rows, inner, columns], reshaped to `shape`."""
        return replace(self, layout=replace(self.layout, shape=tuple(shape), inner=inner))

    @property
    def contiguous(self) -> bool:
        """Whether each aligned group of four columns is contiguous and aligned in the result."""
        if self.layout.phases > 1:
            return False
        if self.rows_are_channels:
            return is_multiple_here(self.layout.pixels, 4)
        width = self.columns if self.layout.kind == "matrix" else self.columns * self.stacks
        return is_multiple(self.columns, 4) and is_multiple(width, 4)

    @property
    def groups(self) -> int:
        return self.stacks // self.layout.phases

    def comment(self, numbers: KernelNumbers) -> str:
        """The sizes as text without names, so that kernels that differ only in names are compiled once."""
        stacks, rows, columns, terms = map(numbers.number, (self.stacks, self.rows, self.columns, self.terms))
        times = f"{stacks} times " if may_exceed(self.stacks, 1) else ""
        return f"{times}{rows} x {columns}, sums of {terms}"

    def exists(self, stack: str, row: str, column: str, numbers: KernelNumbers = LITERALS) -> str:
        """The condition that an element is inside the result, as text; empty if bounds of rows and columns suffice."""
        # Unsigned: negative positions wrap to large ones.
        limits = self.limits(stack, row, column, numbers)
        return " && ".join(f"{at} < {numbers.unsigned(size)}" for at, size in limits)

    def limits(self, stack: str, row: str, column: str, numbers: KernelNumbers = LITERALS) -> list[tuple[str, int]]:
        """Positions (as text, with the size of the axis) that may be outside even if row and column are inside."""
        if self.layout.phases == 1:
            return []
        at = self._places(stack, row, column, numbers)
        return [(at[axis], size) for axis, size in zip(spatial_axes(self.layout.kind), self.layout.size, strict=True)]

    def _places(self, stack: str, row: str, column: str, numbers: KernelNumbers) -> dict[str, str]:
        """The position along each axis of a convolution's result, as text, by letter of the layout."""
        layout, groups = self.layout, self.groups
        position, channel = (column, row) if self.rows_are_channels else (row, column)
        sizes = layout.size if layout.phases == 1 else layout.grid
        is_single, unsigned, divisor = is_same_size(layout.shape[0], 1), numbers.unsigned, numbers.divisor
        batch = "0u" if is_single else f"{position} / {divisor(prod(sizes))}"
        places = unravel(position, sizes, is_single, divisor)
        if may_exceed(groups, 1):
            group = stack if layout.phases == 1 else f"{stack} % {divisor(groups)}"
            channel = f"({group} * {unsigned(self.outputs)} + {channel})"
        if layout.phases > 1:
            phase = f"{stack} / {divisor(groups)}" if may_exceed(groups, 1) else stack
            offsets = unravel(phase, layout.spread, True)
            places = [
                f"({place} * {step}u + {offset} - {unsigned(first)})"
                for place, step, offset, first in zip(places, layout.spread, offsets, layout.shift, strict=True)
            ]
        return {"n": batch, "c": channel, **dict(zip(spatial_axes(layout.kind), places, strict=True))}

    def flat_index(self, stack: str, row: str, column: str, numbers: KernelNumbers = LITERALS) -> str:
        layout, unsigned = self.layout, numbers.unsigned
        if layout.kind == "matrix" and layout.inner:
            inner = layout.inner
            line = f"({stack} / {inner}u * {unsigned(self.rows)} + {row}) * {inner}u + {stack} % {inner}u"
            return f"({line}) * {unsigned(self.columns)} + {column}"
        if layout.kind == "matrix":
            at = f"{row} * {unsigned(self.columns)} + {column}"
            is_single = not may_exceed(self.stacks, 1)
            return at if is_single else f"{stack} * {unsigned(self.rows * self.columns)} + {at}"
        channels, pixels = self.groups * self.outputs, layout.pixels
        places = self._places(stack, row, column, numbers)
        batch, channel = places["n"], places["c"]
        position = column if self.rows_are_channels else row
        if layout.phases > 1:
            axes = spatial_axes(layout.kind)
            pixel = ravel([places[axis] for axis in axes], list(map(unsigned, layout.size)))
            position = pixel if batch == "0u" else f"{batch} * {unsigned(pixels)} + {pixel}"
        else:
            pixel = position if batch == "0u" else f"{position} % {numbers.divisor(pixels)}"
        if not self.rows_are_channels:
            return f"({position}) * {unsigned(channels)} + {channel}"
        line = channel if batch == "0u" else f"({batch} * {unsigned(channels)} + {channel})"
        return f"{line} * {unsigned(pixels)} + {pixel}"

    def axes(self, stack: str, row: str, column: str, numbers: KernelNumbers = LITERALS) -> list[str]:
        """The position along each axis of the result, as text."""
        layout = self.layout
        if layout.kind != "matrix":
            places = self._places(stack, row, column, numbers)
            return [places[letter] for letter in layout.kind]
        unsigned = numbers.unsigned
        if layout.inner:
            return unravel(f"({self.flat_index(stack, row, column, numbers)})", layout.shape, True, unsigned)
        if len(layout.shape) == 2:
            return [row, column]
        line = f"({stack} * {unsigned(self.rows)} + {row})" if may_exceed(self.stacks, 1) else row
        sizes = zip(strides_of(layout.shape[:-1]), layout.shape[:-1], strict=True)
        lines = (
            "0u" if is_same_size(n, 1) else f"{line} / {numbers.divisor(s)} % {numbers.divisor(n)}" for s, n in sizes
        )
        return [*lines, column]


def has_few_columns(problem: Problem) -> bool:
    """Whether the columns are the few vectors of a GEMV: the smaller side, or the only one that has no name."""
    if isinstance(problem.rows, Size) or isinstance(problem.columns, Size):
        return isinstance(problem.columns, int)
    return problem.columns < problem.rows


def has_channels_first(layout: str) -> bool:
    return layout.startswith("nc")


def spatial_axes(layout: str) -> str:
    """The spatial axes of a layout: "hw" of "nchw" and "nhwc"."""
    return layout.replace("n", "").replace("c", "")


def unravel(
    position: str, sizes: Sequence[int], is_bounded: bool, number: Callable[[Dimension], str] = LITERALS.divisor
) -> list[str]:
    """Split a position into one for each axis of `sizes`, as text.

    The first is not reduced if `is_bounded`: the position is less than the product of the sizes. `number` writes the sizes.

    >>> unravel("p", (2, 3, 4), True)
    ['p / 12u', 'p / 4u % 3u', 'p % 4u']
    """
    texts = []
    for axis, (size, below) in enumerate(zip(sizes, strides_of(tuple(sizes)), strict=True)):
        is_last = axis == len(sizes) - 1
        text = position if is_last else f"{position} / {number(below)}"
        is_whole = is_bounded and axis == 0 and not is_last
        texts.append(text if is_whole else f"{text} % {number(size)}")
    return texts


def ravel(positions: Sequence[str], sizes: Sequence[int | str]) -> str:
    """The inverse of `unravel`.

    >>> ravel(["z", "y", "x"], (2, 3, 4))
    '(z * 3 + y) * 4 + x'
    """
    text, *others = positions
    for axis, (position, size) in enumerate(zip(others, sizes[1:], strict=True)):
        text = f"{f'({text})' if axis else text} * {size} + {position}"
    return text


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def strided_view(array: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """A read-only view of an array with a different shape and strides, in elements."""
    flat = np.ascontiguousarray(array).reshape(-1)
    steps = [stride * array.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(flat, shape, steps, writeable=False)


def product(a: View, b: View, a_transpose: bool = False, b_transpose: bool = False) -> Problem:
    """The problem of `matmul` or `gemm`, for matrices or broadcasting stacks of matrices."""
    m, k = a.shape[-2:][:: -1 if a_transpose else 1]
    terms, n = b.shape[-2:][:: -1 if b_transpose else 1]
    k = k if isinstance(k, int) else terms  # equal in a run; a number if one of them is
    stack = broadcast(a.shape[:-2], b.shape[:-2])
    layout = OperandLayout("matrix", (*stack, m, n))
    (row, term), (depth, column) = a.strides[-2:], b.strides[-2:]
    if a_transpose:
        row, term = term, row
    if b_transpose:
        depth, column = column, depth
    left = Matrix(a.source, m, row, term, stack=_stack(a, stack))
    right = Matrix(b.source, n, column, depth, stack=_stack(b, stack))
    is_whole = is_same_size(prod(a.shape[:-2]), prod(stack)) and a.is_plain
    if stack and is_whole and all(is_same_size(stride, 0) for _, stride in right.stack):
        rows = m * prod(stack)  # all stacks share the right matrix: merge them into one taller left matrix
        return Problem(Matrix(a.source, rows, k, 1), replace(right, stack=()), 1, rows, n, 1, k, layout)
    return Problem(left, right, prod(stack), m, n, 1, k, layout)


def _stack(view: View, stack: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    own, strides = view.shape[:-2], view.strides[:-2]
    sizes = zip(own, strides, stack[len(stack) - len(own) :], strict=True)
    steps = (0 if _is_repeated(size, whole) else stride for size, stride, whole in sizes)
    padded = (0,) * (len(stack) - len(own)) + tuple(steps)
    return tuple(zip(stack, padded, strict=True))


def _is_repeated(size: int, whole: int) -> bool:
    """Whether an axis of size 1 broadcasts. If its size is that of the result, its stride is right for size 1, too."""
    return (isinstance(size, int) or not is_same_size(size, whole)) and size == 1


def convolution(
    image: Input,
    filter: Input,
    *,
    input_layout: str,
    filter_layout: str,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    output_sizes: Sequence[int] | None = None,
) -> Problem:
    sizes = dict(zip(input_layout, image.desc.shape, strict=True))
    steps = dict(zip(input_layout, strides_of(image.desc.shape), strict=True))
    taps = dict(zip(filter_layout, filter.desc.shape, strict=True))
    inner = dict(zip(filter_layout, strides_of(filter.desc.shape), strict=True))
    is_transposed = output_sizes is not None
    axes = spatial_axes(input_layout)
    windows = list(zip(axes, padding[::2], padding[1::2], strides, dilations, strict=True))
    output = tuple(output_sizes or (conv_size(sizes[axis], taps[axis], *rest) for axis, *rest in windows))
    strides, dilations, groups = tuple(map(int, strides)), tuple(map(int, dilations)), int(groups)
    # Groups divide the input channels of transposed filters, and the output channels of others.
    channels = sizes["c"] // groups
    if not isinstance(channels, int):
        channels = taps["i"] // groups if is_transposed else taps["i"]  # equal in a run
    outputs = taps["o"] if is_transposed else taps["o"] // groups
    group = channels * inner["i"] if is_transposed else outputs * inner["o"]
    weights = Matrix(filter, outputs, inner["o"], inner["i"], inner["w"], ((groups, group),))
    size, kernel = tuple(sizes[axis] for axis in axes), tuple(int(taps[axis]) for axis in axes)
    stack = ((groups, channels * steps["c"]),)
    pixels: Matrix | ProblemWindow
    is_padded = not all(is_same_size(number, 0) for number in padding)
    is_plain = max(*kernel, *strides) == 1 and not is_padded and is_same_shape(size, output)
    if is_plain and (is_same_size(sizes["n"], 1) or not has_channels_first(input_layout)):
        pixels = Matrix(image, sizes["n"] * prod(size), steps["w"], steps["c"], stack=stack)
    else:
        pixels = ProblemWindow(
            image,
            size,
            output=output,
            batches=sizes["n"],
            batch=steps["n"],
            pixel=steps["w"],
            step=steps["c"],
            kernel=kernel,
            strides=strides,
            dilations=dilations,
            before=tuple(padding[::2]),
            transposed=is_transposed,
            inside=not is_transposed and not is_padded,
            stack=stack,
        )
    shape = {"n": sizes["n"], "c": outputs * groups, **dict(zip(axes, output, strict=True))}
    layout = OperandLayout(input_layout, tuple(shape[letter] for letter in input_layout))
    a, b = (weights, pixels) if has_channels_first(input_layout) else (pixels, weights)
    return Problem(a, b, groups, a.lines, b.lines, prod(kernel), channels, layout)


def is_spread(problem: Problem) -> bool:
    """Whether this is a strided transposed convolution, most of whose taps multiply padding."""
    image = problem.image
    return (
        isinstance(image, ProblemWindow) and image.transposed and max(image.strides) > 1 and max(image.dilations) == 1
    )


def divide_by_phases(problem: Problem, constant: GpuConstant) -> tuple[Problem, Input, GpuConstant]:
    """Divide a strided transposed convolution by phases into convolutions without strides, with a new filter.

    The phase of a position is position % strides. All positions of a phase use the same taps.
    """
    filter, image = problem.filter, problem.image
    assert isinstance(image, ProblemWindow)
    kernel, steps = image.kernel, image.strides
    taps = tuple(-(-size // step) for size, step in zip(kernel, steps, strict=True))
    sizes = zip(problem.layout.size, steps, image.before, strict=True)
    grid = tuple((size - 1 + pad) // step - pad // step + 1 for size, step, pad in sizes)
    phases, groups, channels, lines = prod(steps), problem.stacks, problem.channels, filter.lines
    padded = -(-lines // 4) * 4
    shape = (phases, groups, prod(taps), channels, padded)
    strides = strides_of(shape)
    source = Input(filter.source.number, Desc(filter.source.desc.data_type, shape))
    weights_matrix = Matrix(source, padded, 1, padded, strides[2], ((phases, strides[0]), (groups, strides[1])))
    spread = replace(
        image,
        output=grid,
        kernel=taps,
        strides=(1,) * len(steps),
        before=tuple(pad // step for pad, step in zip(image.before, steps, strict=True)),
        stack=((phases, 0), *image.stack),
    )
    shift = tuple(pad % step for pad, step in zip(image.before, steps, strict=True))
    layout = replace(problem.layout, spread=steps, shift=shift, grid=grid)
    group = filter.stack[0][1] if groups > 1 else 0
    filter_strides = (group, *(below * filter.tap for below in strides_of(kernel)), filter.step, filter.stride)
    weights = constant.then(_in_phases, (groups, *kernel, channels, lines), filter_strides, steps, taps, padded)
    # The filter's lines are padded; the problem has only the real channels.
    rows, columns = (lines, spread.lines) if problem.rows_are_channels else (spread.lines, lines)
    whole = replace(problem, stacks=phases * groups, rows=rows, columns=columns, taps=prod(taps), layout=layout)
    return whole.with_sides(weights_matrix, spread), source, weights


def _in_phases(
    array: np.ndarray,
    sizes: tuple[int, ...],
    steps: tuple[int, ...],
    strides: tuple[int, ...],
    taps: tuple[int, ...],
    padded: int,
) -> np.ndarray:
    """The filter of each phase, with lines padded by zeros to `padded`.

    `sizes` and `steps` (in elements) belong to the filter's axes [groups, *kernel, channels, lines].
    """
    groups, *kernel, channels, lines = sizes
    source = strided_view(array, sizes, steps)
    result = np.zeros((*strides, groups, *taps, channels, padded), array.dtype)
    for tap in np.ndindex(*kernel):
        pairs = list(zip(tap, strides, strict=True))
        phase, place = (at % step for at, step in pairs), (at // step for at, step in pairs)
        result[(*phase, slice(None), *place, slice(None), slice(lines))] = source[(slice(None), *tap)]
    return result.reshape(prod(strides), groups, prod(taps), channels, padded)
