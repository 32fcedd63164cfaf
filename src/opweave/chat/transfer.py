"""Write values into tensors and read them; on the host, in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..context.context import MLContext
from ..context.tensor import MLTensor


def write(context: MLContext, tensor: MLTensor, values: Any) -> None:
    """Fill a tensor with values that broadcast to its shape; on the host without an intermediate copy."""
    if context.backend.space.is_host:
        tensor.numpy()[...] = values
    else:
        context.write_tensor(tensor, np.broadcast_to(np.asarray(values, tensor.data_type), tensor.shape))


def read(context: MLContext, tensor: MLTensor) -> np.ndarray:
    """The values of a tensor; on the host without a copy, valid until the tensor changes."""
    return tensor.numpy() if context.backend.space.is_host else context.read_tensor(tensor)
