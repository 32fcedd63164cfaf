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

        Args:
            input: any data type, rank 1 or more.
            axis: in [0, rank).
            keep_dimensions: whether `axis` stays, with size 1.
            output_data_type: int32 or int64.
            label: a name for messages and tables.

        Returns:
            Positions in [0, size of the axis), of `output_data_type`: the first of equal values, and any position if there
            is a NaN.

        Raises:
            ValidationError: there is no such axis, or the data type is neither int32 nor int64.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-argminmax

        >>> import numpy as np, opweave as ow
        >>> ow.ops.arg_min(np.float32([[3, 1], [2, 4]]), 0).tolist()
        [1, 0]
        """

    def arg_max(self, input: OperandLike, axis: int, *, keep_dimensions: bool = False, output_data_type: DataType = 'int32', label: str = '') -> MLOperand:
        """Find the position of the largest value along `axis`.

        Args:
            input: any data type, rank 1 or more.
            axis: in [0, rank).
            keep_dimensions: whether `axis` stays, with size 1.
            output_data_type: int32 or int64.
            label: a name for messages and tables.

        Returns:
            Positions in [0, size of the axis), of `output_data_type`: the first of equal values, and any position if there
            is a NaN.

        Raises:
            ValidationError: there is no such axis, or the data type is neither int32 nor int64.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-argminmax

        >>> import numpy as np, opweave as ow
        >>> ow.ops.arg_max(np.float32([[3, 1], [2, 4]]), 1).tolist()
        [0, 1]
        """

    def batch_normalization(self, input: OperandLike, mean: OperandLike, variance: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axis: int = 1, epsilon: float = 1e-05, label: str = '') -> MLOperand:
        """Normalise each channel of `input` with a given mean and variance.

        All operands have the data type of `input`.

        Args:
            input: float32 or float16, rank 1 or more.
            mean: of each channel, [channels].
            variance: of each channel, [channels].
            scale: factor of each channel, applied after normalisation, [channels]; default: ones.
            bias: added to each channel at the end, [channels]; default: zeros.
            axis: the dimension of the channels, in [0, rank).
            epsilon: added to the variance, to avoid division by zero.
            label: a name for messages and tables.

        Returns:
            `scale * (input - mean) / sqrt(variance + epsilon) + bias`, in the data type and shape of `input`.

        Raises:
            ValidationError: there is no such axis, or the size of an operand is not the number of channels.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-batchnorm

        >>> import numpy as np, opweave as ow
        >>> x = np.float32([[1, 10], [3, 30]])
        >>> ow.ops.batch_normalization(x, np.float32([1, 10]), np.float32([4, 100]), epsilon=0.0).tolist()
        [[0.0, 0.0], [1.0, 2.0]]
        """

    def cast(self, input: OperandLike, data_type: DataType, *, label: str = '') -> MLOperand:
        """Convert each element to another data type.

        Integers become floats by rounding to the nearest one (or infinity), floats become integers by truncation toward
        zero. Integers that the new type cannot hold wrap around: their lowest bits are kept. The result for a float
        outside of the range of the integer type, and for NaN, depends on the back end.

        Args:
            input: any data type, any rank.
            data_type: of the result.
            label: a name for messages and tables.

        Returns:
            An operand of `data_type` and the shape of `input`.

        Raises:
            ValidationError: `data_type` is not a data type of WebNN.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-cast

        >>> import numpy as np, opweave as ow
        >>> ow.ops.cast(np.float32([1.7, -1.7]), "int32").tolist()
        [1, -1]
        >>> ow.ops.cast(np.int32([-1, 300]), "uint8").tolist()
        [255, 44]
        """

    def clamp(self, input: OperandLike, *, min_value: float | None = None, max_value: float | None = None, label: str = '') -> MLOperand:
        """Limit each element to the range from `min_value` to `max_value`.

        Args:
            input: any data type, any rank.
            min_value: the lowest result, converted to the data type of `input`; None (or NaN, where that is a float): no
                bound.
            max_value: the highest result, likewise.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`; NaN where that is NaN.

        Raises:
            ValidationError: `min_value` is greater than `max_value`, after conversion to the data type of `input`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-clamp

        >>> import numpy as np, opweave as ow
        >>> ow.ops.clamp(np.float32([-1, 0.5, 3]), min_value=0, max_value=1).tolist()
        [0.0, 0.5, 1.0]
        """

    def concat(self, inputs: Sequence[OperandLike], axis: int, *, label: str = '') -> MLOperand:
        """Join `inputs` along `axis`.

        Args:
            inputs: 1 to 8192 operands that differ in their size along `axis` only: any data type, rank 1 or more.
            axis: in [0, rank).
            label: a name for messages and tables.

        Returns:
            An operand of the same data type; its size along `axis` is the sum of theirs.

        Raises:
            ValidationError: no inputs or too many, an axis out of range, or data types or shapes that differ.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-concat

        >>> import numpy as np, opweave as ow
        >>> ow.ops.concat([np.float32([[1, 2]]), np.float32([[3, 4]])], 0).tolist()
        [[1.0, 2.0], [3.0, 4.0]]
        >>> ow.ops.concat([np.float32([[1, 2]]), np.float32([[3, 4]])], 1).tolist()
        [[1.0, 2.0, 3.0, 4.0]]
        """

    def conv2d(self, input: OperandLike, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["oihw", "hwio", "ohwi", "ihwo"] = 'oihw', bias: OperandLike | None = None, label: str = '') -> MLOperand:
        """Convolve a batch of images with a bank of filters.

        All operands have the data type of `input`.

        Args:
            input: float32 or float16 [batches, input channels, height, width], in the order of `input_layout`.
            filter: [output channels, input channels / groups, height, width], in the order of `filter_layout`.
            padding: rows and columns of zeros around the input: [top, bottom, left, right].
            strides: stride along [height, width], each at least 1.
            dilations: dilation factor along [height, width], each at least 1.
            groups: number of groups of input and output channels that are convolved separately; a depthwise convolution has
                one group per channel.
            input_layout: "nchw" or "nhwc", the layout of the input and of the result.
            filter_layout: "oihw", "hwio", "ohwi" or "ihwo".
            bias: [output channels], added to the result.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`, [batches, output channels, height, width] in `input_layout`, where a
            size is floor((size + paddings - (filter size - 1) * dilation - 1) / stride) + 1.

        Raises:
            ValidationError: options out of range, channels that do not fit, or a filter larger than the padded input.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-conv2d

        >>> import numpy as np, opweave as ow
        >>> image = np.float32([[1, 2, 3], [4, 5, 6], [7, 8, 9]]).reshape(1, 1, 3, 3)
        >>> sums = np.ones([1, 1, 2, 2], "float32")
        >>> ow.ops.conv2d(image, sums).tolist()
        [[[[12.0, 16.0], [24.0, 28.0]]]]
        >>> ow.ops.conv2d(image, sums, padding=[1, 1, 1, 1], strides=[2, 2]).shape
        (1, 1, 2, 2)
        """

    def conv_transpose2d(self, input: OperandLike, filter: OperandLike, *, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), output_padding: Sequence[int] = (0, 0), output_sizes: Sequence[int] | None = None, groups: int = 1, input_layout: Literal["nchw", "nhwc"] = 'nchw', filter_layout: Literal["iohw", "hwoi", "ohwi"] = 'iohw', bias: OperandLike | None = None, label: str = '') -> MLOperand:
        """Transposed convolution of a batch of images, the gradient of `conv2d` with respect to its input.

        All operands have the data type of `input`.

        Args:
            input: float32 or float16 [batches, input channels, height, width], in the order of `input_layout`.
            filter: [input channels, output channels / groups, height, width], in the order of `filter_layout`.
            padding: rows and columns removed from the result: [top, bottom, left, right].
            strides: stride in the result along [height, width], each at least 1.
            dilations: dilation factor along [height, width], each at least 1.
            output_padding: rows and columns added at the end of the result, [height, width], each less than the stride.
            output_sizes: [height, width] of the result; overrides `output_padding`.
            groups: number of groups of input and output channels that are convolved separately; divides the input channels.
            input_layout: "nchw" or "nhwc", the layout of the input and of the result.
            filter_layout: "iohw", "hwoi" or "ohwi".
            bias: [output channels], added to the result.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`, [batches, output channels, height, width] in `input_layout`, where a
            size is (size - 1) * stride + (filter size - 1) * dilation + 1 - paddings + output padding, unless
            `output_sizes` is given.

        Raises:
            ValidationError: options out of range, channels that do not fit, or sizes of the result that strides cannot
                reach.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-convtranspose2d

        >>> import numpy as np, opweave as ow
        >>> image = np.float32([[1, 2], [3, 4]]).reshape(1, 1, 2, 2)
        >>> ow.ops.conv_transpose2d(image, np.ones([1, 1, 1, 2], "float32"), strides=[1, 2]).tolist()
        [[[[1.0, 1.0, 2.0, 2.0], [3.0, 3.0, 4.0, 4.0]]]]
        """

    def cumulative_sum(self, input: OperandLike, axis: int, *, exclusive: bool = False, reversed: bool = False, label: str = '') -> MLOperand:
        """Compute the partial sums along `axis`.

        Args:
            input: float32, float16, int32, uint32, int64 or uint64, rank 1 or more.
            axis: in [0, rank).
            exclusive: whether each sum excludes its own element: [1, 2, 3] gives [0, 1, 3] instead of [1, 3, 6].
            reversed: whether to start from the end: [1, 2, 3] gives [6, 5, 3].
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`. Integers wrap around on overflow.

        Raises:
            ValidationError: there is no such axis.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-cumulativesum

        >>> import numpy as np, opweave as ow
        >>> ow.ops.cumulative_sum(np.float32([1, 2, 3]), 0).tolist()
        [1.0, 3.0, 6.0]
        """

    def add(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Add `a` and `b`, element by element.

        Args:
            a: any data type, any rank.
            b: the data type of `a`; its shape and that of `a` broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `a` and the broadcast shape.

        Raises:
            ValidationError: the data types differ, or the shapes do not broadcast.

        Integers wrap around on overflow. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-binary

        >>> import numpy as np, opweave as ow
        >>> ow.ops.add(np.float32([1, 2]), np.float32([[10], [20]])).tolist()
        [[11.0, 12.0], [21.0, 22.0]]
        """

    def sub(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Subtract `b` from `a`, element by element.

        Args:
            a: any data type, any rank.
            b: the data type of `a`; its shape and that of `a` broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `a` and the broadcast shape.

        Raises:
            ValidationError: the data types differ, or the shapes do not broadcast.

        Integers wrap around on overflow. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-binary

        >>> import numpy as np, opweave as ow
        >>> ow.ops.sub(np.float32([5, 7]), np.float32([1, 2])).tolist()
        [4.0, 5.0]
        """

    def mul(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Multiply `a` and `b`, element by element.

        Args:
            a: any data type, any rank.
            b: the data type of `a`; its shape and that of `a` broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `a` and the broadcast shape.

        Raises:
            ValidationError: the data types differ, or the shapes do not broadcast.

        Integers wrap around on overflow. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-binary

        >>> import numpy as np, opweave as ow
        >>> ow.ops.mul(np.float32([1, 2]), np.float32([3, 4])).tolist()
        [3.0, 8.0]
        """

    def div(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Divide `a` by `b`, element by element.

        Integers are truncated toward zero; an integer divided by 0 is 0.

        Args:
            a: any data type, any rank.
            b: the data type of `a`; its shape and that of `a` broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `a` and the broadcast shape.

        Raises:
            ValidationError: the data types differ, or the shapes do not broadcast.

        Integers wrap around on overflow. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-binary

        >>> import numpy as np, opweave as ow
        >>> ow.ops.div(np.int32([7, -7, 1]), np.int32([2, 2, 0])).tolist()
        [3, -3, 0]
        """

    def max(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Maximum of `a` and `b`, element by element.

        The result is NaN where either of them is.

        Args:
            a: any data type, any rank.
            b: the data type of `a`; its shape and that of `a` broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `a` and the broadcast shape.

        Raises:
            ValidationError: the data types differ, or the shapes do not broadcast.

        Integers wrap around on overflow. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-binary

        >>> import numpy as np, opweave as ow
        >>> ow.ops.max(np.float32([1, 5]), np.float32([4, 2])).tolist()
        [4.0, 5.0]
        """

    def min(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Minimum of `a` and `b`, element by element.

        The result is NaN where either of them is.

        Args:
            a: any data type, any rank.
            b: the data type of `a`; its shape and that of `a` broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `a` and the broadcast shape.

        Raises:
            ValidationError: the data types differ, or the shapes do not broadcast.

        Integers wrap around on overflow. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-binary

        >>> import numpy as np, opweave as ow
        >>> ow.ops.min(np.float32([1, 5]), np.float32([4, 2])).tolist()
        [1.0, 2.0]
        """

    def pow(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Raise `a` to the power of `b`, element by element.

        A negative power of an integer is 1 / a**-b, truncated toward zero.

        Args:
            a: any data type, any rank.
            b: the data type of `a`; its shape and that of `a` broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `a` and the broadcast shape.

        Raises:
            ValidationError: the data types differ, or the shapes do not broadcast.

        Integers wrap around on overflow. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-binary

        >>> import numpy as np, opweave as ow
        >>> ow.ops.pow(np.float32([2, 4]), np.float32([3, -1])).tolist()
        [8.0, 0.25]
        """

    def equal(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether `a` is equal to `b`, element by element.

        Args:
            a: any data type, any rank.
            b: the data type of `a`; its shape and that of `a` broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of uint8, 1 where it is true and 0 elsewhere, of the broadcast shape.

        Raises:
            ValidationError: the data types differ, or the shapes do not broadcast.

        NaN is unequal to everything, itself included, and neither greater nor lesser than anything.
        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical

        >>> import numpy as np, opweave as ow
        >>> ow.ops.equal(np.float32([1, 2, 3]), np.float32([2, 2, 2])).tolist()
        [0, 1, 0]
        """

    def not_equal(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether `a` differs from `b`, element by element.

        Args:
            a: any data type, any rank.
            b: the data type of `a`; its shape and that of `a` broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of uint8, 1 where it is true and 0 elsewhere, of the broadcast shape.

        Raises:
            ValidationError: the data types differ, or the shapes do not broadcast.

        NaN is unequal to everything, itself included, and neither greater nor lesser than anything.
        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical

        >>> import numpy as np, opweave as ow
        >>> ow.ops.not_equal(np.float32([1, 2, 3]), np.float32([2, 2, 2])).tolist()
        [1, 0, 1]
        """

    def greater(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether `a` is greater than `b`, element by element.

        Args:
            a: any data type, any rank.
            b: the data type of `a`; its shape and that of `a` broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of uint8, 1 where it is true and 0 elsewhere, of the broadcast shape.

        Raises:
            ValidationError: the data types differ, or the shapes do not broadcast.

        NaN is unequal to everything, itself included, and neither greater nor lesser than anything.
        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical

        >>> import numpy as np, opweave as ow
        >>> ow.ops.greater(np.float32([1, 2, 3]), np.float32([2, 2, 2])).tolist()
        [0, 0, 1]
        """

    def greater_or_equal(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether `a` is greater than `b` or equal to it, by element.

        Args:
            a: any data type, any rank.
            b: the data type of `a`; its shape and that of `a` broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of uint8, 1 where it is true and 0 elsewhere, of the broadcast shape.

        Raises:
            ValidationError: the data types differ, or the shapes do not broadcast.

        NaN is unequal to everything, itself included, and neither greater nor lesser than anything.
        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical

        >>> import numpy as np, opweave as ow
        >>> ow.ops.greater_or_equal(np.float32([1, 2, 3]), np.float32([2, 2, 2])).tolist()
        [0, 1, 1]
        """

    def lesser(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether `a` is less than `b`, element by element.

        Args:
            a: any data type, any rank.
            b: the data type of `a`; its shape and that of `a` broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of uint8, 1 where it is true and 0 elsewhere, of the broadcast shape.

        Raises:
            ValidationError: the data types differ, or the shapes do not broadcast.

        NaN is unequal to everything, itself included, and neither greater nor lesser than anything.
        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical

        >>> import numpy as np, opweave as ow
        >>> ow.ops.lesser(np.float32([1, 2, 3]), np.float32([2, 2, 2])).tolist()
        [1, 0, 0]
        """

    def lesser_or_equal(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether `a` is less than `b` or equal to it, element by element.

        Args:
            a: any data type, any rank.
            b: the data type of `a`; its shape and that of `a` broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of uint8, 1 where it is true and 0 elsewhere, of the broadcast shape.

        Raises:
            ValidationError: the data types differ, or the shapes do not broadcast.

        NaN is unequal to everything, itself included, and neither greater nor lesser than anything.
        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical

        >>> import numpy as np, opweave as ow
        >>> ow.ops.lesser_or_equal(np.float32([1, 2, 3]), np.float32([2, 2, 2])).tolist()
        [1, 1, 0]
        """

    def logical_not(self, a: OperandLike, *, label: str = '') -> MLOperand:
        """Whether each element of `a` is false.

        Args:
            a: uint8, any rank; any value but 0 is true.
            label: a name for messages and tables.

        Returns:
            An operand of uint8, 1 where `a` is 0 and 0 elsewhere, of the shape of `a`.

        Raises:
            ValidationError: `a` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical

        >>> import numpy as np, opweave as ow
        >>> ow.ops.logical_not(np.uint8([0, 1, 2])).tolist()
        [1, 0, 0]
        """

    def logical_and(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether both `a` and `b` are true, element by element.

        Args:
            a: uint8, any rank; any value but 0 is true.
            b: uint8; its shape and that of `a` broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of uint8, 1 for true and 0 for false, of the broadcast shape.

        Raises:
            ValidationError: an operand is not uint8, or the shapes do not broadcast.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical

        >>> import numpy as np, opweave as ow
        >>> ow.ops.logical_and(np.uint8([0, 0, 1, 2]), np.uint8([0, 1, 0, 1])).tolist()
        [0, 0, 0, 1]
        """

    def logical_or(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether `a` or `b` or both are true, element by element.

        Args:
            a: uint8, any rank; any value but 0 is true.
            b: uint8; its shape and that of `a` broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of uint8, 1 for true and 0 for false, of the broadcast shape.

        Raises:
            ValidationError: an operand is not uint8, or the shapes do not broadcast.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical

        >>> import numpy as np, opweave as ow
        >>> ow.ops.logical_or(np.uint8([0, 0, 1, 2]), np.uint8([0, 1, 0, 1])).tolist()
        [0, 1, 1, 1]
        """

    def logical_xor(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Whether exactly one of `a` and `b` is true, element by element.

        Args:
            a: uint8, any rank; any value but 0 is true.
            b: uint8; its shape and that of `a` broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of uint8, 1 for true and 0 for false, of the broadcast shape.

        Raises:
            ValidationError: an operand is not uint8, or the shapes do not broadcast.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical

        >>> import numpy as np, opweave as ow
        >>> ow.ops.logical_xor(np.uint8([0, 0, 1, 2]), np.uint8([0, 1, 0, 1])).tolist()
        [0, 1, 1, 0]
        """

    def is_nan(self, a: OperandLike, *, label: str = '') -> MLOperand:
        """Whether each element of `a` is NaN.

        Args:
            a: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of uint8, 1 where it is true and 0 elsewhere, of the shape of `a`.

        Raises:
            ValidationError: `a` has another data type.

        The specification's table allows any data type, but its steps allow floats only.
        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical

        >>> import numpy as np, opweave as ow
        >>> ow.ops.is_nan(np.float32([1, np.nan, np.inf])).tolist()
        [0, 1, 0]
        """

    def is_infinite(self, a: OperandLike, *, label: str = '') -> MLOperand:
        """Whether each element of `a` is infinite, positive or negative.

        Args:
            a: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of uint8, 1 where it is true and 0 elsewhere, of the shape of `a`.

        Raises:
            ValidationError: `a` has another data type.

        The specification's table allows any data type, but its steps allow floats only.
        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical

        >>> import numpy as np, opweave as ow
        >>> ow.ops.is_infinite(np.float32([1, np.nan, -np.inf])).tolist()
        [0, 0, 1]
        """

    def abs(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Absolute value of each element.

        The lowest integer stays as it is: its positive counterpart does not exist.

        Args:
            input: float32, float16, int64, int32 or int8, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary

        >>> import numpy as np, opweave as ow
        >>> ow.ops.abs(np.int8([-3, 3, -128])).tolist()
        [3, 3, -128]
        """

    def ceil(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Round each element up to an integer.

        Args:
            input: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary

        >>> import numpy as np, opweave as ow
        >>> ow.ops.ceil(np.float32([-1.5, 1.5])).tolist()
        [-1.0, 2.0]
        """

    def cos(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Cosine of each element, in radians.

        Args:
            input: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary

        >>> import numpy as np, opweave as ow
        >>> print(np.round(ow.ops.cos(np.float32([0, np.pi])), 3))
        [ 1. -1.]
        """

    def erf(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Error function of each element.

        Args:
            input: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary

        >>> import numpy as np, opweave as ow
        >>> print(np.round(ow.ops.erf(np.float32([0, 1])), 3))
        [0.    0.843]
        """

    def exp(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Raise e to the power of each element.

        Args:
            input: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary

        >>> import numpy as np, opweave as ow
        >>> print(np.round(ow.ops.exp(np.float32([0, 1])), 3))
        [1.    2.718]
        """

    def floor(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Round each element down to an integer.

        Args:
            input: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary

        >>> import numpy as np, opweave as ow
        >>> ow.ops.floor(np.float32([-1.5, 1.5])).tolist()
        [-2.0, 1.0]
        """

    def identity(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Return `input` unchanged.

        Args:
            input: any data type, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type, shape and values of `input`.

        Raises:
            ValidationError: `input` is not an operand of this builder, an array or a number.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary

        >>> import numpy as np, opweave as ow
        >>> ow.ops.identity(np.float32([1, 2])).tolist()
        [1.0, 2.0]
        """

    def log(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Natural logarithm of each element.

        Args:
            input: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary

        >>> import numpy as np, opweave as ow
        >>> print(np.round(ow.ops.log(np.float32([1, 10])), 3))
        [0.    2.303]
        """

    def neg(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Negate each element.

        The lowest integer stays as it is: its positive counterpart does not exist.

        Args:
            input: float32, float16, int64, int32 or int8, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary

        >>> import numpy as np, opweave as ow
        >>> ow.ops.neg(np.int8([-3, 3, -128])).tolist()
        [3, -3, -128]
        """

    def reciprocal(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """One divided by each element.

        Args:
            input: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary

        >>> import numpy as np, opweave as ow
        >>> ow.ops.reciprocal(np.float32([2, -4])).tolist()
        [0.5, -0.25]
        """

    def round_even(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Round each element to the nearest integer, halves to the even one.

        Args:
            input: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary

        >>> import numpy as np, opweave as ow
        >>> ow.ops.round_even(np.float32([0.5, 1.5, 1.6])).tolist()
        [0.0, 2.0, 2.0]
        """

    def sin(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Sine of each element, in radians.

        Args:
            input: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary

        >>> import numpy as np, opweave as ow
        >>> print(np.round(ow.ops.sin(np.float32([0, np.pi / 2])), 3))
        [0. 1.]
        """

    def sign(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Sign of each element: 1 if it is greater than 0, -1 if it is less, 0 if neither (0 and NaN).

        Args:
            input: float32, float16, int64, int32 or int8, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary

        >>> import numpy as np, opweave as ow
        >>> ow.ops.sign(np.float32([-2, 0, 3])).tolist()
        [-1.0, 0.0, 1.0]
        """

    def sqrt(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Square root of each element; NaN for negative ones.

        Args:
            input: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary

        >>> import numpy as np, opweave as ow
        >>> ow.ops.sqrt(np.float32([9, -1])).tolist()
        [3.0, nan]
        """

    def tan(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Tangent of each element, in radians.

        Args:
            input: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary

        >>> import numpy as np, opweave as ow
        >>> print(np.round(ow.ops.tan(np.float32([0, np.pi / 4])), 3))
        [0. 1.]
        """

    def dequantize_linear(self, input: OperandLike, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> MLOperand:
        """Convert quantised integers to floats: `(input - zero_point) * scale`.

        Args:
            input: uint8, int8, uint32 or int32, any rank.
            scale: float32 or float16, positive, the rank of `input`; each dimension divides that of `input`, so that an
                element applies to a block of the input.
            zero_point: the data type of `input` and the shape of `scale`.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `scale` and the shape of `input`; the difference is exact, even if it exceeds the
            range of the data type of `input`.

        Raises:
            ValidationError: `zero_point` does not have the shape of `scale`, or that does not divide the shape of `input`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-dequantizelinear

        >>> import numpy as np, opweave as ow
        >>> ow.ops.dequantize_linear(np.uint8([0, 128, 130]), np.float32([0.5]), np.uint8([128])).tolist()
        [-64.0, 0.0, 1.0]
        """

    def quantize_linear(self, input: OperandLike, scale: OperandLike, zero_point: OperandLike, *, label: str = '') -> MLOperand:
        """Quantise floats: `input / scale`, rounded to nearest even, plus `zero_point`, saturated.

        Args:
            input: float32 or float16, any rank.
            scale: positive, the data type of `input` and the same rank; each dimension divides that of `input`, so that an element
                applies to a block of the input.
            zero_point: uint8, int8, uint32 or int32, the shape of `scale`.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `zero_point` and the shape of `input`, clamped to the range of the data type; the
            result of NaN is unspecified.

        Raises:
            ValidationError: `zero_point` does not have the shape of `scale`, or that does not divide the shape of `input`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-quantizelinear

        >>> import numpy as np, opweave as ow
        >>> ow.ops.quantize_linear(np.float32([-64, 0.3, 1, 100]), np.float32([0.5]), np.uint8([128])).tolist()
        [0, 129, 130, 255]
        """

    def elu(self, input: OperandLike, *, alpha: float = 1.0, label: str = '') -> MLOperand:
        """Exponential linear unit: max(0, x) + alpha * (exp(min(0, x)) - 1).

        Args:
            input: float32 or float16, any rank.
            alpha: the factor for negative values; the result approaches -alpha.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-elu

        >>> import numpy as np, opweave as ow
        >>> print(np.round(ow.ops.elu(np.float32([-1, 0, 1]), alpha=2.0), 3))
        [-1.264  0.     1.   ]
        """

    def expand(self, input: OperandLike, new_shape: Sequence[int], *, label: str = '') -> MLOperand:
        """Stretch dimensions of size 1, and add leading ones, by repeating the elements of `input`.

        Args:
            input: any data type, any rank.
            new_shape: the shape to broadcast to.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input` and the shape `new_shape`.

        Raises:
            ValidationError: `input` cannot be broadcast to `new_shape`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-expand

        >>> import numpy as np, opweave as ow
        >>> ow.ops.expand(np.float32([[1], [2]]), [2, 3]).tolist()
        [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]
        """

    def gather(self, input: OperandLike, indices: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand:
        """Pick slices of `input` along `axis`, one for each index.

        Args:
            input: any data type, rank 1 or more.
            indices: int32, uint32 or int64, any rank; negative ones count from the end, others out of range are clamped.
            axis: in [0, rank of `input`).
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`; its shape is that of `input` with the axis replaced by the shape of
            `indices`.

        Raises:
            ValidationError: `axis` is out of range.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gather

        >>> import numpy as np, opweave as ow
        >>> ow.ops.gather(np.float32([[1, 2], [3, 4], [5, 6]]), np.int32([2, 0])).tolist()
        [[5.0, 6.0], [1.0, 2.0]]
        """

    def gather_elements(self, input: OperandLike, indices: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand:
        """Pick single elements of `input`: each index replaces its own coordinate along `axis`.

        Args:
            input: any data type, rank 1 or more.
            indices: int32, uint32 or int64, of the shape of `input`, but of any size along `axis`; negative ones count from
                the end, others out of range are clamped.
            axis: in [0, rank).
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input` and the shape of `indices`: for axis 0 and rank 2,
            `output[i, j] = input[indices[i, j], j]`.

        Raises:
            ValidationError: `axis` is out of range, or the shapes do not fit.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gatherelements

        >>> import numpy as np, opweave as ow
        >>> ow.ops.gather_elements(np.float32([[1, 2], [3, 4]]), np.int32([[1, 0]])).tolist()
        [[3.0, 2.0]]
        """

    def gather_nd(self, input: OperandLike, indices: OperandLike, *, label: str = '') -> MLOperand:
        """Pick slices of `input` by their coordinates in its leading dimensions.

        Args:
            input: any data type, rank 1 or more.
            indices: int32, uint32 or int64 [..., coordinates], with at most as many coordinates as `input` has dimensions;
                negative ones count from the end, others out of range are clamped.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input` and the shape [..., *input.shape[coordinates:]].

        Raises:
            ValidationError: more coordinates than dimensions.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gathernd

        >>> import numpy as np, opweave as ow
        >>> ow.ops.gather_nd(np.float32([[1, 2], [3, 4]]), np.int32([[1, 0], [0, 1]])).tolist()
        [3.0, 2.0]
        """

    def gelu(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Gaussian error linear unit: 0.5 * x * (1 + erf(x / sqrt(2))).

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gelu-method

        Args:
            input: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        >>> import numpy as np, opweave as ow
        >>> print(np.round(ow.ops.gelu(np.float32([-1, 0, 1])), 3))
        [-0.159  0.     0.841]
        """

    def gemm(self, a: OperandLike, b: OperandLike, *, c: OperandLike | None = None, alpha: float = 1.0, beta: float = 1.0, a_transpose: bool = False, b_transpose: bool = False, label: str = '') -> MLOperand:
        """Compute alpha * a @ b + beta * c, for matrices.

        All operands have the data type of `a`.

        Args:
            a: float32 or float16 [rows, inner], or [inner, rows] with `a_transpose`.
            b: [inner, columns], or [columns, inner] with `b_transpose`.
            c: what to add; its shape broadcasts to [rows, columns].
            alpha: the factor of the product, rounded to the data type.
            beta: the factor of `c`, rounded to the data type.
            a_transpose: whether to transpose `a` first.
            b_transpose: whether to transpose `b` first.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `a`, [rows, columns].

        Raises:
            ValidationError: the inner dimensions differ, or `c` does not broadcast to the result.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gemm

        >>> import numpy as np, opweave as ow
        >>> ow.ops.gemm(np.float32([[1, 2]]), np.float32([[1, 10]]), c=np.float32([100]), b_transpose=True).tolist()
        [[121.0]]
        """

    def gru(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, reset_after: bool = True, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> tuple[MLOperand, ...]:
        """Run a gated recurrent unit (GRU) over a sequence.

        All operands have the data type of `input`.

        Args:
            input: float32 or float16 [steps, batches, input size].
            weight: weights of the input, [directions, 3 * hidden_size, input size]; directions is 2 for "both", else 1.
            recurrent_weight: weights of the hidden state, [directions, 3 * hidden_size, hidden_size].
            steps: number of time steps, the first dimension of `input`.
            hidden_size: number of features of the hidden state.
            bias: added to the weighted input, [directions, 3 * hidden_size].
            recurrent_bias: added to the weighted hidden state, [directions, 3 * hidden_size].
            initial_hidden_state: [directions, batches, hidden_size]; default: zeros.
            reset_after: whether the reset gate is applied after the product with `recurrent_weight` (else before).
            return_sequence: whether to also return the hidden state of every step.
            direction: the order in which steps are processed: "forward", "backward", or "both".
            layout: "zrn" or "rzn", the order of the update (z), reset (r) and new (n) gate in weights and biases.
            activations: two of "relu", "sigmoid" and "tanh": for the update and reset gates, and for the new gate.
            label: a name for messages and tables.

        Returns:
            The last hidden state, [directions, batches, hidden_size]. With `return_sequence`, also the hidden state of every step
            of the input, [steps, directions, batches, hidden_size]. All have the data type of `input`.

        Raises:
            ValidationError: inconsistent sizes, or not two activations.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gru

        >>> import numpy as np, opweave as ow
        >>> x, weight, recurrent_weight = (np.zeros(shape, "float32") for shape in ([2, 1, 3], [1, 3, 3], [1, 3, 1]))
        >>> (last,) = ow.ops.gru(x, weight, recurrent_weight, 2, 1, initial_hidden_state=np.float32([[[8]]]))
        >>> last.tolist()  # weights of 0 make all gates 0.5: each of the 2 steps halves the state
        [[[2.0]]]
        """

    def gru_cell(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, reset_after: bool = True, layout: Literal["zrn", "rzn"] = 'zrn', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh'), label: str = '') -> MLOperand:
        """Run a gated recurrent unit (GRU) for one time step.

        All operands have the data type of `input`.

        Args:
            input: float32 or float16 [batches, input size].
            weight: weights of the input, [3 * hidden_size, input size].
            recurrent_weight: weights of the hidden state, [3 * hidden_size, hidden_size].
            hidden_state: [batches, hidden_size].
            hidden_size: number of features of the hidden state.
            bias: added to the weighted input, [3 * hidden_size].
            recurrent_bias: added to the weighted hidden state, [3 * hidden_size].
            reset_after: whether the reset gate is applied after the product with `recurrent_weight` (else before).
            layout: "zrn" or "rzn", the order of the update (z), reset (r) and new (n) gate in weights and biases.
            activations: two of "relu", "sigmoid" and "tanh": for the update and reset gates, and for the new gate.
            label: a name for messages and tables.

        Returns:
            The next hidden state, [batches, hidden_size], in the data type of `input`.

        Raises:
            ValidationError: inconsistent sizes, or not two activations.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-grucell

        >>> import numpy as np, opweave as ow
        >>> x, weight, recurrent_weight = (np.zeros(shape, "float32") for shape in ([1, 3], [3, 3], [3, 1]))
        >>> ow.ops.gru_cell(x, weight, recurrent_weight, np.float32([[8]]), 1).tolist()  # gates of 0.5 halve the state
        [[4.0]]
        """

    def hard_sigmoid(self, input: OperandLike, *, alpha: float = 0.2, beta: float = 0.5, label: str = '') -> MLOperand:
        """Piecewise linear approximation of the sigmoid: max(0, min(1, alpha * x + beta)).

        Args:
            input: float32 or float16, any rank.
            alpha: the slope.
            beta: the offset.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-hard-sigmoid

        >>> import numpy as np, opweave as ow
        >>> ow.ops.hard_sigmoid(np.float32([-3, 0, 3]), alpha=0.25).tolist()
        [0.0, 0.5, 1.0]
        """

    def hard_swish(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Piecewise approximation of swish: x * max(0, min(6, x + 3)) / 6.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-hard-swish

        Args:
            input: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        >>> import numpy as np, opweave as ow
        >>> ow.ops.hard_swish(np.float32([-1.5, 0, 3])).tolist()
        [-0.375, 0.0, 3.0]
        """

    def instance_normalization(self, input: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, epsilon: float = 1e-05, layout: Literal["nchw", "nhwc"] = 'nchw', label: str = '') -> MLOperand:
        """Normalise each channel of each image of the batch with its own mean and variance.

        All operands have the data type of `input`.

        Args:
            input: float32 or float16, [batches, channels, height, width], in the order of `layout`.
            scale: factor of each channel, applied after normalisation, [channels]; default: ones.
            bias: added to each channel at the end, [channels]; default: zeros.
            epsilon: added to the variance, to avoid division by zero.
            layout: "nchw" or "nhwc", the order of the dimensions of `input`.
            label: a name for messages and tables.

        Returns:
            `scale * (input - mean) / sqrt(variance + epsilon) + bias`, in the data type and shape of `input`.

        Raises:
            ValidationError: the size of `scale` or `bias` is not the number of channels.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-instancenorm

        >>> import numpy as np, opweave as ow
        >>> x = np.float32([1, 3]).reshape(1, 1, 1, 2)
        >>> ow.ops.instance_normalization(x, bias=np.float32([5]), epsilon=0.0).tolist()
        [[[[4.0, 6.0]]]]
        """

    def layer_normalization(self, input: OperandLike, *, scale: OperandLike | None = None, bias: OperandLike | None = None, axes: Sequence[int] | None = None, epsilon: float = 1e-05, label: str = '') -> MLOperand:
        """Normalise `input` with mean and variance along `axes`.

        All operands have the data type of `input`.

        Args:
            input: float32 or float16, any rank.
            scale: factor of the normalised values, with the sizes of `axes` in their order; default: ones.
            bias: added at the end, with the sizes of `axes` in their order; default: zeros.
            axes: the dimensions to normalise over, in any order, each in [0, rank) and named once; default: all but the
                first. Without axes (the default for rank 1), each value is its own mean, and the result is the bias.
            epsilon: added to the variance, to avoid division by zero.
            label: a name for messages and tables.

        Returns:
            `scale * (input - mean) / sqrt(variance + epsilon) + bias`, in the data type and shape of `input`.

        Raises:
            ValidationError: an axis does not exist or is named twice, or `scale` or `bias` do not have the sizes of `axes`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-layernorm

        >>> import numpy as np, opweave as ow
        >>> ow.ops.layer_normalization(np.float32([[1, 3], [20, 40]]), epsilon=0.0).tolist()
        [[-1.0, 1.0], [-1.0, 1.0]]
        """

    def leaky_relu(self, input: OperandLike, *, alpha: float = 0.01, label: str = '') -> MLOperand:
        """Rectified linear unit with a slope for negative values: max(0, x) + alpha * min(0, x).

        Args:
            input: float32 or float16, any rank.
            alpha: the slope where x is negative.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-leakyrelu

        >>> import numpy as np, opweave as ow
        >>> ow.ops.leaky_relu(np.float32([-2, 2]), alpha=0.25).tolist()
        [-0.5, 2.0]
        """

    def linear(self, input: OperandLike, *, alpha: float = 1.0, beta: float = 0.0, label: str = '') -> MLOperand:
        """Linear function of each element: alpha * x + beta.

        Args:
            input: float32 or float16, any rank.
            alpha: the slope.
            beta: the value at 0.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-linear

        >>> import numpy as np, opweave as ow
        >>> ow.ops.linear(np.float32([1, 2]), alpha=10.0, beta=0.5).tolist()
        [10.5, 20.5]
        """

    def lstm(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, steps: int, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, initial_hidden_state: OperandLike | None = None, initial_cell_state: OperandLike | None = None, return_sequence: bool = False, direction: Literal["forward", "backward", "both"] = 'forward', layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[MLOperand, ...]:
        """Run a long short-term memory (LSTM) over a sequence.

        All operands have the data type of `input`.

        Args:
            input: float32 or float16 [steps, batches, input size].
            weight: weights of the input, [directions, 4 * hidden_size, input size]; directions is 2 for "both", else 1.
            recurrent_weight: weights of the hidden state, [directions, 4 * hidden_size, hidden_size].
            steps: number of time steps, the first dimension of `input`.
            hidden_size: number of features of the hidden state and of the cell state.
            bias: added to the weighted input, [directions, 4 * hidden_size].
            recurrent_bias: added to the weighted hidden state, [directions, 4 * hidden_size].
            peephole_weight: weights of the cell state for the input, output and forget gate, in this order in every layout,
                [directions, 3 * hidden_size].
            initial_hidden_state: [directions, batches, hidden_size]; default: zeros.
            initial_cell_state: [directions, batches, hidden_size]; default: zeros.
            return_sequence: whether to also return the hidden state of every step.
            direction: the order in which steps are processed: "forward", "backward", or "both".
            layout: "iofg" or "ifgo", the order of the input (i), output (o), forget (f) and cell (g) gate in weights and biases.
            activations: three of "relu", "sigmoid" and "tanh": for the input, forget and output gates; for the cell gate; and for
                the new cell state, from which the hidden state is computed.
            label: a name for messages and tables.

        Returns:
            The last hidden state and the last cell state, both [directions, batches, hidden_size]. With `return_sequence`, also
            the hidden state of every step of the input, [steps, directions, batches, hidden_size]. All have the data type of
            `input`.

        Raises:
            ValidationError: inconsistent sizes, or not three activations.

        The peepholes of all three gates read the cell state of the previous step. (In ONNX, the output gate reads the new one.)
        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-lstm

        >>> import numpy as np, opweave as ow
        >>> x, weight, recurrent_weight = (np.zeros(shape, "float32") for shape in ([2, 1, 3], [1, 4, 3], [1, 4, 1]))
        >>> hidden, cell = ow.ops.lstm(x, weight, recurrent_weight, 2, 1, initial_cell_state=np.float32([[[8]]]))
        >>> cell.tolist()
        [[[2.0]]]
        """

    def lstm_cell(self, input: OperandLike, weight: OperandLike, recurrent_weight: OperandLike, hidden_state: OperandLike, cell_state: OperandLike, hidden_size: int, *, bias: OperandLike | None = None, recurrent_bias: OperandLike | None = None, peephole_weight: OperandLike | None = None, layout: Literal["iofg", "ifgo"] = 'iofg', activations: Sequence[Literal["relu", "sigmoid", "tanh"]] = ('sigmoid', 'tanh', 'tanh'), label: str = '') -> tuple[MLOperand, ...]:
        """Run a long short-term memory (LSTM) for one time step.

        All operands have the data type of `input`.

        Args:
            input: float32 or float16 [batches, input size].
            weight: weights of the input, [4 * hidden_size, input size].
            recurrent_weight: weights of the hidden state, [4 * hidden_size, hidden_size].
            hidden_state: [batches, hidden_size].
            cell_state: [batches, hidden_size].
            hidden_size: number of features of the hidden state and of the cell state.
            bias: added to the weighted input, [4 * hidden_size].
            recurrent_bias: added to the weighted hidden state, [4 * hidden_size].
            peephole_weight: weights of the cell state for the input, output and forget gate, in this order in every layout,
                [3 * hidden_size].
            layout: "iofg" or "ifgo", the order of the input (i), output (o), forget (f) and cell (g) gate in weights and biases.
            activations: three of "relu", "sigmoid" and "tanh": for the input, forget and output gates; for the cell gate; and for
                the new cell state, from which the hidden state is computed.
            label: a name for messages and tables.

        Returns:
            The next hidden state and the next cell state, both [batches, hidden_size], in the data type of `input`.

        Raises:
            ValidationError: inconsistent sizes, or not three activations.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-lstmcell

        >>> import numpy as np, opweave as ow
        >>> x, weight, recurrent_weight = (np.zeros(shape, "float32") for shape in ([1, 3], [4, 3], [4, 1]))
        >>> hidden, cell = ow.ops.lstm_cell(x, weight, recurrent_weight, np.float32([[0]]), np.float32([[8]]), 1)
        >>> cell.tolist()
        [[4.0]]
        """

    def matmul(self, a: OperandLike, b: OperandLike, *, label: str = '') -> MLOperand:
        """Multiply matrices, or stacks of matrices.

        All operands have the data type of `a`.

        Args:
            a: float32 or float16 [..., rows, inner].
            b: [..., inner, columns]; the leading dimensions of both broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `a`, [..., rows, columns].

        Raises:
            ValidationError: the inner dimensions differ, or the leading ones do not broadcast.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-matmul

        >>> import numpy as np, opweave as ow
        >>> ow.ops.matmul(np.float32([[1, 2], [3, 4]]), np.float32([[1], [10]])).tolist()
        [[21.0], [43.0]]
        >>> ow.ops.matmul(np.ones([8, 2, 3], "float32"), np.ones([3, 4], "float32")).shape
        (8, 2, 4)
        """

    def pad(self, input: OperandLike, beginning_padding: Sequence[int], ending_padding: Sequence[int], *, mode: Literal["constant", "edge", "reflection"] = 'constant', value: float = 0, label: str = '') -> MLOperand:
        """Add elements around `input`.

        Args:
            input: any data type, any rank.
            beginning_padding: number of elements to add at the beginning of each dimension.
            ending_padding: number of elements to add at the end of each dimension.
            mode: what to add: "constant" adds `value`, "edge" repeats the first and last element of the dimension,
                "reflection" mirrors the elements next to these.
            value: the added elements in mode "constant", rounded and clamped to the data type of `input`.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`, of size beginning padding + size + ending padding in each dimension.

        Raises:
            ValidationError: not one padding for each dimension, or a reflection of more elements than there are.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pad

        >>> import numpy as np, opweave as ow
        >>> ow.ops.pad(np.float32([1, 2, 3]), [1], [2]).tolist()
        [0.0, 1.0, 2.0, 3.0, 0.0, 0.0]
        >>> ow.ops.pad(np.float32([1, 2, 3]), [1], [2], mode="reflection").tolist()
        [2.0, 1.0, 2.0, 3.0, 2.0, 1.0]
        """

    def average_pool2d(self, input: OperandLike, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> MLOperand:
        """Average each window of each channel; NaN for windows without elements.

        Padding, and positions of a partial last window beyond it, are ignored.

        Args:
            input: float32 or float16 [batches, channels, height, width], in the order of `layout`.
            window_dimensions: [height, width] of the window; default: those of the input, which is global pooling.
            padding: rows and columns around the input that windows may cover: [top, bottom, left, right].
            strides: stride along [height, width], each at least 1.
            dilations: dilation factor along [height, width], each at least 1.
            layout: "nchw" or "nhwc", of the input and of the result.
            output_shape_rounding: whether a partial last window is left out ("floor") or included ("ceil").
            output_sizes: [height, width] of the result, one of the two roundings; overrides `output_shape_rounding`.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`, [batches, channels, height, width] in `layout`, where a size is
            1 + (size + paddings - (window size - 1) * dilation - 1) / stride, rounded.

        Raises:
            ValidationError: options out of range, or a window larger than the padded input.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pool2d

        >>> import numpy as np, opweave as ow
        >>> image = np.float32([[1, 2], [3, 6]]).reshape(1, 1, 2, 2)
        >>> ow.ops.average_pool2d(image).tolist()
        [[[[3.0]]]]
        """

    def l2_pool2d(self, input: OperandLike, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> MLOperand:
        """Take the square root of the sum of squares of each window of each channel.

        Padding, and positions of a partial last window beyond it, are ignored.

        Args:
            input: float32 or float16 [batches, channels, height, width], in the order of `layout`.
            window_dimensions: [height, width] of the window; default: those of the input, which is global pooling.
            padding: rows and columns around the input that windows may cover: [top, bottom, left, right].
            strides: stride along [height, width], each at least 1.
            dilations: dilation factor along [height, width], each at least 1.
            layout: "nchw" or "nhwc", of the input and of the result.
            output_shape_rounding: whether a partial last window is left out ("floor") or included ("ceil").
            output_sizes: [height, width] of the result, one of the two roundings; overrides `output_shape_rounding`.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`, [batches, channels, height, width] in `layout`, where a size is
            1 + (size + paddings - (window size - 1) * dilation - 1) / stride, rounded.

        Raises:
            ValidationError: options out of range, or a window larger than the padded input.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pool2d

        >>> import numpy as np, opweave as ow
        >>> image = np.float32([[3, 4], [5, 12]]).reshape(1, 1, 2, 2)
        >>> ow.ops.l2_pool2d(image, window_dimensions=[1, 2]).tolist()
        [[[[5.0], [13.0]]]]
        """

    def max_pool2d(self, input: OperandLike, *, window_dimensions: Sequence[int] | None = None, padding: Sequence[int] = (0, 0, 0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1), layout: Literal["nchw", "nhwc"] = 'nchw', output_shape_rounding: Literal["floor", "ceil"] = 'floor', output_sizes: Sequence[int] | None = None, label: str = '') -> MLOperand:
        """Take the maximum of each window of each channel; the lowest value of the data type for windows without elements.

        Padding, and positions of a partial last window beyond it, are ignored.

        Args:
            input: any data type [batches, channels, height, width], in the order of `layout`.
            window_dimensions: [height, width] of the window; default: those of the input, which is global pooling.
            padding: rows and columns around the input that windows may cover: [top, bottom, left, right].
            strides: stride along [height, width], each at least 1.
            dilations: dilation factor along [height, width], each at least 1.
            layout: "nchw" or "nhwc", of the input and of the result.
            output_shape_rounding: whether a partial last window is left out ("floor") or included ("ceil").
            output_sizes: [height, width] of the result, one of the two roundings; overrides `output_shape_rounding`.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`, [batches, channels, height, width] in `layout`, where a size is
            1 + (size + paddings - (window size - 1) * dilation - 1) / stride, rounded.

        Raises:
            ValidationError: options out of range, or a window larger than the padded input.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pool2d

        >>> import numpy as np, opweave as ow
        >>> image = np.float32([[1, 2, 3], [4, 5, 6], [7, 8, 9]]).reshape(1, 1, 3, 3)
        >>> ow.ops.max_pool2d(image, window_dimensions=[2, 2]).tolist()
        [[[[5.0, 6.0], [8.0, 9.0]]]]
        """

    def prelu(self, input: OperandLike, slope: OperandLike, *, label: str = '') -> MLOperand:
        """Rectified linear unit with a learned slope for negative values: slope * x where x < 0, else x.

        Args:
            input: float32, float16, int64, int32 or int8, any rank.
            slope: the data type of `input`; its shape and that of `input` broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input` and the broadcast shape. Slopes of NaN or infinity have no effect on elements
            that are not negative.

        Raises:
            ValidationError: the data types differ, or the shapes do not broadcast.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-prelu

        >>> import numpy as np, opweave as ow
        >>> ow.ops.prelu(np.float32([-2, -2, 2]), np.float32([0.25, 0.5, 0.5])).tolist()
        [-0.5, -1.0, 2.0]
        """

    def reduce_l1(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Sum the absolute values along `axes`.

        Args:
            input: float32, float16, int32, uint32, int64 or uint64, any rank.
            axes: the dimensions to reduce, each in [0, rank) and named once; default: all. `[]` applies the function to
                each element separately.
            keep_dimensions: whether the reduced dimensions stay, with size 1.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`. Integers wrap around on overflow.

        Raises:
            ValidationError: an axis does not exist, or is named twice.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce

        >>> import numpy as np, opweave as ow
        >>> ow.ops.reduce_l1(np.float32([[-1, 2], [3, -4]]), axes=[1]).tolist()
        [3.0, 7.0]
        """

    def reduce_l2(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Take the square root of the sum of squares along `axes`.

        Args:
            input: float32 or float16, any rank.
            axes: the dimensions to reduce, each in [0, rank) and named once; default: all. `[]` applies the function to
                each element separately.
            keep_dimensions: whether the reduced dimensions stay, with size 1.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`. Integers wrap around on overflow.

        Raises:
            ValidationError: an axis does not exist, or is named twice.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce

        >>> import numpy as np, opweave as ow
        >>> ow.ops.reduce_l2(np.float32([[3, 4], [5, 12]]), axes=[1]).tolist()
        [5.0, 13.0]
        """

    def reduce_log_sum(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Take the natural logarithm of the sum along `axes`.

        Args:
            input: float32 or float16, any rank.
            axes: the dimensions to reduce, each in [0, rank) and named once; default: all. `[]` applies the function to
                each element separately.
            keep_dimensions: whether the reduced dimensions stay, with size 1.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`. Integers wrap around on overflow.

        Raises:
            ValidationError: an axis does not exist, or is named twice.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce

        >>> import numpy as np, opweave as ow
        >>> print(np.round(ow.ops.reduce_log_sum(np.float32([[0.25, 0.75], [4, 6]]), axes=[1]), 3))
        [0.    2.303]
        """

    def reduce_log_sum_exp(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Take the natural logarithm of the sum of exponentials along `axes`, without intermediate overflow.

        Args:
            input: float32 or float16, any rank.
            axes: the dimensions to reduce, each in [0, rank) and named once; default: all. `[]` applies the function to
                each element separately.
            keep_dimensions: whether the reduced dimensions stay, with size 1.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`. Integers wrap around on overflow.

        Raises:
            ValidationError: an axis does not exist, or is named twice.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce

        >>> import numpy as np, opweave as ow
        >>> print(np.round(ow.ops.reduce_log_sum_exp(np.float32([[0, 0], [500, 500]]), axes=[1]), 3))
        [  0.693 500.693]
        """

    def reduce_max(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Find the largest value along `axes`; where one is NaN, NaN may be ignored.

        Args:
            input: any data type, any rank.
            axes: the dimensions to reduce, each in [0, rank) and named once; default: all. `[]` applies the function to
                each element separately.
            keep_dimensions: whether the reduced dimensions stay, with size 1.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`. Integers wrap around on overflow.

        Raises:
            ValidationError: an axis does not exist, or is named twice.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce

        >>> import numpy as np, opweave as ow
        >>> ow.ops.reduce_max(np.float32([[1, 2], [3, 4]]), axes=[0]).tolist()
        [3.0, 4.0]
        """

    def reduce_mean(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Average the values along `axes`.

        Args:
            input: float32 or float16, any rank.
            axes: the dimensions to reduce, each in [0, rank) and named once; default: all. `[]` applies the function to
                each element separately.
            keep_dimensions: whether the reduced dimensions stay, with size 1.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`. Integers wrap around on overflow.

        Raises:
            ValidationError: an axis does not exist, or is named twice.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce

        >>> import numpy as np, opweave as ow
        >>> ow.ops.reduce_mean(np.float32([[1, 2], [3, 4]]), axes=[0]).tolist()
        [2.0, 3.0]
        """

    def reduce_min(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Find the smallest value along `axes`; where one is NaN, NaN may be ignored.

        Args:
            input: any data type, any rank.
            axes: the dimensions to reduce, each in [0, rank) and named once; default: all. `[]` applies the function to
                each element separately.
            keep_dimensions: whether the reduced dimensions stay, with size 1.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`. Integers wrap around on overflow.

        Raises:
            ValidationError: an axis does not exist, or is named twice.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce

        >>> import numpy as np, opweave as ow
        >>> ow.ops.reduce_min(np.float32([[1, 2], [3, 4]]), axes=[0]).tolist()
        [1.0, 2.0]
        """

    def reduce_product(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Multiply the values along `axes`.

        Args:
            input: float32, float16, int32, uint32, int64 or uint64, any rank.
            axes: the dimensions to reduce, each in [0, rank) and named once; default: all. `[]` applies the function to
                each element separately.
            keep_dimensions: whether the reduced dimensions stay, with size 1.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`. Integers wrap around on overflow.

        Raises:
            ValidationError: an axis does not exist, or is named twice.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce

        >>> import numpy as np, opweave as ow
        >>> ow.ops.reduce_product(np.float32([[1, 2], [3, 4]]), axes=[0]).tolist()
        [3.0, 8.0]
        """

    def reduce_sum(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Sum the values along `axes`.

        Args:
            input: float32, float16, int32, uint32, int64 or uint64, any rank.
            axes: the dimensions to reduce, each in [0, rank) and named once; default: all. `[]` applies the function to
                each element separately.
            keep_dimensions: whether the reduced dimensions stay, with size 1.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`. Integers wrap around on overflow.

        Raises:
            ValidationError: an axis does not exist, or is named twice.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce

        >>> import numpy as np, opweave as ow
        >>> ow.ops.reduce_sum(np.float32([[1, 2], [3, 4]]), axes=[0]).tolist()
        [4.0, 6.0]
        >>> ow.ops.reduce_sum(np.float32([[1, 2], [3, 4]]), keep_dimensions=True).tolist()
        [[10.0]]
        """

    def reduce_sum_square(self, input: OperandLike, *, axes: Sequence[int] | None = None, keep_dimensions: bool = False, label: str = '') -> MLOperand:
        """Sum the squares of the values along `axes`.

        Args:
            input: float32, float16, int32, uint32, int64 or uint64, any rank.
            axes: the dimensions to reduce, each in [0, rank) and named once; default: all. `[]` applies the function to
                each element separately.
            keep_dimensions: whether the reduced dimensions stay, with size 1.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`. Integers wrap around on overflow.

        Raises:
            ValidationError: an axis does not exist, or is named twice.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce

        >>> import numpy as np, opweave as ow
        >>> ow.ops.reduce_sum_square(np.float32([[1, 2], [3, 4]]), axes=[0]).tolist()
        [10.0, 20.0]
        """

    def relu(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Rectified linear unit: max(0, x).

        Args:
            input: float32, float16, int64, int32 or int8, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`; NaN where that is NaN.

        Raises:
            ValidationError: `input` has another data type.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-relu-method

        >>> import numpy as np, opweave as ow
        >>> ow.ops.relu(np.int32([-1, 0, 2])).tolist()
        [0, 0, 2]
        """

    def resample2d(self, input: OperandLike, *, mode: Literal["nearest-neighbor", "linear"] = 'nearest-neighbor', scales: Sequence[float] = (1.0, 1.0), sizes: Sequence[int] | None = None, axes: Sequence[int] = (2, 3), label: str = '') -> MLOperand:
        """Resize two axes by interpolation.

        Args:
            input: float32, float16, uint8 or int8 of rank 4.
            mode: "nearest-neighbor" (the lower element at a tie), or "linear" between four neighbours; integers are rounded
                to nearest, ties to even.
            scales: a factor greater than 0 for each of `axes`, which determines the size only.
            sizes: the new size of each of `axes`; overrides `scales`.
            axes: the two axes, in the order of `scales` or `sizes`.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`, except along `axes`, where a size is `sizes` or floor(size *
            scale).

        Raises:
            ValidationError: options out of range, an axis named twice, or a size of 0.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-resample2d-method

        >>> import numpy as np, opweave as ow
        >>> image = np.float32([[1, 2], [3, 4]]).reshape(1, 1, 2, 2)
        >>> ow.ops.resample2d(image, scales=[1, 2]).tolist()
        [[[[1.0, 1.0, 2.0, 2.0], [3.0, 3.0, 4.0, 4.0]]]]
        >>> ow.ops.resample2d(image, mode="linear", sizes=[1, 1]).tolist()
        [[[[2.5]]]]
        """

    def reshape(self, input: OperandLike, new_shape: Sequence[int], *, label: str = '') -> MLOperand:
        """Change the shape of `input`, keeping the order of its elements.

        Args:
            input: any data type, any rank.
            new_shape: a shape with the same number of elements; `[]` is a scalar.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input` and the shape `new_shape`.

        Raises:
            ValidationError: `new_shape` has another number of elements.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reshape-method

        >>> import numpy as np, opweave as ow
        >>> ow.ops.reshape(np.float32([[1, 2, 3], [4, 5, 6]]), [3, 2]).tolist()
        [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
        """

    def reverse(self, input: OperandLike, *, axes: Sequence[int] | None = None, label: str = '') -> MLOperand:
        """Reverse the order of the elements along `axes`.

        Args:
            input: any data type, any rank.
            axes: different axes in [0, rank); default: all of them. `[]` changes nothing.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: an axis out of range, or named twice.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reverse-method

        >>> import numpy as np, opweave as ow
        >>> ow.ops.reverse(np.float32([[1, 2], [3, 4]]), axes=[1]).tolist()
        [[2.0, 1.0], [4.0, 3.0]]
        """

    def scatter_elements(self, input: OperandLike, indices: OperandLike, updates: OperandLike, *, axis: int = 0, label: str = '') -> MLOperand:
        """Replace single elements of `input` by `updates`: each index replaces its own coordinate along `axis`.

        Args:
            input: any data type, rank 1 or more.
            indices: int32, uint32 or int64, of the shape of `input`, but of any size along `axis`; negative ones count from
                the end, others out of range are clamped. If several refer to one element, which update is written is
                undefined.
            updates: the data type of `input`, the shape of `indices`.
            axis: in [0, rank).
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`: a copy of it in which, for axis 0 and rank 2,
            `output[indices[i, j], j] = updates[i, j]`.

        Raises:
            ValidationError: `axis` is out of range, or the shapes do not fit.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-scatterelements

        >>> import numpy as np, opweave as ow
        >>> ow.ops.scatter_elements(np.float32([[1, 2], [3, 4]]), np.int32([[1, 0]]), np.float32([[10, 20]])).tolist()
        [[1.0, 20.0], [10.0, 4.0]]
        """

    def scatter_nd(self, input: OperandLike, indices: OperandLike, updates: OperandLike, *, label: str = '') -> MLOperand:
        """Replace slices of `input` by `updates`, at coordinates in its leading dimensions.

        Args:
            input: any data type, rank 1 or more.
            indices: int32, uint32 or int64 [..., coordinates], with at most as many coordinates as `input` has dimensions;
                negative ones count from the end, others out of range are clamped. If several refer to one slice, which
                update is written is undefined.
            updates: the data type of `input`, [..., *input.shape[coordinates:]].
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: more coordinates than dimensions, or updates of another shape.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-scatternd

        >>> import numpy as np, opweave as ow
        >>> ow.ops.scatter_nd(np.float32([1, 2, 3]), np.int32([[2], [0]]), np.float32([10, 20])).tolist()
        [20.0, 2.0, 10.0]
        """

    def sigmoid(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Sigmoid: 1 / (1 + exp(-x)).

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-sigmoid-method

        Args:
            input: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        >>> import numpy as np, opweave as ow
        >>> print(np.round(ow.ops.sigmoid(np.float32([-1, 0, 1])), 3))
        [0.269 0.5   0.731]
        """

    def slice(self, input: OperandLike, starts: Sequence[int], sizes: Sequence[int], *, strides: Sequence[int] | None = None, label: str = '') -> MLOperand:
        """Extract a window of `input`, with strides.

        Args:
            input: any data type, any rank.
            starts: the first element of the window in each dimension.
            sizes: the size of the window in each dimension, before the stride is applied; start + size <= the dimension.
            strides: the step through the window in each dimension, from 1; default: all 1.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`, of ceil(size / stride) elements in each dimension.

        Raises:
            ValidationError: not one value for each dimension, sizes or strides of 0, or a window that ends outside of
                `input`.

        `x[2:8:3, ..., 0]` is the same on an operand, in Python's syntax.
        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-slice

        >>> import numpy as np, opweave as ow
        >>> ow.ops.slice(np.float32([[1, 2, 3], [4, 5, 6]]), [0, 1], [2, 2]).tolist()
        [[2.0, 3.0], [5.0, 6.0]]
        >>> ow.ops.slice(np.float32([1, 2, 3, 4, 5]), [0], [5], strides=[2]).tolist()
        [1.0, 3.0, 5.0]
        """

    def softmax(self, input: OperandLike, axis: int, *, label: str = '') -> MLOperand:
        """Normalise `input` along `axis` so that every slice is positive and sums to one.

        Args:
            input: float32 or float16, rank 1 or more.
            axis: in [0, rank).
            label: a name for messages and tables.

        Returns:
            `exp(input) / sum of exp(input)`, in the data type and shape of `input`; no exponential overflows.

        Raises:
            ValidationError: there is no such axis.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-softmax-method

        >>> import numpy as np, opweave as ow
        >>> print(np.round(ow.ops.softmax(np.float32([[0, 0], [0, 1]]), 1), 3))
        [[0.5   0.5  ]
         [0.269 0.731]]
        """

    def softplus(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Smooth rectified linear unit: log(1 + exp(x)).

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-softplus-method

        Args:
            input: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        >>> import numpy as np, opweave as ow
        >>> print(np.round(ow.ops.softplus(np.float32([-1, 0, 1])), 3))
        [0.313 0.693 1.313]
        """

    def softsign(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Softsign: x / (1 + |x|).

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-softsign-method

        Args:
            input: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        >>> import numpy as np, opweave as ow
        >>> ow.ops.softsign(np.float32([-1, 0, 3])).tolist()
        [-0.5, 0.0, 0.75]
        """

    def split(self, input: OperandLike, splits: int | Sequence[int], *, axis: int = 0, label: str = '') -> tuple[MLOperand, ...]:
        """Split `input` into parts along `axis`.

        Args:
            input: any data type, rank 1 or more.
            splits: the number of equal parts, which must divide the dimension, or the size of each part, whose sum must be
                the dimension; at most 8192 parts.
            axis: in [0, rank).
            label: a name for messages and tables.

        Returns:
            The parts in order, in the data type and rank of `input`.

        Raises:
            ValidationError: an axis out of range, no parts or too many, empty parts, or parts that do not make up `input`.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-split

        >>> import numpy as np, opweave as ow
        >>> [part.tolist() for part in ow.ops.split(np.float32([1, 2, 3, 4]), 2)]
        [[1.0, 2.0], [3.0, 4.0]]
        >>> [part.tolist() for part in ow.ops.split(np.float32([1, 2, 3, 4]), [1, 3])]
        [[1.0], [2.0, 3.0, 4.0]]
        """

    def tanh(self, input: OperandLike, *, label: str = '') -> MLOperand:
        """Hyperbolic tangent.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-tanh-method

        Args:
            input: float32 or float16, any rank.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has another data type.

        >>> import numpy as np, opweave as ow
        >>> print(np.round(ow.ops.tanh(np.float32([-1, 0, 1])), 3))
        [-0.762  0.     0.762]
        """

    def tile(self, input: OperandLike, repetitions: Sequence[int], *, label: str = '') -> MLOperand:
        """Repeat `input` along each dimension.

        Args:
            input: any data type, any rank.
            repetitions: number of repetitions of each dimension, at least 1.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`, of size * repetitions elements in each dimension.

        Raises:
            ValidationError: not one repetition for each dimension, or one that is 0.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-tile

        >>> import numpy as np, opweave as ow
        >>> ow.ops.tile(np.float32([[1, 2]]), [2, 2]).tolist()
        [[1.0, 2.0, 1.0, 2.0], [1.0, 2.0, 1.0, 2.0]]
        """

    def transpose(self, input: OperandLike, *, permutation: Sequence[int] | None = None, label: str = '') -> MLOperand:
        """Permute the dimensions of `input`.

        Args:
            input: any data type, any rank.
            permutation: for each dimension of the result, the dimension of `input`; default: the reverse order.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `input`, with its dimensions permuted.

        Raises:
            ValidationError: `permutation` does not name each dimension once.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-transpose

        >>> import numpy as np, opweave as ow
        >>> ow.ops.transpose(np.float32([[1, 2, 3], [4, 5, 6]])).tolist()
        [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
        >>> ow.ops.transpose(np.ones([2, 3, 4], "float32"), permutation=[0, 2, 1]).shape
        (2, 4, 3)
        """

    def triangular(self, input: OperandLike, *, upper: bool = True, diagonal: int = 0, label: str = '') -> MLOperand:
        """Keep the upper or the lower triangle of each matrix in `input`, and set the rest to zero.

        Args:
            input: any data type, [..., rows, columns].
            upper: whether to keep the elements on the diagonal and to the right of it, or to the left of it.
            diagonal: the diagonal: 0 is the main one, positive ones are to the right of it, negative ones to the left.
            label: a name for messages and tables.

        Returns:
            An operand of the data type and shape of `input`.

        Raises:
            ValidationError: `input` has a rank below 2.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-triangular

        >>> import numpy as np, opweave as ow
        >>> ow.ops.triangular(np.float32([[1, 2], [3, 4]])).tolist()
        [[1.0, 2.0], [0.0, 4.0]]
        >>> ow.ops.triangular(np.float32([[1, 2], [3, 4]]), upper=False, diagonal=-1).tolist()
        [[0.0, 0.0], [3.0, 0.0]]
        """

    def where(self, condition: OperandLike, true_value: OperandLike, false_value: OperandLike, *, label: str = '') -> MLOperand:
        """Choose between `true_value` and `false_value`, element by element.

        Args:
            condition: uint8, any rank; any value but 0 is true.
            true_value: the values where `condition` is true, any data type and rank.
            false_value: the values elsewhere, in the data type of `true_value`. The three shapes broadcast to each other.
            label: a name for messages and tables.

        Returns:
            An operand of the data type of `true_value` and the broadcast shape.

        Raises:
            ValidationError: the data types differ, or the shapes do not broadcast.

        https://www.w3.org/TR/webnn/#api-mlgraphbuilder-where

        >>> import numpy as np, opweave as ow
        >>> ow.ops.where(np.uint8([1, 0]), np.float32([1, 2]), np.float32([3, 4])).tolist()
        [1.0, 4.0]
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
