"""Programs made runnable: compiled by Halide where that is installed, evaluated with NumPy where it is not."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from threading import Lock
from typing import Literal, Protocol, TypeAlias, get_args

import numpy as np

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


_Key: TypeAlias = tuple[str, str, tuple[str, ...], bool]
_kernels: OrderedDict[_Key, Kernel] = OrderedDict()
_locks: dict[_Key, Lock] = {}
_lock = Lock()


def compile(program: Program, engine: Engine = "auto") -> Kernel:
    """The program, ready to run; the same kernel for the same program.

    Raises:
        MissingExtraError: Halide is asked for, and not installed.
        OperationError: Halide is asked for, and cannot compile the program, or it is too much work. With "auto", NumPy
            evaluates it then, and the kernel's `detail` says why.
    """
    compiled = is_compiled() if engine == "auto" else engine == "halide"
    # Names and messages are no part of the fingerprint, but kernels speak of themselves by them.
    key = (fingerprint(program), program.name, tuple(check.message for check in program.checks), compiled)
    with _lock:
        known = _kernels.get(key)
        if known is not None and not (engine == "halide" and getattr(known, "is_refused", False)):
            _kernels.move_to_end(key)
            return known
        mine = _locks.setdefault(key, Lock())
    with mine:  # whoever asks for the same program meanwhile waits
        with _lock:
            known = _kernels.get(key)
        if known is None or (engine == "halide" and getattr(known, "is_refused", False)):
            known = _compile(program, compiled, strict=engine == "halide")
        with _lock:
            _kernels[key] = known
            _locks.pop(key, None)
            while len(_kernels) > KERNELS:
                _kernels.popitem(last=False)
    return known


def _compile(program: Program, compiled: bool, strict: bool) -> Kernel:
    if not compiled:
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
