"""Choose the next token."""

from __future__ import annotations

import numpy as np

from ..support.errors import require
from ..support.names import short_repr


class Sampler:
    """Chooses tokens by their logits.

    Args:
        temperature: divides the logits; 0 always chooses the most likely token.
        top_k: choose among this number of the most likely tokens; 0: among all.
        top_p: of the `top_k` tokens, choose among the most likely whose probabilities add up to this number.
        seed: the seed of the random numbers; None: a new one each time.

    Raises:
        ValidationError: a value out of range.

    >>> logits = np.log([0.5, 0.3, 0.2])
    >>> Sampler(temperature=0)(logits)
    0
    >>> sampler = Sampler(temperature=1, top_k=0, top_p=0.75, seed=0)
    >>> chosen = [sampler(logits) for _ in range(100)]
    >>> sorted(set(chosen)), 50 < chosen.count(0) < 75
    ([0, 1], True)
    """

    def __init__(
        self, *, temperature: float = 0.8, top_k: int = 40, top_p: float = 0.95, seed: int | None = None
    ) -> None:
        for name, value in {"temperature": temperature, "top_p": top_p}.items():
            require(isinstance(value, (int, float, np.number)) and not isinstance(value, bool),
                    f"{name} must be a number, got {short_repr(value)}")  # fmt: skip
        for name, value in {"top_k": top_k, "seed": 0 if seed is None else seed}.items():
            require(isinstance(value, (int, np.integer)) and not isinstance(value, bool),
                    f"{name} must be an integer, got {short_repr(value)}")  # fmt: skip
        require(0 <= temperature < np.inf, f"temperature must be 0 or more, got {short_repr(temperature)}")
        require(top_k >= 0, f"top_k must be 0 or more, got {short_repr(top_k)}")
        require(0 < top_p <= 1, f"top_p must be in (0, 1], got {short_repr(top_p)}")
        require(seed is None or seed >= 0, f"seed must be 0 or more, got {short_repr(seed)}")
        self._temperature, self._top_k, self._top_p = temperature, top_k, top_p
        self._random = np.random.default_rng(seed)

    def __call__(self, logits: np.ndarray) -> int:
        """Choose a token by its logits [words].

        Raises:
            ValidationError: a logit is NaN, or the largest one is infinite, by weights of the model or by overflow.
        """
        top = logits.max()
        require(bool(np.isfinite(top)), f"logits must be numbers of which the largest is finite, got {top}")
        if self._temperature == 0:
            return int(logits.argmax())
        tokens = np.arange(len(logits))
        if 0 < self._top_k < len(logits):
            tokens = np.argpartition(logits, -self._top_k)[-self._top_k :]
        tokens = tokens[np.argsort(-logits[tokens], kind="stable")]
        scores = logits[tokens].astype(np.float64)
        weights = np.exp((scores - scores[0]) / self._temperature)
        weights /= weights.sum()
        count = int(np.searchsorted(weights.cumsum(), self._top_p)) + 1
        probabilities = weights[:count] / weights[:count].sum()
        return int(tokens[self._random.choice(len(probabilities), p=probabilities)])
