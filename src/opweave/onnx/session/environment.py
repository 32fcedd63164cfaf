"""Environment variables that replace ONNX Runtime in a program; `opweave exec` sets them."""

from __future__ import annotations

import os
from typing import Any, get_args

from ...support import settings
from . import report
from .replacement import replacing_onnxruntime

REPLACE = "OPWEAVE_REPLACE_ONNXRUNTIME"
DEVICE, PRECISION, THREADS = "OPWEAVE_REPLACE_DEVICE", "OPWEAVE_REPLACE_PRECISION", "OPWEAVE_REPLACE_THREADS"
REPORT = "OPWEAVE_REPLACE_REPORT"


def replacement() -> replacing_onnxruntime:
    """Make the replacement that the environment variables describe.

    Raises:
        ValidationError: a variable has a wrong value.
    """
    from ...backends.precision import Precision

    settings.flag(REPLACE, True)  # raises for values other than 0 and 1, which `sitecustomize` does not refuse
    precision: Any = settings.choice(PRECISION, get_args(Precision), "")
    replacing = replacing_onnxruntime(
        device=os.environ.get(DEVICE, "").strip() or None,
        precision=precision or None,
        threads=settings.number(THREADS, 0) or None,
    )
    if settings.flag(REPORT, False):
        report.start()
    return replacing


def variables(
    *, device: str | None = None, precision: str | None = None, threads: int | None = None, report: bool = False
) -> dict[str, str]:
    """The environment variables for a replacement with these arguments."""
    values = {REPLACE: 1, DEVICE: device, PRECISION: precision, THREADS: threads, REPORT: 1 if report else None}
    return {name: str(value) for name, value in values.items() if value is not None}
