"""`opweave profile`: the time of each step and of the slowest kernels of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

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
    open_model,
    open_session,
    print_choice,
)


@app.command()
def profile(
    model: ModelOrGraph,
    inputs: Inputs = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Number of runs to measure.")] = 10,
    detail: Annotated[
        bool,
        typer.Option("--detail", help="List all kernels, also of programs of several steps, and the totals of each."),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write a timeline for ui.perfetto.dev to this .json file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    mean: Mean = "0",
    std: Std = "1",
    seed: Seed = 0,
    fix_shapes: Sizes = None,
    limit: Bounds = None,
    device: DeviceName = None,
    precision: PrecisionName = "float32",
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="Threads of an operation on the CPU. Default: all processors."),
    ] = None,
    operations: Operations = None,
    verbose: Verbose = False,
) -> None:
    """Measure a model: the time of a run, of its steps, and of its slowest kernels, by the names of the model's nodes.

    A session with its defaults runs these inputs in the same program. Kernels are measured in separate runs, since measuring
    slows engines down. Inputs are random unless given. Dynamic dimensions count as 1, unless --fix-shapes or an input says
    otherwise.

    The graph of a .pt2 file is that of `from_torch`. Dynamic dimensions have the sizes of the arguments that the program was
    exported with.
    """
    from contextlib import nullcontext

    import numpy as np

    from ..onnx.session.session import InferenceSession
    from ..run.timeline import check_trace
    from ..support.progress import report_work
    from .graphs import GraphSession
    from .inputs import assumption, explain_assumption, gather, numbers

    if trace is not None:
        check_trace(trace)
    session, arguments = open_model(model, fix_shapes, limit, device, precision, threads)
    feed = gather(arguments, [*(inputs or []), "random"], seed, numbers(mean, "--mean"), numbers(std, "--std"))
    assumed = [a for a in arguments if np.shape(feed[a.name]) == a.assumed_shape()]
    with explain_assumption(assumed) if assumed else nullcontext(), report_work(f"measuring {model.name}"):
        measured = session.profile(feed, repeat=repeat, detail=detail)
    if as_json:
        console.print(json.dumps(measured.to_dict(), indent=2), soft_wrap=True)
    else:
        if isinstance(session, InferenceSession):
            print_choice(session, fix_shapes, lambda: open_session(model, None, limit, device, precision, threads))
        elif isinstance(session, GraphSession):
            console.print(session.origin(), soft_wrap=True)
        console.print(f"\n{measured}", soft_wrap=True)
    output = errors if as_json else console
    if advice := assumption(assumed):
        output.print(advice, soft_wrap=True)
    if trace is not None:
        measured.save_trace(trace)
        output.print(f"wrote {trace}", soft_wrap=True)
