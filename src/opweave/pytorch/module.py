"""`opweave.from_torch`: a module of PyTorch, or an exported program, as a graph that is called like the module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..context.context import MLContext, ml
from ..context.graph import MLGraph, recorded_graph
from ..support import lazy_imports
from ..support.errors import ValidationError, require
from ..support.names import count_of, short_repr
from .installed import import_torch

if TYPE_CHECKING:
    from pathlib import Path

    from ..inspect.diff import Difference
    from ..run.drawing import Drawing
    from ..run.profile import Profile
    from .convert import FallbackCall
    from .runner import ModuleRunner


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
    share their memory, so do not train the module while the graph is in use. Like the module, calls update the buffers that it
    writes to, such as a KV cache.

    Args:
        module: a `torch.nn.Module` in evaluation mode, or a `torch.export.ExportedProgram`.
        args: example arguments of the module: a sequence of tensors, arrays, numbers, and nested lists and dictionaries of
            them. All calls have the shapes of these tensors, except for `dynamic_shapes`. Not for an exported program.
        kwargs: example keyword arguments.
        dynamic_shapes: dimensions that may differ in calls, as `torch.export.export` takes them, by parameter. Names may be
            strings: `{"x": {0: "batch"}}`. Their sizes in the example must be at least 2: PyTorch takes 1 as fixed.
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
    >>> compiled = ow.from_torch(module, (torch.ones(2, 4),), dynamic_shapes=({0: "batch"},))
    >>> compiled(torch.ones(3, 4)).shape
    torch.Size([3, 2])
    """
    require(
        fallback in ("auto", "error"), f"from_torch: fallback must be 'auto' or 'error', got {short_repr(fallback)}"
    )
    import_torch("from_torch")
    from .order import check_order

    check_order()
    from .runner import ModuleRunner, export_module

    owner = ml.create_context() if context is None else context
    require(isinstance(owner, MLContext), f"from_torch: context must be an MLContext, got {short_repr(context)}")
    program, names = export_module(module, args, kwargs, dynamic_shapes)
    return CompiledModule(ModuleRunner(program, owner, names, fallback))


class CompiledModule:
    """A module of PyTorch as a graph, which `opweave.from_torch` returns.

    A call takes the arguments of the module: PyTorch's tensors, NumPy arrays, or tensors of the graph's context. Results are
    of the same kind. Arguments in C order are not copied: the engine reads them where they are, and writes the results.

    >>> import numpy as np, torch, opweave as ow
    >>> compiled = ow.from_torch(torch.nn.Softmax(1).eval(), (torch.zeros(1, 2),))
    >>> compiled(np.zeros((1, 2), "float32")), compiled(torch.zeros(1, 2))
    (array([[0.5, 0.5]], dtype=float32), tensor([[0.5000, 0.5000]]))
    >>> compiled.graph.outputs, compiled.fallbacks, type(compiled.program).__name__
    (mappingproxy({'softmax': Desc(data_type='float32', shape=(1, 2))}), (), 'ExportedProgram')
    """

    def __init__(self, runner: ModuleRunner) -> None:
        self._runner = runner

    @property
    def graph(self) -> MLGraph:
        """The graph. Its inputs and outputs are named as in the exported program; buffers that are written are inputs, too."""
        graph = self._runner.converted.graph
        if graph is None:
            raise ValidationError("the module computes nothing from its arguments, so it has no graph")
        return graph

    @property
    def program(self) -> Any:
        """The exported program (`torch.export.ExportedProgram`)."""
        return self._runner.program

    @property
    def fallbacks(self) -> tuple[FallbackCall, ...]:
        """The calls of operators that PyTorch runs, with their place in the module and the reason."""
        return tuple(self._runner.fallbacks)

    def __repr__(self) -> str:
        by_torch = f", {len(self.fallbacks)} in PyTorch" if self.fallbacks else ""
        return f"<CompiledModule {self._runner.converted.graph!r}{by_torch}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph on the arguments of the module, and return what the module returns."""
        return self._runner(args, kwargs)

    def explain(self) -> str:
        """The graph as text, and how each operation runs (`MLGraph.explain`); first, which calls PyTorch runs, and why.

        >>> import torch, opweave as ow
        >>> compiled = ow.from_torch(torch.nn.ReLU().eval(), (torch.zeros(2),))
        >>> print(compiled.explain().splitlines()[0])
        1 operation, none of them in PyTorch
        """
        count = count_of(len(recorded_graph(self.graph).nodes), "operation")
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
        leaves = self._runner.flatten("profile", args, kwargs)
        return self.graph.profile(self._runner.inputs_of("profile", leaves), repeat=repeat, detail=detail)

    def save(self, path: str | Path) -> None:
        """Write the graph with the module's parameters into a file (`MLGraph.save`), which loads without PyTorch.

        Buffers that the module writes to are inputs and outputs of the graph.

        Raises:
            NotSupportedError: PyTorch runs an operator of the module.

        >>> import numpy as np, tempfile, torch, opweave as ow
        >>> compiled = ow.from_torch(torch.nn.Softmax(1).eval(), (torch.zeros(1, 2),))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     compiled.save(f"{folder}/softmax.opweave")
        ...     graph = compiled.graph.context.load(f"{folder}/softmax.opweave")
        >>> list(graph.inputs), list(graph.outputs)
        (['input'], ['softmax'])
        """
        self.graph.save(path)

    def draw(self, path: str | Path | None = None, *, profile: Profile | Mapping[str, float] | None = None) -> Drawing:
        """Draw the graph (`MLGraph.draw`): groups are the modules.

        >>> import torch, opweave as ow
        >>> ow.from_torch(torch.nn.ReLU().eval(), (torch.zeros(2),)).draw().startswith("<svg")
        True
        """
        return self.graph.draw(path, profile=profile)


@lazy_imports.diff_torch.provide
def diff_module(model: Any, other: Any, inputs: Any, on: Any, tolerance: float, progress: Any) -> Difference:
    """See `opweave.diff`."""
    import_torch("diff")
    from .diff import diff_torch  # imports PyTorch

    return diff_torch(model, other, inputs, on, tolerance, progress)


def runner_of(compiled: CompiledModule) -> ModuleRunner:
    """The runner of a module, for other modules of Opweave."""
    return compiled._runner
