"""Epilogues of contraction kernels: the function `finish` computes an element from its sum, `put` stores the element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from ....core.sizes import Dimension, Size, is_same_shape, is_same_size
from ....expr import ir
from ....expr.gpu import Block, Buffer, Features, GpuKernel, GpuModule, kernels
from ....expr.gpu.dialect import BufferBinding, DialectFunction, KernelEntry, Part
from ....expr.gpu.types import computed_type
from ....expr.gpu.writing import Unsigned, workgroup_number
from ....expr.ir import Expr, Formula, Index, Input, Load, Stored
from .elements import ElementReader, ElementWriter
from .parameters import LITERALS, KernelNumbers
from .problem import Problem
from .text import entry, function, plus, return_if, statement

PLACE = ("stack: u32", "row: u32", "column: u32")
"""Parameters of the functions: the position of a sum in the result."""


class Epilogue:
    """Element-wise operations on the sums of contractions with equal result shapes.

    `body` is an element of the buffer `target` as a function of `axes`. It loads a placeholder of `results` for each sum.
    """

    def __init__(
        self, problem: Problem, results: tuple[Input, ...], target: Buffer, axes: tuple[Index, ...], body: Expr
    ) -> None:
        self.problem, self.results, self.target, self.axes, self.body = problem, results, target, axes, body

    def with_buffers(self, buffers: Mapping[Buffer, Buffer]) -> Epilogue:
        """The same epilogue with other arrays; arrays that `buffers` lacks are kept."""
        results = tuple(cast(Input, buffers.get(result, result)) for result in self.results)
        target, body = buffers.get(self.target, self.target), ir.with_sources(self.body, buffers)
        return Epilogue(self.problem.with_inputs(buffers), results, target, self.axes, body)

    def can_store(self, features: Features, vectors: bool = True) -> bool:
        """Whether the contraction's kernel can store the result, four columns at a time if `vectors`."""
        data_type = self.target.desc.data_type
        if data_type == "int32" and not self.problem.is_integer:
            return False
        return ElementWriter.can_store(data_type, features, vectors and self.problem.contiguous)

    def functions(
        self,
        module: GpuModule,
        features: Features,
        vectors: bool = True,
        suffix: str = "",
        preloaded: Sequence[Load] = (),
    ) -> tuple[list[DialectFunction], ElementWriter]:
        """The functions `finish` and `put`, and the writer of the result.

        Args:
            module: declares the arrays that are read.
            features: features and limits of the device.
            vectors: whether `put` takes four columns instead of one.
            suffix: suffix of the names, for kernels with several results.
            preloaded: loads of `aligned_loads` whose values are parameters after the sums.
        """
        problem, count = self.problem, len(self.results)
        sums = ["sum"] if count == 1 else [f"sum_{k}" for k in range(count)]
        sums += (f"given_{k}" for k in range(len(preloaded)))
        writer = ElementWriter(self.target, features, vectors and problem.contiguous, f"result{suffix}")
        # Loads without index arithmetic.
        texts: dict[Expr, str] = {node: module.load(node.source, "at") for node in self.aligned_loads}
        texts |= {node: f"given_{k}" for k, node in enumerate(preloaded)}
        for node in ir.walk(self.body):
            if isinstance(node, Load) and node.source in self.results:
                texts[node] = sums[self.results.index(node.source)]
        positions = {axis: f"i{k}" for k, axis in enumerate(self.axes)}
        block = Block(module, positions, texts)
        value = block.value(self.body)
        used = "\n".join([*block.lines, value])
        # Define only the positions that the text contains.
        definitions = [
            f"let i{k} = i32({text});"
            for k, text in enumerate(problem.axes("stack", "row", "column", module))
            if f"i{k}" in used
        ]
        lines = [*definitions, *block.lines, f"return {value};"]
        # Preloaded elements are floats, as are the sums that are read beside them.
        parameters = [*(f"{name}: {problem.sum_type}" for name in sums), "at: u32", *PLACE]
        result = computed_type(self.target.desc.data_type)
        finish = function(f"finish{suffix}", parameters, lines, result)
        return [finish, *_put(problem, writer, vectors, sums, suffix, result, module)], writer

    @property
    def aligned_loads(self) -> list[Load]:
        """The loads at the written position, from arrays of the result's shape."""
        shape = self.target.desc.shape
        loads = [node for node in ir.walk(self.body) if isinstance(node, Load) and node.source not in self.results]
        return [load for load in loads if is_same_shape(load.source.desc.shape, shape) and self.is_aligned(load)]

    def as_kernels(self, title: str, features: Features) -> tuple[list[Epilogue], list[GpuKernel]]:
        """Move the operations into separate kernels, which compute the target from the sums.

        Also returns an epilogue per result that only stores the sums.
        """
        own = self.problem.sums
        stored = [Stored(self.axes, ir.number(0, own)) for _ in self.results]
        sums = [
            Epilogue(self.problem, (result,), target, self.axes, Load(result, self.axes))
            for result, target in zip(self.results, stored, strict=True)
        ]
        # The program has the sums as inputs, because a program computes its stored arrays. The bindings are the stored arrays.
        sum_inputs = {result: Input(k, stored[k].desc) for k, result in enumerate(self.results)}

        def sum_at(load: Load, source: Input) -> Expr:
            total: Expr = Load(sum_inputs[source], load.parts)
            return total if load.type == own else ir.Cast(total, load.type)

        changed: dict[Expr, Expr] = {
            node: sum_at(node, node.source)
            for node in ir.walk(self.body)
            if isinstance(node, Load) and isinstance(node.source, Input) and node.source in sum_inputs
        }
        output = ir.Output(self.axes, ir.substitute(self.body, changed))
        inputs = tuple(source for source in ir.sources(output.body) if isinstance(source, Input))
        buffers: dict[Buffer, Buffer] = {**dict(zip(sum_inputs.values(), stored, strict=True)), output: self.target}
        return sums, [
            replace(kernel, bindings=tuple(buffers.get(buffer, buffer) for buffer in kernel.bindings))
            for kernel in kernels(Formula(title, inputs, (output,)), features)
        ]

    def is_aligned(self, load: Load) -> bool:
        """Whether a load from an array of the result's shape reads at the written position."""
        pairs = zip(load.parts, self.axes, strict=True)
        return all(
            part is axis or (is_same_size(axis.extent, 1) and isinstance(part, ir.Const)) for part, axis in pairs
        )


