"""Prove that requests may run as one batch: no row depends on another row, or on the number of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ..core.graph import Operand
from ..onnx.convert.trace import Trace
from ..onnx.model.protobuf import NodeProto
from ..onnx.model.values import Constant, Tensor, shape_of, type_of
from ..onnx.session.parts import parts_of
from ..onnx.session.session import InferenceSession
from ..support.cache import Cache
from ..support.errors import MLError
from ..support.names import short_repr
from .batch_axis import BatchComparison
from .batch_rules import Axis, BatchAxis, NotApart

Shapes: TypeAlias = tuple[tuple[int, ...], ...]
"""The shapes of all inputs of a request without the first dimension, in the order of the model."""

_UNARY = """
Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Clip Cos Cosh Elu Erf Exp Floor HardSigmoid HardSwish Identity
IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal RegexFullMatch Relu Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt
Tan Tanh ThresholdedRelu
"""

ELEMENTWISE = {"": frozenset(_UNARY.split()), "ai.onnx.ml": frozenset({"Binarizer", "CategoryMapper", "LabelEncoder"})}
"""ONNX operators by domain that are element-wise in the first input if the other inputs are constants. Used for nodes that the
engine runs, such as operators on strings.
"""

_OF_MATRICES = """
ArrayFeatureExtractor Imputer LinearClassifier LinearRegressor Normalizer SVMClassifier SVMRegressor Scaler
TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor
"""

ROW_WISE = {"ai.onnx.ml": frozenset(_OF_MATRICES.split())}
"""ONNX operators that compute each row of a matrix independently. Most of them treat a vector as one row."""

_OF_IMAGES = "AveragePool Conv ConvTranspose GlobalAveragePool GlobalMaxPool LpPool MaxPool"

IMAGE_WISE = {"": frozenset(_OF_IMAGES.split())}
"""ONNX operators whose first result is independent along the first axis, such as convolutions of volumes."""

MAX_TRACES = 2
"""Maximum number of cached traces: of one row, and of the last batch. A trace has copies of folded constants."""

MAX_REASONS = 4096
"""Maximum number of cached results. Clients choose the shapes, so the number of proofs is unbounded."""


class Proofs:
    """Proves for a model and shapes of requests that rows are independent (see `batch_axis`).

    Inputs and outputs of the model have the batch in their first dimension.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._parts = parts_of(session)
        self._traces: Cache[tuple[Shapes, int], Trace] = Cache(MAX_TRACES)
        self._reasons: Cache[tuple[Shapes, int, int], str] = Cache(MAX_REASONS)

    def why_mixed(self, shapes: Shapes, rows: int, part: int) -> str:
        """The reason why a request of `part` rows may get different results in a batch of `rows`; empty if proven equal."""
        return self._reasons.make((shapes, rows, part), lambda: self._prove(shapes, rows, part))

    def _prove(self, shapes: Shapes, rows: int, part: int) -> str:
        try:
            one, other = (self._trace(shapes, count) for count in (rows, part))
            values = _ProvenValues(one, other, (rows, part), [argument.name for argument in self._parts.inputs])
            for name in self._parts.outputs:
                if values.axis(name) != BatchAxis(0):
                    raise NotApart(f"output {short_repr(name)} does not have the rows of the batch")
        except (NotApart, MLError) as error:
            return str(error)
        except RecursionError:
            return "the engine and WebNN alternate too often"
        return ""

    def _trace(self, shapes: Shapes, rows: int) -> Trace:

        def trace() -> Trace:
            names = (argument.name for argument in self._parts.inputs)
            sizes: Mapping[str, tuple[int, ...] | None] = {
                name: (rows, *shape) for name, shape in zip(names, shapes, strict=True)
            }
            return self._parts.shape_cache.trace_shapes(sizes, {}, {})[1]

        return self._traces.make((shapes, rows), trace)


class _ProvenValues:
    """The values of a model, traced for two numbers of rows; inputs have the batch in their first dimension."""

    def __init__(self, one: Trace, other: Trace, rows: tuple[int, int], inputs: Sequence[str]) -> None:
        _check_interpolation(one)
        self._one, self._other = one, other
        self._axes: dict[str, Axis] = dict.fromkeys(inputs, BatchAxis(0))
        self._ranks: dict[str, int] = {}
        pairs: dict[tuple[Operand, Operand], Axis] = {}
        for name in inputs:
            match one.values[name], other.values[name]:
                case Tensor(left), Tensor(right):
                    pairs[left, right] = BatchAxis(0)
        self._comparison = BatchComparison(rows, pairs, self._follow)

    def axis(self, name: str) -> Axis:
        """The batch axis of a value; `NotApart` without a proof."""
        match self._one.values[name], self._other.values[name]:
            case Tensor(left), Tensor(right):
                return self._comparison.axis(left, right)
            case Constant(array), Constant(same):
                return self._comparison.axis_of_constant(array, same)
        return self._follow(name)

    def _follow(self, name: str) -> Axis:
        """The batch axis of an input, or of the result of a node that the engine runs."""
        if name not in self._axes:
            self._axes[name] = self._result(name)
        return self._axes[name]

    def _result(self, name: str) -> Axis:
        steps = [trace.producer.get(name) for trace in (self._one, self._other)]
        first, second = steps
        step = first or second
        if step is None:
            raise NotApart(f"{short_repr(name)} is no tensor of numbers")
        node, title = step.node, _title(step.node)
        nodes = [None if s is None or s.kind != "fallback" else s.node.SerializeToString() for s in steps]
        if None in nodes or nodes[0] != nodes[1]:
            raise NotApart(f"{title} is another operation for another number of rows")
        source, *others = node.input[:]
        if all(not other or isinstance(self._one.values[other], Constant) for other in others):
            axis = self.axis(source)
            rank = self._ranks.get(source, len(type_of(self._one.values[source]).tensor_type.shape.dim))
            is_first = axis == BatchAxis(0)
            if node.op_type in ROW_WISE.get(node.domain, ()) and is_first and rank == 2:
                is_label = node.op_type.endswith("Classifier") and name == node.output[0]
                self._ranks[name] = 1 if is_label else 2  # ONNX's inference does not know these operators
                return axis
            of_images = node.op_type in IMAGE_WISE.get(node.domain, ()) and is_first and rank > 2
            if node.op_type in ELEMENTWISE.get(node.domain, ()) or (of_images and name == node.output[0]):
                self._ranks[name] = rank
                return axis
        raise NotApart(f"{title} may mix the rows of a batch: it runs as a whole on the engine ({step.reason})")


def _check_interpolation(trace: Trace) -> None:
    """Require that ONNX Runtime interpolates only along resized axes.

    This holds for rank 4. For other ranks, it interpolates along all axes, and adds 0 * next row: NaN if that row is infinite.
    """
    for step in trace.steps:
        if step.node.op_type in ("Resize", "Upsample") and step.node.domain in ("", "ai.onnx"):
            mode = next((attribute.s for attribute in step.node.attribute if attribute.name == "mode"), b"nearest")
            shape = shape_of(trace.values[step.node.input[0]])
            if mode != b"nearest" and (shape is None or len(shape) != 4):
                raise NotApart(
                    f"{_title(step.node)} may mix the rows of a batch: the engine interpolates along all axes"
                )


def _title(node: NodeProto) -> str:
    return f"{node.op_type} {short_repr(node.name)}" if node.name else node.op_type
