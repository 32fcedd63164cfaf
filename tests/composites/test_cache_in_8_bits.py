"""Attention with cached keys and values of int8, on every device, against NumPy in float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from support import witness
from support.every_device import DEVICES, context_on

import opweave as ow
from opweave import composites

CPU = ow.ml.create_context(device="cpu")
RANDOM = np.random.default_rng(3)
RESULTS = ("y", "past_key", "past_value", "past_key_scale", "past_value_scale")


def randn(*shape: int, data_type: str = "float32") -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(data_type)


def cache(batches: int, groups: int, past: int, size: int) -> dict[str, np.ndarray]:
    """Random keys and values."""
    arrays: dict[str, np.ndarray] = {}
    for kind in ("key", "value"):
        arrays[f"past_{kind}"] = RANDOM.integers(-127, 128, (batches, groups, past, size), "int8")
        arrays[f"past_{kind}_scale"] = RANDOM.uniform(0.001, 0.02, (batches, groups, past)).astype("float32")
    return arrays


def computed(context: ow.MLContext, arrays: dict[str, np.ndarray], **options: Any) -> dict[str, np.ndarray]:
    b = ow.MLGraphBuilder(context)
    operands: dict[str, Any] = {name: b.input(name, a.dtype.name, a.shape) for name, a in arrays.items()}
    results = composites.group_query_attention(b, **operands, **options)
    return dict(context.compute(b.build(dict(zip(RESULTS, results, strict=True))), arrays))


def real(codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return codes.astype("float64") * scale.astype("float64")[..., None]


def rows(x: np.ndarray, size: int) -> np.ndarray:
    """[batch, length, heads * size] -> [batch, heads, length, size]."""
    return x.reshape(*x.shape[:2], -1, size).swapaxes(1, 2)


def check(context: ow.MLContext, arrays: dict[str, np.ndarray], size: int, options: dict[str, Any]) -> None:
    """Attention must equal that of the stored numbers, and the new vectors must be stored to half a step."""
    found = computed(context, arrays, **options)
    new, dtype = arrays["query"].shape[1], arrays["query"].dtype
    past = arrays["past_key"].shape[2]
    lengths = arrays.get("lengths", np.full(len(arrays["query"]), past))
    keys = past if "lengths" in arrays else past + new
    q, k, v = (rows(arrays[name], size) for name in ("query", "key", "value"))
    if "cosines" in arrays:
        positions = lengths[:, None] + np.arange(new)
        tables = arrays["cosines"], arrays["sines"], positions
        q, k = (witness.rotated(x, *tables, options.get("interleaved", False)) for x in (q, k))
    stored = []
    for kind, vectors in (("key", k), ("value", v)):
        codes, scale = found[f"past_{kind}"], found[f"past_{kind}_scale"]
        assert codes.dtype == np.int8
        assert (codes.shape[2], scale.dtype) == (keys, np.float32)
        numbers = np.full(codes.shape, np.nan)
        for n, length in enumerate(lengths):
            for name in (f"past_{kind}", f"past_{kind}_scale"):
                np.testing.assert_array_equal(found[name][n, :, :length], arrays[name][n, :, :length])
            span = slice(length, length + new)
            largest = np.abs(vectors[n].astype("float64")).max(axis=-1)
            relative = 2e-3 if dtype == np.float16 else 1e-5
            np.testing.assert_allclose(scale[n, :, span], np.maximum(largest / 127, 1e-30), rtol=relative)
            numbers[n] = real(codes[n], scale[n])
            error = np.abs(numbers[n, :, span] - vectors[n])
            assert (error <= (0.5 + 127 * relative) * scale[n, :, span, None] + 1e-30).all()
        stored.append(numbers)
    same: dict[str, Any] = {name: options[name] for name in ("scale", "softcap", "window") if name in options}
    same |= {name: arrays[name].astype("float64") for name in ("bias", "sinks") if name in arrays}
    pasts = [x.copy() for x in stored]
    news = [np.stack([x[n, :, length : length + new] for n, length in enumerate(lengths)]) for x in stored]
    y, *_ = witness.cached_attention(q, news[0], news[1], pasts, lengths, keys, **same)
    expected = y.swapaxes(1, 2).reshape(found["y"].shape)
    tolerance = 2e-2 if dtype == np.float16 else 2e-5
    np.testing.assert_allclose(found["y"].astype("float64"), expected, rtol=tolerance, atol=tolerance)


VARIANTS = list(itertools.product(["room", "full"], ["float32", "float16"], [3, 8, 40]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "data_type", "size"), VARIANTS)
def test_cache_of_int8(kind: str, data_type: str, size: int, device: str) -> None:
    """Two batches of different lengths, whose unused scales are NaN."""
    batches, groups, heads, new, room = 2, 2, 4, 3, 9
    arrays = {"query": randn(batches, new, heads * size, data_type=data_type)}
    arrays |= {name: randn(batches, new, groups * size, data_type=data_type) for name in ("key", "value")}
    arrays |= cache(batches, groups, room, size)
    arrays["value"][0, 1] = 0
    if kind == "room":
        arrays["lengths"] = np.array([6, 2], "int32")
        for name in ("past_key_scale", "past_value_scale"):
            for n, length in enumerate(arrays["lengths"]):
                arrays[name][n, :, length:] = np.nan
    check(context_on(device), arrays, size, {"heads": heads, "groups": groups})


OPTIONS: dict[str, dict[str, Any]] = {
    "window": {"window": 4},
    "softcap": {"softcap": 2.0, "scale": 0.4},
    "rotated": {"rotates": True},
    "neighbours": {"rotates": True, "interleaved": True},
    "all": {"rotates": True, "adds": True, "window": 5},
    "bias": {"adds": True},
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("new", [1, 5])
def test_cache_of_int8_with_options(new: int, name: str, device: str) -> None:
    size, room, options = 16, 20, {**OPTIONS[name]}
    arrays = {"query": randn(1, new, 4 * size), "key": randn(1, new, 2 * size), "value": randn(1, new, 2 * size)}
    arrays |= {**cache(1, 2, room, size), "lengths": np.array([13], "int32")}
    if options.pop("rotates", False):
        angles = RANDOM.uniform(0, 6, (room, 8)).astype("float32")
        arrays |= {"cosines": np.cos(angles), "sines": np.sin(angles)}
    if options.pop("adds", False):
        arrays |= {"bias": randn(4, new, room), "sinks": randn(4)}
    check(context_on(device), arrays, size, {"heads": 4, "groups": 2, **options})


@pytest.mark.parametrize("device", DEVICES)
def test_cache_of_int8_is_updated_in_place(device: str) -> None:
    """Token by token, the cache equals the cache of one call."""
    context, size, room, count = context_on(device), 8, 8, 5
    arrays = {name: randn(1, count, n * size) for name, n in (("query", 2), ("key", 1), ("value", 1))}
    empty = {name: np.zeros_like(array) for name, array in cache(1, 1, room, size).items()}
    whole = computed(context, {**arrays, **empty, "lengths": np.array([0], "int32")}, heads=2, groups=1)
    builder = ow.MLGraphBuilder(context)
    inputs = {name: builder.input(name, "float32", [1, 1, a.shape[2]]) for name, a in arrays.items()}
    inputs |= {name: builder.input(name, a.dtype.name, a.shape) for name, a in empty.items()}
    inputs["lengths"] = builder.input("lengths", "int32", [1])
    results = composites.group_query_attention(builder, **inputs, heads=2, groups=1)
    graph = builder.build(dict(zip(RESULTS, results, strict=True)))
    tensors = {
        name: context.create_tensor(desc.data_type, desc.shape, readable=True, writable=True)
        for name, desc in graph.inputs.items()
    }
    y = context.create_tensor("float32", [1, 1, 2 * size], readable=True)
    for name, array in empty.items():
        context.write_tensor(tensors[name], array)
    for position in range(count):
        for name, array in arrays.items():
            context.write_tensor(tensors[name], array[:, position : position + 1])
        context.write_tensor(tensors["lengths"], np.array([position], "int32"))
        context.dispatch(graph, tensors, {"y": y, **{name: tensors[name] for name in RESULTS[1:]}})
        row = whole["y"][:, position : position + 1]
        np.testing.assert_allclose(context.read_tensor(y), row, rtol=2e-5, atol=2e-5)
    for name in RESULTS[1:]:
        np.testing.assert_allclose(context.read_tensor(tensors[name]), whole[name], rtol=1e-6, err_msg=name)


def test_attention_rejects_scales_that_do_not_fit() -> None:
    arrays = {"query": randn(1, 1, 16), "key": randn(1, 1, 8), "value": randn(1, 1, 8), **cache(1, 1, 4, 8)}
    options = {"heads": 2, "groups": 1}

    def message(**changes: Any) -> str:
        changed = {name: a for name, a in {**arrays, **changes}.items() if a is not None}
        with pytest.raises(ow.ValidationError) as error:
            computed(CPU, changed, **options)
        return str(error.value)

    assert "past_key_scale and past_value_scale must be given together" in message(past_value_scale=None)
    wrong = dict.fromkeys(["past_key", "past_value"])
    assert "past_key_scale must come with past_key and past_value" in message(**wrong)
    both = {name: arrays[name].astype("float32") for name in ("past_key", "past_value")}
    assert "past_key must be int8, as there are scales, got float32[1, 1, 4, 8]" in message(**both)
    scales = dict.fromkeys(["past_key_scale", "past_value_scale"])
    rule = "past_key must be float32, the data type of query, got int8[1, 1, 4, 8]; int8 takes past_key_scale"
    assert rule in message(**scales)
    short = {name: arrays[name][..., :3] for name in scales}
    assert "past_key_scale must have shape [1, 1, 4], [batches, groups, past], got float32[1, 1, 3]" in message(**short)
    half = {name: arrays[name].astype("float16") for name in scales}
    assert "past_key_scale must be float32, got float16[1, 1, 4]" in message(**half)
