"""Which engine runs a graph: untried, pinned, measured; and what is kept of measurements."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from support.graphs import engine_line
from support.rival_engine import Rival, add_rival, faster

import opweave as ow
from opweave import backends
from opweave.backends.onnxruntime import ort
from opweave.compile import engines, tuning
from opweave.composites.control import loop
from opweave.context.graph import state_of
from opweave.core.bodies import make_body
from opweave.core.graph import Graph
from opweave.ops.recorder import Recorder
from opweave.support import disk_cache
from opweave.support.formatting import duration
from opweave.support.tuned import has_tuning

needs_openvino = pytest.mark.skipif(
    not backends.find("openvino").competes(backends.find_device("cpu", "onnxruntime")[1], "float32"),
    reason="needs openvino",
)


@pytest.fixture
def rival(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Rival:
    return add_rival(monkeypatch, tmp_path)


def built(context: ow.MLContext, count: int = 2, size: int | str = 3) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    value = builder.input("x", "float32", [size])
    for _ in range(count):
        value = builder.relu(builder.neg(value)) if count > 1 else builder.neg(value)
    return builder.build({"y": value})


def noted_digests(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The graphs whose digests are computed from now on."""
    digests: list[Graph] = []

    def noted(graph: Graph, plain: Callable[[Graph], str] = engines.digest) -> str:
        digests.append(graph)
        return plain(graph)

    monkeypatch.setattr(engines, "digest", noted)
    return digests


def ran_by(graph: ow.MLGraph) -> set[str]:
    return {placement.detail for placement in graph.placements()}


UNTRIED = "engine: onnxruntime; rival not verified: switched off: expected to be faster (4 operations)"


def test_auto_uses_only_verified_engines(rival: Rival) -> None:
    for backend in (None, "auto"):
        context = ow.ml.create_context(device="cpu", backend=backend)
        assert (ran_by(built(context)), engine_line(built(context))) == ({"ONNX Runtime"}, UNTRIED)
        assert (ran_by(built(context, 1)), engine_line(built(context, 1))) == (
            {"ONNX Runtime"},
            "engine: onnxruntime; rival not verified: not expected to be faster: 1 operations",
        )


def test_named_back_end_is_pinned(rival: Rival) -> None:
    graph = built(ow.ml.create_context(device="cpu", backend="onnxruntime"))
    assert (ran_by(graph), engine_line(graph)) == ({"ONNX Runtime"}, "")
    reference = built(ow.ml.create_context(device="reference"))
    assert engine_line(reference) == ""
    assert str(reference.tune()).splitlines()[1].endswith("reference  there is no other engine for it")


def test_engines_use_threads_of_context(rival: Rival) -> None:
    one, other = (ow.ml.create_context(device="cpu", threads=1) for _ in range(2))
    assert [each.threads for each in one.backend.rivals] == [1]
    assert one.backend is other.backend  # so that they share compiled programs
    assert one.backend is not ow.ml.create_context(device="cpu", threads=2).backend


