"""Engines in child processes: if an engine crashes, hangs or exhausts memory, only the child ends.

    with EngineProcess(limits) as process:
        program = compile(graph, process.backend(openvino), device="cpu", power_preference="default")

The parent keeps the rules, the partition and user kernels. The child gets legal sub-graphs of the engine, and their arrays on
each run.
"""

from .process import (
    EngineFailureError as EngineFailureError,
    EngineProcess as EngineProcess,
    ProcessLimits as ProcessLimits,
    available as available,
    ending as ending,
    max_memory as max_memory,
    memory_of as memory_of,
    resident as resident,
    start_python as start_python,
    waiting_seconds as waiting_seconds,
    watch as watch,
)
