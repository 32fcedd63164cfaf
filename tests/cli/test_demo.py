"""The demo: its network, its weights, its pictures, its errors."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from rich.console import Console

import opweave as ow
from opweave.demo import run
from opweave.errors import DataError, MissingExtraError
from opweave.expr import kernels

pytest.importorskip("PIL", reason="the demo's pictures need Pillow (extra demo)")
pytest.importorskip("safetensors", reason="the demo's weights need safetensors (extra demo)")

from PIL import Image

from opweave.demo import colours, enlarger, expressions, job, network, picture, sheet, timing

RANDOM = np.random.default_rng(3)
QUIET = Console(quiet=True)


def photograph(width: int, height: int) -> NDArray[np.uint8]:
    """A cut of the committed photograph, so that odd pictures have real content."""
    with Image.open(job.PHOTO) as image:
        return np.asarray(image.resize((width, height)))


def noise(height: int, width: int) -> NDArray[np.uint8]:
    """Pixels of all colours, which are harder than those of photographs: half of the results are clipped."""
    return RANDOM.integers(0, 256, (height, width, 3), np.uint8)


def check_alike(picture: NDArray[np.uint8], expected: NDArray[np.uint8]) -> None:
    """Both are equal, but for a few levels that lie so near to the middle of two that they are rounded to the other."""
    assert (picture.dtype, picture.shape) == (expected.dtype, expected.shape)
    difference = np.abs(picture.astype(int) - expected)
    assert difference.max() <= 1
    assert np.count_nonzero(difference) <= 1 + picture.size // 5000


def choose(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let something run expressions from now on, those that are known already, too."""
    monkeypatch.setenv(kernels.ENGINE_VARIABLE, engine)
    kernels.is_compiled.cache_clear()
    for op in (expressions.luma, expressions.chroma, expressions.merged):
        op.forget_calls()


@pytest.fixture(params=["halide", "numpy"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each of what can run expressions."""
    if request.param == "halide" and not kernels.has_halide():
        pytest.skip("the extra halide is not installed")
    choose(request.param, monkeypatch)
    yield request.param
    monkeypatch.undo()
    kernels.is_compiled.cache_clear()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For tests about files: nothing is compiled for each size of picture, and little is measured."""
    choose("numpy", monkeypatch)
    monkeypatch.setattr(timing, "SECONDS", 0)
    yield
    monkeypatch.undo()
    kernels.is_compiled.cache_clear()


# The network ----------------------------------------------------------------------------------------------------------


def computed_with_numpy(luma: NDArray[np.float32]) -> NDArray[np.float64]:
    """The same network written down a second time, in NumPy and float64, without padding tricks or graph."""

    def convolve(x: NDArray[np.float64], weight: NDArray[np.float32]) -> NDArray[np.float64]:
        windows = sliding_window_view(x, weight.shape[2:], axis=(1, 2))
        return np.asarray(np.einsum("ihwyx,oiyx->ohw", windows, weight.astype(np.float64), optimize=True))

    layers = network.Network.load().layers
    halo = sum(len(weight[0, 0]) // 2 for weight, _ in layers)
    padded = np.pad(luma.astype(np.float64), halo, "edge")[None]
    detail = padded
    for index, (weight, bias) in enumerate(layers):
        detail = convolve(detail, weight) + bias[:, None, None]
        if index < len(layers) - 1:
            detail = np.where(detail < 0, 0.1 * detail, detail)
    blocks = detail + convolve(padded[:, halo - 2 : 2 - halo, halo - 2 : 2 - halo], network.bicubic_filter())
    height, width = luma.shape
    large = np.empty((3 * height, 3 * width))
    for row in range(3):
        for column in range(3):
            large[row::3, column::3] = blocks[3 * row + column]
    return large


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 9), (17, 11)])
def test_network_equals_the_same_written_in_numpy(height: int, width: int) -> None:
    luma = RANDOM.random((height, width), np.float32)
    context = ow.ml.create_context()
    graph = enlarger.AroundNetwork(context, height, width).graph
    padded = np.pad(luma, network.Network.load().halo, "edge")[None, None]
    large = context.compute(graph, {"small": padded})["large"]
    np.testing.assert_allclose(large, computed_with_numpy(luma), atol=1e-5)


