"""Custom operations for ONNX models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...support.errors import NotSupportedError, OperationError, ValidationError, require
from ...support.hints import meant
from ...support.names import short_repr
from ..model.checks import title_of
from ..model.model import Model
from ..model.protobuf import NodeProto, TensorProto, array_of, domain_of
from ..model.registry import MICROSOFT, REGISTERED, Converter, Tensor, Unsupported, operand

if TYPE_CHECKING:
    from ...context.builder import MLGraphBuilder
    from ...core.operation import Op


def require_operators(model: Model) -> None:
    """Require that each operator of a model can run, and that nodes fit the user's operations.

    An operator can run if WebNN, the user or the engine has it, or if ONNX defines it by others. ONNX's own domain is checked
    only if the user has registered operations: a custom node that lost its domain would make later nodes fail first.
    """
    if model.operations:
        from .conversion import check_form

        for node in model.nodes:
            operation = model.operation(node)
            if operation is not None and not operation.falls_back:
                try:
                    check_form(operation, node)
                except Unsupported as error:
                    raise NotSupportedError(f"{title_of(node)}: {error}") from None
    operators = model.operators - model.operations.keys()
    doubtful = {(domain, op_type) for domain, op_type in operators if domain != "" or REGISTERED}
    if REGISTERED:
        from .control import CONTROL

        doubtful -= {("", op_type) for op_type in CONTROL}
    if not doubtful:
        return
    from .operators import CONVERTERS

    if doubtful <= CONVERTERS.keys():
        return  # without loading the schemas of ONNX and of the engine

    from ...backends.onnxruntime.opsets import unknown_operator
    from .inference import is_defined, schema_of

    def is_known(node: NodeProto) -> bool:
        is_own = domain_of(node) == "" and schema_of(node, model) is not None
        return model.converter(node) is not None or is_own or is_defined(node, model)

    if unknown := unknown_operator(model.proto, is_known, _registered_like):
        raise OperationError(unknown)


def _registered_like(node: NodeProto) -> str:
    """A registered operator that a node may mean: of the same name in another domain, or of a similar name in its domain."""
    for domain, op_type in REGISTERED:
        if op_type == node.op_type:
            return f"registered is {_full_name(domain, op_type)}: set node.domain = {domain!r}"
    for domain, op_type in REGISTERED:
        if domain == domain_of(node) and meant(node.op_type, [op_type]):
            return f"registered is {_full_name(domain, op_type)}{meant(node.op_type, [op_type])}"
    return ""


def _full_name(domain: str, op_type: str) -> str:
    return f"{domain}.{op_type}" if domain else op_type


def register_onnx(domain: str, op_type: str, op: Op[..., Any], *, attributes: Mapping[str, str] | None = None) -> None:
    """Let an operation compute the nodes of an ONNX operator, in all sessions made from now on.

    Args:
        domain: the operator's domain; "" for ONNX's own operators.
        op_type: the operator's name.
        op: takes the node's inputs as operands, in order, and its attributes by name, tensors as arrays.
        attributes: the operation's names of attributes that are named differently in ONNX, `{"onnx_name": "name"}`.

    A node whose attributes the operation does not have, or whose operands it refuses, raises an error. A node of one of ONNX's
    own operators, or of ONNX Runtime's, falls back as usual.

    >>> import opweave as ow
    >>> @ow.expression
    ... def swiglu(x, gate):
    ...     return x * gate * ow.expr.sigmoid(gate)
    >>> ow.register_onnx("com.example", "SwiGLU", swiglu)
    """
    from ...core.operation import Op

    for subject, value in {"domain": domain, "op_type": op_type}.items():
        require(isinstance(value, str), f"register_onnx: {subject} must be a string, got {value!r}")
    require(op_type != "", "register_onnx: op_type must not be empty")
    if not isinstance(op, Op):
        declared = "@ow.expression, @ow.composite and @ow.op declare one"
        raise ValidationError(f"register_onnx: {op_type} needs an operation, got {short_repr(op)}; {declared}")
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

    def convert(b: MLGraphBuilder | None, /, *inputs: Tensor | None, label: str, **keywords: Any) -> Any:
        # Without a builder, the inputs are arrays, and the results are computed.
        operands = [value if value is None or b is None else operand(b, value) for value in inputs]
        values = {"label": label, **{names[name]: value for name, value in keywords.items()}}
        values.update((name, bool(values[name])) for name in flags & values.keys())
        values.update((n, array_of(v)) for n, v in values.items() if isinstance(v, TensorProto))
        head = () if b is None else (b,)
        return op(*head, operands, **values) if several else op(*head, *operands, **values)

    falls_back = domain in ("", MICROSOFT)
    REGISTERED[domain, op_type] = Converter.of_op(op, convert, {*names, "label"}, op=op, falls_back=falls_back)
