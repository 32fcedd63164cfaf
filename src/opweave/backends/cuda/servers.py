"""The processes that have loaded a compiler. This module imports little, so that they start early.

They load while the driver of a device starts, which takes about as long.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from functools import cache
from pathlib import Path

from . import fork_server
from .fork_server import ForkServer

NVRTC = ForkServer(str(Path(__file__).with_name("nvrtc.py")))
TRITON = ForkServer(str(Path(__file__).with_name("triton_program.py")))

MIN_TRITON = (3, 9)
"""The oldest version of Triton that is used, as in the extra cuda: kernels that 3.6 compiled for a tile read outside of their
buffers on an H200."""


@cache
def triton_version() -> str:
    """The version of Triton, which is not imported for it; empty if it is not installed, or too old."""
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""
    known = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    return f"Triton {version}" if known >= MIN_TRITON else ""


def start(*, for_tensor_cores: bool) -> None:
    """Start the processes, and do not wait until they have loaded their compilers; none where processes cannot be forked."""
    if fork_server.IS_POSSIBLE:
        if for_tensor_cores and triton_version():
            TRITON.start()
        NVRTC.start()


def _after_fork() -> None:
    """Processes belong to the one that has started them."""
    NVRTC.forget()
    TRITON.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


__all__ = ["MIN_TRITON", "NVRTC", "TRITON", "start", "triton_version"]
