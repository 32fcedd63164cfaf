"""Graphs whose sizes have names, written as ONNX: ONNX Runtime's results for several sizes are those of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import assume, event, given, settings, strategies as st
from samples import SAMPLES, Call, Make, type_choices

import opweave as ow
from opweave import composites
from opweave.core.dtypes import of_array
from opweave.core.operation import Op
from opweave.core.sizes import Size
from opweave.ops import Operations

CONTEXT = ow.ml.create_context(device="cpu", drafts=True)

EVERYTHING: dict[str, Op[..., Any]] = Operations.listing() | {
    name: op for name in composites.__all__ if isinstance(op := getattr(composites, name), Op) and op in SAMPLES
}

NEEDS_NUMBERS = {
    "average_pool2d": "windows with dilations, or that are rounded up",
    "conv_transpose2d": "output sizes that are numbers",
    "gather_nd": "a number of coordinates with a name",
    "gru": "a hidden size or a number of steps with a name",
    "l2_pool2d": "windows with dilations, or that are rounded up",
    "lstm": "a hidden size or a number of steps with a name",
    "max_pool2d": "windows with dilations, that are rounded up, or of 64-bit integers",
    "reduce_l1": "integers",
    "reduce_product": "integers",
    "reduce_sum": "integers",
    "reduce_sum_square": "integers",
    "scatter_nd": "a number of coordinates with a name",
}
"""Operations that cannot be saved for all sizes with names, and what needs the number of a size."""

SHAPES = ("new_shape", "sizes", "output_sizes", "output_shape")
"""Arguments that are sizes of results."""


class Named:
    """A call in which all dimensions of one size, or of two, have names instead."""

    def __init__(self, op: Op[..., Any], call: Call, draw: Any) -> None:
        arguments = dict(zip(op.positional, call.args, strict=False)) | call.kwargs
        self.op, self.feed = op, dict[str, np.ndarray]()
        arrays = [
            a for v in arguments.values() for a in (v if isinstance(v, list) else [v]) if isinstance(a, np.ndarray)
        ]
        sizes = sorted({size for array in arrays for size in array.shape})
        assume(sizes)
        chosen = draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=2, unique=True))
        self.sizes = {f"n{size}": size for size in chosen}
        self.names: dict[int, Any] = {size: Size(f"n{size}") for size in chosen}
        self.builder = ow.MLGraphBuilder(CONTEXT)
        named = {name: self._argument(name, value) for name, value in arguments.items()}
        result = op(self.builder, **named)
        results = result if isinstance(result, tuple) else (result,)
        self.graph = self.builder.build({f"y{k}": operand for k, operand in enumerate(results)})

    def _argument(self, name: str, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return self._operand(value)
        if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
            return [*map(self._operand, value)]
        if name in SHAPES and value is not None:
            return [self.names.get(size, size) for size in value]
        return value

    def _operand(self, array: np.ndarray) -> ow.MLOperand:
        name = f"x{len(self.feed)}"
        self.feed[name] = array
        shape: list[Any] = [self.names.get(size, size) for size in array.shape]
        return self.builder.input(name, of_array(array.dtype), shape)

    def feed_for(self, sizes: Mapping[str, int]) -> dict[str, np.ndarray] | None:
        """Arrays of other sizes with the values of the call; None if the operation does not accept these sizes."""
        shapes = {
            name: tuple(size if isinstance(size, int) else size.at(sizes) for size in desc.shape)
            for name, desc in self.graph.inputs.items()
        }
        try:
            self.graph.compute_shapes(shapes)
        except ow.ValidationError:
            return None
        return {name: np.resize(self.feed[name], shape) for name, shape in shapes.items()}


def save_or_refusal(graph: ow.MLGraph, path: Path) -> str:
    """Save a graph; the message if that is not supported."""
    try:
        ow.onnx.save(graph, path)
    except ow.NotSupportedError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", [name for name, op in EVERYTHING.items() if op in SAMPLES])
@given(data=st.data())
@settings(max_examples=6)
def test_save_with_names_each_operation(
    name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    op = EVERYTHING[name]
    sample = SAMPLES[op]
    types = data.draw(st.sampled_from(type_choices(op, CONTEXT.backend.limits(op))))
    call = sample.make(Make(data.draw, types))
    try:
        named = Named(op, call, data.draw)
    except ow.ValidationError:
        assume(False)
    path = tmp_path_factory.mktemp("op") / "model.onnx"
    refusal = save_or_refusal(named.graph, path)
    if refusal:
        assert name in NEEDS_NUMBERS, refusal
        assert "input_shapes={...}" in refusal
        return
    model = onnx.load(path)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    compared = 0
    for change in (0, 1, 3):
        other = {key: size + change for key, size in named.sizes.items()}
        feed = named.feed_for(other)
        if feed is None:
            assert change, "the sizes of the call"
            continue
        expected = CONTEXT.compute(named.graph, feed)
        results = dict(zip(expected, session.run([*expected], feed), strict=True))
        for key, array in expected.items():
            tolerance = max(sample.rtol, sample.atol) * (sample.half if array.dtype == np.float16 else 1)
            np.testing.assert_allclose(results[key], array, rtol=tolerance, atol=tolerance, err_msg=str(other))
        compared += 1
    event(f"{compared} combinations of sizes")


F = "float32"
Shape = list[int | str]

NETWORKS: dict[str, tuple[Any, list[tuple[str, Shape]], list[list[Any]]]] = {
    "pool": (
        lambda b, x: b.concat([b.max_pool2d(x, window_dimensions=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])] * 2, 0),
        [(F, ["n", 3, "h", "w"])],
        [["2*n", 3, "((h - 1) // 2) + 1", "((w - 1) // 2) + 1"]],
    ),
    "global": (lambda b, x: b.average_pool2d(x), [(F, ["n", 3, "h", "w"])], [["n", 3, 1, 1]]),
    "norm": (lambda b, x: b.l2_pool2d(x), [(F, ["n", 3, "h", "w"])], [["n", 3, 1, 1]]),
    "grow": (lambda b, x: b.resample2d(x, scales=[2, 3]), [(F, ["n", 3, "h", "w"])], [["n", 3, "2*h", "3*w"]]),
    "resize": (
        lambda b, x: b.resample2d(x, sizes=[x.shape[3] + 1, 5], mode="linear"),
        [(F, ["n", 3, "h", "w"])],
        [["n", 3, "w + 1", 5]],
    ),
    "resize by neighbours": (
        lambda b, x: b.resample2d(x, sizes=[x.shape[3] + 1, 5], axes=[1, 3]),
        [("uint8", ["n", 3, "h", "w"])],
        [["n", "w + 1", "h", 5]],
    ),
    "heads": (
        lambda b, x: b.transpose(b.reshape(x, [x.shape[0], x.shape[1], 4, 2]), permutation=[0, 2, 1, 3]),
        [(F, ["n", "h", 8])],
        [["n", 4, "h", 2]],
    ),
    "round": (
        lambda b, x: (
            b.expand(b.constant(np.float32([[1]])), [(x.shape[0] + 1) // 2, -(-x.shape[1] // 3)]) + b.reduce_sum(x)
        ),
        [(F, ["n", "h"])],
        [["(n + 1) // 2", "-((-h) // 3)"]],
    ),
    "mean": (lambda b, x: b.mul(b.reduce_mean(x, axes=[0]), 2), [(F, ["n", 8])], [[8]]),
    "broadcast": (lambda b, x, y: b.add(x, y), [(F, ["n", "h"]), (F, ["w", "h"])], [["broadcast(n, w)", "h"]]),
    "gather": (lambda b, x, i: b.gather(x, i), [(F, ["n", 8]), ("int64", ["h"])], [["h", 8]]),
    "scale": (
        lambda b, x: b.quantize_linear(x, np.full((1, 8), 0.1, F), np.full((1, 8), 3, "int8")),
        [(F, ["n", 8])],
        [["n", 8]],
    ),
    "tile": (lambda b, x: b.tile(x, [2, 3]), [("float16", ["n", "h"])], [["2*n", "3*h"]]),
}
"""Networks, the shapes of their inputs, and the shapes of their outputs in the file."""


@pytest.mark.parametrize("name", NETWORKS)
def test_save_writes_names_and_formulas(name: str, tmp_path: Path) -> None:
    function, shapes, outputs = NETWORKS[name]
    builder = ow.MLGraphBuilder(CONTEXT)
    inputs = [builder.input(f"x{k}", data_type, shape) for k, (data_type, shape) in enumerate(shapes)]  # type: ignore[arg-type]
    graph = builder.build({"y": function(builder, *inputs)})
    ow.onnx.save(graph, tmp_path / "model.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "model.onnx"))
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert [value.shape for value in session.get_inputs()] == [shape for _, shape in shapes]
    assert [value.shape for value in session.get_outputs()] == outputs
    rng = np.random.default_rng(0)
    for sizes in ({"n": 4, "h": 9, "w": 4}, {"n": 1, "h": 6, "w": 1}, {"n": 1, "h": 1, "w": 31}):
        feed = {
            f"x{k}": (rng.standard_normal([sizes.get(size, size) for size in shape]) * 3).astype(data_type)
            for k, (data_type, shape) in enumerate(shapes)
        }
        (result,) = session.run(["y"], feed)
        expected = CONTEXT.compute(graph, feed)["y"]
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_save_with_input_shapes(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    builder = ow.MLGraphBuilder(CONTEXT)
    x = builder.input("x", "int32", ["n", 2])
    graph = builder.build({"y": builder.reduce_sum(x, axes=[0], label="total")})
    with pytest.raises(
        ow.NotSupportedError, match=r"save: reduce_sum 'total': .*; save\(\.\.\., input_shapes=\{\.\.\.\}\)"
    ):
        ow.onnx.save(graph, path)
    assert not path.exists()
    ow.onnx.save(graph, path, input_shapes={"x": [3, 2]})
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [value.shape for value in (*session.get_inputs(), *session.get_outputs())] == [[3, 2], [2]]
    assert session.run(["y"], {"x": np.int32([[1, 2], [3, 4], [5, 6]])})[0].tolist() == [9, 12]
    for shapes, message in (
        ({"x": [3, 3]}, r"save: input 'x' must be int32\[n, 2\], got the shape \[3, 3\]"),
        ({}, "save: input_shapes must hold"),
    ):
        with pytest.raises(ow.ValidationError, match=message):
            ow.onnx.save(graph, path, input_shapes=shapes)


def test_save_gives_formulas_no_name_of_an_input(tmp_path: Path) -> None:
    builder = ow.MLGraphBuilder(CONTEXT)
    x, y = builder.input("x", F, ["n"]), builder.input("y", F, ["2*n"])
    graph = builder.build({"z": builder.concat([x, x], 0), "w": builder.abs(y)})
    ow.onnx.save(graph, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert [value.shape for value in session.get_outputs()] == [[None], ["2*n"]]
