"""Exported programs: their inputs, outputs, parameters and buffers, and the graph that they become."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from ..context.context import MLContext
from ..context.graph import MLGraph
from ..core.graph import Graph, MLOperand
from ..core.size_values import variables_in
from ..core.sizes import Size
from ..support.errors import NotSupportedError
from .convert import FallbackCall, LabellingBuilder, ProgramConversion
from .guards import SizeRules
from .sizes import SizeNames
from .tensors import Span, data_type_of, merge_spans, require_dense, shape_of, share_elements, span_of
from .views import leaves_of, replay, roots_of, written_arguments_of


@dataclass
class ProgramInput:
    """An input of the graph: an argument of the module, or a buffer that the module writes to.

    Attributes:
        name: the name in the graph.
        position: of an argument, its position among the flattened arguments; None for a buffer.
        buffer: the memory of a buffer, which the module shares; None for an argument.
        dtype: PyTorch's data type.
    """

    name: str
    position: int | None
    buffer: Any
    dtype: Any


@dataclass
class ProgramOutput:
    """A result of the module: an output of the graph by name, an argument that is returned as it is, or a value.

    Attributes:
        name: the output of the graph; empty for others.
        position: of an argument that is returned, its position among the flattened arguments; else None.
        value: the value of any other result: a number, a size, or a tensor that is always the same.
        dtype: PyTorch's data type.
        is_shared: whether the tensor in `value` is a parameter or a buffer; otherwise each call returns a copy.
        view: the node of a view, which `ConvertedProgram.results_of` makes from `sources`; else None.
        order: axes of a result with views, the one with the largest stride first, if they are out of order; else None.
    """

    name: str
    position: int | None
    value: Any
    dtype: Any
    is_shared: bool = False
    view: Any = None
    order: tuple[int, ...] | None = None

    def constant(self) -> Any:
        """The value that a call returns."""
        return self.value.clone() if isinstance(self.value, torch.Tensor) and not self.is_shared else self.value


@dataclass
class ConvertedProgram:
    """A program as a graph.

    Attributes:
        graph: the graph; None if nothing is computed.
        inputs: the inputs of the graph, in order, and those that it writes to without reading them.
        outputs: the results of the module, in order, flattened.
        writes: output of the graph -> the input whose memory gets it: a buffer, or an argument that the module writes to.
        constants: position of an argument that is no tensor -> its value when the program was exported.
        arguments: the names of the flattened arguments.
        fallbacks: calls that PyTorch runs.
        operands: node of the program -> the operands that it became, for comparisons.
        rules: the rules for sizes of arguments.
        state: the memory of parameters and buffers that are constants of the graph.
        sources: node that views are made from -> its position among the arguments, the tensor of a parameter or buffer, or the
            output of a result.
    """

    graph: MLGraph | None
    inputs: list[ProgramInput]
    outputs: list[ProgramOutput]
    writes: dict[str, str]
    constants: dict[int, Any]
    arguments: list[str]
    fallbacks: list[FallbackCall]
    rules: SizeRules
    state: list[Span]
    operands: dict[Any, tuple[MLOperand, ...]] = field(default_factory=dict)
    sources: dict[Any, Any] = field(default_factory=dict)

    @property
    def computed(self) -> list[ProgramOutput]:
        """The outputs, and the results that only views of them are made from."""
        return [*self.outputs, *(source for source in self.sources.values() if isinstance(source, ProgramOutput))]

    def results_of(self, leaves: Sequence[Any], result_of: Callable[[ProgramOutput], Any]) -> list[Any]:
        """The results of a call with flattened arguments: views by PyTorch, and others by `result_of`."""

        def tensor_of_source(source: Any) -> Any:
            if isinstance(source, int):
                return leaves[source]
            if not isinstance(source, ProgramOutput):
                return source
            result = result_of(source)
            if source.order is None:
                return result
            inverse = [source.order.index(axis) for axis in range(len(source.order))]
            return result.permute(source.order).contiguous().permute(inverse)

        values = {node: tensor_of_source(source) for node, source in self.sources.items()}
        return [result_of(output) if output.view is None else replay(output.view, values) for output in self.outputs]


def convert_program(
    program: Any,
    context: MLContext,
    names: dict[tuple[str, int], str],
    *,
    fallback: str = "auto",
    numbers: Mapping[str, int] | None = None,
    shares: bool = False,
) -> ConvertedProgram:
    """Convert an exported program to a graph of a context.

    `names` are the names of dimensions, by input and axis; `numbers` are those of PyTorch's symbols, for a static graph. With
    `shares`, `ConvertedProgram.results_of` makes views of arguments and results in place of the graph.
    """
    exported, program = program, _without_vmap(program)
    signature = program.graph_signature
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    builder = LabellingBuilder(context)
    sizes = SizeNames(numbers)
    written = written_inputs(program)
    state = _state_spans(program, placeholders, written)
    inputs: list[ProgramInput] = []
    values: list[Any] = []
    constants: dict[int, Any] = {}
    arguments: list[str] = []
    later: list[tuple[int, Any]] = []
    for spec in signature.input_specs:
        name = spec.arg.name
        node = placeholders[name]
        meta = node.meta.get("val")
        position = None
        if spec.kind == InputKind.USER_INPUT:
            position = len(arguments)
            arguments.append(name)
            if not isinstance(meta, torch.Tensor):
                if isinstance(meta, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                    later.append((len(values), meta))
                    values.append(None)
                else:
                    constants[position] = getattr(spec.arg, "value", meta)
                    values.append(constants[position])
                continue
            tensor = None
        else:
            tensor = state_of_input(program, spec)
            if not isinstance(tensor, torch.Tensor):  # an object of TorchScript, or a token
                raise NotSupportedError(f"from_torch: {name} is a {type(tensor).__name__}, and graphs take tensors")
            if name not in written:
                values.append(tensor)
                continue
        subject = f"from_torch: input {name!r}"
        data_type = data_type_of(meta.dtype, subject)
        require_dense(meta, subject)
        operand = builder.input(name, data_type, _declare(name, shape_of(meta), sizes, names))
        inputs.append(ProgramInput(name, position, tensor, meta.dtype))
        values.append(operand)
    operands = {item.position: builder.inputs[item.name] for item in inputs if item.position is not None}
    rules = SizeRules(exported, arguments)
    builder.size_rules = rules.on(operands)
    for rule in builder.size_rules:
        if not rule.names:  # `numbers` are in place of all names
            rule.check("from_torch", {})
    for index, size in later:
        subject = f"from_torch: input {signature.input_specs[index].arg.name!r}"
        try:
            values[index] = sizes.size_of(size, subject)
        except NotSupportedError as error:
            raise NotSupportedError(
                f"{error}; leave the integer out of dynamic_shapes, for a graph of the example's value, or pass a tensor of "
                "this size, and take its shape"
            ) from None
    conversion = ProgramConversion(builder, sizes, takes_fallback=fallback == "auto")
    results, final = conversion.run(program.graph_module, values)
    builder.label = ""
    ends = _Ends(program, conversion, inputs, values, constants, arguments, rules, state, shares=shares)
    return ends.build(list(results), final)


def _without_vmap(program: Any) -> Any:
    """The program with operators in place of `torch.vmap`, of which exported programs keep the calls.

    `torch.associative_scan` is written out by it: the elements of each half are combined at once.
    """
    module = "torch._functorch.predispatch"
    if not any(getattr(node.target, "__module__", None) == module for node in program.graph.nodes):
        return program
    return program.run_decompositions({})


def written_inputs(program: Any) -> set[str]:
    """Names of the inputs that a program writes to: buffers and arguments."""
    signature = program.graph_signature
    by_target = {spec.target: spec.arg.name for spec in signature.input_specs if spec.target is not None}
    names = {node.name for node in written_arguments_of(program.graph_module)}
    for spec in signature.output_specs:  # a program without operators that write returns new values instead
        if spec.kind == OutputKind.BUFFER_MUTATION:
            names.add(by_target[spec.target])
        elif spec.kind == OutputKind.USER_INPUT_MUTATION:
            names.add(spec.target)
    return names


def _state_spans(program: Any, placeholders: Mapping[str, Any], written: set[str]) -> list[Span]:
    """The memory of the parameters and buffers that a program reads and does not write to.

    Raises:
        NotSupportedError: the program writes to a buffer that shares memory with another one, or with a parameter.
    """
    state = {
        spec.arg.name: tensor
        for spec in program.graph_signature.input_specs
        if spec.kind != InputKind.USER_INPUT
        and placeholders[spec.arg.name].users
        and isinstance(tensor := state_of_input(program, spec), torch.Tensor)
    }
    for target in written & state.keys():
        for name, tensor in state.items():
            if name != target and share_elements(tensor, state[target]):
                raise NotSupportedError(
                    f"from_torch: the module writes to {target!r}, which shares memory with {name!r}, and graphs keep the two "
                    "apart; let the module use one of them, or make a copy (clone) of one"
                )
    return merge_spans(span_of(tensor) for name, tensor in state.items() if name not in written)


def state_of_input(program: Any, spec: Any) -> Any:
    """The tensor of a parameter, buffer or constant."""
    for table in (program.state_dict, program.constants):
        if spec.target in table:
            return table[spec.target]
    return getattr(program, "tensor_constants", {}).get(spec.target)


def _declare(name: str, shape: Sequence[Any], sizes: SizeNames, names: dict[tuple[str, int], str]) -> list[Any]:
    """The shape of an input: a symbol becomes a name, the user's if there is one."""
    declared: list[Any] = []
    for axis, size in enumerate(shape):
        if isinstance(size, int):
            declared.append(size)
            continue
        expression = size.node.expr
        if not expression.is_Symbol:
            if expression.is_Integer:
                declared.append(int(expression))
                continue
            raise NotSupportedError(
                f"from_torch: dimension {axis} of {name!r} is {expression}, a formula of another dimension; give it a Dim of "
                "its own in dynamic_shapes"
            )
        if expression.name not in sizes.values:
            sizes.values[expression.name] = Size(names.get((name, axis), str(expression)))
        value = sizes.values[expression.name]
        declared.append(value.name if isinstance(value, Size) else value)
    return declared


