"""Modules of PyTorch as graphs: `from_torch`, and converters of PyTorch's operators.

>>> import torch, opweave as ow
>>> compiled = ow.from_torch(torch.nn.ReLU().eval(), (torch.zeros(2),))
>>> compiled(torch.tensor([-1.0, 2.0]))
tensor([0., 2.])

Nothing else in Opweave imports PyTorch.
"""

from __future__ import annotations

from ..support.errors import import_extra

import_extra("torch", "", "from_torch")

from .convert import FallbackCall  # noqa: E402
from .module import CompiledModule, from_torch  # noqa: E402
from .registry import AtenCall, NotConvertible, converts  # noqa: E402

__all__ = ["AtenCall", "CompiledModule", "FallbackCall", "NotConvertible", "converts", "from_torch"]
