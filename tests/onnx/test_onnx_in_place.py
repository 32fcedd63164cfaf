"""Sessions that write present keys and values into the memory of the past ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper
from support.webgpu_device import gpu_context

import opweave as ow
from opweave import memory
from opweave.memory import NOT_IN_PLACE, OVER_INPUT
from opweave.onnx.session.session import InferenceSession

HEADS, GROUPS, SIZE, ROOM = 4, 2, 16, 12
PAST = {f"present_{what}": f"past_{what}" for what in ("key", "value")}


def model(batch: int = 1, new: int | str = "new", room: int | str = ROOM, more: Any = ()) -> ModelProto:
    """A node of GroupQueryAttention, and `more` nodes that make `z` of its inputs and outputs."""

    def info(name: str, shape: list[int | str] | None, kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    node = helper.make_node(
        "GroupQueryAttention",
        ["query", "key", "value", *PAST.values(), "lengths", "total"],
        ["y", *PAST],
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=GROUPS,
    )
    inputs = [
        info("query", [batch, new, HEADS * SIZE]),
        *(info(name, [batch, new, GROUPS * SIZE]) for name in ("key", "value")),
        *(info(name, [batch, GROUPS, room, SIZE]) for name in PAST.values()),
        info("lengths", [batch], TensorProto.INT32),
        info("total", [], TensorProto.INT32),
    ]
    present = room if isinstance(room, int) else "all"
    outputs = [info("y", [batch, new, HEADS * SIZE]), *(info(name, [batch, GROUPS, present, SIZE]) for name in PAST)]
    if more:
        outputs.append(info("z", None))
    graph = helper.make_graph([node, *more], "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def chunk(batch: int, start: int, new: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(start)
    widths = {"query": HEADS, "key": GROUPS, "value": GROUPS}
    made = {name: random.standard_normal((batch, new, n * SIZE)).astype("float32") for name, n in widths.items()}
    return made | {"lengths": np.full(batch, start + new - 1, "int32"), "total": np.array(start + new, "int32")}


def caches(batch: int = 1) -> dict[str, np.ndarray]:
    return {name: np.zeros((batch, GROUPS, ROOM, SIZE), "float32") for name in PAST.values()}


def wanted(proto: ModelProto, batch: int, chunks: tuple[int, ...]) -> Iterator[list[np.ndarray]]:
    """What ONNX Runtime computes with other memory for the present."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    past, start = caches(batch), 0
    for new in chunks:
        y, *present = session.run(["y", *PAST], chunk(batch, start, new) | past)
        past, start = dict(zip(past, present, strict=True)), start + new
        yield [y, *present]


def by_arrays(session: InferenceSession, batch: int, chunks: tuple[int, ...]) -> Iterator[list[np.ndarray]]:
    past, start = caches(batch), 0
    for new in chunks:
        given = chunk(batch, start, new) | past
        y, *present = session.run(["y", *PAST], given, out={name: past[source] for name, source in PAST.items()})
        assert all(mine is past[source] for mine, source in zip(present, PAST.values(), strict=True))
        start += new
        yield [y, *present]


def by_values(session: InferenceSession, batch: int, chunks: tuple[int, ...]) -> Iterator[list[np.ndarray]]:
    past, start = caches(batch), 0
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in past.items()}
    for new in chunks:
        out = {name: values[source] for name, source in PAST.items()}
        yield session.run(["y", *PAST], chunk(batch, start, new) | values, out=out)
        start += new


def by_binding(session: InferenceSession, batch: int, chunks: tuple[int, ...]) -> Iterator[list[np.ndarray]]:
    past, start = caches(batch), 0
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in past.items()}
    for new in chunks:
        binding = session.io_binding()
        for name, array in chunk(batch, start, new).items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("y")
        for name, source in PAST.items():
            binding.bind_ortvalue_input(source, values[source])
            binding.bind_ortvalue_output(name, values[source])
        session.run_with_iobinding(binding)
        y, *present = binding.get_outputs()
        yield [y.numpy(), *(value.numpy() for value in present)]
        start += new


WAYS = [by_arrays, by_values, by_binding]
Way = Callable[[InferenceSession, int, tuple[int, ...]], Iterator[list[np.ndarray]]]


def check_in_place(proto: ModelProto, session: InferenceSession, way: Way, batch: int, chunks: tuple[int, ...]) -> None:
    start = 0
    found, expected = way(session, batch, chunks), wanted(proto, batch, chunks)
    for new, mine, other in zip(chunks, found, expected, strict=True):
        start += new
        np.testing.assert_allclose(mine[0], other[0], rtol=1e-4, atol=1e-5)
        for present, theirs in zip(mine[1:], other[1:], strict=True):
            np.testing.assert_allclose(present[:, :, :start], theirs[:, :, :start], rtol=1e-5)


@pytest.mark.parametrize("specialise", ["recurring", "always", "never"])
@pytest.mark.parametrize("way", WAYS)
def test_attention_in_place_equals_copying(way: Way, specialise: Any) -> None:
    proto = model()
    session = InferenceSession(proto, context=ow.ml.create_context(accelerated=False), specialise=specialise)
    check_in_place(proto, session, way, 1, (3, 2, 1, 1))
    memory.copies.reset()
    check_in_place(proto, session, way, 1, (3, 2, 1, 1))
    assert memory.copies.count == 0, memory.copies
    check_in_place(proto, session, way, 1, (1,) * 9)
    if specialise != "always":  # where lengths that differ at each call end in a fallback of unknown shapes
        assert memory.copies.count == 0, memory.copies


