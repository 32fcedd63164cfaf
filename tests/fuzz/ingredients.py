"""Ingredients of graphs that engines rewrite: constants, casts, quotients, quantisation, products, movements.

A step takes a value of the graph and adds one operation or a few.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np

import opweave as ow
from fuzz.conditioning import Evaluation
from opweave import composites

FLOATS = ("float32", "float16")
LARGEST = {"float32": 1e4, "float16": 500.0}
"""Values beyond this end a step: what follows would overflow."""
ELEMENTS = 4000
"""The size of the largest value."""

Step = Callable[["Maker", Any], Any]
STEPS: list[tuple[Step, float]] = []


def step(weight: float = 1.0) -> Callable[[Step], Step]:
    """Declare a step and how often it is chosen; it returns None where it does not apply."""

    def declare(function: Step) -> Step:
        STEPS.append((function, weight))
        return function

    return declare


class Maker:
    """Makes a graph, and knows the values of its operands while it does."""

    def __init__(self, builder: ow.MLGraphBuilder, rng: random.Random) -> None:
        self.b, self.r = builder, rng
        self.numbers = np.random.default_rng(rng.getrandbits(64))
        self.feeds: dict[str, np.ndarray] = {}
        self.value = Evaluation(self.feeds)
        self.values: list[Any] = []

    def chance(self, probability: float) -> bool:
        return self.r.random() < probability

    # Arrays ----------------------------------------------------------------------------------------------------------

    def array(self, shape: Sequence[int], data_type: str = "float32", *, positive: bool = False) -> np.ndarray:
        """Floats of one of several kinds."""
        values: Any
        kind = self.r.choice(["normal", "normal", "normal", "eighths", "eighths", "mixed", "small", "halves"])
        if kind == "eighths":
            values = self.numbers.integers(-16, 17, shape) / 8
        elif kind == "halves":
            values = self.numbers.integers(-9, 10, shape) / 2
        else:
            values = self.numbers.normal(size=shape) * {"normal": 1.0, "mixed": 1.0, "small": 0.05}[kind]
        if kind == "mixed":
            values = np.where(self.numbers.random(shape) < 0.2, self.special(shape), values)
        if positive:
            values = abs(values) + self.r.choice([0.125, 0.5, 1.0])
        return np.asarray(values).astype(data_type)

    def special(self, shape: Sequence[int]) -> np.ndarray:
        """Zeros of both signs, ones, and numbers of unusual size."""
        return self.numbers.choice([0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 1e-6, 100.0], shape)

    def input(self, array: np.ndarray) -> Any:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        return self.b.input(name, array.dtype.name, array.shape)

    # Constants -------------------------------------------------------------------------------------------------------

    def operand(self, shape: Sequence[int], data_type: str = "float32", *, positive: bool = False) -> Any:
        """A float operand: mostly a constant, as it is, or computed from one."""
        kind = self.r.choices(
            ["plain", "input", "full", "cast", "integers", "dequantised", "transposed", "sum"],
            [8, 2, 2, 2, 1, 5, 1, 0.5],
        )[0]
        if positive and kind in ("dequantised", "integers", "sum"):
            kind = "plain"
        if kind == "input":
            return self.input(self.array(shape, data_type, positive=positive))
        if kind == "full":
            number = self.r.choice([1.0, 0.0, -0.0, 0.5, 2.0, -1.0, 3.0, 0.1])
            number = abs(number) or 1.0 if positive else number
            return self.b.constant(np.full(shape, number, data_type))
        if kind == "cast":
            other = "float16" if data_type == "float32" else "float32"
            return self.b.cast(self.b.constant(self.array(shape, other, positive=positive)), data_type)
        if kind == "integers":
            integers = self.numbers.integers(0, 5, shape).astype(self.r.choice(["int8", "uint8", "int32", "int64"]))
            return self.b.cast(self.b.constant(integers), data_type)
        if kind == "dequantised" and prod(shape) > 1:
            return self.dequantised(shape, data_type)
        if kind == "transposed" and len(shape) > 1:
            order = self.r.sample(range(len(shape)), len(shape))
            source = [shape[order.index(axis)] for axis in range(len(shape))]
            constant = self.b.constant(self.array(source, data_type, positive=positive))
            return self.b.transpose(constant, permutation=order)
        if kind == "sum":
            return self.b.add(*(self.b.constant(self.array(shape, data_type)) for _ in range(2)))
        return self.b.constant(self.array(shape, data_type, positive=positive))

    def scales(self, shape: Sequence[int], data_type: str, *, strict: bool = False) -> np.ndarray:
        """Scales: powers of two, others, and, unless `strict`, negative ones, zeros and tiny ones."""
        if self.chance(0.5):
            values = 2.0 ** self.numbers.integers(-6, 0, shape)
        else:
            values = self.numbers.uniform(0.01, 0.1, shape)
        if not strict and self.chance(0.15):
            odd = self.numbers.choice([0.0, -0.25, 1e-40, 1.0], shape)
            values = np.where(self.numbers.random(shape) < 0.3, odd, values)
        return np.asarray(values).astype(data_type)

    def parameter_shape(self, shape: Sequence[int]) -> list[int]:
        """A shape of scales: one number, one along an axis, blocks, or all."""
        ones = [1] * len(shape)
        kind = self.r.choice(["one", "axis", "axis", "axis", "blocks", "all"])
        if not shape or kind == "one":
            return ones
        if kind == "all" and prod(shape) <= 64:
            return list(shape)
        axis = self.r.randrange(len(shape))
        if kind == "blocks":
            factors = [k for k in range(2, shape[axis]) if shape[axis] % k == 0]
            part = list(shape) if self.chance(0.5) else ones
            part[axis] = self.r.choice(factors or [shape[axis]])
            return part
        ones[axis] = shape[axis]
        return ones

    def zero_points(self, shape: Sequence[int], data_type: str) -> np.ndarray:
        """Zero points: equal ones or not, odd ones, and the extremes of the data type."""
        low, high = (-128, 127) if data_type == "int8" else (0, 255)
        kind = self.r.choice(["zero", "odd", "any", "extreme", "middle"])
        values: Any
        if kind == "zero":
            values = np.zeros(shape)
        elif kind == "odd":
            values = np.full(shape, self.r.choice([1, 3, 7, 127]))
        elif kind == "any":
            values = self.numbers.integers(low, high + 1, shape)
        elif kind == "extreme":
            values = np.full(shape, self.r.choice([low, high]))
        else:
            values = np.full(shape, 0 if data_type == "int8" else 128)
        return np.asarray(values).astype(data_type)

    def dequantised(self, shape: Sequence[int], data_type: str) -> Any:
        """A constant of 8 bits, dequantised by the operation or by hand."""
        source = self.r.choice(["int8", "uint8"])
        low, high = (-128, 128) if source == "int8" else (0, 256)
        if self.chance(0.3):
            low, high = max(low, -4), 8
        integers = self.numbers.integers(low, high, shape).astype(source)
        part = self.parameter_shape(shape)
        is_by_hand = self.chance(0.3) and all(size in (1, whole) for size, whole in zip(part, shape, strict=True))
        scale, zero = self.scales(part, data_type), self.zero_points(part, source)
        if not is_by_hand:
            return self.b.dequantize_linear(*map(self.b.constant, (integers, scale, zero)))
        numbers = self.b.cast(self.b.constant(integers), data_type)
        kind = self.r.choice(["constant", "cast", "none"])
        if kind == "constant":
            numbers = self.b.sub(numbers, self.b.constant(zero.astype(data_type)))
        elif kind == "cast":
            numbers = self.b.sub(numbers, self.b.cast(self.b.constant(zero), data_type))
        pair = (numbers, self.b.constant(scale))
        return self.b.mul(*(pair if self.chance(0.7) else pair[::-1]))

    def beside(self, x: Any, *, positive: bool = False) -> Any:
        """An operand that broadcasts with `x`: a number, one along an axis, or a whole tensor; at times one of the graph."""
        if not positive and self.chance(0.15):
            fit = [v for v in self.values if v.desc == x.desc]
            if fit:
                return self.r.choice(fit)
        kind = self.r.choice(["number", "axis", "axis", "full", "last"])
        shape = list(x.shape)
        if kind == "number":
            shape = self.r.choice([[], [1] * x.rank])
        elif kind == "axis" and shape:
            axis = self.r.randrange(len(shape))
            shape = [size if k == axis else 1 for k, size in enumerate(shape)]
        elif kind == "last" and shape:
            shape = shape[-1:]
        return self.operand(shape, x.data_type, positive=positive)

    def beside_whole(self, x: Any) -> Any:
        """A value of the graph or a new operand, of the shape of `x`."""
        fit = [v for v in self.values if v.desc == x.desc]
        return self.r.choice(fit) if fit and self.chance(0.5) else self.operand(x.shape, x.data_type)

    def axis(self, x: Any) -> int:
        return self.r.randrange(x.rank)

    def vector(self, size: int, data_type: str, **how: bool) -> Any:
        return self.operand([size], data_type, **how)

    def number(self, value: float, data_type: str) -> Any:
        return self.b.constant(np.asarray(value, data_type))

    def pick(self) -> Any:
        """The newest value, or at times an older one, which then has a second reader."""
        return self.values[-1] if self.chance(0.8) else self.r.choice(self.values)

    def is_fit(self, x: Any) -> bool:
        """Whether a value is of reasonable size everywhere, and defined."""
        if prod(x.shape) > ELEMENTS:
            return False
        array = self.value(x)
        if x in self.value.undefined:
            return False
        return array.dtype.kind != "f" or bool(np.max(abs(array), initial=0) <= LARGEST[x.data_type])

    def positive(self, x: Any) -> Any:
        """A positive value made of `x`, away from zero."""
        b, kind = self.b, self.r.choice(["abs", "clamp", "square", "sigmoid", "exp", "softplus", "relu", "max"])
        offset = self.number(self.r.choice([0.5, 0.125, 1.0, 0.7]), x.data_type)
        if float(np.min(self.value(x), initial=1)) > 0.05 and self.chance(0.7):
            return x
        if kind == "clamp":
            return b.clamp(x, min_value=self.r.choice([0.1, 0.5, 1.0]), max_value=self.r.choice([None, 6.0, 100.0]))
        if kind == "max":
            return b.max(x, offset)
        if kind == "exp":
            return b.exp(b.clamp(x, min_value=-4, max_value=4))
        inner = {
            "abs": b.abs,
            "square": lambda v: b.mul(v, v),
            "sigmoid": b.sigmoid,
            "softplus": b.softplus,
            "relu": b.relu,
        }[kind](x)
        return b.add(inner, offset) if self.chance(0.8) else b.add(offset, inner)


# Element by element --------------------------------------------------------------------------------------------------


@step(3)
def _(make: Maker, x: Any) -> Any:
    name, other = make.r.choice(["add", "sub", "mul", "max", "min"]), make.beside(x)
    pair = (x, other) if make.chance(0.6) else (other, x)
    return getattr(make.b, name)(*pair)


@step(2)
def _(make: Maker, x: Any) -> Any:
    return make.b.div(x, make.beside(x, positive=True))


@step(5)
def _(make: Maker, x: Any) -> Any:
    """Quotients, differences and powers of a constant and a value."""
    b, kind = make.b, make.r.choice(["reciprocal", "div", "sub", "pow", "root", "negative", "square"])
    if kind == "sub":
        return b.sub(make.beside(x), x)
    if kind == "square":
        return b.pow(x, make.number(2.0, x.data_type))
    if kind == "pow":
        base = make.number(make.r.choice([2.0, 0.5, 1.5, 3.0]), x.data_type)
        return b.pow(base, b.clamp(x, min_value=-4, max_value=4))
    below = make.positive(x)
    if kind == "reciprocal":
        return b.reciprocal(below)
    if kind == "root":
        return make.r.choice([b.sqrt, lambda v: b.reciprocal(b.sqrt(v)), b.log])(below)
    if kind == "negative":
        return b.pow(below, make.number(make.r.choice([-1.0, -0.5, -2.0, 0.5, 1.5]), x.data_type))
    number = make.r.choice([1.0, 2.0, -1.0, 0.5, 3.0])
    return b.div(make.number(number, x.data_type) if make.chance(0.6) else make.beside(x), below)


@step(3)
def _(make: Maker, x: Any) -> Any:
    """Activations, with attributes that are not whole numbers."""
    b, r = make.b, make.r
    alpha, beta = r.choice([0.1, 0.2, 0.01, 1.3, 0.5, 1 / 6]), r.choice([0.5, 0.25, 0.3, -0.7, 0.0])
    return r.choice(
        [
            lambda: b.elu(x, alpha=alpha),
            lambda: b.leaky_relu(x, alpha=alpha),
            lambda: b.hard_sigmoid(x, alpha=alpha, beta=beta),
            lambda: b.linear(x, alpha=alpha, beta=beta),
            lambda: b.prelu(x, make.beside(x)),
            lambda: b.hard_swish(x),
            lambda: b.gelu(x),
            lambda: b.sigmoid(x),
            lambda: b.tanh(x),
            lambda: b.softplus(x),
            lambda: b.softsign(x),
            lambda: b.erf(x),
            lambda: b.relu(x),
            lambda: b.abs(x),
            lambda: b.neg(x),
            lambda: b.exp(b.clamp(x, min_value=-6, max_value=5)),
        ]
    )()


@step(2)
def _(make: Maker, x: Any) -> Any:
    low, high = make.r.choice([(-2, 3), (0, 6), (None, 1.5), (0.1, None), (-0.5, 0.5), (0, 1), (-6, 6)])
    return make.b.clamp(x, min_value=low, max_value=high)


@step(1)
def _(make: Maker, x: Any) -> Any:
    return make.r.choice([make.b.floor, make.b.ceil, make.b.round_even, make.b.sign, make.b.identity])(x)


@step(1.5)
def _(make: Maker, x: Any) -> Any:
    """Activations spelled out."""
    b, t = make.b, x.data_type
    one, half = make.number(1.0, t), make.number(0.5, t)

    def gelu() -> Any:
        inner = b.div(x, make.number(sqrt(2), t)) if make.chance(0.5) else b.mul(x, make.number(sqrt(0.5), t))
        factor = b.add(b.erf(inner), one)
        return b.mul(b.mul(x, factor), half) if make.chance(0.5) else b.mul(x, b.mul(factor, half))

    def tanh_gelu() -> Any:
        cube = b.pow(x, make.number(3.0, t)) if make.chance(0.5) else b.mul(x, b.mul(x, x))
        inner = b.mul(b.add(x, b.mul(cube, make.number(0.044715, t))), make.number(sqrt(2 / np.pi), t))
        return b.mul(b.mul(x, half), b.add(b.tanh(inner), one))

    def silu() -> Any:
        factor = make.r.choice([1.0, 1.702, 0.5])
        return b.mul(x, b.sigmoid(x if factor == 1 else b.mul(x, make.number(factor, t))))

    def by_exponential() -> Any:
        below = b.add(b.exp(b.neg(b.clamp(x, min_value=-8, max_value=8))), one)
        return make.r.choice([b.reciprocal(below), b.div(x, below), b.div(one, below), b.mul(x, b.reciprocal(below))])

    def softplus() -> Any:
        return b.log(b.add(b.exp(b.clamp(x, min_value=-8, max_value=8)), one))

    def mish() -> Any:
        return b.mul(x, b.tanh(b.softplus(x)))

    def hard_swish() -> Any:
        return b.mul(x, b.div(b.clamp(b.add(x, make.number(3.0, t)), min_value=0, max_value=6), make.number(6.0, t)))

    def softmax() -> Any:
        if x.rank == 0:
            return None
        axis = [make.axis(x)]
        e = b.exp(b.sub(x, b.reduce_max(x, axes=axis, keep_dimensions=True)))
        return b.div(e, b.reduce_sum(e, axes=axis, keep_dimensions=True))

    def named() -> Any:
        return make.r.choice([composites.quick_gelu, composites.fast_gelu, composites.thresholded_relu])(x)

    def gated() -> Any:
        return make.r.choice([composites.swiglu, composites.geglu])(make.beside_whole(x), x)

    return make.r.choice([gelu, tanh_gelu, silu, by_exponential, softplus, mish, hard_swish, softmax, named, gated])()


# Casts and quantisation ----------------------------------------------------------------------------------------------


@step(4)
def _(make: Maker, x: Any) -> Any:
    """Casts to another type, mostly there and back."""
    b, other = make.b, "float16" if x.data_type == "float32" else "float32"
    kind = make.r.choice(["float", "round trip", "round trip", "integers", "large"])
    if kind == "float":
        return b.cast(x, other)
    if kind == "round trip":
        return b.cast(b.cast(x, other), x.data_type)
    if kind == "large":
        # Integers that float16 rounds.
        source = make.r.choice(["int32", "int64", "uint32", "uint8", "int8"])
        wide = source in ("int32", "int64", "uint32")
        low = 0 if source.startswith("u") else -2100 if wide else -128
        high = 2100 if wide else 127 if source == "int8" else 255
        integers = make.numbers.integers(low, high, x.shape, endpoint=True).astype(source)
        made = make.input(integers) if make.chance(0.6) else b.constant(integers)
        half = b.cast(made, "float16")
        return b.mul(b.cast(half, x.data_type) if x.data_type != "float16" else half, make.number(2.0**-4, x.data_type))
    target = make.r.choice(["int8", "int32", "int64", "uint8"])
    low, high = (0, 200) if target == "uint8" else (-100, 100)
    return b.cast(b.cast(b.clamp(x, min_value=low, max_value=high), target), make.r.choice([x.data_type, other]))


def quantise_parameters(make: Maker, x: Any) -> tuple[Any, Any]:
    source = make.r.choice(["int8", "uint8"])
    part = make.parameter_shape(x.shape) if make.chance(0.4) else [1] * x.rank
    scale, zero = make.scales(part, x.data_type, strict=True), make.zero_points(part, source)
    if make.chance(0.2):
        scale = np.full_like(scale, make.r.choice([1.0, 0.5, 0.25, 2.0]))
    return make.b.constant(scale), make.b.constant(zero)


@step(3)
def _(make: Maker, x: Any) -> Any:
    """A value quantised and dequantised, at times through a table, a movement or a pooling of integers."""
    b = make.b
    scale, zero = quantise_parameters(make, x)
    q = b.quantize_linear(x, scale, zero)
    if make.chance(0.15):
        make.values.append(q)
    if x.rank and scale.desc.element_count == 1 and make.chance(0.4):
        kind = make.r.choice(["transpose", "reshape", "slice", "pool", "relu", "concat", "clamp"])
        if kind == "transpose":
            q = b.transpose(q, permutation=make.r.sample(range(x.rank), x.rank))
        elif kind == "reshape":
            q = b.reshape(q, [prod(q.shape)] if x.rank == 1 else [*reversed(q.shape)])
            scale, zero = (b.reshape(v, [1] * q.rank) for v in (scale, zero))
        elif kind == "slice":
            q = _slice(make, q)
        elif kind == "pool" and x.rank == 4:
            q = b.max_pool2d(q, window_dimensions=[min(2, x.shape[2]), min(2, x.shape[3])])
        elif kind == "concat":
            q = b.concat([q, q], make.axis(q))
        elif kind == "clamp":
            q = b.clamp(q, min_value=3, max_value=100)
    if make.chance(0.25) and scale.desc.element_count == 1:
        scale, zero = (
            b.constant(make.scales(scale.shape, x.data_type)),
            b.constant(make.zero_points(zero.shape, q.data_type)),
        )
    return b.dequantize_linear(q, scale, zero)


@step(2.5)
def _(make: Maker, x: Any) -> Any:
    """Operations between dequantised operands and a quantisation."""
    b = make.b

    def quantised(v: Any) -> Any:
        scale, zero = quantise_parameters(make, v)
        return b.dequantize_linear(b.quantize_linear(v, scale, zero), scale, zero)

    kind = make.r.choice(["add", "mul", "concat", "relu", "average", "matmul", "clamp", "sigmoid", "sub", "table"])
    y = quantised(x)
    if kind in ("add", "mul", "sub"):
        y = getattr(b, kind)(y, quantised(make.beside_whole(x)) if make.chance(0.6) else make.beside(y))
    elif kind == "concat" and x.rank:
        y = b.concat([y, quantised(make.beside_whole(x))], make.axis(x))
    elif kind == "average" and x.rank == 4:
        y = b.average_pool2d(y, window_dimensions=[min(2, x.shape[2]), min(2, x.shape[3])])
    elif kind == "matmul" and x.rank >= 2:
        y = b.matmul(y, make.dequantised([x.shape[-1], make.r.choice([3, 4, 8])], x.data_type))
    elif kind == "clamp":
        y = b.clamp(y, min_value=0, max_value=6)
    elif kind == "sigmoid":
        y = b.sigmoid(y)
    elif kind == "relu":
        y = b.relu(y)
    return quantised(y) if make.chance(0.8) else y


# Movement ------------------------------------------------------------------------------------------------------------


def _slice(make: Maker, x: Any) -> Any:
    starts = [make.r.randint(0, size // 2) for size in x.shape]
    sizes = [make.r.randint(1, size - start) for size, start in zip(x.shape, starts, strict=True)]
    strides = [make.r.choice([1, 1, 1, 2]) for _ in x.shape]
    return make.b.slice(x, starts, sizes, strides=strides)


@step(4)
def _(make: Maker, x: Any) -> Any:
    b, r, size = make.b, make.r, prod(x.shape)
    if x.rank == 0:
        return b.reshape(x, [1] * r.randint(1, 4))
    kind = r.choice(
        ["transpose", "reshape", "slice", "slice", "split", "concat", "pad", "expand", "reverse", "tile", "rank"]
    )
    if kind == "transpose":
        return b.transpose(x, permutation=r.sample(range(x.rank), x.rank))
    if kind == "reshape":
        shapes = [[size], [1, size], [*reversed(x.shape)], [size, 1], [1, size, 1, 1]]
        shapes += [[2, size // 2], [1, 2, 1, size // 2]] if size % 2 == 0 else []
        return b.reshape(x, r.choice(shapes))
    if kind == "rank":
        if x.rank >= 5:
            return b.reshape(x, [x.shape[0] * x.shape[1], *x.shape[2:]])
        axis = r.randint(0, x.rank)
        return b.reshape(x, [*x.shape[:axis], 1, *x.shape[axis:]])
    if kind == "slice":
        return _slice(make, x)
    axis = make.axis(x)
    if kind == "split":
        if x.shape[axis] < 2:
            return None
        first = r.randint(1, x.shape[axis] - 1)
        parts = b.split(x, [first, x.shape[axis] - first], axis=axis)
        if first * 2 == x.shape[axis] and make.chance(0.5):
            return b.mul(parts[0], b.sigmoid(parts[1]))
        return b.concat(list(reversed(parts)), axis) if make.chance(0.4) else r.choice(parts)
    if kind == "concat":
        return b.concat([x, make.beside_whole(x)], axis)
    if kind == "pad":
        pads = [[r.randint(0, 2) for _ in x.shape] for _ in range(2)]
        return b.pad(x, *pads, mode=r.choice(["constant", "edge"]), value=r.choice([0, 1, -0.5]))
    if kind == "expand":
        return b.expand(x, [2, *x.shape]) if x.rank < 5 else None
    if kind == "reverse":
        return b.reverse(x, axes=[axis])
    return b.tile(x, [r.randint(1, 2) for _ in x.shape])


@step(2)
def _(make: Maker, x: Any) -> Any:
    """Gather from a value, or from a table of constants, which may be dequantised."""
    b, r = make.b, make.r
    if x.rank == 0:
        return None
    kind = r.choice(["value", "table", "table", "elements", "scatter"])
    index_type = r.choice(["int32", "int64", "uint32"])
    if kind == "table":
        rows, columns = r.choice([4, 6, 16]), r.choice([1, x.shape[-1], x.shape[-1]])
        axis = r.choice([0, 0, 1])
        table = make.operand([rows, columns] if axis == 0 else [columns, rows], x.data_type)
        places = make.numbers.integers(0, rows, [x.shape[-2]] if x.rank > 1 else []).astype(index_type)
        indices = make.input(places) if make.chance(0.5) else b.constant(places)
        found = b.gather(table, indices, axis=axis)
        if axis == 1 and found.rank == 2:
            found = b.transpose(found)
        return b.add(x, found)
    axis = make.axis(x)
    size = x.shape[axis]
    if kind == "value":
        places = make.numbers.integers(0, size, r.choice([[], [1], [3], [2, 2]])).astype(index_type)
        return b.gather(x, b.constant(places), axis=axis) if x.rank + places.ndim - 1 <= 5 else None
    if kind == "elements":
        places = make.numbers.integers(0, size, x.shape).astype(index_type)
        return b.gather_elements(x, b.constant(places), axis=axis)
    line = make.numbers.permutation(size).reshape([size if k == axis else 1 for k in range(x.rank)])
    places = np.ascontiguousarray(np.broadcast_to(line, x.shape)).astype(index_type)
    return b.scatter_elements(x, b.constant(places), make.beside_whole(x), axis=axis)


@step(2)
def _(make: Maker, x: Any) -> Any:
    """A choice by a mask, followed by what treats extremes."""
    b, r = make.b, make.r
    if make.chance(0.5):
        mask = b.constant(make.numbers.integers(0, 2, x.shape).astype("uint8"))
    else:
        mask = getattr(b, r.choice(["greater", "lesser", "greater_or_equal", "equal"]))(x, make.beside(x))
    if mask.shape != x.shape:
        return None
    other = make.beside(x) if make.chance(0.5) else make.number(r.choice([0.0, -1.0, 1.0, -100.0]), x.data_type)
    y = b.where(mask, x, other) if make.chance(0.6) else b.where(mask, other, x)
    after = r.choice(["", "clamp", "max", "min", "exp", "relu"])
    if after == "clamp":
        return b.clamp(y, min_value=-1, max_value=2)
    if after in ("max", "min"):
        return getattr(b, after)(y, make.beside(y))
    if after == "exp":
        return b.exp(b.min(y, make.number(4.0, x.data_type)))
    return b.relu(y) if after else y


# Reductions ----------------------------------------------------------------------------------------------------------


@step(2.5)
def _(make: Maker, x: Any) -> Any:
    b, r = make.b, make.r
    if x.rank == 0:
        return None
    axes = sorted(r.sample(range(x.rank), r.randint(1, x.rank)))
    name = r.choice(["sum", "mean", "mean", "max", "min", "l1", "l2", "sum_square", "log_sum_exp", "product"])
    if name == "log_sum_exp":
        x = b.clamp(x, min_value=-10, max_value=10)
    if name == "product":
        x = b.clamp(x, min_value=-1.5, max_value=1.5)
    made = getattr(b, f"reduce_{name}")(x, axes=axes, keep_dimensions=make.chance(0.7))
    if made.rank == x.rank and make.chance(0.4):
        return r.choice([b.sub, b.mul, b.add])(x, made)
    return made


@step(1)
def _(make: Maker, x: Any) -> Any:
    b, r = make.b, make.r
    if x.rank == 0:
        return None
    kind, axis = r.choice(["cumulative", "triangular", "argmax", "top"]), make.axis(x)
    if kind == "cumulative":
        return b.cumulative_sum(x, axis, exclusive=make.chance(0.5), reversed=make.chance(0.5))
    if kind == "triangular":
        return b.triangular(x, upper=make.chance(0.5), diagonal=r.randint(-2, 2)) if x.rank >= 2 else None
    if kind == "argmax":
        return r.choice([b.arg_max, b.arg_min])(x, axis, keep_dimensions=make.chance(0.5), output_data_type="int32")
    return composites.top_k(x, r.randint(1, x.shape[axis]), axis)[0]


# Products ------------------------------------------------------------------------------------------------------------


@step(7)
def _(make: Maker, x: Any) -> Any:
    b, r = make.b, make.r
    if x.rank < 2 or prod(x.shape) > 1500:
        return None
    inner, columns = x.shape[-1], r.choice([1, 3, 4, 8, 16])
    scaled = b.mul(x, make.number(r.choice([0.5, 0.3, 1.0]), x.data_type)) if make.chance(0.2) else x
    if x.rank == 2 and make.chance(0.35):
        transposed = make.chance(0.3)
        right = make.operand([columns, inner] if transposed else [inner, columns], x.data_type)
        bias = None
        if make.chance(0.7):
            bias = make.operand(r.choice([[columns], [1, columns], [x.shape[0], columns], [], [1]]), x.data_type)
        alpha, beta = r.choice([1.0, 1.0, 0.5, 0.3, 1.7]), r.choice([1.0, 1.0, 0.5, 0.3, 0.0])
        return b.gemm(scaled, right, c=bias, alpha=alpha, beta=beta, b_transpose=transposed)
    kind = r.choice(["right", "right", "right", "itself", "left"])
    if kind == "itself":
        order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
        return b.matmul(x, b.transpose(x, permutation=order))
    if kind == "left":
        return b.matmul(make.operand([r.randint(1, 5), x.shape[-2]], x.data_type), scaled)
    batch = list(x.shape[:-2]) if make.chance(0.2) else []
    y = b.matmul(scaled, make.operand([*batch, inner, columns], x.data_type))
    if make.chance(0.5):
        y = b.add(y, make.operand(r.choice([[columns], [1, columns], [], list(y.shape)]), x.data_type))
    return y


@step(7)
def _(make: Maker, x: Any) -> Any:
    """Convolutions, poolings and resampling."""
    b, r = make.b, make.r
    if x.rank != 4 or prod(x.shape) > 1500:
        return None
    kind = r.choice(["conv", "conv", "conv", "transposed", "average", "l2", "max", "resample"])
    channels = x.shape[1]
    window = [r.randint(1, min(3, size)) for size in x.shape[2:]]
    if kind == "conv":
        groups = r.choice([1, 1, channels] + ([2] if channels % 2 == 0 else []))
        out = groups * r.choice([1, 2, 3])
        filters = make.operand([out, channels // groups, *window], x.data_type)
        bias = make.vector(out, x.data_type) if make.chance(0.5) else None
        padding = [r.randint(0, 1) for _ in range(4)] if make.chance(0.5) else [0] * 4
        y = b.conv2d(
            x, filters, padding=padding, strides=[r.choice([1, 1, 2]) for _ in range(2)], groups=groups, bias=bias
        )
        if make.chance(0.3):
            per_channel = make.operand([1, out, 1, 1], x.data_type)
            y = r.choice([b.mul, b.add, b.sub])(y, per_channel)
        return y
    if kind == "transposed":
        out = r.choice([1, 2, 4])
        filters = make.operand([channels, out, *window], x.data_type)
        bias = make.vector(out, x.data_type) if make.chance(0.5) else None
        return b.conv_transpose2d(x, filters, strides=[r.choice([1, 2])] * 2, bias=bias)
    if kind == "resample":
        sizes = [r.randint(1, 2 * size) for size in x.shape[2:]]
        return b.resample2d(x, sizes=sizes, mode=r.choice(["nearest-neighbor", "linear"]))
    pool = {"average": b.average_pool2d, "l2": b.l2_pool2d, "max": b.max_pool2d}[kind]
    padding = [r.randint(0, size - 1) for size in window for _ in range(2)] if make.chance(0.5) else [0] * 4
    return pool(x, window_dimensions=window, padding=padding, strides=[r.choice([1, 2]) for _ in range(2)])
