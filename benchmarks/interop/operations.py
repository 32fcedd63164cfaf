"""conv2d, add and relu as custom operations: expressions, WebAssembly, NumPy, Numba; and the graphs made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import opweave as ow
from opweave.kernels.wasm import library
from opweave.lazy.custom_call import CustomOp

PADDING = (1, 1, 1, 1)
"""The issue's convolution has "same" padding: 3 × 3 windows around each pixel."""


@dataclass(frozen=True)
class Data:
    """What the tests compute on.

    Attributes:
        image: [1, channels, height, width].
        weights: [channels, channels, 3, 3].
        bias: [channels, 1, 1].
    """

    image: np.ndarray
    weights: np.ndarray
    bias: np.ndarray

    @classmethod
    def random(cls, channels: int, size: int) -> Data:
        random = np.random.default_rng(0)
        image = random.standard_normal((1, channels, size, size), "float32")
        weights = random.standard_normal((channels, channels, 3, 3), "float32") / np.float32(3 * channels**0.5)
        return cls(image, weights, random.standard_normal((channels, 1, 1), "float32"))

    def nhwc(self) -> Data:
        """The same with channels last, as TensorFlow has images: [1, height, width, channels]."""
        image, weights = (np.ascontiguousarray(array.transpose(0, 2, 3, 1)) for array in (self.image, self.weights))
        return Data(image, weights, self.bias.reshape(-1))


@dataclass(frozen=True)
class Operations:
    """The operations that a graph is made of.

    Attributes:
        conv: of a builder, an image and its weights.
        add: of a builder, an image and the bias.
        relu: of a builder and an image.
        module: in whose memory the tensors are; None: the host's.
    """

    conv: Callable[[ow.MLGraphBuilder, ow.MLOperand, ow.MLOperand], ow.MLOperand]
    add: Callable[[ow.MLGraphBuilder, ow.MLOperand, ow.MLOperand], ow.MLOperand]
    relu: Callable[[ow.MLGraphBuilder, ow.MLOperand], ow.MLOperand]
    module: ow.wasm.Module | None = None


def built_in_conv(builder: ow.MLGraphBuilder, x: ow.MLOperand, weights: ow.MLOperand) -> ow.MLOperand:
    return builder.conv2d(x, weights, padding=PADDING)


def nhwc_conv(builder: ow.MLGraphBuilder, x: ow.MLOperand, weights: ow.MLOperand) -> ow.MLOperand:
    return builder.conv2d(x, weights, padding=PADDING, input_layout="nhwc", filter_layout="ohwi")


BUILT_IN = Operations(built_in_conv, ow.MLGraphBuilder.add, ow.MLGraphBuilder.relu)
NHWC = Operations(nhwc_conv, ow.MLGraphBuilder.add, ow.MLGraphBuilder.relu)


def custom(add: CustomOp[Any], relu: CustomOp[Any], module: ow.wasm.Module | None = None) -> Operations:
    """A built-in convolution with custom operations behind it."""
    return Operations(built_in_conv, lambda b, x, bias: add(b, x, bias), lambda b, x: relu(b, x), module)


def expressions() -> Operations:
    @ow.expression
    def add(x: Any, bias: Any) -> Any:
        return x + bias

    @ow.expression
    def relu(x: Any) -> Any:
        return ow.expr.relu(x)

    return custom(add, relu)


def with_numpy() -> Operations:
    add, relu = _declare_operations()

    @add.kernel("cpu")
    def _(x: np.ndarray, bias: np.ndarray, out: np.ndarray) -> None:
        np.add(x, bias, out=out)

    @relu.kernel("cpu")
    def _(x: np.ndarray, out: np.ndarray) -> None:
        np.maximum(x, 0, out=out)

    return custom(add, relu)


def with_numba() -> Operations | None:
    """Compiled loops, on one thread; None where Numba is not installed.

    Numba's own threads wait for work by turning in circles, on the processors that the next convolution needs.
    """
    if find_spec("numba") is None:
        return None
    import numba

    add, relu = _declare_operations()

    @add.kernel("cpu")
    @numba.njit(nogil=True)  # type: ignore[untyped-decorator, unused-ignore]
    def _(x: np.ndarray, bias: np.ndarray, out: np.ndarray) -> None:
        for channel in range(x.shape[1]):
            for row in range(x.shape[2]):
                for column in range(x.shape[3]):
                    out[0, channel, row, column] = x[0, channel, row, column] + bias[channel, 0, 0]

    @relu.kernel("cpu")
    @numba.njit(nogil=True)  # type: ignore[untyped-decorator, unused-ignore]
    def _(x: np.ndarray, out: np.ndarray) -> None:
        for channel in range(x.shape[1]):
            for row in range(x.shape[2]):
                for column in range(x.shape[3]):
                    value = x[0, channel, row, column]
                    out[0, channel, row, column] = np.float32(0) if value < 0 else value  # NaN stays NaN

    return custom(add, relu)


