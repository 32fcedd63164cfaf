"""Language models from GGUF files: `opweave chat model.gguf`, and its parts.

`network` builds the network, `Model` has its sizes and weights, `Decoder` runs it and keeps the cache, `Vocabulary` converts
between text and tokens, `Sampler` chooses tokens, and `Conversation` combines them.
"""

from __future__ import annotations

from .conversation import Conversation, Reply
from .decoder import Decoder
from .gguf import GGUF
from .model import Model, network
from .sampling import Sampler
from .vocabulary import Vocabulary

__all__ = ["GGUF", "Conversation", "Decoder", "Model", "Reply", "Sampler", "Vocabulary", "network"]
