"""Labels: the module and the line of code that a call of the program comes from."""

from __future__ import annotations

import os
import re
from typing import Any

_FRAME = re.compile(r'File "(.+?)", line (\d+), in ')


def module_of(node: Any) -> str:
    """The path of the module that calls an operator, "encoder.layers.3.attn"; empty for the outermost one."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values() if isinstance(entry, tuple) and isinstance(entry[0], str)]
    path = paths[-1] if paths else ""
    # Modules that are called several times have the number of the call: "layer@1".
    return "" if path.startswith("_empty_nn_module_stack") else path.partition("@")[0].removeprefix("L['self'].")


def line_of(node: Any) -> str:
    """The innermost line of the user's code that calls an operator, "model.py:12"; empty if it is not known.

    Lines of PyTorch's own modules come last: `torch/nn/modules/linear.py` says less than the line that calls the module.
    """
    frames = _FRAME.findall(node.meta.get("stack_trace") or node.stack_trace or "")
    own = [frame for frame in frames if f"{os.sep}torch{os.sep}" not in frame[0]] or frames
    return f"{os.path.basename(own[-1][0])}:{own[-1][1]}" if own else ""


def label_of(node: Any) -> str:
    """The label of a call: its module, or its name in the program outside of modules."""
    return module_of(node) or str(node.name)


def place_of(node: Any) -> str:
    """The module and the line of a call, for messages: "'encoder.attn' (model.py:12)"."""
    line = line_of(node)
    return f"{label_of(node)!r}{f' ({line})' if line else ''}"
