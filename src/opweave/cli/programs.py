"""Programs of PyTorch, `.pt2` files of `torch.export.save`, for the commands that take models."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..context.context import MLContext, ml
from ..context.graph import MLGraph
from ..onnx.model.arguments import Argument, NodeArg, type_name
from ..onnx.model.protobuf import TensorProto, TypeProto
from ..onnx.model.tables import ELEMENT_TYPES
from ..pytorch.installed import import_torch
from ..pytorch.module import CompiledModule, from_torch, runner_of
from ..support.errors import DataError, import_extra
from ..support.names import count_of
from .common import BadParameter
from .inputs import with_sizes

if TYPE_CHECKING:
    from ..compile.engines import Tuning
    from ..pytorch.diff import ProgramComparison
    from ..run.profile import Profile

SUFFIX = ".pt2"


def is_program(model: Path) -> bool:
    """Whether a file is a program of PyTorch, by its name.

    >>> is_program(Path("tiny.pt2")), is_program(Path("tiny.onnx"))
    (True, False)
    """
    return model.suffix.lower() == SUFFIX


def refuse_options(model: Path, **options: Any) -> None:
    """Raise an error that names the first option, by its parameter, that has a value and is not for programs of PyTorch."""
    for name, value in options.items():
        if value:
            option = name if name.isupper() else f"--{name}"
            raise BadParameter(f"{option} is for ONNX models, and {model.name} is a program of PyTorch")


class ProgramSession:
    """A program of PyTorch, with the methods of a session that commands call.

    Attributes:
        program: the `torch.export.ExportedProgram`.
        inputs: the arguments that a call passes; those that the export has fixed are left out.
    """

    def __init__(self, model: Path, fixed: Mapping[str, int | list[int]], **options: Any) -> None:
        self.program = load_program(model)
        self._options = options
        example = self.program.example_inputs
        leaves = import_extra("torch.utils._pytree", "", f"reading {model}").tree_leaves(example) if example else []
        ends = self.program.graph_signature
        metas = self._metas = _metas(self.program)
        self._names = [spec.arg.name for spec in ends.input_specs if spec.kind.name == "USER_INPUT"]
        self._fixed: dict[str, Any] = {}
        arguments: list[Argument] = []
        for position, name in enumerate(self._names):
            if name in metas:
                shape = tuple(getattr(leaves[position], "shape", ())) if position < len(leaves) else ()
                arguments.append(_argument(name, metas[name], shape))
            else:
                self._fixed[name] = _constant(ends, name)
        self.inputs = with_sizes(arguments, fixed, "--fix-shapes") if fixed else arguments

    @cached_property
    def context(self) -> MLContext:
        """The context of the graph."""
        return ml.create_context(**self._options)

    @cached_property
    def compiled(self) -> CompiledModule:
        """The program as a graph."""
        return from_torch(self.program, context=self.context)

    def fixed_graph(self) -> MLGraph:
        """The graph for the sizes that `--fix-shapes` fixes; other dimensions stay dynamic."""
        numbers: dict[str, int] = {}
        for argument in self.inputs:
            for size, own in zip(getattr(self._metas[argument.name], "shape", ()), argument.dims or (), strict=True):
                if isinstance(size, int) or not isinstance(own, int):
                    continue
                symbol = str(size)
                if numbers.setdefault(symbol, own) != own:
                    raise BadParameter(f"--fix-shapes: the dimension {symbol!r} is {numbers[symbol]} and {own}")
        return runner_of(self.compiled).graph_for(numbers) or self.compiled.graph

    def converted(self) -> Self:
        """Convert the program now, so that the time of the first run does not include it, and return the session."""
        assert self.compiled
        return self

    @cached_property
    def output_names(self) -> list[str]:
        """The names of the flattened results: those of the program, with a number where one occurs again."""
        names: list[str] = []
        for spec in self.program.graph_signature.output_specs:
            if spec.kind.name == "USER_OUTPUT":
                name = getattr(spec.arg, "name", "") or f"output{len(names)}"
                names.append(name if name not in names else f"{name}_{len(names)}")
        return names

    def get_outputs(self) -> list[NodeArg]:
        """The flattened results, as those of a session of ONNX Runtime."""
        return [argument.public() for argument in self.outputs]

    @cached_property
    def outputs(self) -> list[Argument]:
        """The flattened results."""
        specs, outputs = self.program.graph_signature.output_specs, list[Argument]()
        nodes = self.program.graph.find_nodes(op="output")[0].args[0]
        metas = [
            getattr(node, "meta", {}).get("val", node)
            for node, spec in zip(nodes, specs, strict=True)
            if spec.kind.name == "USER_OUTPUT"
        ]
        for name, meta in zip(self.output_names, metas, strict=True):
            outputs.append(_argument(name, meta, ()))
        return outputs

    def leaves(self, feed: Mapping[str, Any]) -> list[Any]:
        """The flattened arguments of a call."""
        for argument in self.inputs:
            if argument.element_type:
                argument.check(feed[argument.name], f"input {argument.name!r}")
        numbers = {a.name: np.asarray(feed[a.name]).item() for a in self.inputs if not a.element_type}
        return [self._fixed[name] if name in self._fixed else numbers.get(name, feed.get(name)) for name in self._names]

    def run(self, output_names: None, feed: Mapping[str, Any]) -> list[Any]:
        """Run the graph; the flattened results."""
        return runner_of(self.compiled).call_flat(self.leaves(feed), "array")

    def profile(self, feed: Mapping[str, Any], *, repeat: int, detail: bool) -> Profile:
        """Measure the steps of the graph; buffers keep their values."""
        inputs = runner_of(self.compiled).inputs_of("profile", self.leaves(feed))
        return self.compiled.graph.profile(inputs, repeat=repeat, detail=detail)

    def tune(self, feed: Mapping[str, Any], *, seconds: float) -> Tuning:
        """Measure the engines for the shapes of a call, and keep the fastest one."""
        inputs = runner_of(self.compiled).inputs_of("tune", self.leaves(feed))
        return self.compiled.graph.tune(inputs, seconds=seconds)

    def arguments(self, feed: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments of the module, as tensors of PyTorch."""
        from torch.utils import _pytree

        from ..pytorch.tensors import tensor_of

        # Read-only arrays are copied before a run: their copies are no part of it, and not counted.
        leaves = [
            tensor_of(np.require(leaf, requirements=["C", "W"]), self._metas[name].dtype)
            if isinstance(leaf, np.ndarray)
            else leaf
            for name, leaf in zip(self._names, self.leaves(feed), strict=True)
        ]
        return _pytree.tree_unflatten(leaves, self.program.call_spec.in_spec)  # type: ignore[no-any-return]

    def comparison(self, feed: Mapping[str, Any], context: MLContext | None, tolerance: float) -> ProgramComparison:
        """A comparison of the operations with PyTorch's values."""
        from ..pytorch.diff import ProgramComparison
        from ..pytorch.runner import ModuleRunner

        runner = ModuleRunner(self.program, context if context is not None else self.context, {})
        return ProgramComparison(None, runner, *self.arguments(feed), tolerance)

    def operators(self) -> Counter[str]:
        """The operators of the program that compute tensors, and the number of their calls."""
        from ..pytorch.diff import name_of

        return Counter(name_of(node) for node in self._calls())

    def _calls(self) -> list[Any]:
        from torch._ops import OperatorBase

        parts = [part for part in self.program.graph_module.modules() if hasattr(part, "graph")]
        nodes = [node for part in parts for node in part.graph.nodes if node.op == "call_function"]
        return [n for n in nodes if isinstance(n.target, OperatorBase) and _has_tensors(n.meta.get("val"))]

    def run_lines(self) -> list[str]:
        """Lines that say what runs the calls of the program: one, and one more for each kind of call that PyTorch runs."""
        fallbacks, count = self.compiled.fallbacks, len(self._calls())
        if not fallbacks:
            return [f"{self.context.device.name} runs it whole: PyTorch runs none of its {count_of(count, 'call')}"]
        lines = [f"PyTorch runs {len(fallbacks)} of its {count_of(count, 'call')}:"]
        kinds = Counter((call.name, call.place, call.reason) for call in fallbacks)
        return lines + [f"  {times} x {name} in {place}: {reason}" for (name, place, reason), times in kinds.items()]

    def placements(self) -> Counter[str]:
        """The ways in which operations of the graph run, for the shapes that inputs are assumed to have, and their number."""
        from ..pytorch.sizes import numbers_of

        program = self.program
        shapes = [np.broadcast_to(0, argument.assumed_shape()) for argument in self.inputs]
        leaves = self.leaves_of_shapes(dict(zip((a.name for a in self.inputs), shapes, strict=True)))
        graph = runner_of(self.compiled).graph_for(numbers_of(program, leaves))
        return Counter() if graph is None else Counter(f"{p.how} on {p.device}" for p in graph.placements())

    def leaves_of_shapes(self, arrays: Mapping[str, Any]) -> list[Any]:
        """Flattened arguments of which only the shape counts."""
        return [self._fixed[name] if name in self._fixed else arrays[name] for name in self._names]


