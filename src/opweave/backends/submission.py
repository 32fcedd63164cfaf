"""Work that the queue of a device puts in an order."""

from __future__ import annotations


class Submission:
    """A call that runs a graph by handing one piece of work to the queue of a device.

    Threads that use the same tensors at the same time need no locks for it: the queue puts their work in an order, and memory
    lives until what uses it is done. Tensors need their locks if something else uses them in several pieces of work.

    Attributes:
        max_whole: the bytes of the largest tensors that the host reads and writes in one piece.
    """

    max_whole: int


__all__ = ["Submission"]
