"""Write the tables of ONNX Runtime's names into their page: `python tools/onnxruntime_tables.py docs/onnxruntime.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from opweave.onnx.compatibility import written_into

path = Path(sys.argv[1])
path.write_text(written_into(path.read_text(encoding="utf-8")), encoding="utf-8")
