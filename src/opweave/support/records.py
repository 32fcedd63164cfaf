"""Classes that only hold values, for modules that every program loads.

>>> @record
... class Range:
...     low: int
...     high: int = 10
>>> Range(3).high, Range(low=1, high=2).low
(10, 1)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")


class _Field:
    """The default of a field, and the arguments of `dataclasses.field`."""

    __slots__ = ("options",)

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options


class _Factory:
    """The default of parameters whose value is made by a function, as signatures show them."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()

SLOW_OBJECTS = 30
"""Number of objects that are initialised field by field, which takes a few microseconds more for each; compiling `__init__`
takes two hundred."""

_set = object.__setattr__


def field(**options: Any) -> Any:
    """Declare a field of a record, with the arguments of `dataclasses.field`.

    >>> @record
    ... class Row:
    ...     cells: list[int] = field(default_factory=list)
    >>> Row().cells
    []
    """
    return _Field(options)


@overload
def record(cls: type[T], /) -> type[T]: ...
@overload
def record(
    *, frozen: bool = True, eq: bool = False, slots: bool = True, kw_only: bool = False
) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def record(cls: type[T] | None = None, /, **options: bool) -> Any:
    """Make a dataclass quickly: `@dataclass` compiles six methods of a class, and takes a large part of a cold start.

    Only `__init__` is compiled, once there are several objects. The functions of `dataclasses`, such as `replace`, take
    records, too.

    Args:
        cls: the class. Its annotations are text, as with `from __future__ import annotations`.
        options: `eq=True` compares, hashes and prints objects by their fields; otherwise an object is equal to itself alone.
            `frozen=False` is for objects that change. To type checkers all others are frozen; those with `eq=True` also raise
            `FrozenInstanceError`. `slots=False` gives objects a `__dict__`; `kw_only=True` takes arguments by name alone.

    >>> @record(eq=True)
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> from dataclasses import replace
    >>> Point(1) == Point(1, 0), replace(Point(1), y=2)
    (True, Point(x=1, y=2))
    """
    return (lambda decorated: _make(decorated, **options)) if cls is None else _make(cls, **options)


def _make(cls: Any, *, frozen: bool = True, eq: bool = False, slots: bool = True, kw_only: bool = False) -> Any:
    annotations: dict[str, str] = cls.__annotations__
    own = vars(cls)
    declared = {name: own[name] for name in annotations if name in own}
    fields = {name: _options(declared, name) for name in annotations}
    protects = frozen and eq
    methods: dict[str, Any] = {
        "__init__": (init := _Initialiser(fields, protects, kw_only)),
        "__match_args__": () if kw_only else tuple(n for n, options in fields.items() if options.get("init", True)),
    }
    if eq:
        methods |= _value_methods(fields, frozen, slots)
    methods = {name: method for name, method in methods.items() if own.get(name) is None}
    defaults = {name: options["default"] for name, options in fields.items() if "default" in options}
    if slots:
        kept = {n: v for n, v in own.items() if n not in declared and n not in ("__dict__", "__weakref__")}
        result = type(cls)(cls.__name__, cls.__bases__, {**kept, **methods, "__slots__": tuple(fields)})
        result.__qualname__ = cls.__qualname__
    else:
        result = cls
        for name in declared.keys() - defaults.keys():
            delattr(cls, name)
        for name, value in (defaults | methods).items():
            setattr(cls, name, value)
    init.owner = result
    for name in ("__dataclass_fields__", "__dataclass_params__"):
        arguments = {"frozen": protects, "eq": eq, "repr": eq, "kw_only": kw_only}
        setattr(result, name, _AsDataclass(result, name, declared, arguments))
    return result


def _options(declared: dict[str, Any], name: str) -> dict[str, Any]:
    if name not in declared:
        return {}
    value = declared[name]
    return value.options if isinstance(value, _Field) else {"default": value}


