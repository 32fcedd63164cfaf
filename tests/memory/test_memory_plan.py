"""How intermediates share memory."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from opweave.memory import ALIGNMENT, Life, plan

STEPS = 12


@st.composite
def lives(draw: st.DrawFn) -> Life:
    first = draw(st.integers(0, STEPS))
    return Life(draw(st.integers(0, 5000)), first, draw(st.integers(first, STEPS)))


def overlap(one: Life, other: Life) -> bool:
    return one.first <= other.last and other.first <= one.last


@given(st.lists(lives(), max_size=30))
def test_plan_separates_overlapping_lifetimes(many: list[Life]) -> None:
    made = plan(many)
    assert len(made.offsets) == len(many)
    assert all(offset % ALIGNMENT == 0 for offset in made.offsets)
    spans = list(zip(many, made.offsets, strict=True))
    for (one, at), (other, its) in itertools.combinations(spans, 2):
        if overlap(one, other):
            assert at + one.size <= its or its + other.size <= at or 0 in (one.size, other.size)
    assert all(offset + life.size <= made.peak for life, offset in spans)


@given(st.lists(lives(), max_size=30))
def test_plan_peak_is_within_bounds(many: list[Life]) -> None:
    made = plan(many)
    sizes = [-(-life.size // ALIGNMENT) * ALIGNMENT for life in many]
    at_once = [
        sum(size for life, size in zip(many, sizes, strict=True) if life.first <= step <= life.last)
        for step in range(STEPS + 1)
    ]
    assert max(at_once) <= made.peak <= made.total == sum(sizes)


@given(st.integers(1, 5000), st.integers(2, 20))
def test_equal_sizes_in_a_chain_take_turns(size: int, count: int) -> None:
    """Each value lives from the step that makes it to the next one: two places are enough."""
    made = plan([Life(size, step, step + 1) for step in range(count)])
    assert made.peak == 2 * -(-size // ALIGNMENT) * ALIGNMENT


@pytest.mark.parametrize(
    ("many", "peak"),
    [
        ([], 0),
        ([Life(64, 0, 0)], 64),
        ([Life(1, 0, 5), Life(1, 0, 5)], 128),
        ([Life(100, 0, 1), Life(64, 1, 2), Life(128, 2, 3)], 192),
        ([Life(64, 0, 1), Life(64, 2, 3), Life(64, 4, 5)], 64),
        ([Life(256, 0, 1), Life(64, 1, 2), Life(256, 2, 3)], 320),
        ([Life(64, 0, 9), Life(128, 1, 2), Life(128, 3, 4), Life(128, 5, 6)], 192),
    ],
    ids=["nothing", "one", "two at once", "a chain", "one after the other", "small between large", "one stays"],
)
def test_known_cases_take_the_least(many: list[Life], peak: int) -> None:
    assert plan(many).peak == peak
