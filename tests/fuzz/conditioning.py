"""Judge results of an engine by a graph's own conditioning.

A graph is evaluated in float64: once as it is, and several times with random errors of rounding in the result of each
operation. The spread of these runs is what rounding may change. Results must be as near as that, so that a sum without
cancellation is judged to its last bits, and a difference of nearly equal numbers is not. Integers, and other results of jumps,
are judged where all runs agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from opweave.backends.reference import reference
from opweave.compile.legalise import legalise
from opweave.core.graph import Graph, Node, Operand, map_operands

Array = np.ndarray

ERRORS = 4.0
"""Units of roundoff in the result of an operation: libraries of functions are off by up to two units in the last place, which
are four of these."""
MARGIN = 4.0
"""The part of the largest spread that a result may be off, since few runs do not find the largest."""
FIRST_RUNS, ALL_RUNS = 2, 32
"""Runs before a result is accepted, and before it is refused."""
UNITS = {"float32": 2.0**-24, "float16": 2.0**-11}
"""Half of a unit in the last place, relative to the number."""
BITS = {"float32": 24, "float16": 11}
TINY = {"float32": 2.0**-126, "float16": 2.0**-24}
"""What may become zero: engines flush subnormal numbers of float32."""
LARGEST = {"float32": float(np.finfo(np.float32).max), "float16": float(np.finfo(np.float16).max)}
FLOORS = {"float16": 2.0**-24}
"""The spacing of the smallest numbers of a precision that holds values of float32 in a narrower type."""
PRECISIONS = {"float32": 0.0, "ieee": 0.0, "tf32": 2.0**-11, "bfloat16": 2.0**-9, "float16": 2.0**-11}
"""The unit of roundoff that a precision allows inside of operations of float32; 0 for that of float32."""

_MOVEMENT = """
    identity transpose reshape slice split concat pad tile expand reverse triangular gather gather_elements
    gather_nd scatter_elements scatter_nd where max min clamp relu abs neg reduce_max reduce_min max_pool2d
    floor ceil round_even sign arg_min arg_max equal not_equal greater greater_or_equal lesser
    lesser_or_equal logical_not logical_and logical_or logical_xor is_nan is_infinite cast
