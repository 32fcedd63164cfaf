"""One ONNX node, or a few, run by `InferenceSession` and by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import opweave as ow
from opweave.onnx.session import InferenceSession

CONTEXT = ow.ml.create_context()


def model_of(
    nodes: Sequence[onnx.NodeProto],
    feed: Mapping[str, np.ndarray],
    constants: Mapping[str, Any],
    outputs: Sequence[str],
    *,
    opset: int = 21,
) -> onnx.ModelProto:
    """A model with inputs like the arrays of `feed`, and outputs of types that are left to inference."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feed.items()
    ]
    graph = helper.make_graph(
        nodes,
        "test",
        inputs,
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", opset)]
    model = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=imports, ir_version=10))
    inferred = {value.name: value for value in model.graph.output}
    for value in model.graph.output:
        assert inferred[value.name].type.WhichOneof("value"), f"the type of {value.name} is not known"
    return model


def node_model(
    op_type: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    *,
    opset: int = 21,
    outputs: int = 1,
    dynamic: Sequence[int] = (0,),
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and what to feed it: the inputs at the positions `dynamic`; the others are constants."""
    arrays = {f"x{k}": np.asarray(value) for k, value in enumerate(inputs) if value is not None}
    names = [f"x{k}" if value is not None else "" for k, value in enumerate(inputs)]
    feed = {f"x{k}": arrays[f"x{k}"] for k in dynamic}
    constants = {name: array for name, array in arrays.items() if name not in feed}
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op_type, names, results, **(attributes or {}))
    return model_of([node], feed, constants, results, opset=opset), feed


def run_engine(model: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> list[Any]:
    """What ONNX Runtime gives."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, dict(feed))
    return found


def check_agreement(
    model: onnx.ModelProto, feed: Mapping[str, np.ndarray], *, fallback: bool = False, rtol: float = 0.0
) -> InferenceSession:
    """Require the engine's results, of which WebNN has computed all unless `fallback`; the session."""
    session = InferenceSession(model, CONTEXT, fallback="auto" if fallback else "error")
    found, wanted = session.run(None, feed), run_engine(model, feed)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        if rtol:
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)
        else:
            np.testing.assert_array_equal(ours, theirs)
    return session


def reasons(session: InferenceSession) -> list[str]:
    """The lines of the explanation that tell why nodes fell back."""
    text = session.explain()
    return [line.strip() for line in text.splitlines() if line.startswith("  ") and ": " in line]
