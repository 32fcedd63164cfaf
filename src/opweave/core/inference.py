"""Infer the descriptors of results whose sizes are known only when a graph runs.

The function of an operation is called once for each combination of answers to its comparisons of sizes, such as `n > 1`. A
function that needs the number of a size, for instance to loop over an axis, is called for sample sizes instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice
from random import Random
from typing import Any, TypeAlias

from ..support import lazy_imports
from ..support.errors import ValidationError, require
from .graph import MAX_DIMENSION, Desc, Graph, Node, Operand, iter_operands, map_operands
from .guards import explore, without_deciding
from .operation import call_with, descs_of
from .reals import formula_without_value
from .size_scope import UnknownSizeError, current_scope
from .size_values import at, sizes_in, values_at, variables_in
from .sizes import Dimension, Size, unknown_size

Results: TypeAlias = "Desc | Sequence[Desc]"
Evaluate: TypeAlias = Callable[[Mapping[str, Any], dict[str, Any]], tuple[dict[str, Any], Results]]
"""Takes operands and attributes, and returns the attributes with their defaults, and the descriptors of the results."""

SAMPLES = 3
"""Number of sample sizes for which a function that needs numbers must succeed."""

MAX_TRIALS = 64
"""Maximum number of sample sizes that are tried."""

MAX_SAMPLE = 4096
"""Largest dimension in the first trials, since the function may be a loop over an axis. An estimate."""


@lazy_imports.infer_for_all_sizes.provide
def infer_for_all_sizes(
    evaluate: Evaluate,
    inputs: Mapping[str, Any],
    attributes: dict[str, Any],
    fillers: Mapping[str, Callable[..., Any]],
) -> tuple[dict[str, Any], Results]:
    """Return the attributes and the descriptors that are valid for all sizes.

    A default that depends on sizes, or whose function in `fillers` compares sizes, stays None: each run computes it again.

    Raises:
        ValidationError: no sizes are valid; or the function needs numbers, and refuses all sample sizes.
    """
    if (scope := current_scope.get()) is not None and scope.is_of_run:
        # The scope knows the sizes of a run, and records how they compare.
        return evaluate(inputs, dict(attributes))
    try:
        outcomes = explore(lambda: evaluate(inputs, dict(attributes)))
    except UnknownSizeError as error:
        return attributes, _infer_by_samples(evaluate, inputs, attributes, error)
    first = outcomes[0][0]
    for name, fill in fillers.items():
        is_same = attributes[name] is None and all(other[name] == first[name] for other, _ in outcomes)
        if is_same and not sizes_in(first[name]) and not _compares_sizes(fill, {**inputs, **first}):
            attributes[name] = first[name]
    return attributes, _join([result for _, result in outcomes])


def _compares_sizes(fill: Callable[..., Any], arguments: dict[str, Any]) -> bool:
    """Whether the function of a default depends on comparisons of sizes; False in a run, whose sizes are known."""
    scope = current_scope.get()
    if scope is not None and scope.is_of_run:
        return False
    try:
        with without_deciding():
            call_with(fill, arguments)
    except ValidationError:
        return True
    return False


def with_defaults(graph: Graph) -> Graph:
    """Replace each missing default by its formula, if one formula is right for all valid sizes."""
    copies: dict[Operand, Operand] = {}

    def follow(operand: Operand) -> Operand:
        return copies.get(operand, operand)

    nodes = []
    for node in graph.nodes:
        attributes = dict(node.attributes)
        for name, fill in node.op.fillers.items():
            if attributes[name] is None:
                values = explore(partial(call_with, fill, {**node.inputs, **attributes}))
                attributes[name] = values[0] if all(value == values[0] for value in values) else None
        inputs = map_operands(node.inputs, follow)
        copy = Node(node.op, inputs, attributes, node.label, node.serial)
        copy.outputs = tuple(Operand(output.builder, output.desc, node=copy) for output in node.outputs)
        copies.update(zip(node.outputs, copy.outputs, strict=True))
        nodes.append(copy)
    return Graph(graph.inputs, map_operands(graph.outputs, follow), tuple(nodes))


def _join(results: Sequence[Results]) -> Results:
    """The descriptor that is valid for all sizes: a dimension that differs between results is unknown."""
    first = results[0]
    if not isinstance(first, Desc):
        _check_counts(results)
        return tuple(_join(descs) for descs in zip(*results, strict=True))  # type: ignore[misc]
    shapes = dict.fromkeys(result.shape for result in results if isinstance(result, Desc))
    if len(shapes) == 1:
        return first
    _check_ranks(list(shapes))
    sizes = [dict.fromkeys(column) for column in zip(*shapes, strict=True)]
    return Desc(first.data_type, tuple(next(iter(size)) if len(size) == 1 else unknown_size() for size in sizes))


def _check_counts(results: Sequence[Results]) -> None:
    counts = sorted({len(descs_of(result)) for result in results})
    require(len(counts) == 1, f"the number of results depends on sizes: {' or '.join(map(str, counts))}")


def _check_ranks(shapes: Sequence[Sequence[Dimension]]) -> None:
    listed = " or ".join(dict.fromkeys(str(list(shape)) for shape in shapes))
    require(len(set(map(len, shapes))) == 1, f"the rank of the result depends on sizes: {listed}")


# Samples -------------------------------------------------------------------------------------------------------------


def _infer_by_samples(
    evaluate: Evaluate, inputs: Mapping[str, Any], attributes: dict[str, Any], error: UnknownSizeError
) -> Results:
    """Infer the descriptors from results for sample sizes.

    A dimension is the size of an operand or attribute, or the number, that agrees with all samples; else it is unknown.
    """
    shapes = tuple(operand.shape for operand in iter_operands(inputs))
    candidates = sizes_in((*shapes, *attributes.values()))
    names = sorted(variables_in(tuple(candidates)))
    samples: list[Mapping[str, int]] = []
    results: list[Results] = []
    refusal: ValidationError | None = None
    for limit in (MAX_SAMPLE, MAX_DIMENSION):
        for sizes in islice(_combinations(names), MAX_TRIALS):
            try:
                numbers = {name: values_at(value, sizes) for name, value in attributes.items()}
                results.append(evaluate(map_operands(inputs, partial(_operand_at, sizes, limit)), numbers)[1])
            except ValidationError as error_at_sizes:
                refusal = error_at_sizes
            except ArithmeticError:
                formula = formula_without_value((*shapes, *attributes.values()), sizes) or "a formula"
                refusal = ValidationError(f"{formula} divides a size by 0")
            else:
                samples.append(sizes)
            if len(samples) == SAMPLES:
                break
        if results:
            break
    else:
        raise type(error)(f"{error}; with numbers as sizes, the error is: {refusal}")
    _check_counts(results)
    columns = list(zip(*map(descs_of, results), strict=True))
    fitted = tuple(
        Desc(descs[0].data_type, _fit([desc.shape for desc in descs], candidates, samples)) for descs in columns
    )
    return fitted[0] if isinstance(results[0], Desc) else fitted


def _combinations(names: Sequence[str]) -> Iterator[Mapping[str, int]]:
    """Yield sizes to try: different primes, equal numbers, then random numbers, which are the same in each process."""
    primes = (5, 7, 11, 13, 17, 19, 23, 29)
    for k in range(2):
        yield {name: primes[(n + 3 * k) % len(primes)] for n, name in enumerate(names)}
    for number in (4, 1, 2, 12):
        yield dict.fromkeys(names, number)
    random = Random(1)
    for trial in count():
        largest = 16 if trial < MAX_TRIALS // 2 else 512
        yield {name: random.randint(1, largest) for name in names}


def _operand_at(sizes: Mapping[str, int], limit: int, operand: Operand) -> Operand:
    """The operand with numbers as dimensions, which must be valid; dimensions that depend on sizes are at most `limit`."""
    desc = Desc(operand.data_type, values_at(operand.shape, sizes))
    for size, number in zip(operand.shape, desc.shape, strict=True):
        fits = not isinstance(size, Size) or 0 <= number <= limit
        require(fits, f"dimensions must be in [0, {limit}], got {size} = {number}")
    return Operand(operand.builder, desc, name=operand.name, value=operand.value)


def _fit(
    shapes: Sequence[Sequence[int]], candidates: Sequence[Size], samples: Sequence[Mapping[str, int]]
) -> tuple[Any, ...]:
    _check_ranks(shapes)
    # Samples in which a size is always the same cannot tell the size from a number.
    all_differ = all(len({sample[name] for sample in samples}) > 1 for name in samples[0])

    def fit(numbers: tuple[int, ...]) -> Any:
        sizes: dict[Dimension, None] = dict.fromkeys([*candidates, numbers[0]] if all_differ else ())
        matches = [size for size in sizes if numbers == tuple(at(size, sample) for sample in samples)]
        return matches[0] if len(matches) == 1 else unknown_size()

    return tuple(map(fit, zip(*shapes, strict=True)))
