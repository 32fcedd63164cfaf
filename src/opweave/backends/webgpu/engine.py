"""A WebGPU device with Opweave's caches for it: pipelines, staging buffers and features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import memory
from ...core.graph import Desc
from ...expr.gpu import Features, GpuKernel
from ...support.cache import Cache
from ...support.errors import NotSupportedError, OperationError, ValidationError, import_extra, require
from ...support.names import short_repr
from ..gpu.arrays import DeviceArray
from ..gpu.device import GpuDevice
from . import adapters

if TYPE_CHECKING:
    import wgpu

PIPELINE_BYTES = 2**26
"""Maximum size, by `pipeline_bytes`, of the pipelines that are cached for later graphs. Graphs keep theirs alive."""

BYTES_PER_PIPELINE = 225 * 1024
"""Approximate memory of a compiled kernel besides its source, measured on a software adapter (Mesa)."""

STAGING = 8

PATIENCE = 0.5
"""Seconds after which a waiting reader checks that the device is not lost."""

WORD = 4
"""Bytes of a word: sizes and offsets of buffers that are bound, copied or written are multiples of it."""


def padded_size(count: int) -> int:
    return -(-count // WORD) * WORD


class WebGpuDevice(GpuDevice):
    """A WebGPU device.

    If `is_own`, the device is destroyed with the last context on it. `compiled` holds pipelines by kernel source, `staging`
    idle buffers through which tensors are copied to the host.
    """

    title = "WebGPU"

    def __init__(self, device: wgpu.GPUDevice, *, is_own: bool = False) -> None:
        super().__init__()
        self._is_own = is_own
        self.wgpu = import_extra("wgpu", "webgpu", adapters.PURPOSE)
        self.device = device
        info = device.adapter_info
        self.is_software = adapters.is_software(info)
        self.description = f"{info['device']}, WebGPU on {info['backend_type']}"
        limits, features = device.limits, device.features
        self.features = Features(
            float16="shader-f16" in features,
            int64="shader-int64" in features,
            subgroups="subgroup" in features,
            max_buffers=limits["max-storage-buffers-per-shader-stage"],
            max_invocations=min(
                limits["max-compute-invocations-per-workgroup"], limits["max-compute-workgroup-size-x"]
            ),
            max_workgroups=limits["max-compute-workgroups-per-dimension"],
            max_shared=limits["max-compute-workgroup-storage-size"],
            is_software=self.is_software,
            units=16 if info["adapter_type"] == "IntegratedGPU" else 132,
        )
        self.has_timestamps = "timestamp-query" in features
        # Kernels that pack four elements into a word round sizes up to words.
        self.max_byte_length: int = (
            min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"], 2**31 - 1) // WORD * WORD
        )
        usage = self.wgpu.BufferUsage
        self.tensor_usage: int = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        self.compiled: Cache[str, Any] = Cache(max_bytes=PIPELINE_BYTES, raw=True)
        self._layouts: dict[tuple[tuple[bool, ...], bool], tuple[Any, Any]] = {}
        self.size_alignment: int = limits["min-uniform-buffer-offset-alignment"]
        self.staging: list[Any] = []
        self._mark: DeviceArray | None = None

    # Errors ----------------------------------------------------------------------------------------------------------

    def raise_error(self, subject: str, explain: Callable[[str], str] | None, error: BaseException) -> None:
        if isinstance(error, self.wgpu.GPUError):
            text = _reason(error)
            if "is lost" in text:
                raise self.lose_contexts(subject) from error
            raise OperationError(f"{subject}: {text if explain is None else explain(str(error))}") from error
        # wgpu raises these errors if another thread destroys the device.
        if isinstance(error, (AttributeError, RuntimeError)) and self._is_lost(error):
            raise self.lose_contexts(subject) from error

    def _is_lost(self, error: Exception | None = None) -> bool:
        # The device is about to be lost: its thread ends first.
        if "PollThread" in str(error) or "get_token" in str(error):
            return True
        try:
            self.device.create_command_encoder().finish()
        except self.wgpu.GPUError as error:
            return "is lost" in str(error)
        return False

    def free_caches(self) -> None:
        """Free pipelines and idle buffers, and destroy the device if Opweave has opened it."""
        self.compiled.clear()
        for buffer in self.staging:
            buffer.destroy()
        self.staging.clear()
        if self._is_own:
            self._is_own = False
            self.device.destroy()

    # Memory ----------------------------------------------------------------------------------------------------------

    def buffer(self, count: int, label: str) -> wgpu.GPUBuffer:
        with self.calls(f"{label} of {count} bytes"):
            return self.device.create_buffer(label=label, size=padded_size(count), usage=self.tensor_usage)

    def exportable(self, desc: Desc, usage: Any, needed: Sequence[str]) -> DeviceArray:
        """Allocate a tensor whose buffer has the user's `usage`, STORAGE, and the usages `needed`."""
        names = self.wgpu.BufferUsage
        flags = _usage_flags(names, usage)
        mapping = [name for name in ("MAP_READ", "MAP_WRITE") if flags & getattr(names, name)]
        if mapping and "mappable-primary-buffers" not in self.device.features:
            raise NotSupportedError(
                f"create_exportable_tensor: usage must not have {' or '.join(mapping)}: kernels need STORAGE, and WebGPU has "
                "no buffers of both; a device with the feature 'mappable-primary-buffers' has them"
            )
        for name in ("STORAGE", *needed):
            flags |= getattr(names, name)
        with self.calls(f"a tensor {desc} of {desc.byte_length} bytes"):
            buffer = self.device.create_buffer(
                label=f"a tensor {desc}", size=padded_size(desc.byte_length), usage=flags
            )
        # The user may map the buffer at any time.
        return DeviceArray(desc, buffer, lent=bool(mapping))

    def size_buffer(self, numbers: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        """Write lists of sizes to a uniform buffer, and return the part of the buffer that has each list, to be bound."""
        steps = [-(-len(item) * WORD // self.size_alignment) * self.size_alignment for item in numbers]
        words = np.zeros(sum(steps) // WORD, np.int32)
        starts = list(accumulate(steps[:-1], initial=0))
        for start, item in zip(starts, numbers, strict=True):
            words[start // WORD :][: len(item)] = item
        usage = self.wgpu.BufferUsage
        with self.calls("the sizes of kernels"), self._lock:
            buffer = self.device.create_buffer(label="sizes", size=words.nbytes, usage=usage.UNIFORM | usage.COPY_DST)
            self.device.queue.write_buffer(buffer, 0, words)
        return [{"buffer": buffer, "offset": start, "size": size} for start, size in zip(starts, steps, strict=True)]

    def copy(self, target: DeviceArray, source: DeviceArray, reason: str) -> None:
        self._check([source], "COPY_SRC", reason)
        self._check([target], "COPY_DST", reason)
        with self.calls(reason), self._lock:
            encoder = self.device.create_command_encoder()
            encoder.copy_buffer_to_buffer(source.buffer, 0, target.buffer, 0, padded_size(target.nbytes))
            self.device.queue.submit([encoder.finish()])
        memory.copies.add(target.nbytes, reason)

    def adopt(self, buffer: Any, desc: Desc | None) -> DeviceArray:
        """Wrap the user's buffer, with the data type and shape that the user gives."""
        wgpu = self.wgpu
        require(
            not isinstance(buffer, wgpu.GPUTexture),
            "tensor_from shares memory, and takes no GPUTexture: tensor_from_texture copies one, on the device",
        )
        if desc is None:
            raise ValidationError(
                "tensor_from takes a GPUBuffer, data_type and shape on WebGPU; create_tensor and write_tensor take arrays"
            )
        require(
            isinstance(buffer, wgpu.GPUBuffer),
            f"tensor_from takes a GPUBuffer of the context's device, got {type(buffer).__name__}",
        )
        require(self.has_made(buffer), "tensor_from: the buffer belongs to another GPUDevice than the context")
        require(
            bool(buffer.usage & wgpu.BufferUsage.STORAGE),
            f"tensor_from: the buffer must have the usage STORAGE, got {buffer.usage:#x}",
        )
        # wgpu ends the process when a command uses a mapped buffer.
        require(buffer.map_state == "unmapped", f"tensor_from: the buffer must not be mapped, it is {buffer.map_state}")
        count = padded_size(desc.byte_length)
        require(buffer.size >= count, f"tensor_from: {desc} takes {count} bytes, the buffer has {buffer.size}")
        return DeviceArray(desc, buffer, lent=True)

    def has_made(self, item: Any) -> bool:
        """Whether a buffer, a texture or another object of WebGPU belongs to this device."""
        return item._device is self.device

    def check_lent(self, arrays: Iterable[DeviceArray]) -> None:
        """Raise `ValidationError` for a mapped or destroyed buffer of the user: wgpu ends the process when it is used."""
        for array in arrays:
            if array.lent:
                require(
                    array.buffer.map_state == "unmapped",
                    f"the buffer of the tensor {array.desc} must not be mapped, it is {array.buffer.map_state}",
                )
                try:
                    self.bind_group((False,), [array])  # wgpu checks bindings, but not submissions
                except OperationError as error:
                    raise ValidationError(
                        f"the buffer of the tensor {array.desc} cannot be used any more: {error}"
                    ) from error

    def write(self, target: DeviceArray, source: np.ndarray, reason: str) -> None:
        self._check([target], "COPY_DST", reason)
        super().write(target, source, reason)

    def write_buffer(self, buffer: Any, source: np.ndarray, reason: str) -> None:
        raw = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        whole = raw.size // WORD * WORD
        with self.calls("writing a tensor"), self._lock:
            if whole:
                self.device.queue.write_buffer(buffer, 0, raw[:whole])
            if whole < raw.size:
                tail = np.zeros(WORD, np.uint8)
                tail[: raw.size - whole] = raw[whole:]
                self.device.queue.write_buffer(buffer, whole, tail)
        memory.copies.add(source.nbytes, reason)

    def read(self, sources: Sequence[DeviceArray], targets: Sequence[np.ndarray], reason: str) -> None:
        self._check(sources, "COPY_SRC", reason)
        self._read(sources, targets, reason)

    def _read(self, sources: Sequence[DeviceArray], targets: Sequence[np.ndarray], reason: str) -> None:
        """Copy tensors into arrays; without targets, only wait for the device."""
        starts, at = [], 0
        for source in sources:
            starts.append(at)
            at += -(-source.nbytes // 8) * 8  # mapped views begin at multiples of 8
        with self.calls("reading a tensor"):
            staging = self._take_staging(at)
            try:
                with self._lock:
                    encoder = self.device.create_command_encoder()
                    for source, start in zip(sources, starts, strict=True):
                        encoder.copy_buffer_to_buffer(source.buffer, 0, staging, start, padded_size(source.nbytes))
                    self.device.queue.submit([encoder.finish()])
                    # READ_NOSYNC skips wgpu's empty submission before mapping; the copy is submitted already.
                    mapped = staging.map_async("READ_NOSYNC")
                self._wait_for(mapped)  # other threads may use the device meanwhile
                view = part = np.frombuffer(staging.read_mapped(copy=False), np.uint8)
                for source, start, target in zip(sources, starts, targets, strict=False):
                    part = view[start : start + source.nbytes].view(source.desc.data_type)
                    memory.copy(target, part.reshape(source.shape), reason)
                del view, part  # unmapping needs that no view is left
                staging.unmap()
            except BaseException:
                staging.destroy()
                raise
            self._give_staging(staging)

    def _wait_for(self, mapped: Any) -> None:
        """Wait for a buffer to be mapped. wgpu's own wait never ends if another thread destroys the device meanwhile."""
        done = getattr(mapped, "_thread_event", None)  # private; without it, wait as wgpu does
        while done is not None and not done.wait(PATIENCE):
            if self._is_lost():
                raise self.lose_contexts("reading a tensor")
        mapped.sync_wait()

    def check_overlap(
        self, sources: Mapping[str, DeviceArray], targets: Mapping[str, DeviceArray], constants: object = ()
    ) -> None:
        """Raise `ValidationError` if an output shares memory with another tensor; constants have separate buffers."""
        taken = {array.buffer: name for name, array in sources.items()}
        for name, target in targets.items():
            if target.buffer in taken:
                raise ValidationError(f"output {name!r} overlaps the memory of {taken[target.buffer]!r}")
            taken[target.buffer] = name

    def wait(self) -> None:
        if self._mark is None:
            self._mark = self.allocate(Desc("uint32", ()))
        self._read([self._mark], [], "")

    def _take_staging(self, count: int) -> Any:
        with self._lock:
            fitting = [buffer for buffer in self.staging if count <= buffer.size <= max(4 * count, 1 << 16)]
            if fitting:
                best = min(fitting, key=lambda buffer: buffer.size)
                self.staging.remove(best)
                return best
        size = padded_size(count) if count > 1 << 26 else 1 << max(count - 1, 255).bit_length()
        usage = self.wgpu.BufferUsage.COPY_DST | self.wgpu.BufferUsage.MAP_READ
        return self.device.create_buffer(label="opweave: reading", size=size, usage=usage)

    def _give_staging(self, buffer: Any) -> None:
        with self._lock:
            self.staging.append(buffer)
            while len(self.staging) > STAGING:
                self.staging.pop(0).destroy()

    def _check(self, arrays: Sequence[DeviceArray], usage: str, reason: str) -> None:
        """Raise `ValidationError` if a user's buffer lacks the usage that a copy needs, or is destroyed."""
        for array in arrays:
            if not array.buffer.usage & getattr(self.wgpu.BufferUsage, usage):
                raise ValidationError(
                    f"{reason}: the buffer of the tensor {array.desc} was made without the usage {usage}"
                )
        self.check_lent(arrays)

    def copy_texture(self, subject: str, array: DeviceArray, texture: Any, encoder: Any, **options: Any) -> None:
        """Copy a texture to a tensor, or a tensor to a texture if `subject` is "copy_to_texture"; see `Texels`."""
        from . import textures  # few graphs have pictures on the device

        texels = textures.Texels.of(subject, array.desc, **options)
        if encoder is not None:
            textures.check_encoder(self, subject, encoder)
        copy = textures.draw_texture if subject == "copy_to_texture" else textures.read_texture
        copy(self, array, texture, texels, encoder)

    def texture_shape(self, subject: str, texture: Any, layout: Any, channels: Any) -> tuple[int, ...]:
        """The shape of a tensor for a texture."""
        from . import textures

        return textures.texture_shape(self, subject, texture, layout, channels)

    # Kernels ---------------------------------------------------------------------------------------------------------

    def layout(self, writes: tuple[bool, ...], has_sizes: bool = False) -> tuple[Any, Any]:
        """The layouts of a bind group and of a pipeline; with `has_sizes`, the last binding is a uniform buffer."""
        with self._lock:
            layouts = self._layouts.get((writes, has_sizes))
            if layouts is None:
                kinds = ["storage" if written else "read-only-storage" for written in writes] + ["uniform"] * has_sizes
                group = self.device.create_bind_group_layout(
                    entries=[
                        {"binding": k, "visibility": self.wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
                        for k, kind in enumerate(kinds)
                    ]
                )
                whole = self.device.create_pipeline_layout(bind_group_layouts=[group])
                layouts = self._layouts[writes, has_sizes] = group, whole
            return layouts

    def pipelines(self, kernels: Sequence[GpuKernel]) -> list[Any]:
        """Return the pipelines of kernels; new ones are compiled in parallel. Errors show the line of WGSL."""
        fresh = {kernel.source: kernel for kernel in kernels if kernel.source not in self.compiled}
        if len(fresh) > 1:
            with ThreadPoolExecutor(min(8, len(fresh))) as pool:
                list(pool.map(self._pipeline, fresh.values()))
        return [self._pipeline(kernel) for kernel in kernels]

    def _pipeline(self, kernel: GpuKernel) -> Any:
        return self.compiled.make(
            kernel.source, lambda: self._compile(kernel), lambda _: self.pipeline_bytes(kernel.source)
        )

    def _compile(self, kernel: GpuKernel) -> Any:
        _, layout = self.layout(kernel.writes, bool(kernel.sizes))
        with self.calls(kernel.title, kernel.explain):
            module = self.device.create_shader_module(label=kernel.title, code=kernel.source)
            return self.device.create_compute_pipeline(
                label=kernel.title, layout=layout, compute={"module": module, "entry_point": kernel.entry_point}
            )

    def bindings(self, stage: int, kinds: Sequence[Mapping[str, Any]]) -> tuple[Any, Any]:
        """The layouts of a bind group with these kinds of resources, and of a pipeline."""
        group = self.device.create_bind_group_layout(
            entries=[{"binding": k, "visibility": stage, **kind} for k, kind in enumerate(kinds)]
        )
        return group, self.device.create_pipeline_layout(bind_group_layouts=[group])

    def record(self, subject: str, function: Callable[[Any], None], encoder: Any = None) -> None:
        """Call a function with the caller's command encoder, or with one that is submitted at once."""
        with self.calls(subject), self._lock:
            if encoder is not None:
                function(encoder)
                return
            own = self.device.create_command_encoder()
            function(own)
            self.device.queue.submit([own.finish()])

    @staticmethod
    def pipeline_bytes(source: str) -> int:
        """The approximate memory of a pipeline, with its source."""
        return BYTES_PER_PIPELINE + 2 * len(source)

    def bind_group(
        self, writes: tuple[bool, ...], places: Sequence[DeviceArray], sizes: Mapping[str, Any] | None = None
    ) -> Any:
        """Bind arrays, and the part of a uniform buffer that has the kernel's sizes, if it takes any."""
        layout, _ = self.layout(writes, sizes is not None)
        entries = [
            {"binding": k, "resource": {"buffer": p.buffer, "offset": 0, "size": padded_size(p.nbytes)}}
            for k, p in enumerate(places)
        ]
        if sizes is not None:
            entries.append({"binding": len(entries), "resource": sizes})
        with self.calls("binding a kernel"):
            return self.device.create_bind_group(layout=layout, entries=entries)


def _usage_flags(names: Any, usage: Any) -> int:
    """The flags of `wgpu.BufferUsage` in a number or in names that "|" separates."""
    # wgpu ends the process for unknown flags.
    listing = {name: getattr(names, name) for name in dir(names) if name.isupper()}
    flags = usage
    if isinstance(usage, str):
        flags = 0
        for part in usage.split("|"):
            flags |= listing.get(part.strip().upper(), -1)
    is_number = isinstance(flags, int) and not isinstance(flags, bool)
    require(
        is_number and 0 < flags <= sum(listing.values()),
        f"create_exportable_tensor: usage must be flags of wgpu.BufferUsage, or their names ({', '.join(listing)}) with '|' "
        f"in between, got {short_repr(usage)}",
    )
    return int(flags)


def _reason(error: BaseException) -> str:
    """Return the message of a wgpu error without its headline."""
    lines = [line.rstrip() for line in str(error).splitlines()]
    kept = [line for line in lines if line.strip() and line.strip() not in ("Validation Error", "Caused by:")]
    return "\n".join(kept) if len(kept) > 2 else " ".join(line.strip() for line in kept)
