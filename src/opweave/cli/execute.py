"""`opweave exec`: run a Python program with Opweave in place of ONNX Runtime."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from .common import BadParameter, Verbose, app, console

FOLDER = Path(__file__).parents[1] / "onnxruntime" / "startup"
"""The folder with the `sitecustomize` that starts the replacement."""


class ProgramCommand(TyperCommand):
    """A command whose options come first; from the first other word on, all are the words of a program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Divide the words, and parse the options."""
        flags = {name: getattr(option, "is_flag", True) for option in self.params for name in option.opts}
        count = 0
        while count < len(args) and args[count].startswith("--") and args[count] != "--":
            name, has_value, _ = args[count].partition("=")
            count += 1 if has_value or flags.get(name, True) else 2
        rest = args[count:]
        return super().parse_args(ctx, [*args[:count], "--", *rest] if rest else args)


@app.command("exec", cls=ProgramCommand)
def execute(
    program: Annotated[
        list[str] | None,
        typer.Argument(
            help="What follows `python`: a file, -m MODULE or -c CODE, and arguments. After --, a program of the PATH."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", help="Where all sessions run. Default: the device of the providers that the program names."
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision", help="How engines compute float32 operations: float32, ieee, tf32, bfloat16 or float16."
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads of an operation on the CPU, in all sessions.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Print to standard error at the end what ran each session, and why.")
    ] = False,
    path: Annotated[
        bool, typer.Option("--path", help="Print the folder to put on PYTHONPATH for the same effect, and exit.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Run a Python program unchanged, with Opweave in place of ONNX Runtime, also in its child processes.

    `opweave exec app.py --size 3` runs `python app.py --size 3`; `opweave exec -- uvicorn app:app` runs a program that is
    installed. --device, --precision and --threads make one context for all sessions; it is on the CPU without --device.
    """
    from ..onnx.session import environment
    from ..onnx.session.replacement import replacing_onnxruntime

    if path:
        console.print(str(FOLDER), soft_wrap=True)
        return
    options: dict[str, Any] = {"device": device, "precision": precision, "threads": threads}
    replacing_onnxruntime(**options)  # checks the options
    if device is not None or precision is not None:
        from ..backends import find_device

        asked: Any = precision or "float32"
        find_device(device or "cpu", precision=asked)  # fails here rather than in the first session
    chosen = environment.variables(report=report, **options)
    before = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry not in ("", str(FOLDER))]
    _run(_command(program or []), {**os.environ, **chosen, "PYTHONPATH": os.pathsep.join([str(FOLDER), *before])})


def _command(words: list[str]) -> list[str]:
    """The command to run: a program of the PATH after "--", else Python with these words."""
    if words[:1] != ["--"]:
        if option := _ignoring_option(words):
            raise BadParameter(f"-{option} makes Python ignore PYTHONPATH or `site`, by which ONNX Runtime is replaced")
        return [sys.executable, *words]
    if not words[1:]:
        raise BadParameter("the program is missing after --")
    if (file := shutil.which(words[1])) is None:
        raise BadParameter(f"there is no program {words[1]!r} on the PATH")
    return [file, *words[2:]]


def _ignoring_option(words: list[str]) -> str:
    """The letter of an option of Python with which it does not import `sitecustomize`; empty if there is none.

    >>> _ignoring_option(["-X", "dev", "-sI", "app.py"]), _ignoring_option(["-um", "app", "-E"]), _ignoring_option(["-c", "I"])
    ('I', '', '')
    """
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word in ("-", "--"):
            break
        for place, letter in enumerate(word[1:], 2):
            if letter in "EIS":
                return letter
            if letter in "cm":
                return ""
            if letter in "WX":
                if place == len(word):
                    next(rest, "")  # the next word is the option's value
                break
    return ""


def _run(command: list[str], variables: dict[str, str]) -> NoReturn:
    """Become the process of a command; on Windows, which cannot, wait for it."""
    if os.name == "nt":
        import subprocess

        sys.exit(subprocess.call(command, env=variables))
    os.execve(command[0], command, variables)
