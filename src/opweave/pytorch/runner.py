"""Calls of a module that is a graph: arguments of the module in, results of the module out, over the same memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree

from .. import memory
from ..context.context import MLContext
from ..context.graph import MLGraph, recorded_graph
from ..context.tensor import MLTensor
from ..context.tensors import check_own
from ..core.dtypes import numpy_type
from ..core.sizes import Symbol
from ..core.specialise import sizes_of
from ..memory.arrays import as_array, contiguous
from ..support.errors import NotSupportedError, ValidationError, require
from ..support.names import short_repr
from .convert import FallbackCall
from .export import OTHER_FORM, check_devices, check_module, export, flatten, names_of
from .program import ConvertedProgram, ProgramInput, ProgramOutput, convert_program, written_inputs
from .sizes import numbers_of
from .tensors import PARTS, array_of, data_type_of, overlaps, span_of, tensor_of

WRITTEN = "a buffer that the module writes to"
"""The reason for copying results into buffers and arguments, for the counter of copies."""


def export_module(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> tuple[Any, dict[tuple[str, int], str]]:
    """The exported program of a module, and the user's names of dimensions; an exported program as it is."""
    if isinstance(module, torch.export.ExportedProgram):
        passed = {"args": args, "kwargs": kwargs, "dynamic_shapes": dynamic_shapes}
        extra = [name for name, value in passed.items() if value]
        require(not extra, f"from_torch: an exported program has {' and '.join(extra)} already")
        return module, {}
    require(
        isinstance(module, torch.nn.Module),
        f"from_torch: takes a torch.nn.Module or a torch.export.ExportedProgram, got {short_repr(module)}",
    )
    require(
        not isinstance(args, torch.Tensor), "from_torch: args must be a tuple of arguments, got a tensor; write (x,)"
    )
    check_module(module)
    check_devices(dict(module.named_parameters()) | dict(module.named_buffers()))
    program = export(module, args, kwargs, dynamic_shapes)
    _refuse_written_attributes(program)
    return program, names_of(program, module, args, kwargs, dynamic_shapes)


def _refuse_written_attributes(program: Any) -> None:
    """Refuse writes to tensors that are no buffers: `torch.export` has also written to them while it traced the module."""
    written = written_inputs(program)
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.CONSTANT_TENSOR and spec.arg.name in written:
            raise NotSupportedError(
                f"from_torch: the module writes to the tensor {spec.target!r}, which is no buffer, and torch.export has "
                "written to it while it traced the module; make it a buffer (register_buffer), and load its values again"
            )


