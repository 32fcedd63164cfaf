"""A process group that is paced works for a share of the time, and knows how long it was stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from opweave.backends.isolation.pacing import REST_SECONDS, WORK_SECONDS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are not stopped on Windows")

WORKER = """
import time
from opweave.backends.isolation.pacing import pace_group, stopped_seconds, suspend_pacing

def wall(cpu):
    begin, end = time.monotonic(), time.process_time() + cpu
    while time.process_time() < end:
        pass
    return time.monotonic() - begin

with pace_group():
    paced_wall, while_paced = wall(0.3), stopped_seconds()
    with suspend_pacing():
        unpaced_wall, while_unpaced = wall(0.3), stopped_seconds() - while_paced
    print(paced_wall, while_paced, unpaced_wall, while_unpaced)
"""


def start(code: str) -> subprocess.Popen[str]:
    options: dict[str, Any] = {"process_group": 0}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.long
def test_paced_group_works_for_a_share_of_the_time() -> None:
    worker = start(WORKER)
    paced, while_paced, unpaced, while_unpaced = map(float, worker.communicate(timeout=60)[0].split())
    share = WORK_SECONDS / (WORK_SECONDS + REST_SECONDS)
    assert while_paced >= 0.5 * 0.3 / share * (1 - share)
    assert paced >= 0.3 + while_paced - REST_SECONDS
    assert unpaced >= 0.3
    assert while_unpaced <= 1.5 * REST_SECONDS + 0.5  # the stop that began before; the rest is for busy machines


@pytest.mark.long
def test_pacing_includes_child_processes() -> None:
    inner = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    code = f"""
import subprocess, sys, time
from opweave.backends.isolation.pacing import pace_group
with pace_group():
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", {inner!r}], check=True)
    print(time.monotonic() - begin)
"""
    worker = start(code)
    assert float(worker.communicate(timeout=60)[0]) >= 0.2 + 2 * REST_SECONDS


def test_pacer_ends_with_a_process_that_is_killed() -> None:
    worker = start(
        "import time\nfrom opweave.backends.isolation.pacing import pace_group\n"
        "with pace_group(): print(1, flush=True); time.sleep(60)"
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "1\n"
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children")
    if not children.exists():
        pytest.skip("the system does not list the children of a process")
    (pacer,) = map(int, children.read_text().split())
    worker.kill()
    worker.wait()
    end = time.monotonic() + 30
    while (
        os.path.exists(f"/proc/{pacer}") and "Z" not in Path(f"/proc/{pacer}/stat").read_text().rpartition(")")[2][:3]
    ):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_pacing_needs_a_group() -> None:
    code = WORKER.replace("wall(0.3)", "wall(0.05)")
    worker = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert [float(text) for text in worker.stdout.split()[1::2]] == [0, 0]
