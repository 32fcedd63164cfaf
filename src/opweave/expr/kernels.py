"""Compile programs: with Halide if it is installed, else for evaluation with NumPy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Literal, Protocol, get_args

import numpy as np

from ..core.guards import without_deciding
from ..support import packages, settings
from ..support.cache import Cache
from ..support.errors import MissingExtraError, OperationError, ValidationError, need_text
from .fingerprint import identify
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

MAX_STATIC = 16
"""Maximum number of sizes for which a kernel without code for all sizes keeps static ones."""


class ExpressionKernel(Protocol):
    """A program that is ready to run. If it has sizes with names, `at` returns the kernel to run for certain sizes."""

    @property
    def detail(self) -> str:
        """The engine and its options, for tables."""

    def at(self, sizes: Mapping[str, int]) -> ExpressionKernel:
        """Return the kernel for sizes by name; the kernel itself if the program has none."""

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        """Return key and kind of the files in the cache on disk with its code."""

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
    is_compiled()  # warns that Halide is missing


compiled: Cache[tuple[str, str, tuple[str, ...], bool], ExpressionKernel] = Cache(MAX_KERNELS)
"""Compiled programs, by fingerprint, name, names of sizes and messages, and whether Halide compiles them."""


def compile(program: Formula, engine: Engine = "auto") -> ExpressionKernel:
    """Compile a program; equal programs share a kernel. A program with sizes is compiled once for all of them.

    With "auto", NumPy evaluates programs that Halide cannot compile, and the kernel's `detail` contains the reason. If Halide
    cannot be imported, there is a warning, and NumPy evaluates all programs from then on.
    """
    with_halide = is_compiled() if engine == "auto" else engine == "halide"
    digest, names = identify(program)
    # Kernels contain names and messages, which are not part of the fingerprint.
    key = (digest, program.name, (*names, *(check.message for check in program.checks)), with_halide)
    with compiled.turn(key), without_deciding():
        kernel = compiled.get(key)
        # Halide refused this program, so a NumPy kernel is cached: compile again, to raise Halide's error.
        is_refused = getattr(kernel, "is_refused", False)
        if kernel is None or (engine == "halide" and is_refused):
            kernel = compiled.put(key, _compile(program, with_halide, strict=engine == "halide"))
    return kernel


def _compile(program: Formula, with_halide: bool, strict: bool) -> ExpressionKernel:
    if not with_halide:
        return _numpy_kernel(program)
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
        return _numpy_kernel(program)
    except OperationError as error:
        if program.has_sizes:
            return StaticKernels(program, "halide" if strict else "auto", f"compiled for each size; {error}")
        if strict:
            raise
        return _NumpyKernel(program, str(error))
    return kernel


def _numpy_kernel(program: Formula) -> ExpressionKernel:
    return StaticKernels(program, "numpy", f"NumPy{_lack()}") if program.has_sizes else _NumpyKernel(program)


def _lack() -> str:
    return "" if has_halide() else f"; {_fault or f'the extra halide compiles expressions: {INSTALL}'}"


class SymbolicKernel:
    """A program with sizes that are known only at a run: it runs `at` these sizes."""

    def __init__(self, program: Formula) -> None:
        self.program = program

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        raise ValidationError(
            f"{self.program.name}: the sizes of this kernel are known only at a run; at(sizes) sets them"
        )

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        return ()

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        self.bind(inputs, outputs)


class StaticKernels(SymbolicKernel):
    """A static kernel for each combination of sizes, made by `engine`."""

    def __init__(self, program: Formula, engine: Engine, detail: str) -> None:
        super().__init__(program)
        self.engine, self.detail = engine, detail
        self._kernels: Cache[frozenset[tuple[str, int]], ExpressionKernel] = Cache(MAX_STATIC)

    def at(self, sizes: Mapping[str, int]) -> ExpressionKernel:
        from .specialise import formula_at

        return self._kernels.make(
            frozenset(sizes.items()), lambda: compile(formula_at(self.program, sizes), self.engine)
        )

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        return {key for _, kernel in self._kernels.items() for key in kernel.cache_keys()}


class _NumpyKernel:
    """A program evaluated by NumPy."""

    def __init__(self, program: Formula, refused: str = "") -> None:
        from .evaluate import Evaluator

        self.evaluator = Evaluator(program)
        self.is_refused = bool(refused)
        self.detail = "NumPy" + (f"; {refused}" if refused else _lack())

    def at(self, sizes: Mapping[str, int]) -> ExpressionKernel:
        return self

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        return ()

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        return self.evaluator.bind(inputs, outputs)

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        self.evaluator.bind(inputs, outputs)()
