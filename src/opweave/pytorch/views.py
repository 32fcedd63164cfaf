"""Writes to tensors: new values for the tensor that is written to, for what it is a view of, and for other views of that."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator

from ..core.graph import MLOperand
from ..support.errors import NotSupportedError
from .labels import place_of

if TYPE_CHECKING:
    from .convert import Frame


def schema_of(target: Any) -> Any:
    """The schema of an operator, which says what it writes to, and what results are views of; None for other functions."""
    return getattr(target, "_schema", None)


@cache
def is_mutable(target: Any) -> bool:
    """Whether an operator writes to an argument."""
    schema = schema_of(target)
    return schema is not None and bool(schema.is_mutable)


@cache
def written_arguments(target: Any) -> tuple[tuple[int, str], ...]:
    """Positions and names of the arguments that an operator writes to."""
    arguments = schema_of(target).arguments
    return tuple((k, a.name) for k, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)


_DROPOUTS = frozenset(
    f"aten::{name}" for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
)
"""Operators that return their argument unless they train, which their schemas do not say."""


@cache
def _may_be_view(target: Any) -> bool:
    """Whether the schema of an operator says that its result may be a view of its first argument."""
    schema = schema_of(target)
    return bool(schema.arguments) and schema.arguments[0].alias_info is not None


def is_view(node: Any) -> bool:
    """Whether the result of a call is a view of its first argument, which is a node.

    Calls such as `contiguous`, `reshape` and `to` copy what does not fit: tensors without memory tell them apart.
    """
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], torch.fx.Node):
        return False
    if node.target is operator.getitem:
        return is_view(node.args[0])
    schema, base = schema_of(node.target), node.args[0].meta.get("val")
    if schema is None or schema.is_mutable or not isinstance(base, torch.Tensor):
        return False
    if schema.name in _DROPOUTS:
        # The probability, and whether it trains.
        options = [*node.args[1:], *node.kwargs.values()]
        return not options[1] or options[0] == 0
    if _is_alias(node.meta.get("val"), base):
        # PyTorch copies no constant that has no memory yet.
        return bool(schema.name != "aten::lift_fresh_copy")
    if not _may_be_view(node.target):
        return False
    # Those of a program from a file have no common memory.
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta.get("val"))
    return _is_alias(node.target(*args, **kwargs), base)


def _is_alias(value: Any, base: Any) -> bool:
    leaves = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(leaf, torch.Tensor) and torch._C._is_alias_of(leaf, base) for leaf in leaves)


@cache
def functional(target: Any) -> Any:
    """The operator that computes the result of one that writes to its first argument: `add` for `add_`."""
    namespace, _, name = schema_of(target).name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    overload = str(target).rpartition(".")[2]
    if name.endswith("_") and packet is not None and overload in packet.overloads():
        return getattr(packet, overload)
    raise NotSupportedError(f"from_torch: {target} writes to an argument, and PyTorch has no form of it that does not")


def roots_of(module: Any) -> dict[Any, Any]:
    """Node of a program -> the node whose memory its tensor has in PyTorch, if that is another node."""
    roots: dict[Any, Any] = {}
    for node in module.graph.nodes:
        if _shares(node):
            roots[node] = roots.get(node.args[0], node.args[0])
    return roots


def _shares(node: Any) -> bool:
    """Whether the result of a node has the memory of its first argument."""
    if node.op != "call_function":
        return False
    return is_mutable(node.target) or is_view(node)


def can_replay(node: Any, root: Any) -> bool:
    """Whether `replay` can make the tensor of a node from that of its root: by views, whose sizes follow from arguments."""
    if node is root or node.op == "placeholder":
        return True
    if node.op != "call_function":
        return False
    if is_mutable(node.target):
        return can_replay(node.args[0], root)
    is_size = not isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))
    return (is_size or _shares(node)) and all(can_replay(argument, root) for argument in node.all_input_nodes)


def replay(node: Any, values: Mapping[Any, Any]) -> Any:
    """The tensor of a node as a view of those in `values`, after all writes."""
    if node in values:
        return values[node]
    if is_mutable(node.target):
        return replay(node.args[0], values)
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda argument: replay(argument, values))
    with torch.no_grad():
        return node.target(*args, **kwargs)


def written_arguments_of(module: Any) -> set[Any]:
    """The inputs of a program that it writes to, by themselves, by views, or in parts of control flow."""
    roots = roots_of(module)
    written: set[Any] = set()
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        target = node.target
        if is_mutable(target):
            for position, name in written_arguments(target):
                argument = node.args[position] if position < len(node.args) else node.kwargs.get(name)
                written.add(roots.get(argument, argument))
        elif isinstance(target, HigherOrderOperator):
            written |= {roots.get(argument, argument) for argument in _written_by_part(module, node)}
    return {node for node in written if node.op == "placeholder"}


def _written_by_part(module: Any, node: Any) -> set[Any]:
    """The arguments of a call of a part of the program to which the part writes."""
    arguments = [argument for argument in node.args if isinstance(argument, torch.fx.Node)]
    parts = [k for k, argument in enumerate(arguments) if argument.op == "get_attr"]
    if len(parts) != 1:
        return set()
    part = module
    for name in arguments[parts[0]].target.split("."):
        part = getattr(part, name)
    inputs = [inner for inner in part.graph.nodes if inner.op == "placeholder"]
    pairs = dict(zip(inputs, arguments[parts[0] + 1 :], strict=False))
    return {pairs[inner] for inner in written_arguments_of(part) if inner in pairs}


class Views:
    """The views of a program, and the values of its nodes after writes."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self._bases: dict[Any, Any] = {}
        self._views: dict[Any, list[Any]] = {}

    def evaluate(self, node: Any) -> None:
        """Compute the value of a call, and of what it writes to."""
        frame = self.frame
        value = frame.evaluate(node)
        frame.values[node] = value
        if is_mutable(node.target):
            written = written_arguments(node.target)
            if len(written) != 1 or written[0][0] != 0:
                raise NotSupportedError(f"from_torch: {node.target} in {place_of(node)} writes to several arguments")
            self.write(node.args[0], value)
            self._add(node, node.args[0])  # the result is the argument
        elif is_view(node):
            self._add(node, node.args[0])

    def write(self, node: Any, value: Any) -> None:
        """Replace the value of a node, and of all that share its memory."""
        values = self.frame.values
        values[node] = value
        path = {node}
        while node in self._bases:
            base = self._bases[node]
            values[base] = self._write_back(base, node)
            node = base
            path.add(node)
        pending = [node]
        while pending:
            base = pending.pop()
            for view in self._views.get(base, ()):
                if view not in path:
                    values[view] = values[base] if is_mutable(view.target) else self.frame.evaluate(view)
                pending.append(view)

    def _add(self, view: Any, base: Any) -> None:
        self._bases[view] = base
        self._views.setdefault(base, []).append(view)

    def _write_back(self, base: Any, view: Any) -> Any:
        """The value of a tensor after a write to a view of it."""
        frame = self.frame
        new, old = frame.values[view], frame.values[base]
        target = view.target
        if is_mutable(target):  # the argument itself
            return new
        if target is operator.getitem:
            items = list(old)
            items[view.args[1]] = new
            return type(old)(items)
        packet = schema_of(target).name.removeprefix("aten::")
        writer = _WRITERS.get(packet)
        if writer is None:
            raise NotSupportedError(
                f"from_torch: {place_of(view)} writes to a view made by {target}; write to a copy (clone), and return that"
            )
        own = frame.owner
        dtypes = {getattr(node.meta["val"], "dtype", None) for node in (view, base)}
        if len(dtypes - {None}) > 1:
            raise NotSupportedError(
                f"from_torch: {place_of(view)} writes to the bytes of a tensor of another data type"
            )
        if isinstance(new, (tuple, list)):
            new = [own.operand_of(item) for item in new]
        return writer(
            frame.builder,
            own.operand_of(old),
            own.operand_of(new),
            *frame.fill(view.args[1:]),
            **frame.fill(view.kwargs),
        )


