"""The application object, consoles and options shared by all commands."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from traceback import extract_tb, format_exception_only
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ..support.errors import OperationError, ValidationError
from ..support.names import visible

app = typer.Typer(
    help="WebNN for Python: neural networks on the engines of this machine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
)


class PlainConsole(Console):
    """A console that prints strings literally: names of models may contain brackets, emoji codes and escape sequences.

    Use `rich.text.Text` for styled text, also in cells of tables.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a string literally; characters that control terminals or the direction of text are shown by their code."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments to print; styled texts show such characters by their code, too."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


class BadParameter(typer.BadParameter):
    """A wrong option or argument; the message may contain names from a model."""

    def __init__(self, message: str) -> None:
        super().__init__(visible(message))


console = PlainConsole()
errors = PlainConsole(stderr=True)


class CliSettings:
    """Options of the whole program."""

    verbose = False


def _set_verbose(value: bool) -> None:
    CliSettings.verbose = CliSettings.verbose or value


Verbose = Annotated[
    bool, typer.Option("--verbose", callback=_set_verbose, is_eager=True, help="Show the traceback of an error.")
]


def options_set(context: typer.Context, *names: str) -> list[str]:
    """The options of these parameters that the command line or the environment sets."""
    sources = {name: context.get_parameter_source(name) for name in names}
    # An enumeration of Click, or of Typer's copy of Click.
    are_set = [name for name, source in sources.items() if source and source.name in ("COMMANDLINE", "ENVIRONMENT")]
    return [f"--{name.replace('_', '-')}" for name in are_set]


def bytes_of(text: str, option: str) -> int:
    """A number of bytes from the text of an option.

    >>> bytes_of("512M", "--max-body"), bytes_of("2 GiB", "--max-body"), bytes_of("1024", "--max-body")
    (536870912, 2147483648, 1024)
    """
    match = re.fullmatch(r"([0-9]{1,12}) ?([KMGT]?)(i?B)?", text.strip(), re.IGNORECASE)
    if match is None or int(match[1]) == 0:
        raise ValidationError(f"{option} must be a size like 512M or 2G, got {text!r}")
    return int(match[1]) << 10 * " KMGT".index(match[2].upper() or " ")


def declare(module: str | None) -> str | None:
    """Import the module of `--operations`, from the working directory as well."""
    if module is None:
        return None
    sys.path.insert(0, str(Path.cwd()))
    try:
        import_module(module)
    except Exception as error:  # a module may raise any type
        is_missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        # Otherwise the module exists, and imports another module that does not.
        if is_missing or not _is_module_name(module):
            meant = ".".join(Path(module.removesuffix(".py")).parts)
            hint = f"; did you mean {meant!r}?" if meant != module and _is_module_name(meant) else ""
            raise BadParameter(f"there is no module {module!r}{hint}") from None
        text = "".join(format_exception_only(error)[-1:]).strip()
        raise OperationError(f"the module {module!r} cannot be imported: {text} ({_place_of(error)})") from error
    return module


def _is_module_name(text: str) -> bool:
    return all(map(str.isidentifier, text.split(".")))


def _place_of(error: BaseException) -> str:
    """The file and line that raised an error, or that Python cannot read."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    last = extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno}"


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
