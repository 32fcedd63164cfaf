"""Copies between tensors and textures by shaders, which change the layout, the order of channels and the range of values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ... import memory
from ...core.desc import Desc
from ...support.errors import ValidationError, require
from ...support.names import short_repr
from ..gpu.arrays import DeviceArray

if TYPE_CHECKING:
    from .engine import WebGpuDevice

FORMATS = {
    "rgba8unorm": 4, "rgba8unorm-srgb": 4, "bgra8unorm": 4, "bgra8unorm-srgb": 4, "rgba16float": 4, "rgba32float": 4,
    "rg8unorm": 2, "rg16float": 2, "r8unorm": 1, "r16float": 1, "r32float": 1,
}  # fmt: skip
"""The number of channels of each format that can be sampled and drawn to."""

GRAY = (0.299, 0.587, 0.114)
"""The weights of red, green and blue in a grey value: luma of ITU-R BT.601, as Pillow's mode "L" computes it."""

ELEMENTS_PER_WORD = {"float32": 1, "float16": 2, "uint8": 4}
"""The data types of tensors, with the number of elements in a word of 32 bits."""

GROUP = 64
"""Invocations of a workgroup."""

Layout = Literal["nchw", "nhwc"]


@dataclass(frozen=True)
class Texels:
    """The relation of a tensor's elements to a texture's texels: element = (texel - mean) / std.

    Attributes:
        desc: the tensor's data type and shape.
        layout: "nchw" or "nhwc"; a tensor of three axes has no batch, one of two axes has height and width.
        channels: "gray", or the letters of the channels in order, as in "rgb", "bgra" or "r".
        mean: one number for each channel, in the range of texels, which is 0 to 1 for formats in `unorm`.
        std: like `mean`.
    """

    desc: Desc
    layout: Layout
    channels: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, subject: str, desc: Desc, layout: Any, channels: Any, mean: Any, std: Any) -> Texels:
        """Check the arguments of the caller.

        Raises:
            ValidationError: one of them is not valid, or does not fit the tensor.
        """
        require(
            desc.data_type in ELEMENTS_PER_WORD,
            f"{subject}: a tensor must have one of the data types {', '.join(ELEMENTS_PER_WORD)}, got {desc.data_type}",
        )
        require(layout in ("nchw", "nhwc"), f"{subject}: layout must be 'nchw' or 'nhwc', got {short_repr(layout)}")
        is_letters = isinstance(channels, str) and len(set(channels) & set("rgba")) == len(channels) > 0
        require(
            channels == "gray" or is_letters,
            f"{subject}: channels must be 'gray' or different letters of 'rgba' in some order, got {short_repr(channels)}",
        )
        count = 1 if channels == "gray" else len(channels)
        if std is None:
            std = 1 / 255 if desc.data_type == "uint8" else 1.0
        numbers = {name: _numbers(subject, name, value, count) for name, value in {"mean": mean, "std": std}.items()}
        require(all(numbers["std"]), f"{subject}: std must not be 0, got {short_repr(std)}")
        texels = cls(desc, layout, channels, numbers["mean"], numbers["std"])
        batch, depth, _, _ = texels.sizes
        kept = "[1, channels, height, width]" if layout == "nchw" else "[1, height, width, channels]"
        require(
            len(desc.shape) in (2, 3, 4) and batch == 1 and depth == count,
            f"{subject}: for channels={channels!r} and layout={layout!r}, a tensor has the shape {kept} with {count} for "
            f"channels, the same without the 1, or [height, width] for one channel; got {desc}",
        )
        return texels

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Batch, channels, height and width."""
        shape = tuple(self.desc.shape)
        if len(shape) == 2:
            return 1, 1, shape[0], shape[1]
        batch, *rest = shape if len(shape) == 4 else (1, *shape) if len(shape) == 3 else (0, 0, 0, 0)
        depth, height, width = rest if self.layout == "nchw" else (rest[2], rest[0], rest[1])
        return batch, depth, height, width

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        _, _, height, width = self.sizes
        return width, height

    # WGSL ------------------------------------------------------------------------------------------------------------

    def reading_source(self) -> str:
        """A compute shader whose invocations each make one word of the tensor."""
        count_per_word = ELEMENTS_PER_WORD[self.desc.data_type]
        count = self.desc.element_count
        elements = ", ".join(f"element({count_per_word}u * word + {k}u)" for k in range(count_per_word))
        packed = {
            "float32": f"bitcast<u32>({elements})",
            "float16": f"pack2x16float(vec2f({elements}))",
            "uint8": f"pack4x8unorm(round(clamp(vec4f({elements}), vec4f(0), vec4f(255))) / 255)",
        }[self.desc.data_type]
        value = "dot(texel.rgb, GRAY)" if self.channels == "gray" else "texel[CHANNELS[c]]"
        return f"""
