"""The back end "opweave" of `torch.compile`.

    compiled = torch.compile(module, backend="opweave", options={"precision": "tf32"})

Dynamo captures graphs of PyTorch's functions from Python's code. Each is traced to ATen operators with the tensors without
memory that Dynamo guards, converted as exported programs are (`program`), and runs on the memory of the call's tensors.

Parameters and buffers, which Dynamo passes with each call, become constants over the same memory. Where a call passes others,
or they have other memory, or PyTorch has written to them since (`Tensor._version`), the graph is converted again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter, is_, itemgetter
from types import SimpleNamespace
from typing import Any

import torch
from torch._guards import TracingContext
from torch._subclasses import FakeTensorMode
from torch.amp.autocast_mode import _enter_autocast
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx

from .. import memory
from ..compile.completion import wait_at_first_use
from ..context.context import MLContext, ml
from ..context.graph import MLGraph
from ..core.dtypes import numpy_type
from ..core.sizes import Symbol
from ..core.specialise import sizes_of
from ..support.cache import Cache
from ..support.errors import NotSupportedError, require
from ..support.names import short_repr
from .installed import import_torch
from .order import check_order
from .program import ConvertedProgram, ProgramOutput, convert_program
from .runner import WRITTEN, ModuleRunner
from .tensors import DATA_TYPES, PARTS, overlaps, shape_of, span_of

OPTIONS = ("device", "fallback", "precision")
"""The names of options in `torch.compile(options=…)`."""

MAX_BINDINGS = 16
"""The largest number of addresses of arguments and results for which tensors are kept: PyTorch's allocator reuses memory."""

ALIGNMENT = 16
"""Bytes to which the memory of a tensor on a GPU must be aligned, as `MLContext.tensor_from` requires."""

MAX_VARIANTS = 16
"""The largest number of graphs that are kept for one graph of Dynamo, as for other layers with the same code; an estimate."""


@dataclass(frozen=True)
class CompileOptions:
    """Options of `torch.compile(backend="opweave", options=…)`.

    Attributes:
        device: as in `create_context`; default: where the tensors are.
        precision: as in `create_context`.
        fallback: "auto" lets PyTorch run what Opweave cannot, with a warning; "error" makes it an error.
    """

    device: str | None = None
    precision: str = "float32"
    fallback: str = "auto"

    @classmethod
    def of(cls, options: Mapping[str, Any] | None, mode: str | None) -> CompileOptions:
        """Read the options of a call of `torch.compile`."""
        subject = "torch.compile(backend='opweave')"
        require(
            mode in (None, "default"),
            f"{subject}: modes belong to PyTorch's own compiler, got {short_repr(mode)}; options={{'precision': …}} chooses "
            "between speed and accuracy",
        )
        entries = dict(options or {})
        unknown = sorted(set(entries) - set(OPTIONS))
        require(not unknown, f"{subject}: the options are {', '.join(OPTIONS)}, got {', '.join(unknown)}")
        chosen = cls(**entries)
        require(
            chosen.fallback in ("auto", "error"),
            f"{subject}: the option fallback must be 'auto' or 'error', got {short_repr(chosen.fallback)}",
        )
        return chosen


