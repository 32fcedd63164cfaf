"""Assemble the kernels of a contraction."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from ....core.graph import Desc
from ....core.sizes import Dimension, is_multiple, is_same_size
from ....expr import ir
from ....expr.gpu import Buffer, Features, GpuKernel, GpuModule
from ....expr.gpu.dialect import Part
from ....expr.gpu.triton import UnsupportedError
from ....expr.ir import Formula, Index, Input, Load
from ....expr.vocabulary import DEAR
from ....memory.shared_constants import keys_of_shared
from ..constants import GpuConstant
from . import layout, sharing, tensor, tensor_tiles, terms, tiled, tiles
from .direct import is_narrow, narrow
from .elements import ElementReader, ElementWriter
from .epilogue import Epilogue, addition, assemble, partial_sums, put_partial
from .expansion import in_words, reader_of
from .gemv import MAX_COMBINED, is_thin, thin_kernel
from .named import at_estimates, has_names, may_have_names, parts_for
from .problem import Matrix, Problem, ProblemWindow, divide_by_phases, has_few_columns, is_spread, strides_of
from .section import Section

Choose: TypeAlias = Callable[["Contraction"], tuple[tensor.TensorTile, int]]
"""Chooses the tile of a contraction on tensor cores, and its split-K factor."""


def by_table(contraction: Contraction) -> tuple[tensor.TensorTile, int]:
    return tensor_tiles.choose(contraction.typical, contraction.features)


class Contraction:
    """The kernels of a contraction. Without `is_faster`, tensor cores are used if they are estimated to be faster.

    Attributes:
        result: placeholder for the sums in epilogues, an array of the result's data type and shape.
        arranged: rearranged constants, which replace sources.
        orderings: preceding kernels that rearrange operands that are not constants.
        method: "tiled"; "tensor" on tensor cores; "thin" for a matrix and a few vectors; "narrow" for few output channels.
        splits: the split-K factor, if tiled or on tensor cores; its maximum if sizes have names.
        has_names: whether sizes have names.
        combined: the contractions of the epilogue, including this one.
    """

    def __init__(
        self,
        problem: Problem,
        result: Input,
        constants: Mapping[Input, np.ndarray],
        features: Features,
        choose: Choose = by_table,
        is_faster: bool | None = None,
    ) -> None:
        self.result, self.features = result, features
        self.combined: tuple[Contraction, ...] = (self,)
        problem, phase_constants = _divide_filter(problem, constants)
        self.has_names = has_names(problem)
        on_tensor_cores = tensor.suits(problem, features) and (not self.has_names or may_have_names(problem))
        on_tensor_cores = on_tensor_cores and _is_in_words(problem, constants)
        self.problem, self.arranged = self._arrange(problem, constants, phase_constants, on_tensor_cores)
        if on_tensor_cores and not (tensor_tiles.is_faster(self.typical, features) if is_faster is None else is_faster):
            on_tensor_cores = False
            self.problem, self.arranged = self._arrange(problem, constants, phase_constants, on_tensor_cores)
        self.orderings = terms.orderings(self.problem, self.arranged, features) if on_tensor_cores else []
        for ordering in self.orderings:
            self.problem = ordering.apply(self.problem)
        narrow = "narrow" if is_narrow(self.problem) else "tiled"
        self.method = "tensor" if on_tensor_cores else "thin" if is_thin(self.problem) else narrow
        self.tile: tiled.Tile | tensor.TensorTile
        self.tile, self.splits = choose(self) if on_tensor_cores else tiles.choose(self.typical, features)

    @property
    def parts(self) -> Dimension:
        """The number of parts of a sum, which depends on sizes with names."""
        return parts_for(self.problem, self.tile, self.splits, self.features) if self.has_names else self.splits

    @property
    def typical(self) -> Problem:
        """The problem for cost models, with numbers."""
        return at_estimates(self.problem) if self.has_names else self.problem

    @property
    def results(self) -> tuple[Input, ...]:
        return tuple(part.result for part in self.combined)

    @property
    def sources(self) -> tuple[Input, ...]:
        sides = (side for part in self.combined for side in (part.problem.left, part.problem.right))
        return tuple(dict.fromkeys(source for side in sides for source in _sources_of(side)))

    @property
    def has_constant_matrix(self) -> bool:
        problem = self.problem
        return (problem.left if has_few_columns(problem) else problem.right).source in self.arranged

    def beside(self, other: Contraction) -> Contraction | None:
        """Merge two contractions for one epilogue; None if one kernel cannot compute both.

        Both must be GEMVs that read the same few vectors, with equal result shapes.
        """
        combined = tuple(dict.fromkeys((*self.combined, *other.combined)))
        if combined == self.combined:
            return self
        if len(combined) > MAX_COMBINED or {part.method for part in combined} != {"thin"}:
            return None
        if len({_without_matrix(part.problem) for part in combined}) > 1:
            return None
        both = copy(self)
        both.combined = combined
        return both

    @property
    def read(self) -> tuple[Input, ...]:
        """All arrays that the kernels read, without those that `orderings` write."""
        sides = [side for part in self.combined for side in (part.problem.left, part.problem.right)]
        rests = [m.rest for m in sides if isinstance(m, Matrix) and m.rest is not None]
        written = {result for ordering in self.orderings for result in ordering.results}
        sources = [source for source in (*self.sources, *rests) if source not in written]
        return (*sources, *(ordering.matrix.source for ordering in self.orderings))

    def _arrange(
        self,
        problem: Problem,
        constants: Mapping[Input, np.ndarray],
        phase_constants: Mapping[Input, GpuConstant],
        on_tensor_cores: bool,
    ) -> tuple[Problem, dict[Input, GpuConstant]]:
        """Rearrange constants in the order in which kernels read them."""
        arranged, sides, shared = dict(phase_constants), [problem.left, problem.right], keys_of_shared()
        originals = {source: GpuConstant.of(array) for source, array in constants.items()}
        for k, side in enumerate(sides):
            if isinstance(side, Matrix) and side.quantized is not None:
                if set(side.buffers) <= originals.keys():
                    sides[k], arrays = in_words(side, originals, self.features)
                    arranged |= arrays
            elif isinstance(side, Matrix) and on_tensor_cores:
                constant = arranged.pop(side.source, None) or originals.get(side.source)
                if constant is not None:
                    if shared is not None and sharing.may_share(problem):
                        sides[k], arrays = sharing.for_tensor_cores(side, problem, constant, self.features, shared)
                    else:
                        form = terms.form_of(problem, self.features)
                        sides[k], arrays = terms.by_term(side, problem, constant, form)
                    arranged |= arrays
            elif isinstance(side, Matrix) and side.source in originals:
                constant = originals[side.source]
                is_gemv = is_thin(problem) and _has_many_lines(side, problem)
                if shared is not None and sharing.may_share(problem) and (is_gemv or not is_thin(problem)):
                    sides[k], arrays = sharing.for_sums(side, problem, constant, shared)
                    arranged |= arrays
                elif is_gemv and is_multiple(problem.terms, 4):
                    sides[k], arrays = terms.by_term(side, problem, constant, "")
                    arranged |= arrays
                else:
                    arrange = _by_line if not is_narrow(problem) else _by_group if _is_grouped(problem) else _by_channel
                    matrix, constant = arrange(side, problem, constant)
                    arranged[matrix.source] = constant
                    sides[k] = replace(matrix, is_widened=side.is_widened)
        return replace(problem, left=sides[0], right=sides[1]), arranged

    def kernels(self, epilogue: Formula | None, title: str) -> list[GpuKernel]:
        """The kernels, in order; without an `epilogue`, they store the sums in `result`.

        The epilogue has one output, whose body loads `result` at the written position, and possibly other arrays.
        """
        problem, features = self.problem, self.features
        end = self._epilogue(epilogue, title)
        if isinstance(self.tile, tensor.TensorTile):
            tile = self.tile
            if self.splits == 1 and _is_long(end.body):
                tile = tensor_tiles.with_small_epilogue(self.typical, tile, features)
            is_short = tensor_tiles.is_short(self.typical, tile, self.splits, features)
            kernel = tensor.TensorKernel(problem, tile, self.parts, features, is_short)
            return [*self.ordering_kernels(title), *self._on_tensor_cores(end, kernel, title)]
        if self.method == "thin":
            return self._thin(end, title)
        module = GpuModule(features)
        size = problem.comment(module)
        sides = zip("ab", (problem.left, problem.right), strict=True)
        a, b = readers = [reader_of(name, side, features) for name, side in sides]
        if self.method == "narrow":
            parts, groups = narrow(problem, a, b, module)
            comment = f"{size}; an invocation for each position"
            return self._finish(end, comment, readers, module, parts, groups, title, vectors=False)
        parts, groups = tiled.body(problem, self.tile, a, b, self.parts, features.dialect, module)
        comment = f"{size}; tiles of {self.tile}"
        if self.splits == 1:
            return self._finish(end, comment, readers, module, parts, groups, title, vectors=True)
        sums = ElementWriter(partial_sums(problem, self.parts), features, True)
        parts = [put_partial(problem, module), *parts]
        comment += f", {self.splits} parts"
        summing = assemble(title, comment, readers, [sums], module, parts, groups)
        return [summing, *self._add_parts(end, sums.buffer, title)]

    def ordering_kernels(self, title: str) -> list[GpuKernel]:
        return [ordering.kernel(title, self.features) for ordering in self.orderings]

    def _thin(self, end: Epilogue, title: str) -> list[GpuKernel]:
        is_constant = all(part.has_constant_matrix for part in self.combined)
        section = Section(tuple(part.problem for part in self.combined), end, title, is_constant)
        if end.can_store(self.features, section.vectors(self.features)):
            return [thin_kernel([section], self.features)]
        ends, last = end.as_kernels(title, self.features)
        pairs = zip(section.problems, ends, strict=True)
        sections = [Section((problem,), single, title, is_constant) for problem, single in pairs]
        return [thin_kernel(sections, self.features), *last]

    def _on_tensor_cores(self, end: Epilogue, kernel: tensor.TensorKernel, title: str) -> list[GpuKernel]:
        if self.splits > 1:
            sums = partial_sums(self.problem, self.parts)
            return [kernel.partial(sums, title), *self._add_parts(end, sums, title)]
        try:
            return [kernel.finishing(end, title)]
        except UnsupportedError:
            (end,), last = end.as_kernels(title, self.features)
            return [kernel.finishing(end, title), *last]

    def _add_parts(self, end: Epilogue, sums: Buffer, title: str) -> list[GpuKernel]:
        comment, readers = f"adds up {self.splits} parts of each sum", [ElementReader("parts", sums, self.features, 4)]
        module = GpuModule(self.features)
        adding, groups = addition(self.problem, self.parts, self.splits, module)
        return self._finish(end, comment, readers, module, [adding], groups, title, vectors=True)

    def _finish(
        self,
        end: Epilogue,
        comment: str,
        readers: Sequence[ElementReader],
        module: GpuModule,
        parts: Sequence[Part],
        groups: tuple[int, int, int],
        title: str,
        vectors: bool,
    ) -> list[GpuKernel]:
        """The kernel of `parts` that calls `put`, and further kernels if it cannot store the result."""
        last = list[GpuKernel]()
        if not end.can_store(self.features, vectors):
            (end,), last = end.as_kernels(title, self.features)
        functions, writer = end.functions(module, self.features, vectors)
        return [assemble(title, comment, readers, [writer], module, [*functions, *parts], groups), *last]

    def _epilogue(self, epilogue: Formula | None, title: str) -> Epilogue:
        if epilogue is None:
            axes = tuple(Index(size, k - self.result.desc.rank) for k, size in enumerate(self.result.desc.shape))
            return Epilogue(self.problem, (self.result,), self.result, axes, Load(self.result, axes))
        (output,) = epilogue.outputs
        fused = Epilogue(self.problem, self.results, output, output.axes, output.body)
        loads = [n for n in ir.walk(output.body) if isinstance(n, Load) and n.source in self.results]
        is_aligned = all(fused.is_aligned(load) for load in loads)
        assert is_aligned, f"{title}: the epilogue must read the result at the position that it writes"
        return fused


def _is_long(body: ir.Expr) -> bool:
    """Whether an epilogue calls a function that takes tens of instructions."""
    return any(isinstance(node, ir.Call) and node.name in DEAR for node in ir.walk(body))


def _divide_filter(problem: Problem, constants: Mapping[Input, np.ndarray]) -> tuple[Problem, dict[Input, GpuConstant]]:
    """Divide a strided transposed convolution with a constant filter by phases. Returns the problem and its new constants."""
    if problem.filter.source not in constants or not is_spread(problem) or is_narrow(problem):
        return problem, {}
    problem, source, filter = divide_by_phases(problem, GpuConstant.of(constants[problem.filter.source]))
    return problem, {source: filter}


def _has_many_lines(side: Matrix, problem: Problem) -> bool:
    """Whether a side of a GEMV has as many lines as the matrix."""
    return is_same_size(side.lines, problem.rows if has_few_columns(problem) else problem.columns)


def _without_matrix(problem: Problem) -> tuple[Problem, Hashable]:
    """A GEMV problem with the source of the vectors in place of the matrix, and the form of the matrix, for comparison."""
    left, right = problem.left, problem.right
    assert isinstance(left, Matrix)
    assert isinstance(right, Matrix)
    if has_few_columns(problem):
        return replace(problem, left=replace(left, source=right.source, rest=None)), None
    form = None if right.quantized is None else right.quantized.form
    return replace(problem, right=replace(right, source=left.source, rest=None, quantized=None)), form


def _sources_of(side: Matrix | ProblemWindow) -> tuple[Input, ...]:
    """The arrays of an operand, without the remainders for TF32x3."""
    quantized = side.quantized if isinstance(side, Matrix) else None
    return (side.source, *(() if quantized is None else quantized.buffers))


def _is_in_words(problem: Problem, constants: Mapping[Input, np.ndarray]) -> bool:
    """Whether quantized operands are constants, which have words."""
    sides = (problem.left, problem.right)
    quantized = [side for side in sides if isinstance(side, Matrix) and side.quantized is not None]
    return all(buffer in constants for side in quantized for buffer in side.buffers)


def _by_line(matrix: Matrix, problem: Problem, constant: GpuConstant) -> tuple[Matrix, GpuConstant]:
    """A constant matrix whose lines are contiguous, padded to whole vectors."""
    source, lines = matrix.source, matrix.lines
    padded = -(-lines // 4) * 4
    own = matrix.own_axes
    shape = (*(n for n, _ in own), problem.taps, problem.channels, padded)
    desc, stack = Desc(source.desc.data_type, shape), matrix.stack_in(shape)
    arranged = Matrix(Input(source.number, desc), padded, 1, padded, problem.channels * padded, stack)
    steps = (*(stride for _, stride in own), matrix.tap, matrix.step, matrix.stride)
    return arranged, layout.lay_out(constant, (*shape[:-1], lines), steps, shape)


def _is_grouped(problem: Problem) -> bool:
    """Whether adjacent invocations of `narrow` mostly compute the same group."""
    return problem.rows_are_channels and problem.stacks > 1


def _by_group(filter: Matrix, problem: Problem, constant: GpuConstant) -> tuple[Matrix, GpuConstant]:
    """A constant filter in which the taps of a group are contiguous: they come from memory in few lines of the cache."""
    source, shape = filter.source, (problem.stacks, filter.lines, problem.channels, problem.taps)
    group, line, channel, tap = strides_of(shape)
    desc, stack = Desc(source.desc.data_type, shape), ((problem.stacks, group),)
    arranged = Matrix(Input(source.number, desc), filter.lines, line, channel, tap, stack)
    ((_, step),) = filter.stack
    return arranged, layout.lay_out(constant, shape, (step, filter.stride, filter.step, filter.tap), shape)


def _by_channel(filter: Matrix, problem: Problem, constant: GpuConstant) -> tuple[Matrix, GpuConstant]:
    """A constant filter in which the output channels of all groups are contiguous."""
    source, groups, outputs = filter.source, problem.stacks, filter.lines
    shape = (problem.taps, problem.channels, groups * outputs)
    desc = Desc(source.desc.data_type, shape)
    strides = strides_of(shape)
    arranged = Matrix(Input(source.number, desc), outputs, 1, strides[1], strides[0], ((groups, outputs),))
    ((_, group),) = filter.stack
    steps = (filter.tap, filter.step, group, filter.stride)
    return arranged, layout.lay_out(constant, (*shape[:-1], groups, outputs), steps, shape)
