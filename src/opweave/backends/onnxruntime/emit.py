"""Write ONNX models, lean: the protocol buffers by hand, weights by reference.

An `Emitter` collects nodes; `finish()` gives the bytes of a ModelProto. Small constants lie inside the model, where the
engine's shape inference and folding see them. Large ones are declared as external data: those in a memory-mapped file by
the place in the file, which the engine maps itself (locations are relative to `/`), others are passed to the session.
Field numbers are those of onnx.proto3.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ... import memory
from ...core.dtypes import ONNX_TYPES, name_of
from . import kernels
from .barriers import keep_casts_apart, keep_outputs_apart
from .inline import INLINE_BYTES, INLINE_BYTES_OF_RULES
from .records import IR_VERSION, OnnxNode, attribute, field, opset_of, value_info

if TYPE_CHECKING:
    from ...core.graph import Desc, Graph, Node
    from .. import Precision

T = TypeVar("T")

MICROSOFT = "com.microsoft"

# What an integer type is widened to where the engine has no kernel for it; each holds all values of the narrower one.
_WIDER = {"int8": ("int32", "int64"), "uint8": ("int32", "uint32", "int64"), "int32": ("int64",), "uint32": ("int64",)}

# Kernels that are wrong for int64 when two numbers differ in bit 31 but not above it; the cause and its repair:
# https://github.com/microsoft/onnxruntime/pull/32475. The comparisons and Where are right.
_COMPARED_WRONGLY = {"Clip", "Max", "Min"}


_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}
"""Operators that return their first operand if the second is this number."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the ONNX graph. The shape is None where no rule needed to know it."""

    name: str
    data_type: str
    shape: tuple[int, ...] | None = None

    @property
    def rank(self) -> int:
        """Number of dimensions, of values whose shape is known."""
        return len(self.dims)

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape, of values whose shape is known."""
        assert self.shape is not None, f"the shape of {self.name} is not known; pass shape= where it is emitted"
        return self.shape


def _for_any_size(old: Sequence[int], new: Sequence[int]) -> list[int]:
    """The shape for a Reshape from `old` to `new` that fits other sizes, too: 0 for a size that stays, -1 for what is left.

    >>> _for_any_size((1, 64, 576), (1, 64, 18, 32)), _for_any_size((1, 64, 576), (64, 576))
    ([0, 0, 18, 32], [-1, 576])
    """
    if len(new) == len(old) - 1 and list(new[1:]) == list(old[2:]):  # the first two become one
        return [-1, *new[1:]]
    if len(new) > 1 and list(new) == [1, *old]:
        return [1, -1, *new[2:]]
    found = list(new)
    for axis, (one, other) in enumerate(zip(old, new, strict=False)):
        if one != other:
            break
        found[axis] = 0
    return found


@dataclass(frozen=True, slots=True)
class _Widened:
    """A float16 value in float32.

    Attributes:
        value: the float32.
        maker: the node that has computed it and rounded it to float16; None if it was float16 before.
    """

    value: Value
    maker: Node | None


class Emitter:
    """Collects the ONNX nodes that the rules emit.

    Args:
        portable: whether the nodes are written to a file, to be run elsewhere; rules then leave out rewrites that only help
            here, and inputs keep their names.
        prefix: what the names of inner values begin with; no input or output may be called so.
        any_size: whether the model takes inputs of any sizes, except that the last dimension of each is fixed. Graphs that
            differ only in sizes then become the same model.
        precision: that of the context.
        has_halves: whether all operators run in float16. The engine's provider for the CPU has few such kernels.

    A rule gets the emitter, and the op's operands as `Value`s. While it runs, `node` is the node being lowered, and
    `graph` what it is a part of.
    """

    graph: Graph
    node: Node
    has_kernels: bool
    """Whether the engine has kernels, of the very data types, for all that was emitted for `node`."""
    disabled_optimizers: set[str]
    """Optimisers of the engine that the session must not run; rules add them."""
    sizes: dict[str, int]
    """The bytes of inputs, and of the results of nodes that have been lowered, by name."""
    parameters: dict[str, np.ndarray]
    """Inputs of the model that the graph does not have, and what they must be given: see `parameter`."""

    written: dict[Node, list[tuple[str, str]]]
    """The name and the operator of each ONNX node that a node has become."""

    unrounded: set[Node]
    """Nodes with a result of float16 that another node reads before it is rounded."""

    def __init__(
        self,
        *,
        portable: bool = False,
        prefix: str = "",
        any_size: bool = False,
        precision: Precision = "float32",
        has_halves: bool = False,
    ) -> None:
        self.portable, self._prefix, self.any_size, self.precision = portable, prefix, any_size, precision
        self._has_halves = portable or has_halves
        self._widened_halves: dict[str, _Widened] = {}
        self.unrounded: set[Node] = set()
        self.parameters: dict[str, np.ndarray] = {}
        self.nodes: list[OnnxNode] = []
        self.constants: dict[str, np.ndarray] = {}
        self.disabled_optimizers: set[str] = set()
        self.sizes: dict[str, int] = {}
        self.written: dict[Node, list[tuple[str, str]]] = {}
        self._inline: set[str] = set()
        self._values: dict[Any, Value] = {}
        self._bools: dict[str, Value] = {}
        self._answers: dict[Callable[[Graph], Any], Any] = {}
        self._before_reshape: dict[str, Value] = {}
        self._inputs: list[bytes] = []
        self._makers: dict[str, OnnxNode] = {}
        self._moves_first: set[str] = set()
        self._foldable: set[str] = set()  # values computed from constants alone, which the engine computes beforehand
        self._count = 0

    # What rules use --------------------------------------------------------------------------------------------------

    @property
    def output(self) -> Desc:
        """Descriptor of the (first) result of the node being lowered."""
        return self.node.outputs[0].desc

    def emit(
        self,
        op_type: str,
        *inputs: Value | None,
        data_type: str | None = None,
        shape: Sequence[int] | None = None,
        outputs: int = 1,
        domain: str = "",
        **attributes: Any,
    ) -> Any:
        """Add an ONNX node and return its output (`outputs=1`), or a list of its outputs.

        Args:
            op_type: the ONNX operator.
            domain: empty for ONNX's own operators, `MICROSOFT` for the engine's.
            outputs: how many outputs it has.
            inputs: its inputs; None for an optional input left out.
            data_type: of the outputs; default: that of the first input that is not a bool.
            shape: of the outputs, where a later step of the rule needs it.
            attributes: the ONNX attributes; those that are None are left out. Floats must be Python floats.

        Where the engine has no kernel for an integer type, operands are cast to the next wider one that has, and the
        result is cast back, which wraps around as the narrow type would. Min, Max and Clip of int64 are composed,
        since their kernels are wrong. float16 is widened to float32, and later operators read a result as it was before it
        was rounded; `round` ends that.
        """
        deciding = next((v for v in inputs if v is not None and v.data_type != "bool"), None)
        narrow = deciding.data_type if deciding is not None else "bool"
        if deciding is not None and narrow == "int64" and op_type in _COMPARED_WRONGLY:
            return self._compared(op_type, deciding, *inputs[1:])
        result_type = data_type or narrow
        wide = self._kernel_type(op_type, narrow, domain, inputs)
        if wide != narrow:
            inputs = tuple(self._widen(v, wide) if v is not None and v.data_type == narrow else v for v in inputs)
        names = ["" if v is None else v.name for v in inputs]
        while names and not names[-1]:
            names.pop()
        made = [self.fresh() for _ in range(outputs)]
        encoded = b"".join(field(5, attribute(k, v)) for k, v in attributes.items() if v is not None)
        self._append(op_type, names, made, encoded, domain)
        computed = wide if result_type == narrow else result_type
        known = tuple(shape) if shape is not None else None
        values = [self._narrow(Value(name, computed, known), result_type) for name in made]
        return values[0] if outputs == 1 else values

    def round(self, value: Value) -> None:
        """Let operators after this one read a float16 value as it is, not as the float32 that it was rounded from."""
        self._widened_halves.pop(value.name, None)

    def about(self, question: Callable[[Graph], T]) -> T:
        """`question(graph)`, computed once for all nodes of the graph."""
        if question not in self._answers:
            self._answers[question] = question(self.graph)
        answer: T = self._answers[question]
        return answer

    def constant(self, value: Any, data_type: str = "int64") -> Value:
        """A constant made by a rule (axes, shapes, scalars); equal ones are stored once."""
        array = np.array(value, data_type, order="C")
        key = (data_type, array.shape, array.tobytes())
        if key not in self._values:
            self._values[key] = self.add_constant(array, INLINE_BYTES_OF_RULES)
        return self._values[key]

    def scalar(self, value: float, like: Value) -> Value:
        """A constant of rank 0 in the data type of `like`."""
        return self.constant(value, like.data_type)

    def parameter(self, value: Any, data_type: str = "int64") -> Value:
        """A constant that depends on sizes. It is an input of a model that takes any sizes."""
        if not self.any_size:
            return self.constant(value, data_type)
        array = np.array(value, data_type)
        key = ("parameter", data_type, array.shape, array.tobytes())
        if key not in self._values:
            self._values[key] = made = Value(f"p{len(self.parameters)}", data_type, array.shape)
            self.parameters[made.name] = array
            self._inputs.append(value_info(made.name, data_type, array.shape))
        return self._values[key]

    def array_of(self, value: Value) -> np.ndarray | None:
        """The array of a constant, None for what is computed: for choices at build time."""
        return self.constants.get(value.name)

    def cast(self, value: Value, data_type: str) -> Value:
        """`value` in another data type; unchanged if it has that already. A number made from a bool gives that bool."""
        if value.data_type == data_type:
            return value
        if data_type == "bool" and value.name in self._bools:
            return self._bools[value.name]
        name = self.fresh()
        encoded = field(5, attribute("to", ONNX_TYPES[data_type]))
        self._append("Cast", [value.name], [name], encoded)
        if value.data_type == "bool":
            self._bools[name] = value
        return Value(name, data_type, value.shape)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """`value` with other dimensions; itself where it has those already.

        A constant is reshaped here, without a node: the engine's optimiser ignores scales and zero points that a node makes.
        Of several reshapes in a row, only the last one runs: in small networks, a kernel that does nothing takes time, too.
        """
        value = self._before_reshape.get(value.name, value)
        if value.shape == tuple(shape):
            return value
        array = self.array_of(value)
        if array is not None:
            return self.add_constant(array.reshape(shape))
        wanted = _for_any_size(value.shape or (), shape) if self.any_size else list(shape)
        made: Value = self.emit("Reshape", value, self.constant(wanted), shape=shape)
        self._before_reshape[made.name] = value
        return made

    def transpose(self, value: Value, permutation: Sequence[int]) -> Value:
        """`value` with its axes permuted; itself where nothing moves, reshaped where only axes of size 1 do."""
        if list(permutation) == sorted(permutation):
            return value
        shape = None if value.shape is None else [value.shape[axis] for axis in permutation]
        if shape is not None:
            longer = [axis for axis in permutation if value.dims[axis] > 1]
            if longer == sorted(longer):
                return self.reshape(value, shape)
        made: Value = self.emit("Transpose", value, perm=list(permutation), shape=shape)
        if permutation[0] != 0:
            self._moves_first.add(made.name)
        return made

    def makers(self, name: str, through: Container[str] = ()) -> Iterator[OnnxNode]:
        """The node that has computed the value called `name`; while its operator is one of `through`, also that of its first
        operand. Casts, and what changes nothing, do not count.
        """
        while (node := self._makers.get(name)) is not None:
            kept = self.operand_of_nothing(node)
            if kept is None:
                yield node
                if node.op_type not in through:
                    return
            name = node.inputs[kept or 0]

    def operand_of_nothing(self, node: OnnxNode) -> int | None:
        """The position of the operand that a node returns, perhaps in another data type, such as a product by 1: the engine's
        optimiser may remove the node. None if there is no such operand. A number that the engine computes is taken for 1.
        """
        if node.op_type in ("Cast", "Identity"):
            return 0
        neutral = _NEUTRAL.get(node.op_type)
        if neutral is None:
            return None
        for position in (1, 0) if node.op_type in ("Add", "Mul") else (1,):
            name = node.inputs[position]
            array = self.constants.get(name)
            if name in self._foldable or (array is not None and array.size == 1 and array.item() == neutral):
                return 1 - position
        return None

    def apart(self, value: Value) -> Value:
        """`value` behind a node that the engine's optimiser neither removes nor joins with others; it copies nothing."""
        self.disabled_optimizers.add("EliminateIdentity")
        made: Value = self.emit("Identity", value, shape=value.shape)
        return made

    def relayout(self, value: Value, layout: str, wanted: str) -> Value:
        """`value` with its axes, named by the letters of `layout`, in the order of `wanted`."""
        return value if layout == wanted else self.transpose(value, [layout.index(letter) for letter in wanted])

    # What the back end uses ------------------------------------------------------------------------------------------

    def add_input(self, name: str, desc: Desc) -> Value:
        """Declare an input of the model."""
        dims: list[int | str | None] = list(desc.shape)
        if self.any_size:
            dims[:-1] = [f"{name}_{axis}" for axis in range(len(dims) - 1)]
        self._inputs.append(value_info(name, desc.data_type, dims))
        self.sizes[name] = desc.byte_length
        return Value(name, desc.data_type, desc.shape)

    def add_constant(self, array: np.ndarray, inline_bytes: int = INLINE_BYTES) -> Value:
        """Declare an initializer; the array is kept by reference if it is larger than `inline_bytes`."""
        name = f"{self._prefix}c{len(self.constants)}"
        self.constants[name] = array
        if array.nbytes <= inline_bytes:
            self._inline.add(name)
        return Value(name, name_of(array.dtype), array.shape)

    def finish(self, outputs: Mapping[str, tuple[Value, Desc]]) -> tuple[bytes, dict[str, np.ndarray]]:
        """The model's bytes, and the arrays that the session must be given, by initializer name."""
        made = {name for node in self.nodes for name in node.outputs}
        renamed: dict[str, str] = {}
        for name, (value, _) in outputs.items():
            if value.name in made and value.name not in renamed:
                renamed[value.name] = name
            else:  # an input, a constant, or an output already: the engine needs a node in between
                self.nodes.append(OnnxNode("Identity", [value.name], [name], b"", "", name))
        if not self.portable:
            keep_casts_apart(self, self._moves_first)
            keep_outputs_apart(self, made.intersection(value.name for value, _ in outputs.values()))
        body = bytearray()
        nodes = self._needed({*outputs, *(value.name for value, _ in outputs.values())})
        for node in nodes:
            proto = b"".join(field(1, renamed.get(name, name)) for name in node.inputs)
            proto += b"".join(field(2, renamed.get(name, name)) for name in node.outputs)
            proto += field(3, node.name) + field(4, node.op_type) + node.attributes
            body += field(1, proto + field(7, node.domain) if node.domain else proto)
        # The engine refuses an external initializer that no node reads, and rules read constants that no node needs.
        read = {name for node in nodes for name in node.inputs}
        constants = {name: array for name, array in self.constants.items() if name in read}
        by_reference: dict[str, np.ndarray] = {}
        files = memory.mapped_files(array for name, array in constants.items() if name not in self._inline)
        for name, array in constants.items():
            proto = b"".join(field(1, size) for size in array.shape)
            proto += field(2, ONNX_TYPES[name_of(array.dtype)]) + field(8, name)
            if name in self._inline:
                proto += field(9, array.tobytes())
            else:
                found = memory.find_in_files(array, files)
                if found is None:
                    by_reference[name] = array
                    place = {"location": name}
                else:
                    place = {"location": found[0][1:], "offset": str(found[1]), "length": str(array.nbytes)}
                proto += b"".join(field(13, field(1, key) + field(2, text)) for key, text in place.items()) + field(
                    14, 1
                )
            body += field(5, proto)
        body += field(2, "opweave") + b"".join(field(11, info) for info in self._inputs)
        for name, (_, desc) in outputs.items():
            dims = [None] * len(desc.shape) if self.any_size else desc.shape
            body += field(12, value_info(name, desc.data_type, dims))
        model = field(1, IR_VERSION) + field(2, "opweave") + field(7, bytes(body))
        opsets = field(8, field(1, "") + field(2, opset_of(nodes))) + field(8, field(1, MICROSOFT) + field(2, 1))
        return model + opsets, by_reference

    def _append(self, op_type: str, inputs: list[str], outputs: list[str], attributes: bytes, domain: str = "") -> None:
        # The engine wants names that differ; they appear in its profiles and errors.
        label = (self.node.label or self.node.op.name).encode("ascii", "backslashreplace").decode()
        name = f"{label}#{len(self.nodes)}"
        node = OnnxNode(op_type, inputs, outputs, attributes, domain, name)
        self.nodes.append(node)
        self._makers.update(dict.fromkeys(outputs, node))
        if inputs and all(self.is_foldable(name) for name in inputs if name):
            self._foldable.update(outputs)

    def _needed(self, names: set[str]) -> list[OnnxNode]:
        """The nodes that the values called `names` depend on; the bytes of a bool that only decides are made for nothing."""
        needed: list[OnnxNode] = []
        for node in reversed(self.nodes):
            if not names.isdisjoint(node.outputs):
                needed.append(node)
                names.update(node.inputs)
        return needed[::-1]

    def is_foldable(self, name: str) -> bool:
        """Whether the value called `name` is a constant, or one that the engine computes from constants beforehand."""
        return name in self.constants or name in self._foldable

    def is_number(self, name: str) -> bool:
        """Whether the value called `name` is a constant of one element, or may be one once the engine has computed it."""
        array = self.constants.get(name)
        return name in self._foldable if array is None else array.size == 1

    def maker(self, name: str) -> OnnxNode | None:
        """The node that has computed the value called `name`; None for inputs and constants."""
        return self._makers.get(name)

    def fresh(self) -> str:
        """A name for a value."""
        self._count += 1
        return f"{self._prefix}t{self._count}"

    def _compared(self, op_type: str, first: Value, *others: Value | None) -> Value:
        """Emit Clip, Max or Min of int64 without the faulty kernels."""
        self.has_kernels = False
        result = first
        steps = zip(("Max", "Min"), others, strict=False) if op_type == "Clip" else ((op_type, o) for o in others)
        for step, other in steps:
            if other is not None:
                chosen = self.emit("Less" if step == "Max" else "Greater", result, other, data_type="bool")
                result = self.emit("Where", chosen, other, result)
        return result

    def _kernel_type(self, op_type: str, data_type: str, domain: str, inputs: Sequence[Value | None]) -> str:
        """The data type in which to run `op_type` for operands of `data_type`: one that the engine has a kernel for."""
        if data_type == "float32" or (data_type == "float16" and self._has_halves):
            return data_type  # there is a kernel for every operator; the registry, which takes megabytes, is not asked
        have = kernels.data_types(op_type, domain)
        if have is None or data_type in have:
            return "float32" if data_type == "float16" and not domain and self._are_wide(inputs) else data_type
        self.has_kernels = False
        if data_type == "float16":
            return "float32" if "float32" in have else data_type
        return next((wide for wide in _WIDER.get(data_type, ()) if wide in have), data_type)

    def _are_wide(self, inputs: Sequence[Value | None]) -> bool:
        """Whether all operands of float16 that are computed also exist as float32."""
        halves = [v.name for v in inputs if v is not None and v.data_type == "float16" and v.name not in self.constants]
        return bool(halves) and all(name in self._widened_halves for name in halves)

    def _widen(self, value: Value, data_type: str) -> Value:
        """`value` in a wider data type, for a kernel.

        Of float16, the engine would widen operands itself. It would then remove its cast, and with it the one before that
        rounds to float16, even if that is an operation of the graph. It keeps a pair of casts that the model has.
        """
        if value.data_type != "float16":
            return self.cast(value, data_type)
        widened = self._widened_halves.get(value.name)
        if widened is None:
            array = self.array_of(value)
            if array is not None and array.nbytes <= INLINE_BYTES:
                wide = self.add_constant(array.astype(data_type))
            else:
                wide = self.cast(value, data_type)
            widened = self._widened_halves[value.name] = _Widened(wide, None)
        elif widened.maker is not None and widened.maker is not self.node:
            self.unrounded.add(widened.maker)
        return widened.value

    def _narrow(self, value: Value, data_type: str) -> Value:
        """The result of a kernel in the data type of the operation."""
        result = self.cast(value, data_type)
        if data_type == "float16" and value is not result:
            self._widened_halves[result.name] = _Widened(value, self.node)
        return result
