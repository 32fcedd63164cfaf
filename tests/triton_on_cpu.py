"""Kernels in Triton on the processor, by Triton's interpreter: a witness of their results where there is no GPU.

The interpreter runs in a process of its own, because Triton must not meet Mesa's LLVM: this file is its program, too. Products
are NumPy's, in float32; what tensor cores round is not seen here.
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
    from opweave.expr.gpu import Kernel  # the process of the interpreter imports nothing of Opweave


class Interpreter:
    """A process that runs kernels."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-W", "ignore", __file__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "TRITON_INTERPRET": "1"}
        )

    def run(self, kernel: Kernel, arrays: Sequence[np.ndarray]) -> None:
        """Run a kernel, which writes some of the arrays.

        Args:
            kernel: what to run.
            arrays: what its pointers point to.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        given = [np.ascontiguousarray(array) for array in arrays]
        pickle.dump((kernel.source, given, kernel.workgroups[0]), self._process.stdin)
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

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.dtype = array, array.dtype.name

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


def _run(source: str, arrays: Sequence[np.ndarray], programs: int) -> Sequence[np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.py"
        file.write_text(source, "utf-8")
        found = importlib.util.spec_from_file_location("kernel", file)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        module.opweave_kernel[(programs,)](*map(_Pointer, arrays))
    return arrays


def _serve() -> None:
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
