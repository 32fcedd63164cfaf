"""Choose the next token, on the device that computed the logits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import composites
from ..context.builder import MLGraphBuilder
from ..context.context import MLContext, current_context
from ..context.tensor import MLTensor
from ..core.graph import MLOperand
from ..support.errors import ValidationError, require
from ..support.names import short_repr
from .transfer import read, write

RECENT = 64
"""Number of tokens whose repetition is penalised, as in llama.cpp."""

LOWEST = -1e30
"""The logit of tokens that are not allowed: finite, since shaders may assume that no number is infinite."""

HOTTEST = 1e27
"""The largest temperature in use, with which all allowed tokens are equally likely: exp(LOWEST / HOTTEST) is 0."""

HALVINGS = 40
"""Steps that find the least likely token of `top_p` among all tokens: more than enough to separate two logits in float32."""


def is_integer(value: object) -> bool:
    """Whether a value is an integer, and no boolean."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _check_seed(seed: int | None) -> None:
    """Require None, or an integer of at least 0."""
    require(seed is None or is_integer(seed), f"seed must be an integer, got {short_repr(seed)}")
    require(seed is None or seed >= 0, f"seed must be 0 or more, got {short_repr(seed)}")


class Sampler:
    """Chooses tokens by their logits.

    The choice is a graph, which runs on the device of the logits; only the token is read. The host makes the random numbers,
    so that a seed gives the same numbers on all devices.

    Args:
        temperature: divides the logits; 0 always chooses the most likely token.
        top_k: choose among this number of the most likely tokens; 0: among all.
        top_p: choose among the most likely of the `top_k` tokens, whose probabilities add up to this number.
        min_p: leave out tokens with less than this share of the probability of the most likely one; 0: none.
        seed: the seed of the random numbers; None: a new one each time.
        repetition_penalty: divides the positive logits of the last 64 tokens, and multiplies the negative ones; 1: no penalty.

    Raises:
        ValidationError: a value out of range.

    Keskar et al., CTRL (2019), arXiv:1909.05858; Holtzman et al., The Curious Case of Neural Text Degeneration (2019),
    arXiv:1904.09751; Nguyen et al., Turning Up the Heat: Min-p Sampling (2024), arXiv:2407.01082.

    >>> logits = np.log([0.5, 0.3, 0.2])
    >>> Sampler(temperature=0)(logits)
    0
    >>> sampler = Sampler(temperature=1, top_k=0, top_p=0.75, seed=0)
    >>> chosen = [sampler(logits) for _ in range(100)]
    >>> sorted(set(chosen)), 50 < chosen.count(0) < 75
    ([0, 1], True)
    """

    def __init__(
        self,
        *,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.0,
        seed: int | None = None,
        repetition_penalty: float = 1.0,
    ) -> None:
        penalty = {"repetition_penalty": repetition_penalty}
        numbers = {"temperature": temperature, "top_p": top_p, "min_p": min_p, **penalty}
        for name, value in numbers.items():
            require(isinstance(value, (int, float, np.number)) and not isinstance(value, bool),
                    f"{name} must be a number, got {short_repr(value)}")  # fmt: skip
            is_in_range = not isinstance(value, int) or abs(value) <= sys.float_info.max
            require(is_in_range, f"{name} must be in the range of float64, got {short_repr(value)}")
        require(is_integer(top_k), f"top_k must be an integer, got {short_repr(top_k)}")
        require(0 <= temperature < np.inf, f"temperature must be 0 or more, got {short_repr(temperature)}")
        require(top_k >= 0, f"top_k must be 0 or more, got {short_repr(top_k)}")
        require(0 < top_p <= 1, f"top_p must be in (0, 1], got {short_repr(top_p)}")
        require(0 <= min_p <= 1, f"min_p must be in [0, 1], got {short_repr(min_p)}")
        _check_seed(seed)
        rule = f"repetition_penalty must be greater than 0, got {short_repr(repetition_penalty)}"
        require(0 < repetition_penalty < np.inf, rule)
        self._temperature, self._top_k, self._top_p = float(temperature), int(top_k), float(top_p)
        self._penalty, self._min_p = float(repetition_penalty), float(min_p)
        # In float32, neither 0 nor infinity, which would make NaN of equal logits, or of infinite ones; and so small that
        # tokens that are not allowed have no weight.
        self._divisor = min(max(self._temperature, 1e-30), HOTTEST)
        self._random = np.random.default_rng(seed)
        self._own: CompiledSampler | None = None

    def __call__(self, logits: np.ndarray, recent: Sequence[int] = ()) -> int:
        """Choose a token by its logits, in the context of arrays (`with context:`, or the processor).

        Args:
            logits: an array [words].
            recent: the tokens so far, of which the last ones may be penalised.

        Raises:
            ValidationError: a logit is NaN, or the largest one is infinite, by weights of the model or by overflow.
        """
        context, array = current_context(), np.asarray(logits, np.float32).reshape(1, 1, -1)
        own = self._own
        if own is None or own.context is not context or own.words != array.size:
            own = self._own = self.compile(context, array.size)
        source = context.create_tensor("float32", array.shape, readable=True, writable=True)
        target = context.create_tensor("int32", [1, 1], readable=True)
        write(context, source, array)
        return own.choose(source, recent, target)

    def reseed(self, seed: int | None) -> None:
        """Begin the random numbers again, also those of graphs that are compiled.

        Args:
            seed: the seed; None: a new one.

        >>> sampler = Sampler(temperature=1, seed=5)
        >>> logits, first = np.zeros(100), sampler(np.zeros(100))
        >>> sampler.reseed(5)
        >>> sampler(logits) == first
        True
        """
        _check_seed(seed)
        self._random.bit_generator.state = np.random.default_rng(seed).bit_generator.state

    def compile(self, context: MLContext, words: int, *, is_masked: bool = False) -> CompiledSampler:
        """Compile the graph of the choice.

        Args:
            context: the context that computes the logits.
            words: the number of tokens in the vocabulary.
            is_masked: whether each choice says which tokens are allowed.

        >>> import opweave as ow
        >>> context = ow.ml.create_context(device="reference")
        >>> logits = context.tensor_from(np.float32([[[0, 3, 1]]]))
        >>> token = context.create_tensor("int32", [1, 1], readable=True)
        >>> Sampler(temperature=0).compile(context, words=3).choose(logits, [], token)
        1
        """
        return CompiledSampler(self, self._random, context, words, is_masked=is_masked)

    def network(self, b: MLGraphBuilder, words: int, *, is_masked: bool = False) -> dict[str, MLOperand]:
        """Build the choice of a token.

        The inputs of the graph are `logits`, float32 [1, 1, words]; if the choice is random, `chance`, a number in [0, 1),
        float32 [1]; if repetitions are penalised, `recent`, the last tokens, int32 [64], -1 for none except in the last place;
        and if it is masked, `mask`, float32 [words], 0 for tokens that are allowed, and -1e30 for others.

        Args:
            b: the builder.
            words: the number of tokens in the vocabulary.
            is_masked: whether there is a mask.

        Returns:
            The output `token`, int32 [1, 1]: -1 if a logit is NaN, or if the largest one is infinite.

        >>> import opweave as ow
        >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
        >>> Sampler(temperature=0).network(builder, words=3)["token"].desc
        Desc(data_type='int32', shape=(1, 1))
        """
        x: Any = b.input("logits", "float32", [1, 1, words]).reshape([1, words])
        if self._penalty != 1:
            x = self._penalise(b, x, b.input("recent", "int32", [RECENT]))
        if is_masked:
            x = x + b.input("mask", "float32", [words]).reshape([1, words])
        if self._temperature > 0:
            chance = b.input("chance", "float32", [1]).reshape([1, 1])
            choose = self._of_few if 0 < self._top_k < words else self._of_all
            token, is_valid = choose(b, x, chance)
        else:
            token, is_valid = b.arg_max(x, 1, keep_dimensions=True, output_data_type="int32"), self._is_valid(b, x)
        return {"token": b.where(is_valid, token, -1)}

    @staticmethod
    def _is_valid(b: MLGraphBuilder, x: Any) -> Any:
        """Whether no logit [1, words] is NaN, and the largest one is finite."""
        has_nan = b.reduce_max(b.cast(b.is_nan(x), "float32"), axes=[1], keep_dimensions=True)
        top = b.reduce_max(x, axes=[1], keep_dimensions=True)
        return b.logical_and(b.equal(has_nan, 0.0), b.logical_not(b.is_infinite(top)))

    def _penalise(self, b: MLGraphBuilder, x: Any, recent: Any) -> Any:
        """The logits [1, words], with those of recent tokens changed. Equal tokens get equal values, in any order."""
        last = recent[RECENT - 1 :]
        tokens = b.where(b.lesser(recent, 0), last, recent).reshape([1, RECENT])
        old = b.gather_elements(x, tokens, axis=1)
        new = b.where(b.lesser(old, 0.0), old * self._penalty, old * (1 / self._penalty))
        new = b.where(b.lesser(last, 0), old, new)  # there are no tokens
        return b.scatter_elements(x, tokens, new, axis=1)

    def _of_few(self, b: MLGraphBuilder, x: Any, chance: Any) -> tuple[Any, Any]:
        """The token, and whether the logits are valid. NaN counts as the largest logit."""
        scores, tokens = composites.top_k(x, self._top_k, index_type="int32")
        top = scores[:, :1]
        weights = b.exp((scores - top) / self._divisor)
        if self._top_p < 1:
            total = b.reduce_sum(weights, axes=[1], keep_dimensions=True)
            before = b.cumulative_sum(weights, 1, exclusive=True)
            weights = b.where(b.lesser(before, total * self._top_p), weights, 0.0)
        weights = self._likely(b, weights)
        is_invalid = b.logical_or(b.is_nan(top), b.is_infinite(top))
        return b.gather_elements(tokens, self._place(b, weights, chance), axis=1), b.logical_not(is_invalid)

    def _of_all(self, b: MLGraphBuilder, x: Any, chance: Any) -> tuple[Any, Any]:
        """The token, and whether the logits are valid. No sort: halvings find the weight from which on tokens count."""
        top = b.reduce_max(x, axes=[1], keep_dimensions=True)
        weights = b.exp((x - top) / self._divisor)
        if self._top_p < 1:
            least = b.reduce_sum(weights, axes=[1], keep_dimensions=True) * self._top_p
            # The weights of the tokens from `low` on add up to enough; those from `high` on do not.
            low, high = (b.constant(np.full((1, 1), end, np.float32)) for end in (0, 2))
            for _ in range(HALVINGS):
                middle = (low + high) * 0.5
                sums = b.reduce_sum(
                    b.where(b.greater_or_equal(weights, middle), weights, 0.0), axes=[1], keep_dimensions=True
                )
                is_enough = b.greater_or_equal(sums, least)
                low, high = b.where(is_enough, middle, low), b.where(is_enough, high, middle)
            weights = b.where(b.greater_or_equal(weights, low), weights, 0.0)
        return self._place(b, self._likely(b, weights), chance), self._is_valid(b, x)

    def _likely(self, b: MLGraphBuilder, weights: Any) -> Any:
        """The weights of the tokens that `min_p` keeps; the largest weight is 1."""
        return b.where(b.greater_or_equal(weights, self._min_p), weights, 0.0) if self._min_p else weights

    @staticmethod
    def _place(b: MLGraphBuilder, weights: Any, chance: Any) -> Any:
        """The place of a token, drawn by its weight [1, tokens]: the number of sums of weights up to the random number."""
        sums = b.cumulative_sum(weights, 1)
        total = sums[:, -1:]
        # total * chance may be rounded to the total. Sums equal to the total do not count, so that no token without weight at
        # the end is drawn.
        is_passed = b.logical_and(b.lesser_or_equal(sums, total * chance), b.lesser(sums, total))
        return b.reduce_sum(b.cast(is_passed, "int32"), axes=[1], keep_dimensions=True)


