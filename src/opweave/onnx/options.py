"""What `onnxruntime`'s providers, SessionOptions and RunOptions mean for a session here; `compatibility` has the decisions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..backends import Device, devices
from ..context import MLContext, ml
from ..errors import NotSupportedError, OperationError, ValidationError, require
from .arguments import Argument, FixedShapes
from .compatibility import CONFIG, RUN_OPTIONS, SESSION_OPTIONS, Row, names, row
from .messages import ModelProto, ValueInfoProto

if TYPE_CHECKING:
    from .model import Model

LOGGER = logging.getLogger("opweave")

SEVERITIES = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
"""Python's levels for ONNX Runtime's severities 0 to 4."""

CPU_PROVIDER = "CPUExecutionProvider"

BACKENDS = {
    "WebGpuExecutionProvider": "webgpu",
    "JsExecutionProvider": "webgpu",
    "CUDAExecutionProvider": "cuda",
    "OpenVINOExecutionProvider": "openvino",
}
"""Which back end has the devices of a provider."""

UNREAD = {
    "SessionOptions": names(r for r in SESSION_OPTIONS if r.state == "unread" and r.warn),
    "RunOptions": names(r for r in RUN_OPTIONS if r.state == "unread" and r.warn),
}
"""Methods of ONNX Runtime's options whose effect cannot be read back, and which change results. `replacing_onnxruntime` notes
their calls."""

noted: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()
"""Options objects -> the methods of `UNREAD` that were called on them."""


@dataclass(frozen=True)
class Settings:
    """How a session runs, from the arguments that ONNX Runtime's has.

    Attributes:
        context: where it runs.
        session_options: the `onnxruntime.SessionOptions` that were passed, or None.
        provider_options: what was passed for the provider that chose the context.
        level: messages below this level are not logged.
    """

    context: MLContext
    session_options: Any
    provider_options: dict[str, dict[str, str]]
    level: int

    @classmethod
    def of(cls, session_options: Any, providers: Any, provider_options: Any, context: MLContext | None) -> Settings:
        """Check the arguments and choose a context.

        Raises:
            ValidationError: an argument has another type than ONNX Runtime takes.
            NotSupportedError: an option has no meaning here, and ignoring it would give other results.
        """
        level = logging.NOTSET
        if session_options is not None:
            import onnxruntime

            require(
                isinstance(session_options, onnxruntime.SessionOptions),
                "sess_options must be onnxruntime.SessionOptions, or an MLContext for context, got "
                f"{type(session_options).__name__}",
            )
            severity = session_options.log_severity_level
            level = SEVERITIES[min(severity, 4)] if severity >= 0 else logging.NOTSET
            _report_options(session_options, level)
            _check_noted("SessionOptions", SESSION_OPTIONS, session_options)
        chosen = _normalised(providers, provider_options)
        if providers is None and session_options is not None and session_options.has_providers():
            text = "providers in SessionOptions cannot be read; pass them as `providers`"
            log(level, logging.WARNING, "SessionOptions.add_provider is ignored: %s", text)
        if context is not None:
            if chosen:
                log(
                    level,
                    logging.INFO,
                    "providers %s are ignored: the session has a context on %s",
                    list(chosen),
                    context,
                )
            return cls(context, session_options, {}, level)
        sleeps = _config(session_options, "session.intra_op.allow_spinning") == "0"
        options: dict[str, dict[str, str]] = {}
        device = None
        if providers is not None:
            name, device = _device(chosen, level)
            options = {name: chosen.get(name, {})}
        made = ml.create_context(device=device)
        if sleeps:  # how threads wait; it does not choose another device
            made = ml.create_context(device=made.device.name, power_preference="low-power")
        threads = session_options.intra_op_num_threads if session_options is not None else 0
        if threads > 0:
            made = MLContext(made.backend.with_threads(threads), made.device, made.power_preference)
        return cls(made, session_options, options, level)

    def providers(self) -> list[str]:
        """The names of ONNX Runtime's providers for where the session runs; the CPU stands last, as there."""
        first = provider_of(self.context.device)
        return [CPU_PROVIDER] if first == CPU_PROVIDER else [first, CPU_PROVIDER]

    def prepare(self, model: Model) -> None:
        """Tell a model in bytes which folder its external weights are in, where the options say so."""
        folder = _config(self.session_options, "session.model_external_initializers_file_folder_path")
        if folder is not None and model.folder is None:
            model.folder = Path(folder)

    def fix(self, inputs: Sequence[ValueInfoProto], fixed: FixedShapes) -> tuple[FixedShapes, list[Argument]]:
        """Apply sizes for dimensions that vary, and those that free dimension overrides give to named or other dimensions.

        Args:
            inputs: as the model declares them.
            fixed: sizes and shapes by name, which go before overrides.

        Returns:
            All sizes and shapes by name, and the inputs with them.
        """
        names, arguments = dict(fixed.sizes), []
        overridden = self._overridden(inputs)
        for info, argument in zip(inputs, overridden, strict=True):
            for dim, size in zip(info.type.tensor_type.shape.dim, argument.dims or (), strict=False):
                if dim.dim_param and isinstance(size, int):
                    names.setdefault(dim.dim_param, size)
        known = replace(fixed, sizes=names)
        for info, other in zip(inputs, overridden, strict=True):
            argument = Argument.of(info, known)
            if argument.dims is not None and other.dims is not None:
                pairs = zip(argument.dims, other.dims, strict=True)
                argument = replace(argument, dims=tuple(a if isinstance(a, int) else b for a, b in pairs))
            arguments.append(argument)
        return known, arguments

    def _overridden(self, inputs: Sequence[ValueInfoProto]) -> list[Argument]:
        """The inputs as ONNX Runtime sees them with these options, which do not tell what overrides they have."""
        plain = [Argument.of(info) for info in inputs]
        free = any(dim.dim_param or dim.denotation for info in inputs for dim in info.type.tensor_type.shape.dim)
        if self.session_options is None or not free:
            return plain
        return _probe(self.session_options, inputs, plain)


