"""Graphs that grow by random calls: with names for sizes, and with the numbers of several combinations of sizes.

The samples of the tests make calls for the base sizes. Their dimensions, and attributes of the same numbers, become names and
formulas of names. `fuzz.dynamic` adds the draft's operations, and the chains that they read.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from samples import Call

import opweave as ow
from fuzz.builder import spoiled
from fuzz.dynamic import LIMITS, Drafts
from fuzz.frame import Finding
from fuzz.size_calls import arrays_of, draw_call
from opweave.core.dtypes import is_float
from opweave.core.graph import Graph, Node
from opweave.core.operation import Op
from opweave.core.size_calls import UnknownName
from opweave.core.size_values import at, values_at, variables_in
from opweave.core.sizes import Dimension, Size, is_unknown, unknown_name
from opweave.core.specialise import specialise
from opweave.ops import Operations, dynamic, elementwise, indexing, logical, movement

COMBINATIONS = 5
"""Combinations of sizes of a graph. A call is right for the first one, unless it is spoiled."""

ELEMENTS = 3000
"""The size of the largest value."""

LARGEST = 20
"""The largest number of a new name whose numbers are those of a formula, unless its base is larger."""

ATTEMPTS = 3
"""Choices of names for a call; one that few combinations allow is tried again."""

DRAWS = 40
"""Combinations that are drawn for a graph that none of its own allows."""

DRAFTS = 0.3
"""The share of calls of the draft's operations, with their chains."""

REFUSALS = f"the (rank|number) of the results? depends on sizes|{LIMITS}"
"""Messages of documented limits, for calls that some sizes allow."""

EXACT = frozenset(
    op
    for module in (elementwise, logical, movement, indexing, dynamic)
    for op in vars(module).values()
    if isinstance(op, Op) and not op.name.startswith("resample2d")
)
"""Operations whose results are equal bit for bit on all engines' programs: they add no products."""

DIMENSIONS = re.compile(
    "new_shape|sizes|starts|beginning_padding|ending_padding|splits|repetitions|output_sizes|window_dimensions|strides|"
    "dilations|padding|output_padding|steps|hidden_size|groups|depth|k|diagonal|block_size|heads|size|count"
)
"""Attributes that may be sizes."""

INTERPOLATIONS = frozenset(
    {"resample2d", "resample2d_dynamic", "resize", "grid_sample", "roi_align", "crop_and_resize"}
)
"""Operations that multiply neighbours by coefficients."""


# Graphs --------------------------------------------------------------------------------------------------------------


@dataclass
class Value:
    """A value of the graph: with symbols, and for each combination that the graph allows so far.

    Attributes:
        operand: the operand with symbols.
        twins: the operand of each static graph; None where the combination is not allowed.
        numbers: the arrays in each combination, if it is one of a chain that gives sizes.
        wraps: the combinations in which an integer of its chain wraps around.
        is_exact: whether operations alone gave it whose results do not depend on the order of sums.
        is_specified: whether no cast gave it whose results depend on the back end.
        has_certain_nans: whether no interpolation gave it, which may leave out a neighbour whose coefficient is 0, or multiply
            it: infinity and NaN times 0 are NaN.
    """

    operand: Any
    twins: list[Any]
    numbers: list[np.ndarray | None] | None = None
    wraps: set[int] = field(default_factory=set)
    is_exact: bool = True
    is_specified: bool = True
    has_certain_nans: bool = True

    @property
    def desc(self) -> tuple[str, tuple[int, ...]] | None:
        """Data type and shape at the base sizes."""
        base = self.twins[0]
        return None if base is None else (base.data_type, base.shape)

    def at(self, k: int) -> np.ndarray:
        """The array of a chain in an allowed combination."""
        assert self.numbers is not None
        array = self.numbers[k]
        assert array is not None
        return array

    def mapped(self, function: Callable[[Any], Any]) -> Value:
        """The results of a function of one operand."""
        return Value(function(self.operand), [function(twin) for twin in self.twins])


@dataclass
class Attempt:
    """A call that some combinations allow.

    Attributes:
        operands: the results with symbols.
        results: those of each combination that allows the call.
        errors: the messages of the others.
    """

    operands: tuple[Any, ...]
    results: dict[int, tuple[Any, ...]]
    errors: dict[int, str]


