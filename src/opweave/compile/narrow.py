"""Replace products with dequantised constants, and rows of dequantised tables, by one operation on the narrow numbers.

`dequantize_linear` of a constant of 4 or 8 bits, perhaps transposed or reshaped behind, in front of `matmul`, `gemm` or
`gather` is a matrix that an engine would expand at each run. `matmul_n_bits` and `gather_n_bits` take the numbers as they are,
packed once when the graph is compiled. Back ends say for which forms that is faster (`Backend.gains_from_narrow`). Filters of
convolutions become constants of floats where an engine would expand them at each run (`Backend.expands_filters`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod

import numpy as np

from ..composites import convolve, gather_n_bits, matmul_n_bits
from ..composites.packing import QuantizedConstant
from ..core.graph import Desc, Graph, Node, Operand, add_like
from ..core.sizes import is_same_size, is_static
from ..ops import activation, convolution, dynamic, elementwise, indexing, matrix, movement, quantization
from ..ops.constants import constant
from ..ops.recorder import Recorder
from .constants import share

TURNED = (1, 0)

_RESHAPES = (movement.reshape, dynamic.squeeze, dynamic.unsqueeze, dynamic.reshape_to_2d)
_MOVES = (movement.transpose, elementwise.identity, *_RESHAPES)

Gains = Callable[[Node], bool]
"""Whether an operation on narrow numbers is faster than one on the dequantised matrix."""


_CONVOLUTIONS = frozenset(
    {convolution.conv2d, convolution.conv_transpose2d, convolve.convolution, convolve.conv_transpose}
)


def read_narrow(
    graph: Graph, sources: Mapping[Node, Node], gains: Gains, is_exact: bool, expands_filters: bool
) -> tuple[Graph, Mapping[Node, Node], Collection[Node]]:
    """The graph in which operations that gain from it read narrow numbers.

    Args:
        graph: whose nodes are not chosen yet.
        sources: the node that each of its nodes comes from.
        gains: whether a candidate is faster; its constants have no elements yet.
        is_exact: whether each operation must round its result, so that weights of float16 are rounded after dequantisation.
        expands_filters: whether filters of convolutions are dequantised now.

    Returns:
        The new graph; the node that each of its nodes comes from; and the nodes whose results are constants of the new graph.
    """
    if not any(node.op is quantization.dequantize_linear for node in graph.nodes):
        return graph, sources, ()
    rewriter = _NarrowReader(graph, sources, gains, is_exact, expands_filters)
    return (*rewriter.run(), rewriter.folded) if rewriter.matches else (graph, sources, ())


class _NarrowBuilder(Recorder):
    """A builder that notes which node of the user's graph its nodes come from."""

    def __init__(self) -> None:
        super().__init__()
        self.origin: dict[Node, Node] = {}
        self.source: Node

    def _place(self, node: Node) -> tuple[Operand, ...]:
        self.origin[node] = self.source
        return super()._place(node)


