"""`InferenceSession`, which runs ONNX models, with the interface of ONNX Runtime's class of this name."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import numpy as np

from ... import memory
from ...backends import Precision
from ...context.context import MLContext
from ...context.tensors import in_thread
from ...core.graph import Desc
from ...core.shapes import OtherShapes
from ...run.graph import check_names
from ...run.locks import Locks
from ...run.tensor import MLTensor
from ...support import hints
from ...support.errors import MLError, OperationError, ValidationError, require
from ...support.names import listed
from ...support.progress import reported
from ..convert.register import require_operators
from ..convert.run_trace import RunTrace
from ..model.arguments import Argument, FixedShapes, HostValues, NodeArg, check_target
from ..model.booleans import bool_as_uint8
from ..model.limits import DEFAULT as DEFAULT_LIMITS, ModelLimits
from ..model.model import Model
from ..model.registry import in_place
from ..ort_api.methods import OnnxRuntimeMethods
from ..ort_api.options import Settings, check_run_options, write_optimized
from ..ort_api.ort_values import unwrapped
from .direct import direct_call
from .index_ranges import find_ranges
from .inspection import InspectionMethods
from .model_program import Fallback, ModelProgram
from .pickling import Recipe
from .repeat import RepeatedCall
from .shape_cache import ShapeCache, Specialise
from .tuning import TuningMethod

if TYPE_CHECKING:
    from ...verification.uses import Use
    from .compiled import CompiledModel

Location = Literal["cpu", "ml-tensor"]

ASKED_TWICE = "an output that is asked for twice"

WRONG_LENGTHS = re.compile("seqlens_k.* is out of range")
"""The engine's error for invalid lengths that the model computes. The compiled model would run the same kernel."""


