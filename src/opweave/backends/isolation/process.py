"""Start, watch and end the child process of an engine."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from itertools import count
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from types import TracebackType
from typing import Any, BinaryIO, cast
from weakref import finalize

import numpy as np

from ... import memory
from ...core.graph import Graph, Node
from ...support import control_groups
from ...support.errors import OperationError
from ...support.formatting import duration, size
from .. import Backend, How, PowerPreference, Runner, Spinning
from . import messages
from .pacing import stopped_seconds

POLL_SECONDS = 0.02

START_SECONDS = 60.0

CLOSE_SECONDS = 10.0

COMMAND = "from opweave.backends.isolation.child import serve; serve()"

BASE_BYTES = 2**30
"""Memory of a child apart from the graph: Python, an engine and its kernels. An estimate."""

CONSTANT_COPIES = 8
"""Maximum number of copies of the constants in an engine that compiles. OpenVINO was seen to hold three."""

TENSOR_COPIES = 3
"""Maximum number of copies of inputs, intermediates and outputs in an engine. One that plans its memory needs fewer."""

MAX_SHARE = 0.5

PATTERN = "165"
"""Byte with which glibc fills new memory in a child, so that an engine that reads uninitialised memory gives wrong results."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Limits of a child process.

    Attributes:
        seconds: maximum time for one answer.
        max_bytes: maximum memory; None derives it from each graph (`memory_of`).
    """

    seconds: float = 60.0
    max_bytes: int | None = None


class EngineFailureError(OperationError):
    """The engine ended its process, hung, or exceeded its memory. Callers put the name of the engine before the message."""


class EngineProcess:
    """A child process that compiles and runs graphs for one engine. It starts on first use, and again after it has ended."""

    def __init__(self, limits: ProcessLimits | None = None) -> None:
        self._limits = limits or ProcessLimits()
        self._max_bytes = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._numbers = count()
        self._unused: list[int] = []  # runners that the parent has dropped

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def backend(self, backend: Backend) -> Backend:
        """Return a back end with the same rules, whose engine runs in the child process."""
        isolated = copy(backend)
        # Override one instance, so that its class stays that of the back end.
        isolated.__dict__["compile"] = lambda graph, **options: self._compile(backend, graph, **options)
        return isolated

    def close(self) -> None:
        """Free the child's compiled graphs, and end it.

        Raises:
            EngineFailureError: the engine fails meanwhile, for example because it has damaged the heap.
        """
        if self._process is not None:
            try:
                self._ask(messages.Close(), "the release of its graphs", CLOSE_SECONDS)
            finally:
                self.end()

    def end(self) -> None:
        """End the child at once."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with suppress(BrokenPipeError):
                    cast("BinaryIO", stream).close()

    # Requests --------------------------------------------------------------------------------------------------------

    def _compile(
        self,
        backend: Backend,
        graph: Graph,
        *,
        device: str,
        power_preference: PowerPreference,
        spinning: Spinning = "short",
    ) -> Runner:
        self._max_bytes = max(self._max_bytes, self._limits.max_bytes or memory_of(graph))
        options = {"device": device, "power_preference": power_preference, "spinning": spinning}
        number = next(self._numbers)
        described = messages.BackendMessage.of(backend), messages.GraphMessage.of(graph)
        while self._unused and self._process is not None:
            self._ask(messages.Free(self._unused.pop()), "the release of a graph", CLOSE_SECONDS)
        self._ask(messages.Compile(number, *described, options), "compilation", self._limits.seconds)
        runner = _RemoteRunner(self, backend, number)
        finalize(runner, self._unused.append, number)
        return runner

    def run(self, number: int, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        outputs: list[np.ndarray] = self._ask(messages.Run(number, list(inputs)), "a run", self._limits.seconds)
        return outputs

    def _ask(self, request: Any, work: str, seconds: float) -> Any:
        try:
            process = self._start() if self._process is None else self._process
            with suppress(BrokenPipeError):  # the child has ended, which `_wait` reports
                messages.send(cast("BinaryIO", process.stdin), request)
            answer = self._wait(process, work, seconds)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise EngineFailureError(f"cannot be tried in a separate process: {error}") from error
        except BaseException:
            self.end()
            raise
        if isinstance(answer, messages.Refusal):
            raise answer.kind(answer.text)
        return answer

    def _wait(self, process: subprocess.Popen[bytes], work: str, seconds: float) -> Any:
        answers: list[Any] = []

        def is_done(timeout: float) -> bool:
            with suppress(Empty):
                answers.append(self._answers.get(timeout=timeout))
            return bool(answers)

        watch(process.pid, is_done, work, seconds, self._max_bytes)
        if answers[0] is _ENDED:
            raise EngineFailureError(f"{ending(process.wait())} during {work}")
        return answers[0]

    def _start(self) -> subprocess.Popen[bytes]:
        process = start_python(COMMAND, {"MALLOC_PERTURB_": PATTERN})
        self._process, self._answers = process, SimpleQueue()
        self._unused.clear()
        finalize(self, process.kill)
        Thread(target=_read, args=(process.stdout, self._answers), name="opweave-engine", daemon=True).start()
        self._wait(process, "its start", START_SECONDS)
        return process


def start_python(command: str, variables: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a Python process with this process's import path, additional environment variables, and pipes for messages."""
    from multiprocessing import spawn

    # Pass the whole path, which contains the folder of a script, for example.
    paths = os.pathsep.join(path for path in sys.path if path)
    executable = os.fsdecode(spawn.get_executable() or "")
    if not executable:
        raise EngineFailureError("cannot be tried in a separate process: Python's executable is not known")
    environment = {**os.environ, "PYTHONPATH": paths, **variables}
    line, pipe = [executable, "-P", "-c", command], subprocess.PIPE
    return subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment, **options)


_ENDED = object()


def _read(stream: BinaryIO, answers: SimpleQueue[Any]) -> None:
    """Put the answers of a child into a queue, until it ends."""
    try:
        messages.find_start(stream)
        while True:
            answers.put(messages.receive(stream))
    except (EOFError, OSError, ValueError):  # it has ended, or the stream is closed
        answers.put(_ENDED)


class _RemoteRunner(Runner):
    def __init__(self, process: EngineProcess, backend: Backend, number: int) -> None:
        self.name = backend.name
        self._process, self._number = process, number

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        def run() -> None:
            for output, result in zip(outputs, self._process.run(self._number, inputs), strict=True):
                memory.copy(output, result, "engine in another process")

        return run

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        return "native", f"{self.name} in another process"


def watch(pid: int, is_done: Callable[[float], bool], work: str, seconds: float, max_bytes: int) -> None:
    """Wait for the child process of an engine until `is_done(timeout)` returns true.

    The limit of `seconds` does not include time spent stopped or waiting for a processor. `work` names the child's work in
    errors.

    Raises:
        EngineFailureError: the child exceeds a limit.
    """
    deadline, before = monotonic() + seconds, waiting_seconds(pid) + stopped_seconds()
    while not is_done(POLL_SECONDS):
        taken = resident(pid)
        if taken > max_bytes:
            text = f"is too large: it took {size(taken)} of memory during {work}"
            raise EngineFailureError(f"{text}, and the limit is {size(max_bytes)}")
        if monotonic() > deadline and monotonic() > deadline + waiting_seconds(pid) + stopped_seconds() - before:
            raise EngineFailureError(f"hung: {work} was not done after {duration(seconds)}")


def ending(code: int) -> str:
    """Return how a process ended, in words that follow the name of the engine."""
    if code >= 0:
        return f"ended its process with status {code}"
    with suppress(ValueError):
        return f"ended its process by a signal, {signal.Signals(-code).name},"
    return f"ended its process by signal {-code}"


def memory_of(graph: Graph) -> int:
    """Return the maximum number of bytes that an engine may take to compile and run a graph."""
    tensors = {operand for node in graph.nodes for operand in (*node.operands, *node.outputs)}
    constants = sum(operand.desc.byte_length for operand in tensors if operand.is_constant)
    others = sum(operand.desc.byte_length for operand in tensors if not operand.is_constant)
    return min(BASE_BYTES + CONSTANT_COPIES * constants + TENSOR_COPIES * others, max_memory())


def max_memory() -> int:
    return int(MAX_SHARE * available())


def available() -> int:
    """Return the bytes of memory that programs can still take; the physical memory if the system does not report them."""
    free = memory.physical()
    with suppress(OSError, ValueError, IndexError), open("/proc/meminfo") as file:
        free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    return int(min(free, control_groups.free_memory()))


def waiting_seconds(pid: int) -> float:
    """Return the longest time in seconds that a thread of a process has waited for a processor; 0 if not reported."""
    longest = 0
    with suppress(OSError):
        for task in os.scandir(f"/proc/{pid}/task"):
            with suppress(OSError, ValueError, IndexError), open(f"{task.path}/schedstat") as file:
                longest = max(longest, int(file.read().split()[1]))
    return longest / 1e9


def resident(pid: int) -> int:
    """Return the resident bytes of a process. If the system does not report them: the peak of this process, 0 for others."""
    with suppress(OSError, ValueError, IndexError, AttributeError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if pid != os.getpid():
        return 0
    try:
        import resource
    except ImportError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
