"""Inputs that engines update in place."""

from __future__ import annotations

from collections.abc import Sequence

from .. import memory
from ..memory.spaces import Memory
from ..support.records import record

Aliases = tuple[tuple[int, int], ...]
"""Pairs of input and output positions that share memory."""


@record
class Update:
    """Inputs that a kernel updates in place if its outputs alias them; otherwise the kernel copies them.

    Attributes:
        pairs: positions of an input and of the output that may use its memory. All pairs alias, or none. Empty if the kernel
            always copies.
        inputs: positions of the inputs that are copied otherwise.
        sizes: sizes in bytes of other copies then, as far as known: results of other nodes.
    """

    pairs: Aliases
    inputs: tuple[int, ...]
    sizes: tuple[int, ...] = ()

    def copy_sizes(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> list[int]:
        """Return the sizes in bytes of the copies that the kernel makes on this memory."""
        if self.pairs and outputs and all(memory.is_same(inputs[i], outputs[o]) for i, o in self.pairs):
            return []
        return [*(inputs[i].nbytes for i in self.inputs), *self.sizes]
