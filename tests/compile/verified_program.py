"""A program that uses a graph or a model until another engine was verified for it, for tests of verification.

`python verified_program.py '{"kind": "static", "rival": {"fault": "signal"}}'` prints what became of it, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from support.rival_engine import Rival, rivals_of_onnxruntime

import opweave as ow
from opweave import backends
from opweave.compile import uses
from opweave.context.graph import state_of
from opweave.verification import watch as watcher

X = np.linspace(-1, 1, 2**14, dtype=np.float32)
COUNT = 250
"""Operations of a graph: enough that a look-up of its results takes a tenth of its time even beside other processes."""

CHILD = """
from opweave.backends.isolation import process
from opweave.compile import tuning
from opweave.verification import verifier
process.memory_of = lambda graph: 400 * 2**20
tuning.TRIAL_SECONDS, tuning.TRIAL_FACTOR = {trial}, 0
verifier.PAUSES, verifier.ROUNDS, verifier.SLICE_SECONDS = (0.0, 0.01), 3, 0.01
verifier.serve(False, {{lock}})  # {mark}
"""
"""What the child runs: limits that are soon reached, and the priority of others, for on a busy machine it would not end."""


def graph_of(context: ow.MLContext) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    x = value = builder.input("x", "float32", [X.size])
    for _ in range(COUNT):
        value = builder.tanh(value)
    return builder.build({"y": value, "z": builder.abs(x)})


def model(size: int | str) -> bytes:
    x, y, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in "xyz")
    names = ["x", *(f"t{number}" for number in range(COUNT - 1)), "y"]
    nodes = [helper.make_node("Tanh", [a], [b]) for a, b in pairwise(names)]
    graph = helper.make_graph([*nodes, helper.make_node("Abs", ["x"], ["z"])], "g", [x], [y, z])
    made = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(made.SerializeToString())


def use(options: dict[str, Any]) -> tuple[Any, Callable[[], list[np.ndarray]]]:
    """A graph or session, and what runs it."""
    # One thread: those of a pool would spin, and take the processor from the child.
    context = ow.ml.create_context(device="cpu", **{"threads": 1, **options.get("context", {})})
    kind = options["kind"]
    if kind in ("graph", "dispatch"):
        graph = graph_of(context)
        if kind == "graph":
            return graph, lambda: list(context.compute(graph, {"x": X}).values())
        x, *results = (context.create_tensor("float32", [X.size], readable=True, writable=True) for _ in range(3))
        context.write_tensor(x, X)

        def dispatched() -> list[np.ndarray]:
            context.dispatch(graph, {"x": x}, dict(zip("yz", results, strict=True)))
            return [result.numpy().copy() for result in results]

        return graph, dispatched
    source: Any = model(X.size if kind == "static" else "n")
    if "path" in options:
        Path(options["path"]).write_bytes(source)
        source = options["path"]
    session = ow.InferenceSession(source, context=context)
    return session, lambda: session.run(["y", "z"], {"x": X})


def record_of(owner: Any) -> uses.Use | None:
    """The record of the use of a graph or a session."""
    return owner._parts.watch() if isinstance(owner, ow.InferenceSession) else state_of(owner).use


def main(options: dict[str, Any]) -> None:
    rival = Rival()
    for name, value in options.get("rival", {}).items():
        assert hasattr(rival, name)
        setattr(rival, name, value)
    vars(backends).update(rivals_of_onnxruntime(rival))
    uses.THRESHOLD_SECONDS, watcher.PERIOD_SECONDS, watcher.RETRY_SECONDS = options.get("threshold", 0.02), 0.05, 0.2
    if options.get("threshold", 0) < 1:
        from opweave.verification import process as verification

        verification.COMMAND = CHILD.format(trial=options.get("trial", 30), mark=options.get("mark", ""))
    owner, run = use(options)
    first, begun = run(), 0
    deadline = time.monotonic() + options.get("seconds", 400)
    state: Any = None
    record = record_of(owner)
    while record is not None and time.monotonic() < deadline:
        for _ in range(20):
            for array, wanted in zip(run(), first, strict=True):
                assert array.tobytes() == wanted.tobytes()  # same input, same bits
        begun += watcher.watch._child is not None
        if record.states or (begun and options.get("ends")):
            state = next(iter(record.states.values()), None)
            break
        if begun and options.pop("forks", False) and os.fork() == 0:
            sys.exit(0)  # with all that Python does at the end
        time.sleep(0.1 if begun else 0.01)  # the child needs the processor
    np.testing.assert_allclose(first[1], np.abs(X))
    after = use(options)[0] if options["kind"] != "dispatch" else owner
    kept = {
        "is_watched": record is not None,
        "begun": bool(begun),
        "state": state if isinstance(state, str) else getattr(state, "refused", None),
        "explained": owner.explain(),
        "later": after.explain() if options["kind"] != "dynamic" else "",
        "modules": sorted(sys.modules),
    }
    print(json.dumps(kept), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
