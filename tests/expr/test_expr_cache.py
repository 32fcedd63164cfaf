"""The directory of compiled expressions: who may write there, and what damaged or hostile entries do."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("halide", reason="needs the extra halide")
pytest.importorskip("llvmlite", reason="needs the extra halide")

from opweave.core.graph import Desc
from opweave.expr import trace
from opweave.expr.halide import compile
from opweave.support.disk_cache import load_or_make
from opweave.support.errors import OperationError
from opweave.support.files import atomic_writer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs owners and modes of files")
needs_root = pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can become another user")


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def keep(key: str, value: bytes = b"made") -> tuple[bytes, bool]:
    """What `kept` returns, and whether it had to be made."""
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        return value

    return load_or_make(key, make), bool(made)


def test_entries_are_found_again(cache_folder: Path) -> None:
    assert keep("k") == (b"made", True)
    assert keep("k") == (b"made", False)
    assert keep("other") == (b"made", True)


@pytest.mark.parametrize("mask", [0, 0o022, 0o777])
def test_directories_and_files_are_the_users_alone(cache_folder: Path, umask: None, mask: int) -> None:
    os.umask(mask)
    keep("k")
    assert os.umask(mask) == mask
    (entry,) = cache_folder.iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache_folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o720, 0o702])
def test_cache_ignores_directory_writable_by_others(cache_folder: Path, mode: int) -> None:
    keep("k", b"planted")
    cache_folder.chmod(mode)
    with pytest.warns(RuntimeWarning, match=r"can be written to by other users.*chmod 700"):
        assert keep("k") == (b"made", True)
    assert keep("new")[1]
    assert len(list(cache_folder.iterdir())) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert keep("k") == (b"made", True)


def test_cache_ignores_files_writable_by_others(cache_folder: Path) -> None:
    keep("k", b"planted")
    (entry,) = cache_folder.iterdir()
    entry.chmod(0o622)
    with pytest.warns(RuntimeWarning, match="can be written to by other users"):
        assert keep("k") == (b"made", True)
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600  # replaced by one of ours
    assert keep("k") == (b"made", False)


@needs_root
@pytest.mark.parametrize("what", ["directory", "file"])
def test_cache_ignores_files_of_other_users(cache_folder: Path, what: str) -> None:
    keep("k", b"planted")
    (entry,) = cache_folder.iterdir()
    os.chown(cache_folder if what == "directory" else entry, 65534, 65534)
    with pytest.warns(RuntimeWarning, match="belongs to the user 65534, not to 0"):
        assert keep("k") == (b"made", True)


@pytest.mark.parametrize("kind", ["fifo", "link", "link to a pipe", "directory", "device", "empty", "short", "flipped"])
def test_entries_of_other_kinds_do_no_harm(cache_folder: Path, tmp_path: Path, kind: str) -> None:
    keep("k", b"planted")
    (entry,) = cache_folder.iterdir()
    content = entry.read_bytes()
    entry.unlink()
    if kind == "fifo":
        os.mkfifo(entry)
    elif kind == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        entry.symlink_to(tmp_path / "elsewhere")
    elif kind == "link to a pipe":
        os.mkfifo(tmp_path / "pipe")
        entry.symlink_to(tmp_path / "pipe")
    elif kind == "directory":
        entry.mkdir()
    elif kind == "device":
        entry.symlink_to("/dev/zero")
    else:
        flipped = bytearray(content)
        flipped[-1] ^= 1
        entry.write_bytes({"empty": b"", "short": content[:-1], "flipped": bytes(flipped)}[kind])
        entry.chmod(0o600)
    assert keep("k") == (b"made", True)
    assert keep("k") == (b"made", kind == "directory")  # which cannot be replaced; all else is
    assert [path.name for path in cache_folder.iterdir()] == [entry.name]


def test_cache_ignores_renamed_entry(cache_folder: Path) -> None:
    keep("k", b"planted")
    (cache_folder / "k.o").rename(cache_folder / "other.o")
    assert keep("other") == (b"made", True)


def test_cache_detects_flipped_bit(cache_folder: Path) -> None:
    keep("k", b"planted")
    (entry,) = cache_folder.iterdir()
    content = entry.read_bytes()
    rng = random.Random(0)
    for _ in range(200):
        damaged = bytearray(content)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        entry.write_bytes(damaged)
        assert keep("k", b"planted") == (b"planted", True)


def test_cache_ignores_relative_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPWEAVE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    keep("k")
    assert not (tmp_path / "here").exists()
    assert (tmp_path / "home" / ".cache" / "opweave" / "k.o").exists()


SCRIPT = """
import os, sys, numpy as np
import opweave.expr as ex
from opweave.expr.halide import compile
from opweave.expr.halide import compiler, elf, image, runtime
from opweave.core.graph import Desc
runtime.version()  # reads files that other users may not reach, as does the import of Halide
if sys.argv[1] != "0":
    os.setgroups([])
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
x = np.arange(1000, dtype="float32")
y = np.zeros_like(x)
compile(ex.trace(lambda x: x * 2 + 1, "p", [Desc("float32", x.shape)])).bind([x], [y])()
print(np.array_equal(y, x * 2 + 1))
"""


def run_script(user: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `SCRIPT` as another user, with nothing but these variables."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(user)],
        env={"PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.long
@needs_root
def test_users_without_a_home_or_a_name_work_without_a_cache() -> None:
    done = run_script(user=54321)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "True", "")


@pytest.mark.long
@needs_root
def test_cache_ignores_object_planted_by_other_user() -> None:
    """The user 54321 compiles into a directory that all can write to; root runs the same expression afterwards."""
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        folder = Path(root) / "cache"
        folder.mkdir()
        folder.chmod(0o777)
        os.chown(folder, 54321, 54321)
        assert run_script(user=54321, OPWEAVE_CACHE=str(folder)).stdout.strip() == "True"
        folder.chmod(0o700)
        assert run_script(user=54321, OPWEAVE_CACHE=str(folder)).stdout.strip() == "True"
        planted = sorted(path.name for path in folder.iterdir())
        assert len(planted) == 2  # the runtime and the expression, in the owner's own directory only
        folder.chmod(0o777)
        os.chown(folder, 0, 0)
        entries = {path: path.stat() for path in folder.iterdir()}
        done = run_script(OPWEAVE_CACHE=str(folder))
        assert done.stdout.strip() == "True"
        assert "can be written to by other users" in done.stderr
        folder.chmod(0o700)
        done = run_script(OPWEAVE_CACHE=str(folder))
        assert done.stdout.strip() == "True"
        assert done.stderr.count("belongs to the user 54321, not to 0") == 2
        assert {path.name for path in folder.iterdir()} == set(planted)
        assert all(path.stat().st_ino != status.st_ino for path, status in entries.items())  # root's own


def test_compile_without_disk_space_is_an_error(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    program = trace(lambda x: x * 7 + 11, "full", [Desc("float32", (17,))])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OperationError, match=r"no room for compiled code: .*limited to 1,000 bytes"):
            compile(program)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    monkeypatch.delattr(os, "memfd_create", raising=False)
    x, y = np.ones(17, np.float32), np.zeros(17, np.float32)
    compile(program).bind([x], [y])()
    assert y[0] == 18
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 100}))
    monkeypatch.setenv("OPWEAVE_CACHE", str(cache_folder / "empty"))
    with pytest.raises(OperationError, match="has 100 bytes left"):
        compile(program)


def test_cache_files_follow_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: None) -> None:
    os.umask(0o027)

    def refused(mask: int) -> int:
        raise AssertionError("the umask belongs to all threads")

    with monkeypatch.context() as patch:
        patch.setattr(os, "umask", refused)
        with atomic_writer(tmp_path / "file") as file:
            file.write(b"x")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
