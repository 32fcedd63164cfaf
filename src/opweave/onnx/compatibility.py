"""What each name of ONNX Runtime's Python API does with Opweave, as tables: sessions follow them, and the docs print them.

`tools/onnxruntime_tables.py` writes the tables into their page.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["works", "ignored", "refused", "unread", "own"]
"""Whether a name does what it does there, has no effect, raises an error, cannot be read from ONNX Runtime's object, or is
ONNX Runtime's own, which the replacement leaves as it is."""

WORDS: dict[State, str] = {
    "works": "works",
    "ignored": "ignored",
    "refused": "refused",
    "unread": "not read",
    "own": "ONNX Runtime's own",
}

BEGIN, END = "<!-- made by `make docs` -->", "<!-- end -->"


@dataclass(frozen=True, slots=True)
class Row:
    """What becomes of one name, or of several.

    Attributes:
        names: one name, or several separated by blanks.
        state: what becomes of them.
        text: what they do here, or why they have no effect.
        warn: whether the program would miss it: the log has a warning then, not an information, and what cannot be read is
            refused where `replacing_onnxruntime` notices it.
        since: the first version of ONNX Runtime that has them; empty where all supported versions do.
    """

    names: str
    state: State
    text: str
    warn: bool = False
    since: str = ""


SESSION_OPTIONS = (
    Row(
        "intra_op_num_threads",
        "works",
        "how many threads an operation uses on the CPU, where the session makes its context",
    ),
    Row("inter_op_num_threads", "ignored", "the parts of a model run one after the other"),
    Row("execution_mode execution_order", "ignored", "the parts of a model run one after the other"),
    Row("graph_optimization_level", "ignored", "a graph is always compiled with all optimisations"),
    Row("use_deterministic_compute", "ignored", "there is one way to compute each operation"),
    Row("use_per_session_threads", "ignored", "Opweave manages the threads of its sessions"),
    Row(
        "enable_cpu_mem_arena enable_mem_pattern enable_mem_reuse",
        "ignored",
        "Opweave manages the memory of its sessions",
    ),
    Row("enable_profiling profile_file_prefix", "works", "`end_profiling()` writes the time of each run"),
    Row("optimized_model_filepath", "works", "ONNX Runtime itself writes the file"),
    Row("log_severity_level", "works", "the lowest severity of what the session logs"),
    Row("log_verbosity_level logid", "ignored", "log records have the logger `opweave`"),
    Row(
        "add_free_dimension_override_by_name add_free_dimension_override_by_denotation",
        "works",
        "as `fix_shapes`, which wins where both name a dimension",
    ),
    Row("add_session_config_entry get_session_config_entry", "works", "the table below has the keys that are read"),
    Row("register_custom_ops_library", "unread", "declare operators by `ow.register_onnx`", warn=True),
    Row(
        "add_initializer add_external_initializers add_external_initializers_from_files_in_memory",
        "unread",
        "weights come from the model and its files",
        warn=True,
    ),
    Row(
        "add_provider add_provider_for_devices has_providers set_provider_selection_policy "
        "set_provider_selection_policy_delegate",
        "unread",
        "the argument `providers` chooses the device; without it, a warning is logged",
    ),
    Row(
        "set_load_cancellation_flag set_ep_context_data_read_func clear_ep_context_data_read_func",
        "unread",
        "a model is read at once, and has no compiled contexts",
    ),
)
"""Members of `SessionOptions`."""

CONFIG = (
    Row("session.intra_op.allow_spinning", "works", '"0" lets idle threads sleep, as `power_preference="low-power"`'),
    Row(
        "session.model_external_initializers_file_folder_path", "works", "the folder of the weights of a model in bytes"
    ),
    Row("session.load_model_format", "refused", '"ORT": only the format ONNX is read'),
    Row("session.set_denormal_as_zero", "ignored", "the engine keeps denormal numbers", warn=True),
    Row("session.record_ep_graph_assignment_info", "ignored", "`session.explain()` tells where each node runs"),
    Row(
        "session.disable_prepacking session.use_env_allocators session.use_device_allocator_for_initializers "
        "session.use_ort_model_bytes_directly session.use_ort_model_bytes_for_initializers "
        "session.intra_op_thread_affinities session.inter_op.allow_spinning session.force_spinning_stop "
        "session.dynamic_block_base session.qdqisint8allowed session.disable_quant_qdq "
        "session.disable_double_qdq_remover session.enable_quant_qdq_cleanup session.strict_shape_type_inference "
        "session.enable_cast_chain_elimination optimization.enable_gelu_approximation "
        "optimization.disable_specified_optimizers ep.context_enable",
        "ignored",
        "Opweave compiles the model in its own way",
    ),
)
"""Keys of `SessionOptions.add_session_config_entry`; others are not looked at."""

