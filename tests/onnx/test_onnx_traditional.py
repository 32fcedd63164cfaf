"""Traditional machine learning (ai.onnx.ml): WebNN's results against ONNX Runtime's, and behind dynamic axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.every_device import DEVICES, context_on
from support.onnx_nodes import CONTEXT, TRADITIONAL, check_agreement, check_node, node_model, randn, reasons, run_engine

import opweave as ow

TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
PROBIT_TOLERANCE = 2e-3
"""Near 0, the engine takes the root of a difference of numbers near 4, whose last bits are all that is left of it. The results
of the formula itself are compared more closely in `test_probit_agrees_with_its_formula`."""
TYPES = ("float32", "int32", "int64")

Z = np.float32([[0.5, -2, 3], [0, 0, 0], [-4, -1, -2], [1e-8, 0, 0.25]])
COEFFICIENTS = np.float32([0.1, 0.2, 0.3, -0.3, 0.1, 0.2, 0.2, 0.1, -0.1]).tolist()
EXAMPLES: dict[str, dict[str, Any]] = {
    "Scaler": {"scale": [2.0], "offset": [1.0]},
    "LinearRegressor": {"coefficients": COEFFICIENTS, "targets": 3},
    "LinearClassifier": {
        "coefficients": COEFFICIENTS,
        "intercepts": [0.5, 0.3, 0.6],
        "classlabels_ints": [1, 2**40, 3],
    },
}
"""Attributes of operators that need some, for 3 features."""


def check_traditional(op_type: str, *inputs: np.ndarray, outputs: int = 1, **more: Any) -> None:
    check_node(op_type, *inputs, outputs=outputs, domain=TRADITIONAL, **more)


def run_traditional(
    op_type: str, *inputs: np.ndarray, outputs: int = 1, context: ow.MLContext = CONTEXT, **attributes: Any
) -> list[np.ndarray]:
    """The results of a node, all of which WebNN computes."""
    dynamic = range(len(inputs))
    model, feed = node_model(op_type, inputs, attributes, outputs=outputs, dynamic=dynamic, domain=TRADITIONAL)
    results: list[np.ndarray] = ow.InferenceSession(model, context, fallback="error").run(None, feed)
    return results


def fallback(op_type: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> str:
    """Why a node falls back, which must not change its results."""
    model, feed = node_model(op_type, inputs, attributes, outputs=outputs, domain=TRADITIONAL)
    (line,) = reasons(check_agreement(model, feed, fallback=True))
    return line


def refusal(op_type: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> str:
    """The error for a node that ONNX Runtime refuses, too."""
    model, feed = node_model(op_type, inputs, attributes, outputs=outputs, domain=TRADITIONAL)
    with pytest.raises(Exception):  # noqa: B017, PT011  (the engine's errors have many classes)
        run_engine(model, feed)
    with pytest.raises(ow.MLError) as raised:
        ow.InferenceSession(model, CONTEXT, specialise="always").run(None, feed)
    with pytest.raises(ow.NotSupportedError) as reason:
        ow.InferenceSession(model, CONTEXT, fallback="error")
    assert op_type in str(raised.value)
    return str(reason.value)


def chain(
    op_type: str,
    *,
    type: int = TensorProto.FLOAT,
    output: int = 0,
    columns: int = 3,
    sizes: Any = ("batch", 3),
    **more: Any,
) -> onnx.ModelProto:
    """A node, and behind it a Reshape that reads the shape of its result, and a MatMul."""
    results = ["labels", "scores"] if op_type == "LinearClassifier" else ["result"]
    indices = ["indices"] if op_type == "ArrayFeatureExtractor" else []
    nodes = [helper.make_node(op_type, ["x", *indices], results, domain=TRADITIONAL, **more)]
    nodes += [
        helper.make_node("Cast", [results[output]], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Shape", ["f"], ["all"]),
        helper.make_node("Gather", ["all", "first"], ["rows"]),
        helper.make_node("Concat", ["rows", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["f", "wanted"], ["m"]),
        helper.make_node("MatMul", ["m", "weight"], ["y"]),
    ]
    constants = {
        "first": np.int64([0]),
        "rest": np.int64([-1]),
        "weight": np.arange(columns * 2, dtype="float32").reshape(columns, 2),
        "indices": np.int64([[2, 0]]),
    }
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", type, sizes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(TRADITIONAL, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(
    ("op_type", "options"),
    [
        ("Scaler", {"scale": [1.0, 2.0, 0.5], "offset": [0.5, 0.0, -1.0]}),
        ("Normalizer", {"norm": "L2"}),
        ("Binarizer", {"threshold": 0.25}),
        ("ArrayFeatureExtractor", {"columns": 2}),
        ("LinearRegressor", {"columns": 1, "coefficients": [0.5, 1.0, -1.0]}),
        ("LinearClassifier", {"output": 0, "columns": 1}),
        ("LinearClassifier", {"output": 1}),
    ],
)
def test_traditional_operators_with_dynamic_batch_stay_on_webnn(op_type: str, options: dict[str, Any]) -> None:
    if op_type == "LinearClassifier":
        options |= {"coefficients": COEFFICIENTS, "intercepts": [0.1, 0.2, 0.3], "classlabels_ints": [4, 2, 9]}
    model = chain(op_type, **options)
    session = ow.InferenceSession(model, CONTEXT, specialise="always")
    for rows in (1, 4):
        feed = {"x": Z[:rows] + np.float32(0.125)}
        np.testing.assert_allclose(session.run(None, feed)[0], run_engine(model, feed)[0], rtol=1e-5, atol=1e-6)
    assert list(session.shapes().values()) == ["compiled", "compiled"]
    assert "fallback" not in session.explain()
    assert "section 1" not in session.explain()
    assert op_type in session.explain()


@pytest.mark.parametrize("op_type", ["Scaler", "Normalizer"])
def test_traditional_operators_in_fallback_have_known_shape(op_type: str) -> None:
    options: dict[str, Any] = {"scale": [2.0], "offset": [0.5]} if op_type == "Scaler" else {}
    model = chain(op_type, type=TensorProto.DOUBLE, **options)
    session = ow.InferenceSession(model, CONTEXT, specialise="always")
    feed = {"x": Z.astype("float64")}
    np.testing.assert_allclose(session.run(None, feed)[0], run_engine(model, feed)[0], rtol=1e-5)
    assert reasons(session) == [f"{op_type}: its input is double, which the operator does not take"]
    assert "MatMul" in session.explain()


# Features ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 3, 4), (2, 3, 2, 2)])
def test_scaler(dtype: str, shape: tuple[int, ...]) -> None:
    x = (randn(*shape) * 5).astype(dtype)
    check_traditional("Scaler", x, scale=[1.0, 2.0, 0.5], offset=[0.5, 0.0, -1.5])
    check_traditional("Scaler", x, scale=[2.5], offset=[0.5])


def test_scaler_of_infinities_and_nan() -> None:
    check_traditional("Scaler", np.float32([[np.inf, -np.inf, np.nan]]), scale=[0.0, 2.0, 1.0], offset=[1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"scale": [2.0]},
        {"offset": [2.0]},
        {"scale": [1.0] * 2, "offset": [1.0] * 2},
        {"scale": [1.0] * 3, "offset": [1.0]},
    ],
)
def test_scaler_rejects_wrong_feature_count(attributes: dict[str, Any]) -> None:
    assert "scales for 3 features" in refusal("Scaler", Z, **attributes)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2", None])
def test_normalizer(dtype: str, norm: str | None) -> None:
    attributes = {} if norm is None else {"norm": norm}
    for x in (Z, Z[1], Z[2], randn(5, 7) * 9):
        check_traditional("Normalizer", x.astype(dtype), **attributes)


def test_normalizer_refuses_other_norms_and_ranks() -> None:
    assert "its norm is 'L3'" in refusal("Normalizer", Z, norm="L3")
    assert "its input has rank 3" in refusal("Normalizer", Z[None])


@pytest.mark.parametrize("threshold", [None, 0.25, -3.0, 1e30, -np.inf])
def test_binarizer(threshold: float | None) -> None:
    attributes = {} if threshold is None else {"threshold": threshold}
    for x in (Z, Z[0], Z.reshape(2, 3, 2)):
        check_traditional("Binarizer", x, **attributes)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("threshold", [0.0, 0.5, -0.5, -2.0, 3e9, -3e9, 1e30, -1e30, np.inf, -np.inf, np.nan])
def test_binarizer_of_integers(dtype: str, threshold: float) -> None:
    info = np.iinfo(dtype)
    x = np.array([[info.min, info.min + 1, -2, -1], [0, 1, info.max - 1, info.max]], dtype)
    wanted = [[int(int(item) > threshold) for item in row] for row in x]
    for device in ("cpu", "reference"):
        (y,) = run_traditional("Binarizer", x, threshold=threshold, context=ow.ml.create_context(device=device))
        assert y.dtype == x.dtype
        assert y.tolist() == wanted


def test_binarizer_of_nan_is_zero() -> None:
    assert run_traditional("Binarizer", np.float32([np.nan, 1]))[0].tolist() == [0, 1]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("indices", [np.int64([[0, 3, 3]]), np.int64([1]), np.int64([[2], [0]])])
@pytest.mark.parametrize("shape", [(4,), (2, 4), (2, 3, 4)])
def test_array_feature_extractor(dtype: str, indices: np.ndarray, shape: tuple[int, ...]) -> None:
    x = (randn(*shape) * 9).astype(dtype)
    check_traditional("ArrayFeatureExtractor", x, indices, constants=[1])
    check_traditional("ArrayFeatureExtractor", x, indices)
    check_traditional("ArrayFeatureExtractor", x, indices, constants=[0])  # labels of classes


@pytest.mark.parametrize("wrong", [-1, 4])
@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_array_feature_extractor_rejects_out_of_range(wrong: int, shape: tuple[int, ...]) -> None:
    assert "its indices are not all in [0, 4)" in refusal("ArrayFeatureExtractor", randn(*shape), np.int64([0, wrong]))


@pytest.mark.parametrize("op_type", ["Scaler", "Normalizer", "ArrayFeatureExtractor", "LinearClassifier"])
def test_traditional_operators_of_double_fall_back(op_type: str) -> None:
    attributes = EXAMPLES.get(op_type, {})
    inputs = [Z.astype("float64"), *([np.int64([1])] if op_type == "ArrayFeatureExtractor" else [])]
    outputs = 2 if op_type == "LinearClassifier" else 1
    assert "is double" in fallback(op_type, *inputs, outputs=outputs, **attributes)


@pytest.mark.parametrize("op_type", ["Scaler", "Normalizer", "Binarizer", "LinearRegressor"])
@pytest.mark.parametrize("dtype", ["float16", "uint8"])
def test_traditional_operators_reject_types(op_type: str, dtype: str) -> None:
    attributes = EXAMPLES.get(op_type, {})
    model, feed = node_model(op_type, [np.abs(Z).astype(dtype)], attributes, domain=TRADITIONAL)
    with pytest.raises(ow.MLError, match=op_type):
        ow.InferenceSession(model, CONTEXT, specialise="always").run(None, feed)


# Linear models -------------------------------------------------------------------------------------------------------


def model_options(functions: int, transform: str, intercepts: bool = True) -> dict[str, Any]:
    """The attributes of a linear model of 3 features; scores are in [0, 1] where PROBIT needs that."""
    scale = 0.1 if transform == "PROBIT" else 1.0
    options: dict[str, Any] = {"coefficients": [scale * each for each in COEFFICIENTS[: 3 * functions]]}
    if intercepts:
        options["intercepts"] = [0.5, 0.3, 0.6][:functions]
    return options | {"post_transform": transform}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 2, 3])
@pytest.mark.parametrize("shape", [(3,), (4, 3)])
def test_linear_regressor(transform: str, targets: int, shape: tuple[int, ...]) -> None:
    tolerance = PROBIT_TOLERANCE if transform == "PROBIT" else 1e-6
    options = model_options(targets, transform)
    check_traditional("LinearRegressor", randn(*shape), targets=targets, atol=tolerance, **options)


def test_linear_regressor_without_intercepts() -> None:
    check_traditional("LinearRegressor", Z, coefficients=COEFFICIENTS, targets=3)
    check_traditional(
        "LinearRegressor", Z, coefficients=COEFFICIENTS, targets=3, intercepts=[1.0]
    )  # not one for each target
    check_traditional("LinearRegressor", Z, coefficients=COEFFICIENTS[:3])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_linear_regressor_of_integers(dtype: str) -> None:
    x = np.array([[1, -2, 3], [40, 5, -6]], dtype)
    (y,) = run_traditional("LinearRegressor", x, targets=3, **model_options(3, "NONE"))
    wanted = x @ np.float64(COEFFICIENTS).reshape(3, 3).T + [0.5, 0.3, 0.6]
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({}, "0 coefficients for 1 functions of 3 features"),
        ({"coefficients": [1.0, 2.0]}, "2 coefficients for 1 functions of 3 features"),
        ({"coefficients": COEFFICIENTS, "targets": 0}, "9 coefficients for 0 functions"),
        ({"coefficients": COEFFICIENTS, "targets": 3, "post_transform": "TANH"}, "its post_transform is 'TANH'"),
    ],
)
def test_linear_regressor_rejects_invalid_attributes(attributes: dict[str, Any], reason: str) -> None:
    assert reason in refusal("LinearRegressor", Z, **attributes)


def test_linear_regressor_of_rank_3_is_refused() -> None:
    assert "its input has rank 3" in refusal("LinearRegressor", Z[None], coefficients=[1.0] * 3)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("labels", [[7, -3, 2**40], [0, 1, 2], [0, 1, 2, 9]])
@pytest.mark.parametrize("shape", [(3,), (5, 3)])
def test_linear_classifier(dtype: str, transform: str, labels: list[int], shape: tuple[int, ...]) -> None:
    x = (randn(*shape) * 3).astype(dtype)
    options = model_options(3, transform)
    tolerance = PROBIT_TOLERANCE if transform == "PROBIT" else 1e-6
    check_traditional("LinearClassifier", x, outputs=2, classlabels_ints=labels, atol=tolerance, **options)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("labels", [None, [7, -3]])
def test_linear_classifier_of_one_score(transform: str, labels: list[int] | None) -> None:
    options = model_options(1, transform) | ({} if labels is None else {"classlabels_ints": labels})
    x = randn(6, 3) * 3
    if labels and transform == "PROBIT":  # the engine leaves half of the scores as it finds them in memory
        model, _ = node_model("LinearClassifier", [x], options, outputs=2, domain=TRADITIONAL)
        session = ow.InferenceSession(model, CONTEXT, specialise="always")
        assert "it has two labels, one score, and the post_transform 'PROBIT'" in reasons(session)[0]
        return
    check_traditional(
        "LinearClassifier", x, outputs=2, atol=PROBIT_TOLERANCE if transform == "PROBIT" else 1e-6, **options
    )


def test_linear_classifier_of_equal_scores_takes_the_first() -> None:
    options: dict[str, Any] = {"coefficients": [1.0] * 9, "intercepts": [0.5, 1.0, 1.0], "classlabels_ints": [4, 5, 6]}
    assert run_traditional("LinearClassifier", Z, outputs=2, **options)[0].tolist() == [5] * 4
    check_traditional("LinearClassifier", Z, outputs=2, **options)


def test_linear_classifier_of_zeros() -> None:
    zeros: dict[str, Any] = {
        "coefficients": [1.0, 0.0, 0.0, 0.0, 1.0, 0.0],
        "intercepts": [0.0, 0.0],
        "classlabels_ints": [1, 2],
    }
    x = np.float32([[0, 0, 0], [0, 3, 0], [-2, 0, 0], [-200, -300, 1], [2e-8, 1, 1]])
    for transform in TRANSFORMS[:4]:
        check_traditional(
            "LinearClassifier", x, outputs=2, post_transform=transform, **zeros
        )  # SOFTMAX_ZERO: 0 / 0 is NaN


@pytest.mark.parametrize("functions", [1, 3])
def test_linear_classifier_without_intercepts(functions: int) -> None:
    labels = [5, 6, 7] if functions > 1 else [5, 6]
    label, scores = run_traditional(
        "LinearClassifier", Z, outputs=2, classlabels_ints=labels, **model_options(functions, "NONE", intercepts=False)
    )
    wanted = Z.astype("float64") @ np.float64(COEFFICIENTS[: 3 * functions]).reshape(functions, 3).T
    if functions > 1:
        assert label.tolist() == np.int64(labels)[wanted.argmax(1)].tolist()
    else:
        assert label.tolist() == [6 if each > 0 else 5 for each in wanted[:, 0]]
        wanted = np.concatenate([1 - wanted, wanted], 1)
    np.testing.assert_allclose(scores, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"classlabels_ints": [1, 2]}, "2 labels of 3 classes"),
        ({}, "0 labels of 3 classes"),
        ({"classlabels_ints": [1, 2, 3], "intercepts": [0.0] * 2}, "9 coefficients for 2 functions of 3 features"),
        ({"classlabels_ints": [1, 2, 3], "post_transform": "TANH"}, "its post_transform is 'TANH'"),
        ({"classlabels_ints": [1, 2, 3], "classlabels_strings": ["a", "b", "c"]}, "its labels are strings"),
        ({"classlabels_ints": [1], "coefficients": [1.0] * 3, "intercepts": [0.0]}, "one score, and 1 labels"),
        ({"classlabels_strings": ["a"], "coefficients": [1.0] * 3, "intercepts": [0.0]}, "one score, and 1 labels"),
        ({"classlabels_strings": ["a", "b"]}, "2 labels of 3 classes"),
    ],
)
def test_linear_classifier_rejects_invalid_attributes(attributes: dict[str, Any], reason: str) -> None:
    options: dict[str, Any] = {"coefficients": COEFFICIENTS, "intercepts": [0.0] * 3} | attributes
    assert reason in refusal("LinearClassifier", Z, outputs=2, **options)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("functions", [1, 3])
@pytest.mark.parametrize("version", [1, 2, 3, 5])
def test_linear_classifier_of_strings_names_labels_in_the_engine(transform: str, functions: int, version: int) -> None:
    if functions == 1 and transform == "PROBIT":
        return
    labels = ["no", "yes"] if functions == 1 else ["kühl", "", "red"]
    options = model_options(functions, transform) | {"classlabels_strings": labels}
    model, feed = node_model("LinearClassifier", [randn(6, 3) * 3], options, outputs=2, domain=TRADITIONAL)
    model.opset_import[-1].version = version
    session = ow.InferenceSession(model, CONTEXT, specialise="always")
    (label, scores), (named, wanted) = session.run(None, feed), run_engine(model, feed)
    assert label.tolist() == named.tolist()
    np.testing.assert_allclose(scores, wanted, rtol=1e-5, atol=PROBIT_TOLERANCE if transform == "PROBIT" else 1e-6)
    assert reasons(session) == ["LabelEncoder: the labels are strings"]


def test_linear_classifier_of_strings_stays_whole_for_its_scores() -> None:
    options = model_options(3, "SOFTMAX") | {"classlabels_strings": ["a", "b", "c"]}
    model = chain("LinearClassifier", output=1, **options)
    session = ow.InferenceSession(model, CONTEXT, fallback="error")
    for rows in (1, 4):
        np.testing.assert_allclose(
            session.run(None, {"x": Z[:rows]})[0], run_engine(model, {"x": Z[:rows]})[0], rtol=1e-5
        )


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_probit_agrees_with_its_formula(device: str) -> None:
    scores = np.linspace(0, 1, 101, dtype="float32")[1:-1, None]
    (y,) = run_traditional(
        "LinearRegressor",
        scores,
        coefficients=[1.0],
        post_transform="PROBIT",
        context=ow.ml.create_context(device=device),
    )
    x = 2 * scores.astype("float64") - 1
    log = np.log((1 - x) * (1 + x))
    half = 2 / (3.14159 * 0.147) + 0.5 * log
    wanted = np.sqrt(2) * np.copysign(np.sqrt(np.maximum(np.sqrt(half**2 - log / 0.147) - half, 0)), x)
    # Near 0, the argument of the logarithm is near 1, so that its rounding error is one of the square of the result.
    np.testing.assert_allclose(y * np.abs(y), wanted * np.abs(wanted), rtol=2e-6, atol=3e-7)
    ends = run_traditional(
        "LinearRegressor", np.float32([[0], [1], [2], [-1]]), coefficients=[1.0], post_transform="PROBIT"
    )[0]
    np.testing.assert_array_equal(ends[:, 0], [-np.inf, np.inf, np.nan, np.nan])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES)
def test_traditional_operators_on_every_device(device: str, dtype: str) -> None:
    context, x = context_on(device), Z.astype(dtype)
    calls: list[tuple[str, Sequence[np.ndarray], dict[str, Any]]] = [
        ("Scaler", [x], EXAMPLES["Scaler"]),
        *(("Normalizer", [x], {"norm": norm}) for norm in ("MAX", "L1", "L2")),
        ("ArrayFeatureExtractor", [x, np.int64([[2, 0]])], {}),
        *(
            ("LinearClassifier", [x], EXAMPLES["LinearClassifier"] | {"post_transform": each})
            for each in TRANSFORMS[:4]
        ),
    ]
    for op_type, inputs, attributes in calls:
        outputs = 2 if op_type == "LinearClassifier" else 1
        model, feed = node_model(
            op_type, inputs, attributes, outputs=outputs, dynamic=range(len(inputs)), domain=TRADITIONAL
        )
        found = ow.InferenceSession(model, context, fallback="error").run(None, feed)
        for ours, theirs in zip(found, run_engine(model, feed), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=f"{op_type} {attributes}")


def test_linear_regressor_of_integers_runs_for_any_batch() -> None:
    model = chain("LinearRegressor", type=TensorProto.INT64, coefficients=[0.5, 1.0, -1.0], columns=1)
    session = ow.InferenceSession(model, CONTEXT)
    for rows in (1, 3, 1, 3):
        x = np.arange(rows * 3).reshape(rows, 3)
        wanted = (x * np.array([0.5, 1, -1])).sum(1, keepdims=True) * np.array([0, 1])
        np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=1e-6)
