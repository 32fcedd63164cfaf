"""The process that stands between signals and a server that other code replaces handlers in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep

import pytest
from support.processes import handle_signals

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot fork here")

CODE = """
import os, signal, sys, time
from opweave.cli.supervision import Stop, continue_in_child
continue_in_child()
stop = Stop()
signal.signal(signal.SIGTERM, lambda *_: os.abort())  # as Ray does while it starts
print("starting", flush=True)
time.sleep(float(sys.argv[1]))
stop.install()
try:
    stop.check()
    print("started", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.5)
    print("stopped", flush=True)
sys.exit(int(sys.argv[2]))
"""


def started(seconds: float, status: int = 0) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, str(seconds), str(status)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=handle_signals,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "starting\n"
    return process


def with_children(process: subprocess.Popen[str]) -> list[int]:
    """The ids of a process and its children."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("the children of a process are not listed here")
    return [process.pid, *map(int, children.read_text().split())]


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("names", ["SIGINT", "SIGTERM", "SIGHUP", "SIGTERM SIGTERM SIGINT"])
@pytest.mark.parametrize("seconds", [0, 0.5])
def test_continue_in_child_stops_it_once(names: str, seconds: float) -> None:
    process = started(seconds, 3)
    assert process.stdout is not None
    if not seconds:
        assert process.stdout.readline() == "started\n"
    for name in names.split():
        process.send_signal(signal.Signals[name])
        sleep(0.05)
    output, _ = process.communicate(timeout=30)
    assert (output, process.returncode) == ("stopped\n", 3)


@pytest.mark.long
def test_continue_in_child_stops_it_after_sigkill() -> None:
    process = started(0)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.kill()
    assert process.stdout.read() == "stopped\n"


def test_continue_in_child_exits_as_shells_do_after_a_signal() -> None:
    code = (
        "import os\nfrom opweave.cli.supervision import continue_in_child\ncontinue_in_child()\nos.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 128 + signal.SIGKILL


@pytest.mark.long
def test_continue_in_child_ignores_sighup_under_nohup() -> None:
    process = subprocess.Popen(
        ["nohup", sys.executable, "-c", CODE, "0", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["starting\n", "started\n"]
    for number in with_children(process):
        os.kill(number, signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.terminate()
    output, _ = process.communicate(timeout=30)
    assert (output, process.returncode) == ("stopped\n", 0)


@pytest.mark.long
def test_continue_in_child_takes_signals_of_all_processes() -> None:
    """Service managers signal every process of a service; the child has replaced Ray's handler by then."""
    process = started(0)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    for number in with_children(process):
        os.kill(number, signal.SIGTERM)
    assert process.communicate(timeout=30)[0] == "stopped\n"
    assert process.returncode == 0
