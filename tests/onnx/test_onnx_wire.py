"""Weights inside of a model: found without reading the rest, mapped from the file, and not held twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import opweave as ow
from opweave import memory
from opweave.onnx.model.contents import LARGE_BYTES
from opweave.onnx.model.model import SMALL_BYTES, Model
from opweave.onnx.model.wire import HERE, LEAST_BYTES, without_weights

ROWS = LARGE_BYTES // 4096 + 1
WEIGHTS: np.ndarray = np.random.default_rng(0).standard_normal((1024, ROWS), np.float32)


def product(*, shift: int = 0, rows: int | str = 1) -> onnx.ModelProto:
    """Of `x @ w + b`; `shift` more bytes lie in front of the weights."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 1024])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, ROWS])]
    values = [numpy_helper.from_array(np.arange(ROWS, dtype=np.float32), "b"), numpy_helper.from_array(WEIGHTS, "w")]
    graph = helper.make_graph(nodes, "g" * (1 + shift), inputs, outputs, values)
    # The name of a graph is written behind its nodes, and in front of its initializers.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def constant_product() -> onnx.ModelProto:
    """The same model with its weights in Constant nodes."""
    proto = product()
    for tensor in proto.graph.initializer:
        proto.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    del proto.graph.initializer[:]
    return proto


def written(folder: Path, proto: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def run_product(source: Path | bytes, rows: int = 1) -> np.ndarray:
    x = np.ones((rows, 1024), np.float32)
    (y,) = ow.InferenceSession(source, fallback="error").run(None, {"x": x})
    np.testing.assert_allclose(y, x @ WEIGHTS + np.arange(ROWS), rtol=1e-3, atol=1e-3)
    return y


@pytest.mark.parametrize("shift", range(4))
def test_fallback_uses_weights_in_place(tmp_path: Path, shift: int) -> None:
    proto = product(shift=shift)
    proto.graph.node.append(helper.make_node("NonZero", ["w"], ["z"]))
    proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.INT64, [2, None]))
    before = memory.copies.count
    session = ow.InferenceSession(written(tmp_path, proto))
    z = session.run(["z"], {"x": np.ones((1, 1024), np.float32)})[0]
    np.testing.assert_array_equal(z, np.nonzero(WEIGHTS))
    assert "ONNX Runtime (fallback)" in session.explain()
    assert memory.copies.count == before


@pytest.mark.parametrize("shift", range(4))
def test_file_weights_are_used_in_place(tmp_path: Path, shift: int) -> None:
    path = written(tmp_path, product(shift=shift))
    before = memory.copies.count
    run_product(path)
    assert memory.copies.count == before
    model = Model.load(path)
    data, weights = path.read_bytes(), dict(model.weights)
    files = memory.mapped_files(weights.values())
    np.testing.assert_array_equal(weights["w"], WEIGHTS)
    assert memory.find_in_files(weights["w"], files) == (str(path), data.index(WEIGHTS.tobytes()))


def test_load_reads_small_weights_without_mapping(tmp_path: Path) -> None:
    weights = dict(Model.load(written(tmp_path, product())).weights)
    assert LEAST_BYTES < weights["b"].nbytes <= SMALL_BYTES < weights["w"].nbytes
    np.testing.assert_array_equal(weights["b"], np.arange(ROWS))
    assert memory.find_in_files(weights["b"], memory.mapped_files([weights["b"]])) is None


@pytest.mark.parametrize("shift", range(4))
def test_bytes_weights_are_used_in_place(shift: int) -> None:
    data = product(shift=shift).SerializeToString()
    before = memory.copies.count
    run_product(data)
    assert memory.copies.count == before
    whole = np.frombuffer(data, np.uint8)
    assert all(np.shares_memory(array, whole) for _, array in Model.load(data).weights)


def test_constant_node_weights_are_used_in_place(tmp_path: Path) -> None:
    proto = constant_product()
    data = proto.SerializeToString()
    before = memory.copies.count
    path = written(tmp_path, proto)
    for source in (path, data):
        run_product(source)
        model = Model.load(source)
        assert model.proto.ByteSize() < 1000
        assert model.weights == []
        (weights,) = (model.constant(node) for node in model.proto.graph.node if node.output == ["w"])
        assert weights is not None
        np.testing.assert_array_equal(weights, WEIGHTS)
        if source is data:
            assert np.shares_memory(weights, np.frombuffer(data, np.uint8))
        else:
            files = memory.mapped_files([weights])
            assert memory.find_in_files(weights, files) == (str(path), data.index(WEIGHTS.tobytes()))
    assert memory.copies.count == before


@pytest.mark.parametrize("specialise", ["always", "never"])
def test_constant_nodes_serve_all_shapes(tmp_path: Path, specialise: Any) -> None:
    proto = constant_product()
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    for source in (written(tmp_path, proto), proto.SerializeToString(), bytearray(proto.SerializeToString())):
        session = ow.InferenceSession(source, specialise=specialise)
        if isinstance(source, bytearray):
            session.run(None, {"x": np.ones((1, 1024), np.float32)})
            source[:] = bytes(len(source))
        for rows in (1, 3):
            x = np.ones((rows, 1024), np.float32)
            (y,) = session.run(None, {"x": x})
            np.testing.assert_allclose(y, x @ WEIGHTS + np.arange(ROWS), rtol=1e-3, atol=1e-3)


