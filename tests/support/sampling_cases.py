"""Random nodes of ONNX's operators that sample images, and results of ONNX Runtime or of ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from opweave.composites.resample import ResizedAxis
from opweave.composites.resizing import resized_axes

from .onnx_nodes import node_model, run_engine

COUNT = 200
"""Number of random attribute sets of each operator."""


@dataclass
class Case:
    """A node, and why ONNX Runtime is not the witness; empty if it is."""

    op_type: str
    inputs: list[Any]
    attributes: dict[str, Any]
    opset: int
    differs: str = ""
    dynamic: tuple[int, ...] = (0,)
    tolerance: float = 5e-5

    def model(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        return node_model(self.op_type, self.inputs, self.attributes, opset=self.opset, dynamic=self.dynamic)

    def engine_result(self) -> np.ndarray:
        return np.asarray(run_engine(*self.model())[0])

    def expected(self) -> np.ndarray:
        """The result of the witness."""
        if not self.differs:
            return self.engine_result()
        model, feed = self.model()
        return np.asarray(ReferenceEvaluator(model).run(None, feed)[0])


def _image(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


def _odd(random: np.random.Generator, low: int = 1, high: int = 9) -> int:
    return int(random.integers(low, high + 1))


MAKERS: dict[str, Callable[[np.random.Generator], Case]] = {}


def _maker(op_type: str) -> Callable[[Callable[[np.random.Generator], Case]], None]:
    return lambda function: MAKERS.__setitem__(op_type, function)


def case(op_type: str, seed: int) -> Case:
    return MAKERS[op_type](np.random.default_rng([seed, len(op_type)]))


@_maker("GridSample")
def _(random: np.random.Generator) -> Case:
    rank = int(random.choice([2, 2, 3]))
    mode = str(random.choice(["linear", "nearest", "cubic"]))
    attributes = {
        "mode": mode,
        "padding_mode": str(random.choice(["zeros", "border", "reflection"])),
        "align_corners": int(random.integers(2)),
    }
    batches, channels = _odd(random, 1, 3), _odd(random, 1, 5)
    x = _image(random, batches, channels, *(_odd(random) for _ in range(rank)))
    reach = float(random.choice([0.9, 1.3, 3.0]))
    grid = random.uniform(-reach, reach, (batches, *(_odd(random) for _ in range(rank)), rank)).astype(np.float32)
    differs = ""
    if mode == "cubic":
        differs = "it does not move positions to the border" if attributes["padding_mode"] == "border" else ""
        differs = "it has no cubic interpolation of volumes" if rank == 3 else differs
    return Case("GridSample", [x, grid], attributes, 20, differs, dynamic=(0, 1))


_MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "asymmetric",
    "align_corners",
    "tf_crop_and_resize",
)


@_maker("Resize")
def _(random: np.random.Generator) -> Case:
    rank = int(random.choice([1, 2, 3, 4, 4, 5]))
    shape = [_odd(random, 1, 9) for _ in range(rank)]
    mode = str(random.choice(["nearest", "linear", "cubic"]))
    coordinates = str(random.choice(_MODES))
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    axes = sorted(map(int, random.permutation(rank)[: int(random.integers(1, rank + 1))]))
    attributes["axes"] = axes
    if mode == "nearest":
        attributes["nearest_mode"] = str(random.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]))
    if mode == "cubic":
        attributes["cubic_coeff_a"] = float(random.choice([-0.75, -0.5]))
    if mode == "cubic" and random.integers(2):
        attributes["exclude_outside"] = 1
    if mode != "nearest" and random.integers(3) == 0:
        attributes["antialias"] = 1
    roi = None
    if coordinates == "tf_crop_and_resize":
        starts = random.uniform(-0.2, 0.5, len(axes))
        roi = np.concatenate([starts, starts + random.uniform(0.1, 0.9, len(axes))]).astype(np.float32)
        attributes["extrapolation_value"] = 10.0
    scales = sizes = None
    if random.integers(2):
        scales = random.choice([0.5, 0.6, 0.75, 1, 1.3, 2, 2.5, 3], len(axes)).astype(np.float32)
        scales = np.maximum(scales, np.float32(1) / np.float32([shape[axis] for axis in axes])).astype(np.float32)
        scales = np.where([np.float32(shape[a]) * s < 1 for a, s in zip(axes, scales, strict=True)], 1, scales)
        scales = scales.astype(np.float32)
    else:
        sizes = np.int64([_odd(random, 1, 12) for _ in axes])
        attributes["keep_aspect_ratio_policy"] = str(random.choice(["stretch", "stretch", "not_larger", "not_smaller"]))
    node = Case("Resize", [_image(random, *shape), roi, scales, sizes], attributes, 19)
    changed = _axes_of(node)
    if any(axis.new < 1 for axis in changed) or _is_ambiguous(node, changed):
        return MAKERS["Resize"](random)
    node.differs = _difference_of_resize(node, changed)
    return node


def _axes_of(node: Case) -> list[ResizedAxis]:
    x, roi, scales, sizes = node.inputs
    attributes = node.attributes
    factors, targets = (None if array is None else tuple(array.tolist()) for array in (scales, sizes))
    policy = attributes.get("keep_aspect_ratio_policy", "stretch")
    region = None if roi is None else tuple(roi.tolist())
    coordinates = attributes["coordinate_transformation_mode"]
    return resized_axes(x.shape, factors, targets, tuple(attributes["axes"]), coordinates, region, policy)


def _difference_of_resize(node: Case, changed: list[ResizedAxis]) -> str:
    """Why ONNX's reference evaluator is the witness."""
    mode, coordinates = node.attributes["mode"], node.attributes["coordinate_transformation_mode"]
    takes_width = coordinates in ("align_corners", "tf_crop_and_resize", "pytorch_half_pixel")
    if takes_width and any(axis.width != axis.new for axis in changed):
        return "it takes the new size for the width, which is not whole"
    if coordinates == "pytorch_half_pixel" and mode == "cubic" and any(axis.new == 1 for axis in changed):
        return "the position of a single element is 0 for it, and -0.5 for the evaluator"
    if coordinates == "tf_crop_and_resize" and any(axis.new == axis.old for axis in changed):
        return "it copies axes whose size stays, whatever their region"
    if mode != "nearest":
        try:
            node.engine_result()
        except Exception as error:
            if "mode only supports" in str(error):
                return "it has no kernel for these axes"
            if "exclude_outside" in str(error):
                return "it excludes what is outside with cubic interpolation only"
            raise
    return ""