class _Ends:
    """Makes the outputs of the graph."""

    def __init__(
        self,
        program: Any,
        conversion: ProgramConversion,
        inputs: list[ProgramInput],
        values: list[Any],
        constants: dict[int, Any],
        arguments: list[str],
        rules: SizeRules,
        state: list[Span],
        *,
        shares: bool,
    ) -> None:
        self.program, self.conversion, self.inputs, self.values = program, conversion, inputs, values
        self.constants, self.arguments, self.rules = constants, arguments, rules
        self.state, self.shares = state, shares
        self.ends: dict[str, MLOperand] = {}
        # Name of an output -> the node whose memory it has in PyTorch.
        self._owners: dict[str, Any] = {}
        self._sources: dict[Any, Any] = {}

    def build(self, results: list[Any], final: Mapping[Any, Any]) -> ConvertedProgram:
        signature, conversion = self.program.graph_signature, self.conversion
        specs = signature.output_specs
        nodes = _output_nodes(self.program)
        roots = roots_of(self.program.graph_module)
        views: set[Any] = self._views(nodes, roots, final) if self.shares else set()
        placeholders = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        writes: dict[str, str] = {}
        outputs: list[ProgramOutput] = []
        by_target = {spec.target: spec.arg.name for spec in signature.input_specs if spec.target is not None}
        for spec, value, node in zip(specs, results, nodes, strict=True):
            root = roots.get(node, node)
            if spec.kind == OutputKind.BUFFER_MUTATION:
                self._write(writes, value, by_target[spec.target], root)
            elif spec.kind == OutputKind.USER_INPUT_MUTATION:
                self._write(writes, value, spec.target, root)
            elif spec.kind == OutputKind.USER_OUTPUT:
                if node in views:
                    outputs.append(ProgramOutput("", None, None, node.meta["val"].dtype, view=node))
                else:
                    outputs.append(self._output(value, node, spec.arg.name, root))
            else:
                raise NotSupportedError(f"from_torch: the program returns {spec.kind.name}: export it for inference")
        named = {item.name: item for item in self.inputs}
        for spec, value in zip(signature.input_specs, self.values, strict=True):
            last = final[placeholders[spec.arg.name]]
            if last is not value and spec.arg.name in named:
                self._write(writes, last, spec.arg.name, placeholders[spec.arg.name])
        hidden = shapes_needed(conversion.builder, self.ends) if self.ends else {}
        graph = conversion.builder.build(self.ends | hidden) if self.ends else None
        names = {*writes.values(), *(graph.inputs if graph is not None else named)}
        inputs = [item for item in self.inputs if item.name in names]
        return ConvertedProgram(
            graph,
            inputs,
            outputs,
            writes,
            self.constants,
            self.arguments,
            conversion.fallbacks,
            self.rules,
            self.state,
            conversion.operands,
            self._sources,
        )

    def _views(self, nodes: list[Any], roots: dict[Any, Any], final: Mapping[Any, Any]) -> set[Any]:
        """The outputs that share memory with arguments or other outputs; record what they are views of."""
        leaves_by_node = leaves_of(self.program.graph_module, roots)
        leaves = {
            node: leaves_by_node[node]
            for spec, node in zip(self.program.graph_signature.output_specs, nodes, strict=True)
            if spec.kind == OutputKind.USER_OUTPUT and isinstance(getattr(node, "meta", {}).get("val"), torch.Tensor)
        }
        positions = count()
        arguments = {
            spec.arg.name: next(positions) if spec.kind == InputKind.USER_INPUT else state_of_input(self.program, spec)
            for spec in self.program.graph_signature.input_specs
        }
        bases = {leaf for node, group in leaves.items() if group != {node} for leaf in group}
        views = {node for node, group in leaves.items() if group != {node} or node in bases or node.op == "placeholder"}
        # In the order of the program, so that equal programs become equal graphs.
        used = {leaf for node in views for leaf in leaves[node]}
        for leaf in self.program.graph.nodes:
            if leaf in used:
                is_argument = leaf.op == "placeholder"
                self._sources[leaf] = arguments[leaf.name] if is_argument else self._source(final[leaf], leaf)
        return views

    def _source(self, value: Any, node: Any) -> ProgramOutput:
        """The output of a result that others are views of."""
        output = self._output(value, node, node.name, node)
        meta = node.meta["val"]
        if not meta.is_contiguous():
            output.order = tuple(sorted(range(meta.dim()), key=lambda axis: -meta.stride(axis)))
        return output

    def _output(self, value: Any, node: Any, name: str, root: Any) -> ProgramOutput:
        if isinstance(value, (MLOperand, torch.Tensor)):
            dtype = node.meta["val"].dtype
            is_argument = root.op == "placeholder"
            if isinstance(value, MLOperand) and value.is_input and is_argument:
                for item in self.inputs:
                    if item.name == value.name == root.name and item.position is not None and item.dtype is dtype:
                        return ProgramOutput("", item.position, None, dtype)
            if isinstance(value, torch.Tensor):
                is_shared = is_argument or root.op == "get_attr"
                return ProgramOutput("", None, value.detach(), dtype, is_shared=is_shared)
            return ProgramOutput(self._end(value, name, root), None, None, dtype)
        return ProgramOutput("", None, value, None)

    def _write(self, writes: dict[str, str], value: Any, target: str, root: Any) -> None:
        """Add an output of the graph that is written to an input; each output is written to one."""
        name = self._end(value, target, root)
        if name in writes:
            name = self._end(self.conversion.builder.identity(self.conversion.operand_of(value)), target, root)
        writes[name] = target

    def _end(self, value: Any, name: str, root: Any) -> str:
        """Add an output of the graph, unless another one has its memory in PyTorch; return its name."""
        operand = self.conversion.operand_of(value)
        is_new = operand.node is not None
        for other, end in self.ends.items():
            if end is operand:
                if self._owners[other] is root:
                    return other
                is_new = False
        while name in self.ends:
            name += "_"
        self.ends[name] = operand if is_new else self.conversion.builder.identity(operand)
        self._owners[name] = root
        return name


def shapes_needed(builder: LabellingBuilder, ends: dict[str, MLOperand]) -> dict[str, MLOperand]:
    """More outputs, with the shapes of inputs of which nothing but their shape is used: a graph leaves such inputs out."""
    if not builder.has_names:
        return {}
    graph = Graph.reaching(ends)
    available = variables_in(tuple(operand.shape for operand in graph.inputs.values()))
    needed = variables_in(tuple(tuple(node.attributes.values()) for node in graph.nodes))
    shapes: dict[str, MLOperand] = {}
    for name, operand in builder.inputs.items():
        own = variables_in(operand.shape)
        if own & needed - available:
            shapes[f"shape of {name}"] = builder.shape(operand)
            available |= own
    return shapes


def _output_nodes(program: Any) -> list[Any]:
    """The nodes that a program returns, flattened."""
    (output,) = [node for node in program.graph.nodes if node.op == "output"]
    return list(output.args[0])
