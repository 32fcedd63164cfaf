'''WGSL kernels: your own compute shaders, which run between Opweave's in the same queue.

    @ow.op
    def swiglu(self, x: ow.MLOperand, gate: ow.MLOperand):
        return x.desc

    swiglu.kernel("webgpu", """
        fn main(i: u32) {
            out[i] = x[i] * gate[i] / (1.0 + exp(-gate[i]));
        }
    """)

Opweave declares buffers under the names of the operation's parameters. For an operand `x`:

    x              array<f32> (or i32, u32, i64, u64, f16, by its data type), in C order; operands are read-only
    x_size         number of elements, a u32; x_rank
    x_shape[0]     a dimension, a u32; x_strides[0] in elements (not for scalars)
    load_x(i)      element `i` of any data type: f32 for floats, i32 or u32 for small integers
    out            the result, declared in the same way; out0, out1, … for several results
    store_out(i, value)    writes element `i` of any data type; load_out(i) reads it back
    xs0, xs1       the operands of a sequence `xs`
    k, axes[0]     attributes that are numbers, booleans, or tuples of numbers (an untyped const)

int8 and uint8 are packed, four to a 32-bit word, and so are pairs of float16 on devices without `f16`. A packed `x`
itself is not declared: use `load_x(i)` and `store_out(i, value)`, which are safe if several invocations store into the
same word, or the words `x_words` (atomic for results). Kernels that use load and store run on every device, with every
data type they can compute. A name that WGSL reserves gets an underscore: `filter_[i]`, but `filter_size`.

There are two kinds of shaders:

- `fn main(i: u32)` is called for each element of the (first) result, or for each position if it has one parameter for
  each axis; `invocations=` sets a different number of calls, or different extents. Opweave chooses the workgroups. Barriers
  cannot be used, because some invocations of the last workgroup do not call `main`.
- A function with `@compute @workgroup_size(…)`, of any name, is the entry point itself; Opweave only adds declarations,
  and `workgroups=` is the number to dispatch. It can use workgroup memory, barriers and all built-in values.

For a shader that depends on shapes in other ways, register a function. It is called once for each node, with a `Buffer`
for each operand that it names (None if absent, a tuple for a sequence), attributes, `out` (a tuple for several
results), and the `features` of the device. It returns a `Shader`, text, or several of them for several passes:

    @row_sum.kernel("webgpu")
    def _(x, out):
        parts = min(64, x.shape[1])
        sums = {"sums": ow.Desc("float32", (x.shape[0], parts))}
        return (
            ow.wgsl.Shader(FIRST, invocations=(x.shape[0], parts), scratch=sums),
            ow.wgsl.Shader(SECOND, invocations=x.shape[0], scratch=sums),
        )

Scratch buffers are declared in the same way (`sums`, `sums_shape`, …), can be read and written, and are shared by all
passes of a node. Scratch buffers and results are not initialised. Compiler errors show the line of your text and its
place in your file, as do errors about unclosed brackets and missing entry points.
'''

from __future__ import annotations

from .kernel import WgslKernel as WgslKernel
from .shader import Buffer as Buffer, Shader as Shader

__all__ = ["Buffer", "Shader"]


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
