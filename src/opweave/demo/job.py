"""Read a photograph, enlarge it, compare and write the result, and report."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from PIL import Image, ImageOps
from rich.console import Console
from rich.status import Status
from rich.table import Column, Table
from rich.text import Text

from .. import memory
from ..context.context import MLContext, ml
from ..support.errors import DataError
from ..support.files import atomic_writer
from . import sheet
from .colours import Pixels, bicubic, psnr
from .enlarger import Enlarger, enlarger_with_numpy
from .network import FACTOR

PHOTO = Path(__file__).with_name("astronaut.jpg")
LIMIT = 2**27
"""Maximum number of pixels of the large picture, which takes up to 4 GB of memory."""
ICONS = ("ICNS", "ICO")
"""Formats for which Pillow resizes a picture to sizes of icons, without an error."""
SECONDS = 1.5


def compare(context: MLContext, enlarger: Enlarger, rgb: Pixels) -> tuple[float, float, dict[str, float]]:
    """Measure the first window: median seconds of one graph, of the network with NumPy around, and of the graph's steps."""
    height, width = enlarger.shape
    window = rgb[:height, :width].copy()
    enlarge_around = enlarger_with_numpy(context, height, width)

    def measure() -> list[float]:
        start = perf_counter()
        enlarger.enlarge(window)
        middle = perf_counter()
        enlarge_around(window)
        return [middle - start, perf_counter() - middle]

    # The first run is slower.
    measure()
    rounds = max(3, min(15, int(SECONDS / 2 / sum(measure()))))
    woven, around = np.median([measure() for _ in range(rounds)], axis=0).tolist()
    profile = enlarger.graph.profile({"small": window}, repeat=rounds)
    steps = {s.title if s.how.startswith("expression") else "network": s.median for s in profile.steps}
    return woven, around, steps


