"""The command `opweave quantize`: a model with fewer bits, and what that changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..support.errors import DataError, ValidationError, require
from .common import Operations, Verbose, app, console
from .models import Bounds, Inputs, Mean, ModelFile, Seed, Sizes, Std, output_of

if TYPE_CHECKING:
    from ..onnx.model.arguments import Argument

RANDOM_SAMPLES = 8
"""Samples that `--input random` makes."""


@app.command()
def quantize(
    model: ModelFile,
    target: Annotated[Path | None, typer.Argument(metavar="[OUTPUT]", help="The .onnx file to write.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The same, as an option.")] = None,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORM",
            help="int8 or int4: weights alone; static: weights and what products compute with, by ranges measured on the "
            "inputs; float16 or bfloat16: weights in 16 bits.",
        ),
    ] = "int8",
    inputs: Inputs = None,
    block_size: Annotated[
        int | None,
        typer.Option(
            "--block-size",
            help="Elements that share a scale, for int8 and int4. Default: channels; 32, 64 in convolutions.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="NAME", help="A node, or weights, to leave as they are; as in '/head/*'."),
    ] = None,
    reduce_range: Annotated[
        bool, typer.Option("--reduce-range", help="With static, 7 bits of each weight, for processors without VNNI.")
    ] = False,
    seconds: Annotated[float, typer.Option("--seconds", min=0, help="How long to measure both models.")] = 1.0,
    mean: Mean = "0",
    std: Std = "1",
    seed: Seed = 0,
    fix_shapes: Sizes = None,
    limit: Bounds = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Maximum number of layers to list.")] = 16,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers to this .json file.")
    ] = None,
    operations: Operations = None,
    verbose: Verbose = False,
) -> None:
    """Write a model with fewer bits, and show the errors of its layers and outputs, its size and its time.

    An input that is a folder has samples: .npz files, or .npy files or images for a model with one input. static needs such
    samples of real data, a hundred or so; the other forms need none, and compare layers and outputs if there are some. With
    `--input random`, samples are noise, whose ranges and errors say little about real data.
    """
    from ..onnx.model.model import Model
    from ..onnx.session.load import arguments_of
    from ..quantization import quantize as quantize_model
    from ..support.files import atomic_writer, check_writable
    from .inputs import limits, numbers, sizes

    output = output_of("quantize", model, target, output)
    require(output.suffix.lower() == ".onnx", f"the name of the file to write must end in .onnx, got {output}")
    for file in (output, json_file):
        if file is not None:
            check_writable(file)
    bounds = limits(limit or [])
    arguments = arguments_of(Model.load(model, bounds), sizes(fix_shapes or []))
    samples = gather_samples(arguments, inputs or [], seed, numbers(mean, "--mean"), numbers(std, "--std"))
    result = quantize_model(
        model,
        output,
        to,  # type: ignore[arg-type]  # `quantize` checks it
        inputs=samples or None,
        block_size=block_size,
        exclude=exclude or (),
        reduce_range=reduce_range,
        seconds=seconds,
        limits=bounds,
    )
    console.print(result.text(rows), soft_wrap=True)
    for file in result.files:
        console.print(f"wrote {file}", soft_wrap=True)
    if json_file is not None:
        with atomic_writer(json_file) as numbers_file:
            numbers_file.write(json.dumps(result.to_dict(), indent=1).encode())
        console.print(f"wrote {json_file}", soft_wrap=True)


def gather_samples(
    arguments: Sequence[Argument], sources: Sequence[str], seed: int, mean: Sequence[float], std: Sequence[float]
) -> list[dict[str, Any]]:
    """The inputs of several calls: one for each file of the folders among the sources, else one; see `gather`."""
    from .inputs import IMAGES, gather

    folders = {}
    names = {argument.name for argument in arguments}
    for position, text in enumerate(sources):
        name, equals, source = text.partition("=")
        prefix, path = (f"{name}=", Path(source)) if equals and name in names else ("", Path(text))
        if not path.is_dir():
            continue
        try:
            files = sorted(file for file in path.iterdir() if file.suffix.lower() in (".npz", ".npy", *IMAGES))
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from None
        require(bool(files), f"{path} has no samples: no .npz or .npy files, and no images")
        folders[position] = [f"{prefix}{file}" for file in files]
    counts = {len(files) for files in folders.values()}
    if len(counts) > 1:
        raise ValidationError(f"folders of samples must have as many files each, got {sorted(counts)}")
    if not sources:
        return []
    if not folders and all(text.rpartition("=")[2] == "random" for text in sources):
        return [gather(arguments, sources, seed + number, mean, std) for number in range(RANDOM_SAMPLES)]
    samples = []
    for number in range(*counts or {1}):
        turn = [folders[position][number] if position in folders else text for position, text in enumerate(sources)]
        samples.append(gather(arguments, turn, seed + number, mean, std))
    return samples
