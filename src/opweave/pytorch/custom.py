"""Custom operations between PyTorch and Opweave, in both directions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from .. import memory
from ..core.operation import Op
from ..support.errors import NotSupportedError, ValidationError, import_extra, require
from ..support.names import short_repr
from .installed import import_torch

_SCHEMA_TYPES = {
    "int": "int",
    "float": "float",
    "bool": "bool",
    "str": "str",
    "Sequence[int]": "int[]",
    "Sequence[float]": "float[]",
}
"""Annotation of an attribute -> its type in a schema of PyTorch."""


_AS_TORCH: dict[str, tuple[Op[..., Any], int]] = {}
"""Name of an operator that `as_torch_op` made -> its operation, and the number of its results."""


def register_torch(name: str, op: Op[..., Any], *, attributes: Mapping[str, str] | None = None) -> None:
    """Let an operation compute the calls of an operator of PyTorch, in all modules converted from now on.

    Args:
        name: the operator with its library, "mylib::snake", and with its overload if it has one, "mylib::snake.out".
        op: takes the operator's tensors as operands, in order, and its other arguments by name.
        attributes: the operation's names of arguments that are named differently in PyTorch, `{"torch_name": "name"}`.

    Raises:
        ValidationError: `name` is no name of an operator, `op` no operation, or `attributes` has a name that `op` lacks.
        MissingExtraError: PyTorch is not installed.

    A call whose arguments the operation refuses is decomposed by PyTorch, or runs in PyTorch, as any other; `explain()` says
    so.

    >>> import torch, opweave as ow
    >>> @ow.expression
    ... def snake(x, *, alpha: float = 1.0):
    ...     return x + ow.expr.sin(alpha * x) ** 2 / alpha
    >>> ow.register_torch("mylib::snake", snake)
    """
    subject = "register_torch"
    library, _, rest = name.partition("::") if isinstance(name, str) else ("", "", "")
    operator, _, overload = rest.partition(".")
    require(
        library.isidentifier() and operator.isidentifier(),
        f'{subject}: name must be that of an operator, as in "mylib::snake", got {short_repr(name)}',
    )
    _check_operation(subject, name, op)
    renamed = dict(attributes or {})
    for ours in renamed.values():
        require(ours in op.attributes, f"{subject}: {op.name} has the attributes {list(op.attributes)}, not {ours!r}")
    import_torch(subject)
    from .registry import CONVERTERS, converts

    key = f"{library}.{operator}.{overload or 'default'}"
    CONVERTERS.pop(key, None)
    converts(key)(_converter(library, operator, overload or "default", op, renamed))


def _check_operation(subject: str, name: str, op: Any) -> None:
    if not isinstance(op, Op):
        declared = "@ow.expression, @ow.composite and @ow.op declare one"
        raise ValidationError(f"{subject}: {name} needs an operation, got {short_repr(op)}; {declared}")


def _converter(
    library: str, operator: str, overload: str, op: Op[..., Any], renamed: Mapping[str, str]
) -> Callable[..., Any]:
    """The converter of an operator: its tensors in order, and its other arguments by name, with the operator's defaults."""

    def convert(b: Any, *values: Any, **keywords: Any) -> Any:
        import torch

        from ..core.graph import MLOperand

        schema = attrgetter(f"{library}.{operator}.{overload}._schema")(torch.ops)
        operands: list[Any] = []
        attributes: dict[str, Any] = {}
        for position, argument in enumerate(schema.arguments):
            value = argument.default_value
            if position < len(values):
                value = values[position]
            value = keywords.get(argument.name, value)
            is_tensor = "Tensor" in str(argument.type)
            if is_tensor:
                # A list of tensors is the operation's sequence of operands.
                operands += [value] if value is None or isinstance(value, MLOperand) else [list(value)]
            else:
                attributes[renamed.get(argument.name, argument.name)] = value
        return op(b, *operands, **attributes)

    return convert


