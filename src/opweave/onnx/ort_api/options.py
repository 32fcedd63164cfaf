"""Apply ONNX Runtime's providers, SessionOptions and RunOptions to a session; `compatibility` lists their effects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ... import backends
from ...backends import Device, Precision, find
from ...context.context import MLContext, ml
from ...context.tensors import state_of
from ...support.errors import NotSupportedError, OperationError, ValidationError, require
from ...support.records import record
from ..model.arguments import Argument, FixedShapes
from ..model.protobuf import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, tensor_type

if TYPE_CHECKING:
    from ..model.model import Model
    from .compatibility import Row

NOTSET, INFO, WARNING = 0, 20, 30
"""Levels of the module `logging`, which is loaded when something is logged."""

SEVERITIES = (10, INFO, WARNING, 40, 50)
"""Python's logging levels for ONNX Runtime's severities 0 to 4."""

CPU_PROVIDER = "CPUExecutionProvider"

ACCURACY_LEVEL = "session.qdq_matmulnbits_accuracy_level"
"""The engine's option for products by narrow weights: "1" computes them in float32, without rounding the other operand."""

BACKENDS = {
    "WebGpuExecutionProvider": "webgpu",
    "JsExecutionProvider": "webgpu",
    "CUDAExecutionProvider": "cuda",
    "OpenVINOExecutionProvider": "openvino",
}
"""Provider -> the back end with its devices."""

UNREADABLE = {
    "SessionOptions": (
        "register_custom_ops_library",
        "add_initializer",
        "add_external_initializers",
        "add_external_initializers_from_files_in_memory",
    ),
}
"""Methods of ONNX Runtime's options, by class, that change results and cannot be read back. `compatibility` has them, too;
programs that replace ONNX Runtime need these names alone."""

options_set: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()
"""The methods of `UNREADABLE` that were called on options objects (`record_calls`)."""

active_adapters: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
"""The adapters of `RunOptions` objects; None for one that cannot be read (`adapters`)."""


