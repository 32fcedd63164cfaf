"""Operations of users among Opweave's own on WebGPU devices: kernels, expressions and composites."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from samples import Make
from support.composite_cases import CASES, check, run
from support.webgpu_kernels import computed, engine_of, line_of, mapped, normal

import opweave as ow

wgpu = pytest.importorskip("wgpu", reason="wgpu is not installed")


def test_devices_run_their_own_kernels(context: ow.MLContext) -> None:
    @ow.op
    def told(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
        return x.desc

    @told.kernel("cpu")
    def _(x, out):  # type: ignore[no-untyped-def]
        out[...] = 1

    told.kernel("webgpu", "fn main(i: u32) { out[i] = 2.0; }")
    cpu = ow.ml.create_context(accelerated=False)
    x = np.zeros(2, "float32")
    assert computed(cpu, told, x).tolist() == [1, 1]
    assert computed(context, told, x).tolist() == [2, 2]
    for _again in range(2):  # the second call takes the short way, where there is one
        assert told(x).tolist() == [1, 1]
        with context:
            assert told(x).tolist() == [2, 2]
    told.kernel("webgpu", "fn main(i: u32) { out[i] = 3.0; }")
    with context:
        assert told(x).tolist() == [3, 3]
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": told(builder.input("x", "float32", [2]).relu()).tanh()})
    places = {p.node: (p.how, p.detail) for p in graph.placements()}
    number = line_of(__file__, '"fn main(i: u32) { out[i] = 3.0; }")')
    # This kernel does not read its operand, so relu has none.
    assert places["told"] == ("kernel", f"WebGPU: kernel 0, WGSL (test_webgpu_custom.py, line {number})")
    assert [step.how for step in graph.profile(repeat=1).steps] == ["WebGPU"]


def test_custom_operation_without_kernel_runs_on_host(context: ow.MLContext) -> None:
    @ow.op
    def here(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
        return x.desc

    here.kernel("cpu", lambda x, out: np.copyto(out, x * 3))
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": here(builder.input("x", "float32", [4]).relu(), label="h").relu()})
    assert {p.node: p.device for p in graph.placements()}["here 'h'"] == "cpu"
    assert "its kernels are for 'cpu', not for 'webgpu'" in graph.explain()
    x, y = (context.create_tensor("float32", [4], readable=True, writable=True) for _ in range(2))
    context.write_tensor(x, np.array([-1, 0, 1, 2], "float32"))
    ow.memory.copies.reset()
    context.dispatch(graph, {"x": x}, {"y": y})
    assert {k: v.count for k, v in ow.memory.copies.by_reason.items()} == {
        "from the device for here 'h'": 1,
        "to the device for relu": 1,
    }
    assert context.read_tensor(y).tolist() == [0, 0, 3, 6]
    builder = ow.MLGraphBuilder(context)
    result = here(builder.input("x", "float32", [4]), label="h")
    with pytest.raises(ow.NotSupportedError, match=r"here 'h': .* cannot run it \(its kernels are for 'cpu'"):
        builder.build({"y": result}, fallback="error")

    @ow.op
    def there(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
        return x.desc

    there.kernel("webgpu", "fn main(i: u32) { out[i] = x[i]; }")
    with pytest.raises(ow.NotSupportedError, match=r"there 't': .* its kernels are for 'webgpu'$"):
        there(np.array([1], "float32"), label="t")


def test_calls_on_tensors_and_arrays(context: ow.MLContext) -> None:
    @ow.op
    def sums(self, a: ow.MLOperand, b: ow.MLOperand):  # type: ignore[no-untyped-def]
        return a.desc, a.desc

    sums.kernel("webgpu", "fn main(i: u32) { out0[i] = a[i] + b[i]; out1[i] = a[i] - b[i]; }")
    x, y = np.array([1, 2], "float32"), np.array([10, 20], "float32")
    tensor = context.create_tensor("float32", [2], writable=True)
    context.write_tensor(tensor, x)
    for other in (y, context.tensor_from(tensor.gpu_buffer, "float32", [2])):
        found = sums(tensor, other)
        assert all(isinstance(value, ow.MLTensor) and value.context is context for value in found)
        wanted = [x + y, x - y] if other is y else [x + x, x - x]
        assert [context.read_tensor(value).tolist() for value in found] == [w.tolist() for w in wanted]
    assert context.read_tensor(sums(tensor, tensor)[0]).tolist() == [2, 4]
    with context:
        assert sums(x, y)[1].tolist() == [-9, -18]
        first, _ = sums(ow.array(x), y)
        assert np.asarray(first).tolist() == [11, 22]


def test_user_pipeline_between_dispatches(context: ow.MLContext) -> None:
    """A user's pipeline between dispatches, without waiting."""
    mapped.kernel("webgpu", "fn main(i: u32) { out[i] = x[i] * k; }")
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": mapped(builder.input("x", "float32", [64]), 3.0)})
    first, middle, last = (context.create_tensor("float32", [64], readable=True, writable=True) for _ in range(3))
    context.write_tensor(first, np.ones(64, "float32"))
    device = engine_of(context).device
    code = """
        @group(0) @binding(0) var<storage, read_write> values: array<f32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) { values[at.x] += 1.0; }
    """
    pipeline = device.create_compute_pipeline(
        layout="auto", compute={"module": device.create_shader_module(code=code), "entry_point": "main"}
    )
    group = device.create_bind_group(
        layout=pipeline.get_bind_group_layout(0),
        entries=[{"binding": 0, "resource": {"buffer": middle.gpu_buffer}}],
    )
    for _ in range(3):
        context.dispatch(graph, {"x": first}, {"y": middle})
        encoder = device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(1)
        compute.end()
        device.queue.submit([encoder.finish()])
        context.dispatch(graph, {"x": middle}, {"y": last})
        first, last = last, first
    assert set(context.read_tensor(first).tolist()) == {((1 * 3 + 1) * 3 * 3 + 1) * 3 * 3 * 3 + 3.0}


