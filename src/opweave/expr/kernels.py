"""Programs made runnable: compiled by Halide where that is installed, evaluated with NumPy where it is not."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.util import find_spec
from threading import Lock
from typing import Literal, Protocol, get_args

import numpy as np

from ..errors import ValidationError
from .ir import Program

Engine = Literal["auto", "halide", "numpy"]
"""What runs expressions: "auto" is Halide where the extra `halide` is installed, else NumPy."""

VARIABLE = "OPWEAVE_EXPRESSIONS"
"""The environment variable that says what "auto" is: halide or numpy."""

KERNELS = 256
"""How many compiled programs are kept for the next one with the same text."""


class Kernel(Protocol):
    """A program that can run."""

    @property
    def detail(self) -> str:
        """Who compiled it, and how."""

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        """Tie it to C-contiguous arrays of the declared data types and shapes; what is returned runs it once."""


@cache
def is_compiled() -> bool:
    """Whether "auto" compiles expressions here."""
    chosen = os.environ.get(VARIABLE, "auto")
    if chosen not in get_args(Engine):
        raise ValidationError(f"{VARIABLE} must be one of {', '.join(get_args(Engine))}, got {chosen!r}")
    if chosen != "auto":
        return chosen == "halide"
    return all(find_spec(module) is not None for module in ("halide", "llvmlite"))


_kernels: OrderedDict[tuple[str, bool], Kernel] = OrderedDict()
_locks: dict[tuple[str, bool], Lock] = {}
_lock = Lock()


def compile(program: Program, engine: Engine = "auto") -> Kernel:
    """The program, ready to run; the same kernel for the same program.

    Raises:
        MissingExtraError: Halide is asked for, and not installed.
    """
    compiled = is_compiled() if engine == "auto" else engine == "halide"
    key = (str(program), compiled)
    with _lock:
        known = _kernels.get(key)
        if known is not None:
            _kernels.move_to_end(key)
            return known
        mine = _locks.setdefault(key, Lock())
    with mine:  # whoever asks for the same program meanwhile waits
        with _lock:
            known = _kernels.get(key)
        if known is None:
            known = _compile(program, compiled)
        with _lock:
            _kernels[key] = known
            _locks.pop(key, None)
            while len(_kernels) > KERNELS:
                _kernels.popitem(last=False)
    return known


def _compile(program: Program, compiled: bool) -> Kernel:
    if compiled:
        from .halide import compile as compile_with_halide

        kernel: Kernel = compile_with_halide(program)
        return kernel
    return _NumpyKernel(program)


class _NumpyKernel:
    """A program that NumPy evaluates."""

    detail = "NumPy"

    def __init__(self, program: Program) -> None:
        self.program = program

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        from .evaluate import evaluate

        return partial(evaluate, self.program, inputs, outputs)