"""
MOVEMENT = frozenset(_MOVEMENT.split())
"""Operations whose results are not rounded, or are exactly what a cast declares."""

Magnitude = Callable[[Mapping[str, Any], Array, Callable[..., Array]], Any]


@dataclass(frozen=True)
class Engine:
    """The rounding that an engine may do.

    Attributes:
        precision: the precision of its context.
        factor: its units of roundoff, relative to `ERRORS`.
        rounds_to_bytes: whether a product with a dequantised constant may round its other operand to 8 bits.
        quantises_by_range: whether a quantised value is computed from the range of its data type, as OpenVINO's FakeQuantize
            does, so that errors are relative to this range.
        keeps_running_sums: whether a normalisation over nearby channels moves its window by adding the square of one channel
            and subtracting that of another, as ONNX Runtime's LRN does, so that errors of earlier channels stay.
        adds_in_fixed_point: whether a sum of dequantised values that is quantised is computed in integers of 32 bits, as ONNX
            Runtime's QLinearAdd does, which hold the larger ratio of two scales times a byte.
        distributes: whether a product by a constant may be computed for each of the terms of the sum before, as OpenVINO does:
            x c + d c instead of (x + d) c.
    """

    precision: str = "float32"
    factor: float = 1.0
    rounds_to_bytes: bool = False
    quantises_by_range: bool = False
    keeps_running_sums: bool = False
    adds_in_fixed_point: bool = False
    distributes: bool = False


def _absolute(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {k: abs(v) if isinstance(v, np.ndarray) and v.dtype.kind == "f" else v for k, v in arguments.items()}


def _of_absolutes(a: Mapping[str, Any], _: Array, again: Callable[..., Array]) -> Any:
    """The operation on absolute values: the sum of the sizes of all terms."""
    return again(**_absolute(a))


def _gemm(a: Mapping[str, Any], _: Array, again: Callable[..., Array]) -> Any:
    return again(**{**_absolute(a), "alpha": abs(a["alpha"]), "beta": abs(a["beta"])})


def _normalized(axes: Callable[[Mapping[str, Any]], tuple[int, ...]]) -> Magnitude:
    def magnitude(a: Mapping[str, Any], y: Array, _: Callable[..., Array]) -> Any:
        x, along = a["input"], axes(a)
        deviation = np.sqrt(np.var(x, along, keepdims=True) + abs(a["epsilon"]))
        largest = abs(a["scale"]).max() if a["scale"] is not None else 1.0
        offset = abs(a["bias"]).max() if a["bias"] is not None else 0.0
        terms = abs(x) + np.mean(abs(x), along, keepdims=True)
        return largest * terms / np.maximum(deviation, 1e-30) + 2 * (abs(y) + offset)

    return magnitude


def _batch_normalization(a: Mapping[str, Any], y: Array, again: Callable[..., Array]) -> Any:
    wide = {name: a[name] if a[name] is None else abs(a[name]) for name in ("scale", "bias")}
    return abs(y) + abs(again(**{**a, **wide, "input": abs(a["input"]), "mean": -abs(a["mean"])}))


def _softmax(a: Mapping[str, Any], y: Array, _: Callable[..., Array]) -> Any:
    x = a["input"]
    with np.errstate(invalid="ignore"):
        below = np.max(x, a["axis"], keepdims=True) - x
    return y * (3 + np.where(np.isfinite(below), below, 0) + np.max(np.where(np.isfinite(x), abs(x), 0), initial=0) / 8)


def _with_operand(a: Mapping[str, Any], y: Array, _: Callable[..., Array]) -> Any:
    return abs(y) + abs(a["input"])


def _with_one(_a: Mapping[str, Any], y: Array, _: Callable[..., Array]) -> Any:
    return abs(y) + 1


_MAGNITUDES: dict[str, Magnitude] = {
    **dict.fromkeys(
        ["add", "sub", "matmul", "conv2d", "conv_transpose2d", "average_pool2d", "reduce_sum", "reduce_mean"],
        _of_absolutes,
    ),
    "sub": lambda a, y, _: abs(a["a"]) + abs(a["b"]),
    **dict.fromkeys(["reduce_l1", "cumulative_sum"], _of_absolutes),
    "gemm": _gemm,
    "exp": lambda a, y, _: y * (2 + abs(a["input"])),
    "pow": lambda a, y, _: abs(y) * (2 + abs(a["b"] * np.log(np.maximum(abs(a["a"]), 1e-300)))),
    "linear": lambda a, y, _: abs(a["alpha"] * a["input"]) + abs(a["beta"]),
    "hard_sigmoid": lambda a, y, _: abs(a["alpha"] * a["input"]) + abs(a["beta"]),
    **dict.fromkeys(["log", "tanh", "sigmoid", "erf", "softplus", "sin", "cos", "tan", "softsign"], _with_one),
    "elu": lambda a, y, _: abs(y) + abs(a["alpha"]),
    **dict.fromkeys(["gelu", "hard_swish"], _with_operand),
    "softmax": _softmax,
    "layer_normalization": _normalized(lambda a: tuple(a["axes"])),
    "instance_normalization": _normalized(lambda a: tuple(a["layout"].index(c) for c in "hw")),
    "batch_normalization": _batch_normalization,
    "reduce_log_sum": lambda a, y, _: abs(y) + 1,
    "reduce_log_sum_exp": lambda a, y, _: abs(y) + 1 + np.max(abs(a["input"]), initial=0),
    "resample2d": lambda a, y, _: np.max(abs(a["input"]), initial=0) if a["mode"] == "linear" else 0.0,
}
"""What errors of rounding are relative to, if it is not the result: the largest numbers that are added."""


def _summands(node: Node) -> int:
    """The number of terms that are added up in one element of the result."""
    inputs, name = node.inputs, node.op.name
    if name == "matmul":
        return int(inputs["a"].shape[-1])  # type: ignore[union-attr]
    if name == "gemm":
        return max(inputs["a"].shape)  # type: ignore[union-attr]
    if name in ("conv2d", "conv_transpose2d"):
        filter = inputs["filter"]
        return prod(filter.shape)  # type: ignore[union-attr]
    if name.startswith("reduce_") or name == "cumulative_sum" or name.endswith("normalization") or name == "softmax":
        return max(1, node.operands[0].desc.element_count // max(1, node.outputs[0].desc.element_count))
    if name.endswith("pool2d"):
        return prod(node.attributes["window_dimensions"])
    return 1


def _quantum(array: Array) -> float:
    """The largest power of two that divides all elements; infinite if all are zero."""
    values = array[array != 0] if array.ndim else array.reshape(-1)[array.reshape(-1) != 0]
    if not values.size:
        return float("inf")
    if not np.isfinite(values).all():
        return 0.0
    fractions, exponents = np.frexp(values)
    numbers = (fractions * 2.0**53).astype(np.int64)
    low = np.ldexp((numbers & -numbers).astype(np.float64), exponents - 53)
    return float(low.min())


def _is_power_of_two(array: Array) -> bool:
    return bool(np.all(np.abs(np.frexp(array)[0]) == 0.5))


def _is_exact(node: Node, a: Mapping[str, Any], result: Array, magnitude: Array) -> bool:
    """Whether every engine computes the result without rounding, in whatever order it adds up the terms."""
    name = node.op.name
    bits = BITS[node.outputs[0].data_type]
    if name in ("add", "sub"):
        quantum = min(_quantum(a["a"]), _quantum(a["b"]))
    elif name in ("mul", "matmul"):
        quantum = _quantum(a["a"]) * _quantum(a["b"])
    elif name == "div" and _is_power_of_two(a["b"]):
        quantum = _quantum(a["a"]) / float(abs(a["b"]).max())
    elif name in ("conv2d", "conv_transpose2d") and a["bias"] is None:
        quantum = _quantum(a["input"]) * _quantum(a["filter"])
    elif name in ("reduce_sum", "reduce_l1", "cumulative_sum"):
        quantum = _quantum(a["input"])
    elif name in ("reduce_mean", "average_pool2d"):
        count = _summands(node)
        if count & (count - 1) or any(node.attributes.get("padding", ())):
            return False
        quantum = _quantum(a["input"]) / count
    elif name == "gemm" and a["c"] is None and a["alpha"] == 1:
        quantum = _quantum(a["a"]) * _quantum(a["b"])
    elif name == "dequantize_linear":
        quantum = _quantum(a["scale"])
        magnitude = 256 * abs(a["scale"])
    else:
        return False
    largest = float(np.max(magnitude, initial=0))
    return largest == 0 or (quantum > TINY[node.outputs[0].data_type] and largest <= 2.0**bits * quantum)


class Evaluation:
    """The values of operands, computed in float64 on demand.

    Attributes:
        arrays: values by operand: float64 for floats, the declared data type for integers.
        exact: operands that every engine computes without rounding.
        undefined: operands that depend on NaN, or on a float too large for its data type.
    """

    def __init__(self, feeds: Mapping[str, Array]) -> None:
        self._feeds = feeds
        self.arrays: dict[Operand, Array] = {}
        self.exact: set[Operand] = set()
        self.undefined: set[Operand] = set()
        self.expanded: dict[Node, Graph] = {}

    def __call__(self, operand: Operand) -> Array:
        """The value of an operand."""
        if operand not in self.arrays:
            pending = [operand]
            while pending:
                last = pending[-1]
                if last in self.arrays:
                    pending.pop()
                elif last.node is None:
                    self._enter(last, last.value if last.is_constant else self._feeds[last.name])
                elif missing := [each for each in last.node.operands if each not in self.arrays]:
                    pending += missing
                else:
                    self._compute(last.node)
        return self.arrays[operand]

    def _enter(self, operand: Operand, value: Any) -> None:
        array = np.asarray(value)
        self.arrays[operand] = array.astype(np.float64) if array.dtype.kind == "f" else array
        self.exact.add(operand)

    def _graph_of(self, node: Node) -> Graph:
        """The decomposition of a node that the reference does not have as a whole."""
        if node not in self.expanded:
            operands = dict.fromkeys(node.operands)
            boundary = {operand: f"x{k}" for k, operand in enumerate(operands)}
            whole = Graph.reaching({f"y{k}": output for k, output in enumerate(node.outputs)}, boundary)
            self.expanded[node] = legalise(whole, reference.supports)[0]
        return self.expanded[node]

    def _compute(self, node: Node) -> None:
        rule = reference.rule(node)
        if rule is None:
            graph = self._graph_of(node)
            operands = list(dict.fromkeys(node.operands))
            for name, inner in graph.inputs.items():
                self._alias(inner, operands[int(name[1:])])
            for k, output in enumerate(node.outputs):
                self(graph.outputs[f"y{k}"])
                self._alias(output, graph.outputs[f"y{k}"])
            return
        arguments = {**map_operands(node.inputs, self.arrays.__getitem__), **node.attributes}
        with np.errstate(all="ignore"):
            arguments = self._disturbed(node, arguments)
            made = rule((), arguments)
            results = made if isinstance(made, tuple) else (made,)
            for output, result in zip(node.outputs, results, strict=True):
                self.arrays[output] = self._finished(node, output, arguments, np.asarray(result), rule)

    def _alias(self, operand: Operand, source: Operand) -> None:
        self.arrays[operand] = self.arrays[source]
        for words in (self.exact, self.undefined):
            if source in words:
                words.add(operand)

    def _disturbed(self, node: Node, arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    def _finished(self, node: Node, output: Operand, arguments: dict[str, Any], result: Array, rule: Any) -> Array:
        data_type = output.data_type
        inexact = any(operand not in self.exact for operand in node.operands)
        if any(operand in self.undefined for operand in node.operands):
            self.undefined.add(output)
        if data_type not in UNITS:
            if node.op.name == "quantize_linear" and not (
                _is_power_of_two(arguments["scale"]) and _quantum(arguments["input"]) > 0
            ):
                inexact = True
            if not inexact:
                self.exact.add(output)
            return result.astype(data_type)
        result = result.astype(np.float64)
        # Not below this bound is also NaN.
        is_finite = bool(abs(result).max() <= LARGEST[data_type])
        if node.op.name not in MOVEMENT:
            size = _magnitude(node, arguments, result, rule)
            if not inexact and _is_exact(node, arguments, result, size):
                self.exact.add(output)
            result = self._rounded(node, output, result, size)
        elif not inexact:
            self.exact.add(output)
        if not is_finite and not self._is_infinite_as_declared(node, result, data_type):
            self.undefined.add(output)
        return result

    def _is_infinite_as_declared(self, node: Node, result: Array, data_type: str) -> bool:
        """Whether infinities in a result come from infinities of operands, such as those of masks, and nothing is NaN."""
        if np.isnan(result).any() or (abs(result[np.isfinite(result)]) > LARGEST[data_type]).any():
            return False
        has_infinity = any(np.isinf(self.arrays[operand]).any() for operand in node.operands)
        return has_infinity and node.op.name != "cast"

    def _rounded(self, node: Node, output: Operand, result: Array, size: Any) -> Array:
        return result


class Disturbed(Evaluation):
    """A run with random errors of rounding, where the undisturbed run is not exact."""

    def __init__(self, feeds: Mapping[str, Array], base: Evaluation, engine: Engine, number: int) -> None:
        super().__init__(feeds)
        self._base, self._engine, self._number = base, engine, number
        self._unit, self._floor = PRECISIONS[engine.precision], FLOORS.get(engine.precision, 0.0)
        self._range = 256 if engine.quantises_by_range else 0
        self._numbers = np.random.default_rng(number)
        self.expanded = base.expanded

    def _noise(self, shape: Sequence[int]) -> Array:
        return self._numbers.uniform(-1, 1, shape)

    def _enter(self, operand: Operand, value: Any) -> None:
        super()._enter(operand, value)
        array = self.arrays[operand]
        if array.dtype.kind == "f" and self._number % 2:
            with np.errstate(invalid="ignore"):
                self.arrays[operand] = np.where(abs(array) < TINY["float32"], 0.0, array)

    def _disturbed(self, node: Node, arguments: dict[str, Any]) -> dict[str, Any]:
        """Round operands as a low precision may, those of products with constants of 8 bits, and quotients before ties."""
        name = node.op.name
        if self._unit and name not in ("cast", "where", "gather"):
            arguments = {
                k: v * (1 + self._unit * self._noise(v.shape)) + self._floor * self._noise(v.shape)
                if isinstance(v, np.ndarray) and v.dtype.kind == "f"
                else v
                for k, v in arguments.items()
            }
        if name in ("equal", "not_equal") and self._number % 2:
            # Rounding may make two numbers equal, which random errors never do.
            a, b = np.broadcast_arrays(arguments["a"], arguments["b"])
            bases = [self._base.arrays[operand] for operand in node.operands]
            errors = [abs(one - other) for one, other in zip((arguments["a"], arguments["b"]), bases, strict=True)]
            arguments = {**arguments, "a": np.where(abs(a - b) <= MARGIN * (errors[0] + errors[1]), b, a), "b": b}
        if name == "quantize_linear" and node.outputs[0] not in self._base.exact:
            unit = max(UNITS[node.operands[0].data_type], self._unit) * ERRORS * self._engine.factor
            spread = _repeated(arguments["scale"], arguments["input"].shape)
            zero = _repeated(arguments["zero_point"].astype(np.float64), arguments["input"].shape)
            size = abs(arguments["input"]) + abs(spread) * (1 + abs(zero) + self._range)
            error = unit * size + self._error_of_fixed_point(node.operands[0])
            arguments = {**arguments, "input": arguments["input"] + error * self._noise(size.shape)}
        if self._engine.rounds_to_bytes and name in ("matmul", "gemm"):
            for one, other in (("a", "b"), ("b", "a")):
                weight = node.inputs[other]
                assert isinstance(weight, Operand)
                if (scale := _scale_of(weight)) is None:
                    continue
                x = arguments[one]
                arguments = {**arguments, one: x + np.max(abs(x)) / 127 * self._noise(x.shape)}
                # Products by the integers and by the zero point, both unsigned, are added up apart, and then subtracted.
                is_direct = weight.node is not None and scale in weight.node.operands
                factor = (
                    _repeated(abs(self.arrays[scale]), weight.shape) if is_direct else np.max(abs(self.arrays[scale]))
                )
                size = 256 * np.broadcast_to(factor, arguments[other].shape)
                unit = UNITS["float32"] * ERRORS * max(weight.shape) ** 0.5
                arguments[other] = arguments[other] + unit * size * self._noise(size.shape)
        return arguments

    def _rounded(self, node: Node, output: Operand, result: Array, size: Any) -> Array:
        if not self._unit and output in self._base.exact:
            return result
        data_type = output.data_type
        unit = max(UNITS[data_type], self._unit) * ERRORS * self._engine.factor * (_summands(node) ** 0.5)
        size = np.where(np.isfinite(size), size, 0)
        if self._range and node.op.name == "dequantize_linear" and not node.operands[0].is_constant:
            size = size + self._range * abs(_repeated(self.arrays[node.operands[1]], result.shape))
        if self._floor and (abs(result) > LARGEST["float16"]).any():
            self.undefined.add(output)
        if node.op.name in ("mul", "div"):
            size = size + self._folded(node)
        noise = self._noise(result.shape)
        smallest = max(TINY[data_type], self._floor)
        tiny = ERRORS * smallest
        if node.op.name in ("reduce_l2", "l2_pool2d"):
            # Squares may be too small, and then be zero or lose their bits.
            tiny = tiny * _summands(node) / np.maximum(abs(result), smallest**0.5)
        disturbed: Array = result + noise * (unit * size + tiny)
        if self._number % 2:
            disturbed = np.where(abs(result) < smallest, 0.0, disturbed)
        return disturbed

    def _compute(self, node: Node) -> None:
        super()._compute(node)
        if self._engine.keeps_running_sums and node.op.name == "local_response_normalization":
            self._disturb_running_sums(node)
        if reference.rule(node) is None and self._engine.precision != "ieee":
            for output in node.outputs:
                if output.data_type == "float16" and output not in self._base.exact:
                    # Its parts end with a cast, but an engine that computes it as a whole may pass it on in float32.
                    noise = UNITS["float16"] * self._noise(output.shape)
                    self.arrays[output] = self.arrays[output] * (1 + noise)

    def _disturb_running_sums(self, node: Node) -> None:
        """Let the sums of squares be off by the errors of the sums for all channels before."""
        a, output = node.attributes, node.outputs[0]
        squares = np.square(self.arrays[node.operands[0]])
        before, after = (a["size"] - 1) // 2, a["size"] // 2
        padded = np.pad(squares, [(0, 0), (before, after), (0, 0), (0, 0)])
        sums = np.lib.stride_tricks.sliding_window_view(padded, a["size"], axis=1).sum(-1)
        factor = a["alpha"] / a["size"]
        error = UNITS["float32"] * 2 * np.cumsum(sums, 1) * self._noise(sums.shape)
        base = a["bias"] + factor * sums
        with np.errstate(all="ignore"):
            self.arrays[output] = self.arrays[output] * ((base + factor * error) / base) ** -a["beta"]

    def _error_of_fixed_point(self, operand: Operand) -> float:
        """How far a sum of two dequantised values is off if it is computed in integers.

        Each ratio of scales, and so each of 256 steps, is rounded to 2^-23 of the larger one.
        """
        node = operand.node
        if not self._engine.adds_in_fixed_point or node is None or node.op.name not in ("add", "sub"):
            return 0.0
        makers = [each.node for each in node.operands]
        scales = [self.arrays[m.operands[1]] for m in makers if m is not None and m.op.name == "dequantize_linear"]
        return 2.0**-15 * max(float(abs(scale).max()) for scale in scales) if len(scales) == 2 else 0.0

    def _folded(self, node: Node) -> Any:
        """What a factor of a convolution rounds: engines multiply the filter by it, and so each of the terms."""
        for product, factor in zip(node.operands, reversed(node.operands), strict=True):
            before, transposes = product.node, list[Node]()
            while before is not None and before.op.name == "transpose":
                transposes.insert(0, before)
                before = before.operands[0].node
            if (
                self._engine.distributes
                and before is not None
                and before.op.name in ("add", "sub")
                and _is_known(factor)
            ):
                sizes = abs(self.arrays[factor])
                terms = abs(self.arrays[before.operands[0]]) + abs(self.arrays[before.operands[1]])
                for transpose in transposes:
                    terms = np.transpose(terms, transpose.attributes["permutation"])
                return terms * (sizes if node.op.name == "mul" else 1 / np.maximum(sizes, TINY["float32"]))
            if before is None or before.op.name not in ("conv2d", "conv_transpose2d") or not _is_known(factor):
                continue
            if node.op.name == "div" and product is not node.operands[0]:
                continue
            arguments = {**map_operands(before.inputs, self.arrays.__getitem__), **before.attributes}
            rule = reference.rule(before)
            assert rule is not None
            terms = np.max(np.asarray(rule((), _absolute(arguments))), initial=0)
            sizes = abs(self.arrays[factor])
            return terms * (sizes if node.op.name == "mul" else 1 / np.maximum(sizes, TINY["float32"]))
        return 0


def _repeated(blocks: Array, shape: Sequence[int]) -> Array:
    for axis, size in enumerate(shape):
        blocks = np.repeat(blocks, size // blocks.shape[axis], axis)
    return blocks


def _is_known(operand: Operand) -> bool:
    """Whether it is computed from constants alone."""
    return operand.is_constant or (operand.node is not None and all(map(_is_known, operand.node.operands)))


def _scale_of(operand: Operand) -> Operand | None:
    """The scale of a constant that is dequantised before, and perhaps moved; None for other operands."""
    while (node := operand.node) is not None and node.op.name in ("transpose", "reshape", "identity"):
        operand = node.operands[0]
    is_weight = node is not None and node.op.name == "dequantize_linear" and node.operands[0].is_constant
    return node.operands[1] if is_weight else None  # type: ignore[union-attr]


def _magnitude(node: Node, arguments: dict[str, Any], result: Array, rule: Any) -> Any:
    magnitude = _MAGNITUDES.get(node.op.name)
    if magnitude is None:
        return abs(result)
    return magnitude(arguments, result, lambda **changed: np.asarray(rule((), changed)))


@dataclass
class Verdict:
    """What is wrong with one output.

    Attributes:
        output: its name.
        text: what is wrong, in one line.
        rows: some of the elements that differ, with what was wanted and the tolerance.
    """

    output: str
    text: str
    rows: str = ""


class Judge:
    """Compares results with a graph.

    Args:
        graph: the graph, of any builder.
        feeds: the arrays of its inputs.
        engine: the rounding that is allowed.
        base: its undisturbed evaluation, if there is one.
    """

    def __init__(
        self, graph: Graph, feeds: Mapping[str, Array], engine: Engine, base: Evaluation | None = None
    ) -> None:
        self._graph, self._feeds, self._engine = graph, feeds, engine
        self.base = base or Evaluation(feeds)
        self._runs: list[Disturbed] = []
        for output in graph.outputs.values():
            self.base(output)

    def _spread_to(self, count: int) -> None:
        while len(self._runs) < count:
            run = Disturbed(self._feeds, self.base, self._engine, len(self._runs))
            self._runs.append(run)
            for output in self._graph.outputs.values():
                run(output)

    def is_defined(self, output: Operand) -> bool:
        """Whether an output has no NaN and nothing too large behind it, in any run."""
        return all(output not in run.undefined for run in (self.base, *self._runs))

    def tolerance(self, output: Operand) -> Array:
        """How far each element may be off; infinite where integers depend on rounding."""
        wanted = self.base(output)
        if wanted.dtype.kind != "f":
            agree = np.ones(wanted.shape, bool)
            for run in self._runs:
                agree &= run(output) == wanted
            return np.where(agree, 0.0, np.inf)
        spread = np.zeros(wanted.shape)
        with np.errstate(invalid="ignore"):
            for run in self._runs:
                spread = np.maximum(spread, abs(run(output) - wanted))
            unit = max(UNITS[output.data_type], PRECISIONS[self._engine.precision])
            tiny = max(TINY[output.data_type], FLOORS.get(self._engine.precision, 0.0))
            bound = MARGIN * spread + 2 * unit * abs(wanted) + tiny
        return np.where(np.isfinite(wanted) & np.isfinite(bound), bound, np.inf)

    def verdicts(self, results: Mapping[str, Array]) -> list[Verdict]:
        """The outputs that are wrong; those that seem so after few runs are judged again after many."""
        for count in (FIRST_RUNS, ALL_RUNS):
            self._spread_to(count)
            made = [verdict for name in self._graph.outputs if (verdict := self._verdict(name, results[name]))]
            if not made:
                break
        return made

    def _verdict(self, name: str, got: Array) -> Verdict | None:
        output = self._graph.outputs[name]
        if (got.dtype.name, got.shape) != (output.data_type, output.shape):
            return Verdict(name, f"{got.dtype.name}{list(got.shape)} instead of {output.desc}")
        if not self.is_defined(output):
            return None
        wanted, tolerance = self.base(output), self.tolerance(output)
        with np.errstate(invalid="ignore", over="ignore"):
            if wanted.dtype.kind == "f":
                wrong = (tolerance < np.inf) & ~(abs(got.astype(np.float64) - wanted) <= tolerance)
            else:
                wrong = (tolerance < np.inf) & (got != wanted)
        if not wrong.any():
            return None
        rows = []
        for place in np.argwhere(wrong)[:8]:
            at = tuple(int(k) for k in place)
            rows.append(f"{list(at)}: got {got[at]!s}, wanted {wanted[at]!s}, tolerance {tolerance[at]:.2g}")
        text = f"{int(wrong.sum())} of {wrong.size} elements differ, first at {rows[0]}"
        return Verdict(name, text, "\n".join(f"  {row}" for row in rows))
