"""Graphs with AveragePool are written in an older operator set, whose kernel is faster; nothing else may change with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import defs
from onnxruntime.capi import _pybind_state as engine

import opweave as ow
from opweave.backends.onnxruntime import ort
from opweave.backends.onnxruntime.kernels import PROVIDER
from opweave.backends.onnxruntime.records import _SAME_FOR_POOLING, OPSET, POOLING_OPSET
from opweave.context.graph import program_of

STANDARD = {f"tensor({name})" for name in ("float", "float16", "double", "bool")}
STANDARD |= {f"tensor({sign}int{bits})" for sign in ("", "u") for bits in (8, 16, 32, 64)}


def kernels(op_type: str, opset: int) -> dict[str, set[str]]:
    """The types of an operator's kernels, by the letter that its schema has for them."""
    found: dict[str, set[str]] = {}
    for kernel in engine.get_all_opkernel_def():
        first, last = kernel.version_range
        if (kernel.provider, kernel.domain, kernel.op_name) == (PROVIDER, "", op_type) and first <= opset <= last:
            for letter, types in kernel.type_constraints.items():
                found.setdefault(letter, set()).update(STANDARD & set(types))
    return found


@pytest.mark.parametrize("op_type", sorted(_SAME_FOR_POOLING))
def test_operators_are_the_same_in_both_sets(op_type: str) -> None:
    old, new = (defs.get_schema(op_type, version) for version in (POOLING_OPSET, OPSET))
    assert [value.name for value in old.inputs] == [value.name for value in new.inputs]
    assert set(new.attributes) - set(old.attributes) == ({"dilations"} if op_type == "AveragePool" else set())
    before, now = kernels(op_type, POOLING_OPSET), kernels(op_type, OPSET)
    assert now
    assert all(before[letter] >= types for letter, types in now.items())


def pooled(context: ow.MLContext, **options: Any) -> tuple[ow.MLGraph, int]:
    """A graph, and the operator set that it is written in."""
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [1, 4, 9, 9])
    y = builder.average_pool2d(x, window_dimensions=[3, 3], padding=[1, 1, 1, 1], strides=[2, 2], **options)
    graph = builder.build({"y": y})
    ctx, outputs, _ = ort.emit_graph(program_of(graph).graph)
    model = onnx.ModelProto.FromString(ctx.finish(outputs)[0])
    onnx.checker.check_model(model, full_check=True)
    return graph, next(entry.version for entry in model.opset_import if not entry.domain)


@pytest.mark.parametrize(("options", "opset"), [({}, POOLING_OPSET), ({"dilations": [2, 2]}, OPSET)])
def test_dilated_windows_need_the_newer_set(options: dict[str, Any], opset: int) -> None:
    graph, found = pooled(ow.ml.create_context(device="cpu"), **options)
    reference, _ = pooled(ow.ml.create_context(device="reference"), **options)
    assert found == opset
    x = np.random.default_rng(0).standard_normal((1, 4, 9, 9), np.float32)
    one, other = (g.context.compute(g, {"x": x})["y"] for g in (graph, reference))
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
