"""Copies between tensors and textures, and graphs in the caller's command encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.webgpu_device import gpu_context

import opweave as ow

wgpu = pytest.importorskip("wgpu", reason="wgpu is not installed")

WIDTH, HEIGHT = 19, 7
"""Odd, so that words of float16 and uint8 have elements of two rows."""

DTYPES = {"unorm": np.uint8, "r8": np.uint8, "16float": np.float16, "32float": np.float32}


def dtype_of(texture_format: str) -> Any:
    return next(dtype for part, dtype in DTYPES.items() if part in texture_format)


def channels_of(texture_format: str) -> str:
    letters = texture_format.split("8")[0].split("16")[0].split("32")[0]
    return "".join(letter for letter in letters if letter in "rgba")


def make_texture(device: Any, texture_format: str, size: tuple[int, int] = (WIDTH, HEIGHT), **options: Any) -> Any:
    usage = wgpu.TextureUsage
    flags = usage.TEXTURE_BINDING | usage.COPY_SRC | usage.COPY_DST | usage.RENDER_ATTACHMENT
    options = {"usage": flags, **options}
    return device.create_texture(size=(*size, 1), format=texture_format, **options)


def write_texture(device: Any, texture: Any, texels: np.ndarray) -> None:
    height, width = texels.shape[:2]
    row = texels.nbytes // height
    device.queue.write_texture(
        {"texture": texture}, np.ascontiguousarray(texels), {"bytes_per_row": row}, (width, height, 1)
    )


def read_texture(device: Any, texture: Any) -> np.ndarray:
    """The texels of a texture, with red, green, blue and alpha in the order of its format."""
    dtype, count = dtype_of(texture.format), len(channels_of(texture.format))
    pitch = -(-texture.width * count * np.dtype(dtype).itemsize // 256) * 256
    raw = device.queue.read_texture({"texture": texture}, {"bytes_per_row": pitch}, (texture.width, texture.height, 1))
    rows = np.frombuffer(raw, np.uint8).reshape(texture.height, -1)
    rows = rows[:, : texture.width * count * np.dtype(dtype).itemsize]
    return np.ascontiguousarray(rows).view(dtype).reshape(texture.height, texture.width, count)


def random_texels(texture_format: str) -> np.ndarray:
    random, dtype, count = np.random.default_rng(3), dtype_of(texture_format), len(channels_of(texture_format))
    if dtype is np.uint8:
        return random.integers(0, 256, (HEIGHT, WIDTH, count), dtype=np.uint8)
    return random.uniform(-2, 3, (HEIGHT, WIDTH, count)).astype(dtype)


def seen_by_shaders(texels: np.ndarray, texture_format: str) -> np.ndarray:
    """Red, green, blue and alpha of each texel, as shaders read them."""
    rgba = np.zeros((*texels.shape[:2], 4), np.float32)
    rgba[..., 3] = 1
    values = texels.astype(np.float32) / (255 if texels.dtype == np.uint8 else 1)
    for k, letter in enumerate(channels_of(texture_format)):
        rgba[..., "rgba".index(letter)] = values[..., k]
    return rgba


def expected(texels: np.ndarray, texture_format: str, layout: str, channels: str, mean: Any, std: Any) -> np.ndarray:
    rgba = seen_by_shaders(texels, texture_format)
    if channels == "gray":
        chosen = (rgba[..., :3] @ np.array([0.299, 0.587, 0.114], np.float32))[..., None]
    else:
        chosen = rgba[..., ["rgba".index(letter) for letter in channels]]
    elements = (chosen - np.float32(mean)) / np.float32(std)
    return elements[None] if layout == "nhwc" else elements.transpose(2, 0, 1)[None]


@pytest.fixture(scope="module")
def context() -> ow.MLContext:
    return gpu_context()


@pytest.mark.parametrize("data_type", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("texture_format", "channels"),
    [("rgba8unorm", "rgb"), ("bgra8unorm", "rgba"), ("rgba16float", "bgr"), ("r32float", "r"), ("rg8unorm", "gr"),
     ("rgba8unorm", "gray"), ("r32float", "rgba")],
)  # fmt: skip
def test_tensor_from_texture(
    context: ow.MLContext, texture_format: str, channels: str, layout: Any, data_type: Any
) -> None:
    device: Any = context.backend.space.device
    texture, texels = make_texture(device, texture_format), random_texels(texture_format)
    write_texture(device, texture, texels)
    count = 1 if channels == "gray" else len(channels)
    mean = [0.1, 0.2, 0.3, 0.4][:count]
    std = [1 / 255, 1 / 200, 1 / 100, 1 / 50][:count] if data_type == "uint8" else [0.5, 2.0, -1.0, 0.25][:count]
    ow.memory.copies.reset()
    tensor = context.tensor_from_texture(texture, data_type, layout=layout, channels=channels, mean=mean, std=std)
    assert ow.memory.copies.count == 1  # on the device
    want = expected(texels, texture_format, layout, channels, mean, std)
    values = context.read_tensor(tensor).astype("float32")
    assert tensor.shape == want.shape
    if data_type == "uint8":
        assert np.abs(values - np.clip(want, 0, 255)).max() < 0.51
    else:
        np.testing.assert_allclose(values, want, rtol=2e-3 if data_type == "float16" else 1e-5, atol=2e-3)


@pytest.mark.parametrize("data_type", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("texture_format", "channels"),
    [("rgba8unorm", "rgb"), ("bgra8unorm", "rgba"), ("rgba16float", "bgra"), ("r32float", "r"), ("rgba8unorm", "gray")],
)
def test_copies_to_a_texture_and_back_keep_the_picture(
    context: ow.MLContext, texture_format: str, channels: str, layout: Any, data_type: Any
) -> None:
    device: Any = context.backend.space.device
    count = 1 if channels == "gray" else len(channels)
    random = np.random.default_rng(5)
    shape = (1, count, HEIGHT, WIDTH) if layout == "nchw" else (1, HEIGHT, WIDTH, count)
    values = random.integers(0, 256, shape).astype(data_type)
    numbers: dict[str, Any] = {"layout": layout, "channels": channels, "std": 1 / 255}
    tensor = context.create_tensor(data_type, shape, readable=True, writable=True)
    context.write_tensor(tensor, values)
    texture = make_texture(device, texture_format)
    tensor.copy_to_texture(texture, **numbers)

    shown = seen_by_shaders(read_texture(device, texture), texture_format)
    letters = "rgb" if channels == "gray" else channels
    pixels = values[0].astype("float32") / 255
    pixels = pixels.transpose(1, 2, 0) if layout == "nchw" else pixels
    want = np.zeros((HEIGHT, WIDTH, 4), np.float32)
    want[..., 3] = 1
    for k, letter in enumerate(letters):
        want[..., "rgba".index(letter)] = pixels[..., 0 if channels == "gray" else k]
    np.testing.assert_allclose(shown, want, atol=1e-3)

    tensor.copy_from_texture(texture, **numbers)
    np.testing.assert_allclose(context.read_tensor(tensor).astype("float32"), values.astype("float32"), atol=0.13)


@pytest.mark.parametrize("shape", [(3, HEIGHT, WIDTH), (1, 3, HEIGHT, WIDTH)])
def test_tensors_of_three_axes_have_no_batch(context: ow.MLContext, shape: tuple[int, ...]) -> None:
    device: Any = context.backend.space.device
    texture, texels = make_texture(device, "rgba8unorm"), random_texels("rgba8unorm")
    write_texture(device, texture, texels)
    tensor = context.create_tensor("float32", shape, readable=True)
    tensor.copy_from_texture(texture)
    want = texels[..., :3].transpose(2, 0, 1) / np.float32(255)
    np.testing.assert_allclose(context.read_tensor(tensor).reshape(want.shape), want, atol=1e-6)


def test_large_textures_take_several_rows_of_workgroups(context: ow.MLContext) -> None:
    device: Any = context.backend.space.device
    side = 2048 + 64  # more than 65,535 workgroups of 64
    texture = make_texture(device, "r8unorm", (side, side))
    texels = np.random.default_rng(0).integers(0, 256, (side, side, 1), dtype=np.uint8)
    write_texture(device, texture, texels)
    tensor = context.tensor_from_texture(texture, channels="r", std=1 / 255)
    assert np.array_equal(np.rint(context.read_tensor(tensor))[0, 0], texels[..., 0])


def doubled(context: ow.MLContext, shape: Any) -> Any:
    builder = ow.MLGraphBuilder(context)
    return builder.build({"y": builder.input("x", "float32", shape).add(builder.constant("float32", 0.25))})


def test_dispatch_into_an_encoder_runs_when_it_is_submitted(context: ow.MLContext) -> None:
    device: Any = context.backend.space.device
    shape = (1, 4, HEIGHT, WIDTH)
    source, target = make_texture(device, "rgba8unorm"), make_texture(device, "rgba16float")
    texels = random_texels("rgba8unorm")
    write_texture(device, source, texels)
    x, y = (context.create_tensor("float32", shape, readable=True) for _ in range(2))
    graph = doubled(context, shape)

    encoder = device.create_command_encoder()
    x.copy_from_texture(source, channels="rgba", encoder=encoder)
    for _ in range(2):  # a graph may be added several times
        context.dispatch(graph, {"x": x}, {"y": y}, encoder=encoder)
    y.copy_to_texture(target, channels="rgba", encoder=encoder)
    assert not context.read_tensor(y).any()  # nothing has run
    context.dispatch(graph, {"x": y}, {"y": x})  # and others may run before
    device.queue.submit([encoder.finish()])

    want = texels / np.float32(255) + 0.25
    np.testing.assert_allclose(read_texture(device, target).astype("float32"), want, atol=2e-3)


def test_dispatch_writes_timestamps_of_the_pass(context: ow.MLContext) -> None:
    device: Any = context.backend.space.device
    if "timestamp-query" not in device.features:
        pytest.skip("the adapter lacks timestamp-query")
    x, y = (context.create_tensor("float32", (64, 64), readable=True) for _ in range(2))
    queries = device.create_query_set(type="timestamp", count=4)
    times = device.create_buffer(size=32, usage=wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC)
    encoder = device.create_command_encoder()
    stamps = {"query_set": queries, "beginning_of_pass_write_index": 1, "end_of_pass_write_index": 3}
    context.dispatch(doubled(context, (64, 64)), {"x": x}, {"y": y}, encoder=encoder, pass_timestamps=stamps)
    encoder.resolve_query_set(queries, 0, 4, times, 0)
    device.queue.submit([encoder.finish()])
    _, begin, _, end = np.frombuffer(device.queue.read_buffer(times), np.uint64)
    assert 0 < begin <= end
    for bad, message in (
        ({"query_set": queries}, "pass_timestamps must have a query_set, and"),
        ({**stamps, "end_of_pass_write_index": 4}, r"end_of_pass_write_index must be in \[0, 4\), got 4"),
        ({**stamps, "query_set": None}, "query_set must be a GPUQuerySet of the context's device, got NoneType"),
    ):
        encoder = device.create_command_encoder()
        with pytest.raises(ow.ValidationError, match=message):
            context.dispatch(
                doubled(context, (64, 64)),
                {"x": x},
                {"y": y},
                encoder=encoder,
                pass_timestamps=bad,  # type: ignore[arg-type]
            )
    with pytest.raises(ow.ValidationError, match="pass_timestamps needs an encoder"):
        context.dispatch(doubled(context, (64, 64)), {"x": x}, {"y": y}, pass_timestamps=stamps)


def test_encoders_that_do_not_fit(context: ow.MLContext, device: Any) -> None:
    x, y = (context.create_tensor("float32", (4,)) for _ in range(2))
    graph = doubled(context, (4,))
    for encoder, message in (
        ("encoder", "encoder must be a GPUCommandEncoder, got str"),
        (device.create_command_encoder(), "the encoder belongs to another GPUDevice than the context"),
    ):
        with pytest.raises(ow.ValidationError, match=message):
            context.dispatch(graph, {"x": x}, {"y": y}, encoder=encoder)
    finished = context.backend.space.device.create_command_encoder()
    finished.finish()
    with pytest.raises(ow.OperationError, match=r"dispatch: .*Encoding must not have ended"):
        context.dispatch(graph, {"x": x}, {"y": y}, encoder=finished)
    host = ow.ml.create_context(device="reference")
    a, b = (host.create_tensor("float32", (4,)) for _ in range(2))
    with pytest.raises(
        ow.NotSupportedError, match=r"dispatch: encoder needs a graph that is one part, on a WebGPU device"
    ):
        host.dispatch(doubled(host, (4,)), {"x": a}, {"y": b}, encoder=finished)


@ow.op
def on_the_host(self: Any, x: ow.MLOperand) -> Any:
    return x.desc


@on_the_host.kernel("cpu")
def _(x: Any, out: Any) -> None:
    out[...] = x


def test_graphs_with_parts_on_the_host_are_not_encoded(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": on_the_host(builder.input("x", "float32", [4]).relu(), label="mine").neg()})
    x, y = (context.create_tensor("float32", (4,)) for _ in range(2))
    encoder = context.backend.space.device.create_command_encoder()
    with pytest.raises(ow.NotSupportedError, match=r"on_the_host 'mine' runs on the CPU"):
        context.dispatch(graph, {"x": x}, {"y": y}, encoder=encoder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "chw"}, r"layout must be 'nchw' or 'nhwc', got 'chw'"),
        ({"channels": "rgx"}, r"channels must be 'gray' or different letters of 'rgba' in some order, got 'rgx'"),
        ({"channels": "rr"}, r"channels must be 'gray' or different letters"),
        (
            {"channels": "rg"},
            r"for channels='rg' and layout='nchw', a tensor has the shape \[1, channels, height, width\] with 2 for channels",
        ),
        ({"std": 0}, r"std must not be 0"),
        ({"std": [1, 2]}, r"std must be a number or one for each of 3 channels, got \[1, 2\]"),
        ({"mean": float("nan")}, r"mean must be a number or one for each of 3 channels, got nan"),
        ({"mean": "0.5"}, r"mean must be a number"),
    ],
)
def test_arguments_that_do_not_fit(context: ow.MLContext, options: dict[str, Any], message: str) -> None:
    texture = make_texture(context.backend.space.device, "rgba8unorm")
    tensor = context.create_tensor("float32", (1, 3, HEIGHT, WIDTH))
    for subject in ("copy_from_texture", "copy_to_texture"):
        with pytest.raises(ow.ValidationError, match=f"{subject}: .*{message}"):
            getattr(tensor, subject)(texture, **options)


def test_textures_that_do_not_fit(context: ow.MLContext, device: Any) -> None:
    own: Any = context.backend.space.device
    tensor = context.create_tensor("float32", (1, 3, HEIGHT, WIDTH))
    usage = wgpu.TextureUsage
    for texture, message in (
        (np.zeros((HEIGHT, WIDTH, 4)), "texture must be a GPUTexture, got ndarray"),
        (make_texture(device, "rgba8unorm"), "the texture belongs to another GPUDevice than the context"),
        (make_texture(own, "rgba8uint"), "one of the formats .*; got 2d, 1 samples, rgba8uint"),
        (
            make_texture(own, "rgba8unorm", (WIDTH, HEIGHT + 1)),
            "the texture has 19 x 8 pixels, and the tensor .* 19 x 7",
        ),
        (
            make_texture(own, "rgba8unorm", usage=usage.COPY_DST),
            "the texture must have the usage TEXTURE_BINDING, got 0x2",
        ),
    ):
        with pytest.raises(ow.ValidationError, match=f"copy_from_texture: .*{message}"):
            tensor.copy_from_texture(texture)
    with pytest.raises(ow.ValidationError, match="copy_to_texture: the texture must have the usage RENDER_ATTACHMENT"):
        tensor.copy_to_texture(make_texture(own, "rgba8unorm", usage=usage.TEXTURE_BINDING))
    with pytest.raises(ow.ValidationError, match="tensor_from_texture copies one, on the device"):
        context.tensor_from(make_texture(own, "rgba8unorm"), "float32", (1, 3, HEIGHT, WIDTH))
    integers = context.create_tensor("int32", (1, 3, HEIGHT, WIDTH))
    with pytest.raises(ow.ValidationError, match="one of the data types float32, float16, uint8, got int32"):
        integers.copy_from_texture(make_texture(own, "rgba8unorm"))


def test_textures_need_a_webgpu_device(context: ow.MLContext) -> None:
    texture = make_texture(context.backend.space.device, "rgba8unorm")
    host = ow.ml.create_context(device="reference")
    tensor = host.create_tensor("float32", (1, 3, HEIGHT, WIDTH))
    with pytest.raises(ow.NotSupportedError, match=r"copy_to_texture: the tensor float32.* is on reference"):
        tensor.copy_to_texture(texture)
    with pytest.raises(
        ow.NotSupportedError, match=r"tensor_from_texture: the context is on reference, not on a WebGPU"
    ):
        host.tensor_from_texture(texture)
    exported = context.create_tensor("float32", (1, 3, HEIGHT, WIDTH))
    with context.export_to_gpu(exported), pytest.raises(ow.InvalidStateError, match="is exported to the GPU"):
        exported.copy_from_texture(texture)
