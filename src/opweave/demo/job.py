"""The job itself: read, build the graph, run it, compare, write; and a report about it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from .. import memory
from ..context import ml
from ..errors import DataError
from . import picture, sheet
from .colours import Pixels, psnr
from .enlarger import Enlarger
from .network import FACTOR
from .timing import Timing, compare

PHOTO = Path(__file__).with_name("astronaut.jpg")
LIMIT = 2**27  # pixels of the large picture; the job then takes up to 4 GB of memory


@dataclass
class Report:
    """What was done; sizes are (width, height), times are seconds. The last three need a comparison with the original.

    Attributes:
        seconds: how long each step took, in order.
        expressions: what runs the expressions.
        runs: how many times the graph ran: once a window.
        copies: the copies that Opweave made while it ran; none if the picture is one window.
    """

    photo: Path
    output: Path
    small: tuple[int, int] = (0, 0)
    large: tuple[int, int] = (0, 0)
    seconds: dict[str, float] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    expressions: str = ""
    runs: int = 0
    copies: int = 0
    timing: Timing | None = None
    psnr_bicubic: float | None = None
    psnr_network: float | None = None

    def __rich__(self) -> Table:
        """The report as a table."""
        table = Table("", "", show_header=False, title_justify="left")
        table.title = Text(f"{self.photo.name}: super-resolution {FACTOR}x")
        table.columns[1].justify = "right"
        for step, seconds in self.seconds.items():
            table.add_row(step, f"{1000 * seconds:,.1f} ms")
        table.add_section()
        if self.timing is not None:
            for step, seconds in self.timing.steps.items():
                table.add_row(f"in the graph: {step}", f"{1000 * seconds:,.2f} ms")
            table.add_section()
        table.add_row("size", f"{_size(self.small)} -> {_size(self.large)}")
        table.add_row("device", ", ".join(self.devices))
        table.add_row("expressions", Text(self.expressions))  # which may name an extra in brackets
        table.add_row("runs of the graph", str(self.runs))
        table.add_row("copies", str(self.copies))
        if self.psnr_bicubic is not None and self.psnr_network is not None:
            table.add_section()
            table.add_row("PSNR, bicubic", f"{self.psnr_bicubic:.2f} dB")
            table.add_row("PSNR, network", f"{self.psnr_network:.2f} dB")
            table.add_row("gain", _gain(self.psnr_bicubic, self.psnr_network), style="bold")
        return table


def run(photo: Path | None, output: Path, *, enlarge: bool, console: Console | None) -> Report:
    """Do the job; see `opweave.demo.run`."""
    console = console or Console()
    format = picture.check_output(output, photo)
    report = Report(photo or PHOTO, output)

    @contextmanager
    def step(name: str) -> Iterator[Status]:
        start = time.perf_counter()
        with console.status(name) as status:
            yield status
        report.seconds[name] = time.perf_counter() - start

    with step("read"):
        source = picture.read(report.photo, LIMIT // FACTOR**2 if enlarge else LIMIT)
        original = np.asarray(source.convert("RGB")) if enlarge else _cut(source, report.photo)
    small = original
    if not enlarge:
        with step("reduce"):
            small = _resize(original, original.shape[1] // FACTOR, original.shape[0] // FACTOR)
    height, width = small.shape[:2]
    report.small, report.large = (width, height), (FACTOR * width, FACTOR * height)

    context = ml.create_context()
    with step("build graph"):
        enlarger = Enlarger(context, height, width)
    report.devices, report.runs, report.expressions = enlarger.graph.devices, enlarger.windows, enlarger.expressions
    copies = memory.copies.count
    with step("run") as status:
        large = enlarger(small, lambda windows: status.update(f"run: {windows} of {enlarger.windows} windows"))
    report.copies = memory.copies.count - copies
    assert report.runs > 1 or not report.copies, memory.copies

    if enlarge:
        with step("write"):
            image = Image.fromarray(large)
            if source.mode in ("L", "LA"):
                image = image.getchannel(1)
            if "A" in source.mode:
                image.putalpha(source.getchannel("A").resize(report.large, Image.Resampling.BICUBIC))
            picture.write(image, output, format, source.info.get("icc_profile"))
    else:
        with step("measure"):
            report.timing = compare(context, enlarger, small)
        with step("compare"):
            plain = _resize(small, *report.large)
            before, after = psnr(plain, original), psnr(large, original)
            report.psnr_bicubic, report.psnr_network = before, after
        with step("write"):
            page = sheet.compose(
                f"Super-resolution: {_size(report.small)} to {_size(report.large)} pixels",
                "The photograph was reduced to a third, then enlarged again. PSNR: of luma, against the original.",
                sheet.Column("Bicubic", f"{before:.2f} dB", plain),
                sheet.Column("Opweave", f"{after:.2f} dB   ({_gain(before, after)})", large),
                sheet.Column("Original", report.photo.name[:40], original),
            )
            picture.write(page, output, format)
    console.print(report)
    if report.timing is not None:
        console.print(str(report.timing), soft_wrap=True, highlight=False)
    console.print(f"written: {output}", soft_wrap=True, highlight=False, markup=False)
    return report


def _cut(source: Image.Image, path: Path) -> Pixels:
    """The picture, on white if it is transparent, without the rows and columns that do not make a whole block."""
    width, height = (side // FACTOR * FACTOR for side in source.size)
    if not width or not height:
        raise DataError(
            f"{path}: {_size(source.size)} pixels cannot be reduced by {FACTOR} for a comparison; "
            "it can only be enlarged (--enlarge)"
        )
    return np.asarray(picture.on_white(source))[:height, :width]


def _resize(rgb: Pixels, width: int, height: int) -> Pixels:
    return np.asarray(Image.fromarray(rgb).resize((width, height), Image.Resampling.BICUBIC))


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def _gain(before: float, after: float) -> str:
    gain = 0.0 if before == after else round(after - before, 2)  # both may be infinite
    return f"{gain + 0.0:+.2f} dB"  # not -0.00