def load_program(model: Path) -> Any:
    """Read a file of `torch.export.save`."""
    torch = import_torch(f"reading {model.name}")
    with model.open("rb"):  # an error of the system says what is wrong
        pass
    log = logging.getLogger("torch.export")  # it would print a traceback of what the error below says
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        return torch.export.load(model)
    except Exception as error:  # PyTorch raises many types for damaged files, and for operators that are not registered
        text = " ".join(str(error).split())
        raise DataError(f"{model}: not a program of torch.export.save ({text or type(error).__name__})") from error
    finally:
        log.setLevel(level)


def eager(model: str, threads: int | None) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    """A function that runs a program in PyTorch itself; its flattened results as arrays."""
    import torch
    from torch.utils import _pytree

    from ..pytorch.tensors import array_of

    if threads is not None:
        torch.set_num_threads(threads)
    session = ProgramSession(Path(model), {})
    unchecked = {"check_guards": False} if "check_guards" in signature(session.program.module).parameters else {}
    module = session.program.module(**unchecked)
    prepared: dict[int, Any] = {}  # by the feed, which its caller keeps

    def run(feed: Mapping[str, Any]) -> list[Any]:
        if id(feed) not in prepared:
            prepared[id(feed)] = session.arguments(feed)
        args, kwargs = prepared[id(feed)]
        with torch.inference_mode():
            results = _pytree.tree_leaves(module(*args, **kwargs))
        # PyTorch's own run, whose copies are not Opweave's.
        arrays = [array_of(r.contiguous()) if isinstance(r, torch.Tensor) else r for r in results]
        is_bool = [isinstance(r, torch.Tensor) and r.dtype is torch.bool for r in results]
        return [a.view(np.bool_) if bools else a for a, bools in zip(arrays, is_bool, strict=True)]

    return run


