"""Epilogues of contraction kernels, as functions: `finish` computes an element of the result from its sum, and `put`
stores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....expr import ir
from ....expr.gpu import Block, Buffer, Features, Kernel, Module, kernels
from ....expr.gpu.dialect import Binding, Entry, Function, Part
from ....expr.gpu.writing import numbered
from ....expr.ir import Expr, Index, Input, Load, Program, Stored
from .elements import Reader, Writer
from .problem import Problem
from .text import entry, function, plus

PLACE = ("stack: u32", "row: u32", "column: u32")
"""Parameters of functions: the place of a sum in the result."""


class Epilogue:
    """Element-wise operations on the sums of a contraction.

    Attributes:
        problem: the contraction.
        result: the sums, as an array that `body` loads from.
        target: the buffer to write.
        axes: axes of the result.
        body: an element of `target` as a function of `axes`; it reads the sum as a load of `result`.
    """

    def __init__(self, problem: Problem, result: Input, target: Buffer, axes: tuple[Index, ...], body: Expr) -> None:
        self.problem, self.result, self.target, self.axes, self.body = problem, result, target, axes, body

    def can_store(self, features: Features, vectors: bool = True) -> bool:
        """Whether the kernel of the contraction can store the result: four columns at a time if `vectors`, else one."""
        return Writer.can_store(self.target.desc.data_type, features, vectors and self.problem.contiguous)

    def functions(self, module: Module, features: Features, vectors: bool = True) -> tuple[list[Function], Writer]:
        """The functions `finish` and `put`, and the writer of the result; `put` takes four columns if `vectors`, else one."""
        problem = self.problem
        writer = Writer(self.target, features, vectors and problem.contiguous)
        shape = self.target.desc.shape
        known: dict[Expr, str] = {}  # the text of loads that need no index arithmetic
        for node in ir.walk(self.body):
            if isinstance(node, Load) and node.source is self.result:
                known[node] = "sum"
            elif isinstance(node, Load) and node.source.desc.shape == shape and self.is_aligned(node):
                known[node] = module.load(node.source, "at")
        positions = {axis: f"i{k}" for k, axis in enumerate(self.axes)}
        block = Block(module, positions, known)
        value = block.value(self.body)
        used = "\n".join([*block.lines, value])
        definitions = [  # of the positions that the text contains
            f"let i{k} = i32({text});"
            for k, text in enumerate(problem.axes("stack", "row", "column"))
            if f"i{k}" in used
        ]
        lines = [*definitions, *block.lines, f"return {value};"]
        finish = function("finish", ["sum: f32", "at: u32", *PLACE], lines, "f32")
        return [finish, *_put(problem, writer, vectors)], writer

    def as_kernels(self, title: str, features: Features) -> tuple[Epilogue, list[Kernel]]:
        """Move the operations into kernels of their own.

        Returns:
            An epilogue that only stores the sums, in float32, and the kernels that compute the result from these.
        """
        target = Stored(self.axes, ir.number(0.0, "float32"))
        sums = Epilogue(self.problem, self.result, target, self.axes, Load(self.result, self.axes))
        # In the program the sums are an input, because it would compute a stored array; the bindings refer to `target`.
        sums_input = Input(0, target.desc)

        def sum_at(load: Load) -> Expr:
            total: Expr = Load(sums_input, load.parts)
            return total if load.type == "float32" else ir.Cast(total, load.type)

        loads = [node for node in ir.walk(self.body) if isinstance(node, Load) and node.source is self.result]
        output = ir.Output(self.axes, ir.substitute(self.body, {load: sum_at(load) for load in loads}))
        inputs = tuple(source for source in ir.sources(output.body) if isinstance(source, Input))
        buffers: dict[Buffer, Buffer] = {sums_input: target, output: self.target}
        return sums, [
            replace(kernel, bindings=tuple(buffers.get(buffer, buffer) for buffer in kernel.bindings))
            for kernel in kernels(Program(title, inputs, (output,)), features)
        ]

    def is_aligned(self, load: Load) -> bool:
        """Whether a load from an array of the result's shape reads at the position that is written."""
        pairs = zip(load.parts, self.axes, strict=True)
        return all(part is axis or (axis.extent == 1 and isinstance(part, ir.Const)) for part, axis in pairs)


