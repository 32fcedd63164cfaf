"""Convert one ONNX node to WebNN operations, by the converter of its operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...context.builder import MLGraphBuilder
from ...core.dtypes import ANY, INFO, is_float
from ...core.graph import MLOperand
from ...ops.constants import constant
from ...support.hints import meant
from ...support.names import count_of
from ..model.booleans import as_declared, bool_as_uint8
from ..model.model import Model
from ..model.protobuf import NodeProto, TensorProto, TypeProto, attribute_value, domain_of, sub_graphs, tensor_type
from ..model.registry import DATA_TYPES, ELEMENT_TYPES, Converter, Unsupported, data_type_of, unsupported_if
from ..model.values import FOLD_BYTES, Constant, Dynamic, NamedSizes, SizeData, Tensor, Value
from .operators.logic import BOOLEAN


def convert(
    builder: MLGraphBuilder,
    node: NodeProto,
    values: Sequence[Value | None],
    model: Model,
    infer: Callable[[], Mapping[str, TypeProto]],
) -> dict[str, Value]:
    """Convert a node, and return its outputs by name; absent inputs are None.

    `infer` is called only if the inputs do not determine the types of the outputs. An `MLError` means that the builder refuses
    an operation.
    """
    unsupported_if(sub_graphs(node), "it has sub-graphs")
    converter = model.converter(node)
    if converter is None:
        raise Unsupported("WebNN has no operation for it")
    is_own = converter.op is None
    types = [_element_type(name, value, is_own) for name, value in zip(node.input[:], values, strict=True)]
    values = whole_limits(node, values) if is_own else values
    takes_names = converter.op is None and node.op_type in TAKES_NAMES
    takes_data = converter.op is None and node.op_type in TAKES_SIZE_DATA
    inputs = [
        _operand_of_sizes(builder, value, model)
        if takes_data and isinstance(value, (NamedSizes, SizeData))
        else _argument(builder, value, takes_names)
        for value in values
    ]
    if not any(isinstance(value, MLOperand) for value in inputs):
        # The builder takes types from operands, so constants that are too large to fold become operands.
        inputs = [
            builder.constant(value) if isinstance(value, np.ndarray) and value.dtype != object else value
            for value in inputs
        ]
    keywords = keywords_of(converter, node, types, model)
    result = converter.function(builder, *inputs, **keywords)
    results = result if isinstance(result, tuple) else (result,)
    if is_own:
        _check_nodes(builder, results, inputs)
    if len(results) < len(node.output):
        names = [name for name in node.output if name]
        raise Unsupported(f"only {len(results)} of the outputs {names} can be made")
    outputs, inferred = node.output[:], result_types(node, types, results, infer)
    return {
        name: _value(name, item, inferred[name].tensor_type.elem_type if name in inferred else 0)
        for name, item in zip(outputs, results, strict=False)
        if name
    }


def _check_nodes(builder: MLGraphBuilder, results: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Require that something runs the nodes that compute results from inputs."""
    pending = [result for result in results if isinstance(result, MLOperand)]
    seen = {operand for operand in inputs if isinstance(operand, MLOperand)}
    while pending:
        operand = pending.pop()
        node = operand.node
        if node is None or operand in seen:
            continue
        seen.update(node.outputs)
        pending += node.operands
        if node.has_further_types:
            from ...compile.driver import can_run  # models of other types do without its imports

            types = dict.fromkeys(operand.data_type for operand in (*node.operands, *node.outputs))
            unsupported_if(
                not can_run(node, builder.context.backend), f"nothing computes {node.op.name} of {', '.join(types)}"
            )


def _element_type(name: str, value: Value | None, takes_all: bool) -> int:
    """The ONNX element type of an input, 0 if it is absent. Users' operations take the specification's types only."""
    if value is None:
        return 0
    element_type = value.element_type
    is_allowed = element_type in DATA_TYPES and (takes_all or DATA_TYPES[element_type] in ANY)
    if not is_allowed and not (isinstance(value, Dynamic) and element_type == 0):
        raise Unsupported(f"its input {name!r} is {TensorProto.DataType.Name(element_type).lower()}")
    if isinstance(value, Dynamic):
        raise Unsupported(f"its input {name!r} has a shape that is known only when the graph runs")
    return element_type


def whole_limits(node: NodeProto, values: Sequence[Value | None]) -> Sequence[Value | None]:
    """Replace the inputs of a Range by integers, if all are whole and one is cast from a size; else return them unchanged."""
    if node.op_type != "Range" or not any(isinstance(value, SizeData) for value in values):
        return values
    whole = [value.whole if isinstance(value, Constant) else None for value in values]
    return values if any(value is None for value in whole) else whole


TAKES_NAMES = frozenset({"ConstantOfShape", "Expand", "Pad", "Range", "Reshape", "Resize", "Slice", "Split", "Tile"})
"""Operators whose converters take sizes that are known only when the graph runs."""


TAKES_SIZE_DATA = frozenset(
    {
        *("Abs", "Add", "Cast", "Ceil", "Div", "Exp", "Floor", "Log", "Max", "Min", "Mul", "Neg", "Pow", "Reciprocal"),
        *("Sqrt", "Sub"),
    }
)
"""Operators whose inputs are data alone, also if sizes gave them."""


