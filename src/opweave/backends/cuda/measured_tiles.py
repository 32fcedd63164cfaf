"""Measure tiles of kernels for tensor cores on a device, and keep the fastest in the cache on disk."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from itertools import islice
from types import MappingProxyType

import numpy as np

from ... import __version__
from ...core.dtypes import INFO
from ...expr.gpu import Buffer, GpuKernel
from ...expr.gpu.triton import Bfloat16
from ...expr.ir import Input
from ...support import disk_cache
from ..gpu.contraction import tensor_tiles
from ..gpu.contraction.kernels import Contraction
from ..gpu.contraction.problem import Matrix, Problem, ProblemWindow
from ..gpu.contraction.tensor import TensorTile
from ..gpu.contraction.terms import in_bfloat16
from . import compiler
from .driver import Driver, DriverLaunch

KIND = "tuning"

MAX_OPTIONS = 8
"""Maximum number of tiles and splits to measure per contraction: the best ones of the cost model."""

REPEAT = 7
"""Number of runs of each candidate; the minimum counts."""

TIMES = 20
"""Repetitions of the kernels in a measured graph, which divide the launch overhead."""

COLD_BYTES = 2**27
"""Bytes of all copies of a constant in a measured graph: more than the cache of an H200 (50 MB), because the weights of a
network come from memory in each run."""

WARM_SECONDS = 0.01

PADDING = 16
"""Bytes behind an array that kernels may read as part of a vector."""


def microseconds(
    driver: Driver,
    kernels: Sequence[GpuKernel],
    memory: dict[Buffer, int],
    repeat: int = REPEAT,
    copies: Mapping[Buffer, Sequence[int]] = MappingProxyType({}),
) -> float:
    """The time of kernels that run in sequence: the minimum over several runs of a graph that repeats the kernels.

    Buffers without an address in `memory` are allocated, and added to it. Repetitions take the addresses of `copies` in turn.
    """
    functions = driver.functions(kernels)
    for bound in (bound for kernel in kernels for bound in kernel.bindings):
        if bound not in memory:
            memory[bound] = driver.allocate(bound.desc.byte_length + PADDING)

    def address(bound: Buffer, turn: int) -> int:
        return copies[bound][turn % len(copies[bound])] if bound in copies else memory[bound]

    launches = [
        DriverLaunch(
            function, kernel.workgroups, tuple(address(bound, turn) for bound in kernel.bindings), kernel.starts_early
        )
        for turn in range(TIMES)
        for kernel, function in zip(kernels, functions, strict=True)
    ]
    return _least(driver, launches, repeat) / TIMES


def copies_of(driver: Driver, arrays: Mapping[Buffer, np.ndarray]) -> dict[Buffer, list[int]]:
    """Upload several copies of each constant, so that a graph that reads them in turn finds no large one in the cache."""
    addresses: dict[Buffer, list[int]] = {}
    for buffer, array in arrays.items():
        count = min(TIMES, -(-COLD_BYTES // max(1, array.nbytes)))
        addresses[buffer] = [driver.allocate(array.nbytes + PADDING) for _ in range(count)]
        for address in addresses[buffer]:
            driver.upload(address, np.ascontiguousarray(array))
    return addresses


def microseconds_of(driver: Driver, launches: Sequence[DriverLaunch], repeat: int = REPEAT) -> float:
    """Like `microseconds`, for kernels that are bound to memory."""
    return _least(driver, [*launches] * TIMES, repeat) / TIMES


def _least(driver: Driver, launches: Sequence[DriverLaunch], repeat: int) -> float:
    """The least microseconds of several runs of a graph."""
    graph = driver.graph(launches)

    def run_once() -> float:
        driver.wait()
        start = time.perf_counter()
        driver.launch(graph)
        driver.wait()
        return time.perf_counter() - start

    try:
        end = time.perf_counter() + WARM_SECONDS
        # An idle device has a low clock.
        while time.perf_counter() < end:
            run_once()
        return min(run_once() for _ in range(repeat)) * 1e6
    finally:
        driver.release(graph)


class MeasuredTiles:
    """Fastest tiles and split-K factors of contractions on one device."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._lock = threading.Lock()
        self._kept: dict[str, list[int]] | None = None

    def find(self, contraction: Contraction) -> tuple[TensorTile, int] | None:
        with self._lock:
            if self._kept is None:
                self._kept = self._load()
            row = self._kept.get(_key(contraction))
        return None if row is None else (TensorTile(*row[:5]), row[5])

    def digest(self) -> str:
        """A digest of all measured tiles; empty if there are none."""
        with self._lock:
            if self._kept is None:
                self._kept = self._load()
            text = json.dumps(self._kept, sort_keys=True) if self._kept else ""
        return hashlib.sha256(text.encode()).hexdigest() if text else ""

    def measure(self, contraction: Contraction) -> tuple[TensorTile, int]:
        """Return the fastest tile and its number of splits, and measure them unless they were measured before."""
        cached = self.find(contraction)
        if cached is not None:
            return cached
        options = list(islice(tensor_tiles.rank_tiles(contraction.problem, contraction.features), MAX_OPTIONS))
        candidates = []
        for contraction.tile, contraction.splits in options:
            candidates.append(contraction.kernels(None, "tuning"))
        # Compile all at once.
        self.driver.functions([kernel for kernels in candidates for kernel in kernels])
        memory: dict[Buffer, int] = {}
        copies: dict[Buffer, list[int]] = {}
        random = np.random.default_rng(0)
        try:
            for source in dict.fromkeys(contraction.read):
                is_float = INFO[source.desc.data_type].kind == "f"
                values: np.ndarray = random.standard_normal(source.desc.shape, np.float32)
                values = values if is_float else random.integers(0, 128, source.desc.shape)
                is_bfloat16 = isinstance(source.desc, Bfloat16)
                values = in_bfloat16(values) if is_bfloat16 else values.astype(source.desc.data_type)
                if source in contraction.arranged:
                    copies |= copies_of(self.driver, {source: values})
                    continue
                memory[source] = self.driver.allocate(values.nbytes + PADDING)
                self.driver.upload(memory[source], values)
            times = [microseconds(self.driver, kernels, memory, copies=copies) for kernels in candidates]
        finally:
            self.driver.wait()
            for address in [*memory.values(), *(address for addresses in copies.values() for address in addresses)]:
                self.driver.free(address)
        best = options[times.index(min(times))]
        self._keep(_key(contraction), best)
        return best

    @property
    def _file(self) -> str:
        info = self.driver.info
        text = f"tiles {info.name} {info.architecture} {info.units} {__version__} {compiler.triton_version()}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _load(self) -> dict[str, list[int]]:
        data = disk_cache.load(self._file, KIND)
        try:
            tiles: dict[str, list[int]] = json.loads(data)["tiles"] if data is not None else {}
        except (ValueError, KeyError, TypeError, RecursionError):  # another format, or damaged
            return {}
        return tiles if isinstance(tiles, dict) else {}

    def _keep(self, key: str, best: tuple[TensorTile, int]) -> None:
        tile, splits = best
        with self._lock:
            # Merge with the file: other processes may have added entries since.
            self._kept = {**self._load(), **(self._kept or {}), key: [*astuple(tile), splits]}
            disk_cache.store(self._file, KIND, json.dumps({"tiles": self._kept}).encode())


def _key(contraction: Contraction) -> str:
    problem: Problem = contraction.problem
    # The number of a source depends on its place in a graph.
    left, right = (_without_number(side) for side in (problem.left, problem.right))
    text = f"{replace(problem, left=left, right=right)} {contraction.features.tensor_cores}"
    return hashlib.sha256(text.encode()).hexdigest()


def _without_number(side: Matrix | ProblemWindow) -> Matrix | ProblemWindow:
    source = Input(0, side.source.desc)
    return (
        replace(side, source=source)
        if isinstance(side, ProblemWindow)
        else replace(
            side,
            source=source,
            rest=side.rest and source,
            quantized=side.quantized and side.quantized.without_numbers,
        )
    )
