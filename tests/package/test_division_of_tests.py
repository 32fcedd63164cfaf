"""Which tests `make test` and its parts run, and whether `tests/README.md` says so."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import row_sample
from row_sample import LIMIT, PARTS, PLACES, Row, covering, divide, places_to_run, sample

TESTS = Path(__file__).parents[1]
README = (TESTS / "README.md").read_text(encoding="utf-8")


def test_each_test_has_a_row_in_the_sample_or_takes_long(pytestconfig: pytest.Config) -> None:
    places = pytestconfig.stash[PLACES]
    run = {name.partition("[")[0] for name, place in places.items() if place in ("sample", "long")}
    assert {name.partition("[")[0] for name in places} == run


def test_sample_and_parts_are_all_tests(pytestconfig: pytest.Config) -> None:
    places = pytestconfig.stash[PLACES]
    runs = [places_to_run(None), *(places_to_run(number) for number in range(PARTS))]
    assert set(places.values()) <= set().union(*runs)
    times = Counter(place for run in runs for place in run)
    assert times == {"sample": 1, "long": PARTS, **{f"part {number}": 1 for number in range(PARTS)}}
    assert places_to_run(3, with_sample=True) == {"sample", "long", "part 3"}


def test_generators_of_modules_that_a_test_imports(shared_generators: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("late")
    module.__file__, module.RNG = str(TESTS / "late.py"), np.random.default_rng(4)
    monkeypatch.setitem(sys.modules, "late", module)
    numbers = module.RNG.random(3).tolist()
    for _ in range(2):
        shared_generators.restore()
        assert module.RNG.random(3).tolist() == numbers


def test_parts_have_the_same_size(pytestconfig: pytest.Config) -> None:
    sizes = Counter(place for place in pytestconfig.stash[PLACES].values() if place.startswith("part"))
    if sizes.total() < 30_000:
        pytest.skip("only a few of the tests were collected")
    assert max(sizes.values()) < 1.15 * min(sizes.values())


def test_rows_use_all_values_whatever_their_order() -> None:
    rows = [
        Row(f"test[{op}-{t}-{n}]") for op in ("add", "mul") for t in ("int8", "int32", "uint8") for n in range(LIMIT)
    ]
    kept = sample(rows)
    assert len(kept) == LIMIT
    values = {part for name in kept for part in name[5:-1].split("-")}
    assert values == {"add", "mul", "int8", "int32", "uint8", *map(str, range(LIMIT))}
    assert sample(random.Random(0).sample(rows, len(rows))) == kept
    assert covering(rows) == kept


def test_samples_have_a_limit_that_named_values_lift() -> None:
    assert len(sample([Row(f"test[{n}]") for n in range(50)])) == LIMIT
    assert len(sample([Row(f"test[{n}]", covers=(f"{n // 2}",)) for n in range(50)])) == 25
    assert len(sample([Row(f"test[{n}]", covers=()) for n in range(50)])) == 1
    assert len(sample([Row("test[a-b]"), *(Row(f"test[{n}]", covers=()) for n in range(50))])) == 1
    assert len(sample([Row(f"test[x-{n}-x]") for n in "aabb"])) == 4


@pytest.mark.parametrize("is_alone", [True, False])
def test_property_tests_draw_fewer_examples_in_the_sample(is_alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sample, "draws_few", is_alone)
    assert row_sample.examples(10, in_sample=4) == (4 if is_alone else 10)


def test_fewer_examples_are_drawn_in_runs_of_the_sample_alone(pytestconfig: pytest.Config) -> None:
    option = pytestconfig.option
    takes_more = bool(
        option.all or option.keyword or option.part is not None or any("::" in name for name in pytestconfig.args)
    )
    assert row_sample.draws_few is (option.few_examples or not takes_more)


def test_divide_keeps_places_of_other_tests() -> None:
    rows = [Row(f"test_one[{n}]") for n in range(50)]
    before = divide(rows)
    assert divide([*rows, Row("test_two"), *(Row(f"test_three[{n}]") for n in range(50))]).items() > before.items()
    after = divide([*rows, Row("test_one[50]")])
    assert sum(after[name] != place for name, place in before.items()) <= 2


def test_readme_names_all_folders() -> None:
    table = README.partition("\n## ")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall("`(.*?)`", row)}
    files = (path for path in TESTS.rglob("test_*.py") if "node_modules" not in path.parts)
    assert named == {path.parent.relative_to(TESTS).as_posix() for path in files}


def test_readme_names_all_targets() -> None:
    makefile = (TESTS.parent / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(test[\w-]*|fuzz):", makefile, re.MULTILINE))
    assert {"test", "test-part", "test-cuda"} < targets
    assert [target for target in sorted(targets) if not re.search(rf"`make {target}[ `]", README)] == []
