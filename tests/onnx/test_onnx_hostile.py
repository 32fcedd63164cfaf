"""Models that once ended the process, took gigabytes, never came back, or gave errors of Python: each gives one of ours now.

That they end no process is seen by the campaign `bombs` of `fuzz`, whose cases run in processes of their own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from session_models import message, session
from support.onnx import BOOL, FLOAT, model, node

import opweave as ow
from opweave.support.names import short_repr

INT64 = TensorProto.INT64
X = np.ones((2, 3), np.float32)


def attribute_list(name: str, values: list[int]) -> onnx.AttributeProto:
    return helper.make_attribute(name, values, attr_type=onnx.AttributeProto.INTS)


def branching() -> onnx.NodeProto:
    """An If of which one branch has an input that is absent where it must not be."""
    graphs = [
        helper.make_graph([helper.make_node(op, inputs, ["q"])], op, [], [onnx.ValueInfoProto(name="q")])
        for op, inputs in (("Max", ["x", ""]), ("Relu", ["x"]))
    ]
    return helper.make_node("If", ["c"], ["z"], "choice", then_branch=graphs[0], else_branch=graphs[1])


def tf_idf(**changes: object) -> onnx.NodeProto:
    attributes = {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 0,
        "ngram_counts": [0, 2],
        "ngram_indexes": [0, 1, 2],
        "pool_int64s": [1, 2, 1, 2],
    }
    return helper.make_node("TfIdfVectorizer", ["t"], ["z"], "grams", **(attributes | changes))


ABSENT = "its inputs must not be absent, and input 1 is"
SCALE = "input 2 must be broadcastable to [1, 1], got the shape [2, 2]"


@pytest.mark.parametrize(
    ("harmful", "text"),
    [
        (helper.make_node("Max", ["x", ""], ["z"], "most"), f"Max 'most': {ABSENT}"),
        (helper.make_node("Min", ["x", ""], ["z"]), f"Min: {ABSENT}"),
        (helper.make_node("Sum", ["x", ""], ["z"]), f"Sum: {ABSENT}"),
        (helper.make_node("Mean", ["x", "", "x"], ["z"]), f"Mean: {ABSENT}"),
        (helper.make_node("Einsum", ["x", ""], ["z"], equation="ij,kj->ik"), f"Einsum: {ABSENT}"),
        (branching(), f"Max inside of If 'choice': {ABSENT}"),
        (
            helper.make_node("Split", ["x"], ["z", "z1", "z2"], "parts", axis=1, num_outputs=1),
            "Split 'parts': num_outputs must be the number of its outputs, 3, got 1",
        ),
        (
            helper.make_node("Split", ["x"], ["z"], num_outputs=2**31),
            "Split: num_outputs must be positive and less than 2**31, got 2147483648",
        ),
        *(
            (
                helper.make_node("Attention", ["q", "q", "q"], ["z"], q_num_heads=4, kv_num_heads=heads),
                f"Attention: kv_num_heads must be positive and less than 2**31, got {heads}",
            )
            for heads in (0, 2**40, -(2**63))
        ),
        (
            helper.make_node("LayerNormalization", ["x", "s", "empty"], ["z"]),
            "LayerNormalization: bias must be broadcastable to [2, 3], got the shape [0]",
        ),
        (
            tf_idf(ngram_indexes=[0]),
            "TfIdfVectorizer 'grams': ngram_indexes must have 3 values, one for each n-gram, got 1",
        ),
        (
            tf_idf(max_skip_count=2**40),
            f"TfIdfVectorizer 'grams': max_skip_count must be in 0..32768, got {2**40}",
        ),
        (
            tf_idf(ngram_counts=[2, 0]),
            "TfIdfVectorizer 'grams': ngram_counts must be positions in the pool of 4, in order, got [2, 0]",
        ),
        (
            helper.make_node("RandomNormalLike", ["x"], ["z"], scale=0.0),
            "RandomNormalLike: scale must be positive, got 0",
        ),
        (
            helper.make_node("RandomNormal", [], ["z"], scale=float("nan"), shape=[2]),
            "RandomNormal: scale must be positive, got nan",
        ),
        (
            helper.make_node("RandomUniformLike", ["x"], ["z"], low=2.0, high=1.0),
            "RandomUniformLike: low must not exceed high, got low=2 and high=1",
        ),
        (
            helper.make_node("GatherND", ["x", "t"], ["z"], batch_dims=-(2**31)),
            "GatherND: batch_dims must be in 0..1024, got -2147483648",
        ),
        (
            helper.make_node("RoiAlign", ["q4", "rois", "at"], ["z"], sampling_ratio=2**40),
            f"RoiAlign: sampling_ratio must be at most 32768, got {2**40}",
        ),
        (
            helper.make_node("DepthToSpace", ["q4"], ["z"], blocksize=2**40),
            f"DepthToSpace: blocksize must be positive and less than 2**31, got {2**40}",
        ),
        (
            helper.make_node("Reshape", ["x", "sizes"], ["z"]),
            "Reshape: input 1 has a value for each axis, and at most 1024 axes are possible, got the shape [2147483647]",
        ),
    ],
    ids=lambda value: f"{value.op_type}-{value.name}" if isinstance(value, onnx.NodeProto) else "",
)
def test_session_rejects_nodes_that_crash_the_engine(harmful: onnx.NodeProto, text: str) -> None:
    constants = {
        "s": np.ones(3, np.float32),
        "empty": np.ones(0, np.float32),
        "rois": np.float32([[0, 0, 1, 1]]),
        "at": np.int64([0]),
    }
    inputs = [
        ("x", FLOAT, [2, 3]),
        ("q", FLOAT, [1, 4, 24]),
        ("q4", FLOAT, [1, 4, 8, 8]),
        ("t", INT64, [1, 2]),
        ("c", BOOL, []),
        ("sizes", INT64, [2**31 - 1]),
    ]
    proto = model([harmful], inputs, [onnx.ValueInfoProto(name=name) for name in harmful.output], constants)
    proto.opset_import[0].version = 23 if harmful.op_type == "Attention" else 21
    assert message(lambda: session(proto), ow.DataError) == text


@pytest.mark.parametrize(
    ("op_type", "shapes", "text"),
    [
        ("QLinearLeakyRelu", {1: [2]}, "input 1 must hold one value, got the shape [2]"),
        ("QLinearSigmoid", {3: [1, 0]}, "input 3 must hold one value, got the shape [1, 0]"),
        ("Attention", {2: None}, "it needs a bias, input 2, which is absent"),
        ("QLinearConcat", {3: [0]}, "input 3 must hold one value, got the shape [0]"),
        ("QLinearSoftmax", {0: [0, 8, 1]}, "input 0 must not be empty, got the shape [0, 8, 1]"),
        ("QLinearConcat", {3: None}, "its inputs must not be absent, and input 3 is"),
        ("QLinearWhere", {7: None}, "it takes 9 inputs, and input 7 is absent"),
        ("QLinearWhere", {2: [3]}, "input 2 must hold one value, got the shape [3]"),
        ("MatMulIntegerToFloat", {1: [4]}, "input 1 must have at least 2 axes, got the shape [4]"),
        ("MatMulIntegerToFloat", {0: [1, 4], 1: [4, 4], 2: [8]}, "input 2 must hold one value, got the shape [8]"),
        (
            "Attention",
            {0: [2, 4, 1], 1: [1, 2, 2, 8]},
            "weights must have 2 axes, the first of 1, got the shape [1, 2, 2, 8]",
        ),
        ("Attention", {0: [4, 1], 1: [1, 3]}, "input must have 3 axes, got the shape [4, 1]"),
        ("AttnLSTM", {10: None}, "it needs inputs 8 to 11, and input 10 is absent"),
        ("AttnLSTM", {0: [8, 1]}, "input 0 must have 3 axes, got the shape [8, 1]"),
        ("DynamicQuantizeMatMul", {0: [1, 2], 1: [2, 1], 2: [2, 2]}, SCALE),
        ("MatMulIntegerToFloat", {0: [1, 2], 1: [2, 1], 3: [2, 2]}, SCALE.replace("2", "3", 1)),
        ("DynamicQuantizeMatMul", {0: [1, 2], 1: [2, 3], 4: [2]}, "input 4 must have 3 values, got the shape [2]"),
        ("Inverse", {0: [8, 3, 2]}, "input 0 must hold square matrices, got the shape [8, 3, 2]"),
        ("Inverse", {0: [4]}, "input 0 must hold square matrices, got the shape [4]"),
        ("MoE", {0: [2]}, "input 0 must have 2 or 3 axes, got the shape [2]"),
        ("QLinearSoftmax", {3: [0, 2, 2]}, "input 3 must hold one value, got the shape [0, 2, 2]"),
        ("QMoE", {0: [2, 8], 1: [4, 2], 2: [3]}, "input 2 must have 3 axes, got the shape [3]"),
        (
            "QMoE",
            {0: [2, 0], 1: [2, 4], 2: [4, 2, 2], 5: [4, 2, 2], 8: None},
            "the last axis of input 0 must not be empty, got the shape [2, 0]",
        ),
    ],
)
def test_session_rejects_invalid_nodes_of_com_microsoft(
    op_type: str, shapes: dict[int, list[int] | None], text: str
) -> None:
    usual = {"AttnLSTM": [1, 1, 1], "MatMulIntegerToFloat": [1, 1]}.get(op_type, [1])
    wanted = {k: shapes.get(k, usual) for k in range(14)}
    inputs = [(f"x{k}", FLOAT, shape) for k, shape in wanted.items() if shape is not None]
    names = [f"x{k}" if shape is not None else "" for k, shape in wanted.items()]
    harmful = helper.make_node(op_type, names, ["z"], "it", domain="com.microsoft")
    proto = model([harmful], inputs, [onnx.ValueInfoProto(name="z")])
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert message(lambda: session(proto), ow.DataError) == f"{op_type} 'it': {text}"


def test_run_checks_dynamic_sizes_before_engine() -> None:
    inverse = helper.make_node("Inverse", ["x"], ["z"], "it", domain="com.microsoft")
    proto = model([inverse], [("x", FLOAT, ["n", 2])], [onnx.ValueInfoProto(name="z")])
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    loaded = session(proto)
    for _ in range(3):
        text = message(lambda: loaded.run(None, {"x": np.ones((3, 2), np.float32)}), ow.DataError)
        assert text == "Inverse 'it': input 0 must hold square matrices, got the shape [3, 2]"
        (z,) = loaded.run(None, {"x": np.float32([[2, 0], [0, 4]])})
        assert z.tolist() == [[0.5, 0], [0, 0.25]]


@pytest.mark.parametrize("op_type", ["QLinearLeakyRelu", "QLinearSigmoid"])
@pytest.mark.parametrize("rows", [2, "n"])
def test_qlinear_activation_zero_point_is_optional(op_type: str, rows: int | str) -> None:
    names = ["x", "scale", "zero", "scale"]
    results = []
    for inputs in (names, [*names, "zero"]):
        lookup = helper.make_node(op_type, inputs, ["z"], domain="com.microsoft", alpha=0.5)
        if op_type == "QLinearSigmoid":
            del lookup.attribute[:]
        infos = [("x", TensorProto.INT8, [rows])]
        z = [onnx.ValueInfoProto(name="z")]
        proto = model([lookup], infos, z, {"scale": np.float32(0.25), "zero": np.int8(0)})
        proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        results += session(proto).run(None, {"x": np.int8([-8, 4])})
    assert results[0].tolist() == results[1].tolist() == ([-4, 4] if op_type == "QLinearLeakyRelu" else [0, 3])


@pytest.mark.parametrize("is_owned", [False, True])
def test_layer_normalization_bias_with_empty_name(is_owned: bool) -> None:
    nodes = [helper.make_node("LayerNormalization", ["x", "s", ""], ["z", "mean"])]  # which WebNN does not express
    proto = model(
        nodes, [("x", FLOAT, [2, 3])], [("z", FLOAT, None), ("mean", FLOAT, None)], {"s": np.float32([1, 1, 1])}
    )
    before = proto.SerializeToString()
    z, mean = session(before if is_owned else proto).run(None, {"x": np.float32([[1, 2, 3], [4, 4, 4]])})
    assert mean.tolist() == [[2], [4]]
    np.testing.assert_allclose(z, [[-1.2247, 0, 1.2247], [0, 0, 0]], atol=1e-4)
    assert proto.SerializeToString() == before, "the user's model stays as it is"


@pytest.mark.parametrize("specialise", ["auto", "always"])
@pytest.mark.parametrize(
    ("op_type", "inputs", "shape"),
    [("DFT", "x length ", (1, 2, 2)), ("DFT", "x  ", (1, 3, 2)), ("Squeeze", "x ", (3,))],
)
def test_last_inputs_with_empty_names(
    op_type: str, inputs: str, shape: tuple[int, ...], specialise: Literal["auto", "always"]
) -> None:
    """DFT ended the process, and Squeeze was refused."""
    lookup = helper.make_node(op_type, inputs.split(" "), ["z"])
    proto = model([lookup], [("x", FLOAT, [1, 3, 1])], [("z", FLOAT, None)], {"length": np.int64(2)})
    (z,) = session(proto, specialise=specialise).run(None, {"x": np.ones((1, 3, 1), np.float32)})
    assert z.shape == shape


@pytest.mark.parametrize("outputs", [["", "y", ""], ["y", "unused output 0", ""]])
@pytest.mark.parametrize("sizes", [(1, 2, 1), (2, 2, 0)])
def test_splits_without_some_outputs(outputs: list[str], sizes: tuple[int, ...]) -> None:
    """Absent outputs of Split ended the process."""
    node = helper.make_node("Split", ["x", "sizes"], outputs, axis=1)
    proto = model([node], [("x", FLOAT, [1, 4])], [("y", FLOAT, None)], {"sizes": np.int64(sizes)})
    x = np.arange(4, dtype=np.float32)[None]
    before = proto.SerializeToString()
    for specialise in ("auto", "always"):
        (y,) = session(proto, specialise=specialise).run(None, {"x": x})
        np.testing.assert_array_equal(y, np.split(x, np.cumsum(sizes)[:-1], 1)[outputs.index("y")])
    assert proto.SerializeToString() == before


# Names and numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("surplus", "text"),
    [
        (node("Shape", "x", "z more"), "Shape makes no output 1, which the model calls 'more'"),
        (node("Size", "x", "z more"), "Size makes no output 1, which the model calls 'more'"),
        (helper.make_node("Constant", [], ["z", "more"], "c", value_int=3), "Constant 'c' makes no output 1"),
    ],
)
def test_load_rejects_surplus_outputs(surplus: onnx.NodeProto, text: str) -> None:
    nodes = [surplus, node("Identity", "more", "y")]
    proto = model(nodes, [("x", FLOAT, [2, 3])], [("z", INT64, None), ("y", INT64, None)])
    assert message(lambda: session(proto), ow.DataError).startswith(text)


def test_versions_of_other_operator_sets() -> None:
    proto = model([node("Relu", "x", "z")], [("x", FLOAT, [2])], [("z", FLOAT, None)])
    proto.graph.node[0].domain = "ai.onnx.ml"
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2**40))
    text = message(lambda: session(proto), ow.NotSupportedError)
    assert text == f"operator set 'ai.onnx.ml': the version must be in [1, 2147483647], got {2**40}"


def test_load_rejects_shape_with_enormous_product() -> None:
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[2**62] * 1000, raw_data=b"1234")
    proto = model([node("Add", "x w", "z")], [("x", FLOAT, [2])], [("z", FLOAT, None)])
    proto.graph.initializer.append(tensor)
    text = message(lambda: session(proto), ow.DataError)
    rule = "must have at most 1024 axes of 0 or more, and fewer than 2**63 elements"
    assert text == f"the tensor 'w' {rule}, got the shape {short_repr([2**62] * 1000)}"
    assert len(text) < 400


def test_session_rejects_attribute_bytes_that_are_no_text() -> None:
    proto = model([node("Relu", "x", "z")], [("x", FLOAT, [2])], [("z", FLOAT, None)])
    proto.graph.node[0].attribute.append(
        onnx.AttributeProto(name="mode", type=onnx.AttributeProto.STRING, s=b"\xff\xfe")
    )
    assert message(lambda: session(proto), ow.OperationError).startswith("ONNX Runtime does not take Relu")


# Limits --------------------------------------------------------------------------------------------------------------


def nested_functions(levels: int) -> onnx.ModelProto:
    """Functions of which each calls the next one twice."""
    functions = []
    for level in range(levels):
        last = level == levels - 1
        nodes = [
            helper.make_node("Relu" if last else f"f{level + 1}", [a], [b], domain="" if last else "local")
            for a, b in (("a", "b"), ("b", "c"))
        ]
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
        functions.append(helper.make_function("local", f"f{level}", ["a"], ["c"], nodes, imports))
    proto = model([helper.make_node("f0", ["x"], ["z"], domain="local")], [("x", FLOAT, [2])], [("z", FLOAT, None)])
    proto.opset_import.append(helper.make_opsetid("local", 1))
    proto.functions.extend(functions)
    return proto


def test_load_limits_nodes_of_nested_functions() -> None:
    text = message(lambda: session(nested_functions(31)), ow.DataError)
    assert text == (
        "the model: the number of nodes, those of functions included: 2147483648, more than the limit of 1000000; "
        "limits=ModelLimits(nodes=…) raises it (on the command line, --limit nodes=COUNT)"
    )
    few = nested_functions(3)
    text = message(lambda: session(few, limits=ow.onnx.ModelLimits(nodes=7)), ow.DataError)
    assert "the number of nodes, those of functions included: 8, more than the limit of 7; " in text
    assert session(few, limits=ow.onnx.ModelLimits(nodes=8)).run(None, {"x": np.float32([-1, 2])})[0].tolist() == [0, 2]


def test_load_rejects_recursive_function() -> None:
    proto = nested_functions(2)
    proto.functions[1].node[0].op_type = "f0"
    proto.functions[1].node[0].domain = "local"
    assert message(lambda: session(proto), ow.DataError).endswith("calls itself")


def test_sparse_tensors_count_together() -> None:
    proto = model([node("Add", "x w0", "z")], [("x", FLOAT, [4])], [("z", FLOAT, [4])])
    for k in range(3):
        values = numpy_helper.from_array(np.float32([5]), f"w{k}")
        indices = numpy_helper.from_array(np.int64([1]), "")
        proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    assert session(proto, limits=ow.onnx.ModelLimits(dense_bytes=48)) is not None
    text = message(lambda: session(proto, limits=ow.onnx.ModelLimits(dense_bytes=47)), ow.DataError)
    assert text == (
        "the sparse tensor 'w2' has the shape [4]; bytes of such tensors: 48 B, more than the limit of 47 B; "
        "limits=ModelLimits(dense_bytes=…) raises it (on the command line, --limit dense_bytes=COUNT)"
    )


def test_load_checks_nodes_after_many_sections() -> None:
    """Models with many large sections run in their own session; that is no reason not to look at the rest."""
    nodes, last = list[onnx.NodeProto](), "x"
    for number in range(12):  # Det falls back, between products
        nodes.append(node("Det", last, f"d{number}"))
        nodes.append(node("Mul", f"{last} d{number}", f"a{number}"))
        nodes.append(node("MatMul", f"a{number} x", f"b{number}"))
        last = f"b{number}"
    nodes.append(node("Slice", f"{last} zero zero one", "none"))
    nodes.append(node("Unique", "none", "u", axis=0, name="harm"))
    nodes.append(node("Shape", "u", "y"))
    bounds = {"zero": np.zeros(1, np.int64), "one": np.ones(1, np.int64)}
    harmful = model(nodes, [("x", FLOAT, [256, 256])], [("y", INT64, [2])], bounds)
    text = message(lambda: session(harmful), ow.DataError)
    assert text == "Unique 'harm': slices along axis 0 must not be empty, got the shape [256, 0]"


def test_folded_bytes_limits_constant_folding() -> None:
    nodes = [node("Concat", f"d{k} d{k}", f"d{k + 1}", axis=0) for k in range(5)]
    nodes += [node("ReduceSum", "d5", "s"), node("Add", "x s", "z")]
    proto = model(nodes, [("x", FLOAT, [1])], [("z", FLOAT, None)], {"d0": np.ones(1, np.float32)})
    assert session(proto).run(None, {"x": np.float32([1])})[0].tolist() == [33]
    text = message(lambda: session(proto, limits=ow.onnx.ModelLimits(folded_bytes=200)), ow.DataError)
    assert text == (
        "Concat: the bytes of all results that are computed while the model is loaded: 248 B, more than the limit of 200 B; "
        "limits=ModelLimits(folded_bytes=…) raises it (on the command line, --limit folded_bytes=COUNT)"
    )


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"nodes": 10}, "limits must be an opweave.onnx.ModelLimits, got dict"),
        (None, "limits must be an opweave.onnx.ModelLimits, got NoneType"),
    ],
)
def test_limits_reject_other_types(limits: object, text: str) -> None:
    proto = nested_functions(1)
    assert message(lambda: session(proto, limits=limits), ow.ValidationError) == text


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "10"])
def test_limits_are_positive_integers(value: object) -> None:
    text = message(lambda: ow.onnx.ModelLimits(nodes=value), ow.ValidationError)
    assert text == f"limits: nodes must be a positive integer, got {value!r}"


# Arguments and messages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [10**9, 10**30])
def test_builder_rejects_lists_of_excessive_length(length: int) -> None:
    b = ow.MLGraphBuilder(ow.ml.create_context(device="cpu"))
    x = b.input("x", "float32", [2])
    wanted = f"must have at most 1,048,576 values, got range(0, {length})"
    assert message(lambda: b.reduce_sum(x, axes=range(length)), ow.ValidationError).endswith(f"axes {wanted}")
    assert message(lambda: b.input("y", "float32", range(length)), ow.ValidationError).endswith(f"shape {wanted}")


def test_error_messages_are_bounded() -> None:
    text = message(
        lambda: session(model([node("N" * 10**6, "x", "z")], [("x", FLOAT, [2])], [("z", FLOAT, None)])), ow.MLError
    )
    assert len(text) <= 3000
    for kind in (ow.MLError, ow.ValidationError, ow.DataError, ow.MissingExtraError):
        assert len(str(kind("x" * 5000 + "the end"))) == 3000
        assert str(kind("x" * 5000 + "the end")).endswith("the end")
        assert kind("short").args == ("short",)


def test_run_rejects_huge_broadcast_feed() -> None:
    s = session(model([node("ReduceSum", "x", "z")], [("x", FLOAT, ["n", "m"])], [("z", FLOAT, None)]))
    feed = np.broadcast_to(np.float32(0), (2**24, 2**24))
    text = message(lambda: s.run(None, {"x": feed}), ow.OperationError)
    assert text == f"there is no memory for a contiguous copy of float32[{2**24}, {2**24}]: {2**50} bytes"


def test_one_hot_rejects_empty_depth() -> None:
    arrays = {"d": np.ones((0, 1), np.float32), "v": np.float32([0, 1])}
    proto = model([node("OneHot", "x d v", "z")], [("x", FLOAT, [2])], [("z", FLOAT, None)], arrays)
    assert message(lambda: session(proto), ow.DataError) == "OneHot: input 1 must hold one value, got the shape [0, 1]"


# Files ---------------------------------------------------------------------------------------------------------------


def test_session_reads_regular_files_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    why = "it is a pipe, a socket or a device, and only files can be read"
    assert message(lambda: session(tmp_path / "pipe"), ow.DataError) == f"{tmp_path}/pipe: {why}"
    assert message(lambda: session("/dev/zero"), ow.DataError) == f"/dev/zero: {why}"
    assert message(lambda: session(tmp_path / "loop"), ow.DataError).startswith(f"{tmp_path}/loop: ")
