"""Saved graphs: `opweave compile` makes them, and the commands that take models run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..context.context import MLContext, ml
from ..context.graph import MLGraph, recorded_graph, state_of, variants_of
from ..core.size_values import values_at
from ..core.sizes import Size
from ..onnx.model.arguments import Argument, NodeArg, type_name
from ..onnx.model.protobuf import TypeProto
from ..onnx.model.tables import ELEMENT_TYPES
from ..support.formatting import size
from .common import BadParameter, Operations, PrecisionName, Verbose, app, console
from .inputs import with_sizes
from .models import Bounds, DeviceName, ModelOrProgram, Sizes, open_program

if TYPE_CHECKING:
    from ..compile.engines import Tuning
    from ..run.profile import Profile

SUFFIX = ".opweave"


def is_saved_graph(model: Path) -> bool:
    """Whether a file is a saved graph, by its name.

    >>> is_saved_graph(Path("tiny.opweave")), is_saved_graph(Path("tiny.onnx"))
    (True, False)
    """
    return model.suffix.lower() == SUFFIX


class GraphSession:
    """A saved graph, with the methods of a session that commands call. Commands trust no file that others have written.

    Args:
        model: the file.
        fixed: sizes of dimensions for inputs that are not given, as `--fix-shapes` has them.
        options: of the context.
    """

    def __init__(self, model: Path, fixed: Mapping[str, int | list[int]], **options: Any) -> None:
        self.context: MLContext = ml.create_context(**options)
        self._model, self._fixed = model, fixed

    @cached_property
    def graph(self) -> MLGraph:
        """The graph, which is loaded when it is first asked for."""
        return self.context.load(self._model)

    @cached_property
    def inputs(self) -> list[Argument]:
        """The inputs of the graph."""
        variants = variants_of(self.graph)
        # A graph may have no operations for sizes of 1.
        sizes = variants[0].guards.sizes if variants else {}
        arguments = [_argument(name, desc, sizes) for name, desc in self.graph.inputs.items()]
        return with_sizes(arguments, self._fixed, "--fix-shapes") if self._fixed else arguments

    @cached_property
    def outputs(self) -> list[Argument]:
        """The outputs of the graph."""
        return [_argument(name, desc) for name, desc in self.graph.outputs.items()]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs of the graph, as those of a session of ONNX Runtime."""
        return [argument.public() for argument in self.outputs]

    def run(self, output_names: None, feed: Mapping[str, Any]) -> list[Any]:
        """Run the graph; the results in order."""
        return [*self.context.compute(self.graph, feed).values()]

    def profile(self, feed: Mapping[str, Any], *, repeat: int, detail: bool) -> Profile:
        """Measure the steps of the graph."""
        return self.graph.profile(feed, repeat=repeat, detail=detail)

    def tune(self, feed: Mapping[str, Any], *, seconds: float) -> Tuning:
        """Measure the engines for the shapes of a call, and keep the fastest one."""
        return self.graph.tune(feed, seconds=seconds)

    def operators(self) -> Counter[str]:
        """The operations of the graph, and their number."""
        return Counter(node.op.name for node in recorded_graph(self.graph).nodes)

    def parameters(self) -> list[int]:
        """The number of elements of each constant."""
        return [operand.desc.element_count for operand in recorded_graph(self.graph).constants]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes that inputs are assumed to have."""
        return {argument.name: argument.assumed_shape() for argument in self.inputs}

    def placements(self) -> Counter[str]:
        """The ways in which operations run, for the shapes that inputs are assumed to have, and their number."""
        version = state_of(self.graph).version_for("info", self.shapes())
        return Counter(f"{p.how} on {p.device}" for p in version.check_alive().placements)

    def origin(self) -> str:
        """The origin of the graph, with what is used of the file; "" if it was not loaded from one."""
        state = state_of(self.graph)
        return "" if state.origin is None else state.origin(state)


def _argument(name: str, desc: Any, sizes: Mapping[str, int] = MappingProxyType({})) -> Argument:
    element_type = ELEMENT_TYPES[desc.data_type]
    dims = tuple(item.name or str(item) if isinstance(item, Size) else item for item in desc.shape)
    example = values_at(desc.shape, sizes) if sizes else ()
    return Argument(name, type_name(TypeProto(tensor_type={"elem_type": element_type})), element_type, dims, example)


@app.command()
def compile(
    model: ModelOrProgram,
    output: Annotated[Path, typer.Option("-o", "--output", help="The .opweave file to write.")],
    fix_shapes: Sizes = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shapes",
            metavar="NAME=SIZE,...",
            help="Sizes of dynamic dimensions to compile for, as in batch=1,length=64.",
        ),
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            "--layout",
            metavar="LAYOUT",
            help="plain, or device: also write what the engine has compiled, with weights in its order.",
        ),
    ] = "plain",
    limit: Bounds = None,
    device: DeviceName = None,
    precision: PrecisionName = "float32",
    operations: Operations = None,
    verbose: Verbose = False,
) -> None:
    """Compile a model, and write the graph, its weights and the compiled parts into one file.

    `opweave run` and `MLContext.load` load the file, without the packages that the model needs. Dynamic dimensions keep their
    names, unless --fix-shapes fixes them; with --shapes, the file also has what is compiled for these sizes.
    """
    from ..saved.api import LAYOUTS, reasons_of
    from ..support.files import check_writable
    from .inputs import limits, sizes
    from .programs import is_program

    if output.suffix.lower() != SUFFIX:
        raise BadParameter(f"the name of the file to write must end in {SUFFIX}, got {output}")
    if layout not in LAYOUTS:
        raise BadParameter(f"--layout must be {' or '.join(LAYOUTS)}, got {layout}")
    check_writable(output)
    if is_program(model):
        graph = open_program(model, fix_shapes, limit, device, precision).fixed_graph()
    else:
        from ..onnx.model.model import Model
        from ..onnx.session.load import arguments_of, convert

        context = ml.create_context(device=device, precision=precision, drafts=True)  # type: ignore[arg-type]
        source = Model.load(model, limits(limit or []))
        arguments = arguments_of(source, sizes(fix_shapes or []))
        combinations = [_shapes_of(arguments, text) for text in shapes or []]
        graph = convert(source, context, arguments, takes_names=True, combinations=combinations)
    for text in shapes or []:
        state_of(graph).version_for("compile", _shapes_for(graph, text))
    graph.save(output, layout=layout)  # type: ignore[arg-type]  # checked above
    console.print(f"wrote {output}, {size(output.stat().st_size)}: {graph!r}", soft_wrap=True)
    for reason in reasons_of(output):
        console.print(f"without a part that the engine compiled: {reason}", soft_wrap=True, markup=False)


def _shapes_of(arguments: Sequence[Argument], text: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs of a model for sizes as in `batch=1,length=64`."""
    from ..onnx.session.load import named_shape

    return _shapes_at({a.name: named_shape(a) for a in arguments if a.dims is not None}, text)


def _shapes_for(graph: MLGraph, text: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs of a graph for sizes as in `batch=1,length=64`."""
    return _shapes_at({name: desc.shape for name, desc in graph.inputs.items()}, text)


def _shapes_at(shapes: Mapping[str, tuple[Any, ...]], text: str) -> dict[str, tuple[int, ...]]:
    from .inputs import sizes

    named: dict[str, Any] = dict(sizes(text.split(",")))
    names = {item.name for shape in shapes.values() for item in shape if isinstance(item, Size)}
    if names != named.keys():
        raise BadParameter(f"--shapes needs a size for each of {', '.join(sorted(names)) or 'no names'}, got {text}")
    return {
        name: tuple(named[item.name] if isinstance(item, Size) else item for item in shape)
        for name, shape in shapes.items()
    }
