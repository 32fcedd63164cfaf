"""Inputs of a model given on the command line (files, images, random numbers), and its outputs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from shlex import quote
from typing import Any
from zipfile import ZipFile

import numpy as np

from ..core.shapes import MAX_DIMENSION
from ..onnx.model.arguments import Argument, shape_text
from ..onnx.model.limits import ModelLimits
from ..support import formatting
from ..support.errors import DataError, MLError, OperationError, ValidationError, import_extra, require
from ..support.files import atomic_writer
from ..support.names import short_repr
from ..support.settings import MAX_DIGITS
from .common import BadParameter

OUTPUT_SUFFIX = ".npz"
MAX_TEXT_BYTES = 1 << 28
"""Maximum memory of the strings of an output in a file: as many characters for each as the longest one has. An estimate."""

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def is_number(text: str) -> bool:
    """Whether a text is a whole number of at most 18 digits; Python converts no numbers of more than 4,300."""
    return text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS


def sizes(texts: Sequence[str]) -> dict[str, int | list[int]]:
    """Parse sizes of dimensions, "name=size", and shapes of inputs, "name=sizexsize"."""
    dimensions: dict[str, int | list[int]] = {}
    for text in texts:
        name, _, written = text.rpartition("=")
        parts = written.split("x")
        fits = name and all(is_number(part) and 0 < int(part) <= MAX_DIMENSION for part in parts)
        require(
            bool(fits),
            f"{short_repr(text)} must be NAME=SIZE, as in batch=1, or INPUT=SIZExSIZE, as in image=1x576, with sizes in "
            f"[1, {MAX_DIMENSION}]",
        )
        dimensions[name] = [int(part) for part in parts] if len(parts) > 1 else int(written)
    return dimensions


def limits(texts: Sequence[str]) -> ModelLimits:
    """Parse the limits for loading a model, "name=count"."""
    names, counts = [field.name for field in fields(ModelLimits)], dict[str, int]()
    for text in texts:
        name, _, count = text.partition("=")
        fits = name in names and is_number(count)
        require(fits, f"--limit {short_repr(text)} must be NAME=COUNT, with a name among {', '.join(names)}")
        counts[name] = int(count)
    return ModelLimits(**counts)


@contextmanager
def explain_assumption(arguments: Sequence[Argument]) -> Iterator[None]:
    """Explain in the error of a model that dynamic dimensions are assumed to be 1: many models need more."""
    try:
        yield
    except DataError:  # of a file
        raise
    except MLError as error:
        if not (assumed := assumption(arguments)):
            raise
        raise OperationError(f"{error}. {assumed}") from error


WORD = re.compile(r"[\w.:/+-]+")
"""Names of dimensions that a shell passes on as they are."""


def assumption(arguments: Sequence[Argument], option: str = "--fix-shapes") -> str:
    """A note that dynamic dimensions are assumed to be 1, and how `option` sets them; empty if there are none."""
    dims = [(argument, argument.dims) for argument in arguments if argument.element_type and argument.dims]
    named = dict.fromkeys(size for _, sizes in dims for size in sizes if isinstance(size, str))
    # A name that occurs twice in one shape, as "?" may, would fix both; a shell may interpret one that is no word.
    unusable = {name for name in named if not WORD.fullmatch(name) or any(sizes.count(name) > 1 for _, sizes in dims)}
    settings = [f"{name}=SIZE" for name in named if name not in unusable]
    for argument, shape in dims:
        if None in shape or unusable.intersection(shape):
            settings.append(f"{argument.name}=" + "x".join(str(s) if isinstance(s, int) else "SIZE" for s in shape))
    advice = " ".join(f"{option} {quote(sizes)}" for sizes in settings)
    assumed = "as in the example of the export" if any(argument.example for argument, _ in dims) else "as 1"
    return f"Dynamic dimensions were taken {assumed}. Set their sizes: {advice}" if settings else ""


def shapes_of(option: str, inputs: Sequence[Argument], sizes: Mapping[str, int | list[int]]) -> dict[str, list[int]]:
    """The shape of each input, given by its name, or by the names of dimensions."""
    arguments = {argument.name: argument for argument in inputs if argument.element_type}
    names = {size for arguments_of in arguments.values() for size in arguments_of.dims or () if isinstance(size, str)}
    if unknown := [name for name in sizes if name not in arguments and name not in names]:
        choices = ", ".join([*arguments, *sorted(names)])
        raise BadParameter(f"{option}: there is no input or dimension {unknown[0]!r}, only {choices}")

    def size_of(size: int | str | None) -> int:
        value = size if isinstance(size, int) else sizes.get(size or "", 1)
        if not isinstance(value, int):
            raise BadParameter(f"{option}: the dimension {size!r} needs one size")
        return value

    shapes: dict[str, list[int]] = {}
    for name, argument in arguments.items():
        value = sizes.get(name)
        own = [value] if isinstance(value, int) else value
        shapes[name] = own if own is not None else [size_of(size) for size in argument.dims or ()]
    return shapes


def shapes_in_turn(
    arguments: Sequence[Argument],
    texts: Sequence[str],
    sources: Sequence[str],
    seed: int,
    mean: Sequence[float],
    std: Sequence[float],
) -> tuple[list[dict[str, Any]], list[Argument]]:
    """The inputs of calls whose shapes change in turn, given by `--dynamic` as "name=size,size"; see `gather`.

    Returns also the arguments that have further dynamic dimensions, all of which count as 1 in these calls.
    """
    lists: dict[str, list[str]] = {}
    for text in texts:
        name, _, written = text.rpartition("=")
        if name in lists:
            raise BadParameter(f"--dynamic: {name!r} is given twice")
        lists[name] = written.split(",")
    counts = {name: len(listed) for name, listed in lists.items()}
    if len({*counts.values()}) > 1:
        raise BadParameter(f"--dynamic: each name needs the same number of sizes, got {counts}")
    feeds, assumed = [], list(arguments)
    for number in range(max(counts.values(), default=1)):
        turn = [f"{name}={listed[number]}" for name, listed in lists.items()]
        in_turn = with_sizes(arguments, sizes(turn), "--dynamic")
        feed = gather(in_turn, sources, seed, mean, std)
        for argument in in_turn:
            if texts and argument.element_type and not argument.takes(np.shape(feed[argument.name])):
                expected, came = shape_text(argument.dims or ()), list(np.shape(feed[argument.name]))
                subject = f"--dynamic {' '.join(turn)}: the input {argument.name!r}"
                raise BadParameter(f"{subject} must have shape {expected}, and its source has {came}")
        feeds.append(feed)
        names = {argument.name for argument in assumed}
        assumed = [a for a in in_turn if a.name in names and np.shape(feed[a.name]) == a.assumed_shape()]
    return feeds, assumed


def with_sizes(arguments: Sequence[Argument], turn: Mapping[str, int | list[int]], option: str) -> list[Argument]:
    """The inputs with sizes of an option; other dimensions stay dynamic."""
    shapes, changed = shapes_of(option, arguments, turn), list[Argument]()
    for argument in arguments:
        shape: Sequence[int | str | None] = shapes.get(argument.name, ())
        if argument.name in turn and not argument.takes(shapes[argument.name]):
            declared = shape_text(argument.dims or ())
            raise BadParameter(f"{option}: the input {argument.name!r} has the shape {declared}, got {shape}")
        if argument.name not in turn:
            shape = [new if old in turn else old for new, old in zip(shape, argument.dims or (), strict=False)]
        changed.append(replace(argument, dims=tuple(shape)) if shape else argument)
    return changed


def numbers(text: str, option: str) -> list[float]:
    """Parse finite numbers, "0.5,0.25"; divisors, those of --std, must not be 0."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValidationError(f"{option} must be numbers separated by commas, got {text!r}") from None
    require(all(map(math.isfinite, values)), f"{option} must be finite numbers, got {text!r}")
    require(option != "--std" or 0 not in values, f"{option} divides, so it must not be 0, got {text!r}")
    return values