def test_bicubic_filter_is_pillows() -> None:
    luma = RANDOM.random((12, 10), np.float32)
    windows = sliding_window_view(luma, (5, 5))
    blocks = np.einsum("hwyx,kyx->hwk", windows, network.bicubic_filter()[:, 0]).reshape(8, 6, 3, 3)
    ours = blocks.transpose(0, 2, 1, 3).reshape(24, 18)
    np.testing.assert_allclose(ours, colours.bicubic(luma, 30, 36)[6:-6, 6:-6], atol=1e-6)


# The expressions around it --------------------------------------------------------------------------------------------


SIZES = [(1, 1), (1, 6), (2, 9), (17, 11), (40, 61)]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_luma_is_the_first_plane_of_split_and_goes_on_beyond_its_edges(height: int, width: int) -> None:
    rgb = noise(height, width)
    plane, *_ = colours.split(rgb)
    for margin in (0, 7):
        luma = expressions.luma(rgb, colours.TO_YCBCR, margin=margin)
        np.testing.assert_allclose(luma[0, 0], np.pad(plane, margin, "edge"), atol=1e-6)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_chroma_is_what_pillow_makes_of_it_edges_included(height: int, width: int) -> None:
    rgb = noise(height, width)
    blocks = expressions.chroma(rgb, colours.TO_YCBCR, network.bicubic_taps())
    planes = blocks.transpose(0, 3, 1, 4, 2).reshape(2, 3 * height, 3 * width)
    for plane, small in zip(planes, colours.split(rgb)[1:], strict=True):
        np.testing.assert_allclose(plane, colours.bicubic(small, 3 * width, 3 * height), atol=1e-6)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_merged_is_merge_with_each_pixel_in_its_place(height: int, width: int) -> None:
    luma = RANDOM.uniform(-0.2, 1.2, (1, 9, height, width)).astype(np.float32)
    chroma = RANDOM.uniform(-0.5, 0.5, (2, 3, 3, height, width)).astype(np.float32)
    large = np.empty((3 * height, 3 * width, 3), np.uint8)
    for row in range(3):
        for column in range(3):
            planes = luma[0, 3 * row + column], chroma[0, row, column], chroma[1, row, column]
            large[row::3, column::3] = colours.merge(*planes)
    check_alike(expressions.merged(luma, chroma, colours.FROM_YCBCR), large)


@pytest.mark.parametrize("source", ["noise", "photograph"])
@pytest.mark.parametrize(("height", "width"), [*SIZES, (120, 90)])
def test_one_graph_gives_what_numpy_around_the_network_gives(height: int, width: int, source: str, engine: str) -> None:
    rgb = noise(height, width) if source == "noise" else photograph(width, height)
    context = ow.ml.create_context()
    whole = enlarger.Enlarger(context, height, width)
    assert whole.expressions.lower().startswith(engine)
    check_alike(whole(rgb), enlarger.AroundNetwork(context, height, width)(rgb))


def test_the_network_lies_between_expressions() -> None:
    whole = enlarger.Enlarger(ow.ml.create_context(), 20, 20)
    runs = [(p.node, p.how, p.segment) for p in whole.graph.placements()]
    assert [run for run in runs if run[1] == "expression"] == [
        ("luma", "expression", 0), ("chroma", "expression", 2), ("merged", "expression", 3)
    ]  # fmt: skip
    others = [(how, segment) for _, how, segment in runs if how != "expression"]
    assert len(others) > 10
    assert set(others) == {("native", 1)}


