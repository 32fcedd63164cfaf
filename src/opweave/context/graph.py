"""Compiled graphs, as users see them; `graph_state` runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from ..core.graph import Desc, Graph
from ..support import hints, lazy_imports
from ..support.errors import NotSupportedError, require_flags
from ..support.names import count_of, printable
from .graph_state import GraphState
from .open_programs import GraphVariant
from .tensors import state_of as context_state

if TYPE_CHECKING:
    from pathlib import Path

    from ..backends import Placement
    from ..compile.engines import Tuning
    from ..run.drawing import Drawing
    from ..run.profile import Profile
    from ..run.program import Program
    from .context import MLContext


@hints.misnomers
class MLGraph:
    """A compiled graph (https://www.w3.org/TR/webnn/#api-mlgraph). Run it with `context.dispatch` or `context.compute`.

    >>> import numpy as np, opweave as ow
    >>> context = ow.ml.create_context(device="reference")
    >>> builder = ow.MLGraphBuilder(context)
    >>> graph = builder.build({"y": builder.input("x", "float32", [2]).neg()})
    >>> dict(graph.inputs), list(graph.outputs), graph.devices
    ({'x': Desc(data_type='float32', shape=(2,))}, ['y'], ('reference',))
    >>> context.compute(graph, {"x": np.float32([1, 2])})["y"].tolist()
    [-1.0, -2.0]
    >>> graph.destroy()
    >>> graph.destroyed, graph.context is context
    (True, True)
    """

    def __init__(self, state: GraphState) -> None:
        graph = state.recorded
        assert graph is not None
        self._state = state
        self._size = len(graph.nodes)
        context_state(state.context).add_graph(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a graph belongs to its context and cannot be copied or pickled; graph.save(path) writes it to a file, which "
            "context.load(path) reads, and opweave.InferenceSession(path) can be pickled"
        )

    @property
    def inputs(self) -> Mapping[str, Desc]:
        """Data type and shape of each input, by name; inputs that no output depends on are left out."""
        return MappingProxyType(self._state.inputs)

    @property
    def outputs(self) -> Mapping[str, Desc]:
        """Data type and shape of each output, by name."""
        return MappingProxyType(self._state.outputs)

    @property
    def context(self) -> MLContext:
        """The context that the graph was built for."""
        return self._state.context

    @property
    def destroyed(self) -> bool:
        """Whether `destroy` has been called, here or by the loss of the context."""
        return self._state.recorded is None

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices that the operations run on; see `placements`."""
        return tuple(dict.fromkeys(placement.device for placement in self.placements()))

    def compute_shapes(self, input_shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
        """The shape of each output for inputs of certain shapes, before anything runs: outputs can then be allocated.

        Args:
            input_shapes: the shape of each input, by name.

        Raises:
            InvalidStateError: the graph is destroyed, or the context lost.
            ValidationError: names or shapes do not fit, or an operation does not accept these sizes.

        >>> import opweave as ow
        >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
        >>> x = builder.input("x", "float32", ["n", 3])
        >>> graph = builder.build({"y": builder.concat([x, x], 0)})
        >>> graph.outputs["y"].shape, graph.compute_shapes({"x": [5, 3]})
        ((2*n, 3), {'y': (10, 3)})
        """
        return self._state.compute_shapes(input_shapes)

    def placements(self) -> list[Placement]:
        """The device of each operation, and how it runs there; of a graph with names, for the sizes of the last run.

        Raises:
            InvalidStateError: the graph is destroyed, or the context lost; the graph has names, and has not run yet.

        >>> import opweave as ow
        >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
        >>> graph = builder.build({"y": builder.input("x", "float32", [2]).neg()})
        >>> [(each.device, each.how) for each in graph.placements()]
        [('reference', 'native')]
        """
        return self._state.check_alive().placements

    def explain(self) -> str:
        """The graph as text, followed by how each operation runs: native, composed of several kernels, decomposed, …

        If the graph has several segments, the number of its segment precedes each operation, and the last line says how the
        segments share memory. A graph with names is compiled when it first runs: the text lists the sizes that it has run, and
        says what runs where for the last ones.

        >>> import opweave as ow
        >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
        >>> graph = builder.build({"y": builder.input("x", "float32", [2]).neg()})
        >>> print(graph.explain().splitlines()[-1])
          neg  reference  native  NumPy
        """
        text: str = lazy_imports.explain(self)
        return text

    def profile(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        outputs: Mapping[str, Any] | None = None,
        repeat: int = 10,
        detail: bool = False,
    ) -> Profile:
        """Run the graph, and measure each of its steps: time, bytes, copies and reused memory.

        If one engine runs the whole graph, its kernels are measured, too, with the labels of the operations, and the slowest
        ones are listed. That takes separate runs of a second copy of the graph, since it slows the engine down.

        Args:
            inputs: an array or tensor for each input, by name. Default: random values.
            input_shapes: the shapes to measure with random values, without `inputs`. Default: for a graph with names, the
                shapes of the last run.
            outputs: arrays or tensors to write results into, by name; results of other outputs get new memory.
            repeat: number of runs to measure, after one run to warm up.
            detail: whether to also measure the kernels of graphs of several steps, and to list all of them.

        Returns:
            A table to `print`, and its numbers.

        Raises:
            InvalidStateError: the graph is destroyed, or the context lost.
            ValidationError: missing or unknown names; arrays, tensors or shapes that do not fit; the graph has names, and has
                not run yet.
            OperationError: a kernel failed.

        >>> import opweave as ow
        >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
        >>> graph = builder.build({"y": builder.input("x", "float32", [2]).neg()})
        >>> profile = graph.profile(repeat=2)
        >>> [step.title for step in profile.steps], sum(copied.count for copied in profile.copies)
        (['neg'], 0)
        """
        measured: Profile = lazy_imports.profile(self, inputs, input_shapes, outputs, repeat, detail)
        return measured

    def tune(self, inputs: Mapping[str, Any] | None = None, *, seconds: float = 4.0) -> Tuning:
        """Measure the engines that can run the graph, and run the graph on the fastest one from now on.

        Each engine compiles the graph, which temporarily takes memory. Runs alternate between the engines, with pauses. The
        default engine stays unless another one is faster in the quartiles of the ratios of rounds, too. Results are stored in
        the cache on disk: equal graphs (with the same operations, shapes and data types) that are built on this machine later
        use this engine, too. Ctrl-C stops tuning, and keeps results of at least five rounds.

        Args:
            inputs: an array for each input, by name; None for random ones, with integers 0 and 1. Of a graph with names, the
                program for these sizes is tuned; default: for the sizes of the last run.
            seconds: approximate time to measure, without compilation.

        Returns:
            A table to `print`, and its numbers. There is nothing to measure on devices with one engine.

        Raises:
            InvalidStateError: the graph is destroyed, or the context lost.
            ValidationError: missing or unknown names; arrays that do not fit; `seconds` is negative; the graph has names, and
                has not run yet.
            OperationError: the graph fails with these inputs.

        >>> import opweave as ow
        >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
        >>> graph = builder.build({"y": builder.input("x", "float32", [2]).neg()})
        >>> print(graph.tune(seconds=0))
        tuned                   chosen
        a graph of 1 operation  reference  there is no other engine for it
        """
        tuned: Tuning = lazy_imports.tune(self, inputs, seconds)
        return tuned

    def save(self, path: str | Path, *, layout: Literal["plain", "device"] = "plain") -> None:
        """Write the graph into a file that `MLContext.load` reads: operations, weights, and what was compiled.

        The file is a safetensors file, whose weights are mapped when it is loaded. An existing file is replaced once the new
        one is complete. Operations of users are written by the names of their modules, and `opweave.onnx.save` writes a model
        for other engines.

        Args:
            path: the file to write; by convention, its name ends in `.opweave`.
            layout: "device" also writes models that OpenVINO has compiled and graphs that ONNX Runtime has optimised, with
                weights in the engine's order. The file has about twice the size, and loads in less time. Parts that would
                compute other results are left out; `explain` of the loaded graph says so.

        Raises:
            InvalidStateError: the graph is destroyed, or the context lost.
            ValidationError: another layout.
            NotSupportedError: an operation is declared inside of a function, so that no module has it, or has an attribute
                that files cannot hold.
            DataError: the file cannot be written.

        >>> import numpy as np, opweave as ow, tempfile
        >>> context = ow.ml.create_context(device="reference")
        >>> builder = ow.MLGraphBuilder(context)
        >>> graph = builder.build({"y": builder.input("x", "float32", [2]) + builder.constant(np.float32([1, 2]))})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     graph.save(f"{folder}/graph.opweave")
        ...     again = context.load(f"{folder}/graph.opweave")
        >>> context.compute(again, {"x": np.float32([3, 4])})["y"].tolist()
        [4.0, 6.0]
        """
        lazy_imports.save_graph(self, path, layout)

    def draw(self, path: str | Path | None = None, *, profile: Profile | Mapping[str, float] | None = None) -> Drawing:
        """Draw the graph from inputs to outputs, with the engine of each part.

        Of a graph with names, the drawing is that for the sizes of the last run, which its title says. Before the first run,
        it has no engines.

        An SVG is for small graphs, and merges the operations of large ones. A page in HTML has a search, details of each
        operation, and groups that open: modules, from labels such as "encoder/layer 0/query", or else repeated blocks.

        Args:
            path: an .html or .svg file to write the drawing to, or None. Without a file, graphs of more than 150 operations
                are pages.
            profile: times that a page shows as colours: a profile that was measured with `detail=True`, or seconds by label.

        Returns:
            The drawing: a string of SVG or HTML that notebooks show, as they do for the graph itself.

        Raises:
            InvalidStateError: the graph is destroyed, or the context lost.
            ValidationError: the file's name does not end with .html or .svg; the profile has no times of these operations.
            DataError: the file cannot be written.

        >>> import opweave as ow
        >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
        >>> graph = builder.build({"y": builder.input("x", "float32", [2]).neg()})
        >>> graph.draw().startswith("<svg")
        True
        """
        drawing: Drawing = lazy_imports.draw(self, path, profile)
        return drawing

    def _repr_html_(self) -> str:
        from ..support.formatting import markup

        return f"<pre>{markup(repr(self))}</pre>" if self.destroyed else self.draw()._repr_html_()

    def destroy(self) -> None:
        """Release the compiled graph and its weights; the graph cannot be dispatched any more. Further calls do nothing."""
        self._state.destroy()

    def __repr__(self) -> str:
        def list_descs(descs: Mapping[str, Desc]) -> str:
            return ", ".join(f"{printable(name)}: {desc}" for name, desc in descs.items())

        state = "destroyed" if self.destroyed else f"{count_of(self._size, 'operation')} on {self.context.device.name}"
        return f"<MLGraph ({list_descs(self._state.inputs)}) -> ({list_descs(self._state.outputs)}), {state}>"


def state_of(graph: MLGraph) -> GraphState:
    """The state of a graph, for other packages of Opweave."""
    return graph._state


def program_of(graph: MLGraph) -> Program:
    """The program of a graph; `InvalidStateError` once the graph is destroyed or its context lost."""
    return state_of(graph).check_alive()


def recorded_graph(graph: MLGraph) -> Graph:
    """The operations of a graph as the user built it; `InvalidStateError` as for `program_of`."""
    state = state_of(graph)
    recorded = state.recorded
    if recorded is None:
        state.check_alive()  # raises, since a graph that is alive has its operations
    assert recorded is not None
    return recorded


def graph_for_all_sizes(graph: MLGraph, subject: str, *, drop_size_rules: bool) -> Graph:
    """The operations of a graph, for a file that is valid for all of its sizes, in a format that cannot check sizes.

    Raises:
        InvalidStateError: as for `program_of`.
        NotSupportedError: the graph has other operations for other sizes, or rules for sizes without `drop_size_rules`.
    """
    require_flags(drop_size_rules=drop_size_rules)
    variants = variants_of(graph)  # before the graph: `destroy` drops the variants last
    recorded = recorded_graph(graph)
    if variants:
        raise NotSupportedError(
            f"{subject}: the operations of the graph depend on the sizes, since it was converted for "
            f"{len(variants)} combinations of shapes; pass input_shapes"
        )
    rules = getattr(state_of(graph), "size_rules", ())
    if rules and not drop_size_rules:
        raise NotSupportedError(
            f"{subject}: the module was exported for sizes with {' and '.join(item.rule.text for item in rules)}, which the "
            "file cannot check, and the graph may compute something else for others; pass input_shapes for a file of certain "
            "sizes (opweave convert --fix-shapes), write a .opweave file, which has the rules, or pass drop_size_rules=True "
            "(--drop-size-rules) and use the file for such sizes alone"
        )
    return recorded


def variants_of(graph: MLGraph) -> Sequence[GraphVariant]:
    """The graphs for different sizes that a graph consists of; empty if it has the same operations for all sizes."""
    return state_of(graph).variants
