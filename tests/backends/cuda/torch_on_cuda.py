"""PyTorch's tensors on an NVIDIA GPU, for tests of the CUDA back end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def torch_on_cuda() -> Any:
    """PyTorch; tests that ask for it are skipped where it is not installed, or sees no GPU."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    return torch


def to_device(array: np.ndarray) -> Any:
    """A tensor on the GPU."""
    return torch_on_cuda().from_numpy(array).cuda()


def add_relu(tensor: Any, bias: np.ndarray) -> None:
    """Add a bias and clamp, in place, on PyTorch's stream."""
    tensor.add_(to_device(bias)).relu_()
