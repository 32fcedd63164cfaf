"""Write the reference of the command line, made from the program itself: `python tools/write_command_line.py [FILE]`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from opweave.cli import app
from opweave.cli.execute import ProgramCommand

FILE = Path(__file__).parent.parent / "docs" / "command-line.md"

HEAD = """\
<!-- made by `make docs` from src/opweave/cli -->

# The command line

The program `opweave` comes with the package; `python -m opweave` is the same. `opweave COMMAND --help` prints what this page
says about a command.
"""

EXAMPLES = Path(__file__).parent / "command_line_examples.md"
"""Output of commands, pasted, in a section for each command."""

VALUES = {Path: "PATH", str: "TEXT", int: "INTEGER", float: "NUMBER"}


def leaves(command: Any, name: str = "opweave") -> Iterator[tuple[str, Any]]:
    """All commands below a command, by what is typed to call them."""
    children = getattr(command, "commands", {})
    if not children:
        yield name, command
    for word in sorted(children):
        yield from leaves(children[word], f"{name} {word}")


def value(parameter: Any) -> str:
    """What an option takes: its name for it or its data type, and the range."""
    kind = parameter.type_descriptor.annotation
    (kind,) = getattr(kind, "__args__", (kind,))  # of a list
    text = parameter.metavar or VALUES.get(kind, "|".join(map(str, getattr(kind, "__args__", ()))))
    low, high = parameter.min, parameter.max
    bounds = f"{'' if low is None else f'{low}<='}x{'' if high is None else f'<={high}'}"
    return text if bounds == "x" else f"{text} ({bounds})"


def row(parameter: Any) -> str:
    """The line of a table that tells an argument or an option, and its default."""
    is_argument = parameter.param_type_name == "argument"
    takes = "" if is_argument or parameter.is_flag else f" {value(parameter)}"
    name = placeholder(parameter) if is_argument else ", ".join(parameter.opts)
    notes = [parameter.help or ""]
    if parameter.required:
        notes.append("Required.")
    if parameter.multiple and "May be repeated" not in notes[0]:
        notes.append("May be repeated.")
    if parameter.envvar:
        notes.append(f"Environment variable: `{parameter.envvar}`.")
    default = parameter.default
    shown = "" if default is None or default is False else f"`{default}`"
    text = mark_options(" ".join(notes)).replace("|", "\\|")
    return f"| `{name}{takes}` | {shown} | {text.strip()} |"


def mark_options(text: str) -> str:
    """Put options between backquotes, outside of code."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"(?<![\w-])--[a-z-]*[a-z]", r"`\g<0>`", part) for part in parts[::2]]
    return "`".join(parts)


def placeholder(argument: Any) -> str:
    """The word that stands for an argument."""
    return str(argument.metavar or argument.name.upper()).strip("[]")


def usage(name: str, command: Any) -> str:
    """The command with its arguments in order."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    words = [placeholder(p) + ("..." if p.nargs != 1 else "") for p in arguments]
    words = [word if p.required else f"[{word}]" for word, p in zip(words, arguments, strict=True)]
    options = ["[OPTIONS]"] if len(arguments) < len(command.params) else []
    return " ".join([name, *options, *words] if isinstance(command, ProgramCommand) else [name, *words, *options])


def text() -> str:
    """The page."""
    program = get_command(app)
    _, *sections = re.split(r"^## (.+)\n", EXAMPLES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    examples = dict(zip(sections[::2], sections[1::2], strict=True))
    parts = [HEAD, "## Options of the program", table(program)]
    for name, command in leaves(program):
        help = mark_options(command.help)
        parts += [f"## {name}", help, f"`{usage(name, command)}`", table(command), examples.get(name, "")]
    return "\n".join(f"{part.strip()}\n" for part in parts if part)


def table(command: Any) -> str:
    """The arguments and options of a command."""
    rows = [row(parameter) for parameter in command.params if not parameter.hidden]
    return "\n".join(["| Argument or option | Default | Meaning |", "| --- | --- | --- |", *rows]) if rows else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=FILE, metavar="FILE", help="default: %(default)s")
    parser.parse_args().file.write_text(text(), encoding="utf-8")
