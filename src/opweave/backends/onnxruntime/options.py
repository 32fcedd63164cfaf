"""Options of Opweave's ONNX Runtime sessions, and registration of weights in them."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnxruntime

from ...support.processors import processors
from .. import PowerPreference, Precision, Spinning
from .native import ENGINE_ERRORS

PRECISE_PRODUCTS = ("session.x64quantprecision", "1")
"""Session option that converts int8 constants to uint8, for processors where `kernels.saturates` holds. On others it only
costs: with VNNI instructions, an LSTM of ddddocr's text recogniser takes 1.55 times as long."""

PRECISION_OPTIONS: dict[Precision, tuple[str, ...]] = {
    "ieee": ("session.disable_quant_qdq",),
    "bfloat16": ("mlas.enable_gemm_fastmath_arm64_bfloat16",),
}
"""Session options for each precision. `disable_quant_qdq` keeps the engine from fusing products with the nodes that dequantise
their constants, which rounds the other operand to 8 bits. The option for bfloat16 has no effect on other processors."""

SPIN_MICROSECONDS: dict[Spinning, int | None] = {"long": None, "short": 200, "least": 50}
"""Time that threads spin for more work before they sleep; None for the engine's default, tens of milliseconds.

Without spinning, networks of many small operations are slower, and sleeping threads have to be woken after pauses: in
`benchmarks/traffic.py`, a model with a custom operation took 1.26 of ONNX Runtime's time after pauses of 100 ms with 200 us,
and 0.93 with 30,000. Spinning threads take cores from others: in `benchmarks/threads.py`, two dense layers took 1.02 to 1.14
of ONNX Runtime's time with 2,000 us, and 0.93 to 1.00 with 200."""

FOLDED_BYTES = 2**28
"""Largest result of constant folding by the engine. Without a limit, a few nodes that double their input take all memory
while a model is loaded."""

USED_IN_PLACE = frozenset(
    {
        *("Conv", "ConvInteger", "ConvTranspose", "GRU", "Gather", "Gemm", "GroupQueryAttention", "LSTM", "MatMul"),
        *("MatMulInteger", "MatMulNBits", "QLinearConv", "QLinearMatMul", "RNN"),
        *("Attention", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "EmbedLayerNormalization", "FusedConv"),
        *("FusedGemm", "FusedMatMul", "GatherBlockQuantized", "MatMulBnb4", "MoE", "QAttention", "QMoE"),
    }
)
"""Operators whose constants the engine's optimiser does not change, or replaces under a new name.

The optimiser moves transpositions through all other operators, and transposes their constants in place, under the old name.
The engine therefore copies every constant that another operator reads."""

TAKE_IMAGES = frozenset({"Conv", "ConvInteger", "ConvTranspose", "FusedConv", "QLinearConv"})
"""Operators in `USED_IN_PLACE` whose first operand the optimiser transposes, if channels come last for the faster kernel."""


def is_quantised(op_type: str) -> bool:
    """Whether an operator of the engine may multiply integers: all that do have such names, and few others."""
    return "Integer" in op_type or "uantize" in op_type or op_type.startswith("Q")


def hand_over(
    options: onnxruntime.SessionOptions,
    weights: Mapping[str, np.ndarray],
    readers: Iterable[tuple[str, Sequence[str], Sequence[str]]] | None,
    kernel_constants: Container[str] = (),
) -> dict[str, Any]:
    """Register weights in `options`, so that sessions read them in place; return values to keep as long as the session.

    Args:
        options: the options.
        weights: the weights by name.
        readers: (operator, inputs, outputs) of all nodes, including sub-graphs. With None, the engine copies the weights:
            kernels may run on another device.
        kernel_constants: weights that only nodes of `records.OPAQUE` read. The engine copies others until it has
            packed them.
    """
    from .values import to_engine

    # The values keep the arrays, whose memory the engine reads.
    values = {name: onnxruntime.OrtValue(to_engine(array), array) for name, array in weights.items()}
    if not values:
        return values
    # The engine's optimiser reads these weights to fold and reorder them.
    if in_graph := [name for name in values if name not in kernel_constants]:
        options.add_external_initializers(in_graph, [values[name] for name in in_graph])
    if readers is None:
        return values
    # The engine's kernels read the weights that are registered below in place; they get a copy of all others.
    changed: set[str] = set()
    dequantised = []
    for op_type, inputs, outputs in readers:
        if op_type == "DequantizeLinear":
            dequantised.append((inputs, outputs))
        elif op_type not in USED_IN_PLACE:
            changed.update(inputs)
        elif op_type in TAKE_IMAGES:
            changed.update(inputs[:1])
    for inputs, outputs in dequantised:  # the optimiser moves transpositions through DequantizeLinear, too
        if not changed.isdisjoint(outputs):
            changed.update(inputs)
    for name, value in values.items():
        if name not in changed:
            options.add_initializer(name, value)
    return values


def session_options(
    power_preference: PowerPreference,
    spinning: Spinning = "short",
    threads: int | None = None,
    precision: Precision = "float32",
    quantised: bool = True,
    has_arena: bool = True,
) -> onnxruntime.SessionOptions:
    """Make the options of a session.

    Args:
        spinning: how long threads spin for the next operation.
        threads: number of threads of an operation; None for all processors.
        quantised: whether the session may multiply integers.
        has_arena: whether memory of a run is kept for later runs.
    """
    options = onnxruntime.SessionOptions()
    for key in PRECISION_OPTIONS.get(precision, ()):
        options.add_session_config_entry(key, "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/")
    options.add_session_config_entry("optimization.constant_folding_max_output_size_in_bytes", str(FOLDED_BYTES))
    if quantised:
        from . import kernels

        if kernels.saturates():
            options.add_session_config_entry(*PRECISE_PRODUCTS)
    options.log_severity_level = 4  # errors are raised anyway; warnings concern intended properties of graphs
    options.enable_cpu_mem_arena = has_arena
    if has_arena and _shares_memory():
        options.add_session_config_entry("session.use_env_allocators", "1")
    allowed = processors()
    if allowed < (os.cpu_count() or 1):
        # The engine would start and pin a thread for each processor of the machine, including those we may not use.
        options.intra_op_num_threads = allowed
    if threads is not None:
        options.intra_op_num_threads = threads
    # Each session has its own threads. While they spin for more work, they block other sessions.
    if power_preference == "low-power":
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    elif (duration := SPIN_MICROSECONDS[spinning]) is not None:
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(duration))
    return options


@cache
def _shares_memory() -> bool:
    """Whether all Opweave sessions share an arena, which keeps the peak memory of all runs once, not once per session."""
    where = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    # Default growth, to the next power of two: regions of the exact size could not be reused by tensors that grow a little at
    # each call.
    growth = onnxruntime.OrtArenaCfg(0, -1, -1, -1)
    try:
        onnxruntime.create_and_register_allocator(where, growth)
    except ENGINE_ERRORS:
        return False
    return True


def pool_threads(threads: int | None = None) -> int:
    """Return the number of threads that the engine starts for a session: all but the calling thread."""
    return (processors() if threads is None else threads) - 1
