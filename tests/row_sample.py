"""The division of all tests: the sample that `make test` runs, what takes long, and parts of the rest.

Rows of a parametrised test differ in data. A sample of them uses each value at least once; a value is a part of a row's id, or
what the marker `covers` names. A row's place depends on its id, and on few other rows: not on their order, nor on the machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import pytest

PARTS = 32
"""The rest is divided into so many: `.ci/run` runs the sample and one part for each change."""
FEW = 4
"""A test with so many rows keeps all of them."""
LIMIT = 4
"""A test keeps at most so many rows, of those without the marker `covers`."""

draws_few = False
"""Whether property tests draw few examples: where the sample alone runs, as in `make test`. `conftest.py` sets it."""


PLACES = pytest.StashKey[dict[str, str]]()
"""The places of all tests that pytest has collected: see `divide`."""


class Row(NamedTuple):
    """A test, or one row of a parametrised one."""

    name: str
    """The node id: file, function, and the row's id in brackets."""
    covers: tuple[str, ...] | None = None
    """Values that the row stands for, or None for the parts of its id. Rows without values are in no sample."""
    short: int | None = None
    """The number of rows of the sample that are run by `make test`, if the test takes long."""


def typed(subject: str, types: Sequence[str], family: str = "") -> pytest.MarkDecorator:
    """The marker of a row of a large table: a subject, such as an operation, and the data types of its operands.

    The sample has rows with floats and rows without them for each subject, and all data types of each operand in a family.
    """
    kind = "floats" if any(t.startswith("float") for t in types) else "integers"
    return pytest.mark.covers(f"{subject} of {kind}", *(f"{family} {number}: {t}" for number, t in enumerate(types)))


def examples(count: int, in_sample: int) -> int:
    """The number of examples that a property test draws: `count`, but `in_sample` if only the sample runs."""
    return in_sample if draws_few else count


def digest(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def part_number(text: str) -> int:
    """The part that a number or a commit's hash stands for.

    >>> part_number("3"), part_number("1276f246")
    (3, 6)
    """
    return int(text, 16) % PARTS


def values_of(row: Row) -> set[str]:
    return set(row.name.partition("[")[2].removesuffix("]").split("-") if row.covers is None else row.covers)


def covering(rows: Iterable[Row]) -> list[str]:
    """Names of rows that together have all values: the row with most new values first, then the smallest digest."""
    heap = [(-len(values_of(row)), digest(row.name), values_of(row), row.name) for row in rows]
    heapify(heap)
    seen: set[str] = set()
    kept = []
    while heap:
        gain, order, values, name = heappop(heap)
        new = len(values - seen)
        if new == -gain != 0:
            kept.append(name)
            seen |= values
        elif new:
            heappush(heap, (-new, order, values, name))
    return kept


def sample(rows: Sequence[Row]) -> list[str]:
    """Names of rows of one test that together use each value.

    >>> rows = [Row(f"test[{op}-{t}]") for op in ("abs", "neg", "sign") for t in ("float32", "float16", "int32", "uint8")]
    >>> sample(rows)
    ['test[neg-float16]', 'test[sign-float32]', 'test[abs-int32]', 'test[sign-uint8]']
    """
    plain = [row for row in rows if row.covers is None]
    kept = covering(plain)[:LIMIT] if len(plain) > FEW else [row.name for row in plain]
    kept += covering(row for row in rows if row.covers is not None)
    return kept or [min((row.name for row in rows), key=digest)]


def divide(rows: Iterable[Row]) -> dict[str, str]:
    """The place of each row: `sample`, `long` (each part runs these), or `part 0` to `part 31`.

    >>> divide([Row("test_one"), Row("test_two", short=0), *(Row(f"test_many[{i}]", short=1) for i in range(3))])
    {'test_one': 'sample', 'test_two': 'long', 'test_many[0]': 'sample', 'test_many[1]': 'long', 'test_many[2]': 'long'}
    """
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.name.partition("[")[0]].append(row)
    places: dict[str, str] = {}
    for group in groups.values():
        places |= {row.name: f"part {digest(row.name) % PARTS}" for row in group}
        sampled = sample(group)
        short = min((row.short for row in group if row.short is not None), default=len(sampled))
        places |= {name: "sample" if number < short else "long" for number, name in enumerate(sampled)}
    return places


def long_in_parts(places: Mapping[str, str]) -> dict[str, str]:
    """Put what takes long into the parts, too.

    >>> long_in_parts({"test_one": "sample", "test_two": "long", "test_many[1]": "part 3"})
    {'test_one': 'sample', 'test_two': 'part 22', 'test_many[1]': 'part 3'}
    """
    return {name: f"part {digest(name) % PARTS}" if place == "long" else place for name, place in places.items()}


def places_to_run(part: int | None, with_sample: bool = False) -> set[str]:
    """The places that a run of pytest chooses: the sample, or what takes long and a part."""
    if part is None:
        return {"sample"}
    return {"long", f"part {part}"} | ({"sample"} if with_sample else set())
