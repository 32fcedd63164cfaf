"""What calls of a session read and write: memory, kinds of values, tensors, arrays of other libraries."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from session_models import CONTEXT, X, Y, message, mixed_model, session, sum_model
from support.foreign import Foreign
from support.onnx import BOOL, DOUBLE, FLOAT, STRING, Value, model, node
from support.onnx_nodes import compiled_models

import opweave as ow
from opweave import memory

# Memory --------------------------------------------------------------------------------------------------------------


def copies_of(run: Any) -> tuple[Any, dict[str, int]]:
    before = {reason: tally.count for reason, tally in memory.copies.by_reason.items()}
    result = run()
    after = {reason: tally.count - before.get(reason, 0) for reason, tally in memory.copies.by_reason.items()}
    return result, {reason: count for reason, count in after.items() if count}


def test_run_with_fallback_copies_nothing() -> None:
    x = np.random.default_rng(0).standard_normal((4, 64), np.float32)
    s = session(mixed_model())
    assert s.explain({}).count("ONNX Runtime (fallback)") == 2
    (z,), copies = copies_of(lambda: s.run(None, {"x": x}))
    np.testing.assert_allclose(z, -(np.maximum(x, 0) + x), rtol=1e-6)  # as text, numbers lose a bit
    assert copies == {}


def test_run_passes_segments_in_place() -> None:
    s = session(mixed_model())
    (compiled,) = compiled_models(s)
    layout, (given, wanted) = compiled.program.default, (0, 1)  # the numbers of x and z
    assert len(layout.steps) >= 3
    assert not any(step.part is None for step in layout.steps)
    written = [number for step in layout.steps for number in step.writes]
    assert {number for step in layout.steps for number in step.reads} <= {given, *written}
    assert written.count(wanted) == 1


def test_run_of_several_segments_in_threads_at_once() -> None:
    together = Barrier(2)

    @ow.op
    def met(self: Any, x: ow.MLOperand) -> ow.Desc:
        """Negate, once two threads have come here."""
        return x.desc

    def kernel(x: np.ndarray, out: np.ndarray) -> None:
        together.wait(300)
        np.negative(x, out=out)

    met.kernel("cpu", kernel)
    ow.register_onnx("test.threads", "Met", met)
    nodes = [node("Relu", "x", "a"), node("NonZero", "a", "n"), node("Cast", "n", "f", to=FLOAT)]
    nodes += [node("ReduceMax", "f", "most", keepdims=0), helper.make_node("Met", ["a"], ["b"], domain="test.threads")]
    proto = model([*nodes, node("Add", "b most", "z")], [("x", FLOAT, [8])], [("z", FLOAT, [8])])
    proto.opset_import.append(helper.make_opsetid("test.threads", 1))
    s = session(proto)
    assert "WebNN on cpu" in s.explain()
    assert "ONNX Runtime (fallback)" in s.explain()

    def work(number: int) -> list[list[float]]:
        x = np.arange(8, dtype=np.float32) * number
        return [s.run(None, {"x": x})[0].tolist() for _ in range(20)]

    with ThreadPoolExecutor(2) as pool:
        for number, found in zip((1, 3), pool.map(work, (1, 3)), strict=True):
            assert found == [(7 - np.arange(8) * number).tolist()] * 20


def test_out_receives_results_without_copies() -> None:
    s = session(sum_model())
    out = np.full((2, 3), 9, np.float32)
    (got,), copies = copies_of(lambda: s.run(None, {"x": X, "y": Y}, out={"z": out}))
    assert got is out
    assert out.tolist() == np.maximum(X + Y, 0).tolist()
    assert copies == {}


def test_run_result_has_memory_of_its_own() -> None:
    s = session(sum_model())
    first = s.run(None, {"x": X, "y": Y})[0]
    kept = first.copy()
    second = s.run(None, {"x": X, "y": X})[0]
    assert first.tolist() == kept.tolist()
    assert not np.shares_memory(first, second)


@pytest.mark.parametrize(
    ("out", "text"),
    [
        ({"q": np.zeros((2, 3), np.float32)}, "out must be among ['z']; unknown: ['q']"),
        ({"z": np.zeros((2, 3), np.float64)}, "out['z'] must be tensor(float), got an array of float64"),
        ({"z": np.zeros((2, 4), np.float32)}, "out['z'] must have shape [batch, 3], got [2, 4]"),
        ({"z": np.zeros((4, 3), np.float32)}, "out['z'] must have shape [2, 3], got [4, 3]"),
        (
            {"z": np.zeros((3, 2), np.float32).T},
            "out['z'] must be C-contiguous, aligned and writable, got C-contiguous=False, aligned=True, writable=True",
        ),
        ({"z": [0]}, "out['z'] must be an array, got list"),
        ({"z": X}, "the memory of 'output z' overlaps that of 'input x'; outputs need memory of their own"),
        ([X], "out must map names to arrays, got list"),
    ],
)
def test_out_rejects_arrays_of_wrong_shape_or_type(out: Any, text: str) -> None:
    s = session(sum_model())
    assert message(lambda: s.run(None, {"x": X, "y": Y}, out=out)) == text
    s.run(None, {"x": X, "y": Y})
    assert message(lambda: s.run(None, {"x": X, "y": Y}, out=out)) == text


def test_out_rejects_read_only_array() -> None:
    x, z = X.copy(), np.zeros((2, 3), np.float32)
    x.flags.writeable = z.flags.writeable = False
    s = session(sum_model())
    assert s.run(None, {"x": x, "y": Y})[0].tolist() == np.maximum(X + Y, 0).tolist()
    assert "writable" in message(lambda: s.run(None, {"x": x, "y": Y}, out={"z": z}))


def test_run_copies_strided_and_unaligned_inputs_once() -> None:
    s = session(sum_model())
    unaligned = np.zeros(25, np.uint8)[1:].view(np.float32).reshape(2, 3)
    unaligned[:] = Y
    (z,), copies = copies_of(lambda: s.run(None, {"x": X.T.copy().T, "y": unaligned}))
    assert z.tolist() == np.maximum(X + Y, 0).tolist()
    assert sum(copies.values()) == 2


def test_run_copies_outputs_that_alias_other_values() -> None:
    w = np.float32([5, 6, 7])
    big = np.zeros(100_000, np.float32)
    nodes = [node("Identity", "x", "a"), node("Identity", "w", "b"), node("Relu", "x", "c"), node("Identity", "c", "d")]
    nodes += [node("Identity", "big", "e")]
    outputs = [("a", FLOAT, [3]), ("b", FLOAT, [3]), ("c", FLOAT, [3]), ("d", FLOAT, [3]), ("e", FLOAT, [100_000])]
    s = session(
        model(nodes, [("x", FLOAT, [3])], [*outputs, ("w", FLOAT, [3]), ("x", FLOAT, [3])], {"w": w, "big": big})
    )
    x = np.float32([-1, 0, 1])
    results = s.run(None, {"x": x})
    for array in results:
        array += 1
    assert x.tolist() == pytest.approx([-1, 0, 1])
    wanted = [x, w, np.maximum(x, 0), np.maximum(x, 0), big, w, x]
    assert [array.tolist() for array in results] == [(array + 1).tolist() for array in wanted]
    assert [array.tolist() for array in s.run(None, {"x": x})] == [array.tolist() for array in wanted]
    out = {name: np.empty(3, np.float32) for name in "abcdwx"}
    s.run(None, {"x": x}, out=out)
    assert [array.tolist() for array in out.values()] == [array.tolist() for array in [*wanted[:4], w, x]]


def test_out_for_one_of_two_aliased_outputs() -> None:
    nodes = [node("Relu", "x", "c"), node("Identity", "c", "d")]
    s = session(model(nodes, [("x", FLOAT, [3])], [("c", FLOAT, [3]), ("d", FLOAT, [3])]))
    for name, other in (("c", "d"), ("d", "c")):
        out = np.empty(3, np.float32)
        first, second = s.run([other, name], {"x": np.float32([-1, 2, 3])}, out={name: out})
        assert second is out
        out[:] = 0
        assert first.tolist() == [0, 2, 3]


# Kinds of values -----------------------------------------------------------------------------------------------------


def test_bool_in_and_out() -> None:
    nodes = [node("Not", "x", "a"), node("Where", "a p q", "z")]
    inputs: list[Value] = [("x", BOOL, [3]), ("p", FLOAT, [3]), ("q", FLOAT, [3])]
    s = session(model(nodes, inputs, [("a", BOOL, [3]), ("z", FLOAT, [3])]), fallback="error")
    x, p, q = np.array([True, False, True]), np.float32([1, 2, 3]), np.float32([4, 5, 6])
    out = np.empty(3, bool)
    a, z = s.run(None, {"x": x, "p": p, "q": q}, out={"a": out})
    assert a is out
    assert (a.dtype, a.tolist(), z.tolist()) == (np.dtype(bool), [False, True, False], [4, 2, 6])
    text = message(lambda: s.run(None, {"x": x.view(np.uint8), "p": p, "q": q}))
    assert text == "input 'x' must be tensor(bool), got an array of uint8; array.astype('bool') converts it"
    assert s.run(["a"], {"x": Foreign(x), "p": p, "q": q})[0].tolist() == [False, True, False]


def test_bool_travels_in_uint8_tensors() -> None:
    s = session(
        model([node("Not", "x", "a")], [("x", BOOL, [3])], [("a", BOOL, [3])]), preferred_output_location="ml-tensor"
    )
    (a,) = s.run(None, {"x": np.array([True, False, True])})
    assert (a.data_type, a.numpy().tolist()) == ("uint8", [0, 1, 0])
    assert s.run(None, {"x": a})[0].numpy().tolist() == [1, 0, 1]
    wrong = CONTEXT.tensor_from(np.uint8([0, 1, 2]))
    assert message(lambda: s.run(None, {"x": wrong})) == "input 'x' must hold 0 and 1 for bool, got 2"


def test_run_strings_in_fallback() -> None:
    nodes = [node("StringConcat", "x y", "z"), node("Relu", "f", "g")]
    inputs: list[Value] = [("x", STRING, ["n"]), ("y", STRING, ["n"]), ("f", FLOAT, [2])]
    s = session(model(nodes, inputs, [("z", STRING, ["n"]), ("g", FLOAT, [2])]))
    f = np.float32([-1, 1])
    z, g = s.run(None, {"x": np.array(["a", "b"]), "y": np.array(["ä", ""], object), "f": f})
    assert (z.tolist(), g.tolist()) == (["aä", "b"], [0, 1])
    text = message(lambda: s.run(None, {"x": np.float32([1, 2]), "y": np.array(["a", "b"]), "f": f}))
    assert text == "input 'x' must hold strings, got an array of float32"
    assert "cannot be written into" in message(
        lambda: s.run(None, {"x": ["a"], "y": ["b"], "f": f}, out={"z": np.array(["", ""])})
    )


@pytest.mark.parametrize(
    "texts",
    [
        np.array([b"abcd", b"efgh", "é".encode()]),
        np.array([b"abcd", "efgh", "é"], object),
        [b"abcd", "efgh", "é"],
        ["a\0", "b", ""],
        [["a", 1], [b"\xc3\xa9", 1.5]],
        [np.True_, 1 + 2j, np.array("a")],
    ],
    ids=str,
)
def test_bytes_are_texts(texts: Any) -> None:
    """ONNX Runtime reads arrays of bytes beyond the end of an element."""
    array = np.array(texts, object)
    decoded = [item.decode() if isinstance(item, bytes) else str(item) for item in array.flat]
    s = session(model([node("Identity", "x", "y")], [("x", STRING, None)], [("y", STRING, None)]))
    (y,) = s.run(None, {"x": texts})
    assert (y.shape, y.ravel().tolist()) == (array.shape, decoded)
    items = [
        helper.make_tensor_sequence_value_info("x", STRING, None),
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
    ]
    graph = helper.make_graph(
        [node("SequenceAt", "x i", "y")], "g", items, [helper.make_tensor_value_info("y", STRING, None)]
    )
    s = session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    assert s.run(None, {"x": [texts], "i": np.array(0)})[0].ravel().tolist() == decoded
    assert "input 'x'[0] must hold texts in UTF-8" in message(lambda: s.run(None, {"x": [[b"\xff"]], "i": np.array(0)}))


def test_run_double_values_in_fallback() -> None:
    nodes = [node("Add", "x x", "d"), node("Cast", "d", "f", to=FLOAT), node("Relu", "f", "z")]
    s = session(model(nodes, [("x", DOUBLE, ["n"])], [("z", FLOAT, ["n"]), ("d", DOUBLE, ["n"])]))
    z, d = s.run(None, {"x": np.array([-1.0, 2.0])})
    assert (z.tolist(), d.tolist(), d.dtype) == ([0, 4], [-2, 4], np.dtype("float64"))


def test_sequences_in_and_out() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    result = helper.make_tensor_sequence_value_info("t", FLOAT, None)
    s = session(model([node("SequenceInsert", "s x", "t")], [sequence, ("x", FLOAT, [2])], [result]))
    (t,) = s.run(None, {"s": [np.float32([1]), np.float32([2, 3])], "x": np.float32([4, 5])})
    assert [array.tolist() for array in t] == [[1], [2, 3], [4, 5]]
    assert message(lambda: s.run(None, {"s": X, "x": X[0, :2]})) == "input 's' must be a list, got ndarray"


def test_segments_pass_values_of_unknown_shape() -> None:
    nodes = [
        node("Relu", "x", "a"),
        node("NonZero", "a", "n"),
        node("Neg", "y", "b"),
        node("Cast", "b", "c", to=DOUBLE),
    ]
    nodes += [node("Cast", "n", "m", to=DOUBLE), node("ReduceMax", "c", "top", keepdims=0), node("Mul", "m top", "k")]
    nodes += [node("Cast", "k", "z", to=FLOAT), node("Exp", "y", "e"), node("Size", "n", "s")]
    outputs: list[Value] = [("z", FLOAT, None), ("e", FLOAT, [2]), ("n", TensorProto.INT64, None)]
    proto = model(nodes, [("x", FLOAT, [2, 3]), ("y", FLOAT, [2])], [*outputs, ("s", TensorProto.INT64, [])])
    s = session(proto)
    assert "WebNN on cpu" in s.explain()
    assert "ONNX Runtime (fallback)" in s.explain()
    y = np.float32([-2, 1])
    z, e, n, size = s.run(None, {"x": X, "y": y})
    wanted = np.array(np.nonzero(np.maximum(X, 0)))
    np.testing.assert_array_equal(z, (wanted * 2).astype(np.float32))
    np.testing.assert_array_equal(n, wanted)
    np.testing.assert_allclose(e, np.exp(y), rtol=1e-6)
    assert size == wanted.size
    assert s.run(["n"], {"x": np.zeros((2, 3), np.float32), "y": y})[0].shape == (2, 0)
    text = message(lambda: s.run(None, {"x": X, "y": y}, out={"n": np.empty((2, 9), np.int64)}))
    assert text == "out['n'] must have shape [2, 4], got [2, 9]"


def test_out_for_output_of_unknown_shape() -> None:
    nodes = [node("Relu", "x", "a"), node("NonZero", "a", "n")]
    s = session(model(nodes, [("x", FLOAT, [2, 3])], [("a", FLOAT, [2, 3]), ("n", TensorProto.INT64, None)]))
    assert "WebNN on cpu" in s.explain()
    wanted = np.array(np.nonzero(np.maximum(X, 0)))
    out = np.zeros(wanted.shape, np.int64)
    for _ in range(2):
        out[:] = 0
        (_, n), copies = copies_of(lambda: s.run(None, {"x": X}, out={"n": out}))
        assert n is out
        assert copies == {}
        np.testing.assert_array_equal(n, wanted)
        with pytest.raises(ow.ValidationError, match=r"out\['n'\] must have shape \[2, 0\], got"):
            s.run(None, {"x": np.zeros((2, 3), np.float32)}, out={"n": out})


# Tensors and other libraries -----------------------------------------------------------------------------------------


def test_run_reads_arrays_of_other_libraries_in_place() -> None:
    s = session(sum_model())
    (z,), copies = copies_of(lambda: s.run(None, {"x": Foreign(X), "y": Foreign(Y)}))
    np.testing.assert_array_equal(z, np.maximum(X + Y, 0))
    assert copies == {}


def test_run_takes_and_returns_tensors_without_copies() -> None:
    s = session(sum_model(), preferred_output_location="ml-tensor")
    x = CONTEXT.create_tensor("float32", [2, 3], writable=True)  # not readable, as a graph's input need not be
    CONTEXT.write_tensor(x, X)
    (z,), copies = copies_of(lambda: s.run(None, {"x": x, "y": Y}))
    assert isinstance(z, ow.MLTensor)
    assert (z.context, z.data_type, z.shape, copies) == (CONTEXT, "float32", (2, 3), {})
    assert z.numpy().tolist() == np.maximum(X + Y, 0).tolist()
    (again,), copies = copies_of(lambda: s.run(None, {"x": z, "y": z}))
    assert again.numpy().tolist() == (2 * np.maximum(X + Y, 0)).tolist()
    assert copies == {}


def test_out_accepts_tensor() -> None:
    s = session(sum_model())
    cache = CONTEXT.create_tensor("float32", [2, 3], readable=True)
    (z,), copies = copies_of(lambda: s.run(None, {"x": X, "y": Y}, out={"z": cache}))
    assert z is cache
    assert cache.numpy().tolist() == np.maximum(X + Y, 0).tolist()
    assert copies == {}


def test_run_same_tensor_twice() -> None:
    s = session(sum_model())
    x = CONTEXT.tensor_from(X.copy())
    assert s.run(None, {"x": x, "y": x})[0].tolist() == np.maximum(2 * X, 0).tolist()
    assert "overlaps" in message(lambda: s.run(None, {"x": x, "y": Y}, out={"z": x}))


def test_run_rejects_destroyed_tensor() -> None:
    x = CONTEXT.tensor_from(X.copy())
    x.destroy()
    assert "is destroyed" in message(lambda: session(sum_model()).run(None, {"x": x, "y": Y}))


def test_preferred_output_location_for_each_output() -> None:
    nodes = [node("Relu", "x", "a"), node("Neg", "x", "b"), node("Cast", "x", "d", to=DOUBLE)]
    proto = model(nodes, [("x", FLOAT, [3])], [("a", FLOAT, [3]), ("b", FLOAT, [3]), ("d", DOUBLE, [3])])
    s = session(proto, preferred_output_location={"a": "ml-tensor", "b": "cpu"})
    a, b, d = s.run(None, {"x": X[0]})
    assert (type(a), type(b), type(d)) == (ow.MLTensor, np.ndarray, np.ndarray)
    text = "preferred_output_location: 'd' is tensor(double), which a tensor cannot hold"
    assert message(lambda: session(proto, preferred_output_location="ml-tensor")) == text


def test_out_fills_unrequested_outputs() -> None:
    nodes = [node("Relu", "x", "z"), node("Identity", "x", "y")]
    proto = model(nodes, {"x": "float32[2]"}, {"y": "float32[2]", "z": "float32[2]"})
    y = np.full(2, 9, "float32")
    ow.InferenceSession(proto).run(["z"], {"x": np.float32([-1, 1])}, out={"y": y})
    assert y.tolist() == [-1, 1]


def test_bool_arrays_hold_0_and_1() -> None:
    proto = model([node("Cast", "x", "y", to=FLOAT)], {"x": "bool[2]"}, {"y": "float32[2]"})
    with pytest.raises(ow.ValidationError, match="input 'x' must hold 0 and 1 for bool, got 255"):
        ow.InferenceSession(proto).run(None, {"x": np.uint8([0, 255]).view(bool)})
