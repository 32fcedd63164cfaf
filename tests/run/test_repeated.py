"""Operations with bodies on every back end: loops and branches against Python, their memory, and how they are shown."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every_device import DEVICES, context_on

import opweave as ow
from opweave import memory
from opweave.compile import bodies
from opweave.composites import quick_gelu
from opweave.composites.control import branch, loop
from opweave.context.graph import recorded_graph
from opweave.core.bodies import Body, make_body
from opweave.core.graph import Desc
from opweave.onnx.export import to_onnx
from opweave.ops.recorder import Recorder
from opweave.run import repeated

ROW = Desc("float32", (3,))
RNG = np.random.default_rng(5)


def body(function: Callable[..., Sequence[Any]], *descs: Desc) -> Body:
    return make_body(Recorder(), descs, function)


def compute(device: str, build: Callable[..., Sequence[Any]], **arrays: np.ndarray) -> list[np.ndarray]:
    """Build a graph of inputs by name on a device, and compute it."""
    context = context_on(device)
    b = ow.MLGraphBuilder(context)
    inputs = {name: b.input(name, array.dtype.name, array.shape) for name, array in arrays.items()}  # type: ignore[arg-type]
    graph = b.build({f"y{k}": y for k, y in enumerate(build(b, **inputs))})
    return list(context.compute(graph, arrays).values())


@pytest.mark.parametrize("backward", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("length", [1, 2, 7, 16, 33])
@pytest.mark.parametrize("device", DEVICES)
def test_loop_stacks_elements(device: str, length: int, backward: tuple[int, int]) -> None:
    step = body(lambda b, s, x, w: [s * w + x, b.tanh(s - x)], ROW, ROW, ROW)
    first, x = RNG.normal(size=3).astype("float32"), RNG.normal(size=(length, 3)).astype("float32")
    w = np.float32([0.5, -0.25, 0.75])

    def build(b: Any, s: Any, x: Any, w: Any) -> Any:
        directions = {"backward": [backward[0]], "stacked_backward": [backward[1]]}
        return loop(b, [s], [x], [w], body=step, length=length, **directions)

    state, elements = first, []
    for row in x[::-1] if backward[0] else x:
        elements.append(np.tanh(state - row))
        state = state * w + row
    stacked = np.stack(elements[::-1] if backward[1] else elements)
    for ours, wanted in zip(compute(device, build, s=first, x=x, w=w), [state, stacked], strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [-1, 0, 1, 2, 5, 100])
@pytest.mark.parametrize("device", DEVICES)
def test_loop_ends_by_count_or_condition(device: str, count: int) -> None:
    """It adds the number of the iteration until the sum exceeds 20; two states are swapped by each iteration."""

    def step(b: Any, position: Any, one: Any, other: Any) -> Any:
        total = one + b.cast(position, "float32")
        return [b.lesser(b.reduce_max(total), b.constant("float32", 20)), other, total]

    repeated_body = body(step, Desc("int64", ()), ROW, ROW)
    options: dict[str, Any] = {"takes_position": True, "gives_condition": True}

    def build(b: Any, n: Any, one: Any, other: Any) -> Any:
        return loop(b, [one, other], [], [], n, body=repeated_body, **options)

    one, other = np.float32([1, 2, 3]), np.float32([4, 5, 6])
    results = compute(device, build, n=np.array(count), one=one, other=other)
    for position in range(max(count, 0)):
        total = one + np.float32(position)
        one, other = other, total
        if total.max() >= 20:
            break
    for ours, wanted in zip(results, [one, other], strict=True):
        np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize("flag", [0, 1])
@pytest.mark.parametrize("device", DEVICES)
def test_first_condition_decides(device: str, flag: int) -> None:
    step = body(lambda b, s: [s * b.constant("float32", 2)], ROW)

    def build(b: Any, s: Any, go: Any) -> Any:
        return loop(b, [s], [], [], None, go, body=step, length=3)

    (result,) = compute(device, build, s=np.float32([1, 2, 3]), go=np.uint8([flag]))
    assert result.tolist() == ([8, 16, 24] if flag else [1, 2, 3])


@pytest.mark.parametrize("flag", [0, 1])
@pytest.mark.parametrize("device", DEVICES)
def test_branch_computes_one_body(device: str, flag: int) -> None:
    """A body holds a loop, and the other one does not read all operands."""
    step = body(lambda b, s, y: [s + y], ROW, ROW)
    one = body(lambda b, x, y: loop(b, [x], [], [y], body=step, length=40), ROW, ROW)
    other = body(lambda b, x, y: [b.neg(y)], ROW, ROW)

    def build(b: Any, c: Any, x: Any, y: Any) -> Any:
        return branch(b, c, [x, y], body=one, other=other)

    x, y = np.float32([1, 2, 3]), np.float32([1, 0, -1])
    (result,) = compute(device, build, c=np.array(flag, np.uint8), x=x, y=y)
    assert result.tolist() == (x + 40 * y if flag else -y).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_loop_of_named_length(device: str) -> None:
    """The number of iterations and the size of a state are known when the graph runs; one of them is 0."""
    plain = context_on(device)
    context = ow.ml.create_context(device=plain.device.name, backend=plain.device.backend, drafts=True)
    b = ow.MLGraphBuilder(context)
    s, x = b.input("s", "float32", ["m"]), b.input("x", "float32", ["n", "m"])
    row = Desc("float32", s.shape)
    step = body(lambda b, s, x: [s + x, b.mul(s, x)], row, row)
    results = loop(b, [s], [x], [], body=step, length=x.shape[0])
    graph = b.build({"last": results[0], "all": results[1]})
    for n, m in ((3, 2), (40, 5), (1, 2), (0, 2), (3, 2)):
        first, rows = RNG.normal(size=m).astype("float32"), RNG.normal(size=(n, m)).astype("float32")
        ours = context.compute(graph, {"s": first, "x": rows})
        sums = np.cumsum(np.concatenate([first[None], rows]), 0)
        np.testing.assert_allclose(ours["last"], sums[-1], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(ours["all"], sums[:-1] * rows, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [50, 51])
@pytest.mark.parametrize(
    "device", ["reference (reference)", *(name for name in DEVICES if not name.startswith(("cpu", "reference")))]
)
def test_nothing_is_copied_between_iterations(device: str, length: int) -> None:
    """States alternate between two places, and the last iteration writes into the results."""
    context = context_on(device)
    b = ow.MLGraphBuilder(context)
    step = body(lambda b, s, x: [s + x, s * x], ROW, ROW)
    s, x = b.input("s", "float32", [3]), b.input("x", "float32", [length, 3])
    last, stacked = loop(b, [s], [x], [], body=step, length=length)
    graph = b.build({"last": last, "all": stacked})
    tensors = {
        name: context.create_tensor(desc.data_type, desc.shape, readable=True) for name, desc in graph.outputs.items()
    }
    inputs = {
        name: context.create_tensor(desc.data_type, desc.shape, writable=True) for name, desc in graph.inputs.items()
    }
    context.write_tensor(inputs["s"], np.zeros(3, "float32"))
    context.write_tensor(inputs["x"], np.ones((length, 3), "float32"))
    context.dispatch(graph, inputs, tensors)
    memory.copies.reset()
    for _ in range(3):
        context.dispatch(graph, inputs, tensors)
    assert memory.copies.count == 0
    assert context.read_tensor(tensors["last"]).tolist() == [length] * 3
    assert context.read_tensor(tensors["all"])[:, 0].tolist() == list(range(length))


@pytest.mark.parametrize("backward", [(0, 0), (1, 1)])
@pytest.mark.parametrize("device", [name for name in DEVICES if not name.startswith("reference")])
def test_loop_of_formulas_is_one_kernel(
    device: str, backward: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body of formulas becomes a recurrence: states are swapped, the number of the iteration is read."""
    if device.startswith("cpu"):
        pytest.importorskip("halide", reason="halide is not installed")
    monkeypatch.setattr(bodies, "MIN_ELEMENTS", 0)

    def step(b: Any, position: Any, one: Any, other: Any, x: Any, w: Any) -> Any:
        mixed = one * w + x
        return [other, b.tanh(mixed) + b.cast(position, "float32"), b.where(b.greater(mixed, other), mixed, x)]

    repeated_body = body(step, Desc("int64", ()), ROW, ROW, ROW, ROW)
    x = RNG.normal(size=(20, 3)).astype("float32")
    one, other, w = (RNG.normal(size=3).astype("float32") for _ in range(3))
    directions = {"backward": [backward[0]], "stacked_backward": [backward[1]]}
    context = context_on(device)
    b = ow.MLGraphBuilder(context)
    feed = {"one": one, "other": other, "x": x, "w": w}
    inputs = {name: b.input(name, "float32", array.shape) for name, array in feed.items()}
    operands = [inputs["one"], inputs["other"]], [inputs["x"]], [inputs["w"]]
    results = loop(b, *operands, body=repeated_body, length=20, takes_position=True, **directions)
    graph = b.build({f"y{k}": y for k, y in enumerate(results)})
    if device == "cpu (onnxruntime)":
        assert "recur" in graph.explain()
    ours = context.compute(graph, feed)
    elements = []
    for number, row in enumerate(x[::-1] if backward[0] else x):
        mixed = one * w + row
        elements.append(np.where(mixed > other, mixed, row))
        one, other = other, np.tanh(mixed) + np.float32(number)
    stacked = np.stack(elements[::-1] if backward[1] else elements)
    for result, wanted in zip(ours.values(), [one, other, stacked], strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-3, atol=1e-4)


