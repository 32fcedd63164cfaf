"""ONNX Runtime's GroupQueryAttention against its kernel, and against a formula where the kernel has limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from attention_models import check_attention, model, operations, randn
from onnx import TensorProto, helper, numpy_helper
from support import witness

import opweave as ow
from opweave.composites import group_query_attention
from opweave.onnx.session.session import InferenceSession

REFERENCE = ow.ml.create_context(device="reference")


def sequence(batch: int, length: int, past: int, total: int, capacity: int | None = None) -> list[np.ndarray | None]:
    cache: list[np.ndarray | None] = [None, None]
    if capacity or past:
        cache = [randn(batch, 2, capacity or past, 16) for _ in range(2)]
    lengths = np.full((batch,), total - 1, np.int32)
    return [
        randn(batch, length, 64),
        randn(batch, length, 32),
        randn(batch, length, 32),
        *cache,
        lengths,
        np.array(total, np.int32),
    ]


GROUPED = {"num_heads": 4, "kv_num_heads": 2}


@pytest.mark.parametrize(("length", "past"), [(5, 0), (1, 6)])
@pytest.mark.parametrize("options", [{}, {"local_window_size": 3}, {"softcap": 2.0}, {"scale": 0.2}])
def test_group_query_attention(length: int, past: int, options: dict[str, Any]) -> None:
    inputs = sequence(1, length, past, length + past)
    check_attention("GroupQueryAttention", inputs, 3, constants=(6,), **GROUPED, **options)


def test_group_query_attention_of_several_sequences() -> None:
    check_attention("GroupQueryAttention", sequence(3, 1, 4, 5), 3, constants=(5, 6), **GROUPED)


@pytest.mark.parametrize(("length", "past"), [(1, 6), (3, 4)])
def test_group_query_attention_writes_into_a_longer_cache(length: int, past: int) -> None:
    check_attention("GroupQueryAttention", sequence(1, length, past, length + past, 12), 3, constants=(6,), **GROUPED)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_group_query_attention_turns_queries_and_keys(interleaved: int) -> None:
    tables = [randn(16, 8), randn(16, 8)]
    inputs = [*sequence(1, 1, 6, 7), *tables]
    check_attention(
        "GroupQueryAttention", inputs, 3, constants=(6,), do_rotary=1, rotary_interleaved=interleaved, **GROUPED
    )


@pytest.mark.parametrize("capacity", [6, 12])
@pytest.mark.parametrize("with_positions", [False, True])
def test_group_query_attention_with_rotary_keeps_kernel(capacity: int, with_positions: bool) -> None:
    inputs = [*sequence(1, 1, 6, 7, capacity), randn(16, 8), randn(16, 8)]
    if with_positions:
        inputs.append(np.array([[9]]))
    check_attention("GroupQueryAttention", inputs, 3, constants=(6,), do_rotary=1, **GROUPED)
    proto = model("GroupQueryAttention", inputs, 3, "com.microsoft", do_rotary=1, **GROUPED)
    session = InferenceSession(proto, specialise="always")
    session.run(None, {f"i{k}": array for k, array in enumerate(inputs) if array is not None})
    assert operations(session).count("group_query_attention") == 1
    assert operations(session).count("rotary_embedding") == 2 * with_positions  # the kernel takes no other positions
    assert "softmax" not in operations(session)


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}])
def test_group_query_attention_of_empty_past(options: dict[str, float]) -> None:
    """The first call of a decoder."""
    inputs = sequence(1, 5, 0, 5)
    inputs[3:5] = [np.zeros((1, 2, 0, 16), np.float32)] * 2
    check_attention("GroupQueryAttention", inputs, 3, constants=(6,), **GROUPED, **options)
    q, k, v, past = randn(2, 4, 24), randn(2, 4, 24), randn(2, 4, 24), np.zeros((2, 3, 0, 8), np.float32)
    check_attention("MultiHeadAttention", [q, k, v, None, None, None, past, past], 3, num_heads=3)


def test_group_query_attention_packed() -> None:
    q, k, v, *rest = sequence(1, 3, 0, 3)
    packed = np.concatenate([q, k, v], axis=2)
    check_attention("GroupQueryAttention", [packed, None, None, *rest], 3, constants=(6,), **GROUPED)


def test_group_query_attention_explains_fallback() -> None:
    inputs = sequence(2, 1, 4, 5)
    session = InferenceSession(model("GroupQueryAttention", inputs, 3, "com.microsoft", **GROUPED))
    assert "the number of keys is not constant" in session.explain({})
    feed = {f"i{k}": array for k, array in enumerate(inputs) if array is not None}
    assert session.run(["o0"], feed)[0].shape == (2, 1, 64)


class Decoder:
    """A decoder of one GroupQueryAttention whose mask has a fixed length, in ONNX Runtime and here.

    Args:
        batch: the number of sequences.
        capacity: the room for keys.
        total: the length of the mask.
        extra: the inputs after `total_sequence_length`.
        context: where it runs here.
        attributes: of the operator.
    """

    def __init__(
        self,
        batch: int,
        capacity: int,
        total: int,
        extra: Sequence[np.ndarray | None] = (),
        context: ow.MLContext | None = None,
        **attributes: Any,
    ) -> None:
        self.batch, self.capacity, self.total, self.extra, self.context = batch, capacity, total, extra, context
        self.attributes = GROUPED | attributes
        self.sessions: dict[int, tuple[onnxruntime.InferenceSession, InferenceSession]] = {}

    def step(self, new: int, pasts: Sequence[np.ndarray], lengths: Sequence[int]) -> tuple[list[np.ndarray], ...]:
        """The results of ONNX Runtime, and ours, for new keys and queries after `lengths` others."""
        inputs = sequence(self.batch, new, 1, self.total, self.capacity)
        inputs[3:6] = [*pasts, np.array(lengths, np.int32) + (new - 1)]
        inputs += [array[:, :, :new] if array is not None and array.ndim == 4 else array for array in self.extra]
        feed = {f"i{k}": array for k, array in enumerate(inputs) if array is not None}
        if new not in self.sessions:
            proto = model("GroupQueryAttention", inputs, 3, "com.microsoft", **self.attributes)
            proto.graph.initializer.append(numpy_helper.from_array(feed["i6"], "i6"))
            proto.graph.input.remove(next(info for info in proto.graph.input if info.name == "i6"))
            engine = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
            self.sessions[new] = engine, InferenceSession(proto, context=self.context, specialise="always")
        del feed["i6"]
        engine, ours = self.sessions[new]
        return engine.run(None, feed), ours.run(None, feed)

    def check_calls(self, calls: Sequence[int]) -> None:
        """Compare the results of calls with some new keys each, one after the other."""
        pasts, length = [randn(self.batch, 2, self.capacity, 16) for _ in range(2)], 0
        for new in calls:
            wanted, got = self.step(new, pasts, [length] * self.batch)
            length += new
            close(got[0], wanted[0])
            for mine, other in zip(got[1:], wanted[1:], strict=True):
                assert mine.shape == other.shape
                close(mine[:, :, :length], other[:, :, :length])
            pasts = [memory[:, :, : self.capacity] for memory in got[1:]]
        for _, session in self.sessions.values():
            assert "group_query_attention" in operations(session)  # one graph for all tokens, and no fallback


def close(mine: np.ndarray, other: np.ndarray) -> None:
    np.testing.assert_allclose(mine, other, rtol=1e-4, atol=2e-5)


def bias(batch: int, total: int) -> list[np.ndarray | None]:
    return [None, None, None, randn(batch, 4, 3, total)]


ORT_OPTIONS: list[tuple[list[np.ndarray | None], dict[str, Any]]] = [
    ([], {}),
    ([], {"local_window_size": 3}),
    ([], {"softcap": 2.0}),
    ([], {"smooth_softmax": 1}),
    ([None, None, None, None, randn(4)], {}),
    (bias(1, 12), {}),
    ([*bias(1, 12), randn(4)], {"softcap": 2.0, "local_window_size": 3}),
    ([randn(16, 8), randn(16, 8)], {"do_rotary": 1}),
    ([randn(16, 8), randn(16, 8)], {"do_rotary": 1, "rotary_interleaved": 1, "local_window_size": 2}),
]
ids = ["plain", "window", "softcap", "smooth", "sinks", "bias", "all", "rotary", "interleaved"]


@pytest.mark.parametrize("context", [None, REFERENCE], ids=["cpu", "reference"])
@pytest.mark.parametrize(("extra", "attributes"), ORT_OPTIONS, ids=ids)
def test_group_query_attention_decodes_with_one_graph(
    extra: list[np.ndarray | None], attributes: dict[str, Any], context: ow.MLContext | None
) -> None:
    """A prompt in two chunks, then token by token."""
    decoder = Decoder(1, 12, 12, extra, context, **attributes)
    decoder.check_calls([3, 2, 1, 1, 1, 1])
    assert len(decoder.sessions) == 3


@pytest.mark.parametrize(("extra", "attributes"), ORT_OPTIONS, ids=ids)
def test_group_query_attention_of_a_whole_prompt(extra: list[np.ndarray | None], attributes: dict[str, Any]) -> None:
    cut = [array[..., :3] if array is not None and array.ndim == 4 else array for array in extra]
    inputs = [*sequence(2, 3, 0, 3), *cut]
    check_attention("GroupQueryAttention", inputs, 3, constants=(6,), **GROUPED, **attributes)


@pytest.mark.parametrize("context", [None, REFERENCE], ids=["cpu", "reference"])
@pytest.mark.parametrize(("extra", "attributes"), ORT_OPTIONS, ids=ids)
def test_group_query_attention_of_different_lengths(
    extra: list[np.ndarray | None], attributes: dict[str, Any], context: ow.MLContext | None
) -> None:
    decoder = Decoder(2, 12, 12, extra, context, **attributes)
    pasts = [randn(2, 2, 12, 16) for _ in range(2)]
    for lengths in ([2, 5], [3, 6], [0, 11]):
        wanted, got = decoder.step(1, pasts, lengths)
        close(got[0], wanted[0])
        for mine, other in zip(got[1:], wanted[1:], strict=True):
            for n, length in enumerate(lengths):
                close(mine[n, :, : length + 1], other[n, :, : length + 1])
    assert "group_query_attention" in operations(decoder.sessions[1][1])


@pytest.mark.parametrize("capacity", [7, 12])
@pytest.mark.parametrize("context", [None, REFERENCE], ids=["cpu", "reference"])
def test_group_query_attention_appends_after_valid_keys(capacity: int, context: ow.MLContext | None) -> None:
    """A mask of fixed length is longer than the sequence, with a past that has room, and with one that grows."""
    decoder = Decoder(1, capacity, 8, context=context)
    for length in (3, 5):
        wanted, got = decoder.step(1, [randn(1, 2, capacity, 16) for _ in range(2)], [length])
        for mine, other in zip(got, wanted, strict=True):
            assert mine.shape == other.shape
            rows = slice(None) if mine.ndim == 3 else np.s_[:, :, : length + 1]
            close(mine[rows], other[rows])
    assert "group_query_attention" in operations(decoder.sessions[1][1])


def test_group_query_attention_prompt_of_two_sequences_in_chunks() -> None:
    """ONNX Runtime takes several new keys after a past for a single sequence only."""
    q, k, v, *_ = sequence(2, 3, 0, 3)
    assert q is not None
    assert k is not None
    assert v is not None
    pasts, lengths = [randn(2, 2, 12, 16) for _ in range(2)], [2, 5]
    inputs = [
        q,
        k,
        v,
        *pasts,
        np.array(lengths, np.int32) + 2,
        np.array(12, np.int32),
        None,
        None,
        None,
        None,
        randn(4),
    ]
    proto = model("GroupQueryAttention", inputs, 3, "com.microsoft", **GROUPED, softcap=2.0, local_window_size=3)
    session = InferenceSession(proto, fallback="error")
    got = session.run(None, {f"i{k}": array for k, array in enumerate(inputs) if array is not None})
    a, b, c = (x.reshape(2, 3, -1, 16).swapaxes(1, 2) for x in (q, k, v))
    y, *memories = witness.cached_attention(a, b, c, pasts, lengths, 12, softcap=2.0, window=3, sinks=inputs[-1])
    close(got[0], y.swapaxes(1, 2).reshape(2, 3, 64))
    for mine, other in zip(got[1:], memories, strict=True):
        close(mine[~np.isnan(other)], other[~np.isnan(other)])


def test_group_query_attention_padded_prompt() -> None:
    """Sequences that are padded on the right: what they hold in place of padding is overwritten by the next tokens."""
    inputs = sequence(2, 5, 1, 5, 12)
    inputs[5] = np.array([2, 4], np.int32)
    proto = model("GroupQueryAttention", inputs, 3, "com.microsoft", **GROUPED)
    feed = {f"i{k}": array for k, array in enumerate(inputs) if array is not None}
    wanted = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)
    got = InferenceSession(proto, fallback="error").run(None, feed)
    for mine, other in zip(got, wanted, strict=True):
        for n, length in enumerate((3, 5)):
            rows = np.s_[n, :length] if mine.ndim == 3 else np.s_[n, :, :length]
            close(mine[rows], other[rows])
    after = Decoder(2, 12, 12).step(1, got[1:], [3, 5])
    close(after[1][0], after[0][0])


def test_group_query_attention_ignores_total_length() -> None:
    inputs = sequence(1, 4, 0, 4)
    session = InferenceSession(model("GroupQueryAttention", inputs, 1, "com.microsoft", **GROUPED), specialise="always")
    for array in (np.array(4, np.int32), np.array(4, np.int32)):
        feed = {f"i{k}": array for k, array in enumerate(inputs) if array is not None} | {"i6": array}
        session.run(None, feed)
    assert "group_query_attention" in operations(session)


@pytest.mark.parametrize("new", [1, 3])
def test_group_query_attention_saved_decoder(new: int, tmp_path: Path) -> None:
    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    shapes = {"q": [1, new, 64], "k": [1, new, 32], "v": [1, new, 32], "keys": [1, 2, 12, 16], "values": [1, 2, 12, 16]}
    operands = [builder.input(name, "float32", shape) for name, shape in shapes.items()]
    lengths = builder.input("lengths", "int32", [1])
    tables = {"cosines": randn(12, 8), "sines": randn(12, 8)}
    more = {"sinks": randn(4), "softcap": 3.0, "window": 4}
    made = group_query_attention(*operands, lengths, heads=4, groups=2, **tables, **more)
    graph = builder.build({f"o{k}": operand for k, operand in enumerate(made)})
    ow.onnx.save(graph, tmp_path / "decoder.onnx", operators="onnxruntime")
    session = InferenceSession(tmp_path / "decoder.onnx", specialise="always")
    for length in (0, 5, 12 - new):
        feed = {name: randn(*shape) for name, shape in shapes.items()} | {"lengths": np.int32([length])}
        for mine, other in zip(session.run(None, feed), context.compute(graph, feed).values(), strict=True):
            close(mine, other)
    assert "group_query_attention" in operations(session)


@pytest.mark.parametrize("rotates", [False, True])
def test_group_query_attention_packed_after_a_past(rotates: bool) -> None:
    q, k, v, *rest = sequence(2, 1, 4, 5, 12)
    assert q is not None
    assert k is not None
    assert v is not None
    tables: dict[str, Any] = {"do_rotary": 1} if rotates else {}
    inputs = [np.concatenate([q, k, v], axis=2), None, None, *rest, *([randn(16, 8), randn(16, 8)] if rotates else [])]
    check_attention("GroupQueryAttention", inputs, 3, constants=(6,), **GROUPED, **tables)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("options", [{}, {"do_rotary": 1}])
def test_group_query_attention_of_shorter_sequence(constant: bool, options: dict[str, int]) -> None:
    """A mask of a fixed length: the total counts all keys, and the sequence has fewer of them."""
    length, total, capacity = 5, 9, 12
    inputs = sequence(1, 1, length - 1, length, capacity)
    inputs[6] = np.array(total, np.int32)
    if options:
        inputs += [randn(16, 8), randn(16, 8)]
    proto = model("GroupQueryAttention", inputs, 3, "com.microsoft", **GROUPED, **options)
    feed = {f"i{k}": array for k, array in enumerate(inputs) if array is not None}
    wanted = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)
    if constant:  # else the session may read the values of inputs
        for k in (5, 6):
            proto.graph.initializer.append(numpy_helper.from_array(feed.pop(f"i{k}"), f"i{k}"))
            proto.graph.input.remove(next(info for info in proto.graph.input if info.name == f"i{k}"))
    session = InferenceSession(proto, specialise="always")
    for _ in range(2):
        for mine, other in zip(session.run(None, feed), wanted, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=2e-5)
    assert "group_query_attention" in operations(session)


def test_group_query_attention_lengths_from_mask() -> None:
    inputs = sequence(1, 1, 4, 5, 12)
    proto = model("GroupQueryAttention", inputs, 3, "com.microsoft", **GROUPED)
    names = [info.name for info in proto.graph.input]
    proto.graph.input.remove(proto.graph.input[names.index("i5")])
    proto.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.INT64, [1, 12]))
    lengths = [
        helper.make_node("ReduceSum", ["mask", "axes"], ["sum"], keepdims=0),
        helper.make_node("Sub", ["sum", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["i5"], to=TensorProto.INT32),
    ]
    nodes = [*lengths, *proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    for name, array in {"axes": np.array([1]), "one": np.array(1), "i6": np.array(12, np.int32)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    feed = {f"i{k}": array for k, array in enumerate(inputs[:5])}
    proto.graph.input.remove(next(info for info in proto.graph.input if info.name == "i6"))
    engine = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    session = InferenceSession(proto, fallback="error")
    for length in (5, 6, 12):
        feed["mask"] = np.array([[1] * length + [0] * (12 - length)])
        for mine, other in zip(session.run(None, feed), engine.run(None, feed), strict=True):
            close(mine, other)
    assert "group_query_attention" in operations(session)
