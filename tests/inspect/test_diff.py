"""`opweave.diff`: it names the operation with a planted error, and none where there is no error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import wpt
from typer.testing import CliRunner

import opweave as ow
from opweave.backends import Device, find
from opweave.backends.reference import Reference, reference
from opweave.cli import app
from opweave.context.graph import recorded_graph
from opweave.core.graph import Node
from opweave.inspect.diff import compare
from opweave.inspect.diff.measure import BINS, Values, error
from opweave.inspect.diff.places import Side
from opweave.inspect.diff.tolerance import LONG_SUM, Tolerance, ops_with_rules, tolerance_of
from opweave.ops import Operations
from opweave.support.errors import MLError

CPU = ow.ml.create_context(device="cpu", backend="onnxruntime")
REFERENCE = ow.ml.create_context(device="reference")
RANDOM = np.random.default_rng(3)
SHAPES = {(8, 3, 3, 3): 27, (8, 8, 3, 3): 72, (32, 10): 32}
WEIGHTS = [(RANDOM.standard_normal(shape) / np.sqrt(terms)).astype("float32") for shape, terms in SHAPES.items()]


def network(
    context: ow.MLContext, weights: list[np.ndarray] = WEIGHTS, gain: float = 1.0, data_type: Any = "float32"
) -> ow.MLGraph:
    """Two convolutions, a residual connection, and a classifier of 10 classes."""
    b = ow.MLGraphBuilder(context)
    first, second, last = (weight.astype(data_type) for weight in weights)
    x = b.input("x", data_type, [1, 3, 8, 8])
    y = b.relu(b.conv2d(x, b.constant(first), padding=[1, 1, 1, 1], label="first"), label="clip")
    z = b.conv2d(y, b.constant(second), padding=[1, 1, 1, 1], label="second")
    z = b.add(b.linear(z, alpha=gain, label="gain"), y, label="residual")
    z = b.average_pool2d(z, window_dimensions=[4, 4], strides=[4, 4], label="pool")
    return b.build({"y": b.softmax(b.matmul(b.reshape(z, [1, 32]), b.constant(last), label="classify"), 1)})


def test_engines_are_within_tolerance_of_the_reference() -> None:
    found = ow.diff(network(CPU))
    assert found.first is None, str(found)
    assert (found.on, found.against, found.is_complete) == ("cpu (onnxruntime)", "reference", True)
    titles = ["conv2d 'first'", "relu 'clip'", "conv2d 'second'", "linear 'gain'", "add 'residual'"]
    assert [row.title for row in found.rows][:5] == titles
    assert all(row.own.ratio <= 1 and row.total.relative < 1e-5 for row in found.rows)
    assert found.outputs[0].total.relative < 1e-5
    assert "8 operations: all within their tolerances" not in str(found)
    assert "9 operations: all within their tolerances" in str(found)


def test_diff_compares_each_operation_on_the_same_inputs() -> None:
    """An error of the first operation does not make the second one differ on its own; end to end it does."""
    weights = [WEIGHTS[0].copy(), *WEIGHTS[1:]]
    weights[0][2, 1, 0, 2] += 1
    found = ow.diff(network(CPU, weights), network(CPU))
    assert [row.title for row in found.found] == ["conv2d 'first'"]
    assert found.rows[1].own.largest == 0
    assert found.rows[2].total.relative > 1e-3 > found.rows[2].own.relative


def test_diff_locates_changed_weight() -> None:
    weights = [WEIGHTS[0], WEIGHTS[1].copy(), WEIGHTS[2]]
    weights[1][4, 5, 0, 2] = 9.5
    found = ow.diff(network(CPU, weights), network(CPU))
    assert found.first is not None
    assert (found.first.title, found.first.verdict) == ("conv2d 'second'", "differs")
    (change,) = found.first.changes
    assert change.startswith(
        "filter float32[8, 8, 3, 3] differs in 1 of 576 elements, most at [4, 5, 0, 2]: 9.5, expected "
    )
    assert "first difference: operation 2, conv2d 'second'" in str(found)
    assert found.outputs[0].total.relative > 1e-4


def test_diff_finds_weight_change_below_rounding() -> None:
    weights = [WEIGHTS[0], WEIGHTS[1].copy(), WEIGHTS[2]]
    weights[1][0, 0, 0, 0] = np.nextafter(weights[1][0, 0, 0, 0], np.float32(9))
    first = ow.diff(network(CPU, weights), network(CPU)).first
    assert first is not None
    assert (first.title, first.verdict, first.own.beyond) == ("conv2d 'second'", "changed", 0)


def test_diff_finds_changed_attribute() -> None:
    first = ow.diff(network(CPU, gain=1.5), network(CPU)).first
    assert first is not None
    assert (first.title, first.verdict) == ("linear 'gain'", "differs")
    assert first.changes == ("alpha is 1.5, expected 1.0",)


class HalfUp(Reference):
    """The reference, but for one operation, which rounds differently."""

    name = "half-up"

    def __init__(self, op: Any, rule: Callable[..., Any], when: Callable[..., bool] | None = None) -> None:
        super().__init__()
        self.rules = {**reference.rules}
        others = self.rules.pop(op)
        self.lower(op, when=when)(rule)
        if when is not None:
            self.rules[op] += others

    def context(self) -> ow.MLContext:
        return ow.MLContext(self, Device("half-up", "cpu", self.name, "a test's"), "default")


def test_diff_finds_different_rounding() -> None:
    def half_up(input: np.ndarray) -> np.ndarray:
        return np.floor(input + 0.5)

    context = HalfUp(Operations.round_even, half_up).context()
    b = ow.MLGraphBuilder(context)
    x = b.input("x", "float32", [4])
    graph = b.build({"y": b.abs(b.round_even(b.mul(x, 0.5, label="half"), label="whole"))})
    feed = {"x": np.float32([1, 3, 5, 6])}
    first = ow.diff(graph, inputs=feed).first
    assert first is not None
    assert (first.title, first.tolerance, first.own.beyond) == ("round_even 'whole'", "none: exactly equal", 2)
    assert (first.own.where, first.own.got, first.own.expected) == ((0,), 1.0, 0.0)
    assert first.reads[0].values == Values(0.5, 3.0, pytest.approx(np.sqrt(17.75 / 4)))
    assert ow.diff(graph, inputs={"x": np.float32([2, 5, 4, 6])}).first is not None
    assert ow.diff(graph, inputs={"x": np.float32([2, 4, 7, 6])}).first is None


def test_diff_finds_coarse_softmax() -> None:
    def coarse(input: np.ndarray, axis: int) -> np.ndarray:
        made = np.exp(input - input.max(axis, keepdims=True))
        return np.floor(made / made.sum(axis, keepdims=True) * 4096 + 0.5) / 4096

    first = ow.diff(network(HalfUp(Operations.softmax, coarse).context())).first
    assert first is not None
    assert first.title == "softmax"


def test_diff_finds_float16_overflow_on_both_sides() -> None:
    graph = network(REFERENCE, gain=60000.0, data_type="float16")
    first = ow.diff(graph).first
    assert first is not None
    assert (first.title, first.verdict) == ("linear 'gain'", "overflow")
    assert "beyond 65,504: up to " in first.overflow


def test_diff_finds_float16_overflow_against_float32() -> None:
    feed = {"x": RANDOM.standard_normal((1, 3, 8, 8)).astype("float16")}
    half, single = network(REFERENCE, gain=60000.0, data_type="float16"), network(REFERENCE, gain=60000.0)
    found = ow.diff(half, single, feed)
    assert found.first is not None
    assert (found.first.title, found.first.verdict) == ("linear 'gain'", "overflow")
    assert ow.diff(network(REFERENCE, data_type="float16"), network(REFERENCE), feed).first is None


def converted(context: ow.MLContext, gain: float = 1.0, back: bool = False) -> ow.MLGraph:
    """A network of float32 in float16 between two conversions, as tools make it; `back` in the middle, too."""
    b = ow.MLGraphBuilder(context)
    x = b.cast(b.input("x", "float32", [4, 32]), "float16", label="in")
    y = b.matmul(x, b.constant(WEIGHTS[2].astype("float16")), label="dense")
    y = b.linear(y, alpha=gain, label="gain")
    if back:  # as around an operation that is kept in float32
        y = b.cast(b.softmax(b.cast(y, "float32", label="up"), 1), "float16", label="down")
    else:
        y = b.softmax(y, 1)
    return b.build({"y": b.cast(y, "float32", label="out")})


def single(context: ow.MLContext, gain: float = 1.0) -> ow.MLGraph:
    """The same network in float32."""
    b = ow.MLGraphBuilder(context)
    y = b.matmul(b.input("x", "float32", [4, 32]), b.constant(WEIGHTS[2]), label="dense")
    return b.build({"y": b.softmax(b.linear(y, alpha=gain, label="gain"), 1)})


@pytest.mark.parametrize("back", [False, True])
def test_diff_pairs_float16_with_float32(back: bool) -> None:
    found = ow.diff(converted(CPU, back=back), single(CPU))
    assert found.first is None, str(found)
    assert found.is_complete
    middle = ["cast 'up'", "softmax", "cast 'down'"] if back else ["softmax"]
    assert [row.title for row in found.rows] == ["cast 'in'", "matmul 'dense'", "linear 'gain'", *middle, "cast 'out'"]
    assert 0 < found.outputs[0].total.relative < 1e-2
    other_way = ow.diff(single(CPU), converted(CPU, back=back))
    assert other_way.first is None, str(other_way)
    assert [row.title for row in other_way.rows] == ["matmul 'dense'", "linear 'gain'", "softmax"]
    both = ow.diff(converted(CPU, back=back))
    assert both.first is None, str(both)


def test_diff_finds_overflow_between_casts() -> None:
    found = ow.diff(converted(CPU, gain=30000.0), single(CPU, gain=30000.0))
    assert found.first is not None
    assert (found.first.title, found.first.verdict) == ("linear 'gain'", "overflow")
    large = np.full((4, 32), 70000, "float32")
    found = ow.diff(converted(CPU), single(CPU), {"x": large})
    assert found.first is not None
    assert (found.first.title, found.first.verdict) == ("cast 'in'", "overflow")


def test_diff_does_not_blame_float16_for_rounded_inputs() -> None:
    """The logarithm of 9e-8 and of the number next to it in float16 differ by 0.29."""
    builder = ow.MLGraphBuilder(CPU)
    half = builder.log(builder.cast(builder.input("x", "float32", [2]), "float16"))
    other = ow.MLGraphBuilder(CPU)
    values = {"x": np.float32([8.961e-08, 1.71])}
    found = ow.diff(builder.build({"y": half}), other.build({"y": other.log(other.input("x", "float32", [2]))}), values)
    assert [row.verdict for row in found.rows] == ["ok", "ok"], str(found)


def test_diff_finds_changed_weight_between_casts() -> None:
    b = ow.MLGraphBuilder(CPU)
    weight = WEIGHTS[2].copy()
    weight[3, 4] += 0.5
    y = b.matmul(b.input("x", "float32", [4, 32]), b.constant(weight), label="dense")
    found = ow.diff(converted(CPU), b.build({"y": b.softmax(b.linear(y, label="gain"), 1)}))
    assert [row.title for row in found.found] == ["matmul 'dense'"]
    assert "differs in 1 of 320 elements, most at [3, 4]" in found.found[0].changes[0]


def test_diff_compares_fused_operations_separately() -> None:
    """OpenVINO adds 3 to the sums of a convolution before it rounds: near -3, the product is far from that of its operands."""
    pytest.importorskip("openvino")
    b = ow.MLGraphBuilder(CPU)
    weights = np.random.default_rng(0).standard_normal((16, 16, 1, 1)).astype("float32")
    x = b.conv2d(b.input("x", "float32", [1, 16, 64, 64]), b.constant(weights))
    graph = b.build({"y": b.mul(x, b.clamp(b.add(x, 3.0), min_value=0, max_value=6), label="hard swish")})
    found = ow.diff(graph, against=ow.ml.create_context(device="cpu", backend="openvino"))
    assert found.first is None, str(found)


def test_infinities_that_are_meant_are_no_overflow() -> None:
    b = ow.MLGraphBuilder(REFERENCE)
    x = b.input("x", "float16", [3])
    graph = b.build({"y": b.exp(b.log(x)), "z": b.reciprocal(x)})
    with np.errstate(divide="ignore"):
        assert ow.diff(graph, inputs={"x": np.float16([0, 1, 2])}).first is None


def test_nan_on_one_side_is_found() -> None:
    def broken(input: np.ndarray) -> np.ndarray:
        return np.where(input > 1, np.nan, np.maximum(input, 0))

    context = HalfUp(Operations.relu, broken).context()
    found = ow.diff(network(context))
    assert found.first is not None
    assert found.first.title == "relu 'clip'"
    assert found.first.own.ratio == np.inf
    assert json.loads(json.dumps(found.to_dict()))["operations"][1]["own"]["ratio"] == "inf"


def test_slices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network(CPU)
    whole = ow.diff(graph).to_dict()
    for nodes, size in ((1, 1 << 30), (4, 1 << 30), (100, 1), (100, 3000)):
        monkeypatch.setattr(compare, "SLICE_NODES", nodes)
        monkeypatch.setattr(compare, "SLICE_BYTES", size)
        assert [row.title for row in ow.diff(graph).rows] == [row["title"] for row in whole["operations"]]
        assert ow.diff(graph).first is None


def test_results_are_freed_once_nothing_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    b = ow.MLGraphBuilder(REFERENCE)
    x = b.input("x", "float32", [4])
    for _ in range(40):
        x = b.neg(x)
    most = 0
    step = Side.step

    def measured(self: Any, nodes: Any, values: dict[Any, Any]) -> None:
        nonlocal most
        step(self, nodes, values)
        most = max(most, len(values))

    monkeypatch.setattr(Side, "step", measured)
    assert ow.diff(b.build({"y": x})).is_complete
    assert most == compare.SLICE_NODES + 1


def test_operations_with_several_results_and_integers() -> None:
    b = ow.MLGraphBuilder(CPU)
    x, indices = b.input("x", "float32", [4, 6]), b.input("i", "int32", [2])
    left, right = b.split(x, 2, axis=1)
    picked = b.gather(left + right, indices)
    largest = b.arg_max(picked, 1, output_data_type="int64")
    graph = b.build({"a": largest, "b": b.cast(picked, "uint8"), "c": left})
    found = ow.diff(graph)
    assert found.first is None, str(found)
    assert {output.name for output in found.outputs} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda b, x: {"y": b.tanh(b.abs(x))}, r"differ at operation 0: relu 'r' and abs"),
        (lambda b, x: {"y": b.tanh(b.relu(b.relu(x)))}, r"differ at operation 1: tanh and relu"),
        (lambda b, x: {"y": b.relu(x)}, r"have 2 operations and 1 operation"),
        (lambda b, x: {"y": b.tanh(b.relu(b.reshape(x, [4])))}, r"differ at operation 0: relu 'r' and reshape"),
        (lambda b, x: {"y": b.tanh(b.relu(x)), "z": b.tanh(x)}, r"have 2 operations and 3 operations"),
    ],
)
def test_graphs_of_different_structure_are_refused(other: Callable[..., Any], message: str) -> None:
    def build(made: Callable[..., Any]) -> ow.MLGraph:
        b = ow.MLGraphBuilder(CPU)
        return b.build(made(b, b.input("x", "float32", [2, 2])))

    graph = build(lambda b, x: {"y": b.tanh(b.relu(x, label="r"))})
    with pytest.raises(ow.ValidationError, match=message):
        ow.diff(graph, build(other))


@pytest.mark.parametrize(
    ("inputs", "listed"),
    [
        ({"x": (2, 3)}, r"x float32\[2, 3\]"),
        ({"a": (2, 2), "b": (3,)}, r"a float32\[2, 2\], b float32\[3\]"),
    ],
)
def test_different_inputs_are_listed(inputs: dict[str, tuple[int, ...]], listed: str, tmp_path: Path) -> None:
    def graph(inputs: dict[str, tuple[int, ...]]) -> ow.MLGraph:
        b = ow.MLGraphBuilder(CPU)
        return b.build({f"{name}_": b.relu(b.input(name, "float32", shape)) for name, shape in inputs.items()})

    sides = graph({"x": (2, 2)}), graph(inputs)
    message = rf"diff: the models have different inputs: x float32\[2, 2\] in one, {listed} in the other"
    with pytest.raises(ow.ValidationError, match=message):
        ow.diff(*sides)
    files = tmp_path / "a.onnx", tmp_path / "b.onnx"
    for side, file in zip(sides, files, strict=True):
        ow.onnx.save(side, file)
    with pytest.raises(ow.ValidationError, match=message):
        ow.diff(*files, inputs={"x": np.ones((2, 2), "float32")})


def test_diff_names_missing_back_end(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Device("cpu", "cpu", "openvino", "OpenVINO", available=False, hint="pip install 'opweave[openvino]'")
    monkeypatch.setattr(type(find("openvino")), "devices", lambda _: [missing])
    monkeypatch.setattr(type(find("openvino")), "device_named", lambda *_: None)
    message = r"'openvino' is not available here: pip install 'opweave\[openvino\]'; 'cpu' has: onnxruntime$"
    with pytest.raises(ow.NotSupportedError, match=rf"^device 'cpu' of back end {message}"):
        ow.diff(network(CPU), on="cpu:openvino")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": {}}, r"diff: inputs must hold \['x'\]; got none"),
        ({"inputs": {"x": np.zeros(3, "float32")}}, r"diff: input 'x' must have shape \[1, 3, 8, 8\]"),
        ({"inputs": [1]}, "inputs must map names to arrays"),
        ({"tolerance": -1}, "tolerance must be a finite number from 0 on, got -1"),
        ({"against": "cpu:nothing"}, "there is no device 'cpu:nothing'"),
        ({"against": "cpu@int8"}, "the precision of 'cpu@int8' must be one of float32, ieee"),
        ({"against": 3}, r"a place must be a context or DEVICE\[:BACKEND\]\[@PRECISION\], got 3"),
        ({"against": "reference@bfloat16"}, "cannot compute so"),
    ],
)
def test_bad_arguments_are_explained(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MLError, match=message):
        ow.diff(network(CPU), **arguments)


def test_diff_rejects_destroyed_graph() -> None:
    graph = network(CPU)
    graph.destroy()
    with pytest.raises(ow.InvalidStateError):
        ow.diff(graph)


# Tolerances ----------------------------------------------------------------------------------------------------------


def single_nodes() -> Iterator[tuple[wpt.Case, Node]]:
    """The cases of the Web Platform Tests that consist of one operation, and their nodes."""
    for case in wpt.cases("conformance"):
        if len(case["operators"]) != 1 or wpt.is_large(case):
            continue
        graph = recorded_graph(wpt.build_conformance(REFERENCE, case)[0])
        (node,) = graph.nodes
        yield case, node


LOOSER = {"cast", "gru", "gru_cell", "lstm", "lstm_cell", "resample2d"}
"""Here the limit is larger than in the cases, whose sums have 6 terms, or which copy where scales are whole, or which cast
numbers that the other type holds."""


def test_diff_tolerances_equal_wpt() -> None:
    seen, wrong = set(), []
    for case, node in single_nodes():
        found, wanted = tolerance_of(node), case["tolerance"]
        seen.add(node.op.name)
        own = found.absolute if wanted["metric"] == "ATOL" else found.ulp
        fits = own >= wanted["value"] if node.op.name in LOOSER else own == wanted["value"]
        if not fits and found.terms <= LONG_SUM:
            wrong.append(f"{case['id']}: {own}, {wanted}")
    assert not wrong, "\n".join(wrong[:20])
    # Composites that are the same sums over any number of axes have no cases.
    assert ops_with_rules() - seen == {"average_pool", "conv_transpose", "convolution"}


def test_long_sums_grow_with_the_square_root() -> None:
    def limit(terms: int) -> float:
        b = ow.MLGraphBuilder(CPU)
        node = b.matmul(b.input("x", "float32", [1, terms]), b.input("y", "float32", [terms, 1])).node
        assert node is not None
        return tolerance_of(node).ulp

    assert (limit(LONG_SUM), limit(4 * LONG_SUM), limit(100 * LONG_SUM)) == (128, 256, 1280)


def test_sums_whose_terms_cancel_may_be_off_in_units_of_their_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of many has terms a million times as large as all others, which add up to little."""
    b = ow.MLGraphBuilder(CPU)
    a = np.ones((1 << 16, 32), "float32")
    a[3] = np.where(np.arange(32) % 2, -1e6, 1e6)
    x = b.input("x", "float32", [32, 4])
    graph = b.build({"y": b.matmul(b.constant(a), x)})
    feed = {"x": np.float32(1) + np.float32(1e-3) * RANDOM.standard_normal((32, 4)).astype("float32")}
    assert ow.diff(graph, inputs=feed).first is None
    monkeypatch.setattr(compare, "LINEAR", frozenset())  # a typical element does not tell
    assert ow.diff(graph, inputs=feed).first is not None


