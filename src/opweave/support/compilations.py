"""Counters of what a process compiles, and loads compiled: `opweave.lazy.statistics`."""

from __future__ import annotations

from .records import record


@record(frozen=False, eq=True, slots=False)
class CompileStatistics:
    """Counters since the start, or the last `reset`.

    Attributes:
        graphs: reads that ran a compiled graph.
        operations: operations that ran on their own.
        compiled: graphs that were compiled.
        specialised: graphs that were compiled again with recurring inputs as constants.
        refused: graphs that the engine could not compile as a whole; they run one operation at a time.
        values: results that were written to an array, because they were read or may be read later.
        dropped: results that were not written to an array, because nothing referred to them any more.
        code_compiled: expressions and kernels whose code Halide, LLVM, NVRTC or Triton has compiled, for graphs, too.
        code_loaded: expressions and kernels whose code came from the cache on disk, or from a saved graph.
    """

    graphs: int = 0
    operations: int = 0
    compiled: int = 0
    specialised: int = 0
    refused: int = 0
    values: int = 0
    dropped: int = 0
    code_compiled: int = 0
    code_loaded: int = 0

    def reset(self) -> None:
        """Set all counters to zero."""
        self.__init__()  # type: ignore[misc]


statistics = CompileStatistics()
