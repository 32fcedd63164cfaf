"""Functions of WebAssembly modules as kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...core.graph import MAX_RANK, Desc
from ...support.errors import OperationError, ValidationError, require
from ..base import Arrays, Descs, KernelCall
from . import signature as signatures
from .engine import address_of, call_unchecked, exception_of, ticker, ticks
from .module import Module
from .signature import ArgumentPlace, FunctionType, SignatureArgument


class WasmKernel:
    """An exported function of a WebAssembly module as a kernel; without a signature, `default` gives the arguments to pass."""

    def __init__(self, module: Module, function: str, signature: str | None = None) -> None:
        require(isinstance(module, Module), f"a wasm kernel needs a module of opweave.wasm.load, got {module!r}")
        require(isinstance(function, str), f"a wasm kernel needs the name of an export, got {function!r}")
        require(
            function in module.exports,
            f"{module.name} exports no function {function!r}; it exports {', '.join(module.exports) or 'none'}",
        )
        require(signature is None or isinstance(signature, str), f"signature must be a string, got {signature!r}")
        self.module, self.function, self.signature = module, function, signature

    def __repr__(self) -> str:
        return f"<WasmKernel {self.function}{self.module.exports[self.function]} of {self.module.name}>"

    def check_names(self, operands: Sequence[str], attributes: Sequence[str]) -> None:
        """Check the signature against an operation, as far as possible without a node."""
        if self.signature is None:
            return
        kind = self.module.exports[self.function]
        try:
            signatures.check_names(self.signature, kind, operands, attributes)
        except ValidationError as error:
            raise ValidationError(self._misfit(self.signature, kind, error)) from None

    def _misfit(self, signature: str, kind: FunctionType, error: ValidationError) -> str:
        function = f"{self.function}{kind} of {self.module.name}"
        return f"the signature {signature!r} does not fit {function}: {error}"

    def prepare(self, call: KernelCall) -> PreparedWasm:
        """Prepare the kernel for a node, if the function accepts the arguments of the signature."""
        kind = self.module.exports[self.function]
        signature = signatures.default(call) if self.signature is None else self.signature
        try:
            arguments = signatures.parse(signature, call)
            signatures.check(arguments, kind, self.module.arena.wide)
        except ValidationError as error:
            shown = f"{signature} (the default)" if self.signature is None else signature
            raise ValidationError(f"{call.title}: {self._misfit(shown, kind, error)}") from None
        return PreparedWasm(self, call, arguments, kind)


class PreparedWasm:
    """A WebAssembly kernel prepared for one node, whose operands and results must be in the memory of `space`.

    `space` is a module, the same for all modules that share the memory.
    """

    def __init__(
        self, kernel: WasmKernel, call: KernelCall, arguments: list[SignatureArgument], kind: FunctionType
    ) -> None:
        self.kernel, self.call, self.kind = kernel, call, kind
        self._arguments = arguments
        self.space, self.detail = kernel.module.home, f"wasm {kernel.function}, {kernel.module.name}"

    def bind(self, inputs: Mapping[str, Arrays], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        """Return a function that runs the kernel once on arrays in the module's memory."""
        arrays = self._arrays(inputs, outputs)
        tables: list[np.ndarray] = []
        values: list[int | float] = []
        for argument in self._arguments:
            value = argument.number
            if argument.kind == "tensor":
                array = arrays.get(argument.place)
                value = 0 if array is None else self.space.arena.offset(array)
            elif argument.kind != "number":
                tables.append(self._table(argument, arrays))
                value = self.space.arena.offset(tables[-1])
            values.append(value)
        return self._caller(values, (list(arrays.values()), tables))

    def _arrays(self, inputs: Mapping[str, Arrays], outputs: Sequence[np.ndarray]) -> dict[ArgumentPlace, np.ndarray]:
        arrays: dict[ArgumentPlace, np.ndarray] = {}
        declared: dict[str, Descs] = {**self.call.inputs, "": self.call.outputs}
        operands: dict[str, Any] = {**inputs, "": outputs}
        for name, descs in declared.items():
            if isinstance(descs, Desc):
                arrays[ArgumentPlace(name, None)] = self._check(name, operands[name], descs)
                continue
            for number, (desc, array) in enumerate(zip(descs or (), operands[name] or (), strict=True)):
                label = f"{name}[{number}]" if name else f"out{number}"
                arrays[ArgumentPlace(name, number)] = self._check(label, array, desc)
        return arrays

    def _check(self, name: str, array: np.ndarray, desc: Desc) -> np.ndarray:
        title, module = self.call.title, self.kernel.module
        if not (array.dtype == desc.data_type and array.shape == desc.shape and array.flags.c_contiguous):
            raise ValidationError(f"{title}: {name} must be {desc}, contiguous, got {array.dtype}{list(array.shape)}")
        if not module.owns(array):
            raise ValidationError(
                f"{title}: {name} must be in the memory of {module.name}; module.allocate makes such arrays"
            )
        return array

    def _table(self, argument: SignatureArgument, arrays: Mapping[ArgumentPlace, np.ndarray]) -> np.ndarray:
        """Allocate pointers to the tensors of a sequence, or descriptors, in linear memory."""
        arena = self.space.arena
        if argument.kind == "tensors":
            offsets = [arena.offset(arrays[ArgumentPlace(argument.place.name, i)]) for i in range(len(argument.descs))]
            rows = np.array(offsets, np.uint64 if arena.wide else np.uint32)
        else:
            padded = [[desc.rank, *desc.shape, *[0] * (MAX_RANK - desc.rank)] for desc in argument.descs]
            rows = np.array(padded, np.uint32)
        block = arena.block(rows.nbytes, f"the table {argument.text}")
        block[:] = rows.reshape(-1).view(np.uint8)
        return block

    def _caller(self, values: list[int | float], kept: object) -> Callable[[], None]:
        """Bind the call. Everything possible is computed here, because each run pays for the rest."""
        from wasmtime._bindings import wasmtime_val_raw

        module = self.kernel.module
        count = max(len(values), len(self.kind.results))
        buffer = (wasmtime_val_raw * max(count, 1))()
        for item, kind, value in zip(buffer, self.kind.parameters, values, strict=False):
            setattr(item, kind, value)
        result = buffer[0]
        first = result.i64  # all bits of the first value
        trap = ctypes.c_void_p()
        engine_call = call_unchecked()
        store, lock, arena = module.arena.store, module.arena.lock, module.arena
        function = module.functions[self.kernel.function]._func
        context = address_of(store._context())
        addresses = (context, ctypes.addressof(function), ctypes.addressof(buffer), count, ctypes.addressof(trap))
        returns = bool(self.kind.results)
        timeout = module.timeout
        duration = 0 if timeout is None else ticks(timeout)
        token = object()
        subject = f"{self.call.title}: {self.kernel.function} of {module.name}"

        def run() -> None:
            with lock:
                result.i64, trap.value = first, None  # results overwrite values
                if duration:
                    if arena.armed != (ticker.now, duration):
                        arena.armed = (ticker.now, duration)
                        store.set_epoch_deadline(duration)
                    try:
                        ticker.start(token)
                        error = engine_call(*addresses)
                    finally:
                        ticker.running.discard(token)
                else:
                    error = engine_call(*addresses)
                if error or trap.value:
                    raise module.recover(exception_of(error or 0, trap.value or 0), subject)
                status = result.i32 if returns else 0
            if status:
                raise OperationError(f"{subject} returned the status {status}")

        run.kept = kept, function, module  # type: ignore[attr-defined]  # keeps the memory at the addresses alive
        return run
