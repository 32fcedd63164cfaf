"""Tiles of kernels for tensor cores, measured on an NVIDIA GPU: the table that they are chosen by.

Needs the extra cuda; with PyTorch, times of cuBLAS and cuDNN stand beside ours (float32 is their IEEE float32 for tf32x3, and
TF32 for tf32). Times are the least of several runs, with an event before and after each. Results of tiles are compared with
float64; errors are relative to the greatest value, beside those of kernels without tensor cores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import opweave as ow
from opweave.backends.cuda import cuda, devices
from opweave.backends.cuda.driver import Driver
from opweave.backends.cuda.engine import features_of
from opweave.backends.cuda.measured_tiles import microseconds
from opweave.backends.cuda.nvidia import NvidiaDriver
from opweave.backends.gpu.contraction import tensor_tiles
from opweave.backends.gpu.contraction.kernels import Contraction
from opweave.backends.gpu.contraction.tensor import Steps, Tile
from opweave.backends.gpu.contraction.tensor_tiles import LAUNCH_US, Measured
from opweave.backends.gpu.forms import applied
from opweave.backends.precision import Precision
from opweave.expr.gpu import Buffer, Features
from opweave.expr.ir import Input
from opweave.expr.tracing import inputs_of
from opweave.graph import Desc

from .webgpu_contraction import CASES, Case, conv, operations, torch_function, torch_milliseconds

TARGET = Path(tensor_tiles.__file__).with_name(tensor_tiles.TABLE)
"""The table that is written."""

KINDS: dict[str, tuple[Precision, str]] = {
    "float16": ("float32", "float16"),
    "tf32": ("tf32", "float32"),
    "tf32x3": ("float32", "float32"),
}
"""For each kind of products a precision and the data type of operands that have it."""

TILES: dict[str, tuple[tuple[int, int, int, int, int], ...]] = {
    "float16": (
        (64, 64, 64, 4, 3),
        (32, 64, 64, 4, 4),
        (64, 32, 64, 4, 4),
        (64, 128, 64, 4, 4),
        (128, 64, 64, 4, 4),
        (128, 128, 64, 8, 3),
        (128, 256, 64, 8, 3),
        (256, 128, 64, 8, 3),
    ),
    "tf32": (
        (64, 64, 32, 4, 3),
        (32, 64, 32, 4, 4),
        (64, 32, 32, 4, 4),
        (64, 128, 32, 4, 4),
        (128, 64, 32, 4, 4),
        (128, 128, 32, 8, 3),
        (128, 256, 32, 8, 3),
    ),
    "tf32x3": (
        (64, 64, 32, 4, 2),
        (32, 64, 32, 4, 3),
        (64, 32, 32, 4, 3),
        (64, 128, 32, 4, 3),
        (128, 64, 32, 4, 3),
        (128, 128, 32, 8, 3),
    ),
}
"""Rows, columns, terms, warps and stages of the tiles. The first of each kind runs on all devices."""

SHAPES = (
    *CASES,
    *(
        Case(f"matmul {m}x{k} by {k}x{n}", "matmul", ((m, k), (k, n)))
        for m, n, k in ((512, 768, 3072), (3136, 256, 576))
    ),
    conv("8 images of 28x28, 128 to 128", 28, 128, 128, 3, batch=8),
)

ESTIMATED_PEAK = {"float16": 610.0, "tf32": 267.0, "tf32x3": 78.0}
"""TFLOP/s of a matrix product of 4,096 with constants in order of terms, measured with another kernel on an H200: what the
estimates assume for the largest tile."""
MAX_ERROR = {"float16": 2e-3, "tf32": 2e-3, "tf32x3": 1e-5}
"""Errors beyond which a kernel is wrong."""
REPEAT = 7
"""Runs of each kernel, the least of which counts."""
UNITS = 132
"""Multiprocessors of an H200."""
HALF_RATE_INTENSITY = 30
"""Products for each loaded element at which the estimates assume half of the peak."""


@dataclass(frozen=True)
class Sample:
    """A measurement of a tile.

    Attributes:
        steps: of a program.
        together: products of a step of all programs that a multiprocessor computes one after the other.
        microseconds: without the launch.
    """

    steps: int
    together: float
    microseconds: float


def estimates() -> dict[str, list[Measured]]:
    """The table without measurements: rates grow with the products for each loaded element of a tile."""
    made = {}
    for kind, tiles in TILES.items():
        intensities = [t[0] * t[1] / (t[0] + t[1]) for t in tiles]
        shares = [i / (i + HALF_RATE_INTENSITY) for i in intensities]
        peak = ESTIMATED_PEAK[kind] * 1e6 / 2 / UNITS
        rates = [peak * share / max(shares) for share in shares]
        latencies = [max(0.3, 0.7 * t[0] * t[1] * t[2] / rate) for t, rate in zip(tiles, rates, strict=True)]
        made[kind] = [Measured(Tile(*t), *rest) for t, *rest in zip(tiles, rates, latencies, strict=True)]
    return made


def fitted(tile: Tile, samples: Sequence[Sample]) -> Measured:
    """The rate and the latency with the least mean error of the logarithm of times; both are such that one sample fits."""
    steps, together, times = (
        np.array([getattr(s, name) for s in samples], np.float64) for name in ("steps", "together", "microseconds")
    )
    rates, latencies = steps * together / times, times / steps
    model = np.maximum(latencies[None, :, None], together / rates[:, None, None]) * steps
    errors = np.abs(np.log(model / times)).mean(2)
    rate, latency = np.unravel_index(errors.argmin(), errors.shape)
    return Measured(tile, float(rates[rate]), float(latencies[latency]))


def contraction(case: Case, features: Features, data_type: str) -> tuple[Contraction, dict[Buffer, np.ndarray]]:
    """A contraction, and the arrays that it reads."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape, "float32").astype(data_type) for shape in case.shapes]
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    second = builder.constant(arrays[1]) if case.constant else builder.input("b", data_type, case.shapes[1])  # type: ignore[arg-type]
    result = getattr(builder, case.op)(builder.input("a", data_type, case.shapes[0]), second, **case.options)  # type: ignore[arg-type]
    inputs, operands = inputs_of([operand.desc for operand in result.node.operands])
    made = applied(result.node, cuda, dict(zip(result.node.operands, operands, strict=True)))
    constants = {inputs[1]: arrays[1]} if case.constant else {}
    found = Contraction(made.problem, Input(2, result.desc), constants, features)
    read: dict[Buffer, np.ndarray] = dict(zip(inputs, arrays, strict=True))
    return found, read | dict(found.arranged.items())


