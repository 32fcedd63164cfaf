"""Writes to tensors: new values for the tensor that is written to, for what it is a view of, and for other views of that."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _is_alias_of
from torch._ops import HigherOrderOperator

from ..core.graph import MLOperand
from ..support.errors import NotSupportedError, ValidationError
from .labels import place_of
from .registry import NotConvertible

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
def is_write(target: Any) -> bool:
    """Whether an operator writes values to an argument, and does not only turn the argument into a view of itself."""
    return is_mutable(target) and not _is_view_in_place(target)


@cache
def _is_view_in_place(target: Any) -> bool:
    """Whether an operator makes its argument a view of the same memory, as `unsqueeze_` and `t_` do."""
    has_tag = is_mutable(target) and torch.Tag.inplace_view in target.tags
    return has_tag and target.overloadpacket is not torch.ops.aten.set_ and _may_be_view(functional(target))


@cache
def written_arguments(target: Any) -> tuple[tuple[int, str], ...]:
    """Positions and names of the arguments that an operator writes to."""
    arguments = schema_of(target).arguments
    return tuple((k, a.name) for k, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)


_DROPOUTS = frozenset(
    f"aten::{name}" for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
)
"""Operators that return their argument unless they train, which their schemas do not say."""


_UNDECLARED_VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        "atleast_1d",
        "atleast_2d",
        "atleast_3d",
        "broadcast_tensors",
        "cartesian_prod",
        "conj_physical",
        "einsum",
        "meshgrid",
        "sum_to_size",
        "type_as",
        "unsafe_chunk",
        "unsafe_split",
        "unsafe_split_with_sizes",
    )
)
"""Operators that return their arguments or views of them in some cases, which their schemas do not say."""


@cache
def _may_be_view(target: Any) -> bool:
    """Whether the result of an operator may be a view of an argument."""
    schema = schema_of(target)
    has_alias = bool(schema.arguments) and schema.arguments[0].alias_info is not None
    return has_alias or schema.name in _UNDECLARED_VIEWS


_NORMALISATIONS = frozenset(
    f"aten::{name}"
    for name in ("batch_norm", "cudnn_batch_norm", "instance_norm", "miopen_batch_norm", "native_batch_norm")
)
"""Operators that write to their running statistics in training, which their schemas do not say."""


def writes_statistics(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call updates the running statistics that it gets."""
    schema = schema_of(target)
    if schema.name not in _NORMALISATIONS:
        return False
    values = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | dict(kwargs)
    return values["running_mean"] is not None and bool(values.get("training", values.get("use_input_stats")))


def bases_of(node: Any) -> list[Any]:
    """The nodes whose memory the result of a call has: one, or for a list of tensors those of all its items."""
    if node.op != "call_function":
        return []
    if is_mutable(node.target):
        return [node.args[0]]
    if node.target is operator.getitem:
        sources = bases_of(node.args[0])
        is_shared = len(sources) == 1 or any(_is_alias(_item(node), base.meta["val"]) for base in sources)
        return [node.args[0]] if sources and is_shared else []
    schema = schema_of(node.target)
    # PyTorch copies no constant that has no memory yet.
    if schema is None or schema.name == "aten::lift_fresh_copy":
        return []
    if schema.name in _DROPOUTS:
        # The first option is the probability, the second whether the call is for training.
        options = [*node.args[1:], *node.kwargs.values()]
        return [node.args[0]] if not options[1] or options[0] == 0 else []
    inputs = [base for base in node.all_input_nodes if isinstance(base.meta.get("val"), torch.Tensor)]
    value = node.meta.get("val")
    bases = [base for base in inputs if _is_alias(value, base.meta["val"])]
    if bases or not inputs or not _may_be_view(node.target):
        return bases
    value = _recompute(node)
    return [base for base in inputs if _is_alias(value, base.meta["val"])]


def _recompute(node: Any) -> Any:
    """The result of a call for tensors without memory; those that a program from a file has share none.

    Calls such as `contiguous`, `reshape` and `to` copy what does not fit: tensors without memory tell them apart.
    """
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta.get("val"))
    return node.target(*args, **kwargs)


def _item(node: Any) -> Any:
    """The item of a list as a tensor that shares the memory of its base."""
    source, index = node.args
    items = source.meta["val"]
    if not any(_is_alias(items, base.meta["val"]) for base in source.all_input_nodes):
        items = _recompute(source)
    return items[index]


def _is_alias(value: Any, base: Any) -> bool:
    leaves = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(leaf, torch.Tensor) and _is_alias_of(leaf, base) for leaf in leaves)


