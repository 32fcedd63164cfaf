"""Compile kernels that are not in the cache on disk, in several processes.

Each kernel is a job of a thread that waits for a process (`fork_server`), so that a processor that has finished one kernel
takes the next. Threads that need the same kernel at the same time share its job.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from queue import SimpleQueue
from threading import Lock
from typing import Any, TypeAlias
from weakref import WeakSet, WeakValueDictionary

from ...expr.gpu import CompiledText, GpuKernel
from ...expr.gpu.cuda import OPTIONS, USER_OPTIONS
from ...support import disk_cache
from ...support.compilations import statistics
from ...support.errors import OperationError
from ...support.processors import processors
from . import fork_server, nvrtc, servers
from .devices import has_early_starts
from .fork_server import EndedError, ForkServer
from .servers import triton_fault as triton_fault, triton_version as triton_version

KIND = "cubin"

PROCESSES = 2
"""Kernels compiled at a time per processor: 25 kernels on 16 processors take 25/16 of the time of one, not twice that time."""

MAX_PROCESSES = 32
"""Maximum number of processes on any machine: each takes about 100 MB. An estimate."""

YIELDING = 10
"""Niceness of the processes of quick kernels while slow kernels compile, for which builds wait. Slow kernels then get a
processor each, although there are more processes than processors: niceness 10 is a tenth of the priority (sched(7))."""

Result: TypeAlias = dict[str, Any] | str


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler of kernels; `options` are those for a kernel and an architecture.

    `in_process` compiles in this process, one kernel at a time; None if the compiler must not be imported here.
    """

    version: Callable[[], str]
    options: Callable[[GpuKernel, str], Any]
    server: ForkServer
    in_process: Callable[[Any], Result] | None
    _is_busy: Lock = field(default_factory=Lock)

    def result(self, kernel: GpuKernel, architecture: str, niceness: int = 0) -> Result:
        """Return the fields of `CompiledText`, or the text of an error; `niceness` applies to a separate process."""
        request = kernel.source, self.options(kernel, architecture)
        # Starting a process takes longer than compiling one kernel.
        if self.in_process is not None and self._is_busy.acquire(blocking=not fork_server.IS_POSSIBLE):
            try:
                return self.in_process(request)
            finally:
                self._is_busy.release()
        try:
            answer: Result = self.server.result(request, niceness)
        except EndedError as error:
            raise OperationError(f"{kernel.title}: the process that compiles it ended: {error}") from error
        return answer


@cache
def version() -> str:
    return "NVRTC {}.{}".format(*nvrtc.version())


@cache
def headers() -> tuple[str, ...]:
    """The options of NVRTC for the headers of an installed CUDA toolkit."""
    from cuda import pathfinder

    folders = [pathfinder.find_nvidia_header_directory(name) for name in ("cudart", "cccl")]
    return tuple(f"--include-path={folder}" for folder in folders if folder)


def _options(defaults: Sequence[str]) -> Callable[[GpuKernel, str], Any]:
    def options(kernel: GpuKernel, architecture: str) -> tuple[str, ...]:
        # Only user code includes headers.
        return (f"--gpu-architecture={architecture}", *defaults, *(headers() if "#include" in kernel.source else ()))

    return options


def _triton_options(kernel: GpuKernel, architecture: str) -> dict[str, Any]:
    return {
        "architecture": int(architecture.removeprefix("sm_")),
        "arguments": len(kernel.bindings) + len(kernel.sizes),
        "starts_early": kernel.starts_early and has_early_starts(architecture),
        **dict(kernel.options),
    }


_nvrtc_is_busy = Lock()
_NVRTC = Compiler(version, _options(OPTIONS), servers.NVRTC, lambda request: nvrtc.result(request), _nvrtc_is_busy)

COMPILERS = {
    "": _NVRTC,
    # User code gets the compiler's default options.
    "cuda": replace(_NVRTC, options=_options(USER_OPTIONS)),
    # Triton's LLVM and that of Mesa's drivers must not share a process.
    "triton": Compiler(triton_version, _triton_options, servers.TRITON, None),
}
"""Compilers by their names in `GpuKernel.compiler`."""


