"""What kernels that start early read before they wait for the kernel before."""

from __future__ import annotations

import re

import pytest
from support import cuda_on_cpu
from support.cuda_cases import token

from benchmarks.decode_step import Sizes
from opweave.backends.gpu.steps import KernelStep

SIZES = Sizes(layers=2, hidden=1024, heads=16, groups=4, size=64, inner=2048, past=1023)


@pytest.fixture(scope="module")
def steps() -> list[KernelStep]:
    """A token of two layers."""
    return token(SIZES, cuda_on_cpu.FEATURES).steps


def read_early(step: KernelStep) -> list[int]:
    """The numbers of the bindings that are read before the kernel waits."""
    parameters, _, body = step.kernel.source.partition("opweave_kernel(")[2].partition(") {")
    names = [parameter.split()[-1] for parameter in parameters.split(", ")]
    work = body.rpartition("\n    };\n")[2]  # behind functions
    branches = [branch.partition("await_previous();") for branch in work.split("\n    } else ")]
    assert any(wait for _, wait, _ in branches), step.kernel.title
    early = "".join(before for before, wait, _ in branches if wait)
    early = re.sub(r"\bprefetch\(.*", "", early)
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


def test_short_product_prefetches_the_matrix_of_the_next_one(steps: list[KernelStep]) -> None:
    """Behind its own loads. The last product of the first layer reads just as much as a short one may."""
    texts = [each.kernel.source.partition("opweave_kernel(")[2] for each in steps]
    fetching = [number for number, text in enumerate(texts) if "prefetch(" in text]
    assert fetching == [5, 7, 13]
    for number in fetching:
        step, text = steps[number], texts[number]
        (fetch,) = re.findall(r" prefetch\((\w+)\[number \* (\d+)u\], min\((\d+)u", text)
        name, elements, part = fetch[0], int(fetch[1]), int(fetch[2])
        names = [parameter.split()[-1] for parameter in text.partition(")")[0].split(", ")]
        place = step.places[names.index(name)]
        assert place in steps[number + 1].places
        assert text.index(" = b0[") < text.index(" prefetch(") < text.index("await_previous();")
        assert part == 2 * elements
        assert part * step.kernel.workgroups[0] >= place.desc.byte_length