_OPERATORS = {
    "__iand__": "bitwise_and",
    "__ilshift__": "bitwise_left_shift",
    "__ior__": "bitwise_or",
    "__irshift__": "bitwise_right_shift",
    "__ixor__": "bitwise_xor",
    "normal_": "normal_functional",
}
"""Operators that write to their first argument -> operators that return the result, where it is not the name without "_"."""


@cache
def functional(target: Any) -> Any:
    """The operator that computes the result of one that writes to its first argument: `add` for `add_`."""
    namespace, _, name = schema_of(target).name.partition("::")
    result = _OPERATORS.get(name, name.removesuffix("_"))
    packet = None if result == name else getattr(getattr(torch.ops, namespace), result, None)
    if packet is not None:
        types = _types_of(target)
        overload = str(target).rpartition(".")[2]
        # The overload of the same name comes first; `pow_.Tensor` is `pow.Tensor_Tensor`.
        for other in sorted(packet.overloads(), key=lambda other: other != overload):
            candidate = getattr(packet, other)
            if other == overload or (_types_of(candidate) == types and not is_mutable(candidate)):
                return candidate
    raise NotSupportedError(
        f"from_torch: {target} writes to an argument, and PyTorch has no form of it that does not; compute a new tensor, and "
        "copy_ it into the argument"
    )


def defaults_of(target: Any, other: Any, count: int) -> dict[str, Any]:
    """Defaults of arguments after the first `count` that the functional form lacks, as the probability of `bernoulli_`."""
    pairs = zip(schema_of(target).arguments[count:], schema_of(other).arguments[count:], strict=False)
    return {a.name: a.default_value for a, b in pairs if a.has_default_value() and not b.has_default_value()}


def _types_of(target: Any) -> list[str]:
    """The types of an operator's arguments."""
    return [str(argument.type) for argument in schema_of(target).arguments]


def roots_of(module: Any) -> dict[Any, Any]:
    """Node of a program -> the node whose memory its tensor has in PyTorch, if that is another node."""
    roots: dict[Any, Any] = {}
    for node in module.graph.nodes:
        bases = bases_of(node)
        if bases and node.target is operator.getitem:
            sources = bases_of(bases[0])
            if len(sources) > 1:
                bases = [base for base in sources if _is_alias(_item(node), base.meta["val"])]
        if bases:
            roots[node] = roots.get(bases[0], bases[0])
    return roots


def leaves_of(module: Any, roots: dict[Any, Any]) -> dict[Any, set[Any]]:
    """Node of a program -> the nodes from which `replay` makes its tensor: arguments, and results that are no views."""
    leaves: dict[Any, set[Any]] = {}
    for node in module.graph.nodes:
        is_tensor = isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))
        if node.op != "call_function" or (is_tensor and node not in roots):
            leaves[node] = {node}
        elif is_write(node.target):
            leaves[node] = leaves[node.args[0]]
        else:
            leaves[node] = {leaf for argument in node.all_input_nodes for leaf in leaves[argument]}
    return leaves


def replay(node: Any, values: dict[Any, Any]) -> Any:
    """The tensor of a node as a view of those in `values`, after all writes; `values` keeps the result."""
    if node in values:
        return values[node]
    target = node.target
    if is_write(target):
        return replay(node.args[0], values)
    if is_mutable(target):
        target = functional(target)
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda argument: replay(argument, values))
    with torch.no_grad():
        values[node] = target(*args, **kwargs)
    return values[node]


def written_arguments_of(module: Any) -> set[Any]:
    """The inputs of a program that it writes to, by themselves, by views, or in parts of control flow."""
    roots = roots_of(module)
    written: set[Any] = set()
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        target = node.target
        if is_write(target):
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
        if is_write(node.target):
            written = written_arguments(node.target)
            if len(written) != 1 or written[0][0] != 0:
                raise NotSupportedError(f"from_torch: {node.target} in {place_of(node)} writes to several arguments")
            self.write(node.args[0], value)
        elif is_mutable(node.target) and node.args[0].op == "placeholder":
            raise NotSupportedError(f"from_torch: {node.target} in {place_of(node)} changes the shape of an argument")
        for base in bases_of(node):
            self._add(node, base)

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
                    values[view] = values[base] if is_write(view.target) else self.frame.evaluate(view)
                pending.append(view)

    def _add(self, view: Any, base: Any) -> None:
        self._bases[view] = base
        self._views.setdefault(base, []).append(view)

    def _write_back(self, base: Any, view: Any) -> Any:
        """The value of a tensor after a write to a view of it."""
        frame = self.frame
        new, old = frame.values[view], frame.values[base]
        target = view.target
        if is_write(target):  # the argument itself
            return new
        if target is operator.getitem:
            items = list(old)
            items[view.args[1]] = new
            return type(old)(items)
        if is_mutable(target):
            target = functional(target)
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
        operands = own.operand_of(old), own.operand_of(new)
        try:
            return writer(frame.builder, *operands, *frame.fill(view.args[1:]), **frame.fill(view.kwargs))
        except (NotConvertible, ValidationError) as error:
            text = f"from_torch: {place_of(view)} writes to a view made by {target}: {error}"
            raise NotSupportedError(text) from None


