"""Records behave as the dataclasses of the standard library that they stand for."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field as standard_field, fields, is_dataclass, replace
from typing import Any

import pytest

from opweave.support.records import field, record


@record(eq=True)
class Value:
    """A record."""

    a: int
    b: str = "x"
    c: list[int] = field(default_factory=list, compare=False, repr=False)
    d: int = field(init=False, default=4)


@dataclass(frozen=True, slots=True)
class Standard:
    """The same class of the standard library."""

    a: int
    b: str = "x"
    c: list[int] = standard_field(default_factory=list, compare=False, repr=False)
    d: int = standard_field(init=False, default=4)


@record(frozen=False, slots=False)
class Mutable:
    """A record that changes, whose class has a computed field."""

    a: int
    double: int = field(init=False)

    def __post_init__(self) -> None:
        self.double = 2 * self.a


@record(frozen=False, eq=True, slots=False, kw_only=True)
class Keywords:
    """A record of keywords."""

    a: int = 1


@dataclass(frozen=True, slots=True)
class Derived(Value):
    """A dataclass of the standard library with a record as its base."""

    e: int = 5


def test_record_has_signature_and_text_of_dataclass() -> None:
    assert str(inspect.signature(Value)) == str(inspect.signature(Standard))
    assert repr(Value(1)).replace("Value", "Standard") == repr(Standard(1))
    assert Value.__match_args__ == Standard.__match_args__
    assert Value.__init__.__qualname__ == "Value.__init__"


def test_record_compares_and_hashes_fields() -> None:
    assert Value(1, c=[2]) == Value(1)
    assert Value(1) != Value(2)
    assert Value(1) != Standard(1)
    assert len({Value(1), Value(1), Value(1, "y")}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Keywords())
    assert Mutable(1) != Mutable(1)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
@pytest.mark.parametrize("value", [Value(1, c=[2]), Keywords(a=3), Derived(1)])
def test_record_is_copied_and_pickled(duplicate: Any, value: Any) -> None:
    assert duplicate(value) == value
    assert asdict(duplicate(value)) == asdict(value)


def test_functions_of_dataclasses_take_records() -> None:
    kind: Any = Value  # which `is_dataclass` would narrow
    assert is_dataclass(kind)
    assert [(f.name, f.init, f.repr, f.compare) for f in fields(Value)] == [
        (f.name, f.init, f.repr, f.compare) for f in fields(Standard)
    ]
    assert asdict(Value(1)) == asdict(Standard(1))
    rows: list[tuple[Any, dict[str, Any]]] = [(Value(1), {"b": "y"}), (Derived(1), {"b": "y", "e": 6})]
    for value, changes in rows:
        changed = replace(value, **changes)
        assert type(changed) is type(value)
        assert asdict(changed) == asdict(value) | changes


@pytest.mark.parametrize("value", [Value(1), Derived(1)])
def test_equal_records_are_protected(value: Any) -> None:
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
        value.a = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'a'"):
        del value.a


def test_record_initialises_fields() -> None:
    assert Value(1).c is not Value(1).c
    assert not hasattr(Value(1), "__dict__")
    assert Mutable(3).double == 6
    changing = Mutable(3)
    changing.a = 4
    assert changing.a == vars(changing)["a"] == 4
    for call in (lambda: Value(), lambda: Value(1, e=2), lambda: Keywords(2)):  # type: ignore[call-arg, misc]
        with pytest.raises(TypeError, match=r"__init__\(\)"):
            call()


def test_first_object_of_record_is_like_later_ones() -> None:
    def make() -> Any:
        @record(eq=True)
        class Row:
            a: int
            b: str = "x"
            c: list[int] = field(default_factory=list)
            d: int = field(init=False, default=4)
            e: int = field(init=False)

            def __post_init__(self) -> None:
                object.__setattr__(self, "e", 2 * self.a)

        return Row

    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((1,), {}), ((1, "y", [2]), {}), ((), {"c": [3], "a": 1})]
    for args, kwargs in calls:
        fresh, used = make(), make()
        used(0)
        assert [repr(kind(*args, **kwargs)).partition("(")[2] for kind in (fresh, used, fresh)] == [
            repr(used(*args, **kwargs)).partition("(")[2]
        ] * 3
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}),
        ((1, "y", [], 4), {}),
        ((1,), {"a": 2}),
        ((1,), {"d": 2}),
        ((1,), {"f": 2}),
    ]
    for args, kwargs in wrong:
        messages = set[str]()
        for kind in (make(), make()):
            if not messages:
                kind(0)
            with pytest.raises(TypeError, match=r"__init__\(\)") as raised:
                kind(*args, **kwargs)
            messages.add(str(raised.value))
        assert len(messages) == 1
