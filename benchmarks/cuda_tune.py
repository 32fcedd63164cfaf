"""Tiles of kernels for tensor cores, measured on an NVIDIA GPU: the table that they are chosen by.

Needs the extra cuda; with PyTorch, times of cuBLAS and cuDNN stand beside ours (float32 is their IEEE float32 for tf32x3, and
TF32 for tf32). Times are the least of several CUDA graphs, each of which has the kernels many times. Results of tiles are
compared with float64; errors are relative to the greatest value, beside those of kernels without tensor cores. "in order" is
the time of the kernels that bring operands into the order of tensor cores; the rate counts it. Last come geometric means of
times, relative to the faster of the chosen tile and kernels without tensor cores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, TypedDict

import numpy as np
import typer
from rich.progress import track

import opweave as ow
from opweave.backends.cuda import cuda, devices
from opweave.backends.cuda.devices import CudaInfo
from opweave.backends.cuda.driver import Driver
from opweave.backends.cuda.engine import features_of
from opweave.backends.cuda.measured_tiles import copies_of, microseconds
from opweave.backends.cuda.nvidia import NvidiaDriver
from opweave.backends.gpu.contraction import tensor_tiles
from opweave.backends.gpu.contraction.kernels import Contraction
from opweave.backends.gpu.contraction.problem import Problem
from opweave.backends.gpu.contraction.tensor import TensorSteps, TensorTile
from opweave.backends.gpu.contraction.tensor_tiles import MeasuredTile
from opweave.backends.gpu.forms import apply_node
from opweave.backends.precision import Precision
from opweave.core.graph import Desc
from opweave.expr.gpu import Buffer, Features, GpuKernel
from opweave.expr.ir import Input
from opweave.expr.tracing import inputs_of

from .page import Table
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
        (64, 64, 32, 4, 6),
        (64, 64, 64, 4, 3),
        (32, 32, 32, 4, 4),
        (32, 32, 64, 4, 5),
        (32, 64, 32, 4, 4),
        (32, 64, 64, 4, 4),
        (64, 32, 32, 4, 4),
        (64, 32, 64, 4, 3),
        (64, 32, 64, 4, 5),
        (64, 128, 32, 4, 4),
        (64, 128, 32, 4, 6),
        (128, 32, 32, 4, 4),
        (128, 32, 32, 4, 7),
        (128, 64, 32, 4, 4),
        (128, 64, 32, 4, 6),
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
    *(
        conv(f"32 images of {n}x{n}, {c} to {k}, {size}x{size} by {stride}", n, c, k, size, stride, batch=32)
        for n, c, k, size, stride in (
            *((56, 64, 256, 1, 1), (56, 256, 64, 1, 1), (28, 512, 128, 1, 1), (14, 1024, 256, 1, 1)),
            *((14, 256, 1024, 1, 1), (7, 512, 2048, 1, 1), (56, 256, 512, 1, 2), (28, 256, 256, 3, 2)),
        )
    ),
    # Networks that detect and read, one image at a time: few channels and pixels.
    *(
        conv(f"{n}x{n}, {c} to {k}, {size}x{size}", n, c, k, size)
        for n, c, k, size in (
            *((80, 16, 32, 3), (52, 48, 48, 3), (40, 32, 32, 3), (26, 96, 96, 3), (25, 32, 96, 3), (20, 64, 64, 3)),
            *((13, 64, 256, 3), (13, 192, 192, 3), (10, 128, 128, 3)),
            *((80, 32, 48, 1), (62, 64, 64, 1), (40, 96, 96, 1), (31, 256, 240, 1), (22, 480, 480, 1)),
            *((20, 192, 192, 1), (10, 384, 384, 1)),
        )
    ),
    *(
        Case(f"matmul {m}x{k} by {k}x{n}", "matmul", ((m, k), (k, n)))
        for m, k, n in ((20, 1024, 8210), (40, 128, 6625))
    ),
    # Transformers with 128 words, and of images of 14x14 and 7x7: their weights come from memory.
    *(
        Case(f"matmul {m}x{k} by {k}x{n}", "matmul", ((m, k), (k, n)))
        for m, k, n in (
            *((128, 2048, n) for n in (2048, 6144, 11264)),
            *((128, 1024, n) for n in (1024, 2048, 3072, 4096)),
            *((128, 5632, 2048), (128, 4096, 1024), (768, 384, 196)),
            *((m, k, n) for m, k in ((196, 384), (196, 768), (49, 768)) for k, n in ((k, 4 * k), (4 * k, k))),
        )
    ),
    *(
        conv(f"{n}x{n}, {c} to {c}, 3x3 in {groups} groups", n, c, c, 3, groups=groups)
        for n, c, groups in ((28, 128, 2), (14, 384, 6), (7, 384, 6), (14, 512, 32), (7, 1024, 32))
    ),
    *(conv(f"{n}x{n}, {c} to {k}, 3x3 by 2", n, c, k, 3, 2) for n, c, k in ((112, 64, 128), (56, 64, 64))),
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


HEADER = (
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
    "without us",
    "error",
)


class DeviceTimes(TypedDict):
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


def fitted(tile: TensorTile, samples: Sequence[tuple[int, int, float]]) -> MeasuredTile:
    """The rate, the latency and the fixed time with the least mean error of the logarithm of times.

    Args:
        tile: the tile.
        samples: steps, products of a step and microseconds, without what adds up parts. The rate and the latency are such
            that one sample fits.
    """
    steps, together, times = (np.array(column, np.float64) for column in zip(*samples, strict=True))
    found = list[tuple[float, MeasuredTile]]()
    for fixed in FIXED_US:
        rest = np.maximum(times - fixed, 0.05)
        rates, latencies = steps * together / rest, rest / steps
        model = fixed + np.maximum(latencies[None, :, None], together / rates[:, None, None]) * steps
        errors = np.abs(np.log(model / times)).mean(2)
        rate, latency = np.unravel_index(errors.argmin(), errors.shape)
        found.append((float(errors.min()), MeasuredTile(tile, float(rates[rate]), float(latencies[latency]), fixed)))
    return min(found, key=lambda pair: pair[0])[1]


def tables(records: Sequence[DeviceTimes]) -> dict[str, list[MeasuredTile]]:
    """The tiles of each kind, fitted to the times that were measured.

    Where no case reads the right operand in a certain way, all cases with the same products count. For windows of kernels that
    divide both operands, the cases count in which one is divided before.
    """
    cases = {case.name: case for case in SHAPES}
    infos = [CudaInfo(r["device"], r["architecture"], r["units"], 49152, r["max_shared"], 0) for r in records]
    samples: dict[str, dict[TensorTile, list[tuple[int, int, float]]]] = {}
    found = dict[tuple[str, str, str], tuple[Problem, Features]]()
    times = ((info, *time) for info, record in zip(infos, records, strict=True) for time in record["times"])
    for info, kind, name, row, splits, time in times:
        if tuple(row) not in TILES[kind]:
            continue
        precision, data_type = KINDS[kind]
        key = info.architecture, kind, name  # operands may be in another order
        if key not in found:
            features = features_of(info, precision)
            found[key] = contraction(cases[name], features, data_type)[0].problem, features
        problem, features = found[key]
        tile, products = TensorTile(*row), tensor_tiles.kind_of(problem, features)
        # Where memory is the limit, times tell little of tiles.
        moved = tensor_tiles.reading(problem, features, writes=True)
        if (rest := time - tensor_tiles.addition(problem, splits)) > 1.5 * moved:
            sample = (*tensor_tiles.work(problem, tile, splits, info.units), rest)
            for those in (products, products.split(", ")[0]):
                samples.setdefault(those, {TensorTile(*row): [] for row in TILES[kind]})[tile].append(sample)
    made = {}
    for kind, reading in product(dict.fromkeys(key.split(", ")[0] for key in samples), tensor_tiles.READINGS):
        others = [f"{kind.removesuffix(' in kernels')}, {reading}"] if "windows" in reading else []
        tiles = next(samples[key] for key in (f"{kind}, {reading}", *others, kind) if key in samples)
        made[f"{kind}, {reading}"] = [fitted(tile, its) for tile, its in tiles.items() if its]
    return made


def contraction(case: Case, features: Features, data_type: str) -> tuple[Contraction, dict[Buffer, np.ndarray]]:
    """A contraction, and the arrays that it reads."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape, "float32").astype(data_type) for shape in case.shapes]
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    second = builder.constant(arrays[1]) if case.constant else builder.input("b", data_type, case.shapes[1])  # type: ignore[arg-type]
    result = getattr(builder, case.op)(builder.input("a", data_type, case.shapes[0]), second, **case.options)  # type: ignore[arg-type]
    inputs, operands = inputs_of([operand.desc for operand in result.node.operands])
    made = apply_node(result.node, cuda, dict(zip(result.node.operands, operands, strict=True)))
    constants = {inputs[1]: arrays[1]} if case.constant else {}
    found = Contraction(made.problem, Input(2, result.desc), constants, features, is_faster=True)
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