def test_memory_does_not_grow_with_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    allocated: list[int] = []
    prepare = repeated._BoundLoop._states

    def noted(self: Any, where: Any) -> Any:
        states = prepare(self, where)
        allocated.append(id(states))
        return states

    monkeypatch.setattr(repeated._BoundLoop, "_states", noted)
    step = body(lambda b, s, x: [s + x], ROW, ROW)
    for length in (10, 1000):
        allocated.clear()
        compute("reference (reference)", lambda b, s, x, n=length: loop(b, [s], [x], [], body=step, length=n),
                s=np.zeros(3, "float32"), x=np.zeros((length, 3), "float32"))  # fmt: skip
        assert len(set(allocated)) == 3


def test_graph_shows_its_bodies_once() -> None:
    context = context_on("reference (reference)")
    b = ow.MLGraphBuilder(context)
    step = body(lambda b, s, x: [b.tanh(s + x)], ROW, ROW)
    s, x = b.input("s", "float32", [3]), b.input("x", "float32", [9, 3])
    graph = b.build({"y": loop(b, [s], [x], [], body=step, length=9, label="rows")[0]})
    lines = graph.explain().splitlines()
    assert "  %0 = loop([s], [x], [], body=…, length=9)  # 'rows'" in lines
    assert "      %1 = tanh(%0)" in lines
    assert lines[-1] == "  loop 'rows'  reference  composed  NumPy: 9 times add, tanh"
    assert [step.title for step in graph.profile(repeat=2).steps] == ["loop 'rows'"]
    assert "loop" in str(graph.draw())


