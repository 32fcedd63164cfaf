"""Kernels for tensor cores, in Triton: matrix products, and convolutions as products with the windows of an image.

A program computes a tile of the result, in steps of some terms. The lines of operand `a` are the first axis of the tile, the
lines of `b` the second axis. `a` is the left matrix, or the right one if `is_turned`. Lines and terms have shapes that
broadcast: [lines, 1] and [1, terms] for `a`, [1, lines] and [terms, 1] for `b`.

For TF32x3, the kernel splits the operands that `terms` has not split.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from ....core.graph import Desc
from ....core.guards import estimate
from ....core.sizes import Dimension, is_multiple, is_same_shape, is_same_size, may_exceed
from ....expr import ir
from ....expr.gpu import Buffer, Features, GpuKernel
from ....expr.gpu.triton import Position, Statements
from ....expr.ir import Expr, Input, Load, Source
from ..triton_kernel import TritonNumbers, mask_argument, triton_kernel
from .direct import is_narrow
from .epilogue import Epilogue
from .gemv import is_thin
from .problem import Matrix, Problem, ProblemWindow, data_type_of, is_float32, ravel, strides_of, unravel
from .tensor_expansion import QuantizedTile
from .terms import CUT_OFF, DIVIDED, ROUND, form_of, in_three, needs_order
from .text import python, stack_offset, window_axes

MIN_LINES = 16
"""Fewest rows, columns and terms of a tile."""
MIN_PRODUCTS = 1 << 23
"""Fewest products for which tensor cores save enough to wait for Triton, which compiles slower than NVRTC. An estimate."""
BAND = 8
"""Rows of tiles in a band. Concurrent programs of a band share operands in the cache, as in Triton's tutorial on matrix
products (https://triton-lang.org/main/getting-started/tutorials/03-matrix-multiplication.html)."""
MAX_WASTE = 0.25
"""Largest empty share of a step that ends with the channels of a tap. With more waste, steps cross the borders of taps, which
costs more index arithmetic per load. An estimate."""
MAX_HELD_STEPS = 8
"""The largest number of steps of a program that keeps the offsets of its loads in registers. The kernel repeats loads for each
stage, so that hoisted offsets shorten its text and compile time. Longer loops need these registers elsewhere."""
MAX_DOUBLED_STEPS = 5
"""The largest number of steps of a TF32x3 convolution that is limited to two stages. Loads of windows are long, and repeated
for each stage: with two stages the kernel compiles faster, and runs about as fast."""


@dataclass(frozen=True, slots=True)
class TensorTile:
    """The tile of a program: rows, columns and terms per step. The current step is also a pipeline stage."""

    rows: int
    columns: int
    terms: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns} x {self.terms}"


def suits(problem: Problem, features: Features) -> bool:
    """Whether tensor cores can compute a contraction, and may be worth the compile time."""
    if features.tensor_cores is None or problem.is_integer or is_thin(problem) or is_narrow(problem):
        return False
    image = problem.image
    if isinstance(image, ProblemWindow) and image.transposed and max(image.strides) > 1:
        return False  # unless `divide_by_phases` was applied
    types = {data_type_of(side) for side in (problem.left, problem.right)}
    stacks, rows, columns, count = map(estimate, (problem.stacks, problem.rows, problem.columns, problem.terms))
    small = any(size < MIN_LINES for size in (rows, columns, count))
    products = stacks * rows * columns * count
    return not small and products >= MIN_PRODUCTS and types in ({"float32"}, {"float16"})


def _is_same(one: Desc, other: Desc) -> bool:
    """Whether arrays have equal shapes for all sizes, and equal types."""
    return type(one) is type(other) and one.data_type == other.data_type and is_same_shape(one.shape, other.shape)


