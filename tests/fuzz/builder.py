"""Calls of every operation, right and wrong, compared three ways: what the builder says, what the specification's tables
allow, and what the reference and the CPU's engine compute.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from samples import SAMPLES, Call, Make, Sample, type_choices
from support.graphs import compute_again
from support.specification import TABLES

import opweave as ow
from fuzz.frame import Campaign, Finding
from opweave.core.dtypes import ANY
from opweave.core.operation import Op
from opweave.ops import Operations

LARGEST = 2**16
"""Results of more elements than this are not computed: wrong arguments may be large ones."""

WILD: list[Any] = [
    *(-1, 0, 1, 2, 3, 7, 8, 2**31 - 1, 2**31, 2**32, -(2**31), 2**64, 10**400),
    *(0.0, 0.5, 1.0, 2.5, -1.5, 1e-45, 1e39, float("inf"), float("-inf"), float("nan")),
    *(True, None, "", "nchw", "x" * 300, b"1", {}, {1: 2}, object(), np.float32(1), np.int8(3), np.zeros(0)),
    *([], [0], [1, 1], [2, 1], [0, 0, 0, 0], [1, 2, 3, 4], [2**31], [-1, -1], [1.0, 1.0], [0.5], [None], [[1]], ["a"]),
    *(range(3), range(10**9), (2**20, 2**20), [2**16] * 2, [1] * 9, list(range(9000))),
]


class RandomMake(Make):
    """Draws the parts of a call from random numbers alone."""

    def __init__(self, rng: random.Random, types: dict[str, Any]) -> None:
        self.rng, self.types = rng, types
        self.random = np.random.default_rng(rng.getrandbits(64))

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def number(self, low: float, high: float) -> float:
        return min(max(float(np.float16(self.rng.uniform(low, high))), low), high)

    def boolean(self) -> bool:
        return self.rng.random() < 0.5

    def choice(self, options: Sequence[Any]) -> Any:
        return self.rng.choice(list(options))

    def tokens(self) -> int:
        """A few tokens, or so many that GPUs compute them in chunks."""
        return self.rng.randint(*self.rng.choice([(1, 3), (1, 3), (1, 3), (120, 200)]))

    def shape(self, low: int = 0, high: int = 5, largest: int = 5) -> tuple[int, ...]:
        return tuple(self.rng.randint(1, largest) for _ in range(self.rng.randint(low, high)))

    def subset(self, items: Sequence[Any]) -> list[Any]:
        return self.rng.sample(list(items), self.rng.randint(0, len(items)))

    def permutation(self, count: int) -> list[int]:
        return self.rng.sample(range(count), count)


@cache
def contexts(backend: str) -> tuple[ow.MLContext, ow.MLContext]:
    """The reference, and an engine of the CPU."""
    return ow.ml.create_context(device="reference"), ow.ml.create_context(device="cpu", backend=backend)


def some_array(rng: random.Random) -> np.ndarray:
    shape = [rng.choice([1, 1, 2, 3, 4, 5]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4, 4, 5, 8]))]
    return np.ones(shape, rng.choice(ANY))


def spoiled(rng: random.Random, op: Op[..., Any], call: Call) -> Call:
    """The call with one to three arguments that are others."""
    args, kwargs = list(call.args), dict(call.kwargs)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        name = rng.choice([*op.operands, *op.attributes])
        old = kwargs.get(name)
        if name in op.positional and op.positional.index(name) < len(args):
            old = args[op.positional.index(name)]
        value: Any = some_array(rng) if name in op.operands and rng.random() < 0.8 else rng.choice(WILD)
        if isinstance(old, tuple | list) and old and rng.random() < 0.5:
            changed = list(old)
            changed[rng.randrange(len(old))] = value
            value = changed
        elif isinstance(old, int | float) and abs(old) < 2**64 and rng.random() < 0.3:
            value = old + rng.choice([-1, 1, 0.5])
        if name in op.positional and op.positional.index(name) < len(args):
            args[op.positional.index(name)] = value
        else:
            kwargs[name] = value
    return Call(*args, **kwargs)


def call_of(rng: random.Random, cpu: ow.MLContext) -> tuple[Op[..., Any], Call, bool]:
    """An operation, a call of it, and whether it is right."""
    op = rng.choice(list(Operations.listing().values()))
    types = rng.choice(type_choices(op, cpu.backend.limits(op)))
    call = SAMPLES[op].make(RandomMake(rng, types))
    return (op, call, True) if rng.random() < 0.4 else (op, spoiled(rng, op, call), False)


def record(context: ow.MLContext, op: Op[..., Any], call: Call) -> tuple[Any, Any, dict[str, np.ndarray]]:
    """Make the call with inputs for its arrays."""
    builder = ow.MLGraphBuilder(context)
    arrays: dict[str, np.ndarray] = {}

    def operand(value: Any) -> Any:
        if isinstance(value, list) and any(isinstance(item, np.ndarray) for item in value):
            return [operand(item) for item in value]
        if not isinstance(value, np.ndarray) or not value.size:
            return value
        name = f"x{len(arrays)}"
        arrays[name] = value
        return builder.input(name, value.dtype.name, value.shape)  # type: ignore[arg-type]

    args = [operand(value) for value in call.args]
    return builder, op(builder, *args, **{name: operand(value) for name, value in call.kwargs.items()}), arrays


def against_tables(op: Op[..., Any], result: Any) -> str:
    """What the specification's table of the operation says against its operands; empty for nothing."""
    first = result[0] if isinstance(result, tuple) else result
    given = first.node.inputs
    for name, row in TABLES[op.name].items():
        value = given.get(name)
        for operand in value if isinstance(value, tuple) else (value,) if value is not None else ():
            types, ranks = row.allowed.data_types, row.allowed.ranks
            if isinstance(types, str):
                like = given[types]
                types = ((like[0] if isinstance(like, tuple) else like).data_type,)
            if isinstance(ranks, str):
                like = given[ranks]
                ranks = ((like[0] if isinstance(like, tuple) else like).rank,) * 2
            if operand.data_type not in types or not ranks[0] <= operand.rank <= ranks[1]:
                return f"{name} may be {types} of rank {ranks}, and is {operand.desc}"
    return ""


