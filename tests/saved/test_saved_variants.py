"""Saved models whose operations depend on the sizes: a file has one graph for each combination of answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from support.onnx import model as make_model, node
from support.processes import run_python

import opweave as ow
from opweave.context.builder import NamedBuilder, build_variants
from opweave.context.graph import variants_of
from opweave.core.guards import Guards
from opweave.saved.api import MANIFEST
from opweave.saved.container import Container, ContainerWriter
from opweave.saved.parts import AUTHENTICATION, DIGEST, seal

RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(3, 3, 3, 3)).astype("float32")
CONTEXT = ow.ml.create_context(device="cpu")


@pytest.fixture
def pooling(tmp_path: Path) -> Path:
    """A pooling that rounds up: whether the last window begins behind the input depends on whether the width is odd."""
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("MaxPool", "a", "b", kernel_shape=[1, 1], strides=[2, 2], ceil_mode=1),
        node("Relu", "b", "y"),
    ]
    path = tmp_path / "pooling.onnx"
    shapes = {"x": "float32[n, 3, 8, width]"}, {"y": "float32[n, 3, 4, half]"}
    onnx.save(make_model(nodes, *shapes, {"w": WEIGHTS}), path)
    return path


@pytest.fixture
def mask(tmp_path: Path) -> Path:
    """A mask that is a constant for each length: numbers of the graph depend on the size."""
    nodes = [
        node("Shape", "x", "length", start=1, end=2),
        node("Squeeze", "length", "last"),
        node("Range", "zero last one", "positions"),
        node("Unsqueeze", "positions axis", "column"),
        node("LessOrEqual", "positions column", "visible"),
        node("Where", "visible x low", "y"),
    ]
    path = tmp_path / "mask.onnx"
    constants = {"zero": np.int64(0), "one": np.int64(1), "axis": np.int64([1]), "low": np.float32(-100)}
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    onnx.save(make_model(nodes, {"x": "float32[n, n]"}, {"y": "float32[n, n]"}, arrays), path)
    return path


def by_onnxruntime(path: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, {"x": x})[0]
    return result


def picture(count: int, width: int) -> np.ndarray:
    result: np.ndarray = RNG.normal(size=(count, 3, 8, width)).astype("float32")
    return result


@pytest.mark.parametrize("backend", ["onnxruntime", "reference", "openvino"])
def test_save_converts_for_each_answer(pooling: Path, tmp_path: Path, backend: Any) -> None:
    context = ow.ml.create_context(backend=backend, accelerated=False)
    session = ow.InferenceSession(pooling, context)
    session.save(tmp_path / "model.opweave", shapes=[{"x": [1, 3, 8, width]} for width in (6, 7, 10)])
    graph = context.load(tmp_path / "model.opweave")
    assert [item.guards.sizes["width"] for item in variants_of(graph)] == [6, 7]
    assert str(graph.inputs["x"]) == "float32[n, 3, 8, width]"
    expected = "2 graphs for different sizes, the text is that of the first: n = 1, width = 6; n = 1, width = 7"
    assert expected in graph.explain().splitlines()
    for count, width in ((1, 6), (2, 7), (3, 12), (1, 31)):
        x = picture(count, width)
        assert graph.compute_shapes({"x": x.shape}) == {"y": (count, 3, 4, -(-width // 2))}
        result = context.compute(graph, {"x": x})["y"]
        np.testing.assert_allclose(result, by_onnxruntime(pooling, x), rtol=1e-5, atol=1e-5)


def test_load_refuses_sizes_that_need_other_operations(pooling: Path, tmp_path: Path) -> None:
    ow.InferenceSession(pooling, CONTEXT).save(tmp_path / "model.opweave", shapes=[{"x": [1, 3, 8, 6]}])
    graph = CONTEXT.load(tmp_path / "model.opweave")
    CONTEXT.compute(graph, {"x": picture(4, 8)})
    expected = "compute: the graph has no operations for n = 1, width = 7: it was converted for n = 1, width = 6"
    with pytest.raises(ow.ValidationError, match=expected):
        CONTEXT.compute(graph, {"x": picture(1, 7)})
    for save, name in ((ow.onnx.save, "a.onnx"), (ow.js.save, "a.mjs")):
        with pytest.raises(ow.NotSupportedError, match=r"depend on the sizes, .*; pass input_shapes"):
            save(graph, tmp_path / name)
    ow.onnx.save(graph, tmp_path / "a.onnx", input_shapes={"x": [1, 3, 8, 10]})
    x = picture(1, 10)
    np.testing.assert_allclose(by_onnxruntime(tmp_path / "a.onnx", x), by_onnxruntime(pooling, x), rtol=1e-5, atol=1e-5)


def test_save_takes_the_compiled_shapes(pooling: Path, tmp_path: Path) -> None:
    session = ow.InferenceSession(pooling, CONTEXT, specialise="always")
    with pytest.raises(
        ow.NotSupportedError, match=r"needs their numbers.*or convert it for the shapes of certain calls"
    ):
        session.save(tmp_path / "model.opweave")
    assert not (tmp_path / "model.opweave").exists()
    for width in (7, 9, 4):
        session.run(None, {"x": picture(1, width)})
    session.save(tmp_path / "model.opweave")
    assert len(variants_of(CONTEXT.load(tmp_path / "model.opweave"))) == 2
    with pytest.raises(ow.ValidationError, match="shapes must be a list with a shape by name"):
        session.save(tmp_path / "model.opweave", shapes={"x": [1, 3, 8, 7]})  # type: ignore[arg-type]


def test_saved_constants_of_sizes_are_those_of_each_size(mask: Path, tmp_path: Path) -> None:
    session = ow.InferenceSession(mask, CONTEXT)
    session.save(tmp_path / "model.opweave", shapes=[{"x": [n, n]} for n in (3, 5, 1)])
    graph = CONTEXT.load(tmp_path / "model.opweave")
    for n in (5, 1, 3, 5):
        x = RNG.normal(size=(n, n)).astype("float32")
        np.testing.assert_array_equal(CONTEXT.compute(graph, {"x": x})["y"], by_onnxruntime(mask, x))


COMPUTE = """
import sys, numpy as np, opweave as ow
context = ow.ml.create_context(device="cpu")
graph = context.load(sys.argv[1])
results = {}
for width in (6, 9, 14):
    x = np.random.default_rng(width).normal(size=(2, 3, 8, width)).astype("float32")
    results[str(width)] = context.compute(graph, {"x": x})["y"]
