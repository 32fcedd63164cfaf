"""What must not happen whatever a program does: crashes, corrupted memory, leaks, deadlocks, wrong results."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import handle_signals
from support.threads import together

import opweave as ow
from opweave.context.graph import program_of, state_of


@pytest.fixture
def context() -> ow.MLContext:
    return ow.ml.create_context()


def relu(context: ow.MLContext, size: int = 4) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    return builder.build({"y": builder.relu(builder.input("x", "float32", [size]))})


def ones(size: int = 4) -> np.ndarray:
    return np.ones(size, "float32")


# Memory that must not be written to ----------------------------------------------------------------------------------


def test_dispatch_rejects_read_only_output(context: ow.MLContext, tmp_path: Path) -> None:
    np.save(tmp_path / "frozen.npy", np.zeros(4, "float32"))
    letter = bytes(16)
    for array in (np.load(tmp_path / "frozen.npy", mmap_mode="r"), np.frombuffer(letter, "float32")):
        with pytest.raises(ow.ValidationError, match="dispatch: output 'y' is read-only memory"):
            context.dispatch(relu(context), {"x": context.tensor_from(ones())}, {"y": context.tensor_from(array)})
    assert letter == bytes(16)


def test_outputs_may_not_be_the_graphs_weights(context: ow.MLContext) -> None:
    weights = ones(4096)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [4096])
    graph = builder.build({"y": builder.add(x, builder.constant(weights))})
    with pytest.raises(ow.ValidationError, match="the memory of 'y' overlaps that of a constant of the graph"):
        context.compute(graph, {"x": ones(4096)}, {"y": weights})
    with pytest.raises(ow.ValidationError, match="the memory of 'y' overlaps that of a constant of the graph"):
        context.dispatch(graph, {"x": context.tensor_from(ones(4096))}, {"y": context.tensor_from(weights)})
    assert (weights == 1).all()


def test_read_tensor_rejects_strided_or_scalar_out(context: ow.MLContext) -> None:
    tensor = context.tensor_from(np.arange(4, dtype="float32").reshape(2, 2))
    strided = np.zeros((2, 2), "float32").T
    with pytest.raises(ow.ValidationError, match="out must be C-contiguous"):
        context.read_tensor(tensor, out=strided)
    with pytest.raises(ow.ValidationError, match="out must be an array, got the scalar"):
        context.read_tensor(context.tensor_from(np.array(3, "float32")), out=np.float32(0))


# Arrays that are not what they seem -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_numpy_matrix_is_used_as_array(device: str) -> None:
    context = ow.ml.create_context(device=device)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [2, 2])
    matrix = np.matrix([[1, 2], [3, 4]], dtype="float32")
    graph = builder.build({"y": builder.mul(x, builder.constant(matrix))})
    assert context.compute(graph, {"x": matrix})["y"].tolist() == [[1, 4], [9, 16]]
    assert type(context.tensor_from(matrix).numpy()) is np.ndarray


def test_masked_array_is_rejected(context: ow.MLContext) -> None:
    masked = np.ma.masked_array(ones(), [True, False, False, False])
    builder = ow.MLGraphBuilder(context)
    for use in (
        lambda: builder.constant(masked),
        lambda: context.tensor_from(masked),
        lambda: context.compute(relu(context), {"x": masked}),
    ):
        with pytest.raises(ow.ValidationError, match="must not be masked"):
            use()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # NumPy discourages what this test is about
def test_constant_and_tensor_ignore_changes_of_array_object(context: ow.MLContext) -> None:
    array = np.arange(4, dtype="float32")
    builder = ow.MLGraphBuilder(context)
    y = builder.add(builder.input("x", "float32", [4]), builder.constant(array))
    tensor = context.tensor_from(array)
    array.dtype = "int32"  # type: ignore[misc,assignment]
    array.shape = (2, 2)
    assert context.compute(builder.build({"y": y}), {"x": tensor})["y"].tolist() == [0, 2, 4, 6]


def test_unaligned_memory_is_copied(context: ow.MLContext) -> None:
    raw = memoryview(bytes(17))[1:]
    builder = ow.MLGraphBuilder(context)
    assert builder.constant("float32", [4], raw).value.flags.aligned
    unaligned = np.frombuffer(raw, "float32")
    assert not unaligned.flags.aligned
    ow.memory.copies.reset()
    context.compute(relu(context), {"x": unaligned})
    assert ow.memory.copies.by_reason["make contiguous"].count == 1


# Threads --------------------------------------------------------------------------------------------------------------


def test_lost_wait_timeout_keeps_context(context: ow.MLContext) -> None:
    async def wait() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(context.lost, 0.01)
        assert context.lost.cancel() is False

    asyncio.run(wait())
    assert not context.lost.done()
    context.create_tensor("float32", [1])


def test_lost_callback_sees_destroyed_objects(context: ow.MLContext) -> None:
    graph, seen = relu(context), []

    def callback(_: object) -> None:
        other = threading.Thread(
            target=lambda: seen.append((graph.destroyed, repr(context), context.lost.done()))  # `lost` takes the lock
        )
        other.start()
        other.join(300)

    context.lost.add_done_callback(callback)
    context.destroy()
    assert seen == [(True, "<MLContext on cpu, lost>", True)]


@pytest.mark.parametrize("what", ["tensor", "graph"])
def test_destroy_during_bind(context: ow.MLContext, what: str) -> None:
    graph = relu(context)
    x, y = context.tensor_from(ones()), context.create_tensor("float32", [4])
    program: Any = program_of(graph)
    bind, started = program.bind, threading.Event()

    def destroy() -> None:
        started.set()
        (x if what == "tensor" else graph).destroy()

    destroyer = threading.Thread(target=destroy)

    def slow_bind(*given: Any) -> Any:
        destroyer.start()
        started.wait(300)
        return bind(*given)

    program.bind = slow_bind
    context.dispatch(graph, {"x": x}, {"y": y})
    program.bind = bind
    destroyer.join(300)
    with pytest.raises((ow.ValidationError, ow.InvalidStateError), match="destroyed"):
        context.dispatch(graph, {"x": x}, {"y": y})


def test_calls_during_destroy_raise_invalid_state(context: ow.MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = relu(context)
    state_class: Any = type(state_of(graph))
    program = state_class.program

    def set_program(state: Any, value: Any) -> None:
        program.__set__(state, value)
        with pytest.raises(ow.InvalidStateError, match="destroyed"):  # as in another thread
            state.check_alive()

    monkeypatch.setattr(state_class, "program", property(program.__get__, set_program))
    graph.destroy()


def test_dispatch_and_destroy_in_threads() -> None:
    context = ow.ml.create_context()
    graph = relu(context)
    bound: list[weakref.ref[Any]] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work() -> None:
        for turn in range(100):
            x, y = context.tensor_from(ones()), context.create_tensor("float32", [4], readable=True)
            bound.append(weakref.ref(x.numpy().base))
            context.dispatch(graph, {"x": x}, {"y": y})
            if turn % 2:
                x.destroy()

    try:
        together(*[work] * 4)
    finally:
        sys.setswitchinterval(interval)
    gc.collect()
    assert [array for array in bound if array() is not None] == []  # the graph does not hold what it was bound to


@pytest.mark.long
def test_interrupt_while_waiting_releases_locks() -> None:
    code = """
