"""The parts of a session, which its functions take, and the arguments by which it is pickled."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np

from ...context.tensors import state_of
from ...support.errors import require
from ...support.names import either, short_repr
from ...support.progress import report_work
from ...support.records import record
from ...support.refusals import require_names
from ..model.arguments import Argument, FixedShapes
from ..model.model import Model
from ..model.tables import in_place
from ..ort_api.options import Settings
from .repeat import RepeatedCall
from .shape_cache import ShapeCache, Shapes

if TYPE_CHECKING:
    from ...compile.uses import Use
    from ..convert.run_trace import RunTrace
    from .compiled import CompiledModel
    from .index_ranges import Range
    from .methods import OnnxRuntimeMethods
    from .session_choice import SessionChoice

Location = Literal["cpu", "ml-tensor"]


@record(frozen=False)
class Recipe:
    """The arguments of a session: `model` as it was passed, the caller's `options` and `context` or None, others by name."""

    model: Any
    options: Any
    context: Any
    arguments: Mapping[str, Any]

    def __post_init__(self) -> None:
        if isinstance(self.model, (str, os.PathLike)):
            self.model = os.path.abspath(self.model)  # a pickle may be read in another directory

    @property
    def title(self) -> str:
        """The name of the model's file; "a model" if it has none."""
        return os.path.basename(self.model) if isinstance(self.model, str) else "a model"

    def with_providers(self, providers: Any, provider_options: Any) -> Recipe:
        """Copy with other providers, which choose the context."""
        changed = {"providers": providers, "provider_options": provider_options}
        return Recipe(self.model, self.options, None, {**self.arguments, **changed})

    def reduce_to(self, kind: type) -> tuple[Any, tuple[Any, ...]]:
        """The function and arguments from which `pickle` and `copy` recreate a session; `TypeError` if there are none."""
        if self.context is not None:
            raise TypeError(
                "a session in a context of the caller's cannot be copied or pickled; pickle the model's path and the name of "
                f"the device, {self.context.device.name!r}"
            )
        if self.options is not None:
            raise TypeError(
                "a session with SessionOptions cannot be copied or pickled, since these cannot; pickle the model's path and "
                "what the options are made of"
            )
        model = self.model
        if hasattr(model, "SerializeToString"):
            model = model.SerializeToString()
        elif isinstance(model, (bytearray, memoryview)):
            model = bytes(model)
        if not isinstance(model, (str, bytes)):
            raise TypeError(
                "a session can be copied or pickled if its model was given by path or as bytes, "
                f"not as {type(model).__name__}"
            )
        return partial(kind, **self.arguments), (model,)


def parts_of(session: OnnxRuntimeMethods) -> SessionParts:
    """The parts of a session, for other packages of Opweave."""
    return session._parts


