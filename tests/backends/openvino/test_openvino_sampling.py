"""Sampling at the positions of a grid on OpenVINO, where its rule applies, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.openvino_device import openvino_context

import opweave as ow
from opweave import composites

REFERENCE = ow.ml.create_context(device="reference")


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample_equals_reference(mode: Any, padding_mode: Any, align_corners: bool) -> None:
    options: dict[str, Any] = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    random = np.random.default_rng(len(mode) + len(padding_mode))
    is_composed = False
    for data_type, grid_type in (("float32", "float32"), ("float16", "float32"), ("float32", "float16")):
        batches, channels, height, width = (int(random.integers(*ends)) for ends in ((1, 3), (8, 18), (1, 9), (1, 9)))
        x = random.standard_normal((batches, channels, height, width)).astype(data_type)
        grid = random.uniform(-3, 3, (batches, 5, 7, 2)).astype(grid_type)
        far = 1e30 if grid_type == "float32" else 6e4
        grid[0, 0, :4, 0] = [np.nan, np.inf, -np.inf, far]
        results = []
        for context in (REFERENCE, openvino_context()):
            builder = ow.MLGraphBuilder(context)
            operands = builder.input("x", x.dtype.name, x.shape), builder.input("grid", grid.dtype.name, grid.shape)
            graph = builder.build({"y": composites.grid_sample(builder, *operands, **options)})
            is_composed = "OpenVINO" in graph.explain().splitlines()[-1]
            results.append(context.compute(graph, {"x": x, "grid": grid})["y"])
        tolerance = 2e-2 if data_type == "float16" else 1e-4
        np.testing.assert_allclose(*results, rtol=tolerance, atol=tolerance)
    assert is_composed == (mode != "cubic" or padding_mode == "zeros")
