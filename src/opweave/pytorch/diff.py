"""`opweave.diff` for modules of PyTorch: each operation against the value that PyTorch computed at the same node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch._ops import HigherOrderOperator
from torch.utils import _pytree

from .. import memory
from ..context.context import MLContext, ml
from ..context.graph import recorded_graph
from ..core.graph import Desc, Graph, MLOperand, Node, Operand, add_node
from ..custom.operation import CustomOp
from ..inspect.diff.compare import SLICE_NODES, Progress
from ..inspect.diff.measure import Error, Values, error
from ..inspect.diff.places import Side, context_of
from ..inspect.diff.result import Difference, OperationDifference, OutputDifference, Read
from ..inspect.diff.tolerance import Tolerance, scale_of, tolerance_of
from ..inspect.drawing.picture import named_operands
from ..memory.arrays import contiguous
from ..ops.recorder import Recorder
from ..support.errors import ValidationError, require
from ..support.names import count_of, short_repr
from ..support.progress import report_work
from .labels import label_of
from .module import CompiledModule, runner_of
from .program import ConvertedProgram, convert_program, state_of_input
from .runner import ModuleRunner, export_module
from .sizes import numbers_of
from .tensors import array_of
from .views import is_mutable

ENGINE = "PyTorch"
SNAPSHOT = "values to compare, before the module writes to them"
"""The reason of copies, for the counter."""
PASSED_THROUGH = frozenset({"wrap_with_set_grad_enabled", "wrap_with_autocast"})
"""Blocks whose nodes are compared one by one."""


def diff_torch(model: Any, other: Any, inputs: Any, on: Any, tolerance: float, progress: Progress | None) -> Difference:
    """See `opweave.diff`."""
    is_number = isinstance(tolerance, (int, float)) and not isinstance(tolerance, bool)
    require(is_number and tolerance >= 0, f"diff: tolerance must be a number from 0 on, got {short_repr(tolerance)}")
    module, runner = _sides(model, other, inputs, on)
    args, kwargs = _arguments(runner, inputs)
    comparison = ProgramComparison(module, runner, args, kwargs, tolerance)
    with report_work(f"comparing {count_of(comparison.count, 'operation')}"):
        comparison.run(progress or (lambda done, count, title: None))
    return comparison.result()


def _sides(model: Any, other: Any, inputs: Any, on: Any) -> tuple[Any, ModuleRunner]:
    """The module whose parameters PyTorch uses, or None if it uses the program's, and the runner to compare."""
    if isinstance(model, CompiledModule) and not isinstance(other, CompiledModule):
        model, other = other, model
    if other is None:
        is_program = isinstance(model, torch.export.ExportedProgram)
        args, kwargs = ((), {}) if is_program or inputs is None else _call_arguments(inputs)
        program, names = export_module(model, args, kwargs, None)
        context = context_of(on) if on is not None else ml.create_context()
        return model if isinstance(model, torch.nn.Module) else None, ModuleRunner(program, context, names)
    require(
        isinstance(other, CompiledModule),
        f"diff: a module of PyTorch is compared with a result of from_torch, got {short_repr(other)}",
    )
    require(on is None, "diff: a result of from_torch runs in its own context; leave out on=")
    return model if isinstance(model, torch.nn.Module) else None, runner_of(other)


def _arguments(runner: ModuleRunner, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if inputs is None:
        example = runner.program.example_inputs
        require(example is not None, "diff: the program has no example arguments; pass inputs=")
        return tuple(example[0]), dict(example[1] or {})
    return _call_arguments(inputs)


def _call_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments that the argument `inputs` of `diff` stands for."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    require(
        isinstance(inputs, (tuple, list)),
        f"diff: inputs must be a tuple of arguments, or a mapping of keyword arguments, got {short_repr(inputs)}",
    )
    return tuple(inputs), {}


