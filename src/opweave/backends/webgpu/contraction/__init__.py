"""Compute shaders for matrix products and convolutions, fused with the element-wise operations that follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ....dtypes import FLOATS
from ....expr import ir
from ....expr.ir import Expr, Index, Input, Load, Program
from ....expr.wgsl import Features, Kernel, Module
from ....graph import Desc, Node, Operand
from ....ops import convolution, matrix
from . import problem as problems, tiled
from .direct import Thin, is_narrow, is_thin, narrow
from .elements import Reader
from .epilogue import Finish, addition, assemble, partial, put_partial
from .problem import Matrix, Prepare, Problem
from .tiled import Tile
from .tiles import choose


class Contraction:
    """The kernels of a matrix product or a convolution.

    Attributes:
        operands: operands of the node, in the order of `inputs`.
        inputs: the buffer of each operand in the bindings of kernels.
        result: the buffer of the result in epilogues.
        prepared: functions that rearrange constant operands, by operand number.
        method: "tiled"; "thin" for a matrix and a few vectors; "narrow" for few output channels. Results that share
            words with their neighbours are always tiled.
        tile: the part of the result that a workgroup computes, if tiled.
        splits: number of workgroups that share the terms of each sum.
    """

    def __init__(
        self,
        operands: tuple[Operand, ...],
        inputs: tuple[Input, ...],
        result: Input,
        problem: Problem,
        after: After,
        prepared: dict[int, Prepare],
        tile: Tile,
        splits: int,
        features: Features,
    ) -> None:
        self.operands, self.inputs, self.result, self.prepared = operands, inputs, result, prepared
        self.problem, self.features, self._after = problem, features, after
        self.tile, self.splits = tile, splits
        self.method = "thin" if is_thin(problem) else "narrow" if is_narrow(problem) else "tiled"

    def kernels(self, epilogue: Program | None, title: str) -> list[Kernel]:
        """The kernels, in order.

        Args:
            epilogue: a program that computes the final element: the body of its only output loads `result` at its own
                position, and possibly other arrays. None stores the sum in `result`.
            title: for tables.
        """
        finish = self._finish(epilogue, title)
        direct = self._direct(finish, title)
        if direct is not None:
            return [direct]
        if self.splits > 1 or not finish.serves(self.features):
            return self._in_parts(finish, title)
        module = Module(self.features)
        end, writer = finish.text(module, self.features)
        a, b = self._readers()
        text = tiled.body(self.problem, self.tile, a, b, 1)
        groups = tiled.workgroups(self.problem, self.tile, 1)
        return [
            assemble(
                title, self._comment(), (a, b), finish.target, writer.declaration, module, end + "\n" + text, groups
            )
        ]

    def _direct(self, finish: Finish, title: str) -> Kernel | None:
        """A kernel for shapes that tiles do not suit; None for others."""
        problem, (a, b) = self.problem, self._readers()
        if self.method == "thin":
            thin = Thin(problem, a, b)
            text, groups, comment, fours = thin.text(), thin.workgroups, thin.comment, thin.vectors
        elif self.method == "narrow":
            text, groups = narrow(problem, a, b)
            comment, fours = "an invocation for each position", False
        else:
            return None
        if not finish.serves(self.features, fours):
            return None
        module = Module(self.features)
        end, writer = finish.text(module, self.features, fours)
        comment = f"{self._size()}; {comment}"
        return assemble(title, comment, (a, b), finish.target, writer.declaration, module, end + "\n" + text, groups)

    def _in_parts(self, finish: Finish, title: str) -> list[Kernel]:
        problem, splits = self.problem, self.splits
        parts = partial(problem, splits)
        a, b = self._readers()
        text = tiled.body(problem, self.tile, a, b, splits)
        groups = tiled.workgroups(problem, self.tile, splits)
        text = put_partial(problem) + "\n" + text
        first = assemble(title, self._comment(), (a, b), parts, "array<vec4<f32>>", Module(self.features), text, groups)
        if not finish.serves(self.features):
            return [first, *finish.apart(parts, title, self.features)]
        module = Module(self.features)
        end, writer = finish.text(module, self.features)
        text, groups = addition(problem, splits)
        reader = Reader("parts", parts, self.features)
        reader.width = 4
        comment = f"adds up {splits} parts of each sum"
        return [
            first,
            assemble(title, comment, (reader,), finish.target, writer.declaration, module, end + "\n" + text, groups),
        ]

    def _finish(self, epilogue: Program | None, title: str) -> Finish:
        if epilogue is None:
            axes = tuple(Index(size, k - self.result.desc.rank) for k, size in enumerate(self.result.desc.shape))
            return Finish(self.problem, self.result, self.result, axes, self._after(Load(self.result, axes)))
        (output,) = epilogue.outputs
        loads = [n for n in ir.walk(output.body) if isinstance(n, Load) and n.source is self.result]
        body = ir.substitute(output.body, {load: self._after(load) for load in loads})
        finish = Finish(self.problem, self.result, output, output.axes, body)
        own = all(finish.at_own_position(load) for load in loads)
        assert own, f"{title}: the epilogue must read the result at its own position"
        return finish

    def _readers(self) -> tuple[Reader, Reader]:
        p = self.problem
        return Reader("a", p.left.source, self.features), Reader("b", p.right.source, self.features)

    def _size(self) -> str:
        p = self.problem
        stacks = f"{p.stacks} times " if p.stacks > 1 else ""
        return f"{stacks}{p.rows} x {p.columns}, sums of {p.terms}"

    def _comment(self) -> str:
        split = f", {self.splits} parts" if self.splits > 1 else ""
        return f"{self._size()}; tiles of {self.tile}{split}"


After = Callable[[Load], Expr]
"""The rest of the operation after the sum: a bias, or the factors of gemm."""


def contraction(node: Node, features: Features) -> Contraction | None:
    """The kernels for a node; None if it is not a contraction, or exceeds the device's limit of workgroups.

    Args:
        node: an application of matmul, gemm, conv2d or conv_transpose2d.
        features: features and limits of the device.
    """
    if node.op not in (matrix.matmul, matrix.gemm, convolution.conv2d, convolution.conv_transpose2d):
        return None
    if any(operand.data_type not in FLOATS for operand in node.operands):
        return None
    operands = tuple(node.operands)
    inputs = [Input(number, operand.desc) for number, operand in enumerate(operands)]
    named = dict(zip((name for name, value in node.inputs.items() if value is not None), inputs, strict=True))
    desc = node.outputs[0].desc
    result = Input(len(inputs), desc)
    arguments = node.attributes
    if node.op in (matrix.matmul, matrix.gemm):
        flags = bool(arguments.get("a_transpose")), bool(arguments.get("b_transpose"))
        problem = problems.product(named["a"], named["b"], desc.shape, *flags)
        after = _gemm_end(named.get("c"), arguments.get("alpha", 1.0), arguments.get("beta", 1.0))
    else:
        transposed = node.op is convolution.conv_transpose2d
        problem = problems.window(named["input"], named["filter"], desc.shape, arguments, transposed=transposed)
        after = _bias(named.get("bias"), arguments["input_layout"].index("c"))
    prepared: dict[int, Prepare] = {}
    number = 1  # the second operand, the filter of a convolution
    if problems.is_spread(problem) and not is_narrow(problem) and operands[number].is_constant:
        problem, prepared[number] = problems.divided(problem)
        inputs[number] = (problem.left if problem.layout.kind == "nchw" else problem.right).source
    sides = [problem.left, problem.right]
    for k, side in enumerate(sides):
        if isinstance(side, Matrix) and operands[side.source.number].is_constant and side.source.number not in prepared:
            number = side.source.number
            sides[k], prepared[number] = (_by_channel if is_narrow(problem) else _laid_out)(side, problem)
            inputs[number] = sides[k].source
    problem = replace(problem, left=sides[0], right=sides[1])
    chosen = choose(problem, features)
    if chosen is None:
        return None
    return Contraction(operands, tuple(inputs), result, problem, after, prepared, *chosen, features)


def _laid_out(matrix: Matrix, problem: Problem) -> tuple[Matrix, Prepare]:
    """Rearrange a constant matrix so that lines are contiguous, padded to whole vectors; return it with the function
    that does so.
    """
    source, lines = matrix.source, matrix.lines
    padded = -(-lines // 4) * 4
    own = [(n, stride) for n, stride in matrix.stack if stride and n > 1]
    shape = (*(n for n, _ in own), problem.taps, problem.channels, padded)
    strides = problems.strides_of(shape)
    fresh = iter(strides)
    stack = tuple((n, next(fresh) if stride and n > 1 else 0) for n, stride in matrix.stack)
    desc = Desc(source.desc.data_type, shape)
    laid = Matrix(Input(source.number, desc), padded, 1, padded, problem.channels * padded, stack)

    def prepare(array: np.ndarray) -> np.ndarray:
        flat, bytes = np.ascontiguousarray(array).reshape(-1), array.itemsize
        steps = (*(stride for _, stride in own), matrix.tap, matrix.step, matrix.stride)
        view = np.lib.stride_tricks.as_strided(flat, (*shape[:-1], lines), [s * bytes for s in steps], writeable=False)
        return np.pad(view, [(0, 0)] * (len(shape) - 1) + [(0, padded - lines)])

    return laid, prepare


def _by_channel(filter: Matrix, problem: Problem) -> tuple[Matrix, Prepare]:
    """Rearrange a constant filter so that the output channels of all groups are contiguous; return it with the function
    that does so.
    """
    source, groups, outputs = filter.source, problem.stacks, filter.lines
    shape = (problem.taps, problem.channels, groups * outputs)
    desc = Desc(source.desc.data_type, shape)
    strides = problems.strides_of(shape)
    laid = Matrix(Input(source.number, desc), outputs, 1, strides[1], strides[0], ((groups, outputs),))
    ((_, group),) = filter.stack

    def prepare(array: np.ndarray) -> np.ndarray:
        flat, bytes = np.ascontiguousarray(array).reshape(-1), array.itemsize
        steps = [stride * bytes for stride in (filter.tap, filter.step, group, filter.stride)]
        view = np.lib.stride_tricks.as_strided(flat, (*shape[:-1], groups, outputs), steps, writeable=False)
        return view.reshape(shape)

    return laid, prepare


def _bias(bias: Input | None, axis: int) -> After:
    if bias is None:
        return lambda load: load
    return lambda load: ir.call("add", load, Load(bias, (load.parts[axis],)))


def _gemm_end(c: Input | None, alpha: float, beta: float) -> After:
    def after(load: Load) -> Expr:
        value: Expr = load
        if alpha != 1:
            value = ir.call("mul", value, ir.number(alpha, load.type))
        if c is None:
            return value
        own = load.parts[len(load.parts) - c.desc.rank :]
        zero = ir.Const(0, "index")
        addend: Expr = Load(c, tuple(zero if n == 1 else i for n, i in zip(c.desc.shape, own, strict=True)))
        if beta != 1:
            addend = ir.call("mul", addend, ir.number(beta, load.type))
        return ir.call("add", value, addend)

    return after
