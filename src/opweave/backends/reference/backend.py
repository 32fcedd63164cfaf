"""The reference back end itself. Its rules are in the other modules of this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.casts import cast_array, compute_form
from ...core.dtypes import INFO, DataType, is_float, numpy_type
from ...core.graph import Desc, Graph, Node, Operand, iter_operands, map_operands
from ...core.specialise import node_at
from ...support.errors import OperationError, ValidationError
from .. import Backend, Device, How, PowerPreference, RuleFunction, Runner, Spinning

if TYPE_CHECKING:
    from ...core.operation import Op
    from ...expr.ir import Formula

Array = np.ndarray


class Reference(Backend):
    """Evaluates operations one by one with NumPy."""

    name = "reference"
    families = "opweave.backends.reference.rules.families"
    expressions = "numpy"
    computes = frozenset(INFO)

    def __init__(self) -> None:
        super().__init__()
        self._stored: set[Op[..., Any]] = set()

    def devices(self) -> list[Device]:
        text = f"NumPy {np.__version__}, float64 inside: slow and exact"
        return [Device("reference", "cpu", self.name, text, precisions=("float32", "ieee"), is_software=True)]

    def lower_stored(self, op: Op[..., Any]) -> Callable[[RuleFunction], RuleFunction]:
        """Register a rule that takes arrays in the data types of its operands, not in float64."""
        self._stored.add(op)
        return self.lower(op)

    def apply(self, functions: Mapping[Op[..., Any], Callable[..., Array]]) -> None:
        """Register functions as the rules of operations; a function takes operands by position and attributes by name."""
        for op, function in functions.items():
            self.lower(op)(_rule_of(function, op.operands))

    def compile(
        self, graph: Graph, *, device: str, power_preference: PowerPreference, spinning: Spinning = "short"
    ) -> _Interpreter:
        return _Interpreter(self, graph)

    def supports(self, node: Node) -> bool:
        if super().supports(node) or node.op.recurrence is not None:
            return True
        has_formula = node.op.formula is not None and not node.op.is_alternative
        if not has_formula or not node.has_further_types or any(INFO[o.data_type].is_narrow for o in node.operands):
            return False
        try:
            _formula_of(node)
        except ValidationError:  # a formula of bits, which knows the specification's data types only
            return False
        return True

    def evaluate(self, node: Node, arrays: Mapping[Operand, Array]) -> tuple[Array, ...]:
        """Run one node on arrays of the declared data types; an error if intermediate results do not fit into memory."""
        # Narrow values are moved as they are, also the bits of NaN; rules that compute with them take them so, too.
        is_raw = node.op in self._stored or any(INFO[operand.data_type].is_narrow for operand in node.operands)

        def widen(operand: Operand) -> Array:
            array = arrays[operand]
            return array if is_raw or INFO[operand.data_type].kind != "f" else compute_form(array).astype(np.float64)

        rule = self.rule(node)
        with np.errstate(all="ignore"):
            try:
                inputs = map_operands(node.inputs, widen)
                if rule is not None:
                    result = rule((), {**inputs, **node.attributes})
                elif node.op.recurrence is not None:
                    result = _compute_recurrence(node, inputs)
                else:
                    result = _compute_formula(node, inputs)
            except MemoryError as error:
                raise OperationError(f"{node.title}: there is not enough memory: {error}") from error
            results = result if isinstance(result, tuple) else (result,)
            rounded = tuple(cast_array(np.asarray(r), o.data_type) for r, o in zip(results, node.outputs, strict=True))
        for array, output in zip(rounded, node.outputs, strict=True):
            assert array.shape == output.shape, f"{node.title}: {array.shape} computed, {output.desc} declared"
        return rounded


_COMPUTED: Mapping[str, DataType] = {
    "float64": "float32", "bfloat16": "float32", "int16": "int32", "uint16": "uint32"
}  # fmt: skip
"""Data types beyond the specification -> those of the expressions that compute them."""


def _desc_for_formula(operand: Operand) -> Desc:
    return Desc(_COMPUTED.get(operand.data_type, operand.data_type), operand.shape)


def _formula_of(node: Node) -> Formula:
    from ...kernels.expression import program_of

    return program_of(node.op, map_operands(node.inputs, _desc_for_formula), node.attributes)


def _compute_formula(node: Node, inputs: Mapping[str, Any]) -> tuple[Array, ...]:
    """Evaluate the formula of an operation, with floats in float64: formulas know the specification's data types only."""
    from ...expr.evaluate import evaluate

    def array_of(operand: Any, array: Array) -> Array:
        return (
            array
            if array.dtype == np.float64
            else array.astype(numpy_type(_desc_for_formula(operand).data_type), copy=False)
        )

    program = _formula_of(node)
    arrays = [array_of(o, a) for o, a in zip(iter_operands(node.inputs), iter_operands(inputs), strict=True)]
    results = tuple(
        np.empty(o.desc.shape, np.float64 if is_float(o.desc.data_type) else o.desc.data_type) for o in program.outputs
    )
    evaluate(program, arrays, results, precision="float64")
    return results


def _compute_recurrence(node: Node, inputs: Mapping[str, Any]) -> tuple[Array, ...]:
    """Evaluate a recurrence, with floats in float64, also between steps."""
    from ...expr.recurrence import evaluate_recurrence
    from ...kernels.recurrence import recurrence_of

    results = tuple(
        np.empty(o.shape, np.float64 if is_float(o.data_type) else numpy_type(o.data_type)) for o in node.outputs
    )
    evaluate_recurrence(recurrence_of(node), list(iter_operands(inputs)), results, precision="float64")
    return results


def _rule_of(function: Callable[..., Array], operands: Sequence[str]) -> Callable[..., Array]:
    def rule(**arguments: Any) -> Array:
        return function(*[arguments.pop(name) for name in operands], **arguments)

    return rule


class _Interpreter(Runner):
    def __init__(self, backend: Reference, graph: Graph, sizes: Mapping[str, int] = MappingProxyType({})) -> None:
        self.backend, self.graph, self.sizes = backend, graph, sizes

    def at(self, sizes: Mapping[str, int]) -> _Interpreter:
        return _Interpreter(self.backend, self.graph, sizes)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        return partial(self.run, inputs, outputs)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        graph = self.graph
        arrays: dict[Operand, Array] = dict(zip(graph.inputs.values(), inputs, strict=True))
        last_use = {operand: node for node in graph.nodes for operand in node.operands}
        kept = set(graph.outputs.values())
        for node in graph.nodes:
            arrays.update((c, c.value) for c in node.operands if c.is_constant)
            sized, values = self._with_numbers(node, arrays)
            arrays.update(zip(node.outputs, self.backend.evaluate(sized, values), strict=True))
            for operand in {*node.operands, *node.outputs}:
                if last_use.get(operand, node) is node and operand not in kept:
                    del arrays[operand]
        for operand, output in zip(graph.outputs.values(), outputs, strict=True):
            np.copyto(output, arrays[operand], casting="no")

    def _with_numbers(self, node: Node, arrays: Mapping[Operand, Array]) -> tuple[Node, Mapping[Operand, Array]]:
        """A node with numbers in place of sizes, and the arrays of its operands."""
        if not self.sizes:
            return node, arrays
        sized = node_at(node, self.sizes)
        pairs = zip(sized.operands, node.operands, strict=True)
        return sized, {copy: arrays[operand] for copy, operand in pairs}

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        return ("native" if len(nodes) == 1 else "decomposed"), "NumPy"


reference = Reference()
