"""Calls of operations of users on arrays and tensors, and the names under which such operations are declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .arrays import as_array, contiguous, describe
from .builder import MLGraphBuilder
from .cache import Cache
from .context import MLContext, current_context, entered
from .declaration import CustomOp, composite, expression, op
from .errors import ValidationError, require
from .expr.array import Array as Traced
from .graph import Builder, Operand, check_desc, title
from .lazy.array import Array
from .lazy.call import call
from .links import calls_of
from .run.graph import MLGraph
from .tensor import MLTensor

GRAPHS = 256
"""An operation called on arrays keeps this many graphs for each context, one for each combination of shapes, data types and
attributes."""

CONTEXTS = 4
"""An operation called on arrays keeps graphs for this many contexts, the last ones used."""


@calls_of.provide
class _Calls:
    """What one operation does that is called with operands, arrays or tensors, and the graphs that it keeps for that."""

    def __init__(self, op: CustomOp[Any]) -> None:
        self._op = op
        self._direct: Cache[Any, _Direct] = Cache(GRAPHS, raw=True)
        self._graphs: Cache[MLContext, Cache[Any, MLGraph]] = Cache(CONTEXTS)  # graphs keep their context alive

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not kwargs and not entered.get():
            try:
                direct = self._direct.peek(tuple([(type(a), a.dtype, a.shape) for a in args]))
            except (AttributeError, TypeError):
                direct = None
            if direct is not None and direct.is_ready(args):
                return direct(args)
        op = self._op
        for value in (*args, *kwargs.values()):
            for item in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(item, Operand):
                    return op.add(item.builder, args, kwargs)
                if isinstance(item, Array):
                    return call(op, args, kwargs)
                if isinstance(item, Traced):
                    return op.inline(args, kwargs)
        return self._compute(args, kwargs)

    def _compute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the results of arrays and tensors; they are tensors if an operand is one."""
        op = self._op
        who = title(op.name, str(kwargs.get("label", "")))
        given = dict(zip(op.positional, args, strict=False))
        require(len(given) == len(args), f"{who}: takes {len(given)} positional arguments, got {len(args)}")
        for name in given.keys() & kwargs.keys():
            raise ValidationError(f"{who}: {name} is given twice")
        given.update(kwargs)
        feed: dict[str, Any] = {}
        slots: list[str] = []  # what stands for each operand; a tensor that is several of them is one input
        key: list[Any] = []
        context: MLContext | None = None
        for name, value in given.items():
            if name not in op.operands or value is None or isinstance(value, (int, float)):
                key.append((name, value))
                continue
            items = value if name in op.sequences else (value,)
            for item in items:
                slot = f"{name}{len(slots)}"
                if isinstance(item, MLTensor):
                    require(context in (None, item.context), f"{who}: the tensors belong to several contexts")
                    context = item.context
                    slot = next((known for known, tensor in feed.items() if tensor is item), slot)
                    desc = item.desc
                else:
                    item = contiguous(as_array(item, f"{who}: {name}"))
                    desc = check_desc(describe(item, f"{who}: {name}"), Builder.max_byte_length, f"{who}: {name}")
                feed[slot] = item
                slots.append(slot)
                key.append((name, slot, desc))
        require(bool(feed), f"{who}: at least one operand must be an array, a tensor, or an operand of a graph")
        home = context or current_context()
        graph = self._graph(home, tuple(key), given, feed, slots)
        feed = {name: feed[name] for name in graph.inputs}  # no more than the results depend on
        if context is None:
            results = tuple(home.compute(graph, feed).values())
            if not kwargs and not entered.get() and len(feed) == len(args) and all(type(a) is np.ndarray for a in args):
                self._remember(args, graph, tuple(feed))
            return results if len(results) > 1 else results[0]
        tensors = {name: value if isinstance(value, MLTensor) else _tensor(home, value) for name, value in feed.items()}
        outputs = {
            name: home.create_tensor(desc.data_type, desc.shape, readable=True, writable=True)
            for name, desc in graph.outputs.items()
        }
        home.dispatch(graph, tensors, outputs)
        made = tuple(outputs.values())
        return made if len(made) > 1 else made[0]

    def _remember(self, arrays: tuple[np.ndarray, ...], graph: MLGraph, names: tuple[str, ...]) -> None:
        """Repeat this call without checks when arrays of the same data types and shapes are given."""
        self._direct.put(tuple([(type(a), a.dtype, a.shape) for a in arrays]), _Direct(graph, names))

    def _graph(self, context: MLContext, key: Any, *call: Any) -> MLGraph:
        """Build the graph of this one operation, or take it from the cache."""
        graphs = self._graphs.make(context, lambda: Cache(GRAPHS))
        graph = graphs.make(key, lambda: self._build(context, *call))
        return graphs.put(key, self._build(context, *call)) if graph.destroyed else graph

    def _build(
        self, context: MLContext, given: Mapping[str, Any], feed: Mapping[str, Any], slots: Sequence[str]
    ) -> MLGraph:
        op = self._op
        builder = MLGraphBuilder(context)
        inputs: dict[str, Operand] = {}
        for slot, value in feed.items():
            desc = value.desc if isinstance(value, MLTensor) else describe(value, slot)
            inputs[slot] = builder.input(slot, desc.data_type, desc.shape)
        rest = iter(slots)

        def stand_in(_: Any) -> Operand:
            return inputs[next(rest)]

        def operand(name: str, value: Any) -> Any:
            if name not in op.operands or value is None or isinstance(value, (int, float)):
                return value
            return tuple(map(stand_in, value)) if name in op.sequences else stand_in(value)

        result = op.add(builder, (), {name: operand(name, value) for name, value in given.items()})
        results = result if isinstance(result, tuple) else (result,)
        return builder.build({f"y{number}": operand for number, operand in enumerate(results)})


def _tensor(context: MLContext, array: np.ndarray) -> MLTensor:
    """An array as a tensor: its own memory on the host, a copy on other devices."""
    if context.backend.space.is_host:
        return context.tensor_from(array)
    tensor = context.create_tensor(describe(array, "array").data_type, array.shape, writable=True)
    context.write_tensor(tensor, array)
    return tensor


class _Direct:
    """A call on arrays that is like an earlier one: nothing is checked but what can differ."""

    __slots__ = ("_graph", "_order", "_outputs", "_program", "_single")

    def __init__(self, graph: MLGraph, names: tuple[str, ...]) -> None:
        self._graph = graph
        self._outputs = [(desc.shape, np.dtype(desc.data_type)) for desc in graph.outputs.values()]
        self._program = graph.check_alive()
        self._order = [names.index(name) for name in graph.inputs]
        self._single = len(self._outputs) == 1

    def is_ready(self, arrays: tuple[np.ndarray, ...]) -> bool:
        """Whether the graph is alive, and the arrays can be read as they are."""
        if self._graph.destroyed:
            return False
        for array in arrays:
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                return False
        return True

    def __call__(self, arrays: tuple[np.ndarray, ...]) -> Any:
        outputs = [np.empty(shape, dtype) for shape, dtype in self._outputs]
        self._program.run([arrays[k] for k in self._order], outputs)
        return outputs[0] if self._single else tuple(outputs)


__all__ = ["CustomOp", "composite", "expression", "op"]
