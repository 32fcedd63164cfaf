"""Language models from GGUF files: `opweave chat model.gguf`, and its parts.

`Model` has the sizes and weights, `network` builds a graph from them, `Decoder` runs the graph and keeps the KV cache,
`LoRA` is a low-rank change of the weights, `Vocabulary` converts between text and tokens, `Sampler` chooses tokens, `Grammar`
constrains them to JSON, and `Conversation` combines all of them.
"""

from __future__ import annotations

from .adapters import LoRA
from .conversation import Conversation
from .decoder import Decoder
from .generation import Reply
from .gguf import GGUF
from .grammar import Grammar
from .model import Model, network
from .sampling import Sampler
from .vocabulary import Vocabulary

__all__ = ["GGUF", "Conversation", "Decoder", "Grammar", "LoRA", "Model", "Reply", "Sampler", "Vocabulary", "network"]


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