@record
class Settings:
    """Settings of a session, from the arguments of ONNX Runtime's class.

    `provider_options` are those of the provider that chose the context, by its name. Messages below `level` are not logged.
    """

    context: MLContext
    session_options: Any
    provider_options: dict[str, dict[str, str]]
    level: int

    @classmethod
    def of(
        cls,
        session_options: Any,
        providers: Any,
        provider_options: Any,
        context: MLContext | None,
        precision: Precision | None = None,
    ) -> Settings:
        """Check the arguments and choose a context.

        `NotSupportedError`: an option has no meaning here, and ignoring it would change results.
        """
        level = NOTSET if session_options is None else _check_session_options(session_options)
        chosen = _normalise(providers, provider_options)
        if providers is None and session_options is not None and session_options.has_providers():
            text = "providers in SessionOptions cannot be read; pass them as `providers`"
            log(level, WARNING, "SessionOptions.add_provider is ignored: %s", text)
        if context is not None:
            actual = context.precision
            require(precision in (None, actual), f"precision is {precision!r}, and that of the context {actual!r}")
            if chosen:
                ignored = "providers %s are ignored: the session has a context on %s"
                log(level, INFO, ignored, list(chosen), context)
            return cls(context, session_options, {}, level)
        options: dict[str, dict[str, str]] = {}
        place: tuple[str | None, str | None] = None, None
        if providers is not None:
            name, place = _place(chosen, level)
            options = {name: chosen.get(name, {})}
        count = session_options.intra_op_num_threads if session_options is not None else 0
        threads = count if count > 0 else None
        inside = precision or _precision_at(*place)
        if precision is None and place[0] in (None, "cpu") and _config(session_options, ACCURACY_LEVEL) == "1":
            inside = "ieee"
        ctx = ml.create_context(device=place[0], backend=place[1], threads=threads, precision=inside)
        if _config(session_options, "session.intra_op.allow_spinning") == "0":
            # The preference decides how threads wait. Naming the device keeps the preference from choosing another device.
            name, backend = ctx.device.name, "auto" if ctx.backend.may_choose() else ctx.device.backend
            ctx = ml.create_context(
                device=name, backend=backend, power_preference="low-power", threads=threads, precision=inside
            )
        if session_options is not None and not session_options.enable_cpu_mem_arena:
            ctx = _without_arena(ctx)
        entries = [entry for values in options.values() for entry in values.items() if entry[0] != "device_type"]
        if ctx.device.provider and (chosen_options := dict(entries)):  # `device_type` chose the device
            driver = ctx.backend.with_provider_options(chosen_options)  # type: ignore[attr-defined]
            ctx = MLContext(driver, ctx.device, ctx.power_preference)
        return cls(ctx, session_options, options, level)

    def providers(self) -> list[str]:
        """ONNX Runtime's names for the devices of the session; the CPU comes last, as in ONNX Runtime."""
        first = self.context.device.provider or _name_of(self.context.device.backend)
        return [CPU_PROVIDER] if first == CPU_PROVIDER else [first, CPU_PROVIDER]

    def prepare(self, model: Model) -> None:
        """Set the folder of external weights, if the options name one and the model was not read from a file."""
        folder = _config(self.session_options, "session.model_external_initializers_file_folder_path")
        if folder is not None and model.folder is None:
            model.folder = folder

    def fix(self, inputs: Sequence[ValueInfoProto], fixed: FixedShapes) -> tuple[FixedShapes, list[Argument]]:
        """Apply the sizes of `fix_shapes`, and of free dimension overrides after them, to the model's inputs."""
        names, arguments = dict(fixed.sizes), []
        overridden = self._override_dimensions(inputs)
        for info, argument in zip(inputs, overridden, strict=True):
            for dim, size in zip(info.type.tensor_type.shape.dim, argument.dims or (), strict=False):
                if dim.dim_param and isinstance(size, int):
                    names.setdefault(dim.dim_param, size)
        sizes = FixedShapes(names, fixed.shapes)
        for info, other in zip(inputs, overridden, strict=True):
            argument = Argument.of(info, sizes)
            if argument.dims is not None and other.dims is not None:
                pairs = zip(argument.dims, other.dims, strict=True)
                argument = argument.with_dims(tuple(a if isinstance(a, int) else b for a, b in pairs))
            arguments.append(argument)
        return sizes, arguments

    def _override_dimensions(self, inputs: Sequence[ValueInfoProto]) -> list[Argument]:
        """Apply free dimension overrides to the inputs. SessionOptions do not list the overrides."""
        plain = [Argument.of(info) for info in inputs]
        free = any(dim.dim_param or dim.denotation for info in inputs for dim in info.type.tensor_type.shape.dim)
        if self.session_options is None or not free:
            return plain
        return _probe(self.session_options, inputs, plain)


def _probe(options: Any, inputs: Sequence[ValueInfoProto], plain: list[Argument]) -> list[Argument]:
    """Read the overridden shapes from a session of ONNX Runtime for a model with only these inputs."""
    from ...backends.onnxruntime.native import ENGINE_ERRORS, NativeSession

    constant = AttributeProto(name="value_float", type=AttributeProto.FLOAT, f=0.0)
    graph = GraphProto(
        name="inputs",
        input=inputs,
        node=[NodeProto(op_type="Constant", output=["opweave_constant"], attribute=[constant])],
        output=[ValueInfoProto(name="opweave_constant", type=tensor_type(TensorProto.FLOAT))],
    )
    proto = ModelProto(ir_version=8, opset_import=[{"version": 13}], graph=graph)
    writes, profiles = options.optimized_model_filepath, options.enable_profiling
    options.optimized_model_filepath, options.enable_profiling = "", False
    try:
        session = NativeSession(proto.SerializeToString(), options, providers=[CPU_PROVIDER])
    except ENGINE_ERRORS:
        return plain
    finally:
        options.optimized_model_filepath, options.enable_profiling = writes, profiles
    shapes = {argument.name: tuple(argument.shape) for argument in session.get_inputs()}
    return [a.with_dims(shapes[a.name]) if a.dims is not None and a.element_type else a for a in plain]


