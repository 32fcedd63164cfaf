"""Expressions compiled with a directory of objects that is damaged, hostile, or used by others at the same time."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import threading
import warnings
from pathlib import Path

import numpy as np

from fuzz.frame import Campaign, Finding
from opweave.core.graph import Desc
from opweave.expr import trace

TRICKS = [
    *("flip", "flip", "flip", "cut", "empty", "grow", "fifo", "link", "device", "directory", "writable"),
    *("folder-writable", "other-owner", "swap", "gone", "locked", "race"),
]


def damage(rng: random.Random, folder: Path, trick: str) -> None:
    """Do something to one of the files of a directory of objects."""
    entry = rng.choice(sorted(path for path in folder.iterdir() if path.suffix == ".o"))
    content = bytearray(entry.read_bytes())
    match trick:
        case "flip":
            for _ in range(rng.choice([1, 1, 2, 100])):
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            entry.write_bytes(content)
        case "cut":
            entry.write_bytes(content[: rng.randrange(len(content))])
        case "empty":
            entry.write_bytes(b"")
        case "grow":
            entry.write_bytes(content + rng.randbytes(rng.choice([1, 8, 4096])))
        case "fifo":
            entry.unlink()
            os.mkfifo(entry, 0o600)
        case "link" | "device":
            entry.unlink()
            entry.symlink_to("/dev/zero" if trick == "device" else rng.choice([entry.name, "/etc/hostname", "nowhere"]))
        case "directory":
            entry.unlink()
            entry.mkdir()
        case "writable":
            entry.chmod(rng.choice([0o622, 0o666, 0o777]))
        case "folder-writable":
            folder.chmod(rng.choice([0o777, 0o1777, 0o770]))
        case "other-owner":
            if os.getuid() == 0:
                os.chown(rng.choice([entry, folder]), 54321, 54321)
        case "swap":
            other = rng.choice(sorted(folder.iterdir()))
            entry.write_bytes(other.read_bytes())
        case "gone":
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
        case "locked":
            folder.chmod(0o500)


def case(rng: random.Random, number: int) -> str:
    from opweave.expr.halide import compile

    size, factor, trick = rng.choice([1, 7, 64]), rng.uniform(-2, 2), rng.choice(TRICKS)
    x = np.arange(size, dtype=np.float32)
    wanted = x * np.float32(factor) + np.float32(1)
    program = trace(lambda x: x * factor + 1, "p", [Desc("float32", (size,))])

    def run() -> None:
        y = np.zeros_like(x)
        compile(program).bind([x], [y])()
        if not np.allclose(y, wanted, rtol=1e-6):
            raise Finding(f"{trick}: {y[:4]} instead of {wanted[:4]}")

    mask = os.umask(0o022)
    os.umask(mask)
    with tempfile.TemporaryDirectory() as root, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of directories that others can write to
        folder = Path(root) / "cache"
        os.environ["OPWEAVE_CACHE"] = str(folder)
        run()
        stop = threading.Event()

        def interfere() -> None:
            mine = random.Random(number)
            while not stop.wait(0.0005):
                with contextlib.suppress(OSError, IndexError, ValueError):  # there is nothing to damage at the moment
                    damage(mine, folder, mine.choice(["flip", "cut", "empty", "gone", "swap"]))

        thread = threading.Thread(target=interfere)
        if trick == "race":
            thread.start()
        else:
            damage(rng, folder, trick)
        try:
            for _ in range(3):
                run()
        finally:
            stop.set()
            if thread.ident is not None:
                thread.join()
            if folder.exists():
                folder.chmod(0o700)
    now = os.umask(mask)
    if now != mask:
        raise Finding(f"the umask was {mask:o}, and is {now:o}")
    return "result"


CAMPAIGNS = {
    "caches": Campaign(
        "caches",
        "expressions compiled with a directory of objects that is damaged or hostile",
        case,
        count=2000,
        short=17,
        batch=100,
        memory=None,  # Halide's threads reserve more
        outcomes=frozenset({"result"}),
    )
}
