"""Rules for ONNX Runtime's own operators (com.microsoft), whose kernels do not check all of their inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ...core.shapes import broadcasts_to
from ...support.errors import NotSupportedError
from .operator_rules import EngineNode, Rule
from .protobuf import NodeProto
from .tables import MICROSOFT


def _single(*positions: int) -> Rule:
    """A rule that the inputs at these positions hold one value each, or are absent."""

    def rule(node: EngineNode) -> str:
        for position in positions:
            shape = node.shape(position)
            if shape is not None and math.prod(shape) != 1:
                return f"input {position} must hold one value, got the shape {list(shape)}"
        return ""

    return rule


def _requires(positions: Sequence[int], message: str) -> Rule:
    """A rule that there are inputs at these positions; `message` has a placeholder for the first absent one."""

    def rule(node: EngineNode) -> str:
        absent = [position for position in positions if not node.is_given(position)]
        return message.format(absent[0]) if absent else ""

    return rule


def _all(*rules: Rule) -> Rule:
    """Combine rules: return the first fault that one of them finds."""
    return lambda node: next(filter(None, (rule(node) for rule in rules)), "")


def _quantized_where(node: EngineNode) -> str:
    constant = {position for position in (3, 6, 7, 8) if node.value(position) is not None}
    if {7, 8} <= constant < {3, 6, 7, 8}:  # the kernel's constructor then reads the others
        return f"inputs 3 and 6 must be constants where 7 and 8 are, and input {6 if 3 in constant else 3} is not"
    return ""


def _not_empty(node: EngineNode) -> str:
    shape = node.shape(0, decides=False) or ()
    return f"input 0 must not be empty, got the shape {list(shape)}" if 0 in shape else ""


def _ranks(allowed: Mapping[int, tuple[int, ...]]) -> Rule:
    """A rule that each input at a position in `allowed` has one of these ranks; kernels index shapes unchecked."""

    def rule(node: EngineNode) -> str:
        for position, ranks in allowed.items():
            shape = node.shape(position)
            if shape is not None and len(shape) not in ranks:
                axes = " or ".join(map(str, ranks))
                return f"input {position} must have {axes} axes, got the shape {list(shape)}"
        return ""

    return rule


def _quantized_matmul(single: tuple[int, ...], by_column: tuple[int, ...], bias: int) -> Rule:
    """A rule for quantised matrix products.

    The scales and zero points at the positions `single` hold one value; those at `by_column` hold one value, or one per column
    of the second matrix.
    """

    def rule(node: EngineNode) -> str:
        for position in (0, 1):
            shape = node.shape(position)
            if shape is not None and len(shape) < 2:
                return f"input {position} must have at least 2 axes, got the shape {list(shape)}"
        if (fault := _single(*single)(node)) or (b := node.shape(1)) is None:
            return fault
        columns = [*b[:-2], 1, b[-1]]
        for position in by_column:
            shape = node.shape(position)
            if shape is not None and not broadcasts_to(shape, columns):
                return f"input {position} must be broadcastable to {columns}, got the shape {list(shape)}"
        bias_shape = node.shape(bias)
        if bias_shape is not None and math.prod(bias_shape) != b[-1]:
            return f"input {bias} must have {b[-1]} values, got the shape {list(bias_shape)}"
        return ""

    return rule


_ATTENTION_LSTM_RANKS = (3, 3, 3, 2, 1, 3, 3, 2, 3, 3, 2, 3, 1, 3)


def _inverse(node: EngineNode) -> str:
    shape = node.shape(0)
    if shape is None or (len(shape) >= 2 and shape[-1] == shape[-2]):
        return ""
    return f"input 0 must hold square matrices, got the shape {list(shape)}"


def _last_axis(node: EngineNode) -> str:
    """Require a last axis that is not empty: kernels of mixtures of experts divide by its size."""
    shape = node.shape(0)
    if not shape or shape[-1]:
        return ""
    return f"the last axis of input 0 must not be empty, got the shape {list(shape)}"


def _packed_attention(node: EngineNode) -> str:
    x, weights = node.shape(0), node.shape(1)
    if x is not None and len(x) != 3:
        return f"input must have 3 axes, got the shape {list(x)}"
    if weights is not None and (len(weights) != 2 or (x is not None and weights[0] != x[2])):
        expected = "2 axes" if x is None else f"2 axes, the first of {x[2]}"
        return f"weights must have {expected}, got the shape {list(weights)}"
    return ""


def _quantized_concat(node: EngineNode) -> str:
    inputs = list(node.proto.input)
    if "" in inputs:
        return f"its inputs must not be absent, and input {inputs.index('')} is"
    parts = range(2, len(inputs), 3)
    return _single(0, 1, *(position + k for position in parts for k in (1, 2)))(node)


ENGINE_RULES: dict[str, Rule] = {
    "Attention": _all(_requires([2], "it needs a bias, input {}, which is absent"), _packed_attention),
    "AttnLSTM": _all(
        _requires(range(8, 12), "it needs inputs 8 to 11, and input {} is absent"),
        _ranks({position: (rank,) for position, rank in enumerate(_ATTENTION_LSTM_RANKS)}),
    ),
    "DynamicQuantizeMatMul": _quantized_matmul((), (2, 3), 4),
    "Inverse": _inverse,
    "MatMulIntegerToFloat": _quantized_matmul((2, 4), (3, 5), 6),
    "MoE": _all(_ranks({0: (2, 3), 1: (2,), 2: (3,), 4: (3,), 6: (3,)}), _last_axis),
    "QLinearConcat": _quantized_concat,
    "QLinearLeakyRelu": _single(1, 2, 3, 4),
    "QLinearSigmoid": _single(1, 2, 3, 4),
    "QLinearSoftmax": _all(_not_empty, _single(1, 2, 3, 4)),
    "QLinearWhere": _all(
        _requires(range(9), "it takes 9 inputs, and input {} is absent"), _quantized_where, _single(2, 3, 5, 6, 7, 8)
    ),
    "QMoE": _all(_ranks({0: (2, 3), 1: (2,), 2: (3,), 5: (3,), 8: (3,)}), _last_axis),
}

_FREQUENT = frozenset({"Attention", "MatMulIntegerToFloat", "MoE", "QMoE"})


def check_decided(nodes: Iterable[NodeProto], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse nodes whose rules depend on dimensions that only a call determines; the engine would run such nodes unchecked.

    Frequent operators are exempt: many models with dynamic dimensions contain them, and compiling such a model for each
    shape would take too long.
    """
    for proto in nodes:
        rule = ENGINE_RULES.get(proto.op_type) if proto.domain == MICROSOFT else None
        if rule is not None and proto.op_type not in _FREQUENT:
            node = EngineNode(proto, [shapes.get(name) for name in proto.input], ())
            if rule(node) or not node.is_decided:
                raise NotSupportedError(f"{proto.op_type} is checked for the sizes of each call")
