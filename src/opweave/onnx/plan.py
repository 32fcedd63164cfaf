"""A model compiled for given input shapes: segments over shared memory, run one after the other.

Tensors between segments lie in memory that all of them are bound to; nothing is copied between WebNN and fallback.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

import numpy as np

from .. import memory
from ..backends import Placement
from ..compile.driver import compile
from ..compile.extract import extract
from ..context import MLContext
from ..errors import DataError, NotSupportedError, ValidationError
from ..graph import Desc, MLOperand
from ..run.program import Program
from .booleans import as_declared, as_stored
from .messages import GraphProto, NodeProto, TensorProto, ValueInfoProto, tensor_type
from .model import Model
from .partition import Segment, partition
from .registry import CONVERTERS, key_of
from .trace import SUB_GRAPHS, Constant, Dynamic, Tensor, Trace, Value

Fallback = Literal["auto", "error"]
"""What nodes that WebNN cannot express do: "auto" runs them in ONNX Runtime, "error" refuses the model."""

SHARED = "an output that is a constant, an input, or another output"
"""Why such outputs are copied: what is returned must be the caller's alone."""


@dataclass
class _WebnnPart:
    """A segment that is a WebNN graph; it reads and writes slots by name."""

    program: Program
    inputs: list[str]
    outputs: list[str]

    def run(self, slots: dict[str, Any]) -> None:
        self.program.run([slots[n] for n in self.inputs], [slots[n] for n in self.outputs])

    def run_new(self, slots: dict[str, Any], outputs: Sequence[str]) -> list[Any] | None:
        """Run it, and return outputs in new memory of the engine's; None where it has none to give."""
        return self.program.run_new([slots[n] for n in self.inputs], [self.outputs.index(n) for n in outputs])


@dataclass
class _FallbackPart:
    """A segment that ONNX Runtime runs; outputs of unknown shape get their slot from it."""

    session: Any
    inputs: list[str]
    outputs: list[str]
    booleans: frozenset[str]

    def run(self, slots: dict[str, Any]) -> None:
        def view(name: str) -> Any:
            return as_declared(slots[name], TensorProto.BOOL) if name in self.booleans else slots[name]

        known = {name: view(name) for name in self.outputs if name in slots}
        found = self.session.run({name: view(name) for name in self.inputs}, known)
        for name, value in found.items():
            slots[name] = as_stored(value) if name in self.booleans else value


