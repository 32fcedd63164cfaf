"""`opweave tune`: find the fastest engine for a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import BadParameter, Operations, Verbose, app, console, errors
from .models import Bounds, DeviceName, Sizes, open_model, open_session, print_choice

if TYPE_CHECKING:
    from ..compile.engines import Measurement
    from ..onnx.session.session import InferenceSession
    from .graphs import GraphSession
    from .programs import ProgramSession

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it."""


@app.command()
def tune(
    model: Annotated[
        Path | None,
        typer.Argument(
            help="An .onnx file, a .pt2 file of `torch.export.save`, or an .opweave file of `opweave compile`."
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="NAME=SIZE[,NAME=SIZE]",
            help="Shapes to tune, as in image=1x3x224x224 or batch=1,length=64, once for each. Dimensions that are not named "
            "count as 1, or in a .pt2 file as in the example of the export. Default: one, where no dimension is named. "
            "Dimensions stay dynamic, other than with --fix-shapes.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0, help="How long to measure for each of the shapes.")
    ] = 4.0,
    show: Annotated[bool, typer.Option("--list", help="Show all that is kept, instead.")] = False,
    fix_shapes: Sizes = None,
    limit: Bounds = None,
    device: DeviceName = None,
    operations: Operations = None,
    verbose: Verbose = False,
) -> None:
    """Measure which engine runs a model faster, and keep it: sessions of this model use that engine from then on.

    The last lines say which sessions use the result, and how InferenceSession(model) runs its calls now. The figures are kept
    by model, shapes, processor, threads and versions. Ctrl-C keeps what was measured until then.

    The graph of a .pt2 file is that of `from_torch`, and of `torch.compile` where it captures the same graph.

    Sessions that are used for some seconds have this done by a child process. In images of containers, where its results are
    lost, run this command when the image is built.
    """
    if show == (model is not None):
        raise BadParameter("give either a model or --list")
    if model is None:
        from ..compile.engines import kept_measurements

        by_machine: dict[str, list[Measurement]] = {}
        for measurement in kept_measurements():
            by_machine.setdefault(f"{measurement.machine}; {measurement.versions}", []).append(measurement)
        for machine, group in by_machine.items():
            console.print(machine, soft_wrap=True)
            _print(group)
        if not by_machine:
            console.print("nothing is kept")
        return
    from ..compile.engines import find
    from ..onnx.session.parts import parts_of
    from ..onnx.session.session import InferenceSession
    from .inputs import explain_assumption, shapes_of, sizes

    session, inputs = open_model(model, fix_shapes, limit, device)
    if not isinstance(session, InferenceSession):
        _tune_graph(session, shape or [], seconds)
        return
    cache = parts_of(session).shape_cache
    shape_choices = [shapes_of("--shape", inputs, sizes(_parts(text))) for text in shape or []] or [
        shapes_of("--shape", inputs, {})
    ]
    try:
        with explain_assumption(inputs):
            measurements = session.tune(shape_choices, seconds=seconds).measurements
            _print(measurements)
    except KeyboardInterrupt:
        measured = find(cache.digest, cache.ways)
        if measured:
            _print(measured.values())
            errors.print("interrupted; what the table shows is kept")
        else:
            errors.print("interrupted before the first shape was measured; nothing is kept")
        raise typer.Exit(INTERRUPTED) from None
    kept = [measurement for measurement in measurements if measurement.is_kept]
    if kept:
        shapes = " or ".join(measurement.subject for measurement in kept)
        console.print(
            f"takes effect in sessions of this model that are created from now on, for calls with {shapes}, if their context "
            f"names no back end; on {kept[0].machine}; with {kept[0].versions}",
            soft_wrap=True,
        )
    print_choice(
        open_session(model, fix_shapes, limit, device), fix_shapes, lambda: open_session(model, None, limit, device)
    )
    if len(cache.ways) == 1:
        for advice in _other_engines(session):
            console.print(advice, soft_wrap=True)


def _tune_graph(session: GraphSession | ProgramSession, shape: list[str], seconds: float) -> None:
    """`tune` of a saved graph, or of a program of PyTorch."""
    from .inputs import explain_assumption, gather, sizes, with_sizes

    measurements: list[Measurement] = []
    try:
        for text in shape or [""]:
            arguments = with_sizes(session.inputs, sizes(_parts(text)), "--shape") if text else session.inputs
            with explain_assumption(arguments):
                feed = gather(arguments, ["random"], 0, [0.0], [1.0])
                measurements += session.tune(feed, seconds=seconds).measurements
    except KeyboardInterrupt:
        if measurements:
            _print(measurements)
            errors.print("interrupted; what the table shows is kept")
        else:
            errors.print("interrupted before the first shape was measured")
        raise typer.Exit(INTERRUPTED) from None
    _print(measurements)
    if kept := [measurement for measurement in measurements if measurement.is_kept]:
        console.print(
            "takes effect in equal graphs that are built or loaded from now on, if their context names no back end; on "
            f"{kept[0].machine}; with {kept[0].versions}",
            soft_wrap=True,
        )


def _parts(text: str) -> list[str]:
    """The parts of `--shape`, NAME=SIZE."""
    parts = text.split(",")
    if any(part.isdecimal() for part in parts):
        right = re.sub(r"(?<=\d),(?=\d+(,|$))", "x", text)
        raise BadParameter(f"--shape {text}: x stands between the sizes of a shape: write {right}")
    return parts


def _other_engines(session: InferenceSession) -> list[str]:
    """Hints on installing another engine for the device of a session."""
    from ..backends import devices

    same_name = [device for device in devices() if device.name == session.context.device.name]
    hints = [device.hint for device in same_name if not device.available and device.hint.startswith("pip install")]
    return [f"{hint} adds an engine" for hint in hints]


def _print(measured: Iterable[Measurement]) -> None:
    from ..compile.engines import Tuning

    console.print(str(Tuning(tuple(measured))), soft_wrap=True)
