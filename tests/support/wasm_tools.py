"""What the tests of WebAssembly kernels share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import wasmtime

from opweave.core.graph import Desc
from opweave.kernels import KernelCall, wasm
from opweave.ops.elementwise import add as some_op


def whole(text: str) -> str:
    """The text of a module, with a memory of one page if it says nothing about that."""
    return f"""(module {text} {"" if "(memory " in text else '(memory (export "memory") 1)'})"""


def wat(text: str, **options: Any) -> wasm.Module:
    """The module of a text, whose memory has one page unless the text says more."""
    return wasm.load(bytes(wasmtime.wat2wasm(whole(text))), **options)


def inside(module: wasm.Module, array: np.ndarray) -> np.ndarray:
    """A copy of an array in a module's memory."""
    made = module.allocate(Desc(array.dtype.name, array.shape))  # type: ignore[arg-type]
    made[...] = array
    return made


def bind(
    module: wasm.Module,
    function: str,
    inputs: dict[str, Any],
    outputs: Sequence[np.ndarray],
    signature: str | None = None,
    **attributes: Any,
) -> Callable[[], None]:
    """A bound kernel of an operation that has just these operands, results and attributes."""

    def desc(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(desc, value))
        return None if value is None else Desc(value.dtype.name, value.shape)

    call = KernelCall(
        "thing 'mine'", some_op, {n: desc(v) for n, v in inputs.items()}, attributes, tuple(map(desc, outputs))
    )
    return wasm.WasmKernel(module, function, signature).prepare(call).bind(inputs, tuple(outputs))
