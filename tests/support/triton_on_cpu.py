"""Kernels in Triton on the processor, by Triton's interpreter: a witness of their results where there is no GPU.

The interpreter runs in a process of its own, because Triton must not meet Mesa's LLVM: this file is its program, too. Products
are NumPy's, in float32; what tensor cores round is not seen here. bfloat16 is ours: the interpreter truncates what is cast to
it, and multiplies its bits.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from opweave.expr.gpu import GpuKernel  # the process of the interpreter imports nothing of Opweave


class Interpreter:
    """A process that runs kernels."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-W", "ignore", __file__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "TRITON_INTERPRET": "1"}
        )

    def run(
        self,
        kernel: GpuKernel,
        arrays: Sequence[np.ndarray],
        numbers: Sequence[int] = (),
        programs: int | None = None,
    ) -> None:
        """Run a kernel, which writes some of the arrays.

        Args:
            kernel: what to run.
            arrays: what its pointers point to.
            numbers: the values of its sizes.
            programs: the number of programs, if sizes give it.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        given = [np.ascontiguousarray(array) for array in arrays]
        pickle.dump((kernel.source, given, programs or kernel.workgroups[0], list(numbers)), self._process.stdin)
        self._process.stdin.flush()
        found: Any = pickle.load(self._process.stdout)
        assert not isinstance(found, str), f"{found}\n{kernel.source}"
        for array, writes, value in zip(arrays, kernel.writes, found, strict=True):
            if writes:
                array[...] = value


@cache
def interpreter() -> Interpreter:
    """The process, the same for all tests."""
    return Interpreter()


class _Pointer:
    """An array as Triton's interpreter takes it: it asks for what tensors of PyTorch have, and copies nothing here."""

    def __init__(self, array: np.ndarray, dtype: str) -> None:
        self.array, self.dtype = array, dtype

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def untyped_storage(self) -> _Pointer:
        return self

    def cpu(self) -> _Pointer:
        return self

    def new_empty(self, count: int, device: str) -> _Pointer:
        return self

    def set_(self, *_: Any) -> None:
        pass

    def copy_(self, _: Any) -> None:
        pass

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return ()


def _run(source: str, arrays: Sequence[np.ndarray], programs: int, numbers: Sequence[int]) -> Sequence[np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.py"
        file.write_text(source, "utf-8")
        found = importlib.util.spec_from_file_location("kernel", file)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        kernel = module.opweave_kernel
        types = [module.TYPES[name] for name in kernel.arg_names]
        kernel[(programs,)](*map(_Pointer, arrays, types), *numbers)
    return arrays


def _with_bfloat16() -> None:
    """Replace the functions of the interpreter for casts to bfloat16, to nearest even, and for products."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast, dot = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        if (src.dtype.scalar, dst_type.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, src, dst_type)
        bits = src.data.view(np.uint32).astype(np.int64)
        half = (bits & 0xFFFF) - 0x8000
        up = (half > 0) | ((half == 0) & (bits >> 16 & 1 == 1))
        found = np.where(np.isnan(src.data), 0x7FFF, (bits >> 16) + up)
        return TensorHandle(found.astype(np.uint16), tl.bfloat16)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, *(wide(x) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b)), *rest)

    def wide(x: Any) -> Any:
        return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot = cast_impl, create_dot


def _serve() -> None:
    _with_bfloat16()
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Any = _run(*request)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