def test_graph_refused_by_one_engine_runs_on_the_other(
    rival: Rival, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival.refuses = True
    context = ow.ml.create_context(device="cpu")
    (found,) = built(context).tune(seconds=0).measurements
    assert (found.chosen, found.refused) == ("onnxruntime", {"rival": "it does not want to"})
    rival.refuses = False
    faster(monkeypatch, (2.0, 1.0))
    built(context).tune(seconds=0)
    rival.refuses = True
    graph = built(context)
    assert ran_by(graph) == {"ONNX Runtime"}
    assert engine_line(graph) == "engine: onnxruntime, since rival refuses it: it does not want to"
    assert "onnxruntime runs a graph that rival refuses: it does not want to" in caplog.text


@pytest.mark.parametrize(
    ("times", "choices"),
    [
        ((2.0, 1.0), ["rival", "rival"]),
        ((1.0, 2.0), ["onnxruntime", "onnxruntime"]),
        ((1.0, 0.99), ["onnxruntime", "onnxruntime"]),  # the default
        ((1.0, 1.01), ["onnxruntime", "onnxruntime"]),
    ],
)
def test_tuning_decides_for_the_graph_and_for_later_builds(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, times: Sequence[float], choices: list[str]
) -> None:
    context = ow.ml.create_context(device="cpu")
    x = np.float32([-1, 0, 2])
    for count, chosen in zip((1, 2), choices, strict=True):
        graph = built(context, count)
        tensor, result = context.tensor_from(x), context.create_tensor("float32", [3], readable=True)
        context.dispatch(graph, {"x": tensor}, {"y": result})
        expected = result.numpy().copy()
        faster(monkeypatch, times)
        tuned = graph.tune({"x": x}, seconds=0)
        detail = {"Rival" if chosen == "rival" else "ONNX Runtime"}
        ratio = f"{times[1] / times[0]:.2f}".rstrip("0").rstrip(".")
        verdict = f"rival, verified, {ratio}x" if chosen == "rival" else f"onnxruntime; rival verified, {ratio}x"
        text = f"engine: {verdict}; onnxruntime {times[0]:.2f} s, rival {duration(times[1])}"
        for each in (graph, built(context, count)):
            assert (ran_by(each), engine_line(each)) == (detail, text)
        assert len(state_of(graph).bindings) == 0  # those of the other program
        context.dispatch(graph, {"x": tensor}, {"y": result})
        assert (result.numpy() == expected).all()
        head, row = str(tuned).splitlines()
        assert head.split() == ["tuned", "onnxruntime", "rival", "chosen"]
        assert row.split()[-1] == chosen
    other = built(context, 2, size=4)
    assert engine_line(other) == UNTRIED  # of other shapes


@pytest.mark.parametrize("is_loaded", [False, True])
def test_graphs_with_names_use_what_was_tuned_for_their_sizes(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_loaded: bool
) -> None:
    """They are compiled for all sizes at once on the default engine, and specialised for tuned sizes alone."""

    def make() -> ow.MLGraph:
        graph = built(ow.ml.create_context(device="cpu", drafts=True), size="n")
        if not is_loaded:
            return graph
        graph.save(tmp_path / "graph.opweave")
        return ow.ml.create_context(device="cpu", drafts=True).load(tmp_path / "graph.opweave")

    faster(monkeypatch, (2.0, 1.0))
    make().tune({"x": np.ones(3, np.float32)}, seconds=0)
    faster(monkeypatch, (1.0, 2.0))
    make().tune({"x": np.ones(4, np.float32)}, seconds=0)
    digests = noted_digests(monkeypatch)
    graph = make()
    for size, detail in {3: "Rival", 5: "ONNX Runtime", 4: "ONNX Runtime"}.items():
        x = np.arange(size, dtype=np.float32)
        assert (graph.context.compute(graph, {"x": x})["y"] == 0).all()
        assert ran_by(graph) == {detail}
        assert [each.inputs["x"].shape for each in digests if 3 not in each.inputs["x"].shape] == []
    assert sorted(item.subject.partition(", ")[2] for item in engines.kept_measurements()) == ["n = 3", "n = 4"]
    make().tune({"x": np.ones(3, np.float32)}, seconds=0)
    graph = make()
    graph.context.compute(graph, {"x": np.ones(3, np.float32)})
    assert ran_by(graph) == {"ONNX Runtime"}


def test_tune_refuses_engine_with_wrong_results(rival: Rival, monkeypatch: pytest.MonkeyPatch) -> None:
    rival.error = 1
    graph = built(ow.ml.create_context(device="cpu"), 1)
    found = graph.tune(seconds=0).measurements[0]
    assert found.chosen == "onnxruntime"
    assert found.refused == {"rival": "output 'y' differs by 1e0 of the largest number"}
    assert "rival refused: output 'y' differs by 1e0" in engine_line(graph)


@pytest.mark.parametrize(("error", "chosen"), [(0.1, "rival"), (0.3, "onnxruntime")])
def test_results_of_quantised_graphs_may_differ_more(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, error: float, chosen: str
) -> None:
    faster(monkeypatch, (1.0, 0.5))
    rival.error = error
    plain = built(ow.ml.create_context(device="cpu"), 1)
    assert plain.tune(seconds=0).measurements[0].chosen == "onnxruntime"
    builder = ow.MLGraphBuilder(plain.context)
    scale, zero = builder.constant(np.float32([0.1])), builder.constant(np.int8([0]))
    quantised = builder.quantize_linear(builder.input("x", "float32", [16]), scale, zero)
    graph = builder.build({"y": builder.dequantize_linear(quantised, scale, zero)})
    assert graph.tune(seconds=0).measurements[0].chosen == chosen


CHILD = """
import sys
sys.path[:0] = sys.argv[1:]
from support.rival_engine import Rival, rivals_of_onnxruntime
from support.graphs import engine_line
from test_engines import built
import opweave as ow
from opweave import backends
vars(backends).update(rivals_of_onnxruntime(Rival()))
print(engine_line(built(ow.ml.create_context(device="cpu"))))
"""


def in_new_process() -> str:
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), str(folder.parent)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_measurements_are_read_by_new_process(rival: Rival, monkeypatch: pytest.MonkeyPatch) -> None:
    faster(monkeypatch, (1.0, 2.0))
    built(ow.ml.create_context(device="cpu")).tune(seconds=0)
    assert in_new_process() == "engine: onnxruntime; rival verified, 2x; onnxruntime 1.00 s, rival 2.00 s"


