"""Modules of PyTorch as graphs, and in torch.compile: `make models-torch`.

    python -m benchmarks torch                    # the file keeps finished rows, and the next run measures what is missing
    python -m benchmarks torch --device cuda      # calls of torch.compile beside inductor with CUDA graphs
    python -m benchmarks torch --render           # writes docs/models-torch.md of the files

Needs the extra torch-tests, and the packages of `tools/torch_modules.txt`. The modules are those of `tools/torch_modules.py`.
Each is measured in separate processes, whose caches on disk are empty.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.reduction import DupFd
from pathlib import Path
from statistics import geometric_mean, median
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Annotated, Any, Literal

import typer

from . import conclusions
from .budgets import TORCH, TORCH_COMPILE, Budget
from .measure import Ratio, alone, alternate, elapsed, environment, script
from .page import DOCS, Table, machine, versions, yes
from .record import Record, read, resumed

PAGE = DOCS / "models-torch.md"
RECORDS = {"cpu": DOCS / "models-torch.json", "cuda": DOCS / "models-torch-cuda.json"}

PACKAGES = ("opweave", "onnxruntime", "torch", "onnxscript", "transformers", "timm", "torchvision", "torchao")

COMPILED = (
    "bert", "distilbert", "modernbert", "gpt2", "llama", "t5", "vit", "dinov2", "segformer", "clip", "wav2vec2", "detr",
    "efficientnet_b0", "convnext_atto", "swin_tiny_patch4_window7_224", "levit_128s", "resnet18", "mobilenet_v2",
    "densenet121", "r3d_18",
)  # fmt: skip
"""The modules that torch.compile compiles: text, images, sound, detection and video."""

PRECISIONS = {"cpu": ("float32",), "cuda": ("float32", "tf32")}

SECONDS = 900
"""The longest time of a process: inductor compiles some networks for minutes."""

TURNS, PAIRS = 3, 15
"""Turns of loading, and pairs of turns of calls."""

COARSE = ("quantised",)
"""Kinds of modules whose activations are rounded to integers, where a difference of one rounding is a step of 1/127."""

Times = Mapping[str, Sequence[float]]
"""Seconds of "ours" and "theirs", measured in pairs; empty if they were not measured."""


@dataclass
class Conversion:
    """A module that `from_torch` converted.

    Attributes:
        calls: the number of calls of operators in the exported program.
        by_torch: the operators that PyTorch runs, by call.
        error: the root mean square of the difference from eager PyTorch, relative to that of PyTorch's result; the largest of
            all results.
        program: seconds of loading from an exported program, beside `torch.onnx.export` and a session of ONNX Runtime.
        module: the same from the module.
        failure: why `torch.onnx.export` did not make a model that ONNX Runtime runs.
    """

    name: str
    package: str
    kind: str
    calls: int
    by_torch: list[str]
    error: float
    program: Times = field(default_factory=dict)
    module: Times = field(default_factory=dict)
    failure: str = ""

    @property
    def limit(self) -> float:
        """The largest error."""
        return TORCH["error, rounded activations" if self.kind in COARSE else "error"].limit

    @property
    def is_timed(self) -> bool:
        """Whether loading was measured."""
        return bool(self.program) or bool(self.failure)

    def faults(self) -> list[str]:
        """Which limits the module exceeds."""
        limits = {
            "whole": not self.by_torch,
            "error": self.error <= self.limit,
            "from a program": _holds(TORCH["from a program"], self.program),
            "from the module": _holds(TORCH["from the module"], self.module),
        }
        return [name for name, holds in limits.items() if not holds]


@dataclass
class Compilation:
    """A module that torch.compile compiled.

    Attributes:
        precision: "float32", or "tf32" on a GPU.
        error: of Opweave's results, see `Conversion.error`.
        reference: the error of inductor's results.
        compiling: seconds of the first call, with empty caches on disk.
        call: seconds of later calls.
    """

    name: str
    precision: str
    error: float
    reference: float
    compiling: Times = field(default_factory=dict)
    call: Times = field(default_factory=dict)

    @property
    def is_timed(self) -> bool:
        """Whether calls were measured."""
        return bool(self.call)


Row = Conversion | Compilation


@dataclass
class Quiet:
    """Locks for a group of modules that are compiled concurrently, so that no two are measured at the same time.

    First calls are timed one at a time. Later calls are, too, once all modules of the group are prepared.

    Attributes:
        folder: the folder with the locks of the group.
        prepared: an event of `multiprocessing`, set when the later calls of this module can be measured.
    """

    folder: Path
    prepared: Any

    @property
    def first_calls(self) -> Path:
        """The folder that is locked during a first call."""
        return self.folder / "first"

    @property
    def calls(self) -> Path:
        """The folder that is locked until all modules are prepared, and then during the later calls of each module."""
        return self.folder / "calls"


Job = Callable[[Quiet], dict[str, Any]]
"""A function that measures a module, and returns the values of its row."""


def row_of(**values: Any) -> Row:
    """A row of its values in a record."""
    return Compilation(**values) if "precision" in values else Conversion(**values)


def _holds(budget: Budget, times: Times) -> bool:
    return not times or budget.holds(ratio=_ratio(times))


def _ratio(times: Times) -> Ratio:
    return Ratio.of(times["ours"], times["theirs"])


def _share(times: Times) -> str:
    return f"{_ratio(times).median:.2f}x ({median(times['ours']):.2f} s)" if times else ""


# The page -------------------------------------------------------------------------------------------------------------


HEADER = ("module", "package", "kind", "calls", "in PyTorch", "error", "from a program", "from the module", "holds")


def conversions(rows: Sequence[Conversion]) -> Table:
    """The table of converted modules."""
    cells = []
    for row in rows:
        by_torch = ", ".join(f"{count} {name}" for name, count in Counter(row.by_torch).items()) or "none"
        loading = [_share(row.program), _share(row.module)]
        faults = ", ".join(row.faults()) or yes(True)
        cells.append([row.name, row.package, row.kind, str(row.calls), by_torch, f"{row.error:.0e}", *loading, faults])
    return Table(HEADER, cells, right=(3, 5, 6, 7))


def compilations(rows: Sequence[Compilation], device: str) -> Table:
    """The table of compiled modules."""
    cells = []
    for row in sorted(rows, key=lambda row: PRECISIONS[device].index(row.precision)):
        values = [f"{row.error:.0e}", f"{row.reference:.0e}"]
        if row.call:
            ours, theirs = (1e3 * median(row.call[name]) for name in ("ours", "theirs"))
            values += [f"{ours:.3g} ms", f"{theirs:.3g} ms", f"{_ratio(row.call).median:.2f}x"]
        else:
            values += ["", "", ""]
        values += [f"{_ratio(row.compiling).median:.2f}x ({row.compiling['ours'][0]:.1f} s)" if row.compiling else ""]
        cells.append([row.name, row.precision, *values])
    header = ["compiled", "precision", "error", "inductor's", "a call", "inductor", "ratio", "compiling"]
    return Table(header, cells, right=range(2, 8))


def means(rows: Sequence[Compilation], device: str) -> str:
    """The geometric means of compiled modules, beside their limits."""
    parts = []
    for precision in PRECISIONS[device]:
        timed = [row for row in rows if row.precision == precision and row.call]
        if not timed:
            continue
        limits = TORCH_COMPILE[f"{device}, {precision}"]
        calls = [_ratio(row.call) for row in timed]
        mean = geometric_mean([ratio.median for ratio in calls])
        compiling = geometric_mean([_ratio(row.compiling).median for row in timed])
        text = f"In {precision}, a call takes {mean:.2f}x of inductor's time ({limits['mean']})"
        if "each" in limits:
            slow = [row.name for row, ratio in zip(timed, calls, strict=True) if not limits["each"].holds(ratio=ratio)]
            text += f", {', '.join(slow) or 'none'} more than {limits['each'].limit:g}x"
        parts.append(f"{text}, and compiling {compiling:.2f}x ({limits['compiling']}), as geometric means.")
    return "\n".join(parts)


def markdown(records: Mapping[str, Record[Row]]) -> str:
    """The page."""
    record = records["cpu"]
    converted = [row for row in record.rows if isinstance(row, Conversion)]
    holds = sum(not row.faults() for row in converted)
    failed = "".join(f"- {name}: {reason}\n" for name, reason in sorted(record.failures.items()) if "/" not in name)
    without = "".join(f"- {row.name}: {row.failure}\n" for row in converted if row.failure)
    parts = [
        f"""# Modules of PyTorch

