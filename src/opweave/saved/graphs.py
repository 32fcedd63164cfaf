"""Graphs in the manifest of a file.

A graph is its inputs, constants, nodes and outputs. Operands are numbered: inputs, constants, then the results of the nodes.
Reading adds each node to a builder, as a user's call would: the functions of the operations check everything again, and
infer the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.bodies import Body, add_input
from ..core.conversion import SizeHint
from ..core.dtypes import INFO, numpy_type
from ..core.graph import Builder, Desc, Graph, Operand, check_desc, map_operands
from ..core.guards import Guards
from ..core.operation import Op
from ..core.sizes import Symbol
from ..memory.arrays import unpack
from ..ops.constants import computed
from ..ops.recorder import Recorder
from ..support.errors import NotSupportedError
from ..support.names import short_repr
from .container import Container, ContainerWriter
from .operations import find_operation, reference_of
from .values import MAX_DEPTH, Damaged, check_computed, decode, decode_dimension, encode, encode_dimension

if TYPE_CHECKING:
    from ..core.size_rules import NamedSizeRule

SMALL = "opweave.small"
"""The section of all small constants, one behind the other."""

SMALL_BYTES = 4096
"""The largest constant in that section: a separate section takes 200 bytes of header and padding."""

CONSTANT = "constant."

ELEMENT_ALIGNMENT = 16
"""Alignment of small constants."""


class GraphWriter:
    """Writes graphs, whose constants become sections.

    Attributes:
        operations: the names of the operations, in the order of their numbers.
        constants: data type, shape and place of each constant. The place is the name of a section, or an offset in the section
            of small constants.
    """

    def __init__(self, writer: ContainerWriter) -> None:
        self._writer = writer
        self.operations: list[str] = []
        self.constants: list[list[Any]] = []
        self._numbers: dict[Op[..., Any], int] = {}
        self._places: dict[tuple[Any, ...], int] = {}
        self._kept: list[np.ndarray] = []
        self._small = bytearray()

    def encode(self, graph: Graph) -> dict[str, Any]:
        """The graph as JSON.

        Raises:
            NotSupportedError: an operation cannot be found by its name, or an attribute cannot be written.
        """
        constants = list(dict.fromkeys([*graph.constants, *(o for o in graph.outputs.values() if o.is_constant)]))
        numbers = {operand: k for k, operand in enumerate([*graph.inputs.values(), *constants])}
        nodes = []
        for node in graph.nodes:
            inputs = map_operands(node.inputs, numbers.__getitem__)
            try:
                attributes = {
                    name: encode(value, lambda body: self.encode(body.graph), self._constant)
                    for name, value in node.attributes.items()
                }
                nodes.append([self._operation(node.op), inputs, attributes, node.label])
            except NotSupportedError as error:
                raise NotSupportedError(f"{node.title}: {error}") from None
            for output in node.outputs:
                numbers[output] = len(numbers)
        return {
            "inputs": [
                [name, operand.data_type, [*map(encode_dimension, operand.shape)]]
                for name, operand in graph.inputs.items()
            ],
            "constants": [self._constant(operand.value) for operand in constants],
            "nodes": nodes,
            "outputs": [[name, numbers[operand]] for name, operand in graph.outputs.items()],
        }

    def finish(self) -> None:
        """Add the section of small constants."""
        self._writer.add(SMALL, "uint8", (len(self._small),), bytes(self._small))

    def _operation(self, op: Op[..., Any]) -> int:
        if op not in self._numbers:
            reference = reference_of(op)
            if not reference:
                raise NotSupportedError(
                    f"a file names operations by their module, and {op.__module__} has no {op.__qualname__}, as it is with "
                    "operations that functions declare; declare it in a module"
                )
            self._numbers[op] = len(self.operations)
            self.operations.append(reference)
        return self._numbers[op]

    def _constant(self, value: Any) -> int:
        """The number of a constant; those in the same memory are written once."""
        array = np.asarray(value, order="C")
        data_type, shape = array.dtype.name, array.shape
        key = array.__array_interface__["data"][0], array.nbytes, data_type, shape
        if key not in self._places or array.nbytes == 0:
            self._kept.append(array)  # so that no other array gets its address
            self._places[key] = len(self.constants)
            self.constants.append([data_type, list(shape), self._place(array)])
        return self._places[key]

    def _place(self, array: np.ndarray) -> str | int:
        packed = pack(array)
        if packed.nbytes > SMALL_BYTES:
            start = array.__array_interface__["data"][0], array.nbytes
            if start in self._places:  # other shapes of the same memory
                return f"{CONSTANT}{self._places[start]}"
            name = f"{CONSTANT}{len(self.constants)}"
            self._places[start] = len(self.constants)
            self._writer.add(name, array.dtype.name, array.shape, packed)
            return name
        self._small += bytes(-len(self._small) % ELEMENT_ALIGNMENT)
        offset = len(self._small)
        self._small += packed.tobytes()
        return offset


def pack(array: np.ndarray) -> np.ndarray:
    """An array with elements of less than 8 bits as bytes with several of them, the first in the lowest bits; else itself.

    >>> pack(np.array([1, -2, 3]).astype(numpy_type("int4"))).tolist()
    [225, 3]
    """
    info = INFO[array.dtype.name]
    if info.bits >= 8:
        return array
    count, per_byte = array.size, 8 // info.bits
    if info.kind == "f":
        codes = array.reshape(-1).view(np.uint8)
    else:
        codes = array.reshape(-1).astype(np.int8).view(np.uint8)
    groups = np.append(codes & ((1 << info.bits) - 1), np.zeros(-count % per_byte, np.uint8)).reshape(-1, per_byte)
    shifts = np.arange(0, 8, info.bits, dtype=np.uint8)
    packed: np.ndarray = np.bitwise_or.reduce(groups << shifts, axis=1)
    return packed.astype(np.uint8)


class GraphReader:
    """Reads the graphs of a manifest.

    Args:
        container: the file.
        operations: the names of the operations.
        constants: data type, shape and place of each constant.
        may_import: whether third-party modules are imported for their operations.
        max_byte_length: the largest tensor, in bytes.
    """

    def __init__(
        self, container: Container, operations: Any, constants: Any, may_import: bool, max_byte_length: int
    ) -> None:
        _require(_is_list(operations, str), "a list of operations", operations)
        _require(_is_list(constants, list), "a list of constants", constants)
        self._container, self._path = container, container.path
        self._references, self._may_import = operations, may_import
        self._max_byte_length = max_byte_length
        self._operations: dict[int, Op[..., Any]] = {}
        self._descs = constants
        self._arrays: dict[int, np.ndarray] = {}
        self._depth = 0

    def decode(self, entry: Any, builder: Builder, add: Callable[[Builder, str, Desc], Operand]) -> dict[str, Operand]:
        """Add a graph to a builder; return its outputs by name.

        Args:
            entry: what `GraphWriter.encode` has written.
            builder: a new builder.
            add: declares an input.

        Raises:
            Damaged: the entry is not a graph that GraphWriter writes.
            ValidationError: an operation does not accept its operands or attributes.
            NotSupportedError: an operation is not here.
        """
        _require(
            isinstance(entry, dict) and entry.keys() == {"inputs", "constants", "nodes", "outputs"}, "a graph", entry
        )
        _require(all(isinstance(item, list) for item in entry.values()), "a graph", entry)
        operands: list[Operand] = []
        for item in entry["inputs"]:
            _require(isinstance(item, list) and len(item) == 3 and _is_list(item[2]), "an input", item)
            name, data_type, shape = item
            _require(isinstance(name, str) and name not in builder.inputs, "a new name of an input", name)
            sizes: Any = tuple(map(decode_dimension, shape))
            operands.append(add(builder, name, Desc(_data_type(data_type), sizes)))
        for number in entry["constants"]:
            operands.append(self._constant_operand(builder, number))
        for item in entry["nodes"]:
            operands += self._add_node(builder, operands, item)
        outputs: dict[str, Operand] = {}
        for item in entry["outputs"]:
            _require(isinstance(item, list) and len(item) == 2 and isinstance(item[0], str), "an output", item)
            _require(item[0] not in outputs, "a new name of an output", item[0])
            outputs[item[0]] = _at(operands, item[1])
        return outputs

    def _add_node(self, builder: Builder, operands: Sequence[Operand], item: Any) -> Sequence[Operand]:
        _require(isinstance(item, list) and len(item) == 4, "a node", item)
        number, inputs, attributes, label = item
        is_node = isinstance(inputs, dict) and isinstance(attributes, dict) and isinstance(label, str)
        _require(is_node, "a node", item)
        op = self._operation(number)
        arguments: dict[str, Any] = {}
        for name, value in inputs.items():
            _require(name in op.operands, f"an operand of {op.name}", name)
            is_sequence = name in op.sequences
            _require(isinstance(value, list) == is_sequence, f"operands of {op.name}", value)
            arguments[name] = (
                [_at(operands, item) for item in value]
                if is_sequence
                else None
                if value is None
                else _at(operands, value)
            )
        for name, value in attributes.items():
            _require(name in op.attributes, f"an attribute of {op.name}", name)
            arguments[name] = decode(value, self._body, self._array)
        if op is computed:
            check_computed(*(arguments.get(name) for name in ("function", "arguments", "shape")))
        result = op.add(builder, (), {**arguments, "label": label})
        return (result,) if isinstance(result, Operand) else tuple(result)

    def _operation(self, number: Any) -> Op[..., Any]:
        reference = _at(self._references, number)
        if number not in self._operations:
            self._operations[number] = find_operation(reference, self._path, self._may_import)
        return self._operations[number]

    def _body(self, entry: Any) -> Body:
        self._depth += 1
        _require(self._depth < MAX_DEPTH, "bodies that are not nested too deeply", entry)
        builder = Recorder()
        builder.takes_empty = True
        outputs = self.decode(entry, builder, self._add_to_body)
        self._depth -= 1
        values = list(outputs.values())
        is_body = all(operand.node is not None for operand in values) and len(set(values)) == len(values) > 0
        _require(is_body, "outputs of a body, each the result of another operation", entry["outputs"])
        reached = Graph.reaching(outputs)
        return Body(Graph(dict(builder.inputs), reached.outputs, reached.nodes))

    def _add_to_body(self, builder: Builder, name: str, desc: Desc) -> Operand:
        check_desc(desc, self._max_byte_length, f"the input {name!r} of a body", takes_empty=True)
        return add_input(builder, name, desc)

    def _constant_operand(self, builder: Builder, number: Any) -> Operand:
        array = self._array(number)
        desc = Desc(INFO[array.dtype.name].name, array.shape)
        check_desc(desc, self._max_byte_length, "a constant", takes_empty=True)
        return Operand(builder, desc, value=array)

    def _array(self, number: Any) -> np.ndarray:
        if type(number) is int and number in self._arrays:
            return self._arrays[number]
        item = _at(self._descs, number)
        _require(len(item) == 3 and _is_list(item[1], int), "a constant", item)
        data_type, shape, place = item
        desc = Desc(_data_type(data_type), tuple(shape))
        _require(all(0 <= size < 2**31 for size in shape) and len(shape) <= 64, "a shape", shape)
        bits = INFO[desc.data_type].bits
        size = -(-prod(shape) * bits // 8)
        if isinstance(place, str):
            _require(place.startswith(CONSTANT), "the section of a constant", place)
            data = self._container.section(place)
            _require(data.nbytes == size, f"{size} bytes of a constant", data.nbytes)
        else:
            small = self._container.section(SMALL)
            fits = type(place) is int and 0 <= place <= place + size <= small.nbytes and place % ELEMENT_ALIGNMENT == 0
            _require(fits, "the place of a small constant", place)
            data = small[place : place + size]
        self._arrays[number] = array = _array_of(data, desc)
        return array


def _array_of(data: np.ndarray, desc: Desc) -> np.ndarray:
    """The array of the bytes of a constant, without a copy, unless its elements have less than 8 bits."""
    if (bits := INFO[desc.data_type].bits) < 8:
        if desc.element_count == 1:  # `unpack` takes one byte for an element
            return unpack(np.append(data, data), Desc(desc.data_type, (16 // bits,)))[:1].reshape(desc.shape)
        return unpack(data, desc).reshape(desc.shape)
    wanted = numpy_type(desc.data_type)
    if wanted.kind in "fiu":
        return data.view(wanted.newbyteorder("<")).astype(wanted, copy=False).reshape(desc.shape)
    return data.view(wanted).reshape(desc.shape)


def encode_guards(guards: Guards) -> dict[str, Any]:
    """The answers to comparisons of sizes, and the sizes that gave them, as JSON.

    Raises:
        NotSupportedError: an answer is about a size without a formula.
    """
    answers = [
        [question, encode(difference, _refuse, _refuse), answer]
        for (question, difference), answer in guards.answers.items()
    ]
    return {"sizes": {str(name): size for name, size in guards.sizes.items()}, "answers": answers}


def _refuse(value: Any) -> Any:
    raise Damaged(f"a difference of sizes has neither bodies nor arrays, got {short_repr(value)}")


def decode_guards(entry: Any) -> Guards:
    """The answers that `encode_guards` has written; `Damaged` if they are not those for their sizes."""
    is_entry = isinstance(entry, dict) and entry.keys() == {"graph", "sizes", "answers"}
    _require(is_entry and isinstance(entry["sizes"], dict) and isinstance(entry["answers"], list), "answers", entry)
    for size in entry["sizes"].values():
        _require(type(size) is int and 0 <= size < 2**31, "a size", size)
    guards = Guards(entry["sizes"])
    for item in entry["answers"]:
        is_answer = isinstance(item, list) and len(item) == 3 and item[0] in ("zero", "negative")
        _require(is_answer and isinstance(item[2], bool), "an answer", item)
        difference = decode(item[1], _refuse, _refuse)
        _require(isinstance(difference, Symbol), "a difference of sizes", item[1])
        guards.answers[item[0], difference] = item[2]
    try:
        is_right = guards.hold(guards.sizes)
    except KeyError:  # a name without a size
        is_right = False
    _require(is_right, "the answers for the sizes", entry["sizes"])
    return guards


def encode_hints(hints: Mapping[str, SizeHint]) -> dict[str, list[int | None]]:
    """The expected sizes of names, as JSON."""
    return {name: [hint.min_size, hint.max_size] for name, hint in hints.items()}


def decode_hints(entry: Any) -> dict[str, SizeHint]:
    """The expected sizes of names that `encode_hints` has written."""
    _require(isinstance(entry, dict), "sizes by name", entry)
    hints: dict[str, SizeHint] = {}
    for name, item in entry.items():
        is_pair = isinstance(item, list) and len(item) == 2 and type(item[0]) is int
        _require(is_pair and (item[1] is None or type(item[1]) is int), "the least and greatest size", item)
        least, greatest = item
        fits = 0 <= least < 2**32 and (greatest is None or least <= greatest < 2**32)
        _require(fits, "the least and greatest size", item)
        hints[name] = SizeHint(least, greatest)
    return hints


def encode_rules(rules: Sequence[NamedSizeRule]) -> list[Any]:
    """The rules for sizes, as JSON: the text of each, and the names and numbers of the sizes in the text."""
    return [[item.rule.text, dict(item.dimensions)] for item in rules]


def decode_rules(entry: Any) -> list[NamedSizeRule]:
    """The rules for sizes that `encode_rules` has written."""
    _require(_is_list(entry, list), "a list of rules for sizes", entry)
    if not entry:
        return []
    from ..core.size_rules import NamedSizeRule, SizeRule  # few files have rules

    rules = []
    for item in entry:
        _require(len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], dict), "a rule for sizes", item)
        text, sizes = item
        for size in sizes.values():
            _require(isinstance(size, str) or type(size) is int, "a name or a size", size)
        rule = SizeRule.parse(text, sizes)
        if rule is None:
            raise Damaged(f"expected a rule of the sizes {[*sizes]}, got {short_repr(text)}")
        rules.append(NamedSizeRule(rule, {size: sizes[size] for size in rule.sizes}))
    return rules


def _data_type(value: Any) -> Any:
    _require(isinstance(value, str) and value in INFO, "a data type", value)
    return INFO[value].name


def _is_list(value: Any, kind: type = object) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) and not isinstance(item, bool) for item in value)


def _at(items: Sequence[Any], number: Any) -> Any:
    _require(type(number) is int and 0 <= number < len(items), f"a number below {len(items)}", number)
    return items[number]


def _require(condition: bool, expected: str, value: Any) -> None:
    if not condition:
        raise Damaged(f"expected {expected}, got {short_repr(value)}")
