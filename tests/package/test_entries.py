"""Entry points are found as `importlib.metadata` finds them, and without it where packages lie in folders."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import DistributionFinder, distributions, entry_points as reference, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from opweave.backends import Device, discovery, hardware
from opweave.backends.entries import ByNeed, entry_points
from opweave.backends.selection import choose
from opweave.support.distributions import version_of

GROUP = "opweave.test"


def install(folder: Path, package: str, text: str) -> None:
    path = folder / f"{package}-1.0.dist-info"
    path.mkdir(parents=True)
    path.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    path.joinpath("entry_points.txt").write_text(text)


def expected(group: str) -> dict[str, str]:
    return {entry.name: entry.value.partition(" [")[0] for entry in reference(group=group)}


@pytest.mark.parametrize("group", ["console_scripts", "pytest11"])
def test_entry_points_of_installed_packages(group: str) -> None:
    assert entry_points(group) == expected(group) != {}


def test_entry_points_files_with_all_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        tmp_path / "first",
        "one",
        f"[other]\na = no:no\n\n[{GROUP}]\n# a comment\nb=one.b:x.y\n c = one:c [extra]\n[console_scripts]\nd = no:no\n",
    )
    install(tmp_path / "first", "two", f"[{GROUP}]\ne = two:e\n")
    install(tmp_path / "second", "one", f"[{GROUP}]\nb = hidden:b\n")
    tmp_path.joinpath("first", "three-1.0.dist-info").mkdir()
    for folder in ("second", "first", "missing"):
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    assert entry_points(GROUP) == expected(GROUP) == {"b": "one.b:x.y", "c": "one:c", "e": "two:e"}


def test_packages_in_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("four-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: four\nVersion: 1.0\n")
        archive.writestr("four-1.0.dist-info/entry_points.txt", f"[{GROUP}]\nf = four:f\n")
    monkeypatch.syspath_prepend(str(tmp_path / "all.zip"))
    assert entry_points(GROUP) == {"f": "four:f"}


def test_entry_points_of_custom_finder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "five", f"[{GROUP}]\ng = five:g\n")

    class Finder(DistributionFinder):
        def find_spec(self, *_: object) -> None:
            return None

        def find_distributions(self, context: DistributionFinder.Context | None = None) -> list[object]:  # type: ignore[override]
            from importlib.metadata import PathDistribution

            return [PathDistribution(path) for path in tmp_path.iterdir()]

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert entry_points(GROUP) == {"g": "five:g"}


def test_versions_are_those_of_importlib_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {name for d in distributions() if version_of(name := d.name) != version(name)} == set()
    for number in ("1.0", "2.0"):  # an installation that failed has left the older one
        (tmp_path / f"six_seven-{number}.dist-info").mkdir()
        (tmp_path / f"six_seven-{number}.dist-info" / "METADATA").write_text(f"Name: six-seven\nVersion: {number}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert version_of("Six.Seven") == version("six-seven")


def test_devices_are_listed_without_importlib_metadata() -> None:
    code = "import sys, opweave.backends as b; b.find_device('cpu'); print('importlib.metadata' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.long(rows=1)
@pytest.mark.skipif(find_spec("wgpu") is None, reason="wgpu is not installed")
@pytest.mark.parametrize(
    ("nodes", "looked"), [({}, "False"), ({"/dev": ("nul",), "/none": ("a",)}, "True"), ({"/dev": ("none",)}, "False")]
)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows its hardware as files")
def test_create_context_looks_for_adapters_only_with_hardware(nodes: dict[str, tuple[str, ...]], looked: str) -> None:
    code = (
        f"import sys, opweave as ow; from opweave.backends import hardware; hardware.GPU_FILES = {nodes!r};"
        "ow.ml.create_context(); print('wgpu' in sys.modules)"
    )
    environment = {**os.environ, "OPWEAVE_DEVICE": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split()[-1] == looked


def test_create_context_does_not_load_unused_back_ends() -> None:
    code = """
