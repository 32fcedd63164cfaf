"""Fourier transforms of real numbers in complex form, and those of which only the real part is read."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
from support.every_device import DEVICES, context_on

import opweave as ow
from opweave import composites
from opweave.compile.legalise import legalise
from opweave.compile.real_parts import read_real_parts
from opweave.core.graph import Graph, Node

Pick = Callable[[Any, Any], Any]
PICKS: dict[str, tuple[Pick, str]] = {
    "gather": (lambda b, y: b.gather(y, b.constant(np.int32(0)), axis=2), "real"),
    "gather of both": (lambda b, y: b.gather(y, b.constant(np.int32([0, 1])), axis=2), "both"),
    "gather of rows": (lambda b, y: b.gather(y, b.constant(np.int32(0)), axis=1), "both"),
    "slice": (lambda b, y: b.slice(y, [0, 0, 0], [3, y.shape[1], 1]), "real"),
    "slice of imaginary parts": (lambda b, y: b.slice(y, [0, 0, 1], [3, y.shape[1], 1]), "both"),
    "two readers": (lambda b, y: b.mul(b.slice(y, [0, 0, 0], [3, y.shape[1], 1]), y), "both"),
    "output": (lambda b, y: y, "both"),
}


@pytest.mark.parametrize("name", PICKS)
def test_only_real_parts_are_computed_where_nothing_reads_the_others(name: str) -> None:
    pick, parts = PICKS[name]
    b = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    y = pick(b, composites.dft(b, b.input("x", "float32", [3, 8, 2])))
    graph = Graph.reaching({"y": y})
    narrow, origin = read_real_parts(graph, {node: node for node in graph.nodes})
    assert [node.attributes["parts"] for node in narrow.nodes if node.op.name == "dft"] == [parts]
    assert [origin[node] for node in narrow.nodes] == list(graph.nodes)
    assert narrow.outputs["y"].desc == graph.outputs["y"].desc


def _products(graph: Graph) -> list[tuple[int, ...]]:
    """The shapes of the matrices of products."""

    def supports(node: Node) -> bool:
        return node.op.name != "dft"

    legal, _ = legalise(read_real_parts(graph, {node: node for node in graph.nodes})[0], supports)
    return [node.inputs["b"].shape for node in legal.nodes if node.op.name == "matmul"]  # type: ignore[union-attr]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("length", [9, 521, 528])
def test_transforms_of_real_numbers_with_zeros(length: int, device: str) -> None:
    """As of numbers with zeros that are known only at a run: infinity and NaN reach the same frequencies."""
    x = np.random.default_rng(0).standard_normal((3, length, 1)).astype("float32")
    x[1, 2], x[2, 3] = np.inf, np.nan
    zeros = np.zeros_like(x)
    with context_on(device) as context:
        b = ow.MLGraphBuilder(context)
        real, imaginary = b.input("real", "float32", x.shape), b.input("imaginary", "float32", x.shape)
        pick, _ = PICKS["gather"]
        # -0 is a zero, too.
        results = [pick(b, composites.dft(b, b.concat([real, part], 2))) for part in (b.constant(-zeros), imaginary)]
        shapes = [_products(Graph.reaching({"y": y})) for y in results]
        graph = b.build(dict(zip(("constant", "given"), results, strict=True)))
        computed = context.compute(graph, {"real": x, "imaginary": zeros})
    np.testing.assert_allclose(computed["constant"], computed["given"], rtol=1e-5, atol=1e-4)
    assert not np.isfinite(computed["constant"][1:]).any()
    products = [sum(map(prod, matrices)) for matrices in shapes]
    assert products[0] < products[1]
    assert length != 9 or products == [9 * 9, 18 * 9]
