"""Select the device of a context."""

from __future__ import annotations

import os

from .. import backends
from ..support import packages
from ..support.errors import NotSupportedError
from . import Backend, Device, PowerPreference, Precision
from .precision import lacks_precision

_BEST = (0, False, False)


def find(
    device: str | None,
    backend: str | None,
    power_preference: PowerPreference,
    accelerated: bool,
    precision: Precision,
) -> tuple[Backend, Device]:
    """Return the requested back end and device, else what `$OPWEAVE_DEVICE` names, else the best match of the preferences."""
    if device is not None:
        return backends.find_device(device, backend, precision)
    named = os.environ.get("OPWEAVE_DEVICE")
    if backend is not None or not named:
        chosen = choose(power_preference, accelerated, backend, precision)
        return backends.find_device(chosen, backend, precision)
    try:
        return backends.find_device(named, None, precision)
    except NotSupportedError as error:
        raise NotSupportedError(f"OPWEAVE_DEVICE: {error}") from None


def choose(
    power_preference: PowerPreference,
    accelerated: bool,
    backend: str | None = None,
    precision: Precision = "float32",
) -> str:
    """Return the name of the available device that has the precision and matches the preferences best.

    `backend` restricts the search to one back end. `accelerated` decides between the CPU and accelerators; among these,
    "low-power" prefers an NPU to a GPU, and an integrated GPU to a discrete one. (The specification gives power preference the
    higher priority; its authors discuss the reverse: https://github.com/webmachinelearning/webnn/issues/911.)
    """
    wants_low = power_preference == "low-power"
    # Take the first match without loading other back ends.
    if backend is None and not wants_low and not (accelerated and backends.may_accelerate()):
        for device in backends.default_devices():
            if device.available and _rank(device, False, wants_low) == _BEST and precision in device.precisions:
                return device.name
    listed = list(backends.default_devices()) if backend is None else backends.find(backend).devices()
    available = [device for device in listed if device.available]
    if not available and listed and backend is not None:
        raise NotSupportedError(f"back end {backend!r} has no device here: {listed[0].hint}")
    if not available:
        raise NotSupportedError("there is no device to run on; `opweave doctor` says what is missing")
    able = [device for device in available if precision in device.precisions]
    # Devices that contexts get by name only may have it.
    if not able and backend is None:
        able = [device for device in backends.devices() if device.available and precision in device.precisions]
    if not able:
        subject = "the devices here" if backend is None else f"back end {backend!r}"
        raise lacks_precision(subject, available, precision, backends.devices())
    for passed_over in listed if accelerated else ():
        if not passed_over.available:
            packages.warn_once(passed_over.fault)
    skipped = next((d for d in available if d.kind == "npu" and d not in able), None)
    if wants_low and accelerated and skipped is not None:
        from logging import getLogger

        getLogger("opweave").warning(
            "power_preference='low-power' does not take %r, which has no precision %r; create_context(precision=%r) would",
            *(skipped.name, precision, skipped.precisions[0]),
        )
    return min(able, key=lambda device: _rank(device, accelerated, wants_low)).name


def _rank(device: Device, accelerated: bool, wants_low: bool) -> tuple[int, bool, bool]:
    accelerators = ["npu", "gpu"] if wants_low else ["gpu", "npu"]
    kinds = [*accelerators, "cpu"] if accelerated else ["cpu", "npu", "gpu"]
    return kinds.index(device.kind), device.low_power != wants_low, device.provider != ""
