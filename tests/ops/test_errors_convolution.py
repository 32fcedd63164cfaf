"""What convolutions and resampling say about wrong arguments."""

from __future__ import annotations

from typing import Any

import messages
import pytest

VALID: dict[str, dict[str, Any]] = {
    "conv2d": {"input": (1, 4, 8, 9), "filter": (6, 4, 3, 3)},
    "conv_transpose2d": {"input": (1, 4, 8, 9), "filter": (4, 6, 3, 3), "strides": [2, 3]},
    "resample2d": {"input": (1, 4, 8, 10)},
}

ROWS: list[tuple[str, dict[str, Any], str]] = [
    ("conv2d", {"input": (4, 8, 9)}, "input must have rank 4, got float32[4, 8, 9]"),
    ("conv2d", {"filter": (6, 4, 3)}, "filter must have rank 4, got float32[6, 4, 3]"),
    ("conv2d", {"padding": [0, 0]}, "padding must have 4 values, got [0, 0]"),
    ("conv2d", {"padding": [-1, 0, 0, 0]}, "padding[0] must be in [0, 4294967295], got -1"),
    ("conv2d", {"strides": [1]}, "strides must be 2 positive integers, got [1]"),
    ("conv2d", {"strides": [1, 0]}, "strides must be 2 positive integers, got [1, 0]"),
    ("conv2d", {"dilations": [1, 1, 1]}, "dilations must be 2 positive integers, got [1, 1, 1]"),
    ("conv2d", {"dilations": [0, 1]}, "dilations must be 2 positive integers, got [0, 1]"),
    ("conv2d", {"groups": 0}, "groups must be greater than 0, got 0"),
    ("conv2d", {"groups": 2}, "the filter has 4 input channels for each of 2 groups, 8 in all, the input 4"),
    (
        "conv2d",
        {"input_layout": "nhwc"},
        "the filter has 4 input channels, the input 9 (groups=1)",
    ),
    ("conv2d", {"filter": (6, 1, 3, 3), "groups": 4}, "groups must divide the 6 output channels, got 4"),
    ("conv2d", {"bias": (4,)}, "bias must have shape [6], got float32[4]"),
    ("conv2d", {"bias": (1, 6)}, "bias must have rank 1, got float32[1, 6]"),
    (
        "conv2d",
        {"dilations": [4, 1]},
        "the filter must fit into the padded input, got float32[6, 4, 3, 3] and float32[1, 4, 8, 9]",
    ),
    ("conv2d", {"input_layout": "chw"}, "input_layout must be 'nchw' or 'nhwc', got 'chw'"),
    ("conv2d", {"filter_layout": "iohw"}, "filter_layout must be 'oihw', 'hwio', 'ohwi' or 'ihwo', got 'iohw'"),
    ("conv_transpose2d", {"padding": [1]}, "padding must have 4 values, got [1]"),
    ("conv_transpose2d", {"padding": [1], "output_sizes": [17, 27]}, "padding must have 4 values, got [1]"),
    ("conv_transpose2d", {"strides": [0, 1]}, "strides must be 2 positive integers, got [0, 1]"),
    ("conv_transpose2d", {"dilations": [2]}, "dilations must be 2 positive integers, got [2]"),
    ("conv_transpose2d", {"output_padding": [1]}, "output_padding must have 2 values, got [1]"),
    (
        "conv_transpose2d",
        {"output_padding": [1], "output_sizes": [17, 27]},
        "output_padding must have 2 values, got [1]",
    ),
    ("conv_transpose2d", {"output_padding": [2, 0]}, "output_padding must be less than strides, [2, 3], got [2, 0]"),
    ("conv_transpose2d", {"output_sizes": [17]}, "output_sizes must have 2 values, got [17]"),
    ("conv_transpose2d", {"output_sizes": [16, 27]}, "output_sizes must be in [17, 19) along h, got [16, 27]"),
    ("conv_transpose2d", {"output_sizes": [17, 30]}, "output_sizes must be in [27, 30) along w, got [17, 30]"),
    ("conv_transpose2d", {"groups": 0}, "groups must be greater than 0, got 0"),
    ("conv_transpose2d", {"groups": 3}, "groups must divide the 4 input channels, got 3"),
    (
        "conv_transpose2d",
        {"filter_layout": "hwoi"},
        "the filter must have as many input channels as the input, 4, got 3",
    ),
    ("conv_transpose2d", {"bias": (6,), "groups": 2}, "bias must have shape [12], got float32[6]"),
    (
        "conv_transpose2d",
        {"padding": [9, 8, 0, 0]},
        "the result must have dimensions in [1, 2147483647], got [1, 6, 0, 27]",
    ),
    ("resample2d", {"input": (1, 1)}, "input must have rank 4, got float32[1, 1]"),
    ("resample2d", {"scales": [1.0]}, "scales must be 2 positive numbers, got [1.0]"),
    ("resample2d", {"scales": [1.0, 0.0]}, "scales must be 2 positive numbers, got [1.0, 0.0]"),
    ("resample2d", {"scales": [0.0, 1.0], "sizes": [2, 2]}, "scales must be 2 positive numbers, got [0.0, 1.0]"),
    ("resample2d", {"scales": [1.0, float("nan")]}, "scales[1] must be a finite number, got nan"),
    (
        "resample2d",
        {"scales": [0.1, 1.0]},
        "scales must give sizes of at least 1, got [0.1, 1.0] for float32[1, 4, 8, 10]",
    ),
    (
        "resample2d",
        {"scales": [1.0, 1e300]},
        "scales must be within the range of float32, got [1.0, 1e+300]",
    ),
    ("resample2d", {"sizes": [4]}, "sizes must be 2 positive integers, got [4]"),
    ("resample2d", {"sizes": [4, 0]}, "sizes must be 2 positive integers, got [4, 0]"),
    ("resample2d", {"axes": [2]}, "axes must be 2 different integers in [0, 4), got [2]"),
    ("resample2d", {"axes": [2, 2]}, "axes must be 2 different integers in [0, 4), got [2, 2]"),
    ("resample2d", {"axes": [3, 4], "sizes": [2, 2]}, "axes must be 2 different integers in [0, 4), got [3, 4]"),
    ("resample2d", {"mode": "cubic"}, "mode must be 'nearest-neighbor' or 'linear', got 'cubic'"),
]


@pytest.mark.whole
@pytest.mark.parametrize(("name", "changed", "message"), ROWS)
def test_message(name: str, changed: dict[str, Any], message: str) -> None:
    messages.check(name, VALID[name], changed, message)
