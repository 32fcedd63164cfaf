"""Graphs of two to four operations with large constants: the engine's optimiser works on such, and must not change results."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from support.graphs import compute_again

import opweave as ow
from fuzz.frame import Campaign, Finding
from opweave.core.dtypes import ANY, BEYOND, INFO, POWERS, is_float, numpy_type
from opweave.core.graph import Graph

FLOATS = ("float32", "float16")
ALL = tuple(ANY)
EVERY: tuple[str, ...] = (*BEYOND, *BEYOND, *ANY)
"""Data types of contexts with drafts; those beyond the specification are drawn more often."""
ROUNDING = frozenset(t for t in BEYOND if is_float(t) and t != "float64")
"""Floats whose sums are rounded."""

# Constants of these shapes are larger than 1 KiB in nearly all data types: smaller ones lie inside of the engine's models.
SHAPES: list[list[int]] = [
    [40, 40],
    [40, 30],
    [1, 4, 12, 24],
    [2, 8, 10, 10],
    [4, 20, 20],
    [1, 1, 40, 40],
    [1500],
    [1, 16, 9, 9],
    [1],
    [],
    [3, 4],
]
WEIGHTS = (3, 3, 3, 2, 2, 2, 1, 2, 1, 1, 1)

Step = Callable[["Maker", Any], Any]
STEPS: list[Step] = []


def step(*data_types: str) -> Callable[[Step], Step]:
    """Declare what makes one operation, for operands of these data types."""

    def declare(made: Step) -> Step:
        def checked(make: Maker, x: Any) -> Any:
            if x.data_type in ANY:
                return made(make, x) if x.data_type in data_types else None
            try:
                return made(make, x)
            except ow.ValidationError:  # the builder knows which operations take other types
                return None

        STEPS.append(checked)
        return made

    return declare


class Maker:
    """Makes a graph; with equal random numbers, the same one in every context.

    Floats are multiples of 1/8, so that sums and maxima are exact; `exact` holds the operands whose values are, which are
    the only ones that are rounded, compared or made integers. `is_wide` tells whether some integers are of any size, whose
    squares float32 may not hold.
    """

    def __init__(self, builder: ow.MLGraphBuilder, rng: random.Random, types: Sequence[str] = ALL) -> None:
        self.b, self.r, self.types = builder, rng, types
        self.numbers = np.random.default_rng(rng.getrandbits(64))
        self.feeds: dict[str, np.ndarray] = {}
        self.exact: set[Any] = set()
        self.is_wide = False

    def array(self, data_type: str, shape: Sequence[int], low: float = -4, high: float = 4) -> np.ndarray:
        info = INFO[data_type]  # type: ignore[index]
        values: Any
        if info.kind == "f":
            values = self.numbers.integers(int(low * 8), int(high * 8), shape, endpoint=True) / 8
            if data_type == POWERS:
                values = abs(values) + 0.125
        elif self.r.random() < 0.3:
            self.is_wide = True
            drawn = np.dtype(data_type) if data_type in ANY else np.dtype("int64")
            values = self.numbers.integers(info.lowest, int(info.highest), shape, drawn, endpoint=True)
        else:
            highest = min(int(high), int(info.highest))
            values = self.numbers.integers(max(int(low), info.lowest), highest, shape, endpoint=True)
        return np.asarray(values).astype(data_type)

    def operand(self, data_type: str, shape: Sequence[int], low: float = -4, high: float = 4) -> Any:
        """A constant, at times an input."""
        array = self.array(data_type, shape, low, high)
        if self.r.random() < 0.8:
            made = self.b.constant(array)
        else:
            name = f"x{len(self.feeds)}"
            self.feeds[name] = array
            made = self.b.input(name, data_type, shape)
        self.exact.add(made)
        return made

    def beside(self, x: Any, low: float = -4, high: float = 4) -> Any:
        """An operand that broadcasts with `x`, or `x` with it; mostly of its very shape."""
        shape = list(x.shape)
        if shape and self.r.random() < 0.3:
            shape = [size if self.r.random() < 0.6 else 1 for size in shape][self.r.randint(0, len(shape)) :]
        return self.operand(x.data_type, shape, low, high)

    def axis(self, x: Any) -> int:
        return self.r.randrange(x.rank)

    def keeps(self, made: Any, *sources: Any) -> Any:
        """`made`, which is exact if all sources are, and if its type has digits for sums of multiples of 1/8."""
        has_digits = all(one.data_type not in ROUNDING for one in (made if isinstance(made, (tuple, list)) else [made]))
        if has_digits and all(self.is_exact(source) for source in sources):
            self.exact.update(made if isinstance(made, (tuple, list)) else [made])
        return made

    def floats(self, x: Any) -> Sequence[str]:
        """Types that floats are cast to: narrow ones only from exact values, since a last bit becomes a whole step."""
        if self.types is ALL:
            return FLOATS
        return [t for t in self.types if is_float(t) and (self.is_exact(x) or not INFO[t].is_narrow) and t != POWERS]

    def is_exact(self, x: Any) -> bool:
        return x in self.exact or not is_float(x.data_type)


# Element by element --------------------------------------------------------------------------------------------------


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    name, other = make.r.choice(["add", "sub", "max", "min"]), make.beside(x)
    pair = (x, other) if make.r.random() < 0.7 else (other, x)
    return make.keeps(getattr(make.b, name)(*pair), x)


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    return make.b.mul(x, make.beside(x))


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    return make.b.div(x, make.beside(x, 0.5, 4) if is_float(x.data_type) else make.beside(x))


@step("int64", "int32", "int8")
def _(make: Maker, x: Any) -> Any:
    return make.b.div(make.beside(x), x)


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    low, high = make.r.choice([(-2, 3), (-2, None), (None, 3), (0, 2), (1, 1), (None, None)])
    return make.keeps(make.b.clamp(x, min_value=low, max_value=high), x)


@step(*FLOATS, "int64", "int32", "int8")
def _(make: Maker, x: Any) -> Any:
    return make.keeps(getattr(make.b, make.r.choice(["abs", "neg", "relu"]))(x), x)


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    return make.keeps(make.b.identity(x), x)


@step(*FLOATS)
def _(make: Maker, x: Any) -> Any:
    names = ["sigmoid", "tanh", "gelu", "elu", "erf", "hard_sigmoid", "hard_swish", "leaky_relu", "linear", "softsign"]
    return getattr(make.b, make.r.choice(names))(make.b.clamp(x, min_value=-8, max_value=8))


@step(*FLOATS, "int64", "int32", "int8")
def _(make: Maker, x: Any) -> Any:
    return make.b.prelu(x, make.beside(x))


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    if not make.is_exact(x):
        return None
    if is_float(x.data_type) and make.r.random() < 0.5:
        return make.keeps(getattr(make.b, make.r.choice(["floor", "ceil", "round_even", "sign"]))(x), x)
    other = make.beside(x)
    return getattr(make.b, make.r.choice(["equal", "greater", "lesser", "not_equal", "greater_or_equal"]))(x, other)


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    if is_float(x.data_type):
        if make.r.random() < 0.5:
            return make.b.cast(x, make.r.choice(make.floats(x)))
        bounded = make.b.clamp(x, min_value=-100, max_value=100)
        return make.b.cast(bounded, make.r.choice(["int8", "int32", "int64"])) if make.is_exact(x) else None
    return make.b.cast(x, make.r.choice(make.types))


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    condition = make.operand("uint8", x.shape, 0, 1)
    pair = (x, make.beside(x)) if make.r.random() < 0.5 else (make.beside(x), x)
    return make.keeps(make.b.where(condition, *pair), x)


@step("uint8")
def _(make: Maker, x: Any) -> Any:
    if make.r.random() < 0.3:
        return make.b.logical_not(x)
    return getattr(make.b, make.r.choice(["logical_and", "logical_or", "logical_xor"]))(x, make.beside(x))


# Movement ------------------------------------------------------------------------------------------------------------


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    permutation = make.r.sample(range(x.rank), x.rank)
    return make.keeps(make.b.transpose(x, permutation=permutation), x)


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    size = prod(x.shape)
    shapes = [[size], [1, size], list(reversed(x.shape)), [*x.shape, 1]]
    shapes += [[2, size // 2]] if size % 2 == 0 else []
    shapes += [[1, 4, size // 4, 1]] if size % 4 == 0 else []
    return make.keeps(make.b.reshape(x, make.r.choice(shapes)), x)


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    if x.rank == 0:
        return None
    if make.r.random() < 0.5:
        pads = [[make.r.randint(0, 2) for _ in x.shape] for _ in range(2)]
        return make.keeps(make.b.pad(x, *pads, mode=make.r.choice(["constant", "edge"]), value=1), x)
    starts = [make.r.randint(0, size - 1) for size in x.shape]
    sizes = [make.r.randint(1, size - start) for size, start in zip(x.shape, starts, strict=True)]
    return make.keeps(make.b.slice(x, starts, sizes), x)


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    if x.rank == 0:
        return None
    axis = make.axis(x)
    return make.keeps(make.b.concat([x, make.operand(x.data_type, x.shape)], axis), x)


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    if x.rank == 0 or x.shape[axis := make.axis(x)] % 2:
        return None
    parts = make.b.split(x, 2, axis=axis)
    return make.keeps(parts[make.r.randrange(2)], x)


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    if x.rank == 0:
        return None
    name = make.r.choice(["reverse", "tile", "triangular", "expand"])
    if name == "reverse":
        return make.keeps(make.b.reverse(x, axes=[make.axis(x)]), x)
    if name == "tile":
        return make.keeps(make.b.tile(x, [make.r.randint(1, 2) for _ in x.shape]), x)
    if name == "expand":
        return make.keeps(make.b.expand(x, [2, *x.shape]), x)
    if x.rank < 2:
        return None
    return make.keeps(make.b.triangular(x, upper=make.r.random() < 0.5, diagonal=make.r.randint(-2, 2)), x)


# Indices -------------------------------------------------------------------------------------------------------------


def _indices(make: Maker, shape: Sequence[int], size: int) -> Any:
    """Indices, some of which are out of range."""
    return make.operand(make.r.choice(["int32", "uint32", "int64"]), shape, -size - 2, size + 2)


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    if x.rank == 0:
        return None
    axis = make.axis(x)
    shape = make.r.choice([[300], [20, 20], [2], []])
    return make.keeps(make.b.gather(x, _indices(make, shape, x.shape[axis]), axis=axis), x)


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    if x.rank == 0:
        return None
    axis = make.axis(x)
    return make.keeps(make.b.gather_elements(x, _indices(make, x.shape, x.shape[axis]), axis=axis), x)


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    """Scatter to places that differ, since the order of others is not defined."""
    if x.rank == 0:
        return None
    axis = make.axis(x)
    size = x.shape[axis]
    line = make.numbers.permutation(size).reshape([size if k == axis else 1 for k in range(x.rank)])
    places = np.ascontiguousarray(np.broadcast_to(line, x.shape)).astype(make.r.choice(["int32", "uint32", "int64"]))
    updates = make.operand(x.data_type, x.shape)
    return make.keeps(make.b.scatter_elements(x, make.b.constant(places), updates, axis=axis), x)


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    if x.rank == 0:
        return None
    if make.r.random() < 0.5:
        places = _indices(make, [100, make.r.randint(1, x.rank)], min(x.shape))
        return make.keeps(make.b.gather_nd(x, places), x)
    count = make.r.randint(1, x.shape[0])
    order = make.numbers.permutation(x.shape[0])[:count].reshape(count, 1).astype(make.r.choice(["uint32", "int64"]))
    updates = make.operand(x.data_type, [count, *x.shape[1:]])
    return make.keeps(make.b.scatter_nd(x, make.b.constant(order), updates), x)


# Reductions ----------------------------------------------------------------------------------------------------------


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    axes = make.r.choice([None, *([axis] for axis in range(x.rank))])
    names = ["max", "min"]
    if x.data_type in (*FLOATS, "int32", "uint32", "int64", "uint64"):
        names += ["sum", "l1", "sum_square"]
    if is_float(x.data_type):
        names += ["mean", "l2"]
    name = make.r.choice(names)
    made = getattr(make.b, f"reduce_{name}")(x, axes=axes, keep_dimensions=make.r.random() < 0.5)
    return make.keeps(made, x) if name in ("max", "min") else made


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    if x.rank == 0 or not make.is_exact(x):
        return None
    name = make.r.choice(["arg_min", "arg_max"])
    return getattr(make.b, name)(x, make.axis(x), keep_dimensions=make.r.random() < 0.5, output_data_type="int32")


@step(*FLOATS, "int32", "uint32", "int64", "uint64")
def _(make: Maker, x: Any) -> Any:
    if x.rank == 0:
        return None
    return make.b.cumulative_sum(x, make.axis(x), exclusive=make.r.random() < 0.5, reversed=make.r.random() < 0.5)


# Networks ------------------------------------------------------------------------------------------------------------


@step(*FLOATS)
def _(make: Maker, x: Any) -> Any:
    if x.rank < 2:
        return None
    columns = make.r.choice([8, 40])
    right = make.operand(x.data_type, [x.shape[-1], columns], -1, 1)
    if make.r.random() < 0.5:
        return make.b.matmul(x, right)
    if x.rank != 2:
        return None
    bias = make.r.choice([None, make.operand(x.data_type, [columns]), make.operand(x.data_type, [x.shape[0], columns])])
    return make.b.gemm(x, right, c=bias, alpha=make.r.choice([1.0, 0.5]), beta=make.r.choice([1.0, 0.5]))


@step(*FLOATS)
def _(make: Maker, x: Any) -> Any:
    if x.rank != 4 or min(x.shape[2:]) < 3:
        return None
    channels, out = x.shape[1], make.r.choice([4, 16])
    bias = make.operand(x.data_type, [out]) if make.r.random() < 0.5 else None
    if make.r.random() < 0.3:
        filters = make.operand(x.data_type, [channels, out, 3, 3], -1, 1)
        return make.b.conv_transpose2d(x, filters, strides=[make.r.choice([1, 2])] * 2, bias=bias)
    filters = make.operand(x.data_type, [out, channels, 3, 3], -1, 1)
    return make.b.conv2d(x, filters, padding=[make.r.randint(0, 1) for _ in range(4)], bias=bias)


@step(*FLOATS)
def _(make: Maker, x: Any) -> Any:
    if x.rank != 4:
        return None
    if make.is_wide:
        x = make.b.clamp(x, min_value=-1000, max_value=1000)
    channels, name = x.shape[1], make.r.choice(["batch", "instance", "layer"])
    scale, bias = (make.operand(x.data_type, [channels], 0.5, 2) for _ in range(2))
    if name == "batch":
        mean, variance = make.operand(x.data_type, [channels]), make.operand(x.data_type, [channels], 0.5, 2)
        return make.b.batch_normalization(x, mean, variance, scale=scale, bias=bias)
    epsilon = 0.1
    if name == "instance":
        return make.b.instance_normalization(x, scale=scale, bias=bias, epsilon=epsilon)
    scale, bias = (make.operand(x.data_type, x.shape[2:], 0.5, 2) for _ in range(2))
    return make.b.layer_normalization(x, scale=scale, bias=bias, axes=[2, 3], epsilon=epsilon)


@step(*ALL)
def _(make: Maker, x: Any) -> Any:
    if x.rank != 4 or min(x.shape[2:]) < 3:
        return None
    window = [make.r.randint(1, 3) for _ in range(2)]
    given: dict[str, Any] = {"window_dimensions": window, "padding": [make.r.randint(0, 1) for _ in range(4)]}
    if is_float(x.data_type) and make.r.random() < 0.5:
        return getattr(make.b, make.r.choice(["average_pool2d", "l2_pool2d"]))(x, **given)
    return make.keeps(make.b.max_pool2d(x, **given), x)


@step(*FLOATS)
def _(make: Maker, x: Any) -> Any:
    if x.rank == 4 and make.r.random() < 0.5:
        sizes = [make.r.randint(1, 2 * size) for size in x.shape[2:]]
        mode = make.r.choice(["nearest-neighbor", "linear"])
        return make.b.resample2d(x, sizes=sizes, mode=mode)
    return make.b.softmax(x, make.axis(x)) if x.rank else None


@step(*FLOATS)
def _(make: Maker, x: Any) -> Any:
    if x.rank == 0 or not make.is_exact(x):
        return None
    data_type = make.r.choice(["int8", "uint8", "int32"])
    scale, zero = _scales(make, x, x.data_type, data_type)
    return make.b.quantize_linear(x, scale, zero)


@step("int8", "uint8", "int32")
def _(make: Maker, x: Any) -> Any:
    scale, zero = _scales(make, x, make.r.choice(FLOATS) if x.data_type != "int32" else "float32", x.data_type)
    return make.b.dequantize_linear(x, scale, zero)


def _scales(make: Maker, x: Any, data_type: str, integer: str) -> tuple[Any, Any]:
    axis = make.r.choice([None, *range(x.rank)])
    shape = [size if k == axis else 1 for k, size in enumerate(x.shape)]
    scale = 2.0 ** make.numbers.integers(-3, 1, shape)
    zero = make.numbers.integers(0, 5 if make.r.random() < 0.5 else 1, shape)
    return make.b.constant(np.asarray(scale, data_type)), make.b.constant(np.asarray(zero, integer))


# Cases ---------------------------------------------------------------------------------------------------------------


def build(make: Maker) -> dict[str, Any]:
    """A graph of two to four operations in a row; now and then a value in between is an output, too."""
    data_type = make.r.choice(["float32", "float32", *ALL] if make.types is ALL else make.types)
    shape = make.r.choices(SHAPES, WEIGHTS)[0]
    make.feeds["x0"] = make.array(data_type, shape)
    x = make.b.input("x0", data_type, shape)
    make.exact.add(x)
    line, wanted = [x], make.r.randint(2, 4)
    for _ in range(60):
        if len(line) > wanted:
            break
        made = make.r.choice(STEPS)(make, line[-1])
        if made is not None:
            if prod(made.shape) > 20000:
                break
            line.append(made)
    outputs = {"y": line[-1] if len(line) > 1 else make.b.identity(x)}
    if len(line) > 2 and make.r.random() < 0.3:
        outputs["z"] = make.r.choice(line[1:-1])
    return outputs


TOLERANCES = {"float32": 3e-4, "float16": 3e-2, "bfloat16": 0.2, "float8": 0.3, "float4": 0.6}


def disagreement(got: np.ndarray, wanted: np.ndarray, tolerance: float) -> str:
    """How results differ, empty where they do not; floats may by that part of the largest one."""
    if not is_float(got.dtype.name):
        wrong = got != wanted
    else:
        g, w = got.astype(np.float64), wanted.astype(np.float64)
        regular = np.isfinite(w) & (np.abs(w) < 1e4)  # what overflows float16 does so in one engine earlier
        bound = tolerance * (1 + np.max(np.abs(w), where=regular, initial=0))
        with np.errstate(invalid="ignore"):
            wrong = regular & ~(np.abs(g - w) <= bound)
    if not wrong.any():
        return ""
    at = tuple(int(k) for k in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {wrong.size} elements differ, first at {at}: {got[at]!r}, wanted {wanted[at]!r}"


def compare(rng: random.Random, number: int, backend: str = "onnxruntime", types: Sequence[str] = ALL) -> str:
    """Build the graph of a case on the engine and on the reference, run both, and compare."""
    seed, results = rng.getrandbits(64), []
    for name in ("reference", backend):
        context = ow.ml.create_context(backend=name, accelerated=False, drafts=types is not ALL)
        make = Maker(ow.MLGraphBuilder(context), random.Random(seed), types)
        outputs = build(make)
        text = str(Graph.reaching(outputs))
        try:
            graph = make.b.build(outputs)
            results.append(compute_again(context, graph, make.feeds))
        except ow.MLError as error:
            raise Finding(f"{name} refuses it: {error}\n{text}") from error
    tolerance = max(number for name, number in TOLERANCES.items() if name in text or name == "float32")
    for name, wanted in results[0].items():
        if what := disagreement(results[1][name], wanted, tolerance):
            raise Finding(f"{name}: {what}\n{text}")
    return "result"


_CAMPAIGN = Campaign(
    "graphs",
    "graphs of two to four operations with constants over 1 KiB, of all data types: cpu against reference",
    compare,
    count=20000,
    short=150,
    batch=500,
    outcomes=frozenset({"result"}),
)


def compare_further(rng: random.Random, number: int, backend: str = "onnxruntime") -> str:
    """The same for graphs that begin with a data type beyond the specification."""
    for name in BEYOND:
        numpy_type(name)
    return compare(rng, number, backend, EVERY)


_FURTHER = replace(
    _CAMPAIGN,
    name="graphs-drafts",
    about="graphs of two to four operations, of data types beyond the specification too: cpu against reference",
    case=compare_further,
)

_ALL = (
    _CAMPAIGN,
    _CAMPAIGN.on("openvino", compare, _CAMPAIGN.count),
    _FURTHER,
    _FURTHER.on("openvino", compare_further, _FURTHER.count),
)
CAMPAIGNS = {found.name: found for found in _ALL}
