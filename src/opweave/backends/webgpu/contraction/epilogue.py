"""The end of contraction kernels: `finish` computes the final element from the sum, and `put` stores it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ....expr import ir
from ....expr.ir import Expr, Index, Input, Load, Program, Reduce, Stored
from ....expr.wgsl import Block, Buffer, Features, Kernel, Module, kernels, mathematics
from .elements import Reader, Writer
from .problem import Problem


class Finish:
    """The element-wise end of a contraction.

    Attributes:
        target: the buffer to write.
        axes: axes of the result.
        body: the element of `target`, as a function of `axes` and of the sum, a load of `result`.
    """

    def __init__(self, problem: Problem, result: Input, target: Buffer, axes: tuple[Index, ...], body: Expr) -> None:
        self.problem, self.result, self.target, self.axes, self.body = problem, result, target, axes, body

    @property
    def sources(self) -> list[Input | Stored]:
        """The arrays that the expression reads, except the sum."""
        return [source for source in ir.sources(self.body) if source is not self.result]

    def serves(self, features: Features, fours: bool = True) -> bool:
        """Whether results can be stored directly, in groups of four columns or one by one."""
        return Writer.serves(self.target.desc.data_type, features, fours and self.problem.contiguous)

    def text(self, module: Module, features: Features, fours: bool = True) -> tuple[str, Writer]:
        """The functions `finish` and `put`, which takes four columns or one, and the writer of the result."""
        problem = self.problem
        writer = Writer(self.target, features, fours and problem.contiguous)
        whole = self.target.desc.shape
        known: dict[Expr, str] = {}
        for node in ir.walk(self.body):
            if isinstance(node, Load) and node.source is self.result:
                known[node] = "sum"
            elif isinstance(node, Load) and node.source.desc.shape == whole and self.at_own_position(node):
                known[node] = module.load(node.source, "at")
        positions = {axis: f"i{k}" for k, axis in enumerate(self.axes)}
        block = Block(module, positions, known)
        value = block.value(self.body)
        used = "\n".join([*block.lines, value])
        places = [
            f"let i{k} = i32({text});"
            for k, text in enumerate(problem.axes("stack", "row", "column"))
            if f"i{k}" in used
        ]
        lines = [*places, *block.lines, f"return {value};"]
        finish = "fn finish(sum: f32, at: u32, stack: u32, row: u32, column: u32) -> f32 {\n"
        finish += "".join(f"    {line}\n" for line in lines) + "}\n"
        return finish + "\n" + (_put(problem, writer) if fours else _put_one(problem, writer)), writer

    def apart(self, parts: Stored, title: str, features: Features) -> list[Kernel]:
        """The kernel that adds the partial sums of results that share words with their neighbours."""
        stands = Input(0, parts.desc)
        loads = [node for node in ir.walk(self.body) if isinstance(node, Load) and node.source is self.result]
        body = ir.substitute(self.body, {load: self._total(load, stands) for load in loads})
        inputs = tuple(source for source in ir.sources(body) if isinstance(source, Input))
        output = ir.Output(self.axes, body)
        known: dict[Buffer, Buffer] = {stands: parts, output: self.target}
        return [
            replace(kernel, bindings=tuple(known.get(buffer, buffer) for buffer in kernel.bindings))
            for kernel in kernels(Program(title, inputs, (output,)), features)
        ]

    def _total(self, load: Load, parts: Input) -> Expr:
        """A sum of the result as the sum of its parts."""
        problem, at = self.problem, load.parts
        count = Index(parts.desc.shape[0] // problem.stacks)
        if problem.layout.kind == "matrix":
            line, column = _number(at[:-1], problem.layout.shape[:-1]), at[-1]
            stack, row = _divided(line, problem.rows)
        else:
            batch, channel, y, x = (at[problem.layout.kind.index(letter)] for letter in "nchw")
            outputs = problem.rows if problem.layout.kind == "nchw" else problem.columns
            stack, channel = _divided(channel, outputs)
            height, width = problem.layout.size
            if problem.layout.phases > 1:
                (down, right), shift = problem.layout.spread, problem.layout.shift
                y, phase_y = _divided(ir.call("add", y, ir.Const(shift[0], "index")), down)
                x, phase_x = _divided(ir.call("add", x, ir.Const(shift[1], "index")), right)
                stack = _number((phase_y, phase_x, stack), (down, right, problem.groups))
                height, width = problem.layout.grid
            position = _number((batch, y, x), (problem.layout.shape[0], height, width))
            row, column = (channel, position) if problem.layout.kind == "nchw" else (position, channel)
        part = ir.call("add", ir.call("mul", count, ir.Const(problem.stacks, "index")), stack)
        total: Expr = Reduce("sum", (count,), Load(parts, (part, row, column)))
        return total if load.type == "float32" else ir.Cast(total, load.type)

    def at_own_position(self, load: Load) -> bool:
        """Whether a load of an array of the same shape reads at the position that is written."""
        pairs = zip(load.parts, self.axes, strict=True)
        return all(part is axis or (axis.extent == 1 and isinstance(part, ir.Const)) for part, axis in pairs)


def _put(problem: Problem, writer: Writer) -> str:
    """The function that stores four adjacent columns of a row, as far as they exist."""
    lines = [f"if (row >= {problem.rows}u || column >= {problem.columns}u) {{", "    return;", "}"]
    if writer.width == 4:
        lines.append(f"let at = {problem.flat('stack', 'row', 'column')};")
        values = [f"finish(sum.{c}, {_plus('at', k)}, stack, row, {_plus('column', k)})" for k, c in enumerate("xyzw")]
        lines += ["let value = vec4<f32>(", *(f"    {value}," for value in values), ");"]
        lines.append(writer.store("at / 4u", "value"))
    else:
        for k, c in enumerate("xyzw"):
            column = _plus("column", k)
            exists = problem.exists("stack", "row", f"({column})" if k else column)
            condition = f"{column} < {problem.columns}u{f' && {exists}' if exists else ''}"
            part = [
                f"let at = {problem.flat('stack', 'row', f'({column})' if k else column)};",
                writer.store("at", f"finish(sum.{c}, at, stack, row, {column})"),
            ]
            lines += [f"if ({condition}) {{", *("    " + p for p in part), "}"]
    head = "fn put(stack: u32, row: u32, column: u32, sum: vec4<f32>) {\n"
    return head + "".join(f"    {line}\n" for line in lines) + "}\n"


def _put_one(problem: Problem, writer: Writer) -> str:
    """The function that stores one element, if it exists."""
    exists = problem.exists("stack", "row", "column")
    lines = [
        f"if (row < {problem.rows}u && column < {problem.columns}u{f' && {exists}' if exists else ''}) {{",
        f"    let at = {problem.flat('stack', 'row', 'column')};",
        f"    {writer.store('at', 'finish(sum, at, stack, row, column)')}",
        "}",
    ]
    head = "fn put(stack: u32, row: u32, column: u32, sum: f32) {\n"
    return head + "".join(f"    {line}\n" for line in lines) + "}\n"


def put_partial(problem: Problem) -> str:
    """The function `put` for partial sums, [splits, stacks, rows, columns], with columns padded to whole vectors."""
    quads = -(-problem.columns // 4)
    return (
        "fn put(part: u32, row: u32, column: u32, sum: vec4<f32>) {\n"
        f"    if (row < {problem.rows}u && column < {problem.columns}u) {{\n"
        f"        result[(part * {problem.rows}u + row) * {quads}u + column / 4u] = sum;\n"
        "    }\n}\n"
    )


def partial(problem: Problem, splits: int) -> Stored:
    """The array of partial sums."""
    shape = (splits * problem.stacks, problem.rows, -(-problem.columns // 4) * 4)
    axes = tuple(Index(size, k - len(shape)) for k, size in enumerate(shape))
    return Stored(axes, ir.number(0.0, "float32"))


def addition(problem: Problem, splits: int, width: int = 64) -> tuple[str, tuple[int, int, int]]:
    """The entry point that adds partial sums and calls `put`, and its dispatch size."""
    quads = -(-problem.columns // 4)
    total = problem.stacks * problem.rows * quads
    groups = -(-total // width)
    across = min(groups, 32768)
    parts = [f"parts[{_plus('index', k * total)}]" for k in range(splits)]
    lines = [
        f"let index = (group.y * {across}u + group.x) * {width}u + lane;",
        f"if (index >= {total}u) {{",
        "    return;",
        "}",
        f"var sum = {parts[0]};",
        *(f"sum += {part};" for part in parts[1:]),
        f"let line = index / {quads}u;",
        f"put(line / {problem.rows}u, line % {problem.rows}u, index % {quads}u * 4u, sum);",
    ]
    head = (
        f"@compute @workgroup_size({width})\n"
        "fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {\n"
    )
    return head + "".join(f"    {line}\n" for line in lines) + "}\n", (across, -(-groups // across), 1)


def assemble(
    title: str,
    comment: str,
    readers: Iterable[Reader],
    target: Buffer,
    target_type: str,
    module: Module,
    body: str,
    workgroups: tuple[int, int, int],
) -> Kernel:
    """Assemble a kernel; its bindings are those of the module, of `readers`, and the result."""
    readers = list(readers)
    first = len(module.bindings)
    lines = []
    for k, reader in enumerate(readers):
        lines.append(f"@group(0) @binding({first + k}) var<storage, read> {reader.name}: {reader.declaration};")
    at = first + len(readers)
    lines.append(f"@group(0) @binding({at}) var<storage, read_write> result: {target_type};")
    text = "\n".join([*lines, "", *(reader.helper for reader in readers if reader.helper), body])
    # Take only the declarations that the body needs; the entry point is part of it.
    head = module.text(text, (1, 1, 1)).partition("@compute")[0].removeprefix("enable f16;\n").strip("\n")
    enable = "enable f16;\n" if "f16" in mathematics.words(head + text) else ""
    source = f"// {title}: {comment}\n{enable}\n{head}\n{text}"
    bindings = (*module.bindings, *(reader.source for reader in readers), target)
    writes = (*module.writes, *(False for _ in readers), True)
    return Kernel(title, source, bindings, writes, workgroups)


def _number(at: Sequence[Expr], sizes: Sequence[int]) -> Expr:
    """The flat position along several axes."""
    total: Expr = ir.Const(0, "index")
    for position, size in zip(at, sizes, strict=True):
        total = ir.call("add", position, ir.call("mul", total, ir.Const(size, "index")))
    return total


def _divided(number: Expr, size: int) -> tuple[Expr, Expr]:
    """The quotient by `size` and the remainder."""
    by = ir.Const(size, "index")
    return ir.call("floor_div", number, by), ir.call("mod", number, by)


def _plus(text: str, constant: int) -> str:
    return f"{text} + {constant}u" if constant else text
