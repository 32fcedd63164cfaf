'''CUDA kernels: your own CUDA C++, or kernels of Triton, CuPy and Numba, as nodes of the CUDA graph around them.

    @ow.op
    def swiglu(self, x: ow.MLOperand, gate: ow.MLOperand):
        return x.desc

    swiglu.kernel("cuda", """
        void main(unsigned i) {
            out[i] = x[i] * gate[i] / (1.0f + expf(-gate[i]));
        }
    """)

For an operand `x`, these names are declared:

    x              pointer to the elements in C order: float, f16, int, unsigned, signed char, unsigned char, long long or
                   unsigned long long, by its data type; f16 converts to and from float. Operands are const.
    x_size         number of elements; x_rank
    x_shape[0]     a dimension; x_strides[0] in elements (not for scalars)
    out            the result; out0, out1, … for several results
    xs0, xs1       the operands of a sequence `xs`
    k, axes[0]     attributes that are numbers, booleans, or tuples of numbers (constexpr, float or int)

A name that C++ or CUDA reserves gets an underscore: `new_[i]`, but `new_size`. Attributes hide CUDA's functions: beside an
attribute `min`, the function is `::min`. All memory is aligned to 16 bytes.

There are two kinds of sources:

- `void main(unsigned i)` is called for each element of the (first) result, or for each position if it has one parameter for
  each axis; `invocations=` sets a different number of calls, or different extents, and `block=` the threads of a block. It may
  call functions of the same text. Barriers cannot be used, because some threads of the last block do not call `main`.
- A kernel with `__global__` of any name. Pointers are parameters with the names above, in any order; numbers may be, too.
  `grid=` is the number of blocks, `block=` their threads (256). `__shared__` memory, barriers and all else can be used.

`#include` finds the headers of an installed CUDA toolkit (`cuda_fp16.h`, `mma.h`), and those in the working directory; when
the latter change, kernels are compiled again.

If a kernel depends on shapes in other ways, register a function. It is called once for each node, with a `Buffer` for each
operand that it names (None if absent, a tuple for a sequence), attributes, `out` (a tuple for several results), and the
`features` of the device. It returns a `Source`, text, a `Launch`, or several of them for several passes, which may share
`scratch` memory:

    @row_sum.kernel("cuda")
    def _(x, out):
        return ow.cuda.Source(TEXT, grid=x.shape[0], block=(32, 4))

Kernels of other libraries are launched with tensors and numbers as their arguments; `Launch` has all options:

    @softmax.kernel("cuda")
    def _(x, out):
        rows, columns = x.shape
        return ow.cuda.Launch(triton_kernel, grid=rows, arguments=(x, out, columns), constants={"BLOCK": 1024}, num_warps=4)

- a function with `@triton.jit`, compiled for the device by its own compiler, in this process;
- a `cupy.RawKernel`;
- a function with `@numba.cuda.jit`, whose arrays are the tensors.

Results and scratch memory are not initialised. Compiler errors show the line of your text and its place in your file.
'''

from __future__ import annotations

from .kernel import CudaKernel as CudaKernel
from .launch import Launch as Launch
from .source import CudaBuffer as CudaBuffer, Source as Source

__all__ = ["CudaBuffer", "Launch", "Source"]


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
