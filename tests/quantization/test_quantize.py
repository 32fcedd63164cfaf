"""`opweave.quantize`: forms, errors of layers and outputs, what stays, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support.onnx import model, node
from support.quantisable_networks import NETWORKS, convolutions, normal, recurrent, samples, transformer

import opweave as ow
from opweave.quantization import Quantization

BOUNDS = {"int8": 0.02, "int4": 0.2, "static": 0.08, "float16": 1e-3, "bfloat16": 1e-2}
"""Errors of outputs, relative to their root mean square: a few times what these networks have."""


def engine(path: Path | bytes, feed: Mapping[str, np.ndarray], disabled: bool = False) -> list[Any]:
    """The outputs of a model in ONNX Runtime; with `disabled`, without optimisations."""
    options = onnxruntime.SessionOptions()
    if disabled:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = path if isinstance(path, bytes) else str(path)
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    results: list[Any] = session.run(None, dict(feed))
    return results


def relative(actual: np.ndarray, expected: np.ndarray) -> float:
    wide = expected.astype(np.float64)
    return float(np.sqrt(np.square(actual - wide).sum() / np.square(wide).sum()))


def saved(proto: ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    onnx.save(proto, folder / name)
    return folder / name


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("form", BOUNDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_forms_compute_nearly_the_same(name: str, form: Any, tmp_path: Path) -> None:
    source, target = saved(NETWORKS[name](21), tmp_path), tmp_path / "new.onnx"  # the evaluator knows newer sets alone
    feeds = samples(name)
    result = ow.quantize(source, target, form, inputs=feeds, seconds=0)
    onnx.checker.check_model(str(target), full_check=True)
    assert result.files == (target,)
    assert result.new_bytes == target.stat().st_size < result.old_bytes == source.stat().st_size
    for feed in feeds:
        (before,), (after,) = engine(source, feed), engine(target, feed)
        assert 0 < relative(after, before) < BOUNDS[form]
        if form != "static":  # whose integer kernels of the evaluator are another matter
            (witness,) = ReferenceEvaluator(str(target)).run(None, dict(feed))
            (exact,) = engine(target, feed, disabled=True)
            np.testing.assert_allclose(exact, witness, rtol=1e-3, atol=1e-4)
    (output,) = result.outputs
    assert 0 < output.relative < BOUNDS[form]
    assert result.samples == len(feeds)
    assert result.old_seconds > 0 < result.new_seconds
    assert result.layers
    assert all(0 <= layer.own < 3 * BOUNDS[form] for layer in result.layers if layer.own == layer.own)
    text = str(result)
    assert f"new.onnx as {form}" not in text
    assert f"model.onnx as {form}" in text
    assert f"{result.ratio:.3f}x" in text


def test_static_narrows_weights_of_recurrent_layers(tmp_path: Path) -> None:
    source, target = saved(recurrent(), tmp_path), tmp_path / "new.onnx"
    result = ow.quantize(source, target, "static", inputs=samples("recurrent"), seconds=0)
    forms = {layer.title: layer.form for layer in result.layers if layer.weights}
    assert forms == {"LSTM lstm": "int8, channels", "ConvTranspose grow": "int8, channels"}
    assert result.ratio < 0.35
    assert [kept.name for kept in result.kept] == []


@pytest.mark.parametrize(("form", "ratio"), [("int8", 0.30), ("int4", 0.19), ("float16", 0.53), ("bfloat16", 0.53)])
def test_sizes_of_large_weights(form: Any, ratio: float, tmp_path: Path) -> None:
    source = saved(transformer(), tmp_path)
    assert ow.quantize(source, tmp_path / "new.onnx", form).ratio < ratio


def test_own_error_is_that_of_the_node_alone(tmp_path: Path) -> None:
    source, target = saved(transformer(), tmp_path), tmp_path / "new.onnx"
    feed = samples("transformer", 1)[0]
    result = ow.quantize(source, target, "int4", inputs=feed, seconds=0)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(source).graph.initializer}
    narrow = onnx.load(target)
    widened = widen(narrow)
    x = weights["table"][feed["ids"]]
    rows = {layer.title: layer for layer in result.layers}
    for name in ("query", "key", "value"):
        row = rows[f"MatMul {name}"]
        assert row.weight_error == pytest.approx(relative(widened[name], weights[name]), rel=1e-3)
        # The engine may round `x` to 8 bits, too.
        assert row.own == pytest.approx(relative(x @ widened[name], x @ weights[name]), rel=0.1)
        assert row.total > row.own  # the table is narrow, too
    assert rows["Gather embed"].total == pytest.approx(rows["Gather embed"].own, rel=1e-6)


def widen(proto: ModelProto) -> dict[str, np.ndarray]:
    """What the nodes that widen constants make, by ONNX's evaluator alone."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    nodes = [n for n in proto.graph.node if n.op_type == "DequantizeLinear" and constants.issuperset(n.input)]
    results = [helper.make_empty_tensor_value_info(n.output[0]) for n in nodes]
    graph = helper.make_graph(nodes, "widen", [], results, list(proto.graph.initializer))
    part = helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    return dict(zip([n.output[0] for n in nodes], ReferenceEvaluator(part).run(None, {}), strict=True))


