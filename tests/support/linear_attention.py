"""Operands of linear attention, and a loop over tokens in float64 that it must equal."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.witness import wide

Arrays = dict[str, NDArray[Any]]

RULES = ("linear", "gated", "delta", "gated_delta")


def operands_of(
    rule: str,
    *,
    batches: int = 1,
    tokens: int = 150,
    heads: int = 2,
    groups: int = 1,
    size: int = 8,
    values: int = 6,
    data_type: str = "float32",
    state: str = "float32",
    is_beta_shared: bool = False,
) -> Arrays:
    """Random operands; keys have the length 1, `state` is the data type of the past state, or empty for none."""
    rng = np.random.default_rng(0)
    key = rng.standard_normal((batches, tokens, groups, size))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    operands: Arrays = {
        "query": rng.standard_normal((batches, tokens, heads * size)),
        "key": key.reshape(batches, tokens, groups * size),
        "value": rng.standard_normal((batches, tokens, groups * values)),
    }
    if "gated" in rule:
        operands["decay"] = -abs(rng.standard_normal((batches, tokens, groups)))
    if "delta" in rule:
        operands["beta"] = rng.random((batches, tokens, 1 if is_beta_shared else groups))
    operands = {name: array.astype(data_type) for name, array in operands.items()}
    if state:
        operands["past_state"] = rng.standard_normal((batches, groups, size, values)).astype(state)
    return operands


def loop(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    past_state: NDArray[Any] | None = None,
    decay: NDArray[Any] | None = None,
    beta: NDArray[Any] | None = None,
    *,
    heads: int,
    groups: int,
    scale: float | None = None,
) -> list[NDArray[Any]]:
    """The outputs, and the last state."""
    batches, tokens, width = query.shape
    size, values = width // heads, value.shape[2] // groups
    q = wide(query).reshape(batches, tokens, groups, -1, size)
    k = wide(key).reshape(batches, tokens, groups, size)
    v = wide(value).reshape(batches, tokens, groups, values)
    state = np.zeros((batches, groups, size, values)) if past_state is None else wide(past_state)
    outputs = np.zeros((batches, tokens, groups, heads // groups, values))
    for t in range(tokens):
        change = v[:, t]
        if decay is not None:
            state = np.exp(wide(decay)[:, t].reshape(batches, groups, -1, 1)) * state
        if beta is not None:
            change = wide(beta)[:, t, :, None] * (change - np.einsum("bgi,bgij->bgj", k[:, t], state))
        state = state + k[:, t, :, :, None] * change[:, :, None]
        outputs[:, t] = np.einsum("bghi,bgij->bghj", q[:, t], state)
    factor = 1 / np.sqrt(size) if scale is None else scale
    return [factor * outputs.reshape(batches, tokens, heads * values), state]