def _reshaped(b: Any, old: MLOperand, new: MLOperand, *_: Any, **__: Any) -> MLOperand:
    return new if new.shape == old.shape else b.reshape(new, old.shape)


def _same(b: Any, old: MLOperand, new: MLOperand, *_: Any, **__: Any) -> MLOperand:
    return new


def _permuted(b: Any, old: MLOperand, new: MLOperand, dims: Any) -> MLOperand:
    order = [axis % old.rank for axis in dims]
    return b.transpose(new, permutation=[order.index(axis) for axis in range(old.rank)])


def _transposed(b: Any, old: MLOperand, new: MLOperand, first: int = 0, second: int = 1) -> MLOperand:
    order = list(range(old.rank))
    order[first], order[second] = order[second], order[first]
    return b.transpose(new, permutation=order)


def _sliced(b: Any, old: MLOperand, new: MLOperand, *args: Any, **kwargs: Any) -> MLOperand:
    from .converters.indexing import slice_scatter

    return slice_scatter(b, old, new, *args, **kwargs)


def _selected(b: Any, old: MLOperand, new: MLOperand, dim: int, index: int) -> MLOperand:
    from .converters.indexing import select_scatter

    return select_scatter(b, old, new, dim, index)


def _on_diagonal(b: Any, old: MLOperand, new: MLOperand, *args: Any, **kwargs: Any) -> MLOperand:
    from .converters.indexing import diagonal_scatter

    return diagonal_scatter(b, old, new, *args, **kwargs)


def _joined(b: Any, old: MLOperand, new: Any, sizes: Any, dim: int = 0) -> MLOperand:
    return new[0] if len(new) == 1 else b.concat(new, dim % old.rank)


def _stacked(b: Any, old: MLOperand, new: Any, dim: int = 0) -> MLOperand:
    axis = dim % old.rank
    shape = [*old.shape[:axis], 1, *old.shape[axis + 1 :]]
    return _joined(b, old, [b.reshape(row, shape) for row in new], (), axis)


_WRITERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(
        (
            "view",
            "reshape",
            "flatten",
            "unflatten",
            "unsqueeze",
            "squeeze",
            "_unsafe_view",
            "view_as",
            "ravel",
            "reshape_as",
        ),
        _reshaped,
    ),
    **dict.fromkeys(("alias", "detach", "contiguous", "lift", "to", "type_as"), _same),
    **dict.fromkeys((name.removeprefix("aten::") for name in _DROPOUTS), _same),
    "permute": _permuted,
    "transpose": _transposed,
    "t": _transposed,
    "numpy_T": lambda b, old, new: _permuted(b, old, new, range(old.rank)[::-1]),
    **dict.fromkeys(("chunk", "split", "split_with_sizes"), _joined),
    "unbind": _stacked,
    "slice": _sliced,
    "select": _selected,
    "diagonal": _on_diagonal,
}
"""Views -> what puts the new value of a view into its base."""
