"""Products with narrow weights, and rows of narrow tables, in all forms and on all ways: against float64.

Half of the products have inputs that 8 bits hold in blocks of 16, so that an engine that rounds them rounds nothing: results
are judged to the last bits then. The other inputs are normal, and may be rounded to 8 bits where the precision allows it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper
from support.graphs import compute_again
from support.onnx import run_again

import opweave as ow
from fuzz.frame import Campaign, Finding

TYPES = {
    "uint4": ml_dtypes.uint4,
    "int4": ml_dtypes.int4,
    "uint8": np.uint8,
    "int8": np.int8,
    "uint2": ml_dtypes.uint2,
    "int2": ml_dtypes.int2,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
COMMON = ("uint4", "int4", "uint8", "int8")
"""Data types that the standard's form of quantised models has, and three of four cases."""

RANGES = {"uint4": (0, 15), "int4": (-8, 7), "uint8": (0, 255), "int8": (-128, 127), "uint2": (0, 3), "int2": (-2, 1)}
BLOCKS = (1, 2, 3, 7, 8, 16, 16, 20, 24, 32, 32, 48, 64, 96, 128, 256, 512)
EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
FLOATS = {"float32": np.dtype("float32"), "float16": np.dtype("float16"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
OPERATIONS = ("matmul", "matmul", "matmul", "gemm", "gemm", "gather", "conv2d", "conv2d")
WAYS = ("graph", "graph", "named graph", "model", "dynamic model", "compiled model")
SIGMAS = 8
"""Standard deviations of the sum of errors of rounding to 8 bits that a result may be off."""


@dataclass
class Weight:
    """A quantised matrix, its scales and zero points as WebNN takes them, and its real values."""

    numbers: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray
    has_zero: bool

    def repeat(self, values: np.ndarray) -> np.ndarray:
        """Scales or zero points for each number, as float64."""
        values = values.astype(np.float64)
        for axis, (whole, part) in enumerate(zip(self.numbers.shape, self.scale.shape, strict=True)):
            values = np.repeat(values, whole // part, axis)
        return values

    @property
    def real(self) -> np.ndarray:
        real: np.ndarray = (self.numbers.astype(np.float64) - self.repeat(self.zero_point)) * self.repeat(self.scale)
        return real

    @property
    def largest(self) -> np.ndarray:
        """The number of all bits for each number, scaled."""
        name = self.numbers.dtype.name
        bits = 0 if name.startswith("float") else int(name.removeprefix("u").removeprefix("int"))
        return 2.0**bits * self.repeat(self.scale)


class Case:
    """A case, drawn from random numbers."""

    def __init__(self, rng: random.Random) -> None:
        self.r, self.numbers = rng, np.random.default_rng(rng.getrandbits(64))
        self.operation, self.way = rng.choice(OPERATIONS), rng.choice(WAYS)
        self.precision = rng.choice(["float32", "float32", "ieee"])
        self.float_type = rng.choice(["float32"] * 5 + ["float16"] * 2 + ["bfloat16"])
        self.integer_type = rng.choice(COMMON if rng.random() < 0.75 else list(TYPES))
        self.is_exact = rng.random() < 0.5
        self.rows = rng.choice([1, 1, 2, 3, 17, 64])
        self.columns = rng.choice([1, 2, 5, 16, 33, 64, 130])
        self.inner_block = rng.choice(BLOCKS)
        self.column_block = 1
        self.kind = rng.choice(["blocks", "blocks", "blocks", "columns", "tensor", "rows", "column blocks", "both"])
        if self.kind in ("column blocks", "both"):
            self.column_block = rng.choice([2, 3, 16, 32])
            self.columns = self.column_block * rng.randint(1, 4)
        blocks = rng.randint(1, max(1, 300 // self.inner_block))
        self.inner = (
            self.inner_block * blocks
            if self.kind in ("blocks", "both")
            else rng.choice([1, 3, 16, 31, 40, 64, 160, 300])
        )

    def weight(self) -> Weight:
        """A matrix [inner, columns]."""
        part = {
            "blocks": (self.inner // self.inner_block, self.columns),
            "columns": (1, self.columns),
            "tensor": (1, 1),
            "rows": (self.inner, 1),
            "column blocks": (self.inner, self.columns // self.column_block),
            "both": (self.inner // self.inner_block, self.columns // self.column_block),
        }[self.kind]
        low, high = RANGES.get(self.integer_type, (-16, 16))
        draw = self.numbers.integers
        numbers = draw(low, high, (self.inner, self.columns), endpoint=True).astype(TYPES[self.integer_type])
        is_float = self.integer_type.startswith("float")
        kind = self.r.choice(["none", "middle", "each", "one"])
        kind = "none" if is_float else kind
        middle = 0 if low else (high + 1) // 2
        zero = {"none": np.zeros(part), "middle": np.full(part, middle), "one": np.full(part, draw(low, high))}.get(
            kind, draw(low, high, part, endpoint=True)
        )
        scale = draw(1, 64, part) / 512
        dtype = FLOATS[self.float_type]
        return Weight(numbers, scale.astype(dtype), zero.astype(TYPES[self.integer_type]), kind != "none")

    def input(self, shape: Sequence[int], axis: int = -1) -> np.ndarray:
        """The other operand, whose terms are along `axis`."""
        if not self.is_exact:
            normal = self.numbers.normal(0, 1, shape)
            if self.r.random() < 0.2:  # blocks of zeros
                np.moveaxis(normal, axis, -1)[..., : self.inner // 2] = 0
            return normal.astype(FLOATS[self.float_type])
        x = self.numbers.integers(-127, 127, shape, endpoint=True)
        along = np.moveaxis(x, axis, -1)
        along[..., ::16] = 127  # the largest one of each block, whatever blocks an engine takes
        return (x / 128).astype(FLOATS[self.float_type])


def limit(case: Case, x: np.ndarray, weight: Weight, wanted: np.ndarray) -> np.ndarray:
    """The largest allowed error of each element of `x @ weight`, for rows of `x`."""
    # Without "ieee", products by the numbers and by the zero points are added up apart, and then subtracted.
    apart = weight.largest if case.precision != "ieee" else 0 * weight.largest
    return limit_of(case, x, weight.real, apart, wanted, may_round=case.precision != "ieee")


def limit_of(
    case: Case, x: np.ndarray, real: np.ndarray, apart: np.ndarray, wanted: np.ndarray, *, may_round: bool
) -> np.ndarray:
    size = np.abs(x.astype(np.float64))
    magnitude = size @ np.abs(real) + size @ apart
    # Sums in any order; in float16, the weights or the result may be rounded besides.
    bound = (4 + np.sqrt(len(real))) * EPSILON["float32"] * magnitude + 1e-30
    if case.float_type != "float32":
        bound += EPSILON[case.float_type] * (np.abs(wanted) + size @ np.abs(real)) + 2.0**-24
    if may_round and not case.is_exact:
        step = size.max(axis=-1, keepdims=True) / 127
        worst = step / 2 * np.abs(real).sum(axis=0)
        likely = step / np.sqrt(12) * SIGMAS * np.sqrt((real**2).sum(axis=0))
        bound += 1.02 * np.minimum(worst, likely)
    return np.asarray(bound)


# Graphs --------------------------------------------------------------------------------------------------------------


@dataclass
class Problem:
    """What is computed: a function that builds it of operands, the inputs, the result in float64, and the allowed errors."""

    build: Callable[[Any, dict[str, Any]], Any]
    nodes: Callable[[dict[str, np.ndarray]], list[onnx.NodeProto]]
    feeds: dict[str, np.ndarray]
    named: dict[str, tuple[Any, ...]]
    wanted: np.ndarray
    bound: np.ndarray


def dequantised(b: Any, weight: Weight) -> Any:
    return b.dequantize_linear(*(b.constant(a) for a in (weight.numbers, weight.scale, weight.zero_point)))


def turned(weight: Weight) -> Weight:
    numbers, scale, zero_point = (np.ascontiguousarray(a.T) for a in (weight.numbers, weight.scale, weight.zero_point))
    return Weight(numbers, scale, zero_point, weight.has_zero)


def dequantises(weight: Weight, output: str, constants: dict[str, np.ndarray]) -> onnx.NodeProto | None:
    """A DequantizeLinear; None if ONNX has no such scales."""
    shape, part = weight.numbers.shape, weight.scale.shape
    varying = [axis for axis, size in enumerate(part) if size != 1]
    attributes: dict[str, int] = {}
    scale, zero = weight.scale, weight.zero_point
    if not varying:
        scale, zero = scale.reshape(()), zero.reshape(())
    elif len(varying) == 1 and part[varying[0]] == shape[varying[0]]:
        attributes["axis"] = varying[0]
        scale, zero = scale.reshape(-1), zero.reshape(-1)
    else:
        blocked = [axis for axis in range(2) if part[axis] != shape[axis]]
        if len(blocked) != 1:
            return None
        attributes = {"axis": blocked[0], "block_size": shape[blocked[0]] // part[blocked[0]]}
    constants |= {f"{output}_q": weight.numbers, f"{output}_s": scale}
    names = [f"{output}_q", f"{output}_s"]
    if weight.has_zero:
        constants[f"{output}_z"] = zero
        names.append(f"{output}_z")
    return helper.make_node("DequantizeLinear", names, [output], **attributes)


def matmul(case: Case) -> Problem:
    weight, r = case.weight(), case.r
    is_left = r.random() < 0.25
    is_turned = r.random() < 0.5
    outer = r.choice([(), (), (2,), (1, 3)])
    x = case.input((*outer, case.rows, case.inner))
    real, stored = weight.real, turned(weight) if is_turned else weight
    bound = limit(case, x, weight, wanted := x.astype(np.float64) @ real)
    if is_left:  # the transposed product
        x, wanted, bound = (np.ascontiguousarray(np.swapaxes(a, -1, -2)) for a in (x, wanted, bound))

    def build(b: Any, inputs: dict[str, Any]) -> Any:
        w = dequantised(b, stored)
        w = b.transpose(w) if is_turned != is_left else w
        return b.matmul(w, inputs["x"]) if is_left else b.matmul(inputs["x"], w)

    def nodes(constants: dict[str, np.ndarray]) -> list[onnx.NodeProto]:
        if (first := dequantises(stored, "w", constants)) is None:
            return []
        steps, name = [first], "w"
        if is_turned != is_left:
            steps.append(helper.make_node("Transpose", ["w"], ["v"], perm=[1, 0]))
            name = "v"
        return [*steps, helper.make_node("MatMul", [name, "x"] if is_left else ["x", name], ["y"])]

    axis = len(x.shape) - (1 if is_left else 2)
    return Problem(build, nodes, {"x": x}, {"x": with_name(x, axis)}, wanted, bound)


def gemm(case: Case) -> Problem:
    weight, r = case.weight(), case.r
    is_left, a_transpose, b_transpose = r.random() < 0.25, r.random() < 0.5, r.random() < 0.5
    alpha, beta = r.choice([1.0, 1.0, 0.5]), r.choice([1.0, 1.0, 2.0])
    # The product is x @ real, or its transpose.
    x, real = case.input((case.rows, case.inner)), weight.real
    wanted = alpha * (x.astype(np.float64) @ real)
    bound = alpha * limit(case, x, weight, wanted)
    if case.float_type != "float32":
        bound += EPSILON[case.float_type] * np.abs(wanted)
    if is_left:
        wanted, bound = wanted.T, bound.T
    rows, columns = wanted.shape
    shape = r.choice([None, (columns,), (1, columns), (rows, columns), (rows, 1), (1,), ()])
    c = None if shape is None else np.asarray(case.numbers.normal(0, 1, shape)).astype(FLOATS[case.float_type])
    c_is_constant = r.random() < 0.7
    if c is not None:
        wanted = wanted + beta * c.astype(np.float64)
        bound = bound + 4 * EPSILON[case.float_type] * (np.abs(wanted) + np.abs(beta * c.astype(np.float64)))
    is_turned = a_transpose != is_left if is_left else b_transpose
    stored = turned(weight) if is_turned else weight
    other = x.T if (not b_transpose if is_left else a_transpose) else x
    other = np.ascontiguousarray(other)
    feeds = {"x": other} | ({} if c is None or c_is_constant else {"c": c})

    def build(b: Any, inputs: dict[str, Any]) -> Any:
        pair = [inputs["x"], dequantised(b, stored)]
        term = None if c is None else inputs.get("c") if not c_is_constant else b.constant(c)
        return b.gemm(
            *(pair[::-1] if is_left else pair),
            c=term,
            alpha=alpha,
            beta=beta,
            a_transpose=a_transpose,
            b_transpose=b_transpose,
        )

    def nodes(constants: dict[str, np.ndarray]) -> list[onnx.NodeProto]:
        if (first := dequantises(stored, "w", constants)) is None:
            return []
        if c is not None and c_is_constant:
            constants["c"] = c
        names = [*(("w", "x") if is_left else ("x", "w")), *([] if c is None else ["c"])]
        attributes: dict[str, Any] = {"transA": int(a_transpose), "transB": int(b_transpose)}
        return [first, helper.make_node("Gemm", names, ["y"], alpha=alpha, beta=beta, **attributes)]

    axis = (1 if b_transpose is False else 0) if is_left else (1 if a_transpose else 0)
    named = {"x": with_name(other, axis)} | ({} if "c" not in feeds else {"c": feeds["c"].shape})
    return Problem(build, nodes, feeds, named, wanted, bound)


def gather(case: Case) -> Problem:
    weight = case.weight()
    count = len(weight.numbers)
    shape = case.r.choice([(), (1,), (5,), (2, 3)])
    indices = case.numbers.integers(-count, count, shape).astype(case.r.choice(["int32", "int64"]))
    exact = weight.real.astype(FLOATS[case.float_type])

    def build(b: Any, inputs: dict[str, Any]) -> Any:
        return b.gather(dequantised(b, weight), inputs["i"])

    def nodes(constants: dict[str, np.ndarray]) -> list[onnx.NodeProto]:
        first = dequantises(weight, "w", constants)
        return [] if first is None else [first, helper.make_node("Gather", ["w", "i"], ["y"])]

    wanted = exact[indices]
    named: dict[str, tuple[Any, ...]] = {"i": with_name(indices, 0) if indices.ndim else ()}
    return Problem(build, nodes, {"i": indices}, named, wanted, np.zeros(wanted.shape))


def conv2d(case: Case) -> Problem:
    """A convolution, whose filter is dequantised as a matrix, or as it is."""
    r, base = case.r, case.weight()
    kernel = r.choice([k for k in ((1, 1), (1, 1), (3, 3), (2, 1), (1, 5)) if case.inner % (k[0] * k[1]) == 0])
    groups = r.choice([g for g in (1, 1, 2, case.columns) if case.columns % g == 0])
    channels, columns = case.inner // (kernel[0] * kernel[1]), case.columns // groups
    padding, strides = [r.choice([0, 0, 1, 2]) for _ in range(4)], [r.choice([1, 1, 2]) for _ in range(2)]
    weight, shape = turned(base), [case.columns, channels, *kernel]
    is_direct = weight.scale.shape[1] == 1 and r.random() < 0.5
    height, width = kernel[0] + r.randint(0, 3), kernel[1] + r.randint(0, 4)
    x = case.input((1, groups * channels, height, width), axis=1)
    top, bottom, left, right = padding
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (top, bottom), (left, right)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, (2, 3))[:, :, :: strides[0], :: strides[1]]
    results, bounds = [], []
    for group in range(groups):
        rows = windows[:, group * channels : (group + 1) * channels].transpose(0, 2, 3, 1, 4, 5)
        rows = rows.reshape(*rows.shape[:3], -1)
        real = base.real[:, group * columns : (group + 1) * columns]
        results.append(rows @ real)
        # The engine may compute a convolution by other sums of the elements, such as Winograd's.
        bounds.append(4 * limit_of(case, rows, real, 0 * real, results[-1], may_round=False))
    wanted, bound = (
        np.ascontiguousarray(np.concatenate(parts, -1).transpose(0, 3, 1, 2)) for parts in (results, bounds)
    )

    def direct() -> Weight:
        sizes = [len(weight.scale), 1, 1, 1]
        arrays = weight.numbers.reshape(shape), weight.scale.reshape(sizes), weight.zero_point.reshape(sizes)
        return Weight(*arrays, weight.has_zero)

    def build(b: Any, inputs: dict[str, Any]) -> Any:
        filters = dequantised(b, direct()) if is_direct else b.reshape(dequantised(b, weight), shape)
        return b.conv2d(inputs["x"], filters, padding=padding, strides=strides, groups=groups)

    def nodes(constants: dict[str, np.ndarray]) -> list[onnx.NodeProto]:
        if (first := dequantises(direct() if is_direct else weight, "w", constants)) is None:
            return []
        pads = [top, left, bottom, right]
        attributes: dict[str, Any] = {"pads": pads, "strides": strides, "group": groups}
        if is_direct:
            return [first, helper.make_node("Conv", ["x", "w"], ["y"], **attributes)]
        constants["shape"] = np.array(shape, np.int64)
        reshape = helper.make_node("Reshape", ["w", "shape"], ["v"])
        return [first, reshape, helper.make_node("Conv", ["x", "v"], ["y"], **attributes)]

    return Problem(build, nodes, {"x": x}, {"x": with_name(x, 2)}, wanted, bound)


def with_name(array: np.ndarray, axis: int) -> tuple[Any, ...]:
    return tuple("n" if k == axis else size for k, size in enumerate(array.shape))


PROBLEMS = {"matmul": matmul, "gemm": gemm, "gather": gather, "conv2d": conv2d}


# Cases ---------------------------------------------------------------------------------------------------------------


def run_graph(case: Case, problem: Problem, context: ow.MLContext, *, named: bool) -> tuple[np.ndarray, bool]:
    b = ow.MLGraphBuilder(context)
    shapes = problem.named if named else {name: array.shape for name, array in problem.feeds.items()}
    inputs = {name: b.input(name, array.dtype.name, shapes[name]) for name, array in problem.feeds.items()}  # type: ignore[arg-type]
    graph = b.build({"y": problem.build(b, inputs)})
    text = graph.explain()
    return compute_again(context, graph, problem.feeds)["y"], "narrow numbers" in text


def run_model(case: Case, problem: Problem, context: ow.MLContext) -> tuple[np.ndarray, bool] | None:
    constants: dict[str, np.ndarray] = {}
    nodes = problem.nodes(constants)
    if not nodes:
        return None
    shapes = problem.named if case.way == "dynamic model" else {n: a.shape for n, a in problem.feeds.items()}
    element = helper.np_dtype_to_tensor_dtype(FLOATS[case.float_type])
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shapes[name])
        for name, array in problem.feeds.items()
    ]
    outputs = [helper.make_tensor_value_info("y", element, [None] * problem.wanted.ndim)]
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "narrow", inputs, outputs, initializers)
    opset, version = (25, 13) if case.integer_type.endswith("int2") else (21, 10)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=version)
    specialise: Any = "always" if case.way == "compiled model" else "auto"
    session = ow.InferenceSession(model, context, specialise=specialise)
    return run_again(session, problem.feeds, ["y"])[0], False


@cache
def context_of(backend: str, device: str, precision: str) -> ow.MLContext:
    if device:
        return ow.ml.create_context(device=device, backend=backend, precision=precision, drafts=True)  # type: ignore[call-overload]
    return ow.ml.create_context(backend=backend, accelerated=False, precision=precision, drafts=True)  # type: ignore[call-overload]


def obstacle(backend: str, device: str) -> str:
    """Why a device cannot be used here; empty if it can."""
    try:
        context_of(backend, device, "float32")
    except ow.MLError as error:
        return str(error)
    return ""


def compare(rng: random.Random, number: int, backend: str = "onnxruntime", device: str = "") -> str:
    """Compute a case, and compare it with float64."""
    case = Case(rng)
    problem = PROBLEMS[case.operation](case)
    context = context_of(backend, device, case.precision)
    is_graph = case.way in ("graph", "named graph")
    try:
        result = (
            run_graph(case, problem, context, named=case.way == "named graph")
            if is_graph
            else run_model(case, problem, context)
        )
    except ow.MLError as error:
        raise Finding(f"{describe_case(case)}: {error}") from error
    if result is None:
        return "no such model"
    got, is_narrow = result
    if got.dtype.name != case.float_type or got.shape != problem.wanted.shape:
        raise Finding(f"{describe_case(case)}: got {got.dtype}{got.shape}")
    errors = np.abs(got.astype(np.float64) - problem.wanted)
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where(errors <= problem.bound, 0, errors / problem.bound)
    if not (errors <= problem.bound).all():
        raise Finding(
            f"{describe_case(case)}: {int((errors > problem.bound).sum())} of {errors.size} elements are beyond their limits, "
            f"by a factor of up to {excess.max():.3g}; the largest error is {errors.max():.3g} of "
            f"{np.abs(problem.wanted).max():.3g}"
        )
    return "narrow" if is_narrow else "result"


def describe_case(case: Case) -> str:
    return ", ".join(f"{name} {value}" for name, value in vars(case).items() if name not in ("r", "numbers"))


_CAMPAIGN = Campaign(
    "narrow",
    "products and convolutions with weights of 2 to 8 bits, and rows of such tables: graphs and models against float64",
    compare,
    count=20000,
    short=120,
    batch=500,
    outcomes=frozenset({"narrow", "result", "no such model"}),
)


def _gpu(backend: str, device: str, count: int, short: int) -> Campaign:
    return replace(
        _CAMPAIGN,
        name=f"narrow-{device}",
        about=f"{_CAMPAIGN.about}, on {device}",
        case=partial(compare, backend=backend, device=device),
        count=count,
        short=short,
        batch=250,
        memory=None,
        seconds=120,
        obstacle=partial(obstacle, backend, device),
    )


_ALL = (
    _CAMPAIGN,
    _CAMPAIGN.on("openvino", compare, _CAMPAIGN.count),
    _gpu("webgpu", "gpu-software", 20_000, 40),
    _gpu("cuda", "cuda", 2_000, 40),
)
CAMPAIGNS = {campaign.name: campaign for campaign in _ALL}
