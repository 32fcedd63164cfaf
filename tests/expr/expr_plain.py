"""Expressions in plain Python: a stand-in for `opweave.expr` whose arrays have values, one Python number an element.

The same function of a user runs on `Plain` arrays and on those that are traced. Nothing is shared with the evaluator but
the rounding of floats, which is NumPy's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

INTEGERS = ("int32", "uint32", "int64", "uint64", "int8", "uint8")
FLOATS = ("float32", "float16")
COMPARISONS = ("equal", "not_equal", "greater", "greater_or_equal", "lesser", "lesser_or_equal")


def wrapped(value: int, type: str) -> int:
    bits = int(type.lstrip("uint"))
    value &= (1 << bits) - 1
    return value - (1 << bits) if type[0] == "i" and value >> (bits - 1) else value


def _power(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and b % 2 == 1 else math.inf
    except ValueError:  # 0 to a negative power, or a root of a negative number
        if a == 0:
            return math.copysign(math.inf, a) if b % 2 == 1 else math.inf
        return math.nan


def _quotient(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def _guarded(function: Callable[[float], float], otherwise: Callable[[float], float]) -> Callable[[float], float]:
    def call(x: float) -> float:
        if math.isnan(x):
            return x
        try:
            return function(x)
        except (ValueError, OverflowError):
            return otherwise(x)

    return call


def _whole(function: Callable[[float], int]) -> Callable[[float], float]:
    return lambda x: math.copysign(float(function(x)), x) if math.isfinite(x) else x


def _nan(x: float) -> float:
    return math.nan


def _either(a: float, b: float, pick: Callable[[float, float], float]) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else pick(a, b)


FLOAT_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _quotient,
    "pow": _power,
    "fmod": lambda a, b: math.nan if b == 0 or not math.isfinite(a) or math.isnan(b) else math.fmod(a, b),
    "max": lambda a, b: _either(a, b, max),
    "min": lambda a, b: _either(a, b, min),
    "abs": abs,
    "neg": lambda x: -x,
    "sign": lambda x: float((x > 0) - (x < 0)),
    "ceil": _whole(math.ceil),
    "floor": _whole(math.floor),
    "round_even": _whole(round),
    "sqrt": _guarded(math.sqrt, _nan),
    "reciprocal": lambda x: _quotient(1.0, x),
    "exp": _guarded(math.exp, lambda x: math.inf),
    "log": _guarded(math.log, lambda x: -math.inf if x == 0 else math.nan),
    "sin": _guarded(math.sin, _nan),
    "cos": _guarded(math.cos, _nan),
    "tan": _guarded(math.tan, _nan),
    "erf": math.erf,
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)) if x > -700 else math.exp(x) if not math.isnan(x) else x,
    "is_nan": math.isnan,
    "is_infinite": math.isinf,
}


def _cut(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _integer_power(a: int, b: int) -> int:
    if b >= 0:
        return pow(a, b, 1 << 64)
    return a if a == 1 or (a == -1 and b % 2) else 1 if a == -1 else 0


def _integer_functions(bits: int) -> dict[str, Callable[..., Any]]:
    return {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": _cut,
        "pow": _integer_power,
        "max": max,
        "min": min,
        "floor_div": lambda a, b: a // b if b else 0,
        "mod": lambda a, b: a % b if b else 0,
        "bit_and": lambda a, b: a & b,
        "bit_or": lambda a, b: a | b,
        "bit_xor": lambda a, b: a ^ b,
        "shift_left": lambda a, b: a << b if 0 <= b < bits else 0,
        "shift_right": lambda a, b: a >> b if 0 <= b < bits else -1 if a < 0 else 0,
        "abs": abs,
        "neg": lambda a: -a,
        "sign": lambda a: (a > 0) - (a < 0),
    }


COMMON: dict[str, Callable[..., Any]] = {
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "greater": lambda a, b: a > b,
    "greater_or_equal": lambda a, b: a >= b,
    "lesser": lambda a, b: a < b,
    "lesser_or_equal": lambda a, b: a <= b,
    "logical_and": lambda a, b: a and b,
    "logical_or": lambda a, b: a or b,
    "logical_xor": lambda a, b: a != b,
    "logical_not": lambda a: not a,
    "where": lambda c, a, b: a if c else b,
}


class Plain:
    """Python numbers in the order of a C array."""

    def __init__(self, space: Space, shape: Sequence[int], type: str, values: Sequence[Any]) -> None:
        self.space, self.shape, self.type, self.values = space, tuple(shape), type, list(values)
        assert len(self.values) == math.prod(self.shape)

    @property
    def data_type(self) -> str:
        return self.type

    def at(self, position: Sequence[int]) -> Any:
        """The element at a position of an array that this one is stretched to."""
        flat, own = 0, position[len(position) - len(self.shape) :]
        for index, size in zip(own, self.shape, strict=True):
            flat = flat * size + (index if size > 1 else 0)
        return self.values[flat]

    def _indices(self, key: Any) -> list[int]:
        return [int(k.values[0]) if isinstance(k, Plain) else k for k in (key if isinstance(key, tuple) else (key,))]

    def __getitem__(self, key: Any) -> Plain:
        indices = [k + size if k < 0 else k for k, size in zip(self._indices(key), self.shape, strict=True)]
        assert all(0 <= k < size for k, size in zip(indices, self.shape, strict=True))
        return Plain(self.space, (), self.type, [self.at(indices)])

    @property
    def clamped(self) -> _Access:
        def access(key: Any) -> Plain:
            pairs = zip(self._indices(key), self.shape, strict=True)
            return self[tuple(min(max(k, 0), size - 1) for k, size in pairs)]

        return _Access(access)

    def padded(self, value: float = 0) -> _Access:
        def access(key: Any) -> Plain:
            indices = self._indices(key)
            inside = all(0 <= k < size for k, size in zip(indices, self.shape, strict=True))
            return self[tuple(indices)] if inside else self.space.number(value, self.type)

        return _Access(access)

    def __add__(self, other: Any) -> Plain:
        return self.space.apply("add", self, other)

    def __radd__(self, other: Any) -> Plain:
        return self.space.apply("add", other, self)

    def __sub__(self, other: Any) -> Plain:
        return self.space.apply("sub", self, other)

    def __rsub__(self, other: Any) -> Plain:
        return self.space.apply("sub", other, self)

    def __mul__(self, other: Any) -> Plain:
        return self.space.apply("mul", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Plain:
        return self.space.apply("div", self, other)

    def __floordiv__(self, other: Any) -> Plain:
        return self.space.apply("floor_div", self, other)

    def __mod__(self, other: Any) -> Plain:
        return self.space.apply("mod", self, other)

    def __neg__(self) -> Plain:
        return self.space.apply("neg", self)

    def __lt__(self, other: Any) -> Plain:
        return self.space.apply("lesser", self, other)

    def __ge__(self, other: Any) -> Plain:
        return self.space.apply("greater_or_equal", self, other)


class _Access:
    def __init__(self, access: Callable[[Any], Plain]) -> None:
        self.access = access

    def __getitem__(self, key: Any) -> Plain:
        return self.access(key)


class Space:
    """The functions of `opweave.expr` on `Plain` arrays; `single` rounds each result to float32."""

    def __init__(self, *, single: bool) -> None:
        self.single = single

    def array(self, values: np.ndarray) -> Plain:
        return Plain(self, values.shape, values.dtype.name, values.reshape(-1).tolist())

    def rounded(self, value: float) -> float:
        with np.errstate(all="ignore"):
            return float(np.float32(value)) if self.single else value

    def number(self, value: float, type: str) -> Plain:
        if type in FLOATS:
            value = float(np.float32(value))
        return Plain(self, (), type, [value])

    def apply(self, name: str, *values: Any) -> Plain:
        arrays = self._unified(values[1:] if name == "where" else values)
        type = arrays[0].type
        if name == "where":
            arrays = [values[0], *arrays]
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        function = COMMON.get(name) or self._function(name, type)
        result = "bool" if name in (*COMPARISONS, "is_nan", "is_infinite") or name.startswith("logical") else type
        fit = self._fit(result)
        positions = itertools.product(*map(range, shape))
        return Plain(self, shape, result, [fit(function(*(a.at(p) for a in arrays))) for p in positions])

    def _unified(self, values: Sequence[Any]) -> list[Plain]:
        types = [value.type for value in values if isinstance(value, Plain) and value.type != "index"]
        common = types[0] if types else "index"
        arrays = [v if isinstance(v, Plain) else self.number(v, common) for v in values]
        return [self.cast(a, common) if a.type != common else a for a in arrays]

    def _function(self, name: str, type: str) -> Callable[..., Any]:
        if type in FLOATS:
            return FLOAT_FUNCTIONS[name]
        return _integer_functions(64 if type == "index" else int(type.lstrip("uint")))[name]

    def _fit(self, type: str) -> Callable[[Any], Any]:
        if type in FLOATS:
            return self.rounded
        return (lambda v: wrapped(v, type)) if type in INTEGERS else lambda v: v

    def cast(self, x: Plain, type: str) -> Plain:
        return Plain(self, x.shape, type, [self._cast_one(value, x.type, type) for value in x.values])

    def _cast_one(self, value: Any, source: str, target: str) -> Any:
        if target == "bool":
            return value != 0
        if target in FLOATS:
            if target == "float16" and source != "float16":
                with np.errstate(all="ignore"):
                    single = np.float32 if self.single else np.float64
                    wide = value if source in FLOATS else float(np.array(value, _stored(source)).astype(single))
                    return float(single(wide).astype(np.float16))
            if source in INTEGERS and self.single:  # rounded once, from the integer
                return float(np.array(value, source).astype(np.float32))
            return self.rounded(float(value))
        if source in FLOATS:
            if math.isnan(value):
                return 0
            bits, signed = int(target.lstrip("uint")), target[0] == "i"
            low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
            return high if value >= high + 1 else low if value < low else int(value)
        return wrapped(int(value), target)

    def where(self, condition: Plain, a: Any, b: Any) -> Plain:
        return self.apply("where", condition, a, b)

    def store(self, x: Plain) -> Plain:
        if x.type == "float16":
            with np.errstate(all="ignore"):
                dtype = np.float32 if self.single else np.float64
                return Plain(self, x.shape, x.type, [float(dtype(v).astype(np.float16)) for v in x.values])
        return x

    def compute(self, shape: Sequence[int], function: Callable[..., Plain]) -> Plain:
        elements = [function(*(self.number(k, "index") for k in p)) for p in itertools.product(*map(range, shape))]
        return Plain(self, shape, elements[0].type, [element.values[0] for element in elements])

    def over(self, reduction: str, extents: Any, function: Callable[..., Plain]) -> Plain:
        sizes = extents if isinstance(extents, tuple) else (extents,)
        elements = [function(*(self.number(k, "index") for k in p)) for p in itertools.product(*map(range, sizes))]
        type = elements[0].type
        if type == "index":
            elements, type = [self.cast(e, "int32") for e in elements], "int32"
        values = [element.values[0] for element in elements]
        return self._reduced(reduction, values, type)

    def _reduced(self, reduction: str, values: list[Any], type: str) -> Plain:
        nans = [k for k, value in enumerate(values) if isinstance(value, float) and math.isnan(value)]
        if reduction.startswith("arg_"):
            pick = max if reduction == "arg_max" else min
            position = nans[0] if nans else values.index(pick(values))
            return Plain(self, (), "int32", [position])
        if reduction in ("max", "min"):
            return Plain(self, (), type, [math.nan if nans else (max if reduction == "max" else min)(values)])
        if reduction == "sum":
            total = sum(values)
        else:
            total = values[0]
            for value in values[1:]:
                total = self._fit(type)(total * value)
        return Plain(self, (), type, [self._fit(type)(total)])

    def reduce(self, reduction: str, x: Plain, axes: Sequence[int], keep_dimensions: bool) -> Plain:
        kept = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
        results = []
        for start in itertools.product(*map(range, kept)):
            spans = [range(size) if axis in axes else (start[axis],) for axis, size in enumerate(x.shape)]
            results.append(self._reduced(reduction, [x.at(p) for p in itertools.product(*spans)], x.type))
        shape = kept if keep_dimensions else [size for axis, size in enumerate(x.shape) if axis not in axes]
        return Plain(self, shape, results[0].type, [result.values[0] for result in results])

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("reduce_"):
            return lambda x, axes, keep_dimensions=False: self.reduce(name[7:], x, axes, keep_dimensions)
        if name in ("arg_max", "arg_min"):
            return lambda x, axis, keep_dimensions=False: self.reduce(name, x, [axis], keep_dimensions)
        if name.endswith("_over"):
            return lambda extents, function: self.over(name[:-5], extents, function)
        return lambda *values: self.apply(name, *values)


def _stored(type: str) -> str:
    return {"index": "int64", "bool": "uint8"}.get(type, type)