def _operand_of_sizes(builder: MLGraphBuilder, value: NamedSizes | SizeData, model: Model) -> MLOperand:
    """An operand that the graph computes from the sizes of a run."""
    if isinstance(value, NamedSizes):
        return constant(builder, value.symbols.tolist(), value.dtype.name)
    if builder not in value.operands:
        (result,) = convert(builder, value.node, value.values, model, dict).values()
        assert isinstance(result, Tensor)
        value.operands[builder] = result.operand
    return value.operands[builder]


def operand_of_constant(builder: MLGraphBuilder, value: Constant, model: Model) -> MLOperand:
    """An operand of a value that is known while the graph is built; the graph computes those of sizes."""
    if isinstance(value, (NamedSizes, SizeData)):
        return _operand_of_sizes(builder, value, model)
    return builder.constant(bool_as_uint8(value.array))


def _argument(builder: MLGraphBuilder, value: Value | None, takes_names: bool) -> MLOperand | np.ndarray | None:
    """An input as converters take it: small constants are arrays."""
    if isinstance(value, Tensor):
        return value.operand
    if takes_names and isinstance(value, NamedSizes):
        return value.symbols
    if isinstance(value, Constant):
        array = bool_as_uint8(value.array)
        return array if array.nbytes <= FOLD_BYTES else builder.constant(array)
    return None


def keywords_of(converter: Converter, node: NodeProto, types: list[int], model: Model) -> dict[str, Any]:
    """The keyword arguments of a converter's call; `Unsupported` if the node does not fit the converter."""
    check_form(converter, node)
    keywords: dict[str, Any] = {}
    for attribute in node.attribute[:]:
        value = attribute_value(attribute)
        keywords[attribute.name] = [_text(item) for item in value] if isinstance(value, list) else _text(value)
    if "label" in converter.attributes:
        keywords["label"] = node.name
    if converter.extras and converter.op is None:  # a custom operation may have attributes of these names
        extras = {
            "opset": model.opsets.get(domain_of(node), 1),
            "outputs": len(node.output),
            "stream": partial(model.stream_of, node.output[0]),
            "types": types,
        }
        if node.op_type == "QLinearSoftmax" and isinstance(keywords.get("opset"), int):
            extras["opset"] = keywords["opset"]  # the attribute: the operator set of the Softmax that was quantised
        keywords |= {name: extras[name] for name in converter.extras}
    return keywords


def check_form(converter: Converter, node: NodeProto) -> None:
    """Raise `Unsupported` if the attributes or the number of inputs of a node do not fit its converter."""
    for attribute in node.attribute[:]:
        if attribute.name not in converter.attributes:
            raise Unsupported(_unknown_attribute(converter, attribute.name))
    inputs = len(node.input)
    if (converter.inputs is not None and inputs > converter.inputs) or inputs < converter.required:
        most = "any number" if converter.inputs is None else converter.inputs
        takes = f"{most}" if converter.required == converter.inputs else f"{converter.required} to {most}"
        taker = "WebNN" if converter.op is None else converter.op.name
        raise Unsupported(f"it has {count_of(inputs, 'input')}, and {taker} takes {takes}")


def _unknown_attribute(converter: Converter, name: str) -> str:
    if converter.op is None:
        return f"its attribute {name} is not supported"
    if name in converter.operands:
        before = ", ".join(text for other, text in converter.operands.items() if other != name)
        declared = f"def {converter.op.name}({before}, *, {converter.operands[name]})"
        return f"{name!r} stands before *, so it is an operand; write {declared}"
    names = sorted(converter.attributes - {"label"})
    return (
        f"{converter.op.name} has no attribute {name!r}, only {names}{meant(name, names)}; "
        "register_onnx(…, attributes={onnx_name: name}) maps names"
    )


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def result_types(
    node: NodeProto, types: Sequence[int], results: Sequence[Any], infer: Callable[[], Mapping[str, TypeProto]]
) -> Mapping[str, TypeProto]:
    """The types of a node's outputs by name; empty if WebNN's data types are right."""
    if node.op_type in BOOLEAN and domain_of(node) == "":
        return {node.output[0]: tensor_type(TensorProto.BOOL)}
    # Loading ONNX's schemas takes time and megabytes. They are not needed if one float type comes in and goes out, or if
    # results have the type of the first input. uint8 may stand for bool.
    input_types = [DATA_TYPES[element_type] for element_type in types if element_type]
    output_types = {data_type_of(result) for result in results if result is not None}
    if output_types == set(input_types[:1]) and output_types.isdisjoint(("uint8", "bool")):
        return {}
    floats = {name for name in INFO if is_float(name)}
    output_types -= {"bool"}
    return {} if output_types <= floats and len(output_types | floats.intersection(input_types)) <= 1 else infer()


def _value(name: str, item: Any, element_type: int) -> Value:
    """A converter's result as the value of the output `name`; `element_type` is 0 if WebNN's data type is right."""
    if item is None:
        raise Unsupported(f"the output {name!r} cannot be made")
    if isinstance(item, np.ndarray):
        return Constant(as_declared(item, element_type))
    if element_type and DATA_TYPES.get(element_type) != item.data_type:
        raise Unsupported(f"the output {name!r} has type {TensorProto.DataType.Name(element_type)}")
    return Tensor(item, element_type or ELEMENT_TYPES[item.data_type])
