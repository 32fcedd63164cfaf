"""Compiled graphs on a CUDA device; a dispatch is the launch of one CUDA graph."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import finalize

from ...core.graph import Graph
from ...expr.gpu import GpuKernel
from ...support.identity import ByIdentity
from ..gpu.arenas import GpuArena
from ..gpu.arrays import DeviceArray
from ..gpu.backend import GpuBackend
from ..gpu.runner import DeviceCall, GpuIntermediates, GpuKernelRunner, MeasuredGpuRunner
from ..gpu.steps import Buffer
from ..submission import Submission
from . import compiler
from .driver import Argument, CudaFunction, DriverLaunch, free_unless_lost
from .engine import CudaDevice
from .staging import PIECE_BYTES

MAX_CHAINS = 4
"""Maximum number of CUDA graphs of a graph with names, in an arena; an estimate. New sizes update the kernels of the one that
was used least recently. Sizes that recur are launched as they are: an update takes some microseconds a kernel."""

MAX_FORMS = 8
"""Maximum number of sequences of kernels that have CUDA graphs in an arena; an estimate. Sizes may change which kernels run:
recurrent networks of more than 256 units have kernels for each step."""


class _Chain:
    """The CUDA graph of some kernels of a runner.

    `runs` is the binding whose arguments the kernels have: the launches in order, None for skipped ones. It is None during
    an update, which Ctrl-C may interrupt. `sizes` are those of its version of the runner.
    """

    def __init__(self, engine: CudaDevice, runs: Sequence[DriverLaunch | None], sizes: Mapping[str, int]) -> None:
        self.runs: Sequence[DriverLaunch | None] | None = runs
        self.sizes = sizes
        self._driver = engine.driver
        launches = [run for run in runs if run is not None]
        self._launches: list[DriverLaunch | None] = [*launches]
        self.graph = self._driver.graph(launches)
        finalize(self, free_unless_lost, self._driver.release, self.graph).atexit = False

    def bind(self, runs: Sequence[DriverLaunch | None], sizes: Mapping[str, int]) -> None:
        """Update the kernels whose arguments or workgroups differ in another binding."""
        self.runs, self.sizes = None, sizes
        for number, launch in enumerate(run for run in runs if run is not None):
            last = self._launches[number]
            if last is None or launch.arguments != last.arguments or launch.workgroups != last.workgroups:
                self._launches[number] = None
                self._driver.update(self.graph, number, launch)
                self._launches[number] = launch
        self.runs = runs


@dataclass(slots=True)
class _Chains:
    """The CUDA graphs of a runner in an arena; `last` ran last.

    `by_kernels` has a list of graphs for each sequence of kernels, least recently used first; in each list, the most recently
    used graph is first. Updates keep the edges of a graph, which depend on the kernels.
    """

    by_kernels: dict[tuple[Sequence[int], tuple[bool, ...]], list[_Chain]] = field(default_factory=dict)
    last: _Chain | None = None

    def of(self, numbers: Sequence[int], skipped: tuple[bool, ...]) -> list[_Chain]:
        """The CUDA graphs of the kernels with these numbers without those that are skipped.

        Those that were used least recently may be dropped.
        """
        key = numbers, skipped
        graphs = self.by_kernels[key] = self.by_kernels.pop(key, [])
        if len(self.by_kernels) > MAX_FORMS:
            del self.by_kernels[next(iter(self.by_kernels))]
        return graphs


class _RunnerKernels:
    """The kernels of a runner and of its versions. They start to compile immediately, and load at the first use."""

    def __init__(self, engine: CudaDevice, kernels: Sequence[GpuKernel]) -> None:
        self._engine, self._kernels = engine, kernels
        self._jobs: list[Any] = engine.begin(kernels)
        self._lock = Lock()
        self._functions: list[CudaFunction] | None = None

    def functions(self) -> list[CudaFunction]:
        """The loaded kernels; wait until they are compiled."""
        if self._functions is None:
            with self._lock, compiler.stop_on_interrupt():
                if self._functions is None:
                    self._functions = self._engine.functions(self._kernels)
                    self._jobs.clear()
        return self._functions

    def abandon(self) -> None:
        """Cancel kernels that still wait for a process; another thread that needs them begins them again."""
        for job in self._jobs:
            job.cancel()


class _CudaCall(DeviceCall[DriverLaunch], Submission):
    max_whole = PIECE_BYTES


class CudaRunner(GpuKernelRunner[DriverLaunch]):
    """A graph whose operations are kernels on a CUDA device."""

    engine: CudaDevice
    waits_in_bind = True

    def __init__(self, graph: Graph, backend: GpuBackend, engine: CudaDevice) -> None:
        self._chains: ByIdentity[GpuArena[GpuIntermediates[DriverLaunch]], _Chains] = ByIdentity()
        self._launch = engine.driver.launch
        self._sizes: Mapping[str, int] = {}
        super().__init__(graph, backend, engine)

    def prepare(self) -> None:
        self._kernels = _RunnerKernels(self.engine, [step.kernel for step in self.steps])

    def complete(self) -> None:
        self._kernels.functions()
        super().complete()

    def begin_version(self, sizes: Mapping[str, int]) -> None:
        self._sizes = dict(sizes)

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        """Key and kind of the files in the cache on disk with its kernels."""
        architecture = self.engine.driver.info.architecture
        kernels = {step.kernel.key: step.kernel for step in self.steps if step.kernel.compiled is None}
        return {compiler.cache_key(kernel, architecture) for kernel in kernels.values()}

    def abandon(self) -> None:
        self._kernels.abandon()

    def bind_kernel(self, number: int, arrays: Mapping[Buffer, DeviceArray]) -> DriverLaunch:
        step = self.steps[number]
        kernel, places = step.kernel, step.places
        arguments: tuple[Argument, ...] = tuple(
            argument if isinstance(argument, bytes) else arrays[places[argument]].buffer.address
            for argument in kernel.arguments or range(len(places))
        )
        if step.numbers:
            count = len(kernel.sizes)
            # Multipliers are u32. A size beyond i32 is an error. For ten numbers, NumPy takes three to four times as long.
            data = array("i", step.numbers[:count]).tobytes() + array("I", step.numbers[count:]).tobytes()
            # NVRTC's kernels take a struct, Triton's take arguments.
            width = 4 if kernel.compiler == "triton" else len(data)
            arguments += tuple(data[start : start + width] for start in range(0, len(data), width))
        function = self._kernels.functions()[self.kernel_numbers[number]]
        return DriverLaunch(function, kernel.workgroups, arguments, kernel.starts_early)

    def measured(self) -> MeasuredGpuRunner[DriverLaunch]:
        return MeasuredGpuRunner(self)

    def time_kernels(self, runs: Sequence[DriverLaunch | None]) -> list[int]:
        times = iter(self.engine.driver.times([run for run in runs if run is not None]))
        return [0 if run is None else next(times) for run in runs]

    def bind(self, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray]) -> DeviceCall[DriverLaunch]:
        return _CudaCall(self, inputs, outputs, self.submit)

    def submit(self, arena: GpuArena[GpuIntermediates[DriverLaunch]], runs: Sequence[DriverLaunch | None]) -> None:
        """Launch the graph of a binding. The caller has taken the arena, so no other thread uses its graphs."""
        chains = self._chains.peek(id(arena)) or self._chains.put(arena, _Chains())
        chain = chains.last
        if chain is None or chain.runs is not runs:
            left_out = tuple(run is None for run in runs)
            if all(left_out):
                return
            chain = chains.last = self._chain(chains.of(self.kernel_numbers, left_out), runs)
        self._launch(chain.graph)

    def _chain(self, recent: list[_Chain], runs: Sequence[DriverLaunch | None]) -> _Chain:
        """Return the CUDA graph with the arguments of a binding; `recent` has those of the same kernels."""
        chain = next((chain for chain in recent if chain.sizes == self._sizes), None)
        if chain is None and len(recent) < MAX_CHAINS:
            chain = _Chain(self.engine, runs, self._sizes)
        else:
            chain = chain or recent[-1]
            chain.bind(runs, self._sizes)
            recent.remove(chain)
        recent.insert(0, chain)
        return chain