def test_int4_is_in_blocks_along_the_summed_axis(tmp_path: Path) -> None:
    target = tmp_path / "new.onnx"
    result = ow.quantize(saved(convolutions(), tmp_path), target, "int4")
    proto = onnx.load(target)
    assert (proto.ir_version, proto.opset_import[0].version) == (10, 21)
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    attributes = {
        n.output[0]: {a.name: a.i for a in n.attribute} for n in proto.graph.node if n.op_type == "DequantizeLinear"
    }
    assert attributes["classes"] == {"axis": 1, "block_size": 32}
    assert attributes["pointwise"] == {"axis": 1, "block_size": 32}
    assert list(tensors["classes_scale"].dims) == [80, 3]
    assert list(tensors["pointwise_scale"].dims) == [96, 1, 1, 1]
    assert tensors["classes_quantized"].data_type == tensors["classes_zero_point"].data_type == TensorProto.UINT4
    # No block divides 3 channels or 1: 8 bits for each filter.
    assert attributes["stem"] == attributes["depthwise"] == {"axis": 0}
    assert tensors["stem_quantized"].data_type == TensorProto.INT8
    assert result.title == "model.onnx as int4 and int8"
    forms = {layer.title: layer.form for layer in result.layers}
    assert forms == {
        "Conv stem": "int8, channels",
        "Conv depthwise": "int8, channels",
        "Conv pointwise": "int4, blocks of 32",
        "Gemm classify": "int4, blocks of 32",
    }


def test_block_size_is_that_of_the_caller_where_it_divides(tmp_path: Path) -> None:
    result = ow.quantize(saved(transformer(), tmp_path), tmp_path / "new.onnx", "int8", block_size=64)
    forms = {layer.title: layer.form for layer in result.layers}
    assert forms.pop("Gather embed") == "int8, channels"  # a scale for each row
    assert set(forms.values()) == {"int8, blocks of 64"}
    result = ow.quantize(saved(transformer(), tmp_path), tmp_path / "new.onnx", "int4", block_size=128)
    forms = {layer.title: layer.form for layer in result.layers}
    assert forms["MatMul down"] == "int4, blocks of 128"
    assert forms["MatMul query"] == "int4, blocks of 64"


def test_static_computes_on_integers(tmp_path: Path) -> None:
    source, target = saved(convolutions(), tmp_path), tmp_path / "new.onnx"
    result = ow.quantize(source, target, "static", inputs=samples("convolutions", 16), seconds=0)
    assert operators(target).count("QuantizeLinear") >= 4
    optimised = tmp_path / "optimised.onnx"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(optimised)
    onnxruntime.InferenceSession(str(target), options, providers=["CPUExecutionProvider"])
    assert operators(optimised).count("QLinearConv") == 3
    rows = {layer.title: layer for layer in result.layers}
    assert {"Conv stem", "Conv depthwise", "Conv pointwise"} <= rows.keys()
    assert all(rows[title].weight_error < 0.01 for title in ("Conv stem", "Conv pointwise"))
    proto = onnx.load(target)
    scales = {t.name: list(t.dims) for t in proto.graph.initializer}
    assert scales["pointwise_scale"] == [96]  # by channel
    assert [entry.key for entry in proto.metadata_props] == []


def test_exclude_keeps_nodes_and_weights(tmp_path: Path) -> None:
    source, target = saved(convolutions(), tmp_path), tmp_path / "new.onnx"
    result = ow.quantize(source, target, "int8", exclude=["st*", "classes"])
    assert [layer.title for layer in result.layers] == ["Conv depthwise", "Conv pointwise"]
    assert {(kept.name, kept.reason) for kept in result.kept} == {("stem", "excluded"), ("classes", "excluded")}
    static = ow.quantize(source, target, "static", inputs=samples("convolutions"), exclude=["pointwise"], seconds=0)
    assert "Conv pointwise" not in {layer.title for layer in static.layers if layer.weights}
    assert ("pointwise", "excluded") in {(kept.name, kept.reason) for kept in static.kept}


