"""Calls of the draft's operations for sizes: shapes, chains of arithmetic with them, and the operations that read chains.

The static graph has none of these operations: a chain is computed with numbers on the reference, and its reader is the static
operation with these numbers as attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

import opweave as ow
from opweave.backends.reference import reference
from opweave.compile.empty import has_empty
from opweave.core.dtypes import INTEGERS
from opweave.core.operation import Op
from opweave.core.size_values import at
from opweave.core.sizes import Size
from opweave.ops import Operations, dynamic, elementwise, indexing, logical, movement, reduction
from opweave.support.cache import Cache

if TYPE_CHECKING:
    from fuzz.growth import Growth, Value

MAX_RANGE = 3000
"""The longest result of `range`."""

LIMITS = "formulas of at most|products of at most|values of known shape|values of at most|a formula of sizes must have at most"
"""Documented limits of chains: they refuse graphs that some sizes satisfy."""


class Abandoned(Exception):  # noqa: N818  (it is no error: another call is drawn)
    """A part of a call was refused, or is too large."""


@cache
def _witness() -> ow.MLContext:
    return ow.ml.create_context(device="reference", drafts=True)


MAX_RESULTS = 4096
"""Maximum number of results that are kept: combinations of sizes often give a chain the same numbers."""

_results: Cache[Any, np.ndarray] = Cache(MAX_RESULTS, raw=True)


def evaluate(op: Op[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> np.ndarray:
    """The result of a static operation on arrays, as the reference computes it."""
    key = op, tuple(map(_key, args)), repr(kwargs)
    result = _results.get(key)
    return _results.put(key, _evaluate(op, args, kwargs)) if result is None else result


def _key(argument: Any) -> Any:
    """Tell an argument from others."""
    if isinstance(argument, np.ndarray):
        return argument.dtype.name, argument.shape, argument.tobytes()
    return tuple(map(_key, argument)) if isinstance(argument, list) else repr(argument)


def _evaluate(op: Op[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> np.ndarray:
    builder = ow.MLGraphBuilder(_witness())
    operands = [
        [builder.constant(item) if isinstance(item, np.ndarray) else item for item in arg]
        if isinstance(arg, list)
        else arg
        for arg in (builder.constant(arg) if isinstance(arg, np.ndarray) else arg for arg in args)
    ]
    result = op(builder, *operands, **kwargs)
    node = result.node
    if has_empty(node) or not reference.supports(node):
        return _witness().compute(builder.build({"y": result}), {})["y"]
    # A graph of one node would take ten times as long.
    (array,) = reference.evaluate(node, {operand: operand.value for operand in node.operands})
    return array


def _exact(value: Any) -> Any:
    """Arrays with integers that do not wrap around; those of 8 bits stay, because formulas wrap around as they do."""
    if isinstance(value, list):
        return [_exact(item) for item in value]
    return value.astype("int64") if isinstance(value, np.ndarray) and value.dtype.itemsize > 1 else value


def _is_huge(array: np.ndarray) -> bool:
    return array.dtype == np.uint64 and bool((array >= 2**63).any())


class Drafts:
    """Adds calls of the draft's operations to a graph that grows."""

    def __init__(self, growth: Growth) -> None:
        self.g, self.r = growth, growth.rng

    def grow(self) -> bool:
        """Try to add a call, with the chains that it reads."""
        steps: list[tuple[Callable[[], Any], int]] = [
            (self.shape_as_data, 2),
            (self.arithmetic, 3),
            (self.range, 2),
            (self.squeeze, 2),
            (self.unsqueeze, 1),
            (self.reshape_to_2d, 1),
            (self.reshape_dynamic, 3),
            (self.expand_dynamic, 2),
            (self.slice_dynamic, 3),
            (self.pad_dynamic, 2),
            (self.split_dynamic, 2),
            (self.resample2d_dynamic, 2),
            (self.tile_dynamic, 2),
            (self.modulus, 2),
        ]
        step = self.r.choices([step for step, _ in steps], [weight for _, weight in steps])[0]
        try:
            step()
        except Abandoned:
            return False
        return True

    # Chains ----------------------------------------------------------------------------------------------------------

    def chain(self, op: Op[..., Any], *args: Any, **attributes: Any) -> Value:
        """Add an operation of a chain; arguments are values of chains, lists of them, and attributes."""
        values = [value for arg in args for value in (arg if isinstance(arg, list) else [arg]) if _is_chain(value)]

        def mapped(function: Callable[[Value], Any]) -> list[Any]:
            return [
                [function(item) if _is_chain(item) else item for item in arg]
                if isinstance(arg, list)
                else function(arg)
                if _is_chain(arg)
                else arg
                for arg in args
            ]

        label = self.g.label()
        (value,) = self.add(
            op,
            label,
            lambda: op(self.g.builder, *mapped(lambda v: v.operand), **attributes, label=label),
            lambda k: op(self.g.builders[k], *mapped(lambda v: v.twins[k]), **attributes, label=label),
            values,
            is_same=True,
        )
        value.numbers = []
        for k, twin in enumerate(value.twins):
            if twin is None:
                value.numbers.append(None)
                continue
            arrays = mapped(lambda v, k=k: v.at(k))  # type: ignore[misc]
            result = evaluate(op, arrays, attributes)
            value.numbers.append(result)
            if op is elementwise.cast:
                is_wrapped = result.dtype.itemsize > 1 and result.tolist() != arrays[0].tolist()
            else:
                is_wrapped = (result.astype("int64") != evaluate(op, _exact(arrays), attributes)).any()
            if is_wrapped or _is_huge(result) or any(k in v.wraps for v in values):
                value.wraps.add(k)
        return value if value.twins[0] is not None else self.abandon()

    def add(
        self,
        op: Op[..., Any],
        label: str,
        symbolic: Callable[[], Any],
        static: Callable[[int], Any],
        reads: Iterable[Value],
        is_same: bool = False,
    ) -> list[Value]:
        """Add a call. `is_same` says whether the static graph has the same operation, and so the same messages."""
        values = list(reads)
        wraps = {k for value in values for k in value.wraps}

        def text() -> str:
            return f"{op.name} {label!r} of {', '.join(f'{value.operand.desc}' for value in values)}"

        attempt = self.g.attempt(op, symbolic, static, text, () if is_same else wraps)
        if attempt is None:
            raise Abandoned
        if not is_same:
            attempt.errors.update(dict.fromkeys(attempt.errors, f"{op.name} {label!r}: " if label else f"{op.name}: "))
        read = {k for k, value in enumerate(self.g.values) if any(value is other for other in values)}
        is_exact = all(value.is_exact for value in values)
        return self.g.keep(op, attempt, read, is_exact)

    def constant(self, values: Any, data_type: str) -> Value:
        """A constant of a chain."""
        array = np.array(values, data_type)
        return self.g.constant_value(array)

    def shape(self, value: Value | None = None) -> Value:
        """The shape of a value, mostly a new node."""
        x = self.operand(lambda desc: len(desc[1]) > 0) if value is None else value
        label = self.g.label()
        (result,) = self.add(
            dynamic.shape,
            label,
            lambda: self.g.builder.shape(x.operand, label=label),
            lambda k: _data(self.g.builders[k], np.array(x.twins[k].shape, "uint32")),
            [x],
        )
        result.numbers = [
            None if twin is None else np.array(twin_x.shape, "uint32")
            for twin, twin_x in zip(result.twins, x.twins, strict=True)
        ]
        return result if result.twins[0] is not None else self.abandon()

    def vectors(self) -> list[Value]:
        """Vectors of chains that exist."""
        return [v for v in self.g.values if _is_chain(v) and v.twins[0] is not None and v.operand.rank == 1]

    def pick(self) -> Value:
        """A vector of a chain."""
        vectors = self.vectors()
        return self.r.choice(vectors[-6:]) if vectors and self.g.chance(0.6) else self.shape()

    def element(self, target: int) -> Value:
        """A vector of one element whose value is `target` at the base sizes."""
        if self.g.chance(0.15):
            return self.constant([target], self.r.choice(INTEGERS) if 0 <= target < 128 else "int64")
        source = self.pick()
        count = source.operand.shape[0]
        if count == 0:
            return self.constant([target], "int64")
        numbers = source.at(0).tolist()
        matches = [k for k, number in enumerate(numbers) if number == target]
        k = self.r.choice(matches) if matches and self.g.chance(0.8) else self.r.randrange(count)
        single = self.single(source, k)
        return self.corrected(single, target)

    def single(self, source: Value, k: int) -> Value:
        """Element k of a vector, as a vector of one element."""
        how = self.r.choice(["slice", "slice", "gather", "split", "elements", "none"])
        if how == "none" and source.operand.shape[0] == 1:
            return source
        if how == "gather":
            index = self.r.choice([k, k - source.operand.shape[0]])
            return self.chain(indexing.gather, source, self.constant([index], self.r.choice(["int32", "int64"])))
        if how == "elements":
            return self.chain(indexing.gather_elements, source, self.constant([k], self.r.choice(["uint32", "int64"])))
        if how == "split" and self.g.chance(0.5):
            turned = self.chain(movement.reverse, source)
            return self.chain(movement.slice, turned, [source.operand.shape[0] - 1 - k], [1])
        return self.chain(movement.slice, source, [k], [1])

    def corrected(self, x: Value, target: int) -> Value:
        """A function of a vector of one element, which is `target` at the base sizes."""
        number = int(x.at(0).item())
        if number == target and self.g.chance(0.5):
            return x
        if number < 0 or number > 2**31 or self.g.chance(0.5):
            x = self.chain(elementwise.cast, x, self.r.choice(INTEGERS))
            number = int(x.at(0).item())
        data_type = x.operand.data_type
        info = np.iinfo(data_type)

        def fits(value: int) -> bool:
            return int(info.min) <= value <= int(info.max)

        kinds = ["add", "sub", "quotient", "max", "min", "remainder", "where", "clamp", "negate", "sums"]
        if data_type in ("int32", "int64", "uint32", "uint64"):
            kinds += ["product"]
        kind = self.r.choice(kinds)
        if kind == "max" and number <= target and fits(target):
            return self.chain(elementwise.max, x, self.constant([target], data_type))
        if kind == "min" and number >= target and fits(target):
            return self.chain(elementwise.min, x, self.constant([target], data_type))
        if kind == "clamp" and fits(target):
            low = target if number <= target else None
            return self.chain(elementwise.clamp, x, min_value=low, max_value=None if low is not None else target)
        if kind == "quotient" and number > 0:
            divisor = self.r.choice([1, 2, 3, number])
            if fits(-divisor) and self.g.chance(0.1):
                divisor = -divisor
            if fits(divisor):
                x = self.chain(elementwise.div, x, self.constant([divisor], data_type))
        elif kind == "remainder":
            op = self.r.choice([elementwise.modulus_floor, elementwise.modulus_truncate])
            x = self.chain(op, x, self.constant([self.r.choice([1, 2, 3, 4])], data_type))
        elif kind == "negate":
            x = self.chain(self.r.choice([elementwise.neg, elementwise.abs, elementwise.sign, elementwise.identity]), x)
        elif kind == "where" and fits(target):
            compare = self.r.choice([logical.greater, logical.lesser, logical.equal, logical.greater_or_equal])
            condition = self.chain(compare, x, self.constant([self.r.choice([1, 2, 3])], data_type))
            if self.g.chance(0.3):
                condition = self.chain(logical.logical_not, condition)
            pair = [x, self.constant([target], data_type)]
            self.r.shuffle(pair)
            x = self.chain(elementwise.where, condition, *pair)
        elif kind == "sums":
            ops = [reduction.reduce_sum, reduction.reduce_product, reduction.reduce_max, reduction.reduce_min]
            if data_type in ("int8", "uint8"):
                ops = ops[2:]
            pair = [x, self.chain(elementwise.cast, self.pick(), data_type)]
            x = self.chain(self.r.choice(ops), self.chain(movement.concat, pair, 0), keep_dimensions=True)
        elif kind == "product" and number > 0 and target % number == 0 and fits(target // number):
            return self.chain(elementwise.mul, x, self.constant([target // number], data_type))
        number = int(x.at(0).item())
        if number == target:
            return x
        difference = target - number
        if kind != "sub" and fits(difference):
            return self.chain(elementwise.add, x, self.constant([difference], data_type))
        if fits(-difference):
            return self.chain(elementwise.sub, x, self.constant([-difference], data_type))
        return self.constant([target], "int64")

    def vector(self, targets: Sequence[int]) -> Value:
        """A vector of a chain that has these values at the base sizes."""
        if not targets:
            return (
                self.chain(movement.slice, self.shape(), [0], [0]) if self.g.chance(0.5) else self.constant([], "int32")
            )
        whole = [v for v in self.vectors() if v.at(0).tolist() == list(targets)]
        if whole and self.g.chance(0.6):
            return self.r.choice(whole)
        if self.g.chance(0.1) and len(targets) < 9 and all(0 <= t < 128 for t in targets):
            return self.constant(list(targets), self.r.choice(INTEGERS))
        return self.joined([self.element(target) for target in targets])

    def joined(self, parts: Sequence[Value]) -> Value:
        """A vector of vectors, in one integer type that holds the values at the base sizes."""
        if self.g.chance(0.15) and len(parts) == 1:
            return parts[0]
        numbers = [int(n) for part in parts for n in part.at(0).flat]
        types = [t for t in INTEGERS if all(np.iinfo(t).min <= n <= np.iinfo(t).max for n in numbers)]
        data_type = self.r.choice(types or ["int64"])
        same = [
            part if part.operand.data_type == data_type else self.chain(elementwise.cast, part, data_type)
            for part in parts
        ]
        return same[0] if len(same) == 1 else self.chain(movement.concat, same, 0)

    def scalar(self, target: int, data_type: str) -> Value:
        """A scalar of a chain in a data type."""
        value = self.element(target)
        if value.operand.data_type != data_type:
            value = self.chain(elementwise.cast, value, data_type)
        return self.reduced(value) if self.g.chance(0.4) else self.chain(movement.reshape, value, [])

    def reduced(self, value: Value) -> Value:
        return self.chain(self.r.choice([reduction.reduce_max, reduction.reduce_min]), value)

    # Operands --------------------------------------------------------------------------------------------------------

    def operand(self, fits: Callable[[Any], bool], make: Callable[[], np.ndarray] | None = None) -> Value:
        """A value of the graph whose data type and shape at the base sizes fit, or a new input."""
        values = [v for v in self.g.values if v.desc is not None and fits(v.desc)]
        if values and self.g.chance(0.85):
            return self.r.choice(values[-4:] if self.g.chance(0.6) else values)
        array = self.array() if make is None else make()
        return self.g.source(array, {}) if fits((array.dtype.name, array.shape)) else self.abandon()

    def abandon(self) -> Any:
        raise Abandoned

    def array(self, low: int = 1, high: int = 4) -> np.ndarray:
        shape = [self.r.choice([1, 2, 2, 3, 4, 5]) for _ in range(self.r.randint(low, high))]
        data_type = self.r.choice(["float32", "float32", "float16", *INTEGERS])
        return self.g.numbers.integers(0 if data_type.startswith("u") else -4, 5, shape).astype(data_type)

    def read(
        self,
        op: Op[..., Any],
        x: Value,
        chains: Sequence[Value],
        static: Callable[..., Any],
        **attributes: Any,
    ) -> list[Value]:
        """Add an operation that reads chains; `static` takes the static builder, operand, and numbers."""
        label = self.g.label()

        def fixed(k: int) -> Any:
            numbers = [[int(n) for n in chain.at(k).flat] for chain in chains]
            return static(self.g.builders[k], x.twins[k], *numbers, **attributes)

        def symbolic() -> Any:
            return op(self.g.builder, x.operand, *[chain.operand for chain in chains], **attributes, label=label)

        if chains and all(chain.operand.shape[0] for chain in chains) and self.g.chance(0.03):
            self.require_refusal(op, x, chains, attributes)
        return self.add(op, label, symbolic, fixed, [x, *chains])

    def require_refusal(self, op: Op[..., Any], x: Value, chains: Sequence[Value], attributes: dict[str, Any]) -> None:
        """Require that sizes from data are an error."""
        operands = [chain.operand for chain in chains]
        k = self.r.randrange(len(operands))
        data = self.g.source(
            np.zeros(operands[k].shape, operands[k].data_type), {size: size for size in operands[k].shape}, True
        )
        operands[k] = data.operand + operands[k]
        self.g.refuse(
            lambda: op(self.g.builder, x.operand, *operands, **attributes, label="from data"),
            f"{op.name} 'from data': {op.positional[k + 1]} must be computed from shapes and integer constants",
            # The operands before it are checked first.
            *(f"{op.name} 'from data': {name} must" for name in op.positional[1 : k + 1]),
        )

    def spoil(self, targets: list[int]) -> list[int]:
        """The targets, at times with one that is wrong."""
        if targets and self.g.chance(0.04):
            targets = list(targets)
            targets[self.r.randrange(len(targets))] += self.r.choice([1, -1, 2, -100, 1000])
        if targets and self.g.chance(0.01):
            targets = targets[1:]
        return targets

    # Operations ------------------------------------------------------------------------------------------------------

    def shape_as_data(self) -> None:
        """Sizes that are data: a float of a size, times a value."""
        x = self.operand(lambda desc: desc[0] in ("float32", "float16"), lambda: self.array().astype("float32"))
        sizes = [size for size in x.operand.shape if isinstance(size, Size)]
        if sizes and self.g.chance(0.4):
            size = self.r.choice(sizes) * self.r.randint(1, 2) + self.r.randint(-1, 1)
            self.binary(x, size)
            return
        part = self.single(self.shape(), 0) if self.g.chance(0.5) else self.element(self.r.randint(1, 6))
        data_type = x.operand.data_type
        label = self.g.label()
        (factor,) = self.add(
            elementwise.cast,
            label,
            lambda: self.g.builder.cast(part.operand, data_type, label=label),
            lambda k: self.g.builders[k].cast(part.twins[k], data_type, label=label),
            [part],
            is_same=True,
        )
        op = self.r.choice([elementwise.mul, elementwise.div, elementwise.add])
        self.add(
            op,
            label,
            lambda: op(self.g.builder, x.operand, factor.operand, label=label),
            lambda k: op(self.g.builders[k], x.twins[k], factor.twins[k], label=label),
            [x, factor],
            is_same=True,
        )

    def binary(self, x: Value, size: Any) -> None:
        """An operation on a value and a size, which the static graph has the number of."""
        label = self.g.label()
        op = self.r.choice([elementwise.mul, elementwise.add, elementwise.sub, elementwise.max])
        self.g.needed |= size.names
        self.add(
            op,
            label,
            lambda: op(self.g.builder, x.operand, size, label=label),
            lambda k: op(self.g.builders[k], x.twins[k], at(size, self.g.sizes[k]), label=label),
            [x],
            is_same=True,
        )

    def arithmetic(self) -> None:
        """An operation on two vectors of chains."""
        left = self.pick()
        kind = self.r.choice(
            ["binary", "binary", "binary", "compare", "cumulative", "tile", "expand", "triangular", "logic"]
        )
        if kind == "binary":
            right = self.element(self.r.randint(1, 5)) if self.g.chance(0.7) else self.pick()
            if {left.operand.shape, right.operand.shape} - {(1,), left.operand.shape}:
                raise Abandoned
            data_type = self.r.choice(INTEGERS)
            pair = [
                self.chain(elementwise.cast, v, data_type) if v.operand.data_type != data_type else v
                for v in (left, right)
            ]
            names = ["add", "sub", "mul", "div", "max", "min", "modulus_floor", "modulus_truncate"]
            op = getattr(elementwise, self.r.choice(names))
            if op is elementwise.div and not all(n is None or n.all() for n in pair[1].numbers or []):
                raise Abandoned  # engines differ
            self.chain(op, *pair)
        elif kind in ("compare", "logic"):
            limit = self.constant([self.r.randint(0, 5)], left.operand.data_type)
            names = ["equal", "not_equal", "greater", "greater_or_equal", "lesser", "lesser_or_equal"]
            truth = [self.chain(getattr(logical, self.r.choice(names)), left, limit) for _ in range(2)]
            if kind == "logic":
                self.chain(self.r.choice([logical.logical_and, logical.logical_or, logical.logical_xor]), *truth)
        elif kind == "cumulative":
            if left.operand.data_type not in ("int32", "uint32", "int64", "uint64"):
                left = self.chain(elementwise.cast, left, "int32")
            self.chain(reduction.cumulative_sum, left, 0, exclusive=self.g.chance(0.5), reversed=self.g.chance(0.5))
        elif kind == "tile":
            self.chain(movement.tile, left, [self.r.randint(1, 3)])
        elif kind == "expand":
            wide = self.chain(movement.expand, left, [2, left.operand.shape[0]])
            self.chain(movement.reshape, self.chain(movement.transpose, wide), [2 * left.operand.shape[0]])
        else:
            square = self.chain(movement.expand, left, [left.operand.shape[0]] * 2)
            half = self.chain(movement.triangular, square, upper=self.g.chance(0.5), diagonal=self.r.randint(-1, 1))
            if left.operand.data_type in ("int8", "uint8"):
                self.chain(reduction.reduce_max, half, axes=[0])
            else:
                self.chain(reduction.reduce_sum, half, axes=[self.r.randint(0, 1)])

    def range(self) -> None:
        data_type = self.r.choice(INTEGERS)
        is_down = not data_type.startswith("u") and self.g.chance(0.3)
        start, limit = self.r.randint(0, 3), self.r.randint(0, 9)
        step = self.r.choice([1, 1, 2, 3, 0 if self.g.chance(0.05) else 1])
        if is_down:
            start, limit, step = limit, start - 2, -step
        parts = [self.scalar(target, data_type) for target in (start, limit, step)]
        label = self.g.label()

        def fixed(k: int) -> Any:
            first, end, delta = (int(part.at(k).item()) for part in parts)
            if delta == 0:
                raise ow.ValidationError("delta must not be 0")
            if (end - first) // delta > MAX_RANGE:
                raise Abandoned
            return _data(self.g.builders[k], _range([first, end, delta], data_type))

        operands = [part.operand for part in parts]
        (result,) = self.add(dynamic.range, label, lambda: self.g.builder.range(*operands, label=label), fixed, parts)
        if all(isinstance(size, int) for size in result.operand.shape) and not result.wraps:
            arrays = [
                [part.at(k) for part in parts] if result.twins[k] is not None else [] for k in range(len(result.twins))
            ]
            result.numbers = [
                None if twin is None else _range([int(n.item()) for n in row], data_type)
                for twin, row in zip(result.twins, arrays, strict=True)
            ]

    def squeeze(self) -> None:
        x = self.operand(lambda desc: 1 in desc[1], lambda: self.array()[..., :1])
        ones = [axis for axis, size in enumerate(x.twins[0].shape) if size == 1]
        axes = None if self.g.chance(0.4) else self.r.sample(ones, self.r.randint(1, len(ones)))
        if axes and self.g.chance(0.05):
            axes[0] = self.r.randrange(x.operand.rank)
        named = {axis for axis, size in enumerate(x.operand.shape) if isinstance(size, Size)}

        def fixed(b: Any, twin: Any) -> Any:
            dropped = [axis for axis in range(twin.rank) if twin.shape[axis] == 1] if axes is None else axes
            if axes is None and named & set(dropped):
                raise ow.ValidationError("squeeze")
            if len(set(dropped)) < len(dropped) or any(twin.shape[axis] != 1 for axis in dropped):
                raise ow.ValidationError("squeeze")
            return b.reshape(twin, [size for axis, size in enumerate(twin.shape) if axis not in dropped])

        self.read(dynamic.squeeze, x, [], lambda b, twin, axes: fixed(b, twin), axes=axes)

    def unsqueeze(self) -> None:
        x = self.operand(lambda desc: len(desc[1]) < 6)
        count = self.r.randint(1, 2)
        axes = self.r.sample(range(x.operand.rank + count), count)

        def fixed(b: Any, twin: Any, axes: list[int]) -> Any:
            return b.reshape(twin, np.expand_dims(np.broadcast_to(np.int8(0), twin.shape), tuple(axes)).shape)

        label = self.g.label()
        self.add(
            dynamic.unsqueeze,
            label,
            lambda: self.g.builder.unsqueeze(x.operand, axes, label=label),
            lambda k: fixed(self.g.builders[k], x.twins[k], axes),
            [x],
        )

    def reshape_to_2d(self) -> None:
        x = self.operand(lambda desc: True)
        axis = self.r.randint(0, x.operand.rank)
        self.read(
            dynamic.reshape_to_2d,
            x,
            [],
            lambda b, twin, axis: b.reshape(twin, [prod(twin.shape[:axis]), prod(twin.shape[axis:])]),
            axis=axis,
        )

    def reshape_dynamic(self) -> None:
        x = self.operand(lambda desc: len(desc[1]) > 0)
        rank = x.operand.rank
        if self.g.chance(0.6):  # merge neighbours: valid for all sizes
            sizes = self.shape(x)
            ends = sorted({*self.r.sample(range(1, rank + 1), self.r.randint(0, rank)), rank})
            parts = []
            for begin, end in zip([0, *ends], ends, strict=False):
                part = self.chain(movement.slice, sizes, [begin], [end - begin])
                is_long = end - begin > 1 or self.g.chance(0.2)
                parts.append(self.chain(reduction.reduce_product, part, keep_dimensions=True) if is_long else part)
            if self.g.chance(0.3):
                parts.insert(self.r.randint(0, len(parts)), self.constant([1], "uint32"))
            new_shape = self.joined(parts)
        else:
            targets: list[int] = []
            left = prod(x.twins[0].shape)
            while left > 1 and len(targets) < 4:
                factor = self.r.choice([k for k in range(1, left + 1) if left % k == 0])
                targets.append(factor)
                left //= factor
            new_shape = self.vector(self.spoil([*targets, left]))
        self.read(dynamic.reshape_dynamic, x, [new_shape], lambda b, twin, shape: b.reshape(twin, shape))

    def expand_dynamic(self) -> None:
        y = self.operand(lambda desc: 0 < len(desc[1]) <= 5)
        if self.g.chance(0.5):
            shape = [size if self.g.chance(0.4) else 1 for size in y.twins[0].shape][
                self.r.randint(0, y.operand.rank) :
            ]
            symbols = {**dict(zip(y.twins[0].shape, y.operand.shape, strict=True)), 1: 1}
            x = self.g.source(np.full(shape, self.r.randint(1, 4), "float32"), symbols)
            new_shape = self.shape(y)
        else:
            x = self.operand(lambda desc: len(desc[1]) <= 4)
            targets = [self.r.randint(1, 4) if size == 1 else size for size in x.twins[0].shape]
            new_shape = self.vector(self.spoil([self.r.randint(1, 3) for _ in range(self.r.randint(0, 1))] + targets))
        self.read(dynamic.expand_dynamic, x, [new_shape], lambda b, twin, shape: b.expand(twin, shape))

    def slice_dynamic(self) -> None:
        x = self.operand(lambda desc: 0 < len(desc[1]) <= 5)
        shape = x.twins[0].shape
        starts = [self.r.randint(0, size // 2) for size in shape]
        sizes = [self.r.randint(min(1, size - start), size - start) for start, size in zip(starts, shape, strict=True)]
        if self.g.chance(0.4):
            starts, sizes = [0] * len(shape), list(shape)
        first = self.vector(self.spoil(starts))
        if self.g.chance(0.3):  # what remains behind the start: valid for all sizes that the start is
            own = self.shape(x)
            first = first if first.operand.data_type == "uint32" else self.chain(elementwise.cast, first, "uint32")
            if first.operand.shape != own.operand.shape:
                raise Abandoned
            length = self.chain(elementwise.sub, own, first)
        else:
            length = self.vector(self.spoil(sizes))
        strides = [self.r.randint(1, 3) for _ in shape] if self.g.chance(0.4) else None
        self.read(
            dynamic.slice_dynamic,
            x,
            [first, length],
            lambda b, twin, starts, sizes, strides=None: b.slice(twin, starts, sizes, strides=strides),
            **({} if strides is None else {"strides": strides}),
        )

    def pad_dynamic(self) -> None:
        x = self.operand(lambda desc: 0 < len(desc[1]) <= 4)
        mode = self.r.choice(["constant", "constant", "edge", "reflection"])
        limits = [size - 1 if mode == "reflection" else 3 for size in x.twins[0].shape]
        sides = [self.vector(self.spoil([self.r.randint(0, max(0, min(2, n))) for n in limits])) for _ in range(2)]
        self.read(
            dynamic.pad_dynamic,
            x,
            sides,
            lambda b, twin, before, after, mode, value: b.pad(twin, before, after, mode=mode, value=value),
            mode=mode,
            value=self.r.choice([0, 1, -2, 7]) if not str(x.operand.data_type).startswith("u") else 3,
        )

    def split_dynamic(self) -> None:
        x = self.operand(lambda desc: 0 < len(desc[1]) <= 5 and max(desc[1]) > 0)
        axis = self.r.choice([axis for axis, size in enumerate(x.twins[0].shape) if size > 0])
        size = x.twins[0].shape[axis]
        count = self.r.randint(1, min(3, size))
        borders = [0, *sorted(self.r.sample(range(1, size), count - 1)), size]
        parts = [end - begin for begin, end in pairwise(borders)]
        if count > 1 and self.g.chance(0.6):  # the last part is what remains
            first = self.vector(self.spoil(parts[:-1]))
            first = self.chain(elementwise.cast, first, "int64") if first.operand.data_type != "int64" else first
            whole = self.chain(elementwise.cast, self.chain(movement.slice, self.shape(x), [axis], [1]), "int64")
            used = self.chain(reduction.reduce_sum, first, keep_dimensions=True)
            splits = self.joined([first, self.chain(elementwise.sub, whole, used)])
        else:
            splits = self.vector(self.spoil(parts))
        self.read(
            dynamic.split_dynamic,
            x,
            [splits],
            lambda b, twin, splits, axis: b.split(twin, splits, axis=axis),
            axis=axis,
        )

    def resample2d_dynamic(self) -> None:
        x = self.operand(
            lambda desc: len(desc[1]) == 4 and desc[0] in ("float32", "float16", "int8", "uint8") and 0 not in desc[1],
            lambda: self.array(4, 4).astype(self.r.choice(["float32", "float16", "int8"])),
        )
        axes = self.r.sample(range(4), 2)
        if self.g.chance(0.5):
            own = self.shape(x)
            sizes = self.joined([self.corrected(self.single(own, a), self.r.randint(1, 6)) for a in axes])
        else:
            sizes = self.vector(self.spoil([self.r.randint(1, 6) for _ in axes]))
        self.read(
            dynamic.resample2d_dynamic,
            x,
            [sizes],
            lambda b, twin, sizes, mode, axes: b.resample2d(twin, mode=mode, sizes=sizes, axes=axes),
            mode=self.r.choice(["linear", "nearest-neighbor"]),
            axes=axes,
        )

    def tile_dynamic(self) -> None:
        x = self.operand(lambda desc: len(desc[1]) <= 4)
        times = self.vector(self.spoil([self.r.choice([1, 1, 2, 3]) for _ in range(x.operand.rank)]))
        self.read(dynamic.tile_dynamic, x, [times], lambda b, twin, times: b.tile(twin, times))

    def modulus(self) -> None:
        """Remainders of data."""
        x = self.operand(lambda desc: True)
        y = self.g.source(
            self.g.numbers.integers(1, 4, x.twins[0].shape).astype(x.operand.data_type),
            {
                number: size
                for number, size in zip(x.twins[0].shape, x.operand.shape, strict=True)
                if isinstance(size, int) or size.name
            },
        )
        op = self.r.choice([elementwise.modulus_floor, elementwise.modulus_truncate])
        label = self.g.label()
        self.add(
            op,
            label,
            lambda: op(self.g.builder, x.operand, y.operand, label=label),
            lambda k: op(self.g.builders[k], x.twins[k], y.twins[k], label=label),
            [x, y],
            is_same=True,
        )


def _is_chain(value: Any) -> bool:
    return getattr(value, "numbers", None) is not None


def _range(limits: Sequence[int], data_type: str) -> np.ndarray:
    """`np.arange`, which overflows where the limits are far apart in the direction that gives no elements."""
    return np.array(range(*limits), object).astype(data_type)


def _data(builder: Any, array: np.ndarray) -> Any:
    """A constant that may be an output."""
    return builder.identity(builder.constant(array))


OPERATIONS = frozenset(Operations.drafts())
"""The names of the operations that this module must call."""
