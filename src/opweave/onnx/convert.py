"""Turn an ONNX model into a WebNN graph as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..context import MLContext, ml
from ..errors import NotSupportedError, require
from ..graph import MLOperand
from ..run.graph import MLGraph
from .arguments import Argument, FixedShapes
from .booleans import as_stored
from .compiled import check_whole, segments
from .limits import DEFAULT, Limits
from .model import Model
from .registry import DATA_TYPES
from .trace import Tracer
from .values import Constant, Tensor


def load(
    model: Any,
    context: MLContext | None = None,
    *,
    fix_shapes: Mapping[str, int | Sequence[int]] | None = None,
    limits: Limits = DEFAULT,
) -> MLGraph:
    """Read an ONNX model as a WebNN graph, to dispatch it, or to `save` it as WebNN's operations.

    Inputs and outputs keep their names; those of bool are uint8 that hold 0 and 1. Inputs that no output depends on are left
    out.

    Args:
        model: the path of an `.onnx` file, the bytes of one, or an `onnx.ModelProto`.
        context: where it will run; default: a new one on the best device.
        fix_shapes: sizes for dimensions that vary, as `InferenceSession` takes them; a graph has none that vary.
        limits: what the model may take while it is loaded: nodes, and bytes of results that are computed then.

    Raises:
        DataError: the model cannot be read, or exceeds a limit.
        ValidationError: a dimension varies.
        NotSupportedError: WebNN cannot express the model.
    """
    read = Model.load(model, limits)
    context = context or ml.create_context()
    declared = read.required_inputs
    fixed = FixedShapes.of(fix_shapes, declared)
    shapes: dict[str, tuple[int, ...] | None] = {}
    for info in declared:
        argument = Argument.of(info, fixed)
        shapes[info.name] = argument.static_shape()
        advice = "fix their sizes by fix_shapes, or --fix-shapes on the command line"
        varying = [str(size or "?") for size in argument.dims or () if not isinstance(size, int)]
        require(not varying, f"input {info.name!r} has dimensions that vary, {', '.join(varying)}; {advice}")
    tracer = Tracer(read, context, shapes)
    trace = tracer.run()
    outputs = [info.name for info in read.proto.graph.output]
    check_whole(segments(trace, outputs), "cannot be expressed in WebNN")
    operands: dict[str, MLOperand] = {}
    for name in outputs:
        match trace.values[name]:
            case Tensor(operand):
                operands[name] = operand if operand.node is not None else tracer.builder.identity(operand)
            case Constant(array) if trace.values[name].element_type in DATA_TYPES:
                operands[name] = tracer.builder.identity(tracer.builder.constant(as_stored(array)))
            case _:
                raise NotSupportedError(f"the output {name!r} has a type or shape that WebNN does not have")
    return tracer.builder.build(operands)
