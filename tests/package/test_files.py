"""Files that are written: regular ones wholly or not at all, all others where they are."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np
import onnx
import pytest

import opweave as ow
from opweave.cli.inputs import save_arrays
from opweave.support.files import atomic_writer, check_writable

Write = Callable[[Path], None]


def graph() -> ow.MLGraph:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu"))
    return builder.build({"y": builder.relu(builder.input("x", "float32", [2]))})


WRITERS: dict[str, tuple[str, Write, Callable[[bytes], bool]]] = {
    "save": (
        ".onnx",
        lambda path: ow.onnx.save(graph(), path),
        lambda data: onnx.load_from_string(data).graph.output[0].name == "y",
    ),
    "draw": (".svg", lambda path: graph().draw(path) and None, lambda data: data.startswith(b"<svg")),
    "arrays": (".npz", lambda path: save_arrays(path, {"a": np.ones(3)}), lambda data: data.startswith(b"PK")),
}


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest) -> tuple[str, Write, Callable[[bytes], bool]]:
    return WRITERS[request.param]


def test_save_to_pipe(writer: tuple[str, Write, Callable[[bytes], bool]], tmp_path: Path) -> None:
    suffix, write, is_whole = writer
    path, got = tmp_path / f"pipe{suffix}", []
    os.mkfifo(path)
    thread = Thread(target=lambda: got.append(path.read_bytes()), daemon=True)
    thread.start()
    write(path)
    thread.join(60)
    assert is_whole(got[0])
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert list(tmp_path.iterdir()) == [path]


def test_save_through_link_replaces_its_file(
    writer: tuple[str, Write, Callable[[bytes], bool]], tmp_path: Path
) -> None:
    suffix, write, is_whole = writer
    (tmp_path / "elsewhere").mkdir()
    path, file = tmp_path / f"link{suffix}", tmp_path / "elsewhere" / "file"
    path.symlink_to(file)
    for before in (None, b"old"):  # the file that it leads to may be missing
        if before is not None:
            file.write_bytes(before)
        write(path)
        assert path.is_symlink()
        assert is_whole(file.read_bytes())
    assert list((tmp_path / "elsewhere").iterdir()) == [file]


def device(name: str, folder: Path) -> Path:
    """A device as /dev has one; for root a node of its own, since a fault would replace the system's."""
    system = Path("/dev", name)
    if not system.is_char_device():
        pytest.skip(f"this system has no {system}")
    if os.geteuid() != 0:
        return system  # which this user cannot replace
    path = folder / name
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, system.stat().st_rdev)
        path.open("r+b").close()
    except OSError as error:
        pytest.skip(f"no devices can be made here: {error}")
    return path


def test_save_to_device(tmp_path: Path) -> None:
    path = device("null", tmp_path)
    before = os.stat(path)
    ow.onnx.save(graph(), path)
    after = os.stat(path)
    assert stat.S_ISCHR(after.st_mode)
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)


def test_save_weights_file_beside_link_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opweave.onnx.export.MAX_EMBEDDED_BYTES", 0)
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu"))
    weights = np.arange(1000, dtype=np.float32)
    made = builder.build({"y": builder.add(builder.input("x", "float32", [1000]), builder.constant(weights))})
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "link.onnx"
    link.symlink_to(tmp_path / "elsewhere" / "model.onnx")
    ow.onnx.save(made, link)
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["model.onnx", "model.onnx.data"]
    assert ow.InferenceSession(link).run(None, {"x": weights})[0].tolist() == (2 * weights).tolist()
    path = device("null", tmp_path)
    with pytest.raises(ow.ValidationError) as error:
        ow.onnx.save(made, path)
    message = "save: 3.9 KiB of weights need a second file, so the path must be a regular file, got"
    assert str(error.value) == f"{message} {path}"


def test_save_to_full_device(tmp_path: Path) -> None:
    path = device("full", tmp_path)
    with pytest.raises(ow.DataError, match=rf"^{re.escape(str(path))}: No space left on device$"):
        ow.onnx.save(graph(), path)


def test_atomic_writer_replaces_only_on_success(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with pytest.raises(ZeroDivisionError), atomic_writer(path) as file:
        file.write(bytes([1 // 0]))
    assert path.read_bytes() == b"old"
    with atomic_writer(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("loop", "Too many levels of symbolic links"),
        ("folder", "Is a directory"),
        ("none/file", "No such file or directory"),
    ],
)
def test_atomic_writer_rejects_path(name: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ow.DataError) as error, atomic_writer(tmp_path / name):
        pass
    assert str(error.value) == f"{tmp_path / name}: {reason}"


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="files of a process have no paths here")
def test_pipes_without_a_path_are_written() -> None:
    """As of /dev/stdout in front of another program."""
    reader, writer = os.pipe()
    check_writable(f"/dev/fd/{writer}")
    with atomic_writer(f"/dev/fd/{writer}") as file:
        file.write(b"text")
    os.close(writer)
    with open(reader, "rb") as opened:
        assert opened.read() == b"text"


def test_check_writable_names_the_folder_that_is_missing(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "none" / "file")
    with pytest.raises(ow.DataError, match=f"there is no folder {re.escape(str(tmp_path / 'none'))}$"):
        check_writable(link)


def test_atomic_writer_rejects_null_in_path() -> None:
    with pytest.raises(ow.DataError, match="null"), atomic_writer("a\0b"):
        pass