class TensorSteps:
    """The steps of the loop over terms.

    Args:
        number: returns the text of a dimension.

    Attributes:
        by_tap: whether all terms of a step belong to one tap.
        blocks: steps per tap, if `by_tap`.
        ragged: whether a step may have terms beyond the last.
    """

    def __init__(self, problem: Problem, terms: int, number: Callable[[Dimension], str] = str) -> None:
        self.problem, self.terms, self.number = problem, terms, number
        self.blocks = -(-problem.channels // terms)
        self.by_tap = problem.taps == 1 or problem.channels >= (1 - MAX_WASTE) * self.blocks * terms
        self.count = problem.taps * self.blocks if self.by_tap else -(-problem.terms // terms)
        self.ragged = not is_multiple(problem.channels if self.by_tap else problem.terms, terms)

    def lines(self) -> Iterator[str]:
        """Define the tap and the channels of a step, for both operands."""
        blocks = self.number(self.blocks) if self.by_tap else ""
        if self.by_tap:
            yield f"tap = step // {blocks}"
        yield f"begin = {f'step % {blocks}' if self.by_tap else 'step'} * {self.terms}"
        for side in "ab":
            if self.by_tap:
                yield f"{side}_channel = begin + {self.numbers(side)}"
            else:
                yield f"{side}_term = begin + {self.numbers(side)}"
                yield f"{side}_tap = {side}_term // {self.problem.channels}"
                yield f"{side}_channel = {side}_term % {self.problem.channels}"

    def numbers(self, side: str) -> str:
        return f"tl.arange(0, {self.terms}){'[None, :]' if side == 'a' else '[:, None]'}"

    def tap(self, side: str) -> str:
        return "tap" if self.by_tap else f"{side}_tap"

    def exists(self, side: str) -> str:
        """The condition that a term exists; empty if all do."""
        if not self.ragged:
            return ""
        if self.by_tap:
            return f"{side}_channel < {self.number(self.problem.channels)}"
        return f"{side}_term < {self.problem.terms}"


class Operand:
    """Loads tiles of an operand.

    Args:
        side: "a" or "b".
        line: "row" or "column".
        exists: the condition that a line exists; empty if all do.
        is_short: whether a program has few steps.
        numbers: texts of numbers.
    """

    def __init__(
        self,
        matrix: Matrix | ProblemWindow,
        side: str,
        line: str,
        exists: str,
        steps: TensorSteps,
        is_short: bool,
        numbers: TritonNumbers,
    ) -> None:
        self.matrix, self.side, self.line, self.exists, self.steps = matrix, side, line, exists, steps
        self.problem, self.number, self.numbers = steps.problem, numbers.number, numbers
        is_flat = isinstance(matrix, Matrix) and is_same_size(matrix.tap, matrix.step * self.problem.channels)
        self.term = "channel" if steps.by_tap or not is_flat else "term"
        self.is_held = is_short and (steps.by_tap or is_flat)

    def start(self) -> Iterator[str]:
        yield from self._start()
        if self.is_held:
            yield f"{self.side}_held = {self.side}_start + {self.steps.numbers(self.side)} * {self.number(self.matrix.step)}"

    def _start(self) -> Iterator[str]:
        matrix, side, line, number = self.matrix, self.side, self.line, self.number
        offset = python(stack_offset(matrix, "stack", self.problem.stacks, self.numbers))
        if isinstance(matrix, Matrix):
            yield f"{side}_start = {offset} + {line} * {number(matrix.stride)}"
            return
        back = "+" if matrix.transposed else "-"
        batch, position = "0", line
        if may_exceed(matrix.batches, 1):
            pixels = number(prod(matrix.output))
            batch, position = f"{line} // {pixels} * {number(matrix.batch)}", f"{line} % {pixels}"
        names = [f"{side}_{axis}" for axis in window_axes(matrix)]
        places = unravel(position, matrix.output, True, number)
        for name, place, step, before in zip(names, places, matrix.strides, matrix.before, strict=True):
            yield f"{name} = {python(place)} * {step} {back} {number(before)}"
        pixel = f"({ravel(names, list(map(number, matrix.size)))})"
        # Triton vectorises loads if it sees that pixels are adjacent.
        if max(matrix.strides) == 1 and is_same_shape(matrix.output[1:], matrix.size[1:]):
            pads = zip(matrix.before, strides_of(matrix.size), strict=True)
            pixel = f"({position} {back} {number(sum(before * below for before, below in pads))})"
        yield f"{side}_start = {offset} + {batch} + {pixel} * {number(matrix.pixel)}"

    def load(self) -> Iterator[str]:
        matrix, side, tap, number = self.matrix, self.side, self.steps.tap(self.side), self.number
        conditions = [self.exists, self.steps.exists(side)]
        of_term = number(matrix.step)
        offset = f"begin * {of_term}" if self.is_held else f"{side}_start + {side}_{self.term} * {of_term}"
        if isinstance(matrix, Matrix):
            if self.term == "channel" and self.problem.taps > 1:
                offset += f" + {tap} * {number(matrix.tap)}"
        else:
            ahead = "-" if matrix.transposed else "+"
            names = [f"{side}_{name}" for name in ("deep", "down", "right")[-len(matrix.size) :]]
            places = unravel(tap, matrix.kernel, True, str)
            for name, place, step in zip(names, places, matrix.dilations, strict=True):
                yield f"{name} = {python(place)} * {step}"
            offset += f" {ahead} ({ravel(names, list(map(number, matrix.size)))}) * {number(matrix.pixel)}"
            if not matrix.inside:
                for axis, moved, size in zip(window_axes(matrix), names, matrix.size, strict=True):
                    at = f"{side}_{axis} {ahead} {moved}"
                    conditions += [f"{at} >= 0", f"{at} < {number(size)}"]
        mask = mask_argument(conditions)
        loaded = {f"{side}_tile": side}
        if isinstance(matrix, Matrix) and matrix.rest is not None:
            loaded[f"{side}_rest"] = f"{side}_rests"
        for name, pointer in loaded.items():
            at = f"{pointer} + ({offset})" + (f" + {side}_held" if self.is_held else "")
            yield f"{name} = tl.load({at}{f'{mask}, other=0.0' if mask else ''})"
        if isinstance(matrix, Matrix) and matrix.is_widened:
            yield f"{side}_tile = tl.cast({side}_tile, tl.float32)"


def is_turned(problem: Problem, features: Features) -> bool:
    """Whether lines of the right matrix are the first axis of a tile.

    Tensor cores read the first operand from registers, where it can be split, and can have any order. They read the second
    operand from shared memory, so the second operand should be split already, and should have contiguous terms.
    """
    may_be_first = in_three(problem, features) or needs_order(problem, features)
    return may_be_first and is_same_size(problem.left.step, 1) and not is_same_size(problem.right.step, 1)


class TensorKernel:
    """A kernel for tensor cores."""

    def __init__(
        self, problem: Problem, tile: TensorTile, splits: Dimension, features: Features, starts_early: bool
    ) -> None:
        assert features.tensor_cores is not None
        self.starts_early = starts_early
        self.problem, self.tile, self.splits, self.cores = problem, tile, splits, features.tensor_cores
        self.in_three = in_three(problem, features)
        self.numbers = TritonNumbers()
        self.steps = TensorSteps(problem, tile.terms, self.numbers.number)
        self.form = form_of(problem, features)
        self.is_turned = is_turned(problem, features)
        self.cuts_off = needs_order(problem, features) and not is_same_size(self._sides()[0].step, 1)
        self.is_divided = not (isinstance(splits, int) and splits == 1)
        self.share = -(-self.steps.count // splits)
        few = estimate(self.share)
        is_doubled = self.in_three and isinstance(problem.right, ProblemWindow) and few <= MAX_DOUBLED_STEPS
        self.is_short = few <= MAX_HELD_STEPS
        self.stages = min(tile.stages, 2) if is_doubled else tile.stages
        self.down, self.across = -(-problem.rows // tile.rows), -(-problem.columns // tile.columns)
        lines = {"row": (problem.rows, tile.rows), "column": (problem.columns, tile.columns)}
        self.inside = {
            line: "" if is_multiple(size, step) else f"{line} < {self.numbers.number(size)}"
            for line, (size, step) in lines.items()
        }
        self.quantized = self._expansion()

    def _expansion(self) -> QuantizedTile | None:
        """The loads of a quantized right operand, whose terms are contiguous."""
        right = self.problem.right
        if not isinstance(right, Matrix) or right.quantized is None:
            return None
        assert not self.is_turned
        is_ragged, terms = bool(self.inside["column"]), self.problem.terms
        return QuantizedTile(right, is_ragged=is_ragged, terms=terms, step=self.tile.terms, form=self.form)

    @property
    def comment(self) -> str:
        return f"tensor cores, tiles of {self.tile}"

    def finishing(self, finish: Epilogue, title: str) -> GpuKernel:
        """The kernel that computes the result; `UnsupportedError` if Triton cannot compute the epilogue."""
        problem, others, numbers = self.problem, list[Input](), self.numbers
        for source in ir.sources(finish.body):
            assert isinstance(source, Input)
            if source is not finish.results[0]:
                others.append(source)
        names: dict[Source, str] = {source: f"x{k}" for k, source in enumerate(others)}
        parts = "row", "column"
        texts = [python(text) for text in problem.axes("stack", "row", "column", numbers)]
        axes = {
            axis: Position(f"i{k}", frozenset(part for part in parts if re.search(rf"\b{part}\b", text)))
            for k, (axis, text) in enumerate(zip(finish.axes, texts, strict=True))
        }
        inside, limits = dict(self.inside), problem.limits("stack", "row", "column", numbers)
        if limits:
            along = "column" if problem.rows_are_channels else "row"
            inside[along] = " & ".join(f"({text})" for text in (inside[along], "exists") if text)
        mask = mask_argument(inside.values())
        texts_of: dict[Expr, str] = {}
        for node in ir.walk(finish.body):
            if isinstance(node, Load) and node.source is finish.results[0]:
                texts_of[node] = "total"
            elif isinstance(node, Load) and _is_same(node.source.desc, finish.target.desc) and finish.is_aligned(node):
                loaded = f"tl.load({names[node.source]} + at{f'{mask}, other=0' if mask else ''})"
                texts_of[node] = f"tl.cast({loaded}, tl.float32)" if node.type == "float16" else loaded
        statements = Statements(names, axes, inside, texts_of, number=numbers.number)
        value = statements.element_of(finish.body, finish.target.desc.data_type)
        places = [(python(text), numbers.number(size)) for text, size in limits]
        exists = " & ".join(f"({text} >= 0) & ({text} < {size})" for text, size in places)
        lines = [
            *([f"exists = {exists}"] if exists else []),
            f"at = {python(problem.flat_index('stack', 'row', 'column', numbers))}",
            *(f"i{k} = {text}" for k, text in enumerate(texts)),
            *statements.lines,
            f"tl.store(result + at, {value}{mask})",
        ]
        return self._kernel(title, others, finish.target, statements.library, lines)

    def partial(self, target: Buffer, title: str) -> GpuKernel:
        """The kernel that computes split-K partial sums, [splits * stacks, rows, columns]."""
        stacks, rows, width = map(self.numbers.number, (self.problem.stacks, self.problem.rows, target.desc.shape[-1]))
        line = f"((part * {stacks} + stack) * {rows} + row)"
        return self._kernel(
            title,
            [],
            target,
            [],
            [f"tl.store(result + {line} * {width} + column, total{mask_argument(self.inside.values())})"],
        )

    def _kernel(
        self, title: str, others: Sequence[Input], target: Buffer, library: Sequence[str], finish: Sequence[str]
    ) -> GpuKernel:
        problem, sides = self.problem, dict(zip("ab", self._sides(), strict=True))
        read: dict[str, Buffer] = {side: matrix.source for side, matrix in sides.items()}
        read |= {f"{side}_rests": m.rest for side, m in sides.items() if isinstance(m, Matrix) and m.rest is not None}
        read |= {} if self.quantized is None else self.quantized.arguments
        arguments = {**read, **{f"x{k}": other for k, other in enumerate(others)}, "result": target}
        return triton_kernel(
            title,
            self.comment,
            arguments,
            [*library, *self._library()],
            [*self._place(), *self._sums(), *finish],
            programs=self.down * self.across * problem.stacks * self.splits,
            warps=self.tile.warps,
            stages=self.stages,
            cores=self.cores,
            starts_early=self.starts_early,
            sizes=self.numbers.sizes,
            is_multiple=problem.is_multiple,
        )

    def _library(self) -> Sequence[str]:
        """The functions that split or round elements."""
        if self.quantized is not None and self.form == "tf32":
            return ROUND
        return DIVIDED if self.in_three else CUT_OFF if self.cuts_off else ()

    def _place(self) -> Iterator[str]:
        """Statements that define the rows and columns of a program. Tiles are ordered by column within bands of rows."""
        number, stacks, tile = self.numbers.number, self.problem.stacks, self.tile
        tiles, down = number(self.down * self.across), number(self.down)
        yield "program = tl.program_id(0)"
        yield f"part = {f'program // {number(self.down * self.across * stacks)}' if self.is_divided else '0'}"
        yield f"stack = {f'program // {tiles} % {number(stacks)}' if may_exceed(stacks, 1) else '0'}"
        yield f"number = program % {tiles}"
        first_row, first_column = f"number % {down}", f"number // {down}"
        if may_exceed(self.down, BAND):
            band = number(BAND * self.across)
            yield f"first = number // {band} * {BAND}"
            yield f"height = tl.minimum({down} - first, {BAND})"
            yield f"within = number % {band}"
            first_row, first_column = "(first + within % height)", "within // height"
        axes = ("[None, :]", "[:, None]") if self.is_turned else ("[:, None]", "[None, :]")
        yield f"row = {first_row} * {tile.rows} + tl.arange(0, {tile.rows}){axes[0]}"
        yield f"column = {first_column} * {tile.columns} + tl.arange(0, {tile.columns}){axes[1]}"

    def _sides(self) -> tuple[Matrix | ProblemWindow, Matrix | ProblemWindow]:
        left, right = self.problem.left, self.problem.right
        return (right, left) if self.is_turned else (left, right)

    def _sums(self) -> Iterator[str]:
        steps, tile = self.steps, self.tile
        lines, sizes = ("row", "column"), (tile.rows, tile.columns)
        if self.is_turned:
            lines, sizes = ("column", "row"), (tile.columns, tile.rows)
        operands: list[Operand | QuantizedTile] = [
            Operand(matrix, side, line, self.inside[line], steps, self.is_short, self.numbers)
            for matrix, side, line in zip(self._sides(), "ab", lines, strict=True)
        ]
        if self.quantized is not None:
            operands[1] = self.quantized
        for operand in operands:
            yield from operand.start()
        yield f"total = tl.zeros({sizes}, tl.float32)"
        first, last = "0", self.numbers.number(steps.count)
        if self.is_divided:
            share = self.numbers.number(self.share)
            first, last = f"part * {share}", f"tl.minimum((part + 1) * {share}, {last})"
        yield f"for step in range({first}, {last}):"
        body = [*steps.lines(), *(line for operand in operands for line in operand.load()), *self._dots()]
        yield from (f"    {line}" for line in body)

    def _dots(self) -> Iterator[str]:
        kind, sides = self.cores.float32, dict(zip("ab", self._sides(), strict=True))
        if self.in_three:
            for side, matrix in sides.items():
                whole = isinstance(matrix, Matrix) and matrix.rest is not None
                names = f"{side}_tile, {side}_kept, {side}_rest"
                yield f"{side}_kept = {side}_tile" if whole else f"{names} = divided({side}_tile)"
            # Tensor cores truncate while accumulating, so only one step accumulates on them; `total` is added in float32.
            yield 'few = tl.dot(a_rest, b_kept, input_precision="tf32")'
            yield 'few = tl.dot(a_kept, b_rest, few, input_precision="tf32")'
            yield 'total += tl.dot(a_tile, b_tile, few, input_precision="tf32")'
        elif kind == "tf32" and all(map(is_float32, sides.values())):
            if self.cuts_off:
                # Triton copies an operand with arithmetic to registers in its own order, one without it to shared memory with
                # contiguous terms, 4 bytes at a time.
                yield "a_tile = cut_off(a_tile)"
            yield 'total = tl.dot(a_tile, b_tile, total, input_precision="tf32")'
        else:
            a, b = (
                f"tl.cast({s}_tile, tl.{kind})" if is_float32(matrix) else f"{s}_tile" for s, matrix in sides.items()
            )
            yield f"total = tl.dot({a}, {b}, total)"