@pytest.mark.usefixtures("engine")
def test_pixels_are_read_and_written_where_they_are() -> None:
    context = ow.ml.create_context()
    whole = enlarger.Enlarger(context, 20, 30)
    rgb, large = photograph(30, 20).copy(), np.zeros((60, 90, 3), np.uint8)
    ow.memory.copies.reset()
    source, target = context.tensor_from(rgb), context.tensor_from(large)
    assert source.numpy().ctypes.data == rgb.ctypes.data
    assert target.numpy().ctypes.data == large.ctypes.data
    for pixels in (rgb, 255 - rgb):
        rgb[...] = pixels
        context.dispatch(whole.graph, {"small": source}, {"large": target})
        assert ow.memory.copies.count == 0
        check_alike(large, enlarger.AroundNetwork(context, 20, 30)(rgb))
        ow.memory.copies.reset()


# Windows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 20, 21, 22, 40, 41, 100])
@pytest.mark.parametrize("tile", [1, 6, 13])
def test_windows_give_each_pixel_once_and_never_one_that_their_edges_disturb(size: int, tile: int) -> None:
    margin = 7
    window = min(size, tile + 2 * margin)
    taken: list[int] = []
    for start, pixels in enlarger.spans(size, window, margin):
        assert 0 <= start <= size - window
        assert pixels.start - start >= margin or start == 0
        assert start + window - pixels.stop >= margin or start + window == size
        taken += pixels
    assert taken == list(range(size))


@pytest.mark.parametrize(("height", "width", "windows"), [(40, 30, 3), (33, 47, 9), (5, 50, 4)])
def test_windows_leave_no_seams(height: int, width: int, windows: int) -> None:
    context = ow.ml.create_context()
    divided, whole = (enlarger.Enlarger(context, height, width, tile=side) for side in (16, 512))
    assert (divided.windows, whole.windows) == (windows, 1)
    rgb, counts = noise(height, width), list[int]()
    check_alike(divided(rgb, counts.append), whole(rgb))
    assert counts == list(range(1, windows + 1))


def test_a_picture_of_one_window_is_not_copied() -> None:
    whole = enlarger.Enlarger(ow.ml.create_context(), 20, 20)
    ow.memory.copies.reset()
    whole(noise(20, 20))
    assert ow.memory.copies.count == 0


def test_copies_of_windows_are_counted() -> None:
    divided = enlarger.Enlarger(ow.ml.create_context(), 40, 40, tile=20)
    ow.memory.copies.reset()
    divided(noise(40, 40))
    assert ow.memory.copies.by_reason["make contiguous"].count == 4
    assert ow.memory.copies.by_reason["place a window"].count == 4


