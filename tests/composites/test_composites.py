"""The composites: the kernels of the engine, the decompositions on two back ends, and witnesses, on made-up calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings, strategies as st
from row_sample import examples
from samples import Call, Make
from support import witness
from support.agreement import outputs_of, record
from support.arrays import floats
from support.cases import CPU, REFERENCE
from support.composite_cases import CASES, check, run
from support.every_device import DEVICES, context_on
from support.graphs import compute_again
from support.onnx_nodes import MICROSOFT, node_model, run_engine
from support.webgpu_device import gpu_context
from support.window_cases import MAKERS

import opweave as ow
from opweave import composites
from opweave.compile.driver import compile
from opweave.compile.legalise import legalise
from opweave.composites.random import new_stream
from opweave.core.dtypes import numpy_type
from opweave.core.graph import Graph, Node
from opweave.lazy.custom_call import CustomOp

# ---------------------------------------------------------------------------------------------------------------------
# All of them


def run_with_constants(op: CustomOp[Any], call: Call) -> list[np.ndarray]:
    """Run the call on ONNX Runtime where all operands but the first are known when the graph is built."""
    builder, (first, *others) = ow.MLGraphBuilder(CPU), call.args
    arrays = first if isinstance(first, list) else [first]
    inputs = [builder.input(f"x{k}", array.dtype.name, array.shape) for k, array in enumerate(arrays)]
    result = op(builder, inputs if isinstance(first, list) else inputs[0], *others, **call.kwargs)
    feed = {f"x{k}": array for k, array in enumerate(arrays)}
    return list(compute_again(CPU, builder.build(outputs_of(result)), feed).values())


def run_decomposed(op: CustomOp[Any], call: Call) -> list[np.ndarray]:
    """Run the call on ONNX Runtime, which is not told that there is a rule for the composite."""
    _, result, arrays = record(CPU, op, call)
    graph = Graph.reaching(outputs_of(result))
    backend = CPU.backend

    def supports(node: Node) -> bool:
        return not isinstance(node.op, CustomOp) and backend.supports(node)

    program = compile(legalise(graph, supports)[0], backend, device="cpu", power_preference="default", fuse=False)
    outputs = {name: np.empty(o.shape, o.data_type) for name, o in graph.outputs.items()}
    program.run([arrays[name] for name in graph.inputs], list(outputs.values()))
    return list(outputs.values())


RUNS: dict[str, Callable[[CustomOp[Any], Call], list[np.ndarray]]] = {
    "engine": lambda op, call: run(CPU, op, call),
    "constants": run_with_constants,
    "decomposed": run_decomposed,
    "reference": lambda op, call: run(REFERENCE, op, call),
    "webgpu": lambda op, call: run(gpu_context(), op, call),
}


WHOLE = {composites.bit_cast, composites.random_key}
"""Composites that operations of the specification cannot express."""


def rows() -> list[Any]:
    """Samples have each composite and data type in each way, but for WebGPU, which takes seconds for some.

    Calls with one operand have no constants.
    """
    return [
        pytest.param(op, t, how, id=f"{op.name}-{t}-{how}", marks=pytest.mark.covers(f"{name} {how}", f"{name} {t}"))
        for op, row in CASES.items()
        for t in row.types
        for how in RUNS
        if how != "decomposed" or op not in WHOLE
        if how != "constants" or len(op.operands) > 1
        for name in ["any" if how == "webgpu" else op.name]
    ]


def is_compiled(op: CustomOp[Any], how: str) -> bool:
    """Whether a call takes a tenth of a second, because it is compiled; other files have 200 calls of these composites."""
    return how == "webgpu" or (how in ("engine", "constants") and HOW[op][0] == "expression")


@pytest.mark.parametrize(("op", "data_type", "how"), rows())
def test_composites_equal_their_witness(op: CustomOp[Any], data_type: str, how: str) -> None:
    @settings(max_examples=examples(4, in_sample=2) if is_compiled(op, how) else examples(6, in_sample=3))
    @given(st.data())
    def check_one(data: st.DataObject) -> None:
        call, wanted = CASES[op].make(Make(data.draw, {"x": data_type}))
        check(op, call, RUNS[how](op, call), wanted)

    check_one()


# ---------------------------------------------------------------------------------------------------------------------
# What the engine does itself


Q = floats(1, 4, 16)
KEY = np.uint32([1, 2, 3, 4])
PIXELS = np.ones((1, 1, 3, 3), "uint8"), np.float32(0.5), np.uint8(0)
ROWS = np.ones((2, 2), "uint8"), np.float32(0.5), np.uint8(0)
IMAGE, GRID, ROIS = floats(1, 2, 3, 4), floats(1, 5, 6, 2), np.float32([[0, 0, 2, 3], [1, 0, 3, 2]])
HOW: dict[CustomOp[Any], tuple[str, Call]] = {
    composites.compress: ("decomposed", Call(floats(4), np.uint8([0, 1, 0, 1]), 3)),
    composites.average_pool: ("native", Call(floats(1, 2, 4, 4, 4), window_dimensions=[2, 2, 2])),
    composites.col2im: ("native", Call(floats(1, 4, 4), [3, 3], [2, 2])),
    composites.conv_transpose: ("native", Call(floats(1, 2, 3, 3, 3), floats(2, 2, 2, 2, 2))),
    composites.convolution: ("native", Call(floats(1, 2, 4, 4, 4), floats(2, 2, 2, 2, 2))),
    composites.deform_conv: ("native", Call(floats(1, 2, 3, 3), floats(2, 2, 2, 2), floats(1, 8, 2, 2))),
    composites.lp_pool: ("decomposed", Call(floats(1, 2, 4, 4, 4), 3, window_dimensions=[2, 2, 2])),
    composites.max_pool: ("native", Call(floats(1, 2, 4, 4, 4), window_dimensions=[2, 2, 2])),
    composites.max_pool_with_indices: ("native", Call(floats(1, 2, 4, 4, 4), window_dimensions=[2, 2, 2])),
    composites.max_unpool: ("native", Call(floats(1, 1, 2), np.int64([[[0, 3]]]), [4])),
    composites.acos: ("expression", Call(floats(2, 4))),
    composites.acosh: ("native", Call(floats(2, 4) + 2)),
    composites.asin: ("expression", Call(floats(2, 4))),
    composites.asinh: ("native", Call(floats(2, 4))),
    composites.atan: ("expression", Call(floats(2, 4))),
    composites.atanh: ("native", Call(floats(2, 4) / 2)),
    composites.bernoulli: ("expression", Call(floats(2, 4), KEY)),
    composites.bit_cast: ("expression", Call(floats(2, 4), "int32")),
    composites.bitwise_and: ("native", Call(np.int32([5, 6]), np.int32([3]))),
    composites.bitwise_not: ("native", Call(np.int32([5, 6]))),
    composites.bitwise_or: ("native", Call(np.int32([5, 6]), np.int32([3]))),
    composites.bitwise_xor: ("native", Call(np.int32([5, 6]), np.int32([3]))),
    composites.cosh: ("native", Call(floats(2, 4))),
    composites.crop_and_resize: ("composed", Call(IMAGE, ROIS / 4, np.int64([0, 0]), [2, 3])),
    composites.cumulative_product: ("native", Call(floats(4), 0)),
    composites.affine_grid: ("expression", Call(floats(1, 2, 3), [3, 4])),
    composites.center_crop_pad: ("native", Call(floats(5, 4), [3, 6])),
    composites.depth_to_space: ("native", Call(floats(1, 4, 2, 2), 2)),
    composites.det: ("native", Call(floats(3, 2, 2))),
    composites.dft: ("decomposed", Call(floats(4, 1))),
    composites.erf_inv: ("expression", Call(floats(2, 4) / 2)),
    composites.expm1: ("expression", Call(floats(2, 4))),
    composites.fast_gelu: ("native", Call(floats(2, 4), floats(4))),
    composites.geglu: ("decomposed", Call(floats(2, 4), floats(2, 4))),
    composites.group_normalization: ("decomposed", Call(floats(1, 4, 2), groups=2)),
    composites.group_query_attention: ("native", Call(Q, floats(1, 4, 8), floats(1, 4, 8), heads=2, groups=1)),
    composites.gather_n_bits: (
        "composed",
        Call(np.zeros((3, 1, 8), "uint8"), floats(3, 1), np.int32([1, 2]), width=16, block_size=16),
    ),
    composites.grid_sample: ("native", Call(IMAGE, GRID)),
    composites.hard_max: ("native", Call(floats(2, 4))),
    composites.dequantized_matmul: ("native", Call(*ROWS[:2], np.ones((2, 2), "uint8"), np.float32(0.5))),
    composites.quantized_add: ("native", Call(*ROWS, *ROWS, np.float32(2), np.uint8(1))),
    composites.quantized_concat: (
        "native",
        Call([ROWS[0]] * 2, [ROWS[1]] * 2, [ROWS[2]] * 2, np.float32(2), np.uint8(1), 0),
    ),
    composites.quantized_mul: ("native", Call(*ROWS, *ROWS, np.float32(2), np.uint8(1))),
    composites.quantized_leaky_relu: ("native", Call(*ROWS, np.float32(2), np.uint8(1))),
    composites.quantized_mean: (
        "native",
        Call(np.ones((1, 2, 3, 3), "uint8"), *ROWS[1:], np.float32(2), np.uint8(1), [2, 3], keep_dimensions=True),
    ),
    composites.quantized_sigmoid: ("native", Call(*ROWS, np.float32(2), np.uint8(1))),
    composites.dynamic_quantize_linear: ("native", Call(floats(2, 4))),
    composites.integer_conv2d: ("native", Call(np.ones((1, 1, 3, 3), "uint8"), np.ones((1, 1, 2, 2), "uint8"))),
    composites.quantized_conv2d: (
        "native",
        Call(*PIXELS, np.ones((1, 1, 2, 2), "uint8"), np.float32(0.5), np.uint8(0), np.float32(2), np.uint8(1)),
    ),
    composites.quantized_matmul: (
        "native",
        Call(*ROWS, np.ones((2, 2), "uint8"), np.float32(0.5), np.uint8(0), np.float32(2), np.uint8(1)),
    ),
    composites.integer_matmul: (
        "native",
        Call(np.ones((2, 2), "uint8"), np.ones((2, 2), "uint8"), np.zeros((), "uint8"), np.zeros((), "uint8")),
    ),
    composites.inverse: ("native", Call(floats(2, 2) + np.eye(2, dtype="float32"))),
    composites.causal_conv_with_state: ("decomposed", Call(floats(1, 3, 4), floats(3, 1, 2))),
    composites.leaky_integrator: ("decomposed", Call(floats(3, 4), decay=0.5)),
    composites.linear_attention: (
        "native",
        Call(floats(1, 3, 4), floats(1, 3, 4), floats(1, 3, 4), heads=2, groups=2, update_rule="linear"),
    ),
    composites.selective_scan: (
        "decomposed",
        Call(floats(1, 3, 4), floats(1, 3, 4), -floats(4, 2), floats(1, 3, 2), floats(1, 3, 2)),
    ),
    composites.local_response_normalization: ("native", Call(floats(1, 4, 2, 2), 3)),
    composites.log1p: ("expression", Call(floats(2, 4) / 2)),
    composites.log_softmax: ("native", Call(floats(2, 4))),
    composites.matmul_n_bits: (
        "native",
        Call(floats(2, 16), np.zeros((3, 1, 8), "uint8"), floats(3, 1), block_size=16),
    ),
    composites.max_roi_pool: (
        "composed",
        Call(IMAGE, np.concatenate([np.zeros((2, 1), "float32"), ROIS], axis=1), pooled_shape=[2, 2]),
    ),
    composites.multi_head_attention: ("native", Call(Q, Q, Q, heads=2, causal=True)),
    composites.non_max_suppression: ("composed", Call(floats(1, 5, 4), floats(1, 2, 5), 3)),
    composites.non_zero: ("decomposed", Call(floats(4), 3)),
    composites.multinomial: ("composed", Call(floats(2, 4), KEY, 3)),
    composites.multinomial: ("decomposed", Call(floats(2, 4), KEY, 3)),
    composites.one_hot: ("decomposed", Call(np.int64([0, 1]), 3)),
    composites.quick_gelu: ("native", Call(floats(2, 4))),
    composites.rnn: ("native", Call(floats(3, 2, 4), floats(1, 2, 4), floats(1, 2, 2))),
    composites.ragged_gru: ("native", Call(floats(3, 2, 4), floats(1, 6, 4), floats(1, 6, 2), np.int32([1, 3]))),
    composites.ragged_lstm: ("native", Call(floats(3, 2, 4), floats(1, 8, 4), floats(1, 8, 2), np.int32([1, 3]))),
    composites.random_key: ("kernel", Call(stream=new_stream(seed=1))),
    composites.random_normal: ("expression", Call(KEY, [2, 4])),
    composites.random_uniform: ("expression", Call(KEY, [2, 4])),
    composites.resize: (
        "native",
        Call(IMAGE, sizes=[5, 6], axes=[2, 3], mode="linear", coordinate_transformation_mode="align_corners"),
    ),
    composites.rms_normalization: ("native", Call(floats(2, 4), floats(4))),
    composites.roi_align: ("composed", Call(IMAGE, ROIS, np.int64([0, 0]), output_height=2)),
    composites.rotary_embedding: ("native", Call(floats(1, 2, 3, 8), floats(3, 4), floats(3, 4))),
    composites.scaled_dot_product_attention: ("decomposed", Call(*[floats(1, 2, 3, 4)] * 3)),
    composites.scatter_reduce: ("composed", Call(floats(4), np.int64([0, 0, 1]), floats(3))),
    composites.shift_left: ("expression", Call(np.int32([5, 6]), np.int32([3]))),
    composites.shift_right: ("expression", Call(np.int32([5, 6]), np.int32([1]))),
    composites.sinh: ("native", Call(floats(2, 4))),
    composites.skip_layer_norm: ("decomposed", Call(floats(2, 4), floats(2, 4), floats(4))),
    composites.skip_rms_norm: ("decomposed", Call(floats(2, 4), floats(2, 4), floats(4))),
    composites.space_to_depth: ("native", Call(floats(1, 1, 2, 2), 2)),
    composites.stft: ("decomposed", Call(floats(1, 8, 1), step=2, frame_length=4)),
    composites.swiglu: ("decomposed", Call(floats(2, 4), floats(2, 4))),
    composites.tensor_scatter: ("decomposed", Call(floats(2, 4), floats(2, 2), np.int64([0, 1]))),
    composites.thresholded_relu: ("native", Call(floats(2, 4))),
    composites.top_k: ("native", Call(np.int64([3, 1, 2]), 2)),
    composites.unique: ("decomposed", Call(floats(4), 3)),
}
"""Each composite, how the engine does it, and a call that shows it."""


OWN = {
    composites.crop_and_resize: "CropAndResize",
    composites.dequantized_matmul: "MatMulIntegerToFloat",
    composites.quantized_add: "QLinearAdd",
    composites.quantized_concat: "QLinearConcat",
    composites.quantized_leaky_relu: "QLinearLeakyRelu",
    composites.quantized_mean: "QLinearGlobalAveragePool",
    composites.quantized_sigmoid: "QLinearSigmoid",
    composites.quantized_mul: "QLinearMul",
    composites.fast_gelu: "FastGelu",
    composites.gather_n_bits: "GatherBlockQuantized",
    composites.group_query_attention: "GroupQueryAttention",
    composites.inverse: "Inverse",
    composites.linear_attention: "LinearAttention",
    composites.matmul_n_bits: "MatMulNBits",
    composites.multi_head_attention: "MultiHeadAttention",
    composites.quick_gelu: "QuickGelu",
    composites.rms_normalization: "SimplifiedLayerNormalization",
    composites.rotary_embedding: "RotaryEmbedding",
    composites.skip_rms_norm: "SimplifiedLayerNormalization",
    composites.swiglu: "QuickGelu",
}
"""Operators that only ONNX Runtime has, for the calls of `HOW`."""


@pytest.mark.parametrize("how", ["engine", "constants"])
@pytest.mark.parametrize("op", [composites.fast_gelu, composites.quick_gelu, composites.thresholded_relu])
def test_activation_of_scalar_equals_reference(op: CustomOp[Any], how: str) -> None:
    call = Call(np.array(0.7, "float32"))
    assert RUNS[how](op, call)[0] == pytest.approx(RUNS["reference"](op, call)[0], rel=1e-6)


def test_composites_are_all_tested() -> None:
    everything = {op for name in composites.__all__ if isinstance(op := getattr(composites, name), CustomOp)}
    assert everything == HOW.keys()
    # These are tested in test_composite.py, test_sampling.py and test_random.py.
    elsewhere = {composites.local_response_normalization, composites.thresholded_relu}
    elsewhere |= {composites.grid_sample, composites.roi_align, composites.max_roi_pool, composites.crop_and_resize}
    elsewhere |= {composites.bernoulli, composites.multinomial}
    elsewhere |= {composites.random_key, composites.random_normal, composites.random_uniform}
    assert everything - CASES.keys() - MAKERS.keys() == elsewhere


@pytest.mark.parametrize("op", HOW, ids=lambda op: op.name)
def test_composite_runs_as_one_engine_node(op: CustomOp[Any]) -> None:
    how, call = HOW[op]
    builder, result, _ = record(CPU, op, call)
    lines = builder.build(outputs_of(result)).explain().rpartition("what runs where:\n")[2].splitlines()
    words = re.sub(r"^  \d+", "", lines[0]).split()  # without the number of the segment, if there are several
    assert words[:3] == [op.name, "cpu", how]


@pytest.mark.parametrize("op", HOW, ids=lambda op: op.name)
@pytest.mark.parametrize("operators", ["onnx", "onnxruntime"])
def test_save_writes_requested_operators(op: CustomOp[Any], operators: Any, tmp_path: Path) -> None:
    _, call = HOW[op]
    builder, result, arrays = record(CPU, op, call)
    graph = builder.build(outputs_of(result))
    path = tmp_path / "model.onnx"
    if op in WHOLE:
        with pytest.raises(ow.NotSupportedError, match=r"bit_cast|random_key"):
            ow.onnx.save(graph, path, operators=operators)
        return
    ow.onnx.save(graph, path, operators=operators)
    model = onnx.load(path)
    made = {node.op_type for node in model.graph.node}
    kept = OWN.get(op) if operators == "onnxruntime" else None
    assert made & set(OWN.values()) == ({kept} if kept else set())
    is_contrib = kept is not None and kept != "SimplifiedLayerNormalization"  # that one is in the domain of ONNX
    assert {entry.domain for entry in model.opset_import} == ({"", "com.microsoft"} if is_contrib else {""})
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(None, {name: arrays[name] for name in graph.inputs})
    for array, wanted in zip(found, run(CPU, op, call), strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-5)


# Converted models ----------------------------------------------------------------------------------------------------

TABLE = floats(4, 4)
CONVERTED: list[tuple[str, str, list[Any], dict[str, Any], CustomOp[Any]]] = [
    ("QuickGelu", MICROSOFT, [floats(2, 4)], {}, composites.quick_gelu),
    ("FastGelu", MICROSOFT, [floats(2, 4), floats(4)], {}, composites.fast_gelu),
    ("Gelu", "", [floats(2, 4)], {"approximate": "tanh"}, composites.fast_gelu),
    ("Hardmax", "", [floats(2, 4)], {}, composites.hard_max),
    ("TopK", "", [np.arange(8).reshape(2, 4), np.int64([2])], {}, composites.top_k),
    (
        "ScatterElements",
        "",
        [floats(4), np.int64([0, 2, 0]), floats(3)],
        {"reduction": "add"},
        composites.scatter_reduce,
    ),
    ("DepthToSpace", "", [floats(1, 4, 2, 2)], {"blocksize": 2}, composites.depth_to_space),
    ("SpaceToDepth", "", [floats(1, 1, 2, 2)], {"blocksize": 2}, composites.space_to_depth),
    (
        "LinearAttention",
        MICROSOFT,
        [Q, Q, Q],
        {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"},
        composites.linear_attention,
    ),
    ("MultiHeadAttention", MICROSOFT, [Q, Q, Q], {"num_heads": 2}, composites.multi_head_attention),
    (
        "RotaryEmbedding",
        MICROSOFT,
        [floats(1, 2, 3, 8), np.int64([[2, 0, 1]]), TABLE, TABLE],
        {},
        composites.rotary_embedding,
    ),
]


@pytest.mark.parametrize(
    ("op_type", "domain", "inputs", "attributes", "op"), CONVERTED, ids=[row[0] for row in CONVERTED]
)
def test_load_uses_kernels_of_composites(
    op_type: str, domain: str, inputs: list[Any], attributes: dict[str, Any], op: CustomOp[Any], tmp_path: Path
) -> None:
    model, feed = node_model(
        op_type, inputs, attributes, domain=domain, outputs=1 + (op_type in ("LinearAttention", "TopK"))
    )
    graph = ow.onnx.load(model, CPU)
    assert (op.name, "cpu", "native") in [(p.node.split(" ")[0], p.device, p.how) for p in graph.placements()]
    ow.onnx.save(graph, tmp_path / "model.onnx")
    (wanted, *_) = run_engine(model, feed)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    found = session.run(None, {name: array for name, array in feed.items() if name in graph.inputs})[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


# Calls ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [op for op in HOW if op.operands], ids=lambda op: op.name)
def test_composite_on_arrays_and_tensors(op: CustomOp[Any]) -> None:
    _, call = HOW[op]
    wanted = run(REFERENCE, op, call)
    context = ow.ml.create_context(device="reference")
    tensors = [context.tensor_from(x) if isinstance(x, np.ndarray) else x for x in call.args]
    for args in (call.args, tensors):
        found = op(*args, **call.kwargs)
        found = found if isinstance(found, tuple) else (found,)
        for array, other in zip(found, wanted, strict=True):
            array = array.numpy() if isinstance(array, ow.MLTensor) else array
            np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-5)


def test_composites_on_operands_need_no_builder() -> None:
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [2, 4])
    y = composites.swiglu(composites.rms_norm(x, np.ones(4, "float32")), x, label="gate")
    graph = builder.build({"y": y})
    assert [line.split()[0] for line in graph.explain().splitlines()[-2:]] == ["rms_normalization", "swiglu"]


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_top_k_orders_nan_beyond_infinity_and_keeps_the_order_of_equals(dtype: str, device: str) -> None:
    x = np.array([np.nan, 2, np.inf, 2, -np.inf, np.nan, 2, np.inf, np.finfo(dtype).max], dtype)
    rows = np.stack([x, x[::-1]])
    for k in (9, 5, 1):  # by counting, and one after the other
        for largest, order in ((True, [0, 5, 2, 7, 8, 1, 3, 6, 4]), (False, [4, 1, 3, 6, 8, 2, 7, 0, 5])):
            values, positions = run(context_on(device), composites.top_k, Call(x, k, largest=largest))
            assert positions.tolist() == order[:k]
            np.testing.assert_array_equal(values, x[positions])
            values, positions = run(context_on(device), composites.top_k, Call(rows.T.copy(), k, 0, largest=largest))
            np.testing.assert_array_equal(values, np.stack([x[order[:k]]] * 2, 1))


@pytest.mark.parametrize("largest", [False, True])
def test_top_k_of_nan_agrees_with_onnx_runtime(largest: bool) -> None:
    rng = np.random.default_rng(5)
    x = rng.choice(np.float32([np.nan, np.inf, -np.inf, 1, 2]), (3, 50))
    for k in (1, 4, 40):
        proto, feed = node_model("TopK", [x, np.array([k])], {"largest": int(largest)}, outputs=2)
        for ours, theirs in zip(
            ow.InferenceSession(proto, REFERENCE, fallback="error").run(None, feed),
            run_engine(proto, feed),
            strict=True,
        ):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("context", [CPU, REFERENCE], ids=["cpu", "reference"])
def test_generation_token_by_token(context: ow.MLContext) -> None:
    """With a memory that has room, one token after the other gives what all at once give."""
    x = np.random.default_rng(0).standard_normal((3, 2, 6, 16)).astype("float32")
    options = {"heads": 2, "groups": 2}
    whole = run(context, composites.group_query_attention, Call(x[0], x[1], x[2], **options))
    memories = [np.full((2, 2, 8, 8), np.nan, "float32") for _ in range(2)]
    for step in range(6):
        now = [np.ascontiguousarray(part[:, step : step + 1]) for part in x]
        call = Call(*now, *memories, np.full(2, step, "int32"), **options)
        y, *memories = run(context, composites.group_query_attention, call)
        np.testing.assert_allclose(y[:, 0, :], whole[0][:, step, :], rtol=1e-5, atol=1e-5)
    for memory, wanted in zip(memories, whole[1:], strict=True):
        np.testing.assert_array_equal(memory[:, :, :6], wanted)


ROTATED = {"cosines": floats(8, 8), "sines": floats(8, 8)}


@pytest.mark.parametrize(
    ("more", "is_whole"),
    [
        ({"softcap": 2.0, "window": 3, "bias": floats(1, 4, 1, 8), "sinks": floats(4)}, True),
        (ROTATED, True),
        ({"cosines": floats(8, 4), "sines": floats(8, 4)}, False),
        ({"cosines": floats(7, 8), "sines": floats(7, 8)}, False),
    ],
    ids=["scores", "rotated", "few pairs", "few positions"],
)
def test_group_query_attention_of_one_token_uses_kernel(more: dict[str, Any], is_whole: bool) -> None:
    """A rotation that the kernel does not support is done before it."""
    op, (q, k, past) = composites.group_query_attention, (floats(2, 1, 64), floats(2, 1, 32), floats(2, 2, 8, 16))
    call = Call(q, k, k, past, past, np.int32([3, 6]), heads=4, groups=2, **more)
    builder, result, _ = record(CPU, op, call)
    line = builder.build(outputs_of(result)).explain().splitlines()[-1]
    assert is_whole == (line.split()[2] != "decomposed")
    assert is_whole or line.endswith("rotary_embedding, rotary_embedding, group_query_attention")
    for found, wanted in zip(run(CPU, op, call), run(REFERENCE, op, call), strict=True):
        np.testing.assert_allclose(found[..., :4, :], wanted[..., :4, :], rtol=1e-5, atol=1e-5)  # the valid keys


@pytest.mark.parametrize("context", [CPU, REFERENCE], ids=["cpu", "reference"])
@pytest.mark.parametrize(("new", "length"), [(1, 8), (3, 6), (2, -1), (1, 10**6)])
def test_group_query_attention_rejects_keys_beyond_capacity(context: ow.MLContext, new: int, length: int) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [2, new, 16])
    past = [builder.input(name, "float32", [2, 2, 8, 8]) for name in ("keys", "values")]
    lengths = builder.input("lengths", "int32", [2])
    outputs = composites.group_query_attention(x, x, x, *past, lengths, heads=2, groups=2, label="layer")
    graph = builder.build(dict(zip(("y", "keys", "values"), outputs, strict=True)))
    tensors = {name: context.create_tensor(d.data_type, d.shape, writable=True) for name, d in graph.inputs.items()}
    results = {name: context.create_tensor(d.data_type, d.shape, readable=True) for name, d in graph.outputs.items()}
    context.write_tensor(tensors["lengths"], np.int32([8 - new, 0]))
    context.dispatch(graph, tensors, results)
    context.write_tensor(tensors["lengths"], np.int32([0, length]))
    with pytest.raises(ow.ValidationError) as raised:
        context.dispatch(graph, tensors, results)
    assert str(raised.value) == (
        f"group_query_attention 'layer': lengths must be in [0, {8 - new}], so that {new} new keys fit a past of 8, "
        f"got {length} in the input 'lengths'"
    )


def test_group_query_attention_rejects_keys_without_rotation() -> None:
    x, past = floats(1, 1, 32), floats(1, 2, 8, 16)
    message = r"lengths must be in \[0, 6\], so that cosines, with 7 rows, have one for each of 1 new keys, got 7"
    tables = {"cosines": floats(7, 8), "sines": floats(7, 8)}
    with pytest.raises(ow.ValidationError, match=message):
        run(
            CPU, composites.group_query_attention, Call(x, x, x, past, past, np.int32([7]), heads=2, groups=2, **tables)
        )


@pytest.mark.parametrize("context", [CPU, REFERENCE], ids=["cpu", "reference"])
def test_attention_of_fully_masked_query_is_zero(context: ow.MLContext) -> None:
    x = np.ones((1, 2, 4), "float32")
    for mask in (np.uint8([[1, 0], [0, 0]]), np.float32([[0, 1], [-np.inf, -np.inf]])):
        for is_known in (True, False):
            builder = ow.MLGraphBuilder(context)
            given_mask = mask if is_known else builder.input("mask", mask.dtype.name, [2, 2])
            query = builder.input("x", "float32", x.shape)
            y = composites.multi_head_attention(query, x, x, given_mask, heads=2)
            found = context.compute(builder.build({"y": y}), {"x": x} if is_known else {"x": x, "mask": mask})["y"]
            assert found.tolist() == [[[1] * 4, [0] * 4]]


def test_pack_bits() -> None:
    numbers = np.arange(16).reshape(2, 8)[:, :7]
    packed = composites.pack_bits(numbers)
    assert packed.tolist() == [[0x10, 0x32, 0x54, 0x06], [0x98, 0xBA, 0xDC, 0x0E]]
    assert composites.pack_bits(numbers, bits=8).dtype == np.uint8
    assert composites.pack_bits(numbers[0] % 4, bits=2).tolist() == [0b11100100, 0b100100]
    assert composites.pack_bits(numbers[0] % 2, bits=1).tolist() == [0b0101010]
    with pytest.raises(ow.ValidationError, match=r"pack_bits: numbers must be integers in \[0, 16\)"):
        composites.pack_bits(np.array([16]))
    with pytest.raises(ow.ValidationError, match="pack_bits: bits must be 1, 2, 4 or 8, got 3"):
        composites.pack_bits(numbers, bits=3)


def test_attention_of_long_sequences() -> None:
    """The engine then keeps no scores."""
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 1024, 4)).astype("float32")
    call = Call(q, k, v)
    builder, result, _ = record(CPU, composites.scaled_dot_product_attention, call)
    assert "composed  ONNX Runtime" in builder.build(outputs_of(result)).explain()
    (found,) = run(CPU, composites.scaled_dot_product_attention, call)
    wanted = witness.attention(q, k, v)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
def test_matmul_n_bits_may_round_its_input(bits: int) -> None:
    rng = np.random.default_rng(0)
    x, numbers = rng.standard_normal((5, 96)).astype("float32"), rng.integers(0, 2**bits, (7, 3, 32))
    scale = np.full((7, 3), 2.0**-bits, "float32")
    wanted = x @ ((numbers - 2 ** (bits - 1)).reshape(7, 96) * 2.0**-bits).T
    weight = composites.pack_bits(numbers, bits=bits)
    builder = ow.MLGraphBuilder(CPU)
    y = composites.matmul_n_bits(builder.input("x", "float32", x.shape), weight, scale, bits=bits, accuracy="int8")
    graph = builder.build({"y": y})
    assert "native" in graph.explain()
    error = np.abs(CPU.compute(graph, {"x": x})["y"] - wanted).max()
    assert error < 0.05
    # Each number of the input may be wrong by half of a 127th of the largest, and 96 of them are added up.
    exact = composites.matmul_n_bits(x, weight, scale, bits=bits)
    np.testing.assert_allclose(exact, wanted, rtol=1e-5, atol=1e-5)


def test_matmul_n_bits_with_minimum_uses_kernel() -> None:
    """Only the minima are a product of their own; with floats as zero points the kernel takes 60 times as long."""
    numbers, scale = np.arange(256).reshape(4, 2, 32) % 16, np.float32([[0.5, 1], [0.25, 2]] * 2)
    x, minimum = np.float32(np.linspace(-1, 1, 64))[None], -4 * scale
    builder = ow.MLGraphBuilder(CPU)
    weight, shape = composites.pack_bits(numbers), x.shape
    y = composites.matmul_n_bits(builder.input("x", "float32", shape), weight, scale, minimum=minimum, accuracy="int8")
    graph = builder.build({"y": y})
    assert "rounded to 8 bits: matmul_n_bits, reshape, reduce_sum, matmul, add" in graph.explain()
    wanted = x @ (numbers * scale[..., None] + minimum[..., None]).reshape(4, 64).T
    np.testing.assert_allclose(CPU.compute(graph, {"x": x})["y"], wanted, rtol=0.01)


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("context", [CPU, REFERENCE], ids=["cpu", "reference"])
def test_minima_of_float16_do_not_overflow(context: ow.MLContext, is_constant: bool) -> None:
    """The sum of the numbers minus 128 is beyond float16, and the result is not."""
    numbers = np.arange(4 * 1024).reshape(4, 32, 32) % 3
    arrays = {"weight": composites.pack_bits(numbers, bits=8), "scale": np.ones((4, 32), "float16")}
    arrays["minimum"] = np.full((4, 32), 0.25, "float16")
    x, places = np.ones((1, 1024), "float16"), np.int32([3, 0])
    builder = ow.MLGraphBuilder(context)
    inputs: dict[str, Any] = {"x": x, "i": places} | ({} if is_constant else arrays)
    operands: dict[str, Any] = {name: builder.input(name, a.dtype.name, a.shape) for name, a in inputs.items()}
    operands = arrays | operands
    own_x, own_places = operands.pop("x"), operands.pop("i")
    y = composites.matmul_n_bits(own_x, bits=8, **operands)
    z = composites.gather_n_bits(indices=own_places, width=1024, bits=8, **operands)
    results = context.compute(builder.build({"y": y, "z": z}), inputs)
    real = numbers.reshape(4, 1024) + 0.25
    np.testing.assert_allclose(results["y"], real.sum(axis=1)[None], rtol=1e-3)
    np.testing.assert_array_equal(results["z"], real[places])


@pytest.mark.parametrize(("blocks", "size"), [(1, 16), (3, 32), (18, 32), (48, 32), (20, 16)])
@pytest.mark.parametrize("bits", [4, 8])
def test_pack_blocks_stores_minima_as_weights_of_block_means(bits: int, blocks: int, size: int) -> None:
    """Also of blocks that are all 0."""
    rng = np.random.default_rng(0)
    numbers, scale = rng.integers(0, 2**bits, (5, blocks, size)), rng.uniform(0.5, 1, (5, blocks)).astype("float32")
    scale[0, 0] = 0
    minimum = (-scale * rng.uniform(0, 2**bits - 1, scale.shape)).astype("float32")
    weight, copies = composites.pack_blocks(numbers, scale, minimum, bits=bits)
    assert copies >= 2
    x = rng.standard_normal((3, blocks * size)).astype("float32")
    means = x.reshape(3, blocks, size).mean(axis=2)
    found = composites.matmul_n_bits(np.concatenate([x, *[means] * copies], axis=1), **weight)
    wanted = x @ (numbers * scale[..., None] + minimum[..., None]).reshape(5, -1).T
    bound = size * np.abs(means).sum(axis=1, keepdims=True) / (390 if bits == 4 else 90_000)
    assert (np.abs(found - wanted) <= bound + 1e-4 * 2**bits).all()


@pytest.mark.parametrize("minimum", [None, 1.0, -20.0])
def test_pack_blocks_keeps_minima_of_blocks_of_one_sign(minimum: float | None) -> None:
    """They would need weights larger than the largest number of 4 bits."""
    numbers, scale = np.arange(64).reshape(2, 2, 16) % 16, np.full((2, 2), 0.5, "float32")
    minima = None if minimum is None else np.full((2, 2), minimum, "float32")
    weight, copies = composites.pack_blocks(numbers, scale, minima)
    assert copies == 0
    x = np.float32(np.linspace(-1, 1, 32))[None]
    wanted = x @ (numbers * 0.5 + (-4 if minimum is None else minimum)).reshape(2, 32).T
    np.testing.assert_allclose(composites.matmul_n_bits(x, **weight), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_integer_products_without_terms_are_zeros(device: str) -> None:
    context = ow.ml.create_context(device=device, drafts=True)
    builder = ow.MLGraphBuilder(context)
    shapes = {"a": [2, 0], "b": [0, 3], "x": [1, 0, 4, 4], "w": [2, 0, 3, 3]}
    a, b, x, w = (builder.input(name, "int8", shape) for name, shape in shapes.items())
    graph = builder.build({"y": composites.integer_matmul(a, b), "z": composites.integer_conv2d(x, w)})
    results = context.compute(graph, {name: np.zeros(shape, "int8") for name, shape in shapes.items()})
    assert {name: array.shape for name, array in results.items()} == {"y": (2, 3), "z": (1, 2, 2, 2)}
    assert not any(array.any() for array in results.values())


@pytest.mark.parametrize("data_type", ["int16", "uint16", "int8", "uint8", "int32"])
@pytest.mark.parametrize("rank", [3, 5])
@pytest.mark.parametrize("device", ["reference", "cpu", "gpu-software"])
def test_max_pool_of_padding_alone_is_lowest_value(device: str, rank: int, data_type: str) -> None:
    if device == "gpu-software":
        gpu_context()  # skips without an adapter
    context = ow.ml.create_context(device=device, drafts=True)
    builder = ow.MLGraphBuilder(context)
    x = np.full([1, 1, *[2] * (rank - 2)], 9, data_type)
    axes = rank - 2
    options = {"window_dimensions": [1] * axes, "padding": [1, 0] + [0] * (2 * axes - 2)}
    graph = builder.build({"y": composites.max_pool(builder.input("x", data_type, x.shape), **options)})
    y = context.compute(graph, {"x": x})["y"]
    assert (y[:, :, 0] == np.iinfo(data_type).min).all()
    assert (y[:, :, 1:] == 9).all()


STEPS: dict[CustomOp[Any], Call] = {
    composites.leaky_integrator: Call(floats(3, 2), decay=0.5),
    composites.linear_attention: Call(
        floats(1, 3, 4), floats(1, 3, 2), floats(1, 3, 2), heads=2, groups=1, update_rule="linear"
    ),
    composites.rnn: Call(floats(3, 2, 4), floats(1, 2, 4), floats(1, 2, 2)),
    composites.selective_scan: Call(
        floats(1, 3, 2), floats(1, 3, 2), -abs(floats(2, 2)), floats(1, 3, 2), floats(1, 3, 2)
    ),
}


@pytest.mark.parametrize(("data_type", "tolerance"), [("float64", 1e-6), ("bfloat16", 0.05)])
@pytest.mark.parametrize("op", STEPS, ids=lambda op: op.name)
def test_recurrences_take_floats_beyond_the_specification(op: CustomOp[Any], data_type: str, tolerance: float) -> None:
    numbers = numpy_type(data_type)
    call = STEPS[op]
    context = ow.ml.create_context(device="reference", drafts=True)
    expected = run(REFERENCE, op, call)
    results = run(context, op, Call(*(array.astype(numbers) for array in call.args), **call.kwargs))
    for array, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(array.astype("float64"), wanted, rtol=tolerance, atol=tolerance)


def test_scales_in_units_of_float64() -> None:
    weight, unit = np.full((2, 1, 8), 0x98, "uint8"), np.float64([[0.5], [0.25]])
    context = ow.ml.create_context(device="reference", drafts=True)
    options = {"width": 16, "bits": 4, "block_size": 16}
    call = Call(weight, np.uint8([[2], [4]]), np.int32([1]), scale_unit=unit, **options)
    (result,) = run(context, composites.gather_n_bits, call)
    np.testing.assert_array_equal(result, np.tile([0.0, 1.0], (1, 8)))
