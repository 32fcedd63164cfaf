"""Subgraphs with a name, a draft: calls that a kernel of that name may replace (`MLGraphBuilder.subgraph`)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from .. import composites, custom
from ..core.graph import Operand, map_operands
from ..ops.recorder import Recorder
from ..support.errors import ValidationError, require
from ..support.names import short_repr

if TYPE_CHECKING:
    from ..backends import Backend
    from ..custom import CustomOp
    from ..ops import Operations

MAX_DEPTH = 32
"""Maximum depth of lists and dictionaries in a config."""

_definitions: WeakKeyDictionary[Callable[..., Any], dict[str, CustomOp[Any]]] = WeakKeyDictionary()


def add_subgraph(
    builder: Operations,
    backend: Backend,
    name: str,
    function: Callable[..., Any],
    operands: Sequence[Operand],
    config: Mapping[str, Any],
    label: str,
) -> Any:
    """Add a node that `function` defines, or the composite of this name if the back end has a rule for it."""
    try:
        is_name = isinstance(name, str) and re.fullmatch(r"[\w.:-]+", name) is not None
        require(is_name, f"name must consist of letters, digits, '_', '.', ':' and '-', got {short_repr(name)}")
        is_list = isinstance(operands, Sequence) and not isinstance(operands, (str, Operand))
        require(is_list, f"operands must be a sequence of operands, got {short_repr(operands)}")
        options = _freeze_config(config)
        definition = _definition(name, function)
        _check_config(definition, options)
    except ValidationError as error:
        raise ValidationError(f"subgraph: {error}") from None
    results: Any = definition(builder, *operands, **options, label=label)
    replacement = _replacement(builder, backend, name, operands, options, results)
    # The first node is not part of a graph, because nothing depends on it.
    return results if replacement is None else replacement(builder, *operands, **options, label=label)


def _definition(name: str, function: Callable[..., Any]) -> CustomOp[Any]:
    """The operation that a function defines; the same for the same function and name."""
    require(callable(function), f"function must be a function, got {short_repr(function)}")
    by_name = _definitions.setdefault(function, {})
    if name not in by_name:
        operation: CustomOp[Any] = custom.composite(function)
        operation.name = operation.__name__ = name
        by_name[name] = operation
    return by_name[name]


def _check_config(definition: CustomOp[Any], config: Mapping[str, Any]) -> None:
    unknown = [name for name in config if name not in definition.attributes]
    takes = ", ".join(definition.attributes) or "nothing"
    require(not unknown, f"config: the function takes {takes} by keyword, got {', '.join(map(short_repr, unknown))}")


def _freeze_config(config: Mapping[str, Any]) -> dict[str, Any]:
    require(isinstance(config, Mapping), f"config must be a dictionary, got {short_repr(config)}")
    for name in config:
        is_name = isinstance(name, str) and name != "label"
        require(is_name, f"config must have names of parameters, got {short_repr(name)}")
    return {name: _freeze(f"config[{name!r}]", value, MAX_DEPTH) for name, value in config.items()}


def _freeze(subject: str, value: Any, depth: int) -> Any:
    """A copy of a value as JSON has them; lists become tuples."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if depth and isinstance(value, (list, tuple)):
        return tuple(_freeze(f"{subject}[{k}]", item, depth - 1) for k, item in enumerate(value))
    if depth and isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _freeze(f"{subject}[{key!r}]", item, depth - 1) for key, item in value.items()}
    raise ValidationError(
        f"{subject[:80]} must be a value of JSON: None, a truth value, a number, a string, a list, or a dictionary with "
        f"strings as keys, got {short_repr(value)}"
    )


def _replacement(
    builder: Operations,
    backend: Backend,
    name: str,
    operands: Sequence[Operand],
    config: Mapping[str, Any],
    results: Operand | tuple[Operand, ...],
) -> CustomOp[Any] | None:
    """The composite of Opweave's that has this name and signature, and a rule of the back end for these operands."""
    composite: CustomOp[Any] | None = getattr(composites, name) if name in composites.__all__ else None
    if composite is None:
        return None
    scratch = Recorder()
    scratch.takes_empty = builder.takes_empty
    stand_ins = map_operands({"": tuple(operands)}, lambda o: Operand(scratch, o.desc, name="x", value=o.value))[""]
    try:
        inspect.signature(composite).bind(None, *operands, **config)
        call: Any = composite(scratch, *stand_ins, **config)
    except (TypeError, ValidationError):
        return None
    wanted = results if isinstance(results, tuple) else (results,)
    outputs = call if isinstance(call, tuple) else (call,)
    is_same = [output.desc for output in outputs] == [result.desc for result in wanted]
    return composite if is_same and backend.supports(outputs[0].node) else None