class Plan:
    """A model for given input shapes, which has been traced.

    Args:
        model: the model.
        context: where it runs.
        trace: what became of its nodes.
        outputs: the names of its outputs.
        fallback: what nodes do that WebNN cannot express.
        whole: whether it is only worth while as one graph for the back end, without loops of our own compiler: where
            the model's own session does the same in its way.

    Raises:
        NotSupportedError: `fallback="error"`, and a node needs it; or it is to be whole, and is not.
        OperationError: the engine refuses a segment.
    """

    def __init__(
        self,
        model: Model,
        context: MLContext,
        trace: Trace,
        outputs: Sequence[str],
        fallback: Fallback,
        whole: bool = False,
    ) -> None:
        self.context, self.outputs, self.trace = context, list(outputs), trace
        self._check_types(model)
        self.segments: list[Segment] = partition(self.trace, outputs)
        if fallback == "error" or whole:
            for segment in self.segments:
                if segment.kind == "fallback":
                    step = segment.steps[0]
                    raise NotSupportedError(f"{_title(step.node)} cannot run on WebNN: {step.reason}")
        self._fuses = not whole
        # What each name's memory is called: names of the same operand share it.
        self._slot: dict[str, str] = {}
        for name, value in self.trace.values.items():
            self._slot[name] = self.trace.operands[value.operand] if isinstance(value, Tensor) else name
        self._by_segment = [self._compile(model, segment) for segment in self.segments]
        self._parts = [part for part in self._by_segment if part is not None]
        self.lock = Lock()  # of what runs
        self._intermediates: dict[str, np.ndarray] = {}
        final = {self._slot[name] for name in self.outputs}
        for segment in self.segments:
            for name in segment.outputs:
                value, slot = self.trace.values[name], self._slot[name]
                if isinstance(value, Tensor) and slot not in final:
                    self._intermediates[slot] = memory.allocate(value.operand.desc)
        # What `run` needs of all this, looked up once.
        self._tensors = {name for name, value in self.trace.values.items() if isinstance(value, Tensor)}
        described = [(name, self._slot[name], self.desc(name)) for name in self.outputs]
        self._allocated = [(name, slot, desc) for name, slot, desc in described if desc is not None]
        self._fresh = self._find_fresh()

    @property
    def booleans(self) -> list[str]:
        """The outputs of bool, which are carried as uint8."""
        known = {name: self.trace.values[name] for name in self.outputs}
        return [n for n, v in known.items() if isinstance(v, Tensor) and v.element_type == TensorProto.BOOL]

    @property
    def threads(self) -> int:
        """How many threads the engine has for it."""
        return sum(part.program.threads for part in self._parts if isinstance(part, _WebnnPart))

    def alone(self) -> _WebnnPart | None:
        """The part that is all there is to run, and that writes all outputs into memory of their own; None if none is.

        It calls inputs and outputs by their slots, see `slot`.
        """
        part = self._parts[0] if len(self._parts) == 1 else None
        if not isinstance(part, _WebnnPart) or not self._fresh.issuperset(self.outputs):
            return None
        return part

    def slot(self, name: str) -> str:
        """What the memory of a value is called."""
        return self._slot[name]

    def _find_fresh(self) -> set[str]:
        """The outputs whose memory is theirs alone, not that of a constant, an input or another output, in their own type."""
        made = {slot for part in self._parts for slot in part.outputs}
        count = Counter(slot for _, slot, _ in self._allocated)
        taken = {self._slot[name] for name in self._tensors if name not in self.trace.maker}
        fresh = {name for name, slot, _ in self._allocated if slot in made and slot not in taken and count[slot] == 1}
        return fresh - set(self.booleans)

    def _check_types(self, model: Model) -> None:
        """Require outputs of the element types that the model declares."""
        for info in model.proto.graph.output:
            value, declared = self.trace.values[info.name], info.type.tensor_type.elem_type
            if declared and not isinstance(value, Dynamic) and value.element_type != declared:
                names = [TensorProto.DataType.Name(type).lower() for type in (declared, value.element_type)]
                raise DataError(f"the output {info.name!r} is declared as {names[0]}, and is {names[1]}")

    def desc(self, name: str) -> Desc | None:
        """Data type and shape of a value, where they are known before it is computed."""
        value = self.trace.values[name]
        return value.operand.desc if isinstance(value, Tensor) else None

    def custom(self, number: int) -> list[Placement]:
        """Where the custom operations of a segment run."""
        part = self._by_segment[number]
        names = {CONVERTERS[key].op for step in self.segments[number].steps if (key := key_of(step.node)) in CONVERTERS}
        placements = part.program.placements if isinstance(part, _WebnnPart) else []
        return [placement for placement in placements if placement.node.partition(" ")[0] in names - {""}]

    def run(self, feed: Mapping[str, Any], names: Sequence[str], out: Mapping[str, np.ndarray]) -> list[Any]:
        """Run on arrays that have been checked, and return the outputs `names`; those in `out` are written in place."""
        with self.lock:
            slots: dict[str, Any] = dict(self._intermediates)
            for name, array in feed.items():
                slots[self._slot[name]] = as_stored(array) if name in self._tensors else array
            for name, slot, desc in self._allocated:
                target = out.get(name)
                if target is not None and target.shape != desc.shape:
                    raise ValidationError(f"out[{name!r}] must have shape {list(desc.shape)}, got {list(target.shape)}")
                if slot not in slots:
                    slots[slot] = memory.empty(desc) if target is None else as_stored(target)
            for part in self._parts:
                part.run(slots)
            if self._fresh.issuperset(names) and self._fresh.issuperset(out) and len(set(names)) == len(names):
                return [out[name] if name in out else slots[self._slot[name]] for name in names]
            results: list[Any] = []
            for name in [*names, *(name for name in out if name not in names)]:
                # Nobody may change a constant, an input, or another result through what is handed out.
                others = [*feed.values(), *out.values(), *results]
                results.append(self._result(name, slots, out.get(name), others))
            return results[: len(names)]

    def _result(self, name: str, slots: dict[str, Any], target: np.ndarray | None, others: list[Any]) -> Any:
        value = self.trace.values[name]
        array = value.array if isinstance(value, Constant) else slots[self._slot[name]]
        if not isinstance(array, np.ndarray):
            is_shared = any(array is other for other in others)  # a sequence, or nothing
            return memory.copied(array, SHARED) if is_shared else array
        if isinstance(value, Tensor):
            array = as_declared(array, value.element_type)
        if target is not None:
            if target.shape != array.shape:
                raise ValidationError(f"out[{name!r}] must have shape {list(array.shape)}, got {list(target.shape)}")
            if target.ctypes.data != array.ctypes.data:
                memory.copy(target, array, "InferenceSession.run(out=)")
            return target
        if isinstance(value, Constant) or _shares(array, others):
            return memory.copied(array, SHARED)
        return array

    def _compile(self, model: Model, segment: Segment) -> _WebnnPart | _FallbackPart | None:
        """What runs a segment; None for one that only hands its inputs on."""
        if segment.kind == "fallback":
            return self._compile_fallback(model, segment)
        operands: dict[str, MLOperand] = {}
        for name in segment.outputs:
            value = self.trace.values[name]
            assert isinstance(value, Tensor), name
            operands.setdefault(self._slot[name], value.operand)
        boundary: dict[MLOperand, str] = {}
        for name in segment.inputs:
            value = self.trace.values[name]
            assert isinstance(value, Tensor), name
            boundary[value.operand] = self._slot[name]
        inner = {name: operand for name, operand in operands.items() if operand not in boundary}
        if not inner:
            return None
        graph = extract(inner, boundary)
        context = self.context
        program = compile(
            graph,
            context.backend,
            device=context.device.name,
            power_preference=context.power_preference,
            fuse=self._fuses,
            alone=len(self.segments) == 1,
        )
        return _WebnnPart(program, list(graph.inputs), list(graph.outputs))

    def _compile_fallback(self, model: Model, segment: Segment) -> _FallbackPart:
        from onnx import helper

        from ..backends.onnxruntime.fallback import FallbackSession

        values = self.trace.values
        names = {name: self._slot[name] for name in [*segment.inputs, *segment.outputs]}
        constants = {name: values[name] for name in segment.constants}
        graph = GraphProto(name="fallback")
        graph.node.extend(step.node for step in segment.steps)
        for name in segment.inputs:
            graph.input.append(_value_info(name, values[name]))
        for name in segment.outputs:
            graph.output.append(_value_info(name, values[name]))
        arrays = {}
        for name, value in constants.items():
            assert isinstance(value, Constant)
            arrays[name] = value.array
        proto = helper.make_model(
            graph,
            opset_imports=model.proto.opset_import,
            ir_version=model.proto.ir_version,
            functions=model.proto.functions,
        )
        threads = getattr(self.context.backend, "threads", None)  # of ONNX Runtime's, where the context is on that
        if not is_large_segment(segment, values):
            threads = 1
        session = FallbackSession(proto, arrays, names, self.context.power_preference, threads)
        for name in segment.outputs:
            value = values[name]
            if isinstance(value, Dynamic) and (value.type is None or not value.type.WhichOneof("value")):
                values[name] = Dynamic(session.types[names[name]])  # the engine's inference knows more than ONNX's
        booleans = frozenset(
            names[n] for n in names if isinstance(v := values[n], Tensor) and v.element_type == TensorProto.BOOL
        )
        inputs, outputs = [names[n] for n in segment.inputs], [names[n] for n in segment.outputs]
        return _FallbackPart(session, list(dict.fromkeys(inputs)), list(dict.fromkeys(outputs)), booleans)


