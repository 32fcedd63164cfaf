"""Kernels in WGSL as tests run them: an operation that has one, and the results of a graph of one operation."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

import opweave as ow
from opweave.context.graph import program_of
from opweave.expr.gpu import GpuKernel
from support.graphs import compute_again
from support.webgpu_device import gpu_context

generator = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return generator.standard_normal(shape).astype("float32")


def engine_of(context: ow.MLContext) -> Any:
    return context.backend.space


def limited(**features: Any) -> ow.MLContext:
    """A context whose device seems to have less than it has."""
    made = ow.ml.create_context(device=gpu_context().device.name)
    engine = engine_of(made)
    engine.features = dataclasses.replace(engine.features, **features)
    return made


def line_of(file: str, text: str) -> int:
    """The number of the line of a file that ends so, without the one that asks for it."""
    lines = enumerate(Path(file).read_text().splitlines(), 1)
    (found,) = (number for number, line in lines if line.endswith(text) and "line_of" not in line)
    return found


def place_of(file: str, text: str) -> str:
    """The file and that line, as messages say them."""
    return f"{Path(file).name}, line {line_of(file, text)}"


@ow.op
def mapped(self, x: ow.MLOperand, k: float = 2.0):  # type: ignore[no-untyped-def]
    return x.desc


def computed(context: ow.MLContext, op: Any, *args: Any, **options: Any) -> Any:
    """The results of a graph of one operation."""
    builder = ow.MLGraphBuilder(context)
    arrays: dict[str, np.ndarray] = {}

    def declare(value: Any) -> Any:
        if isinstance(value, list):
            return [declare(item) for item in value]
        if not isinstance(value, np.ndarray):
            return value
        name = f"x{len(arrays)}"
        arrays[name] = value
        return builder.input(name, value.dtype.name, value.shape)

    made = op(*[declare(value) for value in args], **options)
    results = made if isinstance(made, tuple) else (made,)
    graph = builder.build({f"y{k}": result for k, result in enumerate(results)})
    found = tuple(compute_again(context, graph, arrays).values())
    return found if len(found) > 1 else found[0]


def kernels_of(graph: ow.MLGraph) -> list[GpuKernel]:
    """The kernels of a graph on the device, in the order in which they run."""
    runners: list[Any] = [step.part.runner for step in program_of(graph).steps if step.part]
    return [step.kernel for runner in runners for step in runner.steps]


def kernel_count(graph: ow.MLGraph) -> int:
    """How many kernels a graph runs on the device."""
    return len(kernels_of(graph))