def run(photo: Path | None, output: Path, *, enlarge: bool, console: Console | None) -> dict[str, str]:
    """Do the job; see `opweave.demo.run`."""
    console = console or Console()
    format = _check_output(output, photo)
    photo = photo or PHOTO
    steps: dict[str, str] = {}

    @contextmanager
    def step(name: str) -> Iterator[Status]:
        start = perf_counter()
        with console.status(name) as status:
            yield status
        steps[name] = f"{1000 * (perf_counter() - start):,.1f} ms"

    with step("read"):
        original, profile = _read(photo, LIMIT // FACTOR**2 if enlarge else LIMIT)
    height, width = (side // (1 if enlarge else FACTOR) for side in original.shape[:2])
    if not height or not width:
        size = f"{original.shape[1]} x {original.shape[0]} pixels"
        raise DataError(f"{photo}: {size} cannot be reduced by {FACTOR} for a comparison, only be enlarged (--enlarge)")
    small = original
    if not enlarge:
        with step("reduce"):
            original = original[: FACTOR * height, : FACTOR * width]
            small = bicubic(original, width, height)
    context = ml.create_context()
    with step("build graph"):
        enlarger = Enlarger(context, height, width)
    copies = memory.copies.count
    with step("run") as status:
        large = enlarger(small, lambda windows: status.update(f"run: {windows} of {enlarger.windows} windows"))
    facts = {
        "size": f"{width} x {height} -> {FACTOR * width} x {FACTOR * height}",
        "device": ", ".join(enlarger.graph.devices),
        "expressions": enlarger.expression_engine,
        "runs of the graph": str(enlarger.windows),
        "copies": str(memory.copies.count - copies),
    }
    sections, result, summary = [steps, facts], Image.fromarray(large), ""
    if not enlarge:
        with step("measure"):
            woven, around, medians = compare(context, enlarger, small)
        with step("compare"):
            plain = bicubic(small, FACTOR * width, FACTOR * height)
            before, after = (round(psnr(image, original), 2) for image in (plain, large))
        # Both may be infinite.
        gain = 0.0 if before == after else round(after - before, 2)
        quality = {
            "PSNR, bicubic": f"{before:.2f} dB",
            "PSNR, network": f"{after:.2f} dB",
            "gain": f"{gain + 0.0:+.2f} dB",  # not -0.00
        }
        sections = [steps, {f"in the graph: {s}": f"{1000 * t:,.2f} ms" for s, t in medians.items()}, facts, quality]
        times = f"in one graph {1000 * woven:,.1f} ms, with NumPy around the network {1000 * around:,.1f} ms"
        summary = f"{times} ({around / woven:.2f}x){', of one window' * (enlarger.windows > 1)}"
    with step("write"):
        if not enlarge:
            columns = (
                ("Bicubic", quality["PSNR, bicubic"], plain),
                ("Opweave", f"{quality['PSNR, network']}   ({quality['gain']})", large),
                ("Original", photo.name[:40], original),
            )
            result = sheet.compose(f"Super-resolution: {facts['size'].replace('->', 'to')} pixels", columns)
        _write(result, output, format, profile if enlarge else None)

    title = f"{photo.name}: super-resolution {FACTOR}x"
    table = Table(Column(), Column(justify="right"), title=Text(title), show_header=False, title_justify="left")
    for section in sections:
        for name, value in section.items():
            table.add_row(name, Text(value), style="bold" if name == "gain" else "")
        table.add_section()
    console.print(table)
    for line in filter(None, (summary, f"written: {output}")):
        console.print(Text(line), soft_wrap=True)
    return {name: value for section in sections for name, value in section.items()}


def _read(path: Path, limit: int) -> tuple[Pixels, bytes | None]:
    """Read an image of at most `limit` pixels and its colour profile; rotate it upright, on a white background."""
    try:
        # Pillow's own limit only warns; ours is checked before anything is decoded.
        with (
            warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning),
            Image.open(path) as file,
        ):
            if file.width * file.height > limit:
                raise ValueError(f"{file.width} x {file.height} pixels are more than {limit:,}")
            if file.mode.startswith(("I", "F")):
                raise ValueError(f"colours of 8 bits are supported, not mode {file.mode}")
            # A profile of other colours (CMYK, grey) does not apply to RGB.
            profile = file.info.get("icc_profile") if file.mode in ("RGB", "RGBA", "P") else None
            image = ImageOps.exif_transpose(file).convert("RGBA")
            white = Image.new("RGBA", image.size, "white")
            return np.asarray(Image.alpha_composite(white, image).convert("RGB")), profile
    except Exception as error:
        # Pillow's decoders raise many types of errors for damaged files.
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _check_output(path: Path, photo: Path | None) -> str:
    """Check, before any work, whether `path` can be written, and return Pillow's name of the format."""
    format = Image.registered_extensions().get(path.suffix.lower(), "")
    if format not in Image.SAVE:
        problem = f"{path.suffix or 'no suffix'} is not an image format, try .png"
    elif not path.parent.is_dir():
        problem = f"there is no folder {path.parent}"
    elif path.exists() and not path.is_file():
        problem = "it exists and is not a file"
    elif photo is not None and path.exists() and photo.exists() and path.samefile(photo):
        problem = "this is the photograph itself"
    elif format in ICONS:
        problem = f"{path.suffix} is a format of icons, which have other sizes; try .png"
    else:
        _encode(Image.new("RGB", (1, 1)), path, format)
        return format
    raise DataError(f"{path}: cannot be written: {problem}")


def _write(image: Image.Image, path: Path, format: str, profile: bytes | None = None) -> None:
    encoded = _encode(image, path, format, profile)
    with atomic_writer(path) as file:
        file.write(encoded.getbuffer())


def _encode(image: Image.Image, path: Path, format: str, profile: bytes | None = None) -> io.BytesIO:
    options: dict[str, Any] = {"quality": 95} if format in ("JPEG", "WEBP") else {}
    encoded = io.BytesIO()
    try:
        image.save(encoded, format=format, icc_profile=profile, **options)
    except Exception as error:
        # Encoders raise many types of errors.
        raise DataError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from error
    return encoded