def is_large_segment(segment: Segment, values: Mapping[str, Value]) -> bool:
    """Whether a segment has operations that may gain from several threads; so it is where sizes are not known."""
    from ..backends.onnxruntime.sessions import is_large

    for step in segment.steps:
        if any(attribute.type in SUB_GRAPHS for attribute in step.node.attribute):
            return True
        for name in (*step.node.input, *step.node.output):
            match values.get(name):
                case Constant(array):
                    large = is_large(array.size)
                case Tensor(operand):
                    large = is_large(operand.desc.element_count)
                case Dynamic():
                    large = True
                case None:  # absent
                    large = False
            if large:
                return True
    return False


def _value_info(name: str, value: Any) -> ValueInfoProto:
    if isinstance(value, Tensor):
        return ValueInfoProto(name=name, type=tensor_type(value.element_type, value.operand.shape))
    info = ValueInfoProto(name=name)
    if isinstance(value, Dynamic) and value.type is not None:
        info.type.CopyFrom(value.type)
    return info


def _title(node: NodeProto) -> str:
    return f"{node.op_type} {node.name!r}" if node.name else node.op_type


def _shares(array: np.ndarray, others: Iterable[Any]) -> bool:
    arrays = (other for other in others if isinstance(other, np.ndarray))
    return any(array is other or np.may_share_memory(array, other) for other in arrays)
