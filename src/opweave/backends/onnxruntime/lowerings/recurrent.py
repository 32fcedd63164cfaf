"""ONNX Runtime rules: recurrent networks."""

from __future__ import annotations
