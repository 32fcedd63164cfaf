"""ONNX Runtime rules: activation functions."""

from __future__ import annotations

import math

import numpy as np

from ....composites import is_composite
from ....core.dtypes import INFO, is_float
from ....core.graph import Graph, Operand
from ....core.shapes import broadcasts_to
from ....ops import activation as ops, convolution, elementwise, matrix, movement, pooling, recurrent, reduction
from ..backend import ort
from ..emit import MICROSOFT, Emitter, Value
from .shared import is_single

ort.rename({ops.gelu: "Gelu", ops.hard_swish: "HardSwish"})
ort.rename({ops.softplus: "Softplus", ops.softsign: "Softsign"})
ort.rename({ops.elu: "Elu", ops.hard_sigmoid: "HardSigmoid", ops.leaky_relu: "LeakyRelu"})
ort.rename({"thresholded_relu": "ThresholdedRelu"}, when=is_single)
ort.rename({"quick_gelu": "QuickGelu"}, when=is_single, domain=MICROSOFT)
# The kernel refuses scalars.
ort.rename({"fast_gelu": "FastGelu"}, when=lambda input: is_single(input) and input.rank > 0, domain=MICROSOFT)


@ort.lower(ops.tanh)
def _(ctx: Emitter, input: Value) -> Value:
    result: Value = ctx.emit("Tanh", input, shape=input.shape)
    # The optimiser fuses the parts of GELU to FastGelu, whose kernel refuses scalars.
    return result if input.rank > 0 or ctx.portable else ctx.insert_barrier(result)


@ort.lower(ops.linear)
def _(ctx: Emitter, input: Value, alpha: float, beta: float) -> Value:
    scaled = input if alpha == 1 else ctx.emit("Mul", input, ctx.scalar(alpha, input))
    return scaled if beta == 0 else ctx.emit("Add", scaled, ctx.scalar(beta, input))


def _slope_fits(input: Operand, slope: Operand) -> bool:
    """Whether the PRelu kernel is correct: it computes 0 * slope for an input of 0, which is NaN for NaN and infinity."""
    if not broadcasts_to(slope.shape, input.shape):
        return False
    return is_float(input.data_type) and slope.is_constant and bool(np.isfinite(slope.value).all())


ort.rename({ops.prelu: "PRelu"}, when=_slope_fits)


@ort.lower(ops.prelu)
def _(ctx: Emitter, input: Value, slope: Value) -> Value:
    is_below = ctx.emit("Less", input, ctx.scalar(0, input), data_type="bool")
    return ctx.emit("Where", is_below, ctx.emit("Mul", slope, input), input)


ort.rename({ops.relu: "Relu"}, when=lambda input: is_float(input.data_type))


@ort.lower(ops.relu, when=lambda input: input.data_type == "int64")
def _(ctx: Emitter, input: Value) -> Value:
    return ctx.emit("Max", input, ctx.scalar(0, input))


@ort.lower(ops.relu)
def _(ctx: Emitter, input: Value) -> Value:
    # Not Relu: the engine's optimiser fails when a Clip of integers follows it.
    # https://github.com/microsoft/onnxruntime/issues/23116
    return ctx.emit("Clip", input, ctx.scalar(0, input), ctx.scalar(INFO[ctx.output.data_type].highest, input))


_SUMS = frozenset(
    {
        *(convolution.conv2d, convolution.conv_transpose2d),
        *(matrix.gemm, matrix.matmul, recurrent.gru, recurrent.lstm),
    }
)
"""Operations that add many products: errors below the rounding error of the sum are negligible."""

_SUMMING_COMPOSITES = ("convolution", "conv_transpose")
"""Names of composites of the same kind."""

_CARRIERS = frozenset(
    {
        *(elementwise.add, elementwise.identity, elementwise.max, elementwise.min, elementwise.mul, elementwise.neg),
        *(elementwise.sub, movement.concat, movement.expand, movement.pad, movement.reshape, movement.slice),
        *(reduction.reduce_max, reduction.reduce_mean, reduction.reduce_min, reduction.reduce_sum),
        *(movement.split, movement.transpose, pooling.average_pool2d, pooling.max_pool2d, convolution.resample2d),
        *(ops.leaky_relu, ops.relu, ops.sigmoid, ops.tanh),
    }
)
"""Operations that do not amplify absolute errors, unlike a logarithm or a division."""

_CARRYING_COMPOSITES = ("average_pool", "max_pool")
"""Names of composites of the same kind."""


def _exact_values(graph: Graph) -> set[Operand]:
    """Return the values whose relative error must be small: all that are not added up."""
    exact = set(graph.outputs.values())
    for node in reversed(graph.nodes):
        is_sum = node.op in _SUMS or is_composite(node.op, *_SUMMING_COMPOSITES)
        carries = node.op in _CARRIERS or is_composite(node.op, *_CARRYING_COMPOSITES)
        if not is_sum and not (carries and exact.isdisjoint(node.outputs)):
            exact.update(node.operands)
    return exact


@ort.lower(ops.sigmoid)
def _(ctx: Emitter, input: Value) -> Value:
    """Use the engine's Sigmoid if the result is added up, else a form that is accurate for small results.

    The absolute error of the engine's kernel is up to 1.7e-7: 3 ULP near 1, 182 ULP at -5 (the specification's tests
    allow 34), 10% at -14, and 100% below -18. A sum loses as much by rounding. The engine fuses its kernel with a
    product (SiLU), and runs it in the blocked layout of convolutions: NudeNet 320n has 221 kernels, and 474 with the
    accurate form.

    The accurate form is a softsign: with y = exp(min(x, 80)), the result is y / (1 + |y|). The bound keeps y finite; the
    result is 1 there.
    """
    if ctx.node.outputs[0] not in ctx.answer(_exact_values):
        return ctx.emit("Sigmoid", input)
    x = ctx.cast(input, "float32")
    bounded = ctx.emit("Clip", x, ctx.scalar(-math.inf, x), ctx.scalar(80, x))
    return ctx.cast(ctx.emit("Softsign", ctx.emit("Exp", bounded)), input.data_type)
