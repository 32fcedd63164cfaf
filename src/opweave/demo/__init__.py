"""The main job of `opweave demo`: enlarge a photograph by three, sharper than a bicubic filter does.

`run` does all of it. The parts, in the order in which to read them: `network` builds the network with an
`MLGraphBuilder`, `expressions` is what surrounds it, `enlarger` weaves both into one graph, 8-bit pixels in, 8-bit pixels
out; `colours` has the same with NumPy, and `timing` compares; `picture` reads and writes image files, `sheet` lays out the
before/after picture, `job` puts them together. Pillow and safetensors come with the extra `demo`, and so does Halide where
it exists; elsewhere NumPy evaluates the expressions.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import import_extra

if TYPE_CHECKING:
    from rich.console import Console

    from .job import Report


def run(
    photo: Path | None,
    output: Path,
    *,
    enlarge: bool = False,
    console: Console | None = None,
) -> Report:
    """Enlarge a photograph by three on the default context, write the result, and print a table about it.

    The photograph is first reduced by three, then enlarged again, so that the result can be measured against the
    original; what is written is a sheet that shows bicubic enlargement, the network's, and the original side by side.

    Args:
        photo: an image file of any kind that Pillow reads; None for the photograph that comes with Opweave.
        output: the image file to write; its suffix says the format. It is replaced only when all has worked.
        enlarge: take the photograph as it is and write it three times as wide and high, without a comparison.
        console: where the table goes; None for standard output.

    Returns:
        Sizes, times, devices, copies and, without `enlarge`, the PSNR of both enlargements, and what is saved by one graph.

    Raises:
        MissingExtraError: Pillow or safetensors is not installed.
        DataError: the photograph cannot be read or is too small or too large, or the output cannot be written.
    """
    import_extra("PIL", "demo", "the demo")
    import_extra("safetensors", "demo", "the demo")
    from . import job

    return job.run(photo, output, enlarge=enlarge, console=console)
