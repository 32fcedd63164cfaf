"""Compiled kernels: several processes compile those that the cache on disk does not have."""

from __future__ import annotations

import hashlib
import pickle
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from ... import disk_cache
from ...errors import OperationError
from ...expr.gpu import Kernel
from ...expr.gpu.cuda import OPTIONS
from ...processors import processors
from . import nvrtc

KIND = "cubin"
"""The suffix of files in the cache."""

MIN_A_PROCESS = 6
"""Kernels for which a further process pays: it starts in the time that takes to compile about four small ones."""

MAX_PROCESSES = 8
"""Most processes at a time; each takes about 150 MB."""


@cache
def version() -> str:
    """The version of NVRTC, which the cache and tuning know kernels by."""
    return "NVRTC {}.{}".format(*nvrtc.version())


def binaries(kernels: Sequence[Kernel], architecture: str) -> list[bytes]:
    """The binaries of kernels, in order.

    Args:
        kernels: what to compile; each distinct source is compiled once.
        architecture: as NVRTC names it, "sm_90" say.

    Raises:
        OperationError: NVRTC refuses one; the message has the line of the kernel.
    """
    options = (f"--gpu-architecture={architecture}", *OPTIONS)
    by_source = {kernel.source: kernel for kernel in kernels}
    keys = {source: _key(source, options) for source in by_source}
    found = {source: disk_cache.load(key, KIND) for source, key in keys.items()}
    fresh = [source for source, binary in found.items() if binary is None]
    for source, made in zip(fresh, _compiled([(source, options) for source in fresh]), strict=True):
        if isinstance(made, str):
            raise OperationError(explained(by_source[source], made))
        disk_cache.store(keys[source], KIND, made)
        found[source] = made
    return [found[kernel.source] or b"" for kernel in kernels]


def _key(source: str, options: Sequence[str]) -> str:
    text = "\0".join([version(), *options, source])
    return hashlib.sha256(text.encode()).hexdigest()


def _compiled(requests: list[tuple[str, Sequence[str]]]) -> list[bytes | str]:
    """Compile in this process, or divide the work between several."""
    count = min(processors(), MAX_PROCESSES, len(requests) // MIN_A_PROCESS)
    if count < 2 or not sys.executable:
        return nvrtc.results(requests)
    made: list[bytes | str] = [b""] * len(requests)
    with ThreadPoolExecutor(count) as pool:
        for k, part in enumerate(pool.map(_in_process, [requests[k::count] for k in range(count)])):
            made[k::count] = part
    return made


def _in_process(requests: list[tuple[str, Sequence[str]]]) -> list[bytes | str]:
    # -P keeps the program's folder, whose modules have names of their own, out of the path.
    command = [sys.executable, "-P", nvrtc.__file__]
    done = subprocess.run(command, input=pickle.dumps(requests), capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines()
        raise OperationError(f"compiling kernels: a process ended with {done.returncode}: {' '.join(reason[-1:])}")
    found: list[bytes | str] = pickle.loads(done.stdout)
    return found


def explained(kernel: Kernel, log: str) -> str:
    """The message for a kernel that NVRTC refuses: its first error, with the line."""
    if kernel.explain is not None:
        return f"{kernel.title}: {kernel.explain(log)}"
    found = re.search(r"kernel\.cu\((\d+)\): (?:catastrophic )?error: (.*)", log)
    if found is None:
        return f"{kernel.title}: {log}"
    number = int(found[1])
    lines = kernel.source.splitlines()
    line = lines[number - 1].strip() if number <= len(lines) else ""
    return f"{kernel.title}: line {number}: {found[2]}: {line}"


__all__ = ["KIND", "binaries", "explained", "version"]
