"""What devices run in an order of their own."""

from __future__ import annotations


class Submission:
    """A call that runs a graph by handing one piece of work to the queue of a device.

    Threads that use the same tensors at the same time need no locks for it: the queue puts their work in an order, and memory
    lives until what uses it is done.

    Attributes:
        max_whole: the bytes of the largest tensors that are read and written in one piece, too. Others need their locks.
    """

    max_whole: int


__all__ = ["Submission"]