def _metas(program: Any) -> dict[str, Any]:
    """Stand-ins for the inputs that calls of a program pass: tensors without values, or symbols."""
    nodes = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    return {name: meta for name, meta in nodes.items() if hasattr(meta, "shape") or hasattr(meta, "node")}


def _constant(ends: Any, name: str) -> Any:
    """The value of an argument that the export has fixed."""
    return next(spec.arg.value for spec in ends.input_specs if spec.arg.name == name)


def _argument(name: str, meta: Any, example: tuple[int, ...]) -> Argument:
    from ..pytorch.tensors import data_type_of

    if not hasattr(meta, "shape"):
        return Argument(name, "int" if type(meta).__name__ == "SymInt" else type(meta).__name__, 0, ())
    data_type = data_type_of(meta.dtype, f"{name!r}")
    is_bool = str(meta.dtype) == "torch.bool"
    element_type = TensorProto.BOOL if is_bool else ELEMENT_TYPES[data_type]
    dims = tuple(size if isinstance(size, int) else str(size) for size in meta.shape)
    type_text = type_name(TypeProto(tensor_type={"elem_type": element_type}))
    return Argument(name, type_text, element_type, dims, example or (2,) * len(dims))  # 1 is often out of range


def _has_tensors(value: Any) -> bool:
    return any(hasattr(item, "dtype") for item in (value if isinstance(value, (tuple, list)) else (value,)))
