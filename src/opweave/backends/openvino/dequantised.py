"""Choose forms of dequantised operands that the engine computes correctly.

The engine keeps some 8-bit weights and tables, and multiplies integers if the graph quantises anything. Its passes recognise
the pattern convert, subtract, multiply, and assume one scale per column, filter or row: with other scales, results are wrong,
or the process ends (`tests/backends/openvino/test_openvino_compressed.py`). Constants are emitted as this pattern only for
readers with correct results. Computed integers are emitted as this pattern for products only, since the passes would move
scales through other readers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.dtypes import FLOATS
from ...core.graph import Graph, Node, Operand
from ...ops import activation, elementwise
from ...ops.convolution import conv2d, conv_transpose2d
from ...ops.elementwise import cast, mul, sub
from ...ops.indexing import gather
from ...ops.matrix import gemm, matmul
from ...ops.movement import transpose
from ...ops.quantization import dequantize_linear, quantize_linear
from ...support.records import field, record
from . import kernel_faults

BYTES = ("int8", "uint8")

TAKEN_OVER = frozenset(
    {
        *(activation.relu, activation.sigmoid, activation.tanh, activation.hard_swish),
        *(elementwise.add, elementwise.sub, quantize_linear),
    }
)
"""Operations, besides `clamp`, that may directly follow a product of integers."""


@record(frozen=False, eq=True, slots=False)
class Dequantised:
    """Nodes that become dequantisations in the engine's graph.

    Attributes:
        weights: dequantisations of 8-bit weights (or the casts of decomposed ones), for products.
        tables: dequantisations whose readers gather integers, and dequantise the result.
        factors: dequantisations of computed values, for `products`; other readers get another form.
        products: products of factors by weights.
        shifted: matrix products in `products` with a zero point other than 0.
    """

    weights: set[Node] = field(default_factory=set)
    tables: set[Node] = field(default_factory=set)
    factors: set[Node] = field(default_factory=set)
    products: set[Node] = field(default_factory=set)
    shifted: set[Node] = field(default_factory=set)


def quantises(graph: Graph) -> bool:
    return any(node.op is quantize_linear for node in graph.nodes)


def choose_forms(graph: Graph, readers: Mapping[Operand, Sequence[Node]], multiplies_bytes: bool) -> Dequantised:
    """Choose the forms of dequantised operands; `multiplies_bytes` allows products of 8 bits."""
    result = Dequantised()
    has_integers = quantises(graph)
    for node in graph.nodes:
        match = _match(node, readers)
        if match is None:
            continue
        source, scales, zeros = match
        operand = node.outputs[0]
        if _are_weights(operand, [_shape(part, operand.rank) for part in (*scales, *zeros)], _any(zeros), readers):
            result.weights.add(source)
        elif source is node and (not has_integers or scales[0].desc.element_count == 1):
            users = readers.get(operand, ())
            if users and all(user.op is gather and user.arguments["indices"] is not operand for user in users):
                result.tables.add(node)
    if multiplies_bytes and has_integers:
        for node in graph.nodes:
            if _is_factor(node):
                users = readers.get(node.outputs[0], ())
                products = [user for user in users if _multiplies(user, node.outputs[0], result.weights)]
                result.products.update(products)
                if node.arguments["zero_point"].value.any():
                    result.shifted.update(product for product in products if product.op is not conv2d)
                if products:
                    result.factors.add(node)
    return result


def _is_factor(node: Node) -> bool:
    """Whether a node dequantises a computed value with one scale: with more, products are wrong or refused."""
    if node.op is not dequantize_linear:
        return False
    input, scale, zero_point = (node.arguments[name] for name in ("input", "scale", "zero_point"))
    has_one = scale.desc.element_count == 1 and scale.is_constant and zero_point.is_constant
    return (
        not input.is_constant
        and input.data_type in BYTES
        and scale.data_type == "float32"
        and has_one
        and input.rank > 1
    )


def _multiplies(user: Node, operand: Operand, weights: set[Node]) -> bool:
    """Whether a node is a product of `operand` by 8-bit weights for which the engine's 8-bit kernels are correct."""
    arguments = user.arguments
    if user.op in (matmul, gemm):
        first, second = arguments["a"], arguments["b"]
    elif user.op is conv2d and not kernel_faults.why_not(user, 1):
        first, second = arguments["input"], arguments["filter"]
    else:
        return False
    if first is not operand or second is operand or operand in (arguments.get("c"), arguments.get("bias")):
        return False
    source = second.node
    while source is not None and source.op in (transpose, cast) and source not in weights:
        source = source.operands[0].node
    return not arguments.get("a_transpose") and (source in weights or _is_written_out(source, weights))


