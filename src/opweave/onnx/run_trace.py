"""The times of a session's runs, as a file that trace viewers read."""

from __future__ import annotations

import json
import os
import time
from threading import Lock, get_ident
from typing import Any

MAX_EVENTS = 1_000_000
"""As many as ONNX Runtime keeps in a profile; further runs are not noted."""


class RunTrace:
    """Notes how long runs take, and writes them in Chrome's trace event format (https://ui.perfetto.dev shows such files).

    Args:
        prefix: the path that the file's name begins with.

    Attributes:
        start_ns: when it began, by the clock of `time.monotonic_ns`.
    """

    def __init__(self, prefix: str) -> None:
        self.start_ns = time.monotonic_ns()
        self._prefix = prefix
        self._events: list[dict[str, Any]] = []
        self._lock = Lock()

    @classmethod
    def asked(cls, session_options: Any) -> RunTrace | None:
        """The trace that `onnxruntime.SessionOptions` ask for, if they do."""
        if session_options is None or not session_options.enable_profiling:
            return None
        return cls(session_options.profile_file_prefix)

    def note(self, name: str, begin_ns: int) -> None:
        """Note something that began then, and has ended now."""
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
        """Write the file, and return its name."""
        path = f"{self._prefix}{time.strftime('%Y-%m-%d_%H-%M-%S')}_{self.start_ns}.json"
        with self._lock, open(path, "w", encoding="utf-8") as file:
            json.dump(self._events, file)
        return path