class _TorchValues(torch.fx.Interpreter):  # type: ignore[misc]  # (PyTorch has no types here)
    """Runs a program in PyTorch, and keeps the value of each node."""

    def __init__(self, module: Any, values: dict[Any, Any], copies: bool) -> None:
        super().__init__(module)
        self.values, self.copies = values, copies

    def run_node(self, node: Any) -> Any:
        """Run a node, and keep its value."""
        value = super().run_node(node)
        if node.op == "call_function":
            self.values.setdefault(node, _pytree.tree_map(_snapshot, value) if self.copies else value)
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run a block's own nodes where these are compared."""
        if isinstance(target, HigherOrderOperator) and target.name() in PASSED_THROUGH:
            position = next(k for k, value in enumerate(args) if isinstance(value, torch.fx.GraphModule))
            return _TorchValues(args[position], self.values, self.copies).run(*args[position + 1 :])
        return super().call_function(target, args, kwargs)


@cache
def _operator(name: str) -> CustomOp[Any]:
    """An operation that represents an operator of PyTorch in the report."""

    def operator(self: Any, inputs: Sequence[MLOperand]) -> tuple[Desc, ...]:
        """Compute an operator of PyTorch."""
        raise NotImplementedError

    operator.__name__ = name
    return CustomOp(operator, operator, skip=1, limits={}, annotated=True)


def name_of(node: Any) -> str:
    """The short name of an operator: "linear" for aten.linear.default; other libraries' keep theirs, as in "example.snake"."""
    namespace, _, rest = str(node.target).partition(".")
    name = rest.partition(".")[0] or namespace
    return name if namespace in ("aten", "prims") else f"{namespace}.{name}" if rest else namespace


class _ProgramRegion:
    """The operations to which one node of the program was converted.

    Attributes:
        node: the node of the program.
        outputs: its results, without those that are results of an earlier node, too.
        nodes: the operations that compute `outputs` from inputs and the results of earlier nodes.
        reads: the inputs and the results of earlier nodes that the operations read.
    """

    def __init__(self, node: Any, outputs: Sequence[Operand], boundary: Mapping[Operand, Any]) -> None:
        self.node, self.outputs = node, list(outputs)
        self.reads: list[Operand] = []
        nodes: dict[Node, None] = {}
        pending = list(outputs)
        while pending:
            operand = pending.pop()
            if operand in boundary:
                if operand not in self.reads:
                    self.reads.append(operand)
            elif (producer := operand.node) is not None and producer not in nodes:
                nodes[producer] = None
                pending += producer.operands
        self.nodes = sorted(nodes, key=lambda operation: operation.serial)

    @property
    def title(self) -> str:
        """The name of the operator, and its label."""
        return f"{name_of(self.node)} {label_of(self.node)!r}"


