"""Host kernels: Python functions on NumPy views of the tensors, compiled with Numba or not.

    @top_k.kernel("cpu")
    def _(x, k, *, out):
        values, indices = out
        order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
        indices[...] = order
        values[...] = np.take_along_axis(x, order, -1)

A kernel takes those of the operation's parameters that it names, and `out`: an array, or a tuple of them for several
results. Operands are read-only; absent ones are None. It fills `out` and returns nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import MLError, OperationError, require, user_line
from . import Arrays, KernelCall

_UNTOUCHED = 0xA5
"""Bytes that results are filled with before the first run, to notice a kernel that does not write them."""


class HostKernel:
    """A function that computes a node's results from views of its operands."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.python = getattr(function, "py_func", function)  # what Numba compiled
        parameters = inspect.signature(self.python).parameters.values()
        known = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        fits = all(parameter.kind in known for parameter in parameters)
        self.names = [parameter.name for parameter in parameters]
        self.keywords = {parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY}
        require(
            fits and "out" in self.names,
            f"a kernel takes the operation's parameters and out, got {inspect.signature(self.python)}",
        )

    def prepare(self, call: KernelCall) -> PreparedHost:
        """The kernel for a node.

        Raises:
            ValidationError: the function names parameters that the operation does not have.
        """
        known = [*call.inputs, *call.attributes, "out"]
        unknown = [name for name in self.names if name not in known]
        require(not unknown, f"{call.title}: the kernel takes {unknown}; the operation has {known}")
        return PreparedHost(self, call)


class PreparedHost:
    """A host kernel for one node."""

    arena = None

    def __init__(self, kernel: HostKernel, call: KernelCall) -> None:
        self.kernel, self.call = kernel, call
        self.proven = False

    @property
    def detail(self) -> str:
        """Numba or NumPy, and where the function is."""
        code = self.kernel.python.__code__
        place = f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"
        return f"{'Numba' if self.kernel.python is not self.kernel.function else 'Python'} kernel, {place}"

    def bind(self, inputs: Mapping[str, Arrays], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        """Make the views that the function gets; each run makes none."""
        given: dict[str, Any] = {name: _read_only(value) for name, value in inputs.items()}
        given.update(self.call.attributes)
        results = tuple(output.view() for output in outputs)
        given["out"] = results if len(results) > 1 else results[0]
        positional = [given[name] for name in self.kernel.names if name not in self.kernel.keywords]
        keywords = {name: given[name] for name in self.kernel.names if name in self.kernel.keywords}
        function = self.kernel.function

        def run() -> None:
            if not self.proven:
                for array in results:
                    _bytes(array).fill(_UNTOUCHED)
            try:
                returned = function(*positional, **keywords)
            except MLError as error:
                raise OperationError(f"{self.call.title}: {error}{user_line(error, self.kernel.python)}") from error
            except Exception as error:
                where = user_line(error, self.kernel.python)
                raise OperationError(
                    f"{self.call.title}: the kernel raised {type(error).__name__}: {error}{where}"
                ) from error
            if returned is not None:
                raise OperationError(
                    f"{self.call.title}: a kernel fills out and returns None, got {type(returned).__name__}"
                )
            if not self.proven:
                self._check_written(results)

        return run

    def _check_written(self, results: Sequence[np.ndarray]) -> None:
        """Require that the first run has changed all results."""
        for number, array in enumerate(results):
            if bool((_bytes(array) == _UNTOUCHED).all()):
                name = f"out[{number}]" if len(results) > 1 else "out"
                raise OperationError(
                    f"{self.call.title}: the kernel did not write to {name}; assign to its elements ({name}[...] = …), an "
                    "array that is only bound to the name is lost"
                )
        self.proven = True


def _read_only(value: Arrays) -> Arrays:
    if isinstance(value, tuple):
        return tuple(_view(item) for item in value)
    return None if value is None else _view(value)


def _view(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
