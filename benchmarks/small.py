"""Small static models in Opweave's session and in ONNX Runtime's: `python -m benchmarks small`.

Most have something that WebNN cannot express, or too little work for a faster engine: there, a session must cost nothing. Both
sessions are called alternately in one process, in a row and after pauses, in which the threads of an engine go to sleep and
caches are filled by others. Writes docs/benchmarks-small.md and docs/benchmarks-small.json.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from onnx import TensorProto

from .measure import RESTS, Parts, alternate, in_process, per_call
from .networks import Declared, Feed, Network
from .page import DOCS, Table, machine, replace_part
from .record import record_of
from .rows import HEADER, Row, onnxruntime_session

PAGE, RECORD = DOCS / "benchmarks-small.md", DOCS / "benchmarks-small.json"

PAIRS = 15

LONG_SECONDS = 100e-6
"""Calls that take ONNX Runtime as long have a limit as a multiple of that, others one in microseconds more."""

SETTLE_SECONDS = 1.0
"""In which what recurs is compiled in the background, where a session does so."""

SECONDS = 600
"""The longest time of a process."""


def _declared(feed: Feed) -> dict[str, Declared]:
    return {name: (array.dtype, array.shape) for name, array in feed.items()}


def _random(*shape: int) -> np.ndarray:
    values: np.ndarray = np.random.default_rng(1).standard_normal(shape, np.float32)
    return values


def sections(path: Path) -> Feed:
    """Matrix products before and after a determinant, which WebNN cannot express."""
    net, feed = Network(), {"x": _random(8, 16, 16)}
    det = net("Det", net("Relu", net("MatMul", "x", net.weights(16, 16))))
    y = net("MatMul", net("Tanh", det), net.weights(8, 4))
    net.write(path, _declared(feed), {y: (np.float32, [4])})
    return feed


def float64_mlp(path: Path) -> Feed:
    """Dense layers in float64."""
    net, feed = Network(), {"x": _random(4, 32).astype(np.float64)}
    x = "x"
    for _ in range(3):
        x = net("Relu", net("MatMul", x, net.constant(net.random.standard_normal((32, 32)) / 6, np.float64)))
    net.write(path, _declared(feed), {x: (np.float64, [4, 32])})
    return feed


def roi_align(path: Path) -> Feed:
    """A convolution, and parts of its result."""
    net, feed = Network(), {"image": _random(1, 3, 32, 32)}
    x = net("Relu", net("Conv", "image", net.weights(8, 3, 3, 3), pads=[1, 1, 1, 1]))
    boxes = net.constant([[0, 0, 15, 15], [4, 4, 20, 28], [10, 2, 31, 31]])
    parts = net("RoiAlign", x, boxes, net.constant([0, 0, 0], np.int64), output_height=4, output_width=4)
    net.write(path, _declared(feed), {net("ReduceMean", parts, axes=[2, 3], keepdims=0): (np.float32, [3, 8])})
    return feed


def non_zero(path: Path) -> Feed:
    """The places of positive numbers: the shape of the output depends on the values of the input."""
    net, feed = Network(), {"x": _random(16, 16)}
    places = net("NonZero", net("Relu", net("MatMul", "x", net.weights(16, 16))))
    net.write(path, _declared(feed), {net("Transpose", places, perm=[1, 0]): (np.int64, ["count", 2])})
    return feed


def trees(path: Path) -> Feed:
    """20 decision trees of 3 levels."""
    net, feed = Network(), {"x": _random(8, 4)}
    inner, leaves, count = 7, 8, 20
    of_tree = {
        "nodeids": range(inner + leaves),
        "modes": ["BRANCH_LEQ"] * inner + ["LEAF"] * leaves,
        "truenodeids": [2 * k + 1 if k < inner else 0 for k in range(inner + leaves)],
        "falsenodeids": [2 * k + 2 if k < inner else 0 for k in range(inner + leaves)],
    }
    total = count * (inner + leaves)
    attributes: dict[str, Any] = {f"nodes_{name}": list(values) * count for name, values in of_tree.items()}
    attributes |= {
        "nodes_treeids": [tree for tree in range(count) for _ in range(inner + leaves)],
        "nodes_featureids": net.random.integers(0, 4, total).tolist(),
        "nodes_values": net.random.standard_normal(total).tolist(),
        "target_treeids": [tree for tree in range(count) for _ in range(leaves)],
        "target_nodeids": [*range(inner, inner + leaves)] * count,
        "target_ids": [0] * (count * leaves),
        "target_weights": net.random.standard_normal(count * leaves).tolist(),
    }
    y = net("TreeEnsembleRegressor", "x", domain="ai.onnx.ml", n_targets=1, **attributes)
    net.write(path, _declared(feed), {y: (np.float32, [8, 1])}, {"ai.onnx.ml": 3})
    return feed


def sequences(path: Path) -> Feed:
    """A sequence of two tensors, which is joined."""
    net, feed = Network(), {"x": _random(4, 16)}
    both = net("SequenceConstruct", net("Relu", "x"), net("Tanh", "x"))
    joined = net("ConcatFromSequence", both, axis=1)
    net.write(path, _declared(feed), {net("MatMul", joined, net.weights(32, 4)): (np.float32, [4, 4])})
    return feed


def strings(path: Path) -> Feed:
    """Labels that become numbers."""
    words = ["cat", "dog", "fish", "bird"]
    net, feed = Network(), {"labels": np.array(words * 2, object)}
    numbers = net("LabelEncoder", "labels", domain="ai.onnx.ml", keys_strings=words, values_floats=[0.0, 1.0, 2.0, 3.0])
    net.write(path, _declared(feed), {net("Relu", numbers): (np.float32, [8])}, {"ai.onnx.ml": 3})
    return feed


def _classified(net: Network, image: str) -> str:
    x = net("Relu", net("Conv", image, net.weights(8, 3, 3, 3), strides=[2, 2]))
    x = net("Relu", net("Conv", x, net.weights(16, 8, 3, 3), strides=[2, 2]))
    return net("MatMul", net("ReduceMean", x, axes=[2, 3], keepdims=0), net.weights(16, 10))


def bytes_input(path: Path) -> Feed:
    """A picture of bytes that is cast and scaled, and convolutions."""
    net, feed = Network(), {"image": np.random.default_rng(1).integers(0, 256, (1, 3, 32, 32), np.uint8)}
    image = net("Mul", net("Cast", "image", to=TensorProto.FLOAT), net.constant(1 / 255))
    net.write(path, _declared(feed), {_classified(net, image): (np.float32, [1, 10])})
    return feed


def cnn(path: Path) -> Feed:
    """Two convolutions and a classifier."""
    net, feed = Network(), {"image": _random(1, 3, 32, 32)}
    net.write(path, _declared(feed), {_classified(net, "image"): (np.float32, [1, 10])})
    return feed


def relu(path: Path) -> Feed:
    """One operation on 16 elements."""
    net, feed = Network(), {"x": _random(16)}
    net.write(path, _declared(feed), {net("Relu", "x"): (np.float32, [16])})
    return feed


MODELS: dict[str, tuple[str, Callable[[Path], Feed]]] = {
    "sections": ("matrix products around Det", sections),
    "float64": ("MLP in float64", float64_mlp),
    "roi_align": ("Conv and RoiAlign", roi_align),
    "non_zero": ("NonZero", non_zero),
    "trees": ("20 decision trees", trees),
    "sequences": ("a sequence", sequences),
    "strings": ("labels, strings", strings),
    "bytes": ("CNN on bytes", bytes_input),
    "cnn": ("CNN", cnn),
    "relu": ("Relu of 16 elements", relu),
}
"""The title of each model, and the function that writes it and returns its inputs."""


def alone(name: str, path: str, pairs: str, *rests: str) -> None:
    """Measure a model in this process, and print the seconds a call of each pair, by the pause."""
    import opweave as ow

    feed = MODELS[name][1](Path(path))
    ours: Any = ow.InferenceSession(path, providers=["CPUExecutionProvider"])
    theirs = onnxruntime_session(path)
    for result, expected in zip(ours.run(None, feed), theirs.run(None, feed), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)
    ways = {"ours": lambda: ours.run(None, feed), "theirs": lambda: theirs.run(None, feed)}
    for way in ways.values():
        per_call(way, 5)
    time.sleep(SETTLE_SECONDS)
    found = {rest: alternate(ways, pairs=int(pairs), seconds=0.02, rest=float(rest)) for rest in rests}
    print(json.dumps(found))


def rows_of(title: str, found: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[Row]:
    """The rows of a model, one for each pause."""
    for rest, times in found.items():
        what = f"{title}, after {float(rest) * 1e3:.0f} ms" if float(rest) else f"{title}, in a row"
        budget = "session" if median(times["theirs"]) >= LONG_SECONDS else "short session"
        yield Row.of(what, "us", times["ours"], times["theirs"], "ONNX Runtime, run()", budget)


def markdown(rows: Sequence[Row]) -> str:
    """The table of docs/benchmarks-small.md."""
    return f"On: {machine()}.\n\n{Table(HEADER, [row.cells() for row in rows])}"


def main(
    model: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(MODELS)}. Default: all; then the page is written.")
    ] = None,
    pause: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Milliseconds before each call. Default: 0, 30 and 100; then the page is written."),
    ] = None,
    pairs: Annotated[int, typer.Option(min=1, help="How often each session is measured.")] = PAIRS,
) -> None:
    """Compare sessions of small static models; exits with 1 if a limit is exceeded. Takes about 6 minutes."""
    if unknown := set(model or ()) - set(MODELS):
        raise typer.BadParameter(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    rests = [str(rest) for rest in (RESTS if pause is None else [each / 1e3 for each in pause])]
    rows: list[Row] = []
    parts = Parts()
    with TemporaryDirectory(prefix="opweave-small-") as folder:
        Path(folder, "cache").mkdir(mode=0o700)
        # Nothing is tuned, and nothing tried in the background.
        extra = {"OPWEAVE_CACHE": str(Path(folder, "cache")), "OPWEAVE_VERIFY": "0"}

        def measure(name: str) -> None:
            given = ("alone", name, str(Path(folder, f"{name}.onnx")), str(pairs), *rests)
            rows.extend(rows_of(MODELS[name][0], in_process("benchmarks.small", *given, timeout=SECONDS, extra=extra)))

        for name in model or MODELS:
            parts.run(MODELS[name][0], lambda name=name: measure(name))  # type: ignore[misc]
    Table(HEADER, [row.cells() for row in rows]).show([row.holds for row in rows])
    parts.end()
    if model is None and pause is None:
        replace_part(PAGE, markdown(rows))
        record_of(rows).write(RECORD)
    raise typer.Exit(not all(row.holds for row in rows))


if __name__ == "__main__":
    alone(*sys.argv[2:])
