"""Opweave: the WebNN runtime for Python.

import numpy as np, opweave as ow

context = ow.ml.create_context()
builder = ow.MLGraphBuilder(context)
x = builder.input("x", "float32", [2, 3])
graph = builder.build({"y": x.relu()})
context.compute(graph, {"x": np.float32([[-1, 0, 1], [2, -3, 4]])})
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time `__getattr__` below imports them when they are first used
    from . import memory as memory, onnx as onnx
    from .backends import Device as Device, devices as devices
    from .builder import MLGraphBuilder as MLGraphBuilder
    from .context import ML as ML, MLContext as MLContext, MLContextLostInfo as MLContextLostInfo, ml as ml
    from .errors import (
        DataError as DataError,
        InvalidStateError as InvalidStateError,
        MissingExtraError as MissingExtraError,
        MLError as MLError,
        NotSupportedError as NotSupportedError,
        OperationError as OperationError,
        ValidationError as ValidationError,
    )
    from .graph import MLOperand as MLOperand
    from .onnx.session import InferenceSession as InferenceSession
    from .runtime.executable import MLGraph as MLGraph
    from .tensor import MLTensor as MLTensor

__version__ = "0.1.0"

_HOMES = {
    "DataError": "errors",
    "Device": "backends",
    "InferenceSession": "onnx.session",
    "InvalidStateError": "errors",
    "ML": "context",
    "MLContext": "context",
    "MLContextLostInfo": "context",
    "MLError": "errors",
    "MLGraph": "runtime.executable",
    "MLGraphBuilder": "builder",
    "MLOperand": "graph",
    "MLTensor": "tensor",
    "MissingExtraError": "errors",
    "NotSupportedError": "errors",
    "OperationError": "errors",
    "ValidationError": "errors",
    "devices": "backends",
    "memory": "",
    "ml": "context",
    "onnx": "",
}
"""Public name -> the module that holds it. A test compares it with the imports above."""

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'opweave' has no attribute {name!r}")
    home = _HOMES[name]
    value = getattr(import_module(f".{home}", __name__), name) if home else import_module(f".{name}", __name__)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
