"""ONNX Runtime rules: pooling."""

from __future__ import annotations
