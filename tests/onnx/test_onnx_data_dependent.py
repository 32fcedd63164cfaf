"""Nodes whose results have a size that depends on data: on devices with their own memory, what is around them stays there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto as T, helper, numpy_helper
from support.every_device import DEVICES, context_on

import opweave as ow

DEVICE_NAMES = [name for name in DEVICES if "(webgpu)" in name or "(cuda)" in name]
RNG = np.random.default_rng(7)

Step = tuple[str, list[str], list[str], dict[str, Any]]


def model_of(
    steps: Sequence[Step], inputs: dict[str, np.ndarray], outputs: Sequence[str], constants: dict[str, np.ndarray]
) -> bytes:
    """A model with outputs of unknown shape."""
    nodes = [helper.make_node(op, ins, outs, **attributes) for op, ins, outs, attributes in steps]
    takes = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in inputs.items()
    ]
    gives = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(
        nodes, "graph", takes, gives, [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model)
    kinds = {info.name: info.type.tensor_type.elem_type for info in inferred.graph.value_info}
    kinds |= {info.name: info.type.tensor_type.elem_type for info in inferred.graph.output}
    for info in model.graph.output:
        info.CopyFrom(helper.make_tensor_value_info(info.name, kinds[info.name] or T.INT64, None))
    data: bytes = model.SerializeToString()
    return data


def session_of(model: bytes, device: str) -> ow.InferenceSession:
    return ow.InferenceSession(model, context_on(device))


def check(model: bytes, inputs: dict[str, np.ndarray], device: str) -> ow.InferenceSession:
    """The session of a model, whose results are those of ONNX Runtime."""
    session = session_of(model, device)
    results = session.run(None, inputs)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    theirs = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, inputs)
    for result, expected in zip(results, theirs, strict=True):
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    return session


def copied(session: ow.InferenceSession, inputs: dict[str, np.ndarray]) -> int:
    """Bytes that a run copies from the device."""
    profile = session.profile(inputs, repeat=1)
    return sum(copy.bytes for copy in profile.copies if copy.reason.startswith("from the device"))


def detector(most: int) -> tuple[bytes, dict[str, np.ndarray]]:
    """A convolution, the boxes and scores that it gives, and what is computed of the boxes that remain."""
    classes, size = 5, 10
    constants = {
        "filter": RNG.normal(size=(4 + classes, 3, 4, 4)).astype("float32") / 32,
        "flat": np.int64([1, 4 + classes, -1]),
        "zero": np.int64([0]),
        "one": np.int64([1]),
        "two": np.int64([2]),
        "four": np.int64([4]),
        "end": np.int64([2**40]),
        "most": np.int64([most]),
        "iou": np.float32([0.4]),
        "least": np.float32([0.5]),
        "scale": np.float32([1, 2, 3, 4]),
        "head": RNG.normal(size=(4 + classes, 16)).astype("float32"),
        "rows": np.int64([-1, 2, 8]),
    }
    steps: list[Step] = [
        ("Conv", ["image", "filter"], ["maps"], {"strides": [4, 4]}),
        ("Reshape", ["maps", "flat"], ["columns"], {}),
        ("Transpose", ["columns"], ["features"], {"perm": [0, 2, 1]}),
        ("Slice", ["features", "zero", "four", "two"], ["boxes"], {}),
        ("Slice", ["columns", "four", "end", "one"], ["marks"], {}),
        ("Sigmoid", ["marks"], ["scores"], {}),
        ("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["selected"], {}),
        ("Gather", ["selected", "two"], ["places"], {"axis": 1}),
        ("Squeeze", ["places", "one"], ["place"], {}),
        ("Gather", ["boxes", "place"], ["picked"], {"axis": 1}),
        ("Squeeze", ["picked", "zero"], ["corners"], {}),
        ("Mul", ["corners", "scale"], ["result_boxes"], {}),
        ("Gather", ["features", "place"], ["chosen"], {"axis": 1}),
        ("Squeeze", ["chosen", "zero"], ["vectors"], {}),
        ("MatMul", ["vectors", "head"], ["logits"], {}),
        ("Softmax", ["logits"], ["likely"], {"axis": -1}),
        ("Reshape", ["likely", "rows"], ["result_classes"], {}),
        ("ArgMax", ["likely"], ["result_labels"], {"axis": 1, "keepdims": 0}),
    ]
    image = RNG.normal(size=(1, 3, 4 * size, 4 * size)).astype("float32") * 3
    outputs = ["result_boxes", "result_classes", "result_labels"]
    return model_of(steps, {"image": image}, outputs, constants), {"image": image}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("most", [1, 20])
def test_a_detector_computes_what_onnxruntime_does(device: str, most: int) -> None:
    model, inputs = detector(most)
    check(model, inputs, device)
    check(model, {"image": inputs["image"] - 4}, device)


@pytest.mark.parametrize("device", DEVICE_NAMES)
def test_only_results_and_their_number_leave_the_device(device: str) -> None:
    model, inputs = detector(20)
    session = check(model, inputs, device)
    # 100 rows of 4 coordinates, 16 classes and a label; and their number.
    assert copied(session, inputs) == 100 * (4 * 4 + 16 * 4 + 8) + 8
    lines = session.explain().splitlines()
    assert sum(" nodes on the processor: " in line for line in lines) == 1
    fallen = [line for line in lines if line.startswith("  ") and "depends on data" in line]
    assert len(fallen) == 3
    assert all("Slice: the size of what" in line for line in fallen)


X = RNG.integers(-1, 2, (3, 7)).astype("float32")
MARKS = RNG.integers(0, 2, 7).astype(bool)
SOURCES: dict[str, tuple[list[Step], list[str]]] = {
    "NonZero": ([("NonZero", ["x"], ["r0"], {})], ["r0"]),
    "NonZero and GatherND": (
        [
            ("NonZero", ["x"], ["positions"], {}),
            ("Transpose", ["positions"], ["rows"], {"perm": [1, 0]}),
            ("GatherND", ["x", "rows"], ["r0"], {}),
        ],
        ["r0", "rows"],
    ),
    "Compress": ([("Compress", ["x", "marks"], ["r0"], {"axis": 1})], ["r0"]),
    "Compress without axis": ([("Compress", ["x", "marks"], ["r0"], {})], ["r0"]),
    "Compress and an operation with other results": (
        [("Compress", ["x", "marks"], ["some"], {"axis": -1}), ("ReduceSum", ["some"], ["r0"], {"keepdims": 0})],
        ["r0"],
    ),
    "Compress and a sum of rows": (
        [
            ("Compress", ["x", "marks"], ["some"], {"axis": 1}),
            ("ReduceSum", ["some", "zero"], ["r0"], {"keepdims": 0}),
            ("Add", ["some", "column"], ["r1"], {}),
            ("Shape", ["some"], ["r2"], {}),
        ],
        ["r0", "r1", "r2"],
    ),
    "Compress and what treats each result alone": (
        [
            ("Compress", ["x", "marks"], ["some"], {"axis": 1}),
            ("Transpose", ["some"], ["rows"], {"perm": [1, 0]}),
            ("Softmax", ["rows"], ["likely"], {"axis": -1}),
            ("Unsqueeze", ["likely", "zero"], ["batch"], {}),
            ("Greater", ["batch", "half"], ["r0"], {}),
            ("TopK", ["batch", "two"], ["r1", "r2"], {"axis": -1}),
            ("Concat", ["batch", "batch"], ["r3"], {"axis": 2}),
            ("Slice", ["batch", "zero", "two", "two"], ["r4"], {}),
            ("Gemm", ["some", "matrix"], ["r5"], {"transA": 1}),
            ("Split", ["rows"], ["r6", "r7", "r8"], {"axis": 1}),
            ("LayerNormalization", ["rows", "scale"], ["r9"], {}),
            ("Flatten", ["rows"], ["r10"], {}),
            ("GatherElements", ["x", "places"], ["r11"], {"axis": 0}),
        ],
        [f"r{number}" for number in range(12)],
    ),
    "Compress and the first results": (
        [
            ("Compress", ["x", "marks"], ["some"], {"axis": 1}),
            ("Slice", ["some", "zero", "two", "one"], ["r0"], {}),
            ("Slice", ["some", "zero", "large", "one"], ["r1"], {}),
            ("Add", ["r0", "column"], ["r2"], {}),
            ("Slice", ["some", "one", "large", "one"], ["r3"], {}),
        ],
        ["r0", "r1", "r2", "r3"],
    ),
    "Unique": ([("Unique", ["x"], ["r0", "r1", "r2", "r3"], {})], ["r0", "r1", "r2", "r3"]),
    "Unique in order of occurrence": (
        [("Unique", ["x"], ["r0", "r1", "r2", "r3"], {"sorted": 0})],
        ["r0", "r1", "r2", "r3"],
    ),
    "Unique of columns": ([("Unique", ["x"], ["r0", "", "r1"], {"axis": 1})], ["r0", "r1"]),
}
CONSTANTS: dict[str, np.ndarray] = {
    "zero": np.int64([0]),
    "one": np.int64([1]),
    "two": np.int64([2]),
    "large": np.int64([2**40]),
    "half": np.float32(0.3),
    "column": np.float32([[1], [2], [3]]),
    "matrix": RNG.normal(size=(3, 4)).astype("float32"),
    "scale": np.float32([1, 2, 3]),
    "places": RNG.integers(-3, 3, (2, 7)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SOURCES)
def test_results_of_other_sizes_are_those_of_onnxruntime(name: str, device: str) -> None:
    steps, outputs = SOURCES[name]
    inputs = {"x": X, "marks": MARKS}
    used = {operand for _, names, _, _ in steps for operand in names}
    inputs = {key: value for key, value in inputs.items() if key in used}
    model = model_of(steps, inputs, outputs, {k: v for k, v in CONSTANTS.items() if k in used})
    check(model, inputs, device)
    check(model, {key: np.zeros_like(value) for key, value in inputs.items()}, device)


@pytest.mark.parametrize("device", DEVICES)
def test_compress_with_a_constant_condition_is_a_gather(device: str) -> None:
    inputs, options = {"x": X}, {"axis": 1}
    model = model_of([("Compress", ["x", "marks"], ["r0"], options)], inputs, ["r0"], {"marks": MARKS})
    session = ow.InferenceSession(model, context_on(device), fallback="error")
    np.testing.assert_array_equal(session.run(None, inputs)[0], X[:, MARKS])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", ["Gather", "Slice", "Reshape", "MatMul", "Concat", "Mul"])
def test_operations_that_combine_results_are_computed_on_the_results_alone(op: str, device: str) -> None:
    """Padding must not reach the results."""
    others: dict[str, tuple[list[str], dict[str, Any]]] = {
        "Gather": (["r0", "last"], {"axis": 1}),
        "Slice": (["r0", "last", "end", "one"], {}),
        "Reshape": (["r0", "flat"], {}),
        "MatMul": (["r0", "back"], {}),
        "Concat": (["r0", "r0"], {"axis": 1}),
        "Mul": (["r0", "again"], {}),
    }
    names, attributes = others[op]
    steps: list[Step] = [
        ("Compress", ["x", "marks"], ["r0"], {"axis": 1}),
        ("Transpose", ["r0"], ["back"], {"perm": [1, 0]}),
        ("Compress", ["x", "marks"], ["again"], {"axis": 1}),
        (op, names, ["r1"], attributes),
    ]
    constants: dict[str, np.ndarray] = {
        "last": np.int64([-1]),
        "end": np.int64([9]),
        "one": np.int64([1]),
        "flat": np.int64([-1]),
    }
    model = model_of(steps, {"x": X, "marks": MARKS}, ["r1"], {k: v for k, v in constants.items() if k in names})
    check(model, {"x": X, "marks": MARKS}, device)


@pytest.mark.parametrize("device", DEVICES)
def test_gathers_of_the_largest_run_whole(device: str) -> None:
    """The forms in which exporters write them: elements, slices, coordinates with batches, classes of flat positions."""
    rows, size, classes, k = 300, 8, 7, 9
    constants: dict[str, np.ndarray] = {
        "head": RNG.normal(size=(size, classes)).astype("float32"),
        "last": np.int64([-1]),
        "first": np.int64([0]),
        "k": np.int64([k]),
        "as features": np.int64([1, k, size]),
        "as scores": np.int64([1, k, classes]),
        "batch": np.zeros((1, k, 1), np.int64),
        "flat": np.int64([1, -1]),
        "classes": np.array(classes),
    }
    steps: list[Step] = [
        ("MatMul", ["x", "head"], ["scores"], {}),
        ("ReduceMax", ["scores"], ["best"], {"axes": [-1], "keepdims": 0}),
        ("TopK", ["best", "k"], ["values", "places"], {"axis": 1}),
        ("Unsqueeze", ["places", "last"], ["column"], {}),
        ("Expand", ["column", "as features"], ["wide"], {}),
        ("GatherElements", ["x", "wide"], ["r0"], {"axis": 1}),
        ("Expand", ["column", "as scores"], ["of scores"], {}),
        ("GatherElements", ["scores", "of scores"], ["r1"], {"axis": 1}),
        ("GatherND", ["x", "column"], ["r2"], {"batch_dims": 1}),
        ("Concat", ["batch", "column"], ["pairs"], {"axis": 2}),
        ("GatherND", ["x", "pairs"], ["r3"], {}),
        ("Squeeze", ["places", "first"], ["line"], {}),
        ("Gather", ["x", "line"], ["r4"], {"axis": 1}),
        ("Reshape", ["r1", "flat"], ["all"], {}),
        ("TopK", ["all", "k"], ["r5", "positions"], {"axis": -1}),
        ("Div", ["positions", "classes"], ["row"], {}),
        ("Mod", ["positions", "classes"], ["r6"], {}),
        ("Unsqueeze", ["row", "last"], ["rows"], {}),
        ("Expand", ["rows", "as features"], ["wide rows"], {}),
        ("GatherElements", ["r0", "wide rows"], ["r7"], {"axis": 1}),
    ]
    inputs = {"x": RNG.normal(size=(1, rows, size)).astype("float32")}
    model = model_of(steps, inputs, [f"r{number}" for number in range(8)], constants)
    session = check(model, inputs, device)
    whole = ow.InferenceSession(model, context_on(device), fallback="error")
    for result, expected in zip(whole.run(None, inputs), session.run(None, inputs), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


# What is copied -------------------------------------------------------------------------------------------------------

AROUND: dict[str, tuple[list[Step], int]] = {
    "NonZero": (
        [
            ("NonZero", ["r"], ["positions"], {}),
            ("Transpose", ["positions"], ["rows"], {"perm": [1, 0]}),
            ("GatherND", ["r", "rows"], ["values"], {}),
            ("Mul", ["values", "values"], ["y"], {}),
        ],
        21 * 4,
    ),
    "Compress": (
        [
            ("Compress", ["r", "marks"], ["some"], {"axis": 1}),
            ("Transpose", ["some"], ["rows"], {"perm": [1, 0]}),
            ("MatMul", ["rows", "matrix"], ["y"], {}),
        ],
        7 * 4 * 4,
    ),
    "Unique": ([("Unique", ["r"], ["some"], {}), ("Sqrt", ["some"], ["y"], {})], 21 * 4),
    "Unique of columns": (
        [
            ("Unique", ["r"], ["some"], {"axis": 1}),
            ("Transpose", ["some"], ["rows"], {"perm": [1, 0]}),
            ("MatMul", ["rows", "matrix"], ["y"], {}),
        ],
        7 * 4 * 4,
    ),
}
"""Nodes behind one whose results depend on data, and the bytes of the padded result."""


@pytest.mark.parametrize("device", DEVICE_NAMES)
@pytest.mark.parametrize("name", AROUND)
def test_profile_lists_the_result_and_the_count_as_copies(name: str, device: str) -> None:
    steps, size = AROUND[name]
    inputs = {"x": X, **({"marks": MARKS} if name == "Compress" else {})}
    used = {operand for _, names, _, _ in steps for operand in names}
    model = model_of(
        [("Relu", ["x"], ["r"], {}), *steps], inputs, ["y"], {k: v for k, v in CONSTANTS.items() if k in used}
    )
    session = check(model, inputs, device)
    assert copied(session, inputs) == size + 8
    lines = session.explain().splitlines()
    fallen = [line for line in lines if line.startswith("  ") and "depends on data" in line]
    assert len(fallen) == 1
    assert "Slice: the size of what" in fallen[0]


@pytest.mark.parametrize("device", DEVICE_NAMES)
def test_loop_of_computed_length_runs_on_the_device(device: str) -> None:
    """Its state stays there: the count and the result alone are copied."""
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["state", "half"], ["following"]),
            helper.make_node("Identity", ["condition"], ["goes on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", T.INT64, []),
            helper.make_tensor_value_info("condition", T.BOOL, []),
            helper.make_tensor_value_info("state", T.FLOAT, [3, 4]),
        ],
        [
            helper.make_tensor_value_info("goes on", T.BOOL, []),
            helper.make_tensor_value_info("following", T.FLOAT, [3, 4]),
        ],
        [numpy_helper.from_array(np.float32(0.5), "half")],
    )
    steps: list[Step] = [
        ("MatMul", ["x", "matrix7"], ["state0"], {}),
        ("ReduceMax", ["x"], ["largest"], {"keepdims": 0}),
        ("Cast", ["largest"], ["count"], {"to": T.INT64}),
        ("Loop", ["count", "", "state0"], ["state1"], {"body": body}),
        ("Exp", ["state1"], ["exponential"], {}),
        ("ReduceSum", ["exponential"], ["y"], {"keepdims": 0}),
    ]
    inputs = {"x": np.abs(RNG.normal(size=(3, 7)).astype("float32")) + 2}
    constants: dict[str, np.ndarray] = {"matrix7": RNG.normal(size=(7, 4)).astype("float32")}
    model = model_of(steps, inputs, ["y"], constants)
    for scale in (1, 2):
        feed = {"x": inputs["x"] * scale}
        session = check(model, feed, device)
    assert copied(session, inputs) == 8
    assert "not constant" not in session.explain()