@pytest.mark.parametrize("how", ["cut", "of another format", "of another engine"])
def test_damaged_measurement_file_is_ignored(rival: Rival, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    faster(monkeypatch, (1.0, 2.0))
    context = ow.ml.create_context(device="cpu")
    built(context).tune(seconds=0)
    (entry,) = disk_cache.entries()
    content = disk_cache.load(entry.key, "tuning")
    assert content is not None
    if how == "cut":
        entry.path.write_bytes(entry.path.read_bytes()[:-3])
    elif how == "of another format":
        disk_cache.store(entry.key, "tuning", b'{"format": 0, "measured": [{}]}')
    else:
        disk_cache.store(entry.key, "tuning", content.replace(b'"chosen": "onnxruntime"', b'"chosen": "gone"'))
    assert engine_line(built(context)) == UNTRIED
    assert [found.chosen for found in engines.kept_measurements()] == (["gone"] if how == "of another engine" else [])


@pytest.mark.parametrize("rounds", [1, tuning.MIN_ROUNDS])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ow.OperationError])
def test_tune_interrupted_keeps_sufficient_measurements(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, rounds: int, error: type[BaseException]
) -> None:
    def interrupted(runs: Any, times: dict[str, list[float]], _: float) -> None:
        for value, each in enumerate(times.values()):
            each += [1 / 2**value] * rounds
        raise error

    monkeypatch.setattr(tuning, "_alternate", interrupted)
    context = ow.ml.create_context(device="cpu", drafts=True)
    is_kept = rounds >= tuning.MIN_ROUNDS and error is KeyboardInterrupt  # an engine that fails must not be used
    x = np.ones(3, np.float32)
    for size in (3, "n"):
        with pytest.raises(error):
            built(context, size=size).tune({"x": x})
        graph = built(context, size=size)
        context.compute(graph, {"x": x})
        assert ("verified, " in engine_line(graph)) == is_kept
        assert ran_by(graph) == {"Rival" if is_kept else "ONNX Runtime"}


def test_tune_without_cache_directory(rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.joinpath("file").write_text("")
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "file"))
    faster(monkeypatch, (1.0, 2.0))
    graph = built(ow.ml.create_context(device="cpu"))
    assert str(graph.tune(seconds=0)).endswith(f"onnxruntime  not kept: {tmp_path / 'file'} is no directory")
    assert ran_by(graph) == {"ONNX Runtime"}
    assert engine_line(built(graph.context)) == UNTRIED


def test_engines_are_measured_in_turns(rival: Rival) -> None:
    called: list[str] = []
    runs = {name: partial(called.append, name) for name in "ab"}
    times: dict[str, list[float]] = {"a": [], "b": []}
    tuning._alternate(cast(Any, runs), times, 0)
    assert [len(each) for each in times.values()] == [tuning.MIN_ROUNDS] * 2
    assert called == list("aabb" + "ba" + "ab" + "ba" + "ab" + "ba")


def test_tune_rejects_invalid_arguments(rival: Rival) -> None:
    graph = built(ow.ml.create_context(device="cpu"))
    for seconds in (-1, "1", True, float("inf")):
        with pytest.raises(ow.ValidationError, match="tune: seconds must be a number >= 0, got"):
            graph.tune(seconds=seconds)  # type: ignore[arg-type]
    with pytest.raises(ow.ValidationError, match=r"tune: inputs must hold \['x'\]; got none"):
        graph.tune({})
    with pytest.raises(ow.ValidationError, match="tune: input 'x'"):
        graph.tune({"x": np.zeros(5, np.float32)})
    graph.destroy()
    with pytest.raises(ow.InvalidStateError, match="the graph is destroyed"):
        graph.tune()


