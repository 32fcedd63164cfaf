"""Graphs whose kernels are partly in Triton, against the reference: by Triton's interpreter, and as C++ on the processor."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from support import cuda_on_cpu
from support.cuda_cases import _Rules
from support.triton_on_cpu import interpreter

import opweave as ow
from opweave.backends.gpu.contraction.tensor import TensorTile
from opweave.backends.gpu.schedule import Schedule
from opweave.backends.gpu.steps import KernelStep
from opweave.core.graph import Graph
from opweave.expr.gpu import Features, TensorCores

F = replace(cuda_on_cpu.FEATURES, tensor_cores=TensorCores("tf32x3", 227 << 10))

SMALL = TensorTile(32, 32, 32, 4, 2)
"""A tile with which small problems have several, and edges."""

WGMMA_TF32 = re.compile(r"HGMMA\.64x\d+x8\.F32\.TF32")
"""Instructions of sm_90 that multiply matrices of TF32."""

Build = Callable[..., ow.MLOperand]


def steps_of(
    build: Build, arrays: Sequence[np.ndarray], constants: Sequence[int], features: Features
) -> list[KernelStep]:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    operands = [
        builder.constant(array)
        if number in constants
        else builder.input(f"x{number}", array.dtype.name, list(array.shape))  # type: ignore[arg-type]
        for number, array in enumerate(arrays)
    ]
    graph = Graph.reaching({"y": build(builder, *operands)})
    return Schedule(graph, _Rules(features), features).steps


def run_steps(steps: Sequence[KernelStep], inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The result of kernels, of which those in CUDA C++ run as C++."""
    memory: dict[Any, cuda_on_cpu.Guarded] = {}
    for step in steps:
        for place in step.places:
            if place not in memory:
                given = (
                    inputs[place.number] if place.kind == "input" else place.array if place.value is not None else None
                )
                memory[place] = cuda_on_cpu.Guarded.of(place.desc, given)
        if step.kernel.compiler != "triton":
            cuda_on_cpu.launch(step.kernel, [memory[place].address for place in step.places])
            continue
        arrays = [memory[place].view(place.desc) for place in step.places]
        interpreter().run(step.kernel, arrays)
    ((place, found),) = ((place, array) for place, array in memory.items() if place.kind == "output")
    return found.view(place.desc)


def check_kernels(
    build: Build,
    *arrays: np.ndarray,
    constants: Sequence[int] = (1,),
    kernels: Sequence[str] = ("triton",),
    tolerance: float | None = None,
    features: Features = F,
) -> None:
    """The kernels are compiled as told, and their results are those of the reference, within the rounding of the products."""
    if tolerance is None:
        tolerance = 2e-3 if features.tensor_cores and features.tensor_cores.float32 == "tf32" else 1e-5
    steps = steps_of(build, arrays, constants, features)
    assert [step.kernel.compiler for step in steps] == list(kernels)
    inputs = [array for number, array in enumerate(arrays) if number not in constants]
    found = run_steps(steps, inputs)
    context = ow.ml.create_context(device="reference")
    builder = ow.MLGraphBuilder(context)
    operands = [builder.input(f"x{k}", a.dtype.name, list(a.shape)) for k, a in enumerate(arrays)]  # type: ignore[arg-type]
    graph = builder.build({"y": build(builder, *operands)})
    wanted = context.compute(graph, {f"x{k}": array for k, array in enumerate(arrays)})["y"]
    largest = np.abs(wanted[np.isfinite(wanted)]).max() if np.isfinite(wanted).any() else 1
    np.testing.assert_allclose(
        found.reshape(wanted.shape).astype(np.float64), wanted, rtol=tolerance, atol=tolerance * float(largest)
    )


def array(*shape: int, data_type: str = "float32") -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(data_type)


def instructions(image: bytes, folder: Path) -> list[str]:
    """The instructions of a binary, by the disassembler that Triton brings."""
    found = importlib.util.find_spec("triton")
    assert found is not None
    assert found.submodule_search_locations is not None
    file = folder / "kernel.cubin"
    file.write_bytes(image)
    tool = Path(found.submodule_search_locations[0]) / "backends/nvidia/bin/nvdisasm"
    shown = subprocess.run([tool, "-c", file], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\s([A-Z][A-Z0-9]+(?:\.\w+)*) ", shown)
