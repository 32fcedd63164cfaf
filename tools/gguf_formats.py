"""Print how each device holds the formats of GGUF files, as a table: `python tools/gguf_formats.py [--write]`.

Bits of an element are counted in the arrays that products read: those of the file, those that `chat.Model` packs for CPUs, and
those that kernels of a GPU with float16 read. `--write` puts the table into docs/chat.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from opweave import composites
from opweave.backends.gpu.constants import GpuConstant
from opweave.backends.gpu.contraction.expansion import in_words
from opweave.backends.gpu.contraction.problem import Matrix
from opweave.backends.gpu.contraction.quantized import ARRAYS, Quantized
from opweave.chat.gguf import FORMATS, Blocks, Format
from opweave.core.graph import Desc
from opweave.expr.gpu import Features
from opweave.expr.ir import Input

PAGE = Path(__file__).parent.parent / "docs" / "chat.md"
START, END = "<!-- formats, made by tools/gguf_formats.py --write -->\n", "\n<!-- end of formats -->"

ROWS, COLUMNS = 64, 4096


def sample(form: Format) -> Any:
    """A matrix of a format, as fields."""
    random = np.random.default_rng(0)
    data = random.integers(0, 256, (ROWS, COLUMNS // form.elements, form.layout.itemsize)).astype(np.uint8)
    fields = data.reshape(ROWS, -1).view(form.layout).copy()
    for name in form.layout.names or ():
        if form.layout[name] == np.dtype("<f2"):
            fields[name] = random.uniform(1e-3, 1e-2, fields[name].shape)
    return fields


def cpu_bits(blocks: Blocks) -> float:
    """Bits of an element of the operands for CPUs."""
    blocks = blocks.for_cpu()
    arguments = blocks.operands
    if blocks.minimum is not None:
        arguments, _ = composites.pack_blocks(blocks.numbers, blocks.scale, blocks.minimum, bits=blocks.bits)
    return _bits(value for value in arguments.values() if isinstance(value, np.ndarray))


def gpu_bits(blocks: Blocks) -> float:
    """Bits of an element of the arrays that kernels of GPUs read."""
    arrays = {name: value for name, value in blocks.operands.items() if isinstance(value, np.ndarray)}
    inputs = {name: Input(k, Desc(array.dtype.name, array.shape)) for k, (name, array) in enumerate(arrays.items())}
    named: dict[str, Any] = {name: inputs[name] for name in ARRAYS if name in inputs}
    quantized = Quantized(
        blocks.bits, "float32", block_terms=blocks.size, block_lines=1, upper_bits=blocks.upper_bits, **named
    )
    matrix = Matrix(inputs["weight"], ROWS, COLUMNS, 1, quantized=quantized)
    constants = {inputs[name]: GpuConstant.of(array) for name, array in arrays.items()}
    arranged, held = in_words(matrix, constants, Features(float16=True))
    assert arranged.quantized is not None
    return _bits(held[buffer].make() for buffer in (arranged.source, *arranged.quantized.buffers))


def _bits(arrays: Any) -> float:
    total: int = sum(array.nbytes for array in arrays)
    return total * 8 / (ROWS * COLUMNS)


def table() -> str:
    """The table in Markdown: bits of an element in the file, on CPUs and on GPUs, and the numbers on both."""
    lines = ["| Format | Bits in the file | on a CPU | on a GPU | |", "| --- | --- | --- | --- | --- |"]
    for form in FORMATS.values():
        file = form.layout.itemsize * 8 / form.elements
        if form.blocks is None:
            note = "floats" if form.name == "F32" else "floats; float32 on CPUs"
            lines.append(f"| {form.name} | {file:.2f} | 32.00 | {file:.2f} | {note} |")
            continue
        blocks = form.blocks(sample(form))
        upper = f" + {blocks.upper_bits}" if blocks.upper_bits else ""
        note = f"numbers of {blocks.bits}{upper} bits, {blocks.for_cpu().bits} on CPUs"
        lines.append(f"| {form.name} | {file:.2f} | {cpu_bits(blocks):.2f} | {gpu_bits(blocks):.2f} | {note} |")
    return "\n".join(lines)


def main() -> None:
    text = table()
    print(text)
    if "--write" in sys.argv[1:]:
        page = PAGE.read_text()
        before, _, rest = page.partition(START)
        _, _, after = rest.partition(END)
        PAGE.write_text(before + START + text + END + after)


if __name__ == "__main__":
    main()
