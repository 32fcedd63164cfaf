"""Sample calls of PyTorch's operators, one module for each family of converters: `SAMPLES`, by operator."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch


class Sample:
    """A call of an operator.

    `names` is whether the call also works with sizes that are known only when the graph runs. `tolerance` is that of the error
    in relation to the root mean square, of float32; half precision has a thousand times as much.
    """

    def __init__(self, *args: Any, names: bool = True, tolerance: float = 1e-5, **kwargs: Any) -> None:
        self.args, self.kwargs, self.names, self.tolerance = args, kwargs, names, tolerance


def floats(*shape: int, dtype: Any = torch.float32, seed: int = 0, low: float | None = None, high: float = 1.0) -> Any:
    """Normally distributed floats, or those between `low` and `high`."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if low is None:
        return torch.randn(shape, generator=generator).to(dtype)
    return (torch.rand(shape, generator=generator) * (high - low) + low).to(dtype)


def integers(*shape: int, low: int = -9, high: int = 10, dtype: Any = torch.int64, seed: int = 0) -> Any:
    """Integers from `low` to `high` - 1."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def bools(*shape: int, seed: int = 0) -> Any:
    """Truth values."""
    return integers(*shape, low=0, high=2, seed=seed).bool()


def specials(*more: float) -> Any:
    """Floats where functions differ: signed zeros, infinities, NaN."""
    return torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 0.5, -2.5, *more])


def all_samples() -> list[tuple[str, int, Sample]]:
    """The samples of all families: operator, number, call."""
    samples: list[tuple[str, int, Sample]] = []
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        by_operator: dict[str, Sequence[Sample]] = import_module(f"{__name__}.{path.stem}").SAMPLES
        samples += [(name, number, s) for name, calls in by_operator.items() for number, s in enumerate(calls)]
    return samples
