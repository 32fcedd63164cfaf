"""Products and convolutions of 8-bit integers: sums of int32, of words that pack four terms.

With signed numbers x and zero points z, the sum of (a - za) (b - zb) is sum(a b) - za sum(b) - zb sum(a) + count za zb. All of
it wraps around at 32 bits, so the result is exact. uint8 becomes int8 by flipping the highest bit, and so do its zero points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ....composites.integers import integer_conv2d, integer_matmul
from ....core.shapes import conv_size
from ....core.size_bounds import names_in_empty
from ....core.size_values import variables_in
from ....core.sizes import is_multiple
from ....expr import Traced, cast, clamp, compute, sum_over, where
from ..contraction.problem import View, convolution, product
from ..table import gpu
from .results import Products, Staged, Stages, source_of

BYTES_OF_WORD = 4


def _to_signed(x: Traced) -> Traced:
    """An element as int32 in the range of int8."""
    wide = cast(x, "int32")
    return wide - 128 if x.data_type == "uint8" else wide


def _pack(byte: Callable[[int], Traced]) -> Traced:
    """A word of four int8, given as int32."""
    word = cast(byte(0), "uint32") & 255
    for k in range(1, BYTES_OF_WORD):
        word = word | (cast(byte(k), "uint32") & 255) << 8 * k
    return word


def _signed_zero_point(x: Traced, zero_point: Traced | None) -> Traced | None:
    """The zero point of the signed numbers; None for 0."""
    if zero_point is not None:
        return compute(zero_point.shape, lambda *p: _to_signed(zero_point[p]))
    if x.data_type == "int8":
        return None
    return compute((), lambda: cast(-128, "int32"))


def _total(x: Traced, axis: int, stages: Stages, title: str) -> Traced:
    """The sums of signed elements along the last axis or the last but one, which becomes 1."""
    shape = [1 if k == x.rank + axis else size for k, size in enumerate(x.shape)]

    def element(*p: Traced) -> Traced:
        before, after = p[: x.rank + axis], p[x.rank + axis + 1 :]
        return sum_over(x.shape[axis], lambda k: _to_signed(x[(*before, k, *after)]))

    return stages.store(compute(shape, element), title)


@gpu.lower(integer_matmul)
def _(a: Traced, b: Traced, a_zero_point: Traced | None, b_zero_point: Traced | None) -> Staged | Traced:
    inner = a.shape[-1]
    if _varies(a_zero_point, -1) or _varies(b_zero_point, -2):
        return _elementwise(a, b, a_zero_point, b_zero_point)
    words, is_whole = -(-inner // BYTES_OF_WORD), is_multiple(inner, BYTES_OF_WORD)

    def plan(stages: Stages) -> list[Traced]:
        def byte(x: Traced, k: Traced, *p: Traced | None) -> Traced:
            """The term `k`, 0 behind the last; it is at the place of None in the position."""
            place = k if is_whole else clamp(k, 0, inner - 1)
            value = _to_signed(x[tuple(place if part is None else part for part in p)])
            return value if is_whole else where(k < inner, value, 0)

        left = compute(
            (*a.shape[:-1], words), lambda *p: _pack(lambda k: byte(a, p[-1] * BYTES_OF_WORD + k, *p[:-1], None))
        )
        right = compute(
            (*b.shape[:-2], words, b.shape[-1]),
            lambda *p: _pack(lambda k: byte(b, p[-2] * BYTES_OF_WORD + k, *p[:-2], None, p[-1])),
        )
        sides = [stages.store(left, "words of a"), stages.store(right, "words of b")]
        problem = product(View.of(source_of(sides[0])), View.of(source_of(sides[1])))
        za, zb = _signed_zero_point(a, a_zero_point), _signed_zero_point(b, b_zero_point)
        of_b = None if za is None else _total(b, -2, stages, "sums of b")
        of_a = None if zb is None else _total(a, -1, stages, "sums of a")
        shape = (*problem.layout.shape[:-2], a.shape[-2], b.shape[-1])
        result = stages.array("int32", shape)
        return [
            stages.add(Products(problem, lambda total: _subtract_zero_points(total, za, zb, of_a, of_b, inner)), result)
        ]

    return Staged(plan, lambda _: (set(), names_in_empty((*a.shape, *b.shape))))


def _varies(zero_point: Traced | None, axis: int) -> bool:
    """Whether a zero point has several elements along the terms."""
    return zero_point is not None and zero_point.rank >= -axis and zero_point.shape[axis] != 1


def _subtract_zero_points(
    total: Traced, za: Traced | None, zb: Traced | None, of_a: Traced | None, of_b: Traced | None, count: int
) -> Traced:
    result = total
    if za is not None and of_b is not None:
        result = result - za * of_b
    if zb is not None and of_a is not None:
        result = result - zb * of_a
    return result if za is None or zb is None else result + za * zb * count


def _elementwise(a: Traced, b: Traced, a_zero_point: Traced | None, b_zero_point: Traced | None) -> Traced:
    """A product without words, for zero points that vary along the terms."""
    x = cast(a, "int32") if a_zero_point is None else cast(a, "int32") - cast(a_zero_point, "int32")
    y = cast(b, "int32") if b_zero_point is None else cast(b, "int32") - cast(b_zero_point, "int32")
    rank = max(a.rank, b.rank)
    stack = [
        max(*(side.shape[side.rank - rank + k] if side.rank - rank + k >= 0 else 1 for side in (a, b)))
        for k in range(rank - 2)
    ]

    def at(side: Traced, p: Sequence[Traced]) -> list[Traced | int]:
        own = p[len(p) - (side.rank - 2) :] if side.rank > 2 else ()
        return [0 if size == 1 else place for place, size in zip(own, side.shape, strict=False)]

    def element(*p: Traced) -> Traced:
        *outer, row, column = p
        return sum_over(a.shape[-1], lambda k: x[(*at(a, outer), row, k)] * y[(*at(b, outer), k, column)])

    return compute((*stack, a.shape[-2], b.shape[-1]), element)


@gpu.lower(integer_conv2d)
def _(
    input: Traced,
    filter: Traced,
    input_zero_point: Traced | None,
    filter_zero_point: Traced | None,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Staged | Traced:
    batches, _, height, width = input.shape
    outputs, channels, *taps = filter.shape
    top, bottom, left, right = padding
    padded = height + top + bottom, width + left + right
    sizes = [
        conv_size(size, count, 0, 0, stride, dilation)
        for size, count, stride, dilation in zip(padded, taps, strides, dilations, strict=True)
    ]
    za = None if input_zero_point is None else cast(input_zero_point[(0,) * input_zero_point.rank], "int32")
    own = None if filter_zero_point is None else cast(filter_zero_point, "int32")

    def of_filter(o: Traced) -> Traced | None:
        if own is None:
            return None
        return own[(o,)] if own.rank == 1 and own.shape[0] > 1 else own[(0,) * own.rank]

    is_padded = any(padding)

    def pixel(n: Traced, c: Traced, y: Traced, x: Traced, zero: Traced | int) -> Traced:
        """An element of the padded input, as int32; `zero` in the padding."""
        row, column = y - top, x - left
        if not is_padded:
            return cast(input[n, c, row, column], "int32")
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        value = input[n, c, clamp(row, 0, height - 1), clamp(column, 0, width - 1)]
        return where(inside, cast(value, "int32"), zero)

    if channels < BYTES_OF_WORD:
        # Words of one to three terms would be mostly empty.
        return _direct(pixel, filter, za, of_filter, (batches, outputs, *sizes), strides, dilations, groups)
    words = -(-channels // BYTES_OF_WORD)
    flip = 128 if input.data_type == "uint8" else 0
    zero: Traced | int = 0 if za is None else za

    def plan(stages: Stages) -> list[Traced]:
        def word_of_input(n: Traced, w: Traced, y: Traced, x: Traced) -> Traced:
            group, first = w // words, w % words * BYTES_OF_WORD

            def byte(k: int) -> Traced:
                # Behind the last channel, the filter is 0.
                c = clamp(first + k, 0, channels - 1) if channels % BYTES_OF_WORD else first + k
                return pixel(n, group * channels + c, y, x, zero) - flip

            return _pack(byte)

        def word_of_filter(o: Traced, w: Traced, y: Traced, x: Traced) -> Traced:
            def byte(k: int) -> Traced:
                c = w * BYTES_OF_WORD + k
                if channels % BYTES_OF_WORD == 0:
                    return _to_signed(filter[o, c, y, x])
                return where(c < channels, _to_signed(filter[o, clamp(c, 0, channels - 1), y, x]), 0)

            return _pack(byte)

        image = stages.store(compute((batches, groups * words, *padded), word_of_input), "words of the input")
        kernel = stages.store(compute((outputs, words, *taps), word_of_filter), "words of the filter")
        problem = convolution(
            source_of(image),
            source_of(kernel),
            input_layout="nchw",
            filter_layout="oihw",
            padding=(0, 0, 0, 0),
            strides=strides,
            dilations=dilations,
            groups=groups,
        )
        count = channels * prod(taps)
        shape = (batches, outputs, *sizes)
        za_signed = (
            None if za is None and not flip else compute((1, 1, 1, 1), lambda *_: zero - flip + cast(0, "int32"))
        )
        flip_of_filter = 128 if filter.data_type == "uint8" else 0
        zb_signed = None
        if own is not None or flip_of_filter:
            zb_signed = compute((1, outputs, 1, 1), lambda n, o, y, x: _or_zero(of_filter(o)) - flip_of_filter)
        of_b = of_a = None
        if za_signed is not None:

            def sums(_: Traced, o: Traced, y: Traced, x: Traced) -> Traced:
                return sum_over(
                    count,
                    lambda k: _to_signed(filter[o, k // prod(taps), k // taps[1] % taps[0], k % taps[1]]),
                )

            of_b = stages.store(compute((1, outputs, 1, 1), sums), "sums of the filter")
        if zb_signed is not None:

            def channel_sums(n: Traced, g: Traced, y: Traced, x: Traced) -> Traced:
                return sum_over(channels, lambda c: pixel(n, g * channels + c, y, x, zero) - flip)

            over_channels = stages.store(compute((batches, groups, *padded), channel_sums), "sums of channels")

            def window_sums(n: Traced, g: Traced, y: Traced, x: Traced) -> Traced:
                return sum_over(
                    prod(taps),
                    lambda k: over_channels[
                        n, g, y * strides[0] + k // taps[1] * dilations[0], x * strides[1] + k % taps[1] * dilations[1]
                    ],
                )

            windows = stages.store(compute((batches, groups, *sizes), window_sums), "sums of windows")
            of_a = compute(shape, lambda n, o, y, x: windows[n, o // (outputs // groups), y, x])
        result = stages.array("int32", shape)

        def finish(total: Traced) -> Traced:
            return _subtract_zero_points(total, za_signed, zb_signed, of_a, of_b, count)

        return [stages.add(Products(problem, finish), result)]

    # Groups of channels, and taps, are numbers in the kernels that pack words.
    needed = variables_in((input.shape[1], filter.shape, groups))
    return Staged(plan, lambda _: (needed, names_in_empty((batches, *padded, *sizes)) - needed))


def _or_zero(value: Traced | None) -> Traced:
    return cast(0, "int32") if value is None else value


def _direct(
    pixel: Callable[..., Traced],
    filter: Traced,
    za: Traced | None,
    of_filter: Callable[[Traced], Traced | None],
    shape: tuple[int, ...],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Traced:
    """A convolution of few channels in each group: a sum for each element of the result."""
    outputs, channels, height, width = filter.shape
    zero: Traced | int = 0 if za is None else za

    def element(n: Traced, o: Traced, y: Traced, x: Traced) -> Traced:
        group, zb = o // (outputs // groups), of_filter(o)

        def term(k: Traced) -> Traced:
            c, i, j = k // (height * width), k // width % height, k % width
            value = pixel(
                n, group * channels + c, y * strides[0] + i * dilations[0], x * strides[1] + j * dilations[1], zero
            )
            weight = cast(filter[o, c, i, j], "int32")
            return (value - zero) * (weight if zb is None else weight - zb)

        return sum_over(channels * height * width, term)

    return compute(shape, element)