@pytest.mark.parametrize("pattern", ["first", "bias", "w"])
def test_exclude_keeps_nodes_that_are_fused(pattern: str, tmp_path: Path) -> None:
    """ONNX Runtime makes a product and an addition one node, of another name."""
    nodes = [
        node("MatMul", "x w", "a", name="first"),
        node("Add", "a c", "b", name="bias"),
        node("MatMul", "b v", "y", name="second"),
    ]
    constants = {"w": normal(32, 32), "v": normal(32, 32), "c": normal(32, scale=1.0)}
    proto = model(nodes, {"x": "float32[4, 32]"}, {"y": "float32[4, 32]"}, constants)
    feed = {"x": normal(4, 32, scale=1.0)}
    result = ow.quantize(
        saved(proto, tmp_path), tmp_path / "new.onnx", "static", inputs=feed, exclude=[pattern], seconds=0
    )
    assert [layer.title for layer in result.layers] == ["MatMul second"]
    assert [(kept.name, kept.reason) for kept in result.kept] == [("w", "excluded")]


def test_exclude_keeps_a_matrix_that_others_read_too(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x w", "a", name="first"),
        node("Relu", "a", "b"),
        node("MatMul", "b w", "y", name="second"),
    ]
    nodes += [node("Relu", "a", "c"), node("MatMul", "c v", "z", name="third")]
    constants = {"w": normal(32, 32), "v": normal(32, 32)}
    proto = model(nodes, {"x": "float32[4, 32]"}, {"y": "float32[4, 32]", "z": "float32[4, 32]"}, constants)
    feed = {"x": normal(4, 32, scale=1.0)}
    source, target = saved(proto, tmp_path), tmp_path / "new.onnx"
    for excluded in "first", "second":
        result = ow.quantize(source, target, "static", inputs=feed, exclude=[excluded], seconds=0)
        assert [(kept.name, kept.reason) for kept in result.kept] == [("w", "excluded")]
        matrices = {node.name: node.input[1] for node in onnx.load(target).graph.node if node.op_type == "MatMul"}
        assert matrices.pop(excluded) == "w"
        assert all(name.endswith("_DequantizeLinear_Output") for name in matrices.values()), matrices


@pytest.mark.parametrize(
    ("shape", "beta"), [((32,), 2.0), ((1, 32), 1.0), ((4, 32), 0.5), ((4, 1), 1.0), ((1,), 1.0), ((), 3.0)], ids=str
)
@pytest.mark.parametrize("is_constant", [True, False])
def test_static_takes_all_biases(shape: tuple[int, ...], beta: float, is_constant: bool, tmp_path: Path) -> None:
    """Also those of products of two computed operands."""
    nodes = [
        node("Gemm", f"x {'w' if is_constant else 'x'} c", "y", beta=beta, transB=1, name="gemm"),
        node("MatMul", "x v", "z", name="other"),
    ]
    constants = {"w": normal(32, 32), "v": normal(32, 32), "c": normal(*shape, scale=1.0)}
    constants["c"] = constants["c"] if is_constant else constants["c"].reshape(-1)[:1] * 4
    columns = 32 if is_constant else 4
    proto = model(nodes, {"x": "float32[4, 32]"}, {"y": f"float32[4, {columns}]", "z": "float32[4, 32]"}, constants)
    source, target = saved(proto, tmp_path), tmp_path / "new.onnx"
    feed = {"x": normal(4, 32, scale=1.0)}
    ow.quantize(source, target, "static", inputs=feed, seconds=0)
    for disabled in (False, True):
        for actual, expected in zip(engine(target, feed, disabled), engine(source, feed), strict=True):
            assert relative(actual, expected) < 0.03


def test_static_scales_a_matrix_along_the_axes_of_each_product(tmp_path: Path) -> None:
    """ONNX Runtime takes scales of rows for those of columns."""
    nodes = [node("Gemm", "x w", "a", transB=1, name="first"), node("MatMul", "a w", "y", name="second")]
    proto = model(nodes, {"x": "float32[4, 32]"}, {"y": "float32[4, 32]"}, {"w": normal(32, 32)})
    source, target = saved(proto, tmp_path), tmp_path / "new.onnx"
    feed = {"x": normal(4, 32, scale=1.0)}
    result = ow.quantize(source, target, "static", inputs=feed, seconds=0)
    assert relative(engine(target, feed)[0], engine(source, feed)[0]) < 0.03
    assert all(layer.weight_error < 0.01 for layer in result.layers)


