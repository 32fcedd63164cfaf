"""Requests of many clients, run as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from support.served_models import WEIGHTS, layer, served_model

import opweave as ow
from opweave.onnx.session.session import InferenceSession
from opweave.scale.batches import BatchAnswer, BatchedModel
from opweave.scale.protocol import InferenceRequest, Interface

RANDOM = np.random.default_rng(4)


class Counting(InferenceSession):
    """A session that notes the rows of each run."""

    rows: list[int]

    def run(self, names: Any, feed: Any, *others: Any, **options: Any) -> list[Any]:  # type: ignore[override]
        self.rows.append(len(next(iter(feed.values()))))
        return super().run(names, feed, *others, **options)


def made(name: str, batch: int = 8) -> tuple[BatchedModel, list[int]]:
    session = Counting(served_model(name), context=ow.ml.create_context(device="cpu"))
    session.rows = []
    return BatchedModel(
        session, Interface(name, session._parts.inputs, [*session._parts.outputs.values()]), batch
    ), session.rows


def request(**feed: np.ndarray) -> InferenceRequest:
    return InferenceRequest(None, feed, {})


def outputs(answer: BatchAnswer) -> Any:
    assert not isinstance(answer.outcome, ow.MLError), answer.outcome
    return answer.outcome


def rows_of(sizes: Sequence[int]) -> list[InferenceRequest]:
    return [request(x=RANDOM.standard_normal((size, 16)).astype(np.float32)) for size in sizes]


def check_answers(requests: Sequence[InferenceRequest], answers: Sequence[BatchAnswer]) -> None:
    for one, answer in zip(requests, answers, strict=True):
        y, best = layer(one.feed["x"])
        np.testing.assert_allclose(outputs(answer)["y"], y, rtol=1e-5, atol=1e-6)
        assert outputs(answer)["best"].tolist() == best.tolist()
        assert answer.rows == len(y)


def test_requests_are_joined_and_get_their_own_rows() -> None:
    model, rows = made("layer")
    requests = rows_of([1, 2, 3, 1])
    check_answers(requests, model.run(requests))
    assert rows == [7]
    rows.clear()
    requests = rows_of([2, 1, 1])
    answers = model.run(requests)
    check_answers(requests, answers)
    assert rows == [4]
    execution = answers[0].execution
    assert execution is not None
    assert execution.rows == 4
    assert execution.durations[1] > 0


def test_batch_row_limit() -> None:
    model, rows = made("layer", batch=4)
    requests = rows_of([3, 2, 2, 9, 1, 1])
    check_answers(requests, model.run(requests))
    assert rows == [3, 4, 9, 2]


def test_batch_of_one_joins_nothing() -> None:
    model, rows = made("layer", batch=1)
    requests = rows_of([1, 1])
    check_answers(requests, model.run(requests))
    assert (rows, model.why_alone) == ([1, 1], "the batch is 1")


def test_batch_wrong_request_fails_alone() -> None:
    model, _ = made("reshaped")
    good = [request(x=np.full((1, 4), n, np.float32)) for n in range(3)]
    for _ in range(2):
        answers = model.run([good[0], request(x=np.ones((1, 3), np.float32)), good[1], good[2]])
        assert [outputs(answers[n])["y"].ravel().tolist() for n in (0, 2, 3)] == [[0] * 4, [1] * 4, [2] * 4]
        assert isinstance(answers[1].outcome, ow.MLError)
    # Inputs of one request that do not go together reach nobody else's batch either.
    model, _rows = made("mixed")
    values = np.float32([1, 2])
    right, wrong = request(a=values, flag=np.array([True, False])), request(a=values, flag=np.array([True] * 3))
    for _ in range(2):
        first, broken, last = model.run([right, wrong, right])
        assert outputs(first)["y"].tolist() == outputs(last)["y"].tolist() == [1, 0]
        assert isinstance(broken.outcome, ow.MLError)


def test_batch_error_belongs_to_one_request() -> None:
    model, _rows = made("lookup")
    good, bad = request(ids=np.array([[3, 4]])), request(ids=np.array([[3, 99]]))
    with pytest.raises(ow.ValidationError, match="indices"):
        model.check(bad)
    first, broken, last = model.run([good, bad, good])  # as if the check had not seen it
    assert np.array_equal(outputs(first)["y"], WEIGHTS[[[3, 4]]])
    assert np.array_equal(outputs(last)["y"], WEIGHTS[[[3, 4]]])
    assert "indices" in str(broken.outcome)


MIXING = {
    "mean": "{ m = ReduceMean <axes = [0], keepdims = 1> (x) y = Sub(x, m) }",
    "softmax": "{ y = Softmax <axis = 0> (x) }",
    "running": "{ axis = Constant <value_int = 0> () y = CumSum(x, axis) }",
    "range": "{ q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }",
    "norm": "{ l = Flatten <axis = 0> (x) n = LpNormalization <axis = 1> (l) s = Shape(x) y = Reshape(n, s) }",
    "products": "{ t = Transpose(x) p = MatMul(t, x) y = MatMul(x, p) }",
    "first": "{ zero = Constant <value_int = 0> () f = Gather(x, zero) y = Add(x, f) }",
    "reversed": "{ s = Constant <value_ints = [-1]> () e = Constant <value_ints = [-9999]> () "
    "a = Constant <value_ints = [0]> () "
    "y = Slice(x, s, e, a, s) }",
    "size": "{ s = Shape <start = 0, end = 1> (x) f = Cast <to = 1> (s) y = Div(x, f) }",
}


def mixing(name: str, dims: str = "n, 3") -> BatchedModel:
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[{dims}] x) => (float[{dims}] y) {MIXING[name]}'
    session = InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    return BatchedModel(session, Interface("g", session._parts.inputs, [*session._parts.outputs.values()]), 8)


@pytest.mark.parametrize("dims", ["n, 3", "n, k"])
@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("first", [0.0, 1.0, 1e30, np.nan])
def test_run_keeps_clients_apart_for_any_first_requests(name: str, dims: str, first: float) -> None:
    model = mixing(name, dims)
    same = [request(x=np.full((1, 3), first, np.float32))] * 2
    model.run([model.check(each) for each in same])
    victim = np.float32([[1, 2, 3]])
    alone = outputs(model.run([model.check(request(x=victim))])[0])["y"]
    for other in (0.0, 1000.0, np.inf):
        answers = model.run([model.check(request(x=x)) for x in (np.full((1, 3), other, np.float32), victim)])
        np.testing.assert_array_equal(outputs(answers[1])["y"], alone)
    assert model.why_alone
    assert model.runs_alone(model.check(request(x=victim)))


@pytest.mark.parametrize("first", [np.nan, np.inf, 3e38])
def test_run_joins_requests_after_any_first_requests(first: float) -> None:
    model, rows = made("layer")
    for value in (first, 1.0):
        model.run([request(x=np.full((1, 16), value, np.float32)) for _ in range(3)])
    assert (rows, model.why_alone) == ([3, 3], "")


def test_run_joins_the_shapes_that_are_proved(caplog: pytest.LogCaptureFixture) -> None:
    """Pairs of elements are summed: with an odd number in a row, a pair has elements of two rows."""
    pairs = "{ p = Constant <value_ints = [-1, 2]> () q = Reshape(x, p) a = Constant <value_ints = [1]> () "
    pairs += "m = ReduceSum <keepdims = 1> (q, a) d = Sub(q, m) s = Shape(x) y = Reshape(d, s) }"
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[n, k] x) => (float[n, k] y) {pairs}'
    session = Counting(onnx.parser.parse_model(text).SerializeToString())
    session.rows = []
    model = BatchedModel(session, Interface("g", session._parts.inputs, [*session._parts.outputs.values()]), 8)
    even, odd = (request(x=np.ones((2, size), np.float32)) for size in (4, 3))
    model.run([even, even, odd, odd])
    assert session.rows == [4, 2, 2]
    assert (model.runs_alone(even), model.runs_alone(odd), model.why_alone) == (False, True, "")
    assert "requests run one by one: reshape" in caplog.text


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("layer", ""),
        ("fixed", "the first dimension of input 'x' is 2"),
        ("mixed", ""),
        ("strings", ""),
        ("running", "cumulative_sum 'y' computes along the batch"),
    ],
)
def test_batch_why_alone(name: str, why: str, caplog: pytest.LogCaptureFixture) -> None:
    model, rows = made(name)
    assert model.why_alone == why
    if name == "running":
        answers = model.run([request(x=np.ones((2, 2), np.float32)) for _ in range(3)])
        assert [outputs(answer)["y"].tolist() for answer in answers] == [[[1, 1], [2, 2]]] * 3
        assert rows == [2] * 3
        assert f"requests run one by one: {why}" in caplog.text


def test_check_rejects_invalid_inputs_before_joining() -> None:
    model, _ = made("layer")
    for wrong, text in (
        (np.zeros((1, 15), np.float32), "input 'x' must have shape [N, 16], got [1, 15]"),
        (
            np.zeros((1, 16)),
            "input 'x' must be tensor(float), got an array of float64; array.astype('float32') converts it",
        ),
    ):
        with pytest.raises(ow.ValidationError) as caught:
            model.check(request(x=wrong))
        assert str(caught.value) == text
    model, _ = made("mixed")
    flags = np.uint8([1, 2]).view(bool)
    with pytest.raises(ow.ValidationError, match="must hold 0 and 1 for bool, got 2"):
        model.check(request(a=np.zeros(2, np.float32), flag=flags))


def test_batch_error_without_elements_hides_internal_names() -> None:
    model, _ = made("filter")
    empty, full = model.run([request(x=np.zeros((1, 1, 0), np.float32)), request(x=np.ones((1, 1, 2), np.float32))])
    assert str(empty.outcome) == "the model cannot compute without elements: input 'x' of shape [1, 1, 0]"
    assert outputs(full)["y"].tolist() == [[[2, 2]]]


def test_empty_requests_and_strings() -> None:
    model, _ = made("layer")
    (answer,) = model.run(rows_of([0]))
    assert outputs(answer)["y"].shape == (0, 4)
    model, _rows = made("strings")
    one, other = model.run([request(s=np.array(["a", "b"], object)), request(s=np.array(["ü"], object))])
    assert outputs(one)["t"].tolist() == ["a", "b"]
    assert outputs(other)["t"].tolist() == ["ü"]