Modules of transformers, timm, torchvision and torchao with random weights (`tools/torch_modules.py`), as graphs
([PyTorch](pytorch.md)). Made by `make models-torch` (which is `python -m benchmarks torch`) on: {record.machine}.

Limits: no operator in PyTorch; an error of {TORCH["error"].limit:g}, or {TORCH["error, rounded activations"].limit:g} where
activations are rounded to integers; loading from a program {TORCH["from a program"]}, from the module
{TORCH["from the module"]}. {holds} of {len(converted)} modules are within the limits of what was measured; empty cells
were not measured.

{conversions(converted)}

| Column | What it is |
| --- | --- |
| calls | the number of calls of operators in the program of `torch.export` |
| in PyTorch | the operators that PyTorch runs, because nothing else can |
| error | the root mean square of the difference from eager PyTorch, relative to that of the result; the largest of all \
results |
| from a program | the time of `from_torch(program)` and a first call, as a share of that of `torch.onnx.export(program)`, a \
session of ONNX Runtime, and its first call; in parentheses, the seconds |
| from the module | the same with `torch.export` in both |
"""
    ]
    if without:
        parts.append(f"Modules that `torch.onnx.export` or ONNX Runtime refuses have no loading time:\n\n{without}")
    if failed:
        parts.append(f"Not converted:\n\n{failed}")
    titles = {
        "cpu": "## torch.compile on a CPU, beside inductor",
        "cuda": "## torch.compile with CUDA, beside inductor with CUDA graphs",
    }
    for device, each in records.items():
        compiled = [row for row in each.rows if isinstance(row, Compilation)]
        if compiled:
            origin = "" if device == "cpu" else f"On {each.device}; {each.machine}.\n\n"
            text = means(compiled, device)
            text += "\n\n" if text else ""
            parts.append(f"{titles[device]}\n\n{origin}{text}{compilations(compiled, device)}\n")
            missed = [f"- {name}: {reason}\n" for name, reason in sorted(each.failures.items()) if "/" in name]
            if missed:
                parts.append(f"Not measured:\n\n{''.join(missed)}")
    parts.append(
        """Calls are `torch.compile(module, backend="opweave")` and `torch.compile(module)`, with `mode="reduce-overhead"` on a
