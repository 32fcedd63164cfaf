"""Programs made runnable: compiled by Halide where that is installed, evaluated with NumPy where it is not."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Literal, Protocol, get_args

import numpy as np

from ..cache import Cache
from ..errors import OperationError, ValidationError
from .fingerprint import fingerprint
from .ir import Program
from .limits import too_much_work

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

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Run it once on such arrays; quicker than `bind`, where they do not come again."""


@cache
def is_compiled() -> bool:
    """Whether "auto" compiles expressions here."""
    chosen = os.environ.get(VARIABLE, "auto")
    if chosen not in get_args(Engine):
        raise ValidationError(f"{VARIABLE} must be one of {', '.join(get_args(Engine))}, got {chosen!r}")
    if chosen != "auto":
        return chosen == "halide"
    return has_halide()


@cache
def has_halide() -> bool:
    """Whether the extra `halide` is installed."""
    try:
        return all(find_spec(module) is not None for module in ("halide", "llvmlite"))
    except ModuleNotFoundError:  # who refuses imports says it so
        return False


compiled: Cache[tuple[str, str, tuple[str, ...], bool], Kernel] = Cache(KERNELS)
"""Compiled programs, by fingerprint, name, messages, and whether Halide compiles them."""


def compile(program: Program, engine: Engine = "auto") -> Kernel:
    """The program, ready to run; the same kernel for the same program.

    Raises:
        MissingExtraError: Halide is asked for, and not installed.
        OperationError: Halide is asked for, and cannot compile the program, or it is too much work. With "auto", NumPy
            evaluates it then, and the kernel's `detail` says why.
    """
    with_halide = is_compiled() if engine == "auto" else engine == "halide"
    # Names and messages are no part of the fingerprint, but kernels speak of themselves by them.
    key = (fingerprint(program), program.name, tuple(check.message for check in program.checks), with_halide)
    with compiled.turn(key):
        known = compiled.get(key)
        if known is None or (engine == "halide" and getattr(known, "is_refused", False)):
            known = compiled.put(key, _compile(program, with_halide, strict=engine == "halide"))
    return known


def _compile(program: Program, with_halide: bool, strict: bool) -> Kernel:
    if not with_halide:
        return _NumpyKernel(program)
    from .halide import compile as compile_with_halide

    try:
        problem = too_much_work(program)
        if problem:
            raise OperationError(f"{program.name}: {problem}")
        kernel: Kernel = compile_with_halide(program)
    except OperationError as error:
        if strict:
            raise
        return _NumpyKernel(program, str(error))
    return kernel


class _NumpyKernel:
    """A program that NumPy evaluates."""

    def __init__(self, program: Program, refused: str = "") -> None:
        from .evaluate import Evaluator

        self.evaluator = Evaluator(program)
        self.is_refused = bool(refused)
        extra = "" if has_halide() else "; the extra halide compiles expressions: pip install 'opweave[halide]'"
        self.detail = "NumPy" + (f"; {refused}" if refused else extra)

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        return self.evaluator.bind(inputs, outputs)

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        self.evaluator.bind(inputs, outputs)()
