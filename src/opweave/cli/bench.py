"""The command `opweave bench`: a model on all engines of this machine, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..support.errors import OperationError, require
from .common import Operations, PrecisionName, Verbose, app, console, errors
from .models import (
    Bounds,
    DeviceName,
    Inputs,
    Mean,
    ModelOrGraph,
    Seed,
    Sizes,
    Std,
    open_graph,
    open_program,
    open_session,
)
from .tune import INTERRUPTED

if TYPE_CHECKING:
    from .engines import Job, Result

RELATIVE = "relative to the largest number"
"""The reference of differences between outputs (`agreement.difference`)."""


@app.command()
def bench(
    model: ModelOrGraph,
    inputs: Inputs = None,
    engines: Annotated[
        str | None,
        typer.Option(
            help="Back ends or devices, separated by commas; auto is Opweave's choice. Default: all but slow ones."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.01, help="Time to measure, in seconds.")] = 5.0,
    chart: Annotated[Path | None, typer.Option(help="Write a chart of the times to this .svg file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    mean: Mean = "0",
    std: Std = "1",
    seed: Seed = 0,
    fix_shapes: Sizes = None,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(
            "--dynamic",
            metavar="NAME=SIZE,SIZE...",
            help="Sizes of a dynamic dimension that change between calls, as in length=16,64,256, or shapes of an input, as "
            "in image=1x64,1x128. All engines run them in turn.",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads of an operation, for all engines. Default: theirs.")
    ] = None,
    limit: Bounds = None,
    device: DeviceName = None,
    precision: PrecisionName = "float32",
    operations: Operations = None,
    verbose: Verbose = False,
) -> None:
    """Compare the time, memory and results of a model on the engines of this machine with ONNX Runtime's, or PyTorch's.

    auto is InferenceSession(model) with its defaults, and the table names what it chose; the others compile the model.
    Dimensions stay dynamic, unless --fix-shapes fixes them. Inputs are random unless given, and dynamic dimensions count
    as 1 in them, unless --dynamic, --fix-shapes or an input says otherwise. The sentence below the table compares auto with
    the others; differences below the noise of the rounds are not reported.

    Each engine has its own process; they are measured alternately, each while the others are quiet. Ctrl-C shows what
    was measured until then.

    A .pt2 file is compared with eager PyTorch; auto is what from_torch makes of it. Dynamic dimensions have the sizes
    of the arguments that the program was exported with. An .opweave file is compared on the back ends alone: auto is what
    MLContext.load makes of it in a context with defaults.
    """
    from rich.progress import Progress

    from ..onnx.session.parts import parts_of
    from ..support.files import atomic_writer, check_writable
    from .engines import BASE_LINE, PROGRAM_BASE_LINE, Job, Result, engines as find_engines, measure, verdict
    from .graphs import is_saved_graph
    from .inputs import assumption, limits, numbers, shapes_in_turn, sizes
    from .programs import is_program

    if chart is not None:
        is_svg = chart.suffix.lower() == ".svg"
        require(is_svg, f"bench: the name of the chart must end with .svg, got {str(chart)!r}")
        check_writable(chart)
    engine_names = engines.split(",") if engines else None
    options = {"fix_shapes": sizes(fix_shapes or []), "limits": limits(limit or [])}
    if is_program(model):
        base_line, arguments, fixed = PROGRAM_BASE_LINE, open_program(model, fix_shapes, limit).inputs, dict[str, int]()
    elif is_saved_graph(model):
        base_line, arguments, fixed = "", open_graph(model, fix_shapes, limit, "cpu").inputs, dict[str, int]()
    else:
        parts = parts_of(open_session(model, fix_shapes, limit, "cpu"))
        base_line, arguments, fixed = BASE_LINE, parts.inputs, parts.sizes_by_name()
    sources = ([*(inputs or []), "random"], seed, numbers(mean, "--mean"), numbers(std, "--std"))
    feeds, assumed = shapes_in_turn(arguments, dynamic or [], *sources)
    advice = assumption(assumed, "--dynamic")
    candidates, results, is_interrupted = find_engines(engine_names, device, base_line), list[Result](), False
    job = Job(str(model), feeds, options, precision, operations, threads, fixed)
    # Without a terminal, a transient bar still writes an empty line.
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("measuring", total=1.0)
        try:
            measure(candidates, job, seconds, lambda share: progress.update(task, completed=share), results)
        except KeyboardInterrupt:
            is_interrupted = True
    if is_interrupted:
        results = [result for result in results if result.turns or result.reason]
        if not any(result.turns for result in results):
            errors.print("interrupted before an engine was measured")
            raise typer.Exit(INTERRUPTED)
    elif not any(result.turns for result in results if result.engine.name != base_line):
        own = [result for result in results if result.engine.name != base_line]
        reasons = dict.fromkeys(result.reason for result in own if result.reason)
        kinds = {result.error for result in own if result.reason}
        kind = kinds.pop() if len(kinds) == 1 else OperationError
        raise kind(f"no engine runs the model: {'; '.join(reasons)}{'. ' if advice else ''}{advice}")
    first = next(result for result in results if result.turns)
    if as_json:
        console.print(json.dumps(_summary(job, results, first), indent=2), soft_wrap=True)
    else:
        _print(results, first)
        if fix_shapes and base_line == BASE_LINE:
            console.print(f"sessions with fixed shapes: {options['fix_shapes']}", soft_wrap=True)
        console.print(verdict(results), soft_wrap=True)
    if advice:
        (errors if as_json else console).print(advice, soft_wrap=True)
    if chart is not None:
        from .chart import chart as chart_of

        with atomic_writer(chart) as file:
            file.write(chart_of(results, f"{model.name}: time of a run").encode())
        errors.print(f"wrote {chart}", soft_wrap=True)
    if is_interrupted:
        errors.print("interrupted; these are the results until then")
        raise typer.Exit(INTERRUPTED)


def _summary(job: Job, results: Sequence[Result], first: Result) -> dict[str, Any]:
    import numpy as np

    from .engines import verdict

    shapes = [{name: list(np.shape(value)) for name, value in feed.items()} for feed in job.feeds]
    options = {"fix_shapes": dict(job.options["fix_shapes"]), "threads": job.threads, "precision": job.precision}
    engines = [_record(result, first) for result in results]
    return {"model": job.model, "shapes": shapes, **options, "verdict": verdict(results), "engines": engines}


def _record(result: Result, first: Result) -> dict[str, Any]:
    engine = result.engine
    device = next((choice["device"] for choice in result.choices.values()), engine.device)
    record: dict[str, Any] = {"engine": engine.name, "backend": engine.backend, "device": device}
    if not result.turns:
        return record | {"reason": result.reason}
    lower, middle, upper = result.quartiles
    times = {"median": middle, "lower_quartile": lower, "upper_quartile": upper, "runs": len(result.times)}
    ratios = dict(zip(("lower_ratio", "ratio", "upper_ratio"), result.ratios(first), strict=True))
    rest = {"build": result.build, "memory": result.memory, "difference": result.difference}
    choices = {"chosen": result.chosen or None, "choices": result.choices}
    return record | choices | times | ratios | rest


def _print(results: Sequence[Result], first: Result) -> None:
    from ..support.formatting import duration, size, table
    from .engines import ROUNDS

    rows = [("engine", "median", "quartiles", "ratio", "build", "memory", "difference")]
    for result in results:
        if not result.turns:
            rows.append((result.engine.name, "cannot run it", "", "", "", "", ""))
            continue
        lower, middle, upper = result.quartiles
        low, ratio, high = result.ratios(first)
        cells = (
            duration(middle),
            f"{duration(lower, middle)} to {duration(upper, middle)}",
            f"{ratio:.2f} ({low:.2f} to {high:.2f})",
            duration(result.build),
            size(max(result.memory, 0)),
            "other shapes" if result.difference is None else f"{result.difference:.2g}",
        )
        rows.append((result.label, *cells))
    console.print("\n".join(table(rows, words=1)), soft_wrap=True)
    name = first.engine.name
    console.print(
        f"ratio: to {name} in the same round, the median and quartiles of {ROUNDS} rounds; build: until the first result",
        soft_wrap=True,
    )
    console.print(
        f"memory: by which the process grew; difference: from the outputs of {name}, {RELATIVE}", soft_wrap=True
    )
    for result in results:
        if result.reason:
            console.print(f"{result.engine.name} cannot run it: {result.reason}", soft_wrap=True)
