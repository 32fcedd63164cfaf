"""Let whole ONNX models multiply by narrow weights, and look up rows of narrow tables, in kernels that read them as they are.

The engine itself fuses few forms of DequantizeLinear with a product (those of 2 bits wrongly, up to version 1.32), and expands
other matrices at each run. Here, all forms that `narrow` can bring to the kernels are packed once, when the model is loaded.
`compile.narrow` does the same for graphs. Weights of convolutions, for which there are no such kernels, are widened once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ...composites.packing import NARROW, QuantizedConstant, pad_last_block
from .. import Precision
from .constants import CONVOLUTIONS, DEQUANTISES, READS_NARROW, readers
from .narrow import (
    FLOAT_LEVEL,
    INT8_LEVEL,
    KernelForm,
    NarrowMatrix,
    gains_from_lookup,
    kernel_block,
    kernel_matrix,
    padded_block,
    write_padded,
    write_scaled,
)
from .products import MOVED_OR_REMOVED

_MOVES = frozenset({"Identity", "Reshape", "Transpose"})
_KEEPS_STEPS = MOVED_OR_REMOVED | {"Cast", "Identity"}
"""Operators behind a dequantisation, through which the engine still multiplies integers."""

ONNX, MICROSOFT = ("", "ai.onnx"), "com.microsoft"
FLOAT, FLOAT16 = 1, 10
TURNED = (1, 0)


def read_narrow(proto: Any, constants: Mapping[str, np.ndarray], precision: Precision) -> Mapping[str, np.ndarray]:
    """Rewrite the main graph of a model in place; return its constants, with packed ones for those that nothing reads now."""
    rewriter = _NarrowModel(proto.graph, constants, precision)
    if not rewriter.packed:
        return constants
    if all(entry.domain != MICROSOFT for entry in proto.opset_import):
        proto.opset_import.add(domain=MICROSOFT, version=1)
    return rewriter.finish()


class _NarrowModel:
    """The rewritten nodes of a graph.

    Attributes:
        packed: the constants that they read, by name.
    """

    def __init__(self, graph: Any, constants: Mapping[str, np.ndarray], precision: Precision) -> None:
        self._graph, self._constants, self._precision = graph, constants, precision
        self._producers = {name: node for node in graph.node for name in node.output}
        self._infos = {info.name: info for info in (*graph.value_info, *graph.input)}
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._tables: dict[str, QuantizedConstant | None] = {}
        self._rows: dict[tuple[str, bool], _PackedRows] = {}
        self._matrices: dict[tuple[str, bool], NarrowMatrix] = {}
        self.packed: dict[str, np.ndarray] = {}
        # Names of intermediate values, which no other value has.
        self._mark = "/narrow"
        while any(self._mark in name for name in (*self._producers, *constants, *self._infos, *self._tensors)):
            self._mark += "_"
        self._nodes: list[Any] = []
        for node in graph.node:
            self._nodes += self._replacements(node) or [node]

    def finish(self) -> Mapping[str, np.ndarray]:
        """Write the nodes into the graph, without those that nothing reads any more; return the constants that are read."""
        read = {value.name for value in self._graph.output}
        kept: list[Any] = []
        for node in reversed(self._nodes):
            is_move = node.op_type == DEQUANTISES or node.op_type in _MOVES
            if is_move and read.isdisjoint(node.output):
                continue
            kept.append(node)
            read.update(name for _, inputs, _ in readers([node]) for name in inputs)
        del self._graph.node[:]
        self._graph.node.extend(reversed(kept))
        for tensor in [tensor for tensor in self._graph.initializer if tensor.name not in read]:
            self._graph.initializer.remove(tensor)
        return {name: array for name, array in (*self._constants.items(), *self.packed.items()) if name in read}

    # Nodes ------------------------------------------------------------------------------------------------------------

    def _replacements(self, node: Any) -> list[Any] | None:
        """The nodes that replace a node; None if it stays."""
        if node.domain not in ONNX or node.op_type not in READS_NARROW:
            return None
        if node.op_type in CONVOLUTIONS:
            return self._convolution(node)
        if node.op_type == "MatMul":
            return self._matmul(node)
        return self._gemm(node) if node.op_type == "Gemm" else self._gather(node)

    def _matmul(self, node: Any) -> list[Any] | None:
        (left, right), (output,) = node.input, node.output
        if (columns := self._columns(right, left, self._rank(left), is_turned=True)) is not None:
            return self._product(node, left, columns, output)
        rank = self._rank(right)
        if rank is None or rank < 2 or (columns := self._columns(left, right, rank, is_turned=False)) is None:
            return None
        x, y = output + self._mark + "/x", output + self._mark + "/y"
        turned = [*range(rank - 2), rank - 1, rank - 2]
        return [
            _node("Transpose", [right], x, perm=turned),
            *self._product(node, x, columns, y),
            _node("Transpose", [y], output, perm=turned),
        ]

    def _gemm(self, node: Any) -> list[Any] | None:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        alpha, beta = (attributes[name].f if name in attributes else 1.0 for name in ("alpha", "beta"))
        is_turned = [name in attributes and bool(attributes[name].i) for name in ("transA", "transB")]
        (a, b, c), (output,) = (*node.input, "")[:3], node.output
        bias = ""
        if (columns := self._columns(b, a, 2, is_turned=not is_turned[1])) is not None:
            x, swaps_x, swaps_y = a, is_turned[0], False
            if c and alpha == beta == 1 and self._shape(c) in ((columns.matrix.columns,), (1, columns.matrix.columns)):
                c, bias = "", c
        elif (columns := self._columns(a, b, 2, is_turned=is_turned[0])) is not None:
            x, swaps_x, swaps_y = b, not is_turned[1], True
        else:
            return None
        prefix, data_type = output + self._mark, columns.matrix.scale.dtype
        steps: list[Any] = []

        def step(op_type: str, *inputs: str, **others: Any) -> str:
            steps.append(_node(op_type, inputs, f"{prefix}/{len(steps)}", **others))
            name: str = steps[-1].output[0]
            return name

        x = step("Transpose", x, perm=[1, 0]) if swaps_x else x
        if bias and len(self._shape(bias) or ()) == 2:
            bias = step(
                "Reshape", bias, self._constant(f"{prefix}/shape", np.array([columns.matrix.columns], np.int64))
            )
        steps += self._product(node, x, columns, f"{prefix}/{len(steps)}", bias)
        y = steps[-1].output[0]
        y = step("Transpose", y, perm=[1, 0]) if swaps_y else y
        if alpha != 1:
            y = step("Mul", y, self._constant(f"{prefix}/alpha", np.array(alpha, data_type)))
        if c:
            if beta != 1:
                c = step("Mul", c, self._constant(f"{prefix}/beta", np.array(beta, data_type)))
            step("Add", y, c)
        steps[-1].output[0] = output
        return steps

    def _gather(self, node: Any) -> list[Any] | None:
        (input, indices), (output,) = node.input, node.output
        table = self._table(input)
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        if table is None or table.numbers.ndim != 2 or axis not in (0, -2) or self._array(indices) is not None:
            return None
        count, width = table.shape
        if count != len(table.numbers) or not gains_from_lookup(count, width, self._shape(indices)):
            return None
        rows = self._find_rows(input, is_turned=False)
        if rows is None and table.bits == 8 and table.scale.shape == (1, width):
            return self._dequantised_rows(node, input, table)
        if rows is None or rows.is_padded:
            return None
        weight, *others = rows.inputs
        flat = self._constant(f"{weight}/flat", self.packed[weight].reshape(rows.count, -1))
        # The kernel gives zeros for indices out of range; Gather refuses them.
        places = self._constant(f"{self._mark}/rows of {count}", np.arange(count, dtype=np.int32))
        checked = _node("Gather", [places, indices], output + self._mark + "/checked", node, axis=0)
        attributes = {**rows.sizes, "gather_axis": 0, "quantize_axis": 1}
        operands = [flat, checked.output[0], *others]
        # Two nodes of one name are an error; the first one has the name of the node, since it refuses indices.
        return [checked, _node("GatherBlockQuantized", operands, output, None, MICROSOFT, **attributes)]

    def _dequantised_rows(self, node: Any, input: str, table: QuantizedConstant) -> list[Any]:
        """Pick rows of bytes, and dequantise them with a scale for each column."""
        prefix, output = f"{input}{self._mark}/columns of rows", node.output[0]
        arrays = table.numbers, table.scale.reshape(-1), table.zero_point.reshape(-1)
        names = [self._constant(f"{prefix}/{k}", np.ascontiguousarray(array)) for k, array in enumerate(arrays)]
        picked = output + self._mark + "/picked"
        return [
            _node("Gather", [names[0], node.input[1]], picked, node, axis=0),
            _node(DEQUANTISES, [picked, *names[1:]], output, axis=-1),
        ]

    def _convolution(self, node: Any) -> list[Any] | None:
        """A convolution with weights that are widened when the model is loaded.

        The engine has no kernels for narrow weights of convolutions: it widens them at each run, and cannot rearrange them for
        its faster kernels. PP-OCRv5 cls, with weights of 4 bits alone, took 2.4 times as long as in float32.
        """
        if len(node.input) < 2 or (table := self._table(node.input[1])) is None or self._is_quantised(node.input[0]):
            return None
        name = f"{node.input[1]}{self._mark}/wide"
        if name not in self.packed:
            self._constant(name, table.widen())
        widened = type(node)()
        widened.CopyFrom(node)
        widened.input[1] = name
        return [widened]

    def _product(self, node: Any, x: str, columns: _Columns, output: str, bias: str = "") -> list[Any]:
        """The nodes of a product, the last of which has the result."""
        prefix, matrix, steps = f"{output}{self._mark}/product", columns.matrix, list[Any]()

        def emit(op_type: str, *inputs: str | None, **attributes: Any) -> str:
            names = [name or "" for name in inputs]
            while not names[-1]:
                names.pop()
            like, domain = (node, MICROSOFT) if op_type == "MatMulNBits" else (None, "")
            steps.append(_node(op_type, names, f"{prefix}/{len(steps)}", like, domain, **attributes))
            return f"{prefix}/{len(steps) - 1}"

        def constant(array: np.ndarray) -> str:
            return self._constant(f"{prefix}/c{len(self.packed)}", array)

        if columns.form == "blocks":
            rows = self._packed_rows(columns.name, columns.is_turned)
            level = FLOAT_LEVEL if self._precision == "ieee" else INT8_LEVEL
            inputs = [x, *rows.inputs]
            if bias:
                inputs += [*[""] * (5 - len(inputs)), bias]
            emit("MatMulNBits", *inputs, accuracy_level=level, K=rows.width, N=rows.count, **rows.sizes)
        else:
            is_half = matrix.scale.dtype == np.float16
            operands = [emit("Cast", name, to=FLOAT) if name and is_half else name for name in (x, bias)]
            if columns.form == "padded":
                operands[0] = self._pad_blocks(operands[0], matrix, columns.rank, emit)
            write = write_padded if columns.form == "padded" else write_scaled
            y = write(matrix, operands[0], operands[1] or None, emit, constant)
            if is_half:
                emit("Cast", y, to=FLOAT16)
        steps[-1].output[0] = output
        return steps

    def _pad_blocks(self, x: str, matrix: NarrowMatrix, rank: int | None, emit: Callable[..., str]) -> str:
        """Pad the blocks of an operand as `NarrowMatrix.pad` pads those of the matrix."""
        assert rank is not None
        blocks, size = matrix.scale.shape[1], matrix.block_size
        whole = padded_block(size)

        def reshape(x: str, *sizes: int) -> str:
            name = f"{self._mark}/shape of {rank}, {sizes}"
            return emit("Reshape", x, self._constant(name, np.array([0] * (rank - 1) + list(sizes), np.int64)))

        def pad(x: str, rank: int, count: int) -> str:
            ends = self._constant(f"{self._mark}/ends of {rank}, {count}", _ends(rank, count))
            return emit("Pad", x, ends)

        if missing := blocks * size - matrix.width:  # the columns that the last block lacks
            x = pad(x, rank, missing)
        return reshape(pad(reshape(x, blocks, size), rank + 1, whole - size), blocks * whole)

    # Tables -----------------------------------------------------------------------------------------------------------

    def _columns(self, name: str, other: str, rank: int | None, is_turned: bool) -> _Columns | None:
        """The columns of a quantised matrix whose product with `other`, of this rank, kernels compute; None if they do not.

        With `is_turned`, the last axis of the matrix is that of the columns.
        """
        table = self._table(name)
        if table is None or table.numbers.ndim != 2 or self._array(other) is not None:
            return None
        is_exact = self._precision == "ieee"
        if is_exact and (table.bits == 8 or table.scale.dtype != np.float32):
            return None
        if table.bits == 8 and self._is_quantised(other):  # the engine multiplies integers
            return None
        rows = table.transpose(TURNED) if is_turned else table
        if rows.shape[0] != len(rows.numbers):  # blocks of columns, the last of which is not whole
            return None
        unpacked = np.broadcast_to(np.uint8(0), rows.packed_shape)
        shape = self._shape(other)
        count = None if shape is None else prod(shape) // rows.shape[1]
        form = _matrix_of(rows, unpacked).form(count, is_exact=is_exact)
        if not form or (form == "padded" and rank is None):
            return None
        return _Columns(name, is_turned, self._matrix(name, is_turned), form, rank)

    def _matrix(self, name: str, is_turned: bool) -> NarrowMatrix:
        """The rows or columns of a table, packed."""
        key = name, is_turned
        if key not in self._matrices:
            table = self._table(name)
            assert table is not None
            rows = table.transpose(TURNED) if is_turned else table
            self._matrices[key] = _matrix_of(rows, rows.pack())
        return self._matrices[key]

    def _find_rows(self, name: str, is_turned: bool) -> _PackedRows | None:
        """The packed rows of a table; None if a kernel does not take its blocks as they are."""
        table = self._table(name)
        assert table is not None
        rows = table.transpose(TURNED) if is_turned else table
        if not kernel_block(rows.block_size):
            return None
        return self._packed_rows(name, is_turned)

    def _packed_rows(self, name: str, is_turned: bool) -> _PackedRows:
        """Packed rows as constants, with blocks that a kernel takes."""
        key = name, is_turned
        if key not in self._rows:
            matrix = self._matrix(name, is_turned)
            divided = kernel_matrix(matrix)
            arrays = {"weight": divided.weight, "scale": divided.scale, "zero_point": divided.zero_point}
            prefix = f"{name}{self._mark}/{'columns' if is_turned else 'rows'}"
            inputs = [self._constant(f"{prefix}/{k}", array) for k, array in arrays.items() if array is not None]
            is_padded = prod(divided.weight.shape[1:]) * 8 != matrix.width * matrix.bits
            self._rows[key] = _PackedRows(
                inputs, matrix.columns, matrix.width, matrix.bits, divided.block_size, is_padded
            )
        return self._rows[key]

    def _table(self, name: str) -> QuantizedConstant | None:
        """The constant that a value dequantises, in the shape of the value; None if there is none."""
        if name not in self._tables:
            self._tables[name] = None  # a cycle, which the engine refuses
            self._tables[name] = self._find_table(name)
        return self._tables[name]

    def _find_table(self, name: str) -> QuantizedConstant | None:
        node = self._producers.get(name)
        if node is None or len(node.output) != 1 or not node.input:
            return None
        if node.op_type == DEQUANTISES and node.domain in (*ONNX, MICROSOFT):
            return self._dequantisation_of(node)
        if node.domain not in ONNX or node.op_type not in _MOVES or (table := self._table(node.input[0])) is None:
            return None
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Identity":
            return table
        if node.op_type == "Transpose":
            permutation = attributes["perm"].ints if "perm" in attributes else range(table.numbers.ndim)[::-1]
            is_permutation = sorted(permutation) == list(range(table.numbers.ndim))
            return table.transpose(list(permutation)) if is_permutation else None
        shape = self._array(node.input[1]) if len(node.input) == 2 else None
        if shape is None or shape.ndim != 1 or (shape < 1).any():  # 0 and -1 stand for other sizes
            return None
        sizes = [int(size) for size in shape]
        return table.reshape(sizes) if prod(sizes) == prod(table.shape) else None

    def _dequantisation_of(self, node: Any) -> QuantizedConstant | None:
        """The operands of a DequantizeLinear of constants, with scales in the rank of the numbers."""
        numbers, scale, zero_point = (self._array(name) if name else None for name in (*node.input, "")[:3])
        if numbers is None or scale is None or numbers.dtype.name not in NARROW or numbers.ndim < 2:
            return None
        if len(node.input) == 3 and node.input[2] and zero_point is None:
            return None
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        if attributes.get("output_dtype", 0) not in (0, {"float32": 1, "float16": 10}.get(scale.dtype.name)):
            return None
        axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
        part = _scale_shape(numbers.shape, scale.shape, axis, block)
        if part is None:
            return None
        if zero_point is None:
            zero_point = np.zeros(scale.shape, numbers.dtype)
        if zero_point.dtype != numbers.dtype or zero_point.size != scale.size:
            return None
        shape = numbers.shape
        if block and part[axis] > 1:
            numbers = pad_last_block(numbers, axis % len(shape), part[axis] * block)
        table: QuantizedConstant | None = QuantizedConstant.of(numbers, scale.reshape(part), zero_point.reshape(part))
        assert table is not None
        table = table if numbers.shape == shape else table.first(shape)
        return table if table is not None and table.is_usable else None

    # Values -----------------------------------------------------------------------------------------------------------

    def _constant(self, name: str, array: np.ndarray) -> str:
        self.packed[name] = array
        return name

    def _array(self, name: str) -> np.ndarray | None:
        """The elements of a constant; None for other values."""
        if name in self._constants:
            return self._constants[name]
        tensor, node = self._tensors.get(name), self._producers.get(name)
        if node is not None and node.op_type == "Constant" and node.domain in ONNX and len(node.attribute) == 1:
            tensor = node.attribute[0].t if node.attribute[0].name == "value" else None
        if tensor is None:
            return None
        from onnx import numpy_helper

        return numpy_helper.to_array(tensor)

    def _shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a value, if it is known, and has no names."""
        if (array := self._array(name)) is not None:
            return array.shape
        info = self._infos.get(name)
        if info is None or not info.type.tensor_type.HasField("shape"):
            return None
        dims = info.type.tensor_type.shape.dim
        return tuple(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None

    def _rank(self, name: str) -> int | None:
        info = self._infos.get(name)
        is_known = info is not None and info.type.tensor_type.HasField("shape")
        return len(info.type.tensor_type.shape.dim) if is_known else None  # type: ignore[union-attr]

    def _is_quantised(self, name: str) -> bool:
        """Whether a value is dequantised, perhaps before it is moved."""
        seen: set[str] = set()
        while (node := self._producers.get(name)) is not None and node.op_type in _KEEPS_STEPS and name not in seen:
            seen.add(name)
            name = node.input[0]
        return node is not None and node.op_type == DEQUANTISES


@dataclass(frozen=True)
class _Columns:
    """The columns of a product: the name of the table, the packed matrix, its form, and the rank of the other operand."""

    name: str
    is_turned: bool
    matrix: NarrowMatrix
    form: KernelForm
    rank: int | None


def _matrix_of(rows: QuantizedConstant, packed: np.ndarray) -> NarrowMatrix:
    return NarrowMatrix(packed, rows.scales(), rows.zero_points(), rows.shape[1], **rows.attributes)


class _PackedRows:
    """`count` packed rows of `width` numbers: the names of the constants that a kernel reads, and sizes for the kernel."""

    def __init__(
        self, inputs: Sequence[str], count: int, width: int, bits: int, block_size: int, is_padded: bool
    ) -> None:
        self.inputs, self.count, self.width = list(inputs), count, width
        self.sizes = {"bits": bits, "block_size": block_size}
        self.is_padded = is_padded


def _ends(rank: int, count: int) -> np.ndarray:
    """The operand of Pad that appends `count` elements to the last axis."""
    return np.array([0] * (2 * rank - 1) + [count], np.int64)


def _scale_shape(shape: Sequence[int], part: Sequence[int], axis: int, block: int) -> Sequence[int] | None:
    """The shape of scales in the rank of their tensor; None if they do not fit. The last block may be smaller.

    >>> _scale_shape((4, 6), (6,), -1, 0), _scale_shape((4, 6), (2, 6), 0, 3), _scale_shape((4, 6), (2, 6), 0, 4)
    ([1, 6], (2, 6), None)
    """
    rank = len(shape)
    if not -rank <= axis < rank:
        return None
    axis %= rank
    if prod(part) == 1 and len(part) < 2 and not block:
        return [1] * rank
    if block:
        counts = [-(-size // block) if k == axis else size for k, size in enumerate(shape)]
        return part if list(part) == counts else None
    return [shape[axis] if k == axis else 1 for k in range(rank)] if tuple(part) == (shape[axis],) else None


def _node(
    op_type: str, inputs: Sequence[str], output: str, like: Any = None, domain: str = "", **attributes: Any
) -> Any:
    """An ONNX node with the name of another one."""
    from onnx import helper

    name = "" if like is None else like.name
    return helper.make_node(op_type, list(inputs), [output], name=name, domain=domain, **attributes)
