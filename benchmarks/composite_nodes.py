"""ONNX nodes that become composites, beside ONNX Runtime's kernels: a table of docs/composites.md.

Each node is a model, which Opweave compiles whole, and which ONNX Runtime runs unchanged. Both get arrays and return arrays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper, shape_inference

import opweave as ow

from .measure import Ratio, calls_within, per_call
from .rows import onnxruntime_session

MICROSOFT = "com.microsoft"

MAX_RATIO = 1.05
"""Most of ONNX Runtime's time that a node may take, as the lower quartile."""

MIN_SECONDS = 1e-4
"""Nodes that take less are not compared: the ways into the engine and back count there, not kernels."""

TURNS, SECONDS, PAUSE_SECONDS = 11, 0.02, 0.05
"""How many pairs are measured, for how long, and after which pause: threads of the other session spin for about 50 ms."""

MIN_CALLS = 3
"""At least this many calls are a turn."""

RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class NodeCase:
    """A node of ONNX.

    Attributes:
        inputs: arrays by position, None for an absent one.
        size: the text that names the sizes.
        fed: positions of the inputs that a call passes; the others are constants of the model.
    """

    operator: str
    inputs: Sequence[np.ndarray | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    size: str = ""
    domain: str = ""
    opset: int = 21
    outputs: int = 1
    fed: Sequence[int] = (0,)

    def model(self) -> tuple[ModelProto, dict[str, np.ndarray]]:
        """The model of the node, and what to feed it."""
        names = ["" if array is None else f"x{k}" for k, array in enumerate(self.inputs)]
        arrays = {name: array for name, array in zip(names, self.inputs, strict=True) if array is not None}
        feed = {names[k]: arrays[names[k]] for k in self.fed}
        results = [f"y{k}" for k in range(self.outputs)]
        node = helper.make_node(self.operator, names, results, domain=self.domain, **self.attributes)
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in feed.items()
        ]
        constants = [numpy_helper.from_array(array, name) for name, array in arrays.items() if name not in feed]
        outputs = [ValueInfoProto(name=name) for name in results]
        graph = helper.make_graph([node], "node", inputs, outputs, constants)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        return shape_inference.infer_shapes(model), feed


@dataclass(frozen=True)
class Comparison:
    """Seconds of a node in Opweave and in ONNX Runtime, and how Opweave runs it."""

    case: NodeCase
    ours: float
    theirs: float
    ratio: Ratio
    kinds: str

    @property
    def is_slow(self) -> bool:
        """Whether the node takes clearly more than ONNX Runtime's time."""
        return self.ratio.low > MAX_RATIO and self.theirs >= MIN_SECONDS

    def cells(self) -> list[str]:
        """The row of the table."""
        times = [f"{seconds * 1e3:.3g} ms" for seconds in (self.theirs, self.ours)]
        return [self.case.operator, self.case.size, self.kinds, *times, str(self.ratio)]


@cache
def context() -> ow.MLContext:
    return ow.ml.create_context(device="cpu")


def measure(case: NodeCase) -> Comparison:
    """Measure a node in pairs of calls."""
    model, feed = case.model()
    data = model.SerializeToString()
    session = ow.InferenceSession(data, context(), fallback="error", specialise="always")
    engine = onnxruntime_session(data)
    ways: dict[str, Callable[[], object]] = {
        "ours": lambda: session.run(None, feed),
        "theirs": lambda: engine.run(None, feed),
    }
    for ours, theirs in zip(ways["ours"](), ways["theirs"](), strict=True):  # type: ignore[call-overload]
        assert ours.shape == theirs.shape, case.operator
    times = least(ways)
    ours, theirs = (float(np.median(times[name])) for name in ("ours", "theirs"))
    return Comparison(case, ours, theirs, Ratio.of(times["ours"], times["theirs"]), _kinds(model))


