"""ONNX sessions, operations on arrays and custom operations on tensors in WebGPU contexts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.webgpu_device import gpu_context
from support.webgpu_kernels import normal

import opweave as ow
from opweave.lazy.array import values_of

wgpu = pytest.importorskip("wgpu", reason="wgpu is not installed")


# ---------------------------------------------------------------------------------------------------------------------
# ONNX models


def small_network(tail: str = "") -> bytes:
    """A convolution, pooling, a softmax; or what a parser makes of another end."""
    import onnx

    text = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        network (float[n, 3, 6, 6] x) => (float[n, 4] y, float[n, 4, 1, 1] pooled)
        <float[4, 3, 3, 3] w = {{{", ".join(str((k * 7 % 11 - 5) / 10) for k in range(108))}}}> {{
            c = Conv<pads = [1, 1, 1, 1]>(x, w)
            r = Relu(c)
            pooled = GlobalAveragePool(r)
            f = Flatten(pooled)
            {tail or "y = Softmax<axis = 1>(f)"}
        }}"""
    return bytes(onnx.parser.parse_model(text).SerializeToString())


def test_sessions_keep_tensors_on_the_device(context: ow.MLContext) -> None:
    model, x = small_network(), normal(2, 3, 6, 6)
    expected = ow.InferenceSession(model, ow.ml.create_context(accelerated=False)).run(None, {"x": x})
    session = ow.InferenceSession(model, context, preferred_output_location={"y": "ml-tensor"})
    source = context.create_tensor("float32", x.shape, writable=True)
    context.write_tensor(source, x)
    y, pooled = session.run(None, {"x": source})
    assert isinstance(y, ow.MLTensor)
    np.testing.assert_allclose(context.read_tensor(y), expected[0], rtol=1e-5)
    np.testing.assert_allclose(pooled, expected[1], rtol=1e-5)
    # Tensors in, tensors out: nothing comes to the host.
    target = context.create_tensor("float32", [2, 4], readable=True)
    ow.memory.copies.reset()
    (again,) = session.run(["y"], {"x": source}, out={"y": target})
    assert again is target
    assert ow.memory.copies.count == 0
    np.testing.assert_allclose(context.read_tensor(target), expected[0], rtol=1e-5)
    for wanted in (x, x.copy()):  # and arrays, twice
        np.testing.assert_allclose(
            ow.InferenceSession(model, context).run(None, {"x": wanted})[0], expected[0], rtol=1e-5
        )
    wrong = context.create_tensor("float32", [2, 3, 6, 7])
    with pytest.raises(ow.ValidationError, match=r"input 'x' must have shape \[n, 3, 6, 6\], got \[2, 3, 6, 7\]"):
        session.run(None, {"x": wrong})
    with pytest.raises(ow.ValidationError, match=r"out\['y'\] must have shape \[2, 4\], got \[3, 4\]"):
        session.run(["y"], {"x": source}, out={"y": context.create_tensor("float32", [3, 4])})


def test_session_fallback_counts_copies(context: ow.MLContext) -> None:
    # Dropout in training mode has no form on a device; with a ratio of 0, it keeps all values.
    constants = "t = Constant<value = bool {1}>() p = Constant<value = float {0.0}>()"
    model, x = small_network(f"{constants} y = Dropout(f, p, t)"), normal(1, 3, 6, 6)
    session = ow.InferenceSession(model, context, preferred_output_location="ml-tensor")
    source = context.create_tensor("float32", x.shape, writable=True)
    context.write_tensor(source, x)
    ow.memory.copies.reset()
    y, pooled = session.run(None, {"x": source})
    assert isinstance(y, ow.MLTensor)
    assert isinstance(pooled, ow.MLTensor)
    reasons = dict(ow.memory.copies.by_reason)
    np.testing.assert_array_equal(context.read_tensor(y), context.read_tensor(pooled)[..., 0, 0])
    assert "fallback" in session.explain()
    assert reasons["from the device for Dropout"].count == 1
    assert reasons["an output to the device"].count == 1
    assert not any("input" in reason or reason == "an output from the device" for reason in reasons)