class ModuleRunner:
    """Runs the graph of an exported program on arguments of the module."""

    def __init__(
        self,
        program: Any,
        context: MLContext,
        names: dict[tuple[str, int], str],
        fallback: str = "auto",
        *,
        shares: bool = False,
    ) -> None:
        check_devices({name: t for name, t in program.state_dict.items() if isinstance(t, torch.Tensor)})
        self.program, self.context, self.names = program, context, names
        self.converted: ConvertedProgram = convert_program(program, context, names, fallback=fallback, shares=shares)
        self._targets = frozenset(self.converted.writes.values())
        self._returns_sizes = any(isinstance(output.value, Symbol) for output in self.converted.outputs)
        self._last_shapes: dict[str, tuple[int, ...]] = {}
        """The shapes of the inputs of the last call."""
        self._buffers = {i.name: array_of(i.buffer) for i in self.converted.inputs if i.buffer is not None}
        graph = self.converted.graph
        in_place = {} if graph is None else recorded_graph(graph).in_place()
        self._in_place = {name for name, target in self.converted.writes.items() if in_place.get(name) == target}

    @cached_property
    def _structures(self) -> tuple[Any, Any]:
        """The structures of the arguments and of the results.

        PyTorch makes a class each time that the program is asked, which takes 150 us.
        """
        spec = self.program.call_spec
        return spec.in_spec, spec.out_spec

    @property
    def fallbacks(self) -> list[FallbackCall]:
        """The calls that PyTorch runs."""
        return self.converted.fallbacks

    def graph_for(self, numbers: Mapping[str, int]) -> MLGraph | None:
        """The graph for numbers of PyTorch's symbols; None if nothing is computed."""
        if not numbers:
            return self.converted.graph
        return convert_program(self.program, self.context, self.names, numbers=numbers).graph

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the graph on the arguments of the module, and return what the module returns."""
        leaves = self.flatten("call", args, kwargs)
        return _pytree.tree_unflatten(self.call_flat(leaves, _kind_of(leaves)), self._structures[1])

    def call_flat(self, leaves: Sequence[Any], kind: str) -> list[Any]:
        """Run the graph on flattened arguments, and return flattened results of a kind: "torch", "tensor" or "array"."""
        results, sizes = self._run(leaves, kind)
        return self.converted.results_of(leaves, lambda output: self._result(output, leaves, results, sizes, kind))

    def flatten(self, subject: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arguments of a call, flattened and checked."""
        leaves = flatten(subject, self._structures[0], args, kwargs)
        for position, value in self.converted.constants.items():
            got = leaves[position]
            if type(got) is not type(value) or got != value:
                raise ValidationError(
                    f"{subject}: {self.converted.arguments[position]!r} must be {short_repr(value)}, the value that the "
                    f"module was exported with, got {short_repr(got)}"
                )
        return leaves

    def check(self, subject: str, leaves: Sequence[Any]) -> None:
        """Require flattened arguments that the graph takes; `subject` begins the messages."""
        graph = self.converted.graph
        if graph is not None:
            arrays = self._memory_of(subject, leaves)
            sizes_of(graph.inputs, {name: tuple(arrays[name].shape) for name in graph.inputs}, subject)
        self.converted.rules.check(subject, leaves)

    def inputs_of(self, subject: str, leaves: Sequence[Any]) -> dict[str, Any]:
        """The inputs of the graph by name; copies of buffers, so that a measurement does not change them."""
        self.check(subject, leaves)
        arrays, graph = self._memory_of(subject, leaves), self.converted.graph
        names = () if graph is None else graph.inputs
        reason = "buffers that a measurement would change"
        return {n: memory.copied(arrays[n], reason) if n in self._buffers else arrays[n] for n in names}

    def _memory_of(self, subject: str, leaves: Sequence[Any]) -> dict[str, Any]:
        """The memory of arguments and buffers by name: the inputs of the graph, and those that it only writes to."""
        return {
            item.name: self._buffers[item.name]
            if item.position is None
            else _input(subject, self.context, item, leaves[item.position])
            for item in self.converted.inputs
        }

    def _check_shapes(self, graph: MLGraph, shapes: dict[str, tuple[int, ...]]) -> None:
        """Require shapes that fit those of the inputs, unless they are those of the last call."""
        if self._last_shapes != shapes:
            sizes_of(graph.inputs, shapes, "call")
            self._last_shapes = shapes

    def _check_constants(self, target: str, value: Any) -> None:
        """Refuse writes to an argument that shares memory with a parameter or buffer: these are constants of the graph."""
        if isinstance(value, np.ndarray) and overlaps(span_of(value), self.converted.state):
            raise ValidationError(
                f"call: the module writes to {target!r}, which shares memory with a parameter or buffer; pass a copy (clone)"
            )

    def _result_sizes(self, leaves: Sequence[Any]) -> dict[str, int]:
        """The size of each name, also of inputs that the graph does not read, if results are sizes."""
        return numbers_of(self.program, leaves, self.names) if self._returns_sizes else {}

    def _run(self, leaves: Sequence[Any], kind: str) -> tuple[dict[str, Any], dict[str, int]]:
        """The outputs of the graph by name, and the sizes of names."""
        graph = self.converted.graph
        if graph is None:
            self.converted.rules.check("call", leaves)
            return {}, self._result_sizes(leaves)
        arrays = self._memory_of("call", leaves)
        for target in self._targets:
            _check_target(target, arrays)
            if target not in self._buffers:
                self._check_constants(target, arrays[target])
        feed = {name: arrays[name] for name in graph.inputs}
        shapes = {name: tuple(value.shape) for name, value in feed.items()}
        self._check_shapes(graph, shapes)
        self.converted.rules.check("call", leaves)
        in_place = {name: feed[self.converted.writes[name]] for name in self._in_place}
        results: dict[str, Any]
        if kind == "tensor":
            results = self._dispatch(graph, feed, shapes, in_place)
        else:
            results = self.context.compute(graph, feed, in_place or None)
        for name, target in self.converted.writes.items():
            if name not in in_place:
                _write(self.context, arrays[target], results[name])
        return results, self._result_sizes(leaves)

    def _dispatch(
        self,
        graph: MLGraph,
        feed: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
        in_place: Mapping[str, Any],
    ) -> dict[str, Any]:
        context = self.context
        tensors = {
            name: value if isinstance(value, MLTensor) else context.tensor_from(value) for name, value in feed.items()
        }
        sizes = graph.compute_shapes(shapes)
        outputs = {
            name: tensors[self.converted.writes[name]]
            if name in in_place
            else context.create_tensor(desc.data_type, sizes[name], readable=True, writable=True)
            for name, desc in graph.outputs.items()
        }
        context.dispatch(graph, tensors, outputs)
        return outputs

    def _result(
        self,
        output: ProgramOutput,
        leaves: Sequence[Any],
        results: Mapping[str, Any],
        sizes: Mapping[str, int],
        kind: str,
    ) -> Any:
        if output.name:
            return _as_kind(results[output.name], output.dtype, kind)
        if output.position is not None:
            return leaves[output.position]
        value = output.constant()
        if isinstance(value, Symbol):
            return value.at(sizes)
        if isinstance(value, torch.Tensor):
            return value if kind == "torch" else array_of(value)
        return value