class InferenceSession(OnnxRuntimeMethods, InspectionMethods, TuningMethod):
    """Runs an ONNX model on WebNN graphs, as large as possible; nodes that WebNN cannot express run on ONNX Runtime.

    Args:
        model: the path of an `.onnx` file, the bytes of one, or an `onnx.ModelProto`.
        sess_options: `onnxruntime.SessionOptions`; options that do not apply are ignored, with a message in the log
            "opweave". An `MLContext` in this position is used as `context`.
        providers: names of ONNX Runtime's execution providers, or pairs of a name and options, the preferred one first.
            The first one that has a device on this machine determines the device.
        provider_options: a dict for each of `providers`, if these are names.
        context: the context to run in; takes precedence over `providers`. Default: a new one, for `providers`, or on the best
            device.
        precision: how engines compute float32 operations, as in `create_context`. Default: that of `context`, or "float32".
        fallback: "auto" lets ONNX Runtime run what WebNN cannot express; "error" refuses such a model.
        fix_shapes: sizes for dynamic dimensions: of named ones, {"batch": 1}, or the shape of an input, {"x": [1, 576]}.
        preferred_output_location: "cpu" returns arrays, "ml-tensor" tensors that stay in the context; one for all outputs,
            or one for each by name.
        limits: bounds on the number of nodes, and on memory while the model is loaded; see `ModelLimits`.
        specialise: which shapes of inputs are compiled. "auto" compiles none, but for those that `tune` has found to be
            faster, and for models without dynamic dimensions that are one graph for the engine and not small; all else runs
            in the model's own session of ONNX Runtime, which takes all shapes. "recurring" compiles shapes that recur, in
            the background; "always" compiles each shape at its first call; "never" compiles none. Contexts on other devices,
            models with your own operations, `fallback="error"`, and models of float16 or quantised values with
            `precision="ieee"` always compile.
        program_bytes: memory limit for compiled shapes, as estimated from the weights; default: 24 MiB, enough for models with
            at most 9 MB of weights, or 512 MiB if all shapes are compiled. With 0, only shapes that must be are compiled.
        verify: whether other engines are verified for shapes that were used for some seconds, as in `create_context`.
            Default: that of the context.

    Raises:
        DataError: the model cannot be read, or exceeds a limit.
        ValidationError: an argument is wrong.
        NotSupportedError: `fallback="error"`, and the model needs it; no device can compute in `precision`.
        OperationError: no engine has an operator of the model.

    The model is compiled, or loaded by ONNX Runtime, when the session is created; shapes that must be compiled, at their first
    call.

    The same input gives the same bits for as long as the session lives, unless `tune`, or the caller, changes what runs it.
    Another engine, device, `precision` or `specialise` may change the last bits of floats, and by them a step of
    quantisation in models that quantise what they compute.

    >>> import numpy as np, opweave as ow
    >>> from onnx.parser import parse_model
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
    >>> ow.InferenceSession(parse_model(text)).run(["y"], {"x": np.float32([-1, 2])})[0].tolist()
    [0.0, 2.0]
    """

    @hints.no_foreign_names("InferenceSession", hints.OF_CONTEXT)
    def __init__(
        self,
        model: Any,
        sess_options: Any = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        context: MLContext | None = None,
        precision: Precision | None = None,
        fallback: Fallback = "auto",
        fix_shapes: Mapping[str, int | Sequence[int]] | None = None,
        preferred_output_location: Location | Mapping[str, Location] = "cpu",
        limits: ModelLimits = DEFAULT_LIMITS,
        specialise: Specialise = "auto",
        program_bytes: int | None = None,
        verify: bool | None = None,
    ) -> None:
        begin = monotonic_ns()
        if isinstance(sess_options, MLContext):
            require(context is None, "context is given twice, in second place and by its name")
            sess_options, context = None, sess_options
        _check_choice("fallback", fallback, Fallback)
        _check_choice("specialise", specialise, Specialise)
        is_size = isinstance(program_bytes, int) and not isinstance(program_bytes, bool) and program_bytes >= 0
        require(
            program_bytes is None or is_size, f"program_bytes must be a number of bytes or None, got {program_bytes!r}"
        )
        is_context = context is None or isinstance(context, MLContext)
        require(is_context, f"context must be an MLContext, got {type(context).__name__}")
        if precision is not None:
            _check_choice("precision", precision, Precision)
        require(verify is None or isinstance(verify, bool), f"verify must be True, False or None, got {verify!r}")
        arguments = {
            "providers": providers,
            "provider_options": provider_options,
            "precision": precision,
            "fallback": fallback,
            "fix_shapes": fix_shapes,
            "preferred_output_location": preferred_output_location,
            "limits": limits,
            "specialise": specialise,
            "program_bytes": program_bytes,
            "verify": verify,
        }
        self._recipe = Recipe(model, sess_options, context, arguments)
        self._settings = Settings.of(sess_options, providers, provider_options, context, precision)
        if isinstance(model, Model):  # from `set_providers`
            self._model = model
        else:
            self._model = Model.load(model, limits)
            write_optimized(sess_options, model)
        require_operators(self._model)
        self._run_trace = RunTrace.asked(sess_options)
        self._settings.prepare(self._model)
        self._context = self._settings.context
        graph = self._model.proto.graph
        declared = self._model.required_inputs
        fixed, self._inputs = self._settings.fix(declared, FixedShapes.of(fix_shapes, declared))
        required = {info.name for info in declared}
        self._fixed, self._overridable_infos = fixed, [info for info in graph.input if info.name not in required]
        self._inputs_by_name = {argument.name: argument for argument in self._inputs}
        self._outputs = {info.name: Argument.of(info, fixed) for info in graph.output}
        self._ranges = find_ranges(self._model)
        self._in_place = in_place(graph, self._model.updating)
        self._locations = self._locate(preferred_output_location)
        self._returns_arrays = set(self._locations.values()) == {"cpu"}
        self._repeatable = RepeatedCall.fits(self._inputs) and self._returns_arrays
        self._shape_cache = ShapeCache(self._model, self._context, self._inputs, fallback, specialise, program_bytes)
        self._repeats = self._shape_cache.repeats
        shapes = {i.name: i.static_shape() for i in self._inputs}
        self._is_static = all(shapes[i.name] is not None or not i.element_type for i in self._inputs)
        if self._is_static:
            with reported("compiling the model"):
                self._shape_cache.compile_static(
                    shapes, sum(output.static_bytes() for output in self._outputs.values())
                )
        else:
            self._shape_cache.load_own()
        self._use: Use | None = None
        if len(self._shape_cache.ways) > 1:
            from . import verification

            self._use = verification.watch_session(self, verify)
        if self._run_trace is not None:
            self._run_trace.note("session_initialization", begin)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._recipe.reduce_to(type(self))

    def __repr__(self) -> str:
        from . import summary

        return summary.line(self)

    def _repr_html_(self) -> str:
        from . import summary

        return summary.html(self)

    @property
    def context(self) -> MLContext:
        """The context that the WebNN graphs run in."""
        return self._context

    def get_inputs(self) -> list[NodeArg]:
        """The inputs of the model, in order."""
        return [argument.public() for argument in self._inputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The initializers that the model also declares as inputs: `run` takes arrays for them, but does not require them."""
        return [argument.public() for argument in self._overridable()]

    def _overridable(self) -> list[Argument]:
        return [Argument.of(info, self._fixed) for info in self._overridable_infos]  # in old models, all weights

    def get_outputs(self) -> list[NodeArg]:
        """The outputs of the model, in order."""
        return [argument.public() for argument in self._outputs.values()]

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Move the session to the first of these providers that has a device here; the model is compiled again.

        Args:
            providers: as for the session itself; None for the best device.
            provider_options: likewise.

        Raises:
            ValidationError: an argument is wrong.
        """
        recipe = self._recipe.with_providers(providers, provider_options)
        InferenceSession.__init__(self, self._model, recipe.options, **recipe.arguments)
        self._recipe = recipe

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
        *,
        out: Mapping[str, np.ndarray | MLTensor] | None = None,
    ) -> list[Any]:
        """Run the model.

        Args:
            output_names: which outputs to return; None or an empty list for all.
            input_feed: an array, an MLTensor, or an object with DLPack for each input, by name; a list of them for a
                sequence. C-contiguous arrays are read in place, as `onnxruntime.OrtValue`s on the CPU are. Overridable
                initializers may be among them, or not.
            run_options: `onnxruntime.RunOptions`; options that do not apply are ignored, with a message in the log "opweave".
            out: arrays, tensors, or `onnxruntime.OrtValue`s on the CPU to write outputs into, by name. They must not overlap
                inputs. Exception: an output may have exactly the memory of the input that its node updates, such as the past
                and present keys and values of com.microsoft's GroupQueryAttention.

        Returns:
            The outputs in the order of `output_names`: arrays, or tensors, depending on `preferred_output_location`.

        Raises:
            ValidationError: names, types or shapes do not fit; indices into weights (such as token ids) or lengths of
                sequences are out of range.
            OperationError: the engine failed.
        """
        if run_options is None and out is None and self._context._lost_info is None:
            # Few instructions and objects: a run of the network, or a pause, evicts Python's code from the CPU caches.
            try:
                direct = self._repeats.direct.get(tuple(output_names) if type(output_names) is list else output_names)
            except TypeError:  # not names; the full path raises the error
                direct = None
            if direct is not None and (results := direct(input_feed)) is not None:
                return results
        return self._run_repeated(output_names, input_feed, run_options, out)

    def _run_repeated(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any,
        out: Mapping[str, np.ndarray | MLTensor] | None,
    ) -> list[Any]:
        """`run` for calls without a direct call."""
        if run_options is not None:
            check_run_options(run_options, self._settings.level)
        trace = self._run_trace
        begin = 0 if trace is None else monotonic_ns()
        while True:
            self._context._check_alive()
            repeat = self._repeats.last
            try:
                # Few calls and objects: a run of the network evicts Python's code from the CPU caches.
                results = repeat.run(output_names, input_feed, out) if repeat is not None else None
                if results is None and (results := self._repeats.run(output_names, input_feed, out)) is None:
                    results = self._run(output_names, input_feed, out)
            except OtherShapes as error:
                self._shape_cache.forget_shapes(error)
                continue
            if trace is not None:
                trace.note("model_run", begin)
            return results

    def _run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        out: Mapping[str, np.ndarray | MLTensor] | None,
    ) -> list[Any]:
        """`run` for a call that repeats no recent one: check all arguments, and select the program."""
        outputs, context, space = self._outputs, self._context, self._context._space
        is_list = isinstance(output_names, Iterable) and not isinstance(output_names, (str, bytes))
        if output_names is not None and is_list:
            output_names = list(output_names)
        asked = output_names or list(outputs)
        is_of_names = (is_list or output_names is None) and all(isinstance(name, str) for name in asked)
        require(is_of_names, f"output_names must be a list of names, got {output_names!r}")
        require(isinstance(input_feed, Mapping), f"inputs must map names to arrays, got {type(input_feed).__name__}")
        input_feed = unwrapped(input_feed)
        inputs = self._inputs
        if input_feed.keys() - self._inputs_by_name.keys():
            inputs = [*inputs, *(i for i in self._overridable() if i.name in input_feed)]
        check_names("inputs", input_feed, {i.name: i for i in inputs})
        require(out is None or isinstance(out, Mapping), f"out must map names to arrays, got {type(out).__name__}")
        out = unwrapped(out or {}, "output")
        for label, requested in (("output_names", asked), ("out", list(out))):
            unknown = [name for name in requested if name not in outputs]
            require(not unknown, f"{label} must be among {list(outputs)}; unknown: {unknown}")
        names = list(dict.fromkeys(asked))
        tensors = [value for value in (*input_feed.values(), *out.values()) if isinstance(value, MLTensor)]
        with Locks(tensors):
            feed = {i.name: i.as_input(input_feed[i.name], context) for i in inputs}
            for value_range in self._ranges:
                value_range.check(feed)
            targets = {name: outputs[name].as_output(value, context) for name, value in out.items()}
            shared = self._check_overlap(feed, targets)
            shapes = {
                name: value.shape if isinstance(value, np.ndarray) or space.owns(value) else None
                for name, value in feed.items()
            }
            values = feed if space.is_host else HostValues(feed, space)
            model: ModelProgram
            choices = self._shape_cache.choices
            model, is_settled = self._shape_cache.select(shapes, values)
            new_tensors = self._new_tensors(model, [name for name in names if name not in targets])
            targets |= {name: tensor._memory() for name, tensor in new_tensors.items()}
            try:
                results = _run_by_name(model, feed, names, targets, shared)
            except OperationError as error:
                if not model.is_open or WRONG_LENGTHS.search(str(error)):
                    raise
                # WebNN defines calls that the engine refuses, such as indices out of range, and has other errors.
                model = self._shape_cache.compile_for(shapes, feed)
                try:
                    results = _run_by_name(model, feed, names, targets, shared)
                except MLError:
                    self._shape_cache.drop(model)  # other values of these shapes do not need this program
                    raise
            if self._use is not None:
                from . import verification

                verification.note(self._use, self._shape_cache, shapes, feed)
            is_whole = names == asked and len(feed) == len(self._inputs)
            if is_whole and model is self._shape_cache.only_own and self._run_trace is None and self._returns_arrays:
                self._repeats.keep_direct(output_names, lambda: direct_call(model, self._inputs, names, self._ranges))
            is_plain = self._repeatable and is_whole
            if is_settled and is_plain and (space.is_host or not tensors):
                deciding = self._shape_cache.deciding & feed.keys()
                same = None if output_names is None else list(output_names)
                declared = (self._inputs_by_name, outputs) if model is self._shape_cache.only_own else None
                ranges, in_place = self._ranges, self._in_place
                repeat = RepeatedCall(model, feed, same, names, deciding, ranges, in_place, targets, declared)
                self._repeats.keep(repeat, {name: feed[name] for name in input_feed})
            if self._shape_cache.choices != choices:  # another thread has tuned, perhaps before `keep`
                self._repeats.clear()
        by_name = dict(zip(names, results, strict=True))
        destinations = {**new_tensors, **out}
        return [
            self._place_result(
                outputs[name],
                memory.copied(by_name[name], ASKED_TWICE) if name in asked[:position] else by_name[name],
                destinations.get(name),
            )
            for position, name in enumerate(asked)
        ]

    def _check_overlap(self, feed: Mapping[str, Any], targets: Mapping[str, Any]) -> dict[str, str]:
        """Require outputs to overlap only the input that they may update; return such outputs with their inputs."""
        shared = memory.in_place(feed, targets, self._in_place)
        feed = {name: value for name, value in feed.items() if name not in shared.values()}
        numbers = {n: a for n, a in feed.items() if isinstance(a, np.ndarray) and a.dtype.kind not in "OUS"}
        arrays = {f"output {n}": a for n, a in targets.items() if isinstance(a, np.ndarray)}
        memory.check_overlap({f"input {n}": a for n, a in numbers.items()}, arrays)
        if not (space := self._context._space).is_host:
            sources = {name: value for name, value in feed.items() if space.owns(value)}
            space.check_overlap(sources, {name: target for name, target in targets.items() if space.owns(target)})
        return shared

    def _new_tensors(self, model: ModelProgram, names: Sequence[str]) -> dict[str, MLTensor]:
        """Create tensors for the outputs that are wanted on the device and have known shapes."""
        if self._context._space.is_host:
            return {}
        on_device = [name for name in names if self._locations[name] != "cpu" and name in model.results]
        return {name: self._tensor(model.results[name][0]) for name in on_device}

    def _tensor(self, desc: Desc) -> MLTensor:
        return self._context.create_tensor(desc.data_type, desc.shape, readable=True, writable=True)

    def _place_result(self, output: Argument, result: Any, target: Any) -> Any:
        """Return a result as the array or the tensor that the user wants."""
        if isinstance(target, MLTensor):
            return target
        if target is not None or self._locations[output.name] == "cpu":
            return result
        try:
            stored = bool_as_uint8(result)
            if self._context._space.is_host:
                return self._context.tensor_from(stored)
            tensor = self._tensor(Desc(stored.dtype.name, stored.shape))
            self._context._space.write(
                tensor._memory(), stored, f"the output {output.name!r}, whose shape was not known"
            )
            return tensor
        except ValidationError as error:
            raise ValidationError(f"output {output.name!r} cannot be a tensor: {error}") from None

    @overload
    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        *,
        run_options: Any = None,
        out: Mapping[str, np.ndarray | MLTensor] | None = None,
    ) -> Coroutine[Any, Any, list[Any]]: ...

    @overload
    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], Any],
        user_data: Any = None,
        run_options: Any = None,
    ) -> None: ...

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], Any] | None = None,
        user_data: Any = None,
        run_options: Any = None,
        *,
        out: Mapping[str, np.ndarray | MLTensor] | None = None,
    ) -> Coroutine[Any, Any, list[Any]] | None:
        """Call `run` in a worker thread, to await or, as in ONNX Runtime, with a callback.

        Args:
            output_names: as for `run`.
            input_feed: as for `run`.
            callback: called in the thread as `callback(results, user_data, error)`; `error` is empty if the run went well.
            user_data: passed to the callback.
            run_options: as for `run`.
            out: as for `run`; not with a callback.

        Returns:
            A coroutine with the outputs; None with a callback.
        """
        if callback is not None:
            require(out is None, "out must not be given with a callback")
            self._run_with_callback(output_names, input_feed, callback, user_data, run_options)
            return None
        return in_thread(self.run, output_names, input_feed, run_options, out=out)

    def shapes(self) -> dict[str, str]:
        """Tell how calls run, for compiled shapes and for recent ones that are not compiled.

        Returns:
            For each combination of input shapes, as text, "compiled", "compiling" (in the background), or "the model's own
            session", with the reason if they recurred and are not compiled.
        """
        return self._shape_cache.describe()

    def _compiled_for(self, input_shapes: Mapping[str, Sequence[int]]) -> CompiledModel:
        """Return the model compiled for input shapes; shapes that the model declares in full may be left out."""
        return self._shape_cache.compile_for(self._shapes_of(input_shapes), {})

    def _shapes_of(self, input_shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...] | None]:
        """Check input shapes, and add those that the model declares in full."""
        tensors = {i.name: i for i in self._inputs if i.element_type}
        shapes: dict[str, tuple[int, ...] | None] = {i.name: i.static_shape() for i in self._inputs}
        declared = {name: shape for name, shape in shapes.items() if shape is not None and name in tensors}
        check_names("input_shapes", {**declared, **input_shapes}, tensors)
        for name, shape in input_shapes.items():
            tensors[name].check(np.broadcast_to(np.empty((), tensors[name].dtype), tuple(shape)), f"input {name!r}")
            shapes[name] = tuple(int(size) for size in shape)
        return shapes

    def _ask_use(self) -> None:
        """Make the next call take the full path, which records the call (`verification.uses`)."""
        self._repeats.clear()

    def _verification(self, key: Any, sample: Any) -> Any:
        """Return the task of a child process that verifies engines, or the reason against one."""
        from . import verification

        return verification.task_of(self, key, sample)

    def _locate(self, preferred: Location | Mapping[str, Location]) -> dict[str, Location]:
        """Return the preferred location of each output."""
        names = list(self._outputs)
        chosen = dict(preferred) if isinstance(preferred, Mapping) else dict.fromkeys(names, preferred)
        unknown = [name for name in chosen if name not in names]
        require(not unknown, f"preferred_output_location: outputs must be among {names}; unknown: {unknown}")
        for name, location in chosen.items():
            _check_choice(f"preferred_output_location of {name!r}", location, Location)
            output = self._outputs[name]
            fits = location == "cpu" or output.fits_tensor
            require(fits, f"preferred_output_location: {name!r} is {output.type}, which a tensor cannot hold")
        return {name: chosen.get(name, "cpu") for name in names}


def _run_by_name(
    model: ModelProgram,
    feed: Mapping[str, Any],
    names: Sequence[str],
    targets: Mapping[str, Any],
    shared: Mapping[str, str],
) -> list[Any]:
    """Run a model on a feed, and return the outputs `names`; write those in `targets` in place.

    `shared` names outputs that reuse the memory of an input, each with that input.
    """
    for name in model.results.keys() & targets.keys():
        check_target(name, targets[name], model.results[name][0].shape)
    inputs = [feed[name] for name in model.inputs]
    positions = [model.outputs.index(name) for name in names]
    if not targets:
        return model.returning(positions)(inputs)
    return model.run(inputs, [targets.get(name) for name in model.outputs], positions, shared)


def _check_choice(label: str, value: Any, allowed: Any) -> None:
    """Require one of the values of a `Literal`."""
    choices = [repr(choice) for choice in get_args(allowed)]
    require(value in get_args(allowed), f"{label} must be {listed(choices)}, got {value!r}")
