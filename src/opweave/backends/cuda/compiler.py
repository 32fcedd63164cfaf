"""Compiled kernels: several processes compile those that the cache on disk does not have.

Each kernel is a job of a thread, which waits for a process (`fork_server`), so that a processor that is done with one kernel
takes the next. Threads that want the same kernel at the same time share its job.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from queue import SimpleQueue
from threading import Lock
from typing import Any, TypeAlias
from weakref import WeakSet, WeakValueDictionary

from ...expr.gpu import Compiled, Kernel
from ...expr.gpu.cuda import OPTIONS, USER_OPTIONS
from ...support import disk_cache
from ...support.errors import OperationError
from ...support.processors import processors
from . import fork_server, nvrtc, servers
from .devices import has_early_starts
from .fork_server import EndedError, ForkServer
from .servers import triton_fault, triton_version

KIND = "cubin"
"""The suffix of files in the cache."""

PROCESSES = 2
"""Kernels that are compiled at a time, for each processor: 25 kernels that share 16 processors take 25/16 of the time of one,
not that of two."""

MAX_PROCESSES = 32
"""Most processes at a time, however many processors there are: each takes about 100 MB. An estimate."""

YIELDING = 10
"""How nice the processes of quick kernels are while slow ones are compiled, for which builds wait: these then have a processor
each, although there are more processes than processors. It is a tenth of the priority (sched(7))."""

Result: TypeAlias = dict[str, Any] | str
"""What the module of a compiler returns for a source: fields of `Compiled`, or the text of an error."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler of kernels.

    Attributes:
        version: its name and version.
        options: of a kernel, for an architecture.
        server: compiles in processes of their own.
        here: compiles in this process, one kernel at a time; None where it must not be imported here.
    """

    version: Callable[[], str]
    options: Callable[[Kernel, str], Any]
    server: ForkServer
    here: Callable[[Any], Result] | None
    _is_busy: Lock = field(default_factory=Lock)

    def result(self, kernel: Kernel, architecture: str, niceness: int = 0) -> Result:
        """Compile a kernel, or return the text of an error; `niceness` is that of a process of its own."""
        request = kernel.source, self.options(kernel, architecture)
        # A process takes longer to start than one kernel.
        if self.here is not None and self._is_busy.acquire(blocking=not fork_server.IS_POSSIBLE):
            try:
                return self.here(request)
            finally:
                self._is_busy.release()
        try:
            found: Result = self.server.result(request, niceness)
        except EndedError as error:
            raise OperationError(f"{kernel.title}: the process that compiles it ended: {error}") from error
        return found


@cache
def version() -> str:
    """The version of NVRTC, which the cache and tuning know kernels by."""
    return "NVRTC {}.{}".format(*nvrtc.version())


@cache
def headers() -> tuple[str, ...]:
    """The options of NVRTC for the headers of an installed CUDA toolkit; none without one."""
    from cuda import pathfinder

    folders = [pathfinder.find_nvidia_header_directory(name) for name in ("cudart", "cccl")]
    return tuple(f"--include-path={folder}" for folder in folders if folder)


_nvrtc_is_busy = Lock()

COMPILERS = {
    "": Compiler(
        version,
        lambda _, architecture: (f"--gpu-architecture={architecture}", *OPTIONS),
        servers.NVRTC,
        lambda request: nvrtc.result(request),
        _nvrtc_is_busy,
    ),
    # Text of users has the compiler's own defaults.
    "cuda": Compiler(
        version,
        lambda kernel, architecture: (
            f"--gpu-architecture={architecture}",
            *USER_OPTIONS,
            *(headers() if "#include" in kernel.source else ()),
        ),
        servers.NVRTC,
        lambda request: nvrtc.result(request),
        _nvrtc_is_busy,
    ),
    # Its LLVM and that of Mesa's drivers must not meet in one process.
    "triton": Compiler(
        triton_version,
        lambda kernel, architecture: {
            "architecture": int(architecture.removeprefix("sm_")),
            "arguments": len(kernel.bindings),
            "starts_early": kernel.starts_early and has_early_starts(architecture),
            **dict(kernel.options),
        },
        servers.TRITON,
        None,
    ),
}
"""The compilers, by their names in `Kernel.compiler`."""


class _Jobs:
    """The kernels that are being compiled, and those for which somebody holds the job."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._known: WeakValueDictionary[str, Future[Compiled]] = WeakValueDictionary()
        self._slow: WeakSet[Future[Compiled]] = WeakSet()

    def job(self, kernel: Kernel, architecture: str) -> Future[Compiled]:
        """The job that compiles a kernel, or reads it from the cache on disk."""
        key = _disk_key(kernel, architecture)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(min(PROCESSES * processors(), MAX_PROCESSES), "opweave-kernels")
            found = self._known.get(key)
            if found is None or _has_failed(found):  # what it lacked may be there now
                found = self._known[key] = self._pool.submit(_made, kernel, architecture, key)
                if _is_slow(kernel):
                    self._slow.add(found)
            return found

    def niceness(self, kernel: Kernel) -> int:
        """How nice the process of a kernel is."""
        with self._lock:
            is_waited_for = not all(job.done() for job in self._slow)
        return YIELDING if is_waited_for and not _is_slow(kernel) else 0

    def stop(self) -> None:
        """Cancel the jobs that have not started. Those that have remain known."""
        with self._lock:
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)
            for key, job in list(self._known.items()):
                if job.cancelled():
                    del self._known[key]


