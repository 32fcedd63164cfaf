"""What all commands share: the application, consoles, options."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(
    help="WebNN for Python: neural networks on the engines of this machine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
)
console = Console()
errors = Console(stderr=True)


class Settings:
    """What options of the whole program say."""

    verbose = False


def _set_verbose(value: bool) -> None:
    Settings.verbose = Settings.verbose or value


Verbose = Annotated[
    bool, typer.Option("--verbose", callback=_set_verbose, help="Show where an error comes from, line by line.")
]
