"""Programs of operations called on arrays, read at random times: each result is what the reference gives for its operands."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from samples import SAMPLES, Call, type_choices

import opweave as ow
from fuzz.builder import LARGEST, RandomMake, agree, contexts, spoiled
from fuzz.frame import Campaign, Finding
from opweave.core.operation import Op
from opweave.ops import Operations

CALLS = 50
"""Calls of a program; each runs twice."""
TAME = 8.0
"""The largest number that a result may have to be an operand again: powers of powers overflow."""
STEPS = frozenset({"ceil", "floor", "round_even", "sign"})
"""Operations on floats, with floats as results, in which the last bit of an operand decides."""


@dataclass
class Value:
    """An array of a program.

    Attributes:
        guide: its value by the reference from the start; the engine's rounding adds up to something else.
        is_tame: whether it may be an operand.
        made: the engine's array, of the current run of the program.
        read: the engine's value, once it has been read.
    """

    guide: np.ndarray
    is_tame: bool
    made: Any = None
    read: np.ndarray | None = None


@dataclass
class Step:
    """A call of an operation, whose arrays are values of the program or NumPy's, and its results."""

    op: Op[..., Any]
    call: Call
    results: list[Value]
    is_continuous: bool


def mapped(call: Call, change: Callable[[Any], Any]) -> Call:
    """The call with other arrays; the parts of lists are changed one by one."""

    def each(value: Any) -> Any:
        if isinstance(value, list) and any(isinstance(item, (np.ndarray, Value)) for item in value):
            return [change(item) for item in value]
        return change(value)

    return Call(*map(each, call.args), **{name: each(value) for name, value in call.kwargs.items()})


def results_of(context: ow.MLContext, op: Op[..., Any], call: Call) -> list[ow.Array]:
    """The results of a call in a context, where at least one argument is an array of it."""

    def array(value: Any) -> Any:
        return ow.array(value) if isinstance(value, np.ndarray) and value.size else value

    with context:
        given = mapped(call, array)
        made = op(*given.args, **given.kwargs)
    return list(made) if isinstance(made, tuple) else [made]


def replaced(rng: random.Random, pool: list[Value], value: Any) -> Any:
    """A result of the program in place of an array of floats, if there is one of its type and shape."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and rng.random() < 0.7:
        fit = [v for v in pool if v.is_tame and (v.guide.dtype, v.guide.shape) == (value.dtype, value.shape)]
        return rng.choice(fit) if fit else value
    return value


def recorded(rng: random.Random) -> list[Step]:
    """A program, in which results of the reference stand for arrays."""
    reference, cpu = contexts("onnxruntime")
    steps: list[Step] = []
    pool: list[Value] = []
    names = list(Operations.listing().values())
    while len(steps) < CALLS:
        op = rng.choice(names)
        limits = cpu.backend.limits(op)
        if not limits:
            continue
        call = SAMPLES[op].make(RandomMake(rng, rng.choice(type_choices(op, limits))))
        wanted = mapped(call, partial(replaced, rng, pool))
        with np.errstate(all="ignore"):
            found = results_of(reference, op, mapped(wanted, lambda v: v.guide if isinstance(v, Value) else v))
            guides = [each.numpy() for each in found]
        if max(guide.size for guide in guides) > LARGEST:
            continue
        results = [Value(guide, bool(np.all(np.abs(guide) <= TAME))) for guide in guides]
        is_continuous = op.name not in STEPS and all(guide.dtype.kind == "f" for guide in guides)
        steps.append(Step(op, wanted, results, is_continuous))
        pool += results
    return steps


def operand(value: Any, is_continuous: bool) -> Any:
    """What the engine gets for an argument: a pending array, or a value that has been read where a last bit may decide."""
    if not isinstance(value, Value):
        return value
    return value.made if is_continuous or value.read is not None else read(value)


def read(value: Value) -> np.ndarray:
    """Read an array."""
    if value.read is None:
        value.read = np.array(value.made.numpy())
    return value.read


def run(rng: random.Random, steps: list[Step]) -> None:
    """Call the operations of a program, and read some of its arrays meanwhile."""
    _, cpu = contexts("onnxruntime")
    done: list[Value] = []
    for step in steps:
        for value in step.results:
            value.made = value.read = None
        call = mapped(step.call, lambda v, step=step: operand(v, step.is_continuous))  # type: ignore[misc]
        for value, made in zip(step.results, results_of(cpu, step.op, call), strict=True):
            value.made = made
            done.append(value)
        if rng.random() < 0.02:
            wrong = spoiled(rng, step.op, mapped(step.call, lambda v: v.guide if isinstance(v, Value) else v))
            try:
                for made in results_of(cpu, step.op, wrong):
                    del made  # some are right, and are never read
            except ow.ValidationError as error:
                if not str(error).startswith(step.op.name):
                    raise Finding(f"{step.op.name}: the message is {str(error)[:200]!r}") from error
        if rng.random() < 0.1:
            read(rng.choice(done))
    for value in rng.sample(done, len(done)):
        read(value)


def is_specified(op: Op[..., Any], call: Call) -> bool:
    """Whether the results are the same everywhere: a quotient of zeros, as an integer, is not, nor a deviation of zero."""
    match op.name:
        case "quantize_linear":
            return bool(np.all(call.args[1] != 0))
        case "batch_normalization":  # docs/deviations.md
            epsilon = call.kwargs.get("epsilon", 1e-5)
            return not np.any(np.abs(call.args[2].astype(np.float64) + epsilon) <= 1e-3 * abs(epsilon))
    return True


def check(steps: list[Step]) -> None:
    """Compare each result with that of the reference for the operands as the engine has them."""
    reference, _ = contexts("onnxruntime")
    for step in steps:
        call = mapped(step.call, lambda v: v.read if isinstance(v, Value) else v)
        if not is_specified(step.op, call):
            continue
        with np.errstate(all="ignore"):
            wanted = {f"y{k}": each.numpy() for k, each in enumerate(results_of(reference, step.op, call))}
        agree(SAMPLES[step.op], call, {f"y{k}": read(v) for k, v in enumerate(step.results)}, wanted, True)


def case(rng: random.Random, number: int) -> tuple[str, int]:
    """A program, run twice: graphs that come again are compiled as a whole."""
    steps = recorded(rng)
    seed = rng.getrandbits(64)
    for _ in range(2):
        run(random.Random(seed), steps)
        check(steps)
    return "agreed", 2 * CALLS


CAMPAIGNS = {
    "op-level": Campaign(
        "op-level",
        f"programs of {CALLS} operations called on arrays, run twice and read at random times: each agrees with the reference",
        case,
        count=10_000,
        short=4,
        batch=25,
        memory=None,  # Halide's threads reserve more
        seconds=120,
        unit="operations",
        outcomes=frozenset({"agreed"}),
    )
}
