"""Adapters: low-rank side products that calls switch, with ONNX Runtime's own session as the witness."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from support.onnx import node

import opweave as ow
import opweave.onnxruntime as ort

GENERATOR = np.random.default_rng(8)


def draw(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def adapted_model(rank: int = 0) -> bytes:
    """Two products with a side product each; without an adapter, the side products have rank 0, or are 0."""
    nodes, weights = [], {"w0": draw(6, 8), "w1": draw(8, 5)}
    value = "x"
    for k, (rows, columns) in enumerate(((6, 8), (8, 5))):
        last = "y" if k else "h"
        nodes += [
            node("MatMul", f"{value} w{k}", f"main{k}"),
            node("MatMul", f"{value} down{k}", f"low{k}"),
            node("MatMul", f"low{k} up{k}", f"side{k}"),
            node("Add", f"main{k} side{k}", last),
        ]
        weights |= {f"down{k}": np.zeros((rows, rank), np.float32), f"up{k}": np.zeros((rank, columns), np.float32)}
        value = last
    inputs = [helper.make_tensor_value_info("x", 1, ["n", 6])]
    for k, (rows, columns) in enumerate(((6, 8), (8, 5))):
        inputs.append(helper.make_tensor_value_info(f"down{k}", 1, [rows, "r"]))
        inputs.append(helper.make_tensor_value_info(f"up{k}", 1, ["r", columns]))
    graph = helper.make_graph(
        nodes,
        "adapted",
        inputs,
        [helper.make_tensor_value_info("y", 1, ["n", 5])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(proto.SerializeToString())


def write(path: Path, parameters: dict[str, np.ndarray], version: int = 3) -> Path:
    content = onnxruntime.AdapterFormat()
    content.set_adapter_version(version)
    content.set_model_version(7)
    content.set_parameters({n: onnxruntime.OrtValue.ortvalue_from_numpy(a) for n, a in parameters.items()})
    content.export_adapter(str(path))
    return path


def parameters(rank: int) -> dict[str, np.ndarray]:
    return {"down0": draw(6, rank), "up0": draw(rank, 8), "down1": draw(8, rank), "up1": draw(rank, 5)}


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [write(tmp_path / f"{rank}.onnx_adapter", parameters(rank)) for rank in (2, 4)]


def engine_result(model: bytes, feed: dict[str, Any], path: Path | None) -> np.ndarray:
    """The result of ONNX Runtime itself with an adapter."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    options = onnxruntime.RunOptions()
    if path is not None:
        adapter = onnxruntime.LoraAdapter()
        adapter.Load(str(path))
        options.add_active_adapter(adapter)
    result: np.ndarray = session.run(None, feed, options)[0]
    return result


@pytest.mark.parametrize("rank", [0, 1], ids=["empty", "zeros"])
def test_adapters_are_loaded_switched_and_dropped(files: list[Path], rank: int) -> None:
    model, feed = adapted_model(rank), {"x": draw(3, 6)}
    session = ow.InferenceSession(model)
    adapters = [session.load_adapter(path) for path in files]
    assert [(a.version, a.model_version, len(a)) for a in adapters] == [(3, 7, 4)] * 2
    for number in (0, 1, None, 1, None, 0):
        path = None if number is None else files[number]
        inputs = feed if number is None else {**feed, **adapters[number]}
        (result,) = session.run(None, inputs)
        np.testing.assert_allclose(result, engine_result(model, feed, path), rtol=1e-5, atol=1e-5)
    options = ort.RunOptions()
    options.add_active_adapter(adapters[1])
    (result,) = session.run(None, feed, options)
    np.testing.assert_allclose(result, engine_result(model, feed, files[1]), rtol=1e-5, atol=1e-5)
    references = [weakref.ref(adapter) for adapter in adapters]
    del adapters, options, inputs
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    np.testing.assert_allclose(session.run(None, feed)[0], engine_result(model, feed, None), rtol=1e-5, atol=1e-5)


def test_programs_with_adapters_run_unchanged(files: list[Path]) -> None:
    model, feed = adapted_model(), {"x": draw(2, 6)}
    expected = [engine_result(model, feed, path) for path in (*files, None)]

    def program(module: Any) -> list[np.ndarray]:
        session = module.InferenceSession(model, providers=["CPUExecutionProvider"])
        results = []
        for path in (*files, None):
            options = module.RunOptions()
            if path is not None:
                adapter = module.LoraAdapter()
                adapter.Load(str(path))
                options.add_active_adapter(adapter)
            results.append(session.run(["y"], feed, options)[0])
        return results

    with ow.onnx.replacing_onnxruntime():
        assert isinstance(onnxruntime.InferenceSession(model), ow.InferenceSession)
        inside = program(onnxruntime)
    for results in (inside, program(ort), program(onnxruntime)):
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


