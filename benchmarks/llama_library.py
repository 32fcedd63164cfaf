"""The library of llama.cpp out of npm's package `@node-llama-cpp/linux-x64`, which nobody has to build.

    npm install --prefix .llama @node-llama-cpp/linux-x64

`Llama` calls it without Node. Parameters are structures whose fields change from release to release: the library fills them
in, and `Llama` sets only the first ones, whose places it finds by their defaults.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int32, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from .measure import ROOT

FOLDER = ROOT / ".llama" / "node_modules" / "@node-llama-cpp" / "linux-x64"

CONTEXT_DEFAULTS = (512, 2048, 512)
"""`n_ctx`, `n_batch`, `n_ubatch` of `llama_context_default_params`."""


class _Parameters(ctypes.Structure):
    """A structure of parameters. Larger than any of them: the library reads and writes only the beginning."""

    _fields_ = [("words", c_uint32 * 128)]


class _Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", c_int32),
        *((name, c_void_p) for name in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits")),
    ]


def is_installed() -> bool:
    """Whether the package is in `FOLDER`."""
    return sys.platform == "linux" and (FOLDER / "package.json").is_file()


def version() -> str:
    """The release of llama.cpp, as text."""
    import json

    data = json.loads((FOLDER / "bins" / "linux-x64" / "_nlcBuildMetadata.json").read_text())
    return f"llama.cpp {data['buildOptions']['llamaCpp']['release']}"


class Llama:
    """A model and a context of llama.cpp.

    Args:
        path: the GGUF file.
        room: maximum number of tokens.
        threads: number of threads.
        adapters: GGUF files of adapters (LoRA), which the library takes only before there is a context.

    Raises:
        OSError: the library is missing or does not load.
        RuntimeError: the library refuses the file, or has other parameters.
    """

    def __init__(self, path: str | Path, room: int, threads: int, adapters: Sequence[str] = ()) -> None:
        folder = FOLDER / "bins" / "linux-x64"
        # The libraries load each other from their folder.
        llama = ctypes.CDLL(str(next(folder.glob("libllama.*so"))), mode=ctypes.RTLD_GLOBAL)
        ggml = ctypes.CDLL(str(next(folder.glob("libggml.*so"))), mode=ctypes.RTLD_GLOBAL)
        self._library = llama
        for name, result, arguments in (
            ("llama_model_default_params", _Parameters, []),
            ("llama_context_default_params", _Parameters, []),
            ("llama_model_load_from_file", c_void_p, [c_char_p, _Parameters]),
            ("llama_init_from_model", c_void_p, [c_void_p, _Parameters]),
            ("llama_model_get_vocab", c_void_p, [c_void_p]),
            ("llama_vocab_n_tokens", c_int32, [c_void_p]),
            ("llama_n_ctx", c_uint32, [c_void_p]),
            ("llama_set_n_threads", None, [c_void_p, c_int32, c_int32]),
            ("llama_get_memory", c_void_p, [c_void_p]),
            ("llama_memory_clear", None, [c_void_p, c_bool]),
            ("llama_batch_get_one", _Batch, [c_void_p, c_int32]),
            ("llama_decode", c_int32, [c_void_p, _Batch]),
            ("llama_get_logits_ith", POINTER(c_float), [c_void_p, c_int32]),
            ("llama_adapter_lora_init", c_void_p, [c_void_p, c_char_p]),
            ("llama_set_adapters_lora", c_int32, [c_void_p, c_void_p, c_size_t, c_void_p]),
            ("llama_log_set", None, [c_void_p, c_void_p]),
        ):
            function = getattr(llama, name)
            function.restype, function.argtypes = result, arguments
        # Without messages.
        self._log = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)(lambda *_: None)
        llama.llama_log_set(self._log, None)
        ggml.ggml_backend_load_all_from_path.argtypes = [c_char_p]
        ggml.ggml_backend_load_all_from_path(str(folder).encode())
        self._model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        self._adapters: dict[str, Any] = {}
        for adapter in adapters:
            self._adapters[adapter] = llama.llama_adapter_lora_init(self._model, adapter.encode())
            if not self._adapters[adapter]:
                raise RuntimeError(f"llama.cpp does not load the adapter {adapter}")
        parameters = llama.llama_context_default_params()
        if tuple(parameters.words[:3]) != CONTEXT_DEFAULTS:
            raise RuntimeError(f"llama.cpp has other parameters: {list(parameters.words[:8])}")
        # Prompts are read in chunks of 512, as in Opweave.
        self._batch = min(room, CONTEXT_DEFAULTS[2])
        parameters.words[0], parameters.words[1] = room, self._batch
        self._context = llama.llama_init_from_model(self._model, parameters)
        if not self._context or llama.llama_n_ctx(self._context) < room:
            raise RuntimeError(f"llama.cpp makes no context of {room} tokens")
        llama.llama_set_n_threads(self._context, threads, threads)
        self._words: int = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))

    def feed(self, tokens: Sequence[int]) -> np.ndarray:
        """Read tokens, and return the logits of the next one."""
        for start in range(0, len(tokens), self._batch):
            part = tokens[start : start + self._batch]
            array = (c_int32 * len(part))(*part)
            code = self._library.llama_decode(self._context, self._library.llama_batch_get_one(array, len(part)))
            if code:
                raise RuntimeError(f"llama_decode returned {code}")
        logits: np.ndarray = np.ctypeslib.as_array(
            self._library.llama_get_logits_ith(self._context, -1), (self._words,)
        )
        return logits

    def forget(self) -> None:
        """Forget all tokens."""
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)

    def apply(self, adapters: Mapping[str, float]) -> None:
        """Apply these adapters and no others: their files, and their scales."""
        handles = [self._adapters[path] for path in adapters]
        pointers, scales = (c_void_p * len(handles))(*handles), (c_float * len(handles))(*adapters.values())
        code = self._library.llama_set_adapters_lora(self._context, pointers, len(handles), scales)
        if code:
            raise RuntimeError(f"llama_set_adapters_lora returned {code}")
