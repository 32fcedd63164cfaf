"""PyTorch as the witness of Opweave's own DLPack capsules."""

from __future__ import annotations

import gc
import sys

import numpy as np
import torch
from support.foreign import OnHost

import opweave as ow
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


def test_bfloat16_is_shared_both_ways() -> None:
    theirs = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    tensor = ow.ml.create_context(device="cpu", drafts=True).tensor_from(theirs)
    assert tensor.data_type == "bfloat16"
    back = torch.from_dlpack(tensor)
    assert back.dtype == torch.bfloat16
    assert back.data_ptr() == theirs.data_ptr()