def _put(problem: Problem, writer: Writer, vectors: bool) -> list[Function]:
    """The function that stores four adjacent columns of a row, or one column, except those outside of the result."""
    parameters = [*PLACE, "sum: vec4<f32>"]
    if writer.width == 4:
        values = [f"finish(sum.{c}, {plus('at', k)}, stack, row, {plus('column', k)})" for k, c in enumerate("xyzw")]
        lines = [
            f"if (row >= {problem.rows}u || column >= {problem.columns}u) {{",
            "    return;",
            "}",
            f"let at = {problem.flat('stack', 'row', 'column')};",
            "let value = vec4<f32>(",
            *(f"    {value}{',' * (k < 3)}" for k, value in enumerate(values)),
            ");",
            writer.store("at / 4u", "value"),
        ]
        return [function("put", parameters, lines)]
    exists = problem.exists("stack", "row", "column")
    lines = [
        f"if (row < {problem.rows}u && column < {problem.columns}u{f' && {exists}' if exists else ''}) {{",
        f"    let at = {problem.flat('stack', 'row', 'column')};",
        f"    {writer.store('at', 'finish(sum, at, stack, row, column)')}",
        "}",
    ]
    one = function("put_one" if vectors else "put", [*PLACE, "sum: f32"], lines)
    if not vectors:
        return [one]
    calls = [f"put_one(stack, row, {plus('column', k)}, sum.{c});" for k, c in enumerate("xyzw")]
    return [one, function("put", parameters, calls)]


def put_partial(problem: Problem) -> Function:
    """The function `put` for the array of `partial_sums`; `part` is `split * stacks + stack`."""
    quads = -(-problem.columns // 4)
    lines = [
        f"if (row < {problem.rows}u && column < {problem.columns}u) {{",
        f"    result[(part * {problem.rows}u + row) * {quads}u + column / 4u] = sum;",
        "}",
    ]
    return function("put", ["part: u32", *PLACE[1:], "sum: vec4<f32>"], lines)


def partial_sums(problem: Problem, splits: int) -> Stored:
    """The array of partial sums, [splits * stacks, rows, columns], with columns padded to a multiple of 4."""
    shape = (splits * problem.stacks, problem.rows, -(-problem.columns // 4) * 4)
    axes = tuple(Index(size, k - len(shape)) for k, size in enumerate(shape))
    return Stored(axes, ir.number(0.0, "float32"))


def addition(problem: Problem, splits: int, width: int = 64) -> tuple[Entry, tuple[int, int, int]]:
    """The entry point of the kernel that adds up partial sums and calls `put`, and its dispatch size."""
    quads = -(-problem.columns // 4)
    total = problem.stacks * problem.rows * quads
    number, groups = numbered(-(-total // width))
    lines = [
        f"let index = {number} * {width}u + lane;",
        f"if (index >= {total}u) {{",
        "    return;",
        "}",
        "var sum = parts[index];",
        *(f"sum += parts[{plus('index', k * total)}];" for k in range(1, splits)),
        f"let line = index / {quads}u;",  # stack * rows + row
        f"put(line / {problem.rows}u, line % {problem.rows}u, index % {quads}u * 4u, sum);",
    ]
    return entry(width, lines), groups


def assemble(
    title: str,
    comment: str,
    readers: Sequence[Reader],
    writer: Writer,
    module: Module,
    parts: Sequence[Part],
    workgroups: tuple[int, int, int],
) -> Kernel:
    """Assemble a kernel. Its bindings are those of the module, then the buffers of `readers`, then the result."""
    bindings = [*(Binding(r.name, r.element, False) for r in readers), Binding("result", writer.element, True)]
    helpers = [helper for reader in readers for helper in reader.helpers]
    (size,) = (part.size for part in parts if isinstance(part, Entry))
    return Kernel(
        title,
        module.text([f"// {title}: {comment}"], [*helpers, *parts], bindings),
        (*module.bindings, *(reader.buffer for reader in readers), writer.buffer),
        (*module.writes, *(False for _ in readers), True),
        workgroups,
        module.dialect.entry_point,
        invocations=size,
    )