def ways(found: Contraction, kind: str, units: int) -> Iterator[tuple[TensorTile, int]]:
    """Tiles and splits to measure: each tile alone, and with the splits that give each multiprocessor a program."""
    problem = found.problem
    for row in TILES[kind]:
        tile = TensorTile(*row)
        kernel = TensorSteps(problem, tile.terms)
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
    before: list[GpuKernel]
    chosen: tuple[TensorTile, int]
    kernels: dict[tuple[TensorTile, int], list[GpuKernel]]
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
        assert isinstance(found.tile, TensorTile)
        chosen, before, kernels = (found.tile, found.splits), found.ordering_kernels(case.name), {}
        for way in dict.fromkeys([*ways(found, kind, driver.info.units), chosen]):
            found.tile, found.splits = way
            kernels[way] = found.kernels(None, case.name)[len(before) :]
        plain = contraction(case, replace(features, tensor_cores=None), data_type)
        made.append(Job(case, found, arrays, before, chosen, kernels, plain))
    driver.functions([kernel for job in made for its in (job.before, *job.kernels.values()) for kernel in its])
    return made


def measure(
    driver: Driver, cases: Sequence[Case], kinds: Sequence[str], samples: Path | None
) -> tuple[DeviceTimes, Table, list[str]]:
    """Measure all cases.

    Returns:
        All times, which are written to `samples` after each kind of products; a table of the fastest way of each case; and a
        line for each kind about the choice between tensor cores and other kernels.
    """
    info = driver.info
    rows: list[list[str]] = []
    record: DeviceTimes = {
        "device": info.name,
        "architecture": info.architecture,
        "units": info.units,
        "max_shared": info.max_dynamic_shared,
        "times": [],
    }
    losses: dict[str, list[tuple[float, float]]] = {}
    for kind in kinds:
        for job in track(jobs(driver, cases, kind), kind):
            case, found = job.case, job.found
            memory: dict[Buffer, int] = {}
            plain, read = job.plain
            copies = copies_of(
                driver,
                {b: a for b, a in {**job.arrays, **read}.items() if b in found.arranged or b in plain.arranged},
            )
            for buffer, array in {**job.arrays, **read}.items():
                memory[buffer] = driver.allocate(array.nbytes + 16)
                driver.upload(memory[buffer], np.ascontiguousarray(array))
            operands = list(job.arrays.values())[:2]
            wanted = reference(case, operands)
            ordering = microseconds(driver, job.before, memory, REPEAT, copies) if job.before else 0.0
            times, errors = dict[tuple[TensorTile, int], float](), dict[tuple[TensorTile, int], float]()
            for way, kernels in job.kernels.items():
                tile, splits = way
                times[way] = microseconds(driver, kernels, memory, REPEAT, copies)
                errors[way] = error(driver, memory[found.result], found.result.desc, wanted)
                record["times"].append((kind, case.name, list(astuple(tile)), splits, round(times[way], 2)))
                if errors[way] > MAX_ERROR[kind]:
                    raise SystemExit(f"{case.name}, {kind}, {tile}, {splits} parts: wrong by {errors[way]:.1e}")
            plainly = microseconds(driver, plain.kernels(None, case.name), memory, REPEAT, copies)
            without = error(driver, memory[plain.result], plain.result.desc, wanted)
            driver.wait()
            for address in [*memory.values(), *(address for addresses in copies.values() for address in addresses)]:
                driver.free(address)
            best = min(times, key=lambda way: times[way])
            usual = times[job.chosen] + ordering
            taken = usual if tensor_tiles.is_faster(found.problem, found.features) else plainly
            losses.setdefault(kind, []).append((taken / min(usual, plainly), usual / min(usual, plainly)))
            function = torch_function(case, operands, tf32=kind == "tf32")
            theirs = torch_milliseconds(function) * 1e3 if function is not None else None
            flops = operations(case) / 1e6
            rows.append(
                [
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
                    f"{plainly:.1f}",
                    f"{without:.1e}",
                ]
            )
        if samples is not None:
            samples.write_text(json.dumps(record), "utf-8")
    choices = [
        f"{kind}: tensor cores where they are estimated to be faster {taken:.2f}x, always {always:.2f}x"
        for kind, its in losses.items()
        for taken, always in [np.exp(np.log(its).mean(0))]
    ]
    return record, Table(HEADER, rows), choices


