"""Compare a graph on two sides, operation by operation: each on the same inputs (its own error), and end to end.

The graph is worked through in slices: a few operations are compiled as one graph that has all of their results as outputs. So
nothing is compiled for each operation, and memory holds the intermediates of a slice and what later ones read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...backends import Precision
from ...backends.reference import reference
from ...dtypes import FLOATS
from ...graph import Node, Operand, each
from ...names import counted
from ..drawing.picture import is_built_in
from .measure import Error, Values, error
from .pairs import changes, corresponding, named
from .places import Side
from .result import Difference, OperationDifference, OutputDifference, Read, Verdict
from .tolerance import LINEAR, UNIT, scale_of, tolerance_of

SLICE_NODES = 16
"""Maximum operations of a slice: few enough to show progress."""
SLICE_BYTES = 256 << 20
"""Maximum bytes of the results of a slice, unless one operation alone makes more. Memory holds three times as much: the
results of both sides, and those on equal inputs."""

Progress = Callable[[int, int, str], object]
"""Called with the number of operations that are done, of all, and the title of the next one."""


class Comparison:
    """A comparison while it goes on.

    Args:
        a: the side that is examined.
        b: what it is compared with; a graph of the same structure.
        inputs: the arrays of the inputs of `a`, by name.
        factor: all tolerances are multiplied by it.
        title: what is compared.

    Raises:
        ValidationError: the graphs differ in structure.
    """

    def __init__(
        self, a: Side, b: Side, inputs: Mapping[str, np.ndarray], factor: float = 1.0, title: str = "graph"
    ) -> None:
        self.a, self.b, self.title = a, b, title
        # The reference is exact; of two engines, either may be off.
        self.factor = factor if reference.name in (a.backend.name, b.backend.name) else 2 * factor
        self.pair = corresponding(a.graph, b.graph)
        self.inputs = [inputs[name] for name in a.graph.inputs]
        self.precision: Precision = max(a.precision, b.precision, key=UNIT.__getitem__)
        self.rows: list[OperationDifference] = []
        self.outputs: tuple[OutputDifference, ...] = ()

    def run(self, progress: Progress = lambda done, count, title: None) -> Difference:
        """Compare all; after an interruption, `result` has what was done."""
        a, b = self.a, self.b
        runs = self._runs()
        got: dict[Operand, np.ndarray] = dict(zip(a.graph.inputs.values(), self.inputs, strict=True))
        expected = {self.pair[operand]: _as(array, self.pair[operand]) for operand, array in got.items()}
        last_use = {operand: number for number, node in enumerate(a.nodes) for operand in node.operands}
        kept = {*a.graph.outputs.values()}
        start = 0
        for size in self._sizes():
            progress(start, len(a.nodes), a.nodes[start].title)
            mine, theirs = a.nodes[start : start + size], b.nodes[start : start + size]
            b.step(theirs, expected)
            a.step(mine, got)
            read = dict.fromkeys(operand for node in mine for operand in node.operands if not operand.is_constant)
            own = a.alone(mine, {operand: _as(expected[self.pair[operand]], operand) for operand in read})
            for number, (node, other) in enumerate(zip(mine, theirs, strict=True), start):
                self.rows.append(self._row(number, node, other, own, got, expected, runs[number]))
            start += size
            for operand in [*got]:
                if last_use.get(operand, -1) < start and operand not in kept:
                    del got[operand], expected[self.pair[operand]]
        progress(start, len(a.nodes), "the whole graph")
        self.outputs = tuple(self._outputs(got, expected))
        return self.result()

    def result(self) -> Difference:
        """What has been found so far."""
        a, b = self.a, self.b
        return Difference(a.title, b.title, tuple(self.rows), self.outputs, len(a.nodes), self.title, a.graph)

    def _sizes(self) -> Iterator[int]:
        """The numbers of operations of the slices."""
        count = total = 0
        for node in self.a.nodes:
            size = sum(output.desc.byte_length for output in node.outputs)
            if count and (count == SLICE_NODES or total + size > SLICE_BYTES):
                yield count
                count = total = 0
            count, total = count + 1, total + size
        yield count

    def _runs(self) -> list[str]:
        """Run the graph of the examined side as a whole, and keep its outputs; what runs each of its operations."""
        compiled = self.a.compiled(self.a.graph)
        try:
            placements = compiled.placements()
            feed = dict(zip(self.a.graph.inputs, self.inputs, strict=True))
            self.whole = self.a.context.compute(compiled, feed)
        finally:
            compiled.destroy()
        return [f"{placement.how} on {placement.device}: {placement.detail}" for placement in placements]

    def _outputs(
        self, got: Mapping[Operand, np.ndarray], expected: Mapping[Operand, np.ndarray]
    ) -> Iterator[OutputDifference]:
        for name, operand in self.a.graph.outputs.items():
            whole, wanted, steps = self.whole[name], expected[self.pair[operand]], got[operand]
            yield OutputDifference(name, error(whole, wanted, Values.of(wanted)), error(whole, steps, Values.of(steps)))

    def _row(
        self,
        number: int,
        node: Node,
        other: Node,
        own: Mapping[Operand, np.ndarray],
        got: Mapping[Operand, np.ndarray],
        expected: Mapping[Operand, np.ndarray],
        runs: str,
    ) -> OperationDifference:
        is_mixed = any(a.data_type != b.data_type for a, b in zip(node.operands, other.operands, strict=True))
        coarser = node if node.outputs[0].data_type == "float16" else other
        tolerance = tolerance_of(coarser, "float16" if is_mixed else self.precision, self.factor)
        reads = tuple(
            Read(
                name,
                str(operand.desc),
                Values.of(operand.value if operand.is_constant else expected[operand]),
                operand.is_constant,
            )
            for name, operand in named(other)
        )
        scale = scale_of(node, {read.name: read.values.size for read in reads})
        found: list[tuple[Error, Error, Values, Operand]] = []
        overflow = ""
        for output, counterpart in zip(node.outputs, other.outputs, strict=True):
            wanted = expected[counterpart]
            values = Values.of(wanted)
            mine = error(own[output], wanted, values, scale, tolerance)
            if mine.beyond and (magnitudes := _magnitudes(other, expected)) is not None:
                mine = error(own[output], wanted, values, scale, tolerance, magnitudes)
            found.append((mine, error(got[output], wanted, values, scale), values, output))
            overflow = overflow or _overflow(other, own[output], wanted, expected, reads)
        mine, total, values, output = max(found, key=lambda each: each[0].ratio)
        changed = tuple(changes(node, other))
        verdict: Verdict = "overflow" if overflow else "differs" if mine.beyond else "changed" if changed else "ok"
        return OperationDifference(
            number,
            node.title,
            str(output.desc),
            reads,
            str(tolerance),
            mine,
            total,
            values,
            changed,
            overflow,
            verdict,
            runs,
        )


def _as(array: np.ndarray, operand: Operand) -> np.ndarray:
    """An array in the data type of an operand, for the other side."""
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
    """The results of a node in float64, not rounded; `prepare` is applied to each operand."""

    def widen(operand: Operand) -> np.ndarray:
        array = operand.value if operand.is_constant else values[operand]
        return prepare(array.astype(np.float64)) if array.dtype.kind == "f" else array

    rule = reference.rule(node)
    assert rule is not None, node
    with np.errstate(all="ignore"):
        made = rule((), {**each(node.inputs, widen), **node.attributes})
    return [np.asarray(result) for result in (made if isinstance(made, tuple) else (made,))]


HALF_MAX = float(np.finfo(np.float16).max)


def _overflow(
    node: Node, got: np.ndarray, expected: np.ndarray, values: Mapping[Operand, np.ndarray], reads: Sequence[Read]
) -> str:
    """How many elements are too large for float16, as text; empty if none is, or if inputs are infinite already.

    Args:
        node: the node on the side that is compared with.
        got: the result of the other side, on the same inputs.
        expected: the result of this side.
        values: the inputs of the node.
        reads: what is in them.
    """
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
    return f"{counted(count, 'element')} of {got.size:,} beyond {HALF_MAX:,.0f}: up to {largest:.6g}"
