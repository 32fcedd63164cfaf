"""Convolutions, poolings, normalisations and recurrent networks of ONNX, on WebNN graphs against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import helper
from support.onnx_nodes import (
    CONTEXT,
    MICROSOFT,
    check_agreement,
    model_of,
    node_model,
    randn,
    reasons as reasons_of,
    run_engine,
)

from opweave.onnx.session.session import InferenceSession

AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def check_operator(
    op_type: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    **options: Any,
) -> None:
    """Require that WebNN computes a node whose first input is not a constant, and finds the engine's results."""
    model, feed = node_model(op_type, inputs, attributes, **options)
    found = InferenceSession(model, CONTEXT, fallback="error").run(None, feed)
    for ours, theirs in zip(found, run_engine(model, feed), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)


def reasons(op_type: str, inputs: Sequence[Any], attributes: Mapping[str, Any] | None = None, **options: Any) -> str:
    """Why a node falls back, which must not change its results."""
    model, feed = node_model(op_type, inputs, attributes, **options)
    (reason,) = reasons_of(check_agreement(model, feed, fallback=True))
    return reason


# Convolutions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("auto_pad", AUTO_PADS)
@pytest.mark.parametrize("strides", [[1, 1], [2, 3]])
def test_conv(auto_pad: str, strides: list[int]) -> None:
    inputs = [randn(2, 4, 11, 8), randn(6, 4, 3, 2), randn(6)]
    check_operator("Conv", inputs, {"auto_pad": auto_pad, "strides": strides})
    if not auto_pad.startswith("SAME"):  # the engine has no dilations then
        check_operator("Conv", inputs, {"auto_pad": auto_pad, "strides": strides, "dilations": [2, 1]})


def test_conv_options() -> None:
    x = randn(1, 4, 9, 9)
    check_operator("Conv", [x, randn(8, 2, 3, 3), randn(8)], {"group": 2, "pads": [1, 0, 2, 3], "kernel_shape": [3, 3]})
    check_operator("Conv", [x, randn(4, 1, 3, 3)], {"group": 4, "pads": [1, 1, 1, 1]})
    check_operator("Conv", [x, randn(8, 4, 3, 3), randn(8)], dynamic=(0, 1, 2))
    check_operator("Conv", [x, randn(8, 4, 3, 3)], opset=7)


@pytest.mark.parametrize("auto_pad", AUTO_PADS)
def test_conv_of_one_axis(auto_pad: str) -> None:
    attributes = {"auto_pad": auto_pad, "strides": [2], "group": 2}
    attributes |= {} if auto_pad.startswith("SAME") else {"dilations": [2]}
    check_operator("Conv", [randn(2, 4, 13), randn(6, 2, 3), randn(6)], attributes)
    check_operator("Conv", [randn(2, 4, 13), randn(6, 2, 3), randn(6)], attributes, dynamic=(0, 1, 2))


def test_conv_of_three_axes() -> None:
    inputs = [randn(1, 2, 4, 5, 6), randn(4, 1, 2, 3, 2), randn(4)]
    check_operator("Conv", inputs, {"group": 2, "strides": [1, 2, 1]})
    check_operator("Conv", inputs, {"group": 2, "pads": [1, 0, 1, 0, 2, 1]}, dynamic=(0, 1, 2))


@pytest.mark.parametrize("auto_pad", AUTO_PADS)
@pytest.mark.parametrize("strides", [[1, 1], [2, 3]])
def test_conv_transpose(auto_pad: str, strides: list[int]) -> None:
    filter = randn(4, 3, 3, 4)
    check_operator("ConvTranspose", [randn(1, 4, 5, 6), filter, randn(3)], {"auto_pad": auto_pad, "strides": strides})


@pytest.mark.parametrize(
    "attributes",
    [
        {"pads": [1, 0, 1, 2], "strides": [2, 2], "output_padding": [1, 1]},
        {"strides": [3, 2], "output_shape": [15, 11]},
        {"strides": [3, 2], "output_shape": [15, 11], "auto_pad": "SAME_UPPER"},
        {"strides": [3, 2], "output_shape": [15, 11], "auto_pad": "SAME_LOWER"},
        {"dilations": [2, 3], "kernel_shape": [3, 3]},
    ],
)
def test_conv_transpose_options(attributes: dict[str, Any]) -> None:
    check_operator("ConvTranspose", [randn(1, 4, 5, 5), randn(4, 3, 3, 3), randn(3)], attributes)


