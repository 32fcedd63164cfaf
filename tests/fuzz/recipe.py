"""Graphs as plain data: they are sent to other processes, built in any context, printed, and made smaller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import opweave as ow
from opweave import composites
from opweave.core.graph import Graph, Operand, map_operands
from opweave.ops import Operations

Ref = str
"""The name of a value: of an input, of a constant (`c0`), or of a result (`v0`)."""


@dataclass(frozen=True)
class Step:
    """One operation.

    Attributes:
        op: its name.
        inputs: names of values by parameter.
        attributes: by parameter.
        results: names of its results.
        descs: their data types and shapes.
    """

    op: str
    inputs: dict[str, Any]
    attributes: dict[str, Any]
    results: tuple[Ref, ...]
    descs: tuple[tuple[str, tuple[int, ...]], ...]

    def operands(self) -> Iterator[Ref]:
        for value in self.inputs.values():
            if isinstance(value, tuple):
                yield from value
            elif value is not None:
                yield value

    def renamed(self, names: Mapping[Ref, Ref]) -> Step:
        return replace(self, inputs=map_operands(self.inputs, lambda ref: names.get(ref, ref)))


@dataclass(frozen=True)
class Recipe:
    """A graph with the arrays of its inputs and constants.

    Attributes:
        feeds: arrays of inputs by name.
        constants: arrays of constants by name.
        steps: operations in order.
        outputs: names of values by the names of outputs.
        fuse: the option of `build`.
    """

    feeds: dict[str, np.ndarray]
    constants: dict[str, np.ndarray]
    steps: tuple[Step, ...]
    outputs: dict[str, Ref]
    fuse: bool = True

    @classmethod
    def of(cls, graph: Graph, feeds: Mapping[str, np.ndarray], fuse: bool) -> Recipe:
        """The recipe of a graph of any builder."""
        names: dict[Operand, Ref] = {operand: name for name, operand in graph.inputs.items()}
        constants: dict[Ref, np.ndarray] = {}
        for number, operand in enumerate(graph.constants):
            names[operand] = f"c{number}"
            constants[f"c{number}"] = np.array(operand.value)
        steps = []
        for node in graph.nodes:
            results = tuple(f"v{len(names) + k}" for k in range(len(node.outputs)))
            descs = tuple((str(output.data_type), output.shape) for output in node.outputs)
            steps.append(
                Step(node.op.name, map_operands(node.inputs, names.__getitem__), dict(node.attributes), results, descs)
            )
            names.update(zip(node.outputs, results, strict=True))
        outputs = {name: names[operand] for name, operand in graph.outputs.items()}
        return cls({name: feeds[name] for name in graph.inputs}, constants, tuple(steps), outputs, fuse)

    def build(self, builder: ow.MLGraphBuilder) -> dict[str, Any]:
        """Add the operations to a builder; the outputs by name."""
        values: dict[Ref, Any] = {
            name: builder.input(name, array.dtype.name, array.shape) for name, array in self.feeds.items()
        }
        values |= {name: builder.constant(array) for name, array in self.constants.items()}
        for step in self.steps:
            op = Operations.listing().get(step.op) or getattr(composites, step.op)
            made = op(builder, **map_operands(step.inputs, values.__getitem__), **step.attributes)
            results = made if isinstance(made, (tuple, list)) else (made,)
            values.update(zip(step.results, results, strict=True))
        return {name: values[ref] for name, ref in self.outputs.items()}

    def cleaned(self) -> Recipe:
        """Without operations, constants and inputs that no output needs."""
        needed, kept = set(self.outputs.values()), []
        for step in reversed(self.steps):
            if needed.intersection(step.results):
                needed.update(step.operands())
                kept.append(step)
        feeds = {name: array for name, array in self.feeds.items() if name in needed}
        constants = {name: array for name, array in self.constants.items() if name in needed}
        return replace(self, feeds=feeds, constants=constants, steps=tuple(reversed(kept)))

    def descs(self) -> dict[Ref, tuple[str, tuple[int, ...]]]:
        """Data types and shapes by name."""
        made = {name: (a.dtype.name, a.shape) for name, a in (self.feeds | self.constants).items()}
        for step in self.steps:
            made.update(zip(step.results, step.descs, strict=True))
        return made

    def kind(self) -> str:
        """The operations in order."""
        return " ".join(step.op for step in self.steps)

    def __str__(self) -> str:
        descs = self.descs()

        def shown(ref: Any) -> str:
            if isinstance(ref, tuple):
                return f"[{', '.join(map(shown, ref))}]"
            return str(ref)

        def desc(ref: Ref) -> str:
            data_type, shape = descs[ref]
            return f"{data_type}{list(shape)}"

        lines = [f"fuse={self.fuse}"]
        lines += [f"  {name} = input {desc(name)} {_values(array)}" for name, array in self.feeds.items()]
        lines += [f"  {name} = constant {desc(name)} {_values(array)}" for name, array in self.constants.items()]
        for step in self.steps:
            arguments = [f"{name}={shown(ref)}" for name, ref in step.inputs.items() if ref is not None]
            arguments += [f"{name}={value!r}" for name, value in step.attributes.items()]
            results = ", ".join(f"{ref}: {desc(ref)}" for ref in step.results)
            lines.append(f"  {results} = {step.op}({', '.join(arguments)})")
        lines += [f"  output {name} = {ref}" for name, ref in self.outputs.items()]
        return "\n".join(lines)


def _values(array: np.ndarray) -> str:
    numbers = array.ravel()[:8].tolist()
    text = ", ".join(f"{number:.6g}" if isinstance(number, float) else str(number) for number in numbers)
    return f"({text}{', …' if array.size > 8 else ''})"


# Smaller graphs ------------------------------------------------------------------------------------------------------


def reduced(
    recipe: Recipe, values: Callable[[Recipe], Mapping[Ref, np.ndarray]], fails: Callable[[Recipe], bool]
) -> Recipe:
    """The smallest recipe that the reducer comes to and that still fails.

    Args:
        recipe: one that fails.
        values: evaluates all values of a recipe, as the reference does.
        fails: whether a recipe fails in the same way.
    """
    recipe = recipe.cleaned()
    before = ""
    while before != str(recipe):
        before = str(recipe)
        for attempts in (_fewer_outputs, _fewer_operations, _fewer_inputs):
            recipe = _reduced_by(attempts, recipe, values(recipe), fails)
    return recipe


Arrays = Mapping[Ref, np.ndarray]
Attempts = Callable[[Recipe, Arrays], Iterator[Callable[[Recipe], Recipe | None]]]


def _reduced_by(attempts: Attempts, recipe: Recipe, arrays: Arrays, fails: Callable[[Recipe], bool]) -> Recipe:
    """Make each attempt once, on what those before have left."""
    for attempt in attempts(recipe, arrays):
        candidate = attempt(recipe)
        if candidate is not None and fails(candidate):
            recipe = candidate
    return recipe


def _fewer_outputs(recipe: Recipe, arrays: Arrays) -> Iterator[Callable[[Recipe], Recipe | None]]:
    """Only one output: the first value that fails, if the values before it are not at fault."""

    def alone(now: Recipe, ref: Ref) -> Recipe | None:
        # Values are tried in order, and the first that fails is what is left.
        return replace(now, outputs={"y": ref}).cleaned() if now is recipe else None

    for step in recipe.steps:
        if len(recipe.outputs) == 1 and set(step.results).issuperset(recipe.outputs.values()):
            break
        for ref in step.results:
            yield lambda now, ref=ref: alone(now, ref)  # type: ignore[misc]
    for name in recipe.outputs:
        yield lambda now, name=name: (  # type: ignore[misc]
            replace(now, outputs={name: now.outputs[name]}).cleaned()
            if len(now.outputs) > 1 and name in now.outputs
            else None
        )


def _fewer_operations(recipe: Recipe, arrays: Arrays) -> Iterator[Callable[[Recipe], Recipe | None]]:
    """Inputs in place of values, the last ones first, and operands in place of results."""

    def cut(now: Recipe, step: Step) -> Recipe | None:
        ref = step.results[0]
        is_inner = any(other.results == step.results for other in now.steps) and ref not in now.outputs.values()
        return _with_array(now, ref, arrays) if is_inner and len(step.results) == 1 else None

    def drop(now: Recipe, step: Step, number: int) -> Recipe | None:
        current = next((other for other in now.steps if other.results == step.results), None)
        if current is None or len(step.results) != 1:
            return None
        descs = now.descs()
        fit = [ref for ref in current.operands() if descs[ref] == current.descs[0]]
        if number >= len(fit):
            return None
        results = {ref for other in now.steps for ref in other.results}
        is_output = step.results[0] in now.outputs.values()
        return _dropped(now, current, fit[number]) if fit[number] in results or not is_output else None

    for step in reversed(recipe.steps):
        yield lambda now, step=step: cut(now, step)  # type: ignore[misc]
    for step in recipe.steps:
        for number in range(2):
            yield lambda now, step=step, number=number: drop(now, step, number)  # type: ignore[misc]


def _fewer_inputs(recipe: Recipe, arrays: Arrays) -> Iterator[Callable[[Recipe], Recipe | None]]:
    """Constants in place of inputs, and no fusion."""

    def fixed(now: Recipe, name: str) -> Recipe | None:
        feeds = {other: array for other, array in now.feeds.items() if other != name}
        if not feeds or name not in now.feeds:
            return None
        return replace(now, feeds=feeds, constants=now.constants | {name: now.feeds[name]})

    for name in recipe.feeds:
        yield lambda now, name=name: fixed(now, name)  # type: ignore[misc]
    yield lambda now: replace(now, fuse=False) if now.fuse else None


def _with_array(recipe: Recipe, ref: Ref, arrays: Mapping[Ref, np.ndarray]) -> Recipe:
    """An input in place of a value in between."""
    steps = tuple(step for step in recipe.steps if step.results != (ref,))
    return replace(recipe, feeds=recipe.feeds | {ref: arrays[ref]}, steps=steps).cleaned()


def _dropped(recipe: Recipe, step: Step, ref: Ref) -> Recipe:
    """Without an operation: one of its operands stands for its result."""
    names = {step.results[0]: ref}
    steps = tuple(other.renamed(names) for other in recipe.steps if other is not step)
    outputs = {name: names.get(output, output) for name, output in recipe.outputs.items()}
    return replace(recipe, steps=steps, outputs=outputs).cleaned()
