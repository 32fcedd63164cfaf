"""Kernels that write single elements of an array."""

from __future__ import annotations

import math

from ...graph import Desc
from ..ir import Const, Expr, Index, Output, call, size_of, unified
from ..printing import inline
from .block import Block, Grid
from .kernel import Features, Kernel
from .module import Module
from .writing import comment_of, converted, dispatch, guarded, pattern_of, read, width_of


def scatter(
    target: Desc, axes: tuple[Index, ...], at: tuple[Expr, ...], value: Expr, features: Features, title: str
) -> tuple[Kernel, Output]:
    """A kernel that writes elements of an array, one per invocation. If several write the same element, one of them
    wins.

    Args:
        target: the array, initialised before.
        axes: the domain, one invocation for each position.
        at: an index for each axis of the array, known to be in bounds.
        value: the value to write.
        features: features and limits of the device.
        title: for tables.

    Returns:
        The kernel, and the buffer that represents the array in its bindings.
    """
    buffer = Output(tuple(Index(size) for size in target.shape), Const(0, target.data_type))
    *indices, value = unified(*at, value)
    module = Module(features)
    for source in read([*indices, value]):
        module.read(source)
    module.write(buffer)
    count = size_of(axes)
    width = width_of(count, features)
    groups, number = dispatch(-(-count // width), width, features)
    block = Block(module, {}, grid=Grid(axes))
    flat: Expr = Const(0, "index")
    for index, size in zip(indices, target.shape, strict=True):
        flat = call("add", call("mul", flat, Const(size, "index")), index)
    position = block.named(flat)
    element = converted(value, target.data_type, block.value(value))
    lanes = module.layout(buffer).lanes
    if lanes == 1:
        block.add(module.store(buffer, position, element))
    else:
        module.atomic.add(buffer)
        block.add(*_replaced(module.names[buffer], position, pattern_of(element, target.data_type), lanes))
    lines = [*guarded("flat", number, count, math.prod(groups) * width), *block.lines]
    where = ", ".join(inline(index, module.names, axes) for index in indices)  # type: ignore[arg-type]
    comment = comment_of(module, buffer, axes, value, where)
    return module.kernel(title, [comment], lines, (width, 1, 1), groups), buffer


def _replaced(name: str, flat: str, pattern: str, lanes: int) -> list[str]:
    """Statements that atomically replace an element in a word whose other elements other invocations write."""
    bits, shift = 32 // lanes, lanes.bit_length() - 1
    return [
        f"let shift = (u32({flat}) & {lanes - 1}u) * {bits}u;",
        f"let pattern = {pattern} << shift;",
        f"let word = u32({flat}) >> {shift}u;",
        "loop {",
        f"    let old = atomicLoad(&{name}[word]);",
        f"    let new_word = (old & ~({(1 << bits) - 1}u << shift)) | pattern;",
        f"    if (atomicCompareExchangeWeak(&{name}[word], old, new_word).exchanged) {{",
        "        break;",
        "    }",
        "}",
    ]