import signal, threading, numpy as np, opweave as ow
context = ow.ml.create_context()
builder = ow.MLGraphBuilder(context)
graph = builder.build({"y": builder.relu(builder.input("x", "float32", [4]))})
pair = [context.create_tensor("float32", [4], writable=True) for _ in range(2)]
held, interrupted = threading.Event(), threading.Event()
@ow.op
def slow(self, x: ow.MLOperand):
    return x.desc
@slow.kernel("cpu")
def _(x, out):
    held.set()
    interrupted.wait(300)
    out[...] = x
builder = ow.MLGraphBuilder(context)
holding = builder.build({"y": slow(builder.input("x", "float32", [4]))})
def hold():  # the tensor that is locked last: the dispatch below waits for it while it holds the other one
    context.dispatch(holding, {"x": context.create_tensor("float32", [4])}, {"y": max(pair, key=id)})
thread = threading.Thread(target=hold)
thread.start()
held.wait()
try:
    print("ready", flush=True)
    context.dispatch(graph, {"x": pair[0]}, {"y": pair[1]})
except KeyboardInterrupt:
    print("interrupted", flush=True)
interrupted.set()
thread.join()
got = []
def check():
    for tensor in pair:
        context.write_tensor(tensor, np.zeros(4, "float32"))
        got.append(True)
