"""ONNX loss functions."""

from __future__ import annotations

from math import prod

from ...builder import MLGraphBuilder
from ...composites import log_softmax
from ...graph import MLOperand
from ..registry import Tensor, Unsupported, converts, operand


def _loss(
    b: MLGraphBuilder,
    log_probabilities: MLOperand,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int | None,
    reduction: str,
) -> MLOperand:
    """The negative logarithm of the probability of each target class, weighted and reduced.

    Args:
        b: the builder.
        log_probabilities: [batch, classes, ...].
        target: [batch, ...], the number of a class, or `ignore_index`.
        weight: of each class.
        ignore_index: targets that do not count.
        reduction: "none", "sum", or "mean": the sum divided by that of the weights.
    """
    if reduction not in ("none", "sum", "mean"):
        raise Unsupported(f"the reduction {reduction!r} is not known")
    index = operand(b, target)
    is_ignored = None
    if ignore_index is not None:
        is_ignored = b.equal(index, ignore_index)
        index = b.where(is_ignored, 0, index)  # it need not be the number of a class
    batch, _, *inner = log_probabilities.shape
    chosen = b.gather_elements(log_probabilities, b.reshape(index, [batch, 1, *inner]), axis=1)
    loss = b.neg(b.reshape(chosen, index.shape))
    weights = None if weight is None else b.gather(operand(b, weight), index)
    if is_ignored is not None:
        if weights is None:
            weights = b.cast(b.logical_not(is_ignored), loss.data_type)
        else:
            weights = b.where(is_ignored, 0, weights)
    if weights is not None:
        # An ignored loss is left out even if it is infinite, whose product with 0 is NaN.
        loss = b.mul(loss, weights) if is_ignored is None else b.where(is_ignored, 0, b.mul(loss, weights))
    if reduction == "none":
        return loss
    total = b.reduce_sum(loss)
    if reduction == "sum":
        return total
    return b.div(total, prod(index.shape) if weights is None else b.reduce_sum(weights))


@converts("NegativeLogLikelihoodLoss")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    return _loss(b, input, target, weight, ignore_index, reduction)


@converts("SoftmaxCrossEntropyLoss")
def _(
    b: MLGraphBuilder,
    scores: MLOperand,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    log_probabilities = log_softmax(b, scores, 1)
    return _loss(b, log_probabilities, labels, weights, ignore_index, reduction), log_probabilities
