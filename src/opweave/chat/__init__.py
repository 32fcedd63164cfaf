"""Language models from GGUF files: `opweave chat model.gguf`, and what it is made of.

`network` builds the network, `Model` has its sizes and weights, `Decoder` remembers tokens, `Vocabulary` knows them as text,
`Sampler` chooses them, and `Conversation` puts it together.
"""

from __future__ import annotations

from .conversation import Conversation, Reply
from .decoder import Decoder
from .gguf import GGUF
from .model import Model, network
from .sampling import Sampler
from .vocabulary import Vocabulary

__all__ = ["GGUF", "Conversation", "Decoder", "Model", "Reply", "Sampler", "Vocabulary", "network"]