RUN_OPTIONS = (
    Row("terminate", "works", "a run that starts after it was set fails; one that runs is not interrupted"),
    Row("log_severity_level log_verbosity_level logid", "ignored", "a run logs nothing"),
    Row("only_execute_path_to_fetches", "ignored", "a compiled model computes all outputs"),
    Row("add_run_config_entry get_run_config_entry", "ignored", "memory and devices are managed by Opweave"),
    Row("add_active_adapter", "unread", "pass the adapter's parameters in `input_feed`", warn=True),
)
"""Members of `RunOptions`."""

PROVIDERS = (
    Row("CPUExecutionProvider", "works", "the device `cpu`"),
    Row(
        "WebGpuExecutionProvider JsExecutionProvider", "works", "the first GPU that WebGPU reaches, where there is one"
    ),
    Row("WebNNExecutionProvider", "works", "the best device, as without a provider"),
    Row("CUDAExecutionProvider", "works", "a device of the back end `cuda`, where there is one"),
    Row(
        "OpenVINOExecutionProvider",
        "works",
        "a device of the back end `openvino`, where there is one; option `device_type`",
    ),
    Row("all others", "ignored", "Opweave has no such device", warn=True),
)
"""What the names of execution providers choose."""

SESSION = (
    Row("run", "works", "also `out=`; feeds and results may be MLTensors"),
    Row("run_async", "works", "with a callback as there; without one, a coroutine"),
    Row("run_with_ort_values run_with_ortvaluevector", "works", "values on the CPU"),
    Row("io_binding run_with_iobinding", "works", "memory on the CPU"),
    Row("get_inputs get_outputs get_overridable_initializers", "works", "lists of `NodeArg`"),
    Row("get_modelmeta", "works", "a `ModelMetadata`"),
    Row("get_providers get_provider_options get_session_options", "works", "what the session uses"),
    Row("set_providers", "works", "moves the session to another device, and compiles again"),
    Row("enable_fallback disable_fallback", "ignored", "a session never changes its device by itself"),
    Row("end_profiling get_profiling_start_time_ns", "works", "with `SessionOptions.enable_profiling`"),
    Row("get_input_memory_infos get_output_memory_infos", "works", "the CPU: arrays are taken and given there"),
    Row("create_ortvalue_from_shape_and_type", "works", "memory on the CPU"),
    Row("get_tuning_results", "works", "an empty list: nothing is tuned at run time"),
    Row(
        "set_tuning_results set_ep_dynamic_options release_captured_graph",
        "ignored",
        "no execution provider runs the model",
    ),
    Row(
        "get_input_epdevices get_provider_graph_assignment_info", "refused", "`session.explain()` tells where nodes run"
    ),
)
"""Methods of `InferenceSession`."""

BINDING = (
    Row("bind_cpu_input bind_input bind_ortvalue_input", "works", "read in place when the session runs; on the CPU"),
    Row("bind_output bind_ortvalue_output", "works", "written in place; on the CPU"),
    Row("get_outputs get_outputs_as_ortvaluevector copy_outputs_to_cpu", "works", ""),
    Row("clear_binding_inputs clear_binding_outputs", "works", ""),
    Row("synchronize_inputs synchronize_outputs", "works", "nothing to wait for: a run returns when it is done"),
)
"""Methods of `IOBinding`."""