import sys, opweave as ow
from opweave.support import packages
packages.is_installed = lambda name: name not in ("wgpu", "openvino")
context = ow.ml.create_context()
print(*(name for name in ("cuda", "webgpu", "gpu", "onnxruntime") if f"opweave.backends.{name}" in sys.modules))
print(ow.ml.create_context(device="reference").device.name, *(device.name for device in ow.backends.default_devices()))
"""
    environment = {**os.environ, "OPWEAVE_DEVICE": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == ["onnxruntime", "reference cpu reference"]


def test_create_context_does_not_import_futures() -> None:
    code = """
import sys, opweave as ow
context = ow.ml.create_context(device="cpu")
assert "concurrent.futures" not in sys.modules
waited = ow.ml.create_context(device="cpu")
before = waited.lost
assert not before.done()
for each in (context, waited):
    each.destroy()
    assert each.lost.done() and each.lost is each.lost
assert waited.lost is before
print(context.lost.result().message)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "destroy() was called\n"


OWN = ["onnxruntime", "webgpu", "cuda", "openvino", "reference"]
OTHER_BACKEND = """
from opweave.backends import Backend, Device

class Other(Backend):
    name = "other"
    compile = None

    def devices(self):
        return [Device("other", "npu", "other", "of another package")]

backend = Other()
"""


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("metadata", ["none", "of an older release", "of another package"])
def test_built_in_back_ends_need_no_metadata(metadata: str, tmp_path: Path) -> None:
    tmp_path.joinpath("other.py").write_text(OTHER_BACKEND)
    if metadata == "of an older release":
        install(tmp_path, "opweave", "[opweave.backends]\nwebgpu = opweave.backends.webgpu:webgpu\n")
    elif metadata == "of another package":
        install(tmp_path, "other", "[opweave.backends]\nother = other:backend\nreference = other:backend\n")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import opweave.backends.entries as entries
entries._contents = lambda place, of=entries._contents: of(place) if place == sys.path[0] else ()  # what else is installed
from opweave.backends import devices, discover, find_device
print(*discover(), "|", *(f"{{device.backend}}/{{device.name}}" for device in devices()))
print(find_device("cpu")[0].name, find_device("reference")[0].name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    backends, listed = done.stdout.splitlines()[0].split(" | ")
    other = ["other"] if metadata == "of another package" else []
    assert backends.split() == [*OWN[:-1], *other, OWN[-1]]
    names = listed.split()
    assert names[0] == "onnxruntime/cpu"
    assert names[-1] == "reference/reference"
    assert len(set(names)) == len(names)
    assert any(name.startswith("webgpu/gpu") for name in names)
    assert done.stdout.splitlines()[1] == "onnxruntime reference"


class OtherBackend:
    """A back end of another package, with one device."""

    def __init__(self, kind: Any) -> None:
        self.device = Device("theirs", kind, "theirs", "")

    def by_default(self) -> bool:
        return True

    def may_accelerate(self) -> bool:
        return self.device.kind != "cpu"

    def devices(self) -> list[Device]:
        return [self.device]


@pytest.mark.parametrize("has_files", [False, True])
@pytest.mark.parametrize("kind", ["cpu", "gpu", "npu"])
def test_choose_asks_back_ends_of_other_packages(kind: str, has_files: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Device files say nothing about the accelerators of other packages."""
    known = discovery.discover()
    monkeypatch.setattr(
        discovery, "discover", lambda: {"onnxruntime": known["onnxruntime"], "theirs": OtherBackend(kind)}
    )
    monkeypatch.setattr(hardware, "may_have_accelerator", lambda: has_files)
    assert choose("default", True) == ("cpu" if kind == "cpu" else "theirs")
    assert choose("default", False) == "cpu"
    assert discovery.may_accelerate() == (has_files or kind != "cpu")


def test_choose_loads_the_first_back_end_alone_without_device_files(monkeypatch: pytest.MonkeyPatch) -> None:
    known, loaded = discovery.discover(), list[str]()

    def load(name: str) -> Any:
        loaded.append(name)
        return known[name]

    names = [name for name in known if name in discovery.BUILT_IN]
    monkeypatch.setattr(discovery, "discover", lambda: ByNeed(dict(zip(names, names, strict=True)), load))
    monkeypatch.setattr(hardware, "may_have_accelerator", lambda: False)
    assert choose("default", True) == "cpu"
    assert set(loaded) == {"onnxruntime"}
