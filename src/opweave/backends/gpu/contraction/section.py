"""Sections of GEMV kernels: products that read the same few vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ....core.sizes import is_same_size
from ....expr.gpu import Buffer, Features
from .epilogue import Epilogue
from .parameters import KernelNumbers
from .problem import Matrix, Problem, has_few_columns
from .quantized import is_in_words


@dataclass(frozen=True)
class Section:
    """Products of the same few vectors, with equal result shapes: they differ only in the source of the matrix.

    `is_constant` says that the matrices are constants.
    """

    problems: tuple[Problem, ...]
    end: Epilogue
    title: str
    is_constant: bool

    def with_buffers(self, buffers: Mapping[Buffer, Buffer]) -> Section:
        """The same section with other arrays; arrays that `buffers` lacks are kept."""
        problems = tuple(problem.with_inputs(buffers) for problem in self.problems)
        return replace(self, problems=problems, end=self.end.with_buffers(buffers))

    @property
    def is_swapped(self) -> bool:
        """Whether the few vectors are columns."""
        return has_few_columns(self.problems[0])

    @property
    def few(self) -> Matrix:
        return self._side(self.problems[0], self.is_swapped)

    @property
    def many(self) -> tuple[Matrix, ...]:
        return tuple(self._side(problem, not self.is_swapped) for problem in self.problems)

    @staticmethod
    def _side(problem: Problem, is_right: bool) -> Matrix:
        side = problem.right if is_right else problem.left
        assert isinstance(side, Matrix)
        return side

    @property
    def count(self) -> int:
        return self.problems[0].columns if self.is_swapped else self.problems[0].rows

    @property
    def lines(self) -> int:
        return self.problems[0].rows if self.is_swapped else self.problems[0].columns

    @property
    def stacks(self) -> int:
        return self.problems[0].stacks

    @cached_property
    def quads(self) -> bool:
        """Whether an invocation computes four contiguous lines as a vector."""
        many = self.many[0]
        is_multiple = self.problems[0].is_multiple
        whole = is_multiple(many.step, 4) and all(is_multiple(stride, 4) for _, stride in many.stack)
        return is_same_size(many.stride, 1) and is_multiple(many.lines, 4) and whole

    @property
    def along(self) -> bool:
        """Whether adjacent invocations read adjacent terms, because terms are contiguous and lines are not."""
        return not self.quads and is_same_size(self.many[0].step, 1)

    @property
    def is_quantized(self) -> bool:
        """Whether the matrices are packed numbers of few bits."""
        return self.many[0].quantized is not None

    def deep(self, features: Features) -> int:
        """Number of contiguous terms that an invocation loads as a vector of at most 16 bytes, or as a word; 0 for none."""
        many = self.many[0]
        if not self.along:
            return 0
        if many.quantized is not None:
            upper, numbers = many.quantized.upper, many.quantized.in_word
            has_words = upper is None or is_in_words(upper, features)
            return numbers if has_words and many.stride % numbers == 0 else 0
        is_half = many.source.desc.data_type == "float16"
        widths = (8, 4) if is_half and features.float16 and features.dialect.casts_halves else (4,)
        strides = [self.problems[0].terms, many.stride, *(stride for _, stride in many.stack)]
        is_multiple = self.problems[0].is_multiple
        return next((width for width in widths if all(is_multiple(stride, width) for stride in strides)), 0)

    def vectors(self, features: Features) -> bool:
        """Whether four results are stored as a vector."""
        return (self.quads or self.deep(features) > 0) and not self.is_swapped

    @property
    def few_in_fours(self) -> bool:
        """Whether four terms of the few vectors are contiguous and aligned."""
        few = self.few
        strides = [few.stride, few.source.desc.element_count, *(stride for _, stride in few.stack)]
        return is_same_size(few.step, 1) and all(self.problems[0].is_multiple(stride, 4) for stride in strides)

    def units(self, fours: bool) -> int:
        return -(-self.lines // 4) if fours else self.lines

    def form(self, features: Features) -> tuple[Any, ...]:
        """A key that all sections of a kernel must share."""
        few = self.few
        read = few.source, few.stride, few.step, few.stack, self.problems[0].terms
        layout = self.quads, self.along, self.deep(features), self.is_quantized
        return *read, self.count, self.is_swapped, *layout, self.is_constant

    def comment(self, numbers: KernelNumbers) -> str:
        """The products as text without names, so that kernels that differ only in names are compiled once."""
        problem, count = self.problems[0], len(self.problems)
        products = f"{count} products of " if count > 1 else ""
        return f"{products}{problem.comment(numbers)}"