GPU, under `torch.inference_mode()`, alternately; ratios are medians of pairs. Compiling is the first call, in a process that
has compiled a small module before, with empty caches on disk. With `--jobs`, other modules may be prepared while a first call
is timed, but not while later calls are.
"""
    )
    return "\n".join(parts)


def write_page() -> None:
    """Write the page of the files that there are."""
    records = {device: read(path, row_of) for device, path in RECORDS.items() if path.exists()}
    conclusions.write(PAGE.name, markdown(records))
    print(f"wrote {PAGE}")


# The command ----------------------------------------------------------------------------------------------------------


def main(
    device: Annotated[str, typer.Option(help='"cpu", or "cuda", which measures calls of torch.compile alone.')] = "cpu",
    only: Annotated[list[str] | None, typer.Option(help="A module. Default: all.")] = None,
    part: Annotated[str, typer.Option(help='"convert" or "compile". Default: both.')] = "",
    times: Annotated[bool, typer.Option(help="Measure times, too.")] = True,
    turns: Annotated[int, typer.Option(min=1, help="How often a module is loaded in each way.")] = TURNS,
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of turns of calls.")] = PAIRS,
    jobs: Annotated[int, typer.Option(min=1, help="Number of modules that torch.compile compiles at a time.")] = 1,
    minutes: Annotated[float, typer.Option(help="Begin no module after so many minutes.")] = float("inf"),
    again: Annotated[bool, typer.Option(help="Measure also what the file already has.")] = False,
    keep: Annotated[Path | None, typer.Option("--json", help="Where rows are kept, after each module.")] = None,
    render: Annotated[bool, typer.Option("--render", help="Measure nothing, and write the page.")] = False,
) -> None:
    """Measure the modules that the file does not have, and write docs/models-torch.md."""
    if render:
        write_page()
        return
    if device not in RECORDS or part not in ("", "convert", "compile"):
        raise typer.BadParameter(f"there is no device {device!r} or no part {part!r}; see --help")
    path = keep or RECORDS[device]
    record = resumed(path, row_of, _description(device), _machine(device))
    finished = {key_of(row) for row in record.rows if not again and (row.is_timed or not times)}
    every = _jobs(device, only, part, times, turns, pairs)
    missing = {key: job for key, job in every.items() if key not in finished}
    places = {key: place for place, key in enumerate(_jobs(device, None, "", times, turns, pairs))}
    start, done = time.monotonic(), 0
    for group in _groups(list(missing), jobs):
        if elapsed() > 60 * minutes:
            break
        began = time.monotonic()
        outcomes = {}
        for key, future in _measure_group({key: missing[key] for key in group}).items():
            try:
                row, outcomes[key] = row_of(**future.result()), "ok"
                record.rows = [each for each in record.rows if key_of(each) != key] + [row]
                record.failures.pop(key, None)
            except (RuntimeError, TimeoutError) as error:
                outcomes[key] = record.failures[key] = _reason(str(error))
        record.rows.sort(key=lambda row: places.get(key_of(row), len(places)))
        record.write(path)
        done += len(group)
        now = time.monotonic()
        left = (now - start) / done * (len(missing) - done) / 60
        text = "; ".join(f"{key}: {outcome}" for key, outcome in outcomes.items())
        print(f"{done}/{len(missing)} {text} [{now - began:.0f} s, about {left:.0f} min left]", flush=True)
    if path == RECORDS[device]:
        write_page()


def key_of(row: Row) -> str:
    """The name of a row in a record: "bert" of a conversion, "bert/float32" of a compilation."""
    return f"{row.name}/{row.precision}" if isinstance(row, Compilation) else row.name


def _groups(keys: Sequence[str], jobs: int) -> list[list[str]]:
    """Groups of rows that are measured together: each conversion alone, and up to `jobs` compilations."""
    conversions = [[key] for key in keys if "/" not in key]
    compilations = [key for key in keys if "/" in key]
    return conversions + [compilations[start : start + jobs] for start in range(0, len(compilations), jobs)]


def _measure_group(group: Mapping[str, Job]) -> dict[str, Future[dict[str, Any]]]:
    """Run the jobs of a group concurrently, and return their completed futures."""
    with TemporaryDirectory(prefix="opweave-torch-") as folder, ThreadPoolExecutor(len(group)) as pool:
        waits = {key: Quiet(Path(folder), _forks().Event()) for key in group}
        for quiet in waits.values():
            quiet.first_calls.mkdir(exist_ok=True)
            quiet.calls.mkdir(exist_ok=True)
        with alone(Path(folder, "calls")):
            futures = {key: pool.submit(_run_job, job, waits[key]) for key, job in group.items()}
            for quiet in waits.values():
                quiet.prepared.wait()
        return futures


def _run_job(job: Job, quiet: Quiet) -> dict[str, Any]:
    """Run a job. The group must not wait for a job that ends or fails without later calls, so it counts as prepared."""
    try:
        return job(quiet)
    finally:
        quiet.prepared.set()


def _jobs(device: str, only: Sequence[str] | None, part: str, times: bool, turns: int, pairs: int) -> dict[str, Job]:
    """The job of each row, by the key of the row."""
    modules = script("torch_modules").MODULES
    if unknown := set(only or ()) - set(modules):
        raise typer.BadParameter(f"there is no module {', '.join(sorted(unknown))}")
    jobs: dict[str, Job] = {}
    if device == "cpu" and part != "compile":
        for name in modules:
            if not only or name in only:
                jobs[name] = partial(_alone, "convert", name, turns if times else 0)
    if part != "convert":
        for precision in PRECISIONS[device]:
            for name in COMPILED:
                if not only or name in only:
                    count = pairs if times else 0
                    jobs[f"{name}/{precision}"] = partial(_compile_twice, name, device, precision, count)
    return jobs


def _alone(*args: Any) -> dict[str, Any]:
    """Measure in a process with empty caches on disk."""
    with TemporaryDirectory(prefix="opweave-torch-") as folder:
        return _in_folder(folder, *args)


def _in_folder(folder: str, *args: Any) -> dict[str, Any]:
    """Measure in a process with PyTorch's caches in a folder, and an empty one for Opweave."""
    with TemporaryDirectory(dir=folder) as own:
        extra = {"OPWEAVE_CACHE": own}
        extra |= {name: str(Path(folder, name.lower())) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        return _in_fork(args, extra)


@cache
def _forks() -> Any:
    """Start processes as forks of one that has imported PyTorch and the packages of modules, which takes seconds."""
    os.environ |= environment()
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, "benchmarks.torch_packages"])
    return context


