"""Commands for models: run, info, convert."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ..support.errors import require
from ..support.formatting import size, table
from ..support.names import count_of, printable
from .common import BadParameter, Operations, PrecisionName, Verbose, app, console, errors

if TYPE_CHECKING:
    from ..backends import Backend, Device
    from ..onnx.model.arguments import Argument
    from ..onnx.session.parts import SessionParts
    from ..onnx.session.session import InferenceSession
    from .graphs import GraphSession
    from .programs import ProgramSession

ModelFile = Annotated[Path, typer.Argument(help="An .onnx file.")]
ModelOrProgram = Annotated[
    Path, typer.Argument(help="An .onnx file, or a .pt2 file that `torch.export.save` wrote, which needs PyTorch.")
]
ModelOrGraph = Annotated[
    Path,
    typer.Argument(
        help="An .onnx file, a .pt2 file that `torch.export.save` wrote, which needs PyTorch, or an .opweave file of "
        "`opweave compile`."
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "-i",
        "--input",
        metavar="[NAME=]SOURCE",
        help="A .npy or .npz file, an image, or `random`. Without NAME: the only input not yet given, or all arrays of an "
        ".npz. `random` alone fills all inputs not given.",
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--fix-shapes",
        metavar="NAME=SIZE",
        help="The size of a dynamic dimension, as in batch=1, or the shape of an input, as in image=1x576.",
    ),
]
Bounds = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=COUNT",
        help="A limit while the model is loaded, as in nodes=2000000: nodes, folded_bytes or dense_bytes.",
    ),
]
DeviceName = Annotated[str | None, typer.Option("--device", help="Where to run; `opweave devices` lists them.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of random inputs.")]
Mean = Annotated[
    str, typer.Option("--mean", help="Subtracted from images in [0, 1]: one number or three, 0.5,0.4,0.3.")
]
Std = Annotated[str, typer.Option("--std", help="Divisor of images, after --mean is subtracted: one number or three.")]


def open_session(
    model: Path,
    fixed: list[str] | None,
    limit: list[str] | None,
    device: str | None,
    precision: str = "float32",
    threads: int | None = None,
) -> InferenceSession:
    """Open a session for a model, with the options of the command line."""
    from ..context.context import ml
    from ..onnx.session.session import InferenceSession
    from .inputs import limits, sizes

    # `create_context` checks the names
    context = ml.create_context(device=device, precision=precision, threads=threads)  # type: ignore[arg-type]
    return InferenceSession(model, context, fix_shapes=sizes(fixed or []), limits=limits(limit or []))


def open_model(
    model: Path,
    fixed: list[str] | None,
    limit: list[str] | None,
    device: str | None,
    precision: str = "float32",
    threads: int | None = None,
) -> tuple[InferenceSession | ProgramSession | GraphSession, Sequence[Argument]]:
    """Open a session for a model, a program or a saved graph, with the options of the command line; and its inputs."""
    from ..onnx.session.parts import parts_of
    from .graphs import is_saved_graph
    from .programs import is_program

    if is_saved_graph(model):
        graph = open_graph(model, fixed, limit, device, precision, threads)
        return graph, graph.inputs
    if is_program(model):
        program = open_program(model, fixed, limit, device, precision, threads).converted()
        return program, program.inputs
    session = open_session(model, fixed, limit, device, precision, threads)
    return session, parts_of(session).inputs


def open_graph(
    model: Path,
    fixed: list[str] | None,
    limit: list[str] | None,
    device: str | None = None,
    precision: str = "float32",
    threads: int | None = None,
) -> GraphSession:
    """Open a saved graph, with the options of the command line."""
    from .graphs import GraphSession
    from .inputs import sizes

    if limit:
        raise BadParameter(f"--limit is for models, and {model.name} is a saved graph")
    return GraphSession(model, sizes(fixed or []), device=device, precision=precision, threads=threads)


def open_program(
    model: Path,
    fixed: list[str] | None,
    limit: list[str] | None,
    device: str | None = None,
    precision: str = "float32",
    threads: int | None = None,
) -> ProgramSession:
    """Open a program of PyTorch, with the options of the command line; it is converted when that is needed."""
    from .inputs import sizes
    from .programs import ProgramSession, refuse_options

    refuse_options(model, limit=limit)
    options: dict[str, Any] = {"device": device, "precision": precision, "threads": threads}
    return ProgramSession(model, sizes(fixed or []), **options)


def output_of(command: str, model: Path, target: Path | None, option: Path | None) -> Path:
    """The file to write, which is an argument or the option -o."""
    output = target or option
    if output is None or (target and option):
        problem = "is missing" if output is None else "is given twice"
        raise BadParameter(f"the file to write {problem}: opweave {command} {model.name} OUTPUT.onnx")
    return output


def find_absent(device: str | None) -> tuple[Backend, Device] | None:
    """Return a named device that this machine lacks, and its back end; None if the machine has it, or the name is unknown."""
    from .. import backends

    targets = [target for target in backends.devices() if target.name == device]
    if not targets or any(target.available for target in targets):
        return None
    return backends.discover()[targets[0].backend], targets[0]


def print_choice(session: InferenceSession, fixed: list[str] | None, plain: Callable[[], InferenceSession]) -> None:
    """Print how `session` runs its calls; with `fixed` shapes, also how the session that `plain` opens without them does."""
    from ..onnx.session.parts import parts_of
    from .inputs import sizes

    if not fixed:
        console.print(str(parts_of(session).settle().choice()), soft_wrap=True)
        return
    for title, choice in (
        (f"With fix_shapes={sizes(fixed)}", parts_of(session).settle().choice()),
        ("Without fixed shapes", parts_of(plain()).settle().choice()),
    ):
        console.print(f"{title}, {choice}", soft_wrap=True)


@app.command()
def run(
    model: ModelOrGraph,
    inputs: Inputs = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the outputs to this .npz file.")] = None,
    labels: Annotated[
        Path | None, typer.Option("--labels", help="A text file with one class per line: show the best classes.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Number of classes to show.")] = 5,
    mean: Mean = "0",
    std: Std = "1",
    seed: Seed = 0,
    fix_shapes: Sizes = None,
    limit: Bounds = None,
    device: DeviceName = None,
    precision: PrecisionName = "float32",
    operations: Operations = None,
    verbose: Verbose = False,
) -> None:
    """Run a model once, and show its outputs; --output writes them to a file."""
    from contextlib import nullcontext

    import numpy as np

    from ..support.files import check_writable
    from .inputs import OUTPUT_SUFFIX, best, explain_assumption, gather, numbers, read_labels, save_arrays

    if output is not None:
        require(output.suffix.lower() == OUTPUT_SUFFIX, f"outputs are written as {OUTPUT_SUFFIX}, got {output}")
        check_writable(output)
    classes = None if labels is None else read_labels(labels)
    session, arguments = open_model(model, fix_shapes, limit, device, precision)
    feed = gather(arguments, inputs or [], seed, numbers(mean, "--mean"), numbers(std, "--std"))
    names = [argument.name for argument in session.get_outputs()]
    start = perf_counter()
    is_random = any(text.rpartition("=")[2] == "random" for text in inputs or [])
    with explain_assumption(arguments) if is_random else nullcontext():
        results = dict(zip(names, session.run(None, feed), strict=True))
    seconds = perf_counter() - start
    rows = [("output", "type", "shape", "min", "mean", "max")]
    for argument, (name, array) in zip(session.get_outputs(), results.items(), strict=True):
        if not isinstance(array, np.ndarray):  # a sequence, a map or a number
            rows.append((name, argument.type, "", "", "", ""))
            continue
        kind = "string" if array.dtype.kind in "OUS" else str(array.dtype)
        is_number = kind == "bfloat16" or array.dtype.kind in "fiub"  # NumPy has no kind for the former
        wide = array.astype(np.float64) if is_number and array.size else np.empty(0)
        least, average, most = (f"{f(wide):.4g}" if wide.size else "" for f in (np.min, np.mean, np.max))
        rows.append((name, kind, str(list(array.shape)), least, average, most))
    _print_table(rows, words=3)
    if classes is not None:
        require(len(names) > 0, f"{labels}: the model has no output to show the classes of")
        for label, probability in best(results[names[0]], classes, top, str(labels)):
            console.print(f"{probability:7.2%}  {label}", soft_wrap=True)
    if output is not None:
        save_arrays(output, results)
        console.print(f"wrote {output}", soft_wrap=True)
    context = session.context
    console.print(f"first run: {seconds * 1e3:.1f} ms on {context.device.name} in {context.precision}")


@app.command()
def info(
    model: ModelOrGraph,
    fix_shapes: Sizes = None,
    limit: Bounds = None,
    device: DeviceName = None,
    precision: PrecisionName = "float32",
    draw: Annotated[
        Path | None,
        typer.Option(
            "--draw", metavar="FILE", help="Draw the model, and what runs its parts, to this .html or .svg file."
        ),
    ] = None,
    operations: Operations = None,
    verbose: Verbose = False,
) -> None:
    """Show how a program's session runs a model and why, its inputs, outputs and operators, and where each part would run.

    The first line is about `InferenceSession(model)`, or with --fix-shapes also about a session with these fixed shapes.
    Another line says whether the device runs the model whole, or which nodes run elsewhere, and why. For a --device that this
    machine lacks, nothing else is shown.
    The parts, at the end, are those of the model compiled for fixed shapes: dynamic dimensions count as 1 there, unless
    --fix-shapes says otherwise.

    Of a .pt2 file, the first lines say which calls PyTorch would run, and why; dynamic dimensions have the sizes of the
    arguments that the program was exported with. Of an .opweave file, the first line says which compiled parts are used.
    """
    from dataclasses import asdict

    from ..compile.engines import describe_choice
    from ..inspect.drawing.api import check_drawing
    from ..onnx.model.parameters import parameters
    from ..onnx.session.parts import parts_of
    from ..onnx.session.summary import customs, heading
    from ..onnx.session.verification import state_of
    from ..onnx.session.whole import line_of, line_without_device
    from .graphs import is_saved_graph
    from .inputs import assumption, explain_assumption
    from .programs import is_program

    if draw is not None:
        check_drawing(draw)
    if is_saved_graph(model):
        _info_of_graph(open_graph(model, fix_shapes, limit, device, precision), draw)
        return
    if is_program(model):
        _info_of_program(model, fix_shapes, limit, device, precision, draw)
        return
    absent = find_absent(device)
    if absent is not None:
        parts = parts_of(open_session(model, fix_shapes, limit, "cpu"))
        with explain_assumption(parts.inputs):
            assumed_shapes = parts.shapes_of({a.name: a.assumed_shape() for a in parts.inputs if a.element_type})
            console.print(line_without_device(parts.model, assumed_shapes, [*parts.outputs], *absent), soft_wrap=True)
        if assumed := assumption(parts.inputs):
            console.print(assumed, soft_wrap=True)
        console.print(f"{device} is not available, so nothing was compiled: {absent[1].hint}", soft_wrap=True)
        if draw is not None:
            errors.print(f"{draw} was not written: only compiled models are drawn", soft_wrap=True)
            raise typer.Exit(1)
        return
    session = open_session(model, fix_shapes, limit, device, precision)
    parts = parts_of(session)
    with explain_assumption(parts.inputs):
        print_choice(session, fix_shapes, lambda: open_session(model, None, limit, device, precision))
    choice, proto = parts.choice(), parts.model.proto
    producer = " ".join(filter(None, (proto.producer_name, proto.producer_version))) or "unknown"
    opsets = ", ".join(f"{entry.domain or 'ai.onnx'} {entry.version}" for entry in proto.opset_import)
    weights = [prod(tensor.dims) for tensor in parameters(proto.graph)]
    dynamic = [f"{', '.join(map(printable, names))} of {printable(name)}" for name, names in choice.dynamic.items()]
    bounds = [f"{name} {size(n) if name.endswith('bytes') else n}" for name, n in asdict(parts.model.limits).items()]
    summary = Table(show_header=False, box=None)
    summary.add_row("made by", producer)
    summary.add_row("operator sets", opsets)
    summary.add_row("parameters", f"{sum(weights):,} in {count_of(len(weights), 'tensor')}")
    summary.add_row("device", f"{session.context.device.name} in {session.context.precision}")
    summary.add_row("threads", "as the engine decides" if choice.threads is None else str(choice.threads))
    summary.add_row("dynamic dimensions", "; ".join(dynamic) or "none")
    summary.add_row("limits", ", ".join(bounds))
    console.print()
    console.print(summary)
    _print_ends(parts)

    with explain_assumption(parts.inputs):
        shapes = {a.name: a.assumed_shape() for a in parts.inputs if a.element_type}
        compiled = parts.compile_for(shapes)
    operators = Counter(step.node.op_type for step in compiled.trace.steps if step.kind != "folded")
    folded = sum(step.kind == "folded" for step in compiled.trace.steps)
    _print_operators(operators)
    if folded:
        console.print(f"  {count_of(folded, 'node')} more, computed when the model is compiled")
    _print_compiled_for(shapes)
    if not choice.is_compiled:
        console.print("  Your program does not compile it, as the first line says. If it did:")
    if assumed := assumption(parts.inputs):
        console.print(f"  {assumed}", soft_wrap=True)
        console.print("  With real sizes, engines, sections and reasons may differ from these:")
    if compiled.choice:
        console.print(
            f"  engine: {describe_choice(compiled.choice, compiled.untried, state_of(parts, compiled))}",
            soft_wrap=True,
        )
    console.print(f"  {line_of(compiled.trace, [*parts.outputs], session.context, has_list=True)}", soft_wrap=True)
    for line in customs(compiled):
        console.print(f"  {line}", soft_wrap=True)
    for number, section in enumerate(compiled.sections):
        console.print(f"  {heading(compiled, number)}")
        if section.kind == "fallback":
            reasons = Counter((step.node.op_type, step.reason) for step in section.nodes)
            for (name, reason), times in reasons.items():
                console.print(f"    {times} x {name}: {reason}", soft_wrap=True)
    if draw is not None:
        session.draw(draw, input_shapes=shapes)
        console.print(f"wrote {draw}", soft_wrap=True)


def _info_of_program(
    model: Path,
    fixed: list[str] | None,
    limit: list[str] | None,
    device: str | None,
    precision: str,
    draw: Path | None,
) -> None:
    from .inputs import assumption

    session = open_program(model, fixed, limit, device, precision)
    arguments = session.inputs
    for line in session.run_lines():
        console.print(line, soft_wrap=True)
    state = session.program.state_dict.values()
    tensors = [argument for argument in arguments if argument.element_type]
    dynamic = dict.fromkeys(printable(s) for a in tensors for s in a.dims or () if isinstance(s, str))
    summary = Table(show_header=False, box=None)
    summary.add_row("made by", "torch.export")
    count = sum(tensor.numel() for tensor in state if hasattr(tensor, "numel"))
    summary.add_row("parameters", f"{count:,} in {count_of(len(state), 'tensor')}")
    summary.add_row("device", f"{session.context.device.name} in {session.context.precision}")
    summary.add_row("dynamic dimensions", ", ".join(dynamic) or "none")
    console.print()
    console.print(summary)
    _print_ends(session)
    _print_operators(session.operators())
    _print_compiled_for({argument.name: argument.assumed_shape() for argument in tensors})
    if assumed := assumption(arguments):
        console.print(f"  {assumed}", soft_wrap=True)
    for place, times in session.placements().most_common():
        console.print(f"  {count_of(times, 'operation')} {place}", soft_wrap=True)
    if draw is not None:
        session.compiled.draw(draw)
        console.print(f"wrote {draw}", soft_wrap=True)


def _info_of_graph(session: GraphSession, draw: Path | None) -> None:
    from .inputs import assumption, explain_assumption

    with explain_assumption(session.inputs):
        placements = session.placements()
    console.print(session.origin(), soft_wrap=True)
    counts = session.parameters()
    dynamic = dict.fromkeys(printable(s) for a in session.inputs for s in a.dims or () if isinstance(s, str))
    summary = Table(show_header=False, box=None)
    summary.add_row("parameters", f"{sum(counts):,} in {count_of(len(counts), 'tensor')}")
    summary.add_row("device", f"{session.context.device.name} in {session.context.precision}")
    summary.add_row("dynamic dimensions", ", ".join(dynamic) or "none")
    console.print()
    console.print(summary)
    _print_ends(session)
    _print_operators(session.operators())
    _print_compiled_for(session.shapes())
    if assumed := assumption(session.inputs):
        console.print(f"  {assumed}", soft_wrap=True)
    for place, times in placements.most_common():
        console.print(f"  {count_of(times, 'operation')} {place}", soft_wrap=True)
    if draw is not None:
        session.graph.draw(draw)
        console.print(f"wrote {draw}", soft_wrap=True)


def _print_ends(session: SessionParts | ProgramSession | GraphSession) -> None:
    """Print the inputs and outputs of a model; models need not declare the ranks of outputs, and sequences have none."""
    from ..onnx.model.arguments import shape_text

    rows = [("", "name", "type", "shape")]
    outputs = session.outputs.values() if isinstance(session.outputs, dict) else session.outputs
    for kind, arguments in (("input", session.inputs), ("output", outputs)):
        for argument in arguments:
            shape = "not declared" if argument.dims is None else shape_text(argument.dims)
            rows.append((kind, argument.name, argument.type, shape if argument.element_type else ""))
    _print_table(rows, words=4)


def _print_table(rows: Sequence[Sequence[str]], words: int) -> None:
    """Print a table whose rows are a line each, also in a narrow terminal; the first row is the heading."""
    header, *lines = table(rows, words)
    console.print(header, style="bold", soft_wrap=True)
    for line in lines:
        console.print(line, soft_wrap=True)


def _print_compiled_for(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Print the title of the parts of a model; a model without inputs has no shapes."""
    from ..onnx.model.shape_keys import text_of

    sizes = text_of(tuple(shapes.items()))
    console.print(f"\nwhat runs where, compiled{' for ' if sizes else ''}{sizes}", style="bold")


