"""Record the times of a session's runs in a file for trace viewers."""

from __future__ import annotations

import os
import time
from threading import Lock, get_ident
from typing import Any

MAX_EVENTS = 1_000_000
"""The most events in a file, as in ONNX Runtime; later runs are not recorded."""


class RunTrace:
    """Records how long runs take, in Chrome's trace event format (https://ui.perfetto.dev shows such files).

    `prefix` is `SessionOptions.profile_file_prefix`, and `start_ns` a time of `time.monotonic_ns`.
    """

    def __init__(self, prefix: str) -> None:
        self.start_ns = time.monotonic_ns()
        self._prefix = prefix
        self._events: list[dict[str, Any]] = []
        self._lock = Lock()

    def note(self, name: str, begin_ns: int) -> None:
        """Record an event that began at `begin_ns`, and ends now."""
        event = {
            "cat": "Session",
            "name": name,
            "ph": "X",
            "pid": os.getpid(),
            "tid": get_ident(),
            "ts": (begin_ns - self.start_ns) // 1000,
            "dur": (time.monotonic_ns() - begin_ns) // 1000,
            "args": {},
        }
        with self._lock:
            if len(self._events) < MAX_EVENTS:
                self._events.append(event)

    def write(self) -> str:
        """Write the file, and return its path."""
        path = f"{self._prefix}{time.strftime('%Y-%m-%d_%H-%M-%S')}_{self.start_ns}.json"
        with self._lock, open(path, "w", encoding="utf-8") as file:
            import json

            json.dump(self._events, file)
        return path
