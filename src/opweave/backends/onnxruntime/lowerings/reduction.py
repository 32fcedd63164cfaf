"""ONNX Runtime rules: reductions."""

from __future__ import annotations