def _in_fork(args: Sequence[Any], extra: Mapping[str, str]) -> dict[str, Any]:
    """Run a step in a fork, with these environment variables; errors are those of `measure.in_process`."""
    receiver, sender = _forks().Pipe(duplex=False)
    with receiver, TemporaryFile() as log:
        process = _forks().Process(target=_answer, args=(sender, DupFd(log.fileno()), args, extra))
        process.start()
        sender.close()
        try:
            if not receiver.poll(SECONDS):
                raise TimeoutError(f"takes more than {SECONDS:g} s")
            row: dict[str, Any] = receiver.recv()
            process.join(SECONDS)
            return row
        except EOFError:
            process.join()
            log.seek(0)
            text = log.read().decode(errors="replace").strip()[-2000:]
            raise RuntimeError(f"{' '.join(map(str, args[:-1]))} ends with {process.exitcode}: {text}") from None
        finally:
            process.kill()
            process.join()


def _answer(sender: Any, log: Any, args: Sequence[Any], extra: Mapping[str, str]) -> None:
    """Run a step in a fork, whose output goes to a file."""
    os.dup2(log.detach(), 1)
    os.dup2(1, 2)
    os.environ |= extra
    sender.send(STEPS[args[0]](*args[1:]))


def _compile_twice(name: str, device: str, precision: str, pairs: int, quiet: Quiet) -> dict[str, Any]:
    """Measure a compilation in two processes: each compiler is the first in one of them, whose time of compiling counts.

    Inductor's caches are empty in the first process. The second one finds what the first has compiled, so that only Opweave
    compiles there.
    """
    if not pairs:
        return {**_alone("compile", name, device, precision, pairs, "ours", quiet), "compiling": {}}
    with TemporaryDirectory(prefix="opweave-torch-") as folder:
        other = _in_folder(folder, "compile", name, device, precision, 0, "theirs", quiet)
        row = _in_folder(folder, "compile", name, device, precision, pairs, "ours", quiet)
    return {**row, "compiling": row["compiling"] | other["compiling"]}