def test_saved_graph_has_scan_and_loop() -> None:
    """A known number of slices is a Scan, others a Loop, a branch an If; ONNX Runtime computes the same from the file."""
    import onnxruntime

    context = context_on("cpu (onnxruntime)")
    b = ow.MLGraphBuilder(context)
    s, x = b.input("s", "float32", [3]), b.input("x", "float32", [9, 3])
    n, c = b.input("n", "int64", []), b.input("c", "uint8", [])
    step = body(lambda b, s, x: [b.tanh(s + x), s], ROW, ROW)
    last, stacked = loop(b, [s], [x], [], body=step, length=9, stacked_backward=[1])
    (powers,) = loop(b, [last], [], [s], n, body=body(lambda b, y, s: [b.mul(y, s)], ROW, ROW))
    (chosen,) = branch(b, c, [powers], body=body(lambda b, y: [b.neg(y)], ROW), other=body(lambda b, y: [y], ROW))
    graph = b.build({"chosen": chosen, "stacked": stacked})
    model, _ = to_onnx(recorded_graph(graph))
    assert [node.op_type for node in model.graph.node if node.op_type in ("Scan", "Loop", "If")] == [
        "Scan",
        "Loop",
        "If",
    ]
    feed = {"s": RNG.normal(size=3).astype("float32"), "x": RNG.normal(size=(9, 3)).astype("float32"), "n": np.array(3)}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for flag in (0, 1):
        ours = context.compute(graph, {**feed, "c": np.array(flag, np.uint8)})
        theirs = session.run(list(graph.outputs), {**feed, "c": np.array(flag, np.uint8)})
        for name, wanted in zip(graph.outputs, theirs, strict=True):
            np.testing.assert_allclose(ours[name], wanted, rtol=1e-5, atol=1e-6)


