"""Which engine runs a model: `InferenceSession.tune`, and `opweave tune`."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.graphs import engine_line
from support.onnx_nodes import compiled_models
from support.rival_engine import Rival, add_rival, faster
from typer.testing import CliRunner

import opweave as ow
from opweave import backends
from opweave.cli import app
from opweave.compile import tuning
from opweave.expr import kernels
from opweave.onnx.convert.trace import Trace
from opweave.onnx.session import calls, tuning as session_tuning
from opweave.onnx.session.choice import UNCOMPILED
from opweave.onnx.session.compiled import CompiledModel
from opweave.onnx.session.direct import direct_call
from opweave.onnx.session.model_program import ModelProgram
from opweave.onnx.session.repeat import RepeatedCall
from opweave.onnx.session.shape_cache import ShapeCache
from opweave.onnx.session.tuning import random_feed
from opweave.support.background import background

UNTRIED = "engine: onnxruntime; rival not verified: switched off: expected to be faster (2 operations)"
WAYS = (UNCOMPILED, "onnxruntime", "rival")
X = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def rival(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Rival:
    return add_rival(monkeypatch, tmp_path)


def write(path: Path, rows: str | int = "rows", weights: int = 0) -> Path:
    """A model of two operations, or three with a large weight."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 3]) for name in "xy")
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    initializers = []
    if weights:
        nodes[1:] = [
            helper.make_node("Gemm", ["a", "w"], ["b"]),
            helper.make_node("Slice", ["b", "s", "e", "i"], ["y"]),
        ]
        values = {"w": np.ones((3, weights), np.float32), "s": [0], "e": [3], "i": [1]}
        initializers = [
            helper.make_tensor(n, TensorProto.FLOAT if n == "w" else TensorProto.INT64, np.shape(v), np.ravel(v))
            for n, v in values.items()
        ]
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    path.write_bytes(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString()
    )
    return path


def session_of_file(path: Path, **options: Any) -> ow.InferenceSession:
    return ow.InferenceSession(path, providers=["CPUExecutionProvider"], **options)


def verdict(times: Sequence[float], chosen: str) -> str:
    """What `explain` says after the ways took these times, of which the first is compared with."""
    ratios = {
        name: f"{f'{each / times[0]:.2f}'.rstrip('0').rstrip('.')}x" for name, each in zip(WAYS, times, strict=True)
    }
    first = chosen if chosen == UNCOMPILED else f"{chosen}, verified, {ratios[chosen]}"
    others = [f"{name} verified, {ratios[name]}" for name in WAYS[1:] if name != chosen]
    return "; ".join(
        [first, *others, ", ".join(f"{name} {each:.2f} s" for name, each in zip(WAYS, times, strict=True))]
    )


def check_session(of: ow.InferenceSession) -> None:
    for _ in range(2):  # the second call is a repetition
        np.testing.assert_array_equal(of.run(None, {"x": X})[0], np.maximum(-X, 0))


def test_session_tune_accepts_larger_error_of_quantised_models(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    faster(monkeypatch, (1.0, 1.0, 0.5))
    rival.error = 0.1
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [0.1])
    nodes = [helper.make_node("QuantizeLinear", ["x", "s"], ["q"]), helper.make_node("DequantizeLinear", "qs", ["y"])]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [scale]), ir_version=8)
    model.opset_import[0].version = 13
    path = tmp_path / "quantised.onnx"
    path.write_bytes(model.SerializeToString())
    assert session_of_file(path).tune(seconds=0).measurements[0].chosen == "rival"
    faster(monkeypatch, (2.0, 1.0))  # the rival's results are wrong, and it is not measured
    assert session_of_file(write(tmp_path / "plain.onnx", 2)).tune(seconds=0).measurements[0].chosen == "onnxruntime"


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ((2.0, 1.0, 2.0), "onnxruntime"),
        ((2.0, 2.0, 1.0), "rival"),
        ((1.0, 2.0, 2.0), UNCOMPILED),
        ((1.02, 1.0, 1.0), UNCOMPILED),  # the simplest
    ],
)
def test_untuned_static_session_runs_on_onnxruntime(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, times: tuple[float, ...], chosen: str
) -> None:
    monkeypatch.setattr(session_tuning, "_time_build", lambda build: (build(), 0.0))
    path = write(tmp_path / "static.onnx", 2)
    made = session_of_file(path)
    check_session(made)
    assert engine_line(made) == UNTRIED
    pinned = ow.InferenceSession(path, context=ow.ml.create_context(backend="onnxruntime"))
    assert engine_line(pinned) == ""
    faster(monkeypatch, times)
    _, row = str(made.tune(seconds=0)).splitlines()
    measured = [f"{seconds:.2f} s" for seconds in times]
    assert row.split() == f"static.onnx: x [2, 3] {' '.join(measured)} {chosen}".split()
    for each in (made, session_of_file(path)):
        check_session(each)
        prefix = "x [2, 3]" if chosen == UNCOMPILED else "engine"
        assert f"{prefix}: {verdict(times, chosen)}" in each.explain().splitlines()
        assert len(compiled_models(each)) == (chosen != UNCOMPILED)
        assert (each._parts.shape_cache._uncompiled is None) == (chosen != UNCOMPILED)