def _probe(options: Any, inputs: Sequence[ValueInfoProto], plain: list[Argument]) -> list[Argument]:
    """Ask a session of ONNX Runtime, for a model that has these inputs and nothing else, what they are."""
    from ..backends.onnxruntime.native import NativeSession
    from ..backends.onnxruntime.sessions import ENGINE_ERRORS

    proto = ModelProto(ir_version=8)
    proto.opset_import.add(domain="", version=13)
    proto.graph.name = "inputs"
    proto.graph.input.extend(inputs)
    node = proto.graph.node.add(op_type="Constant", output=["opweave_constant"])
    node.attribute.add(name="value_float", type=1, f=0.0)
    proto.graph.output.add(name="opweave_constant").type.tensor_type.elem_type = 1
    writes, profiles = options.optimized_model_filepath, options.enable_profiling
    options.optimized_model_filepath, options.enable_profiling = "", False
    try:
        session = NativeSession(proto.SerializeToString(), options, providers=[CPU_PROVIDER])
    except ENGINE_ERRORS:
        return plain
    finally:
        options.optimized_model_filepath, options.enable_profiling = writes, profiles
    shapes = {argument.name: tuple(argument.shape) for argument in session.get_inputs()}
    return [replace(a, dims=shapes[a.name]) if a.dims is not None and a.element_type else a for a in plain]


def write_optimized(options: Any, source: Any) -> None:
    """Let ONNX Runtime write the optimised model that `SessionOptions.optimized_model_filepath` asks for.

    Raises:
        OperationError: it does not take the model.
    """
    if options is None or not options.optimized_model_filepath:
        return
    from ..backends.onnxruntime.native import NativeSession
    from ..backends.onnxruntime.sessions import ENGINE_ERRORS

    given = source.SerializeToString() if isinstance(source, ModelProto) else source
    try:
        NativeSession(given, options, providers=[CPU_PROVIDER])
    except ENGINE_ERRORS as error:
        target = options.optimized_model_filepath
        raise OperationError(f"optimized_model_filepath: ONNX Runtime cannot write {target} ({error})") from error


def check_run_options(options: Any, level: int) -> None:
    """Do what `RunOptions` say, or log what is ignored.

    Raises:
        ValidationError: these are no `RunOptions`.
        OperationError: they say that runs are to end.
        NotSupportedError: they change results in a way that has no meaning here.
    """
    import onnxruntime

    require(
        isinstance(options, onnxruntime.RunOptions),
        f"run_options must be onnxruntime.RunOptions, got {type(options).__name__}",
    )
    _check_noted("RunOptions", RUN_OPTIONS, options)
    if options.terminate:
        raise OperationError("the run does not start: RunOptions.terminate is True")
    for name, default in _defaults(onnxruntime.RunOptions).items():
        if getattr(options, name) != default:
            _report("RunOptions", row(RUN_OPTIONS, name), name, level)


def log(level: int, severity: int, text: str, *values: Any) -> None:
    """Log a message of a session that logs from `level`."""
    if severity >= level:
        LOGGER.log(severity, text, *values)


