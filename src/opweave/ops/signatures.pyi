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

    def arg_min(self, input: OperandLike, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> MLOperand:
        """Find the position of the smallest value along `axis`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-argminmax
        """

    def arg_max(self, input: OperandLike, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> MLOperand:
        """Find the position of the largest value along `axis`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-argminmax
        """

    def batch_normalization(self, input: OperandLike, mean: OperandLike, variance: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axis: int = 1, epsilon: float = 1e-05, label: str = '') -> MLOperand:
        """Normalise each channel of `input` with a given mean and variance.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-batchnorm
        """

    def cast(self, input: OperandLike, data_type: DataType, *, label: str = '') -> MLOperand:
        """Convert each element to another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-cast
        """

    def clamp(self, input: OperandLike, *, min_value: float | None = None, max_value: float | None = None, label: str = '') -> MLOperand:
        """Limit each element to the range from `min_value` to `max_value`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-clamp
        """

    def concat(self, inputs: Sequence[OperandLike], axis: int, *, label: str = '') -> MLOperand:
        """Join `inputs` along `axis`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-concat
        """

    def conv2d(self, input: OperandLike, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["oihw", "hwio", "ohwi", "ihwo"] = 'oihw', bias: OperandLike | None = None, label: str = '') -> MLOperand:
        """Convolve a batch of images with a bank of filters.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-conv2d
        """

    def conv_transpose2d(self, input: OperandLike, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), output_padding: Sequence[int] = (0, 0), output_sizes: Sequence[int] | None = None, groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["iohw", "hwoi", "ohwi"] = 'iohw', bias: OperandLike | None = None, label: str = '') -> MLOperand:
        """Transposed convolution of a batch of images, the gradient of `conv2d` with respect to its input.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-convtranspose2d
        """

    def cumulative_sum(self, input: OperandLike, axis: int, *, exclusive: bool = False, reversed: bool = False, label: str = '') -> MLOperand:
        """Compute the partial sums along `axis`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-cumulativesum
        """

    def add(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Add `a` and `b`, element by element."""

    def sub(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Subtract `b` from `a`, element by element."""

    def mul(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Multiply `a` and `b`, element by element."""

    def div(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Divide `a` by `b`, element by element."""

    def max(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Maximum of `a` and `b`, element by element."""

    def min(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Minimum of `a` and `b`, element by element."""

    def pow(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Raise `a` to the power of `b`, element by element."""

    def equal(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether `a` is equal to `b`, element by element.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical
        """

    def not_equal(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether `a` differs from `b`, element by element.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical
        """

    def greater(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether `a` is greater than `b`, element by element.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical
        """

    def greater_or_equal(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether `a` is greater than `b` or equal to it, by element.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical
        """

    def lesser(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether `a` is less than `b`, element by element.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical
        """

    def lesser_or_equal(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether `a` is less than `b` or equal to it, element by element.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical
        """

    def logical_not(self, a: OperandLike, *, label: str = '') -> MLOperand:
        """Whether each element of `a` is false.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical
        """

    def logical_and(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether both `a` and `b` are true, element by element.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical
        """

    def logical_or(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether `a` or `b` or both are true, element by element.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical
        """

    def logical_xor(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether exactly one of `a` and `b` is true, element by element.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical
        """

    def is_nan(self, a: OperandLike, *, label: str = '') -> MLOperand:
        """Whether each element of `a` is NaN.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical
        """

    def is_infinite(self, a: OperandLike, *, label: str = '') -> MLOperand:
        """Whether each element of `a` is infinite, positive or negative.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical
        """

    def abs(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Absolute value of each element.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
        """

    def ceil(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Round each element up to an integer.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
        """

    def cos(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Cosine of each element, in radians.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
        """

    def erf(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Error function of each element.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
        """

    def exp(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Raise e to the power of each element.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
        """

    def floor(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Round each element down to an integer.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
        """

    def identity(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Return `input` unchanged.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
        """

    def log(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Natural logarithm of each element.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
        """

    def neg(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Negate each element.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
        """

    def reciprocal(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """One divided by each element.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
        """

    def round_even(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Round each element to the nearest integer, halves to the even one.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
        """

    def sin(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Sine of each element, in radians.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
        """

    def sign(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Sign of each element: 1 if it is greater than 0, -1 if it is less, 0 if neither (0 and NaN).

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
        """

    def sqrt(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Square root of each element; NaN for negative ones.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
        """

    def tan(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Tangent of each element, in radians.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
        """

    def dequantize_linear(self, input: OperandLike, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> MLOperand:
        """Convert quantised integers to floats: `(input - zero_point) * scale`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-dequantizelinear
        """

    def quantize_linear(self, input: OperandLike, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> MLOperand:
        """Quantise floats: `input / scale`, rounded to nearest even, plus `zero_point`, saturated.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-quantizelinear
        """

    def elu(self, input: OperandLike, *, alpha: float = 1.0, label: str = '') -> MLOperand:
        """Exponential linear unit: max(0, x) + alpha * (exp(min(0, x)) - 1).

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-elu
        """

    def expand(self, input: OperandLike, new_shape: Sequence[int], *, label: str = '') -> MLOperand:
        """Stretch dimensions of size 1, and add leading ones, by repeating the elements of `input`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-expand
        """

    def gather(self, input: OperandLike, indices: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand:
        """Pick slices of `input` along `axis`, one for each index.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gather
        """

    def gather_elements(self, input: OperandLike, indices: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand:
        """Pick single elements of `input`: each index replaces its own coordinate along `axis`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gatherelements
        """

    def gather_nd(self, input: OperandLike, indices: OperandLike, *, label: str = '') -> MLOperand:
        """Pick slices of `input` by their coordinates in its leading dimensions.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gathernd
        """

    def gelu(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Gaussian error linear unit: 0.5 * x * (1 + erf(x / sqrt(2))).

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gelu-method
        """

    def gemm(self, a: OperandLike, b: OperandLike, *, c: OperandLike | None = None, alpha: float = 1.0, beta: float = 1.0, a_transpose: bool = False, b_transpose: bool = False, label: str = '') -> MLOperand:
        """Compute alpha * a @ b + beta * c, for matrices.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gemm
        """

    def gru(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, reset_after: bool = True, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> tuple[MLOperand, ...]:
        """Run a gated recurrent unit (GRU) over a sequence.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gru
        """

    def gru_cell(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, reset_after: bool = True, layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> MLOperand:
        """Run a gated recurrent unit (GRU) for one time step.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-grucell
        """

    def hard_sigmoid(self, input: OperandLike, *, alpha: float = 0.2, beta: float = 0.5, label: str = '') -> MLOperand:
        """Piecewise linear approximation of the sigmoid: max(0, min(1, alpha * x + beta)).

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-hard-sigmoid
        """

    def hard_swish(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Piecewise approximation of swish: x * max(0, min(6, x + 3)) / 6.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-hard-swish
        """

    def instance_normalization(self, input: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, epsilon: float = 1e-05, layout: Literal["nchw", "nhwc"] = 'nchw', label: str = '') -> MLOperand:
        """Normalise each channel of each image of the batch with its own mean and variance.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-instancenorm
        """

    def layer_normalization(self, input: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axes: Sequence[int] | None = None, epsilon: float = 1e-05, label: str = '') -> MLOperand:
        """Normalise `input` with mean and variance along `axes`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-layernorm
        """

    def leaky_relu(self, input: OperandLike, *, alpha: float = 0.01, label: str = '') -> MLOperand:
        """Rectified linear unit with a slope for negative values: max(0, x) + alpha * min(0, x).

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-leakyrelu
        """

    def linear(self, input: OperandLike, *, alpha: float = 1.0, beta: float = 0.0, label: str = '') -> MLOperand:
        """Linear function of each element: alpha * x + beta.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-linear
        """

    def lstm(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, initial_cell_state: OperandLike | None = None, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[MLOperand, ...]:
        """Run a long short-term memory (LSTM) over a sequence.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-lstm
        """

    def lstm_cell(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, cell_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[MLOperand, ...]:
        """Run a long short-term memory (LSTM) for one time step.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-lstmcell
        """

    def matmul(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Multiply matrices, or stacks of matrices.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-matmul
        """

    def pad(self, input: OperandLike, beginning_padding: Sequence[int], ending_padding: Sequence[int], *, mode: Literal["constant", "edge", "reflection"] = 'constant', value: float = 0, label: str = '') -> MLOperand:
        """Add elements around `input`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pad
        """

    def average_pool2d(self, input: OperandLike, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> MLOperand:
        """Average each window of each channel; NaN for windows without elements.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pool2d
        """

    def l2_pool2d(self, input: OperandLike, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> MLOperand:
        """Take the square root of the sum of squares of each window of each channel.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pool2d
        """

    def max_pool2d(self, input: OperandLike, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> MLOperand:
        """Take the maximum of each window of each channel; the lowest value of the data type for windows without elements.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pool2d
        """

    def prelu(self, input: OperandLike, slope: OperandLike, *, label: str = '') -> MLOperand:
        """Rectified linear unit with a learned slope for negative values: slope * x where x < 0, else x.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-prelu
        """

    def reduce_l1(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Sum the absolute values along `axes`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce
        """

    def reduce_l2(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Take the square root of the sum of squares along `axes`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce
        """

    def reduce_log_sum(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Take the natural logarithm of the sum along `axes`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce
        """

    def reduce_log_sum_exp(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Take the natural logarithm of the sum of exponentials along `axes`, without intermediate overflow.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce
        """

    def reduce_max(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Find the largest value along `axes`; where one is NaN, NaN may be ignored.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce
        """

    def reduce_mean(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Average the values along `axes`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce
        """

    def reduce_min(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Find the smallest value along `axes`; where one is NaN, NaN may be ignored.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce
        """

    def reduce_product(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Multiply the values along `axes`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce
        """

    def reduce_sum(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Sum the values along `axes`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce
        """

    def reduce_sum_square(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Sum the squares of the values along `axes`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce
        """

    def relu(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Rectified linear unit: max(0, x).

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-relu-method
        """

    def resample2d(self, input: OperandLike, *, mode: Literal["nearest-neighbor", "linear"] = 'nearest-neighbor', scales: Sequence[float] = (1.0, 1.0), sizes: Sequence[int] | None = None, axes: Sequence[int] = (2, 3), label: str = '') -> MLOperand:
        """Resize two axes by interpolation.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-resample2d-method
        """

    def reshape(self, input: OperandLike, new_shape: Sequence[int], *, label: str = '') -> MLOperand:
        """Change the shape of `input`, keeping the order of its elements.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reshape-method
        """

    def reverse(self, input: OperandLike, *, axes: Sequence[int] | None = None, label: str = '') -> MLOperand:
        """Reverse the order of the elements along `axes`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reverse-method
        """

    def scatter_elements(self, input: OperandLike, indices: OperandLike, updates: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand:
        """Replace single elements of `input` by `updates`: each index replaces its own coordinate along `axis`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-scatterelements
        """

    def scatter_nd(self, input: OperandLike, indices: OperandLike, updates: OperandLike, *, label: str = '') -> MLOperand:
        """Replace slices of `input` by `updates`, at coordinates in its leading dimensions.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-scatternd
        """

    def sigmoid(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Sigmoid: 1 / (1 + exp(-x)).

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-sigmoid-method
        """

    def slice(self, input: OperandLike, starts: Sequence[int], sizes: Sequence[int], *, strides: Sequence[int] | None = None, label: str = '') -> MLOperand:
        """Extract a window of `input`, with strides.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-slice
        """

    def softmax(self, input: OperandLike, axis: int, *, label: str = '') -> MLOperand:
        """Normalise `input` along `axis` so that every slice is positive and sums to one.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-softmax-method
        """

    def softplus(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Smooth rectified linear unit: log(1 + exp(x)).

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-softplus-method
        """

    def softsign(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Softsign: x / (1 + |x|).

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-softsign-method
        """

    def split(self, input: OperandLike, splits: int | Sequence[int], *, axis: int = 0, label: str = '') -> tuple[MLOperand, ...]:
        """Split `input` into parts along `axis`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-split
        """

    def tanh(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Hyperbolic tangent.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-tanh-method
        """

    def tile(self, input: OperandLike, repetitions: Sequence[int], *, label: str = '') -> MLOperand:
        """Repeat `input` along each dimension.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-tile
        """

    def transpose(self, input: OperandLike, *, permutation: Sequence[int] | None = None, label: str = '') -> MLOperand:
        """Permute the dimensions of `input`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-transpose
        """

    def triangular(self, input: OperandLike, *, upper: bool = True, diagonal: int = 0, label: str = '') -> MLOperand:
        """Keep the upper or the lower triangle of each matrix in `input`, and set the rest to zero.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-triangular
        """

    def where(self, condition: OperandLike, true_value: OperandLike, false_value: OperandLike, *, label: str = '') -> MLOperand:
        """Choose between `true_value` and `false_value`, element by element.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-where
        """

class ArrayMethods:
    """The operations as methods of operands and arrays, their first argument."""

    def arg_min(self: Same, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> Same:
        """Find the position of the smallest value along `axis`."""

    def arg_max(self: Same, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> Same:
        """Find the position of the largest value along `axis`."""

    def batch_normalization(self: Same, mean: OperandLike, variance: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axis: int = 1, epsilon: float = 1e-05, label: str = '') -> Same:
        """Normalise each channel of `input` with a given mean and variance."""

    def cast(self: Same, data_type: DataType, *, label: str = '') -> Same:
        """Convert each element to another data type."""

    def clamp(self: Same, *, min_value: float | None = None, max_value: float | None = None, label: str = '') -> Same:
        """Limit each element to the range from `min_value` to `max_value`."""

    def conv2d(self: Same, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["oihw", "hwio", "ohwi", "ihwo"] = 'oihw', bias: OperandLike | None = None, label: str = '') -> Same:
        """Convolve a batch of images with a bank of filters."""

    def conv_transpose2d(self: Same, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), output_padding: Sequence[int] = (0, 0), output_sizes: Sequence[int] | None = None, groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["iohw", "hwoi", "ohwi"] = 'iohw', bias: OperandLike | None = None, label: str = '') -> Same:
        """Transposed convolution of a batch of images, the gradient of `conv2d` with respect to its input."""

    def cumulative_sum(self: Same, axis: int, *, exclusive: bool = False, reversed: bool = False, label: str = '') -> Same:
        """Compute the partial sums along `axis`."""

    def add(self: Same, b: OperandLike, *, label: str = '') -> Same:
        """Add `a` and `b`, element by element."""

    def sub(self: Same, b: OperandLike, *, label: str = '') -> Same:
        """Subtract `b` from `a`, element by element."""

    def mul(self: Same, b: OperandLike, *, label: str = '') -> Same:
        """Multiply `a` and `b`, element by element."""

    def div(self: Same, b: OperandLike, *, label: str = '') -> Same:
        """Divide `a` by `b`, element by element."""

    def max(self: Same, b: OperandLike, *, label: str = '') -> Same:
        """Maximum of `a` and `b`, element by element."""

    def min(self: Same, b: OperandLike, *, label: str = '') -> Same:
        """Minimum of `a` and `b`, element by element."""

    def pow(self: Same, b: OperandLike, *, label: str = '') -> Same:
        """Raise `a` to the power of `b`, element by element."""

    def equal(self: Same, b: OperandLike, *, label: str = '') -> Same:
        """Whether `a` is equal to `b`, element by element."""

    def not_equal(self: Same, b: OperandLike, *, label: str = '') -> Same:
        """Whether `a` differs from `b`, element by element."""

    def greater(self: Same, b: OperandLike, *, label: str = '') -> Same:
        """Whether `a` is greater than `b`, element by element."""

    def greater_or_equal(self: Same, b: OperandLike, *, label: str = '') -> Same:
        """Whether `a` is greater than `b` or equal to it, by element."""

    def lesser(self: Same, b: OperandLike, *, label: str = '') -> Same:
        """Whether `a` is less than `b`, element by element."""

    def lesser_or_equal(self: Same, b: OperandLike, *, label: str = '') -> Same:
        """Whether `a` is less than `b` or equal to it, element by element."""

    def logical_not(self: Same, *, label: str = '') -> Same:
        """Whether each element of `a` is false."""

    def logical_and(self: Same, b: OperandLike, *, label: str = '') -> Same:
        """Whether both `a` and `b` are true, element by element."""

    def logical_or(self: Same, b: OperandLike, *, label: str = '') -> Same:
        """Whether `a` or `b` or both are true, element by element."""

    def logical_xor(self: Same, b: OperandLike, *, label: str = '') -> Same:
        """Whether exactly one of `a` and `b` is true, element by element."""

    def is_nan(self: Same, *, label: str = '') -> Same:
        """Whether each element of `a` is NaN."""

    def is_infinite(self: Same, *, label: str = '') -> Same:
        """Whether each element of `a` is infinite, positive or negative."""

    def abs(self: Same, *, label: str = '') -> Same:
        """Absolute value of each element."""

    def ceil(self: Same, *, label: str = '') -> Same:
        """Round each element up to an integer."""

    def cos(self: Same, *, label: str = '') -> Same:
        """Cosine of each element, in radians."""

    def erf(self: Same, *, label: str = '') -> Same:
        """Error function of each element."""

    def exp(self: Same, *, label: str = '') -> Same:
        """Raise e to the power of each element."""

    def floor(self: Same, *, label: str = '') -> Same:
        """Round each element down to an integer."""

    def identity(self: Same, *, label: str = '') -> Same:
        """Return `input` unchanged."""

    def log(self: Same, *, label: str = '') -> Same:
        """Natural logarithm of each element."""

    def neg(self: Same, *, label: str = '') -> Same:
        """Negate each element."""

    def reciprocal(self: Same, *, label: str = '') -> Same:
        """One divided by each element."""

    def round_even(self: Same, *, label: str = '') -> Same:
        """Round each element to the nearest integer, halves to the even one."""

    def sin(self: Same, *, label: str = '') -> Same:
        """Sine of each element, in radians."""

    def sign(self: Same, *, label: str = '') -> Same:
        """Sign of each element: 1 if it is greater than 0, -1 if it is less, 0 if neither (0 and NaN)."""

    def sqrt(self: Same, *, label: str = '') -> Same:
        """Square root of each element; NaN for negative ones."""

    def tan(self: Same, *, label: str = '') -> Same:
        """Tangent of each element, in radians."""

    def dequantize_linear(self: Same, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> Same:
        """Convert quantised integers to floats: `(input - zero_point) * scale`."""

    def quantize_linear(self: Same, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> Same:
        """Quantise floats: `input / scale`, rounded to nearest even, plus `zero_point`, saturated."""

    def elu(self: Same, *, alpha: float = 1.0, label: str = '') -> Same:
        """Exponential linear unit: max(0, x) + alpha * (exp(min(0, x)) - 1)."""

    def expand(self: Same, new_shape: Sequence[int], *, label: str = '') -> Same:
        """Stretch dimensions of size 1, and add leading ones, by repeating the elements of `input`."""

    def gather(self: Same, indices: OperandLike, *, axis: int = 0, label: str = '') -> Same:
        """Pick slices of `input` along `axis`, one for each index."""

    def gather_elements(self: Same, indices: OperandLike, *, axis: int = 0, label: str = '') -> Same:
        """Pick single elements of `input`: each index replaces its own coordinate along `axis`."""

    def gather_nd(self: Same, indices: OperandLike, *, label: str = '') -> Same:
        """Pick slices of `input` by their coordinates in its leading dimensions."""

    def gelu(self: Same, *, label: str = '') -> Same:
        """Gaussian error linear unit: 0.5 * x * (1 + erf(x / sqrt(2)))."""

    def gemm(self: Same, b: OperandLike, *, c: OperandLike | None = None, alpha: float = 1.0, beta: float = 1.0, a_transpose: bool = False, b_transpose: bool = False, label: str = '') -> Same:
        """Compute alpha * a @ b + beta * c, for matrices."""

    def gru(self: Same, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, reset_after: bool = True, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> tuple[Same, ...]:
        """Run a gated recurrent unit (GRU) over a sequence."""

    def gru_cell(self: Same, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, reset_after: bool = True, layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> Same:
        """Run a gated recurrent unit (GRU) for one time step."""

    def hard_sigmoid(self: Same, *, alpha: float = 0.2, beta: float = 0.5, label: str = '') -> Same:
        """Piecewise linear approximation of the sigmoid: max(0, min(1, alpha * x + beta))."""

    def hard_swish(self: Same, *, label: str = '') -> Same:
        """Piecewise approximation of swish: x * max(0, min(6, x + 3)) / 6."""

    def instance_normalization(self: Same, *, scale: OperandLike | None = None, bias: OperandLike | None = None, epsilon: float = 1e-05, layout: Literal["nchw", "nhwc"] = 'nchw', label: str = '') -> Same:
        """Normalise each channel of each image of the batch with its own mean and variance."""

    def layer_normalization(self: Same, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axes: Sequence[int] | None = None, epsilon: float = 1e-05, label: str = '') -> Same:
        """Normalise `input` with mean and variance along `axes`."""

    def leaky_relu(self: Same, *, alpha: float = 0.01, label: str = '') -> Same:
        """Rectified linear unit with a slope for negative values: max(0, x) + alpha * min(0, x)."""

    def linear(self: Same, *, alpha: float = 1.0, beta: float = 0.0, label: str = '') -> Same:
        """Linear function of each element: alpha * x + beta."""

    def lstm(self: Same, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, initial_cell_state: OperandLike | None = None, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[Same, ...]:
        """Run a long short-term memory (LSTM) over a sequence."""

    def lstm_cell(self: Same, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, cell_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[Same, ...]:
        """Run a long short-term memory (LSTM) for one time step."""

    def matmul(self: Same, b: OperandLike, *, label: str = '') -> Same:
        """Multiply matrices, or stacks of matrices."""

    def pad(self: Same, beginning_padding: Sequence[int], ending_padding: Sequence[int], *, mode: Literal["constant", "edge", "reflection"] = 'constant', value: float = 0, label: str = '') -> Same:
        """Add elements around `input`."""

    def average_pool2d(self: Same, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> Same:
        """Average each window of each channel; NaN for windows without elements."""

    def l2_pool2d(self: Same, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> Same:
        """Take the square root of the sum of squares of each window of each channel."""

    def max_pool2d(self: Same, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> Same:
        """Take the maximum of each window of each channel; the lowest value of the data type for windows without elements."""

    def prelu(self: Same, slope: OperandLike, *, label: str = '') -> Same:
        """Rectified linear unit with a learned slope for negative values: slope * x where x < 0, else x."""

    def reduce_l1(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same:
        """Sum the absolute values along `axes`."""

    def reduce_l2(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same:
        """Take the square root of the sum of squares along `axes`."""

    def reduce_log_sum(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same:
        """Take the natural logarithm of the sum along `axes`."""

    def reduce_log_sum_exp(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same:
        """Take the natural logarithm of the sum of exponentials along `axes`, without intermediate overflow."""

    def reduce_max(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same:
        """Find the largest value along `axes`; where one is NaN, NaN may be ignored."""

    def reduce_mean(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same:
        """Average the values along `axes`."""

    def reduce_min(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same:
        """Find the smallest value along `axes`; where one is NaN, NaN may be ignored."""

    def reduce_product(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same:
        """Multiply the values along `axes`."""

    def reduce_sum(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same:
        """Sum the values along `axes`."""

    def reduce_sum_square(self: Same, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Same:
        """Sum the squares of the values along `axes`."""

    def relu(self: Same, *, label: str = '') -> Same:
        """Rectified linear unit: max(0, x)."""

    def resample2d(self: Same, *, mode: Literal["nearest-neighbor", "linear"] = 'nearest-neighbor', scales: Sequence[float] = (1.0, 1.0), sizes: Sequence[int] | None = None, axes: Sequence[int] = (2, 3), label: str = '') -> Same:
        """Resize two axes by interpolation."""

    def reshape(self: Same, new_shape: Sequence[int], *, label: str = '') -> Same:
        """Change the shape of `input`, keeping the order of its elements."""

    def reverse(self: Same, *, axes: Sequence[int] | None = None, label: str = '') -> Same:
        """Reverse the order of the elements along `axes`."""

    def scatter_elements(self: Same, indices: OperandLike, updates: OperandLike, *, axis: int = 0, label: str = '') -> Same:
        """Replace single elements of `input` by `updates`: each index replaces its own coordinate along `axis`."""

    def scatter_nd(self: Same, indices: OperandLike, updates: OperandLike, *, label: str = '') -> Same:
        """Replace slices of `input` by `updates`, at coordinates in its leading dimensions."""

    def sigmoid(self: Same, *, label: str = '') -> Same:
        """Sigmoid: 1 / (1 + exp(-x))."""

    def slice(self: Same, starts: Sequence[int], sizes: Sequence[int], *, strides: Sequence[int] | None = None, label: str = '') -> Same:
        """Extract a window of `input`, with strides."""

    def softmax(self: Same, axis: int, *, label: str = '') -> Same:
        """Normalise `input` along `axis` so that every slice is positive and sums to one."""

    def softplus(self: Same, *, label: str = '') -> Same:
        """Smooth rectified linear unit: log(1 + exp(x))."""

    def softsign(self: Same, *, label: str = '') -> Same:
        """Softsign: x / (1 + |x|)."""

    def split(self: Same, splits: int | Sequence[int], *, axis: int = 0, label: str = '') -> tuple[Same, ...]:
        """Split `input` into parts along `axis`."""

    def tanh(self: Same, *, label: str = '') -> Same:
        """Hyperbolic tangent."""

    def tile(self: Same, repetitions: Sequence[int], *, label: str = '') -> Same:
        """Repeat `input` along each dimension."""

    def transpose(self: Same, *, permutation: Sequence[int] | None = None, label: str = '') -> Same:
        """Permute the dimensions of `input`."""

    def triangular(self: Same, *, upper: bool = True, diagonal: int = 0, label: str = '') -> Same:
        """Keep the upper or the lower triangle of each matrix in `input`, and set the rest to zero."""

    def where(self: Same, true_value: OperandLike, false_value: OperandLike, *, label: str = '') -> Same:
        """Choose between `true_value` and `false_value`, element by element."""

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
class _arg_min(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> Array: ...

arg_min: _arg_min
"""Find the position of the smallest value along `axis`."""

class _arg_max(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> Array: ...

arg_max: _arg_max
"""Find the position of the largest value along `axis`."""

class _batch_normalization(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, mean: OperandLike, variance: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axis: int = 1, epsilon: float = 1e-05, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, mean: OperandLike, variance: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axis: int = 1, epsilon: float = 1e-05, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, mean: ArrayLike, variance: ArrayLike, *, scale: ArrayLike | None = None, bias: ArrayLike | None = None, axis: int = 1, epsilon: float = 1e-05, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, mean: OperandLike, variance: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axis: int = 1, epsilon: float = 1e-05, label: str = '') -> MLOperand: ...

batch_normalization: _batch_normalization
"""Normalise each channel of `input` with a given mean and variance."""

class _cast(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, data_type: DataType, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, data_type: DataType, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, data_type: DataType, *, label: str = '') -> Array: ...

cast: _cast
"""Convert each element to another data type."""

class _clamp(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, min_value: float | None = None, max_value: float | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, min_value: float | None = None, max_value: float | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, min_value: float | None = None, max_value: float | None = None, label: str = '') -> Array: ...

clamp: _clamp
"""Limit each element to the range from `min_value` to `max_value`."""

class _concat(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, inputs: Sequence[OperandLike], axis: int, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, inputs: Sequence[MLOperand], axis: int, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, inputs: Sequence[ArrayLike], axis: int, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, inputs: Sequence[OperandLike], axis: int, *, label: str = '') -> MLOperand: ...

concat: _concat
"""Join `inputs` along `axis`."""

class _conv2d(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["oihw", "hwio", "ohwi", "ihwo"] = 'oihw', bias: OperandLike | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["oihw", "hwio", "ohwi", "ihwo"] = 'oihw', bias: OperandLike | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, filter: ArrayLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["oihw", "hwio", "ohwi", "ihwo"] = 'oihw', bias: ArrayLike | None = None, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["oihw", "hwio", "ohwi", "ihwo"] = 'oihw', bias: OperandLike | None = None, label: str = '') -> MLOperand: ...

conv2d: _conv2d
"""Convolve a batch of images with a bank of filters."""

class _conv_transpose2d(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), output_padding: Sequence[int] = (0, 0), output_sizes: Sequence[int] | None = None, groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["iohw", "hwoi", "ohwi"] = 'iohw', bias: OperandLike | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), output_padding: Sequence[int] = (0, 0), output_sizes: Sequence[int] | None = None, groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["iohw", "hwoi", "ohwi"] = 'iohw', bias: OperandLike | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, filter: ArrayLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), output_padding: Sequence[int] = (0, 0), output_sizes: Sequence[int] | None = None, groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["iohw", "hwoi", "ohwi"] = 'iohw', bias: ArrayLike | None = None, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), output_padding: Sequence[int] = (0, 0), output_sizes: Sequence[int] | None = None, groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["iohw", "hwoi", "ohwi"] = 'iohw', bias: OperandLike | None = None, label: str = '') -> MLOperand: ...

conv_transpose2d: _conv_transpose2d
"""Transposed convolution of a batch of images, the gradient of `conv2d` with respect to its input."""

class _cumulative_sum(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, axis: int, *, exclusive: bool = False, reversed: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, axis: int, *, exclusive: bool = False, reversed: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, axis: int, *, exclusive: bool = False, reversed: bool = False, label: str = '') -> Array: ...

cumulative_sum: _cumulative_sum
"""Compute the partial sums along `axis`."""

class _add(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

add: _add
"""Add `a` and `b`, element by element."""

class _sub(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

sub: _sub
"""Subtract `b` from `a`, element by element."""

class _mul(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

mul: _mul
"""Multiply `a` and `b`, element by element."""

class _div(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

div: _div
"""Divide `a` by `b`, element by element."""

class _max(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

max: _max
"""Maximum of `a` and `b`, element by element."""

class _min(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

min: _min
"""Minimum of `a` and `b`, element by element."""

class _pow(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

pow: _pow
"""Raise `a` to the power of `b`, element by element."""

class _equal(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

equal: _equal
"""Whether `a` is equal to `b`, element by element."""

class _not_equal(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

not_equal: _not_equal
"""Whether `a` differs from `b`, element by element."""

class _greater(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

greater: _greater
"""Whether `a` is greater than `b`, element by element."""

class _greater_or_equal(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

greater_or_equal: _greater_or_equal
"""Whether `a` is greater than `b` or equal to it, by element."""

class _lesser(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

lesser: _lesser
"""Whether `a` is less than `b`, element by element."""

class _lesser_or_equal(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

lesser_or_equal: _lesser_or_equal
"""Whether `a` is less than `b` or equal to it, element by element."""

class _logical_not(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, *, label: str = '') -> Array: ...

logical_not: _logical_not
"""Whether each element of `a` is false."""

class _logical_and(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

logical_and: _logical_and
"""Whether both `a` and `b` are true, element by element."""

class _logical_or(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

logical_or: _logical_or
"""Whether `a` or `b` or both are true, element by element."""

class _logical_xor(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

logical_xor: _logical_xor
"""Whether exactly one of `a` and `b` is true, element by element."""

class _is_nan(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, *, label: str = '') -> Array: ...

is_nan: _is_nan
"""Whether each element of `a` is NaN."""

class _is_infinite(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, *, label: str = '') -> Array: ...

is_infinite: _is_infinite
"""Whether each element of `a` is infinite, positive or negative."""

class _abs(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

abs: _abs
"""Absolute value of each element."""

class _ceil(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

ceil: _ceil
"""Round each element up to an integer."""

class _cos(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

cos: _cos
"""Cosine of each element, in radians."""

class _erf(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

erf: _erf
"""Error function of each element."""

class _exp(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

exp: _exp
"""Raise e to the power of each element."""

class _floor(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

floor: _floor
"""Round each element down to an integer."""

class _identity(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

identity: _identity
"""Return `input` unchanged."""

class _log(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

log: _log
"""Natural logarithm of each element."""

class _neg(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

neg: _neg
"""Negate each element."""

class _reciprocal(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

reciprocal: _reciprocal
"""One divided by each element."""

class _round_even(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

round_even: _round_even
"""Round each element to the nearest integer, halves to the even one."""

class _sin(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

sin: _sin
"""Sine of each element, in radians."""

class _sign(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

sign: _sign
"""Sign of each element: 1 if it is greater than 0, -1 if it is less, 0 if neither (0 and NaN)."""

class _sqrt(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

sqrt: _sqrt
"""Square root of each element; NaN for negative ones."""

class _tan(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

tan: _tan
"""Tangent of each element, in radians."""

class _dequantize_linear(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, scale: ArrayLike, zero_point: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> MLOperand: ...

dequantize_linear: _dequantize_linear
"""Convert quantised integers to floats: `(input - zero_point) * scale`."""

class _quantize_linear(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, scale: ArrayLike, zero_point: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> MLOperand: ...

quantize_linear: _quantize_linear
"""Quantise floats: `input / scale`, rounded to nearest even, plus `zero_point`, saturated."""

class _elu(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, alpha: float = 1.0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, alpha: float = 1.0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, alpha: float = 1.0, label: str = '') -> Array: ...

elu: _elu
"""Exponential linear unit: max(0, x) + alpha * (exp(min(0, x)) - 1)."""

class _expand(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, new_shape: Sequence[int], *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, new_shape: Sequence[int], *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, new_shape: Sequence[int], *, label: str = '') -> Array: ...

expand: _expand
"""Stretch dimensions of size 1, and add leading ones, by repeating the elements of `input`."""

class _gather(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, indices: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, indices: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, indices: ArrayLike, *, axis: int = 0, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, indices: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand: ...

gather: _gather
"""Pick slices of `input` along `axis`, one for each index."""

class _gather_elements(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, indices: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, indices: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, indices: ArrayLike, *, axis: int = 0, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, indices: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand: ...

gather_elements: _gather_elements
"""Pick single elements of `input`: each index replaces its own coordinate along `axis`."""

class _gather_nd(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, indices: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, indices: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, indices: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, indices: OperandLike, *, label: str = '') -> MLOperand: ...

gather_nd: _gather_nd
"""Pick slices of `input` by their coordinates in its leading dimensions."""

class _gelu(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

gelu: _gelu
"""Gaussian error linear unit: 0.5 * x * (1 + erf(x / sqrt(2)))."""

class _gemm(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, c: OperandLike | None = None, alpha: float = 1.0, beta: float = 1.0, a_transpose: bool = False, b_transpose: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, c: OperandLike | None = None, alpha: float = 1.0, beta: float = 1.0, a_transpose: bool = False, b_transpose: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, c: ArrayLike | None = None, alpha: float = 1.0, beta: float = 1.0, a_transpose: bool = False, b_transpose: bool = False, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, c: OperandLike | None = None, alpha: float = 1.0, beta: float = 1.0, a_transpose: bool = False, b_transpose: bool = False, label: str = '') -> MLOperand: ...

gemm: _gemm
"""Compute alpha * a @ b + beta * c, for matrices."""

class _gru(Op[..., tuple[MLOperand, ...]]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, reset_after: bool = True, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: ...
    @overload
    def __call__(self, input: MLOperand, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, reset_after: bool = True, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: ...
    @overload
    def __call__(self, input: ArrayLike, weight: ArrayLike, recurrent_weight: ArrayLike, steps: int, hidden_size: int, *, bias: ArrayLike | None = None, recurrent_bias: ArrayLike | None = None, initial_hidden_state: ArrayLike | None = None, reset_after: bool = True, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> tuple[Array, ...]: ...
    @overload
    def __call__(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, reset_after: bool = True, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: ...

gru: _gru
"""Run a gated recurrent unit (GRU) over a sequence."""

class _gru_cell(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, reset_after: bool = True, layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, reset_after: bool = True, layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, weight: ArrayLike, recurrent_weight: ArrayLike, hidden_state: ArrayLike, hidden_size: int, *, bias: ArrayLike | None = None, recurrent_bias: ArrayLike | None = None, reset_after: bool = True, layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, reset_after: bool = True, layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> MLOperand: ...

gru_cell: _gru_cell
"""Run a gated recurrent unit (GRU) for one time step."""

class _hard_sigmoid(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, alpha: float = 0.2, beta: float = 0.5, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, alpha: float = 0.2, beta: float = 0.5, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, alpha: float = 0.2, beta: float = 0.5, label: str = '') -> Array: ...

hard_sigmoid: _hard_sigmoid
"""Piecewise linear approximation of the sigmoid: max(0, min(1, alpha * x + beta))."""

class _hard_swish(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

hard_swish: _hard_swish
"""Piecewise approximation of swish: x * max(0, min(6, x + 3)) / 6."""

class _instance_normalization(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, epsilon: float = 1e-05, layout: Literal["nchw", "nhwc"] = 'nchw', label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, scale: OperandLike | None = None, bias: OperandLike | None = None, epsilon: float = 1e-05, layout: Literal["nchw", "nhwc"] = 'nchw', label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, scale: ArrayLike | None = None, bias: ArrayLike | None = None, epsilon: float = 1e-05, layout: Literal["nchw", "nhwc"] = 'nchw', label: str = '') -> Array: ...

instance_normalization: _instance_normalization
"""Normalise each channel of each image of the batch with its own mean and variance."""

class _layer_normalization(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axes: Sequence[int] | None = None, epsilon: float = 1e-05, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axes: Sequence[int] | None = None, epsilon: float = 1e-05, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, scale: ArrayLike | None = None, bias: ArrayLike | None = None, axes: Sequence[int] | None = None, epsilon: float = 1e-05, label: str = '') -> Array: ...

layer_normalization: _layer_normalization
"""Normalise `input` with mean and variance along `axes`."""

class _leaky_relu(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, alpha: float = 0.01, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, alpha: float = 0.01, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, alpha: float = 0.01, label: str = '') -> Array: ...

leaky_relu: _leaky_relu
"""Rectified linear unit with a slope for negative values: max(0, x) + alpha * min(0, x)."""

class _linear(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, alpha: float = 1.0, beta: float = 0.0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, alpha: float = 1.0, beta: float = 0.0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, alpha: float = 1.0, beta: float = 0.0, label: str = '') -> Array: ...

linear: _linear
"""Linear function of each element: alpha * x + beta."""

class _lstm(Op[..., tuple[MLOperand, ...]]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, initial_cell_state: OperandLike | None = None, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: ...
    @overload
    def __call__(self, input: MLOperand, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, initial_cell_state: OperandLike | None = None, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: ...
    @overload
    def __call__(self, input: ArrayLike, weight: ArrayLike, recurrent_weight: ArrayLike, steps: int, hidden_size: int, *, bias: ArrayLike | None = None, recurrent_bias: ArrayLike | None = None, peephole_weight: ArrayLike | None = None, initial_hidden_state: ArrayLike | None = None, initial_cell_state: ArrayLike | None = None, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[Array, ...]: ...
    @overload
    def __call__(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, initial_cell_state: OperandLike | None = None, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: ...

lstm: _lstm
"""Run a long short-term memory (LSTM) over a sequence."""

class _lstm_cell(Op[..., tuple[MLOperand, ...]]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, cell_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: ...
    @overload
    def __call__(self, input: MLOperand, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, cell_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: ...
    @overload
    def __call__(self, input: ArrayLike, weight: ArrayLike, recurrent_weight: ArrayLike, hidden_state: ArrayLike, cell_state: ArrayLike, hidden_size: int, *, bias: ArrayLike | None = None, recurrent_bias: ArrayLike | None = None, peephole_weight: ArrayLike | None = None, layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[Array, ...]: ...
    @overload
    def __call__(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, cell_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[MLOperand, ...]: ...

lstm_cell: _lstm_cell
"""Run a long short-term memory (LSTM) for one time step."""

class _matmul(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: MLOperand, b: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, a: ArrayLike, b: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand: ...

matmul: _matmul
"""Multiply matrices, or stacks of matrices."""

class _pad(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, beginning_padding: Sequence[int], ending_padding: Sequence[int], *, mode: Literal["constant", "edge", "reflection"] = 'constant', value: float = 0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, beginning_padding: Sequence[int], ending_padding: Sequence[int], *, mode: Literal["constant", "edge", "reflection"] = 'constant', value: float = 0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, beginning_padding: Sequence[int], ending_padding: Sequence[int], *, mode: Literal["constant", "edge", "reflection"] = 'constant', value: float = 0, label: str = '') -> Array: ...

pad: _pad
"""Add elements around `input`."""

class _average_pool2d(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> Array: ...

average_pool2d: _average_pool2d
"""Average each window of each channel; NaN for windows without elements."""

class _l2_pool2d(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> Array: ...

l2_pool2d: _l2_pool2d
"""Take the square root of the sum of squares of each window of each channel."""

class _max_pool2d(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> Array: ...

max_pool2d: _max_pool2d
"""Take the maximum of each window of each channel; the lowest value of the data type for windows without elements."""

class _prelu(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, slope: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, slope: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, slope: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, slope: OperandLike, *, label: str = '') -> MLOperand: ...

prelu: _prelu
"""Rectified linear unit with a learned slope for negative values: slope * x where x < 0, else x."""

class _reduce_l1(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Array: ...

reduce_l1: _reduce_l1
"""Sum the absolute values along `axes`."""

class _reduce_l2(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Array: ...

reduce_l2: _reduce_l2
"""Take the square root of the sum of squares along `axes`."""

class _reduce_log_sum(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Array: ...

reduce_log_sum: _reduce_log_sum
"""Take the natural logarithm of the sum along `axes`."""

class _reduce_log_sum_exp(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Array: ...

reduce_log_sum_exp: _reduce_log_sum_exp
"""Take the natural logarithm of the sum of exponentials along `axes`, without intermediate overflow."""

class _reduce_max(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Array: ...

reduce_max: _reduce_max
"""Find the largest value along `axes`; where one is NaN, NaN may be ignored."""

class _reduce_mean(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Array: ...

reduce_mean: _reduce_mean
"""Average the values along `axes`."""

class _reduce_min(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Array: ...

reduce_min: _reduce_min
"""Find the smallest value along `axes`; where one is NaN, NaN may be ignored."""

class _reduce_product(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Array: ...

reduce_product: _reduce_product
"""Multiply the values along `axes`."""

class _reduce_sum(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Array: ...

reduce_sum: _reduce_sum
"""Sum the values along `axes`."""

class _reduce_sum_square(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> Array: ...

reduce_sum_square: _reduce_sum_square
"""Sum the squares of the values along `axes`."""

class _relu(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

relu: _relu
"""Rectified linear unit: max(0, x)."""

class _resample2d(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, mode: Literal["nearest-neighbor", "linear"] = 'nearest-neighbor', scales: Sequence[float] = (1.0, 1.0), sizes: Sequence[int] | None = None, axes: Sequence[int] = (2, 3), label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, mode: Literal["nearest-neighbor", "linear"] = 'nearest-neighbor', scales: Sequence[float] = (1.0, 1.0), sizes: Sequence[int] | None = None, axes: Sequence[int] = (2, 3), label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, mode: Literal["nearest-neighbor", "linear"] = 'nearest-neighbor', scales: Sequence[float] = (1.0, 1.0), sizes: Sequence[int] | None = None, axes: Sequence[int] = (2, 3), label: str = '') -> Array: ...

resample2d: _resample2d
"""Resize two axes by interpolation."""

class _reshape(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, new_shape: Sequence[int], *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, new_shape: Sequence[int], *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, new_shape: Sequence[int], *, label: str = '') -> Array: ...

reshape: _reshape
"""Change the shape of `input`, keeping the order of its elements."""

class _reverse(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, axes: Sequence[int] | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, axes: Sequence[int] | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, axes: Sequence[int] | None = None, label: str = '') -> Array: ...

reverse: _reverse
"""Reverse the order of the elements along `axes`."""

class _scatter_elements(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, indices: OperandLike, updates: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, indices: OperandLike, updates: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, indices: ArrayLike, updates: ArrayLike, *, axis: int = 0, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, indices: OperandLike, updates: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand: ...

scatter_elements: _scatter_elements
"""Replace single elements of `input` by `updates`: each index replaces its own coordinate along `axis`."""

class _scatter_nd(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, indices: OperandLike, updates: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, indices: OperandLike, updates: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, indices: ArrayLike, updates: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, input: OperandLike, indices: OperandLike, updates: OperandLike, *, label: str = '') -> MLOperand: ...

scatter_nd: _scatter_nd
"""Replace slices of `input` by `updates`, at coordinates in its leading dimensions."""

class _sigmoid(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

sigmoid: _sigmoid
"""Sigmoid: 1 / (1 + exp(-x))."""

class _slice(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, starts: Sequence[int], sizes: Sequence[int], *, strides: Sequence[int] | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, starts: Sequence[int], sizes: Sequence[int], *, strides: Sequence[int] | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, starts: Sequence[int], sizes: Sequence[int], *, strides: Sequence[int] | None = None, label: str = '') -> Array: ...

slice: _slice
"""Extract a window of `input`, with strides."""

class _softmax(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, axis: int, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, axis: int, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, axis: int, *, label: str = '') -> Array: ...

softmax: _softmax
"""Normalise `input` along `axis` so that every slice is positive and sums to one."""

class _softplus(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

softplus: _softplus
"""Smooth rectified linear unit: log(1 + exp(x))."""

class _softsign(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

softsign: _softsign
"""Softsign: x / (1 + |x|)."""

class _split(Op[..., tuple[MLOperand, ...]]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, splits: int | Sequence[int], *, axis: int = 0, label: str = '') -> tuple[MLOperand, ...]: ...
    @overload
    def __call__(self, input: MLOperand, splits: int | Sequence[int], *, axis: int = 0, label: str = '') -> tuple[MLOperand, ...]: ...
    @overload
    def __call__(self, input: ArrayLike, splits: int | Sequence[int], *, axis: int = 0, label: str = '') -> tuple[Array, ...]: ...

split: _split
"""Split `input` into parts along `axis`."""

class _tanh(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, label: str = '') -> Array: ...

tanh: _tanh
"""Hyperbolic tangent."""

class _tile(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, repetitions: Sequence[int], *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, repetitions: Sequence[int], *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, repetitions: Sequence[int], *, label: str = '') -> Array: ...

tile: _tile
"""Repeat `input` along each dimension."""

class _transpose(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, permutation: Sequence[int] | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, permutation: Sequence[int] | None = None, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, permutation: Sequence[int] | None = None, label: str = '') -> Array: ...

transpose: _transpose
"""Permute the dimensions of `input`."""

class _triangular(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, input: OperandLike, *, upper: bool = True, diagonal: int = 0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: MLOperand, *, upper: bool = True, diagonal: int = 0, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, input: ArrayLike, *, upper: bool = True, diagonal: int = 0, label: str = '') -> Array: ...

triangular: _triangular
"""Keep the upper or the lower triangle of each matrix in `input`, and set the rest to zero."""

class _where(Op[..., MLOperand]):
    @overload
    def __call__(self, builder: Builder, /, condition: OperandLike, true_value: OperandLike, false_value: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, condition: MLOperand, true_value: OperandLike, false_value: OperandLike, *, label: str = '') -> MLOperand: ...
    @overload
    def __call__(self, condition: ArrayLike, true_value: ArrayLike, false_value: ArrayLike, *, label: str = '') -> Array: ...
    @overload
    def __call__(self, condition: OperandLike, true_value: OperandLike, false_value: OperandLike, *, label: str = '') -> MLOperand: ...

where: _where
"""Choose between `true_value` and `false_value`, element by element."""

__all__ = ["arg_min", "arg_max", "batch_normalization", "cast", "clamp", "concat", "conv2d", "conv_transpose2d", "cumulative_sum", "add", "sub", "mul", "div", "max", "min", "pow", "equal", "not_equal", "greater", "greater_or_equal", "lesser", "lesser_or_equal", "logical_not", "logical_and", "logical_or", "logical_xor", "is_nan", "is_infinite", "abs", "ceil", "cos", "erf", "exp", "floor", "identity", "log", "neg", "reciprocal", "round_even", "sin", "sign", "sqrt", "tan", "dequantize_linear", "quantize_linear", "elu", "expand", "gather", "gather_elements", "gather_nd", "gelu", "gemm", "gru", "gru_cell", "hard_sigmoid", "hard_swish", "instance_normalization", "layer_normalization", "leaky_relu", "linear", "lstm", "lstm_cell", "matmul", "pad", "average_pool2d", "l2_pool2d", "max_pool2d", "prelu", "reduce_l1", "reduce_l2", "reduce_log_sum", "reduce_log_sum_exp", "reduce_max", "reduce_mean", "reduce_min", "reduce_product", "reduce_sum", "reduce_sum_square", "relu", "resample2d", "reshape", "reverse", "scatter_elements", "scatter_nd", "sigmoid", "slice", "softmax", "softplus", "softsign", "split", "tanh", "tile", "transpose", "triangular", "where"]