def test_run_during_tune_does_not_keep_old_engine(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = session_of_file(write(tmp_path / "static.onnx", 2))
    faster(monkeypatch, (2.0, 1.0, 2.0))
    plain, used = calls._run_by_name, []

    def run_while_tuning(model: ModelProgram, *given: Any) -> Any:
        used.append(model)
        if len(used) == 1:
            thread = Thread(target=made.tune, kwargs={"seconds": 0})
            thread.start()
            thread.join()
        return plain(model, *given)

    monkeypatch.setattr(calls, "_run_by_name", run_while_tuning)
    check_session(made)
    before, after = used  # the second call is no repetition of the first
    assert before is not after
    assert after in compiled_models(made)
    assert engine_line(made).startswith("engine: onnxruntime, verified, 0.5x")


@pytest.mark.skipif(not kernels.has_halide(), reason="the extra halide is not installed")
def test_build_time_excludes_first_loop_compilation(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kernels, "is_compiled", kernels.has_halide)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 61, 67]) for name in "xy")
    graph = helper.make_graph([helper.make_node("LRN", ["x"], ["y"], size=5)], "g", [x], [y])
    path = tmp_path / "lrn.onnx"
    path.write_bytes(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString()
    )
    made = session_of_file(path, specialise="always")
    faster(monkeypatch, (1.0, 2.0))
    plain, builds = ShapeCache.compile_on, []

    def counted(cache: ShapeCache, name: str, *given: Any) -> Any:
        builds.append(name)
        return plain(cache, name, *given)

    kernels.compiled.clear()
    monkeypatch.setattr(ShapeCache, "compile_on", counted)
    monkeypatch.setattr(session_tuning, "LONG_SECONDS", 0.0)
    made.tune(seconds=0)
    assert builds == ["onnxruntime", "onnxruntime", "rival"]  # only the first has a loop
    builds.clear()
    made.tune(seconds=0)
    assert builds == ["onnxruntime", "rival"]


@pytest.mark.long
@pytest.mark.parametrize(("own", "chosen"), [(0.0011, UNCOMPILED), (0.003, "onnxruntime")])
@pytest.mark.parametrize("rows", [2, "rows"])
def test_tune_weighs_build_time(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: float, chosen: str, rows: int | str
) -> None:
    """In 0.5 s there are 500 runs of 1 ms, which save 50 ms or 1 s."""
    path = write(tmp_path / "m.onnx", rows)
    made = session_of_file(path)
    check_session(made)
    plain = ShapeCache.compile_on

    def slow(*args: Any) -> Any:
        time.sleep(0.4)
        return plain(*args)

    monkeypatch.setattr(ShapeCache, "compile_on", slow)
    faster(monkeypatch, (own, 0.001, 0.002))
    (found,) = made.tune([{"x": [2, 3]}], seconds=0).measurements
    assert found.chosen == chosen
    note = "" if chosen != UNCOMPILED else r"onnxruntime takes \S+ m?s longer to build, and 500 runs save 50.00 ms"
    for text in (found.note, found.reason.partition("2.00 ms")[2].removeprefix("; "), found.remark):
        assert re.fullmatch(note, text), text


