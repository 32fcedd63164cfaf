"""Compare a graph on two sides, operation by operation: each on the same inputs (its own error), and end to end.

Graphs are compared in slices of a few operations. This saves a compilation for each operation, and memory holds only the
intermediates of a slice and the values that later slices read.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from ...backends import Precision
from ...backends.reference import reference
from ...core.dtypes import FLOATS
from ...core.graph import Node, Operand, map_operands
from ...support.names import count_of
from ..drawing.picture import is_built_in, named_operands
from .fallback import FALLBACK_RUNS, onnx_node
from .measure import Error, Values, error
from .pairs import changes, match_graphs
from .places import Side
from .result import Difference, OperationDifference, OutputDifference, Read
from .tolerance import LINEAR, UNIT, scale_of, tolerance_of

SLICE_NODES = 16
"""Maximum operations of a slice: few enough to show progress."""
SLICE_BYTES = 256 << 20
"""Maximum bytes of the results of a slice, unless one operation alone makes more. Memory holds three times as much: the
results of both sides, and those on equal inputs."""

Progress = Callable[[int, int, str], object]
"""Called with the number of operations that are done, of all, and the title of the next one."""


class Comparison:
    """A comparison in progress: the examined side `a`, and a graph of the same structure on side `b`."""

    def __init__(
        self, a: Side, b: Side, inputs: Mapping[str, np.ndarray], factor: float = 1.0, title: str = "graph"
    ) -> None:
        self.a, self.b, self.title = a, b, title
        # The reference is exact; of two engines, either may be off.
        self.factor = factor if reference.name in (a.backend.name, b.backend.name) else 2 * factor
        pairs = match_graphs(a.graph, b.graph)
        self.pair, self.steps = pairs.operands, pairs.steps
        self.inputs = [inputs[name] for name in a.graph.inputs]
        self.precision: Precision = max(a.precision, b.precision, key=UNIT.__getitem__)
        self.rows: list[OperationDifference] = []
        self.outputs: tuple[OutputDifference, ...] = ()

    def run(self, progress: Progress = lambda done, count, title: None) -> Difference:
        """Compare all operations; after an interruption, `result` has the rows so far."""
        a, b = self.a, self.b
        runs = self._runs()
        got: dict[Operand, np.ndarray] = dict(zip(a.graph.inputs.values(), self.inputs, strict=True))
        expected = {self.pair[operand]: _as(array, self.pair[operand]) for operand, array in got.items()}
        last_use = self._last_uses()
        start = 0
        for size in self._sizes():
            done = len(self.rows)
            steps = self.steps[start : start + size]
            mine = [node for node, _ in steps if node is not None]
            theirs = [node for _, node in steps if node is not None]
            progress(done, len(a.nodes), a.nodes[min(done, len(a.nodes) - 1)].title)
            b.step(theirs, expected)
            a.step(mine, got)
            own = a.run_alone(mine, {operand: _as(expected[self.pair[operand]], operand) for operand in _reads(mine)})
            wanted = self._expected_results(steps, expected)
            for node, other in steps:
                number = len(self.rows)
                if node is not None and other is not None:
                    self.rows.append(self._row(number, node, other, own, wanted, got, expected, runs[number]))
                elif node is not None:
                    self.rows.append(self._conversion_row(number, node, own, got, expected, runs[number]))
            start += size
            for values in (got, expected):
                for operand in [*values]:
                    if last_use[operand] < start:
                        del values[operand]
        progress(len(a.nodes), len(a.nodes), "the whole graph")
        self.outputs = tuple(self._outputs(got, expected))
        return self.result()

    def result(self) -> Difference:
        """The result so far."""
        a, b = self.a, self.b
        return Difference(a.title, b.title, tuple(self.rows), self.outputs, len(a.nodes), self.title, a.graph)

    def _expected_results(
        self, steps: Sequence[tuple[Node | None, Node | None]], expected: Mapping[Operand, np.ndarray]
    ) -> Mapping[Operand, np.ndarray]:
        """Results of the second graph's operations one by one, each on the operands of the first graph's operation.

        On the reference, these are the results of the step. Engines fuse operations, and a fused operation does not read the
        results of others. Operands in float16 are rounded, which matters if the result is sensitive to them (log near 0).
        """
        results: dict[Operand, np.ndarray] = {}
        pairs = [(node, other) for node, other in steps if node is not None and other is not None]
        mixed = [(node, other) for node, other in pairs if _is_mixed(node, other)]
        rounded = {
            counterpart: _as(_as(expected[counterpart], operand), counterpart)
            for node, other in mixed
            for operand, counterpart in zip(node.operands, other.operands, strict=True)
            if not counterpart.is_constant
        }
        results.update(self.b.run_alone([other for _, other in mixed], rounded))
        if self.b.backend is not reference:
            rest = [other for _, other in pairs if other.outputs[0] not in results]
            results.update(self.b.run_alone(rest, {operand: expected[operand] for operand in _reads(rest)}))
        return ChainMap(results, cast("dict[Operand, np.ndarray]", expected))

    def _sizes(self) -> Iterator[int]:
        """Yield the number of operations of each slice."""
        count = total = 0
        for node, other in self.steps:
            size = max(sum(out.desc.byte_length for out in twin.outputs) for twin in (node, other) if twin is not None)
            if count and (count == SLICE_NODES or total + size > SLICE_BYTES):
                yield count
                count = total = 0
            count, total = count + 1, total + size
        yield count

    def _last_uses(self) -> dict[Operand, float]:
        """The last step that reads or computes each operand of both graphs; infinite for outputs."""
        last_use: dict[Operand, float] = {}
        for number, nodes in enumerate(self.steps):
            for node in filter(None, nodes):
                last_use.update(dict.fromkeys([*node.operands, *node.outputs], number))
        for operand in self.a.graph.outputs.values():
            last_use[operand] = math.inf
        for operand, counterpart in self.pair.items():
            last_use[counterpart] = max(last_use.get(counterpart, -1), last_use.setdefault(operand, -1))
        return last_use

    def _runs(self) -> list[str]:
        """Run the examined graph as a whole, and keep its outputs; return what runs each operation."""
        compiled = self.a.compile_graph(self.a.graph)
        try:
            placements = compiled.placements()
            feed = dict(zip(self.a.graph.inputs, self.inputs, strict=True))
            self.whole = self.a.context.compute(compiled, feed)
        finally:
            compiled.destroy()
        return [
            FALLBACK_RUNS if node.op is onnx_node else f"{placement.how} on {placement.device}: {placement.detail}"
            for node, placement in zip(self.a.nodes, placements, strict=True)
        ]

    def _outputs(
        self, got: Mapping[Operand, np.ndarray], expected: Mapping[Operand, np.ndarray]
    ) -> Iterator[OutputDifference]:
        for name, operand in self.a.graph.outputs.items():
            whole, wanted, steps = self.whole[name], expected[self.pair[operand]], got[operand]
            yield OutputDifference(name, error(whole, wanted, Values.of(wanted)), error(whole, steps, Values.of(steps)))

    def _conversion_row(
        self,
        number: int,
        node: Node,
        own: Mapping[Operand, np.ndarray],
        got: Mapping[Operand, np.ndarray],
        expected: Mapping[Operand, np.ndarray],
        runs: str,
    ) -> OperationDifference:
        """The row of a conversion that the other graph lacks: compared with the operand, rounded to float16."""
        (output,) = node.outputs
        whole = expected[self.pair[output]]
        with np.errstate(over="ignore"):
            rounded = whole.astype(np.float16)
        values = Values.of(whole)
        reads = tuple(Read(name, str(operand.desc), values, False) for name, operand in named_operands(node.inputs))
        tolerance = tolerance_of(node, self.precision, self.factor)
        mine, total = error(own[output], rounded, values, 0, tolerance), error(got[output], whole, values)
        overflow = _overflow(node, own[output], whole, expected, reads)
        return OperationDifference(
            number, node.title, str(output.desc), reads, str(tolerance), mine, total, values, (), overflow, runs
        )

    def _row(
        self,
        number: int,
        node: Node,
        other: Node,
        own: Mapping[Operand, np.ndarray],
        wanted: Mapping[Operand, np.ndarray],
        got: Mapping[Operand, np.ndarray],
        expected: Mapping[Operand, np.ndarray],
        runs: str,
    ) -> OperationDifference:
        is_mixed = _is_mixed(node, other)
        coarser = node if node.outputs[0].data_type == "float16" else other
        tolerance = tolerance_of(coarser, "float16" if is_mixed else self.precision, self.factor)
        reads = tuple(
            Read(
                name,
                str(operand.desc),
                Values.of(operand.value if operand.is_constant else expected[operand]),
                operand.is_constant,
            )
            for name, operand in named_operands(other.inputs)
        )
        scale = scale_of(node, {read.name: read.values.size for read in reads})
        errors: list[tuple[Error, Error, Values, Operand]] = []
        overflow = ""
        for output, counterpart in zip(node.outputs, other.outputs, strict=True):
            values = Values.of(wanted[counterpart])
            mine = error(own[output], wanted[counterpart], values, scale, tolerance)
            if mine.beyond and (magnitudes := _magnitudes(other, expected)) is not None:
                mine = error(own[output], wanted[counterpart], values, scale, tolerance, magnitudes)
            total = error(got[output], expected[counterpart], Values.of(expected[counterpart]), scale)
            errors.append((mine, total, values, output))
            overflow = overflow or _overflow(other, own[output], wanted[counterpart], expected, reads)
        mine, total, values, output = max(errors, key=lambda entry: entry[0].ratio)
        changed = tuple(changes(node, other))
        return OperationDifference(
            number, node.title, str(output.desc), reads, str(tolerance), mine, total, values, changed, overflow, runs
        )


def _is_mixed(node: Node, other: Node) -> bool:
    """Whether two corresponding nodes read different data types."""
    return any(a.data_type != b.data_type for a, b in zip(node.operands, other.operands, strict=True))


def _reads(nodes: Sequence[Node]) -> list[Operand]:
    return list(dict.fromkeys(operand for node in nodes for operand in node.operands if not operand.is_constant))


def _as(array: np.ndarray, operand: Operand) -> np.ndarray:
    """Convert an array to the data type of an operand of the other side."""
    with np.errstate(over="ignore"):
        return array if array.dtype == operand.data_type else array.astype(operand.data_type)


def _magnitudes(node: Node, values: Mapping[Operand, np.ndarray]) -> np.ndarray | None:
    """For each element of the result of a sum, the sum of the magnitudes of its terms; None for other operations."""
    if node.op.name not in LINEAR or not is_built_in(node) or node.outputs[0].data_type not in FLOATS:
        return None
    magnitudes: np.ndarray = np.abs(_in_float64(node, values, np.abs)[0])
    return magnitudes


def _in_float64(
    node: Node, values: Mapping[Operand, np.ndarray], prepare: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> list[np.ndarray]:
    """Compute a node in float64, without rounding the results; `prepare` is applied to each operand."""

    def widen(operand: Operand) -> np.ndarray:
        array = operand.value if operand.is_constant else values[operand]
        return prepare(array.astype(np.float64)) if array.dtype.kind == "f" else array

    rule = reference.rule(node)
    assert rule is not None, node
    with np.errstate(all="ignore"):
        results = rule((), {**map_operands(node.inputs, widen), **node.attributes})
    return [np.asarray(result) for result in (results if isinstance(results, tuple) else (results,))]


HALF_MAX = float(np.finfo(np.float16).max)


def _overflow(
    node: Node, got: np.ndarray, expected: np.ndarray, values: Mapping[Operand, np.ndarray], reads: Sequence[Read]
) -> str:
    """Count elements that are too large for float16, as text; empty if there are none, or if inputs are infinite."""
    if got.dtype.kind != "f" or bool(np.isfinite(got).all()):
        return ""
    bad = ~np.isfinite(got)
    wide: Any = expected
    if expected.dtype == np.float16:  # it may overflow on both sides
        if any(read.values.nans or read.values.infinities for read in reads) or not reference.supports(node):
            return ""
        wide = next((a for a in _in_float64(node, values) if a.shape == expected.shape), expected)
    lost = bad & np.isfinite(wide) & (np.abs(wide.astype(np.float64)) > HALF_MAX)
    count = int(lost.sum())
    if not count:
        return ""
    largest = float(np.abs(wide[lost].astype(np.float64)).max())
    return f"{count_of(count, 'element')} of {got.size:,} beyond {HALF_MAX:,.0f}: up to {largest:.6g}"