class _NarrowReader:
    """Finds the operations, and writes the new graph.

    Attributes:
        folded: the user's nodes whose results become constants, with which convolutions are rebuilt.
    """

    def __init__(
        self, graph: Graph, sources: Mapping[Node, Node], gains: Gains, is_exact: bool, expands_filters: bool
    ) -> None:
        self._graph, self._sources, self._gains, self._is_exact = graph, sources, gains, is_exact
        self._expands_filters = expands_filters
        self.folded: set[Node] = set()
        self._tables: dict[Operand, QuantizedConstant | None] = {}
        self._copies: dict[Operand, Operand] = {}
        self._builder = _NarrowBuilder()
        self.matches = {node: build for node in graph.nodes if (build := self._match(node)) is not None}

    def run(self) -> tuple[Graph, Mapping[Node, Node]]:
        builder, copies = self._builder, self._copies
        for operand in self._graph.constants:
            copies[operand] = Operand(builder, operand.desc, value=operand.value)
        for name, operand in self._graph.inputs.items():
            copies[operand] = builder.inputs[name] = Operand(builder, operand.desc, name=name)
        builder.has_names = self._graph.has_names
        for node in self._graph.nodes:
            builder.source = self._sources[node]
            build = self.matches.get(node)
            if build is None:
                results = add_like(builder, node, copies.__getitem__, node.label)
            else:
                results = (build(),)
            copies.update(zip(node.outputs, results, strict=True))
        ends = {name: copies[operand] for name, operand in self._graph.outputs.items()}
        nodes = Graph.reaching(ends).nodes
        return Graph(builder.inputs, ends, nodes), {node: builder.origin[node] for node in nodes}

    def _match(self, node: Node) -> Callable[[], Operand] | None:
        """A function that builds the replacement of a node; None if the node stays as it is."""
        if node.op is matrix.matmul:
            return self._match_matmul(node)
        if node.op is matrix.gemm:
            return self._match_gemm(node)
        if node.op is indexing.gather:
            return self._match_gather(node)
        return self._match_convolution(node) if self._expands_filters and node.op in _CONVOLUTIONS else None

    # Products ---------------------------------------------------------------------------------------------------------

    def _match_matmul(self, node: Node) -> Callable[[], Operand] | None:
        left, right = node.operands
        if (table := self._matrix(right, left)) is not None:
            columns = table.transpose(TURNED)
            return self._product(node, columns, left, left.shape, _same)
        if (table := self._matrix(left, right)) is not None:
            shape = (*right.shape[:-2], right.shape[-1], right.shape[-2])
            return self._product(node, table, right, shape, self._swap, swap=True)
        return None

    def _match_gemm(self, node: Node) -> Callable[[], Operand] | None:
        a, b, c = (node.inputs[name] for name in "abc")
        alpha, beta, a_transpose, b_transpose = (
            node.attributes[name] for name in ("alpha", "beta", "a_transpose", "b_transpose")
        )
        assert isinstance(a, Operand)
        assert isinstance(b, Operand)
        assert c is None or isinstance(c, Operand)
        bias: Operand | None = None
        finish: Callable[[Operand], Operand]
        if (table := self._matrix(b, a)) is not None:
            columns = table if b_transpose else table.transpose(TURNED)
            count = columns.numbers.shape[0]
            if c is not None and alpha == beta == 1 and c.rank and is_same_size(c.desc.element_count, count):
                # One element for each column.
                bias = c if is_same_size(c.shape[-1], count) else None
            x, swap, finish = a, a_transpose, _same
        elif (table := self._matrix(a, b)) is not None:
            columns = table.transpose(TURNED) if a_transpose else table
            x, swap, finish = b, not b_transpose, self._swap
        else:
            return None
        rest = None if bias is not None else c

        def result(product: Operand) -> Operand:
            builder, y = self._builder, finish(product)
            y = y if alpha == 1 else y * alpha
            if rest is None:
                return y
            term = self._copies[rest]
            return builder.add(y, term if beta == 1 else term * beta)

        shape = tuple(reversed(x.shape)) if swap else x.shape
        return self._product(node, columns, x, shape, result, swap=swap, bias=bias)

    def _product(
        self,
        node: Node,
        columns: QuantizedConstant,
        x: Operand,
        shape: Sequence[int],
        finish: Callable[[Operand], Operand],
        *,
        swap: bool = False,
        bias: Operand | None = None,
    ) -> Callable[[], Operand] | None:
        """A function that builds the product of `x`, of this shape after its axes are swapped, by quantised columns."""
        if (self._is_exact and x.data_type != "float32") or not is_static(shape[-1:]):
            return None
        if columns.shape[0] != len(columns.numbers):  # blocks of columns, the last of which is not whole
            return None
        if columns.bits == 8 and _is_quantised(x):  # engines multiply integers
            return None
        attributes = {**columns.attributes, "accuracy": "int8"}

        def product(b: Recorder, weight: Operand, input: Operand, bias: Operand | None) -> Operand:
            scale, zeros = _scales(b, columns)
            y: Operand = matmul_n_bits(b, input, weight, scale, zeros, bias, label=node.label, **attributes)
            return y

        trial = Recorder()
        stand_in = Operand(trial, Desc(x.data_type, tuple(shape)), name="x")
        added = None if bias is None else Operand(trial, Desc(bias.data_type, (columns.numbers.shape[0],)), name="b")
        if not self._gains(_node_of(product(trial, _empty(trial, columns), stand_in, added))):
            return None

        def build() -> Operand:
            input = self._copies[x]
            added = None if bias is None else self._vector(self._copies[bias])
            y = product(self._builder, _pack(self._builder, columns), self._swap(input) if swap else input, added)
            return finish(y)

        return build

    def _swap(self, x: Operand) -> Operand:
        """Swap the last two axes."""
        *outer, rows, columns = x.shape
        if is_same_size(rows, 1) or is_same_size(columns, 1):
            return self._builder.reshape(x, [*outer, columns, rows])
        axes = range(x.rank)
        return self._builder.transpose(x, permutation=[*axes[:-2], axes[-1], axes[-2]])

    def _vector(self, bias: Operand) -> Operand:
        if bias.rank == 1:
            return bias
        if bias.is_constant:
            return constant(self._builder, bias.value.reshape(-1), bias.data_type)
        return self._builder.reshape(bias, [bias.shape[-1]])

    # Tables -----------------------------------------------------------------------------------------------------------

    def _match_gather(self, node: Node) -> Callable[[], Operand] | None:
        input, indices = node.operands
        if node.attributes["axis"] != 0 or input.rank < 2 or indices.is_constant:
            return None
        table = self._table(input)
        if table is not None and input.rank > 2:
            table = table.reshape([input.shape[0], prod(input.shape[1:])])
        if table is None:
            return None
        rows, output = table, node.outputs[0]
        width = rows.shape[1]
        if rows.shape[0] != len(rows.numbers):
            return None

        def pick(b: Recorder, weight: Operand, indices: Operand) -> Operand:
            scale, zeros = _scales(b, rows)
            y: Operand = gather_n_bits(
                b, weight, scale, indices, zeros, width=width, label=node.label, **rows.attributes
            )
            return y

        trial = Recorder()
        if not self._gains(_node_of(pick(trial, _empty(trial, rows), Operand(trial, indices.desc, name="i")))):
            return None

        def build() -> Operand:
            y = pick(self._builder, _pack(self._builder, rows), self._copies[indices])
            return y if input.rank == 2 else self._builder.reshape(y, output.shape)

        return build

    def _match_convolution(self, node: Node) -> Callable[[], Operand] | None:
        """A convolution with a filter that is dequantised now: no kernel of an engine reads narrow filters."""
        input, filter = (node.inputs[name] for name in ("input", "filter"))
        assert isinstance(input, Operand)
        assert isinstance(filter, Operand)
        # Engines multiply integers if both operands have 8 bits.
        if (table := self._table(filter)) is None or _is_quantised(input):
            return None
        producer = filter.node
        while producer is not None:
            self.folded.add(self._sources[producer])
            producer = producer.operands[0].node

        def build() -> Operand:
            arrays = [table.numbers, table.scale, table.zero_point]
            wide = constant(self._builder, share(f"dequantised {table.shape}", arrays, table.widen), filter.data_type)
            (y,) = add_like(
                self._builder, node, lambda operand: wide if operand is filter else self._copies[operand], node.label
            )
            return y

        return build

    def _matrix(self, operand: Operand, other: Operand) -> QuantizedConstant | None:
        """A dequantised matrix; leading axes of 1 are removed, if the other operand of the product has as many axes."""
        if operand.rank > other.rank or other.is_constant or any(size != 1 for size in operand.shape[:-2]):
            return None
        table = self._table(operand)
        return table if table is None or operand.rank == 2 else table.reshape(operand.shape[-2:])

    def _table(self, operand: Operand) -> QuantizedConstant | None:
        if operand not in self._tables:
            self._tables[operand] = self._find_table(operand)
        return self._tables[operand]

    def _find_table(self, operand: Operand) -> QuantizedConstant | None:
        node = operand.node
        if node is None:
            return None
        if node.op is quantization.dequantize_linear:
            return _table_of(node)
        if node.op is movement.slice:
            table = self._table(node.operands[0])
            strides = node.attributes["strides"]
            is_prefix = not any(node.attributes["starts"]) and (strides is None or all(step == 1 for step in strides))
            # Such a slice cuts off the padding of the last block.
            return table.first(operand.shape) if table is not None and is_prefix and is_static(operand.shape) else None
        if node.op not in _MOVES:
            return None
        table = self._table(node.operands[0])
        if table is None or node.op is elementwise.identity:
            return table
        if node.op in _RESHAPES:
            return table.reshape(operand.shape) if is_static(operand.shape) else None
        return table.transpose(node.attributes["permutation"])


