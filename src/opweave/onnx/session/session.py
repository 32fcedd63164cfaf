"""`InferenceSession`, which runs ONNX models, with the interface of ONNX Runtime's class of this name."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from os import PathLike
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ...backends import Precision
from ...context.context import MLContext
from ...context.tensor import MLTensor
from ...context.tensors import in_thread
from ...core.desc import OtherShapes
from ...support import refusals
from ...support.errors import require
from ...support.names import listing, short_repr
from ..model.arguments import NodeArg
from ..model.limits import DEFAULT as DEFAULT_LIMITS, ModelLimits
from ..model.model import Model
from ..ort_api.options import Settings, active_adapters, check_run_options, write_optimized
from .calls import run_call
from .inspection import InspectionMethods
from .methods import OnnxRuntimeMethods
from .model_program import Fallback
from .parts import Location, Recipe, SessionParts, check_choice
from .shape_cache import Specialise

if TYPE_CHECKING:
    from ..ort_api.adapters import Adapter


class InferenceSession(OnnxRuntimeMethods, InspectionMethods):
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
            in ONNX Runtime, uncompiled, which takes all shapes. "recurring" compiles shapes that recur, in
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

    @refusals.no_foreign_names("InferenceSession", refusals.OF_CONTEXT)
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
        check_choice("fallback", fallback, Fallback)
        check_choice("specialise", specialise, Specialise)
        is_size = isinstance(program_bytes, int) and not isinstance(program_bytes, bool) and program_bytes >= 0
        require(
            program_bytes is None or is_size, f"program_bytes must be a number of bytes or None, got {program_bytes!r}"
        )
        is_context = context is None or isinstance(context, MLContext)
        require(is_context, f"context must be an MLContext, got {type(context).__name__}")
        if precision is not None:
            check_choice("precision", precision, Precision)
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
        settings = Settings.of(sess_options, providers, provider_options, context, precision)
        recipe = Recipe(model, sess_options, context, arguments)
        if not isinstance(model, Model):  # `set_providers` passes one
            model = Model.load(model, limits)
            write_optimized(sess_options, recipe.model)
        parts = self._parts = SessionParts(recipe, settings, model)
        # The parts that each call needs, to save a look-up.
        self._context_state, self._repeats = parts.context_state, parts.repeats
        self._run_trace = parts.run_trace
        if parts.verifies and parts.context.backend.may_choose():
            from ...verification.watch import watch

            watch.add_later(parts)
        if self._run_trace is not None:
            self._run_trace.note("session_initialization", begin)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._parts.recipe.reduce_to(type(self))

    def __dir__(self) -> list[str]:
        return listing(self)

    def __repr__(self) -> str:
        from . import summary

        return summary.line(self._parts)

    def _repr_html_(self) -> str:
        from . import summary

        return summary.html(self._parts)

    @property
    def context(self) -> MLContext:
        """The context that the WebNN graphs run in."""
        return self._parts.context

    def get_inputs(self) -> list[NodeArg]:
        """The inputs of the model, in order."""
        return [argument.public() for argument in self._parts.inputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The initializers that the model also declares as inputs: `run` takes arrays for them, but does not require them."""
        return [argument.public() for argument in self._parts.overridable()]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs of the model, in order."""
        return [argument.public() for argument in self._parts.outputs.values()]

    def load_adapter(self, path: str | PathLike[str]) -> Adapter:
        """Read an adapter in ONNX Runtime's format: a mapping from names to arrays, to add to the inputs of calls.

        The parameters replace initializers that the model also declares as inputs, or are inputs that it requires. A call
        without them runs the model as it is. Calls choose between adapters without loading the model again.

        >>> import numpy as np, onnxruntime, opweave as ow, tempfile
        >>> from onnx.parser import parse_model
        >>> text = '''<ir_version: 8, opset_import: ["": 17]> g (float[n, 2] x, float[2, r] down, float[r, 2] up) =>
        ...     (float[n, 2] y) <float[2, 1] down = {0, 0}, float[1, 2] up = {0, 0}> {
        ...     low = MatMul(x, down) side = MatMul(low, up) y = Add(x, side) }'''
        >>> session, x = ow.InferenceSession(parse_model(text)), {"x": np.float32([[1, 2]])}
        >>> content = onnxruntime.AdapterFormat()
        >>> parts = {"down": np.float32([[1, 0], [0, 1]]), "up": np.float32([[3, 0], [0, 4]])}
        >>> content.set_parameters({name: onnxruntime.OrtValue.ortvalue_from_numpy(part) for name, part in parts.items()})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     content.export_adapter(f"{folder}/french.onnx_adapter")
        ...     adapter = session.load_adapter(f"{folder}/french.onnx_adapter")
        >>> adapter, session.run(None, {**x, **adapter})[0].tolist(), session.run(None, x)[0].tolist()
        (<Adapter 'french.onnx_adapter', 2 parameters>, [[4.0, 10.0]], [[1.0, 2.0]])

        Args:
            path: a file that `onnxruntime.AdapterFormat` or Olive has written.

        Raises:
            DataError: the file cannot be read.
            ValidationError: the model has no input for a parameter, or one of another type or shape.
        """
        from ..ort_api.adapters import Adapter

        adapter = Adapter(path)
        arguments = {argument.name: argument for argument in (*self._parts.inputs, *self._parts.overridable())}
        for name, array in adapter.items():
            subject = f"{adapter.path}: parameter {name!r}"
            require(name in arguments, f"{subject} is no input of the model, which has {short_repr(list(arguments))}")
            arguments[name].check(array, subject, converts=False)
        return adapter

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Move the session to the first of these providers that has a device here; the model is compiled again.

        Args:
            providers: as for the session itself; None for the best device.
            provider_options: as for the session itself.

        Raises:
            ValidationError: an argument is wrong.
        """
        recipe = self._parts.recipe.with_providers(providers, provider_options)
        InferenceSession.__init__(self, self._parts.model, recipe.options, **recipe.arguments)
        self._parts.recipe = recipe

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
                Active adapters add their parameters to the inputs (`load_adapter`).
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
        if run_options is None and out is None and self._context_state.lost_info is None:
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
            check_run_options(run_options, self._parts.settings.level)
            if run_options in active_adapters:
                from ..ort_api.adapters import join, parameters_of

                require(
                    isinstance(input_feed, Mapping), f"inputs must map names to arrays, got {type(input_feed).__name__}"
                )
                input_feed = join(input_feed, parameters_of(run_options))
        trace = self._run_trace
        begin = 0 if trace is None else monotonic_ns()
        while True:
            self._context_state.check_alive()
            repeat = self._repeats.last
            try:
                # Few calls and objects: a run of the network evicts Python's code from the CPU caches.
                results = repeat.run(output_names, input_feed, out) if repeat is not None else None
                if results is None and (results := self._repeats.run(output_names, input_feed, out)) is None:
                    results = run_call(self._parts, output_names, input_feed, out)
            except OtherShapes as error:
                self._parts.shape_cache.forget_shapes(error)
                continue
            if trace is not None:
                trace.note("model_run", begin)
            return results

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
            output_names: as for `run`, like `input_feed`, `run_options` and `out`.
            input_feed: see there.
            callback: called in the thread as `callback(results, user_data, error)`; `error` is empty if the run went well.
            user_data: passed to the callback.
            run_options: see there.
            out: see there; not with a callback.

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
            For each combination of input shapes, as text, "compiled", "compiling" (in the background), or "ONNX Runtime,
            uncompiled", with the reason if they recurred and are not compiled.
        """
        return self._parts.shape_cache.describe()
