"""Requests of many clients, run as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from served_models import WEIGHTS, layer, served_model

import opweave as ow
from opweave.onnx.session import InferenceSession
from opweave.scale.batches import Answer, BatchedModel
from opweave.scale.protocol import Interface, Request

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
    return BatchedModel(session, Interface(name, session._inputs, [*session._outputs.values()]), batch), session.rows


def request(**feed: np.ndarray) -> Request:
    return Request(None, feed, {})


def outputs(answer: Answer) -> Any:
    assert not isinstance(answer.outcome, ow.MLError), answer.outcome
    return answer.outcome


def rows_of(sizes: Sequence[int]) -> list[Request]:
    return [request(x=RANDOM.standard_normal((size, 16)).astype(np.float32)) for size in sizes]


def check(requests: Sequence[Request], answers: Sequence[Answer]) -> None:
    for one, answer in zip(requests, answers, strict=True):
        y, best = layer(one.feed["x"])
        np.testing.assert_allclose(outputs(answer)["y"], y, rtol=1e-5, atol=1e-6)
        assert outputs(answer)["best"].tolist() == best.tolist()
        assert answer.rows == len(y)


def test_requests_are_joined_and_get_their_own_rows() -> None:
    model, rows = made("layer")
    requests = rows_of([1, 2, 3, 1])
    check(requests, model.run(requests))
    assert rows == [7, 1, 2, 3, 1]  # the first batch is compared with runs of each request
    rows.clear()
    requests = rows_of([2, 1, 1])
    answers = model.run(requests)
    check(requests, answers)
    assert rows == [4]
    execution = answers[0].execution
    assert execution is not None
    assert execution.rows == 4
    assert execution.durations[1] > 0


def test_a_batch_has_at_most_its_rows_unless_a_request_has_more() -> None:
    model, rows = made("layer", batch=4)
    for _ in range(2):  # without the comparison the second time
        rows.clear()
        requests = rows_of([3, 2, 2, 9, 1, 1])
        check(requests, model.run(requests))
    assert rows == [3, 4, 9, 2]


def test_a_batch_of_one_joins_nothing() -> None:
    model, rows = made("layer", batch=1)
    requests = rows_of([1, 1])
    check(requests, model.run(requests))
    assert (rows, model.why_alone) == ([1, 1], "the batch is 1")


def test_one_wrong_request_fails_alone() -> None:
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


def test_an_error_in_a_joined_batch_is_that_of_one_request() -> None:
    model, _rows = made("lookup")
    good, bad = request(ids=np.array([[3, 4]])), request(ids=np.array([[3, 99]]))
    with pytest.raises(ow.ValidationError, match="indices"):
        model.check(bad)
    first, broken, last = model.run([good, bad, good])  # as if the check had not seen it
    assert np.array_equal(outputs(first)["y"], WEIGHTS[[[3, 4]]])
    assert np.array_equal(outputs(last)["y"], WEIGHTS[[[3, 4]]])
    assert "indices" in str(broken.outcome)


def test_rows_that_depend_on_each_other_are_not_joined(caplog: pytest.LogCaptureFixture) -> None:
    model, rows = made("running")
    assert model.why_alone == ""
    requests = [request(x=np.ones((2, 2), np.float32)) for _ in range(3)]
    for _ in range(2):
        answers = model.run(requests)
        assert [outputs(answer)["y"].tolist() for answer in answers] == [[[1, 1], [2, 2]]] * 3
    assert "['y'] of a request depend on the other requests" in model.why_alone
    assert "requests run one by one" in caplog.text
    assert rows == [6] + [2] * 6


@pytest.mark.parametrize(
    ("name", "why"),
    [("layer", ""), ("fixed", "the first dimension of input 'x' is 2"), ("mixed", ""), ("strings", "")],
)
def test_which_models_are_joined(name: str, why: str) -> None:
    assert made(name)[0].why_alone == why


def test_inputs_are_checked_before_they_join() -> None:
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


def test_an_engine_that_fails_without_elements_does_not_tell_its_own_names() -> None:
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
