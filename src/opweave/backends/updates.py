"""Inputs that engines update where they are."""

from __future__ import annotations

from collections.abc import Sequence

from .. import memory
from ..memory.spaces import Memory
from ..support.records import record

Pairs = tuple[tuple[int, int], ...]
"""The positions of inputs, and of the outputs that lie in their memory."""


@record
class Update:
    """Inputs that a kernel of an engine updates where they are, if its outputs lie there; otherwise it copies them.

    Attributes:
        pairs: the positions of an input and of the output that may use its memory. All of them do, or none. Empty where
            the kernel always copies.
        inputs: the positions of the inputs that it copies otherwise.
        sizes: the size in bytes of what else it copies then, as far as known: results of other nodes.
    """

    pairs: Pairs
    inputs: tuple[int, ...]
    sizes: tuple[int, ...] = ()

    def copied(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> list[int]:
        """The sizes in bytes of what the kernel copies if it runs on this memory."""
        if self.pairs and outputs and all(memory.is_same(inputs[i], outputs[o]) for i, o in self.pairs):
            return []
        return [*(inputs[i].nbytes for i in self.inputs), *self.sizes]


__all__ = ["Pairs", "Update"]
