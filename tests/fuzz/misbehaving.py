"""A campaign that does all that the frame must notice; its tests run it."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import numpy as np

from fuzz.frame import Campaign


def misbehave(rng: random.Random, number: int) -> str:
    """Each number fails in a way of its own; 0 and 7 are well, and 8 is where the process has two processors at most."""
    match number:
        case 1:
            raise ValueError("it is not as it should be")
        case 2:
            os.abort()
        case 3:
            while True:
                pass
        case 4:
            return f"{len(np.ones(2**32))} bytes"
        case 5:
            return "nonsense"
        case 6:
            time.sleep(10000)
        case 8:
            return f"processors {sorted(os.sched_getaffinity(0))}"
    return "result"


def write(rng: random.Random, number: int, stem: Path) -> list[Path]:
    path = stem.with_suffix(".bin")
    path.write_bytes(rng.randbytes(4))
    return [path]


CAMPAIGNS = {
    "misbehaving": Campaign(
        "misbehaving",
        "what the frame must notice",
        misbehave,
        count=8,
        short=8,
        seconds=1,
        patience=5,
        outcomes=frozenset({"result"}),
        write=write,
    )
}
