"""Tolerances for the results of operations, by operation, data type and number of terms.

The limits come from the Web Platform Tests of WebNN (`resources/utils.js` there): units in the last place (ULP) of the
expected element, or an absolute difference. A test compares them with the tolerances of the test cases. Two rules are added
for networks, whose tensors are larger than the tensors of the test cases:

- elements near zero: a sum of large terms that cancel has an error in units of the terms, not of the sum. The size of a
  typical element covers most cases. For elements that are still beyond, the sum of the magnitudes of the terms is computed;
- sums of n terms: the error grows with n in the worst case, and with sqrt(n) in practice (N. Higham, T. Mary,
  "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019, theorem 3.1).

`tools/diff_models.py` looks for operations of real models that are beyond their tolerances; there should be none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np

from ...backends import Precision
from ...core.graph import Node, Operand
from ..drawing.picture import is_built_in

LONG_SUM = 64
"""Number of terms up to which the limit of a sum is the worst case, 1 ULP for each term. Beyond it, the limit grows with the
square root: an estimate that allows for other orders of summation and for products by Winograd's method."""

UNKNOWN_ULP = 1024
"""The limit for operations that the Web Platform Tests do not have (composites, custom ones): 1.2e-4 relative for float32."""

MAX_NEAR_ZERO = 18
"""Maximum ULP of the typical element for element-wise functions and normalisations: the ULP of most activations. Near a zero
of the function, the errors of the engines' formulas are in units of the input."""