def write(target: Path, records: Sequence[DeviceTimes]) -> None:
    """Write the table. Rows of products that were not measured stay as they are."""
    kept = json.loads(TARGET.read_text("utf-8"))
    rows, measured_on = kept["tiles"], [f"{record['device']}, {record['architecture']}" for record in records]
    made = tables(records)
    if set(rows) - set(made):
        measured_on += kept["devices"]
    for kind, measured in made.items():
        rows[kind] = [[*astuple(m.tile), round(m.rate), round(m.latency, 3), m.fixed] for m in measured]
    lines = [
        f'    "{kind}": [\n      ' + ",\n      ".join(map(json.dumps, its)) + "\n    ]" for kind, its in rows.items()
    ]
    columns = (
        "rows, columns, terms, warps, stages, products/us of a multiprocessor, us of a lone step, us without steps"
    )
    head = (
        '{\n  "written by": "python -m benchmarks cuda_tune",\n'
        f'  "devices": {json.dumps(list(dict.fromkeys(measured_on)))},\n'
        f'  "columns": "{columns}",\n'
    )
    target.write_text(head + '  "tiles": {\n' + ",\n".join(lines) + "\n  }\n}\n", "utf-8")


def main(
    only: Annotated[
        list[str] | None, typer.Option(help="A case, by a part of its name; no table is written. Default: all.")
    ] = None,
    products: Annotated[
        list[str] | None, typer.Option(help=f"Products to measure: {', '.join(KINDS)}. Default: all.")
    ] = None,
    target: Annotated[Path, typer.Option(help="The file of the table.")] = TARGET,
    samples: Annotated[Path | None, typer.Option(help="Where all times are written, as JSON.")] = None,
    fit: Annotated[
        list[Path] | None, typer.Option(help="Measure nothing, and make the table of times that were written here.")
    ] = None,
) -> None:
    """Measure tiles, and write the table."""
    if fit:
        write(target, [json.loads(path.read_text("utf-8")) for path in fit])
        return
    kinds = list(dict.fromkeys(products or KINDS))
    if unknown := set(kinds) - set(KINDS):
        raise typer.BadParameter(f"no products '{min(unknown)}'; known are: {', '.join(KINDS)}")
    cases = [case for case in SHAPES if not only or any(part in case.name for part in only)]
    if not cases:
        raise typer.BadParameter(f"no case has '{', '.join(only or [])}' in its name")
    if devices.trouble():
        raise SystemExit(f"cuda_tune: {devices.trouble()}")
    record, table, choices = measure(NvidiaDriver(0), cases, kinds, samples)
    table.show(width=160)
    print(*choices, sep="\n")
    if not only:
        write(target, [record])
