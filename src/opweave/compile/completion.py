"""Wait until engines have compiled the parts of programs, or let engines abandon the parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..run.steps import CompiledSegment

_pending: ContextVar[list[CompiledSegment] | None] = ContextVar("pending", default=None)
"""The parts for which `compile_together` waits; None outside of its block."""

_waits: ContextVar[bool] = ContextVar("waits", default=True)
"""Whether a build waits for its engines; False in a block of `wait_at_first_use`."""


@contextmanager
def abandon_on_errors(parts: Sequence[CompiledSegment]) -> Iterator[None]:
    """Let engines abandon parts that they have begun to compile, if another one fails, or the user interrupts it."""
    try:
        yield
    except BaseException:
        for part in parts:
            part.runner.abandon()
        raise


def complete(parts: Sequence[CompiledSegment], *, has_names: bool) -> None:
    """Wait until engines have compiled the parts of a program.

    In a block of `compile_together`, parts of graphs with names are completed at its end. Parts of other graphs are completed
    immediately: if their engine fails, another one compiles the graph. In a block of `wait_at_first_use`, parts that wait in
    `bind` are left out.
    """
    if not _waits.get():
        parts = [part for part in parts if not part.runner.waits_in_bind]
    pending = _pending.get()
    if has_names and pending is not None:
        pending += parts
        return
    for part in parts:
        part.runner.complete()


@contextmanager
def compile_together() -> Iterator[None]:
    """Let engines compile the graphs with names of a block at the same time, and wait for them at the end of the block.

    The programs may be used before: `Runner.bind` waits.
    """
    pending: list[CompiledSegment] = []
    token = _pending.set(pending)
    try:
        with abandon_on_errors(pending):
            yield
            for part in pending:
                part.runner.complete()
    finally:
        _pending.reset(token)


@contextmanager
def wait_at_first_use() -> Iterator[None]:
    """Return from builds in this block while engines still compile, if their runners wait in `bind` (`waits_in_bind`).

    An engine that rejects a graph then raises at the first use, when no other engine can take the graph. Use this only for
    devices with a single engine.
    """
    token = _waits.set(False)
    try:
        yield
    finally:
        _waits.reset(token)
