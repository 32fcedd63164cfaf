"""One call of each operation on an NVIDIA GPU, few enough to run under compute-sanitizer (`make sanitize-gpu`)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from samples import SAMPLES, Make, type_choices
from support.agreement import REFERENCE, assert_agree, run
from support.cuda_driver import HARDWARE, cuda_context

from opweave.core.operation import Op
from opweave.ops import Operations


@pytest.mark.skipif(not HARDWARE, reason="needs an NVIDIA GPU: make sanitize-gpu")
@pytest.mark.parametrize("op", Operations.listing().values(), ids=lambda op: op.name)
def test_operation_on_cuda(op: Op[..., Any]) -> None:
    context, sample = cuda_context(), SAMPLES[op]
    types = next(iter(type_choices(op, context.backend.limits(op))))

    @settings(max_examples=2, derandomize=True)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        call = sample.make(Make(data.draw, types))
        assert_agree(sample, call, run(context, op, call), run(REFERENCE, op, call))

    check()
