"""Opweave: the WebNN runtime for Python.

import numpy as np, opweave as ow

context = ow.ml.create_context()
builder = ow.MLGraphBuilder(context)
x = builder.input("x", "float32", [2, 3])
graph = builder.build({"y": x.relu()})
context.compute(graph, {"x": np.float32([[-1, 0, 1], [2, -3, 4]])})
"""

from __future__ import annotations

from . import memory
from .backends import Device, all_devices as devices
from .builder import MLGraph, MLGraphBuilder
from .context import ML, MLContext, MLContextLostInfo, ml
from .errors import (
    DataError,
    InvalidStateError,
    MissingExtraError,
    MLError,
    NotSupportedError,
    OperationError,
    ValidationError,
)
from .graph import MLOperand
from .tensor import MLTensor

__version__ = "0.1.0"

__all__ = [
    "ML",
    "DataError",
    "Device",
    "InvalidStateError",
    "MLContext",
    "MLContextLostInfo",
    "MLError",
    "MLGraph",
    "MLGraphBuilder",
    "MLOperand",
    "MLTensor",
    "MissingExtraError",
    "NotSupportedError",
    "OperationError",
    "ValidationError",
    "devices",
    "memory",
    "ml",
]
