"""Random nodes of quantised operators, and of ONNX Runtime's own, on WebNN graphs and all kinds of devices.

Witnesses are ONNX Runtime, or formulas in NumPy where its CPU has no kernel.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support import webgpu_device
from support.microsoft_nodes import MAKERS as OTHERS
from support.quantized_nodes import MAKERS as QUANTIZED, Maker, QLinearSoftmax, check

import opweave as ow

VERSION = tuple(map(int, onnxruntime.__version__.split(".")[:2]))

DEVICES = ("cpu", "reference", "gpu-software")
NODES, FEW, IN_BATCH = 200, 2, 11


@cache
def context_on(device: str) -> ow.MLContext:
    return webgpu_device.gpu_context() if device == "gpu-software" else ow.ml.create_context(device=device)


def rows() -> list[Any]:
    """Operators, numbers of nodes, and devices; samples have a few nodes of each operator, on one of the devices."""
    made = []
    for place, (name, maker) in enumerate((QUANTIZED | OTHERS).items()):
        for device in DEVICES:
            for start, end in [(0, FEW), *((k, k + IN_BATCH) for k in range(FEW, NODES, IN_BATCH))]:
                covered = [name] if not start and device == DEVICES[place % len(DEVICES)] else []
                marks = pytest.mark.covers(*covered)
                made.append(pytest.param(maker, range(start, end), device, id=f"{name}-{start}-{device}", marks=marks))
    return made


@pytest.mark.parametrize(("maker", "numbers", "device"), rows())
def test_random_nodes(maker: Maker, numbers: range, device: str) -> None:
    if maker is QLinearSoftmax and VERSION < (1, 32):
        pytest.skip("QLinearSoftmax of ONNX Runtime before 1.32 wraps 1 / scale around where that is 256")
    for number in numbers:
        case = maker(np.random.default_rng([number, *maker.__name__.encode()]))
        shapes = [None if value is None else f"{value.dtype}{list(value.shape)}" for value in case.inputs]
        check(case, context_on(device), f"{case.op_type} {number}: {shapes} {case.attributes}")