def with_wasm(*, conv: bool = False) -> Operations:
    """Kernels of two modules that share a memory, where the tensors are, too; the convolution among them if `conv`.

    There is no time limit, as there is none for the modules of a page in a browser.
    """
    import wasmtime

    module = library.load(timeout=None)
    text = Path(__file__).with_name("bias.wat").read_text()
    own = ow.wasm.load(bytes(wasmtime.wat2wasm(text)), memory=module, timeout=None)
    add, relu = _declare_operations()
    add.kernel("wasm", own, "add", signature="x*:float32, bias*:float32, out*, x.shape[1], x.strides[1]")
    relu.kernel("wasm", module, "relu", signature="x*:float32, out*, out.size")
    made = custom(add, relu, module)
    if not conv:
        return made

    @ow.op
    def conv2d(
        self: ow.MLGraphBuilder,
        input: ow.MLOperand,
        filter: ow.MLOperand,
        bias: ow.MLOperand | None = None,
        *,
        padding: Sequence[int] = PADDING,
        strides: Sequence[int] = (1, 1),
        dilations: Sequence[int] = (1, 1),
        groups: int = 1,
    ) -> ow.Desc:
        return input.desc

    conv2d.kernel("wasm", module, "conv2d", signature=library.SIGNATURES["conv2d"])
    return Operations(lambda b, x, weights: conv2d(b, x, weights), made.add, made.relu, module)


def _declare_operations() -> tuple[CustomOp[Any], CustomOp[Any]]:
    """New operations add and relu, which nothing computes yet."""

    @ow.op
    def add(self: ow.MLGraphBuilder, x: ow.MLOperand, bias: ow.MLOperand) -> ow.Desc:
        return x.desc

    @ow.op
    def relu(self: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.Desc:
        return x.desc

    return add, relu


# Graphs of them -------------------------------------------------------------------------------------------------------


class Chain:
    """Operations as one graph, from a tensor to a tensor.

    Attributes:
        graph: the graph.
        source: the tensor that it reads.
        target: the tensor that it writes.
    """

    def __init__(
        self,
        context: ow.MLContext,
        data: Data,
        operations: Operations,
        steps: str,
        source: ow.MLTensor | None = None,
        target: ow.MLTensor | None = None,
    ) -> None:
        """Take the `steps` one after the other: "conv", "add", "relu", "conv add relu conv", …

        Without `source` and `target`, the tensors are made where the operations want them, `source` with the image.
        """
        builder = ow.MLGraphBuilder(context)
        operand = builder.input("x", "float32", data.image.shape)
        for step in steps.split():
            if step == "conv":
                operand = operations.conv(builder, operand, builder.constant(data.weights))
            elif step == "add":
                operand = operations.add(builder, operand, builder.constant(data.bias))
            else:
                operand = operations.relu(builder, operand)
        self.context, self.graph = context, builder.build({"y": operand})
        if source is None:
            source = tensor(context, data, operations)
            context.write_tensor(source, data.image)
        self.source, self.target = source, target or tensor(context, data, operations)
        self._inputs, self._outputs = {"x": self.source}, {"y": self.target}

    def __call__(self) -> None:
        """Run it once."""
        self.context.dispatch(self.graph, self._inputs, self._outputs)

    def engine(self) -> str:
        """What runs its expressions."""
        place = self.graph.placements()[-1]
        if place.how != "expression":
            return "as operations of the engine"
        return "Halide" if "Halide" in place.detail else "NumPy"


def tensor(context: ow.MLContext, data: Data, operations: Operations) -> ow.MLTensor:
    """A tensor for an image, where the operations want it."""
    return context.create_tensor("float32", data.image.shape, readable=True, writable=True, memory=operations.module)


class HostCopies:
    """A built-in convolution whose result is copied out; add and relu with NumPy on the copy, which is copied in again.

    Attributes:
        target: the tensor with the result.
    """

    def __init__(self, context: ow.MLContext, data: Data) -> None:
        self.context, self.bias = context, data.bias
        self.conv = Chain(context, data, BUILT_IN, "conv")
        self.target = tensor(context, data, BUILT_IN)
        self.array = np.empty_like(data.image)

    def __call__(self) -> None:
        """Run it once."""
        self.conv()
        array = self.context.read_tensor(self.conv.target, out=self.array)
        np.add(array, self.bias, out=array)
        np.maximum(array, 0, out=array)
        self.context.write_tensor(self.target, array)