@pytest.mark.parametrize(("size", "has_values"), [(2, True), (128, True), (256, False)])
def test_digest_has_structure_and_values_of_small_constants(size: int, has_values: bool) -> None:
    def graph(value: float, axis: int = 0, data_type: str = "float32", swap: bool = False) -> Graph:
        builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
        x = builder.input("x", data_type, [size, size])  # type: ignore[arg-type]
        constant = builder.constant(np.full((size, size), value, data_type))
        value_ = builder.softmax(x, axis)
        pair = (constant, value_) if swap else (value_, constant)
        return Graph.reaching({"y": builder.sub(*pair)})

    first = engines.digest(graph(1))
    assert engines.digest(graph(1)) == first
    assert (engines.digest(graph(2)) != first) == has_values
    others = {engines.digest(each) for each in (graph(1, 1), graph(1, 0, "float16"), graph(1, swap=True))}
    assert len(others | {first}) == 4


def scaled_by_expression(b: ow.MLGraphBuilder, x: ow.MLOperand, factor: float) -> ow.MLOperand:
    @ow.expression
    def scaled(x: ow.expr.Traced) -> ow.expr.Traced:
        return x * factor

    return scaled(x)


def scaled_in_loop(b: ow.MLGraphBuilder, x: ow.MLOperand, factor: float) -> ow.MLOperand:
    body = make_body(Recorder(), [x.desc], lambda inner, state: [state * factor])
    (result,) = loop(b, [x], [], [], body=body, length=2)
    return result


def scaled_by_array(b: ow.MLGraphBuilder, x: ow.MLOperand, factor: float) -> ow.MLOperand:
    factors = np.zeros(2000)
    factors[1000] = factor
    return scaled_by_kernel(b, x, factors=factors)


@ow.op
def scaled_by_kernel(self: ow.MLGraphBuilder, x: ow.MLOperand, *, factors: Any) -> Any:
    return x.desc


@pytest.mark.parametrize("build", [scaled_by_expression, scaled_in_loop, scaled_by_array])
def test_digest_has_what_operations_compute(build: Any) -> None:
    def graph(factor: float) -> Graph:
        builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
        return Graph.reaching({"y": build(builder, builder.input("x", "float32", [2]), factor)})

    first, second, other = (engines.digest(graph(factor)) for factor in (1.0, 1.0, 2.0))
    assert first == second != other


