"""Processes that have loaded a compiler, NVRTC or Triton, and fork for each kernel.

Loading a compiler takes about as long as starting the driver of a device, so both happen at the same time. To start the
processes early, this module imports little.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from ...support import packages
from ...support.distributions import version_of
from ...support.errors import need_text, unusable
from . import fork_server
from .fork_server import ForkServer

NVRTC = ForkServer(str(Path(__file__).with_name("nvrtc.py")))
TRITON = ForkServer(str(Path(__file__).with_name("triton_program.py")))

MIN_TRITON = (3, 9)
"""Oldest supported version of Triton, as in the extra cuda: kernels compiled by 3.6 read out of bounds on an H200."""


PURPOSE = "computing on the tensor cores of NVIDIA's GPUs"
"""Purpose of Triton, for messages."""

LOSS = "without it, products are slower, and there are no precisions 'tf32', 'bfloat16' and 'float16'"
"""Features that are lost without Triton, for messages."""

REQUIREMENT = "'triton>={}.{}'".format(*MIN_TRITON)
"""Argument of `pip install`."""


@cache
def _installed_triton() -> str:
    """Return the installed version of Triton; empty if it is not installed, or its metadata has no version."""
    return version_of("triton")


def _is_new_enough() -> bool:
    return tuple(int(part) for part in re.findall(r"\d+", _installed_triton())[:2]) >= MIN_TRITON


@cache
def triton_fault() -> str:
    """Return why Triton cannot be used, the lost features, and the package to install; empty if Triton can be used.

    Triton is imported in the process that compiles with it; this function waits until that process has done so.
    """
    oldest, version = ".".join(map(str, MIN_TRITON)), _installed_triton()
    if shadow := packages.shadow_text("triton"):
        text = f"{PURPOSE} needs Triton{shadow}"
    elif not version and not packages.is_installed("triton"):
        text = need_text(PURPOSE, "Triton", "pip install 'opweave[cuda]'")
    elif not _is_new_enough():
        problem = f"and {version or 'a version that is not stated'} is installed"
        text = need_text(PURPOSE, f"Triton {oldest} or newer", f"pip install --upgrade {REQUIREMENT}", problem)
    elif fork_server.IS_POSSIBLE and (cause := TRITON.failure()):
        text = need_text(PURPOSE, "Triton", f"pip install --force-reinstall {REQUIREMENT}", unusable(cause))
    else:
        return ""
    return f"{text}; {LOSS}"


@cache
def triton_version() -> str:
    """Return "Triton" with its version; empty if Triton cannot be used."""
    return "" if triton_fault() else f"Triton {_installed_triton()}"


def start(*, for_tensor_cores: bool) -> None:
    """Start the processes without waiting until they have loaded their compilers; do nothing where `fork` is missing."""
    if fork_server.IS_POSSIBLE:
        if for_tensor_cores and _is_new_enough():
            TRITON.start()
        NVRTC.start()


def _after_fork() -> None:
    """Forget the processes, which belong to the parent."""
    NVRTC.forget()
    TRITON.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
