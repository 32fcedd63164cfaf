"""Have another engine verified by a child process, beside a program that uses the graph or model (`uses`).

The child (`verifier`) has the lowest priority and one thread, and stores its verdict in the cache on disk. A machine runs one
child at a time. Later builds and sessions follow the verdict; existing ones keep their engine. The child ends with this
process: it watches the pipe from which it received its task.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import RLock
from time import monotonic
from typing import Any, BinaryIO, cast

from ..backends import Backend, PowerPreference
from ..backends.isolation import available, ending, messages, start_python, waiting_seconds
from ..compile import engines
from ..compile.engines import Measurement
from ..compile.uses import Sample
from ..core.graph import Graph
from ..support import disk_cache, lazy_imports
from ..support.formatting import duration, size
from ..support.processors import throttle_count

COMMAND = "from opweave.verification.verifier import serve; serve({is_idle}, {lock})"

IS_IDLE = True
"""Whether the child has the lowest priority, and pauses; tests on busy machines would not end."""

BASE_BYTES = 2**29
"""Memory of the child and of its trial, besides copies of weights: Python and two engines. An estimate."""

COPIES = 5
"""Copies of the weights that the child and its trial hold at a time. OpenVINO was seen to hold three while it compiles."""

MAX_SHARE = 0.5
"""The share of the available memory that may be needed; with less, the child is not started."""

MAX_WEIGHT_BYTES = 2**29

MAX_COPIED_BYTES = 2**26
"""The largest number of bytes of weights of an `onnx.ModelProto` to verify: it must be serialised for the child."""

LOCK = "verification"

BUSY = "another process of the machine is verified"

ONE_THREAD = dict.fromkeys(
    ("OPWEAVE_THREADS", "HL_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
)
"""Variables that limit the thread pools of engines to one thread."""

CHILD_SECONDS = 2400.0
"""A child hangs if it is not done after this time, not counting waits for a processor. An estimate: it works for a quarter
of the time (`backends.isolation.pacing`)."""

ENDING_SECONDS = 0.5
"""Time for which the end of this process waits for the end of the child, which may wait for a processor."""


@dataclass(frozen=True)
class Begun:
    """Message of a child before it runs engines; `plain` is the verdict without results."""

    digest: str
    plain: Measurement
    rivals: Sequence[str]


class Later(str):
    """The reason why a child cannot start now."""


@dataclass(frozen=True)
class Task:
    """A task for a child: what to verify, and with which inputs.

    `ways` and `machine` come from the user's context. `sample` has values of the inputs, by name; `weights` are bytes.
    """

    ways: Mapping[str, messages.BackendMessage]
    machine: str
    device: str
    power_preference: PowerPreference
    sample: Mapping[str, Sample]
    weights: int

    def verdict(self) -> Measurement | str:
        """Verify the engines in the child, and keep the verdict; or the reason why that fails."""
        raise NotImplementedError


@dataclass(frozen=True)
class GraphTask(Task):
    """A graph to verify, with `fuse` as it was passed to `build`."""

    graph: messages.GraphMessage
    fuse: bool

    def verdict(self) -> Measurement | str:
        """See `Task.verdict`."""
        from .verifier import judge_graph

        return judge_graph(self)


def ways_of(ways: Mapping[str, Backend]) -> dict[str, messages.BackendMessage]:
    """The engines, for a task."""
    return {name: messages.BackendMessage.of(way) for name, way in ways.items()}


@lazy_imports.verify_graph.provide
def task_of_graph(
    graph: Graph, backend: Backend, device: str, preference: PowerPreference, fuse: bool, sample: Mapping[str, Sample]
) -> Task | Measurement | str:
    """The task of a child for a graph, the reason why the graph cannot be verified there, or a kept verdict."""
    if own := why_not(graph):
        return own
    ways = backend.tunable(graph)
    for verdict in engines.find(lambda: engines.digest(graph), ways).values():
        return verdict
    weights = sum(operand.desc.byte_length for operand in graph.constants)
    described = messages.GraphMessage.of(graph)
    return GraphTask(ways_of(ways), engines.machine(ways), device, preference, sample, weights, described, fuse)


def why_not(graph: Graph) -> str:
    """The reason why no child process verifies a graph, whatever the machine; empty if there is none."""
    package = __name__.partition(".")[0]
    for node in graph.nodes:
        if node.op.__module__.partition(".")[0] != package or node.op.kernels:
            return f"{node.title} is an operation of your own; tune() verifies it"
    return ""


def begin(task: Task) -> Child | str:
    """Start a child; or the reason why there is none, which is `Later` if another attempt may succeed."""
    if task.weights > MAX_WEIGHT_BYTES:
        return f"{size(task.weights)} of weights, more than {size(MAX_WEIGHT_BYTES)}; tune() verifies it"
    required_bytes, free = BASE_BYTES + COPIES * task.weights, available()
    if required_bytes > MAX_SHARE * free:
        return Later(f"memory: it may take {size(required_bytes)}, and {size(free)} are available")
    lock = disk_cache.lock(LOCK)
    if lock is None:
        where = disk_cache.directory()
        is_missing = where is None or not where.joinpath(f"{LOCK}.lock").exists() or not disk_cache.limit()
        return "there is no cache to keep the verdict" if is_missing else Later(BUSY)
    with _lock:
        if _is_ending:
            os.close(lock)
            return "the process ends"
        try:
            child = Child(_start(lock))
        except Exception as error:  # for example, the limit of processes is reached
            return f"no child process: {error}"
        _children.add(child)
    child.send(task)
    return child


def _start(lock: int) -> subprocess.Popen[bytes]:
    options: dict[str, Any] = {}
    if sys.platform == "win32":
        disk_cache.unlock(lock)
        lock = -1  # it takes the lock again
        options["creationflags"] = subprocess.IDLE_PRIORITY_CLASS | subprocess.CREATE_NO_WINDOW
    else:
        # A process group, because Ctrl-C of a terminal reaches all of its group. In a new session, the child would get the
        # same share of the processors as any other session of Linux, whatever its priority (autogroup).
        options |= {"process_group": 0, "pass_fds": (lock,)}
    try:
        return start_python(COMMAND.format(is_idle=IS_IDLE, lock=lock), ONE_THREAD | {"OPWEAVE_VERIFY": "0"}, **options)
    finally:
        if lock >= 0:
            os.close(lock)


class Child:
    """A child process that verifies something."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._throttled, self._begun = throttle_count(), monotonic()
        self._refusal = ""  # the reason for ending it
        self._is_hung = False

    def send(self, task: Task) -> None:
        """Send the task. It may take a while until the child reads it."""
        with suppress(OSError, ValueError):  # the child has ended; `poll` reports that
            try:
                messages.send(cast("BinaryIO", self._process.stdin), task)
            except OSError:
                raise
            except Exception as error:
                self._refusal = f"cannot be sent to another process: {error}"
                self.end()

    def poll(self) -> Measurement | str | None:
        """The verdict, or the reason why there is none; None while the child works."""
        process = self._process
        if process.poll() is None:
            # The child takes processor time of this process, within the limit of the container.
            if throttle_count() > self._throttled:
                self._refusal = "the container has too little processor time; tune() verifies it"
            elif monotonic() > self._begun + CHILD_SECONDS + waiting_seconds(process.pid):
                self._is_hung = True
            else:
                return None
            self._kill()
        answers: list[Any] = []
        with suppress(EOFError, OSError, ValueError):
            stream = cast("BinaryIO", process.stdout)
            messages.find_start(stream)
            while not self._refusal:
                answers.append(messages.receive(stream))
        self.end()
        if self._refusal:
            return self._refusal
        last = answers[-1] if answers else "it could not begin"
        if not isinstance(last, Begun):
            return cast("Measurement | str", last)
        # The system kills a process when memory runs out.
        if process.returncode == -signal.SIGKILL and not self._is_hung:
            return "the process that verifies it was ended"
        # An engine that passed its trial has failed after all.
        how = f"hung: it was not measured after {duration(CHILD_SECONDS)}" if self._is_hung else ""
        how = how or f"{ending(process.returncode)} while it was measured"
        verdict = replace(last.plain, refused=dict.fromkeys(last.rivals, how))
        return replace(verdict, is_kept=engines.keep(last.digest, verdict))

    def end(self) -> None:
        """Kill the child, and the processes that it has started."""
        process = self._process
        with _lock:
            _children.discard(self)
        if process.returncode is None:
            self._kill()
        for stream in (process.stdin, process.stdout):
            with suppress(OSError, ValueError):
                cast("BinaryIO", stream).close()

    def _kill(self) -> None:
        process = self._process
        with suppress(OSError):
            process.kill() if sys.platform == "win32" else os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_SECONDS)

    def abandon(self) -> None:
        """After a fork: leave the child to the parent, and close its pipes here, because it waits for their end."""
        process = self._process
        process.returncode = 0
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (process.stdin, process.stdout):
            with suppress(OSError, ValueError):
                os.dup2(nowhere, cast("BinaryIO", stream).fileno())
        os.close(nowhere)


_lock = RLock()
_children: set[Child] = set()
_is_ending = False


def _end() -> None:
    global _is_ending
    with _lock:
        _is_ending = True
        children = list(_children)
    for child in children:
        child.end()


def _after_fork() -> None:
    global _lock
    _lock = RLock()
    _children.clear()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