def test_conv_transpose_of_groups_and_of_one_axis() -> None:
    check_operator("ConvTranspose", [randn(1, 4, 5, 5), randn(4, 3, 3, 3)], {"group": 2})
    check_operator("ConvTranspose", [randn(1, 4, 5), randn(4, 3, 3), randn(3)], {"strides": [2], "output_padding": [1]})


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [("Relu", None), ("Sigmoid", None), ("Tanh", None), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.5])],
)
def test_fused_conv(activation: str, parameters: list[float] | None) -> None:
    attributes: dict[str, Any] = {"activation": activation, "pads": [1, 1, 1, 1]}
    if parameters is not None:
        attributes["activation_params"] = parameters
    check_operator("FusedConv", [randn(1, 3, 5, 5), randn(4, 3, 3, 3), randn(4)], attributes, domain=MICROSOFT)


def test_fused_conv_with_a_sum() -> None:
    inputs = [randn(1, 3, 5, 5), randn(4, 3, 3, 3), randn(4), randn(1, 4, 3, 3)]
    check_operator("FusedConv", inputs, {"activation": "Relu"}, domain=MICROSOFT, dynamic=(0, 3))


# Poolings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op_type", "auto_pad", "ceil_mode"), list(product(("MaxPool", "AveragePool"), AUTO_PADS, (0, 1)))
)
def test_pool(op_type: str, auto_pad: str, ceil_mode: int) -> None:
    attributes = {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": auto_pad, "ceil_mode": ceil_mode}
    check_operator(op_type, [randn(2, 3, 10, 12)], attributes)
    check_operator(op_type, [randn(2, 3, 10)], attributes | {"kernel_shape": [3], "strides": [2]})


@pytest.mark.parametrize(("ceil_mode", "count_include_pad"), list(product((0, 1), (0, 1))))
@pytest.mark.parametrize(("pads", "dilations"), list(product(([1, 0, 1, 0], [1, 1, 0, 1]), ([1, 1], [2, 1]))))
def test_average_pool(ceil_mode: int, count_include_pad: int, pads: list[int], dilations: list[int]) -> None:
    attributes = {"kernel_shape": [2, 2], "strides": [2, 3], "pads": pads, "dilations": dilations}
    counting = {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    check_operator("AveragePool", [randn(1, 2, 9, 11)], attributes | counting)


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8"])
def test_max_pool(dtype: str) -> None:
    x = (randn(1, 2, 9, 8) * 40 + 64).astype(dtype)
    attributes = {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1], "dilations": [2, 1], "storage_order": 1, "ceil_mode": 1}
    check_operator("MaxPool", [x], attributes)


def test_max_pool_with_indices() -> None:
    check_operator("MaxPool", [randn(1, 2, 6, 6)], {"kernel_shape": [2, 2]}, outputs=2)
    check_operator("MaxPool", [randn(1, 2, 6)], {"kernel_shape": [3], "storage_order": 1, "pads": [1, 1]}, outputs=2)


def test_max_unpool_into_larger_image() -> None:
    """ONNX Runtime takes positions as those in the larger image; ONNX's reference has them in the image without it."""
    x, positions, shape = randn(1, 1, 2, 2), np.int64([[[[5, 7], [13, 15]]]]), np.int64([1, 1, 5, 5])
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    model, feed = node_model("MaxUnpool", [x, positions, shape], attributes, dynamic=(0, 1))
    (y,) = InferenceSession(model, CONTEXT, fallback="error").run(None, feed)
    wanted = np.zeros((1, 1, 5, 5), "float32")
    wanted[0, 0, 1:4:2, 1:4:2] = x[0, 0]
    np.testing.assert_array_equal(y, wanted)


def test_windows_of_four_axes_fall_back() -> None:
    assert "three axes" in reasons("Conv", [randn(1, 1, 3, 3, 3, 3), randn(1, 1, 2, 2, 2, 2)])


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool(p: int) -> None:
    attributes = {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1], "strides": [2, 1], "p": p}
    check_operator("LpPool", [randn(1, 2, 7, 8)], attributes)
    check_operator("GlobalLpPool", [randn(1, 2, 7, 8)], {"p": p})


@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pool(op_type: str) -> None:
    check_operator(op_type, [randn(2, 3, 7, 5)])
    check_operator(op_type, [randn(2, 3, 7)])
    check_operator(op_type, [randn(2, 3, 4, 5, 6)])


# Normalisations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [1, 1000])
@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 3), (2, 5, 3, 4)])
def test_batch_normalization(shape: tuple[int, ...], mean: float) -> None:
    x = randn(*shape) + mean
    inputs = [x, randn(5), randn(5), randn(5) + mean, abs(randn(5)) + 0.5]
    check_operator("BatchNormalization", inputs, {"epsilon": 1e-3}, rtol=1e-4, atol=1e-6 * mean + 1e-5)
    check_operator("BatchNormalization", inputs, dynamic=range(5), rtol=1e-4, atol=1e-6 * mean + 1e-5)