@group(0) @binding(0) var image: texture_2d<f32>;
@group(0) @binding(1) var<storage, read_write> words: array<u32>;
{self._constants()}
fn element(i: u32) -> f32 {{
    if (i >= {count}u) {{ return 0.0; }}
    {self._position_of_index()}
    let texel = textureLoad(image, vec2u(x, y), 0);
    return ({value} - MEAN[c]) / STD[c];
}}

@compute @workgroup_size({GROUP})
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {{
    let word = id.y * groups.x * {GROUP}u + id.x;
    if (word >= {-(-count // count_per_word)}u) {{ return; }}
    words[word] = {packed};
}}
"""

    def drawing_source(self) -> str:
        """Shaders that draw the tensor over a whole texture."""
        element = {
            "float32": "bitcast<f32>(words[i])",
            "float16": "unpack2x16float(words[i / 2u])[i % 2u]",
            "uint8": "f32((words[i / 4u] >> (8u * (i % 4u))) & 0xffu)",
        }[self.desc.data_type]
        letters = "rgb" if self.channels == "gray" else self.channels
        assigned = "\n    ".join(
            f"texel.{letter} = value({0 if self.channels == 'gray' else k}u, x, y);" for k, letter in enumerate(letters)
        )
        return f"""
@group(0) @binding(0) var<storage, read> words: array<u32>;
{self._constants()}
fn value(c: u32, x: u32, y: u32) -> f32 {{
    let i = {self._index_of_position()};
    return {element} * STD[c] + MEAN[c];
}}

@vertex
fn corner(@builtin(vertex_index) k: u32) -> @builtin(position) vec4f {{
    return vec4f(f32(k & 1u) * 4.0 - 1.0, f32(k >> 1u) * 4.0 - 1.0, 0.0, 1.0);
}}

@fragment
fn draw(@builtin(position) at: vec4f) -> @location(0) vec4f {{
    let x = u32(at.x);
    let y = u32(at.y);
    var texel = vec4f(0.0, 0.0, 0.0, 1.0);
    {assigned}
    return texel;
}}
"""

    def _constants(self) -> str:
        places = ", ".join(f"{'rgba'.index(letter)}u" for letter in self.channels if self.channels != "gray") or "0u"
        count = len(self.mean)
        mean, std, gray = (", ".join(map(repr, numbers)) for numbers in (self.mean, self.std, GRAY))
        return (
            f"const CHANNELS = array<u32, {count}>({places});\nconst MEAN = array<f32, {count}>({mean});\n"
            f"const STD = array<f32, {count}>({std});\nconst GRAY = vec3f({gray});\n"
        )

    def _position_of_index(self) -> str:
        _, depth, height, width = self.sizes
        if self.layout == "nchw":
            return f"let x = i % {width}u; let y = i / {width}u % {height}u; let c = i / {width * height}u;"
        return f"let c = i % {depth}u; let x = i / {depth}u % {width}u; let y = i / {depth * width}u;"

    def _index_of_position(self) -> str:
        _, depth, height, width = self.sizes
        return f"(c * {height}u + y) * {width}u + x" if self.layout == "nchw" else f"(y * {width}u + x) * {depth}u + c"


def _numbers(subject: str, name: str, value: Any, count: int) -> tuple[float, ...]:
    values = list(value) if hasattr(value, "__len__") and not isinstance(value, str) else [value] * count
    is_numbers = all(isinstance(item, (int, float, np.number)) for item in values)
    numbers = tuple(float(item) for item in values) if is_numbers else ()
    is_valid = len(numbers) == count and all(math.isfinite(number) and abs(number) < 3.0e38 for number in numbers)
    require(
        is_valid, f"{subject}: {name} must be a number or one for each of {count} channels, got {short_repr(value)}"
    )
    return numbers


def read_texture(engine: WebGpuDevice, target: DeviceArray, texture: Any, texels: Texels, encoder: Any = None) -> None:
    """Compute a tensor's elements from a texture, in the queue or in the caller's command encoder."""
    subject = "copy_from_texture"
    _check_texture(engine, subject, texture, texels, "TEXTURE_BINDING")
    wgpu, device = engine.wgpu, engine.device
    source = texels.reading_source()
    words = -(-target.desc.element_count // ELEMENTS_PER_WORD[target.desc.data_type])
    groups = -(-words // GROUP)
    across = min(groups, engine.features.max_workgroups)
    sampled = {"sample_type": "unfilterable-float", "view_dimension": "2d"}
    engine.check_lent([target])

    def compile_shader() -> tuple[Any, Any]:
        kinds = [{"texture": sampled}, {"buffer": {"type": "storage"}}]
        group, layout = engine.bindings(wgpu.ShaderStage.COMPUTE, kinds)
        module = device.create_shader_module(label=subject, code=source)
        compute = {"module": module, "entry_point": "main"}
        return device.create_compute_pipeline(layout=layout, compute=compute), group

    def record(commands: Any) -> None:
        entries = [
            {"binding": 0, "resource": _view(texture)},
            {"binding": 1, "resource": {"buffer": target.buffer, "offset": 0, "size": words * 4}},
        ]
        compute = commands.begin_compute_pass(label=subject)
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, device.create_bind_group(layout=group, entries=entries))
        compute.dispatch_workgroups(across, -(-groups // across), 1)
        compute.end()

    with engine.calls(subject):
        pipeline, group = engine.compiled.make(source, compile_shader, lambda _: engine.pipeline_bytes(source))
    engine.record(subject, record, encoder)
    memory.copies.add(target.nbytes, subject)


def draw_texture(engine: WebGpuDevice, source: DeviceArray, texture: Any, texels: Texels, encoder: Any = None) -> None:
    """Draw a tensor's elements over a texture, in the queue or in the caller's command encoder."""
    subject = "copy_to_texture"
    _check_texture(engine, subject, texture, texels, "RENDER_ATTACHMENT")
    wgpu, device = engine.wgpu, engine.device
    code = texels.drawing_source()
    size = -(-source.desc.element_count // ELEMENTS_PER_WORD[source.desc.data_type]) * 4
    engine.check_lent([source])

    def compile_shader() -> tuple[Any, Any]:
        group, layout = engine.bindings(wgpu.ShaderStage.FRAGMENT, [{"buffer": {"type": "read-only-storage"}}])
        module = device.create_shader_module(label=subject, code=code)
        drawing = device.create_render_pipeline(
            layout=layout,
            vertex={"module": module, "entry_point": "corner"},
            primitive={"topology": "triangle-list"},
            fragment={"module": module, "entry_point": "draw", "targets": [{"format": texture.format}]},
        )
        return drawing, group

    def record(commands: Any) -> None:
        entries = [{"binding": 0, "resource": {"buffer": source.buffer, "offset": 0, "size": size}}]
        drawing = commands.begin_render_pass(
            label=subject,
            color_attachments=[
                {"view": _view(texture), "load_op": "clear", "store_op": "store", "clear_value": (0, 0, 0, 1)}
            ],
        )
        drawing.set_pipeline(pipeline)
        drawing.set_bind_group(0, device.create_bind_group(layout=group, entries=entries))
        drawing.draw(3)
        drawing.end()

    with engine.calls(subject):
        key = f"{texture.format}\n{code}"
        pipeline, group = engine.compiled.make(key, compile_shader, lambda _: engine.pipeline_bytes(code))
    engine.record(subject, record, encoder)
    memory.copies.add(source.nbytes, subject)


def texture_shape(engine: WebGpuDevice, subject: str, texture: Any, layout: Any, channels: Any) -> tuple[int, ...]:
    """The shape of a tensor for a texture."""
    _require_texture(engine, subject, texture)
    depth = 1 if channels == "gray" else len(channels) if isinstance(channels, str) else 0
    width, height = texture.width, texture.height
    return (1, depth, height, width) if layout == "nchw" else (1, height, width, depth)


def _view(texture: Any) -> Any:
    """The first mip level of the first layer."""
    return texture.create_view(
        dimension="2d", base_mip_level=0, mip_level_count=1, base_array_layer=0, array_layer_count=1
    )


def _require_texture(engine: WebGpuDevice, subject: str, texture: Any) -> None:
    is_texture = isinstance(texture, engine.wgpu.GPUTexture)
    require(is_texture, f"{subject}: texture must be a GPUTexture, got {type(texture).__name__}")
    require(engine.has_made(texture), f"{subject}: the texture belongs to another GPUDevice than the context")


def _check_texture(engine: WebGpuDevice, subject: str, texture: Any, texels: Texels, usage: str) -> None:
    _require_texture(engine, subject, texture)
    require(
        texture.format in FORMATS and texture.dimension == "2d" and texture.sample_count == 1,
        f"{subject}: the texture must be 2d, with one sample a pixel and one of the formats {', '.join(FORMATS)}; got "
        f"{texture.dimension}, {texture.sample_count} samples, {texture.format}",
    )
    flag = getattr(engine.wgpu.TextureUsage, usage)
    require(bool(texture.usage & flag), f"{subject}: the texture must have the usage {usage}, got {texture.usage:#x}")
    size = texture.width, texture.height
    if size != texels.size:
        raise ValidationError(
            f"{subject}: the texture has {size[0]} x {size[1]} pixels, and the tensor {texels.desc} "
            f"{texels.size[0]} x {texels.size[1]}; resample2d in the graph makes another size"
        )


def check_encoder(engine: WebGpuDevice, subject: str, encoder: Any) -> None:
    """Require a command encoder of the device.

    Raises:
        ValidationError: it is something else, or belongs to another device.
    """
    is_encoder = isinstance(encoder, engine.wgpu.GPUCommandEncoder)
    require(is_encoder, f"{subject}: encoder must be a GPUCommandEncoder, got {type(encoder).__name__}")
    require(engine.has_made(encoder), f"{subject}: the encoder belongs to another GPUDevice than the context")


def check_timestamps(engine: WebGpuDevice, subject: str, timestamps: Any) -> None:
    """Require a `timestampWrites` of WebGPU (https://www.w3.org/TR/webgpu/#dictdef-gpucomputepasstimestampwrites).

    Raises:
        ValidationError: it is something else, or the device has no timestamps.
    """
    ends = {"beginning_of_pass_write_index", "end_of_pass_write_index"}
    fits = isinstance(timestamps, Mapping) and {"query_set"} < set(timestamps) <= {"query_set", *ends}
    require(
        fits,
        f"{subject}: pass_timestamps must have a query_set, and {' or '.join(sorted(ends))} or both, got "
        f"{short_repr(timestamps)}",
    )
    queries = timestamps["query_set"]
    is_own = isinstance(queries, engine.wgpu.GPUQuerySet) and engine.has_made(queries)
    require(is_own, f"{subject}: query_set must be a GPUQuerySet of the context's device, got {type(queries).__name__}")
    require(engine.has_timestamps, f"{subject}: the device was requested without the feature 'timestamp-query'")
    for name in ends & set(timestamps):
        index = timestamps[name]
        require(
            isinstance(index, int) and not isinstance(index, bool) and 0 <= index < queries.count,
            f"{subject}: {name} must be in [0, {queries.count}), got {short_repr(index)}",
        )
