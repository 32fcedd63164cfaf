"""Models that are compiled once for many input shapes: sizes that change have names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...core.guards import Guards
from ...core.size_values import match_sizes
from ...core.sizes import Size
from ...support.records import record
from ..model.shape_keys import Shapes

if TYPE_CHECKING:
    from ..model.arguments import Argument
    from .compiled import CompiledModel


def named_shapes(inputs: Iterable[Argument], shapes: Shapes) -> tuple[dict[str, Any], dict[str, int]]:
    """The shapes of inputs with names for their dynamic dimensions, and the size of each name.

    A name of the model that has two sizes in a call counts as two names: ONNX Runtime accepts such calls.
    """
    sizes: dict[str, int] = {}
    named: dict[str, Any] = {}
    declared = {argument.name: argument.dims for argument in inputs}
    for name, shape in shapes.items():
        dims: list[Any] = []
        for axis, size in enumerate(shape or ()):
            dim = (declared.get(name) or [None] * len(shape or ()))[axis]
            if isinstance(dim, int):
                dims.append(size)
                continue
            text = str(dim or "")
            if text in ("", "?") or sizes.get(text, size) != size:
                text = f"{name}[{axis}]"
            sizes[text] = size
            dims.append(Size(text))
        named[name] = None if shape is None else tuple(dims)
    return named, sizes


def with_numbers(named: Mapping[str, Any], sizes: Mapping[str, int], names: Collection[str]) -> dict[str, Any]:
    """Shapes with numbers in place of some names."""
    return {
        key: shape and tuple(sizes[d.name] if isinstance(d, Size) and d.name in names else d for d in shape)
        for key, shape in named.items()
    }


@record
class NamedModel:
    """A model compiled with names, and the values of deciding inputs that it was compiled for."""

    shapes: Mapping[str, tuple[Any, ...] | None]
    values: Mapping[str, bytes]
    guards: Guards
    compiled: CompiledModel

    def at(self, shapes: Shapes) -> CompiledModel:
        """The model for a call that it was compiled for."""
        sizes = self._sizes(shapes)
        assert sizes is not None, "the model was compiled for these sizes"
        model = self.compiled.at(sizes)
        if model.takes_all_sizes:
            model.named = self
        return model

    def accepts(self, shapes: Shapes) -> bool:
        """Whether the model was compiled for these shapes, too."""
        sizes = self._sizes(shapes)
        return sizes is not None and self.guards.hold(sizes)

    def ratio_to(self, shapes: Shapes) -> float:
        """The largest ratio between a size and the one that kernels were chosen for."""
        return self.guards.ratio_to(self._sizes(shapes) or {})

    def _sizes(self, shapes: Shapes) -> dict[str, int] | None:
        # A call may omit inputs that have an initializer.
        if shapes.keys() != self.shapes.keys():
            return None
        pairs = []
        for name, shape in shapes.items():
            named = self.shapes[name]
            if shape is None or named is None or len(named) != len(shape):
                return None
            pairs.append((named, shape))
        return match_sizes(pairs)


def nearest(models: Iterable[NamedModel], shapes: Shapes, values: Mapping[str, bytes]) -> NamedModel | None:
    """The model for a call; of several, the one whose kernels were chosen for the nearest sizes."""
    items = (model for model in models if model.values == values and model.accepts(shapes))
    return min(items, key=lambda model: model.ratio_to(shapes), default=None)