UNIT: Mapping[Precision, float] = {"float32": 0.0, "ieee": 0.0, "tf32": 2**-10, "bfloat16": 2**-7, "float16": 2**-10}
"""Distance from 1 to the next number of the type to which engines may round float32; 0 if they must not round."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The tolerance for the results of a node. An element passes if it is within any of the limits.

    Attributes:
        ulp: units in the last place of the expected element; for integers the difference.
        absolute: the absolute difference.
        near_zero: units in the last place of the typical element; 0 for operations that round once.
        rounding: relative to the typical element, for engines that round float32 to a smaller type.
        terms: the number of terms of the sum behind an element; 0 if there is no sum.
        factor: of the rounding errors of this sum.
    """

    ulp: float
    absolute: float = 0.0
    near_zero: float = 0.0
    rounding: float = 0.0
    terms: int = 0
    factor: float = 1.0

    def __str__(self) -> str:
        parts = [f"{self.ulp:.4g} ULP"] if self.ulp else []
        parts += [f"{self.absolute:.3g}"] if self.absolute else []
        parts += [f"{self.rounding:.2g} of a typical element, for the precision"] if self.rounding else []
        return (" or ".join(parts) or "none: exactly equal") + (f" ({self.terms:,} terms)" if self.terms > 1 else "")

    def limits(
        self, expected: np.ndarray, typical: float, unit_type: Any, magnitudes: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the largest allowed difference for each element.

        Args:
            expected: the right elements, of any data type.
            typical: size of a typical element of the tensor.
            unit_type: floating-point type whose last place is the unit; None for integers.
            magnitudes: for each element, sum(abs(terms)), of the shape of `expected`; None if unknown.

        Returns:
            Numbers of the shape of `expected`.
        """
        if unit_type is None:
            return np.full(expected.shape, max(self.ulp, self.absolute))
        info = np.finfo(unit_type)
        with np.errstate(all="ignore"):
            magnitude = np.minimum(np.abs(expected), float(info.max)).astype(unit_type)
            unit = np.spacing(magnitude).astype(np.float64)
        unit[~np.isfinite(unit)] = 0.0
        limit = self.ulp * unit
        floor = max(self.absolute, self.near_zero * float(info.eps) * typical, self.rounding * typical)
        if self.ulp:
            # Engines may flush denormal numbers, in operands and in results.
            floor = max(floor, float(info.tiny))
        if self.rounding:
            limit = np.maximum(limit, self.rounding * np.abs(np.asarray(expected, np.float64)))
        if magnitudes is not None and self.factor:
            # Rounding errors of a sum in any order: (8 + sqrt(n)) u sum(|terms|) with u = eps / 2. With random signs they are
            # below lambda sqrt(n) u sum(|terms|), and lambda = 1 is rarely reached; 8 leaves room for short sums.
            limit = np.maximum(limit, self.factor * (4 + sqrt(self.terms) / 2) * float(info.eps) * magnitudes)
        return np.asarray(np.maximum(limit, floor))


def tolerance_of(node: Node, precision: Precision = "float32", factor: float = 1.0) -> Tolerance:
    """Return the tolerance for the results of a node; its unit is that of the first result's data type.

    `precision` is the precision of the less precise context, or "float16" if inputs were rounded to float16. `factor`
    multiplies all limits.
    """
    is_float = node.outputs[0].data_type in ("float32", "float16")
    half = node.outputs[0].data_type == "float16"
    terms = 0
    ulp = near_zero = absolute = rounding = 0.0
    if not is_built_in(node):
        reads_floats = any(operand.data_type in ("float32", "float16") for operand in node.operands)
        ulp, near_zero = (UNKNOWN_ULP, UNKNOWN_ULP) if is_float else (int(reads_floats), 0)
    elif not is_float:
        ulp = 1 if node.op.name == "quantize_linear" else 0
    elif (rule := _SUMS.get(node.op.name)) is not None:
        terms = _terms(node)
        ulp = rule(node, min(terms, sqrt(LONG_SUM * terms)))
        near_zero = 4 + 2 * sqrt(terms)
    elif node.op.name in _ABSOLUTE:
        absolute = _ABSOLUTE[node.op.name][half]
    else:
        is_copy = node.op.name == "resample2d" and node.attributes["mode"] == "nearest-neighbor"
        ulp = _FIXED[node.op.name][half] if node.op.name in _FIXED and not is_copy else 0
        near_zero = 0 if node.op.name in _ROUND_ONCE else min(ulp, MAX_NEAR_ZERO)
    if is_float:
        rounding = UNIT[precision] * (8 + sqrt(terms)) * factor
    return Tolerance(ulp * factor, absolute * factor, near_zero * factor, rounding, terms, factor)


# ULP for float32 and for float16; operations that are in no table copy elements or compare them, and are exact.
_FIXED: dict[str, tuple[float, float]] = {
    "add": (1, 1),
    "batch_normalization": (6, 6),
    "cast": (1, 1),
    "dequantize_linear": (1, 1),
    "div": (2, 2),
    "elu": (18, 18),
    "exp": (32, 1),
    "gelu": (18, 18),
    "hard_sigmoid": (2, 2),
    "hard_swish": (4, 4),
    "instance_normalization": (840, 8400),
    "layer_normalization": (14, 14),
    "leaky_relu": (1, 2),
    "linear": (2, 2),
    "mul": (1, 1),
    "pow": (32, 2),
    "prelu": (1, 1),
    "reciprocal": (2, 2),
    "resample2d": (84, 84),
    "sigmoid": (34, 10),
    "softplus": (18, 18),
    "softsign": (3, 3),
    "sqrt": (1, 1),
    "sub": (1, 1),
    "tanh": (16, 16),
}
_ROUND_ONCE = frozenset({"add", "sub", "mul", "div", "sqrt", "reciprocal", "cast", "dequantize_linear", "prelu"})
_ABSOLUTE: dict[str, tuple[float, float]] = {
    "cos": (1 / 1024, 1 / 512),
    "erf": (1 / 1024, 1 / 512),
    "log": (1 / 1024, 1 / 1024),
    "sin": (1 / 1024, 1 / 512),
    "tan": (1 / 1024, 1 / 512),
}


def _gemm(node: Node, terms: float) -> float:
    has_c = node.inputs["c"] is not None
    return 2 * terms + has_c + int(node.attributes["alpha"] != 1) + int(has_c and node.attributes["beta"] != 1)


def _recurrent(node: Node, terms: float) -> float:
    # The cases have 3 ULP a step, for sums of 6 terms; the functions of the gates have up to 34.
    return (2 * terms + 34) * int(node.attributes.get("steps", 1))


_SUMS: dict[str, Callable[[Node, float], float]] = {
    **dict.fromkeys(("average_pool", "average_pool2d"), lambda node, terms: terms + 2),
    **dict.fromkeys(("conv2d", "convolution"), lambda node, terms: 2 * terms),
    **dict.fromkeys(("conv_transpose", "conv_transpose2d"), lambda node, terms: 2 * terms),
    "cumulative_sum": lambda node, terms: max(terms - 1, 1),
    "gemm": _gemm,
    "gru": _recurrent,
    "gru_cell": _recurrent,
    "l2_pool2d": lambda node, terms: terms + 2,
    "lstm": _recurrent,
    "lstm_cell": _recurrent,
    "matmul": lambda node, terms: 2 * terms,
    "reduce_l1": lambda node, terms: terms,
    "reduce_l2": lambda node, terms: 2 * terms + 2,
    "reduce_log_sum": lambda node, terms: terms + 18,
    "reduce_log_sum_exp": lambda node, terms: 2 * terms + 18,
    "reduce_mean": lambda node, terms: terms + 2,
    "reduce_product": lambda node, terms: terms,
    "reduce_sum": lambda node, terms: terms,
    "reduce_sum_square": lambda node, terms: 2 * terms,
    "softmax": lambda node, terms: 3 * terms + 3,
}
"""Sums: limit in ULP by the number of terms."""


def _terms(node: Node) -> int:
    """Count the terms of the sum behind an element of the result."""
    name, inputs, attributes = node.op.name, node.inputs, node.attributes
    first = node.operands[0]
    shape: tuple[int, ...] = first.shape
    if name in ("conv2d", "conv_transpose2d"):
        taps = inputs["filter"]
        assert isinstance(taps, Operand)
        sizes: dict[str, int] = dict(zip(attributes["filter_layout"], taps.shape, strict=True))
        summed = sizes["i"] if name == "conv2d" else sizes["i"] // int(attributes["groups"])
        return sizes["h"] * sizes["w"] * summed
    if name in ("convolution", "conv_transpose"):
        taps = inputs["filter"]
        assert isinstance(taps, Operand)
        summed = taps.shape[1] if name == "convolution" else taps.shape[0] // int(attributes["groups"])
        return int(prod(taps.shape[2:])) * summed
    if name == "average_pool":
        return int(prod(attributes["window_dimensions"]))
    if name == "gemm":
        return shape[0 if attributes["a_transpose"] else 1]
    if name == "matmul":
        return shape[-1]
    if name in ("average_pool2d", "l2_pool2d"):
        layout: str = attributes["layout"]
        return int(prod(attributes["window_dimensions"] or (shape[layout.index("h")], shape[layout.index("w")])))
    if name in ("gru", "lstm", "gru_cell", "lstm_cell"):
        return shape[-1] + int(attributes["hidden_size"])
    if name in ("softmax", "cumulative_sum"):
        return shape[int(attributes["axis"])]
    return int(prod(shape[axis] for axis in attributes["axes"]))


def scale_of(node: Node, sizes: Mapping[str, float]) -> float:
    """Estimate the size of a typical element if the terms of its sum do not cancel; 0: use the size of the result instead.

    `sizes` are the root mean squares of the operands, by parameter.
    """
    pairs: dict[str, tuple[str, str]] = {
        **dict.fromkeys(("conv2d", "conv_transpose2d", "convolution", "conv_transpose"), ("input", "filter")),
        "gemm": ("a", "b"),
        "matmul": ("a", "b"),
    }
    if node.op.name in pairs:
        first, second = pairs[node.op.name]
        return sqrt(_terms(node)) * sizes.get(first, 0.0) * sizes.get(second, 0.0)
    size = sizes.get("input", 0.0)
    if node.op.name in ("reduce_sum", "cumulative_sum"):
        return sqrt(_terms(node)) * size
    if node.op.name == "linear":
        return size * abs(float(node.attributes["alpha"]))
    return size if node.op.name in _LIKE_INPUT else 0.0


_LIKE_INPUT = frozenset(
    [
        *("average_pool", "average_pool2d", "batch_normalization", "elu", "gelu", "hard_swish", "reduce_mean"),
        *("resample2d", "softplus", "tanh"),
    ]
)
"""Operations whose results are as large as their input, unless terms cancel."""


LINEAR = frozenset(
    [
        *("average_pool", "average_pool2d", "conv2d", "conv_transpose", "conv_transpose2d", "convolution"),
        *("cumulative_sum", "gemm", "matmul", "reduce_mean", "reduce_sum"),
    ]
)
"""Operations f, sums of products or of elements, for which f(abs(operands)) = sum(abs(terms))."""


def ops_with_rules() -> set[str]:
    """Return the names of the operations in the tables."""
    return {*_FIXED, *_ABSOLUTE, *_SUMS}