def _reshape_back(b: Any, old: MLOperand, new: MLOperand, *_: Any, **__: Any) -> MLOperand:
    return new if new.shape == old.shape else b.reshape(new, old.shape)


def _same(b: Any, old: MLOperand, new: MLOperand, *_: Any, **__: Any) -> MLOperand:
    return new


def _permute_back(b: Any, old: MLOperand, new: MLOperand, dims: Any) -> MLOperand:
    order = [axis % old.rank for axis in dims]
    return b.transpose(new, permutation=[order.index(axis) for axis in range(old.rank)])


def _transpose_back(b: Any, old: MLOperand, new: MLOperand, first: int = 0, second: int = 1) -> MLOperand:
    order = list(range(old.rank))
    order[first], order[second] = order[second], order[first]
    return b.transpose(new, permutation=order)


def _move_back(b: Any, old: MLOperand, new: MLOperand, source: Any, destination: Any) -> MLOperand:
    sources, destinations = (
        [axis % old.rank for axis in ([axes] if isinstance(axes, int) else axes)] for axes in (source, destination)
    )
    order = [axis for axis in range(old.rank) if axis not in sources]
    for place, axis in sorted(zip(destinations, sources, strict=True)):
        order.insert(place, axis)
    return _permute_back(b, old, new, order)


def _narrow_back(b: Any, old: MLOperand, new: MLOperand, dim: int, start: Any, length: Any) -> MLOperand:
    from .converters.indexing import from_start, slice_scatter

    first = from_start(start, old.shape[dim])
    return slice_scatter(b, old, new, dim, first, first + length)


def _slice_back(b: Any, old: MLOperand, new: MLOperand, *args: Any, **kwargs: Any) -> MLOperand:
    from .converters.indexing import slice_scatter

    return slice_scatter(b, old, new, *args, **kwargs)


def _select_back(b: Any, old: MLOperand, new: MLOperand, dim: int, index: int) -> MLOperand:
    from .converters.indexing import select_scatter

    return select_scatter(b, old, new, dim, index)


def _on_diagonal(b: Any, old: MLOperand, new: MLOperand, *args: Any, **kwargs: Any) -> MLOperand:
    from .converters.indexing import diagonal_scatter

    return diagonal_scatter(b, old, new, *args, **kwargs)


def _join_back(b: Any, old: MLOperand, new: Any, sizes: Any, dim: int = 0) -> MLOperand:
    return new[0] if len(new) == 1 else b.concat(new, dim % old.rank)


def _stack_back(b: Any, old: MLOperand, new: Any, dim: int = 0) -> MLOperand:
    axis = dim % old.rank
    shape = [*old.shape[:axis], 1, *old.shape[axis + 1 :]]
    return _join_back(b, old, [b.reshape(row, shape) for row in new], (), axis)


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
            "sum_to_size",
        ),
        _reshape_back,
    ),
    **dict.fromkeys(("alias", "detach", "contiguous", "lift", "to", "type_as", "conj_physical"), _same),
    **dict.fromkeys((name.removeprefix("aten::") for name in _DROPOUTS), _same),
    "permute": _permute_back,
    **dict.fromkeys(("transpose", "swapaxes", "swapdims", "t"), _transpose_back),
    "mT": lambda b, old, new: _transpose_back(b, old, new, -2, -1),
    **dict.fromkeys(("movedim", "moveaxis"), _move_back),
    "numpy_T": lambda b, old, new: _permute_back(b, old, new, range(old.rank)[::-1]),
    **dict.fromkeys(
        (f"{prefix}{name}" for prefix in ("", "unsafe_") for name in ("chunk", "split", "split_with_sizes")),
        _join_back,
    ),
    "narrow": _narrow_back,
    "unbind": _stack_back,
    "slice": _slice_back,
    "select": _select_back,
    "diagonal": _on_diagonal,
}
"""Views -> what puts the new value of a view into its base."""
