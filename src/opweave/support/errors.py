"""The errors of Opweave.

    MLError
     ├── ValidationError     also a TypeError: invalid arguments, where the specification throws TypeError
     ├── InvalidStateError   the object was destroyed, lost, or already built
     ├── NotSupportedError   the context, back end or machine does not support the request
     ├── OperationError      the engine failed to compile or run a graph
     ├── DataError           a file or an array has invalid contents
     └── MissingExtraError   also an ImportError: an optional package is not installed, or cannot be imported

Every message contains the operation, its label, the rule, and the value:
`conv2d 'stem': padding must have 4 values, got [0, 0]`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from linecache import getline
from types import CodeType
from typing import Any

from . import packages
from .names import file_name, short_repr, visible

__all__ = [
    "DataError", "InvalidStateError", "MLError", "MissingExtraError", "NotSupportedError", "OperationError",
    "ValidationError", "require",
]  # fmt: skip

MAX_DECORATOR_LINES = 10
"""Number of lines in which the `def` of a decorated function is searched."""

NO_RESULT = "the function returned None; is a return missing?"
"""The message about a user's function that returns nothing."""

MAX_LINE_CHARACTERS = 120
"""Maximum length of a line of a user's program within a message: the longest line that formatters commonly allow."""

MAX_MESSAGE_CHARACTERS = 3000
"""Maximum length of a message, because names and lists from a file may have any length."""


class MLError(Exception):
    """Base class of all errors that Opweave raises on purpose.

    Messages contain names from models, so characters that control terminals are shown by their codes.

    >>> len(str(MLError("a name" * 10**6)))
    3000
    """

    def __init__(self, message: object = "", *others: object) -> None:
        text = str(message)
        if len(text) > MAX_MESSAGE_CHARACTERS:
            end = MAX_MESSAGE_CHARACTERS // 6
            text = f"{text[: MAX_MESSAGE_CHARACTERS - end - 5]} ... {text[-end:]}"
        super().__init__(visible(text), *others)


class ValidationError(MLError, TypeError):
    """An argument violates a rule of the specification (`TypeError` there).

    >>> import opweave as ow
    >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    >>> builder.input("x", "float32", [2, 0])
    Traceback (most recent call last):
    opweave.support.errors.ValidationError: input 'x': shape must have dimensions in [1, 2147483647], got [2, 0]
    """


class InvalidStateError(MLError):
    """The context is lost, the graph is destroyed, or the builder has already built (`InvalidStateError`).

    >>> import opweave as ow
    >>> context = ow.ml.create_context(device="reference")
    >>> context.destroy()
    >>> context.create_tensor("float32", [2])
    Traceback (most recent call last):
    opweave.support.errors.InvalidStateError: the context is lost: destroy() was called
    """


class NotSupportedError(MLError):
    """The request is valid, but not supported here (`NotSupportedError`).

    >>> import opweave as ow
    >>> context = ow.ml.create_context(device="abacus")
    Traceback (most recent call last):
    opweave.support.errors.NotSupportedError: there is no device 'abacus'...
    """


class OperationError(MLError):
    """The engine failed to compile or run a graph (`OperationError`).

    >>> import numpy as np, opweave as ow
    >>> @ow.expression
    ... def second(x):
    ...     return ow.expr.compute((1,), lambda i: x.checked[i + 1])
    >>> second(np.float32([1])).numpy()
    Traceback (most recent call last):
    opweave.support.errors.OperationError: second: the index i + 1 of axis 0 must be in [0, 1)...
    """


class DataError(MLError):
    """A file or buffer has invalid contents (`DataError`).

    >>> import opweave as ow
    >>> ow.InferenceSession(b"not a model")
    Traceback (most recent call last):
    opweave.support.errors.DataError: ...
    """


class MissingExtraError(MLError, ImportError):
    """An optional package is missing, or cannot be imported; the message says what installs it.

    >>> import_extra("no_such_package", "demo", "reading photographs")
    Traceback (most recent call last):
    opweave.support.errors.MissingExtraError: reading photographs needs no_such_package: pip install 'opweave[demo]'
    """


class NoSuchNameError(ValidationError, AttributeError):
    """An object has no such attribute or operation. It is an `AttributeError` as well, for `hasattr`.

    >>> import opweave as ow
    >>> ow.MLGraphBuilder(ow.ml.create_context(device="reference")).MatMul
    Traceback (most recent call last):
    opweave.support.errors.NoSuchNameError: a builder has no attribute or operation 'MatMul'; did you mean 'matmul'?
    """


class SignatureError(ValidationError):
    """A call does not fit the parameters of an operation, or a function does not return what it must."""


class NoValueError(ValidationError):
    """Python or a library asks an operand for its value. The message has the line of the user's program."""


def require(condition: bool, rule: str) -> None:
    """Raise `ValidationError` unless `condition` holds; `rule` contains the rule and the actual value.

    >>> require(2 > 3, "the rank must be more than 3, got 2")
    Traceback (most recent call last):
    opweave.support.errors.ValidationError: the rank must be more than 3, got 2
    """
    if not condition:
        raise ValidationError(rule)


def require_flags(**flags: object) -> None:
    """Raise `ValidationError` for an argument that is neither True nor False."""
    for name, flag in flags.items():
        require(isinstance(flag, bool), f"{name} must be True or False, got {short_repr(flag)}")


def require_drafts(has_drafts: bool, subject: str) -> None:
    """Raise `ValidationError` unless a context has drafts; `subject` is what only a draft of the specification contains.

    >>> require_drafts(False, "usage")
    Traceback (most recent call last):
    opweave.support.errors.ValidationError: usage is a draft, which opweave.ml.create_context(drafts=True) switches on
    """
    if not has_drafts:
        raise ValidationError(f"{subject} is a draft, which opweave.ml.create_context(drafts=True) switches on")