def test_batch_normalization_in_training_falls_back() -> None:
    inputs = [randn(2, 3, 4), randn(3), randn(3), randn(3), abs(randn(3))]
    assert "training" in reasons("BatchNormalization", inputs, {"training_mode": 1}, outputs=3)


@pytest.mark.parametrize("shape", [(2, 4, 6), (2, 4, 6, 3), (2, 4, 2, 3, 2)])
def test_instance_and_group_normalization(shape: tuple[int, ...]) -> None:
    check_operator("InstanceNormalization", [randn(*shape), randn(4), randn(4)], {"epsilon": 1e-3}, atol=1e-5)
    check_operator("GroupNormalization", [randn(*shape), randn(4), randn(4)], {"num_groups": 2}, atol=1e-5)


def test_group_normalization_of_old() -> None:
    check_operator(
        "GroupNormalization", [randn(2, 6, 3, 3), randn(3), randn(3)], {"num_groups": 3}, opset=18, atol=1e-5
    )


@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize("outputs", [1, 3])
def test_layer_normalization(axis: int, outputs: int) -> None:
    x = randn(2, 3, 4)
    scale, bias = randn(*x.shape[axis:]), randn(*x.shape[axis:])
    check_operator("LayerNormalization", [x, scale, bias], {"axis": axis}, outputs=outputs, atol=1e-5)
    check_operator("LayerNormalization", [x, scale], {"axis": axis, "epsilon": 0.1}, outputs=outputs, atol=1e-5)


def test_layer_normalization_of_half_precision() -> None:
    x, scale = (randn(2, 8) * 100).astype("float16"), randn(8).astype("float16")
    check_operator("LayerNormalization", [x, scale], atol=1e-2)


