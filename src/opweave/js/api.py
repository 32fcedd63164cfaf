"""Write a graph as a JavaScript module, and its weights beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..compile.empty import fold_empty, is_empty
from ..compile.legalise import legalise
from ..context.graph import MLGraph, graph_for_all_sizes, state_of
from ..core.dtypes import ANY
from ..core.graph import Graph, Node
from ..core.size_values import variables_in
from ..ops import Operations, constants
from ..support.errors import NotSupportedError, ValidationError, require
from ..support.files import atomic_writer
from ..support.names import camel_case, printable, short_repr
from .module import JsModule, operands_of
from .safetensors import write

SUFFIXES = {".js": ".d.ts", ".mjs": ".d.mts"}
"""Names of modules end so, and those of their types for TypeScript."""


def save(
    graph: MLGraph,
    path: str | Path,
    *,
    title: str = "",
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    drop_size_rules: bool = False,
) -> list[Path]:
    """Write a graph as a JavaScript module that builds it with WebNN.

    The module has one statement for each operation, named after its label. Weights are in a file in the same folder
    that ends in `.safetensors`; constants of a few numbers are in the module. A file that ends in `.d.ts` or `.d.mts` has the
    types of the module for TypeScript. Composites and other operations that
    WebNN does not have are decomposed into operations of WebNN; those of drafts are called by their names in the drafts.
    Inputs that no operation reads are left out, since WebNN refuses them; a comment in the module names them.
    Existing files are replaced once the new files are complete.

    Args:
        graph: as returned by `MLGraphBuilder.build` or `opweave.onnx.load`.
        path: the file to write; its name ends in .mjs or .js. Node.js and bundlers read .mjs as a module in every package,
            and .js only in packages with `"type": "module"`.
        title: origin of the graph, for the first line of the module.
        input_shapes: the shape of each input, to save a graph with names for these sizes alone. Default: inputs keep the
            names in their shapes, with the sizes to expect, which are a draft: `opweave serve --drafts` has them.
        drop_size_rules: write a graph of `from_torch` although the program was exported for some sizes alone. The file cannot
            check sizes, so results for other sizes may be wrong.

    Returns:
        The files that were written: the module, the weights if there are any, and the types.

    Raises:
        ValidationError: `graph` is no graph, or the name of the file ends otherwise; `input_shapes` do not fit.
        NotSupportedError: an operation is neither one of WebNN's, nor has it a decomposition, or an argument of it is a size
            with a name; the message names the operation. The graph has rules for sizes.
        InvalidStateError: the graph is destroyed.
        DataError: a file cannot be written.

    >>> import numpy as np, opweave as ow, tempfile
    >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    >>> weights = builder.constant(np.ones((64, 64), "float32"))
    >>> graph = builder.build({"y": builder.matmul(builder.input("x", "float32", [1, 64]), weights)})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in ow.js.save(graph, f"{folder}/model.mjs")]
    ['model.mjs', 'model.safetensors', 'model.d.mts']
    """
    require(isinstance(graph, MLGraph), f"save takes an MLGraph, got {type(graph).__name__}")
    require(isinstance(title, str), f"save: title must be a string, got {short_repr(title)}")
    path = Path(path)
    require(
        path.suffix.lower() in SUFFIXES,
        f"save: the name of a module must end in {' or '.join(SUFFIXES)}, got {str(path)!r}",
    )
    recorded = (
        graph_for_all_sizes(graph, "save", drop_size_rules=drop_size_rules)
        if input_shapes is None
        else state_of(graph).static_graph("save", input_shapes)
    )
    weights_path, types_path = path.with_suffix(".safetensors"), path.with_suffix(SUFFIXES[path.suffix.lower()])
    try:
        plain = webnn_only(recorded)
        unread = [name for name in recorded.inputs if name not in plain.inputs]
        builder = next(iter(recorded.outputs.values())).builder
        hints = getattr(builder, "size_hints", {})
        module = JsModule(plain, path.name, weights_path.name, title, unread, hints)
        text = module.text()
    except ValidationError as error:
        if not recorded.has_names:
            raise
        advice = "save(..., input_shapes={...}) saves it for certain sizes"
        raise NotSupportedError(f"save: {error}; {advice}") from error
    with ExitStack() as stack:
        # Files are renamed in reverse order: the weights are in place before the module that reads them.
        stack.enter_context(atomic_writer(path)).write(text.encode())
        stack.enter_context(atomic_writer(types_path)).write(module.declarations().encode())
        if module.weights:
            write(stack.enter_context(atomic_writer(weights_path)), module.weights)
    return [path, weights_path, types_path] if module.weights else [path, types_path]


def webnn_only(graph: Graph) -> Graph:
    """Decompose all operations that WebNN and its drafts do not have, recursively.

    Empty operands are removed, and inputs that no operation reads: `build` of WebNN refuses them.
    """
    for kind, operands in {"input": graph.inputs, "output": graph.outputs}.items():
        for name, operand in operands.items():
            if is_empty(operand):
                raise ValidationError(
                    f"save: WebNN in JavaScript has no dimensions of 0, got {kind} {name!r} {operand.desc}"
                )

    values = (value for node in graph.nodes for value in (*node.operands, *node.outputs))
    beyond = dict.fromkeys(str(value.desc) for value in values if value.data_type not in ANY)
    if beyond:
        raise ValidationError(f"save: WebNN in JavaScript has the data types {', '.join(ANY)}, got {', '.join(beyond)}")

    def is_built_in(node: Node) -> bool:
        return vars(Operations).get(node.op.name) is node.op

    def decomposition_of(node: Node) -> Any:
        if names := _names_in_constant(node):
            rule = (
                "its operations of WebNN must not have constants that are computed from sizes with names in JavaScript"
            )
            raise ValidationError(f"{rule}, got {names}")
        return node.op.decomposition

    for node in graph.nodes:
        for name, operand in operands_of(node):
            if operand.node is not None and (names := _names_in_constant(operand.node)):
                rule = "must not be computed from sizes with names in JavaScript"
                raise ValidationError(f"{node.title}: {camel_case(name)} {rule}, got {names}")
    whole = legalise(fold_empty(graph)[0], is_built_in, "WebNN", has_results=True, decomposition_of=decomposition_of)[0]
    read = {operand for node in whole.nodes for operand in node.operands}
    inputs = {name: operand for name, operand in whole.inputs.items() if operand in read}
    return Graph(inputs, whole.outputs, whole.nodes)


def _names_in_constant(node: Node) -> str:
    """The names of sizes from which a node computes a constant; empty for other nodes."""
    is_constant = node.op in (constants.sizes, constants.computed)
    return ", ".join(map(printable, sorted(variables_in(tuple(node.attributes.values()))))) if is_constant else ""
