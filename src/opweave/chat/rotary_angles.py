"""The angles of rotary embeddings, with scaling for texts longer than those of the original training."""

from __future__ import annotations

from math import ceil, floor, log, pi

import numpy as np

from ..support.errors import DataError, NotSupportedError
from .gguf import GGUF
from .metadata import Metadata

Array = np.ndarray

SCALINGS = ("none", "linear", "yarn", "longrope")


class RotaryAngles:
    """The angles of a model.

    Args:
        file: the model.
        about: the metadata of the model's architecture.
        size: elements of a head.
        context: the longest text in training, in tokens.
        local_base: base of the angles in layers that see a window; 0: all layers have the same angles.

    Raises:
        NotSupportedError: the scaling is not one of `SCALINGS`, or has factors of YaRN that fit no others.
        DataError: a property has the wrong type, or is out of range.

    Attributes:
        pairs: the number of rotated pairs in a head.
    """

    def __init__(self, file: GGUF, about: Metadata, size: int, context: int, local_base: float) -> None:
        self._file, self._context = file, context
        self._base = about.real("rope.freq_base", 10000.0)
        self._local_base = about.real("rope.freq_base_swa", local_base) if local_base else 0.0
        rotated = about.count("rope.dimension_count", size - size % 2)
        if rotated % 2 or rotated > size:
            about.refuse("rope.dimension_count", f"an even number of at most {size}, the size of a head")
        self.pairs = rotated // 2
        self._kind = about.text("rope.scaling.type", "linear")
        self._factor = about.real("rope.scaling.factor", about.real("rope.scale_linear", 1.0))
        if self._kind not in SCALINGS:
            names = ", ".join(SCALINGS)
            raise NotSupportedError(f"{file.path}: its rotary embedding is scaled ({self._kind}); supported: {names}")
        self._first_context = about.count("rope.scaling.original_context_length", context)
        self._magnitude = about.real("rope.scaling.attn_factor", 1.0)
        self._fast = about.real("rope.scaling.yarn_beta_fast", 32.0)
        self._slow = about.real("rope.scaling.yarn_beta_slow", 1.0)
        # Negative factors count as missing in llama.cpp.
        share = about.finite("rope.scaling.yarn_ext_factor", -1.0)
        self._unscaled_share = share if share >= 0 else float(self._kind == "yarn")
        self._yarn_magnitude = about.real("rope.scaling.yarn_attn_factor", 1.0)
        fault = ""
        if self._unscaled_share and self._kind != "yarn":
            fault = f"rope.scaling.yarn_ext_factor must be 0 with the scaling {self._kind}, got {share:g}"
        elif self._unscaled_share and self._yarn_magnitude != 1:
            # Newer releases of llama.cpp derive the magnitude from the scaling's factor instead, and older ones multiply.
            magnitude = f"{self._yarn_magnitude:g}"
            fault = f"rope.scaling.yarn_attn_factor must be 1 unless yarn_ext_factor is 0, got {magnitude}"
        if fault:
            raise NotSupportedError(f"{file.path}: {fault}")

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of the optional weights that divide the frequencies."""
        return dict.fromkeys(
            ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"), (self.pairs,)
        )

    def check(self) -> None:
        """Require that the angles of all positions are finite."""
        for room in (self._first_context, self._context):
            for is_local in (False, True) if self._local_base else (False,):
                with np.errstate(all="ignore"):
                    frequencies, magnitude = self.frequencies(room, is_local=is_local)
                    largest = np.abs(frequencies).max(initial=0) * self._context * magnitude
                if not np.isfinite(largest):
                    raise DataError(
                        f"{self._file.path}: the angles of rotary embeddings must be finite; "
                        f"rope.freq_base is {self._base:g}, and rope_freqs.weight may have zeros"
                    )

    def frequencies(self, room: int, *, is_local: bool = False) -> tuple[Array, float]:
        """Return the rotation of each pair from one position to the next, and a factor of all rotated elements.

        Args:
            room: the number of positions. Models with two lists of factors use the long one beyond the original context.
            is_local: whether a layer sees a window.

        Returns:
            The angles in radians, float64 [pairs], and the factor.
        """
        exponents = -np.arange(self.pairs) / max(self.pairs, 1)
        if is_local and self._local_base:
            return np.float64(self._local_base) ** exponents, 1.0
        frequencies: Array = np.float64(self._base) ** exponents
        name = "rope_factors_long" if room > self._first_context else "rope_factors_short"
        for factors in ("rope_freqs", name):
            if (weight := self._file.weights.get(f"{factors}.weight")) is not None:
                frequencies = frequencies / weight.real()
        if self._kind == "yarn" and self._unscaled_share:
            return self._yarn(frequencies), self._magnitude * (1 + 0.1 * log(max(self._factor, 1.0)))
        if self._kind in ("linear", "yarn"):
            frequencies = frequencies / self._factor
        return frequencies, self._magnitude * self._yarn_magnitude

    def _yarn(self, frequencies: Array) -> Array:
        """Divide low frequencies by the factor, and keep a share of high ones (Peng et al., YaRN (2023), arXiv:2309.00071)."""

        def pair(turns: float) -> float:
            """Return the fractional index of the pair that makes `turns` turns in the original context."""
            bases = log(self._base) or float("nan")
            return float(self.pairs * log(self._first_context / (turns * 2 * pi)) / bases)

        low, high = pair(self._fast), pair(self._slow)
        if not (np.isfinite(low) and np.isfinite(high)):
            return np.full_like(frequencies, np.nan)
        low, high = max(floor(low), 0), min(ceil(high), 2 * self.pairs - 1)
        ramp = np.clip((np.arange(self.pairs) - low) / max(high - low, 0.001), 0, 1)
        unscaled = self._unscaled_share * (1 - ramp)
        mixed: Array = frequencies / self._factor * (1 - unscaled) + frequencies * unscaled
        return mixed