def _is_slow(kernel: Kernel) -> bool:
    """Whether it takes several times as long to compile as others."""
    return kernel.compiler == "triton"


def _has_failed(job: Future[Compiled]) -> bool:
    return job.done() and (job.cancelled() or job.exception() is not None)


_jobs = _Jobs()


def _made(kernel: Kernel, architecture: str, key: str) -> Compiled:
    data = disk_cache.load(key, KIND)
    if data is not None:
        return _unpacked(data)
    result = COMPILERS[kernel.compiler].result(kernel, architecture, _jobs.niceness(kernel))
    if isinstance(result, str):
        raise OperationError(explained(kernel, result))
    made = Compiled(**{"entry_point": kernel.entry_point, "invocations": kernel.block, **result})
    disk_cache.store(key, KIND, _packed(made))
    return made


def _after_fork() -> None:
    """Threads do not survive `fork`.

    A compiler that was busy in this process remains so: NVRTC's own lock is held, too, by a thread that is not in the forked
    process, so that NVRTC would wait for ever there. Servers compile instead.
    """
    _jobs.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def load(*, for_tensor_cores: bool) -> None:
    """Load the compilers before there are kernels, and NVRTC in this process, too."""
    servers.start(for_tensor_cores=for_tensor_cores)
    version()


def begin(kernels: Sequence[Kernel], architecture: str) -> list[Future[Compiled]]:
    """Begin to compile kernels, those first that take long. `each` need not compile them while the jobs are held."""
    return list(_begun(kernels, architecture).values())


def _begun(kernels: Sequence[Kernel], architecture: str) -> dict[Hashable, Future[Compiled]]:
    """The jobs of kernels that are not compiled yet, by their keys."""
    fresh = {kernel.key: kernel for kernel in kernels if kernel.compiled is None}
    # Of the others, a longer text is taken to compile longer.
    slow_first = sorted(fresh.values(), key=lambda kernel: (not _is_slow(kernel), -len(kernel.source)))
    return {kernel.key: _jobs.job(kernel, architecture) for kernel in slow_first}


def each(kernels: Sequence[Kernel], architecture: str) -> Iterator[tuple[Hashable, Compiled]]:
    """The binaries of kernels, with their keys, in the order in which they are compiled.

    Args:
        kernels: what to compile; each distinct source is compiled once.
        architecture: as NVRTC names it, "sm_90" say.

    Raises:
        OperationError: the compiler refuses one; the message has the line of the kernel.
    """
    left = {kernel.key: kernel for kernel in kernels}
    for key, kernel in list(left.items()):
        if kernel.compiled is not None:
            del left[key]
            yield key, kernel.compiled
    while left:
        with suppress(CancelledError):  # the user has interrupted another thread's build
            keys: dict[Future[Compiled], list[Hashable]] = {}
            for key, job in _begun(list(left.values()), architecture).items():
                keys.setdefault(job, []).append(key)  # kernels of the same text share a job
            done: SimpleQueue[Future[Compiled]] = SimpleQueue()
            for job in keys:
                job.add_done_callback(done.put)  # `as_completed` is not told of jobs that `stop` cancels
            for _ in range(len(keys)):
                job = done.get()
                compiled = job.result()
                for key in keys[job]:
                    del left[key]
                    yield key, compiled


def binaries(kernels: Sequence[Kernel], architecture: str) -> list[Compiled]:
    """The binaries of kernels, in their order, as `each` compiles them."""
    found = dict(each(kernels, architecture))
    return [found[kernel.key] for kernel in kernels]


@contextmanager
def stopped_by_interrupts() -> Iterator[None]:
    """Stop compiling if the user interrupts what may have begun to compile kernels, or waits for them."""
    try:
        yield
    except KeyboardInterrupt:
        stop()
        raise


def stop() -> None:
    """Do not compile what has begun, apart from kernels that are being compiled: the end of Python would wait for all."""
    _jobs.stop()


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


__all__ = [
    "KIND",
    "begin",
    "binaries",
    "each",
    "explained",
    "load",
    "stop",
    "stopped_by_interrupts",
    "triton_fault",
    "triton_version",
    "version",
]