def test_choice_without_another_engine() -> None:
    code = """
import sys
sys.modules["openvino"] = None
import opweave as ow
one, other = ow.ml.create_context(device="cpu"), ow.ml.create_context(device="cpu", backend="auto")
print(one.backend is ow.backends.find("onnxruntime"), other.backend is one.backend)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True True"


@pytest.fixture
def convolution() -> Callable[..., ow.MLGraph]:
    def make(context: ow.MLContext, size: int, extra: str = "") -> ow.MLGraph:
        builder = ow.MLGraphBuilder(context)
        x = builder.input("x", "float32", [1, 32, size, size])
        y = builder.conv2d(x, builder.constant(np.full((32, 32, 3, 3), 0.01, np.float32)))
        outputs = {"y": y}
        if extra == "int64":
            number = builder.input("n", "int64", [32, size, size])
            outputs["z"] = builder.transpose(number)
        return builder.build(outputs)

    return make


EXPECTED = (
    "engine: onnxruntime; openvino not verified: switched off: expected to be faster (31 million multiplications)"
)


@needs_openvino
def test_openvino_gains_with_many_products(convolution: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path))
    context = ow.ml.create_context(device="cpu")
    large, small, wide = (convolution(context, *each) for each in ((60, ""), (6, ""), (60, "int64")))
    hardly = "engine: onnxruntime; openvino not verified: not expected to be faster"
    assert engine_line(large) == EXPECTED
    assert engine_line(small) == f"{hardly}: 0.15 million multiplications, fewer than 20 million"
    assert engine_line(wide) == f"{hardly}: transpose computes int64[60, 60, 32]"
    faster(monkeypatch, (2.0, 1.0))
    large.tune(seconds=0)
    assert engine_line(large) == "engine: openvino, verified, 0.5x; onnxruntime 2.00 s, openvino 1.00 s"
    x = np.random.default_rng(0).standard_normal((1, 32, 60, 60), np.float32)
    pinned = ow.ml.create_context(device="cpu", backend="onnxruntime")
    expected = pinned.compute(convolution(pinned, 60), {"x": x})["y"]
    np.testing.assert_allclose(context.compute(large, {"x": x})["y"], expected, rtol=1e-4, atol=1e-4)


@needs_openvino
def test_decomposed_normalization_allows_openvino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path))
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu"))
    weights = builder.constant(np.random.default_rng(0).standard_normal((32, 32, 3, 3), np.float32))
    ones = builder.constant(np.ones(32, np.float32))
    y = builder.relu(builder.conv2d(builder.input("x", "float32", [1, 32, 60, 60]), weights))
    graph = builder.build({"y": builder.batch_normalization(y, ones, ones, axis=1)})
    assert engine_line(graph) == EXPECTED


@needs_openvino
def test_explain_names_engine_without_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path))

    @ow.op
    def own(self: Any, x: ow.MLOperand) -> ow.Desc:
        return x.desc

    own.kernel("cpu", lambda x, out: np.copyto(out, x))
    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [4])
    prefix = "engine: onnxruntime; openvino not verified: not expected to be faster: openvino has no rule for"
    assert engine_line(builder.build({"y": own(x, label="here")})) == f"{prefix} own 'here'"
    builder = ow.MLGraphBuilder(context)
    formula = ow.expression(lambda x: x * 2)(builder.input("x", "float32", [4]), label="there")
    assert engine_line(builder.build({"y": formula})) == f"{prefix} <lambda> 'there' and would decompose it"


@needs_openvino
def test_openvino_is_tuned_against_onnxruntime(
    convolution: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path))
    monkeypatch.setattr(tuning, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(tuning, "SLICE_SECONDS", 0)
    graph = convolution(ow.ml.create_context(device="cpu"), 6)
    (found,) = graph.tune(seconds=0).measurements
    assert list(found.seconds) == ["onnxruntime", "openvino"]
    assert (
        found.versions
        == f"opweave {ow.__version__}, onnxruntime {ort.version()}, openvino {backends.find('openvino').version()}"
    )
    assert "openvino verified, " in engine_line(graph) or "openvino, verified, " in engine_line(graph)


@pytest.mark.long(rows=1)
@needs_openvino
@pytest.mark.parametrize("is_tuned", [False, True])
def test_session_loads_only_the_engine_that_runs_it(is_tuned: bool, tmp_path: Path) -> None:
    code = """
import sys
import numpy as np, onnx.helper as h, onnx.numpy_helper as n, opweave as ow
from opweave.compile import tuning
weights = n.from_array(np.ones((32, 32, 3, 3), np.float32), "w")
x, y = (h.make_tensor_value_info(name, 1, [1, 32, side, side]) for name, side in (("x", 60), ("y", 58)))
model = h.make_model(h.make_graph([h.make_node("Conv", ["x", "w"], ["y"])], "g", [x], [y], [weights]), ir_version=8)
session = ow.InferenceSession(model.SerializeToString())
if sys.argv[1] == "tune":
    def alternate(runs, times, seconds):
        for each, value in zip(times.values(), (2.0, 2.0, 1.0), strict=True):
            each += [value] * tuning.MIN_ROUNDS
    tuning._alternate = alternate
    assert session.tune(seconds=0).measurements[0].chosen == "openvino"
session.run(None, {"x": np.zeros((1, 32, 60, 60), np.float32)})
print(*{"onnxruntime", "openvino"} & sys.modules.keys())
"""
    environment = os.environ | {"OPWEAVE_CACHE": str(tmp_path)}
    for argument in ("tune", "") if is_tuned else ("",):
        command = [sys.executable, "-c", code, argument]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["openvino" if is_tuned else "onnxruntime"]


def test_digest_not_computed_without_measurements(rival: Rival, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ow.ml.create_context(device="cpu")
    digests = noted_digests(monkeypatch)
    graph = built(context)
    assert not has_tuning()
    assert digests == []
    graph.tune(seconds=0)
    assert has_tuning()
    digests.clear()
    built(context)
    assert len(digests) == 1
