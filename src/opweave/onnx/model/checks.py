"""Rules that ONNX Runtime does not check: a node that breaks one crashes the process, or never returns.

All nodes are checked when the model is read, and again by tracing, with the shapes and constants known then. Each rule comes
from a model that did harm; `tests/fuzz/bombs.py` has these models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

import numpy as np

from ...support.errors import DataError
from ...support.names import short_repr
from .limits import ModelLimits
from .protobuf import AttributeProto, FunctionProto, ModelProto, NodeProto, copy_of, domain_of
from .scopes import all_nodes
from .tables import MICROSOFT

Callee = tuple[str, str, str]
"""The key of a function: its domain, name and overload."""

MAX_RANK = 1024
"""The largest rank of a tensor. Shape inference allocates one axis for each element of an input that holds a shape."""

_INT32 = 2**31 - 1

_VARIADIC = {
    **dict.fromkeys(("Concat", "Einsum", "Max", "Mean", "Min", "SequenceConstruct", "Sum"), 0),
    "Loop": 2,
    "Scan": 1,  # before operator set 9, the first one is optional
    "SequenceMap": 1,
}
"""Operators with any number of inputs -> the position from which no input may be absent."""

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

_SHAPES = {
    **dict.fromkeys(("AffineGrid", "CenterCropPad", "Expand", "Reshape", "Squeeze"), (1,)),
    **dict.fromkeys(("Tile", "Unsqueeze", "Upsample", *(f"Reduce{name}" for name in _REDUCTIONS)), (1,)),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "MaxUnpool": (2,),
    "Pad": (1, 3),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
}
"""The positions of inputs that hold one number for each axis."""

_SCALARS = {
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow", "If"), (0,)),
    **dict.fromkeys(("CumSum", "CumProd", "OneHot", "SequenceAt", "SequenceErase", "TopK", "Trilu"), (1,)),
    **dict.fromkeys(("Clip", "DFT", "Dropout"), (1, 2)),
    "Loop": (0, 1),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (2, 3, 4),
    "Pad": (2,),
    "Range": (0, 1, 2),
    "STFT": (1, 3),
    "SequenceInsert": (2,),
}
"""The positions of inputs that hold one value; kernels read it without checking that there is one."""

RULED = frozenset(
    {
        "Einsum",
        "GatherND",
        "LayerNormalization",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "RoiAlign",
        "Split",
        "SplitToSequence",
        "TfIdfVectorizer",
        "Unique",
    }
)
"""Operators of ONNX with further rules (`operator_rules`)."""

_POSITIVE = frozenset(
    {"blocksize", "dilations", "group", "kv_num_heads", "num_groups", "num_outputs", "q_num_heads", "strides"}
)
"""Attributes that kernels divide sizes by."""


def check_node(
    node: NodeProto,
    where: str = "",
    shapes: Sequence[tuple[int, ...] | None] = (),
    values: Sequence[np.ndarray | None] = (),
) -> None:
    """Raise `DataError` for a node that would crash or block ONNX Runtime.

    `where` is the end of the node's title in messages (" inside of If 'choice'"). `shapes` and `values` of the inputs are None
    where they are unknown.
    """
    for attribute in node.attribute[:]:
        if attribute.name in _POSITIVE:
            numbers = list(attribute.ints) if attribute.type == AttributeProto.INTS else [attribute.i]
            if min(numbers, default=1) < 1 or max(numbers, default=1) > _INT32:
                got = numbers if attribute.type == AttributeProto.INTS else numbers[0]
                _refuse(node, where, f"{attribute.name} must be positive and less than 2**31, got {short_repr(got)}")
    op_type, domain = node.op_type, domain_of(node)
    if domain == MICROSOFT or (domain == "" and op_type in RULED):
        from .operator_rules import EngineNode, rule_of

        rule = rule_of(domain, op_type)
        if rule is not None and (fault := rule(EngineNode(node, shapes, values))):
            _refuse(node, where, fault)
    if domain != "":
        return
    first = _VARIADIC.get(op_type)
    if first is not None and "" in node.input[first:]:
        position = first + node.input[first:].index("")
        _refuse(node, where, f"its inputs must not be absent, and input {position} is")
    if not shapes:
        return
    for position in _SHAPES.get(op_type, ()):
        shape = shapes[position] if position < len(shapes) else None
        if shape is not None and max(shape, default=0) > MAX_RANK:
            fault = f"input {position} has a value for each axis, and at most {MAX_RANK} axes are possible"
            _refuse(node, where, f"{fault}, got the shape {list(shape)}")
    for position in _SCALARS.get(op_type, ()):
        shape = shapes[position] if position < len(shapes) else None
        if shape is not None and 0 in shape:
            _refuse(node, where, f"input {position} must hold one value, got the shape {list(shape)}")


def needs_inputs(node: NodeProto) -> bool:
    """Whether a rule for a node needs the shapes or values of its inputs."""
    if node.domain == MICROSOFT:
        from .operator_rules import rule_of

        return rule_of(MICROSOFT, node.op_type) is not None
    return node.op_type in RULED or node.op_type in _SHAPES or node.op_type in _SCALARS


def needs_values(node: NodeProto) -> bool:
    """Whether a rule for a node needs the values of its inputs."""
    return domain_of(node) == "" and node.op_type == "SplitToSequence"


def title_of(node: NodeProto, where: str = "") -> str:
    """Describe a node in messages: operator, name if any, and place."""
    return f"{node.op_type} {node.name[:200]!r}{where}" if node.name else f"{node.op_type}{where}"


def _refuse(node: NodeProto, where: str, fault: str) -> None:
    raise DataError(f"{title_of(node, where)}: {fault}")


def count_nodes(nodes: Sequence[NodeProto], functions: Iterable[FunctionProto]) -> int:
    """Count the nodes of a model after functions are inlined; `DataError` if a function calls itself."""
    bodies = {(f.domain, f.name, f.overload): list(all_nodes(f.node)) for f in functions}
    if not bodies:
        return len(nodes)
    callees = {key: {callee_of(node) for node in body} & bodies.keys() for key, body in bodies.items()}
    counts: dict[Callee, int] = {}
    from graphlib import CycleError, TopologicalSorter

    try:
        for key in TopologicalSorter(callees).static_order():
            counts[key] = sum(counts.get(callee_of(node), 1) for node in bodies[key])
    except CycleError as error:
        _, name, _ = error.args[1][0]
        raise DataError(f"the function {name[:200]!r} calls itself") from None
    return sum(counts.get(callee_of(node), 1) for node in nodes)


def with_expected_names(proto: ModelProto, nodes: list[NodeProto]) -> tuple[ModelProto, list[NodeProto]]:
    """The model and its nodes; copies if the inputs or outputs of a node must be rewritten for ONNX Runtime.

    ONNX Runtime misreads LayerNormalization, refuses Squeeze, and crashes in DFT if an absent last input is written as an
    empty name, and misreads QLinearLeakyRelu and QLinearSigmoid if an absent last zero point is not. It crashes in Split if
    an output is absent.
    """
    if all(_expected_inputs(node) is None and not _lacks_outputs(node) for node in nodes):
        return proto, nodes
    copy = copy_of(proto)
    copied = list(all_nodes(copy.graph.node))
    used = {name for node in copied for name in (*node.input, *node.output)}
    for node in copied:
        if (expected := _expected_inputs(node)) is not None:
            node.input[:] = expected
        if _lacks_outputs(node):
            names = (name for k in count() if (name := f"unused output {k}") not in used)
            node.output[:] = [name or next(names) for name in node.output]
            used.update(node.output)
    return copy, copied


def _lacks_outputs(node: NodeProto) -> bool:
    """Whether ONNX Runtime crashes because an output is absent."""
    return node.op_type == "Split" and domain_of(node) == "" and "" in node.output


def _expected_inputs(node: NodeProto) -> list[str] | None:
    """The inputs in the form that ONNX Runtime reads correctly; None if the node has that form."""
    op_type = node.op_type
    # The first name stays: a node without inputs, even OptionalHasElement, is not folded.
    if len(node.input) > 1 and not node.input[-1] and domain_of(node) == "" and op_type not in _VARIADIC:
        count = max((k for k, name in enumerate(node.input, 1) if name), default=1)
        return list(node.input[:count])
    if op_type in ("QLinearLeakyRelu", "QLinearSigmoid") and node.domain == MICROSOFT and len(node.input) == 4:
        return [*node.input, ""]
    return None


def callee_of(node: NodeProto) -> Callee:
    """The key of the function that a node calls, if the model has that function."""
    return node.domain, node.op_type, node.overload


def check_node_count(count: int, limits: ModelLimits, subject: str) -> None:
    """Raise `DataError` if a model has too many nodes; `subject` is the model in messages."""
    limits.check("nodes", count, f"{subject}: the number of nodes, those of functions included")
