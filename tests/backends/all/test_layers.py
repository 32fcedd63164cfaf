"""Equal layers of a graph on GPUs: their steps are copied, and are those that the schedule makes without copies."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cuda_cases import _Rules
from support.cuda_on_cpu import FEATURES as CUDA

import opweave as ow
from opweave.backends.gpu import schedule as scheduling
from opweave.backends.gpu.schedule import Schedule
from opweave.backends.gpu.steps import Buffer
from opweave.core.graph import Graph, Operand

SIZE = 64
"""Elements of a row: products have enough terms for kernels of their own."""


def random_graph(seed: int) -> Graph:
    """Layers of a random structure, with constants of their own and shared ones, inputs, outputs and labels."""
    rng, values = random.Random(seed), np.random.default_rng(seed)
    b = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    rows = rng.choice([1, 3, 40])
    kinds = [rng.choice(sorted(PARTS)) for _ in range(rng.randint(1, 5))]
    is_all_read, has_outputs = rng.random() < 0.3, rng.random() < 0.4
    state = LayeredGraph(b, rng, values, rows, rng.random() < 0.3)
    x, layers, outputs = b.input("x", "float32", [rows, SIZE]), list[Operand](), dict[str, Operand]()
    if rng.random() < 0.5:
        x = b.add(x, state.constant([SIZE]))
    choices = rng.getrandbits(32)
    count = rng.randint(3, 7)
    different = rng.choice([None, None, rng.randrange(count)])
    for number in range(count):
        state.number, state.rng = number, random.Random(choices)
        y = x
        for kind in kinds:
            y = PARTS[kind](state, y)
        if number == different:
            y = b.tanh(y)
        x = b.add(x, y) if state.rng.random() < 0.7 else y
        layers.append(x)
        outputs |= {f"{name}.{number}": operand for name, operand in state.results.items()}
        state.results.clear()
        if has_outputs:
            outputs[f"layer.{number}"] = b.sigmoid(x)
    if is_all_read:
        x = b.concat(layers, 1)
    return Graph.reaching({"y": b.mul(x, x), **outputs})


class LayeredGraph:
    """A graph that is being made."""

    def __init__(self, b: Any, rng: random.Random, values: np.random.Generator, rows: int, has_labels: bool) -> None:
        self.b, self.rng, self.values, self.rows, self.number = b, rng, values, rows, 0
        self.shared: dict[str, Operand] = {}
        self.results: dict[str, Operand] = {}
        self.has_labels = has_labels

    def constant(self, shape: list[int]) -> Operand:
        operand: Operand = self.b.constant(self.values.standard_normal(shape).astype(np.float32))
        return operand

    def weight(self, shape: list[int]) -> Operand:
        """A constant of the layer, or one of all layers."""
        if self.rng.random() < 0.2:
            return self.shared.setdefault(f"weight {shape}", self.constant(shape))
        return self.constant(shape)

    def label(self, name: str) -> dict[str, str]:
        return {"label": f"layers.{self.number}.{name}"} if self.has_labels else {}

    def once(self, name: str, make: Any) -> Operand:
        if name not in self.shared:
            self.shared[name] = make()
        return self.shared[name]


def product(s: LayeredGraph, x: Operand) -> Operand:
    y = s.b.matmul(x, s.weight([SIZE, SIZE]), **s.label("product"))
    return s.b.add(y, s.weight([SIZE])) if s.rng.random() < 0.5 else y


def transposed_product(s: LayeredGraph, x: Operand) -> Operand:
    return s.b.gemm(x, s.weight([SIZE, SIZE]), b_transpose=True)


def gated(s: LayeredGraph, x: Operand) -> Operand:
    one, other = (s.b.matmul(x, s.weight([SIZE, 2 * SIZE]), **s.label(name)) for name in ("gate", "up"))
    y = s.b.mul(s.b.mul(one, s.b.sigmoid(one)), other)
    return s.b.matmul(y, s.weight([2 * SIZE, SIZE]), **s.label("down"))


def normalised(s: LayeredGraph, x: Operand) -> Operand:
    return s.b.layer_normalization(x, scale=s.weight([SIZE]), axes=[1])


def mean(s: LayeredGraph, x: Operand) -> Operand:
    return s.b.sub(x, s.b.reduce_mean(x, axes=[1], keep_dimensions=True))


def attention(s: LayeredGraph, x: Operand) -> Operand:
    shape = [s.rows, 4, SIZE // 4]
    q, k, v = (
        s.b.transpose(s.b.reshape(s.b.matmul(x, s.weight([SIZE, SIZE])), shape), permutation=[1, 0, 2]) for _ in "qkv"
    )
    scores = s.b.mul(s.b.matmul(q, s.b.transpose(k, permutation=[0, 2, 1])), s.b.constant("float32", 0.25))
    y = s.b.matmul(s.b.softmax(scores, 2), v)
    return s.b.reshape(s.b.transpose(y, permutation=[1, 0, 2]), [s.rows, SIZE])


def condition(s: LayeredGraph, x: Operand) -> Operand:
    """Products of a few vectors that all layers read."""
    c = s.once("condition", lambda: s.b.input("condition", "float32", [1, SIZE]))
    c = s.once("silu", lambda: s.b.tanh(c)) if s.rng.random() < 0.5 else c
    return s.b.mul(x, s.b.matmul(c, s.weight([SIZE, SIZE])))


def cached(s: LayeredGraph, x: Operand) -> Operand:
    """A state of the layer that is an input and an output of the graph."""
    name = f"{len(s.results)}.{s.number}"
    past = s.b.input(f"past.{name}", "float32", [s.rows, SIZE])
    present = s.b.add(past, x)
    s.results[f"present.{len(s.results)}"] = present
    return s.b.add(present, x) if s.rng.random() < 0.5 else x


def halved(s: LayeredGraph, x: Operand) -> Operand:
    return s.b.cast(s.b.mul(s.b.cast(x, "float16"), s.b.constant("float16", 2)), "float32")


def gathered(s: LayeredGraph, x: Operand) -> Operand:
    indices = s.once("indices", lambda: s.b.constant(np.arange(SIZE, dtype=np.int32)[::-1].copy()))
    return s.b.add(x, s.b.gather(x, indices, axis=1))


def scattered(s: LayeredGraph, x: Operand) -> Operand:
    return s.b.scatter_elements(
        x, s.once("positions", lambda: s.b.constant(np.zeros([1, SIZE], np.int32))), s.weight([1, SIZE]), axis=0
    )


def divided(s: LayeredGraph, x: Operand) -> Operand:
    left, right = s.b.split(x, 2, axis=1)
    return s.b.concat([s.b.neg(right), left], 1)


def convolved(s: LayeredGraph, x: Operand) -> Operand:
    image = s.b.reshape(x, [1, s.rows, 8, SIZE // 8])
    y = s.b.conv2d(image, s.weight([s.rows, s.rows, 3, 3]), padding=[1, 1, 1, 1], bias=s.weight([s.rows]))
    return s.b.reshape(s.b.relu(y), [s.rows, SIZE])


PARTS = {
    part.__name__: part
    for part in (
        product, transposed_product, gated, normalised, mean, attention, condition, cached, halved, gathered, scattered,
        divided, convolved,
    )
}  # fmt: skip


def described(schedule: Schedule, graph: Graph) -> Any:
    """The terms of the outputs, and the kernels with their nodes."""
    terms: dict[Any, int] = {}
    contents: dict[Buffer, int] = {}

    def number(term: Any) -> int:
        return terms.setdefault(term, len(terms))

    def content(place: Buffer) -> int:
        if place not in contents:
            value = place.value and (place.value.key, place.value.source.strides)
            contents[place] = number((place.kind, value or place.number))
        return contents[place]

    kernels = Counter[Any]()
    for step in schedule.steps:
        kernel = step.kernel
        read = tuple(content(place) for place in step.places)
        for k, (place, writes) in enumerate(zip(step.places, kernel.writes, strict=True)):
            if writes:
                contents[place] = number((kernel.key, kernel.workgroups, k, read))
        copies = step.copies and tuple((place.kind, place.number) for place in step.copies)
        kernels[kernel.key, step.title, step.nodes, copies, step.program is None] += 1
    outputs = {place.number: term for place, term in contents.items() if place.kind == "output"}
    assert len(outputs) == len(graph.outputs)
    by_number = {number: term for term, number in terms.items()}
    return {number: hash_of(term, by_number, {}) for number, term in outputs.items()}, kernels


def hash_of(number: int, terms: dict[int, Any], done: dict[int, int]) -> int:
    """A number of a term that does not depend on the order in which terms were made."""
    if number not in done:
        term = terms[number]
        parts = [hash_of(part, terms, done) for part in term[3]] if len(term) == 4 else []
        done[number] = hash((term[:3], *parts))
    return done[number]


FEATURES = {"cuda": CUDA, "few buffers": replace(CUDA, max_buffers=8)}


@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("precision", ["float32", "ieee"])
@pytest.mark.parametrize("first", range(0, 60, 5))
def test_copies_are_what_the_schedule_makes(
    first: int, precision: Any, features: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(first, first + 5):
        check(random_graph(seed), features, precision, monkeypatch, seed)


def check(graph: Graph, features: Any, precision: Any, monkeypatch: pytest.MonkeyPatch, what: object) -> None:
    """Compare the steps of a graph with those that are made without copies."""
    rules = _Rules(features).with_precision(precision)
    graph = legal(graph, rules)
    with monkeypatch.context() as patch:
        copied = Schedule(graph, rules, features)
        patch.setattr(scheduling, "layer_runs", lambda nodes, facts: [])
        made = Schedule(graph, rules, features)
    assert described(copied, graph) == described(made, graph), what
    assert copied.unrounded == made.unrounded, what


@pytest.mark.parametrize("names", ["pp pp pp pp pq pq", "pp pp pp pp qp qp", "pq pq pq pq pp pp", "xp xp xp xx xx xx"])
def test_shared_arrays_in_other_places(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that read the same arrays, at other places from one layer on: `names` has two letters for each layer."""
    b = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    arrays = {name: b.constant(np.full(SIZE, ord(name), "float32")) for name in "pq"}
    arrays["x"] = b.input("x", "float32", [SIZE])
    y = b.input("y", "float32", [3, SIZE])
    for factor, offset in map(list, names.split()):
        y = b.add(b.mul(b.softmax(y, 1), arrays[factor]), arrays[offset])
    check(Graph.reaching({"y": y}), CUDA, "float32", monkeypatch, names)


def test_a_constant_and_a_result_from_before_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers read both: states have them in another order, and comparing operands with positions is an error."""
    b = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    y = b.input("y", "float32", [3, SIZE])
    before, constant = b.tanh(y), b.constant(np.ones(SIZE, "float32"))
    for _ in range(6):
        y = b.add(y, constant)
        y = b.add(b.sub(y, b.reduce_mean(y, axes=[1], keep_dimensions=True)), before)
    check(Graph.reaching({"y": y}), CUDA, "float32", monkeypatch, "layers")


def legal(graph: Graph, rules: Any) -> Graph:
    from opweave.compile.legalise import legalise

    return legalise(graph, rules.supports, rules.name)[0]