@pytest.mark.parametrize("text", ["y = Identity(x)", "y = Erf(x)", "n = NonZero(x) y = Cast<to = 1>(n)"])
def test_sessions_without_a_segment_on_the_device(context: ow.MLContext, text: str) -> None:
    """Tensors of the device are inputs and outputs, also where the shape of an output depends on data."""
    import onnx

    kind = "float[1, k]" if "NonZero" in text else "float[4]"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => ({kind} y) {{ {text} }}'
    model, x = onnx.parser.parse_model(text).SerializeToString(), np.float32([0, 1, 2, 3])
    (wanted,) = ow.InferenceSession(model, ow.ml.create_context(accelerated=False)).run(None, {"x": x})
    source = context.create_tensor("float32", [4], writable=True)
    target = context.create_tensor("float32", wanted.shape, readable=True)
    context.write_tensor(source, x)
    session = ow.InferenceSession(model, context, preferred_output_location="ml-tensor")
    (found,) = session.run(None, {"x": source})
    (given,) = session.run(None, {"x": source}, out={"y": target})
    assert given is target
    for tensor in (found, given):
        np.testing.assert_allclose(context.read_tensor(tensor), wanted, rtol=1e-6)


def test_dispatch_of_graph_on_host(context: ow.MLContext) -> None:
    @ow.op
    def shifted(self: Any, x: ow.MLOperand) -> ow.Desc:
        return x.desc

    def kernel(x: np.ndarray, out: np.ndarray) -> None:
        np.add(x, 1, out=out)

    shifted.kernel("cpu", kernel)
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": shifted(builder.input("x", "float32", [3]))})
    x, y = context.create_tensor("float32", [3], writable=True), context.create_tensor("float32", [3], readable=True)
    context.write_tensor(x, np.float32([1, 2, 3]))
    context.dispatch(graph, {"x": x}, {"y": y})
    assert context.read_tensor(y).tolist() == [2, 3, 4]


# ---------------------------------------------------------------------------------------------------------------------
# Operations on arrays and tensors


def test_array_operations_run_on_device_of_context() -> None:
    """Contexts of the same name have a device each: what was compiled for one that has ended is not used for another."""
    for value in (1.0, 2.0):
        other = ow.ml.create_context(device=gpu_context().device.name)
        with other:
            assert ow.ops.neg(ow.array([value])).tolist() == [-value]
        other.destroy()


def test_custom_operations_take_tensors_and_arrays_together(context: ow.MLContext) -> None:
    @ow.expression
    def weighted(x: Any, y: Any, *, scale: float = 1.0) -> Any:
        return x * scale + y

    tensor = context.create_tensor("float32", [2], writable=True)
    context.write_tensor(tensor, np.float32([1, 2]))
    before = ow.memory.copies.count
    made = weighted(tensor, tensor, scale=2.0)
    assert ow.memory.copies.count == before  # it stays on the device
    assert context.read_tensor(made).tolist() == [3, 6]
    made = weighted(tensor, np.float32([10, 20]))
    assert made.context is context
    assert context.read_tensor(made).tolist() == [11, 22]


def test_arrays_stay_on_the_device_between_operations(context: ow.MLContext) -> None:
    @ow.jit
    def layer(x: Any) -> Any:
        return x.relu() + x

    with context:
        x = ow.array(np.float32([[-1, 2]]))
        before = ow.memory.copies.count
        y = ow.ops.neg(x)
        ow.ops.abs(y)  # never computed
        for _ in range(3):  # one by one at first, then as one graph
            z = ow.ops.abs(ow.ops.exp(y)) * y
            values_of(z)
        w = layer(z)
        assert ow.memory.copies.count == before
        assert np.allclose(w.numpy(), [[2 * np.exp(1), -2 * np.exp(-2)]])
        assert ow.memory.copies.count == before + 1
        assert w.tolist() == w.numpy().tolist()
        assert np.from_dlpack(y).tolist() == [[1, -2]]
        assert ow.ops.add(y, 1).tolist() == [[2, -1]]
        assert layer(np.float32([[1, 2]])).tolist() == [[2, 4]]
