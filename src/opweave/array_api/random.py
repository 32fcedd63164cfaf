"""Random numbers, which the standard does not have: generators with NumPy's interface, by the composites of random numbers.

The key of Philox 4x32-10 is the seed of a generator and the number of its draw. Equal seeds give equal numbers, also on
different devices, apart from the rounding of `normal`.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from .. import ops
from ..composites.random import random_normal, random_uniform
from ..context.context import MLContext, current_context
from ..core.dtypes import FLOAT64
from ..lazy.array import Array
from ..support.errors import ValidationError, require
from ..support.names import short_repr
from .arguments import INTEGERS, as_array, axis_of, convert
from .conversion import array_of
from .creation import arange, full
from .docs import complete
from .elementwise import add, multiply, remainder, subtract
from .manipulation import broadcast_shapes, broadcast_to, reshape
from .selection import argsort, searchsorted, take
from .transcendental import log1p
from .types import DType, as_dtype, check_context, float32, int32, int64, isdtype

Size = int | Sequence[int] | None

_BITS = 24
"""Random bits of a number of `random_uniform` in float32."""

_MAX_RANGE = 2**32
"""Largest number of different results of `integers`: a remainder of 48 bits, whose probabilities differ by 2**-16 at most."""


def _shape_of(size: Any, name: str) -> tuple[int, ...]:
    sizes = () if size is None else tuple(size) if isinstance(size, Sequence) else (size,)
    is_shape = all(isinstance(item, INTEGERS) and not isinstance(item, bool) and item >= 0 for item in sizes)
    require(is_shape, f"{name}: size must be an integer or integers that are not negative, got {short_repr(size)}")
    return tuple(int(item) for item in sizes)


class Generator:
    """A generator of random numbers, made by `xp.random.default_rng`. Each call draws other numbers; results are pending.

    Args:
        seed: an integer in [0, 2**64) that determines all numbers; default: a random one.
        device: context of the numbers; default: the current one.

    >>> from opweave import array_api as xp
    >>> rng = xp.random.Generator(seed=5)
    >>> rng.seed, rng.device is xp.asarray(0).device
    (5, True)
    """

    def __init__(self, seed: int | None = None, *, device: MLContext | None = None) -> None:
        is_seed = seed is None or (isinstance(seed, INTEGERS) and not isinstance(seed, bool) and 0 <= seed < 2**64)
        require(is_seed, f"default_rng: seed must be an integer in [0, 2**64), got {short_repr(seed)}")
        self.seed = secrets.randbits(64) if seed is None else int(seed)
        self.device = current_context() if device is None else device
        self._draws = itertools.count()

    def _key(self) -> Array:
        draw = next(self._draws)
        words = (self.seed, self.seed >> 32, draw, draw >> 32)
        return array_of(np.array([word & 0xFFFFFFFF for word in words], np.uint32), self.device, "random")

    def _dtype(self, dtype: Any, name: str) -> DType:
        target = float32 if dtype is None else as_dtype(dtype, name)
        require(isdtype(target, "real floating"), f"{name}: dtype must be a type of floats, got {target}")
        check_context(target, self.device, name)
        return target

    def _unit(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Draw numbers in [0, 1)."""
        if dtype.name == FLOAT64:
            return multiply(convert(self._words(shape), dtype), 2.0 ** (-2 * _BITS))
        name: Any = dtype.name
        result: Array = random_uniform(self._key(), shape, data_type=name)
        return result

    def _words(self, shape: tuple[int, ...]) -> Array:
        """Draw integers of 48 bits, int64."""
        high, low = (convert(multiply(random_uniform(self._key(), shape), 2.0**_BITS), int64) for _ in range(2))
        return add(multiply(high, 2**_BITS), low)

    def random(self, size: Size = None, dtype: Any = None) -> Array:
        """Draw numbers that are uniformly distributed in [0, 1).

        Args:
            size: the shape; default: a scalar.
            dtype: float32 (default), float16 or float64, whose numbers have 24, 11 and 48 random bits.

        Returns: An array of this shape and data type.

        Raises:
            ValidationError: an invalid shape or data type.

        >>> from opweave import array_api as xp
        >>> xp.random.default_rng(5).random(3).shape
        (3,)
        """
        return self._unit(_shape_of(size, "random"), self._dtype(dtype, "random"))

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Size = None, dtype: Any = None) -> Array:
        """Draw numbers that are uniformly distributed in [low, high).

        Args:
            low: the lowest number, or an array of floats.
            high: the end of the interval, or an array of floats. It is excluded, unless a number is rounded to it.
            size: the shape; default: that to which `low` and `high` broadcast.
            dtype: data type of the result, as for `random`.

        Returns: An array of this shape and data type.

        Raises:
            ValidationError: an invalid shape or data type, or a bound that is a number and not finite.

        >>> from opweave import array_api as xp
        >>> x = xp.random.default_rng(5).uniform(-1, 1, (2, 3))
        >>> x.shape, xp.all(xp.abs(x) <= 1).item()
        ((2, 3), True)
        """
        target = self._dtype(dtype, "uniform")
        first, last = (self._parameter(value, target, "uniform") for value in (low, high))
        if isinstance(low, (int, float, np.number)) and isinstance(high, (int, float, np.number)):
            is_held = abs(high - low) <= float(np.finfo(target).max)
            require(is_held, f"uniform: high - low must be a number of {target}, got {high - low}")
        unit = self._unit(self._shape(size, (first, last), "uniform"), target)
        return add(first, multiply(subtract(last, first), unit))

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Size = None, dtype: Any = None) -> Array:
        """Draw normally distributed numbers.

        Args:
            loc: the mean, or an array of floats.
            scale: the standard deviation, or an array of floats; not negative.
            size: the shape; default: that to which `loc` and `scale` broadcast.
            dtype: data type of the result, as for `random`.

        Returns: An array of this shape and data type.

        Raises:
            ValidationError: an invalid shape or data type, or a number that is not finite or a negative scale.

        >>> from opweave import array_api as xp
        >>> abs(xp.mean(xp.random.default_rng(5).normal(size=10_000)).item()) < 0.05
        True
        """
        target = self._dtype(dtype, "normal")
        require(
            not isinstance(scale, (int, float, np.number)) or bool(scale >= 0),
            f"normal: scale must not be negative, got {scale}",
        )
        mean, deviation = (self._parameter(value, target, "normal") for value in (loc, scale))
        return add(mean, multiply(deviation, self._standard(self._shape(size, (mean, deviation), "normal"), target)))

    def standard_normal(self, size: Size = None, dtype: Any = None) -> Array:
        """Draw normally distributed numbers with the mean 0 and the standard deviation 1.

        Args:
            size: the shape; default: a scalar.
            dtype: data type of the result, as for `random`.

        Returns: An array of this shape and data type.

        Raises:
            ValidationError: an invalid shape or data type.

        >>> from opweave import array_api as xp
        >>> xp.random.default_rng(5).standard_normal((2, 2), dtype=xp.float64).dtype
        dtype('float64')
        """
        return self._standard(_shape_of(size, "standard_normal"), self._dtype(dtype, "standard_normal"))

    def _standard(self, shape: tuple[int, ...], dtype: DType) -> Array:
        if dtype.name != FLOAT64:
            name: Any = dtype.name
            result: Array = random_normal(self._key(), shape, data_type=name)
            return result
        # Box and Muller, as in `random_normal`. 1 - x is in (0, 1], so that the logarithm is finite.
        size = ops.sqrt(multiply(ops.log(subtract(1.0, self._unit(shape, dtype))), -2.0))
        return multiply(size, ops.cos(multiply(self._unit(shape, dtype), 2 * math.pi)))

    def integers(
        self, low: int, high: int | None = None, size: Size = None, dtype: Any = None, endpoint: bool = False
    ) -> Array:
        """Draw integers in [low, high), with probabilities that are equal up to a factor of 1 + count / 2**48.

        Args:
            low: the lowest integer; without `high`, integers are in [0, low).
            high: the end, which is excluded unless `endpoint` is True.
            size: the shape; default: a scalar.
            dtype: data type of the result; default: int32.
            endpoint: whether `high` is included.

        Returns: An array of this shape and data type.

        Raises:
            ValidationError: an invalid shape or data type, no or more than 2**32 integers, or ones that `dtype` does not hold.

        >>> from opweave import array_api as xp
        >>> x = xp.random.default_rng(5).integers(1, 7, size=100)
        >>> xp.min(x).item(), xp.max(x).item(), x.dtype
        (1, 6, dtype('int32'))
        """
        target = int32 if dtype is None else as_dtype(dtype, "integers")
        require(isdtype(target, "integral"), f"integers: dtype must be a type of integers, got {target}")
        for bound in (low, 0 if high is None else high):
            is_integer = isinstance(bound, INTEGERS) and not isinstance(bound, bool)
            require(is_integer, f"integers: low and high must be integers, got {short_repr(bound)}")
        first, stop = (0, int(low)) if high is None else (int(low), int(high))
        count = stop - first + bool(endpoint)
        require(0 < count <= _MAX_RANGE, f"integers: there must be 1 to 2**32 integers, got {count} from {first}")
        info = np.iinfo(target)
        fits = info.min <= first and first + count - 1 <= info.max
        require(fits, f"integers: {target} does not hold integers from {first} to {first + count - 1}")
        shape = _shape_of(size, "integers")
        offsets = remainder(self._words(shape), count)
        if target.name == "uint64":
            return add(convert(offsets, target), first)
        return convert(add(offsets, first), target)

    def permutation(self, x: Any, axis: int = 0) -> Array:
        """Put the parts of an array, or the integers from 0, in a random order.

        Args:
            x: an array of any data type, or the number of integers.
            axis: the axis along which the parts are reordered.

        Returns: An array of the shape and data type of `x`; of the data type int32 for a number.

        Raises:
            ValidationError: `x` is negative or a scalar, or the axis is out of range.

        >>> from opweave import array_api as xp
        >>> sorted(xp.random.default_rng(5).permutation(4).tolist())
        [0, 1, 2, 3]
        """
        if isinstance(x, INTEGERS) and not isinstance(x, bool):
            require(bool(x >= 0), f"permutation: x must not be negative, got {x}")
            return self._order(int(x))
        array = as_array(x, "permutation")
        require(
            array.rank > 0, f"permutation: takes an integer, or an array of one dimension or more, got {array.desc}"
        )
        at = axis_of(axis, array.rank, "permutation")
        return take(array, self._order(array.shape[at]), axis=at)

    def _order(self, count: int) -> Array:
        if count < 2:
            return arange(count, device=self.device)
        return argsort(self._words((count,)))

    def choice(self, a: Any, size: Size = None, replace: bool = True, p: Any = None, axis: int = 0) -> Array:
        """Draw parts of an array, or integers from 0.

        Args:
            a: an array of any data type, or the number of integers.
            size: the shape of the draws, which replaces the axis; default: one part.
            replace: whether a part may be drawn several times.
            p: the probability of each part: floats whose sum is 1, which are computed at once; default: equal ones.
            axis: the axis of the parts.

        Returns: An array of the data type of `a`; of the data type int32 for a number.

        Raises:
            ValidationError: there is nothing to draw, `p` has another length, negative elements or another sum, or more
                different parts are drawn than there are.

        >>> from opweave import array_api as xp
        >>> xp.random.default_rng(5).choice(xp.asarray([10, 20, 30]), 4, p=[0, 1, 0]).tolist()
        [20, 20, 20, 20]
        """
        shape = _shape_of(size, "choice")
        if isinstance(a, INTEGERS) and not isinstance(a, bool):
            array, count, at = None, int(a), 0
        else:
            array = as_array(a, "choice")
            require(array.rank > 0, f"choice: takes an integer, or an array of one dimension or more, got {array.desc}")
            at = axis_of(axis, array.rank, "choice")
            count = array.shape[at]
        draws = prod(shape)
        require(count > 0 or not draws, f"choice: there must be something to draw, got {short_repr(a)}")
        weights = None if p is None else _weights_of(p, count)
        available = count if weights is None else int(np.count_nonzero(weights))
        fits = replace or draws <= available
        require(fits, f"choice: {draws} different parts cannot be drawn of {available} without replacement")
        if not draws:
            positions = full(shape, 0, dtype=int32, device=self.device)
        elif replace and weights is None:
            positions = self.integers(count, size=shape)
        elif replace:
            assert weights is not None
            positions = self._by_weight(weights, shape)
        else:
            positions = reshape(self._order_by(weights, count)[:draws], shape)
        return positions if array is None else take(array, positions, axis=at)

    def _by_weight(self, weights: np.ndarray, shape: tuple[int, ...]) -> Array:
        # Parts of probability 0 are left out, so that rounding draws none.
        parts = np.flatnonzero(weights)
        sums = np.cumsum(weights[parts])
        if parts.size == 1:
            return full(shape, int(parts[0]), dtype=int32, device=self.device)
        # Integers of 48 bits: with 24 bits, a part of a probability below 2**-24 would never be drawn.
        borders = array_of((sums[:-1] / sums[-1] * 2.0 ** (2 * _BITS)).astype(np.int64), self.device, "choice")
        places = searchsorted(borders, self._words((prod(shape),)), side="right")
        return reshape(take(array_of(parts.astype(np.int32), self.device, "choice"), places), shape)

    def _order_by(self, weights: np.ndarray | None, count: int) -> Array:
        if weights is None:
            return self._order(count)
        # The smallest of exponential numbers with these rates (Efraimidis and Spirakis, 2006).
        parts = np.flatnonzero(weights)
        rates = array_of(weights[parts].astype(np.float32), self.device, "choice")
        # Of 48 random bits: the smallest of many numbers of 24 bits are often equal, which would prefer the first parts.
        unit = multiply(convert(self._words((parts.size,)), float32), 2.0 ** (-2 * _BITS))
        waits = ops.div(ops.neg(log1p(ops.neg(unit))), rates)
        return take(array_of(parts.astype(np.int32), self.device, "choice"), argsort(waits))

    def _parameter(self, value: Any, dtype: DType, name: str) -> Array:
        if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
            largest = float(np.finfo(dtype).max)
            require(bool(-largest <= value <= largest), f"{name}: takes finite numbers of {dtype}, got {value}")
            return full((), float(value), dtype=dtype, device=self.device)
        array = as_array(value, name)
        require(array.dtype.kind == "f", f"{name}: takes numbers or arrays of floats, got {array.desc}")
        return convert(array, dtype)

    def _shape(self, size: Size, parameters: Sequence[Array], name: str) -> tuple[int, ...]:
        common = broadcast_shapes(*(x.shape for x in parameters))
        if size is None:
            return common
        shape = _shape_of(size, name)
        for x in parameters:
            broadcast_to(x, shape)
        return shape


