r"""WebAssembly kernels: functions in a sandbox, on tensors that lie in their own memory.

    module = ow.wasm.load("ops.wasm", memory_limit=1 << 28, timeout=2)
    top_k.kernel("wasm", module, "top_k", signature="x*, out0*, out1*, x.outer[-1], x.shape[-1], k")

A module sees one linear memory and nothing else. Tensors are allocated in it (`context.create_tensor(…, memory=module)`);
to NumPy, and to the engine of the built-in operations, they are memory like any other, so nothing is copied.

What a function gets, its *signature*, is a list of these, separated by commas:

    x*             pointer to the elements of the operand `x` (0 if it is absent); C-contiguous, aligned to 64 bytes
    x*:float32     the same, and nothing but float32 is accepted
    out*           pointer to the result; out0*, out1*, … where there are several
    x.shape[1]     a dimension, x.shape[-1] the last; x.strides[1] in elements; x.outer[-1], the product of all before
    x.size         elements; x.bytes, x.rank, x.data_type (the number that ONNX has for it: float32 is 1)
    x.desc*        pointer to `struct { uint32_t rank, shape[8]; }`
    xs[0]*         of a sequence of operands: one of them; xs.count; xs* is a pointer to an array of their pointers,
                   xs.desc* to one of their descriptors
    alpha          an attribute that is a number (true is 1); padding[0], one of several
    alpha:f32      the same, and the function must take it as f32 (i32, i64, f32, f64)

Numbers take the type of the function's parameter; pointers are i32 (i64 in modules with 64-bit memory). Without a signature
it is: the pointers of all operands, those of all results, the number of elements of the first result, all attributes. The
function returns nothing, or an i32 that is 0 when all went well. In C:

    __attribute__((export_name("scale"))) void scale(const float *x, float *out, int n, float alpha) {
        for (int i = 0; i < n; i++) out[i] = alpha * x[i];
    }

    python -m ziglang cc -target wasm32-freestanding -mcpu=generic+simd128 -O3 -nostdlib \
        -Wl,--no-entry -Wl,-z,stack-size=65536 -o ops.wasm ops.c

(`pip install ziglang`; or `clang --target=wasm32 -msimd128` with the same options.)

What protects the rest of the process: functions reach nothing but their memory, they are stopped after `timeout` seconds,
the memory grows to `memory_limit`, no system is offered (no WASI, no imports), and a trap (out of bounds, division by zero,
`unreachable`, stack overflow) is an `OperationError` with the name of the function. After it the module works on: its stack
pointer is put back; static variables are as the function left them, and the results it was to write are undefined. *Inside*
of the memory there are no walls: a function with a bug can overwrite the other tensors of its module. Traps are explicit
checks, not signals, so `faulthandler` and other owners of signal handlers may come and go. Threads that run functions need
a stack of 512 KiB.

A module's own allocator must take what `memory.grow` gives it (wasi-libc's does), as the pages in between may be tensors.
Kernels of one module never run at the same time, as the memory has one user.

Several modules can share a memory, `ow.wasm.load("more.wasm", memory=module)`, if they are position-independent:

    python -m ziglang cc -target wasm32-freestanding -O3 -fPIC -fvisibility=hidden -c -o more.o more.c
    python -m ziglang wasm-ld --experimental-pic -shared --no-entry -o more.wasm more.o

`opweave.kernels.wasm.library` has a few kernels ready made.
"""

from __future__ import annotations

from . import library as library
from .kernel import WasmKernel as WasmKernel
from .loader import load as load
from .module import Module as Module

__all__ = ["Module", "WasmKernel", "library", "load"]
