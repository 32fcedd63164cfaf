"""WGSL shaders as kernels."""

from __future__ import annotations

from ...core.graph import Desc
from ...expr.gpu import Features, GpuKernel
from ...expr.gpu.types import computed_type, layout
from ...support.errors import ValidationError
from .declarations import DeclarationScope, entry_of
from .messages import ExplainedWgsl
from .shader import Buffer, Shader
from .sources import SourceKernel


class WgslKernel(SourceKernel):
    """WGSL that computes the results of a node on a WebGPU device."""

    language = "WGSL"
    kind = Shader
    options = "invocations, workgroups, workgroup_size, constants, scratch"
    accepts = "WGSL (a string), an opweave.wgsl.Shader"

    def _buffer(self, name: str, desc: Desc, features: Features) -> Buffer:
        lay = layout(desc.data_type, features)
        return Buffer(name, desc, computed_type(desc.data_type), lay.element, lay.lanes)

    def _kernel(
        self, title: str, shader: Shader, scope: DeclarationScope, out: Buffer, features: Features
    ) -> GpuKernel:
        try:
            entry = entry_of(shader, out, features)
        except ValidationError as error:
            raise ValidationError(f"{title}: {error}{self.where.suffix()}") from None
        rest, bound = scope.module(shader, entry)
        before = "enable f16;\n" if any(item.buffer.element == "f16" for item in bound) else ""
        return GpuKernel(
            title,
            f"{before}{shader.source.rstrip()}\n\n{rest}",
            tuple(item.memory for item in bound),
            tuple(item.writes for item in bound),
            entry.workgroups,
            entry.name,
            ExplainedWgsl(shader, before.count("\n"), self.where, scope.hint),
        )