def _is_written_out(node: Node | None, weights: set[Node]) -> bool:
    if node is None or node.op not in (mul, sub):
        return False
    return any(operand.node in weights or _is_written_out(operand.node, weights) for operand in node.operands)


def _match(node: Node, readers: Mapping[Operand, Sequence[Node]]) -> tuple[Node, list[Operand], list[Operand]] | None:
    """Match a dequantised 8-bit constant that ends in `node`; return the constant's reader, scales and zero points."""
    if node.op is dequantize_linear:
        arguments = node.arguments
        is_plain = arguments["input"].data_type in BYTES and arguments["scale"].data_type == "float32"
        is_known = is_plain and all(operand.is_constant for operand in node.operands)
        return (node, [arguments["scale"]], [arguments["zero_point"]]) if is_known and _broadcasts(node) else None
    if node.op is not mul or node.outputs[0].data_type not in FLOATS:
        return None
    for number, scale in zip(node.operands, reversed(node.operands), strict=True):
        zeros: list[Operand] = []
        before = _only_reader(number, readers)
        if before is not None and before.op is sub and before.arguments["b"].is_constant:
            zeros = [before.arguments["b"]]
            before = _only_reader(before.arguments["a"], readers)
        if before is None or before.op is not cast or not scale.is_constant:
            continue
        input = before.arguments["input"]
        if input.is_constant and input.data_type in BYTES and input.shape == node.outputs[0].shape:
            return before, [scale], zeros
    return None


def _only_reader(operand: Operand, readers: Mapping[Operand, Sequence[Node]]) -> Node | None:
    return operand.node if len(readers.get(operand, ())) == 1 else None


def _broadcasts(node: Node) -> bool:
    pairs = zip(node.arguments["scale"].shape, node.arguments["input"].shape, strict=True)
    return all(part in (1, whole) for part, whole in pairs)


def _shape(operand: Operand, rank: int) -> tuple[int, ...]:
    """Return the shape of an operand, padded to `rank` with leading 1s."""
    return (1,) * (rank - operand.rank) + tuple(operand.shape)


def _any(zeros: Sequence[Operand]) -> bool:
    return any(operand.value.any() for operand in zeros)


def _are_weights(
    operand: Operand, parts: Sequence[Sequence[int]], has_zeros: bool, readers: Mapping[Operand, Sequence[Node]]
) -> bool:
    """Whether all readers are products by `operand`, with scales and zero points per tensor or per column.

    For matmul, the operand must have rank 2. `parts` are shapes of scales and zero points, of the operand's rank.
    """
    users = readers.get(operand, ())
    for user in users:
        if user.op is transpose or (user.op is cast and user.attributes["data_type"] == "float32"):
            order = user.attributes.get("permutation", range(operand.rank))
            moved = [[part[axis] for axis in order] for part in parts]
            if not _are_weights(user.outputs[0], moved, has_zeros, readers):
                return False
            continue
        axis = _column_axis(user, operand)
        if user.op is matmul and operand.rank != 2:  # the engine refuses leading axes of size 1
            return False
        if axis is None or (user.op is conv_transpose2d and has_zeros):
            return False
        if any(size > 1 for part in parts for other, size in enumerate(part) if other != axis):
            return False
    return bool(users)


def _column_axis(user: Node, operand: Operand) -> int | None:
    """Return the column axis of `operand` as the second operand of a product; None if `user` is no such product."""
    arguments = user.arguments
    if user.op in (matmul, gemm):
        if arguments["b"] is not operand or arguments["a"] is operand or arguments.get("c") is operand:
            return None
        return operand.rank - 2 if arguments.get("b_transpose") else operand.rank - 1
    if user.op in (conv2d, conv_transpose2d):
        if arguments["filter"] is not operand or arguments["input"] is operand or arguments.get("bias") is operand:
            return None
        return int(arguments["filter_layout"].index("o"))
    return None


def takes_over(readers: Sequence[Node]) -> bool:
    """Whether a product of integers has a single reader, which the kernel fuses as an epilogue, or which quantises."""
    if len(readers) != 1:
        return False
    if readers[0].op is elementwise.clamp:
        low, high = (readers[0].attributes[name] for name in ("min_value", "max_value"))
        return not (elementwise.is_bound(low) and elementwise.is_bound(high)) or float(low) < float(high)
    return readers[0].op in TAKEN_OVER
