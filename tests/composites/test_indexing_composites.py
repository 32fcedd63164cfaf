"""Composites that read, write or select elements: 200 calls of each, with odd sizes, on each back end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.every_device import DEVICES, context_on
from support.seeded import BLOCKS, INDEXING, check_block

import opweave as ow
from opweave import composites
from opweave.lazy.custom_call import CustomOp


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", INDEXING, ids=lambda op: op.name)
def test_calls_equal_their_witness(op: CustomOp[Any], device: str, block: int) -> None:
    check_block(context_on(device), op, block)


def results(device: str, op: CustomOp[Any], *arrays: Any, **options: Any) -> list[np.ndarray]:
    with context_on(device):
        found = op(*arrays, **options)
    return [np.asarray(result) for result in (found if isinstance(found, (tuple, list)) else [found])]


@pytest.mark.parametrize("reduction", ["add", "mul"])
def test_sums_and_products_of_floats_have_the_same_bits_on_every_device(reduction: str) -> None:
    rng = np.random.default_rng(3)
    x, updates = rng.normal(size=(5, 71)).astype("float32"), rng.normal(size=(40, 71)).astype("float32")
    indices = rng.integers(-5, 5, updates.shape)
    total = x.copy()
    for row in range(len(updates)):  # in order
        for column in range(71):
            place = indices[row, column], column
            total[place] = (
                total[place] + updates[row, column] if reduction == "add" else total[place] * updates[row, column]
            )
    for device in DEVICES:
        (result,) = results(device, composites.scatter_reduce, x, indices, updates, 0, reduction=reduction)
        np.testing.assert_array_equal(result, total, err_msg=device)


@pytest.mark.parametrize("device", DEVICES)
def test_boxes_with_nan_scores_are_never_selected(device: str) -> None:
    boxes = np.float32([[[k, 0, k + 1, 1] for k in range(5)]])
    scores = np.float32([[[np.nan, 0.5, np.nan, 0.7, -np.inf], [np.nan] * 5]])
    for threshold, expected in ((None, [[0, 0, 3], [0, 0, 1], [0, 0, 4]]), (0.6, [[0, 0, 3]])):
        selected, number = results(
            device, composites.non_max_suppression, boxes, scores, 5, iou_threshold=0.5, score_threshold=threshold
        )
        assert number.tolist() == [len(expected)]
        assert selected.tolist() == expected + [[-1, -1, -1]] * (10 - len(expected))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_boxes_that_are_no_boxes_suppress_none(device: str, bad: float) -> None:
    boxes = np.float32([[[0, 0, 2, 2], [bad, 0, 2, 2], [0, 0, 2, bad], [5, 5, 5, 9], [0, 0, 2, 1.9]]])
    scores = np.float32([[[0.5, 0.9, 0.8, 0.7, 0.6]]])
    selected, number = results(device, composites.non_max_suppression, boxes, scores, 5, iou_threshold=0.5)
    assert number.tolist() == [4]
    assert selected[:4, 2].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("start", [-(2**63), -1, 2**31, 2**63 - 1])
def test_positions_out_of_range_write_inside(device: str, start: int) -> None:
    past, update = np.zeros((2, 5, 3), "float32"), np.ones((2, 2, 3), "float32")
    for mode, first in (("linear", 0 if start < 0 else 3), ("circular", start % 5)):
        (result,) = results(device, composites.tensor_scatter, past, update, np.int64([start, 0]), 1, mode=mode)
        assert sorted(np.flatnonzero(result[0, :, 0]).tolist()) == sorted([first, (first + 1) % 5])
        assert np.flatnonzero(result[1, :, 0]).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("op", "arguments", "options", "message"),
    [
        (
            composites.non_zero,
            (np.zeros(3, "float32"), 4),
            {},
            r"count must be in \[1, 3\], the number of elements, got 4",
        ),
        (composites.non_zero, (np.zeros(3, "float32"), 0), {}, r"count must be in \[1, 3\]"),
        (composites.compress, (np.zeros(3, "float32"), np.zeros(4, "uint8"), 1), {}, "condition must have at most 3"),
        (composites.compress, (np.zeros(3, "float32"), np.zeros(2, "uint8"), 3), {}, "the length of condition, got 3"),
        (composites.unique, (np.zeros(3, "float32"), 2**31), {}, r"count must be in \[1, 3\]"),
        (
            composites.non_max_suppression,
            (np.zeros((1, 2, 4), "float32"), np.zeros((1, 1, 2), "float32"), 0),
            {},
            "max_output_boxes must be at least 1, got 0",
        ),
        (
            composites.non_max_suppression,
            (np.zeros((1, 2, 4), "float32"), np.zeros((1, 1, 2), "float32"), 1),
            {"iou_threshold": float("nan")},
            "iou_threshold",
        ),
        (
            composites.non_max_suppression,
            (np.zeros((1, 2, 4), "float32"), np.zeros((1, 1, 3), "float32"), 1),
            {},
            r"scores must be for 1 batches of 2 boxes, got float32\[1, 1, 3\]",
        ),
        (
            composites.tensor_scatter,
            (np.zeros((2, 3), "float32"), np.zeros((2, 4), "float32")),
            {},
            "update must have at most 3 elements along axis 1",
        ),
        (
            composites.tensor_scatter,
            (np.zeros((2, 3), "float32"), np.zeros((2, 3), "float32"), None, 0),
            {},
            "axis must be",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_errors(
    op: CustomOp[Any], arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ow.MLError, match=message):
        op(*arguments, **options)


@pytest.mark.parametrize("device", DEVICES)
def test_a_cache_is_updated_in_its_own_memory(device: str) -> None:
    context = context_on(device)
    builder = ow.MLGraphBuilder(context)
    past, update = builder.input("past", "float32", [2, 5, 3]), builder.input("update", "float32", [2, 2, 3])
    start = builder.input("start", "int64", [2])
    graph = builder.build({"present": composites.tensor_scatter(past, update, start, 1, mode="circular")})
    cache = context.create_tensor("float32", [2, 5, 3], readable=True, writable=True)
    rows = np.arange(12, dtype="float32").reshape(2, 2, 3) + 1
    total = np.zeros((2, 5, 3), "float32")
    for first in ([0, 3], [2, 4]):
        arrays = {"update": rows * 10 ** first[0], "start": np.int64(first)}
        tensors = {n: context.create_tensor(a.dtype.name, a.shape, writable=True) for n, a in arrays.items()}  # type: ignore[arg-type]
        for name, array in arrays.items():
            context.write_tensor(tensors[name], array)
        context.dispatch(graph, {"past": cache, **tensors}, {"present": cache})
        for batch in range(2):
            for k in range(2):
                total[batch, (first[batch] + k) % 5] = arrays["update"][batch, k]
        np.testing.assert_array_equal(context.read_tensor(cache), total)