def gather(
    arguments: Sequence[Argument], sources: Sequence[str], seed: int, mean: Sequence[float], std: Sequence[float]
) -> dict[str, Any]:
    """The arrays of a model's inputs, given as "name=source" or "source"."""
    by_name = {argument.name: argument for argument in arguments}
    feed: dict[str, Any] = {}
    anonymous = []
    for text in sources:
        name, equals, source = text.partition("=")
        if not equals or name not in by_name:
            require(not equals or Path(text).exists(), f"there is no input {name!r}; the model has {list(by_name)}")
            anonymous.append(text)
        else:
            require(name not in feed, f"the input {name!r} is given twice")
            feed[name] = _read(by_name[name], source, seed, mean, std)
    fill = False
    for source in anonymous:
        if source == "random":
            fill = True
        elif source.endswith(".npz"):
            for name, array in _archive(source).items():
                require(name in by_name, f"{source}: there is no input {name!r}; the model has {list(by_name)}")
                require(name not in feed, f"{source}: the input {name!r} is given twice")
                feed[name] = array
        else:
            rest = [name for name in by_name if name not in feed]
            require(bool(rest), f"{source}: each input has a value already; the model has {list(by_name)}")
            require(len(rest) == 1, f"which input is {source}? write NAME={source}; those without a value are {rest}")
            feed[rest[0]] = _read(by_name[rest[0]], source, seed, mean, std)
    missing = [argument for argument in arguments if argument.name not in feed]
    if missing and not fill:
        first = missing[0]
        raise ValidationError(f"input {first.name!r} has no value; pass --input {first.name}=FILE, or --input random")
    generator = np.random.default_rng(seed)
    for argument in missing:
        feed[argument.name] = argument.random(argument.assumed_shape(), generator)
    return {name: feed[name] for name in by_name}


