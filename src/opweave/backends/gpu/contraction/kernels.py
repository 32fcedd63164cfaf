"""Put the parts of kernels for a contraction together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ....expr import ir
from ....expr.gpu import Features, Kernel, Module
from ....expr.gpu.dialect import Part
from ....expr.ir import Index, Input, Load, Program
from ....graph import Desc
from . import tiled
from .direct import Thin, is_narrow, is_thin, narrow
from .elements import Reader, Writer
from .epilogue import Epilogue, addition, assemble, partial_sums, put_partial
from .problem import Matrix, Problem, divided, is_spread, strided, strides_of
from .tiles import choose


class Contraction:
    """The kernels of a contraction.

    Args:
        problem: what is multiplied and added up.
        result: stands for the sums in the expressions of epilogues: an array of the result's data type and shape.
        constants: those of the sources that are constants, which may be rearranged.
        features: features and limits of the device.

    Attributes:
        arranged: the rearranged constants, which take the place of others as sources.
        method: "tiled"; "thin" for a matrix and a few vectors; "narrow" for few output channels.
        tile: the part of the result that a workgroup computes, if tiled.
        splits: number of workgroups that share the terms of each sum, if tiled.
    """

    def __init__(
        self, problem: Problem, result: Input, constants: Mapping[Input, np.ndarray], features: Features
    ) -> None:
        self.result, self.features = result, features
        self.arranged: dict[Input, np.ndarray] = {}
        self.problem = self._arrange(problem, constants)
        self.tile, self.splits = choose(self.problem, features)
        self.method = "thin" if is_thin(self.problem) else "narrow" if is_narrow(self.problem) else "tiled"

    @property
    def sources(self) -> tuple[Input, Input]:
        """The two arrays that are multiplied."""
        return self.problem.left.source, self.problem.right.source

    def _arrange(self, problem: Problem, constants: Mapping[Input, np.ndarray]) -> Problem:
        """The problem with constants in the order in which kernels read them."""
        if problem.filter.source in constants and is_spread(problem) and not is_narrow(problem):
            problem, source, array = divided(problem, constants[problem.filter.source])
            self.arranged[source] = array
        sides = [problem.left, problem.right]
        for k, side in enumerate(sides):
            if isinstance(side, Matrix) and side.source in constants:
                arrange = _by_channel if is_narrow(problem) else _by_line
                sides[k], array = arrange(side, problem, constants[side.source])
                self.arranged[sides[k].source] = array
        return replace(problem, left=sides[0], right=sides[1])

    def kernels(self, epilogue: Program | None, title: str) -> list[Kernel]:
        """The kernels, in order.

        Args:
            epilogue: a program that computes an element of the result: the body of its only output loads `result` at the
                position that is written, and possibly other arrays. None stores the sum in `result`.
            title: for tables.
        """
        problem, features = self.problem, self.features
        end, last = self._epilogue(epilogue, title), list[Kernel]()
        a, b = readers = [Reader(name, source, features) for name, source in zip("ab", self.sources, strict=True)]
        thin = Thin(problem, a, b) if self.method == "thin" else None
        vectors = self.method == "tiled" or (thin is not None and thin.vectors)
        if not end.can_store(features, vectors):
            end, last = end.as_kernels(title, features)
        first: list[Kernel] = []
        parts: list[Part]
        if thin is not None:
            parts, groups, how = thin.parts(), thin.workgroups, thin.comment
        elif self.method == "narrow":
            parts, groups = narrow(problem, a, b)
            how = "an invocation for each position"
        else:
            parts, groups = tiled.body(problem, self.tile, a, b, self.splits)
            how = f"tiles of {self.tile}"
        comment = f"{self._size()}; {how}"
        if self.method == "tiled" and self.splits > 1:
            sums = Writer(partial_sums(problem, self.splits), features, True)
            comment, parts = f"{comment}, {self.splits} parts", [put_partial(problem), *parts]
            first = [assemble(title, comment, readers, sums, Module(features), parts, groups)]
            comment, readers = f"adds up {self.splits} parts of each sum", [Reader("parts", sums.buffer, features, 4)]
            adding, groups = addition(problem, self.splits)
            parts = [adding]
        module = Module(features)
        functions, writer = end.functions(module, features, vectors)
        return [*first, assemble(title, comment, readers, writer, module, [*functions, *parts], groups), *last]

    def _epilogue(self, epilogue: Program | None, title: str) -> Epilogue:
        if epilogue is None:
            axes = tuple(Index(size, k - self.result.desc.rank) for k, size in enumerate(self.result.desc.shape))
            return Epilogue(self.problem, self.result, self.result, axes, Load(self.result, axes))
        (output,) = epilogue.outputs
        made = Epilogue(self.problem, self.result, output, output.axes, output.body)
        loads = [n for n in ir.walk(output.body) if isinstance(n, Load) and n.source is self.result]
        is_aligned = all(made.is_aligned(load) for load in loads)
        assert is_aligned, f"{title}: the epilogue must read the result at the position that it writes"
        return made

    def _size(self) -> str:
        p = self.problem
        stacks = f"{p.stacks} times " if p.stacks > 1 else ""
        return f"{stacks}{p.rows} x {p.columns}, sums of {p.terms}"


def _by_line(matrix: Matrix, problem: Problem, array: np.ndarray) -> tuple[Matrix, np.ndarray]:
    """A constant matrix whose lines are contiguous, padded to whole vectors."""
    source, lines = matrix.source, matrix.lines
    padded = -(-lines // 4) * 4
    own = [(n, stride) for n, stride in matrix.stack if stride and n > 1]
    shape = (*(n for n, _ in own), problem.taps, problem.channels, padded)
    fresh = iter(strides_of(shape))
    stack = tuple((n, next(fresh) if stride and n > 1 else 0) for n, stride in matrix.stack)
    desc = Desc(source.desc.data_type, shape)
    laid = Matrix(Input(source.number, desc), padded, 1, padded, problem.channels * padded, stack)
    steps = (*(stride for _, stride in own), matrix.tap, matrix.step, matrix.stride)
    view = strided(array, (*shape[:-1], lines), steps)
    return laid, np.pad(view, [(0, 0)] * (len(shape) - 1) + [(0, padded - lines)])


def _by_channel(filter: Matrix, problem: Problem, array: np.ndarray) -> tuple[Matrix, np.ndarray]:
    """A constant filter in which the output channels of all groups are contiguous."""
    source, groups, outputs = filter.source, problem.stacks, filter.lines
    shape = (problem.taps, problem.channels, groups * outputs)
    desc = Desc(source.desc.data_type, shape)
    strides = strides_of(shape)
    laid = Matrix(Input(source.number, desc), outputs, 1, strides[1], strides[0], ((groups, outputs),))
    ((_, group),) = filter.stack
    view = strided(array, (*shape[:-1], groups, outputs), (filter.tap, filter.step, group, filter.stride))
    return laid, view.reshape(shape)
