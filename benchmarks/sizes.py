"""Graphs whose sizes change: sizes that recur, and new ones: `python -m benchmarks sizes`.

A dispatch of sizes that recur is compared with one of the static graph. A call with new sizes is compared with ONNX Runtime's
session for the same graph, saved as a model: both get each size once, alternately, each after a pause. Writes the table of
docs/sizes.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer

import opweave as ow

from .measure import PAUSE_SECONDS, Way, alternate, per_call, tell
from .page import DOCS, Table, machine, replace_part
from .rows import HEADER, Row, dispatched, onnxruntime_session

PAGE = DOCS / "sizes.md"

PAIRS = 15

LONG_SECONDS = 10e-3
"""Calls of at least this time have a limit on their ratio, shorter ones on what each operation adds."""

Dimensions = Sequence[int | str]
Build = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Case:
    """A graph with names.

    Attributes:
        title: for the table.
        build: adds its operations to a builder, given the input.
        shape: of the input.
        sizes: of each name, from which new sizes are drawn.
    """

    title: str
    build: Build
    shape: Dimensions
    sizes: Mapping[str, range]

    def input_shapes(self, count: int) -> list[tuple[int, ...]]:
        """Different shapes."""
        random = np.random.default_rng(0)
        drawn = {name: random.choice(each, count, replace=len(each) < count) for name, each in self.sizes.items()}
        return [tuple(int(drawn[d][k]) if isinstance(d, str) else d for d in self.shape) for k in range(count)]


def _weights(builder: Any, *shape: int) -> Any:
    values = np.random.default_rng(0).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    return builder.constant(values.astype("float32"))


def dense(width: int, layers: int) -> Build:
    """Dense layers: a product, a bias, an activation each."""

    def build(b: Any, x: Any) -> Any:
        for _ in range(layers):
            x = b.relu(b.add(b.matmul(x, _weights(b, width, width)), _weights(b, width)))
        return x

    return build


def convolutions(channels: int, layers: int) -> Build:
    """Convolutions of 3 by 3, with an activation each."""

    def build(b: Any, x: Any) -> Any:
        for _ in range(layers):
            x = b.relu(b.conv2d(x, _weights(b, channels, channels, 3, 3), padding=[1, 1, 1, 1]))
        return x

    return build


def attention(features: int, heads: int) -> Build:
    """Attention between the words of texts; the shapes of its parts are computed with names."""

    def build(b: Any, x: Any) -> Any:
        texts, words, _ = x.shape

        def divided(order: list[int]) -> Any:
            parts = b.reshape(b.matmul(x, _weights(b, features, features)), [texts, words, heads, features // heads])
            return b.transpose(parts, permutation=order)

        scores = b.softmax(b.matmul(divided([0, 2, 1, 3]), divided([0, 2, 3, 1])), 3)
        seen = b.transpose(b.matmul(scores, divided([0, 2, 1, 3])), permutation=[0, 2, 1, 3])
        return b.add(x, b.matmul(b.reshape(seen, [texts, words, features]), _weights(b, features, features)))

    return build


CASES = (
    Case("4 dense layers", dense(32, 4), ["n", 32], {"n": range(2, 100)}),
    Case("30 dense layers", dense(64, 30), ["n", 64], {"n": range(2, 100)}),
    Case("attention", attention(64, 4), ["texts", "words", 64], {"texts": range(1, 9), "words": range(8, 100)}),
    Case(
        "6 convolutions",
        convolutions(32, 6),
        [1, 32, "height", "width"],
        {"height": range(120, 200), "width": range(120, 200)},
    ),
)


def build(case: Case, shape: Dimensions) -> Any:
    """The graph of a case, in a context that takes names."""
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu", drafts=True))
    return builder.build({"y": case.build(builder, builder.input("x", "float32", shape))})


def repeated() -> Iterator[Row]:
    """Sizes that recur, beside the static graph of these sizes."""
    case = Case("relu of 16 elements", lambda b, x: b.relu(x), ["n"], {})
    feed = {"x": np.linspace(-1, 1, 16, dtype="float32")}
    named, static = build(case, case.shape), build(case, [16])
    named.context.compute(named, feed)
    for name, way in (("dispatch", _dispatch), ("compute", _compute)):
        # Many short turns on one thread: most of them are not interrupted.
        ways = {"ours": way(named, feed), "theirs": way(static, feed)}
        times = alternate(ways, pairs=20 * PAIRS, seconds=0.002, pause=0)
        what = f"{name}, {case.title}: sizes that recur"
        yield Row.of(what, "us", times["ours"], times["theirs"], "the static graph", "repeated sizes")


def _dispatch(graph: Any, feed: Mapping[str, np.ndarray]) -> Way:
    return dispatched(graph, graph.context, feed)[0]


def _compute(graph: Any, feed: Mapping[str, np.ndarray]) -> Way:
    context = graph.context
    return lambda: context.compute(graph, feed)


def new(case: Case, pairs: int) -> Row:
    """Sizes that are new in each call, beside ONNX Runtime's session."""
    graph = build(case, case.shape)
    session = onnxruntime_session(graph)
    random = np.random.default_rng(0)
    feeds = [{"x": random.standard_normal(shape).astype("float32")} for shape in case.input_shapes(pairs + 1)]
    ways: dict[str, Callable[[Mapping[str, np.ndarray]], Any]] = {
        "ours": lambda feed: graph.context.compute(graph, feed)["y"],
        "theirs": lambda feed: session.run(None, feed)[0],
    }
    np.testing.assert_allclose(ways["ours"](feeds[0]), ways["theirs"](feeds[0]), rtol=1e-3, atol=1e-4)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn, feed in enumerate(feeds[1:]):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            time.sleep(PAUSE_SECONDS)
            times[name].append(per_call(lambda way=ways[name], feed=feed: way(feed), 1))  # type: ignore[misc]
    count = graph.explain().count("\n  %")
    what = f"{case.title}, {count} operations: new sizes"
    if sorted(times["theirs"])[pairs // 2] >= LONG_SECONDS:
        return Row.of(what, "ms", times["ours"], times["theirs"], "ONNX Runtime, run()", "new sizes")
    ours, theirs = ([seconds / count for seconds in times[name]] for name in ways)
    return Row.of(f"{what}, an operation", "us", ours, theirs, "ONNX Runtime, run()", "new sizes, an operation")


def main(
    pairs: Annotated[int, typer.Option(min=3, help="The number of new sizes of each graph.")] = PAIRS,
) -> None:
    """Measure graphs whose sizes change; exits with 1 if a limit is exceeded. Takes a minute, and writes docs/sizes.md."""
    rows = list(repeated())
    for case in CASES:
        tell(case.title)
        rows.append(new(case, pairs))
    table = Table(HEADER, [row.cells() for row in rows])
    table.show([row.holds for row in rows])
    replace_part(PAGE, f"On: {machine()}.\n\n{table}")
    raise typer.Exit(not all(row.holds for row in rows))
