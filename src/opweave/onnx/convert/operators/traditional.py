"""ONNX's operators of traditional machine learning (ai.onnx.ml): scaling, linear models, choice of features.

Where the standard is silent, results match ONNX Runtime 1.32: the two scores of a binary classifier, for example. Nodes that
ONNX Runtime refuses fall back, so that the user sees its error. Exceptions are LinearRegressor and Binarizer of integers, and
LinearClassifier without intercepts: ONNX Runtime has no kernels for them, but the standard allows them, so they are converted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....context.builder import MLGraphBuilder
from ....core.dtypes import INFO, is_float
from ....core.graph import MLOperand
from ...model.protobuf import TensorProto
from ...model.registry import (
    TRADITIONAL,
    Tensor,
    Unsupported,
    as_type,
    converts,
    data_type_of,
    operand,
    shape_of,
    unsupported_if,
)
from .windows import reshape

NUMBERS = (TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64)
"""Element types of these operators in WebNN; only double is missing."""

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def _check_numbers(types: Sequence[int]) -> None:
    name = TensorProto.DataType.Name(types[0]).lower()
    unsupported_if(types[0] not in NUMBERS, f"its input is {name}, which the operator does not take")


def _float32(b: MLGraphBuilder, x: MLOperand, types: Sequence[int]) -> MLOperand:
    """Cast the input of an operator to float32, the type of the result."""
    _check_numbers(types)
    return operand(b, as_type(b, x, "float32"))


@converts("Scaler", domain=TRADITIONAL)
def _(
    b: MLGraphBuilder, X: MLOperand, *, offset: Sequence[float] = (), scale: Sequence[float] = (), types: list[int]
) -> Tensor:
    x = _float32(b, X, types)
    unsupported_if(x.rank == 0, "its input is a scalar")
    features = x.shape[0 if x.rank == 1 else 1]
    counts = {len(offset), len(scale)}
    if counts not in ({1}, {features}):
        raise Unsupported(f"it has {len(offset)} offsets and {len(scale)} scales for {features} features")
    # For any rank, ONNX Runtime pairs element i of the flat input with offset i % features.
    rows = reshape(b, x, [math.prod(x.shape) // features, features]) if x.rank > 2 else x
    return reshape(b, b.mul(b.sub(rows, np.float32(offset)), np.float32(scale)), x.shape)


@converts("Normalizer", domain=TRADITIONAL)
def _(b: MLGraphBuilder, X: MLOperand, *, norm: str = "MAX", types: list[int]) -> Tensor:
    x = _float32(b, X, types)
    unsupported_if(x.rank not in (1, 2), f"its input has rank {x.rank}")
    reduce = {"MAX": b.reduce_max, "L1": b.reduce_l1, "L2": b.reduce_l2}.get(norm)
    if reduce is None:
        raise Unsupported(f"its norm is {norm!r}")
    length = reduce(x, axes=[x.rank - 1], keep_dimensions=True)
    return b.div(x, b.where(b.equal(length, 0), np.float32(1), length))  # rows of zeros stay as they are


@converts("Binarizer", domain=TRADITIONAL)
def _(b: MLGraphBuilder, X: MLOperand, *, threshold: float = 0.0, types: list[int]) -> Tensor:
    _check_numbers(types)
    if is_float(X.data_type):
        return b.cast(b.greater(X, np.float32(threshold)), X.data_type)
    info = INFO[X.data_type]
    lowest, highest = int(info.lowest), int(info.highest)
    if threshold < lowest:
        return b.cast(b.greater_or_equal(X, np.array(lowest, X.data_type)), X.data_type)
    # For integers, x > threshold if x > floor(threshold); none exceeds NaN.
    bound = math.floor(threshold) if threshold < highest else highest
    return b.cast(b.greater(X, np.array(bound, X.data_type)), X.data_type)


@converts("ArrayFeatureExtractor", domain=TRADITIONAL)
def _(b: MLGraphBuilder, X: Tensor, Y: Tensor, *, types: list[int]) -> Tensor:
    _check_numbers(types)
    shape, count = shape_of(X), math.prod(shape_of(Y))
    unsupported_if(not shape, "its data is a scalar")
    unsupported_if(data_type_of(Y) != "int64", f"its indices are {data_type_of(Y)}")
    value = Y if isinstance(Y, np.ndarray) else Y.value
    if value is not None and not ((value >= 0) & (value < shape[-1])).all():
        raise Unsupported(f"its indices are not all in [0, {shape[-1]})")
    columns = b.gather(X, reshape(b, Y, [count]), axis=len(shape) - 1)
    return reshape(b, columns, [1, count]) if len(shape) == 1 else columns


# Linear models -------------------------------------------------------------------------------------------------------


def _scores(b: MLGraphBuilder, x: MLOperand, coefficients: Sequence[float], intercepts: Sequence[float]) -> MLOperand:
    """Evaluate linear functions of rows of features, as float32 [rows, functions].

    `x` is [rows, features], or [features] of one row; `coefficients` are [functions, features], flattened.
    """
    features = x.shape[-1]
    rows = operand(b, reshape(b, x, [1, features])) if x.rank == 1 else x
    matrix = np.float32(coefficients).reshape(-1, features)
    return b.gemm(rows, matrix, c=np.float32(intercepts) if len(intercepts) else None, b_transpose=True)


def _transform(b: MLGraphBuilder, scores: MLOperand, transform: str) -> MLOperand:
    """Apply `post_transform` to several scores of each row."""
    match transform:
        case "LOGISTIC":
            return b.sigmoid(scores)
        case "SOFTMAX":
            return b.softmax(scores, 1)
        case "SOFTMAX_ZERO":
            return _softmax_zero(b, scores)
        case "PROBIT":
            return _probit(b, scores)
    return scores


def _softmax_zero(b: MLGraphBuilder, scores: MLOperand) -> MLOperand:
    """Softmax over the scores that are not near 0; others stay near 0. A row near 0 gives NaN."""
    highest = b.reduce_max(scores, axes=[1], keep_dimensions=True)
    counts = b.greater(b.abs(scores), np.float32(1e-7))
    powers = b.where(counts, b.exp(b.sub(scores, highest)), np.float32(0))
    total = b.reduce_sum(powers, axes=[1], keep_dimensions=True)
    return b.div(b.where(counts, powers, b.mul(scores, b.exp(b.neg(highest)))), total)


def _probit(b: MLGraphBuilder, scores: MLOperand) -> MLOperand:
    """√2 times the inverse error function of 2 * score - 1, by Winitzki's formula with ONNX Runtime's constants."""
    x = b.linear(scores, alpha=2, beta=-1)
    log = b.log(b.mul(b.sub(1, x), b.add(x, 1)))
    half = b.linear(log, alpha=0.5, beta=2 / (3.14159 * 0.147))
    square = b.mul(log, 1 / 0.147)
    root = b.sqrt(b.sub(b.mul(half, half), square))
    # root - half, but without cancellation where half > 0: (root² - half²) / (root + half).
    inner = b.where(b.greater(half, 0), b.div(b.neg(square), b.add(root, half)), b.sub(root, half))
    length = b.mul(b.sqrt(inner), math.sqrt(2))
    return b.where(b.lesser(x, 0), b.neg(length), length)


@converts("LinearRegressor", domain=TRADITIONAL)
def _(
    b: MLGraphBuilder,
    X: MLOperand,
    *,
    coefficients: Sequence[float] = (),
    intercepts: Sequence[float] = (),
    post_transform: str = "NONE",
    targets: int = 1,
    types: list[int],
) -> Tensor:
    x = _float32(b, X, types)
    _check_model(x, coefficients, targets, post_transform)
    used = intercepts if len(intercepts) == targets else ()  # like ONNX Runtime, ignore any other number
    scores = _scores(b, x, coefficients, used)
    # To a single score, ONNX Runtime applies only PROBIT.
    return _transform(b, scores, post_transform) if targets > 1 or post_transform == "PROBIT" else scores


def _check_model(x: MLOperand, coefficients: Sequence[float], targets: int, transform: str) -> None:
    unsupported_if(x.rank not in (1, 2), f"its input has rank {x.rank}")
    features = x.shape[-1]
    if targets < 1 or len(coefficients) != targets * features:
        raise Unsupported(f"it has {len(coefficients)} coefficients for {targets} functions of {features} features")
    unsupported_if(transform not in TRANSFORMS, f"its post_transform is {transform!r}")


@converts("LinearClassifier", domain=TRADITIONAL)
def _(
    b: MLGraphBuilder,
    X: MLOperand,
    *,
    classlabels_ints: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
    coefficients: Sequence[float] = (),
    intercepts: Sequence[float] = (),
    multi_class: int = 0,  # not read, as in ONNX Runtime
    post_transform: str = "NONE",
    types: list[int],
) -> tuple[Tensor, Tensor]:
    x = _float32(b, X, types)
    unsupported_if(classlabels_strings, "its labels are strings")  # `labels` replaces such a node
    functions = len(intercepts) or len(coefficients) // max(x.shape[-1], 1)
    _check_model(x, coefficients, functions, post_transform)
    scores = _scores(b, x, coefficients, intercepts)
    if functions > 1:
        unsupported_if(
            len(classlabels_ints) < functions, f"it has {len(classlabels_ints)} labels of {functions} classes"
        )
        best = b.arg_max(scores, 1, output_data_type="int64")
        labels = np.int64(classlabels_ints)
        is_position = np.array_equal(labels, np.arange(len(labels)))
        return best if is_position else b.gather(labels, best), _transform(b, scores, post_transform)
    unsupported_if(len(classlabels_ints) not in (0, 2), f"it has one score, and {len(classlabels_ints)} labels")
    negative, positive = classlabels_ints or (0, 1)
    is_positive = operand(b, reshape(b, b.greater(scores, 0), [scores.shape[0]]))
    label = b.where(is_positive, np.array(positive, np.int64), np.array(negative, np.int64))
    return label, _binary(b, scores, post_transform) if classlabels_ints else _single(b, scores, post_transform)


def _single(b: MLGraphBuilder, scores: MLOperand, transform: str) -> MLOperand:
    """Apply `post_transform` to the only score of each row, which only PROBIT changes."""
    return _probit(b, scores) if transform == "PROBIT" else scores


def _binary(b: MLGraphBuilder, scores: MLOperand, transform: str) -> MLOperand:
    """The scores of two classes; `scores` belong to the second."""
    unsupported_if(transform == "PROBIT", "it has two labels, one score, and the post_transform 'PROBIT'")
    if transform == "LOGISTIC":
        return b.sigmoid(b.concat([b.neg(scores), scores], 1))
    return b.concat([b.sub(1, scores), scores], 1)