def test_what_stays_has_a_reason(tmp_path: Path) -> None:
    nodes = [
        node("Add", "x offsets", "a"),
        node("MatMul", "a odd", "b", name="odd"),
        node("MatMul", "b adapted", "c", name="adapted"),
        node("MatMul", "c good", "d", name="good"),
    ]
    constants = {"offsets": normal(64, 64), "odd": normal(64, 64), "adapted": normal(64, 64), "good": normal(64, 64)}
    constants["odd"][3, 4] = np.inf
    proto = model(nodes, {"x": "float32[64, 64]", "adapted": "float32[64, 64]"}, {"d": "float32[64, 64]"}, constants)
    result = ow.quantize(saved(proto, tmp_path), tmp_path / "new.onnx", "int4")
    assert [layer.title for layer in result.layers] == ["MatMul good"]
    assert {kept.name: kept.reason for kept in result.kept} == {
        "offsets": "read by Add",
        "odd": "with NaN or infinite elements",
        "adapted": "inputs that a call may replace",
    }
    assert "kept   16.0 KiB, read by Add: offsets" in str(result)
    halves = ow.quantize(saved(proto, tmp_path), tmp_path / "new.onnx", "bfloat16")
    assert {kept.name for kept in halves.kept} == {"adapted"}


@pytest.mark.parametrize(
    ("form", "largest", "reason"),
    [
        ("float16", 70000, "with elements beyond 65,504, the largest float16"),
        ("bfloat16", 3.4e38, "with elements beyond 3.39e+38, the largest bfloat16"),
    ],
)
def test_weights_stay_where_16_bits_cannot_hold_them(form: Any, largest: float, reason: str, tmp_path: Path) -> None:
    weights = {"large": normal(32, 32), "small": normal(32, 32)}
    weights["large"][0, 0] = largest
    proto = model(
        [node("MatMul", "x large", "a"), node("MatMul", "a small", "y")],
        {"x": "float32[2, 32]"},
        {"y": "float32[2, 32]"},
        weights,
    )
    result = ow.quantize(saved(proto, tmp_path), tmp_path / "new.onnx", form)
    assert [kept.reason for kept in result.kept] == [reason]


@pytest.mark.parametrize("opset", [9, 11, 12, 13, 18, 21])
@pytest.mark.parametrize("form", ["int8", "int4", "static"])
def test_older_models_are_converted(opset: int, form: Any, tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x first", "a", name="first"),
        node("Softmax", "a", "b", axis=1),  # before operator set 13, of all axes from this one on
        node("MatMul", "b second", "y", name="second"),
    ]
    constants = {"first": normal(64, 64), "second": normal(64, 64)}
    proto = model(nodes, {"x": "float32[2, 8, 64]"}, {"y": "float32[2, 8, 64]"}, constants, opset=opset)
    proto.ir_version = 4 if opset < 10 else 8
    source, target = saved(proto, tmp_path), tmp_path / "new.onnx"
    feed = {"x": normal(2, 8, 64, scale=1.0)}
    ow.quantize(source, target, form, inputs=[feed], seconds=0)
    onnx.checker.check_model(str(target))
    assert relative(engine(target, feed)[0], engine(source, feed)[0]) < BOUNDS[form]


@pytest.mark.parametrize("version", [3, 4, 8])
def test_weights_that_old_files_declare_as_inputs(version: int, tmp_path: Path) -> None:
    proto = transformer(opset=11)
    proto.ir_version = version
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    source, target = saved(proto, tmp_path), tmp_path / "new.onnx"
    feed = samples("transformer", 1)[0]
    result = ow.quantize(source, target, "int4", inputs=feed, seconds=0)
    assert len(result.layers) == 6
    assert [info.name for info in onnx.load(target).graph.input] == ["ids"]
    assert relative(engine(target, feed)[0], engine(source, feed)[0]) < BOUNDS["int4"]


