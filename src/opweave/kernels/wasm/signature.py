"""Signatures: the values passed to a WebAssembly function, in terms of the operation's parameters.

    "x*, y*, out*, out.size, alpha"

`opweave.kernels.wasm` documents the syntax.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any, Literal, NamedTuple

from ...core import dtypes
from ...core.graph import Desc
from ...support.errors import ValidationError, require
from ...support.hints import meant
from ...support.names import count_of
from ..base import KernelCall

_ITEM = re.compile(
    r"(?P<name>[A-Za-z_]\w*)(?:\[(?P<element>\d+)\])?"
    r"(?:\.(?P<field>[a-z_]+)(?:\[(?P<index>-?\d+)\])?)?"
    r"(?P<pointer>\*)?(?::(?P<type>\w+))?",
    re.ASCII,
)
_RESULT = re.compile(r"out(\d*)")
_FIELDS = ("size", "rank", "bytes", "data_type", "shape", "strides", "outer", "count", "desc")
_NO_FIELD = f"a tensor has {', '.join(_FIELDS[:-1])} and desc*"
_DATA_TYPES = ", ".join(dtypes.ANY)


@dataclass(frozen=True, slots=True)
class FunctionType:
    """Parameter and result types of a WebAssembly function: `(i32, f32) -> i32`."""

    parameters: tuple[str, ...]
    results: tuple[str, ...]

    def __str__(self) -> str:
        parameters, results = (f"({', '.join(types)})" for types in (self.parameters, self.results))
        return f"{parameters} -> {self.results[0] if len(self.results) == 1 else results}"


class ArgumentPlace(NamedTuple):
    """An operand, or a result if the name is empty; `number` is the index in a sequence of operands, or of the result."""

    name: str
    number: int | None


class SignatureArgument(NamedTuple):
    """A value passed to a function: a known number, or a pointer to a tensor, to pointers to a sequence, or to descriptors.

    Attributes:
        text: the item of the signature.
        place: target of a pointer.
        type: type of a number's parameter as declared in the signature, if any.
    """

    text: str
    kind: Literal["number", "tensor", "tensors", "descs"]
    number: int | float = 0
    place: ArgumentPlace = ArgumentPlace("", None)
    descs: tuple[Desc, ...] = ()
    type: str | None = None


def parse(signature: str, call: KernelCall) -> list[SignatureArgument]:
    """Return the arguments of a function for one node."""
    return [_argument(item.strip(), call) for item in signature.split(",") if item.strip()]


def check_names(signature: str, function: FunctionType, operands: Sequence[str], attributes: Sequence[str]) -> None:
    """Check names, fields and the number of values, which is possible without a node."""
    items = [item.strip() for item in signature.split(",") if item.strip()]
    for item in items:
        match = _match(item)
        if match["name"] in operands or (_RESULT.fullmatch(match["name"]) and match["name"] not in attributes):
            require(match["field"] in (None, *_FIELDS), f"{item!r} in the signature: {_NO_FIELD}")
        else:
            names = [*operands, "out", *attributes]
            require(match["name"] in names, _unknown(match["name"], names))
    _check_count(len(items), function)


def default(call: KernelCall) -> str:
    """Return the default: pointers to operands and results, the size of the first result, and the attributes."""
    items = []
    for name, value in call.inputs.items():
        items += [f"{name}[{i}]*" for i in range(len(value))] if isinstance(value, tuple) else [f"{name}*"]
    items += [f"out{number}*" for number in range(len(call.outputs))]
    items.append("out0.size")
    for name, value in call.attributes.items():
        items += [f"{name}[{i}]" for i in range(len(value))] if isinstance(value, (tuple, list)) else [name]
    return ", ".join(items)


def _argument(item: str, call: KernelCall) -> SignatureArgument:
    match = _match(item)
    name, element = match["name"], None if match["element"] is None else int(match["element"])
    try:
        if name in call.inputs:
            return _of_tensor(item, match, ArgumentPlace(name, element), call.inputs[name])
        result = _RESULT.fullmatch(name)
        if result and element is None and name not in call.attributes:
            number = int(result[1] or 0)
            require(number < len(call.outputs), f"there are {len(call.outputs)} results")
            require(bool(result[1]) or len(call.outputs) == 1, "there are several results: out0, out1, …")
            return _of_tensor(item, match, ArgumentPlace("", number), call.outputs[number])
        if name in call.attributes:
            return _of_attribute(item, match, element, call.attributes[name])
    except ValidationError as error:
        raise ValidationError(f"{item!r} in the signature: {error}") from None
    names = [*call.inputs, *(f"out{i}" for i in range(len(call.outputs))), *call.attributes]
    raise ValidationError(_unknown(name, names))


def _match(item: str) -> re.Match[str]:
    match = _ITEM.fullmatch(item)
    require(match is not None, f"the signature has {item!r}; it takes name*, name.size, name.shape[0], attribute, …")
    assert match is not None
    return match


def _unknown(name: str, names: Sequence[str]) -> str:
    return f"the signature has an unknown name {name!r}; there are {', '.join(names)}{meant(name, names)}"


def _check_count(count: int, function: FunctionType) -> None:
    expected = len(function.parameters)
    require(count == expected, f"it gives {count_of(count, 'value')} for {count_of(expected, 'parameter')}")


def _of_tensor(
    item: str, match: re.Match[str], place: ArgumentPlace, operand: Desc | tuple[Desc, ...] | None
) -> SignatureArgument:
    field, pointer, wanted = match["field"], bool(match["pointer"]), match["type"]
    is_sequence = isinstance(operand, tuple)
    descs = operand if isinstance(operand, tuple) else () if operand is None else (operand,)
    if place.name and place.number is not None:
        require(is_sequence, "this operand is not a sequence")
        require(place.number < len(descs), f"there are {len(descs)} operands")
        descs, is_sequence = descs[place.number : place.number + 1], False
    if pointer and field is None:
        require(wanted is None or wanted in dtypes.ANY, f"{wanted!r} is not a data type of WebNN ({_DATA_TYPES})")
        for desc in descs:
            require(wanted in (None, desc.data_type), f"the function takes {wanted}, got {desc}")
        return SignatureArgument(item, "tensors" if is_sequence else "tensor", place=place, descs=descs)
    if pointer:
        require(field == "desc", f"only a tensor and its desc have a pointer, not {field}")
        return SignatureArgument(item, "descs", place=place, descs=descs)
    if field == "count":
        require(is_sequence, "this operand is not a sequence")
        return SignatureArgument(item, "number", len(descs), type=wanted)
    require(field is not None, "a tensor is passed as a pointer, name*")
    require(not is_sequence, f"a sequence has operands: {place.name}[0].{field}")
    require(operand is not None, "the operand is absent; only its pointer can be passed, which is 0")
    return SignatureArgument(item, "number", _number_of(descs[0], str(field), match["index"]), type=wanted)


def _number_of(desc: Desc, field: str, index: str | None) -> int:
    # Strides in elements; tensors in linear memory are always C-contiguous.
    strides = tuple(accumulate((1, *desc.shape[:0:-1]), mul))[: desc.rank][::-1]
    outer = tuple(prod(desc.shape[:axis]) for axis in range(desc.rank))
    vectors: dict[str, tuple[int, ...]] = {"shape": desc.shape, "strides": strides, "outer": outer}
    numbers = {
        "size": desc.element_count,
        "rank": desc.rank,
        "bytes": desc.byte_length,
        "data_type": dtypes.INFO[desc.data_type].onnx,
    }
    if field in vectors:
        axis = desc.rank if index is None else int(index)
        require(-desc.rank <= axis < desc.rank, f"{field} takes an axis in [{-desc.rank}, {desc.rank}) for {desc}")
        return vectors[field][axis]
    require(field in numbers and index is None, _NO_FIELD)
    return numbers[field]


def _of_attribute(item: str, match: re.Match[str], element: int | None, value: Any) -> SignatureArgument:
    require(not match["pointer"] and not match["field"], "an attribute is passed by its value")
    if isinstance(value, (tuple, list)):
        require(element is not None and element < len(value), f"the attribute has {len(value)} values: name[0], …")
        value = value[element or 0]
    else:
        require(element is None, "this attribute is not a sequence")
    require(isinstance(value, (bool, int, float)), f"functions take numbers, got {value!r}")
    return SignatureArgument(item, "number", int(value) if isinstance(value, bool) else value, type=match["type"])


def check(arguments: Sequence[SignatureArgument], function: FunctionType, wide: bool) -> None:
    """Require that a function accepts the arguments."""
    _check_count(len(arguments), function)
    for argument, kind in zip(arguments, function.parameters, strict=True):
        if argument.kind != "number":
            pointer = "i64" if wide else "i32"
            require(kind == pointer, f"{argument.text!r} is a pointer, {pointer} here, not {kind}")
            continue
        require(argument.type in (None, kind), f"{argument.text!r} is declared {argument.type}, not {kind}")
        if kind in ("f32", "f64"):
            continue
        number = argument.number
        require(isinstance(number, int), f"{argument.text!r} is a float, {number}, not {kind}")
        bits = int(kind[1:]) if kind in ("i32", "i64") else 0
        require(bits > 0, f"{argument.text!r} cannot be passed as {kind}")
        require(-(1 << bits - 1) <= number < 1 << bits, f"{argument.text!r} is {number}, which {kind} cannot hold")
    require(function.results in ((), ("i32",)), f"it returns {function.results}, not () or an i32 status")
