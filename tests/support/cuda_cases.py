"""The conformance cases as kernels in the language of a device, without the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest

import opweave as ow
from benchmarks.decode_step import Sizes, random_weight, step
from opweave.backends.gpu.backend import GpuBackend
from opweave.backends.gpu.schedule import Schedule
from opweave.backends.gpu.steps import KernelStep
from opweave.compile.legalise import legalise
from opweave.core.graph import Graph
from opweave.expr.gpu import Features, GpuKernel
from support import wpt


@dataclass(frozen=True)
class Compiled:
    """The kernels of a graph.

    Attributes:
        graph: the graph, after what has no rule was decomposed.
        steps: its kernels, and their places in memory.
    """

    graph: Graph
    steps: list[KernelStep]

    @property
    def kernels(self) -> list[GpuKernel]:
        """The kernels, in order."""
        return [step.kernel for step in self.steps]


class _Rules(GpuBackend):
    """The rules of all GPUs, for features of a device."""

    name, title = "cuda", "CUDA"

    def __init__(self, features: Features) -> None:
        super().__init__()
        self._features = features

    @property
    def features(self) -> Features:
        return self._features

    def devices(self) -> list[Any]:
        return []

    def compile(self, graph: Graph, **_: Any) -> Any:
        raise NotImplementedError


class _BuiltError(Exception):
    pass


def graph_of(case: wpt.Case) -> Graph:
    """The graph that a case builds."""

    def build(_: ow.MLGraphBuilder, outputs: Any) -> None:
        raise _BuiltError(Graph.reaching(outputs))

    with mock.patch.object(ow.MLGraphBuilder, "build", build), pytest.raises(_BuiltError) as caught:
        wpt.run_conformance(ow.ml.create_context(device="reference"), case)
    found: Graph = caught.value.args[0]
    return found


def compiled(case: wpt.Case, features: Features) -> Compiled:
    """The kernels of a case."""
    return _scheduled(graph_of(case), features)


def token(sizes: Sizes, features: Features) -> Compiled:
    """The kernels of a token of a language model with random weights."""
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    return _scheduled(Graph.reaching(step(builder, sizes, random_weight(builder, sizes))), features)


def _scheduled(graph: Graph, features: Features) -> Compiled:
    rules = _Rules(features)
    legal, _ = legalise(graph, rules.supports, rules.name)
    return Compiled(legal, Schedule(legal, rules, features).steps)


def rows(backend: str) -> list[Any]:
    """The cases as parameters; samples have one of each operation, and of each data type."""
    made = []
    for case in wpt.cases("conformance"):
        types = [tensor["dataType"] for part in ("inputs", "expected") for tensor in case[part].values()]
        mark = pytest.mark.covers(*([] if wpt.is_large(case) else [case["op"], *types]))
        made.append(pytest.param(case, id=case["id"], marks=mark))
    return made
