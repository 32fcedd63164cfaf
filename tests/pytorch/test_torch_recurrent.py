"""GRU and LSTM against PyTorch's, for the options that it has: a witness that shares nothing with this project."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opweave as ow

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test-torch` installs it")

STEPS, BATCHES, INPUTS, HIDDEN = 7, 3, 5, 4
TORCH_LAYOUTS = {"gru": "rzn", "lstm": "ifgo"}
"""The order of the gates in PyTorch's weights."""
LAYOUTS = {"gru": ("zrn", "rzn"), "lstm": ("iofg", "ifgo")}


def reordered(array: np.ndarray, layout: str, wanted: str) -> np.ndarray:
    """The blocks of rows of an array [directions, rows, …] in another order."""
    blocks = np.split(array, len(layout), axis=1)
    return np.concatenate([blocks[layout.index(gate)] for gate in wanted], axis=1)


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("initial", [False, True], ids=["zeros", "initial"])
@pytest.mark.parametrize("bias", [False, True], ids=["unbiased", "bias"])
@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
@pytest.mark.parametrize(("name", "layout"), [(name, layout) for name in LAYOUTS for layout in LAYOUTS[name]])
def test_sequence_agrees_with_torch(
    name: str, layout: str, direction: str, bias: bool, initial: bool, device: str
) -> None:
    torch.manual_seed(0)
    both = direction == "both"
    module_type = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[name]
    module = module_type(INPUTS, HIDDEN, bias=bias, bidirectional=both)
    x = torch.randn(STEPS, BATCHES, INPUTS)
    shape = (2 if both else 1, BATCHES, HIDDEN)
    names = ["initial_hidden_state", "initial_cell_state"][: 1 if name == "gru" else 2]
    states = [torch.randn(shape) if initial else torch.zeros(shape) for _ in names]
    with torch.no_grad():
        given = states[0] if name == "gru" else tuple(states)
        # PyTorch has no backward direction alone: it is the forward one over the sequence turned round.
        sequence, last = module(x.flip(0) if direction == "backward" else x, given)
    wanted = [last] if name == "gru" else list(last)
    sequence = sequence.flip(0) if direction == "backward" else sequence
    wanted.append(sequence.reshape(STEPS, BATCHES, shape[0], HIDDEN).transpose(1, 2))

    def parameter(kind: str) -> np.ndarray:
        suffixes = ("", "_reverse") if both else ("",)
        stacked = torch.stack([getattr(module, f"{kind}_l0{suffix}").detach() for suffix in suffixes]).numpy()
        return reordered(stacked, TORCH_LAYOUTS[name], layout)

    builder = ow.MLGraphBuilder(ow.ml.create_context(device=device))
    options: dict[str, Any] = {}
    if bias:
        options = {"bias": parameter("bias_ih"), "recurrent_bias": parameter("bias_hh")}
    if initial:
        options |= {name: state.numpy() for name, state in zip(names, states, strict=True)}
    results = getattr(builder, name)(
        builder.input("x", "float32", x.shape),
        *(parameter("weight_ih"), parameter("weight_hh"), STEPS, HIDDEN),
        direction=direction,
        layout=layout,
        return_sequence=True,
        **options,
    )
    graph = builder.build({str(k): result for k, result in enumerate(results)})
    got = builder.context.compute(graph, {"x": x.numpy()})
    for k, expected in enumerate(wanted):
        np.testing.assert_allclose(got[str(k)], expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("bias", [False, True], ids=["unbiased", "bias"])
@pytest.mark.parametrize(("name", "layout"), [(name, layout) for name in LAYOUTS for layout in LAYOUTS[name]])
def test_cell_agrees_with_torch(name: str, layout: str, bias: bool, device: str) -> None:
    torch.manual_seed(0)
    module_type = {"gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}[name]
    module = module_type(INPUTS, HIDDEN, bias=bias)
    x = torch.randn(BATCHES, INPUTS)
    states = [torch.randn(BATCHES, HIDDEN) for _ in range(1 if name == "gru" else 2)]
    with torch.no_grad():
        made = module(x, states[0] if name == "gru" else tuple(states))
    wanted = [made] if name == "gru" else list(made)

    def parameter(kind: str) -> np.ndarray:
        rows: np.ndarray = getattr(module, kind).detach().numpy()
        return reordered(rows[np.newaxis], TORCH_LAYOUTS[name], layout).reshape(rows.shape)

    builder = ow.MLGraphBuilder(ow.ml.create_context(device=device))
    options = {"bias": parameter("bias_ih"), "recurrent_bias": parameter("bias_hh")} if bias else {}
    result = getattr(builder, f"{name}_cell")(
        builder.input("x", "float32", x.shape),
        *(parameter("weight_ih"), parameter("weight_hh"), *(state.numpy() for state in states), HIDDEN),
        layout=layout,
        **options,
    )
    results = result if isinstance(result, tuple) else (result,)
    graph = builder.build({str(k): operand for k, operand in enumerate(results)})
    got = builder.context.compute(graph, {"x": x.numpy()})
    for k, expected in enumerate(wanted):
        np.testing.assert_allclose(got[str(k)], expected.numpy(), rtol=1e-5, atol=1e-6)
