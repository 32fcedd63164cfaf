"""Graphs of 2 to 8 operations around what engines rewrite, judged by their own conditioning."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from support.graphs import compute_again

import opweave as ow
from fuzz.combinations import build
from fuzz.conditioning import Engine, Evaluation, Judge
from fuzz.frame import MEMORY, Campaign, Child, Finding
from fuzz.ingredients import Maker
from fuzz.recipe import Recipe, Step, reduced
from opweave.core.graph import Graph


@dataclass(frozen=True)
class Target:
    """An engine with a precision.

    Attributes:
        device: the name of its device.
        fault: an operation whose results are wrong by one percent, for tests of the campaign.
        backend: the name of its back end. It is named, so that no other engine is loaded to look for devices.
        engine: the rounding that it may do.
    """

    device: str
    backend: str
    engine: Engine
    fault: str = ""


@cache
def context_of(device: str, backend: str, precision: str) -> ow.MLContext:
    """The context of a target, made once in a process."""
    return ow.ml.create_context(device=device, backend=backend, precision=precision)  # type: ignore[arg-type]


@cache
def _reference() -> ow.MLContext:
    return ow.ml.create_context(device="reference", backend="reference")


def made_case(rng: random.Random) -> tuple[Recipe, Graph, Evaluation]:
    """The graph of a case, as a recipe and on the reference device, with its values."""
    make = Maker(ow.MLGraphBuilder(_reference()), rng)
    graph = Graph.reaching(build(make))
    recipe = Recipe.of(graph, make.feeds, make.chance(0.6))
    return recipe, graph, make.value


def on_reference(recipe: Recipe) -> Graph:
    """The graph of a recipe on the reference device."""
    return Graph.reaching(recipe.build(ow.MLGraphBuilder(_reference())))


def results_of(recipe: Recipe, target: Target) -> Mapping[str, np.ndarray]:
    """The results of a later run of the engine, see `compute_again`."""
    context = context_of(target.device, target.backend, target.engine.precision)
    builder = ow.MLGraphBuilder(context)
    if target.fault:
        recipe = _with_fault(recipe, target.fault)
    graph = builder.build(recipe.build(builder), fuse=recipe.fuse)
    return compute_again(context, graph, recipe.feeds)


def _with_fault(recipe: Recipe, fault: str) -> Recipe:
    """The recipe with results of one operation that are those of 1.01 times its operand."""
    steps: list[Step] = []
    for step in recipe.steps:
        if step.op == fault:
            scaled = Step("linear", step.inputs, {"alpha": 1.01, "beta": 0.0}, (f"{step.results[0]}x",), step.descs)
            steps += [scaled, replace(step, inputs={"input": scaled.results[0]})]
        else:
            steps.append(step)
    return replace(recipe, steps=tuple(steps))


def complaint(recipe: Recipe, target: Target, graph: Graph | None = None, base: Evaluation | None = None) -> str:
    """What is wrong with the results of an engine; empty if nothing is. The first line says it all."""
    try:
        results = results_of(recipe, target)
    except ow.MLError as error:
        return f"refused: {type(error).__name__}: {str(error).replace(chr(10), ' ')}"
    judge = Judge(graph or on_reference(recipe), recipe.feeds, target.engine, base)
    verdicts = judge.verdicts(results)
    first = "; ".join(f"output {verdict.output}: {verdict.text}" for verdict in verdicts)
    return (
        "\n".join([first, *(f"output {verdict.output}:\n{verdict.rows}" for verdict in verdicts)]) if verdicts else ""
    )


def case(rng: random.Random, number: int, target: Target) -> str:
    """Build a graph, run it on the engine, and judge its results."""
    recipe, graph, base = made_case(rng)
    if what := complaint(recipe, target, graph, base):
        first, _, rows = what.partition("\n")
        raise Finding(f"{first[:500]} [{recipe.kind()}]\n{rows}")
    return "agreed" if any(output not in base.undefined for output in graph.outputs.values()) else "undefined"


def describe(rng: random.Random, number: int) -> str:
    """The graph of a case: operations with operands, attributes and shapes."""
    return str(made_case(rng)[0])


# Smaller findings ----------------------------------------------------------------------------------------------------

_folder = Path()


def _enter(folder: Path) -> None:
    global _folder
    _folder = folder


def _trial(rng: random.Random, number: int) -> str:
    """Run the recipe in a file of the folder."""
    recipe, target = pickle.loads((_folder / f"{number}.pickle").read_bytes())
    if what := complaint(recipe, target):
        raise Finding(what)
    return "agreed"


TRIALS = Campaign(
    "pattern-trials",
    "graphs of a folder, tried while findings are reduced",
    _trial,
    count=0,
    short=0,
    memory=None,
    patience=30,
    setup=_enter,
)


@contextmanager
def trials(folder: Path, target: Target) -> Iterator[Trials]:
    """Processes that run recipes, one after the other; a new one is started where one ended."""
    made = Trials(folder, target)
    try:
        yield made
    finally:
        made.close()


class Trials:
    """Runs recipes on an engine in another process."""

    def __init__(self, folder: Path, target: Target) -> None:
        self._folder, self._target, self._numbers = folder, target, count()
        self._child: Child | None = None

    def __call__(self, recipe: Recipe) -> str:
        """The complaint about a recipe; empty if there is none."""
        number = next(self._numbers)
        file = self._folder / f"{number}.pickle"
        file.write_bytes(pickle.dumps((recipe, self._target)))
        if self._child is None:
            self._child = Child(TRIALS, 0, self._folder, [])
        word, what, _ = self._child.ask(number)
        file.unlink()
        if self._child.is_dead:
            self.close()
        return f"died: {what}" if word == "died" else what

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.__exit__()
            self._child = None


def _symptom(what: str) -> str:
    """A word for what is wrong: findings are reduced to ones of the same word."""
    first = what.split(":", 1)[0]
    return first if first in ("died", "refused", "") else "wrong"


def reduce(rng: random.Random, number: int, folder: Path, target: Target) -> tuple[str, str]:
    """Make the graph of a finding smaller while it is one; the kind of what is left, and its text."""
    recipe = made_case(rng)[0]
    with trials(folder, target) as run:
        if not (symptom := _symptom(run(recipe))):
            return "not found again", ""

        def is_same(candidate: Recipe) -> bool:
            try:
                on_reference(candidate)
            except ow.MLError:
                return False
            return _symptom(run(candidate)) == symptom

        recipe = reduced(recipe, values_of, is_same)
        what = run(recipe)
    return f"{symptom}: {recipe.kind()}", f"{what.partition('Traceback')[0][:3000].rstrip()}\n{recipe}"


def values_of(recipe: Recipe) -> dict[str, np.ndarray]:
    """All values of a recipe in float64, rounded to their data types."""
    refs = [ref for step in recipe.steps for ref in step.results]
    graph = on_reference(replace(recipe, outputs={ref: ref for ref in refs}))
    evaluation = Evaluation(recipe.feeds)
    with np.errstate(over="ignore"):
        return {ref: evaluation(operand).astype(operand.data_type) for ref, operand in graph.outputs.items()}


# Campaigns -----------------------------------------------------------------------------------------------------------


def obstacle(target: Target) -> str:
    """Why a target cannot run here; empty if it can."""
    try:
        context_of(target.device, target.backend, target.engine.precision)
    except ow.MLError as error:
        return str(error)
    return ""


def _campaign(name: str, where: str, target: Target, number: int, short: int, **limits: Any) -> Campaign:
    return Campaign(
        name,
        f"graphs of 2 to 8 operations that engines rewrite, judged by their own conditioning, on {where}",
        partial(case, target=target),
        count=number,
        short=short,
        outcomes=frozenset({"agreed", "undefined"}),
        describe=describe,
        reduce=partial(reduce, target=target),
        needs=(target.backend,) if target.backend in ("onnxruntime", "openvino") else (),
        obstacle=partial(obstacle, target),
        **limits,
    )


def _onnxruntime(name: str, engine: Engine, number: int, short: int) -> Campaign:
    engine = replace(engine, keeps_running_sums=True, adds_in_fixed_point=engine.precision != "ieee")
    where = f"onnxruntime, {engine.precision}"
    return _campaign(name, where, Target("cpu", "onnxruntime", engine), number, short, batch=1000)


def _openvino(precision: str, number: int, short: int) -> Campaign:
    name = "patterns-openvino" if precision == "float32" else f"patterns-openvino-{precision}"
    target = Target("cpu", "openvino", Engine(precision, quantises_by_range=True, distributes=True))
    return _campaign(name, f"openvino, {precision}", target, number, short, batch=250, memory=2 * MEMORY)


def _gpu(device: str, backend: str, where: str, number: int, short: int) -> Campaign:
    # Twice the errors: WGSL allows quotients to be off by 2.5 units in the last place.
    target = Target(device, backend, Engine(factor=2))
    return _campaign(f"patterns-{device}", where, target, number, short, batch=250, memory=None)


_ALL = (
    _onnxruntime("patterns", Engine(rounds_to_bytes=True), 1_000_000, 650),
    _onnxruntime("patterns-ieee", Engine("ieee"), 20_000, 100),
    _openvino("float32", 100_000, 120),
    _openvino("ieee", 20_000, 30),
    _openvino("bfloat16", 20_000, 30),
    _gpu("gpu-software", "webgpu", "gpu-software", 20_000, 100),
    _gpu("cuda", "cuda", "an NVIDIA GPU", 10_000, 50),
)
_FAULTY = Target("reference", "reference", Engine(), "sigmoid")
_FAULTS = _campaign("pattern-faults", "a faulty reference", _FAULTY, 0, 0)
CAMPAIGNS = {campaign.name: campaign for campaign in (*_ALL, TRIALS, _FAULTS)}
