"""From a module to an exported program: what is checked before, names of dimensions, and errors in the user's terms."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from ..support.errors import NotSupportedError, ValidationError, require
from ..support.names import short_repr

OTHER_FORM = "pass such arguments to from_torch for another graph"
"""Advice for arguments of another form than those of the export."""


def check_module(module: Any) -> None:
    """Require a module for inference, outside of autocast."""
    require(
        not getattr(module, "training", False),
        f"from_torch: {type(module).__name__} is in training mode, in which dropout and batch normalisation differ; call "
        "module.eval() first",
    )
    for device in ("cpu", "cuda"):
        require(
            not torch.is_autocast_enabled(device),
            f"from_torch: torch.autocast is on for {device}, and programs have the data types of their tensors; leave the "
            "autocast block, and convert the module by module.to(torch.bfloat16), or pass a context of "
            "create_context(precision=…)",
        )


def check_devices(tensors: Mapping[str, Any]) -> None:
    """Require tensors in the memory of the host."""
    for name, tensor in tensors.items():
        device = tensor.device.type
        if device == "meta":
            raise ValidationError(
                f"from_torch: {name} is on the device 'meta', without values; load the weights first, "
                "as by module.to_empty(device='cpu') and module.load_state_dict(…)"
            )
        if device != "cpu":
            raise NotSupportedError(
                f"from_torch: {name} is on {tensor.device}, and parameters are read from the memory of the host; call "
                "module.cpu() first. The context decides where the graph runs: create_context(device='cuda')"
            )


def export(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any) -> Any:
    """Export a module by `torch.export`.

    Raises:
        ValidationError: the arguments do not fit the module, or `dynamic_shapes`.
        NotSupportedError: the module has branches or shapes that depend on values, or is otherwise refused by PyTorch.
    """
    try:
        args, kwargs = _apart(module, tuple(args), dict(kwargs or {}))
        with torch.no_grad():
            return torch.export.export(module, args, kwargs, dynamic_shapes=with_dims(dynamic_shapes), strict=False)
    except Exception as error:
        raise _error_of(module, error) from error


def _apart(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments, with a different object for each tensor, and tensors in place of NumPy's arrays.

    PyTorch makes one input of a tensor that is passed twice, and takes an argument that is a parameter as the parameter.
    """
    seen = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}

    def own(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return torch.tensor(leaf)
        if isinstance(leaf, torch.Tensor) and id(leaf) in seen:
            return leaf.detach()
        seen.add(id(leaf))
        return leaf

    return _pytree.tree_map(own, (args, kwargs))


_UNBOUND = ("missing a required", "too many positional arguments", "got an unexpected keyword argument")
"""Beginnings of the messages of `inspect.Signature.bind`, by which PyTorch checks arguments."""


def _error_of(module: Any, error: Exception) -> Exception:
    text = " ".join(str(error).split())
    kind = type(error).__name__
    name = type(module).__name__
    if kind == "GuardOnDataDependentSymNode" or "data-dependent" in text:
        first = str(error).strip().splitlines()[0] if str(error).strip() else kind
        place = _place_of(error) or first[:300]
        return NotSupportedError(
            f"from_torch: {name} has a branch or a shape that depends on values, which a graph cannot have: {place}; "
            "write torch.where or torch.cond in place of the branch, or torch._check(…) if the answer is always the same; "
            "torch.compile(module, backend='opweave') leaves such parts to Python"
        )
    if isinstance(error, TypeError) and ("forward()" in text or text.startswith(_UNBOUND)):
        return ValidationError(f"from_torch: the arguments do not fit {name}: {text[:300]}")
    if (output := re.search(r"Found <class '([^']+)'> in output", text)) is not None:
        return NotSupportedError(
            f"from_torch: {name} returns {output[1]}, whose tensors PyTorch does not know; call "
            "torch.export.register_dataclass(…) for a dataclass, or return a tuple, a named tuple or a dictionary"
        )
    if (size := re.search(r"0/1 specialized due to hint of [01] for dimension (\S+\])", text)) is not None:
        return ValidationError(
            f"from_torch: {size[1]} is dynamic, and PyTorch takes sizes of 0 and 1 in the example as fixed; pass an example "
            "with a size of at least 2, and calls may then have any"
        )
    if kind in ("UserError", "ConstraintViolationError"):
        return ValidationError(f"from_torch: torch.export refuses {name}: {text[:600]}")
    return NotSupportedError(
        f"from_torch: torch.export refuses {name} ({kind}: {text[:600]}); pass a program that torch.export makes with other "
        "options, or use torch.compile(module, backend='opweave'), which leaves such parts to Python"
    )


def _place_of(error: Exception) -> str:
    """The line of the user's module at which PyTorch refuses a program; empty if the message has none."""
    stack = str(error).partition("following call raised")[2]
    lines = re.findall(r'File "([^"]+)", line (\d+), in ([^\n]*)(?:\n +(?!File)([^\n]+))?', stack)
    if not lines:
        return ""
    file, number, function, code = lines[-1]
    return f"{Path(file).name}:{number}, {code or function}"


# Dimensions ----------------------------------------------------------------------------------------------------------


def with_dims(shapes: Any) -> Any:
    """`dynamic_shapes` with dimensions of PyTorch in place of names, whose range PyTorch infers."""

    def convert(item: Any) -> Any:
        if isinstance(item, str):
            return torch.export.Dim.DYNAMIC
        if isinstance(item, Mapping):
            return {key: convert(value) for key, value in item.items()}
        if isinstance(item, tuple) and not hasattr(item, "_fields"):
            return tuple(map(convert, item))
        return [*map(convert, item)] if isinstance(item, list) else item

    return convert(shapes)


def names_of(program: Any, module: Any, args: Sequence[Any], kwargs: Any, shapes: Any) -> dict[tuple[str, int], str]:
    """The names of dimensions in `dynamic_shapes`, by input of the program and axis.

    Raises:
        ValidationError: a tensor does not have an axis; PyTorch leaves such an axis out.
    """
    if shapes is None:
        return {}
    from torch.export.dynamic_shapes import _combine_args, _tree_map_with_path

    by_input: list[dict[int, str]] = []

    def note(path: Any, value: Any, spec: Any) -> None:
        # The spec of an integer is a dimension.
        axes = spec if isinstance(spec, (tuple, list)) else ()
        for axis in spec if isinstance(spec, Mapping) else ():
            require(
                axis in range(len(value.shape)),
                f"from_torch: dynamic_shapes{_pytree.keystr(path)} is for a tensor of {len(value.shape)} dimensions, whose "
                f"axes are numbered from 0, got the axis {short_repr(axis)}",
            )
        pairs = spec.items() if isinstance(spec, Mapping) else enumerate(axes)
        by_input.append({axis: name for axis, dim in pairs if (name := _name_of(dim))})

    combined = _combine_args(module, tuple(args), dict(kwargs or {}))
    if isinstance(shapes, (tuple, list)):
        combined = type(shapes)(combined.values())
    _tree_map_with_path(note, combined, shapes, tree_name="inputs")
    inputs = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    return {
        (name, axis): dimension
        for name, by_axis in zip(inputs, by_input, strict=False)
        for axis, dimension in by_axis.items()
    }


def _name_of(dim: Any) -> str:
    if isinstance(dim, str):
        return dim
    is_dim = isinstance(dim, torch.export.Dim) or type(dim).__name__ in ("Dim", "_Dim")
    return str(dim.__name__) if is_dim and hasattr(dim, "__name__") else ""


def flatten(subject: str, expected: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments of a call, flattened as those that the program was exported with, whose structure is `expected`.

    Raises:
        ValidationError: the arguments have another structure.
    """
    ordered = dict(kwargs)
    positional, keywords = expected.children()
    if keywords.context and set(keywords.context) == set(ordered):
        ordered = {name: ordered[name] for name in keywords.context}
    leaves, structure = _pytree.tree_flatten((tuple(args), ordered))
    if structure == expected:
        return leaves
    with suppress(ValueError):  # the structures differ in more than the order of keys
        leaves = expected.flatten_up_to((tuple(args), ordered))
        if all(map(_pytree.tree_is_leaf, leaves)):
            return leaves
    got = f"{len(args)} positional and {sorted(kwargs)}"
    expected_text = f"{positional.num_children} positional and {sorted(keywords.context or ())}"
    if got != expected_text:
        raise ValidationError(
            f"{subject}: the arguments must be as those of the export, {expected_text}, got {got}; {OTHER_FORM}"
        )
    place, text, other = _first_difference(expected, structure, "")
    raise ValidationError(f"{subject}: {place} must be {text}, as in the export, got {other}")


def _first_difference(expected: Any, got: Any, place: str) -> tuple[str, str, str]:
    """The place where two structures differ first, such as "args[0]['mask']", and what each has there; else empty texts."""
    if (expected.type, expected.context) != (got.type, got.context) or expected.num_children != got.num_children:
        return place, _text_of(expected), _text_of(got)
    keys = expected.context if expected.type in _MAPPINGS else range(expected.num_children)
    for key, child, other in zip(keys, expected.children(), got.children(), strict=True):
        # The outermost structure is the pair of positional and keyword arguments.
        inner = f"{place}[{key!r}]" if place else ("args", "kwargs")[key]
        difference = _first_difference(child, other, inner)
        if difference[0]:
            return difference
    return "", "", ""


_MAPPINGS = (dict, OrderedDict)
"""Types whose structures have the keys as their context."""


def _text_of(structure: Any) -> str:
    """The outermost part of a structure, for people."""
    if structure.is_leaf():
        return "a tensor or another single value"
    if structure.type in _MAPPINGS:
        return f"{structure.type.__name__} with the keys {structure.context}"
    # The type of a named tuple is the function that made its class, which is the context.
    return f"{getattr(structure.context, '__name__', structure.type.__name__)} of {structure.num_children}"