_COMPLEX = {torch.complex64: np.complex64, torch.complex128: np.complex128}
"""Complex data types that NumPy has."""


def _kind_of(leaves: Sequence[Any]) -> str:
    """The kind of results: that of the first argument that is a tensor or an array."""
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            return "torch"
        if isinstance(leaf, MLTensor):
            return "tensor"
        if isinstance(leaf, np.ndarray):
            return "array"
    return "torch"


def _input(subject: str, context: MLContext, item: ProgramInput, value: Any) -> Any:
    """The memory of an argument."""
    if isinstance(value, MLTensor):
        check_own(context, value, f"{subject}: {item.name!r}")
        data_type = data_type_of(item.dtype, item.name)
        if value.data_type != data_type:
            raise ValidationError(f"{subject}: {item.name!r} must be {data_type}, got {value.data_type}")
        return value
    if isinstance(value, torch.Tensor):
        if value.dtype is not item.dtype:
            raise ValidationError(
                f"{subject}: {item.name!r} must be {item.dtype}, got {value.dtype}; tensor.to({item.dtype}) converts it"
            )
        if not value.is_cpu:
            raise ValidationError(
                f"{subject}: {item.name!r} is on {value.device}, and the graph takes tensors in the memory of the host; "
                "call .cpu()"
            )
        return array_of(value, f"{subject}: {item.name!r}")
    if value is None:
        raise ValidationError(f"{subject}: {item.name!r} must be a tensor, as in the export, got None; {OTHER_FORM}")
    array = as_array(value, f"{subject}: {item.name!r}")
    if item.dtype in _COMPLEX and array.dtype == _COMPLEX[item.dtype]:
        # NumPy cannot view a scalar, or a strided last axis, as a narrower type.
        return contiguous(array).reshape(-1).view(array.real.dtype).reshape(*array.shape, 2)
    expected = numpy_type(data_type_of(item.dtype, item.name))
    if item.dtype is torch.bool and array.dtype == np.bool_:
        return array.view(np.uint8)
    if array.dtype != expected:
        raise ValidationError(
            f"{subject}: {item.name!r} must be {expected}, got {array.dtype}; array.astype('{expected}') converts it"
        )
    return array


def _check_target(target: str, feed: Mapping[str, Any]) -> None:
    """Require memory that a module can write to, and that no other argument shares: the program treats them as separate."""
    written = feed[target]
    if isinstance(written, np.ndarray) and not written.flags.writeable:
        raise ValidationError(f"call: the module writes to {target!r}, which is read-only; pass a copy")
    for name, value in feed.items():
        if name == target:
            continue
        arrays = isinstance(value, np.ndarray) and isinstance(written, np.ndarray)
        if value is written or (arrays and np.may_share_memory(value, written) and np.shares_memory(value, written)):
            raise ValidationError(
                f"call: the module writes to {target!r}, which shares memory with {name!r}; pass a copy (clone) of one"
            )


def _write(context: MLContext, target: Any, result: Any) -> None:
    """Copy a result into the memory of a buffer or an argument."""
    source = context.read_tensor(result) if isinstance(result, MLTensor) else result
    if isinstance(target, MLTensor):
        context.write_tensor(target, source)
    else:
        memory.copy(target, source, WRITTEN)


def _as_kind(result: Any, dtype: Any, kind: str) -> Any:
    if isinstance(result, MLTensor):
        return result
    if kind == "torch":
        return tensor_of(result, dtype)
    if dtype in PARTS:
        return result.view(_COMPLEX[dtype])[..., 0] if dtype in _COMPLEX else result
    return result.view(np.bool_) if dtype is torch.bool else result
