"""`opweave demo`: enlarge a photograph by three, sharper than a bicubic filter does.

`network` builds the network with an `MLGraphBuilder`, `expressions` are custom operations around it, and `enlarger` puts both
into one graph. `colours` does the same with NumPy; `job` compares the two, and `sheet` shows the result.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..support.errors import import_extra

if TYPE_CHECKING:
    from rich.console import Console


def run(photo: Path | None, output: Path, *, enlarge: bool = False, console: Console | None = None) -> dict[str, str]:
    """Reduce a photograph by three, enlarge it, write a sheet that compares it with the original, print and return a report.

    Args:
        photo: an image file of any kind that Pillow reads; None for the photograph in this package.
        output: the image file to write, in the format of its suffix. It is replaced only if there is no error.
        enlarge: enlarge the photograph itself, and write the result alone.
        console: where to print; None for standard output.
    """
    for package in ("PIL", "safetensors"):
        import_extra(package, "demo", "the demo")
    from . import job

    return job.run(photo, output, enlarge=enlarge, console=console)
