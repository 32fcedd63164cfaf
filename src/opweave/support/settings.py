"""Numbers, switches and choices in environment variables."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .errors import ValidationError
from .names import short_repr

STRICT = "OPWEAVE_STRICT"
"""Environment variable: raise errors of Opweave's own code instead of falling back. The tests set it."""

MAX_DIGITS = 18
"""Maximum digits of a number; Python converts none of more than 4,300, and no setting needs more than 64 bits."""


def number(variable: str, default: int, *, least: int = 1, subject: str = "a positive integer") -> int:
    """The value of an environment variable, or the default if it is not set or empty.

    It has digits 0 to 9 alone, at most 18 of them, and is not less than `least`; `subject` is the rule in messages.

    >>> os.environ["EXAMPLE_LIMIT"] = "12"
    >>> number("EXAMPLE_LIMIT", 7)
    12
    >>> os.environ["EXAMPLE_LIMIT"] = "1_2"
    >>> number("EXAMPLE_LIMIT", 7)
    Traceback (most recent call last):
    opweave.support.errors.ValidationError: EXAMPLE_LIMIT must be a positive integer, got '1_2'
    """
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    is_number = text.isascii() and text.isdecimal()
    if not is_number or len(text) > MAX_DIGITS or int(text) < least:
        length = f" of at most {MAX_DIGITS} digits" if is_number and len(text) > MAX_DIGITS else ""
        raise ValidationError(f"{variable} must be {subject}{length}, got {short_repr(text)}")
    return int(text)


def flag(variable: str, default: bool) -> bool:
    """Whether a switch is on: the value of an environment variable, 1 or 0, or the default if it is not set or empty.

    >>> flag("EXAMPLE_SWITCH", True)
    True
    """
    text = os.environ.get(variable, "").strip()
    if text not in ("", "0", "1"):
        raise ValidationError(f"{variable} must be 0 or 1, got {short_repr(text)}")
    return default if not text else text == "1"


def choice(variable: str, choices: Sequence[str], default: str) -> str:
    """The value of an environment variable, which is one of `choices`, or the default if it is not set or empty.

    >>> choice("EXAMPLE_CHOICE", ["fast", "exact"], "fast")
    'fast'
    """
    value = os.environ.get(variable, "").strip()
    if value and value not in choices:
        raise ValidationError(f"{variable} must be one of {', '.join(choices)}, got {short_repr(value)}")
    return value or default
