"""What pooling says about wrong arguments."""

from __future__ import annotations

from typing import Any

import pytest

import opweave as ow

CONTEXT = ow.ml.create_context(device="reference")

ROWS: list[tuple[dict[str, Any], str]] = [
    ({"input": (3, 7, 8)}, "input must have rank 4, got float32[3, 7, 8]"),
    ({"window_dimensions": [3]}, "window_dimensions must be 2 positive integers, got [3]"),
    ({"window_dimensions": [0, 3]}, "window_dimensions must be 2 positive integers, got [0, 3]"),
    (
        {"window_dimensions": [3], "output_sizes": [1, 1]},
        "window_dimensions must be 2 positive integers, got [3]",
    ),
    ({"padding": [1, 1]}, "padding must have 4 values, got [1, 1]"),
    ({"padding": [1, 1], "output_sizes": [1, 1]}, "padding must have 4 values, got [1, 1]"),
    ({"strides": [2]}, "strides must be 2 positive integers, got [2]"),
    ({"strides": [0, 2]}, "strides must be 2 positive integers, got [0, 2]"),
    ({"dilations": [1, 0]}, "dilations must be 2 positive integers, got [1, 0]"),
    ({"window_dimensions": [8, 2]}, "a window of [8, 2] must fit into the padded input, got float32[1, 3, 7, 8]"),
    ({"dilations": [1, 2]}, "a window of [7, 8] must fit into the padded input, got float32[1, 3, 7, 8]"),
    (
        {"layout": "nhwc", "window_dimensions": [4, 4]},
        "a window of [4, 4] must fit into the padded input, got float32[1, 3, 7, 8]",
    ),
    ({"output_sizes": [1]}, "output_sizes must have 2 values, got [1]"),
    ({"window_dimensions": [2, 2], "output_sizes": [5, 5]}, "output_sizes must be [6, 7], got [5, 5]"),
    (
        {"window_dimensions": [2, 3], "strides": [2, 2], "output_sizes": [3, 4]},
        "output_sizes must be [3, 3] or [4, 4], got [3, 4]",
    ),
    ({"layout": "chw"}, "layout must be 'nchw' or 'nhwc', got 'chw'"),
    ({"output_shape_rounding": "round"}, "output_shape_rounding must be 'floor' or 'ceil', got 'round'"),
]


def call(name: str, arguments: dict[str, Any]) -> Any:
    builder = ow.MLGraphBuilder(CONTEXT)
    options = {"input": (1, 3, 7, 8), **arguments}
    return getattr(builder, name)(builder.input("input", "float32", options.pop("input")), **options)


@pytest.mark.parametrize("name", ["average_pool2d", "l2_pool2d", "max_pool2d"])
def test_pooling_valid_calls(name: str) -> None:
    call(name, {})


@pytest.mark.parametrize("name", ["average_pool2d", "l2_pool2d", "max_pool2d"])
@pytest.mark.whole
@pytest.mark.parametrize(("changed", "message"), ROWS)
def test_message(name: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ow.ValidationError) as error:
        call(name, {**changed, "label": "stem"})
    assert str(error.value) == f"{name} 'stem': {message}"
