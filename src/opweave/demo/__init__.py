"""`opweave demo`: enlarge a photograph by three, sharper than a bicubic filter does.

Read the modules in this order: `network` builds the network with an `MLGraphBuilder`; `expressions` is what surrounds it;
`enlarger` puts both into one graph, 8-bit pixels in, 8-bit pixels out. `colours` is the same with NumPy, and `timing` compares
the two. `picture` reads and writes image files, `sheet` lays out the result, and `job` does the whole job.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import import_extra

if TYPE_CHECKING:
    from rich.console import Console

    from .job import Report


def run(photo: Path | None, output: Path, *, enlarge: bool = False, console: Console | None = None) -> Report:
    """Reduce a photograph by three, enlarge it again, write a sheet that compares both with the original, print a report.

    Args:
        photo: an image file of any kind that Pillow reads; None for the photograph in this package.
        output: the image file to write; its suffix says the format. It is replaced only when all has worked.
        enlarge: enlarge the photograph as it is, and write the result alone.
        console: where the report goes; None for standard output.

    Returns:
        The report that is printed.

    Raises:
        MissingExtraError: Pillow or safetensors is not installed.
        DataError: the photograph cannot be read or is too small or too large, or the output cannot be written.
    """
    import_extra("PIL", "demo", "the demo")
    import_extra("safetensors", "demo", "the demo")
    from . import job

    return job.run(photo, output, enlarge=enlarge, console=console)
