"""A device of a plug-in provider for tests: ONNX Runtime lists its own CPU like one, and sessions take it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from opweave.backends.onnxruntime import plugins

PROVIDER = "CPUExecutionProvider"
NAME = "cpu:cpu"


@contextmanager
def cpu_as_plugin() -> Iterator[None]:
    """List ONNX Runtime's CPU as if a plug-in had brought it, under the name `cpu:cpu`."""
    with patch.object(plugins, "OWN_PROVIDERS", frozenset()):
        yield
