"""`opweave diff`: the first operation whose results differ on another device or engine, in another model, or in PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from ..support.formatting import shorten
from .common import Operations, Verbose, app, console, errors
from .models import Bounds, Inputs, Mean, ModelOrProgram, Seed, Sizes, Std, open_program
from .tune import INTERRUPTED

DIFFERENT = 1
"""The exit status if operations differ, like that of `diff` in Unix."""


@app.command()
def diff(
    model: ModelOrProgram,
    other: Annotated[
        Path | None, typer.Argument(help="Another .onnx file of the same structure. Default: the same one.")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="DEVICE[:BACKEND][@PRECISION]",
            help="Where the model runs, as in cpu:openvino@bfloat16; `opweave devices` lists them. Default: the best.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="DEVICE[:BACKEND][@PRECISION]",
            help="Where the other side runs. Default: reference, which computes in float64; with OTHER, the same as --on.",
        ),
    ] = None,
    inputs: Inputs = None,
    seed: Seed = 0,
    mean: Mean = "0",
    std: Std = "1",
    fix_shapes: Sizes = None,
    limit: Bounds = None,
    tolerance: Annotated[float, typer.Option("--tolerance", min=0, help="A factor for all tolerances.")] = 1.0,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write a report to this .html file.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers to this .json file.")
    ] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Maximum number of operations to list.")] = 16,
    operations: Operations = None,
    verbose: Verbose = False,
) -> None:
    """Find the operation of a model whose results differ between two devices, engines, precisions or models.

    Each operation is compared twice: on the same inputs (`own error`), and end to end. The inputs of the model are random
    unless they are given. Dynamic dimensions count as 1, unless --fix-shapes or an input says otherwise. The exit status is 1
    if an operation differs by more than its tolerance. Ctrl-C shows what was compared until then.

    The operations of a .pt2 file are compared with the values that PyTorch computes.
    """
    from ..inspect.diff import comparison
    from ..inspect.diff.places import context_of
    from ..inspect.diff.result import check_report
    from ..onnx.model.model import Model
    from ..onnx.session.load import arguments_of
    from ..support.files import atomic_writer, check_writable
    from .inputs import explain_assumption, gather, limits, numbers, sizes
    from .programs import is_program, refuse_options

    if report is not None:
        check_report(report)
    if json_file is not None:
        check_writable(json_file)
    bounds, fixed = limits(limit or []), sizes(fix_shapes or [])
    program = None
    if is_program(model):
        refuse_options(model, OTHER=other, against=against)
        program = open_program(model, fix_shapes, limit)
    arguments = program.inputs if program is not None else arguments_of(Model.load(model, bounds), fixed)
    feed = gather(arguments, inputs or ["random"], seed, numbers(mean, "--mean"), numbers(std, "--std"))
    place = None if on is None else context_of(on)
    compared: Any
    with explain_assumption(arguments):
        if program is not None:
            compared = program.comparison(feed, place, tolerance)
            count = compared.count
        else:
            compared = comparison(
                model,
                other,
                feed,
                on=place,
                against=against,
                tolerance=tolerance,
                limits=bounds,
                title=model.name if other is None else f"{model.name} and {other.name}",
            )
            count = len(compared.a.nodes)
    columns = TextColumn("{task.description}", markup=False), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn()
    is_interrupted = False
    # Without a terminal, a transient bar still writes an empty line.
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("comparing", total=count)

        def show(done: int, count: int, title: str) -> None:
            bar.update(task, completed=done, total=count, description=shorten(title, 40))

        try:
            compared.run(show)
        except KeyboardInterrupt:
            is_interrupted = True
    result = compared.result()
    console.print(Text(result.text(rows)), soft_wrap=True)
    if report is not None:
        result.save(report)
        console.print(f"wrote {report}", soft_wrap=True)
    if json_file is not None:
        with atomic_writer(json_file) as file:
            file.write(json.dumps(result.to_dict(), indent=1).encode())
        console.print(f"wrote {json_file}", soft_wrap=True)
    if is_interrupted:
        raise typer.Exit(INTERRUPTED)
    if result.first is not None:
        raise typer.Exit(DIFFERENT)
