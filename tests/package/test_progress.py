"""Reports of work that takes long."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from threading import Event, Thread, enumerate as enumerate_threads

import pytest
from support.threads import together

import opweave as ow
from opweave import cli
from opweave.cli import entry
from opweave.cli.common import PlainConsole
from opweave.support import progress
from opweave.support.progress import report_work, show_with


class Shown:
    """Notes what is shown, and tells when."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.begun = Event()

    def __call__(self, work: str) -> Shown:
        self.events.append(work)
        return self

    def start(self) -> None:
        self.events.append("start")
        self.begun.set()

    def stop(self) -> None:
        self.events.append("stop")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.001)
    display = Shown()
    show_with(display)
    yield display
    show_with(None)


def test_progress_shows_long_work_until_it_ends(shown: Shown) -> None:
    with report_work("outer work"):
        assert shown.begun.wait(60)
        with report_work("inner work"):
            assert not Event().wait(0.05)
        assert shown.events == ["outer work", "start"]
    assert shown.events == ["outer work", "start", "stop"]


def test_display_ends_after_error(shown: Shown) -> None:
    def fail() -> None:
        with report_work("work"):
            assert shown.begun.wait(60)
            raise ow.ValidationError("wrong")

    with pytest.raises(ow.ValidationError):
        fail()
    assert shown.events[-1] == "stop"
    shown.begun.clear()
    with report_work("more work"):
        assert shown.begun.wait(60)


def test_progress_does_not_show_short_work(
    shown: Shown, reports: progress._Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 60)
    with report_work("short work"):
        pass
    assert shown.events == []


def test_progress_shows_work_of_several_threads_once(shown: Shown) -> None:
    def work() -> None:
        with report_work("work"):
            assert not Event().wait(0.05)

    with report_work("work"):
        assert shown.begun.wait(60)
        together(*[work] * 3)
    assert shown.events == ["work", "start", "stop"]


def test_compilation_is_reported(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    from opweave.compile import driver

    compile = driver.compile

    def slow(*args: object, **options: object) -> object:
        assert shown.begun.wait(60)
        return compile(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(driver, "compile", slow)
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    builder.build({"y": builder.input("x", "float32", [2]).relu().abs()})
    assert shown.events == ["compiling a graph of 2 operations", "start", "stop"]


def test_progress_is_logged_without_display(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.001)
    begun = Event()
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda _: begun.set())
    monkeypatch.setattr(logging.getLogger("opweave"), "handlers", [handler])
    with caplog.at_level(logging.INFO, "opweave"), report_work("work"):
        assert begun.wait(60)
    first, last = (record.message for record in caplog.records)
    assert first == "work takes more than a second"
    assert last.startswith("work took ")
    assert last.endswith(" s")


def test_command_line_shows_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Event()

    class Terminal(StringIO):
        def write(self, text: str) -> int:
            written = super().write(text)
            if "compiling [x]" in self.getvalue():
                drawn.set()
            return written

    monkeypatch.setenv("TERM", "xterm")  # on a dumb terminal nothing is drawn
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.001)
    monkeypatch.setattr(entry, "errors", PlainConsole(file=(text := Terminal()), force_terminal=True))

    def app() -> None:
        with report_work("compiling [x]"):
            assert drawn.wait(60), text.getvalue()

    monkeypatch.setattr(entry, "app", app)
    try:
        cli.main()
    finally:
        show_with(None)


# ---------------------------------------------------------------------------------------------------------------------
# The timer


def timers() -> list[Thread]:
    return [thread for thread in enumerate_threads() if thread.name == "opweave.support.progress"]


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Iterator[progress._Reports]:
    """Reports without the timer of earlier tests; later ones, which may count threads, do not find its own."""
    reports = progress._Reports()
    monkeypatch.setattr(progress, "_reports", reports)
    yield reports
    if reports._timer is not None:
        reports._timer.cancel()
    for thread in timers():
        thread.join(60)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Thread]:
    """The threads that are started."""
    threads: list[Thread] = []

    def start(thread: Thread) -> None:
        threads.append(thread)
        thread_start(thread)

    thread_start = Thread.start
    monkeypatch.setattr(Thread, "start", start)
    return threads


def test_progress_uses_one_timer(
    reports: progress._Reports, started: list[Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 60)

    def work() -> None:
        for _ in range(50):
            with report_work("outer work"), report_work("inner work"):
                pass

    work()
    (first,) = started
    assert first.daemon
    together(*[work] * 4)
    assert [each for each in started if each in timers()] == [first]
    assert reports._pending == []


def test_progress_timer_ends_after_work(
    reports: progress._Reports, started: list[Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.001)
    for _ in range(2):
        with report_work("work"):
            thread = started.pop()
            assert started == []
        thread.join(60)
        assert not thread.is_alive()
        assert reports._timer is None


def test_progress_shows_work_after_short_work(
    shown: Shown, reports: progress._Reports, started: list[Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.1)
    with report_work("short work"):
        pass
    with report_work("work"):
        assert shown.begun.wait(60)
    assert shown.events == ["work", "start", "stop"]


def test_failing_display_is_logged(
    shown: Shown, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Event()

    def make(work: str) -> Shown:
        failed.set()
        raise ValueError("no terminal")

    show_with(make)
    with report_work("work"):
        assert failed.wait(60)
    assert "the display of long work failed" in caplog.text
    assert "no terminal" in caplog.text
    show_with(shown)
    with report_work("more work"):
        assert shown.begun.wait(60)
    assert shown.events == ["more work", "start", "stop"]


BUILD = """
import os, sys, time
import numpy as np, opweave as ow
from opweave.support import progress

progress.PATIENCE_SECONDS = 0.001

def build():
    builder = ow.MLGraphBuilder(context)
    return builder.build({"y": builder.input("x", "float32", [2]).relu()})

context = ow.ml.create_context(device="reference")
"""


def run_silently(code: str) -> str:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", BUILD + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


@pytest.mark.long
def test_build_during_interpreter_exit() -> None:
    assert run_silently("import atexit; atexit.register(lambda: print(build()))").startswith("<MLGraph (x: ")


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_progress_after_fork() -> None:
    code = """
import threading

def tell(what):  # not print: at the fork, another thread may hold the lock of its buffer
    os.write(1, f"{os.getpid() == parent} {what}\\n".encode())

class Display:
    def __init__(self, work):
        self.work = work
    def start(self):
        tell(self.work)
        shown.set()
    def stop(self):
        tell("stop")

parent, shown = os.getpid(), threading.Event()
progress.show_with(Display)
with progress.report_work("outer"):
    assert shown.wait(60)
    if not (child := os.fork()):
        shown = threading.Event()
        with progress.report_work("inner"):
            assert shown.wait(60)
        progress.PATIENCE_SECONDS = 60  # the build, which is not waited for, may take any time
        build()
    else:
        assert os.waitpid(child, 0) == (child, 0)
if not child:
    os._exit(0)
"""
    assert run_silently(code).splitlines() == ["True outer", "False inner", "False stop", "True stop"]
