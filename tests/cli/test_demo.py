"""The demo: its network, its weights, its pictures, its errors."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from rich.console import Console

import opweave as ow
from opweave.demo import run
from opweave.expr import kernels
from opweave.support.errors import DataError, MissingExtraError

pytest.importorskip("PIL", reason="the demo's pictures need Pillow (extra demo)")
pytest.importorskip("safetensors", reason="the demo's weights need safetensors (extra demo)")

from PIL import Image

from opweave.demo import colours, enlarger, expressions, job, network, sheet

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
    """Both are equal, except for a few levels that lie so near to the middle of two that they are rounded to the other."""
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
    monkeypatch.setattr(job, "SECONDS", 0)
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
    builder = ow.MLGraphBuilder(context)
    padded = np.pad(luma, network.Network.load().halo, "edge")[None, None]
    blocks = network.Network.load().build(builder, builder.input("luma", "float32", padded.shape))
    found = context.compute(builder.build({"blocks": blocks}), {"luma": padded})["blocks"]
    large = found.reshape(3, 3, height, width).transpose(2, 0, 3, 1).reshape(3 * height, 3 * width)
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
def test_luma_equals_first_plane_of_split(height: int, width: int) -> None:
    rgb = noise(height, width)
    plane, *_ = colours.split(rgb)
    for margin in (0, 7):
        luma = expressions.luma(rgb, colours.TO_YCBCR, margin=margin)
        np.testing.assert_allclose(luma[0, 0], np.pad(plane, margin, "edge"), atol=1e-6)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_chroma_equals_pillow(height: int, width: int) -> None:
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
def test_enlarger_graph_equals_numpy_around_network(height: int, width: int, source: str, engine: str) -> None:
    rgb = noise(height, width) if source == "noise" else photograph(width, height)
    context = ow.ml.create_context()
    whole = enlarger.Enlarger(context, height, width)
    assert whole.expression_engine.lower().startswith(engine)
    check_alike(whole(rgb), enlarger.enlarger_with_numpy(context, height, width)(rgb))


def test_enlarger_network_runs_between_expressions() -> None:
    whole = enlarger.Enlarger(ow.ml.create_context(), 20, 20)
    runs = [(p.node, p.how, p.segment) for p in whole.graph.placements()]
    assert [run for run in runs if run[1] == "expression"] == [
        ("luma", "expression", 0), ("chroma", "expression", 2), ("merged", "expression", 3)
    ]  # fmt: skip
    others = [(how, segment) for _, how, segment in runs if how != "expression"]
    assert len(others) > 10
    assert set(others) == {("native", 1)}


@pytest.mark.usefixtures("engine")
def test_enlarger_reads_and_writes_pixels_in_place() -> None:
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
        check_alike(large, enlarger.enlarger_with_numpy(context, 20, 30)(rgb))
        ow.memory.copies.reset()


# Windows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 20, 21, 22, 40, 41, 100])
@pytest.mark.parametrize("tile", [1, 6, 13])
def test_windows_cover_all_pixels_and_overlap_by_two_margins(size: int, tile: int) -> None:
    margin = 7
    window = min(size, tile + 2 * margin)
    starts = enlarger.starts(size, window, margin)
    assert (starts[0], starts[-1]) == (0, size - window)
    assert all(0 < after - before <= window - 2 * margin for before, after in pairwise(starts))


@pytest.mark.long
@pytest.mark.parametrize(("height", "width", "windows"), [(40, 30, 2), (33, 47, 6), (5, 50, 3)])
def test_windows_leave_no_seams(height: int, width: int, windows: int) -> None:
    context = ow.ml.create_context()
    divided, whole = (enlarger.Enlarger(context, height, width, tile=side) for side in (16, 512))
    assert (divided.windows, whole.windows) == (windows, 1)
    rgb, counts = noise(height, width), list[int]()
    check_alike(divided(rgb, counts.append), whole(rgb))
    assert counts == list(range(1, windows + 1))


def test_enlarger_copies_nothing_for_one_window() -> None:
    whole = enlarger.Enlarger(ow.ml.create_context(), 20, 20)
    ow.memory.copies.reset()
    whole(noise(20, 20))
    assert ow.memory.copies.count == 0


@pytest.mark.long
def test_copies_of_windows_are_counted() -> None:
    divided = enlarger.Enlarger(ow.ml.create_context(), 40, 40, tile=20)
    ow.memory.copies.reset()
    divided(noise(40, 40))
    assert ow.memory.copies.by_reason["make contiguous"].count == 4
    assert ow.memory.copies.by_reason["place a window"].count == 4


def test_demo_times_both_ways_on_same_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ow.ml.create_context()
    divided = enlarger.Enlarger(context, 40, 30, tile=16)
    seen: list[NDArray[np.uint8]] = []
    split = colours.split

    def watched(rgb: NDArray[np.uint8]) -> Any:
        seen.append(rgb)
        return split(rgb)

    monkeypatch.setattr(enlarger, "split", watched)
    rgb = photograph(30, 40)
    woven, around, steps = job.compare(context, divided, rgb)
    assert list(steps) == ["luma", "network", "chroma", "merged"]
    assert all(seconds > 0 for seconds in (woven, *steps.values()))
    assert around > 0
    assert len(seen) >= 2 + 3
    np.testing.assert_array_equal(seen[0], rgb[:30])


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


@pytest.mark.long
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


@pytest.mark.long
def test_demo_wins_by_a_decibel_and_a_half_on_its_own_photograph(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), record=True, width=120)  # rows are not broken
    report = run(None, tmp_path / "sheet.png", console=console)
    bicubic, ours = (float(report[f"PSNR, {name}"].removesuffix(" dB")) for name in ("bicubic", "network"))
    assert ours > bicubic + 1.5
    assert abs(float(report["gain"].split()[0]) - (ours - bicubic)) < 0.011
    assert report["size"] == "170 x 170 -> 510 x 510"
    assert (report["runs of the graph"], report["copies"], report["device"]) == ("1", "0", "cpu")
    assert list(report)[:11] == [
        *("read", "reduce", "build graph", "run", "measure", "compare", "write"),
        *("in the graph: luma", "in the graph: network", "in the graph: chroma", "in the graph: merged"),
    ]
    with Image.open(tmp_path / "sheet.png") as image:
        assert image.format == "PNG"
        assert image.mode == "RGB"
        assert image.width > 1500
    text = console.export_text()
    for name, value in report.items():
        assert re.search(rf"{re.escape(name)} .* {re.escape(value)} ", text), name
    assert re.search(r"\nin one graph \S+ ms, with NumPy around the network \S+ ms \([\d.]+x\)\n", text)
    assert "sheet.png" in text


@pytest.mark.long
def test_enlarge_writes_the_picture_three_times_as_large(tmp_path: Path) -> None:
    Image.fromarray(photograph(40, 25)).save(tmp_path / "small.png")
    report = run(tmp_path / "small.png", tmp_path / "large.webp", enlarge=True, console=QUIET)
    assert list(report)[:4] == ["read", "build graph", "run", "write"]
    assert not [name for name in report if "PSNR" in name or "in the graph" in name]
    with Image.open(tmp_path / "large.webp") as image:
        assert (image.format, image.size) == ("WEBP", (120, 75))


def test_enlarge_agrees_with_the_original(tmp_path: Path) -> None:
    original = photograph(510, 510)
    Image.fromarray(original).resize((170, 170), Image.Resampling.BICUBIC).save(tmp_path / "small.png")
    run(tmp_path / "small.png", tmp_path / "large.png", enlarge=True, console=QUIET)
    with Image.open(tmp_path / "large.png") as image:
        assert colours.psnr(np.asarray(image), original) > 29


@cache
def odd_images() -> dict[str, Image.Image]:
    """Images of every mode with 8 bits a colour, and of awkward sizes."""
    rgb = Image.fromarray(photograph(31, 22))
    clear = rgb.copy()
    clear.putalpha(Image.linear_gradient("L").resize(rgb.size))
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
        "3x3.png": rgb.resize((3, 3)),
        "4x5.bmp": rgb.resize((4, 5)),
        "wide.png": rgb.resize((900, 3)),
        "tall.ppm": rgb.resize((3, 700)),
        "black.png": Image.new("RGB", (9, 9)),
    }


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("enlarge", [False, True], ids=["compare", "enlarge"])
@pytest.mark.parametrize("name", odd_images())
def test_demo_accepts_any_image(name: str, enlarge: bool, tmp_path: Path) -> None:
    source = odd_images()[name]
    source.save(tmp_path / name)
    output = tmp_path / "out.png"
    report = run(tmp_path / name, output, enlarge=enlarge, console=QUIET)
    with Image.open(output) as image:
        image.load()
    if enlarge:
        assert image.size == (3 * source.width, 3 * source.height)
        if source.mode in ("L", "RGB", "CMYK") and source.width > 8:  # right way up, right colours
            difference = np.asarray(image, float) - np.asarray(source.convert("RGB").resize(image.size), float)
            assert np.sqrt(np.mean(difference**2)) < 30
    else:
        assert report["size"].endswith(f"-> {source.width // 3 * 3} x {source.height // 3 * 3}")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("size", [(1, 1), (2, 40), (2, 2)])
def test_demo_enlarges_tiny_image(size: tuple[int, int], tmp_path: Path) -> None:
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
    assert report["size"] == "12 x 30 -> 36 x 90"
    with Image.open(tmp_path / "out.png") as large:
        assert large.size == (36, 90)
        assert 0x0112 not in large.getexif()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("suffix", ["png", "webp", "tif", "jpg"])
def test_transparent_pictures_get_a_white_background(suffix: str, tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    run(tmp_path / "clear.png", tmp_path / f"out.{suffix}", enlarge=True, console=QUIET)
    with Image.open(tmp_path / f"out.{suffix}") as image:
        assert image.mode == "RGB"
        assert image.getpixel((0, 0)) == (255, 255, 255)


def test_colours_survive_the_round_trip() -> None:
    rgb = RANDOM.integers(0, 256, (64, 64, 3), np.uint8)
    np.testing.assert_array_equal(colours.merge(*colours.split(rgb)), rgb)


@pytest.mark.parametrize("scale", [1, 7])
def test_best_places_have_largest_gain(scale: int) -> None:
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
    Image.fromarray(np.ones((6, 6), np.float32)).save(folder / "float.tif")
    return {path.name: path for path in folder.iterdir()} | {"missing.png": folder / "missing.png", "folder": folder}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.png", "cannot be read: No such file"),
        ("folder", "cannot be read: Is a directory"),
        ("text.jpg", "cannot be read: cannot identify image file"),
        ("empty.png", "cannot be read: cannot identify image file"),
        ("cut.png", "cannot be read"),
        ("float.tif", "cannot be read: colours of 8 bits are supported, not mode F"),
    ],
)
def test_demo_rejects_unreadable_image(name: str, message: str, tmp_path: Path) -> None:
    photo = broken(tmp_path)[name]
    with pytest.raises(DataError, match=message) as error:
        run(photo, tmp_path / "out.png", console=QUIET)
    assert str(error.value).startswith(f"{photo}: ")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out.png").exists()


@pytest.mark.usefixtures("quick")
def test_demo_rejects_too_large_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "LIMIT", 3600)
    whole = broken(tmp_path)["whole.png"]
    run(whole, tmp_path / "out.png", console=QUIET)
    with pytest.raises(DataError, match=r"whole.png: cannot be read: 60 x 60 pixels are more than 400"):
        run(whole, tmp_path / "out.png", enlarge=True, console=QUIET)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("nowhere/out.png", "there is no folder"),
        ("out.xyz", ".xyz is not an image format"),
        ("out", "no suffix is not an image format"),
        ("out.ico", ".ico is a format of icons, which have other sizes"),
        ("out.xbm", "cannot write mode RGB as XBM"),
        ("folder.png", "it exists and is not a file"),
        ("whole.png", "this is the photograph itself"),
    ],
)
def test_demo_reports_unwritable_output(
    output: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = broken(tmp_path)["whole.png"]
    (tmp_path / "folder.png").mkdir()
    before = whole.read_bytes()
    monkeypatch.setattr(job, "Enlarger", None)  # nothing is computed for such files
    with pytest.raises(DataError, match=message) as error:
        run(whole, tmp_path / output, console=QUIET)
    assert str(error.value).startswith(f"{tmp_path / output}: cannot be written: ")
    assert whole.read_bytes() == before


def test_demo_failed_write_keeps_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out.png"
    output.write_text("precious")

    def full_disk(image: Image.Image, file: object, **options: object) -> None:
        file.write(b"half a pic")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full_disk)
    with pytest.raises(DataError, match=r"out\.png: cannot be written: No space left on device"):
        job._write(Image.new("RGB", (3, 3)), output, "PNG", None)
    assert output.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [output]


@pytest.mark.parametrize("package", ["PIL", "safetensors"])
def test_demo_names_missing_extra(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package}: pip install 'opweave\[demo\]'"):
        run(None, tmp_path / "out.png", console=QUIET)
