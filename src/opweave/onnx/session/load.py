"""Load a whole ONNX model as one WebNN graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

import numpy as np

from ...context.builder import MLGraphBuilder, build_variants
from ...context.context import MLContext, ml
from ...context.graph import MLGraph
from ...core.graph import Desc, MLOperand
from ...core.guards import Guards
from ...core.size_scope import UnknownSizeError
from ...core.sizes import Dimension, Size
from ...core.specialise import sizes_of
from ...support.errors import NotSupportedError, ValidationError
from ..convert.register import require_operators
from ..convert.trace import Trace, Tracer, ValuesNeeded
from ..model.arguments import Argument, FixedShapes, type_name
from ..model.booleans import bool_as_uint8
from ..model.limits import DEFAULT, ModelLimits
from ..model.model import Model
from ..model.protobuf import TypeProto
from ..model.registry import DATA_TYPES
from ..model.values import Constant, Tensor, type_of
from .compiled import check_whole, sections

SHAPES = "for the shapes of certain calls: shapes=[...] of InferenceSession.save, or --shapes on the command line"
"""Advice for models whose operations depend on sizes."""


def load(
    model: Any,
    context: MLContext | None = None,
    *,
    fix_shapes: Mapping[str, int | Sequence[int]] | None = None,
    limits: ModelLimits = DEFAULT,
) -> MLGraph:
    """Load an ONNX model as a WebNN graph, to run it, or to `save` it as an ONNX model of WebNN's operations only.

    Inputs and outputs keep their names; bool ones become uint8 with values 0 and 1. Inputs that no output needs are dropped.
    Operations without a label are labelled with the names of the model's nodes. In a context with `drafts=True`, dynamic
    dimensions keep their names.

    Args:
        model: the path of an `.onnx` file, the bytes of one, or an `onnx.ModelProto`.
        context: the context of the graph; default: a new one on the best device.
        fix_shapes: sizes for dynamic dimensions, as for `InferenceSession`; without drafts all must be fixed, as WebNN shapes
            are static.
        limits: bounds on the number of nodes, and on memory while loading; see `ModelLimits`.

    Raises:
        DataError: the model cannot be read, or exceeds a limit.
        ValidationError: an input has a dynamic dimension that is not fixed, and the context has no drafts.
        NotSupportedError: WebNN cannot express the model, or not for sizes with names.

    >>> import numpy as np, opweave as ow
    >>> from onnx.parser import parse_model
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
    >>> graph = ow.onnx.load(parse_model(text), fix_shapes={"n": 2})
    >>> graph.context.compute(graph, {"x": np.float32([-1, 2])})["y"].tolist()
    [0.0, 2.0]
    """
    source = Model.load(model, limits)
    context = context or ml.create_context()
    return convert(source, context, arguments_of(source, fix_shapes), takes_names=context.drafts)


def convert(
    source: Model,
    context: MLContext,
    arguments: Sequence[Argument],
    *,
    takes_names: bool,
    combinations: Sequence[Mapping[str, Sequence[int] | None]] | None = None,
) -> MLGraph:
    """Convert a model to a graph for inputs with the dimensions of `arguments`; errors as for `load`.

    With `takes_names`, dynamic dimensions keep their names, and get one if they have none. Where the conversion depends on
    their sizes, it is repeated for each of the `combinations` of shapes, unless the answers for earlier ones hold for it, too;
    None if there can be no such shapes.
    """
    shapes: dict[str, Any] = {argument.name: argument.static_shape() for argument in arguments}
    dynamic = [a for a in arguments if any(not isinstance(size, int) for size in a.dims or ())]
    if not dynamic:
        builder, operands = record(source, context, shapes)
        return builder.build(operands)
    varying = [size for size in dynamic[0].dims or () if not isinstance(size, int)]
    subject = f"input {dynamic[0].name!r} has dynamic dimensions [{', '.join(size or '?' for size in varying)}]"
    if not takes_names:
        raise ValidationError(f"{subject}; {_advice(dynamic[0])}")
    shapes |= {argument.name: named_shape(argument) for argument in dynamic}
    try:
        builder, operands = record(source, context, shapes)
        return builder.build(operands)
    except (UnknownSizeError, ValuesNeeded, NotSupportedError, ValidationError) as error:
        if not combinations or isinstance(error, ValuesNeeded):
            advice = (
                f"; or convert it {SHAPES}" if combinations is not None and not isinstance(error, ValuesNeeded) else ""
            )
            raise NotSupportedError(f"{subject}, and {_reason(error)}; {_advice(dynamic[0])}{advice}") from error
    try:
        return _convert_variants(source, context, shapes, combinations)
    except ValuesNeeded as error:
        raise NotSupportedError(f"{subject}, and {_reason(error)}; {_advice(dynamic[0])}") from error


def _convert_variants(
    source: Model,
    context: MLContext,
    shapes: Mapping[str, Any],
    combinations: Sequence[Mapping[str, Sequence[int] | None]],
) -> MLGraph:
    """The graph of conversions for the sizes of several combinations of shapes."""
    descs = {name: Desc("float32", shape) for name, shape in shapes.items() if shape is not None}
    variants: list[tuple[dict[str, MLOperand], Guards]] = []
    for combination in combinations:
        numbers = {name: tuple(combination[name] or ()) for name in descs}
        guards = Guards(sizes_of(descs, numbers, "save"))
        if any(earlier.hold(guards.sizes) for _, earlier in variants):
            continue
        with guards.deciding():
            _, operands = record(source, context, shapes)
        variants.append((operands, guards))
    return build_variants(variants)


def named_shape(argument: Argument) -> tuple[Dimension, ...]:
    """The shape of an input with names for its dynamic dimensions."""
    return tuple(
        size if isinstance(size, int) else Size(size if size and size != "?" else f"{argument.name}[{axis}]")
        for axis, size in enumerate(argument.dims or ())
    )


def _reason(error: Exception) -> str:
    if isinstance(error, ValuesNeeded):
        return "values of inputs decide shapes"
    return f"the model needs their numbers: {error}"


def _advice(argument: Argument) -> str:
    """Say how to fix the dynamic dimensions of an input: by name if all have one, else by the input's shape."""
    named = [size for size in argument.dims or () if not isinstance(size, int)]
    sizes: dict[str, int | list[int]] = {name: 1 for name in named if name}
    options = [f"--fix-shapes {quote(f'{name}=1')}" for name in sizes]
    if None in named:
        shape = argument.assumed_shape()
        sizes = {argument.name: [*shape]}
        options = [f"--fix-shapes {quote(f'{argument.name}=' + 'x'.join(map(str, shape)))}"]
    return f"fix them, as in fix_shapes={sizes!r}, or on the command line {' '.join(options)}"


