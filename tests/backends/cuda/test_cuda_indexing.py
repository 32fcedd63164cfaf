"""Composites that read, write or select elements with CUDA, on a GPU (`make test-gpu`) or the processor."""

from __future__ import annotations

from typing import Any

import pytest
from support.seeded import BLOCKS, INDEXING, check_block

import opweave as ow
from opweave.lazy.custom_call import CustomOp


@pytest.mark.long
@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("op", INDEXING, ids=lambda op: op.name)
def test_calls_equal_their_witness(device_context: ow.MLContext, op: CustomOp[Any], block: int) -> None:
    check_block(device_context, op, block)
