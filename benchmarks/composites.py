"""Kernels for composites against their parts, and ONNX nodes that become composites against ONNX Runtime.

`python -m benchmarks composites` writes the table of docs/composites.md. With names of ONNX operators (`python -m benchmarks
composites DFT Resize`), or with --nodes, it prints rows of nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

import opweave as ow
from opweave import composites
from opweave.compile.driver import compile
from opweave.compile.legalise import legalise
from opweave.core.graph import Graph, Node, Operand
from opweave.lazy.custom_call import CustomOp

from .composite_nodes import cases as node_cases, measure as compare
from .measure import Ratio, alternate
from .page import DOCS, Table, machine, replace_part


@dataclass(frozen=True)
class Case:
    """A call whose operands are described as data type and shape; arrays are constants of the graph."""

    op: CustomOp[Any]
    operands: tuple[Any, ...]
    options: dict[str, Any]
    size: str

    def graph(self) -> tuple[Graph, dict[str, np.ndarray]]:
        """The call as a graph, and what to feed it."""
        builder, feed = ow.MLGraphBuilder(context()), dict[str, np.ndarray]()

        def operand(value: Any) -> Any:
            if not isinstance(value, tuple):
                return value
            name = f"x{len(feed)}"
            feed[name] = random(*value)
            return builder.input(name, value[0], value[1])

        result = self.op(builder, *map(operand, self.operands), **self.options)
        results: tuple[Operand, ...] = result if isinstance(result, tuple) else (result,)
        return Graph.reaching({f"y{k}": r for k, r in enumerate(results)}), feed


@cache
def context() -> ow.MLContext:
    return ow.ml.create_context(device="cpu")


def random(data_type: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(data_type)


def single(*shape: int) -> tuple[str, tuple[int, ...]]:
    return "float32", shape


def packed(bits: int, accuracy: str = "float32") -> Case:
    rng = np.random.default_rng(0)
    weight = composites.pack_bits(rng.integers(0, 2**bits, (4096, 128, 32)), bits=bits)
    scale = (rng.random((4096, 128)) / 100).astype("float32")
    size = f"1x4096 by 4096x4096 of {bits} bits, accuracy {accuracy}"
    return Case(composites.matmul_n_bits, (single(1, 4096), weight, scale), {"bits": bits, "accuracy": accuracy}, size)


def cases() -> list[Case]:
    tokens, vector = single(1, 512, 768), random(*single(768))
    table = random(*single(512, 32))
    q, kv = single(1, 1, 1024), single(1, 1, 256)
    past = single(1, 4, 1024, 64)
    return [
        Case(composites.quick_gelu, (single(512, 3072),), {}, "512x3072"),
        Case(composites.fast_gelu, (single(512, 3072), random(*single(3072))), {}, "512x3072 and bias"),
        Case(composites.rms_norm, (tokens, vector), {}, "512x768"),
        Case(composites.skip_rms_norm, (tokens, tokens, vector), {}, "512x768"),
        Case(composites.log_softmax, (single(64, 50000),), {}, "64x50000"),
        Case(composites.hard_max, (single(64, 50000),), {}, "64x50000"),
        Case(composites.top_k, (single(64, 256), 8), {}, "8 of 64x256"),
        Case(composites.top_k, (single(1, 50000), 40), {}, "40 of 50000"),
        Case(composites.depth_to_space, (single(1, 64, 128, 128), 2), {}, "64x128x128 by 2"),
        Case(composites.space_to_depth, (single(1, 16, 256, 256), 2), {}, "16x256x256 by 2"),
        Case(composites.rotary_embedding, (single(1, 16, 512, 64), table, table), {}, "16 heads, 512x64"),
        Case(composites.scaled_dot_product_attention, (single(1, 12, 1024, 64),) * 3, {}, "12 heads, 1024x64"),
        Case(composites.scaled_dot_product_attention, (single(1, 12, 2048, 64),) * 3, {}, "12 heads, 2048x64"),
        Case(composites.multi_head_attention, (tokens,) * 3, {"heads": 12}, "12 heads, 512x64"),
        Case(composites.multi_head_attention, (single(1, 2048, 768),) * 3, {"heads": 12}, "12 heads, 2048x64"),
        Case(
            composites.group_query_attention,
            (q, kv, kv, past, past, np.full(1, 1000, "int32")),
            {"heads": 16, "groups": 4},
            "1 token, 1000 before, 16 heads in 4 groups of 64",
        ),
        packed(4),
        packed(4, "int8"),
        packed(8, "int8"),
    ]


def runner(graph: Graph, feed: dict[str, np.ndarray], supports: Callable[[Node], bool]) -> Callable[[], None]:
    """The graph in its own memory."""
    program = compile(
        legalise(graph, supports)[0], context().backend, device="cpu", power_preference="default", fuse=False
    )
    outputs = {name: np.empty(operand.shape, operand.data_type) for name, operand in graph.outputs.items()}
    return program.bind([feed[name] for name in graph.inputs], list(outputs.values()))


def measure(case: Case) -> list[str]:
    """The case's row of the table."""
    graph, feed = case.graph()
    supports = context().backend.supports
    ways = {
        "kernel": runner(graph, feed, supports),
        "parts": runner(graph, feed, lambda node: not isinstance(node.op, CustomOp) and supports(node)),
    }
    times = alternate(ways, seconds=0.05)
    both = [f"{median(values) * 1e3:.3g} ms" for values in times.values()]
    return [f"`{case.op.name}`", case.size, *both, str(Ratio.of(times["parts"], times["kernel"]))]


def compare_nodes(operators: list[str]) -> None:
    """Print the rows of nodes of some ONNX operators, or of all, as they are measured, and those that are slower."""
    count, slow = 0, []
    for node in node_cases(operators):
        comparison = compare(node)
        count += 1
        row = "  ".join(comparison.cells())
        if comparison.is_slow:
            slow.append(row)
        print(row, "SLOW" if comparison.is_slow else "", sep="  ", flush=True)
    print(f"{count} nodes, of which {len(slow)} take more than ONNX Runtime's time", *slow, sep="\n")


def main(
    operators: Annotated[
        list[str] | None, typer.Argument(help="ONNX operators to compare with ONNX Runtime; implies --nodes")
    ] = None,
    nodes: Annotated[
        bool,
        typer.Option("--nodes", help="Compare ONNX nodes that become composites with ONNX Runtime, and print rows"),
    ] = False,
) -> None:
    """Measure kernels for composites against their parts, and write the table of docs/composites.md."""
    if operators or nodes:
        compare_nodes(operators or [])
        return
    rows = []
    for case in cases():
        rows.append(measure(case))
        print(*rows[-1], flush=True)
    note = f"Made by `python -m benchmarks composites` on: {machine()}. Medians; of the gain with quartiles."
    made = Table(["Composite", "Size (float32)", "Kernel", "Parts", "Gain"], rows)
    replace_part(DOCS / "composites.md", f"{note}\n\n{made}")