def test_expressions_become_a_part_of_the_kernel_before(context: ow.MLContext) -> None:
    @ow.expression
    def squashed(x, *, gain: float = 2.0):  # type: ignore[no-untyped-def]
        return ow.expr.tanh(x * gain) + 1

    weights, image = normal(4, 3, 3, 3), normal(1, 3, 8, 8)
    results = []
    for where in (context, ow.ml.create_context(device="reference")):
        builder = ow.MLGraphBuilder(where)
        x = builder.input("x", "float32", image.shape)
        hidden = builder.conv2d(x, builder.constant(weights), label="stem")
        graph = builder.build({"y": squashed(hidden, gain=0.5, label="squash")})
        results.append(where.compute(graph, {"x": image})["y"])
        if where is context:
            (kernel,) = graph.profile(detail=True).kernels
            assert kernel.node == "conv2d 'stem' + squashed 'squash'"
    np.testing.assert_allclose(results[0], results[1], 1e-4, 1e-5)


@pytest.mark.parametrize("op", CASES, ids=lambda op: op.name)
def test_composites_agree_with_their_witnesses(context: ow.MLContext, op: Any) -> None:
    @settings(max_examples=2)
    @given(st.data())
    def check_one(data: st.DataObject) -> None:
        call, wanted = CASES[op].make(Make(data.draw, {"x": CASES[op].types[-1]}))
        check(op, call, run(context, op, call), wanted)

    check_one()


def test_composites_run_as_their_parts(context: ow.MLContext) -> None:
    x, weight = normal(2, 3, 16), normal(16)
    results = []
    for where in (context, ow.ml.create_context(device="reference")):
        builder = ow.MLGraphBuilder(where)
        given = builder.input("x", "float32", x.shape)
        y = ow.composites.rms_norm(given, builder.constant(weight), label="norm")
        graph = builder.build({"y": y.tanh()})
        results.append(where.compute(graph, {"x": x})["y"])
        assert graph.devices == (where.device.name,)
    np.testing.assert_allclose(results[0], results[1], 1e-4, 1e-5)


def test_checked_indices_are_looked_at_on_the_host(context: ow.MLContext) -> None:
    @ow.expression
    def lookup(table, indices):  # type: ignore[no-untyped-def]
        return ow.expr.compute(indices.shape, lambda i: table.checked[indices[i]])

    builder = ow.MLGraphBuilder(context)
    table, indices = builder.input("table", "float32", [3]), builder.input("indices", "int32", [2])
    graph = builder.build({"y": lookup(table.relu(), indices, label="words").relu()})
    (place,) = (p for p in graph.placements() if p.node == "lookup 'words'")
    assert place.device == "cpu"
    assert "a GPU cannot report a failed check" in place.detail
    given = {"table": np.array([1, 2, 3], "float32"), "indices": np.array([2, 0], "int32")}
    assert context.compute(graph, given)["y"].tolist() == [3, 1]
    with pytest.raises(ow.OperationError, match=r"lookup 'words': the index .* of axis 0 must be in \[0, 3\)"):
        context.compute(graph, {**given, "indices": np.array([0, 7], "int32")})


def test_forms_are_taken_in_order(context: ow.MLContext) -> None:
    """On a GPU kernels for the CPU come last: an expression or a decomposition keeps the work there."""

    @ow.op
    def scaled(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
        return x.desc

    def form() -> tuple[str, float]:
        builder = ow.MLGraphBuilder(context)
        graph = builder.build({"y": scaled(builder.input("x", "float32", [1]))})
        (place,) = graph.placements()
        (value,) = context.compute(graph, {"x": np.ones(1, "float32")})["y"]
        return place.device, value

    scaled.kernel("cpu", lambda x, out: np.copyto(out, x * 2))
    assert form() == ("cpu", 2)
    scaled.decompose(lambda b, x: b.mul(x, 3.0))
    assert form() == (context.device.name, 3)
    scaled.expression(lambda x: x * 4)
    assert form() == (context.device.name, 4)
    scaled.kernel("webgpu", "fn main(i: u32) { out[i] = x[i] * 5.0; }")
    assert form() == (context.device.name, 5)


def test_custom_kernel_in_onnx_model(context: ow.MLContext) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    helper = onnx.helper

    @ow.op
    def doubled(self, x: ow.MLOperand, *, by: int):  # type: ignore[no-untyped-def]
        return x.desc

    doubled.kernel("webgpu", "fn main(i: u32) { out[i] = x[i] * by; }")
    ow.register_onnx("test.webgpu", "Doubled", doubled)
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("Doubled", ["h"], ["y"], domain="test.webgpu", by=2),
    ]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("test.webgpu", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets, ir_version=8)
    session = ow.InferenceSession(model.SerializeToString(), context, fallback="error")
    (result,) = session.run(None, {"x": np.array([-1, 1, 2], "float32")})
    assert result.tolist() == [0, 2, 4]
    assert "custom: doubled 'y', kernel, WebGPU: kernel 1, WGSL (test_webgpu_custom.py" in session.explain()


def test_calls_from_several_threads(context: ow.MLContext) -> None:
    @ow.op
    def times(self, x: ow.MLOperand, k: float):  # type: ignore[no-untyped-def]
        return x.desc

    times.kernel("webgpu", "fn main(i: u32) { out[i] = x[i] * k; }")

    def run(k: int) -> float:
        with context:
            return float(times(np.ones(3 + k % 5, "float32"), float(k))[-1])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, range(40))) == list(range(40))
