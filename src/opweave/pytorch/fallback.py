"""Calls of operators without a converter: nodes that PyTorch computes on the memory of the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from .. import memory
from ..context.builder import MLGraphBuilder
from ..core.dtypes import DataType
from ..core.graph import Desc, MLOperand
from ..custom.operation import CustomOp
from ..kernels.base import Arrays, KernelCall
from ..memory.spaces import HOST
from ..support.errors import MLError, OperationError
from .tensors import array_of, tensor_of


class Slot:
    """The place of an operand among the arguments of a call."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"<operand {self.number}>"


class TorchCall:
    """An operator of PyTorch with its arguments: operands are `Slot`s, and results are of `dtypes`.

    `reason` says why PyTorch runs it.
    """

    def __init__(
        self,
        function: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        input_dtypes: Sequence[Any],
        dtypes: Sequence[Any],
        data_types: Sequence[DataType],
        reason: str,
    ) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.input_dtypes, self.dtypes, self.data_types, self.reason = input_dtypes, dtypes, data_types, reason

    @property
    def name(self) -> str:
        """The operator with its overload, "aten.add.Tensor"."""
        return str(self.function)

    def __repr__(self) -> str:
        return self.name

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], sizes: Sequence[int]) -> None:
        """Compute the results of the call from arrays, and write them into `outputs`."""
        tensors = [tensor_of(_writable(a), dtype) for a, dtype in zip(inputs, self.input_dtypes, strict=True)]
        values = [*tensors, *sizes]

        def fill(value: Any) -> Any:
            return values[value.number] if isinstance(value, Slot) else value

        args, kwargs = _pytree.tree_map(fill, (tuple(self.args), dict(self.kwargs)))
        with torch.no_grad():
            results = self.function(*args, **kwargs)
        leaves = [leaf for leaf in _pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        for result, output in zip(leaves, outputs, strict=True):
            array = array_of(result)
            if array.shape != output.shape:
                raise OperationError(f"PyTorch computed the shape {list(array.shape)}, expected {list(output.shape)}")
            memory.copy(output, array, "results of PyTorch")


def _writable(array: np.ndarray) -> np.ndarray:
    """A view that PyTorch takes without a warning: it has no read-only tensors. Operators here do not write to operands."""
    if array.flags.writeable:
        return array
    return np.asarray(_Writable(array)).view(array.dtype)


class _Writable:
    def __init__(self, array: np.ndarray) -> None:
        # The protocol has no codes for data types that NumPy lacks.
        interface = dict(array.view(f"u{array.itemsize}").__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.array = array


class TorchKernel:
    """The kernel of nodes that PyTorch computes."""

    def prepare(self, call: KernelCall) -> PreparedTorchCall:
        """Prepare the kernel for a node."""
        return PreparedTorchCall(call)


class PreparedTorchCall:
    """A call that is prepared for one node."""

    space = HOST

    def __init__(self, call: KernelCall) -> None:
        self.call = call
        self.torch_call: TorchCall = call.attributes["call"]
        self.sizes: tuple[int, ...] = call.attributes["sizes"]

    @property
    def detail(self) -> str:
        """The operator, and why PyTorch runs it, for `explain()`."""
        return f"PyTorch, {self.torch_call.name}: {self.torch_call.reason}"

    def bind(self, inputs: Mapping[str, Arrays], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        """Return a function that runs the call once."""
        operands: Any = inputs["inputs"]
        arrays: tuple[np.ndarray, ...] = operands if isinstance(operands, tuple) else (operands,)
        title, call = self.call.title, self.torch_call

        def run() -> None:
            try:
                call.run(arrays, outputs, self.sizes)
            except MLError:
                raise
            except Exception as error:
                raise OperationError(f"{title}: PyTorch's {call.name} failed: {error}") from error

        return run


def _torch_node(
    self: Any, inputs: Sequence[MLOperand], call: Any, shapes: Any, sizes: Any, *, label: str = ""
) -> tuple[Desc, ...]:
    """Compute an operator of PyTorch, by PyTorch itself."""
    return tuple(Desc(data_type, shape) for data_type, shape in zip(call.data_types, shapes, strict=True))


_torch_node.__name__ = "torch_node"

# Not declared by `opweave.op`, which takes the data types of the specification only.
torch_node: CustomOp[tuple[Any, ...]] = CustomOp(_torch_node, _torch_node, skip=1, limits={}, annotated=True)
torch_node.kernels["cpu"] = TorchKernel()


def add_torch_node(
    b: MLGraphBuilder,
    call: TorchCall,
    operands: Sequence[MLOperand],
    shapes: Sequence[Sequence[Any]],
    sizes: Sequence[Any],
    label: str,
) -> tuple[MLOperand, ...]:
    """Add a node that PyTorch computes; `sizes` are the integers of the call that are known only when the graph runs."""
    results: Any = torch_node(b, list(operands), call, tuple(map(tuple, shapes)), tuple(sizes), label=label)
    return results if isinstance(results, tuple) else (results,)