def test_random_inputs_draw_indices_from_whole_table(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The smallest one, if an input selects from several; others are 0 and 1, as masks are."""
    i, mask = (helper.make_tensor_value_info(name, TensorProto.INT64, [200]) for name in ("i", "mask"))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [200])
    tables = [helper.make_tensor(name, 1, [rows], np.zeros(rows)) for name, rows in (("a", 70), ("b", 50))]
    nodes = [helper.make_node("Gather", [name, "i"], [f"{name}_i"]) for name in "ab"]
    nodes += [
        helper.make_node("Cast", ["mask"], ["m"], to=1),
        helper.make_node("Sum", ["a_i", "b_i", "m"], ["y"]),
    ]
    model = helper.make_model(helper.make_graph(nodes, "g", [i, mask], [y], tables), ir_version=8)
    model.opset_import[0].version = 13
    made = ow.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = random_feed(made._parts, {"i": (200,), "mask": (200,)})
    assert set(found["mask"].tolist()) == {0, 1}
    assert (found["i"].min(), found["i"].max()) == (0, 49)
    faster(monkeypatch, (1.0, 2.0, 3.0))
    assert made.tune(seconds=0).measurements[0].refused == {}


def test_tune_skips_own_session_that_fails(rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The engine refuses indices out of range, which WebNN limits."""
    x, i, y = (helper.make_tensor_value_info(n, t, [3]) for n, t in zip("xiy", (1, 7, 1), strict=True))
    nodes = [helper.make_node("Gather", ["x", "i"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    path = tmp_path / "gather.onnx"
    opset = helper.make_opsetid("", 13)
    graph = helper.make_graph(nodes, "g", [x, i], [y])
    path.write_bytes(helper.make_model(graph, ir_version=8, opset_imports=[opset]).SerializeToString())
    faster(monkeypatch, (2.0, 1.0))
    inputs = {"x": np.ones(3, np.float32), "i": np.array([0, 1, 9])}
    (found,) = session_of_file(path).tune(inputs=inputs, seconds=0).measurements
    assert (found.chosen, list(found.seconds)) == ("rival", ["onnxruntime", "rival"])


@pytest.mark.parametrize(
    ("times", "chosen"), [((1.0, 2.0, 3.0), UNCOMPILED), ((3.0, 1.0, 2.0), "onnxruntime"), ((3.0, 2.0, 1.0), "rival")]
)
def test_tune_compiles_dynamic_shapes_if_faster(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, times: tuple[float, ...], chosen: str
) -> None:
    path = write(tmp_path / "dynamic.onnx")
    made = session_of_file(path)
    check_session(made)
    faster(monkeypatch, times)
    (found,) = made.tune(seconds=0).measurements  # the shapes in use
    assert (found.subject, found.chosen, list(found.seconds)) == (
        "x [2, 3]",
        chosen,
        [UNCOMPILED, "onnxruntime", "rival"],
    )
    for each in (made, session_of_file(path)):
        check_session(each)
        is_compiled = each.shapes().get("x [2, 3]") == "compiled"
        assert is_compiled == (chosen != UNCOMPILED)
        assert (engine_line(each) == f"engine: {verdict(times, chosen)}") == is_compiled
        each.run(None, {"x": np.zeros((5, 3), np.float32)})
        assert each.shapes()["x [5, 3]"].startswith(UNCOMPILED)  # other shapes go as before
    never = session_of_file(path, specialise="never")
    check_session(never)
    assert list(never.shapes().values()) == [UNCOMPILED]


@pytest.mark.parametrize("chosen", [UNCOMPILED, "onnxruntime", "rival"])
@pytest.mark.parametrize("is_begun", [False, True], ids=["waiting", "begun"])
def test_shapes_in_compilation_follow_tuning(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_begun: bool, chosen: str
) -> None:
    compile_on, begun, tuned = ShapeCache.compile_on, Event(), Event()

    def late(cache: ShapeCache, name: str, trace: Trace, whole: bool = False) -> CompiledModel:
        made = compile_on(cache, name, trace, whole)
        if whole:  # in the background
            begun.set()
            assert tuned.wait(60)
        return made

    monkeypatch.setattr(ShapeCache, "compile_on", late)
    made = session_of_file(write(tmp_path / "dynamic.onnx"), specialise="recurring")
    if not is_begun:
        background.put(lambda: tuned.wait(60))
    check_session(made)
    assert not is_begun or begun.wait(60)
    times = [1.0 if each == chosen else 2.0 for each in WAYS]
    faster(monkeypatch, times)
    made.tune(seconds=0)
    tuned.set()
    ow.lazy.wait()
    check_session(made)
    assert len(compiled_models(made)) == (chosen != UNCOMPILED)
    assert verdict(times, chosen) in made.explain()
    assert begun.is_set() == is_begun
    assert len(made.tune(seconds=0).measurements) == 1  # the shapes are still known to be in use


@pytest.mark.parametrize(
    ("seconds", "builds", "chosen", "says_why"),
    [
        ((1e-3, 0.85e-3), (5.0, 5.0), "compiled", False),  # what both take to build is no reason
        ((0.050, 0.046), (20.0, 19.9), "compiled", False),
        ((1e-3, 0.98e-3), (5.0, 5.0), "own", False),  # within the noise
        ((1e-3, 0.9e-3), (0.03, 0.09), "own", True),  # 500 runs save 50 ms
        ((1e-3, 0.8e-3), (0.03, 0.09), "compiled", False),
    ],
)
def test_choose_weighs_build_time(
    seconds: tuple[float, float], builds: tuple[float, float], chosen: str, says_why: bool
) -> None:
    names = ("own", "compiled")
    times, built = (dict(zip(names, each, strict=True)) for each in (seconds, builds))
    rounds = {name: [each] * tuning.MIN_ROUNDS for name, each in times.items()}
    found, why = tuning.choose(names, [rounds], built)
    assert (found, bool(why)) == (chosen, says_why)


NOISY = {  # rounds of three ways; the median of b is 0.9 of that of a
    "a": [100.0, 300, 100, 200, 100, 150, 100],
    "b": [90.0, 150, 180, 90, 90, 300, 90],
    "c": [101.0, 299, 103, 202, 99, 151, 100],
}


@pytest.mark.parametrize(
    ("conditions", "builds", "chosen", "why"),
    [
        ([NOISY], {}, "a", r"the lead of b is noise: 0\.90x \(0\.70 to 1\.35\)"),
        ([{"a": NOISY["a"], "b": [t * 0.8 for t in NOISY["a"]]}], {}, "b", ""),  # all rounds agree
        ([{"a": NOISY["a"], "b": [t * 0.8 for t in NOISY["a"]]}, NOISY], {}, "a", r"the lead of b .*"),
        ([{"a": [1.0] * 5, "b": [0.8] * 5, "c": [0.79] * 5}], {}, "b", ""),  # the first of equal ways
        ([{"a": [1.0] * 5, "b": [0.8] * 5, "c": [0.7] * 5}], {}, "c", ""),
        # Ways that are equally fast: a shorter build is no reason to replace the first.
        ([{"a": [1e-5] * 5, "b": [1e-5] * 5}], {"a": 0.06, "b": 0.02}, "a", ""),
        ([{"a": [1e-3] * 5, "b": [9e-4] * 5}], {"b": 0.049}, "a", r"b .* 556 runs save 55\.60 ms: .* is within noise"),
    ],
)
def test_choose_keeps_first_way_unless_quartiles_of_ratios_agree(
    conditions: list[dict[str, list[float]]], builds: dict[str, float], chosen: str, why: str
) -> None:
    found, note = tuning.choose(list(conditions[0]), conditions, builds)
    assert found == chosen
    assert re.fullmatch(why, note), note


def test_choose_is_right_for_equal_ways_on_busy_machine() -> None:
    """A median of medians is noise: with these times, it takes the second way in 44% of measurements."""
    generator = np.random.default_rng(0)
    draws = np.exp(0.4 * generator.standard_normal((400, 2, 10)))
    medians = np.median(draws, axis=2)
    assert (medians[:, 1] < 0.97 * medians[:, 0]).mean() > 0.3
    choices = [tuning.choose("ab", [dict(zip("ab", each.tolist(), strict=True))], {})[0] for each in draws]
    assert choices.count("b") <= 4
    choices = [tuning.choose("ab", [{"a": a.tolist(), "b": (0.25 * b).tolist()}], {})[0] for a, b in draws]
    assert choices.count("b") >= 300


@pytest.mark.parametrize("rows", [2, "rows"])
def test_tune_measures_calls_as_sessions_repeat_them(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: int | str
) -> None:
    """Without the checks of calls, compiling a small model seemed to gain what they take."""
    made: list[Any] = []

    def record(function: Any) -> Any:
        def call(*args: Any) -> Any:
            made.append(function)
            return function(*args)

        return call

    for function in (direct_call, RepeatedCall):
        monkeypatch.setattr(session_tuning, function.__name__, record(function))
    (measurement,) = session_of_file(write(tmp_path / "m.onnx", rows)).tune([{"x": [2, 3]}], seconds=0).measurements
    assert list(measurement.seconds) == list(WAYS)
    assert made[-3:] == [direct_call, RepeatedCall, RepeatedCall]


def test_time_of_a_round_is_the_median_of_calls(rival: Rival, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for a processor multiply the mean."""
    calls = cycle([0.001, 0.02, 0.001])
    monkeypatch.setattr(tuning, "count_calls", lambda runs, seconds: dict.fromkeys(runs, 6))
    monkeypatch.setattr(tuning, "seconds_of", lambda run, count: next(calls) / count)
    times: dict[str, list[float]] = {"a": []}
    tuning._alternate({"a": list}, times, 0)
    assert times["a"] == [0.001] * tuning.MIN_ROUNDS


@pytest.mark.long
def test_tuned_shapes_of_models_with_many_weights_are_compiled(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write(tmp_path / "large.onnx", weights=2**20)
    expected = np.repeat(-X.sum(1, keepdims=True), 3, axis=1)
    made = session_of_file(path)
    np.testing.assert_array_equal(made.run(None, {"x": X})[0], expected)
    assert made._parts.shape_cache.only_uncompiled is not None  # its weights are more than `program_bytes`
    faster(monkeypatch, (3.0, 2.0, 1.0))
    made.tune([{"x": [2, 3]}, {"x": [1, 3]}], seconds=0)
    for each in (made, session_of_file(path)):
        for rows in (5, 2, 1, 2, 1):
            np.testing.assert_array_equal(each.run(None, {"x": X[:rows]})[0], expected[:rows])
        assert {text for text, what in each.shapes().items() if what == "compiled"} == {"x [2, 3]", "x [1, 3]"}


def test_session_with_sleeping_threads_chooses_engine(rival: Rival, tmp_path: Path) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    made = ow.InferenceSession(write(tmp_path / "static.onnx", 2), options, providers=["CPUExecutionProvider"])
    assert made.context.power_preference == "low-power"
    assert engine_line(made) == UNTRIED


def test_session_tune_accepts_inputs(rival: Rival, tmp_path: Path) -> None:
    made = session_of_file(write(tmp_path / "dynamic.onnx"))
    (found,) = made.tune(inputs={"x": X}, seconds=0).measurements
    assert found.subject == "x [2, 3]"


def test_session_tune_rejects_invalid_arguments(rival: Rival, tmp_path: Path) -> None:
    path = write(tmp_path / "dynamic.onnx")
    made = session_of_file(path)
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, "tune: no shapes are in use yet; run the model first, or pass shapes"),
        ({"shapes": [{"x": [1, 3]}], "inputs": {"x": X}}, "tune: shapes and inputs must not be given both"),
        ({"shapes": {"x": [1, 3]}}, "tune: shapes must be a list with a shape by name for each input, got"),
        ({"inputs": {"z": X}}, r"tune: inputs must hold \\['x'\\]"),
        ({"shapes": [{"x": [1, 4]}]}, "input 'x'"),
        ({"seconds": -1}, "tune: seconds must be a number >= 0, got -1"),
    ]
    for given, message in refused:
        with pytest.raises(ow.ValidationError, match=message.replace("\\\\", "\\")):
            made.tune(**given)
    with pytest.raises(ow.ValidationError, match="tune: the session compiles nothing: specialise='never'"):
        session_of_file(path, specialise="never").tune([{"x": [1, 3]}])


def test_session_tune_measures_models_that_must_be_compiled(rival: Rival, tmp_path: Path) -> None:
    path = write(tmp_path / "dynamic.onnx")
    (found,) = session_of_file(path, specialise="never", fallback="error").tune([{"x": [2, 3]}], seconds=0).measurements
    assert found.chosen in found.seconds
    assert UNCOMPILED not in found.seconds
    reference = ow.ml.create_context(device="reference")
    made = ow.InferenceSession(path, reference, specialise="never")
    assert str(made.tune([{"x": [2, 3]}])).endswith("reference  there is no other engine for it")


def test_session_tune_with_one_engine(tmp_path: Path) -> None:
    made = ow.InferenceSession(write(tmp_path / "m.onnx"), context=ow.ml.create_context(backend="onnxruntime"))
    assert str(made.tune([{"x": [2, 3]}])).endswith("onnxruntime  there is no other engine for it")
    check_session(made)


def test_explain_after_tuning_calls_only_other_shapes_unverified(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    faster(monkeypatch, (1.0, 2.0, 3.0))
    for rows, rest in ((2, []), ("rows", ["other shapes: rival not verified: switched off"])):
        path = write(tmp_path / f"{rows}.onnx", rows)
        assert "rival not verified: switched off" in session_of_file(path).explain()
        session_of_file(path).tune([{"x": [2, 3]}], seconds=0)
        text = session_of_file(path).explain()
        assert [line for line in text.splitlines() if "not verified" in line] == rest
        assert "rival verified, 3x" in text


def test_tune_command_tunes_and_lists(rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPWEAVE_DEVICE", "cpu")
    monkeypatch.setenv("COLUMNS", "150")
    path, runner = str(write(tmp_path / "dynamic.onnx")), CliRunner()
    assert runner.invoke(app, ["tune", "--list"]).output == "nothing is kept\n"
    faster(monkeypatch, (3.0, 2.0, 1.0))
    done = runner.invoke(app, ["tune", path, "--shape", "x=4x3", "--shape", "rows=7"])
    lines, (effect, plain, *others) = done.output.splitlines()[:3], done.output.splitlines()[3:]
    assert effect.startswith(
        "takes effect in sessions of this model that are created from now on, for calls with x [4, 3]"
    )
    assert plain.startswith(
        "calls with other shapes run on ONNX Runtime, uncompiled, because no other way to run them was"
    )
    ways = [f"calls with x [{n}, 3] run on rival, compiled when a shape is first used, because" for n in (4, 7)]
    assert [line.startswith(way) for line, way in zip(others, ways, strict=True)] == [True, True]
    assert session_of_file(Path(path)).explain().splitlines()[:3] == [plain, *others]
    assert [line.split()[:4] for line in lines[1:]] == [["dynamic.onnx:", "x", f"[{n},", "3]"] for n in (4, 7)], done
    assert all(line.split()[-1] == "rival" for line in lines[1:])
    listed = runner.invoke(app, ["tune", "--list"]).output
    assert "rival 1" in listed.splitlines()[0]
    assert all(line.strip() in listed for line in lines[1:])
    for args, message in {
        ("tune",): "give either",
        ("tune", path, "--shape", "z=3"): "no input or dimension 'z'",
        ("tune", path, "--shape", "rows=4,x=4,3"): "write rows=4,x=4x3",
    }.items():
        failed = runner.invoke(app, list(args))
        assert (failed.exit_code, message in failed.output) == (2, True), failed.output


def test_tune_command_interrupted_keeps_measurements(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPWEAVE_DEVICE", "cpu")
    calls: list[int] = []

    def alternate(runs: Any, times: dict[str, list[float]], _: float) -> None:
        calls.append(1)
        for each in times.values():
            each += [1.0] * (tuning.MIN_ROUNDS if len(calls) == 1 else 1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "_alternate", alternate)
    path = str(write(tmp_path / "dynamic.onnx"))
    done = CliRunner().invoke(app, ["tune", path, "--shape", "rows=1", "--shape", "rows=2", "--shape", "rows=3"])
    assert done.exit_code == 130
    assert "x [1, 3]" in done.output
    assert "x [2, 3]" not in done.output
    assert "interrupted; what the table shows is kept" in done.output


def test_tune_command_interrupted_early_keeps_nothing(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPWEAVE_DEVICE", "cpu")

    def alternate(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "_alternate", alternate)
    done = CliRunner().invoke(app, ["tune", str(write(tmp_path / "dynamic.onnx"))])
    assert done.exit_code == 130
    assert done.output == "interrupted before the first shape was measured; nothing is kept\n"


@pytest.mark.long
def test_tune_command_suggests_extra_with_one_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, listed = str(write(tmp_path / "dynamic.onnx")), backends.devices()
    other = backends.Device("reference", "cpu", "other", "an engine", False, "pip install 'opweave[other]'")
    monkeypatch.setattr(backends, "devices", lambda: [*listed, other])
    advice = "pip install 'opweave[other]' adds an engine"
    assert CliRunner().invoke(app, ["tune", path, "--device", "reference"]).output.splitlines()[-1] == advice
    assert advice not in CliRunner().invoke(app, ["tune", path, "--device", "cpu", "--seconds", "0"]).output