@pytest.mark.parametrize("specialise", ["always", "never"])
def test_repeated_run_in_place_skips_checks(specialise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ow.ml.create_context(accelerated=False)
    session = InferenceSession(model(new=1), context=context, specialise=specialise)
    past = caches()
    given, out = chunk(1, 3, 1) | past, {name: past[source] for name, source in PAST.items()}
    first = session.run(["y"], given, out=out)[0]
    monkeypatch.setattr("opweave.onnx.session.session.run_call", None)
    memory.copies.reset()
    np.testing.assert_array_equal(session.run(["y"], given, out=out)[0], first)
    assert memory.copies.count == 0


@pytest.mark.parametrize("way", WAYS)
def test_attention_in_place_two_sequences(way: Way) -> None:
    proto = model(batch=2, new=1)
    memory.copies.reset()
    check_in_place(proto, InferenceSession(proto, context=ow.ml.create_context(accelerated=False)), way, 2, (1, 1, 1))
    assert memory.copies.count == 0, memory.copies


@pytest.mark.parametrize("device", ["reference", "webgpu"])
@pytest.mark.parametrize("way", WAYS)
def test_attention_in_place_on_other_devices(way: Way, device: str) -> None:
    context = gpu_context() if device == "webgpu" else ow.ml.create_context(device=device)
    proto = model(new=1)
    check_in_place(proto, InferenceSession(proto, context=context), way, 1, (1, 1, 1))


def test_attention_in_place_with_device_tensors() -> None:
    context, proto = gpu_context(), model(new=1)
    session = InferenceSession(proto, context=context)
    past = {n: context.create_tensor("float32", a.shape, readable=True) for n, a in caches().items()}
    out = {name: past[source] for name, source in PAST.items()}
    for start, (y, *present) in enumerate(wanted(proto, 1, (1, 1, 1))):
        mine, *results = session.run(["y", *PAST], chunk(1, start, 1) | past, out=out)
        np.testing.assert_allclose(mine, y, rtol=1e-4, atol=1e-5)
        for tensor, array in zip(results, present, strict=True):
            np.testing.assert_allclose(context.read_tensor(tensor)[:, :, : start + 1], array[:, :, : start + 1])


def test_attention_updates_keys_or_values_alone() -> None:
    for specialise in ("always", "never"):
        proto = model()
        session = InferenceSession(proto, context=ow.ml.create_context(accelerated=False), specialise=specialise)
        past = {name: np.ones_like(array) for name, array in caches().items()}
        expected = session.run(["y", *PAST], chunk(1, 3, 1) | past)
        memory.copies.reset()
        for _ in range(2):
            mine = {name: array.copy() for name, array in past.items()}
            found = session.run(["y", *PAST], chunk(1, 3, 1) | mine, out={"present_key": mine["past_key"]})
            for array, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(array[..., :4, :], other[..., :4, :], rtol=1e-5)
        tallies = {reason: tally.count for reason, tally in memory.copies.by_reason.items()}
        assert tallies == {OVER_INPUT: 2, NOT_IN_PLACE: 4}


@pytest.mark.parametrize("specialise", ["always", "never"])
def test_attention_updates_past_with_other_readers_last(specialise: Any) -> None:
    for node in (
        helper.make_node("ReduceSum", ["past_key"], ["z"], keepdims=0),
        helper.make_node("Identity", ["past_key"], ["z"]),
    ):
        session = InferenceSession(
            model(more=[node]), context=ow.ml.create_context(accelerated=False), specialise=specialise
        )
        past = {name: np.ones_like(array) for name, array in caches().items()}
        y, z = session.run(["y", "z"], chunk(1, 3, 1) | past)
        for _ in range(2):
            mine = {name: array.copy() for name, array in past.items()}
            out = {name: mine[source] for name, source in PAST.items()}
            memory.copies.reset()
            found = session.run(["y", "z"], chunk(1, 3, 1) | mine, out=out)
            np.testing.assert_allclose(found[0], y, rtol=1e-5)
            np.testing.assert_array_equal(found[1], z)
            assert mine["past_key"][:, :, 3].any()
            assert memory.copies.by_reason[OVER_INPUT].count == 2


@pytest.mark.parametrize("specialise", ["always", "never"])
def test_growing_cache_is_copied(specialise: Any) -> None:
    context = ow.ml.create_context(accelerated=False)
    session = InferenceSession(model(room="past"), context=context, specialise=specialise)
    past = {name: np.ones((1, GROUPS, 3, SIZE), "float32") for name in PAST.values()}
    memory.copies.reset()
    _, key, _ = session.run(["y", *PAST], chunk(1, 3, 1) | past)
    assert key.shape == (1, GROUPS, 4, SIZE)
    assert memory.copies.by_reason[NOT_IN_PLACE].count == 2
    # Compiled, the kernel copies a past that has been padded.
    copied = key if specialise == "always" else past["past_key"]
    assert memory.copies.by_reason[NOT_IN_PLACE].bytes == 2 * copied.nbytes


def test_run_rejects_other_overlaps() -> None:
    session = InferenceSession(model(), context=ow.ml.create_context(accelerated=False))
    past = caches()
    given = chunk(1, 3, 1) | past
    for _ in range(2):
        for out in (
            {"present_key": past["past_value"]},
            {"present_key": past["past_key"], "present_value": past["past_key"]},
            {"y": given["query"]},
        ):
            with pytest.raises(ow.ValidationError, match="overlaps"):
                session.run(None, given, out=out)
        session.run(None, given, out={name: past[source] for name, source in PAST.items()})
