"""The fixture of tests of operations on arrays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import opweave as ow


@pytest.fixture
def from_zero() -> Iterator[None]:
    """Statistics that start from zero, with nothing left to compile; what recurs is compiled in the background."""
    ow.lazy.wait()  # for what other tests have left to compile
    before = ow.lazy.compile_now(False)
    ow.lazy.statistics.reset()
    yield
    ow.lazy.compile_now(before)
