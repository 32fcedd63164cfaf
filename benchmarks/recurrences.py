"""Recurrences beside ONNX Runtime's Scan: `python -m benchmarks recurrences` writes the table of docs/recurrences.md.

Both run the same steps on the same arrays, alternately in one process. ONNX Runtime calls the operators of a step one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import typer
from onnx import TensorProto, helper

import opweave as ow

from .measure import Way, alternate
from .page import DOCS, Table, machine, replace_part
from .rows import HEADER, Row, bound, dispatched, onnxruntime_session

PAGE = DOCS / "recurrences.md"

STEPS, ROWS, COLUMNS = 200, 256, 16
"""The filter: steps, and the shape of its state."""

CHANNELS, SIZE, TOKENS = 768, 16, 1000
"""The selective scan: channels, elements of the state of each, and tokens."""


@ow.recurrence
def smooth(level: Any, x: Any) -> Any:
    level = level + (x - level) * 0.25
    return level, level


@ow.recurrence(states="h", constants="a")
def selective_scan(h: Any, x: Any, dt: Any, b: Any, c: Any, a: Any) -> Any:
    channels, size = h.shape
    new = ow.expr.compute((channels, size), lambda i, k: ow.expr.exp(dt[i] * a[i, k]) * h[i, k] + dt[i] * b[k] * x[i])
    return new, ow.expr.compute((channels,), lambda i: ow.expr.sum_over(size, lambda k: new[i, k] * c[k]))


def _scan(
    nodes: Sequence[Any], feed: Mapping[str, np.ndarray], slices: Sequence[str], results: Sequence[tuple[str, Any]]
) -> bytes:
    """A model of one Scan with one state, the first input; `results` are the new state and the output of its body."""

    def value(name: str, shape: Sequence[int]) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))

    state, *rest = feed
    sequences = [name for name in rest if name in slices]
    body = helper.make_graph(
        nodes,
        "body",
        [value(f"{state}_in", feed[state].shape), *(value(f"{name}_t", feed[name].shape[1:]) for name in sequences)],
        [value(name, shape) for name, shape in results],
    )
    node = helper.make_node("Scan", [state, *sequences], ["last", "y"], num_scan_inputs=len(sequences), body=body)
    steps = feed[sequences[0]].shape[0]
    outputs = [value("last", feed[state].shape), value("y", (steps, *results[1][1]))]
    graph = helper.make_graph([node], "scan", [value(name, array.shape) for name, array in feed.items()], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def _constant(name: str, values: Any) -> Any:
    array = np.asarray(values, np.float32 if not isinstance(values, list) else np.int64)
    return helper.make_node("Constant", [], [name], value=helper.make_tensor(
        name, TensorProto.INT64 if array.dtype == np.int64 else TensorProto.FLOAT, array.shape, array.ravel()
    ))  # fmt: skip


def _filter_model(feed: Mapping[str, np.ndarray]) -> bytes:
    nodes = [
        _constant("quarter", 0.25),
        helper.make_node("Sub", ["x_t", "level_in"], ["difference"]),
        helper.make_node("Mul", ["difference", "quarter"], ["part"]),
        helper.make_node("Add", ["level_in", "part"], ["level_out"]),
        helper.make_node("Identity", ["level_out"], ["y_t"]),
    ]
    shape = feed["level"].shape
    return _scan(nodes, feed, ["x"], [("level_out", shape), ("y_t", shape)])


def _scan_model(feed: Mapping[str, np.ndarray]) -> bytes:
    make = helper.make_node
    nodes = [
        _constant("last_axis", [1]),
        make("Unsqueeze", ["dt_t", "last_axis"], ["dt_c"]),
        make("Unsqueeze", ["x_t", "last_axis"], ["x_c"]),
        make("Mul", ["dt_c", "a"], ["rate"]),
        make("Exp", ["rate"], ["factor"]),
        make("Mul", ["factor", "h_in"], ["kept"]),
        make("Mul", ["dt_c", "x_c"], ["scaled"]),
        make("Mul", ["scaled", "b_t"], ["added"]),
        make("Add", ["kept", "added"], ["h_out"]),
        make("MatMul", ["h_out", "c_t"], ["y_t"]),
    ]
    return _scan(nodes, feed, ["x", "dt", "b", "c"], [("h_out", feed["h"].shape), ("y_t", (CHANNELS,))])


def _ways(op: Any, feed: Mapping[str, np.ndarray], model: bytes | None) -> dict[str, Way]:
    """A graph of the recurrence, and ONNX Runtime's Scan on the same arrays; their results must agree."""
    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    inputs = [builder.input(name, "float32", array.shape) for name, array in feed.items()]
    *_, last, y = op(*inputs)
    ours, outputs = dispatched(builder.build({"last": last, "y": y}), context, feed)
    if model is None:
        return {"ours": ours}
    session = onnxruntime_session(model)
    expected = session.run(["last", "y"], dict(feed))
    ours()
    for name, result in zip(("last", "y"), expected, strict=True):
        np.testing.assert_allclose(outputs[name].numpy(), result, rtol=1e-3, atol=1e-3)
    theirs = {name: np.empty_like(result) for name, result in zip(("last", "y"), expected, strict=True)}
    return {"ours": ours, "theirs": bound(session, feed, theirs)}


def rows(pairs: int) -> list[Row]:
    """All comparisons."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        values: np.ndarray = random.standard_normal(shape, np.float32)
        return values

    level = {"level": normal(ROWS, COLUMNS), "x": normal(STEPS, ROWS, COLUMNS)}
    scan = {
        "h": normal(CHANNELS, SIZE),
        "x": normal(TOKENS, CHANNELS),
        "dt": abs(normal(TOKENS, CHANNELS)) / 8,
        "b": normal(TOKENS, SIZE),
        "c": normal(TOKENS, SIZE),
        "a": -abs(normal(CHANNELS, SIZE)),
    }
    measured = []
    for what, op, feed, model, budget in (
        (f"filter, {STEPS} steps of [{ROWS}, {COLUMNS}]", smooth, level, _filter_model(level), "recurrence"),
        (
            f"selective scan, {TOKENS} tokens of [{CHANNELS}, {SIZE}]",
            selective_scan,
            scan,
            _scan_model(scan),
            "recurrence against Scan",
        ),
    ):
        times = alternate(_ways(op, feed, model), pairs=pairs)
        measured.append(Row.of(what, "ms", times["ours"], times["theirs"], "ONNX Runtime, Scan", budget))
    return measured


def main(pairs: Annotated[int, typer.Option(min=1, help="How often each pair is measured.")] = 15) -> None:
    """Compare recurrences with ONNX Runtime's Scan; exits with 1 if a limit is exceeded. Takes about a minute."""
    measured = rows(pairs)
    table = Table(HEADER, [row.cells() for row in measured])
    table.show([row.holds for row in measured])
    replace_part(PAGE, f"On: {machine()}.\n\n{table}")
    raise typer.Exit(not all(row.holds for row in measured))


if __name__ == "__main__":
    typer.run(main)