def test_without_weights_keeps_constants_of_other_operators() -> None:
    weights = numpy_helper.from_array(WEIGHTS, "w")
    inner = helper.make_graph([helper.make_node("Constant", [], ["c"], value=weights)], "inner", [], [])
    nodes = [
        helper.make_node("Constant", [], ["a"], domain="mine", value=weights),
        helper.make_node("Hold", [], ["b"], value=weights),
        helper.make_node("If", ["x"], ["d"], then_branch=inner, else_branch=inner),
    ]
    data = helper.make_model(helper.make_graph(nodes, "g", [], [])).SerializeToString()
    assert without_weights(memoryview(data)) == data
    data = constant_product().SerializeToString()
    assert without_weights(memoryview(data), nodes=False) == data


def test_weights_of_a_bytearray_are_copied_once() -> None:
    data = product().SerializeToString()
    mutable = bytearray(data)
    before = memory.copies.bytes
    model = Model.load(mutable)
    weights = dict(model.weights)
    assert memory.copies.bytes - before == WEIGHTS.nbytes + 4 * ROWS
    assert weights["w"].flags.aligned
    mutable[:] = bytes(len(mutable))
    np.testing.assert_array_equal(weights["w"], WEIGHTS)
    np.testing.assert_array_equal(dict(model.weights)["b"], np.arange(ROWS))


def tensors_of(proto: onnx.ModelProto) -> list[TensorProto]:
    """Initializers and the tensors of nodes."""
    found = [attribute.t for node in proto.graph.node for attribute in node.attribute]
    return [*found, *proto.graph.initializer]


def tensors(data: bytes) -> list[TensorProto]:
    return tensors_of(onnx.ModelProto.FromString(data))


@pytest.mark.parametrize("make", [product, constant_product])
def test_without_weights_locates_left_out_data(make: Callable[[], onnx.ModelProto]) -> None:
    data = make().SerializeToString()
    lean = without_weights(memoryview(data))
    assert lean is not None
    assert len(lean) < 1000
    for cut, whole in zip(tensors(lean), tensors(data), strict=True):
        entries = {entry.key: entry.value for entry in cut.external_data}
        assert entries.pop("location") == HERE
        offset, length = (int(entries[key]) for key in ("offset", "length"))
        assert data[offset : offset + length] == whole.raw_data
        assert (cut.name, list(cut.dims), cut.data_type) == (whole.name, list(whole.dims), whole.data_type)
        assert not cut.HasField("raw_data")
    rest, same = (onnx.ModelProto.FromString(text) for text in (lean, data))
    for proto in (rest, same):
        for tensor in tensors_of(proto):
            tensor.Clear()
    assert rest == same


def test_without_weights_keeps_small_external_and_typed_data() -> None:
    proto = product()
    small = numpy_helper.from_array(np.zeros(LEAST_BYTES // 4 - 1, np.float32), "small")
    typed = helper.make_tensor("typed", TensorProto.FLOAT, [1000], range(1000))
    external = TensorProto(name="external", dims=[1000], data_type=TensorProto.FLOAT, data_location=1)
    external.external_data.add(key="location", value="w" * LEAST_BYTES)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend([small, typed, external])
    data = proto.SerializeToString()
    assert without_weights(memoryview(data)) == data


def test_without_weights_accepts_default_location() -> None:
    proto = product()
    for tensor in proto.graph.initializer:
        tensor.data_location = TensorProto.DEFAULT
    data = proto.SerializeToString()
    lean = without_weights(memoryview(data))
    assert lean is not None
    assert [tensor.data_location for tensor in tensors(lean)] == [TensorProto.EXTERNAL] * 2


def test_without_weights_declines_broken_buffers() -> None:
    data = product().SerializeToString()
    assert without_weights(memoryview(data + data)) is None  # two graphs
    for text in (data[:-7], b"\xff" * 40, b"\x3a\xff\xff\xff\xff\x0f", b"\x0b"):
        assert without_weights(memoryview(text)) is None
    for text in (data[:-7], data[: len(data) // 2]):
        with pytest.raises(ow.DataError, match="not an ONNX model"):
            ow.InferenceSession(text)


def parsed(data: bytes) -> onnx.ModelProto | None:
    try:
        return onnx.ModelProto.FromString(data)
    except Exception:  # the parser's own
        return None


def restored(lean: bytes, data: bytes) -> onnx.ModelProto | None:
    """What `without_weights` made, with the weights put back from where it says that they are."""
    proto = parsed(lean)
    for tensor in tensors_of(proto) if proto is not None else ():
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries.get("location") == HERE:
            offset, length = int(entries["offset"]), int(entries["length"])
            tensor.raw_data = data[offset : offset + length]
            del tensor.external_data[:]
        tensor.ClearField("data_location")
    return proto


@pytest.mark.parametrize("is_node", [False, True])
def test_damaged_models_parse_like_protobuf(is_node: bool) -> None:
    proto = product()
    proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.ones((4, 300), np.float32), "w"))
    if is_node:
        tensor = proto.graph.initializer.pop()
        proto.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=tensor))
    sound, random, lean_and_whole = proto.SerializeToString(), Random(1), 0
    for _ in range(2000):
        damaged = bytearray(sound)
        at = random.choice((random.randrange(len(damaged)), random.randrange(400)))
        if random.random() < 0.7:
            damaged[at] = random.randrange(256)
        else:
            del damaged[at : at + random.choice((1, 2, 50))]
        data = bytes(damaged)
        lean = without_weights(memoryview(data))
        if lean is not None:
            whole = restored(data, data)
            assert restored(lean, data) == whole
            lean_and_whole += whole is not None
    assert lean_and_whole > 200


