"""Commands about the machine and the operations: demo, devices, ops, doctor."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from .. import __version__
from ..support.errors import NotSupportedError, OperationError, ValidationError
from .common import BadParameter, Verbose, app, console, declare, errors
from .extras import PURPOSES, faults_of, missing_requirements
from .serve import state_of_port


def _show_version(value: bool) -> None:
    if value:
        console.print(f"opweave {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    pass


@app.command()
def demo(
    photo: Annotated[Path | None, typer.Argument(help="An image file. Default: a photograph in the package.")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The picture to write.")] = Path("demo.png"),
    enlarge: Annotated[
        bool, typer.Option("--enlarge", help="Write the photograph itself, three times as large, without a comparison.")
    ] = False,
) -> None:
    """Enlarge a photograph by three with a small network, and compare it with bicubic enlargement."""
    from ..demo import run

    run(photo, output, enlarge=enlarge, console=console)


@app.command()
def devices() -> None:
    """List the devices of this machine, and those that an extra would add."""
    from .. import backends
    from ..support.formatting import table

    listed = backends.devices()
    rows = [("device", "kind", "back end", "precisions", "what it is")]
    for device in listed:
        if device.available:
            precisions = ", ".join(device.precisions)
            rows.append((device.name, device.kind, device.backend, precisions, device.description))
    header, *lines = table(rows, words=len(rows[0]))
    console.print(header, style="bold", soft_wrap=True)
    console.print("\n".join(lines), soft_wrap=True)
    console.print("\ncreate_context(device=…, precision=…) takes these names.")
    limited = [device for device in listed if device.available and device.fault]
    if limited:
        console.print("\nlimited here", style="bold")
    for device in limited:
        console.print(f"  {device.name} ({device.backend}):\n    {device.fault}", soft_wrap=True, markup=False)
    unavailable = [device for device in listed if not device.available]
    if not unavailable:
        console.print("There is no extra that would add a device on this machine.")
        return
    console.print("\nnot here", style="bold")
    for device in unavailable:
        text = f"  {device.name} ({device.backend}): {device.description}\n    {device.hint}"
        console.print(text, soft_wrap=True, markup=False)  # errors of packages may have brackets


@app.command()
def ops(
    names: Annotated[list[str] | None, typer.Argument(help="Operations to show. Default: all of them.")] = None,
    core: Annotated[bool, typer.Option("--core", help="Only the core set, which the others decompose into.")] = False,
    check: Annotated[
        str | None,
        typer.Option(
            "--check",
            metavar="MODULE",
            callback=declare,
            help="Compile the kernels of the custom operations that this Python module declares, without their devices.",
        ),
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(
            "--arch", help="With --check: compute capabilities for CUDA, separated by commas. Default: 80,90."
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="With --check: what cannot be checked on this machine is an error, too.")
    ] = False,
) -> None:
    """Show how each operation is done on each back end, for each data type; or check custom operations."""
    if check is not None:
        if core:
            raise BadParameter("--core is for the operations of WebNN, not for those of a module")
        _check_operations(check, names or [], arch, strict)
        return
    if arch is not None or strict:
        raise BadParameter("--arch and --strict are for --check MODULE")
    from ..backends import discover
    from ..core.dtypes import ANY, INFO
    from ..inspect.support import support
    from ..ops import Operations
    from ..support.hints import meant

    listing = Operations.listing()
    unknown = [name for name in names or [] if name not in listing]
    if unknown:
        hint = meant(unknown[0], listing) or "; `opweave ops` lists all"
        raise BadParameter(f"there is no operation {unknown[0]!r}{hint}")
    backends = discover()
    signs = {
        "native": Text("●", "green"),
        "composed": Text("◐", "yellow"),
        "decomposed": Text("○", "blue"),
        "expression": Text("◌", "magenta"),
        None: Text("✗", "red"),
    }
    absent = Text("·", "dim")
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("operation", no_wrap=True)
    table.add_column("", no_wrap=True)
    # Print the bits of data types vertically, so that four back ends fit on a screen.
    kinds = "".join(INFO[t].kind for t in ANY)
    tens, ones = ("".join(f"{INFO[t].bits:2}"[k] for t in ANY) for k in (0, 1))
    for name in backends:
        table.add_column(f"{name}\n{kinds}\n{tens}\n{ones}", no_wrap=True)
    for name in names or listing:
        is_core = listing[name].decomposition is None
        if is_core or not core:
            ways = support(listing[name], backends).values()
            cells = [Text().join(signs[how[t]] if t in how else absent for t in ANY) for how in ways]
            table.add_row(name, "◆" if is_core else "", *cells)
    console.print(table)
    legend = (
        (Text("◆"), "core: the others decompose into these"),
        (signs["native"], "one kernel of the engine"),
        (signs["composed"], "several kernels"),
        (signs["decomposed"], "decomposed"),
        (signs["expression"], "its expression, compiled"),
        (signs[None], "not there"),
        (absent, "not a data type of the operation"),
    )
    console.print()
    for sign, meaning in legend:
        console.print(sign, meaning)
    console.print("f: float, i: int, u: uint; below them, their bits")


def _check_operations(module: str, names: Sequence[str], arch: str | None, strict: bool) -> None:
    """Print a table of checks, then the errors and warnings; leaves with 1 if there are errors."""
    from ..custom.operation import operations_of
    from ..custom.report import KernelCheck
    from ..inspect.check import architectures_of, check_operation
    from ..support.formatting import table
    from ..support.hints import meant

    declared = operations_of(module)
    listing = [op.name for op in declared]
    unknown = [name for name in names if name not in listing]
    if unknown:
        raise BadParameter(f"{module} declares no operation {unknown[0]!r}{meant(unknown[0], listing)}")
    if not declared:
        raise BadParameter(f"{module} declares no operations")
    try:
        architectures = architectures_of("--arch", None if arch is None else arch.split(","))
    except ValidationError as error:
        raise BadParameter(str(error)) from None
    rows = [("operation", "kind", "checked by", "result")]
    styles, texts = ["bold"], list[str]()
    for op in declared:
        if names and op.name not in names:
            continue
        try:
            checks = check_operation(op, (), architectures, {})
        except OperationError as error:
            checks = [KernelCheck("declaration", fault=error)]
        except ValidationError as error:
            reason = str(error).removeprefix(f"{op.name}: ")
            checks = [KernelCheck("", obstacle=ValidationError(reason))]
        for check in checks:
            style = "red" if check.fault else "yellow" if check.obstacle else ""
            styles.append(style)
            rows.append((op.name, check.kind, check.checker, "error" if check.fault else check.result))
            texts += [str(check.fault)] if check.fault else check.warnings
    for line, style in zip(table(rows, words=len(rows[0])), styles, strict=True):
        console.print(line, style=style, soft_wrap=True)
    for text in texts:
        console.print(f"\n{text}", soft_wrap=True)
    if "red" in styles or (strict and "yellow" in styles):
        raise typer.Exit(1)


@app.command()
def doctor() -> None:
    """Report versions, engines and CPU features, and how to install missing extras."""
    from .. import backends
    from ..backends.onnxruntime.plugins import names_of, register

    table = Table(show_header=False, box=None)
    table.add_row("opweave", __version__)
    table.add_row("Python", f"{platform.python_version()} ({sys.executable})")
    table.add_row("system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    table.add_row("CPU features", ", ".join(_cpu_features()) or "unknown")
    for package in ("numpy", "onnxruntime", "onnx", "ml_dtypes"):
        table.add_row(package, _version(package))
    for extra, purpose in PURPOSES.items():
        table.add_row(f"extra {extra}", _state(extra, purpose))
    listed = backends.devices()
    available = [device for device in listed if device.available]
    for device in listed:
        title = f"device {device.name}"
        if device.available and device.fault:
            table.add_row(title, Text.assemble(("limited", "yellow"), f": {device.fault}"))
        if not (device.available or device.hint.startswith("pip install")):  # the rows of extras show these
            table.add_row(title, Text.assemble(("not here", "yellow"), f": {device.hint}"))
    for module, problem in register().items():
        bad = Text.assemble(("unusable", "red"), f": {problem}")
        providers = [device.name for device in available if device.provider in names_of(module)]
        table.add_row(f"plug-in {module}", bad if problem else ", ".join(providers) or "it lists no device here")
    # Two back ends may have a device of one name.
    names = [f"{device.name} ({device.backend})" for device in available]
    table.add_row("devices", ", ".join(names) or Text("none", "red"))
    table.add_row("opweave serve", state_of_port())
    console.print(table)
    if not any(device.backend != "reference" for device in available):
        errors.print("There is no engine to run graphs on: pip install --force-reinstall onnxruntime", style="red")
        raise typer.Exit(1)


def _state(extra: str, purpose: str) -> Text:
    try:
        lacking = missing_requirements(extra)
    except NotSupportedError as error:
        return Text.assemble(("unknown", "yellow"), f": {error} ({purpose})")
    if not lacking and (faults := faults_of(extra)):
        return Text.assemble(("broken", "red"), f": {'; '.join(faults)} ({purpose})")
    if not lacking:
        return Text.assemble(("installed", "green"), f" ({purpose})")
    return Text.assemble(("missing", "yellow"), f" {', '.join(lacking)}: pip install 'opweave[{extra}]' ({purpose})")


def _version(package: str) -> Text:
    try:
        return Text(metadata.version(package))
    except metadata.PackageNotFoundError:
        return Text.assemble(("missing", "red"), f": pip install {package}")


def _cpu_features() -> list[str]:
    # NumPy has no public name for them.
    from numpy._core._multiarray_umath import __cpu_features__ as features  # type: ignore[import-not-found]

    names = ["SSE41", "AVX", "F16C", "FMA3", "AVX2", "AVX512F", "AVX512_SKX", "AVX512_SPR", "NEON", "ASIMD", "SVE"]
    return [name for name in names if features.get(name)]
