"""Tiles of kernels for tensor cores, measured on an NVIDIA GPU: the table that they are chosen by.

Needs the extra cuda; with PyTorch, times of cuBLAS and cuDNN stand beside ours (float32 is their IEEE float32 for tf32x3, and
TF32 for tf32). Times are the least of several runs, with an event before and after each. Results of tiles are compared with
float64; errors are relative to the greatest value, beside those of kernels without tensor cores. "in order" is the time of the
kernels that bring operands into the order of tensor cores; the rate counts it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TypedDict

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import opweave as ow
from opweave.backends.cuda import cuda, devices
from opweave.backends.cuda.devices import Info
from opweave.backends.cuda.driver import Driver
from opweave.backends.cuda.engine import features_of
from opweave.backends.cuda.measured_tiles import microseconds
from opweave.backends.cuda.nvidia import NvidiaDriver
from opweave.backends.gpu.contraction import tensor_tiles
from opweave.backends.gpu.contraction.kernels import Contraction
from opweave.backends.gpu.contraction.problem import Problem
from opweave.backends.gpu.contraction.tensor import Steps, Tile
from opweave.backends.gpu.contraction.tensor_tiles import Measured
from opweave.backends.gpu.forms import applied
from opweave.backends.precision import Precision
from opweave.expr.gpu import Buffer, Features, Kernel
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
        (32, 32, 64, 4, 4),
        (32, 64, 64, 4, 4),
        (64, 32, 64, 4, 4),
        (64, 64, 128, 4, 3),
        (64, 128, 64, 4, 4),
        (128, 64, 64, 4, 4),
        (128, 64, 128, 4, 3),
        (128, 128, 64, 4, 3),
        (128, 128, 64, 4, 4),
        (128, 128, 64, 8, 3),
        (128, 256, 64, 8, 3),
        (256, 128, 64, 8, 3),
    ),
    "tf32": (
        (64, 64, 32, 4, 3),
        (32, 32, 32, 4, 4),
        (32, 64, 32, 4, 4),
        (64, 32, 32, 4, 4),
        (64, 32, 64, 4, 3),
        (64, 128, 32, 4, 4),
        (128, 32, 32, 4, 4),
        (128, 64, 32, 4, 4),
        (128, 64, 64, 4, 3),
        (128, 128, 32, 4, 3),
        (128, 128, 32, 4, 4),
        (128, 128, 32, 8, 3),
        (128, 128, 32, 8, 4),
        (128, 256, 32, 8, 3),
        (256, 128, 32, 8, 3),
    ),
    "tf32x3": (
        (64, 64, 32, 4, 3),
        (32, 32, 32, 4, 3),
        (32, 64, 32, 4, 3),
        (64, 32, 32, 4, 3),
        (64, 32, 64, 4, 2),
        (64, 128, 32, 4, 3),
        (128, 32, 32, 4, 3),
        (128, 64, 32, 4, 3),
        (128, 64, 32, 8, 3),
        (128, 128, 32, 8, 3),
    ),
}
"""Rows, columns, terms, warps and stages of the tiles. The first of each kind runs on all devices."""

SHAPES = (
    *CASES,
    *(
        Case(f"matmul {m}x{k} by {k}x{n}", "matmul", ((m, k), (k, n)))
        for m, n, k in (
            (512, 768, 3072),
            (3136, 256, 576),
            # MiniLM with 64 words, and ViT-B/16, one and 32 of them.
            *((m, n, k) for m in (64, 2048) for n, k in ((384, 384), (1536, 384), (384, 1536))),
            *((m, n, k) for m in (197, 6304) for n, k in ((768, 768), (3072, 768), (768, 3072))),
        )
    ),
    conv("8 images of 28x28, 128 to 128", 28, 128, 128, 3, batch=8),
    # Both operands are inputs, as in attention.
    *(
        Case(f"matmul {n} of {m}x{k} by {k}x{m}", "matmul", ((n, m, k), (n, k, m)), constant=False)
        for n, m, k in (
            (1, 64, 256),
            (1, 256, 256),
            (1, 128, 4096),
            (1, 512, 2048),
            (12, 64, 32),
            (12, 197, 64),
            (96, 128, 64),
        )
    ),
)

MAX_ERROR = {"float16": 2e-3, "tf32": 2e-3, "tf32x3": 1e-5}
"""Errors beyond which a kernel is wrong."""
REPEAT = 7
"""Runs of each kernel, the least of which counts."""
FIXED_US = tuple(k / 2 for k in range(2, 13))
"""Fixed times that a fit may find, in microseconds."""


class Record(TypedDict):
    """What was measured on a device, which `--fit` makes the table of.

    Attributes:
        device: its name.
        architecture: "sm_90", say.
        units: multiprocessors.
        max_shared: bytes of shared memory that a kernel may ask for.
        times: kind, case, tile, parts of each sum, and microseconds.
    """

    device: str
    architecture: str
    units: int
    max_shared: int
    times: list[tuple[str, str, list[int], int, float]]


def fitted(tile: Tile, samples: Sequence[tuple[int, int, float]]) -> Measured:
    """The rate, the latency and the fixed time with the least mean error of the logarithm of times.

    Args:
        tile: the tile.
        samples: steps, products of a step and microseconds, without what adds up parts. The rate and the latency are such
            that one sample fits.
    """
    steps, together, times = (np.array(column, np.float64) for column in zip(*samples, strict=True))
    found = list[tuple[float, Measured]]()
    for fixed in FIXED_US:
        rest = np.maximum(times - fixed, 0.05)
        rates, latencies = steps * together / rest, rest / steps
        model = fixed + np.maximum(latencies[None, :, None], together / rates[:, None, None]) * steps
        errors = np.abs(np.log(model / times)).mean(2)
        rate, latency = np.unravel_index(errors.argmin(), errors.shape)
        found.append((float(errors.min()), Measured(tile, float(rates[rate]), float(latencies[latency]), fixed)))
    return min(found, key=lambda pair: pair[0])[1]


def tables(record: Record) -> dict[str, list[Measured]]:
    """The tiles of each kind, fitted to the times that were measured.

    Where no case has a way to read the right operand, all cases with the same products count.
    """
    cases = {case.name: case for case in SHAPES}
    info = Info(record["device"], record["architecture"], record["units"], 49152, record["max_shared"], 0)
    samples: dict[str, dict[Tile, list[tuple[int, int, float]]]] = {}
    found = dict[tuple[str, str], tuple[Problem, Features]]()
    for kind, name, row, splits, time in record["times"]:
        if tuple(row) not in TILES[kind]:
            continue
        precision, data_type = KINDS[kind]
        if (kind, name) not in found:
            features = features_of(info, precision)
            found[kind, name] = contraction(cases[name], features, data_type)[0].problem, features
        problem, features = found[kind, name]
        tile, products = Tile(*row), tensor_tiles.kind_of(problem, features)
        if (rest := time - tensor_tiles.addition(problem, splits)) > 0:
            sample = (*tensor_tiles.work(problem, tile, splits, info.units), rest)
            for key in (products, products.split(", ")[0]):
                samples.setdefault(key, {Tile(*row): [] for row in TILES[kind]})[tile].append(sample)
    kinds = dict.fromkeys(key.split(", ")[0] for key in samples)
    made = {
        f"{kind}, {reading}": samples.get(f"{kind}, {reading}", samples[kind])
        for kind in kinds
        for reading in tensor_tiles.READINGS
    }
    return {key: [fitted(tile, its) for tile, its in tiles.items() if its] for key, tiles in made.items()}


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
    return found, read | {source: constant.make() for source, constant in found.arranged.items()}


def reference(case: Case, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """The result in float64; None for a convolution where PyTorch has no GPU."""
    wide = [array.astype(np.float64) for array in arrays]
    function = torch_function(case, wide)
    if function is None:
        return wide[0] @ wide[1] if case.op == "matmul" else None
    return np.asarray(function().cpu().numpy())


def error(driver: Driver, address: int, desc: Desc, wanted: np.ndarray | None) -> float:
    """The greatest difference of a result to the reference, relative to the greatest value; NaN without a reference."""
    if wanted is None:
        return float("nan")
    found = np.empty(desc.shape, desc.data_type)
    driver.download([found], [address])
    return float(np.abs(found.reshape(wanted.shape) - wanted).max() / np.abs(wanted).max())


def ways(found: Contraction, kind: str, units: int) -> Iterator[tuple[Tile, int]]:
    """Tiles and splits to measure: each tile alone, and with the splits that give each multiprocessor a program."""
    problem = found.problem
    for row in TILES[kind]:
        tile = Tile(*row)
        kernel = Steps(problem, tile.terms)
        programs = -(-problem.rows // tile.rows) * -(-problem.columns // tile.columns) * problem.stacks
        yield tile, 1
        fits = [s for s in tensor_tiles.SPLITS if s * programs <= units and tensor_tiles.is_division(kernel.count, s)]
        if fits and max(fits) > 1:
            yield tile, max(fits)


@dataclass(frozen=True)
class Job:
    """A contraction to measure.

    Attributes:
        case: its shapes.
        found: the contraction.
        arrays: what it reads.
        before: the kernels that bring operands into order.
        chosen: the tile, and the number of parts of each sum, that the table of today has.
        kernels: the kernels of all tiles and parts.
        plain: the contraction without tensor cores, and what that reads.
    """

    case: Case
    found: Contraction
    arrays: dict[Buffer, np.ndarray]
    before: list[Kernel]
    chosen: tuple[Tile, int]
    kernels: dict[tuple[Tile, int], list[Kernel]]
    plain: tuple[Contraction, dict[Buffer, np.ndarray]]


def jobs(driver: Driver, cases: Sequence[Case], kind: str) -> list[Job]:
    """The contractions of a kind, whose kernels are compiled together."""
    precision, data_type = KINDS[kind]
    features = features_of(driver.info, precision)
    made = []
    for case in cases:
        found, arrays = contraction(case, features, data_type)
        if found.method != "tensor":
            continue
        assert isinstance(found.tile, Tile)
        chosen, before, kernels = (found.tile, found.splits), found.ordered(case.name), {}
        for way in dict.fromkeys([*ways(found, kind, driver.info.units), chosen]):
            found.tile, found.splits = way
            kernels[way] = found.kernels(None, case.name)[len(before) :]
        plain = contraction(case, replace(features, tensor_cores=None), data_type)
        made.append(Job(case, found, arrays, before, chosen, kernels, plain))
    driver.functions([kernel for job in made for its in (job.before, *job.kernels.values()) for kernel in its])
    return made


def measure(driver: Driver, cases: Sequence[Case], samples: Path | None) -> tuple[Record, Table]:
    """All times, which are written to `samples` after each kind of products, and a table of the fastest way of each case."""
    info = driver.info
    shown = Table(
        "case",
        "products",
        "ours us",
        "in order us",
        "TFLOP/s",
        "cuBLAS or cuDNN us",
        "TFLOP/s",
        "tile",
        "chosen",
        "error",
        "without",
        box=None,
    )
    record: Record = {
        "device": info.name,
        "architecture": info.architecture,
        "units": info.units,
        "max_shared": info.max_dynamic_shared,
        "times": [],
    }
    for kind in KINDS:
        for job in track(jobs(driver, cases, kind), kind):
            case, found = job.case, job.found
            memory: dict[Buffer, int] = {}
            plain, read = job.plain
            for buffer, array in {**job.arrays, **read}.items():
                memory[buffer] = driver.allocate(array.nbytes + 16)
                driver.upload(memory[buffer], np.ascontiguousarray(array))
            operands = list(job.arrays.values())[:2]
            wanted = reference(case, operands)
            ordering = microseconds(driver, job.before, memory, REPEAT) if job.before else 0.0
            times, errors = dict[tuple[Tile, int], float](), dict[tuple[Tile, int], float]()
            for way, kernels in job.kernels.items():
                tile, splits = way
                times[way] = microseconds(driver, kernels, memory, REPEAT)
                errors[way] = error(driver, memory[found.result], found.result.desc, wanted)
                record["times"].append((kind, case.name, list(astuple(tile)), splits, round(times[way], 2)))
                if errors[way] > MAX_ERROR[kind]:
                    raise SystemExit(f"{case.name}, {kind}, {tile}, {splits} parts: wrong by {errors[way]:.1e}")
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
                f"{ordering:.1f}" if job.before else "",
                f"{flops / (times[best] + ordering):.1f}",
                "-" if theirs is None else f"{theirs:.1f}",
                "-" if theirs is None else f"{flops / theirs:.1f}",
                f"{best[0]}, {best[1]} parts",
                f"{times[job.chosen] / times[best]:.2f}x",
                f"{errors[best]:.1e}",
                f"{without:.1e}",
            )
        if samples is not None:
            samples.write_text(json.dumps(record), "utf-8")
    return record, shown


def write(target: Path, record: Record) -> None:
    """Write the table."""
    rows = {
        kind: [[*astuple(m.tile), round(m.rate), round(m.latency, 3), m.fixed] for m in measured]
        for kind, measured in tables(record).items()
    }
    lines = [
        f'    "{kind}": [\n      ' + ",\n      ".join(map(json.dumps, its)) + "\n    ]" for kind, its in rows.items()
    ]
    columns = (
        "rows, columns, terms, warps, stages, products/us of a multiprocessor, us of a lone step, us without steps"
    )
    head = (
        '{\n  "written by": "python -m benchmarks cuda_tune",\n'
        f'  "device": {json.dumps(", ".join((record["device"], record["architecture"])))},\n'
        f'  "columns": "{columns}",\n'
    )
    target.write_text(head + '  "tiles": {\n' + ",\n".join(lines) + "\n  }\n}\n", "utf-8")


def main(cases: int = 0, target: Path = TARGET, samples: Path | None = None, fit: Path | None = None) -> None:
    """Measure tiles, and write the table.

    Args:
        cases: how many of the cases, from the first; 0 for all.
        target: the file to write.
        samples: where to write all times, as JSON.
        fit: a file of times that were written; nothing is measured.
    """
    if fit is not None:
        write(target, json.loads(fit.read_text("utf-8")))
        return
    if devices.trouble():
        raise SystemExit(f"cuda_tune: {devices.trouble()}")
    record, shown = measure(NvidiaDriver(0), SHAPES[: cases or None], samples)
    Console(width=160).print(shown)
    write(target, record)