def test_denormal_numbers_may_be_flushed() -> None:
    def flushing(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.add(*(np.where(np.abs(each) < np.finfo("float32").tiny, 0, each) for each in (a, b)))

    b = ow.MLGraphBuilder(HalfUp(Operations.add, flushing).context())
    graph = b.build({"y": b.add(b.input("x", "float32", [1]), b.input("z", "float32", [1]))})
    assert ow.diff(graph, inputs={"x": np.float32([-4.4e-38]), "z": np.float32([1e-39])}).first is None
    assert ow.diff(graph, inputs={"x": np.float32([1e-30]), "z": np.float32([1e-39])}).rows[0].own.largest == 0


@pytest.mark.parametrize(
    ("got", "expected", "ratio", "beyond"),
    [
        ([1, 2], [1, 2], 0, 0),
        ([np.nan, np.inf, 1], [np.nan, np.inf, 1], 0, 0),
        ([np.inf, 1], [-np.inf, 1], np.inf, 1),
        ([np.nan, 1], [1, 1], np.inf, 1),
        ([1 + 2**-20, 1], [1, 1], 2, 1),
    ],
)
def test_errors_of_special_values(got: list[float], expected: list[float], ratio: float, beyond: int) -> None:
    a, e = np.float32(got), np.float32(expected)
    found = error(a, e, Values.of(e), tolerance=Tolerance(4))
    assert (found.ratio, found.beyond) == (ratio, beyond)
    assert found.equal + sum(found.histogram) == len(got)


def test_nothing_but_infinity_is_infinity() -> None:
    """The limits of an infinite number are infinite, too."""
    expected = np.float32([np.inf, 1])
    for value in np.nan, -np.inf, 5:
        got = np.float32([value, 1])
        for tolerance, magnitudes in (
            (Tolerance(0, terms=4), np.array([np.inf, 2])),
            (Tolerance(0, rounding=0.01), None),
        ):
            result = error(got, expected, Values.of(expected), tolerance=tolerance, magnitudes=magnitudes)
            assert (result.ratio, result.beyond) == (np.inf, 1)


def test_large_integers_are_compared_exactly() -> None:
    a, e = np.int64([2**60 + 1]), np.int64([2**60])
    assert error(a, e, Values.of(e), tolerance=Tolerance(0)).beyond == 1
    assert error(e, e, Values.of(e), tolerance=Tolerance(0)).beyond == 0
    assert error(a, e, Values.of(e)).texts == ("1152921504606846977", "1152921504606846976")


@pytest.mark.parametrize("value", [np.float32(1.0000001), np.float64(1 + 2**-52), np.float16(1.001)])
def test_texts_of_neighbours_differ(value: np.floating[Any]) -> None:
    a, e = np.array([value]), np.ones(1, value.dtype)
    got, expected = error(a, e, Values.of(e)).texts
    assert (value.dtype.type(got), expected) == (value, "1")


def test_tolerance_factor_multiplies_limits_of_sums() -> None:
    graph = network(CPU)
    ratios = [max(row.own.ratio for row in ow.diff(graph, tolerance=factor).rows) for factor in (1, 0.1)]
    np.testing.assert_allclose(ratios[1], 10 * ratios[0])
    exact = ow.diff(graph, tolerance=0).first
    assert exact is not None
    assert exact.own.ratio == np.inf
    for factor in (np.inf, np.nan, -1):
        with pytest.raises(ow.ValidationError, match=f"tolerance must be a finite number from 0 on, got {factor}"):
            ow.diff(graph, tolerance=factor)


def test_histograms_have_a_bin_for_each_power_of_ten() -> None:
    e = np.ones(4, "float32")
    found = error(np.float32([1, 1.002, 1.5, 100]), e, Values.of(e))
    counts = dict(zip([*BINS, np.inf], found.histogram, strict=True))
    assert {bin: count for bin, count in counts.items() if count} == {-2: 1, 0: 1, np.inf: 1}
    assert found.equal == 1


# ONNX models and the command line ------------------------------------------------------------------------------------


def onnx_model(path: Path, weight: float = 1.0) -> Path:
    table = np.arange(12, dtype="float32").reshape(3, 4) / 10
    table[1, 2] = weight
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Tanh", ["m"], ["t"], name="squash"),
        helper.make_node("Where", ["keep", "t", "m"], ["y"], name="choose"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3]),
            helper.make_tensor_value_info("keep", TensorProto.BOOL, [4]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(table, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["diff", *map(str, arguments)], terminal_width=200, env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.output


def test_models_are_compared_on_shapes_of_their_inputs(tmp_path: Path) -> None:
    model = onnx_model(tmp_path / "a.onnx")
    feed = {"x": np.ones((5, 3), "float32"), "keep": np.array([True, False, True, False])}
    found = ow.diff(model, inputs=feed, on="cpu:onnxruntime")
    assert found.first is None
    assert [row.result for row in found.rows] == ["float32[5, 4]"] * 3
    assert ow.diff(model, fix_shapes={"batch": 2}).rows[0].result == "float32[2, 4]"
    assert ow.diff(model.read_bytes()).rows[0].result == "float32[1, 4]"


def test_command_names_first_difference(tmp_path: Path) -> None:
    a, b = onnx_model(tmp_path / "a.onnx"), onnx_model(tmp_path / "b.onnx", 1.5)
    assert "3 operations: all within their tolerances" in run(a, "--on", "cpu:onnxruntime")
    text = run(a, b, "--fix-shapes", "batch=3", "--json", tmp_path / "d.json", code=1)
    assert "a.onnx and b.onnx: cpu" in text
    assert "first difference: operation 0, matmul 'product'" in text
    assert "b float32[3, 4] differs in 1 of 12 elements, most at [1, 2]: 1, expected 1.5" in text
    assert json.loads((tmp_path / "d.json").read_text())["first"] == 0
    np.savez(tmp_path / "in.npz", x=np.zeros((2, 3), "float32"), keep=np.ones(4, bool))
    assert "float32[2, 4]" in run(a, "--input", tmp_path / "in.npz")
    assert run(a, "--tolerance", "0", "--against", "reference", "--on", "reference")


def test_command_interrupted_shows_partial_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "SLICE_NODES", 1)
    step, calls = Side.step, []

    def stopping(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 4:  # two for each slice
            raise KeyboardInterrupt
        step(*arguments)

    monkeypatch.setattr(Side, "step", stopping)
    text = run(onnx_model(tmp_path / "a.onnx"), code=130)
    assert "interrupted after 1 of 3 operations" in text


# The report ----------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The tags, attributes and texts of a page; elements must be closed in order."""

    VOID = frozenset({"meta", "br", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def classes(self, tag: str) -> list[str]:
        return [attributes.get("class") or "" for name, attributes in self.tags if name == tag]


def report(found: Any, tmp_path: Path) -> Page:
    found.save(tmp_path / "report.html")
    return Page((tmp_path / "report.html").read_text(encoding="utf-8"))


def test_report_marks_first_difference(tmp_path: Path) -> None:
    weights = [WEIGHTS[0], WEIGHTS[1].copy(), WEIGHTS[2]]
    weights[1][4, 5, 0, 2] = 9.5
    page = report(ow.diff(network(CPU, weights), network(CPU)), tmp_path)
    assert [name for name in page.classes("tr") if "first" in name] == ["differs first"]
    assert page.classes("rect").count("box first") == 1
    assert page.classes("svg").count("histogram") == 3
    assert any("First difference: operation 2, conv2d 'second'" in text for text in page.texts)
    links = [attributes for _, attributes in page.tags if attributes.keys() & {"src", "href"}]
    assert links == []
    policy = next(attributes["content"] for _, attributes in page.tags if "http-equiv" in attributes)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def test_report_of_equal_graphs(tmp_path: Path) -> None:
    page = report(ow.diff(network(CPU)), tmp_path)
    assert "9 operations: all within their tolerances" in page.texts
    assert not any("first" in name for name in page.classes("rect"))


def test_labels_cannot_break_out_of_the_report(tmp_path: Path) -> None:
    hostile = "</title></pre></style><script>alert(1)</script>&\x00\"'"
    b = ow.MLGraphBuilder(REFERENCE)
    x = b.input("x<b>", "float32", [2])
    page = report(ow.diff(b.build({"</svg><i>": b.relu(x, label=hostile)})), tmp_path)
    names = [name for name, _ in page.tags]
    assert names.count("script") == 1
    assert {"b", "i"}.isdisjoint(names)


def test_report_draws_around_first_difference(tmp_path: Path) -> None:
    def half_up(input: np.ndarray) -> np.ndarray:
        return np.floor(input + 0.5)

    b = ow.MLGraphBuilder(HalfUp(Operations.round_even, half_up).context())
    x = b.input("x", "float32", [1])
    for number in range(200):
        x = b.round_even(x, label="culprit") if number == 120 else b.add(x, 0.5) if number == 119 else b.abs(x)
    page = report(ow.diff(b.build({"y": x}), inputs={"x": np.float32([2])}), tmp_path)
    assert "Around operation 120" in page.texts
    assert "The graph, condensed" in page.texts
    assert page.classes("rect").count("box first") == 2
    assert sum(name.startswith("box") for name in page.classes("rect")) < 40


def test_reports_have_names_of_pages(tmp_path: Path) -> None:
    with pytest.raises(ow.ValidationError, match=r"must end with .html, got 'report.png'"):
        ow.diff(network(CPU)).save("report.png")
    a, b = onnx_model(tmp_path / "a.onnx"), onnx_model(tmp_path / "b.onnx", 1.5)
    result = CliRunner().invoke(app, ["diff", str(tmp_path / "missing.onnx"), "--report", "r.png"])
    assert "must end with .html" in str(result.exception)  # before anything is read
    for option, name in (("--report", "none/r.html"), ("--json", "none/r.json")):
        result = CliRunner().invoke(app, ["diff", str(tmp_path / "missing.onnx"), option, name])
        assert str(result.exception) == f"{name}: there is no folder none"
    assert "wrote" in run(a, b, "--report", tmp_path / "r.html", code=1)
    assert (tmp_path / "r.html").stat().st_size > 10_000
