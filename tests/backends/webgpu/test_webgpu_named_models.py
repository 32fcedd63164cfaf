"""Sessions of ONNX models with dynamic dimensions on WebGPU: one program runs all shapes."""

from __future__ import annotations

import threading
from math import inf
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx.parser import parse_model
from support.webgpu_device import gpu_context

import opweave as ow
from opweave.backends.gpu.arenas import Arenas
from opweave.backends.gpu.schedule import Schedule
from opweave.context import dynamic_graph_state
from opweave.onnx.session.named_models import NamedModel
from opweave.support.background import background

pytest.importorskip("wgpu", reason="wgpu is not installed")


def session_of(text: str) -> tuple[ow.InferenceSession, onnxruntime.InferenceSession]:
    model = parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    context = ow.ml.create_context(device=gpu_context().device.name)
    return ow.InferenceSession(model, context=context), onnxruntime.InferenceSession(model.SerializeToString())


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[Schedule]:
    """The graphs whose kernels are written. Nothing is compiled in the background."""
    monkeypatch.setattr(dynamic_graph_state, "FAR", inf)
    graphs = list[Schedule]()
    start = Schedule.__init__

    def note(self: Schedule, *arguments: Any) -> None:
        start(self, *arguments)
        graphs.append(self)

    monkeypatch.setattr(Schedule, "__init__", note)
    return graphs


def test_images_of_all_sizes_have_one_program(lowered: list[Schedule]) -> None:
    """Pooling has defaults that depend on sizes; `SAME_UPPER` pads by formulas of them."""
    session, witness = session_of(
        "g (float[1, 2, height, width] x, float[4, 2, 3, 3] w) => (float[a, b, c, d] y) {"
        '  p = MaxPool <kernel_shape = [2, 2], strides = [2, 2], auto_pad = "SAME_UPPER"> (x)'
        "  r = Conv <pads = [1, 1, 1, 1]> (p, w)  y = Relu (r) }"
    )
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 2, 3, 3), np.float32)
    for height, width in (8, 6), (7, 9), (12, 5), (8, 6), (31, 4):
        feed = {"x": rng.standard_normal((1, 2, height, width), np.float32), "w": w}
        np.testing.assert_allclose(session.run(None, feed)[0], witness.run(None, feed)[0], 1e-4, 1e-4, strict=True)
    assert len(lowered) == 1
    text = session.explain()
    assert "runs whole on" in text
    assert "one by one" not in text


def test_resized_images_are_read_by_the_next_kernel(lowered: list[Schedule]) -> None:
    """The resize doubles sizes that are sums: positions are halved, without a table."""
    session, witness = session_of(
        "g (float[1, 2, height, width] x) => (float[a, b, c, d] y) {"
        "  p = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x)"
        "  none = Constant <value = float[0] {}> ()  scales = Constant <value = float[4] {1, 1, 2, 2}> ()"
        '  r = Resize <mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric">'
        "    (p, none, scales)  y = Concat <axis = 1> (r, r) }"
    )
    for height, width in (8, 6), (7, 9), (31, 4):
        feed = {"x": np.random.default_rng(height).standard_normal((1, 2, height, width), np.float32)}
        np.testing.assert_array_equal(session.run(None, feed)[0], witness.run(None, feed)[0])
    assert [len(schedule.steps) for schedule in lowered] == [2]


def test_programs_share_weights_and_arenas(lowered: list[Schedule], monkeypatch: pytest.MonkeyPatch) -> None:
    """One image and several have programs of their own, whose constants are those of the same nodes."""
    session, witness = session_of(
        "g (float[batch, 2, 4, width] x) => (float[batch, 3, 1, 1] y) {"
        "  w = Constant <value = float[3, 2, 1, 1] {1, 2, 3, 4, 5, 6}> ()"
        "  r = Conv (x, w)  y = GlobalAveragePool (r) }"
    )
    from opweave.backends.webgpu.engine import WebGpuDevice

    buffers, arenas = list[str](), list[Any]()
    allocate, start = WebGpuDevice.buffer, Arenas.__init__

    def note_buffer(self: Any, count: int, label: str) -> Any:
        buffers.append(label)
        return allocate(self, count, label)

    def note_arenas(self: Any, device: Any) -> None:
        start(self, device)
        arenas.append(self)

    monkeypatch.setattr(WebGpuDevice, "buffer", note_buffer)
    monkeypatch.setattr(Arenas, "__init__", note_arenas)
    for batch in (1, 3, 2, 1):
        feed = {"x": np.random.default_rng(batch).standard_normal((batch, 2, 4, 5 + batch), np.float32)}
        np.testing.assert_allclose(session.run(None, feed)[0], witness.run(None, feed)[0], 1e-4, 1e-4, strict=True)
    assert len(lowered) == 2
    assert buffers.count("a constant") == 1
    held = {id(arena) for arena in arenas if arena.idle}
    assert len(held) == 2  # of intermediates, and of inputs and outputs