def test_both_ways_are_timed_on_the_same_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ow.ml.create_context()
    divided = enlarger.Enlarger(context, 40, 30, tile=16)
    seen: list[NDArray[np.uint8]] = []
    call = enlarger.AroundNetwork.__call__

    def watched(self: enlarger.AroundNetwork, rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
        seen.append(rgb)
        return call(self, rgb)

    monkeypatch.setattr(enlarger.AroundNetwork, "__call__", watched)
    rgb = photograph(30, 40)
    found = timing.compare(context, divided, rgb)
    assert list(found.steps) == ["luma", "network", "chroma", "merged"]
    assert 0 < sum(found.steps.values()) < 3 * found.woven
    assert len(seen) == 2 + found.rounds
    np.testing.assert_array_equal(seen[0], rgb[:30])
    assert str(found).endswith(f"({found.around / found.woven:.2f}x), of one window")


# The weights ----------------------------------------------------------------------------------------------------------


def test_weights_are_small_and_tell_how_they_were_made() -> None:
    assert network.WEIGHTS.stat().st_size < 300_000
    metadata = network.Network.load().metadata
    assert metadata["made_by"] == "tools/train_super_resolution.py"
    assert {"architecture", "training", "versions"} <= metadata.keys()
    assert {"seed", "steps"} <= json.loads(metadata["training"]).keys()
    held_out, trained_on = json.loads(metadata["held_out"]), json.loads(metadata["trained_on"])
    assert len(held_out) >= 3
    assert not set(held_out) & set(trained_on)
    assert job.PHOTO.stem in {Path(name).stem for name in held_out}


@pytest.mark.parametrize("name", ["astronaut.png", "chelsea.png", "rocket.jpg"])
def test_network_beats_bicubic_on_every_held_out_photograph(name: str) -> None:
    """By half a decibel of luma, by scikit-image's measures."""
    color = pytest.importorskip("skimage.color", reason="scikit-image is not installed")
    from skimage.metrics import peak_signal_noise_ratio

    metadata = network.Network.load().metadata
    assert name in json.loads(metadata["held_out"])
    with (files("skimage.data") / name).open("rb") as file, Image.open(file) as image:
        width, height = (size // 3 * 3 for size in image.size)
        original = image.convert("RGB").crop((0, 0, width, height))
    small = original.resize((width // 3, height // 3), Image.Resampling.BICUBIC)
    plain = small.resize(original.size, Image.Resampling.BICUBIC)
    large = enlarger.Enlarger(ow.ml.create_context(device="cpu"), height // 3, width // 3)(np.asarray(small))

    def decibels(picture: Any) -> float:
        luma, wanted = (color.rgb2ycbcr(np.asarray(each))[..., 0] for each in (picture, original))
        return float(peak_signal_noise_ratio(wanted, luma, data_range=255))

    assert decibels(large) > decibels(plain) + 0.5


# The whole job --------------------------------------------------------------------------------------------------------


def test_demo_wins_by_a_decibel_and_a_half_on_its_own_photograph(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), record=True, width=100)
    report = run(None, tmp_path / "sheet.png", console=console)
    assert report.psnr_bicubic is not None
    assert report.psnr_network is not None
    assert report.psnr_network > report.psnr_bicubic + 1.5
    assert (report.small, report.large, report.runs, report.copies) == ((170, 170), (510, 510), 1, 0)
    assert list(report.seconds) == [
        "read", "reduce", "build graph", "run", "measure", "compare", "write"
    ]  # fmt: skip
    with Image.open(report.output) as image:
        assert image.format == "PNG"
        assert image.mode == "RGB"
        assert image.width > 1500
    text = console.export_text()
    assert f"\n{report.timing}\n" in text
    assert report.timing is not None
    assert report.timing.rounds >= 3
    for words in (
        "build graph",
        "device",
        *report.devices,
        "copies",
        report.expressions[:8],
        f"{report.psnr_network:.2f} dB",
        "sheet.png",
    ):
        assert words in text


def test_enlarge_writes_the_picture_three_times_as_large(tmp_path: Path) -> None:
    Image.fromarray(photograph(40, 25)).save(tmp_path / "small.png")
    report = run(tmp_path / "small.png", tmp_path / "large.webp", enlarge=True, console=QUIET)
    assert report.psnr_network is None
    assert report.timing is None
    with Image.open(tmp_path / "large.webp") as image:
        assert (image.format, image.size) == ("WEBP", (120, 75))


def test_enlarge_agrees_with_the_original(tmp_path: Path) -> None:
    original = photograph(510, 510)
    Image.fromarray(original).resize((170, 170), Image.Resampling.BICUBIC).save(tmp_path / "small.png")
    run(tmp_path / "small.png", tmp_path / "large.png", enlarge=True, console=QUIET)
    with Image.open(tmp_path / "large.png") as image:
        assert colours.psnr(np.asarray(image), original) > 29


def odd_images() -> dict[str, Image.Image]:
    """Images of every mode and of awkward sizes."""
    rgb = Image.fromarray(photograph(31, 22))
    clear = rgb.copy()
    clear.putalpha(Image.linear_gradient("L").resize(rgb.size))
    grey16 = np.asarray(rgb.convert("L"), np.uint16) * 257
    return {
        "bilevel.png": rgb.convert("1"),
        "grey.png": rgb.convert("L"),
        "grey-alpha.png": clear.convert("LA"),
        "palette.png": rgb.convert("P"),
        "palette.gif": rgb.convert("P"),
        "rgba.png": clear,
        "rgba.webp": clear,
        "opaque.png": rgb.convert("RGBA"),
        "cmyk.jpg": rgb.convert("CMYK"),
        "cmyk.tif": rgb.convert("CMYK"),
        "ycbcr.tif": rgb.convert("YCbCr"),
        "lab.tif": rgb.convert("LAB"),
        "grey16.png": Image.fromarray(grey16),
        "grey16-big-endian.tif": Image.fromarray(grey16.astype(">u2")),
        "int32.tif": Image.fromarray(grey16.astype(np.int32)),
        "float.tif": Image.fromarray(grey16.astype(np.float32) / 65535),
        "3x3.png": rgb.resize((3, 3)),
        "4x5.bmp": rgb.resize((4, 5)),
        "wide.png": rgb.resize((900, 3)),
        "tall.ppm": rgb.resize((3, 700)),
        "black.png": Image.new("RGB", (9, 9)),
    }


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("enlarge", [False, True], ids=["compare", "enlarge"])
@pytest.mark.parametrize("name", odd_images())
def test_any_image_is_taken(name: str, enlarge: bool, tmp_path: Path) -> None:
    source = odd_images()[name]
    source.save(tmp_path / name)
    output = tmp_path / "out.png"
    report = run(tmp_path / name, output, enlarge=enlarge, console=QUIET)
    with Image.open(output) as image:
        image.load()
    if enlarge:
        assert image.size == report.large == (3 * source.width, 3 * source.height)
        plain = source.convert("RGBA" if "A" in image.getbands() else "RGB").resize(image.size)
        if source.mode in ("L", "RGB", "RGBA", "CMYK") and source.width > 8:  # right way up, right colours
            difference = np.asarray(image.convert(plain.mode), float) - np.asarray(plain, float)
            assert np.sqrt(np.mean(difference**2)) < 30
    else:
        assert report.large == (source.width // 3 * 3, source.height // 3 * 3)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("size", [(1, 1), (2, 40), (2, 2)])
def test_a_picture_too_small_to_reduce_can_be_enlarged(size: tuple[int, int], tmp_path: Path) -> None:
    Image.new("RGB", size, "red").save(tmp_path / "tiny.png")
    with pytest.raises(DataError, match=rf"tiny.png: {size[0]} x {size[1]} pixels cannot be reduced by 3"):
        run(tmp_path / "tiny.png", tmp_path / "out.png", console=QUIET)
    run(tmp_path / "tiny.png", tmp_path / "out.png", enlarge=True, console=QUIET)
    with Image.open(tmp_path / "out.png") as image:
        assert image.size == (3 * size[0], 3 * size[1])


@pytest.mark.usefixtures("quick")
def test_exif_orientation_is_obeyed(tmp_path: Path) -> None:
    image = Image.fromarray(photograph(30, 12))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise to see it upright
    image.save(tmp_path / "turned.jpg", exif=exif)
    report = run(tmp_path / "turned.jpg", tmp_path / "out.png", enlarge=True, console=QUIET)
    assert report.small == (12, 30)
    with Image.open(tmp_path / "out.png") as large:
        assert large.size == (36, 90)
        assert 0x0112 not in large.getexif()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("suffix", "mode"), [("png", "RGBA"), ("webp", "RGBA"), ("tif", "RGBA"), ("jpg", "RGB")])
def test_transparency_is_kept_where_the_format_can(suffix: str, mode: str, tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    run(tmp_path / "clear.png", tmp_path / f"out.{suffix}", enlarge=True, console=QUIET)
    with Image.open(tmp_path / f"out.{suffix}") as image:
        assert image.mode == mode
        corner = image.getpixel((0, 0))
    assert corner == (255, 255, 255) if mode == "RGB" else isinstance(corner, tuple) and corner[3] == 0


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("mode", ["1", "L", "LA"])
def test_grey_stays_grey(mode: str, tmp_path: Path) -> None:
    Image.fromarray(photograph(10, 10)).convert(mode).save(tmp_path / "grey.png")
    run(tmp_path / "grey.png", tmp_path / "out.png", enlarge=True, console=QUIET)
    with Image.open(tmp_path / "out.png") as image:
        assert image.mode == "L"


def test_colours_survive_the_round_trip() -> None:
    rgb = RANDOM.integers(0, 256, (64, 64, 3), np.uint8)
    np.testing.assert_array_equal(colours.merge(*colours.split(rgb)), rgb)


@pytest.mark.parametrize("scale", [1, 7])
def test_details_lie_where_the_network_gains_most(scale: int) -> None:
    original = np.zeros((60 * scale, 80 * scale, 3), np.uint8)
    before, after = original + 9, original + 9
    after[10 * scale : 20 * scale, 50 * scale : 60 * scale] = 0
    after[55 * scale :, 5 * scale : 10 * scale] = 4
    first, second = sheet.best_places(before, after, original, 10 * scale, 10 * scale)
    np.testing.assert_allclose(first, (50 * scale, 10 * scale), atol=scale)
    assert second[0] <= 5 * scale <= second[0] + 5 * scale
    assert second[1] <= 50 * scale


# What goes wrong ------------------------------------------------------------------------------------------------------


def broken(folder: Path) -> dict[str, Path]:
    whole = folder / "whole.png"
    Image.fromarray(photograph(60, 60)).save(whole)
    (folder / "cut.png").write_bytes(whole.read_bytes()[:3000])
    (folder / "text.jpg").write_text("this is no picture")
    (folder / "empty.png").touch()
    Image.fromarray(np.full((6, 6), np.nan, np.float32)).save(folder / "nan.tif")
    return {path.name: path for path in folder.iterdir()} | {"missing.png": folder / "missing.png", "folder": folder}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.png", "cannot be read: No such file"),
        ("folder", "cannot be read: Is a directory"),
        ("text.jpg", "this is not an image of a known format"),
        ("empty.png", "this is not an image of a known format"),
        ("cut.png", "cannot be read"),
        ("nan.tif", "some values are not finite"),
    ],
)
def test_a_photograph_that_cannot_be_read(name: str, message: str, tmp_path: Path) -> None:
    photo = broken(tmp_path)[name]
    with pytest.raises(DataError, match=message) as error:
        run(photo, tmp_path / "out.png", console=QUIET)
    assert str(error.value).startswith(f"{photo}: ")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out.png").exists()


@pytest.mark.usefixtures("quick")
def test_a_photograph_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "LIMIT", 3600)
    whole = broken(tmp_path)["whole.png"]
    run(whole, tmp_path / "out.png", console=QUIET)
    with pytest.raises(DataError, match=r"whole.png: 60 x 60 pixels are more than 400"):
        run(whole, tmp_path / "out.png", enlarge=True, console=QUIET)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("nowhere/out.png", "there is no folder"),
        ("out.xyz", ".xyz is no image format"),
        ("out", "no suffix is no image format"),
        ("folder.png", "it exists and is not a file"),
        ("whole.png", "this is the photograph itself"),
    ],
)
def test_an_output_that_cannot_be_written(output: str, message: str, tmp_path: Path) -> None:
    whole = broken(tmp_path)["whole.png"]
    (tmp_path / "folder.png").mkdir()
    before = whole.read_bytes()
    with pytest.raises(DataError, match=message) as error:
        run(whole, tmp_path / output, console=QUIET)
    assert str(error.value).startswith(f"{tmp_path / output}: cannot be written: ")
    assert whole.read_bytes() == before


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out.png"
    output.write_text("precious")

    def full_disk(image: Image.Image, file: object, **options: object) -> None:
        file.write(b"half a pic")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full_disk)
    with pytest.raises(DataError, match=r"out\.png: cannot be written: No space left on device"):
        picture.write(Image.new("RGB", (3, 3)), output, "PNG")
    assert output.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [output]


@pytest.mark.parametrize("package", ["PIL", "safetensors"])
def test_a_missing_package_names_the_extra(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package}: pip install 'opweave\[demo\]'"):
        run(None, tmp_path / "out.png", console=QUIET)