def _is_ambiguous(node: Case, changed: list[ResizedAxis]) -> bool:
    """Whether rounding decides about a position: of the nearest element in float32, or of neighbours in the evaluator.

    The evaluator takes a wrong neighbour where a position is an integer but for the last bits.
    """
    mode, coordinates = node.attributes["mode"], node.attributes["coordinate_transformation_mode"]
    for axis in changed:
        places = axis.coordinates(coordinates).astype(np.float64)
        if mode == "nearest":
            # Ties are rounded alike if the scale is exact.
            is_exact = float(axis.scale) in (0.5, 1, 2, 2.5, 3) and coordinates in ("half_pixel", "asymmetric")
            if not is_exact and np.abs(2 * places - np.round(2 * places)).min() < 1e-4:
                return True
        is_moved = coordinates == "half_pixel_symmetric" and axis.width != axis.new
        if is_moved and mode != "nearest" and np.abs(places - np.round(places)).min() < 1e-4:
            return True
    return False


@_maker("AffineGrid")
def _(random: np.random.Generator) -> Case:
    rank = int(random.choice([2, 3]))
    batches = _odd(random, 1, 3)
    theta = _image(random, batches, rank, rank + 1)
    size = np.int64([batches, _odd(random), *(_odd(random) for _ in range(rank))])
    align = int(random.integers(2))
    # A single element with aligned corners is 0/0 in the definition: the function of ONNX, and its evaluator, differ.
    size[2:] += align
    return Case("AffineGrid", [theta, size], {"align_corners": align}, 20)


@_maker("RoiAlign")
def _(random: np.random.Generator) -> Case:
    batches, channels, height, width, count = _odd(random, 1, 3), _odd(random, 1, 4), *(_odd(random) for _ in range(3))
    x = _image(random, batches, channels, height, width)
    corners = random.uniform(-4, 14, (count, 2, 2))
    corners = np.sort(corners, axis=1) if random.integers(4) else corners
    rois = corners.reshape(count, 4).astype(np.float32)
    attributes = {
        "mode": str(random.choice(["avg", "max"])),
        "output_height": _odd(random, 1, 5),
        "output_width": _odd(random, 1, 5),
        "sampling_ratio": int(random.choice([0, 1, 2, 3])),
        "spatial_scale": float(random.choice([1.0, 0.5, 1.7])),
        "coordinate_transformation_mode": str(random.choice(["half_pixel", "output_half_pixel"])),
    }
    batch = random.integers(0, batches, count)
    is_negative = attributes["sampling_ratio"] == 0 and bool((rois[:, 2:] < rois[:, :2]).any())
    differs = "it raises an error for regions of negative size" if is_negative else ""
    return Case("RoiAlign", [x, rois, batch], attributes, 16, differs, dynamic=(0, 1, 2))


@_maker("MaxRoiPool")
def _(random: np.random.Generator) -> Case:
    batches, channels, height, width, count = _odd(random, 1, 3), _odd(random, 1, 4), *(_odd(random) for _ in range(3))
    x = _image(random, batches, channels, height, width)
    corners = np.sort(random.uniform(-2, 12, (count, 2, 2)), axis=1).reshape(count, 4)
    rois = np.concatenate([random.integers(0, batches, (count, 1)), corners], axis=1).astype(np.float32)
    attributes = {
        "pooled_shape": [_odd(random, 1, 5), _odd(random, 1, 5)],
        "spatial_scale": float(random.choice([1.0, 0.5, 1.7])),
    }
    return Case("MaxRoiPool", [x, rois], attributes, 20, dynamic=(0, 1))


@_maker("CenterCropPad")
def _(random: np.random.Generator) -> Case:
    rank = _odd(random, 1, 5)
    x = _image(random, *(_odd(random) for _ in range(rank)))
    axes = list(map(int, random.permutation(rank)[: int(random.integers(1, rank + 1))]))
    sizes = np.int64([_odd(random, 1, 12) for _ in axes])
    return Case("CenterCropPad", [x, sizes], {"axes": axes}, 18)
