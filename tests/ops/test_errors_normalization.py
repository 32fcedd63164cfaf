"""What the normalisations and softmax say about wrong arguments."""

from __future__ import annotations

from typing import Any

import messages
import pytest

BATCH = {"input": (2, 3, 4, 5), "mean": (3,), "variance": (3,), "scale": (3,), "bias": (3,)}
INSTANCE = {"input": (2, 3, 4, 5), "scale": (3,), "bias": (3,)}
LAYER = {"input": (2, 3, 4, 5), "scale": (5, 3), "bias": (5, 3), "axes": [3, 1]}
VALID: dict[str, dict[str, Any]] = {
    "batch_normalization": BATCH,
    "instance_normalization": INSTANCE,
    "layer_normalization": LAYER,
    "softmax": {"input": (2, 3), "axis": 1},
}

AXIS_1 = "[3], the size of axis 1 of input"
CHANNELS = "[3], the channels of input"
AXES = "[5, 3], the sizes of the axes [3, 1] of input"
ROWS: list[tuple[str, dict[str, Any], str]] = [
    ("batch_normalization", {"axis": 4}, "axis must be in [0, 4), got 4"),
    ("batch_normalization", {"mean": (4,)}, f"mean must have shape {AXIS_1}, got float32[4]"),
    ("batch_normalization", {"variance": (1,)}, f"variance must have shape {AXIS_1}, got float32[1]"),
    ("batch_normalization", {"scale": (2,)}, f"scale must have shape {AXIS_1}, got float32[2]"),
    ("batch_normalization", {"bias": (5,)}, f"bias must have shape {AXIS_1}, got float32[5]"),
    ("batch_normalization", {"axis": 3}, "mean must have shape [5], the size of axis 3 of input, got float32[3]"),
    ("batch_normalization", {"epsilon": float("nan")}, "epsilon must be a finite number, got nan"),
    ("instance_normalization", {"scale": (4,)}, f"scale must have shape {CHANNELS}, got float32[4]"),
    ("instance_normalization", {"bias": (1,)}, f"bias must have shape {CHANNELS}, got float32[1]"),
    ("instance_normalization", {"layout": "nhwc"}, "scale must have shape [5], the channels of input, got float32[3]"),
    ("instance_normalization", {"layout": "hwc"}, "layout must be 'nchw' or 'nhwc', got 'hwc'"),
    ("layer_normalization", {"axes": [3, 4]}, "axes must be in [0, 4), got [3, 4]"),
    ("layer_normalization", {"axes": [1, 1]}, "axes must differ, got [1, 1]"),
    ("layer_normalization", {"scale": (3, 5)}, f"scale must have shape {AXES}, got float32[3, 5]"),
    ("layer_normalization", {"bias": (5,)}, f"bias must have shape {AXES}, got float32[5]"),
    (
        "layer_normalization",
        {"axes": None},
        "scale must have shape [3, 4, 5], the sizes of the axes [1, 2, 3] of input, got float32[5, 3]",
    ),
    ("softmax", {"axis": 2}, "axis must be in [0, 2), got 2"),
]


@pytest.mark.whole
@pytest.mark.parametrize(("name", "changed", "message"), ROWS)
def test_message(name: str, changed: dict[str, Any], message: str) -> None:
    messages.check(name, VALID[name], changed, message)
