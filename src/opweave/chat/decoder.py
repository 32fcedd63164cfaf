"""A language model with a cache of the tokens so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, get_args

import numpy as np

from ..compile.completion import compile_together, wait_at_first_use
from ..context.builder import NamedBuilder
from ..context.context import MLContext
from ..context.graph import MLGraph, state_of
from ..context.tensor import MLTensor
from ..support.cache import Cache
from ..support.errors import require
from ..support.names import either, short_repr
from .adapters import AdapterSlots, LoRA
from .model import CacheType, Model, network
from .sampling import CompiledSampler, Sampler, is_integer
from .transfer import read, write

CHUNK = 512
"""The largest number of tokens of a prompt that the network reads at once."""

SHORT = 64
"""Tokens of a short prompt, for which GPUs with tensor cores have special kernels."""

MAX_SCORES = 2**22
"""The largest number of scores of a layer in a pass on the host, whose engines store them: 16 MB in float32."""

CHOICES = 8
"""Number of graphs of samplers that are kept: a sampler has one with a mask, and one without."""

PROMPTS = 4
"""Number of prompt lengths whose tensors are kept."""


class Decoder:
    """A language model with its KV cache.

    One graph reads prompts of all lengths, and single tokens.

    Args:
        model: sizes and weights.
        context: the context to run in.
        room: maximum number of tokens in the cache.
        cache: the data type of the keys and values: "float32", "float16", or "int8" with a scale for each head and position.
        adapters: adapters by name, each with a scale of 1. The graph has side products for the matrices that they change;
            further adapters of these matrices may be loaded later. None: no side products.
        adapter_rank: the sum of the ranks of all adapters that are loaded at a time. Default: that of `adapters`.

    Raises:
        ValidationError: the model was trained for less room, the cache has another data type, or the sum of the ranks of
            `adapters` is larger than `adapter_rank`.
        DataError: an adapter belongs to another model.

    Attributes:
        tokens: the tokens in the cache.
    """

    def __init__(
        self,
        model: Model,
        context: MLContext,
        room: int,
        *,
        cache: CacheType = "float32",
        adapters: Mapping[str, LoRA] | None = None,
        adapter_rank: int | None = None,
    ) -> None:
        rule = f"room must be in [1, {model.sizes.context}], got {short_repr(room)}"
        require(is_integer(room) and 0 < room <= model.sizes.context, rule)
        rule = f"cache must be {either(list(map(repr, get_args(CacheType))))}, got {short_repr(cache)}"
        require(isinstance(cache, str) and cache in get_args(CacheType), rule)
        self.model, self.context, self.room, self.cache = model, context, room, cache
        require(bool(adapters) or adapter_rank is None, "adapter_rank must come with adapters")
        self._slots = AdapterSlots(context, model, adapters, adapter_rank) if adapters else None
        self.tokens: list[int] = []
        self._is_on_host, self._is_built, self._is_compiled = context.backend.space.is_host, False, False
        self._graph: MLGraph | None = None
        self._choices: Cache[tuple[Sampler, bool], CompiledSampler] = Cache(CHOICES, raw=True)
        s = model.sizes
        arrays = s.cache(room, cache).items()
        self._past = {f"{kind}.{n}": self._zeros(*desc) for n in range(s.layers) for kind, desc in arrays}
        self._length, self._token = self._zeros("int32", [1]), self._zeros("int32", [1, 1])
        self._held: int | None = None  # the token in `_token`
        self._prompts: Cache[int, MLTensor] = Cache(PROMPTS, on_drop=MLTensor.destroy)
        self._logits = self._zeros("float32", [1, 1, s.words])
        most = MAX_SCORES // (s.heads * room) if self._is_on_host else CHUNK
        self._chunk = max(1, min(CHUNK, most))

    def _zeros(self, data_type: Any, shape: Sequence[int]) -> MLTensor:
        return self.context.create_tensor(data_type, shape, readable=True, writable=True)

    def forget(self, length: int) -> None:
        """Keep only the first `length` tokens in the cache.

        Raises:
            ValidationError: `length` is negative, or no integer.
        """
        require(is_integer(length) and length >= 0, f"length must be 0 or more, got {short_repr(length)}")
        del self.tokens[length:]

    # Adapters ---------------------------------------------------------------------------------------------------------

    @property
    def adapters(self) -> dict[str, float]:
        """The scale of each adapter, by name."""
        return {} if self._slots is None else self._slots.scales

    def load_adapter(self, name: str, adapter: LoRA, scale: float = 1.0) -> None:
        """Load an adapter; one of the same name is replaced. Nothing is compiled. The tokens in the cache are forgotten.

        Args:
            name: a name for the adapter.
            adapter: the adapter.
            scale: the factor of its side products, besides the scale of the file.

        Raises:
            ValidationError: the decoder was made without adapters, the adapter changes matrices that the first adapters do not
                change, or there is no room for its rank.
            DataError: it belongs to another model.
        """
        self._with_slots().load(name, adapter, scale)
        self.forget(0)

    def scale_adapters(self, scales: Mapping[str, float]) -> None:
        """Change the scales of adapters; 0 switches one off. The tokens in the cache are forgotten if a scale changes.

        Args:
            scales: the new scales by name; other adapters keep theirs.

        Raises:
            ValidationError: there is no such adapter, or a scale is not finite.
        """
        slots = self._with_slots()
        before = slots.scales
        slots.scale(scales)
        if slots.scales != before:
            self.forget(0)

    def drop_adapter(self, name: str) -> None:
        """Forget an adapter, and the tokens in the cache. The adapter's rank becomes free for others.

        Raises:
            ValidationError: there is no such adapter.
        """
        self._with_slots().drop(name)
        self.forget(0)

    def _with_slots(self) -> AdapterSlots:
        require(
            self._slots is not None, "a decoder without side products takes no adapters: pass `adapters` to Decoder"
        )
        assert self._slots is not None
        return self._slots

    # Tokens -----------------------------------------------------------------------------------------------------------

    def feed(self, tokens: Sequence[int]) -> np.ndarray:
        """Read tokens.

        Args:
            tokens: one or more tokens that follow the tokens in the cache.

        Returns:
            The logits of the next token, float32 [words]; valid until the next call.

        Raises:
            ValidationError: no tokens, unknown ones, or no room for them.
        """
        self._read(tokens)
        logits: np.ndarray = read(self.context, self._logits).reshape(-1)
        return logits

    def choose(self, tokens: Sequence[int], sampler: Sampler, allowed: np.ndarray | None = None) -> int:
        """Read tokens, and choose the next one on the device: nothing but this token is read from it.

        Args:
            tokens: one or more tokens that follow the tokens in the cache.
            sampler: chooses the token. Its graph is compiled when it is new.
            allowed: bool [words], the tokens to choose among, at least one. Default: all.

        Raises:
            ValidationError: no tokens, unknown ones, or no room for them; a logit is NaN, or the largest one is infinite.
        """
        self._read(tokens)
        choice = self._choice(sampler, is_masked=allowed is not None)
        self._held = None
        # The next pass reads the token from the memory where the choice writes it.
        mask = () if allowed is None else (allowed,)
        self._held = choice.choose(self._logits, self.tokens, self._token, *mask)
        return self._held

    def _choice(self, sampler: Sampler, *, is_masked: bool) -> CompiledSampler:
        key = sampler, is_masked
        choice = self._choices.get(key)
        if choice is None:
            options = {"is_masked": True} if is_masked else {}
            choice = self._choices.put(key, sampler.compile(self.context, self.model.sizes.words, **options))
        return choice

    def _read(self, tokens: Sequence[int]) -> None:
        tokens, words, left = list(tokens), self.model.sizes.words, self.room - len(self.tokens)
        require(len(tokens) > 0, "there must be a token to feed")
        require(all(map(is_integer, tokens)), f"tokens must be integers, got {short_repr(tokens)}")
        require(min(tokens) >= 0 and max(tokens) < words, f"tokens must be in [0, {words}), got {tokens}")
        require(len(tokens) <= left, f"{len(tokens)} tokens do not fit into the {left} that are left of {self.room}")
        if not (self._is_on_host or self._is_built):
            self.build()
        for start in range(0, len(tokens), self._chunk):
            self._pass(tokens[start : start + self._chunk])

    def _pass(self, tokens: list[int]) -> None:
        """Run the graph for some tokens."""
        inputs = self._inputs(tokens)
        write(self.context, self._length, len(self.tokens))
        graph = self.graph
        # The first pass compiles the graph.
        with self._release_after_compiling():
            # The KV cache is updated in place: the same tensors are inputs and outputs.
            self.context.dispatch(graph, inputs, {"logits": self._logits, **self._past})
        self._is_compiled = True
        self.tokens += tokens

    def _release_after_compiling(self) -> AbstractContextManager[None]:
        return nullcontext() if self._is_compiled else self.model.releasing()

    def _inputs(self, tokens: list[int]) -> dict[str, MLTensor]:
        """The inputs of the graph for a pass with some tokens."""
        sides = {} if self._slots is None else self._slots.tensors
        return {"tokens": self._source(tokens), "length": self._length, **self._past, **sides}

    def _source(self, tokens: list[int]) -> MLTensor:
        if len(tokens) > 1:
            source = self._prompts.get(len(tokens))
            if source is None:
                source = self._prompts.put(len(tokens), self._zeros("int32", [1, len(tokens)]))
            write(self.context, source, np.array(tokens, np.int32))
            return source
        if self._held != tokens[0]:
            write(self.context, self._token, tokens[0])
            self._held = tokens[0]
        return self._token

    @property
    def graph(self) -> MLGraph:
        """The graph of the network. It is compiled when it first runs."""
        if self._graph is None:
            builder = NamedBuilder(self.context)
            shapes = None if self._slots is None else self._slots.shapes
            self.model.pack_all()
            self._graph = builder.build(network(builder, self.model, "new", self.room, self.cache, shapes))
        return self._graph

    def build(self, sampler: Sampler | None = None) -> None:
        """Compile the graph now instead of in the first calls of `feed`, by passes whose tokens are forgotten.

        GPUs choose kernels for the numbers of tokens that they see first: a whole chunk, a short prompt, and one token.

        Args:
            sampler: a sampler for `choose` without `allowed`; its graph is compiled beside the network. Default: none; graphs
                of samplers are compiled at their first use.
        """
        if sampler is not None:
            with wait_at_first_use():
                self._choice(sampler, is_masked=False)
        self._is_built, length = True, len(self.tokens)
        lengths = (1,) if self._is_on_host else (self._chunk, SHORT, 1)
        counts = [count for count in dict.fromkeys(min(most, self.room - length) for most in lengths) if count]
        graph = self.graph
        with self._release_after_compiling():
            with compile_together():
                for count in counts:
                    state_of(graph).version("dispatch", self._inputs([0] * count))
            self._is_compiled = True
            for count in counts:
                self._pass([0] * count)
                self.forget(length)
