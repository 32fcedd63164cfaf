"""Tables that sessions need before a model is traced: ONNX's data types and domains, and the converters by operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from ...core.dtypes import INFO, DataType
from .protobuf import GraphProto, NodeProto, TensorProto, domain_of

if TYPE_CHECKING:
    from .registry import Converter

MICROSOFT = "com.microsoft"
TRADITIONAL = "ai.onnx.ml"
"""Domains of operators beside ONNX's own, "": ONNX Runtime's operators, and traditional machine learning."""

ELEMENT_TYPES: dict[DataType, int] = {info.name: info.onnx for info in INFO.values()}
"""WebNN data type -> the ONNX element type of the same name."""

DATA_TYPES: dict[int, DataType] = {**{onnx: name for name, onnx in ELEMENT_TYPES.items()}, TensorProto.BOOL: "uint8"}
"""ONNX element type -> the WebNN data type that carries it."""

Key: TypeAlias = tuple[str, str]
"""The domain and the name of an operator."""

CONVERTERS: dict[Key, Converter] = {}
"""Opweave's own converters. `operators` registers them, so readers of this table import `operators` first. Models that ONNX
Runtime runs uncompiled need neither."""

REGISTERED: dict[Key, Converter] = {}
"""The converters of the user's operations. They take precedence in the models that are read from then on."""


def key_of(node: NodeProto) -> Key:
    """The key of a node's converter in `CONVERTERS`."""
    return domain_of(node), node.op_type


def in_place(graph: GraphProto, converters: Mapping[Key, Converter]) -> dict[str, str]:
    """Name of an output that may alias an updated input -> name of that input."""
    updating = {key: converter.updates for key, converter in converters.items() if converter.updates}
    if not updating:
        return {}
    inputs, outputs = {info.name for info in graph.input}, {info.name for info in graph.output}
    aliases: dict[str, str] = {}
    for node in graph.node:
        for result, position in updating.get(key_of(node), {}).items():
            if result < len(node.output) and position < len(node.input):
                source, target = node.input[position], node.output[result]
                if source in inputs and target in outputs:
                    aliases[target] = source
    return aliases
