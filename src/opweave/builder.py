"""Builders and compiled graphs (https://www.w3.org/TR/webnn/#api-mlgraphbuilder)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from . import dtypes
from .context import MLContext, check_names, check_overlap, in_thread
from .dtypes import DataType
from .errors import InvalidStateError, ValidationError, require
from .graph import Desc, Graph, MLOperand, Operand
from .op import Limits, Number, Op
from .ops import Operations
from .tensor import MLTensor, host_array

if TYPE_CHECKING:
    import numpy as np

    from .backends import Binding, Executable, Placement

MAX_BINDINGS = 64
"""How many combinations of tensors a graph stays bound to; beyond that, the oldest must be bound (and validated) again."""


class MLGraphBuilder(Operations):
    """Builds one graph for a context; every operation of WebNN is a method.

    >>> import numpy as np, opweave as ow
    >>> context = ow.ml.create_context(device="reference")
    >>> builder = ow.MLGraphBuilder(context)
    >>> x = builder.input("x", "float32", [2, 2])
    >>> graph = builder.build({"y": builder.add(x, builder.constant(np.float32([[1, 2], [3, 4]])))})
    >>> context.compute(graph, {"x": np.ones((2, 2), "float32")})["y"].tolist()
    [[2.0, 3.0], [4.0, 5.0]]

    Args:
        context: the context that will run the graph.

    Raises:
        InvalidStateError: the context is lost.
    """

    def __init__(self, context: MLContext) -> None:
        super().__init__()
        require(isinstance(context, MLContext), f"MLGraphBuilder takes an MLContext, got {type(context).__name__}")
        context.check_alive()
        self.context = context
        self.max_byte_length = context.backend.max_byte_length
        self._built = False

    def check_open(self) -> None:
        """Raise `InvalidStateError` once `build` has been called, or the context is lost."""
        if self._built:
            raise InvalidStateError("the builder has built its graph; make a new MLGraphBuilder for another one")
        self.context.check_alive()

    def limits(self, op: Op[..., Any]) -> Mapping[str, Limits]:
        """What data types and ranks the operands of `op` may have in this context."""
        return self.context.backend.limits(op)

    def as_operand(self, value: Any, data_type: DataType) -> Operand:
        """A constant for an array, or for a number or nested sequences of numbers in the given data type."""
        if isinstance(value, (int, float)):
            return self.constant(data_type, value)
        if isinstance(value, Sequence):
            import numpy as np

            value = np.array(value, data_type)
        return self.constant(value)

    def input(self, name: str, data_type: DataType, shape: Sequence[int]) -> MLOperand:
        """Declare an input of the graph (https://www.w3.org/TR/webnn/#api-mlgraphbuilder-input).

        Args:
            name: how `dispatch` and `compute` will call it; not empty, and not used before.
            data_type: one of the eight data types of WebNN.
            shape: dimensions, each in [1, 2**31 - 1]; `[]` for a scalar.

        Raises:
            InvalidStateError: the graph is built, or the context lost.
            ValidationError: an empty or duplicate name, an invalid data type or shape.
        """
        self.check_open()
        require(isinstance(name, str), f"input: name must be a string, got {name!r}")
        require(name != "", "input: name must not be empty")
        require(name not in self.inputs, f"input: there is an input named {name!r} already")
        try:
            desc = self.context.check_desc(data_type, shape)
        except ValidationError as error:
            raise ValidationError(f"input {name!r}: {error}") from None
        operand = self.inputs[name] = Operand(self, desc, name=name)
        return operand

    @overload
    def constant(self, data_type: DataType, shape: Sequence[int], buffer: Any, /) -> MLOperand: ...
    @overload
    def constant(self, data_type: DataType, value: Number, /) -> MLOperand: ...
    @overload
    def constant(self, tensor: MLTensor, /) -> MLOperand: ...
    @overload
    def constant(self, array: Any, /) -> MLOperand: ...
    def constant(self, *args: Any) -> MLOperand:
        """Declare a constant (https://www.w3.org/TR/webnn/#api-mlgraphbuilder-constant). Four forms:

        - `constant("float32", [2, 3], buffer)`: an array of that data type and shape (or flat), or a buffer of as many bytes;
        - `constant("float32", 0.5)`: a scalar, rounded and clamped to the data type;
        - `constant(tensor)`: a tensor of `context.create_constant_tensor`;
        - `constant(array)`: a NumPy array, or anything with DLPack, of its own data type and shape.

        Arrays are kept by reference, never copied, if they are C-contiguous: do not change them while the graph is used.

        Raises:
            InvalidStateError: the graph is built, or the context lost.
            ValidationError: data that do not fit, a tensor that is destroyed, not constant or of another context.
        """
        self.check_open()
        try:
            match args:
                case (MLTensor() as tensor,):
                    require(tensor.context is self.context, "the tensor belongs to another context")
                    require(not tensor.destroyed, f"the tensor {tensor.desc} is destroyed")
                    require(tensor.constant, f"the tensor {tensor.desc} was not made by create_constant_tensor")
                    return Operand(self, tensor.desc, value=tensor.memory())
                case (str() as data_type, [*_] | () as shape, buffer):
                    desc = self.context.check_desc(data_type, shape)
                    return Operand(self, desc, value=host_array(buffer, "buffer", desc))
                case (str() as data_type, (int() | float()) as value) if not isinstance(value, bool):
                    import numpy as np

                    checked = dtypes.check(data_type)
                    number = dtypes.cast_number(value, checked)
                    return Operand(self, Desc(checked, ()), value=np.array(number, checked))
                case (array,) if not isinstance(array, (str, bytes, int, float)):
                    found = host_array(array, "array")
                    desc = self.context.check_desc(found.dtype.name, found.shape)
                    return Operand(self, desc, value=found)
            raise ValidationError(
                "takes (data_type, shape, buffer), (data_type, number), (tensor) or (array), "
                f"got ({', '.join(type(arg).__name__ for arg in args)})"
            )
        except ValidationError as error:
            raise ValidationError(f"constant: {error}") from None

    def build(self, outputs: Mapping[str, MLOperand]) -> MLGraph:
        """Compile the graph up to `outputs` (https://www.w3.org/TR/webnn/#api-mlgraphbuilder-build).

        Args:
            outputs: the operands that the graph yields, by name. Inputs and constants cannot be outputs; `identity` makes
                an operand of them that can.

        Raises:
            InvalidStateError: the graph is built already, or the context lost.
            ValidationError: no outputs, an empty name, an operand of another builder, an input or a constant.
            OperationError: the engine refuses the graph.
        """
        self.check_open()
        require(isinstance(outputs, Mapping), f"build: outputs must map names to operands, got {outputs!r}")
        require(len(outputs) > 0, "build: outputs must not be empty")
        for name, operand in outputs.items():
            require(
                isinstance(name, str) and name != "", f"build: output names must be non-empty strings, got {name!r}"
            )
            require(isinstance(operand, Operand), f"build: output {name!r} must be an operand, got {operand!r}")
            require(operand.builder is self, f"build: output {name!r} is an operand of another builder: {operand!r}")
            require(operand.node is not None, f"build: output {name!r} is no result of an operation: {operand!r}")
        graph = Graph.reaching(outputs)
        self._built = True
        context = self.context
        executable = context.backend.compile(
            graph, device=context.device.name, power_preference=context.power_preference
        )
        return MLGraph(context, graph, executable)

    async def build_async(self, outputs: Mapping[str, MLOperand]) -> MLGraph:
        """`build`, to await."""
        return await in_thread(self.build, outputs)


class MLGraph:
    """A compiled graph (https://www.w3.org/TR/webnn/#api-mlgraph). Run it with `context.dispatch` or `context.compute`."""

    def __init__(self, context: MLContext, graph: Graph, executable: Executable) -> None:
        self._context, self._graph = context, graph
        self._executable: Executable | None = executable
        self._inputs = {name: operand.desc for name, operand in graph.inputs.items()}
        self._outputs = {name: operand.desc for name, operand in graph.outputs.items()}
        # What `dispatch` was called with -> the binding. An entry lives until one of its tensors goes away, so a key made
        # of identities is never mistaken for another.
        self._bindings: dict[tuple[Any, ...], DispatchBinding] = {}
        with context._lock:
            context.check_alive()
            context._graphs.add(self)

    @property
    def inputs(self) -> Mapping[str, Desc]:
        """Data type and shape of each input, by name; inputs that no output depends on are left out."""
        return self._inputs

    @property
    def outputs(self) -> Mapping[str, Desc]:
        """Data type and shape of each output, by name."""
        return self._outputs

    @property
    def context(self) -> MLContext:
        """The context that it was built for."""
        return self._context

    @property
    def destroyed(self) -> bool:
        """Whether `destroy` has been called, here or by the loss of the context."""
        return self._executable is None

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices that its operations run on."""
        return tuple(dict.fromkeys(placement.device for placement in self.placements()))

    def placements(self) -> list[Placement]:
        """Where each operation runs, and how."""
        return self.check_alive().explain()

    def explain(self) -> str:
        """The graph as text, followed by what runs where: native, composed of several kernels, or decomposed."""
        rows = [(p.node, p.device, p.how, p.detail) for p in self.placements()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = "\n".join(
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )
        return f"{self._graph}\n\nwhat runs where:\n{table}"

    def check_alive(self) -> Executable:
        """The executable; `InvalidStateError` once the graph is destroyed or its context lost."""
        self._context.check_alive()
        if self._executable is None:
            raise InvalidStateError("the graph is destroyed")
        return self._executable

    def destroy(self) -> None:
        """Release the compiled graph; it cannot be dispatched any more. Further calls do nothing."""
        self._executable = None
        for binding in list(self._bindings.values()):
            binding.release()

    def __repr__(self) -> str:
        def listing(descs: Mapping[str, Desc]) -> str:
            return ", ".join(f"{name}: {desc}" for name, desc in descs.items())

        state = "destroyed" if self.destroyed else f"{len(self._graph.nodes)} operations on {self._context.device.name}"
        return f"<MLGraph ({listing(self._inputs)}) -> ({listing(self._outputs)}), {state}>"

    def _bind(self, inputs: Mapping[str, MLTensor], outputs: Mapping[str, MLTensor]) -> DispatchBinding:
        """Bind to the memory of tensors that `dispatch` has validated, and remember it for the next time."""
        key = (*inputs, *map(id, inputs.values()), *outputs, *map(id, outputs.values()))
        call = self.check_alive().bind(
            {name: tensor.memory() for name, tensor in inputs.items()},
            {name: tensor.memory() for name, tensor in outputs.items()},
        )
        if len(self._bindings) >= MAX_BINDINGS:
            next(iter(self._bindings.values())).release()
        tensors = [*inputs.values(), *outputs.values()]
        binding = DispatchBinding(self._bindings, key, call, tensors)
        self._bindings[key] = binding
        for tensor in tensors:
            tensor._bindings.add(binding)
        return binding

    def _compute(
        self, context: MLContext, inputs: Mapping[str, Any], outputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """What `MLContext.compute` does."""
        import numpy as np

        executable = self.check_alive()
        require(context is self._context, "compute: the graph belongs to another context")
        check_names("compute: inputs", inputs, self._inputs)
        sources, targets = {}, {}
        for name, desc in self._inputs.items():
            value = inputs[name]
            if type(value) is not np.ndarray or value.shape != desc.shape or value.dtype != desc.data_type:
                value = (
                    value.numpy()
                    if isinstance(value, MLTensor)
                    else host_array(value, f"compute: input {name!r}", desc)
                )
                require(
                    value.shape == desc.shape and value.dtype == desc.data_type,
                    f"compute: input {name!r} must be {desc}, got {value.dtype}{list(value.shape)}",
                )
            elif not value.flags.c_contiguous:
                value = host_array(value, f"compute: input {name!r}", desc)
            sources[name] = value
        for name, desc in self._outputs.items():
            target = outputs.get(name)
            if target is None:
                targets[name] = np.empty(desc.shape, desc.data_type)
            else:
                fits = isinstance(target, np.ndarray) and target.shape == desc.shape and target.dtype == desc.data_type
                require(fits, f"compute: output {name!r} must be an array {desc}, got {_described(target)}")
                usable = target.flags.c_contiguous and target.flags.writeable and target.flags.aligned
                require(bool(usable), f"compute: output {name!r} must be C-contiguous, aligned and writable")
                targets[name] = target
        if outputs:
            unknown = [name for name in outputs if name not in self._outputs]
            require(not unknown, f"compute: outputs must be among {list(self._outputs)}; unknown: {unknown}")
            check_overlap(sources, targets)
        executable.bind(sources, targets)()
        return targets


def _described(value: Any) -> str:
    """An array's data type and shape, or the type of what is none, for messages."""
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else type(value).__name__


class DispatchBinding:
    """A graph bound to tensors: runs while it holds their locks, until one of them is destroyed."""

    __slots__ = ("__weakref__", "_bindings", "_call", "_key", "_locks")

    def __init__(
        self,
        bindings: dict[tuple[Any, ...], DispatchBinding],
        key: tuple[Any, ...],
        call: Binding,
        tensors: Sequence[MLTensor],
    ) -> None:
        self._bindings, self._key, self._call = bindings, key, call
        # Always taken in the same order, so two dispatches cannot wait for each other.
        self._locks = [tensor._lock for tensor in sorted(tensors, key=id)]

    def __call__(self) -> None:
        """Run the graph once."""
        locks = self._locks
        for lock in locks:
            lock.acquire()
        try:
            self._call()
        finally:
            for lock in locks:
                lock.release()

    def release(self) -> None:
        """Forget the binding, and with it the tensors' memory."""
        self._bindings.pop(self._key, None)