def arguments_of(source: Model, fix_shapes: Mapping[str, int | Sequence[int]] | None) -> list[Argument]:
    """The inputs that a model needs, with sizes from `fix_shapes`."""
    infos = source.required_inputs
    fixed = FixedShapes.of(fix_shapes, infos)
    return [Argument.of(info, fixed) for info in infos]


def record(
    source: Model,
    context: MLContext,
    shapes: Mapping[str, tuple[int, ...] | None],
    inputs: Mapping[str, np.ndarray] | None = None,
) -> tuple[MLGraphBuilder, dict[str, MLOperand]]:
    """Record a whole model in a builder, and return its outputs by name; `NotSupportedError` if WebNN cannot express a node.

    Operations are labelled with the names of the model's nodes. An input whose values in `inputs` determine shapes becomes a
    constant.
    """
    tracer, trace = trace_model(source, context, shapes, inputs)
    outputs = [info.name for info in source.proto.graph.output]
    check_whole(sections(trace, outputs), "cannot be expressed in WebNN")
    operands: dict[str, MLOperand] = {}
    for name in outputs:
        match trace.values[name]:
            case Tensor(operand):
                operands[name] = operand if operand.node is not None else tracer.builder.identity(operand)
            case Constant(array) if trace.values[name].element_type in DATA_TYPES:
                operands[name] = tracer.builder.identity(tracer.builder.constant(bool_as_uint8(array)))
            case _:
                type = type_name(type_of(trace.values[name]))
                raise NotSupportedError(f"output {name!r} is {type}, which WebNN cannot hold")
    return tracer.builder, operands


def trace_model(
    source: Model,
    context: MLContext,
    shapes: Mapping[str, tuple[int, ...] | None],
    inputs: Mapping[str, np.ndarray] | None = None,
    types: Mapping[str, TypeProto] | None = None,
) -> tuple[Tracer, Trace]:
    """Trace a whole model. An input whose values in `inputs` determine shapes becomes a constant.

    `types` has known types of results of fallback nodes, which inference may miss.
    """
    require_operators(source)
    values: dict[str, np.ndarray] = {}
    arrays = inputs or {}
    while True:
        tracer = Tracer(source, context, shapes, values, arrays.keys() - values.keys(), types)
        try:
            return tracer, tracer.run()
        except ValuesNeeded as needed:
            values |= {name: np.array(arrays[name]) for name in needed.names}
