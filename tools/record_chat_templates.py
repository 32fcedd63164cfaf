"""Record what Transformers writes for the chat templates in tests/data/chat_templates.json.

Run `python tools/record_chat_templates.py` in an environment with transformers and jinja2. Each case of the file has a
`template`, the `arguments` of `apply_chat_template` and the `special` tokens; this adds the `text`, or null for an error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "tests" / "data" / "chat_templates.json"


def main() -> None:
    """Render all cases, and write the file."""
    import transformers

    data = json.loads(FILE.read_text(encoding="utf-8"))
    for case in data["cases"]:
        case["text"] = _text(case)
    data["transformers"] = transformers.__version__
    FILE.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _text(case: dict[str, Any]) -> str | None:
    """The text of a case; None if the template fails."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **case["special"])
    options = {"add_generation_prompt": True} | case["arguments"]
    try:
        text = tokenizer.apply_chat_template(
            options.pop("messages"), chat_template=case["template"], tokenize=False, **options
        )
    except Exception as error:
        print(f"{case['name']}: {type(error).__name__}: {error}")
        return None
    return str(text)


if __name__ == "__main__":
    main()
