"""Compiled kernels: several processes compile those that the cache on disk does not have."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, TypeAlias

from ... import disk_cache
from ...errors import OperationError
from ...expr.gpu import Compiled, Kernel
from ...expr.gpu.cuda import OPTIONS, USER_OPTIONS
from ...processors import processors
from . import nvrtc, triton_program

KIND = "cubin"
"""The suffix of files in the cache."""

MAX_PROCESSES = 16
"""Most processes at a time, however many processors there are: each loads a compiler of its own. An estimate."""

Result: TypeAlias = dict[str, Any] | str
"""What a compiler's program returns for a source: fields of `Compiled`, or the text of an error."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler of kernels.

    Attributes:
        version: its name and version.
        program: the file that compiles in a process of its own.
        results: compiles in this process; None where it must not be imported here.
        options: of a kernel, for an architecture.
        min_a_process: kernels for which a further process pays: it takes as long to start as these take to compile.
    """

    version: Callable[[], str]
    program: str
    results: Callable[[Sequence[tuple[str, Any]]], list[Result]] | None
    options: Callable[[Kernel, str], Any]
    min_a_process: int


@cache
def version() -> str:
    """The version of NVRTC, which the cache and tuning know kernels by."""
    return "NVRTC {}.{}".format(*nvrtc.version())


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


@cache
def headers() -> tuple[str, ...]:
    """The options of NVRTC for the headers of an installed CUDA toolkit; none without one."""
    from cuda import pathfinder

    folders = [pathfinder.find_nvidia_header_directory(name) for name in ("cudart", "cccl")]
    return tuple(f"--include-path={folder}" for folder in folders if folder)


COMPILERS = {
    "": Compiler(
        version,
        nvrtc.__file__,
        lambda requests: nvrtc.results(requests),
        lambda _, architecture: (f"--gpu-architecture={architecture}", *OPTIONS),
        min_a_process=6,
    ),
    # Text of users has the compiler's own defaults.
    "cuda": Compiler(
        version,
        nvrtc.__file__,
        lambda requests: nvrtc.results(requests),
        lambda kernel, architecture: (
            f"--gpu-architecture={architecture}",
            *USER_OPTIONS,
            *(headers() if "#include" in kernel.source else ()),
        ),
        min_a_process=6,
    ),
    # Its LLVM and that of Mesa's drivers must not meet in one process.
    "triton": Compiler(
        triton_version,
        triton_program.__file__,
        None,
        lambda kernel, architecture: {
            "architecture": int(architecture.removeprefix("sm_")),
            "arguments": len(kernel.bindings),
            **dict(kernel.options),
        },
        min_a_process=2,
    ),
}
"""The compilers, by their names in `Kernel.compiler`."""


def binaries(kernels: Sequence[Kernel], architecture: str) -> list[Compiled]:
    """The binaries of kernels, in order.

    Args:
        kernels: what to compile; each distinct source is compiled once.
        architecture: as NVRTC names it, "sm_90" say.

    Raises:
        OperationError: the compiler refuses one; the message has the line of the kernel.
    """
    by_key = {kernel.key: kernel for kernel in kernels}
    found = {key: kernel.compiled or _stored(kernel, architecture) for key, kernel in by_key.items()}
    lacking = [by_key[key] for key, known in found.items() if known is None]
    groups = [own for name in COMPILERS if (own := [kernel for kernel in lacking if kernel.compiler == name])]

    def results(group: list[Kernel]) -> list[Result]:
        compiler = COMPILERS[group[0].compiler]
        return _compiled(compiler, [(kernel.source, compiler.options(kernel, architecture)) for kernel in group])

    with ThreadPoolExecutor(max(1, len(groups))) as pool:  # compilers work at the same time
        made = list(pool.map(results, groups))
    for group, its in zip(groups, made, strict=True):
        for kernel, result in zip(group, its, strict=True):
            if isinstance(result, str):
                raise OperationError(explained(kernel, result))
            compiled = Compiled(**{"entry_point": kernel.entry_point, "invocations": kernel.block, **result})
            disk_cache.store(_disk_key(kernel, architecture), KIND, _packed(compiled))
            found[kernel.key] = compiled
    return [known for kernel in kernels if (known := found[kernel.key]) is not None]


def _stored(kernel: Kernel, architecture: str) -> Compiled | None:
    data = disk_cache.load(_disk_key(kernel, architecture), KIND)
    return None if data is None else _unpacked(data)


def _disk_key(kernel: Kernel, architecture: str) -> str:
    compiler = COMPILERS[kernel.compiler]
    options = json.dumps(compiler.options(kernel, architecture))
    block = "x".join(map(str, kernel.block))
    text = "\0".join([compiler.version(), options, kernel.entry_point, block, kernel.source])
    return hashlib.sha256(text.encode()).hexdigest()


def _packed(compiled: Compiled) -> bytes:
    """A line of JSON, then the image."""
    fields = {name: value for name, value in asdict(compiled).items() if name != "image"}
    return json.dumps(fields).encode() + b"\n" + compiled.image


def _unpacked(data: bytes) -> Compiled:
    line, _, image = data.partition(b"\n")
    fields = json.loads(line)
    x, y, z = fields.pop("invocations")
    return Compiled(image, invocations=(x, y, z), **fields)


def _compiled(compiler: Compiler, requests: list[tuple[str, Any]]) -> list[Result]:
    """Compile in this process, or divide the work between several."""
    count = min(processors(), MAX_PROCESSES, len(requests) // compiler.min_a_process)
    if compiler.results is not None and (count < 2 or not sys.executable):
        return compiler.results(requests)
    count = max(count, 1)
    made: list[Result] = [""] * len(requests)
    with ThreadPoolExecutor(count) as pool:
        parts = [requests[k::count] for k in range(count)]
        for k, part in enumerate(pool.map(lambda part: _in_process(compiler, part), parts)):
            made[k::count] = part
    return made


def _in_process(compiler: Compiler, requests: list[tuple[str, Any]]) -> list[Result]:
    # -P keeps the program's folder, whose modules have names of their own, out of the path.
    command = [sys.executable, "-P", compiler.program]
    done = subprocess.run(command, input=pickle.dumps(requests), capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines()
        raise OperationError(f"compiling kernels: a process ended with {done.returncode}: {' '.join(reason[-1:])}")
    found: list[Result] = pickle.loads(done.stdout)
    return found


def explained(kernel: Kernel, log: str) -> str:
    """The message for a kernel that its compiler refuses: its first error, with the line."""
    if kernel.explain is not None:
        return f"{kernel.title}: {kernel.explain(log)}"
    found = re.search(r"kernel\.cu\((\d+)\): (?:catastrophic )?error: (.*)", log)
    if found is None:
        return f"{kernel.title}: {log}"
    number = int(found[1])
    lines = kernel.source.splitlines()
    line = lines[number - 1].strip() if number <= len(lines) else ""
    return f"{kernel.title}: line {number}: {found[2]}: {line}"


__all__ = ["KIND", "binaries", "explained", "triton_version", "version"]
