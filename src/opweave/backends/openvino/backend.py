"""The OpenVINO back end. The package `rules` holds the rules."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.graph import Graph, Node, Operand, map_operands
from .. import Backend, Device, How, PowerPreference, Precision, Rule, Spinning
from . import devices
from .saturation import saturates

if TYPE_CHECKING:
    from ...core.operation import Op
    from .emit import Emitter, Value

MOST_FOLDED = 2**24
"""Largest number of elements, operands and results together, of an operation on constants that Opweave folds."""


class OpenVino(Backend):
    """Intel's OpenVINO."""

    name = "openvino"
    families = "opweave.backends.openvino.rules.families"
    needs_trial = True
    stand_in = stand_in_for_types = "onnxruntime"

    def devices(self) -> list[Device]:
        return devices.devices(self.name)

    def device_named(self, name: str) -> Device | None:
        return devices.find_device(self.name, name)

    def by_default(self) -> bool:
        return devices.may_have_accelerators()

    def may_accelerate(self) -> bool:
        # Only Linux has files that name the vendor of a device.
        return devices.may_have_accelerators() and (sys.platform == "linux" or super().may_accelerate())

    def rename(self, names: Mapping[Op[..., Any], str], when: Any = None) -> None:
        """Register rules for ops without attributes that only differ from an engine's operator in name."""
        for op, name in names.items():
            self.lower(op, when=when)(_operator_rule(op, name))

    def how(self, node: Node) -> How | None:
        if not self.supports(node) or not devices.is_installed():
            return super().how(node)
        from .emit import Emitter

        return self.emit(Emitter(self.precision), Graph.reaching({"y": node.outputs[0]}))[1][node]

    def rule(self, node: Node) -> Rule | None:
        return None if self._fault(node) else super().rule(node)

    def why_not(self, node: Node) -> str | None:
        reason = self._fault(node)
        return f"its kernels of bfloat16 are wrong for {reason}" if reason else super().why_not(node)

    def _fault(self, node: Node) -> str:
        """Return the reason why kernels of the context's precision are wrong for a node."""
        if self.precision != "bfloat16":
            return ""
        from ...composites import is_composite
        from ...ops.convolution import conv2d
        from . import kernel_faults

        is_convolution = node.op is conv2d or is_composite(node.op, "convolution")
        return kernel_faults.why_not(node, 2) if is_convolution else ""

    def with_threads(self, threads: int) -> Backend:
        return self._variant(threads, self.precision)

    def version(self) -> str:
        return devices.version()

    def session_threads(self) -> int:
        from .sessions import SESSION_THREADS

        return SESSION_THREADS

    def competes(self, device: Device, precision: Precision) -> bool:
        return device.name == "cpu" and precision == "float32" and devices.is_installed()

    def gains(self, graph: Graph) -> tuple[bool, str]:
        from .gains import DECOMPOSED, gains

        nodes = (node for node in graph.nodes if node.op not in DECOMPOSED and not self.supports(node))
        lacking = next(nodes, None)
        if lacking is None:
            return gains(graph)
        then = "" if lacking.op.decomposition is None else " and would decompose it"
        return False, f"{self.name} has no rule for {lacking.title}{then}"

    def compile(
        self, graph: Graph, *, device: str, power_preference: PowerPreference, spinning: Spinning = "short"
    ) -> Any:
        from .sessions import compile

        return compile(self, graph, device)

    def emit(self, ctx: Emitter, graph: Graph) -> tuple[list[Value], dict[Node, How]]:
        """Emit the nodes of a legal graph; return the values of its outputs, and the kind of implementation of each node."""
        from .dequantised import choose_forms, quantises, takes_over
        from .exact import EXACT

        done: dict[Node, How] = {}
        values: dict[Operand, Value] = {operand: ctx.add_input(operand.desc) for operand in graph.inputs.values()}

        readers: dict[Operand, list[Node]] = {}
        for node in graph.nodes:
            for operand in node.operands:
                readers.setdefault(operand, []).append(node)
        ctx.readers = {operand: nodes for operand, nodes in readers.items() if operand not in graph.outputs.values()}
        multiplies_bytes = self.precision != "ieee" and quantises(graph) and not saturates()
        ctx.dequantised = choose_forms(graph, ctx.readers, multiplies_bytes)

        def lookup(operand: Operand) -> Value:
            if operand in ctx.factors and ctx.node in ctx.dequantised.products:
                return ctx.factors[operand]
            if operand not in values:
                values[operand] = ctx.add_constant(operand.value)
            return values[operand]

        for node in graph.nodes:
            ctx.node, before = node, ctx.count
            rule = self.rule(node)
            assert rule is not None, node
            if (constants := _constants(ctx, node, map(lookup, node.operands))) is not None:
                values.update(zip(node.outputs, constants, strict=True))
                done[node] = "native"
                continue
            result = rule((ctx,), {**map_operands(node.inputs, lookup), **node.attributes})
            results = result if isinstance(result, (tuple, list)) else (result,)
            if node in ctx.dequantised.products and not takes_over(ctx.readers.get(node.outputs[0], ())):
                # The engine moves the scales of integer products through other readers, mistakes scales of columns for scales
                # of channels there, and multiplies a convolution by its scales once per reader.
                results = [ctx.emit("multiply", value, ctx.factor(1.0)) for value in results]
            if self.precision == "ieee" and node.op not in EXACT:
                results = [ctx.round_to_float16(value) if value.data_type == "float16" else value for value in results]
            for operand, value in zip(node.outputs, results, strict=True):
                got = value.data_type, value.shape
                assert got == (operand.data_type, operand.shape), (
                    f"{node.title}: emitted {got}, declared {operand.desc}"
                )
                values[operand] = value
            done[node] = "native" if ctx.count - before <= 1 else "composed"
        return [lookup(operand) for operand in graph.outputs.values()], done


def _constants(ctx: Emitter, node: Node, operands: Iterable[Value]) -> list[Value] | None:
    """Fold a node of constants with the reference back end; return None for other nodes.

    The engine would fold with the rounding of its kernels, and in place, even if other nodes read the operand. 8-bit weights,
    tables, and large constants are left to the engine.
    """
    if node in ctx.dequantised.weights or node in ctx.dequantised.tables:
        return None
    count = sum(output.desc.element_count for output in node.outputs)
    arrays: dict[Operand, np.ndarray] = {}
    for operand, value in zip(node.operands, operands, strict=True):
        if value.array is None:
            return None
        arrays[operand] = value.array
        count += value.array.size
    if not arrays or count > MOST_FOLDED:
        return None
    from ..reference import reference  # most graphs do without its rules

    if not reference.supports(node):
        return None
    return [ctx.add_constant(array) for array in reference.evaluate(node, arrays)]


def _operator_rule(op: Op[..., Any], name: str) -> Any:
    def rule(ctx: Emitter, **arguments: Any) -> Value:
        return ctx.emit(name, *[arguments[operand] for operand in op.operands])

    return rule


openvino = OpenVino()
