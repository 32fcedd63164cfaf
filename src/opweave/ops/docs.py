"""Docstrings of operations: facts of declarations, and sentences that many operations share, are written here once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ..core.dtypes import ANY
from ..core.operation import N, Op, text_of
from ..support.names import either

_ARGUMENTS = {
    "axis": "in [0, rank).",
    "dilations": "dilation factor along [height, width], each at least 1.",
    "direction": 'the order in which steps are processed: "forward", "backward", or "both".',
    "epsilon": "added to the variance, to avoid division by zero.",
    "hidden_size": "number of features of the hidden state.",
    "initial_cell_state": "[directions, batches, hidden_size]; default: zeros.",
    "initial_hidden_state": "[directions, batches, hidden_size]; default: zeros.",
    "input_layout": '"nchw" or "nhwc", the layout of the input and of the result.',
    "label": "a name for messages and tables.",
    "reset_after": "whether the reset gate is applied after the product with `recurrent_weight` (else before).",
    "return_sequence": "whether to also return the hidden state of every step.",
    "scale": "of the scores. Default: 1 / sqrt(size).",
    "strides": "stride along [height, width], each at least 1.",
}
_RANKS = {(0, N): "any rank", (1, N): "rank 1 or more"}


_SHORT_SECTION = re.compile(r"^(Returns|Raises): (.*)((?:\n    .*)*)\n?", re.MULTILINE)
"""A section that is a sentence; further lines are indented."""


def complete(op: Op[..., Any], arguments: Mapping[str, str] = MappingProxyType({})) -> None:
    """Let the docstring have the arguments, sections and imports that its source leaves out, when it is read.

    `arguments` describes parameters that several operations share.
    """
    source = op.doc
    op.doc = lambda: _complete(op, text_of(source), arguments)


def _complete(op: Op[..., Any], source: str, arguments: Mapping[str, str]) -> str:
    first = op.positional[0] if op.positional else ""
    result = f"An operand of the data type and shape of `{first}`."
    error = "shapes that do not fit" if len(op.operands) > 1 else f"`{first}` has another data type"
    error = "there is no such axis" if "axis" in op.attributes else error
    imports = ">>> import numpy as np, opweave as ow\n"
    summary, newline, rest = source.partition("\n")
    shared = f"\n\n{sentence}\n" if (sentence := _shared_type(op, source, arguments)) else newline

    def argument(name: str) -> str:
        return arguments.get(name) or _argument(op, name)

    return fill(summary + shared + rest, op.parameters, argument, result, error, imports)


def _shared_type(op: Op[..., Any], source: str, arguments: Mapping[str, str]) -> str:
    """Return the sentence on operands that have the data type of the first one, unless their descriptions say so."""
    if not op.operands:
        return ""
    first, *others = op.operands
    same = [name for name in others if op.limits[name].data_types == first]
    is_told = any("data type" in arguments.get(name, "") for name in same)
    if same and not is_told:
        starts = tuple([f"    {name}: " for name in same])  # a pattern for each operation would take a millisecond
        is_told = any(line.startswith(starts) and "data type" in line for line in source.splitlines())
    if not same or is_told or len(op.limits[first].data_types) == 1:
        return ""
    return f"All {'' if same == others else 'other '}operands have the data type of `{first}`."


def _argument(op: Op[..., Any], name: str) -> str:
    limits = op.limits.get(name)
    if limits is None or isinstance(limits.data_types, str) or isinstance(limits.ranks, str):
        return _ARGUMENTS[name]
    return f"{'any data type' if limits.data_types == ANY else either(limits.data_types)}, {_RANKS[limits.ranks]}."


def fill(
    doc: str, parameters: Iterable[str], argument: Callable[[str], str], result: str, error: str, imports: str
) -> str:
    """Add what a docstring lacks: `argument(name)` for each parameter, the result, the error, the imports of examples.

    A line `Returns: …` or `Raises: …` becomes a section. Paragraphs with a link follow the sections.
    """
    text, arrow, examples = doc.partition(">>> ")
    text = _SHORT_SECTION.sub(_section, text)
    sections = {"Args": "", "Returns": f"    {result}", "Raises": f"    ValidationError: {error}."}
    opening: list[str] = []
    closing: list[str] = []
    blocks = opening
    for block in re.split(r"\n{2,}", text.strip()):
        name, _, lines = block.partition(":\n")
        if name in sections:
            sections[name], blocks = lines, closing
        else:
            (closing if "https://" in block else blocks).append(block)
    described = dict(re.findall(r"^    (\w+): (.*(?:\n     .*)*)", sections["Args"], re.MULTILINE))
    sections["Args"] = "\n".join(f"    {name}: {described.get(name) or argument(name)}" for name in parameters)
    filled = [*opening, *(f"{name}:\n{lines}" for name, lines in sections.items()), *closing]
    if examples:
        filled.append(("" if re.match("import|from", examples) else imports) + arrow + examples)
    return "\n\n".join(filled)


def _section(match: re.Match[str]) -> str:
    name, first, rest = match.groups()
    if name == "Raises":
        first, rest = f"ValidationError: {first}", rest.replace("\n", "\n    ")
    return f"\n{name}:\n    {first}{rest}\n"