def test_saved_body_declares_its_operator_sets() -> None:
    """A body may have operators of ONNX Runtime where the graph around it has none."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    b = ow.MLGraphBuilder(context_on("cpu (onnxruntime)"))
    s, x = b.input("s", "float32", [3]), b.input("x", "float32", [9, 3])
    step = body(lambda b, s, x: [quick_gelu(b, s + x)], ROW, ROW)
    graph = b.build({"last": loop(b, [s], [x], [], body=step, length=9)[0]})
    model, _ = to_onnx(recorded_graph(graph), "onnxruntime")
    saved = onnx.load_from_string(model.SerializeToString())
    assert {node.domain for node in saved.graph.node} == {""}
    assert "QuickGelu" in [node.op_type for node in saved.graph.node[0].attribute[0].g.node]
    assert {entry.domain for entry in saved.opset_import} == {"", "com.microsoft"}
    onnx.checker.check_model(saved)


def test_body_is_pickled() -> None:
    step = body(lambda b, s, x: [b.tanh(s + x) * b.constant("float32", 2), s], ROW, ROW)
    copied = pickle.loads(pickle.dumps(step))
    assert str(copied) == str(step)
    assert copied.inputs == step.inputs
    (result, _) = loop([np.float32([1, 2, 3])], [np.float32([[0, 0, 0]])], [], body=copied, length=1)
    np.testing.assert_allclose(np.asarray(result), 2 * np.tanh([1, 2, 3]), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": None}, "length, count or a condition must end the loop"),
        ({"length": -1}, "length must be an integer of at least 0, got -1"),
        ({"length": 4}, "scanned[0] must have 4 slices, got float32[2, 3]"),
        ({"backward": [2]}, "backward must be 0 or 1 for each of 1, got [2]"),
        ({"stacked_backward": [1, 0]}, "stacked_backward must be 0 or 1 for each of 1, got [1, 0]"),
        ({"takes_position": True}, "the body takes 2 values, expected 3"),
        ({"gives_condition": True}, "the body gives float32[3] as value 0, expected uint8[]"),
        ({"body": 3}, "body must be a Body, got int"),
        ({"condition": np.uint8(1)}, "stacked outputs need a loop whose number of iterations is known"),
    ],
)
def test_loop_errors_name_the_rule(options: dict[str, Any], message: str) -> None:
    step = body(lambda b, s, x: [s + x, s], ROW, ROW)
    b = ow.MLGraphBuilder(context_on("reference (reference)"))
    s, x = b.input("s", "float32", [3]), b.input("x", "float32", [2, 3])
    with pytest.raises(ow.ValidationError, match=r"^loop 'rows': ") as caught:
        loop(b, [s], [x], [], **{"body": step, "length": 2, "label": "rows", **options})
    assert message in str(caught.value)


def test_branch_errors_name_the_rule() -> None:
    b = ow.MLGraphBuilder(context_on("reference (reference)"))
    c, x = b.input("c", "uint8", []), b.input("x", "float32", [3])
    one, other = body(lambda b, x: [b.neg(x)], ROW), body(lambda b, x: [b.reduce_sum(x)], ROW)
    with pytest.raises(ow.ValidationError, match=r"other gives float32\[\] as value 0, expected float32\[3\]"):
        branch(b, c, [x], body=one, other=other)


def test_javascript_unrolls_short_loops(tmp_path: Path) -> None:
    context = context_on("reference (reference)")
    for length, fits in ((4, True), (300, False)):
        b = ow.MLGraphBuilder(context)
        s, x = b.input("s", "float32", [3]), b.input("x", "float32", [length, 3])
        step = body(lambda b, s, x: [b.tanh(s + x)], ROW, ROW)
        graph = b.build({"y": loop(b, [s], [x], [], body=step, length=length)[0]})
        if fits:
            ow.js.save(graph, tmp_path / "net.js")
            assert (tmp_path / "net.js").read_text().count("builder.tanh") == length
        else:
            with pytest.raises(ow.NotSupportedError, match="it has 300 iterations of 2 operations"):
                ow.js.save(graph, tmp_path / "net.js")


@pytest.mark.parametrize("backward", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_unrolled_loop_equals_python(length: int, backward: tuple[int, int]) -> None:
    context = ow.ml.create_context(device="reference", drafts=True)
    b = ow.MLGraphBuilder(context)

    def step(b: Any, position: Any, s: Any, x: Any, w: Any) -> Any:
        return [s * w + x, x - b.cast(position, "float32")]

    arrays = {
        name: RNG.normal(size=shape).astype("float32") for name, shape in (("s", 3), ("x", (length, 3)), ("w", 3))
    }
    s, x, w = (b.input(name, "float32", array.shape) for name, array in arrays.items())
    repeated_body = body(step, Desc("int64", ()), ROW, ROW, ROW)
    assert loop.decomposition is not None
    last, stacked = loop.decomposition(
        b, [s], [x], [w], None, None, body=repeated_body, length=length, takes_position=True, gives_condition=False,
        backward=[backward[0]], stacked_backward=[backward[1]],
    )  # fmt: skip
    graph = b.build({"last": b.identity(last), "stacked": b.identity(stacked)})
    assert not any(node.op is loop for node in recorded_graph(graph).nodes)
    ours = context.compute(graph, {name: arrays[name] for name in graph.inputs})
    state, elements = arrays["s"], [np.empty((0, 3), "float32")]
    for number, row in enumerate(arrays["x"][::-1] if backward[0] else arrays["x"]):
        state = state * arrays["w"] + row
        elements.append((row - number)[None])
    rows = np.concatenate(elements)
    np.testing.assert_allclose(ours["last"], state, rtol=1e-6)
    np.testing.assert_allclose(ours["stacked"], rows[::-1] if backward[1] else rows, rtol=1e-6)
