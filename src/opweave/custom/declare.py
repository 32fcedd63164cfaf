"""The decorators that declare custom operations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

# `Literal` is for annotations of users' functions, which are evaluated where their shape rules are defined: here.
from typing import Any, Literal as Literal, overload

import numpy as np

from ..core.dtypes import ANY
from ..core.graph import Builder, Desc, Operand, map_operands, title
from ..core.operation import Limits
from ..core.sizes import Size
from ..kernels.expression import descs_of, program_of
from ..ops.recorder import Recorder
from ..support.errors import NO_RESULT, MLError, SignatureError, require, user_code
from ..support.hints import of_operand
from ..support.names import short_repr
from .operation import CustomOp, Declared
from .signatures import annotation_text, check_function, takes_a_function


@takes_a_function(
    "formulas have no limits: data types and shapes follow from them, and `opweave.support.errors.require` checks more"
)
def expression(function: Callable[..., Declared]) -> CustomOp[Declared]:
    """Declare an operation by the formula of one element of its result.

    Args:
        function: takes an `opweave.expr.Traced` for each operand (its positional parameters) and attributes (its
            keyword-only ones), and returns an array, or a tuple of them. It is traced once for each combination of shapes,
            data types and attributes.

    Returns:
        The operation. Shapes, data types and broadcasting follow from the function.

    Raises:
        ValidationError: the function has parameters without a name. Data types, broadcasting and the range of indices are
            checked when it is traced.

    >>> import numpy as np, opweave as ow
    >>> @ow.expression
    ... def scaled_sum(x, y, *, scale: float = 0.5):
    ...     return (x + y) * scale
    >>> scaled_sum(np.float32([1, 2]), np.float32([3, 4])).tolist()
    [2.0, 3.0]
    """

    def rule(builder: Builder, **arguments: Any) -> tuple[Desc, ...] | Desc:
        operands = {name: arguments[name] for name in operation.operands}
        attributes = {name: arguments[name] for name in operation.attributes}
        try:
            program = program_of(operation, descs_of(operands), attributes)
        except MLError:
            raise
        except Exception as error:
            error.add_note(f"for {title(operation.name, arguments['label'])}")
            raise
        descs = tuple(output.desc for output in program.outputs)
        return descs if len(descs) > 1 else descs[0]

    check_function(function)
    operation: CustomOp[Declared] = CustomOp(rule, function, skip=0, limits={})
    operation.widens = False
    operation.expression(function)
    return operation


@takes_a_function("composites have no limits: the operations that they call check their operands")
def composite(function: Callable[..., Declared]) -> CustomOp[Declared]:
    """Declare an operation as a composition of built-in ones.

    Args:
        function: takes a builder, operands (positional) and attributes (keyword-only), and returns an operand, or a tuple
            of them.

    Returns:
        The operation. Engines with a kernel for it use that; otherwise it is decomposed.

    Raises:
        ValidationError: the function has parameters without a name. The operations that it calls are checked when the
            composite is called.

    >>> import numpy as np, opweave as ow
    >>> @ow.composite
    ... def rms_norm(b, x, weight, *, epsilon: float = 1e-6):
    ...     mean = b.reduce_mean(x * x, axes=[x.rank - 1], keep_dimensions=True)
    ...     return x / b.sqrt(mean + epsilon) * weight
    >>> print(rms_norm(np.float32([[3, 4]]), np.float32([1, 1])).round(2))
    [[0.85 1.13]]
    """

    def rule(builder: Builder, **arguments: Any) -> tuple[Desc, ...] | Desc:
        scratch = _Scratch()
        scratch.takes_empty = builder.takes_empty
        scratch.has_names = builder.has_names
        stand_ins = map_operands({name: arguments[name] for name in operation.operands}, scratch.stand_in)
        attributes = {name: arguments[name] for name in operation.attributes}
        with user_code(function, f"while building the composite {title(operation.name, arguments['label'])}"):
            result: Any = function(scratch, **stand_ins, **attributes)
            _require_result(result is not None, NO_RESULT)
            results = result if isinstance(result, (tuple, list)) else (result,)
            for item in results:
                _require_result(
                    isinstance(item, Operand) and item.builder is scratch,
                    f"a composite must return operands that it built, got {short_repr(item)}{of_operand(item)}",
                )
        descs = tuple(item.desc for item in results)
        return descs if len(descs) > 1 else descs[0]

    check_function(function)
    operation: CustomOp[Declared] = CustomOp(rule, function, skip=1, limits={})
    operation.decompose(function)
    return operation


class _Scratch(Recorder):
    _kind = "the builder of a composite"

    def _hint(self, name: str) -> str:
        own = {"input": "operands are parameters of the function", "build": "the function returns its results"}
        return f"; {own[name]}" if name in own else super()._hint(name)

    def stand_in(self, value: Operand) -> Operand:
        """Return an operand of this builder with the same descriptor; a constant keeps its value."""
        name = "" if value.is_constant else f"x{len(self.inputs)}"
        operand = Operand(self, value.desc, name=name, value=value.value)
        if name:
            self.inputs[name] = operand
        return operand


@overload
def op(function: Callable[..., Declared], /) -> CustomOp[Declared]: ...
@overload
def op(**limits: Limits) -> Callable[[Callable[..., Declared]], CustomOp[Declared]]: ...
def op(function: Callable[..., Any] | None = None, /, **limits: Limits) -> Any:
    """Declare an operation by its shape rule; `.kernel`, `.expression` or `.decompose` declare how it is computed.

    Args:
        function: takes a builder, operands (annotated `MLOperand`, or not at all) and attributes, checks them with
            `opweave.support.errors.require`, and returns the descriptor (`opweave.Desc`) of the result, or a tuple of them.
        limits: the allowed data types and ranks of operands, by parameter: `@ow.op(x=ow.Limits(("float32",), ranks=(2, 2)))`.

    Returns:
        The operation; `help` on its methods `kernel`, `expression` and `decompose` says how they are used.

    Raises:
        ValidationError: the function has parameters without a name.

    >>> import numpy as np, opweave as ow
    >>> @ow.op
    ... def cumulative_product(self, x: ow.MLOperand, axis: int):
    ...     return x.desc
    >>> @cumulative_product.kernel("cpu")
    ... def _(x, axis, out):
    ...     np.cumprod(x, axis, out=out)
    >>> cumulative_product(np.float32([1, 2, 3]), 0).tolist()
    [1.0, 2.0, 6.0]
    """
    if function is None:
        return lambda function: _declare(function, limits)
    return _declare(function, {})


RULE_RETURNS = "the shape rule must return a Desc, or a tuple of them"


def _require_result(condition: bool, rule: str) -> None:
    if not condition:
        raise SignatureError(rule)


def _desc_of(desc: Any) -> Desc:
    _require_result(isinstance(desc, Desc), f"{RULE_RETURNS}, got {short_repr(desc)}")
    is_plain = isinstance(desc.data_type, str) and desc.data_type in ANY and isinstance(desc.shape, tuple)
    _require_result(
        is_plain
        and all(isinstance(size, (int, np.integer, Size)) and not isinstance(size, bool) for size in desc.shape),
        f"the shape rule must return a data type of WebNN and a tuple of integers, got {short_repr(desc)}",
    )
    shape: Any = tuple(size if isinstance(size, Size) else int(size) for size in desc.shape)
    return Desc(desc.data_type, shape)


def _declare(function: Callable[..., Any], limits: Mapping[str, Limits]) -> CustomOp[Any]:
    check_function(function)
    parameters = inspect.signature(function).parameters
    takes_label = "label" in parameters
    first = next(iter(parameters.values()), None)
    is_builder = first is None or "Operand" not in annotation_text(first.annotation)
    require(is_builder, f"{function.__name__}: the first parameter is the builder, got {first}")

    def rule(builder: Builder, *, label: str = "", **arguments: Any) -> Any:
        if takes_label:
            arguments["label"] = label
        with user_code(function, f"in the shape rule of {title(operation.name, label)}"):
            result = function(builder, **arguments)
            is_tuple = isinstance(result, tuple)
            _require_result(not is_tuple or len(result) > 0, f"{RULE_RETURNS}, got ()")
            descs = tuple(map(_desc_of, result if is_tuple else (result,)))
        return descs if is_tuple else descs[0]

    operation: CustomOp[Any] = CustomOp(rule, function, skip=1, limits=limits, annotated=True)
    operation.widens = False
    return operation
