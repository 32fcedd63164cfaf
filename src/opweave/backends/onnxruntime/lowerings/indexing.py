"""ONNX Runtime rules: gather and scatter."""

from __future__ import annotations
