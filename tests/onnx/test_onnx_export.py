"""Graphs written as ONNX: valid, and the same to ONNX Runtime, to ONNX's reference and to us."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from hypothesis import given, settings, strategies as st
from row_sample import examples
from samples import SAMPLES, Make, type_choices
from support.agreement import record

import opweave as ow
from opweave import composites
from opweave.core.operation import Op
from opweave.ops import Operations

CONTEXT = ow.ml.create_context(device="cpu")


def network() -> tuple[ow.MLGraph, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A small network, what goes in and what comes out; its names are those that the writer would choose."""
    rng = np.random.default_rng(0)
    b = ow.MLGraphBuilder(CONTEXT)
    x, shift = b.input("_t1", "float32", [1, 3, 8, 8]), b.input("o0", "float32", [])
    w = b.constant(rng.standard_normal((16, 3, 3, 3)).astype("float32"))
    y = b.conv2d(x, w, padding=[1, 1, 1, 1], label="stem").relu() + shift
    graph = b.build({"_c0": y, "i1": b.reduce_mean(y, axes=[2, 3]), "x": b.identity(x)})
    feed = {"_t1": rng.standard_normal((1, 3, 8, 8)).astype("float32"), "o0": np.array(0.5, np.float32)}
    return graph, feed, dict(CONTEXT.compute(graph, feed))