def test_adapters_apply_in_all_kinds_of_calls(files: list[Path]) -> None:
    model, feed = adapted_model(), {"x": draw(2, 6)}
    wanted = engine_result(model, feed, files[0])
    session = ow.InferenceSession(model)
    options = ort.RunOptions()
    options.add_active_adapter(session.load_adapter(files[0]))
    value = onnxruntime.OrtValue.ortvalue_from_numpy(feed["x"])
    results = [session.run_with_ort_values(["y"], {"x": value}, options)[0].numpy()]
    binding = session.io_binding()
    binding.bind_cpu_input("x", feed["x"])
    binding.bind_output("y")
    for _ in range(3):
        session.run_with_iobinding(binding, options)
        results.append(binding.copy_outputs_to_cpu()[0])
    out = np.empty((2, 5), np.float32)
    session.run(None, feed, options, out={"y": out})
    results.append(out)
    for result in results:
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], engine_result(model, feed, None), rtol=1e-5, atol=1e-5)


def test_required_inputs_may_be_parameters(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [node("MatMul", "x w", "y")],
        "required",
        [helper.make_tensor_value_info("x", 1, [1, 2]), helper.make_tensor_value_info("w", 1, [2, 2])],
        [helper.make_tensor_value_info("y", 1, [1, 2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ow.InferenceSession(model)
    options = ort.RunOptions()
    options.add_active_adapter(session.load_adapter(write(tmp_path / "a", {"w": np.float32([[1, 2], [3, 4]])})))
    assert session.run(None, {"x": np.float32([[1, 1]])}, options)[0].tolist() == [[4, 6]]


def test_adapters_that_do_not_fit_are_refused(tmp_path: Path, files: list[Path]) -> None:
    session = ow.InferenceSession(adapted_model())
    with pytest.raises(
        ow.ValidationError, match=r"parameter 'other' is no input of the model, which has \['x', 'down0'"
    ):
        session.load_adapter(write(tmp_path / "a", {"other": draw(2, 2)}))
    with pytest.raises(ow.ValidationError, match=r"parameter 'up0' must have shape .*r, 8\], got \[2, 7\]"):
        session.load_adapter(write(tmp_path / "a", {"up0": draw(2, 7)}))
    with pytest.raises(ow.ValidationError, match=r"parameter 'up0' must be tensor\(float\), got an array of float64"):
        session.load_adapter(write(tmp_path / "a", {"up0": draw(2, 8).astype(np.float64)}))
    with pytest.raises(ow.DataError, match="No such file"):
        session.load_adapter(tmp_path / "missing")
    (tmp_path / "broken").write_bytes(b"not an adapter, but long enough to look at" * 9)
    with pytest.raises(ow.DataError, match="not an adapter of ONNX Runtime"):
        session.load_adapter(tmp_path / "broken")
    with pytest.raises(ow.ValidationError, match="must be the path of a file, got 3"):
        session.load_adapter(3)  # type: ignore[arg-type]


def test_parameters_are_given_once(files: list[Path]) -> None:
    session, feed = ow.InferenceSession(adapted_model()), {"x": draw(1, 6)}
    adapters = [session.load_adapter(path) for path in files]
    options = ort.RunOptions()
    for adapter in adapters:
        options.add_active_adapter(adapter)
    with pytest.raises(ow.ValidationError, match=r"parameters \['down0', .* are given twice"):
        session.run(None, feed, options)
    single = ort.RunOptions()
    single.add_active_adapter(adapters[0])
    with pytest.raises(ow.ValidationError, match="are given twice"):
        session.run(None, {**feed, "up0": draw(2, 8)}, single)


def test_adapters_that_cannot_be_read_are_refused(files: list[Path]) -> None:
    adapter = onnxruntime.LoraAdapter()
    adapter.Load(str(files[0]))
    options = ort.RunOptions()
    options.add_active_adapter(adapter)
    session = ow.InferenceSession(adapted_model())
    with pytest.raises(ow.NotSupportedError, match=r"loaded before ONNX Runtime was replaced.*session\.load_adapter"):
        session.run(None, {"x": draw(1, 6)}, options)


def test_active_adapters_keep_their_files_contents(tmp_path: Path) -> None:
    path = write(tmp_path / "a", parameters(2))
    session, feed = ow.InferenceSession(adapted_model()), {"x": draw(1, 6)}
    adapter = session.load_adapter(path)
    before = session.run(None, {**feed, **adapter})[0]
    path.unlink()
    gc.collect()
    np.testing.assert_array_equal(session.run(None, {**feed, **adapter})[0], before)
