"""Adapters in ONNX Runtime's format: parameters of low-rank side products, which replace inputs of a model for some calls.

A model that takes adapters declares their parameters as inputs with initializers, whose values change nothing. Parameters of
a `LoraAdapter` or of `RunOptions` cannot be read back from ONNX Runtime, so their files are read when they are loaded, while
`replacing_onnxruntime` is active or through `opweave.onnxruntime`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ...support.errors import DataError, NotSupportedError, ValidationError, require
from ...support.names import count_of, short_repr
from .options import active_adapters
from .ort_values import array_of_value


class Adapter(Mapping[str, np.ndarray]):
    """The parameters of an adapter by name, read-only; `session.load_adapter` reads one.

    Attributes:
        path: the file.
        version: the version of the adapter.
        model_version: the version of the model that the adapter belongs to.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        import onnxruntime

        from ...backends.onnxruntime.native import ENGINE_ERRORS

        try:
            self.path = os.fspath(path)
        except TypeError:
            raise ValidationError(f"an adapter must be the path of a file, got {short_repr(path)}") from None
        try:
            with open(self.path, "rb"):  # the engine's message has no reason
                pass
            content = onnxruntime.AdapterFormat.read_adapter(self.path)
        except OSError as error:
            raise DataError(f"{self.path}: {error.strerror or error}") from None
        except ENGINE_ERRORS as error:
            raise DataError(f"{self.path}: not an adapter of ONNX Runtime ({error})") from None
        self.version, self.model_version = content.get_adapter_version(), content.get_model_version()
        # The values keep the memory of the file, which the arrays share.
        self._values = content.get_parameters()
        self._arrays = {
            name: array_of_value(value, f"parameter {name!r}") for name, value in sorted(self._values.items())
        }

    def __getitem__(self, name: str) -> np.ndarray:
        array: np.ndarray = self._arrays[name]
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<Adapter {os.path.basename(self.path)!r}, {count_of(len(self), 'parameter')}>"


_loaded: WeakKeyDictionary[Any, Adapter] = WeakKeyDictionary()
"""The parameters of ONNX Runtime's adapters that were loaded while calls are recorded."""


def record_load(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `LoraAdapter.Load` to read the parameters, too."""

    def Load(self: Any, path: Any) -> Any:  # noqa: N802  (the engine's name)
        result = method(self, path)
        _loaded[self] = Adapter(path)
        return result

    Load.__doc__ = method.__doc__
    return Load


def record_activation(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `RunOptions.add_active_adapter` to remember the adapter, which may be one of `session.load_adapter`."""

    def add_active_adapter(self: Any, adapter: Any) -> None:
        if isinstance(adapter, Adapter):
            active_adapters.setdefault(self, []).append(adapter)
            return
        method(self, adapter)
        active_adapters.setdefault(self, []).append(_loaded.get(adapter))

    add_active_adapter.__doc__ = method.__doc__
    return add_active_adapter


RECORDED = {"LoraAdapter": ("Load", record_load), "RunOptions": ("add_active_adapter", record_activation)}
"""Class of ONNX Runtime -> the method to wrap, and how."""


def parameters_of(run_options: Any) -> dict[str, np.ndarray]:
    """The parameters of the adapters that are active in the options of a call.

    Raises:
        NotSupportedError: an adapter was loaded before ONNX Runtime was replaced.
        ValidationError: two adapters have the same parameter.
    """
    parameters: dict[str, np.ndarray] = {}
    for adapter in active_adapters.get(run_options, ()):
        if adapter is None:
            raise NotSupportedError(
                "RunOptions.add_active_adapter: the adapter was loaded before ONNX Runtime was replaced, so that its "
                "parameters cannot be read; use session.load_adapter(path)"
            )
        parameters = join(parameters, adapter)
    return parameters


def join(feed: Mapping[str, Any], parameters: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The inputs of a call with further parameters; `ValidationError` if both have a name."""
    twice = [name for name in parameters if name in feed]
    require(not twice, f"the parameters {short_repr(twice)} of adapters are given twice")
    return {**feed, **parameters}
