"""Compile each kernel in a process forked from one that has loaded the compiler.

This file is also the program of that process: `python -P fork_server.py FILE` loads a module, whose `prepare` loads a compiler
and whose `result` compiles a kernel. Standard input is a socket that passes another socket for each kernel; the forked process
reads the request from that socket, writes the answer to it and exits. The program sends a byte when the compiler is loaded. It
exits with the process that started it, or after `IDLE_SECONDS` without a request. It imports nothing of Opweave.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from types import ModuleType
from typing import IO, Any, NoReturn
from weakref import finalize

IDLE_SECONDS = 300
"""Seconds after which an idle program exits: it holds about 40 MB. An estimate."""

LOADED = b"."

LOOK_SECONDS = 0.05
"""Interval to check whether another thread has read `LOADED`."""

PART_BYTES = 2**16

IS_POSSIBLE = hasattr(os, "fork") and hasattr(socket, "send_fds") and bool(sys.executable)
"""Whether processes can be forked here: not on Windows, nor without a Python executable."""


class EndedError(Exception):
    """The process of a kernel ended without an answer; the message has the reason."""


class ForkServer:
    """A process that has loaded the compiler of module `file`. All methods may be called from several threads."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def start(self) -> None:
        """Start the process unless it runs; do not wait until the compiler is loaded."""
        with self._lock:
            self._ensure_running()

    def _ensure_running(self) -> _Running:
        if self._running is None or self._running.has_ended():
            self._running = _Running(self._file)
        return self._running

    def failure(self) -> str:
        """Start the process, wait for it, and return the error of loading the compiler; empty if there is none."""
        with self._lock:
            running = self._ensure_running()
        if running.wait_until_loaded():
            return ""
        return running.errors() or "its process ended"

    def result(self, request: Any, niceness: int = 0) -> Any:
        """Return the result of the module's `result(request)`, in a process with `niceness` added to its niceness.

        Raises:
            EndedError: the process ended.
        """
        # The program may just have ended because it was idle.
        for _ in range(2):
            own, other = socket.socketpair()
            with own:
                with other, self._lock:
                    running = self._ensure_running()
                    running.send(other)
                answer = _answer(own, pickle.dumps((request, niceness)))
            if answer:
                is_result, value = pickle.loads(answer)
                if is_result:
                    return value
                raise EndedError(value)
            if not running.has_ended():
                raise EndedError("it crashed, or was killed; is there enough memory?")
        raise EndedError(running.errors())

    def forget(self) -> None:
        """Forget the process in a forked child, which does not own it."""
        if self._running is not None:
            self._running.forget()
        self.__init__(self._file)  # type: ignore[misc]


class _Running:
    """The running program. It is killed when this object is collected, or when this process exits."""

    def __init__(self, file: str) -> None:
        self._control, other = socket.socketpair()
        self._is_loaded = False
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `_kill`; a pipe would fill up)
        # -P keeps the program's folder out of the path, because its modules shadow others.
        command = [sys.executable, "-P", __file__, file, *sys.path]
        with other:
            self.process = subprocess.Popen(
                command, stdin=other.fileno(), stdout=subprocess.DEVNULL, stderr=self._errors
            )
        self._end = finalize(self, _kill, self.process, self._control, self._errors)

    def send(self, job: socket.socket) -> None:
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._control, [b"."], [job.fileno()])

    def has_ended(self) -> bool:
        """Whether the program has closed its socket; also updates `_is_loaded`."""
        try:
            while self._control.recv(1, socket.MSG_DONTWAIT):
                self._is_loaded = True
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return True

    def wait_until_loaded(self) -> bool:
        """Wait until the compiler is loaded or the program has ended, and return whether it is loaded."""
        while not self.has_ended() and not self._is_loaded:
            select.select([self._control], [], [], LOOK_SECONDS)
        return self._is_loaded

    def errors(self) -> str:
        """Wait for the program to end, and return the last line of its errors."""
        self.process.wait()
        # Threads share the position in the file, so read at an offset.
        size = os.fstat(self._errors.fileno()).st_size
        text = os.pread(self._errors.fileno(), PART_BYTES, max(size - PART_BYTES, 0))
        lines = text.decode(errors="replace").strip().splitlines()
        return " ".join(lines[-1:])

    def forget(self) -> None:
        self._end.detach()
        self._control.close()


def _kill(process: subprocess.Popen[bytes], control: socket.socket, errors: IO[bytes]) -> None:
    control.close()
    process.kill()
    process.wait()
    errors.close()


def _answer(job: socket.socket, request: bytes) -> bytes:
    try:
        job.sendall(request)
        job.shutdown(socket.SHUT_WR)
        return _read(job)
    except ConnectionError:
        return b""


def _read(job: socket.socket) -> bytes:
    return b"".join(iter(lambda: job.recv(PART_BYTES), b""))


# The program ---------------------------------------------------------------------------------------------------------


def _load_module(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("compiler", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _serve(compiler: ModuleType, control: socket.socket) -> None:
    compiler.prepare()
    control.sendall(LOADED)
    while select.select([control], [], [], IDLE_SECONDS)[0]:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:  # the other process has ended
            return
        with socket.socket(fileno=descriptors[0]) as job:
            if os.fork() == 0:
                _compile(compiler, control, job)


def _compile(compiler: ModuleType, control: socket.socket, job: socket.socket) -> NoReturn:
    """Compile a kernel in a forked process; answer whether it succeeded, and the result or the exception's text."""
    try:
        control.close()
        # The compiler may wait for child processes.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        request, niceness = pickle.loads(_read(job))
        os.nice(niceness)
        answer = pickle.dumps((True, compiler.result(request)))
    except BaseException as error:
        answer = pickle.dumps((False, traceback.format_exception_only(error)[-1].strip()))
    with contextlib.suppress(OSError):  # the process that asked may have ended
        job.sendall(answer)
        # A process forked from the one that asked may have a copy of the socket.
        job.shutdown(socket.SHUT_WR)
    os._exit(0)


def main() -> None:
    gc.disable()  # processes end after one kernel
    # Packages are found where the parent process finds them, after this process's path.
    sys.path.extend(folder for folder in sys.argv[2:] if folder and folder not in sys.path)
    # The terminal's interrupt: the parent process ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nobody waits for the forked processes.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=os.dup(0)) as control, open(os.devnull) as nothing:
        # Forked processes must not keep the socket open.
        os.dup2(nothing.fileno(), 0)
        _serve(_load_module(sys.argv[1]), control)


if __name__ == "__main__":
    main()
