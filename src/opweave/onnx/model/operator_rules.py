"""Rules by operator, beyond those of `checks`: for nodes that ONNX Runtime's kernels do not check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ...core.shapes import broadcasts_to
from ...support.names import short_repr
from .checks import MAX_RANK
from .protobuf import NodeProto
from .tables import MICROSOFT


class EngineNode:
    """A node with the shapes and values of its inputs by position, None if unknown or absent.

    `is_decided` becomes False when a rule reads an unknown shape or value, because the rule may then miss a fault.
    """

    def __init__(
        self,
        node: NodeProto,
        shapes: Sequence[tuple[int, ...] | None],
        values: Sequence[np.ndarray | None],
    ) -> None:
        self.proto = node
        self.attributes = {attribute.name: attribute for attribute in node.attribute}
        self.is_decided = True
        self._shapes, self._values = shapes, values

    def attribute(self, name: str, field: str, default: Any) -> Any:
        """An attribute's field, such as "i", "f" or "ints"; `default` if the node does not have the attribute."""
        attribute = self.attributes.get(name)
        return default if attribute is None else getattr(attribute, field)

    def shape(self, position: int, *, decides: bool = True) -> tuple[int, ...] | None:
        """The shape of the input at `position`. An unknown shape clears `is_decided`, except with `decides=False`."""
        shape = self._shapes[position] if position < len(self._shapes) else None
        if shape is None and decides and self.is_given(position):
            self.is_decided = False
        return shape

    def is_given(self, position: int) -> bool:
        """Whether there is an input at `position`."""
        return position < len(self.proto.input) and bool(self.proto.input[position])

    def value(self, position: int) -> np.ndarray | None:
        """The value of the input at `position`."""
        value = self._values[position] if position < len(self._values) else None
        if value is None:
            self.is_decided = False
        return value


Rule = Callable[[EngineNode], str]
"""Returns the fault of a node as text for a message; empty if there is none."""


def rule_of(domain: str, op_type: str) -> Rule | None:
    """The rule of an operator of ONNX, or of ONNX Runtime; None if there is none."""
    if domain == MICROSOFT:
        from .engine_rules import ENGINE_RULES

        return ENGINE_RULES.get(op_type)
    return RULES.get(op_type)


def _split(node: EngineNode) -> str:
    declared, outputs = node.attribute("num_outputs", "i", len(node.proto.output)), len(node.proto.output)
    return "" if declared == outputs else f"num_outputs must be the number of its outputs, {outputs}, got {declared}"


def _split_to_sequence(node: EngineNode) -> str:
    split = node.value(1)
    if split is None or split.ndim or split.item() > 0:
        return ""
    return f"split must be positive, got {split.item()}"


def _einsum(node: EngineNode) -> str:
    equation = node.attribute("equation", "s", b"").decode(errors="replace").replace(" ", "")
    terms, arrow, result = equation.partition("->")
    for position, term in enumerate(terms.split(",")):
        shape = node.shape(position) or ()
        before, _, after = term.partition("...")
        labels = [*zip(before, shape, strict=False), *zip(after[::-1], shape[::-1], strict=False)]
        for label in [label for label, size in labels if size == 0]:
            if terms.count(label) > 1 and (not arrow or label not in result):
                return f"axis {label!r} of {equation!r} is summed, so it must not be empty, got the shape {list(shape)}"
    return ""


def _layer_normalization(node: EngineNode) -> str:
    axis = node.attribute("axis", "i", -1)
    if abs(axis) > MAX_RANK:
        return f"axis must be in -{MAX_RANK}..{MAX_RANK}, got {axis}"
    x = node.shape(0)
    for position, name in ((1, "scale"), (2, "bias")):
        shape = node.shape(position)
        if x is not None and shape is not None and not broadcasts_to(shape, x):
            return f"{name} must be broadcastable to {list(x)}, got the shape {list(shape)}"
    return ""


def _random_normal(node: EngineNode) -> str:
    scale = node.attribute("scale", "f", 1.0)
    return "" if scale > 0 else f"scale must be positive, got {scale:g}"


def _random_uniform(node: EngineNode) -> str:
    low, high = node.attribute("low", "f", 0.0), node.attribute("high", "f", 1.0)
    return "" if low <= high else f"low must not exceed high, got low={low:g} and high={high:g}"


def _gather_nd(node: EngineNode) -> str:
    batch_dims = node.attribute("batch_dims", "i", 0)
    return "" if 0 <= batch_dims <= MAX_RANK else f"batch_dims must be in 0..{MAX_RANK}, got {batch_dims}"


def _roi_align(node: EngineNode) -> str:
    ratio = node.attribute("sampling_ratio", "i", 0)
    return "" if ratio <= 2**15 else f"sampling_ratio must be at most {2**15}, got {ratio}"


def _tf_idf(node: EngineNode) -> str:
    skip = node.attribute("max_skip_count", "i", 0)
    if not 0 <= skip <= 2**15:
        return f"max_skip_count must be in 0..{2**15}, got {skip}"
    pool = max(len(node.attribute("pool_int64s", "ints", ())), len(node.attribute("pool_strings", "strings", ())))
    starts = [*node.attribute("ngram_counts", "ints", ()), pool]
    if any(not 0 <= start <= end for start, end in pairwise(starts)):
        return f"ngram_counts must be positions in the pool of {pool}, in order, got {short_repr(starts[:-1])}"
    expected = sum((end - start) // size for size, (start, end) in enumerate(pairwise(starts), 1))
    count = len(node.attribute("ngram_indexes", "ints", ()))
    return "" if count == expected else f"ngram_indexes must have {expected} values, one for each n-gram, got {count}"


def _unique(node: EngineNode) -> str:
    shape = node.shape(0)
    if "axis" not in node.attributes or shape is None or 0 not in shape:
        return ""
    axis = node.attribute("axis", "i", 0)
    if not -len(shape) <= axis < len(shape) or not shape[axis]:
        return ""
    return f"slices along axis {axis} must not be empty, got the shape {list(shape)}"


RULES: dict[str, Rule] = {
    "Einsum": _einsum,
    "GatherND": _gather_nd,
    "LayerNormalization": _layer_normalization,
    "RandomNormal": _random_normal,
    "RandomNormalLike": _random_normal,
    "RandomUniform": _random_uniform,
    "RandomUniformLike": _random_uniform,
    "RoiAlign": _roi_align,
    "Split": _split,
    "SplitToSequence": _split_to_sequence,
    "TfIdfVectorizer": _tf_idf,
    "Unique": _unique,
}
"""Operator of ONNX -> its further rule."""
