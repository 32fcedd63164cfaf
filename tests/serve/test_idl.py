"""The table for JavaScript against the specification's interface definitions."""

from __future__ import annotations

from typing import Any

import pytest
from support.specification import DICTIONARIES, ENUMS, INTERFACES, is_operation, members_of

from opweave.serve import idl

KINDS = {
    "MLOperand": "o",
    "unsigned long": "u",
    "long": "i",
    "double": "d",
    "float": "f",
    "boolean": "b",
    "MLNumber": "n",
    "(unsigned long or sequence<unsigned long>)": "u|u[]",
    **{name: name.removeprefix("ML") for name in ENUMS},
}
WANTED = {name: form for name, form in INTERFACES["MLGraphBuilder"].items() if is_operation("MLGraphBuilder", name)}
GIVEN = {operation.name: operation for operation in idl.OPERATIONS.values()}


def kind(type: str) -> str:
    """The kind of an argument by its type in the specification."""
    if type.startswith("sequence<"):
        return KINDS[type.removeprefix("sequence<").removesuffix(">")] + "[]"
    return KINDS[type]


def test_operations_have_the_specification_s_order() -> None:
    assert list(GIVEN) == list(WANTED)


@pytest.mark.whole
@pytest.mark.parametrize("name", WANTED)
def test_arguments_and_options(name: str) -> None:
    ((form),) = WANTED[name]
    *arguments, options = form["arguments"]
    assert list(GIVEN[name].arguments.items()) == [(a["name"], kind(a["type"])) for a in arguments]
    assert not any(argument["optional"] for argument in arguments)
    assert (options["name"], options["optional"]) == ("options", True)
    members: list[dict[str, Any]] = members_of(options["type"])
    assert not any(member["required"] for member in members)
    assert GIVEN[name].options == {m["name"]: kind(m["type"]) for m in members if m["name"] != "label"}
    assert list(GIVEN[name].options) == sorted(GIVEN[name].options)
    assert form["returns"] == ("sequence<MLOperand>" if GIVEN[name].several else "MLOperand")


def test_options_inherit_the_label_alone() -> None:
    """So the label is read first, then the others by name."""
    used = {form[0]["arguments"][-1]["type"] for form in WANTED.values()} - {"MLOperatorOptions"}
    assert {DICTIONARIES[name]["inherits"] for name in used} == {"MLOperatorOptions"}
    assert [member["name"] for member in DICTIONARIES["MLOperatorOptions"]["members"]] == ["label"]


def test_enumerations() -> None:
    assert {f"ML{name}": list(values) for name, values in idl.ENUMS.items()} == ENUMS
