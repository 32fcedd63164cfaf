"""A context on OpenVINO's CPU, for tests."""

from __future__ import annotations

from functools import cache

import pytest

import opweave as ow


@cache
def openvino_context() -> ow.MLContext:
    """The context; tests that ask for it are skipped where openvino is not installed."""
    pytest.importorskip("openvino", reason="openvino is not installed")
    return ow.ml.create_context(backend="openvino", device="cpu")
