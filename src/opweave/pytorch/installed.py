"""The installed version of PyTorch: `torch.export` and Dynamo change with each."""

from __future__ import annotations

import re
from typing import Any

from ..support.errors import MissingExtraError, import_extra, need_text

MIN_TORCH = (2, 13)
"""The oldest version that `make test-torch` passes with; the extra `torch` in pyproject.toml asks for the same."""


def import_torch(purpose: str) -> Any:
    """Import PyTorch, of a version that Opweave reads programs of.

    Raises:
        MissingExtraError: PyTorch is not installed, cannot be imported, or is older.

    >>> import_torch("from_torch").__name__
    'torch'
    """
    torch = import_extra("torch", "torch", purpose)
    version = str(torch.__version__)
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < MIN_TORCH:
        oldest = ".".join(map(str, MIN_TORCH))
        remedy = f"pip install --upgrade 'torch>={oldest}'"
        raise MissingExtraError(need_text(purpose, f"torch {oldest} or newer", remedy, f"and {version} is installed"))
    return torch
