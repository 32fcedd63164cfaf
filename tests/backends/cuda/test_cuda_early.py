"""What kernels that start early read before they wait for the kernel before."""

from __future__ import annotations

import re

import pytest
from support import cuda_on_cpu
from support.cuda_cases import _Rules

import opweave as ow
from benchmarks.decode_step import Sizes, random_weight, step
from opweave.backends.gpu.schedule import Schedule
from opweave.backends.gpu.steps import KernelStep
from opweave.compile.legalise import legalise
from opweave.core.graph import Graph


@pytest.fixture(scope="module")
def steps() -> list[KernelStep]:
    """A token of two layers."""
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    sizes = Sizes(layers=2, hidden=1024, heads=16, groups=4, size=64, inner=2048, past=1023)
    graph = Graph.reaching(step(builder, sizes, random_weight(builder, sizes)))
    rules = _Rules(cuda_on_cpu.FEATURES)
    legal, _ = legalise(graph, rules.supports, rules.name)
    return Schedule(legal, rules, cuda_on_cpu.FEATURES).steps


def read_early(step: KernelStep) -> list[int]:
    """The numbers of the bindings that are read before the kernel waits."""
    parameters, _, body = step.kernel.source.partition("opweave_kernel(")[2].partition(") {")
    names = [parameter.split()[-1] for parameter in parameters.split(", ")]
    work = body.rpartition("\n    };\n")[2]  # behind functions
    branches = [branch.partition("await_previous();") for branch in work.split("\n    } else ")]
    assert any(wait for _, wait, _ in branches), step.kernel.title
    early = "".join(before for before, wait, _ in branches if wait)
    return [k for k, name in enumerate(names) if re.search(rf"\b{name}\[", early)]


def test_early_reads_exclude_written_buffers(steps: list[KernelStep]) -> None:
    written = {place for step in steps for place, writes in zip(step.places, step.kernel.writes, strict=True) if writes}
    written |= {place for step in steps for place in step.copies or ()}  # an input that is updated in place
    for each in steps:
        if each.kernel.starts_early:
            assert written.isdisjoint(each.places[k] for k in read_early(each)), each.kernel.title


@pytest.mark.parametrize(
    ("title", "kinds"),
    [
        ("rms_normalization + matmul", ["constant"] * 4),  # the scale, and three matrices
        ("sigmoid + mul + matmul + mul", ["constant"] * 3),
        ("parts of the keys", ["input", "constant", "constant"]),  # lengths, cosines and sines
        ("all keys", []),
        ("matmul + add", ["constant"]),
    ],
)
def test_early_reads_of_constants_and_inputs(steps: list[KernelStep], title: str, kinds: list[str]) -> None:
    found = [each for each in steps[8:] if each.kernel.title.endswith(title)]
    assert found
    for each in found:
        assert [each.places[k].kind for k in read_early(each)] == kinds
