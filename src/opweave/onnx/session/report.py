"""Report at the end of the process what ran each session that a program opened in place of ONNX Runtime's."""

from __future__ import annotations

import atexit
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...support.names import count_of, visible

if TYPE_CHECKING:
    from .parts import SessionParts


class _Report:
    is_on = False
    process = 0  # a child process made by a fork has its own report


_lines: Counter[str] = Counter()


def start() -> None:
    """Write the report to standard error when this process, or a fork of it, ends."""
    _Report.is_on = True


def add(parts: SessionParts, providers: Sequence[Any] | None) -> None:
    """Add a session, and the `providers` that the program named."""
    if not _Report.is_on:
        return
    chosen = next(iter(parts.settings.provider_options), "")
    names = [name if isinstance(name, str) else name[0] for name in providers or ()]
    passed_over = names[: names.index(chosen)] if chosen in names else names
    why = f"for {chosen}" if chosen else "chosen for all sessions"
    why += f", without a device for {', '.join(passed_over)}" if chosen and passed_over else ""
    context = parts.context
    nodes = count_of(len(parts.model.proto.graph.node), "node")
    place = f"{nodes} on {context.device.name} ({why}), {context.precision}"
    choice = parts.choice()
    ways = [f"{choice.way.removeprefix('on ')}: {choice.reason}"]
    ways += [f"{shapes} {other.way}: {other.reason}" for shapes, other in choice.others.items()]
    _add(parts.recipe.model, "; ".join([place, *ways]))


def add_failure(model: Any, error: Exception) -> None:
    """Add a session that could not be opened."""
    if _Report.is_on:
        _add(model, f"failed: {' '.join(str(error).split())}")


def _add(model: Any, text: str) -> None:
    if _Report.process != os.getpid():
        _Report.process = os.getpid()
        _lines.clear()
        atexit.unregister(_write)  # a fork copies what is registered; `multiprocessing` forgets it
        atexit.register(_write)
    if isinstance(model, (str, os.PathLike)):
        name = os.path.basename(os.fsdecode(model))
    else:
        name = f"a model of {len(model):,} bytes" if isinstance(model, (bytes, bytearray)) else "a model"
    _lines[visible(f"opweave: {name}: {text}")] += 1


def _write() -> None:
    if _Report.process == os.getpid() and sys.stderr is not None:
        lines = [f"{line} ({number} sessions)" if number > 1 else line for line, number in _lines.items()]
        print(*lines, sep="\n", file=sys.stderr, flush=True)
