"""Lower expressions to GPU kernels, in the language of the device (`dialect`).

No device is needed: the result is source text, with bindings and the number of workgroups.
"""

from __future__ import annotations

from .block import Block as Block
from .forms import shared_elements as shared_elements
from .kernel import (
    Buffer as Buffer,
    CompiledText as CompiledText,
    Features as Features,
    GpuKernel as GpuKernel,
    KernelProgram as KernelProgram,
    TensorCores as TensorCores,
)
from .lowering import (
    element_for_workgroup as element_for_workgroup,
    kernels as kernels,
    refusal_of as refusal_of,
    scatter as scatter,
)
from .module import GpuModule as GpuModule
from .statements import Local as Local
from .workgroups import Workgroups as Workgroups
