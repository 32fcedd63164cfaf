"""`opweave.diff`: find the operation of a graph that differs on another device or engine, or in another model."""

from __future__ import annotations

from .api import comparison, diff
from .compare import Comparison
from .result import Difference, OperationDifference, OutputDifference

__all__ = ["Comparison", "Difference", "OperationDifference", "OutputDifference", "comparison", "diff"]