MODULE = (
    Row("InferenceSession", "works", "runs on Opweave; existing subclasses, too"),
    Row("IOBinding", "works", "for a session that runs on Opweave, Opweave's"),
    Row("get_available_providers", "works", "the providers whose devices Opweave has here"),
    Row("get_device", "works", '"CPU", or "GPU" where Opweave has one'),
    Row(
        "SessionOptions RunOptions GraphOptimizationLevel ExecutionMode ExecutionOrder OrtValue OrtDevice OrtDeviceVendorId "
        "OrtMemoryInfo OrtMemoryInfoDeviceType OrtMemType OrtAllocatorType OrtArenaCfg OrtDeviceMemoryType "
        "OrtExternalInitializerInfo",
        "own",
        "sessions on Opweave take them",
    ),
    Row("NodeArg ModelMetadata", "own", "Opweave's classes of these names have the same attributes"),
    Row(
        "SparseTensor OrtSparseFormat",
        "own",
        "sessions on Opweave do not take sparse tensors",
    ),
    Row("SessionIOBinding", "own", "the engine's part of `IOBinding`, for its own sessions only"),
    Row("LoraAdapter AdapterFormat", "own", "read and write adapters; `RunOptions.add_active_adapter` is not read"),
    Row(
        "ModelCompiler OrtCompileApiFlags OrtEpContextData OrtEpContextDataBuffer",
        "own",
        "compile for execution providers of ONNX Runtime",
    ),
    Row(
        "ModelPackage ModelPackageContext ModelPackageComponentContext ModelPackageOptions ModelPackageWriteMode",
        "own",
        "packages of variants of a model for execution providers of ONNX Runtime",
        since="1.32",
    ),
    Row(
        "set_default_logger_callback",
        "own",
        "hands over what ONNX Runtime logs; Opweave logs with the logger `opweave`",
        since="1.32",
    ),
    Row(
        "OrtEpDevice OrtEpAssignedNode OrtEpAssignedSubgraph OrtExecutionProviderDevicePolicy OrtHardwareDevice "
        "OrtHardwareDeviceType OrtSyncStream get_ep_devices register_execution_provider_library "
        "unregister_execution_provider_library get_all_providers copy_tensors",
        "own",
        "execution providers of ONNX Runtime, which Opweave's sessions do not use",
    ),
    Row(
        "create_and_register_allocator create_and_register_allocator_v2 set_global_thread_pool_sizes",
        "own",
        "settings of ONNX Runtime's process; Opweave's engine may use its own",
    ),
    Row(
        "set_seed set_default_logger_severity set_default_logger_verbosity enable_telemetry_events disable_telemetry_events",
        "own",
        "settings of ONNX Runtime's process, which is Opweave's engine on the CPU",
    ),
    Row(
        "get_build_info get_version_string has_collective_ops print_debug_info preload_dlls cuda_version version "
        "package_name onnxruntime_validation import_capi_exception capi contextlib",
        "own",
        "tell about the installed package",
    ),
)
"""Public names of the module `onnxruntime`, while `replacing_onnxruntime` is active."""

TABLES: dict[str, tuple[Row, ...]] = {
    "`providers`": PROVIDERS,
    "`SessionOptions`": SESSION_OPTIONS,
    "`SessionOptions.add_session_config_entry`": CONFIG,
    "`RunOptions`": RUN_OPTIONS,
    "`InferenceSession`": SESSION,
    "`IOBinding`": BINDING,
    "The module `onnxruntime` in `replacing_onnxruntime`": MODULE,
}


def names(rows: Iterable[Row]) -> list[str]:
    """All names of a table.

    >>> names(BINDING)[:2]
    ['bind_cpu_input', 'bind_input']
    """
    return [name for row in rows for name in row.names.split()]


def row(rows: Iterable[Row], name: str) -> Row:
    """The row of a name."""
    return next(row for row in rows if name in row.names.split())


def render() -> str:
    """The tables as Markdown."""
    parts = []
    for title, rows in TABLES.items():
        lines = [f"### {title}", "", "| Name | Here | |", "|---|---|---|"]
        for row in rows:
            shown = row.names if row.names == "all others" else ", ".join(f"`{name}`" for name in row.names.split())
            since = f" (from ONNX Runtime {row.since} on)" if row.since else ""
            lines.append(f"| {shown} | {WORDS[row.state]} | {row.text}{since} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def written_into(page: str) -> str:
    """A page with the tables between its two marks made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{render()}\n\n{END}{after}"
