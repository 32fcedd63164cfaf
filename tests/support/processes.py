"""Fresh processes of Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def run_python(code: str, *arguments: str, **environment: str) -> str:
    """Run code in a fresh process, and return its output.

    Args:
        code: the program.
        *arguments: of the program.
        **environment: variables beside those of this process.
    """
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def handle_signals() -> None:
    """Give signals that stop programs their defaults, as `preexec_fn` of a process that a test sends them to.

    `nohup` ignores SIGHUP, and a shell SIGINT for a job in the background; processes inherit this through pytest.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