def _put(
    problem: Problem,
    writer: ElementWriter,
    vectors: bool,
    sums: Sequence[str],
    suffix: str,
    result: str,
    numbers: KernelNumbers,
) -> list[DialectFunction]:
    """The function `put`, which stores four columns of a row, or one, and skips positions outside the result."""
    type = problem.sum_type
    parameters = [*PLACE, *(f"{name}: vec4<{type}>" for name in sums)]
    rows, columns = numbers.unsigned(problem.rows), numbers.unsigned(problem.columns)
    at = f"let at = {problem.flat_index('stack', 'row', 'column', numbers)};"
    if writer.width == 4:
        values = [
            f"finish{suffix}({_of(sums, f'.{c}')}, {plus('at', k)}, stack, row, {plus('column', k)})"
            for k, c in enumerate("xyzw")
        ]
        lines = [
            *return_if(f"row >= {rows} || column >= {columns}"),
            at,
            f"let value = vec4<{result}>(",
            *(f"    {value}{',' * (k < 3)}" for k, value in enumerate(values)),
            ");",
            writer.store("at / 4u", "value"),
        ]
        return [function(f"put{suffix}", parameters, lines)]
    exists = problem.exists("stack", "row", "column", numbers)
    if vectors and isinstance(problem.columns, Size) and not exists:
        return [function(f"put{suffix}", parameters, _store_columns(problem, writer, sums, suffix, numbers))]
    lines = statement(
        f"if (row < {rows} && column < {columns}{f' && {exists}' if exists else ''})",
        [
            at,
            writer.store("at", f"finish{suffix}({_of(sums)}, at, stack, row, column)"),
        ],
    )
    name = f"put_one{suffix}" if vectors else f"put{suffix}"
    one = function(name, [*PLACE, *(f"{total}: {type}" for total in sums)], lines)
    if not vectors:
        return [one]
    calls = [f"{name}(stack, row, {plus('column', k)}, {_of(sums, f'.{c}')});" for k, c in enumerate("xyzw")]
    return [one, function(f"put{suffix}", parameters, calls)]


def _store_columns(
    problem: Problem, writer: ElementWriter, sums: Sequence[str], suffix: str, numbers: KernelNumbers
) -> list[str]:
    """The statements that store four columns of a row separately, where the number of columns has a name.

    All values are computed before the first store. Compilers move no load across a store to an array that may alias, so the
    loads of each column would wait for the store of the preceding one.
    """
    rows, columns = numbers.unsigned(problem.rows), numbers.unsigned(problem.columns)
    lines = [*return_if(f"row >= {rows} || column >= {columns}")]
    for k, c in enumerate("xyzw"):
        # Columns are clamped: those beyond the last one repeat its loads, and are not stored.
        column = f"min({plus('column', k)}, {columns} - 1u)" if k else "column"
        at = problem.flat_index("stack", "row", f"column_{k}", numbers)
        lines += [f"let column_{k} = {column};", f"let at_{k} = {at};"]
        lines.append(f"let value_{k} = finish{suffix}({_of(sums, f'.{c}')}, at_{k}, stack, row, column_{k});")
    for k in range(4):
        store = writer.store(f"at_{k}", f"value_{k}")
        lines += statement(f"if ({plus('column', k)} < {columns})", [store]) if k else [store]
    return lines


