"""Attention on WebGPU devices: one kernel, or two where keys are divided, beside the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.webgpu_device import gpu_context
from support.webgpu_kernels import engine_of, generator, kernel_count, limited

import opweave as ow
from opweave import composites

pytest.importorskip("wgpu", reason="wgpu is not installed")


def compare(
    build: Callable[..., Any],
    arrays: dict[str, np.ndarray],
    kernels: int,
    context: ow.MLContext | None = None,
    known: Callable[[np.ndarray], np.ndarray] = lambda array: array,
) -> None:
    """Compare the results of a graph with those of the reference; `known` takes the part that is specified."""
    results = []
    for where in (context or gpu_context(), ow.ml.create_context(device="reference")):
        builder = ow.MLGraphBuilder(where)
        operands = {name: builder.input(name, a.dtype.name, a.shape) for name, a in arrays.items()}
        made = build(builder, **operands)
        made = made if isinstance(made, tuple) else (made,)
        graph = builder.build({f"y{k}": result for k, result in enumerate(made)})
        results.append(where.compute(graph, arrays))
        if len(results) == 1:
            assert kernel_count(graph) == kernels, graph.explain()
    for name, expected in results[1].items():
        found = results[0][name]
        tolerance = 1e-2 if found.dtype == np.float16 else 2e-5
        np.testing.assert_allclose(known(found), known(expected), rtol=tolerance, atol=tolerance, err_msg=name)


def normal(*shape: int, data_type: str = "float32") -> np.ndarray:
    return generator.standard_normal(shape).astype(data_type)


def heads(queries: int, keys: int, *, groups: int = 2, size: int = 64, data_type: str = "float32") -> dict[str, Any]:
    q = normal(2, 4, queries, size, data_type=data_type)
    k, v = (normal(2, groups, keys, n, data_type=data_type) for n in (size, size // 2))
    return {"query": q, "key": k, "value": v}


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_many_queries_is_one_kernel(causal: bool, data_type: str) -> None:
    def build(b: Any, **operands: Any) -> Any:
        return composites.scaled_dot_product_attention(b, **operands, causal=causal)

    compare(build, heads(150, 133, data_type=data_type), 1)


def test_attention_of_few_queries_splits_keys() -> None:
    compare(composites.scaled_dot_product_attention, heads(1, 700), 2)
    compare(composites.scaled_dot_product_attention, heads(3, 301, size=24), 2)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("shape", [(5, 300), (2, 1, 1, 300), (4, 5, 1)])
def test_masks_hide_keys_or_add_to_scores(shape: tuple[int, ...]) -> None:
    arrays, hides = heads(5, 300), generator.random(shape) < 0.3
    if shape[-1] > 1:
        hides[..., 0, :] = True  # one query sees no key
    for mask in ((~hides).astype("uint8"), np.where(hides, -np.inf, 1).astype("float32")):
        compare(composites.scaled_dot_product_attention, {**arrays, "mask": mask}, 2)


def test_multi_head_attention_of_joined_heads() -> None:
    arrays = {"query": normal(1, 70, 4 * 16), "key": normal(1, 90, 4 * 16), "value": normal(1, 90, 4 * 8)}

    def build(b: Any, **operands: Any) -> Any:
        return composites.multi_head_attention(b, **operands, heads=4, causal=True)

    compare(build, arrays, 1)


@pytest.mark.parametrize("size", [20, 128, 512, 4500])
def test_heads_of_all_sizes_fit_into_the_least_workgroup_memory(size: int) -> None:
    context = limited(max_shared=16384, max_invocations=256, max_buffers=8)
    arrays = {name: normal(1, 1, 9, size) for name in ("query", "key", "value")}
    compare(composites.scaled_dot_product_attention, arrays, 1, context)


@pytest.mark.long
def test_attention_of_very_many_keys() -> None:
    """Mesa's software adapter, which ends loops after 65,535 iterations, divides the keys here."""
    arrays = {"query": normal(1, 40, 8, 64), "key": normal(1, 1, 36000, 64), "value": normal(1, 1, 36000, 8)}
    kernels = 2 if engine_of(gpu_context()).features.is_software else 1
    compare(composites.scaled_dot_product_attention, arrays, kernels)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"window": 40},
    {"softcap": 2.0, "sinks": True},
    {"cosines": True, "interleaved": True},
    {"cosines": True, "window": 300, "sinks": True, "bias": True},
]


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
@pytest.mark.parametrize("new", [1, 3, 40])
def test_attention_with_kv_cache(new: int, options: dict[str, Any]) -> None:
    size, room, rows = 16, 320, 400
    arrays = {"query": normal(2, new, 4 * size), "key": normal(2, new, 2 * size), "value": normal(2, new, 2 * size)}
    arrays |= {"past_key": normal(2, 2, room, size), "past_value": normal(2, 2, room, size)}
    rest = dict(options)
    if rest.pop("sinks", False):
        arrays["sinks"] = normal(4)
    if rest.pop("bias", False):
        arrays["bias"] = normal(4, new, room)
    if rest.pop("cosines", False):
        angles = np.outer(np.arange(rows), [1, 0.3, 0.1, 0.03, 0.01]).astype("float32")
        arrays |= {"cosines": np.cos(angles), "sines": np.sin(angles)}
    lengths = np.int32([room - new, 17])
    for name in ("past_key", "past_value"):
        arrays[name][1, :, 17:] = np.nan  # room, which may hold anything

    def build(b: Any, **operands: Any) -> Any:
        return composites.group_query_attention(b, **operands, heads=4, groups=2, **rest)

    compare(build, {**arrays, "lengths": lengths}, 4 if new == 1 else 5, known=lambda array: np.nan_to_num(array))

    for name in ("past_key", "past_value"):
        arrays[name] = normal(2, 2, room, size)
    if "bias" in arrays:
        arrays["bias"] = normal(4, new, room + new)
    compare(build, arrays, 4)


