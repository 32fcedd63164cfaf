"""Call operations on arrays: validate the arguments, and return arrays that are computed later."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from .. import memory
from ..context.context import MLContext, current_context
from ..context.tensor import Locks, MLTensor, memory_of
from ..context.tensors import check_alive, own_memory
from ..core.dtypes import ANY, FLOAT64, INFO, DataType, cast_number
from ..core.graph import Builder, Desc, Operand, check_desc, title
from ..core.operation import Op
from ..memory.arrays import as_array, contiguous, describe
from ..ops import Operations
from ..ops.constants import constant
from ..support import hints
from ..support.cache import Cache, exact
from ..support.errors import MLError, ValidationError, require
from ..support.lazy_imports import on_arrays
from ..support.names import short_repr
from .array import KINDS, Array, ArrayTemplate, Number, code_of, defer
from .force import name_call, program_of
from .from_memory import adopt, borrow

_OPERAND, _SEQUENCE, _ATTRIBUTE = 1, 2, 0
_NUMBERS = frozenset({float, int})
# Faster than an attribute look-up in each call.
ndarray = np.ndarray
_serials = count()

kinds: Cache[tuple[Any, tuple[int, ...]], int] = Cache(KINDS, raw=True)

scalars: Cache[Any, tuple[np.ndarray, Desc, int]] = Cache(KINDS, raw=True)


class _InGraph(Exception):  # noqa: N818  (never seen by users)
    """An argument is an operand of a graph: the call belongs to its builder."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder


@on_arrays.provide
def call(op: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `op` on arrays, tensors and numbers, and return pending results. An operand among them adds a node to its graph."""
    try:
        template, inputs, label, context, others = _validate(op, args, kwargs)
    except _InGraph as in_graph:
        return op.add(in_graph.builder, args, kwargs)
    except ValidationError as error:
        hint = hints.of_call(op, args, kwargs, error)
        if hint and hint not in str(error):
            raise ValidationError(f"{error}{hint}") from None
        raise
    if others:
        for position, value in enumerate(inputs):
            kind = type(value)
            if kind is Array:
                continue
            if kind is ndarray:
                inputs[position] = adopt(context, value, template.operands[position], template.operand_codes[position])
            elif kind in _NUMBERS:
                inputs[position] = Number(context, *_scalar(op, label, value, template.numbers[position]))
            elif isinstance(value, MLTensor):
                inputs[position] = borrow(value)
    # The frame of `Op.__call__`.
    frame = sys._getframe(1)
    return defer(template, tuple(inputs), label, context, frame.f_back or frame)


def compute_now(op: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `op` on NumPy arrays, tensors and numbers, and compute the results: tensors if an operand is a tensor, else arrays.

    Calls on tensors of deferred contexts are computed when a result is read.
    """
    template, inputs, label, context, _ = _validate(op, args, kwargs)
    check_alive(context)
    has_tensors = False
    for position, value in enumerate(inputs):
        if type(value) is np.ndarray:
            flags = value.flags
            if not (flags.c_contiguous and flags.aligned):
                inputs[position] = contiguous(value)
        elif isinstance(value, MLTensor):
            has_tensors = True
        else:
            inputs[position] = _scalar(op, label, value, template.numbers[position])[0]
    try:
        if has_tensors:
            results = _compute_tensors(template, inputs, context, label)
        else:
            program = template.program or program_of(template, context)
            results = [memory.empty(desc) for desc in template.descs]
            program.run(inputs, results)
    except MLError as error:
        error.args = (name_call(str(error), op.name, label),)
        raise
    return tuple(results) if template.is_tuple else results[0]


def _compute_tensors(template: ArrayTemplate, inputs: list[Any], context: MLContext, label: str) -> list[Any]:
    results = [
        context.create_tensor(desc.data_type, desc.shape, readable=True, writable=True) for desc in template.descs
    ]
    if context._defer_call(template, inputs, results, label):
        return results
    program = template.program or program_of(template, context)
    tensors = {id(value): value for value in inputs if isinstance(value, MLTensor)}
    with Locks([*tensors.values(), *results]):
        subject = title(template.op.name, label)
        sources = [own_memory(context, value, subject) if isinstance(value, MLTensor) else value for value in inputs]
        program.run(sources, [memory_of(tensor) for tensor in results])
    return results


def _validate(
    op: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[ArrayTemplate, list[Any], str, MLContext, bool]:
    """Return template, operands, label and context of a call, and whether an operand is not an `Array`."""
    flags = op.flags
    label = ""
    # Calls with equal keys differ only in the values of their operands. A key consists of the names of the keyword arguments
    # and one entry for each argument. Entries include types, because 1 == True == 1.0.
    key: list[Any] = [len(args)]
    inputs: list[Any] = []
    context: MLContext | None = None
    # Whether an operand is not an `Array`.
    others = False
    arguments: Iterable[tuple[int, Any]] = zip(op.positional_flags, args)  # noqa: B905  (strict=False takes 0.1 us)
    if kwargs:
        arguments = list(arguments)
        for name, value in kwargs.items():
            if name == "label":
                if type(value) is not str:
                    raise ValidationError(f"{op.name}: label must be a string, got {short_repr(value)}")
                label = value
                continue
            key.append(name)
            arguments.append((flags.get(name, _ATTRIBUTE), value))
    for flag, value in arguments:
        if type(value) is Array and flag == _OPERAND:
            key.append(value.code)
            inputs.append(value)
            if context is not value.context:
                if context is not None:
                    raise ValidationError(f"{title(op.name, label)}: the operands belong to several contexts")
                context = value.context
        elif flag == _ATTRIBUTE or value is None:
            key.append(exact(value))
        elif flag == _OPERAND and type(value) in _NUMBERS:
            others = True
            key.append(type(value))
            inputs.append(value)
        elif flag == _OPERAND and type(value) is ndarray:
            others = True
            code = kinds.peek((value.dtype, value.shape))
            key.append(code or _kind(op, label, value, _name(op, args, kwargs, value)))
            inputs.append(value)
        elif flag == _SEQUENCE:
            if not isinstance(value, (list, tuple)):
                raise ValidationError(f"{title(op.name, label)}: takes a sequence of arrays, got {short_repr(value)}")
            key.append(len(value))
            others = True
            for item in value:
                context = _take(op, label, item, key, inputs, context)
        else:
            others = True
            context = _take(op, label, value, key, inputs, context)
    if context is None:
        context = current_context()
    key.append(context._place)
    whole = tuple(key)
    try:
        # `peek` is an attribute, not a method: calling it in one expression is slower.
        find = op.templates.peek
        template = find(whole)
    except TypeError:
        # An attribute is not hashable: validate each call.
        template = None
    if template is None:
        template = op.templates.make(whole, partial(_make_template, op, context, args, kwargs, label))
    return template, inputs, label, context, others


def _scalar(op: Op[..., Any], label: str, value: int | float, data_type: DataType) -> tuple[np.ndarray, Desc, int]:
    """Return a number as NumPy array, descriptor and code. An integer type must be able to represent the number."""
    # As `exact`, but faster: the text distinguishes 0.0 from -0.0.
    key = data_type, type(value), value or str(value)
    find = scalars.peek
    return find(key) or scalars.put(key, _scalar_array(op, label, value, data_type))


def _no_value(value: int | float, data_type: DataType) -> str:
    hint = "; x.cast('float32') converts the array" if isinstance(value, float) else ""
    return f"{short_repr(value)} is not a value of {data_type}{hint}"


def _scalar_array(
    op: Op[..., Any], label: str, value: int | float, data_type: DataType
) -> tuple[np.ndarray, Desc, int]:
    cast = cast_number(value, data_type)
    if INFO[data_type].kind != "f" and cast != value:
        raise ValidationError(f"{title(op.name, label)}: {_no_value(value, data_type)}")
    desc = Desc(data_type, ())
    return np.array(cast, data_type), desc, code_of(desc)


def _take(
    op: Op[..., Any], label: str, value: Any, key: list[Any], inputs: list[Any], context: MLContext | None
) -> MLContext | None:
    """Append an operand of any type to `inputs`, and its entry to `key`."""
    own: MLContext | None = None
    if isinstance(value, Operand):
        raise _InGraph(value.builder)
    if isinstance(value, Array):
        key.append(value.code)
        own = value.context
    elif type(value) in _NUMBERS:
        key.append(type(value))
    elif isinstance(value, MLTensor):
        key.append(code_of(value.desc))
        own = value.context
    else:
        if type(value) is not np.ndarray:
            value = as_array(value, f"{title(op.name, label)}: an operand")
        key.append(kinds.peek((value.dtype, value.shape)) or _kind(op, label, value))
    inputs.append(value)
    if own is not None and context is not None and own is not context:
        raise ValidationError(f"{title(op.name, label)}: the operands belong to several contexts")
    return context or own


def _kind(op: Op[..., Any], label: str, value: np.ndarray, name: str = "an operand") -> int:
    subject = f"{title(op.name, label)}: {name}"
    # The maximum size depends on the back end: the call checks it.
    desc = check_desc(describe(value, subject), 2**63, subject, takes_empty=True)
    return kinds.put((value.dtype, value.shape), code_of(desc))


def _name(op: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> str:
    arguments = {**dict(zip(op.positional, args, strict=False)), **kwargs}
    return next(name for name, other in arguments.items() if other is value)


class _CallRecorder(Operations):
    takes_empty = True

    def __init__(self, context: MLContext, takes_float64: bool) -> None:
        super().__init__()
        self.context, self._max_byte_length = context, context.backend.max_byte_length
        # Arrays have one data type beyond the specification's, which the array API standard requires.
        self.takes_all_types = takes_float64

    def _limits(self, op: Op[..., Any]) -> Any:
        return self.context.backend.limits(op, takes_all=self.takes_all_types)

    def _as_operand(self, value: Any, data_type: DataType) -> Operand:
        if isinstance(value, (int, float)) and INFO[data_type].kind != "f":
            require(cast_number(value, data_type) == value, _no_value(value, data_type))
        return constant(self, cast_number(value, data_type), data_type)


def _is_float64(argument: Any) -> bool:
    """Whether an argument is an array of float64, several of which one is, or the name of this type."""
    if isinstance(argument, (list, tuple)):
        return any(isinstance(item, Array) and item.data_type == FLOAT64 for item in argument)
    return argument == FLOAT64 if isinstance(argument, str) else getattr(argument, "data_type", "") == FLOAT64


def _make_template(
    op: Op[..., Any], context: MLContext, args: tuple[Any, ...], kwargs: Mapping[str, Any], label: str
) -> ArrayTemplate:
    recorder = _CallRecorder(context, any(map(_is_float64, (*args, *kwargs.values()))))
    flags = op.flags
    subject = f"{title(op.name, label)}: an operand"
    slots: dict[str, Any] = dict.fromkeys(op.operands)
    # None for numbers, whose data type follows from the other operands.
    operands: list[Desc | None] = []
    numbers: dict[str, int] = {}

    def stand_in(value: Any) -> Operand:
        desc = value.desc if isinstance(value, (Array, MLTensor)) else describe(as_array(value, subject), subject)
        operands.append(check_desc(desc, context.backend.max_byte_length, subject, takes_empty=True))
        return Operand(recorder, desc, name=f"x{len(operands) - 1}")

    def convert(name: str, value: Any) -> Any:
        if flags.get(name, _ATTRIBUTE) == _ATTRIBUTE or value is None:
            return value
        if flags[name] == _SEQUENCE:
            slots[name] = tuple(range(len(operands), len(operands) + len(value)))
            return tuple(map(stand_in, value))
        slots[name] = len(operands)
        if type(value) in (int, float):
            numbers[name] = len(operands)
            operands.append(None)
            return value
        return stand_in(value)

    converted = [convert(name, value) for name, value in zip(op.positional, args, strict=False)]
    named = {name: convert(name, value) for name, value in kwargs.items() if name != "label"}
    result = op.add(recorder, (*converted, *args[len(converted) :]), {**named, "label": label})
    outputs = result if isinstance(result, tuple) else (result,)
    for output in outputs if recorder.takes_all_types else ():
        require(output.data_type in (*ANY, FLOAT64), f"{title(op.name, label)}: arrays have no {output.data_type}")
    node = outputs[0].node
    for name, position in numbers.items():
        operands[position] = node.inputs[name].desc
    descs = tuple(output.desc for output in outputs)
    operand_descs = tuple(desc for desc in operands if desc is not None)
    return ArrayTemplate(
        op,
        slots,
        node.attributes,
        descs,
        tuple(map(code_of, descs)),
        operand_descs,
        {position: node.inputs[name].data_type for name, position in numbers.items()},
        next(_serials),
        is_tuple=isinstance(result, tuple),
        operand_codes=tuple(map(code_of, operand_descs)),
    )
