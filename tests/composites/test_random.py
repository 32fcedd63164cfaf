"""Random numbers: the generator in plain Python, distributions, and keys of runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from samples import Call
from support.agreement import REFERENCE, run, run_decomposed
from support.every_device import DEVICES, context_on

import opweave as ow
from opweave import composites
from opweave.composites.random import new_stream
from opweave.lazy.custom_call import CustomOp

MASK = 2**32 - 1


def philox(counter: list[int], key: list[int]) -> list[int]:
    """A block of Philox 4x32-10, from its paper."""
    for number in range(10):
        if number:
            key = [(key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK]
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (second >> 32) ^ counter[1] ^ key[0],
            second & MASK,
            (first >> 32) ^ counter[3] ^ key[1],
            first & MASK,
        ]
    return counter


def words(key: np.ndarray, count: int) -> np.ndarray:
    a, b, c, d = key.tolist()
    blocks = [philox([block, 0, c, d], [a, b]) for block in range(-(-count // 4))]
    return np.array(blocks, np.uint64).ravel()[:count]


def test_generator_gives_the_known_answers() -> None:
    """Those of Random123, the implementation of the paper's authors (kat_vectors)."""
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox([MASK] * 4, [MASK] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    digits_of_pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    assert philox(digits_of_pi, [0xA4093822, 0x299F31D0]) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


KEYS = [np.uint32([0, 0, 0, 0]), np.uint32([MASK, 1, 2, 3]), np.uint32([123456789, 4000000000, MASK, MASK])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("key", KEYS, ids=["zeros", "small", "large"])
def test_uniform_numbers_have_the_same_bits_on_all_devices(key: np.ndarray, device: str) -> None:
    bits = words(key, 7 * 43)
    exact = (bits >> np.uint64(8)) * 2.0**-24
    with context_on(device):
        whole = np.asarray(composites.random_uniform(key, [7, 43]))
        np.testing.assert_array_equal(whole, exact.astype(np.float32).reshape(7, 43))
        half = np.asarray(composites.random_uniform(key, [301], data_type="float16"))
        np.testing.assert_array_equal(half, ((bits >> np.uint64(21)) * 2.0**-11).astype(np.float16))
        assert np.asarray(composites.random_uniform(key, [])) == np.float32(exact[0])
        wide = np.asarray(composites.random_uniform(key, [301], low=-2.5, high=9))
        np.testing.assert_allclose(wide, exact * 11.5 - 2.5, rtol=1e-6, atol=1e-6)
        chances = np.linspace(-0.1, 1.1, 301, dtype="float32")
        chances[5] = np.nan
        drawn = np.asarray(composites.bernoulli(chances, key))
        np.testing.assert_array_equal(drawn, exact.astype(np.float32) < chances)


@pytest.mark.parametrize("device", DEVICES)
def test_normal_numbers_follow_from_the_uniform_ones(device: str) -> None:
    key = KEYS[2]
    blocks = (words(key, 400) >> np.uint64(8)).astype(np.float64).reshape(-1, 2) * 2.0**-24
    radius, angle = np.sqrt(-2 * np.log(blocks[:, 0] + 2.0**-24)), 2 * math.pi * blocks[:, 1]
    exact = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1).ravel()
    with context_on(device):
        numbers = np.asarray(composites.random_normal(key, [397], mean=3, scale=2))
        halves = np.asarray(composites.random_normal(key, [397], data_type="float16"))
    np.testing.assert_allclose(numbers, exact[:397] * 2 + 3, rtol=3e-6, atol=3e-6)
    np.testing.assert_allclose(halves, exact[:397], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("data_type", ["int32", "int64"])
@pytest.mark.parametrize("device", DEVICES)
def test_classes_are_drawn_by_their_probabilities(device: str, data_type: Any) -> None:
    chances = np.array([[0.1, 0.2, 0, 0.7], [0, 0, 5, 0], [2, 1, 1, 0]])
    with np.errstate(divide="ignore"):
        logarithms = np.log(chances).astype("float32") + np.float32([[80], [-80], [0]])
    with context_on(device):
        drawn = np.asarray(composites.multinomial(logarithms, KEYS[1], 4000, data_type=data_type))
    assert drawn.dtype == data_type
    assert drawn.shape == (3, 4000)
    for row, expected in zip(drawn, chances / chances.sum(1, keepdims=True), strict=True):
        shares = np.bincount(row, minlength=4) / 4000
        assert np.abs(shares - expected).max() < 0.04  # 5 standard deviations
        assert (shares[expected == 0] == 0).all()


def test_moments_of_many_numbers() -> None:
    numbers = np.asarray(composites.random_normal(KEYS[0], [200_000])).astype(float)
    assert abs(numbers.mean()) < 0.012
    assert abs(numbers.std() - 1) < 0.01
    assert abs((numbers**3).mean()) < 0.05
    assert abs((numbers**4).mean() - 3) < 0.15
    uniform = np.asarray(composites.random_uniform(KEYS[0], [200_000])).astype(float)
    assert abs(uniform.mean() - 0.5) < 0.004
    assert abs(uniform.var() - 1 / 12) < 0.001
    assert np.abs(np.corrcoef(uniform[:-1], uniform[1:])[0, 1]) < 0.012
    assert uniform.min() >= 0
    assert uniform.max() < 1


@pytest.mark.parametrize("device", DEVICES)
def test_each_run_has_another_key(device: str) -> None:
    context = context_on(device)
    builder = ow.MLGraphBuilder(context)
    fixed, free = (composites.random_key(builder, stream=new_stream(seed)) for seed in (2**40 + 7, None))
    numbers = composites.random_uniform(builder, free, [8])
    graph = builder.build({"fixed": builder.identity(fixed), "numbers": numbers}, fallback="error")
    runs = [context.compute(graph, {}) for _ in range(3)]
    assert [run["fixed"].tolist() for run in runs] == [[7, 256, run, 0] for run in range(3)]
    assert len({tuple(run["numbers"].tolist()) for run in runs}) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": np.zeros(3, "uint32")}, r"key must be uint32\[4\], got uint32\[3\]"),
        ({"low": 2.0}, "low and high must be finite numbers in this order, got 2 and 1"),
        ({"high": math.inf}, "got 0 and inf"),
        ({"low": math.nan}, "got nan and 1"),
        ({"low": -1.7e308, "high": 1.7e308}, "finite numbers"),
    ],
)
def test_uniform_rejects_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ow.ValidationError, match=message):
        composites.random_uniform(**{"key": KEYS[0], "shape": [2], **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"scale": 0.0}, "scale must be positive"), ({"scale": math.nan}, "scale"), ({"mean": math.inf}, "mean must be")],
)
def test_normal_rejects_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ow.ValidationError, match=message):
        composites.random_normal(KEYS[0], [2], **arguments)


