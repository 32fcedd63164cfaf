"""Calls of operations, for type checkers and editors. Made by tools/write_signatures.py; do not edit."""

# mypy: disable-error-code="overload-overlap"
# (Of arrays alone the result is an array; with an operand among them, which is the last form, it is an operand.)

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload

import numpy as np

from ..core.dtypes import DataType as DataType
from ..core.graph import Builder, MLOperand
from ..core.operation import Op
from ..lazy.array import Array

Same = TypeVar("Same")  # Self, in a form that Jedi follows into derived classes

class SupportsDlpack(Protocol):
    """An array of NumPy, PyTorch, JAX, CuPy, ONNX Runtime, …, or a tensor of Opweave."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...

ArrayLike: TypeAlias = SupportsDlpack | np.number[Any] | float
"""What operations compute with: arrays, tensors and numbers."""

OperandLike: TypeAlias = MLOperand | ArrayLike
"""What operations of a graph take: operands; arrays and numbers become constants."""

class BuilderMethods:
    """The operations as methods of builders."""

    def arg_min(self, input: OperandLike, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> MLOperand: """Find the position of the smallest value along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-argminmax"""
    def arg_max(self, input: OperandLike, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> MLOperand: """Find the position of the largest value along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-argminmax"""
    def batch_normalization(self, input: OperandLike, mean: OperandLike, variance: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axis: int = 1, epsilon: float = 1e-05, label: str = '') -> MLOperand: """Normalise each channel of `input` with a given mean and variance. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-batchnorm"""
    def cast(self, input: OperandLike, data_type: DataType, *, label: str = '') -> MLOperand: """Convert each element to another data type. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-cast"""
    def clamp(self, input: OperandLike, *, min_value: float | None = None, max_value: float | None = None, label: str = '') -> MLOperand: """Limit each element to the range from `min_value` to `max_value`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-clamp"""
    def concat(self, inputs: Sequence[OperandLike], axis: int, *, label: str = '') -> MLOperand: """Join `inputs` along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-concat"""
    def conv2d(self, input: OperandLike, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["oihw", "hwio", "ohwi", "ihwo"] = 'oihw', bias: OperandLike | None = None, label: str = '') -> MLOperand: """Convolve a batch of images with a bank of filters. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-conv2d"""
    def conv_transpose2d(self, input: OperandLike, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), output_padding: Sequence[int] = (0, 0), output_sizes: Sequence[int] | None = None, groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["iohw", "hwoi", "ohwi"] = 'iohw', bias: OperandLike | None = None, label: str = '') -> MLOperand: """Transposed convolution of a batch of images, the gradient of `conv2d` with respect to its input. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-convtranspose2d"""
    def cumulative_sum(self, input: OperandLike, axis: int, *, exclusive: bool = False, reversed: bool = False, label: str = '') -> MLOperand: """Compute the partial sums along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-cumulativesum"""
    def add(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Add `a` and `b`, element by element."""
    def sub(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Subtract `b` from `a`, element by element."""
    def mul(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Multiply `a` and `b`, element by element."""
    def div(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Divide `a` by `b`, element by element."""
    def max(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Maximum of `a` and `b`, element by element."""
    def min(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Minimum of `a` and `b`, element by element."""
    def pow(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Raise `a` to the power of `b`, element by element."""
    def equal(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Whether `a` is equal to `b`, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def not_equal(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Whether `a` differs from `b`, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def greater(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Whether `a` is greater than `b`, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def greater_or_equal(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Whether `a` is greater than `b` or equal to it, by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def lesser(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Whether `a` is less than `b`, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def lesser_or_equal(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Whether `a` is less than `b` or equal to it, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def logical_not(self, a: OperandLike, *, label: str = '') -> MLOperand: """Whether each element of `a` is false. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def logical_and(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Whether both `a` and `b` are true, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def logical_or(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Whether `a` or `b` or both are true, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def logical_xor(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Whether exactly one of `a` and `b` is true, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def is_nan(self, a: OperandLike, *, label: str = '') -> MLOperand: """Whether each element of `a` is NaN. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def is_infinite(self, a: OperandLike, *, label: str = '') -> MLOperand: """Whether each element of `a` is infinite, positive or negative. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def abs(self, input: OperandLike, *, label: str = '') -> MLOperand: """Absolute value of each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def ceil(self, input: OperandLike, *, label: str = '') -> MLOperand: """Round each element up to an integer. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def cos(self, input: OperandLike, *, label: str = '') -> MLOperand: """Cosine of each element, in radians. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def erf(self, input: OperandLike, *, label: str = '') -> MLOperand: """Error function of each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def exp(self, input: OperandLike, *, label: str = '') -> MLOperand: """Raise e to the power of each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def floor(self, input: OperandLike, *, label: str = '') -> MLOperand: """Round each element down to an integer. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def identity(self, input: OperandLike, *, label: str = '') -> MLOperand: """Return `input` unchanged. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def log(self, input: OperandLike, *, label: str = '') -> MLOperand: """Natural logarithm of each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def neg(self, input: OperandLike, *, label: str = '') -> MLOperand: """Negate each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def reciprocal(self, input: OperandLike, *, label: str = '') -> MLOperand: """One divided by each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def round_even(self, input: OperandLike, *, label: str = '') -> MLOperand: """Round each element to the nearest integer, halves to the even one. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def sin(self, input: OperandLike, *, label: str = '') -> MLOperand: """Sine of each element, in radians. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def sign(self, input: OperandLike, *, label: str = '') -> MLOperand: """Sign of each element: 1 if it is greater than 0, -1 if it is less, 0 if neither (0 and NaN). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def sqrt(self, input: OperandLike, *, label: str = '') -> MLOperand: """Square root of each element; NaN for negative ones. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def tan(self, input: OperandLike, *, label: str = '') -> MLOperand: """Tangent of each element, in radians. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def dequantize_linear(self, input: OperandLike, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> MLOperand: """Convert quantised integers to floats: `(input - zero_point) * scale`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-dequantizelinear"""
    def quantize_linear(self, input: OperandLike, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> MLOperand: """Quantise floats: `input / scale`, rounded to nearest even, plus `zero_point`, saturated. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-quantizelinear"""
    def elu(self, input: OperandLike, *, alpha: float = 1.0, label: str = '') -> MLOperand: """Exponential linear unit: max(0, x) + alpha * (exp(min(0, x)) - 1). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-elu"""
    def expand(self, input: OperandLike, new_shape: Sequence[int], *, label: str = '') -> MLOperand: """Stretch dimensions of size 1, and add leading ones, by repeating the elements of `input`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-expand"""
    def gather(self, input: OperandLike, indices: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand: """Pick slices of `input` along `axis`, one for each index. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gather"""
    def gather_elements(self, input: OperandLike, indices: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand: """Pick single elements of `input`: each index replaces its own coordinate along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gatherelements"""
    def gather_nd(self, input: OperandLike, indices: OperandLike, *, label: str = '') -> MLOperand: """Pick slices of `input` by their coordinates in its leading dimensions. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gathernd"""
    def gelu(self, input: OperandLike, *, label: str = '') -> MLOperand: """Gaussian error linear unit: 0.5 * x * (1 + erf(x / sqrt(2))). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gelu-method"""
    def gemm(self, a: OperandLike, b: OperandLike, *, c: OperandLike | None = None, alpha: float = 1.0, beta: float = 1.0, a_transpose: bool = False, b_transpose: bool = False, label: str = '') -> MLOperand: """Compute alpha * a @ b + beta * c, for matrices. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gemm"""
    def gru(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, reset_after: bool = True, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: """Run a gated recurrent unit (GRU) over a sequence. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gru"""
    def gru_cell(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, reset_after: bool = True, layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> MLOperand: """Run a gated recurrent unit (GRU) for one time step. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-grucell"""
    def hard_sigmoid(self, input: OperandLike, *, alpha: float = 0.2, beta: float = 0.5, label: str = '') -> MLOperand: """Piecewise linear approximation of the sigmoid: max(0, min(1, alpha * x + beta)). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-hard-sigmoid"""
    def hard_swish(self, input: OperandLike, *, label: str = '') -> MLOperand: """Piecewise approximation of swish: x * max(0, min(6, x + 3)) / 6. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-hard-swish"""
    def instance_normalization(self, input: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, epsilon: float = 1e-05, layout: Literal["nchw", "nhwc"] = 'nchw', label: str = '') -> MLOperand: """Normalise each channel of each image of the batch with its own mean and variance. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-instancenorm"""
    def layer_normalization(self, input: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axes: Sequence[int] | None = None, epsilon: float = 1e-05, label: str = '') -> MLOperand: """Normalise `input` with mean and variance along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-layernorm"""
    def leaky_relu(self, input: OperandLike, *, alpha: float = 0.01, label: str = '') -> MLOperand: """Rectified linear unit with a slope for negative values: max(0, x) + alpha * min(0, x). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-leakyrelu"""
    def linear(self, input: OperandLike, *, alpha: float = 1.0, beta: float = 0.0, label: str = '') -> MLOperand: """Linear function of each element: alpha * x + beta. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-linear"""
    def lstm(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, initial_cell_state: OperandLike | None = None, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: """Run a long short-term memory (LSTM) over a sequence. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-lstm"""
    def lstm_cell(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, cell_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: """Run a long short-term memory (LSTM) for one time step. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-lstmcell"""
    def matmul(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Multiply matrices, or stacks of matrices. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-matmul"""
    def pad(self, input: OperandLike, beginning_padding: Sequence[int], ending_padding: Sequence[int], *, mode: Literal["constant", "edge", "reflection"] = 'constant', value: float = 0, label: str = '') -> MLOperand: """Add elements around `input`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pad"""
    def average_pool2d(self, input: OperandLike, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> MLOperand: """Average each window of each channel; NaN for windows without elements. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pool2d"""
    def l2_pool2d(self, input: OperandLike, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> MLOperand: """Take the square root of the sum of squares of each window of each channel. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pool2d"""
    def max_pool2d(self, input: OperandLike, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> MLOperand: """Take the maximum of each window of each channel; the lowest value of the data type for windows without elements. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pool2d"""
    def prelu(self, input: OperandLike, slope: OperandLike, *, label: str = '') -> MLOperand: """Rectified linear unit with a learned slope for negative values: slope * x where x < 0, else x. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-prelu"""
    def reduce_l1(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: """Sum the absolute values along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_l2(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: """Take the square root of the sum of squares along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_log_sum(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: """Take the natural logarithm of the sum along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_log_sum_exp(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: """Take the natural logarithm of the sum of exponentials along `axes`, without intermediate overflow. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_max(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: """Find the largest value along `axes`; where one is NaN, NaN may be ignored. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_mean(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: """Average the values along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_min(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: """Find the smallest value along `axes`; where one is NaN, NaN may be ignored. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_product(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: """Multiply the values along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_sum(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: """Sum the values along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_sum_square(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: """Sum the squares of the values along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def relu(self, input: OperandLike, *, label: str = '') -> MLOperand: """Rectified linear unit: max(0, x). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-relu-method"""
    def resample2d(self, input: OperandLike, *, mode: Literal["nearest-neighbor", "linear"] = 'nearest-neighbor', scales: Sequence[float] = (1.0, 1.0), sizes: Sequence[int] | None = None, axes: Sequence[int] = (2, 3), label: str = '') -> MLOperand: """Resize two axes by interpolation. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-resample2d-method"""
    def reshape(self, input: OperandLike, new_shape: Sequence[int], *, label: str = '') -> MLOperand: """Change the shape of `input`, keeping the order of its elements. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reshape-method"""
    def reverse(self, input: OperandLike, *, axes: Sequence[int] | None = None, label: str = '') -> MLOperand: """Reverse the order of the elements along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reverse-method"""
    def scatter_elements(self, input: OperandLike, indices: OperandLike, updates: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand: """Replace single elements of `input` by `updates`: each index replaces its own coordinate along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-scatterelements"""
    def scatter_nd(self, input: OperandLike, indices: OperandLike, updates: OperandLike, *, label: str = '') -> MLOperand: """Replace slices of `input` by `updates`, at coordinates in its leading dimensions. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-scatternd"""
    def sigmoid(self, input: OperandLike, *, label: str = '') -> MLOperand: """Sigmoid: 1 / (1 + exp(-x)). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-sigmoid-method"""
    def slice(self, input: OperandLike, starts: Sequence[int], sizes: Sequence[int], *, strides: Sequence[int] | None = None, label: str = '') -> MLOperand: """Extract a window of `input`, with strides. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-slice"""
    def softmax(self, input: OperandLike, axis: int, *, label: str = '') -> MLOperand: """Normalise `input` along `axis` so that every slice is positive and sums to one. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-softmax-method"""
    def softplus(self, input: OperandLike, *, label: str = '') -> MLOperand: """Smooth rectified linear unit: log(1 + exp(x)). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-softplus-method"""
    def softsign(self, input: OperandLike, *, label: str = '') -> MLOperand: """Softsign: x / (1 + |x|). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-softsign-method"""
    def split(self, input: OperandLike, splits: int | Sequence[int], *, axis: int = 0, label: str = '') -> tuple[MLOperand, ...]: """Split `input` into parts along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-split"""
    def tanh(self, input: OperandLike, *, label: str = '') -> MLOperand: """Hyperbolic tangent. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-tanh-method"""
    def tile(self, input: OperandLike, repetitions: Sequence[int], *, label: str = '') -> MLOperand: """Repeat `input` along each dimension. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-tile"""
    def transpose(self, input: OperandLike, *, permutation: Sequence[int] | None = None, label: str = '') -> MLOperand: """Permute the dimensions of `input`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-transpose"""
    def triangular(self, input: OperandLike, *, upper: bool = True, diagonal: int = 0, label: str = '') -> MLOperand: """Keep the upper or the lower triangle of each matrix in `input`, and set the rest to zero. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-triangular"""
    def where(self, condition: OperandLike, true_value: OperandLike, false_value: OperandLike, *, label: str = '') -> MLOperand: """Choose between `true_value` and `false_value`, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-where"""
    def modulus_floor(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Remainder of `a` / `b` with the sign of `b`, element by element, as Python's `%`."""
    def modulus_truncate(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: """Remainder of `a` / `b` with the sign of `a`, element by element, as `%` in C."""
    def shape(self, input: OperandLike, *, label: str = '') -> MLOperand: """Return the shape of `input` as a vector. https://github.com/webmachinelearning/webnn/issues/883"""
    def range(self, start: OperandLike, limit: OperandLike, delta: OperandLike, *, label: str = '') -> MLOperand: """Count from `start` in steps of `delta`, before `limit`. https://github.com/webmachinelearning/webnn/issues/883"""
    def squeeze(self, input: OperandLike, *, axes: Sequence[int] | None = None, label: str = '') -> MLOperand: """Remove dimensions of size 1. https://github.com/webmachinelearning/webnn/issues/883"""
    def unsqueeze(self, input: OperandLike, axes: Sequence[int], *, label: str = '') -> MLOperand: """Insert dimensions of size 1. https://github.com/webmachinelearning/webnn/issues/883"""
    def reshape_to_2d(self, input: OperandLike, *, axis: int = 1, label: str = '') -> MLOperand: """Flatten `input` into a matrix. https://github.com/webmachinelearning/webnn/issues/883"""
    def reshape_dynamic(self, input: OperandLike, new_shape: OperandLike, *, label: str = '') -> MLOperand: """Change the shape of `input` as `reshape` does, to a shape that the graph computes. https://github.com/webmachinelearning/webnn/issues/883"""
    def expand_dynamic(self, input: OperandLike, new_shape: OperandLike, *, label: str = '') -> MLOperand: """Broadcast `input` as `expand` does, to a shape that the graph computes. https://github.com/webmachinelearning/webnn/issues/883"""
    def slice_dynamic(self, input: OperandLike, starts: OperandLike, sizes: OperandLike, *, strides: Sequence[int] | None = None, label: str = '') -> MLOperand: """Extract a window of `input` as `slice` does, at a place that the graph computes. https://github.com/webmachinelearning/webnn/issues/883"""
    def pad_dynamic(self, input: OperandLike, beginning_padding: OperandLike, ending_padding: OperandLike, *, mode: Literal["constant", "edge", "reflection"] = 'constant', value: float = 0, label: str = '') -> MLOperand: """Add elements around `input` as `pad` does, as many as the graph computes. https://github.com/webmachinelearning/webnn/issues/883"""
    def split_dynamic(self, input: OperandLike, splits: OperandLike, *, axis: int = 0, label: str = '') -> tuple[MLOperand, ...]: """Split `input` along `axis` as `split` does, into parts of sizes that the graph computes. https://github.com/webmachinelearning/webnn/issues/883"""
    def resample2d_dynamic(self, input: OperandLike, sizes: OperandLike, *, mode: Literal["nearest-neighbor", "linear"] = 'nearest-neighbor', axes: Sequence[int] = (2, 3), label: str = '') -> MLOperand: """Resize two axes by interpolation as `resample2d` does, to sizes that the graph computes. https://github.com/webmachinelearning/webnn/issues/883"""
    def tile_dynamic(self, input: OperandLike, repetitions: OperandLike, *, label: str = '') -> MLOperand: """Repeat `input` along each dimension as `tile` does, as often as the graph computes. https://github.com/webmachinelearning/webnn/issues/883"""

class ArrayMethods:
    """The operations as methods of operands and arrays, their first argument."""

    def arg_min(self: Same, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> Same: """Find the position of the smallest value along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-argminmax"""
    def arg_max(self: Same, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> Same: """Find the position of the largest value along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-argminmax"""
    def batch_normalization(self: Same, mean: OperandLike, variance: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axis: int = 1, epsilon: float = 1e-05, label: str = '') -> Same: """Normalise each channel of `input` with a given mean and variance. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-batchnorm"""
    def cast(self: Same, data_type: DataType, *, label: str = '') -> Same: """Convert each element to another data type. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-cast"""
    def clamp(self: Same, *, min_value: float | None = None, max_value: float | None = None, label: str = '') -> Same: """Limit each element to the range from `min_value` to `max_value`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-clamp"""
    def conv2d(self: Same, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["oihw", "hwio", "ohwi", "ihwo"] = 'oihw', bias: OperandLike | None = None, label: str = '') -> Same: """Convolve a batch of images with a bank of filters. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-conv2d"""
    def conv_transpose2d(self: Same, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), output_padding: Sequence[int] = (0, 0), output_sizes: Sequence[int] | None = None, groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["iohw", "hwoi", "ohwi"] = 'iohw', bias: OperandLike | None = None, label: str = '') -> Same: """Transposed convolution of a batch of images, the gradient of `conv2d` with respect to its input. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-convtranspose2d"""
    def cumulative_sum(self: Same, axis: int, *, exclusive: bool = False, reversed: bool = False, label: str = '') -> Same: """Compute the partial sums along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-cumulativesum"""
    def add(self: Same, b: OperandLike, *, label: str = '') -> Same: """Add `a` and `b`, element by element."""
    def sub(self: Same, b: OperandLike, *, label: str = '') -> Same: """Subtract `b` from `a`, element by element."""
    def mul(self: Same, b: OperandLike, *, label: str = '') -> Same: """Multiply `a` and `b`, element by element."""
    def div(self: Same, b: OperandLike, *, label: str = '') -> Same: """Divide `a` by `b`, element by element."""
    def max(self: Same, b: OperandLike, *, label: str = '') -> Same: """Maximum of `a` and `b`, element by element."""
    def min(self: Same, b: OperandLike, *, label: str = '') -> Same: """Minimum of `a` and `b`, element by element."""
    def pow(self: Same, b: OperandLike, *, label: str = '') -> Same: """Raise `a` to the power of `b`, element by element."""
    def equal(self: Same, b: OperandLike, *, label: str = '') -> Same: """Whether `a` is equal to `b`, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def not_equal(self: Same, b: OperandLike, *, label: str = '') -> Same: """Whether `a` differs from `b`, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def greater(self: Same, b: OperandLike, *, label: str = '') -> Same: """Whether `a` is greater than `b`, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def greater_or_equal(self: Same, b: OperandLike, *, label: str = '') -> Same: """Whether `a` is greater than `b` or equal to it, by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def lesser(self: Same, b: OperandLike, *, label: str = '') -> Same: """Whether `a` is less than `b`, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def lesser_or_equal(self: Same, b: OperandLike, *, label: str = '') -> Same: """Whether `a` is less than `b` or equal to it, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def logical_not(self: Same, *, label: str = '') -> Same: """Whether each element of `a` is false. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def logical_and(self: Same, b: OperandLike, *, label: str = '') -> Same: """Whether both `a` and `b` are true, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def logical_or(self: Same, b: OperandLike, *, label: str = '') -> Same: """Whether `a` or `b` or both are true, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def logical_xor(self: Same, b: OperandLike, *, label: str = '') -> Same: """Whether exactly one of `a` and `b` is true, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def is_nan(self: Same, *, label: str = '') -> Same: """Whether each element of `a` is NaN. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def is_infinite(self: Same, *, label: str = '') -> Same: """Whether each element of `a` is infinite, positive or negative. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
    def abs(self: Same, *, label: str = '') -> Same: """Absolute value of each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def ceil(self: Same, *, label: str = '') -> Same: """Round each element up to an integer. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def cos(self: Same, *, label: str = '') -> Same: """Cosine of each element, in radians. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def erf(self: Same, *, label: str = '') -> Same: """Error function of each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def exp(self: Same, *, label: str = '') -> Same: """Raise e to the power of each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def floor(self: Same, *, label: str = '') -> Same: """Round each element down to an integer. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def identity(self: Same, *, label: str = '') -> Same: """Return `input` unchanged. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def log(self: Same, *, label: str = '') -> Same: """Natural logarithm of each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def neg(self: Same, *, label: str = '') -> Same: """Negate each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def reciprocal(self: Same, *, label: str = '') -> Same: """One divided by each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def round_even(self: Same, *, label: str = '') -> Same: """Round each element to the nearest integer, halves to the even one. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def sin(self: Same, *, label: str = '') -> Same: """Sine of each element, in radians. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def sign(self: Same, *, label: str = '') -> Same: """Sign of each element: 1 if it is greater than 0, -1 if it is less, 0 if neither (0 and NaN). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def sqrt(self: Same, *, label: str = '') -> Same: """Square root of each element; NaN for negative ones. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def tan(self: Same, *, label: str = '') -> Same: """Tangent of each element, in radians. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
    def dequantize_linear(self: Same, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> Same: """Convert quantised integers to floats: `(input - zero_point) * scale`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-dequantizelinear"""
    def quantize_linear(self: Same, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> Same: """Quantise floats: `input / scale`, rounded to nearest even, plus `zero_point`, saturated. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-quantizelinear"""
    def elu(self: Same, *, alpha: float = 1.0, label: str = '') -> Same: """Exponential linear unit: max(0, x) + alpha * (exp(min(0, x)) - 1). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-elu"""
    def expand(self: Same, new_shape: Sequence[int], *, label: str = '') -> Same: """Stretch dimensions of size 1, and add leading ones, by repeating the elements of `input`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-expand"""
    def gather(self: Same, indices: OperandLike, *, axis: int = 0, label: str = '') -> Same: """Pick slices of `input` along `axis`, one for each index. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gather"""
    def gather_elements(self: Same, indices: OperandLike, *, axis: int = 0, label: str = '') -> Same: """Pick single elements of `input`: each index replaces its own coordinate along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gatherelements"""
    def gather_nd(self: Same, indices: OperandLike, *, label: str = '') -> Same: """Pick slices of `input` by their coordinates in its leading dimensions. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gathernd"""
    def gelu(self: Same, *, label: str = '') -> Same: """Gaussian error linear unit: 0.5 * x * (1 + erf(x / sqrt(2))). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gelu-method"""
    def gemm(self: Same, b: OperandLike, *, c: OperandLike | None = None, alpha: float = 1.0, beta: float = 1.0, a_transpose: bool = False, b_transpose: bool = False, label: str = '') -> Same: """Compute alpha * a @ b + beta * c, for matrices. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gemm"""
    def gru(self: Same, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, reset_after: bool = True, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> tuple[Same, ...]: """Run a gated recurrent unit (GRU) over a sequence. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gru"""
    def gru_cell(self: Same, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, reset_after: bool = True, layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> Same: """Run a gated recurrent unit (GRU) for one time step. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-grucell"""
    def hard_sigmoid(self: Same, *, alpha: float = 0.2, beta: float = 0.5, label: str = '') -> Same: """Piecewise linear approximation of the sigmoid: max(0, min(1, alpha * x + beta)). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-hard-sigmoid"""
    def hard_swish(self: Same, *, label: str = '') -> Same: """Piecewise approximation of swish: x * max(0, min(6, x + 3)) / 6. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-hard-swish"""
    def instance_normalization(self: Same, *, scale: OperandLike | None = None, bias: OperandLike | None = None, epsilon: float = 1e-05, layout: Literal["nchw", "nhwc"] = 'nchw', label: str = '') -> Same: """Normalise each channel of each image of the batch with its own mean and variance. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-instancenorm"""
    def layer_normalization(self: Same, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axes: Sequence[int] | None = None, epsilon: float = 1e-05, label: str = '') -> Same: """Normalise `input` with mean and variance along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-layernorm"""
    def leaky_relu(self: Same, *, alpha: float = 0.01, label: str = '') -> Same: """Rectified linear unit with a slope for negative values: max(0, x) + alpha * min(0, x). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-leakyrelu"""
    def linear(self: Same, *, alpha: float = 1.0, beta: float = 0.0, label: str = '') -> Same: """Linear function of each element: alpha * x + beta. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-linear"""
    def lstm(self: Same, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, initial_cell_state: OperandLike | None = None, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[Same, ...]: """Run a long short-term memory (LSTM) over a sequence. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-lstm"""
    def lstm_cell(self: Same, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, cell_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[Same, ...]: """Run a long short-term memory (LSTM) for one time step. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-lstmcell"""
    def matmul(self: Same, b: OperandLike, *, label: str = '') -> Same: """Multiply matrices, or stacks of matrices. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-matmul"""
    def pad(self: Same, beginning_padding: Sequence[int], ending_padding: Sequence[int], *, mode: Literal["constant", "edge", "reflection"] = 'constant', value: float = 0, label: str = '') -> Same: """Add elements around `input`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pad"""
    def average_pool2d(self: Same, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> Same: """Average each window of each channel; NaN for windows without elements. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pool2d"""
    def l2_pool2d(self: Same, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> Same: """Take the square root of the sum of squares of each window of each channel. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pool2d"""
    def max_pool2d(self: Same, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> Same: """Take the maximum of each window of each channel; the lowest value of the data type for windows without elements. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pool2d"""
    def prelu(self: Same, slope: OperandLike, *, label: str = '') -> Same: """Rectified linear unit with a learned slope for negative values: slope * x where x < 0, else x. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-prelu"""
    def reduce_l1(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same: """Sum the absolute values along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_l2(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same: """Take the square root of the sum of squares along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_log_sum(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same: """Take the natural logarithm of the sum along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_log_sum_exp(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same: """Take the natural logarithm of the sum of exponentials along `axes`, without intermediate overflow. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_max(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same: """Find the largest value along `axes`; where one is NaN, NaN may be ignored. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_mean(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same: """Average the values along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_min(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same: """Find the smallest value along `axes`; where one is NaN, NaN may be ignored. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_product(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same: """Multiply the values along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_sum(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same: """Sum the values along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def reduce_sum_square(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same: """Sum the squares of the values along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
    def relu(self: Same, *, label: str = '') -> Same: """Rectified linear unit: max(0, x). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-relu-method"""
    def resample2d(self: Same, *, mode: Literal["nearest-neighbor", "linear"] = 'nearest-neighbor', scales: Sequence[float] = (1.0, 1.0), sizes: Sequence[int] | None = None, axes: Sequence[int] = (2, 3), label: str = '') -> Same: """Resize two axes by interpolation. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-resample2d-method"""
    def reshape(self: Same, new_shape: Sequence[int], *, label: str = '') -> Same: """Change the shape of `input`, keeping the order of its elements. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reshape-method"""
    def reverse(self: Same, *, axes: Sequence[int] | None = None, label: str = '') -> Same: """Reverse the order of the elements along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reverse-method"""
    def scatter_elements(self: Same, indices: OperandLike, updates: OperandLike, *, axis: int = 0, label: str = '') -> Same: """Replace single elements of `input` by `updates`: each index replaces its own coordinate along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-scatterelements"""
    def scatter_nd(self: Same, indices: OperandLike, updates: OperandLike, *, label: str = '') -> Same: """Replace slices of `input` by `updates`, at coordinates in its leading dimensions. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-scatternd"""
    def sigmoid(self: Same, *, label: str = '') -> Same: """Sigmoid: 1 / (1 + exp(-x)). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-sigmoid-method"""
    def slice(self: Same, starts: Sequence[int], sizes: Sequence[int], *, strides: Sequence[int] | None = None, label: str = '') -> Same: """Extract a window of `input`, with strides. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-slice"""
    def softmax(self: Same, axis: int, *, label: str = '') -> Same: """Normalise `input` along `axis` so that every slice is positive and sums to one. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-softmax-method"""
    def softplus(self: Same, *, label: str = '') -> Same: """Smooth rectified linear unit: log(1 + exp(x)). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-softplus-method"""
    def softsign(self: Same, *, label: str = '') -> Same: """Softsign: x / (1 + |x|). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-softsign-method"""
    def split(self: Same, splits: int | Sequence[int], *, axis: int = 0, label: str = '') -> tuple[Same, ...]: """Split `input` into parts along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-split"""
    def tanh(self: Same, *, label: str = '') -> Same: """Hyperbolic tangent. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-tanh-method"""
    def tile(self: Same, repetitions: Sequence[int], *, label: str = '') -> Same: """Repeat `input` along each dimension. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-tile"""
    def transpose(self: Same, *, permutation: Sequence[int] | None = None, label: str = '') -> Same: """Permute the dimensions of `input`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-transpose"""
    def triangular(self: Same, *, upper: bool = True, diagonal: int = 0, label: str = '') -> Same: """Keep the upper or the lower triangle of each matrix in `input`, and set the rest to zero. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-triangular"""
    def where(self: Same, true_value: OperandLike, false_value: OperandLike, *, label: str = '') -> Same: """Choose between `true_value` and `false_value`, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-where"""
    def __add__(self: Same, other: Any) -> Same: ...
    def __radd__(self: Same, other: Any) -> Same: ...
    def __sub__(self: Same, other: Any) -> Same: ...
    def __rsub__(self: Same, other: Any) -> Same: ...
    def __mul__(self: Same, other: Any) -> Same: ...
    def __rmul__(self: Same, other: Any) -> Same: ...
    def __truediv__(self: Same, other: Any) -> Same: ...
    def __rtruediv__(self: Same, other: Any) -> Same: ...
    def __pow__(self: Same, other: Any) -> Same: ...
    def __rpow__(self: Same, other: Any) -> Same: ...
    def __matmul__(self: Same, other: Any) -> Same: ...
    def __rmatmul__(self: Same, other: Any) -> Same: ...

class _LikeArgMin(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> MLOperand: ...

arg_min: _LikeArgMin
"""Find the position of the smallest value along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-argminmax"""
arg_max: _LikeArgMin
"""Find the position of the largest value along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-argminmax"""

class _LikeBatchNormalization(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, mean: OperandLike, variance: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axis: int = 1, epsilon: float = 1e-05, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, mean: ArrayLike, variance: ArrayLike, *, scale: ArrayLike | None = None, bias: ArrayLike | None = None, axis: int = 1, epsilon: float = 1e-05, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, mean: OperandLike, variance: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axis: int = 1, epsilon: float = 1e-05, label: str = '') -> MLOperand: ...

batch_normalization: _LikeBatchNormalization
"""Normalise each channel of `input` with a given mean and variance. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-batchnorm"""

class _LikeCast(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, data_type: DataType, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, data_type: DataType, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, data_type: DataType, *, label: str = '') -> MLOperand: ...

cast: _LikeCast
"""Convert each element to another data type. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-cast"""

class _LikeClamp(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, min_value: float | None = None, max_value: float | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, min_value: float | None = None, max_value: float | None = None, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, *, min_value: float | None = None, max_value: float | None = None, label: str = '') -> MLOperand: ...

clamp: _LikeClamp
"""Limit each element to the range from `min_value` to `max_value`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-clamp"""

class _LikeConcat(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, inputs: Sequence[OperandLike], axis: int, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, inputs: Sequence[ArrayLike], axis: int, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, inputs: Sequence[OperandLike], axis: int, *, label: str = '') -> MLOperand: ...

concat: _LikeConcat
"""Join `inputs` along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-concat"""

class _LikeConv2d(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["oihw", "hwio", "ohwi", "ihwo"] = 'oihw', bias: OperandLike | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, filter: ArrayLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["oihw", "hwio", "ohwi", "ihwo"] = 'oihw', bias: ArrayLike | None = None, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["oihw", "hwio", "ohwi", "ihwo"] = 'oihw', bias: OperandLike | None = None, label: str = '') -> MLOperand: ...

conv2d: _LikeConv2d
"""Convolve a batch of images with a bank of filters. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-conv2d"""

class _LikeConvTranspose2d(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), output_padding: Sequence[int] = (0, 0), output_sizes: Sequence[int] | None = None, groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["iohw", "hwoi", "ohwi"] = 'iohw', bias: OperandLike | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, filter: ArrayLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), output_padding: Sequence[int] = (0, 0), output_sizes: Sequence[int] | None = None, groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["iohw", "hwoi", "ohwi"] = 'iohw', bias: ArrayLike | None = None, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), output_padding: Sequence[int] = (0, 0), output_sizes: Sequence[int] | None = None, groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["iohw", "hwoi", "ohwi"] = 'iohw', bias: OperandLike | None = None, label: str = '') -> MLOperand: ...

conv_transpose2d: _LikeConvTranspose2d
"""Transposed convolution of a batch of images, the gradient of `conv2d` with respect to its input. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-convtranspose2d"""

class _LikeCumulativeSum(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, axis: int, *, exclusive: bool = False, reversed: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, axis: int, *, exclusive: bool = False, reversed: bool = False, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, axis: int, *, exclusive: bool = False, reversed: bool = False, label: str = '') -> MLOperand: ...

cumulative_sum: _LikeCumulativeSum
"""Compute the partial sums along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-cumulativesum"""

class _LikeAdd(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

add: _LikeAdd
"""Add `a` and `b`, element by element."""
sub: _LikeAdd
"""Subtract `b` from `a`, element by element."""
mul: _LikeAdd
"""Multiply `a` and `b`, element by element."""
div: _LikeAdd
"""Divide `a` by `b`, element by element."""
max: _LikeAdd
"""Maximum of `a` and `b`, element by element."""
min: _LikeAdd
"""Minimum of `a` and `b`, element by element."""
pow: _LikeAdd
"""Raise `a` to the power of `b`, element by element."""
equal: _LikeAdd
"""Whether `a` is equal to `b`, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
not_equal: _LikeAdd
"""Whether `a` differs from `b`, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
greater: _LikeAdd
"""Whether `a` is greater than `b`, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
greater_or_equal: _LikeAdd
"""Whether `a` is greater than `b` or equal to it, by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
lesser: _LikeAdd
"""Whether `a` is less than `b`, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
lesser_or_equal: _LikeAdd
"""Whether `a` is less than `b` or equal to it, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""

class _LikeLogicalNot(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: MLOperand, *, label: str = '') -> MLOperand: ...

logical_not: _LikeLogicalNot
"""Whether each element of `a` is false. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
logical_and: _LikeAdd
"""Whether both `a` and `b` are true, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
logical_or: _LikeAdd
"""Whether `a` or `b` or both are true, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
logical_xor: _LikeAdd
"""Whether exactly one of `a` and `b` is true, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
is_nan: _LikeLogicalNot
"""Whether each element of `a` is NaN. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""
is_infinite: _LikeLogicalNot
"""Whether each element of `a` is infinite, positive or negative. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical"""

class _LikeAbs(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...

abs: _LikeAbs
"""Absolute value of each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
ceil: _LikeAbs
"""Round each element up to an integer. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
cos: _LikeAbs
"""Cosine of each element, in radians. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
erf: _LikeAbs
"""Error function of each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
exp: _LikeAbs
"""Raise e to the power of each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
floor: _LikeAbs
"""Round each element down to an integer. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
identity: _LikeAbs
"""Return `input` unchanged. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
log: _LikeAbs
"""Natural logarithm of each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
neg: _LikeAbs
"""Negate each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
reciprocal: _LikeAbs
"""One divided by each element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
round_even: _LikeAbs
"""Round each element to the nearest integer, halves to the even one. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
sin: _LikeAbs
"""Sine of each element, in radians. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
sign: _LikeAbs
"""Sign of each element: 1 if it is greater than 0, -1 if it is less, 0 if neither (0 and NaN). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
sqrt: _LikeAbs
"""Square root of each element; NaN for negative ones. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""
tan: _LikeAbs
"""Tangent of each element, in radians. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary"""

class _LikeDequantizeLinear(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, scale: ArrayLike, zero_point: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> MLOperand: ...

dequantize_linear: _LikeDequantizeLinear
"""Convert quantised integers to floats: `(input - zero_point) * scale`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-dequantizelinear"""
quantize_linear: _LikeDequantizeLinear
"""Quantise floats: `input / scale`, rounded to nearest even, plus `zero_point`, saturated. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-quantizelinear"""

class _LikeElu(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, alpha: float = 1.0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, alpha: float = 1.0, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, *, alpha: float = 1.0, label: str = '') -> MLOperand: ...

elu: _LikeElu
"""Exponential linear unit: max(0, x) + alpha * (exp(min(0, x)) - 1). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-elu"""

class _LikeExpand(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, new_shape: Sequence[int], *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, new_shape: Sequence[int], *, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, new_shape: Sequence[int], *, label: str = '') -> MLOperand: ...

expand: _LikeExpand
"""Stretch dimensions of size 1, and add leading ones, by repeating the elements of `input`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-expand"""

class _LikeGather(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, indices: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, indices: ArrayLike, *, axis: int = 0, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, indices: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand: ...

gather: _LikeGather
"""Pick slices of `input` along `axis`, one for each index. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gather"""
gather_elements: _LikeGather
"""Pick single elements of `input`: each index replaces its own coordinate along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gatherelements"""

class _LikeGatherNd(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, indices: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, indices: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, indices: OperandLike, *, label: str = '') -> MLOperand: ...

gather_nd: _LikeGatherNd
"""Pick slices of `input` by their coordinates in its leading dimensions. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gathernd"""
gelu: _LikeAbs
"""Gaussian error linear unit: 0.5 * x * (1 + erf(x / sqrt(2))). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gelu-method"""

class _LikeGemm(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, c: OperandLike | None = None, alpha: float = 1.0, beta: float = 1.0, a_transpose: bool = False, b_transpose: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, c: ArrayLike | None = None, alpha: float = 1.0, beta: float = 1.0, a_transpose: bool = False, b_transpose: bool = False, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, c: OperandLike | None = None, alpha: float = 1.0, beta: float = 1.0, a_transpose: bool = False, b_transpose: bool = False, label: str = '') -> MLOperand: ...

gemm: _LikeGemm
"""Compute alpha * a @ b + beta * c, for matrices. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gemm"""

class _LikeGru(Op[..., tuple[MLOperand, ...]]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, reset_after: bool = True, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: ...
    @overload
    def __call__(self, input: ArrayLike, weight: ArrayLike, recurrent_weight: ArrayLike, steps: int, hidden_size: int, *, bias: ArrayLike | None = None, recurrent_bias: ArrayLike | None = None, initial_hidden_state: ArrayLike | None = None, reset_after: bool = True, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> tuple[Array, ...]: ...
    @overload
    def __call__(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, reset_after: bool = True, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: ...

gru: _LikeGru
"""Run a gated recurrent unit (GRU) over a sequence. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gru"""

class _LikeGruCell(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, reset_after: bool = True, layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, weight: ArrayLike, recurrent_weight: ArrayLike, hidden_state: ArrayLike, hidden_size: int, *, bias: ArrayLike | None = None, recurrent_bias: ArrayLike | None = None, reset_after: bool = True, layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, reset_after: bool = True, layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> MLOperand: ...

gru_cell: _LikeGruCell
"""Run a gated recurrent unit (GRU) for one time step. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-grucell"""

class _LikeHardSigmoid(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, alpha: float = 0.2, beta: float = 0.5, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, alpha: float = 0.2, beta: float = 0.5, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, *, alpha: float = 0.2, beta: float = 0.5, label: str = '') -> MLOperand: ...

hard_sigmoid: _LikeHardSigmoid
"""Piecewise linear approximation of the sigmoid: max(0, min(1, alpha * x + beta)). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-hard-sigmoid"""
hard_swish: _LikeAbs
"""Piecewise approximation of swish: x * max(0, min(6, x + 3)) / 6. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-hard-swish"""

class _LikeInstanceNormalization(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, epsilon: float = 1e-05, layout: Literal["nchw", "nhwc"] = 'nchw', label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, scale: ArrayLike | None = None, bias: ArrayLike | None = None, epsilon: float = 1e-05, layout: Literal["nchw", "nhwc"] = 'nchw', label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, *, scale: OperandLike | None = None, bias: OperandLike | None = None, epsilon: float = 1e-05, layout: Literal["nchw", "nhwc"] = 'nchw', label: str = '') -> MLOperand: ...

instance_normalization: _LikeInstanceNormalization
"""Normalise each channel of each image of the batch with its own mean and variance. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-instancenorm"""

class _LikeLayerNormalization(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axes: Sequence[int] | None = None, epsilon: float = 1e-05, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, scale: ArrayLike | None = None, bias: ArrayLike | None = None, axes: Sequence[int] | None = None, epsilon: float = 1e-05, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axes: Sequence[int] | None = None, epsilon: float = 1e-05, label: str = '') -> MLOperand: ...

layer_normalization: _LikeLayerNormalization
"""Normalise `input` with mean and variance along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-layernorm"""

class _LikeLeakyRelu(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, alpha: float = 0.01, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, alpha: float = 0.01, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, *, alpha: float = 0.01, label: str = '') -> MLOperand: ...

leaky_relu: _LikeLeakyRelu
"""Rectified linear unit with a slope for negative values: max(0, x) + alpha * min(0, x). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-leakyrelu"""

class _LikeLinear(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, alpha: float = 1.0, beta: float = 0.0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, alpha: float = 1.0, beta: float = 0.0, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, *, alpha: float = 1.0, beta: float = 0.0, label: str = '') -> MLOperand: ...

linear: _LikeLinear
"""Linear function of each element: alpha * x + beta. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-linear"""

class _LikeLstm(Op[..., tuple[MLOperand, ...]]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, initial_cell_state: OperandLike | None = None, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: ...
    @overload
    def __call__(self, input: ArrayLike, weight: ArrayLike, recurrent_weight: ArrayLike, steps: int, hidden_size: int, *, bias: ArrayLike | None = None, recurrent_bias: ArrayLike | None = None, peephole_weight: ArrayLike | None = None, initial_hidden_state: ArrayLike | None = None, initial_cell_state: ArrayLike | None = None, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[Array, ...]: ...
    @overload
    def __call__(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, initial_cell_state: OperandLike | None = None, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: ...

lstm: _LikeLstm
"""Run a long short-term memory (LSTM) over a sequence. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-lstm"""

class _LikeLstmCell(Op[..., tuple[MLOperand, ...]]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, cell_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: ...
    @overload
    def __call__(self, input: ArrayLike, weight: ArrayLike, recurrent_weight: ArrayLike, hidden_state: ArrayLike, cell_state: ArrayLike, hidden_size: int, *, bias: ArrayLike | None = None, recurrent_bias: ArrayLike | None = None, peephole_weight: ArrayLike | None = None, layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[Array, ...]: ...
    @overload
    def __call__(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, cell_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: ...

lstm_cell: _LikeLstmCell
"""Run a long short-term memory (LSTM) for one time step. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-lstmcell"""
matmul: _LikeAdd
"""Multiply matrices, or stacks of matrices. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-matmul"""

class _LikePad(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, beginning_padding: Sequence[int], ending_padding: Sequence[int], *, mode: Literal["constant", "edge", "reflection"] = 'constant', value: float = 0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, beginning_padding: Sequence[int], ending_padding: Sequence[int], *, mode: Literal["constant", "edge", "reflection"] = 'constant', value: float = 0, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, beginning_padding: Sequence[int], ending_padding: Sequence[int], *, mode: Literal["constant", "edge", "reflection"] = 'constant', value: float = 0, label: str = '') -> MLOperand: ...

pad: _LikePad
"""Add elements around `input`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pad"""

class _LikeAveragePool2d(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> MLOperand: ...

average_pool2d: _LikeAveragePool2d
"""Average each window of each channel; NaN for windows without elements. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pool2d"""
l2_pool2d: _LikeAveragePool2d
"""Take the square root of the sum of squares of each window of each channel. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pool2d"""
max_pool2d: _LikeAveragePool2d
"""Take the maximum of each window of each channel; the lowest value of the data type for windows without elements. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pool2d"""

class _LikePrelu(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, slope: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, slope: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, slope: OperandLike, *, label: str = '') -> MLOperand: ...

prelu: _LikePrelu
"""Rectified linear unit with a learned slope for negative values: slope * x where x < 0, else x. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-prelu"""

class _LikeReduceL1(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...

reduce_l1: _LikeReduceL1
"""Sum the absolute values along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
reduce_l2: _LikeReduceL1
"""Take the square root of the sum of squares along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
reduce_log_sum: _LikeReduceL1
"""Take the natural logarithm of the sum along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
reduce_log_sum_exp: _LikeReduceL1
"""Take the natural logarithm of the sum of exponentials along `axes`, without intermediate overflow. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
reduce_max: _LikeReduceL1
"""Find the largest value along `axes`; where one is NaN, NaN may be ignored. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
reduce_mean: _LikeReduceL1
"""Average the values along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
reduce_min: _LikeReduceL1
"""Find the smallest value along `axes`; where one is NaN, NaN may be ignored. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
reduce_product: _LikeReduceL1
"""Multiply the values along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
reduce_sum: _LikeReduceL1
"""Sum the values along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
reduce_sum_square: _LikeReduceL1
"""Sum the squares of the values along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce"""
relu: _LikeAbs
"""Rectified linear unit: max(0, x). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-relu-method"""

class _LikeResample2d(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, mode: Literal["nearest-neighbor", "linear"] = 'nearest-neighbor', scales: Sequence[float] = (1.0, 1.0), sizes: Sequence[int] | None = None, axes: Sequence[int] = (2, 3), label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, mode: Literal["nearest-neighbor", "linear"] = 'nearest-neighbor', scales: Sequence[float] = (1.0, 1.0), sizes: Sequence[int] | None = None, axes: Sequence[int] = (2, 3), label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, *, mode: Literal["nearest-neighbor", "linear"] = 'nearest-neighbor', scales: Sequence[float] = (1.0, 1.0), sizes: Sequence[int] | None = None, axes: Sequence[int] = (2, 3), label: str = '') -> MLOperand: ...

resample2d: _LikeResample2d
"""Resize two axes by interpolation. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-resample2d-method"""
reshape: _LikeExpand
"""Change the shape of `input`, keeping the order of its elements. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reshape-method"""

class _LikeReverse(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, axes: Sequence[int] | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, axes: Sequence[int] | None = None, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, *, axes: Sequence[int] | None = None, label: str = '') -> MLOperand: ...

reverse: _LikeReverse
"""Reverse the order of the elements along `axes`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reverse-method"""

class _LikeScatterElements(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, indices: OperandLike, updates: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, indices: ArrayLike, updates: ArrayLike, *, axis: int = 0, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, indices: OperandLike, updates: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand: ...

scatter_elements: _LikeScatterElements
"""Replace single elements of `input` by `updates`: each index replaces its own coordinate along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-scatterelements"""

class _LikeScatterNd(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, indices: OperandLike, updates: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, indices: ArrayLike, updates: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, indices: OperandLike, updates: OperandLike, *, label: str = '') -> MLOperand: ...

scatter_nd: _LikeScatterNd
"""Replace slices of `input` by `updates`, at coordinates in its leading dimensions. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-scatternd"""
sigmoid: _LikeAbs
"""Sigmoid: 1 / (1 + exp(-x)). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-sigmoid-method"""

class _LikeSlice(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, starts: Sequence[int], sizes: Sequence[int], *, strides: Sequence[int] | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, starts: Sequence[int], sizes: Sequence[int], *, strides: Sequence[int] | None = None, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, starts: Sequence[int], sizes: Sequence[int], *, strides: Sequence[int] | None = None, label: str = '') -> MLOperand: ...

slice: _LikeSlice
"""Extract a window of `input`, with strides. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-slice"""

class _LikeSoftmax(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, axis: int, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, axis: int, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, axis: int, *, label: str = '') -> MLOperand: ...

softmax: _LikeSoftmax
"""Normalise `input` along `axis` so that every slice is positive and sums to one. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-softmax-method"""
softplus: _LikeAbs
"""Smooth rectified linear unit: log(1 + exp(x)). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-softplus-method"""
softsign: _LikeAbs
"""Softsign: x / (1 + |x|). https://www.w3.org/TR/webnn/#api-mlgraphbuilder-softsign-method"""

class _LikeSplit(Op[..., tuple[MLOperand, ...]]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, splits: int | Sequence[int], *, axis: int = 0, label: str = '') -> tuple[MLOperand, ...]: ...
    @overload
    def __call__(self, input: ArrayLike, splits: int | Sequence[int], *, axis: int = 0, label: str = '') -> tuple[Array, ...]: ...
    @overload
    def __call__(self, input: MLOperand, splits: int | Sequence[int], *, axis: int = 0, label: str = '') -> tuple[MLOperand, ...]: ...

split: _LikeSplit
"""Split `input` into parts along `axis`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-split"""
tanh: _LikeAbs
"""Hyperbolic tangent. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-tanh-method"""

class _LikeTile(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, repetitions: Sequence[int], *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, repetitions: Sequence[int], *, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, repetitions: Sequence[int], *, label: str = '') -> MLOperand: ...

tile: _LikeTile
"""Repeat `input` along each dimension. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-tile"""

class _LikeTranspose(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, permutation: Sequence[int] | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, permutation: Sequence[int] | None = None, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, *, permutation: Sequence[int] | None = None, label: str = '') -> MLOperand: ...

transpose: _LikeTranspose
"""Permute the dimensions of `input`. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-transpose"""

class _LikeTriangular(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, upper: bool = True, diagonal: int = 0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, upper: bool = True, diagonal: int = 0, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: MLOperand, *, upper: bool = True, diagonal: int = 0, label: str = '') -> MLOperand: ...

triangular: _LikeTriangular
"""Keep the upper or the lower triangle of each matrix in `input`, and set the rest to zero. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-triangular"""

class _LikeWhere(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, condition: OperandLike, true_value: OperandLike, false_value: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, condition: ArrayLike, true_value: ArrayLike, false_value: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, condition: OperandLike, true_value: OperandLike, false_value: OperandLike, *, label: str = '') -> MLOperand: ...

where: _LikeWhere
"""Choose between `true_value` and `false_value`, element by element. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-where"""

__all__ = ["arg_min", "arg_max", "batch_normalization", "cast", "clamp", "concat", "conv2d", "conv_transpose2d", "cumulative_sum", "add", "sub", "mul", "div", "max", "min", "pow", "equal", "not_equal", "greater", "greater_or_equal", "lesser", "lesser_or_equal", "logical_not", "logical_and", "logical_or", "logical_xor", "is_nan", "is_infinite", "abs", "ceil", "cos", "erf", "exp", "floor", "identity", "log", "neg", "reciprocal", "round_even", "sin", "sign", "sqrt", "tan", "dequantize_linear", "quantize_linear", "elu", "expand", "gather", "gather_elements", "gather_nd", "gelu", "gemm", "gru", "gru_cell", "hard_sigmoid", "hard_swish", "instance_normalization", "layer_normalization", "leaky_relu", "linear", "lstm", "lstm_cell", "matmul", "pad", "average_pool2d", "l2_pool2d", "max_pool2d", "prelu", "reduce_l1", "reduce_l2", "reduce_log_sum", "reduce_log_sum_exp", "reduce_max", "reduce_mean", "reduce_min", "reduce_product", "reduce_sum", "reduce_sum_square", "relu", "resample2d", "reshape", "reverse", "scatter_elements", "scatter_nd", "sigmoid", "slice", "softmax", "softplus", "softsign", "split", "tanh", "tile", "transpose", "triangular", "where"]
