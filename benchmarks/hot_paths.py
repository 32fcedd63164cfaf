"""One hot path of Opweave, in a process that calls it on request; `benchmarks.against` compares two such processes.

`python -m benchmarks.hot_paths PATH FOLDER` prepares the path, and then answers each line "COUNT PAUSE" with the seconds a
call of COUNT calls after the pause, by the clock of the path. `… PATH FOLDER COUNT` calls it COUNT times and leaves. FOLDER
holds the models that `prepare` writes. Only public names of Opweave are used, so that older revisions can be measured, too.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from .measure import PAUSE_SECONDS, Clock, Way, calls_within, peak_mib, per_call
from .models import opweave

NETS = {"squeezenet": "SqueezeNet", "shufflenet": "ShuffleNet", "inception_v2": "Inception v2"}
"""The light nets of the `onnx` package, with random weights."""

GATE = {"piper": "Piper voice", "nsnet2": "NSNet2 48 kHz", "plcmos": "PLCMOS v2"}
"""Recurrent models of the gate: paths that are measured by name alone, as their packages are downloads (`make models`)."""


@dataclass(frozen=True)
class HotPath:
    """Something whose time must not grow.

    Attributes:
        what: for tables.
        make: prepares it in a folder with models, and gives what to call.
        clock: what tells the time: the thread's processor time where the path runs on one thread, which does not grow while
            another process runs.
        slice: about how many seconds of calls are measured at a time.
        pause: seconds before each measurement.
        processes: how many pairs of processes there are.
        slices: how many measurements there are in each pair of processes.
        value: the path measures a number that the call returns, not a time.
    """

    what: str
    make: Callable[[Path], Way]
    clock: Clock = time.thread_time
    slice: float = 0.005
    pause: float = 0.0
    processes: int = 5
    slices: int = 30
    value: bool = False

    @property
    def unit(self) -> str:
        return "MiB" if self.value else "us" if self.clock is time.thread_time else "ms"


PATHS: dict[str, HotPath] = {}


def path(name: str, what: str, **options: Any) -> Callable[[Callable[[Path], Way]], Callable[[Path], Way]]:
    """Declare a hot path by the function that prepares it."""

    def declare(make: Callable[[Path], Way]) -> Callable[[Path], Way]:
        PATHS[name] = HotPath(what, make, **options)
        return make

    return declare


def few() -> np.ndarray:
    return np.linspace(-1, 1, 16, dtype="float32")


def relu_graph() -> tuple[Any, Any]:
    import opweave as ow

    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    return context, builder.build({"y": builder.relu(builder.input("x", "float32", [16]))})


@path("dispatch", "dispatch of a 16-element relu, bound")
def _(folder: Path) -> Way:
    context, graph = relu_graph()
    inputs = {"x": context.tensor_from(few())}
    outputs = {"y": context.create_tensor("float32", [16], readable=True)}
    return lambda: context.dispatch(graph, inputs, outputs)


@path("rebind", "the same, with other tensors at each call")
def _(folder: Path) -> Way:
    context, graph = relu_graph()
    tensors = [context.create_tensor("float32", [16], readable=True, writable=True) for _ in range(6)]
    pairs = [({"x": a}, {"y": b}) for a in tensors[:3] for b in tensors[3:]]

    def all_pairs() -> None:
        for inputs, outputs in pairs:
            context.dispatch(graph, inputs, outputs)

    return all_pairs


@path("compute", "compute of a 16-element relu")
def _(folder: Path) -> Way:
    context, graph = relu_graph()
    x = few()
    return lambda: context.compute(graph, {"x": x})


@path("op", "op-level relu of 16 elements, NumPy to NumPy")
def _(folder: Path) -> Way:
    import opweave as ow

    x = few()
    return lambda: ow.ops.relu(x).numpy()


@path("note", "op-level add of two arrays, not yet computed")
def _(folder: Path) -> Way:
    import opweave as ow

    x = ow.array(few())
    return lambda: ow.ops.add(x, x)


@path("jit", "a jitted function of 16 elements")
def _(folder: Path) -> Way:
    import opweave as ow

    @ow.jit
    def function(x: Any) -> Any:
        return ow.ops.relu(x) * 2.0

    x = ow.array(few())
    return lambda: function(x).numpy()


@path("expression", "an expression called on 16 elements")
def _(folder: Path) -> Way:
    import opweave as ow

    @ow.expression
    def positive(x: Any) -> Any:
        return ow.expr.max(x, 0)

    x = few()
    return lambda: positive(x)


@path("custom", "a custom operation with a host kernel, called on 16 elements")
def _(folder: Path) -> Way:
    absolute, x = absolute_value(), few()
    return lambda: absolute(x)


def absolute_value() -> Any:
    """A custom operation with a host kernel."""
    import opweave as ow

    @ow.op
    def absolute(self: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.Desc:
        return x.desc

    @absolute.kernel("cpu")
    def _(x: np.ndarray, out: np.ndarray) -> None:
        np.abs(x, out=out)

    return absolute


def segments() -> tuple[Any, Any]:
    """A graph of the engine, a host kernel and an expression, twice."""
    import opweave as ow

    @ow.expression
    def doubled(x: Any) -> Any:
        return x + x

    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    absolute, x = absolute_value(), builder.input("x", "float32", [4, 4])
    for _ in range(2):
        x = doubled(absolute(builder.matmul(x, builder.constant(np.eye(4, dtype="float32")))))
    return context, builder.build({"y": x})


@path("segments", "dispatch of a graph of 6 segments, bound")
def _(folder: Path) -> Way:
    context, graph = segments()
    inputs = {"x": context.tensor_from(few().reshape(4, 4))}
    outputs = {"y": context.create_tensor("float32", [4, 4], readable=True)}
    return lambda: context.dispatch(graph, inputs, outputs)


@path("compute segments", "compute of the same")
def _(folder: Path) -> Way:
    context, graph = segments()
    x = few().reshape(4, 4)
    return lambda: context.compute(graph, {"x": x})


def small_session(folder: Path) -> tuple[Any, dict[str, np.ndarray]]:
    import opweave as ow

    session = ow.InferenceSession(folder / "relu.onnx", ow.ml.create_context(device="cpu"))
    return session, {"x": few()}


@path("run", "a repeated session.run of one Relu")
def _(folder: Path) -> Way:
    session, feed = small_session(folder)
    return lambda: session.run(None, feed)


@path("run out", "the same with out=")
def _(folder: Path) -> Way:
    session, feed = small_session(folder)
    out = {"y": np.zeros(16, "float32")}
    return lambda: session.run(None, feed, out=out)


@path("run new", "the same with a new feed at each call")
def _(folder: Path) -> Way:
    session, feed = small_session(folder)
    return lambda: session.run(None, {"x": feed["x"].copy()})


@path("build", "build of a graph of 60 operations", clock=time.perf_counter, slice=0.1, pause=0.1, slices=10)
def _(folder: Path) -> Way:
    import opweave as ow

    context = ow.ml.create_context(device="cpu")
    weights = [np.random.default_rng(n).standard_normal((32, 32), "float32") for n in range(20)]

    def build() -> Any:
        builder = ow.MLGraphBuilder(context)
        x = builder.input("x", "float32", [8, 32])
        for weight in weights:
            x = builder.add(builder.tanh(builder.matmul(x, builder.constant(weight))), x)
        return builder.build({"y": x})

    return build


@path("load", "SqueezeNet, time to load", clock=time.perf_counter, slice=0.1, pause=PAUSE_SECONDS, slices=6)
def _(folder: Path) -> Way:
    import opweave as ow

    context = ow.ml.create_context(device="cpu")
    return lambda: ow.InferenceSession(folder / "squeezenet.onnx", context)


def _net(name: str) -> Callable[[Path], Way]:
    return lambda folder: opweave(folder / f"{name}.onnx")[0]


for _name, _title in NETS.items():
    path(
        _name, f"{_title}, session.run(out=)", clock=time.perf_counter, slice=0.05, pause=PAUSE_SECONDS,
        processes=3, slices=8,
    )(_net(_name))  # fmt: skip


def _recurrent(op: str, gates: int) -> Callable[[Path], Way]:
    """A network over 100 steps of 4 sequences."""

    def make(folder: Path) -> Way:
        import opweave as ow

        steps, batches, size = 100, 4, 64
        generator = np.random.default_rng(0)
        shapes = (steps, batches, size), (1, gates * size, size), (1, gates * size, size)
        x, weight, recurrent_weight = (generator.standard_normal(shape, "float32") / 8 for shape in shapes)
        context = ow.ml.create_context(device="cpu")
        b = ow.MLGraphBuilder(context)
        weights = map(b.constant, (weight, recurrent_weight))
        results = getattr(b, op)(b.input("x", "float32", x.shape), *weights, steps, size, return_sequence=True)
        graph = b.build({f"y{k}": result for k, result in enumerate(results)})
        inputs = {"x": context.tensor_from(x)}
        outputs = {
            name: context.create_tensor(d.data_type, d.shape, readable=True) for name, d in graph.outputs.items()
        }
        return lambda: context.dispatch(graph, inputs, outputs)

    return make


for _name, _gates in (("gru", 3), ("lstm", 4)):
    path(_name, f"{_name} of 100 steps, dispatch", clock=time.perf_counter, slice=0.05, pause=PAUSE_SECONDS, slices=8)(
        _recurrent(_name, _gates)
    )


def _of_gate(name: str) -> Callable[[Path], Way]:
    """A model of the gate, compiled for its first shape."""

    def make(folder: Path) -> Way:
        import opweave as ow
        from gate import catalog

        entry = catalog.entry(name)
        with entry.path(catalog.PACKAGES) as file:
            session = ow.InferenceSession(file, ow.ml.create_context(device="cpu"), specialise="always")
        feed = entry.feeds({i.name: i.type for i in session.get_inputs()})[0]
        return lambda: session.run(None, feed)

    return make


for _name, _title in GATE.items():
    path(_name, f"{_title}, session.run()", clock=time.perf_counter, slice=0.05, pause=PAUSE_SECONDS, slices=8)(
        _of_gate(_title)
    )


@path("memory", "SqueezeNet, peak memory with imports", value=True, processes=3, slices=1)
def _(folder: Path) -> Way:
    run = _net("squeezenet")(folder)
    for _ in range(3):
        run()
    return peak_mib


def _imports(code: str) -> Callable[[Path], Way]:
    """A Python that imports, and leaves; after one that does, so that all is compiled."""
    return lambda folder: lambda: subprocess.run([sys.executable, "-c", code], check=True)


path("import", "import opweave, with the start of Python", clock=time.perf_counter, slice=0.05, processes=1, slices=30)(
    _imports("import opweave")
)
path("import builder", "the same, and use MLGraphBuilder", clock=time.perf_counter, slice=0.05, processes=1, slices=15)(
    _imports("import opweave; opweave.MLGraphBuilder")
)


def write_relu(path: Path) -> None:
    """Write a model of one Relu of 16 elements."""
    import opweave as ow

    _, graph = relu_graph()
    ow.onnx.save(graph, path)


def prepare(folder: Path) -> None:
    """Write the models that the paths read."""
    write_relu(folder / "relu.onnx")
    architectures = import_module("tests.support.onnx_architectures")
    for name in NETS:
        architectures.randomise(name, folder)


def main(name: str, folder: str, count: str = "") -> None:
    found = PATHS[name]
    way = found.make(Path(folder))
    if found.clock is time.thread_time and not found.value:
        per_call(way, 50)
        time.sleep(1)  # what recurs has been compiled in the background then
    if count:
        per_call(way, int(count))
        return
    print(1 if found.value else calls_within(way, found.slice), flush=True)
    for line in sys.stdin:
        calls, pause = line.split()
        time.sleep(float(pause))
        took = way() if found.value else per_call(way, int(calls), found.clock)
        print(took, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