def _same(y: Operand) -> Operand:
    return y


def _table_of(node: Node) -> QuantizedConstant | None:
    """The operands of a dequantisation of constants that can be packed; None for others."""
    if not all(operand.is_constant for operand in node.operands):
        return None
    table = QuantizedConstant.of(*(operand.value for operand in node.operands))
    return table if table.is_usable else None


_KEEPS_STEPS = (
    *_MOVES,
    *(movement.concat, movement.expand, movement.pad, movement.reverse, movement.slice, movement.split, movement.tile),
    *(activation.linear, activation.relu, elementwise.add, elementwise.cast, elementwise.clamp, convolution.resample2d),
)
"""Operations behind a dequantisation that may change nothing, or which engines move behind a product of integers."""


def _is_quantised(x: Operand) -> bool:
    """Whether an operand is dequantised, perhaps before it is moved."""
    while (node := x.node) is not None and node.op in _KEEPS_STEPS:
        x = node.operands[0]
    return node is not None and node.op is quantization.dequantize_linear


def _node_of(operand: Operand) -> Node:
    assert operand.node is not None
    return operand.node


def _empty(builder: Recorder, rows: QuantizedConstant) -> Operand:
    """A stand-in for packed numbers, which takes no memory."""
    desc = Desc("uint8", rows.packed_shape)
    return Operand(builder, desc, value=np.broadcast_to(np.uint8(0), desc.shape))


def _pack(builder: Recorder, rows: QuantizedConstant) -> Operand:
    """The packed numbers, which graphs of the same constant share."""
    return constant(builder, share(f"packed {rows.packed_shape}", [rows.numbers], rows.pack), "uint8")


def _scales(builder: Recorder, rows: QuantizedConstant) -> tuple[Operand, Operand | None]:
    zeros = rows.zero_points()
    scale = constant(builder, rows.scales(), rows.scale.dtype.name)
    return scale, None if zeros is None else constant(builder, zeros, "uint8")