@pytest.mark.parametrize(("new", "room", "counts"), [(2, 40, {8: 5, 9: 4}), (1, 160, {8: 6, 9: 5, 10: 5, 11: 4})])
def test_attention_with_few_buffers(new: int, room: int, counts: dict[int, int]) -> None:
    """It rotates the queries first, or writes the new key of one token first."""
    size = 16
    arrays = {"query": normal(1, new, 4 * size), "key": normal(1, new, 2 * size), "value": normal(1, new, 2 * size)}
    arrays |= {"past_key": normal(1, 2, room, size), "past_value": normal(1, 2, room, size)}
    arrays |= {"cosines": normal(room, 8), "sines": normal(room, 8), "lengths": np.int32([9])}
    arrays |= {"bias": normal(new, room), "sinks": normal(4)}

    def build(b: Any, **operands: Any) -> Any:
        return composites.group_query_attention(b, **operands, heads=4, groups=2)[0]

    for most, kernels in counts.items():
        compare(build, arrays, kernels, limited(max_buffers=most))


@pytest.mark.parametrize("room", [8, 160])
def test_attention_cache_is_updated_in_place(room: int) -> None:
    size, context = 16, gpu_context()
    builder = ow.MLGraphBuilder(context)
    query = builder.input("query", "float32", [1, 1, 2 * size])
    key, value = (builder.input(name, "float32", [1, 1, size]) for name in ("key", "value"))
    past = [builder.input(name, "float32", [1, 1, room, size]) for name in ("past_key", "past_value")]
    lengths = builder.input("lengths", "int32", [1])
    y, keys, values = composites.group_query_attention(query, key, value, *past, lengths, heads=2, groups=1)
    graph = builder.build({"y": y, "past_key": keys, "past_value": values})
    arrays = {name: normal(*desc.shape) for name, desc in graph.inputs.items() if name != "lengths"}
    arrays["lengths"] = np.array([3], "int32")
    expected = context.compute(graph, arrays)
    inputs = {}
    for name, desc in graph.inputs.items():
        inputs[name] = context.create_tensor(desc.data_type, desc.shape, readable=True, writable=True)
        context.write_tensor(inputs[name], arrays[name])
    memory = {name: inputs[name] for name in ("past_key", "past_value")}
    result = context.create_tensor("float32", y.shape, readable=True)
    ow.memory.copies.reset()
    context.dispatch(graph, inputs, {"y": result, **memory})
    assert ow.memory.copies.count == 0
    for name, tensor in {"y": result, **memory}.items():
        np.testing.assert_array_equal(context.read_tensor(tensor), expected[name], err_msg=name)
    others = {name: context.create_tensor("float32", tensor.shape, readable=True) for name, tensor in memory.items()}
    ow.memory.copies.reset()
    context.dispatch(graph, inputs, {"y": result, **others})
    assert ow.memory.copies.count == 2
    assert graph.profile(inputs, outputs={"y": result, **memory}, repeat=2).steps


def test_attention_infinite_value_of_masked_key() -> None:
    """The reference multiplies it by 0, which is NaN; kernels may skip the key (docs/composites.md)."""
    arrays = {name: generator.standard_normal((1, 1, 100, 16)).astype("float32") for name in ("query", "key", "value")}
    place, results, reference = 70, [], ow.ml.create_context(device="reference")
    finite = {**arrays, "value": arrays["value"].copy()}
    arrays["value"][..., place, 3] = np.inf
    for context, given in ((reference, arrays), (reference, finite), (gpu_context(), arrays)):
        builder = ow.MLGraphBuilder(context)
        operands = [builder.input(name, "float32", array.shape) for name, array in given.items()]
        y = composites.scaled_dot_product_attention(builder, *operands, causal=True)
        results.append(context.compute(builder.build({"y": y}), given)["y"][0, 0])
    wanted, without, found = results
    assert np.isnan(wanted[:place, 3]).all()
    skipped = ~np.isnan(found[:place, 3])
    np.testing.assert_allclose(found[:place, 3][skipped], without[:place, 3][skipped], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(found[place:], wanted[place:], rtol=2e-5, atol=2e-5)
    assert skipped.any()
    assert not skipped.all()


def test_other_operations_read_constant_keys_and_values() -> None:
    keys, values = normal(1, 4, 64), normal(1, 4, 64)

    def build(b: Any, query: Any) -> Any:
        past = [b.constant(np.ones((1, 2, 3, 32), "float32")) for _ in range(2)]
        new = [b.constant(array) for array in (keys, values)]
        y, *memory = composites.group_query_attention(b, query, *new, *past, heads=4, groups=2)
        return y, *(b.add(present, present) for present in memory)

    compare(build, {"query": normal(1, 4, 128)}, 3)
