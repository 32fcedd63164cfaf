"""Fresh processes of Python."""

from __future__ import annotations

import os
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
