"""Write ONNX models: the protocol buffers by hand, weights by reference.

An `Emitter` collects nodes; `finish()` returns the bytes of a ModelProto. Small constants are inlined, which shape inference
and constant folding require. Large constants are external data: arrays of a memory-mapped file by path (relative to `/`) and
offset, which the engine maps itself; other arrays are passed to the session. Field numbers come from onnx.proto3.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from ... import memory
from ...core.dtypes import BEYOND, FLOAT64, INFO, ONNX_TYPES, name_of, numpy_type
from ...core.sizes import Size, is_same_shape, is_same_size, is_static, is_unknown, may_exceed
from ...support.records import record
from ..size_input import SizeInput
from . import kernels
from .barriers import keep_casts_apart, keep_outputs_apart, keep_signs_of_zeros
from .records import (
    EMPTY_FILE,
    INLINE_BYTES,
    INLINE_BYTES_OF_RULES,
    IR_VERSION,
    OPAQUE,
    OnnxNode,
    Subgraph,
    attribute,
    external_data,
    external_fields,
    field,
    opset_of,
    packed_bytes,
    value_info,
)

if TYPE_CHECKING:
    from ...core.graph import Desc, Graph, Node
    from .. import How, Precision
    from .size_values import SizeValues

T = TypeVar("T")

MICROSOFT = "com.microsoft"

# Wider types to try, in this order, where the engine has no kernel for a type.
_WIDER = {
    "int8": ("int32", "int64"),
    "uint8": ("int32", "uint32", "int64"),
    "int16": ("int32", "int64"),
    "uint16": ("int32", "uint32", "int64"),
    "int32": ("int64",),
    "uint32": ("int64",),
    "float16": ("float32",),
    "bfloat16": ("float32",),
}

# Kernels that are wrong for int64 if two numbers differ in bit 31 but not above:
# https://github.com/microsoft/onnxruntime/pull/32475. Comparisons and Where are correct.
_COMPARED_WRONGLY = {"Clip", "Max", "Min"}


_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}
"""Operators that return their first operand if the second is this number."""


@record(eq=True)
class Value:
    """A value of the ONNX graph. The shape is None if no rule needed it."""

    name: str
    data_type: str
    shape: tuple[int, ...] | None = None

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape; an error if it is unknown."""
        assert self.shape is not None, f"the shape of {self.name} is not known; pass shape= where it is emitted"
        return self.shape


