"""ONNX's activations, softmax and its relatives, and losses: versions, options and types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.onnx_nodes import MICROSOFT, check_agreement, check_node, integers, node_model, randn, reasons

X = randn(2, 3, 4)


# Activations ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op_type", "options"),
    [
        ("Celu", {"alpha": 2.5}),
        ("Celu", {}),
        ("Elu", {"alpha": 0.5}),
        ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
        ("HardSwish", {}),
        ("LeakyRelu", {"alpha": 0.2}),
        ("Mish", {}),
        ("Selu", {}),
        ("Selu", {"alpha": 2.0, "gamma": 3.0}),
        ("Shrink", {"lambd": 0.3, "bias": 0.2}),
        ("Shrink", {"lambd": 1.0}),
        ("ThresholdedRelu", {"alpha": 0.3}),
        ("ThresholdedRelu", {}),
        ("Swish", {"alpha": 1.5, "opset": 24}),
        ("Gelu", {}),
        ("Gelu", {"approximate": "tanh"}),
        ("Gelu", {"domain": MICROSOFT}),
        ("QuickGelu", {"domain": MICROSOFT}),
        ("QuickGelu", {"domain": MICROSOFT, "alpha": 1.0}),
        ("FastGelu", {"domain": MICROSOFT}),
    ],
)
def test_activations(op_type: str, options: dict[str, Any]) -> None:
    check_node(op_type, 3 * randn(4, 33), **{"opset": 22, **options})


def test_activations_with_a_bias() -> None:
    check_node("FastGelu", X, randn(4), domain=MICROSOFT)
    check_node("BiasGelu", X, randn(4), domain=MICROSOFT)


def test_prelu_of_versions() -> None:
    for opset in (7, 9, 16):
        check_node("PRelu", X, randn(3, 1), opset=opset)
    x = integers(-4, 5, 3, 4)
    check_node("PRelu", x, np.array([2], "int32"), constants=(1,), wanted=np.where(x < 0, 2 * x, x))
    check_node("PRelu", x.astype("uint32"), np.array([2], "uint32"), wanted=x.astype("uint32"))


def test_shrinking_integers() -> None:
    x = np.array([-3, -1, 0, 1, 3], "int32")
    check_node("Shrink", x, lambd=1.5)
    model, feed = node_model("Shrink", [x], {"lambd": 1.5}, opset=9)
    (reason,) = reasons(check_agreement(model, feed, fallback=True))
    assert "compared with a float" in reason


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(("opset", "axis"), [(9, None), (11, 0), (11, 1), (12, -2), (13, None), (13, 0), (21, 1)])
def test_softmax_of_versions(op_type: str, opset: int, axis: int | None) -> None:
    check_node(op_type, 4 * X, opset=opset, **({} if axis is None else {"axis": axis}))


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("shape", [(2, 3, 1, 1), (2, 1, 3, 1), (2, 1, 1, 3), (2, 1, 1, 1), (2, 3, 1, 2)], ids=str)
def test_softmax_joins_dimensions_of_one_element(op_type: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    check_node(op_type, x, opset=11, axis=1)


def test_log_softmax_keeps_the_digits_of_large_numbers() -> None:
    x = np.float32([[10000, 10001, 10002, 10003]])
    check_node("LogSoftmax", x, wanted=np.float32([[-3.4401897, -2.4401897, -1.4401897, -0.4401897]]), rtol=1e-6)


def test_log_softmax_of_more_classes_than_float16_can_count() -> None:
    x = np.zeros((1, 70000), "float16")
    check_node("LogSoftmax", x, wanted=np.full_like(x, -np.log(70000)), rtol=1e-3)


def test_hardmax_takes_the_first_of_equals() -> None:
    check_node("Hardmax", np.float32([[1, 3, 3], [2, 2, 0]]), wanted=np.float32([[0, 1, 0], [1, 0, 0]]))


# Losses ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 2, -1])
@pytest.mark.parametrize("inner", [(), (4,)])
def test_losses(reduction: str, weighted: bool, ignored: int | None, inner: tuple[int, ...]) -> None:
    scores, labels = randn(6, 5, *inner), integers(0, 5, 6, *inner, dtype="int64")
    if ignored is not None:
        labels[0] = ignored
    weights = (np.abs(randn(5)),) if weighted else ()
    options = {"reduction": reduction} if ignored is None else {"reduction": reduction, "ignore_index": ignored}
    check_node("NegativeLogLikelihoodLoss", scores, labels, *weights, opset=13, **options)
    check_node("SoftmaxCrossEntropyLoss", scores, labels, *weights, opset=13, outputs=2, **options)


def test_negative_log_likelihood_ignored_target_with_infinite_loss() -> None:
    scores, labels = np.float32([[-np.inf, 0], [0, -1]]), np.array([0, 1])
    check_node("NegativeLogLikelihoodLoss", scores, labels, ignore_index=0, wanted=np.asarray(np.float32(1)))