class _Initialiser:
    """`__init__` of a record until it has several objects: most programs make few objects of most records that they load.

    The first objects are initialised field by field. `__init__` is compiled for later ones, or to be looked at.
    """

    __slots__ = ("_fields", "_kw_only", "_left", "_protects", "owner")

    def __init__(self, fields: dict[str, dict[str, Any]], protects: bool, kw_only: bool) -> None:
        self._fields, self._protects, self._kw_only = fields, protects, kw_only
        self._left = SLOW_OBJECTS
        self.owner: Any = None

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is not None and self._left:
            self._left -= 1
            return partial(self._initialise, instance)
        return self._compile().__get__(instance, owner)

    def _compile(self) -> Any:
        init = self.owner.__dict__["__init__"]
        if init is self:  # otherwise another thread has compiled it
            init = self.owner.__init__ = _compile_init(self.owner, self._fields, self._protects, self._kw_only)
        return init

    def _initialise(self, instance: Any, *args: Any, **kwargs: Any) -> None:
        parameters = [name for name, options in self._fields.items() if options.get("init", True)]
        values = dict(zip(parameters, args, strict=False)) | kwargs
        required = {name for name in parameters if self._fields[name].keys().isdisjoint(("default", "default_factory"))}
        are_apart = len(values) == len(args) + len(kwargs) and not (self._kw_only and args)
        if not (are_apart and required <= values.keys() <= set(parameters)):
            self._compile()(instance, *args, **kwargs)  # raises the error
            return
        for name, options in self._fields.items():
            if name in values:
                _set(instance, name, values[name])
            elif "default_factory" in options:
                _set(instance, name, options["default_factory"]())
            elif "default" in options:
                _set(instance, name, options["default"])
        if hasattr(instance, "__post_init__"):
            instance.__post_init__()


def _compile_init(cls: type, fields: dict[str, dict[str, Any]], protects: bool, kw_only: bool) -> Any:
    """Compile `__init__`, which has the annotations and the defaults of the fields."""
    parameters = ["self", *(["*"] if kw_only else [])]
    defaults: dict[str, Any] = {}
    factories: dict[str, Any] = {}
    lines = []
    for name, options in fields.items():
        has_default = not options.keys().isdisjoint(("default", "default_factory"))
        is_parameter = options.get("init", True)
        if not (is_parameter or has_default):
            continue  # `__post_init__` sets it
        value = name
        if not is_parameter or "default_factory" in options:
            factories[name] = options.get("default_factory") or partial(options.get, "default")
            value = f"_factories[{name!r}]()"
        if is_parameter:
            if value != name:
                value += f" if {name} is _FACTORY else {name}"
            if has_default:
                defaults[name] = options.get("default", _FACTORY)
            parameters.append(f"{name}=None" if has_default else name)
        lines.append(f"_set(self, {name!r}, {value})" if protects else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    body = "\n  ".join(lines or ["pass"])
    source = f"def _(_set, _factories, _FACTORY):\n def __init__({', '.join(parameters)}):\n  {body}\n return __init__"
    scope: dict[str, Any] = {}
    exec(source, vars(sys.modules[cls.__module__]), scope)
    init = scope["_"](_set, factories, _FACTORY)
    if kw_only:
        init.__kwdefaults__ = defaults
    else:
        init.__defaults__ = tuple(defaults.values())
    taken = {name: text for name, text in cls.__annotations__.items() if fields[name].get("init", True)}
    init.__annotations__ = {**taken, "return": None}
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _value_methods(fields: dict[str, dict[str, Any]], frozen: bool, slots: bool) -> dict[str, Any]:
    """Methods that compare, hash, print and protect objects by their fields."""
    shown = [name for name, options in fields.items() if options.get("repr", True)]
    key = attrgetter(*(name for name, options in fields.items() if options.get("compare", True)))

    def equal(self: Any, other: object) -> Any:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    def digest(self: Any) -> int:
        return hash(key(self))

    def show(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in fields]

    def restore(self: Any, state: Iterable[Any]) -> None:
        for name, value in zip(fields, state, strict=True):
            _set(self, name, value)

    methods: dict[str, Any] = {"__eq__": equal, "__hash__": digest if frozen else None, "__repr__": show}
    if frozen:
        methods |= {"__setattr__": _refuse_to_assign, "__delattr__": _refuse_to_delete}
        if slots:
            methods |= {"__getstate__": state, "__setstate__": restore}  # pickle would assign the attributes
    return methods


def _refuse_to_assign(self: Any, name: str, value: Any) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


class _AsDataclass:
    """An attribute that functions of `dataclasses` read, made by `dataclass` when it is first read."""

    __slots__ = ("_arguments", "_declared", "_name", "_owner")

    def __init__(self, owner: type, name: str, declared: dict[str, Any], arguments: dict[str, bool]) -> None:
        self._owner, self._name, self._declared, self._arguments = owner, name, declared, arguments

    def __get__(self, instance: object, owner: type) -> Any:
        import dataclasses

        declared = {
            name: dataclasses.field(**value.options) if isinstance(value, _Field) else value
            for name, value in self._declared.items()
        }
        names = {name: getattr(self._owner, name) for name in ("__annotations__", "__doc__", "__module__")}
        twin: Any = dataclasses.dataclass(**self._arguments)(type(self._owner.__name__, (), {**declared, **names}))
        value = getattr(twin, self._name)
        setattr(self._owner, self._name, value)
        return value
