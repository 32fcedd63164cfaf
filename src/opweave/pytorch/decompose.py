"""Decompose one call of an operator, by the table that `torch.export` uses, or by the operator's own definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch._C import DispatchKey
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree

from .registry import CONVERTERS


@cache
def _defaults() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions. Each call of PyTorch's function takes as long as the decomposition of several operators."""
    rules = dict(torch.export.default_decompositions())
    # This decomposition draws other numbers from the generator than the kernel of eager PyTorch.
    del rules[torch.ops.aten.bernoulli.default]
    return rules


def _linspace(start: Any, end: Any, steps: int, **options: Any) -> Any:
    """PyTorch's definition; for integers its kernels truncate both ends first, which the definition does not."""
    dtype = options.get("dtype")
    if dtype is not None and not dtype.is_floating_point and not dtype.is_complex:
        start, end = (
            torch.trunc(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in (start, end)
        )
        start, end = (int(x) if isinstance(x, float) else x for x in (start, end))
    return _defaults()[torch.ops.aten.linspace.Tensor_Tensor](start, end, steps, **options)


_CORRECTED: dict[Any, Callable[..., Any]] = dict.fromkeys(
    (
        torch.ops.aten.linspace.Tensor_Tensor,
        torch.ops.aten.linspace.Tensor_Scalar,
        torch.ops.aten.linspace.Scalar_Tensor,
    ),
    _linspace,
)
"""Decompositions that replace PyTorch's, where PyTorch's give other results than its kernels."""


@cache
def table() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions, without those of operators that have a converter."""
    rules = {**_defaults(), **_CORRECTED}
    return {target: rule for target, rule in rules.items() if str(target) not in CONVERTERS}


def has_decomposition(target: Any) -> bool:
    """Whether PyTorch can express an operator by others."""
    return target in _defaults() or _is_composite(target)


def _is_composite(target: Any) -> bool:
    key = DispatchKey.CompositeImplicitAutograd
    return bool(target.has_kernel_for_dispatch_key(key)) and not target.has_kernel_for_dispatch_key(DispatchKey.CPU)


def decompose(node: Any, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[Any]] | None:
    """A program that computes a call, and the values of its inputs; None if PyTorch has no other form of the call.

    The call is traced with the tensors without memory that the exported program has, so that sizes stay symbols. Sizes that
    follow from constants are numbers.
    """
    if not has_decomposition(target):
        return None
    metas = torch.fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta.get("val"))
    leaves, structure = _pytree.tree_flatten((list(metas[0]), dict(metas[1])))
    values = _pytree.tree_leaves((list(args), dict(kwargs)))
    if len(leaves) != len(values):  # a list of PyTorch that is no list here
        return None
    leaves = [_with_numbers(leaf, value) for leaf, value in zip(leaves, values, strict=True)]
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, _SYMBOLIC)]

    def call(*inputs: Any) -> Any:
        filled = list(leaves)
        for place, value in zip(places, inputs, strict=True):
            filled[place] = value
        # Decompositions may write to lists, which those of a program do not allow.
        positional, keywords = _pytree.tree_unflatten(filled, structure)
        positional = [list(value) if isinstance(value, list) else value for value in positional]
        if target in _CORRECTED:
            return _CORRECTED[target](*positional, **keywords)
        if target in rules:
            return rules[target](*positional, **keywords)
        return target.decompose(*positional, **keywords)

    rules = _defaults()
    with detect_fake_mode(leaves) or nullcontext():  # tensors that decompositions make have no memory, either
        module = make_fx(call, decomposition_table=table())(*[leaves[place] for place in places])
    if any(inner.target is target for inner in module.graph.nodes):
        return None
    return module, [values[place] for place in places]


def _with_numbers(leaf: Any, value: Any) -> Any:
    """The stand-in for a value while a call is traced: without symbols of values, where the value has none."""
    if not isinstance(leaf, _SYMBOLIC) or not free_unbacked_symbols(leaf):
        return leaf
    if not isinstance(leaf, torch.Tensor):
        return value if isinstance(value, (int, float)) else leaf
    shape = getattr(value, "shape", leaf.shape)
    if not all(isinstance(size, int) for size in shape):
        return leaf
    with leaf.fake_mode:
        return torch.empty(tuple(shape), dtype=leaf.dtype, device=leaf.device)


_SYMBOLIC = (torch.Tensor, torch.SymInt, torch.SymFloat)
"""Types of values of a program that may have symbols."""
