"""A language model with a cache of the tokens so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..context.builder import MLGraphBuilder
from ..context.context import MLContext
from ..context.graph import MLGraph
from ..context.tensor import MLTensor
from ..support.errors import require
from .model import Model, network

CHUNK = 64
"""Number of tokens of a prompt that the network reads at once. The last chunk of a prompt is padded, so that one graph serves
all prompts."""


class Decoder:
    """A language model with its KV cache.

    Args:
        model: sizes and weights.
        context: the context to run in.
        room: maximum number of tokens in the cache.

    Raises:
        ValidationError: the model was trained for less room.

    Attributes:
        tokens: the tokens in the cache.
    """

    def __init__(self, model: Model, context: MLContext, room: int) -> None:
        require(0 < room <= model.sizes.context, f"room must be in [1, {model.sizes.context}], got {room}")
        self.model, self.context, self.room = model, context, room
        self.tokens: list[int] = []
        self._on_host = context.backend.space.is_host
        self._graphs: dict[int, MLGraph] = {}
        s = model.sizes
        names = [f"{kind}.{n}" for n in range(s.layers) for kind in ("key", "value")]
        shape = [1, s.groups, room, s.size]
        self._past = {name: self._zeros("float32", shape) for name in names}
        self._x = {count: self._zeros("float32", [1, count, s.width]) for count in (1, CHUNK)}
        self._length, self._last = (self._zeros("int32", [1]) for _ in range(2))
        self._logits = self._zeros("float32", [1, 1, s.words])

    def _zeros(self, data_type: Any, shape: Sequence[int]) -> MLTensor:
        return self.context.create_tensor(data_type, shape, readable=True, writable=True)

    def _write(self, tensor: MLTensor, values: Any) -> None:
        """Fill a tensor; on the host without an intermediate copy."""
        if self._on_host:
            tensor.numpy()[...] = values
        else:
            self.context.write_tensor(tensor, np.broadcast_to(np.asarray(values, tensor.data_type), tensor.shape))

    def forget(self, length: int) -> None:
        """Keep only the first `length` tokens in the cache."""
        del self.tokens[length:]

    def feed(self, tokens: Sequence[int]) -> np.ndarray:
        """Read tokens.

        Args:
            tokens: one or more tokens that follow the tokens in the cache.

        Returns:
            The logits of the next token, float32 [words]; valid until the next call.

        Raises:
            ValidationError: no tokens, unknown ones, or no room for them.
        """
        words, left = self.model.sizes.words, self.room - len(self.tokens)
        require(len(tokens) > 0, "there must be a token to feed")
        require(min(tokens) >= 0 and max(tokens) < words, f"tokens must be in [0, {words}), got {list(tokens)}")
        require(len(tokens) <= left, f"{len(tokens)} tokens do not fit into the {left} that are left of {self.room}")
        waiting = list(tokens)
        while waiting:
            count = CHUNK if len(waiting) > 1 and len(self.tokens) + CHUNK <= self.room else 1
            self._pass(waiting[:count], count)
            del waiting[:count]
        output = self._logits.numpy() if self._on_host else self.context.read_tensor(self._logits)
        logits: np.ndarray = output.reshape(-1)
        return logits

    def _pass(self, tokens: Sequence[int], count: int) -> None:
        """Run the graph for `count` tokens. Later tokens overwrite the keys and values of padding."""
        graph = self._graph(count)
        x = self.model.embedded(np.array(tokens))
        if len(tokens) < count:
            x = np.pad(x, [(0, 0), (0, count - len(tokens)), (0, 0)])
        self._write(self._x[count], x)
        self._write(self._length, len(self.tokens))
        self._write(self._last, len(tokens) - 1)
        inputs = {"x": self._x[count], "length": self._length, "last": self._last, **self._past}
        # The KV cache is updated in place: the same tensors are inputs and outputs.
        self.context.dispatch(graph, inputs, {"logits": self._logits, **self._past})
        self.tokens += tokens

    def build(self) -> None:
        """Compile the graphs now instead of in the first calls of `feed`."""
        for count in (1, CHUNK) if self.room >= CHUNK else (1,):
            self._graph(count)

    def _graph(self, count: int) -> MLGraph:
        if count not in self._graphs:
            builder = MLGraphBuilder(self.context)
            self._graphs[count] = builder.build(network(builder, self.model, count, self.room))
        return self._graphs[count]