def as_torch_op(op: Op[..., Any], name: str | None = None, *, outputs: int = 1) -> Any:
    """Make an operation callable on PyTorch's tensors, and part of programs that PyTorch captures.

    The result is an operator of `torch.library`: `torch.export` and `torch.compile` keep it whole, with shapes from the
    operation's own rule, and `from_torch` converts it to the operation. `torch.onnx.export` writes it as a node of the
    operator's library (`opweave.pytorch.onnx_translations`), which `InferenceSession` computes by the operation. It has no
    gradient.

    Args:
        op: the operation; its attributes are numbers, strings, and sequences of numbers.
        name: the operator's name, with its library. Default: "opweave::" and the name of the operation.
        outputs: the number of results.

    Returns:
        A function of tensors on the CPU, and of the operation's attributes.

    Raises:
        ValidationError: `op` is no operation, or `name` no name of an operator.
        NotSupportedError: operands in a sequence, or an attribute of another type.
        MissingExtraError: PyTorch is not installed.

    >>> import torch, opweave as ow
    >>> @ow.expression
    ... def scaled(x, *, factor: float = 2.0):
    ...     return x * factor
    >>> operator = ow.as_torch_op(scaled, "example::scaled")
    >>> operator(torch.ones(2), factor=3.0)
    tensor([3., 3.])
    """
    from ..onnx.convert.register import register_onnx

    subject = "as_torch_op"
    _check_operation(subject, "the operator", op)
    full_name = f"opweave::{op.name}" if name is None else name
    require(outputs > 0, f"{subject}: outputs must be at least 1, got {outputs}")
    schema = _schema_of(op, outputs)
    import_torch(subject)
    import torch

    register_torch(full_name, op)
    domain, _, op_type = full_name.partition("::")
    register_onnx(domain, op_type, op)
    _AS_TORCH[full_name] = op, outputs

    def compute(*values: Any, **keywords: Any) -> Any:
        arrays = [_array_of(value) for value in values]
        results = op(*arrays, **{key: _array_of(value) for key, value in keywords.items()})
        return _map(_tensor_of, results)

    def infer(*values: Any, **keywords: Any) -> Any:
        return _infer_results(op, values, keywords)

    operator = torch.library.custom_op(full_name, compute, mutates_args=(), schema=schema)
    operator.register_fake(infer)
    return operator


def onnx_translations() -> dict[Any, Callable[..., Any]]:
    """Return the translations to ONNX of all operators that `as_torch_op` has made, for `torch.onnx.export`.

    An operator "mylib::snake" becomes a node "snake" of the domain "mylib", with the operation's attributes. Sessions of
    Opweave compute it by the operation: in another process, after `register_onnx("mylib", "snake", op)`. Other runtimes do not
    know it; `opweave.onnx.save(compiled.graph)` writes a module with ONNX's own operators.

    Returns:
        The operators, and functions of onnxscript: `torch.onnx.export(…, custom_translation_table=onnx_translations())`.

    Raises:
        MissingExtraError: PyTorch or onnxscript is not installed.

    >>> import opweave as ow
    >>> from opweave.pytorch import onnx_translations
    >>> @ow.expression
    ... def halved(x, *, times: int = 1):
    ...     return x * 0.5**times
    >>> operator = ow.as_torch_op(halved, "example::halved")
    >>> [str(operator) for operator in onnx_translations() if "halved" in str(operator)]
    ['example.halved.default']
    """
    import_torch("onnx_translations")
    import_extra("onnxscript", "", "onnx_translations")
    import torch

    return {
        attrgetter(f"{name.replace('::', '.')}.default")(torch.ops): _translation(name, op, outputs)
        for name, (op, outputs) in _AS_TORCH.items()
    }


def _translation(name: str, op: Op[..., Any], outputs: int) -> Callable[..., Any]:
    """A function that adds a node for an operator to a model of onnxscript."""
    from onnx.defs import OpSchema
    from onnxscript.values import Op as OnnxOperator, Opset

    domain, op_type = name.split("::")
    numbers = {"int": int, "float": float, "bool": int, "str": str, "int[]": Sequence[int], "float[]": Sequence[float]}
    kinds = {int: "INT", float: "FLOAT", str: "STRING", Sequence[int]: "INTS", Sequence[float]: "FLOATS"}
    tensors = [f"tensor({kind})" for kind in _ONNX_TYPES]
    inputs, attributes, parameters, constraints = [], [], [], []
    for own, parameter in op.parameters.items():
        if own == "label":
            continue
        option = {"default": parameter.default} if parameter.default is not inspect.Parameter.empty else {}
        if own in op.operands:
            kind = OpSchema.FormalParameterOption.Optional if option else OpSchema.FormalParameterOption.Single
            inputs.append(OpSchema.FormalParameter(own, f"T_{own}", param_option=kind))
            constraints.append((f"T_{own}", tensors, ""))
            annotation: Any = inspect.Parameter.empty
        else:
            annotation = numbers[_schema_type(op, own)]
            kind = getattr(OpSchema.AttrType, kinds[annotation])
            attributes.append(OpSchema.Attribute(own, kind, "", required=not option))
        parameters.append(inspect.Parameter(own, parameter.kind, annotation=annotation, **option))
    results = [OpSchema.FormalParameter(f"y{k}", f"T_y{k}") for k in range(outputs)]
    constraints += [(f"T_y{k}", tensors, "") for k in range(outputs)]
    schema = OpSchema(
        op_type, domain, 1, inputs=inputs, outputs=results, type_constraints=constraints, attributes=attributes
    )
    node = OnnxOperator(Opset(domain, 1), op_type, schema)

    signature = inspect.Signature(parameters)

    def translate(*arguments: Any, **keywords: Any) -> Any:
        values = signature.bind(*arguments, **keywords).arguments
        chosen = {key: value for key, value in values.items() if key not in op.operands and value is not None}
        flags = {key: int(value) for key, value in chosen.items() if isinstance(value, bool)}
        return node(*(values.get(own) for own in op.operands), **chosen | flags)

    translate.__name__ = op_type
    translate.__signature__ = signature  # type: ignore[attr-defined]
    translate.__annotations__ = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    return translate


