"""Install the packages that ship the models: `python -m gate.packages [--small] [FOLDER]`.

Without what they depend on, and apart from all else: the gate reads their files, and imports none of them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from . import catalog

TOOLS = ["mpmath==1.4.1", "onnx-ir==1.1.0", "sympy==1.14.0"]
"""What ONNX Runtime's quantiser to 4 bits imports."""


def main(
    folder: Annotated[Path, typer.Argument(help="Where to.")] = catalog.PACKAGES,
    small: Annotated[bool, typer.Option(help="Only what `make test` needs.")] = False,
) -> None:
    """Install the packages that are not there yet."""
    places = {folder: catalog.requirements(small)}
    if not small:
        places[folder / catalog.TOOLS] = TOOLS
    for place, requirements in places.items():
        wanted = [text for text in requirements if not _is_installed(text, place)]
        if wanted:
            options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
            command = [sys.executable, "-m", "pip", "install", *options, "--target", str(place), *wanted]
            if code := subprocess.run(command).returncode:
                raise typer.Exit(code)


def _is_installed(requirement: str, folder: Path) -> bool:
    """Whether a folder that pip installs into has a package in that version."""
    name, _, version = requirement.partition("==")
    return Path(folder, f"{name.replace('-', '_')}-{version}.dist-info").is_dir()


if __name__ == "__main__":
    typer.run(main)
