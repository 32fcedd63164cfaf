"""The options of Opweave's sessions of ONNX Runtime, and the weights that they bring."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnxruntime

from ...support.processors import processors
from .. import PowerPreference, Precision
from . import kernels
from .native import ENGINE_ERRORS

PRECISE_PRODUCTS = ("session.x64quantprecision", "1")
"""A session option: convert int8 constants to uint8, for processors where `kernels.saturates` holds. The engine does so on
others, too, where it only costs: with VNNI instructions, an LSTM of ddddocr's text recogniser takes 1.55 times as long."""

PRECISION_OPTIONS: dict[Precision, tuple[str, ...]] = {
    "ieee": ("session.disable_quant_qdq",),
    "bfloat16": ("mlas.enable_gemm_fastmath_arm64_bfloat16",),
}
"""The session options that make the engine compute in a precision. Without the first, it joins products with the nodes that
dequantise their constants, and then rounds the other operand to 8 bits. The second has no effect on other processors."""

SPIN_MICROSECONDS = {True: 200, False: 50}
"""How long threads wait for more work before they sleep: of a session that is alone, and of those that take turns. Without
spinning, networks of many small operations are slower. While they spin, threads take the cores from other sessions and from
the program's own threads: with the engine's default (tens of milliseconds), a graph that follows another took twice its time
on two cores. In `benchmarks/threads.py`, two dense layers took 1.02 to 1.14 of ONNX Runtime's time with 2,000 us, and 0.93 to
1.00 with 200.

A session that runs a user's model as it is keeps the engine's default: there are no other graphs that it takes turns with, and
its calls are to cost what they cost in the engine, also after pauses. After 30 ms threads of the engine still spin by default.
With 200, they sleep by then, and each call wakes them."""

FOLDED_BYTES = 2**28
"""The largest result that the engine may compute from constants when it makes a session. Without a limit, a few nodes that
double their input take all memory while a model is loaded."""

USED_IN_PLACE = frozenset(
    {
        *("Conv", "ConvInteger", "ConvTranspose", "GRU", "Gather", "Gemm", "GroupQueryAttention", "LSTM", "MatMul"),
        *("MatMulInteger", "MatMulNBits", "QLinearConv", "QLinearMatMul", "RNN"),
        *("Attention", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "EmbedLayerNormalization", "FusedConv"),
        *("FusedGemm", "FusedMatMul", "GatherBlockQuantized", "MatMulBnb4", "MoE", "QAttention", "QMoE"),
    }
)
"""Operators whose constants the engine's optimiser leaves as they are, or replaces under another name.

Through others it moves transpositions: it transposes a constant that they read, in place and under its old name, and would
not find what the kernels get. That is why kernels get copies of what any other operator reads."""


def hand_over(
    options: onnxruntime.SessionOptions,
    weights: Mapping[str, np.ndarray],
    readers: Iterable[tuple[str, Sequence[str], Sequence[str]]] | None,
) -> dict[str, Any]:
    """Let sessions of `options` read weights where they lie.

    Args:
        options: where they are registered.
        weights: the arrays of external initializers, by name.
        readers: the operator, the inputs and the outputs of all nodes, also of those in sub-graphs. None if kernels may not
            be on the CPU: then the engine brings weights to where they are.

    Returns:
        The engine's values, which the caller must keep as long as the session.
    """
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in weights.items()}
    if not values:
        return values
    # For the engine's optimiser, which reads weights to fold and reorder them ...
    options.add_external_initializers(list(values), list(values.values()))
    if readers is None:
        return values
    # ... and for its kernels, which get a copy without this.
    changed: set[str] = set()
    dequantised = []
    for op_type, inputs, outputs in readers:
        if op_type == "DequantizeLinear":
            dequantised.append((inputs, outputs))
        elif op_type not in USED_IN_PLACE:
            changed.update(inputs)
    for inputs, outputs in dequantised:  # the optimiser looks through this one
        if not changed.isdisjoint(outputs):
            changed.update(inputs)
    for name, value in values.items():
        if name not in changed:
            options.add_initializer(name, value)
    return values


def session_options(
    power_preference: PowerPreference,
    alone: bool = True,
    threads: int | None = None,
    precision: Precision = "float32",
    quantised: bool = True,
    whole: bool = False,
) -> onnxruntime.SessionOptions:
    """The options of all our sessions.

    Args:
        power_preference: that of the context.
        alone: whether the session does not take turns with others.
        threads: how many threads an operation may use; None for as many as there are processors.
        precision: that of the context.
        quantised: whether the session may multiply integers.
        whole: whether it runs a user's model as it is; then threads spin as long as they do in the engine by default.
    """
    options = onnxruntime.SessionOptions()
    for key in PRECISION_OPTIONS.get(precision, ()):
        options.add_session_config_entry(key, "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/")
    options.add_session_config_entry("optimization.constant_folding_max_output_size_in_bytes", str(FOLDED_BYTES))
    if quantised and kernels.saturates():
        options.add_session_config_entry(*PRECISE_PRODUCTS)
    options.log_severity_level = 4  # its errors are raised; its warnings speak of graphs that are meant to be so
    if _shares_memory():
        options.add_session_config_entry("session.use_env_allocators", "1")
    allowed = processors()
    if allowed < (os.cpu_count() or 1):
        # The engine would start, and pin, a thread for each processor of the machine, also for those we may not use.
        options.intra_op_num_threads = allowed
    if threads is not None:
        options.intra_op_num_threads = threads
    # Each session has threads of its own. How long they spin for more work, before they sleep, decides who else can run.
    if power_preference == "low-power":
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    elif not whole:
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_MICROSECONDS[alone]))
    return options


@cache
def _shares_memory() -> bool:
    """Whether our sessions use one arena, made by the first of them; others' sessions keep arenas of their own.

    An arena keeps the most memory that a run has needed: one for all keeps it once, not once for each session.
    """
    where = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    # The default growth, to the next power of two: regions of just the size that is asked for are not used again by
    # tensors that grow a little at each call.
    growth = onnxruntime.OrtArenaCfg(0, -1, -1, -1)
    try:
        onnxruntime.create_and_register_allocator(where, growth)
    except ENGINE_ERRORS:
        return False
    return True


def pool_threads(threads: int | None = None) -> int:
    """How many threads the engine starts for a session: the calling thread works, too. None: one thread for each processor."""
    return (processors() if threads is None else threads) - 1