def _weights_of(p: Any, count: int) -> np.ndarray:
    weights = np.asarray(p.numpy() if isinstance(p, Array) else p, np.float64)
    require(weights.shape == (count,), f"choice: p must have {count} elements, got the shape {list(weights.shape)}")
    is_valid = bool(np.isfinite(weights).all() and (weights >= 0).all() and abs(weights.sum() - 1) < 1e-4)
    if not is_valid:
        raise ValidationError(f"choice: p must be probabilities whose sum is 1, got {short_repr(weights.tolist())}")
    return weights


def default_rng(seed: int | None = None, *, device: MLContext | None = None) -> Generator:
    """Make a generator of random numbers.

    Args:
        seed: an integer in [0, 2**64) that determines all numbers; default: a random one.
        device: context of the numbers; default: the current one.

    Returns: A generator with NumPy's methods `random`, `uniform`, `normal`, `standard_normal`, `integers`, `permutation` and
        `choice`. Its numbers are others than NumPy's.
    Raises: another seed.

    >>> a, b = xp.random.default_rng(5), xp.random.default_rng(5)
    >>> a.random(3).tolist() == b.random(3).tolist(), a.random(3).tolist() == b.random(2).tolist()
    (True, False)
    """
    return Generator(seed, device=device)


__all__ = ["Generator", "default_rng"]

complete({"default_rng": default_rng})
