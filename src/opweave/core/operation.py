"""Operations: how they are declared and called.

An operation is one function. Its signature is the API, the decorator contains the limits of its operands, and the body
validates its arguments and returns the descriptor of the result; the decomposition follows:

    @op(input=Limits(FLOATS, ranks=(1, N)))
    def softmax(self: Builder, input: Operand, axis: int, *, label: str = "") -> Desc:
        \"\"\"Normalise `input` along `axis` so that every slice is positive and sums to one.\"\"\"
        require(axis < input.rank, f"axis must be in [0, {input.rank}), got {axis}")
        return input.desc

    @softmax.decompose
    def _(b: Operations, input: Operand, axis: int) -> Operand: ...

Parameters annotated `Operand` (also `Operand | None`, `Sequence[Operand]`) are operands, the others are attributes.
Attributes are converted by their annotation before the body sees them, as Web IDL does it: `int` is `unsigned long`,
`Long` is `long`, `float` is a finite `double`, `Number` an `MLNumber`, sequences become tuples, a `Literal` must be one of
its values.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import copysign
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, overload
from weakref import WeakKeyDictionary

from ..support import hints
from ..support.cache import Cache, exact
from ..support.errors import SignatureError, ValidationError, require
from ..support.lazy_imports import infer_for_all_sizes, on_arrays
from ..support.names import count_of, either, listing, short_repr
from ..support.records import record
from . import dtypes
from .conversion import ANY_DATA_TYPE, DATA_TYPE, Converter, converter
from .dtypes import ANY, DataType
from .graph import MAX_RANK, Builder, Desc, Operand, check_desc, title
from .size_scope import UnknownSizeError, current_scope
from .sizes import Symbol, is_static
from .value_ranges import ValueRange

P = ParamSpec("P")
R = TypeVar("R", bound="Operand | tuple[Operand, ...]")

N = MAX_RANK
"""Any rank, in the words of the specification's tables."""

TEMPLATES = 1024
"""Maximum number of validated calls on arrays that an operation keeps."""


@record(eq=True)
class Limits:
    """The allowed data types and ranks of an operand (https://www.w3.org/TR/webnn/#allowed-data-types).

    Args:
        data_types: the allowed data types, or the name of the operand whose type it must have.
        ranks: the smallest and the largest allowed rank, or the name of the operand whose rank it must have.

    >>> import numpy as np, opweave as ow
    >>> @ow.op(x=ow.Limits(("float32", "float16"), ranks=(1, 2)))
    ... def sort(self, x: ow.MLOperand):
    ...     return x.desc
    >>> sort(np.int32([2, 1]))
    Traceback (most recent call last):
    opweave.support.errors.ValidationError: sort: x must be float32 or float16, got int32[2]
    """

    data_types: tuple[DataType, ...] | str = ANY
    ranks: tuple[int, int] | str = (0, N)

    def _resolve(self, limits: Mapping[str, Limits]) -> tuple[tuple[DataType, ...], tuple[int, int]]:
        data_types, ranks = self.data_types, self.ranks
        while isinstance(data_types, str):
            data_types = limits[data_types].data_types
        while isinstance(ranks, str):
            ranks = limits[ranks].ranks
        return data_types, ranks


_FOR_CALLS = (
    "add", "alternative", "cast", "casts", "convert", "default", "defaults", "doc", "examples", "explicit_arguments",
    "fillers",
    "flags", "forget_calls", "function", "infer", "inline", "positional", "positional_flags", "range_functions", "sequences",
    "narrow", "size_operands", "source", "templates", "value_ranges", "widened_limits", "widens",
)  # fmt: skip
"""Attributes of operations for calls, back ends and Opweave's declarations, which `dir` does not list."""


_OPERAND = re.compile(r"\bOperand\b")

_OF_SIGNATURES = (
    "parameters", "operands", "attributes", "positional", "defaults", "_converters", "sequences", "flags", "positional_flags",
    "_has_several_results", "__signature__",
)  # fmt: skip
"""Attributes that the members of a family share. Inspecting 120 signatures would add several milliseconds to each start."""

Text: TypeAlias = str | Callable[[], str]
"""A text, or a function that returns it. Few programs read docstrings, and formatting all adds milliseconds to each start."""


def text_of(text: Text) -> str:
    """Return a text, or the result of the function that returns it."""
    return text if isinstance(text, str) else text()