def _read(argument: Argument, source: str, seed: int, mean: Sequence[float], std: Sequence[float]) -> Any:
    if source == "random":
        return argument.random(argument.assumed_shape(), np.random.default_rng(seed))
    suffix = Path(source).suffix.lower()
    if suffix in IMAGES:
        return image(argument, source, mean, std)
    if suffix == ".npz":
        archive = _archive(source)
        require(argument.name in archive, f"{source} has no array {argument.name!r}, only {list(archive)}")
        return archive[argument.name]
    require(
        suffix == ".npy", f"input {argument.name!r} must be a .npy or .npz file, an image, or 'random', got {source!r}"
    )
    array = _load(source)
    if not isinstance(array, np.ndarray):
        raise DataError(f"{source}: not an array")
    return array


def _load(source: str) -> Any:
    try:
        return np.load(source, allow_pickle=False)
    except OSError as error:
        raise DataError(f"{source}: {error.strerror or error}") from None
    except Exception as error:  # damaged files raise many types of exceptions
        raise DataError(f"{source}: not an array ({error})") from None


def _archive(source: str) -> dict[str, np.ndarray]:
    loaded = _load(source)
    require(not isinstance(loaded, np.ndarray), f"{source}: not an .npz file")
    try:
        return dict(loaded)
    except Exception as error:
        raise DataError(f"{source}: cannot be read ({error})") from None


def image(argument: Argument, source: str, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """Read an image and scale it to an input [batch, channels, height, width], or with channels last.

    Floats are scaled to [0, 1], then `mean` is subtracted and the result divided by `std`; integers are bytes.
    """
    dims = list(argument.dims or ())
    batch, *sizes = dims if len(dims) == 4 else [1, *dims]
    is_image = len(sizes) == 3 and (sizes[0] in (1, 3) or sizes[2] in (1, 3))
    require(
        is_image and argument.dtype.name in ("float32", "float16", "uint8"),
        f"input {argument.name!r} takes no image: it is {argument.type} of shape {dims}",
    )
    channels_first = sizes[0] in (1, 3)
    height, width, channels = (*sizes[1:], sizes[0]) if channels_first else sizes
    pillow = import_extra("PIL.Image", "demo", "reading images")
    try:
        with pillow.open(source) as opened:
            picture = opened.convert("RGB" if channels == 3 else "L")
    except OSError as error:
        raise DataError(f"{source}: {error.strerror or 'not an image'}") from None
    picture_size = tuple(
        size if isinstance(size, int) else own for size, own in zip((width, height), picture.size, strict=True)
    )
    if picture.size != picture_size:
        picture = picture.resize(picture_size, pillow.Resampling.BILINEAR)
    pixels = np.asarray(picture).reshape(picture_size[1], picture_size[0], -1)
    if argument.dtype.kind == "f":
        for option, values in {"--mean": mean, "--std": std}.items():
            require(
                len(values) in (1, pixels.shape[2]),
                f"{option} must have 1 or {pixels.shape[2]} numbers, got {len(values)}",
            )
        pixels = ((pixels / 255 - np.array(mean)) / np.array(std)).astype(argument.dtype)
    if channels_first:
        pixels = pixels.transpose(2, 0, 1)
    stacked = np.repeat(pixels[None], batch if isinstance(batch, int) else 1, axis=0)
    return np.ascontiguousarray(stacked if len(dims) == 4 else stacked[0])


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays as an .npz file; strings get NumPy's type of a fixed length, which needs no pickle."""
    odd = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
    require(not odd, f"an .npz file holds arrays; {odd} are sequences or maps")
    written = {name: _fixed_texts(name, a) if a.dtype.kind == "O" else a for name, a in arrays.items()}
    # An output may have the name of a parameter of `savez`: write the entries one by one.
    with atomic_writer(path) as file, ZipFile(file, "w") as archive:
        for name, array in written.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def _fixed_texts(name: str, texts: np.ndarray) -> np.ndarray:
    """Strings as NumPy's type of a fixed length, which takes the room of the longest one for each of them."""
    items = [str(text) for text in texts.flat]
    require(
        not any(text.endswith("\0") for text in items),
        f"output {name!r} has a string that ends in NUL, which .npz files lose",
    )
    bytes_needed = 4 * len(items) * max(map(len, items), default=0)
    require(
        bytes_needed <= MAX_TEXT_BYTES,
        f"output {name!r} would take {formatting.size(bytes_needed)} in an .npz file, where each string has the length of the "
        f"longest one; the limit is {formatting.size(MAX_TEXT_BYTES)}",
    )
    return texts.astype(str)


def read_labels(path: Path) -> list[str]:
    """The lines of a text file."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None


def best(scores: np.ndarray, names: Sequence[str], count: int, subject: str) -> list[tuple[str, float]]:
    """The names with the highest scores, as probabilities; `subject` begins errors."""
    row = np.asarray(np.atleast_2d(scores)[0], np.float64).ravel()  # of [batch, classes, 1, 1], too
    require(row.size == len(names), f"{subject} has {len(names)} labels for {row.size} scores")
    if row.min() < 0 or abs(row.sum() - 1) > 1e-2:  # scores rather than probabilities
        row = np.exp(row - row.max())
        row /= row.sum()
    return [(names[k], float(row[k])) for k in np.argsort(-row, kind="stable")[:count]]
