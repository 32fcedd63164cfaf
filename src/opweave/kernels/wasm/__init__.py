r"""WebAssembly kernels: sandboxed functions on tensors in their own memory.

    module = ow.wasm.load("ops.wasm", memory_limit=1 << 28, timeout=2)
    top_k.kernel("wasm", module, "top_k", signature="x*, out0*, out1*, x.outer[-1], x.shape[-1], k")

A module can only access its linear memory. Tensors are allocated in it (`context.create_tensor(…, memory=module)`);
NumPy and the engines of the built-in operations use them like any other memory, so nothing is copied.

The *signature* lists the values to pass to a function, separated by commas:

    x*             pointer to the elements of the operand `x` (0 if it is absent); C-contiguous, aligned to 64 bytes
    x*:float32     the same; other data types are rejected
    out*           pointer to the result; out0*, out1*, … if there are several
    x.shape[1]     a dimension, x.shape[-1] the last one
    x.strides[1]   the stride of a dimension, in elements
    x.outer[-1]    the product of all dimensions before the given one
    x.size         number of elements; also x.bytes, x.rank, x.data_type (ONNX's number: float32 is 1)
    x.desc*        pointer to `struct { uint32_t rank, shape[8]; }`
    xs[0]*         pointer to an operand of the sequence `xs`
    xs.count       number of operands of the sequence
    xs*, xs.desc*  pointer to an array of their pointers, or of their descriptors
    alpha          an attribute that is a number (true is 1); padding[0], an element of an attribute
    alpha:f32      the same; the parameter must be f32 (or i32, i64, f64)

Numbers are converted to the type of the parameter; pointers are i32 (i64 in modules with 64-bit memory). The default
signature is: pointers to all operands and all results, the number of elements of the first result, all attributes. The
function returns nothing, or an i32 status that is 0 on success. In C:

    __attribute__((export_name("scale"))) void scale(const float *x, float *out, int n, float alpha) {
        for (int i = 0; i < n; i++) out[i] = alpha * x[i];
    }

    python -m ziglang cc -target wasm32-freestanding -mcpu=generic+simd128 -O3 -nostdlib \
        -Wl,--no-entry -Wl,-z,stack-size=65536 -o ops.wasm ops.c

(`pip install ziglang`; or `clang --target=wasm32 -msimd128` with the same options.)

Isolation: functions can only access their memory, they are stopped after `timeout` seconds,
the memory grows to at most `memory_limit`, there is no system interface (no WASI, no imports), and a trap (out of
bounds, division by zero, `unreachable`, stack overflow) raises `OperationError` with the name of the function. The
module remains usable after a trap: its stack pointer is restored, static variables are as the function left them, and
the results are undefined. There is no protection *within* the memory: a faulty function can overwrite the other tensors
of its module. Traps are explicit checks rather than signals, so they do not interfere with `faulthandler` and other
signal handlers. Threads that run functions need a stack of 512 KiB.

A module's own allocator must use the pages that `memory.grow` returns (wasi-libc's does), because tensors may occupy
the pages in between. Kernels of one module never run concurrently.

Several modules can share a memory, `ow.wasm.load("more.wasm", memory=module)`, if they are position-independent:

    python -m ziglang cc -target wasm32-freestanding -O3 -fPIC -fvisibility=hidden -c -o more.o more.c
    python -m ziglang wasm-ld --experimental-pic -shared --no-entry -o more.wasm more.o

`opweave.kernels.wasm.library` contains some ready-made kernels.
"""

from __future__ import annotations

from . import library as library
from .kernel import WasmKernel as WasmKernel
from .loader import load as load
from .module import Module as Module

__all__ = ["Module", "load"]


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