def runtime(path: Path, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What ONNX Runtime makes of a file."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def test_save_names_nodes_by_unique_labels(tmp_path: Path) -> None:
    b = ow.MLGraphBuilder(CONTEXT)
    x = b.input("x", "float32", [2])
    once, twice, like = b.relu(x, label="once"), b.abs(x, label="twice"), b.exp(x, label="twice#1")
    graph = b.build({"a": once, "b": b.tanh(twice, label="twice"), "c": like, "d": b.neg(x)})
    ow.onnx.save(graph, tmp_path / "model.onnx")
    names = [node.name for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert len(names) == len({*names}) == 5
    assert {"once", "neg"} < {*names}
    assert sorted(name.rpartition("#")[0] for name in names if name.startswith("twice")) == [
        "twice",
        "twice",
        "twice#1",
    ]


def test_save_keeps_names_and_values(tmp_path: Path) -> None:
    graph, feed, wanted = network()
    path = tmp_path / "model.onnx"
    ow.onnx.save(graph, path)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [i.name for i in model.graph.input] == ["_t1", "o0"]
    assert [o.name for o in model.graph.output] == ["_c0", "i1", "x"]
    assert model.graph.node[0].name == "stem"
    assert model.producer_name == "opweave"
    for found in (runtime(path, feed), ow.InferenceSession(path, fallback="error")):
        if isinstance(found, ow.InferenceSession):
            found = dict(zip(wanted, found.run(list(wanted), feed), strict=True))
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    assert list(tmp_path.iterdir()) == [path]


few = settings(max_examples=examples(4, in_sample=2))

EVERYTHING: dict[str, Op[..., Any]] = Operations.listing() | {
    name: op for name in composites.__all__ if isinstance(op := getattr(composites, name), Op) and op in SAMPLES
}

NOT_IN_REFERENCE = {
    "average_pool2d": "windows on nothing but padding",
    "conv_transpose2d": "several groups",
    "gru": "other activations than the usual",
    "lstm": "other activations than the usual",
    "quantize_linear": "numbers beyond the type",
    "reduce_log_sum_exp": "special numbers",
    "reduce_min": "special numbers",
    "resample2d": "sizes that are given",
    "sigmoid": "scalars",
    "sign": "NaN, whose sign is 0",
    "softsign": "scalars",
}
"""Operations that ONNX's reference does not do as ONNX Runtime and the Web Platform Tests do, and where they differ."""


def exported(name: str, folder: Path, data: st.DataObject) -> tuple[Path, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A call of an operation as a file, what goes in and what comes out."""
    op = EVERYTHING[name]
    sample = SAMPLES[op]
    types = data.draw(st.sampled_from(type_choices(op, CONTEXT.backend.limits(op))))
    builder, result, arrays = record(CONTEXT, op, sample.make(Make(data.draw, types)))
    results = result if isinstance(result, tuple) else [result]
    graph = builder.build({f"y{k}": r for k, r in enumerate(results)})
    path = folder / "model.onnx"
    ow.onnx.save(graph, path)
    feed = {name: arrays[name] for name in graph.inputs}
    return path, feed, dict(CONTEXT.compute(graph, feed))


@pytest.mark.parametrize("name", [name for name, op in EVERYTHING.items() if op in SAMPLES])
@given(data=st.data())
@few
def test_save_each_operation(name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path, feed, wanted = exported(name, tmp_path_factory.mktemp("op"), data)
    model = onnx.load(path)
    onnx.checker.check_model(model)
    assert {entry.domain for entry in model.opset_import} == {""}
    for output, array in runtime(path, feed).items():
        np.testing.assert_array_equal(array, wanted[output])
    if name not in NOT_IN_REFERENCE:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = onnx.reference.ReferenceEvaluator(str(path)).run(None, feed)
        for array, other in zip(found, wanted.values(), strict=True):
            assert array.dtype == other.dtype
            tolerance = 5e-3 if array.dtype == np.float16 else 1e-4
            np.testing.assert_allclose(array, other, rtol=tolerance, atol=tolerance)


def test_save_network_equals_onnx_reference(tmp_path: Path) -> None:
    graph, feed, wanted = network()
    path = tmp_path / "model.onnx"
    ow.onnx.save(graph, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = onnx.reference.ReferenceEvaluator(str(path)).run(None, feed)
    for array, other in zip(found, wanted.values(), strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-5)


def test_save_writes_large_weights_beside_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opweave.onnx.export.MAX_EMBEDDED_BYTES", 1000)
    graph, feed, wanted = network()
    path = tmp_path / "model.onnx"
    ow.onnx.save(graph, path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    onnx.checker.check_model(str(path))
    np.testing.assert_array_equal(runtime(path, feed)["_c0"], wanted["_c0"])
    (mine,) = ow.InferenceSession(path).run(["_c0"], feed)
    np.testing.assert_allclose(mine, wanted["_c0"], rtol=1e-6)


def test_save_failure_keeps_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _, _ = network()
    path = tmp_path / "model.onnx"
    path.write_bytes(b"before")
    monkeypatch.setattr("opweave.onnx.files._bytes", lambda array: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ow.onnx.save(graph, path)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_save_errors(tmp_path: Path) -> None:
    with pytest.raises(ow.DataError, match=r"nowhere/x\.onnx: No such file or directory"):
        ow.onnx.save(network()[0], tmp_path / "nowhere" / "x.onnx")
    with pytest.raises(ow.ValidationError, match="save takes an MLGraph, got str"):
        ow.onnx.save("graph", tmp_path / "x.onnx")
    graph = network()[0]
    with pytest.raises(ow.ValidationError, match=r"operators must be one of \['onnx', 'onnxruntime'\], got 'ort'"):
        ow.onnx.save(graph, tmp_path / "x.onnx", operators="ort")
    graph.destroy()
    with pytest.raises(ow.InvalidStateError, match="destroyed"):
        ow.onnx.save(graph, tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("data_type", ["int64", "int32"])
def test_saved_indices_load_without_fallback(data_type: str, tmp_path: Path) -> None:
    """Of indices, above all: clamping them takes no data type that WebNN does not have."""
    builder = ow.MLGraphBuilder(CONTEXT)
    x = builder.input("x", "float32", [3, 4])
    places, pairs = (builder.input(name, data_type, shape) for name, shape in (("places", [5]), ("pairs", [5, 2])))
    outputs = {"rows": builder.gather(x, places), "cells": builder.gather_nd(x, pairs)}
    graph = builder.build(outputs)
    path = tmp_path / "model.onnx"
    ow.onnx.save(graph, path)
    feed = {
        "x": np.arange(12, dtype=np.float32).reshape(3, 4),
        "places": np.array([0, 2, -1, 3, np.iinfo(data_type).min], data_type),
        "pairs": np.array([[0, 3], [2, -4], [3, 4], [np.iinfo(data_type).max, 0], [-1, -9]], data_type),
    }
    wanted = CONTEXT.compute(graph, feed)
    assert wanted["rows"][:, 0].tolist() == [0, 8, 8, 8, 0]
    found = ow.InferenceSession(path, CONTEXT, fallback="error").run(["rows", "cells"], feed)
    for (name, value), again in zip(wanted.items(), found, strict=True):
        np.testing.assert_array_equal(value, again)
        np.testing.assert_array_equal(value, runtime(path, feed)[name])


def test_save_renames_output_named_like_input(tmp_path: Path) -> None:
    b = ow.MLGraphBuilder(CONTEXT)
    x, y = b.input("x", "float32", [2]), b.input("y_out", "float32", [2])
    outputs = {"x": x.neg(), "x_out": x.exp(), "y": (x + y).abs(), "y_out": y.sqrt()}
    graph = b.build(outputs)
    path = tmp_path / "model.onnx"
    ow.onnx.save(graph, path)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    renamed = {"x": "x_out_out", "x_out": "x_out", "y": "y", "y_out": "y_out_out"}
    feed = {"x": np.float32([1, 2]), "y_out": np.float32([4, 9])}
    wanted = CONTEXT.compute(graph, feed)
    found = runtime(path, feed)
    assert list(found) == list(renamed.values())
    session = ow.InferenceSession(path, CONTEXT, fallback="error")
    for (name, other), again in zip(renamed.items(), session.run(None, feed), strict=True):
        np.testing.assert_allclose(found[other], wanted[name], rtol=1e-6)
        np.testing.assert_allclose(again, wanted[name], rtol=1e-6)


ROOM, WIDTH, SIZE = 8, 32, 16


def decoder(rng: np.random.Generator, new: int) -> ow.MLGraph:
    """A layer of a language model, whose keys and values go out under the names by which they come in."""
    b = ow.MLGraphBuilder(CONTEXT)
    x, length = b.input("x", "float32", [1, new, WIDTH]), b.input("length", "int32", [1])
    positions = b.input("positions", "int64", [1, new])
    past = [b.input(name, "float32", [1, 1, ROOM, SIZE]) for name in ("key", "value")]

    def linear(y: ow.MLOperand, columns: int) -> ow.MLOperand:
        weight = composites.pack_bits(rng.integers(0, 16, (columns, y.shape[2] // 16, 16)))
        scale = rng.random((columns, y.shape[2] // 16), "float32") / 16
        return composites.matmul_n_bits(y, weight, scale, block_size=16, accuracy="int8")

    h, residual = composites.skip_rms_norm(x, x, np.ones(WIDTH, "float32"))
    angles = np.outer(np.arange(ROOM), 0.1 ** np.arange(SIZE // 2)).astype("float32")
    tables = np.cos(angles), np.sin(angles)
    q, k = (composites.rotary_embedding(linear(h, n * SIZE), *tables, positions, heads=n) for n in (2, 1))
    y, keys, values = composites.group_query_attention(q, k, linear(h, SIZE), *past, length, heads=2, groups=1)
    gate = composites.quick_gelu(linear(y, WIDTH))
    return b.build({"y": gate + residual, "key": keys, "value": values})


def test_save_keeps_contrib_operators(tmp_path: Path) -> None:
    """Two tokens, then one more: by the graph, by ONNX Runtime and by a session, on memory of their own."""
    kept = ["GroupQueryAttention", *["MatMulNBits"] * 4, "QuickGelu", *["RotaryEmbedding"] * 2]
    rng = np.random.default_rng(0)
    weights = rng.bit_generator.state
    memories = [{name: np.zeros((1, 1, ROOM, SIZE), "float32") for name in ("key", "value")} for _ in range(3)]
    for start, new in ((0, 2), (2, 1)):
        rng.bit_generator.state = weights
        graph = decoder(rng, new)
        path, plain = tmp_path / f"{new}.onnx", tmp_path / "plain.onnx"
        ow.onnx.save(graph, path, operators="onnxruntime")
        model = onnx.load(path)
        assert sorted(node.op_type for node in model.graph.node if node.domain == "com.microsoft") == kept
        assert [node.op_type for node in model.graph.node].count("SimplifiedLayerNormalization") == 1
        ow.onnx.save(graph, plain)
        assert {entry.domain for entry in onnx.load(plain).opset_import} == {""}
        feed = {
            "x": rng.standard_normal((1, new, WIDTH), "float32"),
            "length": np.int32([start]),
            "positions": np.arange(start, start + new)[None],
        }
        wanted = CONTEXT.compute(graph, {**feed, **memories[0]})
        raw = runtime(path, {**feed, **memories[1]})
        session = ow.InferenceSession(path, CONTEXT, fallback="error")
        mine = dict(zip(raw, session.run(None, {**feed, **memories[2]}), strict=True))
        targets = {f"{name}_out": array.copy() for name, array in memories[2].items()}
        past = {name: targets[f"{name}_out"] for name in ("key", "value")}
        in_place = dict(zip(raw, session.run(None, feed | past, out=targets), strict=True))
        assert in_place["key_out"] is targets["key_out"]
        for found in (raw, mine, in_place):
            np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-5, atol=1e-5)
            for name in ("key", "value"):
                used = slice(start + new)
                np.testing.assert_allclose(
                    found[f"{name}_out"][:, :, used], wanted[name][:, :, used], rtol=1e-5, atol=1e-5
                )
        memories = [
            {name: found[name + suffix] for name in ("key", "value")}
            for found, suffix in ((wanted, ""), (raw, "_out"), (mine, "_out"))
        ]