_ONNX_TYPES = (
    "float", "float16", "bfloat16", "double", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
)  # fmt: skip
"""ONNX's types of elements that operations may take."""


def _map(function: Callable[[Any], Any], results: Any) -> Any:
    return tuple(map(function, results)) if isinstance(results, (tuple, list)) else function(results)


def _array_of(value: Any) -> Any:
    import torch

    from .tensors import array_of

    return array_of(value) if isinstance(value, torch.Tensor) else value


def _tensor_of(result: Any) -> Any:
    import numpy as np
    import torch

    array = np.asarray(result)
    return torch.from_numpy(
        array if array.flags.writeable else memory.copied(array, "read-only results of an operation")
    )


def _schema_of(op: Op[..., Any], outputs: int) -> str:
    """The schema of an operation's operator, without its name: "(Tensor x, *, float alpha=1.0) -> Tensor"."""
    refused = f"as_torch_op: {op.name}"
    if op.sequences:
        raise NotSupportedError(
            f"{refused} takes a sequence of operands, which operators made from operations do not have"
        )
    parts: list[str] = []
    is_keyword = False
    for name, parameter in op.parameters.items():
        if name == "label":
            continue
        annotation = str(parameter.annotation)
        is_optional = annotation.endswith("| None")
        if name in op.operands:
            kind = "Tensor?" if is_optional or parameter.default is None else "Tensor"
        else:
            kind = _schema_type(op, name) + ("?" if is_optional else "")
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not is_keyword:
            parts.append("*")
            is_keyword = True
        default = "" if parameter.default is inspect.Parameter.empty else f"={_literal(parameter.default)}"
        parts.append(f"{kind} {name}{default}")
    results = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
    return f"({', '.join(parts)}) -> {results}"


def _schema_type(op: Op[..., Any], name: str) -> str:
    """The type of an attribute in a schema of PyTorch, without whether it may be left out."""
    parameter = op.parameters[name]
    annotation = str(parameter.annotation)
    plain = annotation.removesuffix("| None").strip()
    # Numbers and strings to choose from, and aliases of such types, have defaults.
    plain = "str" if plain.startswith("Literal['") or isinstance(parameter.default, str) else plain
    if plain not in _SCHEMA_TYPES:
        raise NotSupportedError(
            f"as_torch_op: {op.name} has the attribute {name!r} of type {annotation or 'unknown'}, and operators take "
            f"{', '.join(_SCHEMA_TYPES)}"
        )
    return _SCHEMA_TYPES[plain]


def _literal(value: Any) -> str:
    """A default in a schema."""
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value)) if isinstance(value, (tuple, list)) else str(value)


def _infer_results(op: Op[..., Any], values: Any, keywords: Mapping[str, Any]) -> Any:
    """Tensors without memory of the shapes that an operation's rule gives; sizes of PyTorch stay symbols."""
    import torch

    from ..context.builder import NamedBuilder
    from ..context.context import ml
    from ..core.sizes import Size
    from .tensors import DATA_TYPES, data_type_of

    builder = NamedBuilder(ml.create_context(device="reference"))
    symbols: dict[str, Any] = {}
    tensors = [value for value in (*values, *keywords.values()) if isinstance(value, torch.Tensor)]

    def dimension_of(size: Any) -> Any:
        if isinstance(size, int):
            return size
        for name, other in symbols.items():
            if other.node.expr == size.node.expr:
                return name
        name = f"size{len(symbols)}"
        symbols[name] = size
        return name

    def operand_of(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        shape = [dimension_of(size) for size in value.shape]
        return builder.input(f"input{len(builder.inputs)}", data_type_of(value.dtype, op.name), shape)

    result = op(builder, *map(operand_of, values), **{key: operand_of(value) for key, value in keywords.items()})
    dtypes = {name: dtype for dtype, name in DATA_TYPES.items() if dtype is not torch.bool}

    def tensor_like(operand: Any) -> Any:
        shape = [size.at(symbols) if isinstance(size, Size) else size for size in operand.shape]
        return tensors[0].new_empty(shape, dtype=dtypes[operand.data_type])

    return _map(tensor_like, result)
