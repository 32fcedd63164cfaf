"""The graph builder (https://www.w3.org/TR/webnn/#api-mlgraphbuilder)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload
from weakref import ref

import numpy as np

from ..core import dtypes
from ..core.conversion import Number, SizeHint, convert_desc, convert_named_desc
from ..core.dtypes import DataType
from ..core.graph import Desc, Graph, MLOperand, Operand, check_desc
from ..core.operation import Limits, Op
from ..core.sizes import Size, is_static
from ..memory.arrays import as_array, constant_array, describe, fit, unpack
from ..ops import Operations
from ..ops.constants import constant, has_sizes
from ..support import hints
from ..support.errors import InvalidStateError, ValidationError, require, require_drafts
from ..support.names import count_of, printable, short_repr
from ..support.progress import report_work
from .context import MLContext
from .dynamic_graph_state import DynamicGraphState
from .graph import MLGraph, state_of
from .graph_state import GraphState
from .open_programs import GraphVariant
from .tensor import MLTensor
from .tensors import awaitable, check_alive, own_memory, state_of as context_state

if TYPE_CHECKING:
    from ..core.guards import Guards
    from ..core.size_rules import NamedSizeRule
    from ..run.program import Program

Fallback = Literal["auto", "error"]
"""For operations that the device does not support: run them on the CPU, or refuse them."""


class MLGraphBuilder(Operations):
    """Builds one graph for a context; every operation of WebNN is a method.

    >>> import numpy as np, opweave as ow
    >>> context = ow.ml.create_context(device="reference")
    >>> builder = ow.MLGraphBuilder(context)
    >>> x = builder.input("x", "float32", [2, 2])
    >>> graph = builder.build({"y": builder.add(x, builder.constant(np.float32([[1, 2], [3, 4]])))})
    >>> context.compute(graph, {"x": np.ones((2, 2), "float32")})["y"].tolist()
    [[2.0, 3.0], [4.0, 5.0]]

    >>> import asyncio
    >>> builder = ow.MLGraphBuilder(context)
    >>> asyncio.run(builder.build_async({"y": builder.input("x", "float32", [2]).relu()}))
    <MLGraph (x: float32[2]) -> (y: float32[2]), 1 operation on reference>

    Args:
        context: the context that will run the graph.

    Raises:
        InvalidStateError: the context is lost.
    """

    def __init__(self, context: MLContext) -> None:
        super().__init__()
        require(isinstance(context, MLContext), f"MLGraphBuilder takes an MLContext, got {type(context).__name__}")
        check_alive(context)
        self._context: Callable[[], MLContext | None] = lambda: context
        self._device = context.device.name
        self._max_byte_length = context.backend.max_byte_length
        self._takes_drafts = self.takes_empty = self.takes_all_types = context.drafts
        self._built = False
        self.size_hints: dict[str, SizeHint] = {}
        self.size_rules: Sequence[NamedSizeRule] = ()

    def __repr__(self) -> str:
        inputs = ", ".join(f"{printable(name)}: {operand.desc}" for name, operand in self.inputs.items())
        return f"<MLGraphBuilder ({inputs}){', built' if self._built else ''} on {self._device}>"

    @property
    def context(self) -> MLContext:
        """The context that runs the graph. Once the graph is built, the builder does not keep the context alive."""
        context = self._context()
        if context is None:
            raise InvalidStateError(f"the context on {self._device} that this builder was made for no longer exists")
        return context

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a builder belongs to its context and cannot be copied or pickled; pickle the function that builds the graph"
        )

    def _check_open(self) -> None:
        if self._built:
            raise InvalidStateError("the builder has built its graph; make a new MLGraphBuilder for another one")
        check_alive(self.context)

    def _limits(self, op: Op[..., Any]) -> Mapping[str, Limits]:
        if op.is_draft:
            require_drafts(self._takes_drafts, "the operation")
        backend = self.context.backend
        return backend.limits(op, takes_all=True) if self.takes_all_types else backend.limits(op)

    def _as_operand(self, value: Any, data_type: DataType) -> Operand:
        """Return a constant for an array, or for a number or nested sequences of numbers, which get this data type.

        A number that an integer type cannot hold is an error: `constant(data_type, number)` rounds and clamps, as the
        specification says, but in `x + 1.5` rounding would be a surprise.
        """
        if isinstance(value, (int, float)):
            if dtypes.INFO[data_type].kind != "f":
                exact = dtypes.cast_number(value, data_type) == value
                require(exact, f"{short_repr(value)} is not a value of {data_type}")
            return self.constant(data_type, value)
        if has_sizes(value):
            return constant(self, value, data_type)
        if isinstance(value, Sequence):
            value = np.array(value, dtypes.numpy_type(data_type))
        return self.constant(value)

    @hints.no_dictionaries
    def input(self, name: str, data_type: DataType, shape: Sequence[int | str | Size | Mapping[str, Any]]) -> MLOperand:
        """Declare an input of the graph (https://www.w3.org/TR/webnn/#api-mlgraphbuilder-input).

        Args:
            name: the name of the input in `dispatch` and `compute`; not empty. Inputs of one graph need different names.
            data_type: one of the eight data types of WebNN; with `drafts=True`, also bfloat16 and others.
            shape: dimensions, each in [1, 2**31 - 1]; `[]` for a scalar. In a context with `drafts=True`, dimensions may be 0,
                and a dimension that is known only when the graph runs has a name: the same name means the same size in the
                whole graph. `{"name": "n", "min_size": 1, "max_size": 4096}` says which sizes to expect.

        Raises:
            InvalidStateError: the graph is built, or the context lost.
            ValidationError: an empty name, an invalid data type or shape.

        >>> import opweave as ow
        >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
        >>> builder.input("x", "float32", [2, 3])
        <MLOperand float32[2, 3], input 'x'>

        >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
        >>> x = builder.input("x", "float32", ["batch", 3])
        >>> builder.concat([x, x], 0).shape
        (2*batch, 3)
        """
        require(isinstance(name, str), f"input: name must be a string, got {short_repr(name)}")
        try:
            hints_of_names: dict[str, SizeHint] = {}
            if self._takes_drafts:
                desc, hints_of_names = convert_named_desc(data_type, shape)
            else:
                desc = convert_desc(data_type, shape, self.takes_all_types)
            self._check_open()  # after the conversions, as in Web IDL
            require(name != "", "name must not be empty")
            check_desc(desc, self._max_byte_length, takes_empty=self.takes_empty)
        except ValidationError as error:
            raise ValidationError(f"input {name!r}: {error}") from None
        operand = self.inputs[name] = self._operand_type(self, desc, name=name)
        if not is_static(desc.shape):
            self.has_names = True
            self.size_hints |= hints_of_names
        return operand

    @overload
    def constant(self, data_type: DataType, shape: Sequence[int], buffer: Any, /) -> MLOperand: ...
    @overload
    def constant(self, data_type: DataType, value: Number, /) -> MLOperand: ...
    @overload
    def constant(self, tensor: MLTensor, /) -> MLOperand: ...
    @overload
    def constant(self, array: Any, /) -> MLOperand: ...
    @hints.no_dictionaries
    def constant(self, *args: Any) -> MLOperand:
        """Declare a constant (https://www.w3.org/TR/webnn/#api-mlgraphbuilder-constant). Four forms:

        - `constant("float32", [2, 3], buffer)`: an array of that data type and shape (or flat), or a buffer of that size;
        - `constant("float32", 0.5)`: a scalar, rounded and clamped to the data type;
        - `constant(tensor)`: a tensor of `context.create_constant_tensor`;
        - `constant(array)`: a NumPy array, or an object with DLPack, with its own data type and shape.

        C-contiguous arrays are kept by reference: do not change them, or the file of a memory-mapped array, until their
        graphs are destroyed or deleted. (On GPUs, a new graph reuses the copy that an earlier graph made.)

        Raises:
            InvalidStateError: the graph is built, or the context lost.
            ValidationError: data that do not fit, a tensor that is destroyed, not constant or of another context.

        >>> import numpy as np, opweave as ow
        >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
        >>> builder.constant("int32", [2], np.int32([1, 2])).desc
        Desc(data_type='int32', shape=(2,))
        >>> builder.constant("uint8", 300.7).value.item()
        255
        >>> builder.constant(np.zeros((2, 3), "float16"))
        <MLOperand float16[2, 3], constant>
        """
        try:
            match args:
                case (MLTensor() as tensor,):
                    self._check_open()
                    require(tensor.constant, f"the tensor {tensor.desc} was not made by create_constant_tensor")
                    return self._operand_type(self, tensor.desc, value=own_memory(self.context, tensor, "tensor"))
                case (str() as data_type, shape, buffer) if not isinstance(shape, (str, int)):
                    desc, array = convert_desc(data_type, shape, self.takes_all_types), as_array(buffer, "buffer")
                    self._check_open()  # after the conversions, as in Web IDL
                    check_desc(desc, self._max_byte_length, takes_empty=self.takes_empty)
                    return self._operand_type(
                        self, desc, value=constant_array(fit(unpack(array, desc), "buffer", desc))
                    )
                case (str() as data_type, (int() | float() | np.number()) as number) if not isinstance(number, bool):
                    checked = dtypes.check(data_type, self.takes_all_types)
                    self._check_open()
                    plain = number.item() if isinstance(number, np.number) else number
                    value = dtypes.cast_number(plain, checked)
                    array = np.array(value, dtypes.numpy_type(checked))
                    return self._operand_type(self, Desc(checked, ()), value=array)
                case (array,) if not isinstance(array, (str, bytes, bytearray, int, float)):
                    data = as_array(array, "array")
                    desc = describe(data, "array", self.takes_all_types)
                    self._check_open()
                    check_desc(desc, self._max_byte_length, takes_empty=self.takes_empty)
                    return self._operand_type(self, desc, value=constant_array(data))
            raise ValidationError(
                "takes (data_type, shape, buffer), (data_type, number), (tensor) or (array), "
                f"got ({', '.join(type(arg).__name__ for arg in args)})"
                f"{hints.of_operand(args[0]) if len(args) == 1 else ''}"
            )
        except ValidationError as error:
            raise ValidationError(f"constant: {error}") from None

    def subgraph(
        self,
        name: str,
        function: Callable[..., Any],
        operands: Sequence[MLOperand],
        *,
        config: Mapping[str, Any] | None = None,
        label: str = "",
    ) -> Any:
        """Add a call of a definition, a graph of operations with a name, which back ends may replace by one kernel.

        This is a draft (https://github.com/webmachinelearning/webnn/issues/907), for contexts with `drafts=True`.

        Args:
            name: says what the definition computes: letters, digits, "_", ".", ":" and "-". For the name of a composite
                (`opweave.composites`) with the same parameters and results, a back end with a kernel for the composite uses
                that kernel.
            function: the definition. It takes a builder, operands, and the config as keyword-only parameters, and returns an
                operand, or a tuple of them. It depends on no builder, so that it can be called again.
            operands: of this builder; arrays and numbers become constants.
            config: attributes by name: None, truth values, numbers, strings, lists, and dictionaries with strings as keys.
            label: names the call in messages, tables and drawings.

        Returns:
            The result, or a tuple of results.

        Raises:
            InvalidStateError: the graph is built, or the context lost.
            ValidationError: the context has no drafts; an invalid name, operand or config; an operation in the definition
                refuses its operands; the definition returns anything but operands of its builder.

        >>> import numpy as np, opweave as ow
        >>> def mish(b, x, *, beta=1.0):
        ...     return x * b.tanh(b.softplus(x * beta))
        >>> context = ow.ml.create_context(device="reference", drafts=True)
        >>> builder = ow.MLGraphBuilder(context)
        >>> y = builder.subgraph("mish", mish, [builder.input("x", "float32", [2])], config={"beta": 2.0})
        >>> graph = builder.build({"y": y})
        >>> print(context.compute(graph, {"x": np.float32([0, 1])})["y"].round(3))
        [0.    0.972]
        """
        self._check_open()
        require_drafts(self.context.drafts, "subgraph")
        from .subgraph import add_subgraph  # imported late, because it loads the composites

        options = {} if config is None else config
        return add_subgraph(self, self.context.backend, name, function, operands, options, label)

    def build(self, outputs: Mapping[str, MLOperand], *, fuse: bool = True, fallback: Fallback = "auto") -> MLGraph:
        """Compile the graph up to `outputs` (https://www.w3.org/TR/webnn/#api-mlgraphbuilder-build).

        Args:
            outputs: the results of the graph, by name. Inputs and constants cannot be outputs, but `identity` of them can.
            fuse: whether chains of element-wise operations become one loop where that is faster; requires the extra `halide`.
            fallback: "auto" runs operations that the device does not support on the CPU, with copies that `explain()` and
                the profile show; "error" makes them an error.

        Raises:
            InvalidStateError: the graph is built already, or the context lost.
            ValidationError: no outputs, an empty name, an operand that is not the result of an operation of this builder.
            NotSupportedError: no engine can run an operation, or with `fallback="error"` the device cannot.
            OperationError: the engine refuses the graph.

        >>> import opweave as ow
        >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
        >>> x = builder.input("x", "float32", [2])
        >>> builder.build({"y": x.relu(), "z": x.neg()})
        <MLGraph (x: float32[2]) -> (y: float32[2], z: float32[2]), 2 operations on reference>
        """
        require(fallback in ("auto", "error"), f"build: fallback must be 'auto' or 'error', got {short_repr(fallback)}")
        require(isinstance(outputs, Mapping), f"build: outputs must map names to operands, got {short_repr(outputs)}")
        for name, operand in outputs.items():
            require(isinstance(name, str), f"build: output names must be strings, got {short_repr(name)}")
            require(
                isinstance(operand, Operand), f"build: output {name!r} must be an operand, got {short_repr(operand)}"
            )
        self._check_open()  # after the conversions, as in Web IDL
        require(len(outputs) > 0, "build: outputs must not be empty")
        for name, operand in outputs.items():
            require(name != "", "build: output names must not be empty")
            require(
                operand.builder is self,
                f"build: output {name!r} is an operand of another builder: {short_repr(operand)}",
            )
            require(
                operand.node is not None,
                f"build: output {name!r} is not the result of an operation: {short_repr(operand)}",
            )
        graph = Graph.reaching(outputs)
        if self.has_names:
            from ..core.specialise import check_sizes  # graphs without names do without its imports

            try:
                check_sizes(graph)
            except ValidationError as error:
                raise ValidationError(f"build: {error}") from None
        context = self._close()
        if self.has_names:
            return MLGraph(DynamicGraphState(context, graph, partial(_compile, self._context, fuse, fallback), fuse))
        program = _compile(self._context, fuse, fallback, graph)
        built = MLGraph(GraphState(context, graph, program, fuse))
        if program.untried:
            state_of(built).watch()
        return built

    build_async = awaitable(build)

    def _close(self) -> MLContext:
        """End building, keep only a weak reference to the context, and return the context."""
        self._built = True
        context = self.context
        self._context = ref(context)  # operands and builder form a cycle, and stay until a garbage collection
        return context


class NamedBuilder(MLGraphBuilder):
    """A builder for Opweave's own graphs: takes names in shapes and all data types, without `drafts=True`."""

    def __init__(self, context: MLContext) -> None:
        super().__init__(context)
        self._takes_drafts = self.takes_empty = self.takes_all_types = True

    def close(self) -> None:
        """End building."""
        self._close()


def build_variants(variants: Sequence[tuple[Mapping[str, MLOperand], Guards]], fuse: bool = True) -> MLGraph:
    """Make one graph of several variants, one for each combination of answers to comparisons of sizes.

    Args:
        variants: the outputs of a new builder, and the answers for which its operations are valid. The inputs of all builders
            have the same names, data types and shapes. A run takes the first variant whose answers are right for its sizes.
        fuse: as for `MLGraphBuilder.build`.

    Raises:
        ValidationError: a variant has other inputs or outputs than the first one, or compares a size that no input has.

    >>> import numpy as np, opweave as ow
    >>> from opweave.core.guards import Guards
    >>> context, n, variants = ow.ml.create_context(device="reference"), ow.Size("n"), []
    >>> for count in 4, 5:
    ...     builder, guards = NamedBuilder(context), Guards({"n": count})
    ...     x = builder.input("x", "float32", [n])
    ...     with guards.deciding():
    ...         variants.append(({"y": x.neg() if n % 2 == 0 else x.relu()}, guards))
    >>> graph = build_variants(variants)
    >>> [context.compute(graph, {"x": np.float32([-1] * count)})["y"][0].item() for count in (6, 7)]
    [1.0, 0.0]
    """
    from ..core.size_values import variables_in
    from ..core.specialise import check_sizes

    is_output = all(
        outputs and all(operand.node is not None for operand in outputs.values()) for outputs, _ in variants
    )
    require(len(variants) > 0 and is_output, "outputs must be results of operations, one at least")
    graphs = [Graph.reaching(outputs) for outputs, _ in variants]
    first = graphs[0]
    for graph, (_, guards) in zip(graphs, variants, strict=True):
        check_sizes(graph)
        names = variables_in(tuple(operand.shape for operand in graph.inputs.values()))
        try:
            guards.hold({name: guards.sizes[name] for name in names})  # a run has no other sizes
        except KeyError as error:
            raise ValidationError(
                f"the answers are for the sizes {dict(guards.sizes)}, and the inputs {list(graph.inputs)} have "
                f"{sorted(map(str, names))}: {error.args[0]!r} is missing"
            ) from None
        is_same = [*graph.inputs] == [*first.inputs] and [*graph.outputs] == [*first.outputs]
        for name in first.inputs if is_same else ():
            is_same &= graph.inputs[name].desc == first.inputs[name].desc
        for name in first.outputs if is_same else ():
            one, other = graph.outputs[name].desc, first.outputs[name].desc
            is_same &= one.data_type == other.data_type and one.rank == other.rank
        require(is_same, f"inputs and outputs must be the same for all sizes, got {_ends(first)} and {_ends(graph)}")
    builders: list[Any] = [next(iter(outputs.values())).builder for outputs, _ in variants]
    context = builders[0].context
    for builder in builders:
        builder.close()
    guarded = [GraphVariant(graph, guards) for graph, (_, guards) in zip(graphs, variants, strict=True)]
    return MLGraph(DynamicGraphState(context, first, partial(_compile, ref(context), fuse, "auto"), fuse, guarded))


def _ends(graph: Graph) -> str:
    """The inputs and outputs of a graph, for messages."""
    return ", ".join(
        f"{name} {operand.desc}" for side in (graph.inputs, graph.outputs) for name, operand in side.items()
    )


def _compile(context_of: Callable[[], MLContext | None], fuse: bool, fallback: Fallback, graph: Graph) -> Program:
    from ..compile.driver import compile  # imported late, because it loads many modules

    context = context_of()
    assert context is not None  # the graph that is compiled keeps it
    with report_work(f"compiling a graph of {count_of(len(graph.nodes), 'operation')}"):
        return compile(
            graph,
            context.backend,
            device=context.device.name,
            power_preference=context.power_preference,
            fuse=fuse,
            fallback=fallback,
            shares_processors=context_state(context).shares_processors,
        )
