"""Modules of PyTorch as graphs: `from_torch`, and converters of PyTorch's operators.

>>> import torch, opweave as ow
>>> compiled = ow.from_torch(torch.nn.ReLU().eval(), (torch.zeros(2),))
>>> compiled(torch.tensor([-1.0, 2.0]))
tensor([0., 2.])

Nothing else in Opweave imports PyTorch, and this package does when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .custom import onnx_translations as onnx_translations
from .installed import import_torch
from .module import CompiledModule as CompiledModule, from_torch as from_torch

if TYPE_CHECKING:
    from .convert import FallbackCall as FallbackCall
    from .registry import AtenCall as AtenCall, NotConvertible as NotConvertible, converts as converts

_HOMES = {"AtenCall": ".registry", "FallbackCall": ".convert", "NotConvertible": ".registry", "converts": ".registry"}
"""Names that need PyTorch -> their modules."""

__all__ = [
    "AtenCall", "CompiledModule", "FallbackCall", "NotConvertible", "converts", "from_torch", "onnx_translations",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_torch(f"opweave.pytorch.{name}")
    return getattr(import_module(_HOMES[name], __name__), name)
