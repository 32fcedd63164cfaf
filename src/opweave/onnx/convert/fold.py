"""Fold constants: compute nodes on known values while the graph is built.

NumPy computes operators that are frequent in the shape arithmetic of exported models, in microseconds. ONNX Runtime computes
the others, in about a millisecond for each node. An evaluator takes the node's inputs as arrays and its attributes as
keywords, and returns the only output. It raises `Declined` if NumPy and ONNX Runtime might differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from ...core.dtypes import INFO
from ...core.size_terms import interval
from ...core.sizes import Size, is_static
from ...support.errors import MLError, OperationError
from ..model.model import Model
from ..model.protobuf import (
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    array_of,
    attribute_value,
    domain_of,
    dtype_of,
    element_type_of,
    sub_graphs,
    tensor_type,
)
from ..model.registry import CONVERTERS, Converter, Unsupported, by_name
from ..model.values import FOLD_BYTES, Constant, NamedSizes, SizeData, Value, shape_of
from .conversion import TAKES_NAMES, TAKES_SIZE_DATA, keywords_of, result_types, whole_limits
from .inference import model_of_node, result_bytes
from .operators.logic import BOOLEAN

LARGE_BYTES = 2**24
"""Results up to this size are folded; the graph computes larger ones, such as generated weights."""

GENERATED_BYTES = 65536
"""Fold ConstantOfShape up to this size. The engine fills larger results itself, and frees them after packing, like weights."""

NEVER = frozenset(
    {
        # Random, or with state.
        *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"),
        *("Bernoulli", "Multinomial", "Dropout"),
        # Weights stay quantised: the engine fuses these operators with their readers.
        *("DequantizeLinear", "QuantizeLinear"),
    }
)


class Declined(Exception):  # noqa: N818  (not an error: ONNX Runtime computes the node)
    """NumPy might compute this node differently from ONNX Runtime."""


class TooLarge(Exception):  # noqa: N818
    """The result is too large to be folded."""


def fold(
    node: NodeProto, values: Sequence[Value | None], model: Model, infer: Callable[[], Mapping[str, TypeProto]]
) -> list[Any] | None:
    """Compute a node, if its results depend on small constants only; None if the node stays in the graph."""
    if domain_of(node):
        return None
    operation = model.operation(node)
    if operation is None and node.op_type in ("Shape", "Size") and (shape := shape_of(values[0])) is not None:
        return [_shape(node, shape) if is_static(shape) else _named_shape(node, shape)]
    if operation is None and node.op_type == "Constant" and not values:
        constant = model.constant(node)
        return None if constant is None else [constant]
    constants = [value for value in values if isinstance(value, Constant)]
    if not values or len(constants) < len(values) - values.count(None):
        return None
    if operation is None and whole_limits(node, values) is not values:
        return None
    if operation is None and any(isinstance(value, NamedSizes) for value in constants):
        named = _with_names(node, values)
        if named is not None or node.op_type in TAKES_NAMES:
            return None if named is None else [named]
    if operation is None and any(isinstance(value, (NamedSizes, SizeData)) for value in constants):
        data = _size_data(node, values, model)
        if data is not None:
            return [data]
    if node.op_type in NEVER or sub_graphs(node):
        return None
    if sum(value.array.nbytes for value in constants) > FOLD_BYTES:
        return None
    arrays = [value.array if isinstance(value, Constant) else None for value in values]
    if operation is not None:
        return with_operation(operation, node, arrays, model, infer)
    try:
        return with_numpy(node, arrays)
    except TooLarge:
        return None
    except Declined:
        is_large = result_bytes(node, infer()) > min(LARGE_BYTES, model.limits.folded_bytes)
        return None if is_large else with_engine(node, arrays, model.proto)


def _size_data(node: NodeProto, values: Sequence[Value | None], model: Model) -> SizeData | None:
    """The result of an operator on sizes, which is no formula; None if WebNN does not compute it."""
    if node.op_type not in TAKES_SIZE_DATA or len(node.output) != 1:
        return None
    samples = [
        np.ones(value.shape, value.dtype)
        if isinstance(value, NamedSizes)
        else value.sample
        if isinstance(value, SizeData)
        else value.array
        if isinstance(value, Constant)
        else None
        for value in values
    ]
    try:
        (sample,) = with_numpy(node, samples)
    except (Declined, TooLarge):
        return None
    if any(array is not None and array.dtype.name not in INFO for array in (*samples, sample)):
        return None

    def compute() -> np.ndarray:
        arrays = [value.array if isinstance(value, Constant) else None for value in values]
        try:
            results: list[np.ndarray] | None = with_numpy(node, arrays)
        except Declined:  # for these numbers
            results = with_engine(node, arrays, model.proto)
        if results is None:
            raise OperationError(f"{node.op_type} {node.name!r}: ONNX Runtime does not compute it for these sizes")
        (result,) = results
        return result

    return SizeData(node, values, sample, compute)


def _named_shape(node: NodeProto, shape: Sequence[int]) -> NamedSizes | np.ndarray:
    sizes = math.prod(shape) if node.op_type == "Size" else _part(node, shape)
    if isinstance(sizes, Sequence) and is_static(sizes):
        return np.array(sizes, np.int64)
    return NamedSizes(_of_sizes(sizes), np.dtype(np.int64))


def _part(node: NodeProto, shape: Sequence[int]) -> Sequence[int]:
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    return shape[bounds.get("start", 0) : bounds.get("end", len(shape))]


def _of_sizes(values: Any) -> np.ndarray:
    """An array of sizes and integers; `np.array` would ask the sizes for their numbers."""
    items = values if isinstance(values, Sequence) else [values]
    array = np.empty(len(items), object)
    array[:] = items
    return array if isinstance(values, Sequence) else array.reshape(())


def _shape(node: NodeProto, shape: Sequence[int]) -> np.ndarray:
    if node.op_type == "Size":
        return np.array(math.prod(shape), np.int64)
    return np.array(_part(node, shape), np.int64)


def with_numpy(node: NodeProto, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """Compute a node with NumPy; `arrays` has None for inputs that are absent.

    Raises:
        Declined: NumPy might compute it differently, or the node is invalid.
        TooLarge: the outputs would take more than `LARGE_BYTES`.
    """
    function = EVALUATORS.get(node.op_type)
    if function is None or any(a is not None and a.dtype.kind not in "biuf" for a in arrays):
        raise Declined
    attributes = {attribute.name: attribute_value(attribute) for attribute in node.attribute}
    if node.op_type in SAME_TYPES and len({array.dtype for array in arrays if array is not None}) > 1:
        raise Declined  # ONNX does not convert mixed types, NumPy would
    try:
        with np.errstate(all="ignore"):
            result = np.asarray(function(*arrays, **attributes), order="C")
    except (Unsupported, TypeError, ValueError, IndexError, OverflowError, MemoryError) as error:
        raise Declined from error  # an invalid node; the engine reports the reason
    if len(node.output) != 1:
        raise Declined
    return [result]


def with_operation(
    operation: Converter,
    node: NodeProto,
    arrays: Sequence[np.ndarray | None],
    model: Model,
    infer: Callable[[], Mapping[str, TypeProto]],
) -> list[np.ndarray] | None:
    """Compute a node with the user's operation; None if the node stays in the graph.

    It stays if the operation fails, if it returns too few results or wrong data types, or if an input is bool.
    """
    if node.op_type in BOOLEAN or any(array is not None and array.dtype == bool for array in arrays):
        return None
    try:
        returned = operation.function(None, *arrays, **keywords_of(operation, node, [], model))
    except (Unsupported, MLError):
        return None
    results = [np.asarray(result) for result in (returned if isinstance(returned, tuple) else (returned,))]
    if len(results) < len(node.output):
        return None
    types = [0 if array is None else element_type_of(array.dtype) for array in arrays]
    declared = result_types(node, types, results, infer)
    for name, result in zip(node.output, results, strict=False):
        if name in declared and declared[name].tensor_type.elem_type not in (0, element_type_of(result.dtype)):
            return None
    return results


def with_engine(node: NodeProto, arrays: Sequence[np.ndarray | None], proto: ModelProto) -> list[np.ndarray] | None:
    """Compute a node of a model with ONNX Runtime; None if that fails (the node then stays in the graph)."""
    from ...backends.onnxruntime.model import evaluate

    feed = {name: array for name, array in zip(node.input, arrays, strict=True) if array is not None}
    types = {name: tensor_type(element_type_of(array.dtype), array.shape) for name, array in feed.items()}
    computed = evaluate(model_of_node(node, types, proto), feed)
    if computed is None or not all(isinstance(array, np.ndarray) for array in computed):
        return None
    results = iter(computed)
    return [next(results) if name else np.empty(0) for name in node.output]


# Evaluators ----------------------------------------------------------------------------------------------------------


def _check_size(shape: Sequence[int], dtype: np.dtype[Any]) -> tuple[int, ...]:
    if math.prod(int(size) for size in shape) * dtype.itemsize > LARGE_BYTES:
        raise TooLarge
    return tuple(int(size) for size in shape)


def _cast(x: np.ndarray, *, to: int, saturate: int = 1, round_mode: bytes = b"") -> Any:
    dtype = dtype_of(to)
    if dtype.kind not in "biuf":
        raise Declined
    if x.dtype.kind == "f" and dtype.kind in "iu":
        info = np.iinfo(dtype)
        if not (np.isfinite(x).all() and (x > info.min - 1.0).all() and (x < info.max + 1.0).all()):
            raise Declined  # the result is undefined
    return x.astype(dtype)


def _div(a: np.ndarray, b: np.ndarray) -> Any:
    if a.dtype.kind == "f":
        return a / b
    if not b.all():
        raise Declined
    quotient = a // b
    return quotient + ((quotient < 0) & (quotient * b != a)).astype(a.dtype)  # toward zero, not down


def _gather(data: np.ndarray, indices: np.ndarray, *, axis: int = 0) -> Any:
    kept = [size for at, size in enumerate(data.shape) if at != axis % data.ndim]
    _check_size([*kept, *indices.shape], data.dtype)
    return np.take(data, indices, axis)


def _range(start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> Any:
    if start.dtype.kind == "f":
        raise Declined  # the engine adds step by step, and rounds each time
    numbers = range(start.item(), limit.item(), delta.item())
    _check_size([len(numbers)], start.dtype)
    return np.array(numbers, start.dtype)


def _constant_of_shape(shape: np.ndarray, *, value: TensorProto | None = None) -> Any:
    fill = np.zeros((), np.float32) if value is None else array_of(value).reshape(())
    sizes = _check_size(shape.tolist(), fill.dtype)
    if math.prod(sizes) * fill.itemsize > GENERATED_BYTES:
        raise TooLarge
    return np.full(sizes, fill)


def _expand(data: np.ndarray, shape: np.ndarray) -> Any:
    target = np.broadcast_shapes(data.shape, tuple(shape.tolist()))
    return np.broadcast_to(data, _check_size(target, data.dtype))


def _pad(data: np.ndarray, pads: np.ndarray, value: np.ndarray | None = None, *, mode: bytes = b"constant") -> Any:
    if mode != b"constant" or not 0 < len(pads) == 2 * data.ndim or (pads < 0).any():
        raise Declined  # the engine has no padding of scalars
    if value is not None and value.dtype != data.dtype:
        raise Declined
    before, after = pads.reshape(2, data.ndim).tolist()
    _check_size(np.add(data.shape, before) + after, data.dtype)
    fill = 0 if value is None else value.item()
    return np.pad(data, list(zip(before, after, strict=True)), constant_values=fill)


def _where(condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> Any:
    if x.dtype != y.dtype:
        raise Declined
    _check_size(np.broadcast_shapes(condition.shape, x.shape, y.shape), x.dtype)
    return np.where(condition, x, y)


def _least_or_largest(function: Callable[..., Any]) -> Callable[..., Any]:
    def evaluate(*arrays: np.ndarray) -> Any:
        if any(array.dtype.kind not in "iuO" for array in arrays):
            raise Declined  # zeros have signs, and NaN its own rules
        return reduce(function, arrays)

    return evaluate


def _converter(op_type: str) -> Callable[..., Any]:
    """Evaluate an operator by its converter, which needs no builder if all inputs are arrays."""
    return lambda *arrays, **attributes: CONVERTERS["", op_type].function(None, *arrays, **attributes)


EVALUATORS: Mapping[str, Callable[..., Any]] = {
    **by_name(np.add, np.ceil, np.equal, np.floor, np.greater, np.less, np.sqrt),
    "Abs": np.abs,
    "And": np.logical_and,
    "Cast": _cast,
    "Concat": lambda *arrays, axis: np.concatenate(arrays, axis),
    "ConstantOfShape": _constant_of_shape,
    "Div": _div,
    "Expand": _expand,
    "Gather": _gather,
    "GreaterOrEqual": np.greater_equal,
    "LessOrEqual": np.less_equal,
    "Max": _least_or_largest(np.maximum),
    "Min": _least_or_largest(np.minimum),
    "Mul": np.multiply,
    "Neg": np.negative,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Pad": _pad,
    "Range": _range,
    "Sub": np.subtract,
    "Transpose": lambda x, perm=None: np.transpose(x, perm),
    "Where": _where,
    **{op_type: _converter(op_type) for op_type in ("Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze")},
}

NAMED = frozenset(
    {
        *(
            "Add",
            "Cast",
            "Concat",
            "Div",
            "Equal",
            "Expand",
            "Flatten",
            "Gather",
            "Greater",
            "GreaterOrEqual",
            "Identity",
        ),
        *("Less", "LessOrEqual", "Max", "Min", "Mul", "Neg", "Reshape", "Slice", "Squeeze", "Sub", "Transpose"),
        *("Unsqueeze", "Where"),
    }
)
"""Operators that NumPy computes on arrays of sizes that are known only when the graph runs."""


def _with_names(node: NodeProto, values: Sequence[Value | None]) -> NamedSizes | np.ndarray | None:
    """Compute a node with names in place of sizes; None if it takes their numbers."""
    shapes = any(isinstance(value, NamedSizes) for value in values[1:]) and node.op_type in TAKES_NAMES
    if node.op_type not in NAMED or shapes or len(node.output) != 1:
        return None
    dtype = next(value.dtype for value in values if isinstance(value, NamedSizes))
    arrays: list[Any] = [
        value.symbols if isinstance(value, NamedSizes) else value.array if isinstance(value, Constant) else None
        for value in values
    ]
    attributes = {attribute.name: attribute_value(attribute) for attribute in node.attribute}
    if node.op_type == "Cast":
        dtype = dtype_of(attributes["to"])
        return NamedSizes(arrays[0], dtype) if dtype.kind in "iu" and dtype.itemsize > 2 else None
    if node.op_type == "Div" and not _is_rounded_down(*arrays):
        return None
    function: Callable[..., Any] = np.floor_divide if node.op_type == "Div" else EVALUATORS[node.op_type]
    try:
        result = np.asarray(function(*arrays, **attributes))
    except (Declined, TooLarge, Unsupported, TypeError, ValueError, IndexError):
        return None
    if result.dtype != object:
        return result
    if any(isinstance(item, Size) for item in result.flat):
        return NamedSizes(result, dtype)
    return np.array(result.tolist(), dtype)


def _is_rounded_down(a: Any, b: Any) -> bool:
    """Whether a quotient is not negative, so that rounding toward zero rounds down."""
    return all(interval(item)[0] >= 0 for item in a.flat) and all(interval(item)[0] > 0 for item in b.flat)


SAME_TYPES = frozenset(
    {
        *("Add", "Concat", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
        *("Max", "Min", "Mul", "Range", "Sub"),
    }
)
"""Operators whose inputs all have one data type."""
