"""What the reductions say about wrong arguments."""

from __future__ import annotations

from typing import Any

import pytest

import opweave as ow

CONTEXT = ow.ml.create_context(device="reference")
REDUCTIONS = [
    "reduce_l1",
    "reduce_l2",
    "reduce_log_sum",
    "reduce_log_sum_exp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_product",
    "reduce_sum",
    "reduce_sum_square",
]

VALID: dict[str, dict[str, Any]] = {
    "arg_min": {"axis": 1},
    "arg_max": {"axis": 1},
    "cumulative_sum": {"axis": 1},
    **{name: {"axes": [1, 0]} for name in REDUCTIONS},
}

ROWS: list[tuple[str, dict[str, Any], str]] = [
    *((name, {"axis": 2}, "axis must be in [0, 2), got 2") for name in ("arg_min", "arg_max", "cumulative_sum")),
    ("arg_min", {"output_data_type": "uint32"}, "output_data_type must be int32 or int64, got uint32"),
    ("arg_max", {"output_data_type": "float32"}, "output_data_type must be int32 or int64, got float32"),
    *((name, {"axes": [0, 2]}, "axes must be in [0, 2), got [0, 2]") for name in REDUCTIONS),
    *((name, {"axes": [1, 1]}, "axes must differ, got [1, 1]") for name in REDUCTIONS),
]


@pytest.mark.parametrize("name", VALID)
def test_reduction_valid_calls(name: str) -> None:
    builder = ow.MLGraphBuilder(CONTEXT)
    getattr(builder, name)(builder.input("input", "float32", (2, 3)), **VALID[name])


@pytest.mark.whole
@pytest.mark.parametrize(("name", "changed", "message"), ROWS)
def test_message(name: str, changed: dict[str, Any], message: str) -> None:
    builder = ow.MLGraphBuilder(CONTEXT)
    input = builder.input("input", "float32", (2, 3))
    with pytest.raises(ow.ValidationError) as error:
        getattr(builder, name)(input, **{**VALID[name], **changed, "label": "stem"})
    assert str(error.value) == f"{name} 'stem': {message}"