def test_load_rejects_model_as_its_own_external_data(tmp_path: Path) -> None:
    proto = product()
    proto.graph.initializer[1].ClearField("raw_data")
    proto.graph.initializer[1].data_location = TensorProto.EXTERNAL
    proto.graph.initializer[1].external_data.add(key="location", value=HERE)
    with pytest.raises(ow.DataError, match="the data of 'w'"):
        ow.InferenceSession(proto)
    with pytest.raises(ow.DataError, match="the data of 'w'"):
        ow.InferenceSession(written(tmp_path, proto))


def test_session_rejects_rewritten_file(tmp_path: Path) -> None:
    path = written(tmp_path, product(rows="n"))
    session = ow.InferenceSession(path, specialise="always")
    one, two = (np.ones((rows, 1024), np.float32) for rows in (1, 2))
    first = session.run(None, {"x": one})[0]
    os.utime(path, ns=(1, 1))
    assert session.run(None, {"x": one})[0].tolist() == first.tolist()
    with pytest.raises(ow.DataError, match=r"model\.onnx has changed since the model was read"):
        session.run(None, {"x": two})
    path.unlink()  # what is mapped stays
    assert session.run(None, {"x": two})[0][1].tolist() == pytest.approx(first[0].tolist(), rel=1e-3, abs=1e-3)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no time of the last change")
def test_session_rejects_file_that_was_written_and_whose_time_was_set_back(tmp_path: Path) -> None:
    path = written(tmp_path, product(rows="n"))
    session = ow.InferenceSession(path, specialise="always")
    one, two, three = (np.ones((rows, 1024), np.float32) for rows in (1, 2, 3))
    session.run(None, {"x": one})
    before = path.stat()
    path.chmod(0o600)
    os.link(path, tmp_path / "other.onnx")
    session.run(None, {"x": two})  # neither changes what is in the file
    session = ow.InferenceSession(path, specialise="always")
    session.run(None, {"x": one})
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        file.write(b"\1")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_mtime_ns, path.stat().st_size) == (before.st_mtime_ns, before.st_size)
    with pytest.raises(ow.DataError, match=r"model\.onnx has changed since the model was read"):
        session.run(None, {"x": three})


SCRIPT = """
import sys
import numpy as np
{load}
x = np.ones((1, 8192), np.float32)
print(run(x)[0].shape)
with open("/proc/self/status") as file:
    print(next(int(line.split()[1]) for line in file if line.startswith("VmHWM")))
"""
LOADS = {
    "ours": "import opweave as ow; context = ow.ml.create_context(device='cpu', backend='{engine}'); "
    "s = ow.InferenceSession(sys.argv[1], context=context); run = lambda x: s.run(None, {{'x': x}})",
    "onnxruntime": "import onnxruntime; s = onnxruntime.InferenceSession(sys.argv[1]); "
    "run = lambda x: s.run(None, {'x': x})",
    "openvino": "import openvino; s = openvino.Core().compile_model(sys.argv[1], 'CPU', "
    "{'PERFORMANCE_HINT': 'LATENCY', 'INFERENCE_PRECISION_HINT': 'f32'}); run = lambda x: list(s({'x': x}).values())",
}


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much memory a process had at its peak")
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("is_node", [False, True])
def test_session_memory_of_embedded_weights_equals_engine(tmp_path: Path, engine: str, is_node: bool) -> None:
    pytest.importorskip(engine, reason=f"{engine} is not installed")
    weights = numpy_helper.from_array(np.ones((8192, 4096), np.float32), "w")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, s]) for n, s in (("x", 8192), ("y", 4096))]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    if is_node:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], value=weights))
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [] if is_node else [weights])
    path = written(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    peaks = {}
    for who in ("ours", engine):
        load = LOADS[who].format(engine=engine) if who == "ours" else LOADS[who]
        command = [sys.executable, "-c", SCRIPT.format(load=load), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
        peaks[who] = int(done.stdout.split()[-1]) / 1024
    assert peaks["ours"] < 1.15 * peaks[engine], peaks
