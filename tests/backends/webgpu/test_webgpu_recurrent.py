"""`gru` and `lstm` on WebGPU devices: all options beside the reference, and how many kernels there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.webgpu_device import gpu_context
from support.webgpu_kernels import engine_of, kernel_count, kernels_of

import opweave as ow
from opweave.backends.gpu.rules.sequences import MAX_HIDDEN_SIZE

pytest.importorskip("wgpu", reason="wgpu is not installed")

BATCHES, INPUTS = 2, 3


def check_recurrent(
    op: str,
    hidden_size: int,
    given: str = "",
    *,
    data_type: Any = "float32",
    constant: bool = True,
    batches: int = BATCHES,
    kernels: int = 2,
    steps: int = 5,
    **options: Any,
) -> None:
    """Compare a network with the reference; `given` names its optional operands."""
    generator = np.random.default_rng(0)
    gates, directions = 3 if op == "gru" else 4, 2 if options.get("direction") == "both" else 1
    shapes = {
        "bias": (directions, gates * hidden_size),
        "recurrent_bias": (directions, gates * hidden_size),
        "peephole_weight": (directions, 3 * hidden_size),
        "initial_hidden_state": (directions, batches, hidden_size),
        "initial_cell_state": (directions, batches, hidden_size),
    }
    shapes = {name: shapes[name] for name in given.split()}
    shapes["weight"] = (directions, gates * hidden_size, INPUTS)
    shapes["recurrent_weight"] = (directions, gates * hidden_size, hidden_size)
    arrays = {name: generator.standard_normal(shape) / hidden_size**0.5 for name, shape in shapes.items()}
    arrays = {name: array.astype(data_type) for name, array in arrays.items()}
    x = generator.standard_normal((steps, batches, INPUTS)).astype(data_type)
    results = []
    for context in (gpu_context(), ow.ml.create_context(device="reference")):
        builder = ow.MLGraphBuilder(context)
        operands = {
            name: builder.constant(a) if constant else builder.input(name, data_type, a.shape)
            for name, a in arrays.items()
        }
        input = builder.input("input", data_type, x.shape)
        found = getattr(builder, op)(input, steps=steps, hidden_size=hidden_size, **operands, **options)
        graph = builder.build({f"y{k}": result for k, result in enumerate(found)})
        feeds = {"input": x} if constant else {"input": x, **arrays}
        results.append(context.compute(graph, feeds))
        if len(results) == 1:
            assert kernel_count(graph) == kernels, graph.explain()
    assert len(results[0]) == len(results[1])
    tolerance = 2e-3 if data_type == "float16" else 2e-5
    for name, expected in results[1].items():
        assert results[0][name].dtype == expected.dtype
        np.testing.assert_allclose(results[0][name], expected, rtol=tolerance, atol=tolerance, err_msg=name)


STATES = "initial_hidden_state initial_cell_state"


@pytest.mark.parametrize("reset_after", [True, False])
@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_gru(direction: str, reset_after: bool) -> None:
    check_recurrent(
        "gru", 20, "bias recurrent_bias", direction=direction, reset_after=reset_after, return_sequence=True
    )


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_lstm(direction: str) -> None:
    check_recurrent(
        "lstm", 20, f"bias recurrent_bias peephole_weight {STATES}", direction=direction, return_sequence=True
    )


def test_layouts_and_activations() -> None:
    functions = ["relu", "sigmoid", "tanh"]
    check_recurrent("gru", 7, "initial_hidden_state", layout="rzn", activations=functions[:2], reset_after=False)
    check_recurrent("lstm", 7, f"peephole_weight {STATES}", layout="ifgo", activations=functions, return_sequence=True)


def test_half_precision() -> None:
    check_recurrent("gru", 33, "bias recurrent_bias", data_type="float16", return_sequence=True, batches=1)
    check_recurrent("lstm", 33, f"recurrent_bias {STATES}", data_type="float16", return_sequence=True, batches=1)


def test_recurrent_computed_weights_are_transposed_by_kernel() -> None:
    check_recurrent("gru", 20, "bias", constant=False, kernels=3, direction="both")
    check_recurrent("lstm", 20, "bias", constant=False, kernels=3, data_type="float16")


@pytest.mark.parametrize("op", ["gru", "lstm"])
def test_recurrent_largest_hidden_size_of_one_kernel(op: str) -> None:
    check_recurrent(op, MAX_HIDDEN_SIZE, "bias", batches=1, **({"reset_after": False} if op == "gru" else {}))


@pytest.mark.long(rows=1)
@pytest.mark.parametrize(
    ("op", "given", "batches", "kernels", "options"),
    [
        ("gru", "bias recurrent_bias initial_hidden_state", 6, 8, {"direction": "both", "return_sequence": True}),
        ("gru", "recurrent_bias", 1, 13, {"reset_after": False, "direction": "backward", "layout": "rzn"}),
        ("gru", "initial_hidden_state", 2, 13, {"reset_after": False, "return_sequence": True, "data_type": "float16"}),
        ("lstm", f"bias recurrent_bias peephole_weight {STATES}", 5, 9, {"direction": "both", "return_sequence": True}),
        ("lstm", "", 1, 9, {"layout": "ifgo", "data_type": "float16", "return_sequence": True}),
    ],
)
def test_recurrent_large_hidden_size_has_kernel_per_step(
    op: str, given: str, batches: int, kernels: int, options: dict[str, Any]
) -> None:
    """The weighted inputs, the first states, five steps of one kernel or two, and the last states."""
    check_recurrent(op, MAX_HIDDEN_SIZE + 13, given, batches=batches, kernels=kernels, **options)


@pytest.mark.long
def test_recurrent_step_kernels_are_compiled_once() -> None:
    context = gpu_context()
    builder = ow.MLGraphBuilder(context)
    weight, recurrent = (np.zeros((1, 3 * 300, size), "float32") for size in (INPUTS, 300))
    x = builder.input("x", "float32", [200, 1, INPUTS])
    (y,) = builder.gru(x, weight, recurrent, steps=200, hidden_size=300)
    graph = builder.build({"y": y})
    kernels = kernels_of(graph)
    assert (len(kernels), len({kernel.source for kernel in kernels})) == (203, 4)
    assert context.compute(graph, {"x": np.ones((200, 1, INPUTS), "float32")})["y"].tolist() == [[[0.0] * 300]]


@pytest.mark.long
@pytest.mark.parametrize("op", ["gru", "lstm"])
def test_recurrent_long_sequence_is_divided(op: str) -> None:
    """Mesa's software adapter leaves all loops of an invocation after 65,535 iterations, without an error."""
    given = "bias initial_hidden_state" + (" initial_cell_state" if op == "lstm" else "")
    kernels = 3 if engine_of(gpu_context()).features.is_software else 2
    check_recurrent(
        op, MAX_HIDDEN_SIZE, given, batches=1, steps=300, return_sequence=True, direction="backward", kernels=kernels
    )