np.savez(sys.argv[2], **results)
"""


@pytest.mark.long(rows=0)
def test_loaded_graph_gives_the_bits_of_the_process_that_saved(pooling: Path, tmp_path: Path) -> None:
    from opweave.onnx.model.model import Model
    from opweave.onnx.session.load import arguments_of, convert

    source, combinations = Model.load(pooling), [{"x": (2, 3, 8, width)} for width in (6, 9)]
    graph = convert(source, CONTEXT, arguments_of(source, None), takes_names=True, combinations=combinations)
    graph.save(tmp_path / "model.opweave")
    code = COMPUTE.replace("sys.argv[1]", repr(str(tmp_path / "model.opweave")))
    run_python(code.replace("sys.argv[2]", repr(str(tmp_path / "results.npz"))))
    for width, result in np.load(tmp_path / "results.npz").items():
        x = np.random.default_rng(int(width)).normal(size=(2, 3, 8, int(width))).astype("float32")
        assert CONTEXT.compute(graph, {"x": x})["y"].tobytes() == result.tobytes()


def test_weights_of_variants_are_written_once(pooling: Path, tmp_path: Path) -> None:
    large = RNG.normal(size=(256, 3, 3, 3)).astype("float32")
    model = onnx.load(pooling)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(large, "w"))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 256
    session = ow.InferenceSession(model, CONTEXT)
    sizes = []
    for widths in ((6,), (6, 7)):
        session.save(tmp_path / "model.opweave", shapes=[{"x": [1, 3, 8, width]} for width in widths])
        sizes.append((tmp_path / "model.opweave").stat().st_size)
    assert sizes[1] - sizes[0] < large.nbytes // 4


# ---------------------------------------------------------------------------------------------------------------------
# Files that were changed


def changed(path: Path, change: Callable[[list[Any]], object]) -> Path:
    """The file with other variants, and a digest that fits."""
    container, writer = Container.open(path), ContainerWriter()
    for name in container.names:
        if name in (DIGEST, AUTHENTICATION):
            continue
        data = container.section(name).tobytes()
        if name == MANIFEST:
            manifest = json.loads(data)
            change(manifest["variants"])
            data = json.dumps(manifest).encode()
        writer.add(name, "uint8", (len(data),), data)
    seal(writer)
    target = path.with_name("changed.opweave")
    writer.write(target)
    return target


def rename_input(variants: list[Any]) -> None:
    variants[1]["graph"]["inputs"][0][0] = "z"


CHANGES: dict[str, Callable[[list[Any]], object]] = {
    "no variants": lambda variants: variants.clear(),
    "no entry": lambda variants: variants.append(3),
    "no answers": lambda variants: variants[0].pop("answers"),
    "more names": lambda variants: variants[0].update(more=1),
    "a size of no input": lambda variants: (
        variants[0]["sizes"].update(m=3),
        variants[0]["answers"].append(["zero", {"size": [[[["name", "m"]], 1]]}, False]),
    ),
    "sizes of other names": lambda variants: variants[0].update(sizes={"m": 3}, answers=[]),
    "sizes no dictionary": lambda variants: variants[0].update(sizes=[1]),
    "no size": lambda variants: variants[0]["sizes"].pop("width"),
    "no sizes": lambda variants: variants[0]["sizes"].clear(),
    "size of another type": lambda variants: variants[0]["sizes"].update(width=True),
    "negative size": lambda variants: variants[0]["sizes"].update(width=-6),
    "huge size": lambda variants: variants[0]["sizes"].update(width=2**40),
    "another answer": lambda variants: variants[0]["answers"][0].__setitem__(2, not variants[0]["answers"][0][2]),
    "answer of another type": lambda variants: variants[0]["answers"][0].__setitem__(2, 1),
    "another question": lambda variants: variants[0]["answers"][0].__setitem__(0, "odd"),
    "a number for a size": lambda variants: variants[0]["answers"][0].__setitem__(1, 3),
    "an array for a size": lambda variants: variants[0]["answers"][0].__setitem__(1, {"array": 0}),
    "another name": lambda variants: variants[0]["answers"].append(["zero", {"size": [[[["name", "m"]], 1]]}, False]),
    "division by zero": lambda variants: variants[0]["answers"].append(
        ["zero", {"size": [[[["//", [[[["name", "n"]], 1]], [[[["name", "n"]], 1], [[], -1]]]], 1]]}, False]
    ),
    "other inputs": rename_input,
    "other outputs": lambda variants: variants[1]["graph"]["outputs"][0].__setitem__(0, "z"),
    "no outputs": lambda variants: variants[1]["graph"]["outputs"].clear(),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.covers
def test_load_rejects_changed_variants(name: str, tmp_path: Path) -> None:
    context, variants = ow.ml.create_context(device="reference"), []
    n, width = ow.Size("n"), ow.Size("width")
    for count in 6, 7:
        builder, guards = NamedBuilder(context), Guards({"n": 1, "width": count})
        x = builder.input("x", "float32", [n, width])
        with guards.deciding():
            y = x.neg() if width % 2 == 0 else x.relu()
        variants.append(({"y": y}, guards))
    build_variants(variants).save(tmp_path / "model.opweave")
    with pytest.raises((ow.DataError, ow.ValidationError), match=r"changed\.opweave: "):
        context.load(changed(tmp_path / "model.opweave", CHANGES[name]))
