"""Kernels for convolutions with few output channels, whose tiles would be mostly empty.

Each element of the image is read about once, so memory bandwidth limits these kernels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....core.guards import estimate
from ....core.sizes import is_static
from ....expr.gpu.dialect import Part
from ....expr.gpu.writing import workgroup_number
from .elements import ElementReader
from .parameters import KernelNumbers
from .problem import Matrix, Problem, ProblemWindow, is_spread, unravel
from .text import entry, quarter, return_if, stack_offset, statement, window_start, window_tap

# For an NVIDIA H200; `python -m benchmarks webgpu gpu` lists the kernel that each contraction has, and its time.
MAX_NARROW_CHANNELS = 8
"""The largest number of output channels of a group; with more, tiles are faster."""
MAX_UNGROUPED_CHANNELS = 4
"""The largest number of output channels of a single group, whose filter all invocations read."""
INVOCATIONS = 256
MAX_SERIAL_CHANNELS = 1 << 14
"""The largest number of channels in an invocation's loop. Tiles divide more channels, and some devices abort longer loops."""
MAX_UNROLLED_PRODUCTS = 256
"""The largest number of products to unroll in an invocation; with more, the kernel loops over channels."""
MIN_UNGROUPED_POSITIONS = 1 << 17
"""Fewest positions of a single group that keep a device busy with one invocation per position."""


def is_narrow(problem: Problem) -> bool:
    """Whether a convolution has so few output channels that tiles would be mostly empty."""
    if problem.is_integer or problem.layout.kind == "matrix" or problem.layout.phases > 1:
        return False
    outputs = problem.outputs
    if not is_static((problem.stacks, outputs, problem.channels)):
        return False
    positions = estimate(problem.rows * problem.columns // outputs)
    if problem.taps * outputs > MAX_UNROLLED_PRODUCTS or problem.channels > MAX_SERIAL_CHANNELS:
        return False
    if problem.stacks > 1:
        return outputs <= MAX_NARROW_CHANNELS
    return outputs <= MAX_UNGROUPED_CHANNELS and positions >= MIN_UNGROUPED_POSITIONS and not is_spread(problem)


def narrow(
    problem: Problem, a: ElementReader, b: ElementReader, numbers: KernelNumbers
) -> tuple[list[Part], tuple[int, int, int]]:
    """The entry point and its dispatch size. An invocation computes the output channels of a group at one position.

    In depthwise convolutions with contiguous channels, an invocation computes four groups.
    """
    layout, nchw = problem.layout, problem.rows_are_channels
    image, filter, outputs, pixels = problem.image, problem.filter, problem.outputs, layout.pixels
    x, w = (b, a) if nchw else (a, b)
    width = 4 if not nchw and _in_vectors(problem, image, filter) else 1
    x.width = w.width = width
    units = problem.stacks // width
    total, unsigned, divisor = layout.shape[0] * units * pixels, numbers.unsigned, numbers.divisor
    number, groups = workgroup_number(-(-total // INVOCATIONS), unsigned=unsigned)
    of_pixels, of_image = divisor(pixels), divisor(pixels * units)
    if nchw:
        stack, pixel, batch = f"at / {of_pixels} % {units}u", f"at % {of_pixels}", f"at / {of_image}"
    else:
        stack, pixel, batch = f"at % {units}u", f"at / {units}u % {of_pixels}", f"at / {of_image}"
    loop = problem.channels * problem.taps * outputs > MAX_UNROLLED_PRODUCTS
    channels = [None] if loop else range(problem.channels)
    products = [line for c in channels for line in _taps(problem, x, w, c, numbers)]
    lines = [
        f"let at = {number} * {INVOCATIONS}u + lane;",
        *return_if(f"at >= {unsigned(total)}"),
        f"let stack = {stack}{f' * {width}u' if width > 1 else ''};",
        f"let pixel = {pixel};",
        f"let batch = {batch};",
        f"let weights = {stack_offset(filter, 'stack', problem.stacks, numbers)};",
        *_origin(image, problem, numbers),
        *(f"var sum_{k} = {'vec4<f32>()' if width > 1 else '0.0f'};" for k in range(outputs)),
        *(statement(f"for (var c = 0u; c < {problem.channels}u; c++)", products) if loop else products),
        *_put_groups(f"batch * {unsigned(pixels)} + pixel", nchw, outputs, width),
    ]
    return [entry(INVOCATIONS, lines)], groups


def _in_vectors(problem: Problem, image: Matrix | ProblemWindow, filter: Matrix) -> bool:
    """Whether four groups, of one channel each, are contiguous in the image and in the filter."""
    single = problem.columns == problem.channels == 1 and problem.stacks % 4 == 0
    strides = isinstance(image, ProblemWindow) and image.stack[0][1] == filter.stack[0][1] == 1
    return single and strides and filter.tap % 4 == 0


def _put_groups(position: str, nchw: bool, outputs: int, width: int) -> list[str]:
    if width > 1:
        return [f"put(stack + {k}u, {position}, 0u, sum_0.{c});" for k, c in enumerate("xyzw")]
    return [f"put(stack, {f'{k}u, {position}' if nchw else f'{position}, {k}u'}, sum_{k});" for k in range(outputs)]


def _origin(image: Matrix | ProblemWindow, problem: Problem, numbers: KernelNumbers) -> list[str]:
    offset, unsigned = stack_offset(image, "stack", problem.stacks, numbers), numbers.unsigned
    if isinstance(image, Matrix):
        return [
            f"let origin = {offset} + (batch * {unsigned(problem.layout.pixels)} + pixel) * {unsigned(image.stride)};"
        ]
    start = window_start(image, "window", unravel("pixel", problem.layout.size, True, numbers.divisor), numbers)
    return [*start, f"let origin = i32(batch * {unsigned(image.batch)} + {offset});"]


def _taps(
    problem: Problem, x: ElementReader, w: ElementReader, channel: int | None, numbers: KernelNumbers
) -> Iterator[str]:
    """The products of a channel; None for the loop variable `c`."""
    image, filter, unsigned = problem.image, problem.filter, numbers.unsigned
    number = "c" if channel is None else f"{channel}u"
    for tap in range(problem.taps):
        lines: list[str] = []
        conditions: list[str] = []
        at = f"origin + {number} * {unsigned(image.step)}"
        if isinstance(image, ProblemWindow):
            places = zip(np.unravel_index(tap, image.kernel), image.dilations, strict=True)
            lines, conditions, offset = window_tap(
                image, "window", "tap", [str(n * step) for n, step in places], numbers
            )
            at = f"u32(origin + {offset}) + {number} * {unsigned(image.step)}"
        body = [f"let value = {x.load(quarter(at, x.width), x.width)};"]
        for k in range(problem.outputs):
            at = f"weights + {number} * {unsigned(filter.step)} + {unsigned(tap * filter.tap + k * filter.stride)}"
            body.append(f"sum_{k} = fma(value, {w.load(quarter(at, w.width), w.width)}, sum_{k});")
        yield from statement("", [*lines, *statement(f"if ({' && '.join(conditions)})" if conditions else "", body)])