def _of(sums: Sequence[str], part: str = "") -> str:
    return ", ".join(f"{name}{part}" for name in sums)


def put_partial(problem: Problem, numbers: KernelNumbers = LITERALS) -> DialectFunction:
    """The function `put` for `partial_sums`; part = split * stacks + stack."""
    rows, columns, quads = map(numbers.unsigned, (problem.rows, problem.columns, -(-problem.columns // 4)))
    store = f"result[(part * {rows} + row) * {quads} + column / 4u] = sum;"
    lines = statement(f"if (row < {rows} && column < {columns})", [store])
    return function("put", ["part: u32", *PLACE[1:], f"sum: vec4<{problem.sum_type}>"], lines)


def partial_sums(problem: Problem, splits: Dimension) -> Stored:
    """The split-K partial sums, [splits * stacks, rows, columns], with columns padded to a multiple of 4."""
    shape = (splits * problem.stacks, problem.rows, -(-problem.columns // 4) * 4)
    axes = tuple(Index(size, k - len(shape)) for k, size in enumerate(shape))
    return Stored(axes, ir.number(0, problem.sums))


def addition(
    problem: Problem, splits: Dimension, most: int, numbers: KernelNumbers = LITERALS, width: int = 64
) -> tuple[KernelEntry, tuple[int, int, int]]:
    """The entry point that adds at most `most` partial sums and calls `put`, and its dispatch size."""
    quads, unsigned = -(-problem.columns // 4), numbers.unsigned
    total = problem.stacks * problem.rows * quads
    number, groups = workgroup_number(-(-total // width), unsigned=unsigned)
    rows, columns = numbers.divisor(problem.rows), numbers.divisor(quads)
    parts = [_part_of_sum(k, total, unsigned) for k in range(1, most)]
    if not isinstance(splits, int):
        # Conditions, not a loop: the loads of a loop would wait for each other.
        parts = [
            line for k, text in enumerate(parts, 1) for line in statement(f"if ({k}u < {unsigned(splits)})", [text])
        ]
    lines = [
        f"let index = {number} * {width}u + lane;",
        *return_if(f"index >= {unsigned(total)}"),
        "var sum = parts[index];",
        *parts,
        # line = stack * rows + row
        f"let line = index / {columns};",
        f"put(line / {rows}, line % {rows}, index % {columns} * 4u, sum);",
    ]
    return entry(width, lines), groups


def _part_of_sum(k: int, total: Dimension, unsigned: Unsigned) -> str:
    """The statement that adds part `k` of a sum; a part has `total` vectors."""
    at = plus("index", k * total) if isinstance(total, int) else f"index + {k}u * {unsigned(total)}"
    return f"sum += parts[{at}];"


def assemble(
    title: str,
    comment: str,
    readers: Sequence[ElementReader],
    writers: Sequence[ElementWriter],
    module: GpuModule,
    parts: Sequence[Part],
    workgroups: tuple[int, int, int],
) -> GpuKernel:
    """Assemble a kernel. The bindings are the module's, then `readers`, then `writers`.

    The text excludes `title`, which names nodes of the graph, so that kernels with equal text are compiled once.
    """
    readers = [part for reader in readers for part in reader.parts]
    bindings = [BufferBinding(reader.name, reader.element, False) for reader in readers]
    bindings += [BufferBinding(writer.name, writer.element, True) for writer in writers]
    helpers = [helper for reader in readers for helper in reader.helpers]
    (size,) = (part.size for part in parts if isinstance(part, KernelEntry))
    is_early = module.dialect.starts_early(workgroups)
    return GpuKernel(
        title,
        module.text([f"// {comment}"], [*helpers, *parts], bindings, starts_early=is_early),
        (*module.bindings, *(reader.buffer for reader in readers), *(writer.buffer for writer in writers)),
        (*module.writes, *(False for _ in readers), *(True for _ in writers)),
        workgroups,
        module.dialect.entry_point,
        invocations=size,
        starts_early=is_early,
        sizes=tuple(module.sizes),
        divisors=module.divisors,
    )
