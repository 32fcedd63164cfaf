"""One ONNX node, or a few, run by `InferenceSession` and by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import opweave as ow
from opweave.onnx.session.compiled import CompiledModel
from opweave.onnx.session.session import InferenceSession
from support.onnx import run_again

MICROSOFT = "com.microsoft"
TRADITIONAL = "ai.onnx.ml"
CONTEXT = ow.ml.create_context()
RNG = np.random.default_rng(3)


def compiled_models(session: InferenceSession) -> list[CompiledModel]:
    """The models that a session keeps compiled, one for each combination of input shapes."""
    return [compiled for _, compiled in session._parts.shape_cache.compiled.items()]


def randn(*shape: int) -> np.ndarray:
    """Normally distributed float32 numbers."""
    return RNG.standard_normal(shape).astype(np.float32)


def integers(low: int, high: int, *shape: int, dtype: str = "int32") -> np.ndarray:
    """Integers in [low, high), in any data type."""
    return RNG.integers(low, high, shape).astype(dtype)


def ints(*values: int) -> np.ndarray:
    """A vector of int64, as shapes and axes are."""
    return np.array(values, np.int64)


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
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    if any(node.domain == TRADITIONAL for node in nodes):
        imports.append(helper.make_opsetid(TRADITIONAL, 3))
    # What inference does not know (ONNX Runtime's own operators), the engine finds out itself.
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=imports, ir_version=10))


def node_model(
    op_type: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    *,
    opset: int = 21,
    outputs: int = 1,
    dynamic: Sequence[int] = (0,),
    domain: str = "",
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and what to feed it: the inputs at the positions `dynamic`; the others are constants."""
    arrays = {f"x{k}": np.asarray(value) for k, value in enumerate(inputs) if value is not None}
    names = [f"x{k}" if value is not None else "" for k, value in enumerate(inputs)]
    feed = {f"x{k}": arrays[f"x{k}"] for k in dynamic}
    constants = {name: array for name, array in arrays.items() if name not in feed}
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op_type, names, results, domain=domain, **(attributes or {}))
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
    session = InferenceSession(model, CONTEXT, fallback="auto" if fallback else "error", specialise="always")
    found, wanted = run_again(session, feed), run_engine(model, feed)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        if rtol:
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)
        else:
            np.testing.assert_array_equal(ours, theirs)
    return session


def check_node(
    op_type: str,
    *inputs: np.ndarray | None,
    wanted: Any = None,
    constants: Sequence[int] = (),
    opset: int = 21,
    outputs: int = 1,
    domain: str = "",
    rtol: float = 1e-5,
    atol: float = 1e-6,
    **attributes: Any,
) -> None:
    """Require that WebNN computes a node, and finds `wanted`, or else the engine's results."""
    dynamic = [k for k, value in enumerate(inputs) if value is not None and k not in constants]
    model, feed = node_model(op_type, inputs, attributes, opset=opset, outputs=outputs, dynamic=dynamic, domain=domain)
    expected = run_engine(model, feed) if wanted is None else [wanted]
    found = run_again(InferenceSession(model, CONTEXT, fallback="error"), feed)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)


def check_fallback(reason: str, op_type: str, *inputs: np.ndarray, **attributes: Any) -> None:
    """Require that a node falls back for a reason that holds these words, with the engine's results."""
    model, feed = node_model(op_type, inputs, attributes, dynamic=range(len(inputs)))
    (line,) = reasons(check_agreement(model, feed, fallback=True))
    assert reason in line


def reasons(session: InferenceSession) -> list[str]:
    """The lines of the explanation that tell why nodes fell back."""
    text = session.explain()
    return [line.strip() for line in text.splitlines() if line.startswith("  ") and ": " in line]
