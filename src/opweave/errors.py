"""The errors of Opweave.

    MLError
     ├── ValidationError     also a TypeError: wrong arguments, wherever the specification throws TypeError
     ├── InvalidStateError   the object was destroyed, lost, or already built
     ├── NotSupportedError   this context, back end or machine cannot do it
     ├── OperationError      the engine failed while it compiled or ran a graph
     ├── DataError           a file or an array holds something that cannot be read
     └── MissingExtraError   also an ImportError: an optional package is not installed

Every message says which operation it is about, its label, the rule, and what came:
`conv2d 'stem': padding must have 4 values, got [0, 0]`.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from importlib import import_module
from typing import Any

MAX_MESSAGE = 3000
"""How many characters a message has at most: names and lists in it may come from a file, and be of any length."""


class MLError(Exception):
    """Base of all errors that Opweave raises on purpose.

    >>> len(str(MLError("a name" * 10**6)))
    3000
    """

    def __init__(self, message: object = "", *others: object) -> None:
        text = str(message)
        if len(text) > MAX_MESSAGE:
            end = MAX_MESSAGE // 6
            text = f"{text[: MAX_MESSAGE - end - 5]} ... {text[-end:]}"
        super().__init__(text, *others)


class ValidationError(MLError, TypeError):
    """An argument breaks a rule of the specification (there: `TypeError`)."""


class InvalidStateError(MLError):
    """The context is lost, the graph is destroyed, or the builder has built already (`InvalidStateError`)."""


class NotSupportedError(MLError):
    """The request is valid, but nothing here can serve it (`NotSupportedError`)."""


class OperationError(MLError):
    """The engine refused or failed to compile or run a graph (`OperationError`)."""


class DataError(MLError):
    """A file or buffer cannot be read as what it should be (`DataError`)."""


class MissingExtraError(MLError, ImportError):
    """An optional package is missing; the message names the extra that brings it."""


def require(condition: bool, rule: str) -> None:
    """Raise `ValidationError` unless `condition` holds; `rule` says what must hold and what came instead."""
    if not condition:
        raise ValidationError(rule)


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import an optional package, or say which extra of Opweave brings it.

    >>> import_extra("no_such_package", "demo", "reading photographs")
    Traceback (most recent call last):
    opweave.errors.MissingExtraError: reading photographs needs no_such_package: pip install 'opweave[demo]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the package is there, but one of its own imports is not
        name = module.partition(".")[0]
        raise MissingExtraError(f"{purpose} needs {name}: pip install 'opweave[{extra}]'") from None


def user_line(error: BaseException, function: Callable[..., Any]) -> str:
    """Where in the file of a user's `function` an error came from, to end a message with; empty if it did not.

    >>> def mine():
    ...     raise ValueError("no")
    >>> try:
    ...     mine()
    ... except ValueError as error:
    ...     print(user_line(error, mine).replace("(<doctest opweave.errors.user_line[0]>", "(file.py"))
     (file.py, line 2: raise ValueError("no"))
    """
    code = getattr(function, "__code__", None)
    trace, found = error.__traceback__, None
    while code is not None and trace is not None:
        if trace.tb_frame.f_code.co_filename == code.co_filename:
            found = trace
        trace = trace.tb_next
    if found is None:
        return ""
    name, line = found.tb_frame.f_code.co_filename, found.tb_lineno
    text = linecache.getline(name, line).strip()
    short = name.replace("\\", "/").rpartition("/")[2]
    return f" ({short}, line {line}{': ' + text if text else ''})"
