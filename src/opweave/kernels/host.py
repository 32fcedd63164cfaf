"""Host kernels: Python functions on NumPy views of the tensors, optionally compiled with Numba.

    @top_k.kernel("cpu")
    def _(x, k, *, out):
        values, indices = out
        order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
        indices[...] = order
        values[...] = np.take_along_axis(x, order, -1)

A kernel declares the parameters of the operation that it needs, and `out`: an array, or a tuple of arrays for several results.
Operands are read-only; absent operands are None. The kernel fills `out` and returns None.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..memory.spaces import HOST
from ..support.errors import OperationError, ValidationError, declaration_line, require
from ..support.names import file_name
from .base import Arrays, KernelCall, parameters_of

_UNTOUCHED = (0xA5, 0x5A)
"""Bytes that fill results before the first run, to detect a kernel that does not write them. A result full of the first byte
may be right, so the kernel then runs again over the second byte."""


class HostKernel:
    """A function that computes the results of a node from views of its operands."""

    def __init__(self, function: Callable[..., Any]) -> None:
        require(callable(function), f"a kernel is a function, got {function!r}")
        self.function = function
        self.python = _source(function)
        self.is_compiled = hasattr(function, "py_func")
        declared = getattr(function, "py_func", function)
        try:
            self.names = parameters_of(declared)
        except ValueError:  # some C functions have no signature
            raise ValidationError(f"a kernel takes the operation's parameters and out, got {function!r}") from None
        require(
            "out" in self.names, f"a kernel takes the operation's parameters and out, got ({', '.join(self.names)})"
        )
        # Python passes arguments faster by position than by name, Numba much faster.
        parameters = inspect.signature(declared).parameters
        self.keywords = [name for name in self.names if parameters[name].kind is inspect.Parameter.KEYWORD_ONLY]
        self.positions = self.names[: len(self.names) - len(self.keywords)]

    def prepare(self, call: KernelCall) -> PreparedHost:
        call.check_names(self.names)
        return PreparedHost(self, call)

    def arguments_of(
        self, call: KernelCall, inputs: Mapping[str, Arrays], outputs: Sequence[np.ndarray]
    ) -> dict[str, Any]:
        """Return the arguments of the function by name: views of the operands, attributes, and `out`."""
        arguments: dict[str, Any] = {}
        for name in self.names:
            if name == "out":
                arguments[name] = outputs[0].view() if len(outputs) == 1 else tuple(output.view() for output in outputs)
            elif name in inputs:
                value = inputs[name]
                arguments[name] = tuple(map(_read_only, value)) if isinstance(value, tuple) else _read_only(value)
            else:
                arguments[name] = call.attributes[name]
        return arguments

    def error_of(self, call: KernelCall, error: Exception) -> OperationError:
        """Return the error to raise for an exception of the function, or of Numba's compiler."""
        from .excerpts import explain_numba  # imported late, because only errors need it

        explained = explain_numba(self.python, error) if self.is_compiled else ""
        if explained:
            return OperationError(f"{call.title}: the Numba kernel{explained}")
        return call.error_of(error, self.python)


class PreparedHost:
    space = HOST

    def __init__(self, kernel: HostKernel, call: KernelCall) -> None:
        self.kernel, self.call = kernel, call
        self.proven = False

    @property
    def detail(self) -> str:
        code = getattr(self.kernel.python, "__code__", None)  # C functions have none
        place = f", {file_name(code.co_filename)}:{code.co_firstlineno}" if code is not None else ""
        return f"{'Numba' if self.kernel.is_compiled else 'Python'} kernel{place}"

    def bind(self, inputs: Mapping[str, Arrays], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        """Create the views once, so that runs create none."""
        arguments = self.kernel.arguments_of(self.call, inputs, outputs)
        results = arguments["out"] if len(outputs) > 1 else (arguments["out"],)
        positional = [arguments[name] for name in self.kernel.positions]
        keywords = {name: arguments[name] for name in self.kernel.keywords}
        function = self.kernel.function

        def run() -> None:
            if not self.proven:
                self._prove(call, results)
                return
            call()

        def call() -> None:
            try:
                returned = function(*positional, **keywords)
            except Exception as error:
                raise self.kernel.error_of(self.call, error) from error
            if returned is not None:
                raise OperationError(
                    f"{self.call.title}: a kernel fills out and returns None, got {type(returned).__name__}"
                    f"{declaration_line(self.kernel.python)}"
                )

        return call if self.proven else run

    def _prove(self, call: Callable[[], None], results: Sequence[np.ndarray]) -> None:
        """Run the kernel for the first time, and require that it writes all results."""
        untouched: list[int] = []
        for byte in _UNTOUCHED:
            for array in results:
                _bytes(array).fill(byte)
            call()
            untouched = [k for k, array in enumerate(results) if array.size and bool((_bytes(array) == byte).all())]
            if not untouched:
                self.proven = True
                return
        name = f"out[{untouched[0]}]" if len(results) > 1 else "out"
        raise OperationError(
            f"{self.call.title}: the kernel did not write to {name}; assign to its elements ({name}[...] = …), an array "
            f"that is only bound to the name is lost{declaration_line(self.kernel.python)}"
        )


def _source(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the Python function behind a callable: unwrapped from Numba and `partial`, or an object's `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "py_func", function)
    return function if hasattr(function, "__code__") else type(function).__call__


def _read_only(array: np.ndarray | None) -> np.ndarray | None:
    if array is None:
        return None
    view = array.view()
    view.flags.writeable = False
    return view


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
