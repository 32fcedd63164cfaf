"""The entry point of the command line."""

from __future__ import annotations

import sys

from rich.text import Text

from ..support.errors import MLError
from ..support.progress import show_with
from . import (
    bench as bench,
    cache as cache,
    chat as chat,
    deploy as deploy,
    diff as diff,
    execute as execute,
    graphs as graphs,
    models as models,
    profile as profile,
    quantize as quantize,
    serve as serve,
    system as system,
    tune as tune,
)  # the commands register themselves
from .common import CliSettings, app as app, errors


def main() -> None:
    """Run the command line.

    Long compilation is shown on standard error while it runs. Errors of Opweave, files and the terminal are printed there,
    on one line.
    """
    show_with(lambda work: errors.status(Text(work)))  # not as markup: it may contain brackets
    try:
        app()
    except (MLError, OSError) as error:
        if CliSettings.verbose:
            errors.print_exception()
        text = " ".join(str(error).split())
        errors.print(Text("error:", "red"), text, soft_wrap=True)
        sys.exit(1)
