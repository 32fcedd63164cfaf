"""`InferenceSession`: ONNX models, run the way people know."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, get_args

import numpy as np
import onnx
from onnx import TensorProto, helper

from ..arrays import as_array
from ..context import MLContext, in_thread, ml
from ..errors import ValidationError, require
from ..runtime.executable import check_names
from ..tensor import MLTensor
from .model import Model
from .plan import Plan

Location = Literal["cpu", "ml-tensor"]
Fallback = Literal["auto", "error"]

PLANS = 8
"""How many sets of input shapes a session keeps compiled; beyond that, the one not used for longest is dropped."""


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output of a model.

    Attributes:
        name: its name.
        type: its type as ONNX Runtime writes it, "tensor(float)".
        shape: its dimensions: integers, names of those that vary, or None for those without one.
    """

    name: str
    type: str
    shape: list[int | str | None]


class InferenceSession:
    """Runs an ONNX model: on WebNN graphs, as large as they can be, and by ONNX Runtime where WebNN has no way.

    Args:
        model: the path of an `.onnx` file, the bytes of one, or an `onnx.ModelProto`.
        context: where to run; default: a new one on the best device.
        fallback: "auto" lets ONNX Runtime run what WebNN cannot express; "error" refuses such a model.
        fix_shapes: sizes of named dimensions, {"batch": 1}.
        preferred_output_location: "cpu" returns arrays, "ml-tensor" tensors that stay in the context; one for all outputs,
            or one for each by name.

    Raises:
        DataError: the model cannot be read.
        ValidationError: an argument is wrong.
        NotSupportedError: `fallback="error"`, and the model needs it.

    Dimensions that vary are fixed by the inputs of a call: the model is compiled for them, and kept for the next call.
    """

    def __init__(
        self,
        model: Any,
        context: MLContext | None = None,
        *,
        fallback: Fallback = "auto",
        fix_shapes: Mapping[str, int] | None = None,
        preferred_output_location: Location | Mapping[str, Location] = "cpu",
    ) -> None:
        require(fallback in get_args(Fallback), f"fallback must be 'auto' or 'error', got {fallback!r}")
        require(
            context is None or isinstance(context, MLContext),
            f"context must be an MLContext, got {type(context).__name__}",
        )
        self._model = Model.load(model)
        self._context = context or ml.create_context()
        self._fallback: Fallback = fallback
        self._fixed = dict(fix_shapes or {})
        graph = self._model.proto.graph
        initialised = {initializer.name for initializer in graph.initializer}
        self._inputs = [self._argument(i) for i in graph.input if i.name not in initialised]
        self._outputs = [self._argument(o) for o in graph.output]
        names = {size for i in self._inputs for size in i.shape if isinstance(size, str)}
        for name, size in self._fixed.items():
            is_size = isinstance(size, int) and not isinstance(size, bool) and size > 0
            require(is_size, f"fix_shapes: {name!r} must be a positive integer, got {size!r}")
        self._locations = self._locate(preferred_output_location)
        self._plans: OrderedDict[Any, Plan] = OrderedDict()
        self._lock = Lock()
        if all(isinstance(size, int) for i in self._inputs for size in i.shape) and not names:
            self._plan({i.name: tuple(s for s in i.shape if isinstance(s, int)) for i in self._inputs})

    @property
    def context(self) -> MLContext:
        """The context that the WebNN graphs run in."""
        return self._context

    def get_inputs(self) -> list[NodeArg]:
        """The inputs of the model, in order."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs of the model, in order."""
        return list(self._outputs)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        *,
        out: Mapping[str, np.ndarray] | None = None,
    ) -> list[Any]:
        """Run the model.

        Args:
            output_names: which outputs to return; None for all.
            input_feed: an array, an MLTensor, or an object with DLPack for each input, by name. C-contiguous arrays are read
                in place.
            out: arrays to write outputs into, by name.

        Returns:
            The outputs in the order of `output_names`: arrays, or tensors where `preferred_output_location` says so.

        Raises:
            ValidationError: names, types or shapes that do not fit.
            OperationError: the engine failed.
        """
        known = [output.name for output in self._outputs]
        names = list(output_names) if output_names else known
        unknown = [name for name in names if name not in known]
        require(not unknown, f"outputs must be among {known}; unknown: {unknown}")
        check_names("inputs", input_feed, {i.name: i for i in self._inputs})
        feed = {i.name: self._checked(i, input_feed[i.name]) for i in self._inputs}
        shapes = {name: value.shape if isinstance(value, np.ndarray) else None for name, value in feed.items()}
        plan = self._plan(shapes)
        results = plan.run(feed, names, out or {})
        located = zip(names, results, strict=True)
        return [self._context.tensor_from(r) if self._locations[n] == "ml-tensor" else r for n, r in located]

    async def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        *,
        out: Mapping[str, np.ndarray] | None = None,
    ) -> list[Any]:
        """`run` in a worker thread, to await."""
        return await in_thread(self.run, output_names, input_feed, out=out)

    def explain(self, input_shapes: Mapping[str, Sequence[int]] | None = None) -> str:
        """Which node runs where, and why those fell back that did.

        Args:
            input_shapes: for models with dimensions that vary, the shapes to explain for; default: the last ones used.
        """
        if input_shapes is not None:
            plan = self._plan({name: tuple(shape) for name, shape in input_shapes.items()})
        else:
            require(bool(self._plans), "the model has dimensions that vary; run it first, or pass input_shapes")
            plan = next(reversed(self._plans.values()))
        folded = sum(step.kind == "folded" for step in plan.trace.steps)
        lines = []
        for number, segment in enumerate(plan.segments):
            where = f"WebNN on {self._context.device.name}" if segment.kind == "webnn" else "ONNX Runtime (fallback)"
            lines.append(f"segment {number}: {len(segment.steps)} nodes, {where}")
            for step in segment.steps:
                name = f" {step.node.name!r}" if step.node.name else ""
                lines.append(f"  {step.node.op_type}{name}" + (f": {step.reason}" if step.reason else ""))
        lines.append(f"{folded} nodes were computed at build time")
        return "\n".join(lines)

    def _argument(self, info: onnx.ValueInfoProto) -> NodeArg:
        tensor = info.type.tensor_type
        shape: list[int | str | None] = []
        for dim in tensor.shape.dim:
            if dim.HasField("dim_value"):
                shape.append(dim.dim_value)
            else:
                shape.append(self._fixed.get(dim.dim_param, dim.dim_param) if dim.dim_param else None)
        if not info.type.HasField("tensor_type"):
            return NodeArg(info.name, info.type.WhichOneof("value") or "unknown", shape)
        name = TensorProto.DataType.Name(tensor.elem_type).lower()
        return NodeArg(info.name, f"tensor({name})", shape)

    def _locate(self, preferred: Location | Mapping[str, Location]) -> dict[str, Location]:
        names = [output.name for output in self._outputs]
        chosen = dict(preferred) if isinstance(preferred, Mapping) else dict.fromkeys(names, preferred)
        unknown = [name for name in chosen if name not in names]
        require(not unknown, f"preferred_output_location: outputs must be among {names}; unknown: {unknown}")
        for name, location in chosen.items():
            allowed = get_args(Location)
            require(
                location in allowed,
                f"preferred_output_location of {name!r} must be 'cpu' or 'ml-tensor', got {location!r}",
            )
        return {name: chosen.get(name, "cpu") for name in names}

    def _checked(self, argument: NodeArg, value: Any) -> Any:
        """The array of an input, of the type and shape that the model declares."""
        if not argument.type.startswith("tensor("):
            return value
        if isinstance(value, MLTensor):
            value = value.numpy()
        name = argument.type[7:-1].upper()
        wanted = helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(name))
        if wanted.kind == "O":
            array = np.asarray(value)
        elif isinstance(value, np.ndarray) and value.dtype == wanted and value.flags.c_contiguous:
            array = value
        elif isinstance(value, np.ndarray) and value.dtype != wanted:
            raise ValidationError(f"input {argument.name!r} must be {argument.type}, got an array of {value.dtype}")
        elif wanted.name in ("bool", "float64", "int16", "uint16") or not hasattr(value, "__dlpack__"):
            array = np.ascontiguousarray(value)
            require(array.dtype == wanted, f"input {argument.name!r} must be {argument.type}, got {array.dtype}")
            array = array.reshape(np.shape(value))
        else:
            array = as_array(value, f"input {argument.name!r}")
            require(array.dtype == wanted, f"input {argument.name!r} must be {argument.type}, got {array.dtype}")
        self._check_shape(argument, array.shape)
        return array

    def _check_shape(self, argument: NodeArg, shape: tuple[int, ...]) -> None:
        if argument.shape or not shape:
            fits = len(shape) == len(argument.shape) and all(
                not isinstance(wanted, int) or wanted == size
                for wanted, size in zip(argument.shape, shape, strict=True)
            )
            require(fits, f"input {argument.name!r} must have shape {argument.shape}, got {list(shape)}")

    def _plan(self, shapes: Mapping[str, tuple[int, ...] | None]) -> Plan:
        """The plan for given input shapes, from the cache or new."""
        key = tuple(shapes.items())
        with self._lock:
            plan = self._plans.get(key)
            if plan is None:
                outputs = [output.name for output in self._outputs]
                plan = Plan(self._model, self._context, shapes, outputs, self._fallback)
                self._plans[key] = plan
                if len(self._plans) > PLANS:
                    self._plans.popitem(last=False)
            self._plans.move_to_end(key)
        return plan
