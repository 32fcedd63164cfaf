"""Small ONNX models for tests, written in one call: nodes, values with their types, and constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

import opweave as ow
from support.graphs import assert_same, reversed_elements

FLOAT, BOOL, STRING, DOUBLE = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.STRING, TensorProto.DOUBLE

Value = tuple[str, int, Sequence[Any] | None] | ValueInfoProto
"""A value's name, element type and shape: `("x", FLOAT, ["n", 3])`."""
Types = Mapping[str, str] | Iterable[Value]
"""Values as a sequence, or by name with their types as text: `{"x": "float32[n, 3]"}`."""

IR_VERSIONS = {17: 8, 18: 8, 21: 10}
"""The version of the format that came with an operator set, which ONNX Runtime also reads; others have 10."""


def value_info(name: str, text: str) -> ValueInfoProto:
    """Describe a value by text.

    >>> value_info("x", "float32[n, 3]") == helper.make_tensor_value_info("x", FLOAT, ["n", 3])
    True
    >>> value_info("s", "string").type.tensor_type.HasField("shape")  # of any rank
    False
    >>> value_info("y", "").HasField("type")
    False
    """
    if not text:
        return helper.make_empty_tensor_value_info(name)
    data_type, bracket, sizes = text.rstrip("]").partition("[")
    shape = [int(size) if size.isdigit() else size for size in sizes.replace(" ", "").split(",") if size]
    element_type = STRING if data_type == "string" else helper.np_dtype_to_tensor_dtype(np.dtype(data_type))
    return helper.make_tensor_value_info(name, element_type, shape if bracket else None)


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """Make a node of values that spaces separate: `node("Add", "x y", "z")`."""
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def model(
    nodes: Sequence[NodeProto],
    inputs: Types,
    outputs: Types,
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 21,
    domains: Sequence[str] = (),
) -> ModelProto:
    """Make a model of one graph.

    Args:
        nodes: its nodes, in order.
        inputs: their names and types.
        outputs: likewise; the type "" leaves the value without one.
        constants: arrays that become initializers.
        opset: the version of ONNX's operators.
        domains: other domains, each with version 1 of its operators.
    """
    graph = helper.make_graph(
        nodes,
        "test",
        list(_infos(inputs)),
        list(_infos(outputs)),
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    made: ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSIONS.get(opset, 10))
    return made


def _infos(values: Types) -> Iterable[ValueInfoProto]:
    if isinstance(values, Mapping):
        return (value_info(name, text) for name, text in values.items())
    return (value if isinstance(value, ValueInfoProto) else helper.make_tensor_value_info(*value) for value in values)


def run_again(session: ow.InferenceSession, feed: Mapping[str, Any], outputs: Sequence[str] | None = None) -> list[Any]:
    """Run a session, once more with other floats, and again; return the last results, which must equal the first ones.

    See `graphs.compute_again`. Integers stay: they may be shapes.
    """
    first = session.run(outputs, feed)
    run_with_other_floats(session, feed, outputs)
    last: list[Any] = session.run(outputs, feed)
    for number, (array, other) in enumerate(zip(last, first, strict=True)):
        if isinstance(array, np.ndarray) and array.dtype != object:
            assert_same(array, other, f"output {number} of a later run")
    return last


def run_with_other_floats(
    session: ow.InferenceSession, feed: Mapping[str, Any], outputs: Sequence[str] | None = None
) -> None:
    """Run a session with the elements of floats in reverse order, without a look at the results."""
    others = {
        name: reversed_elements(value) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value
        for name, value in feed.items()
    }
    with suppress(ow.MLError):
        session.run(outputs, others)


def keep_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operators that a test registers end with it."""
    from opweave.onnx.model import registry

    monkeypatch.setattr(registry, "REGISTERED", operators := dict(registry.REGISTERED))
    for module in ("model.model", "convert.register"):
        monkeypatch.setattr(f"opweave.onnx.{module}.REGISTERED", operators)
