"""Attention on tensor cores in a graph, on a GPU (`make test-gpu`) or with Triton's interpreter, against the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.cuda_driver import HARDWARE
from triton_cases import array

import opweave as ow
from opweave import composites
from opweave.backends.cuda import compiler
from opweave.backends.gpu.rules import flash_tensor
from opweave.context.graph import program_of

pytestmark = pytest.mark.skipif(not compiler.triton_version(), reason="needs the extra cuda: make test-cuda")

REFERENCE = ow.ml.create_context(device="reference")
TOLERANCES = {"float32": 5e-5, "float16": 5e-3}
"""Relative to the largest element."""

ON_GPU = pytest.mark.skipif(not HARDWARE, reason="takes long without a GPU: make test-gpu")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_tensor, "MIN_PRODUCTS", 0)


def compare(context: ow.MLContext, build: Callable[..., Any], arrays: dict[str, np.ndarray]) -> None:
    """The results are those of the reference, and the kernel is the one in Triton."""
    results = []
    for each in (context, REFERENCE):
        builder = ow.MLGraphBuilder(each)
        operands = {name: builder.input(name, a.dtype.name, a.shape) for name, a in arrays.items()}  # type: ignore[arg-type]
        graph = builder.build({"y": build(builder, **operands)})
        results.append(np.asarray(each.compute(graph, arrays)["y"], "float32"))
        if each is context:
            runners: list[Any] = [step.part.runner for step in program_of(graph).steps if step.part]
            kernels = [step.kernel for runner in runners for step in runner.steps]
            assert kernels[-1].compiler == "triton", [kernel.title for kernel in kernels]
    found, wanted = results
    (tolerance,) = {TOLERANCES[a.dtype.name] for name, a in arrays.items() if name == "query"}
    largest = float(np.abs(wanted[np.isfinite(wanted)]).max())
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * largest)


def dot_product(**options: Any) -> Callable[..., Any]:
    return lambda b, query, key, value, mask=None: composites.scaled_dot_product_attention(
        b, query, key, value, mask=mask, **options
    )


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys", "size", "values"),
    [
        (18, 22, 16, 20),
        *(pytest.param(*sizes, marks=ON_GPU) for sizes in [(64, 64, 64, 64), (200, 333, 64, 64), (513, 513, 128, 128)]),
        *(
            pytest.param(*sizes, marks=ON_GPU)
            for sizes in [(129, 100, 24, 33), (96, 160, 256, 256), (1024, 1024, 80, 80)]
        ),
    ],
)
def test_sizes(
    device_context: ow.MLContext, queries: int, keys: int, size: int, values: int, causal: bool, data_type: str
) -> None:
    arrays = {
        "query": array(2, 4, queries, size, data_type=data_type),
        "key": array(2, 2, keys, size, data_type=data_type),
        "value": array(2, 2, keys, values, data_type=data_type),
    }
    compare(device_context, dot_product(causal=causal), arrays)


@pytest.mark.parametrize("kind", ["float32", "uint8"])
@pytest.mark.parametrize("causal", [False, True])
def test_masks(device_context: ow.MLContext, kind: str, causal: bool) -> None:
    """Some queries see no key at all."""
    queries, keys = (300, 200) if HARDWARE else (19, 24)
    arrays = {"query": array(1, 2, queries, 32), "key": array(1, 2, keys, 32), "value": array(1, 2, keys, 32)}
    mask = array(queries, keys)
    if kind == "uint8":
        mask = (mask > 0).astype(np.uint8)
        mask[7] = 0
    else:
        mask[:, 3] = -np.inf
    compare(device_context, dot_product(causal=causal), {**arrays, "mask": mask})


@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_cache_of_int8(device_context: ow.MLContext, data_type: str) -> None:
    """A prompt behind a cache of int8, which the kernel reads; room that is not used has scales of NaN."""
    new, room, length = (200, 700, 300) if HARDWARE else (17, 50, 20)
    arrays = {
        "query": array(1, new, 64, data_type=data_type),
        "key": array(1, new, 32, data_type=data_type),
        "value": array(1, new, 32, data_type=data_type),
        "lengths": np.array([length], "int32"),
    }
    for kind in ("key", "value"):
        arrays[f"past_{kind}"] = (array(1, 2, room, 16) * 40).clip(-127, 127).astype("int8")
        arrays[f"past_{kind}_scale"] = np.full((1, 2, room), 0.02, "float32")
        arrays[f"past_{kind}_scale"][..., length:] = np.nan

    def build(b: ow.MLGraphBuilder, **operands: Any) -> Any:
        return composites.group_query_attention(b, **operands, heads=4, groups=2)[0]

    compare(device_context, build, arrays)


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("options", [{}, {"window": 20}, {"softcap": 3.0}])
def test_lengths(device_context: ow.MLContext, options: dict[str, Any], data_type: str) -> None:
    """Prompts behind caches of different lengths, whose rooms hold NaN."""
    new, room = (200, 700) if HARDWARE else (17, 50)
    arrays = {
        "query": array(2, new, 64, data_type=data_type),
        "key": array(2, new, 32, data_type=data_type),
        "value": array(2, new, 32, data_type=data_type),
        "past_key": array(2, 2, room, 16, data_type=data_type),
        "past_value": array(2, 2, room, 16, data_type=data_type),
        "lengths": np.int32([room - new, 5]),
    }
    for batch, length in enumerate((room - new, 5)):
        arrays["past_key"][batch, :, length:] = arrays["past_value"][batch, :, length:] = np.nan

    def build(b: ow.MLGraphBuilder, **operands: Any) -> Any:
        return composites.group_query_attention(b, **operands, heads=4, groups=2, **options)[0]

    compare(device_context, build, arrays)
