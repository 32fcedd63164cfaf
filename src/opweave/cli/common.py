"""The application object, consoles and options shared by all commands."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ..errors import ValidationError

app = typer.Typer(
    help="WebNN for Python: neural networks on the engines of this machine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class PlainConsole(Console):
    """A console that prints strings literally: names of models and nodes may contain brackets, emoji codes and escape
    sequences.

    Use `rich.text.Text` for styled text. The same holds for table cells.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a string literally; control characters are shown by their code."""
        return super().render_str(_CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text), **options)


console = PlainConsole()
errors = PlainConsole(stderr=True)


class Settings:
    """Options of the whole program."""

    verbose = False


def _set_verbose(value: bool) -> None:
    Settings.verbose = Settings.verbose or value


Verbose = Annotated[bool, typer.Option("--verbose", callback=_set_verbose, help="Show the traceback of an error.")]


def bytes_of(text: str) -> int:
    """A number of bytes from a text.

    >>> bytes_of("512M"), bytes_of("2 GiB"), bytes_of("1024")
    (536870912, 2147483648, 1024)

    Raises:
        ValidationError: it is none.
    """
    found = re.fullmatch(r"(\d{1,12}) ?([KMGT]?)(i?B)?", text.strip(), re.IGNORECASE)
    if found is None or int(found[1]) == 0:
        raise ValidationError(f"a size is like 512M or 2G, got {text!r}")
    return int(found[1]) << 10 * " KMGT".index(found[2].upper() or " ")


def declare(module: str | None) -> str | None:
    """Import the module of `--operations`, from the working directory as well."""
    if module is None:
        return None
    sys.path.insert(0, str(Path.cwd()))
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, and imports another one that does not
        hint = f"; did you mean {module[:-3]!r}?" if module.endswith(".py") else ""
        raise typer.BadParameter(f"there is no module {module!r}{hint}") from None
    return module


Operations = Annotated[
    str | None,
    typer.Option(
        "--operations",
        metavar="MODULE",
        callback=declare,
        help="A Python module that declares custom operations and registers them (ow.register_onnx); it is imported first.",
    ),
]
PrecisionName = Annotated[
    str,
    typer.Option(
        "--precision",
        help="How engines compute float32 operations: float32, ieee, tf32, bfloat16 or float16; `opweave devices` lists what "
        "each device can.",
    ),
]