def test_weights_in_constant_nodes_and_branches(tmp_path: Path) -> None:
    captured = helper.make_graph(
        [node("MatMul", "x shared", "then")], "then", [], [helper.make_empty_tensor_value_info("then")]
    )
    other = helper.make_graph(
        [node("Identity", "x", "other")], "else", [], [helper.make_empty_tensor_value_info("other")]
    )
    shared, constant = normal(32, 32), normal(32, 32)
    nodes = [
        node("Constant", "", "constant", value=numpy_helper.from_array(constant)),
        node("MatMul", "x constant", "a", name="first"),
        node("MatMul", "a shared", "b", name="second"),
        node("If", "flag", "c", then_branch=captured, else_branch=other),
        node("Add", "b c", "y"),
    ]
    proto = model(nodes, {"x": "float32[2, 32]", "flag": "bool[]"}, {"y": "float32[2, 32]"}, {"shared": shared})
    source, target = saved(proto, tmp_path), tmp_path / "new.onnx"
    for flag in (True, False):
        feed = {"x": normal(2, 32, scale=1.0), "flag": np.array(flag)}
        result = ow.quantize(source, target, "int4", inputs=feed, seconds=0)
        assert relative(engine(target, feed)[0], engine(source, feed)[0]) < BOUNDS["int4"]
        assert sorted(layer.title for layer in result.layers) == ["MatMul first", "MatMul second"]
        assert all(0.01 < layer.own < BOUNDS["int4"] for layer in result.layers)


def test_one_table_for_tokens_and_scores(tmp_path: Path) -> None:
    nodes = [
        node("Gather", "table ids", "x", name="embed"),
        node("Gemm", "x table", "y", transB=1, name="scores"),
    ]
    proto = model(nodes, {"ids": "int64[n]"}, {"y": "float32[n, 300]"}, {"table": normal(300, 64)})
    source, target = saved(proto, tmp_path), tmp_path / "new.onnx"
    feed = {"ids": np.array([3, 299, 0])}
    result = ow.quantize(source, target, "int4", inputs=feed, seconds=0)
    assert len(result.layers) == 1
    assert result.ratio < 0.2
    assert relative(engine(target, feed)[0], engine(source, feed)[0]) < BOUNDS["int4"]


@pytest.mark.parametrize("opset", [13, 18, 21])
def test_weights_of_float16_keep_their_type(opset: int, tmp_path: Path) -> None:
    proto = model(
        [node("MatMul", "x w", "y")],
        {"x": "float16[2, 64]"},
        {"y": "float16[2, 48]"},
        {"w": normal(64, 48).astype("float16")},
        opset=opset,
    )
    source, target = saved(proto, tmp_path), tmp_path / "new.onnx"
    feed = {"x": normal(2, 64, scale=1.0).astype(np.float16)}
    for form, bound in (("int8", 0.02), ("int4", 0.2)):
        result = ow.quantize(source, target, form, inputs=feed, seconds=0)  # type: ignore[arg-type]
        tensors = {tensor.name: tensor.data_type for tensor in onnx.load(target).graph.initializer}
        assert tensors["w_scale"] == TensorProto.FLOAT16
        assert result.outputs[0].relative < bound
    with pytest.raises(
        ow.NotSupportedError, match=r"no weights .* can become narrower: w \(6\.0 KiB, of type float16\)"
    ):
        ow.quantize(source, target, "float16")


def test_external_data_stay_external(tmp_path: Path) -> None:
    source, target = tmp_path / "model.onnx", tmp_path / "elsewhere" / "new.onnx"
    target.parent.mkdir()
    onnx.save(transformer(), source, save_as_external_data=True, location="weights.bin", size_threshold=100)
    result = ow.quantize(source, target, "int4", inputs=samples("transformer", 1), seconds=0)
    assert result.files == (target, target.with_name("new.onnx.data"))
    assert sorted(path.name for path in target.parent.iterdir()) == ["new.onnx", "new.onnx.data"]
    assert result.old_bytes == source.stat().st_size + (tmp_path / "weights.bin").stat().st_size
    assert result.outputs[0].relative < BOUNDS["int4"]
    onnx.checker.check_model(str(target))
    feed = samples("transformer", 1)[0]
    assert relative(engine(target, feed)[0], engine(source, feed)[0]) < BOUNDS["int4"]


def test_models_of_bytes_and_messages(tmp_path: Path) -> None:
    proto = convolutions()
    before = proto.SerializeToString(deterministic=True)
    sizes = {ow.quantize(m, tmp_path / "new.onnx", "int8").new_bytes for m in (proto, proto.SerializeToString())}
    assert len(sizes) == 1
    assert proto.SerializeToString(deterministic=True) == before  # the caller's model is unchanged