def test_cache_grows_without_compiling(lowered: list[Schedule]) -> None:
    """An empty cache has a program of its own, as have single tokens."""
    session, witness = session_of(
        "g (float[1, tokens, 64] x, float[1, past, 64] cache, float[64, 64] w) => (float[1, m, 64] y, float[1, n, 64] k) {"
        "  p = MatMul (x, w)  k = Concat <axis = 1> (cache, p)  t = Transpose <perm = [0, 2, 1]> (k)"
        "  s = MatMul (p, t)  a = Softmax <axis = -1> (s)  y = MatMul (a, k) }"
    )
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 64), np.float32) / 8
    counts = []
    for tokens, past in (6, 3), (1, 9), (1, 10), (4, 11), (1, 15), (9, 40), (3, 0), (5, 0), (1, 16):
        feed = {
            "x": rng.standard_normal((1, tokens, 64), np.float32),
            "cache": rng.standard_normal((1, past, 64), np.float32),
            "w": w,
        }
        for result, expected in zip(session.run(None, feed), witness.run(None, feed), strict=True):
            np.testing.assert_allclose(result, expected, 1e-3, 1e-4, strict=True)
        counts.append(len(lowered))
    assert counts == [1, 2, 2, 2, 2, 2, 3, 3, 3]


def test_models_for_far_sizes_are_used_once_they_are_ready(
    lowered: list[Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes far from the first get kernels in the background, and sizes near to these then use them, too."""
    monkeypatch.setattr(dynamic_graph_state, "FAR", 4)
    session, witness = session_of(
        "g (float[rows, 40] x, float[40, 30] w) => (float[rows, 30] y) {"
        "  p = MatMul (x, w)  r = Relu (p)  y = Softmax <axis = 0> (r) }"
    )
    chosen, at = [], NamedModel.at

    def note(self: NamedModel, shapes: Any) -> Any:
        chosen.append(self.guards.typical["rows"])
        return at(self, shapes)

    monkeypatch.setattr(NamedModel, "at", note)
    rng = np.random.default_rng(0)
    w, counts = rng.standard_normal((40, 30), np.float32), []
    for rows in (20, 30, 2000, 2000, 20, 1500, 1500, 25, 4000):
        feed = {"x": rng.standard_normal((rows, 40), np.float32), "w": w}
        for _ in range(2):
            np.testing.assert_allclose(session.run(None, feed)[0], witness.run(None, feed)[0], 1e-4, 1e-6, strict=True)
            background.wait()
        counts.append(len(lowered))
    assert counts == [1, 1, 2, 2, 2, 2, 2, 2, 2]
    # Calls of shapes that are compiled do not choose again. Those of 2000 rows do, after the model for them is ready.
    assert chosen == [20, 20, 20, 2000, 2000, 20, 2000]
    assert "kernels chosen for rows = 20; rows = 2000: 1 program compiled in the background" in session.explain()


@pytest.mark.parametrize("error", [ow.OperationError("out of memory"), ValueError("a defect")])
def test_failure_in_the_background_changes_nothing(
    error: Exception, lowered: list[Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other shapes have the program with names, and nothing is tried again."""
    monkeypatch.setattr(dynamic_graph_state, "FAR", 4)
    monkeypatch.delenv("OPWEAVE_STRICT", raising=False)
    session, witness = session_of("g (float[rows, 40] x, float[40, 30] w) => (float[rows, 30] y) { y = MatMul (x, w) }")
    start, attempts = Schedule.__init__, []

    def fail(self: Schedule, *arguments: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            attempts.append(arguments)
            raise error
        start(self, *arguments)

    monkeypatch.setattr(Schedule, "__init__", fail)
    w = np.ones((40, 30), np.float32)
    for rows in (20, 2000, 2001, 2002, 21, 22):
        feed = {"x": np.ones((rows, 40), np.float32), "w": w}
        np.testing.assert_allclose(session.run(None, feed)[0], witness.run(None, feed)[0], 1e-4, strict=True)
        background.wait()
    assert (len(attempts), len(lowered)) == (1, 1)
    assert "one by one" not in session.explain()
