"""Reports of work that takes long."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from io import StringIO
from threading import Event

import pytest
from threads import together

import opweave as ow
from opweave import cli, progress
from opweave.cli.common import PlainConsole
from opweave.progress import reported, show_with


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


def test_long_work_is_shown_until_it_ends(shown: Shown) -> None:
    with reported("outer work"):
        assert shown.begun.wait(60)
        with reported("inner work"):
            assert not Event().wait(0.05)
        assert shown.events == ["outer work", "start"]
    assert shown.events == ["outer work", "start", "stop"]


def test_the_display_ends_with_an_error_too(shown: Shown) -> None:
    def fail() -> None:
        with reported("work"):
            assert shown.begun.wait(60)
            raise ow.ValidationError("wrong")

    with pytest.raises(ow.ValidationError):
        fail()
    assert shown.events[-1] == "stop"
    shown.begun.clear()
    with reported("more work"):
        assert shown.begun.wait(60)


def test_short_work_is_not_shown(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 60)
    with reported("short work"):
        pass
    assert shown.events == []


def test_work_in_several_threads_is_shown_once(shown: Shown) -> None:
    def work() -> None:
        with reported("work"):
            assert not Event().wait(0.05)

    with reported("work"):
        assert shown.begun.wait(60)
        together(*[work] * 3)
    assert shown.events == ["work", "start", "stop"]


def test_what_is_compiled_is_reported(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    from opweave.compile import driver

    compile = driver.compile

    def slow(*args: object, **options: object) -> object:
        assert shown.begun.wait(60)
        return compile(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(driver, "compile", slow)
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    builder.build({"y": builder.input("x", "float32", [2]).relu().abs()})
    assert shown.events == ["compiling a graph of 2 operations", "start", "stop"]


def test_without_a_display_it_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.001)
    with caplog.at_level(logging.INFO, "opweave"), reported("work"):
        for _ in range(500):
            if caplog.records:
                break
            assert not Event().wait(0.01)
    first, last = (record.message for record in caplog.records)
    assert first == "work takes more than a second"
    assert last.startswith("work took ")
    assert last.endswith(" s")


def test_the_command_line_shows_it_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, text = Event(), StringIO()
    monkeypatch.setenv("TERM", "xterm")  # on a dumb terminal nothing is drawn
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.001)
    monkeypatch.setattr(cli, "errors", PlainConsole(file=text, force_terminal=True))

    def app() -> None:
        with reported("compiling [x]"):
            for _ in range(500):
                if "compiling [x]" in text.getvalue():
                    return
                assert not begun.wait(0.01)
            pytest.fail(f"only {text.getvalue()!r} was shown")

    monkeypatch.setattr(cli, "app", app)
    try:
        cli.main()
    finally:
        show_with(None)
