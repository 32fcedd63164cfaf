"""What the specification says, in Python's form: read from its interface definitions and its tables of limits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opweave.core.dtypes import ANY
from opweave.core.graph import MAX_RANK
from opweave.core.operation import Limits
from opweave.support.names import snake_case
from support import wpt

SPECIFICATION = json.loads((wpt.DATA / "webnn_api.json").read_text())
ENUMS: dict[str, list[str]] = SPECIFICATION["enums"]
DICTIONARIES: dict[str, Any] = SPECIFICATION["dictionaries"]
INTERFACES: dict[str, Any] = SPECIFICATION["interfaces"]

WINDOW = {"padding": (0, 0, 0, 0), "strides": (1, 1), "dilations": (1, 1)}
PROSE_DEFAULTS: dict[str, dict[str, Any]] = {
    "conv2d": WINDOW,
    "conv_transpose2d": {**WINDOW, "output_padding": (0, 0)},
    "average_pool2d": WINDOW,
    "l2_pool2d": WINDOW,
    "max_pool2d": WINDOW,
    "resample2d": {"scales": (1.0, 1.0), "axes": (2, 3)},
    "gru": {"activations": ("sigmoid", "tanh")},
    "gru_cell": {"activations": ("sigmoid", "tanh")},
    "lstm": {"activations": ("sigmoid", "tanh", "tanh")},
    "lstm_cell": {"activations": ("sigmoid", "tanh", "tanh")},
}
"""Defaults that stand in the text of a method's steps, not in the interface definition."""


@dataclass(frozen=True)
class Argument:
    """An argument as it should be: members of dictionaries are arguments themselves."""

    name: str
    type: str
    keyword: bool
    optional: bool
    default: Any = None


def members_of(dictionary: str) -> list[dict[str, Any]]:
    """The members of a dictionary; `label`, which all options inherit, comes last."""
    own, parent = DICTIONARIES[dictionary]["members"], DICTIONARIES[dictionary]["inherits"]
    if parent is None:
        return list(own)
    return [*own, *members_of(parent)] if parent == "MLOperatorOptions" else [*members_of(parent), *own]


def arguments_of(overload: dict[str, Any]) -> Iterator[Argument]:
    for argument in overload["arguments"]:
        if argument["type"] not in DICTIONARIES:
            yield Argument(snake_case(argument["name"]), argument["type"], False, argument["optional"])
            continue
        for member in members_of(argument["type"]):
            default = None if member["default"] is None else json.loads(member["default"])
            optional = not member["required"]
            yield Argument(snake_case(member["name"]), member["type"], optional, optional, default)


def flattened_arguments(overloads: list[dict[str, Any]]) -> list[str]:
    """The names of arguments that are dictionaries."""
    found = (a["name"] for overload in overloads for a in overload["arguments"] if a["type"] in DICTIONARIES)
    return list(dict.fromkeys(snake_case(name) for name in found))


def is_operation(interface: str, member: str) -> bool:
    return interface == "MLGraphBuilder" and member not in ("constructor", "input", "constant", "build")


BINARY = ["add", "sub", "mul", "div", "max", "min", "pow"]


@dataclass(frozen=True)
class Row:
    """A row of a tensor limits table: for an operand what is allowed, and what must be supported."""

    allowed: Limits
    required_types: list[str]
    required_ranks: tuple[int, int]


def operand_name(text: str) -> str:
    """`input`, `inputs's list/items`, `outputs[1]* if returnSequence is true` -> our name of the operand."""
    if numbered := re.match(r"outputs\[(\d)\]", text):
        return f"output{numbered[1]}"
    return snake_case(text.removesuffix("'s list/items"))


def data_types(text: str) -> Any:
    if text.startswith("same as "):
        return operand_name(text.removeprefix("same as "))
    return ANY if text == "any" else tuple(text.split(", "))


def ranks(text: str) -> Any:
    if text.startswith("same as "):
        return operand_name(text.removeprefix("same as "))
    low, _, high = text.rpartition(" to ")
    return (0, MAX_RANK) if text == "N" else (int(low or high), MAX_RANK if high == "N" else int(high))


def limits_tables() -> dict[str, dict[str, Row]]:
    """Operation -> operand -> row."""
    tables: dict[str, dict[str, Row]] = {}
    for table in SPECIFICATION["tensor_limits"].values():
        # One table lacks the end of a row, so two rows stand in one.
        cells = [cell for row in table["rows"] for cell in row]
        rows = {
            operand_name(name): Row(Limits(data_types(types), ranks(rank)), required.split(", "), ranks(required_rank))
            for name, types, required, rank, required_rank in zip(*[iter(cells)] * 5, strict=True)
        }
        names = re.findall(r"(\w+)\(\)", table["caption"]) or BINARY
        tables |= {snake_case(name): rows for name in names}
    return tables


TABLES = limits_tables()