checks = threading.Thread(target=check, daemon=True)
checks.start()
checks.join(300)
print(got)
"""
    options: Any = {"stdout": subprocess.PIPE, "text": True, "preexec_fn": handle_signals}
    with subprocess.Popen([sys.executable, "-c", code], **options) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        threading.Event().wait(0.3)
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "interrupted\n[True, True]\n"


def test_compute_holds_the_tensors_it_reads() -> None:
    context = ow.ml.create_context()
    graph, x = relu(context), context.tensor_from(ones())
    order: list[str] = []
    program: Any = program_of(graph)
    run = program.run

    def slow_run(*given: Any) -> None:
        writer.start()
        writer.join(0.2)
        order.append("run")
        run(*given)

    def write() -> None:
        context.write_tensor(x, 5 * ones())
        order.append("written")

    writer = threading.Thread(target=write)
    program.run = slow_run
    assert context.compute(graph, {"x": x})["y"].tolist() == [1, 1, 1, 1]
    writer.join()
    assert order == ["run", "written"]


def test_compute_checks_whose_tensors_it_gets(context: ow.MLContext) -> None:
    foreign = ow.ml.create_context().tensor_from(ones())
    with pytest.raises(ow.ValidationError, match="compute: input 'x' is a tensor of another context"):
        context.compute(relu(context), {"x": foreign})
    unreadable = context.create_tensor("float32", [4])
    assert context.compute(relu(context), {"x": unreadable})["y"].tolist() == [0, 0, 0, 0]


# Memory that must be given back ----------------------------------------------------------------------------------------


def test_dropped_graph_is_freed_at_once(context: ow.MLContext) -> None:
    graph = relu(context)
    x, y = context.tensor_from(ones()), context.create_tensor("float32", [4])
    context.dispatch(graph, {"x": x}, {"y": y})
    gc.collect()
    gc.disable()
    try:
        session = weakref.ref(program_of(graph))
        del graph
        assert session() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("how", ["graph", "context"])
def test_destroy_gives_the_weights_back(context: ow.MLContext, how: str) -> None:
    weights = np.ones((100, 100), "float32")
    watch = weakref.ref(weights)
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.add(builder.input("x", "float32", [100]), builder.constant(weights))})
    del weights, builder
    gc.collect()
    assert watch() is not None
    (graph if how == "graph" else context).destroy()
    gc.collect()
    assert watch() is None
    assert "destroyed" in repr(graph)


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [10**400, Fraction(10**400, 3), Decimal("sNaN"), np.array([1.0]), np.complex64(1 + 2j), np.True_, "1", None],
)
def test_builder_rejects_values_that_are_no_numbers(context: ow.MLContext, value: Any) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [2])
    with pytest.raises(ow.ValidationError, match="elu: alpha must be a finite number, got"):
        builder.elu(x, alpha=value)


@pytest.mark.parametrize("value", [np.float16(0.5), np.array(0.5), Fraction(1, 2), Decimal("0.5")])
def test_builder_accepts_numbers_of_every_kind(context: ow.MLContext, value: Any) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [2])
    assert builder.elu(x, alpha=value).node.attributes["alpha"] == 0.5  # type: ignore[union-attr]
    assert builder.clamp(x, min_value=value).node.attributes["min_value"] == 0.5  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda c, b, x: b.reduce_sum(x, axes=np.array(0)), "reduce_sum: axes must be a sequence, got array"),
        (lambda c, b, x: b.split(x, np.array(2.5)), "split: splits must be an integer, got array"),
        (
            lambda c, b, x: b.input("z", "float32", np.array(4)),
            "input 'z': shape must be a sequence of integers, got array",
        ),
        (
            lambda c, b, x: b.input("z", "float32", np.array([[1, 2]])),
            "input 'z': shape must be a sequence of integers",
        ),
        (
            lambda c, b, x: b.constant("uint8", [2], memoryview(b"abcd")[::2]),
            "constant: buffer must be an array or a buffer",
        ),
        (lambda c, b, x: b.constant(b"abcd"), r"constant: takes .*got \(bytes\)"),
        (lambda c, b, x: b.constant(bytearray(4)), r"constant: takes .*got \(bytearray\)"),
        (lambda c, b, x: c.compute(None, {}), "compute: graph must be an MLGraph, got NoneType"),
        (lambda c, b, x: c.compute(relu(c), None), "compute: inputs must map names to arrays, got None"),
        (lambda c, b, x: c.compute(relu(c), ["x"]), "compute: inputs must map names to arrays, got"),
        (lambda c, b, x: c.compute(relu(c), {"x": ones()}, [1]), "compute: outputs must map names to arrays, got"),
        (lambda c, b, x: 3 in x, "'in': an operand has no value while its graph is built"),
        (lambda c, b, x: c.tensor_from(np.zeros(2)), "tensor_from: float64 is not a data type of WebNN"),
    ],
)
def test_invalid_arguments_raise_validation_error(context: ow.MLContext, use: Any, message: str) -> None:
    builder = ow.MLGraphBuilder(context)
    with pytest.raises(ow.ValidationError, match=message):
        use(context, builder, builder.input("x", "float32", [2]))


def test_graph_accepts_labels_and_names_of_any_characters(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x\n\x1b[31m", "float32", [2])
    graph = builder.build({"y z": builder.gelu(x, label="\ud800 é")})
    assert context.compute(graph, {"x\n\x1b[31m": ones(2)})["y z"].shape == (2,)
    assert "\x1b" not in graph.explain() + repr(graph)


def test_engine_errors_are_translated(context: ow.MLContext, tmp_path: Path) -> None:
    """Weights in a file that is deleted after Opweave has read it, and before the engine does."""
    from opweave import memory

    weights = ones(10000)
    builder = ow.MLGraphBuilder(context)
    y = builder.add(builder.input("x", "float32", [10000]), builder.constant(weights))
    region = memory.FileRegion(*memory.address_range(weights), 0, str(tmp_path / "gone"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "mapped_files", lambda _: [region])
        with pytest.raises(ow.OperationError, match="ONNX Runtime does not take the graph"):
            builder.build({"y": y})


def test_dispatch_rejects_output_as_input(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.exp(builder.constant("float32", 0))})
    tensor = context.create_tensor("float32", [])
    context.dispatch(graph, {}, {"y": tensor})
    with pytest.raises(ow.ValidationError, match="dispatch: inputs must hold"):
        context.dispatch(graph, {"y": tensor}, {})


def test_tensors_are_not_copied_by_accident(context: ow.MLContext) -> None:
    tensor = context.create_tensor("float32", [1])
    for use in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="a tensor belongs to its context"):
            use(tensor)
    ow.MLTensor.__new__(ow.MLTensor).__del__()


def test_descriptions_of_a_graph_cannot_be_changed(context: ow.MLContext) -> None:
    graph = relu(context)
    with pytest.raises(TypeError):
        graph.inputs["x"] = None  # type: ignore[index]


@pytest.mark.long
def test_error_message_is_printed_without_markup(tmp_path: Path) -> None:
    for name in ("[red]x.jpg", "[/b]x.jpg"):
        command = [sys.executable, "-m", "opweave", "demo", name]
        result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert result.returncode == 1
        assert result.stderr.startswith(f"error: {name}"), result.stderr
