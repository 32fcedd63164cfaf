"""Texts of numbers in kernels: literals, or parameters for sizes that are known only when a graph runs."""

from __future__ import annotations

from typing import Protocol

from ....core.sizes import Dimension


class KernelNumbers(Protocol):
    """Returns the texts of numbers; the module of a kernel declares parameters for sizes."""

    def number(self, value: Dimension) -> str:
        """The text of an i32."""

    def unsigned(self, value: Dimension) -> str:
        """The text of a number that is not negative, as a u32."""

    def divisor(self, value: Dimension) -> str:
        """The text of a positive number that divides a u32 below 2**31."""


class _LiteralNumbers:
    def number(self, value: Dimension) -> str:
        return str(value)

    def unsigned(self, value: Dimension) -> str:
        return f"{value}u"

    divisor = unsigned


LITERALS: KernelNumbers = _LiteralNumbers()
"""For kernels of static graphs, whose sizes are numbers."""
