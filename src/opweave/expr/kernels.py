"""Compile programs: with Halide if it is installed, else for evaluation with NumPy."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Literal, Protocol, get_args

import numpy as np

from ..support import packages, settings
from ..support.cache import Cache
from ..support.errors import MissingExtraError, OperationError, need_text
from .fingerprint import fingerprint
from .ir import Formula
from .limits import too_much_work

Engine = Literal["auto", "halide", "numpy"]
"""The engine that runs expressions: "auto" is Halide if the extra `halide` is installed, else NumPy."""

ENGINE_VARIABLE = "OPWEAVE_EXPRESSIONS"
"""Environment variable: the engine that "auto" chooses, halide or numpy."""

PURPOSE = "compiling expressions"

INSTALL = "pip install 'opweave[halide]'"

_fault = ""
"""The reason why an installed Halide is unusable: llvmlite is missing, or an import failed."""

MAX_KERNELS = 256


class ExpressionKernel(Protocol):
    """A program that is ready to run."""

    @property
    def detail(self) -> str:
        """The engine and its options, for tables."""

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        """Return a function that runs the program once on C-contiguous arrays of the declared data types and shapes."""

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Run the program once on arrays as for `bind`; faster for a single run."""


@cache
def is_compiled() -> bool:
    """Whether "auto" chooses Halide."""
    chosen = settings.choice(ENGINE_VARIABLE, get_args(Engine), "auto")
    if chosen != "auto":
        return chosen == "halide"
    is_usable = has_halide()
    if _fault:
        packages.warn_once(f"{_fault}; without it, NumPy or engines run expressions, which takes longer")
    return is_usable


@cache
def has_halide() -> bool:
    """Whether the extra `halide` is installed and not known to be broken."""
    global _fault
    if _fault:
        return False
    try:
        if find_spec("halide") is None:  # llvmlite alone is there for Numba
            return False
        if find_spec("llvmlite") is None:
            _fault = need_text(PURPOSE, "llvmlite", INSTALL)
            return False
    except ModuleNotFoundError:  # raised by import hooks that block a module
        return False
    return True


def _give_up(error: MissingExtraError) -> None:
    """Stop using Halide in this process, because it cannot be imported."""
    global _fault
    _fault = str(error)
    is_compiled.cache_clear()
    has_halide.cache_clear()
    is_compiled()  # warns


compiled: Cache[tuple[str, str, tuple[str, ...], bool], ExpressionKernel] = Cache(MAX_KERNELS)
"""Compiled programs, by fingerprint, name, messages, and whether Halide compiles them."""


def compile(program: Formula, engine: Engine = "auto") -> ExpressionKernel:
    """Compile a program; equal programs share a kernel.

    With "auto", NumPy evaluates programs that Halide cannot compile, and the kernel's `detail` contains the reason. If Halide
    cannot be imported, there is a warning, and NumPy evaluates all programs from then on.
    """
    with_halide = is_compiled() if engine == "auto" else engine == "halide"
    # Kernels contain names and messages, which are not part of the fingerprint.
    key = (fingerprint(program), program.name, tuple(check.message for check in program.checks), with_halide)
    with compiled.turn(key):
        kernel = compiled.get(key)
        # Halide refused this program, so a NumPy kernel is cached: compile again, to raise Halide's error.
        is_refused = getattr(kernel, "is_refused", False)
        if kernel is None or (engine == "halide" and is_refused):
            kernel = compiled.put(key, _compile(program, with_halide, strict=engine == "halide"))
    return kernel


def _compile(program: Formula, with_halide: bool, strict: bool) -> ExpressionKernel:
    if not with_halide:
        return _NumpyKernel(program)
    is_chosen = strict or os.environ.get(ENGINE_VARIABLE) == "halide"
    from .halide import compile as compile_with_halide

    try:
        problem = too_much_work(program)
        if problem:
            raise OperationError(f"{program.name}: {problem}")
        kernel: ExpressionKernel = compile_with_halide(program)
    except MissingExtraError as error:
        if is_chosen:
            raise
        _give_up(error)
        return _NumpyKernel(program)
    except OperationError as error:
        if strict:
            raise
        return _NumpyKernel(program, str(error))
    return kernel


class _NumpyKernel:
    """A program evaluated by NumPy."""

    def __init__(self, program: Formula, refused: str = "") -> None:
        from .evaluate import Evaluator

        self.evaluator = Evaluator(program)
        self.is_refused = bool(refused)
        lack = "" if has_halide() else f"; {_fault or f'the extra halide compiles expressions: {INSTALL}'}"
        self.detail = "NumPy" + (f"; {refused}" if refused else lack)

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        return self.evaluator.bind(inputs, outputs)

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        self.evaluator.bind(inputs, outputs)()
