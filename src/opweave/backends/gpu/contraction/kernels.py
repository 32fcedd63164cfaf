"""Put the parts of kernels for a contraction together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from ....expr import ir
from ....expr.gpu import Buffer, Features, Kernel, Module
from ....expr.gpu.dialect import Part
from ....expr.gpu.triton import UnsupportedError
from ....expr.ir import Index, Input, Load, Program
from ....graph import Desc
from . import tensor, tensor_tiles, tiled, tiles
from .direct import Thin, is_narrow, is_thin, narrow
from .elements import Reader, Writer
from .epilogue import Epilogue, addition, assemble, partial_sums, put_partial
from .problem import Matrix, Problem, divided, is_spread, strided, strides_of

Choose: TypeAlias = Callable[["Contraction"], tuple[tensor.Tile, int]]
"""Chooses the tile of a contraction on tensor cores, and the number of programs that share its steps."""


def by_table(contraction: Contraction) -> tuple[tensor.Tile, int]:
    """The tile on tensor cores that is estimated to be the fastest, and the number of programs that share its steps."""
    return tensor_tiles.choose(contraction.problem, contraction.features)


class Contraction:
    """The kernels of a contraction.

    Args:
        problem: what is multiplied and added up.
        result: stands for the sums in the expressions of epilogues: an array of the result's data type and shape.
        constants: those of the sources that are constants, which may be rearranged.
        features: features and limits of the device.
        choose: chooses the tile on tensor cores.

    Attributes:
        arranged: the rearranged constants, which take the place of others as sources.
        method: "tiled"; "tensor" on tensor cores; "thin" for a matrix and a few vectors; "narrow" for few output channels.
        tile: the part of the result that a workgroup computes, if tiled or on tensor cores.
        splits: number of workgroups that share the terms of each sum, if tiled or on tensor cores.
    """

    def __init__(
        self,
        problem: Problem,
        result: Input,
        constants: Mapping[Input, np.ndarray],
        features: Features,
        choose: Choose = by_table,
    ) -> None:
        self.result, self.features = result, features
        self.arranged: dict[Input, np.ndarray] = {}
        on_tensor_cores = tensor.suits(problem, features)
        self.problem = self._arrange(problem, constants, on_tensor_cores)
        narrow = "narrow" if is_narrow(self.problem) else "tiled"
        self.method = "tensor" if on_tensor_cores else "thin" if is_thin(self.problem) else narrow
        self.tile: tiled.Tile | tensor.Tile
        self.tile, self.splits = choose(self) if on_tensor_cores else tiles.choose(self.problem, features)

    @property
    def sources(self) -> tuple[Input, Input]:
        """The two arrays that are multiplied."""
        return self.problem.left.source, self.problem.right.source

    @property
    def read(self) -> tuple[Input, ...]:
        """All arrays that the sums read."""
        sides = (self.problem.left, self.problem.right)
        return (*self.sources, *(m.rest for m in sides if isinstance(m, Matrix) and m.rest is not None))

    def _arrange(self, problem: Problem, constants: Mapping[Input, np.ndarray], on_tensor_cores: bool) -> Problem:
        """The problem with constants in the order in which kernels read them."""
        if problem.filter.source in constants and is_spread(problem) and not is_narrow(problem):
            problem, source, array = divided(problem, constants[problem.filter.source])
            self.arranged[source] = array
        sides = [problem.left, problem.right]
        for k, side in enumerate(sides):
            if isinstance(side, Matrix) and side.source in constants:
                array = constants[side.source]
                if on_tensor_cores:
                    sides[k], made = tensor.by_term(side, problem, array, self.features)
                    self.arranged |= made
                else:
                    sides[k], array = (_by_channel if is_narrow(problem) else _by_line)(side, problem, array)
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
        end = self._epilogue(epilogue, title)
        if isinstance(self.tile, tensor.Tile):
            return self._on_tensor_cores(end, tensor.TensorKernel(problem, self.tile, self.splits, features), title)
        a, b = readers = [Reader(name, source, features) for name, source in zip("ab", self.sources, strict=True)]
        if self.method == "tiled" and self.splits > 1:
            sums = Writer(partial_sums(problem, self.splits), features, True)
            parts, groups = tiled.body(problem, self.tile, a, b, self.splits)
            comment = f"{self._size()}; tiles of {self.tile}, {self.splits} parts"
            parts = [put_partial(problem), *parts]
            return [
                assemble(title, comment, readers, sums, Module(features), parts, groups),
                *self._added(end, sums.buffer, title),
            ]
        thin = Thin(problem, a, b, features) if self.method == "thin" else None
        vectors = self.method == "tiled" or (thin is not None and thin.vectors)
        if thin is not None:
            parts, groups, how = thin.parts(), thin.workgroups, thin.comment
        elif self.method == "narrow":
            parts, groups = narrow(problem, a, b)
            how = "an invocation for each position"
        else:
            parts, groups = tiled.body(problem, self.tile, a, b, self.splits)
            how = f"tiles of {self.tile}"
        return self._finished(end, f"{self._size()}; {how}", readers, parts, groups, title, vectors)

    def _on_tensor_cores(self, end: Epilogue, kernel: tensor.TensorKernel, title: str) -> list[Kernel]:
        if self.splits > 1:
            sums = partial_sums(self.problem, self.splits)
            return [kernel.partial(sums, title), *self._added(end, sums, title)]
        try:
            return [kernel.finishing(end, title)]
        except UnsupportedError:
            end, last = end.as_kernels(title, self.features)
            return [kernel.finishing(end, title), *last]

    def _added(self, end: Epilogue, sums: Buffer, title: str) -> list[Kernel]:
        """The kernels that add up partial sums and compute the result."""
        comment, readers = f"adds up {self.splits} parts of each sum", [Reader("parts", sums, self.features, 4)]
        adding, groups = addition(self.problem, self.splits)
        return self._finished(end, comment, readers, [adding], groups, title, vectors=True)

    def _finished(
        self,
        end: Epilogue,
        comment: str,
        readers: Sequence[Reader],
        parts: Sequence[Part],
        groups: tuple[int, int, int],
        title: str,
        vectors: bool,
    ) -> list[Kernel]:
        """The kernel of `parts` that calls `put`, and those after it if it cannot store the result."""
        last = list[Kernel]()
        if not end.can_store(self.features, vectors):
            end, last = end.as_kernels(title, self.features)
        module = Module(self.features)
        functions, writer = end.functions(module, self.features, vectors)
        return [assemble(title, comment, readers, writer, module, [*functions, *parts], groups), *last]

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
