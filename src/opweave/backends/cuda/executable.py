"""Compiled graphs on a CUDA device; a dispatch is the launch of one CUDA graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import finalize

import numpy as np

from ...core.graph import Graph
from ...support.identity import ByIdentity
from ..gpu.arrays import DeviceArray
from ..gpu.backend import GpuBackend
from ..gpu.runner import DeviceCall, GpuIntermediates, GpuKernelRunner, MeasuredGpuRunner
from ..gpu.steps import Buffer
from ..submission import Submission
from . import compiler
from .driver import Argument, DriverLaunch, free_unless_lost
from .engine import CudaDevice
from .staging import PIECE_BYTES


class _Chain:
    """The CUDA graph of some kernels of a runner.

    `runs` is the binding whose arguments the kernels have: the launches in order, None for skipped ones. It is None during
    an update, which Ctrl-C may interrupt.
    """

    def __init__(self, engine: CudaDevice, runs: Sequence[DriverLaunch | None]) -> None:
        self.runs: Sequence[DriverLaunch | None] | None = runs
        self._driver = engine.driver
        launches = [run for run in runs if run is not None]
        self._arguments: list[tuple[Argument, ...] | None] = [launch.arguments for launch in launches]
        self.graph = self._driver.graph(launches)
        finalize(self, free_unless_lost, self._driver.release, self.graph).atexit = False

    def bind(self, runs: Sequence[DriverLaunch | None]) -> None:
        """Update the kernels whose arguments differ in another binding."""
        self.runs = None
        for number, launch in enumerate(run for run in runs if run is not None):
            if launch.arguments != self._arguments[number]:
                self._arguments[number] = None
                self._driver.update(self.graph, number, launch)
                self._arguments[number] = launch.arguments
        self.runs = runs


@dataclass(slots=True)
class _Chains:
    """The CUDA graphs of a runner on the same intermediates, by the kernels that are skipped; `last` ran last."""

    by_skipped: dict[tuple[bool, ...], _Chain] = field(default_factory=dict)
    last: _Chain | None = None


class _CudaCall(DeviceCall[DriverLaunch], Submission):
    max_whole = PIECE_BYTES


class CudaRunner(GpuKernelRunner[DriverLaunch]):
    """A graph whose operations are kernels on a CUDA device."""

    engine: CudaDevice

    def __init__(self, graph: Graph, backend: GpuBackend, engine: CudaDevice) -> None:
        self._chains: ByIdentity[GpuIntermediates[DriverLaunch], _Chains] = ByIdentity()
        self._launch = engine.driver.launch
        super().__init__(graph, backend, engine)

    def prepare(self) -> None:
        self._begun = self.engine.begin([step.kernel for step in self.steps])

    def complete(self) -> None:
        with compiler.stop_on_interrupt():
            self._functions = self.engine.functions([step.kernel for step in self.steps])
        self._begun.clear()
        super().complete()

    def begin_version(self) -> None:
        self._chains = ByIdentity()

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        """Key and kind of the files in the cache on disk with its kernels."""
        architecture, kernels = self.engine.driver.info.architecture, {step.kernel for step in self.steps}
        return {compiler.cache_key(kernel, architecture) for kernel in kernels if kernel.compiled is None}

    def abandon(self) -> None:
        """Cancel kernels that still wait for a process; another thread that needs them begins them again."""
        for job in self._begun:
            job.cancel()

    def bind_kernel(self, number: int, arrays: Mapping[Buffer, DeviceArray]) -> DriverLaunch:
        step = self.steps[number]
        kernel, places = step.kernel, step.places
        arguments: tuple[Argument, ...] = tuple(
            argument if isinstance(argument, bytes) else arrays[places[argument]].buffer.address
            for argument in kernel.arguments or range(len(places))
        )
        if step.numbers:
            numbers = np.array(step.numbers, np.int32)
            # NVRTC's kernels take a struct, Triton's take arguments.
            arguments += tuple(n.tobytes() for n in numbers) if kernel.compiler == "triton" else (numbers.tobytes(),)
        return DriverLaunch(self._functions[number], kernel.workgroups, arguments, kernel.starts_early)

    def measured(self) -> MeasuredGpuRunner[DriverLaunch]:
        return MeasuredGpuRunner(self)

    def time_kernels(self, runs: Sequence[DriverLaunch | None]) -> list[int]:
        times = iter(self.engine.driver.times([run for run in runs if run is not None]))
        return [0 if run is None else next(times) for run in runs]

    def bind(self, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray]) -> DeviceCall[DriverLaunch]:
        return _CudaCall(self, inputs, outputs, self.submit)

    def submit(self, memory: GpuIntermediates[DriverLaunch], runs: Sequence[DriverLaunch | None]) -> None:
        """Launch the graph of a binding. The caller has locked `memory`, so no other thread uses its graphs."""
        chains = self._chains.peek(id(memory)) or self._chains.put(memory, _Chains())
        chain = chains.last
        if chain is None or chain.runs is not runs:
            left_out = tuple(run is None for run in runs)
            if all(left_out):
                return
            if left_out not in chains.by_skipped:
                chains.by_skipped[left_out] = _Chain(self.engine, runs)
            chain = chains.last = chains.by_skipped[left_out]
            chain.bind(runs)
        self._launch(chain.graph)
