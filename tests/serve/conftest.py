"""A server for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.served_clients import ORIGIN

from opweave.serve import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(port=0, origins=[ORIGIN], device="cpu") as served:
        yield served