class ProgramComparison:
    """A comparison of a graph with PyTorch, region by region."""

    def __init__(
        self, module: Any, runner: ModuleRunner, args: tuple[Any, ...], kwargs: dict[str, Any], tolerance: float
    ) -> None:
        self.module, self.program, self.context = module, runner.program, runner.context
        self.factor = 2 * tolerance  # PyTorch's values have rounding errors, too
        leaves = [_as_tensor(leaf) for leaf in runner.flatten("diff", args, kwargs)]
        runner.check("diff", leaves)
        self.converted: ConvertedProgram = convert_program(
            runner.program, runner.context, runner.names, numbers=numbers_of(runner.program, leaves)
        )
        if self.converted.graph is None:
            raise ValidationError("diff: the module computes nothing from its arguments")
        self.graph = recorded_graph(self.converted.graph)
        self.values, self.inputs = _run_torch(runner.program, module, leaves, set(self.graph.inputs))
        self.side = Side(self.context, self.graph)
        self.rows_to_compute, self.expected = self._regions()
        self._rows: list[OperationDifference] = []
        self._got: dict[Operand, np.ndarray] = {o: self.expected[o] for o in self.graph.inputs.values()}
        self.whole: Mapping[str, np.ndarray] = {}

    @property
    def count(self) -> int:
        """The number of operations to compare."""
        return len(self.rows_to_compute)

    def _regions(self) -> tuple[list[_ProgramRegion], dict[Operand, np.ndarray]]:
        """The regions to compare, in order, and PyTorch's value of each operand."""
        expected: dict[Operand, np.ndarray] = {o: self.inputs[name] for name, o in self.graph.inputs.items()}
        computed = {output for node in self.graph.nodes for output in node.outputs}
        regions = []
        for node, value in self.values.items():
            operands = self.converted.operands.get(node, ())
            tensors = value if isinstance(value, (tuple, list)) else (value,)
            if len(operands) != len(tensors) or not all(isinstance(item, torch.Tensor) for item in tensors):
                continue
            pairs = {
                o: _array(t) for o, t in zip(operands, tensors, strict=True) if o in computed and o not in expected
            }
            if pairs:
                regions.append(_ProgramRegion(node, list(pairs), expected))
                expected |= pairs
        return regions, expected

    def run(self, progress: Progress) -> None:
        """Compare all regions, and the outputs of the whole graph."""
        regions, rows, got = self.rows_to_compute, self._rows, self._got
        engines = self._run_whole()
        for start in range(0, len(regions), SLICE_NODES):
            part = regions[start : start + SLICE_NODES]
            progress(start, len(regions), part[0].title)
            own = self.side.run_parts([(region.nodes, region.outputs) for region in part], self.expected)
            new = dict.fromkeys(node for region in part for node in region.nodes if node.outputs[0] not in got)
            self.side.step(sorted(new, key=lambda node: node.serial), got)
            for number, region in enumerate(part, start):
                rows.append(self._row(number, region, own, got, engines))
        progress(len(regions), len(regions), "the whole graph")

    def result(self) -> Difference:
        """The result so far."""
        report = _ProgramReport(self.graph, self.rows_to_compute)
        title = f"program of {type(self.module).__name__}" if self.module is not None else "program"
        outputs = tuple(self._outputs(self._got))
        return Difference(self.side.title, ENGINE, tuple(self._rows), outputs, self.count, title, report.graph)

    def _run_whole(self) -> dict[Node, str]:
        """Run the whole graph, keep its results in `whole`, and return the engine of each operation."""
        compiled = self.side.compile_graph(self.graph)
        try:
            placements = compiled.placements()
            feed = {name: self.expected[operand] for name, operand in self.graph.inputs.items()}
            self.whole = MLContext.compute(self.context, compiled, feed)
        finally:
            compiled.destroy()
        return {
            node: f"{p.how} on {p.device}: {p.detail}" for node, p in zip(self.graph.nodes, placements, strict=True)
        }

    def _row(
        self,
        number: int,
        region: _ProgramRegion,
        own: Mapping[Operand, np.ndarray],
        got: Mapping[Operand, np.ndarray],
        engines: Mapping[Node, str],
    ) -> OperationDifference:
        allowed = self._tolerance(region)
        reads = [
            Read(f"inputs[{k}]", str(o.desc), Values.of(self.expected[o]), False) for k, o in enumerate(region.reads)
        ]
        sizes = {o: read.values.size for o, read in zip(region.reads, reads, strict=True)}
        for node in region.nodes:
            for name, operand in named_operands(node.inputs):
                if operand.is_constant and operand not in sizes:
                    values = Values.of(operand.value)
                    sizes[operand] = values.size
                    reads.append(Read(name, str(operand.desc), values, True))
        scale = max((self._scale(node, sizes) for node in region.nodes), default=0.0)
        errors: list[tuple[Error, Error, Values, Operand]] = []
        for output in region.outputs:
            expected = self.expected[output]
            values = Values.of(expected)
            mine = error(own[output], expected, values, scale, allowed)
            errors.append((mine, error(got[output], expected, values, scale), values, output))
        mine, total, values, output = max(errors, key=lambda entry: entry[0].ratio)
        runs = ", ".join(dict.fromkeys(engines[node] for node in region.nodes))
        return OperationDifference(
            number, region.title, str(output.desc), tuple(reads), str(allowed), mine, total, values, (), "", runs
        )

    def _tolerance(self, region: _ProgramRegion) -> Tolerance:
        """The tolerance of a region: errors of its operations add up."""
        parts = [tolerance_of(node, self.side.precision, self.factor) for node in region.nodes]
        return Tolerance(
            sum(part.ulp for part in parts),
            sum(part.absolute for part in parts),
            sum(part.near_zero for part in parts),
            max(part.rounding for part in parts),
            max(part.terms for part in parts),
            self.factor,
        )

    def _scale(self, node: Node, sizes: Mapping[Operand, float]) -> float:
        return scale_of(node, {name: sizes.get(operand, 0.0) for name, operand in named_operands(node.inputs)})

    def _outputs(self, got: Mapping[Operand, np.ndarray]) -> list[OutputDifference]:
        outputs = []
        for name, operand in self.graph.outputs.items():
            if name in self.whole and operand in self.expected and operand in got:
                whole, expected, steps = self.whole[name], self.expected[operand], got[operand]
                total, by_step = error(whole, expected, Values.of(expected)), error(whole, steps, Values.of(steps))
                outputs.append(OutputDifference(name, total, by_step))
        return outputs