PIP_NAMES = {"PIL": "pillow", "cuda": "cuda-bindings"}
"""Names by which pip knows packages, where they differ from the module's."""

MAX_CAUSE_CHARACTERS = 300
"""Maximum length of the text of another package's error within a message."""


def cause_text(error: BaseException) -> str:
    """The type and the first line of another package's error.

    >>> cause_text(OSError("libfoo.so: no such file\\nTry to ..."))
    'OSError: libfoo.so: no such file'
    """
    lines = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *lines[:1]])[:MAX_CAUSE_CHARACTERS]


def need_text(purpose: str, package: str, remedy: str, problem: str = "") -> str:
    """The message that `purpose` needs a package that is missing or has a problem, with the remedy.

    >>> need_text("compiling expressions", "halide", "pip install --upgrade halide", "and 1.0 is installed")
    'compiling expressions needs halide, and 1.0 is installed: pip install --upgrade halide'
    """
    return f"{purpose} needs {package}{', ' if problem else ''}{problem}: {remedy}"


def unusable(cause: str) -> str:
    """The problem of a package that is installed and broken, for `need_text`; `cause` is as `cause_text` writes it."""
    return f"which cannot be imported ({cause})"


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import a package of an extra, or one that Opweave needs (""); if that fails, raise an error with reason and remedy.

    >>> import_extra("no_such_package", "demo", "reading photographs")
    Traceback (most recent call last):
    opweave.support.errors.MissingExtraError: reading photographs needs no_such_package: pip install 'opweave[demo]'
    """
    name = module.partition(".")[0]
    try:
        imported = import_module(module)
        attribute = packages.NEEDED.get(module)
        if attribute is None or hasattr(imported, attribute):
            return imported
        if getattr(imported, "__file__", None) is None:  # a folder without modules
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        raise AttributeError(f"module {module!r} has no attribute {attribute!r}", name=attribute, obj=imported)
    except Exception as error:  # a broken package may raise anything
        if text := packages.shadow_text(name):
            raise MissingExtraError(f"{purpose} needs {PIP_NAMES.get(name, name)}{text}") from error
        # A package that is there may lack another one, or a part of itself.
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            remedy = f"pip install 'opweave[{extra}]'" if extra else f"pip install {name}"
            raise MissingExtraError(need_text(purpose, name, remedy)) from None
        package = PIP_NAMES.get(name, name)
        remedy = f"pip install --force-reinstall {package}"
        raise MissingExtraError(need_text(purpose, package, remedy, unusable(cause_text(error)))) from error


@contextmanager
def user_code(function: Callable[..., Any], during: str) -> Iterator[None]:
    """Add the line in the file of a user's `function` to errors that the `with` block raises when it calls the function.

    A `ValidationError` gets the line at the end of its message, unless it has the line already, and stays of its class; errors
    of other packages get a note, `during` and the line.
    """
    try:
        yield
    except ValidationError as error:
        raise type(error)(with_user_line(error, function)) from error
    except MLError:
        raise
    except Exception as error:
        error.add_note(f"{during}{user_line(error, function)}")
        raise


def with_user_line(error: BaseException, function: Callable[..., Any]) -> str:
    """The message of an error, with the line that raised it at its end unless it is in the message already.

    If the function has returned, as when its result is wrong, the line is that of its `def`.
    """
    line = user_line(error, function) or declaration_line(function)
    return str(error) if line in str(error) else f"{error}{line}"


def declaration_line(function: Callable[..., Any]) -> str:
    """The line in the file of a user's `function` where it begins, as the end of a message; empty if unknown.

    >>> declaration_line(print)
    ''
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    number = definition_line(code)
    return _at(code.co_filename, number, _source_line(code.co_filename, number))


def definition_line(code: CodeType) -> int:
    """The line of the `def` of a function, which is below those of its decorators, or that of a `lambda`.

    >>> definition_line(definition_line.__code__) == definition_line.__code__.co_firstlineno
    True
    """
    first = code.co_firstlineno
    if code.co_name == "<lambda>":
        return first
    lines = range(first, first + MAX_DECORATOR_LINES)
    return next((line for line in lines if getline(code.co_filename, line).lstrip().startswith("def ")), first)


def caller_line() -> str:
    """The innermost line outside of Opweave, NumPy and PyTorch, as the end of a message: ` (model.py, line 3: if x > 0:)`."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    file = frame.f_code.co_filename
    return _at(file, frame.f_lineno, _source_line(file, frame.f_lineno))


_LIBRARIES = ("opweave", "numpy", "torch")


def _source_line(file: str, number: int) -> str:
    # Since 3.13, Python finds the program of `python -c` for all code that was made from a string.
    return getline(file, number).strip() if file != "<string>" else ""


def _at(file: str, line: int | None, text: str | None = None) -> str:
    from textwrap import shorten  # after an error only: the import takes 2 ms

    text = text and shorten(text, MAX_LINE_CHARACTERS, placeholder=" …")
    return f" ({file_name(file)}, line {line}{': ' + text if text else ''})"


def user_line(error: BaseException, function: Callable[..., Any]) -> str:
    """The line in the file of a user's `function` where an error was raised, as the end of a message; empty if unknown.

    >>> def mine():
    ...     raise ValueError("no")
    >>> try:
    ...     mine()
    ... except ValueError as error:
    ...     print(user_line(error, mine).replace("(<doctest opweave.support.errors.user_line[0]>", "(file.py"))
     (file.py, line 2: raise ValueError("no"))
    """
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    from traceback import extract_tb

    frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename == file]
    if not frames:
        return ""
    return _at(frames[-1].filename, frames[-1].lineno, frames[-1].line)
