"""A device of a plug-in provider for tests: ONNX Runtime lists its own CPU like one, and sessions take it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from unittest.mock import patch

import opweave as ow
from opweave.backends.onnxruntime import plugins

PROVIDER = "CPUExecutionProvider"
NAME = "cpu:cpu"


@contextmanager
def cpu_as_plugin() -> Iterator[None]:
    """List ONNX Runtime's CPU as if a plug-in had brought it, under the name `cpu:cpu`."""
    with patch.object(plugins, "OWN_PROVIDERS", frozenset()):
        yield


@cache
def plugin_context() -> ow.MLContext:
    """A context on that device."""
    with cpu_as_plugin():
        return ow.ml.create_context(device=NAME)
