"""Commands for the cache on disk: `opweave cache list | clear`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from ..support import disk_cache
from ..support.formatting import size
from ..support.names import count_of, short_repr
from .common import Verbose, app, console

if TYPE_CHECKING:
    from ..saved.keyed import KeptGraph

MAX_LISTED = 20
"""Number of files that `opweave cache list` lists without --all; a cache may have thousands."""

cache = typer.Typer(help="The cache on disk: compiled expressions, and results of tuning.", no_args_is_help=True)
app.add_typer(cache, name="cache")


@cache.command("list")
def list_(
    every: Annotated[bool, typer.Option("--all", help=f"List all files, not only the first {MAX_LISTED}.")] = False,
    verbose: Verbose = False,
) -> None:
    """List the files of the cache with their sizes and ages, the most recently used first, and sums by kind.

    Below are the graphs that save_graph has kept by key, and those of web pages on `opweave serve --drafts`.
    """
    from ..compile import engines
    from ..saved.keyed import bytes_limit, kept_graphs

    entries = disk_cache.entries()
    table = Table("file", "what", "size", "last used", box=None, header_style="bold")
    listed = entries if every else entries[:MAX_LISTED]
    for entry in listed:
        name = f"{entry.path.name[:20]}…{entry.path.name[-10:]}"
        content = entry.kind
        if content == disk_cache.KINDS[engines.KIND] and (titles := engines.titles(entry.key)):
            content = f"{content} of {', '.join(titles)}"
        table.add_row(name, content, size(entry.bytes), f"{_age(time.time() - entry.used)} ago")
    if entries:
        console.print(table)
    if len(entries) > len(listed):
        console.print(f"... and {len(entries) - len(listed)} more (--all)")
    place = disk_cache.directory() or "no directory: this user has none"
    for kind in sorted({entry.kind for entry in entries}):
        console.print(f"{kind}: {_total([entry for entry in entries if entry.kind == kind])}", soft_wrap=True)
    console.print(f"{_total(entries)} of {size(disk_cache.limit())} in {place}", soft_wrap=True)
    if not (graphs := kept_graphs()):
        return
    table = Table("graph", "of", "size", box=None, header_style="bold")
    for graph in graphs:
        key = Text(short_repr(graph.key) if graph.key else "damaged")
        table.add_row(key, "a web page" if graph.is_of_page else "programs", size(graph.bytes))
    console.print()
    console.print(table)
    console.print(f"{_total_of_graphs(graphs)} of {size(bytes_limit())}", soft_wrap=True)


@cache.command()
def clear(
    graphs: Annotated[
        bool, typer.Option("--graphs", help="Delete the graphs that are kept by key, too, also those of web pages.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Delete all files of the cache. Expressions are compiled again when needed; results of tuning are lost."""
    console.print(f"deleted {_total(disk_cache.clear())}")
    if graphs:
        from ..saved.keyed import clear_graphs

        console.print(f"deleted {_total_of_graphs(clear_graphs())}")


def _total(entries: Sequence[disk_cache.Entry]) -> str:
    return f"{count_of(len(entries), 'file')}, {size(sum(entry.bytes for entry in entries))}"


def _total_of_graphs(graphs: Sequence[KeptGraph]) -> str:
    return f"{count_of(len(graphs), 'graph')}, {size(sum(graph.bytes for graph in graphs))}"


def _age(seconds: float) -> str:
    """A time in its largest unit.

    >>> _age(59), _age(7300), _age(200_000)
    ('0 minutes', '2 hours', '2 days')
    """
    minutes = max(int(seconds), 0) // 60
    for unit, length in (("day", 1440), ("hour", 60)):
        if minutes >= length:
            return count_of(minutes // length, unit)
    return count_of(minutes, "minute")
