"""Write the table of all composites into their page, made from the code: `python tools/composites_table.py [PAGE]`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from opweave import composites
from opweave.backends import Backend, discover
from opweave.backends.gpu.table import gpu
from opweave.core.operation import Op

FILE = Path(__file__).parents[1] / "docs" / "composites.md"

BEGIN, END = "<!-- composites, made by `make docs` -->", "<!-- end -->"

FAMILIES = {
    "attention rotary": "Attention",
    "activation": "Activations",
    "normalization": "Normalisations",
    "recurrences": "Recurrence",
    "recurrent single_gate": "Recurrence, with sequences of different lengths",
    "selection suppression placement scatter": "Selection and placement",
    "convolve pool": "Windows over one, two or three axes",
    "elementary cumulative linear_algebra fourier": "Mathematics",
    "random": "Random numbers",
    "bits": "Bits",
    "quantization integers quantized requantized": "Small integers",
    "movement resizing grid regions": "Movement and sampling",
}
"""Titles of families by the modules of `opweave.composites`."""

CONDITIONS = {
    "acos": "float32, without a compiler for loops, whose errors are smaller",
    "acosh": "float32",
    "asin": "as `acos`",
    "asinh": "float32",
    "atan": "as `acos`",
    "atanh": "float32",
    "center_crop_pad": "all but float16, as one padding",
    "col2im": "two axes; one or three without dilations",
    "cosh": "float32",
    "cumulative_product": "all but small integers, from its operator set 26 on",
    "dequantized_matmul": "as `quantized_matmul`",
    "det": "float32",
    "depth_to_space": "float32, int8, uint8",
    "fast_gelu": "float32",
    "grid_sample": "all but cubic sampling with a border, or of volumes",
    "group_query_attention": "heads of 8, 16, … elements; with a past, one batch or one new key; no int8",
    "hard_max": "float32",
    "integer_conv2d": "one zero point for all filters",
    "integer_matmul": "zero points for all of `a`, and for columns of a single `b`",
    "inverse": "float32",
    "linear_attention": "float32",
    "local_response_normalization": "float32, odd sizes, positive `alpha` and `beta`",
    "log_softmax": "float32, the last axis",
    "max_roi_pool": "scales above 2**-60",
    "gather_n_bits": "blocks of a power of two, 16 or more; constants with blocks of a multiple of 16",
    "matmul_n_bits": '4 bits; 8 bits with `accuracy="int8"`; blocks as `gather_n_bits`',
    "max_pool_with_indices": "floats, int8, uint8, if each window has an element",
    "max_unpool": "float32, float16",
    "multi_head_attention": "float32, with a constant mask or none",
    "ragged_gru": "all but float64",
    "quantized_conv2d": "one zero point for all filters; no uint8 filters of int8 images",
    "quantized_leaky_relu": "constant scales and zero points",
    "quantized_matmul": "as `integer_matmul`",
    "quantized_mean": "neighbouring axes; constant scales and zero points",
    "quantized_sigmoid": "constant scales and zero points",
    "quick_gelu": "float32",
    "ragged_lstm": "without peepholes of the output gate",
    "resize": "floats, along the last axes; [not all coordinates](#sampling-images)",
    "rnn": "all but float64",
    "roi_align": "scales above 2**-60",
    "rotary_embedding": "at least as many rows of the tables as tokens",
    "scaled_dot_product_attention": "long sequences of float32, without a mask",
    "sinh": "float32",
    "space_to_depth": "float32, int8, uint8",
    "thresholded_relu": "float32",
    "top_k": "all but uint32 and uint64",
}
"""Nodes for which ONNX Runtime has a kernel that is used, for composites whose rule has a condition."""

PARTS = {"bit_cast": "between integers"}
"""Nodes that WebNN's operations express, for composites of which they express some only."""

HEAD = """\
| Composite | Computes | Operator | ONNX Runtime | OpenVINO | GPUs | Loop | Parts |
| --- | --- | --- | --- | --- | --- | --- | --- |"""

OPERATOR = re.compile(r"\b(ONNX|ONNX Runtime)'s (?:and ONNX Runtime's )?([A-Z]\w+)")


def all_composites() -> list[Op[..., Any]]:
    """The composites, each once: `rms_norm` is another name."""
    found = [getattr(composites, name) for name in composites.__all__]
    return list(dict.fromkeys(value for value in found if isinstance(value, Op)))


def rule(backend: Backend, op: Op[..., Any]) -> str:
    """Whether an engine has a kernel for all nodes, some, or none."""
    rules = backend.rules.get(op, ())
    if not rules:
        return ""
    return "all" if rules[-1].when is None else "some"


def onnx_runtime(op: Op[..., Any]) -> str:
    kind = rule(discover()["onnxruntime"], op)
    assert (kind == "some") >= (op.name in CONDITIONS and kind != "all"), op.name
    return CONDITIONS[op.name] if kind == "some" else kind


def parts(op: Op[..., Any]) -> str:
    """Whether WebNN's operations express the composite, which engines without loops and JavaScript need."""
    if op.decomposition is None:
        return ""
    return PARTS.get(op.name, "yes")


def operator(op: Op[..., Any]) -> str:
    """The ONNX operator that a composite computes, as its docstring says; in italics if only ONNX Runtime has it."""
    match = OPERATOR.search(op.__doc__ or "")
    if match is None:
        return ""
    return match[2] if match[1] == "ONNX" else f"*{match[2]}*"


def row(op: Op[..., Any]) -> str:
    """The line of a composite."""
    summary = (op.__doc__ or "").partition("\n")[0].rstrip(".")
    has_rule = op in gpu.rules or rule(discover()["cuda"], op)
    cells = [
        f"`{op.name}`",
        summary,
        operator(op),
        onnx_runtime(op),
        rule(discover()["openvino"], op),
        "kernel" if has_rule else "formula" if op.formula and not op.is_alternative else "",
        "yes" if op.formula else "",
        parts(op),
    ]
    return f"| {' | '.join(cells)} |"


def render() -> str:
    """The table, with a line for each family."""
    lines = [HEAD]
    rest = all_composites()
    for modules, title in FAMILIES.items():
        members = [op for op in rest if op.__module__.rpartition(".")[2] in modules.split()]
        rest = [op for op in rest if op not in members]
        lines += [f"| **{title}** | | | | | | | |", *map(row, sorted(members, key=lambda op: op.name))]
    assert not rest, [op.name for op in rest]
    return "\n".join(lines)


def written_into(page: str) -> str:
    """A page with the table between its two marks made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{render()}\n{END}{after}"


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else FILE
    target.write_text(written_into(target.read_text(encoding="utf-8")), encoding="utf-8")
