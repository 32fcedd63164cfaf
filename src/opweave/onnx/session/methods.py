"""The methods of `onnxruntime.InferenceSession` other than `run`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any

from ...support.errors import MLError, NotSupportedError, ValidationError, require
from ...support.records import record
from ..ort_api import options
from ..ort_api.ort_values import is_ort_value, ort_value

if TYPE_CHECKING:
    from ..convert.run_trace import RunTrace
    from .io_binding import IOBinding
    from .parts import SessionParts


@record(eq=True)
class ModelMetadata:
    """The metadata of a model, with the attributes of `onnxruntime.ModelMetadata`.

    Attributes:
        producer_name: the tool that wrote the model.
        graph_name: the name of the graph.
        domain: the organisation that the model belongs to.
        description: the description of the model.
        graph_description: the description of the graph.
        version: the version of the model.
        custom_metadata_map: further entries, by key.
    """

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class OnnxRuntimeMethods:
    """Mixin with the methods of ONNX Runtime's session that are built on `run`; `compatibility` lists all methods.

    >>> import numpy as np, opweave as ow
    >>> from onnx.parser import parse_model
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
    >>> session = ow.InferenceSession(parse_model(text), providers=["CPUExecutionProvider"])
    >>> [(each.name, each.type, each.shape) for each in (*session.get_inputs(), *session.get_outputs())]
    [('x', 'tensor(float)', ['n']), ('y', 'tensor(float)', ['n'])]
    >>> session.shapes(), session.get_overridable_initializers()
    ({}, [])
    >>> print(session.explain({"x": [2]}))
    precision float32...
    section 0: 1 node, WebNN on cpu (ONNX Runtime)
      Relu
    0 nodes computed when the model was compiled
    >>> import asyncio
    >>> asyncio.run(session.run_async(None, {"x": np.float32([-1, 2])}))[0].tolist()
    [0.0, 2.0]
    >>> session.set_providers(["CPUExecutionProvider"])
    >>> session.context.device.name
    'cpu'
    >>> session.get_modelmeta().graph_name, session.get_providers(), session.get_provider_options()
    ('g', ['CPUExecutionProvider'], {'CPUExecutionProvider': {}})
    >>> x = session.create_ortvalue_from_shape_and_type([2], np.float32)
    >>> x.update_inplace(np.float32([-1, 2]))
    >>> session.run_with_ort_values(None, {"x": x})[0].numpy().tolist()
    [0.0, 2.0]
    >>> binding = session.io_binding()
    >>> binding.bind_ortvalue_input("x", x)
    >>> binding.bind_output("y")
    >>> session.run_with_iobinding(binding)
    >>> binding.copy_outputs_to_cpu()[0].tolist()
    [0.0, 2.0]
    >>> session.get_session_options().enable_profiling, session.end_profiling(), session.get_profiling_start_time_ns()
    (False, '', 0)

    Methods that need an execution provider of ONNX Runtime raise, or have no effect (`docs/onnxruntime.md` lists all):

    >>> session.get_input_epdevices()
    Traceback (most recent call last):
    opweave.support.errors.NotSupportedError: ...
    >>> session.get_provider_graph_assignment_info()
    Traceback (most recent call last):
    opweave.support.errors.NotSupportedError: ...
    >>> [len(infos) for infos in (session.get_input_memory_infos(), session.get_output_memory_infos())]
    [1, 1]
    >>> session.get_tuning_results(), session.set_tuning_results([]), session.set_ep_dynamic_options({})
    ([], None, None)
    >>> session.enable_fallback(), session.disable_fallback(), session.release_captured_graph()
    (None, None, None)
    """

    # The session has these attributes.
    _parts: SessionParts
    _run_trace: RunTrace | None
    run: Callable[..., list[Any]]

    # Properties of the session ---------------------------------------------------------------------------------------

    def get_modelmeta(self) -> ModelMetadata:
        """The model's metadata: its producer, its version, its custom entries."""
        proto = self._parts.model.proto
        return ModelMetadata(
            producer_name=proto.producer_name,
            graph_name=proto.graph.name,
            domain=proto.domain,
            description=proto.doc_string,
            graph_description=proto.graph.doc_string,
            version=proto.model_version if proto.HasField("model_version") else 2**63 - 1,  # as in ONNX Runtime
            custom_metadata_map={entry.key: entry.value for entry in proto.metadata_props},
        )

    def get_providers(self) -> list[str]:
        """ONNX Runtime's names for the devices of the session; "CPUExecutionProvider" comes last."""
        return self._parts.settings.providers()

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options that were passed for each of `get_providers()`."""
        provider_options = self._parts.settings.provider_options
        return {name: dict(provider_options.get(name, {})) for name in self.get_providers()}

    def get_session_options(self) -> Any:
        """The `onnxruntime.SessionOptions` that the session was made with, or a new object."""
        if (session_options := self._parts.settings.session_options) is not None:
            return session_options
        import onnxruntime

        return onnxruntime.SessionOptions()

    def enable_fallback(self) -> None:
        """Do nothing: a session never changes its device on its own."""

    def disable_fallback(self) -> None:
        """Do nothing: a session never changes its device on its own."""

    def get_input_memory_infos(self) -> list[Any]:
        """The memory of each input, as `onnxruntime.OrtMemoryInfo`: the CPU."""
        return [_cpu_memory() for _ in self._parts.inputs]

    def get_output_memory_infos(self) -> list[Any]:
        """The memory of each output, as `onnxruntime.OrtMemoryInfo`: the CPU."""
        return [_cpu_memory() for _ in self._parts.outputs]

    def get_input_epdevices(self) -> list[Any]:
        """Refuse with `NotSupportedError`: no execution provider runs the model."""
        raise _refusal_of("get_input_epdevices")

    def get_provider_graph_assignment_info(self) -> list[Any]:
        """Refuse with `NotSupportedError`: no execution provider runs the model; `explain()` shows where each node runs."""
        raise _refusal_of("get_provider_graph_assignment_info")

    def get_tuning_results(self) -> list[Any]:
        """An empty list: nothing is tuned at run time."""
        return []

    def set_tuning_results(self, results: Any, *, error_on_invalid: bool = False) -> None:
        """Ignore tuning results, and log why."""
        self._log_ignored("set_tuning_results")

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Ignore options of execution providers, and log why."""
        self._log_ignored("set_ep_dynamic_options")

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Do nothing: there are no captured graphs."""

    # Running ---------------------------------------------------------------------------------------------------------

    def io_binding(self) -> IOBinding:
        """A new `IOBinding` for `run_with_iobinding`, to read inputs and write outputs in place."""
        return self._binding_class()(self)

    def _binding_class(self) -> type[IOBinding]:
        from .io_binding import IOBinding

        return IOBinding

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run the model on the bound arrays; the binding receives the results.

        Args:
            iobinding: made by `io_binding()` of this session.
            run_options: `onnxruntime.RunOptions`.
        """
        if getattr(iobinding, "_owner", None) is not self:
            from .io_binding import IOBinding

            require(isinstance(iobinding, IOBinding), f"iobinding must be an IOBinding, got {type(iobinding).__name__}")
            raise ValidationError("iobinding must be made by io_binding() of this session")
        parameters: Mapping[str, Any] = {}
        if run_options is not None:
            options.check_run_options(run_options, self._parts.settings.level)
            if run_options in options.active_adapters:
                from ..ort_api.adapters import parameters_of

                parameters = parameters_of(run_options)
        iobinding.run(parameters)

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """`run` with `onnxruntime.OrtValue`s on the CPU as inputs and results; their memory is shared, not copied.

        Args:
            output_names: as for `run`.
            input_dict_ort_values: an OrtValue for each input, by name.
            run_options: as for `run`.
        """
        for name, value in dict(input_dict_ort_values).items():
            require(is_ort_value(value), f"input {name!r} must be an OrtValue, got {type(value).__name__}")
        names = list(output_names or self._parts.outputs)
        results = self.run(names, input_dict_ort_values, run_options)
        return [ort_value(result, f"output {name!r}") for name, result in zip(names, results, strict=True)]

    def run_with_ortvaluevector(
        self,
        run_options: Any,
        feed_names: Sequence[str],
        feeds: Any,
        fetch_names: Sequence[str],
        fetches: Any,
        fetch_devices: Any,
    ) -> None:
        """`run` with ONNX Runtime's vectors of values; results are appended to `fetches`.

        Args:
            run_options: as for `run`.
            feed_names: the name of each value of `feeds`.
            feeds: an `OrtValueVector` of inputs.
            fetch_names: the outputs to compute.
            fetches: an `OrtValueVector` that receives them.
            fetch_devices: ignored: results are on the CPU.

        >>> import numpy as np, opweave as ow
        >>> from onnx.parser import parse_model
        >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
        >>> import onnxruntime
        >>> session = ow.InferenceSession(parse_model(text))
        >>> vector = onnxruntime.capi.onnxruntime_pybind11_state.OrtValueVector
        >>> feeds, fetches, x = vector(), vector(), np.float32([-1, 2])
        >>> feeds.push_back(onnxruntime.OrtValue.ortvalue_from_numpy(x)._get_c_value())  # does not keep `x` alive
        >>> session.run_with_ortvaluevector(None, ["x"], feeds, ["y"], fetches, None)
        >>> fetches[0].numpy().tolist()
        [0.0, 2.0]
        """
        import onnxruntime

        feed = dict(zip(feed_names, (onnxruntime.OrtValue(value) for value in feeds), strict=True))
        for value in self.run_with_ort_values(fetch_names, feed, run_options):
            fetches.push_back(value._get_c_value())

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> Any:
        """Make a new `onnxruntime.OrtValue` on the CPU, whose contents are not specified.

        Args:
            shape: the dimensions.
            element_type: a NumPy data type, or a number of ONNX's `TensorProto.DataType`.
            device_type: "cpu"; else `NotSupportedError`.
            device_id: ignored.
            vendor_id: ignored.
        """
        import onnxruntime

        if device_type.lower() != "cpu":
            raise NotSupportedError(f"OrtValues must be on the CPU, got device_type={device_type!r}")
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, element_type)

    def _run_with_callback(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], Any],
        user_data: Any,
        run_options: Any,
    ) -> None:
        require(callable(callback), f"callback must be a function, got {type(callback).__name__}")

        def work() -> None:
            results: list[Any] = []
            error = ""
            try:
                results = self.run(output_names, input_feed, run_options)
            except MLError as raised:
                error = str(raised) or type(raised).__name__
            try:
                callback(results, user_data, error)
            except Exception:
                from logging import getLogger

                getLogger("opweave").exception("the callback of run_async failed")

        Thread(target=work, name="opweave-run-async", daemon=True).start()

    # Profiles --------------------------------------------------------------------------------------------------------

    def end_profiling(self) -> str:
        """Write the times of all runs so far, if `SessionOptions.enable_profiling` is set.

        Returns:
            The path of a file in Chrome's trace event format; empty if profiling is off, or the file is already written.
        """
        trace, self._run_trace, self._parts.run_trace = self._run_trace, None, None
        return trace.write() if trace is not None else ""

    def get_profiling_start_time_ns(self) -> int:
        """The start of profiling, by the clock of `time.monotonic_ns`; 0 if profiling is off."""
        return self._run_trace.start_ns if self._run_trace is not None else 0

    def _log_ignored(self, name: str) -> None:
        from ..ort_api.compatibility import row

        text = row("InferenceSession", name).text
        options.log(self._parts.settings.level, options.INFO, "InferenceSession.%s is ignored: %s", name, text)


def _refusal_of(name: str) -> NotSupportedError:
    from ..ort_api.compatibility import row

    return NotSupportedError(
        f"{name}: no execution provider of ONNX Runtime runs the model; {row('InferenceSession', name).text}"
    )


def _cpu_memory() -> Any:
    import onnxruntime

    kind, default = onnxruntime.OrtAllocatorType.ORT_DEVICE_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    return onnxruntime.OrtMemoryInfo("Cpu", kind, 0, default)
