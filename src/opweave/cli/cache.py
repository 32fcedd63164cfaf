"""Commands for the cache on disk: `opweave cache list | clear`."""

from __future__ import annotations

import time
from collections.abc import Sequence

import typer
from rich.table import Table

from ..support import disk_cache
from ..support.formatting import size
from ..support.names import count_of
from .common import Verbose, app, console

cache = typer.Typer(help="The cache on disk: compiled expressions, and results of tuning.", no_args_is_help=True)
app.add_typer(cache, name="cache")


@cache.command("list")
def list_(verbose: Verbose = False) -> None:
    """List the files of the cache with their sizes and ages, the most recently used first."""
    from ..compile import engines

    entries = disk_cache.entries()
    table = Table("file", "what", "size", "last used", box=None, header_style="bold")
    for entry in entries:
        name = f"{entry.path.name[:20]}…{entry.path.name[-10:]}"
        content = entry.kind
        if content == disk_cache.KINDS[engines.KIND] and (titles := engines.titles(entry.key)):
            content = f"{content} of {', '.join(titles)}"
        table.add_row(name, content, size(entry.bytes), f"{_age(time.time() - entry.used)} ago")
    if entries:
        console.print(table)
    place = disk_cache.directory() or "no directory: this user has none"
    console.print(f"{_total(entries)} of {size(disk_cache.limit())} in {place}", soft_wrap=True)


@cache.command()
def clear(verbose: Verbose = False) -> None:
    """Delete all files of the cache. Expressions are compiled again when needed; results of tuning are lost."""
    console.print(f"deleted {_total(disk_cache.clear())}")


def _total(entries: Sequence[disk_cache.Entry]) -> str:
    return f"{count_of(len(entries), 'file')}, {size(sum(entry.bytes for entry in entries))}"


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
