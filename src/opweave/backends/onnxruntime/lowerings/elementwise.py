"""ONNX Runtime rules of the element-wise operations."""

from __future__ import annotations

from ....ops import elementwise as ops
from .. import ort

ort.rename({ops.add: "Add", ops.exp: "Exp"})
