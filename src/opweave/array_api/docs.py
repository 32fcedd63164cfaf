"""Complete the docstrings of the standard's functions with sentences that many of them share."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..ops.docs import fill

_ARGUMENTS = {
    "axis": "the axis.",
    "copy": "has no effect: arrays do not share memory.",
    "correction": "the sum of squares is divided by the number of elements minus this.",
    "descending": "whether the largest element comes first.",
    "device": "context of the result; default: the current one.",
    "dtype": "data type of the result; default: float32.",
    "fill_value": "the value.",
    "keepdims": "whether the axes stay, with size 1.",
    "shape": "dimensions; an integer for one dimension, [] for a scalar.",
    "stable": "has no effect: equal elements always keep their order.",
    "x": "an array of any data type.",
}
IMPORTS = ">>> from opweave import array_api as xp\n"


@dataclass(frozen=True)
class Family:
    """Sentences of several functions. `arguments` take precedence over `_ARGUMENTS`, which are for all functions."""

    names: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    result: str = "An array of the shape and data type of `x`."
    error: str = "an axis is out of range, or occurs twice"


_REDUCTION = {"axis": "the axes; default: all."}
_FLOATS = {"x": "floats.", **_REDUCTION}
_SUM_DTYPE = "data type of the result; default: that of `x`, but int32 or uint32 for smaller integers"
_REDUCTION_RESULT = "An array of the data type of `x`, without these axes."
_REDUCTION_ERROR = "another data type, or an axis is out of range or occurs twice"
_OPTIONAL_AXIS = "the axis; may be left out if `x` has one dimension."

_FOURIER = {
    "n": "the length along the axis, to which `x` is cut or filled with zeros; default: its size.",
    "axis": "the axis.",
    "s": "the length along each axis, to which `x` is cut or filled with zeros; -1, or by default, its size.",
    "axes": "the axes; default: the last ones, as many as `s` has, or all.",
    "norm": 'the transform and its inverse are multiplied by 1 and 1 / n ("backward"), both by 1 / sqrt(n) ("ortho"), or '
    'by 1 / n and 1 ("forward").',
}

FAMILIES = [
    Family(
        "fft ifft fftn ifftn rfft rfftn ihfft irfft irfftn hfft",
        _FOURIER,
        "Complex numbers, complex128 for float64 and complex128, else complex64.",
        "another data type, an axis is out of range or occurs twice, a length is not positive, or another norm",
    ),
    Family("fftshift ifftshift", {"axes": "the axes; default: all."}),
    Family(
        "zeros ones empty full",
        result="An array of that shape.",
        error="an invalid shape, data type or context",
    ),
    Family(
        "zeros_like ones_like empty_like full_like",
        {
            "dtype": "data type of the result; default: that of `x`.",
            "device": "context of the result; default: that of `x`.",
        },
        "An array of the shape of `x`.",
        "`x` is not an array; an invalid data type or context",
    ),
    Family(
        "tril triu matrix_transpose",
        {"x": "any data type [..., rows, columns]."},
        error="`x` has fewer than two dimensions",
    ),
    Family(
        "sum prod",
        {"x": "integers, floats or bool.", **_REDUCTION, "dtype": f"{_SUM_DTYPE}, and int32 for bool."},
        "An array without these axes.",
        _REDUCTION_ERROR,
    ),
    Family("max min", {"x": "integers or floats.", **_REDUCTION}, _REDUCTION_RESULT, _REDUCTION_ERROR),
    Family("mean var std", _FLOATS, _REDUCTION_RESULT, _REDUCTION_ERROR),
    Family(
        "count_nonzero", _REDUCTION, "An int32 array without these axes.", "an axis is out of range or occurs twice"
    ),
    Family("all any", _REDUCTION, "A bool array without these axes.", "an axis is out of range or occurs twice"),
    Family(
        "argmax argmin",
        {
            "x": "integers or floats.",
            "axis": "the axis; default: the whole array, flattened.",
            "keepdims": "whether the axis stays, with size 1.",
        },
        "An int32 array without the axis.",
        "another data type, or the axis is out of range",
    ),
    Family(
        "cumulative_sum cumulative_prod",
        {"x": "integers or floats.", "axis": _OPTIONAL_AXIS, "dtype": f"{_SUM_DTYPE}."},
        "An array of the shape of `x`; one longer along the axis with `include_initial`.",
        "another data type, or the axis is missing or out of range",
    ),
    Family(
        "sort argsort",
        {"x": "integers or floats, of one dimension or more."},
        error="another data type, or the axis is out of range",
    ),
    Family("take", {"axis": _OPTIONAL_AXIS}),
    Family(
        "asarray from_dlpack astype", result="An array of the shape of `x`.", error="WebNN does not have the data type"
    ),
    Family("permute_dims moveaxis", result="An array with its axes in this order, in the data type of `x`."),
    Family("reshape broadcast_to", {"shape": "the new shape."}, "An array of that shape, in the data type of `x`."),
    Family("vecdot tensordot", {"x1": "integers or floats.", "x2": "integers or floats."}),
    Family("isdtype can_cast", result="True or False."),
]


def complete(functions: Mapping[str, Any]) -> None:
    """Add the Args, Returns, Raises and imports that the docstrings of functions leave out in their sources."""
    families = {name: family for family in FAMILIES for name in family.names.split()}
    for name, function in functions.items():
        if not inspect.isfunction(function) or name.startswith("_"):
            continue
        family = families.get(name, Family(name))
        arguments = {**_ARGUMENTS, **family.arguments}
        doc = inspect.cleandoc(function.__doc__ or "")
        parameters = inspect.signature(function).parameters
        function.__doc__ = fill(doc, parameters, arguments.__getitem__, family.result, family.error, IMPORTS)