def available_providers() -> list[str]:
    """The providers of ONNX Runtime whose devices Opweave has here, the CPU last.

    >>> available_providers()[-1]
    'CPUExecutionProvider'
    """
    found = [provider_of(device) for device in devices() if device.available and device.kind != "cpu"]
    return [*dict.fromkeys(name for name in found if name != CPU_PROVIDER), CPU_PROVIDER]


def provider_of(device: Device) -> str:
    """The provider of ONNX Runtime that names a device of Opweave."""
    return next((name for name, backend in BACKENDS.items() if backend == device.backend), CPU_PROVIDER)


def _report_options(options: Any, level: int) -> None:
    """Log the options that are set and have no effect here; refuse what would change results."""
    import onnxruntime

    for name, default in _defaults(onnxruntime.SessionOptions).items():
        found = row(SESSION_OPTIONS, name)
        if found.state == "ignored" and getattr(options, name) != default:
            _report("SessionOptions", found, name, level)
    for key in names(CONFIG):
        value, found = _config(options, key), row(CONFIG, key)
        if value is not None and found.state == "ignored":
            _report("SessionOptions", found, key, level)
    if (_config(options, "session.load_model_format") or "").upper() == "ORT":
        raise NotSupportedError("session.load_model_format: 'ORT' cannot be read; only the format ONNX")


def _check_noted(where: str, rows: Sequence[Row], options: Any) -> None:
    """Refuse options on which a method of `UNREAD` was called."""
    for name in noted.get(options, ()):
        raise NotSupportedError(f"{where}.{name} cannot be read by Opweave: {row(rows, name).text}")


def _report(where: str, found: Row, name: str, level: int) -> None:
    severity = logging.WARNING if found.warn else logging.INFO
    log(level, severity, "%s: %s is ignored: %s", where, name, found.text)


def _defaults(options: Any) -> dict[str, Any]:
    """The properties of an options class, and their values when nothing was set."""
    fresh = options()
    return {name: getattr(fresh, name) for name in vars(options) if isinstance(vars(options)[name], property)}


def _config(options: Any, key: str) -> str | None:
    """The value of a configuration entry, None where it was not set."""
    if options is None:
        return None
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:
        return None


def _normalised(providers: Any, provider_options: Any) -> dict[str, dict[str, str]]:
    """The providers and their options; ONNX Runtime takes both in two forms.

    >>> _normalised(["CPUExecutionProvider", ("WebGpuExecutionProvider", {"deviceId": 0})], None)
    {'CPUExecutionProvider': {}, 'WebGpuExecutionProvider': {'deviceId': '0'}}
    """
    if isinstance(providers, str):
        providers = [providers]
    if providers is None:
        require(provider_options is None, "provider_options must come with providers")
        return {}
    require(isinstance(providers, Sequence), f"providers must be a list of names, got {type(providers).__name__}")
    if provider_options is not None:
        fits = isinstance(provider_options, Sequence) and len(provider_options) == len(providers)
        require(
            fits, f"provider_options must be a list as long as providers ({len(providers)}), got {provider_options!r}"
        )
        plain = all(isinstance(name, str) for name in providers)
        require(plain, f"providers must be names where provider_options are given, got {providers!r}")
        providers = list(zip(providers, provider_options, strict=True))
    found: dict[str, dict[str, str]] = {}
    for entry in providers:
        name, options = (entry, {}) if isinstance(entry, str) else (entry if _is_pair(entry) else (None, None))
        if not isinstance(name, str) or not isinstance(options, Mapping):
            raise ValidationError(f"providers must hold names, or pairs of a name and a dict, got {entry!r}")
        found.setdefault(name, {str(key): str(value) for key, value in options.items()})
    return found


def _is_pair(entry: Any) -> bool:
    return isinstance(entry, tuple) and len(entry) == 2


def _device(chosen: Mapping[str, Mapping[str, str]], level: int) -> tuple[str, str | None]:
    """The first of these providers that has a device here, and the name of the device; the CPU where none has."""
    for name, options in chosen.items():
        if name == CPU_PROVIDER:
            return name, "cpu"
        if name == "WebNNExecutionProvider":
            return name, None
        kinds = {"cpu", "gpu", "npu"} if name == "OpenVINOExecutionProvider" else {"gpu", "npu"}
        wanted = options.get("device_type", "").partition(".")[0].lower()  # OpenVINO writes a second GPU as GPU.1
        if name == "OpenVINOExecutionProvider" and wanted in kinds:
            kinds = {wanted}
        for device in devices():
            if device.available and device.backend == BACKENDS.get(name) and device.kind in kinds:
                return name, device.name
        log(level, logging.WARNING, "provider %s is ignored: Opweave has no such device here", name)
    return CPU_PROVIDER, "cpu"