@dataclass
class Growth:
    """A graph that grows: with symbols, and with the numbers of each combination.

    Attributes:
        declared: names that attributes may have: those of inputs, and sizes of results without a formula.
        needed: names that attributes have.
        sizes: the number of each name in each combination; sizes without a formula, too.
        feeds: the arrays of each input in each combination.
        errors: why a combination is not allowed; empty for those that are.
        names: the names of operations so far.
        is_doubtful: whether the builder accepted an operation that all sizes refuse that were drawn.
    """

    rng: random.Random
    context: ow.MLContext
    sizes: list[dict[str, int]] = field(default_factory=list)
    feeds: dict[str, list[np.ndarray]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    inputs: dict[str, Value] = field(default_factory=dict)
    declared: set[str] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    is_doubtful: bool = False

    def __post_init__(self) -> None:
        self.builder = ow.MLGraphBuilder(self.context)
        self.builders = [ow.MLGraphBuilder(self.context) for _ in range(COMBINATIONS)]
        self.sizes = [{} for _ in self.builders]
        self.errors = [""] * COMBINATIONS
        self.drafts = Drafts(self)
        # Names that look like those of sizes without a formula are names like others.
        self.prefix = "?" if self.chance(0.02) else "n"
        self.numbers = np.random.default_rng(self.rng.getrandbits(64))

    @property
    def allowed(self) -> list[int]:
        """The combinations that all calls so far accept."""
        return [k for k, error in enumerate(self.errors) if not error]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    # Sizes -----------------------------------------------------------------------------------------------------------

    def name(self, base: int, like: Dimension | None = None) -> Size:
        """A new name; its numbers are mostly those of `like`, if that is given."""
        name = f"{self.prefix}{sum(not isinstance(n, UnknownName) for n in self.sizes[0])}"
        for sizes in self.sizes:
            number = self.rng.choice([base, base, base + 1, 1, 2, self.rng.randint(1, 6)]) if self.chance(0.96) else 0
            if like is not None and not self.chance(0.1):
                number = _number(like, sizes, max(base, LARGEST), number)
            sizes[name] = number
        self.sizes[0][name] = base
        return Size(name)

    def symbol(self, number: int, symbols: dict[int, Dimension]) -> Dimension:
        """What stands for a dimension of a call."""
        if number not in symbols:
            names = [Size(n) for n, size in self.sizes[0].items() if size == number and not isinstance(n, UnknownName)]
            if self.chance(0.12 if number > 1 else 0.9):
                symbols[number] = number
            elif names and self.chance(0.7):
                symbols[number] = self.rng.choice(names)
            else:
                symbols[number] = self.name(number)
        return symbols[number]

    def dimension(self, number: int, symbols: dict[int, Dimension]) -> Dimension:
        """A dimension of a new input: only names are allowed."""
        symbol = self.symbol(number, symbols)
        if isinstance(symbol, int):
            return number
        if not symbol.name or is_unknown(symbol) or self.chance(0.1):
            return self.name(number, symbol) if len(self.sizes[0]) < 12 else number
        return symbol

    # Arguments -------------------------------------------------------------------------------------------------------

    def arguments(self, op: Op[..., Any], call: Call) -> tuple[Call, list[Call], set[int]]:
        """The call with symbols, the calls with numbers, and the values that they read."""
        symbols: dict[int, Dimension] = {}
        substitutes: dict[int, int] = {}
        arrays = [a for value in (*call.args, *call.kwargs.values()) for a in arrays_of(value)]
        for array in arrays:
            desc = array.dtype.name, array.shape
            fit = [k for k, value in enumerate(self.values) if value.desc == desc]
            if fit and self.chance(0.85):
                substitutes[id(array)] = k = self.rng.choice(fit[-4:] if self.chance(0.6) else fit)
                for size, symbol in zip(array.shape, self.values[k].operand.shape, strict=True):
                    if not isinstance(symbol, int):
                        symbols.setdefault(size, symbol)
        has_sizes = self.chance(0.8)
        operands: dict[int, Value] = {}

        def operand(array: np.ndarray) -> Value:
            if id(array) not in operands:
                k = substitutes.get(id(array))
                operands[id(array)] = self.values[k] if k is not None else self.source(array, symbols)
            return operands[id(array)]

        def symbolic(value: Any, name: str) -> Any:
            if isinstance(value, np.ndarray):
                return operand(value).operand
            if isinstance(value, (list, tuple)):
                return type(value)(symbolic(item, name) for item in value)
            is_size = type(value) is int and value > 1 and DIMENSIONS.fullmatch(name)
            symbol = symbols.get(value, value) if is_size and has_sizes else value
            return symbol if variables_in(symbol) <= self.declared else value

        def static(value: Any, symbol: Any, k: int) -> Any:
            if isinstance(value, np.ndarray):
                return operand(value).twins[k]
            if isinstance(value, (list, tuple)):
                return type(value)(static(*pair, k) for pair in zip(value, symbol, strict=True))
            return symbol.at(self.sizes[k]) if isinstance(symbol, Size) else value

        names = op.positional[: len(call.args)]
        args = [symbolic(value, name) for value, name in zip(call.args, names, strict=True)]
        # The number of parts is the number of results.
        kwargs = {name: symbolic(value, name) for name, value in call.kwargs.items()}
        if op.name == "split" and isinstance(call.args[1], int):
            args[1] = call.args[1]
        calls = [
            Call(
                *(static(value, symbol, k) for value, symbol in zip(call.args, args, strict=True)),
                **{name: static(value, kwargs[name], k) for name, value in call.kwargs.items()},
            )
            for k in self.allowed
        ]
        return Call(*args, **kwargs), calls, set(substitutes.values())

    def source(self, array: np.ndarray, symbols: dict[int, Dimension], is_input: bool = False) -> Value:
        """A new input, or a constant."""
        if not is_input and (self.chance(0.2) or not array.size):
            twins = [builder.constant(array) if array.size else array for builder in self.builders]
            return Value(self.builder.constant(array) if array.size else array, twins)
        shape = [self.dimension(size, symbols) for size in array.shape]
        name = f"x{len(self.feeds)}"
        shapes = [[at(size, sizes) for size in shape] for sizes in self.sizes]
        self.feeds[name] = [array, *(self.like(array, shape) for shape in shapes[1:])]
        twins = [b.input(name, array.dtype.name, shape) for b, shape in zip(self.builders, shapes, strict=True)]
        self.declared |= variables_in(tuple(shape))
        self.inputs[name] = Value(self.builder.input(name, array.dtype.name, shape), twins)
        return self.inputs[name]

    def like(self, array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Other numbers of the range of an array."""
        low, high = (-2, 2) if array.dtype.kind == "f" and not np.isfinite(array).all() else (array.min(), array.max())
        if array.dtype.kind == "f":
            return (self.numbers.integers(int(low * 8), int(high * 8), shape, endpoint=True) / 8).astype(array.dtype)
        return np.asarray(self.numbers.integers(low, high, shape, array.dtype, endpoint=True))

    # Calls -----------------------------------------------------------------------------------------------------------

    def grow(self) -> bool:
        """Try to add a call, and return whether there is one more."""
        if self.chance(DRAFTS):
            return self.drafts.grow()
        shapes = [value.desc[1] for value in self.values if value.desc is not None]
        op, call = draw_call(self.rng, shapes)
        if op.name in Operations.listing() and self.chance(0.04):
            call = spoiled(self.rng, op, call)
        if label := self.label():
            call.kwargs["label"] = label
        attempt = None
        for trial in range(ATTEMPTS):
            symbolic, statics, read = self.arguments(op, call)
            calls = dict(zip(self.allowed, statics, strict=True))
            attempt = self.attempt(
                op,
                partial(_call, op, self.builder, symbolic),
                lambda k, calls=calls: _call(op, self.builders[k], calls[k]),  # type: ignore[misc]
                lambda symbolic=symbolic: f"{op.name}({symbolic})",  # type: ignore[misc]
            )
            if attempt is None:
                return False
            if len(attempt.results) > 1 or not attempt.errors or trial == ATTEMPTS - 1:
                break
        assert attempt is not None
        if len(self.allowed) > 1 and len(attempt.results) == 1 and not self.chance(0.1):
            return False
        self.keep(op, attempt, read, all(self.values[k].is_exact for k in read))
        return True

    def label(self) -> str:
        """A label, or none."""
        return f"node {len(self.names)}" if self.chance(0.5) else ""

    def attempt(
        self,
        op: Op[..., Any],
        symbolic: Callable[[], Any],
        static: Callable[[int], Any],
        text: Callable[[], str],
        may_wrap: Collection[int] = (),
    ) -> Attempt | None:
        """Make a call with symbols, and with the numbers of all combinations that are allowed.

        Args:
            op: the operation.
            symbolic: adds the call to the graph with names.
            static: adds the call to the static graph of a combination.
            text: returns the call, for messages.
            may_wrap: combinations whose integers wrap around. Formulas may differ from sizes there; that is an error of
                the run.

        Returns: None if the call is refused for all sizes, or too large.
        """
        results: dict[int, tuple[Any, ...]] = {}
        errors: dict[int, str] = {}
        for k in self.allowed:
            try:
                results[k] = _tuple(static(k))
            except ow.ValidationError as error:
                errors[k] = str(error)
        try:
            operands = _tuple(symbolic())
        except ow.ValidationError as error:
            if results and not re.search(REFUSALS, str(error)):
                k = next(iter(results))
                raise Finding(
                    f"{op.name} is refused: {error}\n{text()}\nfor {self.sizes[k]} it gives "
                    f"{', '.join(str(r.desc) for r in results[k])}"
                ) from error
            return None
        if not results:
            self.is_doubtful |= not self.is_ever_valid(operands)
            return None
        for k in set(may_wrap) & results.keys():
            try:
                self.check_shapes(text, operands, {k: results[k]})
            except Finding:
                del results[k]
                errors[k] = op.name
        if not results:
            return None
        self.check_shapes(text, operands, results)
        if any(r.desc.element_count > ELEMENTS for rs in results.values() for r in rs):
            return None
        return Attempt(operands, results, errors)

    def keep(self, op: Op[..., Any], attempt: Attempt, read: set[int], is_exact: bool) -> list[Value]:
        """Add the results of a call to the values."""
        for k, message in attempt.errors.items():
            self.errors[k] = message
        values = []
        is_specified = all(self.values[k].is_specified for k in read) and not _is_unspecified(attempt.operands[0].node)
        has_certain_nans = all(self.values[k].has_certain_nans for k in read) and op.name not in INTERPOLATIONS
        for number, operand in enumerate(attempt.operands):
            twins = [attempt.results[k][number] if k in attempt.results else None for k in range(COMBINATIONS)]
            value = Value(operand, twins, None, set(), is_exact and op in EXACT, is_specified, has_certain_nans)
            values.append(value)
            self.declared |= variables_in(operand.shape)
        self.values += values
        self.needed |= variables_in(tuple(attempt.operands[0].node.attributes.values()))
        self.read |= read
        self.names.append(op.name)
        return values

    def refuse(self, call: Callable[[], Any], message: str, *others: str) -> None:
        """Require that the builder refuses a call with a message, or with one of `others`; all are beginnings."""
        try:
            call()
        except ow.ValidationError as error:
            if not str(error).startswith((message, *others)) and not re.search(LIMITS, str(error)):
                raise Finding(f"the message is {error}, and should begin with: {message}") from error
        else:
            raise Finding(f"the builder accepts a call, and should say: {message}")

    def constant_value(self, array: np.ndarray) -> Value:
        """A constant of a chain."""
        twins = [builder.constant(array) for builder in self.builders]
        return Value(self.builder.constant(array), twins, [array] * COMBINATIONS)

    def check_shapes(self, text: Callable[[], str], made: Sequence[Any], results: dict[int, Sequence[Any]]) -> None:
        """Require that formulas give the dimensions of all combinations."""
        for k, numbers in results.items():
            if len(numbers) != len(made):
                raise Finding(f"{text()} has {len(made)} results, and {len(numbers)} for {self.sizes[k]}")
            for operand, twin in zip(made, numbers, strict=True):
                for size, number in zip(operand.shape, twin.shape, strict=False):
                    if (unknown := unknown_name(size)) is not None:
                        self.sizes[k].setdefault(unknown, number)
                shape = tuple(at(size, self.sizes[k]) for size in operand.shape)
                if (operand.data_type, shape) != (twin.data_type, twin.shape):
                    raise Finding(f"{text()} is {operand.desc}, and {twin.desc} for {self.sizes[k]}")

    def is_ever_valid(self, made: Sequence[Any]) -> bool:
        """Whether results that no combination allows are valid for other sizes."""
        graph = Graph.reaching({f"y{k}": operand for k, operand in enumerate(made)})
        for _ in range(DRAWS):
            sizes = {name: self.rng.choice([base, self.rng.randint(1, 8)]) for name, base in self.sizes[0].items()}
            shapes = [values_at(operand.shape, sizes) for operand in graph.inputs.values()]
            try:
                specialise(graph, shapes, sizes, self.context.backend.max_byte_length)
            except ow.ValidationError:
                continue
            return True
        return False


def _is_unspecified(node: Node) -> bool:
    """Whether the results of a node may depend on the back end: integers of floats out of range, or of the bits of NaN, and
    elements that are written twice, since GPUs write them in any order.
    """
    if node.op.name == "max_unpool":
        return True
    if node.op.name in ("scatter_elements", "scatter_nd"):
        return node.operands[1].value is None  # constant indices are made without duplicates
    is_cast = node.op.name in ("cast", "bit_cast")
    return is_cast and is_float(node.operands[0].data_type) and not is_float(node.outputs[0].data_type)


def _number(formula: Dimension, sizes: dict[str, int], largest: int, otherwise: int) -> int:
    """The number of a formula, if it exists and is small: where a combination is not allowed, sizes may be anything."""
    try:
        number = at(formula, sizes)
    except (KeyError, ZeroDivisionError):
        return otherwise
    return max(number, 0) if number <= largest else otherwise


def _call(op: Op[..., Any], builder: Any, call: Call) -> Any:
    return op(builder, *call.args, **call.kwargs)


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