def _description(device: str) -> str:
    if device == "cpu":
        return ""
    import opweave as ow

    return ow.ml.create_context(device=device).device.description


def _machine(device: str) -> str:
    more = ("triton",) if device == "cuda" else ()
    return f"{machine().partition(';')[0]}; {versions(*PACKAGES, *more)}"


def _reason(text: str) -> str:
    """The last line of an error's text that is an error, and no place in the code."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)  # colours
    lines = [line for line in text.splitlines() if ": " in line]
    return (lines or [text])[-1].strip()[:300]


# In separate processes ------------------------------------------------------------------------------------------------


def error_of(expected: Any, results: Any) -> float:
    """The largest error of results: the root mean square of differences, relative to that of the expected values."""
    import torch
    from torch.utils import _pytree

    worst = 0.0
    for tensor, result in zip(_pytree.tree_leaves(expected), _pytree.tree_leaves(results), strict=True):
        if not isinstance(tensor, torch.Tensor) or not tensor.numel():
            continue
        assert tensor.shape == result.shape
        exact, other = tensor.double().cpu(), result.double().cpu()
        same = (exact == other) | (exact.isnan() & other.isnan())
        size = exact[exact.isfinite()].square().mean().sqrt()
        worst = max(worst, float(torch.where(same, 0, exact - other).square().mean().sqrt() / size))
    return worst


def convert(name: str, turns: int, quiet: Quiet) -> dict[str, Any]:
    """Convert a module, compare it with eager PyTorch, and measure how long loading takes."""
    import torch

    import opweave as ow

    tools = script("torch_modules")
    module = tools.MODULES[name]
    context = ow.ml.create_context(device="cpu")
    network, arguments = module.build()
    # Calls of a graph update the buffers of its module, such as a cache, so that eager PyTorch gets a module of its own.
    eager, _ = module.build()
    with torch.no_grad():
        expected = eager(*deepcopy(arguments))
    program = tools.export_network(module, network, arguments)
    compiled = ow.from_torch(program, context=context)
    values = {
        "name": name,
        "package": module.package,
        "kind": module.kind,
        "calls": sum(tools.operators_of(program).values()),
        "by_torch": [call.name for call in compiled.fallbacks],
        "error": error_of(expected, compiled(*deepcopy(arguments))),
    }
    if not turns:
        return values
    del compiled, eager
    with TemporaryDirectory(prefix="opweave-torch-") as folder:
        names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
        export = partial(tools.export_network, module)

        def ours(source: Any) -> None:
            ow.from_torch(source(), context=context)(*deepcopy(arguments))

        def theirs(source: Any) -> None:
            _session(source(), arguments, Path(folder, "model.onnx"), names)

        # What each way imports, and compiles for itself, is no part of loading.
        small = torch.nn.Linear(2, 2).eval()
        sample = (torch.zeros(1, 2),)
        warm = torch.export.export(small, sample)
        ow.from_torch(warm, context=context)(*sample)
        _session(warm, sample, Path(folder, "warm.onnx"), ["input"])
        sources = {"program": lambda: program, "module": lambda: export(network, arguments)}
        try:
            for key, source in sources.items():
                values[key] = loading({"ours": partial(ours, source), "theirs": partial(theirs, source)}, turns)
        except OnnxFailure as error:
            values |= {"program": {}, "module": {}, "failure": str(error)}
    return values


def loading(ways: Mapping[str, Callable[[], None]], turns: int) -> dict[str, list[float]]:
    """Seconds of each way in each turn; the first turn's order is reversed in the next."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns):
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            start = time.perf_counter()
            ways[name]()
            times[name].append(time.perf_counter() - start)
    return times