def test_nothing_is_written_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = saved(convolutions(), tmp_path), tmp_path / "new.onnx"
    target.write_bytes(b"before")

    def refuse(*args: Any, **options: Any) -> None:
        raise ValueError("the reason\nand more")

    monkeypatch.setattr("onnxruntime.quantization.quantize_static", refuse)
    with pytest.raises(ow.OperationError, match=r"tool failed to quantise the model: the reason$"):
        ow.quantize(source, target, "static", inputs=samples("convolutions"))
    monkeypatch.setattr("opweave.quantization.api.check_loads", refuse)
    with pytest.raises(ValueError, match="the reason"):
        ow.quantize(source, target)
    assert target.read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "new.onnx"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to": "int5"}, r"`to` must be one of \['int8', 'int4', 'static', 'float16', 'bfloat16'\], got 'int5'"),
        ({"to": "static"}, "'static' needs sample inputs, of real data"),
        ({"inputs": []}, "at least one sample, got none"),
        ({"inputs": {"image": np.zeros((1, 3, 12, 12))}}, r"input 'image' must be tensor\(float\), got .* float64"),
        ({"inputs": {"picture": np.zeros(1)}}, "picture"),
        ({"inputs": [3]}, "a sample must map names to arrays, got 3"),
        ({"block_size": 8}, r"block_size must be in \[16, 1024\] or None, got 8"),
        ({"block_size": True}, "block_size must be in"),
        ({"to": "float16", "block_size": 32}, "block_size is for 'int8' and 'int4', got 'float16'"),
        ({"reduce_range": True}, "reduce_range is for 'static', got 'int8'"),
        ({"exclude": ["stem", "head/*"]}, r"exclude has 'head/\*', which matches no node and no weights"),
        ({"exclude": "stem"}, "exclude must be a list of names, got 'stem'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = saved(convolutions(), tmp_path)
    with pytest.raises(ow.ValidationError, match=message):
        ow.quantize(source, tmp_path / "new.onnx", **arguments)
    assert not (tmp_path / "new.onnx").exists()


def test_files_of_the_original_are_not_replaced(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    onnx.save(transformer(), source, save_as_external_data=True, location="new.onnx.data", size_threshold=100)
    link = tmp_path / "link.onnx"
    link.symlink_to(source)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for target, name in ((source, "model.onnx"), (link, "model.onnx"), (tmp_path / "new.onnx", "new.onnx.data")):
        with pytest.raises(ow.ValidationError, match=f"{name} is a file of the original"):
            ow.quantize(source, target)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    source = saved(convolutions(), tmp_path)
    with pytest.raises(ow.DataError, match="No such file or directory"):
        ow.quantize(source, tmp_path / "nowhere" / "new.onnx")
    with pytest.raises(ow.ValidationError, match="must be a regular file"):
        ow.quantize(source, tmp_path)
    with pytest.raises(ow.DataError, match="missing"):
        ow.quantize(tmp_path / "missing.onnx", tmp_path / "new.onnx")


def test_models_without_weights_are_refused(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], {"x": "float32[2]"}, {"y": "float32[2]"})
    with pytest.raises(ow.NotSupportedError, match="it has no weights of 128 elements or more"):
        ow.quantize(saved(proto, tmp_path), tmp_path / "new.onnx")
    source = saved(convolutions(), tmp_path)
    ow.quantize(source, tmp_path / "once.onnx", "int8")
    with pytest.raises(ow.NotSupportedError, match="no weights of the model can become narrower"):
        ow.quantize(tmp_path / "once.onnx", tmp_path / "twice.onnx", "int8")


def test_a_failing_conversion_says_why(tmp_path: Path) -> None:
    branch = helper.make_graph(
        [node("Softmax", "x", "a", axis=1)], "then", [], [helper.make_empty_tensor_value_info("a")]
    )
    other = helper.make_graph([node("Relu", "x", "b")], "else", [], [helper.make_empty_tensor_value_info("b")])
    nodes = [node("If", "flag", "c", then_branch=branch, else_branch=other), node("MatMul", "c w", "y")]
    proto = model(
        nodes, {"x": "float32[2, 4, 32]", "flag": "bool[]"}, {"y": "float32[2, 4, 32]"}, {"w": normal(32, 32)}, opset=11
    )
    message = "needs operator set 21, and the model has 11; Softmax in a branch or loop cannot be converted"
    with pytest.raises(ow.NotSupportedError, match=message):
        ow.quantize(saved(proto, tmp_path), tmp_path / "new.onnx", "int4")


@ow.expression
def bent(x: Any, *, share: float = 0.5) -> Any:
    return x + share * ow.expr.sin(x)


ow.register_onnx("test.quantize", "Bent", bent)


@pytest.mark.parametrize("form", BOUNDS)
def test_operations_of_the_user(form: Any, tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "a"), helper.make_node("Bent", ["a"], ["y"], "bend", domain="test.quantize")]
    ends = {"x": "float32[2, 64]"}, {"y": "float32[2, 64]"}
    proto = model(nodes, *ends, {"w": normal(64, 64)}, opset=21, domains=["test.quantize"])
    source, target, x = saved(proto, tmp_path), tmp_path / "new.onnx", normal(2, 64)
    if form == "static":
        with pytest.raises(
            ow.NotSupportedError, match=r"which does not have Bent 'bend' of the domain 'test\.quantize'"
        ):
            ow.quantize(source, target, form, inputs={"x": x})
        assert not target.exists()
        return
    result = ow.quantize(source, target, form, inputs={"x": x}, seconds=0)
    (after,) = ow.InferenceSession(target).run(None, {"x": x})
    product = x.astype(np.float64) @ numpy_helper.to_array(proto.graph.initializer[0])
    assert relative(after, product + np.sin(product) / 2) < 2 * BOUNDS[form]
    assert result.outputs[0].relative < 2 * BOUNDS[form]


