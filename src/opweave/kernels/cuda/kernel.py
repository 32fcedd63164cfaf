"""CUDA C++, and launchable objects of other libraries, as kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...core.graph import Desc
from ...expr.gpu import Features, GpuKernel
from ...support.errors import NotSupportedError, ValidationError, require
from ..wgsl.declarations import Bound
from ..wgsl.shader import Buffer, indices_of, sizes
from ..wgsl.sources import SourceKernel
from .launch import Launch, check_launch, is_launched
from .messages import ExplainedCuda
from .source import (
    ENTRY,
    FUNCTIONS,
    HALF,
    NAMESPACE,
    NUMBER,
    OWN,
    SCALARS,
    STRUCTURE,
    TYPES,
    USER,
    CudaBuffer,
    CudaScope,
    Parameter,
    Source,
    line_directive,
)


class _KernelText(NamedTuple):
    name: str
    lines: Sequence[str]
    bound: Sequence[Bound]
    grid: Sequence[int]
    arguments: tuple[int | bytes, ...] = ()


class CudaKernel(SourceKernel):
    """CUDA C++, or objects of other libraries, that compute the results of a node on a CUDA device."""

    language = "CUDA C++"
    kind = Source
    options = "invocations, grid, block, constants, scratch"
    accepts = "CUDA C++ (a string), an opweave.cuda.Source or Launch, a kernel of Triton, CuPy or Numba"
    scope = CudaScope

    def _is_launched(self, source: Any) -> bool:
        return is_launched(source)

    def _source(self, source: Any, **options: Any) -> Any:
        return Launch(source, **options) if is_launched(source) else Source(source, **options)

    def _fits(self, item: Any) -> bool:
        return isinstance(item, (Source, Launch))

    @property
    def detail(self) -> str:
        launched = [shader.title for shader in self.shaders if isinstance(shader, Launch)]
        return ", ".join(launched) if launched else f"{self.language}{self.where.suffix()}"

    def _buffer(self, name: str, desc: Desc, features: Features) -> Buffer:
        return CudaBuffer(name, desc, TYPES[desc.data_type], TYPES[desc.data_type])

    def _kernel(
        self, title: str, shader: Source | Launch, scope: CudaScope, out: Buffer, features: Features
    ) -> GpuKernel:
        try:
            if isinstance(shader, Launch):
                return shader.kernel(title, scope, out, features)
            entry = shader.entry
            text = self._of_elements(shader, scope, out) if entry is None else self._of_entry(shader, scope, *entry)
            return self._kernel_of(title, shader, scope, text, features)
        except ValidationError as error:
            raise ValidationError(f"{title}: {error}{self.where.suffix()}") from None

    def _of_elements(self, source: Source, scope: CudaScope, out: Buffer) -> _KernelText:
        block = sizes(source.block)
        require(len(block) == 1, f"block must be one number for void main, got {list(block)}")
        extents = source.extents(out)
        count = math.prod(extents)
        bound = scope.tensors_of(source.words)
        tensors = ", ".join(item.buffer.variable for item in bound)
        # The functions of the source become members of a structure, so that they see the tensors.
        declarations, ends = self._declarations(source, scope, bound)
        lines = [
            *source.includes,
            *declarations,
            f"struct {STRUCTURE} {{",
            *(f"    {_pointer(item)};" for item in bound),
            line_directive(USER, 1),
            source.body,
            line_directive(OWN, 1),
            "};",
            f'extern "C" __global__ void __launch_bounds__({block[0]}) {ENTRY}({", ".join(map(_pointer, bound))}) {{',
            f"    const unsigned {NUMBER} = blockIdx.x * {block[0]}u + threadIdx.x;",
            f"    if ({NUMBER} < {count}u) {STRUCTURE}{{{tensors}}}.main({', '.join(indices_of(NUMBER, extents))});",
            "}",
            *ends,
        ]
        return _KernelText(ENTRY, lines, bound, (-(-count // block[0]),))

    def _of_entry(self, source: Source, scope: CudaScope, name: str, parameters: Sequence[Parameter]) -> _KernelText:
        """Create the user's own kernel; its parameters are bound by name."""
        tensors = {item.buffer.variable: item for item in scope.bound}
        bound: list[Bound] = []
        arguments: list[int | bytes] = []
        for parameter in parameters:
            if parameter.is_pointer:
                item = tensors.get(parameter.name)
                require(
                    item is not None,
                    f"the parameter {parameter.name} of {name} must have the name of a tensor: {', '.join(tensors)}",
                )
                assert item is not None
                arguments.append(len(bound))
                bound.append(item)
            else:
                arguments.append(_scalar(name, parameter, scope))
        declarations, ends = self._declarations(source, scope, bound)
        lines = [
            *source.includes,
            *declarations,
            line_directive(USER, 1),
            source.body,
            line_directive(OWN, 1),
            *ends,
        ]
        return _KernelText(name, lines, bound, sizes(source.grid or 1), tuple(arguments))

    def _declarations(self, source: Source, scope: CudaScope, bound: Sequence[Bound]) -> tuple[list[str], list[str]]:
        """Declare what a source needs; the second lines end a namespace, which there is if constants hide functions."""
        constants = {name: text for name, text in scope.constants(source).items() if name in source.words}
        has_halves = "f16" in source.words or any(item.buffer.element == "f16" for item in bound)
        begins, ends = ([], []) if FUNCTIONS.isdisjoint(constants) else ([f"namespace {NAMESPACE} {{"], ["}"])
        return [*([HALF] if has_halves else []), *begins, *constants.values()], ends

    def _kernel_of(
        self, title: str, source: Source, scope: CudaScope, text: _KernelText, features: Features
    ) -> GpuKernel:
        block, count = sizes(source.block), len(text.bound)
        check_launch(text.grid, block, features)
        if count > features.max_buffers:
            raise NotSupportedError(f"{title}: it takes {count} tensors, a kernel has {features.max_buffers}")
        x, y, z = (*map(int, text.grid), 1, 1)[:3]
        return GpuKernel(
            title,
            "\n".join(text.lines) + "\n",
            tuple(item.memory for item in text.bound),
            tuple(item.writes for item in text.bound),
            (x, y, z),
            text.name,
            ExplainedCuda(source, self.where, scope.hint),
            tuple(map(int, block)),
            compiler="cuda",
            arguments=text.arguments,
        )


def _pointer(item: Bound) -> str:
    return f"{'' if item.writes else 'const '}{item.buffer.element}* __restrict__ {item.buffer.variable}"


def _scalar(kernel: str, parameter: Parameter, scope: CudaScope) -> bytes:
    value = scope.value(parameter.name)
    require(
        value is not None,
        f"the parameter {parameter.name} of {kernel} must have the name of an attribute that is a number, or of a size",
    )
    type = SCALARS.get(parameter.type)
    require(
        type is not None,
        f"the parameter {parameter.name} of {kernel} must be one of {', '.join(SCALARS)}, or a pointer",
    )
    assert type is not None
    number: np.ndarray = np.array(value).astype(type)
    require(number == value or type in (np.float32, np.float64), f"{parameter.name} is {value!r}, no {parameter.type}")
    return number.tobytes()