class _ProgramReport:
    """The program as a graph for the report, with one node for each region."""

    def __init__(self, graph: Graph, regions: Sequence[_ProgramRegion]) -> None:
        recorder = Recorder()
        shown: dict[Operand, Operand] = {}
        for name, operand in graph.inputs.items():
            shown[operand] = recorder.inputs[name] = Operand(recorder, operand.desc, name=name)
        nodes = []
        for region in regions:
            reads = tuple(shown[operand] for operand in region.reads)
            descs = tuple(output.desc for output in region.outputs)
            op, label = _operator(name_of(region.node)), label_of(region.node)
            results = add_node(recorder, op, {"inputs": reads}, {}, label, descs)
            shown.update(zip(region.outputs, results, strict=True))
            assert results[0].node is not None
            nodes.append(results[0].node)
        ends = {name: shown[operand] for name, operand in graph.outputs.items() if operand in shown}
        self.graph = Graph(dict(recorder.inputs), ends, tuple(nodes))


def _as_tensor(value: Any) -> Any:
    return torch.from_numpy(np.asarray(value)) if isinstance(value, np.ndarray) else value


def _array(tensor: Any) -> np.ndarray:
    return contiguous(array_of(tensor))


def _snapshot(value: Any) -> Any:
    """Copy a tensor, so that later writes do not change it; return other values unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    memory.copies.add(value.numel() * value.element_size(), SNAPSHOT)
    return value.detach().clone()


def _run_torch(
    program: Any, module: Any, leaves: Sequence[Any], inputs: set[str]
) -> tuple[dict[Any, Any], dict[str, np.ndarray]]:
    """Run a program in PyTorch. Return the value of each node, and the graph's inputs by name, as they were before the run."""
    state: dict[str, Any] = {}
    if module is not None:
        state |= dict(module.named_parameters(remove_duplicate=False))
        state |= dict(module.named_buffers(remove_duplicate=False))
    arguments, arrays = [], {}
    rest = iter(leaves)
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            value = _snapshot(next(rest))
        else:
            value = state[spec.target] if spec.target in state else state_of_input(program, spec)
            value = _snapshot(value) if spec.arg.name in inputs else value
        if spec.arg.name in inputs:
            arrays[spec.arg.name] = memory.copied(_array(value), SNAPSHOT)
        arguments.append(value)
    copies = any(is_mutable(node.target) for part in program.graph_module.modules() for node in part.graph.nodes)
    values: dict[Any, Any] = {}
    with torch.no_grad():
        _TorchValues(program.graph_module, values, copies).run(*arguments)
    return values, arrays
