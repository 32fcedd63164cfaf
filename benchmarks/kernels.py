"""ONNX Runtime's kernels against compiled expressions: `python -m benchmarks kernels` writes which operations run as loops.

Each operation, and each composite, that has both is computed by both, at several sizes and on the same threads. What the table
of src/opweave/compile/winners.txt gets is a clear and lasting gain that pays for leaving the engine: see `won`. All
measurements go to docs/kernels.md. With names of operations (`python -m benchmarks kernels gemm`) it measures these, prints
the measurements, and writes only their lines of the table.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

import opweave as ow
from opweave import composites, ops
from opweave.backends import discover
from opweave.compile.driver import compile
from opweave.compile.winners import PATH, Winner, elements, form, min_gain
from opweave.core.graph import Graph, Node
from opweave.core.operation import Op
from opweave.expr import kernels
from opweave.kernels.expression import descs_of, program_of

from .measure import Ratio, alternate
from .page import DOCS, Table, machine, replace_part, versions

SHAPES = ((1, 16, 8, 8), (1, 32, 16, 16), (1, 64, 32, 32), (1, 64, 128, 128), (1, 64, 256, 256))
"""Shapes of the operands, by size."""

MATRICES = (*SHAPES, (1, 64, 512, 512), (1, 36, 1024, 1024))
"""The same for matrix products, whose constant matrix has this size: the last two, 64 and 144 MiB, fit into no cache."""

PAIRS, SECONDS, PAUSE_SECONDS = 5, 0.01, 0.03
"""How often each pair is measured, for how long, and after which pause: threads of bound sessions spin for 2 ms."""

PRODUCT_SECONDS = 0.15
"""The same for matrix products: the bandwidth of the memory, which limits them, takes longer to settle."""

COLD_BYTES = 2**28
"""Several large matrices, of this size together, are read in turn: in a network, too, others displace one from the caches."""

MIN_COLD_BYTES = 2**24
"""Smaller matrices are read again and again."""

MIN_SAVED_SECONDS = 1e-4
"""What a loop must save at each run: more than the ways from the engine to the loop and back, of 5 to 20 us each, and enough
for the 0.3 s in which it is compiled."""

ENGINE = "onnxruntime"

FORMS = {
    "last": "last axis",
    "other": "other axis",
    "row": "one row, transposed matrix",
    "zeros": "linear, images between zeros",
    **{mode: f"{mode}, reflected" for mode in ("linear", "nearest", "cubic")},
}
"""What the table of docs/kernels.md calls the forms of calls."""


@dataclass(frozen=True)
class Measurement:
    """Seconds of one operation, by the engine's kernel and as a loop, at one size.

    Attributes:
        op: the name of the operation.
        form: see `winners.form`.
        data_type: of its last operand.
        elements: the size of its operands.
        kernel: the median time of the engine's kernel.
        loop: the median time of the compiled expression.
        gain: the ratio of the two.
    """

    op: str
    form: str
    data_type: str
    elements: int
    kernel: float
    loop: float
    gain: Ratio


def operations() -> list[Op[..., Any]]:
    """The operations that have a formula, and rules of the engine.

    Not `identity`, which the engine removes, nor poolings of regions, whose formulas skip no elements outside.
    """
    others = {ops.identity, composites.roi_align, composites.max_roi_pool}
    return [op for op in discover()[ENGINE].rules if op.formula is not None and op not in others]


ATTRIBUTES: dict[str, dict[str, Any]] = {
    "cast": {"data_type": "int32"},
    "clamp": {"min_value": 0.3, "max_value": 0.6},
    "local_response_normalization": {"size": 5},
    "gemm": {"b_transpose": True},
}
"""Attributes of operations that need some."""

LEAST = {"acosh": 1.0}
"""Smallest operand of operations that give NaN for others, which their kernels may compute faster; else 0."""


def calls(op: Op[..., Any]) -> list[dict[str, Any]]:
    """The attributes of the calls that are measured: along the last axis and another one, where an operation takes axes."""
    if op is composites.grid_sample:
        modes = ("linear", "nearest", "cubic")
        return [{"mode": "linear"}, *({"mode": mode, "padding_mode": "reflection"} for mode in modes)]
    for name in {"axis", "axes"} & set(op.attributes):
        return [{name: axis if name == "axis" else [axis]} for axis in (3, 1)]
    return [ATTRIBUTES.get(op.name, {})]


def nodes_of(context: ow.MLContext, op: Op[..., Any], attributes: dict[str, Any], shape: Sequence[int]) -> list[Node]:
    """A call of an operation on operands of one shape, float32 where it takes that.

    Of `gemm` on one row and a constant; if that is large, several calls, with a matrix each.
    """
    builder = ow.MLGraphBuilder(context)
    if op is ops.gemm:
        size = math.prod(shape)
        columns = 2 ** (size.bit_length() // 2)
        row = builder.input("a", "float32", [1, size // columns])
        copies = math.ceil(COLD_BYTES / (4 * size)) if 4 * size >= MIN_COLD_BYTES else 1
        rng = np.random.default_rng(0)
        matrices = [rng.random((columns, size // columns), "float32") for _ in range(copies)]
        return [builder.gemm(row, builder.constant(matrix), **attributes).node for matrix in matrices]  # type: ignore[misc]
    if op is composites.grid_sample:
        batches, _, height, width = shape
        x = builder.input("input", "float32", list(shape))
        grid = builder.input("grid", "float32", [batches, height, width, 2])
        return [composites.grid_sample(x, grid, **attributes).node]  # type: ignore[list-item]
    operands: dict[str, ow.MLOperand] = {}
    for name in op.operands:
        if name not in op.defaults:
            types = op.limits[name].data_types
            same = operands[types].data_type if isinstance(types, str) else None
            operands[name] = builder.input(name, same or ("float32" if "float32" in types else "uint8"), list(shape))
    node: Node = op.add(builder, tuple(operands.values()), attributes).node
    return [node]


def measure(context: ow.MLContext, nodes: Sequence[Node]) -> Measurement:
    """Measure a node, or several that are alike, as one graph and as loops; times are those of one.

    Raises:
        AssertionError: the results differ.
    """
    rng = np.random.default_rng(0)
    first = nodes[0]
    feed: dict[str, np.ndarray] = {}
    for operand in first.operands:
        if operand.is_constant:
            continue
        numbers = rng.random(operand.shape) * 0.8 + 0.1 + LEAST.get(first.op.name, 0.0)
        feed[operand.name] = (numbers.round() if operand.data_type == "uint8" else numbers).astype(operand.data_type)
    graph = Graph.reaching({f"y{k}": node.outputs[0] for k, node in enumerate(nodes)})
    desc = first.outputs[0].desc
    results = [[np.empty(desc.shape, desc.data_type) for _ in nodes] for _ in range(2)]
    program = compile(graph, context.backend, device="cpu", power_preference="default", fuse=False)
    loop = kernels.compile(program_of(first.op, descs_of(first.inputs), first.attributes), "halide")
    loops = [
        loop.bind([o.value if o.is_constant else feed[o.name] for o in node.operands], [result])
        for node, result in zip(nodes, results[1], strict=True)
    ]

    def all_loops() -> None:
        for run in loops:
            run()

    ways = {
        "kernel": program.bind([feed[name] for name in graph.inputs], results[0]),
        "loop": loops[0] if len(loops) == 1 else all_loops,
    }
    seconds = PRODUCT_SECONDS if first.op is ops.gemm else SECONDS
    times = alternate(ways, pairs=PAIRS, seconds=seconds, pause=PAUSE_SECONDS)
    for kernels_result, loops_result in zip(*results, strict=True):
        np.testing.assert_allclose(loops_result, kernels_result, rtol=1e-4, atol=1e-5, err_msg=first.op.name)
    gain = Ratio.of(times["kernel"], times["loop"])
    *_, last = first.operands
    what = first.op.name, form(first), last.data_type, elements(first) or 0
    return Measurement(*what, median(times["kernel"]) / len(nodes), median(times["loop"]) / len(nodes), gain)


def won(measured: Sequence[Measurement]) -> Winner | None:
    """What the table gets of an operation's measurements: the size from which on each is a gain that pays; None if none does.

    Args:
        measured: of one operation and form, by size.
    """
    found = None
    for m in reversed(measured):
        if m.gain.low < min_gain(m.op) or m.kernel - m.loop < MIN_SAVED_SECONDS:
            break
        found = m
    if found is None:
        return None
    return Winner(ENGINE, found.op, found.form, found.data_type, found.elements, round(found.gain.median, 1))


def main(names: Annotated[list[str] | None, typer.Argument(help="operations; default: all")] = None) -> None:
    """Measure ONNX Runtime's kernels against compiled expressions; write the table of winners, and that of docs/kernels.md."""
    if not kernels.has_halide():
        raise typer.BadParameter("this needs the extra halide")
    context = ow.ml.create_context(device="cpu", backend=ENGINE)
    measured_ops = operations()
    if unknown := set(names or ()) - {op.name for op in measured_ops}:
        raise typer.BadParameter(f"there are not both a kernel and an expression of {', '.join(sorted(unknown))}")
    cases = [(op, attributes) for op in measured_ops if not names or op.name in names for attributes in calls(op)]
    found: list[Winner] = []
    rows: list[list[str]] = []
    for number, (op, attributes) in enumerate(cases, 1):
        measured = [
            measure(context, nodes_of(context, op, attributes, shape))
            for shape in (MATRICES if op is ops.gemm else SHAPES)
        ]
        winner = won(measured)
        if winner is not None:
            found.append(winner)
        cells = [f"{m.kernel * 1e6:.0f}, {m.loop * 1e6:.0f}, {m.gain}" for m in measured]
        name = op.name + ("" if measured[0].form == "any" else f", {FORMS[measured[0].form]}")
        cells += [""] * (len(MATRICES) - len(cells))
        rows.append([f"`{op.name}`" + name[len(op.name) :], *cells, f"{winner.elements:,}" if winner else ""])
        print(f"{number} of {len(cases)}:", *rows[-1], sep="  ", file=sys.stderr, flush=True)
    on = f"{machine()}, {versions('halide').partition(', ')[2]}"
    by = f"# Made by `python -m benchmarks kernels{''.join(f' {name}' for name in names or ())}`"
    made = [f"{by} on: {on}."]
    made += [" ".join(map(str, astuple(winner))) for winner in found]
    if names:
        lines = Path(PATH).read_text(encoding="utf-8").splitlines()
        made = [line for line in lines if not line.startswith(by) and line.split()[1] not in names] + made
    Path(PATH).write_text("\n".join([*made, ""]), encoding="utf-8")
    if not names:
        header = ["Operation", *(f"{math.prod(shape):,}" for shape in MATRICES), "Loop from"]
        note = (
            f"Made by `python -m benchmarks kernels` on: {on}. Microseconds of the kernel, of the loop, and the gain."
        )
        replace_part(DOCS / "kernels.md", f"{note}\n\n{Table(header, rows)}")