def compile_graph(
    module: Any, example_inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured: what `torch.compile(backend="opweave")` calls.

    Args:
        module: the `torch.fx.GraphModule`.
        example_inputs: the arguments of the first call; sizes that may change are symbols.
        mode: None or "default".
        options: "precision" and "device" as in `create_context`; "fallback": "auto" or "error".

    Returns:
        A function of the module's arguments.

    Raises:
        ValidationError: unknown options.
        MissingExtraError: PyTorch is too old.
        NotSupportedError: the results need gradients; with `fallback="error"`, what Opweave cannot run.

    >>> import torch
    >>> compiled = torch.compile(torch.nn.ReLU(), backend=compile_graph)  # or backend="opweave"
    >>> compiled(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    import_torch("torch.compile(backend='opweave')")
    check_order()
    chosen = CompileOptions.of(options, mode)
    _refuse_gradients(module)
    # Options that this machine cannot serve are an error with any fallback.
    context_of(example_inputs, chosen)
    graph = DynamoGraph(module, example_inputs, chosen)
    try:
        graph.prepare(example_inputs)
    except NotSupportedError as error:
        if chosen.fallback == "error":
            raise
        warnings.warn(f"torch.compile: PyTorch runs a part of the program, {short_text(error)}", stacklevel=2)
        forward: Callable[..., Any] = module.forward
        return forward
    return graph


def short_text(error: Exception) -> str:
    """The message of an error in one line."""
    return " ".join(str(error).split())


def _refuse_gradients(module: Any) -> None:
    """Raise an error if PyTorch would record the graph's results for gradients."""
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    for node in output.all_input_nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled():
            raise NotSupportedError(
                "torch.compile(backend='opweave') is for inference, and this call records its results for gradients; call the "
                "module under torch.inference_mode() or torch.no_grad(), or call module.requires_grad_(False) first"
            )


class _DynamoInterpreter(torch.fx.Interpreter):  # type: ignore[misc]  # (PyTorch has no types here)
    """Runs Dynamo's graph for `make_fx`, which does not see `x.data`: writes to it were lost."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if getattr(target, "__name__", "") == "_get_data_attr":
            return args[0].detach()
        return super().call_function(target, args, kwargs)


@dataclass(frozen=True)
class CapturedProgram:
    """A graph of Dynamo with the attributes of an exported program that `convert_program` reads."""

    graph_module: Any
    graph_signature: Any
    state_dict: Mapping[str, Any]
    constants: Mapping[str, Any]

    @property
    def graph(self) -> Any:
        """The graph of ATen operators."""
        return self.graph_module.graph


class DynamoGraph:
    """A graph that Dynamo captured, compiled for the parameters that calls pass.

    Attributes:
        static: positions of arguments that are parameters or buffers.
        dynamic: positions of the other arguments.
    """

    def __init__(self, module: Any, example_inputs: Sequence[Any], options: CompileOptions) -> None:
        self._module, self._options = module, options
        self._placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        pairs = list(zip(self._placeholders, example_inputs, strict=True))
        self.static = [i for i, (node, value) in enumerate(pairs) if _is_static(node, value)]
        self.dynamic = [i for i in range(len(pairs)) if i not in set(self.static)]
        # Numbers that Dynamo passes as tensors, and whose graph begins with `item()`.
        self._numbers = [i for i in self.dynamic if _is_number(self._placeholders[i])]
        self._fakes = self._fake(example_inputs)
        self._variants: list[Variant] = []
        self._has_warned = False

    def _fake(self, values: Sequence[Any]) -> tuple[Any, list[Any]]:
        """The tensors without memory that stand for the arguments, whose sizes are Dynamo's symbols, and their mode."""
        tracing = TracingContext.try_get()
        if tracing is None or tracing.fake_mode is None:
            mode = FakeTensorMode()
            return mode, [mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for v in values]
        mode = tracing.fake_mode

        def convert(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            symbols = tracing.tensor_to_context.get(value)
            source = None if symbols is None else symbols.tensor_source
            return mode.from_tensor(value, static_shapes=symbols is None, symbolic_context=symbols, source=source)

        return mode, [convert(value) for value in values]

    def prepare(self, values: Sequence[Any]) -> Variant:
        """Convert the graph for the parameters among the values of a call, and the device where they are."""
        tensors = [values[i] for i in self.static]
        context = context_of(values, self._options)
        try:
            runner = self._convert(self._fakes, tensors, context)
            key = None
        except NotSupportedError as error:
            if not _has_symbols(self._fakes[1]):
                raise
            # Sizes that graphs cannot express: a graph for the sizes of this call.
            mode = FakeTensorMode()
            fakes = [mode.from_tensor(v) if isinstance(v, torch.Tensor) else _hint_of(v) for v in values]
            for position in self._numbers:
                fakes[position] = PassedNumber(values[position].item())
            try:
                runner = self._convert((mode, fakes), tensors, context)
            except NotSupportedError:
                raise error from None
            key = self.key_of(values)
        variant = Variant(self, runner, tensors, key)
        self._variants.insert(0, variant)
        del self._variants[MAX_VARIANTS:]
        return variant

    def _convert(
        self, fakes: tuple[Any, list[Any]], tensors: Sequence[Any], context: MLContext
    ) -> HostRunner | GpuRunner:
        program = _capture(self._module, self._placeholders, *fakes, dict(zip(self.static, tensors, strict=True)))
        runner = GpuRunner if context.device.name.startswith("cuda") else HostRunner
        return runner(program, context, self._options.fallback)

    def run_by_torch(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Let PyTorch run a call whose written arguments share memory: graphs compute them as separate tensors."""
        text = "a call writes to an argument that shares memory with another one, or with a parameter or buffer"
        if self._options.fallback == "error":
            raise NotSupportedError(f"torch.compile(backend='opweave'): {text}; pass a copy (clone) of one")
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(f"torch.compile: PyTorch runs a part of the program, since {text}", stacklevel=2)
        results: tuple[Any, ...] = self._module.forward(*values)
        return results

    def key_of(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The sizes and numbers of a call."""
        key = [
            tuple(v.shape) if isinstance(v, torch.Tensor) else _hint_of(v) for v in (values[i] for i in self.dynamic)
        ]
        return *key, *(values[i].item() for i in self._numbers)

    def __call__(self, *values: Any) -> Any:
        """Run the graph."""
        variants = self._variants
        if variants and variants[0].takes(values):
            return variants[0].run(values)
        for position, variant in enumerate(variants):
            if variant.takes(values):
                variants.insert(0, variants.pop(position))
                return variant.run(values)
        variants[:] = [variant for variant in variants if not variant.is_outdated()]
        return self.prepare(values).run(values)


def _is_static(node: Any, value: Any) -> bool:
    """Whether an argument is a parameter or a buffer of a module."""
    if isinstance(value, torch.nn.Parameter):
        return True
    return isinstance(value, torch.Tensor) and "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})


def _has_symbols(values: Sequence[Any]) -> bool:
    sizes = [value.shape if isinstance(value, torch.Tensor) else [value] for value in values]
    return any(isinstance(size, torch.SymInt) for shape in sizes for size in shape)


def _is_number(node: Any) -> bool:
    return getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False) and all(
        user.op == "call_method" and user.target == "item" for user in node.users
    )


@dataclass(frozen=True)
class PassedNumber:
    """A number that stands for a tensor, of which the graph takes the `item()`."""

    value: float

    def item(self) -> float:
        """Return the number."""
        return self.value


def _hint_of(value: Any) -> Any:
    """A size as a number: the one of this call."""
    return value.node.hint if isinstance(value, torch.SymInt) else value


def _has_autocast(module: Any) -> bool:
    """Whether a graph runs under autocast, or enters it."""
    if any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
        return True
    return any(node.target is _enter_autocast for node in module.graph.nodes)


def _capture(
    module: Any, placeholders: Sequence[Any], mode: Any, fakes: Sequence[Any], static: Mapping[int, Any]
) -> CapturedProgram:
    """Trace a graph of PyTorch's functions to ATen operators, those of exported programs."""
    # Autocast casts below the level of exported programs, where composite operators are whole.
    pre_dispatch = not _has_autocast(module)
    cache = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # which would keep tensors without memory
    try:
        with mode, torch.no_grad(), fx_traceback.preserve_node_meta():
            traced = make_fx(_DynamoInterpreter(module).run, pre_dispatch=pre_dispatch)(*fakes)
    finally:
        torch.set_autocast_cache_enabled(cache)
    inputs, state = [], {}
    nodes = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for position, (node, original) in enumerate(zip(nodes, placeholders, strict=True)):
        node.name = original.name
        kind = InputKind.USER_INPUT
        if position in static:
            kind = InputKind.BUFFER
            state[node.name] = static[position]
        target = node.name if position in static else None
        inputs.append(
            SimpleNamespace(kind=kind, arg=SimpleNamespace(name=node.name, value=fakes[position]), target=target)
        )
    (output,) = [node for node in traced.graph.nodes if node.op == "output"]
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    output.args = (tuple(results),)
    outputs = [
        SimpleNamespace(kind=OutputKind.USER_OUTPUT, arg=SimpleNamespace(name=getattr(node, "name", "")), target=None)
        for node in results
    ]
    signature = SimpleNamespace(input_specs=inputs, output_specs=outputs)
    return CapturedProgram(traced, signature, state, {})


# Contexts ------------------------------------------------------------------------------------------------------------


def context_of(values: Sequence[Any], options: CompileOptions) -> MLContext:
    """The context for tensors of a call; on a GPU, its work is in the order of PyTorch's current stream."""
    devices = {value.device for value in values if isinstance(value, torch.Tensor) and value.dim()}
    gpus = {device for device in devices if device.type != "cpu"}
    if len(devices) > 1 or any(device.type != "cuda" for device in gpus):
        raise NotSupportedError(
            f"torch.compile(backend='opweave'): the tensors of a graph are on {', '.join(sorted(map(str, devices)))}; a graph "
            "runs on the CPU or on one NVIDIA GPU: move the module and its arguments there"
        )
    if not gpus:
        return _host_context(options.device or "cpu", options.precision)
    (device,) = gpus
    require(
        options.device in (None, "cuda", str(device)),
        f"torch.compile(backend='opweave'): the tensors are on {device}, and the option device is {options.device!r}",
    )
    return _stream_context(torch.cuda.current_stream(device), options.precision)


@lru_cache(maxsize=8)
def _host_context(device: str, precision: Any) -> MLContext:
    return ml.create_context(device=device, precision=precision)


@lru_cache(maxsize=8)
def _stream_context(stream: Any, precision: Any) -> MLContext:
    return ml.create_context(cuda_stream=stream, precision=precision)


# Calls ---------------------------------------------------------------------------------------------------------------

_version_of = attrgetter("_version")
_address_of = torch.Tensor.data_ptr


class Variant:
    """A graph for some parameters.

    `key` has the sizes and numbers of the calls that the graph is for; None for any sizes.
    """

    def __init__(
        self, owner: DynamoGraph, runner: HostRunner | GpuRunner, tensors: Sequence[Any], key: tuple[Any, ...] | None
    ) -> None:
        self._owner, self._runner, self._tensors, self._key = owner, runner, list(tensors), key
        # Buffers that the graph writes are inputs, not constants. Tensors made under inference_mode() have no version.
        converted = runner.converted
        targets = set(converted.writes.values())
        written = [item.buffer for item in converted.inputs if item.name in targets]
        self._watched = [t for t in tensors if not t.is_inference() and not any(t is other for other in written)]
        self._versions = list(map(_version_of, self._watched))
        # `parameter.data = t` changes the memory, and not the version. No other tensor gets the address of kept memory.
        self._memory = [tensor.detach() for tensor in tensors]
        self._addresses = list(map(_address_of, self._tensors))
        self._pick = _picker(owner.static)
        self._targets = [item for item in converted.inputs if item.name in targets]

    def takes(self, values: Sequence[Any]) -> bool:
        """Whether the graph is for the parameters, sizes and stream of a call."""
        if not all(map(is_, self._pick(values), self._tensors)) or self.is_outdated():
            return False
        if self._key is not None and self._key != self._owner.key_of(values):
            return False
        return self._runner.is_current()

    def is_outdated(self) -> bool:
        """Whether PyTorch has written to the parameters, or given them other memory."""
        return (
            list(map(_version_of, self._watched)) != self._versions
            or list(map(_address_of, self._tensors)) != self._addresses
        )

    def run(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Run the graph on the arguments of a call."""
        leaves = [values[i] for i in self._owner.dynamic]
        if self._targets and self._writes_to_shared(leaves):
            return self._owner.run_by_torch(values)
        return self._runner.run(leaves)

    def _writes_to_shared(self, leaves: Sequence[Any]) -> bool:
        """Whether the graph writes to memory that another argument, or a parameter or buffer has, too."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        tensors += [item.buffer for item in self._targets if item.position is None]
        written = [item.buffer if item.position is None else leaves[item.position] for item in self._targets]
        state = self._runner.converted.state
        spans = [(tensor, span_of(tensor)) for tensor in tensors]
        return any(
            overlaps(span_of(a), state)
            or any(overlaps(span_of(a), [span]) for b, span in spans if b is not a and span[1])
            for a in written
        )


class HostRunner:
    """Runs a graph on tensors in the memory of the host."""

    def __init__(self, program: CapturedProgram, context: MLContext, fallback: str) -> None:
        self._runner = ModuleRunner(program, context, {}, fallback, shares=True)
        self.converted = self._runner.converted

    def is_current(self) -> bool:
        """Whether calls may run now."""
        return True

    def run(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """Run the graph on the arguments that are not parameters."""
        return tuple(self._runner.call_flat(leaves, "torch"))


class GpuRunner:
    """Runs a graph on PyTorch's tensors on an NVIDIA GPU, in the order of PyTorch's stream; results are PyTorch's, too.

    Tensors over the memory of arguments and results are kept by their addresses, so that a call with the same ones binds
    nothing. They do not own that memory: work on PyTorch's stream is done before work on memory that its allocator hands out
    again.
    """

    def __init__(self, program: CapturedProgram, context: MLContext, fallback: str) -> None:
        self._context = context
        # Dynamo makes guards while kernels compile.
        with wait_at_first_use():
            self.converted: ConvertedProgram = convert_program(program, context, {}, fallback=fallback, shares=True)
        number = int(context.device.name.partition(":")[2] or 0)
        self._device = torch.device("cuda", number)
        # Outputs without an entry are shapes that only the graph needs.
        self._dtypes = {output.name: output.dtype for output in self.converted.computed}
        inputs = {item.name: item.dtype for item in self.converted.inputs}
        self._dtypes |= {name: inputs[target] for name, target in self.converted.writes.items()}
        self._stream = torch.cuda.current_stream(self._device)
        graph = self.converted.graph
        self._inputs = [item for item in self.converted.inputs if graph is not None and item.name in graph.inputs]
        self._targets: Cache[tuple[Any, ...], list[tuple[str, Any, Any]]] = Cache(MAX_BINDINGS, raw=True)
        self._bindings: Cache[tuple[Any, ...], tuple[dict[str, Any], dict[str, Any]]] = Cache(MAX_BINDINGS, raw=True)

    def is_current(self) -> bool:
        """Whether PyTorch's stream is the one of the context."""
        return bool(torch.cuda.current_stream(self._device) == self._stream)

    def run(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """Run the graph on the arguments that are not parameters."""
        converted, graph = self.converted, self.converted.graph
        sources = {
            item.name: item.buffer if item.position is None else leaves[item.position] for item in converted.inputs
        }
        results: dict[str, Any] = {}
        if graph is not None:
            results = self._results(graph, sources)
            plain = {item.name: _plain(sources[item.name]) for item in self._inputs}
            targets = {name: _plain(result) if result.dtype in PARTS else result for name, result in results.items()}
            self._context.dispatch(graph, *self._tensors(plain, targets))
            for name, target in converted.writes.items():
                sources[target].copy_(results[name])
                memory.copies.add(results[name].nbytes, WRITTEN)

        def result_of(output: ProgramOutput) -> Any:
            if output.name:
                return results[output.name]
            if output.position is not None:
                return leaves[output.position]
            if isinstance(output.value, Symbol):
                shapes = {item.name: tuple(shape_of(sources[item.name])) for item in self._inputs}
                return output.value.at(sizes_of(graph.inputs if graph is not None else {}, shapes, "call"))
            return output.constant()

        return tuple(converted.results_of(leaves, result_of))

    def _tensors(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tensors of the context over the memory of PyTorch's."""
        tensors = [*inputs.values(), *outputs.values()]
        key = tuple((tensor.data_ptr(), tensor.shape) for tensor in tensors)
        if (binding := self._bindings.get(key)) is None:
            tensors_of = {
                kind: {name: self._context.tensor_from(_borrow(tensor)) for name, tensor in named.items()}
                for kind, named in {"inputs": inputs, "outputs": outputs}.items()
            }
            binding = self._bindings.put(key, (tensors_of["inputs"], tensors_of["outputs"]))
        return binding

    def _results(self, graph: MLGraph, sources: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors of PyTorch's allocator for the outputs of the graph."""
        key = tuple(sources[item.name].shape for item in self._inputs)
        if (targets := self._targets.get(key)) is None:
            shapes = {item.name: tuple(shape_of(sources[item.name])) for item in self._inputs}
            targets = []
            for name, shape in graph.compute_shapes(shapes).items():
                dtype = self._dtypes.get(name, torch.int64)
                targets.append((name, shape[:-1] if dtype in PARTS else shape, dtype))
            self._targets.put(key, targets)
        return {name: torch.empty(shape, dtype=dtype, device=self._device) for name, shape, dtype in targets}


@dataclass(frozen=True)
class BorrowedMemory:
    """The memory of a tensor of PyTorch, which it does not keep alive.

    Attributes:
        __cuda_array_interface__: address, shape and data type.
    """

    __cuda_array_interface__: Mapping[str, Any]

    @classmethod
    def of(cls, tensor: Any) -> BorrowedMemory:
        """The memory of a contiguous tensor."""
        # The protocol has no codes for bfloat16 and float8, whose names NumPy knows.
        name = numpy_type(DATA_TYPES[tensor.dtype]).name
        return cls({"shape": tuple(tensor.shape), "typestr": name, "data": (tensor.data_ptr(), False), "version": 3})


def _borrow(tensor: Any) -> Any:
    """The memory of a tensor that is not kept alive; a tensor without elements has none."""
    return BorrowedMemory.of(tensor) if tensor.numel() else tensor


def _picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that picks some of a call's values."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda values: [values[position] for position in positions]


def _plain(tensor: Any) -> Any:
    """A tensor that graphs can read: contiguous, aligned, without gradients, bool as uint8, complex numbers as parts."""
    tensor = tensor.detach()
    if tensor.is_conj():
        tensor = tensor.resolve_conj()
        memory.copies.add(tensor.nbytes, "conjugated views of PyTorch")
    if tensor.dtype in PARTS:
        tensor = torch.view_as_real(tensor)
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
        memory.copies.add(tensor.nbytes, "negative views of PyTorch")
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
        memory.copies.add(tensor.nbytes, "make contiguous")
    elif tensor.data_ptr() % ALIGNMENT:  # a part of another one
        tensor = tensor.clone()
        memory.copies.add(tensor.nbytes, "align")
    return tensor.view(torch.uint8) if tensor.dtype is torch.bool else tensor
