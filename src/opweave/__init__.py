"""Opweave: the WebNN runtime for Python.

    import numpy as np, opweave as ow

    context = ow.ml.create_context()
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [2, 3])
    graph = builder.build({"y": x.relu()})
    context.compute(graph, {"x": np.float32([[-1, 0, 1], [2, -3, 4]])})

`MLGraphBuilder` builds graphs; `InferenceSession` runs ONNX models; `expression`, `recurrence`, `composite` and `op`
declare custom operations; `array` and `jit` work without a builder.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# From 1.32 on, ONNX Runtime sends telemetry, and keeps an identifier in the user's home, unless this is set before its import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:  # at run time `__getattr__` below imports them when they are first used
    from . import (
        array_api as array_api,
        composites as composites,
        expr as expr,
        js as js,
        lazy as lazy,
        memory as memory,
        onnx as onnx,
        ops as ops,
    )
    from .backends import Device as Device, devices as devices
    from .context.builder import MLGraphBuilder as MLGraphBuilder
    from .context.context import ML as ML, MLContext as MLContext, ml as ml
    from .context.context_state import MLContextLostInfo as MLContextLostInfo
    from .context.graph import MLGraph as MLGraph
    from .context.tensor import MLTensor as MLTensor
    from .core.graph import Desc as Desc, MLOperand as MLOperand
    from .core.operation import Limits as Limits
    from .core.sizes import Size as Size
    from .inspect.diff import diff as diff
    from .kernels import cuda as cuda, wasm as wasm, wgsl as wgsl
    from .lazy.array import Array as Array
    from .lazy.custom_call import composite as composite, expression as expression, op as op, recurrence as recurrence
    from .lazy.force import read as read
    from .lazy.from_memory import array as array
    from .lazy.jit import jit as jit
    from .onnx.convert.register import register_onnx as register_onnx
    from .onnx.session.session import InferenceSession as InferenceSession
    from .pytorch.custom import as_torch_op as as_torch_op, register_torch as register_torch
    from .pytorch.module import CompiledModule as CompiledModule, from_torch as from_torch
    from .quantization import quantize as quantize
    from .support.errors import (
        DataError as DataError,
        InvalidStateError as InvalidStateError,
        MissingExtraError as MissingExtraError,
        MLError as MLError,
        NotSupportedError as NotSupportedError,
        OperationError as OperationError,
        ValidationError as ValidationError,
    )

__version__ = "0.2.0"

_HOMES = {
    ".": ("array_api", "composites", "expr", "js", "lazy", "memory", "onnx", "ops"),
    ".backends": ("Device", "devices"),
    ".context.builder": ("MLGraphBuilder",),
    ".context.context": ("ML", "MLContext", "ml"),
    ".context.context_state": ("MLContextLostInfo",),
    ".lazy.custom_call": ("composite", "expression", "op", "recurrence"),
    ".support.errors": (
        "DataError",
        "InvalidStateError",
        "MLError",
        "MissingExtraError",
        "NotSupportedError",
        "OperationError",
        "ValidationError",
    ),
    ".core.graph": ("Desc", "MLOperand"),
    ".core.sizes": ("Size",),
    ".inspect.diff": ("diff",),
    ".kernels.": ("cuda", "wasm", "wgsl"),
    ".lazy.array": ("Array",),
    ".lazy.from_memory": ("array",),
    ".lazy.force": ("read",),
    ".lazy.jit": ("jit",),
    ".onnx.convert.register": ("register_onnx",),
    ".onnx.session.session": ("InferenceSession",),
    ".pytorch.custom": ("as_torch_op", "register_torch"),
    ".pytorch.module": ("CompiledModule", "from_torch"),
    ".quantization": ("quantize",),
    ".core.operation": ("Limits",),
    ".context.graph": ("MLGraph",),
    ".context.tensor": ("MLTensor",),
}
"""Module -> its public names; after a dot at its end, modules of that package. A test compares it with the imports above."""

# A literal, as type checkers need for `import *`; a test compares it with the table.
__all__ = [
    "ML",
    "Array",
    "CompiledModule",
    "DataError",
    "Desc",
    "Device",
    "InferenceSession",
    "InvalidStateError",
    "Limits",
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
    "Size",
    "ValidationError",
    "array",
    "array_api",
    "as_torch_op",
    "composite",
    "composites",
    "cuda",
    "devices",
    "diff",
    "expr",
    "expression",
    "from_torch",
    "jit",
    "js",
    "lazy",
    "memory",
    "ml",
    "onnx",
    "op",
    "ops",
    "quantize",
    "read",
    "recurrence",
    "register_onnx",
    "register_torch",
    "wasm",
    "wgsl",
]


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise _NoAttributeError(name)
    is_module = home.endswith(".")
    try:
        value = import_module(home + name, __name__) if is_module else getattr(import_module(home, __name__), name)
    except (AttributeError, ImportError) as error:
        from .support import errors, packages

        if not isinstance(error, errors.MLError) and (text := packages.shadowed_requirement()):
            raise errors.MissingExtraError(text) from error
        raise
    globals()[name] = value
    return value


class _NoAttributeError(AttributeError):
    """A missing attribute. The message is made when it is read: `from opweave import module` asks for attributes first."""

    def __str__(self) -> str:
        name = str(self.args[0])
        hint = ""
        if name.isidentifier() and not name.startswith("_"):
            from importlib.util import find_spec

            from . import ops
            from .support.hints import operation

            hint = f"; it is a module: import opweave.{name}" if find_spec(f"opweave.{name}") else ""
            hint = hint or operation(name, __all__, "opweave.ops.", ops.Operations.listing())
        return f"module 'opweave' has no attribute {name!r}{hint}"


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
