"""What all tests share."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

os.environ.setdefault("OPWEAVE_STRICT", "1")  # faults of converters are raised, and do not hide behind fallback

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the environment of `make test-torch` has none
    pass
else:
    # The same examples on each machine, however fast it is: bounded by their number, with seeds made from the tests' names.
    settings.register_profile(
        "same everywhere", deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    settings.load_profile("same everywhere")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all", action="store_true", help="run the rows that differ by data type only, too (`make test-all`)"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "data_types(family, subject, types): a row that differs from others of its subject by data types only",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sample the rows that differ by data type only, unless tests are asked for by name or with `--all`."""
    if config.option.all or config.option.keyword or any("::" in argument for argument in config.args):
        return
    groups: dict[Any, list[tuple[pytest.Item, str, Any]]] = defaultdict(list)
    for item in items:
        if (mark := item.get_closest_marker("data_types")) is not None:
            family, subject, types = mark.args
            groups[item.path, item.originalname, family].append((item, subject, types))  # type: ignore[attr-defined]
    left_out = {
        item
        for group in groups.values()
        for (item, *_), kept in zip(group, sample([(subject, types) for _, subject, types in group]), strict=True)
        if not kept
    }
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def sample(rows: Sequence[tuple[str, Sequence[str]]]) -> list[bool]:
    """Which rows of a family to run: two of each subject, and each operand's data types with some subject.

    Args:
        rows: for each the subject and the data types of its operands.

    >>> types = ("float32", "float16", "int8")
    >>> sample([(subject, [t]) for subject in ("abs", "neg") for t in types])
    [True, True, False, True, False, True]
    """
    used: Counter[tuple[int, str]] = Counter()
    kept = [False] * len(rows)

    def uses(index: int) -> list[int]:
        return [used[place] for place in enumerate(rows[index][1])]

    def keep(index: int) -> None:
        kept[index] = True
        used.update(enumerate(rows[index][1]))

    for subject in dict.fromkeys(subject for subject, _ in rows):
        first, *others = (index for index, row in enumerate(rows) if row[0] == subject)
        keep(first)
        if others:
            keep(min(others, key=lambda index: sum(uses(index))))
    for index in range(len(rows)):
        if 0 in uses(index):
            keep(index)
    return kept
