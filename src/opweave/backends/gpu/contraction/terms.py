"""Reorder operands so that the terms of a line are contiguous, as tensor cores and GEMV kernels read them fastest.

Constants are reordered when a graph is built, other operands by a kernel before the product, if that saves time. For TF32x3,
each element is split into a TF32 part and a remainder. For bfloat16 or float16, elements are rounded to half their bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, TypeAlias

import numpy as np

from ....core.graph import Desc
from ....core.guards import estimate
from ....core.sizes import is_same_size
from ....expr.gpu import Features, GpuKernel
from ....expr.gpu.triton import Bfloat16
from ....expr.ir import Input
from ..constants import GpuConstant
from ..triton_kernel import TritonNumbers, triton_kernel
from . import layout
from .problem import Matrix, Problem, ProblemWindow, is_float32
from .text import python, stack_offset

Form: TypeAlias = Literal["", "divided", "tf32", "bfloat16", "float16"]
"""Conversion of reordered elements: none, the TF32x3 split ("divided"), or rounding to a type."""

ROUNDED = ("bfloat16", "float16")

MAX_TF32 = 3.4e38
"""Smallest magnitude that is not split: rounding to TF32 could give infinity, and infinity and NaN have no remainder."""

CUT = 3.4e-4
"""The mean share of a float32 that tensor cores cut off, as they do not round to TF32: half a step of 2**-10, over the mean of
fractions in [1, 2) with uniform logarithms. If both operands are cut off, products are 0.07% too small, and the result of 50
convolutions is 2% too small. So a constant operand is rounded beforehand, and made larger by the mean share, which makes
products right on average."""

IN_ORDER = ("sm_90",)
"""Architectures whose tensor cores read TF32 from shared memory only with contiguous terms (wgmma in
https://docs.nvidia.com/cuda/parallel-thread-execution). Other orders are copied to shared memory 4 bytes at a time."""
RATES = {"tf32": (95.0, 267.0), "tf32x3": (67.8, 78.0), **dict.fromkeys(ROUNDED, (250.0, 648.0))}
"""TFLOP/s of a 4096 matmul on an NVIDIA H200, before and after reordering, by arithmetic. For TF32, the right operand has
contiguous lines before, contiguous terms after; rates are the best of eight Triton tiles. For rounded types, both operands are
float32 before, rounded after. Rates of rounded types and 67.8 come from an earlier run of `python -m benchmarks cuda`."""
COPIED_BYTES_PER_US = 3.5e6
"""Bytes that a kernel reads and writes per microsecond: three quarters of an H200's memory bandwidth. An estimate."""
START_US = 2.0
"""Microseconds that another kernel adds to a CUDA graph, without memory traffic. An estimate."""
TILE = 64
WARPS = 8
"""Warps per program of the reordering kernel: each thread loads four vectors of 16 bytes."""


def form_of(problem: Problem, features: Features) -> Form:
    assert features.tensor_cores is not None
    kind = features.tensor_cores.float32
    sides = [is_float32(side) for side in (problem.left, problem.right)]
    if not any(sides):
        return ""
    if kind == "tf32":
        return "tf32" if all(sides) else ""
    return "divided" if kind == "tf32x3" else kind


def needs_order(problem: Problem, features: Features) -> bool:
    """Whether tensor cores read operands from shared memory only with contiguous terms, and are faster with one in registers.

    Windows at a stride of 2 took 1.2 to 2.2 times as long in registers, on an H200.
    """
    right = problem.right
    is_strided = isinstance(right, ProblemWindow) and (right.transposed or right.strides[-1] != 1)
    is_tf32 = form_of(problem, features) == "tf32" and features.architecture in IN_ORDER
    return is_tf32 and not (is_strided and right.step != 1)


def in_three(problem: Problem, features: Features) -> bool:
    return form_of(problem, features) == "divided"


def in_bfloat16(array: np.ndarray) -> np.ndarray:
    """The bits of elements rounded to bfloat16, to nearest even; NaN has the bits of NVIDIA's conversion."""
    bits = array.view(np.uint32)
    result = ((bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) >> 16).astype(np.uint16)
    result[np.isnan(array)] = 0x7FFF
    return result


def in_float16(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return array.astype(np.float16)


def round_to_tf32(array: np.ndarray) -> np.ndarray:
    """Elements of magnitudes below `MAX_TF32`, rounded to TF32 (10 fraction bits), to nearest."""
    return ((array.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def in_tf32(array: np.ndarray) -> np.ndarray:
    """Elements of a constant rounded to TF32, to nearest, times 1 + `CUT`; infinities and NaN stay as they are."""
    with np.errstate(over="ignore"):
        return np.where(np.abs(array) < MAX_TF32, round_to_tf32(array * np.float32(1 + CUT)), array)


ROUND = f"""
@triton.jit
def rounded(x):
    bits = (tl.cast(x, tl.int32, bitcast=True) + 0x1000) & -0x2000
    return tl.where(tl.abs(x) < {MAX_TF32}, tl.cast(bits, tl.float32, bitcast=True), x)
""".strip().splitlines()
"""A Triton function that rounds x like `round_to_tf32`."""

CUT_OFF = """
@triton.jit
def cut_off(x):
    return tl.cast(tl.cast(x, tl.int32, bitcast=True) & -0x2000, tl.float32, bitcast=True)
""".strip().splitlines()
"""A Triton function that cuts off the bits of x that tensor cores ignore in TF32, which changes no product."""

DIVIDED = f"""
@triton.jit
def divided(x):
    is_whole = tl.abs(x) < {MAX_TF32}
    bits = (tl.cast(x, tl.int32, bitcast=True) + 0x1000) & -0x2000
    kept = tl.where(is_whole, tl.cast(bits, tl.float32, bitcast=True), tl.where(x < 0, -1.0, 1.0))
    return tl.where(is_whole, kept, x), kept, tl.where(is_whole, x - kept, 0.0)
""".strip().splitlines()
"""A Triton function that splits x like `round_to_tf32`, and returns (factor of the main product, factor of products with a
remainder, remainder). An x that is not split is ±1 in products with a remainder, because infinity * 0 would be NaN."""


def by_term(
    matrix: Matrix, problem: Problem, constant: GpuConstant, form: Form
) -> tuple[Matrix, dict[Input, GpuConstant]]:
    """Reorder a constant matrix, and return the new matrix and its constants.

    Elements are split only if all magnitudes are below `MAX_TF32`.
    """
    if matrix.is_widened:
        form = ""
    if form == "divided" and not GpuConstant.of(constant.source).holds(layout.all_below, MAX_TF32):
        form = ""
    return in_form(matrix, problem, constant, form)


def in_form(
    matrix: Matrix, problem: Problem, constant: GpuConstant, form: Form
) -> tuple[Matrix, dict[Input, GpuConstant]]:
    """Reorder a constant matrix like `by_term`, always in this form, without a check of the elements."""
    ordered = _order(matrix, problem, form)
    *own, lines, _ = ordered.source.desc.shape
    sizes = (*own, lines, problem.taps, problem.channels)
    steps = (*(stride for _, stride in matrix.own_axes), matrix.stride, matrix.tap, matrix.step)
    if form == "bfloat16":
        constant = constant.then(layout.convert, np.uint16, in_bfloat16)
    elif form == "float16":
        constant = constant.then(layout.convert, np.float16, in_float16)
    elif form == "tf32":
        constant = constant.then(layout.convert, np.float32, in_tf32)
    arranged = layout.lay_out(constant, sizes, steps, ordered.source.desc.shape, is_fresh=form == "divided")
    if ordered.rest is None:
        return ordered, {ordered.source: arranged}
    kept, rest = layout.in_parts(arranged, round_to_tf32)
    return ordered, {ordered.rest: rest, ordered.source: kept}


def _order(matrix: Matrix, problem: Problem, form: Form) -> Matrix:
    """The matrix in new arrays, with contiguous terms and lines aligned to 16 bytes."""
    own, data_type = matrix.own_axes, "float16" if form in ROUNDED else matrix.source.desc.data_type
    whole = 4 if data_type == "float32" else 8
    padded = -(-problem.terms // whole) * whole
    shape = (*(n for n, _ in own), matrix.lines, padded)
    stack = matrix.stack_in(shape)
    desc = Bfloat16(shape) if form == "bfloat16" else Desc(data_type, shape)
    source, rest = (Input(matrix.source.number, desc) for _ in range(2))
    remainders = rest if form == "divided" else None
    widened = matrix.is_widened
    return Matrix(source, matrix.lines, padded, 1, problem.channels, stack, remainders, is_widened=widened)


@dataclass(frozen=True)
class Ordering:
    """A kernel that reorders an operand of a problem, with a conversion of the elements."""

    matrix: Matrix
    ordered: Matrix
    problem: Problem
    form: Form

    @classmethod
    def of(cls, matrix: Matrix, problem: Problem, form: Form) -> Ordering:
        return cls(matrix, _order(matrix, problem, form), problem, form)

    @property
    def results(self) -> tuple[Input, ...]:
        return (self.ordered.source,) if self.ordered.rest is None else (self.ordered.source, self.ordered.rest)

    def apply(self, problem: Problem) -> Problem:
        left, right = (self.ordered if side is self.matrix else side for side in (problem.left, problem.right))
        return replace(problem, left=left, right=right)

    @property
    def microseconds(self) -> float:
        moved = self.matrix.source.desc.byte_length + sum(result.desc.byte_length for result in self.results)
        return START_US + estimate(moved) / COPIED_BYTES_PER_US

    def kernel(self, title: str, features: Features) -> GpuKernel:
        assert features.tensor_cores is not None
        names = ("source", "kept", "rest")[: 1 + len(self.results)]
        arguments = dict(zip(names, (self.matrix.source, *self.results), strict=True))
        is_divided, is_rounded = self.form == "divided", self.form in ROUNDED
        label = f"terms in order{f', in {self.form}' if is_rounded else ''}"
        comment = f"{label}{', divided for three products of TF32' if is_divided else ''}"
        across, down = (-(-size // TILE) for size in (self.ordered.stride, self.matrix.lines))
        numbers = TritonNumbers()
        return triton_kernel(
            f"{title}: {label}",
            comment,
            arguments,
            DIVIDED if is_divided else ROUND if self.form == "tf32" else (),
            list(self._lines(across, down, numbers)),
            programs=across * down * prod(n for n, _ in self.matrix.own_axes),
            warps=WARPS,
            stages=1,
            cores=features.tensor_cores,
            written=len(self.results),
            sizes=numbers.sizes,
        )

    def _lines(self, across: int, down: int, numbers: TritonNumbers) -> Iterator[str]:
        matrix, number, own = self.matrix, numbers.number, self.matrix.own_axes
        stacks, channels = prod(n for n, _ in own), number(self.problem.channels)
        lines, padded = number(matrix.lines), number(self.ordered.stride)
        yield "program = tl.program_id(0)"
        yield f"stack = program // {number(across * down)}"
        yield f"line = program // {number(across)} % {number(down)} * {TILE} + tl.arange(0, {TILE})[:, None]"
        yield f"term = program % {number(across)} * {TILE} + tl.arange(0, {TILE})[None, :]"
        start = python(stack_offset(replace(matrix, stack=tuple(own)), "stack", stacks, numbers))
        at = f"term * {number(matrix.step)}"
        if self.problem.taps > 1:
            at = f"term // {channels} * {number(matrix.tap)} + term % {channels} * {number(matrix.step)}"
        inside = f"(line < {lines}) & (term < {number(self.problem.terms)})"
        yield f"x = tl.load(source + ({start} + line * {number(matrix.stride)} + {at}), mask={inside}, other=0.0)"
        yield f"at = (stack * {lines} + line) * {padded} + term"
        values = {"kept": "x"}
        if self.form in ROUNDED:
            values = {"kept": f"tl.cast(x, tl.{self.form})"}
        elif self.form == "tf32":
            values = {"kept": "rounded(x)"}
        elif self.form == "divided":
            yield "_, kept_part, rest_part = divided(x)"
            # The remainder of an x that is not split is x, so that infinity is multiplied by the other operand's TF32 part.
            yield f"rest_part = tl.where(tl.abs(x) < {MAX_TF32}, rest_part, x)"
            values = {"kept": "kept_part", "rest": "rest_part"}
        for name, value in values.items():
            yield f"tl.store({name} + at, {value}, mask=(line < {lines}) & (term < {padded}))"


def _is_narrow(side: Matrix | ProblemWindow) -> bool:
    """Whether an operand has fewer bits than its elements, and kernels convert them in registers."""
    return isinstance(side, Matrix) and (side.quantized is not None or side.is_widened)


def orderings(problem: Problem, constants: Collection[Input], features: Features) -> list[Ordering]:
    """The float32 operands of a product that kernels should reorder; `constants` are reordered already.

    TF32 reads both operands from shared memory. TF32x3 splits one operand in registers, in any order, and is fastest if the
    other operand is split before. bfloat16 and float16 operands are read from shared memory in any order, but a float32
    operand takes twice the bytes, and is rounded in registers at each read. Reordering saves no time if reading the operands
    from memory takes longer than the product.
    """
    assert features.tensor_cores is not None
    kind, form = features.tensor_cores.float32, form_of(problem, features)
    sides = [side for side in (problem.left, problem.right) if is_float32(side) and not _is_narrow(side)]
    products = estimate(problem.stacks * problem.rows * problem.columns * problem.terms)
    read = estimate(sum(side.source.desc.byte_length for side in (problem.left, problem.right))) / COPIED_BYTES_PER_US
    now, then = (max(read, 2 * products / 1e6 / rate) for rate in RATES[kind])
    saved = now - then
    if form in ROUNDED:
        candidates = [Ordering.of(side, problem, form) for side in sides if isinstance(side, Matrix)]
        # An estimate: each operand saves half the time.
        return [ordering for ordering in candidates if saved / 2 > ordering.microseconds]
    if features.architecture not in IN_ORDER:
        return []
    if form == "divided":
        if any(side.source in constants for side in sides):
            return []
        sides = sides[1:]
    across = [side for side in sides if side.source not in constants and not is_same_size(side.step, 1)]
    candidates = [Ordering.of(side, problem, form) for side in across if isinstance(side, Matrix)]
    is_whole = len(candidates) == len(across)  # images of convolutions keep their order
    return candidates if is_whole and saved > sum(ordering.microseconds for ordering in candidates) else []
