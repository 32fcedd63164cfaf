"""`opweave.diff`, and the comparison that it runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...context.context import MLContext, ml
from ...context.dynamic_graph_state import DynamicGraphState
from ...context.graph import MLGraph, recorded_graph, state_of
from ...core.graph import Graph
from ...core.specialise import sizes_of
from ...memory.arrays import contiguous
from ...onnx.model.booleans import bool_as_uint8
from ...onnx.model.limits import DEFAULT, ModelLimits
from ...onnx.model.model import Model
from ...onnx.session.load import arguments_of
from ...support import lazy_imports
from ...support.errors import require
from ...support.formatting import sizes_text
from ...support.hints import require_names
from ...support.names import count_of, short_repr
from ...support.progress import report_work
from ..inputs import input_arrays
from .compare import Comparison, Progress
from .fallback import record_whole
from .places import Side, context_of
from .result import Difference


def diff(
    model: Any,
    other: Any = None,
    inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    on: MLContext | str | None = None,
    against: MLContext | str | None = None,
    seed: int = 0,
    tolerance: float = 1.0,
    fix_shapes: Mapping[str, int | Sequence[int]] | None = None,
    limits: ModelLimits = DEFAULT,
    progress: Progress | None = None,
) -> Difference:
    """Run a graph or a model on two devices, engines or precisions, and find the first operation whose results differ.

    Each operation is compared twice: on the same inputs, which are the results of the other side, so that only its own error
    counts; and end to end, where the errors of all operations before it have accumulated. The verdict depends on the first.
    The tolerance depends on operation, data type and size; it follows the Web Platform Tests of WebNN.

    >>> import numpy as np, opweave as ow
    >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu"))
    >>> graph = builder.build({"y": builder.softmax(builder.input("x", "float32", [2, 3]), 1)})
    >>> found = ow.diff(graph, against="reference")
    >>> found.first is None, [row.title for row in found.rows]
    (True, ['softmax'])

    Args:
        model: an `MLGraph`; or an ONNX model: the path of an .onnx file, its bytes, or a `ModelProto`. Nodes that
            WebNN cannot express are compared, too; they run in ONNX Runtime, on the reference in ONNX's own evaluator. Or a
            module of PyTorch, an exported program, or what `from_torch` made of one.
        other: another graph or model of the same structure, which `model` is compared with; None for itself. Constants and
            attributes may differ, as may float32 and float16. For a module of PyTorch, what `from_torch` made of it: its
            operations are compared with the values that PyTorch computes for the same nodes of the exported program.
        inputs: an array for each input, by name, of the data type that `model` has; None for random ones, with the sizes of
            the last run for a graph with names. For a module of PyTorch, its arguments: a tuple, or a mapping of keyword
            arguments; None for those of the export.
        on: where `model` runs: a context, or "DEVICE[:BACKEND][@PRECISION]" as in "cpu:openvino@bfloat16". Default: the
            context of a graph, the best device for a model.
        against: where the other side runs, in the form of `on`. Default: "reference", or with `other` its context, or `on`.
        seed: the seed of random inputs: normally distributed floats, and integers 0 and 1.
        tolerance: a factor for all tolerances.
        fix_shapes: sizes of the dynamic dimensions of models; the shapes of `inputs` precede it, and what is left counts as 1.
        limits: bounds for loading models.
        progress: called with the number of operations that are done, of all, and the title of the next one.

    Returns:
        A table to `print`, its numbers, and a report to `save`.

    Raises:
        ValidationError: missing or unknown inputs; arrays that do not fit; graphs of different structure, with the first
            difference; an invalid place or tolerance.
        NotSupportedError: a device cannot run a model; or a model has random nodes, or values between nodes that are empty or
            of types that WebNN does not have.
        DataError: a model cannot be read.
        InvalidStateError: a graph is destroyed, or a context lost.
        OperationError: an engine refuses a part.
    """
    if is_of_torch(model) or is_of_torch(other):
        difference: Difference = lazy_imports.diff_torch(model, other, inputs, on, tolerance, progress)
        return difference
    compared = comparison(
        model,
        other,
        inputs,
        on=on,
        against=against,
        seed=seed,
        tolerance=tolerance,
        fix_shapes=fix_shapes,
        limits=limits,
    )
    with report_work(f"comparing {count_of(len(compared.a.nodes), 'operation')}"):
        return compared.run(progress) if progress is not None else compared.run()


def is_of_torch(value: Any) -> bool:
    """Whether a value is a module or a program of PyTorch, or a result of `from_torch`, without importing PyTorch."""
    modules = {cls.__module__ for cls in type(value).__mro__}
    return any(name.partition(".")[0] == "torch" or name == "opweave.pytorch.module" for name in modules)


def comparison(
    model: Any,
    other: Any = None,
    inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    on: MLContext | str | None = None,
    against: MLContext | str | None = None,
    seed: int = 0,
    tolerance: float = 1.0,
    fix_shapes: Mapping[str, int | Sequence[int]] | None = None,
    limits: ModelLimits = DEFAULT,
    title: str = "",
) -> Comparison:
    """Prepare the comparison that `diff` runs; takes the same arguments."""
    is_number = isinstance(tolerance, (int, float)) and not isinstance(tolerance, bool)
    is_factor = is_number and 0 <= tolerance < math.inf
    require(is_factor, f"diff: tolerance must be a finite number from 0 on, got {short_repr(tolerance)}")
    is_mapping = inputs is None or isinstance(inputs, Mapping)
    require(is_mapping, f"diff: inputs must map names to arrays, got {short_repr(inputs)}")
    default = other if against is None and other is not None else None
    own = model.context if isinstance(model, MLGraph) else None
    mine = context_of(on) if on is not None else own or ml.create_context()
    theirs = (
        default.context
        if isinstance(default, MLGraph)
        else mine
        if default is not None
        else context_of(against or "reference")
    )
    assert inputs is None or isinstance(inputs, Mapping)
    arrays = dict(inputs) if inputs is not None else None
    first, feed = _record(model, mine, arrays, seed, fix_shapes, limits)
    a = Side(mine, first, _is_fused(model))
    b = Side(theirs, first, a.fuse)
    if other is not None:
        second, _ = _record(other, theirs, feed, seed, fix_shapes, limits, is_second=True)
        b = Side(theirs, second, _is_fused(other))
    return Comparison(a, b, feed, tolerance, title or _title(model, other) + _sizes_in(model, feed))


def _sizes_in(model: Any, feed: Mapping[str, np.ndarray]) -> str:
    """The sizes of a graph with names, behind its title."""
    if not isinstance(model, MLGraph):
        return ""
    sizes = sizes_of(model.inputs, {name: array.shape for name, array in feed.items()}, "diff")
    return f", {sizes_text(sizes)}" if sizes else ""


def _title(model: Any, other: Any) -> str:
    names = [
        item.name if hasattr(item, "name") else "graph" if isinstance(item, MLGraph) else "model"
        for item in (model, other)
    ]
    if other is None:
        return names[0]
    return f"two {names[0]}s" if names[0] == names[1] else f"{names[0]} and {names[1]}"


def _is_fused(model: Any) -> bool:
    return not isinstance(model, MLGraph) or state_of(model).is_fused


def _record(
    model: Any,
    context: MLContext,
    inputs: Mapping[str, Any] | None,
    seed: int,
    fix_shapes: Mapping[str, int | Sequence[int]] | None,
    limits: ModelLimits,
    is_second: bool = False,
) -> tuple[Graph, dict[str, np.ndarray]]:
    if isinstance(model, MLGraph):
        state = state_of(model)
        if isinstance(state, DynamicGraphState):
            shapes = None
            if inputs is not None:
                require_names("diff: inputs", inputs, state.inputs)
                shapes = {name: np.shape(array) for name, array in inputs.items()}
            graph = state.static_graph("diff", shapes)
        else:
            graph = recorded_graph(model)
        descs = {name: operand.desc for name, operand in graph.inputs.items()}
        return graph, {} if is_second else input_arrays("diff", descs, inputs, seed)
    source = Model.load(model, limits)
    arguments = {argument.name: argument for argument in arguments_of(source, fix_shapes)}
    generator = np.random.default_rng(seed)
    if inputs is None or is_second:
        values = {name: argument.random(argument.assumed_shape(), generator) for name, argument in arguments.items()}
    else:
        values = dict(inputs)
    if is_second and inputs is not None:
        # Arrays of the first model, which may differ in data type. Different shapes are refused later.
        fitting = {
            name: argument
            for name, argument in arguments.items()
            if name in inputs and argument.takes(inputs[name].shape)
        }
        values |= {name: inputs[name].astype(argument.dtype) for name, argument in fitting.items()}
    require_names("diff: inputs", values, arguments)
    arrays = {name: contiguous(argument.as_input(values[name], context)) for name, argument in arguments.items()}
    graph = record_whole(source, context, arrays)
    return graph, {} if is_second else {name: bool_as_uint8(arrays[name]) for name in graph.inputs}
