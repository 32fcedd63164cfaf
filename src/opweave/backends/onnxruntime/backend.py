"""The ONNX Runtime back end. The package `rules` holds the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from ...core.dtypes import ANY, INFO, POWERS
from ...support.errors import ValidationError
from .. import Backend, Device, How, ModelSource, PowerPreference, Rule, RuleFunction, Spinning

if TYPE_CHECKING:
    from ...core.graph import Graph, Node, Operand
    from ...core.operation import Op
    from .emit import EmittedGraph, Emitter, Value
    from .plugins import Plugin
    from .sessions import OrtSession


class OnnxRuntime(Backend):
    """Microsoft's ONNX Runtime."""

    name = "onnxruntime"
    families = "opweave.backends.onnxruntime.rules.families"
    # The engine runs one kernel for each operation.
    gains_from_loops = True
    expands_filters = True
    takes_names = True
    stand_in_for_types = "reference"
    computes = frozenset(name for name, info in INFO.items() if info.bits >= 8 and name != POWERS)
    plugin: Plugin | None = None
    """Device of a plug-in provider that runs the graphs; None for the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self._contrib: set[Op[..., Any] | str] = set()
        self._in_files: dict[Op[..., Any], Rule] = {}
        self._by_plugin: dict[Plugin, OnnxRuntime] = {}
        self._arenaless: dict[OnnxRuntime, OnnxRuntime] = {}

    def devices(self) -> list[Device]:
        from .devices import devices

        return devices()

    def device_named(self, name: str) -> Device | None:
        from .devices import find_device

        return find_device(name)

    def open(self, device: Device, power_preference: PowerPreference) -> OnnxRuntime:
        if not device.provider:
            return self
        from .plugins import plugins

        plugin = next(plugin for plugin in plugins() if plugin.name == device.name)
        if plugin not in self._by_plugin:
            self._by_plugin[plugin] = self._on(plugin)
        return self._by_plugin[plugin]

    def with_provider_options(self, options: Mapping[str, str]) -> OnnxRuntime:
        from dataclasses import replace

        assert self.plugin is not None
        backend = copy(self)
        backend.plugin, backend.variants = replace(self.plugin, options=dict(options)), {}
        return backend

    def _on(self, plugin: Plugin) -> OnnxRuntime:
        backend = copy(self)  # a shallow copy: back ends share their rules
        backend.plugin, backend.variants = plugin, {}
        backend.gains_from_loops = backend.takes_names = backend.expands_filters = False
        backend.computes = frozenset(ANY)
        backend.name, backend.stand_in = f"{self.name}:{plugin.short_provider}", OnnxRuntime.name
        backend.stand_in_for_types = OnnxRuntime.name
        return backend

    def without_arena(self) -> OnnxRuntime:
        if self.plugin is not None or not self.has_arena:
            return self
        variant = copy(self)  # a shallow copy: variants share the rules
        variant.has_arena = False
        if isinstance(self.without_rivals, OnnxRuntime):
            variant.without_rivals = self.without_rivals.without_arena()
        return self._arenaless.setdefault(self, variant)

    def version(self) -> str:
        from .devices import version

        return version()

    def session_threads(self) -> int:
        from .options import pool_threads

        return pool_threads(self.threads)

    def rule(self, node: Node) -> Rule | None:
        if self.plugin is not None and node.op.bodies:
            return None  # the runtime repeats the body, whose nodes the provider may lack
        rule = None if self._provider_fault(node) else super().rule(node)
        return rule if rule is None or not node.has_further_types or self._has_kernels(node, rule) else None

    def computes_types_of(self, node: Node) -> bool:
        if not node.has_further_types:
            return True
        from ...ops.quantization import dequantize_linear

        if node.op is dequantize_linear and not self.plugin:
            # The engine packs elements of 4 bits, so that they can be constants, but no inputs or outputs.
            others = [o for o in node.operands if not (o.is_constant and INFO[o.data_type].name in ("int4", "uint4"))]
            return all(o.data_type in self.computes for o in (*others, *node.outputs))
        return super().computes_types_of(node)

    def _has_kernels(self, node: Node, rule: Rule) -> bool:
        """Whether the engine has kernels for all that a rule emits for a node, of its data types or wider ones."""
        from ...core.graph import Graph, map_operands
        from .emit import Emitter

        ctx = Emitter(precision=self.precision)
        names = {operand: f"x{k}" for k, operand in enumerate(dict.fromkeys(node.operands))}
        values = {
            operand: ctx.add_constant(operand.value) if operand.is_constant else ctx.add_input(name, operand.desc)
            for operand, name in names.items()
        }
        ctx.graph, ctx.node, ctx.has_kernels, ctx.lacks_kernels = (
            Graph({}, {str(k): o for k, o in enumerate(node.outputs)}, (node,)),
            node,
            True,
            False,
        )
        rule((ctx,), {**map_operands(node.inputs, values.__getitem__), **node.attributes})
        return not ctx.lacks_kernels

    def gains_from_narrow(self, node: Node) -> bool:
        from .narrow import gains_from_lookup

        if self.plugin is not None:
            return False
        weight, indices = node.inputs["weight"], node.inputs.get("indices")
        if indices is None:
            return self.supports(node)
        # Without a kernel for the blocks, bytes are picked and dequantised, which is still less than the whole table.
        return gains_from_lookup(weight.shape[0], node.attributes["width"], indices.shape)  # type: ignore[union-attr]

    def why_not(self, node: Node) -> str | None:
        return self._provider_fault(node) or super().why_not(node)

    def _provider_fault(self, node: Node) -> str | None:
        """Reason for which the plug-in provider does not run a node; None if it does, or there is none."""
        if self.plugin is None:
            return None
        from .provider_faults import why_not

        return why_not(self.plugin.provider, node)

    def rename(
        self, names: Mapping[Op[..., Any] | str, str], when: Callable[..., bool] | None = None, domain: str = ""
    ) -> None:
        """Register a rule for each op that differs from an ONNX operator of `domain` only in its name."""
        for op, op_type in names.items():
            (self.lower_contrib if domain else self.lower)(op, when=when)(_operator_rule(op_type, domain))

    def lower_contrib(
        self, op: Op[..., Any] | str, when: Callable[..., bool] | None = None
    ) -> Callable[[RuleFunction], RuleFunction]:
        """Register a rule that emits operators outside of ONNX's own domain."""
        self._contrib.add(op)
        return self.lower(op, when=when)

    def lower_in_files(self, op: Op[..., Any]) -> Callable[[RuleFunction], RuleFunction]:
        """Register a rule for files of models with names, where operands give sizes that are numbers in each run."""

        def register(function: RuleFunction) -> RuleFunction:
            self._in_files[op] = Rule(function, None)
            return function

        return register

    def is_portable(self, node: Node) -> bool:
        """Whether the rule of `node` emits ONNX's own operators only, which any engine runs."""
        from ...composites import is_composite

        op = node.op
        is_contrib = op in self._contrib or (op.name in self._contrib and is_composite(op, op.name))
        return self.supports(node) and not is_contrib

    def has_rule_in_files(self, node: Node) -> bool:
        """Whether there is a rule for `node` in a file of a model with names."""
        self.rules_of(node.op)
        return node.op in self._in_files

    def how(self, node: Node) -> How | None:
        if not self.supports(node):
            return super().how(node)
        from ...core.graph import Graph
        from .emit import Emitter

        return self.emit(Emitter(), Graph.reaching({"y": node.outputs[0]}))[1][node]

    def with_threads(self, threads: int) -> Backend:
        return self._variant(threads, self.precision)

    def compile(
        self, graph: Graph, *, device: str, power_preference: PowerPreference, spinning: Spinning = "short"
    ) -> Any:
        return self._compile(graph, power_preference, spinning)

    def _compile(
        self, graph: Graph, power_preference: PowerPreference, spinning: Spinning, measures: bool = False
    ) -> OrtSession:
        from ...core.guards import bind_scope
        from .sessions import SessionSettings, compile, packs_weights

        # Providers of accelerators may require static shapes.
        any_size = self.plugin is None and not graph.has_names and packs_weights(graph)
        emit = bind_scope(partial(self.emit_graph, graph, any_size))
        settings = SessionSettings(
            power_preference, spinning, self.threads, self.precision, self.plugin, self.has_arena
        )
        again = bind_scope(partial(self._compile, graph, power_preference, spinning, measures=True))
        return compile(graph, emit, settings, again, measures)

    def compile_model(self, source: ModelSource, power_preference: PowerPreference) -> Any:
        if self.plugin is not None:
            return None  # many providers require static shapes
        from .model import ModelSession

        session = ModelSession(
            *source(),
            power_preference,
            self.threads,
            precision=self.precision,
            spinning="long",
            source=source,
            has_arena=self.has_arena,
        )
        session.check_types()
        return session

    def emit_graph(self, graph: Graph, any_size: bool = False) -> EmittedGraph:
        """Emit a legal graph as a model with the outputs `o0`, `o1`, …"""
        from .emit import Emitter

        ctx = Emitter(any_size=any_size, precision=self.precision, has_halves=self.plugin is not None)
        values, done = self.emit(ctx, graph)
        descs = [operand.desc for operand in graph.outputs.values()]
        outputs = {f"o{k}": (value, desc) for k, (value, desc) in enumerate(zip(values.values(), descs, strict=True))}
        return ctx, outputs, done

    def emit(
        self, ctx: Emitter, graph: Graph, arguments: Sequence[Value] | None = None
    ) -> tuple[dict[str, Value], dict[Node, How]]:
        """Emit the nodes of a legal graph; return the values of its outputs, and the kind of implementation of each node.

        The inputs are `arguments`; without them, they are declared.
        """
        from ...core.graph import map_operands
        from .emit import Value

        ctx.graph = graph
        done: dict[Node, How] = {}
        values: dict[Operand, Value] = {}
        if arguments is not None:
            values.update(zip(graph.inputs.values(), arguments, strict=True))
        for k, (name, operand) in enumerate(graph.inputs.items() if arguments is None else ()):
            values[operand] = ctx.add_input(ctx.name_of_input(name, k), operand.desc)

        def lookup(operand: Operand) -> Value:
            if operand not in values:
                values[operand] = ctx.add_constant(operand.value)
            return values[operand]

        for node in graph.nodes:
            ctx.node, ctx.has_kernels, ctx.lacks_kernels, before = node, True, False, len(ctx.nodes)
            rule = self._in_files[node.op] if ctx.portable and self.has_rule_in_files(node) else self.rule(node)
            assert rule is not None, node
            try:
                result = rule((ctx,), {**map_operands(node.inputs, lookup), **node.attributes})
            except ValidationError as error:  # the rule needs the number of a size
                raise type(error)(f"{node.title}: {error}") from None
            ctx.written[node] = [(onnx_node.name, onnx_node.op_type) for onnx_node in ctx.nodes[before:]]
            results = result if isinstance(result, (tuple, list)) else (result,)
            for operand, value in zip(node.outputs, results, strict=True):
                assert value.data_type == operand.data_type, f"{node.title}: emitted {value}, declared {operand.desc}"
                if ctx.precision == "ieee":
                    ctx.round(value)
                values[operand] = Value(value.name, operand.data_type, operand.shape)
                ctx.sizes[value.name] = operand.desc.byte_length
                ctx.note_sizes(value, operand.shape)
            done[node] = "native" if ctx.has_kernels and len(ctx.nodes) - before <= 1 else "composed"
        return map_operands(graph.outputs, lookup), done


def _operator_rule(op_type: str, domain: str) -> RuleFunction:
    def rule(ctx: Emitter, **arguments: Any) -> Any:
        operands = [arguments.pop(name) for name in ctx.node.op.operands]
        return ctx.emit(op_type, *operands, domain=domain, **arguments)

    return rule


ort = OnnxRuntime()