class OnnxFailure(Exception):  # noqa: N818  (what happened, not a fault here)
    """`torch.onnx.export` or ONNX Runtime refuses a module."""


def _session(program: Any, arguments: Sequence[Any], path: Path, names: Sequence[str]) -> None:
    """Export to ONNX, create a session, and run it once."""
    import onnxruntime
    import torch

    try:
        torch.onnx.export(program, (), path, dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        arrays = dict(zip(names, [argument.numpy() for argument in arguments], strict=True))
        session.run(None, {each.name: arrays[each.name] for each in session.get_inputs()})
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise OnnxFailure(f"{type(error).__name__}: {(lines or [''])[0][:200]}") from error


def compile_module(
    name: str, device: str, precision: str, pairs: int, first: Literal["ours", "theirs"], quiet: Quiet
) -> dict[str, Any]:
    """Compile a module with both compilers, of which one is the first, compare them with eager PyTorch, and measure calls."""
    import torch

    from opweave.pytorch.dynamo import compile_graph

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    module, arguments = script("torch_modules").MODULES[name].build()
    with torch.inference_mode():
        expected = module(*arguments)
        module, arguments = module.to(device), tuple(argument.to(device) for argument in arguments)
        module(*arguments)  # LeViT keeps tensors of its first call; inductor's CUDA graphs would overwrite them
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
        finish = torch.cuda.synchronize if device == "cuda" else lambda: None

        def compiled(network: Any, way: str) -> Callable[..., Any]:
            if way == "ours":
                options = {"precision": precision, "fallback": "error"}
                function = torch.compile(network, backend=compile_graph, options=options)
            else:
                function = torch.compile(network, mode="reduce-overhead" if device == "cuda" else None)
            return lambda *values: (function(*values), finish())[0]

        order = ("ours", "theirs") if first == "ours" else ("theirs",)
        small = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).to(device).eval()
        for way in order:
            compiled(small, way)(torch.ones(2, 64, device=device))
        functions: dict[str, Callable[[], Any]] = {}
        errors: dict[str, float] = {}
        compiling: dict[str, list[float]] = {}
        for way in order:
            functions[way] = partial(compiled(module, way), *arguments)
            with alone(quiet.first_calls) if way == first else nullcontext():
                start = time.perf_counter()
                result = functions[way]()
                if way == first:
                    compiling[way] = [time.perf_counter() - start]
            errors[way] = error_of(expected, result)
            for _ in range(3):  # inductor records CUDA graphs in the second call
                functions[way]()
        call = {}
        if pairs:
            quiet.prepared.set()
            with alone(quiet.calls):
                call = alternate(functions, pairs=pairs)
    return {
        "name": name,
        "precision": precision,
        "error": errors.get("ours"),
        "reference": errors["theirs"],
        "compiling": compiling,
        "call": call,
    }


STEPS: dict[str, Callable[..., dict[str, Any]]] = {"convert": convert, "compile": compile_module}
