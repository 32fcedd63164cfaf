"""The processes that a test starts, Ray's own included, found by an environment variable that all of them inherit."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic, sleep
from uuid import uuid4

NAME = "OPWEAVE_TEST_PROCESSES"


def new_mark() -> str:
    """A value for the environment variable `NAME`."""
    return uuid4().hex


def marked(mark: str) -> dict[int, str]:
    """The command lines of the live processes that have the mark, by their ids; this process is left out."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()  # empty for zombies
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended, or is another user's
            continue
        if f"{NAME}={mark}".encode() in environment.split(b"\0") and int(folder.name) != os.getpid():
            found[int(folder.name)] = command
    return found


def left_over(mark: str, seconds: float = 20) -> dict[int, str]:
    """Marked processes that have not ended after so many seconds."""
    end = monotonic() + seconds
    while (found := marked(mark)) and monotonic() < end:
        sleep(0.1)
    return found


def private_bytes(process: int) -> int:
    """The memory that a process has written to and shares with no other. Mapped files count for whoever maps them alone."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:])
    return int(fields["Private_Dirty"].split()[0]) * 1024
