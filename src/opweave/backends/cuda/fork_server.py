"""Compile each kernel in a process of its own, forked from one that has loaded the compiler already.

This file is also that program: `python -P fork_server.py FILE` loads a module, whose `prepare` loads a compiler, and whose
`result` compiles a kernel. Its standard input is a socket, through which it gets another socket for each kernel, with the
request; the forked process answers on that, and ends. The program sends a byte when it has loaded the compiler. It ends with
the process that started it, or if it has had nothing to do for `IDLE_SECONDS`. It imports nothing of Opweave.
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
"""How long a program without requests stays: it holds about 40 MB. An estimate."""

LOADED = b"."
"""The byte that says that the compiler is loaded."""

LOOK_SECONDS = 0.05
"""How often to look whether another thread has taken that byte."""

PART_BYTES = 2**16
"""The most bytes that are read at a time."""

IS_POSSIBLE = hasattr(os, "fork") and hasattr(socket, "send_fds") and bool(sys.executable)
"""Whether processes can be forked here: not on Windows, nor without a Python to start."""


class EndedError(Exception):
    """The process of a kernel ended without an answer; the message says why."""


class ForkServer:
    """A process that has loaded a compiler. All methods may be called from several threads.

    Args:
        file: the module of the compiler.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def start(self) -> None:
        """Start the process unless it runs, and do not wait until the compiler is loaded."""
        with self._lock:
            self._started()

    def _started(self) -> _Running:
        if self._running is None or self._running.has_ended():
            self._running = _Running(self._file)
        return self._running

    def failure(self) -> str:
        """Why the compiler cannot be loaded; empty if it is. Starts the process, and waits for it."""
        with self._lock:
            running = self._started()
        if running.waits_until_loaded():
            return ""
        return running.errors() or "its process ended"

    def result(self, request: Any, niceness: int = 0) -> Any:
        """What `result` of the module returns.

        Args:
            request: what it is given.
            niceness: added to that of the process, as of `os.nice`.

        Raises:
            EndedError: the process ended.
        """
        for _ in range(2):  # the program may have just ended, after it had nothing to do
            own, other = socket.socketpair()
            with own:
                with other, self._lock:
                    running = self._started()
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
        """Forget the process in one that was forked from this one, to which it does not belong."""
        if self._running is not None:
            self._running.forget()
        self.__init__(self._file)  # type: ignore[misc]


class _Running:
    """The program. It is killed when this object is collected, or at the end of this process."""

    def __init__(self, file: str) -> None:
        self._control, other = socket.socketpair()
        self._is_loaded = False
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `_killed`; a pipe would fill up)
        # -P keeps the program's folder, whose modules have names of their own, out of the path.
        command = [sys.executable, "-P", __file__, file, *sys.path]
        with other:
            self.process = subprocess.Popen(
                command, stdin=other.fileno(), stdout=subprocess.DEVNULL, stderr=self._errors
            )
        self._end = finalize(self, _killed, self.process, self._control, self._errors)

    def send(self, job: socket.socket) -> None:
        """Send the socket of a kernel. A program that has ended does not answer on it."""
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._control, [b"."], [job.fileno()])

    def has_ended(self) -> bool:
        """Whether the program has closed its end; also notes whether it has loaded the compiler."""
        try:
            while self._control.recv(1, socket.MSG_DONTWAIT):
                self._is_loaded = True
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return True

    def waits_until_loaded(self) -> bool:
        """Wait until the program has loaded the compiler, or has ended; whether it has loaded it."""
        while not self.has_ended() and not self._is_loaded:
            select.select([self._control], [], [], LOOK_SECONDS)
        return self._is_loaded

    def errors(self) -> str:
        """The last line that the program, which is ending, has written about errors."""
        self.process.wait()
        # Threads share the position in the file, so this does not use it.
        size = os.fstat(self._errors.fileno()).st_size
        text = os.pread(self._errors.fileno(), PART_BYTES, max(size - PART_BYTES, 0))
        lines = text.decode(errors="replace").strip().splitlines()
        return " ".join(lines[-1:])

    def forget(self) -> None:
        """Let the program run, which belongs to another process."""
        self._end.detach()
        self._control.close()


def _killed(process: subprocess.Popen[bytes], control: socket.socket, errors: IO[bytes]) -> None:
    control.close()
    process.kill()
    process.wait()
    errors.close()


def _answer(job: socket.socket, request: bytes) -> bytes:
    """Send a request, and read the answer; empty if the other process has ended."""
    try:
        job.sendall(request)
        job.shutdown(socket.SHUT_WR)
        return _read(job)
    except ConnectionError:
        return b""


def _read(job: socket.socket) -> bytes:
    return b"".join(iter(lambda: job.recv(PART_BYTES), b""))


# The program ---------------------------------------------------------------------------------------------------------


def _loaded(file: str) -> ModuleType:
    found = importlib.util.spec_from_file_location("compiler", file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _serve(compiler: ModuleType, control: socket.socket) -> None:
    """Fork a process for each kernel."""
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
    """Compile a kernel, in its process, and answer with whether there is a result, and the result or the exception's text."""
    try:
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # it may wait for programs that it starts
        request, niceness = pickle.loads(_read(job))
        os.nice(niceness)
        answer = pickle.dumps((True, compiler.result(request)))
    except BaseException as error:
        answer = pickle.dumps((False, traceback.format_exception_only(error)[-1].strip()))
    with contextlib.suppress(OSError):  # the process that asked may have ended
        job.sendall(answer)
        job.shutdown(socket.SHUT_WR)  # a process that was forked from the one that asked may have a copy of the socket
    os._exit(0)


def main() -> None:
    """Run the program."""
    gc.disable()  # processes end after one kernel
    # Packages are where the process that started this one finds them, behind those that this one finds itself.
    sys.path.extend(folder for folder in sys.argv[2:] if folder and folder not in sys.path)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the process that started this one ends it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that it forks
    with socket.socket(fileno=os.dup(0)) as control, open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # processes that are forked must not keep the socket open
        _serve(_loaded(sys.argv[1]), control)


if __name__ == "__main__":
    main()
