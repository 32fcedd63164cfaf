"""Find back ends and devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..support import packages
from ..support.errors import NotSupportedError, ValidationError
from . import hardware
from .entries import ByNeed, entry_points
from .precision import Precision, lacks_precision

if TYPE_CHECKING:
    from .base import Backend, Device

BUILT_IN = {
    "onnxruntime": "opweave.backends.onnxruntime:ort",
    "webgpu": "opweave.backends.webgpu:webgpu",
    "cuda": "opweave.backends.cuda:cuda",
    "openvino": "opweave.backends.openvino:openvino",
    "reference": "opweave.backends.reference:reference",
}
"""Opweave's own back ends: `{name: "module:attribute"}`, the preferred ones first."""

BY_NAME = frozenset({"cuda"})
"""Built-in back ends whose devices contexts get by name only: they are not loaded to search for a device."""

PACKAGES = {"webgpu": "wgpu", "openvino": "openvino"}
"""Package without which a built-in back end has no devices; the back end is not loaded if the package is missing."""

SHOWN_BY_FILES = frozenset({"webgpu", "cuda", "openvino", "reference"})
"""Built-in back ends that have an accelerator only if `hardware` sees signs of one."""

COMPETING = frozenset({"openvino"})
"""Built-in back ends that may run graphs for contexts on devices of other back ends: only these are loaded to ask."""


@cache
def discover() -> Mapping[str, Backend]:
    """Return all back ends by name, the preferred ones first and the reference last. Each is imported on first access.

    They are Opweave's own, and those that other packages declare in the entry point group `opweave.backends`. An entry point
    with the name of a built-in back end is ignored.
    """
    references = BUILT_IN | {n: r for n, r in sorted(entry_points("opweave.backends").items()) if n not in BUILT_IN}
    references["reference"] = references.pop("reference")
    return ByNeed(references, _load_backend)


def _load_backend(reference: str) -> Backend:
    module, _, attribute = reference.partition(":")
    backend: Backend = getattr(import_module(module), attribute)
    return backend


def devices() -> list[Device]:
    """Return the devices of all back ends, the preferred ones first; `create_context(device=…)` takes their names.

    >>> import opweave as ow
    >>> ow.devices()[-1].name
    'reference'
    """
    return [device for backend in discover().values() for device in backend.devices()]


def default_devices() -> Iterator[Device]:
    """Yield the devices that contexts may get without a name; each back end is loaded when its first device is requested."""
    by_name = discover()
    for name in by_name:
        if name in BY_NAME or _lacks_package(name):
            continue
        if (backend := by_name[name]).by_default():
            yield from backend.devices()


def _lacks_package(name: str) -> bool:
    return name in PACKAGES and not packages.is_installed(PACKAGES[name])


def may_accelerate() -> bool:
    """Whether a GPU or an NPU may be here. Without signs of one, only back ends that need none are loaded to ask."""
    if hardware.may_have_accelerator():
        return True
    by_name = discover()
    return any(by_name[name].may_accelerate() for name in by_name if name not in SHOWN_BY_FILES)


def find(name: str) -> Backend:
    """Return the back end called `name`, or raise `NotSupportedError`."""
    if (backend := discover().get(name)) is None:
        raise NotSupportedError(f"there is no back end {name!r}; there are {', '.join(map(repr, discover()))}")
    return backend


def find_device(name: str, backend: str | None = None, precision: Precision = "float32") -> tuple[Backend, Device]:
    """Return the first available device called `name` with this precision, or raise `NotSupportedError` with a list.

    `backend` restricts the search. Plug-in providers come last: they copy operands and results, Opweave's back ends do not.
    """
    candidates = discover().values() if backend is None else [find(backend)]
    of_plugin: tuple[Backend, Device] | None = None
    same: list[Device] = []
    # Back ends that are slow to list come last, and are asked only if needed.
    for candidate in candidates:
        match = candidate.device_named(name)
        if match is None:
            continue
        if precision not in match.precisions:
            same.append(match)
            continue
        if not match.provider:
            return candidate, match
        of_plugin = of_plugin or (candidate, match)
    if of_plugin is not None:
        return of_plugin
    listed = [device for candidate in candidates for device in candidate.devices()]
    of = f" of back end {backend!r}" if backend else ""
    if same:
        raise lacks_precision(f"device {name!r}{of}", same, precision, devices())
    names = ", ".join(dict.fromkeys(repr(device.name) for device in listed if device.available)) or "none"
    if same := [device for device in listed if device.name == name]:
        engines = ", ".join(
            candidate.name for candidate in discover().values() if backend and candidate.device_named(name)
        )
        rest = f"{name!r} has: {engines}" if engines else f"available: {names}"
        why = same[0].hint or "its engine failed when it was asked for, and lists it now"
        raise NotSupportedError(f"device {name!r}{of} is not available here: {why}; {rest}")
    raise NotSupportedError(f"there is no device {name!r}{of}; available: {names}")


def rival_names(device: Device) -> tuple[str, ...]:
    """Return the names of the back ends that may compete on a device of another back end, without importing them."""
    candidates = [name for name in discover() if name in COMPETING or name not in BUILT_IN]
    return tuple(name for name in candidates if name != device.backend and not _lacks_package(name))


def rivals_of(device: Device, precision: Precision) -> list[Backend]:
    """Return the back ends that may run graphs for contexts of this precision on a device of another back end."""
    return [rival for name in rival_names(device) if (rival := discover()[name]).competes(device, precision)]


def claim(
    option: str, handle: Any, *, device: str | None, backend: str | None, precision: Precision
) -> tuple[Backend, Device]:
    """Return the back end for an object that the caller passed as an option of `create_context`, and the `Device`.

    Raises:
        ValidationError: another back end was requested than the one that takes this option, or the object does not fit.
        NotSupportedError: there is no such device, or it lacks the precision.
    """
    owner = next(candidate for candidate in discover().values() if candidate.claims == option)
    if backend not in (None, owner.name):
        raise ValidationError(f"backend must not be given with {option}, got {backend!r}")
    instance, match = owner.on(handle, device)
    if precision not in match.precisions:
        raise lacks_precision(f"the device of the given {option}", [match], precision, devices())
    return instance, match
