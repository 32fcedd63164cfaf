"""Adapters (LoRA) of language models: low-rank side products that are loaded, scaled and dropped while a decoder exists.

The matrix of a product becomes `W + scale * b @ a` (Hu et al., LoRA (2021), arXiv:2106.09685). W does not change: the graph
has side products `(x @ a.T * scales) @ b.T`, whose matrices are inputs. Adapters share the rank of these matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..context.context import MLContext
from ..support.errors import DataError, NotSupportedError, require
from ..support.names import short_repr
from .gguf import GGUF
from .metadata import Metadata
from .model import Model
from .side_products import SCALES
from .transfer import read, write

MAX_RANK = 2**16
"""The largest rank of an adapter. Published adapters have ranks up to 256."""


class LoRA:
    """An adapter from a GGUF file, as llama.cpp's `convert_lora_to_gguf.py` writes it.

    Args:
        file: the file, or its path.

    Raises:
        DataError: the file is no adapter, or is damaged.
        NotSupportedError: an adapter of another kind than LoRA, or of other weights than matrices of products.

    Attributes:
        rank: the largest rank of the matrices.
        architecture: the architecture of the model that the adapter belongs to.
        matrices: for the name of each matrix, without ".weight", the factors a [rank, columns] and b [rows, rank], float32; b
            includes the scale of the file, alpha / rank.
    """

    def __init__(self, file: GGUF | str | Path) -> None:
        file = file if isinstance(file, GGUF) else GGUF(file)
        self.path, about = file.path, Metadata(file)
        kind = about.text("general.type", "model")
        if kind != "adapter":
            raise DataError(f"{file.path} is no adapter: general.type must be 'adapter', got {short_repr(kind)}")
        kind = about.text("adapter.type")
        if kind != "lora":
            raise NotSupportedError(f"{file.path} is an adapter of type {short_repr(kind)}; 'lora' is applied")
        self.architecture: str = about.text("general.architecture")
        # The scale of the file, times the rank; 0 for a scale of 1, as in llama.cpp.
        alpha = about.finite("adapter.lora.alpha", 0.0)
        self.matrices: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        names = {name.removesuffix(".lora_a").removesuffix(".lora_b") for name in file.weights}
        for name in sorted(names):
            self.matrices[name.removesuffix(".weight")] = self._factors(file, name, alpha)
        if not self.matrices:
            raise DataError(f"{file.path} has no weights")
        self.rank = max(len(a) for a, _ in self.matrices.values())

    def _factors(self, file: GGUF, name: str, alpha: float) -> tuple[np.ndarray, np.ndarray]:
        parts = [file.weights.get(f"{name}.lora_{part}") for part in "ab"]
        if name in file.weights:
            raise NotSupportedError(f"{file.path} has {name}, which is not the a or b of a low-rank product")
        if not name.endswith(".weight") or name == "token_embd.weight":
            raise NotSupportedError(f"{file.path} changes {name}; adapters of products are applied")
        for part, weight in zip("ab", parts, strict=True):
            if weight is None:
                raise DataError(f"{file.path} lacks {name}.lora_{part}")
            if len(weight.shape) != 2:
                raise DataError(f"{file.path}: {name}.lora_{part} must have a rank of 2, got {list(weight.shape)}")
        a, b = (weight.real() for weight in parts if weight is not None)
        if a.shape[0] != b.shape[1] or a.shape[0] > MAX_RANK:
            rule = f"{name}.lora_b must have {a.shape[0]} columns, as lora_a has rows, and at most {MAX_RANK}"
            raise DataError(f"{file.path}: {rule}, got {list(b.shape)}")
        for part, array in (("a", a), ("b", b)):
            if not np.isfinite(array).all():
                raise DataError(f"{file.path}: {name}.lora_{part} must be finite")
        return a, b * np.float32(alpha / len(a) if alpha else 1)

    def check(self, model: Model) -> None:
        """Require that the adapter belongs to a model.

        Raises:
            DataError: another architecture, matrices that the model does not have, or other shapes.
        """
        kind = Metadata(model.file).text("general.architecture")
        if self.architecture != kind:
            raise DataError(f"{self.path} is an adapter for {self.architecture}, and the model is {kind}")
        for name, (a, b) in self.matrices.items():
            weight = model.file.weights.get(f"{name}.weight")
            if weight is None:
                raise DataError(f"{self.path} changes {name}.weight, which {model.file.path} does not have")
            if weight.shape != (len(b), a.shape[1]):
                rule = f"{name}.weight must be {list(weight.shape)}, as in {model.file.path}"
                raise DataError(f"{self.path}: {rule}, got {[len(b), a.shape[1]]}")


class AdapterSlots:
    """The side products of a decoder: tensors of a common rank, of which each adapter has a part.

    Args:
        context: the context of the decoder.
        model: the model.
        adapters: adapters by name; only the matrices that these change have side products.
        rank: the sum of the ranks of all adapters that are loaded at a time. Default: the sum of the ranks of `adapters`.

    Raises:
        ValidationError: the sum of the ranks of `adapters` is larger.
        DataError: an adapter belongs to another model.
    """

    def __init__(self, context: MLContext, model: Model, adapters: Mapping[str, LoRA], rank: int | None = None) -> None:
        for adapter in adapters.values():
            adapter.check(model)
        self._context, self._model = context, model
        self.rank = sum(adapter.rank for adapter in adapters.values()) if rank is None else rank
        is_count = isinstance(self.rank, int) and not isinstance(self.rank, bool) and 0 < self.rank <= MAX_RANK
        require(is_count, f"adapter_rank must be in [1, {MAX_RANK}], got {short_repr(self.rank)}")
        self.names = sorted({name for adapter in adapters.values() for name in adapter.matrices})
        self._owners: list[str | None] = [None] * self.rank
        self._scales = np.zeros(self.rank, np.float32)
        self.tensors = {
            name: context.create_tensor("float32", shape, readable=True, writable=True)
            for name, shape in self.shapes.items()
        }
        for tensor in self.tensors.values():
            write(context, tensor, 0)
        for name, adapter in adapters.items():
            self.load(name, adapter, 1.0)

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shapes of the inputs of the graph."""
        shapes = {SCALES: [self.rank]}
        for name in self.names:
            rows, columns = self._model.file.weights[f"{name}.weight"].shape
            shapes |= {f"{name}.lora_a": [self.rank, columns], f"{name}.lora_b": [rows, self.rank]}
        return shapes

    @property
    def scales(self) -> dict[str, float]:
        """The scale of each adapter, in the order in which they were loaded."""
        return {name: float(self._scales[k]) for k, name in enumerate(self._owners) if name is not None}

    def load(self, name: str, adapter: LoRA, scale: float) -> None:
        """Load an adapter. One of the same name is replaced.

        Raises:
            ValidationError: there is no room for its rank, or it changes matrices without side products.
            DataError: it belongs to another model.
        """
        _check_scale(name, scale)
        adapter.check(self._model)
        if others := sorted(set(adapter.matrices) - set(self.names)):
            rule = "a decoder has side products for the matrices that its first adapters change"
            require(False, f"adapter {short_repr(name)} changes {', '.join(others[:3])}: {rule}")
        free = [k for k, owner in enumerate(self._owners) if owner in (None, name)]
        rule = f"adapter {short_repr(name)} has a rank of {adapter.rank}, and {len(free)} of {self.rank} are free"
        require(adapter.rank <= len(free), f"{rule}; `adapter_rank` of the decoder makes more room")
        self.drop(name, missing_ok=True)
        slots = free[: adapter.rank]
        for matrix in self.names:
            a, b = adapter.matrices.get(matrix, (None, None))
            self._store(f"{matrix}.lora_a", slots, a)
            self._store(f"{matrix}.lora_b", slots, None if b is None else b.T)
        for k in slots:
            self._owners[k] = name
        self.scale({name: scale})

    def _store(self, name: str, slots: list[int], rows: np.ndarray | None) -> None:
        """Write rows of a, or columns of b; zeros for missing ones."""
        tensor = self.tensors[name]
        values = np.array(read(self._context, tensor))
        part = values if name.endswith("a") else values.T
        part[slots] = 0
        if rows is not None:
            part[slots[: len(rows)]] = rows
        write(self._context, tensor, values)

    def drop(self, name: str, *, missing_ok: bool = False) -> None:
        """Forget an adapter; its rank becomes free.

        Raises:
            ValidationError: there is no such adapter.
        """
        require(missing_ok or name in self._owners, self._rule(name))
        for k, owner in enumerate(self._owners):
            if owner == name:
                self._owners[k], self._scales[k] = None, 0
        write(self._context, self.tensors[SCALES], self._scales)

    def scale(self, scales: Mapping[str, float]) -> None:
        """Change the scales of some adapters.

        Raises:
            ValidationError: there is no such adapter, or a scale is not finite.
        """
        for name, scale in scales.items():
            require(name in self._owners, self._rule(name))
            _check_scale(name, scale)
        for k, owner in enumerate(self._owners):
            if owner in scales:
                self._scales[k] = scales[owner]  # type: ignore[index]
        write(self._context, self.tensors[SCALES], self._scales)

    def _rule(self, name: str) -> str:
        names = ", ".join(map(repr, self.scales)) or "none"
        return f"there is no adapter {short_repr(name)}; loaded are: {names}"


MAX_SCALE = 1e30
"""The largest scale of an adapter: products with larger scales overflow."""


def _check_scale(name: str, scale: Any) -> None:
    is_number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
    rule = f"must be a finite number in [{-MAX_SCALE:g}, {MAX_SCALE:g}], got {short_repr(scale)}"
    require(is_number and abs(scale) <= MAX_SCALE, f"the scale of adapter {short_repr(name)} {rule}")