class _Docstring:
    """`__doc__` of operations, formatted when it is first read. `of_class` is the docstring of the class itself."""

    def __init__(self, of_class: str | None) -> None:
        self._of_class = of_class

    def __get__(self, op: Op[..., Any] | None, owner: type) -> str | None:
        if op is None:
            return self._of_class
        op.doc = text_of(op.doc)
        return op.doc

    def __set__(self, op: Op[..., Any], text: Text) -> None:
        op.doc = text


def _differ(value: object, default: object) -> bool:
    if isinstance(value, float) and value == 0 and copysign(1, value) < 0:
        return True  # a default of 0 is positive
    try:
        return bool(value != default)
    except ValueError:  # comparing arrays gives arrays
        return bool(exact(value) != exact(default))


class Op(Generic[P, R]):
    """An operation. Called with a builder and arguments it validates them and adds a node.

    Attributes:
        limits: of operands and results by name: `output`, or `output0`, `output1`, … for several results.
        operands: the names of the parameters that are operands.
        attributes: the names of all other parameters, but `label`.
        parameters: all parameters but the builder, by name.
        decomposition: the function that expresses it by other operations, or None for the core set.
        formula: the function that computes one element of its result (see `opweave.expr`), or None.
        is_derived: whether the decomposition is made from the formula.
        is_alternative: whether the formula is only for compiled loops that are faster than an engine's kernel. Where there is
            no kernel, the operation is decomposed.
        recurrence: the function that returns the recurrence (`expr.recurrence`) that computes the results, given the
            descriptors of operands, and attributes, both by name; None for all other operations.
        kernels: the user's kernels, by name of the device.
        updates: the operand whose memory a result may use, by index of the result.
        is_of_host: whether the host computes it on all devices by its nature, so that this is no fallback.
        bodies: the attributes that are a `Body`, which is compiled as a separate program.
        is_draft: whether only drafts of the specification have the operation; contexts need `drafts=True` for it.
    """

    __doc__ = _Docstring(__doc__)

    parameters: dict[str, inspect.Parameter]
    operands: tuple[str, ...]
    attributes: tuple[str, ...]
    positional: tuple[str, ...]
    defaults: dict[str, Any]
    sequences: set[str]
    flags: dict[str, int]
    positional_flags: tuple[int, ...]
    __signature__: inspect.Signature
    _converters: dict[str, Converter]
    _has_several_results: bool

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        doc: Text,
        limits: Mapping[str, Limits],
        family: Op[..., Any] | None = None,
    ) -> None:
        """Declare an operation by its function. `family` is another operation with this function and signature."""
        self.function, self.name, self.__name__, self.__qualname__ = function, name, name, name
        self.doc, self.__module__ = doc, function.__module__
        self.__wrapped__ = function  # for doctest and `inspect.getsource`
        if family is None:
            self._read_signature(function)
        else:
            for attribute in _OF_SIGNATURES:
                setattr(self, attribute, getattr(family, attribute))
        # Calls on arrays that were validated before.
        self.templates: Cache[Any, Any] = Cache(TEMPLATES, raw=True)
        self.fillers: dict[str, Callable[..., Any]] = {}
        self.casts: dict[str, str] = {}
        first = next(iter(limits), "")
        same = Limits(first, ranks=first)
        self.limits: dict[str, Limits] = {**limits}
        if not self._has_several_results and "output" not in limits:
            self.limits["output"] = same
        self.decomposition: Callable[..., Any] | None = None
        self.formula: Callable[..., Any] | None = None
        self.recurrence: Callable[[Mapping[str, Any], Mapping[str, Any]], Any] | None = None
        self.is_derived = self.is_alternative = self.is_draft = self.is_of_host = False
        self.kernels: dict[str, Any] = {}
        self.range_functions: dict[str, Callable[..., ValueRange]] = {}
        self.updates: dict[int, str] = {}
        self.bodies: tuple[str, ...] = ()
        self.narrow: frozenset[str] = frozenset()
        self.widens = True
        self._all_limits: dict[str, Limits] | None = None
        self.size_operands: frozenset[str] = frozenset()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__doc__ = _Docstring(cls.__doc__)  # type: ignore[assignment]

    def _read_signature(self, function: Callable[..., Any]) -> None:
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[1:]
        self.parameters = {p.name: p for p in parameters}
        self.operands = tuple(p.name for p in parameters if self._is_operand(p))
        self.attributes = tuple(p.name for p in parameters if p.name not in self.operands and p.name != "label")
        self.positional = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        self.defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._converters = {p.name: self._converter(p) for p in parameters if p.name in self.attributes}
        self.sequences = {p.name for p in parameters if p.name in self.operands and "Sequence[" in p.annotation}
        # The kinds of parameters for calls on arrays (2: a sequence of operands, 1: an operand, 0: an attribute).
        self.flags = {
            n: 2 if n in self.sequences else int(n in self.operands) for n in (*self.operands, *self.attributes)
        }
        self.positional_flags = tuple(self.flags[name] for name in self.positional)
        results = str(signature.return_annotation)
        self._has_several_results = "tuple" in results
        self.__signature__ = signature.replace(return_annotation=results.replace("Desc", "MLOperand"))

    def __repr__(self) -> str:
        return f"<Op {self.name}>"

    def __dir__(self) -> list[str]:
        return listing(self, _FOR_CALLS)

    def __reduce__(self) -> str:
        """Pickled and copied by name, as functions are."""
        return self.__qualname__

    @property
    def widened_limits(self) -> Mapping[str, Limits]:
        """The limits with data types beyond the specification, which ONNX models and drafts have (`dtypes.extend_types`)."""
        if not self.widens:
            return self.limits
        if self._all_limits is None:
            self._all_limits = {name: self._widen(name, limit) for name, limit in self.limits.items()}
        return self._all_limits

    def _widen(self, name: str, limit: Limits) -> Limits:
        types = limit.data_types
        return limit if isinstance(types, str) else Limits(dtypes.extend_types(types, name in self.narrow), limit.ranks)

    def named(self, name: str, doc: str, example: str = "", /, **limits: Limits) -> Op[P, R]:
        """Make another operation of the same function, with other `limits`.

        `doc` replaces the first line of the docstring; in the others, `{x}` stands for the data types of an operand `x`.
        """
        limits, source = {**self.limits, **limits}, self.doc

        def member_doc() -> str:
            family = inspect.cleandoc(text_of(source)).partition("\n")[2]
            for operand, limit in limits.items():
                if not isinstance(limit.data_types, str):
                    types = "any data type" if limit.data_types == ANY else either(limit.data_types)
                    family = family.replace(f"{{{operand}}}", types)
            return f"{doc}\n{family}\n{inspect.cleandoc(example)}".rstrip()

        member: Op[P, R] = Op(self.function, name, member_doc, limits, self)
        member.fillers, member.casts, member.range_functions = self.fillers, self.casts, self.range_functions
        member.updates = self.updates
        return member

    def decompose(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Declare the decomposition: `function(b, ...)` takes a builder, and operands and attributes by name."""
        self.decomposition, self.is_derived = function, False
        return function

    def expression(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Declare the formula of an element: `function(...)` takes arrays of `opweave.expr` and attributes by name."""
        self.formula, self.is_alternative = function, False
        return function

    def alternative(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Declare a formula that is used only where it beats an engine's kernel (see `compile.winners`)."""
        self.formula, self.is_alternative = function, True
        return function

    def _is_operand(self, parameter: inspect.Parameter) -> bool:
        return _OPERAND.search(parameter.annotation) is not None

    def _converter(self, parameter: inspect.Parameter) -> Converter:
        return converter(parameter.annotation, self.function)

    def default(self, attribute: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declare a function for the default of an attribute that depends on other parameters, which it takes by name.

        The body, rules and decompositions get the value instead of None.
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.fillers[attribute] = function
            return function

        return register

    def cast(self, *attributes: str, like: str) -> None:
        """Declare attributes that are cast to the data type of the operand `like` (https://www.w3.org/TR/webnn/#cast)."""
        self.casts.update(dict.fromkeys(attributes, like))

    def value_range(self, operand: str) -> Callable[[Callable[..., ValueRange]], Callable[..., ValueRange]]:
        """Declare a function that returns the range of an integer operand; it takes other parameters by name.

        Constants are checked when a graph is built, and inputs in the host's memory before it runs. Values that the graph
        computes are clamped. Inputs in the memory of a device are taken as they are.
        """
        is_one = operand in self.operands and operand not in self.sequences
        require(is_one, f"{self.name}: value_range takes the name of an operand, got {operand!r}")

        def register(function: Callable[..., ValueRange]) -> Callable[..., ValueRange]:
            self.range_functions[operand] = function
            return function

        return register

    def value_ranges(self, arguments: Mapping[str, Any]) -> Iterator[tuple[str, ValueRange]]:
        """The operands of a call whose values have a range, by name, without absent ones."""
        for name, function in self.range_functions.items():
            if arguments[name] is not None:
                yield name, call_with(function, arguments)

    def in_place(self, **operands: str) -> None:
        """Declare results that may use the memory of an operand: `in_place(output1="past_key")`.

        Callers may then pass the same memory for an input and an output of one data type and shape. Kernels that support it
        update this memory; otherwise, the result is computed in other memory and copied.
        """
        for result, operand in operands.items():
            number = result.removeprefix("output") or "0"
            if not number.isdigit() or operand not in self.operands or operand in self.sequences:
                raise ValidationError(
                    f"{self.name}: in_place takes the name of an operand for output, output0, …; got {result}={operand!r}"
                )
            self.updates[int(number)] = operand

    def explicit_arguments(self, arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """The arguments that differ from their defaults, in order, for printing."""
        for name in self.parameters:
            default = self.defaults.get(name, self)
            if name in self.casts and isinstance(default, (int, float)):
                default = dtypes.cast_number(default, arguments[self.casts[name]].data_type)
            if name in arguments and _differ(arguments[name], default):
                yield name, arguments[name]

    @overload
    def __get__(self, instance: None, owner: type) -> Op[P, R]: ...
    @overload
    def __get__(self, instance: Builder, owner: type) -> Callable[P, R]: ...
    def __get__(self, instance: Builder | None, owner: type) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    @overload
    def __call__(self, builder: Builder, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any: ...
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Add the operation to a graph, or compute it.

        Called with a builder or with operands, it validates the arguments, adds a node, and returns its result. Called with
        arrays, tensors and numbers, it returns an array that is computed when its values are read (`opweave.Array`).
        """
        if args and isinstance(args[0], Builder):
            return self.add(args[0], args[1:], kwargs)
        return (on_arrays.function or on_arrays.load())(self, args, kwargs)

    def add(self, builder: Builder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        label = kwargs.get("label", "")
        if not isinstance(label, str):
            raise ValidationError(f"{self.name}: label must be a string, got {short_repr(label)}")
        try:
            inputs, attributes = self._convert(builder, args, kwargs)
            builder._check_open()  # after the conversions, as in Web IDL: wrong types are a TypeError in any case
            attributes, result = self.infer(builder, inputs, attributes, label)
        except ValidationError as error:
            hint = hints.of_call(self, args, kwargs, error)
            raise type(error)(f"{title(self.name, label)}: {error}{hint}") from None
        outputs = builder._add_node(self, inputs, attributes, label, descs_of(result))
        return outputs[0] if isinstance(result, Desc) else outputs

    def infer(
        self, builder: Builder, inputs: Mapping[str, Any], attributes: dict[str, Any], label: str
    ) -> tuple[dict[str, Any], Desc | Sequence[Desc]]:
        """Check arguments, and return the attributes with their defaults, and the descriptors of the results."""
        limits = builder._limits(self)
        self._check_limits(limits, inputs)
        if not self.widens:
            for name, operand in ((n, o) for n, o in inputs.items() if isinstance(o, Operand)):
                if operand.data_type not in ANY:
                    raise ValidationError(f"{name} must be {either(ANY)}, got {operand.desc}")
        for name, like in self.casts.items():
            if attributes[name] is not None:
                attributes[name] = dtypes.cast_number(attributes[name], inputs[like].data_type)

        def evaluate(inputs: Mapping[str, Any], attributes: dict[str, Any]) -> tuple[dict[str, Any], Any]:
            return self._evaluate(builder, inputs, attributes, label)

        if builder.has_names:
            attributes, result = infer_for_all_sizes(evaluate, inputs, attributes, self.fillers)
        else:
            attributes, result = evaluate(inputs, attributes)
        self._check_results(limits, descs_of(result))
        return attributes, result

    def _evaluate(
        self, builder: Builder, inputs: Mapping[str, Any], attributes: dict[str, Any], label: str
    ) -> tuple[dict[str, Any], Desc | Sequence[Desc]]:
        for name, fill in self.fillers.items():
            if attributes[name] is None:
                with suppress(UnknownSizeError):  # such as a scale of 1 / sqrt(size), which the graph's sizes will give
                    attributes[name] = call_with(fill, {**inputs, **attributes})
        result: Desc | Sequence[Desc] = self.function(builder, **inputs, **attributes, label=label)
        for desc in descs_of(result):
            check_desc(desc, builder._max_byte_length, "the result", builder.takes_empty)
        for name, values in self.value_ranges({**inputs, **attributes}) if self.range_functions else ():
            scope = current_scope.get()  # without one of a run, the bounds may be known only when the graph runs
            is_known = is_static((values.low, values.high)) or (scope is not None and scope.is_of_run)
            if inputs[name].is_constant and is_known:
                values.check(name, inputs[name].value)
        return attributes, result

    def _convert(
        self, builder: Builder, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if len(args) > len(self.positional):
            raise SignatureError(f"takes {count_of(len(self.positional), 'positional argument')}, got {len(args)}")
        arguments = dict(zip(self.positional, args, strict=False))
        for name, value in kwargs.items():
            if name in arguments:
                raise SignatureError(f"{name} is given twice")
            if name not in self.parameters:
                raise SignatureError(f"has no argument {name!r}; it takes {', '.join(self.parameters)}")
            arguments[name] = value
        arguments = {**self.defaults, **arguments}
        if len(arguments) < len(self.parameters):
            name = next(name for name in self.parameters if name not in arguments)
            raise SignatureError(f"the argument {name!r} is missing")

        inputs: dict[str, Any] = {}
        for name in self.operands:
            value = arguments[name]
            if name in self.sequences:
                if isinstance(value, (str, Operand)) or not isinstance(value, Sequence):
                    raise ValidationError(f"{name} must be a sequence of operands, got {short_repr(value)}")
                inputs[name] = tuple(
                    item
                    if isinstance(item, Operand) and item.builder is builder
                    else _operand(builder, f"{name}[{i}]", item, self._number_type(name, arguments))
                    for i, item in enumerate(value)
                )
            elif isinstance(value, Operand) and value.builder is builder:
                inputs[name] = value
            elif value is None and name in self.defaults:
                inputs[name] = None
            else:
                inputs[name] = _operand(builder, name, value, self._number_type(name, arguments))
        attributes: dict[str, Any] = {}
        for name in self.attributes:
            value = arguments[name]
            absent = value is None and name in self.defaults and self.defaults[name] is None
            convert = self._converters[name]
            if convert is DATA_TYPE and builder.takes_all_types:
                convert = ANY_DATA_TYPE
            attributes[name] = None if absent else convert(name, value)
        return inputs, attributes

    def convert(self, attribute: str, value: Any) -> Any:
        """The value of an attribute, converted by its annotation."""
        return self._converters[attribute](attribute, value)

    def _number_type(self, name: str, arguments: Mapping[str, Any]) -> DataType | None:
        """The data type for a number passed as `name`: the data type of an operand with which `name` must agree."""
        kind = self._kind(name)
        for other in self.operands:
            value = arguments[other]
            if isinstance(value, Operand) and self._kind(other) == kind:
                return value.data_type
        return None

    def _kind(self, operand: str) -> str:
        """The operand that determines the data type of `operand`; empty if nothing limits it."""
        limit = self.limits.get(operand)
        if limit is None:
            return ""
        return limit.data_types if isinstance(limit.data_types, str) else operand

    def _check_limits(self, limits: Mapping[str, Limits], inputs: Mapping[str, Any]) -> None:
        for name, value in inputs.items():
            limit = limits.get(name)
            if value is None or limit is None:
                continue
            data_types, ranks = limit.data_types, limit.ranks
            for operand in value if isinstance(value, tuple) else (value,):
                desc = operand.desc
                if isinstance(data_types, str):
                    expected = _first(inputs, data_types).data_type
                    if desc.data_type != expected:
                        raise ValidationError(f"{name} must have the data type of {data_types}, {expected}, got {desc}")
                elif desc.data_type not in data_types:
                    raise ValidationError(f"{name} must be {either(data_types)}, got {desc}")
                if isinstance(ranks, str):
                    rank = _first(inputs, ranks).rank
                    if len(desc.shape) != rank:
                        raise ValidationError(f"{name} must have the rank of {ranks}, {rank}, got {desc}")
                elif not ranks[0] <= len(desc.shape) <= ranks[1]:
                    low, high = ranks
                    wanted_rank = f"rank {low}" if low == high else f"a rank in [{low}, {high}]"
                    raise ValidationError(f"{name} must have {wanted_rank}, got {desc}")

    def _check_results(self, limits: Mapping[str, Limits], descs: Sequence[Desc]) -> None:
        for number, desc in enumerate(descs):
            limit = limits.get("output" if "output" in limits else f"output{number}")
            if limit is not None and not isinstance(limit.data_types, str) and desc.data_type not in limit.data_types:
                raise ValidationError(f"the result must be {either(limit.data_types)}, got {desc}")


def descs_of(result: Desc | Sequence[Desc]) -> tuple[Desc, ...]:
    """All descriptors that the function of an operation returns."""
    return (result,) if isinstance(result, Desc) else tuple(result)


def _first(inputs: Mapping[str, Any], name: str) -> Operand:
    """An operand, or the first of several, which others must be like."""
    value = inputs[name]
    require(value != (), f"{name} must have at least one operand, got none")
    operand: Operand = value[0] if isinstance(value, tuple) else value
    return operand


def _operand(builder: Builder, name: str, value: Any, number_type: DataType | None) -> Operand:
    """The operand for an argument; arrays become constants, as do numbers if their data type is known."""
    if isinstance(value, Operand):
        if value.builder is not builder:
            raise ValidationError(f"{name} is an operand of another builder: {short_repr(value)}")
        return value
    is_number = isinstance(value, (int, float, Symbol)) and not isinstance(value, bool)
    if number_type is None and hasattr(value, "__array__"):
        number_type = dtypes.of_array(value.__array__().dtype, builder.takes_all_types)
    if number_type is None or not (is_number or hasattr(value, "__array__")):
        raise ValidationError(f"{name} must be an operand, got {short_repr(value)}{hints.of_operand(value)}")
    return builder._as_operand(value, number_type)


def call_with(function: Callable[..., Any], arguments: Mapping[str, Any], *first: Any) -> Any:
    """Call `function(*first, ...)` with the `arguments` that its parameters name, or with all if it has a `**` parameter."""
    names = parameter_names(function)[len(first) :]
    return function(*first, **(arguments if "**" in names else {name: arguments[name] for name in names}))


# Weak references, because operations of users may be deleted.
_names: WeakKeyDictionary[Callable[..., Any], tuple[str, ...]] = WeakKeyDictionary()


def _plain_code(function: Callable[..., Any]) -> types.CodeType | None:
    """The code of a function if it lists all parameters, without "*": inspecting a signature takes 50 us."""
    is_plain = type(function) is types.FunctionType and not {"__wrapped__", "__signature__"} & function.__dict__.keys()
    code: types.CodeType | None = function.__code__ if is_plain else None
    return None if code is None or code.co_flags & inspect.CO_VARARGS else code


def parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's parameters, cached; "**" for one that takes all others."""
    names = _names.get(function)
    if names is None and (code := _plain_code(function)) is not None:
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        names = _names[function] = (*names, "**") if code.co_flags & inspect.CO_VARKEYWORDS else names
    elif names is None:
        parameters = inspect.signature(function).parameters.values()
        names = _names[function] = tuple("**" if p.kind is p.VAR_KEYWORD else p.name for p in parameters)
    return names


# ---------------------------------------------------------------------------------------------------------------------
# Declaration


class _Declare(Protocol):
    @overload
    def __call__(self, function: Callable[Concatenate[Builder, P], Desc], /) -> Op[P, Operand]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Builder, P], tuple[Desc, ...]], /
    ) -> Op[P, tuple[Operand, ...]]: ...


def op(**limits: Limits) -> _Declare:
    """Declare an operation; `limits` are the allowed data types and ranks of each operand (see `Limits`).

    The result is like the first operand, unless `output=` (or `output0=`, `output1=`, … for several results) says otherwise.
    """

    def declare(function: Callable[..., Any], /) -> Any:
        return Op(function, function.__name__, lambda: inspect.getdoc(function) or "", limits)

    return declare