def write_optimized(options: Any, source: Any) -> None:
    """Let ONNX Runtime write the optimised model if `SessionOptions.optimized_model_filepath` asks for it."""
    if options is None or not options.optimized_model_filepath:
        return
    from ...backends.onnxruntime.native import ENGINE_ERRORS, NativeSession

    model = source.SerializeToString() if isinstance(source, ModelProto) else source
    try:
        NativeSession(model, options, providers=[CPU_PROVIDER])
    except ENGINE_ERRORS as error:
        target = options.optimized_model_filepath
        raise OperationError(f"optimized_model_filepath: ONNX Runtime cannot write {target} ({error})") from error


def check_run_options(options: Any, level: int) -> None:
    """Check the `onnxruntime.RunOptions` of a call, and log ignored options.

    Raises:
        OperationError: `terminate` is set.
        NotSupportedError: an option would change results, and cannot be applied.
    """
    changed = _changes_in("RunOptions", "run_options", "RunOptions", options)
    if options.terminate:
        raise OperationError("the run does not start: RunOptions.terminate is True")
    for name, row in changed:
        _log_ignored("RunOptions", name, row, level)


def log(level: int, severity: int, text: str, *values: Any) -> None:
    """Log a message unless its severity is below `level`, the level of the session."""
    if severity >= level:
        from logging import getLogger

        getLogger("opweave").log(severity, text, *values)


def available_providers() -> list[str]:
    """The providers of ONNX Runtime for which Opweave seems to have a device on this machine, the CPU last.

    Programs call this often and use few providers, so it looks at packages and device files, and loads no engine.

    >>> available_providers()[-1]
    'CPUExecutionProvider'
    """
    from ...backends.onnxruntime.plugins import plugins

    installed = backends.discover()
    accelerating = [name for name in BACKENDS.values() if name in installed and installed[name].may_accelerate()]
    return [*dict.fromkeys([*(plugin.provider for plugin in plugins()), *map(_name_of, accelerating)]), CPU_PROVIDER]


def get_device() -> str:
    """The kind of the best device: "GPU", or "CPU"."""
    return "GPU" if len(available_providers()) > 1 else "CPU"