class _Jobs:
    """Kernels that are being compiled, and kernels whose job is still referenced."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._known: WeakValueDictionary[str, Future[CompiledText]] = WeakValueDictionary()
        self._slow: WeakSet[Future[CompiledText]] = WeakSet()

    def job(self, kernel: GpuKernel, architecture: str) -> Future[CompiledText]:
        """Return the job that compiles a kernel, or reads it from the cache on disk."""
        key = _disk_key(kernel, architecture)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(min(PROCESSES * processors(), MAX_PROCESSES), "opweave-kernels")
            job = self._known.get(key)
            # A missing requirement may be installed now.
            if job is None or _has_failed(job):
                job = self._known[key] = self._pool.submit(_compile, kernel, architecture, key)
                if _is_slow(kernel):
                    self._slow.add(job)
            return job

    def niceness(self, kernel: GpuKernel) -> int:
        with self._lock:
            is_waited_for = not all(job.done() for job in self._slow)
        return YIELDING if is_waited_for and not _is_slow(kernel) else 0

    def stop(self) -> None:
        """Cancel the jobs that have not started, and keep the others."""
        with self._lock:
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)
            for key, job in list(self._known.items()):
                if job.cancelled():
                    del self._known[key]


def _is_slow(kernel: GpuKernel) -> bool:
    return kernel.compiler == "triton"


def _has_failed(job: Future[CompiledText]) -> bool:
    return job.done() and (job.cancelled() or job.exception() is not None)


_jobs = _Jobs()


def _compile(kernel: GpuKernel, architecture: str, key: str) -> CompiledText:
    data = disk_cache.load(key, KIND)
    if data is not None:
        statistics.code_loaded += 1
        return _unpack(data)
    result = COMPILERS[kernel.compiler].result(kernel, architecture, _jobs.niceness(kernel))
    if isinstance(result, str):
        raise OperationError(explain_log(kernel, result))
    compiled = CompiledText(**{"entry_point": kernel.entry_point, "invocations": kernel.block, **result})
    statistics.code_compiled += 1
    disk_cache.store(key, KIND, _pack(compiled))
    return compiled


def _after_fork() -> None:
    """Reset the jobs: threads do not survive `fork`.

    A compiler that was busy here stays marked as busy. NVRTC's internal lock is also held, by a thread that the forked process
    lacks, so NVRTC would wait for ever. Servers compile instead.
    """
    _jobs.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def load(*, for_tensor_cores: bool) -> None:
    """Load the compilers before there are kernels, and also NVRTC in this process."""
    servers.start(for_tensor_cores=for_tensor_cores)
    version()


def begin(kernels: Sequence[GpuKernel], architecture: str) -> list[Future[CompiledText]]:
    """Begin to compile kernels, the slow ones first. While the jobs are held, `compile_each` need not compile them again."""
    return list(_submit(kernels, architecture).values())


def _submit(kernels: Sequence[GpuKernel], architecture: str) -> dict[Hashable, Future[CompiledText]]:
    """Return the jobs of kernels that are not compiled yet, by key."""
    fresh = {kernel.key: kernel for kernel in kernels if kernel.compiled is None}
    # Of equally slow compilers, a longer source is assumed to take longer.
    slow_first = sorted(fresh.values(), key=lambda kernel: (not _is_slow(kernel), -len(kernel.source)))
    return {kernel.key: _jobs.job(kernel, architecture) for kernel in slow_first}


def compile_each(kernels: Sequence[GpuKernel], architecture: str) -> Iterator[tuple[Hashable, CompiledText]]:
    """Yield the binaries of kernels, with their keys, in the order of completion. Each distinct source is compiled once.

    Raises:
        OperationError: the compiler rejects a kernel; the message has the line.
    """
    left = {kernel.key: kernel for kernel in kernels}
    for key, kernel in list(left.items()):
        if kernel.compiled is not None:
            del left[key]
            yield key, kernel.compiled
    while left:
        with suppress(CancelledError):  # the user has interrupted another thread's build
            keys: dict[Future[CompiledText], list[Hashable]] = {}
            for key, job in _submit(list(left.values()), architecture).items():
                keys.setdefault(job, []).append(key)  # kernels of the same text share a job
            done: SimpleQueue[Future[CompiledText]] = SimpleQueue()
            for job in keys:
                # `as_completed` misses jobs that `stop` cancels.
                job.add_done_callback(done.put)
            for _ in range(len(keys)):
                job = done.get()
                compiled = job.result()
                for key in keys[job]:
                    del left[key]
                    yield key, compiled


def binaries(kernels: Sequence[GpuKernel], architecture: str) -> list[CompiledText]:
    compiled = dict(compile_each(kernels, architecture))
    return [compiled[kernel.key] for kernel in kernels]


@contextmanager
def stop_on_interrupt() -> Iterator[None]:
    """Stop compiling if the user interrupts code that compiles kernels or waits for them."""
    try:
        yield
    except KeyboardInterrupt:
        stop()
        raise


def stop() -> None:
    _jobs.stop()


def cache_key(kernel: GpuKernel, architecture: str) -> tuple[str, str]:
    """Key and kind of the file in the cache on disk with a kernel for an architecture."""
    return _disk_key(kernel, architecture), KIND


def _disk_key(kernel: GpuKernel, architecture: str) -> str:
    compiler = COMPILERS[kernel.compiler]
    options = json.dumps(compiler.options(kernel, architecture))
    block = "x".join(map(str, kernel.block))
    text = "\0".join([compiler.version(), options, kernel.entry_point, block, kernel.source])
    return hashlib.sha256(text.encode()).hexdigest()


def _pack(compiled: CompiledText) -> bytes:
    """Serialise as a line of JSON, then the image."""
    fields = {name: value for name, value in asdict(compiled).items() if name != "image"}
    return json.dumps(fields).encode() + b"\n" + compiled.image


def _unpack(data: bytes) -> CompiledText:
    line, _, image = data.partition(b"\n")
    fields = json.loads(line)
    x, y, z = fields.pop("invocations")
    return CompiledText(image, invocations=(x, y, z), **fields)


def explain_log(kernel: GpuKernel, log: str) -> str:
    """Return the message for a kernel that the compiler rejects: the first error, with its line."""
    if kernel.explain is not None:
        return f"{kernel.title}: {kernel.explain(log)}"
    match = re.search(r"kernel\.cu\((\d+)\): (?:catastrophic )?error: (.*)", log)
    if match is None:
        return f"{kernel.title}: {log}"
    number = int(match[1])
    lines = kernel.source.splitlines()
    line = lines[number - 1].strip() if number <= len(lines) else ""
    return f"{kernel.title}: line {number}: {match[2]}: {line}"