class CompiledSampler:
    """The compiled choice of a token.

    Args:
        sampler: the options.
        random: makes the random numbers.
        context: the context that computes the logits.
        words: the number of tokens in the vocabulary.
        is_masked: whether `choose` gets the tokens that are allowed.
    """

    def __init__(
        self, sampler: Sampler, random: np.random.Generator, context: MLContext, words: int, *, is_masked: bool = False
    ) -> None:
        self.context, self.words, self._random = context, words, random
        builder = MLGraphBuilder(context)
        self._graph = builder.build(sampler.network(builder, words, is_masked=is_masked))
        self._inputs = {
            name: context.create_tensor(desc.data_type, desc.shape, readable=True, writable=True)
            for name, desc in self._graph.inputs.items()
            if name != "logits"
        }

    def choose(
        self, logits: MLTensor, recent: Sequence[int], target: MLTensor, allowed: np.ndarray | None = None
    ) -> int:
        """Choose a token.

        Args:
            logits: float32 [1, 1, words].
            recent: the tokens so far.
            target: int32 [1, 1], readable, which gets the token, too.
            allowed: bool [words], the tokens to choose among, at least one; for a graph with a mask.

        Raises:
            ValidationError: a logit is NaN, or the largest one is infinite, by weights of the model or by overflow.
        """
        if "chance" in self._inputs:
            write(self.context, self._inputs["chance"], self._random.random(dtype=np.float32))
        if "recent" in self._inputs:
            last = np.full(RECENT, -1, np.int32)
            if last_tokens := list(recent[-RECENT:]):
                last[-len(last_tokens) :] = last_tokens
            write(self.context, self._inputs["recent"], last)
        if allowed is not None:
            write(self.context, self._inputs["mask"], np.where(allowed, np.float32(0), np.float32(LOWEST)))
        self.context.dispatch(self._graph, {"logits": logits, **self._inputs}, {"token": target})
        token = int(read(self.context, target).item())
        if token < 0:
            largest = read(self.context, logits).max()
            raise ValidationError(f"logits must be numbers of which the largest is finite, got {largest}")
        return token
