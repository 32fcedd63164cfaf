"""PyTorch as the witness of Opweave's own DLPack capsules."""

from __future__ import annotations

import gc
import sys

import numpy as np
import torch
from support.foreign import OnHost

from opweave.memory import dlpack


def test_pytorch_reads_capsules() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    references = sys.getrefcount(array)
    tensor = torch.from_dlpack(OnHost(array))
    assert (tensor.data_ptr(), tensor.tolist()) == (array.ctypes.data, array.tolist())
    taken = dlpack.take(torch.nn.Parameter(tensor), None)  # which has a gradient
    assert (taken.address, taken.shape) == (array.ctypes.data, (2, 3))
    del tensor, taken
    gc.collect()
    assert sys.getrefcount(array) == references
