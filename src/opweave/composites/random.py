"""Random numbers by a counter-based generator: functions of a key, the same on all devices.

The generator is Philox 4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011). Element i of a result
takes word i % 4 of the block with the counter (i // 4, 0, key[2], key[3]) and the key (key[0], key[1]). `random_key` gives a
new key at each run.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits
from ..expr import cast, compute, cos, log, sin, sqrt, where
from ..expr.array import Traced
from ..ops.reduction import widen
from ..support.errors import require
from .declare import declare

if TYPE_CHECKING:
    from ..ops import Operations

Float: TypeAlias = Literal["float32", "float16"]

_KEY = Limits(("uint32",), ranks=(1, 1))

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
"""The constants of Philox 4x32-10."""

_streams: dict[int, tuple[int, Iterator[int]]] = {}
"""The 64 bits of the seed of each stream, and the number of its next run."""

_numbers = itertools.count()


def new_stream(seed: int | None = None) -> int:
    """Start a sequence of keys, and return its number, the attribute `stream` of `random_key`.

    Args:
        seed: 64 bits that determine all keys; None for a random sequence.
    """
    bits = secrets.randbits(64) if seed is None else seed % 2**64
    number = next(_numbers)
    _streams[number] = bits, itertools.count()
    return number


@declare(output=Limits(("uint32",), ranks=(1, 1)))
def random_key(self: Builder, *, stream: int, label: str = "") -> Desc:
    """Make a key for random numbers, a new one at each run.

    The host makes the key, whichever device runs the graph.

    Args:
        stream: the number that `new_stream` returned. Nodes with one stream take its keys in turn.

    Returns: An operand uint32 [4]: 64 bits of the seed, and the number of the run.
    Raises: there is no such stream.

    >>> import opweave as ow
    >>> from opweave.composites.random import new_stream, random_key
    >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    >>> graph = builder.build({"key": random_key(builder, stream=new_stream(seed=5))})
    >>> [graph.context.compute(graph, {})["key"].tolist() for run in range(2)]
    [[5, 0, 0, 0], [5, 0, 1, 0]]
    """
    require(stream in _streams, f"stream must be the number of a stream, got {stream}")
    return Desc("uint32", (4,))


@random_key.kernel("cpu")
def _(stream: int, out: np.ndarray) -> None:
    bits, runs = _streams[stream]
    run = next(runs)
    out[...] = bits & 0xFFFFFFFF, bits >> 32, run & 0xFFFFFFFF, run >> 32


random_key.is_of_host = True


# ---------------------------------------------------------------------------------------------------------------------
# Bits


def _upper_product(a: Traced, factor: int) -> Traced:
    """The upper 32 bits of a product of 32-bit numbers, by parts of 16 bits: not all devices have wider integers."""
    low, high = a & 0xFFFF, a >> 16
    factor_low, factor_high = factor & 0xFFFF, factor >> 16
    middle = high * factor_low + ((low * factor_low) >> 16)
    other = low * factor_high + (middle & 0xFFFF)
    return high * factor_high + (middle >> 16) + (other >> 16)


def _block(counter: Traced, key: Traced) -> tuple[Traced, ...]:
    """The four words of a block of Philox 4x32-10."""
    keys = [key[0], key[1]]
    a, b, c, d = counter, counter & 0, key[2], key[3]
    for number in range(ROUNDS):
        if number:
            keys = [value + step for value, step in zip(keys, KEY_STEPS, strict=True)]
        a, b, c, d = (
            _upper_product(c, MULTIPLIERS[1]) ^ b ^ keys[0],
            c * MULTIPLIERS[1],
            _upper_product(a, MULTIPLIERS[0]) ^ d ^ keys[1],
            a * MULTIPLIERS[0],
        )
    return a, b, c, d


def _by_element(shape: Sequence[int], function: Callable[[Traced], Traced]) -> Traced:
    """An array whose elements are a function of their index in C order."""

    def element(*positions: Traced) -> Traced:
        index: Any = 0
        for position, size in zip(positions, shape, strict=True):
            index = index * size + position
        return function(index)

    return compute(tuple(shape), element)


def _word(i: Any, key: Traced) -> Traced:
    """The random word of element `i`."""
    index = cast(i, "uint32")
    a, b, c, d = _block(index >> 2, key)
    word = index & 3
    return where(word < 2, where(word == 0, a, b), where(word == 2, c, d))


def _unit(word: Traced, data_type: str) -> Traced:
    """A number in [0, 1) with as many bits as the significand has, so that it is exact."""
    bits = 24 if data_type == "float32" else 11
    return cast(word >> (32 - bits), "float32") * 2.0**-bits


def _check_key(key: Operand) -> None:
    require(key.shape == (4,), f"key must be uint32[4], got {key.desc}")


@declare(key=_KEY, output=Limits(FLOATS))
def random_uniform(
    self: Builder,
    key: Operand,
    shape: Sequence[int],
    *,
    low: float = 0.0,
    high: float = 1.0,
    data_type: Float = "float32",
    label: str = "",
) -> Desc:
    """Draw uniformly distributed numbers.

    Args:
        key: uint32 [4], such as a key of `random_key`. Equal keys give equal numbers.
        shape: the shape of the result.
        low: the lowest number.
        high: the end of the interval, which is excluded, unless `low + (high - low) * x` is rounded to it.
        data_type: "float32" or "float16", whose numbers have 24 and 11 random bits.

    Returns: An operand of this data type and shape. It has the same bits on all devices if `low` is 0, or if high - low is a
        power of two.
    Raises: the key has another shape, or the bounds are infinite, NaN or in the wrong order.

    ONNX's RandomUniform, and Philox 4x32-10 (Salmon et al., SC 2011).

    >>> print(random_uniform(np.uint32([1, 0, 0, 0]), [2]).round(3))
    [0.89  0.895]
    """
    _check_key(key)
    is_range = math.isfinite(low) and math.isfinite(high) and low <= high and math.isfinite(high - low)
    require(is_range, f"low and high must be finite numbers in this order, got {low:g} and {high:g}")
    return Desc(data_type, tuple(shape))


@random_uniform.expression
def _(key: Traced, *, shape: Sequence[int], low: float, high: float, data_type: Any) -> Traced:
    def number(i: Any) -> Traced:
        scaled = _unit(_word(i, key), data_type) * (high - low)
        return cast(scaled if low == 0 else scaled + low, data_type)

    return _by_element(shape, number)


@declare(key=_KEY, output=Limits(FLOATS))
def random_normal(
    self: Builder,
    key: Operand,
    shape: Sequence[int],
    *,
    mean: float = 0.0,
    scale: float = 1.0,
    data_type: Float = "float32",
    label: str = "",
) -> Desc:
    """Draw normally distributed numbers.

    Args:
        key: uint32 [4], such as a key of `random_key`. Equal keys give equal numbers.
        shape: the shape of the result.
        mean: the mean of the distribution.
        scale: the standard deviation.
        data_type: "float32" or "float16".

    Returns: An operand of this data type and shape: sines and cosines times sqrt(-2 * log(x)), of pairs of uniform numbers
        (Box and Muller, 1958). Devices differ in the rounding of these functions.
    Raises: the key has another shape, the mean is infinite or NaN, or the scale is not a positive finite number.

    ONNX's RandomNormal.

    >>> print(random_normal(np.uint32([1, 0, 0, 0]), [2]).round(3))
    [ 0.38  -0.296]
    """
    _check_key(key)
    require(math.isfinite(mean), f"mean must be finite, got {mean:g}")
    require(scale > 0 and math.isfinite(scale), f"scale must be positive and finite, got {scale:g}")
    return Desc(data_type, tuple(shape))


@random_normal.expression
def _(key: Traced, *, shape: Sequence[int], mean: float, scale: float, data_type: Any) -> Traced:
    def number(i: Any) -> Traced:
        position = cast(i, "uint32")
        a, b, c, d = _block(position >> 2, key)
        is_first = (position & 2) == 0
        # In (0, 1], so that the logarithm is finite.
        x = (cast(where(is_first, a, c) >> 8, "float32") + 1) * 2.0**-24
        angle = _unit(where(is_first, b, d), "float32") * (2 * math.pi)
        wave = where((position & 1) == 0, cos(angle), sin(angle))
        return cast(sqrt(-2 * log(x)) * wave * scale + mean, data_type)

    return _by_element(shape, number)


@declare(input=Limits(FLOATS), key=_KEY, output=Limits(("uint8",), ranks="input"))
def bernoulli(self: Builder, input: Operand, key: Operand, *, label: str = "") -> Desc:
    """Draw 1 with the probabilities `input`, else 0.

    Args:
        input: float32 or float16, any rank: probabilities from 0 to 1.
        key: uint32 [4], such as a key of `random_key`. Equal keys give equal numbers.

    Returns: An operand uint8 of the shape of `input`, the same on all devices: 1 where the number of `random_uniform` is below
        the probability. NaN counts as 0.
    Raises: the key has another shape.

    ONNX's Bernoulli.

    >>> bernoulli(np.float32([0, 1, 1]), np.uint32([1, 0, 0, 0])).tolist()
    [0, 1, 1]
    """
    _check_key(key)
    return Desc("uint8", input.shape)


@bernoulli.expression
def _(input: Traced, key: Traced) -> Traced:
    return cast(_by_element(input.shape, lambda i: _unit(_word(i, key), "float32")) < cast(input, "float32"), "uint8")


@declare(input=Limits(FLOATS, ranks=(2, 2)), key=_KEY, output=Limits(("int32", "int64"), ranks=(2, 2)))
def multinomial(
    self: Builder,
    input: Operand,
    key: Operand,
    samples: int = 1,
    *,
    data_type: Literal["int32", "int64"] = "int32",
    label: str = "",
) -> Desc:
    """Draw classes with probabilities whose logarithms are `input`, up to a constant.

    Args:
        input: float32 or float16 [batches, classes].
        key: uint32 [4], such as a key of `random_key`. Equal keys give equal classes.
        samples: the number of classes to draw for each batch, with replacement.
        data_type: "int32" or "int64".

    Returns: An operand of this data type [batches, samples], in [0, classes). A class of probability 0 is not drawn. Devices
        may differ where a uniform number is next to the border of two classes.
    Raises: the key has another shape, `samples` is not positive, or there are no classes.

    ONNX's Multinomial.

    >>> multinomial(np.float32([[-np.inf, 0, -np.inf]]), np.uint32([1, 0, 0, 0]), 3).tolist()
    [[1, 1, 1]]
    """
    _check_key(key)
    require(samples > 0, f"samples must be greater than 0, got {samples}")
    require(input.shape[1] > 0, f"the input must have classes to draw, got {input.desc}")
    return Desc(data_type, (input.shape[0], samples))


@multinomial.decompose
def _(b: Operations, input: Operand, key: Operand, samples: int, data_type: Any) -> Operand:
    batches, classes = input.shape
    x = widen(b, input)
    weights = b.exp(x - b.reduce_max(x, axes=[1], keep_dimensions=True))
    sums = b.cumulative_sum(weights, 1)
    total = b.slice(sums, [0, classes - 1], [batches, 1])
    numbers: Operand = random_uniform(b, key, [batches, samples])
    numbers = numbers if x.data_type == "float32" else b.cast(numbers, x.data_type)
    # The class is the number of cumulative sums up to number * total, which may be rounded to the total. Sums equal to the
    # total do not count, so that a class of probability 0 at the end is not drawn.
    is_passed = b.lesser_or_equal(
        b.reshape(sums, [batches, 1, classes]), b.reshape(numbers * total, [batches, samples, 1])
    )
    is_partial = b.lesser(b.reshape(sums, [batches, 1, classes]), b.reshape(total, [batches, 1, 1]))
    counts = b.reduce_sum(b.cast(b.logical_and(is_passed, is_partial), "int32"), axes=[2])
    return counts if data_type == "int32" else b.cast(counts, data_type)
