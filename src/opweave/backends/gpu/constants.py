"""Constants of kernels, uploaded to devices once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from threading import local
from typing import Any

import numpy as np

from ...memory.arrays import owner_of
from ...support.processors import processors

Predicate = Callable[..., bool]
"""Whether something holds for the elements of an array."""


@dataclass(frozen=True, eq=False, slots=True)
class GpuConstant:
    """A constant of a kernel: a C-contiguous array, optionally transformed by functions when it is uploaded.

    `compute` computes the elements from the source. `how` has the functions with their arguments; it is empty for the
    unchanged array.
    """

    source: np.ndarray
    compute: Callable[[np.ndarray], np.ndarray]
    how: tuple[Hashable, ...] = ()

    @classmethod
    def of(cls, array: np.ndarray) -> GpuConstant:
        return cls(array, _identity)

    def make(self) -> np.ndarray:
        """The elements."""
        return self.compute(self.source)

    def then(self, function: Callable[..., np.ndarray], *arguments: Hashable) -> GpuConstant:
        """Apply a pure function to the elements."""
        return GpuConstant(
            self.source, lambda source: function(self.compute(source), *arguments), (*self.how, function, arguments)
        )

    def holds(self, predicate: Predicate, *arguments: Any) -> bool:
        """Whether a predicate holds for the elements. Code that depends on elements asks this way: see `asked_of`."""
        answer = predicate(self.make(), *arguments)
        for questions in _asked.get():
            questions.append(ConstantQuestion(self, predicate, arguments, answer))
        return answer

    def on(self, source: np.ndarray) -> GpuConstant:
        """The same functions of another array, of the same shape and data type."""
        return replace(self, source=source)

    @property
    def key(self) -> Hashable:
        """A key that is equal for constants with the same bytes, while `source` exists."""
        # Not `dtype.str`, which is "<V1" for most types of 8, 4 and 2 bits.
        how = (self.source.dtype, self.source.shape, *self.how) if self.how else ()
        return self.source.ctypes.data, self.source.nbytes, how

    @property
    def owner(self) -> np.ndarray:
        """The array that owns the memory of `source`, whose views are short-lived."""
        return owner_of(self.source)


POOLED_BYTES, DIVIDED_BYTES = 2**22, 2**26
"""Constants below `POOLED_BYTES` in total are made by one thread. One above `DIVIDED_BYTES` is divided between threads.
Estimates."""

AHEAD_BYTES = 2**28
"""Maximum bytes of constants that are made but not yet uploaded. An estimate."""

_thread = local()


def is_pool_thread() -> bool:
    """Whether this thread is one of several that make constants, and must not start more."""
    return getattr(_thread, "is_pool_thread", False)


def _mark_pool_thread() -> None:
    _thread.is_pool_thread = True


def make_each(constants: Sequence[GpuConstant]) -> Iterator[np.ndarray]:
    """Yield the elements of each constant, in order. Threads make the following ones while the caller uploads."""
    count = min(processors(), len(constants))
    if count < 2 or sum(constant.source.nbytes for constant in constants) < POOLED_BYTES:
        yield from (constant.make() for constant in constants)
        return
    with ThreadPoolExecutor(count, "opweave-constants", _mark_pool_thread) as pool:
        pending: deque[tuple[Callable[[], np.ndarray], int]] = deque()
        ahead = 0
        for constant in constants:
            size = constant.source.nbytes
            while pending and ahead + size > AHEAD_BYTES:
                result, made = pending.popleft()
                yield result()
                ahead -= made
            pending.append((constant.make if size > DIVIDED_BYTES else pool.submit(constant.make).result, size))
            ahead += size
        while pending:
            yield pending.popleft()[0]()


def _identity(source: np.ndarray) -> np.ndarray:
    return source


@dataclass(frozen=True, eq=False)
class ConstantQuestion:
    """A predicate that code has asked of a constant, and the answer."""

    constant: GpuConstant
    predicate: Predicate
    arguments: tuple[Any, ...]
    answer: bool


_asked: ContextVar[tuple[list[ConstantQuestion], ...]] = ContextVar("asked", default=())


@contextmanager
def asked_of() -> Iterator[list[ConstantQuestion]]:
    """Collect the questions that code asks of constants. With the same answers for other constants, it does the same."""
    questions: list[ConstantQuestion] = []
    token = _asked.set((*_asked.get(), questions))
    try:
        yield questions
    finally:
        _asked.reset(token)