def _print_operators(operators: Counter[str]) -> None:
    console.print("\noperators", style="bold")
    console.print("  " + (", ".join(f"{name} {number}" for name, number in operators.most_common()) or "none"))


@app.command()
def convert(
    model: ModelOrProgram,
    target: Annotated[
        Path | None,
        typer.Argument(metavar="[OUTPUT]", help="The .onnx, .js or .mjs file to write, or a folder for an .onnx file."),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The same, as an option.")] = None,
    fix_shapes: Sizes = None,
    limit: Bounds = None,
    operators: Annotated[
        str, typer.Option("--operators", help="onnx; or onnxruntime, to keep operators that only ONNX Runtime has.")
    ] = "onnx",
    drop_size_rules: Annotated[
        bool,
        typer.Option(
            "--drop-size-rules",
            help="Write a .pt2 file for all sizes, although it was exported for some: results for others may be wrong.",
        ),
    ] = False,
    operations: Operations = None,
    verbose: Verbose = False,
) -> None:
    """Convert an ONNX model to a WebNN graph, and write that as ONNX: static shapes, and WebNN's operations only.

    A .pt2 file becomes the graph of `from_torch`, whose dynamic dimensions keep their names, unless --fix-shapes fixes them.
    Buffers that the program writes to are inputs and outputs.

    A name that ends in .js or .mjs makes a JavaScript module of WebNN calls, which runs in browsers; its weights are written
    beside it, as .safetensors.
    """
    from .. import js
    from ..onnx import load, save
    from ..support.files import check_writable
    from .inputs import limits, sizes
    from .programs import is_program

    output = output_of("convert", model, target, output)
    if output.is_dir():
        output /= f"{model.stem}.onnx"
    suffixes = (".onnx", *js.SUFFIXES)
    suffix = output.suffix.lower()
    # Pipes and devices need no suffix.
    if suffix not in suffixes and (output.is_file() or not output.exists()):
        raise BadParameter(f"the name of the file to write must end in {', '.join(suffixes)}, got {output}")
    if suffix in js.SUFFIXES and operators != "onnx":
        raise BadParameter("--operators is for .onnx files")
    if output.exists() and model.exists() and output.samefile(model):
        raise BadParameter(f"{output} is the model itself, which must not be replaced")
    check_writable(output)
    if is_program(model):
        graph = open_program(model, fix_shapes, limit).fixed_graph()
    else:
        graph = load(model, fix_shapes=sizes(fix_shapes or []), limits=limits(limit or []))
    if suffix in js.SUFFIXES:
        for written in js.save(graph, output, title=model.name, drop_size_rules=drop_size_rules):
            console.print(f"wrote {written}, {size(written.stat().st_size)}", soft_wrap=True)
        return
    save(graph, output, operators=operators, drop_size_rules=drop_size_rules)  # type: ignore[arg-type]  # `save` checks it
    console.print(f"wrote {output}: {graph!r}", soft_wrap=True)