def test_result_has_all_numbers(tmp_path: Path) -> None:
    source = saved(convolutions(), tmp_path)
    result = ow.quantize(source, tmp_path / "new.onnx", "int8")
    assert isinstance(result, Quantization)
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert data["layers"][0]["own"] == "nan"
    assert data["ratio"] == pytest.approx(result.new_bytes / result.old_bytes)
    assert "note   without sample inputs, only weights were compared" in repr(result)
    assert "… 3 more layers, with smaller errors" in result.text(rows=1)
    assert os.fspath(result.files[0]) == data["files"][0]


@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e6], ids=["", "small", "large"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_of_tables_are_looked_up_before_they_are_widened(
    dtype: str, scale: float, form: Any, tmp_path: Path
) -> None:
    table = normal(300, 64, scale=min(scale, 1e4) if dtype == "float16" else scale).astype(dtype)
    nodes = [node("Gather", "table ids", "x", name="embed"), node("Gather", "table others", "y", axis=-2, name="more")]
    inputs = {"ids": "int64[n, m]", "others": "int32[]"}
    proto = model(nodes, inputs, {"x": f"{dtype}[n, m, 64]", "y": f"{dtype}[64]"}, {"table": table})
    source, target = saved(proto, tmp_path), tmp_path / "new.onnx"
    feed = {"ids": np.array([[3, 299, 0], [-1, 7, 7]]), "others": np.array(5, np.int32)}
    result = ow.quantize(source, target, form, inputs=feed, seconds=0)
    onnx.checker.check_model(str(target), full_check=True)
    narrow = onnx.load(target)
    sizes = {tensor.name: list(tensor.dims) for tensor in narrow.graph.initializer}
    assert sizes["table_quantized"] == ([300, 64] if form == "int8" else [300, 32])
    wide = [n for n in narrow.graph.node if n.op_type == "DequantizeLinear" and n.input[0] == "table_quantized"]
    assert wide == []  # the whole table is nowhere widened
    rows = table[feed["ids"]], table[5]
    # A scale is a normal number of the weights' type: a quarter more than the root mean square of what its steps round off.
    coarsest = 1.25 * float(np.finfo(table.dtype).tiny) / np.sqrt(12) / scale
    for got in (engine(target, feed), ReferenceEvaluator(str(target)).run(None, feed)):
        for actual, expected in zip(got, rows, strict=True):
            assert actual.dtype == expected.dtype
            assert relative(actual, expected) < max(BOUNDS[form], coarsest)
    assert result.ratio < {("float32", "int8"): 0.32, ("float32", "int4"): 0.25}.get((dtype, form), 0.6)
    (layer,) = result.layers
    assert layer.own == pytest.approx(relative(engine(target, feed)[0], rows[0]), rel=1e-2)


@pytest.mark.parametrize("shape", ["", "n"], ids=["scalar", "vector"])
def test_vectors_of_one_block_are_looked_up(shape: str, tmp_path: Path) -> None:
    """By an index whose rank the model does not tell, too."""
    table, indices = normal(40, 32), np.array([7] if shape else 7)
    nodes = [node("Identity", "ids", "i"), node("Gather", "table i", "x"), node("Gather", "table ids", "y")]
    outputs = {name: f"float32[{shape}{', ' * bool(shape)}32]" for name in "xy"}
    proto = model(nodes, {"ids": f"int64[{shape}]"}, outputs, {"table": table})
    ow.quantize(saved(proto, tmp_path), tmp_path / "new.onnx", "int4")
    for rows in engine(tmp_path / "new.onnx", {"ids": indices}):
        assert rows.shape == table[indices].shape
        assert relative(rows, table[indices]) < BOUNDS["int4"]


@pytest.mark.parametrize("form", BOUNDS)
def test_models_beyond_the_limit_of_one_file(form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opweave.quantization.api.MAX_EMBEDDED_BYTES", 2000)
    monkeypatch.setattr("opweave.quantization.static.LARGE_BYTES", 2000)
    source, target = saved(convolutions(), tmp_path), tmp_path / "new" / "new.onnx"
    target.parent.mkdir()
    feeds = samples("convolutions")
    result = ow.quantize(source, target, form, inputs=feeds, seconds=0)
    assert sorted(path.name for path in target.parent.iterdir()) == ["new.onnx", "new.onnx.data"]
    assert result.new_bytes == sum(path.stat().st_size for path in target.parent.iterdir())
    onnx.checker.check_model(str(target))
    assert relative(engine(target, feeds[0])[0], engine(source, feeds[0])[0]) < BOUNDS[form]
    assert [note for note in result.notes if "not compared" in note] == []
    target.unlink()
    monkeypatch.setattr("opweave.quantization.api.MAX_EMBEDDED_BYTES", 10**9)
    ow.quantize(source, tmp_path / "new" / "small.onnx", form, inputs=feeds, seconds=0)
    assert (tmp_path / "new" / "small.onnx").stat().st_size < result.new_bytes


@pytest.mark.parametrize("form", ["int8", "int4", "float16"])
def test_weights_inside_of_branches_become_narrower(form: Any, tmp_path: Path) -> None:
    def branch(name: str, weights: np.ndarray, as_constant: bool) -> Any:
        nodes = [node("MatMul", f"x {name}_w", f"{name}_y", name=name)]
        tensor = numpy_helper.from_array(weights, f"{name}_w")
        if as_constant:
            nodes.insert(0, node("Constant", "", f"{name}_w", value=tensor))
        result = [helper.make_empty_tensor_value_info(f"{name}_y")]
        return helper.make_graph(nodes, name, [], result, [] if as_constant else [tensor])

    def nested(name: str) -> Any:
        inner = node(
            "If",
            "other",
            f"{name}_y",
            then_branch=branch("deep", normal(64, 64), False),
            else_branch=branch("deeper", normal(64, 64), True),
        )
        return helper.make_graph([inner], name, [], [helper.make_empty_tensor_value_info(f"{name}_y")])

    def capturing(name: str) -> Any:
        return helper.make_graph(
            [node("MatMul", "x outer_w", f"{name}_y", name=name)],
            name,
            [],
            [helper.make_empty_tensor_value_info(f"{name}_y")],
        )

    first = node("If", "flag", "y", then_branch=branch("then", normal(64, 64), True), else_branch=nested("else"))
    second = node("If", "flag", "z", then_branch=capturing("left"), else_branch=capturing("right"))
    inputs = {"x": "float32[2, 64]", "flag": "bool[]", "other": "bool[]"}
    proto = model([first, second], inputs, {"y": "float32[2, 64]", "z": "float32[2, 64]"}, {"outer_w": normal(64, 64)})
    source, target = saved(proto, tmp_path), tmp_path / "new.onnx"
    for flag, other in ((True, True), (False, True), (False, False)):
        feed = {"x": normal(2, 64, scale=1.0), "flag": np.array(flag), "other": np.array(other)}
        result = ow.quantize(source, target, form, inputs=feed, seconds=0)
        titles = sorted(layer.title for layer in result.layers)
        assert titles[:2] == ["MatMul deep", "MatMul deeper"]
        assert titles[2] in ("MatMul left", "MatMul right")
        assert titles[3:] == ["MatMul then"]
        assert result.ratio < {"int8": 0.35, "int4": 0.25, "float16": 0.55}[form]
        for new, old in zip(engine(target, feed), engine(source, feed), strict=True):
            assert 0 < relative(new, old) < BOUNDS[form]