def test_streams_must_exist() -> None:
    with pytest.raises(ow.ValidationError, match="stream must be the number of a stream, got -1"):
        composites.random_key(ow.MLGraphBuilder(context_on(DEVICES[0])), stream=-1)


# Models --------------------------------------------------------------------------------------------------------------

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
NODES: dict[str, tuple[Any, dict[str, np.ndarray], int]] = {
    "RandomUniform": ({"shape": [2, 3], "low": 1.0, "high": 3.0}, {}, FLOAT),
    "RandomNormal": ({"shape": [5], "dtype": HALF}, {}, HALF),
    "RandomUniformLike": ({"dtype": HALF}, {"x": np.zeros((2, 5), "int64")}, HALF),
    "RandomNormalLike": ({"mean": 100.0}, {"x": np.zeros((2, 5), "float32")}, FLOAT),
    "Bernoulli": ({"dtype": TensorProto.BOOL}, {"x": np.full(40, 0.5, "float32")}, TensorProto.BOOL),
    "Multinomial": ({"sample_size": 40, "dtype": TensorProto.INT64}, {"x": np.zeros((1, 9), "float32")}, 7),
}


def session(op_type: str, device: str, **more: Any) -> tuple[ow.InferenceSession, dict[str, np.ndarray]]:
    attributes, feed, element_type = NODES[op_type]
    node = helper.make_node(op_type, list(feed), ["y"], **attributes, **more)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), ["n", *array.shape[1:]])
        for name, array in feed.items()
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", element_type, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return ow.InferenceSession(model, context_on(device), fallback="error", specialise="always"), feed


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op_type", NODES)
def test_sessions_with_a_seed_draw_the_same_sequence(op_type: str, device: str) -> None:
    sequences = []
    for _ in range(2):
        seeded, feed = session(op_type, device, seed=7.0)
        sequences.append([seeded.run(None, feed)[0] for _ in range(2)])
    np.testing.assert_array_equal(sequences[0], sequences[1])
    assert (sequences[0][0] != sequences[0][1]).any()
    free, feed = session(op_type, device)
    again, _ = session(op_type, device)
    draws = [each.run(None, feed)[0] for each in (free, free, again)]
    assert all((a != b).any() for a, b in zip(draws, [*draws[1:], draws[0]], strict=True))


def test_shapes_of_one_session_share_a_sequence() -> None:
    seeded, _ = session("RandomNormalLike", DEVICES[0], seed=7.0)
    first, second = (seeded.run(None, {"x": np.zeros((rows, 5), "float32")})[0] for rows in (2, 3))
    assert (first.ravel() != second.ravel()[:10]).all()


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("key", KEYS, ids=["zeros", "small", "large"])
def test_decompositions_give_the_numbers_of_the_formulas(key: np.ndarray) -> None:
    """WebNN has no operations on bits: the words are computed by arithmetic, to the last bit."""
    logits = np.float32([[0, -1, 3], [2, -np.inf, 0.5]])
    calls: list[tuple[CustomOp[Any], Call, float]] = [
        (composites.random_uniform, Call(key, [7, 43]), 0),
        (composites.random_uniform, Call(key, [5], data_type="float16"), 0),
        (composites.bernoulli, Call(np.linspace(-0.1, 1.1, 301, dtype="float32"), key), 0),
        (composites.random_normal, Call(key, [2, 3, 50]), 1e-5),
        (composites.multinomial, Call(logits, key, 9), 0),
    ]
    for op, call, tolerance in calls:
        (expected,), (got,) = run(REFERENCE, op, call).values(), run_decomposed(op, call).values()
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance, strict=True)
