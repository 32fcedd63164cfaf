"""Engines in child processes: an engine that crashes, hangs or takes all memory ends the child, never the user's process.

    with EngineProcess(limits) as process:
        program = compile(graph, process.backend(openvino), device="cpu", power_preference="default")

The parent keeps the rules, the partition and the kernels of users. The child gets the legal sub-graphs of the engine, and
their arrays for each run.
"""

from .process import (
    EngineFailureError as EngineFailureError,
    EngineProcess as EngineProcess,
    Limits as Limits,
    available as available,
    ending as ending,
    max_memory as max_memory,
    memory_of as memory_of,
    resident as resident,
    started as started,
    waited as waited,
    watch as watch,
)
