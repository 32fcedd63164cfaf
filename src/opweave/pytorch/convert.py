"""From a program of PyTorch, a graph of ATen operators (`torch.fx`), to operations of a builder.

Each node of the program gets a value: an operand, a tensor of PyTorch that is known now (parameters, buffers, what is computed
from constants), or a Python value (numbers, sizes, lists). For a call of an operator, the first of these that works is used:

1. The arguments are constants: PyTorch computes the result now, if it is small, or a view.
2. The operator has a converter.
3. PyTorch has a decomposition for the operator: that of this call alone is traced, and converted in place of the call.
4. PyTorch runs the call, as a node of the graph (`fallback`).

Programs are not decomposed beforehand: that would take seconds, and lose operators such as attention and normalisations.

A program may write to tensors. Values here never change, so a write makes a new value, which replaces that of the tensor, of
the tensors that it is a view of, and of their other views (`views`).
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree

from .. import memory
from ..context.builder import NamedBuilder
from ..context.context import MLContext
from ..core.graph import Desc, MLOperand
from ..core.reals import RealSize
from ..core.size_scope import UnknownSizeError
from ..core.sizes import Size, Symbol
from ..support.errors import MLError, NotSupportedError, ValidationError
from ..support.settings import STRICT
from . import converters as converters  # importing them registers them
from .control import CONTROL
from .decompose import decompose
from .fallback import Slot, TorchCall, add_torch_node
from .labels import label_of, place_of
from .narrow import stays_narrow
from .registry import COMPLEX_CONVERTERS, CONVERTERS, AtenCall, NotConvertible, refuse_if
from .sizes import SizeNames, maximum, minimum
from .tensors import PARTS, array_of, data_type_of, require_dense, shape_of
from .views import Views, defaults_of, functional, is_mutable, schema_of, writes_statistics

FOLDED_BYTES = 1 << 20
"""The largest result that is computed while the program is read, unless it is a view of constants: 1 MiB, an estimate."""

PART_OF_SUBCLASS = "export.access_subclass_inner_tensor.default"
"""The operator that returns a tensor of which an instance of a subclass consists, as the integers of a quantised weight."""

ASSERTIONS = frozenset(
    {
        "aten._assert_async.msg",
        "aten._assert_scalar.default",
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)
"""Operators that only check what the program was exported for; the shapes of inputs are checked when they are bound."""


@dataclass(frozen=True)
class FallbackCall:
    """A call that PyTorch runs: its operator, its place in the module, and why."""

    name: str
    place: str
    reason: str


class LabellingBuilder(NamedBuilder):
    """A builder that labels operations with the module that they come from."""

    def __init__(self, context: MLContext) -> None:
        super().__init__(context)
        self.label = ""

    def _add_node(self, op: Any, inputs: Any, attributes: Any, label: str, descs: tuple[Desc, ...]) -> Any:
        return super()._add_node(op, inputs, attributes, label or self.label, descs)


class ProgramConversion:
    """Converts a program; takes the builder of its graph, and the names of its sizes.

    Attributes:
        operands: for each call that is one operand, or several, these operands; without those within decompositions.
        fallbacks: the calls that PyTorch runs.
    """

    def __init__(self, builder: LabellingBuilder, names: SizeNames, *, takes_fallback: bool = True) -> None:
        self.builder, self.names, self.takes_fallback = builder, names, takes_fallback
        self.operands: dict[Any, tuple[MLOperand, ...]] = {}
        self.fallbacks: list[FallbackCall] = []
        self._constants: dict[int, tuple[Any, MLOperand]] = {}

    def run(self, module: Any, inputs: Sequence[Any]) -> tuple[Any, dict[Any, Any]]:
        """Convert a program for the values of its inputs; return its outputs, and the values that all nodes have then."""
        frame = Frame(self, module, inputs, records=True)
        outputs = frame.run()
        return outputs, frame.values

    def record(self, node: Any, value: Any) -> None:
        """Record the operands that a call becomes when it is first evaluated; later writes do not change them."""
        items = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        if items and all(isinstance(item, MLOperand) for item in items):
            self.operands.setdefault(node, items)

    def operand_of(self, value: Any, subject: str = "a constant") -> Any:
        """An operand for a constant of PyTorch; other values as they are. A tensor is one operand wherever it is used."""
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._constants:
            self._constants[id(value)] = value, self._constant(value, subject)
        return self._constants[id(value)][1]

    def _constant(self, tensor: Any, subject: str) -> MLOperand:
        data_type_of(tensor.dtype, subject)
        require_dense(tensor, subject)
        if tensor.device.type != "cpu":
            tensor = tensor.cpu()
            memory.copies.add(tensor.nbytes, "constants on a GPU")
        if tensor.dtype in PARTS:
            tensor = torch.view_as_real(tensor.resolve_conj())
        if tensor.dim() > 1 and not tensor.is_contiguous() and 0 not in tensor.stride():
            # The transposed view of a parameter: keep the memory, and let the graph transpose.
            order = sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride(axis), axis))
            plain = tensor.permute(order)
            if plain.is_contiguous():
                inverse = [order.index(axis) for axis in range(tensor.dim())]
                return self.builder.transpose(self.builder.constant(array_of(plain)), permutation=inverse)
        return self.builder.constant(array_of(tensor))


class Frame:
    """One program with the values of its nodes: the outermost one, or a part of control flow or of a decomposition."""

    def __init__(
        self, owner: ProgramConversion, module: Any, inputs: Sequence[Any], label: str = "", *, records: bool = False
    ) -> None:
        self.owner, self.module, self.label, self.records = owner, module, label, records
        self.values: dict[Any, Any] = {}
        self.inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.views = Views(self)
        self._live = _live_nodes(module)
        self.values.update(zip(self.inputs, inputs, strict=True))

    @property
    def builder(self) -> LabellingBuilder:
        """The builder of the graph."""
        return self.owner.builder

    def run(self) -> Any:
        """Convert the program, and return the values of its outputs."""
        for node in self.module.graph.nodes:
            if node.op == "output":
                return self.fill(node.args[0])
            if node in self._live:
                if node.op == "get_attr":
                    self.values[node] = _attribute(self.module, node.target)
                elif node.op == "call_function":
                    self.builder.label = self.label or label_of(node)
                    self.views.evaluate(node)
                else:
                    assert node.op == "placeholder", node.op
                    continue
                if self.records:
                    self.owner.record(node, self.values[node])
        raise AssertionError("a program without outputs")

    def run_apart(self) -> Any:
        """Convert the program, and refuse writes to its inputs: the caller would not see them."""
        before = [self.values[node] for node in self.inputs]
        outputs = self.run()
        for node, value in zip(self.inputs, before, strict=True):
            if self.values[node] is not value:
                raise NotSupportedError(
                    f"from_torch: {self.label or 'a part of the program'} writes to its argument {node.name!r}; return the "
                    "new value, and copy_ it into the argument"
                )
        return outputs

    def fill(self, arguments: Any) -> Any:
        """Arguments of a node with the values of nodes."""
        return torch.fx.map_arg(arguments, lambda node: self.values[node])

    def evaluate(self, node: Any) -> Any:
        """The value of a call."""
        target, args, kwargs = node.target, self.fill(node.args), self.fill(node.kwargs)
        if not isinstance(target, OpOverload):
            if isinstance(target, HigherOrderOperator):
                return self._control(node, target, args, kwargs)
            return _call_python(target, args, kwargs, node)
        if is_mutable(target):
            written, target = target, functional(target)
            kwargs = {**defaults_of(written, target, len(args)), **kwargs}
        if writes_statistics(target, args, kwargs):
            raise NotSupportedError(
                f"from_torch: {target} in {place_of(node)} is in training mode, and updates its running statistics; call "
                "eval() of the module first, or pass no statistics"
            )
        if str(target) == "aten.sym_size.int":
            return args[0].shape[args[1] % _meta(node.args[0]).dim()]
        if str(target) == "aten.sym_numel.default":
            return self.owner.names.size_of(
                _meta(node.args[0]).numel(), f"from_torch: the number of elements in {place_of(node)}"
            )
        return self._call(node, target, args, kwargs)

    # Operators -------------------------------------------------------------------------------------------------------

    def _call(self, node: Any, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        folded = _fold(node, target, args, kwargs)
        if folded is not None:
            self._bind(node.meta.get("val"), folded)
            return folded
        name, reason = str(target), "Opweave has no converter for it"
        if torch.Tag.nondeterministic_seeded in target.tags:
            reason = "it draws random numbers; pass them as an argument of the module"
        table = COMPLEX_CONVERTERS if _has_complex_numbers(node) else CONVERTERS
        if name in table:
            try:
                value = self._convert(node, name, table[name], args, kwargs)
                refuse_if(missing := self._missing_result(node, value), missing)
                return value
            except NotConvertible as error:
                reason = str(error)
            except (ValidationError, NotSupportedError) as error:
                reason = f"the builder refuses it: {error}"
            except MLError:
                raise
            except Exception as error:
                if STRICT in os.environ:
                    raise
                reason = f"its converter fails ({type(error).__name__}: {error})"
        self._refuse_values(node, name)
        part = decompose(node, target, args, kwargs)
        if part is not None:
            module, leaves = part
            inner = Frame(self.owner, module, leaves, self.label or label_of(node))
            value = inner.run_apart()
            missing = self._missing_result(node, value)
            if not missing:
                return value
            reason = f"{missing}, which PyTorch's decomposition does not compute"
        return self.run_by_torch(node, target, args, kwargs, reason)

    def _convert(
        self,
        node: Any,
        name: str,
        converter: tuple[Callable[..., Any], bool],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        function, takes_call = converter
        own = self.owner
        keeps_narrow = takes_call and stays_narrow(node, node.target, args)
        args = _pytree.tree_map(own.operand_of, list(args))
        kwargs = {key: _pytree.tree_map(own.operand_of, value) for key, value in kwargs.items()}
        if takes_call:
            kwargs = {
                **kwargs,
                "call": AtenCall(name, torch.fx.map_arg(node.args, _meta), node.meta.get("val"), keeps_narrow),
            }
        return function(self.builder, *args, **kwargs)

    def _missing_result(self, node: Any, value: Any) -> str:
        """The reason why results are not those of a call: the program reads one that is left out; else empty.

        PyTorch's decomposition of attention has weights in place of logarithms of sums, whose rank is another one.
        """
        if isinstance(value, (tuple, list)):
            for user in node.users:
                if user in self._live and user.target is operator.getitem and isinstance(_meta(user), torch.Tensor):
                    result = value[user.args[1]]
                    if result is None or len(result.shape) != len(shape_of(_meta(user))):
                        return f"its result {user.args[1]} is read"
        return ""

    def _bind(self, metas: Any, values: Any) -> None:
        """Keep the numbers of PyTorch's symbols that stand for values of constants, or for sizes that follow from them."""
        for meta, value in zip(_pytree.tree_leaves(metas), _pytree.tree_leaves(values), strict=False):
            is_tensor = isinstance(meta, torch.Tensor) and isinstance(value, torch.Tensor)
            pairs = zip(meta.shape, value.shape, strict=True) if is_tensor else [(meta, value)]
            for symbol, number in pairs:
                if isinstance(symbol, (torch.SymInt, torch.SymFloat)) and symbol.node.expr.is_Symbol:
                    self.owner.names.values.setdefault(symbol.node.expr.name, number)

    def _refuse_values(self, node: Any, name: str) -> None:
        """Raise an error for a call whose result has a shape, or is a number, that depends on values."""
        leaves = _pytree.tree_leaves(node.meta.get("val"))
        symbols = [free_unbacked_symbols(leaf) for leaf in leaves if not isinstance(leaf, (int, float, bool, str))]
        if any(symbol.name not in self.owner.names.values for group in symbols for symbol in group):
            what_depends = "shape of its result" if any(isinstance(leaf, torch.Tensor) for leaf in leaves) else "number"
            raise NotSupportedError(
                f"from_torch: {name} in {place_of(node)}: the {what_depends} depends on values, and graphs need shapes that "
                "follow from those of the inputs; keep all elements and select with torch.where or a mask, or call this part "
                "outside of the module"
            )

    def run_by_torch(self, node: Any, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], reason: str) -> Any:
        """Add a node that PyTorch runs."""
        own, name, place = self.owner, str(target), place_of(node)
        if not own.takes_fallback:
            raise NotSupportedError(
                f"from_torch: {name} in {place}: {reason}; fallback='auto' runs it in PyTorch, "
                "and opweave.pytorch.converts registers a converter"
            )
        operands: list[MLOperand] = []
        dtypes: list[Any] = []
        sizes: list[Any] = []

        def slot(value: Any, meta: Any) -> Any:
            if isinstance(value, MLOperand):
                operands.append(value)
                dtypes.append(meta.dtype)
                return Slot(len(operands) - 1)
            if isinstance(value, Size):
                sizes.append(value)
            return value

        metas = torch.fx.map_arg((node.args, {**kwargs, **node.kwargs}), _meta)
        filled = _map_with(slot, (tuple(args), dict(kwargs)), metas)
        numbers = iter(range(len(operands), len(operands) + len(sizes)))
        filled = _pytree.tree_map(lambda v: Slot(next(numbers)) if isinstance(v, Size) else v, filled)
        value = node.meta.get("val")
        leaves = [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        if not leaves:
            raise NotSupportedError(f"from_torch: {name} in {place}: {reason}, and no result is a tensor")
        data_types = [data_type_of(leaf.dtype, f"from_torch: a result of {name} in {place}") for leaf in leaves]
        shapes = [
            [own.names.size_of(size, f"from_torch: a size in {name}") for size in shape_of(leaf)] for leaf in leaves
        ]
        call = TorchCall(target, filled[0], filled[1], dtypes, [leaf.dtype for leaf in leaves], data_types, reason)
        label = f"{self.builder.label} ({name})"
        results = iter(add_torch_node(self.builder, call, operands, shapes, sizes, label))
        own.fallbacks.append(FallbackCall(name, place, reason))
        return _pytree.tree_map(lambda leaf: next(results) if isinstance(leaf, torch.Tensor) else leaf, value)

    def _control(self, node: Any, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = target.name() if callable(target.name) else str(target)
        handler = CONTROL.get(name)
        reason = "Opweave has no converter for it"
        if handler is not None:
            try:
                return handler(self, node, *args, **kwargs)
            except NotConvertible as error:
                reason = str(error)
        return self.run_by_torch(node, target, args, kwargs, reason)


def _meta(node: Any) -> Any:
    """The value of a node as PyTorch sees it: a tensor without memory."""
    return node.meta.get("val")


def _has_complex_numbers(node: Any) -> bool:
    """Whether a call has complex tensors among its arguments and results."""
    metas = [node.meta.get("val"), *map(_meta, node.all_input_nodes)]
    return any(getattr(leaf, "dtype", None) in PARTS for meta in metas for leaf in _leaves(meta))


def _leaves(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def _map_with(function: Callable[[Any, Any], Any], values: Any, metas: Any) -> Any:
    """Map values in nested lists, with PyTorch's view of each."""
    if isinstance(values, (tuple, list)) and not isinstance(values, torch.Size):
        return type(values)(_map_with(function, v, m) for v, m in zip(values, metas, strict=True))
    if isinstance(values, dict):
        return {key: _map_with(function, value, metas[key]) for key, value in values.items()}
    return function(values, metas)


def _attribute(module: Any, path: str) -> Any:
    """An attribute of a program: a tensor, or a part of control flow."""
    for name in path.split("."):
        module = getattr(module, name)
    return module


def _live_nodes(module: Any) -> set[Any]:
    """The nodes whose values the outputs depend on, and those that write to tensors."""
    live: set[Any] = set()
    for node in reversed(module.graph.nodes):
        if node.op == "output" or node in live or _writes(module, node):
            live.add(node)
            live.update(node.all_input_nodes)
    return live


def _writes(module: Any, node: Any) -> bool:
    if node.op != "call_function" or str(node.target) in ASSERTIONS:
        return False
    if isinstance(node.target, OpOverload):
        return is_mutable(node.target)
    if isinstance(node.target, HigherOrderOperator):
        parts = [_attribute(module, n.target) for n in node.all_input_nodes if n.op == "get_attr"]
        parts = [part for part in parts if isinstance(part, torch.fx.GraphModule)]
        return any(_writes(part, inner) for part in parts for inner in part.graph.nodes)
    return False


# Python --------------------------------------------------------------------------------------------------------------

_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.sym_max: maximum,
    torch.sym_min: minimum,
    torch.sym_not: operator.not_,
    torch.sym_float: lambda value: value * 1.0 if isinstance(value, (Size, RealSize)) else float(value),
    torch.sym_int: lambda value: value if isinstance(value, Size) else int(value),
    torch.sym_sum: lambda values: sum(values),
}
"""Functions on sizes -> what computes them here."""


def _call_python(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], node: Any) -> Any:
    """Compute with sizes and lists."""
    function = _FUNCTIONS.get(target, target)
    if function is target and getattr(target, "__module__", "") not in ("_operator", "builtins", "math"):
        raise NotSupportedError(f"from_torch: {place_of(node)} calls {target}, which is no operator of PyTorch")
    try:
        return function(*args, **kwargs)
    except UnknownSizeError as error:
        raise NotSupportedError(f"from_torch: {place_of(node)}: {error}; leave its dimension fixed") from None


# Constants -----------------------------------------------------------------------------------------------------------


def _fold(node: Any, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a call on constants, computed by PyTorch; None for calls of other kinds, or with large results."""
    leaves = _pytree.tree_leaves((list(args), dict(kwargs)))
    if (
        any(isinstance(leaf, (MLOperand, Symbol)) for leaf in leaves)
        or torch.Tag.nondeterministic_seeded in target.tags
    ):
        return None
    if stays_narrow(node, target, args):
        return None
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    results = [leaf for leaf in _pytree.tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]
    is_view = bool(tensors) and any(argument.alias_info is not None for argument in schema_of(target).arguments)
    is_view = is_view or str(target) == PART_OF_SUBCLASS
    if not is_view:
        size = 0
        for result in results:
            count = result.numel()
            if not isinstance(count, int):
                if not free_unbacked_symbols(result):
                    return None
                count = 0  # only the values of the constants say how large it is
            size += count * result.element_size()
        if size > FOLDED_BYTES:
            return None
    with torch.no_grad():
        return target(*args, **kwargs)
