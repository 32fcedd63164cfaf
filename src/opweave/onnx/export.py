"""Write WebNN graphs as ONNX models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from .. import __version__
from ..backends.onnxruntime import ort
from ..backends.onnxruntime.emit import Emitter
from ..compile.bodies import with_legal_bodies
from ..compile.empty import fold_empty
from ..compile.legalise import legalise
from ..context.graph import MLGraph, graph_for_all_sizes, state_of
from ..core.graph import Graph, Node
from ..support.errors import NotSupportedError, ValidationError, require
from ..support.names import short_repr
from .files import MAX_EMBEDDED_BYTES, write_model
from .model.protobuf import ModelProto, TensorProto
from .model.scopes import all_nodes
from .recurrences import decomposition_of

Operators = Literal["onnx", "onnxruntime"]
"""Operators of the written model: ONNX's own alone, or also ONNX Runtime's."""


def save(
    graph: MLGraph,
    path: str | Path,
    *,
    operators: Operators = "onnx",
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    drop_size_rules: bool = False,
) -> None:
    """Write a graph as an ONNX model.

    Inputs and outputs keep their names, with one exception: in ONNX, an output cannot have the name of an input. Such an
    output is called `NAME_out` in the file (`NAME_out_out` where that is taken, and so on).

    Names in shapes become names of dimensions (`dim_param`), and formulas such as `2*n` their text. The model computes the
    sizes that its nodes need.

    Beyond 1.5 GB, weights are written into a second file in the same folder, whose name ends in `.data`. An existing file is
    replaced once the new one is complete. The target of a symbolic link is replaced; a pipe or a device is written directly.

    Args:
        graph: as returned by `MLGraphBuilder.build`.
        path: the file to write.
        operators: "onnx" writes operators of ONNX only, for any engine that reads ONNX. "onnxruntime" also writes operators of
            ONNX Runtime alone, which are faster than their decompositions: MatMulNBits, GroupQueryAttention,
            MultiHeadAttention, RotaryEmbedding, SimplifiedLayerNormalization, FastGelu, QuickGelu.
        input_shapes: the shape of each input, to save a graph with names for these sizes alone.
        drop_size_rules: write a graph of `from_torch` although the program was exported for some sizes alone. The file cannot
            check sizes, so results for other sizes may be wrong.

    Raises:
        ValidationError: a name cannot be encoded as UTF-8, as ONNX requires; `operators` is not one of the two; the weights
            need a second file, and `path` is not a regular file; or `input_shapes` do not fit.
        NotSupportedError: an operation cannot be written for sizes with names, or the graph has rules for sizes; it can be
            written for certain `input_shapes`.
        InvalidStateError: the graph is destroyed.
        DataError: the file cannot be written.

    >>> import numpy as np, opweave as ow, tempfile
    >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    >>> graph = builder.build({"y": builder.input("x", "float32", [2]).relu()})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ow.onnx.save(graph, f"{folder}/model.onnx")
    ...     session = ow.InferenceSession(f"{folder}/model.onnx")
    >>> session.run(None, {"x": np.float32([-1, 2])})[0].tolist()
    [0.0, 2.0]
    """
    require(isinstance(graph, MLGraph), f"save takes an MLGraph, got {type(graph).__name__}")
    choices = get_args(Operators)
    require(operators in choices, f"save: operators must be one of {list(choices)}, got {short_repr(operators)}")
    source = (
        graph_for_all_sizes(graph, "save", drop_size_rules=drop_size_rules)
        if input_shapes is None
        else state_of(graph).static_graph("save", input_shapes)
    )
    if source.has_names:
        from ..core.inference import with_defaults

        source = with_defaults(source)
    model, weights = to_onnx(source, operators)
    total = sum(array.nbytes for array in weights.values())
    write_model(model, weights, path, "save", is_external=total > MAX_EMBEDDED_BYTES)


def to_onnx(graph: Graph, operators: Operators = "onnx") -> tuple[ModelProto, dict[str, np.ndarray]]:
    """The ONNX model of a graph, and the arrays of its external initializers by name."""
    renamed = _output_names(graph)
    names, prefix = [*graph.inputs, *renamed.values()], "_"
    for name in names:
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise ValidationError(f"ONNX names must be encodable in UTF-8, got {name!r}")
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    ctx = Emitter(portable=True, prefix=prefix)
    has_rule, engine = (ort.is_portable, "ONNX") if operators == "onnx" else (ort.supports, "ONNX Runtime")

    def supports(node: Node) -> bool:
        bodies = (node.attributes[name] for name in node.op.bodies)
        if not all(supports(inner) for body in bodies for inner in body.graph.nodes):
            return False
        return has_rule(node) or (graph.has_names and ort.has_rule_in_files(node))

    try:
        # Recurrences become loops first, whose bodies are then decomposed, too.
        options: dict[str, Any] = {"has_results": True, "decomposition_of": decomposition_of}
        folded, _ = fold_empty(graph)
        looped, *_ = legalise(folded, lambda node: bool(node.op.bodies) or supports(node), engine, **options)
        full = with_legal_bodies(looped, {}, supports, engine)[0]
        values, _ = ort.emit(ctx, legalise(full, supports, engine, **options)[0])
    except ValidationError as error:
        if not graph.has_names:
            raise
        advice = "save(..., input_shapes={...}) saves it for certain sizes"
        raise NotSupportedError(f"save: {error}; {advice}") from error
    results = {renamed[name]: (values[name], operand.desc) for name, operand in graph.outputs.items()}
    model = ModelProto.FromString(ctx.finish(results)[0])
    model.producer_name, model.producer_version = "opweave", __version__
    _name_by_labels(model)
    used = {node.domain for node in all_nodes(model.graph.node)} | {""}
    kept = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    outside = [t.name for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    return model, {name: ctx.constants[name] for name in outside}


def _name_by_labels(model: ModelProto) -> None:
    labels = [node.name.rpartition("#")[0] for node in model.graph.node]
    taken = Counter([*labels, *(node.name for node in model.graph.node)])
    for node, label in zip(model.graph.node, labels, strict=True):
        if label and taken[label] == 1:
            node.name = label


def _output_names(graph: Graph) -> dict[str, str]:
    """The names of outputs in ONNX, by their names in the graph; see `save`."""
    both = [name for name in graph.outputs if name in graph.inputs]
    names = {name: name for name in graph.outputs if name not in both}
    for name in both:
        other = name
        while other in graph.inputs or other in names.values():
            other += "_out"
        names[name] = other
    return names
