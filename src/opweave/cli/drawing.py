"""Drawing of a model: its nodes, in lanes for the segments that run them."""

from __future__ import annotations

import numpy as np

from ..compile.partition import Segment
from ..inspect.drawing.picture import Box, Edge, Lane, Picture
from ..names import counted
from ..onnx.compiled import CompiledModel
from ..onnx.scopes import used_names
from ..onnx.trace import Step, Trace
from ..onnx.values import Constant, Tensor

KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Domains of standard operators; others are custom."""


def model_picture(compiled: CompiledModel, inputs: list[str], outputs: list[str]) -> Picture:
    """The picture of a compiled model.

    Args:
        compiled: the model, compiled for given shapes.
        inputs: names of the model's inputs.
        outputs: names of the model's outputs.
    """
    lanes = [_lane(number, segment, compiled) for number, segment in enumerate(compiled.segments)]
    made = Picture(lanes=[Lane(("inputs",)), *lanes, Lane(("outputs",))])
    home: dict[str, tuple[int, int]] = {}
    used = {name for segment in compiled.segments for name in segment.inputs} | set(outputs)
    for name in inputs:
        if name in used:
            home[name] = len(made.boxes), 0
            made.boxes.append(Box(name, 0, "input", tooltip=f"input {name}: {_text(compiled.trace, name)}"))
    for number, segment in enumerate(compiled.segments, start=1):
        for step in segment.nodes:
            index = len(made.boxes)
            names = used_names(step.node)
            constants = {
                name: value.array for name in names if isinstance(value := compiled.trace.values[name], Constant)
            }
            made.boxes.append(
                Box(
                    step.node.op_type,
                    number,
                    "operation" if step.node.domain in KNOWN_DOMAINS else "custom",
                    (f"{step.node.name!r}",) if step.node.name else (),
                    tuple(_chip(array) for array in constants.values()),
                    "\n".join(
                        [
                            f"{step.node.op_type} {step.node.name!r}",
                            *(
                                f"{name}: constant {array.dtype}{list(array.shape)}"
                                for name, array in constants.items()
                            ),
                            *(f"→ {name}: {_text(compiled.trace, name)}" for name in step.node.output if name),
                            *([step.reason] if step.reason else []),
                        ]
                    ),
                    (step.node.op_type,),
                    sum(array.nbytes for array in constants.values()),
                )
            )
            for name in names:
                if name in home:
                    made.edges.append(Edge(*home[name], index, _text(compiled.trace, name)))
            for port, name in enumerate(name for name in step.node.output if name):
                home[name] = index, port
    for name in outputs:
        if name in home:
            made.edges.append(Edge(*home[name], len(made.boxes), _text(compiled.trace, name)))
        made.boxes.append(
            Box(name, len(made.lanes) - 1, "output", tooltip=f"output {name}: {_text(compiled.trace, name)}")
        )
    return made


def _lane(number: int, segment: Segment[Step, str], compiled: CompiledModel) -> Lane:
    caption = counted(len(segment.nodes), "node")
    if segment.kind == "webnn":
        return Lane((f"segment {number}", f"WebNN on {compiled.context.device.name}", caption), "engine")
    return Lane((f"segment {number}", "ONNX Runtime (fallback)", caption), "fallback")


def _text(trace: Trace, name: str) -> str:
    value = trace.values[name]
    if isinstance(value, Tensor):
        return str(value.operand.desc)
    if isinstance(value, Constant):
        return f"constant {value.array.dtype}{list(value.array.shape)}"
    return "shape known when it runs"


def _chip(array: np.ndarray) -> str:
    if array.size == 1 and array.dtype.kind in "fiub":
        return f"{array.item():.5g}" if array.dtype.kind == "f" else f"{array.item()}"
    return "×".join(map(str, array.shape))
