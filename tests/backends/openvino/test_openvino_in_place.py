"""OpenVINO computes in place of first operands, which must not be what it computed while it loaded the graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from samples import SAMPLES, Call, type_choices
from support.openvino_device import openvino_context
from support.seeded import SeededMake

import opweave as ow
from opweave.backends.openvino import devices, sessions
from opweave.core.operation import Op

CALLS = 6
"""Calls for each choice of data types: of fewer, none may have a constant with the shape of the result."""


def overwritten(model: Any) -> list[str]:
    """Return the nodes of a model whose results the engine would write in place of what it computed at load.

    The first run of such a model is right, and all later ones are wrong. By experiments with the engine, these are
    element-wise nodes whose first operand has the shape of the result, or both have the shape [] or [1], if the operand was
    computed from constants and is not one of two outputs of a split. Views of such an output are overwritten, too.
    """
    from openvino.passes import ConstantFolding, Manager

    folded, manager = model.clone(), Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(folded)
    varying: set[str] = set()
    places = []
    for node in folded.get_ordered_ops():
        sources = [node.input_value(k).get_node() for k in range(node.get_input_size())]
        if node.get_type_name() != "Parameter" and not any(one.get_friendly_name() in varying for one in sources):
            continue
        varying.add(node.get_friendly_name())
        if not sources or sources[0].get_friendly_name() in varying or node.get_type_name() == "Result":
            continue
        if sources[0].get_type_name() == "Constant" or sources[0].get_output_size() > 1:
            continue
        shapes = [list(node.input_value(0).get_shape()), list(node.output(0).get_shape())]
        if shapes[0] == shapes[1] or all(shape in ([], [1]) for shape in shapes):
            places.append(f"{node.get_type_name()} in place of {sources[0].get_type_name()}{shapes[0]}")
    return places


def graphs_of(op: Op[..., Any], call: Call) -> Iterator[tuple[ow.MLGraphBuilder, dict[str, Any]]]:
    """Yield the graphs of a call that have one operand as input, and constants for the others."""
    values = [*call.args, *call.kwargs.values()]
    count = sum(
        isinstance(item, np.ndarray) for value in values for item in (value if isinstance(value, list) else [value])
    )
    for chosen in range(count):
        builder, numbers = ow.MLGraphBuilder(openvino_context()), iter(range(count))

        def operand(value: Any) -> Any:
            if isinstance(value, list):
                return [operand(item) for item in value]
            if not isinstance(value, np.ndarray):
                return value
            is_input = next(numbers) == chosen  # noqa: B023
            return builder.input("x", value.dtype.name, value.shape) if is_input else builder.constant(value)  # type: ignore[arg-type] # noqa: B023

        with suppress(ow.MLError):  # some operands must be constants, and some not
            result = op(builder, *map(operand, call.args), **{name: operand(v) for name, v in call.kwargs.items()})
            results = result if isinstance(result, tuple) else (result,)
            yield builder, {f"y{k}": one for k, one in enumerate(results)}


@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in SAMPLES])
def test_results_are_not_in_place_of_what_is_computed_at_load(
    op: Op[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = openvino_context().backend.limits(op)
    places: list[str] = []

    def compile_model(model: Any, *_: Any) -> Any:
        places.extend(overwritten(model))
        raise RuntimeError("not compiled")

    core = SimpleNamespace(compile_model=compile_model)
    monkeypatch.setattr(sessions, "devices", SimpleNamespace(**(vars(devices) | {"core": lambda: core})))
    for types in type_choices(op, limits):
        for seed in range(CALLS):
            for builder, outputs in graphs_of(op, SAMPLES[op].make(SeededMake(seed, types))):
                with suppress(ow.MLError):
                    builder.build(outputs)
    assert not places