@pytest.mark.parametrize("size", [3, 4, 5])
@pytest.mark.parametrize("shape", [(2, 7, 3, 4), (2, 7, 5)])
def test_local_response_normalization(size: int, shape: tuple[int, ...]) -> None:
    x = randn(*shape)
    squares = np.zeros_like(x)
    for channel in range(7):
        near = x[:, max(channel - (size - 1) // 2, 0) : channel + size // 2 + 1]
        squares[:, channel] = (near * near).sum(1)
    wanted = x / (1.5 + 0.5 / size * squares) ** 0.6
    model, feed = node_model("LRN", [x], {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5})
    (got,) = InferenceSession(model, CONTEXT, fallback="error").run(None, feed)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_normalization(axis: int) -> None:
    x = randn(2, 3, 4)
    check_operator(
        "RMSNormalization", [x, randn(*x.shape[axis:])], {"axis": axis, "epsilon": 1e-3}, opset=23, atol=1e-5
    )
    check_operator("SimplifiedLayerNormalization", [x, randn(*x.shape[axis:])], {"axis": axis}, atol=1e-5)


def test_skip_normalizations() -> None:
    x, skip, gamma, beta, bias = randn(2, 3, 8), randn(2, 3, 8), randn(8), randn(8), randn(8)
    for inputs in ([x, skip, gamma, beta, bias], [x, skip, gamma, beta], [x, skip, gamma]):
        check_operator("SkipLayerNormalization", inputs, {"epsilon": 1e-3}, domain=MICROSOFT, dynamic=(0, 1), atol=1e-5)
    for inputs in ([x, skip, gamma, bias], [x, skip, gamma]):
        check_operator("SkipSimplifiedLayerNormalization", inputs, domain=MICROSOFT, dynamic=(0, 1), atol=1e-5)


# Recurrent networks --------------------------------------------------------------------------------------------------

STEPS, BATCHES, INPUT, HIDDEN = 5, 2, 3, 4


def _recurrent(gates: int, directions: int, layout: int = 0) -> list[Any]:
    x = randn(STEPS, BATCHES, INPUT)
    return [
        x.transpose(1, 0, 2) if layout else x,
        randn(directions, gates * HIDDEN, INPUT),
        randn(directions, gates * HIDDEN, HIDDEN),
        randn(directions, 2 * gates * HIDDEN),
        None,
        randn(directions, BATCHES, HIDDEN),
    ]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("op_type", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent(op_type: str, gates: int, direction: str) -> None:
    directions = 2 if direction == "bidirectional" else 1
    inputs = _recurrent(gates, directions)
    inputs += [randn(directions, BATCHES, HIDDEN)] if op_type == "LSTM" else []
    attributes = {"direction": direction, "hidden_size": HIDDEN}
    outputs = 3 if op_type == "LSTM" else 2
    check_operator(op_type, inputs, attributes, outputs=outputs, atol=1e-5)
    check_operator(op_type, inputs[:3], attributes, outputs=outputs, atol=1e-5)
    check_operator(op_type, inputs, attributes, outputs=outputs, atol=1e-5, dynamic=(0, 1, 2, 3, 5))


@pytest.mark.parametrize("after", [0, 1])
def test_gru_reset(after: int) -> None:
    attributes = {"hidden_size": HIDDEN, "linear_before_reset": after, "activations": ["Tanh", "Relu"]}
    check_operator("GRU", _recurrent(3, 1), attributes, outputs=2, atol=1e-5)


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_lstm_with_peepholes(direction: str) -> None:
    """ONNX's output gate sees the new cell state, WebNN's the one of the step before: a composite has both."""
    directions = 2 if direction == "bidirectional" else 1
    peepholes = randn(directions, 3 * HIDDEN)
    inputs = [*_recurrent(4, directions), randn(directions, BATCHES, HIDDEN), peepholes]
    attributes = {"hidden_size": HIDDEN, "direction": direction}
    check_operator("LSTM", inputs, attributes, outputs=3, atol=1e-5)
    check_operator("LSTM", inputs, attributes, outputs=3, atol=1e-5, dynamic=(0, 7))
    peepholes[:, HIDDEN : 2 * HIDDEN] = 0
    check_operator("LSTM", inputs, attributes, outputs=3, atol=1e-5)


@pytest.mark.parametrize("attributes", [{"clip": 0.3}, {"input_forget": 1}, {"clip": 0.3, "input_forget": 1}])
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_lstm_with_clip_and_coupled_gates(direction: str, attributes: dict[str, Any]) -> None:
    directions = 2 if direction == "bidirectional" else 1
    inputs = [*_recurrent(4, directions), randn(directions, BATCHES, HIDDEN), randn(directions, 3 * HIDDEN)]
    attributes = {"hidden_size": HIDDEN, "direction": direction, **attributes}
    check_operator("LSTM", inputs, attributes, outputs=3, atol=1e-5)
    check_operator("LSTM", inputs[:-1], attributes, outputs=3, atol=1e-5, dynamic=(0, 5, 6))


@pytest.mark.parametrize(("attributes", "reason"), [({"activations": ["Sigmoid", "Softsign", "Tanh"]}, "softsign")])
def test_lstm_falls_back(attributes: dict[str, Any], reason: str) -> None:
    assert reason in reasons("LSTM", _recurrent(4, 1), {"hidden_size": HIDDEN} | attributes, outputs=3)


def test_rnn_of_many_steps() -> None:
    inputs = [randn(300, 2, 2), randn(2, 3, 2), randn(2, 3, 3) / 2]
    check_operator("RNN", inputs, {"hidden_size": 3, "direction": "bidirectional"}, outputs=2, atol=1e-5)


@pytest.mark.parametrize(("op_type", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layout_batch_first(op_type: str, gates: int) -> None:
    """ONNX Runtime has no such kernels; the network must be that of the other layout, transposed."""
    inputs = _recurrent(gates, 2)
    attributes = {"hidden_size": HIDDEN, "direction": "bidirectional"}
    outputs = 3 if op_type == "LSTM" else 2
    model, feed = node_model(op_type, inputs, attributes, outputs=outputs)
    wanted = InferenceSession(model, fallback="error").run(None, feed)
    inputs[0], inputs[5] = inputs[0].transpose(1, 0, 2), inputs[5].transpose(1, 0, 2)
    model, feed = node_model(op_type, inputs, attributes | {"layout": 1}, outputs=outputs)
    got = InferenceSession(model, fallback="error").run(None, {n: np.ascontiguousarray(a) for n, a in feed.items()})
    np.testing.assert_array_equal(got[0], wanted[0].transpose(2, 0, 1, 3))
    for ours, theirs in zip(got[1:], wanted[1:], strict=True):
        np.testing.assert_array_equal(ours, theirs.transpose(1, 0, 2))


@pytest.mark.parametrize("op_type", ["AveragePool", "MaxPool", "LpPool"])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_pad_before_pooling_larger_than_window(op_type: str, window: int) -> None:
    """The engine must not merge the two: its pooling takes less padding than a window."""
    pads = np.int64([0, 0, 2, 1, 0, 0, 1, 2])
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["p"]),
        helper.make_node(op_type, ["p"], ["y"], kernel_shape=[window, window]),
    ]
    x = randn(1, 2, 4, 5)
    session = InferenceSession(model_of(nodes, {"x": x}, {"pads": pads}, ["y"]), CONTEXT, fallback="error")
    padded = np.pad(x, [(0, 0), (0, 0), (2, 1), (1, 2)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (window, window), axis=(2, 3))
    rules = {
        "AveragePool": windows.mean((-2, -1)),
        "MaxPool": windows.max((-2, -1)),
        "LpPool": np.sqrt((windows * windows).sum((-2, -1))),
    }
    np.testing.assert_allclose(session.run(None, {"x": x})[0], rules[op_type], rtol=1e-5, atol=1e-6)
