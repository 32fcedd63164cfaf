"""Precisions: the arithmetic of engines for float32."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from ..support.errors import NotSupportedError
from ..support.names import either

if TYPE_CHECKING:
    from .base import Device

Precision = Literal["float32", "ieee", "tf32", "bfloat16", "float16"]
"""Arithmetic of an engine for float32; inputs and outputs keep their data types."""

PRECISIONS: dict[Precision, str] = {
    "float32": "results are at least as accurate as with sums of float32 in order",
    "ieee": "float32 arithmetic throughout",
    "tf32": "engines may round float32 to tf32",
    "bfloat16": "engines may round float32 to bfloat16",
    "float16": "engines may round float32 to float16",
}

KEEPS_FLOAT32 = "float16 result passed on in float32"
"""Remark in tables on an operation whose float16 result another operation reads in float32."""


def lacks_precision(
    subject: str, lacking: Iterable[Device], precision: Precision, all_devices: Iterable[Device]
) -> NotSupportedError:
    """Return the error for devices that lack a precision; it lists their precisions, other devices with it, and faults.

    `subject` names the devices `lacking` in the message.
    """
    offered = list(dict.fromkeys(p for device in lacking if device.available for p in device.precisions))
    own = either(list(map(repr, offered)))
    how_to_ask = (
        f" (create_context(precision={offered[0]!r}) asks for that)" if precision == "float32" and offered else ""
    )
    devices = list(all_devices)
    able = [f"{d.name!r} of back end {d.backend!r}" for d in devices if d.available and precision in d.precisions]
    if able:
        others = f"{either(able)} can"
    else:
        possible = dict.fromkeys(p for p in PRECISIONS for d in devices if d.available and p in d.precisions)
        others = f"no device of this machine can, all together only as {either(list(map(repr, possible)))}"
    faults = "".join(f"; {fault}" for fault in dict.fromkeys(d.fault for d in devices if d.fault))
    return NotSupportedError(
        f"precision {precision!r}: {subject} cannot compute so, only as {own}{how_to_ask}; {others}{faults}"
    )
