"""Random nodes of quantised operators, and of ONNX Runtime's own, with CUDA: on a GPU, or the processor."""

from __future__ import annotations

import numpy as np
import pytest
from support.cuda_driver import HARDWARE, CpuDriver, context_on, cuda_context
from support.cuda_on_cpu import compiler
from support.microsoft_nodes import MAKERS as OTHERS
from support.quantized_nodes import MAKERS as QUANTIZED, check

MAKERS = QUANTIZED | OTHERS
NODES = 200


@pytest.mark.long
@pytest.mark.parametrize("start", range(0, NODES, 10))
@pytest.mark.parametrize("name", MAKERS)
def test_random_nodes(name: str, start: int) -> None:
    compiler()
    for number in range(start, start + 10):
        case = MAKERS[name](np.random.default_rng([number, *name.encode()]))
        # The driver on the processor takes kernels of equal text for one kernel, of one size.
        check(case, cuda_context() if HARDWARE else context_on(CpuDriver()), f"{name} {number}")
