"""Trace operations to GPU programs, with the back end's rule or the operation's formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from ...core.graph import Node, Operand, iter_operands, map_operands
from ...core.guards import Guards, current_guards
from ...core.operation import call_with
from ...core.size_calls import UnknownName
from ...core.size_values import variables_in
from ...expr import gpu
from ...expr.array import Traced
from ...expr.gpu import Features
from ...expr.ir import Formula
from ...expr.simplify import simplify
from ...expr.tracing import inputs_of, make_formula
from ...kernels.expression import descs_of, program_of
from ...ops import constants
from ...ops.movement import reshape
from ...support.background import background
from ...support.cache import Cache, exact
from ...support.errors import ValidationError
from .. import Backend
from ..size_input import SizeInput
from .contraction.named import names_needed as contraction_names
from .rules.repetition import recurrent_form, refusal_of_recurrence
from .rules.results import Products, Scatter, Staged

Special: TypeAlias = Scatter | Products | Staged | SizeInput
"""Results of rules other than expressions."""

MAX_TRACES = 1024

_traces: Cache[Any, Formula | Special] = Cache(MAX_TRACES, raw=True)

_guarded_traces: WeakKeyDictionary[Guards, Cache[Any, Formula | Special]] = WeakKeyDictionary()
"""Traces with sizes, for each scope that records the answers to comparisons: it must get all of them."""


def is_users_kernel(node: Node, backend: Backend) -> bool:
    """Whether a node runs as a user kernel, because the back end has no rule for the operation."""
    return backend.name in node.op.kernels and backend.rule(node) is None


def form_of(node: Node, backend: Backend) -> Callable[..., Any] | None:
    """The function that computes a node's results: the back end's rule, else the operation's recurrence or formula."""
    rule = backend.rule(node)
    if rule is not None:
        return rule.function
    if node.op.recurrence is not None:
        return recurrent_form(node.op)
    return None if node.op.is_alternative else node.op.formula


def apply_node(node: Node, backend: Backend, arrays: Mapping[Operand, Traced]) -> Any:
    """Apply a node to its operands as arrays, and return a tuple of arrays or a `Special`."""
    return _apply(node, backend, lambda operand: arrays[operand])


def _apply(node: Node, backend: Backend, array_of: Callable[[Operand], Traced]) -> Any:
    form = form_of(node, backend)
    assert form is not None, node
    result = call_with(form, {**map_operands(node.inputs, array_of), **node.attributes})
    if isinstance(result, Special):
        return result
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def trace(node: Node, backend: Backend) -> Formula | Special:
    """Trace a node, with an input for each operand."""
    background.give_way()
    key = node.remember(_structure_of), exact(form_of(node, backend))
    return _cache_for(node).make(key, lambda: _trace(node, backend, descs_of(node.inputs)))


def _structure_of(node: Node) -> Any:
    """A key that nodes of the same operation, attributes, data types and shapes share."""
    return exact((node.op, tuple(descs_of(node.inputs).items()), tuple(node.attributes.items())))


def _cache_for(node: Node) -> Cache[Any, Formula | Special]:
    guards = current_guards()
    if guards is None or not has_names(node):
        return _traces
    return _guarded_traces.setdefault(guards, Cache(MAX_TRACES, raw=True))


def _trace(node: Node, backend: Backend, descs: Mapping[str, Any]) -> Formula | Special:
    if backend.rule(node) is None and node.op.recurrence is None:  # formulas may have indices to check
        return simplify(program_of(node.op, descs, node.attributes))
    inputs, arrays = inputs_of(list(iter_operands(descs)))
    rest = iter(arrays)
    result = _apply(node, backend, lambda _: next(rest))
    if isinstance(result, Staged):
        result.inputs = inputs
    return result if isinstance(result, Special) else simplify(make_formula(node.op.name, inputs, result))


def has_names(node: Node) -> bool:
    """Whether a node has sizes that are known only at a run."""
    return bool(node.remember(_sizes_of))


def _sizes_of(node: Node) -> set[str]:
    shapes = tuple(operand.shape for operand in (*node.operands, *node.outputs))
    return variables_in((shapes, tuple(node.attributes.values())))


def names_needed(node: Node, backend: Backend, features: Features) -> tuple[set[str], set[str]]:
    """The names that the kernels of a node need as numbers, for all sizes, and for those of this run.

    `refusal_of` must be empty for the node.
    """
    names = node.remember(_sizes_of)
    if not names:
        return set(), set()
    if is_users_kernel(node, backend) or any(isinstance(name, UnknownName) for name in names):
        return names, set()
    if node.op is reshape:
        return set(), set()
    program = trace(node, backend)
    if isinstance(program, Products):
        return contraction_names(program.problem, features)
    if isinstance(program, Staged) and not program.fits(features, backend.max_byte_length):
        return set(), names  # with numbers, the decomposition may run
    if isinstance(program, Staged) and program.names_needed is not None:
        return program.names_needed(features)
    return names if isinstance(program, Staged) else set(), set()


def refusal_of(node: Node, backend: Backend, features: Features) -> str | None:
    """The reason why a node cannot run; empty if it can; None if its decomposition may."""
    descs = [o.desc for o in (*node.operands, *node.outputs)]
    lacking = dict.fromkeys(d.data_type for d in descs if d.data_type not in backend.computes)
    if lacking and not backend.computes_types_of(node):
        return f"kernels of this device have no {' and no '.join(lacking)}"
    if not features.int64 and any(d.data_type in ("int64", "uint64") for d in descs):
        return "shaders of this device have no 64-bit integers"
    if is_users_kernel(node, backend):
        return ""
    if form_of(node, backend) is None or (node.op is constants.sizes and not has_names(node)):
        if node.op.decomposition is None and node.op.kernels:
            return _no_kernel(node, backend)
        return None
    if backend.rule(node) is None and node.op.recurrence is not None:
        return refusal_of_recurrence(node, features)
    try:
        result = trace(node, backend)
        if isinstance(result, Staged) and not has_names(node):
            return "" if result.fits(features, backend.max_byte_length) else None
        return gpu.refusal_of(result, features) if isinstance(result, Formula) else ""
    except ValidationError as error:  # positions beyond int32
        return str(error)


def _no_kernel(node: Node, backend: Backend) -> str:
    """The message for an operation whose kernels are all for other back ends; their source code is not translated."""
    kernels = node.op.kernels
    reason = f"its kernels are for {', '.join(map(repr, kernels))}, not for {backend.name!r}"
    has_source = "webgpu" in kernels or "cuda" in kernels
    return f"{reason}: add {node.op.name}.kernel({backend.name!r}, …)" if has_source else reason
