"""Calls that submit all their work to the queue of a device at once."""

from __future__ import annotations


class Submission:
    """A call that runs a graph by submitting one piece of work to the queue of a device.

    Threads that use the same tensors at the same time need no locks for such a call: the queue orders their work, and memory
    lives until the work that uses it is done. Other work on the same tensors, in several submissions, takes their locks.
    `max_whole` is the size in bytes of the largest tensors that the host reads and writes in one piece.
    """

    max_whole: int
