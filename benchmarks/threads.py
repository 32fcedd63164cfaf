"""One graph in 8 threads at the same time: Opweave's session and graph beside one session of ONNX Runtime, in time a call.

Both use the same number of threads a call: their default, or 1. Each of the 8 threads reads and writes its own arrays.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import opweave as ow

from .measure import Way, alternate
from .models import photograph
from .rows import Row, bound, dispatched, onnxruntime_session

COUNT = 8
"""Threads that run one graph."""

DENSE = "two dense layers"
ROWS, UNITS = 16, 256
"""Of the dense layers: large enough that they take more time than a call does."""

BATCH = {"SqueezeNet": 4, DENSE: 100}
"""How many calls each thread makes before all wait for each other."""


def together(ways: Sequence[Way], calls: int, pool: ThreadPoolExecutor) -> Way:
    """Make `calls` calls of each way, each way in its own thread."""

    def repeat(way: Way) -> None:
        for _ in range(calls):
            way()

    def all_of_them() -> None:
        list(pool.map(repeat, ways))

    return all_of_them


def rows() -> list[Row]:
    from tests.support.onnx_architectures import randomise

    found: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(COUNT) as pool:
        context, graph = dense()
        small = Path(folder, "dense.onnx")
        ow.onnx.save(graph, small)
        for threads in (0, 1):
            found.append(sessions("SqueezeNet", randomise("squeezenet", Path(folder)), threads, pool))
            found.append(sessions(DENSE, small, threads, pool))
        found += graphs(context, graph, onnxruntime_session(small), pool)
    return found


def sessions(title: str, path: Path, threads: int, pool: ThreadPoolExecutor) -> Row:
    """A model in one session of each, which may use `threads` threads a call; 0 for their own choice."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    ours = ow.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    theirs = onnxruntime_session(path, threads=threads)
    (input,) = ours.get_inputs()
    feeds = [{input.name: photograph(input.shape)} for _ in range(COUNT)]
    what = f"session.run, {'1 thread a call' if threads else 'default threads'}"
    calls = {
        "ours": [partial(ours.run, None, feed) for feed in feeds],
        "theirs": [partial(theirs.run, None, feed) for feed in feeds],
    }
    return row(title, what, calls, "ONNX Runtime, run()", pool)


def graphs(context: ow.MLContext, graph: ow.MLGraph, session: Any, pool: ThreadPoolExecutor) -> list[Row]:
    """The small net as a graph, computed on arrays and dispatched on tensors."""
    feeds = [{"x": photograph([ROWS, UNITS])} for _ in range(COUNT)]
    compute = {
        "ours": [partial(context.compute, graph, feed) for feed in feeds],
        "theirs": [partial(session.run, None, feed) for feed in feeds],
    }
    dispatch = {
        "ours": [dispatched(graph, context, feed)[0] for feed in feeds],
        "theirs": [bound(session, feed, {"y": np.zeros((ROWS, UNITS), "float32")}) for feed in feeds],
    }
    return [
        row(DENSE, "compute", compute, "ONNX Runtime, run()", pool),
        row(DENSE, "dispatch", dispatch, "ONNX Runtime, bound", pool),
    ]


def row(title: str, what: str, calls: Mapping[str, Sequence[Way]], against: str, pool: ThreadPoolExecutor) -> Row:
    """Compare calls that threads make at the same time, in the time that passes for each of them."""
    times = alternate({name: together(ways, BATCH[title], pool) for name, ways in calls.items()}, seconds=0.3)
    ours, theirs = ([time / BATCH[title] / COUNT for time in times[name]] for name in ("ours", "theirs"))
    return Row.of(f"{title}, {what}, from {COUNT} threads", "ms", ours, theirs, against, "threads")


def dense() -> tuple[ow.MLContext, ow.MLGraph]:
    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    weights = np.random.default_rng(0).standard_normal((2, UNITS, UNITS), "float32")
    hidden = builder.relu(builder.matmul(builder.input("x", "float32", [ROWS, UNITS]), builder.constant(weights[0])))
    return context, builder.build({"y": builder.matmul(hidden, builder.constant(weights[1]))})