def reference(case: Case, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """The result in float64; None for a convolution where PyTorch has no GPU."""
    wide = [array.astype(np.float64) for array in arrays]
    if case.op == "matmul":
        return wide[0] @ wide[1]
    function = torch_function(case, wide)
    return None if function is None else function().cpu().numpy()


def error(driver: Driver, address: int, desc: Desc, wanted: np.ndarray | None) -> float:
    """The greatest difference of a result to the reference, relative to the greatest value; NaN without a reference."""
    if wanted is None:
        return float("nan")
    found = np.empty(desc.shape, desc.data_type)
    driver.download([found], [address])
    return float(np.abs(found.reshape(wanted.shape) - wanted).max() / np.abs(wanted).max())


def ways(found: Contraction, kind: str) -> Iterator[tuple[Tile, int]]:
    """Tiles and splits to measure: each tile alone, and with the splits that give each multiprocessor a program."""
    problem = found.problem
    for row in TILES[kind]:
        tile = Tile(*row)
        kernel = Steps(problem, tile.terms)
        programs = -(-problem.rows // tile.rows) * -(-problem.columns // tile.columns) * problem.stacks
        yield tile, 1
        splits = max((s for s in tensor_tiles.SPLITS if s * programs <= UNITS), default=1)
        each = -(-kernel.count // splits)
        if splits > 1 and each >= tensor_tiles.MIN_STEPS and (splits - 1) * each < kernel.count:
            yield tile, splits


def measure(driver: Driver, cases: Sequence[Case]) -> tuple[dict[str, list[Measured]], Table]:
    """The fitted tiles, and a table of the fastest way of each case."""
    units = driver.info.units
    shown = Table(
        "case",
        "products",
        "ours us",
        "TFLOP/s",
        "cuBLAS or cuDNN us",
        "TFLOP/s",
        "tile",
        "chosen",
        "error",
        "without",
        box=None,
    )
    made = {}
    for kind, (precision, data_type) in KINDS.items():
        samples: dict[Tile, list[Sample]] = {Tile(*row): [] for row in TILES[kind]}
        features = features_of(driver.info, precision)
        for case in track(cases, kind):
            found, arrays = contraction(case, features, data_type)
            if found.method != "tensor":
                continue
            memory: dict[Buffer, int] = {}
            for buffer, array in arrays.items():
                memory[buffer] = driver.allocate(array.nbytes + 16)
                driver.upload(memory[buffer], np.ascontiguousarray(array))
            assert isinstance(found.tile, Tile)
            chosen, times = (found.tile, found.splits), dict[tuple[Tile, int], float]()
            sources = []
            for way in dict.fromkeys([*ways(found, kind), chosen]):
                found.tile, found.splits = way
                sources.append((way, found.kernels(None, case.name)))
            driver.functions([kernel for _, kernels in sources for kernel in kernels])  # compiled together
            operands = list(arrays.values())[:2]
            wanted, errors = reference(case, operands), dict[tuple[Tile, int], float]()
            for way, kernels in sources:
                times[way] = microseconds(driver, kernels, memory, REPEAT)
                errors[way] = error(driver, memory[found.result], found.result.desc, wanted)
                if errors[way] > MAX_ERROR[kind]:
                    raise SystemExit(f"{case.name}, {kind}, {way[0]}, {way[1]} parts: wrong by {errors[way]:.1e}")
                tile, splits = way
                if splits == 1 and tile in samples:
                    steps = Steps(found.problem, tile.terms).count
                    together = -(-kernels[0].workgroups[0] // units) * tile.rows * tile.columns * tile.terms
                    samples[tile].append(Sample(steps, together, max(0.1, times[way] - LAUNCH_US)))
            plain, read = contraction(case, replace(features, tensor_cores=None), data_type)
            for buffer, array in read.items():
                if buffer not in memory:
                    memory[buffer] = driver.allocate(array.nbytes + 16)
                driver.upload(memory[buffer], np.ascontiguousarray(array))
            microseconds(driver, plain.kernels(None, case.name), memory, 1)
            without = error(driver, memory[plain.result], plain.result.desc, wanted)
            driver.wait()
            for address in memory.values():
                driver.free(address)
            best = min(times, key=lambda way: times[way])
            function = torch_function(case, operands, tf32=kind == "tf32")
            theirs = torch_milliseconds(function) * 1e3 if function is not None else None
            flops = operations(case) / 1e6
            shown.add_row(
                case.name,
                kind,
                f"{times[best]:.1f}",
                f"{flops / times[best]:.1f}",
                "-" if theirs is None else f"{theirs:.1f}",
                "-" if theirs is None else f"{flops / theirs:.1f}",
                f"{best[0]}, {best[1]} parts",
                f"{times[chosen] / times[best]:.2f}x",
                f"{errors[best]:.1e}",
                f"{without:.1e}",
            )
        made[kind] = [fitted(tile, its) for tile, its in samples.items() if its]
    return made, shown


def write(target: Path, device: str, tiles: dict[str, list[Measured]]) -> None:
    """Write the table."""
    rows = {
        kind: [
            [m.tile.rows, m.tile.columns, m.tile.terms, m.tile.warps, m.tile.stages, round(m.rate), round(m.latency, 3)]
            for m in measured
        ]
        for kind, measured in tiles.items()
    }
    lines = [
        f'    "{kind}": [\n      ' + ",\n      ".join(map(json.dumps, its)) + "\n    ]" for kind, its in rows.items()
    ]
    head = (
        '{\n  "written by": "python -m benchmarks cuda_tune",\n'
        f'  "device": {json.dumps(device)},\n'
        '  "columns": "rows, columns, terms, warps, stages, products/us of a multiprocessor, us of a lone step",\n'
    )
    target.write_text(head + '  "tiles": {\n' + ",\n".join(lines) + "\n  }\n}\n", "utf-8")


def main(estimated: bool = False, cases: int = 0, target: Path = TARGET) -> None:
    """Measure tiles, and write the table.

    Args:
        estimated: write estimates instead, which takes no GPU.
        cases: the first so many cases only; 0 for all.
        target: the file to write.
    """
    if estimated:
        write(target, "none: estimates, from three products of 4,096 on an H200", estimates())
        return
    if devices.trouble():
        raise SystemExit(f"cuda_tune: {devices.trouble()}")
    driver = NvidiaDriver(0)
    tiles, shown = measure(driver, SHAPES[: cases or None])
    Console(width=160).print(shown)
    write(target, f"{driver.info.name}, {driver.info.architecture}", tiles)
