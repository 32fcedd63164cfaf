"""Opweave: the WebNN runtime for Python.

    import numpy as np, opweave as ow

    context = ow.ml.create_context()
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [2, 3])
    graph = builder.build({"y": x.relu()})
    context.compute(graph, {"x": np.float32([[-1, 0, 1], [2, -3, 4]])})

Graphs are made with `MLGraphBuilder`; `InferenceSession` runs ONNX models; `expression`, `composite` and `op` declare
operations of your own; `array` and `jit` work without a builder.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time `__getattr__` below imports them when they are first used
    from . import composites as composites, expr as expr, memory as memory, onnx as onnx, ops as ops
    from .backends import Device as Device, devices as devices
    from .builder import MLGraphBuilder as MLGraphBuilder
    from .context import ML as ML, MLContext as MLContext, MLContextLostInfo as MLContextLostInfo, ml as ml
    from .custom import composite as composite, expression as expression, op as op
    from .errors import (
        DataError as DataError,
        InvalidStateError as InvalidStateError,
        MissingExtraError as MissingExtraError,
        MLError as MLError,
        NotSupportedError as NotSupportedError,
        OperationError as OperationError,
        ValidationError as ValidationError,
    )
    from .graph import Desc as Desc, MLOperand as MLOperand
    from .kernels import wasm as wasm, wgsl as wgsl
    from .lazy.array import Array as Array
    from .lazy.borrowed import array as array
    from .lazy.force import read as read
    from .lazy.jit import jit as jit
    from .onnx.register import register_onnx as register_onnx
    from .onnx.session import InferenceSession as InferenceSession
    from .operation import Limits as Limits
    from .run.graph import MLGraph as MLGraph
    from .tensor import MLTensor as MLTensor

__version__ = "0.1.0"

_HOMES = {
    "Array": "lazy.array",
    "DataError": "errors",
    "Desc": "graph",
    "Device": "backends",
    "InferenceSession": "onnx.session",
    "InvalidStateError": "errors",
    "Limits": "operation",
    "ML": "context",
    "MLContext": "context",
    "MLContextLostInfo": "context",
    "MLError": "errors",
    "MLGraph": "run.graph",
    "MLGraphBuilder": "builder",
    "MLOperand": "graph",
    "MLTensor": "tensor",
    "MissingExtraError": "errors",
    "NotSupportedError": "errors",
    "OperationError": "errors",
    "ValidationError": "errors",
    "array": "lazy.borrowed",
    "composite": "custom",
    "composites": "",
    "devices": "backends",
    "expr": "",
    "expression": "custom",
    "jit": "lazy.jit",
    "memory": "",
    "ml": "context",
    "onnx": "",
    "op": "custom",
    "ops": "",
    "read": "lazy.force",
    "register_onnx": "onnx.register",
    "wasm": "kernels",
    "wgsl": "kernels",
}
"""Public name -> the module that holds it. A test compares it with the imports above."""

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'opweave' has no attribute {name!r}")
    home = _HOMES[name]
    module = import_module(f".{home}" if home else f".{name}", __name__)
    if not home:
        value = module
    elif home == "kernels":  # a module of a package
        value = import_module(f".{home}.{name}", __name__)
    else:
        value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *_HOMES]
