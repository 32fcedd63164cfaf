"""Custom operations for ONNX models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..builder import MLGraphBuilder
from ..errors import OperationError, ValidationError, require
from ..names import shown
from ..operation import Op
from .inference import is_defined
from .messages import NodeProto, TensorProto, array_of, domain_of
from .model import Model
from .registry import CONVERTERS, MICROSOFT, Converter, Tensor, key_of, operand


def require_operators(model: Model) -> None:
    """Require that each operator of a model from other domains than ONNX's own can run.

    It can if WebNN, the user or the engine has it, or if ONNX defines it by others.

    Raises:
        OperationError: an operator that nothing has.
    """

    def is_known(node: NodeProto) -> bool:
        return key_of(node) in CONVERTERS or is_defined(node, model)

    if all(domain_of(node) == "" or is_known(node) for node in model.proto.graph.node):
        return  # without loading the schemas of the engine
    from ..backends.onnxruntime.opsets import unknown_operator

    if unknown := unknown_operator(model.proto, is_known):
        raise OperationError(unknown)


def register_onnx(domain: str, op_type: str, op: Op[..., Any], *, attributes: Mapping[str, str] | None = None) -> None:
    """Let an operation compute the nodes of an ONNX operator, in all sessions made from now on.

    Args:
        domain: the operator's domain; "" for ONNX's own operators.
        op_type: the operator's name.
        op: takes the node's inputs as operands, in order, and its attributes by name, tensors as arrays.
        attributes: the operation's names of attributes that have other names in ONNX, `{"onnx_name": "name"}`.

    A node whose attributes the operation does not have, or whose operands it refuses, raises an error, since no engine has the
    operator. A node of one of ONNX's own operators falls back as usual.

    >>> import opweave as ow
    >>> @ow.expression
    ... def swiglu(x, gate):
    ...     return x * gate * ow.expr.sigmoid(gate)
    >>> ow.register_onnx("com.example", "SwiGLU", swiglu)
    """
    for what, value in {"domain": domain, "op_type": op_type}.items():
        require(isinstance(value, str), f"register_onnx: {what} must be a string, got {value!r}")
    require(op_type != "", "register_onnx: op_type must not be empty")
    if not isinstance(op, Op):
        declared = "@ow.expression, @ow.composite and @ow.op declare one"
        raise ValidationError(f"register_onnx: {op_type} needs an operation, got {shown(op)}; {declared}")
    names = {name: name for name in op.attributes}
    for theirs, ours in (attributes or {}).items():
        require(
            ours in op.attributes, f"register_onnx: {op.name} has the attributes {list(op.attributes)}, not {ours!r}"
        )
        names.pop(ours, None)
        names[theirs] = ours
    several = bool(op.sequences)
    require(not several or len(op.operands) == 1, f"register_onnx: {op.name} takes a sequence and other operands")
    flags = {name for name in op.attributes if op.parameters[name].annotation == "bool"}  # integers in ONNX

    def convert(b: MLGraphBuilder, /, *inputs: Tensor | None, label: str, **given: Any) -> Any:
        operands = [None if value is None else operand(b, value) for value in inputs]
        values = {"label": label, **{names[name]: value for name, value in given.items()}}
        values.update((name, bool(values[name])) for name in flags & values.keys())
        values.update((n, array_of(v)) for n, v in values.items() if isinstance(v, TensorProto))
        return op(b, operands, **values) if several else op(b, *operands, **values)

    is_custom = domain not in ("", MICROSOFT)
    CONVERTERS[domain, op_type] = Converter.of_op(op, convert, {*names, "label"}, is_custom=is_custom, op=op.name)