def record_calls(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of options to record its calls in `options_set`, since its effect cannot be read back."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        options_set.setdefault(self, []).append(name)
        return method(self, *args, **kwargs)

    call.__name__, call.__doc__ = name, method.__doc__
    return call


def _without_arena(context: MLContext) -> MLContext:
    """A context like a new one, in which a run frees its memory at its end; itself if the engine has no choice."""
    backend = context.backend.without_arena()
    if backend is context.backend:
        return context
    changed = MLContext(backend, context.device, context.power_preference)
    state_of(changed).verifies = state_of(context).verifies
    return changed


def _devices_of(provider: str, kinds: Collection[str]) -> list[Device]:
    backend = backends.discover().get(BACKENDS.get(provider, ""))
    if backend is None or not ("cpu" in kinds or backend.may_accelerate()):
        return []
    return backend.devices()


def _name_of(backend: str) -> str:
    return next((name for name, its_backend in BACKENDS.items() if its_backend == backend), CPU_PROVIDER)


def _check_session_options(options: Any) -> int:
    """Check `onnxruntime.SessionOptions`, log ignored options, and return the level to log from."""
    from .compatibility import CONFIG, names, row, tables

    rows = _changes_in("SessionOptions", "sess_options", "SessionOptions, or an MLContext for context", options)
    severity = options.log_severity_level
    level = SEVERITIES[min(severity, 4)] if severity >= 0 else NOTSET
    keys = names(tables()[CONFIG])
    rows += [(key, row(CONFIG, key)) for key in keys if _config(options, key) is not None]
    for name, entry in rows:
        if entry.state == "ignored":
            _log_ignored("SessionOptions", name, entry, level)
    if (_config(options, "session.load_model_format") or "").upper() == "ORT":
        raise NotSupportedError("session.load_model_format: 'ORT' cannot be read; only the format ONNX")
    return level


def _log_ignored(cls: str, name: str, row: Row, level: int) -> None:
    severity = WARNING if row.warn else INFO
    log(level, severity, "%s: %s is ignored: %s", cls, name, row.text)


def _changes_in(cls: str, argument: str, wanted: str, options: Any) -> list[tuple[str, Row]]:
    """The properties that differ between `options` and a new object, with their rows; the other arguments are for messages."""
    import onnxruntime

    from .compatibility import row

    kind = getattr(onnxruntime, cls)
    require(isinstance(options, kind), f"{argument} must be onnxruntime.{wanted}, got {type(options).__name__}")
    for name in options_set.get(options, ()):
        raise NotSupportedError(f"{cls}.{name} cannot be read by Opweave: {row(cls, name).text}")
    fresh = kind()
    properties = [name for name, member in vars(kind).items() if isinstance(member, property)]
    return [(name, row(cls, name)) for name in properties if getattr(options, name) != getattr(fresh, name)]


def _config(options: Any, key: str) -> str | None:
    if options is None:
        return None
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:
        return None


def _normalise(providers: Any, provider_options: Any) -> dict[str, dict[str, str]]:
    """Join providers and their options into one dictionary; ONNX Runtime takes names and options apart, or as pairs.

    >>> _normalise(["CPUExecutionProvider", ("WebGpuExecutionProvider", {"deviceId": 0})], None)
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
    merged: dict[str, dict[str, str]] = {}
    for entry in providers:
        match entry:
            case str():
                merged.setdefault(entry, {})
            case tuple((str(name), Mapping() as options)):
                merged.setdefault(name, {str(key): str(value) for key, value in options.items()})
            case _:
                raise ValidationError(f"providers must hold names, or pairs of a name and a dict, got {entry!r}")
    return merged


def _precision_at(device: str | None, backend: str | None) -> Precision:
    """The default precision on a device: float32, unless the device of a named provider lacks it."""
    if device is None:
        return "float32"
    precisions = find(backend).device_named(device).precisions if backend is not None else ()  # type: ignore[union-attr]
    return precisions[0] if precisions and "float32" not in precisions else "float32"


def _place(chosen: Mapping[str, Mapping[str, str]], level: int) -> tuple[str, tuple[str | None, str | None]]:
    """Choose the first provider with a device here, else the CPU; return its name, and the names of device and back end."""
    for name, options in chosen.items():
        if name == CPU_PROVIDER:
            break
        if name == "WebNNExecutionProvider":
            return name, (None, None)
        kinds = {"cpu", "gpu", "npu"} if name == "OpenVINOExecutionProvider" else {"gpu", "npu"}
        kind = options.get("device_type", "").partition(".")[0].lower()  # OpenVINO writes a second GPU as GPU.1
        if name == "OpenVINOExecutionProvider" and kind in kinds:
            kinds = {kind}
        for device in _devices_of(name, kinds):
            if device.available and not device.provider and device.kind in kinds:
                return name, (device.name, device.backend)
        of_plugins = backends.find("onnxruntime").devices()
        of_plugin = [d for d in of_plugins if d.available and d.provider == name and kind in ("", d.kind)]
        if of_plugin:
            best = min(of_plugin, key=lambda device: ("npu", "gpu", "cpu").index(device.kind))
            return name, (best.name, best.backend)
        log(level, WARNING, "provider %s is ignored: Opweave has no such device here", name)
    return CPU_PROVIDER, ("cpu", None)
