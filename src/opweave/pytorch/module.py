"""`opweave.from_torch`: a module of PyTorch, or an exported program, as a graph that is called as the module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.utils import _pytree

from .. import memory
from ..context.context import MLContext, ml
from ..context.graph import MLGraph
from ..context.tensor import MLTensor
from ..core.dtypes import numpy_type
from ..core.sizes import Size
from ..core.specialise import sizes_of
from ..memory.arrays import as_array
from ..support.errors import ValidationError, require
from ..support.names import count_of, short_repr
from .convert import FallbackCall
from .export import check_devices, check_module, export, flatten, names_of
from .program import ConvertedProgram, ProgramInput, convert_program
from .tensors import array_of, data_type_of, tensor_of

if TYPE_CHECKING:
    from pathlib import Path

    from ..run.drawing import Drawing
    from ..run.profile import Profile


def from_torch(
    module: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    context: MLContext | None = None,
    fallback: Literal["auto", "error"] = "auto",
) -> CompiledModule:
    """Convert a module of PyTorch, or an exported program, to a graph.

    The module is exported by `torch.export`, for inference. Parameters and buffers are not copied: the graph and the module
    share their memory, so do not train the module while the graph is in use. Buffers that the module writes to, such as a KV
    cache, are updated by calls, as by calls of the module.

    Args:
        module: a `torch.nn.Module` in evaluation mode, or a `torch.export.ExportedProgram`.
        args: example arguments of the module: a sequence of tensors, numbers, and nested lists and dictionaries of them.
            Shapes of tensors are those of all calls, except for `dynamic_shapes`. Not for an exported program.
        kwargs: example keyword arguments.
        dynamic_shapes: dimensions that may differ in calls, as `torch.export.export` takes them, by parameter. Names may be
            strings: `{"x": {0: "batch"}}`.
        context: the context of the graph; default: a new one on the best device.
        fallback: for operators without a converter: "auto" lets PyTorch run them as nodes of the graph, which `explain()`
            counts; "error" makes them an error.

    Returns:
        A callable with the signature of the module.

    Raises:
        ValidationError: the module is in training mode, or under autocast; arguments that do not fit the module.
        NotSupportedError: shapes or branches that depend on values, tensors on other devices, or data types that graphs do
            not have; with `fallback="error"`, an operator without a converter.
        MissingExtraError: PyTorch is not installed.

    >>> import torch, opweave as ow
    >>> module = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()).eval()
    >>> compiled = ow.from_torch(module, (torch.ones(1, 4),), dynamic_shapes=({0: "batch"},))
    >>> compiled(torch.ones(3, 4)).shape
    torch.Size([3, 2])
    """
    require(
        fallback in ("auto", "error"), f"from_torch: fallback must be 'auto' or 'error', got {short_repr(fallback)}"
    )
    names: dict[tuple[str, int], str] = {}
    if isinstance(module, torch.export.ExportedProgram):
        passed = {"args": args, "kwargs": kwargs, "dynamic_shapes": dynamic_shapes}
        extra = [name for name, value in passed.items() if value]
        require(not extra, f"from_torch: an exported program has {' and '.join(extra)} already")
        program = module
    else:
        require(
            isinstance(module, torch.nn.Module),
            f"from_torch: takes a torch.nn.Module or a torch.export.ExportedProgram, got {short_repr(module)}",
        )
        require(
            not isinstance(args, torch.Tensor),
            "from_torch: args must be a tuple of arguments, got a tensor: write (x,)",
        )
        check_module(module)
        check_devices(dict(module.named_parameters()) | dict(module.named_buffers()))
        program = export(module, args, kwargs, dynamic_shapes)
        names = names_of(program, module, args, kwargs, dynamic_shapes)
    check_devices({n: t for n, t in program.state_dict.items() if isinstance(t, torch.Tensor)})
    owner = ml.create_context() if context is None else context
    require(isinstance(owner, MLContext), f"from_torch: context must be an MLContext, got {short_repr(context)}")
    return CompiledModule(program, owner, convert_program(program, owner, names, fallback=fallback))


class CompiledModule:
    """A module of PyTorch as a graph; made by `opweave.from_torch`.

    A call takes the arguments of the module: PyTorch's tensors, NumPy arrays, or tensors of the graph's context. Results are
    of the same kind. Arguments in C order are read where they are, and the engine writes the results: nothing is copied.

    >>> import numpy as np, torch, opweave as ow
    >>> compiled = ow.from_torch(torch.nn.Softmax(1).eval(), (torch.zeros(1, 2),))
    >>> compiled(np.zeros((1, 2), "float32")), compiled(torch.zeros(1, 2))
    (array([[0.5, 0.5]], dtype=float32), tensor([[0.5000, 0.5000]]))
    """

    def __init__(self, program: Any, context: MLContext, converted: ConvertedProgram) -> None:
        self._program, self._context, self._converted = program, context, converted
        self._buffers = {item.name: array_of(item.buffer) for item in converted.inputs if item.buffer is not None}

    @property
    def graph(self) -> MLGraph:
        """The graph. Its inputs and outputs are named as in the exported program; buffers that are written are inputs, too."""
        if self._converted.graph is None:
            raise ValidationError("the module computes nothing from its arguments, so it has no graph")
        return self._converted.graph

    @property
    def program(self) -> Any:
        """The exported program (`torch.export.ExportedProgram`)."""
        return self._program

    @property
    def fallbacks(self) -> tuple[FallbackCall, ...]:
        """The calls of operators that PyTorch runs, with their place in the module and the reason."""
        return tuple(self._converted.fallbacks)

    def __repr__(self) -> str:
        by_torch = f", {len(self.fallbacks)} in PyTorch" if self.fallbacks else ""
        return f"<CompiledModule {self._converted.graph!r}{by_torch}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph on the arguments of the module, and return what the module returns."""
        leaves = flatten("call", self._program, args, kwargs)
        self._check_constants(leaves)
        kind = _kind_of(leaves)
        results, shapes = self._run(leaves, kind)
        values = [self._result(output, leaves, results, shapes, kind) for output in self._converted.outputs]
        return _pytree.tree_unflatten(values, self._program.call_spec.out_spec)

    def explain(self) -> str:
        """The graph as text, and how each operation runs (`MLGraph.explain`); first, which calls PyTorch runs, and why.

        >>> import torch, opweave as ow
        >>> compiled = ow.from_torch(torch.nn.ReLU().eval(), (torch.zeros(2),))
        >>> print(compiled.explain().splitlines()[0])
        1 operation, none of them in PyTorch
        """
        count = count_of(len(_nodes(self.graph)), "operation")
        by_torch = self.fallbacks
        lines = [f"{count}, {len(by_torch) or 'none'} of them in PyTorch{':' if by_torch else ''}"]
        lines += [f"  {call.name} in {call.place}: {call.reason}" for call in by_torch]
        return "\n".join([*lines, "", self.graph.explain()])

    def profile(self, *args: Any, repeat: int = 10, detail: bool = False, **kwargs: Any) -> Profile:
        """Run the graph on the arguments of the module, and measure each of its steps (`MLGraph.profile`).

        Without arguments, values are random. Buffers keep their values.

        >>> import torch, opweave as ow
        >>> compiled = ow.from_torch(torch.nn.ReLU().eval(), (torch.zeros(2),))
        >>> [step.title for step in compiled.profile(torch.zeros(2), repeat=2).steps]
        ["relu 'relu'"]
        """
        if not args and not kwargs:
            return self.graph.profile(repeat=repeat, detail=detail)
        leaves = flatten("profile", self._program, args, kwargs)
        self._check_constants(leaves)
        inputs = {name: _copy_of_buffer(name, array, self._buffers) for name, array in self._feed(leaves).items()}
        return self.graph.profile(inputs, repeat=repeat, detail=detail)

    def draw(self, path: str | Path | None = None, *, profile: Profile | Mapping[str, float] | None = None) -> Drawing:
        """Draw the graph (`MLGraph.draw`): groups are the modules.

        >>> import torch, opweave as ow
        >>> ow.from_torch(torch.nn.ReLU().eval(), (torch.zeros(2),)).draw().startswith("<svg")
        True
        """
        return self.graph.draw(path, profile=profile)

    # Calls -----------------------------------------------------------------------------------------------------------

    def _check_constants(self, leaves: Sequence[Any]) -> None:
        for position, value in self._converted.constants.items():
            got = leaves[position]
            if type(got) is not type(value) or got != value:
                name = self._converted.arguments[position]
                raise ValidationError(
                    f"call: {name!r} must be {short_repr(value)}, the value that the module was exported with, "
                    f"got {short_repr(got)}"
                )

    def _feed(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """The inputs of the graph by name."""
        feed: dict[str, Any] = {}
        for item in self._converted.inputs:
            feed[item.name] = self._buffers[item.name] if item.position is None else _input(item, leaves[item.position])
        return feed

    def _run(self, leaves: Sequence[Any], kind: str) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
        graph = self._converted.graph
        if graph is None:
            return {}, {}
        feed = self._feed(leaves)
        shapes = {name: tuple(value.shape) for name, value in feed.items()}
        in_place = {
            name: feed[target] for name, target in self._converted.writes.items() if _may_share(graph, name, target)
        }
        results: dict[str, Any]
        if kind == "tensor":
            results = self._dispatch(graph, feed, shapes, in_place)
        else:
            results = self._context.compute(graph, feed, in_place or None)
        for name, target in self._converted.writes.items():
            if name not in in_place:
                _write(self._context, feed[target], results[name])
        return results, shapes

    def _dispatch(
        self,
        graph: MLGraph,
        feed: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
        in_place: Mapping[str, Any],
    ) -> dict[str, Any]:
        context = self._context
        tensors = {
            name: value if isinstance(value, MLTensor) else context.tensor_from(value) for name, value in feed.items()
        }
        sizes = graph.compute_shapes(shapes)
        outputs = {
            name: tensors[self._converted.writes[name]]
            if name in in_place
            else context.create_tensor(desc.data_type, sizes[name], readable=True, writable=True)
            for name, desc in graph.outputs.items()
        }
        context.dispatch(graph, tensors, outputs)
        return outputs

    def _result(
        self,
        output: Any,
        leaves: Sequence[Any],
        results: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
        kind: str,
    ) -> Any:
        if output.name:
            return _as_kind(results[output.name], output.dtype, kind)
        if output.position is not None:
            return leaves[output.position]
        value = output.value
        if isinstance(value, Size):
            return value.at(sizes_of(self.graph.inputs, shapes, "call"))
        if isinstance(value, torch.Tensor):
            return value if kind == "torch" else array_of(value)
        return value


def _nodes(graph: MLGraph) -> Sequence[Any]:
    from ..context.graph import recorded_graph

    return recorded_graph(graph).nodes


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


def _input(item: ProgramInput, value: Any) -> Any:
    """The memory of an argument."""
    if isinstance(value, MLTensor):
        return value
    if isinstance(value, torch.Tensor):
        if value.dtype is not item.dtype:
            raise ValidationError(f"call: {item.name!r} must be {item.dtype}, got {value.dtype}")
        if value.device.type != "cpu":
            raise ValidationError(
                f"call: {item.name!r} is on {value.device}, and the graph takes tensors in the memory of the host; call .cpu()"
            )
        return array_of(value)
    array = as_array(value, f"call: {item.name!r}")
    expected = numpy_type(data_type_of(item.dtype, item.name))
    if item.dtype is torch.bool and array.dtype == np.bool_:
        return array.view(np.uint8)
    if array.dtype != expected:
        raise ValidationError(
            f"call: {item.name!r} must be {expected}, got {array.dtype}; array.astype('{expected}') converts it"
        )
    return array


def _may_share(graph: MLGraph, output: str, source: str) -> bool:
    """Whether an output may be written into the memory of an input."""
    from ..context.graph import recorded_graph

    return recorded_graph(graph).in_place().get(output) == source


def _write(context: MLContext, target: Any, result: Any) -> None:
    """Copy a result into the memory of a buffer or an argument."""
    source = context.read_tensor(result) if isinstance(result, MLTensor) else result
    if isinstance(target, MLTensor):
        context.write_tensor(target, source)
    else:
        memory.copy(target, source, "a buffer that the module writes to")


def _copy_of_buffer(name: str, array: Any, buffers: Mapping[str, Any]) -> Any:
    return array.copy() if name in buffers else array


def _as_kind(result: Any, dtype: Any, kind: str) -> Any:
    if isinstance(result, MLTensor):
        return result
    if kind == "torch":
        return tensor_of(result, dtype)
    return result.view(np.bool_) if dtype is torch.bool else result