def _for_any_size(old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """Return the argument of a size-independent Reshape from `old` to `new`: 0 keeps a size, -1 infers it.

    >>> _for_any_size((1, 64, 576), (1, 64, 18, 32)), _for_any_size((1, 64, 576), (64, 576))
    ([0, 0, 18, 32], [-1, 576])
    >>> n = Size("n")
    >>> _for_any_size((n, 64, 576), (n, 18, 32, 64)), _for_any_size((2, n, 3), (2 * n, 3))
    ([0, 18, 32, 64], [-1, 3])
    >>> _for_any_size((1,), ())
    []
    """
    if is_static(old) and is_static(new):
        # The first two dimensions are merged.
        if len(old) > 1 and len(new) == len(old) - 1 and list(new[1:]) == list(old[2:]):
            return [-1, *new[1:]]
        if len(new) > 1 and list(new) == [1, *old]:
            return [1, -1, *new[2:]]
    sizes = list(new)
    for axis, (one, other) in enumerate(zip(old, new, strict=False)):
        if not is_same_size(one, other):
            break
        sizes[axis] = 0
    named = [axis for axis, size in enumerate(sizes) if isinstance(size, Size)]
    if len(named) == 1:
        sizes[named[0]] = -1
    return sizes


@record(eq=True)
class _Widened:
    """A float16 value in float32. `producer` computed it and rounded it to float16; None if it was float16 before."""

    value: Value
    producer: Node | None


EmittedGraph: TypeAlias = "tuple[Emitter, dict[str, tuple[Value, Desc]], dict[Node, How]]"
"""The emitter, the outputs, and the kind of implementation of each node."""


class Emitter:
    """Collect the ONNX nodes that the rules emit.

    Args:
        portable: whether other engines read the model; rules then omit rewrites for this engine, and inputs keep their names.
        prefix: prefix of the names of intermediate values; no input or output may begin with it.
        any_size: whether inputs may have any size in all dimensions but the last, so that graphs that differ only in sizes
            become the same model.
        has_halves: whether all operators run in float16. The engine's provider for the CPU has few such kernels.
        outer: the emitter of the graph around this one, if this one is the sub-graph of a node.

    While a rule runs, `node` is the node being lowered, and `graph` is its graph.
    """

    graph: Graph
    node: Node
    has_kernels: bool
    """Whether the engine has kernels of the same data type for all nodes emitted for `node`."""
    lacks_kernels: bool
    """Whether it also has none of a wider type for one of them."""
    disabled_optimizers: set[str]
    """Optimiser passes that the session must not run."""
    sizes: dict[str, int]
    """Size in bytes of inputs and of results of lowered nodes, by name."""
    parameters: dict[str, np.ndarray]
    size_inputs: dict[str, SizeInput]
    """Inputs whose values depend on the sizes of a run, by name."""
    body_nodes: list[OnnxNode]
    """Nodes of sub-graphs."""
    labels: dict[str, str]
    """Label or operation of the node that each ONNX node was emitted for, by the ONNX node's name."""

    written: dict[Node, list[tuple[str, str]]]
    """Name and operator of each ONNX node emitted for a node."""

    permutations: dict[str, tuple[int, ...]]
    """The axes of the operand of each transposition, by the name of its result."""

    kernel_constants: set[str]
    """Large constants of the finished model that kernels alone read, and not the engine's optimiser."""

    external: dict[str, np.ndarray]
    """Large constants of the finished model, which are outside of it."""

    structure: bytes
    """The finished model, without the contents and places of large constants."""

    unrounded: set[Node]
    """Nodes with a float16 result that another node reads in float32, before it is rounded."""

    def __init__(
        self,
        *,
        portable: bool = False,
        prefix: str = "",
        any_size: bool = False,
        precision: Precision = "float32",
        has_halves: bool = False,
        outer: Emitter | None = None,
    ) -> None:
        self._outer = outer
        self.portable, self._prefix, self.any_size, self.precision = portable, prefix, any_size, precision
        self._has_halves = portable or has_halves
        self._widened_halves: dict[str, _Widened] = {}
        self.unrounded: set[Node] = set()
        self.parameters: dict[str, np.ndarray] = {}
        self.size_inputs: dict[str, SizeInput] = {}
        self.labels: dict[str, str] = {}
        self.nodes: list[OnnxNode] = []
        self.body_nodes: list[OnnxNode] = []
        self.constants: dict[str, np.ndarray] = {}
        self.disabled_optimizers: set[str] = set()
        self.kernel_constants: set[str] = set()
        self.external: dict[str, np.ndarray] = {}
        self.structure = b""
        self.sizes: dict[str, int] = {}
        self.written: dict[Node, list[tuple[str, str]]] = {}
        self._inline: set[str] = set()
        self._values: dict[Any, Value] = {}
        self._bools: dict[str, Value] = {}
        self._answers: dict[Callable[[Graph], Any], Any] = {}
        self._before_reshape: dict[str, Value] = {}
        self._inputs: list[bytes] = []
        self._input_names: set[str] = set()
        self._producers: dict[str, OnnxNode] = {}
        self._moves_first: set[str] = set()
        self.permutations: dict[str, tuple[int, ...]] = {}
        self._names: set[str] = set()
        self._computed_sizes: SizeValues | None = None
        if portable:
            from .size_values import SizeValues  # imported late, since models that run get sizes as inputs

            self._computed_sizes = SizeValues(self)
        # Values that depend on constants only: the engine folds them.
        self._foldable: set[str] = set()
        self._count = 0

    # For rules -------------------------------------------------------------------------------------------------------

    @property
    def output(self) -> Desc:
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
            inputs: operands; None for an omitted optional operand.
            data_type: data type of the outputs; default: that of the first input that is not a bool.
            shape: shape of the outputs, if a later step of the rule needs it.
            domain: empty for ONNX's own operators, `MICROSOFT` for the engine's.
            attributes: the ONNX attributes; None omits one. Floats must be Python floats.

        If the engine has no kernel for an integer type, operands are cast to the next wider type with a kernel, and the
        result is cast back, which wraps around. float16 is widened to float32; later operators read the float32 result, before
        it is rounded, unless `round` is called.
        """
        deciding = next((v for v in inputs if v is not None and v.data_type != "bool"), None)
        narrow = deciding.data_type if deciding is not None else "bool"
        if deciding is not None and narrow == "int64" and op_type in _COMPARED_WRONGLY:
            return self._emit_by_comparison(op_type, deciding, *inputs[1:])
        result_type = data_type or narrow
        wide = self._kernel_type(op_type, narrow, domain, inputs)
        if wide != narrow:
            inputs = tuple(self._widen(v, wide) if v is not None and v.data_type == narrow else v for v in inputs)
        names = ["" if v is None else v.name for v in inputs]
        while names and not names[-1]:
            names.pop()
        results = [self.fresh() for _ in range(outputs)]
        encoded = b"".join(field(5, attribute(k, v)) for k, v in attributes.items() if v is not None)
        self._append(op_type, names, results, encoded, domain)
        computed = wide if result_type == narrow else result_type
        dims = tuple(shape) if shape is not None else None
        values = [self._narrow(Value(name, computed, dims), result_type) for name in results]
        return values[0] if outputs == 1 else values

    def round(self, value: Value) -> None:
        """Let later operators read the float16 value, not the float32 value that was rounded to it."""
        self._widened_halves.pop(value.name, None)

    def answer(self, question: Callable[[Graph], T]) -> T:
        """Return `question(graph)`, computed once per graph."""
        if question not in self._answers:
            self._answers[question] = question(self.graph)
        answer: T = self._answers[question]
        return answer

    def constant(self, value: Any, data_type: str = "int64") -> Value:
        """Add a constant of a rule (axes, shapes, scalars); equal constants are stored once.

        A list of sizes, some of which have names, becomes an input of the model, which gets its numbers in each run. A
        portable model computes them.
        """
        if isinstance(value, Size) or (isinstance(value, (list, tuple)) and not is_static(value)):
            if self._computed_sizes is not None:
                return self.cast(self._computed_sizes.tensor(value), data_type)
            values, shape = (value, ()) if isinstance(value, Size) else (tuple(value), (len(value),))
            return self.add_size_input(SizeInput(data_type, shape, None, values))
        array = np.array(value, numpy_type(data_type), order="C")
        key = (data_type, array.shape, array.tobytes())
        if key not in self._values:
            self._values[key] = self.add_constant(array, INLINE_BYTES_OF_RULES)
        return self._values[key]

    def full(self, shape: Sequence[int], value: float, data_type: str) -> Value:
        """Add a tensor whose elements are equal."""
        if is_static(shape):
            return self.constant(np.full(shape, value), data_type)
        tensor: Value = self.emit("Expand", self.constant(value, data_type), self.constant(shape), shape=shape)
        return tensor

    def scalar(self, value: float, like: Value) -> Value:
        """Add a constant of rank 0 with the data type of `like`."""
        return self.constant(value, like.data_type)

    def parameter(self, value: Any, data_type: str = "int64") -> Value:
        """Add a constant that depends on sizes; with `any_size` it becomes an input of the model."""
        if not self.any_size or (isinstance(value, (list, tuple)) and not is_static(value)):
            return self.constant(value, data_type)
        array = np.array(value, data_type)
        key = ("parameter", data_type, array.shape, array.tobytes())
        if key not in self._values:
            self._values[key] = parameter = Value(f"p{len(self.parameters)}", data_type, array.shape)
            self.parameters[parameter.name] = array
            self._inputs.append(value_info(parameter.name, data_type, array.shape))
        return self._values[key]

    def computed(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], data_type: str, shape: Sequence[int]
    ) -> Value:
        """Add the array that a function of sizes computes; it becomes an input of the model, whose values each run gets.

        A portable model computes real numbers and consecutive integers. Other functions are an error there.
        """
        if self._computed_sizes is None:
            return self.add_size_input(SizeInput(data_type, tuple(shape), function, arguments))
        value = self.cast(self._computed_sizes.computed(function, arguments), data_type)
        return value if len(shape) == 1 else self.reshape(value, shape)

    def add_size_input(self, source: SizeInput) -> Value:
        """Add an input of the model whose values depend on the sizes of a run."""
        if self._outer is not None:
            return self._outer.add_size_input(source)
        if source not in self._values:
            self._values[source] = parameter = Value(f"s{len(self.size_inputs)}", source.data_type, source.shape)
            self.size_inputs[parameter.name] = source
            self._inputs.append(value_info(parameter.name, source.data_type, self._dims(source.shape)))
        return self._values[source]

    def array_of(self, value: Value) -> np.ndarray | None:
        return self.constants.get(value.name)

    def cast(self, value: Value, data_type: str) -> Value:
        """Cast `value`; no node if it has the data type. A number that was cast from a bool returns that bool."""
        if value.data_type == data_type:
            return value
        if data_type == "bool" and value.name in self._bools:
            return self._bools[value.name]
        # Rules compute float64 in float64, or not at all.
        self.lacks_kernels |= value.data_type == "float64" and self.node.outputs[0].data_type == FLOAT64
        name = self.fresh()
        encoded = field(5, attribute("to", ONNX_TYPES[data_type]))
        if data_type.startswith("float8"):
            encoded += field(5, attribute("saturate", 0))  # the default is 1
        self._append("Cast", [value.name], [name], encoded)
        if value.data_type == "bool":
            self._bools[name] = value
        return Value(name, data_type, value.shape)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Reshape `value`; no node if it has the shape, and one for consecutive reshapes.

        Constants are reshaped at build time: the engine's optimiser ignores scales and zero points that a node computes.
        """
        value = self.before_reshape(value)
        # Shapes that are equal for the sizes of one run only would need a separate program.
        if value.shape is not None and is_same_shape(value.shape, shape):
            return value
        array = self.array_of(value)
        if array is not None:
            return self.add_constant(array.reshape(shape))
        has_names = not is_static(shape) or not is_static(value.shape or ())
        target = _for_any_size(value.shape or (), shape) if self.any_size or has_names else list(shape)
        result: Value = self.emit("Reshape", value, self.constant(target), shape=shape)
        self._before_reshape[result.name] = value
        return result

    def is_declared(self, value: Value) -> bool:
        """Whether the model declares the shape of a value: that of a constant, or of an input."""
        return value.name in self._input_names or self.array_of(value) is not None

    def before_reshape(self, value: Value) -> Value:
        """The value that was reshaped to `value`, or else `value` itself."""
        return self._before_reshape.get(value.name, value)

    def transpose(self, value: Value, permutation: Sequence[int]) -> Value:
        """Permute the axes of `value`; no node for the identity, a Reshape if only axes of size 1 move."""
        if list(permutation) == sorted(permutation):
            return value
        shape = None if value.shape is None else [value.shape[axis] for axis in permutation]
        if shape is not None:
            longer = [axis for axis in permutation if may_exceed(value.dims[axis], 1)]
            if longer == sorted(longer):
                return self.reshape(value, shape)
        result: Value = self.emit("Transpose", value, perm=list(permutation), shape=shape)
        self.permutations[result.name] = tuple(permutation)
        if permutation[0] != 0:
            self._moves_first.add(result.name)
        return result

    def producers(self, name: str, through: Container[str] = ()) -> Iterator[OnnxNode]:
        """Yield the node that computes the value `name`; while its operator is in `through`, follow its first operand.

        Nodes that change nothing are skipped.
        """
        while (node := self._producers.get(name)) is not None:
            kept = self.unchanged_operand(node)
            if kept is None:
                yield node
                if node.op_type not in through:
                    return
            name = node.inputs[kept or 0]

    def unchanged_operand(self, node: OnnxNode) -> int | None:
        """Return the position of the operand that a node passes on unchanged, such as a in a * 1 or Cast(a); None if none.

        The engine's optimiser may remove such a node. An operand that the engine folds may be neutral, so it counts as such.
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

    def insert_barrier(self, value: Value) -> Value:
        """Return `value` behind a barrier: an Identity, without a copy, which the engine's optimiser keeps."""
        self.disabled_optimizers.add("EliminateIdentity")
        result: Value = self.emit("Identity", value, shape=value.shape)
        return result

    def relayout(self, value: Value, layout: str, target: str) -> Value:
        """Transpose `value` from `layout` to the layout `target`; each letter names an axis."""
        return value if layout == target else self.transpose(value, [layout.index(letter) for letter in target])

    # Sub-graphs ------------------------------------------------------------------------------------------------------

    def inner(self) -> Emitter:
        """Make an emitter for a sub-graph of the current node, whose names differ from those around it."""
        self._count += 1
        return Emitter(
            portable=self.portable,
            prefix=f"{self._prefix}b{self._count}_",
            precision=self.precision,
            has_halves=self._has_halves,
            outer=self,
        )

    @property
    def is_inner(self) -> bool:
        """Whether the nodes are those of a sub-graph."""
        return self._outer is not None

    def name_of_input(self, name: str, number: int) -> str:
        """The name of an input in the model."""
        if self._outer is not None:
            return f"{self._prefix}i{number}"
        return name if self.portable else f"i{number}"

    def sub_graph(self, outputs: Sequence[tuple[Value, Desc]]) -> tuple[Subgraph, tuple[str, ...]]:
        """Encode the nodes of a sub-graph; return it with the names of the values that it reads from around it.

        Small constants are part of it. Others belong to the graph around it, as do inputs that depend on sizes.
        """
        outer = self._outer
        assert outer is not None
        named = {f"{self._prefix}o{k}": output for k, output in enumerate(outputs)}
        body, nodes = self._encode_nodes(named)
        captures = {name: None for node in nodes for name in (*node.inputs, *node.captures) if name}
        own = {name for node in nodes for name in node.outputs}
        for name, array in self.constants.items():
            if name in captures and name in self._inline:
                body += field(5, _initializer(name, array) + field(9, packed_bytes(array)))
                own.add(name)
            elif name in captures:
                outer.constants[name] = array
        body += field(2, f"{self._prefix}body") + b"".join(field(11, info) for info in self._inputs)
        for name, (_, desc) in named.items():
            body += field(12, value_info(name, desc.data_type, self._dims(desc.shape)))
        own |= self._input_names
        outer.body_nodes += [*nodes, *self.body_nodes]
        outer.labels |= self.labels
        outer.disabled_optimizers |= self.disabled_optimizers
        outer.unrounded |= self.unrounded
        return Subgraph(body), tuple(name for name in captures if name not in own)

    def repeat(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        descs: Sequence[Desc],
        captures: Sequence[str],
        **attributes: Any,
    ) -> list[Value]:
        """Add a node with sub-graphs, which read `captures` from this graph; its results have different types."""
        names = ["" if value is None else value.name for value in inputs]
        results = [self.fresh() for _ in descs]
        encoded = b"".join(field(5, attribute(k, v)) for k, v in attributes.items() if v is not None)
        self._append(op_type, names, results, encoded, "", tuple(dict.fromkeys(captures)))
        return [Value(name, desc.data_type, desc.shape) for name, desc in zip(results, descs, strict=True)]

    # For the back end ------------------------------------------------------------------------------------------------

    def add_input(self, name: str, desc: Desc) -> Value:
        dims = self._dims(desc.shape)
        if self.any_size:
            dims[:-1] = [f"{name}_{axis}" for axis in range(len(dims) - 1)]
        self._input_names.add(name)
        self._inputs.append(value_info(name, desc.data_type, dims))
        self.sizes[name] = desc.byte_length
        value = Value(name, desc.data_type, desc.shape)
        self.note_sizes(value, desc.shape)
        return value

    def add_flag_input(self, name: str) -> Value:
        """Declare an input that is a truth value, as the body of a Loop has one."""
        self._input_names.add(name)
        self._inputs.append(value_info(name, "bool", ()))
        return Value(name, "bool", ())

    def note_sizes(self, value: Value, shape: Sequence[int]) -> None:
        """Note the dimensions of a value, from which a portable model computes sizes with names."""
        if self._computed_sizes is not None:
            self._computed_sizes.note(value, shape)

    def _dims(self, shape: Sequence[Any]) -> list[int | str | None]:
        """Dimensions as ONNX has them: sizes have their text, but for unknown sizes and formulas that look like a name."""
        dims: list[int | str | None] = []
        for size in shape:
            if not isinstance(size, Size):
                dims.append(size)
            elif size.name:
                self._names.add(size.name)
                dims.append(size.name)
            else:
                dims.append(None if is_unknown(size) or str(size) in self._names else str(size))
        return dims

    def add_constant(self, array: np.ndarray, inline_bytes: int = INLINE_BYTES) -> Value:
        """Declare an initializer: inline up to `inline_bytes`, else by reference."""
        name = f"{self._prefix}c{len(self.constants)}"
        self.constants[name] = array
        info = INFO.get(array.dtype.name)
        # Sessions take packed arrays only as a part of the model.
        is_packed = info is not None and info.bits < 8
        if array.nbytes <= inline_bytes or is_packed:
            self._inline.add(name)
        return Value(name, name_of(array.dtype), array.shape)

    def finish(
        self, outputs: Mapping[str, tuple[Value, Desc]], *, hides_constants: bool = False
    ) -> tuple[bytes, dict[str, np.ndarray]]:
        """Return the bytes of the model, and the arrays to pass to the session, by initializer name.

        Args:
            outputs: the results of the graph by name.
            hides_constants: whether the session passes `kernel_constants` to kernels only, so that it makes no copies of them.
        """
        body, nodes = self._encode_nodes(outputs)
        # The engine refuses external initializers without readers, and some constants serve only choices of rules.
        read = {name for node in nodes for name in (*node.inputs, *node.captures)}
        constants = {name: array for name, array in self.constants.items() if name in read}
        by_reference: dict[str, np.ndarray] = {}
        hidden = self._read_by_kernels_only(nodes) if hides_constants and os.name == "posix" else set()
        files = memory.mapped_files(array for name, array in constants.items() if name not in self._inline)
        declared, placed = bytearray(), bytearray()
        for name, array in constants.items():
            proto = _initializer(name, array)
            if name in self._inline:
                body += field(5, proto + field(9, packed_bytes(array)))
                continue
            self.external[name] = array
            declared += proto
            place = external_data(name, array, files)
            if "offset" not in place:
                by_reference[name] = array
                if name in hidden:
                    self.kernel_constants.add(name)
                    place = {"location": EMPTY_FILE[1:]}
            placed += field(5, proto + external_fields(place))
        body += field(2, "opweave") + b"".join(field(11, info) for info in self._inputs)
        for name, (_, desc) in outputs.items():
            dims = self._dims(desc.shape)
            if not self.portable:
                dims = [None if self.any_size or isinstance(size, str) else size for size in dims]
            body += field(12, value_info(name, desc.data_type, dims))
        opsets = field(8, field(1, "") + field(2, opset_of([*nodes, *self.body_nodes]))) + field(
            8, field(1, MICROSOFT) + field(2, 1)
        )
        self.structure = bytes(body + declared) + opsets
        model = field(1, IR_VERSION) + field(2, "opweave") + field(7, bytes(body + placed))
        return model + opsets, by_reference

    def _read_by_kernels_only(self, nodes: Sequence[OnnxNode]) -> set[str]:
        """Names of the operands that only nodes of `OPAQUE` read, which the engine does not fold."""
        opaque, others = set[str](), set[str]()
        for node in (*nodes, *self.body_nodes):
            is_opaque = node.op_type in OPAQUE and not all(self.is_foldable(name) for name in node.inputs if name)
            (opaque if is_opaque else others).update(node.inputs)
            others.update(node.captures)
        return opaque - others

    def _encode_nodes(self, outputs: Mapping[str, tuple[Value, Desc]]) -> tuple[bytearray, list[OnnxNode]]:
        """Encode the nodes that outputs depend on, which get their names; return them, too."""
        computed = {name for node in self.nodes for name in node.outputs}
        captured = {name for node in self.nodes for name in node.captures}  # sub-graphs are encoded already
        renamed: dict[str, str] = {}
        for name, (value, _) in outputs.items():
            if value.name in computed and value.name not in renamed and value.name not in captured:
                renamed[value.name] = name
            else:  # an input, a constant or another output: the engine requires a node in between
                self.nodes.append(OnnxNode("Identity", [value.name], [name], b"", "", name))
        if not self.portable:
            keep_casts_apart(self, self._moves_first)
            keep_outputs_apart(self, computed.intersection(value.name for value, _ in outputs.values()))
            keep_signs_of_zeros(self)
        body = bytearray()
        nodes = self._nodes_for({*outputs, *(value.name for value, _ in outputs.values())})
        for node in nodes:
            proto = b"".join(field(1, renamed.get(name, name)) for name in node.inputs)
            proto += b"".join(field(2, renamed.get(name, name)) for name in node.outputs)
            proto += field(3, node.name) + field(4, node.op_type) + node.attributes
            body += field(1, proto + field(7, node.domain) if node.domain else proto)
        return body, nodes

    def _append(
        self,
        op_type: str,
        inputs: list[str],
        outputs: list[str],
        attributes: bytes,
        domain: str = "",
        captures: tuple[str, ...] = (),
    ) -> None:
        # Names must be unique; they appear in the engine's profiles and errors.
        label = self.node.label or self.node.op.name
        name = f"{label.encode('ascii', 'backslashreplace').decode()}#{self._prefix if self._outer else ''}{len(self.nodes)}"
        self.labels[name] = label
        node = OnnxNode(op_type, inputs, outputs, attributes, domain, name, captures)
        self.nodes.append(node)
        self._producers.update(dict.fromkeys(outputs, node))
        if inputs and not captures and all(self.is_foldable(name) for name in inputs if name):
            self._foldable.update(outputs)

    def _nodes_for(self, names: set[str]) -> list[OnnxNode]:
        """Return the nodes that the values `names` depend on; omit, for example, casts of bools that only `where` reads."""
        needed: list[OnnxNode] = []
        for node in reversed(self.nodes):
            if not names.isdisjoint(node.outputs):
                needed.append(node)
                names.update(node.inputs)
                names.update(node.captures)
        return needed[::-1]

    def is_foldable(self, name: str) -> bool:
        """Whether the value `name` is a constant, or computed from constants only."""
        return name in self.constants or name in self._foldable

    def is_number(self, name: str) -> bool:
        """Whether the value `name` is a constant of one element, or may become one by folding."""
        array = self.constants.get(name)
        return name in self._foldable if array is None else array.size == 1

    def producer(self, name: str) -> OnnxNode | None:
        return self._producers.get(name)

    def fresh(self) -> str:
        self._count += 1
        return f"{self._prefix}t{self._count}"

    def _emit_by_comparison(self, op_type: str, first: Value, *others: Value | None) -> Value:
        self.has_kernels = False
        result = first
        steps = zip(("Max", "Min"), others, strict=False) if op_type == "Clip" else ((op_type, o) for o in others)
        for step, other in steps:
            if other is not None:
                chosen = self.emit("Less" if step == "Max" else "Greater", result, other, data_type="bool")
                result = self.emit("Where", chosen, other, result)
        return result

    def _kernel_type(self, op_type: str, data_type: str, domain: str, inputs: Sequence[Value | None]) -> str:
        """Return a data type for which the engine has a kernel."""
        if data_type == "float32" or (data_type == "float16" and self._has_halves):
            return data_type  # every operator has a kernel; reading the registry would take megabytes
        have = kernels.data_types(op_type, domain)
        if have is None:
            self.lacks_kernels |= data_type in BEYOND
            return data_type
        if data_type in have:
            return "float32" if data_type == "float16" and not domain and self._are_wide(inputs) else data_type
        self.has_kernels = False
        wide = next((wide for wide in _WIDER.get(data_type, ()) if wide in have), data_type)
        self.lacks_kernels |= wide == data_type
        return wide

    def _are_wide(self, inputs: Sequence[Value | None]) -> bool:
        """Whether all computed float16 operands also exist as float32."""
        halves = [v.name for v in inputs if v is not None and v.data_type == "float16" and v.name not in self.constants]
        return bool(halves) and all(name in self._widened_halves for name in halves)

    def _widen(self, value: Value, data_type: str) -> Value:
        """Cast `value` to the wider data type of a kernel.

        The engine would widen float16 itself, and remove its cast together with a preceding cast to float16, so that the value
        is not rounded. It keeps pairs of casts that the model contains.
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
        elif widened.producer is not None and widened.producer is not self.node:
            self.unrounded.add(widened.producer)
        return widened.value

    def _narrow(self, value: Value, data_type: str) -> Value:
        result = self.cast(value, data_type)
        if data_type == "float16" and value is not result:
            self._widened_halves[result.name] = _Widened(value, self.node)
        return result


def _initializer(name: str, array: np.ndarray) -> bytes:
    """Encode the shape, the data type and the name of an initializer."""
    dims = b"".join(field(1, size) for size in array.shape)
    return dims + field(2, ONNX_TYPES[name_of(array.dtype)]) + field(8, name)
