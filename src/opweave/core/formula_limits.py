"""Limits of formulas of sizes. A graph may come from an untrusted file, and formulas must take a short time."""

from __future__ import annotations

from collections.abc import Iterable

from ..support.errors import ValidationError

MAX_FACTORS = 4096
"""Maximum number of names and calls in a formula, with those in arguments of calls. Squares double it, and remainders:
n % 8 is n - n // 8 * 8. A graph may come from an untrusted file. A shape of four sizes that are cast to int8 needs 1,618.
"""

MAX_CHARACTERS = 2**16
"""Maximum length of the names and calls in a formula: names may be long."""

MAX_BITS = 2048
"""Maximum number of bits of an integer in a formula. These are 617 digits; CPython can be set to refuse more than 640."""

MAX_DEPTH = 50
"""Maximum number of nested calls in a formula. Each takes up to three parentheses of code, of which CPython's parser refuses
200, and up to eight of the 1000 frames that Python allows."""


class LongFormulaError(ValidationError):
    """A formula of sizes has too many names, calls, levels or characters."""


def check_depth(depth: int) -> None:
    """Require a valid number of nested calls in a formula."""
    if depth > MAX_DEPTH:
        raise LongFormulaError(f"a formula of sizes must have at most {MAX_DEPTH} nested calls, got {depth}")


def check_count(count: int) -> None:
    """Require a valid number of names and calls in a formula."""
    if count > MAX_FACTORS:
        raise LongFormulaError(f"a formula of sizes must have at most {MAX_FACTORS} names and calls, got {count}")


def check_characters(characters: int) -> None:
    """Require a valid length of the names and calls in a formula."""
    if characters > MAX_CHARACTERS:
        raise LongFormulaError(f"a formula of sizes must have at most {MAX_CHARACTERS} characters, got {characters}")


def check_integers(integers: Iterable[int]) -> None:
    """Require valid integers in a formula."""
    bits = max(map(int.bit_length, integers), default=0)
    if bits > MAX_BITS:
        raise LongFormulaError(f"a formula of sizes must have integers of at most {MAX_BITS} bits, got {bits}")
