"""The result of `quantize`: the weights that became narrower, what stayed as it was, errors, sizes and times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..inspect.diff.result import number
from ..support.formatting import duration, json_value, shorten, size, table
from ..support.names import count_of, printable, visible

MAX_ROWS = 16
"""Maximum layers that are printed; `layers` has all of them."""

MAX_TITLE = 44


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """A node of the model that computes with fewer bits.

    Attributes:
        title: the operator and the name of the node.
        weights: the name, data type and shape of the weights, as text; empty if only what it reads is quantised.
        form: the form of the weights in the new model, as text.
        weight_error: rms(new weights - old weights) / rms(old weights); NaN without weights.
        own: the error of the result on the same inputs, rms(difference) / rms(old result); NaN without sample inputs.
        total: the error of the result end to end, where errors of all layers before it count; NaN without sample inputs.
    """

    title: str
    weights: str
    form: str
    weight_error: float
    own: float = math.nan
    total: float = math.nan


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """Weights that stayed as they were.

    Attributes:
        name: the name of the weights, or of a node.
        bytes: their size.
        reason: why.
    """

    name: str
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class OutputError:
    """An output of the model.

    Attributes:
        name: its name.
        relative: rms(difference) / rms(old output) of all samples; for integers the share of elements that differ.
        worst: the same, of the sample where it is largest.
        largest: the largest difference of an element.
    """

    name: str
    relative: float
    worst: float
    largest: float


@dataclass(frozen=True, slots=True, repr=False)
class Quantization:
    """The result of `quantize`; a prompt and `print` show a table.

    Attributes:
        title: what was done, as text.
        files: the files that were written.
        old_bytes: the size of the old model, with its external data.
        new_bytes: the size of the new model, with its external data.
        layers: the nodes that compute with fewer bits, in order.
        kept: the weights that stayed as they were, and why.
        outputs: the errors of the outputs; empty without sample inputs.
        old_seconds: the median time of a run of the old model on this machine; NaN if it was not measured.
        new_seconds: the median time of a run of the new model.
        samples: the number of samples that outputs were compared on.
        notes: further remarks, as text.
    """

    title: str
    files: tuple[Path, ...]
    old_bytes: int
    new_bytes: int
    layers: tuple[LayerDifference, ...]
    kept: tuple[KeptWeights, ...]
    outputs: tuple[OutputError, ...] = ()
    old_seconds: float = math.nan
    new_seconds: float = math.nan
    samples: int = 0
    notes: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """The size of the new model relative to the old one."""
        return self.new_bytes / max(self.old_bytes, 1)

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for tools: plain lists, dictionaries, strings and numbers. Infinite numbers and NaN are strings."""
        data = asdict(self) | {"files": [str(path) for path in self.files], "ratio": self.ratio}
        plain: dict[str, Any] = json_value(data)
        return plain

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return self.text()

    def text(self, rows: int = MAX_ROWS) -> str:
        """The table.

        Args:
            rows: the maximum number of layers: those with the largest own errors, or errors of weights without samples.
        """
        order = sorted(range(len(self.layers)), key=lambda place: _severity(self.layers[place]), reverse=True)
        shown = [self.layers[place] for place in sorted(order[:rows])]
        lines = [self.title, "", *table([_HEAD, *map(_cells, shown)], words=3)]
        if len(self.layers) > len(shown):
            lines.append(f"… {count_of(len(self.layers) - len(shown), 'more layer')}, with smaller errors")
        if self.outputs:
            head = ("output", "error", "worst sample", "largest")
            outputs = [
                (printable(o.name), _number(o.relative), _number(o.worst), _number(o.largest)) for o in self.outputs
            ]
            lines += ["", *table([head, *outputs], words=1)]
        lines += ["", *self.conclusion()]
        return visible("\n".join(lines))

    def conclusion(self) -> list[str]:
        """Summarise sizes, times and what stayed, in a few lines."""
        lines = [f"size   {size(self.new_bytes)}, before {size(self.old_bytes)}: {self.ratio:.3f}x"]
        if not math.isnan(self.new_seconds):
            ratio = self.new_seconds / self.old_seconds
            before = duration(self.old_seconds, self.new_seconds)
            lines.append(f"time   {duration(self.new_seconds)} a run, before {before}: {ratio:.2f}x, on this machine")
        if self.outputs:
            worst = max(self.outputs, key=lambda output: output.relative)
            samples = count_of(self.samples, "sample")
            lines.append(f"error  {_number(worst.relative)} in output {printable(worst.name)}, of {samples}")
        reasons: dict[str, list[KeptWeights]] = {}
        for weights in self.kept:
            reasons.setdefault(weights.reason, []).append(weights)
        for reason, group in sorted(reasons.items(), key=lambda item: -sum(kept.bytes for kept in item[1])):
            total = sum(kept.bytes for kept in group)
            names = ", ".join(shorten(printable(kept.name), MAX_TITLE) for kept in group[:3])
            more = f" and {len(group) - 3} more" if len(group) > 3 else ""
            lines.append(f"kept   {size(total)}, {reason}: {names}{more}")
        return [*lines, *(f"note   {note}" for note in self.notes)]


_HEAD = ("layer", "weights", "became", "weights off by", "own error", "end to end")


def _severity(layer: LayerDifference) -> float:
    errors = [error for error in (layer.own, layer.weight_error) if not math.isnan(error)]
    return errors[0] if errors else -1.0


def _cells(layer: LayerDifference) -> Sequence[str]:
    errors = (layer.weight_error, layer.own, layer.total)
    return (shorten(layer.title, MAX_TITLE), shorten(layer.weights, MAX_TITLE), layer.form, *map(_number, errors))


def _number(value: float) -> str:
    return "" if math.isnan(value) else number(value)
