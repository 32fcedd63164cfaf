"""Kernels of graphs with names on CUDA are those of the static graph of the first sizes: the same tiles, splits and launches.

Nothing is compiled or run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import inf, prod
from typing import Any

import pytest
from support.cuda_driver import INFO, CpuDriver, context_on
from support.gpu_sizes import Build, build, weights
from support.webgpu_kernels import kernels_of

import opweave as ow
from opweave import composites as c
from opweave.backends.cuda import backend, compiler
from opweave.backends.cuda.driver import CudaFunction
from opweave.context import dynamic_graph_state
from opweave.context.graph import state_of
from opweave.core.size_values import values_at
from opweave.expr.gpu import GpuKernel
from opweave.support.background import background


class IdleDriver(CpuDriver):
    """A device that compiles nothing, and has no memory."""

    def functions(self, kernels: Sequence[GpuKernel]) -> list[CudaFunction]:
        return [CudaFunction(kernel, kernel.block) for kernel in kernels]

    def allocate(self, count: int) -> int:
        return 1 << 40

    def free(self, address: int) -> None:
        pass

    def upload(self, address: int, source: Any) -> None:
        pass


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> ow.MLContext:
    monkeypatch.setattr(backend.CudaBackend, "begin", lambda self, kernels: [])
    context = context_on(IdleDriver())
    context._state.drafts = True
    return context


def _layer(b: ow.MLGraphBuilder, x: Any, h: Any, tokens: Any, past: Any = None, heads: int = 12) -> Any:
    """A layer of an encoder, or of a decoder with `past` keys and values."""
    features = h.shape[1]
    size = features // heads

    def dense(value: Any, outputs: int) -> Any:
        return b.matmul(value, weights(b, x, value.shape[1], outputs))

    q, k, v = (
        b.transpose(b.reshape(dense(h, features), [tokens, heads, size]), permutation=[1, 0, 2]) for _ in range(3)
    )
    if past is not None:
        k, v = (b.concat([x(heads, past, size), new], 1) for new in (k, v))
    scores = b.matmul(q, b.transpose(k, permutation=[0, 2, 1])) * size**-0.5
    seen = b.transpose(b.matmul(b.softmax(scores, 2), v), permutation=[1, 0, 2])
    h = h + dense(b.reshape(seen, [tokens, features]), features)
    return h + dense(b.gelu(dense(b.layer_normalization(h, axes=[1]), 4 * features)), features)


def _excite(b: ow.MLGraphBuilder, x: Any, h: Any) -> Any:
    """Scale the channels by a function of their means."""
    scale = b.conv2d(b.average_pool2d(h), weights(b, x, 64, h.shape[1], 1, 1)).relu()
    scale = b.conv2d(scale, weights(b, x, h.shape[1], 64, 1, 1)).sigmoid()
    return b.conv2d(h * scale, weights(b, x, 64, h.shape[1], 1, 1))


CASES: dict[str, tuple[Build, list[dict[str, int]]]] = {
    "encoder": (lambda b, x, n, m: _layer(b, x, x(n, 384), n), [{"n": n} for n in (16, 64, 128, 1000)]),
    "encoder of batches": (
        lambda b, x, n, m: _layer(b, x, b.reshape(x(n, 64, 384), [n * 64, 384]), n * 64),
        [{"n": 1}, {"n": 8}],
    ),
    "decoder": (
        lambda b, x, n, m: _layer(b, x, x(n, 768), n, m),
        [{"n": 1, "m": 100}, {"n": 1, "m": 1000}, {"n": 64, "m": 64}, {"n": 256, "m": 1}],
    ),
    "grouped attention": (
        lambda b, x, n, m: c.group_query_attention(
            *(b, x(1, n, 2048), x(1, n, 512), x(1, n, 512), x(1, 8, m, 64), x(1, 8, m, 64)), heads=32, groups=8
        ),
        [{"n": 1, "m": 100}, {"n": 1, "m": 1000}, {"n": 64, "m": 10}],
    ),
    "one product": (
        lambda b, x, n, m: b.matmul(x(n, 1024), weights(b, x, 1024, 1024)).relu(),
        [{"n": n} for n in (1, 13, 40, 100, 1000)],
    ),
    "columns": (lambda b, x, n, m: b.matmul(x(40, 1024), x(1024, n)), [{"n": n} for n in (101, 1001)]),
    "terms": (lambda b, x, n, m: b.matmul(x(40, n), x(n, 64)), [{"n": n} for n in (33, 1000, 4096)]),
    "a vector and terms": (lambda b, x, n, m: b.matmul(x(12, 1, n), x(12, n, 64)), [{"n": n} for n in (100, 4096)]),
    "a vector and columns": (lambda b, x, n, m: b.matmul(x(12, 1, 64), x(12, 64, n)), [{"n": n} for n in (33, 1001)]),
    "images": (
        lambda b, x, n, m: b.conv2d(
            b.conv2d(x(1, 64, n, m), weights(b, x, 128, 64, 3, 3), padding=[1, 1, 1, 1], strides=[2, 2]).relu(),
            weights(b, x, 256, 128, 1, 1),
        ),
        [{"n": 56, "m": 56}, {"n": 20, "m": 30}, {"n": 8, "m": 8}],
    ),
    "one image and several": (
        lambda b, x, n, m: _excite(b, x, b.conv2d(x(n, 64, m, m), weights(b, x, 256, 64, 1, 1))),
        [{"n": 1, "m": 40}, {"n": 1, "m": 14}, {"n": 4, "m": 14}],
    ),
    "batches of images": (
        lambda b, x, n, m: b.conv2d(x(n, 256, 14, 14), weights(b, x, 256, 256, 3, 3), padding=[1, 1, 1, 1]).relu(),
        [{"n": 1}, {"n": 32}],
    ),
}


def _launches(graph: ow.MLGraph) -> list[tuple[Any, ...]]:
    """The method, tile and launch of each kernel. The first line of products is "// sizes; tile"."""
    return [
        (
            kernel.source.splitlines()[0].split("; ")[1:],
            kernel.workgroups,
            kernel.block,
            kernel.compiler,
            kernel.options,
            kernel.starts_early,
        )
        for kernel in kernels_of(graph)
    ]


@pytest.mark.skipif(not compiler.triton_version(), reason="needs the extra cuda: make test-cuda")
@pytest.mark.parametrize("name", CASES)
def test_kernels_are_those_of_the_first_sizes(context: ow.MLContext, name: str) -> None:
    make, sizes = CASES[name]
    for numbers in sizes:
        graph = _version_at(build(context, make, "float32"), numbers)
        expected = _launches(build(context, make, "float32", {"n": 1, "m": 1, **numbers}))
        assert _launches(graph) == expected, numbers


def _version_at(graph: ow.MLGraph, numbers: Mapping[str, int]) -> ow.MLGraph:
    """The graph with names after a call with sizes, which is not run."""
    shapes = {name: values_at(desc.shape, {"n": 1, "m": 1, **numbers}) for name, desc in graph.inputs.items()}
    state_of(graph).version_for("compute", shapes)  # type: ignore[attr-defined]
    return graph


@pytest.mark.skipif(not compiler.triton_version(), reason="needs the extra cuda: make test-cuda")
@pytest.mark.parametrize(("name", "programs"), [("decoder", 3), ("grouped attention", 2), ("encoder", 1)])
def test_lengths_take_few_programs(
    context: ow.MLContext, monkeypatch: pytest.MonkeyPatch, name: str, programs: int
) -> None:
    """A text without a past, and a single token of a decoder without a cache in one operation, have programs of their own."""
    monkeypatch.setattr(dynamic_graph_state, "FAR", inf)
    make, _ = CASES[name]
    graph = build(context, make, "float32")
    lengths = [(20, 0), (1, 20), (1, 21), (1, 500), (7, 501), (33, 508), (5, 0), (300, 0), (16, 301), (1, 3000)]
    for n, m in lengths if name != "encoder" else [(n, 1) for n in (20, 3, 64, 100, 500, 1000)]:
        _version_at(graph, {"n": n, "m": m})
    assert len(state_of(graph)._open) == programs  # type: ignore[attr-defined]


@pytest.mark.parametrize(("batches", "programs"), [([2, 3, 1, 5], 1), ([1, 2, 1, 5], 2)])
def test_single_images_have_kernels_if_they_come_first(
    context: ow.MLContext, monkeypatch: pytest.MonkeyPatch, batches: list[int], programs: int
) -> None:
    monkeypatch.setattr(dynamic_graph_state, "FAR", inf)
    graph = build(context, lambda b, x, n, m: b.conv2d(x(n, 64, m, 30), weights(b, x, 32, 64, 3, 3)), "float32")
    for n in batches:
        _version_at(graph, {"n": n, "m": 20 + n})
    assert len(state_of(graph)._open) == programs  # type: ignore[attr-defined]


@pytest.mark.skipif(not compiler.triton_version(), reason="needs the extra cuda: make test-cuda")
@pytest.mark.parametrize(
    ("height", "width", "stride", "multiple"), [(64, 64, 1, 16), (63, 64, 1, 16), (63, 66, 1, 1), (992, 992, 16, 4)]
)
def test_triton_knows_that_pixels_are_aligned(
    context: ow.MLContext, height: int, width: int, stride: int, multiple: int
) -> None:
    """Triton then loads and stores 16 bytes at once, as in the static kernel."""

    def make(b: ow.MLGraphBuilder, x: Any, n: Any, m: Any) -> Any:
        return b.conv2d(
            b.average_pool2d(x(1, 96, n, m), strides=[stride] * 2, window_dimensions=[1, 1]),
            weights(b, x, 96, 96, 1, 1),
        )

    *_, kernel = kernels_of(_version_at(build(context, make, "float32"), {"n": height, "m": width}))
    assert kernel.compiler == "triton"
    types = re.findall(r"'n0': '=i32:?(\d*)'", kernel.source)
    assert types == [str(multiple) if multiple > 1 else ""]


@pytest.mark.skipif(not compiler.triton_version(), reason="needs the extra cuda: make test-cuda")
@pytest.mark.parametrize(("channels", "first", "later"), [(64, 40, 48), (128, 20, 22)])
def test_parts_of_sums_fill_whole_waves(context: ow.MLContext, channels: int, first: int, later: int) -> None:
    """A few programs more than multiprocessors would take as long as a whole second wave."""
    graph = build(
        context,
        lambda b, x, n, m: b.conv2d(x(1, channels, n, m), weights(b, x, 64, channels, 3, 3), padding=[1, 1, 1, 1]),
        "float32",
    )
    for size in (first, later):
        partial, _ = _launches(_version_at(graph, {"n": size, "m": size}))
        assert prod(partial[1]) <= INFO.units, partial


def test_columns_are_computed_before_one_is_stored(context: ow.MLContext) -> None:
    """Loads of a bias, and a sigmoid, would wait for a preceding store to an array that may alias."""
    graph = build(
        context,
        lambda b, x, n, m: b.conv2d(x(1, 16, n, m), weights(b, x, 8, 16, 1, 1), bias=x(8)).sigmoid(),
        "float32",
    )
    text = kernels_of(_version_at(graph, {"n": 10, "m": 10}))[-1].source
    assert text.rindex("= finish(") < text.index("result[at")


DIVIDING: dict[str, Build] = {
    "windows": lambda b, x, n, m: b.conv2d(x(n, 16, m, m), weights(b, x, 32, 16, 3, 3), padding=[1, 1, 1, 1]),
    "groups": lambda b, x, n, m: b.conv2d(x(n, 16, m, m), weights(b, x, 16, 1, 3, 3), groups=16),
    "stacks": lambda b, x, n, m: b.matmul(x(n, m, 40, 40), x(1, m, 40, 40)),
    "vectors": lambda b, x, n, m: b.matmul(x(n, m, 1, 64), x(n, m, 64, 40)),
    "parts of sums": lambda b, x, n, m: b.matmul(x(n, m, 24, 4096), x(n, m, 4096, 24)),
}


@pytest.mark.parametrize("name", DIVIDING)
def test_products_divide_by_multipliers(context: ow.MLContext, name: str) -> None:
    """A division by a parameter takes about 20 instructions."""
    kernels = kernels_of(_version_at(build(context, DIVIDING[name], "float32"), {"n": 2, "m": 5}))
    text = "\n".join(kernel.source for kernel in kernels if not kernel.compiler)
    assert re.search(r"[/%] sizes\.d\d", text)
    assert not re.search(r"[^/][/%] (u32\()?sizes\.n\d", text)


def _tiles(graph: ow.MLGraph) -> list[Any]:
    return [(comment, *rest) for comment, _, *rest in _launches(graph)]


@pytest.mark.skipif(not compiler.triton_version(), reason="needs the extra cuda: make test-cuda")
def test_sizes_far_from_the_first_get_kernels_in_the_background(context: ow.MLContext) -> None:
    make, _ = CASES["one product"]
    graph = build(context, make, "float32")
    state = state_of(graph)
    expected = {n: _launches(build(context, make, "float32", {"n": n})) for n in (40, 1000)}
    first = _launches(_version_at(graph, {"n": 40}))
    before = _launches(_version_at(graph, {"n": 1000}))
    background.wait()
    assert state.tailored == 1  # type: ignore[attr-defined]
    after = _launches(_version_at(graph, {"n": 1000}))
    assert first == expected[40]
    assert before != after == expected[1000]
    assert _launches(_version_at(graph, {"n": 40})) == first
    assert "kernels chosen for n = 40; n = 1000: 1 program compiled in the background" in graph.explain()
    near = _tiles(_version_at(graph, {"n": 600}))
    background.wait()
    assert near == _tiles(_version_at(graph, {"n": 600}))
    assert state.tailored == 1  # type: ignore[attr-defined]


def test_equal_kernels_are_no_variant(context: ow.MLContext) -> None:
    graph = build(context, lambda b, x, n, m: b.softmax(x(64, n, 512), 2), "float32")
    for n in (800, 8000):
        _version_at(graph, {"n": n})
        background.wait()
    state = state_of(graph)
    assert (state.tailored, len(state._open), len(state._open[0].guards.similar)) == (0, 1, 1)  # type: ignore[attr-defined]


@pytest.mark.skipif(not compiler.triton_version(), reason="needs the extra cuda: make test-cuda")
def test_kernels_are_chosen_within_hints(context: ow.MLContext) -> None:
    """The first size is below the bounds, the last one above: kernels are those of the bounds."""
    make, _ = CASES["one product"]

    def graph_of(size: Any) -> ow.MLGraph:
        builder = ow.MLGraphBuilder(context)

        def x(*shape: Any) -> Any:
            return builder.input("x0", "float32", [size, 1024])

        x.data_type = "float32"  # type: ignore[attr-defined]
        return builder.build({"y": make(builder, x, size, 1)})

    graph = graph_of({"name": "n", "min_size": 400, "max_size": 500})
    low = _tiles(_version_at(graph, {"n": 40}))
    high = _tiles(_version_at(graph, {"n": 5000}))
    background.wait()
    assert low == high == _tiles(graph_of(400)) != _tiles(graph_of(40))
    assert state_of(graph).tailored == 0  # type: ignore[attr-defined]