class SessionParts:
    """The parts of a session: users see the attributes of a session, but not these.

    Attributes:
        inputs: the inputs without an initializer, with the sizes that the user has fixed.
        in_place: output that may alias an input -> that input.
        returns_arrays: whether no output is preferred as a tensor.
        is_repeatable: whether calls may be repeated: all values are plain tensors on the CPU.
        use: the record of the use of the session, once it has begun.
    """

    use: Use | None = None

    def __init__(self, recipe: Recipe, settings: Settings, model: Model) -> None:
        if model.may_lack_operators:
            from ..convert.register import require_operators

            require_operators(model)
        self.recipe, self.settings, self.model, self.context = recipe, settings, model, settings.context
        self.space, self.context_state = self.context.backend.space, state_of(self.context)
        self.check_alive = self.context_state.check_alive
        self.run_trace: RunTrace | None = None
        if recipe.options is not None and recipe.options.enable_profiling:
            from ..convert.run_trace import RunTrace

            self.run_trace = RunTrace(recipe.options.profile_file_prefix)
        settings.prepare(model)
        arguments, graph, declared = recipe.arguments, model.proto.graph, model.required_inputs
        self._fixed, self.inputs = settings.fix(declared, FixedShapes.of(arguments["fix_shapes"], declared))
        required = {info.name for info in declared}
        self._overridable_infos = [info for info in graph.input if info.name not in required]
        self.inputs_by_name = {argument.name: argument for argument in self.inputs}
        self.outputs = {info.name: Argument.of(info, self._fixed) for info in graph.output}
        self.ranges: Sequence[Range] = ()
        if any(argument.element_type and argument.dtype.kind == "i" for argument in self.inputs):
            from .index_ranges import find_ranges

            self.ranges = find_ranges(model)
        self.in_place = in_place(graph, model.updating)
        self.locations = _locate(self.outputs, arguments["preferred_output_location"])
        self.returns_arrays = set(self.locations.values()) == {"cpu"}
        self.is_repeatable = RepeatedCall.fits(self.inputs) and self.returns_arrays
        choices = (arguments[name] for name in ("fallback", "specialise", "program_bytes"))
        self.shape_cache = ShapeCache(model, self.context, self.inputs, *choices)
        self.repeats = self.shape_cache.repeats
        shapes = {i.name: i.static_shape() for i in self.inputs}
        self.is_static = all(shapes[i.name] is not None or not i.element_type for i in self.inputs)
        if self.is_static:
            with report_work("compiling the model"):
                self.shape_cache.compile_static(shapes, sum(output.static_bytes() for output in self.outputs.values()))
        else:
            self.shape_cache.load_uncompiled()

    @property
    def verifies(self) -> bool:
        """Whether other engines may be verified for the model, by the options of the session and its context."""
        return self.context_state.verifies and self.recipe.arguments["verify"] is not False

    def watch(self) -> Use | None:
        """Begin to record the use of the session, if that has not begun; None if no engines are verified for it."""
        from .verification import use_of

        return use_of(self)

    def ask_use(self) -> None:
        """Make the next call take the full path, which records the call (`verification.watch`)."""
        self.repeats.clear()

    def verification(self, key: Any, sample: Any) -> Any:
        """The stored verdict; else the task of a child process that verifies engines, or the reason why none is started."""
        from .verifier import task_of

        return task_of(self, key, sample)

    def choice(self, shapes: Shapes | None = None) -> SessionChoice:
        """The way in which calls run, and why. Default of `shapes`: those of a static model, or all others than tuned ones."""
        if shapes is None and self.is_static:
            shapes = {argument.name: argument.static_shape() for argument in self.inputs}
        return self.shape_cache.choice(shapes)

    def settle(self) -> Self:
        """Load the uncompiled model now if calls run it: a model that ONNX Runtime refuses is compiled instead.

        Some models are traced before, with 1 for dynamic dimensions.
        """
        if not self.choice().is_compiled:
            shapes = {i.name: i.assumed_shape() if i.element_type else None for i in self.inputs}
            self.shape_cache.find_uncompiled(shapes)
        return self

    def sizes_by_name(self) -> dict[str, int]:
        """The fixed sizes of dimensions that the model declares by name."""
        declared = [Argument.of(info).dims or () for info in self.model.required_inputs]
        pairs = [zip(dims, item.dims or (), strict=False) for dims, item in zip(declared, self.inputs, strict=True)]
        return {name: size for dims in pairs for name, size in dims if isinstance(name, str) and isinstance(size, int)}

    def overridable(self) -> list[Argument]:
        """The initializers that are inputs, too."""
        return [Argument.of(info, self._fixed) for info in self._overridable_infos]  # in old models, all weights

    def read_feed(self, subject: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Check the values of all inputs."""
        require_names(subject, values, self.inputs_by_name)
        return {name: item.as_input(values[name], self.context) for name, item in self.inputs_by_name.items()}

    def shapes_in(self, feed: Mapping[str, Any]) -> Shapes:
        """The shapes of checked inputs."""
        owns = self.space.owns
        return {n: v.shape if isinstance(v, np.ndarray) or owns(v) else None for n, v in feed.items()}

    def compile_for(self, input_shapes: Mapping[str, Sequence[int]]) -> CompiledModel:
        """The model compiled for input shapes; shapes that the model declares in full may be left out."""
        return self.shape_cache.compile_for(self.shapes_of(input_shapes), {})

    def shapes_of(self, input_shapes: Mapping[str, Sequence[int]]) -> Shapes:
        """Check input shapes, and add those that the model declares in full."""
        tensors = {i.name: i for i in self.inputs if i.element_type}
        shapes: dict[str, tuple[int, ...] | None] = {i.name: i.static_shape() for i in self.inputs}
        declared = {name: shape for name, shape in shapes.items() if shape is not None and name in tensors}
        is_mapping = isinstance(input_shapes, Mapping)
        require(is_mapping, f"input_shapes must map names to shapes, got {short_repr(input_shapes)}")
        require_names("input_shapes", {**declared, **input_shapes}, tensors)
        for name, shape in input_shapes.items():
            is_list = isinstance(shape, Sequence) and not isinstance(shape, (str, bytes))
            are_sizes = is_list and all(
                isinstance(size, (int, np.integer)) and not isinstance(size, bool) and size >= 0 for size in shape
            )
            # NumPy has neither more bytes nor more dimensions, not even in a view of one element.
            fits = are_sizes and len(shape) <= 32 and prod(max(int(size), 1) for size in shape) < 2**59
            require(fits, f"input {name!r}: a shape is a list of sizes, got {short_repr(shape)}")
            tensors[name].check(np.broadcast_to(np.empty((), tensors[name].dtype), tuple(shape)), f"input {name!r}")
            shapes[name] = tuple(int(size) for size in shape)
        return shapes


def _locate(outputs: Mapping[str, Argument], preferred: Location | Mapping[str, Location]) -> dict[str, Location]:
    """The preferred location of each output."""
    names = list(outputs)
    chosen = dict(preferred) if isinstance(preferred, Mapping) else dict.fromkeys(names, preferred)
    unknown = [name for name in chosen if name not in names]
    require(not unknown, f"preferred_output_location: outputs must be among {names}; unknown: {unknown}")
    for name, location in chosen.items():
        check_choice(f"preferred_output_location of {name!r}", location, Location)
        fits = location == "cpu" or outputs[name].fits_tensor
        require(fits, f"preferred_output_location: {name!r} is {outputs[name].type}, which a tensor cannot hold")
    return {name: chosen.get(name, "cpu") for name in names}


def check_choice(label: str, value: Any, allowed: Any) -> None:
    """Require one of the values of a `Literal`."""
    choices = [repr(choice) for choice in get_args(allowed)]
    require(value in get_args(allowed), f"{label} must be {either(choices)}, got {value!r}")