def case(rng: random.Random, number: int, backend: str = "onnxruntime") -> str:
    reference, cpu = contexts(backend)
    op, call, is_right = call_of(rng, cpu)
    try:
        builder, result, arrays = record(reference, op, call)
    except ow.ValidationError as error:
        text = str(error)
        if is_right:
            raise Finding(f"{op.name}({call}) is right, and refused: {text}") from error
        if not text.startswith(op.name) or len(text) > 5000:
            raise Finding(f"{op.name}: the message is {text[:200]!r}") from error
        return "refused"
    problem = against_tables(op, result)
    if problem:
        raise Finding(f"{op.name}({call}) is accepted, and {problem}")
    results = result if isinstance(result, tuple) else (result,)
    if max(r.desc.element_count for r in results) > LARGEST:
        return "large"
    outputs: Callable[[Any], dict[str, Any]] = lambda r: {  # noqa: E731
        f"y{k}": one for k, one in enumerate(r if isinstance(r, tuple) else (r,))
    }
    graph = builder.build(outputs(result))
    try:
        with np.errstate(all="ignore"):
            wanted = reference.compute(graph, {name: arrays[name] for name in graph.inputs})
    except ow.OperationError as error:
        if isinstance(error.__cause__, MemoryError):  # of an image with a wide padding
            return "large"
        raise
    for k, operand in enumerate(results):
        found = wanted[f"y{k}"]
        if (found.dtype, found.shape) != (operand.data_type, operand.shape):
            raise Finding(f"{op.name}({call}) should be {operand.desc}, the reference gives {found.dtype}{found.shape}")
    if not cpu.backend.limits(op):
        return "computed"
    other, twin, _ = record(cpu, op, call)
    made = other.build(outputs(twin))
    got = compute_again(cpu, made, arrays)
    if is_right:
        agree(SAMPLES[op], call, got, wanted, op.name not in NOT_SPREAD.get(backend, ()))
    return "agreed" if is_right else "computed"


NOT_SPREAD = {"openvino": ("softmax",)}
"""The operations with which a NaN does not spread over the other results on a back end: see docs/deviations.md."""


def agree(
    sample: Sample, call: Call, got: dict[str, np.ndarray], wanted: dict[str, np.ndarray], is_spread: bool
) -> None:
    """Compare results as `test_agreement` does; where a NaN does not spread, only those that should be numbers."""
    for name, expected in wanted.items():
        actual = got[name]
        if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
            raise Finding(f"{sample.op.name}({call}) gives {actual.dtype}{actual.shape}")
        if expected.dtype.kind != "f":
            same = np.array_equal(actual, expected)
        else:
            factor = sample.half if expected.dtype == np.float16 else 1
            a, e = actual.astype(np.float64), expected.astype(np.float64)
            if not is_spread:
                a, e = a[~np.isnan(e)], e[~np.isnan(e)]
            same = np.allclose(a, e, rtol=sample.rtol * factor, atol=sample.atol * factor, equal_nan=True)
        if not same:
            raise Finding(f"{sample.op.name}({call}): {actual.ravel()[:8]} instead of {expected.ravel()[:8]}")


_CAMPAIGN = Campaign(
    "builder",
    "calls of every operation, right and wrong: builder, specification, reference and engine agree",
    case,
    count=960_000,
    short=300,
    batch=2_000,
    outcomes=frozenset({"refused", "agreed", "computed", "large"}),
)

CAMPAIGNS = {found.name: found for found in (_CAMPAIGN, _CAMPAIGN.on("openvino", case, 100_000))}