def least(ways: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """The shortest call of each turn, in seconds: what else runs on the machine makes calls longer, never shorter."""
    counts = {name: max(MIN_CALLS, calls_within(way, SECONDS)) for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            time.sleep(PAUSE_SECONDS)
            times[name].append(min(per_call(ways[name], 1) for _ in range(counts[name])))
    return times


def _kinds(model: ModelProto) -> str:
    """How Opweave runs the node: "native" for one kernel of the engine, "expression" for a loop, and so on."""
    placements = ow.onnx.load(model, context()).placements()
    return ", ".join(dict.fromkeys(placement.how for placement in placements))


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def fractions(*shape: int) -> np.ndarray:
    """Numbers in [0, 1)."""
    return RNG.random(shape, "float32")


def bytes_of(*shape: int, data_type: str = "uint8") -> np.ndarray:
    info = np.iinfo(data_type)
    return RNG.integers(info.min, info.max, shape, endpoint=True).astype(data_type)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


Cases: TypeAlias = "Iterator[NodeCase]"


def elementwise() -> Cases:
    for shape in ((1, 64, 128, 128), (7, 33, 1001)):
        size = "x".join(map(str, shape))
        for name in ("Acos", "Asin", "Atan", "Atanh"):
            yield NodeCase(name, [fractions(*shape) * 0.9], size=size)
        for name in ("Acosh", "Asinh", "Cosh", "Sinh"):
            yield NodeCase(name, [fractions(*shape) + 1], size=size)
        integers = RNG.integers(-1000, 1000, shape).astype("int32")
        for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
            yield NodeCase(name, [integers, integers[::-1].copy()], size=f"{size}, int32", fed=(0, 1))
        yield NodeCase("BitwiseNot", [integers], size=f"{size}, int32")
        unsigned = integers.view("uint32")
        shift = {"direction": "LEFT"}
        yield NodeCase("BitShift", [unsigned, unsigned % 32], shift, f"{size}, uint32", fed=(0, 1))
        yield NodeCase("ThresholdedRelu", [floats(*shape)], {"alpha": 0.5}, size)
        yield NodeCase("QuickGelu", [floats(*shape)], {}, size, MICROSOFT)
        yield NodeCase("FastGelu", [floats(*shape), floats(shape[-1])], {}, size, MICROSOFT)
        yield NodeCase("Gelu", [floats(*shape)], {"approximate": "tanh"}, size)
    for rows, columns in ((1000, 1024), (1023, 1001), (64, 50000)):
        size = f"{rows}x{columns}"
        yield NodeCase("LogSoftmax", [floats(rows, columns)], {"axis": -1}, size)
        yield NodeCase("Hardmax", [floats(rows, columns)], {"axis": -1}, size)
        axis = np.array(1)
        yield NodeCase("TopK", [floats(rows, columns), ints(10)], {}, f"10 of {size}", outputs=2)
        yield NodeCase("CumProd", [fractions(rows, columns) + 0.5, axis], {}, f"{size}, axis 1", opset=26)
        yield NodeCase("CumProd", [fractions(rows, columns) + 0.5, axis * 0], {}, f"{size}, axis 0", opset=26)
        numbers = RNG.integers(1, 3, (rows, columns)).astype("int32")
        yield NodeCase("CumProd", [numbers, axis], {"reverse": 1}, f"{size}, int32, reversed", opset=26)
        rolled = {"exclusive": 1}
        yield NodeCase("CumProd", [floats(1, rows, columns), axis], rolled, f"1x{size}, axis 1, exclusive", opset=26)


def normalizations() -> Cases:
    for rows, hidden in ((512, 768), (101, 1000)):
        size = f"{rows}x{hidden}"
        x, skip, scale = floats(1, rows, hidden), floats(1, rows, hidden), floats(hidden)
        yield NodeCase("SimplifiedLayerNormalization", [x, scale], {"axis": -1}, size)
        yield NodeCase("RMSNormalization", [x, scale], {"axis": -1}, size, opset=23)
        pair: dict[str, Any] = {"fed": (0, 1), "domain": MICROSOFT}
        yield NodeCase("SkipSimplifiedLayerNormalization", [x, skip, scale], {}, size, **pair)
        yield NodeCase("SkipLayerNormalization", [x, skip, scale], {}, size, **pair)
    for shape in ((1, 64, 56, 56), (2, 30, 31, 33)):
        size = "x".join(map(str, shape))
        yield NodeCase("LRN", [floats(*shape)], {"size": 5}, size)
        groups = {"num_groups": shape[1] // 2}
        yield NodeCase(
            "GroupNormalization", [floats(*shape), floats(shape[1]), floats(shape[1])], groups, size, opset=21
        )


def windows() -> Cases:
    for channels, sizes in ((16, (16, 28, 28)), (7, (9, 31, 33))):
        size = f"{channels}x{'x'.join(map(str, sizes))}"
        x, w = floats(1, channels, *sizes), floats(24, channels, 3, 3, 3)
        pads = {"pads": [1] * 6}
        yield NodeCase("Conv", [x, w, floats(24)], pads, f"{size}, 24 filters of 3x3x3")
        strides = {"strides": [2, 2, 2]}
        yield NodeCase("Conv", [x, w], strides, f"{size}, 24 filters of 3x3x3, strides")
        back = floats(channels, 12, 3, 3, 3)
        yield NodeCase("ConvTranspose", [x, back, floats(12)], {}, f"{size}, 12 filters of 3x3x3")
        yield NodeCase("ConvTranspose", [x, back], strides, f"{size}, 12 filters of 3x3x3, strides")
        window = {"kernel_shape": [3, 3, 3], "strides": [2, 2, 2]}
        yield NodeCase("AveragePool", [x], window, f"{size}, 3x3x3")
        yield NodeCase("AveragePool", [x], {**window, "pads": [1] * 6}, f"{size}, 3x3x3, padded")
        yield NodeCase("MaxPool", [x], {**window, "pads": [1] * 6}, f"{size}, 3x3x3, padded")
        yield NodeCase("MaxPool", [x], window, f"{size}, 3x3x3, indices", outputs=2)
        yield NodeCase("LpPool", [x], {**window, "p": 2}, f"{size}, 3x3x3")
    for channels, length in ((64, 4000), (33, 3001)):
        size = f"{channels}x{length}"
        x = floats(1, channels, length)
        yield NodeCase("Conv", [x, floats(32, channels, 5)], {"pads": [2, 2]}, f"{size}, 32 filters of 5")
        yield NodeCase("ConvTranspose", [x, floats(channels, 32, 4)], {"strides": [2]}, f"{size}, 32 filters of 4")
        yield NodeCase("MaxPool", [x], {"kernel_shape": [3], "strides": [2]}, f"{size}, 3")
        yield NodeCase("AveragePool", [x], {"kernel_shape": [3], "strides": [2]}, f"{size}, 3")
    for channels, side in ((32, 56), (13, 61)):
        size = f"{channels}x{side}x{side}"
        x, halves = floats(1, channels, side, side), floats(1, channels, side // 2, side // 2)
        taps = channels * 9
        columns = floats(1, taps, (side - 2) ** 2)
        yield NodeCase("Col2Im", [columns, ints(side, side), ints(3, 3)], {}, f"{size}, 3x3", opset=18)
        places = np.arange(halves.size, dtype=np.int64).reshape(halves.shape) * 4
        double = {"kernel_shape": [2, 2], "strides": [2, 2]}
        yield NodeCase("MaxUnpool", [halves, places], double, f"{size}, 2x2", fed=(0, 1))
        offset, mask = floats(1, 18, side - 2, side - 2), fractions(1, 9, side - 2, side - 2)
        parts = [x, floats(16, channels, 3, 3), offset, None, mask]
        yield NodeCase("DeformConv", parts, {"kernel_shape": [3, 3]}, f"{size}, 3x3", opset=19, fed=(0, 2, 4))


def sampling() -> Cases:
    for channels, side in ((16, 64), (3, 101)):
        size = f"{channels}x{side}x{side}"
        x = floats(1, channels, side, side)
        for mode, coordinates, target in (
            ("nearest", "asymmetric", 2 * side),
            ("nearest", "half_pixel", 150),
            ("linear", "half_pixel", 2 * side),
            ("linear", "align_corners", 150),
            ("linear", "half_pixel", 47),
            ("cubic", "half_pixel", 2 * side),
            ("cubic", "align_corners", 75),
        ):
            attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
            shape = ints(1, channels, target, target)
            yield NodeCase("Resize", [x, None, None, shape], attributes, f"{size} to {target}, {mode}, {coordinates}")
        for mode in ("linear", "cubic"):
            shape = ints(1, channels, 31, 31)
            attributes = {"mode": mode, "antialias": 1}
            yield NodeCase("Resize", [x, None, None, shape], attributes, f"{size} to 31, {mode}, antialiased")
        for mode in ("linear", "nearest", "cubic"):
            for padding in ("zeros", "border", "reflection"):
                attributes = {"mode": mode, "padding_mode": padding}
                grid = (RNG.random((1, 80, 77, 2)) * 2.4 - 1.2).astype("float32")
                yield NodeCase("GridSample", [x, grid], attributes, f"{size} at 80x77, {mode}, {padding}", fed=(0, 1))
        theta = floats(2, 2, 3)
        yield NodeCase("AffineGrid", [theta, ints(2, 3, 4 * side, 3 * side)], {}, f"{4 * side}x{3 * side}", opset=20)
        corners = fractions(100, 2) * side * 0.6
        rois = np.concatenate([corners, corners + fractions(100, 2) * side * 0.4], 1).astype("float32")
        images = np.zeros(100, np.int64)
        for mode in ("avg", "max"):
            attributes = {"output_height": 7, "output_width": 7, "sampling_ratio": 2, "mode": mode}
            yield NodeCase("RoiAlign", [x, rois, images], attributes, f"{size}, 100 regions, {mode}", fed=(0, 1, 2))
        whole = np.concatenate([np.zeros((100, 1), "float32"), rois], 1)
        pooled = {"pooled_shape": [7, 7]}
        for count in (20, 100):
            yield NodeCase("MaxRoiPool", [x, whole[:count]], pooled, f"{size}, {count} regions", fed=(0, 1))
    for whole_shape, sizes, axes in (
        ((64, 255, 255), (224, 224), (1, 2)),
        ((64, 224, 224), (256, 255), (1, 2)),
        ((64, 255, 101), (224, 224), (1, 2)),
        ((301, 333, 3), (224, 400), (0, 1)),
        ((1001, 1003), (1000, 1100), (0, 1)),
    ):
        name = f"{'x'.join(map(str, whole_shape))} to {'x'.join(map(str, sizes))}"
        yield NodeCase("CenterCropPad", [floats(*whole_shape), ints(*sizes)], {"axes": list(axes)}, name, opset=18)
    volume = floats(1, 4, 16, 24, 24)
    grid = (RNG.random((1, 16, 20, 21, 3)) * 2.4 - 1.2).astype("float32")
    for mode in ("linear", "nearest"):
        yield NodeCase("GridSample", [volume, grid], {"mode": mode}, f"4x16x24x24, {mode}, zeros", fed=(0, 1))
    shape = ints(1, 4, 32, 48, 48)
    yield NodeCase("Resize", [volume, None, None, shape], {"mode": "linear"}, "4x16x24x24 to 32x48x48, linear")


def movement() -> Cases:
    for shape, block in (((1, 64, 128, 128), 2), ((2, 27, 65, 63), 3)):
        size = f"{'x'.join(map(str, shape))} by {block}"
        for mode in ("DCR", "CRD"):
            yield NodeCase("DepthToSpace", [floats(*shape)], {"blocksize": block, "mode": mode}, f"{size}, {mode}")
        batches, channels, height, width = shape
        wide = floats(batches, channels // block**2, height * block, width * block)
        yield NodeCase("SpaceToDepth", [wide], {"blocksize": block}, f"{size}")
    for rows, columns, count in ((1000, 256, 1000), (333, 1001, 500)):
        size = f"{count} rows of {rows}x{columns}"
        data, updates = floats(rows, columns), floats(count, columns)
        places = RNG.integers(0, rows, (count, columns))
        for reduction in ("add", "max", "mul"):
            attributes = {"axis": 0, "reduction": reduction}
            yield NodeCase(
                "ScatterElements", [data, places, updates], attributes, f"{size}, {reduction}", fed=(0, 1, 2)
            )
        indices = RNG.integers(0, 1000, count)
        pair = np.array([0.0, 1.0], "float32")
        yield NodeCase("OneHot", [indices, np.array(1000), pair], {}, f"{count} of 1000")


def transforms() -> Cases:
    for rows, length, parts in (
        (100, 256, 1),
        (100, 400, 1),
        (64, 1000, 2),
        (64, 509, 2),
        (64, 521, 2),
        (64, 1021, 2),
        (8, 1021, 1),
        (16, 2039, 2),
        (4, 4099, 1),
        (1, 10007, 2),
        (1, 65521, 1),
    ):
        kind = "complex" if parts == 2 else "real"
        yield NodeCase("DFT", [floats(rows, length, parts)], {}, f"{rows} of {length} {kind}", opset=20)
    signal = floats(1, 16000, 1)
    for size, step in ((400, 160), (512, 128), (256, 100)):
        window = np.hanning(size).astype("float32")
        yield NodeCase(
            "STFT", [signal, np.array(step), window, np.array(size)], {}, f"16000 by frames of {size}, step {step}"
        )


def matrices() -> Cases:
    for count, size in ((1000, 3), (200, 8), (20, 33)):
        x = floats(count, size, size) + np.eye(size, dtype="float32") * (size + 1)
        yield NodeCase("Det", [x], {}, f"{count} of {size}x{size}")
        yield NodeCase("Inverse", [x], {}, f"{count} of {size}x{size}", MICROSOFT)


def integers() -> Cases:
    one, zero = np.array(0.02, "float32"), np.array(3, "uint8")
    quarter, other = np.array(0.03, "float32"), np.array(7, "uint8")
    for rows, inner, columns in ((256, 512, 512), (101, 333, 257)):
        size = f"{rows}x{inner} by {inner}x{columns}"
        a, b = bytes_of(rows, inner), bytes_of(inner, columns)
        signed = bytes_of(inner, columns, data_type="int8")
        yield NodeCase("MatMulInteger", [a, b, zero, zero], {}, size)
        yield NodeCase("MatMulInteger", [a, signed, zero], {}, f"{size}, int8")
        yield NodeCase("MatMulInteger", [a, b, zero, zero], {}, f"{size}, both fed", fed=(0, 1))
        quantised = [a, one, zero, b, quarter, zero, np.array(3.0, "float32"), other]
        yield NodeCase("QLinearMatMul", quantised, {}, size)
        scales = fractions(columns)
        to_float = [a, b, one, scales, zero, None, floats(columns)]
        yield NodeCase("MatMulIntegerToFloat", to_float, {}, size, MICROSOFT)
        dynamic = [floats(rows, inner), b, scales]
        yield NodeCase("DynamicQuantizeMatMul", dynamic, {}, size, MICROSOFT)
    for channels, side in ((32, 56), (13, 61)):
        size = f"{channels}x{side}x{side}"
        x, w = bytes_of(1, channels, side, side), bytes_of(32, channels, 3, 3)
        pads = {"pads": [1, 1, 1, 1]}
        yield NodeCase("ConvInteger", [x, w, zero, zero], pads, f"{size}, 32 filters of 3x3")
        bias = RNG.integers(-1000, 1000, 32).astype("int32")
        parts = [x, one, zero, w, quarter, zero, np.array(3.0, "float32"), other, bias]
        yield NodeCase("QLinearConv", parts, pads, f"{size}, 32 filters of 3x3")
        each = [x, one, zero, w, fractions(32) / 16, np.full(32, 3, "uint8"), np.array(3.0, "float32"), other]
        yield NodeCase("QLinearConv", each, pads, f"{size}, 32 filters, scales of each")
    for shape in ((1, 64, 128, 128), (3, 33, 101, 51)):
        size = "x".join(map(str, shape))
        x, y = bytes_of(*shape), bytes_of(*shape)
        options: dict[str, Any] = {"size": size, "domain": MICROSOFT}
        two = [x, one, zero, y, quarter, other, quarter, other]
        for name in ("QLinearAdd", "QLinearMul"):
            yield NodeCase(name, two, fed=(0, 3), **options)
        one_by_one = [x, one, zero, quarter, other]
        yield NodeCase("QLinearSigmoid", one_by_one, **options)
        yield NodeCase("QLinearLeakyRelu", one_by_one, {"alpha": 0.1}, **options)
        yield NodeCase("QLinearSoftmax", one_by_one, {"axis": -1, "opset": 13}, **options)
        joined: list[Any] = [quarter, other, x, one, zero, y, quarter, other]
        for axis in (0, 1, 3):
            named = {**options, "size": f"two of {size}, axis {axis}"}
            yield NodeCase("QLinearConcat", joined, {"axis": axis}, fed=(2, 5), **named)
        equal: list[Any] = [quarter, other, x, quarter, other, y, quarter, other]
        yield NodeCase("QLinearConcat", equal, {"axis": 1}, fed=(2, 5), **{**options, "size": f"{size}, equal scales"})
        chosen = [x > 99, x, one, zero, y, quarter, other, quarter, other]
        yield NodeCase("QLinearWhere", chosen, fed=(0, 1, 4), **options)
        window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        yield NodeCase("QLinearAveragePool", one_by_one, window, **options)
        yield NodeCase("QLinearGlobalAveragePool", one_by_one, {"channels_last": 0}, **options)
        yield NodeCase("DynamicQuantizeLinear", [floats(*shape)], {}, size, outputs=3)


FAMILIES: tuple[Callable[[], Cases], ...] = (
    elementwise,
    normalizations,
    windows,
    sampling,
    movement,
    transforms,
    matrices,
    integers,
)


def cases(operators: Sequence[str] = ()) -> list[NodeCase]:
    """The nodes of some operators; of all, if none are named."""
    every = [case for family in FAMILIES for case in family()]
    return [case for case in every if not operators or case.operator in operators]
